/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service thread that is held up again and again for a little, while nothing comes from the peer.
 * Catches: time that the thread did not observe, and that counts as silence of the peer.
 */
#include "relay.h"
#include "tcp_util.h"

static struct relay box = {.lanes = 1, .find = listening_port};

TEST(held_up_in_small_parts)
{
	enum { TIMEOUT_MS = 4000, PART_MS = 450 }; /* less than an eighth of it and a tick */
	uint64_t held_up = 0, free_since, observed = 0;
	uint8_t out = 7, in = 0;
	void *ctx, *send, *recv;
	struct way w;

	relay_make(&box, 0, 1);
	relay_advertise(&box);
	relay_start(&box);
	set_params("GANTRY_TIMEOUT", "4s");
	start(&ctx, GANTRY_NET_UNDEF);
	w = connect_way(ctx);
	__atomic_store_n(&box.frozen, 1, __ATOMIC_RELEASE);
	free_since = gantry_now_ns();
	/* Ends before the thread has seen half of the deadline, whatever else the machine does. */
	while (held_up < TIMEOUT_MS * 5 / 4 && observed < TIMEOUT_MS / 2) {
		uint64_t passes;

		inet_loop_lock();
		observed += (gantry_now_ns() - free_since) / 1000000;
		sleep_ms(PART_MS);
		held_up += PART_MS;
		passes = inet_loop.passes;
		free_since = gantry_now_ns();
		inet_loop_unlock();
		for (bool passed = false; !passed; sleep_ms(1)) {
			inet_loop_lock();
			passed = inet_loop.passes != passes;
			inet_loop_unlock();
		}
	}
	__atomic_store_n(&box.frozen, 0, __ATOMIC_RELEASE);
	if (held_up < TIMEOUT_MS * 5 / 4)
		SKIP("this machine was too busy: the thread ran for %d ms", (int)observed);
	recv = post_recv(w.recv, &in, 1, 0);
	send = post_send(w.send, &out, 1, 0);
	wait_two(recv, send, NULL);
	CHECK_EQ(in, 7);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
	relay_stop(&box);
}
