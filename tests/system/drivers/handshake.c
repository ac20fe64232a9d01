/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handshake CASE: A and B connect through relays that hold some bytes back, so that things happen in an order that is
 * rare by itself. Then they send each other a megabyte.
 *   share        both connect to each other, A has the smaller id. A's bulk lanes come up while what B says after its
 *                hello (with a secret: its proof) is held back
 *   welcome      the answer to lane 1's hello comes after 6 s
 *   proof        what A says after its hello on lane 0 is held back for 6 s: with a secret it is a stranger by then
 *   redial       lane 1 breaks before its answer has come; it is dialled again, and nothing else is
 */
#include "net/tcp/network.h"
#include "net/tcp/hello.h"
#include "pair.h"
#include "relay.h"

enum { SIZE = 1 << 20, QUIET_MS = 300, SLOW_MS = 6000 };

static struct relay relay_a, relay_b;
static const char *which;
static int two_way;
static int stage; /* of `share`; relaxed */

/* ---- the rules ---- */

/* B's hello comes after A's was sent: else A would share B's link, and not the other way round. */
static int64_t share_at_a(const struct relay_conn *c, int way)
{
	if (!relay_hellos(&relay_b, 0))
		return 0;
	return load_relaxed(&stage) < 2 && c->lane == 0 && way == TO_SERVER ? RELAY_HELLO : RELAY_ALL;
}

static int64_t share_at_b(const struct relay_conn *c, int way)
{
	(void)way;
	return load_relaxed(&stage) < 1 && c->lane ? 0 : RELAY_ALL;
}

static int64_t slow_welcome(const struct relay_conn *c, int way)
{
	return c->lane == 1 && c->nth == 0 && way == TO_CLIENT && now_ms() - c->since < SLOW_MS ? 0 : RELAY_ALL;
}

static int64_t slow_proof(const struct relay_conn *c, int way)
{
	return c->lane == 0 && c->nth == 0 && way == TO_SERVER && now_ms() - c->since < SLOW_MS ? RELAY_HELLO
												: RELAY_ALL;
}

/* Lane 2 waits until lane 1 was dialled again, so that the link is not up before. */
static int64_t redial(const struct relay_conn *c, int way)
{
	(void)way;
	if (c->lane == 2)
		return relay_hellos(&relay_b, 1) > 1 ? RELAY_ALL : 0;
	if (c->lane == 1 && c->nth == 0)
		return way == TO_SERVER ? RELAY_ALL : c->moved[TO_SERVER] && now_ms() - c->since > QUIET_MS ? -1 : 0;
	return RELAY_ALL;
}

/* Nothing has passed for a while: what can happen has happened. */
static void until_quiet(void)
{
	while (!relay_hellos(&relay_a, 0) || !relay_hellos(&relay_b, 0) ||
	       now_ms() - load_relaxed(&relay_a.moved_ms) < QUIET_MS ||
	       now_ms() - load_relaxed(&relay_b.moved_ms) < QUIET_MS)
		sleep_ms(1);
}

/* ---- the sides ---- */

static struct pair_ends connect_both(struct pair_side *s, int sends, int receives)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *listen = receives ? pair_listen(s, 0) : NULL;
	struct pair_ends e = {0};
	uint64_t end = now_ms() + PAIR_PATIENCE_MS;

	if (sends) {
		pair_wait_handle(s, 0);
		memcpy(handle, s->shared->handle[s->other][0], sizeof(handle));
	}
	while ((sends && !e.send) || (receives && !e.recv)) {
		if (sends && !e.send)
			CHECK_OK(s->net->ops->connect(s->net, s->ctx, 0, handle, &e.send, NULL));
		if (receives && !e.recv)
			CHECK_OK(s->net->ops->accept(s->net, listen, &e.recv, NULL));
		CHECK(now_ms() < end);
		sleep_ms(1);
	}
	if (listen) /* as NCCL does: who comes later finds nobody */
		CHECK_OK(s->net->ops->close_listen(s->net, listen));
	return e;
}

static void side(struct pair_side *s)
{
	uint8_t *out = malloc(SIZE), *in = malloc(SIZE);
	int sends = two_way || s->self == 0, receives = two_way || s->self == 1;
	void *sent = NULL, *received = NULL;
	struct pair_ends e;

	CHECK(out && in);
	relay_advertise(s->self ? &relay_b : &relay_a);
	pair_init(s);
	tcp_network.process = (uint64_t)s->self + 1; /* A's is the smaller one */
	e = connect_both(s, sends, receives);
	pattern_fill(out, SIZE, (uint32_t)s->self);
	if (receives)
		received = pair_irecv(s, e.recv, in, SIZE, 1);
	if (sends)
		sent = pair_isend(s, e.send, out, SIZE, 1);
	if (receives) {
		pair_wait(s, received);
		CHECK_PATTERN(in, SIZE, (uint32_t)s->other);
	}
	if (sends)
		pair_wait(s, sent);
	s->shared->number[s->self][0] = load_relaxed(&inet_strangers);
	pair_meet(s, 1);
	pair_close_ends(s, &e);
	free(out);
	free(in);
}

int main(int argc, char **argv)
{
	struct pair_shared *shared = pair_share();
	int failures;

	CHECK_EQ(argc, 2);
	which = argv[1];
	two_way = strcmp(which, "share") == 0;
	if (two_way)
		relay_a.allow = share_at_a;
	relay_b.allow = two_way				? share_at_b
			: strcmp(which, "welcome") == 0 ? slow_welcome
			: strcmp(which, "proof") == 0	? slow_proof
							: redial;
	relay_a.lanes = relay_b.lanes = 1;
	relay_a.to = lo_addr(lo_free_port());
	relay_b.to = lo_addr(lo_free_port());
	relay_make(&relay_a, 0, 1);
	relay_make(&relay_b, 0, 1);
	pair_fork_both(shared, side, side);
	relay_start(&relay_a);
	relay_start(&relay_b);
	while (two_way && load_relaxed(&stage) < 2) {
		until_quiet();
		store_relaxed(&relay_b.moved_ms, now_ms()); /* what it lets pass takes a moment */
		fetch_add_relaxed(&stage, 1);
	}
	failures = pair_reap_both(shared);
	printf("%s: hellos at A %d, at B %d + %d + %d; strangers %d + %d\n", which, relay_hellos(&relay_a, 0),
	       relay_hellos(&relay_b, 0), relay_hellos(&relay_b, 1), relay_hellos(&relay_b, 2),
	       (int)shared->number[0][0], (int)shared->number[1][0]);
	if (failures)
		return 1;
	if (strcmp(which, "redial") == 0) {
		CHECK_EQ(relay_hellos(&relay_b, 0), 1);
		CHECK_EQ(relay_hellos(&relay_b, 1), 2);
		CHECK_EQ(relay_hellos(&relay_b, 2), 1);
	} else if (two_way || !getenv("GANTRY_SECRET")) { /* a slow side is waited for, not dialled again */
		CHECK_EQ(relay_hellos(&relay_b, 0), 1);
		CHECK_EQ(relay_hellos(&relay_b, 1), 1);
	} /* else: who does not prove itself within 5 s is a stranger, and dials again */
	return 0;
}
