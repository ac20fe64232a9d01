/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "rma/rma.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/atomic.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "rma/rma_priv.h"

/* ---- errors ---- */

/* As far as the network takes it now. */
static void tell_all(struct rma_comm *c) REQUIRES(rma_mu)
{
	struct rma_header h = {.what = RMA_FAILED,
			       .at = {.memory = (uint32_t)(c->error.rank + 1)},
			       .bytes = strlen(c->error.text),
			       .id = c->error.result};

	rma_encode(&h, c->inline_most, c->last_words);
	memcpy(c->last_words + RMA_HEADER, c->error.text, h.bytes);
	for (uint32_t i = 0; i < c->ranks && c->mesh; i++) {
		void *out = c->mesh->ends[i].out, *net = NULL;
		int done;

		if (!out || c->peers[i].rx.closed ||
		    RMA_NET(isend, out, c->last_words, RMA_HEADER + h.bytes, RMA_TAG_HEAD, NULL, &net) != GANTRY_OK)
			continue;
		if (net)
			RMA_NET(test, net, &done, NULL); /* what is kept back to be joined by others goes now */
	}
}

gantry_result rma_fail(struct rma_comm *c, gantry_result r, int rank, const char *text)
{
	char kept[sizeof(c->error.text)];

	if (c->error.result == GANTRY_OK) {
		snprintf(kept, sizeof(kept), "%s", text);
		c->error.result = r;
		c->error.rank = rank;
		memcpy(c->error.text, kept, sizeof(kept));
		rma_signal_end(c);
		tell_all(c);
	}
	gantry_set_last_error(c->error.text);
	return c->error.result;
}

gantry_result rma_heard(struct rma_comm *c, const struct rma_peer *p, const struct rma_header *h, const uint8_t *text)
{
	gantry_result r =
		h->id > GANTRY_AGAIN && h->id < GANTRY_RESULT_COUNT ? (gantry_result)h->id : GANTRY_ERR_PEER_LOST;
	int about = h->at.memory && h->at.memory <= c->ranks ? (int)h->at.memory - 1 : (int)p->rank;
	char said[400], all[512];

	get_text(said, h->bytes + 1 < sizeof(said) ? h->bytes + 1 : sizeof(said), text);
	snprintf(all, sizeof(all), "rank %u has failed: %s", p->rank, said);
	LOG_WARN(NET, "remote memory access of rank %u ends: %s", c->rank, all);
	return rma_fail(c, r, about, all);
}

gantry_result rma_peer_failed(struct rma_comm *c, const struct rma_peer *p, gantry_result r)
{
	char text[512];

	if (c->error.result == GANTRY_OK && p->end) {
		snprintf(text, sizeof(text), "rank %u (%s): %s", p->rank,
			 p->end->in ? gantry_net_tcp_peer(p->end->in) : "not connected", gantry_last_error());
		LOG_WARN(NET, "remote memory access of rank %u ends: %s", c->rank, text);
		return rma_fail(c, r, (int)p->rank, text);
	}
	return rma_fail(c, r, (int)c->rank, gantry_last_error());
}

/* The peer may have sent its reason before it closed: that is on the other link. */
static gantry_result sending_failed(struct rma_comm *c, struct rma_peer *p, gantry_result r) REQUIRES(rma_mu)
{
	char text[512];

	if (p->end && c->error.result == GANTRY_OK && !p->rx.closed) {
		snprintf(text, sizeof(text), "%s", gantry_last_error());
		(void)rma_rx_progress(c, p); /* a reason that has come is latched now */
		gantry_set_last_error(text);
	}
	return rma_peer_failed(c, p, r);
}

/* For calls: the latched error, and as the last one of the thread. */
static gantry_result usable(struct rma_comm *c) REQUIRES(rma_mu)
{
	if (c->error.result != GANTRY_OK)
		gantry_set_last_error(c->error.text);
	return c->error.result;
}

gantry_result rma_error(struct rma_comm *c, int *ret_rank, const char **ret_text)
{
	gantry_result r;

	rma_mu_lock(&c->mu);
	r = c->error.result;
	if (ret_rank)
		*ret_rank = r == GANTRY_OK ? -1 : c->error.rank;
	if (ret_text)
		*ret_text = c->error.text;
	rma_mu_unlock(&c->mu);
	return r;
}

/* ---- objects ---- */

enum { BLOCK = 64 };

/* Objects of a kind are allocated together and kept: nothing is returned before the end. */
struct block {
	struct gantry_list node;
	_Alignas(16) char bytes[];
};

static gantry_result grow(struct rma_comm *c, size_t size, size_t node, struct gantry_list *list) REQUIRES(rma_mu)
{
	struct block *b = calloc(1, sizeof(*b) + BLOCK * size);

	if (!b)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for requests");
	gantry_list_append(&c->blocks, &b->node);
	for (size_t i = 0; i < BLOCK; i++)
		gantry_list_append(list, (struct gantry_list *)(void *)(b->bytes + i * size + node));
	return GANTRY_OK;
}

gantry_result rma_request_get(struct rma_comm *c, struct rma_peer *p, struct rma_request **ret)
{
	struct rma_request *q;

	if (gantry_list_empty(&c->free_requests))
		TRY_NOW(grow(c, sizeof(*q), offsetof(struct rma_request, open), &c->free_requests));
	q = gantry_container(c->free_requests.next, struct rma_request, open);
	gantry_list_remove(&q->open);
	*q = (struct rma_request){.comm = c, .peer = p, .number = ++p->requests};
	gantry_list_init(&q->open);
	gantry_list_init(&q->queue);
	*ret = q;
	return GANTRY_OK;
}

static void put_request(struct rma_request *q) REQUIRES(rma_mu)
{
	gantry_list_append(&q->comm->free_requests, &q->open);
}

void rma_request_done(struct rma_request *q)
{
	ASSERT(!q->done);
	gantry_list_remove(&q->open);
	q->done = true;
	rma_watch_request(q);
	if (q->head.what == RMA_GET && q->peer->end)
		rma_tx_answered(q->peer);
	if (!q->answer)
		return;
	q->peer->tx.answers--;
	put_request(q);
}

gantry_result rma_op_get(struct rma_comm *c, struct rma_op **ret)
{
	struct rma_op *op;

	if (gantry_list_empty(&c->free_ops))
		TRY_NOW(grow(c, sizeof(*op), offsetof(struct rma_op, order), &c->free_ops));
	op = gantry_container(c->free_ops.next, struct rma_op, order);
	gantry_list_remove(&op->order);
	*op = (struct rma_op){0};
	gantry_list_init(&op->order);
	gantry_list_init(&op->queue);
	*ret = op;
	return GANTRY_OK;
}

void rma_op_put(struct rma_comm *c, struct rma_op *op)
{
	gantry_list_append(&c->free_ops, &op->order);
}

/* ---- progress ---- */

static gantry_result progress_peer(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	gantry_result r = rma_rx_progress(c, p);

	if (r != GANTRY_OK)
		return rma_peer_failed(c, p, r);
	r = rma_tx_progress(c, p);
	return r == GANTRY_OK ? GANTRY_OK : sending_failed(c, p, r);
}

/* What the device fails at is about this rank. Latched: NCCL looks at the results of puts and at no others. */
static gantry_result progress_device(struct rma_comm *c) REQUIRES(rma_mu)
{
	gantry_result r = rma_signal_progress(c);

	if (r == GANTRY_OK)
		r = rma_batches_close(c);
	return r == GANTRY_OK ? GANTRY_OK : rma_peer_failed(c, &c->peers[c->rank], r);
}

static bool is_busy(const struct rma_peer *p)
{
	return rma_tx_busy(p) || rma_rx_busy(p) || !gantry_list_empty(&p->open);
}

gantry_result rma_progress_locked(struct rma_comm *c)
{
	uint32_t idle = 0;

	for (uint32_t i = 0; i < c->ranks; i++)
		if (is_busy(&c->peers[i]))
			TRY_NOW(progress_peer(c, &c->peers[i]));
	for (uint32_t i = 0; i < c->ranks && idle < RMA_IDLE_PEERS; i++) {
		struct rma_peer *p = &c->peers[c->next_idle];

		c->next_idle = (c->next_idle + 1) % c->ranks;
		if (!p->end || is_busy(p))
			continue;
		idle++;
		TRY_NOW(progress_peer(c, p));
	}
	return progress_device(c);
}

uint64_t rma_moves(const struct rma_comm *c)
{
	return load_relaxed(&c->moves);
}

gantry_result rma_progress(struct rma_comm *c)
{
	gantry_result r;

	rma_mu_lock(&c->mu);
	r = usable(c);
	if (r == GANTRY_OK)
		r = rma_progress_locked(c);
	rma_mu_unlock(&c->mu);
	rma_watch_progress(c);
	return r;
}

/* ---- requests ---- */

static gantry_result check_to(const struct rma_comm *c, const char *what, struct rma_to to) REQUIRES(rma_mu)
{
	if (to.rank >= c->ranks || to.context >= RMA_CONTEXTS_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: rank %u of %u, context %u of %d", what, to.rank, c->ranks, to.context,
			 RMA_CONTEXTS_MAX);
	return GANTRY_OK;
}

/* Of the target's memory this rank knows that it is registered alike, but not how large it is there: the target looks. */
static gantry_result check_far(const struct rma_comm *c, const char *what, struct rma_to to, struct rma_place at,
			       uint64_t bytes) REQUIRES(rma_mu)
{
	struct rma_span own;

	if (bytes > RMA_BYTES_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s of %llu bytes", what, (unsigned long long)bytes);
	if (to.rank == c->rank)
		return rma_span_of(c, at, bytes, &own);
	if (bytes && (at.memory == RMA_NO_MEMORY || at.memory > c->memory.count))
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: memory %u is not registered", what, at.memory);
	return GANTRY_OK;
}

static gantry_result begin(struct rma_comm *c, struct rma_to to, struct rma_header head, struct rma_span local,
			   struct rma_request **ret) REQUIRES(rma_mu)
{
	struct rma_peer *p = &c->peers[to.rank];
	struct rma_request *q;
	gantry_result r;

	TRY_NOW(rma_request_get(c, p, &q));
	head.context = to.context;
	q->head = head;
	q->local = local;
	gantry_list_append(&p->open, &q->open);
	rma_watch_request(q);
	rma_tx_queue(q);
	if (head.what == RMA_GET && p->end) {
		q->head.id = (q->number << 32) | c->next_get;
		c->gets[c->next_get] = q;
	}
	*ret = q;
	r = rma_tx_begin(c, p);
	return r == GANTRY_OK ? GANTRY_OK : sending_failed(c, p, r);
}

static gantry_result put(struct rma_comm *c, struct rma_to to, struct rma_place from, struct rma_place at,
			 uint64_t bytes, const struct rma_signal *signal, struct rma_request **ret) REQUIRES(rma_mu)
{
	struct rma_header head = {.what = RMA_PUT, .at = at, .bytes = bytes};
	struct rma_span local;

	TRY_NOW(usable(c));
	TRY_NOW(check_to(c, "put", to));
	TRY_NOW(rma_span_of(c, from, bytes, &local));
	TRY_NOW(check_far(c, "put", to, at, bytes));
	if (signal && signal->at.memory != RMA_NO_MEMORY) {
		head.signal = *signal;
		TRY_NOW(check_far(c, "signal", to, signal->at, sizeof(uint64_t)));
		if (signal->at.offset % sizeof(uint64_t))
			FAIL_NOW(GANTRY_ERR_INVALID, "signal at %llu, which is not aligned",
				 (unsigned long long)signal->at.offset);
		RMA_COUNT(c, signals, 1);
	}
	RMA_COUNT(c, puts, bytes != 0);
	RMA_COUNT(c, bytes_out, bytes);
	return begin(c, to, head, local, ret);
}

gantry_result rma_put(struct rma_comm *c, struct rma_to to, struct rma_place from, struct rma_place at, uint64_t bytes,
		      const struct rma_signal *signal, struct rma_request **ret_request)
{
	gantry_result r;

	rma_mu_lock(&c->mu);
	r = put(c, to, from, at, bytes, signal, ret_request);
	rma_mu_unlock(&c->mu);
	return r;
}

/* Where the request of the next get is kept until it is answered. */
static gantry_result find_get(struct rma_comm *c) REQUIRES(rma_mu)
{
	struct rma_request **grown;
	uint32_t n = c->ngets ? 2 * c->ngets : 64;

	for (uint32_t i = 0; i < c->ngets; i++) {
		c->next_get = (c->next_get + 1) % c->ngets;
		if (!c->gets[c->next_get])
			return GANTRY_OK;
	}
	grown = realloc(c->gets, n * sizeof(*grown));
	if (!grown)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %u gets", n);
	memset(grown + c->ngets, 0, (n - c->ngets) * sizeof(*grown));
	c->gets = grown;
	c->next_get = c->ngets;
	c->ngets = n;
	return GANTRY_OK;
}

static gantry_result get(struct rma_comm *c, struct rma_to to, struct rma_place from, struct rma_place at,
			 uint64_t bytes, struct rma_request **ret) REQUIRES(rma_mu)
{
	struct rma_span local;

	TRY_NOW(usable(c));
	TRY_NOW(check_to(c, "get", to));
	TRY_NOW(rma_span_of(c, at, bytes, &local));
	TRY_NOW(check_far(c, "get", to, from, bytes));
	TRY_NOW(find_get(c));
	RMA_COUNT(c, gets, 1);
	return begin(c, to, (struct rma_header){.what = RMA_GET, .at = from, .bytes = bytes}, local, ret);
}

gantry_result rma_get(struct rma_comm *c, struct rma_to to, struct rma_place from, struct rma_place at, uint64_t bytes,
		      struct rma_request **ret_request)
{
	gantry_result r;

	rma_mu_lock(&c->mu);
	r = get(c, to, from, at, bytes, ret_request);
	rma_mu_unlock(&c->mu);
	return r;
}

gantry_result rma_flush(struct rma_comm *c, struct rma_to to, struct rma_request **ret_request)
{
	gantry_result r = GANTRY_OK;
	struct rma_request *q;

	rma_mu_lock(&c->mu);
	TRY(usable(c));
	TRY(check_to(c, "flush", to));
	TRY(rma_request_get(c, &c->peers[to.rank], &q));
	q->head.what = RMA_FLUSH;
	q->head.context = to.context;
	q->since = gantry_now_ns();
	*ret_request = q;
out:
	rma_mu_unlock(&c->mu);
	return r;
}

static bool is_flushed(const struct rma_request *flush)
{
	gantry_list_each_entry (q, &flush->peer->open, struct rma_request, open) {
		if (q->number > flush->number)
			break;
		if (q->head.context == flush->head.context)
			return false;
	}
	return true;
}

static bool is_over(const struct rma_request *q)
{
	return q->head.what == RMA_FLUSH ? is_flushed(q) : q->done;
}

/*
 * Progress is made for all requests of a peer together, and costs calls of the kernel. NCCL tests all of them in turn, hundreds maybe, so
 * the oldest one's test does it. A caller that tests only others gets it now and then.
 */
static bool is_due(const struct rma_request *q) REQUIRES(rma_mu)
{
	return q->head.what == RMA_FLUSH || q->peer->open.next == &q->open || q->peer->tests++ % RMA_TESTS == 0;
}

gantry_result rma_test(struct rma_request *q, int *ret_done)
{
	struct rma_comm *c = q->comm;
	gantry_result r = GANTRY_OK;

	rma_mu_lock(&c->mu);
	TRY(usable(c));
	if (!is_over(q) && is_due(q)) {
		TRY(progress_peer(c, q->peer));
		TRY(progress_device(c));
	}
	*ret_done = is_over(q);
	if (*ret_done)
		put_request(q);
out:
	rma_mu_unlock(&c->mu);
	return r;
}

gantry_result rma_look(struct rma_request *q, int *ret_done)
{
	struct rma_comm *c = q->comm;
	gantry_result r;

	rma_mu_lock(&c->mu);
	r = usable(c);
	*ret_done = r == GANTRY_OK && is_over(q);
	if (*ret_done)
		put_request(q);
	rma_mu_unlock(&c->mu);
	return r;
}

/* ---- life ---- */

/* The same number on all ranks of a job: handles are random enough. */
static uint64_t job_of(const struct rma_config *config)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (uint32_t i = 0; i < config->ranks; i++)
		for (size_t k = 0; k < GANTRY_NET_HANDLE_SIZE; k++)
			h = (h ^ ((const uint8_t *)config->handles[i])[k]) * 0x100000001b3u;
	return h;
}

struct hello {
	uint64_t job;
	uint32_t ranks;
};

static int64_t whose(const struct net_mesh *m, const void *hello, size_t size)
{
	const struct hello *h = m->config.user;
	uint32_t rank;

	return rma_hello_decode(hello, size, h->job, h->ranks, &rank) == GANTRY_OK ? (int64_t)rank : NET_MESH_NOBODY;
}

static const char *list_missing(const struct net_mesh *m, char *buf, size_t size)
{
	buf[0] = 0;
	for (uint32_t i = 0; i < m->config.count; i++)
		if (!net_mesh_has(m, i))
			gantry_text_add(buf, size, "%s rank %u", *buf ? "," : "", i);
	return buf;
}

static gantry_result connect_all(struct rma_comm *c, const struct rma_config *config)
{
	const struct timespec nap = {.tv_nsec = 200000};
	uint64_t deadline = gantry_now_ns() + config->timeout;
	struct hello hello = {job_of(config), config->ranks};
	uint8_t bytes[RMA_HEADER];
	char missing[256];
	struct net_mesh_config mesh = {.ctx = config->ctx,
				       .listen = config->listen,
				       .dev = config->dev,
				       .count = config->ranks,
				       .hello = bytes,
				       .whose = whose,
				       .user = &hello};
	gantry_result r;

	rma_hello_encode(hello.job, hello.ranks, config->rank, bytes);
	TRY_NOW(net_mesh_create(&mesh, &c->mesh));
	for (uint32_t i = 0; i < config->ranks; i++)
		if (i != config->rank && net_mesh_dial(c->mesh, i, config->handles[i]) != GANTRY_OK)
			FAIL_NOW(GANTRY_ERR_INVALID, "the handle of rank %u was not created by gantry", i);
	while ((r = net_mesh_step(c->mesh)) == GANTRY_AGAIN) {
		if (gantry_now_ns() >= deadline)
			FAIL_NOW(GANTRY_ERR_TIMEOUT,
				 "remote memory access: rank %u of %u has no connection in time with%s", config->rank,
				 config->ranks, list_missing(c->mesh, missing, sizeof(missing)));
		if (config->stop && load_seq(config->stop))
			FAIL_NOW(GANTRY_ERR_ABORTED, "remote memory access: aborted without a connection with%s",
				 list_missing(c->mesh, missing, sizeof(missing)));
		nanosleep(&nap, NULL);
	}
	c->mesh->config.user = NULL; /* no further hello is expected */
	return r;
}

/* n buffers of `size` bytes each. */
static gantry_result open_pool(struct rma_comm *c, uint32_t n, size_t size, uint8_t **block, uint8_t ***free_list,
			       uint32_t *nfree)
{
	void *p = NULL;

	*free_list = calloc(n ? n : 1, sizeof(**free_list));
	if (!*free_list)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %u buffers", n);
	if (!n)
		return GANTRY_OK;
	TRY_NOW(rma_mapped_alloc(c, n * size, &p));
	*block = p;
	for (uint32_t i = 0; i < n; i++)
		(*free_list)[i] = *block + (n - 1 - i) * size;
	*nfree = n;
	return GANTRY_OK;
}

static gantry_result open_peer(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	const size_t size = RMA_HEADER + c->inline_most;
	uint8_t *at;
	void *messages = NULL;

	p->end = p->rank == c->rank ? NULL : &c->mesh->ends[p->rank];
	if (!p->end)
		return GANTRY_OK;
	TRY_NOW(rma_mapped_alloc(c, (RMA_HEADS_OUT + RMA_HEADS_IN) * size, &messages));
	at = p->messages = messages;
	for (int i = 0; i < RMA_HEADS_OUT; i++, at += size)
		p->tx.heads[i].slot = at;
	for (int i = 0; i < RMA_HEADS_IN; i++, at += size)
		p->rx.heads[i].buffer = at;
	return GANTRY_OK;
}

static gantry_result open_memory(struct rma_comm *c) REQUIRES(rma_mu)
{
	const bool stages = rma_copies(c);
	const uint32_t in = stages && c->ranks > 1 ? RMA_STAGES + c->ranks - 2 : 0;

	TRY_NOW(open_pool(c, stages ? RMA_STAGES : 0, c->piece, &c->stages_out.block, &c->stages_out.free,
			  &c->stages_out.nfree));
	TRY_NOW(open_pool(c, in, c->piece, &c->stages_in.block, &c->stages_in.free, &c->stages_in.nfree));
	TRY_NOW(rma_signal_open(c));
	for (uint32_t i = 0; i < c->ranks; i++)
		TRY_NOW(open_peer(c, &c->peers[i]));
	return GANTRY_OK;
}

/* Lists that rma_close looks at are there whatever else is. */
static struct rma_comm *make_comm(const struct rma_config *config) UNCHECKED
{
	struct rma_comm *c = calloc(1, sizeof(*c));
	struct rma_peer *peers = calloc(config->ranks, sizeof(*peers));

	if (!c || !peers) {
		free(c);
		free(peers);
		return NULL;
	}
	c->ranks = config->ranks;
	c->rank = config->rank;
	c->piece = rma_piece(config->ranks);
	c->inline_most = rma_inline_most(config->ranks);
	c->device = config->device;
	c->staged = config->staged;
	c->timeout = config->timeout;
	c->stop = config->stop;
	c->peers = peers;
	gantry_list_init(&c->free_requests);
	gantry_list_init(&c->free_ops);
	gantry_list_init(&c->blocks);
	for (int i = 0; i < GANTRY_COPY_QUEUES; i++)
		c->batches[i].open = 1;
	gantry_list_init(&c->signals.words);
	gantry_list_init(&c->signals.free);
	for (uint32_t i = 0; i < c->ranks; i++) {
		peers[i].rank = i;
		rma_rx_init(&peers[i].rx);
		gantry_list_init(&peers[i].open);
		gantry_list_init(&peers[i].tx.waiting);
		gantry_list_init(&peers[i].tx.bulk);
		gantry_list_init(&peers[i].tx.held);
	}
	return c;
}

gantry_result rma_open(const struct rma_config *config, struct rma_comm **ret_comm)
{
	gantry_result r = GANTRY_OK;
	struct rma_comm *c = NULL;

	if (config->ranks < 1 || config->ranks > RMA_RANKS_MAX || config->rank >= config->ranks)
		FAIL(GANTRY_ERR_INVALID, "remote memory access: rank %u of %u", config->rank, config->ranks);
	c = make_comm(config);
	if (!c)
		FAIL(GANTRY_ERR_NOMEM, "no memory for remote memory access among %u ranks", config->ranks);
	TRY(connect_all(c, config));
	rma_mu_lock(&c->mu);
	r = open_memory(c);
	rma_mu_unlock(&c->mu);
	if (r != GANTRY_OK)
		goto out;
	rma_watch_open(c);
	*ret_comm = c;
	c = NULL;
out:
	rma_close(c);
	return r;
}

/* What was put leaves before the connections do: peers may wait for it, and this rank for nothing. */
static void finish_puts(struct rma_comm *c)
{
	const struct timespec nap = {.tv_nsec = 50000};
	uint64_t deadline = gantry_now_ns() + gantry_params()->timeout;
	bool busy = c->mesh != NULL;

	while (busy && !(c->stop && load_seq(c->stop)) && gantry_now_ns() < deadline) {
		rma_mu_lock(&c->mu);
		busy = false;
		for (uint32_t i = 0; i < c->ranks && c->error.result == GANTRY_OK; i++)
			busy |= rma_tx_busy(&c->peers[i]);
		if (busy && rma_progress_locked(c) != GANTRY_OK)
			busy = false;
		rma_mu_unlock(&c->mu);
		if (busy)
			nanosleep(&nap, NULL);
	}
}

static void free_buffers(struct rma_comm *c) UNCHECKED
{
	for (uint32_t i = 0; i < c->ranks; i++)
		rma_mapped_free(c, c->peers[i].messages);
	rma_mapped_free(c, c->signals.values);
	rma_mapped_free(c, c->stages_out.block);
	rma_mapped_free(c, c->stages_in.block);
}

/* UNCHECKED: no other call is under way. */
void rma_close(struct rma_comm *c) UNCHECKED
{
	if (!c)
		return;
	finish_puts(c);
	rma_watch_close(c);
	net_mesh_destroy(c->mesh); /* first: the network has buffers of ours */
	if (rma_finish_copies(c))  /* and so have the device's queues: better a leak than a crash */
		free_buffers(c);
	rma_mu_lock(&c->mu);
	rma_signal_end(c);
	rma_mu_unlock(&c->mu);
	for (uint32_t i = 0; i < c->ranks; i++)
		rma_rx_free(&c->peers[i].rx);
	free(c->signals.all);
	free(c->stages_out.free);
	free(c->stages_in.free);
	gantry_list_each_entry_safe (b, &c->blocks, struct block, node)
		free(b);
	free(c->gets);
	free(c->memory.all);
	free(c->peers);
	free(c);
}
