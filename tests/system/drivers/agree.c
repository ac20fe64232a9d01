/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree pair LISTEN_ENV CONNECT_ENV: one process listens, one connects, each with settings of its own ("A=1;B=2").
 * Prints what each side got: "accept ERR_SETTING refused 127.0.0.1:...", "connect ERR_AUTH ...", "transfer OK", or
 * "accept none" where the connecting side has failed and the other one was not told; agree wait: the same, but accept is
 * called until it says something. agree hello: speaks the wire protocol of a later version to a real listener; prints the
 * verdict and what accept says. agree stray: the same, then a peer comes that fits. agree welcome VERDICT: answers a real
 * connect like a listener that refuses, or (0) like one of a later version.
 */
#include "pair.h"

#include "net/tcp/hello.h"
#include "net/tcp/network.h"

static const char *env[2];
static bool patient;
enum { REFUSED_MS = 2000 }; /* how long accept waits after a refusal where there is no secret */

static void set_env(const char *list)
{
	char *copy = strdup(list), *save = NULL;

	CHECK(copy);
	for (char *item = strtok_r(copy, ";", &save); item; item = strtok_r(NULL, ";", &save)) {
		char *value = strchr(item, '=');

		CHECK(value);
		*value++ = 0;
		setenv(item, value, 1);
	}
	free(copy);
}

static void say(const char *what, gantry_result r)
{
	printf("%s %s %s\n", what, gantry_result_name(r), r == GANTRY_OK ? "" : gantry_last_error());
	fflush(stdout);
}

/* 0: the other side has given up and this one has heard nothing of it. */
static int accept_or_none(struct pair_side *s, void *listen, void **ret_comm, gantry_result *ret_r)
{
	int over;

	do {
		over = !patient && load_acquire(&s->shared->event) != 0;
		*ret_r = pair_try_accept(s, listen, 50, ret_comm);
	} while (*ret_r == GANTRY_ERR_TIMEOUT && !over);
	return *ret_r != GANTRY_ERR_TIMEOUT;
}

static void pair_side_run(struct pair_side *s)
{
	uint8_t data[1000], handle[GANTRY_NET_HANDLE_SIZE];
	void *listen = NULL, *comm = NULL;
	gantry_result r;

	set_env(env[s->self]);
	r = s->net->ops->init(s->net, 42, NULL, &s->ctx);
	if (r != GANTRY_OK) {
		say("init", r);
		store_release(&s->shared->event, 1);
		return;
	}
	if (s->self == 0) {
		listen = pair_listen(s, 0);
		if (accept_or_none(s, listen, &comm, &r))
			say("accept", r);
		else
			printf("accept none, %d strangers\n", (int)load_relaxed(&inet_strangers));
		if (comm) {
			pair_wait(s, pair_irecv(s, comm, data, sizeof(data), 7));
			CHECK_PATTERN(data, sizeof(data), 5);
			say("transfer", GANTRY_OK);
		}
		pair_step(s, 1);
		s->net->ops->close_recv(s->net, comm);
		s->net->ops->close_listen(s->net, listen);
		return;
	}
	while (!load_acquire(&s->shared->ready[0][0])) {
		if (load_acquire(&s->shared->event))
			return;
		sleep_ms(1);
	}
	memcpy(handle, s->shared->handle[0][0], sizeof(handle));
	r = pair_try_connect(s, handle, &comm);
	say("connect", r);
	if (!comm)
		store_release(&s->shared->event, 1);
	if (comm) {
		pattern_fill(data, sizeof(data), 5);
		pair_wait(s, pair_isend(s, comm, data, sizeof(data), 7));
	}
	pair_wait_step(s->shared, 0, 1);
	s->net->ops->close_send(s->net, comm);
}

/* Has the cookie, and speaks the next version. Returns the text with which it was refused. */
static const char *refuse_next(const uint8_t handle[GANTRY_NET_HANDLE_SIZE])
{
	static const struct inet_protocol next = {"tcp", WIRE_VERSION + 1, "accepting side", "connecting side", NULL};
	static const struct inet_key none;
	static uint8_t in[INET_ANSWER_SIZE];
	uint8_t payload[WIRE_HELLO_SIZE];
	struct wire_hello h = {.lanes = 2};
	struct inet_handshake shake;
	struct wire_handle wh;
	int fd;

	CHECK_OK(wire_handle_decode(handle, &wh));
	h.listener = wh.listener;
	h.comm_id = wh.comm_id;
	memcpy(h.cookie, wh.cookie, sizeof(h.cookie));
	wire_hello_encode(&h, payload);
	CHECK_OK(inet_handshake_start_client(&shake, &next, &none, payload, sizeof(payload)));
	memcpy((uint8_t *)shake.out + 64, "elsewhere pid 4711", 19); /* who is speaking */
	fd = dial_hard(&wh.addrs[0].in);
	send_all(fd, shake.out, shake.out_size);
	recv_all(fd, in, sizeof(in));
	CHECK_EQ(in[10], 2); /* refused: the version */
	close(fd);
	return (char *)in + 104;
}

/* A stranger with the cookie, then the peer. Its outcome at accept. */
static gantry_result stray_once(struct pair_side *s, uint64_t *ret_ms)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *listen, *send = NULL, *recv = NULL, *second;
	gantry_result r = GANTRY_OK;
	uint64_t began = now_ms();

	CHECK_OK(s->net->ops->listen(s->net, s->ctx, 0, handle, &listen));
	refuse_next(handle);
	WAIT_WHILE ((!send || !recv) && r == GANTRY_OK) {
		if (!send)
			CHECK_OK(s->net->ops->connect(s->net, s->ctx, 0, handle, &send, NULL));
		if (!recv)
			r = s->net->ops->accept(s->net, listen, &recv, NULL);
	}
	*ret_ms = now_ms() - began;
	if (r == GANTRY_OK) /* nor is the stranger's error told when its time has come */
		CHECK_EQ(pair_try_accept(s, listen, REFUSED_MS + 1000, &second), GANTRY_ERR_TIMEOUT);
	s->net->ops->close_send(s->net, send);
	s->net->ops->close_recv(s->net, recv);
	s->net->ops->close_listen(s->net, listen);
	return r;
}

static int stray(void)
{
	struct pair_side s = {.net = gantry_net_tcp()};
	gantry_result r;
	uint64_t ms;

	pair_init(&s);
	do /* a peer that was off its CPU for that long is late */
		r = stray_once(&s, &ms);
	while (r == GANTRY_ERR_VERSION && ms >= REFUSED_MS);
	say("accept", r);
	pair_finish(&s);
	return 0;
}

/* A peer of the next version at a real listener. */
static int hello(void)
{
	struct pair_side s = {.net = gantry_net_tcp()};
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *listen, *comm;

	pair_init(&s);
	CHECK_OK(s.net->ops->listen(s.net, s.ctx, 0, handle, &listen));
	printf("welcome %s\n", refuse_next(handle));
	say("accept", pair_try_accept(&s, listen, PAIR_PATIENCE_MS, &comm));
	/* The listener lives on. */
	CHECK_EQ(pair_try_accept(&s, listen, 50, &comm), GANTRY_ERR_TIMEOUT);
	s.net->ops->close_listen(s.net, listen);
	pair_finish(&s);
	return 0;
}

/* A listener of the next version that a real connect meets: it refuses, or lets it in regardless. */
static int welcome(int verdict)
{
	struct pair_side s = {.net = gantry_net_tcp()};
	struct wire_handle wh = {.version = WIRE_VERSION, .process = 1, .listener = 1, .naddrs = 1};
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], in[INET_HELLO_SIZE + WIRE_HELLO_SIZE];
	uint8_t out[INET_ANSWER_SIZE] = "GANTRY\x02\n";
	void *comm = NULL;
	gantry_result r;
	int port, fd = lo_listen(0, &port), peer;

	wh.addrs[0].in = lo_addr(port);
	wire_handle_encode(&wh, handle);
	pair_init(&s);
	CHECK_OK(s.net->ops->connect(s.net, s.ctx, 0, handle, &comm, NULL));
	CHECK(!comm);
	peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	CHECK(peer >= 0);
	recv_all(peer, in, sizeof(in));
	out[8] = WIRE_VERSION + 1;
	out[10] = (uint8_t)verdict;
	snprintf((char *)out + 104, 96, "protocol version differs: %d (accepting side) and %d (connecting side)",
		 WIRE_VERSION + 1, WIRE_VERSION);
	send_all(peer, out, sizeof(out));
	r = pair_try_connect(&s, handle, &comm);
	say("connect", r);
	close(peer);
	close(fd);
	pair_finish(&s);
	return 0;
}

int main(int argc, char **argv)
{
	struct pair_shared *shared = pair_share();

	if (argc == 2 && strcmp(argv[1], "hello") == 0)
		return hello();
	if (argc == 3 && strcmp(argv[1], "welcome") == 0)
		return welcome(atoi(argv[2]));
	if (argc == 2 && strcmp(argv[1], "stray") == 0)
		return stray();
	patient = argc == 4 && strcmp(argv[1], "wait") == 0;
	CHECK(argc == 4 && (patient || strcmp(argv[1], "pair") == 0));
	env[0] = argv[2];
	env[1] = argv[3];
	pair_fork_both(shared, pair_side_run, pair_side_run);
	return pair_reap_both(shared);
}
