/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ports MODE: listening ports, addresses and limits, in one or two processes. Prints what it got; ports.sh judges.
 *
 *   many N        N connections to and from this process itself, one listener each; then waits for a line on stdin
 *   listen        opens a listener, prints its handle's address and what accept's port is, waits for stdin to end
 *   nofile N      as many connections as RLIMIT_NOFILE N allows: the code and text of the one that does not fit
 *   nofile_peer N the same, but the accepting side has the limit
 *   late PORT MS  A advertises 127.0.0.1:PORT and listens on PORT+1 (by GANTRY_PORT_RANGE); a relay between the two is
 *                 started MS after B has first asked for it, or never if MS is negative
 */
#include "pair.h"

#include "net/tcp/hello.h"
#include "relay.h"

enum { MANY = 64 };

static int limit, late_ms;

static int many(int n)
{
	struct pair_side s = {.net = gantry_net_tcp()};
	struct pair_ends e[MANY];
	void *rx[MANY], *tx[MANY];
	int from[MANY], into[MANY];

	CHECK(n <= MANY);
	pair_init(&s);
	for (int i = 0; i < n; i++)
		CHECK_OK(pair_open_self(&s, &e[i]));
	for (int i = 0; i < n; i++) {
		from[i] = i + 1000;
		rx[i] = pair_irecv(&s, e[i].recv, &into[i], sizeof(into[i]), 0);
		tx[i] = pair_isend(&s, e[i].send, &from[i], sizeof(from[i]), 0);
	}
	for (int i = 0; i < n; i++) {
		pair_wait(&s, tx[i]);
		pair_wait(&s, rx[i]);
		CHECK_EQ(into[i], i + 1000);
	}
	printf("connected %d\n", n);
	fflush(stdout);
	getchar();
	for (int i = 0; i < n; i++)
		pair_close_ends(&s, &e[i]);
	pair_finish(&s);
	return 0;
}

static int just_listen(void)
{
	struct pair_side s = {.net = gantry_net_tcp()};
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct wire_handle h;
	char text[GANTRY_ADDR_TEXT];
	void *listen = NULL;
	gantry_result r;

	pair_init(&s);
	r = s.net->ops->listen(s.net, s.ctx, 0, handle, &listen);
	if (r == GANTRY_OK) {
		CHECK_OK(wire_handle_decode(handle, &h));
		printf("listen OK %s of %d\n", gantry_addr_text(&h.addrs[0], text), h.naddrs);
	} else {
		printf("listen %s %s\n", gantry_result_name(r), gantry_last_error());
	}
	fflush(stdout);
	getchar();
	s.net->ops->close_listen(s.net, listen);
	pair_finish(&s);
	return 0;
}

static void set_limit(int n)
{
	struct rlimit rl = {(rlim_t)n, (rlim_t)n};

	CHECK(setrlimit(RLIMIT_NOFILE, &rl) == 0);
}

/* The connections made before must go on working. */
static int nofile(void)
{
	struct pair_side s = {.net = gantry_net_tcp()};
	struct pair_ends e[MANY + 1] = {{.listen = NULL}};
	static uint8_t from[1 << 20], into[1 << 20];
	gantry_result r = GANTRY_OK;
	int n = 0;

	set_limit(limit);
	pair_init(&s);
	while (n < MANY && (r = pair_open_self(&s, &e[n])) == GANTRY_OK)
		n++;
	printf("self %s after %d: %s\n", gantry_result_name(r), n, gantry_last_error());
	for (int i = 0; i < n; i++) {
		void *rx = pair_irecv(&s, e[i].recv, into, sizeof(into), 0);
		void *tx = pair_isend(&s, e[i].send, from, sizeof(from), 0);

		pattern_fill(from, sizeof(from), (uint32_t)i);
		for (int a = 0, b = 0; !a || !b;) {
			if (!a)
				CHECK_OK(s.net->ops->test(s.net, tx, &a, NULL));
			if (!b)
				CHECK_OK(s.net->ops->test(s.net, rx, &b, NULL));
		}
		CHECK_PATTERN(into, sizeof(into), (uint32_t)i);
	}
	printf("transfers %d\n", n);
	s.net->ops->close_listen(s.net, e[n].listen); /* of the one that was refused */
	for (int i = 0; i < n; i++)
		pair_close_ends(&s, &e[i]);
	pair_finish(&s);
	return 0;
}

static void nofile_peer(struct pair_side *s)
{
	void *listen[MANY] = {NULL}, *comm[MANY];
	gantry_result r = GANTRY_OK;
	int n = 0;

	if (s->self == 0)
		set_limit(limit);
	pair_init(s);
	for (; n < MANY && r == GANTRY_OK; n++) {
		if (s->self == 0) {
			listen[n] = pair_listen(s, n);
			r = pair_try_accept(s, listen[n], PAIR_PATIENCE_MS, &comm[n]);
		} else {
			pair_wait_handle(s, n);
			r = pair_try_connect(s, s->shared->handle[0][n], &comm[n]);
		}
	}
	printf("%s %s after %d: %s\n", s->self ? "connect" : "accept", gantry_result_name(r), n - 1,
	       gantry_last_error());
	fflush(stdout);
	pair_meet(s, 1);
	for (int i = 0; i < n; i++)
		pair_close_ends(s, &(struct pair_ends){listen[i], s->self ? comm[i] : NULL, s->self ? NULL : comm[i]});
}

/* ---- a port that opens late: what is advertised is a relay's port, which forwards to the real one ---- */

static void late_side(struct pair_side *s)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], *data = malloc(1 << 20);
	gantry_result r;
	uint64_t began;
	void *listen, *comm = NULL;
	char advertised[32];

	CHECK(data);
	if (s->self == 0) {
		snprintf(advertised, sizeof(advertised), "127.0.0.1:%d", limit);
		setenv("GANTRY_ADVERTISE", advertised, 1);
		pair_init(s);
		listen = pair_listen(s, 0);
		r = pair_try_accept(s, listen, late_ms < 0 ? 100 : PAIR_PATIENCE_MS, &comm);
		if (comm) {
			pair_wait(s, pair_irecv(s, comm, data, 1 << 20, 0));
			CHECK_PATTERN(data, 1 << 20, 3);
			printf("transfer OK\n");
			fflush(stdout);
		}
		pair_meet(s, 2);
		s->net->ops->close_recv(s->net, comm);
		s->net->ops->close_listen(s->net, listen);
		free(data);
		return;
	}
	pair_init(s);
	pair_wait_handle(s, 0);
	memcpy(handle, s->shared->handle[0][0], sizeof(handle));
	began = now_ms();
	CHECK_OK(s->net->ops->connect(s->net, s->ctx, 0, handle, &comm, NULL));
	pair_step(s, 1);
	r = comm ? GANTRY_OK : pair_try_connect(s, handle, &comm);
	printf("connect %s after %d ms: %s\n", gantry_result_name(r), (int)(now_ms() - began),
	       r == GANTRY_OK ? "" : gantry_last_error());
	fflush(stdout);
	if (comm) {
		pattern_fill(data, 1 << 20, 3);
		pair_wait(s, pair_isend(s, comm, data, 1 << 20, 0));
	}
	pair_meet(s, 2);
	s->net->ops->close_send(s->net, comm);
	free(data);
}

static pid_t start_relay(struct pair_shared *shared)
{
	static struct relay relay;
	pid_t pid;

	pair_wait_step(shared, 1, 1);
	pid = pair_child();
	if (pid == 0) {
		sleep_ms((unsigned)late_ms);
		relay.to = lo_addr(limit + 1);
		relay_make(&relay, limit, 1);
		relay_serve(&relay);
	}
	return pid;
}

int main(int argc, char **argv)
{
	struct pair_shared *shared = pair_share();
	const char *mode = argc > 1 ? argv[1] : "";
	int failures, late = strcmp(mode, "late") == 0;
	pid_t c = 0;

	limit = argc > 2 ? atoi(argv[2]) : 0;
	late_ms = argc > 3 ? atoi(argv[3]) : -1;
	if (strcmp(mode, "many") == 0)
		return many(limit);
	if (strcmp(mode, "listen") == 0)
		return just_listen();
	if (strcmp(mode, "nofile") == 0)
		return nofile();
	CHECK(late || strcmp(mode, "nofile_peer") == 0);
	pair_fork_both(shared, late ? late_side : nofile_peer, late ? late_side : nofile_peer);
	if (late && late_ms >= 0)
		c = start_relay(shared);
	failures = pair_reap_both(shared);
	if (c > 0) {
		kill(c, SIGKILL);
		failures += pair_reap(c, SIGKILL);
	}
	return failures != 0;
}
