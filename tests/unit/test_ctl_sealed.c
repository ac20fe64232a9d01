/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane encrypted, with somebody between a rank and the hub: whatever is done to a record, and in either
 * direction, is an error by its name, all ranks hear that a rank is lost, and no byte of it is delivered. Nothing that a rank
 * says shows, nor the secret; without encryption it does.
 */
#include "attack.h"
#include "ctl_util.h"

#if GANTRY_HAVE_OPENSSL

enum { RANKS = 3, TAG = 5 };
static const char mark[64] = "a message that is marked", secret[] = "a secret of thirty-two characters";

static struct relay relay;
static int seen_mark, seen_secret; /* atomic */

static void encrypt(const char *how)
{
	set_params("GANTRY_SECRET", secret, "GANTRY_ENCRYPT", how, "GANTRY_TIMEOUT", "100s");
}

static void look(const struct relay_conn *c, int way, uint8_t *bytes, size_t n)
{
	(void)c, (void)way;
	if (memmem(bytes, n, mark, strlen(mark)))
		__atomic_store_n(&seen_mark, 1, __ATOMIC_RELAXED);
	if (memmem(bytes, n, secret, sizeof(secret) - 1))
		__atomic_store_n(&seen_secret, 1, __ATOMIC_RELAXED);
}

/* Ranks that have joined through the relay, which looks at what passes, or attacks it. */
static struct rank_state *world_make(struct gantry_unique_id *id, bool attacked)
{
	struct rank_state *s;

	ctl_relay_make(&relay);
	if (attacked)
		attack_make(&relay);
	else
		relay.alter = look;
	CHECK_OK(gantry_ctl_create_id(id));
	ctl_relay_start(&relay, id);
	s = ranks_make(RANKS, id, NULL);
	ranks_start(s, RANKS);
	ranks_joined(s, RANKS);
	return s;
}

static void world_free(struct rank_state *s)
{
	ranks_leave(s, RANKS);
	ctl_relay_stop(&relay);
	until_quiet();
}

/* Each tells each other the same, as long as it can. */
static void talk(struct rank_state *s)
{
	for (int from = 0; from < RANKS; from++)
		for (int to = 0; to < RANKS; to++)
			if (to != from)
				gantry_ctl_send(s[from].ctl, to, TAG, mark, sizeof(mark));
}

static bool all_have_lost(struct rank_state *s)
{
	for (int i = 0; i < RANKS; i++)
		if (!lost_count(&s[i]))
			return false;
	return true;
}

/* Has a rank heard of it by its name? */
static bool is_named(struct rank_state *s, enum attack kind, gantry_result why)
{
	bool named = false;

	pthread_mutex_lock(&s->mu);
	for (int i = 0; i < s->nlost; i++)
		named |= s->lost_why[i] == why;
	named &= strstr(s->lost_text, attack_texts[kind]) != NULL;
	pthread_mutex_unlock(&s->mu);
	return named;
}

static void run_attack(enum attack kind, int way)
{
	gantry_result why = kind == ATTACK_TRUNCATE ? GANTRY_ERR_PEER_LOST : GANTRY_ERR_CORRUPT;
	struct gantry_unique_id id;
	char got[sizeof(mark)];
	struct rank_state *s;
	int named = 0;

	CASE("%s, %s the hub", attack_texts[kind], way == TO_SERVER ? "to" : "from");
	s = world_make(&id, true);
	attack_begin(kind, way);
	WAIT_WHILE (!all_have_lost(s)) {
		talk(s);
		for (int i = 0; i < RANKS; i++)
			for (int from = 0; from < RANKS; from++)
				if (gantry_ctl_try_recv(s[i].ctl, from, TAG, got, sizeof(got)) == GANTRY_OK)
					CHECK(memcmp(got, mark, sizeof(mark)) == 0);
		sleep_ms(1);
	}
	for (int i = 0; i < RANKS; i++)
		named += is_named(&s[i], kind, why);
	CHECK(named > 0);
	world_free(s);
}

TEST(attacks)
{
	encrypt("require");
	logs_drop();
	for (enum attack kind = ATTACK_FLIP; kind < ATTACKS; kind++)
		for (int way = TO_SERVER; way <= TO_CLIENT; way++)
			run_attack(kind, way);
}

/* ---- what shows ---- */

static void run_shown(const char *how, int shown)
{
	struct gantry_unique_id id;
	char got[sizeof(mark)];
	struct rank_state *s;

	CASE("%s", how);
	encrypt(how);
	s = world_make(&id, false);
	talk(s);
	for (int i = 0; i < RANKS; i++)
		for (int from = 0; from < RANKS; from++)
			if (from != i) {
				CHECK_OK(recv_wait(s[i].ctl, from, TAG, got, sizeof(got)));
				CHECK(memcmp(got, mark, sizeof(mark)) == 0);
			}
	CHECK(relay_passed(&relay, TO_SERVER) > 6 * sizeof(mark));
	CHECK_EQ(__atomic_exchange_n(&seen_mark, 0, __ATOMIC_RELAXED), shown);
	CHECK(!__atomic_load_n(&seen_secret, __ATOMIC_RELAXED));
	world_free(s);
}

TEST(shows_without)
{
	run_shown("off", 1);
}

TEST(shows_nothing)
{
	run_shown("require", 0);
}

/* Whoever requires it talks to nobody else, on either side; those who wait for that rank hear why it is missing. */
static void run_unwilling(const char *hubs, const char *ranks, const char *text)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	CASE("hub %s, rank %s", hubs, ranks);
	encrypt(hubs);
	set_params("GANTRY_CONNECT_TIMEOUT", "3s", "GANTRY_CALL_TIMEOUT", "3s");
	CHECK_OK(gantry_ctl_create_id(&id));
	s = ranks_make(2, &id, NULL);
	encrypt(ranks);
	join_as(&s[1]);
	CHECK_EQ(s[1].joined, GANTRY_ERR_AUTH);
	CHECK_HAS(s[1].text, text);
	encrypt(hubs);
	join_as(&s[0]);
	CHECK_EQ(s[0].joined, GANTRY_ERR_TIMEOUT);
	CHECK_HAS(s[0].text, "missing: rank 1; ");
	CHECK_HAS(s[0].text, text);
	set_params("GANTRY_CONNECT_TIMEOUT", NULL, "GANTRY_CALL_TIMEOUT", NULL);
	free(s);
}

TEST(unwilling)
{
	logs_drop();
	run_unwilling("require", "off", "GANTRY_ENCRYPT=require on the bootstrap root");
	run_unwilling("off", "require", "GANTRY_ENCRYPT=require on the rank");
}

#else

TEST(nothing_to_encrypt_with)
{
	struct gantry_unique_id id;

	set_params("GANTRY_ENCRYPT", "on", "GANTRY_SECRET", "a");
	CHECK(gantry_ctl_create_id(&id) != GANTRY_OK);
}

#endif
