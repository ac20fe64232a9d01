/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's tuner as NCCL meets it: the library is opened, the network is initialised, and only then NCCL reads its variables
 * and asks the tuner. Each case is a process of its own, because what is set stays set. Where NCCL has opened the library for
 * its env tables, which it does first, it asks those, and the environment is as the user made it.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/env_v2.h"
#include "abi/net_v11.h"
#include "abi/tuner_v7.h"
#include "test.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
enum { ALGOS = 7, PROTOS = 3, NEWEST = 7 };

static void *library;
static ncclNet_v11_t *net;
static void *net_ctx;

static void quiet(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
}

static char path[4096];
static int env_version; /* NCCL's env interface; 0: it has none, or NCCL_ENV_PLUGIN is not set */
static const char *(*get_env)(const char *name);
static ncclResult_t (*end_env)(void);

void tests_begin(void)
{
	const char *build = getenv("BUILD_DIR");

	snprintf(path, sizeof(path), "%s/lib/libnccl-net-gantry.so", build ? build : ".");
	if (access(path, R_OK) != 0)
		SKIP("no plugin: set BUILD_DIR to the build folder");
}

/* With NCCL's first call, for the life of the process. */
static void open_env(void)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	ncclEnv_v1_t *v1;
	ncclEnv_v2_t *v2;

	CHECK(lib != NULL);
	v1 = dlsym(lib, "ncclEnvPlugin_v1");
	v2 = dlsym(lib, "ncclEnvPlugin_v2");
	CHECK(v1 && v2 && v1->name && v2->name);
	CHECK_EQ(env_version == 1 ? v1->init(2, 28, 9, "") : v2->init(2, 30, 7, "", quiet), ncclSuccess);
	get_env = env_version == 1 ? v1->getEnv : v2->getEnv;
	end_env = env_version == 1 ? v1->finalize : v2->finalize;
	CHECK(get_env("NCCL_MIN_NCHANNELS") == getenv("NCCL_MIN_NCHANNELS")); /* no network yet, no wish */
	CHECK_STR(get_env("GANTRY_IFNAME"), "lo");
	CHECK(get_env("") == NULL);
}

static void open_plugin(void)
{
	ncclNetCommConfig_v11_t config = {.trafficClass = -1};

	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CHECK(library != NULL);
	net = dlsym(library, "ncclNetPlugin_v11");
	CHECK(net != NULL);
	CHECK_EQ(net->init(&net_ctx, 1, &config, quiet, NULL), ncclSuccess);
}

static void close_plugin(void)
{
	CHECK_EQ(net->finalize(net_ctx), ncclSuccess);
	dlclose(library);
}

/* NCCL's table for all-reduce over a network: tree and ring, LL and Simple; PAT for the others. */
static void fill_costs(float *table, ncclFunc_t func)
{
	for (int i = 0; i < ALGOS * PROTOS; i++)
		table[i] = -1;
	table[NCCL_ALGO_TREE * PROTOS + NCCL_PROTO_LL] = func == ncclFuncAllReduce ? 40 : -1;
	table[NCCL_ALGO_TREE * PROTOS + NCCL_PROTO_SIMPLE] = func == ncclFuncAllReduce ? 60 : -1;
	table[NCCL_ALGO_RING * PROTOS + NCCL_PROTO_LL] = 30;
	table[NCCL_ALGO_RING * PROTOS + NCCL_PROTO_SIMPLE] = 50;
	table[NCCL_ALGO_PAT * PROTOS + NCCL_PROTO_SIMPLE] = func == ncclFuncAllReduce ? -1 : 10;
}

static int cheapest(const float *table)
{
	int best = -1;

	for (int i = 0; i < ALGOS * PROTOS; i++)
		if (table[i] >= 0 && (best < 0 || table[i] < table[best]))
			best = i;
	return best;
}

static struct {
	int channels, algo, proto;
} got;

/* Asks as the NCCL does that knows this version of the interface. */
static void ask(int version, size_t ranks, size_t nodes, ncclFunc_t func, size_t bytes)
{
	ncclTuner_v2_t *v2 = dlsym(library, "ncclTunerPlugin_v2");
	ncclTuner_v3_t *v3 = dlsym(library, "ncclTunerPlugin_v3");
	ncclTuner_v4_t *v4 = dlsym(library, "ncclTunerPlugin_v4");
	ncclTuner_v5_t *v5 = dlsym(library, "ncclTunerPlugin_v5");
	ncclTuner_v6_t *v6 = dlsym(library, "ncclTunerPlugin_v6");
	ncclTuner_v7_t *v7 = dlsym(library, "ncclTunerPlugin_v7");
	float table[ALGOS * PROTOS], **costs = (float **)table;
	ncclNvlDomainInfo_v5_t nvlink = {(int)nodes, 1, 1};
	int algo = -1, proto = -1;
	void *ctx = NULL;

	fill_costs(table, func);
	got.channels = 0;
	if (version == 7)
		CHECK_EQ(v7->init(&ctx, 1, ranks, nodes, quiet, &nvlink, NULL), ncclSuccess);
	else if (version >= 5)
		CHECK_EQ((version == 6 ? v6->init : v5->init)(&ctx, 1, ranks, nodes, quiet, &nvlink, NULL),
			 ncclSuccess);
	else
		CHECK_EQ((version == 4	 ? v4->init
			  : version == 3 ? v3->init
					 : v2->init)(ranks, nodes, quiet, &ctx),
			 ncclSuccess);
	if (version == 2)
		CHECK_EQ(v2->getCollInfo(ctx, func, bytes, 0, 0, 1, &algo, &proto, &got.channels), ncclSuccess);
	else if (version == 3)
		CHECK_EQ(v3->getCollInfo(ctx, func, bytes, 1, costs, ALGOS, PROTOS, &got.channels), ncclSuccess);
	else
		CHECK_EQ((version == 4	 ? v4->getCollInfo
			  : version == 5 ? v5->getCollInfo
			  : version == 6
				  ? v6->getCollInfo
				  : v7->getCollInfo)(ctx, func, bytes, 1, costs, ALGOS, PROTOS, 0, &got.channels),
			 ncclSuccess);
	CHECK_EQ((version == 7	 ? v7->finalize
		  : version == 6 ? v6->finalize
		  : version == 5 ? v5->finalize
		  : version == 4 ? v4->destroy
		  : version == 3 ? v3->destroy
				 : v2->destroy)(ctx),
		 ncclSuccess);
	CHECK(algo == -1 && proto == -1);
	got.algo = cheapest(table) / PROTOS;
	got.proto = cheapest(table) % PROTOS;
}

/* A case in a process of its own, with these settings. */
static void run_with(const char *settings, void (*body)(void))
{
	char text[512], *rest = text;
	pid_t pid = child_fork();

	if (pid) {
		child_wait(pid);
		return;
	}
	snprintf(text, sizeof(text), "GANTRY_IFNAME=lo %s", settings);
	for (char *one; (one = strsep(&rest, " "));)
		if (*one)
			putenv(one);
	if (env_version)
		open_env();
	open_plugin();
	body();
	close_plugin();
	if (env_version)
		CHECK_EQ(end_env(), ncclSuccess);
	child_end(0);
}

/* As NCCL sees it. It keeps what it got. */
static const char *value_of(const char *name)
{
	const char *value = env_version ? get_env(name) : getenv(name);

	if (env_version)
		CHECK(value == get_env(name));
	return value ? value : "not set";
}

/* 0 channels: all of them. */
static void check_choices(void)
{
	static const struct {
		size_t ranks, bytes;
		int channels, proto;
	} table[] = {
		{2, 4, 1, NCCL_PROTO_LL},
		{2, KIB, 1, NCCL_PROTO_LL},
		{2, 64 * KIB, 1, NCCL_PROTO_SIMPLE},
		{2, 256 * KIB, 2, NCCL_PROTO_SIMPLE},
		{2, MIB, 2, NCCL_PROTO_SIMPLE},
		{2, 2 * MIB, 2, NCCL_PROTO_SIMPLE},
		{2, 4 * MIB, 4, NCCL_PROTO_SIMPLE},
		{2, 16 * MIB, 4, NCCL_PROTO_SIMPLE},
		{2, 128 * MIB, 0, NCCL_PROTO_SIMPLE},
		{4, KIB, 1, NCCL_PROTO_LL},
		{4, 64 * KIB, 1, NCCL_PROTO_LL},
		{4, 256 * KIB, 1, NCCL_PROTO_SIMPLE},
		{4, MIB, 1, NCCL_PROTO_SIMPLE},
		{4, 16 * MIB, 2, NCCL_PROTO_SIMPLE},
		{4, 128 * MIB, 4, NCCL_PROTO_SIMPLE},
		{8, 16 * MIB, 2, NCCL_PROTO_SIMPLE},
		{8, 1024 * MIB, 0, NCCL_PROTO_SIMPLE},
		{8, 0, 1, NCCL_PROTO_LL},
	};

	CHECK_STR(value_of("NCCL_MIN_NCHANNELS"), "8");
	CHECK_STR(value_of("NCCL_NTHREADS"), "not set");
	EACH_ROW (i, table)
		for (int version = 2; version <= NEWEST; version++) {
			ask(version, table[i].ranks, table[i].ranks, ncclFuncAllReduce, table[i].bytes);
			CHECK_EQ(got.channels, table[i].channels);
			CHECK_EQ(got.proto, version == 2 ? NCCL_PROTO_LL : table[i].proto);
			CHECK_EQ(got.algo, NCCL_ALGO_RING);
		}
	/* PAT stays where nothing unpacks. */
	ask(NEWEST, 4, 4, ncclFuncAllGather, MIB);
	CHECK_EQ(got.algo, NCCL_ALGO_PAT);
	CHECK_EQ(got.channels, 1);
}

/* As NCCL 2.30 and later ask once the way is chosen: for what one channel carries. */
static size_t ask_chunk(size_t ranks, size_t nodes, ncclFunc_t func, int algo, int proto, size_t bytes, size_t chunk)
{
	ncclTuner_v6_t *v6 = dlsym(library, "ncclTunerPlugin_v6");
	ncclTuner_v7_t *v7 = dlsym(library, "ncclTunerPlugin_v7");
	ncclNvlDomainInfo_v5_t nvlink = {(int)nodes, 1, 1};
	size_t old = chunk;
	void *ctx = NULL;

	CHECK_EQ(v6->init(&ctx, 1, ranks, nodes, quiet, &nvlink, NULL), ncclSuccess);
	CHECK_EQ(v6->getChunkSize(ctx, func, bytes, algo, proto, 1, &old), ncclSuccess);
	CHECK_EQ(v6->finalize(ctx), ncclSuccess);
	CHECK_EQ(v7->init(&ctx, 2, ranks, nodes, quiet, &nvlink, NULL), ncclSuccess);
	/* The same share, said otherwise. */
	CHECK_EQ(v7->getChunkSize(ctx, func, 3 * bytes, algo, proto, 3, &chunk), ncclSuccess);
	CHECK_EQ(v7->finalize(ctx), ncclSuccess);
	CHECK_EQ(old, chunk);
	return chunk;
}

/* NCCL's chunk with buffers of 4 MiB: four steps of a ring, or one step. */
enum { RING_CHUNK = 2 << 20, STEP_CHUNK = 512 << 10 };

static void check_chunks(void)
{
	static const struct {
		size_t ranks, share;
		ncclFunc_t func;
		int algo;
		size_t before, after;
	} table[] = {
		/* A chunk that is not filled, or filled exactly, stays: messages of 1 MiB. */
		{2, 4 * KIB, ncclFuncAllReduce, NCCL_ALGO_RING, RING_CHUNK, RING_CHUNK},
		{2, 4 * MIB, ncclFuncAllReduce, NCCL_ALGO_RING, RING_CHUNK, RING_CHUNK},
		{4, 64 * MIB, ncclFuncAllGather, NCCL_ALGO_RING, RING_CHUNK, RING_CHUNK},
		/* 2 MiB and 256 KiB would be messages of 1 MiB and of 128 KiB. */
		{2, 2 * (2 * MIB + 256 * KIB), ncclFuncAllReduce, NCCL_ALGO_RING, RING_CHUNK, MIB + 128 * KIB},
		{2, 2 * (2 * MIB + 4), ncclFuncAllReduce, NCCL_ALGO_RING, RING_CHUNK, MIB + 128 * KIB},
		{4, 4 * 5 * MIB, ncclFuncReduceScatter, NCCL_ALGO_RING, RING_CHUNK, MIB + 768 * KIB},
		/* A chain of 4: 12 chunks on their way, or 256 KiB. */
		{4, 4 * MIB, ncclFuncBroadcast, NCCL_ALGO_RING, STEP_CHUNK, 256 * KIB},
		{4, 6 * MIB, ncclFuncBroadcast, NCCL_ALGO_RING, STEP_CHUNK, STEP_CHUNK},
		{4, 64 * KIB, ncclFuncReduce, NCCL_ALGO_RING, STEP_CHUNK, 256 * KIB},
		{2, 4 * MIB, ncclFuncReduce, NCCL_ALGO_RING, STEP_CHUNK, STEP_CHUNK},
		{2, 2 * MIB + KIB, ncclFuncReduce, NCCL_ALGO_RING, STEP_CHUNK, 448 * KIB},
		/* A tree of 8: three hops. */
		{8, 4 * MIB, ncclFuncAllReduce, NCCL_ALGO_TREE, STEP_CHUNK, 256 * KIB},
		{8, 8 * MIB, ncclFuncAllReduce, NCCL_ALGO_TREE, STEP_CHUNK, STEP_CHUNK},
		/* NCCL's own: other algorithms, calls of no bytes, buffers that are small already. */
		{8, 4 * MIB, ncclFuncAllGather, NCCL_ALGO_PAT, STEP_CHUNK, STEP_CHUNK},
		{2, 5 * MIB, ncclFuncAllReduce, NCCL_ALGO_RING, 32 * KIB, 32 * KIB},
		{2, 0, ncclFuncAllReduce, NCCL_ALGO_RING, RING_CHUNK, RING_CHUNK},
	};

	EACH_ROW (i, table) {
		CHECK_EQ(ask_chunk(table[i].ranks, table[i].ranks, table[i].func, table[i].algo, NCCL_PROTO_SIMPLE,
				   table[i].share, table[i].before),
			 table[i].after);
		CHECK_EQ(ask_chunk(table[i].ranks, table[i].ranks, table[i].func, table[i].algo, NCCL_PROTO_LL,
				   table[i].share, table[i].before),
			 table[i].before);
		CHECK_EQ(ask_chunk(2 * table[i].ranks, table[i].ranks, table[i].func, table[i].algo, NCCL_PROTO_SIMPLE,
				   table[i].share, table[i].before),
			 table[i].before);
	}
}

/* Whatever the share: no more than NCCL's chunk, no less than a piece that the lanes like, and no more chunks than before. */
static void check_all_chunks(void)
{
	for (size_t ranks = 2; ranks <= 9; ranks += 7)
		for (size_t share = KIB; share < 64 * MIB; share += share / 3 + 777) {
			size_t part = (share + ranks - 1) / ranks, chunk;

			chunk = ask_chunk(ranks, ranks, ncclFuncAllReduce, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE, share,
					  RING_CHUNK);
			CHECK(chunk <= RING_CHUNK && chunk > RING_CHUNK / 2 && chunk % (128 * KIB) == 0);
			CHECK_EQ((part + chunk - 1) / chunk, (part + RING_CHUNK - 1) / RING_CHUNK);
			chunk = ask_chunk(ranks, ranks, ncclFuncReduce, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE, share,
					  STEP_CHUNK);
			CHECK(chunk <= STEP_CHUNK && chunk > 128 * KIB && chunk % (64 * KIB) == 0);
		}
}

/* Several ranks per node, or one node: NCCL knows better. */
static void check_elsewhere(void)
{
	for (int version = 2; version <= NEWEST; version++) {
		ask(version, 16, 2, ncclFuncAllReduce, 16 * MIB);
		CHECK(got.channels == 0 && got.proto == NCCL_PROTO_LL);
		ask(version, 2, 1, ncclFuncAllReduce, 16 * MIB);
		CHECK(got.channels == 0 && got.proto == NCCL_PROTO_LL);
		ask(version, 2, 2, (ncclFunc_t)5, 16 * MIB);
		CHECK_EQ(got.channels, 0);
	}
}

/* A library that is opened again does not take its own settings for the user's. */
static void check_opened_again(void)
{
	close_plugin();
	open_plugin();
	check_choices();
}

static void check_environment(void)
{
	CHECK_STR(value_of("NCCL_MIN_NCHANNELS"), "8");
	CHECK(!getenv("NCCL_MIN_NCHANNELS") && !getenv("GANTRY_TUNED"));
}

/* From a process that was tuned by variables: they are there already. */
static void check_inherited(void)
{
	check_choices();
	CHECK(value_of("NCCL_MIN_NCHANNELS") == getenv("NCCL_MIN_NCHANNELS"));
	CHECK_STR(getenv("GANTRY_TUNED"), "NCCL_MIN_NCHANNELS=8,");
}

static void check_untouched(void)
{
	if (env_version)
		run_with("", check_environment);
	run_with("GANTRY_TUNED=NCCL_MIN_NCHANNELS=8, NCCL_MIN_NCHANNELS=8", check_inherited);
	run_with("", check_choices);
	run_with("", check_elsewhere);
	run_with("", check_opened_again);
	run_with("", check_chunks);
	run_with("", check_all_chunks);
}

static void check_left_alone(void)
{
	for (int version = 2; version <= NEWEST; version++) {
		ask(version, 2, 2, ncclFuncAllReduce, 16 * MIB);
		CHECK_EQ(got.channels, 0);
		CHECK_EQ(got.proto, NCCL_PROTO_LL);
	}
	CHECK_EQ(ask_chunk(2, 2, ncclFuncAllReduce, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE, 5 * MIB, RING_CHUNK),
		 RING_CHUNK);
}

static void check_nothing_set(void)
{
	CHECK_STR(value_of("NCCL_MIN_NCHANNELS"), "not set");
	check_left_alone();
}

static void check_users_four(void)
{
	CHECK_STR(value_of("NCCL_MIN_NCHANNELS"), "4");
	check_left_alone();
}

static void check_users_protocol(void)
{
	ask(NEWEST, 2, 2, ncclFuncAllReduce, 16 * MIB);
	CHECK_EQ(got.channels, 4);
	CHECK_EQ(got.proto, NCCL_PROTO_LL);
}

static void check_users_own_settings_win(void)
{
	run_with("GANTRY_TUNE=off", check_nothing_set);
	run_with("NCCL_MIN_NCHANNELS=4", check_users_four);
	run_with("NCCL_MAX_NCHANNELS=2", check_nothing_set);
	run_with("NCCL_MAX_CTAS=2", check_nothing_set);
	run_with("NCCL_MIN_CTAS=16", check_nothing_set);
	run_with("NCCL_MAX_NRINGS=1", check_nothing_set);
	run_with("NCCL_PROTO=LL", check_users_protocol);
	run_with("NCCL_ALGO=Ring", check_users_protocol);
	/* Inherited from a process that Gantry has tuned, and then changed: the user's. */
	run_with("GANTRY_TUNED=NCCL_MIN_NCHANNELS=8, NCCL_MIN_NCHANNELS=4", check_users_four);
}

static void check_unpack_settings(void)
{
	CHECK_STR(value_of("NCCL_NTHREADS"), "512");
	CHECK_STR(value_of("NCCL_NET_GDR_LEVEL"), "PHB");
	CHECK_STR(value_of("NCCL_NET_GDR_READ"), "0");
	CHECK_STR(value_of("NCCL_PAT_ENABLE"), "0");
	for (int version = 3; version <= NEWEST; version++) {
		ask(version, 4, 4, ncclFuncAllGather, MIB);
		CHECK_EQ(got.algo, NCCL_ALGO_RING);
		ask(version, 16, 4, ncclFuncReduceScatter, MIB);
		CHECK_EQ(got.algo, NCCL_ALGO_RING);
		ask(version, 2, 2, ncclFuncAllReduce, MIB);
		CHECK_EQ(got.channels, 2);
		ask(version, 2, 2, ncclFuncAllReduce, 16 * MIB);
		CHECK_EQ(got.channels, 0);
	}
	CHECK_EQ(ask_chunk(2, 2, ncclFuncAllReduce, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE, 5 * MIB, RING_CHUNK),
		 RING_CHUNK);
}

static void check_unpack_off(void)
{
	CHECK_STR(value_of("NCCL_NTHREADS"), "not set");
	ask(NEWEST, 4, 4, ncclFuncAllGather, MIB);
	CHECK_EQ(got.algo, NCCL_ALGO_PAT);
}

static void check_unpack(void)
{
	run_with("GANTRY_UNPACK=emulated NCCL_NET_GDR_LEVEL=PHB", check_unpack_settings);
	run_with("GANTRY_UNPACK=emulated GANTRY_TUNE=off NCCL_PAT_ENABLE=1", check_unpack_off);
}

static void check_all(int env)
{
	env_version = env;
	check_untouched();
	check_users_own_settings_win();
	check_unpack();
}

/* NCCL up to 2.28.3, and any without NCCL_ENV_PLUGIN. */
TEST(check_by_variables)
{
	check_all(0);
}

TEST(check_by_answers)
{
	check_all(1);
	check_all(2);
}
