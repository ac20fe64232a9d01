/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GANTRY_CRC with GANTRY_RESUME: a relay flips bits of headers and payload, on the control lane and on bulk lanes, in both
 * directions. Every message must come whole, once and in order all the same, and the log must name what was damaged. A path
 * that damages too much, and a session without resume, end with ERR_CORRUPT.
 * Catches: a damaged frame that is used, or lost when it is repaired, a repair that never ends, one that nobody hears of.
 */
#include <limits.h>

#include "relay.h"
#include "resume_util.h"

enum { FIRST = 600 }; /* behind the hand-shake */

static struct relay box = {.lanes = 1};
static int most, most_control; /* sockets of each bulk lane, and of the control lane, that are damaged */
static uint64_t spread;	       /* up to where in the stream of each */

/* One bit of each socket and direction: in the payload of a bulk lane, or in the first header there; on the control lane, and
 * in what the receiver says, early, because that is not much. */
static void flip(const struct relay_conn *c, int way, uint8_t *bytes, size_t n)
{
	uint64_t random = random_at((uint64_t)(c->lane * 1000 + c->nth * 2 + way)), at;

	if (!c->lane || way == TO_CLIENT)
		at = FIRST + (random >> 8) % 400;
	else if (c->nth % 2)
		at = RELAY_FIRST + (random >> 8) % WIRE_FRAME_SIZE;
	else
		at = FIRST + (random >> 8) % spread;
	if (c->nth < (c->lane ? most : most_control) && at >= c->moved[way] && at - c->moved[way] < n)
		bytes[at - c->moved[way]] ^= (uint8_t)(1u << random % 8);
}

static gantry_result run_damaged(const char *resume, int bulk, int control, uint64_t bytes, uint64_t messages,
				 uint32_t *ret_repaired)
{
	struct way w;
	gantry_result r;
	void *ctx;

	most = bulk;
	most_control = control;
	spread = bytes;
	box.find = listening_port;
	box.alter = flip;
	relay_make(&box, 0, 1);
	relay_advertise(&box);
	relay_start(&box);
	setenv("GANTRY_RESUME", resume, 1);
	setenv("GANTRY_CRC", "1", 1);
	w = open_way("auto", &ctx);
	r = stream(w, messages, 0, 0);
	*ret_repaired = 0;
	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node)
		*ret_repaired += l->resume ? load_relaxed(&l->resume->repaired) : 0;
	inet_loop_unlock();
	printf("%s, %u repaired; %d of %d in headers\n", gantry_result_name(r), *ret_repaired,
	       logs_count("in the header of a frame"), logs_count("checksum mismatch"));
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
	relay_stop(&box);
	return r;
}

TEST(repaired)
{
	uint32_t repaired;
	char peer[64];

	CHECK_OK(run_damaged("on", 6, 6, SANITIZED ? 1 << 20 : 4 << 20, SANITIZED ? 100 : 200, &repaired));
	CHECK(repaired >= 10);
	CHECK_EQ(logs_count("; retransmitting"), repaired);
	CHECK(logs_count("checksum mismatch on lane 0, ") && logs_count("checksum mismatch on lane 1, message "));
	CHECK(logs_count("in the header of a frame; retransmitting"));
	snprintf(peer, sizeof(peer), "pid %d): checksum mismatch", (int)getpid());
	CHECK_EQ(logs_count(peer), repaired);
}

/* Bulk lanes bring no piece whole. */
TEST(too_much)
{
	uint32_t repaired;

	CHECK_EQ(run_damaged("on", INT_MAX, 0, 20000, 200, &repaired), GANTRY_ERR_CORRUPT);
	CHECK(repaired >= RESUME_REPAIRS);
	CHECK_HAS(gantry_last_error(), "checksum mismatch on lane ");
}

TEST(without_resume)
{
	uint32_t repaired;

	CHECK_EQ(run_damaged("off", 1, 0, 1 << 20, 200, &repaired), GANTRY_ERR_CORRUPT);
	CHECK_EQ(repaired, 0);
}

void tests_begin(void)
{
	tests_apart(1);
}
