/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending to a side that receives into device memory: bulk lanes carry payload only, their headers go ahead on lane 0.
 */
#include "link_ahead_util.h"
#include "net/emulated/emulated.h"

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
		CHECK_OK(tcp_txmem_bind(l, &emulated_ops, host, p->data, p->size, &p->mem));
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
	uint64_t bulk_bytes = 0, lanes = 0, deadline = until_hang();

	memset(posts, 0, sizeof(posts));
	while (done < total) {
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
		CHECK(gantry_now_ns() < deadline);
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
	CHECK_EQ(l->tx.descriptors.n, 0);
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

		CHECK_OK(tcp_txmem_bind(l, &emulated_ops, host, data, N / 2 * SIZE, &m[0]));
		CHECK_OK(tcp_txmem_bind(l, &emulated_ops, host, data + N / 2 * SIZE, N / 2 * SIZE, &m[1]));
		say_state(r, 0, MESSAGES, 0);
		for (int i = 0; i < N; i++)
			CHECK_OK(tcp_link_isend_txmem(l, m[i >= N / 2], data + i * SIZE, SIZE, 0, &requests[i]));
		UNTIL((tcp_link_progress(l), l->lanes[1].tx.calls > 0));
		for (int i = 0; i < 100; i++)
			tcp_link_progress(l);
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
		CHECK(gantry_list_empty(&l->devmem.txmems));
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
	uint64_t deadline = until_hang();
	struct receiver *r = receiver_new(&c, &l[0]);

	say_state(r, 0, MESSAGES, 0);
	for (uint32_t k = 0; k < ROUNDS; k++) {
		struct pair_frame f = {
			.kind = WIRE_DATA, .length = SIZE, .total = SIZE, .seq = k, .tag = 9, .index = k};
		uint8_t header[48];
		size_t size = SIZE, sent = 0;
		void *send_request = NULL, *recv_request = NULL, *p = in;
		int tag = 9, sdone = 0, rdone = 0;

		pattern_fill(out[0], SIZE, seed_of(0, k));
		pattern_fill(out[1], SIZE, 77 + k);
		pair_frame_put(header, &f);
		CHECK_OK(tcp_link_irecv(l[0], 1, &p, &size, &tag, &recv_request));
		CHECK_OK(tcp_link_isend(l[0], out[0], SIZE, 0, &send_request));
		CHECK_EQ(send(r->raw[1 + k % 2], header, 48, 0), 48);
		while (!sdone || !rdone) {
			if (sent < SIZE) {
				ssize_t n = send(r->raw[1 + k % 2], out[1] + sent, SIZE - sent, MSG_DONTWAIT);

				sent += n > 0 ? (size_t)n : 0;
			}
			if (!sdone)
				CHECK_OK(tcp_link_test(send_request, &sdone, NULL));
			if (!rdone)
				CHECK_OK(tcp_link_test(recv_request, &rdone, NULL));
			look(r, 1);
			CHECK(gantry_now_ns() < deadline);
		}
		CHECK_PATTERN(in, SIZE, 77 + k);
	}
	while (r->done < ROUNDS && gantry_now_ns() < deadline)
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
	enum { PIECE = 96 << 10, LANES = 5 }; /* GANTRY_CHUNK_MAX, see ahead_params */
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
	uint8_t *out = malloc((size_t)SIZE * 8);
	void *requests[8] = {0};
	pthread_t t[2];
	uint32_t next = 0, done = 0;
	uint64_t deadline = until_hang();

	stop = 0;
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, pusher, l), 0);
	say_state(r, 0, MESSAGES, 0);
	while (done < MESSAGES) {
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
		CHECK(gantry_now_ns() < deadline);
	}
	while (r->done < MESSAGES && gantry_now_ns() < deadline)
		look(r, 1);
	CHECK_EQ(r->done, MESSAGES);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	receiver_free(r, l);
	free(out);
}

void tests_begin(void)
{
	CHECK_OK(gantry_device_host(&host));
	ahead_params();
	tests_apart(0);
}
