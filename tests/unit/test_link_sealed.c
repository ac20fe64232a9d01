/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed lanes between two links, with the test on the way: what travels shows nothing of what is sent, every byte comes,
 * and whatever is done to a record fails the link, by the name of what was done, before its message counts as received.
 */
#include "base/openssl.h"
#include "link_pair.h"

#if GANTRY_HAVE_OPENSSL

enum { LANES = 3, ROOM = 1 << 20, TAG = 7 };
static struct pair_config config = {.nlanes = LANES, .eager_max = 4096};
static const char mark[] = "a payload that is marked";

/* What the link `side` has sent on a lane, and how much of it has gone on. */
struct stream {
	uint8_t *bytes;
	size_t n, at;
};

struct world {
	struct tcp_link *l[2];
	int raw[2][LANES];
	struct stream streams[2][LANES];
};

/* Secrets as the hand-shake gives them: others for each session, lane and direction. */
static void seal_lane(struct world *w, int lane, int session)
{
	for (int side = 0; side < 2; side++) {
		struct inet_seals seals = {0};
		uint8_t secret[GANTRY_SEAL_SECRET] = {(uint8_t)session, (uint8_t)lane};

		for (uint8_t way = 0; way < 2; way++) {
			secret[2] = way;
			CHECK_OK(gantry_seal_new(gantry_cipher_preferred(), secret, way, way == side, 16,
						 way == side ? &seals.tx : &seals.rx));
		}
		CHECK_OK(tcp_lane_seal(&w->l[side]->lanes[lane], &seals));
		CHECK(!seals.tx && !seals.rx);
	}
}

static void world_make(struct world *w, int session)
{
	CHECK_OK(gantry_openssl_load());
	memset(w, 0, sizeof(*w));
	for (int side = 0; side < 2; side++) {
		w->l[side] = pair_raw(&config, w->raw[side]);
		w->l[side]->session.sealed = 1;
		for (int i = 0; i < LANES; i++)
			w->streams[side][i].bytes = malloc(ROOM);
	}
	for (int i = 0; i < LANES; i++)
		seal_lane(w, i, session);
}

static void world_free(struct world *w)
{
	for (int side = 0; side < 2; side++) {
		pair_raw_free(&config, w->l[side], w->raw[side]);
		for (int i = 0; i < LANES; i++)
			free(w->streams[side][i].bytes);
	}
}

/* Takes what was sent; nothing of it may show the mark, or look like a frame. */
static void capture(struct world *w, int side, int lane)
{
	struct stream *s = &w->streams[side][lane];
	ssize_t n;

	if (s->at == s->n)
		s->at = s->n = 0;
	n = recv(w->raw[side][lane], s->bytes + s->n, ROOM - s->n, MSG_DONTWAIT);
	if (n > 0)
		s->n += (size_t)n;
	CHECK(!memmem(s->bytes, s->n, mark, sizeof(mark) - 1));
}

static void pass_on(struct world *w, int side, int lane)
{
	struct stream *s = &w->streams[side][lane];
	ssize_t n;

	capture(w, side, lane);
	n = send(w->raw[!side][lane], s->bytes + s->at, s->n - s->at, MSG_DONTWAIT | MSG_NOSIGNAL);
	s->at += n > 0 ? (size_t)n : 0;
}

static void turn(struct world *w)
{
	for (int side = 0; side < 2; side++) {
		tcp_link_progress(w->l[side]);
		for (int lane = 0; lane < LANES; lane++)
			pass_on(w, side, lane);
	}
}

static void fill(uint8_t *data, size_t n, int seed)
{
	for (size_t i = 0; i < n; i++)
		data[i] =
			i % 64 < sizeof(mark) - 1 ? (uint8_t)mark[i % 64] : (uint8_t)(i * 13 + i / 256 + (size_t)seed);
}

/* In parts of odd sizes where vec is set. */
static int parts_of(uint8_t *data, size_t n, struct iovec iov[4])
{
	size_t cut = n / 3 | 1;

	iov[0] = (struct iovec){data, cut};
	iov[1] = (struct iovec){data + cut, 17};
	iov[2] = (struct iovec){data + cut + 17, n - cut - 17};
	return 3;
}

static void move_one(struct world *w, int from, size_t size, bool vec)
{
	uint8_t *out = malloc(size + 1), *in = calloc(1, size + 1);
	void *send = NULL, *recv = NULL;
	int sent = 0, received = 0, got = -1, tag = TAG;
	struct iovec iov[2][4];

	fill(out, size, (int)size);
	if (vec) {
		int n = parts_of(out, size, iov[0]);

		CHECK_OK(tcp_link_isend_vec(w->l[from], iov[0], (uint32_t)n, TAG, &send));
		parts_of(in, size, iov[1]);
		CHECK_OK(tcp_link_irecv_vec(w->l[!from], iov[1], (uint32_t)n, TAG, &recv));
	} else {
		CHECK_OK(tcp_link_isend(w->l[from], out, size, TAG, &send));
		CHECK_OK(tcp_link_irecv(w->l[!from], 1, (void **)&in, &size, &tag, &recv));
	}
	for (int i = 0; !(sent && received); i++) {
		CHECK(i < 100000);
		turn(w);
		if (!sent)
			CHECK_OK(tcp_link_test(send, &sent, NULL));
		if (!received)
			CHECK_OK(tcp_link_test(recv, &received, &got));
	}
	CHECK_EQ((size_t)got, size);
	CHECK(memcmp(in, out, size) == 0);
	free(in);
	free(out);
}

TEST(check_moves)
{
	static const size_t sizes[] = {0, 1, 64, 4096, 4097, 65488, 65536, 65537, 131072, 700001, 3 << 20};
	struct world w;

	world_make(&w, 1);
	EACH_ROW (i, sizes) {
		move_one(&w, 0, sizes[i], false);
		move_one(&w, 1, sizes[i], false);
		if (sizes[i] > config.eager_max)
			move_one(&w, 0, sizes[i], true);
	}
	/* A stream of small ones, coalesced. */
	for (int round = 0; round < 20; round++) {
		uint8_t out[24][200], in[24][200];
		void *sends[24], *recvs[24];
		size_t size = 200;
		int tag = TAG;

		for (int i = 0; i < 24; i++) {
			fill(out[i], 200, round + i);
			CHECK_OK(tcp_link_isend(w.l[0], out[i], 200, TAG, &sends[i]));
			CHECK(sends[i]);
		}
		for (int i = 0; i < 24; i++) {
			void *at = in[i];

			CHECK_OK(tcp_link_irecv(w.l[1], 1, &at, &size, &tag, &recvs[i]));
		}
		for (int i = 0; i < 48; i++) {
			int done = 0;

			for (int k = 0; !done; k++) {
				CHECK(k < 100000);
				turn(&w);
				CHECK_OK(tcp_link_test(i < 24 ? sends[i] : recvs[i - 24], &done, NULL));
			}
		}
		CHECK(memcmp(in, out, sizeof(in)) == 0);
	}
	world_free(&w);
}

/* ---- attacks ---- */

static size_t record_size(const uint8_t *r)
{
	return (size_t)le_get(r + 4, 4) + GANTRY_SEAL_EXTRA;
}

/* On the stream of lane `lane` from side 0, whose first records are whole. */
struct attack {
	const char *name;
	int lane;
	void (*change)(struct world *w, struct stream *s);
	int victim; /* which link fails */
	const char *text;
};

static void flip_payload(struct world *w, struct stream *s)
{
	s->bytes[record_size(s->bytes) + GANTRY_SEAL_HEADER + 100] ^= 1;
}

static void flip_header(struct world *w, struct stream *s)
{
	s->bytes[GANTRY_SEAL_HEADER + 4] ^= 1;
}

static void flip_tag(struct world *w, struct stream *s)
{
	s->bytes[record_size(s->bytes) - 1] ^= 128;
}

static void flip_length(struct world *w, struct stream *s)
{
	s->bytes[5] ^= 1; /* of the header's record: now 256 bytes longer */
}

static void insert(struct stream *s, size_t at, const uint8_t *bytes, size_t n)
{
	uint8_t *copy = malloc(n);

	memcpy(copy, bytes, n);
	memmove(s->bytes + at + n, s->bytes + at, s->n - at);
	memcpy(s->bytes + at, copy, n);
	s->n += n;
	free(copy);
}

static void replay(struct world *w, struct stream *s)
{
	size_t n = record_size(s->bytes);

	insert(s, n, s->bytes, n);
}

static void leave_out(struct world *w, struct stream *s)
{
	size_t n = record_size(s->bytes);

	memmove(s->bytes, s->bytes + n, s->n - n);
	s->n -= n;
}

static void reorder(struct world *w, struct stream *s)
{
	size_t n = record_size(s->bytes), m = record_size(s->bytes + n);

	insert(s, 0, s->bytes + n, m);
	memmove(s->bytes + n + m, s->bytes + n + 2 * m, s->n - n - 2 * m);
	s->n -= m;
}

static void reflect(struct world *w, struct stream *s)
{
	send_all(w->raw[0][1], s->bytes, record_size(s->bytes));
}

static void swap_lanes(struct world *w, struct stream *s)
{
	struct stream other = w->streams[0][2], mine = w->streams[0][1];

	CHECK(other.n > 0);
	w->streams[0][1] = other;
	w->streams[0][2] = mine;
}

static void speak_plainly(struct world *w, struct stream *s)
{
	uint8_t frame[48];

	insert(s, 0, frame,
	       pair_frame_put(frame, &(struct pair_frame){.kind = WIRE_DATA, .length = 100, .total = 100, .tag = TAG}));
}

static const struct attack attacks[] = {
	{"a bit of the payload", 1, flip_payload, 1, "lane 1, message 0 of tag 7, offset"},
	{"a bit of a header", 1, flip_header, 1, "lane 1: a record is not authentic"},
	{"a bit of a tag", 1, flip_tag, 1, "lane 1: a record is not authentic"},
	{"a bit of a length", 1, flip_length, 1, "lane 1: a record is not authentic"},
	{"replay", 1, replay, 1, "received record 0, expected 1: replayed"},
	{"left out", 1, leave_out, 1, "lane 1: received record 1, expected 0: records were dropped or reordered"},
	{"reorder", 1, reorder, 1, "lane 1: received record 1, expected 0: records were dropped or reordered"},
	{"reflect", 1, reflect, 0, "lane 1: record 0 is one of our own, reflected back"},
	{"another lane", 1, swap_lanes, 1, "a record is not authentic: it was modified, or belongs to another lane"},
	{"plaintext", 1, speak_plainly, 1, "lane 1: record 0 is not encrypted"},
	{"control: a bit", 0, flip_header, 1, "lane 0: a record is not authentic"},
	{"control: replay", 0, replay, 1, "lane 0: received record 0, expected 1: replayed"},
	{"control: left out", 0, leave_out, 1, "lane 0: received record 1, expected 0"},
};

/* A bulk message for a posted receive stands in the streams, in records that are whole, and nothing has come. */
static void prepare(struct world *w, uint8_t *in, uint8_t *out, size_t size, void **ret_recv)
{
	void *send = NULL;
	int tag = TAG;

	CHECK_OK(tcp_link_isend(w->l[0], out, size, TAG, &send));
	CHECK_OK(tcp_link_irecv(w->l[1], 1, (void **)&in, &size, &tag, ret_recv));
	for (int i = 0; i < 1000 && !(w->streams[0][1].n && w->streams[0][2].n); i++) {
		for (int side = 0; side < 2; side++)
			tcp_link_progress(w->l[side]);
		pass_on(w, 0, 0);
		pass_on(w, 1, 0);
		for (int lane = 1; lane < LANES; lane++)
			capture(w, 0, lane);
	}
}

static void check_attack(const struct attack *a)
{
	enum { SIZE = 400000 };
	uint8_t *out = malloc(SIZE), *in = calloc(1, SIZE);
	struct world w;
	void *recv = NULL;
	struct stream *s;
	int done = 0;
	gantry_result r = GANTRY_OK;

	CASE("%s", a->name);
	world_make(&w, 2);
	fill(out, SIZE, 3);
	if (a->lane) {
		prepare(&w, in, out, SIZE, &recv);
	} else { /* two small messages, in two records of the control lane */
		for (int i = 0; i < 2; i++) {
			void *send = NULL;

			CHECK_OK(tcp_link_isend(w.l[0], out, 100, TAG, &send));
			tcp_link_progress(w.l[0]);
		}
		capture(&w, 0, 0);
		CHECK_OK(tcp_link_irecv(w.l[1], 1, (void **)&in, &(size_t){100}, &(int){TAG}, &recv));
	}
	s = &w.streams[0][a->lane];
	CHECK(s->n > record_size(s->bytes));
	a->change(&w, s);
	for (int i = 0; i < 2000 && !tcp_link_failed(w.l[a->victim]); i++) {
		turn(&w);
		if (!done && r == GANTRY_OK)
			r = tcp_link_test(recv, &done, NULL);
	}
	CHECK(tcp_link_failed(w.l[a->victim]));
	CHECK_EQ(w.l[a->victim]->end.error, GANTRY_ERR_CORRUPT);
	CHECK_HAS(w.l[a->victim]->end.text, a->text);
	CHECK(!done || a->change == replay); /* of a replay the first one is right */
	/* The other side hears of it, over what is left of the link. */
	for (int i = 0; i < 2000 && !tcp_link_failed(w.l[!a->victim]); i++)
		turn(&w);
	CHECK_HAS(w.l[!a->victim]->end.text, "the peer gave up");
	world_free(&w);
	free(in);
	free(out);
}

TEST(check_attacks)
{
	for (size_t i = 0; i < TEST_COUNT(attacks); i++)
		check_attack(&attacks[i]);
}

/* Lane 0 has no seal, and the link wants to say why it has failed: there is nothing that it may say. */
TEST(check_without_a_seal)
{
	struct pair_config plain = {.nlanes = 2};
	struct tcp_link *l;
	int fd[2], other[2];

	pair_sockets(&plain, fd);
	pair_sockets(&plain, other);
	l = pair_link(&plain, (int[]){fd[0], other[0]}, "nobody");
	l->session.sealed = 1; /* and there was no memory for the seal of lane 0 */
	tcp_link_fail(l, 1, GANTRY_ERR_NOMEM, "no memory for a seal");
	tcp_control_flush(l); /* wants to say so */
	CHECK(tcp_link_failed(l));
	tcp_link_free(l);
	close(fd[1]);
	close(other[1]);
}

/* The stream ends in the middle of a record, without a word: the message does not count, and the lane is named. */
TEST(check_truncated)
{
	enum { SIZE = 400000 };
	uint8_t *out = malloc(SIZE), *in = calloc(1, SIZE);
	struct world w;
	void *recv = NULL;
	int done = 0;
	gantry_result r = GANTRY_OK;

	config.inet = 1;
	world_make(&w, 2);
	fill(out, SIZE, 3);
	prepare(&w, in, out, SIZE, &recv);
	send_all(w.raw[1][1], w.streams[0][1].bytes, record_size(w.streams[0][1].bytes) + 1000);
	shutdown(w.raw[1][1], SHUT_WR);
	for (int i = 0; i < 100000 && r == GANTRY_OK; i++) {
		tcp_link_progress(w.l[1]);
		if (w.l[1]->end.ending)
			tcp_link_check_ending(w.l[1]);
		r = tcp_link_test(recv, &done, NULL);
		CHECK(!done);
		if (i > 100)
			usleep(1000);
	}
	CHECK_EQ(r, GANTRY_ERR_PEER_LOST);
	CHECK_HAS(w.l[1]->end.text, "lane 1: it was closed without a goodbye message");
	world_free(&w);
	config.inet = 0;
	free(in);
	free(out);
}

/* The first records of equal messages: no two of lane, direction and session have anything in common. */
TEST(check_keys)
{
	uint8_t first[8][64];
	int n = 0;

	for (int session = 0; session < 2; session++) {
		struct world w;

		world_make(&w, session);
		for (int side = 0; side < 2; side++)
			for (int lane = 0; lane < 2; lane++) {
				char text[33] = "the same thirty-two bytes always";
				struct gantry_seal *s = w.l[side]->lanes[lane].sealed->seals.tx;

				CHECK_EQ(gantry_seal_close(s, &(struct iovec){text, 32}, 1, first[n++]), 64);
			}
		world_free(&w);
	}
	for (int a = 0; a < n; a++)
		for (int b = 0; b < a; b++)
			CHECK(memcmp(first[a] + GANTRY_SEAL_HEADER, first[b] + GANTRY_SEAL_HEADER, 32) != 0);
}

#else

TEST(check_nothing)
{
	CHECK_EQ(gantry_openssl_load(), GANTRY_ERR_UNSUPPORTED);
}

#endif
