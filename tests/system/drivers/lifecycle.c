/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifecycle MODE: what is left behind, and what it costs to be there.
 *
 *   cycles N    init to finalize N times in one process that talks to itself: no fd, thread or byte stays
 *   crossing N  two processes open eight connections to each other at the same time, N times over
 *   close       closing with requests in flight while the peer is stopped: at once, and the process ends
 *   unaccepted  messages sent on a connection that the peer has not accepted yet, for three deadlines: they arrive
 *   idle        two connected processes with receives posted use less than 1 % of a CPU, in one of a few measurements
 */
#include "pair.h"

#include <malloc.h>

enum { LARGE = 512 << 10, CROSSING = 8, IDLE_MS = 2000 };

static int rounds;

static void self_cycle(uint32_t seed, uint8_t *from, uint8_t *into)
{
	struct pair_side s = {.net = gantry_net_tcp()};
	const struct gantry_net_ops *ops = s.net->ops;
	struct pair_ends e;
	void *r[4];

	pair_init(&s);
	CHECK_OK(pair_open_self(&s, &e));
	pattern_fill(from, LARGE, seed);
	r[0] = pair_irecv(&s, e.recv, into, 1000, 0);
	r[1] = pair_irecv(&s, e.recv, into + 1000, LARGE, 0);
	r[2] = pair_isend(&s, e.send, from, 1000, 0);
	r[3] = pair_isend(&s, e.send, from, LARGE, 0);
	for (int done = 0, over[4] = {0}; done < 4;) {
		for (int i = 0; i < 4; i++) {
			if (over[i])
				continue;
			CHECK_OK(ops->test(s.net, r[i], &over[i], NULL));
			done += over[i];
		}
	}
	CHECK_PATTERN(into, 1000, seed);
	CHECK_PATTERN(into + 1000, LARGE, seed);
	pair_close_ends(&s, &e);
	CHECK_OK(ops->finalize(s.net, s.ctx));
}

static int cycles(void)
{
	uint8_t *from = malloc(LARGE), *into = malloc(LARGE + 1000);
	size_t middle = 0, end;
	int fds = pair_fds();

	CHECK(from && into);
	for (int i = 1; i <= rounds; i++) {
		self_cycle((uint32_t)i, from, into);
		if (i == rounds / 2) {
			settle(fds, 1, "half-way");
			middle = mallinfo2().uordblks;
		}
	}
	settle(fds, 1, "at the end");
	end = mallinfo2().uordblks;
	printf("%d cycles: %d fds, 1 thread, %zu bytes in use half-way, %zu at the end\n", rounds, fds, middle, end);
	CHECK(end <=
	      middle + 8192); /* one lost block per cycle is 32 bytes and more; lifecycle.sh keeps free ones out */
	free(from);
	free(into);
	return 0;
}

/*
 * All connections at the same moment in both directions, or one after the other on each side: who shares whose link
 * must come out the same on both sides.
 */
static void crossing_round(struct pair_side *s, int round)
{
	const struct gantry_net_ops *ops = s->net->ops;
	struct pair_ends e[CROSSING] = {{.listen = NULL}};
	void *tx[CROSSING], *rx[CROSSING];
	uint8_t handle[CROSSING][GANTRY_NET_HANDLE_SIZE];
	int from[CROSSING], into[CROSSING], left = 2 * CROSSING, in_turn = round % 2;
	uint64_t began;

	pair_init(s);
	for (int i = 0; i < CROSSING; i++)
		CHECK_OK(ops->listen(s->net, s->ctx, 0, s->shared->handle[s->self][i], &e[i].listen));
	pair_meet(s, (uint32_t)round * 3 + 1);
	memcpy(handle, s->shared->handle[s->other], sizeof(handle));
	for (began = now_ms(); left && now_ms() - began < PAIR_PATIENCE_MS;) {
		for (int i = 0; i < CROSSING; i++) {
			if (!e[i].send && (!in_turn || i == 0 || e[i - 1].send)) {
				CHECK_OK(ops->connect(s->net, s->ctx, 0, handle[i], &e[i].send, NULL));
				left -= e[i].send != NULL;
			}
			if (!e[i].recv && (!in_turn || e[CROSSING - 1].send)) {
				CHECK_OK(ops->accept(s->net, e[i].listen, &e[i].recv, NULL));
				left -= e[i].recv != NULL;
			}
		}
		sleep_ms(1);
	}
	for (int i = 0; i < CROSSING; i++)
		if (!e[i].send || !e[i].recv)
			fprintf(stderr, "round %d, side %c, connection %d: %s%s\n", round, 'A' + s->self, i,
				e[i].send ? "" : "connect does not end ", e[i].recv ? "" : "accept does not end");
	CHECK_EQ(left, 0);
	for (int i = 0; i < CROSSING; i++) {
		from[i] = round * 1000 + i * 10 + s->self;
		rx[i] = pair_irecv(s, e[i].recv, &into[i], sizeof(into[i]), 0);
		tx[i] = pair_isend(s, e[i].send, &from[i], sizeof(from[i]), 0);
	}
	for (int i = 0; i < CROSSING; i++) {
		pair_wait(s, tx[i]);
		pair_wait(s, rx[i]);
		CHECK_EQ(into[i], round * 1000 + i * 10 + s->other);
	}
	pair_meet(s, (uint32_t)round * 3 + 2);
	for (int i = 0; i < CROSSING; i++)
		pair_close_ends(s, &e[i]);
	CHECK_OK(ops->finalize(s->net, s->ctx));
	s->ctx = NULL;
}

static void crossing_side(struct pair_side *s)
{
	int fds = pair_fds();

	for (int round = 0; round < rounds; round++) {
		crossing_round(s, round);
		settle(fds, 1, "crossing");
		pair_meet(s, (uint32_t)round * 3 + 3);
	}
}

static void closing_side(struct pair_side *s)
{
	struct pair_ends e;
	uint8_t *data = calloc(16, LARGE);
	uint64_t began, took;

	CHECK(data);
	pair_init(s);
	e = pair_open_ends(s, 0);
	for (int i = 0; i < 8; i++) {
		pair_irecv(s, e.recv, data + (size_t)i * LARGE, LARGE, 0);
		pair_isend(s, e.send, data + (size_t)(8 + i) * LARGE, i % 2 ? LARGE : 60000, 0);
	}
	pair_step(s, 1);
	while (!load_acquire(&s->shared->event))
		sleep_ms(1);
	began = now_ms();
	pair_close_ends(s, &e);
	CHECK_OK(s->net->ops->finalize(s->net, s->ctx));
	s->ctx = NULL;
	took = now_ms() - began;
	printf("closed in %d ms with a stopped peer\n", (int)took);
	CHECK(took < 5000);			/* who waited for the peer would wait for 10 s */
	memset(data, 0xff, (size_t)16 * LARGE); /* ours again: nothing may read or write it, ASan sees */
	free(data);
}

/* A connects and sends; B, which is alive, comes round to accept and receive much later. */
static void unaccepted_side(struct pair_side *s)
{
	uint8_t *data = malloc(LARGE);
	void *listen = NULL, *comm, *small, *large;

	CHECK(data);
	pair_init(s);
	if (s->self == 0) {
		comm = pair_connect(s, 0);
		pattern_fill(data, LARGE, 1);
		small = pair_isend(s, comm, data, 1000, 0);
		large = pair_isend(s, comm, data, LARGE, 0);
		pair_wait(s, small);
		pair_wait(s, large);
		pair_wait_step(s->shared, 1, 1);
		CHECK_OK(s->net->ops->close_send(s->net, comm));
	} else {
		listen = pair_listen(s, 0);
		sleep_ms((unsigned)(3 * gantry_params()->timeout / 1000000));
		comm = pair_accept(s, listen);
		pair_wait(s, pair_irecv(s, comm, data, 1000, 0));
		CHECK_PATTERN(data, 1000, 1);
		pair_wait(s, pair_irecv(s, comm, data, LARGE, 0));
		CHECK_PATTERN(data, LARGE, 1);
		printf("what was sent before accept has arrived\n");
		pair_step(s, 1);
		CHECK_OK(s->net->ops->close_recv(s->net, comm));
		CHECK_OK(s->net->ops->close_listen(s->net, listen));
	}
	free(data);
}

static void idle_side(struct pair_side *s)
{
	static uint8_t small[100];
	uint8_t *large = malloc(LARGE);
	struct pair_ends e;

	CHECK(large);
	pair_init(s);
	e = pair_open_ends(s, 0);
	pair_irecv(s, e.recv, small, sizeof(small), 0);
	pair_irecv(s, e.recv, large, LARGE, 0);
	pair_measure_idle(s, "receives posted", IDLE_MS);
	pair_meet(s, 1000);
	pair_close_ends(s, &e);
	free(large);
}

int main(int argc, char **argv)
{
	struct pair_shared *shared = pair_share();
	const char *mode = argc > 1 ? argv[1] : "";
	void (*run)(struct pair_side *) = idle_side;
	int failures;

	rounds = argc > 2 ? atoi(argv[2]) : 10;
	if (strcmp(mode, "cycles") == 0)
		return cycles();
	if (strcmp(mode, "close") == 0) {
		pair_fork_both(shared, closing_side, closing_side);
		pair_wait_step(shared, 0, 1);
		pair_wait_step(shared, 1, 1);
		CHECK(kill(shared->pid[1], SIGSTOP) == 0);
		store_release(&shared->event, 1);
		failures = pair_reap(shared->pid[0], 0);
		CHECK(kill(shared->pid[1], SIGCONT) == 0);
		return failures | pair_reap(shared->pid[1], 0);
	}
	if (strcmp(mode, "crossing") == 0)
		run = crossing_side;
	else if (strcmp(mode, "unaccepted") == 0)
		run = unaccepted_side;
	else
		CHECK_STR(mode, "idle");
	pair_fork_both(shared, run, run);
	return pair_reap_both(shared);
}
