/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks and hubs that know the key and lie: every field of every frame of the control plane, one at a time, at the edges
 * of its range; while the ranks join, between calls, and inside an allgather, through the hub and from rank to rank. What
 * is checked where:
 *
 *   frame      field        checked by
 *   all        magic, kind, size, from, to, result   ctl_allows: ERR_PROTOCOL
 *   to a hub   kind, state, from, to                 hub.c may_say: the rank is lost with ERR_PROTOCOL
 *   GATHER     tag          hub_hear_gather: older, newer and repeated ones
 *              size         part_size, give_part: ERR_USAGE for all
 *   HAVE       tag, result  hub_hear_have
 *   LIFE       tag          count_frame: frames that were never sent
 *   to a rank  from         on_rank_frame; GATHERED: on_frame
 *   READY      ranges, addresses   ctl_ready_decode, once
 *   LEFT       ranges       ctl_ranges_decode
 *   LOST       result       on_rank_frame
 *   GATHERED   size         gantry_ctl_allgather; too early in an exchange: gather_directly
 *   BLOCK      from, size   ctl_bruck_take; tag: hear_block
 *
 * Catches: writes and reads outside of buffers (with the sanitizers), results that are no outcome, parts that nobody gave,
 * honest ranks that pay for a liar.
 */
#include <poll.h>

#include "base/bytes.h"
#include "ctl_util.h"

enum { N = 3, LIAR = 1, PART = 16 };

static const int32_t ranks_at[] = {INT32_MIN, -2, -1, 0, LIAR, N - 1, N, CTL_RANKS_MAX - 1, CTL_RANKS_MAX, INT32_MAX};
static const uint64_t tags_at[] = {0, 1, 2, 3, UINT32_MAX, UINT64_MAX - 1, UINT64_MAX};
static const uint32_t sizes_at[] = {0, 1, 4, 7, 8, 9, PART, PART *N, CTL_TEXT_MAX + 1};
static const uint32_t results_at[] = {0, 1, 2, GANTRY_RESULT_COUNT - 1, GANTRY_RESULT_COUNT, UINT32_MAX};
enum { FROMS = TEST_COUNT(ranks_at), TAGS = TEST_COUNT(tags_at), SIZES = TEST_COUNT(sizes_at) };
enum { LIES = 2 * FROMS + TAGS + SIZES + TEST_COUNT(results_at) };

/* Lie i about an honest frame: one field of it has another value. */
static struct inet_header lie(struct inet_header h, size_t i)
{
	if (i < FROMS)
		h.from = ranks_at[i];
	else if ((i -= FROMS) < FROMS)
		h.to = ranks_at[i];
	else if ((i -= FROMS) < TAGS)
		h.tag = tags_at[i];
	else if ((i -= TAGS) < SIZES)
		h.size = sizes_at[i];
	else
		h.result = results_at[i - SIZES];
	return h;
}

/* A body of the size that the head names, whose words are small numbers. */
static void tell(struct inet_stream *c, const struct inet_header *h) REQUIRES(loop_mu)
{
	static uint8_t body[1024];

	for (size_t i = 0; i < sizeof(body); i += 4)
		put32(body + i, (uint32_t)(i / 4 % 5));
	if (c && !c->closed)
		inet_stream_send(c, h, body);
	inet_loop_wake();
}

static struct rank_state *join_all(struct gantry_unique_id *id, bool exchange)
{
	struct rank_state *s;

	set_params("GANTRY_EXCHANGE_RANKS", exchange ? "2" : "100");
	CHECK_OK(gantry_ctl_create_id(id));
	s = ranks_make(N, id, NULL);
	for (int i = 0; i < N; i++)
		s[i].listens = 1;
	ranks_start(s, N);
	ranks_joined(s, N);
	return s;
}

/* An outcome: fine, or an error with a name. */
static bool is_typed(gantry_result r)
{
	return r == GANTRY_OK || (r > GANTRY_AGAIN && r < GANTRY_RESULT_COUNT);
}

static gantry_result call_rank(struct rank_state *s, int to)
{
	uint8_t reply[16];
	size_t size = sizeof(reply);
	gantry_result r = gantry_ctl_call(s->ctl, to, ANSWER_KIND, "lie", 3, reply, &size);

	CHECK(is_typed(r));
	return r;
}

/* ---- a rank lies to the hub ---- */

static void lie_to_hub(struct rank_state *s, uint32_t kind, size_t i, int times)
{
	const struct inet_header honest = {.kind = kind, .from = LIAR, .to = 2, .tag = 1, .size = 8};
	struct inet_header h = lie(honest, i);

	inet_loop_lock();
	while (times--)
		tell(s[LIAR].ctl->conn, &h);
	inet_loop_unlock();
}

static void lies_to_hub(bool exchange)
{
	struct gantry_unique_id id;
	struct rank_state *s = NULL;

	for (uint32_t kind = CTL_NONE; kind <= CTL_KIND_COUNT; kind++) {
		for (size_t i = 0; i < LIES; i++) {
			CASE("%s %s: lie %zu", exchange ? "exchange" : "hub", ctl_kind_name(kind), i);
			if (!s)
				s = join_all(&id, exchange);
			lie_to_hub(s, kind, i, 1 + (int)(i % 2));
			/* Behind the lie. The honest ones talk as before. */
			if (call_rank(&s[LIAR], 0) != GANTRY_OK) {
				CHECK_OK(call_rank(&s[0], 2));
				ranks_leave(s, N);
				s = NULL;
			}
		}
		if (s) {
			CHECK_OK(call_rank(&s[0], 2));
			ranks_leave(s, N);
		}
		s = NULL;
	}
	until_quiet();
}

TEST_CALL(to_the_hub, lies_to_hub(false))
TEST_CALL(to_the_hub_of_an_exchange, lies_to_hub(true))

/* ---- inside an allgather ---- */

struct gathering {
	struct rank_state *s;
	pthread_t thread;
	gantry_result r;
	uint8_t all[PART * N];
};

static void *gather_thread(void *arg)
{
	struct gathering *g = arg;
	uint8_t mine[PART];

	memset(mine, 0x40 + g->s->rank, sizeof(mine));
	memset(g->all, 0xee, sizeof(g->all));
	g->r = gantry_ctl_allgather(g->s->ctl, mine, sizeof(mine), g->all);
	CHECK(is_typed(g->r));
	return NULL;
}

static void gather_start(struct gathering *g, struct rank_state *s)
{
	g->s = s;
	CHECK_EQ(pthread_create(&g->thread, NULL, gather_thread, g), 0);
}

static int gave(const struct gantry_unique_id *id)
{
	struct hub *hub;
	int n;

	inet_loop_lock();
	hub = hub_find(gantry_ctl_comm_id(id));
	n = hub && hub->gather.open ? hub->gather.count : -1;
	inet_loop_unlock();
	return n;
}

/* What it gives is the parts of the honest ranks, or an error. */
static void check_gathered(struct gathering *g)
{
	pthread_join(g->thread, NULL);
	if (g->r != GANTRY_OK)
		return;
	for (int i = 0; i < PART; i++) {
		CHECK_EQ(g->all[i], 0x40);
		CHECK_EQ(g->all[2 * PART + i], 0x42);
	}
}

/* Rank 0 has given its part; the liar gives its own, and again, and rank 2 comes only then. */
static void gathers_twice(bool exchange)
{
	static const struct {
		uint32_t kind, times, size;
		uint64_t tag;
	} rows[] = {
		{CTL_GATHER, 1, PART, 1},
		{CTL_GATHER, 2, PART, 1},
		{CTL_GATHER, 9, PART, 1},
		{CTL_GATHER, 2, 4, 1},
		{CTL_GATHER, 1, 0, 1},
		{CTL_GATHER, 1, PART + 1, 1},
		{CTL_GATHER, 1, PART, 2},
		{CTL_GATHER, 2, PART, 2},
		{CTL_GATHER, 2, PART, UINT64_MAX},
		{CTL_HAVE, 1, 0, 1},
		{CTL_HAVE, 5, 0, 1},
		{CTL_HAVE, 2, 0, 2},
		{CTL_GATHERED, 1, PART * N, 1},
		{CTL_BLOCK, 1, PART, 1},
	};
	struct gathering g[2];

	EACH_ROW (i, rows) {
		struct inet_header h = {
			.kind = rows[i].kind, .from = LIAR, .to = -1, .tag = rows[i].tag, .size = rows[i].size};
		struct gantry_unique_id id;
		struct rank_state *s = join_all(&id, exchange);
		bool gather_lost;

		gather_start(&g[0], &s[0]);
		UNTIL(gave(&id) == 1);
		inet_loop_lock();
		for (uint32_t k = 0; k < rows[i].times; k++)
			tell(s[LIAR].ctl->conn, &h);
		inet_loop_unlock();
		call_rank(&s[LIAR], 0); /* behind the lies */
		gather_lost = gave(&id) < 0;
		gather_start(&g[1], &s[2]);
		if (!gather_lost && gave(&id) >= 0) { /* or they would wait for the liar's part */
			gantry_ctl_leave(s[LIAR].ctl);
			s[LIAR].ctl = NULL;
		}
		check_gathered(&g[0]);
		check_gathered(&g[1]);
		CHECK_OK(call_rank(&s[0], 2));
		ranks_leave(s, N);
	}
	until_quiet();
}

TEST_CALL(gathers_twice_at_the_hub, gathers_twice(false))
TEST_CALL(gathers_twice_in_an_exchange, gathers_twice(true))

/* ---- the hub lies to a rank ---- */

static void lie_to_rank(const struct gantry_unique_id *id, const struct inet_header *h)
{
	struct hub *hub;

	inet_loop_lock();
	hub = hub_find(gantry_ctl_comm_id(id));
	CHECK(hub != NULL);
	tell(hub->ranks[LIAR].conn, h);
	inet_loop_unlock();
}

TEST(to_a_rank)
{
	struct gantry_unique_id id;
	struct rank_state *s = NULL;

	for (uint32_t kind = CTL_NONE; kind <= CTL_KIND_COUNT; kind++) {
		for (size_t i = 0; i < LIES; i++) {
			struct inet_header h =
				lie((struct inet_header){.kind = kind, .from = -1, .to = LIAR, .tag = 1, .size = 8}, i);

			CASE("%s: lie %zu", ctl_kind_name(kind), i);
			if (!s)
				s = join_all(&id, false);
			lie_to_rank(&id, &h);
			if (call_rank(&s[0], LIAR) != GANTRY_OK || call_rank(&s[LIAR], 0) != GANTRY_OK) {
				ranks_leave(s, N);
				s = NULL;
			}
		}
		if (s)
			ranks_leave(s, N);
		s = NULL;
	}
	until_quiet();
}

/* While rank 1 waits for the result; in an exchange no other rank is in it, so nothing can be right. */
static void lies_about_result(bool exchange)
{
	for (size_t i = 0; i < LIES; i++) {
		struct inet_header h = lie((struct inet_header){.kind = CTL_GATHERED,
								.from = -1,
								.to = LIAR,
								.tag = 1,
								.size = exchange ? 0 : PART * N},
					   i);
		struct gantry_unique_id id;
		struct gathering g;
		struct rank_state *s = join_all(&id, exchange);

		CASE("%s: lie %zu", exchange ? "exchange" : "hub", i);
		gather_start(&g, &s[LIAR]);
		UNTIL(gave(&id) == 1);
		lie_to_rank(&id, &h);
		call_rank(&s[0], LIAR);
		gantry_ctl_leave(s[0].ctl); /* the hub ends it now, if the lie has not */
		s[0].ctl = NULL;
		pthread_join(g.thread, NULL);
		if (exchange)
			CHECK(g.r != GANTRY_OK);
		ranks_leave(s, N);
	}
	until_quiet();
}

TEST_CALL(about_a_result, lies_about_result(false))
TEST_CALL(about_the_end_of_an_exchange, lies_about_result(true))

/* ---- a rank lies to a rank ---- */

/* A connection of an exchange, as another rank makes it; the frame; what becomes of it: 1 answered, 0 closed. */
static int send_block(struct rank_state *to, int from, const struct inet_header *h)
{
	const struct inet_protocol *protocol = &exchange_service.protocol;
	struct ctl_exchange_hello hello = {.comm_id = to->ctl->id.comm_id, .number = 1, .from = from, .to = to->rank};
	uint8_t out[CTL_EXCHANGE_SIZE], raw[INET_HEADER_SIZE + 1024];
	struct inet_handshake shake;
	enum inet_event event;
	ssize_t n;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(raw, 0x77, sizeof(raw));
	CHECK_EQ(connect(fd, &to->ctl->direct.addr.sa, sizeof(to->ctl->direct.addr.in)), 0);
	ctl_exchange_hello_encode(&hello, out);
	CHECK_OK(inet_handshake_start_client(&shake, protocol, &to->ctl->key, out, sizeof(out)));
	while ((event = inet_handshake_move(&shake, fd)) == INET_AGAIN)
		poll(&(struct pollfd){fd, POLLIN, 0}, 1, 100);
	CHECK_EQ(event, INET_DONE);
	CHECK(shake.payload_size == 1 && !shake.payload[0]);
	inet_handshake_end(&shake);
	inet_header_encode(h, raw);
	CHECK_EQ(send(fd, raw, INET_HEADER_SIZE + h->size, MSG_NOSIGNAL), INET_HEADER_SIZE + h->size);
	n = recv(fd, raw, INET_HEADER_SIZE, MSG_WAITALL);
	close(fd);
	return n == INET_HEADER_SIZE && get32(raw + 4) == CTL_HAVE;
}

/* Rank 2 waits for the blocks of ranks 0 and 1, and ASan for a byte that is written past its parts. */
TEST(blocks)
{
	struct gantry_unique_id id;
	struct gathering g;
	struct rank_state *s = join_all(&id, true);

	gather_start(&g, &s[2]);
	UNTIL(gave(&id) == 1);
	for (uint32_t kind = CTL_NONE; kind <= CTL_KIND_COUNT; kind++) {
		for (size_t i = 0; i < LIES; i += kind == CTL_BLOCK ? 1 : 7) {
			const struct inet_header honest = {
				.kind = kind, .from = LIAR, .to = 2, .tag = 1, .size = PART + 1};
			struct inet_header h = lie(honest, i);

			CASE("%s: lie %zu", ctl_kind_name(kind), i);
			if (kind == CTL_BLOCK && h.from != 0 && h.from != LIAR && h.size == PART + 1)
				h.size = PART; /* what a block of that round has: its sender is the lie */
			if (kind == CTL_BLOCK && h.size == PART && (h.from == 0 || h.from == LIAR))
				continue; /* true */
			CHECK_EQ(send_block(&s[2], LIAR, &h), 0);
		}
	}
	gantry_ctl_leave(s[0].ctl);
	s[0].ctl = NULL;
	pthread_join(g.thread, NULL);
	CHECK(g.r != GANTRY_OK);
	CHECK_FILLED(g.all, 2 * PART, 0xee);
	CHECK_FILLED(g.all + 2 * PART, PART, 0x42);
	ranks_leave(s, N);
	until_quiet();
}
