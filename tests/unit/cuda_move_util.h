/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the CUDA device's copies: the fake driver, whose copies and writes run when the test lets them, threads
 * that are held up in it, and a clock that can be put forward.
 */
#ifndef GANTRY_TESTS_CUDA_MOVE_UTIL_H
#define GANTRY_TESTS_CUDA_MOVE_UTIL_H

#include <sys/syscall.h>

#include "device/cuda/gpu.h"
#include "fixtures/cuda/fake_load.h"
#include "test.h"

enum { ALL = 1 << 30, ARENA = 1 << 20 };
#define IN GANTRY_COPY_IN
#define OUT GANTRY_COPY_OUT

static struct fake_cuda *fake;
static struct gantry_device *gpu;
static uint8_t *host, *device; /* ARENA bytes each, of `gpu` */

#define FAKE(field) __atomic_load_n(&fake->field, __ATOMIC_SEQ_CST)
#define FAKE_SET(field, value) __atomic_store_n(&fake->field, (value), __ATOMIC_SEQ_CST)

/* The clock of everything in this program: waits of many seconds need none. `asks` of the thread that asks. */
static uint64_t put_forward_s;
static _Thread_local uint32_t *asks;

int clock_gettime(clockid_t id, struct timespec *t)
{
	int r = (int)syscall(SYS_clock_gettime, id, t);

	if (id == CLOCK_MONOTONIC)
		t->tv_sec += (time_t)__atomic_load_n(&put_forward_s, __ATOMIC_SEQ_CST);
	if (asks)
		__atomic_add_fetch(asks, 1, __ATOMIC_SEQ_CST);
	return r;
}

static inline void put_forward(uint32_t seconds)
{
	__atomic_add_fetch(&put_forward_s, seconds, __ATOMIC_SEQ_CST);
}

static inline void load_fake(void)
{
	FAKE_OPEN(fake);
	CHECK_OK(gantry_params_load(0));
	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null"); /* errors are expected here */
}

static inline void gpu_open(void)
{
	void *p;

	CHECK_OK(gantry_device_cuda(0, &gpu));
	CHECK_OK(gpu->ops->alloc(gpu, ARENA, &p));
	device = p;
	host = malloc(ARENA);
	pattern_fill(host, ARENA, 0);
	FAKE_SET(late, 1);
}

/* Nothing is left of it. */
static inline void gpu_close(void)
{
	fake->run(ALL);
	FAKE_SET(late, 0);
	CHECK_OK(gpu->ops->free(gpu, device));
	gantry_device_close(gpu);
	free(host);
	CHECK_EQ(fake->contexts + fake->allocations + fake->pinned + fake->streams, 0);
	CHECK_EQ(fake->pending + fake->unfinished, 0);
}

/* Leaves a request, which may wait. */
static inline gantry_result request_copy(enum gantry_copy_queue queue, void *dst, const void *src, size_t size)
{
	return gpu->ops->queue_copy(gpu, queue, dst, src, size);
}

static inline uint64_t fence_of(enum gantry_copy_queue queue)
{
	uint64_t t = 0;

	CHECK_OK(gpu->ops->queue_fence(gpu, queue, &t));
	return t;
}

static inline gantry_result moved(enum gantry_copy_queue queue, uint64_t fence)
{
	return gpu->ops->fence_reached(gpu, queue, fence);
}

/* Leaves a request and asks for a fence: it is begun, unless somebody is at the driver. */
static inline gantry_result move(enum gantry_copy_queue queue, void *dst, const void *src, size_t size)
{
	gantry_result r = request_copy(queue, dst, src, size);

	if (r == GANTRY_OK)
		r = moved(queue, fence_of(queue));
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

/* One move by a thread of its own. */
struct mover {
	pthread_t thread;
	enum gantry_copy_queue queue;
	void *dst;
	const void *src;
	size_t size;
	gantry_result result;
	int returned;  /* atomic */
	uint32_t asks; /* atomic: times that it looked at the clock */
};

static inline void *mover_main(void *arg)
{
	struct mover *m = arg;

	asks = &m->asks;
	m->result = move(m->queue, m->dst, m->src, m->size);
	__atomic_store_n(&m->returned, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static inline void mover_start(struct mover *m, enum gantry_copy_queue queue, void *dst, const void *src, size_t size)
{
	*m = (struct mover){.queue = queue, .dst = dst, .src = src, .size = size};
	CHECK(!pthread_create(&m->thread, NULL, mover_main, m));
}

static inline gantry_result mover_end(struct mover *m)
{
	UNTIL(__atomic_load_n(&m->returned, __ATOMIC_SEQ_CST));
	CHECK(!pthread_join(m->thread, NULL));
	return m->result;
}

/* It does not return but looks at the clock, again and again. */
static inline void mover_waits(struct mover *m)
{
	UNTIL(__atomic_load_n(&m->returned, __ATOMIC_SEQ_CST) || __atomic_load_n(&m->asks, __ATOMIC_SEQ_CST) > 4);
	CHECK(!__atomic_load_n(&m->returned, __ATOMIC_SEQ_CST));
}

/* A thread that is held up at a gate, on its way of moving these bytes. */
static inline void hold_one(struct mover *m, enum fake_gate gate, enum gantry_copy_queue queue, void *dst,
			    const void *src, size_t size)
{
	FAKE_SET(closed[gate], 1);
	mover_start(m, queue, dst, src, size);
	UNTIL(FAKE(waiting[gate]) == 1);
}

static inline gantry_result let_go(struct mover *m, enum fake_gate gate)
{
	FAKE_SET(closed[gate], 0);
	return mover_end(m);
}

static inline void fail_next(const char *symbol, unsigned error)
{
	fake->fail_error = error;
	FAKE_SET(fail_symbol, symbol);
}

#endif
