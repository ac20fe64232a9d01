/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that replay what a job of NCCL does as a whole: its sizes and tags, every device, many connections at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check/check.h"

/* Sanitizers make every byte ten times as dear. */
#ifdef GANTRY_SANITIZED
enum { MANY_MESSAGES = 3000, SLICE_MESSAGES = 12, CONTEXT_MESSAGES = 60 };
#else
enum { MANY_MESSAGES = 70000, SLICE_MESSAGES = 40, CONTEXT_MESSAGES = 2000 };
#endif
enum {
	DEVICES_MAX = 16,
	BUSY_COMMS = 8, /* of the connections: those with large messages */
	REGISTRATIONS = 64,
	RING_STEPS = 40,
	SLACK_KB = 512,
	TAG_BYTES = 3 << 20,
	PENDING = 16,
	PENDING_PAUSE_US = 100,
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
		check_flows_finish(&f, 1);
	}
	check_note(s, "%d of %d devices carry messages", n, s->devices);
}

/* Several connections made at once: each handle is its own. A accepts in the opposite order. */
struct pending {
	struct check_link *link;
	int n;
};

static void pending_job(struct check_side *s, void *arg)
{
	const struct pending *p = arg;
	int made = 0;

	for (int i = 0; i < p->n; i++)
		check_link_begin(s, &p->link[i]);
	while (made < p->n && check_left_ns(s)) {
		made = 0;
		for (int i = 0; i < p->n; i++) {
			struct check_link *l = &p->link[s->role ? i : p->n - 1 - i];

			made += l->comm || check_link_try(s, l);
		}
		if (made < p->n)
			usleep(PENDING_PAUSE_US);
	}
	if (made < p->n)
		check_late(s, "of %d connections made at once %d have a comm", p->n, made);
}

/*
 * Connections in both directions, made some at a time, all busy, of which some are done before the others. NCCL closes
 * those of a communicator together, and a rank that is done does not wait for the others.
 */
static void rule_comms(struct check_side *s)
{
	int n = s->extent.comms < s->props.max_comms ? s->extent.comms : s->props.max_comms;
	struct check_link *l = check_alloc(s, (size_t)n, sizeof(*l));
	struct check_plan *p = check_alloc(s, (size_t)n, sizeof(*p));
	struct check_flow **f = check_alloc(s, (size_t)n, sizeof(struct check_flow *));
	int early = n < BUSY_COMMS ? 1 : 2;

	for (int i = 0; i < n; i++)
		l[i].sending = (s->role + i) & 1;
	for (int i = 0; i < n; i += PENDING) {
		struct pending some = {l + i, n - i < PENDING ? n - i : PENDING};

		check_phase(s, "connections %d to %d, made at once", i, i + some.n);
		check_service(s, pending_job, &some);
	}
	for (int i = 0; i < n; i++) {
		size_t size = i < BUSY_COMMS ? 70000 + 1111 * (size_t)i : 2000;

		check_plan_uniform(s, &p[i], i < early ? 4 : i < BUSY_COMMS ? 40 : 12, size, size);
		p[i].seed = (uint64_t)i;
		p[i].seeds = n;
		f[i] = check_flow_open(s, &p[i], l[i].comm, l[i].sending);
	}
	check_phase(s, "%d connections, both directions", n);
	check_flows_run(f, early);
	check_flows_run(f + early, n - early);
	check_phase(s, "closing");
	for (int i = 0; i < n; i++)
		check_flow_close(f[i]);
	check_note(s, "%d connections at once, half of them each way, %d made at a time", n, PENDING < n ? PENDING : n);
}

/* A communicator of the rule on contexts: a connection each way. */
struct communicator {
	struct check_link link[2];
	struct check_plan plan[2];
	struct check_flow *flow[2];
	int first; /* of the messages of a run */
};

static void run_communicator(struct check_side *s, void *arg)
{
	struct communicator *c = arg;

	for (int i = 0; i < 2; i++) {
		if (!c->link[i].comm)
			check_service(s, check_link_end, &c->link[i]);
		if (!c->flow[i])
			c->flow[i] = check_flow_open(s, &c->plan[i], c->link[i].comm, c->link[i].sending);
		c->flow[i]->total = c->first + CONTEXT_MESSAGES / 2;
	}
	c->first += CONTEXT_MESSAGES / 2;
	check_flows_run(c->flow, 2);
}

static void close_communicator(struct check_side *s, void *arg)
{
	struct communicator *c = arg;

	for (int i = 0; i < 2; i++)
		check_flow_close(c->flow[i]);
	if (s->first_thread)
		check_communicator_end(s);
}

/* The same sizes in all of them: only the contents say whose a message is. */
static void begin_communicator(struct check_side *s, struct communicator *c, int number)
{
	static const size_t sizes[] = {8, 64, 1000, 4096, 16384};

	for (int i = 0; i < 2; i++) {
		check_plan_make(s, &c->plan[i], CONTEXT_MESSAGES);
		c->plan[i].seed = 2 * (uint64_t)number + (uint64_t)i;
		c->plan[i].seeds = 2 * CHECK_COMMUNICATORS;
		for (int k = 0; k < CONTEXT_MESSAGES; k++)
			c->plan[i].groups[k].send[0] = c->plan[i].groups[k].recv[0] = k % 20 ? sizes[k % 5] : 100000;
		c->link[i].sending = s->role != i;
		check_service(s, check_link_begin, &c->link[i]);
	}
}

/*
 * Communicators with threads and, from v11 on, contexts of their own connect and move data at the same time; then one
 * ends while the others move data.
 */
static void rule_contexts(struct check_side *s)
{
	static struct communicator c[CHECK_COMMUNICATORS];
	struct check_side *of[CHECK_COMMUNICATORS] = {s};

	for (int i = 1; i < CHECK_COMMUNICATORS; i++)
		of[i] = check_communicator(s, i);
	for (int i = 0; i < CHECK_COMMUNICATORS; i++)
		begin_communicator(of[i], &c[i], i);
	check_meet(s);
	for (int round = 0; round < 2; round++) {
		check_phase(s, round ? "one communicator ends while others move data" : "%d communicators at once",
			    CHECK_COMMUNICATORS);
		for (int i = 1; i < CHECK_COMMUNICATORS; i++)
			check_communicator_start(of[i], round && i == 1 ? close_communicator : run_communicator, &c[i]);
		run_communicator(s, &c[0]);
		for (int i = 1; i < CHECK_COMMUNICATORS; i++)
			check_communicator_wait(of[i]);
	}
	check_meet(s);
	check_phase(s, "closing");
	for (int i = 0; i < CHECK_COMMUNICATORS; i++)
		if (i != 1)
			close_communicator(of[i], &c[i]);
	check_note(s, "%d communicators with threads%s of their own, %d messages each way; one ended early",
		   CHECK_COMMUNICATORS, s->version >= 11 ? " and contexts" : "", CONTEXT_MESSAGES);
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
			p.groups[i].tag[k] = 70000 + (k << 16);
			/* Some wait for room in the sender's buffers while another tag's are tested. */
			p.groups[i].send[k] = p.groups[i].recv[k] =
				i % 10 == k * 4 ? TAG_BYTES : 64 + (size_t)((i * 7 + k * 131) % 3000);
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
	uint8_t *buf = check_alloc(s, REGISTRATIONS, BYTES);
	void *mr[REGISTRATIONS], *comm = check_link(s, s->role), *own;
	struct check_flow *f;
	struct check_plan p;

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

	s->nccl.phandle = NULL;
	check_plan_uniform(s, &p, RING_STEPS, RING_BYTES, RING_BYTES);
	p.window = 1;
	p.null_sizes = 1;
	for (int i = 0; i < p.count; i++)
		p.groups[i].tag[0] = i;
	for (int i = 0; i < 2; i++)
		f[i] = check_flow_open(s, &p, check_link(s, s->role != i), s->role != i);
	check_phase(s, "a ring of two, without sizes and profiler handles");
	check_flows_finish(f, 2);
	check_note(s, "%d steps of a ring, sizes and profiler handles NULL", RING_STEPS);
}

/* Counters of 16 bits wrap; what is left behind for each message shows. A slow plugin gets fewer messages: both sides agree
 * on that after each tenth. */
static void rule_many(struct check_side *s)
{
	uint64_t half = check_left_ns(s) / 2;
	void *comm = check_link(s, s->role);
	struct check_memory before = {0};
	struct check_flow *f;
	long grown = 0;
	struct check_plan p;
	int more = 1, total = 0;

	check_plan_uniform(s, &p, MANY_MESSAGES, 4, 8);
	f = check_flow_open(s, &p, comm, s->role);
	check_phase(s, "up to %d messages", MANY_MESSAGES);
	while (more) {
		int want;

		f->total = total += MANY_MESSAGES / 10;
		check_flow_run(f);
		check_waits(s, "isend, irecv and test");
		if (total == MANY_MESSAGES / 2) /* pools have grown by now */
			check_memory_now(&before);
		more = total < MANY_MESSAGES && check_left_ns(s) > half;
		check_tell(s, &more, sizeof(more));
		check_hear(s, &want, sizeof(want));
		more = more && want;
	}
	grown = before.resident ? check_grown_kb(&before) : 0;
	check_flow_close(f);
#ifndef GANTRY_SANITIZED /* sanitizers hold back freed memory */
	if (grown > SLACK_KB)
		check_fail(s, "%ld KiB more memory after %d messages", grown, total - MANY_MESSAGES / 2);
#endif
	check_note(s, "%d messages on a connection, memory %+ld KiB", total, grown);
}

struct vdevice {
	struct gantry_net_vdevice want;
	gantry_result made;
	int dev;
};

/*
 * NCCL forgets the number that makeVDevice gives: it asks for the number of devices again and takes those behind the ones
 * that it knew, also after an error, which it only logs.
 */
static void vdevice_job(struct check_side *s, void *arg)
{
	struct vdevice *v = arg;
	struct gantry_net_properties p;
	int n = 0;

	v->made = CHECK_CALL(s, CHECK_SERVICE, "makeVDevice", s->net->ops->make_vdevice(s->net, &v->want, &v->dev));
	CHECK_MUST(s, CHECK_SERVICE, "devices", s->net->ops->devices(s->net, &n));
	if (v->made == GANTRY_OK && n <= s->devices)
		check_fail(s, "makeVDevice succeeded, and there are %d devices, %d before: NCCL would use none", n,
			   s->devices);
	v->dev = n > s->devices ? s->devices : 0;
	CHECK_MUST(s, CHECK_SERVICE, "getProperties", s->net->ops->get_properties(s->net, v->dev, &p));
	if (n <= s->devices)
		return;
	if (p.vdev.ndevs != v->want.ndevs)
		check_fail(s, "a device made of %d says that it has %d", v->want.ndevs, p.vdev.ndevs);
	for (int i = 0; i < p.vdev.ndevs; i++)
		if (p.vdev.devs[i] < 0 || p.vdev.devs[i] >= s->devices)
			check_fail(s, "a device made of %d names device %d of %d", v->want.ndevs, p.vdev.devs[i],
				   s->devices);
}

/* NCCL fuses the ports of a NIC; the new device comes behind the others, with properties of its own. One that refuses
 * keeps its devices as they are. */
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
	check_phase(s, "device %d after makeVDevice", v.dev);
	check_service(s, check_link_job, &l);
	check_plan_uniform(s, &p, 12, 200000, 200000);
	f = check_flow_open(s, &p, l.comm, s->role);
	check_flows_finish(&f, 1);
	if (v.made != GANTRY_OK)
		check_note(s, "makeVDevice gives %s; NCCL then uses the devices one by one, and they carry messages",
			   gantry_result_name(v.made));
	else
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
	{"vdevice", "makeVDevice gives a device that carries messages, or an error and changes nothing", rule_vdevice,
	 0, 0},
	{"comms", "many connections at once, in both directions, of which some are done early", rule_comms, 0, 0},
	{"contexts", "communicators with threads and contexts of their own at once, of which one ends", rule_contexts,
	 0, 0},
	{"registrations", "many registrations of a connection, overlapping", rule_registrations, 0, 0},
	{"profiler", "events for NCCL's profiler are started with its handles and stopped once", rule_profiler, 0, 0},
	{"many-messages", "70000 messages on a connection: counters wrap, nothing is left behind", rule_many, 0, 0},
	{0},
};
