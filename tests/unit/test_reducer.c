/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives through embedded reducers, and through a server: all ranks in this process, driven in turn by one thread.
 * Expected values come from small numbers whose sums are exact, or from steps in float that are written out here.
 */
#include "reducer/reducer.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "net/net.h"
#include "reduce_util.h"
#include "reducer/group.h"
#include "reducer/server.h"
#include "relay.h"

enum { RANKS = 4, SECOND = 1000000000 };

static struct gantry_net *net;
static const struct gantry_net_ops *ops;
static const char *reducers = ""; /* that worlds are opened with */
static uint64_t opening_ns = 20ull * SECOND;

struct world {
	uint32_t n;
	void *ctx[RANKS], *listen[RANKS];
	uint8_t handles[RANKS][GANTRY_NET_HANDLE_SIZE];
	struct reducer_comm *comms[RANKS];
	gantry_result opened[RANKS];
	char why[RANKS][512];
};

struct opening {
	struct world *w;
	uint32_t rank;
};

static void *open_rank(void *arg)
{
	struct opening *o = arg;
	struct world *w = o->w;
	const void *handles[RANKS];
	struct reducer_config c = {.ctx = w->ctx[o->rank],
				   .listen = w->listen[o->rank],
				   .ranks = w->n,
				   .rank = o->rank,
				   .handles = handles,
				   .timeout = opening_ns,
				   .reducers = reducers};

	for (uint32_t i = 0; i < w->n; i++)
		handles[i] = w->handles[i];
	w->opened[o->rank] = reducer_open(&c, &w->comms[o->rank]);
	snprintf(w->why[o->rank], sizeof(w->why[0]), "%s", gantry_last_error());
	return NULL;
}

static void try_world(struct world *w, uint32_t n)
{
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF, .standing_receives = 1};
	struct opening o[RANKS];
	pthread_t t[RANKS];

	*w = (struct world){.n = n};
	for (uint32_t i = 0; i < n; i++) {
		CHECK_OK(ops->init(net, i, &config, &w->ctx[i]));
		CHECK_OK(ops->listen(net, w->ctx[i], 0, w->handles[i], &w->listen[i]));
	}
	for (uint32_t i = 0; i < n; i++) {
		o[i] = (struct opening){w, i};
		CHECK_EQ(pthread_create(&t[i], NULL, open_rank, &o[i]), 0);
	}
	for (uint32_t i = 0; i < n; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
}

static void open_world(struct world *w, uint32_t n)
{
	try_world(w, n);
	for (uint32_t i = 0; i < n; i++)
		CHECK_OK(w->opened[i]);
}

static void close_world(struct world *w)
{
	for (uint32_t i = 0; i < w->n; i++) {
		reducer_close(w->comms[i]);
		CHECK_OK(ops->close_listen(net, w->listen[i]));
		CHECK_OK(ops->finalize(net, w->ctx[i]));
	}
}

void tests_begin(void);
void tests_begin(void)
{
	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_TIMEOUT", "5s", 0);
	net = gantry_net_tcp();
	ops = net->ops;
}

static void wait_all(struct world *w, struct reducer_request **q)
{
	size_t bytes;
	int left = (int)w->n, done;

	WAIT_WHILE (left)
		for (uint32_t i = 0; i < w->n; i++) {
			if (!q[i])
				continue;
			CHECK_OK(reducer_test(q[i], &done, &bytes));
			if (done) {
				q[i] = NULL;
				left--;
			}
		}
}

/* ---- all-reduce ---- */

static void all_reduce(struct world *w, uint32_t type, uint32_t op, size_t count, int in_place)
{
	size_t unit = element_bytes(type);
	struct reducer_request *q[RANKS];
	char *in[RANKS], *out[RANKS], *want = malloc(count * unit + 1);

	fill_expected(want, type, op, w->n, count);
	for (uint32_t k = 0; k < w->n; k++) {
		in[k] = malloc(count * unit + 1);
		out[k] = in_place ? in[k] : malloc(count * unit + 1);
		fill_values(in[k], type, op, k, count);
		out[k][count * unit] = 77;
		CHECK_OK(reducer_all_reduce(w->comms[k], in[k], out[k], count, type, op, &q[k]));
		CHECK(q[k]);
	}
	wait_all(w, q);
	for (uint32_t k = 0; k < w->n; k++) {
		CHECK(memcmp(out[k], want, count * unit) == 0);
		CHECK_EQ(out[k][count * unit], 77);
		free(in[k]);
		if (!in_place)
			free(out[k]);
	}
	free(want);
}

TEST(types_and_reductions)
{
	static const size_t counts[] = {1, 17, 5000};
	struct world w;

	for (uint32_t n = 1; n <= RANKS; n++) {
		open_world(&w, n);
		for (uint32_t type = 0; type < GANTRY_TYPE_COUNT; type++)
			for (uint32_t op = GANTRY_OP_SUM; op <= GANTRY_OP_MIN; op++)
				for (size_t i = 0; i < (n == 3 ? TEST_COUNT(counts) : 2); i++) {
					CASE("%u ranks, type %u, reduction %u, %zu elements", n, type, op, counts[i]);
					all_reduce(&w, type, op, counts[i], i == 1);
				}
		CASE("%u ranks, large", n);
		all_reduce(&w, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, 1000003, 0);
		all_reduce(&w, GANTRY_TYPE_BFLOAT16, GANTRY_OP_SUM, 3000001, 1);
		all_reduce(&w, GANTRY_TYPE_UINT8, GANTRY_OP_MAX, 0, 0);
		close_world(&w);
	}
}

/* In rank order, in float, rounded once. */
TEST(order_of_sums)
{
	static const float in[3] = {1e8f, 3.0f, -1e8f};		   /* 8 that way; 3 and 0 in other orders */
	static const uint16_t small[3] = {0x4380, 0x3f80, 0x3f80}; /* 256, 1, 1: 258 in float, 256 in bfloat16 */
	volatile float sum = in[0];
	struct reducer_request *q[RANKS];
	float out[RANKS];
	uint16_t out16[RANKS];
	struct world w;

	sum = sum + in[1];
	sum = sum + in[2];
	open_world(&w, 3);
	for (uint32_t k = 0; k < 3; k++)
		CHECK_OK(reducer_all_reduce(w.comms[k], &in[k], &out[k], 1, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, &q[k]));
	wait_all(&w, q);
	for (uint32_t k = 0; k < 3; k++)
		CHECK_OK(reducer_all_reduce(w.comms[k], &small[k], &out16[k], 1, GANTRY_TYPE_BFLOAT16, GANTRY_OP_SUM,
					    &q[k]));
	wait_all(&w, q);
	for (uint32_t k = 0; k < 3; k++) {
		CHECK(out[k] == sum);
		CHECK_EQ(out16[k], 0x4381);
	}
	close_world(&w);
}

/* As many as there may be, tested from the last one on; then one more is "again later". */
TEST(many_in_flight)
{
	enum { N = 3, COUNT = 3000 };
	static int32_t in[N][REDUCER_REQUESTS][COUNT], out[N][REDUCER_REQUESTS][COUNT];
	struct reducer_request *q[N][REDUCER_REQUESTS], *more;
	struct world w;
	int done, left = N * REDUCER_REQUESTS;

	open_world(&w, N);
	for (int s = 0; s < REDUCER_REQUESTS; s++)
		for (int k = 0; k < N; k++) {
			for (int i = 0; i < COUNT; i++)
				in[k][s][i] = (k + 1) * (s + i);
			CHECK_OK(reducer_all_reduce(w.comms[k], in[k][s], out[k][s], COUNT, GANTRY_TYPE_INT32,
						    GANTRY_OP_SUM, &q[k][s]));
			CHECK(q[k][s]);
		}
	CHECK_OK(reducer_all_reduce(w.comms[0], in[0][0], out[0][0], COUNT, GANTRY_TYPE_INT32, GANTRY_OP_SUM, &more));
	CHECK(!more);
	WAIT_WHILE (left)
		for (int s = REDUCER_REQUESTS - 1; s >= 0; s--)
			for (int k = 0; k < N; k++) {
				if (!q[k][s])
					continue;
				CHECK_OK(reducer_test(q[k][s], &done, NULL));
				if (!done)
					continue;
				for (int i = 0; i < COUNT; i++)
					CHECK_EQ(out[k][s][i], 6 * (s + i));
				q[k][s] = NULL;
				left--;
			}
	close_world(&w);
}

/* ---- windows ---- */

enum { WINDOW_MAX = 3 * 70000 };

/* A window in one part, or in several of odd sizes. */
static uint32_t cut_parts(char *at, size_t bytes, uint32_t n, struct iovec *parts)
{
	uint32_t k;

	for (k = 0; k + 1 < n && bytes > 8; k++) {
		parts[k] = (struct iovec){at, bytes / 3 / 4 * 4 + 4};
		at += parts[k].iov_len;
		bytes -= parts[k].iov_len;
	}
	parts[k] = (struct iovec){at, bytes};
	return k + 1;
}

static size_t max_size(size_t a, size_t b)
{
	return a > b ? a : b;
}

static void gather(struct world *w, size_t per_rank, size_t offset, size_t bytes, uint32_t nparts)
{
	static char out[RANKS][WINDOW_MAX], segment[RANKS][WINDOW_MAX];
	struct reducer_request *q[RANKS];

	for (uint32_t k = 0; k < w->n; k++) {
		struct iovec parts[8];
		struct reducer_window win = {.own = segment[k] +
						    (max_size(k * per_rank, offset) - k * per_rank) % per_rank,
					     .parts = parts,
					     .nparts = cut_parts(out[k], bytes, nparts, parts),
					     .per_rank = per_rank,
					     .offset = offset,
					     .bytes = bytes};

		for (size_t i = 0; i < per_rank; i++)
			segment[k][i] = (char)(k * 31 + i * 7 + i / 251);
		memset(out[k], 0, bytes);
		CHECK_OK(reducer_all_gather(w->comms[k], &win, &q[k]));
	}
	wait_all(w, q);
	for (uint32_t k = 0; k < w->n; k++)
		for (size_t i = 0; i < bytes; i++) {
			size_t at = (offset + i) % per_rank, owner = (offset + i) / per_rank;

			CHECK_EQ(out[k][i], (char)(owner * 31 + at * 7 + at / 251));
		}
}

static void scatter(struct world *w, size_t per_rank, size_t offset, size_t bytes, uint32_t nparts)
{
	static int32_t in[RANKS][WINDOW_MAX / 4], out[RANKS][WINDOW_MAX / 4];
	struct reducer_request *q[RANKS];

	for (uint32_t k = 0; k < w->n; k++) {
		struct iovec parts[8];
		struct reducer_window win = {.own = out[k],
					     .parts = parts,
					     .nparts = cut_parts((char *)in[k], bytes, nparts, parts),
					     .per_rank = per_rank,
					     .offset = offset,
					     .bytes = bytes};

		for (size_t i = 0; i < bytes / 4; i++)
			in[k][i] = (int32_t)((k + 1) * (offset / 4 + i));
		memset(out[k], 0xff, sizeof(out[k]));
		CHECK_OK(reducer_reduce_scatter(w->comms[k], &win, GANTRY_TYPE_INT32, GANTRY_OP_SUM, &q[k]));
	}
	wait_all(w, q);
	for (uint32_t k = 0; k < w->n; k++) {
		size_t first = max_size(k * per_rank, offset) / 4, i;
		size_t last = (k + 1) * per_rank < offset + bytes ? (k + 1) * per_rank / 4 : (offset + bytes) / 4;

		for (i = 0; first + i < last; i++)
			CHECK_EQ(out[k][i], (int32_t)(w->n * (w->n + 1) / 2 * (first + i)));
		CHECK_EQ(out[k][i], -1); /* and nothing behind it */
	}
}

TEST(windows)
{
	static const struct {
		size_t per_rank, offset, bytes;
		uint32_t nparts;
	} rows[] = {{4, 0, 12, 1},
		    {4, 4, 4, 1},
		    {1000, 0, 3000, 1},
		    {1000, 500, 1000, 1},
		    {1000, 996, 8, 1},
		    {70000, 0, 210000 - 4, 1},
		    {70000, 60000, 90000, 3},
		    {40000, 4, 100000, 8},
		    {70000, 140000, 64000, 2},
		    {1000, 2996, 4, 1}};
	struct world w;

	open_world(&w, 3);
	EACH_ROW (i, rows) {
		gather(&w, rows[i].per_rank, rows[i].offset, rows[i].bytes, rows[i].nparts);
		scatter(&w, rows[i].per_rank, rows[i].offset, rows[i].bytes, rows[i].nparts);
	}
	close_world(&w);
}

/* ---- what goes wrong ---- */

/* All ranks but those in `mask` get that error, and its text has these words. */
static void all_fail(struct world *w, struct reducer_request **q, uint32_t mask, gantry_result want, const char *words)
{
	for (uint32_t k = 0; k < w->n; k++) {
		gantry_result r = GANTRY_OK;
		int done = 0, other = 0;

		if (mask & 1u << k)
			continue;
		WAIT_WHILE (r == GANTRY_OK && !done) {
			r = reducer_test(q[k], &done, NULL);
			for (uint32_t j = 0; j < w->n; j++)
				if (j != k && !(mask & 1u << j))
					reducer_test(q[j], &other, NULL);
		}
		CHECK_EQ(r, want);
		r = reducer_test(q[k], &done, NULL);
		CHECK_EQ(r, want);
		if (!strstr(gantry_last_error(), words))
			fprintf(stderr, "text: %s\n", gantry_last_error());
		CHECK(strstr(gantry_last_error(), words));
	}
}

TEST(mismatches)
{
	static const struct {
		uint32_t type, op, count;
		const char *words;
	} rows[] = {{GANTRY_TYPE_INT32, GANTRY_OP_SUM, 3, "size in bytes: 16 on rank 0, 12 on rank 2"},
		    {GANTRY_TYPE_UINT32, GANTRY_OP_SUM, 4, " on type: "},
		    {GANTRY_TYPE_INT32, GANTRY_OP_MAX, 4, " on reduction: "}};
	int32_t in[RANKS][4] = {{0}}, out[RANKS][4];
	struct reducer_request *q[RANKS];
	struct world w;

	EACH_ROW (i, rows) {
		open_world(&w, 3);
		for (uint32_t k = 0; k < 3; k++)
			CHECK_OK(reducer_all_reduce(w.comms[k], in[k], out[k], k == 2 ? rows[i].count : 4,
						    k == 2 ? rows[i].type : (uint32_t)GANTRY_TYPE_INT32,
						    k == 2 ? rows[i].op : (uint32_t)GANTRY_OP_SUM, &q[k]));
		all_fail(&w, q, 0, GANTRY_ERR_USAGE, rows[i].words);
		close_world(&w);
	}
}

TEST(a_rank_that_leaves)
{
	static char in[RANKS][500000], out[RANKS][500000];
	struct reducer_request *q[RANKS];
	struct world w;

	open_world(&w, 3);
	for (uint32_t k = 0; k < 3; k++)
		CHECK_OK(reducer_all_reduce(w.comms[k], in[k], out[k], sizeof(in[k]), GANTRY_TYPE_INT8, GANTRY_OP_SUM,
					    &q[k]));
	wait_all(&w, q);
	for (uint32_t k = 0; k < 3; k += 2)
		CHECK_OK(reducer_all_reduce(w.comms[k], in[k], out[k], sizeof(in[k]), GANTRY_TYPE_INT8, GANTRY_OP_SUM,
					    &q[k]));
	reducer_close(w.comms[1]);
	w.comms[1] = NULL;
	all_fail(&w, q, 2, GANTRY_ERR_PEER_CLOSED, "");
	close_world(&w);
}

/* The other rank never comes. */
TEST(an_open_that_is_stopped)
{
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF, .standing_receives = 1};
	struct world w = {.n = 1};
	const void *handles[] = {w.handles[0], w.handles[1]};
	void *other = NULL;
	uint32_t stop = 1;
	struct reducer_config c = {.ranks = 2, .handles = handles, .timeout = 60ull * SECOND, .stop = &stop};

	CHECK_OK(ops->init(net, 0, &config, &w.ctx[0]));
	CHECK_OK(ops->listen(net, w.ctx[0], 0, w.handles[0], &w.listen[0]));
	CHECK_OK(ops->listen(net, w.ctx[0], 0, w.handles[1], &other));
	c.ctx = w.ctx[0];
	c.listen = w.listen[0];
	CHECK_ERROR(reducer_open(&c, &w.comms[0]), GANTRY_ERR_ABORTED,
		    "aborted while there was no connection with rank 1");
	CHECK_OK(ops->close_listen(net, other));
	close_world(&w);
}

TEST(wrong_arguments)
{
	struct iovec part = {NULL, 8};
	struct reducer_window win = {.parts = &part, .nparts = 1, .per_rank = 8, .offset = 4, .bytes = 8};
	struct reducer_request *q;
	struct world w;
	int done;

	open_world(&w, 1);
	CHECK_EQ(reducer_all_reduce(w.comms[0], NULL, NULL, 1, GANTRY_TYPE_COUNT, GANTRY_OP_SUM, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(reducer_all_reduce(w.comms[0], NULL, NULL, 1, GANTRY_TYPE_INT8, GANTRY_OP_AVG, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(reducer_all_reduce(w.comms[0], NULL, NULL, SIZE_MAX / 4, GANTRY_TYPE_INT64, GANTRY_OP_SUM, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(reducer_all_gather(w.comms[0], &win, &q), GANTRY_ERR_INVALID);
	win.offset = 0;
	win.bytes = part.iov_len = 6;
	CHECK_EQ(reducer_reduce_scatter(w.comms[0], &win, GANTRY_TYPE_INT32, GANTRY_OP_SUM, &q), GANTRY_ERR_INVALID);
	CHECK_OK(reducer_all_reduce(w.comms[0], NULL, NULL, 0, GANTRY_TYPE_INT8, GANTRY_OP_SUM, &q));
	CHECK_OK(reducer_test(q, &done, NULL));
	CHECK(done);
	CHECK_EQ(reducer_test(q, &done, NULL), GANTRY_ERR_USAGE);
	close_world(&w);
}

/* ---- a server ---- */

struct serving {
	struct reducer_server *s;
	char address[GANTRY_ADDR_TEXT];
	pthread_t thread;
	int stop, look; /* atomic; look: 1 asks for the status, 2 says that it is there */
	struct reducer_server_status status;
};
static struct {
	int events[REDUCER_EVENTS];
	uint64_t pieces;
	char text[256];
} told; /* the server's thread's, until that is joined */

static void note_event(const struct reducer_event *e)
{
	store_relaxed(&told.events[e->kind], told.events[e->kind] + 1);
	told.pieces += e->pieces;
	if (*e->text)
		snprintf(told.text, sizeof(told.text), "%s", e->text);
}

static void *serve(void *arg)
{
	struct serving *v = arg;

	while (!load_relaxed(&v->stop)) {
		reducer_server_wait(v->s, reducer_server_step(v->s), 1000000);
		if (load_acquire(&v->look) == 1) {
			reducer_server_status(v->s, &v->status);
			store_release(&v->look, 2);
		}
	}
	reducer_server_close(v->s);
	return NULL;
}

static void start_server(struct serving *v, uint64_t memory)
{
	struct reducer_server_config config = {.memory = memory, .job_memory = memory, .tell = note_event};

	*v = (struct serving){0};
	memset(&told, 0, sizeof(told));
	snprintf(v->address, sizeof(v->address), "127.0.0.1:%d", lo_free_port());
	CHECK_OK(gantry_addr_parse(v->address, &config.listen));
	CHECK_OK(reducer_server_open(&config, &v->s));
	CHECK_EQ(pthread_create(&v->thread, NULL, serve, v), 0);
}

static void stop_server(struct serving *v)
{
	store_relaxed(&v->stop, 1);
	CHECK_EQ(pthread_join(v->thread, NULL), 0);
}

/* One reducer that serves and one that is not there; two jobs at once. */
TEST(served_by_a_process)
{
	struct serving v;
	struct world w, other;
	char list[256], who[64];
	int once;

	start_server(&v, 64 << 20);
	snprintf(list, sizeof(list), "127.0.0.1:%d, %s", lo_free_port(), v.address);
	reducers = list;
	/* The one that is not there is waited for: not for long, unless the machine is too busy for that. */
	for (opening_ns = SECOND; opening_ns < 64ull * SECOND; opening_ns *= 4) {
		try_world(&w, 3);
		if (w.opened[0] == GANTRY_OK && w.opened[1] == GANTRY_OK && w.opened[2] == GANTRY_OK)
			break;
		close_world(&w);
	}
	CHECK(opening_ns < 64ull * SECOND);
	once = opening_ns == SECOND;
	reducers = v.address;
	opening_ns = 20ull * SECOND;
	open_world(&other, 2);
	CHECK_STR(reducer_describe(w.comms[1], who, sizeof(who)), "1 of 2 reducers");
	CHECK_STR(reducer_describe(other.comms[0], who, sizeof(who)), "1 of 1 reducers");
	for (uint32_t type = 0; type < GANTRY_TYPE_COUNT; type++) {
		CASE("type %u", type);
		all_reduce(&w, type, GANTRY_OP_SUM, 5000, 0);
		all_reduce(&other, type, GANTRY_OP_MAX, 17, 1);
	}
	all_reduce(&w, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, 1000003, 0);
	gather(&w, 40000, 4, 100000, 8);
	scatter(&w, 40000, 4, 100000, 8);
	store_release(&v.look, 1);
	UNTIL(load_acquire(&v.look) == 2);
	CHECK(v.status.begun == 2 || !once);
	CHECK(v.status.memory == reducer_group_bytes(3) + reducer_group_bytes(2) || !once);
	close_world(&w);
	all_reduce(&other, GANTRY_TYPE_INT32, GANTRY_OP_SUM, 100, 0);
	close_world(&other);
	WAIT_WHILE (load_relaxed(&told.events[REDUCER_EVENT_ENDED]) < 2)
		sleep_ms(1);
	stop_server(&v);
	CHECK(told.events[REDUCER_EVENT_BEGUN] >= 2);
	CHECK(told.events[REDUCER_EVENT_FAILED] == 0 || !once);
	CHECK(told.pieces > 2 * GANTRY_TYPE_COUNT);
	reducers = "";
}

/* What a server ends jobs with: ranks that differ, its own end; and what it refuses. */
TEST(a_server_that_fails_jobs)
{
	int32_t in[RANKS][4] = {{0}}, out[RANKS][4];
	struct reducer_request *q[RANKS];
	struct serving v;
	struct world w, other;
	char words[128];
	uint64_t since;

	start_server(&v, reducer_group_bytes(3) + 100);
	reducers = v.address;
	open_world(&w, 3);
	try_world(&other, 2);
	for (uint32_t k = 0; k < 2; k++) {
		CHECK_EQ(other.opened[k], GANTRY_ERR_UNREACHABLE);
		CHECK_HAS(other.why[k], "none of the 1 reducers");
	}
	CHECK_HAS(other.why[0], "(--memory) other jobs use");
	close_world(&other);
	for (uint32_t k = 0; k < 3; k++)
		CHECK_OK(reducer_all_reduce(w.comms[k], in[k], out[k], k == 2 ? 3 : 4, GANTRY_TYPE_INT32, GANTRY_OP_SUM,
					    &q[k]));
	all_fail(&w, q, 0, GANTRY_ERR_USAGE, "size in bytes: 16 on rank 0, 12 on rank 2");
	close_world(&w);
	WAIT_WHILE (load_relaxed(&told.events[REDUCER_EVENT_FAILED]) < 1)
		sleep_ms(1);
	do /* as soon as the ranks of the last job have closed, there is room again */
		try_world(&w, 3);
	while (w.opened[0] != GANTRY_OK && (close_world(&w), 1));
	for (uint32_t k = 0; k < 2; k++)
		CHECK_OK(reducer_all_reduce(w.comms[k], in[k], out[k], 4, GANTRY_TYPE_INT32, GANTRY_OP_SUM, &q[k]));
	store_relaxed(&v.stop, 1);
	since = gantry_now_ns();
	snprintf(words, sizeof(words), "reducer 0 of 1 (127.0.0.1:");
	q[2] = NULL;
	all_fail(&w, q, 4, GANTRY_ERR_PEER_CLOSED, words);
	all_fail(&w, q, 4, GANTRY_ERR_PEER_CLOSED, "the reducer is shutting down");
	/* One that comes to its next operation only now hears it as well. */
	if (reducer_all_reduce(w.comms[2], in[2], out[2], 4, GANTRY_TYPE_INT32, GANTRY_OP_SUM, &q[2]) == GANTRY_OK)
		all_fail(&w, q, 3, GANTRY_ERR_PEER_CLOSED, "");
	if (gantry_now_ns() - since < SECOND / 2)
		CHECK_HAS(gantry_last_error(), "the reducer is shutting down");
	close_world(&w);
	stop_server(&v);
	reducers = "";
}

/* A relay passes what ranks say on to another reducer that has the same secret: it refuses them, by the address that they dialled. */
TEST(passed_on)
{
	static struct relay relay;
	struct serving v;
	struct world w;
	char list[64];

	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_SECRET", "a secret of thirty-two characters");
	start_server(&v, 64 << 20);
	relay.to = lo_addr(atoi(strchr(v.address, ':') + 1));
	relay_make(&relay, 0, 1);
	relay_start(&relay);
	snprintf(list, sizeof(list), "127.0.0.1:%d", relay.port);
	reducers = list;
	try_world(&w, 2);
	for (uint32_t k = 0; k < 2; k++)
		CHECK_EQ(w.opened[k], GANTRY_ERR_UNREACHABLE);
	CHECK_HAS(w.why[0], "an address that does not belong to this reducer");
	close_world(&w);
	relay_stop(&relay);
	CHECK_EQ(load_relaxed(&told.events[REDUCER_EVENT_ASKED]), 0);
	reducers = v.address;
	open_world(&w, 2);
	all_reduce(&w, GANTRY_TYPE_INT32, GANTRY_OP_SUM, 100, 0);
	close_world(&w);
	stop_server(&v);
	reducers = "";
	set_params("GANTRY_SECRET", NULL);
}

TEST(asks)
{
	struct reducer_ask out, in = {.job = 1ull << 60,
				      .comm_id = 7,
				      .rank = 3,
				      .ranks = 4,
				      .reducer = 1,
				      .reducers = 2,
				      .handle = {1, 2, 3},
				      .to = {4, 18521, {127, 0, 0, 1}}};
	static const struct {
		int at, value;
	} wrong[] = {{16, 4}, {20, 3}, {22, 1}, {24, 2}, {28, 1}, {29, 2}};
	uint8_t b[REDUCER_ASK_SIZE], again[REDUCER_ASK_SIZE];

	reducer_ask_encode(&in, b);
	CHECK_OK(reducer_ask_decode(b, sizeof(b), &out));
	CHECK(out.job == in.job && out.rank == 3 && out.reducers == 2 && out.to.port == 18521);
	reducer_ask_encode(&out, again);
	CHECK(memcmp(b, again, sizeof(b)) == 0);
	CHECK_EQ(reducer_ask_decode(b, sizeof(b) - 1, &out), GANTRY_ERR_PROTOCOL);
	EACH_ROW (i, wrong) {
		reducer_ask_encode(&in, b);
		b[wrong[i].at] = (uint8_t)wrong[i].value;
		CHECK_EQ(reducer_ask_decode(b, sizeof(b), &out), GANTRY_ERR_PROTOCOL);
	}
}

/* ---- the wire ---- */

TEST(headers)
{
	struct reducer_message out, in = {.kind = REDUCER_PIECE,
					  .piece = {.coll = REDUCER_REDUCE_SCATTER,
						    .type = GANTRY_TYPE_FLOAT64,
						    .op = GANTRY_OP_MIN,
						    .owner = 3,
						    .seq = 1ull << 40,
						    .offset = 800,
						    .bytes = 1600,
						    .total = 2400}};
	uint8_t b[REDUCER_HEADER];
	static const struct {
		int at, value;
	} wrong[] = {{0, 0},   {4, 0},	{4, 9},	    {5, 3},  {6, 12},  {7, 4},
		     {10, 16}, {26, 1}, {32, 0x44}, {35, 1}, {47, 255}};

	reducer_encode(&in, b);
	CHECK_EQ(get64(b + 24), 800u);
	CHECK_OK(reducer_decode(b, REDUCER_HEADER, &out));
	CHECK(memcmp(&in.piece, &out.piece, sizeof(in.piece)) == 0);
	CHECK_OK(reducer_decode(b, REDUCER_HEADER + 1600, &out));
	CHECK_EQ(reducer_decode(b, REDUCER_HEADER + 1601, &out), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(reducer_decode(b, REDUCER_HEADER - 1, &out), GANTRY_ERR_PROTOCOL);
	EACH_ROW (i, wrong) {
		reducer_encode(&in, b);
		b[wrong[i].at] = (uint8_t)wrong[i].value;
		if (wrong[i].at == 47) /* a total that is merely larger is none of the header's business */
			CHECK_OK(reducer_decode(b, REDUCER_HEADER, &out));
		else
			CHECK_EQ(reducer_decode(b, REDUCER_HEADER, &out), GANTRY_ERR_PROTOCOL);
	}
}

TEST(buffers_are_bounded)
{
	for (uint32_t n = 1; n <= REDUCER_RANKS_MAX; n *= 2) {
		uint32_t piece = reducer_piece_max(n);

		CHECK(piece >= REDUCER_PIECE_MIN && piece <= REDUCER_PIECE_MAX && piece % 64 == 0);
		CHECK(piece == REDUCER_PIECE_MIN || (uint64_t)piece * n * REDUCER_WINDOW <= REDUCER_BUFFERS);
	}
}
