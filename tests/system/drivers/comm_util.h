/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the drivers of the communicator's system tests share: a rank with its device, stream and buffers, exchanges
 * whose every byte is checked, and an id that travels through a file.
 */
#ifndef GANTRY_TESTS_COMM_UTIL_H
#define GANTRY_TESTS_COMM_UTIL_H

#include "pair.h"

#include "gantry/comm.h"

/* One rank of one communicator; its calls come from one thread. */
struct node {
	struct gantry_device *dev;
	struct gantry_stream *stream;
	struct gantry_comm *comm;
	int rank, n;
	size_t room;	   /* per peer */
	uint8_t *out, *in; /* n * room each */
};

/* Tests with many ranks in a process need what the machine allows, not what shells are given. */
static inline void node_raise_limits(void)
{
	struct rlimit l;

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &l), 0);
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_NOFILE, &l);
}

static inline gantry_result node_try_open(struct node *me, const struct gantry_unique_id *id, int rank, int n,
					  const char *transport, int channels, size_t room)
{
	struct gantry_comm_config config = {.struct_size = sizeof(config),
					    .id = *id,
					    .rank = rank,
					    .nranks = n,
					    .transport = transport,
					    .channels = channels};
	gantry_result r;

	memset(me, 0, sizeof(*me));
	me->rank = rank;
	me->n = n;
	me->room = room;
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &me->dev));
	CHECK_OK(gantry_stream_create(me->dev, &me->stream));
	config.device = me->dev;
	r = gantry_comm_init(&config, &me->comm);
	me->out = malloc((size_t)n * room + 1);
	me->in = malloc((size_t)n * room + 1);
	CHECK(me->out && me->in);
	return r;
}

static inline void node_open(struct node *me, const struct gantry_unique_id *id, int rank, int n, const char *transport,
			     int channels, size_t room)
{
	CHECK_OK(node_try_open(me, id, rank, n, transport, channels, room));
}

/* What destroying the communicator said. */
static inline gantry_result node_close(struct node *me)
{
	gantry_result r = gantry_comm_destroy(me->comm);

	CHECK_OK(gantry_stream_destroy(me->dev, me->stream));
	gantry_device_close(me->dev);
	free(me->out);
	free(me->in);
	memset(me, 0, sizeof(*me));
	return r;
}

static inline uint32_t node_seed(int from, int to, uint32_t round)
{
	return (uint32_t)from * 7919u + (uint32_t)to * 104729u + round * 1299709u;
}

/* Of a call on a non-blocking communicator that has to connect ranks first: until it is enqueued, or has failed. */
static inline gantry_result node_enqueued(const struct node *me, gantry_result r)
{
	while (r == GANTRY_AGAIN) {
		sched_yield();
		r = gantry_comm_error(me->comm, NULL, NULL, 0);
	}
	return r;
}

/*
 * Sends `size` bytes to each of the peers at a distance of 1 to `reach` and receives as many from those that reach this
 * rank in the same way: a ring with reach 1, everybody to everybody with reach n - 1. Every byte is compared.
 */
static inline gantry_result node_exchange(struct node *me, int reach, size_t size, uint32_t round)
{
	gantry_result r = GANTRY_OK, end;

	CHECK(size <= me->room && reach < me->n);
	for (int d = 1; d <= reach; d++) {
		int to = (me->rank + d) % me->n, from = (me->rank + me->n - d) % me->n;

		pattern_fill(me->out + (size_t)to * me->room, size, node_seed(me->rank, to, round));
		memset(me->in + (size_t)from * me->room, 0xee, size);
	}
	CHECK_OK(gantry_group_start());
	for (int d = 1; d <= reach && r == GANTRY_OK; d++) {
		int to = (me->rank + d) % me->n, from = (me->rank + me->n - d) % me->n;

		r = gantry_send(me->out + (size_t)to * me->room, size, GANTRY_TYPE_UINT8, to, me->comm, me->stream);
		if (r == GANTRY_OK)
			r = gantry_recv(me->in + (size_t)from * me->room, size, GANTRY_TYPE_UINT8, from, me->comm,
					me->stream);
	}
	end = gantry_group_end();
	r = node_enqueued(me, r == GANTRY_OK ? end : r);
	if (r == GANTRY_OK)
		r = gantry_stream_sync(me->dev, me->stream);
	if (r == GANTRY_OK)
		r = gantry_comm_error(me->comm, NULL, NULL, 0);
	for (int d = 1; d <= reach && r == GANTRY_OK; d++) {
		int from = (me->rank + me->n - d) % me->n;

		CHECK_PATTERN(me->in + (size_t)from * me->room, size, node_seed(from, me->rank, round));
	}
	return r;
}

/* n ranks as threads of this process, each given its number, to their end. */
static inline void ranks_thread(int n, void *(*run)(void *rank))
{
	pthread_t threads[256];

	CHECK(n <= 256);
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i), 0);
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

/* The id, in a file for ranks that have nothing else in common: the maker writes it, the others wait for it. */
static inline void id_meet(const char *folder, const char *name, int maker, struct gantry_unique_id *ret_id)
{
	char path[4200], aside[4300];
	FILE *f = NULL;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	snprintf(aside, sizeof(aside), "%s.new", path);
	if (maker) {
		CHECK_OK(gantry_unique_id_create(ret_id));
		f = fopen(aside, "wb");
		CHECK(f && fwrite(ret_id, sizeof(*ret_id), 1, f) == 1 && fclose(f) == 0);
		CHECK_EQ(rename(aside, path), 0);
		return;
	}
	for (uint64_t end = now_ms() + PAIR_PATIENCE_MS; !(f = fopen(path, "rb")) && now_ms() < end;)
		sleep_ms(1);
	CHECK(f && fread(ret_id, sizeof(*ret_id), 1, f) == 1);
	fclose(f);
}

#endif
