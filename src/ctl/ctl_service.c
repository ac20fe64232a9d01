/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane's connections: frames in, frames out, never blocking; and its part of the loop. ctl_service.h has the
 * why. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "ctl/ctl_service.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "ctl/ctl_member.h"
#include "ctl/hub.h"
#include "inet/sock.h"

enum { READS_PER_EVENT = 8, IOVECS = 64, HUBS_WAIT_MS = 500 };
static const uint64_t slack_max_ns = 500000000;

#ifndef CTL_PLANTED
#define CTL_PLANTED                                                                                                    \
	0 /* a bug for tests of tests; 1: what comes twice is not dropped, 2: what is kept is trimmed too early */
#endif

#define LIST_OF(name) .name = {&ctl_service.name, &ctl_service.name}
struct ctl_service ctl_service = {LIST_OF(conns), LIST_OF(finishing), LIST_OF(dead),  LIST_OF(dirty),
				  LIST_OF(hubs),  LIST_OF(members),   LIST_OF(events)};
static struct inet_client client;

const char *ctl_seconds(uint64_t ns, char buf[16])
{
	snprintf(buf, 16, "%.3g s", (double)ns / 1e9);
	return buf;
}

void ctl_service_due(uint64_t when)
{
	if (when < ctl_service.due)
		ctl_service.due = when;
}

uint64_t ctl_patience(uint64_t timeout)
{
	uint64_t slack = timeout / 16;

	return timeout + (slack < slack_max_ns ? slack : slack_max_ns);
}

int ctl_silent(uint64_t *last_seen, uint64_t timeout)
{
	uint64_t now = inet_loop.now;

	/* This thread was delayed: messages of peers may still be in the socket, and peers could not answer requests
	 * that were not sent. */
	if (ctl_service.late > timeout / 8 && now - *last_seen > timeout / 2)
		*last_seen = now - timeout / 2;
	return now - *last_seen >= ctl_patience(timeout);
}

/* ---- frames to be sent ---- */

struct ctl_buf *ctl_buf_make(const struct ctl_head *h, const void *body)
{
	struct ctl_buf *b = malloc(sizeof(*b) + CTL_HEAD_SIZE + h->size);

	if (!b)
		return NULL;
	b->refs = 1;
	b->size = CTL_HEAD_SIZE + (size_t)h->size;
	ctl_head_encode(h, b->bytes);
	if (h->size && body)
		memcpy(b->bytes + CTL_HEAD_SIZE, body, h->size);
	return b;
}

void ctl_buf_put(struct ctl_buf *b)
{
	ASSERT(!b || b->refs > 0);
	if (b && --b->refs == 0)
		free(b);
}

struct ctl_out *ctl_out_make(struct ctl_buf *b)
{
	struct ctl_out *o = b ? malloc(sizeof(*o)) : NULL;

	if (!o) {
		ctl_buf_put(b);
		return NULL;
	}
	gantry_list_init(&o->node);
	o->buf = b;
	o->sealed = NULL;
	return o;
}

void ctl_out_free(struct ctl_out *o)
{
	if (!o)
		return;
	gantry_list_remove(&o->node);
	ctl_buf_put(o->buf);
	ctl_buf_put(o->sealed);
	free(o);
}

/* ---- writing ---- */

static const char no_memory[] = "no memory for an outgoing message";

static void mark_dirty(struct ctl_conn *c)
{
	if (gantry_list_empty(&c->dirty))
		gantry_list_append(&ctl_service.dirty, &c->dirty);
}

/* The frame in sealed records, in a buffer of its own: others get it under other keys, and so does another socket. */
static bool seal_frame(struct ctl_conn *c, struct ctl_out *o)
{
	size_t left = o->buf->size, records = (left + GANTRY_SEAL_MAX - 1) / GANTRY_SEAL_MAX, n;
	struct ctl_buf *sealed = malloc(sizeof(*sealed) + left + records * GANTRY_SEAL_EXTRA);

	ASSERT(c->seals.tx && !o->sealed);
	if (!sealed)
		goto failed;
	sealed->refs = 1;
	sealed->size = 0;
	for (uint8_t *from = o->buf->bytes; left; left -= n, from += n) {
		size_t size;

		n = left < GANTRY_SEAL_MAX ? left : GANTRY_SEAL_MAX;
		size = gantry_seal_close(c->seals.tx, &(struct iovec){from, n}, 1, sealed->bytes + sealed->size);
		if (!size)
			goto failed;
		sealed->size += size;
	}
	o->sealed = sealed;
	return true;
failed:
	free(sealed);
	return false;
}

void ctl_conn_write(struct ctl_conn *c, struct ctl_out *o)
{
	if (c->closed || c->fault) {
		ctl_out_free(o);
		return;
	}
	mark_dirty(c);
	if (!o) {
		c->fault = no_memory;
		return;
	}
	if (c->out_bytes > CTL_OUT_MAX) {
		c->fault = "not reading: 64 MiB are queued";
		ctl_out_free(o);
		return;
	}
	c->out_bytes += o->buf->size;
	gantry_list_append(&c->out, &o->node);
}

void ctl_conn_share(struct ctl_conn *c, struct ctl_buf *b)
{
	if (b)
		b->refs++;
	ctl_conn_write(c, ctl_out_make(b));
}

void ctl_conn_send(struct ctl_conn *c, const struct ctl_head *h, const void *body)
{
	ctl_conn_write(c, ctl_out_make(ctl_buf_make(h, body)));
}

void ctl_conn_send_life(struct ctl_conn *c)
{
	const struct ctl_head life = {.kind = CTL_LIFE, .from = -1, .to = -1, .tag = c->session.received};

	c->session.told = c->session.received;
	c->session.untold = 0;
	ctl_conn_send(c, &life, NULL);
}

static struct ctl_out *first_of(struct gantry_list *list)
{
	return gantry_list_empty(list) ? NULL : gantry_container(list->next, struct ctl_out, node);
}

static void drop_frame(struct ctl_conn *c, struct ctl_out *o)
{
	ASSERT(c->out_bytes >= o->buf->size);
	c->out_bytes -= o->buf->size;
	ctl_out_free(o);
}

static void drop_out(struct ctl_conn *c)
{
	gantry_list_each_entry_safe (o, &c->out, struct ctl_out, node)
		drop_frame(c, o);
	gantry_list_each_entry_safe (o, &c->session.kept, struct ctl_out, node)
		drop_frame(c, o);
	c->session.nkept = 0;
	c->out_at = 0;
}

static bool is_counted(const struct ctl_out *o)
{
	return ctl_head_kind(o->buf->bytes) != CTL_LIFE;
}

/* As it goes over this socket. NULL: no memory. */
static const struct ctl_buf *wire_form(struct ctl_conn *c, struct ctl_out *o)
{
	if (!c->seals.tx)
		return o->buf;
	return o->sealed || seal_frame(c, o) ? o->sealed : NULL;
}

/* The kernel has all of it. */
static void frame_written(struct ctl_conn *c, struct ctl_out *o)
{
	if (!c->session.on || !is_counted(o)) {
		drop_frame(c, o);
		return;
	}
	ctl_buf_put(o->sealed);
	o->sealed = NULL;
	gantry_list_remove(&o->node);
	gantry_list_append(&c->session.kept, &o->node);
	c->session.nkept++;
	if (c->session.sent < c->session.acked + c->session.nkept)
		c->session.sent = c->session.acked + c->session.nkept;
}

static void note_written(struct ctl_conn *c, size_t n)
{
	struct ctl_out *o;

	if (c->traffic)
		c->traffic->out += n;
	n += c->out_at;
	while ((o = first_of(&c->out)) && n >= (o->sealed ? o->sealed : o->buf)->size) {
		n -= (o->sealed ? o->sealed : o->buf)->size;
		frame_written(c, o);
	}
	ASSERT(o || !n);
	c->out_at = n;
}

/* What was written is acknowledged by then, or TCP's back-off is about to begin. */
static void look_later(struct ctl_conn *c) REQUIRES(loop_mu)
{
	if (c->look_by || c->backoff.kind == BACKOFF_CAPPED)
		return;
	c->look_by = inet_loop.now + sock_backoff_interval(gantry_params()->timeout);
	ctl_service_due(c->look_by);
}

/* The first frames that wait. 0: no memory for their wire form. */
static size_t fill_iov(struct ctl_conn *c, struct iovec iov[IOVECS])
{
	size_t n = 0, skip = c->out_at;

	gantry_list_each_entry (o, &c->out, struct ctl_out, node) {
		const struct ctl_buf *b = n < IOVECS ? wire_form(c, o) : NULL;

		if (!b)
			break;
		ASSERT(skip < b->size);
		iov[n].iov_base = (void *)(b->bytes + skip);
		iov[n++].iov_len = b->size - skip;
		skip = 0;
	}
	return n;
}

static void flush_conn(struct ctl_conn *c) REQUIRES(loop_mu)
{
	ASSERT(!c->closed && c->source.fd >= 0);
	while (!gantry_list_empty(&c->out) && !c->out_dead) {
		struct iovec iov[IOVECS];
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = fill_iov(c, iov)};
		ssize_t n;

		if (!msg.msg_iovlen) {
			c->fault = no_memory;
			mark_dirty(c); /* the next in turn: it is broken then */
			return;
		}
		n = sendmsg(c->source.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n >= 0) {
			note_written(c, (size_t)n);
			look_later(c);
		} else if (errno == EAGAIN || errno == ENOBUFS) {
			break;
		} else if (errno != EINTR) {
			c->out_dead = errno;
		}
	}
	if (c->out_dead && !c->session.on)
		drop_out(c);
	if (c->finish_by && gantry_list_empty(&c->out))
		shutdown(c->source.fd, SHUT_WR);
	inet_source_set(&c->source, gantry_list_empty(&c->out) || c->out_dead ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

static void flush_conns(void) REQUIRES(loop_mu)
{
	while (!gantry_list_empty(&ctl_service.dirty)) {
		struct ctl_conn *c = gantry_container(ctl_service.dirty.next, struct ctl_conn, dirty);

		gantry_list_remove(&c->dirty);
		if (c->closed)
			continue;
		if (c->fault) /* may give others something to write */
			c->ops->broken(c, GANTRY_ERR_PEER_LOST, c->fault);
		else if (!ctl_conn_is_cut(c))
			flush_conn(c);
	}
}

/* ---- reading ---- */

/* The peer has so many frames: those need not be kept. Of these, some may wait to be sent again, on this socket: the peer
 * expects them there, and drops them. */
static void trim_kept(struct ctl_conn *c, uint64_t received)
{
	struct ctl_session *s = &c->session;
	struct ctl_out *o;

	while (s->acked < received && (o = first_of(&s->kept))) {
		ASSERT(s->nkept);
		drop_frame(c, o);
		s->acked++;
		s->nkept--;
	}
}

bool ctl_conn_counts(const struct ctl_conn *c, uint64_t received)
{
	return received >= c->session.acked && received <= c->session.sent;
}

/* Whether the frame is news. 1: it is, 0: it is not, -1: it cannot be. */
static int count_frame(struct ctl_conn *c, const struct ctl_head *h)
{
	struct ctl_session *s = &c->session;

	if (!s->on)
		return 1;
	if (h->kind == CTL_LIFE) {
		if (h->tag > s->acked && !ctl_conn_counts(c, h->tag))
			return -1;
		trim_kept(c, CTL_PLANTED == 2 ? UINT64_MAX : h->tag);
		return 1;
	}
	if (s->twice && CTL_PLANTED != 1) {
		s->twice--;
		return 0;
	}
	s->received++;
	s->untold += CTL_HEAD_SIZE + (size_t)h->size;
	ASSERT(s->told <= s->received);
	if (s->received - s->told >= CTL_ACK_FRAMES || s->untold >= CTL_ACK_BYTES)
		ctl_conn_send_life(c);
	return 1;
}

static int on_frame(void *ctx, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct ctl_conn *c = ctx;
	int news = count_frame(c, h);

	if (news < 0) {
		c->ops->broken(c, GANTRY_ERR_PROTOCOL, "peer acknowledged frames that were never sent");
		return 1;
	}
	return news ? c->ops->frame(c, h, body) : 0;
}

/* Without its socket, which is reset, and not ended: that would say that this process has. What was written of a frame that is
 * not whole on either side counts as nothing. */
static void cut_conn(struct ctl_conn *c) REQUIRES(loop_mu)
{
	ASSERT(!c->closed);
	inet_source_reset(&c->source);
	gantry_list_each_entry (o, &c->out, struct ctl_out, node) {
		ctl_buf_put(o->sealed);
		o->sealed = NULL;
	}
	ctl_parser_free(&c->in);
	inet_seals_free(&c->seals);
	c->cut_n = c->out_at = 0;
	c->refused = false;
	c->out_dead = 0;
	c->look_by = 0;
	memset(&c->backoff, 0, sizeof(c->backoff));
}

/* The peer has everything that was sent to it. */
static bool is_acked(const struct ctl_conn *c)
{
	return gantry_list_empty(&c->out) && gantry_list_empty(&c->session.kept);
}

static void read_failed(struct ctl_conn *c, int e) REQUIRES(loop_mu)
{
	char cause[128];
	int silent;

	if (!e && c->out_dead != EPIPE)
		e = c->out_dead; /* the kernel tells an error once: the write has had it */
	/* No answer to the kernel's packets: silence, whichever side detects it first. */
	silent = e == ETIMEDOUT || e == EHOSTUNREACH || e == ENETUNREACH;
	/* Whatever ends says goodbye first: an end without one, as a reset, is of this socket alone. */
	if (c->session.on && !(c->session.parting && !e && is_acked(c))) {
		cut_conn(c);
		c->ops->cut(c, e ? strerror(e) : "closed without a goodbye message");
		return;
	}
	if (silent)
		snprintf(cause, sizeof(cause), "no longer responding: %s", strerror(e));
	else if (e)
		snprintf(cause, sizeof(cause), "the connection broke: %s", strerror(e));
	else
		snprintf(cause, sizeof(cause), "the connection was closed %s",
			 c->cut_n ? "in the middle of a record" : "without a goodbye message");
	c->ops->broken(c, silent ? GANTRY_ERR_PEER_SILENT : GANTRY_ERR_PEER_LOST, cause);
}

static void parse_failed(struct ctl_conn *c, gantry_result r) REQUIRES(loop_mu)
{
	c->ops->broken(c, r, r == GANTRY_ERR_NOMEM ? "no memory for an incoming message" : "not a Gantry endpoint");
}

/* The record that has begun in `cut`: its size, or as much of it as tells it. 0: it is refused. */
static size_t record_size(struct ctl_conn *c, char why[GANTRY_SEAL_WHY])
{
	uint32_t length;

	if (c->cut_n < GANTRY_SEAL_HEADER)
		return GANTRY_SEAL_HEADER;
	length = gantry_seal_length(c->seals.rx, c->cut, why);
	return length ? length + GANTRY_SEAL_EXTRA : 0;
}

/* Nothing that comes behind it is looked at, however long the connection stays to tell the peer. */
static void refuse_record(struct ctl_conn *c, const char *why) REQUIRES(loop_mu)
{
	c->refused = true;
	c->ops->broken(c, GANTRY_ERR_CORRUPT, why);
}

/* A whole record. */
static void open_record(struct ctl_conn *c) REQUIRES(loop_mu)
{
	size_t length = c->cut_n - GANTRY_SEAL_EXTRA;
	uint8_t *plain = c->cut + GANTRY_SEAL_HEADER;
	gantry_result r;

	ASSERT(c->cut_n > GANTRY_SEAL_EXTRA);
	c->cut_n = 0;
	if (!gantry_seal_open(c->seals.rx, c->cut, &(struct iovec){plain, length}, 1)) {
		refuse_record(c, "a record is not authentic: it was modified in transit");
		return;
	}
	r = ctl_parse(&c->in, plain, length, on_frame, c);
	if (r != GANTRY_OK && c->source.fd >= 0)
		parse_failed(c, r);
}

/* Sealed records, cut anywhere. */
static void unseal_records(struct ctl_conn *c, const uint8_t *in, size_t n) REQUIRES(loop_mu)
{
	char why[GANTRY_SEAL_WHY];

	while (n && c->source.fd >= 0 && !c->refused) {
		size_t size = record_size(c, why), some;

		ASSERT(size > c->cut_n);
		some = size - c->cut_n < n ? size - c->cut_n : n;
		memcpy(c->cut + c->cut_n, in, some);
		c->cut_n += some;
		in += some;
		n -= some;
		size = record_size(c, why);
		if (!size)
			refuse_record(c, why);
		else if (c->cut_n == size && size > GANTRY_SEAL_HEADER)
			open_record(c);
	}
}

static void read_conn(struct ctl_conn *c) REQUIRES(loop_mu)
{
	for (int i = 0; i < READS_PER_EVENT && c->source.fd >= 0; i++) {
		ssize_t n = recv(c->source.fd, ctl_service.scratch, sizeof(ctl_service.scratch), MSG_DONTWAIT);
		gantry_result r;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			read_failed(c, n < 0 ? errno : 0);
			return;
		}
		c->heard = inet_loop.now;
		if (c->traffic)
			c->traffic->in += (size_t)n;
		if (c->seals.rx) {
			unseal_records(c, ctl_service.scratch, (size_t)n);
		} else {
			r = ctl_parse(&c->in, ctl_service.scratch, (size_t)n, on_frame, c);
			if (r != GANTRY_OK && c->source.fd >= 0) {
				parse_failed(c, r);
				return;
			}
		}
		if ((size_t)n < sizeof(ctl_service.scratch))
			return; /* most likely all: epoll tells if not */
	}
}

static void conn_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct ctl_conn *c = gantry_container(s, struct ctl_conn, source);

	if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		read_conn(c);
	if (s->fd >= 0 && (events & EPOLLOUT))
		mark_dirty(c);
}

/* ---- life ---- */

/* Takes the descriptor and the seals, also on failure. */
static gantry_result attach_socket(struct ctl_conn *c, int fd, struct inet_seals *seals, const struct gantry_addr *peer)
	REQUIRES(loop_mu)
{
	const struct sock_options o = {.traffic_class = -1, .timeout_ns = gantry_params()->timeout};
	gantry_result r = GANTRY_OK;

	ASSERT(!c->seals.tx && !c->seals.rx);
	c->source = (struct inet_source){.fd = fd, .ready = conn_ready};
	c->seals = *seals;
	*seals = (struct inet_seals){0};
	c->peer = *peer;
	if (c->seals.rx && !c->cut)
		c->cut = malloc(GANTRY_SEAL_MAX + GANTRY_SEAL_EXTRA);
	if (c->seals.rx && !c->cut)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection");
	c->heard = inet_loop.now;
	sock_tune(fd, &o);
	r = inet_source_add(&c->source, EPOLLIN);
out:
	if (r != GANTRY_OK)
		cut_conn(c);
	return r;
}

gantry_result ctl_conn_make(int fd, struct inet_seals *seals, const struct gantry_addr *peer,
			    const struct ctl_conn_ops *ops, void *owner, struct ctl_conn **ret_conn)
{
	gantry_result r = GANTRY_OK;
	struct ctl_conn *c = calloc(1, sizeof(*c));

	ASSERT_HELD(&inet_loop.mu);
	if (!c) {
		inet_seals_free(seals);
		close(fd);
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection");
	}
	c->ops = ops;
	c->owner = owner;
	c->in.max_body = GANTRY_CTL_MESSAGE_MAX;
	gantry_list_init(&c->dirty);
	gantry_list_init(&c->out);
	gantry_list_init(&c->session.kept);
	TRY(attach_socket(c, fd, seals, peer));
	gantry_list_append(&ctl_service.conns, &c->node);
	*ret_conn = c;
	c = NULL;
out:
	if (c)
		free(c->cut);
	free(c);
	return r;
}

/* What the peer has not got goes again, before what waits. Signs of life are of their moment. */
static void rewind_out(struct ctl_conn *c, uint64_t received)
{
	struct ctl_session *s = &c->session;

	ASSERT(!c->out_at); /* cut_conn */
	/* All of them first: the peer may have frames that wait here for the second time. */
	gantry_list_each_entry_safe (o, &c->out, struct ctl_out, node) {
		if (!is_counted(o)) {
			drop_frame(c, o);
			continue;
		}
		gantry_list_remove(&o->node);
		gantry_list_append(&s->kept, &o->node);
		s->nkept++;
	}
	trim_kept(c, received);
	s->nkept = 0;
	if (!gantry_list_empty(&s->kept)) {
		c->out = s->kept;
		c->out.next->prev = c->out.prev->next = &c->out;
	}
	gantry_list_init(&s->kept);
}

gantry_result ctl_conn_resume(struct ctl_conn *c, int fd, struct inet_seals *seals, const struct gantry_addr *peer,
			      uint64_t received, uint64_t first)
{
	ASSERT(ctl_conn_counts(c, received) && first <= c->session.received);
	cut_conn(c);
	rewind_out(c, received);
	c->session.twice = c->session.received - first;
	mark_dirty(c);
	return attach_socket(c, fd, seals, peer);
}

static int finish_frame(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body)
{
	(void)c, (void)h, (void)body;
	return 0;
}

static void finish_broken(struct ctl_conn *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	(void)why, (void)cause;
	ctl_conn_close(c);
}

static const struct ctl_conn_ops finish_ops = {.frame = finish_frame, .broken = finish_broken};

void ctl_conn_close(struct ctl_conn *c)
{
	if (!c || c->closed)
		return;
	ASSERT_HELD(&inet_loop.mu);
	c->closed = true;
	inet_source_close(&c->source);
	drop_out(c);
	gantry_list_remove(&c->dirty);
	gantry_list_remove(&c->node);
	gantry_list_append(&ctl_service.dead, &c->node);
	c->ops = &finish_ops; /* the rest of what was read is dropped */
	c->owner = NULL;
	c->traffic = NULL;
}

void ctl_conn_finish(struct ctl_conn *c, uint64_t ns)
{
	if (!c || c->closed)
		return;
	if (c->fault || ctl_conn_is_cut(c)) {
		ctl_conn_close(c);
		return;
	}
	c->session.on = false;
	c->ops = &finish_ops;
	c->owner = NULL;
	c->traffic = NULL;
	c->finish_by = inet_loop.now + ns;
	sock_backoff_leave(c->source.fd, gantry_params()->timeout);
	ctl_service_due(c->finish_by);
	gantry_list_remove(&c->node);
	gantry_list_append(&ctl_service.finishing, &c->node);
	mark_dirty(c);
}

static void bound_backoff(struct ctl_conn *c) REQUIRES(loop_mu)
{
	if (!c->look_by)
		return;
	if (inet_loop.now >= c->look_by) {
		c->look_by = 0;
		if (sock_backoff_tick(&c->backoff, c->source.fd, inet_loop.now, gantry_params()->timeout))
			look_later(c);
	} else {
		ctl_service_due(c->look_by);
	}
}

static void tick_conns(void) REQUIRES(loop_mu)
{
	gantry_list_each_entry (c, &ctl_service.conns, struct ctl_conn, node)
		bound_backoff(c);
	gantry_list_each_entry_safe (c, &ctl_service.finishing, struct ctl_conn, node) {
		if (inet_loop.now >= c->finish_by)
			ctl_conn_close(c);
		else
			ctl_service_due(c->finish_by);
	}
}

static void reap_conns(void) REQUIRES(loop_mu)
{
	gantry_list_each_entry_safe (c, &ctl_service.dead, struct ctl_conn, node) {
		ASSERT(c->closed);
		gantry_list_remove(&c->node);
		ctl_parser_free(&c->in);
		inet_seals_free(&c->seals);
		free(c->cut);
		free(c);
	}
}

/* ---- the loop's client ---- */

static uint64_t next_due(void) REQUIRES(loop_mu)
{
	return ctl_service.due;
}

static void ctl_pass(void) REQUIRES(loop_mu)
{
	struct ctl_service *s = &ctl_service;

	s->late = inet_loop.now > client.planned ? inet_loop.now - client.planned : 0;
	if (s->exiting)
		hub_bye();
	ctl_members_take();
	if (inet_due(s->due)) {
		s->due = UINT64_MAX;
		hub_tick();
		ctl_members_tick();
		tick_conns();
	}
	do {
		flush_conns();
	} while (ctl_members_call_back());
	reap_conns();
}

static int ctl_busy(void)
{
	const struct ctl_service *s = &ctl_service;

	return !gantry_list_empty(&s->hubs) || !gantry_list_empty(&s->members) || !gantry_list_empty(&s->finishing);
}

/* Flushes what was queued for peers that read; otherwise they would find a broken connection where a rank has just
 * left. In the end the hubs send their goodbye messages, after the ranks here. */
static int ctl_leaving(int last, int ms) REQUIRES(loop_mu)
{
	struct ctl_service *s = &ctl_service;
	int ranks = s->nleaving || !gantry_list_empty(&s->finishing);

	if (last && !s->exiting && !gantry_list_empty(&s->hubs) && (!ranks || ms > HUBS_WAIT_MS)) {
		s->exiting = 1;
		inet_loop_wake();
	}
	return ranks || (last && !gantry_list_empty(&s->hubs));
}

static void in_child(void) REQUIRES(loop_mu)
{
	struct ctl_service *s = &ctl_service;

	inet_abandon(&s->conns);
	inet_abandon(&s->finishing);
	inet_abandon(&s->dead);
	gantry_list_init(&s->dirty);
	inet_abandon(&s->hubs);
	inet_abandon(&s->members);
	inet_abandon(&s->events);
	s->nleaving = s->exiting = s->initialised = 0;
}

static struct inet_client client = {
	.due = next_due,
	.pass = ctl_pass,
	.busy = ctl_busy,
	.stop = reap_conns,
	.leaving = ctl_leaving,
	.in_child = in_child,
};

gantry_result ctl_service_start(void)
{
	struct ctl_service *s = &ctl_service;

	if (!s->initialised) {
		s->process = gantry_process_id();
		inet_loop_uses_hmac();
		s->initialised = 1;
	}
	if (!client.active)
		s->due = UINT64_MAX;
	return inet_loop_start(&client);
}
