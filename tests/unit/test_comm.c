/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator: ranks as threads, all transports, groups, odd sizes, errors. Every byte is checked. */
#include "gantry/comm.h"
#include "test.h"

enum { RANKS_MAX = 8, GUARD = 64 };

struct world {
	struct gantry_unique_id id;
	int nranks, channels;
	const char *transport;
	void (*body)(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		     struct gantry_stream *s);
};
struct rank {
	struct world *w;
	int rank;
};

static void *rank_main(void *arg)
{
	struct rank *me = arg;
	struct gantry_device *dev;
	struct gantry_stream *s;
	struct gantry_comm *comm;
	struct gantry_comm_config config = {.struct_size = sizeof(config),
					    .id = me->w->id,
					    .rank = me->rank,
					    .nranks = me->w->nranks,
					    .transport = me->w->transport,
					    .channels = me->w->channels};

	CHECK_EQ(gantry_device_open(GANTRY_DEVICE_HOST, 0, &dev), GANTRY_OK);
	CHECK_EQ(gantry_stream_create(dev, &s), GANTRY_OK);
	config.device = dev;
	CHECK_EQ(gantry_comm_init(&config, &comm), GANTRY_OK);
	me->w->body(me->w, me->rank, comm, dev, s);
	gantry_stream_destroy(dev, s);
	gantry_device_close(dev);
	return NULL;
}

static void run(struct world *w)
{
	pthread_t t[RANKS_MAX];
	struct rank r[RANKS_MAX];

	CHECK_EQ(gantry_unique_id_create(&w->id), GANTRY_OK);
	for (int i = 0; i < w->nranks; i++) {
		r[i] = (struct rank){w, i};
		CHECK_EQ(pthread_create(&t[i], NULL, rank_main, &r[i]), 0);
	}
	for (int i = 0; i < w->nranks; i++)
		pthread_join(t[i], NULL);
}

/* What rank `from` sends to rank `to` at position i of round k: arithmetic of its own. */
static unsigned char expect(int from, int to, size_t i, int k)
{
	return (unsigned char)(i * 7 + i / 251 + (size_t)(from * 31 + to * 17 + k * 101));
}

/* Everybody to everybody, itself included, in one group and in an order that suits nobody. */
static void all_pairs(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	static const size_t sizes[] = {0, 1, 7, 8, 9, 1023, 4097, 65537, 1 << 20, (3 << 20) + 5};
	int n = w->nranks;
	unsigned char *out[RANKS_MAX], *in[RANKS_MAX];
	size_t max = (3 << 20) + 5 + GUARD, nsizes = sizeof(sizes) / sizeof(sizes[0]);
	struct gantry_stream *given = s, *own;

	if (SANITIZED) /* the large ones add time and no other paths */
		nsizes -= 2;
	CHECK_EQ(gantry_stream_create(dev, &own), GANTRY_OK);

	for (int p = 0; p < n; p++) {
		out[p] = malloc(max);
		in[p] = malloc(max);
	}
	for (size_t z = 0; z < nsizes; z++) {
		size_t size = sizes[z], wrong = 0;

		for (int p = 0; p < n; p++) {
			for (size_t i = 0; i < size; i++)
				out[p][i] = expect(rank, p, i, (int)z);
			memset(in[p], 0xee, size + GUARD);
		}
		/* A stream of its own for each size: launches stay in order, and the one before may be gone. */
		if (z % 3 == 1) {
			gantry_stream_destroy(dev, own);
			CHECK_EQ(gantry_stream_create(dev, &own), GANTRY_OK);
		}
		s = z % 3 ? own : given;
		CHECK_EQ(gantry_group_start(), GANTRY_OK);
		for (int p = 0; p < n; p++)
			CHECK_EQ(gantry_send(out[(n - p + rank) % n], size, GANTRY_TYPE_UINT8, (n - p + rank) % n, comm,
					     s),
				 GANTRY_OK);
		for (int p = n; p-- > 0;)
			CHECK_EQ(gantry_recv(in[p], size, GANTRY_TYPE_UINT8, p, comm, s), GANTRY_OK);
		CHECK_EQ(gantry_group_end(), GANTRY_OK);
		CHECK_EQ(gantry_stream_sync(dev, s), GANTRY_OK);
		CHECK_EQ(gantry_comm_error(comm, NULL, NULL, 0), GANTRY_OK);
		for (int p = 0; p < n; p++) {
			for (size_t i = 0; i < size; i++)
				wrong += in[p][i] != expect(p, rank, i, (int)z);
			for (size_t i = size; i < size + GUARD; i++)
				wrong += in[p][i] != 0xee;
		}
		CHECK_EQ(wrong, 0);
	}
	gantry_stream_destroy(dev, own);
	CHECK_EQ(gantry_comm_destroy(comm), GANTRY_OK);
	for (int p = 0; p < n; p++) {
		free(out[p]);
		free(in[p]);
	}
}

TEST(all_transports)
{
	static const char *const transports[] = {"p2p", "shm", "net", "auto", "shm", "net"};
	struct world w = {.body = all_pairs};

	setenv("GANTRY_IFNAME", "lo", 0);
	for (size_t t = 0; t < 6; t++) {
		for (int n = 1; n <= 5; n += n < 3 ? 1 : 2) {
			w.nranks = n;
			w.channels = t >= 3 ? 3 : 0;
			w.transport = transports[t];
			run(&w);
			printf("%s, %d ranks: right\n", transports[t], n);
			fflush(stdout);
		}
	}
}
