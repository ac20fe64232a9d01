/* SPDX-License-Identifier: Apache-2.0 */
/* Posting sends, from host memory and from that of a device. */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/log.h"
#include "base/param_text.h"
#include "base/trace.h"
#include "device/pinned.h"
#include "net/tcp/helper.h"
#include "net/tcp/link.h"
#include "net/tcp/stage.h"
#include "net/tcp/txmem.h"

enum { STAGE_PACES = 4 };

static void encode_eager(const struct tcp_link *l, const struct tcp_send *s, uint8_t header[WIRE_FRAME_SIZE])
{
	struct wire_frame f = {
		.kind = WIRE_DATA,
		.piece = {.eager = true,
			  .length = (uint32_t)s->size,
			  .total = s->size,
			  .tag = s->tag,
			  .index = s->index},
	};

	if (l->session.crc)
		f.piece.payload_crc = gantry_crc32c(0, s->data, s->size);
	wire_frame_encode(&f, l->session.crc, header);
}

/* Copies a message to the staging buffer; the one before it is done. 0: it must wait its turn in the queue. */
static int stage(struct tcp_link *l, struct tcp_send *s)
{
	uint32_t bytes = (uint32_t)s->size + WIRE_FRAME_SIZE;
	uint8_t *at = l->tx.coalesce.buffers[l->tx.coalesce.now] + l->tx.coalesce.bytes;

	if (s->size > LINK_STAGE_MESSAGE || l->tx.coalesce.bytes + bytes > LINK_STAGE ||
	    !gantry_list_empty(&l->tx.eager) || l->tx.eager_out + bytes - l->tx.peer_consumed > l->session.peer_window)
		return 0;
	encode_eager(l, s, at);
	if (s->size)
		memcpy(at + WIRE_FRAME_SIZE, s->data, s->size);
	if (!l->tx.coalesce.count++)
		l->tx.coalesce.since = gantry_ticks();
	l->tx.coalesce.bytes += bytes;
	l->tx.eager_out += bytes;
	if (l->tx.coalesce.newest)
		tcp_request_done(&l->tx.coalesce.newest->head);
	l->tx.coalesce.newest = s;
	return 1;
}

/* Under mu. 1: the control lane should be flushed now. */
static int post_eager(struct tcp_link *l, struct tcp_send *s)
{
	int alone = l->tx.sends.nfree + 1 == l->tx.sends.count;

	store_relaxed(&l->tx.pending, 1);
	if (!alone && stage(l, s))
		return l->tx.coalesce.bytes > LINK_STAGE / 2 ||
		       gantry_ticks() - l->tx.coalesce.since > STAGE_PACES * l->session.pace_ticks;
	encode_eager(l, s, s->header);
	gantry_list_append(&l->tx.eager, &s->head.node);
	return alone || l->tx.coalesce.bytes;
}

/* The pool belongs to the thread that posts and tests: no lock. NULL: too many are in flight. */
static struct tcp_send *send_take(struct tcp_link *l, const void *data, size_t size, int tag)
{
	struct tcp_send *s = gantry_pool_get(&l->tx.sends);

	if (!s)
		return NULL;
	s->head.kind = TCP_SEND;
	s->head.link = l;
	s->head.state = TCP_PENDING;
	s->data = data;
	s->vec.n = 0;
	s->size = size;
	s->tag = (uint32_t)tag;
	s->next = s->sent = 0;
	s->needs_ack = s->announced = 0;
	s->blocked = 0;
	s->block = NULL;
	s->txmem = NULL;
	s->eager = size <= l->session.eager_max;
	return s;
}

static void send_drop(struct tcp_link *l, struct tcp_send *s)
{
	s->head.state = TCP_FREE;
	gantry_pool_put(&l->tx.sends, s);
}

/* Which message of its tag, and which bulk message, it is. Under mu. */
static void number(struct tcp_link *l, struct tcp_send *s, struct tcp_tag *t)
{
	int small = s->eager;

	s->index = t->posted++;
	if ((t->held || s->vec.n) && s->size)
		s->eager = 0;
	/* In a run of bulk messages the receiver says by itself what it posts; the first of them has to ask, and a
	 * small one, which the receiver does not expect to be one of them. */
	s->announce = !t->bulk || small;
	t->bulk = !s->eager;
	if (!s->eager || gantry_trace_on())
		gantry_event_put(GANTRY_EV_SEND_POST, l->session.id, GANTRY_EV_MSG(s->tag, s->index), s->size);
	if (s->eager)
		return;
	s->seq = l->tx.next_seq++;
	fetch_add_relaxed(&l->tx.bulk_pending, 1);
}

static void post_bulk(struct tcp_link *l, struct tcp_send *s)
{
	gantry_list_append(&l->tx.bulk, &s->head.node);
	store_relaxed(&l->tx.bulk_bytes, l->tx.bulk_bytes + s->size);
}

static void trace(const struct tcp_link *l, const struct tcp_send *s, const char *from)
{
	LOG_TRACE(DATA, "link %u isend %u of tag %u: %llu bytes%s%s", l->session.id, s->index, s->tag,
		  (unsigned long long)s->size, s->eager ? "" : ", bulk", from);
}

gantry_result tcp_link_hold(struct tcp_link *l, int tag)
{
	struct tcp_tag *t;

	pthread_mutex_lock(&l->mu);
	t = tcp_tag_of(&l->tx.tags, (uint32_t)tag);
	if (t)
		t->held = 1;
	pthread_mutex_unlock(&l->mu);
	return t ? GANTRY_OK
		 : gantry_fail(GANTRY_ERR_NOMEM, LOG_SUBSYS, __FILE__, __LINE__, "no memory for tag %d", tag);
}

/* The bytes are at data, or in the pieces of vec. */
static gantry_result isend(struct tcp_link *l, const void *data, size_t size, const struct tcp_vec *vec, int tag,
			   void **ret_request)
{
	struct tcp_send *s;
	struct tcp_tag *t;
	gantry_result r = tcp_link_status(l, &l->tx.end);
	int flush = 0;

	if (r != GANTRY_OK)
		return r;
	*ret_request = NULL;
	s = send_take(l, data, size, tag);
	if (!s)
		return GANTRY_OK;
	s->vec = *vec;
	s->at = (struct tcp_vec_at){0, 0};
	pthread_mutex_lock(&l->mu);
	t = tcp_tag_of(&l->tx.tags, (uint32_t)tag);
	if (!t) {
		pthread_mutex_unlock(&l->mu);
		send_drop(l, s);
		return GANTRY_OK;
	}
	number(l, s, t);
	if (s->eager)
		flush = post_eager(l, s);
	else
		post_bulk(l, s);
	pthread_mutex_unlock(&l->mu);
	trace(l, s, "");
	if (flush)
		tcp_control_flush(l);
	else if (!s->eager)
		tcp_helpers_notify();
	*ret_request = &s->head;
	return GANTRY_OK;
}

gantry_result tcp_link_isend(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request)
{
	struct tcp_vec none = {NULL, 0};

	return isend(l, data, size, &none, tag, ret_request);
}

gantry_result tcp_link_isend_vec(struct tcp_link *l, const struct iovec *iov, uint32_t n, int tag, void **ret_request)
{
	struct tcp_vec vec = {iov, n};

	return isend(l, NULL, tcp_vec_bytes(&vec), &vec, tag, ret_request);
}

/* ---- from device memory ---- */

gantry_result tcp_link_isend_txmem(struct tcp_link *l, struct tcp_txmem *m, const void *data, size_t size, int tag,
				   void **ret_request)
{
	struct tcp_send *s;
	struct tcp_tag *t;
	gantry_result r = tcp_link_status(l, &l->tx.end);

	if (r != GANTRY_OK)
		return r;
	*ret_request = NULL;
	s = send_take(l, data, size, tag);
	if (!s)
		return GANTRY_OK;
	s->txmem = m;
	pthread_mutex_lock(&l->mu);
	t = tcp_tag_of(&l->tx.tags, (uint32_t)tag);
	if (t) {
		number(l, s, t);
		post_bulk(l, s);
	}
	pthread_mutex_unlock(&l->mu);
	if (!t) {
		send_drop(l, s);
		return GANTRY_OK;
	}
	trace(l, s, ", read by the NIC");
	tcp_helpers_notify();
	*ret_request = &s->head;
	return GANTRY_OK;
}

gantry_result tcp_link_stage(struct tcp_link *l, struct gantry_device *dev)
{
	gantry_result r = GANTRY_OK;
	struct tcp_stage *stage = NULL;

	if (load_acquire(&l->devmem.staging))
		return GANTRY_OK;
	TRY(tcp_stage_get(dev, &stage));
	pthread_mutex_lock(&l->mu);
	if (!l->devmem.staging) {
		store_release(&l->devmem.staging, stage);
		stage = NULL;
	}
	pthread_mutex_unlock(&l->mu);
out:
	tcp_stage_put(stage);
	return r;
}

gantry_result tcp_link_isend_device(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request)
{
	struct tcp_stage *stage = load_acquire(&l->devmem.staging);
	struct tcp_send *s;
	struct tcp_tag *t;
	gantry_result r = tcp_link_status(l, &l->tx.end);

	if (r != GANTRY_OK)
		return r;
	if (!size)
		return tcp_link_isend(l, NULL, 0, tag, ret_request);
	if (!stage)
		FAIL_NOW(GANTRY_ERR_USAGE, "isend of device memory that was not registered with this comm");
	*ret_request = NULL;
	/* Blocks of what is already sent come back when it is tested; copies that are done must not wait for that. */
	tcp_stage_progress(l);
	pthread_mutex_lock(&l->mu);
	t = tcp_tag_of(&l->tx.tags, (uint32_t)tag);
	pthread_mutex_unlock(&l->mu);
	s = t ? send_take(l, NULL, size, tag) : NULL;
	if (!s)
		return GANTRY_OK;
	r = tcp_stage_copy(stage, data, size, &s->block);
	if (r != GANTRY_OK) {
		send_drop(l, s);
		return r == GANTRY_AGAIN ? GANTRY_OK : r;
	}
	s->data = s->block->host;
	s->staged = gantry_ticks();
	pthread_mutex_lock(&l->mu);
	number(l, s, tcp_tag_of(&l->tx.tags, (uint32_t)tag)); /* it is there */
	gantry_list_append(&l->devmem.copying_out, &s->head.node);
	store_relaxed(&l->devmem.copying_out_n, l->devmem.copying_out_n + 1);
	pthread_mutex_unlock(&l->mu);
	trace(l, s, ", from device memory");
	if (!s->eager)
		tcp_helpers_notify();
	*ret_request = &s->head;
	return GANTRY_OK;
}

void tcp_stage_progress(struct tcp_link *l)
{
	int flush = 0;

	/* Whoever finds the lock taken leaves it to the next look. */
	if (!load_relaxed(&l->devmem.copying_out_n) || tcp_link_failed(l) || pthread_mutex_trylock(&l->mu))
		return;
	while (!gantry_list_empty(&l->devmem.copying_out)) {
		struct tcp_send *s = gantry_container(l->devmem.copying_out.next, struct tcp_send, head.node);
		gantry_result r = tcp_stage_ready(l->devmem.staging, s->block);

		if (r == GANTRY_AGAIN)
			break;
		if (r != GANTRY_OK) {
			tcp_link_fail_locked(l, 1, r, "a copy from device memory failed: %s", gantry_last_error());
			break;
		}
		gantry_list_remove(&s->head.node);
		store_relaxed(&l->devmem.copying_out_n, l->devmem.copying_out_n - 1);
		l->devmem.staged++;
		l->devmem.staged_ticks += gantry_ticks() - s->staged;
		if (s->eager) {
			encode_eager(l, s, s->header);
			gantry_list_append(&l->tx.eager, &s->head.node);
			store_relaxed(&l->tx.pending, 1);
			flush = 1;
		} else {
			post_bulk(l, s);
		}
	}
	pthread_mutex_unlock(&l->mu);
	if (flush)
		tcp_control_flush(l);
}

void tcp_stage_close(struct tcp_link *l)
{
	struct tcp_stage *stage = l->devmem.staging;

	gantry_list_init(&l->devmem.copying_out);
	store_relaxed(&l->devmem.copying_out_n, 0);
	for (size_t i = 0; stage && i < l->tx.sends.count; i++) {
		struct tcp_send *s = (void *)((char *)l->tx.sends.memory + i * l->tx.sends.object_size);

		if (s->block)
			tcp_stage_give(stage, s->block);
		s->block = NULL;
	}
	store_release(&l->devmem.staging, NULL);
	if (stage)
		l->devmem.staging_left = stage;
	if (l->devmem.staged)
		LOG_INFO(DATA, "%s sent from device memory, %.1f us each until in pinned memory (%s)",
			 COUNT_TEXT(l->devmem.staged, "message"),
			 gantry_us_of_ticks(l->devmem.staged_ticks) / (double)l->devmem.staged, l->session.peer);
	l->devmem.staged = 0;
}
