/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign collNet tables behind net/net_collnet.h: the library is opened, two ranks are threads, and every version of the
 * table reduces right. Its own plugin is what Gantry has for one that is foreign.
 */
#include <pthread.h>

#include "gantry/types.h"
#include "net/net_collnet.h"
#include "test.h"

enum { RANKS = 2, COUNT = 3000 };

static struct gantry_loader *loader;

struct rank {
	uint32_t rank;
	struct gantry_collnet_plugin *plugin;
	const void *const *handles;
	float in[COUNT], out[COUNT];
};

static void open_library(void)
{
	const char *build = getenv("BUILD_DIR");
	char path[4096];

	if (!build)
		SKIP("no plugin: set BUILD_DIR to the build folder");
	set_params("NCCL_COLLNET_ENABLE", "1", "GANTRY_IFNAME", "lo");
	snprintf(path, sizeof(path), "%s/lib/libnccl-net-gantry.so", build);
	CHECK_OK(gantry_loader_open(path, &loader));
}

static void *be_rank(void *arg)
{
	struct rank *r = arg;
	struct gantry_collnet_reduction q = {
		.send = r->in, .recv = r->out, .count = COUNT, .type = GANTRY_TYPE_FLOAT32, .op = GANTRY_OP_SUM};
	void *request = NULL;
	int done = 0;

	CHECK_OK(gantry_collnet_plugin_connect(r->plugin, r->handles, RANKS, r->rank));
	CHECK_OK(gantry_collnet_plugin_register(r->plugin, r->in, sizeof(r->in), &q.send_mr));
	CHECK_OK(gantry_collnet_plugin_register(r->plugin, r->out, sizeof(r->out), &q.recv_mr));
	for (int i = 0; i < COUNT; i++)
		r->in[i] = (float)((int)r->rank * 1000 + i);
	while (!request)
		CHECK_OK(gantry_collnet_plugin_all_reduce(r->plugin, &q, &request));
	while (!done)
		CHECK_OK(gantry_collnet_plugin_test(r->plugin, request, &done));
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ((int)r->out[i], 1000 + 2 * i);
	return NULL;
}

TEST(every_version)
{
	static struct rank ranks[RANKS];
	unsigned char handles[RANKS][GANTRY_NET_HANDLE_SIZE];
	const void *all[RANKS] = {handles[0], handles[1]};
	pthread_t threads[RANKS];

	open_library();
	for (int version = GANTRY_NET_VERSION_MIN; version <= GANTRY_NET_VERSION_MAX; version++) {
		CASE("v%d", version);
		for (uint32_t i = 0; i < RANKS; i++) {
			ranks[i].rank = i;
			ranks[i].handles = all;
			CHECK_OK(gantry_collnet_plugin_open(loader, version, 7, 0, &ranks[i].plugin));
			CHECK_OK(gantry_collnet_plugin_listen(ranks[i].plugin, handles[i]));
		}
		for (uint32_t type = 0; type < GANTRY_TYPE_COUNT; type++)
			CHECK(gantry_collnet_plugin_takes(ranks[0].plugin, type, GANTRY_OP_MIN));
		CHECK(!gantry_collnet_plugin_takes(ranks[0].plugin, GANTRY_TYPE_COUNT, GANTRY_OP_SUM));
		CHECK(gantry_collnet_plugin_max_bytes(ranks[0].plugin) >= 1 << 30);
		for (int i = 0; i < RANKS; i++)
			CHECK_EQ(pthread_create(&threads[i], NULL, be_rank, &ranks[i]), 0);
		for (int i = 0; i < RANKS; i++) {
			pthread_join(threads[i], NULL);
			gantry_collnet_plugin_close(ranks[i].plugin);
		}
	}
	gantry_loader_close(loader);
}

TEST(refusals)
{
	struct gantry_collnet_plugin *p = NULL;

	open_library();
	CHECK_ERROR(gantry_collnet_plugin_open(loader, 5, 7, 0, &p), GANTRY_ERR_UNSUPPORTED, "has no collNet table");
	CHECK_ERROR(gantry_collnet_plugin_open(loader, 0, 7, 1000, &p), GANTRY_ERR_UNSUPPORTED,
		    "gantry (v12): device 1000 of");
	CHECK(!p);
	gantry_collnet_plugin_close(NULL);
	gantry_loader_close(loader);
}
