/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator: ranks as threads, all transports, groups, odd sizes, errors. Every byte is checked. */
#include "comm_world.h"
#include "transport/transport.h"

enum { GUARD = 64 };

/* What rank `from` sends to rank `to` in round k. */
static uint64_t seed_of(int from, int to, size_t k)
{
	return k * 100 + (uint64_t)(from * 10 + to);
}

/* Everybody to everybody, itself included, in one group and in an order that suits nobody. */
static void all_pairs(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	static const size_t sizes[] = {0, 1, 7, 8, 9, 1023, 4097, 65537, 1 << 20, (3 << 20) + 5};
	int n = w->nranks;
	unsigned char *out[WORLD_MOST], *in[WORLD_MOST];
	size_t max = (3 << 20) + 5 + GUARD, nsizes = sizeof(sizes) / sizeof(sizes[0]);
	struct gantry_stream *given = s, *own;

	if (SANITIZED) /* the large ones add time and no other paths */
		nsizes -= 2;
	CHECK_OK(gantry_stream_create(dev, &own));

	for (int p = 0; p < n; p++) {
		out[p] = malloc(max);
		in[p] = malloc(max);
	}
	for (size_t z = 0; z < nsizes; z++) {
		size_t size = sizes[z];

		for (int p = 0; p < n; p++) {
			pattern_fill(out[p], size, seed_of(rank, p, z));
			memset(in[p], 0xee, size + GUARD);
		}
		/* A stream of its own for each size: launches stay in order, and the one before may be gone. */
		if (z % 3 == 1) {
			gantry_stream_destroy(dev, own);
			CHECK_OK(gantry_stream_create(dev, &own));
		}
		s = z % 3 ? own : given;
		CHECK_OK(gantry_group_start());
		for (int p = 0; p < n; p++)
			CHECK_OK(gantry_send(out[(n - p + rank) % n], size, GANTRY_TYPE_UINT8, (n - p + rank) % n, comm,
					     s));
		for (int p = n; p-- > 0;)
			CHECK_OK(gantry_recv(in[p], size, GANTRY_TYPE_UINT8, p, comm, s));
		CHECK_OK(gantry_group_end());
		CHECK_OK(gantry_stream_sync(dev, s));
		CHECK_OK(gantry_comm_error(comm, NULL, NULL, 0));
		for (int p = 0; p < n; p++) {
			CHECK_PATTERN(in[p], size, seed_of(p, rank, z));
			CHECK_FILLED(in[p] + size, GUARD, 0xee);
		}
	}
	gantry_stream_destroy(dev, own);
	CHECK_OK(gantry_comm_destroy(comm));
	for (int p = 0; p < n; p++) {
		free(out[p]);
		free(in[p]);
	}
}

/* ---- waiting times ---- */

enum { LATE_MS = 20, LATE_TRIES = 100 };
static uint32_t late_met, late_seen; /* ranks that have come to the start of a try; rank 0 has seen its wait */

/* A small collective over the network has no proxy to wait for: comm/small.c. */
static uint64_t waited(struct gantry_comm *comm, const char *transport, int collective)
{
	struct gantry_comm_counters c = GANTRY_COMM_COUNTERS_INIT;

	CHECK_OK(gantry_comm_get_counters(comm, &c));
	if (strcmp(transport, "net") == 0 && collective)
		return c.wait_ns[GANTRY_COMM_WAIT_PEER];
	if (strcmp(transport, "net") == 0)
		return c.wait_ns[GANTRY_COMM_WAIT_PROXY] < c.wait_ns[GANTRY_COMM_WAIT_PEER]
			       ? c.wait_ns[GANTRY_COMM_WAIT_PROXY]
			       : c.wait_ns[GANTRY_COMM_WAIT_PEER];
	CHECK_EQ(c.wait_ns[GANTRY_COMM_WAIT_PROXY] + c.wait_ns[GANTRY_COMM_WAIT_PEER], 0);
	return c.wait_ns[GANTRY_COMM_WAIT_DATA];
}

/* Rank 1 comes late, and rank 0 counts nearly all of it, unless it did not run itself: then once more. Odd tries: a
 * transfer. */
static void come_late(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	uint64_t before;
	int64_t word = 1;

	for (uint32_t i = 0; i < LATE_TRIES && load_acquire(&late_seen) < 2; i++) {
		fetch_add_release(&late_met, 1);
		while (load_acquire(&late_met) < 2 * (i + 1))
			sched_yield();
		before = waited(comm, w->transport, i % 2 == 0);
		if (rank == 1)
			sleep_ms(LATE_MS);
		if (i % 2 == 0)
			CHECK_OK(gantry_all_reduce(&word, &word, 1, GANTRY_TYPE_INT64, GANTRY_OP_MAX, comm, s));
		else if (rank == 1)
			CHECK_OK(gantry_send(&word, 1, GANTRY_TYPE_INT64, 0, comm, s));
		else
			CHECK_OK(gantry_recv(&word, 1, GANTRY_TYPE_INT64, 1, comm, s));
		CHECK_OK(gantry_stream_sync(dev, s));
		/* The first of each kind connects. */
		if (rank == 0 && i >= 2 && i % 2 == load_acquire(&late_seen) &&
		    waited(comm, w->transport, i % 2 == 0) - before >= LATE_MS * 900000)
			fetch_add_release(&late_seen, 1);
		CHECK_OK(gantry_barrier(comm, s));
		CHECK_OK(gantry_stream_sync(dev, s));
	}
	CHECK_EQ(load_acquire(&late_seen), 2);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(waiting_times)
{
	static const char *const transports[] = {"shm", "p2p", "net"};

	setenv("GANTRY_IFNAME", "lo", 0);
	for (size_t t = 0; t < 3; t++) {
		struct world w = {.body = come_late, .nranks = 2, .transport = transports[t]};

		late_met = late_seen = 0;
		world_threads(&w, NULL);
		printf("%s: waits are counted\n", transports[t]);
	}
}

TEST(all_transports)
{
	static const char *const transports[] = {"p2p", "shm", "net", "auto", "shm", "net"};
	struct world w = {.body = all_pairs};
	struct gantry_net_counts counts;

	setenv("GANTRY_IFNAME", "lo", 0);
	for (size_t t = 0; t < 6; t++) {
		if (t == 5)
			set_params("GANTRY_NET_STEP", "64k"); /* more steps than a connection's reserve holds */
		for (int n = 1; n <= 5; n += n < 3 ? 1 : 2) {
			w.nranks = n;
			w.channels = t >= 3 ? 3 : 0;
			w.transport = transports[t];
			world_threads(&w, NULL);
			printf("%s, %d ranks: right\n", transports[t], n);
			fflush(stdout);
		}
	}
	if (SANITIZED)
		return;
	/* Large ones are split over channels: their receives are grouped, and they take space beside each other. */
	gantry_transport_net_counts(&counts);
	CHECK(counts.grouped > 0);
	CHECK(counts.grouped < counts.recvs);
	CHECK(counts.pool_mixed > 0);
}
