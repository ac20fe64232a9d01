/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One plugin table of any version, behind net.h.
 *
 * Three facts about NCCL's tables make this short. Entries are only ever appended, so one list of names serves all
 * versions. An entry that kept its signature is called through v12's type, whatever version it came from. And what a
 * version lacks is NULL in the copy, as if the plugin had left it out. So there is one table of operations for all
 * versions, and those whose signature changed look at the version:
 *
 *   v6        sizes of messages and registrations are int, no hint to irecv, no fused devices, no context
 *   v7        device handles
 *   v8        size_t for registrations
 *   v9        size_t for messages, the hint, fused devices
 *   v10       a configuration at connect, profiler handles
 *   v11, v12  a context per communicator, attributes; v12 has larger fused devices
 */
#define LOG_SUBSYS GANTRY_SUBSYS_LOADER
#include "net/compat.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/text.h"
#include "net/loader.h"
#include "net/plugin_events.h"
#include "net/props.h"

MUTEX_KIND(compat_mu);

enum { EVENTS_SINCE = 10 };

#define EACH_VERSION(X) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define TABLE_MEMBER(version) ncclNet_v##version##_t v##version;
#define TABLE_SIZE(version) sizeof(ncclNet_v##version##_t),

struct gantry_compat {
	struct gantry_net net; /* net.impl is this object */
	union {		       /* copy of the plugin's table, zero beyond its end; written by init_net alone */
		EACH_VERSION(TABLE_MEMBER)
	} t;
	const void *table; /* borrowed from the library */
	const char *label; /* borrowed from the loader: the library's file name, for messages */
	ncclDebugLogger_t logger;
	const struct gantry_net_nccl *nccl; /* borrowed; see gantry_compat_as_nccl */
	struct compat_mu mu;
	int initialised GUARDED_BY(compat_mu); /* init has succeeded, and t is the table that it left */
};

/* What init returns. The configuration stays in place as long as the context: a plugin may keep the pointer. */
struct compat_ctx {
	void *ctx; /* the plugin's, from v11 on */
	ncclNetCommConfig_v11_t config;
};

/*
 * All entries in the order of every version's table. Those that NCCL calls without a look must be there once init has
 * returned: a plugin may fill its table then, and NCCL takes the entries after it. The others become "unsupported", or
 * success where nothing is to be done without it (iflush, getDeviceMr, irecvConsumed, finalize, setNetAttr).
 */
static const struct {
	const char *name;
	int required;
} entries[] = {
	{"name", 1},	  {"init", 1},	      {"devices", 1},	  {"getProperties", 1}, {"listen", 1},
	{"connect", 1},	  {"accept", 1},      {"regMr", 1},	  {"regMrDmaBuf", 0},	{"deregMr", 1},
	{"isend", 1},	  {"irecv", 1},	      {"iflush", 0},	  {"test", 1},		{"closeSend", 1},
	{"closeRecv", 1}, {"closeListen", 1}, {"getDeviceMr", 0}, {"irecvConsumed", 0}, {"makeVDevice", 0},
	{"finalize", 0},  {"setNetAttr", 0},
};
_Static_assert(sizeof(entries) / sizeof(entries[0]) == sizeof(ncclNet_v12_t) / sizeof(void *), "one name per entry");

#define SAME_PLACE(entry)                                                                                              \
	_Static_assert(offsetof(ncclNet_v6_t, entry) == offsetof(ncclNet_v12_t, entry),                                \
		       "an old table's " #entry " is called through v12's type")
SAME_PLACE(devices);
SAME_PLACE(regMrDmaBuf);
SAME_PLACE(deregMr);
SAME_PLACE(iflush);
SAME_PLACE(test);
SAME_PLACE(closeListen);

static const size_t table_sizes[] = {EACH_VERSION(TABLE_SIZE)};
_Static_assert(sizeof(table_sizes) / sizeof(table_sizes[0]) == GANTRY_NET_VERSION_MAX - GANTRY_NET_VERSION_MIN + 1,
	       "a size per version");

gantry_result gantry_compat_result(const char *label, const char *call, ncclResult_t nr)
{
	static const struct {
		const char *name;
		gantry_result result;
	} known[] = {
		[ncclSuccess] = {"ncclSuccess", GANTRY_OK},
		[ncclUnhandledCudaError] = {"ncclUnhandledCudaError", GANTRY_ERR_DEVICE},
		[ncclSystemError] = {"ncclSystemError", GANTRY_ERR_SYSTEM},
		[ncclInternalError] = {"ncclInternalError", GANTRY_ERR_INTERNAL},
		[ncclInvalidArgument] = {"ncclInvalidArgument", GANTRY_ERR_INVALID},
		[ncclInvalidUsage] = {"ncclInvalidUsage", GANTRY_ERR_USAGE},
		[ncclRemoteError] = {"ncclRemoteError", GANTRY_ERR_PEER_LOST},
		[ncclInProgress] = {"ncclInProgress", GANTRY_AGAIN},
	};
	unsigned int i = (unsigned int)nr; /* a foreign number: it may be anything */
	int is_known = i < sizeof(known) / sizeof(known[0]);
	gantry_result r = is_known ? known[i].result : GANTRY_ERR_INTERNAL;

	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		FAIL_NOW(r, "%s: %s gave %s (%d)", label, call, is_known ? known[i].name : "an unknown result",
			 (int)nr);
	return r;
}

static gantry_result result_of(const struct gantry_compat *c, const char *call, ncclResult_t nr)
{
	return gantry_compat_result(c->label, call, nr);
}

/* Calls an entry that is there, by the type of a version. */
#define CALL(c, version, entry, ...) result_of((c), #entry, (c)->t.version.entry(__VA_ARGS__))
/* For entries that a plugin may leave out. */
#define NEED(c, entry)                                                                                                 \
	do {                                                                                                           \
		if (!(c)->t.v12.entry)                                                                                 \
			FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s: the plugin has no " #entry " (v%d)", (c)->label,         \
				 (c)->net.version);                                                                    \
	} while (0)
/* A variable for a result as NCCL leaves it: for `gantry check` uninitialised, a value that can be recognised. */
#define UNWRITTEN(c, value) memset(&(value), (c)->nccl ? GANTRY_NET_UNWRITTEN : 0, sizeof(value))
/* The end of an operation with a pointer as its result, which is written only on success. */
#define RETURN_WITH(ret, value)                                                                                        \
	do {                                                                                                           \
		if (r == GANTRY_OK)                                                                                    \
			*(ret) = (value);                                                                              \
		return r;                                                                                              \
	} while (0)

/* Operations that are one entry of every version, called as it is: with a result of a type, or without one. */
#define LIST(...) __VA_ARGS__
#define PASS(op, parameters, entry, ...)                                                                               \
	static gantry_result compat_##op(struct gantry_net *net, LIST parameters)                                      \
	{                                                                                                              \
		return CALL((struct gantry_compat *)net->impl, v12, entry, __VA_ARGS__);                               \
	}
#define PASS_WITH(op, parameters, entry, type, ret, result, ...)                                                       \
	static gantry_result compat_##op(struct gantry_net *net, LIST parameters)                                      \
	{                                                                                                              \
		struct gantry_compat *c = net->impl;                                                                   \
		gantry_result r;                                                                                       \
		type value = 0;                                                                                        \
                                                                                                                       \
		NEED(c, entry);                                                                                        \
		r = CALL(c, v12, entry, __VA_ARGS__);                                                                  \
		RETURN_WITH(ret, result);                                                                              \
	}
PASS(close_send, (void *comm), closeSend, comm)
PASS(close_recv, (void *comm), closeRecv, comm)
PASS(close_listen, (void *listen), closeListen, listen)

/* NULL is a registration for some plugins, NCCL's Socket among them, and none for the callers here. */
static char null_mr;

static void *mr_of_plugin(void *mr)
{
	return mr ? mr : &null_mr;
}

static void *mr_for_plugin(void *mr)
{
	return mr == &null_mr ? NULL : mr;
}

PASS(dereg_mr, (void *comm, void *mr), deregMr, comm, mr_for_plugin(mr))
PASS_WITH(reg_mr_dmabuf, (void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **ret_mr),
	  regMrDmaBuf, void *, ret_mr, mr_of_plugin(value), comm, data, size, type, offset, fd, &value)

/* NCCL does without where a plugin has none. */
static gantry_result compat_get_device_mr(struct gantry_net *net, void *comm, void *mr, void **ret_dptr)
{
	struct gantry_compat *c = net->impl;
	void *value = NULL;
	gantry_result r = GANTRY_OK;

	if (c->t.v12.getDeviceMr)
		r = CALL(c, v12, getDeviceMr, comm, mr_for_plugin(mr), &value);
	RETURN_WITH(ret_dptr, value);
}

static gantry_result compat_devices(struct gantry_net *net, int *ret_count)
{
	struct gantry_compat *c = net->impl;
	gantry_result r;
	int n;

	UNWRITTEN(c, n);
	r = CALL(c, v12, devices, &n);
	RETURN_WITH(ret_count, n);
}

static gantry_result compat_test(struct gantry_net *net, void *request, int *ret_done, int *sizes)
{
	struct gantry_compat *c = net->impl;
	gantry_result r;
	int done;

	UNWRITTEN(c, done);
	r = CALL(c, v12, test, request, &done, sizes);
	RETURN_WITH(ret_done, done);
}

/* One without iflush has nothing to flush: what test calls done is there. */
static gantry_result compat_iflush(struct gantry_net *net, void *comm, int n, void **data, const int *sizes, void **mrs,
				   void **ret_request)
{
	struct gantry_compat *c = net->impl;
	void *value = NULL, *handles[GANTRY_NET_MAX_RECVS];
	gantry_result r = GANTRY_OK;

	ASSERT(n <= GANTRY_NET_MAX_RECVS);
	for (int i = 0; i < n; i++)
		handles[i] = mr_for_plugin(mrs[i]);
	if (c->t.v12.iflush)
		r = CALL(c, v12, iflush, comm, n, data, (int *)sizes, handles, &value);
	RETURN_WITH(ret_request, value);
}

/* As NCCL's without a profiler plugin: there is always one, and plugins call it without a look. */
static ncclResult_t no_profiler(void **event, int type, void *phandle, int64_t plugin_id, void *ext_data)
{
	(void)event, (void)type, (void)phandle, (void)plugin_id, (void)ext_data;
	return ncclSuccess;
}

static gantry_result check_entries(const struct gantry_compat *c)
{
	size_t size = table_sizes[c->net.version - GANTRY_NET_VERSION_MIN];
	char missing[256] = "";

	for (size_t i = 0; i < size / sizeof(void *); i++) {
		void *entry;

		memcpy(&entry, (const char *)c->table + i * sizeof(void *), sizeof(entry));
		if (!entry && entries[i].required)
			gantry_text_add(missing, sizeof(missing), " %s", entries[i].name);
	}
	if (*missing)
		FAIL_NOW(GANTRY_ERR_CONFIG, "%s: ncclNetPlugin_v%d lacks functions that NCCL always calls:%s", c->label,
			 c->net.version, missing);
	return GANTRY_OK;
}

/* Up to v10 a plugin knows no communicators: NCCL calls init once for each time that it opens the library, and has
 * nothing to call for the end. */
static gantry_result init_net(struct gantry_compat *c, uint64_t comm_id, struct compat_ctx *ctx) REQUIRES(compat_mu)
{
	ncclProfilerCallback_t profiler = !c->nccl	      ? gantry_plugin_event
					  : c->nccl->profiler ? c->nccl->profiler
							      : no_profiler;
	int v = c->net.version;

	if (v >= 11)
		TRY_NOW(CALL(c, v11, init, &ctx->ctx, comm_id, &ctx->config, c->logger, profiler));
	else if (v == 10 && !c->initialised)
		TRY_NOW(CALL(c, v10, init, c->logger, profiler));
	else if (!c->initialised)
		TRY_NOW(CALL(c, v6, init, c->logger));
	if (c->initialised)
		return GANTRY_OK;
	TRY_NOW(check_entries(c));
	memcpy(&c->t, c->table, table_sizes[v - GANTRY_NET_VERSION_MIN]);
	c->initialised = 1;
	return GANTRY_OK;
}

static gantry_result compat_init(struct gantry_net *net, uint64_t comm_id, const struct gantry_net_config *config,
				 void **ret_ctx)
{
	struct gantry_compat *c = net->impl;
	struct compat_ctx *ctx = calloc(1, sizeof(*ctx));
	gantry_result r = GANTRY_OK;

	if (!ctx)
		FAIL(GANTRY_ERR_NOMEM, "%s: no memory for a context", c->label);
	ctx->config.trafficClass = config ? config->traffic_class : NCCL_NET_TRAFFIC_CLASS_UNDEF;
	compat_mu_lock(&c->mu);
	r = init_net(c, comm_id, ctx);
	compat_mu_unlock(&c->mu);
	if (r != GANTRY_OK)
		goto out;
	*ret_ctx = ctx;
	ctx = NULL;
out:
	free(ctx);
	return r;
}

/* Whatever the plugin says, the context is gone. */
static gantry_result compat_finalize(struct gantry_net *net, void *arg)
{
	struct gantry_compat *c = net->impl;
	struct compat_ctx *ctx = arg;
	gantry_result r = GANTRY_OK;

	if (!ctx)
		return r;
	if (net->version >= 11 && c->t.v11.finalize)
		r = CALL(c, v11, finalize, ctx->ctx);
	free(ctx);
	return r;
}

static gantry_result need_ctx(const struct gantry_compat *c, const void *ctx, const char *call)
{
	if (!ctx)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: %s was called without a context from init", c->label, call);
	return GANTRY_OK;
}

/* Attributes are hints: a plugin that cannot hear them is not at fault. */
static gantry_result compat_set_attr(struct gantry_net *net, void *arg, const struct gantry_net_attr *attr)
{
	struct gantry_compat *c = net->impl;
	struct compat_ctx *ctx = arg;
	ncclNetAttr_v11_t a;

	if (net->version < 11)
		return GANTRY_OK;
	memcpy(&a, attr, sizeof(a));
	TRY_NOW(need_ctx(c, ctx, "setNetAttr"));
	return c->t.v11.setNetAttr ? CALL(c, v11, setNetAttr, ctx->ctx, &a) : GANTRY_OK;
}

/* A foreign count: never more than there is room for, and a device is at least itself. */
static void take_devs(struct gantry_net_vdevice *to, int ndevs, const int *devs, int max)
{
	int n = ndevs < max ? ndevs : max;

	if (n < 1)
		return;
	to->ndevs = n;
	for (int i = 0; i < n; i++)
		to->devs[i] = devs[i];
}

#define TAKE(ours, nccls) props.ours = p.nccls;
#define TAKE_DEVS take_devs(&props.vdev, p.vProps.ndevs, p.vProps.devs, (int)(sizeof(p.vProps.devs) / sizeof(int)))
#define ASK_PROPERTIES(version, list, devs)                                                                            \
	case version: {                                                                                                \
		ncclNetProperties_v##version##_t p;                                                                    \
                                                                                                                       \
		UNWRITTEN(c, p);                                                                                       \
		TRY_NOW(CALL(c, v##version, getProperties, dev, &p));                                                  \
		props.name = p.name ? p.name : "";                                                                     \
		props.pci_path = p.pciPath;                                                                            \
		list(TAKE) devs;                                                                                       \
		break;                                                                                                 \
	}

/* A field that the version lacks is what NCCL assumes then. */
static gantry_result compat_get_properties(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props)
{
	struct gantry_compat *c = net->impl;
	struct gantry_net_properties props = {
		.device_type = GANTRY_NET_DEVICE_HOST,
		.device_version = NCCL_NET_DEVICE_INVALID_VERSION,
		.vdev = {.ndevs = 1, .devs = {dev}},
		.max_p2p_bytes = NCCL_MAX_NET_SIZE_BYTES_V8,
		.max_coll_bytes = NCCL_MAX_COLLNET_SIZE_BYTES,
		.max_multi_request_size = 1,
		.rail_id = NCCL_NET_ID_UNDEF,
		.plane_id = NCCL_NET_ID_UNDEF,
	};

	switch (net->version) {
		ASK_PROPERTIES(6, NET_PROPS_V6, )
		ASK_PROPERTIES(7, NET_PROPS_V7, )
		ASK_PROPERTIES(8, NET_PROPS_V8, )
		ASK_PROPERTIES(9, NET_PROPS_V9, TAKE_DEVS)
		ASK_PROPERTIES(10, NET_PROPS_V9, TAKE_DEVS)
		ASK_PROPERTIES(11, NET_PROPS_V11, TAKE_DEVS)
		ASK_PROPERTIES(12, NET_PROPS_V12, TAKE_DEVS)
	}
	*ret_props = props;
	return GANTRY_OK;
}

static gantry_result compat_make_vdevice(struct gantry_net *net, const struct gantry_net_vdevice *vdev, int *ret_dev)
{
	struct gantry_compat *c = net->impl;
	int max = net->version >= 12 ? NCCL_NET_MAX_DEVS_PER_NIC_V12 : NCCL_NET_MAX_DEVS_PER_NIC_V9, dev = -1;
	ncclNetVDeviceProps_v9_t v9 = {.ndevs = vdev->ndevs};
	ncclNetVDeviceProps_v12_t v12 = {.ndevs = vdev->ndevs};
	gantry_result r;

	if (net->version < 9)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s: fused devices need v9 or later (this is v%d)", c->label,
			 net->version);
	NEED(c, makeVDevice);
	if (vdev->ndevs < 1 || vdev->ndevs > max)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: a fused device of %d devices: v%d allows 1 to %d", c->label,
			 vdev->ndevs, net->version, max);
	for (int i = 0; i < vdev->ndevs; i++)
		*(net->version >= 12 ? &v12.devs[i] : &v9.devs[i]) = vdev->devs[i];
	r = net->version >= 12 ? CALL(c, v12, makeVDevice, &dev, &v12) : CALL(c, v9, makeVDevice, &dev, &v9);
	RETURN_WITH(ret_dev, dev);
}

static gantry_result compat_listen(struct gantry_net *net, void *arg, int dev, void *handle, void **ret_listen)
{
	struct gantry_compat *c = net->impl;
	struct compat_ctx *ctx = arg;
	void *listen = NULL;
	gantry_result r;

	if (net->version >= 11)
		TRY_NOW(need_ctx(c, ctx, "listen"));
	r = net->version >= 11 ? CALL(c, v11, listen, ctx->ctx, dev, handle, &listen)
			       : CALL(c, v6, listen, dev, handle, &listen);
	RETURN_WITH(ret_listen, listen);
}

/* A caller without interest in device handles passes NULL; plugins expect a place that holds NULL. */
static gantry_result compat_connect(struct gantry_net *net, void *arg, int dev, void *handle, void **ret_comm,
				    struct gantry_net_device_handle **dev_handle)
{
	struct gantry_compat *c = net->impl;
	struct compat_ctx *ctx = arg;
	ncclNetDeviceHandle_v7_t *none = NULL, **to = dev_handle ? (ncclNetDeviceHandle_v7_t **)dev_handle : &none;
	void *comm = NULL;
	gantry_result r;

	if (net->version >= 10)
		TRY_NOW(need_ctx(c, ctx, "connect"));
	if (net->version >= 11)
		r = CALL(c, v11, connect, ctx->ctx, dev, handle, &comm, to);
	else if (net->version == 10)
		r = CALL(c, v10, connect, dev, &ctx->config, handle, &comm, to);
	else if (net->version >= 7)
		r = CALL(c, v7, connect, dev, handle, &comm, to);
	else
		r = CALL(c, v6, connect, dev, handle, &comm);
	RETURN_WITH(ret_comm, comm);
}

static gantry_result compat_accept(struct gantry_net *net, void *listen, void **ret_comm,
				   struct gantry_net_device_handle **dev_handle)
{
	struct gantry_compat *c = net->impl;
	ncclNetDeviceHandle_v7_t *none = NULL, **to = dev_handle ? (ncclNetDeviceHandle_v7_t **)dev_handle : &none;
	void *comm = NULL;
	gantry_result r =
		net->version >= 7 ? CALL(c, v12, accept, listen, &comm, to) : CALL(c, v6, accept, listen, &comm);

	RETURN_WITH(ret_comm, comm);
}

/* For versions whose sizes are int. */
static gantry_result narrow(const struct gantry_compat *c, const char *call, size_t size, int *ret_size)
{
	if (size > INT_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: %s of %zu bytes: v%d takes at most %d", c->label, call, size,
			 c->net.version, INT_MAX);
	*ret_size = (int)size;
	return GANTRY_OK;
}

static gantry_result compat_reg_mr(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr)
{
	struct gantry_compat *c = net->impl;
	void *mr = NULL;
	gantry_result r;
	int s = 0;

	if (net->version < 8)
		TRY_NOW(narrow(c, "regMr", size, &s));
	r = net->version < 8 ? CALL(c, v6, regMr, comm, data, s, type, &mr)
			     : CALL(c, v12, regMr, comm, data, size, type, &mr);
	RETURN_WITH(ret_mr, mr_of_plugin(mr));
}

static gantry_result send_with(struct gantry_compat *c, void *comm, void *data, size_t size, int tag, void *mr,
			       void *phandle, void **ret_request)
{
	void *request;
	gantry_result r;
	int s = 0;

	mr = mr_for_plugin(mr);
	UNWRITTEN(c, request); /* in NCCL that of an earlier send */
	if (c->net.version >= 10) {
		r = CALL(c, v10, isend, comm, data, size, tag, mr, phandle, &request);
	} else if (c->net.version == 9) {
		r = CALL(c, v9, isend, comm, data, size, tag, mr, &request);
	} else {
		TRY_NOW(narrow(c, "isend", size, &s));
		r = CALL(c, v6, isend, comm, data, s, tag, mr, &request);
	}
	RETURN_WITH(ret_request, request);
}

static gantry_result compat_isend(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
				  void **ret_request)
{
	struct gantry_compat *c = net->impl;

	return send_with(c, comm, data, size, tag, mr, c->nccl ? c->nccl->phandle : NULL, ret_request);
}

static gantry_result compat_isendp(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
				   struct gantry_net_note *note, void **ret_request)
{
	return send_with(net->impl, comm, data, size, tag, mr, note, ret_request);
}

/* Plugins do not write to sizes and tags, though their types are not const. *request may be a hint, from v9 on. */
static gantry_result recv_with(struct gantry_compat *c, void *comm, int n, void **data, const size_t *sizes,
			       const int *tags, void **mrs, void **phandles, void **request)
{
	void *own[GANTRY_NET_MAX_RECVS], *req;
	int s[GANTRY_NET_MAX_RECVS];
	gantry_result r;

	UNWRITTEN(c, req);
	if (n < 1 || n > GANTRY_NET_MAX_RECVS)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: irecv of %d buffers: expected 1 to %d", c->label, n,
			 GANTRY_NET_MAX_RECVS);
	if (c->net.version >= 9 && *request == GANTRY_NET_OPTIONAL_RECV_COMPLETION)
		req = *request;
	for (int i = 0; i < n; i++)
		own[i] = mr_for_plugin(mrs[i]);
	if (c->net.version >= 10) {
		r = CALL(c, v10, irecv, comm, n, data, (size_t *)sizes, (int *)tags, own, phandles, &req);
	} else if (c->net.version == 9) {
		r = CALL(c, v9, irecv, comm, n, data, (size_t *)sizes, (int *)tags, own, &req);
	} else {
		for (int i = 0; i < n; i++)
			TRY_NOW(narrow(c, "irecv", sizes[i], &s[i]));
		r = CALL(c, v6, irecv, comm, n, data, s, (int *)tags, own, &req);
	}
	RETURN_WITH(request, req);
}

static gantry_result compat_irecv(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
				  const int *tags, void **mrs, void **request)
{
	struct gantry_compat *c = net->impl;
	void *phandles[GANTRY_NET_MAX_RECVS];

	for (int i = 0; i < GANTRY_NET_MAX_RECVS; i++)
		phandles[i] = c->nccl ? c->nccl->phandle : NULL;
	/* NCCL's bootstrap has no array. */
	return recv_with(c, comm, n, data, sizes, tags, mrs, c->nccl && !c->nccl->phandle ? NULL : phandles, request);
}

static gantry_result compat_irecvp(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
				   const int *tags, void **mrs, struct gantry_net_note **notes, void **request)
{
	return recv_with(net->impl, comm, n, data, sizes, tags, mrs, (void **)notes, request);
}

/* NCCL skips the call where the plugin has none. */
static gantry_result compat_irecv_consumed(struct gantry_net *net, void *comm, int n, void *request)
{
	struct gantry_compat *c = net->impl;

	return c->t.v12.irecvConsumed ? CALL(c, v12, irecvConsumed, comm, n, request) : GANTRY_OK;
}

static const struct gantry_net_ops compat_ops = {
	.init = compat_init,
	.finalize = compat_finalize,
	.set_attr = compat_set_attr,
	.devices = compat_devices,
	.get_properties = compat_get_properties,
	.make_vdevice = compat_make_vdevice,
	.listen = compat_listen,
	.connect = compat_connect,
	.accept = compat_accept,
	.close_send = compat_close_send,
	.close_recv = compat_close_recv,
	.close_listen = compat_close_listen,
	.reg_mr = compat_reg_mr,
	.reg_mr_dmabuf = compat_reg_mr_dmabuf,
	.dereg_mr = compat_dereg_mr,
	.get_device_mr = compat_get_device_mr,
	.isend = compat_isend,
	.irecv = compat_irecv,
	.iflush = compat_iflush,
	.test = compat_test,
	.irecv_consumed = compat_irecv_consumed,
	.isendp = compat_isendp,
	.irecvp = compat_irecvp,
};

gantry_result gantry_compat_create(const void *table, int version, const char *label, ncclDebugLogger_t logger,
				   struct gantry_net **ret_net)
{
	struct gantry_compat *c = calloc(1, sizeof(*c));

	if (!c)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the plugin %s", label);
	c->table = table;
	memcpy(&c->t, table, table_sizes[version - GANTRY_NET_VERSION_MIN]);
	if (!c->t.v12.name || !c->t.v12.init) {
		free(c);
		FAIL_NOW(GANTRY_ERR_CONFIG, "%s: ncclNetPlugin_v%d has no name or no init", label, version);
	}
	c->net = (struct gantry_net){.ops = &compat_ops, .name = c->t.v12.name, .version = version, .impl = c};
	c->label = label;
	c->logger = logger;
	if (strcmp(c->net.name, gantry_net_tcp()->name) != 0 &&
	    (*gantry_params()->trace || *gantry_params()->stall_dir))
		LOG_WARN(
			LOADER,
			"%s does not record its connections, so they appear in no stall report (GANTRY_STALL_DIR), and "
			"in a trace (GANTRY_TRACE) %s",
			label, version >= EVENTS_SINCE ? "only if it has events of its own" : "neither");
	*ret_net = &c->net;
	return GANTRY_OK;
}

void gantry_compat_as_nccl(struct gantry_net *net, const struct gantry_net_nccl *nccl)
{
	((struct gantry_compat *)net->impl)->nccl = nccl;
}

void gantry_compat_destroy(struct gantry_net *net)
{
	struct gantry_compat *c = net ? net->impl : NULL;

	if (!c)
		return;
	free(c);
}
