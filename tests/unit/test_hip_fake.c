/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HIP device over a runtime that is not one (fixtures/hip/fake_hip.c): what differs from CUDA's. What the two have in
 * common is in test_cuda_fake; kernels, streams and other processes are in drivers/device_cuda.c with "hip".
 *
 * Catches: constants and counts of another version's; the thread's device or its last error left changed; memory that
 * running kernels do not see; writes of a NIC that are not flushed; anything left behind.
 */
#include "base/param.h"
#include "common/figures.h"
#include "device/cuda/gpu.h"
#include "device/device.h"
#include "device/work.h"
#include "fixtures/hip/hip_images.h"
#include "kernels/bench.h"
#include "test.h"

static struct fake_hip *fake;
static struct gantry_device *gpu, *gpu1;
static const struct gantry_device_ops *ops;
static const struct gantry_cuda_api *api;

static void fail_next(const char *symbol, unsigned error)
{
	fake->fail_symbol = symbol;
	fake->fail_error = error;
}
static int device_now(void)
{
	cu_device d = -1;

	CHECK_EQ(api->ctx_get_device(&d), CUE_SUCCESS);
	return d;
}

TEST(open_and_close)
{
	struct gantry_device *other;
	char why[256];

	api = gantry_driver_hip.api;
	CHECK_EQ(gantry_device_hip_count(why, sizeof(why)), FAKE_HIP_GPUS);
	CHECK_STR(why, "");
	/* Nothing is left of an open that fails half way. */
	fail_next("hipStreamCreateWithFlags", CUE_OUT_OF_MEMORY); /* an error that the program may see, too */
	CHECK_ERROR(gantry_device_hip(0, &gpu), GANTRY_ERR_NOMEM, "out of memory (hipErrorOutOfMemory, 2)");
	CHECK_EQ(fake->streams + fake->pinned + fake->modules, 0);
	CHECK_EQ(fake->last_error(), CUE_OUT_OF_MEMORY);
	CHECK_EQ(gantry_device_hip(FAKE_HIP_GPUS, &gpu), GANTRY_ERR_INVALID);

	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HIP, 0, &gpu));
	CHECK_OK(gantry_device_hip(0, &other));
	CHECK(gpu == other);
	gantry_device_close(other);
	CHECK_OK(gantry_device_hip(1, &gpu1));
	ops = gpu->ops;
	CHECK_EQ(gpu->kind, GANTRY_DEVICE_HIP);
	CHECK_STR(gpu->name, "Fake HIP 0");
	CHECK_STR(gpu->bus_id, "0000:fe:1f.6");
	CHECK_EQ(gpu->numa_node, -1);
	CHECK_EQ(gpu->ll128_local, 0);
	CHECK_EQ(gpu->sleeps, 0);
	CHECK_EQ(gpu->dmabuf, 0);
	CHECK_EQ(gpu->max_blocks, FAKE_HIP_CUS);
	CHECK_EQ(gpu->flushes, 1);
	CHECK_EQ(gpu1->flushes, 0);
	CHECK_EQ(device_now(), 0); /* that of a thread that has chosen none */
	CHECK_EQ(fake->last_error(), 0);
}

/* The thread's device and last error are the program's. */
TEST(the_thread)
{
	char plain[64];
	struct gantry_mem_info info;
	void *p, *none;

	CHECK_EQ(api->ctx_set_current((cu_context)(uintptr_t)2), CUE_SUCCESS);
	CHECK_EQ(device_now(), 1);
	CHECK_OK(ops->alloc(gpu, 1000, &p));
	fail_next("hipMemsetD8Async", 700);
	CHECK_EQ(ops->alloc(gpu, 1000, &none), GANTRY_ERR_DEVICE);
	CHECK_EQ(fake->allocations, 1);
	CHECK_OK(ops->pointer(gpu, plain, &info));
	CHECK_OK(ops->free(gpu, p));
	CHECK_EQ(device_now(), 1);
	CHECK_EQ(api->ctx_set_current((cu_context)(uintptr_t)1), CUE_SUCCESS);
}

TEST(memory)
{
	struct gantry_mem_info info;
	char plain[64], back[64], far[8 * 32];
	const struct gantry_rows rows = {
		.src = (uint8_t *)plain, .src_stride = 8, .dst_stride = 32, .width = 5, .count = 8};
	struct gantry_rows in;
	struct gantry_stream *s;
	void *p, *host, *device;

	CHECK_OK(ops->alloc(gpu, 1000, &p));
	CHECK_FILLED(p, 1000, 0);
	for (size_t i = 0; i < sizeof(plain); i++)
		plain[i] = (char)(i * 7 + 1);
	CHECK_OK(ops->copy(gpu, p, plain, sizeof(plain)));
	CHECK_OK(ops->copy(gpu, back, p, sizeof(back)));
	CHECK(memcmp(back, plain, sizeof(back)) == 0);
	/* More than there is: the runtime does not get to write behind the allocation. */
	CHECK_EQ(ops->copy(gpu, (char *)p + 990, plain, 20), GANTRY_ERR_INVALID);
	CHECK_EQ(fake->wrong, 1);
	fake->wrong = 0;

	CHECK_OK(ops->stream_create(gpu, &s));
	in = rows;
	in.dst = (uint8_t *)p + 3;
	CHECK_OK(ops->copy_rows_async(gpu, s, &in));
	CHECK_OK(ops->stream_sync(gpu, s));
	CHECK_OK(ops->copy(gpu, far, (char *)p + 3, sizeof(far)));
	for (int i = 0; i < 8; i++)
		CHECK(memcmp(far + 32 * i, plain + 8 * i, 5) == 0);
	CHECK_OK(ops->stream_destroy(gpu, s));

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
	CHECK_EQ(fake->last_error(), 0); /* to have asked is no error of the program's */

	CHECK_OK(ops->alloc_mapped(gpu, 500, &host, &device));
	CHECK_FILLED(host, 500, 0);
	CHECK(host == device); /* the FIFO's words are passed around as they are */
	CHECK_OK(ops->pointer(gpu, (char *)host + 3, &info));
	CHECK_EQ(info.kind, GANTRY_MEM_HOST);
	CHECK(info.device_ptr == (char *)host + 3 && info.device == -1 && info.base == host);
	CHECK_EQ(info.exportable, 0);

	CHECK_OK(ops->map_host(gpu, plain, sizeof(plain), &device));
	CHECK_OK(ops->map_host(gpu1, plain, 32, &device));
	CHECK_EQ(fake->registered, 1);
	CHECK_OK(ops->unmap_host(gpu, plain));
	CHECK_OK(ops->unmap_host(gpu1, plain));
	CHECK_EQ(fake->registered, 0);
	/* Registered by the program: used, and left as it was. */
	CHECK_OK(ops->map_host(gpu, host, 500, &device));
	CHECK_EQ(ops->map_host(gpu, (char *)host + 1, 500, &device), GANTRY_ERR_DEVICE);
	CHECK_OK(ops->unmap_host(gpu, host));
	CHECK_OK(ops->free_mapped(gpu, host));
	CHECK_EQ(ops->free(gpu, plain), GANTRY_ERR_INVALID);
	CHECK_OK(ops->free(gpu, p));
	CHECK_EQ(fake->wrong, 0);
}

/* Every byte of what a kernel writes, with blocks and lanes as asked for. */
TEST(kernels)
{
	enum { SIZE = 10000 };
	struct gantry_fill_args fill = {.bytes = SIZE, .seq = 5};
	struct gantry_launch l = {
		.kernel = &gantry_kernel_fill, .blocks = 3, .lanes = 64, .args = &fill, .args_size = sizeof(fill)};
	static char back[SIZE + 16];
	struct gantry_stream *s;
	void *p;

	CHECK_OK(ops->alloc(gpu, SIZE + 16, &p));
	CHECK_OK(ops->stream_create(gpu, &s));
	fill.dst = (char *)p + 8;
	CHECK_OK(ops->launch(gpu, s, &l));
	CHECK_OK(ops->stream_sync(gpu, s));
	CHECK_STR(fake->kernel, "fill");
	CHECK_EQ(fake->blocks, 3);
	CHECK_EQ(fake->lanes, 64);
	CHECK_OK(ops->copy(gpu, back, p, sizeof(back)));
	CHECK_EQ(perf_check(back + 8, SIZE, 5), 0);
	CHECK_FILLED(back, 8, 0);
	CHECK_FILLED(back + 8 + SIZE, 8, 0);
	l.args_size--;
	CHECK_EQ(ops->launch(gpu, s, &l), GANTRY_ERR_INVALID);
	l.args_size++;
	l.lanes = 65;
	CHECK_EQ(ops->launch(gpu, s, &l), GANTRY_ERR_INVALID);
	CHECK_EQ(fake->launches, 1);
	CHECK_OK(ops->stream_destroy(gpu, s));
	CHECK_OK(ops->free(gpu, p));
}

static void copy_and_wait(void)
{
	uint8_t *out, *in, *there;
	uint64_t fence;
	void *ignored;

	CHECK_OK(ops->alloc(gpu, 5000, (void **)&there));
	CHECK_OK(ops->alloc_mapped(gpu, 5000, (void **)&out, &ignored));
	CHECK_OK(ops->alloc_mapped(gpu, 5000, (void **)&in, &ignored));
	for (int turn = 1; turn < 50; turn++) {
		memset(out, turn, 5000);
		CHECK_OK(ops->queue_copy(gpu, GANTRY_COPY_IN, there, out, 5000));
		CHECK_OK(ops->queue_fence(gpu, GANTRY_COPY_IN, &fence));
		CHECK_OK(gantry_fence_await(gpu, GANTRY_COPY_IN, fence));
		CHECK_OK(ops->queue_copy(gpu, GANTRY_COPY_OUT, in, there, 5000));
		CHECK_OK(ops->queue_store(gpu, GANTRY_COPY_OUT, out, (uint64_t)turn << 33));
		CHECK_OK(ops->queue_fence(gpu, GANTRY_COPY_OUT, &fence));
		CHECK_OK(gantry_fence_await(gpu, GANTRY_COPY_OUT, fence));
		CHECK_FILLED(in, 5000, turn);
		CHECK_EQ(*(uint64_t *)(void *)out, (uint64_t)turn << 33);
	}
	CHECK_OK(ops->free_mapped(gpu, in));
	CHECK_OK(ops->free_mapped(gpu, out));
	CHECK_OK(ops->free(gpu, there));
}
TEST(copy_queues)
{
	copy_and_wait();
	fake->no_write_value = 1; /* then the fence is a memset */
	copy_and_wait();
	fake->no_write_value = 0;
	CHECK_EQ(fake->last_error(), 0);
	CHECK_EQ(fake->wrong, 0);
}

/* The register of GPU 0 is written each time; GPU 1 has none and nothing to flush. */
TEST(flush)
{
	CHECK_EQ(fake->hdp, 0);
	CHECK_OK(gpu1->ops->flush_remote_writes(gpu1));
	CHECK_EQ(fake->hdp, 0);
	for (int i = 0; i < 3; i++) {
		fake->hdp = 0;
		CHECK_OK(ops->flush_remote_writes(gpu));
		CHECK_EQ(fake->hdp, 1);
	}
	fake->hdp = 0;
}

TEST(what_it_cannot)
{
	struct gantry_device *host;
	uint64_t capture = 1, offset;
	struct gantry_stream *s;
	int fd = -1, can = 1;

	CHECK_OK(ops->stream_create(gpu, &s));
	CHECK_OK(ops->stream_captured(gpu, s, &capture));
	CHECK_EQ(capture, 0);
	CHECK_EQ(ops->host_call(gpu, s, NULL, NULL), GANTRY_ERR_UNSUPPORTED); /* 5.2 has no such call */
	CHECK_OK(ops->stream_destroy(gpu, s));
	CHECK_EQ(ops->dmabuf_export(gpu, gpu, 1, &fd, &offset), GANTRY_ERR_UNSUPPORTED);
	CHECK_OK(gantry_device_host(&host));
	CHECK_OK(ops->peer_access(gpu, host, &can));
	CHECK_EQ(can, 0);
	gantry_device_close(host);
	CHECK_OK(ops->peer_access(gpu, gpu1, &can));
	CHECK_EQ(can, 1);
	CHECK_OK(ops->peer_access(gpu, gpu1, &can)); /* again: it is enabled, which is no error */
	CHECK_EQ(can, 1);
	CHECK_EQ(fake->last_error(), 0);
}

void tests_begin(void)
{
	FAKE_HIP_OPEN(fake);
	if (getenv("FAKE_HIP_VERSION"))
		fake->version = atoi(getenv("FAKE_HIP_VERSION"));
	CHECK_OK(gantry_params_load(0));
	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null"); /* errors are expected here */
}

void tests_end(void)
{
	gantry_device_close(gpu);
	gantry_device_close(gpu1);
	CHECK_EQ(fake->allocations + fake->pinned + fake->registered, 0);
	CHECK_EQ(fake->streams + fake->events + fake->modules + fake->ipcs, 0);
	CHECK_EQ(fake->wrong, 0);
}
