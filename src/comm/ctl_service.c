/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane's connections: frames in, frames out, never blocking; and its part of the loop. ctl_service.h has the
 * why. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/ctl_service.h"

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
#include "comm/ctl_member.h"
#include "comm/hub.h"
#include "inet/sock.h"

enum { READS_PER_EVENT = 8, IOVECS = 64, HUBS_WAIT_MS = 500 };
static const uint64_t slack_max_ns = 500000000;

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

int ctl_silent(uint64_t *heard, uint64_t timeout)
{
	uint64_t now = inet_loop.now;

	/* We were away: what peers said meanwhile may be on its way, what they were not asked they could not answer. */
	if (ctl_service.late > timeout / 8 && now - *heard > timeout / 2)
		*heard = now - timeout / 2;
	return now - *heard >= ctl_patience(timeout);
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
	return o;
}

void ctl_out_free(struct ctl_out *o)
{
	if (!o)
		return;
	gantry_list_remove(&o->node);
	ctl_buf_put(o->buf);
	free(o);
}

/* ---- writing ---- */

static void mark_dirty(struct ctl_conn *c)
{
	if (gantry_list_empty(&c->dirty))
		gantry_list_append(&ctl_service.dirty, &c->dirty);
}

void ctl_conn_write(struct ctl_conn *c, struct ctl_out *o)
{
	if (c->source.fd < 0 || c->fault) {
		ctl_out_free(o);
		return;
	}
	mark_dirty(c);
	if (!o) {
		c->fault = "no memory for what it should be told";
		return;
	}
	if (c->out_bytes > CTL_OUT_MAX) {
		c->fault = "it does not read: 64 MiB wait for it";
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

static void drop_out(struct ctl_conn *c)
{
	gantry_list_each_entry_safe (o, &c->out, struct ctl_out, node)
		ctl_out_free(o);
	c->out_bytes = c->out_at = 0;
}

static void written(struct ctl_conn *c, size_t n)
{
	c->out_bytes -= n;
	if (c->traffic)
		c->traffic->out += n;
	n += c->out_at;
	while (!gantry_list_empty(&c->out)) {
		struct ctl_out *o = gantry_container(c->out.next, struct ctl_out, node);

		if (n < o->buf->size)
			break;
		n -= o->buf->size;
		ctl_out_free(o);
	}
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

static void flush(struct ctl_conn *c) REQUIRES(loop_mu)
{
	while (!gantry_list_empty(&c->out) && !c->out_dead) {
		struct iovec iov[IOVECS];
		struct msghdr msg = {.msg_iov = iov};
		size_t skip = c->out_at;
		ssize_t n;

		gantry_list_each (pos, &c->out) {
			struct ctl_buf *b = gantry_container(pos, struct ctl_out, node)->buf;

			if (msg.msg_iovlen == IOVECS)
				break;
			iov[msg.msg_iovlen].iov_base = b->bytes + skip;
			iov[msg.msg_iovlen++].iov_len = b->size - skip;
			skip = 0;
		}
		n = sendmsg(c->source.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n >= 0) {
			written(c, (size_t)n);
			look_later(c);
		} else if (errno == EAGAIN) {
			break;
		} else if (errno != EINTR) {
			c->out_dead = errno;
		}
	}
	if (c->out_dead)
		drop_out(c);
	if (c->finish_by && gantry_list_empty(&c->out))
		shutdown(c->source.fd, SHUT_WR);
	inet_source_set(&c->source, gantry_list_empty(&c->out) ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

static void flush_conns(void) REQUIRES(loop_mu)
{
	while (!gantry_list_empty(&ctl_service.dirty)) {
		struct ctl_conn *c = gantry_container(ctl_service.dirty.next, struct ctl_conn, dirty);

		gantry_list_remove(&c->dirty);
		if (c->source.fd < 0)
			continue;
		if (c->fault) /* may give others something to write */
			c->ops->broken(c, GANTRY_ERR_PEER_LOST, c->fault);
		else
			flush(c);
	}
}

/* ---- reading ---- */

static int on_frame(void *ctx, const struct ctl_head *h, const uint8_t *body)
{
	struct ctl_conn *c = ctx;

	return c->ops->frame(c, h, body);
}

static void read_failed(struct ctl_conn *c, int e)
{
	char cause[128];
	int silent;

	if (!e && c->out_dead != EPIPE)
		e = c->out_dead; /* the kernel tells an error once: the write has had it */
	/* No answer to the kernel's packets: silence, whoever finds it first. */
	silent = e == ETIMEDOUT || e == EHOSTUNREACH || e == ENETUNREACH;
	if (silent)
		snprintf(cause, sizeof(cause), "it does not answer any more: %s", strerror(e));
	else if (e)
		snprintf(cause, sizeof(cause), "the connection broke: %s", strerror(e));
	else
		snprintf(cause, sizeof(cause), "the connection was closed without a word");
	c->ops->broken(c, silent ? GANTRY_ERR_PEER_SILENT : GANTRY_ERR_PEER_LOST, cause);
}

static void readable(struct ctl_conn *c) REQUIRES(loop_mu)
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
		r = ctl_parse(&c->in, ctl_service.scratch, (size_t)n, on_frame, c);
		if (r != GANTRY_OK && c->source.fd >= 0) {
			c->ops->broken(c, r,
				       r == GANTRY_ERR_NOMEM ? "no memory for what it says"
							     : "it does not speak our protocol");
			return;
		}
		if ((size_t)n < sizeof(ctl_service.scratch))
			return; /* most likely all: epoll tells if not */
	}
}

static void conn_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct ctl_conn *c = gantry_container(s, struct ctl_conn, source);

	if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		readable(c);
	if (s->fd >= 0 && (events & EPOLLOUT))
		mark_dirty(c);
}

/* ---- life ---- */

gantry_result ctl_conn_make(int fd, const struct gantry_addr *peer, const struct ctl_conn_ops *ops, void *owner,
			    struct ctl_conn **ret_conn)
{
	const struct sock_options o = {.traffic_class = -1, .timeout_ns = gantry_params()->timeout};
	gantry_result r = GANTRY_OK;
	struct ctl_conn *c = calloc(1, sizeof(*c));

	if (!c)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection");
	c->source = (struct inet_source){.fd = fd, .ready = conn_ready};
	c->ops = ops;
	c->owner = owner;
	c->peer = *peer;
	c->heard = inet_loop.now;
	c->in.max_body = GANTRY_CTL_MESSAGE_MAX;
	gantry_list_init(&c->dirty);
	gantry_list_init(&c->out);
	sock_tune(fd, &o);
	TRY(inet_source_add(&c->source, EPOLLIN));
	gantry_list_append(&ctl_service.conns, &c->node);
	*ret_conn = c;
	c = NULL;
out:
	free(c);
	if (r != GANTRY_OK)
		close(fd);
	return r;
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
	if (!c || c->source.fd < 0)
		return;
	inet_source_close(&c->source);
	drop_out(c);
	gantry_list_remove(&c->dirty);
	gantry_list_remove(&c->node);
	gantry_list_append(&ctl_service.dead, &c->node);
	c->ops = &finish_ops; /* the rest of what was read is for nobody */
	c->owner = NULL;
	c->traffic = NULL;
}

void ctl_conn_finish(struct ctl_conn *c, uint64_t ns)
{
	if (!c || c->source.fd < 0)
		return;
	if (c->fault) {
		ctl_conn_close(c);
		return;
	}
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
		gantry_list_remove(&c->node);
		ctl_parser_free(&c->in);
		free(c);
	}
}

/* ---- the loop's client ---- */

static uint64_t next_due(void) REQUIRES(loop_mu)
{
	return ctl_service.due;
}

static void pass(void) REQUIRES(loop_mu)
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

static int busy(void)
{
	const struct ctl_service *s = &ctl_service;

	return !gantry_list_empty(&s->hubs) || !gantry_list_empty(&s->members) || !gantry_list_empty(&s->finishing);
}

/* What was queued for peers that read; otherwise they would find a broken connection where somebody has just left. In
 * the end the hubs say goodbye, after the ranks here. */
static int leaving(int last, int ms) REQUIRES(loop_mu)
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
	.pass = pass,
	.busy = busy,
	.stop = reap_conns,
	.leaving = leaving,
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
