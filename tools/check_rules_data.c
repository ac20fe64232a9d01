/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on what arrives: order, tags, sizes and bytes. */
#include "check.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

/* Sanitizers make every byte ten times as dear. */
#ifdef GANTRY_SANITIZED
enum { LARGE = (8 << 20) + 3 };
#else
enum { LARGE = (64 << 20) + 3 };
#endif
enum { ORDER_MESSAGES = 400, GROUPS = 60 };

/* 1 to 2^max_bits, every power of two as often as any other. */
static size_t random_size(uint64_t *rng, int max_bits)
{
	size_t top = (size_t)1 << check_random(rng) % (uint64_t)(max_bits + 1), limit = (size_t)1 << max_bits;
	size_t size = top + check_random(rng) % top;

	return size < limit ? size : limit;
}

static void rule_ordering(struct check_side *s)
{
	uint64_t rng = 1, bytes = 0;
	struct check_plan p;

	check_plan_make(s, &p, ORDER_MESSAGES);
	for (int i = 0; i < p.count; i++) {
		p.groups[i].send[0] = p.groups[i].recv[0] = random_size(&rng, 17);
		bytes += p.groups[i].send[0];
	}
	p.window = 16;
	p.misalign = 1;
	check_flow_once(s, &p);
	check_note(s, "%d messages of random sizes, %.1f MB, in posting order", p.count, (double)bytes / 1e6);
}

/* Distinct tags within a group, from a small set so that groups reuse them; sends in another order than buffers. */
static void shuffle_group(struct check_group *g, uint64_t *rng)
{
	int tags[2 * GANTRY_NET_MAX_RECVS];

	for (int i = 0; i < 2 * GANTRY_NET_MAX_RECVS; i++)
		tags[i] = 100 + 7 * i;
	for (int k = 0; k < g->n; k++) {
		int pick = k + (int)(check_random(rng) % (uint64_t)(2 * GANTRY_NET_MAX_RECVS - k));
		int t = tags[pick];

		tags[pick] = tags[k];
		tags[k] = t;
		g->tag[k] = t;
	}
	for (int k = g->n - 1; k > 0; k--) {
		int pick = (int)(check_random(rng) % (uint64_t)(k + 1));
		int t = g->order[pick];

		g->order[pick] = g->order[k];
		g->order[k] = t;
	}
}

static void rule_grouped_tags(struct check_side *s)
{
	uint64_t rng = 2;
	struct check_plan p;
	int max = s->props.max_recvs;

	if (max == 1)
		check_skip(s, "maxRecvs is 1: no grouped receives");
	check_plan_make(s, &p, GROUPS);
	for (int i = 0; i < p.count; i++) {
		struct check_group *g = &p.groups[i];

		g->n = i % 3 ? 1 + (int)(check_random(&rng) % (uint64_t)max) : max;
		for (int k = 0; k < g->n; k++)
			g->send[k] = g->recv[k] = i % 4 == 3 ? random_size(&rng, 16) : 1000;
		shuffle_group(g, &rng);
	}
	check_flow_once(s, &p);
	check_note(s, "%d groups of 1 to %d buffers, sends in shuffled order", p.count, max);
}

static void rule_recv_larger(struct check_side *s)
{
	uint64_t rng = 3;
	struct check_plan p;

	check_plan_make(s, &p, 80);
	for (int i = 0; i < p.count; i++) {
		p.groups[i].send[0] = random_size(&rng, i % 10 ? 14 : 18);
		p.groups[i].recv[0] = p.groups[i].send[0] + 1 + random_size(&rng, i % 5 ? 12 : 17);
	}
	check_flow_once(s, &p);
	check_note(s, "%d messages into larger buffers: sizes right, the rest untouched", p.count);
}

static void rule_zero_bytes(struct check_side *s)
{
	struct check_plan p;

	check_plan_make(s, &p, 60);
	for (int i = 0; i < p.count; i++) {
		p.groups[i].send[0] = i % 3 == 1 ? 500 : 0;
		p.groups[i].recv[0] = i % 3 == 0 ? 0 : 500;
	}
	check_flow_once(s, &p);
	check_note(s, "%d messages, two thirds of them empty", p.count);
}

static void rule_test_sizes(struct check_side *s)
{
	uint64_t rng = 4;
	struct check_plan p;

	check_plan_make(s, &p, 40);
	for (int i = 0; i < p.count; i++) {
		struct check_group *g = &p.groups[i];

		g->n = 1 + i % s->props.max_recvs;
		for (int k = 0; k < g->n; k++) {
			g->tag[k] = k;
			g->send[k] = random_size(&rng, i % 8 ? 10 : 17);
			g->recv[k] = i % 2 ? g->send[k] : g->send[k] + 100;
		}
	}
	p.null_sizes = 1;
	check_flow_once(s, &p);
	check_note(s, "sends and receives of groups of 1 to %d report what was sent", s->props.max_recvs);
}

/* The receiver of a message that does not fit: an error, soon, and not a byte past the buffer. */
static gantry_result misfit_receive(struct check_side *s, void *comm, size_t send, size_t recv)
{
	uint8_t *buf = malloc(send + CHECK_GUARD);
	void *data = buf, *mr, *request = NULL;
	int tag = 0, done = 0, size = -1;
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = s->net;
	size_t at;

	if (!buf)
		check_fail(s, "no memory (a limit of this machine)");
	memset(buf, CHECK_POISON, send + CHECK_GUARD);
	mr = check_reg(s, comm, buf, recv);
	check_phase(s, "receiving %zu bytes into %zu", send, recv);
	while (r == GANTRY_OK && !done && check_left_ns(s)) {
		if (!request)
			r = CHECK_CALL(s, CHECK_PROGRESS, "irecv",
				       net->ops->irecv(net, comm, 1, &data, &recv, &tag, &mr, &request));
		else
			r = CHECK_CALL(s, CHECK_PROGRESS, "test", net->ops->test(net, request, &done, &size));
		sched_yield();
	}
	at = check_untouched(buf + recv, send - recv + CHECK_GUARD);
	if (at < send - recv + CHECK_GUARD)
		check_fail(s, "a send of %zu bytes wrote byte %zu of a receive of %zu", send, recv + at, recv);
	if (done)
		check_fail(s, "a send of %zu bytes into a receive of %zu was reported done, %d bytes", send, recv,
			   size);
	if (r == GANTRY_OK)
		check_fail(s, "no error for a send of %zu bytes into a receive of %zu", send, recv);
	check_dereg(s, comm, mr);
	check_close(s, CHECK_RECV_COMM, comm);
	at = check_untouched(buf + recv, send - recv + CHECK_GUARD);
	if (at < send - recv + CHECK_GUARD)
		check_fail(s, "a send of %zu bytes wrote byte %zu of a receive of %zu", send, recv + at, recv);
	free(buf);
	return r;
}

/* The sender goes on testing until the receiver has seen the error: it may learn of it, or have completed. */
static void misfit_send(struct check_side *s, void *comm, size_t send)
{
	struct gantry_net *net = s->net;
	uint8_t *buf = calloc(1, send);
	void *request = NULL, *mr;
	int done = 0;
	gantry_result r = GANTRY_OK;

	if (!buf)
		check_fail(s, "no memory (a limit of this machine)");
	mr = check_reg(s, comm, buf, send);
	check_phase(s, "sending %zu bytes that do not fit", send);
	while (!check_heard(s)) {
		if (r == GANTRY_OK && !request)
			r = CHECK_CALL(s, CHECK_PROGRESS, "isend",
				       net->ops->isend(net, comm, buf, send, 0, mr, &request));
		else if (r == GANTRY_OK && !done)
			r = CHECK_CALL(s, CHECK_PROGRESS, "test", net->ops->test(net, request, &done, NULL));
		if (!check_left_ns(s))
			break; /* the receiver says what is wrong */
		sched_yield();
	}
	check_meet(s);
	check_dereg(s, comm, mr);
	check_close(s, CHECK_SEND_COMM, comm);
	free(buf);
}

static void rule_size_mismatch(struct check_side *s)
{
	static const size_t sizes[][2] = {{4096, 1000}, {1 << 20, 1 << 16}};
	gantry_result r = GANTRY_OK;

	/* A connection each: after such an error it may be unusable. */
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		void *comm = check_link(s, s->role);

		if (s->role == 0) {
			r = misfit_receive(s, comm, sizes[i][0], sizes[i][1]);
			check_meet(s);
		} else {
			misfit_send(s, comm, sizes[i][0]);
		}
	}
	check_note(s, "the receiver got %s and nothing was written past its buffer", gantry_result_name(r));
}

/* Both directions at once: a connection each way. */
static void rule_large(struct check_side *s)
{
	void *comm[2];
	struct check_flow *f[2];
	struct check_plan p;

	check_plan_uniform(s, &p, 1, LARGE, LARGE);
	p.misalign = 1;
	p.window = 1;
	for (int i = 0; i < 2; i++) {
		comm[i] = check_link(s, s->role != i);
		f[i] = check_flow_open(s, &p, comm[i], s->role != i);
	}
	check_phase(s, "sending and receiving %d bytes", LARGE);
	check_flow_run(f[0], f[1]);
	check_meet(s);
	for (int i = 0; i < 2; i++)
		check_flow_close(f[i]);
	check_note(s, "%d bytes from and to odd addresses, both ways at once", LARGE);
}

static void rule_optional_recv(struct check_side *s)
{
	uint64_t rng = 5;
	struct check_plan p;

	check_plan_make(s, &p, 60);
	for (int i = 0; i < p.count; i++)
		p.groups[i].send[0] = p.groups[i].recv[0] = random_size(&rng, i % 10 ? 12 : 17);
	p.optional = 1;
	check_flow_once(s, &p);
	check_note(s, "%d receives as for LL and LL128: the bytes arrive in the buffer given", p.count);
}

const struct check_rule check_rules_data[] = {
	{"ordering", "messages arrive in the order they were posted, byte for byte", rule_ordering, 0, 0},
	{"grouped-tags", "tags pick the buffer within a grouped receive", rule_grouped_tags, 0, 0},
	{"recv-larger", "a receive may be larger than its send", rule_recv_larger, 0, 0},
	{"size-mismatch", "a send larger than its receive is an error and overwrites nothing", rule_size_mismatch, 0,
	 0},
	{"zero-bytes", "empty messages are messages", rule_zero_bytes, 0, 0},
	{"test-sizes", "test reports the bytes that were sent, in the order of the buffers", rule_test_sizes, 0, 0},
	{"optional-recv", "irecv entered with *request = 1 (LL, LL128) delivers into the buffer given",
	 rule_optional_recv, 0, 0},
	{"large", "64 MiB + 3 bytes at odd addresses, both directions at once", rule_large, 0, 0},
	{0},
};
