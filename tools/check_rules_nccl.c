/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that replay what a job of NCCL does as a whole: its sizes and tags, every device, many connections at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* Sanitizers make every byte ten times as dear. */
#ifdef GANTRY_SANITIZED
enum { MANY_MESSAGES = 3000, SLICE_MESSAGES = 12 };
#else
enum { MANY_MESSAGES = 70000, SLICE_MESSAGES = 40 };
#endif
enum {
	DEVICES_MAX = 16,
	COMMS = 4,
	REGISTRATIONS = 64,
	RING_STEPS = 40,
	SLACK_KB = 512,
	WAITS_MAX = 20,
	CALLS_PER_WAIT = 400,
	PENDING = 3,
	RING_BYTES = 500,
	SIMPLE_SLICE = 1 << 20,	 /* two steps of NCCL's buffer of 4 MiB */
	P2P_CHUNK = 128 << 10,	 /* of point to point */
	LL_SLICE = 16 << 10,	 /* a step of the LL buffer */
	LL128_SLICE = 120 << 10, /* of LL128's */
};

/* Each device on both sides: connections, and bytes. */
static void rule_devices(struct check_side *s)
{
	int n = s->devices < DEVICES_MAX ? s->devices : DEVICES_MAX;
	struct check_plan p;

	check_plan_uniform(s, &p, 12, 20000, 20000);
	for (int dev = 0; dev < n; dev++) {
		struct check_link l = {.sending = s->role, .dev = dev};
		struct check_flow *f;

		check_phase(s, "device %d", dev);
		check_service(s, check_link_job, &l);
		p.seed = (uint64_t)dev;
		f = check_flow_open(s, &p, l.comm, s->role);
		check_flow_run(f);
		check_meet(s);
		check_flow_close(f);
	}
	check_note(s, "%d of %d devices carry messages", n, s->devices);
}

/* Several connects pending at once: each handle is its own. A accepts in the opposite order. */
static void pending_receive(struct check_side *s, void *comms[PENDING])
{
	uint8_t handles[PENDING][GANTRY_NET_HANDLE_SIZE];
	struct gantry_net_device_handle *none = NULL;
	void *listen[PENDING];
	int made = 0;

	for (int i = 0; i < PENDING; i++)
		listen[i] = check_listen(s, 0, handles[i]);
	check_tell(s, handles, sizeof(handles));
	while (made < PENDING && check_left_ns(s)) {
		made = 0;
		for (int i = PENDING - 1; i >= 0; i--) {
			if (!comms[i])
				CHECK_MUST(s, CHECK_SERVICE, "accept",
					   s->net->ops->accept(s->net, listen[i], &comms[i], &none));
			made += comms[i] != NULL;
		}
	}
	for (int i = 0; i < PENDING; i++)
		CHECK_MUST(s, CHECK_SERVICE, "closeListen", s->net->ops->close_listen(s->net, listen[i]));
	if (made < PENDING)
		check_fail(s, "of %d connections made at once accept gave %d", PENDING, made);
}

static void pending_send(struct check_side *s, void *comms[PENDING])
{
	uint8_t handles[PENDING][GANTRY_NET_HANDLE_SIZE];
	struct gantry_net_device_handle *none = NULL;
	int made = 0;

	check_hear(s, handles, sizeof(handles));
	while (made < PENDING && check_left_ns(s)) {
		made = 0;
		for (int i = 0; i < PENDING; i++) {
			if (!comms[i])
				CHECK_MUST(s, CHECK_SERVICE, "connect",
					   s->net->ops->connect(s->net, s->ctx, 0, handles[i], &comms[i], &none));
			made += comms[i] != NULL;
		}
	}
	if (made < PENDING)
		check_fail(s, "of %d connections made at once connect gave %d", PENDING, made);
}

static void pending_job(struct check_side *s, void *comms)
{
	if (s->role)
		pending_send(s, comms);
	else
		pending_receive(s, comms);
}

static void pending_connects(struct check_side *s)
{
	void *comms[PENDING] = {NULL};
	struct check_flow *f[PENDING];
	struct check_plan p[PENDING];

	check_phase(s, "%d connections made at once", PENDING);
	check_service(s, pending_job, comms);
	for (int i = 0; i < PENDING; i++) {
		check_plan_uniform(s, &p[i], 4, 1000, 1000);
		p[i].seed = 100 + (uint64_t)i;
		f[i] = check_flow_open(s, &p[i], comms[i], s->role);
	}
	check_flows_run(f, PENDING);
	check_meet(s);
	for (int i = 0; i < PENDING; i++)
		check_flow_close(f[i]);
}

/* Connections in both directions, all busy; one of each direction ends while the others go on. */
static void rule_comms(struct check_side *s)
{
	struct check_plan p[2 * COMMS];
	struct check_flow *f[2 * COMMS];

	if (s->props.device_type != GANTRY_NET_DEVICE_UNPACK) /* which wants device handles */
		pending_connects(s);
	for (int i = 0; i < 2 * COMMS; i++) {
		int sending = (s->role + i) & 1;

		check_plan_uniform(s, &p[i], i < 2 ? 4 : 40, 70000 + 1111 * (size_t)i, 70000 + 1111 * (size_t)i);
		p[i].seed = (uint64_t)i;
		f[i] = check_flow_open(s, &p[i], check_link(s, sending), sending);
	}
	check_phase(s, "%d connections, both directions", 2 * COMMS);
	check_flows_run(f, 2);
	check_flow_close(f[0]);
	check_flow_close(f[1]);
	check_flows_run(f + 2, 2 * COMMS - 2);
	check_meet(s);
	for (int i = 2; i < 2 * COMMS; i++)
		check_flow_close(f[i]);
	check_note(s, "%d connections at once, half of them each way", 2 * COMMS);
}

/* A context of its own for each communicator: one ends while the other's connections move data. */
static void second_context_job(struct check_side *s, void *ctx)
{
	check_init(s, ctx);
}

static void end_context_job(struct check_side *s, void *ctx)
{
	CHECK_MUST(s, CHECK_SERVICE, "finalize", s->net->ops->finalize(s->net, ctx));
}

static void rule_contexts(struct check_side *s)
{
	void *first = s->ctx, *second = NULL;
	struct check_flow *f[2];
	struct check_plan p;

	if (s->version < 11)
		check_skip(s, "no contexts before v11");
	check_plan_uniform(s, &p, 60, 100000, 100000);
	f[0] = check_flow_open(s, &p, check_link(s, s->role), s->role);
	check_service(s, second_context_job, &second);
	s->ctx = second;
	f[1] = check_flow_open(s, &p, check_link(s, s->role), s->role);
	check_phase(s, "two contexts at once");
	for (int i = 0; i < 20; i++) {
		check_flow_post(f[0]);
		check_flow_test(f[0]);
	}
	check_flow_run(f[1]);
	check_meet(s);
	check_flow_close(f[1]);
	check_phase(s, "finalize of one context while another moves data");
	check_service_start(s, end_context_job, second);
	s->ctx = first;
	check_flow_run(f[0]);
	check_service_wait(s);
	check_meet(s);
	check_flow_close(f[0]);
	check_note(s, "a context ended while the connections of another moved data");
}

/*
 * The messages of a collective: eight slots, receives as large as a slice, sends as large as the data, which ends with a
 * part of a slice, even or odd. Of the protocols that NCCL has, each with the size of its slices.
 */
static void rule_nccl_sizes(struct check_side *s)
{
	static const size_t slices[] = {SIMPLE_SLICE, P2P_CHUNK, LL_SLICE, LL128_SLICE, SIMPLE_SLICE / 2};
	static const size_t ends[] = {0, 4, 2, 1, 13, 1000, 4097};
	uint64_t bytes = 0;
	struct check_plan p;

	check_plan_make(s, &p, SLICE_MESSAGES);
	for (int i = 0; i < p.count; i++) {
		size_t slice = slices[i / 2 % 5], end = ends[i % 7];

		p.groups[i].recv[0] = slice;
		p.groups[i].send[0] = i % 2 ? end : slice - end;
		p.groups[i].tag[0] = 100003; /* the sender's rank */
		bytes += p.groups[i].send[0];
	}
	check_flow_once(s, &p);
	check_note(s, "%d messages as large as NCCL's slices and their ends, %.1f MB", p.count, (double)bytes / 1e6);
}

/* Tags are ranks, and each rank's sends run ahead of the others'. */
static void rule_tags_ahead(struct check_side *s)
{
	struct check_plan p;
	int n = 2; /* more make NCCL's windows shorter */

	if (s->props.max_recvs == 1)
		check_skip(s, "maxRecvs is 1: no grouped receives");
	check_plan_make(s, &p, 200);
	for (int i = 0; i < p.count; i++) {
		p.groups[i].n = n;
		for (int k = 0; k < n; k++) {
			p.groups[i].tag[k] = 70000 + k;
			p.groups[i].send[k] = p.groups[i].recv[k] = 64 + (size_t)((i * 7 + k * 131) % 3000);
		}
	}
	p.by_tag = 1;
	check_flow_once(s, &p);
	check_note(s, "%d groups of %d; sends of a tag up to %d groups ahead of another's", p.count, n,
		   CHECK_STEPS - 1);
}

/* User buffers: many registrations of a connection, that overlap and end in another order. */
static void rule_registrations(struct check_side *s)
{
	enum { BYTES = 4096 };
	uint8_t *buf = malloc(REGISTRATIONS * (size_t)BYTES);
	void *mr[REGISTRATIONS], *comm = check_link(s, s->role), *own;
	struct check_flow *f;
	struct check_plan p;

	if (!buf)
		check_fail(s, "no memory (a limit of this machine)");
	if (s->props.device_type == GANTRY_NET_DEVICE_UNPACK)
		check_skip(s, "device type UNPACK: registrations of users are refused");
	check_plan_uniform(s, &p, 30, 9000, 9000);
	f = check_flow_open(s, &p, comm, s->role);
	own = f->mr;
	check_phase(s, "%d registrations at once", REGISTRATIONS);
	for (int i = 0; i < REGISTRATIONS; i++)
		mr[i] = check_reg(s, comm, buf + i / 2 * (size_t)BYTES, (size_t)(i % 2 + 1) * BYTES);
	for (int i = 0; i < REGISTRATIONS; i += 2)
		check_dereg(s, comm, mr[i]);
	f->mr = check_reg(s, comm, f->arena, f->arena_size); /* the same memory once more: one ends, the other stays */
	check_dereg(s, comm, own);
	check_flow_run(f);
	for (int i = REGISTRATIONS - 1; i > 0; i -= 2)
		check_dereg(s, comm, mr[i]);
	check_meet(s);
	check_flow_close(f);
	free(buf);
	check_note(s, "%d registrations of a connection at once", REGISTRATIONS + 2);
}

/* NCCL's bootstrap over the network (NCCL_OOB_NET_ENABLE): a ring in which each step has a tag of its own, without places
 * for sizes and without profiler handles; the next message is posted when the one before has arrived. */
static void rule_bootstrap(struct check_side *s)
{
	struct check_flow *f[2];
	struct check_plan p;

	if (s->props.device_type == GANTRY_NET_DEVICE_UNPACK)
		check_skip(s, "device type UNPACK: the bootstrap consumes no receive");
	s->nccl.phandle = NULL;
	check_plan_uniform(s, &p, RING_STEPS, RING_BYTES, RING_BYTES);
	p.window = 1;
	p.null_sizes = 1;
	for (int i = 0; i < p.count; i++)
		p.groups[i].tag[0] = i;
	for (int i = 0; i < 2; i++)
		f[i] = check_flow_open(s, &p, check_link(s, s->role != i), s->role != i);
	check_phase(s, "a ring of two, without sizes and profiler handles");
	check_flows_run(f, 2);
	check_meet(s);
	for (int i = 0; i < 2; i++)
		check_flow_close(f[i]);
	check_note(s, "%d steps of a ring, sizes and profiler handles NULL", RING_STEPS);
}

/* Counters of 16 bits wrap; what is left behind for each message shows. A slow plugin gets fewer messages: both sides agree
 * on that after each tenth. */
static void rule_many(struct check_side *s)
{
	uint64_t half = check_left_ns(s) / 2;
	void *comm = check_link(s, s->role);
	long before = 0, grown = 0;
	struct check_flow *f;
	struct check_plan p;
	int more = 1, total = 0;

	check_plan_uniform(s, &p, MANY_MESSAGES, 4, 8);
	f = check_flow_open(s, &p, comm, s->role);
	check_phase(s, "up to %d messages", MANY_MESSAGES);
	while (more) {
		int want;

		f->total = total += MANY_MESSAGES / 10;
		check_flow_run(f);
#ifndef GANTRY_SANITIZED /* which are slow */
		/* A busy machine stops a call as well, but not one of every few hundred. */
		if (s->waits > WAITS_MAX && s->waits > s->calls / CALLS_PER_WAIT)
			check_fail(s, "%d of %d calls of isend, irecv and test took 20 ms and more", s->waits,
				   s->calls);
#endif
		if (total == MANY_MESSAGES / 2) /* pools have grown by now */
			before = check_rss_kb();
		more = total < MANY_MESSAGES && check_left_ns(s) > half;
		check_tell(s, &more, sizeof(more));
		check_hear(s, &want, sizeof(want));
		more = more && want;
	}
	grown = before ? check_rss_kb() - before : 0;
	check_flow_close(f);
#ifndef GANTRY_SANITIZED /* sanitizers hold back freed memory */
	if (grown > SLACK_KB)
		check_fail(s, "%ld KiB more memory after %d messages", grown, total - MANY_MESSAGES / 2);
#endif
	check_note(s, "%d messages on a connection, memory %+ld KiB", total, grown);
}

struct vdevice {
	struct gantry_net_vdevice want;
	int dev;
};

static void vdevice_job(struct check_side *s, void *arg)
{
	struct vdevice *v = arg;
	struct gantry_net_properties p;
	int n = 0;

	CHECK_MUST(s, CHECK_SERVICE, "makeVDevice", s->net->ops->make_vdevice(s->net, &v->want, &v->dev));
	CHECK_MUST(s, CHECK_SERVICE, "devices", s->net->ops->devices(s->net, &n));
	if (n != s->devices + 1 || v->dev != s->devices)
		check_fail(s, "makeVDevice gave device %d, and then there are %d devices, %d before", v->dev, n,
			   s->devices);
	CHECK_MUST(s, CHECK_SERVICE, "getProperties", s->net->ops->get_properties(s->net, v->dev, &p));
	if (p.vdev.ndevs != v->want.ndevs)
		check_fail(s, "a device made of %d says that it has %d", v->want.ndevs, p.vdev.ndevs);
}

/* NCCL fuses the ports of a NIC; the new device comes behind the others, with properties of its own. */
static void rule_vdevice(struct check_side *s)
{
	struct vdevice v = {.want = {.ndevs = 2, .devs = {0, 1}}, .dev = -1};
	struct check_link l = {.sending = s->role};
	struct check_flow *f;
	struct check_plan p;

	if (!check_has(s, CHECK_MAKE_VDEVICE))
		check_skip(s, "makeVDevice is NULL");
	if (s->devices < 2)
		check_skip(s, "one device: nothing to fuse");
	check_service(s, vdevice_job, &v);
	l.dev = v.dev;
	check_service(s, check_link_job, &l);
	check_plan_uniform(s, &p, 12, 200000, 200000);
	f = check_flow_open(s, &p, l.comm, s->role);
	check_flow_run(f);
	check_meet(s);
	check_flow_close(f);
	check_note(s, "device %d is made of devices 0 and 1 and carries messages", v.dev);
}

/* The callback looks at every event (check_side.c); here, that none is left. */
static void rule_profiler(struct check_side *s)
{
	struct check_plan p;

	if (s->version < 10)
		check_skip(s, "no profiler callback before v10");
	check_plan_uniform(s, &p, 40, 30000, 30000);
	check_flow_once(s, &p);
	if (s->events)
		check_fail(s, "%d profiler events were started and never stopped", s->events);
	check_note(s, "the profiler callback is given valid events, or none");
}

const struct check_rule check_rules_nccl[] = {
	{"nccl-sizes", "slices of NCCL's protocols and their ends", rule_nccl_sizes, 0, 0},
	{"tags-ahead", "one tag's sends may be posted before another's of an earlier group", rule_tags_ahead, 0, 0},
	{"bootstrap", "NCCL's ring over the network: no sizes, no profiler handles, a tag for each step",
	 rule_bootstrap, 0, 0},
	{"devices", "every device connects and carries messages", rule_devices, 0, 0},
	{"vdevice", "makeVDevice gives a device that carries messages", rule_vdevice, 0, 0},
	{"comms", "many connections at once, in both directions, that end at different times", rule_comms, 0, 0},
	{"contexts", "a context may end while another's connections move data", rule_contexts, 0, 0},
	{"registrations", "many registrations of a connection, overlapping", rule_registrations, 0, 0},
	{"profiler", "events for NCCL's profiler are started with its handles and stopped once", rule_profiler, 0, 0},
	{"many-messages", "70000 messages on a connection: counters wrap, nothing is left behind", rule_many, 0, 0},
	{0},
};
