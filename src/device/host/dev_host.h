/* SPDX-License-Identifier: Apache-2.0 */
/* dev.h's words for CPU threads. */
#ifndef GANTRY_DEVICE_HOST_DEV_HOST_H
#define GANTRY_DEVICE_HOST_DEV_HOST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/eventcount.h"
#include "device/help.h"

#define DEV static inline __attribute__((unused))
#define DEV_SLEEPS 1			/* kernels sleep on eventcounts */
#define DEV_SHARED static _Thread_local /* never used with several lanes; see dev_share */
#define DEV_TRIES 1			/* looks at a line before yielding to other threads */

/* Tests that compile the bodies themselves may stretch the moments before and inside each publication. */
#ifdef GANTRY_TEST_DELAYS
extern void (*dev_delay)(void);
#define DEV_DELAY() (dev_delay ? dev_delay() : (void)0)
#else
#define DEV_DELAY() ((void)0)
#endif

/*
 * A barrier for the lanes of one block. It knows nothing of abort, as little as a GPU's: lane 0 learns of it from
 * dev_wait and broadcasts what it learned, so all lanes leave at the same place.
 */
struct dev_team {
	uint32_t lanes;
	uint32_t arrived;    /* fetch_add by lanes */
	uint32_t generation; /* written by the last lane to arrive; the futex word of those that sleep */
	uint32_t sleeping;   /* lanes asleep, or about to be */
	uint64_t box[8];     /* lane 0's, for dev_share */
	uint32_t no;	     /* lanes that voted no, for dev_all; fetch_add by lanes, reset by lane 0 */
	uint64_t sum;	     /* the same for dev_sum */
};

/* Set by the launcher on each thread that runs a block. */
/* How a launch has ended. */
struct dev_ending {
	struct gantry_failure *failure; /* of the launch, borrowed; NULL: none */
	struct gantry_failure *failed;	/* a reference to it, by the first block that failed */
	int holds;			/* a block that failed waits for the abort flag, as on a GPU */
};

struct dev_thread {
	uint32_t lane, lanes, block, blocks;
	uint32_t yields; /* gantry_launch.yields */
	const uint32_t *abort;
	struct gantry_eventcount *eventcount;
	const struct gantry_help *help;
	struct dev_team *team;	   /* NULL: one lane */
	struct dev_ending *ending; /* of the launch; NULL: not needed */
};
extern _Thread_local struct dev_thread dev_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

DEV uint32_t dev_lane(void)
{
	return dev_self.lane;
}
DEV uint32_t dev_lanes(void)
{
	return dev_self.lanes;
}
DEV uint32_t dev_block(void)
{
	return dev_self.block;
}
DEV uint32_t dev_blocks(void)
{
	return dev_self.blocks;
}

void gantry_host_team_barrier(struct dev_team *t);
DEV void dev_barrier(void)
{
	if (dev_self.team)
		gantry_host_team_barrier(dev_self.team);
}
DEV void dev_share(void *p, uint32_t bytes)
{
	struct dev_team *t = dev_self.team;

	if (!t)
		return;
	if (dev_self.lane == 0)
		memcpy(t->box, p, bytes);
	gantry_host_team_barrier(t);
	if (dev_self.lane != 0)
		memcpy(p, t->box, bytes);
	gantry_host_team_barrier(t);
}
DEV int dev_all(int yes)
{
	struct dev_team *t = dev_self.team;

	if (!t)
		return yes;
	if (!yes)
		__atomic_fetch_add(&t->no, 1, __ATOMIC_RELAXED);
	gantry_host_team_barrier(t);
	yes = !__atomic_load_n(&t->no, __ATOMIC_RELAXED);
	gantry_host_team_barrier(t);
	if (dev_self.lane == 0)
		__atomic_store_n(&t->no, 0, __ATOMIC_RELAXED);
	gantry_host_team_barrier(t);
	return yes;
}
DEV uint64_t dev_sum(uint64_t v)
{
	struct dev_team *t = dev_self.team;

	if (!t)
		return v;
	__atomic_fetch_add(&t->sum, v, __ATOMIC_RELAXED);
	gantry_host_team_barrier(t);
	v = __atomic_load_n(&t->sum, __ATOMIC_RELAXED);
	gantry_host_team_barrier(t);
	if (dev_self.lane == 0)
		__atomic_store_n(&t->sum, 0, __ATOMIC_RELAXED);
	gantry_host_team_barrier(t);
	return v;
}
DEV void dev_copy(void *dst, const void *src, uint64_t n)
{
	uint64_t part, from;

	if (!dev_self.team) {
		memcpy(dst, src, n);
		return;
	}
	part = (n / dev_self.lanes + 64) & ~63ull; /* all lanes together: more than n */
	from = part * dev_self.lane;
	if (from < n)
		memcpy((char *)dst + from, (const char *)src + from, n - from < part ? n - from : part);
}

DEV uint64_t dev_load(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
DEV uint64_t dev_load_relaxed(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}
DEV uint32_t dev_load_relaxed32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}
DEV void dev_store(uint64_t *p, uint64_t v)
{
	DEV_DELAY();
	__atomic_store_n(p, v, __ATOMIC_SEQ_CST);
}
DEV void dev_store_relaxed(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}
DEV void dev_store_relaxed32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}
#define dev_load_device dev_load
#define dev_store_device dev_store
#define dev_post_count dev_store
DEV uint64_t dev_clock(void)
{
	return gantry_ticks();
}
DEV void dev_add(uint64_t *p, uint64_t v)
{
	__atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
DEV uint64_t dev_arrive(uint64_t *p)
{
	return __atomic_add_fetch(p, 1, __ATOMIC_ACQ_REL);
}
DEV void dev_publish(struct gantry_slot *s, uint64_t meta, uint64_t where)
{
	DEV_DELAY();
	__atomic_store_n(&s->where, where, __ATOMIC_RELEASE);
	DEV_DELAY();
	__atomic_store_n(&s->meta, meta, __ATOMIC_SEQ_CST);
}
#define dev_post dev_publish
DEV void dev_fence(void)
{
}

DEV void dev_notify(struct gantry_eventcount *eventcount)
{
	DEV_DELAY();
	/* What this thread drives itself need not be woken. */
	if (!dev_self.help || dev_self.help->eventcount != eventcount)
		gantry_eventcount_notify(eventcount);
}

DEV void dev_leave(void)
{
	if (dev_self.help)
		dev_self.help->leave(dev_self.help->ctx);
}

/* Waiting. Below `spin` rounds it pauses inline, everything after that is in host/launch.c. */
struct dev_wait {
	uint32_t n;
	uint32_t proxied;
	uint64_t began; /* dev_clock, when it had become long; 0: it has not */
	struct gantry_backoff backoff;
};
extern uint32_t gantry_host_spin; /* rounds; 0 on one CPU */
int gantry_host_wait(struct dev_wait *w);
void gantry_host_wait_done(struct dev_wait *w);

DEV void dev_wait_init(struct dev_wait *w)
{
	w->n = dev_self.yields ? gantry_host_spin : 0;
	w->proxied = w->backoff.announced = 0;
	w->backoff.since = w->began = 0;
}
DEV void dev_wait_proxied(struct dev_wait *w, int yes)
{
	w->proxied = (uint32_t)yes;
}
DEV int dev_wait_is_long(const struct dev_wait *w)
{
	(void)w;
	return 1;
}
DEV int dev_wait(struct dev_wait *w)
{
	if (++w->n < gantry_host_spin && (w->n & 255) && !w->proxied) {
		gantry_cpu_pause();
		return 0;
	}
	return gantry_host_wait(w);
}
DEV void dev_wait_done(struct dev_wait *w)
{
	if (w->backoff.announced)
		gantry_host_wait_done(w);
}

void gantry_host_failed(uint32_t error);
DEV void dev_failed(uint32_t error)
{
	if (dev_self.ending)
		gantry_host_failed(error);
}

DEV uint64_t dev_gather8(const char *p, uint32_t n)
{
	uint64_t v = 0;

	if (n == 8)
		memcpy(&v, p, 8);
	else
		for (uint32_t i = 0; i < n; i++)
			v |= (uint64_t)(unsigned char)p[i] << 8 * i;
	return v;
}
DEV void dev_read2(const void *p, uint64_t *ret_a, uint64_t *ret_b)
{
	memcpy(ret_a, p, 8);
	memcpy(ret_b, (const char *)p + 8, 8);
}
DEV void dev_copy16(void *dst, const void *src)
{
	DEV_DELAY();
	memcpy(dst, src, 16);
}
DEV void dev_scatter8(char *p, uint64_t v, uint32_t n)
{
	if (n == 8)
		memcpy(p, &v, 8);
	else
		for (uint32_t i = 0; i < n; i++)
			p[i] = (char)(v >> 8 * i);
}

/*
 * LL. The words of a line are valid by themselves. Release and acquire are for what else a program did before it sent: a
 * barrier of one line orders the memory that ranks share. A store that is sequentially consistent (dev_post,
 * dev_post_count) comes between the lines and dev_notify. A load that finds nothing looks once more in sequentially
 * consistent order, for it may be the last one before a sleep.
 */
DEV void dev_ll_store(uint64_t *line, uint64_t data, uint32_t flag)
{
	DEV_DELAY();
	__atomic_store_n(&line[0], (uint64_t)flag << 32 | (uint32_t)data, __ATOMIC_RELAXED);
	DEV_DELAY();
	__atomic_store_n(&line[1], (uint64_t)flag << 32 | data >> 32, __ATOMIC_RELEASE);
}
DEV int dev_ll_load(const uint64_t *line, uint32_t flag, uint64_t *ret_data)
{
	uint64_t low = __atomic_load_n(&line[0], __ATOMIC_RELAXED), high = __atomic_load_n(&line[1], __ATOMIC_ACQUIRE);

	if (low >> 32 != flag || high >> 32 != flag) {
		low = __atomic_load_n(&line[0], __ATOMIC_SEQ_CST);
		high = __atomic_load_n(&line[1], __ATOMIC_SEQ_CST);
		if (low >> 32 != flag || high >> 32 != flag)
			return 0;
	}
	*ret_data = high << 32 | (uint32_t)low;
	return 1;
}

/* LL128: the lanes of a group move one line together; on the host a group is one lane. The flag is the last word. */
DEV uint32_t dev_ll128_width(void)
{
	return 1;
}
DEV void dev_ll128_put(uint64_t *line, const char *data, uint32_t bytes, uint64_t flag)
{
	uint64_t word;
	uint32_t k;

	for (k = 0; 8 * k + 8 <= bytes; k++) {
		memcpy(&word, data + 8 * k, 8);
		__atomic_store_n(&line[k], word, __ATOMIC_RELAXED);
	}
	if (bytes % 8) {
		word = 0;
		memcpy(&word, data + 8 * k, bytes % 8);
		__atomic_store_n(&line[k], word, __ATOMIC_RELAXED);
	}
	DEV_DELAY();
	__atomic_store_n(&line[15], flag, __ATOMIC_RELEASE);
}
DEV int dev_ll128_get(const uint64_t *line, char *data, uint32_t bytes, uint64_t flag)
{
	uint64_t word;
	uint32_t k;

	if (__atomic_load_n(&line[15], __ATOMIC_SEQ_CST) != flag)
		return 0;
	for (k = 0; 8 * k + 8 <= bytes; k++) {
		word = __atomic_load_n(&line[k], __ATOMIC_RELAXED);
		memcpy(data + 8 * k, &word, 8);
	}
	if (bytes % 8) {
		word = __atomic_load_n(&line[k], __ATOMIC_RELAXED);
		memcpy(data + 8 * k, &word, bytes % 8);
	}
	return 1;
}

#endif
