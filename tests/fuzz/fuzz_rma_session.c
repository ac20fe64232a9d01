/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator of remote memory access against two ranks that the script plays, over a network and a device whose copy queues the
 * script plays too.
 *
 *   byte 0   bit 0: the target is device memory; bit 1: what this rank sends from is; bit 2: words are what the target is not
 *   then operations, each a byte modulo OPS, a rank and its arguments (enum op below)
 *
 * What must hold:
 *  - Nothing outside of registered memory is read or written, and none that was deregistered (with the sanitizers).
 *  - When a signal shows in memory, so does the data of its put and of earlier ones in its context.
 *  - Whatever is sent is a request, an answer to one, or FAILED; its data is right when it is sent, and stays until the send is over.
 *  - Ranks that keep to the protocol cause no error; in the end all their signals have been added, all requests are done, and
 *    what the owner set a word to while no signal was on its way counts.
 *
 * wrap: gantry_net_tcp gantry_net_tcp_peer net_mesh_create net_mesh_dial net_mesh_step net_mesh_has net_mesh_destroy
 */
#include <stdbool.h>

#include "base/list.h"
#include "device/device.h"
#include "net/mesh.h"
#include "rma/rma_wire.h"
#include "script.h"
#include "test.h"

enum {
	RANKS = 3, /* 0 is the communicator's */
	CONTEXTS = 2,
	QUEUE = 64, /* messages, receives and sends of a rank and tag */
	PUTS = 96,
	GETS = 16,
	REQUESTS = 16,
	COPIES = 1024,
	STEPS = 400,
	DRAIN = 2000,
	TAGS = 2,
	GAP = 16,
	PART = 1500000, /* of the target, for each rank */
	SOURCE_SIZE = 1200000,
};
enum { TARGET = 1, WORDS, SOURCE, MEMORIES = SOURCE };
enum { SUM = RANKS * CONTEXTS, NWORDS };
enum op {
	OP_PUT,	       /* rank, size, context, signal: to this rank */
	OP_SIGNAL,     /* rank, context, add: to the word of all ranks */
	OP_GET,	       /* rank, size, context: from this rank */
	OP_REPLY,      /* rank: to its oldest request that is not answered */
	OP_LIE,	       /* rank, place, value, then as a put: a head with another byte */
	OP_BYTES,      /* rank, tag, bytes: any message */
	OP_GUESS,      /* rank, number, slot, size: an answer that may not have been asked for */
	OP_PROGRESS,   /* rank, how often */
	OP_COPY,       /* rank: the queue; how many copies are made */
	OP_LATER,      /* the network takes no requests, or does again */
	OP_HELD,       /* rank: sends to it do not end, or do again */
	OP_GONE,       /* rank, how: its connections end */
	OP_OWN,	       /* rank, what, size, context: a call of this rank */
	OP_RESET,      /* rank (any), value: the owner sets the word of all ranks, if no signal for it is on its way */
	OP_DEREGISTER, /* rank (any), memory */
	OPS
};

struct message {
	size_t size;
	uint8_t *bytes; /* owned */
};

struct net_request {
	struct gantry_list node; /* of those that are open */
	int rank;
	bool sends, done;
	uint8_t *data;
	size_t size, got;
	uint32_t sum; /* of what is sent */
	gantry_result error;
};

/* What a rank has put here. */
struct put {
	int rank, context;
	uint64_t at, bytes, from; /* from: place in the pattern of `rank` */
	uint64_t seen_at;	  /* its word's value that shows it; UINT64_MAX: none yet */
	bool checked;
};

struct get {
	bool open;
	uint64_t id, at, bytes;
};

static struct {
	struct script in;
	struct rma_comm *c;
	bool crooked, later;
	struct gantry_list requests;
	struct {
		struct message arriving[TAGS][QUEUE];
		struct net_request *posted[TAGS][QUEUE];
		uint32_t here[TAGS], taken[TAGS], nposted[TAGS], filled[TAGS];
		bool held;
		gantry_result gone;
		uint64_t used; /* of its part of the target */
		uint64_t words[CONTEXTS];
		struct get asked[GETS];	    /* by this rank */
		uint32_t nasked, nanswered; /* in order */
		struct get gets[GETS];	    /* of this rank's memory */
		uint64_t next_id;
		struct get bulk[QUEUE]; /* to come from this rank in pieces */
		uint32_t nbulk, bulk_over;
	} rank[RANKS];
	struct put puts[PUTS];
	int nputs;
	uint64_t sum;
	uint8_t *memory[MEMORIES + 1];
	uint32_t number[MEMORIES + 1];
	struct {
		struct rma_request *request;
		int rank;
		uint64_t to, at, bytes; /* of a get: place in the target, and in the rank's pattern */
	} own[REQUESTS];
	int nown;
	struct {
		struct {
			uint8_t *to;
			const uint8_t *from; /* NULL: value is stored */
			size_t size;
			uint64_t value;
		} copies[COPIES];
		uint64_t queued, over;
	} queues[GANTRY_COPY_QUEUES];
	bool waited; /* for the queues: they copy by themselves */
	bool stores; /* the device can */
} run;

struct gantry_net *__wrap_gantry_net_tcp(void);
const char *__wrap_gantry_net_tcp_peer(const void *comm);
gantry_result __wrap_net_mesh_create(const struct net_mesh_config *config, struct net_mesh **ret_mesh);
gantry_result __wrap_net_mesh_dial(struct net_mesh *m, uint32_t index, const void *handle);
gantry_result __wrap_net_mesh_step(struct net_mesh *m);
bool __wrap_net_mesh_has(const struct net_mesh *m, uint32_t index);
void __wrap_net_mesh_destroy(struct net_mesh *m);

static uint8_t next(void)
{
	return script_next(&run.in);
}

/* ---- the device: its queues copy when the script says so ---- */

static gantry_result fake_alloc_mapped(struct gantry_device *dev, size_t size, void **ret_host, void **ret_device)
{
	*ret_host = *ret_device = calloc(1, size);
	MUST(*ret_host);
	return GANTRY_OK;
}

static gantry_result fake_free_mapped(struct gantry_device *dev, void *host)
{
	free(host);
	return GANTRY_OK;
}

static gantry_result fake_queue_copy(struct gantry_device *dev, enum gantry_copy_queue q, void *dst, const void *src,
				     size_t size)
{
	MUST(run.queues[q].queued < run.queues[q].over + COPIES);
	run.queues[q].copies[run.queues[q].queued % COPIES].to = dst;
	run.queues[q].copies[run.queues[q].queued % COPIES].from = src;
	run.queues[q].copies[run.queues[q].queued++ % COPIES].size = size;
	return GANTRY_OK;
}

static gantry_result fake_queue_store(struct gantry_device *dev, enum gantry_copy_queue q, void *dst, uint64_t value)
{
	if (!run.stores)
		return GANTRY_ERR_UNSUPPORTED;
	run.queues[q].copies[run.queues[q].queued % COPIES].value = value;
	return fake_queue_copy(dev, q, dst, NULL, sizeof(value));
}

static gantry_result fake_queue_fence(struct gantry_device *dev, enum gantry_copy_queue q, uint64_t *ret_fence)
{
	*ret_fence = run.queues[q].queued;
	return GANTRY_OK;
}

static void make_copies(int q, uint64_t n)
{
	for (; n && run.queues[q].over < run.queues[q].queued; n--, run.queues[q].over++) {
		uint64_t i = run.queues[q].over % COPIES;

		memcpy(run.queues[q].copies[i].to,
		       run.queues[q].copies[i].from ? run.queues[q].copies[i].from
						    : (const uint8_t *)&run.queues[q].copies[i].value,
		       run.queues[q].copies[i].size);
	}
}

static gantry_result fake_fence_reached(struct gantry_device *dev, enum gantry_copy_queue q, uint64_t fence)
{
	if (run.waited)
		make_copies((int)q, COPIES);
	return run.queues[q].over >= fence ? GANTRY_OK : GANTRY_AGAIN;
}

static const struct gantry_device_ops device_ops = {.alloc_mapped = fake_alloc_mapped,
						    .free_mapped = fake_free_mapped,
						    .queue_copy = fake_queue_copy,
						    .queue_store = fake_queue_store,
						    .queue_fence = fake_queue_fence,
						    .fence_reached = fake_fence_reached};
static struct gantry_device device = {.ops = &device_ops};

/* ---- patterns ---- */

/* The source's bytes depend on their place, and so do those that a rank puts. */
static uint8_t byte_at(int rank, uint64_t at)
{
	return (uint8_t)(1 + (at * 31 + (at >> 8) * 7 + (uint64_t)rank * 101) % 255);
}

/* A rank that does not keep to the protocol may write other data wherever memory is registered. */
static void must_be_pattern(const uint8_t *bytes, int rank, uint64_t at, uint64_t n)
{
	for (uint64_t i = 0; i < n && !run.crooked; i++)
		MUST(bytes[i] == byte_at(rank, at + i));
}

static uint32_t sum_of(const uint8_t *bytes, size_t n)
{
	uint32_t sum = 1;

	for (size_t i = 0; i < n; i++)
		sum = sum * 31 + bytes[i];
	return sum;
}

/* ---- the network ---- */

static int comms[RANKS];

static int rank_of(const void *comm)
{
	return (int)((const int *)comm - comms);
}

static struct net_request *take_request(int k, bool sends, void *data, size_t size)
{
	struct net_request *q = calloc(1, sizeof(*q));

	MUST(q);
	*q = (struct net_request){.sends = sends, .rank = k, .data = data, .size = size};
	gantry_list_append(&run.requests, &q->node);
	return q;
}

static void deliver(int k, int tag)
{
	while (run.rank[k].filled[tag] < run.rank[k].nposted[tag] && run.rank[k].taken[tag] < run.rank[k].here[tag]) {
		struct net_request *q = run.rank[k].posted[tag][run.rank[k].filled[tag]++ % QUEUE];
		struct message *m = &run.rank[k].arriving[tag][run.rank[k].taken[tag]++ % QUEUE];

		q->done = true;
		q->got = m->size;
		if (m->size > q->size)
			q->error = GANTRY_ERR_SIZE;
		else if (m->size)
			memcpy(q->data, m->bytes, m->size);
		free(m->bytes);
	}
}

static gantry_result fake_irecv(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
				const int *tags, void **mrs, void **request)
{
	int k = rank_of(comm), tag = tags[0];

	MUST(n == 1 && tag < TAGS);
	if (run.rank[k].gone != GANTRY_OK)
		return run.rank[k].gone;
	if (run.later)
		return GANTRY_OK;
	MUST(run.rank[k].nposted[tag] - run.rank[k].filled[tag] < QUEUE);
	*request = take_request(k, false, data[0], sizes[0]);
	run.rank[k].posted[tag][run.rank[k].nposted[tag]++ % QUEUE] = *request;
	deliver(k, tag);
	return GANTRY_OK;
}

static void expect_bulk(int k, uint64_t at, uint64_t bytes)
{
	MUST(run.rank[k].nbulk - run.rank[k].bulk_over < QUEUE);
	run.rank[k].bulk[run.rank[k].nbulk++ % QUEUE] = (struct get){.at = at, .bytes = bytes};
}

/* An answer to a request of the rank. */
static void take_reply(int k, const struct rma_header *h, const uint8_t *data)
{
	for (int i = 0; i < GETS; i++) {
		struct get *g = &run.rank[k].gets[i];

		if (!g->open || g->id != h->id)
			continue;
		MUST(g->bytes == h->bytes);
		if (rma_inlined(h, RMA_INLINE))
			must_be_pattern(data, 0, g->at, g->bytes);
		else if (g->bytes)
			expect_bulk(k, g->at, g->bytes);
		g->open = false;
		return;
	}
	MUST(run.crooked);
}

static void take_head(int k, const uint8_t *bytes, size_t size)
{
	struct rma_header h;

	MUST(rma_decode(bytes, size, RMA_INLINE, &h) == GANTRY_OK);
	if (h.what == RMA_FAILED) {
		MUST(run.crooked);
	} else if (h.what == RMA_GET) {
		MUST(run.crooked || run.rank[k].nasked - run.rank[k].nanswered < GETS);
		run.rank[k].asked[run.rank[k].nasked++ % GETS] =
			(struct get){.id = h.id, .at = h.at.offset, .bytes = h.bytes};
	} else if (h.what == RMA_REPLY) {
		take_reply(k, &h, bytes + RMA_HEADER);
	} else if (rma_inlined(&h, RMA_INLINE)) {
		must_be_pattern(bytes + RMA_HEADER, 0, h.at.offset, h.bytes);
	} else if (h.bytes) {
		expect_bulk(k, h.at.offset, h.bytes);
	}
}

/* In the order of their heads. With a crooked rank answers may be of its own choosing. */
static void take_piece(int k, const uint8_t *bytes, size_t size)
{
	struct get *g = &run.rank[k].bulk[run.rank[k].bulk_over % QUEUE];

	if (run.crooked)
		return;
	MUST(run.rank[k].bulk_over < run.rank[k].nbulk);
	MUST(size == (g->bytes < RMA_PIECE ? g->bytes : RMA_PIECE));
	must_be_pattern(bytes, 0, g->at, size);
	g->at += size;
	g->bytes -= size;
	run.rank[k].bulk_over += g->bytes == 0;
}

static gantry_result fake_isend(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
				void **ret_request)
{
	int k = rank_of(comm);
	struct net_request *q;

	if (run.rank[k].gone != GANTRY_OK)
		return run.rank[k].gone;
	if (run.later)
		return GANTRY_OK;
	q = take_request(k, true, data, size);
	q->sum = sum_of(data, size);
	if (tag == RMA_TAG_HEAD)
		take_head(k, data, size);
	else
		take_piece(k, data, size);
	*ret_request = q;
	return GANTRY_OK;
}

static gantry_result fake_test(struct gantry_net *net, void *request, int *ret_done, int *sizes)
{
	struct net_request *q = request;
	gantry_result r = q->error;

	if (r == GANTRY_OK && !q->done && run.rank[q->rank].gone != GANTRY_OK)
		r = run.rank[q->rank].gone;
	*ret_done = q->sends ? !run.rank[q->rank].held : q->done;
	if (r == GANTRY_OK && *ret_done && q->sends && !run.crooked)
		MUST(sum_of(q->data, q->size) == q->sum);
	if (sizes)
		*sizes = (int)q->got;
	if (r == GANTRY_OK && *ret_done) {
		gantry_list_remove(&q->node);
		free(q);
	}
	return r;
}

struct gantry_net *__wrap_gantry_net_tcp(void)
{
	static const struct gantry_net_ops ops = {.isend = fake_isend, .irecv = fake_irecv, .test = fake_test};
	static struct gantry_net net = {.ops = &ops};

	return &net;
}

const char *__wrap_gantry_net_tcp_peer(const void *comm)
{
	return "a rank";
}

gantry_result __wrap_net_mesh_create(const struct net_mesh_config *config, struct net_mesh **ret_mesh)
{
	struct net_mesh *m = calloc(1, sizeof(*m));

	MUST(m);
	m->config = *config;
	m->ends = calloc(RANKS, sizeof(*m->ends));
	MUST(m->ends);
	for (int k = 1; k < RANKS; k++)
		m->ends[k] = (struct net_mesh_end){&comms[k], &comms[k]};
	*ret_mesh = m;
	return GANTRY_OK;
}

gantry_result __wrap_net_mesh_dial(struct net_mesh *m, uint32_t index, const void *handle)
{
	return GANTRY_OK;
}

gantry_result __wrap_net_mesh_step(struct net_mesh *m)
{
	return GANTRY_OK;
}

bool __wrap_net_mesh_has(const struct net_mesh *m, uint32_t index)
{
	return true;
}

/* Posted receives end with their connections. */
void __wrap_net_mesh_destroy(struct net_mesh *m)
{
	if (!m)
		return;
	for (int k = 1; k < RANKS; k++)
		run.rank[k].gone = GANTRY_ERR_PEER_CLOSED;
	gantry_list_each_entry_safe (q, &run.requests, struct net_request, node)
		free(q);
	gantry_list_init(&run.requests);
	for (int k = 0; k < RANKS; k++)
		for (int t = 0; t < TAGS; t++)
			run.rank[k].filled[t] = run.rank[k].nposted[t];
	free(m->ends);
	free(m);
}

/* ---- the ranks ---- */

static bool has_room(int k, int tag, uint32_t n)
{
	return run.rank[k].here[tag] - run.rank[k].taken[tag] + n <= QUEUE;
}

static void arrive(int k, int tag, const void *bytes, size_t size)
{
	if (!has_room(k, tag, 1))
		return;
	run.rank[k].arriving[tag][run.rank[k].here[tag]++ % QUEUE] =
		(struct message){size, script_copy(bytes, size, 0)};
	deliver(k, tag);
}

/* A head, and its data: the rank's pattern from place `at` on. lie: a byte of the head is another one. */
static void arrive_all(int k, const struct rma_header *h, int pattern, uint64_t at, int lie, uint8_t value)
{
	uint64_t here = h->what == RMA_GET ? 0 : h->bytes, n;
	uint8_t *bytes = malloc(RMA_HEADER + (here ? here : 1));

	MUST(bytes);
	rma_encode(h, RMA_INLINE, bytes);
	for (uint64_t i = 0; i < here; i++)
		bytes[RMA_HEADER + i] = byte_at(pattern, at + i);
	if (lie >= 0)
		bytes[lie % RMA_HEADER] = value;
	arrive(k, RMA_TAG_HEAD, bytes, RMA_HEADER + rma_inlined(h, RMA_INLINE));
	for (uint64_t i = rma_inlined(h, RMA_INLINE); i < here; i += n) {
		n = here - i < RMA_PIECE ? here - i : RMA_PIECE;
		arrive(k, RMA_TAG_BULK, bytes + RMA_HEADER + i, n);
	}
	free(bytes);
}

static uint64_t next_size(void)
{
	static const uint64_t sizes[] = {0, 8, RMA_INLINE, RMA_INLINE + 1, 9000, 40000, RMA_PIECE, RMA_PIECE + 5};
	uint8_t x = next();

	return x < 128 ? x : sizes[x % TEST_COUNT(sizes)];
}

static uint64_t word_value(int i)
{
	uint64_t value;

	memcpy(&value, run.memory[WORDS] + 8 * i, 8);
	return value;
}

/* Notes a put of the rank (0: this one), whose place in the target nothing else gets. from: ~0: that place. false: there is none. */
static bool note_put(int k, int context, uint64_t bytes, uint64_t add, uint64_t from, struct rma_header *ret)
{
	uint64_t at = (uint64_t)k * PART + run.rank[k].used;

	if (run.nputs == PUTS || bytes + 2 * GAP > PART - run.rank[k].used || run.rank[k].gone != GANTRY_OK)
		return false;
	*ret = (struct rma_header){.what = RMA_PUT, .context = (uint32_t)context, .at = {TARGET, at}, .bytes = bytes};
	run.puts[run.nputs++] = (struct put){k, context, at, bytes, from == UINT64_MAX ? at : from, UINT64_MAX, false};
	run.rank[k].used += bytes + GAP;
	if (!add)
		return true;
	ret->signal = (struct rma_signal){{WORDS, 8 * (uint64_t)(k * CONTEXTS + context)}, add};
	run.rank[k].words[context] += add;
	for (int i = 0; i < run.nputs; i++)
		if (run.puts[i].rank == k && run.puts[i].context == context && run.puts[i].seen_at == UINT64_MAX)
			run.puts[i].seen_at = run.rank[k].words[context];
	return true;
}

static void put_here(int k, bool lies)
{
	int at = lies ? next() : -1;
	uint8_t value = lies ? next() : 0;
	uint64_t bytes = next_size();
	uint8_t how = next();
	struct rma_header h;

	run.crooked |= lies;
	if (has_room(k, RMA_TAG_HEAD, 1) && has_room(k, RMA_TAG_BULK, 2) &&
	    note_put(k, how % CONTEXTS, bytes, how / CONTEXTS % 4, UINT64_MAX, &h))
		arrive_all(k, &h, k, h.at.offset, at, value);
}

static void signal_here(int k)
{
	struct rma_header h = {.what = RMA_PUT, .context = next() % CONTEXTS};

	h.signal = (struct rma_signal){{WORDS, 8 * SUM}, 1 + next() % 5u};
	if (!has_room(k, RMA_TAG_HEAD, 1) || run.rank[k].gone != GANTRY_OK)
		return;
	run.sum += h.signal.add;
	arrive_all(k, &h, k, 0, -1, 0);
}

static void get_here(int k)
{
	struct rma_header h = {.what = RMA_GET, .bytes = next_size(), .at = {SOURCE, 0}};

	h.context = next() % CONTEXTS;
	h.at.offset = (uint64_t)next() * 64;
	h.id = ++run.rank[k].next_id << 8 | (uint64_t)k;
	for (int i = 0; i < GETS && has_room(k, RMA_TAG_HEAD, 1); i++)
		if (!run.rank[k].gets[i].open) {
			run.rank[k].gets[i] = (struct get){true, h.id, h.at.offset, h.bytes};
			arrive_all(k, &h, k, 0, -1, 0);
			return;
		}
}

static void reply(int k)
{
	const struct get *g = &run.rank[k].asked[run.rank[k].nanswered % GETS];
	struct rma_header h = {.what = RMA_REPLY, .bytes = g->bytes, .id = g->id};

	if (run.rank[k].nanswered == run.rank[k].nasked || !has_room(k, RMA_TAG_HEAD, 1) ||
	    !has_room(k, RMA_TAG_BULK, 2))
		return;
	run.rank[k].nanswered++;
	arrive_all(k, &h, k, g->at, -1, 0);
}

static void guess_reply(int k)
{
	struct rma_header h = {.what = RMA_REPLY};

	h.id = (uint64_t)next() << 32;
	h.id |= next();
	h.bytes = next_size();
	run.crooked = true;
	if (has_room(k, RMA_TAG_HEAD, 1) && has_room(k, RMA_TAG_BULK, 2))
		arrive_all(k, &h, k, 0, -1, 0);
}

static void any_bytes(int k)
{
	uint8_t bytes[64];
	int tag = next() % TAGS;
	size_t n = script_bytes(&run.in, bytes);

	run.crooked = true;
	arrive(k, tag, bytes, n);
}

/* ---- this rank ---- */

/* What a get brings goes to the part of this rank, where nothing else is put. */
static gantry_result own_call(int k, uint8_t what, uint64_t bytes, struct rma_to to)
{
	uint64_t at = (uint64_t)next() * 64, place = run.rank[0].used;
	struct rma_request **q = &run.own[run.nown].request;
	struct rma_header h;

	run.own[run.nown].bytes = 0;
	if (what == 0)
		return rma_flush(run.c, to, q);
	if (what == 1 && k)
		return rma_put(run.c, to, (struct rma_place){SOURCE, at}, (struct rma_place){TARGET, at}, bytes, NULL,
			       q);
	if (what == 1) {
		if (!note_put(0, (int)to.context, bytes, 1, at, &h))
			return GANTRY_AGAIN;
		return rma_put(run.c, to, (struct rma_place){SOURCE, at}, h.at, bytes, &h.signal, q);
	}
	if (bytes + 2 * GAP > PART - place)
		return GANTRY_AGAIN;
	run.own[run.nown].rank = k;
	run.own[run.nown].to = place;
	run.own[run.nown].at = at;
	run.own[run.nown].bytes = bytes;
	run.rank[0].used += bytes + GAP;
	return rma_get(run.c, to, (struct rma_place){SOURCE, at}, (struct rma_place){TARGET, place}, bytes, q);
}

static void call(int k)
{
	uint8_t what = next();
	uint64_t bytes = next_size();
	gantry_result r;

	if (run.nown == REQUESTS)
		return;
	r = own_call(k, what % 3, bytes, (struct rma_to){(uint32_t)k, what / 3 % CONTEXTS});
	MUST(run.crooked || r == GANTRY_OK || r == GANTRY_AGAIN);
	run.nown += r == GANTRY_OK;
}

static void progress(void)
{
	rma_progress(run.c);
	for (int i = 0; i < run.nown; i++) {
		int done = 0;

		if (rma_test(run.own[i].request, &done) != GANTRY_OK || !done)
			continue;
		if (run.memory[TARGET])
			must_be_pattern(run.memory[TARGET] + run.own[i].to, run.own[i].rank, run.own[i].at,
					run.own[i].bytes);
		run.own[i--] = run.own[--run.nown];
	}
}

static void open_memory(int i, size_t size, enum rma_kind kind)
{
	run.memory[i] = calloc(1, size);
	MUST(run.memory[i]);
	MUST(rma_register(run.c, run.memory[i], size, kind, &run.number[i]) == GANTRY_OK);
	MUST(run.number[i] == (uint32_t)i);
}

static size_t size_of(int i)
{
	return i == TARGET ? (size_t)RANKS * PART : i == WORDS ? NWORDS * sizeof(uint64_t) : SOURCE_SIZE;
}

/* Memory that no request of this rank uses. The network and the device have no part of it any more, and get none again. */
static void deregister(int i)
{
	if (run.nown || !run.memory[i])
		return;
	run.crooked = true;
	run.waited = true;
	MUST(rma_deregister(run.c, (uint32_t)i) == GANTRY_OK);
	run.waited = false;
	gantry_list_each_entry (q, &run.requests, struct net_request, node)
		MUST(q->data + q->size <= run.memory[i] || q->data >= run.memory[i] + size_of(i));
	free(run.memory[i]);
	run.memory[i] = NULL;
}

static void reset(uint8_t value)
{
	uint64_t word = value;

	if (run.crooked || word_value(SUM) != run.sum)
		return;
	memcpy(run.memory[WORDS] + (size_t)8 * SUM, &word, sizeof(word));
	run.sum = value;
}

/* ---- what must hold ---- */

static void look(void)
{
	MUST(run.crooked || rma_error(run.c, NULL, NULL) == GANTRY_OK);
	for (int i = 0; i < run.nputs && !run.crooked; i++) {
		struct put *p = &run.puts[i];

		if (p->checked || word_value(p->rank * CONTEXTS + p->context) < p->seen_at)
			continue;
		must_be_pattern(run.memory[TARGET] + p->at, p->rank, p->from, p->bytes);
		p->checked = true;
	}
}

static bool is_settled(void)
{
	bool settled = run.nown == 0 && word_value(SUM) == run.sum;

	for (int k = 0; k < RANKS; k++) {
		for (int x = 0; x < CONTEXTS; x++)
			settled &= word_value(k * CONTEXTS + x) == run.rank[k].words[x];
		for (int i = 0; i < GETS; i++)
			settled &= !run.rank[k].gets[i].open;
		for (int t = 0; t < TAGS; t++)
			settled &= run.rank[k].here[t] == run.rank[k].taken[t];
		settled &= run.rank[k].bulk_over == run.rank[k].nbulk;
	}
	return settled && run.queues[0].over == run.queues[0].queued && run.queues[1].over == run.queues[1].queued;
}

/* Everything that can be done is. */
static void drain(void)
{
	bool settled = false;

	run.later = false;
	for (int k = 0; k < RANKS; k++)
		run.rank[k].held = false;
	for (int i = 0; i < DRAIN && !settled && !run.crooked; i++) {
		for (int k = 1; k < RANKS; k++)
			reply(k);
		progress();
		for (int q = 0; q < GANTRY_COPY_QUEUES; q++)
			make_copies(q, COPIES);
		settled = is_settled();
	}
	for (int i = 0; i < 8; i++) { /* a put without a signal, and whatever comes after an error */
		progress();
		for (int q = 0; q < GANTRY_COPY_QUEUES; q++)
			make_copies(q, COPIES);
	}
	if (run.crooked)
		return;
	MUST(settled && is_settled());
	for (int i = 0; i < run.nputs; i++) {
		const uint8_t *at = run.memory[TARGET] + run.puts[i].at;

		must_be_pattern(at, run.puts[i].rank, run.puts[i].from, run.puts[i].bytes);
		for (int n = 0; n < GAP; n++)
			MUST(at[run.puts[i].bytes + (uint64_t)n] == 0);
	}
}

static void act_elsewhere(enum op op, int k)
{
	switch (op) {
	case OP_LATER:
		run.later ^= 1;
		break;
	case OP_HELD:
		run.rank[k].held ^= 1;
		break;
	case OP_GONE:
		run.crooked = true;
		run.rank[k].gone = next() % 2 ? GANTRY_ERR_PEER_CLOSED : GANTRY_ERR_PEER_LOST;
		break;
	case OP_PROGRESS:
		for (int i = next() % 8; i >= 0; i--)
			progress();
		break;
	case OP_COPY:
		make_copies(k % GANTRY_COPY_QUEUES, 1 + next() % 16u);
		break;
	case OP_OWN:
		call(k);
		break;
	case OP_RESET:
		reset(next());
		break;
	case OP_DEREGISTER:
		deregister(1 + next() % MEMORIES);
		break;
	default:
		break;
	}
}

static void act(enum op op, uint8_t rank)
{
	int k = 1 + rank % (RANKS - 1); /* of those that the script plays */

	switch (op) {
	case OP_PUT:
	case OP_LIE:
		put_here(k, op == OP_LIE);
		break;
	case OP_SIGNAL:
		signal_here(k);
		break;
	case OP_GET:
		get_here(k);
		break;
	case OP_REPLY:
		reply(k);
		break;
	case OP_BYTES:
		any_bytes(k);
		break;
	case OP_GUESS:
		guess_reply(k);
		break;
	default:
		act_elsewhere(op, op == OP_OWN || op == OP_COPY ? rank % RANKS : k);
	}
}

static void open_comm(uint8_t how)
{
	static const uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	const void *handles[RANKS] = {handle, handle, handle};
	const struct rma_config config = {
		.ranks = RANKS, .handles = handles, .timeout = 1, .device = how & 7 ? &device : NULL, .staged = true};

	run.stores = how >> 3 & 1;
	MUST(rma_open(&config, &run.c) == GANTRY_OK);
	open_memory(TARGET, size_of(TARGET), how & 1 ? RMA_DEVICE : RMA_HOST);
	open_memory(WORDS, size_of(WORDS), (how ^ how >> 2) & 1 ? RMA_DEVICE : RMA_HOST);
	open_memory(SOURCE, SOURCE_SIZE, how & 2 ? RMA_DEVICE : RMA_HOST);
}

static void close_comm(void)
{
	run.waited = true;
	rma_close(run.c);
	for (int i = 1; i <= MEMORIES; i++)
		free(run.memory[i]);
	for (int k = 0; k < RANKS; k++)
		for (int t = 0; t < TAGS; t++)
			while (run.rank[k].taken[t] < run.rank[k].here[t])
				free(run.rank[k].arriving[t][run.rank[k].taken[t]++ % QUEUE].bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t source[SOURCE_SIZE];

	for (size_t i = 0; !source[0] && i < SOURCE_SIZE; i++)
		source[SOURCE_SIZE - 1 - i] = byte_at(0, SOURCE_SIZE - 1 - i);
	logs_drop();
	memset(&run, 0, sizeof(run));
	run.in = (struct script){data, data + size};
	gantry_list_init(&run.requests);
	open_comm(next());
	memcpy(run.memory[SOURCE], source, SOURCE_SIZE);
	for (int i = 0; i < STEPS && run.in.at < run.in.end; i++) {
		enum op op = next() % OPS;

		act(op, next());
		look();
	}
	drain();
	close_comm();
	return 0;
}
