/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h has the contract. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM /* its only user's */
#include "inet/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/param.h"

enum { MAGIC = 0x4c544347, READS_PER_EVENT = 8, IOVECS = 64 }; /* "GCTL" */
/* What may come before a count of it goes back. So a sender keeps little, and the peer of one that has nothing else to say
 * is not asked for more than that. */
enum { ACK_FRAMES = 64, ACK_BYTES = 256 << 10 };

#ifndef INET_STREAM_PLANTED
#define INET_STREAM_PLANTED                                                                                            \
	0 /* a bug for tests of tests; 1: what comes twice is not dropped, 2: what is kept is trimmed too early */
#endif

/* ---- frames ---- */

void inet_header_encode(const struct inet_header *h, uint8_t out[INET_HEADER_SIZE])
{
	put32(out, MAGIC);
	put32(out + 4, h->kind);
	put32(out + 8, (uint32_t)h->from);
	put32(out + 12, (uint32_t)h->to);
	put64(out + 16, h->tag);
	put32(out + 24, h->size);
	put32(out + 28, h->result);
}

gantry_result inet_header_decode(const uint8_t in[INET_HEADER_SIZE], struct inet_header *ret)
{
	*ret = (struct inet_header){
		.kind = get32(in + 4),
		.from = (int32_t)get32(in + 8),
		.to = (int32_t)get32(in + 12),
		.tag = get64(in + 16),
		.size = get32(in + 24),
		.result = get32(in + 28),
	};
	return get32(in) == MAGIC ? GANTRY_OK : GANTRY_ERR_PROTOCOL;
}

/* Whether the bytes that are there so far may begin a frame: a stranger need not fill a header to be known as one. */
static int may_be(const struct inet_parser *p)
{
	uint8_t magic[4];

	put32(magic, MAGIC);
	return memcmp(p->raw, magic, p->have < sizeof(magic) ? p->have : sizeof(magic)) == 0;
}

/* The header is whole: what it says, and room for the body. */
static gantry_result begin_body(struct inet_parser *p)
{
	if (inet_header_decode(p->raw, &p->header) != GANTRY_OK || !p->allows(&p->header, p))
		return GANTRY_ERR_PROTOCOL;
	p->body = malloc((size_t)p->header.size + 1); /* never NULL for want of bytes */
	return p->body ? GANTRY_OK : GANTRY_ERR_NOMEM;
}

/* As much as is missing up to `whole`. Returns how much that was. */
static size_t take_bytes(struct inet_parser *p, uint8_t *to, size_t whole, const uint8_t *in, size_t n)
{
	if (n > whole - p->have)
		n = whole - p->have;
	if (n)
		memcpy(to, in, n);
	p->have += n;
	return n;
}

gantry_result inet_parse(struct inet_parser *p, const uint8_t *in, size_t n, inet_frame_fn frame, void *ctx)
{
	const uint8_t *end = in + n;

	if (p->have >= INET_HEADER_SIZE && !p->body)
		return GANTRY_ERR_PROTOCOL; /* its header was refused: a connection that lingers is still read */
	while (in < end) {
		struct inet_header header;
		uint8_t *body;
		int stop;

		if (p->have < INET_HEADER_SIZE) {
			in += take_bytes(p, p->raw + p->have, INET_HEADER_SIZE, in, (size_t)(end - in));
			if (!may_be(p))
				return GANTRY_ERR_PROTOCOL;
			if (p->have == INET_HEADER_SIZE) {
				gantry_result r = begin_body(p);

				if (r != GANTRY_OK)
					return r;
			}
		}
		if (p->have >= INET_HEADER_SIZE)
			in += take_bytes(p, p->body + (p->have - INET_HEADER_SIZE),
					 INET_HEADER_SIZE + (size_t)p->header.size, in, (size_t)(end - in));
		if (p->have < INET_HEADER_SIZE + (size_t)p->header.size)
			return GANTRY_OK;
		/* The frame's handler may change or free what is around the parser: leave it ready first. */
		header = p->header;
		body = p->body;
		p->body = NULL;
		p->have = 0;
		stop = frame(ctx, &header, body);
		free(body);
		if (stop)
			return GANTRY_OK;
	}
	return GANTRY_OK;
}

void inet_parser_free(struct inet_parser *p)
{
	free(p->body);
	p->body = NULL;
	p->have = 0;
}

struct inet_frame *inet_frame_make(const struct inet_header *h, const void *body)
{
	struct inet_frame *f = malloc(sizeof(*f) + INET_HEADER_SIZE + h->size);

	if (!f)
		return NULL;
	f->refs = 1;
	f->size = INET_HEADER_SIZE + (size_t)h->size;
	inet_header_encode(h, f->bytes);
	if (h->size && body)
		memcpy(f->bytes + INET_HEADER_SIZE, body, h->size);
	return f;
}

void inet_frame_put(struct inet_frame *f)
{
	ASSERT(!f || f->refs > 0);
	if (f && --f->refs == 0)
		free(f);
}

struct inet_queued *inet_queued_make(struct inet_frame *f)
{
	struct inet_queued *q = f ? malloc(sizeof(*q)) : NULL;

	if (!q) {
		inet_frame_put(f);
		return NULL;
	}
	gantry_list_init(&q->node);
	q->frame = f;
	q->sealed = NULL;
	return q;
}

static void free_queued(struct inet_queued *q)
{
	if (!q)
		return;
	gantry_list_remove(&q->node);
	inet_frame_put(q->frame);
	inet_frame_put(q->sealed);
	free(q);
}

/* ---- writing ---- */

static const char no_memory[] = "no memory for an outgoing message";

static void mark_dirty(struct inet_stream *s)
{
	if (gantry_list_empty(&s->dirty))
		gantry_list_append(&s->set->dirty, &s->dirty);
}

/* The frame in sealed records, in a buffer of its own: others get it under other keys, and so does another socket. */
static bool seal_frame(struct inet_stream *s, struct inet_queued *q)
{
	size_t left = q->frame->size, records = (left + GANTRY_SEAL_MAX - 1) / GANTRY_SEAL_MAX, n;
	struct inet_frame *sealed = malloc(sizeof(*sealed) + left + records * GANTRY_SEAL_EXTRA);

	ASSERT(s->seals.tx && !q->sealed);
	if (!sealed)
		goto failed;
	sealed->refs = 1;
	sealed->size = 0;
	for (uint8_t *from = q->frame->bytes; left; left -= n, from += n) {
		size_t size;

		n = left < GANTRY_SEAL_MAX ? left : GANTRY_SEAL_MAX;
		size = gantry_seal_close(s->seals.tx, &(struct iovec){from, n}, 1, sealed->bytes + sealed->size);
		if (!size)
			goto failed;
		sealed->size += size;
	}
	q->sealed = sealed;
	return true;
failed:
	free(sealed);
	return false;
}

void inet_stream_write(struct inet_stream *s, struct inet_queued *q)
{
	if (s->closed || s->fault) {
		free_queued(q);
		return;
	}
	mark_dirty(s);
	if (!q) {
		s->fault = no_memory;
		return;
	}
	if (s->out_bytes > INET_STREAM_OUT_MAX) {
		s->fault = "not reading: 64 MiB are queued";
		free_queued(q);
		return;
	}
	s->out_bytes += q->frame->size;
	gantry_list_append(&s->out, &q->node);
}

void inet_stream_share(struct inet_stream *s, struct inet_frame *f)
{
	if (f)
		f->refs++;
	inet_stream_write(s, inet_queued_make(f));
}

void inet_stream_send(struct inet_stream *s, const struct inet_header *h, const void *body)
{
	inet_stream_write(s, inet_queued_make(inet_frame_make(h, body)));
}

void inet_stream_send_life(struct inet_stream *s)
{
	const struct inet_header life = {.kind = INET_LIFE, .from = -1, .to = -1, .tag = s->session.received};

	s->session.reported = s->session.received;
	s->session.unreported = 0;
	inet_stream_send(s, &life, NULL);
}

static struct inet_queued *first_of(struct gantry_list *list)
{
	return gantry_list_empty(list) ? NULL : gantry_container(list->next, struct inet_queued, node);
}

static void drop_frame(struct inet_stream *s, struct inet_queued *q)
{
	ASSERT(s->out_bytes >= q->frame->size);
	s->out_bytes -= q->frame->size;
	free_queued(q);
}

static void drop_out(struct inet_stream *s)
{
	gantry_list_each_entry_safe (q, &s->out, struct inet_queued, node)
		drop_frame(s, q);
	gantry_list_each_entry_safe (q, &s->session.kept, struct inet_queued, node)
		drop_frame(s, q);
	s->session.nkept = 0;
	s->out_at = 0;
}

static bool is_counted(const struct inet_queued *q)
{
	return get32(q->frame->bytes + 4) != INET_LIFE;
}

/* As it goes over this socket. NULL: no memory. */
static const struct inet_frame *wire_form(struct inet_stream *s, struct inet_queued *q)
{
	if (!s->seals.tx)
		return q->frame;
	return q->sealed || seal_frame(s, q) ? q->sealed : NULL;
}

/* The kernel has all of it. */
static void frame_written(struct inet_stream *s, struct inet_queued *q)
{
	if (!s->session.on || !is_counted(q)) {
		drop_frame(s, q);
		return;
	}
	inet_frame_put(q->sealed);
	q->sealed = NULL;
	gantry_list_remove(&q->node);
	gantry_list_append(&s->session.kept, &q->node);
	s->session.nkept++;
	if (s->session.sent < s->session.acked + s->session.nkept)
		s->session.sent = s->session.acked + s->session.nkept;
}

static void note_written(struct inet_stream *s, size_t n)
{
	struct inet_queued *q;

	if (s->traffic)
		s->traffic->out += n;
	n += s->out_at;
	while ((q = first_of(&s->out)) && n >= (q->sealed ? q->sealed : q->frame)->size) {
		n -= (q->sealed ? q->sealed : q->frame)->size;
		frame_written(s, q);
	}
	ASSERT(q || !n);
	s->out_at = n;
}

/* What was written is acknowledged by then, or TCP's back-off is about to begin. */
static void look_later(struct inet_stream *s) REQUIRES(loop_mu)
{
	if (s->look_by || s->backoff.kind == BACKOFF_CAPPED)
		return;
	s->look_by = inet_loop.now + sock_backoff_interval(gantry_params()->timeout);
	s->set->due(s->look_by);
}

static void break_stream(struct inet_stream *s, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	if (s->ops)
		s->ops->broken(s, why, cause);
	else
		inet_stream_close(s);
}

/* The first frames that wait. 0: no memory for their wire form. */
static size_t fill_iov(struct inet_stream *s, struct iovec iov[IOVECS])
{
	size_t n = 0, skip = s->out_at;

	gantry_list_each_entry (q, &s->out, struct inet_queued, node) {
		const struct inet_frame *f = n < IOVECS ? wire_form(s, q) : NULL;

		if (!f)
			break;
		ASSERT(skip < f->size);
		iov[n].iov_base = (void *)(f->bytes + skip);
		iov[n++].iov_len = f->size - skip;
		skip = 0;
	}
	return n;
}

static void flush_stream(struct inet_stream *s) REQUIRES(loop_mu)
{
	ASSERT(!s->closed && s->source.fd >= 0);
	while (!gantry_list_empty(&s->out) && !s->out_dead) {
		struct iovec iov[IOVECS];
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = fill_iov(s, iov)};
		ssize_t n;

		if (!msg.msg_iovlen) {
			s->fault = no_memory;
			mark_dirty(s); /* the next in turn: it is broken then */
			return;
		}
		n = sendmsg(s->source.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n >= 0) {
			note_written(s, (size_t)n);
			look_later(s);
		} else if (errno == EAGAIN || errno == ENOBUFS) {
			break;
		} else if (errno != EINTR) {
			s->out_dead = errno;
		}
	}
	if (s->out_dead && !s->session.on)
		drop_out(s);
	if (s->finish_by && gantry_list_empty(&s->out))
		shutdown(s->source.fd, SHUT_WR);
	inet_source_set(&s->source, gantry_list_empty(&s->out) || s->out_dead ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void inet_streams_flush(struct inet_streams *set)
{
	while (!gantry_list_empty(&set->dirty)) {
		struct inet_stream *s = gantry_container(set->dirty.next, struct inet_stream, dirty);

		gantry_list_remove(&s->dirty);
		if (s->closed)
			continue;
		if (s->fault) /* may give others something to write */
			break_stream(s, GANTRY_ERR_PEER_LOST, s->fault);
		else if (!inet_stream_is_cut(s))
			flush_stream(s);
	}
}

/* ---- reading ---- */

/* The peer has so many frames: those need not be kept. Of these, some may wait to be sent again, on this socket: the peer
 * expects them there, and drops them. */
static void trim_kept(struct inet_stream *s, uint64_t received)
{
	struct inet_session *session = &s->session;
	struct inet_queued *q;

	while (session->acked < received && (q = first_of(&session->kept))) {
		ASSERT(session->nkept);
		drop_frame(s, q);
		session->acked++;
		session->nkept--;
	}
}

bool inet_stream_counts(const struct inet_stream *s, uint64_t received)
{
	return received >= s->session.acked && received <= s->session.sent;
}

/* Whether the frame is news. 1: it is, 0: it is not, -1: it cannot be. */
static int count_frame(struct inet_stream *s, const struct inet_header *h)
{
	struct inet_session *session = &s->session;

	if (!session->on)
		return 1;
	if (h->kind == INET_LIFE) {
		if (h->tag > session->acked && !inet_stream_counts(s, h->tag))
			return -1;
		trim_kept(s, INET_STREAM_PLANTED == 2 ? UINT64_MAX : h->tag);
		return 1;
	}
	if (session->twice && INET_STREAM_PLANTED != 1) {
		session->twice--;
		return 0;
	}
	session->received++;
	session->unreported += INET_HEADER_SIZE + (size_t)h->size;
	ASSERT(session->reported <= session->received);
	if (session->received - session->reported >= ACK_FRAMES || session->unreported >= ACK_BYTES)
		inet_stream_send_life(s);
	return 1;
}

static int on_frame(void *ctx, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct inet_stream *s = ctx;
	int news = count_frame(s, h);

	if (news < 0) {
		break_stream(s, GANTRY_ERR_PROTOCOL, "peer acknowledged frames that were never sent");
		return 1;
	}
	return news && s->ops ? s->ops->frame(s, h, body) : 0;
}

/* Without its socket, which is reset, and not ended: that would say that this process has. What was written of a frame that is
 * not whole on either side counts as nothing. */
static void cut_stream(struct inet_stream *s) REQUIRES(loop_mu)
{
	ASSERT(!s->closed);
	inet_source_reset(&s->source);
	gantry_list_each_entry (q, &s->out, struct inet_queued, node) {
		inet_frame_put(q->sealed);
		q->sealed = NULL;
	}
	inet_parser_free(&s->in);
	inet_seals_free(&s->seals);
	s->cut_n = s->out_at = 0;
	s->refused = false;
	s->out_dead = 0;
	s->look_by = 0;
	memset(&s->backoff, 0, sizeof(s->backoff));
}

/* The peer has everything that was sent to it. */
static bool is_acked(const struct inet_stream *s)
{
	return gantry_list_empty(&s->out) && gantry_list_empty(&s->session.kept);
}

static void read_failed(struct inet_stream *s, int e) REQUIRES(loop_mu)
{
	char cause[128];
	int silent;

	if (!e && s->out_dead != EPIPE)
		e = s->out_dead; /* the kernel tells an error once: the write has had it */
	/* No answer to the kernel's packets: silence, whichever side detects it first. */
	silent = e == ETIMEDOUT || e == EHOSTUNREACH || e == ENETUNREACH;
	/* Whatever ends says goodbye first: an end without one, as a reset, is of this socket alone. */
	if (s->session.on && !(s->session.parting && !e && is_acked(s))) {
		cut_stream(s);
		s->ops->cut(s, e ? strerror(e) : "closed without a goodbye message");
		return;
	}
	if (silent)
		snprintf(cause, sizeof(cause), "no longer responding: %s", strerror(e));
	else if (e)
		snprintf(cause, sizeof(cause), "the connection broke: %s", strerror(e));
	else
		snprintf(cause, sizeof(cause), "the connection was closed %s",
			 s->cut_n ? "in the middle of a record" : "without a goodbye message");
	break_stream(s, silent ? GANTRY_ERR_PEER_SILENT : GANTRY_ERR_PEER_LOST, cause);
}

/* False: they were none. */
static bool take_frames(struct inet_stream *s, const uint8_t *in, size_t n) REQUIRES(loop_mu)
{
	gantry_result r = inet_parse(&s->in, in, n, on_frame, s);

	if (r == GANTRY_OK || s->source.fd < 0)
		return true;
	break_stream(s, r, r == GANTRY_ERR_NOMEM ? "no memory for an incoming message" : "not a Gantry endpoint");
	return false;
}

/* The record that has begun in `cut`: its size, or as much of it as tells it. 0: it is refused. */
static size_t record_size(struct inet_stream *s, char why[GANTRY_SEAL_WHY])
{
	uint32_t length;

	if (s->cut_n < GANTRY_SEAL_HEADER)
		return GANTRY_SEAL_HEADER;
	length = gantry_seal_length(s->seals.rx, s->cut, why);
	return length ? length + GANTRY_SEAL_EXTRA : 0;
}

/* Nothing that comes behind it is looked at, however long the connection stays to tell the peer. */
static void refuse_record(struct inet_stream *s, const char *why) REQUIRES(loop_mu)
{
	s->refused = true;
	break_stream(s, GANTRY_ERR_CORRUPT, why);
}

/* A whole record. */
static void open_record(struct inet_stream *s) REQUIRES(loop_mu)
{
	size_t length = s->cut_n - GANTRY_SEAL_EXTRA;
	uint8_t *plain = s->cut + GANTRY_SEAL_HEADER;

	ASSERT(s->cut_n > GANTRY_SEAL_EXTRA);
	s->cut_n = 0;
	if (!gantry_seal_open(s->seals.rx, s->cut, &(struct iovec){plain, length}, 1)) {
		refuse_record(s, "a record is not authentic: it was modified in transit");
		return;
	}
	take_frames(s, plain, length);
}

/* Sealed records, cut anywhere. */
static void unseal_records(struct inet_stream *s, const uint8_t *in, size_t n) REQUIRES(loop_mu)
{
	char why[GANTRY_SEAL_WHY];

	while (n && s->source.fd >= 0 && !s->refused) {
		size_t size = record_size(s, why), some;

		ASSERT(size > s->cut_n);
		some = size - s->cut_n < n ? size - s->cut_n : n;
		memcpy(s->cut + s->cut_n, in, some);
		s->cut_n += some;
		in += some;
		n -= some;
		size = record_size(s, why);
		if (!size)
			refuse_record(s, why);
		else if (s->cut_n == size && size > GANTRY_SEAL_HEADER)
			open_record(s);
	}
}

static void read_stream(struct inet_stream *s) REQUIRES(loop_mu)
{
	static uint8_t scratch[64 << 10] GUARDED_BY(loop_mu);

	for (int i = 0; i < READS_PER_EVENT && s->source.fd >= 0; i++) {
		ssize_t n = recv(s->source.fd, scratch, sizeof(scratch), MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			read_failed(s, n < 0 ? errno : 0);
			return;
		}
		s->received_at = inet_loop.now;
		if (s->traffic)
			s->traffic->in += (size_t)n;
		if (s->seals.rx)
			unseal_records(s, scratch, (size_t)n);
		else if (!take_frames(s, scratch, (size_t)n))
			return;
		if ((size_t)n < sizeof(scratch))
			return; /* most likely all: epoll tells if not */
	}
}

static void stream_ready(struct inet_source *source, uint32_t events) REQUIRES(loop_mu)
{
	struct inet_stream *s = gantry_container(source, struct inet_stream, source);

	if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		read_stream(s);
	if (source->fd >= 0 && (events & EPOLLOUT))
		mark_dirty(s);
}

/* ---- life ---- */

/* Takes the descriptor and the seals, also on failure. */
static gantry_result attach_socket(struct inet_stream *s, int fd, struct inet_seals *seals,
				   const struct gantry_addr *peer) REQUIRES(loop_mu)
{
	const struct sock_options o = {.traffic_class = -1, .timeout_ns = gantry_params()->timeout};
	gantry_result r = GANTRY_OK;

	ASSERT(!s->seals.tx && !s->seals.rx);
	s->source = (struct inet_source){.fd = fd, .ready = stream_ready};
	s->seals = *seals;
	*seals = (struct inet_seals){0};
	s->peer = *peer;
	if (s->seals.rx && !s->cut)
		s->cut = malloc(GANTRY_SEAL_MAX + GANTRY_SEAL_EXTRA);
	if (s->seals.rx && !s->cut)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection");
	s->received_at = inet_loop.now;
	sock_tune(fd, &o);
	r = inet_source_add(&s->source, EPOLLIN);
out:
	if (r != GANTRY_OK)
		cut_stream(s);
	return r;
}

gantry_result inet_stream_make(struct inet_streams *set, int fd, struct inet_seals *seals,
			       const struct gantry_addr *peer, const struct inet_stream_ops *ops, void *owner,
			       struct inet_stream **ret_stream)
{
	gantry_result r = GANTRY_OK;
	struct inet_stream *s = calloc(1, sizeof(*s));

	ASSERT_HELD(&inet_loop.mu);
	if (!s) {
		inet_seals_free(seals);
		close(fd);
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection");
	}
	s->ops = ops;
	s->owner = owner;
	s->set = set;
	s->in.allows = set->allows;
	s->in.max_body = set->max_body;
	gantry_list_init(&s->dirty);
	gantry_list_init(&s->out);
	gantry_list_init(&s->session.kept);
	TRY(attach_socket(s, fd, seals, peer));
	gantry_list_append(&set->open, &s->node);
	*ret_stream = s;
	s = NULL;
out:
	if (s)
		free(s->cut);
	free(s);
	return r;
}

/* What the peer has not got goes again, before what waits. Signs of life are of their moment. */
static void rewind_out(struct inet_stream *s, uint64_t received)
{
	struct inet_session *session = &s->session;

	ASSERT(!s->out_at); /* cut_conn */
	/* All of them first: the peer may have frames that wait here for the second time. */
	gantry_list_each_entry_safe (q, &s->out, struct inet_queued, node) {
		if (!is_counted(q)) {
			drop_frame(s, q);
			continue;
		}
		gantry_list_remove(&q->node);
		gantry_list_append(&session->kept, &q->node);
		session->nkept++;
	}
	trim_kept(s, received);
	session->nkept = 0;
	if (!gantry_list_empty(&session->kept)) {
		s->out = session->kept;
		s->out.next->prev = s->out.prev->next = &s->out;
	}
	gantry_list_init(&session->kept);
}

gantry_result inet_stream_resume(struct inet_stream *s, int fd, struct inet_seals *seals,
				 const struct gantry_addr *peer, uint64_t received, uint64_t first)
{
	ASSERT(inet_stream_counts(s, received) && first <= s->session.received);
	cut_stream(s);
	rewind_out(s, received);
	s->session.twice = s->session.received - first;
	mark_dirty(s);
	return attach_socket(s, fd, seals, peer);
}

void inet_stream_close(struct inet_stream *s)
{
	if (!s || s->closed)
		return;
	ASSERT_HELD(&inet_loop.mu);
	s->closed = true;
	inet_source_close(&s->source);
	drop_out(s);
	gantry_list_remove(&s->dirty);
	gantry_list_remove(&s->node);
	gantry_list_append(&s->set->dead, &s->node);
	s->ops = NULL; /* the rest of what was read is dropped */
	s->owner = NULL;
	s->traffic = NULL;
}

void inet_stream_finish(struct inet_stream *s, uint64_t ns)
{
	if (!s || s->closed)
		return;
	if (s->fault || inet_stream_is_cut(s)) {
		inet_stream_close(s);
		return;
	}
	s->session.on = false;
	s->ops = NULL;
	s->owner = NULL;
	s->traffic = NULL;
	s->finish_by = inet_loop.now + ns;
	sock_backoff_leave(s->source.fd, gantry_params()->timeout);
	s->set->due(s->finish_by);
	gantry_list_remove(&s->node);
	gantry_list_append(&s->set->finishing, &s->node);
	mark_dirty(s);
}

static void bound_backoff(struct inet_stream *s) REQUIRES(loop_mu)
{
	if (!s->look_by)
		return;
	if (inet_loop.now >= s->look_by) {
		s->look_by = 0;
		if (sock_backoff_tick(&s->backoff, s->source.fd, inet_loop.now, gantry_params()->timeout))
			look_later(s);
	} else {
		s->set->due(s->look_by);
	}
}

void inet_streams_tick(struct inet_streams *set)
{
	gantry_list_each_entry (s, &set->open, struct inet_stream, node)
		bound_backoff(s);
	gantry_list_each_entry_safe (s, &set->finishing, struct inet_stream, node) {
		if (inet_loop.now >= s->finish_by)
			inet_stream_close(s);
		else
			s->set->due(s->finish_by);
	}
}

void inet_streams_reap(struct inet_streams *set)
{
	gantry_list_each_entry_safe (s, &set->dead, struct inet_stream, node) {
		ASSERT(s->closed);
		gantry_list_remove(&s->node);
		inet_parser_free(&s->in);
		inet_seals_free(&s->seals);
		free(s->cut);
		free(s);
	}
}

void inet_streams_in_child(struct inet_streams *set)
{
	inet_abandon(&set->open);
	inet_abandon(&set->finishing);
	inet_abandon(&set->dead);
	gantry_list_init(&set->dirty);
}
