/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending without a copy, and what happens where that is not possible: memory that the kernel will not pin, a kernel
 * that copies despite MSG_ZEROCOPY, a peer that has not acknowledged. The bytes are right in every case.
 */
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "link_match_util.h"

enum { PIECES_MAX = SANITIZED ? 300007 : 1000003, PIECES_ROOM = 2 * PIECES_MAX + 1000 };

/* Messages of many sizes at odd addresses from l[0] to l[1]. */
static void transfer(struct tcp_link *l[2])
{
	static const size_t sizes[] = {4097, 8000, 65537, 100003, 1000000, 2097152, 3000001};
	FREED uint8_t *out = malloc(3000100), *in = malloc(3000100);

	EACH_ROW (i, sizes) {
		uint8_t *from = out + i * 3 + 1, *to = in + i * 5 + 1;
		void *r = irecv(l[1], to, sizes[i], A), *s;

		pattern_fill(from, sizes[i], i);
		s = isend(l[0], from, sizes[i], A);
		wait_for(l, s, NULL);
		/* Done means that the memory is the sender's again, whatever is still on its way. */
		memset(from, 0xff, sizes[i]);
		wait_for(l, r, NULL);
		CHECK_PATTERN(to, sizes[i], i);
	}
}

static void *isend_vec(struct tcp_link *l, const struct iovec *iov, uint32_t n)
{
	void *request = NULL;

	CHECK_OK(tcp_link_isend_vec(l, iov, n, A, &request));
	CHECK(request);
	return request;
}

/* One message in pieces of odd sizes and places, behind and before one that lies together; small ones too. */
static void transfer_pieces(struct tcp_link *l[2])
{
	static const size_t sizes[] = {1, 4096, 100000, PIECES_MAX};
	FREED uint8_t *flat = malloc(PIECES_MAX), *out = malloc(PIECES_ROOM), *in = malloc(PIECES_MAX);
	FREED struct iovec *iov = calloc(2000, sizeof(*iov));

	EACH_ROW (i, sizes) {
		size_t at = 0, place = 1;
		uint32_t n = 0;
		uint8_t small[100], got[2][100];
		void *r[3], *s[3];

		pattern_fill(flat, sizes[i], 70 + i);
		memset(out, 0xee, PIECES_ROOM);
		for (; at < sizes[i]; n++) {
			size_t len = 700 + n * 37 % 9000;

			if (len > sizes[i] - at)
				len = sizes[i] - at;
			memcpy(out + place, flat + at, len);
			CHECK(n < 2000);
			iov[n] = (struct iovec){out + place, len};
			place += len + n % 3 * 100;
			at += len;
		}
		CHECK(place <= PIECES_ROOM);
		pattern_fill(small, sizeof(small), i);
		r[0] = irecv(l[1], got[0], 100, A);
		r[1] = irecv(l[1], in, sizes[i], A);
		r[2] = irecv(l[1], got[1], 100, A);
		s[0] = isend(l[0], small, 100, A);
		s[1] = isend_vec(l[0], iov, n);
		s[2] = isend(l[0], small, 100, A);
		wait_for(l, s[0], NULL);
		wait_for(l, s[1], NULL);
		memset(out, 0xff, PIECES_ROOM); /* it is the sender's again */
		wait_for(l, s[2], NULL);
		for (int k = 0; k < 3; k++)
			wait_for(l, r[k], NULL);
		CHECK_PATTERN(in, sizes[i], 70 + i);
		CHECK_PATTERN(got[0], 100, i);
		CHECK_PATTERN(got[1], 100, i);
	}
}

/* Until the receiver has the whole message, a send without a copy is not done, though the kernel has every byte. */
TEST(waits_for_the_receiver)
{
	for (int mode = 0; mode < 2; mode++) {
		struct pair_config c = {
			.nlanes = 2, .inet = 1, .eager_max = 256, .splice = mode == 0, .msg_zerocopy = mode == 1};
		struct tcp_link *l[2];
		static uint8_t out[20000], in[20000];
		void *r, *s;

		pair_links(&c, l);
		pattern_fill(out, sizeof(out), 9);
		r = irecv(l[1], in, sizeof(in), A);
		progress(l, 3);
		lane_rx_mu_lock(&l[1]->lanes[1].rx.lock);
		s = isend(l[0], out, sizeof(out), A);
		UNTIL((progress(l, 1), l[0]->lanes[1].tx.bytes >= sizeof(out)));
		progress(l, 50);
		CHECK_EQ(l[0]->lanes[1].tx.bytes, sizeof(out));
		CHECK_EQ(((struct tcp_request *)s)->state, TCP_PENDING);
		lane_rx_mu_unlock(&l[1]->lanes[1].rx.lock);
		wait_for(l, s, NULL);
		wait_for(l, r, NULL);
		CHECK_PATTERN(in, sizeof(in), 9);
		pair_free(l);
	}
}

TEST(all_ways)
{
	for (int inet = 0; inet < 2; inet++)
		for (int mode = 0; mode < 3; mode++)
			for (int nlanes = 2; nlanes <= 4; nlanes += 2) {
				struct pair_config c = {.nlanes = nlanes,
							.inet = inet,
							.eager_max = 4096,
							.crc = inet,
							.splice = mode == 0,
							.msg_zerocopy = mode == 1};
				struct tcp_link *l[2];

				pair_links(&c, l);
				transfer(l);
				/* Loopback copies what MSG_ZEROCOPY was asked to reference, and says so: plain from
				 * then on. */
				if (mode == 1 && inet) {
					UNTIL((transfer(l), !l[0]->tx.msg_zerocopy));
				}
				CHECK_EQ(l[0]->tx.splice, mode == 0);
				pair_free(l);
			}
}

TEST(pieces)
{
	for (int inet = 0; inet < 2; inet++)
		for (int mode = 0; mode < 3; mode++) {
			struct pair_config c = {.nlanes = 2 + 2 * inet,
						.inet = inet,
						.eager_max = 4096,
						.buffer = mode == 2 ? 20000 : 0,
						.splice = mode == 0,
						.msg_zerocopy = mode == 1};
			struct tcp_link *l[2];

			pair_links(&c, l);
			transfer_pieces(l);
			CHECK_EQ(l[0]->tx.splice, mode == 0);
			pair_free(l);
		}
}

/* Memory that can be read by its owner and by copying system calls, but not pinned; NULL where there is none. */
static uint8_t *unpinnable(size_t size)
{
#ifdef SYS_memfd_secret
	int fd = (int)syscall(SYS_memfd_secret, O_CLOEXEC);
	void *p = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)size) == 0)
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (p != MAP_FAILED)
		return p;
#endif
	fprintf(stderr, "memfd_secret: %s: memory that cannot be pinned is not tested\n", strerror(errno));
	return NULL;
}

static void cannot_be_pinned(int splice, int nlanes)
{
	enum { SIZE = 1000000 };
	struct pair_config c = {
		.nlanes = nlanes, .inet = 1, .eager_max = 256, .splice = splice, .msg_zerocopy = !splice};
	uint8_t *secret = unpinnable(SIZE), *in = malloc(SIZE);
	struct tcp_link *l[2];

	if (!secret) {
		free(in);
		return;
	}
	pair_links(&c, l);
	for (uint64_t i = 0; i < 3; i++) {
		void *r = irecv(l[1], in, SIZE, A), *s;

		pattern_fill(secret, SIZE, i);
		s = isend(l[0], secret, SIZE, A);
		wait_for(l, s, NULL);
		wait_for(l, r, NULL);
		CHECK_PATTERN(in, SIZE, i);
	}
	transfer(l);
	pair_free(l);
	munmap(secret, SIZE);
	free(in);
}

TEST(unpinnable_splice)
{
	logs_forget();
	cannot_be_pinned(1, 2);
	CHECK(!*logs_text() || logs_count("vmsplice: Bad address"));
	cannot_be_pinned(1, 3);
}

TEST_CALL(unpinnable_zerocopy, cannot_be_pinned(0, 2))

/* A sender that finds the socket full copies some of a large message itself, unless its process receives large ones too. */
TEST(shares_the_copying)
{
	enum { SIZE = 3 << 20 };
	FREED uint8_t *out = malloc(SIZE), *in = malloc(SIZE);

	pattern_fill(out, SIZE, 5);
	for (uint32_t others = 0; others < 2; others++) {
		struct pair_config c = {.nlanes = 2, .inet = 1, .eager_max = 256, .buffer = 20000, .splice = 1};
		struct tcp_link *l[2];
		bool copied = false;
		void *r, *s;

		pair_links(&c, l);
		CHECK_EQ(tcp_large_receives, 0);
		tcp_large_receives = others;
		memset(in, 0, SIZE);
		r = irecv(l[1], in, SIZE, A);
		s = isend(l[0], out, SIZE, A);
		WAIT_WHILE (!is_done(s)) {
			progress(l, 1);
			copied |= l[0]->lanes[1].tx.to_copy != 0;
		}
		CHECK_EQ(copied, !others);
		wait_for(l, s, NULL);
		wait_for(l, r, NULL);
		CHECK_PATTERN(in, SIZE, 5);
		tcp_large_receives = 0;
		pair_free(l);
	}
}

/* No pipe is to be had: copy. */
TEST(no_pipe)
{
	struct pair_config c = {.nlanes = 2, .inet = 1, .eager_max = 256, .splice = 1};
	struct tcp_link *l[2];
	struct rlimit old, few;

	pair_links(&c, l);
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = 3;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	transfer(l);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
	CHECK_EQ(l[0]->tx.splice, 0);
	CHECK_HAS(logs_text(), "pipe: Too many open files");
	pair_free(l);
}

/* A damaged byte is found, and the text says where; the sender hears of it too. */
TEST(checksum)
{
	for (int bulk = 0; bulk < 2; bulk++) {
		struct pair_config c = {.nlanes = 2, .eager_max = 64, .crc = 1};
		int raw[2], done = 0;
		struct tcp_link *l = pair_raw(&c, raw);
		/* CRC32C of "123456789" is 0xe3069283, as everywhere. */
		struct pair_frame f = {.kind = bulk ? WIRE_DATA : WIRE_EAGER,
				       .flags = WIRE_FLAG_CRC,
				       .length = 9,
				       .total = bulk ? 900 : 9,
				       .offset = bulk ? 18 : 0,
				       .tag = 6,
				       .payload_crc = 0xe3069283};
		uint8_t in[900], out[1024];
		gantry_result r = GANTRY_OK;
		void *request = irecv(l, in, 900, 6);
		ssize_t n;

		pair_say(raw[bulk], &f, "123456789");
		pair_passes(l, 5);
		CHECK(!tcp_link_failed(l));
		if (!bulk) {
			CHECK_OK(tcp_link_test(request, &done, NULL));
			CHECK_EQ(done, 1);
			request = irecv(l, in, 900, 6);
		}
		f.index += !bulk;
		f.offset += bulk ? 9 : 0;
		pair_say(raw[bulk], &f, "123456788");
		for (int i = 0; i < 5 && r == GANTRY_OK; i++)
			r = tcp_link_test(request, &done, NULL);
		CHECK_ERROR(r, GANTRY_ERR_CORRUPT, bulk ? "lane 1" : "lane 0");
		CHECK_HAS(gantry_last_error(), bulk ? "message 0 of tag 6" : "message 1 of tag 6");
		CHECK_HAS(gantry_last_error(), bulk ? "offset 27" : "offset 0");
		tcp_link_progress(l);
		/* The last frame that left is ERROR with that text. */
		n = recv(raw[0], out, sizeof(out) - 1, 0);
		CHECK(n > 48);
		out[n] = 0;
		for (ssize_t at = 0; at + 48 <= n; at += 48 + pair_frame_get(out + at).length)
			f = pair_frame_get(out + at);
		CHECK_EQ(f.kind, WIRE_ERROR);
		CHECK_EQ(f.tag, GANTRY_ERR_CORRUPT);
		CHECK_HAS((char *)out + n - f.length, "checksum");
		pair_raw_free(&c, l, raw);
	}
}

void tests_begin(void)
{
	set_params("GANTRY_ZEROCOPY_MIN", "4096", "GANTRY_CHUNK_MAX", "256k", "GANTRY_LOG", "info");
	gantry_log_configure(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL, "");
	logs_keep();
	tests_apart(0);
}
