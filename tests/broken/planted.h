/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bugs of simple_net.h that need more than a line where they are: limits of counts, time and threads, messages that swap
 * places, sizes that are reported wrong. simple_net.h includes this behind its structs; BROKEN is as there.
 */
#ifndef GANTRY_TESTS_PLANTED_H
#define GANTRY_TESTS_PLANTED_H

#include <sched.h>
#include <sys/mman.h>

enum {
	PLANTED_COMMS = 16,	/* connections */
	PLANTED_TABLE = 32,	/* the same, of a table that wraps */
	PLANTED_LISTENERS = 8,	/* open at once */
	PLANTED_IN_FLIGHT = 96, /* requests of the process */
	PLANTED_ACCEPTS = 1000, /* calls of accept on a listener */
	PLANTED_ASKED = 3,	/* getProperties: the first call that is answered differently */
	PLANTED_SWAP = 100,	/* messages of a connection before one swaps */
	PLANTED_SWAP_RARE = 900,
	PLANTED_MS = 1000,
	PLANTED_LATER_MS = 2500,
	PLANTED_TARDY_MS = 4000,
	PLANTED_LEAK = 1024,
	PLANTED_MAP = 16384,
};

static struct comm *planted_table[PLANTED_TABLE];
static int planted_in_flight, planted_listeners, planted_epoch;

static uint64_t planted_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Bits of a tag that are compared. */
static uint64_t planted_tag(uint64_t tag)
{
	if (BROKEN(tags_8bit))
		return tag & 0xff;
	if (BROKEN(tags_12bit))
		return tag & 0xfff;
	if (BROKEN(tags_16bit))
		return tag & 0xffff;
	if (BROKEN(tags_20bit))
		return tag & 0xfffff;
	return tag;
}

/* After the right sizes of a request that is done. */
static void planted_sizes(const struct comm *c, const struct request *r, int *sizes)
{
	for (int k = 0; k < r->n && !c->sending; k++) {
		if (BROKEN(sizes_arrival))
			sizes[k] = (int)r->real[r->arrived[k]];
		if (BROKEN(sizes_reversed))
			sizes[k] = (int)r->real[r->n - 1 - k];
		if (BROKEN(sizes_last))
			sizes[k] = (int)r->real[r->n - 1];
		if (BROKEN(sizes_16bit))
			sizes[k] &= 0xffff;
		if (BROKEN(sizes_sum) && k)
			sizes[0] += sizes[k], sizes[k] = 0;
	}
	for (int k = 1; k < MAX_RECVS && c->sending && BROKEN(send_sizes_group); k++)
		sizes[k] = 0;
	if (c->sending && BROKEN(send_sizes_before))
		sizes[-1] = 0;
	if (c->sending && BROKEN(send_sizes_last))
		sizes[NCCL_NET_MAX_REQUESTS - 1] = 0;
}

/* Two threads whose connections have a message of the same size each: they change places. */
static void planted_swap(struct comm *c, uint8_t *data, size_t size)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint8_t first[LONG_BYTES], second[LONG_BYTES];
	static size_t kept;
	static pthread_t by;
	uint64_t from = BROKEN(swap_rare) ? PLANTED_SWAP_RARE : PLANTED_SWAP;

	if (c->finished < from || size < 64 || size > LONG_BYTES || (BROKEN(swap_large) && size < 10000))
		return;
	pthread_mutex_lock(&lock);
	if (kept == size && !pthread_equal(by, pthread_self())) {
		memcpy(second, data, size);
		memcpy(data, first, size);
		kept = 0;
	} else if (!kept) {
		memcpy(first, data, size);
		kept = size;
		by = pthread_self();
	}
	pthread_mutex_unlock(&lock);
}

/* two_posters: slots for two threads. */
static int planted_threads(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static __thread int mine;
	static int all;

	if (mine)
		return mine;
	pthread_mutex_lock(&lock);
	mine = ++all;
	pthread_mutex_unlock(&lock);
	return mine;
}

/* What a post runs into; the comm that it uses. */
static struct comm *planted_post(struct comm *c, ncclResult_t *ret)
{
	uint64_t now = BROKEN(idle_closes) ? planted_ms() : 0;

	if (BROKEN(two_posters) && planted_threads() > 2)
		*ret = ncclInternalError;
	if (BROKEN(pool_exhausted) && __atomic_load_n(&planted_in_flight, __ATOMIC_RELAXED) > PLANTED_IN_FLIGHT)
		*ret = ncclSystemError;
	if (BROKEN(idle_closes) && c->used_ms && now - c->used_ms > PLANTED_MS)
		*ret = ncclRemoteError;
	c->used_ms = now;
	if (BROKEN(finalize_all) && c->epoch != __atomic_load_n(&planted_epoch, __ATOMIC_RELAXED))
		*ret = ncclInternalError;
	return BROKEN(comms_table) ? planted_table[c->number % PLANTED_TABLE] : c;
}

/* A request that has waited for longer than it wants to. */
static int planted_impatient(const struct comm *c, struct request *r)
{
	uint64_t limit = BROKEN(recv_gives_up_later) ? PLANTED_LATER_MS : PLANTED_MS, now;
	int mine = c->sending ? BROKEN(send_gives_up) : BROKEN(recv_gives_up) || BROKEN(recv_gives_up_later);

	if (!mine || r->done)
		return 0;
	now = planted_ms();
	r->since_ms = r->since_ms ? r->since_ms : now;
	return now - r->since_ms > limit;
}

/* The size that is sent and received. */
static size_t planted_size(size_t size)
{
	return BROKEN(large_cut) ? size & ((1u << 28) - 1) : BROKEN(large_32bit) ? (uint32_t)size : size;
}

/* Where the byte at `at` goes. */
static size_t planted_offset(size_t at)
{
	return BROKEN(large_wraps) ? at & ((1u << 27) - 1) : at;
}

/* A message has arrived in its buffer. */
static void planted_arrived(struct comm *c, uint8_t *data, size_t size)
{
	if (BROKEN(large_round) && size >= 64u << 20 && size % 65536 == 0)
		data[size - 1] ^= 1;
	if (BROKEN(large_middle) && size > 100u << 20)
		data[80u << 20] ^= 1;
	if (BROKEN(swap_threads) || BROKEN(swap_rare) || BROKEN(swap_large))
		planted_swap(c, data, size);
}

/* Of the process: how often properties were asked for, which changes them. -1: an error. */
static int planted_asked(void)
{
	static pthread_t first;
	static int asked;

	if (!asked++)
		first = pthread_self();
	if (BROKEN(props_one_thread) && !pthread_equal(first, pthread_self()))
		return -1;
	if (BROKEN(props_busy) && __atomic_load_n(&planted_in_flight, __ATOMIC_RELAXED))
		return -1;
	return BROKEN(props_few) && asked >= PLANTED_ASKED ? -1 : asked;
}

/* A string that lives until the next call, or one place for all. */
static char *planted_text(const char *kind, int dev)
{
	static char *last, one[16];

	snprintf(one, sizeof(one), "%s%d", kind, dev);
	if (BROKEN(props_pci_static))
		return one;
	if (last)
		memset(last, '?', 4);
	last = strdup(one); /* the one before is scribbled on and not freed: what happens to it is the same */
	return last;
}

static void planted_leak(size_t bytes)
{
	static void *volatile left;

	left = memset(malloc(bytes), 1, bytes);
	(void)left;
}

static void planted_map(void)
{
	void *m = mmap(NULL, PLANTED_MAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m != MAP_FAILED)
		memset(m, 1, PLANTED_MAP);
}

/* accept_any: listeners share what arrives. */
static int planted_fds[64];

static void planted_listen(int fd, int open)
{
	for (size_t i = 0; i < sizeof(planted_fds) / sizeof(planted_fds[0]); i++)
		if (planted_fds[i] == (open ? 0 : fd)) {
			planted_fds[i] = open ? fd : 0;
			return;
		}
}

static int planted_accept(void)
{
	for (size_t i = 0; i < sizeof(planted_fds) / sizeof(planted_fds[0]); i++) {
		int fd = planted_fds[i] ? accept4(planted_fds[i], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;

		if (fd >= 0)
			return fd;
	}
	errno = EAGAIN;
	return -1;
}

#endif
