/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allgathers that go from rank to rank (ctl/ctl_exchange.h), with ranks as threads: values, what the root carries,
 * connections that break, and who is named when a rank is missing, lost, out of reach or of another mind.
 * Catches: parts in the wrong place, an exchange that mixes two allgathers, parts that go through the hub after all, a
 * block that is lost with its connection, a hang or a wrong name when a rank fails.
 */
#include "base/bytes.h"
#include "ctl_util.h"

enum { PART = 500 };

static uint8_t value(int rank, int round, size_t i)
{
	return (uint8_t)(rank * 7 + round * 31 + (int)i);
}

static void listen_join(struct rank_state *s)
{
	struct gantry_ctl_config c = {
		.id = s->id, .rank = s->rank, .nranks = s->nranks, .on_lost = on_lost, .ctx = s, .listens = 1};

	s->joined = gantry_ctl_join(&c, &s->ctl);
	snprintf(s->text, sizeof(s->text), "%s", gantry_last_error());
}

static void *exchange_thread(void *arg)
{
	struct rank_state *s = arg;

	listen_join(s);
	if (s->joined == GANTRY_OK && s->body)
		s->body(s);
	return NULL;
}

/* As ranks_run, of ranks that listen. */
static struct rank_state *exchange_run(int n, struct gantry_unique_id *id, void (*body)(struct rank_state *s))
{
	struct rank_state *s;

	CHECK_OK(gantry_ctl_create_id(id));
	s = ranks_make(n, id, body);
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_create(&s[i].thread, NULL, exchange_thread, &s[i]), 0);
	ranks_joined(s, n);
	return s;
}

static struct inet_traffic root_traffic(const struct gantry_unique_id *id)
{
	struct inet_traffic t;
	struct hub *hub;

	inet_loop_lock();
	hub = hub_find(gantry_ctl_comm_id(id));
	CHECK(hub != NULL);
	t = hub->traffic;
	inet_loop_unlock();
	return t;
}

static gantry_result gather(struct rank_state *s, int round, size_t size)
{
	FREED uint8_t *mine = malloc(size), *all = malloc(size * (size_t)s->nranks);
	gantry_result r;

	CHECK(mine && all);
	for (size_t i = 0; i < size; i++)
		mine[i] = value(s->rank, round, i);
	r = gantry_ctl_allgather(s->ctl, mine, size, all);
	for (int q = 0; q < s->nranks && r == GANTRY_OK; q++)
		for (size_t i = 0; i < size; i++)
			CHECK_EQ(all[(size_t)q * size + i], value(q, round, i));
	return r;
}

static void gather_body(struct rank_state *s)
{
	static const size_t sizes[] = {1, 240, 0, PART, 3};

	for (int round = 0; round < 10; round++) {
		size_t size = sizes[round % 5];

		if (size)
			CHECK_OK(gather(s, round, size));
		else
			CHECK_OK(gantry_ctl_allgather(s->ctl, NULL, 0, NULL));
	}
}

TEST(test_values)
{
	static const int counts[] = {2, 3, 5, 8, 33};
	struct gantry_unique_id id;

	set_params("GANTRY_EXCHANGE_RANKS", "2");
	EACH_ROW (i, counts) {
		struct rank_state *s = exchange_run(counts[i], &id, gather_body);
		struct inet_traffic t = root_traffic(&id);
		uint64_t n = (uint64_t)counts[i];

		/* READY; 10 GATHER, 8 HAVE, 10 GATHERED. A sign of life now and then comes on top. */
		CHECK(t.in >= n * 616 && t.in < n * 616 + n * 32 * 20);
		CHECK(t.out >= n * (320 + 40) && t.out < n * (320 + 40 + 8 + 300 + 32 * 20));
		CHECK(s[0].ctl->direct.naddrs > 0);
		ranks_leave(s, counts[i]);
	}
	until_quiet();
}

/* Few ranks, or one that does not listen: through the hub. */
TEST(test_through_hub)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	set_params("GANTRY_EXCHANGE_RANKS", "5");
	s = exchange_run(4, &id, gather_body);
	CHECK_EQ(s[0].ctl->direct.naddrs, 0);
	ranks_leave(s, 4);
	set_params("GANTRY_EXCHANGE_RANKS", "2");
	s = ranks_run(4, &id, gather_body);
	CHECK_EQ(s[0].ctl->direct.naddrs, 0);
	ranks_leave(s, 4);
	until_quiet();
}

/* ---- connections that break ---- */

static pthread_barrier_t ready, set;

static void relayed_body(struct rank_state *s)
{
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&set);
	CHECK_OK(gather(s, 0, PART));
	CHECK_OK(gather(s, 1, PART));
}

/* In the hello, in the proof, in the head of the block, in the block. */
static const int64_t cut_at[] = {100, 240, 270, 700};
static int cuts;

/* A cut for each connection, until there are no more. */
static int64_t cut_each(const struct relay_conn *c, int dir)
{
	if (dir != TO_SERVER || cuts >= (int)TEST_COUNT(cut_at))
		return RELAY_ALL;
	if ((int64_t)c->moved[TO_SERVER] < cut_at[cuts])
		return cut_at[cuts];
	cuts++;
	return -1;
}

TEST(test_broken_connections)
{
	static struct relay relay;
	struct gantry_unique_id id;
	struct rank_state *s;

	set_params("GANTRY_EXCHANGE_RANKS", "2");
	pthread_barrier_init(&ready, NULL, 5);
	pthread_barrier_init(&set, NULL, 5);
	relay_make(&relay, 0, 0);
	relay.allow = cut_each;
	CHECK_OK(gantry_ctl_create_id(&id));
	s = ranks_make(4, &id, relayed_body);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&s[i].thread, NULL, exchange_thread, &s[i]), 0);
	pthread_barrier_wait(&ready);
	inet_loop_lock();
	relay.to = s[2].ctl->direct.addrs[1].in; /* rank 0, in this process like all of them */
	s[2].ctl->direct.addrs[1].in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	gantry_addr_set_port(&s[2].ctl->direct.addrs[1], (uint16_t)relay.port);
	inet_loop_unlock();
	relay_start(&relay);
	pthread_barrier_wait(&set);
	ranks_joined(s, 4);
	CHECK_EQ(cuts, (int)TEST_COUNT(cut_at));
	ranks_leave(s, 4);
	relay_stop(&relay);
	until_quiet();
}

/* ---- ranks that fail ---- */

enum { FAILS = 5, BAD = 2 };
static enum { LEAVES, STAYS_AWAY, OTHER_SIZE, NO_ROUTE } way;

static void failing_body(struct rank_state *s)
{
	static const struct {
		gantry_result r;
		const char *text;
	} rows[] = {
		[LEAVES] = {GANTRY_ERR_PEER_CLOSED, "allgather failed: rank 2 ("},
		[STAYS_AWAY] = {GANTRY_ERR_TIMEOUT, "4 of 5 ranks called allgather within 0.4 s "
						    "(GANTRY_CALL_TIMEOUT); missing: 2"},
		[OTHER_SIZE] = {GANTRY_ERR_USAGE, "allgather sizes differ"},
		[NO_ROUTE] = {GANTRY_ERR_UNREACHABLE, "cannot reach rank 1 at 127.0.0.1:"},
	};

	if (s->rank == BAD && way == NO_ROUTE) {
		s->ctl->direct.addrs[0].in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		gantry_addr_set_port(&s->ctl->direct.addrs[0], 1); /* nothing listens there */
	}
	if (s->rank == BAD && way <= STAYS_AWAY) {
		if (way == LEAVES) {
			gantry_ctl_leave(s->ctl);
			s->ctl = NULL;
		}
		return;
	}
	CHECK_ERROR(gather(s, 0, s->rank == BAD && way == OTHER_SIZE ? 7 : 8), rows[way].r, rows[way].text);
}

TEST(test_failing_ranks)
{
	struct gantry_unique_id id;

	set_params("GANTRY_EXCHANGE_RANKS", "2");
	for (int i = LEAVES; i <= NO_ROUTE; i++) {
		uint64_t began = now_ms();

		CASE("way %d", i);
		way = i;
		/* The rank that has no route gives up after the one, and all others after twice that: far enough apart. */
		set_params("GANTRY_CONNECT_TIMEOUT", way == NO_ROUTE ? "3s" : "400ms", "GANTRY_CALL_TIMEOUT", "400ms");
		ranks_leave(exchange_run(FAILS, &id, failing_body), FAILS);
		CHECK(now_ms() - began < 9000);
	}
	set_params("GANTRY_CONNECT_TIMEOUT", NULL, "GANTRY_CALL_TIMEOUT", NULL);
	until_quiet();
}
