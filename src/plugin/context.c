/* SPDX-License-Identifier: Apache-2.0 */
/*
 * init: parameters, NCCL's logger, contexts.
 *
 * From v11 on NCCL asks for one context per communicator and gives it back.
 * v6 to v10 know none: they call init once or more, never finalize, and v10
 * names a traffic class at connect. For them there is one context per traffic
 * class for the life of the process, made when it is first asked for. v9 and v10
 * have others than v6 to v8, which must not unpack: nobody tells them which
 * receives are LL or LL128.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include "base/atomic.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "plugin/plugin.h"

enum { MAX_TRAFFIC_CLASSES = 65 }; /* the 64 DSCP levels, and "undefined" */

MUTEX_KIND(plugin_shared_mu);
static struct plugin_shared_mu shared_mu = MUTEX_INITIALIZER;
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

/* The logger first, so that a parameter that does not parse is told to the user. */
static gantry_result prepare(ncclDebugLogger_t log)
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
	return r;
}

ncclResult_t gantry_plugin_init(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
				ncclProfilerCallback_t profiler)
{
	struct gantry_net *net = gantry_net_tcp();
	struct gantry_net_config c = {
		.traffic_class = config ? config->trafficClass : GANTRY_NET_UNDEF,
		.unpack = GANTRY_NET_UNPACK_PARAM,
	};
	gantry_result r;

	(void)profiler; /* the event ring is Gantry's own record */
	TRY(prepare(log));
	TRY(net->ops->init(net, comm_id, &c, ctx));
	gantry_plugin_unpack_note(*ctx);
out:
	return gantry_plugin_result(r);
}

ncclResult_t gantry_plugin_finalize(void *ctx)
{
	struct gantry_net *net = gantry_net_tcp();

	return gantry_plugin_result(net->ops->finalize(net, ctx));
}

static struct gantry_net_attr_side side(const ncclNetCommAttr_v11_t *a)
{
	return (struct gantry_net_attr_side){
		.max_concurrent_peers = a->maxConcurrentPeers,
		.min_concurrent_peers = a->minConcurrentPeers,
		.max_flows_per_peer = a->maxFlowsPerPeer,
		.min_flows_per_peer = a->minFlowsPerPeer,
	};
}

ncclResult_t gantry_plugin_set_attr(void *ctx, ncclNetAttr_v11_t *attr)
{
	struct gantry_net *net = gantry_net_tcp();
	struct gantry_net_attr a = {
		.send = side(&attr->sendCommAttr),
		.recv = side(&attr->recvCommAttr),
		.op = attr->op,
		.algo = attr->algo,
		.proto = attr->proto,
	};

	return gantry_plugin_result(net->ops->set_attr(net, ctx, &a));
}

gantry_result gantry_plugin_shared_context(int traffic_class, int unpack, void **ret_ctx)
{
	struct gantry_net *net = gantry_net_tcp();
	struct gantry_net_config c = {.traffic_class = traffic_class, .unpack = unpack};
	gantry_result r = GANTRY_OK;
	void *ctx = NULL;
	int i;

	plugin_shared_mu_lock(&shared_mu);
	for (i = 0; i < nshared; i++)
		if (shared[i].traffic_class == traffic_class && shared[i].unpack == unpack)
			break;
	if (i == 2 * MAX_TRAFFIC_CLASSES)
		FAIL(GANTRY_ERR_LIMIT, "traffic class %d is one more than the %d that a process may use", traffic_class,
		     MAX_TRAFFIC_CLASSES - 1);
	if (i == nshared) {
		TRY(net->ops->init(net, 0, &c, &ctx));
		if (unpack != GANTRY_NET_UNPACK_OFF)
			gantry_plugin_unpack_note(ctx);
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

ncclResult_t gantry_plugin_init_shared(ncclDebugLogger_t log, int unpack)
{
	gantry_result r;
	void *ctx;

	TRY(prepare(log));
	TRY(gantry_plugin_shared_context(GANTRY_NET_UNDEF, unpack, &ctx));
out:
	return gantry_plugin_result(r);
}
