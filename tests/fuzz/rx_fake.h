/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network and the device below an rx, in memory and in one thread: messages are delivered and taken, and the
 * device's work is done, when the harness says so. Requests, registrations and work live in blocks of their own, so
 * that the sanitizer sees a use after their end.
 *
 * The network's rules are those of net.h: per tag, the n-th message meets the n-th receive. Bytes
 * move at the earliest time there is (when both are there), and done is said at the latest (when test asks).
 */
#ifndef GANTRY_TESTS_RX_FAKE_H
#define GANTRY_TESTS_RX_FAKE_H

#include "device/work.h"
#include "rx/rx.h"
#include "script.h"

enum { FAKE_TAGS = 2, FAKE_REQUESTS = 32, FAKE_FRAG = 700 };

struct fake_request {
	struct gantry_list node;  /* of its comm */
	struct gantry_list queue; /* sends: to be taken; receives: to be filled */
	int tag, done, slot, got;
	gantry_result error;
	uint8_t *data;
	size_t size;
	const struct iovec *iov;
	uint32_t niov;
};

struct fake_message {
	struct gantry_list node;
	size_t size;
	uint8_t bytes[];
};

struct fake_comm {
	struct gantry_list requests, queue[FAKE_TAGS];
	uint32_t n;
};

struct fake_work {
	struct gantry_list node;
	struct gantry_unpack_args unpack;
	struct gantry_rows rows; /* count 0: unpack */
};

struct gantry_stream {
	struct gantry_list work;
	uint64_t queued, done;
};

struct gantry_dev_event {
	struct gantry_stream *stream;
	uint64_t at;
};

static struct {
	struct gantry_net net;
	struct gantry_device dev;
	struct fake_comm out, in;
	struct gantry_list arriving[FAKE_TAGS]; /* messages without a receive */
	/* What the harness has set. */
	int hold_heads;	     /* heads that are sent stay on their way */
	int deny;	     /* so many isend and irecv say "later" */
	int no_vec, no_mr;   /* not supported */
	int pays;	     /* isendv_pays */
	int device_memory;   /* what is registered next is the device's */
	gantry_result error; /* of the connection: of all that is not done */
	/* The table of an UNPACK connection. */
	struct gantry_unpack_handle handle;
	uint64_t slots;
	int slot_used[GANTRY_UNPACK_DEPTH];
	int mrs; /* registrations */
} fake;

static struct gantry_unpack_meta fake_meta;
static uint8_t fake_bounce[GANTRY_UNPACK_DEPTH][64 << 10];

/* The harness has it: a message of the rx has been taken by its peer. */
static void peer_takes(int tag, const uint8_t *data, size_t size);

/* ---- the network ---- */

static struct fake_request *fake_request(struct fake_comm *c, int tag)
{
	struct fake_request *q;

	if (fake.deny || c->n == FAKE_REQUESTS) {
		fake.deny -= fake.deny > 0;
		return NULL;
	}
	q = calloc(1, sizeof(*q));
	MUST(q && (tag == RX_TAG_HEAD || tag == RX_TAG_DATA));
	q->tag = tag;
	q->slot = -1;
	gantry_list_append(&c->requests, &q->node);
	gantry_list_append(&c->queue[tag], &q->queue);
	c->n++;
	return q;
}

static void fake_request_free(struct fake_comm *c, struct fake_request *q)
{
	gantry_list_remove(&q->node);
	gantry_list_remove(&q->queue);
	c->n--;
	free(q);
}

/* The peer takes the oldest message of a tag; 0: there is none. */
static int fake_take(int tag)
{
	struct gantry_list *queue = &fake.out.queue[tag];
	struct fake_request *q;
	uint8_t *copy;
	size_t at = 0;

	if (gantry_list_empty(queue))
		return 0;
	q = gantry_container(queue->next, struct fake_request, queue);
	copy = malloc(q->size + 1);
	MUST(copy);
	for (uint32_t i = 0; i < q->niov; at += q->iov[i++].iov_len)
		memcpy(copy + at, q->iov[i].iov_base, q->iov[i].iov_len);
	if (!q->niov && q->size)
		memcpy(copy, q->data, q->size);
	gantry_list_remove(&q->queue);
	q->done = 1;
	peer_takes(tag, copy, q->size);
	free(copy);
	return 1;
}

/* The bytes of a slot lie in fragments, the later ones first. */
static void fake_fill_slot(int slot, const struct fake_message *m)
{
	struct gantry_unpack_desc *d = fake_meta.mem[slot];
	uint64_t n = 0;

	for (size_t left = m->size; left; n++) {
		size_t len = left % FAKE_FRAG ? left % FAKE_FRAG : FAKE_FRAG;

		left -= len;
		d[n] = (struct gantry_unpack_desc){
			.src_off = (uint32_t)(&fake_bounce[slot][0] - &fake_bounce[0][0] + (ptrdiff_t)left),
			.len = (uint32_t)len,
			.dst_off = left};
	}
	memcpy(fake_bounce[slot], m->bytes, m->size);
	__atomic_store_n(&fake_meta.cnt[slot], n, __ATOMIC_RELEASE);
}

static void fake_fill(struct fake_request *q, const struct fake_message *m)
{
	size_t at = 0;

	gantry_list_remove(&q->queue);
	q->done = 1;
	q->got = (int)m->size;
	if (m->size > q->size) {
		q->error = GANTRY_ERR_SIZE;
	} else if (q->slot >= 0) {
		fake_fill_slot(q->slot, m);
	} else if (q->niov) {
		for (uint32_t i = 0; at < m->size; i++) {
			size_t n = m->size - at < q->iov[i].iov_len ? m->size - at : q->iov[i].iov_len;

			memcpy(q->iov[i].iov_base, m->bytes + at, n);
			at += n;
		}
	} else if (m->size) {
		memcpy(q->data, m->bytes, m->size);
	}
}

static void fake_deliver(int tag)
{
	struct gantry_list *posted = &fake.in.queue[tag], *came = &fake.arriving[tag];

	while (!gantry_list_empty(posted) && !gantry_list_empty(came)) {
		struct fake_message *m = gantry_container(came->next, struct fake_message, node);

		fake_fill(gantry_container(posted->next, struct fake_request, queue), m);
		gantry_list_remove(&m->node);
		free(m);
	}
}

/* The peer sends. */
static struct fake_message *fake_message(size_t size)
{
	struct fake_message *m = malloc(sizeof(*m) + size);

	MUST(m);
	m->size = size;
	return m;
}

static void fake_arrive(int tag, struct fake_message *m)
{
	gantry_list_append(&fake.arriving[tag], &m->node);
	fake_deliver(tag);
}

static gantry_result fake_init(struct gantry_net *net, uint64_t id, const struct gantry_net_config *config, void **ret)
{
	*ret = &fake;
	return GANTRY_OK;
}

static gantry_result fake_finalize(struct gantry_net *net, void *ctx)
{
	return GANTRY_OK;
}

static gantry_result fake_close(struct gantry_net *net, void *comm)
{
	struct fake_comm *c = comm;

	gantry_list_each_safe (pos, &c->requests)
		fake_request_free(c, gantry_container(pos, struct fake_request, node));
	return GANTRY_OK;
}

static gantry_result fake_reg_mr(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr)
{
	MUST(type == GANTRY_NET_PTR_CUDA);
	if (fake.no_mr && fake.mrs) /* not of the landing, without which there is no connection */
		return GANTRY_ERR_UNSUPPORTED;
	*ret_mr = malloc(1);
	fake.mrs++;
	return GANTRY_OK;
}

static gantry_result fake_dereg_mr(struct gantry_net *net, void *comm, void *mr)
{
	fake.mrs--;
	free(mr);
	return GANTRY_OK;
}

static gantry_result fake_isend(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
				void **ret_request)
{
	struct fake_request *q = fake_request(comm, tag);

	*ret_request = q;
	if (!q)
		return GANTRY_OK;
	q->data = data;
	q->size = size;
	while (tag == RX_TAG_HEAD && !fake.hold_heads && fake_take(tag))
		;
	return GANTRY_OK;
}

static gantry_result fake_irecv(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
				const int *tags, void **mrs, void **request)
{
	int takes_slot = *request != GANTRY_NET_OPTIONAL_RECV_COMPLETION;
	int slot = (int)(fake.slots % GANTRY_UNPACK_DEPTH);
	struct fake_request *q;

	MUST(n == 1 && (!takes_slot || mrs[0]));
	q = takes_slot && fake.slot_used[slot] ? NULL : fake_request(comm, tags[0]);
	*request = q;
	if (!q)
		return GANTRY_OK;
	q->data = data[0];
	q->size = sizes[0];
	if (takes_slot) {
		q->slot = slot;
		fake.slot_used[slot] = 1;
		fake.slots++;
	}
	fake_deliver(tags[0]);
	return GANTRY_OK;
}

static gantry_result fake_test(struct gantry_net *net, void *request, int *ret_done, int *sizes)
{
	struct fake_request *q = request;
	gantry_result r = q->error;

	if (r == GANTRY_OK && !q->done)
		r = fake.error;
	if (r != GANTRY_OK)
		return gantry_fail(r, GANTRY_SUBSYS_NET, __FILE__, __LINE__, "as scripted");
	*ret_done = q->done;
	if (!q->done)
		return r;
	if (sizes)
		*sizes = q->got;
	if (q->slot < 0)
		fake_request_free(sizes ? &fake.in : &fake.out, q);
	return r;
}

static gantry_result fake_consumed(struct gantry_net *net, void *comm, int n, void *request)
{
	struct fake_request *q = request;

	MUST(n == 1 && q->slot >= 0 && fake.slot_used[q->slot]);
	memset(fake_bounce[q->slot], 0x77, q->size); /* the NIC's again */
	fake.slot_used[q->slot] = 0;
	fake_request_free(comm, q);
	return GANTRY_OK;
}

static gantry_result fake_hold(struct gantry_net *net, void *comm, int tag)
{
	MUST((comm == &fake.out || comm == &fake.in) && tag == RX_TAG_DATA);
	return GANTRY_OK;
}

static void *fake_vec(struct fake_request *q, const struct iovec *iov, uint32_t n)
{
	if (!q)
		return NULL;
	q->iov = iov;
	q->niov = n;
	for (uint32_t i = 0; i < n; i++)
		q->size += iov[i].iov_len;
	return q;
}

static gantry_result fake_irecvv(struct gantry_net *net, void *comm, const struct iovec *iov, uint32_t n, int tag,
				 void **ret_request)
{
	if (fake.no_vec)
		return GANTRY_ERR_UNSUPPORTED;
	*ret_request = fake_vec(fake_request(comm, tag), iov, n);
	fake_deliver(tag);
	return GANTRY_OK;
}

static gantry_result fake_isendv(struct gantry_net *net, void *comm, const struct iovec *iov, uint32_t n, int tag,
				 void **ret_request)
{
	*ret_request = fake_vec(fake_request(comm, tag), iov, n);
	return GANTRY_OK;
}

static int fake_isendv_pays(struct gantry_net *net, void *comm)
{
	return fake.pays;
}

static const struct gantry_net_ops fake_net_ops = {
	.init = fake_init,
	.finalize = fake_finalize,
	.close_send = fake_close,
	.close_recv = fake_close,
	.reg_mr = fake_reg_mr,
	.dereg_mr = fake_dereg_mr,
	.isend = fake_isend,
	.irecv = fake_irecv,
	.test = fake_test,
	.irecv_consumed = fake_consumed,
	.isendv = fake_isendv,
	.irecvv = fake_irecvv,
	.isendv_pays = fake_isendv_pays,
	.hold = fake_hold,
};

/* ---- the device ---- */

static void fake_unpack(const struct gantry_unpack_args *a)
{
	for (uint64_t i = 0; i < a->n; i++) {
		uint8_t *staged = (uint8_t *)a->bounce + a->descs[i].src_off;
		uint8_t *memory = (uint8_t *)(uintptr_t)a->descs[i].dst_off;

		memcpy(a->gather ? staged : memory, a->gather ? memory : staged, a->descs[i].len);
	}
}

/* The oldest work of a stream; 0: there is none. */
static int fake_stream_run(struct gantry_stream *s)
{
	struct fake_work *w;

	if (!s || gantry_list_empty(&s->work))
		return 0;
	w = gantry_container(s->work.next, struct fake_work, node);
	for (size_t i = 0; i < w->rows.count; i++)
		memcpy(w->rows.dst + i * w->rows.dst_stride, w->rows.src + i * w->rows.src_stride, w->rows.width);
	if (!w->rows.count)
		fake_unpack(&w->unpack);
	s->done++;
	gantry_list_remove(&w->node);
	free(w);
	return 1;
}

static void fake_enqueue(struct gantry_stream *s, const struct gantry_rows *rows, const struct gantry_unpack_args *a)
{
	struct fake_work *w = calloc(1, sizeof(*w));

	MUST(w);
	if (rows)
		w->rows = *rows;
	if (a)
		w->unpack = *a;
	gantry_list_append(&s->work, &w->node);
	s->queued++;
}

static gantry_result fake_alloc(struct gantry_device *dev, size_t size, void **ret_ptr)
{
	*ret_ptr = calloc(1, size);
	return *ret_ptr ? GANTRY_OK : GANTRY_ERR_NOMEM;
}

static gantry_result fake_alloc_mapped(struct gantry_device *dev, size_t size, void **ret_host, void **ret_dev)
{
	*ret_dev = NULL;
	fake_alloc(dev, size, ret_host);
	*ret_dev = *ret_host;
	return *ret_host ? GANTRY_OK : GANTRY_ERR_NOMEM;
}

static gantry_result fake_free(struct gantry_device *dev, void *ptr)
{
	free(ptr);
	return GANTRY_OK;
}

static gantry_result fake_pointer(struct gantry_device *dev, const void *ptr, struct gantry_mem_info *ret)
{
	*ret = (struct gantry_mem_info){.kind = fake.device_memory ? GANTRY_MEM_DEVICE : GANTRY_MEM_PAGEABLE,
					.device_ptr = (void *)(uintptr_t)ptr};
	return GANTRY_OK;
}

static gantry_result fake_copy_rows(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_rows *rows)
{
	fake_enqueue(s, rows, NULL);
	return GANTRY_OK;
}

static gantry_result fake_copy(struct gantry_device *dev, struct gantry_stream *s, void *dst, const void *src,
			       size_t size)
{
	const struct gantry_rows one = {dst, src, size, size, size, 1};

	return fake_copy_rows(dev, s, &one);
}

static gantry_result fake_launch(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_launch *l)
{
	MUST(l->args_size == sizeof(struct gantry_unpack_args));
	fake_enqueue(s, NULL, l->args);
	return GANTRY_OK;
}

static gantry_result fake_stream_create(struct gantry_device *dev, struct gantry_stream **ret)
{
	*ret = calloc(1, sizeof(**ret));
	MUST(*ret);
	gantry_list_init(&(*ret)->work);
	return GANTRY_OK;
}

static gantry_result fake_stream_sync(struct gantry_device *dev, struct gantry_stream *s)
{
	while (fake_stream_run(s))
		;
	return GANTRY_OK;
}

static gantry_result fake_stream_destroy(struct gantry_device *dev, struct gantry_stream *s)
{
	fake_stream_sync(dev, s);
	free(s);
	return GANTRY_OK;
}

static gantry_result fake_stream_wait(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	MUST(e->stream);
	return GANTRY_OK;
}

static gantry_result fake_event_create(struct gantry_device *dev, struct gantry_dev_event **ret)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? GANTRY_OK : GANTRY_ERR_NOMEM;
}

static gantry_result fake_event_destroy(struct gantry_device *dev, struct gantry_dev_event *e)
{
	free(e);
	return GANTRY_OK;
}

static gantry_result fake_event_record(struct gantry_device *dev, struct gantry_dev_event *e, struct gantry_stream *s)
{
	*e = (struct gantry_dev_event){s, s->queued};
	return GANTRY_OK;
}

static gantry_result fake_event_query(struct gantry_device *dev, struct gantry_dev_event *e)
{
	return e->stream->done >= e->at ? GANTRY_OK : GANTRY_AGAIN;
}

static void fake_device_close(struct gantry_device *dev)
{
}

static const struct gantry_device_ops fake_device_ops = {
	.close = fake_device_close,
	.alloc = fake_alloc,
	.free = fake_free,
	.alloc_mapped = fake_alloc_mapped,
	.free_mapped = fake_free,
	.pointer = fake_pointer,
	.copy_async = fake_copy,
	.copy_rows_async = fake_copy_rows,
	.stream_create_apart = fake_stream_create,
	.stream_destroy = fake_stream_destroy,
	.stream_sync = fake_stream_sync,
	.stream_wait = fake_stream_wait,
	.event_create = fake_event_create,
	.event_destroy = fake_event_destroy,
	.event_record = fake_event_record,
	.event_query = fake_event_query,
	.launch = fake_launch,
};

/* ---- both ---- */

static void fake_comm_init(struct fake_comm *c)
{
	gantry_list_init(&c->requests);
	for (int i = 0; i < FAKE_TAGS; i++)
		gantry_list_init(&c->queue[i]);
}

static void fake_begin(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.net = (struct gantry_net){.ops = &fake_net_ops, .name = "fake"};
	fake.dev = (struct gantry_device){.ops = &fake_device_ops, .kind = GANTRY_DEVICE_HOST, .max_blocks = 1};
	fake_comm_init(&fake.out);
	fake_comm_init(&fake.in);
	for (int i = 0; i < FAKE_TAGS; i++)
		gantry_list_init(&fake.arriving[i]);
	fake.handle = (struct gantry_unpack_handle){&fake_meta, fake_bounce, (uint64_t)-1};
}

static void fake_end(void)
{
	for (int i = 0; i < FAKE_TAGS; i++)
		gantry_list_each_safe (pos, &fake.arriving[i])
			free(gantry_container(pos, struct fake_message, node));
	MUST(!fake.mrs && !fake.out.n && !fake.in.n);
}

#endif
