/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules on memory of a GPU: registered as that or by a dma-buf, received into, flushed; and, for device type UNPACK, the
 * lists by which kernels gather what has arrived. With a GPU the memory is the GPU's. Without one these rules are
 * skipped, unless --device host says that the plugin takes host memory for it.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/unpack.h"
#include "check/check.h"
#include "device/device.h"

enum { LARGEST = 1 << 20, ROUNDS = 6, CUDA_OK = 0 };
static const size_t sizes[] = {1, 512, 4097, (1 << 16) + 3, LARGEST};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), MESSAGES = ROUNDS * SIZES, WINDOW = 4 };

/* NCCL's threads have the communicator's GPU current, and plugins count on it. */
static void make_current_job(struct check_side *s, void *arg)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *ctx = NULL;
	int (*retain)(void **, int), (*set)(void *);

	(void)arg;
	if (!lib)
		check_skip(s, "no CUDA driver");
	*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&set = dlsym(lib, "cuCtxSetCurrent");
	if (!retain || !set || retain(&ctx, 0) != CUDA_OK || set(ctx) != CUDA_OK)
		check_skip(s, "no context of GPU 0");
}

static struct gantry_device *open_device(struct check_side *s)
{
	struct gantry_device *dev = NULL;
	char why[CHECK_DETAIL / 2] = "";

	if (s->device == CHECK_DEVICE_HOST) {
		check_ok(s, gantry_device_host(&dev), "opening the host device");
		return dev;
	}
	if (gantry_device_cuda_count(why, sizeof(why)) < 1)
		check_skip(s, "no GPU here: %s (--device host takes host memory for it)", why);
	if (gantry_device_cuda(0, &dev) != GANTRY_OK)
		check_skip(s, "GPU 0 cannot be used");
	make_current_job(s, NULL);
	check_service(s, make_current_job, NULL);
	return dev;
}

/* One buffer for each message in flight, in the device's memory; `host` is a copy to look at. */
struct gpu_side {
	struct check_side *s;
	struct gantry_device *dev;
	void *comm, *mr;
	uint8_t *mem, *host;
	void *request[WINDOW];
	struct gantry_net_device_handle *handle;
};

struct gpu_reg {
	struct gpu_side *g;
	int dmabuf;
};

enum { BUFFER = LARGEST + CHECK_GUARD };

/* NCCL closes the descriptor as soon as regMrDmaBuf has returned. */
static void reg_job(struct check_side *s, void *arg)
{
	struct gpu_reg *j = arg;
	struct gpu_side *g = j->g;
	uint64_t offset = 0;
	int fd = -1;

	if (!j->dmabuf) {
		CHECK_MUST(s, CHECK_SERVICE, "regMr of GPU memory",
			   s->net->ops->reg_mr(s->net, g->comm, g->mem, WINDOW * (size_t)BUFFER, GANTRY_NET_PTR_CUDA,
					       &g->mr));
		return;
	}
	check_ok(s, g->dev->ops->dmabuf_export(g->dev, g->mem, WINDOW * (size_t)BUFFER, &fd, &offset),
		 "exporting GPU memory as dma-buf");
	CHECK_MUST(s, CHECK_SERVICE, "regMrDmaBuf",
		   s->net->ops->reg_mr_dmabuf(s->net, g->comm, g->mem, WINDOW * (size_t)BUFFER, GANTRY_NET_PTR_CUDA,
					      offset, fd, &g->mr));
	close(fd);
}

/* NCCL keeps what it gives for its kernels. */
static void device_mr_job(struct check_side *s, void *arg)
{
	struct gpu_side *g = arg;
	void *dptr = NULL;

	CHECK_MUST(s, CHECK_SERVICE, "getDeviceMr", s->net->ops->get_device_mr(s->net, g->comm, g->mr, &dptr));
}

static void gpu_open(struct gpu_side *g, struct check_side *s, struct gantry_device *dev, int dmabuf)
{
	struct check_link l = {.sending = s->role};
	struct gpu_reg j = {.g = g, .dmabuf = dmabuf};
	void *mem = NULL;

	memset(g, 0, sizeof(*g));
	check_phase(s, "connecting");
	check_service(s, check_link_job, &l);
	g->s = s;
	g->dev = dev;
	g->comm = l.comm;
	g->handle = l.dev_handle;
	g->host = check_alloc(s, 1, BUFFER);
	check_ok(s, dev->ops->alloc(dev, WINDOW * (size_t)BUFFER, &mem), "getting device memory");
	g->mem = mem;
	check_service(s, reg_job, &j);
	if (g->handle && check_has(s, CHECK_GET_DEVICE_MR))
		check_service(s, device_mr_job, g);
}

static void gpu_close(struct gpu_side *g)
{
	check_meet(g->s);
	check_phase(g->s, "closing");
	check_dereg(g->s, g->comm, g->mr);
	check_close(g->s, g->s->role ? CHECK_SEND_COMM : CHECK_RECV_COMM, g->comm);
	check_ok(g->s, g->dev->ops->free(g->dev, g->mem), "returning device memory");
	free(g->host);
}

static uint8_t *buffer_of(const struct gpu_side *g, int i)
{
	return g->mem + (size_t)(i % WINDOW) * BUFFER;
}

static void to_device(struct gpu_side *g, void *dst, const void *src, size_t n)
{
	check_ok(g->s, g->dev->ops->copy(g->dev, dst, src, n), "copying to device memory");
}

static void to_host(struct gpu_side *g, void *dst, const void *src, size_t n)
{
	check_ok(g->s, g->dev->ops->copy(g->dev, dst, src, n), "copying from device memory");
}

/* 1 when it was taken. */
static int gpu_post(struct gpu_side *g, int i)
{
	size_t size = sizes[i % SIZES], room = LARGEST;
	struct gantry_net *net = g->s->net;
	void *data = buffer_of(g, i), **request = &g->request[i % WINDOW];
	int tag = 0;

	*request = NULL;
	if (g->s->role)
		CHECK_MUST(g->s, CHECK_PROGRESS, "isend",
			   net->ops->isend(net, g->comm, data, size, tag, g->mr, request));
	else
		CHECK_MUST(g->s, CHECK_PROGRESS, "irecv",
			   net->ops->irecv(net, g->comm, 1, &data, &room, &tag, &g->mr, request));
	return *request != NULL;
}

static int gpu_test(struct gpu_side *g, void *request)
{
	int n[CHECK_TEST_SIZES] = {0}, done = 0;

	CHECK_MUST(g->s, CHECK_PROGRESS, "test", g->s->net->ops->test(g->s->net, request, &done, n));
	return done;
}

/* As NCCL does after each receive into GPU memory. */
static void flush(struct gpu_side *g, int i)
{
	struct gantry_net *net = g->s->net;
	void *data = buffer_of(g, i), *request = NULL;
	int size = (int)sizes[i % SIZES], done = 0;

	CHECK_MUST(g->s, CHECK_PROGRESS, "iflush", net->ops->iflush(net, g->comm, 1, &data, &size, &g->mr, &request));
	while (request && !done) {
		CHECK_MUST(g->s, CHECK_PROGRESS, "test of a flush", net->ops->test(net, request, &done, NULL));
		if (!done && !check_left_ns(g->s))
			check_fail(g->s, "a flush is not done");
		sched_yield();
	}
}

/* What NCCL's kernel does: the k-th list, copied to where it says; then head says that it has been read. */
static void gather(struct gpu_side *g, int k)
{
	struct gantry_unpack_handle *at = g->handle->handle, h;
	struct gantry_unpack_desc *list = check_alloc(g->s, GANTRY_UNPACK_MAX_DESCS, sizeof(*list));
	uint64_t slot = (uint64_t)k % GANTRY_UNPACK_DEPTH, n = 0, head = (uint64_t)k;

	to_host(g, &h, at, sizeof(h));
	to_host(g, &n, &h.meta->cnt[slot], sizeof(n));
	if (n > GANTRY_UNPACK_MAX_DESCS)
		check_fail(g->s, "the list of receive %d has %llu descriptors, room is for %d", k,
			   (unsigned long long)n, GANTRY_UNPACK_MAX_DESCS);
	if (n)
		to_host(g, list, h.meta->mem[slot], n * sizeof(*list));
	for (uint64_t i = 0; i < n; i++) {
		if (list[i].dst_off > LARGEST || list[i].len > LARGEST - list[i].dst_off)
			check_fail(g->s, "descriptor %llu of receive %d leads to byte %llu of a buffer of %d",
				   (unsigned long long)i, k, (unsigned long long)(list[i].dst_off + list[i].len),
				   LARGEST);
		to_host(g, g->host + list[i].dst_off, (uint8_t *)h.bounce_buf + list[i].src_off, list[i].len);
	}
	to_device(g, &at->head, &head, sizeof(head));
	free(list);
}

static void received(struct gpu_side *g, int i)
{
	struct check_side *s = g->s;
	size_t size = sizes[i % SIZES], at;

	if (!g->handle)
		flush(g, i);
	to_host(g, g->host, buffer_of(g, i), BUFFER);
	if (g->handle)
		gather(g, i);
	if (g->handle)
		CHECK_MUST(s, CHECK_PROGRESS, "irecvConsumed",
			   s->net->ops->irecv_consumed(s->net, g->comm, 1, g->request[i % WINDOW]));
	at = check_compare(g->host, size, 0, (uint64_t)i);
	if (at < size)
		check_fail(s, "receive %d (%zu bytes) in GPU memory: byte %zu is 0x%02x, not what was sent", i, size,
			   at, g->host[at]);
	at = check_untouched(g->host + size, BUFFER - size);
	if (at < BUFFER - size)
		check_fail(s, "receive %d in GPU memory: byte %zu past the message was overwritten", i, size + at);
}

static void prepare(struct gpu_side *g, int i)
{
	memset(g->host, CHECK_POISON, BUFFER);
	if (g->s->role)
		check_fill(g->host, sizes[i % SIZES], 0, (uint64_t)i);
	to_device(g, buffer_of(g, i), g->host, BUFFER);
}

static void transfer(struct gpu_side *g)
{
	int prepared = 0, posted = 0, done = 0;

	check_phase(g->s, g->s->role ? "sending from GPU memory" : "receiving into GPU memory");
	while (done < MESSAGES) {
		while (posted < MESSAGES && posted - done < WINDOW) {
			if (prepared == posted)
				prepare(g, prepared++);
			if (!gpu_post(g, posted))
				break;
			posted++;
		}
		if (done < posted && gpu_test(g, g->request[done % WINDOW])) {
			if (!g->s->role)
				received(g, done);
			done++;
			continue;
		}
		if (!check_left_ns(g->s))
			check_fail(g->s, "message %d of %d is not done, phase: %s", done, MESSAGES, g->s->me->phase);
		sched_yield();
	}
}

static void rule_gpu_memory(struct check_side *s)
{
	int promised = s->props.ptr_support & (GANTRY_NET_PTR_CUDA | GANTRY_NET_PTR_DMABUF), moved = 0;
	struct gantry_device *dev;
	struct gpu_side g;

	if (!promised)
		check_skip(s, "ptrSupport is 0x%x: host memory only", s->props.ptr_support);
	if (s->props.device_type == GANTRY_NET_DEVICE_UNPACK)
		check_skip(s, "device type UNPACK: see rule unpack");
	dev = open_device(s);
	for (int dmabuf = 0; dmabuf < 2; dmabuf++) {
		if (!(promised & (dmabuf ? GANTRY_NET_PTR_DMABUF : GANTRY_NET_PTR_CUDA)) || (dmabuf && !dev->dmabuf))
			continue;
		gpu_open(&g, s, dev, dmabuf);
		transfer(&g);
		gpu_close(&g);
		moved |= 1 << dmabuf;
	}
	if (!moved)
		check_skip(s, "ptrSupport is 0x%x, and %s has no dma-bufs", s->props.ptr_support, dev->name);
	check_note(s, "%d messages in memory of %s, flushed%s%s", MESSAGES, dev->name,
		   moved & 1 ? "; registered as GPU memory" : "", moved & 2 ? "; registered by dma-buf" : "");
	gantry_device_close(dev);
}

static void rule_unpack(struct check_side *s)
{
	struct gantry_device *dev;
	struct gpu_side g;

	if (s->props.device_type != GANTRY_NET_DEVICE_UNPACK)
		check_skip(s, "the device type is not UNPACK");
	dev = open_device(s);
	gpu_open(&g, s, dev, 0);
	transfer(&g);
	gpu_close(&g);
	check_note(s, "%d receives gathered by their lists, in memory of %s", MESSAGES, dev->name);
	gantry_device_close(dev);
}

const struct check_rule check_rules_gpu[] = {
	{"gpu-memory", "messages from and to GPU memory, registered as promised and flushed", rule_gpu_memory, 0, 0},
	{"unpack", "the lists of device type UNPACK lead to the bytes that were sent", rule_unpack, 0, 0},
	{0},
};
