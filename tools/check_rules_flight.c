/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on requests in flight: NULL requests, how many there may be, and two threads at work. */
#include "check.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/unpack.h"
#include "base/clock.h"

enum { HOLD_MS = 100, ACCEPT_MS = 2000, REG_REPEATS = 200, EXTRA_LINKS = 3 };

/* NCCL kept 8 requests in flight when v6 was current, 32 since. */
static int max_requests(const struct check_side *s)
{
	return s->version < 7 ? 8 : GANTRY_NET_MAX_REQUESTS;
}

/* The queue that kernels read has 16 slots, one for each receive. */
static int max_receives(const struct check_side *s)
{
	return s->props.device_type == GANTRY_NET_DEVICE_UNPACK ? GANTRY_UNPACK_DEPTH : max_requests(s);
}

/* Sends without receives, as many as are taken; after the receiver has come, the rest. */
static void rule_null_request(struct check_side *s)
{
	int sends = max_requests(s) * s->props.max_recvs, sending = s->role == 1;
	void *comm = check_link(s, sending);
	struct check_flow *f;
	struct check_plan p;
	int taken = 0;

	check_plan_uniform(s, &p, sends + 40, 16384, 16384);
	p.send_window = sends;
	f = check_flow_open(s, &p, comm, sending);
	if (sending) {
		uint64_t since = gantry_now_ns();

		check_phase(s, "posting sends that nobody receives yet");
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
	check_flow_run(f, NULL);
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

/* Posts without completing anything; a NULL request may be tried again, but not for long. */
static void post_all(struct check_side *s, struct check_flow *f, int want)
{
	uint64_t since = gantry_now_ns();

	while (f->posted < want) {
		if (check_flow_post(f))
			continue;
		if (gantry_now_ns() - since > ACCEPT_MS * (uint64_t)CHECK_MS)
			check_fail(s, "%s gave NULL for %d ms with %d requests in flight, %d are required",
				   f->sending ? "isend" : "irecv", ACCEPT_MS, f->posted, want);
		sched_yield();
	}
}

static void rule_in_flight(struct check_side *s)
{
	int groups = max_receives(s), sending = s->role == 1;
	void *comm = check_link(s, sending);
	struct check_flow *f;
	struct check_plan p;

	check_plan_make(s, &p, groups);
	for (int i = 0; i < groups; i++) {
		p.groups[i].n = s->props.max_recvs;
		for (int k = 0; k < p.groups[i].n; k++) {
			p.groups[i].tag[k] = k;
			p.groups[i].send[k] = p.groups[i].recv[k] = 200;
		}
	}
	p.window = groups;
	f = check_flow_open(s, &p, comm, sending);
	check_phase(s, "posting %d requests", f->total);
	if (!sending)
		post_all(s, f, f->total);
	check_meet(s);
	if (sending)
		post_all(s, f, f->total);
	check_meet(s);
	check_phase(s, "completing %d requests", f->total);
	check_flow_run(f, NULL);
	check_meet(s);
	check_flow_close(f);
	check_note(s, "%d receives and %d sends in flight", groups, groups * s->props.max_recvs);
}

/* What the service thread does while the progress thread moves data on comm. */
static void busy_service_job(struct check_side *s, void *comm)
{
	enum { BYTES = 1 << 16 };
	uint8_t *buf = malloc(BYTES);

	if (!buf)
		check_fail(s, "no memory (a limit of this machine)");
	for (int i = 0; i < REG_REPEATS; i++) {
		void *mr = NULL;

		CHECK_MUST(s, CHECK_SERVICE, "regMr",
			   s->net->ops->reg_mr(s->net, comm, buf, BYTES, GANTRY_NET_PTR_HOST, &mr));
		usleep(100);
		CHECK_MUST(s, CHECK_SERVICE, "deregMr", s->net->ops->dereg_mr(s->net, comm, mr));
	}
	for (int i = 0; i < EXTRA_LINKS; i++) {
		struct check_link l = {.sending = (s->role + i) & 1};

		check_link_job(s, &l);
		if (l.sending)
			CHECK_MUST(s, CHECK_SERVICE, "closeSend", s->net->ops->close_send(s->net, l.comm));
		else
			CHECK_MUST(s, CHECK_SERVICE, "closeRecv", s->net->ops->close_recv(s->net, l.comm));
		check_meet(s);
	}
	free(buf);
}

static void rule_threads(struct check_side *s)
{
	int sending = s->role == 1;
	void *comm = check_link(s, sending);
	struct check_flow *f;
	struct check_plan p;

	check_plan_uniform(s, &p, 300, 100000, 100000);
	for (int i = 0; i < p.count; i += 2)
		p.groups[i].send[0] = p.groups[i].recv[0] = 600;
	f = check_flow_open(s, &p, comm, sending);
	check_phase(s, "transferring while the other thread registers and connects");
	check_service_start(s, busy_service_job, comm);
	check_flow_run(f, NULL);
	check_service_wait(s);
	check_meet(s);
	check_flow_close(f);
	check_note(s, "%d regMr and deregMr and %d connections beside a transfer", REG_REPEATS, EXTRA_LINKS);
}

const struct check_rule check_rules_flight[] = {
	{"null-request", "sends without receives are taken or put off, and none is lost or doubled", rule_null_request,
	 0, 0},
	{"in-flight", "32 receives and 32 * maxRecvs sends can be in flight (8 at v6)", rule_in_flight, 0, 0},
	{"threads", "the service thread may register and connect while the progress thread moves data", rule_threads, 0,
	 0},
	{0},
};
