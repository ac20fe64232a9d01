/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A null machine for the bodies of k_*.h: ranks that are threads of one process, connections between them in plain
 * memory, and a small proxy. No streams, no devices.
 *
 * A link goes one way, from one rank to another. It is direct (both kernels on one FIFO) or proxied (a FIFO at each
 * end, the proxy takes steps from the one and puts them into the other). Messages are added to links and run as one
 * group per rank; world_run checks every byte, the guards around every buffer, the counters and where the FIFOs stand.
 */
#ifndef GANTRY_TESTS_K_WORLD_H
#define GANTRY_TESTS_K_WORLD_H

#include "base/eventcount.h"
#include "device/host/host.h"
#include "device/k_p2p.h"
#include "test.h"

enum { MAX_RANKS = 6, MAX_LINKS = 40, MAX_MESSAGES = 128, MAX_LANES = 4, GUARD = 64, POOL_STEPS = 16 };
#define PLACE_BIAS 0x1000000
enum { SIMPLE_STEP = 16384, LL_STEP = 1024, LL128_STEP = 1200 };

static const uint32_t ring_step[GANTRY_PROTOS] = {SIMPLE_STEP, LL_STEP, LL128_STEP};

struct link {
	int from, to, proxied;
	struct gantry_conn tx, rx;
	struct gantry_fifo *fifo[2]; /* of the sending and of the receiving end; the same if direct */
	struct gantry_conn_state state[2], want[2];
	uint64_t start;
	uint64_t turns;
	/* The proxy's: */
	uint64_t step, offer, done;
	int op;
};

struct message {
	struct link *link;
	uint64_t bytes, step_bytes, seed;
	int proto, send_ptr, recv_ptr;
	uint64_t turn;
	char *src, *dst; /* owned, with guards before and behind */
	int src_off, dst_off;
};

struct rank {
	struct gantry_eventcount eventcounts[2];
	struct gantry_xfer xfers[MAX_MESSAGES];
	uint32_t first[3];
	uint32_t result;
	uint64_t finished, arrived;
	int block_of_xfer[MAX_MESSAGES];
	int nxfers;
	struct dev_team team[2];
};

struct world {
	struct rank rank[MAX_RANKS];
	struct link link[MAX_LINKS];
	struct message msg[MAX_MESSAGES];
	struct gantry_eventcount proxy_eventcount;
	int nranks, nlinks, nmsgs;
	uint32_t lanes, blocks, abort, stop;
};

static void *world_alloc(size_t size)
{
	void *p = aligned_alloc(128, (size + 127) / 128 * 128);

	CHECK(p);
	memset(p, 0, (size + 127) / 128 * 128);
	return p;
}

static struct world *world_new(int nranks, uint32_t lanes, uint32_t blocks, uint64_t seed)
{
	struct world *w = world_alloc(sizeof(*w));

	gantry_host_wait_setup(); /* as the device would, before there are threads */
	w->nranks = nranks;
	w->lanes = lanes;
	w->blocks = blocks;
	random_seed(seed);
	return w;
}

static void make_end(struct gantry_conn *c, struct gantry_fifo *f, uint64_t start)
{
	f->head = f->tail = start;
	c->head = &f->head;
	c->tail = &f->tail;
	c->slots = f->slots;
	c->offers = f->offers;
	memcpy(c->step_bytes, ring_step, sizeof(ring_step));
	c->buffs[GANTRY_PROTO_SIMPLE] = world_alloc(GANTRY_STEPS * SIMPLE_STEP);
	c->buffs[GANTRY_PROTO_LL] = world_alloc(GANTRY_STEPS * gantry_ll_bytes(LL_STEP));
	c->buffs[GANTRY_PROTO_LL128] = world_alloc(GANTRY_STEPS * gantry_ll128_bytes(LL128_STEP));
	/* Flags that no step of a test has: zeroed lines would be valid for step 2^32 - 1. */
	memset(c->buffs[GANTRY_PROTO_LL], 0x55, GANTRY_STEPS * gantry_ll_bytes(LL_STEP));
	c->pool = world_alloc(POOL_STEPS * SIMPLE_STEP);
	c->step = start;
	/* What the slots held a lap ago. */
	for (uint64_t s = start >= GANTRY_STEPS ? start - GANTRY_STEPS : start; s < start; s++) {
		f->slots[s % GANTRY_STEPS].meta = gantry_slot_meta(s, 0, 0);
		f->slots[s % GANTRY_STEPS].where = gantry_slot_where(s, 0);
		f->offers[s % GANTRY_STEPS] = f->slots[s % GANTRY_STEPS];
	}
}
static void free_end(struct gantry_conn *c)
{
	for (int p = 0; p < GANTRY_PROTOS; p++)
		free(c->buffs[p]);
	free(c->pool);
}

/* flags: GANTRY_CONN_PROXIED, and GANTRY_CONN_OFFSET per end. */
static struct link *world_link(struct world *w, int from, int to, uint32_t tx_flags, uint32_t rx_flags, uint64_t start)
{
	struct link *l = &w->link[w->nlinks++];
	uint32_t block = (uint32_t)(w->nlinks - 1) % w->blocks;

	CHECK(w->nlinks <= MAX_LINKS);
	l->from = from;
	l->to = to;
	l->proxied = (tx_flags & GANTRY_CONN_PROXIED) != 0;
	l->start = l->step = l->offer = start;
	l->fifo[0] = l->fifo[1] = world_alloc(sizeof(*l->fifo[0]));
	make_end(&l->tx, l->fifo[0], start);
	if (l->proxied) {
		l->fifo[1] = world_alloc(sizeof(*l->fifo[1]));
		make_end(&l->rx, l->fifo[1], start);
		l->tx.eventcount = l->rx.eventcount = &w->proxy_eventcount;
	} else {
		l->tx.offers = NULL;
		l->rx = l->tx;
		l->tx.eventcount = &w->rank[to].eventcounts[block];
		l->rx.eventcount = &w->rank[from].eventcounts[block];
	}
	l->tx.flags = tx_flags | GANTRY_CONN_SEND;
	l->rx.flags = rx_flags;
	l->tx.state = &l->state[0];
	l->rx.state = &l->state[1];
	return l;
}

static char *guarded(uint64_t bytes, int off)
{
	char *p = malloc(bytes + 2 * GUARD + 16);

	CHECK(p);
	memset(p, 0xa5, bytes + 2 * GUARD + 16);
	return p + GUARD + off;
}
static void check_guards(char *p, uint64_t bytes, int off)
{
	CHECK_FILLED(p - GUARD, GUARD, 0xa5);
	CHECK_FILLED(p + bytes, GUARD - off, 0xa5);
}

static struct gantry_xfer *add_xfer(struct world *w, int r, struct message *m, int send)
{
	struct rank *k = &w->rank[r];
	struct gantry_xfer *x = &k->xfers[k->nxfers];

	CHECK(k->nxfers < MAX_MESSAGES);
	memset(x, 0, sizeof(*x));
	k->block_of_xfer[k->nxfers++] = (int)((uint64_t)(m->link - w->link) % w->blocks);
	x->conn = send ? &m->link->tx : &m->link->rx;
	x->buf = send ? m->src : m->dst;
	x->bytes = m->bytes;
	x->step_bytes = m->step_bytes;
	x->turn = m->turn; /* the kernel counts for itself: this is for arrange_turns */
	x->send = (uint8_t)send;
	x->proto = (uint8_t)m->proto;
	x->ptr = (uint8_t)(send ? m->send_ptr : m->recv_ptr);
	/* Where only the proxy looks, addresses are other ones than the kernel's. */
	x->place = (uint64_t)(uintptr_t)x->buf + (m->link->proxied ? PLACE_BIAS : 0);
	return x;
}

/* What a kernel must have counted. */
static void expect(struct gantry_conn_state *s, const struct message *m, int mode, int copies)
{
	uint64_t n = m->bytes ? (m->bytes + m->step_bytes - 1) / m->step_bytes : 1;
	struct gantry_conn_counts *c = &s->counts;

	c->bytes += m->bytes;
	c->steps[m->bytes ? m->proto : GANTRY_PROTO_SIMPLE][mode] += n;
	if (copies) {
		c->copies += n;
		c->copied += m->bytes;
	}
}

static struct message *world_message(struct world *w, struct link *l, uint64_t bytes, int proto, int send_ptr,
				     int recv_ptr, uint64_t step_bytes)
{
	struct message *m = &w->msg[w->nmsgs++];
	int mode;

	CHECK(w->nmsgs <= MAX_MESSAGES);
	*m = (struct message){.link = l, .bytes = bytes, .proto = proto, .send_ptr = send_ptr, .recv_ptr = recv_ptr};
	m->step_bytes = step_bytes ? step_bytes : ring_step[proto];
	m->seed = random_next();
	m->turn = l->turns++;
	m->src_off = (int)(random_next() % 9);
	m->dst_off = (int)(random_next() % 9);
	m->src = guarded(bytes, m->src_off);
	m->dst = guarded(bytes, m->dst_off);
	pattern_fill(m->src, bytes, m->seed);
	add_xfer(w, l->from, m, 1);
	add_xfer(w, l->to, m, 0);

	mode = send_ptr									      ? GANTRY_MODE_PTR
	       : (proto == GANTRY_PROTO_SIMPLE || !bytes) && l->tx.flags & GANTRY_CONN_OFFSET ? GANTRY_MODE_OFFSET
											      : GANTRY_MODE_NORMAL;
	expect(&l->want[0], m, mode, !send_ptr);
	if (l->proxied)
		mode = recv_ptr ? GANTRY_MODE_PTR
		       : (proto == GANTRY_PROTO_SIMPLE || !bytes) && l->rx.flags & GANTRY_CONN_OFFSET
			       ? GANTRY_MODE_OFFSET
			       : GANTRY_MODE_NORMAL;
	expect(&l->want[1], m, mode, !recv_ptr);
	return m;
}

/* The proxy. Each function does one step at most and says whether it did. */
static struct message *link_message(struct world *w, struct link *l)
{
	int op = 0;

	for (int i = 0; i < w->nmsgs; i++)
		if (w->msg[i].link == l && op++ == l->op)
			return &w->msg[i];
	return NULL;
}

static uint64_t pool_place(uint64_t step)
{
	return step * 5 % POOL_STEPS * SIMPLE_STEP;
}

/* Are all lines there? */
static int lines_there(const char *ring, int proto, uint64_t bytes, uint64_t step)
{
	uint64_t n, word;

	if (proto == GANTRY_PROTO_LL) {
		n = gantry_ll_bytes(bytes) / GANTRY_LL_LINE;
		for (uint64_t i = 0; i < n; i++)
			if (!dev_ll_load((const uint64_t *)(ring + i * GANTRY_LL_LINE), gantry_ll_flag(step), &word))
				return 0;
	} else {
		n = gantry_ll128_bytes(bytes) / GANTRY_LL128_LINE;
		for (uint64_t i = 0; i < n; i++)
			if (dev_load((const uint64_t *)(ring + i * GANTRY_LL128_LINE) + 15) != gantry_ll128_flag(step))
				return 0;
	}
	return 1;
}
/* As a network might: the last lines first. */
static void lines_copy(char *to, const char *from, int proto, uint64_t bytes, uint64_t step)
{
	char data[GANTRY_LL128_DATA];
	uint64_t n, word;

	if (proto == GANTRY_PROTO_LL) {
		for (n = gantry_ll_bytes(bytes) / GANTRY_LL_LINE; n-- > 0;) {
			CHECK(dev_ll_load((const uint64_t *)(from + n * GANTRY_LL_LINE), gantry_ll_flag(step), &word));
			dev_ll_store((uint64_t *)(to + n * GANTRY_LL_LINE), word, gantry_ll_flag(step));
		}
	} else {
		for (n = gantry_ll128_bytes(bytes) / GANTRY_LL128_LINE; n-- > 0;) {
			uint64_t at = n * GANTRY_LL128_DATA;
			uint32_t part = bytes - at < sizeof(data) ? (uint32_t)(bytes - at) : (uint32_t)sizeof(data);

			CHECK(dev_ll128_get((const uint64_t *)(from + n * GANTRY_LL128_LINE), data, part,
					    gantry_ll128_flag(step)));
			dev_ll128_put((uint64_t *)(to + n * GANTRY_LL128_LINE), data, part, gantry_ll128_flag(step));
		}
	}
}

static int proxy_offer(struct link *l, const struct message *m)
{
	uint64_t n = m->bytes ? (m->bytes - l->done + m->step_bytes - 1) / m->step_bytes : 1;

	if (!(l->tx.flags & GANTRY_CONN_OFFSET) || m->send_ptr || (m->proto != GANTRY_PROTO_SIMPLE && m->bytes))
		return 0;
	if (l->offer < l->step)
		l->offer = l->step;
	if (l->offer >= l->step + n || l->offer >= l->step + GANTRY_STEPS)
		return 0;
	dev_post(&l->tx.offers[l->offer % GANTRY_STEPS], gantry_slot_meta(l->offer, GANTRY_MODE_OFFSET, m->step_bytes),
		 gantry_slot_where(l->offer, pool_place(l->offer)));
	l->offer++;
	return 1;
}

static int proxy_step(struct world *w, struct link *l, const struct message *m)
{
	uint64_t step = l->step, size = m->bytes - l->done < m->step_bytes ? m->bytes - l->done : m->step_bytes;
	struct gantry_slot *in = &l->tx.slots[step % GANTRY_STEPS], *offer = &l->rx.offers[step % GANTRY_STEPS];
	uint64_t meta = dev_load(&in->meta), where = dev_load(&in->where), place = 0;
	int proto = m->bytes ? m->proto : GANTRY_PROTO_SIMPLE;
	uint32_t mode = GANTRY_MODE_NORMAL;
	const char *from = k_ring(&l->tx, (uint32_t)proto, step);
	char *to = k_ring(&l->rx, (uint32_t)proto, step);

	if (!gantry_slot_is(meta, step) || !gantry_slot_is(where, step) || dev_load(l->rx.head) + GANTRY_STEPS <= step)
		return 0;
	CHECK_EQ(gantry_slot_size(meta), size);
	if (gantry_slot_mode(meta) == GANTRY_MODE_PTR) {
		CHECK(m->send_ptr);
		from = (const char *)(uintptr_t)(gantry_slot_place(where) - PLACE_BIAS);
		CHECK(from == m->src + l->done);
	} else if (gantry_slot_mode(meta) == GANTRY_MODE_OFFSET) {
		CHECK_EQ(gantry_slot_place(where), pool_place(step));
		from = l->tx.pool + gantry_slot_place(where);
	}
	if (proto != GANTRY_PROTO_SIMPLE && !lines_there(from, proto, size, step))
		return 0;
	if (m->recv_ptr) {
		if (!gantry_slot_is(dev_load(&offer->meta), step) || !gantry_slot_is(dev_load(&offer->where), step))
			return 0;
		CHECK_EQ(gantry_slot_mode(dev_load(&offer->meta)), GANTRY_MODE_PTR);
		CHECK_EQ(gantry_slot_size(dev_load(&offer->meta)), size);
		to = (char *)(uintptr_t)(gantry_slot_place(dev_load(&offer->where)) - PLACE_BIAS);
		mode = GANTRY_MODE_PTR;
	} else if (l->rx.flags & GANTRY_CONN_OFFSET && proto == GANTRY_PROTO_SIMPLE) {
		place = pool_place(step);
		to = l->rx.pool + place;
		mode = GANTRY_MODE_OFFSET;
	}
	if (proto != GANTRY_PROTO_SIMPLE)
		lines_copy(to, from, proto, size, step);
	else if (size)
		memcpy(to, from, size);
	dev_publish(&l->rx.slots[step % GANTRY_STEPS], gantry_slot_meta(step, mode, size),
		    gantry_slot_where(step, place));
	dev_notify(&w->rank[l->to].eventcounts[(uint64_t)(l - w->link) % w->blocks]);
	l->step++;
	l->done += size;
	dev_store(l->tx.head, l->step);
	dev_notify(&w->rank[l->from].eventcounts[(uint64_t)(l - w->link) % w->blocks]);
	if (l->done == m->bytes) {
		l->op++;
		l->done = 0;
	}
	return 1;
}

static void *proxy_main(void *arg)
{
	struct world *w = arg;
	struct gantry_waiter wait;

	gantry_waiter_init(&wait, &w->proxy_eventcount);
	while (!__atomic_load_n(&w->stop, __ATOMIC_SEQ_CST)) {
		int moved = 0;

		for (int i = 0; i < w->nlinks; i++) {
			struct link *l = &w->link[i];
			struct message *m = l->proxied ? link_message(w, l) : NULL;

			if (!m)
				continue;
			if (proxy_offer(l, m)) {
				dev_notify(&w->rank[l->from].eventcounts[(uint64_t)i % w->blocks]);
				moved = 1;
			}
			moved |= proxy_step(w, l, m);
		}
		if (moved)
			gantry_waiter_done(&wait);
		else
			gantry_waiter_idle(&wait, UINT64_MAX);
	}
	gantry_waiter_done(&wait);
	return NULL;
}

/* Those of one connection stand in their order, whatever stands between them. */
static void arrange_turns(struct rank *k)
{
	for (int i = 0; i < k->nxfers; i++)
		for (int j = i + 1; j < k->nxfers; j++)
			if (k->xfers[j].conn == k->xfers[i].conn && k->xfers[j].turn < k->xfers[i].turn) {
				struct gantry_xfer x = k->xfers[i];

				k->xfers[i] = k->xfers[j];
				k->xfers[j] = x;
			}
}

/* Any order of the connections must do; the blocks stay together. */
static void arrange(struct world *w, struct rank *k)
{
	for (int i = k->nxfers - 1; i > 0; i--) {
		int j = (int)(random_next() % (uint64_t)(i + 1)), b = k->block_of_xfer[i];
		struct gantry_xfer x = k->xfers[i];

		k->xfers[i] = k->xfers[j];
		k->xfers[j] = x;
		k->block_of_xfer[i] = k->block_of_xfer[j];
		k->block_of_xfer[j] = b;
	}
	k->first[0] = 0;
	for (uint32_t b = 0; b < w->blocks; b++) {
		k->first[b + 1] = k->first[b];
		for (int i = (int)k->first[b]; i < k->nxfers; i++) {
			int j = (int)k->first[b + 1], other = k->block_of_xfer[j];
			struct gantry_xfer x = k->xfers[j];

			if (k->block_of_xfer[i] != (int)b)
				continue;
			k->xfers[j] = k->xfers[i];
			k->xfers[i] = x;
			k->block_of_xfer[j] = (int)b;
			k->block_of_xfer[i] = other;
			k->first[b + 1]++;
		}
	}
	arrange_turns(k);
}

struct lane {
	pthread_t thread;
	struct dev_thread self;
	struct gantry_p2p_args args;
};
static void *lane_main(void *arg)
{
	struct lane *lane = arg;

	dev_self = lane->self;
	k_p2p(&lane->args);
	return NULL;
}

/* Starts all ranks' kernels, and the proxy where one is needed, and waits for the kernels. */
static void world_launch(struct world *w)
{
	static struct lane lanes[MAX_RANKS * 2 * MAX_LANES];
	pthread_t proxy;
	int n = 0, proxied = 0;

	for (int i = 0; i < w->nlinks; i++)
		proxied |= w->link[i].proxied;
	w->stop = 0;
	if (proxied)
		CHECK_EQ(pthread_create(&proxy, NULL, proxy_main, w), 0);
	for (int r = 0; r < w->nranks; r++) {
		struct rank *k = &w->rank[r];

		arrange(w, k);
		for (uint32_t i = 0; i < w->blocks * w->lanes; i++) {
			struct lane *lane = &lanes[n++];
			uint32_t b = i / w->lanes;

			if (i % w->lanes == 0)
				k->team[b] = (struct dev_team){.lanes = w->lanes};
			lane->self = (struct dev_thread){.lane = i % w->lanes,
							 .lanes = w->lanes,
							 .block = b,
							 .blocks = w->blocks,
							 .abort = &w->abort,
							 .eventcount = &k->eventcounts[b],
							 .team = w->lanes > 1 ? &k->team[b] : NULL};
			lane->args = (struct gantry_p2p_args){
				.xfers = k->xfers, .first = k->first, .result = &k->result,
				.end = {.arrived = &k->arrived, .word = &k->finished, .value = w->blocks}};
			CHECK_EQ(pthread_create(&lane->thread, NULL, lane_main, lane), 0);
		}
	}
	for (int i = 0; i < n; i++)
		pthread_join(lanes[i].thread, NULL);
	if (proxied) {
		__atomic_store_n(&w->stop, 1, __ATOMIC_SEQ_CST);
		dev_notify(&w->proxy_eventcount);
		pthread_join(proxy, NULL);
	}
}

static void check_link(const struct link *l)
{
	for (int e = 0; e < 2; e++) {
		const struct gantry_conn *c = e ? &l->rx : &l->tx;
		uint64_t steps = 0;

		for (int p = 0; p < GANTRY_PROTOS; p++)
			for (int m = 0; m < GANTRY_MODES; m++) {
				CHECK_EQ(l->state[e].counts.steps[p][m], l->want[e].counts.steps[p][m]);
				steps += l->want[e].counts.steps[p][m];
			}
		CHECK_EQ(l->state[e].counts.bytes, l->want[e].counts.bytes);
		CHECK_EQ(l->state[e].counts.copies, l->want[e].counts.copies);
		CHECK_EQ(l->state[e].counts.copied, l->want[e].counts.copied);
		CHECK_EQ(l->state[e].doing, GANTRY_KERNEL_IDLE);
		CHECK_EQ(c->turn, l->turns);
		CHECK_EQ(c->step, l->start + steps);
		CHECK_EQ(*c->head, c->step);
		if (!e)
			CHECK_EQ(*c->tail, c->step);
	}
}

/* Runs what was added, checks everything and forgets the messages; links stay as they are. */
static void world_run(struct world *w)
{
	world_launch(w);
	for (int i = 0; i < w->nmsgs; i++) {
		struct message *m = &w->msg[i];

		CASE("message %d, proto %d, ptr %d %d", i, m->proto, m->send_ptr, m->recv_ptr);
		CHECK_PATTERN(m->dst, m->bytes, m->seed);
		check_guards(m->src, m->bytes, m->src_off);
		check_guards(m->dst, m->bytes, m->dst_off);
		free(m->src - GUARD - m->src_off);
		free(m->dst - GUARD - m->dst_off);
	}
	for (int r = 0; r < w->nranks; r++) {
		CHECK_OK(w->rank[r].result);
		CHECK_EQ(w->rank[r].finished, w->blocks);
		w->rank[r].finished = 0;
		for (int i = 0; i < w->rank[r].nxfers; i++)
			CHECK_OK(w->rank[r].xfers[i].error);
		w->rank[r].nxfers = 0;
	}
	for (int i = 0; i < w->nlinks; i++) {
		check_link(&w->link[i]);
		w->link[i].op = 0;
	}
	w->nmsgs = 0;
}

static void world_free(struct world *w)
{
	for (int i = 0; i < w->nmsgs; i++) {
		free(w->msg[i].src - GUARD - w->msg[i].src_off);
		free(w->msg[i].dst - GUARD - w->msg[i].dst_off);
	}
	for (int i = 0; i < w->nlinks; i++) {
		free_end(&w->link[i].tx);
		if (w->link[i].proxied) {
			free_end(&w->link[i].rx);
			free(w->link[i].fifo[1]);
		}
		free(w->link[i].fifo[0]);
	}
	free(w);
}

#endif
