/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP network through its table (tcp_util.h): every size, odd addresses, both directions, under every way of
 * sending, with checksums, lanes and helpers.
 */
#include <limits.h>
#include <sys/mman.h>

#include "tcp_util.h"

/* Every size once in each direction, at odd addresses; the receive has room to spare. */
static void move_sizes(struct way ways[2], const size_t *sizes, int n, int odd)
{
	uint8_t *out[2], *in[2];

	for (int d = 0; d < 2; d++) {
		out[d] = malloc(MAX + 64);
		in[d] = malloc(MAX + 64);
		CHECK(out[d] && in[d]);
	}
	for (int i = 0; i < n; i++) {
		void *sends[2], *recvs[2];
		size_t size = sizes[i];

		for (int d = 0; d < 2; d++) {
			uint8_t *from = out[d] + odd + d, *to = in[d] + odd + 2 * d + 1;

			pattern_fill(from, size, (uint64_t)(i * 2 + d));
			memset(in[d], 0xdb, size + 64);
			if (i % 3 == 0) /* the send is first, sometimes */
				sends[d] = post_send(ways[d].send, from, size, i);
			recvs[d] = post_recv(ways[d].recv, to, size + (i % 2 ? 9 : 0), i);
			if (i % 3)
				sends[d] = post_send(ways[d].send, from, size, i);
		}
		for (int d = 0; d < 2; d++) {
			uint8_t *to = in[d] + odd + 2 * d + 1;

			int sent = -1;

			CHECK_EQ(wait_two(recvs[d], sends[d], &sent), size);
			CHECK_EQ(sent, size);
			CHECK_PATTERN(to, size, (uint64_t)(i * 2 + d));
			CHECK_EQ(to[-1], 0xdb);
			CHECK_EQ(to[size], 0xdb);
		}
	}
	for (int d = 0; d < 2; d++) {
		free(out[d]);
		free(in[d]);
	}
}

/* Several at once, so that messages overtake each other on the lanes. */
static void move_many(struct way ways[2])
{
	enum { N = 24 };
	static uint8_t out[2][N][150000], in[2][N][150000];
	void *sends[2][N], *recvs[2][N];

	for (int i = 0; i < N; i++)
		for (int d = 0; d < 2; d++) {
			size_t size = (size_t)(i * 6151 % 150000);

			pattern_fill(out[d][i], size, (uint64_t)(i + 100 * d));
			sends[d][i] = post_send(ways[d].send, out[d][i], size, 5);
			recvs[d][i] = post_recv(ways[d].recv, in[d][i], 150000, 5);
		}
	for (int i = N - 1; i >= 0; i--) /* the last first: test on any request progresses all */
		for (int d = 0; d < 2; d++) {
			size_t size = (size_t)(i * 6151 % 150000);

			CHECK_EQ(wait_two(recvs[d][i], sends[d][i], NULL), size);
			CHECK_PATTERN(in[d][i], size, (uint64_t)(i + 100 * d));
		}
}

static const char *zerocopy, *crc, *lanes, *helpers;
static int combination;

static void combine(void)
{
	static const size_t sizes[] = {0,      1,      2,      47,     48,    49,     255,   257,
				       4095,   4097,   8191,   8193,   65535, 65536,  65537, 100001,
				       262143, 262144, 262145, 999999, MIB,   MIB + 3};
	static const size_t large[] = {3 * MIB + 17, MAX};
	size_t middle[12];
	struct way ways[2];
	void *ctx;

	setenv("GANTRY_ZEROCOPY", zerocopy, 1);
	setenv("GANTRY_CRC", crc, 1);
	setenv("GANTRY_LANES", lanes, 1);
	setenv("GANTRY_HELPERS", helpers, 1);
	setenv("GANTRY_LOG", "info", 1);
	start(&ctx, GANTRY_NET_UNDEF);
	ways[0] = connect_way(ctx);
	ways[1] = connect_way(ctx);
	move_sizes(ways, sizes, sizeof(sizes) / sizeof(*sizes), 1 + combination % 7);
	move_many(ways);
	if (combination % 4 == 0)
		move_sizes(ways, large, 2, 3);
	if (strcmp(zerocopy, "msg") == 0 && strcmp(lanes, "1") == 0) {
		/* Loopback copies what it was asked to reference: plain from then on, and one line about it. */
		for (int i = 0; i < 12; i++)
			middle[i] = 300000;
		move_sizes(ways, middle, 12, 1);
		UNTIL(logs_count("the kernel copies despite MSG_ZEROCOPY"));
	}
	UNTIL(logs_count(strcmp(lanes, "1") == 0 ? "1+1 lanes" : "1+3 lanes"));
	close_way(ways[0]);
	close_way(ways[1]);
	CHECK_OK(ops->finalize(net, ctx));
}

/* 4 GiB and 5 bytes. One memfd stands for most of it, many times over; the first part and the tail are their own. */
static uint8_t *map_huge(size_t size, int ret_fd[3])
{
	enum { UNIT = 64 * MIB };
	uint8_t *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(base != MAP_FAILED);
	for (int i = 0; i < 3; i++) {
		ret_fd[i] = memfd_create("gantry-test", MFD_CLOEXEC);
		CHECK(ret_fd[i] >= 0);
		CHECK_EQ(ftruncate(ret_fd[i], i == 2 ? 4096 : i == 0 ? MIB : UNIT), 0);
	}
	for (size_t at = MIB; at < size - 5; at += UNIT) {
		size_t n = at + UNIT <= size - 5 ? UNIT : size - 5 - at;

		CHECK(mmap(base + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ret_fd[1], 0) != MAP_FAILED);
	}
	CHECK(mmap(base, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ret_fd[0], 0) != MAP_FAILED);
	CHECK(mmap(base + size - 5, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ret_fd[2], 0) != MAP_FAILED);
	return base;
}

static void over_4_gib(void)
{
	const size_t size = ((size_t)4 << 30) + 5;
	uint8_t *out, *in;
	int fds[6], sent = 0;
	struct way w;
	void *ctx, *r, *s;

	if (SANITIZED)
		return;
	start(&ctx, GANTRY_NET_UNDEF);
	out = map_huge(size, fds);
	in = map_huge(size, fds + 3);
	pattern_fill(out, MIB, 1);
	for (size_t i = 0; i < 64 * MIB; i += 64)
		out[MIB + i] = pattern_byte(2, i / 64);
	memcpy(out + size - 5, "tail!", 5);
	w = connect_way(ctx);
	r = post_recv(w.recv, in, size, 1);
	s = post_send(w.send, out, size, 1);
	CHECK_EQ(wait_two(r, s, &sent), INT_MAX); /* as much as an int can say */
	CHECK_EQ(sent, INT_MAX);
	CHECK_PATTERN(in, MIB, 1);
	for (size_t i = 0; i < 64 * MIB; i += 64 * 997)
		CHECK_EQ(in[MIB + i], pattern_byte(2, i / 64));
	CHECK(memcmp(in + size - 5, "tail!", 5) == 0);
	CHECK_EQ(in[size], 0);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

int main(int argc, char **argv)
{
	static const char *const ways[] = {"auto", "splice", "msg", "off"};
	const char *only = argc > 1 ? argv[1] : NULL;
	int failed = 0;

	for (combination = 0; combination < 32; combination++) {
		/* Every two settings meet in these. */
		static const uint32_t some =
			1u << 0 | 1u << 5 | 1u << 10 | 1u << 15 | 1u << 19 | 1u << 22 | 1u << 25 | 1u << 28;
		char name[64];

		if (SANITIZED && !(some >> combination & 1))
			continue;
		zerocopy = ways[combination % 4];
		crc = combination & 4 ? "1" : "0";
		lanes = combination & 8 ? "3" : "1";
		helpers = combination & 16 ? "6" : "0";
		snprintf(name, sizeof(name), "zerocopy=%s,crc=%s,lanes=%s,helpers=%s", zerocopy, crc, lanes, helpers);
		failed += run_row(name, combine, combination == 28, only);
	}
	failed += run_row("over_4_gib", over_4_gib, 0, only);
	if (!failed)
		printf("ok\n");
	return failed != 0;
}
