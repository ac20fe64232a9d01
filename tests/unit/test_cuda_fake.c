/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device over a driver that is not one (fixtures/cuda/fake_cuda.c): contexts, counts, errors, leaks. The fake
 * has the real one's soname, so once it is loaded the device finds it, with or without a GPU in the machine.
 */
#include <fcntl.h>

#include "device/cuda/driver.h"
#include "device/device.h"
#include "device/work.h"
#include "fixtures/cuda/fake_load.h"
#include "kernels/bench.h"
#include "test.h"
#include "transport/transport.h"

static struct fake_cuda *fake;
static struct gantry_device *gpu, *gpu1;
static const struct gantry_device_ops *ops;

static void fail_next(const char *symbol, unsigned error)
{
	fake->fail_symbol = symbol;
	fake->fail_error = error;
}

TEST(open_and_close)
{
	struct gantry_device *other;

	/* Nothing is left of an open that fails half way. */
	fail_next("cuStreamCreate", CUE_OUT_OF_MEMORY);
	CHECK_ERROR(gantry_device_cuda(0, &gpu), GANTRY_ERR_NOMEM, "out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)");
	CHECK_EQ(fake->contexts, 0);
	CHECK_EQ(gantry_device_cuda(FAKE_GPUS, &gpu), GANTRY_ERR_INVALID);

	CHECK_OK(gantry_device_cuda(0, &gpu));
	CHECK_OK(gantry_device_cuda(0, &other));
	CHECK(gpu == other);
	CHECK_EQ(fake->contexts, 1);
	gantry_device_close(other);
	CHECK_EQ(fake->contexts, 1);
	CHECK_OK(gantry_device_cuda(1, &gpu1));
	ops = gpu->ops;
	CHECK_EQ(gpu->kind, GANTRY_DEVICE_CUDA);
	CHECK_STR(gpu->name, "Fake 0");
	CHECK_STR(gpu->bus_id, "0000:ff:1f.6");
	CHECK_EQ(gpu->numa_node, -1);
	CHECK_EQ(gpu->ll128_local, 1);
	CHECK_EQ(gpu->sleeps, 0);
	CHECK_EQ(gpu->max_blocks, GANTRY_HAVE_CUDA ? 4 : 0);
	CHECK_EQ(gpu->default_lanes, 512);
}

TEST(memory)
{
	void *p, *host, *device;
	struct gantry_mem_info info;
	char plain[64], buf[64];
	cu_context mine;

	/* The program's own choice of a GPU survives every call, failed ones too. */
	CHECK_EQ(cu.primary_ctx_retain(&mine, 1), 0);
	CHECK_EQ(cu.ctx_set_current(mine), 0);
	fake->busy = 3;
	CHECK_OK(ops->alloc(gpu, 1000, &p));
	CHECK_FILLED(p, 1000, 0);
	fail_next("cuMemsetD8Async", 700);
	CHECK_EQ(ops->alloc(gpu, 1000, &host), GANTRY_ERR_DEVICE);
	CHECK_EQ(fake->allocations, 1);
	CHECK_EQ(cu.ctx_get_current(&mine), 0);
	CHECK(mine != NULL);
	CHECK_EQ(cu.ctx_set_current(NULL), 0);
	CHECK_EQ(cu.primary_ctx_release(1), 0);

	memset(plain, 7, sizeof(plain));
	CHECK_OK(ops->copy(gpu, p, plain, sizeof(plain)));
	CHECK_OK(ops->copy(gpu, buf, p, sizeof(buf)));
	CHECK(memcmp(buf, plain, sizeof(buf)) == 0);

	CHECK_OK(ops->pointer(gpu, (char *)p + 10, &info));
	CHECK_EQ(info.kind, GANTRY_MEM_DEVICE);
	CHECK_EQ(info.device, 0);
	CHECK(info.device_ptr == (char *)p + 10 && info.base == p);
	CHECK_EQ(info.size, 1000);
	CHECK_EQ(info.exportable, 1);
	CHECK_OK(ops->pointer(gpu1, p, &info)); /* not a peer: no address there */
	CHECK(info.device_ptr == NULL && info.device == 0);
	CHECK_OK(ops->pointer(gpu, plain, &info));
	CHECK_EQ(info.kind, GANTRY_MEM_PAGEABLE);
	CHECK_EQ(info.device, -1);
	CHECK(!info.device_ptr && !info.base && !info.size && !info.exportable);

	CHECK_OK(ops->alloc_mapped(gpu, 500, &host, &device));
	CHECK_FILLED(host, 500, 0);
	CHECK_OK(ops->pointer(gpu, host, &info));
	CHECK_EQ(info.kind, GANTRY_MEM_HOST);
	CHECK(info.device_ptr == device && info.device == -1);

	/* Mapped twice, by two GPUs: registered until the second one is done with it. */
	CHECK_OK(ops->map_host(gpu, plain, sizeof(plain), &device));
	CHECK_OK(ops->map_host(gpu1, plain, 32, &device));
	CHECK_EQ(ops->map_host(gpu1, plain, 65, &device), GANTRY_ERR_USAGE);
	CHECK_OK(ops->unmap_host(gpu, plain));
	CHECK_EQ(fake->registered, 1);
	CHECK_OK(ops->unmap_host(gpu1, plain));
	CHECK_EQ(fake->registered, 0);
	CHECK_EQ(ops->unmap_host(gpu, plain), GANTRY_ERR_INVALID);
	/* Registered by somebody else: used, and left as it was. */
	CHECK_OK(ops->map_host(gpu, host, 500, &device));
	CHECK_EQ(ops->map_host(gpu, (char *)host + 1, 500, &device), GANTRY_ERR_DEVICE);
	CHECK_OK(ops->unmap_host(gpu, host));
	CHECK_EQ(fake->pinned, 1 + 2); /* and one of each GPU's own */

	CHECK_OK(ops->free_mapped(gpu, host));
	CHECK_OK(ops->free_mapped(gpu, NULL));
	CHECK_OK(ops->free(gpu, NULL));
	CHECK_EQ(ops->free(gpu, plain), GANTRY_ERR_INVALID);
	CHECK_OK(ops->free(gpu, p));
}

TEST(streams)
{
	struct gantry_stream *s, *wrapped;
	struct gantry_dev_event *a, *b;
	double us = 0;

	CHECK_OK(ops->stream_create(gpu, &s));
	CHECK_OK(ops->stream_wrap(gpu, NULL, &wrapped));
	CHECK_OK(ops->event_create(gpu, &a));
	CHECK_OK(ops->event_create(gpu, &b));
	CHECK_OK(ops->event_record(gpu, a, s));
	CHECK_OK(ops->event_record(gpu, b, wrapped));
	CHECK_OK(ops->stream_wait(gpu, s, b));
	fake->busy = 2;
	CHECK_EQ(ops->stream_query(gpu, s), GANTRY_AGAIN);
	CHECK_EQ(ops->event_query(gpu, a), GANTRY_AGAIN);
	CHECK_OK(ops->event_query(gpu, a));
	fake->busy = 1;
	CHECK_EQ(ops->event_elapsed(gpu, a, b, &us), GANTRY_AGAIN);
	CHECK_OK(ops->event_elapsed(gpu, a, b, &us));
	CHECK(us == 1500);
	fake->busy = 20;
	CHECK_OK(ops->stream_sync(gpu, s));
	CHECK_EQ(fake->busy, 0);
	/* A context that broke ends the wait, and the stream is gone all the same. */
	fail_next("cuStreamQuery", 719);
	CHECK_EQ(ops->stream_sync(gpu, s), GANTRY_ERR_DEVICE);
	fail_next("cuStreamQuery", 719);
	CHECK_EQ(ops->stream_destroy(gpu, s), GANTRY_ERR_DEVICE);
	CHECK_OK(ops->stream_destroy(gpu, wrapped));
	CHECK_OK(ops->event_destroy(gpu, a));
	CHECK_OK(ops->event_destroy(gpu, b));
	CHECK_EQ(fake->streams, 6); /* three of each GPU's own */
	CHECK_EQ(fake->events, 0);
}

/* A handle that another stream had before is of another stream. */
TEST(stream_numbers)
{
	uint64_t numbers[3] = {0}, again = 0;
	struct gantry_stream *wrapped, *zero;
	cu_context context;
	cu_stream native;

	CHECK_EQ(cu.primary_ctx_retain(&context, 0), 0);
	CHECK_EQ(cu.ctx_set_current(context), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(cu.stream_create(&native, CUV_STREAM_NON_BLOCKING), 0);
		CHECK_OK(ops->stream_wrap(gpu, native, &wrapped));
		CHECK_OK(ops->stream_number(gpu, wrapped, &numbers[i]));
		CHECK_OK(ops->stream_number(gpu, wrapped, &again));
		CHECK_EQ(again, numbers[i]);
		CHECK_OK(ops->stream_destroy(gpu, wrapped));
		CHECK_EQ(cu.stream_destroy(native), 0);
	}
	CHECK_OK(ops->stream_wrap(gpu, NULL, &zero));
	CHECK_OK(ops->stream_number(gpu, zero, &numbers[2]));
	CHECK(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2]);
	fail_next("cuStreamGetId", 719);
	CHECK_EQ(ops->stream_number(gpu, zero, &again), GANTRY_ERR_DEVICE);
	CHECK_OK(ops->stream_destroy(gpu, zero));
	CHECK_EQ(cu.ctx_set_current(NULL), 0);
	CHECK_EQ(cu.primary_ctx_release(0), 0);
}

/* More than run at the same time are refused; and more lanes than the kernel is made for. */
static void blocks_that_wait(struct gantry_stream *s)
{
	struct gantry_p2p_args none = {0};
	struct gantry_unpack_args short_blocks = {0};
	struct gantry_launch l = {.kernel = &gantry_kernel_p2p, .blocks = 9, .args = &none, .args_size = sizeof(none)};

	CHECK_ERROR(ops->launch(gpu, s, &l), GANTRY_ERR_LIMIT, "takes 1 to 8, which run at the same time");
	l = (struct gantry_launch){.kernel = &gantry_kernel_unpack_grid,
				   .blocks = 1000,
				   .args = &short_blocks,
				   .args_size = sizeof(short_blocks)};
	fake->args_size = sizeof(short_blocks);
	CHECK_OK(ops->launch(gpu, s, &l));
	CHECK_EQ(fake->blocks, 1000);
	CHECK_EQ(fake->lanes, 128);
	l.lanes = 256;
	CHECK_ERROR(ops->launch(gpu, s, &l), GANTRY_ERR_INVALID, "up to 128");
	fake->args_size = sizeof(struct gantry_fill_args);
}

TEST(launches)
{
	struct gantry_fill_args args = {.dst = (char *)0x1000, .bytes = 77, .seq = 5};
	uint32_t abort_flag = 0;
	struct gantry_launch l = {.kernel = &gantry_kernel_fill,
				  .blocks = 8,
				  .args = &args,
				  .args_size = sizeof(args),
				  .abort = &abort_flag};
	struct gantry_stream *s;

	CHECK_OK(ops->stream_create(gpu, &s));
	if (!GANTRY_HAVE_CUDA) {
		CHECK_ERROR(ops->launch(gpu, s, &l), GANTRY_ERR_UNSUPPORTED, "built without nvcc, so there are no kernels");
		CHECK_OK(ops->stream_destroy(gpu, s));
		return;
	}
	fake->args_size = sizeof(args);
	CHECK_OK(ops->launch(gpu, s, &l));
	CHECK_STR(fake->kernel, "gantry_fill");
	CHECK_EQ(fake->blocks, 8);
	CHECK_EQ(fake->lanes, 512);
	CHECK(memcmp(fake->args, &args, sizeof(args)) == 0);
	CHECK(fake->abort == &abort_flag);
	l.blocks = 9; /* 4 multiprocessors with 1024 lanes each, but no block waits for another */
	CHECK_OK(ops->launch(gpu, s, &l));
	CHECK_EQ(fake->blocks, 9);
	l.blocks = 0;
	CHECK_EQ(ops->launch(gpu, s, &l), GANTRY_ERR_LIMIT);
	blocks_that_wait(s);
	l.blocks = 9;
	l.lanes = 64;
	CHECK_OK(ops->launch(gpu, s, &l));
	CHECK_EQ(fake->lanes, 64);
	l.lanes = 33;
	CHECK_EQ(ops->launch(gpu, s, &l), GANTRY_ERR_INVALID);
	l.lanes = 1024;
	CHECK_EQ(ops->launch(gpu, s, &l), GANTRY_ERR_INVALID);
	l.lanes = 32;
	l.args_size--;
	CHECK_EQ(ops->launch(gpu, s, &l), GANTRY_ERR_INVALID);
	CHECK_OK(ops->stream_destroy(gpu, s));
}

TEST(sharing)
{
	struct gantry_ipc_handle own, foreign;
	void *p, *a, *b;
	uint64_t offset;
	uint32_t apart[4];
	int can = -1, fd;

	CHECK_OK(ops->peer_access(gpu, gpu, &can));
	CHECK_EQ(can, 1);
	CHECK_OK(ops->peer_access(gpu, gpu1, &can));
	CHECK_EQ(can, 1);
	CHECK_OK(ops->peer_access(gpu1, gpu, &can));
	CHECK_EQ(can, 0);

	/* Reached one way only is apart for both. */
	CHECK_EQ(gantry_device_apart(gpu, apart, 4), 1);
	CHECK_EQ(apart[0], gantry_bus_hash(gpu1->bus_id));
	CHECK_EQ(gantry_device_apart(gpu1, apart, 4), 1);
	CHECK_EQ(apart[0], gantry_bus_hash(gpu->bus_id));
	CHECK_EQ(gantry_device_apart(gpu1, apart, 0), 0);
	fake->peers = 1;
	CHECK_EQ(gantry_device_apart(gpu, apart, 4), 0);
	fake->peers = 0;

	CHECK_OK(ops->alloc(gpu, 100000, &p));
	CHECK_OK(ops->ipc_export(gpu, (char *)p + 100, 1000, &own));
	CHECK_EQ(ops->ipc_export(gpu, (char *)p + 100, 99901, &foreign), GANTRY_ERR_INVALID);
	CHECK_OK(ops->ipc_open(gpu, &own, &a));
	CHECK(a == (char *)p + 100); /* this very process */
	foreign = own;
	foreign.bytes[64] ^= 1; /* another process has the same memory at the same address */
	CHECK_OK(ops->ipc_open(gpu, &foreign, &b));
	CHECK(b != a);
	CHECK_EQ(fake->ipcs, 1);
	CHECK_OK(ops->ipc_open(gpu, &foreign, &a));
	CHECK(a == b);
	CHECK_EQ(fake->ipcs, 1);
	CHECK_OK(ops->ipc_close(gpu, a));
	CHECK_EQ(fake->ipcs, 1);
	CHECK_OK(ops->ipc_close(gpu, b));
	CHECK_EQ(fake->ipcs, 0);
	CHECK_EQ(ops->ipc_close(gpu, b), GANTRY_ERR_INVALID);
	CHECK_OK(ops->ipc_close(gpu, (char *)p + 100));
	memset(&foreign, 0, sizeof(foreign));
	CHECK_EQ(ops->ipc_open(gpu, &foreign, &a), GANTRY_ERR_INVALID);
	foreign = own;
	foreign.bytes[65] ^= 1;
	CHECK_OK(ops->ipc_open(gpu, &foreign, &b)); /* never closed: goes with the device */

	CHECK_OK(ops->dmabuf_export(gpu, (char *)p + 5000, 10, &fd, &offset));
	CHECK_EQ(offset, ((uintptr_t)p + 5000) % (uintptr_t)sysconf(_SC_PAGESIZE));
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	close(fd);
	CHECK_EQ(ops->dmabuf_export(gpu, p, 100001, &fd, &offset), GANTRY_ERR_INVALID);
	CHECK_EQ(gpu1->ops->dmabuf_export(gpu1, p, 10, &fd, &offset), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(gpu->dmabuf, 1);
	CHECK_EQ(gpu1->dmabuf, 0);

	/* A NIC's writes: flushed where the GPU does not order them, and only there. */
	CHECK_OK(ops->flush_remote_writes(gpu));
	CHECK_EQ(fake->flushes, 1);
	CHECK_OK(gpu1->ops->flush_remote_writes(gpu1));
	CHECK_EQ(fake->flushes, 1);
	CHECK_OK(ops->free(gpu, p));
}

/* What the driver answers to a probe is kept for the line that the communicator writes. */
TEST(probe)
{
	struct gantry_peer_info me = {.rank = 0, .process = 1}, peer = {.rank = 1, .process = 2, .device_index = 1};
	struct gantry_p2p_probe there = {0}, here = {0};
	struct gantry_ipc_handle handle, own;
	int ipcs = fake->ipcs;

	me.device_kind = peer.device_kind = GANTRY_DEVICE_CUDA;
	CHECK_OK(gantry_p2p_probe_make(&there, gpu1, 2, &handle));
	CHECK_OK(gantry_p2p_probe_make(&here, gpu, 2, &own));
	handle.bytes[64] ^= 1; /* of another process */
	fail_next("cuIpcOpenMemHandle_v2", 217);
	CHECK_ERROR(gantry_p2p_probe_try(&here, &me, &peer, &handle), GANTRY_ERR_UNSUPPORTED,
		    "of another process into gpu 0: a fake error");
	CHECK_EQ(fake->ipcs, ipcs);
	CHECK_OK(gantry_p2p_probe_try(&here, &me, &peer, &handle));
	CHECK_EQ(fake->ipcs, ipcs + 1);
	/* Two GPUs of one process: nothing is opened, access is enabled. */
	handle.bytes[64] ^= 1;
	peer.process = me.process;
	gantry_p2p_probe_free(&here);
	CHECK_EQ(fake->ipcs, ipcs);
	CHECK_OK(gantry_p2p_probe_make(&here, gpu, 2, &own));
	CHECK_OK(gantry_p2p_probe_try(&here, &me, &peer, &handle));
	CHECK_EQ(fake->ipcs, ipcs);
	me.device_index = 0;
	me.rank = 1;
	peer.rank = 0;
	CHECK_ERROR(gantry_p2p_probe_try(&there, &peer, &me, &own), GANTRY_ERR_UNREACHABLE,
		    "Fake 1 cannot address memory of Fake 0");
	gantry_p2p_probe_free(&here);
	gantry_p2p_probe_free(&there);
	gantry_p2p_probe_free(&there);
}

void tests_begin(void)
{
	char why[256];

	FAKE_OPEN(fake);
	CHECK_OK(gantry_params_load(0));
	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null"); /* errors are expected here */
	CHECK_EQ(gantry_device_cuda_count(why, sizeof(why)), FAKE_GPUS);
	CHECK_STR(why, "");
}

void tests_end(void)
{
	gantry_device_close(gpu);
	gantry_device_close(gpu1);
	CHECK_EQ(fake->contexts, 0);
	CHECK_EQ(fake->allocations + fake->pinned + fake->registered, 0);
	CHECK_EQ(fake->streams + fake->events + fake->modules + fake->ipcs, 0);
}
