/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys leave no trace. The secrets and keys of an encrypted session's lanes are searched for in all memory of the process: while
 * the lane lives they are found; when it has got another socket, and when the session is over, they are not.
 */
#include "base/seal.c"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>

#include "resume_util.h"

#if GANTRY_HAVE_OPENSSL

enum { MASK = 0x5a, NEEDLE = 16, NEEDLES = 16, BLOCK = 1 << 20, LARGEST = 64 << 20 };

/* What is searched for, masked: so that the test itself has no copy. */
static _Alignas(16) uint8_t needles[NEEDLES][NEEDLE];
static int nneedles;
static uint8_t *block; /* what was read for the search: not searched itself */

static void note_needle(const uint8_t *bytes)
{
	CHECK(nneedles < NEEDLES);
	for (int i = 0; i < NEEDLE; i++)
		needles[nneedles][i] = bytes[i] ^ MASK;
	nneedles++;
}

/* The secrets of all seals of both ends, and their keys. */
static void note_seals(void)
{
	uint8_t key[KEY_MAX];

	nneedles = 0;
	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node) {
		for (int i = 0; i < 2; i++) { /* what is the one end's to send is the other's to receive */
			const struct gantry_seal *s = l->lanes[i].sealed->seals.tx;

			CHECK(s != NULL);
			note_needle(s->secret);
			CHECK_OK(expand(s->secret, "key", key, ciphers[s->cipher].key_size));
			note_needle(key);
			explicit_bzero(key, sizeof(key));
		}
	}
	inet_loop_unlock();
	CHECK_EQ(nneedles, 8);
}

/* At multiples of four, where keys lie; quick also under sanitizers, which would look at each access. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static void search_block(size_t n, int counts[NEEDLES])
{
	const uint32_t mask = MASK * 0x01010101u, *words = (const uint32_t *)(const void *)block;

	for (size_t at = 0; at + NEEDLE / 4 <= n / 4; at++)
		for (int i = 0; i < nneedles; i++) {
			const uint32_t *needle = (const uint32_t *)(const void *)needles[i];

			counts[i] += (words[at] ^ mask) == needle[0] && (words[at + 1] ^ mask) == needle[1] &&
				     (words[at + 2] ^ mask) == needle[2] && (words[at + 3] ^ mask) == needle[3];
		}
}

/* Is any of these pages in use? A sanitizer has mapped far more than it uses. */
static bool is_used(int pagemap, uint64_t first, uint64_t end)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), entries[BLOCK / 4096 + 2];
	size_t n = (size_t)((end + page - 1) / page - first / page);
	bool used = false;

	CHECK_EQ(pread(pagemap, entries, n * sizeof(*entries), (off_t)(first / page * sizeof(*entries))),
		 (ssize_t)(n * sizeof(*entries)));
	for (size_t i = 0; i < n; i++)
		used |= entries[i] >> 62 != 0; /* in memory, or in swap */
	return used;
}

static void count_in(int mem, int pagemap, uint64_t first, uint64_t end, int counts[NEEDLES])
{
	for (uint64_t at = first; at < end; at += BLOCK - NEEDLE) {
		size_t size = end - at < BLOCK ? (size_t)(end - at) : BLOCK;
		ssize_t n = is_used(pagemap, at, at + size) ? pread(mem, block, size, (off_t)at) : 0;

		if (n < NEEDLE)
			continue;
		search_block((size_t)n, counts);
	}
}

/* All writable memory, through /proc: a sanitizer does not mind. The large regions are its own: no key is found there. */
static void count_all(int counts[NEEDLES])
{
	FILE *maps = fopen("/proc/self/maps", "re");
	int mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC),
	    pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t first, end;
	char line[512], mode[8];

	CHECK(maps && mem >= 0 && pagemap >= 0);
	memset(counts, 0, NEEDLES * sizeof(*counts));
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &first, &end, mode) == 3 &&
		    strncmp(mode, "rw", 2) == 0 && first != (uint64_t)(uintptr_t)block && end - first < LARGEST)
			count_in(mem, pagemap, first, end, counts);
	fclose(maps);
	close(mem);
	close(pagemap);
}

static void check_gone(const char *when)
{
	int counts[NEEDLES];

	count_all(counts);
	for (int i = 0; i < nneedles; i++) {
		CASE("%s %d, %s", i % 2 ? "key" : "secret", i / 2, when);
		CHECK_EQ(counts[i], 0);
	}
}

static void check_there(void)
{
	int counts[NEEDLES];

	count_all(counts);
	for (int i = 0; i < nneedles; i++) {
		CASE("%s %d", i % 2 ? "key" : "secret", i / 2);
		CHECK(counts[i] >= 2); /* both ends are here */
	}
}

TEST(keys_of_lanes)
{
	struct way w;
	void *ctx;

	/* A region of its own, which does not join another. */
	block = (uint8_t *)mmap(NULL, BLOCK + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
	CHECK_EQ(mprotect(block, BLOCK, PROT_READ | PROT_WRITE), 0);
	set_params("GANTRY_SECRET", "a secret of thirty-two characters", "GANTRY_ENCRYPT", "require");
	size_above = 100;
	size_most = 200 << 10;
	w = open_way("auto", &ctx);
	CHECK_OK(stream(w, 10, 0, CUT_ONE));
	note_seals();
	check_there();
	cut(-1);
	CHECK_OK(stream(w, 10, 0, CUT_ONE));
	UNTIL(resumed() >= 2 * (LANES + 1));
	check_gone("after another socket came");
	note_seals();
	check_there();
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
	UNTIL(links_are_gone());
	check_gone("after the end");
}

#else

TEST(nothing_to_wipe)
{
}

#endif
