/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Framing at every split point. NCCL's own Socket forgets a header whose payload is not there yet and then takes
 * payload for a header; so here a stream of frames is cut at every byte, and after the first part exactly the messages
 * that have come whole are done, with the right bytes, and nothing around them is touched.
 */
#include "link_pair.h"

enum { DATA = 1, STATE = 2, RTS = 3, CLOSE = 4, EAGER = 8, CRC = 1, ACK = 8, GUARD = 16, MAX_MESSAGES = 16 };
enum { TWO_CUT_STEP = SANITIZED ? 5 : 1 };
enum when { POST_BEFORE, POST_AT_CUT, POST_AFTER };

struct message {
	uint32_t tag, index;
	size_t size;
	size_t end[2]; /* in the stream of each lane: all of it is there from here on; 0: not on this lane */
	uint8_t *memory;
	void *request;
};

struct stream {
	uint8_t *bytes;
	size_t n, room;
};

static struct stream lanes[2];
static struct message messages[MAX_MESSAGES];
static int nmessages;

static void put(int lane, const void *bytes, size_t n)
{
	struct stream *s = &lanes[lane];

	if (s->n + n > s->room) {
		s->room = 2 * (s->n + n);
		s->bytes = realloc(s->bytes, s->room);
		CHECK(s->bytes);
	}
	memcpy(s->bytes + s->n, bytes, n);
	s->n += n;
}

static void put_frame(int lane, struct pair_frame f)
{
	uint8_t b[48];

	put(lane, b, pair_frame_put(b, &f));
}

static void start_streams(void)
{
	lanes[0].n = lanes[1].n = 0;
	nmessages = 0;
}

static struct message *add_message(uint32_t tag, uint32_t index, size_t size)
{
	struct message *m = &messages[nmessages++];

	CHECK(nmessages <= MAX_MESSAGES);
	*m = (struct message){.tag = tag, .index = index, .size = size};
	return m;
}

static void put_part(int lane, struct message *m, size_t offset, size_t length, struct pair_frame f)
{
	uint64_t seed = (uint64_t)(m - messages);
	FREED uint8_t *payload = malloc(length + 1);

	f.length = (uint32_t)length;
	f.offset = offset;
	f.total = m->size;
	f.tag = m->tag;
	f.index = m->index;
	put_frame(lane, f);
	for (size_t i = 0; i < length; i++)
		payload[i] = pattern_byte(seed, offset + i);
	put(lane, payload, length);
	m->end[lane] = lanes[lane].n;
}

static void put_piece(int lane, struct message *m, size_t offset, size_t length, uint8_t flags, uint64_t seq)
{
	put_part(lane, m, offset, length, (struct pair_frame){.kind = DATA, .flags = flags, .seq = seq});
}

static void put_eager(uint32_t tag, uint32_t index, size_t size)
{
	put_part(0, add_message(tag, index, size), 0, size, (struct pair_frame){.kind = EAGER});
}

static void write_all(struct tcp_link *l, int fd, const uint8_t *p, size_t n)
{
	while (n) {
		ssize_t w = send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (w < 0) {
			CHECK(errno == EAGAIN);
			tcp_link_progress(l);
			continue;
		}
		p += w;
		n -= (size_t)w;
	}
}

static void progress(struct tcp_link *l)
{
	pair_passes(l, 4);
	CHECK(!tcp_link_failed(l));
}

/* An odd address with guard bytes on both sides. */
static uint8_t *place(const struct message *m)
{
	return m->memory + GUARD + 1;
}

static void post(struct tcp_link *l)
{
	for (int i = 0; i < nmessages; i++) {
		struct message *m = &messages[i];
		void *data;
		size_t size = m->size;
		int tag = (int)m->tag;

		m->memory = malloc(m->size + 2 * GUARD + 2);
		CHECK(m->memory);
		memset(m->memory, 0xdb, m->size + 2 * GUARD + 2);
		data = place(m);
		CHECK_OK(tcp_link_irecv(l, 1, &data, &size, &tag, &m->request));
		CHECK(m->request);
	}
}

/* What has come whole is done, the rest is not. */
static void check_done(const size_t at[2])
{
	for (int i = 0; i < nmessages; i++) {
		const struct message *m = &messages[i];
		struct tcp_request *req = m->request;
		int here = (!m->end[0] || at[0] >= m->end[0]) && (!m->end[1] || at[1] >= m->end[1]);

		if ((__atomic_load_n(&req->state, __ATOMIC_ACQUIRE) == TCP_DONE) != here)
			TEST_FAIL("cut at %zu, %zu: message %d of %zu bytes (whole at %zu, %zu) is %s", at[0], at[1], i,
				  m->size, m->end[0], m->end[1], here ? "not done" : "done too early");
	}
}

static void finish(void)
{
	for (int i = 0; i < nmessages; i++) {
		struct message *m = &messages[i];
		int done = 0, size = -1;

		CHECK_OK(tcp_link_test(m->request, &done, &size));
		CHECK_EQ(done, 1);
		CHECK_EQ(size, m->size);
		CHECK_PATTERN(place(m), m->size, (uint64_t)i);
		CHECK_FILLED(m->memory, GUARD + 1, 0xdb);
		CHECK_FILLED(place(m) + m->size, GUARD + 1, 0xdb);
		free(m->memory);
	}
}

static const struct pair_config config = {.nlanes = 2, .eager_max = 64};

/* Bytes that wait at the raw end, and what the first frame there is. */
static size_t peek(int fd, uint8_t *b, size_t n)
{
	ssize_t r = recv(fd, b, n, MSG_DONTWAIT | MSG_PEEK);

	return r < 0 ? 0 : (size_t)r;
}

/*
 * Small messages, one after the other, with the control frames between them. The link has a send of 100 bytes waiting,
 * which STATE lets go: it leaves when that frame has come whole, and not a byte before.
 */
static size_t state_end, rts_end;

static void make_small(void)
{
	static const size_t sizes[] = {0, 1, 47, 48, 49, 64};

	start_streams();
	for (uint32_t i = 0; i < 6; i++)
		put_eager(5, i, sizes[i]);
	put_frame(0, (struct pair_frame){.kind = STATE, .tag = 77, .flags = 2, .index = 1});
	state_end = lanes[0].n;
	put_eager(6, 0, 3);
	put_eager(5, 6, 0);
	put_eager(6, 1, 2);
	put_frame(0, (struct pair_frame){.kind = RTS, .tag = 88, .index = 0, .total = 90});
	rts_end = lanes[0].n;
	put_eager(7, 0, 5);
	put_frame(0, (struct pair_frame){.kind = CLOSE});
}

static void small_at(const size_t *cuts, int ncuts, enum when when)
{
	struct tcp_link *l;
	int raw[2];
	uint8_t payload[100], out[4 * 48 + 100];
	void *send = NULL, *extra = NULL, *data;
	uint8_t late[90];
	size_t from = 0, size = sizeof(late);
	int tag = 88;

	l = pair_raw(&config, raw);
	pattern_fill(payload, sizeof(payload), 99);
	CHECK_OK(tcp_link_isend(l, payload, sizeof(payload), 77, &send));
	if (when == POST_BEFORE)
		post(l);
	for (int i = 0; i <= ncuts; i++) {
		size_t to = i < ncuts ? cuts[i] : lanes[0].n;

		write_all(l, raw[0], lanes[0].bytes + from, to - from);
		progress(l);
		if (when == POST_AT_CUT && i == 0)
			post(l);
		if (when == POST_BEFORE || (when == POST_AT_CUT && i >= 0)) {
			size_t at[2] = {to, 0};

			check_done(at);
		}
		CHECK_EQ(peek(raw[1], out, sizeof(out)), to >= state_end ? 148 : 0);
		from = to;
	}
	if (when == POST_AFTER)
		post(l);
	CHECK_EQ(pair_frame_get(out).kind, DATA);
	CHECK_EQ(pair_frame_get(out).total, 100);
	CHECK_PATTERN(out + 48, 100, 99);
	finish();
	/* The peer has announced a message of tag 88: posting its receive is told at once. */
	while (peek(raw[0], out, sizeof(out)))
		CHECK(recv(raw[0], out, sizeof(out), MSG_DONTWAIT) > 0);
	if (cuts[0] % 7 == 0) { /* the link now fails: the peer has closed. Only now and then, it costs a log line */
		data = late;
		tcp_link_irecv(l, 1, &data, &size, &tag, &extra);
		CHECK_EQ(peek(raw[0], out, sizeof(out)) >= 48 ? pair_frame_get(out).kind : STATE, STATE);
	}
	pair_raw_free(&config, l, raw);
}

TEST(small_every_cut)
{
	make_small();
	for (size_t cut = 0; cut <= lanes[0].n; cut++)
		for (int when = POST_BEFORE; when <= POST_AFTER; when++)
			small_at(&cut, 1, when);
}

/* A byte at a time, and steps that drift through the frames. */
TEST(small_many_cuts)
{
	make_small();
	for (size_t step = 1; step <= 101; step += step < 8 ? 1 : 13) {
		size_t cuts[1024];
		int n = 0;

		for (size_t at = step; at < lanes[0].n; at += step)
			cuts[n++] = at;
		for (int when = POST_BEFORE; when <= POST_AFTER; when++)
			small_at(cuts, n, when);
	}
}

/* Every pair of cuts in two messages of one and two bytes. */
TEST(every_two_cuts)
{
	start_streams();
	put_eager(1, 0, 1);
	put_eager(1, 1, 2);
	for (size_t a = 0; a <= lanes[0].n; a++)
		for (size_t b = a; b <= lanes[0].n; b += TWO_CUT_STEP) {
			size_t at[2] = {0, 0};
			struct tcp_link *l;
			int raw[2];

			l = pair_raw(&config, raw);
			post(l);
			write_all(l, raw[0], lanes[0].bytes, a);
			progress(l);
			at[0] = a;
			check_done(at);
			write_all(l, raw[0], lanes[0].bytes + a, b - a);
			progress(l);
			at[0] = b;
			check_done(at);
			write_all(l, raw[0], lanes[0].bytes + b, lanes[0].n - b);
			progress(l);
			finish();
			pair_raw_free(&config, l, raw);
		}
}

/*
 * A message of 1000 bytes in three pieces that come in the order middle, end, begin on the bulk lane, then a second
 * message behind it; every cut. A STATE with both done is owed in the end, because the sender waits for it.
 */
TEST(bulk_every_cut)
{
	uint8_t out[1024];

	start_streams();
	add_message(3, 0, 1000);
	put_piece(1, &messages[0], 300, 1, ACK, 0);
	put_piece(1, &messages[0], 301, 699, ACK, 0);
	put_piece(1, &messages[0], 0, 300, ACK, 0);
	add_message(3, 1, 65);
	put_piece(1, &messages[1], 0, 65, ACK, 1);
	for (size_t cut = 0; cut <= lanes[1].n; cut++) {
		struct tcp_link *l;
		size_t at[2] = {0, cut}, told;
		int raw[2];

		l = pair_raw(&config, raw);
		post(l);
		write_all(l, raw[1], lanes[1].bytes, cut);
		progress(l);
		check_done(at);
		write_all(l, raw[1], lanes[1].bytes + cut, lanes[1].n - cut);
		progress(l);
		finish();
		told = peek(raw[0], out, sizeof(out));
		CHECK(told >= 48 && told % 48 == 0);
		CHECK_EQ(pair_frame_get(out + told - 48).kind, STATE);
		CHECK_EQ(pair_frame_get(out + told - 48).seq, 2);
		pair_raw_free(&config, l, raw);
	}
}

/* Sizes around the limits of read-ahead and of copying twice; random cuts, and all cuts next to a frame's ends. */
static void long_at(const size_t *cuts, int ncuts, enum when when)
{
	struct tcp_link *l;
	size_t from = 0;
	int raw[2];

	l = pair_raw(&config, raw);
	if (when == POST_BEFORE)
		post(l);
	for (int i = 0; i <= ncuts; i++) {
		size_t to = i < ncuts ? cuts[i] : lanes[0].n, at[2] = {to, 0};

		write_all(l, raw[0], lanes[0].bytes + from, to - from);
		progress(l);
		if (i == 0 && when == POST_AT_CUT)
			post(l);
		if (when != POST_AFTER)
			check_done(at);
		from = to;
	}
	if (when == POST_AFTER)
		post(l);
	finish();
	pair_raw_free(&config, l, raw);
}

TEST(long_cuts)
{
	static const size_t sizes[] = {8191, 8192, 8193, 65536, 64, 8192, 0, 30000};
	size_t ends[8];

	start_streams();
	for (uint32_t i = 0; i < 8; i++) {
		put_eager(i % 3, i / 3, sizes[i]);
		ends[i] = lanes[0].n;
	}
	for (int i = 0; i < 8; i++)
		for (int d = -49; d <= 49; d += d < -47 || d > 46 || (d >= -1 && d < 1) ? 1 : 12) {
			size_t cut = ends[i] + (size_t)d;

			if (cut <= lanes[0].n)
				long_at(&cut, 1, (enum when)(abs(d) % 3));
		}
	for (int round = 0; round < 60; round++) {
		size_t cuts[12], at = 0;
		int n = 0;

		while (n < 12 && at < lanes[0].n) {
			at += 1 + random_below(round % 2 ? 20000 : 40000);
			if (at < lanes[0].n)
				cuts[n++] = at;
		}
		long_at(cuts, n, (enum when)(round % 3));
	}
}

/* Large pieces on the bulk lane beside eager messages on the control lane, both cut at random. */
TEST(both_lanes)
{
	for (int round = 0; round < 20; round++) {
		size_t offset = 0, at[2] = {0, 0};
		struct tcp_link *l;
		int raw[2];

		start_streams();
		add_message(9, 0, 150001);
		while (offset < 150001) {
			size_t n = 1 + random_below(60000);

			n = n < 150001 - offset ? n : 150001 - offset;
			put_piece(1, &messages[0], offset, n, 0, 0);
			offset += n;
		}
		for (uint32_t i = 0; i < 8; i++)
			put_eager(9, 1 + i, i * 37);
		l = pair_raw(&config, raw);
		post(l);
		while (at[0] < lanes[0].n || at[1] < lanes[1].n) {
			for (int k = 0; k < 2; k++) {
				size_t n = 1 + random_below(k ? 30000 : 200);

				n = n < lanes[k].n - at[k] ? n : lanes[k].n - at[k];
				write_all(l, raw[k], lanes[k].bytes + at[k], n);
				at[k] += n;
			}
			progress(l);
			check_done(at);
		}
		finish();
		pair_raw_free(&config, l, raw);
	}
}

void tests_begin(void)
{
	logs_drop();
	tests_apart(0);
}
