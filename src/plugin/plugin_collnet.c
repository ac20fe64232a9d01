/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collNet tables: thin, over src/reducer. They offer what NCCL asks for with NCCL_COLLNET_ENABLE=1; without it init
 * fails, which NCCL takes for "there is no collNet", and nothing of NCCL's choices changes.
 *
 * NCCL calls connect once, from its service thread, and lets it block. When that fails NCCL goes on without collNet and
 * forgets the listener: it is closed here. The little that is left of it stays in a list, so that a caller that does
 * not forget it may close it.
 *
 * Devices are those of the net tables, by name and number, but take host memory only: reducers are CPUs.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "abi/collnet_v12.h"
#include "base/identity.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "plugin/plugin_props.h"
#include "plugin/start.h"
#include "reducer/reducer.h"

#define EXPORT __attribute__((visibility("default")))
#define CALL(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

struct coll_listener {
	struct gantry_list node; /* in `refused` */
	void *ctx;		 /* borrowed */
	int dev;
	void *listen; /* of the network, owned */
};

MUTEX_KIND(plugin_coll_mu);
static struct plugin_coll_mu coll_mu;
static void *shared_ctx GUARDED_BY(plugin_coll_mu); /* v6 to v10 have no contexts: one for the life of the process */
static struct gantry_list refused GUARDED_BY(plugin_coll_mu) = {&refused, &refused};

static gantry_result open_context(uint64_t comm_id, ncclDebugLogger_t log, void **ret_ctx)
{
	/* Receives wait for pieces at all times: ranks that close at the end are no error. */
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF, .standing_receives = 1};
	const char *wanted = gantry_variable("NCCL_COLLNET_ENABLE");

	TRY_NOW(plugin_prepare(log));
	if (!wanted || strcmp(wanted, "0") == 0) {
		gantry_set_last_error("collNet: NCCL_COLLNET_ENABLE is not 1");
		LOG_DEBUG(PLUGIN, "collNet: NCCL_COLLNET_ENABLE is not 1, the tables are not used");
		return GANTRY_ERR_UNSUPPORTED;
	}
	return CALL(init, comm_id, &config, ret_ctx);
}

static ncclResult_t coll_init_v11(void **ctx, uint64_t comm_id, ncclDebugLogger_t log)
{
	return plugin_result(open_context(comm_id, log, ctx));
}

static ncclResult_t coll_init_v6(ncclDebugLogger_t log)
{
	gantry_result r = GANTRY_OK;

	plugin_coll_mu_lock(&coll_mu);
	if (!shared_ctx)
		r = open_context(0, log, &shared_ctx);
	plugin_coll_mu_unlock(&coll_mu);
	return plugin_result(r);
}

static ncclResult_t coll_finalize(void *ctx)
{
	return plugin_result(CALL(finalize, ctx));
}

static ncclResult_t coll_devices(int *ndev)
{
	return plugin_result(CALL(devices, ndev));
}

static void host_memory_only(struct gantry_net_properties *p)
{
	p->ptr_support = GANTRY_NET_PTR_HOST;
}

DEFINE_PROPERTIES(coll, v6, NET_PROPS_V6, , host_memory_only)
DEFINE_PROPERTIES(coll, v7, NET_PROPS_V7, , host_memory_only)
DEFINE_PROPERTIES(coll, v8, NET_PROPS_V8, , host_memory_only)
DEFINE_PROPERTIES(coll, v9, NET_PROPS_V9, FILL_DEVS, host_memory_only)
DEFINE_PROPERTIES(coll, v11, NET_PROPS_V11, FILL_DEVS, host_memory_only)
DEFINE_PROPERTIES(coll, v12, NET_PROPS_V12, FILL_DEVS, host_memory_only)

static ncclResult_t coll_make_vdevice(int *dev, int ndevs, const int *devs, int max)
{
	struct gantry_net_vdevice v = {.ndevs = ndevs};
	gantry_result r;

	if (ndevs < 1 || ndevs > max)
		FAIL(GANTRY_ERR_INVALID, "cannot fuse %d devices: expected 1 to %d", ndevs, max);
	memcpy(v.devs, devs, (size_t)ndevs * sizeof(*devs));
	TRY(CALL(make_vdevice, &v, dev));
out:
	return plugin_result(r);
}

static ncclResult_t coll_make_vdevice_v9(int *dev, ncclNetVDeviceProps_v9_t *props)
{
	return coll_make_vdevice(dev, props->ndevs, props->devs, NCCL_NET_MAX_DEVS_PER_NIC_V9);
}

static ncclResult_t coll_make_vdevice_v12(int *dev, ncclNetVDeviceProps_v12_t *props)
{
	return coll_make_vdevice(dev, props->ndevs, props->devs, NCCL_NET_MAX_DEVS_PER_NIC_V12);
}

/* ---- connecting ---- */

static gantry_result open_listener(void *ctx, int dev, void *handle, void **ret_listen)
{
	gantry_result r = GANTRY_OK;
	struct coll_listener *l = calloc(1, sizeof(*l));

	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a listener");
	gantry_list_init(&l->node);
	l->ctx = ctx;
	l->dev = dev;
	TRY(CALL(listen, ctx, dev, handle, &l->listen));
	*ret_listen = l;
	l = NULL;
out:
	free(l);
	return r;
}

static ncclResult_t coll_listen_v11(void *ctx, int dev, void *handle, void **listen)
{
	return plugin_result(open_listener(ctx, dev, handle, listen));
}

static ncclResult_t coll_listen_v6(int dev, void *handle, void **listen)
{
	void *ctx;

	plugin_coll_mu_lock(&coll_mu);
	ctx = shared_ctx;
	plugin_coll_mu_unlock(&coll_mu);
	if (!ctx)
		return plugin_result(
			gantry_fail(GANTRY_ERR_USAGE, LOG_SUBSYS, __FILE__, __LINE__, "listen was called before init"));
	return plugin_result(open_listener(ctx, dev, handle, listen));
}

static ncclResult_t coll_close_listen(void *listen)
{
	struct coll_listener *l = listen;

	if (!l)
		return ncclSuccess;
	plugin_coll_mu_lock(&coll_mu);
	gantry_list_remove(&l->node);
	plugin_coll_mu_unlock(&coll_mu);
	CALL(close_listen, l->listen);
	free(l);
	return ncclSuccess;
}

static ncclResult_t coll_connect(void *handles[], int nranks, int rank, void *listen, void **comm)
{
	struct coll_listener *l = listen;
	struct reducer_config config = {.ctx = l->ctx,
					.listen = l->listen,
					.dev = l->dev,
					.ranks = nranks < 0 ? 0 : (uint32_t)nranks,
					.rank = (uint32_t)rank,
					.handles = (const void *const *)handles,
					.timeout = gantry_params()->connect_timeout};
	struct reducer_comm *c = NULL;
	gantry_result r = reducer_open(&config, &c);
	char text[64];

	if (r == GANTRY_OK) {
		LOG_INFO(PLUGIN, "collNet: rank %d of %d, %s", rank, nranks, reducer_describe(c, text, sizeof(text)));
		*comm = c;
		return ncclSuccess;
	}
	LOG_WARN(PLUGIN, "collNet: rank %d of %d continues without collNet: %s", rank, nranks, gantry_last_error());
	CALL(close_listen, l->listen);
	l->listen = NULL;
	plugin_coll_mu_lock(&coll_mu);
	gantry_list_append(&refused, &l->node);
	plugin_coll_mu_unlock(&coll_mu);
	return plugin_result(r);
}

static ncclResult_t coll_close(void *comm)
{
	reducer_close(comm);
	return ncclSuccess;
}

/* ---- memory ---- */

static ncclResult_t coll_reg_mr(void *comm, void *data, size_t size, int type, void **mr)
{
	(void)comm;
	return plugin_result(CALL(reg_mr, NULL, data, size, type, mr));
}

static ncclResult_t coll_reg_mr_int(void *comm, void *data, int size, int type, void **mr)
{
	if (size < 0)
		return plugin_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
						 "invalid registration: %d bytes", size));
	return coll_reg_mr(comm, data, (size_t)size, type, mr);
}

static ncclResult_t coll_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
				       void **mr)
{
	(void)comm;
	return plugin_result(CALL(reg_mr_dmabuf, NULL, data, size, type, offset, fd, mr));
}

static ncclResult_t coll_dereg_mr(void *comm, void *mr)
{
	(void)comm;
	return plugin_result(CALL(dereg_mr, NULL, mr));
}

/* ---- collectives ---- */

static ncclResult_t coll_reduce_support(ncclDataType_t type, ncclRedOp_t op, int *supported)
{
	*supported = (unsigned)type < GANTRY_TYPE_COUNT && (unsigned)op <= GANTRY_OP_MIN;
	return ncclSuccess;
}

static ncclResult_t coll_iallreduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type,
				    ncclRedOp_t op, void *send_mr, void *recv_mr, void **request)
{
	struct reducer_request *q = NULL;
	gantry_result r = reducer_all_reduce(comm, send, recv, count, (uint32_t)type, (uint32_t)op, &q);

	(void)send_mr, (void)recv_mr;
	if (r == GANTRY_OK)
		*request = q;
	return plugin_result(r);
}

static ncclResult_t coll_iallreduce_int(void *comm, void *send, void *recv, int count, ncclDataType_t type,
					ncclRedOp_t op, void *send_mr, void *recv_mr, void **request)
{
	if (count < 0)
		return plugin_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
						 "invalid all-reduce: %d elements", count));
	return coll_iallreduce(comm, send, recv, (size_t)count, type, op, send_mr, recv_mr, request);
}

/* v8's parts have 32-bit sizes, v9's on 64-bit ones. */
enum { PARTS_MAX = 8 };
#define TAKE_PARTS(window, n, sges)                                                                                    \
	do {                                                                                                           \
		if ((n) < 1 || (n) > PARTS_MAX)                                                                        \
			FAIL(GANTRY_ERR_INVALID, "%d parts: expected 1 to %d", (n), PARTS_MAX);                        \
		for (int i_ = 0; i_ < (n); i_++)                                                                       \
			parts[i_] = (struct iovec){(sges)[i_].address, (sges)[i_].size};                               \
		(window).parts = parts;                                                                                \
		(window).nparts = (uint32_t)(n);                                                                       \
	} while (0)

#define DEFINE_WINDOWS(version)                                                                                        \
	static ncclResult_t coll_iallgather_##version(void *comm, void *send, int n, ncclNetSGE_##version##_t *sges,   \
						      size_t per_rank, size_t offset, size_t bytes, void *mr,          \
						      void **request)                                                  \
	{                                                                                                              \
		struct reducer_window w = {.own = send, .per_rank = per_rank, .offset = offset, .bytes = bytes};       \
		struct iovec parts[PARTS_MAX];                                                                         \
		struct reducer_request *q = NULL;                                                                      \
		gantry_result r;                                                                                       \
                                                                                                                       \
		(void)mr;                                                                                              \
		TAKE_PARTS(w, n, sges);                                                                                \
		TRY(reducer_all_gather(comm, &w, &q));                                                                 \
		*request = q;                                                                                          \
	out:                                                                                                           \
		return plugin_result(r);                                                                               \
	}                                                                                                              \
	static ncclResult_t coll_ireducescatter_##version(                                                             \
		void *comm, int n, ncclNetSGE_##version##_t *sges, void *recv, size_t per_rank, size_t offset,         \
		size_t bytes, ncclDataType_t type, ncclRedOp_t op, void *mr, void **request)                           \
	{                                                                                                              \
		struct reducer_window w = {.own = recv, .per_rank = per_rank, .offset = offset, .bytes = bytes};       \
		struct iovec parts[PARTS_MAX];                                                                         \
		struct reducer_request *q = NULL;                                                                      \
		gantry_result r;                                                                                       \
                                                                                                                       \
		(void)mr;                                                                                              \
		TAKE_PARTS(w, n, sges);                                                                                \
		TRY(reducer_reduce_scatter(comm, &w, (uint32_t)type, (uint32_t)op, &q));                               \
		*request = q;                                                                                          \
	out:                                                                                                           \
		return plugin_result(r);                                                                               \
	}
DEFINE_WINDOWS(v8)
DEFINE_WINDOWS(v9)

/* Host memory needs none. */
static ncclResult_t coll_iflush(void *comm, void *data, int size, void *mr, void **request)
{
	(void)comm, (void)data, (void)size, (void)mr;
	*request = NULL;
	return ncclSuccess;
}

static ncclResult_t coll_test(void *request, int *done, int *size)
{
	size_t bytes = 0;
	int d = 0;
	gantry_result r = reducer_test(request, &d, &bytes);

	if (r == GANTRY_OK) {
		*done = d;
		if (d && size)
			*size = bytes > INT_MAX ? INT_MAX : (int)bytes;
	}
	return plugin_result(r);
}

/* clang-format off */
#define SINCE_V6                                         \
	.name = "gantry",                                \
	.devices = coll_devices,                         \
	.connect = coll_connect,                         \
	.reduceSupport = coll_reduce_support,            \
	.regMrDmaBuf = coll_reg_mr_dmabuf,               \
	.deregMr = coll_dereg_mr,                        \
	.iflush = coll_iflush,                           \
	.test = coll_test,                               \
	.closeColl = coll_close,                         \
	.closeListen = coll_close_listen
#define UNTIL_V7                                         \
	SINCE_V6,                                        \
	.init = coll_init_v6,                            \
	.listen = coll_listen_v6,                        \
	.regMr = coll_reg_mr_int,                        \
	.iallreduce = coll_iallreduce_int
#define SINCE_V9                                         \
	SINCE_V6,                                        \
	.regMr = coll_reg_mr,                            \
	.iallreduce = coll_iallreduce,                   \
	.iallgather = coll_iallgather_v9,                \
	.ireducescatter = coll_ireducescatter_v9
#define V9_AND_V10                                       \
	SINCE_V9,                                        \
	.init = coll_init_v6,                            \
	.getProperties = coll_properties_v9,             \
	.listen = coll_listen_v6,                        \
	.makeVDevice = coll_make_vdevice_v9
#define SINCE_V11                                        \
	SINCE_V9,                                        \
	.init = coll_init_v11,                           \
	.listen = coll_listen_v11,                       \
	.finalize = coll_finalize

EXPORT const ncclCollNet_v6_t ncclCollNetPlugin_v6 = {UNTIL_V7, .getProperties = coll_properties_v6};
EXPORT const ncclCollNet_v7_t ncclCollNetPlugin_v7 = {UNTIL_V7, .getProperties = coll_properties_v7};
EXPORT const ncclCollNet_v8_t ncclCollNetPlugin_v8 = {
	SINCE_V6,
	.init = coll_init_v6,
	.getProperties = coll_properties_v8,
	.listen = coll_listen_v6,
	.regMr = coll_reg_mr,
	.iallreduce = coll_iallreduce_int,
	.iallgather = coll_iallgather_v8,
	.ireducescatter = coll_ireducescatter_v8,
};
EXPORT const ncclCollNet_v9_t ncclCollNetPlugin_v9 = {V9_AND_V10};
EXPORT const ncclCollNet_v10_t ncclCollNetPlugin_v10 = {V9_AND_V10};
EXPORT const ncclCollNet_v11_t ncclCollNetPlugin_v11 = {
	SINCE_V11, .getProperties = coll_properties_v11, .makeVDevice = coll_make_vdevice_v9};
EXPORT const ncclCollNet_v12_t ncclCollNetPlugin_v12 = {
	SINCE_V11, .getProperties = coll_properties_v12, .makeVDevice = coll_make_vdevice_v12};
/* clang-format on */
