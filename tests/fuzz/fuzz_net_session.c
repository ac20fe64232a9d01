/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network's handshakes against scripted peers: listeners that are dialled, and connects that are answered, in one
 * thread and with a clock of the script's.
 *
 *   byte 0   bit 0: with a secret; bit 1: this process has the larger id of two that connect to each other
 *   then operations, each a byte modulo OPS and its arguments
 *
 * The engine runs without its thread: events and a tick after each operation. Sockets are pairs.
 *
 * What must hold: what has not proved to be a peer (with a secret: by a proof, else by the listener's cookie) changes
 * counters and nothing else; accept has an error of a proved peer, or of one that had the cookie and some time ago, and a comm
 * only of a proved peer; connect succeeds only with a peer that has proved the secret; lists are bounded, and when all is closed, and some time later, empty.
 *
 * wrap: sock_connect sock_listen accept4 epoll_wait clock_gettime gantry_random_bytes gantry_addr_is_local gantry_thread_start
 */
#include "base/hmac.h"
#include "net/tcp/network.h"
#include "session.h"

enum { LISTENERS = 3, COMMS = 8, CONNS = 8, DIALS = 8, CONNECTS = 3, MAX_STEPS = 200, STRANGERS = 256 };

enum {
	OP_LISTEN,  /* which: opened, or closed */
	OP_ACCEPT,  /* which */
	OP_OPEN,    /* which: a connection comes */
	OP_HELLO,   /* which, listener and lanes, session and process, how */
	OP_PROOF,   /* which, how */
	OP_PEER,    /* which, listener and lanes, session and process: all of it, as it should be */
	OP_BYTES,   /* which, how many, bytes */
	OP_CLOSE,   /* which */
	OP_CONNECT, /* which: begun, or asked for its outcome */
	OP_FORGET,  /* which */
	OP_ANSWER,  /* which, verdict, how: to what was dialled */
	OP_WELCOME, /* which: as it should be */
	OP_GARBAGE, /* which, bytes */
	OP_HANG_UP, /* which */
	OP_REFUSE,  /* errno of the next connect */
	OP_COMM,    /* which: closed */
	OP_TIME,    /* how far */
	OPS
};

enum { HELLO = INET_HELLO_SIZE + WIRE_HELLO_SIZE, ANSWER = INET_ANSWER_SIZE + WIRE_WELCOME_SIZE };
enum { VERDICT_CHALLENGE = 7, VERDICTS = 10 }; /* OK with each of the network's own (0, 1, 8), refusals, and none */

/* A connection to a listener; or one that was dialled, and the script answers. */
struct conn {
	int fd, peer, challenged, listener; /* peer: it has proved to be one */
	int answered;			    /* what follows are frames of a lane */
	uint8_t hello[HELLO], challenge[INET_CHALLENGE_SIZE];
	size_t got;
};

static struct {
	struct gantry_net *net;
	void *ctx;
	void *listeners[LISTENERS];
	int may_fail[LISTENERS], peers[LISTENERS]; /* a proved peer was refused; one has come */
	uint64_t doubted[LISTENERS];		   /* when one first had the cookie, ns; 0: never */
	uint8_t handles[LISTENERS][GANTRY_NET_HANDLE_SIZE];
	void *comms[COMMS];
	int sends[COMMS], ncomms;
	struct conn conns[CONNS], dials[DIALS];
	int ndials;
	uint8_t connects[CONNECTS][GANTRY_NET_HANDLE_SIZE];
	int connecting[CONNECTS], trusted; /* trusted: some answer was right */
	uint8_t last_mac[GANTRY_MAC_SIZE];
} run;

/* There is one thread: what looks at the loop's things without its lock is UNCHECKED. */

/* ---- in the place of the system ---- */

int __wrap_gantry_addr_is_local(const struct gantry_addr *a);

int __wrap_gantry_addr_is_local(const struct gantry_addr *a)
{
	return 1;
}

static void conn_open(struct conn *c, int *ret_other)
{
	if (c->fd >= 0)
		close(c->fd);
	memset(c, 0, sizeof(*c));
	c->fd = session_pair(ret_other);
}

static void conn_close(struct conn *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

static void session_dialled(int *ret_fd)
{
	conn_open(&run.dials[run.ndials++ % DIALS], ret_fd);
}

/* ---- the engine ---- */

static int count(const struct gantry_list *list)
{
	int n = 0;

	gantry_list_each (pos, list)
		n++;
	return n;
}

static void check_engine(void) REQUIRES(loop_mu)
{
	int strangers = inet_arrivals.strangers;

	MUST(count(&inet_arrivals.conns) >= strangers && strangers >= 0 && strangers <= STRANGERS);
}

static int has_secret(void)
{
	return tcp_network.key.auth == INET_AUTH_SECRET;
}

/* As docs/wire.md has it. */
static void make_mac(const char *label, const struct conn *c, const uint8_t *answer, uint8_t ret_mac[GANTRY_MAC_SIZE])
{
	uint8_t all[16 + HELLO + INET_CHALLENGE_SIZE + ANSWER] = {0};
	size_t n = 16 + HELLO + INET_CHALLENGE_SIZE;

	memcpy(all, label, strlen(label));
	memcpy(all + 16, c->hello, HELLO);
	memcpy(all + 16 + HELLO, c->challenge, INET_CHALLENGE_SIZE);
	if (answer)
		memcpy(all + n, answer, ANSWER);
	MUST(gantry_hmac_sha256(tcp_network.key.bytes, tcp_network.key.size, all, n + (answer ? ANSWER : 0), ret_mac) ==
	     GANTRY_OK);
}

/* What the service thread does, without waiting, and with a tick that is always due. */
static void turn(void)
{
	inet_loop_lock();
	for (int i = 0, n = 1; i < 64 && n > 0; i++) {
		tcp_network.ticked = 0;
		n = inet_loop_pass();
	}
	check_engine();
	inet_loop_unlock();
}

static void pass_time(uint8_t how)
{
	static const uint64_t jumps[] = {1000000, 60000000, 200000000, SECOND, 6 * SECOND, 30 * SECOND, 700 * SECOND};

	session.now += jumps[how % 7];
	turn();
}

/* What a stranger must not change. */
struct snapshot {
	int links, opening, shareable, lingering, proved, ready[LISTENERS], opened[LISTENERS];
	gantry_result errors[LISTENERS];
};

static struct snapshot look(void)
{
	struct snapshot s;

	memset(&s, 0, sizeof(s));
	s.links = count(&tcp_network.links);
	s.opening = count(&tcp_network.opening);
	s.shareable = count(&tcp_network.shareable);
	s.lingering = count(&tcp_network.lingering);
	inet_loop_lock();
	s.proved = count(&inet_arrivals.conns) - inet_arrivals.strangers;
	inet_loop_unlock();
	for (int i = 0; i < LISTENERS; i++) {
		const struct tcp_listener *l = run.listeners[i];

		if (!l)
			continue;
		s.ready[i] = l->nready;
		s.opened[i] = l->nopening;
		s.errors[i] = l->error_at ? GANTRY_OK : l->error; /* the others are told later, if at all */
	}
	return s;
}

/* ---- the user ---- */

static void keep_comm(void *comm, int send)
{
	if (run.ncomms == COMMS) {
		MUST((send ? run.net->ops->close_send : run.net->ops->close_recv)(run.net, comm) == GANTRY_OK);
		return;
	}
	run.sends[run.ncomms] = send;
	run.comms[run.ncomms++] = comm;
}

static void close_comm(int i)
{
	if (i >= run.ncomms)
		return;
	(run.sends[i] ? run.net->ops->close_send : run.net->ops->close_recv)(run.net, run.comms[i]);
	run.ncomms--;
	run.comms[i] = run.comms[run.ncomms];
	run.sends[i] = run.sends[run.ncomms];
}

static void listen_or_not(int i)
{
	if (run.listeners[i]) {
		MUST(run.net->ops->close_listen(run.net, run.listeners[i]) == GANTRY_OK);
		run.listeners[i] = NULL;
		return;
	}
	MUST(run.net->ops->listen(run.net, run.ctx, 0, run.handles[i], &run.listeners[i]) == GANTRY_OK);
	run.may_fail[i] = run.peers[i] = 0;
	run.doubted[i] = 0;
}

static void accept_one(int i)
{
	struct gantry_net_device_handle *none = NULL;
	void *comm = NULL;
	gantry_result r;

	if (!run.listeners[i])
		return;
	r = run.net->ops->accept(run.net, run.listeners[i], &comm, &none);
	MUST(r == GANTRY_OK || run.may_fail[i] ||
	     (run.doubted[i] && session.now - run.doubted[i] >= gantry_params()->connect_timeout));
	MUST(!comm || run.peers[i]);
	if (comm)
		keep_comm(comm, 0);
}

/* A handle of a listener that the script plays. */
static void connect_one(int i)
{
	struct wire_handle h = {
		.version = WIRE_VERSION, .process = 77, .listener = 5, .comm_id = 9, .naddrs = 1 + i % 2};
	struct gantry_net_device_handle *none = NULL;
	void *comm = NULL;
	gantry_result r;

	for (int k = 0; k < h.naddrs; k++)
		h.addrs[k].in =
			(struct sockaddr_in){.sin_family = AF_INET, .sin_port = 7, .sin_addr.s_addr = 0x0100007f};
	if (!run.connecting[i])
		wire_handle_encode(&h, run.connects[i]);
	r = run.net->ops->connect(run.net, run.ctx, 0, run.connects[i], &comm, &none);
	run.connecting[i] = r == GANTRY_OK && !comm;
	if (comm) {
		MUST(run.trusted || !has_secret());
		keep_comm(comm, 1);
	}
}

static void forget_one(int i)
{
	if (run.connecting[i])
		gantry_net_tcp()->ops->cancel_connect(gantry_net_tcp(), run.connects[i]);
	run.connecting[i] = 0;
}

/* ---- those who dial us ---- */

static void give(struct conn *c, const void *bytes, size_t n)
{
	if (c->fd >= 0)
		send(c->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The verdict of an answer, if it is there; -1. A stranger's has no payload. */
static int read_answer(struct conn *c)
{
	uint8_t in[ANSWER];
	size_t size;

	if (c->fd < 0 || c->answered || recv(c->fd, in, 16, MSG_DONTWAIT) != 16)
		return -1;
	MUST(memcmp(in, "GANTRY\x02\n\x07\0", 10) == 0 && in[10] <= VERDICT_CHALLENGE);
	size = (in[10] == VERDICT_CHALLENGE ? (size_t)INET_CHALLENGE_SIZE : INET_ANSWER_SIZE) + in[12];
	MUST(in[12] == (in[10] ? 0 : WIRE_WELCOME_SIZE) && (in[10] || c->peer));
	MUST(recv(c->fd, in + 16, size - 16, MSG_DONTWAIT) == (ssize_t)size - 16);
	if (in[10] == VERDICT_CHALLENGE)
		memcpy(c->challenge, in, INET_CHALLENGE_SIZE);
	c->answered = in[10] == 0;
	return in[10];
}

static void come(struct conn *c)
{
	struct tcp_listener *l = NULL;

	for (int i = 0; i < LISTENERS && !l; i++)
		l = run.listeners[i];
	if (!l)
		return;
	conn_close(c);
	turn();
	conn_open(c, &session.coming);
	inet_loop_lock();
	l->ports[0]->source.ready(&l->ports[0]->source, EPOLLIN);
	inet_loop_unlock();
	if (session.coming >= 0) /* no place */
		close(session.coming);
	session.coming = -1;
}

static void crc_differs(char out[INET_SETTINGS_SIZE])
{
	strcpy(out, "GANTRY_CRC=1");
}

static void say_hello(struct conn *c, uint8_t where, uint8_t who, uint8_t how)
{
	int i = where % LISTENERS, cookie = !(how & 1);
	struct inet_protocol protocol = tcp_service.protocol;
	const struct inet_key key = {has_secret() ^ (how >> 2 & 1) ? INET_AUTH_SECRET : INET_AUTH_NONE, "", 0,
				     INET_ENCRYPT_OFF};
	uint8_t payload[WIRE_HELLO_SIZE];
	struct inet_handshake shake;
	struct wire_handle to = {0};
	struct wire_hello h = {.lane = where >> 2 & 3,
			       .lanes = 2 + (where >> 4 & 1),
			       .process = 77,
			       .comm_id = 9,
			       .host = who >> 4 & 1 ? 1 : tcp_network.host,
			       .window = LINK_WINDOW,
			       .eager_max = 65536};

	c->listener = i;
	if (wire_handle_decode(run.handles[i], &to) != GANTRY_OK || !run.listeners[i])
		cookie = 0;
	h.listener = to.listener;
	memcpy(h.cookie, to.cookie, sizeof(h.cookie));
	h.cookie[0] ^= how & 1;
	h.session[0] = 1 + (who & 3);
	wire_hello_encode(&h, payload);
	if (how & 2)
		protocol.version = 9;
	if (how & 8)
		protocol.settings = crc_differs;
	MUST(inet_handshake_start_client(&shake, &protocol, &key, payload, sizeof(payload)) == GANTRY_OK);
	MUST(shake.out_size == HELLO);
	memcpy(c->hello, shake.out, HELLO);
	if (cookie && !has_secret()) {
		c->peer = 1;
		run.peers[i] = 1;
	}
	if (cookie && !run.doubted[i])
		run.doubted[i] = session.now;
	if (cookie && (how & (has_secret() ? 8 : 14)))
		run.may_fail[i] |= c->peer || has_secret();
	give(c, c->hello, HELLO);
	turn();
	c->challenged = read_answer(c) == VERDICT_CHALLENGE;
	MUST(!c->challenged || has_secret());
}

/* how 0: right. Else one that was right before, the other side's, or noise. */
static void prove(struct conn *c, uint8_t how)
{
	uint8_t out[INET_PROOF_SIZE] = "GANTRY\x03\n", *mac = out + 8;

	mac[0] = how;
	how &= 3;
	if (how == 1)
		memcpy(mac, run.last_mac, GANTRY_MAC_SIZE);
	else if (how != 3 && c->challenged && has_secret())
		make_mac(how ? "gantry server" : "gantry client", c, NULL, mac);
	if (how == 0 && c->challenged) {
		memcpy(run.last_mac, mac, GANTRY_MAC_SIZE);
		c->peer = 1;
		run.peers[c->listener] = 1;
	}
	c->challenged = 0;
	give(c, out, sizeof(out));
}

static void some_bytes(struct conn *c)
{
	uint8_t bytes[64];
	size_t n = script_bytes(&session.in, bytes);

	give(c, bytes, n);
}

static void conn_op(int op, struct conn *c)
{
	uint8_t where, who;

	switch (op) {
	case OP_OPEN:
		come(c);
		break;
	case OP_HELLO:
		where = next();
		who = next();
		say_hello(c, where, who, next());
		break;
	case OP_PROOF:
		prove(c, next());
		break;
	case OP_PEER:
		come(c);
		where = next();
		say_hello(c, where, next(), 0);
		if (c->challenged)
			prove(c, 0);
		break;
	case OP_BYTES:
		some_bytes(c);
		break;
	case OP_CLOSE:
		conn_close(c);
		break;
	}
}

static void stranger_op(int op)
{
	struct conn *c = &run.conns[next() % CONNS];
	int was_peer = c->fd >= 0 && c->peer;
	struct snapshot before, after;

	turn();
	before = look();
	conn_op(op, c);
	turn();
	after = look();
	if (!was_peer && !c->peer)
		MUST(memcmp(&before, &after, sizeof(after)) == 0);
}

/* ---- those we dial ---- */

/* The hello that has come so far. */
static void hear(struct conn *d)
{
	ssize_t n;

	if (d->fd < 0 || d->got == HELLO)
		return;
	n = recv(d->fd, d->hello + d->got, HELLO - d->got, MSG_DONTWAIT);
	d->got += n > 0 ? (size_t)n : 0;
}

static void answer(struct conn *d, uint8_t verdict, uint8_t how)
{
	static const uint8_t own[] = {[0] = WIRE_LANE, [1] = WIRE_USE_SESSION, [8] = WIRE_UNKNOWN_SESSION};
	struct wire_welcome w = {.window = LINK_WINDOW, .eager_max = 65536, .naddrs = 1};
	uint8_t out[ANSWER] = "GANTRY\x02\n";
	size_t size = INET_ANSWER_SIZE;
	int ok;

	verdict %= VERDICTS;
	ok = verdict < 2 || verdict == 8;
	hear(d);
	if (d->got < HELLO)
		return;
	out[8] = how & 1 ? 9 : WIRE_VERSION;
	out[10] = ok ? 0 : verdict;
	if (ok) {
		out[12] = WIRE_WELCOME_SIZE;
		w.verdict = own[verdict];
		w.session[0] = 1 + (how >> 2 & 3); /* of what may have come to us */
		w.addrs[0].in =
			(struct sockaddr_in){.sin_family = AF_INET, .sin_port = 7, .sin_addr.s_addr = 0x0100007f};
		wire_welcome_encode(&w, out + INET_ANSWER_SIZE);
		size = ANSWER;
	} else if (verdict == VERDICT_CHALLENGE) {
		gantry_random_bytes(out + 16, INET_NONCE_SIZE);
		memcpy(d->challenge, out, INET_CHALLENGE_SIZE);
		d->challenged = 1;
		size = INET_CHALLENGE_SIZE;
	}
	if (has_secret() && !(how & 2) && ok) {
		make_mac("gantry server", d, out, out + 16);
		run.trusted |= d->challenged;
	}
	give(d, out, size);
	turn();
}

/* All that are open are answered as they should be, and asked for a proof before where there is a secret. */
static void welcome_all(void)
{
	for (int i = 0; i < DIALS; i++) {
		if (has_secret())
			answer(&run.dials[i], VERDICT_CHALLENGE, 0);
		answer(&run.dials[i], 0, 0);
	}
}

static void step(void)
{
	static const int errors[] = {ECONNREFUSED, EHOSTUNREACH, EMFILE, EACCES};
	int op = next() % OPS;
	struct conn *d;
	uint8_t how;

	switch (op) {
	case OP_LISTEN:
		listen_or_not(next() % LISTENERS);
		break;
	case OP_ACCEPT:
		accept_one(next() % LISTENERS);
		break;
	case OP_CONNECT:
		connect_one(next() % CONNECTS);
		break;
	case OP_FORGET:
		forget_one(next() % CONNECTS);
		break;
	case OP_ANSWER:
		d = &run.dials[next() % DIALS];
		how = next();
		answer(d, how, next());
		break;
	case OP_WELCOME:
		welcome_all();
		break;
	case OP_GARBAGE:
		some_bytes(&run.dials[next() % DIALS]);
		break;
	case OP_HANG_UP:
		conn_close(&run.dials[next() % DIALS]);
		break;
	case OP_REFUSE:
		session.refuse = errors[next() & 3];
		break;
	case OP_COMM:
		close_comm(next() % COMMS);
		break;
	case OP_TIME:
		pass_time(next());
		break;
	default:
		stranger_op(op);
	}
	turn();
}

/* ---- life ---- */

static void begin(uint8_t how) UNCHECKED
{
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF};
	struct tcp_network *e = &tcp_network;

	run.net = gantry_net_tcp();
	for (int i = 0; i < CONNS; i++)
		run.conns[i].fd = -1;
	for (int i = 0; i < DIALS; i++)
		run.dials[i].fd = -1;
	MUST(run.net->ops->init(run.net, 9, &config, &run.ctx) == GANTRY_OK);
	gantry_ticks_of_ns(1); /* some CPUs measure their counter against the clock, which stands still from here on */
	session.on = 1;
	session.now = 1000 * SECOND;
	e->key = (struct inet_key){INET_AUTH_NONE, NULL, 0, INET_ENCRYPT_OFF};
	if (how & 1 && GANTRY_HAVE_OPENSSL)
		e->key = (struct inet_key){INET_AUTH_SECRET, "a secret", 8, INET_ENCRYPT_OFF};
	e->process = how & 2 ? 99 : 55; /* the peers' is 77 */
	e->next_id = 0;
	e->last_tick = e->opening_looked = 0;
	memset(e->served, 0, sizeof(e->served));
}

static void finish(void) UNCHECKED
{
	struct tcp_network *e = &tcp_network;

	for (int i = 0; i < LISTENERS; i++)
		if (run.listeners[i])
			listen_or_not(i);
	for (int i = 0; i < CONNECTS; i++)
		forget_one(i);
	while (run.ncomms)
		close_comm(0);
	for (int i = 0; i < CONNS; i++)
		conn_close(&run.conns[i]);
	for (int i = 0; i < DIALS; i++)
		conn_close(&run.dials[i]);
	for (int i = 0; i < 4; i++)
		pass_time(5);
	MUST(!e->users && !e->nburied);
	MUST(!count(&e->links) && !count(&e->opening) && !count(&e->shareable) && !count(&e->lingering) &&
	     !count(&e->promised));
	MUST(!count(&e->connectors));
	inet_loop_lock();
	MUST(gantry_list_empty(&inet_arrivals.conns));
	inet_loop_unlock();
	e->key.auth = INET_AUTH_NONE;
	session.on = 0;
	MUST(run.net->ops->finalize(run.net, run.ctx) == GANTRY_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	session_begin(data, size);
	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_LANES", "1", 1);
	setenv("GANTRY_HELPERS", "0", 1);
	setenv("GANTRY_CONNECT_TIMEOUT", "20s", 1);
	unsetenv("GANTRY_SECRET");
	memset(&run, 0, sizeof(run));
	begin(next());
	for (int i = 0; i < MAX_STEPS && session.in.at < session.in.end; i++)
		step();
	finish();
	return 0;
}
