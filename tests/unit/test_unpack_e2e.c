/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UNPACK end to end, in one process that connects to itself over lo: device memory is sent and received, LL-style
 * receives between, host memory too, and a kernel as NCCL's gathers. Through the core's own table, and through the
 * built plugin's as NCCL opens it; on the host device, and on a GPU of the fake driver, whose copies and marks run
 * late: there sends go through the stage, pages are filled by copies, and what the CPU cannot write takes the ways over
 * bounces and the pool. Parameters are read once per process, so each combination is a child.
 */
#include <dlfcn.h>
#include <limits.h>

#include "fixtures/cuda/fake_load.h"
#include "net/loader.h"
#include "tcp_util.h"
#include "unpack_util.h"

enum { WINDOW = 7, LARGEST = (5 << 20) + 3 };

static struct gantry_device *dev;
static struct fake_cuda *fake; /* NULL: dev is the host */
static int messages = SANITIZED ? 16 : 60;

struct flow {
	struct way way;
	void *send_mr[2], *recv_mr[2]; /* dev, device */
	uint8_t *out[2], *in[2];       /* the same: WINDOW buffers each */
	int posted, sent, done;
	void *sends[WINDOW], *recvs[WINDOW];
	uint64_t descs;
};

enum kind { DEVICE_SLOT, HOST_SLOT, LL_HOST, LL_DEVICE };

static enum kind kind_of(int i)
{
	static const enum kind kinds[] = {DEVICE_SLOT, DEVICE_SLOT, LL_DEVICE,	DEVICE_SLOT,
					  HOST_SLOT,   LL_HOST,	    DEVICE_SLOT};

	return kinds[i % 7];
}

static size_t size_of(int i)
{
	static const size_t sizes[] = {1000,	0,    65537,  1 << 20, 1,	4097, 300001, (4 << 20), 65536,
				       LARGEST, 4095, 131072, 63,      3000001, 8,    70000,  2 << 20};

	/* Where only the GPU writes, what no table holds is copied page by page, each of which is waited for. */
	return fake && sizes[i % 17] == LARGEST ? 12345 : sizes[i % 17];
}

static int to_device(int i)
{
	return kind_of(i) == DEVICE_SLOT || kind_of(i) == LL_DEVICE;
}

static struct flow flow_open(void *ctx)
{
	struct flow w = {.way = connect_way(ctx)};

	CHECK_EQ(w.way.handle.type, GANTRY_NET_DEVICE_UNPACK);
	CHECK_EQ(w.way.handle.version, 7);
	CHECK_EQ(w.way.handle.size, sizeof(struct gantry_unpack_handle));
	CHECK_EQ(((struct gantry_unpack_handle *)w.way.handle.handle)->head, -1);
	for (int k = 0; k < 2; k++) {
		int type = k ? GANTRY_NET_PTR_CUDA : GANTRY_NET_PTR_HOST;
		size_t size = (size_t)WINDOW * LARGEST;

		if (k) {
			CHECK_OK(gantry_mem_alloc(dev, size, (void **)&w.out[k]));
			CHECK_OK(gantry_mem_alloc(dev, size, (void **)&w.in[k]));
		} else {
			w.out[k] = malloc(size);
			w.in[k] = malloc(size);
		}
		CHECK_OK(ops->reg_mr(net, w.way.send, w.out[k], size, type, &w.send_mr[k]));
		CHECK_OK(ops->reg_mr(net, w.way.recv, w.in[k], size, type, &w.recv_mr[k]));
	}
	return w;
}

static void flow_close(struct flow *w)
{
	for (int k = 0; k < 2; k++) {
		CHECK_OK(ops->dereg_mr(net, w->way.send, w->send_mr[k]));
		CHECK_OK(ops->dereg_mr(net, w->way.recv, w->recv_mr[k]));
	}
	close_way(w->way);
	free(w->out[0]);
	free(w->in[0]);
	CHECK_OK(gantry_mem_free(dev, w->out[1]));
	CHECK_OK(gantry_mem_free(dev, w->in[1]));
}

static void next_recv(struct flow *w)
{
	int i = w->posted, k = to_device(i), ll = kind_of(i) == LL_HOST || kind_of(i) == LL_DEVICE, tag = 3;
	void *data = w->in[k] + (size_t)(i % WINDOW) * LARGEST;
	void *request = ll ? GANTRY_NET_OPTIONAL_RECV_COMPLETION : NULL;
	size_t size = size_of(i) + (i % 3 ? 0 : 1); /* may be larger than the send */

	if (i == messages || i - w->done >= WINDOW)
		return;
	size = size > LARGEST ? LARGEST : size;
	memset(data, 0x11, size_of(i));
	CHECK_OK(ops->irecv(net, w->way.recv, 1, &data, &size, &tag, &w->recv_mr[k], &request));
	CHECK(request != GANTRY_NET_OPTIONAL_RECV_COMPLETION);
	w->recvs[i % WINDOW] = request;
	w->posted += request != NULL;
}

/* Every third message is sent from host memory, whatever it goes to. */
static void next_send(struct flow *w, int way)
{
	int i = w->sent, k = i % 3 != 0;
	uint8_t *data = w->out[k] + (size_t)(i % WINDOW) * LARGEST;

	if (i == messages || w->sends[i % WINDOW] || i - w->done >= WINDOW)
		return;
	pattern_fill(data, size_of(i), (uint64_t)(1000 * way + i));
	CHECK_OK(ops->isend(net, w->way.send, data, size_of(i), 3, w->send_mr[k], &w->sends[i % WINDOW]));
	w->sent += w->sends[i % WINDOW] != NULL;
}

static void test_sends(struct flow *w)
{
	for (int i = 0; i < WINDOW; i++) {
		int done = 0;

		if (!w->sends[i])
			continue;
		CHECK_OK(ops->test(net, w->sends[i], &done, NULL));
		if (done)
			w->sends[i] = NULL;
	}
}

static void test_recv(struct flow *w, int way)
{
	int i = w->done, done = 0, size = -1;
	uint8_t *data = w->in[to_device(i)] + (size_t)(i % WINDOW) * LARGEST;

	if (i == w->posted)
		return;
	CHECK_OK(ops->test(net, w->recvs[i % WINDOW], &done, &size));
	if (!done)
		return;
	CHECK_EQ(size, size_of(i));
	if (kind_of(i) == DEVICE_SLOT)
		w->descs += kernel_unpack(w->way.handle.handle, data, size_of(i));
	else if (kind_of(i) == HOST_SLOT)
		CHECK_EQ(kernel_unpack(w->way.handle.handle, data, size_of(i)), 0);
	CHECK_PATTERN(data, size_of(i), (uint64_t)(1000 * way + i));
	CHECK_OK(ops->irecv_consumed(net, w->way.recv, 1, w->recvs[i % WINDOW]));
	w->done++;
}

/* NCCL's own buffers are registered; another one, and any after the first message, is a user's. */
static void user_buffers(struct flow *w, int plugin)
{
	void *comms[] = {w->way.send, w->way.recv}, *mr = NULL;

	for (int i = 0; i < 2; i++) {
		gantry_result r = ops->reg_mr(net, comms[i], w->in[1], 4096, GANTRY_NET_PTR_CUDA, &mr);

		CHECK_EQ(r != GANTRY_OK, plugin);
		if (r == GANTRY_OK)
			CHECK_OK(ops->dereg_mr(net, comms[i], mr));
		CHECK_OK(ops->reg_mr(net, comms[i], w->in[0], 4096, GANTRY_NET_PTR_HOST, &mr));
		CHECK_OK(ops->dereg_mr(net, comms[i], mr));
	}
}

static void both_ways(int plugin)
{
	struct gantry_net_config config = {
		.traffic_class = GANTRY_NET_UNDEF, .unpack = GANTRY_NET_UNPACK_EMULATED, .device = dev};
	struct gantry_net_properties props;
	struct flow w[2];
	void *ctx = NULL, *two[2] = {NULL, NULL}, *request = NULL;
	size_t sizes[2] = {1, 1};
	int tags[2] = {1, 2};

	CHECK_OK(ops->init(net, 5, &config, &ctx));
	CHECK_OK(ops->get_properties(net, 0, &props));
	CHECK_EQ(props.device_type, plugin ? GANTRY_NET_DEVICE_UNPACK : GANTRY_NET_DEVICE_HOST);
	for (int i = 0; i < 2; i++)
		w[i] = flow_open(ctx);
	while (w[0].done < messages || w[1].done < messages || w[0].sends[0]) {
		for (int i = 0; i < 2; i++) {
			next_recv(&w[i]);
			next_send(&w[i], i);
			test_sends(&w[i]);
			test_recv(&w[i], i);
		}
	}
	for (int i = 0; i < 2; i++) {
		CHECK(w[i].descs > 0);
		for (int k = 0; k < WINDOW; k++)
			while (w[i].sends[k])
				test_sends(&w[i]);
	}
	two[0] = two[1] = w[0].in[0];
	CHECK(ops->irecv(net, w[0].way.recv, 2, two, sizes, tags, (void *[]){w[0].recv_mr[0], w[0].recv_mr[0]},
			 &request) != GANTRY_OK);
	user_buffers(&w[0], plugin);
	for (int i = 0; i < 2; i++)
		flow_close(&w[i]);
	CHECK_OK(ops->finalize(net, ctx));
}

/* When the last connection has gone, the pool has all of its pages, and is freed with them. */
static void pool_ends_whole(void) UNCHECKED
{
	struct devmem_pool *pool;

	CHECK_OK(devmem_pool_get(dev, GANTRY_NET_UNPACK_EMULATED, &pool));
	UNTIL(links_are_gone()); /* with what they had of the pool */
	CHECK_EQ(pool->refs, 1);
	CHECK(pool_is_whole(pool));
	for (int i = 0; i < pool->nparts; i++) {
		struct emu_binding *b = gantry_container(pool->parts[i].binding, struct emu_binding, pub);

		CHECK_EQ(b->nfree, b->npages);
		CHECK_EQ(b->counts.bad_returns, 0);
		CHECK_EQ(b->counts.written_after, 0);
	}
	devmem_pool_put(pool);
}

struct combination {
	int version; /* of the plugin's table; 0: the core's own */
	const char *lanes, *shape, *linear, *plain, *memory, *helpers;
	int gpu; /* of the fake driver, with so many messages */
};

/* ---- a GPU ---- */

static int gpu_runs; /* atomic */
static pthread_t gpu_thread;

/* Copies and marks come late, a few at a time. */
static void *gpu_main(void *arg)
{
	while (__atomic_load_n(&gpu_runs, __ATOMIC_SEQ_CST)) {
		if (!fake->run((unsigned)random_below(600)) || random_below(8) == 0)
			until_pause();
	}
	return NULL;
}

/* 0: there is none. */
static int gpu_open(void)
{
	fake = fake_open();
	if (!fake)
		return 0;
	CHECK_OK(gantry_device_cuda(0, &dev));
	__atomic_store_n(&fake->late, 1, __ATOMIC_SEQ_CST);
	gpu_runs = 1;
	CHECK(!pthread_create(&gpu_thread, NULL, gpu_main, NULL));
	return 1;
}

static void gpu_close(void)
{
	__atomic_store_n(&gpu_runs, 0, __ATOMIC_SEQ_CST);
	CHECK(!pthread_join(gpu_thread, NULL));
	fake->run(1 << 30);
	__atomic_store_n(&fake->late, 0, __ATOMIC_SEQ_CST);
	gantry_device_close(dev);
	CHECK_EQ(fake->contexts + fake->allocations + fake->pinned + fake->streams, 0);
}

static const struct combination *c; /* that is tried */
static char plugin[PATH_MAX];

static void child(void)
{
	struct gantry_loader *loader = NULL;

	setenv("GANTRY_LANES", c->lanes, 1);
	setenv("GANTRY_HELPERS", c->helpers, 1);
	setenv("GANTRY_UNPACK", c->version ? "emulated" : "off", 1); /* the core is told by its user */
	set_params("GANTRY_UNPACK_MEMORY", c->memory, "GANTRY_EMU_SHAPE", c->shape, "GANTRY_EMU_LINEAR", c->linear,
		   "GANTRY_EMU_PLAIN", c->plain);
	if (!c->gpu) {
		CHECK_OK(gantry_device_host(&dev));
	} else if (gpu_open()) {
		messages = SANITIZED ? c->gpu / 6 : c->gpu;
	} else {
		printf("no fake driver: %s (BUILD_DIR is the build folder)\n", dlerror());
		return;
	}
	net = gantry_net_tcp();
	if (c->version) {
		CHECK_OK(gantry_loader_open(plugin, &loader));
		CHECK_OK(gantry_loader_net(loader, c->version, &net));
		CHECK_EQ(net->version, c->version);
	}
	ops = net->ops;
	both_ways(c->version != 0);
	if (!c->version)
		pool_ends_whole();
	gantry_loader_close(loader);
	if (c->gpu)
		gpu_close();
	else
		gantry_device_close(dev);
}

int main(void)
{
	static const struct combination all[] = {
		{0, "1", "mtu9000", "0", "0", "mapped", "0", 0},     {0, "2", "mtu1500", "100", "50", "mapped", "0", 0},
		{0, "3", "random", "50", "50", "mapped", "1", 0},    {0, "4", "odd", "0", "0", "device", "2", 0},
		{9, "2", "pages", "0", "0", "mapped", "0", 0},	     {11, "2", "mtu9000", "20", "20", "mapped", "1", 0},
		{12, "3", "mtu1500", "0", "20", "mapped", "0", 0},   {0, "2", "pages", "0", "0", "device", "2", 300},
		{0, "3", "random", "100", "50", "device", "0", 120}, {0, "1", "odd", "0", "50", "mapped", "1", 120},
	};
	const char *build = getenv("BUILD_DIR");
	int failed = 0;

	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("NCCL_PAT_ENABLE", "0", 1);
	snprintf(plugin, sizeof(plugin), "%s/lib/libnccl-net-gantry.so", build ? build : ".");
	for (size_t i = 0; i < TEST_COUNT(all); i++) {
		char name[64];

		c = &all[i];
		if (c->version && access(plugin, R_OK) != 0) {
			printf("no %s: set BUILD_DIR to the build folder\n", plugin);
			continue;
		}
		snprintf(name, sizeof(name), "version %d, %s lanes, %s", c->version, c->lanes, c->shape);
		/* Where a look for leaks takes seconds: without the plugin, and with it, is enough. */
		failed |= run_row(name, child, i % 4 == 2, NULL);
	}
	return failed;
}
