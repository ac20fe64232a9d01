/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every socket of the control plane is reset at every byte of its set-up, in both directions, by a relay: rank to hub while
 * two ranks join, and rank to rank in an allgather past the hub. Both ranks come up and exchange the right values, or both
 * fail with a typed error; no reset ends in a timeout. With GANTRY_RESUME, and between ranks, both always come up.
 * Catches: a rank that the hub has and that does not know, one that is refused as its own double, a join that hangs.
 *
 * GANTRY_TEST_EVERY_BYTE=1 tries all positions, else a sample of them.
 */
#include "base/bytes.h"
#include "ctl_util.h"

enum { RANKS = 2, SAMPLES = SANITIZED ? 2 : 4, HUB_CONNS = RANKS };

static struct relay relay;
static struct {
	int conn, way; /* which connection of the relay's, and which way of it */
	int64_t at;    /* bytes that pass before the reset */
	int hit;       /* atomic */
} cut;
static uint64_t joined_bytes[RELAY_CONNS][2]; /* that had passed when both ranks had joined */

static int64_t reset_at(const struct relay_conn *c, int way)
{
	if (c - relay.conns != cut.conn || way != cut.way || __atomic_load_n(&cut.hit, __ATOMIC_RELAXED))
		return RELAY_ALL;
	if ((int64_t)c->moved[way] < cut.at)
		return cut.at;
	__atomic_store_n(&cut.hit, 1, __ATOMIC_RELAXED);
	return -1;
}

/* What passed on each connection so far. Returns how many there are. */
static int measure(uint64_t bytes[RELAY_CONNS][2])
{
	int n;

	pthread_mutex_lock(&relay.mu);
	n = relay.n;
	for (int i = 0; i < n; i++)
		memcpy(bytes[i], relay.conns[i].moved, sizeof(bytes[i]));
	pthread_mutex_unlock(&relay.mu);
	return n;
}

static pthread_barrier_t all_joined, measured;
static int measuring;
static gantry_result gathered[RANKS];

static void gather(struct rank_state *s)
{
	uint8_t mine[8], all[8 * RANKS];

	if (measuring) {
		pthread_barrier_wait(&all_joined);
		pthread_barrier_wait(&measured);
	}
	put64(mine, 1000 + (uint64_t)s->rank);
	gathered[s->rank] = gantry_ctl_allgather(s->ctl, mine, sizeof(mine), all);
	for (int i = 0; gathered[s->rank] == GANTRY_OK && i < RANKS; i++)
		CHECK_EQ(get64(all + 8 * i), 1000 + (uint64_t)i);
}

static gantry_result outcome(const struct rank_state *s)
{
	return s->joined != GANTRY_OK ? s->joined : gathered[s->rank];
}

/* Without resume: one may have all it needs when the other's socket breaks, and then hears of the loss. */
static void check_outcomes(struct rank_state *s, int must_work)
{
	for (int i = 0; i < RANKS; i++) {
		if (outcome(&s[i]) != GANTRY_OK && must_work)
			TEST_FAIL("rank %d: %s: %s", i, gantry_result_name(outcome(&s[i])), s[i].text);
		if (outcome(&s[i]) == GANTRY_ERR_TIMEOUT)
			TEST_FAIL("rank %d waited in vain: %s", i, s[i].text);
		if (outcome(&s[i]) == GANTRY_OK && outcome(&s[!i]) != GANTRY_OK)
			UNTIL(lost_count(&s[i]) > 0 || gantry_ctl_peer(s[i].ctl, !i) != GANTRY_OK);
		if (must_work)
			CHECK_EQ(lost_count(&s[i]), 0);
	}
}

/* No rank is here any more. The hub of a join that failed stays for ranks that come later. */
static int ranks_gone(void)
{
	int gone;

	inet_loop_lock();
	gone = gantry_list_empty(&ctl_service.members) && gantry_list_empty(&ctl_service.streams.finishing);
	inet_loop_unlock();
	return gone;
}

/* The relay listens once and for all: its port is what ids name. */
static void begin_relay(const struct gantry_unique_id *id)
{
	memset(&relay.n, 0, sizeof(relay) - offsetof(struct relay, n));
	relay.stop = 0;
	ctl_relay_start(&relay, id);
}

static void end_relay(void)
{
	__atomic_store_n(&relay.stop, 1, __ATOMIC_RELEASE);
	pthread_join(relay.thread, NULL);
	for (int i = 0; i < relay.n; i++)
		for (int k = 0; k < 2; k++)
			if (relay.conns[i].fd[k] >= 0)
				close(relay.conns[i].fd[k]);
}

/* Two ranks join through the relay and exchange a value. Returns how many connections that took. */
static int join_once(int must_work, uint64_t bytes[RELAY_CONNS][2])
{
	struct gantry_unique_id id;
	struct rank_state *s;
	int n;

	gathered[0] = gathered[1] = GANTRY_OK;
	CHECK_OK(gantry_ctl_create_id(&id));
	begin_relay(&id);
	s = ranks_make(RANKS, &id, gather);
	for (int i = 0; i < RANKS; i++)
		s[i].listens = 1;
	ranks_start(s, RANKS);
	if (measuring) {
		pthread_barrier_wait(&all_joined);
		measure(joined_bytes);
		pthread_barrier_wait(&measured);
	}
	ranks_wait(s, RANKS);
	check_outcomes(s, must_work);
	n = bytes ? measure(bytes) : relay.n;
	for (int i = 0; i < RANKS; i++)
		if (s[i].joined == GANTRY_OK)
			gantry_ctl_leave(s[i].ctl);
	UNTIL(ranks_gone());
	free(s);
	end_relay();
	return n;
}

/* All positions of one connection and way, or some; returns how many of them were reached. */
static int reset_conn(int conn, int way, uint64_t size, int must_work)
{
	uint64_t step = getenv("GANTRY_TEST_EVERY_BYTE") ? 1 : size / SAMPLES + 1;
	int hits = 0;

	for (uint64_t at = step == 1 ? 0 : (uint64_t)getpid() % step; at <= size; at += step) {
		CASE("connection %d, %s, byte %llu", conn, way == TO_SERVER ? "to the server" : "to the client",
		     (unsigned long long)at);
		cut.conn = conn;
		cut.way = way;
		cut.at = (int64_t)at;
		cut.hit = 0;
		join_once(must_work, NULL);
		hits += cut.hit;
	}
	return hits;
}

static void try_all(const char *name, int resume)
{
	uint64_t bytes[RELAY_CONNS][2];
	int hub_hits = 0, rank_hits = 0, n;

	set_params("GANTRY_RESUME", resume ? "on" : "off", "GANTRY_TIMEOUT", "20s");
	set_params("GANTRY_CONNECT_TIMEOUT", "20s");
	cut.conn = -1;
	measuring = 1;
	n = join_once(1, bytes);
	measuring = 0;
	CHECK(n >= HUB_CONNS + 2); /* and an exchange each way */
	for (int conn = 0; conn < n; conn++)
		for (int way = 0; way < 2; way++) {
			int hub = conn < HUB_CONNS;
			int hits =
				reset_conn(conn, way, hub ? joined_bytes[conn][way] : bytes[conn][way], resume || !hub);

			*(hub ? &hub_hits : &rank_hits) += hits;
		}
	printf("%s, resume %s: %d resets between rank and hub, %d between ranks\n", name, resume ? "on" : "off",
	       hub_hits, rank_hits);
	CHECK(hub_hits >= SAMPLES && rank_hits >= SAMPLES);
}

static void try_both(const char *name)
{
	try_all(name, 0);
	try_all(name, 1);
}

TEST(plain)
{
	try_both("plain");
}

TEST(secret)
{
	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_SECRET", "a secret of thirty-two characters");
	try_both("secret");
	set_params("GANTRY_SECRET", NULL);
}

TEST(encrypted)
{
	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_SECRET", "a secret of thirty-two characters", "GANTRY_ENCRYPT", "on");
	try_both("encrypted");
	set_params("GANTRY_SECRET", NULL, "GANTRY_ENCRYPT", NULL);
}

/* ---- one bit is flipped on the way ---- */

static struct {
	int conn, way; /* conn -1: all */
	uint64_t bit;
} flip;

static void flip_bit(const struct relay_conn *c, int way, uint8_t *bytes, size_t n)
{
	uint64_t at = flip.bit / 8;

	if ((flip.conn < 0 || c == &relay.conns[flip.conn]) && way == flip.way && at >= c->moved[way] &&
	    at - c->moved[way] < n)
		bytes[at - c->moved[way]] ^= (uint8_t)(1 << flip.bit % 8);
}

/* Of the hand-shakes of rank and hub, and of two ranks. */
enum {
	TO_HUB = INET_HELLO_SIZE + CTL_HELLO_SIZE + INET_PROOF_SIZE,
	FROM_HUB = INET_CHALLENGE_SIZE + INET_ANSWER_SIZE + CTL_ACCEPTED_SIZE,
	TO_RANK = INET_HELLO_SIZE + CTL_EXCHANGE_SIZE + INET_PROOF_SIZE,
	FROM_RANK = INET_CHALLENGE_SIZE + INET_ANSWER_SIZE + 1
};

/* Whatever bit of a hand-shake is flipped, it is noticed, and the next one passes. Without resume the hub has a rank already
 * whose answer is damaged: both ranks may fail. */
static int flip_all(int resume)
{
	static const uint64_t sizes[2][2] = {{8 * TO_HUB, 8 * FROM_HUB}, {8 * TO_RANK, 8 * FROM_RANK}};
	uint64_t step = getenv("GANTRY_TEST_EVERY_BYTE") ? 3 : 8 * FROM_HUB / SAMPLES;
	int n = 0;

	set_params("GANTRY_RESUME", resume ? "on" : "off");
	for (int between = 0; between < 2; between++)
		for (flip.way = 0; flip.way < 2; flip.way++)
			for (flip.bit = (uint64_t)getpid() % step; flip.bit < sizes[between][flip.way];
			     flip.bit += step, n++) {
				flip.conn = between ? HUB_CONNS : 0;
				CASE("resume %d, connection %d, %s, bit %llu", resume, flip.conn,
				     flip.way == TO_SERVER ? "to the server" : "to the client",
				     (unsigned long long)flip.bit);
				join_once(resume || between || flip.way == TO_SERVER ||
						  flip.bit < 8 * INET_CHALLENGE_SIZE,
					  NULL);
			}
	return n;
}

TEST(flipped)
{
	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_TIMEOUT", "20s", "GANTRY_CONNECT_TIMEOUT", "20s", "GANTRY_CALL_TIMEOUT", "60s");
	cut.conn = -1;
	relay.alter = flip_bit;
	printf("%d flipped bits\n", flip_all(0) + flip_all(1));
	relay.alter = NULL;
	set_params("GANTRY_CALL_TIMEOUT", NULL);
}

/* A bit of every proof: three attempts of each rank, then an error that says so. */
TEST(flipped_always)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_TIMEOUT", "20s", "GANTRY_CONNECT_TIMEOUT", "100s");
	cut.conn = flip.conn = -1;
	flip.way = TO_SERVER;
	flip.bit = 8 * (TO_HUB - 1);
	relay.alter = flip_bit;
	CHECK_OK(gantry_ctl_create_id(&id));
	begin_relay(&id);
	s = ranks_make(RANKS, &id, NULL);
	ranks_start(s, RANKS);
	ranks_wait(s, RANKS);
	for (int i = 0; i < RANKS; i++) {
		CHECK_EQ(s[i].joined, GANTRY_ERR_AUTH);
		CHECK_HAS(s[i].text, "wrong key");
	}
	free(s);
	end_relay();
	CHECK_EQ(relay.n, RANKS * INET_TRIES);
	relay.alter = NULL;
}

void tests_begin(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_LOG_FILE", "/dev/null", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_EXCHANGE_RANKS", "2", 1);
	CHECK_EQ(pthread_barrier_init(&all_joined, NULL, RANKS + 1), 0);
	CHECK_EQ(pthread_barrier_init(&measured, NULL, RANKS + 1), 0);
	ctl_relay_make(&relay);
	relay.allow = reset_at;
}
