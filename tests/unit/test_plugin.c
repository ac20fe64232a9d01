/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's tables over a core of the test's own: what NCCL passes must
 * arrive, and what the core says must reach NCCL in NCCL's terms. The plugin's
 * sources are compiled into this file with another name for the core.
 */
#define gantry_net_tcp test_net_tcp
#define gantry_net_tcp_unpack test_net_tcp_unpack
#define gantry_net_tcp_message test_net_tcp_message
#include "plugin/plugin.c"
#include "plugin/profiler.c"
#include "plugin/start.c"
#include "plugin/tune.c"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>

#include "test.h"

#define PTR(n) ((void *)(uintptr_t)(n))

/* The core: one answer for every call, and notes of the last one. */
static struct {
	gantry_result answer;
	void *out; /* comm, request, registration */
	int done;
	const char *call;
	int inits, traffic_class[8], asked_unpack[8];
	int unpack; /* what a context does */
	void *ctx, *comm, *entry;
	int n, dev;
	size_t size[8];
	struct gantry_net_vdevice vdev;
	struct gantry_net_attr attr;
	struct gantry_net_properties props;
	void *dev_handle;
} core;

#define GIVE(field, value)                                                                                             \
	do {                                                                                                           \
		if (!core.answer)                                                                                      \
			*(field) = value;                                                                              \
		return core.answer;                                                                                    \
	} while (0)

static gantry_result c_init(struct gantry_net *net, uint64_t id, const struct gantry_net_config *config, void **ret_ctx)
{
	core.call = "init";
	if (!core.answer && core.inits < 8) {
		core.asked_unpack[core.inits] = config->unpack;
		core.traffic_class[core.inits++] = config->traffic_class;
	}
	GIVE(ret_ctx, id ? PTR(id) : PTR(0x100 + core.inits));
}
int test_net_tcp_unpack(const void *ctx, char *text, size_t len)
{
	CHECK(ctx);
	snprintf(text, len, core.unpack ? "a NIC of the test" : "off: the test says so");
	return core.unpack;
}
int test_net_tcp_message(void *request, int i, struct gantry_net_tcp_message *ret_message)
{
	(void)request, (void)i, (void)ret_message;
	return 0;
}
static gantry_result c_finalize(struct gantry_net *net, void *ctx)
{
	core.ctx = ctx;
	return core.answer;
}
static gantry_result c_set_attr(struct gantry_net *net, void *ctx, const struct gantry_net_attr *attr)
{
	core.ctx = ctx;
	core.attr = *attr;
	return core.answer;
}
static gantry_result c_devices(struct gantry_net *net, int *ret_count)
{
	GIVE(ret_count, 3);
}
static gantry_result c_properties(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props)
{
	core.dev = dev;
	GIVE(ret_props, core.props);
}
static gantry_result c_make_vdevice(struct gantry_net *net, const struct gantry_net_vdevice *vdev, int *ret_dev)
{
	core.vdev = *vdev;
	GIVE(ret_dev, 11);
}
static gantry_result c_listen(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_listen)
{
	core.ctx = ctx;
	core.dev = dev;
	GIVE(ret_listen, core.out);
}
static gantry_result c_connect(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_comm,
			       struct gantry_net_device_handle **dev_handle)
{
	core.ctx = ctx;
	core.dev = dev;
	core.dev_handle = *dev_handle;
	GIVE(ret_comm, core.out);
}
static gantry_result c_accept(struct gantry_net *net, void *listen, void **ret_comm,
			      struct gantry_net_device_handle **dev_handle)
{
	core.comm = listen;
	core.dev_handle = *dev_handle;
	GIVE(ret_comm, core.out);
}
static gantry_result c_close(struct gantry_net *net, void *comm)
{
	core.comm = comm;
	return core.answer;
}
static gantry_result c_reg_mr(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr)
{
	core.comm = comm;
	core.size[0] = size;
	GIVE(ret_mr, core.out);
}
static gantry_result c_reg_dmabuf(struct gantry_net *net, void *comm, void *data, size_t size, int type,
				  uint64_t offset, int fd, void **ret_mr)
{
	return c_reg_mr(net, comm, data, size, type, ret_mr);
}
static gantry_result c_dereg(struct gantry_net *net, void *comm, void *mr)
{
	return c_close(net, comm);
}
static gantry_result c_device_mr(struct gantry_net *net, void *comm, void *mr, void **ret_dptr)
{
	GIVE(ret_dptr, core.out);
}
static gantry_result c_isend(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
			     void **ret_request)
{
	core.call = "isend";
	core.comm = comm;
	core.size[0] = size;
	GIVE(ret_request, core.out);
}
static gantry_result c_irecv(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
			     const int *tags, void **mrs, void **request)
{
	core.call = "irecv";
	core.comm = comm;
	core.n = n;
	core.entry = *request;
	for (int i = 0; i < n && i < 8; i++)
		core.size[i] = sizes[i];
	GIVE(request, core.out);
}
static gantry_result c_iflush(struct gantry_net *net, void *comm, int n, void **data, const int *sizes, void **mrs,
			      void **ret_request)
{
	GIVE(ret_request, core.out);
}
static gantry_result c_test(struct gantry_net *net, void *request, int *ret_done, int *sizes)
{
	GIVE(ret_done, core.done);
}
static gantry_result c_consumed(struct gantry_net *net, void *comm, int n, void *request)
{
	return c_close(net, comm);
}

static const struct gantry_net_ops core_ops = {
	.init = c_init,
	.finalize = c_finalize,
	.set_attr = c_set_attr,
	.devices = c_devices,
	.get_properties = c_properties,
	.make_vdevice = c_make_vdevice,
	.listen = c_listen,
	.connect = c_connect,
	.accept = c_accept,
	.close_send = c_close,
	.close_recv = c_close,
	.close_listen = c_close,
	.reg_mr = c_reg_mr,
	.reg_mr_dmabuf = c_reg_dmabuf,
	.dereg_mr = c_dereg,
	.get_device_mr = c_device_mr,
	.isend = c_isend,
	.irecv = c_irecv,
	.iflush = c_iflush,
	.test = c_test,
	.irecv_consumed = c_consumed,
};

struct gantry_net *test_net_tcp(void)
{
	static struct gantry_net net = {.ops = &core_ops, .name = "test"};

	return &net;
}

static struct {
	int level, count;
	unsigned long flags;
	char text[256];
} logged;

static void nccl_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(logged.text, sizeof(logged.text), fmt, args);
	va_end(args);
	logged.level = level;
	logged.flags = flags;
	logged.count++;
}

/* A parameter that does not parse stops init before the core, and the user reads why in NCCL's log. */
TEST(check_bad_parameter)
{
	void *ctx = NULL;

	setenv("GANTRY_TUNE", "off", 1); /* its own test is test_tuner.c; here nothing of NCCL's is set */
	setenv("GANTRY_LANES", "many", 1);
	core.call = "";
	CHECK_EQ(ncclNetPlugin_v12.init(&ctx, 1, NULL, nccl_log, NULL), ncclInvalidUsage);
	CHECK_STR(core.call, "");
	CHECK_HAS(logged.text, "GANTRY_LANES");
	CHECK_EQ(ncclNetPlugin_v8.init(nccl_log), ncclInvalidUsage);
	CHECK_STR(core.call, "");
	unsetenv("GANTRY_LANES");
}

TEST(check_result_codes)
{
	static const struct {
		gantry_result ours;
		int nccl;
	} map[] = {
		{GANTRY_OK, 0},
		{GANTRY_AGAIN, 3},
		{GANTRY_ERR_SYSTEM, 2},
		{GANTRY_ERR_NOMEM, 2},
		{GANTRY_ERR_LIMIT, 2},
		{GANTRY_ERR_INVALID, 4},
		{GANTRY_ERR_USAGE, 5},
		{GANTRY_ERR_CONFIG, 5},
		{GANTRY_ERR_SIZE, 5},
		{GANTRY_ERR_SETTING, 5},
		{GANTRY_ERR_VERSION, 5},
		{GANTRY_ERR_AUTH, 5},
		{GANTRY_ERR_PEER_CLOSED, 6},
		{GANTRY_ERR_PEER_LOST, 6},
		{GANTRY_ERR_PEER_SILENT, 6},
		{GANTRY_ERR_UNREACHABLE, 6},
		{GANTRY_ERR_REFUSED, 6},
		{GANTRY_ERR_TIMEOUT, 6},
		{GANTRY_ERR_UNSUPPORTED, 5},
		{GANTRY_ERR_INTERNAL, 3},
		{GANTRY_ERR_CORRUPT, 3},
		{GANTRY_ERR_PROTOCOL, 3},
		{GANTRY_ERR_ABORTED, 3},
		{GANTRY_ERR_CANCELLED, 3},
		{GANTRY_ERR_DEVICE, 1},
	};

	CHECK_EQ(sizeof(map) / sizeof(map[0]), GANTRY_RESULT_COUNT);
	EACH_ROW (i, map)
		CHECK_EQ(plugin_result(map[i].ours), map[i].nccl);
}

/* "Again" becomes the form that each call has for it, and never a code. */
TEST(check_again)
{
	void *data[1] = {PTR(1)}, *mrs[1] = {PTR(2)}, *phs[1] = {NULL};
	size_t sizes[1] = {10};
	int isizes[1] = {10}, tags[1] = {0}, done = 7;
	ncclNetDeviceHandle_v7_t *dh = NULL;
	void *out = PTR(0xdead);

	core.answer = GANTRY_AGAIN;
	CHECK_EQ(ncclNetPlugin_v12.connect(PTR(1), 0, PTR(2), &out, &dh), ncclSuccess);
	CHECK(out == NULL);
	out = PTR(0xdead);
	CHECK_EQ(ncclNetPlugin_v6.accept(PTR(1), &out), ncclSuccess);
	CHECK(out == NULL);
	out = PTR(0xdead);
	CHECK_EQ(ncclNetPlugin_v9.isend(PTR(1), PTR(2), 10, 0, NULL, &out), ncclSuccess);
	CHECK(out == NULL);
	out = PTR(1);
	CHECK_EQ(ncclNetPlugin_v12.irecv(PTR(1), 1, data, sizes, tags, mrs, phs, &out), ncclSuccess);
	CHECK(out == NULL);
	out = PTR(0xdead);
	CHECK_EQ(ncclNetPlugin_v12.iflush(PTR(1), 1, data, isizes, mrs, &out), ncclSuccess);
	CHECK(out == NULL);
	CHECK_EQ(ncclNetPlugin_v12.test(PTR(1), &done, NULL), ncclSuccess);
	CHECK_EQ(done, 0);
	CHECK_EQ(ncclNetPlugin_v12.closeSend(PTR(1)), ncclInternalError);
	core.answer = GANTRY_OK;
}

/*
 * v6 to v10 share a context per traffic class; a failed init leaves none behind. Those of v6 to v8 never unpack: nobody
 * tells them which receives are LL.
 */
TEST(check_shared_contexts)
{
	static const int classes[] = {-1, -1, 4, 5};
	static const int unpack[] = {GANTRY_NET_UNPACK_OFF, GANTRY_NET_UNPACK_PARAM, GANTRY_NET_UNPACK_PARAM,
				     GANTRY_NET_UNPACK_PARAM};
	ncclNetCommConfig_v10_t four = {.trafficClass = 4}, five = {.trafficClass = 5};
	ncclNetDeviceHandle_v7_t handle, *dh = &handle;
	void *comm = NULL;

	core.answer = GANTRY_ERR_SYSTEM;
	CHECK_EQ(ncclNetPlugin_v6.init(nccl_log), ncclSystemError);
	core.answer = GANTRY_OK;
	CHECK_EQ(ncclNetPlugin_v6.init(nccl_log), ncclSuccess);
	CHECK_EQ(ncclNetPlugin_v8.init(nccl_log), ncclSuccess);
	CHECK_EQ(core.inits, 1);
	CHECK_EQ(ncclNetPlugin_v10.init(nccl_log, NULL), ncclSuccess);
	CHECK_EQ(ncclNetPlugin_v9.init(nccl_log), ncclSuccess);
	CHECK_EQ(core.inits, 2);
	core.out = PTR(0x55);
	CHECK_EQ(ncclNetPlugin_v7.listen(6, PTR(1), &comm), ncclSuccess);
	CHECK(core.ctx == PTR(0x101) && comm == PTR(0x55));
	CHECK_EQ(core.dev, 6);
	CHECK_EQ(ncclNetPlugin_v9.listen(6, PTR(1), &comm), ncclSuccess);
	CHECK(core.ctx == PTR(0x102));
	CHECK_EQ(ncclNetPlugin_v6.connect(2, PTR(1), &comm), ncclSuccess);
	CHECK(core.ctx == PTR(0x101) && core.dev_handle == NULL);
	CHECK_EQ(core.dev, 2);
	CHECK_EQ(ncclNetPlugin_v8.connect(3, PTR(1), &comm, &dh), ncclSuccess);
	CHECK(core.ctx == PTR(0x101) && core.dev_handle == &handle);
	CHECK_EQ(ncclNetPlugin_v9.connect(3, PTR(1), &comm, &dh), ncclSuccess);
	CHECK(core.ctx == PTR(0x102) && core.dev_handle == &handle);
	CHECK_EQ(ncclNetPlugin_v10.connect(3, &four, PTR(1), &comm, &dh), ncclSuccess);
	CHECK(core.ctx == PTR(0x103));
	CHECK_EQ(ncclNetPlugin_v10.connect(3, &five, PTR(1), &comm, &dh), ncclSuccess);
	CHECK(core.ctx == PTR(0x104));
	CHECK_EQ(ncclNetPlugin_v10.connect(3, &four, PTR(1), &comm, &dh), ncclSuccess);
	CHECK(core.ctx == PTR(0x103));
	CHECK_EQ(ncclNetPlugin_v10.connect(3, NULL, PTR(1), &comm, &dh), ncclSuccess);
	CHECK(core.ctx == PTR(0x102));
	CHECK_EQ(core.inits, 4);
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(core.traffic_class[i], classes[i]);
		CHECK_EQ(core.asked_unpack[i], unpack[i]);
	}
}

TEST(check_own_contexts)
{
	ncclNetCommConfig_v11_t config = {.trafficClass = 9};
	ncclNetAttr_v11_t attr = {
		.sendCommAttr = {1, 2, 3, 4}, .recvCommAttr = {5, 6, 7, 8}, .op = 9, .algo = 10, .proto = 11};
	void *ctx = NULL, *comm = NULL;

	core.inits = 0;
	CHECK_EQ(ncclNetPlugin_v11.init(&ctx, 0x777, &config, nccl_log, NULL), ncclSuccess);
	CHECK(ctx == PTR(0x777));
	CHECK_EQ(core.traffic_class[0], 9);
	CHECK_EQ(core.asked_unpack[0], GANTRY_NET_UNPACK_PARAM);
	CHECK_EQ(ncclNetPlugin_v12.init(&ctx, 0x778, NULL, nccl_log, NULL), ncclSuccess);
	CHECK_EQ(core.traffic_class[1], -1);
	CHECK_EQ(ncclNetPlugin_v12.listen(ctx, 1, PTR(1), &comm), ncclSuccess);
	CHECK(core.ctx == PTR(0x778));
	CHECK_EQ(ncclNetPlugin_v11.setNetAttr(ctx, &attr), ncclSuccess);
	CHECK_EQ(core.attr.send.max_concurrent_peers, 1);
	CHECK_EQ(core.attr.send.min_concurrent_peers, 2);
	CHECK_EQ(core.attr.recv.max_flows_per_peer, 7);
	CHECK_EQ(core.attr.recv.min_flows_per_peer, 8);
	CHECK_EQ(core.attr.op, 9);
	CHECK_EQ(core.attr.proto, 11);
	CHECK_EQ(ncclNetPlugin_v12.finalize(ctx), ncclSuccess);
	CHECK(core.ctx == PTR(0x778));
}

TEST(check_sizes)
{
	void *data[9] = {NULL}, *mrs[9] = {NULL}, *phs[9] = {NULL}, *out = PTR(0xdead);
	int isizes[9] = {10, 2147483647, 30}, tags[9] = {0};
	size_t sizes[2] = {(size_t)1 << 35, 4};

	core.call = "";
	CHECK_EQ(ncclNetPlugin_v6.regMr(PTR(1), PTR(2), -1, 1, &out), ncclInvalidArgument);
	CHECK_EQ(ncclNetPlugin_v7.isend(PTR(1), PTR(2), -1, 0, NULL, &out), ncclInvalidArgument);
	isizes[2] = -2147483647 - 1;
	CHECK_EQ(ncclNetPlugin_v8.irecv(PTR(1), 3, data, isizes, tags, mrs, &out), ncclInvalidArgument);
	CHECK_EQ(ncclNetPlugin_v8.irecv(PTR(1), 9, data, isizes, tags, mrs, &out), ncclInvalidArgument);
	CHECK_EQ(ncclNetPlugin_v8.irecv(PTR(1), 0, data, isizes, tags, mrs, &out), ncclInvalidArgument);
	CHECK_STR(core.call, "");
	CHECK(out == PTR(0xdead));
	isizes[2] = 30;
	core.out = PTR(0x66);
	/* Up to v8 there is no hint, whatever *request holds. */
	out = PTR(1);
	CHECK_EQ(ncclNetPlugin_v8.irecv(PTR(1), 3, data, isizes, tags, mrs, &out), ncclSuccess);
	CHECK(core.entry == NULL && out == PTR(0x66));
	CHECK_EQ(core.n, 3);
	CHECK_EQ(core.size[1], 2147483647);
	CHECK_EQ(core.size[2], 30);
	out = PTR(1);
	CHECK_EQ(ncclNetPlugin_v9.irecv(PTR(1), 2, data, sizes, tags, mrs, &out), ncclSuccess);
	CHECK(core.entry == PTR(1) && out == PTR(0x66));
	CHECK_EQ(core.size[0], 34359738368);
	out = PTR(0xdead);
	CHECK_EQ(ncclNetPlugin_v12.irecv(PTR(1), 2, data, sizes, tags, mrs, phs, &out), ncclSuccess);
	CHECK(core.entry == NULL);
	CHECK_EQ(ncclNetPlugin_v10.isend(PTR(1), PTR(2), (size_t)1 << 33, 0, NULL, PTR(3), &out), ncclSuccess);
	CHECK_EQ(core.size[0], 8589934592);
	CHECK_EQ(ncclNetPlugin_v6.isend(PTR(1), PTR(2), 2147483647, 0, NULL, &out), ncclSuccess);
	CHECK_EQ(core.size[0], 2147483647);
	/* Errors leave outputs alone. */
	core.answer = GANTRY_ERR_PEER_LOST;
	out = PTR(0xdead);
	CHECK_EQ(ncclNetPlugin_v12.isend(PTR(1), PTR(2), 1, 0, NULL, NULL, &out), ncclRemoteError);
	CHECK(out == PTR(0xdead));
	core.answer = GANTRY_OK;
}

TEST(check_properties)
{
	ncclNetProperties_v6_t p6;
	ncclNetProperties_v8_t p8;
	ncclNetProperties_v9_t p9;
	ncclNetProperties_v12_t p12;

	core.props = (struct gantry_net_properties){
		.name = "eth7",
		.pci_path = "/sys/x",
		.guid = 0x1234567890ull,
		.ptr_support = 7,
		.reg_is_global = 1,
		.force_flush = 2,
		.speed = 25000,
		.port = 3,
		.latency = 2.5f,
		.max_comms = 4,
		.max_recvs = 5,
		.device_type = 1,
		.device_version = 7,
		.vdev = {.ndevs = 6, .devs = {10, 11, 12, 13, 14, 15}},
		.max_p2p_bytes = (size_t)1 << 40,
		.max_coll_bytes = 99,
		.max_multi_request_size = 8,
		.rail_id = 21,
		.plane_id = 22,
	};
	CHECK_EQ(ncclNetPlugin_v6.getProperties(4, &p6), ncclSuccess);
	CHECK_EQ(core.dev, 4);
	CHECK_STR(p6.name, "eth7");
	CHECK_STR(p6.pciPath, "/sys/x");
	CHECK_EQ(p6.guid, 0x1234567890);
	CHECK_EQ(p6.ptrSupport, 7);
	CHECK_EQ(p6.speed, 25000);
	CHECK_EQ(p6.port, 3);
	CHECK(p6.latency == 2.5f);
	CHECK_EQ(p6.maxComms, 4);
	CHECK_EQ(p6.maxRecvs, 5);
	CHECK_EQ(ncclNetPlugin_v8.getProperties(0, &p8), ncclSuccess);
	CHECK_EQ(p8.regIsGlobal, 1);
	CHECK_EQ(p8.netDeviceType, 1);
	CHECK_EQ(p8.netDeviceVersion, 7);
	/* Four devices fit before v12. */
	CHECK_EQ(ncclNetPlugin_v10.getProperties(0, &p9), ncclSuccess);
	CHECK_EQ(p9.forceFlush, 2);
	CHECK_EQ(p9.vProps.ndevs, 4);
	CHECK_EQ(p9.vProps.devs[3], 13);
	CHECK_EQ(p9.maxP2pBytes, 1099511627776);
	CHECK_EQ(p9.maxCollBytes, 99);
	CHECK_EQ(ncclNetPlugin_v12.getProperties(0, &p12), ncclSuccess);
	CHECK_EQ(p12.vProps.ndevs, 6);
	CHECK_EQ(p12.vProps.devs[5], 15);
	CHECK_EQ(p12.vProps.devs[6], 0);
	CHECK_EQ(p12.maxMultiRequestSize, 8);
	CHECK_EQ(p12.railId, 21);
	CHECK_EQ(p12.planeId, 22);
}

/* Device type UNPACK is for v9 and later; the log says what became of it, and how to live with NCCL's PAT. */
TEST(check_unpack)
{
	ncclNetProperties_v8_t p8;
	ncclNetProperties_v9_t p9;
	ncclNetProperties_v12_t p12;
	void *ctx = NULL;

	gantry_log_configure(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL, NULL);
	core.props = (struct gantry_net_properties){.ptr_support = 1, .max_recvs = 8};
	CHECK_EQ(ncclNetPlugin_v12.getProperties(0, &p12), ncclSuccess);
	CHECK_EQ(p12.netDeviceType, NCCL_NET_DEVICE_HOST);
	CHECK_EQ(p12.maxRecvs, 8);
	setenv("NCCL_PAT_ENABLE", "0", 1);
	/* Where there is a GPU the plugin has advice on these. */
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	setenv("NCCL_NTHREADS", "512", 1);
	core.unpack = GANTRY_NET_UNPACK_EMULATED;
	CHECK_EQ(ncclNetPlugin_v12.init(&ctx, 5, NULL, nccl_log, NULL), ncclSuccess);
	CHECK_STR(logged.text, "gantry: UNPACK: a NIC of the test");
	CHECK_EQ(logged.flags, 0x11);
	CHECK_EQ(ncclNetPlugin_v12.getProperties(0, &p12), ncclSuccess);
	CHECK_EQ(p12.netDeviceType, NCCL_NET_DEVICE_UNPACK);
	CHECK_EQ(p12.netDeviceVersion, 7);
	CHECK_EQ(p12.ptrSupport, 3);
	CHECK_EQ(p12.maxRecvs, 1);
	CHECK_EQ(ncclNetPlugin_v9.getProperties(0, &p9), ncclSuccess);
	CHECK_EQ(p9.netDeviceType, NCCL_NET_DEVICE_UNPACK);
	CHECK_EQ(ncclNetPlugin_v8.getProperties(0, &p8), ncclSuccess);
	CHECK_EQ(p8.netDeviceType, NCCL_NET_DEVICE_HOST);
	CHECK_EQ(p8.ptrSupport, 1);
	CHECK_EQ(p8.maxRecvs, 8);
	unsetenv("NCCL_PAT_ENABLE");
	core.unpack = GANTRY_NET_UNPACK_KERNEL;
	CHECK_EQ(ncclNetPlugin_v11.init(&ctx, 6, NULL, nccl_log, NULL), ncclSuccess);
	CHECK_HAS(logged.text, "NCCL_PAT_ENABLE=0");
	CHECK_EQ(ncclNetPlugin_v12.getProperties(0, &p12), ncclSuccess);
	CHECK_EQ(p12.ptrSupport, 7);
	core.unpack = GANTRY_NET_UNPACK_OFF;
	CHECK_EQ(ncclNetPlugin_v11.init(&ctx, 7, NULL, nccl_log, NULL), ncclSuccess);
	CHECK_STR(logged.text, "gantry: UNPACK: off: the test says so");
}

TEST(check_vdevices)
{
	ncclNetVDeviceProps_v9_t v9 = {.ndevs = 5};
	ncclNetVDeviceProps_v12_t v12 = {.ndevs = 8, .devs = {8, 7, 6, 5, 4, 3, 2, 1}};
	int dev = -1;

	CHECK_EQ(ncclNetPlugin_v11.makeVDevice(&dev, &v9), ncclInvalidArgument);
	v9.ndevs = 0;
	CHECK_EQ(ncclNetPlugin_v9.makeVDevice(&dev, &v9), ncclInvalidArgument);
	CHECK_EQ(dev, -1);
	CHECK_EQ(ncclNetPlugin_v12.makeVDevice(&dev, &v12), ncclSuccess);
	CHECK_EQ(dev, 11);
	CHECK_EQ(core.vdev.ndevs, 8);
	CHECK_EQ(core.vdev.devs[7], 1);
	v12.ndevs = 9;
	CHECK_EQ(ncclNetPlugin_v12.makeVDevice(&dev, &v12), ncclInvalidArgument);
}

/* Gantry's lines in NCCL's log: warnings pass NCCL's subsystem mask, whatever it is. */
TEST(check_log)
{
	gantry_log_configure(GANTRY_LOG_TRACE, GANTRY_SUBSYS_ALL, NULL);
	LOG_WARN(NET, "careful %d", 1);
	CHECK_EQ(logged.level, 2);
	CHECK_EQ(logged.flags, -1);
	CHECK_STR(logged.text, "gantry: careful 1");
	LOG_ERROR(NET, "100%% bad");
	CHECK_EQ(logged.level, 2);
	CHECK_STR(logged.text, "gantry: 100% bad");
	LOG_INFO(NET, "note");
	CHECK_EQ(logged.level, 3);
	CHECK_EQ(logged.flags, 0x10);
	LOG_INFO(PLUGIN, "note");
	CHECK_EQ(logged.flags, 0x11);
	LOG_DEBUG(DATA, "detail");
	CHECK_EQ(logged.level, 5);
	LOG_TRACE(DATA, "detail");
	CHECK_EQ(logged.level, 5);
	CHECK_EQ(logged.flags, 0x10);
}

/* Nobody wants events: NCCL is told to make none, and has no context to end. */
TEST(check_profiler_off)
{
	void *context = PTR(1), *event = PTR(1);
	ncclProfilerEventDescr_v5_t e = {.type = ncclProfileColl};
	int mask = 99;

	CHECK_EQ(ncclProfiler_v5.init(&context, 7, &mask, NULL, 1, 2, 0, NULL), ncclSuccess);
	CHECK_EQ(mask, 0);
	CHECK(!context);
	mask = 99;
	CHECK_EQ(ncclProfiler_v4.init(&context, &mask, NULL, 7, 1, 2, 0, NULL), ncclSuccess);
	CHECK_EQ(mask, 0);
	mask = 99;
	CHECK_EQ(ncclProfiler_v1.init(&context, &mask), ncclSuccess);
	CHECK_EQ(mask, 0);
	/* What comes all the same does no harm. */
	CHECK_EQ(ncclProfiler_v5.startEvent(NULL, &event, &e), ncclSuccess);
	CHECK(!event);
	CHECK_EQ(ncclProfiler_v5.stopEvent(NULL), ncclSuccess);
	CHECK_EQ(ncclProfiler_v5.recordEventState(NULL, ncclProfilerProxyStepSendWait, NULL), ncclSuccess);
	CHECK_EQ(ncclProfiler_v5.finalize(NULL), ncclSuccess);
}

/* The built plugin as NCCL finds it: seven tables, nothing missing in them. */
TEST(check_built)
{
	/* Entries per version, the name included. */
	static const int counts[] = {[6] = 17, [7] = 19, [8] = 19, [9] = 20, [10] = 20, [11] = 22, [12] = 22};
	const char *build = getenv("BUILD_DIR");
	char path[PATH_MAX], symbol[32];
	void *dl;

	snprintf(path, sizeof(path), "%s/lib/libnccl-net-gantry.so", build ? build : ".");
	if (access(path, R_OK) != 0) {
		printf("no %s: set BUILD_DIR to the build folder; it is not tested\n", path);
		return;
	}
	dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!dl)
		TEST_FAIL("%s", dlerror());
	for (int v = 0; v < 20; v++) {
		void *const *table;

		snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", v);
		table = dlsym(dl, symbol);
		if (v < 6 || v > 12) {
			CHECK(table == NULL);
			continue;
		}
		if (!table)
			TEST_FAIL("no %s in %s", symbol, path);
		for (int i = 0; i < counts[v]; i++)
			if (!table[i])
				TEST_FAIL("%s: entry %d is NULL", symbol, i);
		CHECK_STR((const char *)table[0], "gantry");
	}
}
