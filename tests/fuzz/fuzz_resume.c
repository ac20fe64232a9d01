/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session that outlives its sockets against a peer that lies about it: a real link whose lanes lose their sockets and get
 * others, while the peer's frames count what was sent, received and finished nearly right, or not at all.
 *
 *   byte 0   bit 0: with checksums
 *   then operations, each a byte modulo OPS and its arguments
 *
 * What the service thread does to a lane (resume.c) is done here by the script, under the same conditions. Counters in frames
 * and hellos are what the link expects, moved by a small number, or an edge of their range.
 *
 * What must hold: nothing is read or written outside of buffers, no invariant breaks; a link that fails has an error with a name;
 * receives are written within their sizes, and not after they were reported.
 */
#include "link_pair.h"
#include "script.h"

enum { LANES = 3, RECVS = 12, SENDS = 48, ROOM = 12000, GUARD = 16, FILL = 0xd6, DONE_FILL = 0x3c, MAX_STEPS = 300 };

enum {
	OP_SEND, /* size, how many and tag */
	OP_RECV, /* size */
	OP_WORK,
	OP_STATE,   /* how, four numbers */
	OP_CREDIT,  /* tag, number */
	OP_ARRIVED, /* lane, two numbers */
	OP_STOPPED, /* lane, two numbers */
	OP_PIECE,   /* lane, kind, six numbers */
	OP_BYTES,   /* lane, bytes */
	OP_BREAK,   /* lane */
	OP_SETTLE,  /* lane */
	OP_SOCKET,  /* lane, number */
	OP_CLOSE,   /* which */
	OPS
};

struct box {
	void *request;
	size_t size;
	int done;
	uint8_t bytes[GUARD + ROOM + GUARD];
};

static struct {
	struct script in;
	struct tcp_link *l;
	int raw[LANES];
	struct box boxes[RECVS];
	int nboxes;
	void *sends[SENDS];
	int closed_tx, closed_rx;
	struct pair_config config;
} run;

static uint8_t send_data[100000], filler[ROOM];

static uint8_t next(void)
{
	return script_next(&run.in);
}

/* Near what it should be, or far from it. */
static uint64_t number(uint64_t truth)
{
	static const uint64_t edges[] = {0, 1, 24, 124, UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX};
	uint8_t v = next();

	if (v < 0x80)
		return truth; /* mostly */
	if (v >= 0xf0)
		return edges[v & 7];
	return truth + v - 0xb0;
}

static void give(int lane, const void *bytes, size_t n)
{
	if (run.raw[lane] >= 0)
		send(run.raw[lane], bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void say(int lane, struct pair_frame f, size_t payload)
{
	uint8_t b[48];

	if (run.config.crc) {
		f.flags |= WIRE_FLAG_CRC;
		if (payload)
			f.payload_crc = pair_crc(0, filler, payload);
	}
	give(lane, b, pair_frame_put(b, &f));
	give(lane, filler, payload);
}

/* Some of one size, as far as there are places: together more than the window. */
static void post_sends(void)
{
	static const size_t sizes[] = {0, 1, 100, 8192, 8193, 32768, 33000, 100000};
	size_t size = sizes[next() & 7];
	uint8_t how = next();

	for (int i = 0, n = 1 + (how >> 2 & 31); i < SENDS && n && !run.closed_tx && !tcp_link_failed(run.l); i++)
		if (!run.sends[i] && n--)
			tcp_link_isend(run.l, send_data, size, how & 1, &run.sends[i]);
}

static void post_recv(void)
{
	struct box *box = &run.boxes[run.nboxes];
	void *to;
	int tag = 0;
	size_t size = next() * 64u % ROOM;

	if (run.nboxes == RECVS || run.closed_rx || tcp_link_failed(run.l))
		return;
	*box = (struct box){.size = size};
	memset(box->bytes, FILL, sizeof(box->bytes));
	to = box->bytes + GUARD;
	if (tcp_link_irecv(run.l, 1, &to, &size, &tag, &box->request) == GANTRY_OK && box->request)
		run.nboxes++;
}

static void work(void)
{
	static uint8_t nowhere[1 << 16];

	for (int i = 0; i < 3; i++)
		tcp_link_progress(run.l);
	for (int i = 0; i < run.nboxes && !run.closed_rx; i++) {
		struct box *box = &run.boxes[i];
		int done = 0, size = 0;
		gantry_result r = box->done ? GANTRY_OK : tcp_link_test(box->request, &done, &size);

		MUST(r == GANTRY_OK || (r > GANTRY_AGAIN && r < GANTRY_RESULT_COUNT));
		if (box->done || r != GANTRY_OK || !done)
			continue;
		MUST(size >= 0 && (size_t)size <= box->size);
		box->done = 1;
		memset(box->bytes + GUARD, DONE_FILL, box->size);
	}
	for (int i = 0; i < SENDS && !run.closed_tx; i++) {
		int done = 0;
		gantry_result r = run.sends[i] ? tcp_link_test(run.sends[i], &done, NULL) : GANTRY_OK;

		MUST(r == GANTRY_OK || (r > GANTRY_AGAIN && r < GANTRY_RESULT_COUNT));
		if (r == GANTRY_OK && done)
			run.sends[i] = NULL;
	}
	for (int i = 0; i < LANES; i++)
		while (run.raw[i] >= 0 && recv(run.raw[i], nowhere, sizeof(nowhere), MSG_DONTWAIT) > 0)
			;
}

static void say_state(void)
{
	const struct tcp_link *l = run.l;
	uint8_t how = next();

	say(0,
	    (struct pair_frame){.kind = WIRE_STATE,
				.total = number(how & 1 ? l->tx.eager_out : l->tx.peer_received),
				.offset = number(how & 2 ? l->tx.eager_out : l->tx.peer_consumed),
				.seq = number(how & 4 ? l->tx.next_seq : l->tx.peer_done),
				.done_bits = (uint32_t)number(l->tx.peer_done_bits)},
	    0);
}

static void say_piece(int lane)
{
	bool eager = next() & 1;
	struct pair_frame f = {.kind = eager ? WIRE_EAGER : WIRE_DATA, .seq = number(run.l->rx.done)};

	f.length = (uint32_t)number(100);
	f.offset = number(0);
	f.total = number(f.offset + f.length);
	f.tag = next() & 1;
	f.index = (uint32_t)number((uint64_t)(run.nboxes ? run.nboxes - 1 : 0));
	say(lane, f, f.length <= ROOM ? f.length : 0);
}

/* ---- what the service thread does ---- */

static void break_lane(struct tcp_lane *lane)
{
	if (!lane->resume->stopped)
		tcp_lane_stop(lane, gantry_now_ns());
}

/* The lane's own rules decide whether it takes the socket. */
static void new_socket(struct tcp_lane *lane)
{
	struct tcp_new_socket s = {.generation = (uint32_t)number(lane->resume->generation + 1),
				   .received = number(run.l->tx.peer_received)};
	int fd[2];

	if (!lane->index)
		break_lane(lane);
	pair_sockets(&run.config, fd);
	close(run.raw[lane->index]);
	run.raw[lane->index] = fd[1];
	s.fd = fd[0];
	tcp_lane_install(lane, &s);
}

static void close_something(void)
{
	uint8_t how = next() & 3;

	if (how == 0 && !run.closed_rx) {
		tcp_link_close_rx(run.l);
		for (int i = 0; i < run.nboxes; i++) { /* the memory is the user's again */
			run.boxes[i].done = 1;
			memset(run.boxes[i].bytes + GUARD, DONE_FILL, run.boxes[i].size);
		}
		run.closed_rx = 1;
	} else if (how == 1 && !run.closed_tx) {
		tcp_link_close_tx(run.l);
		run.closed_tx = 1;
	} else if (how == 2) {
		say(0,
		    (struct pair_frame){.kind = WIRE_CLOSE,
					.flags = next() & 1 ? WIRE_FLAG_RECEIVER : 0,
					.seq = number(run.l->rx.bulk_received)},
		    0);
	}
}

static void lane_op(int op, uint32_t i)
{
	struct tcp_lane *lane = &run.l->lanes[i];
	struct pair_frame f = {.index = i};

	switch (op) {
	case OP_ARRIVED:
		f.kind = WIRE_ARRIVED;
		f.total = number(lane->resume->given);
		f.tag = (uint32_t)number(lane->resume->generation);
		say(0, f, 0);
		break;
	case OP_STOPPED:
		f.kind = WIRE_STOPPED;
		f.total = number(lane->resume->given);
		f.tag = (uint32_t)number(lane->resume->generation);
		say(0, f, 0);
		break;
	case OP_PIECE:
		say_piece((int)i);
		break;
	case OP_BYTES: {
		uint8_t bytes[64];
		size_t n = script_bytes(&run.in, bytes);

		give((int)i, bytes, n);
		break;
	}
	case OP_BREAK:
		if (!tcp_link_failed(run.l))
			break_lane(lane);
		break;
	case OP_SETTLE:
		if (i && lane->resume->stopped && lane->resume->peer_stopped && !lane->resume->settled &&
		    !tcp_link_failed(run.l))
			tcp_lane_settle(lane);
		break;
	case OP_SOCKET:
		if (!tcp_link_failed(run.l))
			new_socket(lane);
		break;
	}
}

static void step(void)
{
	int op = next() % OPS;

	switch (op) {
	case OP_SEND:
		post_sends();
		break;
	case OP_RECV:
		post_recv();
		break;
	case OP_WORK:
		work();
		break;
	case OP_STATE:
		say_state();
		break;
	case OP_CREDIT: {
		uint32_t tag = next() & 1;

		say(0,
		    (struct pair_frame){.kind = WIRE_STATE,
					.flags = WIRE_FLAG_TAG,
					.total = run.l->tx.peer_received,
					.offset = run.l->tx.peer_consumed,
					.seq = run.l->tx.peer_done,
					.done_bits = run.l->tx.peer_done_bits,
					.tag = tag,
					.index = (uint32_t)number(1000)},
		    0);
		break;
	}
	case OP_CLOSE:
		close_something();
		break;
	default:
		lane_op(op, next() % LANES);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	logs_drop();
	memset(&run, 0, sizeof(run));
	run.in = (struct script){data, data + size};
	run.config = (struct pair_config){.nlanes = LANES, .eager_max = 32768, .crc = next() & 1};
	memset(filler, 0x41, sizeof(filler));
	run.l = pair_raw(&run.config, run.raw);
	MUST(tcp_resume_init(run.l) == GANTRY_OK);
	for (int i = 0; i < MAX_STEPS && run.in.at < run.in.end; i++)
		step();
	for (int i = 0; i < 4; i++)
		work();
	if (tcp_link_failed(run.l))
		MUST(run.l->end.error > GANTRY_AGAIN && run.l->end.error < GANTRY_RESULT_COUNT && *run.l->end.text);
	for (int i = 0; i < run.nboxes; i++) {
		const struct box *box = &run.boxes[i];

		for (size_t k = 0; k < sizeof(box->bytes); k++)
			if (k < GUARD || k >= GUARD + box->size)
				MUST(box->bytes[k] == FILL);
			else if (box->done)
				MUST(box->bytes[k] == DONE_FILL);
	}
	pair_raw_free(&run.config, run.l, run.raw);
	return 0;
}
