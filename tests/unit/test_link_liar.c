/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer that has joined a session of the data network and lies: every field of every frame, one at a time, at the edges of
 * its range, once and twice, on the control lane and on a bulk lane; while nothing is under way, while messages wait to be
 * sent, to be received or to be acknowledged, in the middle of a piece, and after a direction was closed; with resume and
 * without. What is checked where:
 *
 *   frame        field                  checked by
 *   all          kind, flags, mark      wire_frame_decode; the lane: begin_frame
 *   DATA         length, offset, total  get_piece (within the message), tcp_match_begin (the buffer, what has come before)
 *                seq                    end_bulk: taken, or too far ahead
 *                tag, index             tcp_match_buffer: a posted receive
 *   EAGER        length                 check_fits, begin_unexpected (the window), begin_message (a bounce buffer)
 *                tag, index             take_whole: came twice
 *   DESCRIPTOR   lane                   get_piece, tcp_flow_describe; the rest as DATA
 *   STATE        received, consumed     check_state: they grow, consumed <= received <= sent
 *                done, done_bits        done_fits: they grow, and count messages that are out
 *                tag, posted            tcp_tag_of (bounded); a credit grows only
 *   RTS          total                  check_fits; tag, index: tcp_tag_of
 *   CLOSE        bulk_sent              peer_said_all
 *   ERROR        length, result         get_fields, end_text
 *   ARRIVED      lane, bytes, pieces    get_fields, tcp_lane_arrived
 *   STOPPED      lane, generation, pieces   get_fields, on_control, tcp_resume_stopped
 *
 * Catches: writes and reads outside of buffers (with the sanitizers), a receive that is done without its bytes, a send that
 * is done before it is out, errors without a name.
 */
#include "link_pair.h"

enum { LANES = 3, SMALL = 100, BULK = 70000, GUARD = 64, FILL = 0xd6 };

static const struct pair_config config = {.nlanes = LANES, .eager_max = 256};

/* What is under way when the lie is told. */
enum state { IDLE, SENDS, SENT, RECEIVES, IN_PIECE, CLOSED, STATES };
enum { FIELDS = 8, VALUES = 12 };

static struct {
	struct tcp_link *l;
	int raw[WIRE_MAX_LANES];
	struct tcp_request *sends[2], *recvs[2];
	uint8_t out[BULK], in[2][GUARD + BULK + GUARD];
} run;

static void hear(int lane)
{
	static uint8_t away[1 << 16];

	while (recv(run.raw[lane], away, sizeof(away), MSG_DONTWAIT) > 0)
		;
}

static void pass(void)
{
	for (int i = 0; i < 4; i++) {
		tcp_link_progress(run.l);
		for (int k = 0; k < LANES; k++)
			hear(k);
	}
}

static struct tcp_request *post_send(size_t size, int tag)
{
	void *request = NULL;

	CHECK_OK(tcp_link_isend(run.l, run.out, size, tag, &request));
	CHECK(request);
	return request;
}

static struct tcp_request *post_recv(int i, size_t size)
{
	void *request = NULL, *to = run.in[i] + GUARD;
	int tag = 0;

	memset(run.in[i], FILL, sizeof(run.in[i]));
	CHECK_OK(tcp_link_irecv(run.l, 1, &to, &size, &tag, &request));
	CHECK(request);
	return request;
}

static void open_link(enum state state, bool resume)
{
	memset(run.sends, 0, sizeof(run.sends));
	memset(run.recvs, 0, sizeof(run.recvs));
	run.l = pair_raw(&config, run.raw);
	if (resume)
		CHECK_OK(tcp_resume_init(run.l));
	if (state == SENDS || state == SENT) {
		run.sends[0] = post_send(SMALL, 0);
		run.sends[1] = post_send(BULK, 0);
	}
	if (state == SENT) /* the second has its receive, and is out */
		pair_say(run.raw[0], &(struct pair_frame){.kind = WIRE_STATE, .flags = WIRE_FLAG_TAG, .index = 2},
			 NULL);
	if (state == RECEIVES || state == IN_PIECE) {
		run.recvs[0] = post_recv(0, SMALL);
		run.recvs[1] = post_recv(1, BULK);
	}
	if (state == IN_PIECE)
		pair_say(run.raw[2],
			 &(struct pair_frame){
				 .kind = WIRE_DATA, .length = BULK / 2, .offset = BULK / 2, .total = BULK, .index = 1},
			 NULL);
	if (state == CLOSED) {
		tcp_link_close_tx(run.l);
		pair_say(run.raw[0], &(struct pair_frame){.kind = WIRE_CLOSE}, NULL);
	}
	for (int i = 0; i < 3; i++)
		pass();
	CHECK(!tcp_link_failed(run.l));
}

static void close_link(void)
{
	pair_raw_free(&config, run.l, run.raw);
}

/* A frame that an honest peer might send here, with one field that is not. */
static struct pair_frame lie(uint8_t kind, int field, int value)
{
	static const uint64_t edges[VALUES] = {0,	  1,	     2,		SMALL,	  SMALL + PAIR_EAGER_SIZE,
					       BULK,	  BULK + 1,  INT32_MAX, 1u << 31, UINT32_MAX,
					       INT64_MAX, UINT64_MAX};
	struct pair_frame f = {.kind = kind, .index = 1};
	uint64_t v = edges[value];

	if (kind == WIRE_DATA || kind == WIRE_DESCRIPTOR)
		f.length = BULK / 2, f.total = BULK;
	if (kind == WIRE_EAGER)
		f.length = SMALL, f.index = 0;
	if (kind == WIRE_DESCRIPTOR)
		f.lane = 1;
	if (kind == WIRE_STATE)
		f.flags = WIRE_FLAG_TAG;
	switch (field) {
	case 0:
		f.flags = (uint8_t)(v & 255);
		break;
	case 1:
		f.length = (uint32_t)v;
		break;
	case 2:
		f.seq = v;
		break;
	case 3:
		f.offset = v;
		break;
	case 4:
		f.total = v;
		break;
	case 5:
		f.tag = (uint32_t)v;
		break;
	case 6:
		f.index = (uint32_t)v;
		break;
	default:
		f.done_bits = (uint32_t)v;
	}
	return f;
}

static void tell(int lane, const struct pair_frame *f)
{
	static const uint8_t payload[SMALL];
	uint8_t b[48];
	size_t n = pair_frame_put(b, f);

	send(run.raw[lane], b, n, MSG_NOSIGNAL);
	if (f->kind == WIRE_DATA || f->kind == WIRE_EAGER || f->kind == WIRE_ERROR)
		send(run.raw[lane], payload, f->length < SMALL ? f->length : SMALL, MSG_NOSIGNAL);
}

/* Done with all that it should have, under way, or failed with a name. */
static void check_request(struct tcp_request *request)
{
	gantry_result r;
	int done = 0, size = -1;

	if (!request)
		return;
	r = tcp_link_test(request, &done, &size);
	CHECK(r == GANTRY_OK || (r > GANTRY_AGAIN && r < GANTRY_RESULT_COUNT));
	if (r == GANTRY_OK && done && request == run.recvs[1])
		CHECK(size <= SMALL); /* what came of it is that much at most */
	if (r == GANTRY_OK && done && request == run.sends[1])
		CHECK(run.l->lanes[1].tx.bytes + run.l->lanes[2].tx.bytes >= BULK);
}

static void check_link(void)
{
	const struct tcp_link *l = run.l;

	if (tcp_link_failed(l))
		CHECK(l->end.error > GANTRY_AGAIN && l->end.error < GANTRY_RESULT_COUNT && *l->end.text);
	for (int i = 0; i < 2; i++) {
		check_request(run.sends[i]);
		check_request(run.recvs[i]);
		if (run.recvs[i]) {
			CHECK_FILLED(run.in[i], GUARD, FILL);
			CHECK_FILLED(run.in[i] + GUARD + (i ? BULK : SMALL), GUARD, FILL);
		}
	}
}

static void lies(enum state state, bool resume)
{
	for (uint8_t kind = 0; kind <= WIRE_KINDS; kind++) {
		for (int i = 0; i < FIELDS * VALUES; i++) {
			for (int lane = 0; lane < 2; lane++) {
				struct pair_frame f = lie(kind, i / VALUES, i % VALUES);

				CASE("state %d%s, kind %d, field %d, value %d, lane %d", state,
				     resume ? ", resume" : "", kind, i / VALUES, i % VALUES, lane);
				if (lane && i % VALUES > 2)
					continue; /* it is the kind that is refused there */
				open_link(state, resume);
				for (int times = 0; times < 2; times++) {
					tell(lane, &f);
					pass();
				}
				check_link();
				close_link();
			}
		}
	}
}

void tests_begin(void)
{
	logs_drop();
}

TEST(every_field)
{
	for (int state = 0; state < STATES; state++)
		lies((enum state)state, false);
}

TEST(every_field_with_resume)
{
	for (int state = 0; state < STATES; state++)
		lies((enum state)state, true);
}

/* ---- counters, number by number ---- */

static void expect(gantry_result r, const char *text)
{
	for (int i = 0; i < 4; i++)
		pass();
	CHECK_EQ(run.l->end.error, r);
	if (r != GANTRY_OK)
		CHECK_HAS(run.l->end.text, text);
	close_link();
}

/* One eager message of 100 bytes is out, and three bulk messages, of which the third waits for its receive. */
TEST(counters)
{
	enum { OUT = SMALL + PAIR_EAGER_SIZE };
	static const struct {
		uint64_t received, consumed, done;
		uint32_t bits;
		const char *text; /* NULL: it may be */
	} rows[] = {
		{0, 0, 0, 0, NULL},
		{OUT, 0, 0, 0, NULL},
		{OUT, OUT, 2, 0, NULL},
		{OUT, OUT, 0, 1, NULL},
		{OUT, OUT, 1, 0, NULL},
		{OUT + 1, 0, 0, 0, "125 eager bytes received, but 124 were sent"},
		{UINT64_MAX, 0, 0, 0, "eager bytes"},
		{0, OUT, 0, 0, "124 eager bytes consumed, but 0 received"},
		{OUT, OUT + 1, 0, 0, "125 eager bytes consumed"},
		{OUT, UINT64_MAX, 0, 0, "consumed"},
		{OUT, OUT, 3, 0, "3 bulk messages"},
		{OUT, OUT, 4, 0, "4 bulk messages"},
		{OUT, OUT, 0, 2, "0 bulk messages (and 00000002)"},
		{OUT, OUT, 2, 1, "finished"},
		{OUT, OUT, 1, 1u << 31, "finished"},
		{OUT, OUT, UINT64_MAX, 0, "finished"},
	};

	for (int resume = 0; resume < 2; resume++) {
		EACH_ROW (i, rows) {
			open_link(IDLE, resume);
			post_send(SMALL, 0);
			for (int k = 0; k < 3; k++)
				post_send(BULK, 1);
			tell(0, &(struct pair_frame){.kind = WIRE_STATE, .flags = WIRE_FLAG_TAG, .tag = 1, .index = 2});
			for (int k = 0; k < 4; k++)
				pass();
			CHECK(!tcp_link_failed(run.l));
			tell(0, &(struct pair_frame){.kind = WIRE_STATE,
						     .total = rows[i].received,
						     .offset = rows[i].consumed,
						     .seq = rows[i].done,
						     .done_bits = rows[i].bits});
			expect(rows[i].text ? GANTRY_ERR_PROTOCOL : GANTRY_OK, rows[i].text);
		}
	}
}

/* What was done is done for good. */
TEST(backwards)
{
	static const struct {
		uint64_t done[2];
		uint32_t bits[2];
		bool may;
	} rows[] = {
		{{1, 1}, {0, 0}, true},	 {{0, 0}, {2, 3}, true},  {{0, 1}, {2, 1}, true},  {{0, 3}, {2, 0}, true},
		{{1, 0}, {0, 0}, false}, {{0, 0}, {3, 2}, false}, {{0, 0}, {1, 0}, false}, {{0, 1}, {2, 0}, false},
		{{0, 1}, {1, 0}, false}, /* message 1 was done before */
	};

	EACH_ROW (i, rows) {
		open_link(IDLE, false);
		for (int k = 0; k < 3; k++)
			post_send(BULK, 1);
		tell(0, &(struct pair_frame){.kind = WIRE_STATE, .flags = WIRE_FLAG_TAG, .tag = 1, .index = 3});
		for (int k = 0; k < 6; k++)
			pass();
		for (int k = 0; k < 2; k++) {
			CHECK(!tcp_link_failed(run.l));
			tell(0, &(struct pair_frame){
					.kind = WIRE_STATE, .seq = rows[i].done[k], .done_bits = rows[i].bits[k]});
			pass();
		}
		expect(rows[i].may ? GANTRY_OK : GANTRY_ERR_PROTOCOL, "its previous report was");
	}
}

/* Pieces of a lane with resume: two were sent on the two lanes. */
TEST(pieces)
{
	static const struct {
		struct pair_frame f;
		const char *text;
	} rows[] = {
		{{.kind = WIRE_ARRIVED, .index = 1, .total = 1}, NULL},
		{{.kind = WIRE_ARRIVED, .index = 1, .total = 3}, "lane 1: peer reports 3 pieces received, but"},
		{{.kind = WIRE_ARRIVED, .index = 1, .total = UINT64_MAX}, "pieces received, but"},
		{{.kind = WIRE_ARRIVED, .index = 1, .tag = 1, .total = 9}, NULL}, /* of a socket that is not there */
		{{.kind = WIRE_ARRIVED, .index = LANES}, "only 3 lanes"},
		{{.kind = WIRE_ARRIVED, .index = 1, .seq = 1, .offset = 2}, "not a frame"},
		{{.kind = WIRE_STOPPED, .index = 1, .total = 3}, "lane 1: 3 pieces came, of"},
		{{.kind = WIRE_STOPPED, .index = 1, .tag = 1}, "generation 1 ends before it began"},
		{{.kind = WIRE_STOPPED, .index = 1, .tag = UINT32_MAX}, "generation 4294967295"},
		{{.kind = WIRE_STOPPED, .index = LANES}, "a STOPPED frame for a lane that cannot be replaced"},
		{{.kind = WIRE_STOPPED, .index = 0}, "not a frame"},
	};

	EACH_ROW (i, rows) {
		open_link(SENT, true);
		tell(0, &rows[i].f);
		expect(rows[i].text ? GANTRY_ERR_PROTOCOL : GANTRY_OK, rows[i].text);
	}
}

TEST(bulk_on_the_control_lane)
{
	open_link(RECEIVES, false);
	tell(0, &(struct pair_frame){.kind = WIRE_DATA, .length = 10, .total = 10, .index = 0});
	expect(GANTRY_ERR_PROTOCOL, "a piece of a bulk message on the control lane");
}
