/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's tables are thin: they translate versions, and nothing else. All of them end in gantry_net_tcp(), the one
 * versionless core. GANTRY_AGAIN never reaches NCCL, which would take any code but zero for a failure: where "not yet"
 * has a form of its own (a NULL comm or request, done == 0) it becomes that, elsewhere it is an internal error.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include <stdlib.h>
#include <string.h>

#include "abi/net_v12.h"
#include "abi/unpack.h"
#include "base/atomic.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "device/device.h"
#include "net/net.h"
#include "plugin/plugin_props.h"
#include "plugin/profiler.h"
#include "plugin/start.h"
#include "plugin/tune.h"

#define EXPORT __attribute__((visibility("default")))

_Static_assert(NCCL_NET_HANDLE_MAXSIZE == GANTRY_NET_HANDLE_SIZE, "the core fills NCCL's handle");
_Static_assert(NCCL_NET_MAX_DEVS_PER_NIC_V12 == GANTRY_NET_MAX_RAILS, "vProps of v12 are copied entry by entry");

/* NCCL's device handle is handed to the core as it is. */
#define SAME_PLACE(ours, nccls)                                                                                        \
	_Static_assert(offsetof(struct gantry_net_device_handle, ours) == offsetof(ncclNetDeviceHandle_v7_t, nccls),   \
		       "the core writes into NCCL's device handle: the layouts must be one")
SAME_PLACE(type, netDeviceType);
SAME_PLACE(version, netDeviceVersion);
SAME_PLACE(handle, handle);
SAME_PLACE(size, size);
SAME_PLACE(needs_proxy_progress, needsProxyProgress);
_Static_assert(sizeof(struct gantry_net_device_handle) == sizeof(ncclNetDeviceHandle_v7_t),
	       "the core writes into NCCL's device handle: the layouts must be one");

/* Calls an operation of the core. */
#define CALL(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

ncclResult_t plugin_result(gantry_result r)
{
	static const ncclResult_t codes[] = {
		[GANTRY_ERR_DEVICE] = ncclUnhandledCudaError, [GANTRY_ERR_SYSTEM] = ncclSystemError,
		[GANTRY_ERR_LIMIT] = ncclSystemError,	      [GANTRY_ERR_NOMEM] = ncclSystemError,
		[GANTRY_ERR_SIZE] = ncclInvalidUsage,	      [GANTRY_ERR_CONFIG] = ncclInvalidUsage,
		[GANTRY_ERR_SETTING] = ncclInvalidUsage,      [GANTRY_ERR_VERSION] = ncclInvalidUsage,
		[GANTRY_ERR_AUTH] = ncclInvalidUsage,	      [GANTRY_ERR_USAGE] = ncclInvalidUsage,
		[GANTRY_ERR_UNSUPPORTED] = ncclInvalidUsage,  [GANTRY_ERR_INVALID] = ncclInvalidArgument,
	};

	if (r == GANTRY_OK)
		return ncclSuccess;
	if (gantry_result_is_remote(r))
		return ncclRemoteError;
	if (r == GANTRY_AGAIN)
		LOG_ERROR(PLUGIN, "the core returned GANTRY_AGAIN from a call that cannot be retried");
	if ((unsigned)r < sizeof(codes) / sizeof(codes[0]) && codes[r] != ncclSuccess)
		return codes[r];
	return ncclInternalError; /* a bug, here or at the peer */
}

/*
 * Device type UNPACK: what the core has decided, for NCCL and for people.
 *
 * NCCL asks for properties by device, not by context, and looks at those of the first device only. So there is one
 * answer for the process: that of the newest context that could have it (they all ask for what GANTRY_UNPACK says).
 */

static int mode = GANTRY_NET_UNPACK_OFF; /* enum gantry_net_unpack; relaxed: init comes before properties */
static int logged_mode;			 /* atomic: 1 + mode of the last line */

/*
 * The network copies through the CUDA driver while NCCL's kernels wait for the bytes. A program that loads a kernel for
 * the first time meanwhile makes the driver, which has locked itself, wait for the GPU: then nothing moves any more. And NCCL
 * has a mind to take more channels for UNPACK, but does not (2.28).
 */
static void look_at_settings(void)
{
	const char *loading = getenv("CUDA_MODULE_LOADING"), *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");

	if (gantry_device_cuda_count(NULL, 0) == 0)
		return;
	if (!loading || strcmp(loading, "EAGER") != 0)
		LOG_WARN(PLUGIN, "UNPACK: set CUDA_MODULE_LOADING=EAGER for all ranks: loading a kernel while a "
				 "collective runs can deadlock both");
	if (queues && strcmp(queues, "1") == 0)
		LOG_WARN(PLUGIN, "UNPACK: CUDA_DEVICE_MAX_CONNECTIONS=1 makes copies queue behind the kernels that "
				 "wait for them: unset it, or set it to 16");
	if (!getenv("NCCL_NTHREADS") && !getenv("NCCL_MIN_NCHANNELS") && !getenv("NCCL_MIN_CTAS"))
		LOG_INFO(PLUGIN, "UNPACK: NCCL may use too few threads for unpacking: NCCL_MIN_NCHANNELS=8 "
				 "NCCL_NTHREADS=512 can make large messages faster");
}

static void note_unpack(void *ctx)
{
	static int looked, warned_of_pat;
	const char *pat = getenv("NCCL_PAT_ENABLE");
	char text[384];
	int now = gantry_net_tcp_unpack(ctx, text, sizeof(text));

	store_relaxed(&mode, now);
	plugin_tune(now);
	if (exchange_relaxed(&logged_mode, 1 + now) != 1 + now)
		LOG_INFO(PLUGIN, "UNPACK: %s", text);
	if (now == GANTRY_NET_UNPACK_OFF)
		return;
	if (!exchange_relaxed(&looked, 1))
		look_at_settings();
	if ((!pat || strcmp(pat, "0") != 0) && !exchange_relaxed(&warned_of_pat, 1))
		LOG_WARN(PLUGIN,
			 "UNPACK: NCCL's PAT algorithm does not unpack, and NCCL does not leave it out by itself: "
			 "set NCCL_PAT_ENABLE=0 for all ranks");
}

static void overlay_unpack(struct gantry_net_properties *p)
{
	int now = load_relaxed(&mode);

	if (now == GANTRY_NET_UNPACK_OFF)
		return;
	p->device_type = GANTRY_NET_DEVICE_UNPACK;
	p->device_version = GANTRY_UNPACK_VERSION;
	p->ptr_support |= GANTRY_NET_PTR_CUDA;
	if (now == GANTRY_NET_UNPACK_KERNEL)
		p->ptr_support |= GANTRY_NET_PTR_DMABUF;
	p->max_recvs = 1; /* else several connections would share one comm, and only the first would have the handle */
}

/*
 * init: parameters, NCCL's logger, contexts.
 *
 * From v11 on NCCL asks for one context per communicator and gives it back. v6 to v10 know none: they call init once or
 * more, never finalize, and v10 names a traffic class at connect. For them there is one context per traffic class for
 * the life of the process, made when it is first asked for. v9 and v10 have others than v6 to v8, which must not
 * unpack: NCCL does not mark which of their receives are LL or LL128, which the core must know.
 */

enum { MAX_TRAFFIC_CLASSES = 65 }; /* the 64 DSCP levels, and "undefined" */

MUTEX_KIND(plugin_shared_mu);
static struct plugin_shared_mu shared_mu;
static int nshared GUARDED_BY(plugin_shared_mu);
static struct {
	int traffic_class, unpack;
	void *ctx; /* owned, never ended: these versions have no finalize */
} shared[2 * MAX_TRAFFIC_CLASSES] GUARDED_BY(plugin_shared_mu);

/* Written by init, read by whichever thread logs: relaxed is enough, a function's code does not change. */
static ncclDebugLogger_t nccl_logger;

/*
 * NCCL filters warnings by subsystem too, and its default mask lacks NET: like
 * NCCL's own warnings, ours carry all flags. Lines of init carry INIT, which is in the mask.
 */
static void log_to_nccl(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
			const char *text)
{
	ncclDebugLogger_t log = load_relaxed(&nccl_logger);
	unsigned long flags = NCCL_NET;

	if (subsys == GANTRY_SUBSYS_PLUGIN || subsys == GANTRY_SUBSYS_BASE)
		flags |= NCCL_INIT;
	if (level <= GANTRY_LOG_WARN)
		log(NCCL_LOG_WARN, NCCL_ALL, file, line, "gantry: %s", text);
	else if (level == GANTRY_LOG_INFO)
		log(NCCL_LOG_INFO, flags, file, line, "gantry: %s", text);
	else
		log(NCCL_LOG_TRACE, flags, file, line, "gantry: %s", text);
}

/* The logger first, so that an invalid parameter is reported to the user. */
gantry_result plugin_prepare(ncclDebugLogger_t log)
{
	gantry_result r;

	if (log) {
		store_relaxed(&nccl_logger, log);
		gantry_log_set_sink(log_to_nccl);
	}
	r = gantry_params_load(0);
	/* A log file of Gantry's own, if the user asked for one, gets everything at its own level. */
	if (r == GANTRY_OK && *gantry_params()->log_file)
		gantry_log_set_sink(NULL);
	else if (r == GANTRY_OK && log)
		plugin_follow_nccl_debug();
	return r;
}

static ncclResult_t plugin_init(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
				ncclProfilerCallback_t profiler)
{
	struct gantry_net_config c = {
		.traffic_class = config ? config->trafficClass : GANTRY_NET_UNDEF,
		.unpack = GANTRY_NET_UNPACK_PARAM,
	};
	gantry_result r;

	TRY(plugin_prepare(log));
	TRY(CALL(init, comm_id, &c, ctx));
	plugin_profile_begin(profiler);
	note_unpack(*ctx);
out:
	return plugin_result(r);
}

static ncclResult_t plugin_set_attr(void *ctx, ncclNetAttr_v11_t *attr)
{
	struct gantry_net_attr a;

	memcpy(&a, attr, sizeof(a));
	return plugin_result(CALL(set_attr, ctx, &a));
}

static gantry_result shared_context(int traffic_class, int unpack, void **ret_ctx)
{
	struct gantry_net_config c = {.traffic_class = traffic_class, .unpack = unpack};
	gantry_result r = GANTRY_OK;
	void *ctx = NULL;
	int i;

	plugin_shared_mu_lock(&shared_mu);
	for (i = 0; i < nshared; i++)
		if (shared[i].traffic_class == traffic_class && shared[i].unpack == unpack)
			break;
	if (i == 2 * MAX_TRAFFIC_CLASSES)
		FAIL(GANTRY_ERR_LIMIT, "traffic class %d exceeds the limit of %d per process", traffic_class,
		     MAX_TRAFFIC_CLASSES - 1);
	if (i == nshared) {
		TRY(CALL(init, 0, &c, &ctx));
		if (unpack != GANTRY_NET_UNPACK_OFF)
			note_unpack(ctx);
		else
			plugin_tune(GANTRY_NET_UNPACK_OFF);
		shared[i].traffic_class = traffic_class;
		shared[i].unpack = unpack;
		shared[i].ctx = ctx;
		nshared++;
	}
	*ret_ctx = shared[i].ctx;
out:
	plugin_shared_mu_unlock(&shared_mu);
	return r;
}

static ncclResult_t init_shared(ncclDebugLogger_t log, int unpack)
{
	gantry_result r;
	void *ctx;

	TRY(plugin_prepare(log));
	TRY(shared_context(GANTRY_NET_UNDEF, unpack, &ctx));
out:
	return plugin_result(r);
}

/* Properties, from the core's form to each version's. */

DEFINE_PROPERTIES(plugin, v6, NET_PROPS_V6, , (void))
DEFINE_PROPERTIES(plugin, v7, NET_PROPS_V7, , (void))
DEFINE_PROPERTIES(plugin, v8, NET_PROPS_V8, , (void))
DEFINE_PROPERTIES(plugin, v9, NET_PROPS_V9, FILL_DEVS, overlay_unpack)
DEFINE_PROPERTIES(plugin, v11, NET_PROPS_V11, FILL_DEVS, overlay_unpack)
DEFINE_PROPERTIES(plugin, v12, NET_PROPS_V12, FILL_DEVS, overlay_unpack)

/* Entries whose signature outlived several versions: straight calls into the core. */

#define PASS(entry, parameters, ...)                                                                                   \
	static ncclResult_t plugin_##entry parameters                                                                  \
	{                                                                                                              \
		return plugin_result(CALL(entry, __VA_ARGS__));                                                        \
	}
PASS(devices, (int *ndev), ndev)
PASS(listen, (void *ctx, int dev, void *handle, void **listen), ctx, dev, handle, listen)
PASS(close_send, (void *comm), comm)
PASS(close_recv, (void *comm), comm)
PASS(close_listen, (void *listen), listen)
PASS(reg_mr, (void *comm, void *data, size_t size, int type, void **mr), comm, data, size, type, mr)
PASS(reg_mr_dmabuf, (void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mr), comm, data,
     size, type, offset, fd, mr)
PASS(dereg_mr, (void *comm, void *mr), comm, mr)
PASS(get_device_mr, (void *comm, void *mr, void **dptr), comm, mr, dptr)
PASS(irecv_consumed, (void *comm, int n, void *request), comm, n, request)
PASS(finalize, (void *ctx), ctx)

/*
 * Calls that may say "not yet": the core does so by success with a NULL comm or request, and "again" means the same.
 * `from` is what the core finds in the place of its result.
 */
#define PASS_LATER(entry, parameters, ret, from, ...)                                                                  \
	static ncclResult_t plugin_##entry parameters                                                                  \
	{                                                                                                              \
		void *value = (from);                                                                                  \
		gantry_result r = CALL(entry, __VA_ARGS__);                                                            \
                                                                                                                       \
		if (r == GANTRY_OK || r == GANTRY_AGAIN)                                                               \
			*(ret) = r == GANTRY_OK ? value : NULL;                                                        \
		return plugin_result(r == GANTRY_AGAIN ? GANTRY_OK : r);                                               \
	}
PASS_LATER(connect, (void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v7_t **dev_handle), comm, NULL,
	   ctx, dev, handle, &value, (struct gantry_net_device_handle **)dev_handle)
PASS_LATER(accept, (void *listen, void **comm, ncclNetDeviceHandle_v7_t **dev_handle), comm, NULL, listen, &value,
	   (struct gantry_net_device_handle **)dev_handle)
PASS_LATER(isend, (void *comm, void *data, size_t size, int tag, void *mr, void **request), request, NULL, comm, data,
	   size, tag, mr, &value)
/* *request is a hint on entry, but only that one value: else it is whatever NCCL left there. */
PASS_LATER(irecv, (void *comm, int n, void **data, size_t *sizes, int *tags, void **mrs, void **request), request,
	   *request == GANTRY_NET_OPTIONAL_RECV_COMPLETION ? *request : NULL, comm, n, data, sizes, tags, mrs, &value)
PASS_LATER(iflush, (void *comm, int n, void **data, int *sizes, void **mrs, void **request), request, NULL, comm, n,
	   data, sizes, mrs, &value)

static ncclResult_t plugin_test(void *request, int *done, int *sizes)
{
	struct plugin_profile_events events = {0};
	int d = 0;
	gantry_result r;

	if (request && load_relaxed(&plugin_profiled))
		plugin_profile_take(request, &events);
	r = CALL(test, request, &d, sizes);
	if (r == GANTRY_OK || r == GANTRY_AGAIN)
		*done = r == GANTRY_OK && d;
	if (events.n && d)
		plugin_profile_done(&events);
	return plugin_result(r == GANTRY_AGAIN ? GANTRY_OK : r);
}

static ncclResult_t plugin_make_vdevice(int *dev, int ndevs, const int *devs, int max)
{
	struct gantry_net_vdevice v = {.ndevs = ndevs};
	gantry_result r;

	if (ndevs < 1 || ndevs > max)
		FAIL(GANTRY_ERR_INVALID, "cannot fuse %d devices: expected 1 to %d", ndevs, max);
	for (int i = 0; i < ndevs; i++)
		v.devs[i] = devs[i];
	TRY(CALL(make_vdevice, &v, dev));
out:
	return plugin_result(r);
}

/* What only some versions have, as an entry of theirs in terms of the others. */
#define ADAPT(name, parameters, ...)                                                                                   \
	static ncclResult_t name parameters                                                                            \
	{                                                                                                              \
		return __VA_ARGS__;                                                                                    \
	}

/* v6 to v8: sizes are int. */
static ncclResult_t refuse_size(const char *what, int size)
{
	return plugin_result(
		gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__, "%s of %d bytes", what, size));
}

ADAPT(reg_mr_int, (void *comm, void *data, int size, int type, void **mr),
      size < 0 ? refuse_size("a registration", size) : plugin_reg_mr(comm, data, (size_t)size, type, mr))
ADAPT(isend_int, (void *comm, void *data, int size, int tag, void *mr, void **request),
      size < 0 ? refuse_size("a send", size) : plugin_isend(comm, data, (size_t)size, tag, mr, request))

static ncclResult_t irecv_int(void *comm, int n, void **data, int *sizes, int *tags, void **mrs, void **request)
{
	size_t wide[GANTRY_NET_MAX_RECVS];
	gantry_result r;

	if (n < 1 || n > GANTRY_NET_MAX_RECVS)
		FAIL(GANTRY_ERR_INVALID, "receive of %d buffers: expected 1 to %d", n, GANTRY_NET_MAX_RECVS);
	for (int i = 0; i < n; i++) {
		if (sizes[i] < 0)
			return refuse_size("a receive", sizes[i]);
		wide[i] = (size_t)sizes[i];
	}
	*request = NULL; /* no hint before v9 */
	return plugin_irecv(comm, n, data, wide, tags, mrs, request);
out:
	return plugin_result(r);
}

/* v6 to v10: no context. v10's configuration comes with connect. */
static ncclResult_t listen_in(int unpack, int dev, void *handle, void **listen)
{
	void *ctx;
	gantry_result r = shared_context(GANTRY_NET_UNDEF, unpack, &ctx);

	return r ? plugin_result(r) : plugin_listen(ctx, dev, handle, listen);
}

static ncclResult_t connect_in(int unpack, int traffic_class, int dev, void *handle, void **comm,
			       ncclNetDeviceHandle_v7_t **dev_handle)
{
	void *ctx;
	gantry_result r = shared_context(traffic_class, unpack, &ctx);

	return r ? plugin_result(r) : plugin_connect(ctx, dev, handle, comm, dev_handle);
}

#define NO_HANDLE (&(ncclNetDeviceHandle_v7_t *){NULL}) /* v6: no device handles */
ADAPT(init_v6, (ncclDebugLogger_t log), init_shared(log, GANTRY_NET_UNPACK_OFF))
ADAPT(listen_v6, (int dev, void *handle, void **listen), listen_in(GANTRY_NET_UNPACK_OFF, dev, handle, listen))
ADAPT(connect_v6, (int dev, void *handle, void **comm),
      connect_in(GANTRY_NET_UNPACK_OFF, GANTRY_NET_UNDEF, dev, handle, comm, NO_HANDLE))
ADAPT(accept_v6, (void *listen, void **comm), plugin_accept(listen, comm, NO_HANDLE))
ADAPT(connect_v7, (int dev, void *handle, void **comm, ncclNetDeviceHandle_v7_t **dev_handle),
      connect_in(GANTRY_NET_UNPACK_OFF, GANTRY_NET_UNDEF, dev, handle, comm, dev_handle))
ADAPT(init_v9, (ncclDebugLogger_t log), init_shared(log, GANTRY_NET_UNPACK_PARAM))
ADAPT(listen_v9, (int dev, void *handle, void **listen), listen_in(GANTRY_NET_UNPACK_PARAM, dev, handle, listen))
ADAPT(connect_v9, (int dev, void *handle, void **comm, ncclNetDeviceHandle_v7_t **dev_handle),
      connect_in(GANTRY_NET_UNPACK_PARAM, GANTRY_NET_UNDEF, dev, handle, comm, dev_handle))
ADAPT(make_vdevice_v9, (int *dev, ncclNetVDeviceProps_v9_t *props),
      plugin_make_vdevice(dev, props->ndevs, props->devs, NCCL_NET_MAX_DEVS_PER_NIC_V9))
ADAPT(make_vdevice_v12, (int *dev, ncclNetVDeviceProps_v12_t *props),
      plugin_make_vdevice(dev, props->ndevs, props->devs, NCCL_NET_MAX_DEVS_PER_NIC_V12))
ADAPT(connect_v10,
      (int dev, ncclNetCommConfig_v10_t *config, void *handle, void **comm, ncclNetDeviceHandle_v7_t **dev_handle),
      connect_in(GANTRY_NET_UNPACK_PARAM, config ? config->trafficClass : GANTRY_NET_UNDEF, dev, handle, comm,
		 dev_handle))

/* v10 on: NCCL's profiler, with handles of the steps that messages belong to. */
static ncclResult_t init_v10(ncclDebugLogger_t log, ncclProfilerCallback_t profiler)
{
	ncclResult_t r = init_v9(log);

	if (r == ncclSuccess)
		plugin_profile_begin(profiler);
	return r;
}

static ncclResult_t isend_v10(void *comm, void *data, size_t size, int tag, void *mr, void *phandle, void **request)
{
	ncclResult_t r = plugin_isend(comm, data, size, tag, mr, request);

	if (load_relaxed(&plugin_profiled) && r == ncclSuccess && *request)
		plugin_profile_posted(*request, 1, &phandle);
	return r;
}

static ncclResult_t irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mrs, void **phandles,
			      void **request)
{
	ncclResult_t r = plugin_irecv(comm, n, data, sizes, tags, mrs, request);

	if (load_relaxed(&plugin_profiled) && r == ncclSuccess && *request)
		plugin_profile_posted(*request, n, phandles);
	return r;
}

/* clang-format off */
#define SINCE_V6                                         \
	.name = "gantry",                                \
	.devices = plugin_devices,                       \
	.regMrDmaBuf = plugin_reg_mr_dmabuf,             \
	.deregMr = plugin_dereg_mr,                      \
	.iflush = plugin_iflush,                         \
	.test = plugin_test,                             \
	.closeSend = plugin_close_send,                  \
	.closeRecv = plugin_close_recv,                  \
	.closeListen = plugin_close_listen
#define SINCE_V7                                         \
	SINCE_V6,                                        \
	.accept = plugin_accept,                         \
	.getDeviceMr = plugin_get_device_mr,             \
	.irecvConsumed = plugin_irecv_consumed
#define SINCE_V8                                         \
	SINCE_V7,                                        \
	.regMr = plugin_reg_mr
#define SINCE_V10                                        \
	SINCE_V8,                                        \
	.isend = isend_v10,                              \
	.irecv = irecv_v10
#define SINCE_V11                                        \
	SINCE_V10,                                       \
	.init = plugin_init,                             \
	.listen = plugin_listen,                         \
	.connect = plugin_connect,                       \
	.finalize = plugin_finalize,                     \
	.setNetAttr = plugin_set_attr
/* clang-format on */

EXPORT const ncclNet_v6_t ncclNetPlugin_v6 = {
	SINCE_V6,
	.init = init_v6,
	.getProperties = plugin_properties_v6,
	.listen = listen_v6,
	.connect = connect_v6,
	.accept = accept_v6,
	.regMr = reg_mr_int,
	.isend = isend_int,
	.irecv = irecv_int,
};

EXPORT const ncclNet_v7_t ncclNetPlugin_v7 = {
	SINCE_V7,
	.init = init_v6,
	.getProperties = plugin_properties_v7,
	.listen = listen_v6,
	.connect = connect_v7,
	.regMr = reg_mr_int,
	.isend = isend_int,
	.irecv = irecv_int,
};

EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
	SINCE_V8,
	.init = init_v6,
	.getProperties = plugin_properties_v8,
	.listen = listen_v6,
	.connect = connect_v7,
	.isend = isend_int,
	.irecv = irecv_int,
};

EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = {
	SINCE_V8,
	.init = init_v9,
	.getProperties = plugin_properties_v9,
	.listen = listen_v9,
	.connect = connect_v9,
	.isend = plugin_isend,
	.irecv = plugin_irecv,
	.makeVDevice = make_vdevice_v9,
};

EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = {
	SINCE_V10,	     .init = init_v10,	     .getProperties = plugin_properties_v9,
	.listen = listen_v9, .connect = connect_v10, .makeVDevice = make_vdevice_v9,
};

EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
	SINCE_V11,
	.getProperties = plugin_properties_v11,
	.makeVDevice = make_vdevice_v9,
};

EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {
	SINCE_V11,
	.getProperties = plugin_properties_v12,
	.makeVDevice = make_vdevice_v12,
};
