/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device on a real GPU: memory, streams, kernels, other processes. Prints one JSON line per part, with a few
 * times for orientation; the first thing that is wrong ends it with 1. Without a GPU: 77 and the reason. With the argument
 * "hip": the HIP device over the fake runtime, where kernels run on CPU threads.
 *
 * A child for the IPC part is forked before anything touches CUDA, and waits on a socket.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "common/figures.h"
#include "device/device.h"
#include "device/work.h"
#include "fixtures/hip/hip_images.h"
#include "kernels/bench.h"
#include "test.h"

enum { ROOM = 3 << 20, GUARD = 64 };

static struct gantry_device *gpu;
static const struct gantry_device_ops *ops;
static struct gantry_stream *stream;
static struct {
	uint64_t wrong;
	uint32_t abort, result;
} * shared; /* host memory that kernels write */
static int kernels;
static struct fake_hip *fake; /* NULL: CUDA */
static int hip;

/* GPUs there are. */
static int look_for_gpus(char *why, size_t len)
{
	if (!hip)
		return gantry_device_cuda_count(why, len);
	fake = fake_hip_open();
	if (!fake) {
		snprintf(why, len, "no fake HIP runtime: %s (BUILD_DIR is the build folder)", dlerror());
		return 0;
	}
	return gantry_device_hip_count(why, len);
}

static double us_since(uint64_t ns)
{
	return (double)(gantry_now_ns() - ns) / 1000;
}

static void open_gpu(void)
{
	void *device;

	CHECK_OK(gantry_device_open(hip ? GANTRY_DEVICE_HIP : GANTRY_DEVICE_CUDA, 0, &gpu));
	ops = gpu->ops;
	kernels = gpu->max_blocks > 0;
	CHECK_OK(ops->stream_create(gpu, &stream));
	CHECK_OK(ops->alloc_mapped(gpu, sizeof(*shared), (void **)&shared, &device));
	CHECK(device == shared); /* one address for both: the FIFO's words are passed around as they are */
}

static void launch(const struct gantry_kernel *kernel, uint32_t blocks, const void *args, size_t size)
{
	struct gantry_launch l = {
		.kernel = kernel, .blocks = blocks, .args = args, .args_size = size, .abort = &shared->abort};

	CHECK_OK(ops->launch(gpu, stream, &l));
}
static void fill(void *dst, uint64_t bytes, uint64_t seq, uint32_t blocks)
{
	struct gantry_fill_args a = {.dst = dst, .bytes = bytes, .seq = seq};

	launch(&gantry_kernel_fill, blocks, &a, sizeof(a));
}
/* Wrong bytes as a kernel counts them. */
static uint64_t verify(const void *src, uint64_t bytes, uint64_t seq, uint32_t blocks)
{
	struct gantry_verify_args a = {.src = src, .bytes = bytes, .seq = seq, .wrong = &shared->wrong};

	shared->wrong = 0;
	launch(&gantry_kernel_verify, blocks, &a, sizeof(a));
	CHECK_OK(ops->stream_sync(gpu, stream));
	return __atomic_load_n(&shared->wrong, __ATOMIC_ACQUIRE);
}

static void test_memory(void)
{
	static char plain[ROOM], back[ROOM];
	struct gantry_mem_info info;
	void *p, *host, *device;

	CHECK_OK(ops->alloc(gpu, ROOM - 3, &p));
	memset(back, 1, sizeof(back));
	CHECK_OK(ops->copy(gpu, back, p, ROOM - 3));
	for (int i = 0; i < ROOM - 3; i++)
		CHECK_EQ(back[i], 0);
	perf_fill(plain, ROOM - 3, 1);
	CHECK_OK(ops->copy(gpu, p, plain, ROOM - 3));
	CHECK_OK(ops->copy_async(gpu, stream, back, p, ROOM - 3));
	CHECK_OK(ops->stream_sync(gpu, stream));
	CHECK_EQ(perf_check(back, ROOM - 3, 1), 0);

	CHECK_OK(ops->pointer(gpu, (char *)p + 100, &info));
	CHECK_EQ(info.kind, GANTRY_MEM_DEVICE);
	CHECK_EQ(info.device, 0);
	CHECK(info.device_ptr == (char *)p + 100 && info.base == p && info.size >= ROOM - 3);
	CHECK_EQ(info.exportable, 1);
	CHECK_OK(ops->pointer(gpu, plain, &info));
	CHECK_EQ(info.kind, GANTRY_MEM_PAGEABLE);
	CHECK(info.device_ptr == NULL);
	CHECK_OK(ops->alloc_mapped(gpu, 12345, &host, &device));
	for (int i = 0; i < 12345; i++)
		CHECK_EQ(((char *)host)[i], 0);
	CHECK_OK(ops->pointer(gpu, (char *)host + 5, &info));
	CHECK_EQ(info.kind, GANTRY_MEM_HOST);
	CHECK(info.device_ptr == (char *)device + 5 && info.device == -1);
	CHECK_EQ(info.exportable, 0);
	CHECK_OK(ops->free_mapped(gpu, host));
	CHECK_OK(ops->free(gpu, p));
	printf("{\"test\": \"memory\", \"gpu\": \"%s\", \"bus_id\": \"%s\", \"numa_node\": %d, \"max_blocks\": %u}\n",
	       gpu->name, gpu->bus_id, gpu->numa_node, gpu->max_blocks);
}

/* Shared memory of two processes, as the communicator uses it: written by the GPU, seen through another mapping. */
static void test_map_host(void)
{
	struct gantry_mem_info info;
	int fd = memfd_create("device_cuda", MFD_CLOEXEC);
	char *a, *b;
	void *device, *again;

	CHECK(fd >= 0 && ftruncate(fd, ROOM) == 0);
	a = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	b = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(a != MAP_FAILED && b != MAP_FAILED);
	CHECK_OK(ops->map_host(gpu, a, ROOM, &device));
	CHECK_OK(ops->map_host(gpu, a, ROOM, &again));
	CHECK(device == again);
	CHECK_OK(ops->pointer(gpu, a + 7, &info));
	CHECK_EQ(info.kind, GANTRY_MEM_HOST);
	if (kernels) {
		fill((char *)device + 5, ROOM - 5, 9, 8);
		CHECK_OK(ops->stream_sync(gpu, stream));
		CHECK_EQ(perf_check(b + 5, ROOM - 5, 9), 0);
		perf_fill(b + 3, ROOM - 3, 10);
		CHECK_EQ(verify((char *)device + 3, ROOM - 3, 10, 8), 0);
	}
	CHECK_OK(ops->unmap_host(gpu, a));
	CHECK_OK(ops->unmap_host(gpu, a));
	CHECK_OK(ops->pointer(gpu, a + 7, &info));
	CHECK_EQ(info.kind, GANTRY_MEM_PAGEABLE);
	munmap(a, ROOM);
	munmap(b, ROOM);
	close(fd);
	printf("{\"test\": \"map_host\"}\n");
}

static void test_kernels(void)
{
	static const uint64_t sizes[] = {1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 1000, 4096, 65537, (1 << 20) + 3};
	static const int offsets[] = {0, 1, 2, 4, 8, 13};
	static char back[ROOM];
	unsigned char one;
	void *p;
	int cases = 0;

	CHECK_OK(ops->alloc(gpu, ROOM, &p));
	for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
		for (size_t o = 0; o < sizeof(offsets) / sizeof(*offsets); o++) {
			uint64_t n = sizes[s], seq = s * 100 + o, at = (uint64_t)(GUARD + offsets[o]);
			uint32_t blocks = 1 + (uint32_t)(s % 8);

			CHECK_OK(ops->copy(gpu, p, memset(back, 0x5a, n + at + GUARD), n + at + GUARD));
			fill((char *)p + at, n, seq, blocks);
			CHECK_EQ(verify((char *)p + at, n, seq, blocks), 0);
			CHECK_OK(ops->copy(gpu, back, p, n + at + GUARD));
			CHECK_EQ(perf_check(back + at, n, seq), 0);
			for (uint64_t i = 0; i < at; i++)
				CHECK_EQ(back[i], 0x5a);
			for (uint64_t i = 0; i < GUARD; i++)
				CHECK_EQ(back[at + n + i], 0x5a);
			one = (unsigned char)~back[at + n / 2];
			CHECK_OK(ops->copy(gpu, (char *)p + at + n / 2, &one, 1));
			CHECK_EQ(verify((char *)p + at, n, seq, blocks), 1);
			cases++;
		}
	/* Another number is another pattern; nearly every byte differs. Many lanes count in host memory at once. */
	fill(p, ROOM, 1, 8);
	CHECK(verify(p, ROOM, 2, 8) > ROOM / 100 * 98);
	CHECK_OK(ops->free(gpu, p));
	printf("{\"test\": \"kernels\", \"cases\": %d}\n", cases);
}

static void test_streams(void)
{
	struct gantry_stream *other;
	struct gantry_dev_event *a, *b;
	struct gantry_fill_args args = {.seq = 3, .bytes = ROOM};
	struct gantry_launch l = {.kernel = &gantry_kernel_fill, .blocks = 1, .args = &args, .args_size = sizeof(args)};
	struct gantry_p2p_args none = {0};
	struct gantry_launch waits = {.kernel = &gantry_kernel_p2p, .args = &none, .args_size = sizeof(none)};
	enum { ROUNDS = 200 };
	uint64_t start;
	double us, sync_us;
	void *p;

	CHECK_OK(ops->alloc(gpu, ROOM, &p));
	args.dst = p;
	CHECK_OK(ops->stream_wrap(gpu, NULL, &other));
	CHECK_OK(ops->event_create(gpu, &a));
	CHECK_OK(ops->event_create(gpu, &b));
	CHECK_OK(ops->event_record(gpu, a, stream));
	CHECK_OK(ops->launch(gpu, stream, &l));
	CHECK_OK(ops->event_record(gpu, b, stream));
	/* What waits for the event in another stream sees what the kernel wrote. */
	CHECK_OK(ops->stream_wait(gpu, other, b));
	args.seq = 4;
	args.bytes = 1000;
	CHECK_OK(ops->launch(gpu, other, &l));
	CHECK_OK(ops->stream_sync(gpu, other));
	CHECK_OK(ops->event_query(gpu, b));
	CHECK_OK(ops->event_elapsed(gpu, a, b, &us));
	CHECK(us > 0 && us < 1e6);
	CHECK_EQ(verify(p, 1000, 4, 1), 0);

	/* Blocks that wait for nobody may be any number, others as many as run at the same time. */
	l.blocks = waits.blocks = gpu->max_blocks * 64 + 1;
	args.bytes = ROOM;
	CHECK_OK(ops->launch(gpu, stream, &l));
	CHECK_EQ(verify(p, ROOM, 4, 1), 0);
	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null");
	CHECK_EQ(ops->launch(gpu, stream, &waits), GANTRY_ERR_LIMIT);
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, "");
	l.blocks = 1;
	args.bytes = 8;
	start = gantry_now_ns();
	for (int i = 0; i < ROUNDS; i++) {
		CHECK_OK(ops->launch(gpu, stream, &l));
		CHECK_OK(ops->stream_sync(gpu, stream));
	}
	sync_us = us_since(start) / ROUNDS;
	start = gantry_now_ns();
	for (int i = 0; i < ROUNDS; i++)
		CHECK_OK(ops->launch(gpu, stream, &l));
	us = us_since(start) / ROUNDS;
	CHECK_OK(ops->stream_destroy(gpu, other));
	CHECK_OK(ops->event_destroy(gpu, a));
	CHECK_OK(ops->event_destroy(gpu, b));
	CHECK_OK(ops->free(gpu, p));
	printf("{\"test\": \"streams\", \"launch_us\": %.2f, \"launch_and_sync_us\": %.2f}\n", us, sync_us);
}

/* The consumer of a FIFO, on the CPU: every word must be that of its step. */
struct consumer {
	struct gantry_fifo *fifo;
	uint64_t n, wrong;
};
/* Copies in the device's own queues, while a kernel's stream is idle or not: bytes and fences. */
static void test_moves(void)
{
	enum { SIZE = 1 << 20, TURNS = 200 };
	uint8_t *out, *in, *there;
	void *ignored;
	uint64_t fence, t0 = gantry_now_ns();

	CHECK_OK(ops->alloc(gpu, SIZE, (void **)&there));
	CHECK_OK(ops->alloc_mapped(gpu, SIZE, (void **)&out, &ignored));
	CHECK_OK(ops->alloc_mapped(gpu, SIZE, (void **)&in, &ignored));
	for (int i = 0; i < TURNS; i++) {
		memset(out, i + 1, SIZE);
		CHECK_OK(ops->queue_copy(gpu, GANTRY_COPY_IN, there, out, SIZE));
		CHECK_OK(ops->queue_fence(gpu, GANTRY_COPY_IN, &fence));
		while (ops->fence_reached(gpu, GANTRY_COPY_IN, fence) == GANTRY_AGAIN)
			;
		CHECK_OK(ops->queue_copy(gpu, GANTRY_COPY_OUT, in, there, SIZE));
		CHECK_OK(ops->queue_fence(gpu, GANTRY_COPY_OUT, &fence));
		while (ops->fence_reached(gpu, GANTRY_COPY_OUT, fence) == GANTRY_AGAIN)
			;
		CHECK(memcmp(in, out, SIZE) == 0);
	}
	printf("moves: %.1f us for 1 MiB there and back, filled and compared\n", us_since(t0) / TURNS);
	CHECK_OK(ops->free_mapped(gpu, in));
	CHECK_OK(ops->free_mapped(gpu, out));
	CHECK_OK(ops->free(gpu, there));
}

static void *consume(void *arg)
{
	struct consumer *c = arg;

	for (uint64_t s = 0; s < c->n; s++) {
		struct gantry_slot *slot = &c->fifo->slots[s % GANTRY_STEPS];
		uint64_t meta, where;

		while (!gantry_slot_is(meta = __atomic_load_n(&slot->meta, __ATOMIC_ACQUIRE), s))
			gantry_cpu_pause();
		while (!gantry_slot_is(where = __atomic_load_n(&slot->where, __ATOMIC_ACQUIRE), s))
			gantry_cpu_pause();
		c->wrong += gantry_slot_mode(meta) != GANTRY_MODE_PTR || gantry_slot_size(meta) != 8;
		__atomic_store_n(&c->fifo->head, s + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void test_fifo(uint32_t window)
{
	struct gantry_fifo_args args = {.n = 20000, .window = window, .result = &shared->result};
	struct gantry_conn conn = {0};
	struct consumer c = {.n = args.n};
	pthread_t thread;
	void *device;
	uint64_t start;
	double us;

	/* What both ends write is in host memory, the kernel's own view of it in the GPU's. */
	CHECK_OK(ops->alloc_mapped(gpu, sizeof(*c.fifo), (void **)&c.fifo, &device));
	CHECK_OK(ops->alloc(gpu, sizeof(conn), (void **)&args.conn));
	conn.head = &c.fifo->head;
	conn.tail = &c.fifo->tail;
	conn.slots = c.fifo->slots;
	CHECK_OK(ops->copy(gpu, args.conn, &conn, sizeof(conn)));
	CHECK_EQ(pthread_create(&thread, NULL, consume, &c), 0);
	start = gantry_now_ns();
	launch(&gantry_kernel_fifo, 1, &args, sizeof(args));
	CHECK_OK(ops->stream_sync(gpu, stream));
	us = us_since(start);
	pthread_join(thread, NULL);
	CHECK_EQ(shared->result, GANTRY_OK);
	CHECK_EQ(c.wrong, 0);
	CHECK_OK(ops->copy(gpu, &conn, args.conn, sizeof(conn)));
	CHECK_EQ(conn.step, args.n);

	/* Nobody consumes: only the abort flag ends the kernel. */
	launch(&gantry_kernel_fifo, 1, &args, sizeof(args));
	usleep(20000);
	CHECK_EQ(ops->stream_query(gpu, stream), GANTRY_AGAIN);
	start = gantry_now_ns();
	__atomic_store_n(&shared->abort, 1, __ATOMIC_RELEASE);
	CHECK_OK(ops->stream_sync(gpu, stream));
	printf("{\"test\": \"fifo\", \"window\": %u, \"us_per_step\": %.3f, \"abort_us\": %.0f}\n", window,
	       us / (double)args.n, us_since(start));
	CHECK_EQ(shared->result, GANTRY_ERR_ABORTED);
	shared->abort = shared->result = 0;
	CHECK_OK(ops->free(gpu, args.conn));
	CHECK_OK(ops->free_mapped(gpu, c.fifo));
}

/* The other process: opens the memory twice, checks it, writes it. */
static int peer(int fd)
{
	struct gantry_ipc_handle h;
	static char buf[ROOM];
	char go, why[256];
	void *a, *b;

	recv_all(fd, &go, 1);
	if (!go)
		return 0;
	recv_all(fd, &h, sizeof(h));
	CHECK(look_for_gpus(why, sizeof(why)) > 0);
	open_gpu();
	CHECK_OK(ops->ipc_open(gpu, &h, &a));
	CHECK_OK(ops->ipc_open(gpu, &h, &b));
	CHECK(a == b);
	CHECK_OK(ops->ipc_close(gpu, b));
	CHECK_OK(ops->copy(gpu, buf, a, 100000));
	CHECK_EQ(perf_check(buf, 100000, 21), 0);
	perf_fill(buf, 100000, 22);
	CHECK_OK(ops->copy(gpu, a, buf, 100000));
	if (kernels)
		CHECK_EQ(verify(a, 100000, 22, 2), 0);
	CHECK_OK(ops->ipc_close(gpu, a));
	send_all(fd, &go, 1);
	gantry_device_close(gpu);
	return 0;
}

static void test_ipc(int fd)
{
	struct gantry_ipc_handle h;
	static char buf[ROOM];
	char go = 1;
	void *p, *own;

	CHECK_OK(ops->alloc(gpu, ROOM, &p));
	perf_fill(buf, 100000, 21);
	CHECK_OK(ops->copy(gpu, (char *)p + 4099, buf, 100000));
	CHECK_OK(ops->ipc_export(gpu, (char *)p + 4099, 100000, &h));
	CHECK_OK(ops->ipc_open(gpu, &h, &own));
	CHECK(own == (char *)p + 4099);
	CHECK_OK(ops->ipc_close(gpu, own));
	send_all(fd, &go, 1);
	send_all(fd, &h, sizeof(h));
	recv_all(fd, &go, 1);
	CHECK_OK(ops->copy(gpu, buf, (char *)p + 4099, 100000));
	CHECK_EQ(perf_check(buf, 100000, 22), 0);
	CHECK_OK(ops->free(gpu, p));
	printf("{\"test\": \"ipc\"}\n");
}

static void test_dmabuf(void)
{
	uint64_t offset = 0;
	int fd = -1;
	void *p;
	gantry_result r;

	CHECK_OK(ops->alloc(gpu, ROOM, &p));
	r = ops->dmabuf_export(gpu, (char *)p + 5000, 10000, &fd, &offset);
	if (r == GANTRY_OK) {
		CHECK_EQ(offset, 5000 % sysconf(_SC_PAGESIZE));
		CHECK(lseek(fd, 0, SEEK_END) >= (off_t)(offset + 10000));
		close(fd);
	} else {
		CHECK_EQ(r, GANTRY_ERR_UNSUPPORTED);
	}
	CHECK_OK(ops->free(gpu, p));
	printf("{\"test\": \"dmabuf\", \"result\": \"%s\"}\n", gantry_result_name(r));
}

int main(int argc, char **argv)
{
	char why[256], no = 0;
	int fds[2], status = 0;
	pid_t child;

	hip = argc > 1 && strcmp(argv[1], "hip") == 0;
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		close(fds[0]);
		return peer(fds[1]);
	}
	close(fds[1]);
	if (look_for_gpus(why, sizeof(why)) == 0) {
		send_all(fds[0], &no, 1);
		waitpid(child, &status, 0);
		SKIP("%s", why);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_gpu();
	test_memory();
	test_map_host();
	if (kernels) {
		test_kernels();
		test_streams();
		test_moves();
		test_fifo(1);
		test_fifo(GANTRY_STEPS);
	} else {
		printf("built without nvcc: kernels are not tested\n");
	}
	test_dmabuf();
	test_ipc(fds[0]);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK_OK(ops->stream_destroy(gpu, stream));
	CHECK_OK(ops->free_mapped(gpu, shared));
	gantry_device_close(gpu);
	return 0;
}
