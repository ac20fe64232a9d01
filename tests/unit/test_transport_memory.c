/* SPDX-License-Identifier: Apache-2.0 */
/* How much pinned memory a communicator takes over the network: the bounds of docs/limits.md. Ranks as threads. */
#include "base/atomic.h"
#include "base/param.h"
#include "comm_world.h"
#include "device/device.h"

enum { MIB = 1 << 20, COUNT = 50000 };

static const struct gantry_device_ops *host_ops;
static struct gantry_device_ops counting_ops;
static uint64_t pinned;

static gantry_result counting_mapped(struct gantry_device *dev, size_t size, void **ret_host, void **ret_device)
{
	fetch_add_relaxed(&pinned, size);
	return host_ops->alloc_mapped(dev, size, ret_host, ret_device);
}

static int all_to_all;

static void rank_main(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	int n = w->nranks;
	int32_t *in = malloc((size_t)n * COUNT * sizeof(*in)), *out = malloc((size_t)n * COUNT * sizeof(*out));
	char *text = NULL;
	size_t len = 0;
	FILE *f;

	for (int i = 0; i < n * COUNT; i++)
		in[i] = rank + i;
	if (all_to_all)
		CHECK_OK(gantry_all_to_all(in, out, COUNT, GANTRY_TYPE_INT32, comm, s));
	else
		CHECK_OK(gantry_all_reduce(in, out, (size_t)n * COUNT, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	for (int i = 0; i < n * COUNT; i++)
		if (out[i] != (all_to_all ? i / COUNT + rank * COUNT + i % COUNT : n * (n - 1) / 2 + n * i))
			TEST_FAIL("element %d of rank %d is %d", i, rank, out[i]);
	if (rank == 0) {
		f = open_memstream(&text, &len);
		CHECK_OK(gantry_comm_explain(comm, "all_reduce", 1, GANTRY_TYPE_INT32, f));
		fclose(f);
		CHECK(strstr(text, "pinned memory") != NULL);
		free(text);
	}
	CHECK_OK(gantry_comm_destroy(comm));
	free(in);
	free(out);
}

/* Answers what a rank takes, on average. */
static uint64_t pinned_of(int nranks, const char *algo)
{
	struct world w = {.body = rank_main, .nranks = nranks, .transport = "net", .channels = 1};
	struct gantry_device *dev;

	setenv("GANTRY_IFNAME", "lo", 0);
	setenv("GANTRY_ALGO", algo, 1);
	CHECK_OK(gantry_params_load(1));
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &dev)); /* all have this one */
	host_ops = dev->ops;
	counting_ops = *host_ops;
	counting_ops.alloc_mapped = counting_mapped;
	dev->ops = &counting_ops;
	store_relaxed(&pinned, 0);
	world_threads(&w, NULL);
	dev->ops = host_ops;
	gantry_device_close(dev);
	printf("%d ranks, %s: %.1f MiB per rank\n", nranks, all_to_all ? "all to all" : algo,
	       (double)pinned / MIB / nranks);
	return pinned / (uint64_t)nranks;
}

TEST(ring_and_tree)
{
	CHECK(pinned_of(16, "ring") <= 64 * MIB);
	CHECK(pinned_of(16, "tree") <= 64 * MIB);
	CHECK(pinned_of(2, "ring") <= 64 * MIB);
}

TEST(all_to_all_by_peer)
{
	all_to_all = 1;
	for (int n = 6; n <= 12; n += 2)
		CHECK(pinned_of(n, "auto") <= (uint64_t)(n - 1) * 4 * MIB);
	all_to_all = 0;
}
