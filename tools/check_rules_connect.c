/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on making connections: the handle, nothing blocks, late peers. */
#include "check.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { LISTENERS = 4, TRIES = 20, TRY_PAUSE_MS = 3, BOUND_MS = 250, LATE_MS = 300, BIG = 1 << 20, POSTS = 8 };

static void listeners_job(struct check_side *s, void *arg)
{
	uint8_t handles[LISTENERS][GANTRY_NET_HANDLE_SIZE];
	void *listen[LISTENERS];

	(void)arg;
	check_phase(s, "listening %d times at once", LISTENERS);
	for (int i = 0; i < LISTENERS; i++) {
		listen[i] = check_listen(s, handles[i]);
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

/* A: accept while nobody connects. Then a listener that B connects to and nobody accepts on. */
static void lonely_accept_job(struct check_side *s, void *arg)
{
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *comm = NULL;

	for (int i = 0; i < LISTENERS; i++) {
		void *listen = check_listen(s, handle);

		check_phase(s, "accept with nobody connecting");
		for (int k = 0; k < TRIES / LISTENERS; k++) {
			CHECK_MUST(s, CHECK_SERVICE, "accept", s->net->ops->accept(s->net, listen, &comm, &none));
			if (comm)
				check_fail(s, "accept gave a comm though nobody connected");
			check_sleep_ms(TRY_PAUSE_MS);
		}
		CHECK_MUST(s, CHECK_SERVICE, "closeListen", s->net->ops->close_listen(s->net, listen));
	}
	*(void **)arg = check_listen(s, handle);
	check_tell(s, handle, sizeof(handle));
}

/* B: connect to a listener on which nobody accepts. */
static void lonely_connect_job(struct check_side *s, void *arg)
{
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void **comm = arg;

	check_phase(s, "connect with nobody accepting");
	check_hear(s, handle, sizeof(handle));
	for (int k = 0; k < TRIES && !*comm; k++) {
		CHECK_MUST(s, CHECK_SERVICE, "connect", s->net->ops->connect(s->net, s->ctx, 0, handle, comm, &none));
		check_sleep_ms(TRY_PAUSE_MS);
	}
}

/* Sends nobody receives, or receives nobody sends to: post some, then look at the oldest. */
static struct check_flow *lonely_posts(struct check_side *s, const struct check_plan *p, void *comm, int sending)
{
	struct check_flow *f = check_flow_open(s, p, comm, sending);

	check_phase(s, sending ? "isend and test with nobody receiving" : "irecv and test with nobody sending");
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
	check_flow_run(f, NULL);
	check_meet(s);
	check_flow_close(f);
}

static void rule_nonblocking(struct check_side *s)
{
	void *lonely = NULL; /* A: the listener nobody accepts on; B: what connecting to it gave, if anything */

	s->slow_ns = BOUND_MS * (uint64_t)CHECK_MS;
	check_service(s, s->role ? lonely_connect_job : lonely_accept_job, &lonely);
	check_meet(s);
	lonely_transfer(s, 0);
	lonely_transfer(s, 1);
	if (lonely)
		check_close(s, s->role ? CHECK_SEND_COMM : CHECK_LISTEN_COMM, lonely);
	check_note(s, "every call returned within %d ms while the peer did nothing", BOUND_MS);
}

static void late_transfer(struct check_side *s, unsigned connect_ms, unsigned accept_ms, int late_role)
{
	struct check_link l = {.sending = s->role, .connect_late_ms = connect_ms, .accept_late_ms = accept_ms};
	struct check_flow *f;
	struct check_plan p;

	check_phase(s, "linking (connect %u ms late, accept %u ms late)", connect_ms, accept_ms);
	check_service(s, check_link_job, &l);
	check_plan_uniform(s, &p, 12, 150000, 150000);
	for (int i = 0; i < p.count; i += 3)
		p.groups[i].send[0] = p.groups[i].recv[0] = 300;
	f = check_flow_open(s, &p, l.comm, s->role);
	check_phase(s, "transferring with the %s late", late_role ? "sender" : "receiver");
	if (s->role == late_role)
		check_sleep_ms(LATE_MS);
	check_flow_run(f, NULL);
	check_meet(s);
	check_flow_close(f);
}

static void rule_late_peer(struct check_side *s)
{
	late_transfer(s, LATE_MS, 0, 0);
	late_transfer(s, 0, LATE_MS, 1);
	check_note(s, "connect, accept, the receiver and the sender each %d ms late", LATE_MS);
}

const struct check_rule check_rules_connect[] = {
	{"handle-size", "listen and connect touch no more than the 128 bytes of the handle", rule_handle_size, 0, 0},
	{"nonblocking", "no call waits for a peer that does nothing", rule_nonblocking, 0, 2000},
	{"late-peer", "a peer that connects, accepts or posts late changes nothing", rule_late_peer, 0, 0},
	{0},
};
