/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on the table and the network as a whole: no connection is made. */
#include "check.h"

#include <stdio.h>
#include <string.h>

enum { INIT_REPEATS = 50, CONTEXTS = 3 };

/* In the order of the tables; every entry is a pointer. NCCL looks before it calls those marked optional. */
static const struct {
	const char *name;
	int since;
	int optional;
} entries[] = {
	{"name", 6, 0},	       {"init", 6, 0},	      {"devices", 6, 0},       {"getProperties", 6, 0},
	{"listen", 6, 0},      {"connect", 6, 0},     {"accept", 6, 0},	       {"regMr", 6, 0},
	{"regMrDmaBuf", 6, 1}, {"deregMr", 6, 0},     {"isend", 6, 0},	       {"irecv", 6, 0},
	{"iflush", 6, 1},      {"test", 6, 0},	      {"closeSend", 6, 0},     {"closeRecv", 6, 0},
	{"closeListen", 6, 0}, {"getDeviceMr", 7, 1}, {"irecvConsumed", 7, 1}, {"makeVDevice", 9, 1},
	{"finalize", 11, 0},   {"setNetAttr", 11, 1},
};

static const void *const *table_of(struct check_side *s)
{
	const void *t = gantry_loader_has(s->loader, s->version) ? gantry_loader_table(s->loader, s->version) : NULL;

	if (!t)
		check_fail(s, "ncclNetPlugin_v%d is not exported", s->version);
	return t;
}

static void rule_symbols(struct check_side *s)
{
	const char *name = table_of(s)[0];

	if (!name || !*name)
		check_fail(s, "ncclNetPlugin_v%d has no name", s->version);
	if (strnlen(name, 256) == 256)
		check_fail(s, "the name of ncclNetPlugin_v%d does not end within 256 bytes", s->version);
	check_note(s, "ncclNetPlugin_v%d is named \"%s\"", s->version, name);
}

static void rule_table(struct check_side *s)
{
	const void *const *t = table_of(s);
	char missing[CHECK_DETAIL / 2] = "", absent[CHECK_DETAIL / 2] = "";
	int n = 0;

	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		char *list = entries[i].optional ? absent : missing;
		size_t at = strlen(list);

		if (entries[i].since > s->version)
			continue;
		if (!t[n++])
			snprintf(list + at, CHECK_DETAIL / 2 - at, " %s", entries[i].name);
	}
	if (*missing)
		check_fail(s, "NULL, though NCCL calls without looking:%s", missing);
	check_note(s, "%d entries%s%s", n, *absent ? ", NULL where NCCL looks first:" : ", none NULL", absent);
}

static void init_finalize_job(struct check_side *s, void *arg)
{
	const struct gantry_net_attr attr = {.send = {-1, -1, -1, -1}, .recv = {-1, -1, -1, -1}};
	void *ctx[CONTEXTS] = {NULL};
	gantry_result r;

	(void)arg;
	for (int i = 0; i < INIT_REPEATS; i++) {
		check_phase(s, "init and finalize, round %d", i);
		check_init(s, &ctx[0]);
		CHECK_MUST(s, CHECK_SERVICE, "finalize", s->net->ops->finalize(s->net, ctx[0]));
	}
	/* As with several communicators: contexts overlap, and the first made need not be the last to go. */
	check_phase(s, "several contexts at once");
	for (int i = 0; i < CONTEXTS; i++)
		check_init(s, &ctx[i]);
	r = CHECK_CALL(s, CHECK_SERVICE, "setNetAttr", s->net->ops->set_attr(s->net, ctx[0], &attr));
	if (r != GANTRY_ERR_UNSUPPORTED)
		check_ok(s, r, "setNetAttr");
	for (int i = 0; i < CONTEXTS; i++) {
		int n = 0;

		CHECK_MUST(s, CHECK_SERVICE, "devices", s->net->ops->devices(s->net, &n));
		CHECK_MUST(s, CHECK_SERVICE, "finalize", s->net->ops->finalize(s->net, ctx[i]));
	}
}

static void rule_init_finalize(struct check_side *s)
{
	check_service(s, init_finalize_job, NULL);
	check_note(s, "%d times, and %d contexts at once%s", INIT_REPEATS, CONTEXTS,
		   s->version < 11 ? " (init alone: no finalize before v11)" : "");
}

/* The devices that one is made of. */
static void virtual_device(struct check_side *s, int dev, const struct gantry_net_properties *p, int devices)
{
	if (p->vdev.ndevs < 0 || p->vdev.ndevs > GANTRY_NET_MAX_RAILS)
		check_fail(s, "device %d: vProps names %d devices", dev, p->vdev.ndevs);
	for (int i = 0; i < p->vdev.ndevs; i++)
		if (p->vdev.devs[i] < 0 || p->vdev.devs[i] >= devices)
			check_fail(s, "device %d: vProps names device %d of %d", dev, p->vdev.devs[i], devices);
}

static void properties_of(struct check_side *s, int dev, int devices)
{
	struct gantry_net_properties p = {0};

	CHECK_MUST(s, CHECK_SERVICE, "getProperties", s->net->ops->get_properties(s->net, dev, &p));
	if (!p.name || !*p.name)
		check_fail(s, "device %d has no name", dev);
	if (p.speed <= 0)
		check_fail(s, "device %d: speed is %d Mbit/s", dev, p.speed);
	if (p.max_comms <= 0)
		check_fail(s, "device %d: maxComms is %d", dev, p.max_comms);
	if (p.max_recvs < 1 || p.max_recvs > GANTRY_NET_MAX_RECVS)
		check_fail(s, "device %d: maxRecvs is %d, not 1 to %d", dev, p.max_recvs, GANTRY_NET_MAX_RECVS);
	if (p.device_type == GANTRY_NET_DEVICE_UNPACK && p.max_recvs != 1)
		check_fail(s, "device %d: maxRecvs is %d, but device type UNPACK allows only 1", dev, p.max_recvs);
	if (!(p.ptr_support & GANTRY_NET_PTR_HOST))
		check_fail(s, "device %d: ptrSupport is 0x%x, without host memory", dev, p.ptr_support);
	if (!(p.latency >= 0))
		check_fail(s, "device %d: latency is %g us", dev, (double)p.latency);
	if (p.max_p2p_bytes < 1 || p.max_p2p_bytes > (size_t)1 << 40)
		check_fail(s, "device %d: maxP2pBytes is %zu, not 1 to 2^40", dev, p.max_p2p_bytes);
	virtual_device(s, dev, &p, devices);
	if (dev == 0)
		check_note(s, "%d device%s; device 0 is %s, %d Mbit/s, maxRecvs %d, ptrSupport 0x%x", devices,
			   devices == 1 ? "" : "s", p.name, p.speed, p.max_recvs, p.ptr_support);
}

static void properties_job(struct check_side *s, void *arg)
{
	int n = 0;

	(void)arg;
	check_phase(s, "asking for properties");
	CHECK_MUST(s, CHECK_SERVICE, "devices", s->net->ops->devices(s->net, &n));
	for (int i = 0; i < n; i++)
		properties_of(s, i, n);
}

static void rule_properties(struct check_side *s)
{
	check_service(s, properties_job, NULL);
}

const struct check_rule check_rules_table[] = {
	{"symbols", "ncclNetPlugin_vN is exported and has a name", rule_symbols, CHECK_ALONE | CHECK_RAW, 0},
	{"table", "no entry is NULL that NCCL calls without looking", rule_table, CHECK_ALONE | CHECK_RAW, 0},
	{"init-finalize", "init and finalize can be repeated, and contexts can overlap", rule_init_finalize,
	 CHECK_ALONE | CHECK_NO_INIT, 0},
	{"properties", "every device has a name and values that NCCL accepts", rule_properties, CHECK_ALONE, 0},
	{0},
};
