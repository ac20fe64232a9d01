/* SPDX-License-Identifier: Apache-2.0 */
/* Making a lifted table: which entries must be there, what missing ones mean, and what results mean. */
#define LOG_SUBSYS GANTRY_SUBSYS_LOADER
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "net/lift.h"
#include "net/loader.h"

/*
 * All entries in the order of every version's table. Those that NCCL calls
 * without a look must be there; the others become "unsupported", or success
 * where NCCL skips a missing one (irecvConsumed, finalize, setNetAttr).
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

static const struct {
	size_t size;
	const struct gantry_net_ops *ops;
} versions[] = {
	{sizeof(ncclNet_v6_t), &gantry_lift_ops_v6},   {sizeof(ncclNet_v7_t), &gantry_lift_ops_v7},
	{sizeof(ncclNet_v8_t), &gantry_lift_ops_v8},   {sizeof(ncclNet_v9_t), &gantry_lift_ops_v9},
	{sizeof(ncclNet_v10_t), &gantry_lift_ops_v10}, {sizeof(ncclNet_v11_t), &gantry_lift_ops_v11},
	{sizeof(ncclNet_v12_t), &gantry_lift_ops_v12},
};
_Static_assert(sizeof(versions) / sizeof(versions[0]) == GANTRY_NET_VERSION_MAX - GANTRY_NET_VERSION_MIN + 1,
	       "a line per version");

static gantry_result check_entries(const void *table, size_t size, int version, const char *label)
{
	gantry_result r = GANTRY_OK;
	char missing[256] = "";
	size_t len = 0;

	for (size_t i = 0; i < size / sizeof(void *); i++) {
		void *entry;

		memcpy(&entry, (const char *)table + i * sizeof(void *), sizeof(entry));
		if (!entry && entries[i].required)
			len += (size_t)snprintf(missing + len, sizeof(missing) - len, " %s", entries[i].name);
	}
	if (len)
		FAIL(GANTRY_ERR_CONFIG, "%s: ncclNetPlugin_v%d lacks what NCCL always calls:%s", label, version,
		     missing);
out:
	return r;
}

gantry_result gantry_lift_create(const void *table, int version, const char *label, ncclDebugLogger_t logger,
				 struct gantry_lift **ret_lift)
{
	int v = version - GANTRY_NET_VERSION_MIN;
	gantry_result r = GANTRY_OK;
	struct gantry_lift *l;

	TRY(check_entries(table, versions[v].size, version, label));
	l = calloc(1, sizeof(*l));
	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the plugin %s", label);
	memcpy(&l->t, table, versions[v].size);
	l->net.ops = versions[v].ops;
	l->net.name = l->t.v12.name;
	l->net.version = version;
	l->net.impl = l;
	l->label = label;
	l->logger = logger;
	if ((!l->net.name || strcmp(l->net.name, gantry_net_tcp()->name) != 0) &&
	    (*gantry_params()->trace || *gantry_params()->stall_dir))
		LOG_WARN(LOADER,
			 "%s records nothing of its connections: no trace (GANTRY_TRACE) and no stall report "
			 "(GANTRY_STALL_DIR) has them",
			 label);
	pthread_mutex_init(&l->lock, NULL);
	*ret_lift = l;
out:
	return r;
}

void gantry_lift_destroy(struct gantry_lift *lift)
{
	if (!lift)
		return;
	pthread_mutex_destroy(&lift->lock);
	free(lift);
}

static const char *const result_names[] = {
	[ncclSuccess] = "ncclSuccess",
	[ncclUnhandledCudaError] = "ncclUnhandledCudaError",
	[ncclSystemError] = "ncclSystemError",
	[ncclInternalError] = "ncclInternalError",
	[ncclInvalidArgument] = "ncclInvalidArgument",
	[ncclInvalidUsage] = "ncclInvalidUsage",
	[ncclRemoteError] = "ncclRemoteError",
	[ncclInProgress] = "ncclInProgress",
};

static gantry_result from_nccl(ncclResult_t nr)
{
	switch (nr) {
	case ncclSuccess:
		return GANTRY_OK;
	case ncclInProgress:
		return GANTRY_AGAIN;
	case ncclSystemError:
		return GANTRY_ERR_SYSTEM;
	case ncclInvalidArgument:
		return GANTRY_ERR_INVALID;
	case ncclInvalidUsage:
		return GANTRY_ERR_USAGE;
	case ncclRemoteError:
		return GANTRY_ERR_PEER_LOST;
	default:
		return GANTRY_ERR_INTERNAL;
	}
}

gantry_result gantry_lift_result(const struct gantry_lift *lift, const char *call, ncclResult_t nr)
{
	gantry_result r = from_nccl(nr);
	unsigned int i = (unsigned int)nr; /* a foreign number: it may be anything */

	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		FAIL(r, "%s: %s gave %s (%d)", lift->label, call,
		     i < sizeof(result_names) / sizeof(result_names[0]) ? result_names[i] : "an unknown result",
		     (int)nr);
out:
	return r;
}

gantry_result gantry_lift_check_count(const struct gantry_lift *lift, int n)
{
	gantry_result r = GANTRY_OK;

	if (n < 1 || n > GANTRY_NET_MAX_RECVS)
		FAIL(GANTRY_ERR_INVALID, "%s: irecv of %d buffers: 1 to %d are possible", lift->label, n,
		     GANTRY_NET_MAX_RECVS);
out:
	return r;
}
