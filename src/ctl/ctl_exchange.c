/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "ctl/ctl_exchange.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "ctl/ctl_member.h"

enum { ATTEMPT_MS = 5000, CANDIDATE_MS = 1000, MS = 1000000, LINGER_NS = 1000000000 };

static void move_on(struct gantry_ctl *m) REQUIRES(loop_mu);

/* ---- reports to the hub ---- */

static void tell_hub(struct gantry_ctl *m, gantry_result r, const char *text) REQUIRES(loop_mu)
{
	struct inet_header h = {.kind = CTL_HAVE, .from = m->config.rank, .to = -1, .tag = m->direct.exchange->number};

	if (m->direct.exchange->told || !m->conn)
		return;
	m->direct.exchange->told = 1;
	h.result = (uint32_t)r;
	h.size = (uint32_t)strlen(text);
	inet_stream_send(m->conn, &h, text);
}

/* The hub sends the reason to all ranks, this one included. */
static void give_up(struct gantry_ctl *m, gantry_result r, const char *fmt, ...) REQUIRES(loop_mu)
	__attribute__((format(printf, 3, 4)));
static void give_up(struct gantry_ctl *m, gantry_result r, const char *fmt, ...)
{
	char text[CTL_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	inet_dial_stop(&m->direct.exchange->dial);
	m->direct.exchange->step = EXCHANGE_IDLE;
	tell_hub(m, r, text);
}

/* ---- sending ---- */

static int receiver(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	return ctl_bruck_to(m->config.rank, m->config.nranks, m->direct.exchange->bruck.sent);
}

/* Again after a pause, as long as connecting may take. Time that the receiver let the hand-shake wait, because it had not come
 * to the allgather, does not count: waited. */
static void retry_later(struct gantry_ctl *m, const char *cause, bool waited) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;
	char addr[GANTRY_ADDR_TEXT], seconds[16];
	uint64_t at;

	if (!x->failing_since || waited)
		x->failing_since = inet_loop.now;
	if (inet_loop.now - x->failing_since >= m->connect_timeout) {
		give_up(m, GANTRY_ERR_UNREACHABLE, "cannot reach rank %d at %s within %s (GANTRY_CONNECT_TIMEOUT): %s",
			receiver(m), gantry_addr_text(&x->dial.to, addr), ctl_seconds(m->connect_timeout, seconds),
			cause);
		return;
	}
	at = inet_dial_retry_at(&x->dial);
	if (at > x->failing_since + m->connect_timeout)
		at = x->failing_since + m->connect_timeout; /* a last attempt, whose cause goes into the error */
	x->step = EXCHANGE_DIALLING;
	inet_dial_start(&x->dial, at);
}

static void block_arrived(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;

	x->bruck.sent++;
	x->step = EXCHANGE_IDLE;
	move_on(m);
}

static int hear_have(struct inet_stream *c, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;
	int right = h->kind == CTL_HAVE && h->tag == m->direct.exchange->number;

	(void)body;
	m->direct.exchange->conn = NULL;
	inet_stream_close(c);
	if (right)
		block_arrived(m);
	else
		retry_later(m, "it broke the protocol", false);
	return 1;
}

static void sending_broke(struct inet_stream *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;

	(void)why;
	m->direct.exchange->conn = NULL;
	inet_stream_close(c);
	retry_later(m, cause, false);
}

static const struct inet_stream_ops sending_ops = {.frame = hear_have, .broken = sending_broke};

static void send_block(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_exchange *x = m->direct.exchange;
	int round = x->bruck.sent, fd;
	struct inet_header h = {.kind = CTL_BLOCK, .from = m->config.rank, .to = receiver(m), .tag = x->number};
	struct inet_seals seals;
	struct inet_frame *b;

	h.size = (uint32_t)ctl_bruck_size(&x->bruck, round);
	fd = inet_dial_take(&x->dial, &seals);
	if (inet_stream_make(&ctl_service.streams, fd, &seals, &x->dial.to, &sending_ops, m, &x->conn) != GANTRY_OK) {
		give_up(m, GANTRY_ERR_NOMEM, "%s", gantry_last_error());
		return;
	}
	x->step = EXCHANGE_SENT;
	b = inet_frame_make(&h, NULL);
	if (b)
		ctl_bruck_fill(&x->bruck, round, b->bytes + INET_HEADER_SIZE);
	inet_stream_write(x->conn, inet_queued_make(b));
}

static struct gantry_ctl *member_of(struct inet_dial *d)
{
	return gantry_container(d, struct ctl_exchange, dial)->member;
}

static bool aim_at_receiver(struct inet_dial *d, struct inet_dial_aim *ret) REQUIRES(loop_mu)
{
	const struct ctl_exchange *x = member_of(d)->direct.exchange;

	ret->to = x->addrs[d->failures % (uint32_t)x->naddrs];
	ret->patience = (uint64_t)(x->naddrs > 1 ? CANDIDATE_MS : ATTEMPT_MS) * MS;
	return true;
}

/* The receiver answers when it is in the allgather; the hub notices if it dies before. */
static void fill_hello(struct inet_dial *d, struct inet_dial_hello *ret) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = member_of(d);

	ctl_exchange_hello_encode(&(struct ctl_exchange_hello){.comm_id = m->id.comm_id,
							       .number = m->direct.exchange->number,
							       .from = m->config.rank,
							       .to = receiver(m)},
				  ret->payload);
	ret->size = CTL_EXCHANGE_SIZE;
	ret->protocol = &exchange_service.protocol;
	ret->key = &m->key;
	ret->whole = (uint64_t)ATTEMPT_MS * MS;
}

static void receiver_answered(struct inet_dial *d) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = member_of(d);
	bool has_it = d->shake.payload_size == 1 && d->shake.payload[0];

	m->direct.exchange->failing_since = 0;
	d->misshakes = 0;
	if (has_it) {
		inet_dial_stop(d);
		block_arrived(m);
	} else {
		send_block(m);
	}
}

static void attempt_failed(struct inet_dial *d) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = member_of(d);
	const struct inet_handshake *h = &d->shake;
	bool shook = d->cause == INET_DIAL_BROKE || d->cause == INET_DIAL_REFUSED;
	char addr[GANTRY_ADDR_TEXT];

	if (d->cause == INET_DIAL_EXIT || d->cause == INET_DIAL_OWN) {
		give_up(m, d->cause == INET_DIAL_EXIT ? GANTRY_ERR_ABORTED : GANTRY_ERR_SYSTEM, "%s", d->text);
		return;
	}
	if (d->cause == INET_DIAL_REFUSED && h->refused && h->error == GANTRY_ERR_REFUSED)
		d->misshakes = 0; /* it has not come yet, or is on its way out: the hub knows */
	if (d->cause == INET_DIAL_REFUSED && d->misshakes >= INET_TRIES)
		give_up(m, h->error, "rank %d at %s: %s", receiver(m), gantry_addr_text(&d->to, addr), d->text);
	else
		retry_later(m, d->text, shook && gantry_now_ns() - d->shaking.since >= (uint64_t)ATTEMPT_MS * MS);
}

static const struct inet_dial_ops receiver_ops = {
	.aim = aim_at_receiver,
	.hello = fill_hello,
	.done = receiver_answered,
	.failed = attempt_failed,
};

/* The next message, if it may go; or the word to the hub that all is done here. */
static void move_on(struct gantry_ctl *m)
{
	struct ctl_exchange *x = m->direct.exchange;
	int round = ctl_bruck_next(&x->bruck);

	if (ctl_bruck_done(&x->bruck))
		tell_hub(m, GANTRY_OK, "");
	if (x->told || x->step != EXCHANGE_IDLE || round < 0)
		return;
	inet_dial_reset(&x->dial);
	x->failing_since = 0;
	if (inet_candidates(&m->direct.addrs[round], x->addrs, &x->naddrs) != GANTRY_OK) {
		give_up(m, GANTRY_ERR_UNREACHABLE, "rank %d: %s", receiver(m), gantry_last_error());
		return;
	}
	x->step = EXCHANGE_DIALLING;
	inet_dial_start(&x->dial, 0);
}

/* ---- receiving ---- */

static int hear_block(struct inet_stream *c, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;
	struct ctl_exchange *x = m->direct.exchange;
	const struct inet_header have = {.kind = CTL_HAVE, .from = m->config.rank, .to = h->from, .tag = h->tag};

	if (!x || h->kind != CTL_BLOCK || h->tag != x->number ||
	    ctl_bruck_take(&x->bruck, h->from, body, h->size) != GANTRY_OK) {
		inet_stream_close(c);
		return 1;
	}
	inet_stream_send(c, &have, NULL);
	inet_stream_finish(c, LINGER_NS);
	move_on(m);
	return 1;
}

static void receiving_broke(struct inet_stream *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	(void)why, (void)cause;
	inet_stream_close(c); /* its sender dials again, or is lost */
}

static const struct inet_stream_ops receiving_ops = {.frame = hear_block, .broken = receiving_broke};

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
	inet_conn_refuse(c, GANTRY_ERR_REFUSED, "this rank is not here: it has left, or its process was restarted");
}

/* Answered at once if the allgather is the one that goes on here or an earlier one, else when it begins. */
static void on_proved(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = find_member(c->tag);
	struct ctl_exchange_hello h;
	struct ctl_exchange *x;
	struct inet_stream *conn;
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
	if (inet_stream_make(&ctl_service.streams, fd, &seals, &from, &receiving_ops, m, &conn) != GANTRY_OK)
		return; /* it finds the connection closed, and comes again */
	if (have)
		inet_stream_finish(conn, LINGER_NS);
	else
		conn->in.max_grown = (uint32_t)(x->bruck.part * (size_t)m->config.nranks);
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
	inet_dial_init(&x->dial, &receiver_ops);
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
}

static void close_received(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	gantry_list_each_entry_safe (c, &ctl_service.streams.open, struct inet_stream, node)
		if (c->ops == &receiving_ops && c->owner == m)
			inet_stream_close(c);
}

void ctl_exchange_end(struct gantry_ctl *m)
{
	struct ctl_exchange *x = m->direct.exchange;

	if (!x)
		return;
	inet_dial_end(&x->dial);
	inet_stream_close(x->conn);
	close_received(m);
	m->direct.exchange = NULL;
	free(x);
}

void ctl_exchange_forget(struct gantry_ctl *m)
{
	close_received(m);
	if (m->direct.tag)
		inet_conns_drop(&exchange_service, m->direct.tag);
}
