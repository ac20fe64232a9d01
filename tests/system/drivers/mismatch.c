/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mismatch: sends that are larger than their receives, each on a connection of its own, A to B. Both sides must end
 * with ERR_SIZE and a text that has both sizes and the peer in it; connections beside them go on working.
 */
#include "pair.h"

static const struct {
	size_t send, recv;
	int late; /* the receive is posted when the message is already there, or announced */
	const char *what;
} cases[] = {
	{2001, 1000, 0, "small, receive first"},
	{2001, 1000, 1, "small, receive later"},
	{1, 0, 1, "one byte for none"},
	{65537, 65536, 0, "just beyond the eager limit, receive first"},
	{65537, 65536, 1, "just beyond the eager limit, receive later"},
	{3000001, 3000000, 0, "large, receive first"},
	{3000001, 3000000, 1, "large, receive later"},
	{3000001, 1000, 0, "large for a small receive, receive first"},
	{3000001, 1000, 1, "large for a small receive, receive later"},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]), ROOM = 4 << 20, PATIENCE_MS = PAIR_PATIENCE_MS };

/* A small send is complete when the kernel has it: then the error belongs to the requests that follow. */
static gantry_result send_until_error(struct pair_side *s, void *comm, uint8_t *data, size_t size, uint64_t *ret_ms)
{
	uint64_t began = now_ms();
	gantry_result r = GANTRY_OK;

	while (r == GANTRY_OK && now_ms() - began < PATIENCE_MS) {
		void *req = NULL;

		r = s->net->ops->isend(s->net, comm, data, size, 0, NULL, &req);
		if (r == GANTRY_OK && req)
			r = pair_try_wait(s, req, PATIENCE_MS, NULL);
		sleep_ms(1);
	}
	*ret_ms = now_ms() - began;
	return r;
}

static void one(struct pair_side *s, int i, void *comm, uint8_t *data)
{
	char sent[32], received[32], pid[32];
	uint64_t ms = 0, began;
	gantry_result r;

	snprintf(sent, sizeof(sent), " %zu bytes", cases[i].send);
	snprintf(received, sizeof(received), " %zu bytes", cases[i].recv);
	snprintf(pid, sizeof(pid), "pid %d", (int)s->shared->pid[s->other]);
	if (s->self == 0) {
		if (!cases[i].late)
			pair_wait_step(s->shared, 1, (uint32_t)i * 2 + 1);
		/* Later: the message must be on its way before B posts. */
		void *req = pair_isend(s, comm, data, cases[i].send, 0);
		int done = 0;

		CHECK_OK(s->net->ops->test(s->net, req, &done, NULL));
		pair_step(s, (uint32_t)i * 2 + 1);
		r = done ? GANTRY_OK : pair_try_wait(s, req, PATIENCE_MS, NULL);
		if (r == GANTRY_OK)
			r = send_until_error(s, comm, data, cases[i].send, &ms);
	} else {
		void *req;

		if (cases[i].late) {
			pair_wait_step(s->shared, 0, (uint32_t)i * 2 + 1);
			sleep_ms(20);
		}
		memset(data, 0xee, ROOM);
		began = now_ms();
		req = pair_irecv(s, comm, data, cases[i].recv, 0);
		pair_step(s, (uint32_t)i * 2 + 1);
		r = pair_try_wait(s, req, PATIENCE_MS, NULL);
		ms = now_ms() - began;
		/* Nothing is written behind the buffer. */
		CHECK_EQ(data[cases[i].recv], 0xee);
		CHECK(memcmp(data + cases[i].recv, data + cases[i].recv + 1, ROOM - cases[i].recv - 1) == 0);
	}
	printf("%s, side %c: %s %s\n", cases[i].what, 'A' + s->self, gantry_result_name(r), gantry_last_error());
	fflush(stdout);
	CHECK_EQ(r, GANTRY_ERR_SIZE);
	CHECK_HAS(gantry_last_error(), sent);
	CHECK_HAS(gantry_last_error(), received);
	CHECK_HAS(gantry_last_error(), pid);
	CHECK(ms < PATIENCE_MS); /* it comes, and need not be waited for until somebody gives up */
	pair_meet(s, (uint32_t)i * 2 + 2);
}

static void side(struct pair_side *s)
{
	void *listen[CASES + 1] = {NULL}, *comm[CASES + 1];
	uint8_t *data = malloc(ROOM);

	CHECK(data);
	pair_init(s);
	for (int i = 0; i <= CASES; i++) {
		if (s->self == 1)
			listen[i] = pair_listen(s, i);
		comm[i] = s->self == 0 ? pair_connect(s, i) : pair_accept(s, listen[i]);
	}
	for (int i = 0; i < CASES; i++)
		one(s, i, comm[i], data);
	/* One that fits, on the connection that stood beside all of these. */
	if (s->self == 0) {
		pattern_fill(data, 1 << 20, 1);
		pair_wait(s, pair_isend(s, comm[CASES], data, 1 << 20, 0));
	} else {
		int size = 0;

		CHECK_OK(pair_try_wait(s, pair_irecv(s, comm[CASES], data, ROOM, 0), PATIENCE_MS, &size));
		CHECK_EQ(size, 1 << 20);
		CHECK_PATTERN(data, 1 << 20, 1);
	}
	pair_meet(s, 1000);
	for (int i = 0; i <= CASES; i++)
		pair_close_ends(s, &(struct pair_ends){listen[i], s->self ? NULL : comm[i], s->self ? comm[i] : NULL});
	free(data);
}

int main(void)
{
	struct pair_shared *shared = pair_share();

	pair_fork_both(shared, side, side);
	return pair_reap_both(shared);
}
