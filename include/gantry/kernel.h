/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that start network operations by themselves: put, signal, wait, flush, barrier, on GPUs and on CPU threads with the same
 * words. The first part of this header is for the program that opens a communicator's queues, the second for its kernels: a CUDA
 * kernel, or, if the communicator's device is the host, any thread of the CPU.
 *
 *	gantry_gin_open(comm, &config, &queues);                 by all ranks
 *	gantry_gin_register(queues, buffer, size, &memory);      by all ranks, in the same order
 *	gantry_gin_view(queues, &view);                          to be passed to kernels by value
 *
 *	gantry_gin_put(&view, 0, peer, from, to, bytes, signal); in a kernel
 *	gantry_gin_wait(&view, signal, 1);                       in a kernel of the peer
 *
 * A kernel writes a request of 64 bytes into a queue in memory that the CPU reads too. A thread of Gantry's takes it from there and moves the
 * bytes over the network, whatever transport the communicator's collectives use. docs/gin.md has the order and what is promised:
 *
 *   - what is put to a rank in a context is there before a signal that is sent to that rank later in that context;
 *   - additions to a signal from all ranks count;
 *   - flush, and counters, say that the source may be used again, not that the data has arrived.
 *
 * A request covers what the calling thread has written before it, and what other threads have written before a barrier with
 * it (__syncthreads). Any number of threads may call at the same time, for the same peer and context too.
 *
 * Functions of kernels that can wait return 0, or another value once the communicator has failed or was aborted: kernels end then,
 * and gantry_comm_error says why.
 */
#ifndef GANTRY_KERNEL_H
#define GANTRY_KERNEL_H

#include <stddef.h>
#include <stdint.h>
#ifndef __CUDA_ARCH__
#include <sched.h>
#endif

#include "gantry/fifo.h"
#include "gantry/result.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the program ---- */

struct gantry_comm;
struct gantry_gin;
struct gantry_gin_view;

/* 0: the default. All ranks have the same values. */
struct gantry_gin_config {
	uint32_t struct_size; /* sizeof */
	uint32_t contexts;    /* orders of their own; 1, at most 64 */
	uint32_t depth;	      /* requests of a peer and context that can wait; 64, a power of two, at most 4096 */
	uint32_t signals;     /* 64, at most 65536 */
	uint32_t counters;    /* 64, at most 65536 */
	uint32_t barriers;    /* 16, at most 1024 */
};

/* By all ranks, at the same place among their calls on the communicator. It ends before the communicator is destroyed. */
GANTRY_API gantry_result gantry_gin_open(struct gantry_comm *comm, const struct gantry_gin_config *config,
					 struct gantry_gin **ret_queues);
/* By each rank, when its kernels have ended and nothing more is put to it. NULL is fine; after the communicator's end it only frees. */
GANTRY_API void gantry_gin_close(struct gantry_gin *q);
/* By all ranks, in the same order; sizes may differ. The number is the same on all ranks, and in force when it returns. Memory of the
 * communicator's device, or host memory. If it fails on one rank it fails on all, and nothing is registered. */
GANTRY_API gantry_result gantry_gin_register(struct gantry_gin *q, void *ptr, size_t size, uint32_t *ret_memory);
/* By each rank: nothing is put there any more. */
GANTRY_API gantry_result gantry_gin_deregister(struct gantry_gin *q, uint32_t memory);
/* What kernels use. Good until close. */
GANTRY_API gantry_result gantry_gin_view(const struct gantry_gin *q, struct gantry_gin_view *ret_view);

/* ---- its kernels ---- */

enum { GANTRY_GIN_WORDS = 8 };
#define GANTRY_GIN_NONE 0xffffffffu    /* instead of a signal or counter */
#define GANTRY_GIN_CARRIED 0xffffffffu /* instead of a memory: the bytes travel with the request */
/* Bytes that travel with any put; numbers of memory that kernels look up; loads that a thread has under way when it copies. */
enum { GANTRY_GIN_FEW = 64, GANTRY_GIN_MEMORIES = 256, GANTRY_GIN_AHEAD = 8 };
/* Threads that call gantry_gin_put_warp together. */
#if defined(__CUDACC__) || defined(__HIPCC__)
#define GANTRY_GIN_WARP 32u
#else
#define GANTRY_GIN_WARP 1u
#endif

/* words[7] is 1 + the number of the request in its queue, written last. */
struct gantry_gin_request {
	uint64_t words[GANTRY_GIN_WORDS];
};

/* Arrays of [context][rank], but for signals, counters and memory. Pointers are those of the device. */
struct gantry_gin_view {
	uint32_t rank, ranks, contexts, depth, signals, counters, barriers;
	uint32_t carried;		  /* bytes that can travel with a request, at most */
	struct gantry_gin_request *queue; /* `depth` of each */
	char *data;			  /* and `carried` bytes for each of these */
	const uint64_t *done;		  /* requests whose source may be used again */
	/* In the device's own memory. */
	uint64_t *taken; /* places that kernels have taken */
	uint64_t *seen;	 /* of done, when a kernel last looked */
	/* Registered memory of this rank, by number: where it begins, and where it ends. NULL: kernels cannot read it. */
	const char *const *memory;
	/* In memory that the CPU adds to. */
	uint64_t *signal; /* and behind them the words of barriers: [barrier][rank] */
	const uint64_t *counter;
	uint64_t *epoch; /* of each barrier: how often this rank has come */
	const uint32_t *stop;
};

struct gantry_gin_place {
	uint32_t memory;
	uint64_t offset;
};

GANTRY_FN uint64_t gantry_gin_load(const uint64_t *at)
{
#ifdef __CUDA_ARCH__
	uint64_t v;

	asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
	return v;
#else
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

GANTRY_FN void gantry_gin_store(uint64_t *at, uint64_t value)
{
#ifdef __CUDA_ARCH__
	asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
#else
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

/* Returns the value before. Among threads of this device. */
GANTRY_FN uint64_t gantry_gin_add(uint64_t *at, uint64_t n)
{
#ifdef __CUDA_ARCH__
	return atomicAdd((unsigned long long *)at, (unsigned long long)n);
#else
	return __atomic_fetch_add(at, n, __ATOMIC_RELAXED);
#endif
}

/* A moment of a wait; nonzero: it is to end. */
GANTRY_FN int gantry_gin_idle(const struct gantry_gin_view *v)
{
#ifdef __CUDA_ARCH__
	uint32_t stop;

	asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(stop) : "l"(v->stop) : "memory");
	return stop != 0;
#else
#ifdef __HIP_DEVICE_COMPILE__
	__builtin_amdgcn_s_sleep(1);
#else
	sched_yield();
#endif
	return __atomic_load_n(v->stop, __ATOMIC_RELAXED) != 0;
#endif
}

GANTRY_FN int gantry_gin_await(const struct gantry_gin_view *v, const uint64_t *at, uint64_t least)
{
	while (gantry_gin_load(at) < least)
		if (gantry_gin_idle(v))
			return 1;
	return 0;
}

/* Until the place of request n is free. `done` is in host memory, so it is read only if what was seen of it does not do. */
GANTRY_FN int gantry_gin_await_place(const struct gantry_gin_view *v, uint64_t at, uint64_t n)
{
	uint64_t done;

	if (n < v->depth || gantry_gin_load(&v->seen[at]) > n - v->depth)
		return 0;
	while ((done = gantry_gin_load(&v->done[at])) <= n - v->depth)
		if (gantry_gin_idle(v))
			return 1;
	gantry_gin_store(&v->seen[at], done); /* an older value may come later: then it is read again */
	return 0;
}

/* Where a put's bytes lie, if they are few and these threads can copy them to its request. What is outside of its memory the CPU refuses. */
GANTRY_FN const char *gantry_gin_source(const struct gantry_gin_view *v, struct gantry_gin_place from, uint64_t bytes,
					uint64_t most)
{
	const char *base;
	uint64_t size;

	if (!bytes || bytes > most || from.memory >= GANTRY_GIN_MEMORIES)
		return NULL;
	base = v->memory[2 * from.memory];
	size = (uint64_t)(v->memory[2 * from.memory + 1] - base);
	if (from.offset > size || bytes > size - from.offset || ((uintptr_t)base + from.offset) % sizeof(uint64_t))
		return NULL;
	return base + from.offset;
}

/* By `lanes` threads, of which this is one. Both begin at a multiple of 8. Loads go ahead of the stores: the latter are to the host's memory. */
GANTRY_FN void gantry_gin_carry(char *to, const char *from, uint64_t bytes, uint32_t lane, uint32_t lanes)
{
	const uint64_t words = bytes / sizeof(uint64_t), *source = (const uint64_t *)(const void *)from;
	uint64_t *target = (uint64_t *)(void *)to, word[GANTRY_GIN_AHEAD], i;
	int k;

	for (i = lane; i < words; i += (uint64_t)GANTRY_GIN_AHEAD * lanes) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#pragma unroll
#endif
		for (k = 0; k < GANTRY_GIN_AHEAD; k++)
			word[k] = i + (uint64_t)k * lanes < words ? source[i + (uint64_t)k * lanes] : 0;
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#pragma unroll
#endif
		for (k = 0; k < GANTRY_GIN_AHEAD; k++)
			if (i + (uint64_t)k * lanes < words)
				target[i + (uint64_t)k * lanes] = word[k];
	}
	for (i = words * sizeof(uint64_t) + lane; i < bytes; i += lanes)
		to[i] = from[i];
}

GANTRY_FN void gantry_gin_write(const struct gantry_gin_view *v, uint64_t at, uint64_t n, struct gantry_gin_place from,
				struct gantry_gin_place to, uint64_t bytes, uint32_t signal, uint64_t add,
				uint32_t counter)
{
	uint64_t *words = v->queue[at * v->depth + (n & (v->depth - 1))].words;

	words[0] = bytes;
	words[1] = from.offset;
	words[2] = to.offset;
	words[3] = (uint64_t)to.memory << 32 | from.memory;
	words[4] = (uint64_t)counter << 32 | signal;
	words[5] = add;
	gantry_gin_store(&words[7], n + 1);
}

GANTRY_FN int gantry_gin_post_as(const struct gantry_gin_view *v, uint32_t context, uint32_t peer,
				 struct gantry_gin_place from, struct gantry_gin_place to, uint64_t bytes,
				 uint32_t signal, uint64_t add, uint32_t counter, uint64_t most)
{
	const uint64_t at = (uint64_t)context * v->ranks + peer, n = gantry_gin_add(&v->taken[at], 1);
	const char *source = gantry_gin_source(v, from, bytes, most);

	if (gantry_gin_await_place(v, at, n))
		return 1;
	if (source) {
		gantry_gin_carry(v->data + (at * v->depth + (n & (v->depth - 1))) * v->carried, source, bytes, 0, 1);
		from.memory = GANTRY_GIN_CARRIED;
	} else if (from.memory == GANTRY_GIN_CARRIED) {
		from.memory = 0; /* the caller's: there is no such memory */
	}
	gantry_gin_write(v, at, n, from, to, bytes, signal, add, counter);
	return 0;
}

GANTRY_FN int gantry_gin_post(const struct gantry_gin_view *v, uint32_t context, uint32_t peer,
			      struct gantry_gin_place from, struct gantry_gin_place to, uint64_t bytes, uint32_t signal,
			      uint64_t add, uint32_t counter)
{
	return gantry_gin_post_as(v, context, peer, from, to, bytes, signal, add, counter, GANTRY_GIN_FEW);
}

/* `bytes` from this rank's memory to the peer's, then 1 to its signal, unless that is GANTRY_GIN_NONE. The own rank is a peer too. */
GANTRY_FN int gantry_gin_put(const struct gantry_gin_view *v, uint32_t context, uint32_t peer,
			     struct gantry_gin_place from, struct gantry_gin_place to, uint64_t bytes, uint32_t signal)
{
	return gantry_gin_post(v, context, peer, from, to, bytes, signal, 1, GANTRY_GIN_NONE);
}

/*
 * The same by all 32 lanes of a warp, with the same arguments: they copy up to `carried` bytes into the request, which saves a copy by the copy engine, some
 * microseconds. What all lanes have written before is covered. On the CPU by one thread; with HIP by all lanes, and lane 0 gets the result.
 */
GANTRY_FN int gantry_gin_put_warp(const struct gantry_gin_view *v, uint32_t context, uint32_t peer,
				  struct gantry_gin_place from, struct gantry_gin_place to, uint64_t bytes,
				  uint32_t signal)
{
#ifdef __CUDA_ARCH__
	const uint64_t at = (uint64_t)context * v->ranks + peer;
	const char *source = gantry_gin_source(v, from, bytes, v->carried);
	unsigned long long n = 0;
	int ended = 0;
	uint32_t lane;

	asm("mov.u32 %0, %%laneid;" : "=r"(lane));
	__syncwarp();
	if (lane == 0) {
		n = gantry_gin_add(&v->taken[at], 1);
		ended = gantry_gin_await_place(v, at, n);
	}
	if (__shfl_sync(0xffffffffu, ended, 0))
		return 1;
	n = __shfl_sync(0xffffffffu, n, 0);
	if (source) {
		gantry_gin_carry(v->data + (at * v->depth + (n & (v->depth - 1))) * v->carried, source, bytes, lane,
				 32);
		from.memory = GANTRY_GIN_CARRIED;
	} else if (from.memory == GANTRY_GIN_CARRIED) {
		from.memory = 0;
	}
	__syncwarp();
	if (lane == 0)
		gantry_gin_write(v, at, n, from, to, bytes, signal, 1, GANTRY_GIN_NONE);
	return 0;
#else
#ifdef __HIP_DEVICE_COMPILE__
	if (__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)) % 32)
		return 0;
#endif
	return gantry_gin_post_as(v, context, peer, from, to, bytes, signal, 1, GANTRY_GIN_NONE, v->carried);
#endif
}

/* Adds to a signal of the peer, behind all that was put to it in the context. */
GANTRY_FN int gantry_gin_signal(const struct gantry_gin_view *v, uint32_t context, uint32_t peer, uint32_t signal,
				uint64_t add)
{
	const struct gantry_gin_place none = {0, 0};

	return gantry_gin_post(v, context, peer, none, none, 0, signal, add, GANTRY_GIN_NONE);
}

GANTRY_FN uint64_t gantry_gin_read(const struct gantry_gin_view *v, uint32_t signal)
{
	return gantry_gin_load(&v->signal[signal]);
}

/* Until a signal of this rank is at least that. What was put before it is visible then, to this thread and to those that it meets. */
GANTRY_FN int gantry_gin_wait(const struct gantry_gin_view *v, uint32_t signal, uint64_t least)
{
	return gantry_gin_await(v, &v->signal[signal], least);
}

/* To 0, by its owner, while none is on its way. */
GANTRY_FN void gantry_gin_reset(const struct gantry_gin_view *v, uint32_t signal)
{
	gantry_gin_store(&v->signal[signal], 0);
}

/* Requests with that counter whose source may be used again. */
GANTRY_FN uint64_t gantry_gin_count(const struct gantry_gin_view *v, uint32_t counter)
{
	return gantry_gin_load(&v->counter[counter]);
}

/* Until the sources of all that was asked for in the context so far may be used again. */
GANTRY_FN int gantry_gin_flush(const struct gantry_gin_view *v, uint32_t context)
{
	uint32_t peer;

	for (peer = 0; peer < v->ranks; peer++) {
		const uint64_t at = (uint64_t)context * v->ranks + peer;

		if (gantry_gin_await(v, &v->done[at], gantry_gin_load(&v->taken[at])))
			return 1;
	}
	return 0;
}

/*
 * Until all ranks have come to it as often as this one. One thread of each rank calls it; what was put in the context is visible after it.
 * A word for each rank: a rank may come for the next time before another one's signal has arrived here, behind that rank's data.
 */
GANTRY_FN int gantry_gin_barrier(const struct gantry_gin_view *v, uint32_t context, uint32_t barrier)
{
	const uint64_t epoch = gantry_gin_add(&v->epoch[barrier], 1) + 1;
	const uint32_t first = v->signals + barrier * v->ranks;
	uint32_t peer;

	for (peer = 0; peer < v->ranks; peer++)
		if (peer != v->rank && gantry_gin_signal(v, context, peer, first + v->rank, 1))
			return 1;
	for (peer = 0; peer < v->ranks; peer++)
		if (peer != v->rank && gantry_gin_await(v, &v->signal[first + peer], epoch))
			return 1;
	return 0;
}

#ifdef __cplusplus
}
#endif
#endif
