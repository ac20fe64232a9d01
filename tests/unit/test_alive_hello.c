/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hellos are signs of life. A session that gets a new socket for a lane may have no other traffic: its control lane, which carries the
 * heartbeats, may be what is broken. A side that is dialled knows by each hello that the peer lives, and a side that dials by each
 * answer, also by one that says "not yet".
 * Catches: a peer that dials again and again and is given up for silence.
 *
 * The deadline is so long that no heartbeat comes. The accepting side does not read its control lane here, so it does not
 * learn that the other one has stopped a lane, and answers every hello for that lane with "not yet".
 */
#include "resume_util.h"

enum { OLD_S = 100, FRESH_S = 50, PATIENCE_S = 60, BYTES = MIB };

/* One at each end, for tags on which the other end has nothing yet: whoever asks for them looks after the link. */
static void *pending[2];

static void look(void)
{
	int done = 0;

	for (int i = 0; i < 2; i++) {
		CHECK_OK(ops->test(net, pending[i], &done, NULL));
		CHECK(!done);
	}
}

static struct tcp_link *link_of(int initiator)
{
	struct tcp_link *found = NULL;

	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node)
		if (l->entry->initiator == initiator)
			found = l;
	inet_loop_unlock();
	CHECK(found);
	return found;
}

static bool is_settled(struct tcp_link *l)
{
	bool settled;

	link_mu_lock(&l->mu);
	settled = l->lanes[1].resume->stopped && l->lanes[1].resume->settled;
	link_mu_unlock(&l->mu);
	return settled;
}

static uint64_t ticks_of_s(uint64_t s)
{
	return gantry_ticks_of_ns(s * 1000000000);
}

static bool is_fresh(struct tcp_link *l)
{
	return gantry_ticks() - load_relaxed(&l->last.heard) < ticks_of_s(FRESH_S);
}

/* The next sign of life comes by a hello, or an answer to one: nothing else is said. */
static void await_sign(struct tcp_link *l)
{
	uint64_t end = gantry_now_ns() + PATIENCE_S * 1000000000ull;

	store_relaxed(&l->last.heard, gantry_ticks() - ticks_of_s(OLD_S));
	for (; !is_fresh(l) && gantry_now_ns() < end; until_pause())
		look();
	CHECK(is_fresh(l));
}

/* A thread of its own has the lock of the control lane, and takes no other meanwhile. */
static struct {
	struct tcp_lane *lane;
	uint32_t is_held, is_over; /* release, acquire */
} hold;

static void *hold_control(void *arg)
{
	(void)arg;
	lane_rx_mu_lock(&hold.lane->rx.lock);
	store_release(&hold.is_held, 1);
	UNTIL(load_acquire(&hold.is_over));
	lane_rx_mu_unlock(&hold.lane->rx.lock);
	return NULL;
}

TEST(hello_and_answer)
{
	static uint8_t out[2][BYTES], in[2][BYTES];
	struct tcp_link *dials, *dialled;
	pthread_t holder;
	struct way w;
	void *ctx;

	set_params("GANTRY_RESUME", "on", "GANTRY_LANES", "3", "GANTRY_TIMEOUT", "3600s");
	start(&ctx, GANTRY_NET_UNDEF);
	w = connect_way(ctx);
	for (int i = 0; i < 2; i++)
		pattern_fill(out[i], BYTES, (uint64_t)i);
	pending[0] = post_send(w.send, out[0], BYTES, 0);
	pending[1] = post_recv(w.recv, in[1], BYTES, 1);
	dials = link_of(1);
	dialled = link_of(0);
	hold.lane = &dialled->lanes[0];
	threads_start(&holder, 1, hold_control, NULL, 0);
	UNTIL(load_acquire(&hold.is_held));
	cut_at(0, 1);
	UNTIL((look(), is_settled(dials)));
	CHECK(!is_settled(dialled));
	for (int i = 0; i < 3; i++) {
		await_sign(dialled);
		await_sign(dials);
	}
	CHECK(!is_settled(dialled));
	store_release(&hold.is_over, 1);
	threads_join(&holder, 1);
	wait_two(post_recv(w.recv, in[0], BYTES, 0), pending[0], NULL);
	wait_two(post_send(w.send, out[1], BYTES, 1), pending[1], NULL);
	for (int i = 0; i < 2; i++)
		CHECK_PATTERN(in[i], BYTES, (uint64_t)i);
	UNTIL(resumed() > 0);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}
