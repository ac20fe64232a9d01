/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GANTRY_CRC: one flipped bit anywhere in a frame, header or payload, is an error, and nothing else comes of the frame.
 * The frames are those of a real sender; each is played to a receiver as it was, which must take effect, and once for
 * every bit of its header and many of its payload with that bit flipped, which must not, and must fail the link.
 */
#include "link_match_util.h"
#include "unpack_util.h"

enum { SIZE = 300, SMALL = 60, PIECES = 3 };

static const struct pair_config config = {.nlanes = 2, .eager_max = 64, .crc = 1};

/* What a sender has put on its lanes. */
struct capture {
	uint8_t bytes[2][1024];
	size_t n[2];
};

/* A receiver to play it to. */
struct victim {
	struct tcp_link *l;
	int raw[2];
	void *request;
	uint8_t in[SIZE];
	struct iovec iov[PIECES];
};

struct kind {
	const char *name;
	int lane; /* that carries the frame */
	void (*send)(struct tcp_link *l, const int *raw);
	void (*prepare)(struct victim *v);
	int (*effect)(struct victim *v); /* the frame has had its effect */
};

static uint8_t payload[SIZE];

static void cut(uint8_t *data, struct iovec iov[PIECES])
{
	static const size_t at[PIECES + 1] = {0, 7, 190, SIZE};

	for (int i = 0; i < PIECES; i++)
		iov[i] = (struct iovec){data + at[i], at[i + 1] - at[i]};
}

static void say_to(int fd, struct pair_frame f)
{
	f.flags |= WIRE_FLAG_CRC;
	pair_say(fd, &f, NULL);
}

/* ---- senders ---- */

static void send_eager(struct tcp_link *l, const int *raw)
{
	isend(l, payload, SMALL, A);
}

static void send_empty(struct tcp_link *l, const int *raw)
{
	isend(l, NULL, 0, A);
}

static void send_rts(struct tcp_link *l, const int *raw)
{
	isend(l, payload, SIZE, A);
}

static void invite(struct tcp_link *l, const int *raw)
{
	say_to(raw[0], (struct pair_frame){.kind = WIRE_STATE, .flags = 2, .tag = A, .index = 1});
	pair_passes(l, 8);
}

static void send_bulk(struct tcp_link *l, const int *raw)
{
	invite(l, raw);
	isend(l, payload, SIZE, A);
}

static void send_vec(struct tcp_link *l, const int *raw)
{
	static struct iovec iov[PIECES];
	void *request = NULL;

	invite(l, raw);
	cut(payload, iov);
	CHECK_OK(tcp_link_isend_vec(l, iov, PIECES, A, &request));
}

static void send_state(struct tcp_link *l, const int *raw)
{
	static uint8_t in[SIZE];

	say_to(raw[0], (struct pair_frame){.kind = WIRE_RTS, .total = SIZE, .tag = A});
	pair_passes(l, 8);
	irecv(l, in, SIZE, A);
}

static void send_arrived(struct tcp_link *l, const int *raw)
{
	CHECK_EQ(send(raw[1], "0123456789", 10, 0), 10); /* the beginning of a header */
	CHECK(tcp_lanes_report(l));
	tcp_control_flush(l);
}

static void send_tx_close(struct tcp_link *l, const int *raw)
{
	tcp_link_close_tx(l);
}

static void send_rx_close(struct tcp_link *l, const int *raw)
{
	tcp_link_close_rx(l);
}

static void send_error(struct tcp_link *l, const int *raw)
{
	tcp_link_fail(l, 1, GANTRY_ERR_NOMEM, "enough of this");
	tcp_control_flush(l);
}

static void capture(const struct kind *k, int device_tx, struct capture *ret)
{
	int raw[2];
	struct tcp_link *l = pair_raw(&config, raw);

	l->session.device_tx = device_tx;
	k->send(l, raw);
	pair_passes(l, 8);
	for (int i = 0; i < 2; i++) {
		ssize_t n = recv(raw[i], ret->bytes[i], sizeof(ret->bytes[i]), MSG_DONTWAIT);

		ret->n[i] = n > 0 ? (size_t)n : 0;
	}
	CHECK(ret->n[k->lane] >= pair_header(ret->bytes[k->lane]));
	pair_raw_free(&config, l, raw);
}

/* ---- receivers ---- */

static void post_small(struct victim *v)
{
	v->request = irecv(v->l, v->in, SMALL, A);
}

static void post(struct victim *v)
{
	v->request = irecv(v->l, v->in, SIZE, A);
}

static void post_vec(struct victim *v)
{
	cut(v->in, v->iov);
	CHECK_OK(tcp_link_irecv_vec(v->l, v->iov, PIECES, A, &v->request));
	CHECK(v->request);
}

static void post_send(struct victim *v)
{
	v->request = isend(v->l, payload, SIZE, A);
}

static void nothing(struct victim *v)
{
}

static int got(struct victim *v)
{
	return is_done(v->request);
}

static int got_late(struct victim *v)
{
	void *data = v->in;
	size_t size = SMALL;
	int tag = A;

	return tcp_link_irecv(v->l, 1, &data, &size, &tag, &v->request) == GANTRY_OK && v->request &&
	       is_done(v->request);
}

static int rts_seen(struct victim *v)
{
	return v->l->rx.tags.count && v->l->rx.tags.items[0].rts;
}

static int send_let_go(struct victim *v)
{
	uint8_t b;

	return recv(v->raw[1], &b, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

static int arrived_heard(struct victim *v)
{
	return v->l->lanes[1].tx.arrived == 10;
}

static int rx_ended(struct victim *v)
{
	return v->l->rx.end.over;
}

static int tx_ended(struct victim *v)
{
	return v->l->tx.end.over;
}

static int error_heard(struct victim *v)
{
	return tcp_link_failed(v->l) && v->l->end.error == GANTRY_ERR_NOMEM;
}

static void open_victim(const struct kind *k, struct victim *v)
{
	memset(v, 0, sizeof(*v));
	v->l = pair_raw(&config, v->raw);
	k->prepare(v);
	pair_passes(v->l, 8);
}

static void play(const struct kind *k, struct victim *v, const uint8_t *bytes, size_t n)
{
	CHECK_EQ(send(v->raw[k->lane], bytes, n, 0), n);
	pair_passes(v->l, 8);
}

static const struct kind kinds[] = {
	{"eager", 0, send_eager, post_small, got},
	{"eager, unexpected", 0, send_eager, nothing, got_late},
	{"empty", 0, send_empty, post_small, got},
	{"bulk", 1, send_bulk, post, got},
	{"bulk to a vec", 1, send_bulk, post_vec, got},
	{"bulk from a vec", 1, send_vec, post, got},
	{"rts", 0, send_rts, nothing, rts_seen},
	{"state", 0, send_state, post_send, send_let_go},
	{"arrived", 0, send_arrived, nothing, arrived_heard},
	{"close", 0, send_tx_close, post, rx_ended},
	{"close, receiving side", 0, send_rx_close, post_send, tx_ended},
	{"error", 0, send_error, post, error_heard},
};

static int caught(const struct kind *k, const struct capture *c, size_t bit)
{
	uint8_t b[1024];
	struct victim v;
	int fine;

	memcpy(b, c->bytes[k->lane], c->n[k->lane]);
	b[bit / 8] ^= (uint8_t)(1 << bit % 8);
	open_victim(k, &v);
	play(k, &v, b, c->n[k->lane]);
	fine = tcp_link_failed(v.l) && v.l->end.error == GANTRY_ERR_CORRUPT && !k->effect(&v);
	if (fine)
		CHECK_HAS(v.l->end.text, k->lane ? "lane 1" : "lane 0");
	pair_raw_free(&config, v.l, v.raw);
	return fine;
}

TEST(every_bit)
{
	size_t missed = 0;

	pattern_fill(payload, SIZE, 3);
	EACH_ROW (i, kinds) {
		const struct kind *k = &kinds[i];
		struct capture c;
		struct victim v;
		size_t flips = 0, errors = 0;

		capture(k, 0, &c);
		open_victim(k, &v);
		play(k, &v, c.bytes[k->lane], c.n[k->lane]);
		CHECK(k->effect(&v));
		CHECK(!tcp_link_failed(v.l) || k->effect == error_heard);
		if (k->effect == got || k->effect == got_late) {
			size_t n = c.n[k->lane] - pair_header(c.bytes[k->lane]);

			CHECK_PATTERN(v.in, n, 3);
		}
		pair_raw_free(&config, v.l, v.raw);
		for (size_t bit = 0; bit < 8 * c.n[k->lane]; bit += bit < 383 ? 1 : SANITIZED ? 37 : 5, flips++)
			errors += (size_t)caught(k, &c, bit);
		printf("%s: %zu flips, %zu errors\n", k->name, flips, errors);
		missed += flips - errors;
	}
	CHECK_EQ(missed, 0);
}

/* The sums themselves, after another implementation. */
TEST(sums)
{
	pattern_fill(payload, SIZE, 3);
	EACH_ROW (i, kinds) {
		const struct kind *k = &kinds[i];
		struct capture c;
		const uint8_t *b = c.bytes[k->lane];
		struct pair_frame f;

		capture(k, 0, &c);
		f = pair_frame_get(b);
		CHECK(f.flags & WIRE_FLAG_CRC);
		CHECK_EQ(c.n[k->lane], pair_header(b) + f.length);
		CHECK_EQ(f.crc, pair_header_crc(b));
		if (f.kind == WIRE_DATA || f.kind == WIRE_EAGER || f.kind == WIRE_ERROR)
			CHECK_EQ(f.payload_crc, pair_crc(0, b + pair_header(b), f.length));
	}
}

/* A peer that does not do what was agreed on. */
TEST(flag_disagrees)
{
	for (uint8_t kind = WIRE_DATA; kind < WIRE_KINDS; kind++)
		for (int crc = 0; crc < 2; crc++) {
			struct pair_config c = config;
			struct pair_frame f = {.kind = kind, .flags = crc ? 0 : WIRE_FLAG_CRC, .tag = A};
			int raw[2];
			struct tcp_link *l;
			uint8_t b[48 + 1];
			size_t n;

			if (kind > WIRE_EAGER && kind < WIRE_STOPPED)
				continue;
			c.crc = crc;
			l = pair_raw(&c, raw);
			f.length = kind == WIRE_DESCRIPTOR;
			f.total = f.length;
			f.lane = kind == WIRE_DESCRIPTOR;
			n = pair_frame_put(b, &f);
			if (crc) /* a right sum, but no flag */
				le_put(b + n - 8, pair_header_crc(b), 4);
			CHECK_EQ(send(raw[0], b, n, 0), n);
			pair_passes(l, 8);
			CHECK(tcp_link_failed(l));
			CHECK_EQ(l->end.error, GANTRY_ERR_PROTOCOL);
			CHECK_HAS(l->end.text, "lane 0");
			CHECK_HAS(l->end.text, "checksum");
			pair_raw_free(&c, l, raw);
		}
}

/*
 * The receiving side closes before a piece, or in its middle, when a part is in the user's memory, which is the user's
 * again. What is dropped is checked like anything else: the other direction of the link lives on beside it.
 */
TEST(dropped)
{
	const struct kind *bulk = &kinds[3];
	struct capture c;

	pattern_fill(payload, SIZE, 3);
	capture(bulk, 0, &c);
	for (int vec = 0; vec < 2; vec++)
		for (size_t before = 0; before <= 48 + 200; before += 124)
			for (int flip = -1; flip < 2; flip++) {
				const struct kind *k = &kinds[3 + vec];
				uint8_t b[1024];
				struct victim v;

				memcpy(b, c.bytes[1], c.n[1]);
				if (flip >= 0)
					b[48 + (flip ? 250 : 20)] ^= 8;
				open_victim(k, &v);
				play(k, &v, b, before);
				tcp_link_close_rx(v.l);
				memset(v.in, 0xdd, SIZE);
				play(k, &v, b + before, c.n[1] - before);
				CHECK_EQ(tcp_link_failed(v.l), flip >= 0);
				if (flip >= 0)
					CHECK_EQ(v.l->end.error, GANTRY_ERR_CORRUPT);
				CHECK_FILLED(v.in, SIZE, 0xdd);
				pair_raw_free(&config, v.l, v.raw);
			}
}

/* Messages in pieces of memory on both sides, large ones in several pieces on several lanes. */
TEST(vec_to_vec)
{
	enum { LARGE = SANITIZED ? 300001 : 3000001, PARTS = 400 };
	static struct iovec iov[2][PARTS];

	for (int mode = 0; mode < 3; mode++) {
		struct pair_config c = {.nlanes = 4,
					.inet = 1,
					.eager_max = 64,
					.crc = 1,
					.splice = mode == 0,
					.msg_zerocopy = mode == 1};
		FREED uint8_t *out = message(LARGE, 5), *in = room(LARGE);
		struct tcp_link *l[2];

		pair_links(&c, l);
		for (size_t size = 1; size <= LARGE; size = size * 7 + 3) {
			void *s = NULL, *r = NULL;
			uint32_t n[2] = {0, 0};

			memset(in, 0, LARGE);
			for (uint32_t k = 0; k < 2; k++)
				for (size_t at = 0; at < size; n[k]++) {
					size_t len = 1 + size / (PARTS / 2) + n[k] * (31 + 8 * k) % 97;

					len = len < size - at && n[k] + 1 < PARTS ? len : size - at;
					iov[k][n[k]] = (struct iovec){(k ? in : out) + at, len};
					at += len;
				}
			CHECK_OK(tcp_link_irecv_vec(l[1], iov[1], n[1], A, &r));
			CHECK_OK(tcp_link_isend_vec(l[0], iov[0], n[0], A, &s));
			wait_for(l, r, NULL);
			wait_for(l, s, NULL);
			CHECK_PATTERN(in, size, 5);
		}
		done_with(l);
	}
}

/* ---- towards device memory ---- */

static int ahead_outcome(struct world *w, void *request)
{
	int done = 0;

	WAIT_WHILE (!done && !tcp_link_failed(w->l)) {
		for (int i = 0; i < 2; i++)
			utter(w, i, 1 << 20);
		listen_away(w);
		tcp_link_test(request, &done, NULL);
	}
	return done;
}

/* The header is summed; its payload, which the CPU does not see, is not. */
TEST(ahead)
{
	const struct kind k = {"ahead", 0, send_bulk, NULL, NULL};
	struct capture c;
	uint8_t in[SIZE];
	int errors = 0;

	pattern_fill(payload, SIZE, 3);
	capture(&k, 1, &c);
	CHECK_EQ(c.n[0], 48);
	CHECK_EQ(c.n[1], SIZE);
	CHECK_EQ(c.bytes[0][0], WIRE_DESCRIPTOR);
	world_params(NULL);
	for (int bit = -1; bit < 384; bit++) {
		uint8_t b[48];
		struct world w;
		void *request = NULL;
		int outcome;

		memcpy(b, c.bytes[0], 48);
		if (bit >= 0)
			b[bit / 8] ^= (uint8_t)(1 << bit % 8);
		world_open(&w, 1, 1);
		w.l->session.crc = 1;
		CHECK_OK(tcp_link_irecv_unpack(w.l, in, SIZE, A, 0, 1, &request));
		CHECK(request);
		say(&w, 0, b, 48);
		say(&w, 1, c.bytes[1], SIZE);
		outcome = ahead_outcome(&w, request);
		if (bit < 0) {
			CHECK_EQ(outcome, 1);
			CHECK_PATTERN(in, SIZE, 3);
			CHECK_OK(tcp_unpack_consumed(w.l, request));
		} else {
			errors += outcome == 0 && w.l->end.error == GANTRY_ERR_CORRUPT;
		}
		world_close(&w);
	}
	printf("ahead: 384 flips, %d errors\n", errors);
	CHECK_EQ(errors, 384);
	CHECK(c.bytes[0][1] & WIRE_FLAG_CRC);
	CHECK_EQ(le_get(c.bytes[0] + 40, 4), pair_crc(pair_crc(0, c.bytes[0], 40), c.bytes[0] + 44, 4));
}

void tests_begin(void)
{
	logs_drop();
	tests_apart(0);
}
