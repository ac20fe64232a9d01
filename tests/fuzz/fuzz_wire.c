/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer gone mad: a real link whose lanes carry whatever the input says, while receives are posted, sends wait and
 * requests are tested. The link may fail, that is its right. It must not crash, hang, write beside a receive buffer, or
 * write into one that it has already reported as done.
 *
 * An input whose first byte is 0x80 or more is for a link with checksums. From 0xc0 on they are made right for whatever
 * looks like a frame, so that the input gets past them.
 *
 * The rest of the input is a sequence of steps, an operation byte and its arguments:
 *   0 lane n bytes    raw bytes to a lane
 *   1 lane ...        a frame whose fields are the next 10 bytes, small values; its payload is up to later steps
 *   2 size tags       posts a receive, of one buffer or a group
 *   3 size tag        posts a send
 *   4                 progress and tests
 *   5 lane n          n filler bytes to a lane
 *   6 which           closes a direction or a lane of the peer
 */
#include "base/log.h"
#include "link_pair.h"
#include "script.h"

enum { LANES = 2, RECVS = 24, SLOT = 96, GUARD = 16, FILL = 0xd6, DONE_FILL = 0x3c, MAX_STEPS = 400 };

struct box {
	void *request;
	int n, done;
	size_t sizes[GANTRY_NET_MAX_RECVS];
	uint8_t bytes[GANTRY_NET_MAX_RECVS][GUARD + SLOT + GUARD];
};

static struct {
	struct script in;
	struct tcp_link *l;
	int raw[LANES];
	struct box boxes[RECVS];
	int nboxes;
	void *sends[8];
	int nsends, closed_rx, closed_tx;
	struct pair_config config;
	int sums; /* to be made right */
} run;

static uint8_t send_data[256], filler[256];

static uint8_t next(void)
{
	return script_next(&run.in);
}

static void give(int lane, const uint8_t *bytes, size_t n)
{
	while (n && run.raw[lane] >= 0) {
		ssize_t w = send(run.raw[lane], bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (w <= 0)
			return;
		bytes += w;
		n -= (size_t)w;
	}
}

/* The sums of the frame that n bytes begin with, if they do. Returns its size, as far as it is here. */
static size_t put_sums(uint8_t *b, size_t n)
{
	struct pair_frame f;
	size_t here = 0, header = n ? pair_header(b) : 1;

	if (n < header || b[2] != 'G' || b[3] != 'T')
		return n;
	f = pair_frame_get(b);
	f.flags |= WIRE_FLAG_CRC;
	f.crc = 0;
	if (f.kind == WIRE_DATA || f.kind == WIRE_EAGER || f.kind == WIRE_ERROR) {
		here = n - header < f.length ? n - header : f.length;
		f.payload_crc = pair_crc(0, b + header, here);
		if (f.length - here <= sizeof(filler)) /* the rest comes from step 5, if at all */
			f.payload_crc = pair_crc(f.payload_crc, filler, f.length - here);
	}
	pair_frame_put(b, &f);
	return header + here;
}

static void give_summed(int lane, const uint8_t *bytes, size_t n)
{
	uint8_t b[256];

	memcpy(b, bytes, n);
	for (size_t at = 0; run.sums && at < n;)
		at += put_sums(b + at, n - at);
	give(lane, b, n);
}

static void give_frame(int lane)
{
	struct pair_frame f = {0};
	uint8_t b[48];

	f.kind = (uint8_t)(1 + next() % (WIRE_KINDS - 1));
	f.flags = next() & WIRE_FLAGS;
	f.length = next();
	f.seq = next() & 7;
	f.offset = next();
	f.total = next();
	f.tag = next() & 3;
	f.index = next() & 7;
	f.done_bits = next();
	if (next() & 1) /* mostly a whole message */
		f.total = f.offset + f.length;
	if (f.kind == WIRE_DESCRIPTOR)
		f.lane &= 3;
	give_summed(lane, b, pair_frame_put(b, &f));
}

static void post(void)
{
	struct box *box;
	size_t size = next() % (SLOT + 1);
	uint8_t tags = next();
	void *data[GANTRY_NET_MAX_RECVS];
	int tag[GANTRY_NET_MAX_RECVS];

	if (run.nboxes == RECVS || run.closed_rx)
		return;
	box = &run.boxes[run.nboxes];
	memset(box, 0, sizeof(*box));
	memset(box->bytes, FILL, sizeof(box->bytes));
	box->n = 1 + (tags >> 4) % 3;
	for (int i = 0; i < box->n; i++) {
		box->sizes[i] = size;
		data[i] = box->bytes[i] + GUARD;
		tag[i] = (tags >> i) & 3;
	}
	if (tcp_link_irecv(run.l, box->n, data, box->sizes, tag, &box->request) == GANTRY_OK && box->request)
		run.nboxes++;
}

static void check_box(const struct box *box)
{
	for (int i = 0; i < GANTRY_NET_MAX_RECVS; i++) {
		const uint8_t *b = box->bytes[i];
		size_t size = i < box->n ? box->sizes[i] : 0;

		for (size_t k = 0; k < GUARD; k++)
			MUST(b[k] == FILL);
		for (size_t k = GUARD + size; k < sizeof(box->bytes[i]); k++)
			MUST(b[k] == FILL);
		for (size_t k = GUARD; box->done && k < GUARD + size; k++)
			MUST(b[k] == DONE_FILL);
	}
}

static void work(void)
{
	uint8_t nowhere[4096];

	for (int i = 0; i < 3; i++)
		tcp_link_progress(run.l);
	for (int i = 0; i < run.nboxes && !run.closed_rx; i++) {
		struct box *box = &run.boxes[i];
		int done = 0, sizes[GANTRY_NET_MAX_RECVS];

		if (box->done || tcp_link_test(box->request, &done, sizes) != GANTRY_OK || !done)
			continue;
		box->done = 1;
		for (int k = 0; k < box->n; k++) {
			MUST(sizes[k] >= 0 && (size_t)sizes[k] <= box->sizes[k]);
			memset(box->bytes[k] + GUARD, DONE_FILL, box->sizes[k]);
		}
	}
	for (int i = 0; i < run.nsends && !run.closed_tx; i++) {
		int done = 0;

		if (run.sends[i] && tcp_link_test(run.sends[i], &done, NULL) == GANTRY_OK && done)
			run.sends[i] = NULL;
	}
	for (int i = 0; i < LANES; i++)
		while (run.raw[i] >= 0 && recv(run.raw[i], nowhere, sizeof(nowhere), MSG_DONTWAIT) > 0)
			;
}

static void close_something(void)
{
	switch (next() % 4) {
	case 0:
		if (!run.closed_rx)
			tcp_link_close_rx(run.l);
		for (int i = 0; i < run.nboxes && !run.closed_rx; i++) {
			/* The memory is the user's again. */
			run.boxes[i].done = 1;
			for (int k = 0; k < run.boxes[i].n; k++)
				memset(run.boxes[i].bytes[k] + GUARD, DONE_FILL, run.boxes[i].sizes[k]);
		}
		run.closed_rx = 1;
		break;
	case 1:
		if (!run.closed_tx)
			tcp_link_close_tx(run.l);
		run.closed_tx = 1;
		break;
	case 2:
		shutdown(run.raw[next() % LANES], SHUT_WR);
		break;
	}
}

static void step(void)
{
	uint8_t op = next();
	int lane;
	size_t n;

	switch (op % 7) {
	case 0:
		lane = next() % LANES;
		n = next();
		if (n > (size_t)(run.in.end - run.in.at))
			n = (size_t)(run.in.end - run.in.at);
		give_summed(lane, run.in.at, n);
		run.in.at += n;
		break;
	case 1:
		give_frame(next() % LANES);
		break;
	case 2:
		post();
		break;
	case 3:
		n = next();
		if (run.nsends < 8 && !run.closed_tx)
			tcp_link_isend(run.l, send_data, n, next() & 3, &run.sends[run.nsends++]);
		break;
	case 4:
		work();
		break;
	case 5:
		lane = next() % LANES;
		n = next();
		give(lane, filler, n);
		break;
	case 6:
		close_something();
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	logs_drop();
	memset(&run, 0, sizeof(run));
	run.in = (struct script){data, data + size};
	run.config = (struct pair_config){.nlanes = LANES, .eager_max = 32};
	memset(filler, 0x41, sizeof(filler));
	if (size && data[0] >= 0x80) {
		run.config.crc = 1;
		run.sums = next() >= 0xc0;
	}
	run.l = pair_raw(&run.config, run.raw);
	for (int i = 0; i < MAX_STEPS && run.in.at < run.in.end; i++)
		step();
	for (int i = 0; i < 4; i++)
		work();
	for (int i = 0; i < run.nboxes; i++)
		check_box(&run.boxes[i]);
	pair_raw_free(&run.config, run.l, run.raw);
	return 0;
}
