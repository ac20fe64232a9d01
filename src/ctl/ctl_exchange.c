/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "ctl/ctl_exchange.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "ctl/ctl_member.h"
#include "inet/sock.h"

enum { ATTEMPT_MS = 5000, CANDIDATE_MS = 1000, MS = 1000000, LINGER_NS = 1000000000 };

static void move_on(struct gantry_ctl *m) REQUIRES(loop_mu);

/* ---- what the hub is told ---- */

static void tell_hub(struct gantry_ctl *m, gantry_result r, const char *text) REQUIRES(loop_mu)
{
	struct ctl_head h = {.kind = CTL_HAVE, .from = m->config.rank, .to = -1, .tag = m->direct.exchange->number};

	if (m->direct.exchange->told || !m->conn)
		return;
	m->direct.exchange->told = 1;
	h.result = (uint32_t)r;
	h.size = (uint32_t)strlen(text);
	ctl_conn_send(m->conn, &h, text);
}

/* Everybody hears why from the hub, this rank as well. */
static void give_up(struct gantry_ctl *m, gantry_result r, const char *fmt, ...) REQUIRES(loop_mu)
	__attribute__((format(printf, 3, 4)));
static void give_up(struct gantry_ctl *m, gantry_result r, const char *fmt, ...)
{
	char text[CTL_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	inet_source_close(&m->direct.exchange->dial);
	m->direct.exchange->step = EXCHANGE_IDLE;
	tell_hub(m, r, text);
}

/* ---- sending ---- */

static int receiver(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	return ctl_bruck_to(m->config.rank, m->config.nranks, m->direct.exchange->bruck.sent);
}

static const struct gantry_addr *receiver_addr(const struct ctl_exchange *x)
{
	return &x->addrs[x->tries % (uint32_t)x->naddrs];
}

/* Again after a pause, as long as connecting may take. Time that the receiver let the hand-shake wait, because it had not come
 * to the allgather, does not count. */
static void attempt_failed(struct gantry_ctl *m, const char *cause) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;
	char addr[GANTRY_ADDR_TEXT], seconds[16];

	inet_source_close(&x->dial);
	if (!x->failing_since ||
	    (x->step == EXCHANGE_SHAKING && inet_loop.now - x->shaking_since >= (uint64_t)ATTEMPT_MS * MS))
		x->failing_since = inet_loop.now;
	if (inet_loop.now - x->failing_since >= m->connect_timeout) {
		give_up(m, GANTRY_ERR_UNREACHABLE, "no way to rank %d at %s within %s (GANTRY_CONNECT_TIMEOUT): %s",
			receiver(m), gantry_addr_text(receiver_addr(x), addr), ctl_seconds(m->connect_timeout, seconds),
			cause);
		return;
	}
	x->retry_at = inet_retry_at(inet_loop.now, x->tries++);
	if (x->retry_at > x->failing_since + m->connect_timeout)
		x->retry_at = x->failing_since + m->connect_timeout; /* a last attempt, then its cause is told */
	x->step = EXCHANGE_PAUSE;
	ctl_service_due(x->retry_at);
}

static void block_arrived(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;

	x->bruck.sent++;
	x->step = EXCHANGE_IDLE;
	move_on(m);
}

static int hear_have(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;
	int right = h->kind == CTL_HAVE && h->tag == m->direct.exchange->number;

	(void)body;
	m->direct.exchange->conn = NULL;
	ctl_conn_close(c);
	if (right)
		block_arrived(m);
	else
		attempt_failed(m, "it broke the protocol");
	return 1;
}

static void sending_broke(struct ctl_conn *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;

	(void)why;
	m->direct.exchange->conn = NULL;
	ctl_conn_close(c);
	attempt_failed(m, cause);
}

static const struct ctl_conn_ops sending_ops = {.frame = hear_have, .broken = sending_broke};

static void send_block(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;
	int round = x->bruck.sent;
	struct ctl_head h = {.kind = CTL_BLOCK, .from = m->config.rank, .to = receiver(m), .tag = x->number};
	struct ctl_buf *b;

	h.size = (uint32_t)ctl_bruck_size(&x->bruck, round);
	if (ctl_conn_make(inet_source_release(&x->dial), &x->shake.seals, receiver_addr(x), &sending_ops, m,
			  &x->conn) != GANTRY_OK) {
		give_up(m, GANTRY_ERR_NOMEM, "%s", gantry_last_error());
		return;
	}
	x->step = EXCHANGE_SENT;
	b = ctl_buf_make(&h, NULL);
	if (b)
		ctl_bruck_fill(&x->bruck, round, b->bytes + CTL_HEAD_SIZE);
	ctl_conn_write(x->conn, ctl_out_make(b));
}

/* It has failed, or stands still within a message: a bit may have been flipped on the way. */
static void misshaken(struct gantry_ctl *m, gantry_result r, const char *why) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;
	char addr[GANTRY_ADDR_TEXT];

	if (++x->misshakes < INET_TRIES)
		attempt_failed(m, why);
	else
		give_up(m, r, "rank %d at %s: %s", receiver(m), gantry_addr_text(receiver_addr(x), addr), why);
}

static void shake_failed(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct inet_handshake *h = &m->direct.exchange->shake;

	if (h->broken)
		attempt_failed(m, h->broken_errno ? strerror(h->broken_errno)
						  : "the connection was closed without a goodbye");
	else if (h->refused && h->error == GANTRY_ERR_REFUSED)
		attempt_failed(m, h->text);
	else
		misshaken(m, h->error, h->text);
}

static void start_hello(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;
	uint8_t out[CTL_EXCHANGE_SIZE];

	ctl_exchange_hello_encode(
		&(struct ctl_exchange_hello){
			.comm_id = m->id.comm_id, .number = x->number, .from = m->config.rank, .to = receiver(m)},
		out);
	inet_handshake_end(&x->shake); /* of an attempt before */
	if (inet_handshake_start_client(&x->shake, &exchange_service.protocol, &m->key, out, sizeof(out)) !=
	    GANTRY_OK) {
		give_up(m, GANTRY_ERR_SYSTEM, "%s", gantry_last_error());
		return;
	}
	x->step = EXCHANGE_SHAKING; /* until the receiver is in the allgather: the hub notices if it dies before */
	x->shaking_since = inet_loop.now;
	x->attempt_by = UINT64_MAX;
}

static void move_shake(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;
	enum inet_event event = inet_handshake_move(&x->shake, x->dial.fd);

	inet_source_set(&x->dial, inet_handshake_events(&x->shake));
	if (event == INET_FAILED) {
		shake_failed(m);
	} else if (event == INET_DONE) {
		x->failing_since = 0;
		x->misshakes = 0;
		if (x->shake.payload_size == 1 && x->shake.payload[0]) {
			inet_source_close(&x->dial);
			block_arrived(m);
		} else {
			send_block(m);
		}
	} else if (!x->shake.got) {
		x->attempt_by = UINT64_MAX;
	} else if (x->attempt_by == UINT64_MAX) {
		x->attempt_by = inet_loop.now + (uint64_t)ATTEMPT_MS * MS;
		ctl_service_due(x->attempt_by);
	}
}

static void dial_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = gantry_container(s, struct ctl_exchange, dial);
	struct gantry_ctl *m = x->member;
	socklen_t len = sizeof(int);
	int e = 0;

	if (x->step == EXCHANGE_CONNECTING) {
		if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
			return;
		getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &e, &len);
		if (e) {
			attempt_failed(m, strerror(e));
			return;
		}
		start_hello(m);
	}
	if (inet_loop.parting && x->step == EXCHANGE_SHAKING)
		give_up(m, GANTRY_ERR_ABORTED, "the process exits");
	if (x->step == EXCHANGE_SHAKING)
		move_shake(m);
}

static void dial(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;
	int e;

	x->dial = (struct inet_source){.fd = -1, .ready = dial_ready};
	x->step = EXCHANGE_CONNECTING;
	e = sock_connect(NULL, NULL, receiver_addr(x), &x->dial.fd);
	if (!e && inet_source_add(&x->dial, EPOLLOUT) != GANTRY_OK)
		e = ENOMEM;
	if (e) {
		attempt_failed(m, strerror(e));
		return;
	}
	x->attempt_by = inet_loop.now + (uint64_t)(x->naddrs > 1 ? CANDIDATE_MS : ATTEMPT_MS) * MS;
	ctl_service_due(x->attempt_by);
}

/* The next message, if it may go; or the word to the hub that all is done here. */
static void move_on(struct gantry_ctl *m)
{
	struct ctl_exchange *x = m->direct.exchange;
	int round = ctl_bruck_next(&x->bruck);

	if (ctl_bruck_done(&x->bruck))
		tell_hub(m, GANTRY_OK, "");
	if (x->told || x->step != EXCHANGE_IDLE || round < 0)
		return;
	x->tries = x->misshakes = 0;
	x->failing_since = 0;
	if (inet_candidates(&m->direct.addrs[round], x->addrs, &x->naddrs) != GANTRY_OK)
		give_up(m, GANTRY_ERR_UNREACHABLE, "rank %d: %s", receiver(m), gantry_last_error());
	else
		dial(m);
}

/* ---- receiving ---- */

static int hear_block(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;
	struct ctl_exchange *x = m->direct.exchange;
	const struct ctl_head have = {.kind = CTL_HAVE, .from = m->config.rank, .to = h->from, .tag = h->tag};

	if (!x || h->kind != CTL_BLOCK || h->tag != x->number ||
	    ctl_bruck_take(&x->bruck, h->from, body, h->size) != GANTRY_OK) {
		ctl_conn_close(c);
		return 1;
	}
	ctl_conn_send(c, &have, NULL);
	ctl_conn_finish(c, LINGER_NS);
	move_on(m);
	return 1;
}

static void receiving_broke(struct ctl_conn *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	(void)why, (void)cause;
	ctl_conn_close(c); /* its sender dials again, or is lost */
}

static const struct ctl_conn_ops receiving_ops = {.frame = hear_block, .broken = receiving_broke};

static struct gantry_ctl *find_member(uint64_t tag) REQUIRES(loop_mu)
{
	gantry_list_each_entry (m, &ctl_service.members, struct gantry_ctl, node)
		if (m->direct.tag == tag)
			return m;
	return NULL;
}

static void on_hello(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct ctl_exchange_hello h;

	if (c->shake.peer_version == exchange_service.protocol.version &&
	    ctl_exchange_hello_decode(c->shake.payload, c->shake.payload_size, &h) != GANTRY_OK) {
		inet_conn_refuse(c, GANTRY_ERR_PROTOCOL, "not a hello");
		return;
	}
	gantry_list_each_entry (m, &ctl_service.members, struct gantry_ctl, node) {
		if (c->shake.peer_version != exchange_service.protocol.version ||
		    (m->id.comm_id == h.comm_id && m->config.rank == h.to && m->direct.tag)) {
			c->tag = m->direct.tag;
			inet_conn_challenge(c, &m->key);
			return;
		}
	}
	inet_conn_refuse(c, GANTRY_ERR_REFUSED, "this rank is not here: it has left, or its process was started anew");
}

/* Answered at once if the allgather is the one that goes on here or an earlier one, else when it begins. */
static void on_proved(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = find_member(c->tag);
	struct ctl_exchange_hello h;
	struct ctl_exchange *x;
	struct ctl_conn *conn;
	struct gantry_addr from = c->addr;
	struct inet_seals seals;
	uint8_t have;
	int fd;

	if (!m || ctl_exchange_hello_decode(c->shake.payload, c->shake.payload_size, &h) != GANTRY_OK) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "this rank has just left");
		return;
	}
	x = m->direct.exchange;
	if (h.number > m->last_gather) {
		c->deadline = UINT64_MAX; /* a late call has none */
		return;
	}
	have = !x || h.number < x->number || ctl_bruck_has(&x->bruck, h.from);
	if (!inet_conn_accept(c, &have, sizeof(have)))
		return;
	fd = inet_conn_take(c, &seals);
	if (ctl_conn_make(fd, &seals, &from, &receiving_ops, m, &conn) != GANTRY_OK)
		return; /* it finds the connection closed, and comes again */
	if (have)
		ctl_conn_finish(conn, LINGER_NS);
	else
		conn->in.max_gathered = (uint32_t)(x->bruck.part * (size_t)m->config.nranks);
}

struct inet_service exchange_service = {
	.protocol = {"ctlx", CTL_VERSION, "receiving rank's side", "sending rank's side", NULL},
	.hello = on_hello,
	.proved = on_proved,
};

/* ---- life ---- */

struct ctl_exchange *ctl_exchange_make(struct gantry_ctl *m, size_t part, void *all)
{
	struct ctl_exchange *x = calloc(1, sizeof(*x));

	if (!x)
		return NULL;
	x->member = m;
	x->dial.fd = -1;
	ctl_bruck_start(&x->bruck, m->config.rank, m->config.nranks, part, all);
	return x;
}

static void begin(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct inet_conn *next = inet_conn_waiting(&exchange_service, NULL);

	m->direct.exchange->begun = 1;
	while (next) {
		struct inet_conn *c = next;

		next = inet_conn_waiting(&exchange_service, c);
		if (c->tag == m->direct.tag)
			on_proved(c);
	}
	move_on(m);
}

void ctl_exchange_tick(struct gantry_ctl *m)
{
	struct ctl_exchange *x = m->direct.exchange;

	if (!x || !m->conn)
		return;
	if (!x->begun)
		begin(m);
	if (x->step == EXCHANGE_CONNECTING && inet_loop.now >= x->attempt_by)
		attempt_failed(m, "no answer: a firewall may drop the packets");
	if (x->step == EXCHANGE_SHAKING && inet_loop.now >= x->attempt_by)
		misshaken(m, GANTRY_ERR_PROTOCOL, "its answer is not whole");
	if (x->step == EXCHANGE_PAUSE && inet_loop.now >= x->retry_at)
		dial(m);
	if (x->step == EXCHANGE_PAUSE)
		ctl_service_due(x->retry_at);
	if (x->step == EXCHANGE_CONNECTING || x->step == EXCHANGE_SHAKING)
		ctl_service_due(x->attempt_by);
}

static void close_received(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	gantry_list_each_entry_safe (c, &ctl_service.conns, struct ctl_conn, node)
		if (c->ops == &receiving_ops && c->owner == m)
			ctl_conn_close(c);
}

void ctl_exchange_end(struct gantry_ctl *m)
{
	struct ctl_exchange *x = m->direct.exchange;

	if (!x)
		return;
	inet_source_close(&x->dial);
	ctl_conn_close(x->conn);
	close_received(m);
	m->direct.exchange = NULL;
	inet_handshake_end(&x->shake);
	free(x);
}

void ctl_exchange_forget(struct gantry_ctl *m)
{
	close_received(m);
	if (m->direct.tag)
		inet_conns_drop(&exchange_service, m->direct.tag);
}
