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
#include <sys/resource.h>

#include "base/param.h"

enum { LARGE = 512 << 10, CROSSING = 8, IDLE_MS = 2000, IDLE_TIMES = 6 };

static int rounds;

/* Closed links are seen off in the background, and a thread that has ended may still be listed for a moment. */
static void settle(int fds, const char *when)
{
	uint64_t end = now_ms() + PAIR_PATIENCE_MS;

	while ((pair_fds() != fds || pair_threads() != 1) && now_ms() < end)
		sleep_ms(5);
	if (pair_fds() != fds || pair_threads() != 1)
		fprintf(stderr, "%s: %d fds (%d before), %d threads (1 before)\n", when, pair_fds(), fds,
			pair_threads());
	CHECK_EQ(pair_fds(), fds);
	CHECK_EQ(pair_threads(), 1);
}

static void self_cycle(uint32_t seed, uint8_t *from, uint8_t *into)
{
	struct pair_side s = {.net = gantry_net_tcp()};
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *listen = NULL, *send = NULL, *recv = NULL, *r[4];
	const struct gantry_net_ops *ops = s.net->ops;

	pair_init(&s);
	CHECK_OK(ops->listen(s.net, s.ctx, 0, handle, &listen));
	while (!send || !recv) {
		if (!send)
			CHECK_OK(ops->connect(s.net, s.ctx, 0, handle, &send, NULL));
		if (!recv)
			CHECK_OK(ops->accept(s.net, listen, &recv, NULL));
		if (!send || !recv)
			sleep_ms(1);
	}
	pattern_fill(from, LARGE, seed);
	r[0] = pair_irecv(&s, recv, into, 1000, 0);
	r[1] = pair_irecv(&s, recv, into + 1000, LARGE, 0);
	r[2] = pair_isend(&s, send, from, 1000, 0);
	r[3] = pair_isend(&s, send, from, LARGE, 0);
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
	CHECK_OK(ops->close_send(s.net, send));
	CHECK_OK(ops->close_recv(s.net, recv));
	CHECK_OK(ops->close_listen(s.net, listen));
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
			settle(fds, "half-way");
			middle = mallinfo2().uordblks;
		}
	}
	settle(fds, "at the end");
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
	void *listen[CROSSING], *send[CROSSING] = {0}, *recv[CROSSING] = {0}, *tx[CROSSING], *rx[CROSSING];
	uint8_t handle[CROSSING][GANTRY_NET_HANDLE_SIZE];
	int from[CROSSING], into[CROSSING], left = 2 * CROSSING, in_turn = round % 2;
	uint64_t began;

	pair_init(s);
	for (int i = 0; i < CROSSING; i++)
		CHECK_OK(ops->listen(s->net, s->ctx, 0, s->shared->handle[s->self][i], &listen[i]));
	pair_step(s, (uint32_t)round * 3 + 1);
	pair_wait_step(s->shared, s->other, (uint32_t)round * 3 + 1);
	memcpy(handle, s->shared->handle[s->other], sizeof(handle));
	for (began = now_ms(); left && now_ms() - began < PAIR_PATIENCE_MS;) {
		for (int i = 0; i < CROSSING; i++) {
			if (!send[i] && (!in_turn || i == 0 || send[i - 1])) {
				CHECK_OK(ops->connect(s->net, s->ctx, 0, handle[i], &send[i], NULL));
				left -= send[i] != NULL;
			}
			if (!recv[i] && (!in_turn || send[CROSSING - 1])) {
				CHECK_OK(ops->accept(s->net, listen[i], &recv[i], NULL));
				left -= recv[i] != NULL;
			}
		}
		sleep_ms(1);
	}
	for (int i = 0; i < CROSSING; i++)
		if (!send[i] || !recv[i])
			fprintf(stderr, "round %d, side %c, connection %d: %s%s\n", round, 'A' + s->self, i,
				send[i] ? "" : "connect does not end ", recv[i] ? "" : "accept does not end");
	CHECK_EQ(left, 0);
	for (int i = 0; i < CROSSING; i++) {
		from[i] = round * 1000 + i * 10 + s->self;
		rx[i] = pair_irecv(s, recv[i], &into[i], sizeof(into[i]), 0);
		tx[i] = pair_isend(s, send[i], &from[i], sizeof(from[i]), 0);
	}
	for (int i = 0; i < CROSSING; i++) {
		pair_wait(s, tx[i]);
		pair_wait(s, rx[i]);
		CHECK_EQ(into[i], round * 1000 + i * 10 + s->other);
	}
	pair_step(s, (uint32_t)round * 3 + 2);
	pair_wait_step(s->shared, s->other, (uint32_t)round * 3 + 2);
	for (int i = 0; i < CROSSING; i++) {
		CHECK_OK(ops->close_send(s->net, send[i]));
		CHECK_OK(ops->close_recv(s->net, recv[i]));
		CHECK_OK(ops->close_listen(s->net, listen[i]));
	}
	CHECK_OK(ops->finalize(s->net, s->ctx));
	s->ctx = NULL;
}

static void crossing_side(struct pair_side *s)
{
	int fds = pair_fds();

	for (int round = 0; round < rounds; round++) {
		crossing_round(s, round);
		settle(fds, "crossing");
		pair_step(s, (uint32_t)round * 3 + 3);
		pair_wait_step(s->shared, s->other, (uint32_t)round * 3 + 3);
	}
}

/* Connected in both directions, A first. */
static void connect_both(struct pair_side *s, void **listen, void **send, void **recv)
{
	pair_init(s);
	*listen = pair_listen(s, 0);
	if (s->self == 0)
		*send = pair_connect(s, 0);
	*recv = pair_accept(s, *listen);
	if (s->self == 1)
		*send = pair_connect(s, 0);
}

static void closing_side(struct pair_side *s)
{
	void *listen, *send, *recv;
	uint8_t *data = calloc(16, LARGE);
	uint64_t began, took;

	CHECK(data);
	connect_both(s, &listen, &send, &recv);
	for (int i = 0; i < 8; i++) {
		pair_irecv(s, recv, data + (size_t)i * LARGE, LARGE, 0);
		pair_isend(s, send, data + (size_t)(8 + i) * LARGE, i % 2 ? LARGE : 60000, 0);
	}
	pair_step(s, 1);
	while (!__atomic_load_n(&s->shared->event, __ATOMIC_ACQUIRE))
		sleep_ms(1);
	began = now_ms();
	CHECK_OK(s->net->ops->close_send(s->net, send));
	CHECK_OK(s->net->ops->close_recv(s->net, recv));
	CHECK_OK(s->net->ops->close_listen(s->net, listen));
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

static uint64_t cpu_us(void)
{
	struct rusage u;

	CHECK(getrusage(RUSAGE_SELF, &u) == 0);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Others on this machine can only make it more: the other side may have come late, or page faults cost extra. */
static void measure_idle(struct pair_side *s)
{
	uint64_t(*number)[8] = s->shared->number;

	for (uint32_t i = 0; i < IDLE_TIMES && !(i && number[0][0] && number[1][0]); i++) {
		uint64_t before, used;

		pair_step(s, 2 * i + 1);
		pair_wait_step(s->shared, s->other, 2 * i + 1);
		sleep_ms(200);
		before = cpu_us();
		sleep_ms(IDLE_MS);
		used = cpu_us() - before;
		printf("side %c: idle for %d ms, %d us of CPU (%.2f %%)\n", 'A' + s->self, IDLE_MS, (int)used,
		       (double)used / 10 / IDLE_MS);
		fflush(stdout);
		if (used < IDLE_MS * 1000 / 100)
			number[s->self][0] = 1;
		pair_step(s, 2 * i + 2);
		pair_wait_step(s->shared, s->other, 2 * i + 2);
	}
	CHECK(number[s->self][0]);
}

static void idle_side(struct pair_side *s)
{
	static uint8_t small[100];
	uint8_t *large = malloc(LARGE);
	void *listen, *send, *recv;

	CHECK(large);
	connect_both(s, &listen, &send, &recv);
	pair_irecv(s, recv, small, sizeof(small), 0);
	pair_irecv(s, recv, large, LARGE, 0);
	measure_idle(s);
	pair_step(s, 1000);
	pair_wait_step(s->shared, s->other, 1000);
	s->net->ops->close_send(s->net, send);
	s->net->ops->close_recv(s->net, recv);
	s->net->ops->close_listen(s->net, listen);
	free(large);
}

int main(int argc, char **argv)
{
	struct pair_shared *shared = pair_share();
	const char *mode = argc > 1 ? argv[1] : "";
	void (*run)(struct pair_side *) = idle_side;
	pid_t a, b;
	int failures = 0;

	rounds = argc > 2 ? atoi(argv[2]) : 10;
	if (strcmp(mode, "cycles") == 0)
		return cycles();
	if (strcmp(mode, "close") == 0) {
		a = pair_fork(closing_side, shared, 0, NULL);
		b = pair_fork(closing_side, shared, 1, NULL);
		pair_wait_step(shared, 0, 1);
		pair_wait_step(shared, 1, 1);
		CHECK(kill(b, SIGSTOP) == 0);
		__atomic_store_n(&shared->event, 1, __ATOMIC_RELEASE);
		failures += pair_reap(a, 0);
		CHECK(kill(b, SIGCONT) == 0);
		return failures + pair_reap(b, 0) != 0;
	}
	if (strcmp(mode, "crossing") == 0)
		run = crossing_side;
	else if (strcmp(mode, "unaccepted") == 0)
		run = unaccepted_side;
	else
		CHECK_STR(mode, "idle");
	a = pair_fork(run, shared, 0, NULL);
	b = pair_fork(run, shared, 1, NULL);
	failures += pair_reap(a, 0);
	failures += pair_reap(b, 0);
	return failures != 0;
}
