/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on the table and the network as a whole, on making connections, and on requests in flight. */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "check/check.h"

enum {
	INIT_REPEATS = 20,
	SLOW_REPEATS = 2,
	SLOW_INIT_MS = 50,
	CONTEXTS = 3,
	LOADS = 3,
	NAMES_MAX = 64,
	NAME_BYTES = 256,
	ASK_TIMES = 3
};

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

int check_has(const struct check_side *s, enum check_entry entry)
{
	const void *const *t = gantry_loader_table(s->loader, s->version);

	return entries[entry].since <= s->version && t[entry];
}

static const void *const *table_of(struct check_side *s)
{
	const void *t = gantry_loader_table(s->loader, s->version);

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

/* After init, which may fill the table; what NCCL calls without looking was looked for there. */
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
	if (s->props.ptr_support & GANTRY_NET_PTR_DMABUF && strstr(absent, "regMrDmaBuf"))
		check_fail(s, "ptrSupport is 0x%x, with DMABUF, but regMrDmaBuf is NULL", s->props.ptr_support);
	if (s->props.ptr_support & (GANTRY_NET_PTR_CUDA | GANTRY_NET_PTR_DMABUF) && strstr(absent, "iflush"))
		check_fail(s, "ptrSupport is 0x%x, with GPU memory, but iflush is NULL", s->props.ptr_support);
	if (s->props.device_type == GANTRY_NET_DEVICE_UNPACK && strstr(absent, "irecvConsumed"))
		check_fail(s, "the device type is UNPACK, but irecvConsumed is NULL");
	check_note(s, "%d entries%s%s", n, *absent ? ", NULL where NCCL looks first:" : ", none NULL", absent);
}

static void contexts(struct check_side *s, int rounds)
{
	const struct gantry_net_attr attr = {.send = {-1, -1, -1, -1}, .recv = {-1, -1, -1, -1}};
	uint64_t since = gantry_now_ns();
	void *ctx[CONTEXTS] = {NULL};
	gantry_result r;

	for (int i = 0; i < rounds; i++) {
		check_init(s, &ctx[0]);
		CHECK_MUST(s, CHECK_SERVICE, "finalize", s->net->ops->finalize(s->net, ctx[0]));
		/* It may take its time, and then there are fewer. */
		if (i + 1 >= SLOW_REPEATS && gantry_now_ns() - since > SLOW_INIT_MS * (uint64_t)CHECK_MS * (i + 1u))
			break;
	}
	/* As with several communicators: contexts overlap, and the first made need not be the last to go. */
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

/* NCCL closes the library when its last communicator goes, and opens it again for the next. Up to v10 init comes once
 * each time (the loader sees to that), from v11 on for every communicator. */
static void init_finalize_job(struct check_side *s, void *arg)
{
	const char *path = gantry_loader_path(s->loader);
	char file[PATH_MAX];

	(void)arg;
	snprintf(file, sizeof(file), "%s", path);
	for (int i = 0; i < LOADS; i++) {
		check_phase(s, "contexts, after opening the library %d times", i + 1);
		contexts(s, s->version < 11 ? 0 : INIT_REPEATS);
		if (i + 1 == LOADS)
			break;
		gantry_loader_close(s->loader);
		if (gantry_loader_open(file, &s->loader) != GANTRY_OK ||
		    gantry_loader_net(s->loader, s->version, &s->net) != GANTRY_OK)
			check_fail(s, "cannot open it again: %s", gantry_last_error());
		gantry_loader_as_nccl(s->net, &s->nccl);
	}
}

static void rule_init_finalize(struct check_side *s)
{
	check_service(s, init_finalize_job, NULL);
	if (s->version < 11)
		check_note(s, "the library opened and closed %d times, init once each (no finalize before v11)", LOADS);
	else
		check_note(s,
			   "the library opened and closed %d times, with contexts one after the other and %d at once",
			   LOADS, CONTEXTS);
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

/* What NCCL reads of a struct that it does not initialise; maxCollBytes it reads of collNet's alone,
 * and forceFlush that says anything costs a flush. */
static void properties_written(struct check_side *s, int dev, const struct gantry_net_properties *p)
{
#define WRITTEN(field)                                                                                                 \
	{                                                                                                              \
#field, &p->field, sizeof(p->field)                                                                    \
	}
	const struct {
		const char *name;
		const void *at;
		size_t size;
	} fields[] = {WRITTEN(name),	      WRITTEN(pci_path),      WRITTEN(guid),	    WRITTEN(ptr_support),
		      WRITTEN(speed),	      WRITTEN(port),	      WRITTEN(latency),	    WRITTEN(max_comms),
		      WRITTEN(max_recvs),     WRITTEN(reg_is_global), WRITTEN(device_type), WRITTEN(device_version),
		      WRITTEN(max_p2p_bytes), WRITTEN(vdev.ndevs)};
#undef WRITTEN

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (check_unwritten(fields[i].at, fields[i].size))
			check_fail(s, "device %d: getProperties wrote no %s", dev, fields[i].name);
}

/* The first answer for a device; the strings are the plugin's, and what they were then. */
struct answer {
	struct gantry_net_properties p;
	char name[NAME_BYTES], pci_path[NAME_BYTES];
};

static void properties_of(struct check_side *s, int dev, int devices, struct gantry_net_properties *ret)
{
	struct gantry_net_properties p = {0};

	CHECK_MUST(s, CHECK_SERVICE, "getProperties", s->net->ops->get_properties(s->net, dev, &p));
	properties_written(s, dev, &p);
	if (!p.name || !*p.name)
		check_fail(s, "device %d has no name", dev);
	if (p.max_comms <= 0)
		check_fail(s, "device %d: maxComms is %d", dev, p.max_comms);
	if (p.max_recvs < 1 || p.max_recvs > GANTRY_NET_MAX_RECVS)
		check_fail(s, "device %d: maxRecvs is %d, not 1 to %d", dev, p.max_recvs, GANTRY_NET_MAX_RECVS);
	if (p.device_type == GANTRY_NET_DEVICE_UNPACK && p.max_recvs != 1)
		check_fail(s, "device %d: maxRecvs is %d, but device type UNPACK allows only 1", dev, p.max_recvs);
	if (!(p.ptr_support & GANTRY_NET_PTR_HOST))
		check_fail(s, "device %d: ptrSupport is 0x%x, without host memory", dev, p.ptr_support);
	if (p.max_p2p_bytes < 1 || p.max_p2p_bytes > (size_t)1 << 40)
		check_fail(s, "device %d: maxP2pBytes is %zu, not 1 to 2^40", dev, p.max_p2p_bytes);
	virtual_device(s, dev, &p, devices);
	*ret = p;
	if (dev == 0)
		check_note(s, "%d device%s; device 0 is %s, %d Mbit/s%s, maxRecvs %d, ptrSupport 0x%x", devices,
			   devices == 1 ? "" : "s", p.name, p.speed, p.speed > 0 ? "" : " (NCCL takes it as 10000)",
			   p.max_recvs, p.ptr_support);
}

static void same_text(struct check_side *s, int dev, const char *what, const char *then, const char *now)
{
	if (strncmp(then, now ? now : "", NAME_BYTES - 1) != 0)
		check_fail(s, "device %d: %s was \"%.60s\", and is \"%.60s\" after properties were asked for again",
			   dev, what, then, now ? now : "");
}

/* NCCL asks in several places and never compares: the answers have to agree. Speed and latency may change. */
static void same_answer(struct check_side *s, int dev, const struct answer *a, const struct gantry_net_properties *p)
{
	const struct {
		const char *name;
		long long then, now;
	} values[] = {{"ptrSupport", a->p.ptr_support, p->ptr_support},
		      {"guid", (long long)a->p.guid, (long long)p->guid},
		      {"port", a->p.port, p->port},
		      {"maxComms", a->p.max_comms, p->max_comms},
		      {"maxRecvs", a->p.max_recvs, p->max_recvs},
		      {"regIsGlobal", a->p.reg_is_global, p->reg_is_global},
		      {"netDeviceType", (int)a->p.device_type, (int)p->device_type},
		      {"maxP2pBytes", (long long)a->p.max_p2p_bytes, (long long)p->max_p2p_bytes}};

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		if (values[i].then != values[i].now)
			check_fail(s, "device %d: %s was %lld, and is %lld when asked for again", dev, values[i].name,
				   values[i].then, values[i].now);
	same_text(s, dev, "the name", a->name, a->p.name);
	same_text(s, dev, "pciPath", a->pci_path, a->p.pci_path);
	same_text(s, dev, "the name", a->name, p->name);
	same_text(s, dev, "pciPath", a->pci_path, p->pci_path);
}

static void properties_job(struct check_side *s, void *arg)
{
	struct answer *first = arg;
	int n = 0, kept;

	CHECK_MUST(s, CHECK_SERVICE, "devices", s->net->ops->devices(s->net, &n));
	if (n != s->devices)
		check_fail(s, "devices gave %d, and now %d", s->devices, n);
	kept = n < NAMES_MAX ? n : NAMES_MAX;
	for (int i = 0; i < n; i++) {
		struct gantry_net_properties p;

		properties_of(s, i, n, &p);
		if (i >= kept)
			continue;
		if (first[i].p.name) {
			same_answer(s, i, &first[i], &p);
			continue;
		}
		first[i].p = p;
		snprintf(first[i].name, NAME_BYTES, "%s", p.name);
		snprintf(first[i].pci_path, NAME_BYTES, "%s", p.pci_path ? p.pci_path : "");
	}
	/* NCCL has the properties of all devices before it looks for those to be fused by their names. */
	for (int i = 0; i < kept; i++)
		same_answer(s, i, &first[i], &first[i].p);
}

/* NCCL asks from the thread that made the communicator and, for each connection, from the service thread. */
static void rule_properties(struct check_side *s)
{
	static struct answer first[NAMES_MAX];

	for (int i = 0; i < ASK_TIMES; i++) {
		check_phase(s, "asking for properties, time %d", i + 1);
		check_service(s, properties_job, first);
	}
	check_phase(s, "asking for properties from another thread");
	properties_job(s, first);
}

/* ---- making connections: the handle, nothing blocks, late peers ---- */

enum { LISTENERS = 24, LONELY = 4, TRIES = 20, TRY_PAUSE_MS = 3, BOUND_MS = 250, BIG = 1 << 20, POSTS = 8 };

static void listeners_job(struct check_side *s, void *arg)
{
	uint8_t handles[LISTENERS][GANTRY_NET_HANDLE_SIZE];
	void *listen[LISTENERS];

	(void)arg;
	check_phase(s, "listening %d times at once", LISTENERS);
	for (int i = 0; i < LISTENERS; i++) {
		listen[i] = check_listen(s, 0, handles[i]);
		for (int k = 0; k < i; k++)
			if (memcmp(handles[i], handles[k], GANTRY_NET_HANDLE_SIZE) == 0)
				check_fail(s, "listeners %d and %d have the same handle", k, i);
	}
	for (int i = 0; i < LISTENERS; i++)
		CHECK_MUST(s, CHECK_SERVICE, "closeListen", s->net->ops->close_listen(s->net, listen[i]));
}

static void rule_handle_size(struct check_side *s)
{
	struct check_plan p;

	check_service(s, listeners_job, NULL);
	check_plan_uniform(s, &p, 4, 100, 100);
	check_flow_once(s, &p); /* its listen and connect look at the guard bytes too */
	check_note(s, "listen and connect stay within %d bytes", GANTRY_NET_HANDLE_SIZE);
}

static void lonely_accept_job(struct check_side *s, void *arg)
{
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *comm = NULL;

	(void)arg;
	check_phase(s, "accept without a peer connecting");
	for (int i = 0; i < LONELY; i++) {
		void *listen = check_listen(s, 0, handle);

		for (int k = 0; k < TRIES / LONELY; k++) {
			CHECK_MUST(s, CHECK_SERVICE, "accept", s->net->ops->accept(s->net, listen, &comm, &none));
			if (comm)
				check_fail(s, "accept returned a comm although no peer connected");
			check_sleep_ms(TRY_PAUSE_MS);
		}
		CHECK_MUST(s, CHECK_SERVICE, "closeListen", s->net->ops->close_listen(s->net, listen));
	}
}

/* Sends without a receive, or receives without a send: post some, then look at the oldest. */
static struct check_flow *lonely_posts(struct check_side *s, const struct check_plan *p, void *comm, int sending)
{
	struct check_flow *f = check_flow_open(s, p, comm, sending);

	check_phase(s, sending ? "isend and test without a receive" : "irecv and test without a send");
	for (int i = 0; i < POSTS; i++)
		check_flow_post(f);
	for (int i = 0; i < TRIES; i++) {
		check_flow_test(f);
		check_sleep_ms(TRY_PAUSE_MS);
	}
	return f;
}

/* One side posts and tests while the other really does nothing; then both bring it to its end. */
static void lonely_transfer(struct check_side *s, int lonely_role)
{
	void *comm = check_link(s, s->role);
	struct check_flow *f = NULL;
	struct check_plan p;

	check_plan_uniform(s, &p, POSTS, BIG, BIG);
	if (s->role == lonely_role)
		f = lonely_posts(s, &p, comm, s->role);
	check_meet(s);
	if (!f)
		f = check_flow_open(s, &p, comm, s->role);
	check_phase(s, "letting the transfers end");
	check_flows_finish(&f, 1);
}

static void rule_nonblocking(struct check_side *s)
{
	void *lonely = NULL; /* A: the listener without an accept; B: the comm from connecting to it, if any */

	s->slow_ns = BOUND_MS * (uint64_t)s->stretch * CHECK_MS;
	if (s->role == 0)
		check_service(s, lonely_accept_job, NULL);
	check_service(s, check_abandoned_job, &lonely);
	check_meet(s);
	lonely_transfer(s, 0);
	lonely_transfer(s, 1);
	if (lonely)
		check_close(s, s->role ? CHECK_SEND_COMM : CHECK_LISTEN_COMM, lonely);
	check_note(s, "every call returned within %d ms while the peer did nothing", BOUND_MS);
}

/*
 * Everything that can be late is so at the same time, on a connection each: B connects, A accepts, A receives, B sends, and
 * both sides use one that was idle.
 */
enum { LATE_CONNECT, LATE_ACCEPT, LATE_RECV, LATE_SEND, LATE_BOTH, LATE_LINKS, LATE_PAUSE_US = 1000 };

struct late {
	struct check_link link[LATE_LINKS];
	uint64_t until_ns;
};

/* The side that is not late calls again and again. */
static void late_link_job(struct check_side *s, void *arg)
{
	struct late *l = arg;
	struct check_link *early = &l->link[s->role ? LATE_ACCEPT : LATE_CONNECT];

	while (gantry_now_ns() < l->until_ns) {
		if (!early->comm)
			check_link_try(s, early);
		usleep(LATE_PAUSE_US);
	}
	for (int i = LATE_CONNECT; i <= LATE_ACCEPT; i++)
		if (!l->link[i].comm)
			check_link_end(s, &l->link[i]);
}

static void late_flow(struct check_side *s, const struct late *l, struct check_flow *early)
{
	while (gantry_now_ns() < l->until_ns) {
		check_flow_post(early);
		check_flow_test(early);
		usleep(LATE_PAUSE_US);
	}
	check_service_wait(s);
}

static void rule_late_peer(struct check_side *s)
{
	uint64_t late_ns = s->extent.late_ns, most = check_left_ns(s) / 3;
	struct check_flow *f[LATE_LINKS];
	struct check_plan p;
	struct late l;

	late_ns = late_ns < most ? late_ns : most;
	check_plan_uniform(s, &p, 12, BIG, BIG);
	for (int i = 0; i < p.count; i += 3)
		p.groups[i].send[0] = p.groups[i].recv[0] = 300;
	memset(&l, 0, sizeof(l));
	for (int i = 0; i < LATE_LINKS; i++) {
		l.link[i].sending = s->role;
		check_service(s, i <= LATE_ACCEPT ? check_link_begin : check_link_job, &l.link[i]);
	}
	for (int i = LATE_RECV; i < LATE_LINKS; i++)
		f[i] = check_flow_open(s, &p, l.link[i].comm, s->role);
	check_meet(s); /* what was late before does not count */
	check_phase(s, "%s and %s, the other %.1f s late", s->role ? "connecting" : "accepting",
		    s->role ? "sending" : "receiving", (double)late_ns / 1e9);
	l.until_ns = gantry_now_ns() + late_ns;
	check_service_start(s, late_link_job, &l);
	late_flow(s, &l, f[s->role ? LATE_RECV : LATE_SEND]);
	check_phase(s, "transferring with a peer that was %.1f s late", (double)late_ns / 1e9);
	for (int i = 0; i < LATE_RECV; i++)
		f[i] = check_flow_open(s, &p, l.link[i].comm, s->role);
	check_flows_finish(f, LATE_LINKS);
	check_note(s, "connect, accept, the receiver and the sender each %.1f s late", (double)late_ns / 1e9);
}

/* ---- requests in flight: NULL requests, how many there may be, and two threads at work ---- */

enum { HOLD_MS = 100, ACCEPT_MS = 2, PATIENCE = 100, REG_REPEATS = 200, EXTRA_LINKS = 3, PROPERTIES_EVERY = 10 };

/* Sends that NCCL keeps in flight on a connection. */
static int max_sends(const struct check_side *s)
{
	return s->props.max_recvs > 1 ? CHECK_SHARED : CHECK_STEPS;
}

/* Sends without receives, as many as are taken; after the receiver has come, the rest. */
static void rule_null_request(struct check_side *s)
{
	int sends = max_sends(s), sending = s->role == 1;
	void *comm = check_link(s, sending);
	struct check_flow *f;
	struct check_plan p;
	int taken = 0;

	check_plan_uniform(s, &p, sends + 40, 16384, 16384);
	p.send_window = sends;
	f = check_flow_open(s, &p, comm, sending);
	if (sending) {
		uint64_t since = gantry_now_ns();

		check_phase(s, "posting sends before their receives");
		while (f->posted < sends && !f->nulls)
			check_flow_post(f);
		taken = f->posted;
		while (gantry_now_ns() - since < HOLD_MS * (uint64_t)CHECK_MS) {
			check_flow_test(f); /* NCCL keeps testing the oldest */
			check_sleep_ms(1);
		}
	}
	check_meet(s);
	check_phase(s, "posting the rest");
	check_flow_run(f);
	check_meet(s);
	/* B knows how many; A's words are the ones shown. */
	if (sending)
		check_tell(s, &taken, sizeof(taken));
	else
		check_hear(s, &taken, sizeof(taken));
	check_note(s, "%d sends taken before the receiver came%s; %d messages arrived, each once", taken,
		   taken < sends ? ", then a NULL request" : "", p.count);
	check_flow_close(f);
}

/*
 * Posts as many as are taken, and tests the oldest when no more are. Both sides do it at the same time, because a plugin
 * may have to hear from the other before it takes another: a NULL request counts only if it does not end.
 */
static void fill_window(struct check_side *s, struct check_flow *f, int need)
{
	int patience = PATIENCE;

	while (f->done < f->total) {
		uint64_t since = gantry_now_ns();

		while (f->posted < f->total && (check_flow_post(f) || (f->most < need && patience > 0)))
			if (gantry_now_ns() - since > ACCEPT_MS * (uint64_t)CHECK_MS) {
				patience--;
				break;
			}
		if (!check_flow_test(f))
			sched_yield();
		if (!check_left_ns(s))
			check_fail(s, "%s %d of %d is not done", f->sending ? "send" : "receive", f->done, f->total);
	}
	if (f->most < need)
		check_fail(s, "at most %d %s were in flight at the same time, NCCL keeps %d", f->most,
			   f->sending ? "sends" : "receives", need);
}

/* The versions promise 32 requests (v6: 8), times maxRecvs for sends; NCCL uses fewer, and only what it uses is asked for:
 * more is an error for some plugins that it runs happily. */
static void rule_in_flight(struct check_side *s)
{
	int sending = s->role == 1, n = s->props.max_recvs > 1 ? 2 : 1, sends;
	void *comm = check_link(s, sending);
	struct check_flow *f;
	struct check_plan p;

	check_plan_make(s, &p, 8 * CHECK_STEPS);
	for (int i = 0; i < p.count; i++) {
		p.groups[i].n = n;
		for (int k = 0; k < n; k++) {
			p.groups[i].tag[k] = k;
			p.groups[i].send[k] = p.groups[i].recv[k] = 200;
		}
	}
	f = check_flow_open(s, &p, comm, sending);
	check_meet(s);
	check_phase(s, "keeping %d requests in flight", f->window);
	fill_window(s, f, f->window);
	check_tell(s, &f->most, sizeof(f->most));
	check_hear(s, &sends, sizeof(sends));
	check_note(s, "%d receives and %d sends in flight at the same time", f->most, sends);
	check_flow_close(f);
}

/* What the service thread does while the progress thread moves data on comm. It closes nothing then: NCCL ends a
 * communicator's progress thread before it closes the first of its connections. */
struct busy {
	void *comm;
	struct check_link extra[EXTRA_LINKS];
};

static void busy_service_job(struct check_side *s, void *arg)
{
	enum { BYTES = 1 << 16 };
	uint8_t *buf = check_alloc(s, 1, BYTES);
	struct busy *b = arg;

	for (int i = 0; i < REG_REPEATS; i++) {
		void *mr = NULL;

		CHECK_MUST(s, CHECK_SERVICE, "regMr",
			   s->net->ops->reg_mr(s->net, b->comm, buf, BYTES, GANTRY_NET_PTR_HOST, &mr));
		usleep(100);
		if (i % PROPERTIES_EVERY == 0) /* as for each new connection */
			CHECK_MUST(s, CHECK_SERVICE, "getProperties",
				   s->net->ops->get_properties(s->net, 0, &(struct gantry_net_properties){0}));
		CHECK_MUST(s, CHECK_SERVICE, "deregMr", s->net->ops->dereg_mr(s->net, b->comm, mr));
	}
	for (int i = 0; i < EXTRA_LINKS; i++) {
		b->extra[i].sending = (s->role + i) & 1;
		check_link_job(s, &b->extra[i]);
	}
	free(buf);
}

static void rule_threads(struct check_side *s)
{
	int sending = s->role == 1;
	struct busy b = {.comm = check_link(s, sending)};
	struct check_flow *f;
	struct check_plan p;

	check_plan_uniform(s, &p, 300, 100000, 100000);
	for (int i = 0; i < p.count; i += 2)
		p.groups[i].send[0] = p.groups[i].recv[0] = 600;
	f = check_flow_open(s, &p, b.comm, sending);
	check_phase(s, "transferring while the other thread registers and connects");
	check_service_start(s, busy_service_job, &b);
	check_flow_run(f);
	check_service_wait(s);
	check_meet(s);
	check_phase(s, "closing");
	for (int i = 0; i < EXTRA_LINKS; i++)
		check_close(s, b.extra[i].sending ? CHECK_SEND_COMM : CHECK_RECV_COMM, b.extra[i].comm);
	check_flow_close(f);
	check_note(s, "%d regMr and deregMr and %d connections beside a transfer", REG_REPEATS, EXTRA_LINKS);
}

const struct check_rule check_rules_connect[] = {
	{"symbols", "ncclNetPlugin_vN is exported and has a name", rule_symbols, CHECK_ALONE | CHECK_RAW, 0},
	{"table", "no entry is NULL that NCCL calls without looking", rule_table, CHECK_ALONE, 0},
	{"init-finalize", "contexts can follow each other and overlap, and the library can be opened again",
	 rule_init_finalize, CHECK_ALONE | CHECK_NO_INIT, 0},
	{"properties", "every device has a name and values that NCCL accepts, each time they are asked for",
	 rule_properties, CHECK_ALONE, 0},
	{"handle-size", "listen and connect touch no more than the 128 bytes of the handle", rule_handle_size, 0, 0},
	{"nonblocking", "no call waits for a peer that does nothing", rule_nonblocking, 0, 2000},
	{"late-peer", "a peer that connects, accepts or posts late changes nothing", rule_late_peer, 0, 0},
	{"null-request", "sends without receives are taken or put off, and none is lost or doubled", rule_null_request,
	 0, 0},
	{"in-flight", "as many requests as NCCL keeps can be in flight at the same time", rule_in_flight, 0, 0},
	{"threads", "the service thread may register and connect while the progress thread moves data", rule_threads, 0,
	 0},
	{0},
};
