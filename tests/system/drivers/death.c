/* SPDX-License-Identifier: Apache-2.0 */
/*
 * death MODE [NETNS_A NETNS_B COMMAND]: two processes with requests of every kind outstanding, then something happens.
 *
 *   kill     B gets SIGKILL
 *   stop     B gets SIGSTOP, and SIGCONT once A has seen its errors
 *   command  the shell command is run (a link goes down, a route is gone); both sides live on
 *   alive    nothing happens for three deadlines, and the users' threads sleep: that is no error
 *
 * Each side has three connections in each direction: on 0 it sends what nobody receives (small ones beyond the eager
 * window, large ones), on 1 it receives what nobody sends, on 2 large messages are on their way.
 */
#include "pair.h"

enum { SMALL = 60000, LARGE = 4 << 20, SMALLS = 24, LARGES = 4, MOVING = 4, PENDING_MAX = 80 };

struct request {
	void *handle;
	int moving; /* 's' or 'r': posted again when it is done */
	int over;
	uint8_t *data;
};

struct state {
	struct pair_side *side;
	struct pair_ends e[3];
	struct request req[PENDING_MAX];
	int n;
	uint8_t *small, *large, *into;
};

static const char *mode;

static void connect_all(struct state *st)
{
	pair_init(st->side);
	for (int i = 0; i < 3; i++)
		st->e[i] = pair_open_ends(st->side, i);
}

static void add(struct state *st, void *handle, int moving, uint8_t *data)
{
	CHECK(st->n < PENDING_MAX);
	st->req[st->n++] = (struct request){.handle = handle, .moving = moving, .data = data};
}

static void post_all(struct state *st)
{
	struct pair_side *s = st->side;

	st->small = malloc((size_t)SMALLS * SMALL);
	st->large = malloc(LARGE);
	st->into = malloc((size_t)(LARGES + MOVING) * LARGE + (size_t)SMALLS * SMALL);
	CHECK(st->small && st->large && st->into);
	for (uint32_t i = 0; i < SMALLS; i++)
		pattern_fill(st->small + i * SMALL, SMALL, i);
	pattern_fill(st->large, LARGE, 99);
	for (int i = 0; i < SMALLS; i++)
		add(st, pair_isend(s, st->e[0].send, st->small + (size_t)i * SMALL, SMALL, 0), 0, NULL);
	for (int i = 0; i < LARGES; i++)
		add(st, pair_isend(s, st->e[0].send, st->large, LARGE, 0), 0, NULL);
	for (int i = 0; i < LARGES; i++)
		add(st, pair_irecv(s, st->e[1].recv, st->into + (size_t)i * LARGE, LARGE, 0), 0, NULL);
	for (int i = 0; i < LARGES; i++) {
		uint8_t *p = st->into + (size_t)LARGES * LARGE + (size_t)i * SMALL;

		add(st, pair_irecv(s, st->e[1].recv, p, SMALL, 0), 0, p);
	}
	for (int i = 0; i < MOVING; i++) {
		uint8_t *p = st->into + (size_t)LARGES * LARGE + (size_t)SMALLS * SMALL + (size_t)i * LARGE;

		add(st, pair_irecv(s, st->e[2].recv, p, LARGE, 0), 'r', p);
		add(st, pair_isend(s, st->e[2].send, st->large, LARGE, 0), 's', NULL);
	}
}

/* Returns the code if the request or its successor failed. */
static gantry_result poll_one(struct state *st, struct request *q, int *ret_moved)
{
	struct pair_side *s = st->side;
	int done = 0;
	gantry_result r = s->net->ops->test(s->net, q->handle, &done, NULL);

	if (r != GANTRY_OK || !done)
		return r;
	*ret_moved = 1;
	if (!q->moving) {
		q->over = 1; /* a small send within the window */
		return GANTRY_OK;
	}
	if (q->moving == 's')
		return s->net->ops->isend(s->net, st->e[2].send, st->large, LARGE, 0, NULL, &q->handle);
	void *data = q->data;
	size_t size = LARGE;
	int tag = 0;

	return s->net->ops->irecv(s->net, st->e[2].recv, 1, &data, &size, &tag, NULL, &q->handle);
}

/* Every request ends with the same code, which names the peer; none later than the deadline. */
static void until_all_failed(struct state *st)
{
	struct pair_side *s = st->side;
	gantry_result code = GANTRY_OK;
	uint64_t timeout_ms = gantry_params()->timeout / 1000000, last = 0, began = now_ms();
	/* Of a death the kernel tells: that must not take until the deadline, which death.sh puts far away. */
	uint64_t limit = strcmp(mode, "kill") == 0 ? timeout_ms / 2 : pair_silence_ms(timeout_ms);
	int failed = 0, left = st->n;
	char pid[32], text[512] = "";

	snprintf(pid, sizeof(pid), "pid %d", (int)s->shared->pid[s->other]);
	while (left) {
		int moved = 0;

		left = 0;
		for (int i = 0; i < st->n; i++) {
			struct request *q = &st->req[i];
			gantry_result r;

			if (q->over)
				continue;
			r = poll_one(st, q, &moved);
			if (r == GANTRY_OK) {
				left += !q->over;
				continue;
			}
			q->over = 1;
			last = now_ms();
			if (!failed++)
				snprintf(text, sizeof(text), "%s", gantry_last_error());
			if (code != GANTRY_OK && r != code)
				fprintf(stderr, "side %c: request %d: %s (%s), others %s (%s)\n", 'A' + s->self, i,
					gantry_result_name(r), gantry_last_error(), gantry_result_name(code), text);
			CHECK(code == GANTRY_OK || r == code);
			CHECK_HAS(gantry_last_error(), pid);
			code = r;
		}
		if (now_ms() - began > PAIR_PATIENCE_MS + 3 * timeout_ms) {
			fprintf(stderr, "side %c: %d requests still wait, %d failed with %s\n", 'A' + s->self, left,
				failed, gantry_result_name(code));
			exit(1);
		}
		if (!moved)
			sleep_ms(1);
	}
	printf("side %c: %d requests ended with %s (%s) after %d ms\n", 'A' + s->self, failed, gantry_result_name(code),
	       text, (int)(last - s->shared->event_ms));
	fflush(stdout);
	CHECK(load_acquire(&s->shared->event));
	CHECK(gantry_result_is_remote(code));
	CHECK((int64_t)(last - s->shared->event_ms) <= (int64_t)limit);
	CHECK(failed >= LARGES * 3 + 2 * MOVING + 4); /* four and more small sends do not fit the window */
}

static void close_all(struct state *st)
{
	struct pair_side *s = st->side;
	uint64_t began = now_ms();

	for (int i = 0; i < 3; i++)
		pair_close_ends(s, &st->e[i]);
	CHECK_OK(s->net->ops->finalize(s->net, s->ctx));
	s->ctx = NULL;
	CHECK((now_ms() - began) * 1000000 < gantry_params()->timeout / 2); /* nobody is waited for */
	free(st->small);
	free(st->large);
	free(st->into);
}

static void dying_side(struct pair_side *s)
{
	struct state st = {.side = s};

	connect_all(&st);
	pair_meet(s, 1);
	post_all(&st);
	pair_step(s, 2);
	until_all_failed(&st);
	pair_step(s, 3);
	/*
	 * Where both live, whoever is first stays: his end would be another cause for what the other side still has
	 * pending. That one gives up by itself, and if it ends badly, so does the test.
	 */
	for (uint64_t end = now_ms() + PAIR_PATIENCE_MS; strcmp(mode, "command") == 0 && now_ms() < end;) {
		if (load_acquire(&s->shared->step[s->other]) >= 3)
			break;
		sleep_ms(1);
	}
	close_all(&st);
}

/* The main thread sleeps through three deadlines, with a transfer posted; afterwards everything completes. */
static void living_side(struct pair_side *s)
{
	struct state st = {.side = s};
	uint8_t *fill;

	connect_all(&st);
	post_all(&st);
	sleep_ms((unsigned)(3 * gantry_params()->timeout / 1000000));
	pair_meet(s, 1);
	fill = malloc((size_t)LARGE);
	CHECK(fill);
	for (int i = 0; i < SMALLS; i++)
		add(&st, pair_irecv(s, st.e[0].recv, st.into + (size_t)i * SMALL, SMALL, 0), 0, NULL);
	for (int i = 0; i < LARGES; i++)
		add(&st, pair_irecv(s, st.e[0].recv, fill, LARGE, 0), 0, NULL);
	for (int i = 0; i < 2 * LARGES; i++)
		add(&st, pair_isend(s, st.e[1].send, st.small, SMALL, 0), 0, NULL);
	for (int i = 0; i < st.n; i++)
		pair_wait(s, st.req[i].handle);
	for (int i = 0; i < st.n; i++)
		if (st.req[i].moving == 'r')
			CHECK_PATTERN(st.req[i].data, LARGE, 99);
	for (int i = 0; i < LARGES; i++)
		CHECK_PATTERN(st.into + (size_t)LARGES * LARGE + (size_t)i * SMALL, SMALL, 0);
	printf("side %c: nothing failed in three deadlines of sleep\n", 'A' + s->self);
	fflush(stdout);
	pair_meet(s, 2);
	close_all(&st);
	free(fill);
}

static void happened(struct pair_shared *shared)
{
	shared->event_ms = now_ms();
	store_release(&shared->event, 1);
}

int main(int argc, char **argv)
{
	struct pair_shared *shared = pair_share();
	int alive, failures = 0;
	pid_t a, b;

	CHECK(argc == 2 || argc == 5);
	mode = argv[1];
	alive = strcmp(mode, "alive") == 0;
	a = pair_fork(alive ? living_side : dying_side, shared, 0, argc == 5 ? argv[2] : NULL);
	b = pair_fork(alive ? living_side : dying_side, shared, 1, argc == 5 ? argv[3] : NULL);
	if (!alive) {
		for (int i = 0; i < 2; i++)
			while (load_acquire(&shared->step[i]) < 2) {
				CHECK(waitpid(i ? b : a, NULL, WNOHANG) == 0);
				sleep_ms(5);
			}
		sleep_ms(150); /* let the transfers run */
		happened(shared);
	}
	if (strcmp(mode, "kill") == 0) {
		CHECK(kill(b, SIGKILL) == 0);
	} else if (strcmp(mode, "stop") == 0) {
		int status;

		CHECK(kill(b, SIGSTOP) == 0);
		CHECK(waitpid(a, &status, 0) == a); /* A ends while B still stands */
		CHECK_EQ(status, 0);
		happened(shared);
		CHECK(kill(b, SIGCONT) == 0);
		return pair_reap(b, 0);
	} else if (strcmp(mode, "command") == 0) {
		CHECK_EQ(system(argv[4]), 0);
	}
	failures += pair_reap(a, 0);
	failures += pair_reap(b, strcmp(mode, "kill") == 0 ? SIGKILL : 0);
	return failures != 0;
}
