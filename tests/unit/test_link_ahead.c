/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending to a side that receives into device memory: bulk lanes carry payload only, their headers go ahead on lane 0.
 * When those are not read, a link is stuck with them: its ends, and that it goes on when they are.
 */
#include "base/log.h"
#include "device/device.h"
#include "link_pair.h"
#include "net/emulated/emulated.h"
#include "net/tcp/txmem.h"

/*
 * The receiver written by hand: it reads lane 0 as a stream of frames and gives the bytes of each bulk lane to the
 * pieces that were announced for it, in that order, and to nobody else.
 */
enum { MESSAGES = 96, MAX_SIZE = 150000, TAGS = 3, PIECES = 4096, CONTROL = 1 << 20 };

struct piece {
	uint32_t tag, index, length;
	uint64_t offset, got;
};

struct message {
	uint8_t *data;
	uint64_t size, got, seen; /* bytes that came; bytes that were announced */
	uint64_t seq;
	int bulk, done;
};

/* What the hand-written receiver knows. */
struct receiver {
	const struct pair_config *config;
	int raw[WIRE_MAX_LANES];
	uint8_t *control;
	size_t have;
	struct piece *pieces[WIRE_MAX_LANES];
	uint32_t npieces[WIRE_MAX_LANES], at[WIRE_MAX_LANES];
	struct message messages[TAGS][MESSAGES];
	uint64_t lane_bytes[WIRE_MAX_LANES];
	uint64_t done, bulk_seen; /* bulk messages that are complete, all before the first that is not */
	uint8_t done_of[TAGS * MESSAGES];
	int ends, ahead, errors;
	uint64_t close_seq;
	uint8_t *early[WIRE_MAX_LANES]; /* payload that overtook its header */
	size_t nearly[WIRE_MAX_LANES];
};

static uint64_t seed_of(uint32_t tag, uint32_t index)
{
	return tag * 1000 + index;
}

static struct receiver *receiver_new(const struct pair_config *c, struct tcp_link **ret_link)
{
	struct receiver *r = calloc(1, sizeof(*r));

	r->config = c;
	r->control = malloc(CONTROL);
	for (int i = 0; i < c->nlanes; i++) {
		r->pieces[i] = calloc(PIECES, sizeof(struct piece));
		r->early[i] = malloc(8 << 20);
	}
	*ret_link = pair_raw(c, r->raw);
	(*ret_link)->session.device_tx = 1;
	return r;
}

static void receiver_free(struct receiver *r, struct tcp_link *l)
{
	pair_raw_free(r->config, l, r->raw);
	for (uint32_t t = 0; t < TAGS; t++)
		for (uint32_t i = 0; i < MESSAGES; i++)
			free(r->messages[t][i].data);
	for (int i = 0; i < r->config->nlanes; i++) {
		free(r->pieces[i]);
		free(r->early[i]);
	}
	free(r->control);
	free(r);
}

/* "So many receives are posted with this tag; so many bulk messages are done." */
static void say_state(struct receiver *r, uint32_t tag, uint32_t posted, uint64_t consumed)
{
	struct pair_frame f = {.kind = WIRE_STATE, .seq = r->done, .offset = consumed, .tag = tag, .index = posted};

	f.flags = WIRE_FLAG_TAG | (r->config->crc ? WIRE_FLAG_CRC : 0);
	pair_say(r->raw[0], &f, NULL);
}

static struct message *message_of(struct receiver *r, const struct pair_frame *f)
{
	struct message *m;

	CHECK(f->tag < TAGS && f->index < MESSAGES);
	m = &r->messages[f->tag][f->index];
	if (!m->data) {
		m->data = malloc(f->total + 1);
		m->size = f->total;
	}
	CHECK_EQ(m->size, f->total);
	return m;
}

static void arrived(struct receiver *r, struct message *m, uint32_t tag, uint32_t index)
{
	if (m->got < m->size)
		return;
	CHECK_EQ(m->got, m->size);
	CHECK_EQ(pattern_wrong_at(m->data, m->size, seed_of(tag, index)), m->size);
	m->done = 1;
	if (m->bulk) {
		r->done_of[m->seq] = 1;
		while (r->done < sizeof(r->done_of) && r->done_of[r->done])
			r->done++;
	}
}

/* Bytes of a lane go to what was announced for it. */
static void attribute(struct receiver *r, int lane)
{
	uint8_t *from = r->early[lane];
	size_t left = r->nearly[lane];

	while (left && r->at[lane] < r->npieces[lane]) {
		struct piece *p = &r->pieces[lane][r->at[lane]];
		struct message *m = &r->messages[p->tag][p->index];
		size_t n = left < p->length - p->got ? left : p->length - p->got;

		memcpy(m->data + p->offset + p->got, from, n);
		from += n;
		left -= n;
		p->got += n;
		m->got += n;
		if (p->got == p->length) {
			r->at[lane]++;
			arrived(r, m, p->tag, p->index);
		}
	}
	memmove(r->early[lane], from, left);
	r->nearly[lane] = left;
}

static void on_frame(struct receiver *r, const uint8_t *b, const struct pair_frame *f)
{
	struct message *m;
	uint32_t lane = f->lane;

	CHECK_EQ(r->ends, 0); /* nothing follows CLOSE */
	CHECK_EQ(f->flags & WIRE_FLAG_CRC, r->config->crc ? WIRE_FLAG_CRC : 0);
	CHECK_EQ(f->crc, r->config->crc ? pair_header_crc(b) : 0);
	switch (f->kind) {
	case WIRE_EAGER:
		CHECK(f->length <= r->config->eager_max);
		m = message_of(r, f);
		CHECK_EQ(m->got, 0);
		memcpy(m->data, b + pair_header(b), f->length);
		m->got = f->length;
		arrived(r, m, f->tag, f->index);
		break;
	case WIRE_DESCRIPTOR:
		CHECK(lane >= 1 && lane < (uint32_t)r->config->nlanes);
		CHECK_EQ(f->flags & ~(WIRE_FLAG_ACK | WIRE_FLAG_DEEP | WIRE_FLAG_CRC), 0);
		m = message_of(r, f);
		m->bulk = 1;
		m->seq = f->seq;
		CHECK(f->seq < sizeof(r->done_of));
		m->seen += f->length;
		CHECK(f->offset + f->length <= f->total && m->seen <= m->size);
		CHECK(r->npieces[lane] < PIECES);
		r->pieces[lane][r->npieces[lane]++] =
			(struct piece){.tag = f->tag, .index = f->index, .length = f->length, .offset = f->offset};
		r->ahead++;
		break;
	case WIRE_CLOSE:
		r->ends++;
		r->close_seq = f->seq;
		break;
	case WIRE_ERROR:
		r->errors++;
		break;
	default:
		CHECK(f->kind == WIRE_RTS || f->kind == WIRE_STATE);
	}
}

static int read_control(struct receiver *r)
{
	ssize_t n = recv(r->raw[0], r->control + r->have, CONTROL - r->have, MSG_DONTWAIT);
	size_t at = 0;

	if (n <= 0)
		return 0;
	r->have += (size_t)n;
	while (r->have > at && r->have - at >= pair_header(r->control + at)) {
		struct pair_frame f = pair_frame_get(r->control + at);
		size_t whole = pair_header(r->control + at);

		whole += f.kind == WIRE_EAGER || f.kind == WIRE_ERROR ? f.length : 0;
		CHECK(r->control[at + 2] == 'G' && r->control[at + 3] == 'T');
		if (r->have - at < whole)
			break;
		on_frame(r, r->control + at, &f);
		at += whole;
	}
	memmove(r->control, r->control + at, r->have - at);
	r->have -= at;
	return 1;
}

/* One look at every lane; bulk lanes before lane 0, or after it. */
static int look(struct receiver *r, int control)
{
	int some = control == 1 ? read_control(r) : 0;

	for (int i = 1; i < r->config->nlanes; i++) {
		ssize_t n = recv(r->raw[i], r->early[i] + r->nearly[i], 1 + random_below(60000), MSG_DONTWAIT);

		if (n > 0) {
			r->nearly[i] += (size_t)n;
			r->lane_bytes[i] += (uint64_t)n;
			CHECK(r->nearly[i] < 7 << 20);
			some = 1;
		}
		attribute(r, i);
	}
	if (control == 2)
		some |= read_control(r);
	for (int i = 1; i < r->config->nlanes; i++)
		attribute(r, i);
	return some;
}

/* Payload, whoever it is for. */
static int read_bulk(struct receiver *r)
{
	int some = 0;

	for (int i = 1; i < r->config->nlanes; i++) {
		ssize_t n = recv(r->raw[i], r->early[i] + r->nearly[i], 4096, MSG_DONTWAIT);

		r->nearly[i] += n > 0 ? (size_t)n : 0;
		some |= n > 0;
	}
	return some;
}

struct post {
	uint8_t *data;
	void *request;
	uint64_t size;
	struct tcp_txmem *mem; /* the NIC reads it itself */
};

static struct gantry_device *host;

static void post_one(struct tcp_link *l, struct post *p, uint32_t tag, int device)
{
	if (device && !p->mem && p->size > l->session.eager_max && random_below(4))
		CHECK_OK(tcp_txmem_bind(l, &emulated_ops, host, p->data, p->size, NULL, &p->mem));
	if (p->mem)
		CHECK_OK(tcp_link_isend_txmem(l, p->mem, p->data, p->size, (int)tag, &p->request));
	else
		CHECK_OK(tcp_link_isend(l, p->data, p->size, (int)tag, &p->request));
}

static int all_arrived(const struct receiver *r)
{
	for (uint32_t t = 0; t < TAGS; t++)
		for (uint32_t i = 0; i < MESSAGES; i++)
			if (!r->messages[t][i].done)
				return 0;
	return 1;
}

/* Random messages over all tags; the receiver advertises a few receives at a time and acknowledges. */
static void stream(const struct pair_config *c, int device)
{
	struct tcp_link *l;
	struct receiver *r = receiver_new(c, &l);
	static struct post posts[TAGS][MESSAGES];
	uint32_t posted[TAGS] = {0}, done = 0, total = TAGS * MESSAGES, advertised[TAGS] = {0}, round = 0;
	uint64_t bulk_bytes = 0, lanes = 0;

	memset(posts, 0, sizeof(posts));
	WAIT_WHILE (done < total) {
		uint32_t t = random_below(TAGS);

		if (posted[t] < MESSAGES) {
			struct post *p = &posts[t][posted[t]];

			if (!p->data) {
				p->size = random_below(4) ? random_below(MAX_SIZE) : random_below(2 * c->eager_max);
				p->data = malloc(p->size + 1);
				pattern_fill(p->data, p->size, seed_of(t, posted[t]));
			}
			post_one(l, p, t, device);
			if (p->request) {
				bulk_bytes += p->size > c->eager_max ? p->size : 0;
				posted[t]++;
			}
		}
		tcp_link_progress(l);
		look(r, random_below(3) ? (int)random_below(2) + 1 : 0);
		t = round++ % TAGS;
		if (advertised[t] < MESSAGES && random_below(2))
			advertised[t] += 1 + random_below(4);
		if (advertised[t] > MESSAGES)
			advertised[t] = MESSAGES;
		if (round % 4 == 0)
			say_state(r, t, advertised[t], 0);
		for (t = 0; t < TAGS; t++)
			for (uint32_t i = 0; i < posted[t]; i++) {
				struct post *p = &posts[t][i];
				int is_done = 0, size = 0;

				if (!p->request)
					continue;
				CHECK_OK(tcp_link_test(p->request, &is_done, &size));
				if (!is_done)
					continue;
				CHECK_EQ((uint64_t)size, p->size);
				/* Done: the memory is ours again, whatever is still on its way. */
				memset(p->data, 0xdd, p->size);
				if (i % 2) {
					tcp_txmem_free(p->mem);
					p->mem = NULL;
				}
				p->request = NULL;
				done++;
			}
	}
	UNTIL((look(r, 1), all_arrived(r))); /* what is done may still be on its way */
	for (int idle = 0; idle < 3;)
		idle = look(r, 1) ? 0 : idle + 1;
	for (uint32_t t = 0; t < TAGS; t++)
		for (uint32_t i = 0; i < MESSAGES; i++) {
			tcp_txmem_free(posts[t][i].mem);
			free(posts[t][i].data);
		}
	for (int i = 1; i < c->nlanes; i++) {
		CHECK_EQ(r->at[i], r->npieces[i]); /* everything announced came, and not a byte more */
		CHECK_EQ(r->nearly[i], 0);
		lanes += r->lane_bytes[i];
	}
	CHECK_EQ(lanes, bulk_bytes); /* payload only */
	CHECK_EQ(l->devmem->descriptors.n, 0);
	tcp_link_close_tx(l);
	UNTIL((look(r, 1), r->ends));
	CHECK_EQ(r->ends, 1);
	CHECK_EQ(r->close_seq, r->done);
	receiver_free(r, l);
}

TEST(random_streams)
{
	for (int nlanes = 2; nlanes <= 5; nlanes += SANITIZED ? 3 : 1)
		for (int mode = 0; mode < 3; mode++) {
			struct pair_config c = {.nlanes = nlanes,
						.inet = nlanes % 2,
						.eager_max = 700,
						.buffer = nlanes == 4 ? 8192 : 0,
						.crc = mode == 2,
						.splice = mode == 0,
						.msg_zerocopy = mode == 1};

			stream(&c, 0);
		}
}

/* Some messages are read by the NIC itself, late; others are copied or spliced between them, in order on every lane. */
TEST(from_device_memory)
{
	for (int nlanes = 2; nlanes <= 4; nlanes++) {
		struct pair_config c = {.nlanes = nlanes, .inet = 1, .eager_max = 700, .splice = nlanes == 3};

		stream(&c, 1);
	}
}

/* The link ends while messages wait, are half read, or are read and not acknowledged; memory goes before or after. */
TEST(ends_with_device_memory)
{
	enum { SIZE = 300000, N = 6 };

	for (int how = 0; how < 4; how++) {
		struct pair_config c = {.nlanes = 3, .inet = 1, .eager_max = 256, .buffer = 16384};
		struct tcp_link *l;
		struct receiver *r = receiver_new(&c, &l);
		uint8_t *data = calloc(N, SIZE);
		struct tcp_txmem *m[2];
		void *requests[N];
		int done = 0;

		CHECK_OK(tcp_txmem_bind(l, &emulated_ops, host, data, N / 2 * SIZE, NULL, &m[0]));
		CHECK_OK(tcp_txmem_bind(l, &emulated_ops, host, data + N / 2 * SIZE, N / 2 * SIZE, NULL, &m[1]));
		say_state(r, 0, MESSAGES, 0);
		for (int i = 0; i < N; i++)
			CHECK_OK(tcp_link_isend_txmem(l, m[i >= N / 2], data + i * SIZE, SIZE, 0, &requests[i]));
		UNTIL((tcp_link_progress(l), l->lanes[1].tx.calls > 0));
		pair_passes(l, 100);
		if (how >= 2) {
			tcp_link_fail(l, 1, GANTRY_ERR_CORRUPT, "enough");
			CHECK_EQ(tcp_link_test(requests[N - 1], &done, NULL), GANTRY_ERR_CORRUPT);
		}
		if (how % 2) {
			tcp_link_close_tx(l);
			CHECK(!m[0]->link);
		}
		tcp_txmem_free(m[0]);
		tcp_txmem_free(m[1]);
		free(data); /* nobody reads it any more */
		for (int i = 0; i < 20; i++) {
			tcp_link_progress(l);
			read_bulk(r);
		}
		CHECK(gantry_list_empty(&l->devmem->txmems));
		receiver_free(r, l);
	}
}

/* The other direction of the same link is ordinary: headers in line, into host memory. */
TEST(mixed_directions)
{
	enum { SIZE = 50000, ROUNDS = 20 };
	struct pair_config c = {.nlanes = 3, .eager_max = 256};
	struct tcp_link *l[2];
	uint8_t *out[2] = {malloc(SIZE), malloc(SIZE)}, *in = malloc(SIZE);
	struct receiver *r = receiver_new(&c, &l[0]);

	say_state(r, 0, MESSAGES, 0);
	for (uint32_t k = 0; k < ROUNDS; k++) {
		struct pair_frame f = {
			.kind = WIRE_DATA, .length = SIZE, .total = SIZE, .seq = k, .tag = 9, .index = k};
		size_t size = SIZE, sent = 0;
		void *send_request = NULL, *recv_request = NULL, *p = in;
		int tag = 9, sdone = 0, rdone = 0;

		pattern_fill(out[0], SIZE, seed_of(0, k));
		pattern_fill(out[1], SIZE, 77 + k);
		CHECK_OK(tcp_link_irecv(l[0], 1, &p, &size, &tag, &recv_request));
		CHECK_OK(tcp_link_isend(l[0], out[0], SIZE, 0, &send_request));
		pair_say(r->raw[1 + k % 2], &f, NULL);
		WAIT_WHILE (!sdone || !rdone) {
			if (sent < SIZE) {
				ssize_t n = send(r->raw[1 + k % 2], out[1] + sent, SIZE - sent, MSG_DONTWAIT);

				sent += n > 0 ? (size_t)n : 0;
			}
			if (!sdone)
				CHECK_OK(tcp_link_test(send_request, &sdone, NULL));
			if (!rdone)
				CHECK_OK(tcp_link_test(recv_request, &rdone, NULL));
			look(r, 1);
		}
		CHECK_PATTERN(in, SIZE, 77 + k);
	}
	WAIT_WHILE (r->done < ROUNDS)
		look(r, 1);
	CHECK_EQ(r->done, ROUNDS);
	receiver_free(r, l[0]);
	free(out[0]);
	free(out[1]);
	free(in);
}

/* Who pulls a piece gives idle lanes theirs, so that one call takes all headers; not to lanes that are in use or dead.
 */
TEST(headers_go_together)
{
	enum { PIECE = 96 << 10, LANES = 5 }; /* GANTRY_CHUNK_MAX, see tests_begin */
	struct pair_config c = {.nlanes = LANES, .inet = 1, .eager_max = 256, .buffer = 8192};
	struct tcp_link *l;
	struct receiver *r = receiver_new(&c, &l);
	uint8_t *data = calloc(LANES - 1, PIECE), control[1024];
	void *request = NULL;

	for (int i = 1; i < LANES; i++)
		lane_tx_mu_lock(&l->lanes[i].tx.lock);
	say_state(r, 0, 1, 0);
	CHECK_OK(tcp_link_isend(l, data, (LANES - 1) * PIECE, 0, &request));
	UNTIL((tcp_link_progress(l), tcp_tag_of(&l->tx.tags, 0)->credit));
	while (recv(r->raw[0], control, sizeof(control), MSG_DONTWAIT) > 0)
		;
	l->lanes[4].tx.dead = 1;
	for (int i = 1; i < LANES; i++)
		if (i != 3)
			lane_tx_mu_unlock(&l->lanes[i].tx.lock);
	tcp_bulk_tx(&l->lanes[1]); /* its socket is full before the piece is out */
	CHECK(l->lanes[1].tx.send && l->lanes[2].tx.send);
	CHECK(!l->lanes[3].tx.send && !l->lanes[4].tx.send);
	CHECK_EQ(l->lanes[2].tx.left, PIECE);
	CHECK_EQ(recv(r->raw[0], control, sizeof(control), 0), 2 * 48);
	for (uint32_t i = 0; i < 2; i++) {
		struct pair_frame f = pair_frame_get(control + (size_t)i * 48);

		CHECK_EQ(f.kind, WIRE_DESCRIPTOR);
		CHECK_EQ(f.offset, i * PIECE);
		CHECK_EQ(le_get(control + (size_t)i * 48 + 44, 4), i + 1);
	}
	lane_tx_mu_unlock(&l->lanes[3].tx.lock);
	l->lanes[4].tx.dead = 0;
	tcp_link_close_tx(l);
	receiver_free(r, l);
	free(data);
}

/* ---- several threads ---- */

static uint32_t stop;

static void *pusher(void *arg)
{
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
		tcp_link_progress(arg);
	return NULL;
}

TEST(threads)
{
	enum { SIZE = 200000 };
	struct pair_config c = {.nlanes = 5, .eager_max = 256, .buffer = 32768};
	struct tcp_link *l;
	struct receiver *r = receiver_new(&c, &l);
	FREED uint8_t *out = malloc((size_t)SIZE * 8);
	void *requests[8] = {0};
	pthread_t t[2];
	uint32_t next = 0, done = 0;

	stop = 0;
	threads_start(t, 2, pusher, l, 0);
	say_state(r, 0, MESSAGES, 0);
	WAIT_WHILE (done < MESSAGES) {
		uint32_t k = next % 8;

		if (next < MESSAGES && !requests[k]) {
			pattern_fill(out + (size_t)k * SIZE, SIZE, seed_of(0, next));
			CHECK_OK(tcp_link_isend(l, out + (size_t)k * SIZE, SIZE, 0, &requests[k]));
			next += requests[k] != NULL;
		}
		for (k = 0; k < 8; k++) {
			int is_done = 0;

			if (requests[k])
				CHECK_OK(tcp_link_test(requests[k], &is_done, NULL));
			if (is_done) {
				requests[k] = NULL;
				done++;
			}
		}
		look(r, 1);
	}
	WAIT_WHILE (r->done < MESSAGES)
		look(r, 1);
	CHECK_EQ(r->done, MESSAGES);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	threads_join(t, 2);
	receiver_free(r, l);
}

/* ---- headers that are not read ---- */

/* A link with many small bulk messages whose headers nobody reads. */
static struct {
	struct tcp_link *l;
	struct receiver *r;
	void *requests[TAGS * MESSAGES];
	uint8_t data[TAGS * 64];
	uint32_t n, whole; /* messages that were posted, and that have arrived */
} stuck;

/* Asks after all requests; how many are left. */
static uint32_t test_stuck(void)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < stuck.n; i++) {
		int done = 0;

		if (stuck.requests[i])
			CHECK_OK(tcp_link_test(stuck.requests[i], &done, NULL));
		if (done)
			stuck.requests[i] = NULL;
		left += stuck.requests[i] != NULL;
	}
	return left;
}

/* Posts until headers wait in the ring: MESSAGES x TAGS pieces are more than it and the socket of lane 0 hold. */
static void get_stuck(int nlanes)
{
	static struct pair_config c;
	struct tcp_link *l;

	c = (struct pair_config){.nlanes = nlanes, .eager_max = 16, .buffer = 2048};
	stuck.r = receiver_new(&c, &stuck.l);
	l = stuck.l;
	for (uint32_t t = 0; t < TAGS; t++) {
		memset(stuck.data + t * 64, 0x40 + (int)t, 64); /* all messages of a tag are alike */
		say_state(stuck.r, t, MESSAGES, 0);
	}
	stuck.n = 0;
	WAIT_WHILE (stuck.n < TAGS * MESSAGES && l->devmem->descriptors.n < LINK_DESCRIPTORS) {
		uint32_t t = stuck.n % TAGS;

		CHECK_OK(tcp_link_isend(l, stuck.data + t * 64, 64, (int)t, &stuck.requests[stuck.n]));
		stuck.n += stuck.requests[stuck.n] != NULL;
		test_stuck();
		read_bulk(stuck.r);
		CHECK(l->devmem->descriptors.n <= LINK_DESCRIPTORS);
	}
}

/* What message_of and arrived would check by seed is checked here by value. */
static void drain_small(void)
{
	struct receiver *r = stuck.r;
	struct tcp_link *l = stuck.l;

	stuck.whole = 0;
	for (int idle = 0; idle < 20;) {
		int some = read_control(r) | read_bulk(r);

		tcp_control_flush(l);
		idle = some ? 0 : idle + 1;
	}
	for (int i = 1; i < r->config->nlanes; i++) {
		size_t at = 0;

		for (uint32_t k = 0; k < r->npieces[i]; k++) {
			const struct piece *p = &r->pieces[i][k];
			size_t here = r->nearly[i] - at < p->length ? r->nearly[i] - at : p->length;

			for (size_t b = 0; b < here; b++)
				CHECK_EQ(r->early[i][at + b], 0x40 + p->tag);
			at += here;
			stuck.whole += here == p->length;
		}
		if (!tcp_link_failed(l))
			CHECK_EQ(at, r->nearly[i]); /* no byte without a header */
	}
}

TEST(closes_after_headers)
{
	struct tcp_link *l;

	get_stuck(3);
	l = stuck.l;
	CHECK_EQ(l->devmem->descriptors.n, LINK_DESCRIPTORS); /* it waits, and no lane pulls beyond it */
	pair_passes(l, 20);
	CHECK_EQ(l->devmem->descriptors.n, LINK_DESCRIPTORS);
	CHECK(stuck.n < TAGS * MESSAGES || !gantry_list_empty(&l->tx.bulk));
	tcp_link_close_tx(l);
	CHECK(!tcp_control_idle(l));
	drain_small();
	CHECK(tcp_control_idle(l));
	CHECK_EQ(stuck.r->ends, 1);
	CHECK_EQ(stuck.r->close_seq, stuck.whole);
	CHECK(stuck.whole >= LINK_DESCRIPTORS);
	receiver_free(stuck.r, l);
}

TEST(goes_on_when_read)
{
	get_stuck(2);
	CHECK_EQ(stuck.l->devmem->descriptors.n, LINK_DESCRIPTORS);
	UNTIL((drain_small(), !test_stuck() && stuck.whole == stuck.n));
	receiver_free(stuck.r, stuck.l);
}

/* A link that has failed says so, and does not send what it has announced to nobody. */
TEST(fails_with_headers_waiting)
{
	int done = 0;

	get_stuck(2);
	tcp_link_fail(stuck.l, 1, GANTRY_ERR_CORRUPT, "enough");
	for (uint32_t i = 0; i < stuck.n; i++)
		if (stuck.requests[i])
			CHECK_EQ(tcp_link_test(stuck.requests[i], &done, NULL), GANTRY_ERR_CORRUPT);
	drain_small();
	CHECK_EQ(stuck.r->errors, 1);
	CHECK_EQ(stuck.r->ends, 0);
	tcp_link_close_tx(stuck.l);
	drain_small();
	CHECK_EQ(stuck.r->ends, 1);
	CHECK(tcp_control_idle(stuck.l));
	receiver_free(stuck.r, stuck.l);
}

void tests_begin(void)
{
	CHECK_OK(gantry_device_host(&host));
	set_params("GANTRY_ZEROCOPY_MIN", "4096", "GANTRY_CHUNK_MAX", "96k", "GANTRY_CHUNK_MIN", "64k");
	tests_apart(0);
}
