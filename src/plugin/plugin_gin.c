/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GIN and RMA tables: thin, over src/rma. NCCL's proxy thread reads what kernels ask for from its own queues, and calls iput,
 * iputSignal, iget, iflush, test and progress here; regMrSym is called by all ranks in the same order, so memory has running numbers.
 *
 * NCCL hands contexts about in its own way: init's belongs to the library that was asked, connect gets that of another communicator, or
 * NULL, or the net table's. So the listener keeps the context it was made in, and connect looks at nothing else.
 *
 * Orders are rma.h's: each (collComm, context) has one of its own. v11 has one context, v12 a number of them ("connections"), from v13 on
 * createContext makes groups, whose contexts are counted through on all ranks alike. Signals are always ordered with all puts before them.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include <stdlib.h>

#include "abi/rma_v17.h"
#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "device/device.h"
#include "plugin/plugin_props.h"
#include "plugin/start.h"
#include "rma/rma.h"

#define EXPORT __attribute__((visibility("default")))
#define CALL(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

enum { GIN_MAX_RECVS = 8 }; /* NCCL keeps 32 requests to each peer and context for each of them */

struct gin_listener {
	void *net, *listen; /* net: borrowed; listen: owned */
	int dev;
};

struct gin_comm {
	struct rma_comm *rma;	      /* owned */
	struct gantry_device *device; /* owned; NULL: no GPU was current */
	uint32_t ncontexts;	      /* given to groups so far; relaxed */
};

struct gin_group {
	struct gin_comm *comm; /* borrowed */
	uint32_t first, n;     /* contexts */
};

/* ---- contexts ---- */

/*
 * With a GIN plugin NCCL makes its symmetric memory such that network cards could reach it, which fails where the GPU does not offer
 * that: then there must be none.
 */
static gantry_result check_wanted(void)
{
	char why[256];

	if (gantry_params()->gin == PARAM_GIN_OFF) {
		gantry_set_last_error("GIN: GANTRY_GIN=off");
		LOG_DEBUG(PLUGIN, "GIN: GANTRY_GIN=off, the tables are not used");
		return GANTRY_ERR_UNSUPPORTED;
	}
	if (gantry_params()->gin == PARAM_GIN_ON || gantry_device_cuda_offers_windows(why, sizeof(why)))
		return GANTRY_OK;
	LOG_INFO(PLUGIN, "GIN: off: %s (GANTRY_GIN=on overrides this)", why);
	gantry_set_last_error(why);
	return GANTRY_ERR_UNSUPPORTED;
}

static ncclResult_t gin_init(void **ctx, uint64_t comm_id, ncclDebugLogger_t log)
{
	/* Receives wait for messages at all times: ranks that close at the end are no error. */
	const struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF, .standing_receives = 1};
	gantry_result r;

	TRY(plugin_prepare(log));
	TRY(check_wanted());
	TRY(CALL(init, comm_id, &config, ctx));
out:
	return plugin_result(r);
}

static ncclResult_t gin_finalize(void *ctx)
{
	return plugin_result(ctx ? CALL(finalize, ctx) : GANTRY_OK);
}

static ncclResult_t gin_devices(int *ndev)
{
	return plugin_result(CALL(devices, ndev));
}

static void overlay_gin(struct gantry_net_properties *p)
{
	p->ptr_support = GANTRY_NET_PTR_HOST | (gantry_device_cuda_count(NULL, 0) ? GANTRY_NET_PTR_CUDA : 0);
	p->device_type = NCCL_NET_DEVICE_GIN_PROXY;
	p->device_version = NCCL_GIN_PROXY_VERSION;
	p->max_recvs = GIN_MAX_RECVS;
	p->reg_is_global = 0;
}

DEFINE_PROPERTIES(gin, v11, NET_PROPS_V11, FILL_DEVS, overlay_gin)
DEFINE_PROPERTIES(gin, v12, NET_PROPS_V12, FILL_DEVS, overlay_gin)

/* ---- connecting ---- */

static ncclResult_t gin_listen(void *ctx, int dev, void *handle, void **listen)
{
	gantry_result r = GANTRY_OK;
	struct gin_listener *l = NULL;

	if (!ctx)
		FAIL(GANTRY_ERR_USAGE, "listen was called without the context of an init that succeeded");
	l = calloc(1, sizeof(*l));
	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a listener");
	l->net = ctx;
	l->dev = dev;
	TRY(CALL(listen, ctx, dev, handle, &l->listen));
	*listen = l;
	l = NULL;
out:
	free(l);
	return plugin_result(r);
}

static ncclResult_t gin_close_listen(void *listen)
{
	struct gin_listener *l = listen;
	gantry_result r = l ? CALL(close_listen, l->listen) : GANTRY_OK;

	free(l);
	return plugin_result(r);
}

static gantry_result device_of_thread(struct gantry_device **ret_device)
{
	struct gantry_device *d = NULL;

	TRY_NOW(gantry_device_current(&d));
	if (d->kind == GANTRY_DEVICE_CUDA)
		*ret_device = d;
	else
		d->ops->close(d);
	return GANTRY_OK;
}

static void close_comm(struct gin_comm *c)
{
	if (!c)
		return;
	rma_close(c->rma);
	if (c->device)
		c->device->ops->close(c->device);
	free(c);
}

static gantry_result open_comm(const struct gin_listener *l, void *handles[], int nranks, int rank,
			       struct gin_comm **ret)
{
	struct rma_config config = {.ctx = l->net,
				    .listen = l->listen,
				    .dev = l->dev,
				    .ranks = nranks < 0 ? 0 : (uint32_t)nranks,
				    .rank = (uint32_t)rank,
				    .handles = (const void *const *)handles,
				    .timeout = gantry_params()->connect_timeout};
	gantry_result r = GANTRY_OK;
	struct gin_comm *c = calloc(1, sizeof(*c));

	if (!c)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a collComm");
	TRY(device_of_thread(&c->device));
	config.device = c->device;
	TRY(rma_open(&config, &c->rma));
	LOG_INFO(PLUGIN, "GIN: rank %d of %d, %s", rank, nranks, c->device ? c->device->name : "host memory only");
	*ret = c;
	c = NULL;
out:
	close_comm(c);
	return r;
}

static ncclResult_t gin_connect(void *ctx, void *handles[], int nranks, int rank, void *listen, void **comm)
{
	struct gin_comm *c = NULL;
	gantry_result r = open_comm(listen, handles, nranks, rank, &c);

	(void)ctx;
	if (r == GANTRY_OK)
		*comm = c;
	return plugin_result(r);
}

static ncclResult_t gin_connect_v12(void *ctx, void *handles[], int nranks, int rank, int nconnections, int depth,
				    void *listen, void **comm)
{
	(void)depth;
	if (nconnections < 1 || nconnections > RMA_CONTEXTS_MAX)
		return plugin_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
						 "%d connections: expected 1 to %d", nconnections, RMA_CONTEXTS_MAX));
	return gin_connect(ctx, handles, nranks, rank, listen, comm);
}

static ncclResult_t gin_close_coll(void *comm)
{
	close_comm(comm);
	return ncclSuccess;
}

/* ---- groups of contexts ---- */

/* Numbers come round again after RMA_CONTEXTS_MAX: two groups that share some have a stricter order than they need. */
static ncclResult_t make_group(struct gin_comm *c, int n, void **ret)
{
	gantry_result r = GANTRY_OK;
	struct gin_group *g = NULL;

	if (n < 1 || n > RMA_CONTEXTS_MAX)
		FAIL(GANTRY_ERR_INVALID, "%d contexts: expected 1 to %d", n, RMA_CONTEXTS_MAX);
	g = malloc(sizeof(*g));
	if (!g)
		FAIL(GANTRY_ERR_NOMEM, "no memory for contexts");
	*g = (struct gin_group){
		.comm = c, .first = fetch_add_relaxed(&c->ncontexts, (uint32_t)n) % RMA_CONTEXTS_MAX, .n = (uint32_t)n};
	*ret = g;
out:
	return plugin_result(r);
}

/* There is nothing for kernels: NCCL makes what they see. Its queues are its own, and traffic classes are the network's. */
static ncclResult_t gin_create_v11(void *comm, int nsignals, int ncounters, void **ctx,
				   ncclNetDeviceHandle_v11_t **handle)
{
	(void)nsignals, (void)ncounters;
	if (handle)
		*handle = NULL;
	return make_group(comm, 1, ctx);
}

static ncclResult_t gin_create_v12(void *comm, int nsignals, int ncounters, int n, void **ctx,
				   ncclNetDeviceHandle_v11_t **handle)
{
	(void)nsignals, (void)ncounters;
	if (handle)
		*handle = NULL;
	return make_group(comm, n, ctx);
}

static ncclResult_t gin_create_v13(void *comm, ncclGinConfig_v13_t *config, void **ctx,
				   ncclNetDeviceHandle_v11_t **handle)
{
	if (handle)
		*handle = NULL;
	return make_group(comm, config->nContexts, ctx);
}

static ncclResult_t rma_create_v14(void *comm, ncclRmaConfig_v14_t *config, void **ctx)
{
	return make_group(comm, config->nContexts, ctx);
}

static ncclResult_t rma_create_v17(void *comm, ncclRmaConfig_v17_t *config, void **ctx)
{
	return make_group(comm, config->nContexts, ctx);
}

static ncclResult_t gin_destroy(void *ctx)
{
	free(ctx);
	return ncclSuccess;
}

static ncclResult_t gin_query_error(void *ctx, bool *has_error)
{
	const struct gin_group *g = ctx;

	*has_error = rma_error(g->comm->rma, NULL, NULL) != GANTRY_OK;
	return ncclSuccess;
}

/* A signal of any kind orders the puts of its own context, to its own peer, and no others. */
static ncclResult_t rma_properties(void *comm, ncclRmaProperties_v16_t *props)
{
	(void)comm;
	props->flushesAllPutsOnAnySignal = false;
	return ncclSuccess;
}

/* ---- memory: a handle is the number ---- */

static ncclResult_t rma_reg(void *comm, void *data, size_t size, int type, uint64_t flags, void **mhandle)
{
	const struct gin_comm *c = comm;
	enum rma_kind kind = type == NCCL_PTR_CUDA ? RMA_DEVICE : RMA_HOST;
	gantry_result r = GANTRY_OK;
	uint32_t number;

	(void)flags;
	if (type != NCCL_PTR_HOST && type != NCCL_PTR_CUDA)
		FAIL(GANTRY_ERR_INVALID, "cannot register memory of type %d", type);
	TRY(rma_register(c->rma, data, size, kind, &number));
	*mhandle = (void *)(uintptr_t)number;
out:
	return plugin_result(r);
}

/* Copies go by the address; the file is not needed. */
static ncclResult_t rma_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
				   uint64_t flags, void **mhandle)
{
	(void)offset, (void)fd;
	return rma_reg(comm, data, size, type, flags, mhandle);
}

static ncclResult_t gin_reg(void *comm, void *data, size_t size, int type, uint64_t flags, void **mhandle,
			    void **ghandle)
{
	ncclResult_t r = rma_reg(comm, data, size, type, flags, mhandle);

	if (r == ncclSuccess)
		*ghandle = *mhandle;
	return r;
}

static ncclResult_t gin_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
				   uint64_t flags, void **mhandle, void **ghandle)
{
	(void)offset, (void)fd;
	return gin_reg(comm, data, size, type, flags, mhandle, ghandle);
}

static ncclResult_t gin_dereg(void *comm, void *mhandle)
{
	const struct gin_comm *c = comm;

	return plugin_result(rma_deregister(c->rma, (uint32_t)(uintptr_t)mhandle));
}

/* ---- requests ---- */

/* A handle that is no number of ours names no memory. */
static struct rma_place place_of(const void *mhandle, uint64_t offset)
{
	uintptr_t number = (uintptr_t)mhandle;

	return (struct rma_place){number <= UINT32_MAX ? (uint32_t)number : UINT32_MAX, offset};
}

struct gin_put {
	struct rma_to to;
	struct rma_place from, at;
	uint64_t bytes;
};

static ncclResult_t begin_put(const struct gin_comm *c, const struct gin_put *p, const struct rma_signal *signal,
			      void **request)
{
	struct rma_request *q = NULL;
	gantry_result r = rma_put(c->rma, p->to, p->from, p->at, p->bytes, signal, &q);

	if (r == GANTRY_OK)
		*request = q;
	return plugin_result(r);
}

static ncclResult_t begin_signal(const struct gin_comm *c, const struct gin_put *p, struct rma_place at, uint64_t value,
				 uint32_t op, void **request)
{
	const struct rma_signal signal = {at, op == NCCL_NET_SIGNAL_OP_INC ? 1 : value};

	if (op != NCCL_NET_SIGNAL_OP_INC && op != NCCL_NET_SIGNAL_OP_ADD)
		return plugin_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
						 "signal operation %u: expected 1 (increment) or 2 (add)", op));
	if (at.memory == RMA_NO_MEMORY)
		return plugin_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
						 "a signal without registered memory"));
	return begin_put(c, p, &signal, request);
}

/* A context outside its group is refused by its number. */
static struct rma_to to_of(const struct gin_group *g, int context, uint32_t rank)
{
	if (context < 0 || (uint32_t)context >= g->n)
		return (struct rma_to){rank, RMA_CONTEXTS_MAX};
	return (struct rma_to){rank, (g->first + (uint32_t)context) % RMA_CONTEXTS_MAX};
}

#define PUT(where) (&(struct gin_put){where, place_of(src_mr, src), place_of(dst_mr, dst), size})

static ncclResult_t gin_put_v12(void *comm, uint64_t src, void *src_mr, size_t size, uint64_t dst, void *dst_mr,
				uint32_t rank, int connection, void **request)
{
	return begin_put(comm, PUT(((struct rma_to){rank, (uint32_t)connection})), NULL, request);
}

static ncclResult_t gin_put_v11(void *comm, uint64_t src, void *src_mr, size_t size, uint64_t dst, void *dst_mr,
				uint32_t rank, void **request)
{
	return gin_put_v12(comm, src, src_mr, size, dst, dst_mr, rank, 0, request);
}

static ncclResult_t gin_put_v13(void *ctx, int context, uint64_t src, void *src_mr, size_t size, uint64_t dst,
				void *dst_mr, uint32_t rank, void **request)
{
	const struct gin_group *g = ctx;

	return begin_put(g->comm, PUT(to_of(g, context, rank)), NULL, request);
}

static ncclResult_t rma_put_v15(void *ctx, int context, uint64_t src, void *src_mr, size_t size, uint64_t dst,
				void *dst_mr, uint32_t rank, uint32_t flags, void **request)
{
	(void)flags;
	return gin_put_v13(ctx, context, src, src_mr, size, dst, dst_mr, rank, request);
}

static ncclResult_t gin_put_signal_v12(void *comm, uint64_t src, void *src_mr, size_t size, uint64_t dst, void *dst_mr,
				       uint32_t rank, uint64_t signal, void *signal_mr, uint64_t value, uint32_t op,
				       int connection, void **request)
{
	return begin_signal(comm, PUT(((struct rma_to){rank, (uint32_t)connection})), place_of(signal_mr, signal),
			    value, op, request);
}

static ncclResult_t gin_put_signal_v11(void *comm, uint64_t src, void *src_mr, size_t size, uint64_t dst, void *dst_mr,
				       uint32_t rank, uint64_t signal, void *signal_mr, uint64_t value, uint32_t op,
				       void **request)
{
	return gin_put_signal_v12(comm, src, src_mr, size, dst, dst_mr, rank, signal, signal_mr, value, op, 0, request);
}

static ncclResult_t gin_put_signal_v13(void *ctx, int context, uint64_t src, void *src_mr, size_t size, uint64_t dst,
				       void *dst_mr, uint32_t rank, uint64_t signal, void *signal_mr, uint64_t value,
				       uint32_t op, void **request)
{
	const struct gin_group *g = ctx;

	return begin_signal(g->comm, PUT(to_of(g, context, rank)), place_of(signal_mr, signal), value, op, request);
}

static ncclResult_t rma_put_signal_v14(void *ctx, int context, uint64_t src, void *src_mr, size_t size, uint64_t dst,
				       void *dst_mr, uint32_t rank, uint64_t signal, void *signal_mr, uint64_t value,
				       uint32_t op, bool strong, void **request)
{
	(void)strong;
	return gin_put_signal_v13(ctx, context, src, src_mr, size, dst, dst_mr, rank, signal, signal_mr, value, op,
				  request);
}

static ncclResult_t rma_put_signal_v15(void *ctx, int context, uint64_t src, void *src_mr, size_t size, uint64_t dst,
				       void *dst_mr, uint32_t rank, uint64_t signal, void *signal_mr, uint64_t value,
				       uint32_t op, bool strong, uint32_t flags, void **request)
{
	(void)strong, (void)flags;
	return gin_put_signal_v13(ctx, context, src, src_mr, size, dst, dst_mr, rank, signal, signal_mr, value, op,
				  request);
}

static ncclResult_t gin_get_v13(void *ctx, int context, uint64_t remote, void *remote_mr, size_t size, uint64_t local,
				void *local_mr, uint32_t rank, void **request)
{
	const struct gin_group *g = ctx;
	struct rma_request *q = NULL;
	gantry_result r = rma_get(g->comm->rma, to_of(g, context, rank), place_of(remote_mr, remote),
				  place_of(local_mr, local), size, &q);

	if (r == GANTRY_OK)
		*request = q;
	return plugin_result(r);
}

static ncclResult_t rma_get_v15(void *ctx, int context, uint64_t remote, void *remote_mr, size_t size, uint64_t local,
				void *local_mr, uint32_t rank, uint32_t flags, void **request)
{
	(void)flags;
	return gin_get_v13(ctx, context, remote, remote_mr, size, local, local_mr, rank, request);
}

static ncclResult_t gin_flush(void *ctx, int context, void *mhandle, uint32_t rank, void **request)
{
	const struct gin_group *g = ctx;
	struct rma_request *q = NULL;
	gantry_result r = rma_flush(g->comm->rma, to_of(g, context, rank), &q);

	(void)mhandle;
	if (r == GANTRY_OK)
		*request = q;
	return plugin_result(r);
}

static ncclResult_t gin_test(void *comm, void *request, int *done)
{
	int d = 0;
	gantry_result r = rma_test(request, &d);

	(void)comm;
	*done = r == GANTRY_OK && d;
	return plugin_result(r);
}

static ncclResult_t gin_progress_comm(void *comm)
{
	const struct gin_comm *c = comm;

	return plugin_result(rma_progress(c->rma));
}

static ncclResult_t gin_progress_group(void *ctx)
{
	const struct gin_group *g = ctx;

	return gin_progress_comm(g->comm);
}

/* clang-format off */
#define IN_ALL                                           \
	.name = "gantry",                                \
	.init = gin_init,                                \
	.devices = gin_devices,                          \
	.listen = gin_listen,                            \
	.deregMrSym = gin_dereg,                         \
	.destroyContext = gin_destroy,                   \
	.closeColl = gin_close_coll,                     \
	.closeListen = gin_close_listen,                 \
	.test = gin_test,                                \
	.queryLastError = gin_query_error,               \
	.finalize = gin_finalize
#define IN_GIN                                           \
	IN_ALL,                                          \
	.regMrSym = gin_reg,                             \
	.regMrSymDmaBuf = gin_reg_dmabuf
#define UNTIL_V12                                        \
	IN_GIN,                                          \
	.getProperties = gin_properties_v11,             \
	.ginProgress = gin_progress_comm
#define SINCE_V13                                        \
	.getProperties = gin_properties_v12,             \
	.connect = gin_connect,                          \
	.iflush = gin_flush
#define GIN_V13                                          \
	IN_GIN,                                          \
	SINCE_V13,                                       \
	.createContext = gin_create_v13,                 \
	.iput = gin_put_v13,                             \
	.iputSignal = gin_put_signal_v13,                \
	.iget = gin_get_v13,                             \
	.ginProgress = gin_progress_group
#define SINCE_RMA_V14                                    \
	IN_ALL,                                          \
	SINCE_V13,                                       \
	.regMrSym = rma_reg,                             \
	.regMrSymDmaBuf = rma_reg_dmabuf,                \
	.rmaProgress = gin_progress_group
#define SINCE_RMA_V15                                    \
	SINCE_RMA_V14,                                   \
	.iput = rma_put_v15,                             \
	.iputSignal = rma_put_signal_v15,                \
	.iget = rma_get_v15

EXPORT const ncclGin_v11_t ncclGinPlugin_v11 = {
	UNTIL_V12,
	.connect = gin_connect,
	.createContext = gin_create_v11,
	.iput = gin_put_v11,
	.iputSignal = gin_put_signal_v11,
};
EXPORT const ncclGin_v12_t ncclGinPlugin_v12 = {
	UNTIL_V12,
	.connect = gin_connect_v12,
	.createContext = gin_create_v12,
	.iput = gin_put_v12,
	.iputSignal = gin_put_signal_v12,
};
EXPORT const ncclGin_v13_t ncclGinPlugin_v13 = {GIN_V13};
EXPORT const ncclRma_v13_t ncclRmaPlugin_v13 = {GIN_V13};
EXPORT const ncclRma_v14_t ncclRmaPlugin_v14 = {
	SINCE_RMA_V14,
	.createContext = rma_create_v14,
	.iput = gin_put_v13,
	.iputSignal = rma_put_signal_v14,
	.iget = gin_get_v13,
};
EXPORT const ncclRma_v15_t ncclRmaPlugin_v15 = {SINCE_RMA_V15, .createContext = rma_create_v14};
EXPORT const ncclRma_v16_t ncclRmaPlugin_v16 = {
	SINCE_RMA_V15, .getRmaProperties = rma_properties, .createContext = rma_create_v14};
EXPORT const ncclRma_v17_t ncclRmaPlugin_v17 = {
	SINCE_RMA_V15, .getRmaProperties = rma_properties, .createContext = rma_create_v17};
/* clang-format on */
