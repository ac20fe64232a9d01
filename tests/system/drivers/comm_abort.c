/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_abort MODE TRANSPORT: ends of a communicator that nobody waits for, and what is left behind.
 *
 *   abort    a receive whose peer never sends, then a send that it never takes; another thread aborts. The stream is
 *            free within 100 ms, destroying takes less than a second (in one of a few tries: others on this machine can
 *            only make it more), and the peer's communicator can be destroyed too
 *   connect  the same while the call still waits for the peer's own call, to connect
 *   destroy  nothing was aborted: destroying gives up after GANTRY_TIMEOUT because the peer never comes
 *   flood    two processes exchange small messages as fast as they can; one of them is killed, 20 times: the other one
 *            destroys its communicator while messages are half sent and half received
 *   cycles   200 communicators of two ranks, one after the other, used once each: the process is as it was
 */
#include "comm_util.h"

#include <malloc.h>

enum {
	LARGE = 64 << 20,
	CYCLES = 200,
	SMALL = 30000,
	FLOOD = 60000,
	DEPTH = 16,
	FLOODS = 20,
	TRIES = 6,
	BOUND_MS = 40000
};

static struct gantry_unique_id id;
static const char *transport, *mode;
static uint64_t abort_ms; /* release, acquire */
static struct node nodes[2];
static int way;	    /* rank 0 waits in 1: a send, 0: a receive */
static int in_time; /* the last run was as quick as is asked for */

static void *abort_later(void *arg)
{
	struct node *me = arg;

	sleep_ms(200);
	store_release(&abort_ms, now_ms());
	CHECK_OK(gantry_comm_abort(me->comm));
	return NULL;
}

/* Rank 0 waits; rank 1 is there and does nothing until rank 0 is through. */
static pthread_barrier_t both;

static void wait_and_abort(struct node *me, int send)
{
	pthread_t other;
	uint64_t sync_ms, aborted, begun, took;
	int rank = -2;
	char text[256] = "";
	gantry_result r;

	int connecting = strcmp(mode, "connect") == 0;

	if (connecting)
		CHECK_EQ(pthread_create(&other, NULL, abort_later, me), 0);
	r = send ? gantry_send(me->out, LARGE, GANTRY_TYPE_UINT8, 1, me->comm, me->stream)
		 : gantry_recv(me->in, LARGE, GANTRY_TYPE_UINT8, 1, me->comm, me->stream);
	/* Before the connection is there the call itself waits. */
	CHECK_EQ(r, connecting ? GANTRY_ERR_ABORTED : GANTRY_OK);
	if (!connecting)
		CHECK_EQ(pthread_create(&other, NULL, abort_later, me), 0);
	r = gantry_stream_sync(me->dev, me->stream);
	CHECK(r == GANTRY_OK ||
	      (!connecting && r == GANTRY_ERR_ABORTED)); /* OK: of a GPU, or it began after the abort */
	sync_ms = now_ms();
	pthread_join(other, NULL);
	aborted = load_acquire(&abort_ms);
	CHECK(aborted && sync_ms >= aborted);
	r = gantry_comm_error(me->comm, &rank, text, sizeof(text));
	CHECK_STR(gantry_result_name(r), "ERR_ABORTED");
	CHECK_EQ(gantry_send(me->out, 1, GANTRY_TYPE_UINT8, 1, me->comm, me->stream), GANTRY_ERR_ABORTED);
	begun = gantry_now_ns();
	CHECK_OK(gantry_comm_destroy(me->comm));
	took = (gantry_now_ns() - begun) / 1000;
	printf("{\"mode\": \"%s\", \"transport\": \"%s\", \"waits\": \"%s\", \"sync_ms\": %llu, \"destroy_us\": "
	       "%llu}\n",
	       mode, transport, send ? "send" : "recv", (unsigned long long)(sync_ms - aborted),
	       (unsigned long long)took);
	in_time = sync_ms - aborted <= 100 && took < 1000000;
	me->comm = NULL;
}

static void wait_for_nobody(struct node *me)
{
	uint64_t begun = now_ms(), took;
	gantry_result r;

	CHECK_OK(gantry_recv(me->in, LARGE, GANTRY_TYPE_UINT8, 1, me->comm, me->stream));
	r = gantry_comm_destroy(me->comm);
	took = now_ms() - begun;
	printf("{\"mode\": \"%s\", \"transport\": \"%s\", \"result\": \"%s\", \"destroy_ms\": %llu}\n", mode, transport,
	       gantry_result_name(r), (unsigned long long)took);
	CHECK_EQ(r, GANTRY_ERR_TIMEOUT);
	CHECK(took < BOUND_MS); /* GANTRY_CALL_TIMEOUT=1s; otherwise it would wait for ever */
	me->comm = NULL;
}

static void *rank_main(void *arg)
{
	int rank = (int)(intptr_t)arg;
	struct node *me = &nodes[rank];

	node_open(me, &id, rank, 2, transport, 0, LARGE);
	if (strcmp(mode, "connect") != 0)
		CHECK_OK(node_exchange(me, 1, 1000, 0));
	if (rank == 0 && strcmp(mode, "destroy") == 0)
		wait_for_nobody(me);
	else if (rank == 0)
		wait_and_abort(me, way);
	pthread_barrier_wait(&both);
	if (rank == 1) { /* the other one has left: whatever it says about that, it must not wait for it */
		uint64_t begun = now_ms();
		gantry_result r = gantry_comm_destroy(me->comm);

		printf("{\"mode\": \"%s\", \"peer\": \"%s\", \"destroy_ms\": %llu}\n", mode, gantry_result_name(r),
		       (unsigned long long)(now_ms() - begun));
		CHECK(now_ms() - begun < BOUND_MS); /* GANTRY_TIMEOUT=100s, unless the mode is destroy */
		me->comm = NULL;
	}
	node_close(me);
	return NULL;
}

static void run_pair(int send)
{
	way = send;
	abort_ms = 0;
	CHECK_EQ(pthread_barrier_init(&both, NULL, 2), 0);
	CHECK_OK(gantry_unique_id_create(&id));
	ranks_thread(2, rank_main);
	pthread_barrier_destroy(&both);
}

static struct shared {
	struct gantry_unique_id id;
	uint32_t have_id, rounds; /* release, acquire */
} * sh;

/* Without pauses, so that there is always something on its way. */
static void flood_rank(int rank)
{
	struct node me;
	gantry_result r = GANTRY_OK;
	uint64_t begun;

	if (rank == 0) {
		CHECK_OK(gantry_unique_id_create(&sh->id));
		store_release(&sh->have_id, 1);
	}
	while (!load_acquire(&sh->have_id))
		sleep_ms(1);
	node_open(&me, &sh->id, rank, 2, transport, 0, DEPTH * FLOOD);
	while (r == GANTRY_OK) {
		CHECK_OK(gantry_group_start());
		for (int i = 0; i < DEPTH && r == GANTRY_OK; i++) {
			r = gantry_send(me.out + i * FLOOD, FLOOD, GANTRY_TYPE_UINT8, !rank, me.comm, me.stream);
			if (r == GANTRY_OK)
				r = gantry_recv(me.in + i * FLOOD, FLOOD, GANTRY_TYPE_UINT8, !rank, me.comm, me.stream);
		}
		if (gantry_group_end() != GANTRY_OK || gantry_comm_error(me.comm, NULL, NULL, 0) != GANTRY_OK)
			break;
		fetch_add_relaxed(&sh->rounds, 1);
	}
	r = gantry_stream_sync(me.dev, me.stream);
	CHECK(r == GANTRY_OK || r == gantry_comm_error(me.comm, NULL, NULL, 0));
	begun = now_ms();
	CHECK_EQ(node_close(&me), GANTRY_ERR_PEER_LOST);
	CHECK(now_ms() - begun < BOUND_MS); /* GANTRY_TIMEOUT=100s */
}

static int flood(void)
{
	uint64_t rounds = 0;
	int failed = 0;

	sh = share_memory(sizeof(*sh));
	for (int i = 0; i < FLOODS; i++) {
		pid_t pid[2];

		memset(sh, 0, sizeof(*sh));
		ranks_fork(2, flood_rank, pid);
		while (load_relaxed(&sh->rounds) < 4)
			sleep_ms(1);
		sleep_ms((unsigned)(i % 10));
		CHECK_EQ(kill(pid[i % 2], SIGKILL), 0);
		failed |= pair_reap(pid[i % 2], SIGKILL) | pair_reap(pid[!(i % 2)], 0);
		rounds += sh->rounds;
	}
	printf("{\"mode\": \"flood\", \"transport\": \"%s\", \"killed\": %d, \"messages\": %llu}\n", transport, FLOODS,
	       (unsigned long long)rounds * DEPTH);
	return failed;
}

static void *cycle_main(void *arg)
{
	struct node me;

	node_open(&me, &id, (int)(intptr_t)arg, 2, transport, 0, SMALL);
	CHECK_OK(node_exchange(&me, 1, SMALL, 7));
	CHECK_OK(node_close(&me));
	return NULL;
}

static void cycles(void)
{
	int fds = pair_fds(), threads = pair_threads();
	uint64_t begun = now_ms();
	size_t middle = 0, end;

	for (int i = 1; i <= CYCLES; i++) {
		CHECK_OK(gantry_unique_id_create(&id));
		ranks_thread(2, cycle_main);
		if (i == CYCLES / 2) {
			settle(fds, threads, "half-way");
			middle = mallinfo2().uordblks;
		}
	}
	settle(fds, threads, "at the end");
	end = mallinfo2().uordblks;
	printf("{\"mode\": \"cycles\", \"transport\": \"%s\", \"cycles\": %d, \"ms\": %llu, \"fds\": %d, \"threads\": "
	       "%d, "
	       "\"heap_halfway\": %zu, \"heap_end\": %zu}\n",
	       transport, CYCLES, (unsigned long long)(now_ms() - begun), pair_fds(), pair_threads(), middle, end);
	CHECK(end <=
	      middle + 16384); /* 100 cycles: the allocator's own to and fro is some KiB, a lost block per cycle more */
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	mode = argv[1];
	transport = argv[2];
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(PAIR_ALARM_S);
	if (strcmp(mode, "cycles") == 0) {
		cycles();
		return 0;
	}
	if (strcmp(mode, "flood") == 0)
		return flood();
	if (strcmp(mode, "destroy") == 0) {
		run_pair(0);
		return 0;
	}
	for (int send = 0; send < 2; send++) {
		in_time = 0;
		for (int i = 0; i < TRIES && !in_time; i++)
			run_pair(send);
		CHECK(in_time);
	}
	return 0;
}
