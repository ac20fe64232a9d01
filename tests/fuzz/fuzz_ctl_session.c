/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane's two state machines against a scripted peer, in one thread and with a clock of the script's.
 *
 *   byte 0   bit 0: a rank joins a scripted hub; else ranks and strangers come to a hub. The rest: how they are set up
 *   then operations, each a byte modulo HUB_OPS or RANK_OPS and its arguments
 *
 * The service runs without its thread: a turn after each operation, with a fake clock. Where a user of a rank waits,
 * the script goes on in the wait; when it is over, time passes until the user's deadline.
 *
 * What must hold at the hub: whoever has not proved the key changes nothing of it; its counts are those of its ranks;
 * what it sends can be decoded; a rank counts once in an allgather, through the hub or, where all have addresses, in an
 * exchange; when all are gone, and some time later, nothing is left.
 * Connections may outlive their sockets: then a socket that is reset is no end, hellos of a next generation and answers with any
 * counts come, and frames are counted by the script's side as well.
 * At a rank: it has joined only with a hub that has proved the key, accepted it and said READY; a rank is lost once;
 * buffers are written within their sizes (they are of that very size); when it leaves, nothing is left.
 *
 * wrap: sock_connect sock_listen accept4 epoll_wait clock_gettime gantry_cond_wait gantry_random_bytes gantry_thread_start inet_resume_says
 */
#include "base/bytes.h"
#include "base/hmac.h"
#include "ctl/ctl_member.h"
#include "ctl/hub_priv.h"
#include "session.h"

enum { CONNS = 8, RANKS = 4, MAX_STEPS = 200, COMM_ID = 0x1234, BODY = 1024 };
enum { HELLO = INET_HELLO_SIZE + CTL_HELLO_SIZE, ANSWER = INET_ANSWER_SIZE + CTL_ACCEPTED_SIZE };
enum { VERDICT_CHALLENGE = 7 };

/* A connection, as the script's side knows it. */
struct conn {
	int fd;						  /* -1: none */
	int proved, hello, challenged, refused, accepted; /* accepted: frames follow */
	int asked;					  /* TIMEs to answer */
	uint64_t asked_tag;
	uint8_t raw_hello[HELLO], raw_challenge[INET_CHALLENGE_SIZE];
	size_t got; /* of a hello that comes */
	struct inet_parser in;
};

static struct {
	int steps;
	struct conn conns[CONNS];
	uint8_t key[INET_KEY_SIZE];
	struct inet_key proves; /* it, and how */
	struct inet_port *port;
	uint8_t last_mac[GANTRY_MAC_SIZE]; /* a proof that was right once */
	/* A rank's user. */
	struct gantry_ctl *ctl;
	int nranks, rank, waits, lost[RANKS], ready;
	uint64_t heard; /* frames of the rank that its hub has, over all sockets */
	enum inet_resume resume;
} run;

/* There is one thread: what looks at the loop's things without its lock is UNCHECKED. */

/* ---- in the place of the system ---- */

bool __wrap_gantry_cond_wait(struct gantry_cond *c, struct gantry_mutex *mu, uint64_t deadline);

enum inet_resume __wrap_inet_resume_says(void);
enum inet_resume __wrap_inet_resume_says(void) /* a reload of the parameters would keep memory */
{
	return run.resume;
}

static void conn_open(struct conn *c, int *ret_other)
{
	memset(c, 0, sizeof(*c));
	c->in.allows = ctl_allows;
	c->in.max_body = GANTRY_CTL_MESSAGE_MAX;
	c->in.max_grown = RANKS * GANTRY_CTL_MESSAGE_MAX;
	c->fd = session_pair(ret_other);
}

static void conn_close(struct conn *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	c->proved = c->accepted = 0;
	inet_parser_free(&c->in);
	memset(&c->in, 0, sizeof(c->in));
}

static void session_dialled(int *ret_fd)
{
	if (run.port) { /* a hub looks whether somebody listens */
		close(session_pair(ret_fd));
		return;
	}
	conn_close(&run.conns[0]);
	conn_open(&run.conns[0], ret_fd);
}

/* ---- the hand-shake ---- */

/* As docs/wire.md has it. */
static void make_mac(int hub, const struct conn *c, const uint8_t *answer, uint8_t ret_mac[GANTRY_MAC_SIZE])
{
	uint8_t all[16 + HELLO + INET_CHALLENGE_SIZE + ANSWER] = {0};
	size_t n = 16 + HELLO + INET_CHALLENGE_SIZE;

	memset(ret_mac, 0, GANTRY_MAC_SIZE); /* it may be a part of the answer, and counts as zeros there */
	if (run.proves.auth == INET_AUTH_SHOWN) {
		memcpy(ret_mac, run.key + (hub ? 0 : INET_KEY_SIZE / 2), INET_KEY_SIZE / 2);
		return;
	}
	memcpy(all, hub ? "gantry server" : "gantry client", 13);
	memcpy(all + 16, c->raw_hello, HELLO);
	memcpy(all + 16 + HELLO, c->raw_challenge, INET_CHALLENGE_SIZE);
	if (answer)
		memcpy(all + n, answer, ANSWER);
	MUST(gantry_hmac_sha256(run.key, sizeof(run.key), all, n + (answer ? ANSWER : 0), ret_mac) == GANTRY_OK);
}

static void say_raw(struct conn *c, const void *bytes, size_t n)
{
	if (c->fd >= 0 && send(c->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		MUST(errno == EPIPE || errno == EAGAIN || errno == ECONNRESET);
}

/* From the hub. 1: there may be more. */
static int hear_answer(struct conn *c)
{
	uint8_t in[ANSWER];
	size_t size = INET_ANSWER_SIZE;

	if (recv(c->fd, in, 16, MSG_DONTWAIT) != 16)
		return 0;
	if (memcmp(in, "GCTL", 4) == 0) { /* to a rank of an older build */
		while (recv(c->fd, in, sizeof(in), MSG_DONTWAIT) > 0)
			;
		return 0;
	}
	MUST(memcmp(in, "GANTRY", 6) == 0 && in[10] <= VERDICT_CHALLENGE);
	if (in[10] == VERDICT_CHALLENGE)
		size = INET_CHALLENGE_SIZE;
	if (in[10] == 0)
		size = ANSWER;
	MUST(recv(c->fd, in + 16, size - 16, MSG_DONTWAIT) == (ssize_t)size - 16);
	if (in[10] == VERDICT_CHALLENGE) {
		MUST(c->hello);
		memcpy(c->raw_challenge, in, size);
		c->challenged = 1;
	}
	c->refused |= in[10] >= 2 && in[10] < VERDICT_CHALLENGE;
	c->accepted |= in[10] == 0;
	return 1;
}

/* From a rank: its hello. What it says then, up to its acceptance, is its proof. */
static int hear_hello(struct conn *c)
{
	uint8_t rest[256];
	ssize_t n;

	if (c->hello)
		return recv(c->fd, rest, sizeof(rest), MSG_DONTWAIT) > 0;
	n = recv(c->fd, c->raw_hello + c->got, HELLO - c->got, MSG_DONTWAIT);
	c->got += n > 0 ? (size_t)n : 0;
	c->hello = c->got == HELLO;
	return n > 0;
}

/* ---- frames ---- */

static int heard(void *ctx, const struct inet_header *h, const uint8_t *body)
{
	struct conn *c = ctx;

	if (h->kind == CTL_TIME && !h->size) {
		c->asked++;
		c->asked_tag = h->tag;
	}
	c->refused |= h->kind == CTL_REFUSED;
	run.heard += h->kind != CTL_LIFE;
	return 0;
}

/* What has come for the script: it can be decoded, whatever it is. */
static void hear(struct conn *c)
{
	static uint8_t bytes[64 << 10];
	ssize_t n;

	while (c->fd >= 0 && !c->accepted && (run.port ? hear_answer(c) : hear_hello(c)))
		;
	while (c->fd >= 0 && c->accepted && (n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
		MUST(inet_parse(&c->in, bytes, (size_t)n, heard, c) == GANTRY_OK);
}

static void say(struct conn *c, const struct inet_header *h, const void *body)
{
	uint8_t raw[INET_HEADER_SIZE + BODY];

	inet_header_encode(h, raw);
	if (h->size && body)
		memcpy(raw + INET_HEADER_SIZE, body, h->size);
	say_raw(c, raw, INET_HEADER_SIZE + h->size);
}

static void say_kind(struct conn *c, enum ctl_kind kind, const void *body, uint32_t size)
{
	const struct inet_header h = {.kind = kind, .from = -1, .to = -1, .size = size};

	say(c, &h, body);
}

/* Any frame: kind, from and to, tag, size, result. */
static void say_any(struct conn *c)
{
	static uint8_t body[BODY];
	struct inet_header h = {.kind = next() % (CTL_KIND_COUNT + 1)};
	uint8_t ranks = next();

	h.from = (ranks & 7) - 1;
	h.to = (ranks >> 3 & 7) - 1;
	h.tag = next();
	h.size = next();
	h.result = next();
	if (ranks & 0x80)
		h.size *= 4;
	for (uint32_t i = 0; i < h.size && i < 4; i++)
		body[i] = next();
	say(c, &h, body);
}

static void say_bytes(struct conn *c)
{
	uint8_t bytes[64];
	size_t n = script_bytes(&session.in, bytes);

	if (c->fd >= 0 && n)
		send(c->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void turn(void)
{
	inet_loop_lock();
	MUST(ctl_service_start() == GANTRY_OK); /* scripts go on when the hub is gone */
	inet_loop_pass();
	inet_loop_unlock();
	for (int i = 0; i < CONNS; i++)
		hear(&run.conns[i]);
}

/* What was said last is not read: the other side finds a reset where it would find an end. */
static void conn_reset(struct conn *c)
{
	const struct inet_header life = {.kind = CTL_LIFE, .from = -1, .to = -1};

	if (c->accepted)
		say(c, &life, NULL); /* a rank answers it; a hub asks by the clock */
	session.now += SECOND;
	inet_loop_lock();
	inet_loop_pass();
	inet_loop_unlock();
	conn_close(c);
}

static void pass_time(uint8_t how)
{
	static const uint64_t jumps[] = {1000000,    20000000,	  300000000,	SECOND,
					 5 * SECOND, 21 * SECOND, 100 * SECOND, 300 * SECOND};

	session.now += jumps[how & 7];
	turn();
}

/* ---- the hub ---- */

enum {
	HUB_OPEN_CONN, /* which */
	HUB_HELLO,     /* which, how, rank and count */
	HUB_PROOF,     /* which, how */
	HUB_JOIN,      /* which, rank and count: all of it, as it should be */
	HUB_FRAME,     /* which, any frame */
	HUB_BYTES,     /* which, any bytes */
	HUB_CLOSE,     /* which, how */
	HUB_TIME,      /* how far */
	HUB_FULL,      /* no descriptors */
	HUB_OPS
};

/* What a stranger must not change. */
struct snapshot {
	int there, state, nranks, nhere, gathers, given;
	uint64_t number, until;
	gantry_result error;
	int ranks[RANKS];
};

static struct hub *the_hub(void)
{
	gantry_list_each (pos, &ctl_service.hubs)
		return gantry_container(pos, struct hub, node);
	return NULL;
}

static struct snapshot look(void)
{
	struct hub *hub = the_hub();
	struct snapshot s;

	memset(&s, 0, sizeof(s));
	if (!hub)
		return s;
	s.there = 1;
	s.state = (int)hub->state;
	s.nranks = hub->nranks;
	s.nhere = hub->nhere;
	s.gathers = hub->gather.open;
	s.given = hub->gather.count;
	s.number = hub->gather.number;
	s.until = hub->until;
	s.error = hub->error;
	for (int i = 0; i < hub->nranks && i < RANKS; i++)
		s.ranks[i] = (int)hub->ranks[i].state;
	return s;
}

static void check_hub(void)
{
	struct hub *hub = the_hub();
	int n = 0, here = 0, gave = 0, has = 0;

	inet_loop_lock();
	gantry_list_each (pos, &inet_arrivals.conns)
		n++;
	MUST(n == inet_arrivals.strangers); /* who is proved has become a rank, or is gone */
	inet_loop_unlock();
	for (int i = 0; hub && i < hub->nranks; i++) {
		here += hub->ranks[i].state == HUB_HERE;
		gave += hub->ranks[i].gave;
		has += hub->ranks[i].has;
		MUST((hub->ranks[i].state == HUB_HERE) == (hub->ranks[i].conn != NULL));
	}
	MUST(!hub || here == hub->nhere);
	MUST(!hub || !hub->gather.open || (gave == hub->gather.count && has == hub->gather.nhave)); /* each once */
	MUST(!hub || hub->state != HUB_RUNNING || here);
}

static void hub_conn_open(struct conn *c)
{
	conn_close(c);
	turn(); /* so that it is known to be gone */
	if (!the_hub())
		return;
	conn_open(c, &session.coming);
	inet_loop_lock();
	run.port->source.ready(&run.port->source, EPOLLIN);
	inet_loop_unlock();
}

static void hub_hello(struct conn *c, uint8_t how, uint8_t ranks)
{
	struct inet_protocol protocol = hub_service.protocol;
	struct inet_key key = run.proves;
	struct inet_handshake shake;
	uint8_t payload[CTL_HELLO_SIZE];
	struct ctl_hello h = {.comm_id = COMM_ID + (how >> 5 & 1),
			      .process = how >> 6 & 1 ? ctl_service.process : 99,
			      .rank = ranks & 3,
			      .nranks = 1 + (ranks >> 2 & 3),
			      .timeout_ms = 1000u << (how & 3),
			      .wait_ms = 20000,
			      .resume = ranks & 0x80 ? INET_RESUME_YES : INET_RESUME_NO,
			      .generation = ranks >> 4 & 7};

	if (h.generation)
		h.received = next();
	if (ranks & 0x80)
		h.addr.in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = 7, .sin_addr.s_addr = 0x0100007f};

	if (how & 8)
		protocol.version = 9;
	key.auth = (enum inet_auth)((key.auth + (how >> 4 & 1)) % INET_AUTHS);
	ctl_hello_encode(&h, payload);
	MUST(inet_handshake_start_client(&shake, &protocol, &key, payload, sizeof(payload)) == GANTRY_OK);
	MUST(shake.out_size == HELLO);
	memcpy(c->raw_hello, shake.out, HELLO);
	c->hello = 1;
	c->challenged = 0;
	say_raw(c, c->raw_hello, how & 0x80 ? HELLO - 1 : HELLO);
	turn();
}

/* how 0: right. Else that of another connection, the hub's own, or noise. */
static void hub_proof(struct conn *c, uint8_t how)
{
	uint8_t out[INET_PROOF_SIZE] = "GANTRY\x03\n", *mac = out + 8;

	mac[0] = how;
	if (!(how & 3) && c->challenged) {
		make_mac(0, c, NULL, mac);
		memcpy(run.last_mac, mac, GANTRY_MAC_SIZE);
		c->proved = 1;
	} else if ((how & 3) == 1) {
		memcpy(mac, run.last_mac, GANTRY_MAC_SIZE);
		c->proved |= c->challenged && run.proves.auth == INET_AUTH_SHOWN && mac[0];
	} else if ((how & 3) == 2) {
		make_mac(1, c, NULL, mac);
	}
	say_raw(c, out, sizeof(out));
	turn();
}

static void hub_op(int op, struct conn *c)
{
	uint8_t how;

	switch (op) {
	case HUB_OPEN_CONN:
		hub_conn_open(c);
		break;
	case HUB_HELLO:
		how = next();
		hub_hello(c, how, next());
		break;
	case HUB_PROOF:
		hub_proof(c, next());
		break;
	case HUB_JOIN:
		hub_conn_open(c);
		turn();
		hub_hello(c, 0, next());
		hub_proof(c, 0);
		break;
	case HUB_FRAME:
		say_any(c);
		break;
	case HUB_BYTES:
		say_bytes(c);
		break;
	case HUB_CLOSE:
		how = next();
		if (how & 2 && c->proved) /* it takes time, in which much may happen besides */
			conn_reset(c);
		else if (how & 1)
			conn_close(c);
		else if (c->fd >= 0)
			shutdown(c->fd, SHUT_WR);
		session.refuse = how & 4 ? ECONNREFUSED : 0; /* what the hub finds at its address */
		break;
	}
}

static void hub_step(void)
{
	int op = next() % HUB_OPS, before_proved;
	struct snapshot before = look(), after;
	struct conn *c;

	if (op == HUB_TIME) {
		pass_time(next());
		turn(); /* a hub that has ended goes in a later pass: not with what comes next */
		turn();
		check_hub();
		return;
	}
	if (op == HUB_FULL && the_hub()) {
		session.refuse_accept = next() & 1 ? EMFILE : ECONNABORTED;
		session.coming = -1;
		inet_loop_lock();
		run.port->source.ready(&run.port->source, EPOLLIN);
		inet_loop_unlock();
		return;
	}
	c = &run.conns[next() % CONNS];
	before_proved = c->proved;
	hub_op(op, c);
	turn();
	turn();
	check_hub();
	after = look();
	if (!before_proved && !c->proved)
		MUST(memcmp(&before, &after, sizeof(after)) == 0);
	MUST(!c->accepted || c->proved || c->fd < 0);
}

/* UNCHECKED, as run_rank: there is one thread, and turn() takes the lock. */
static void run_hub(uint8_t how) UNCHECKED
{
	struct gantry_addr at = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = 0x0100007f}};
	struct hub *hub = calloc(1, sizeof(*hub));

	MUST(hub);
	gantry_list_init(&hub->node);
	hub->comm_id = COMM_ID;
	memcpy(hub->key_bytes, run.key, sizeof(run.key));
	run.proves.auth = !GANTRY_HAVE_OPENSSL || !(how & 6) ? INET_AUTH_SHOWN
			  : how & 4			     ? INET_AUTH_SECRET
							     : INET_AUTH_KEY;
	hub->key = (struct inet_key){run.proves.auth, hub->key_bytes, sizeof(hub->key_bytes), INET_ENCRYPT_OFF};
	inet_loop_lock();
	MUST(inet_port_get(&hub_service, &at, &hub->port) == GANTRY_OK);
	inet_loop_unlock();
	run.port = hub->port;
	hub->timeout = 8 * SECOND;
	hub->connect_timeout = hub->call_timeout = 20 * SECOND;
	hub->until = session.now + 10 * hub->connect_timeout;
	ctl_service_due(hub->until);
	gantry_list_append(&ctl_service.hubs, &hub->node);
	while (run.steps++ < MAX_STEPS && session.in.at < session.in.end)
		hub_step();
	if (how & 0x40) { /* the process ends */
		ctl_service.exiting = 1;
		turn();
		ctl_service.exiting = 0;
	}
	for (int i = 0; i < CONNS; i++)
		conn_close(&run.conns[i]);
	for (int i = 0; i < 40; i++) /* a hub that is late gives ranks without a socket more time */
		pass_time(2);
	for (int i = 0; i < 4; i++)
		pass_time(7);
	inet_loop_lock();
	MUST(!the_hub() && gantry_list_empty(&inet_arrivals.conns));
	inet_loop_unlock();
}

/* ---- a rank ---- */

enum {
	RANK_CHALLENGE, /* how */
	RANK_ACCEPTED,	/* how */
	RANK_READY,	/* bits */
	RANK_CLOCK,	/* answers TIME */
	RANK_LET_IN,	/* all of that, as it should be */
	RANK_FRAME,	/* any frame */
	RANK_BYTES,
	RANK_CLOSE,
	RANK_REFUSES, /* errno of the next connect */
	RANK_TIME,
	RANK_SEND, /* to, tag, size: the user, from here on */
	RANK_RECV,
	RANK_CALL,
	RANK_GATHER,
	RANK_WAIT,
	RANK_OPS
};

static void challenge(struct conn *c, uint8_t how)
{
	uint8_t out[INET_CHALLENGE_SIZE] = "GANTRY\x02\n";

	if (!c->hello || c->accepted)
		return;
	out[8] = how & 4 ? 9 : CTL_VERSION;
	out[10] = VERDICT_CHALLENGE;
	gantry_random_bytes(out + 16, INET_NONCE_SIZE);
	memcpy(c->raw_challenge, out, sizeof(out));
	c->challenged |= !(how & 6);
	say_raw(c, out, how & 2 ? sizeof(out) - 1 : sizeof(out));
	turn();
}

static void accept_rank(struct conn *c, uint8_t how)
{
	uint8_t out[ANSWER] = "GANTRY\x02\n";

	if (!c->hello || c->accepted)
		return;
	out[8] = CTL_VERSION;
	out[12] = CTL_ACCEPTED_SIZE;
	put32(out + INET_ANSWER_SIZE, 1000);
	put32(out + INET_ANSWER_SIZE + 4, (how & 3) | (how >> 3 & 1) << 2); /* 4 and more make no sense */
	put64(out + INET_ANSWER_SIZE + 8, run.heard + (how >> 4 & 3));
	memcpy(out + INET_ANSWER_SIZE + 16, c->raw_hello + INET_HELLO_SIZE + 68, 8); /* what the rank says it has */
	out[INET_ANSWER_SIZE + 16] ^= how >> 6;
	make_mac(!(how & 4), c, out, out + 16);
	c->proved |= c->challenged && !(how & 4);
	c->accepted |= c->proved;
	say_raw(c, out, sizeof(out));
	turn();
}

static void ready(struct conn *c, uint8_t how)
{
	uint8_t body[64];
	const struct ctl_range range = {.first = how & 3, .count = 1 + (how >> 2 & 3)}; /* may be past the ranks */
	int some = range.first + range.count <= run.nranks || how & 0x40;

	ctl_ready_encode(run.rank, run.nranks, &range, some, NULL, body);
	say_kind(c, CTL_READY, body, how & 0x80 ? 0 : (uint32_t)ctl_ready_size(some, NULL, run.nranks));
	run.ready = 1;
	turn();
}

static void answer_time(struct conn *c)
{
	struct inet_header h = {.kind = CTL_TIME, .from = -1, .to = run.rank, .tag = c->asked_tag, .size = 8};
	uint8_t body[8];

	for (int i = 0; c->asked && i < 8; i++) {
		c->asked = 0;
		h.tag = c->asked_tag;
		put64(body, session.now + 77);
		say(c, &h, body);
		turn();
	}
}

static void rank_calls(int op)
{
	int other = next() % (run.nranks + 1) - (next() & 1), tag = next() & 3;
	size_t size = next(), room = next();
	uint8_t *in = malloc(size), *out = malloc(op == RANK_GATHER ? size * (size_t)run.nranks : room);

	MUST(in && out);
	memset(in, 0x5a, size);
	run.waits++;
	if (op == RANK_SEND)
		gantry_ctl_send(run.ctl, other, (uint64_t)tag, in, size);
	else if (op == RANK_RECV)
		gantry_ctl_try_recv(run.ctl, other, (uint64_t)tag, in, size);
	else if (op == RANK_CALL)
		gantry_ctl_call(run.ctl, other, (uint32_t)tag, in, size, out, &room);
	else if (op == RANK_GATHER)
		gantry_ctl_allgather(run.ctl, in, size, out);
	else
		gantry_ctl_wait(run.ctl, 2 * SECOND);
	run.waits--;
	free(in);
	free(out);
}

static void rank_step(void)
{
	static const int errors[] = {ECONNREFUSED, ENETUNREACH, EMFILE, EACCES};
	struct conn *c = &run.conns[0];
	int op = next() % RANK_OPS;

	switch (op) {
	case RANK_CHALLENGE:
		challenge(c, next());
		break;
	case RANK_ACCEPTED:
		accept_rank(c, next());
		break;
	case RANK_READY:
		ready(c, next());
		break;
	case RANK_CLOCK:
		answer_time(c);
		break;
	case RANK_LET_IN:
		turn();
		challenge(c, 0);
		accept_rank(c, next() & 3);
		answer_time(c);
		ready(c, 1);
		break;
	case RANK_FRAME:
		say_any(c);
		break;
	case RANK_BYTES:
		say_bytes(c);
		break;
	case RANK_CLOSE:
		if (next() & 1)
			conn_reset(c);
		else
			conn_close(c);
		break;
	case RANK_REFUSES:
		session.refuse = errors[next() & 3];
		break;
	case RANK_TIME:
		pass_time(next() & 3);
		break;
	default:
		if (run.ctl && !run.waits)
			rank_calls(op);
	}
	turn();
}

/* Somebody waits: the script goes on; when it is over, time does. */
static void while_waiting(void)
{
	if (run.steps++ < MAX_STEPS && session.in.at < session.in.end) {
		rank_step();
		return;
	}
	session.now += SECOND;
	turn();
}

bool __wrap_gantry_cond_wait(struct gantry_cond *c, struct gantry_mutex *mu, uint64_t deadline)
{
	if (session.now >= deadline)
		return false;
	gantry_mutex_unlock(mu);
	while_waiting();
	gantry_mutex_lock(mu);
	return true;
}

static void on_lost(void *ctx, int rank, gantry_result why, const char *text)
{
	MUST(why != GANTRY_OK && why != GANTRY_AGAIN && strlen(text) < 2 * CTL_TEXT_MAX && rank >= -1 &&
	     rank < run.nranks);
	MUST(rank < 0 || !run.lost[rank]++);
}

static gantry_result on_call(void *ctx, int from, uint32_t kind, const void *data, size_t size, void *reply,
			     size_t *reply_size)
{
	if (kind & 1)
		return GANTRY_ERR_UNSUPPORTED;
	MUST(*reply_size >= size);
	memcpy(reply, data, size);
	*reply_size = size;
	return GANTRY_OK;
}

static void run_rank(uint8_t how) UNCHECKED
{
	struct ctl_id id = {.version = CTL_VERSION, .comm_id = COMM_ID};
	struct gantry_unique_id raw;
	gantry_result r;
	struct gantry_ctl_config config = {.id = &raw, .on_lost = on_lost, .on_call = on_call};

	run.nranks = config.nranks = 1 + (how >> 1 & 3);
	run.rank = config.rank = (how >> 3 & 3) % run.nranks;
	config.tell_left = how >> 5 & 1;
	if (how & 0x40)
		config.on_call = NULL;
	id.addr.in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = 7, .sin_addr.s_addr = 0x0100007f};
	memcpy(id.key, run.key, sizeof(id.key));
	run.proves.auth = GANTRY_HAVE_OPENSSL ? INET_AUTH_KEY : INET_AUTH_SHOWN;
	ctl_id_encode(&id, &raw);
	r = gantry_ctl_join(&config, &run.ctl);
	if (r == GANTRY_OK)
		MUST(run.conns[0].proved && run.conns[0].hello && run.ready);
	else
		run.ctl = NULL;
	MUST(r != GANTRY_AGAIN);
	while (run.ctl && run.steps++ < MAX_STEPS && session.in.at < session.in.end)
		rank_step();
	gantry_ctl_leave(run.ctl);
	turn();
	conn_close(&run.conns[0]);
	for (int i = 0; i < 3; i++)
		pass_time(4);
	MUST(!ctl_service.nleaving && gantry_list_empty(&ctl_service.members));
}

/* ---- life ---- */

static void begin(void)
{
	struct ctl_service *s = &ctl_service;

	session.on = 1;
	session.now = 1000 * SECOND;
	session.coming = -1;
	for (int i = 0; i < CONNS; i++)
		run.conns[i].fd = -1;
	for (size_t i = 0; i < sizeof(run.key); i++)
		run.key[i] = (uint8_t)(i * 7 + 1);
	inet_loop_lock();
	MUST(ctl_service_start() == GANTRY_OK);
	inet_loop.now = session.now;
	s->due = UINT64_MAX;
	inet_loop_unlock();
}

static void finish(void)
{
	struct ctl_service *s = &ctl_service;

	MUST(gantry_list_empty(&s->streams.open) && gantry_list_empty(&s->streams.finishing) &&
	     gantry_list_empty(&s->streams.dead));
	MUST(gantry_list_empty(&s->streams.dirty) && gantry_list_empty(&s->events) && gantry_list_empty(&s->hubs));
	session.on = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t how;

	session_begin(data, size);
	setenv("GANTRY_CONNECT_TIMEOUT", "6s", 1);
	setenv("GANTRY_CALL_TIMEOUT", "6s", 1); /* peers that live and never call would keep it for ever */
	setenv("GANTRY_EXCHANGE_RANKS", "2", 1);
	setenv("GANTRY_TIMEOUT", "4s", 1);
	MUST(gantry_params_load(0) == GANTRY_OK);
	memset(&run, 0, sizeof(run));
	how = next();
	run.resume = how & (how & 1 ? 0x80 : 8) ? INET_RESUME_YES : INET_RESUME_NO;
	begin();
	if (how & 1)
		run_rank(how);
	else
		run_hub(how);
	finish();
	return 0;
}
