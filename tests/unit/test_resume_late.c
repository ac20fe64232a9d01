/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All sockets of a session are gone, and the answer to the hello that is to bring the first one back comes too late: the side that
 * dials gives up and dials again.
 * Catches: a socket that is given up by ending it, which the other side, who has it already, takes for the end of the process.
 */
#include "relay.h"
#include "resume_util.h"

static struct relay box = {.lanes = 1};

static int64_t hold_answer(const struct relay_conn *c, int way)
{
	return way == TO_CLIENT && c->lane == 0 && c->nth == 1 ? INET_CHALLENGE_SIZE + 10 : RELAY_ALL;
}

TEST(answer_late)
{
	struct way w;
	void *ctx;

	box.find = listening_port;
	box.allow = hold_answer;
	relay_make(&box, 0, 1);
	relay_advertise(&box);
	relay_start(&box);
	w = open_way("auto", &ctx);
	CHECK_OK(stream(w, 20, 0, CUT_ONE));
	cut_at(1, -1);
	CHECK_OK(stream(w, 20, 0, CUT_ONE));
	CHECK(relay_hellos(&box, 0) >= 3);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
	relay_stop(&box);
}
