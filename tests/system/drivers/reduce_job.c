/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_job RANK RANKS FOLDER BYTES COUNT [all_gather]: one rank of a job that all-reduces, or gathers, through reducers
 * (reducer/reducer.h), as GANTRY_REDUCERS says. Ranks find each other by files in the folder. COUNT 0: until there is a file
 * `stop` in it. Every element is compared with its arithmetic. Lines on standard output:
 *
 *   rank 0 opened: 2 of 2 reducers           it goes on; `at` is the clock of /proc/uptime, in ms
 *   rank 0 works
 *   rank 0 done: 100 operations, best 812 us, mean 900 us
 *   rank 0 failed: ERR_PEER_LOST at 8123456: reducer 1 of 2 (...)
 */
#include <fcntl.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/eventcount.h"
#include "base/param.h"
#include "net/net.h"
#include "reducer/reducer.h"
#include "test.h"

static struct gantry_net *net;
static int rank, ranks;
static const char *folder;
static bool gathers;

static void path_of(const char *name, int of, char *buf, size_t len)
{
	snprintf(buf, len, "%s/%s.%d", folder, name, of);
}

static void publish(const uint8_t *handle)
{
	char path[512], part[512];
	FILE *f;

	path_of("part", rank, part, sizeof(part));
	path_of("handle", rank, path, sizeof(path));
	f = fopen(part, "w");
	CHECK(f && fwrite(handle, GANTRY_NET_HANDLE_SIZE, 1, f) == 1 && fclose(f) == 0);
	CHECK_EQ(rename(part, path), 0);
}

static uint8_t *await_handle(int of)
{
	uint8_t *handle = malloc(GANTRY_NET_HANDLE_SIZE);
	char path[512];
	FILE *f;

	path_of("handle", of, path, sizeof(path));
	WAIT_WHILE (access(path, R_OK))
		sleep_ms(2);
	f = fopen(path, "r");
	CHECK(handle && f && fread(handle, GANTRY_NET_HANDLE_SIZE, 1, f) == 1);
	fclose(f);
	return handle;
}

static int say_failed(gantry_result r)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	printf("rank %d failed: %s at %lld: %s\n", rank, gantry_result_name(r),
	       (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000, gantry_last_error());
	fflush(stdout);
	return 1;
}

static gantry_result post(struct reducer_comm *c, int32_t *in, int32_t *out, size_t count,
			  struct reducer_request **ret_request)
{
	struct iovec all = {out, count * sizeof(*out)};
	struct reducer_window w = {
		.own = in, .parts = &all, .nparts = 1, .per_rank = all.iov_len / (size_t)ranks, .bytes = all.iov_len};

	if (gathers)
		return reducer_all_gather(c, &w, ret_request);
	return reducer_all_reduce(c, in, out, count, GANTRY_TYPE_INT32, GANTRY_OP_SUM, ret_request);
}

static gantry_result operate(struct reducer_comm *c, int32_t *in, int32_t *out, size_t count)
{
	struct reducer_request *q = NULL;
	struct gantry_waiter idle;
	int done = 0;

	gantry_waiter_init(&idle, NULL);
	TRY_NOW(post(c, in, out, count, &q));
	CHECK(q);
	while (!done) {
		TRY_NOW(reducer_test(q, &done, NULL));
		if (!done)
			gantry_waiter_idle(&idle, 1000000); /* ranks may share CPUs with reducers */
	}
	return GANTRY_OK;
}

/* What all ranks have as element i of their input, but for a factor. */
static int32_t base_of(size_t i, uint64_t operation)
{
	return (int32_t)(i % 1000 + operation % 1000);
}

/* The first element of each input is not checked: see work(). */
static void check_result(const int32_t *out, size_t count, uint64_t operation)
{
	size_t part = gathers ? count / (size_t)ranks : count;

	for (size_t i = 0; i < count; i++)
		if (i % part)
			CHECK_EQ(out[i], (gathers ? (int32_t)(i / part) + 1 : ranks * (ranks + 1) / 2) *
						 base_of(i % part, operation));
}

static int stop_wanted(void)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/stop", folder);
	return access(path, F_OK) == 0;
}

/* The first element is how many ranks want to stop, or whether the first one does: so all of them end with the same operation. */
static gantry_result work(struct reducer_comm *c, size_t count, uint64_t operations)
{
	int32_t *in = calloc(count, sizeof(*in)), *out = calloc(count, sizeof(*out));
	uint64_t done = 0, best = UINT64_MAX, total = 0;
	gantry_result r = GANTRY_OK;

	CHECK(in && out);
	while (r == GANTRY_OK && (!operations || done < operations)) {
		uint64_t since;

		for (size_t i = 1; i < count; i++)
			in[i] = (rank + 1) * base_of(i, done);
		in[0] = !operations && stop_wanted();
		since = gantry_now_ns();
		r = operate(c, in, out, count);
		if (r != GANTRY_OK)
			break;
		since = gantry_now_ns() - since;
		total += since;
		best = since < best ? since : best;
		check_result(out, count, done);
		if (!done++) {
			printf("rank %d works\n", rank);
			fflush(stdout);
		}
		if (out[0])
			break;
	}
	if (r == GANTRY_OK)
		printf("rank %d done: %llu operations, best %llu us, mean %llu us\n", rank, (unsigned long long)done,
		       (unsigned long long)best / 1000, (unsigned long long)(total / done / 1000));
	free(in);
	free(out);
	return r;
}

int main(int argc, char **argv)
{
	struct gantry_net_config net_config = {.traffic_class = GANTRY_NET_UNDEF, .standing_receives = 1};
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	const void *handles[64] = {NULL};
	void *ctx, *listen;
	struct reducer_config config = {.handles = handles};
	struct reducer_comm *c = NULL;
	gantry_result r;
	char who[64];

	CHECK(argc == 6 || (argc == 7 && strcmp(argv[6], "all_gather") == 0));
	gathers = argc == 7;
	rank = atoi(argv[1]);
	ranks = atoi(argv[2]);
	folder = argv[3];
	CHECK(ranks > 0 && ranks <= 64 && rank < ranks);
	net = gantry_net_tcp();
	CHECK_OK(net->ops->init(net, 0, &net_config, &ctx));
	CHECK_OK(net->ops->listen(net, ctx, 0, handle, &listen));
	publish(handle);
	for (int i = 0; i < ranks; i++)
		handles[i] = await_handle(i);
	config.ctx = ctx;
	config.listen = listen;
	config.rank = (uint32_t)rank;
	config.ranks = (uint32_t)ranks;
	config.timeout = gantry_params()->connect_timeout;
	r = reducer_open(&config, &c);
	if (r == GANTRY_OK) {
		printf("rank %d opened: %s\n", rank, reducer_describe(c, who, sizeof(who)));
		fflush(stdout);
		r = work(c, strtoull(argv[4], NULL, 10) / 4, strtoull(argv[5], NULL, 10));
	}
	if (r != GANTRY_OK)
		say_failed(r);
	reducer_close(c);
	net->ops->close_listen(net, listen);
	net->ops->finalize(net, ctx);
	for (int i = 0; i < ranks; i++)
		free((void *)handles[i]);
	return r != GANTRY_OK;
}
