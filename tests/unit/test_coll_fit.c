/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model fitted to connections whose figures are known: what is measured is what another model with those says. */
#include "coll/coll.h"
#include "test.h"

enum { RANKS_MAX = 24 };

static int host[RANKS_MAX];
static struct coll_topo topo = {.host = host};

static void set_hosts(int n, int per_host)
{
	topo.nranks = n;
	topo.nhosts = (n + per_host - 1) / per_host;
	for (int i = 0; i < n; i++)
		host[i] = i / per_host;
}

static const struct coll_limits cpu = {
	1, {131072, 8192, 15360}, COLL_LINK_CPU, COLL_LINK_CPU_NET, COLL_CROWD, 1, 0, 0, false, false};
static const struct coll_limits gpu = {
	8, {524288, 8192, 15360}, COLL_LINK_GPU, COLL_LINK_GPU_NET, COLL_CROWD, 8, 0, 0, false, false};

/* A machine whose connections are so many times slower, in 16ths, than those that the figures are from. */
static void slow_down(struct coll_model *m, uint32_t latency, uint32_t bytes)
{
	m->begin = m->begin * latency / 16;
	for (int remote = 0; remote < 2; remote++)
		for (int proto = 0; proto < GANTRY_PROTOS; proto++) {
			struct coll_cost *c = &m->cost[remote][proto];

			c->hop = c->hop * latency / 16;
			c->message = c->message * latency / 16;
			c->move = c->move * bytes / 16;
			c->wire = c->wire * bytes / 16;
		}
}

static int make_trials(const struct coll_model *truth, struct coll_trials *ret)
{
	int n = 0;

	for (int remote = 0; remote < 2; remote++)
		for (int proto = 0; proto < GANTRY_PROTOS; proto++) {
			const struct coll_trial t = {.remote = remote, .proto = (enum gantry_proto)proto, .bytes = 8};
			struct coll_trials *to = &ret[n];

			if (!truth->limits.step_bytes[proto])
				continue;
			n++;
			to->few = to->many = to->most = t;
			to->many.bytes = 1 << 18;
			to->most.bytes = 1 << 23;
			to->few.ns = coll_trial_cost(truth, &to->few) / 1000;
			to->many.ns = coll_trial_cost(truth, &to->many) / 1000;
			to->most.ns = coll_trial_cost(truth, &to->most) / 1000;
		}
	return n;
}

static void check_near(double got, double want, const char *what)
{
	if (got < want * 0.9 - 5 || got > want * 1.1 + 5)
		TEST_FAIL("%s is %.0f, not %.0f", what, got, want);
}

static void check_figures(const struct coll_model *got, const struct coll_model *want)
{
	check_near(got->begin, want->begin, "a call");
	for (int remote = 0; remote < 2; remote++)
		for (int proto = 0; proto < GANTRY_PROTOS; proto++) {
			const struct coll_cost *g = &got->cost[remote][proto], *w = &want->cost[remote][proto];

			if (!want->limits.step_bytes[proto])
				continue;
			check_near(g->hop, w->hop, "a hop");
			check_near(g->message, w->message, "a message");
			check_near(g->move, w->move, "a byte");
			check_near(g->wire, w->wire, "a byte of all channels");
			check_near(g->move + g->cold, w->move + w->cold, "a byte that no cache holds");
			CHECK_EQ(g->add, w->add);
		}
}

TEST(finds_the_figures)
{
	static const uint32_t factors[] = {4, 16, 40, 160, 800};
	const struct coll_limits *limits[] = {&cpu, &gpu};

	set_hosts(8, 4);
	for (size_t l = 0; l < TEST_COUNT(limits); l++)
		for (size_t i = 0; i < TEST_COUNT(factors); i++)
			for (size_t k = 0; k < TEST_COUNT(factors); k++) {
				struct coll_trials trials[2 * GANTRY_PROTOS];
				struct coll_model truth, m;

				CASE("%s, latency by %u/16, bytes by %u/16", l ? "gpu" : "cpu", factors[i], factors[k]);
				coll_model_init(&topo, limits[l], &truth);
				slow_down(&truth, factors[i], factors[k]);
				coll_model_init(&topo, limits[l], &m);
				CHECK(!m.fitted);
				coll_fit(&m, trials, make_trials(&truth, trials));
				CHECK(m.fitted);
				check_figures(&m, &truth);
			}
}

/* Bytes that caches do not hold cost more, and only those. */
TEST(finds_cold_bytes)
{
	struct coll_trials trials[2 * GANTRY_PROTOS];
	struct coll_model truth, m;

	set_hosts(8, 4);
	coll_model_init(&topo, &cpu, &truth);
	truth.cost[0][GANTRY_PROTO_SIMPLE].cold = 300;
	truth.cost[1][GANTRY_PROTO_SIMPLE].cold = 500;
	coll_model_init(&topo, &cpu, &m);
	coll_fit(&m, trials, make_trials(&truth, trials));
	check_figures(&m, &truth);
}

/* What was not measured stays as it is, and nothing that was makes a figure 0 or overflows. */
TEST(odd_times)
{
	static const uint64_t times[] = {0, 1, 1000, 1ull << 40, 1ull << 50};
	const struct coll_ask ask = {COLL_ALL_REDUCE, false, 1ull << 33};

	set_hosts(4, 2);
	for (int i = 0; i < 500; i++) {
		struct coll_trials trials[2 * GANTRY_PROTOS];
		struct coll_model before, m;
		struct coll_choice c;
		int n;

		coll_model_init(&topo, i % 2 ? &cpu : &gpu, &before);
		m = before;
		n = make_trials(&before, trials);
		for (int k = 0; k < n; k++) {
			trials[k].few.ns = times[random_below(TEST_COUNT(times))];
			trials[k].many.ns = times[random_below(TEST_COUNT(times))];
			trials[k].most.ns = times[random_below(TEST_COUNT(times))];
		}
		coll_fit(&m, trials, n);
		CHECK(m.begin > 0);
		for (int k = 0; k < n; k++) {
			const struct coll_cost *c1 = &m.cost[trials[k].few.remote][trials[k].few.proto];

			CHECK(c1->hop > 0 && c1->message > 0 && c1->move > 0);
			CHECK(!trials[k].most.ns || c1->cold <= 1u << 16);
		}
		CHECK_OK(coll_choose(&m, &ask, &c));
		CHECK(m.kinds[COLL_ALL_REDUCE].cost < 1ull << 62);
	}
}

/* Ranks that share cores keep their latencies. */
TEST(crowded)
{
	struct coll_limits l = cpu;
	struct coll_trials trials[2 * GANTRY_PROTOS];
	struct coll_model truth, m;

	l.crowd = 2 * COLL_CROWD;
	set_hosts(8, 4);
	coll_model_init(&topo, &l, &truth);
	slow_down(&truth, 64, 16);
	coll_model_init(&topo, &l, &m);
	coll_fit(&m, trials, make_trials(&truth, trials));
	CHECK_EQ(m.begin, 450);
	CHECK_EQ(m.cost[0][GANTRY_PROTO_LL].hop, 200);
}

/* The circles of a kind: next and prev are each other's, of one host or through all of them. */
TEST(circles)
{
	for (int n = 1; n <= RANKS_MAX; n++)
		for (int per = 1; per <= n; per++)
			for (int remote = 0; remote < 2; remote++) {
				int in = 0;

				CASE("%d ranks, %d on a host, %s", n, per, remote ? "between" : "inside");
				set_hosts(n, per);
				for (topo.rank = 0; topo.rank < n; topo.rank++) {
					int rank = topo.rank, next = -1, prev = -1, a, b;

					if (!coll_trial_circle(&topo, remote, &next, &prev))
						continue;
					in++;
					CHECK(next != rank && prev != rank);
					CHECK_EQ(host[next] == host[rank], !remote);
					topo.rank = next;
					CHECK(coll_trial_circle(&topo, remote, &a, &b));
					CHECK_EQ(b, rank);
					topo.rank = prev;
					CHECK(coll_trial_circle(&topo, remote, &a, &b));
					CHECK_EQ(a, rank);
					topo.rank = rank;
				}
				if (remote)
					CHECK_EQ(in, topo.nhosts > 1 ? topo.nhosts * (n % per ? n % per : per) : 0);
				else
					CHECK_EQ(in, per == 1 ? 0 : n % per == 1 ? n - 1 : n);
			}
}
