/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a communicator on host devices: threads of this process, each of which runs the same body. */
#ifndef GANTRY_TESTS_COMM_WORLD_H
#define GANTRY_TESTS_COMM_WORLD_H

#include "gantry/comm.h"
#include "test.h"

enum { WORLD_MOST = 16 };

struct world {
	struct gantry_unique_id id;
	int nranks, channels;
	const char *transport;
	/* Destroys the communicator. */
	void (*body)(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		     struct gantry_stream *s);
	pthread_barrier_t all;	/* with a middle: everybody is where the scenario wants it */
	pthread_barrier_t over; /* and may go on */
	char dir[64];
	const void *user;
};

static inline void world_rank(struct world *w, int rank)
{
	struct gantry_comm_config config = {.struct_size = sizeof(config),
					    .id = w->id,
					    .rank = rank,
					    .nranks = w->nranks,
					    .transport = w->transport,
					    .channels = w->channels};
	struct gantry_stream *s;
	struct gantry_comm *comm;

	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &config.device));
	CHECK_OK(gantry_stream_create(config.device, &s));
	CHECK_OK(gantry_comm_init(&config, &comm));
	w->body(w, rank, comm, config.device, s);
	gantry_stream_destroy(config.device, s);
	gantry_device_close(config.device);
}

struct world_thread {
	struct world *w;
	int rank;
};

static inline void *world_thread_main(void *arg)
{
	struct world_thread *t = arg;

	world_rank(t->w, t->rank);
	return NULL;
}

/* All ranks, from their id to their end; `middle` runs when all have come to `all`. */
static inline void world_threads(struct world *w, void (*middle)(struct world *w))
{
	struct world_thread args[WORLD_MOST];
	pthread_t t[WORLD_MOST];

	CHECK_OK(gantry_unique_id_create(&w->id));
	pthread_barrier_init(&w->all, NULL, (unsigned)w->nranks + 1);
	pthread_barrier_init(&w->over, NULL, (unsigned)w->nranks + 1);
	for (int i = 0; i < w->nranks; i++)
		args[i] = (struct world_thread){.w = w, .rank = i};
	threads_start(t, w->nranks, world_thread_main, args, sizeof(args[0]));
	if (middle) {
		pthread_barrier_wait(&w->all);
		middle(w);
		pthread_barrier_wait(&w->over);
	}
	threads_join(t, w->nranks);
	pthread_barrier_destroy(&w->all);
	pthread_barrier_destroy(&w->over);
}

#endif
