/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: frames in, frames out, never blocking. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "comm/ctl_service.h"
#include "inet/sock.h"

enum { READS_PER_EVENT = 8, IOVECS = 64 };

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

static void soil(struct ctl_conn *c)
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
	soil(c);
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
	gantry_list_each_safe (pos, &c->out) {
		ctl_out_free(gantry_container(pos, struct ctl_out, node));
	}
	c->out_bytes = c->out_at = 0;
}

static void written(struct ctl_conn *c, size_t n)
{
	c->out_bytes -= n;
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

void ctl_conns_flush(void)
{
	while (!gantry_list_empty(&ctl_service.dirty)) {
		struct ctl_conn *c = gantry_container(ctl_service.dirty.next, struct ctl_conn, dirty);

		gantry_list_remove(&c->dirty);
		if (c->source.fd < 0)
			continue;
		if (c->fault) /* may soil others with the news */
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
		soil(c);
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
	c->finish_by = inet_loop.now + ns;
	sock_backoff_leave(c->source.fd, gantry_params()->timeout);
	ctl_service_due(c->finish_by);
	gantry_list_remove(&c->node);
	gantry_list_append(&ctl_service.finishing, &c->node);
	soil(c);
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

void ctl_conns_tick(void)
{
	gantry_list_each (pos, &ctl_service.conns) {
		bound_backoff(gantry_container(pos, struct ctl_conn, node));
	}
	gantry_list_each_safe (pos, &ctl_service.finishing) {
		struct ctl_conn *c = gantry_container(pos, struct ctl_conn, node);

		if (inet_loop.now >= c->finish_by)
			ctl_conn_close(c);
		else
			ctl_service_due(c->finish_by);
	}
}

void ctl_conns_reap(void)
{
	gantry_list_each_safe (pos, &ctl_service.dead) {
		struct ctl_conn *c = gantry_container(pos, struct ctl_conn, node);

		gantry_list_remove(&c->node);
		ctl_parser_free(&c->in);
		free(c);
	}
}
