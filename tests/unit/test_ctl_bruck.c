/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchange of 10,000 ranks in one process. The code that decides who sends what to whom and when, and that makes and
 * reads the frames, is the product's; the wire is an array. Rounds and bytes are compared with what docs/design/0020
 * derives, and every rank must end with every rank's part.
 * Catches: a rank that sends to the wrong one, too early, too much or too often; addresses that do not belong to the
 * receivers; a message that does harm because it overtook another or came twice; traffic of the root that grows with the
 * square of the ranks.
 */
#include "base/bytes.h"
#include "ctl/ctl_bruck.h"
#include "ctl/ctl_wire.h"
#include "inet/handshake.h"
#include "test.h"

/* Connecting: what a hand-shake with a key costs, the payloads of hello and answer without. */
enum { SHAKE_IN = INET_HELLO_SIZE + INET_PROOF_SIZE, SHAKE_OUT = INET_CHALLENGE_SIZE + INET_ANSWER_SIZE };

struct sim_rank {
	struct ctl_bruck bruck;
	struct gantry_addr addrs[CTL_ROUNDS_MAX]; /* as READY has them */
	uint64_t in, out;			  /* bytes of the exchange */
	int messages;
};
struct sim {
	int n;
	size_t part;
	struct sim_rank *ranks;
	uint8_t *all; /* [n][n * part] */
	uint64_t root_in, root_out;
	uint64_t with_hub;
};

static struct gantry_addr addr_of(int rank)
{
	struct gantry_addr a = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a000000u + (uint32_t)rank)}};

	gantry_addr_set_port(&a, (uint16_t)(1024 + rank));
	return a;
}

/* Byte i of the part of a rank; with two bytes a part says whose it is. */
static uint8_t value(int rank, size_t i)
{
	size_t r = (size_t)rank;

	return (uint8_t)(i == 0 ? r : i == 1 ? r >> 8 : r * 31 + i * 7);
}

static void sim_make(struct sim *s, int n, size_t part)
{
	*s = (struct sim){.n = n, .part = part};
	s->ranks = calloc((size_t)n, sizeof(*s->ranks));
	s->all = malloc((size_t)n * (size_t)n * part);
	CHECK(s->ranks && s->all);
	for (int r = 0; r < n; r++) {
		uint8_t *all = s->all + (size_t)r * (size_t)n * part;

		ctl_bruck_start(&s->ranks[r].bruck, r, n, part, all);
		for (size_t i = 0; i < part; i++)
			all[(size_t)r * part + i] = value(r, i);
	}
}

static void count_with_hub(void *ctx, int rank)
{
	struct sim *s = ctx;

	CHECK_EQ(rank, 0);
	s->with_hub++;
}

/* Every rank says hello to the root, which tells each of them whom it will send to. Rank 0 has the root's process. */
static void sim_join(struct sim *s)
{
	FREED struct gantry_addr *addrs = calloc((size_t)s->n, sizeof(*addrs));
	const struct ctl_range with_hub = {.first = 0, .count = 1};
	uint8_t raw[CTL_HELLO_SIZE], body[8 + 8 + CTL_ROUNDS_MAX * CTL_ADDR_SIZE];
	struct ctl_hello h;
	int naddrs = 0;

	CHECK(addrs != NULL);
	for (int r = 0; r < s->n; r++) {
		ctl_hello_encode(&(struct ctl_hello){.comm_id = 1, .rank = r, .nranks = s->n, .addr = addr_of(r)}, raw);
		CHECK_OK(ctl_hello_decode(raw, sizeof(raw), CTL_VERSION, &h));
		addrs[h.rank] = h.addr;
		s->root_in += SHAKE_IN + sizeof(raw);
		s->root_out += SHAKE_OUT + CTL_ACCEPTED_SIZE;
	}
	for (int r = 0; r < s->n; r++) {
		size_t size = ctl_ready_size(1, addrs, s->n);

		CHECK(size <= sizeof(body));
		ctl_ready_encode(r, s->n, &with_hub, 1, addrs, body);
		CHECK_OK(ctl_ready_decode(body, size, s->n, count_with_hub, s, s->ranks[r].addrs, &naddrs));
		CHECK_EQ(naddrs, ctl_bruck_rounds(s->n));
		s->root_out += INET_HEADER_SIZE + size;
	}
	CHECK_EQ(s->with_hub, (uint64_t)s->n);
}

/* A message goes from one to the other, over a connection of its own. */
static void sim_send(struct sim *s, int from, int round)
{
	struct sim_rank *me = &s->ranks[from], *to;
	size_t size = ctl_bruck_size(&me->bruck, round);
	FREED uint8_t *message = malloc(size);
	struct gantry_addr at = me->addrs[round];
	int rank = gantry_addr_port(&at) - 1024;

	CHECK(message && rank >= 0 && rank < s->n);
	CHECK_EQ(ntohl(at.in.sin_addr.s_addr), 0x0a000000u + (uint32_t)rank);
	to = &s->ranks[rank];
	ctl_bruck_fill(&me->bruck, round, message);
	CHECK(!ctl_bruck_has(&to->bruck, from));
	CHECK_OK(ctl_bruck_take(&to->bruck, from, message, size));
	me->bruck.sent++;
	me->messages++;
	me->out += SHAKE_IN + CTL_EXCHANGE_SIZE + INET_HEADER_SIZE + size;
	me->in += SHAKE_OUT + 1 + INET_HEADER_SIZE;
	to->in += SHAKE_IN + CTL_EXCHANGE_SIZE + INET_HEADER_SIZE + size;
	to->out += SHAKE_OUT + 1 + INET_HEADER_SIZE;
}

/* Steps in which everybody sends what may go at the beginning of the step; the number of them. */
static int sim_rounds(struct sim *s)
{
	FREED int *go = calloc((size_t)s->n, sizeof(*go));
	int rounds = 0, sent;

	CHECK(go != NULL);
	do {
		sent = 0;
		for (int r = 0; r < s->n; r++)
			go[r] = ctl_bruck_next(&s->ranks[r].bruck);
		for (int r = 0; r < s->n; r++)
			if (go[r] >= 0) {
				sim_send(s, r, go[r]);
				sent = 1;
			}
		rounds += sent;
	} while (sent);
	return rounds;
}

/* And the words about it to the root and back: GATHER with the size, HAVE, GATHERED. */
static void sim_check(struct sim *s)
{
	for (int r = 0; r < s->n; r++) {
		const uint8_t *at = s->ranks[r].bruck.all;

		CHECK(ctl_bruck_done(&s->ranks[r].bruck));
		for (int q = 0; q < s->n; q++)
			for (size_t i = 0; i < s->part; i++, at++)
				if (*at != value(q, i))
					CHECK_EQ(*at, value(q, i));
		s->root_in += 2 * INET_HEADER_SIZE + 4;
		s->root_out += INET_HEADER_SIZE;
	}
}

static void sim_free(struct sim *s)
{
	free(s->ranks);
	free(s->all);
}

/* The formulas of docs/design/0020, in numbers of their own: `log` rounds, and for each 737 bytes of hand-shakes and heads
 * besides the parts; the root's grow with the ranks, and not with their square. */
static void check_traffic(const struct sim *s, int log)
{
	const uint64_t n = (uint64_t)s->n, parts = (n - 1) * s->part;

	for (int r = 0; r < s->n; r++) {
		CHECK_EQ(s->ranks[r].messages, log);
		CHECK_EQ(s->ranks[r].out, parts + (uint64_t)log * 737);
		CHECK_EQ(s->ranks[r].in, parts + (uint64_t)log * 737);
	}
	CHECK_EQ(s->root_in, n * 396);
	CHECK_EQ(s->root_out, n * (520 + 20 * (uint64_t)log));
}

static void simulate(int n, size_t part, int log)
{
	struct sim s;

	CASE("%d ranks, parts of %zu bytes", n, part);
	sim_make(&s, n, part);
	sim_join(&s);
	CHECK_EQ(sim_rounds(&s), log);
	sim_check(&s);
	check_traffic(&s, log);
	printf("%d ranks, parts of %zu bytes: %d rounds, %llu bytes per rank, root %llu in, %llu out\n", n, part, log,
	       (unsigned long long)s.ranks[0].out, (unsigned long long)s.root_in, (unsigned long long)s.root_out);
	sim_free(&s);
}

TEST(test_ten_thousand)
{
	static const struct {
		int n, log;
	} rows[] = {{2, 1}, {3, 2}, {4, 2}, {5, 3}, {7, 3}, {8, 3}, {9, 4}, {100, 7}, {256, 8}};

	EACH_ROW (i, rows)
		simulate(rows[i].n, 240, rows[i].log);
	simulate(SANITIZED ? 1000 : 10000, 2, SANITIZED ? 10 : 14);
}

/* Whoever may send does, in any order; each message may be late, and come twice. */
TEST(test_any_order)
{
	enum { N = 61, PART = 5 };
	struct sim s;

	for (int round = 0; round < 20; round++) {
		int left = N * ctl_bruck_rounds(N);

		sim_make(&s, N, PART);
		sim_join(&s);
		while (left) {
			int r = (int)random_below(N), k = ctl_bruck_next(&s.ranks[r].bruck);
			uint8_t twice[N * PART];

			if (k < 0)
				continue;
			ctl_bruck_fill(&s.ranks[r].bruck, k, twice);
			sim_send(&s, r, k);
			left--;
			CHECK_OK(ctl_bruck_take(&s.ranks[ctl_bruck_to(r, N, k)].bruck, r, twice,
						ctl_bruck_size(&s.ranks[r].bruck, k)));
		}
		sim_check(&s);
		sim_free(&s);
	}
}

TEST(test_wrong)
{
	uint8_t all[7 * 4] = {0}, in[7 * 4] = {0};
	struct ctl_bruck b;

	ctl_bruck_start(&b, 3, 7, 4, all);
	CHECK_EQ(ctl_bruck_take(&b, 3, in, 4), GANTRY_ERR_PROTOCOL); /* itself */
	CHECK_EQ(ctl_bruck_take(&b, 6, in, 4), GANTRY_ERR_PROTOCOL); /* distance 3 */
	CHECK_EQ(ctl_bruck_take(&b, 4, in, 8), GANTRY_ERR_PROTOCOL);
	for (int far = -14; far <= 28; far += 7) /* ranks that do not exist, at distances 1 and 4 modulo 7 */
		if (far) {
			CHECK_EQ(ctl_bruck_take(&b, 4 + far, in, 4), GANTRY_ERR_PROTOCOL);
			CHECK_EQ(ctl_bruck_take(&b, far, in, 12), GANTRY_ERR_PROTOCOL);
			CHECK(!ctl_bruck_has(&b, far));
		}
	CHECK_OK(ctl_bruck_take(&b, 0, in, 12)); /* distance 4: the last round, which has what is missing */
	CHECK_EQ(ctl_bruck_next(&b), 0);
	b.sent = 1;
	CHECK_EQ(ctl_bruck_next(&b), -1);
	CHECK_OK(ctl_bruck_take(&b, 4, in, 4));
	CHECK_EQ(ctl_bruck_next(&b), 1);
	CHECK(!ctl_bruck_done(&b));
}
