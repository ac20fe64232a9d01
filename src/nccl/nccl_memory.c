/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a call runs and where its memory is: the device of the calling thread, the caller's stream, memory that NCCL
 * hands out, registered buffers.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/param.h"
#include "nccl/nccl.h"

#define PER_THREAD_STREAM ((cudaStream_t)2) /* one name for a stream of each thread */

/* ---- devices ---- */

static bool gpus_are_used(int *ret_count)
{
	*ret_count = gantry_params()->nccl_device == PARAM_NCCL_DEVICE_HOST ? 0 : gantry_device_cuda_count(NULL, 0);
	return *ret_count > 0;
}

/* A thread that has not chosen a GPU has the first one, as in the CUDA runtime. */
gantry_result nccl_device_here(struct gantry_device **ret_device)
{
	struct gantry_device *device;
	int count;

	if (!gpus_are_used(&count))
		return gantry_device_host(ret_device);
	TRY_NOW(gantry_device_current(&device));
	if (device->kind == GANTRY_DEVICE_HOST) {
		gantry_device_close(device);
		return gantry_device_cuda(0, ret_device);
	}
	*ret_device = device;
	return GANTRY_OK;
}

/* Without a GPU any number is the host: programs that have a rank per device run with as many ranks as they ask for. */
gantry_result nccl_device_numbered(int index, struct gantry_device **ret_device)
{
	int count;

	if (index < 0)
		FAIL_NOW(GANTRY_ERR_INVALID, "device %d", index);
	if (!gpus_are_used(&count))
		return gantry_device_host(ret_device);
	return gantry_device_cuda(index, ret_device);
}

/* ---- streams ---- */

/*
 * What stands for the program's streams. They are kept for good: the program may destroy a stream before its
 * communicators, and to give back what stands for it would be to look at it. A program has few streams, and those that
 * have come and gone leave their addresses to others.
 */
struct known_stream {
	int device;
	cudaStream_t native;
	pthread_t thread; /* of PER_THREAD_STREAM */
	struct gantry_stream *stream;
};
MUTEX_KIND(nccl_streams_mu);
static struct nccl_streams_mu streams_mu;
static struct known_stream *streams GUARDED_BY(nccl_streams_mu);
static size_t nstreams GUARDED_BY(nccl_streams_mu), streams_room GUARDED_BY(nccl_streams_mu);

static struct known_stream *find_stream(int device, cudaStream_t native) REQUIRES(nccl_streams_mu)
{
	for (size_t i = 0; i < nstreams; i++) {
		struct known_stream *s = &streams[i];

		if (s->device == device && s->native == native &&
		    (native != PER_THREAD_STREAM || pthread_equal(s->thread, pthread_self())))
			return s;
	}
	return NULL;
}

static gantry_result add_stream(struct gantry_device *device, cudaStream_t native, struct known_stream **ret)
	REQUIRES(nccl_streams_mu)
{
	struct known_stream *s;

	if (nstreams == streams_room) {
		size_t room = streams_room ? 2 * streams_room : 16;

		s = realloc(streams, room * sizeof(*s));
		if (!s)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a stream");
		streams = s;
		streams_room = room;
	}
	s = &streams[nstreams];
	*s = (struct known_stream){.device = device->index, .native = native, .thread = pthread_self()};
	TRY_NOW(gantry_stream_wrap(device, native, &s->stream));
	nstreams++;
	*ret = s;
	return GANTRY_OK;
}

gantry_result nccl_stream_for(struct ncclComm *c, cudaStream_t native, struct gantry_stream **ret_stream)
{
	struct known_stream *s;
	gantry_result r = GANTRY_OK;

	if (c->device->kind == GANTRY_DEVICE_HOST) {
		if (!c->own)
			TRY_NOW(gantry_stream_create(c->device, &c->own));
		*ret_stream = c->own;
		return GANTRY_OK;
	}
	if (c->stream && c->native == native && native != PER_THREAD_STREAM) {
		*ret_stream = c->stream;
		return GANTRY_OK;
	}
	nccl_streams_mu_lock(&streams_mu);
	s = find_stream(c->device->index, native);
	if (!s)
		r = add_stream(c->device, native, &s);
	if (r == GANTRY_OK) {
		c->native = native;
		c->stream = *ret_stream = s->stream;
	}
	nccl_streams_mu_unlock(&streams_mu);
	return r;
}

/* ---- memory ---- */

/* ncclMemFree gets the address alone. */
struct allocation {
	struct gantry_list node;
	void *ptr;
	struct gantry_device *device; /* a reference */
};
MUTEX_KIND(nccl_memory_mu);
static struct nccl_memory_mu memory_mu;
static struct gantry_list allocations GUARDED_BY(nccl_memory_mu) = {&allocations, &allocations};

static gantry_result allocate(void **ptr, size_t size)
{
	gantry_result r = GANTRY_OK;
	struct allocation *a = calloc(1, sizeof(*a));

	if (!a)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %zu bytes", size);
	TRY(nccl_begin());
	TRY(nccl_device_here(&a->device));
	TRY(gantry_mem_alloc(a->device, size, &a->ptr));
	*ptr = a->ptr;
	nccl_memory_mu_lock(&memory_mu);
	gantry_list_append(&allocations, &a->node);
	nccl_memory_mu_unlock(&memory_mu);
	a = NULL;
out:
	if (a)
		gantry_device_close(a->device);
	free(a);
	return r;
}

NCCL_FUNCTION(ncclResult_t, MemAlloc, (void **ptr, size_t size))
{
	if (!ptr)
		return nccl_result(
			gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__, "ncclMemAlloc: ptr is NULL"));
	*ptr = NULL;
	return size ? nccl_result(allocate(ptr, size)) : ncclSuccess;
}

static struct allocation *take_allocation(const void *ptr)
{
	struct allocation *found = NULL;

	nccl_memory_mu_lock(&memory_mu);
	gantry_list_each_entry_safe (a, &allocations, struct allocation, node) {
		if (a->ptr == ptr) {
			gantry_list_remove(&a->node);
			found = a;
			break;
		}
	}
	nccl_memory_mu_unlock(&memory_mu);
	return found;
}

NCCL_FUNCTION(ncclResult_t, MemFree, (void *ptr))
{
	struct allocation *a;
	gantry_result r;

	if (!ptr)
		return ncclSuccess;
	a = take_allocation(ptr);
	if (!a)
		return nccl_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					       "ncclMemFree: %p is not from ncclMemAlloc", ptr));
	r = gantry_mem_free(a->device, ptr);
	gantry_device_close(a->device);
	free(a);
	return nccl_result(r);
}

/* Registering only makes transfers faster: where it is of no use there is no handle, and all is well. */
NCCL_FUNCTION(ncclResult_t, CommRegister, (const ncclComm_t comm, void *buf, size_t size, void **handle))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommRegister");
	gantry_result r = GANTRY_ERR_INVALID;

	if (!c || !handle)
		return nccl_result(r);
	*handle = NULL;
	if (!size)
		return ncclSuccess;
	nccl_enter(c);
	r = gantry_comm_register(c->comm, buf, size, handle);
	nccl_leave(c);
	return r == GANTRY_ERR_UNSUPPORTED ? ncclSuccess : nccl_result(r);
}

NCCL_FUNCTION(ncclResult_t, CommDeregister, (const ncclComm_t comm, void *handle))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommDeregister");
	gantry_result r;

	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	if (!handle)
		return ncclSuccess;
	nccl_enter(c);
	r = gantry_comm_deregister(c->comm, handle);
	nccl_leave(c);
	return nccl_result(r);
}
