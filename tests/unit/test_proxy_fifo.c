/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proxy's words with a kernel's end of a connection. First by hand; then whole: a thread that plays the sending
 * kernel, one that plays the receiving kernel, and between them the progress engine with a network of one array.
 */
#include "base/event.h"
#include "device/dev.h"
#include "proxy_util.h"

enum { STEP = 512, WIRE = 4, LAST = 1 << 20 };

/* One connection, both ends. Kernels and proxy share a, b and the memory; the wire is the progress thread's. */
static struct both {
	struct gantry_fifo a, b;
	struct gantry_eventcount send_eventcount, recv_eventcount; /* of the kernels */
	uint8_t a_ring[GANTRY_STEPS * STEP], b_ring[GANTRY_STEPS * STEP];
	uint8_t a_pool[GANTRY_STEPS * STEP], b_pool[GANTRY_STEPS * STEP];
	uint8_t src[LAST], dst[LAST]; /* the users' */
	struct gantry_proxy_conn *send, *recv;
	struct {
		uint64_t step, size;
		uint8_t data[2 * STEP];
	} wire[WIRE];
	uint64_t wire_head, wire_tail;
	uint64_t place[GANTRY_STEPS]; /* where a receive was posted */
} x;
static struct gantry_proxy *proxy;

/* Pools of this test hand out a step's slot backwards, so that an offset is not the ring's place. */
static uint64_t offset_of(uint64_t step)
{
	return (GANTRY_STEPS - 2 - step % GANTRY_STEPS / 2 * 2 + step % 2) * STEP;
}

static gantry_result send_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	for (;;) {
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->posted);

		if (!op || pc->posted + op->slice_steps > pc->done + GANTRY_STEPS)
			break; /* also at a gap: the engine will move us over it */
		if (!op->ptr && op->id & 1)
			gantry_proxy_offer(pc, pc->posted, offset_of(pc->posted), STEP * op->slice_steps);
		pc->posted += op->slice_steps;
		*ret_worked = 1;
	}
	while (pc->moved < pc->posted && x.wire_tail - x.wire_head < WIRE) {
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->moved);
		uint64_t size, place;
		uint32_t mode;
		const void *from;

		if (!op || !gantry_proxy_posted(pc, pc->moved, &mode, &size, &place)) {
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
			break;
		}
		CHECK_EQ(mode, op->ptr ? GANTRY_MODE_PTR : op->id & 1 ? GANTRY_MODE_OFFSET : GANTRY_MODE_NORMAL);
		CHECK_EQ(size, gantry_proxy_step_bytes(op, pc->moved));
		from = mode == GANTRY_MODE_PTR	    ? (void *)(uintptr_t)place
		       : mode == GANTRY_MODE_OFFSET ? x.a_pool + place
						    : x.a_ring + pc->moved % GANTRY_STEPS * STEP;
		x.wire[x.wire_tail % WIRE].step = pc->moved;
		x.wire[x.wire_tail % WIRE].size = size;
		memcpy(x.wire[x.wire_tail++ % WIRE].data, from, size);
		pc->moved += op->slice_steps;
		*ret_worked = 1;
	}
	if (pc->done < pc->moved) /* done follows by itself */
		gantry_proxy_done(pc, pc->moved);
	return GANTRY_OK;
}

static gantry_result recv_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct gantry_proxy_op *op;

	(void)ret_worked; /* the engine sees the counters move */
	while ((op = gantry_proxy_op_of(pc, pc->posted)) && pc->posted + op->slice_steps <= pc->done + GANTRY_STEPS) {
		uint64_t *place = &x.place[pc->posted % GANTRY_STEPS], size;

		*place = op->id & 1 ? offset_of(pc->posted) : 0;
		if (op->ptr && !gantry_proxy_offered(pc, pc->posted, &size, place))
			break;
		pc->posted += op->slice_steps;
	}
	while (pc->flushed < pc->posted && x.wire_head < x.wire_tail && (op = gantry_proxy_op_of(pc, pc->flushed))) {
		uint64_t step = pc->flushed, place = x.place[step % GANTRY_STEPS],
			 size = x.wire[x.wire_head % WIRE].size;
		uint32_t mode = op->ptr ? GANTRY_MODE_PTR : op->id & 1 ? GANTRY_MODE_OFFSET : GANTRY_MODE_NORMAL;

		CHECK_EQ(x.wire[x.wire_head % WIRE].step, step);
		memcpy(mode == GANTRY_MODE_PTR	    ? (void *)(uintptr_t)place
		       : mode == GANTRY_MODE_OFFSET ? x.b_pool + place
						    : x.b_ring + step % GANTRY_STEPS * STEP,
		       x.wire[x.wire_head++ % WIRE].data, size);
		pc->moved = pc->flushed = step + op->slice_steps;
		gantry_proxy_publish(pc, step, mode, size, place);
	}
	if (pc->done < pc->flushed) {
		uint64_t head = gantry_proxy_consumed(pc);

		pc->done = head > pc->done ? head : pc->done;
	}
	if (pc->first)
		gantry_proxy_waits(pc, pc->done < pc->flushed ? GANTRY_WAIT_KERNEL : GANTRY_WAIT_PEER);
	return GANTRY_OK;
}

static const struct gantry_transport transport = {
	.send = &(const struct gantry_transport_side){.proxy_progress = send_progress},
	.recv = &(const struct gantry_transport_side){.proxy_progress = recv_progress},
};

/* What both kernels and both proxies know of a transfer. */
static struct job {
	uint64_t bytes;
	uint32_t slice, chunk;
	uint32_t id; /* odd: OFFSET */
	int ptr;
} jobs[64];
static int njobs;

static uint64_t slices_of(const struct job *j)
{
	uint64_t n = (j->bytes + STEP * j->slice - 1) / (STEP * j->slice);

	return n ? n : 1;
}

#define WAIT_UNTIL(w, condition)                                                                                       \
	do {                                                                                                           \
		while (!(condition))                                                                                   \
			gantry_waiter_idle(w, UINT64_MAX);                                                             \
		gantry_waiter_done(w);                                                                                 \
	} while (0)

static void *send_kernel(void *arg)
{
	struct gantry_eventcount *eventcount = gantry_proxy_eventcount(proxy);
	struct gantry_waiter w;
	uint64_t s = 0, at = 0;

	gantry_waiter_init(&w, &x.send_eventcount);
	for (const struct job *j = jobs; j < jobs + njobs; j++) {
		s = (s + j->chunk - 1) / j->chunk * j->chunk;
		for (uint64_t i = 0, left = j->bytes; i < slices_of(j); i++, s += j->slice) {
			uint64_t size = left < STEP * j->slice ? left : STEP * j->slice, place = 0;
			struct gantry_slot *slot = &x.a.slots[s % GANTRY_STEPS], *offer = &x.a.offers[s % GANTRY_STEPS];
			uint32_t mode = j->ptr ? GANTRY_MODE_PTR : j->id & 1 ? GANTRY_MODE_OFFSET : GANTRY_MODE_NORMAL;
			uint8_t *to = x.a_ring + s % GANTRY_STEPS * STEP;

			/* The whole slice must have room. */
			WAIT_UNTIL(&w, dev_load(&x.a.head) + GANTRY_STEPS >= s + j->slice);
			if (mode == GANTRY_MODE_OFFSET) {
				WAIT_UNTIL(&w, gantry_slot_is(dev_load(&offer->meta), s) &&
						       gantry_slot_is(dev_load(&offer->where), s));
				place = gantry_slot_place(dev_load(&offer->where));
				to = x.a_pool + place;
			}
			if (mode == GANTRY_MODE_PTR)
				place = (uintptr_t)(x.src + at);
			else
				memcpy(to, x.src + at, size);
			dev_publish(slot, gantry_slot_meta(s, mode, size), gantry_slot_where(s, place));
			dev_notify(eventcount);
			left -= size;
			at += size;
		}
		if (j->ptr)
			WAIT_UNTIL(&w, dev_load(&x.a.head) >= s);
	}
	gantry_waiter_done(&w);
	return arg;
}

static void *recv_kernel(void *arg)
{
	struct gantry_eventcount *eventcount = gantry_proxy_eventcount(proxy);
	struct gantry_waiter w;
	uint64_t s = 0, at = 0;

	gantry_waiter_init(&w, &x.recv_eventcount);
	for (const struct job *j = jobs; j < jobs + njobs; j++) {
		s = (s + j->chunk - 1) / j->chunk * j->chunk;
		for (uint64_t i = 0, left = j->bytes; i < slices_of(j); i++, s += j->slice) {
			uint64_t size = left < STEP * j->slice ? left : STEP * j->slice;
			struct gantry_slot *slot = &x.b.slots[s % GANTRY_STEPS];
			uint32_t mode = j->ptr ? GANTRY_MODE_PTR : j->id & 1 ? GANTRY_MODE_OFFSET : GANTRY_MODE_NORMAL;
			uint64_t place;

			if (j->ptr) {
				dev_publish(&x.b.offers[s % GANTRY_STEPS], gantry_slot_meta(s, mode, STEP * j->slice),
					    gantry_slot_where(s, (uintptr_t)(x.dst + at)));
				dev_notify(eventcount);
			}
			WAIT_UNTIL(&w, gantry_slot_is(dev_load(&slot->meta), s) &&
					       gantry_slot_is(dev_load(&slot->where), s));
			place = gantry_slot_place(dev_load(&slot->where));
			CHECK_EQ(gantry_slot_mode(slot->meta), mode);
			CHECK_EQ(gantry_slot_size(slot->meta), size);
			if (!j->ptr)
				memcpy(x.dst + at, j->id & 1 ? x.b_pool + place : x.b_ring + s % GANTRY_STEPS * STEP,
				       size);
			dev_store(&x.b.head, s + j->slice);
			dev_notify(eventcount);
			left -= size;
			at += size;
		}
	}
	gantry_waiter_done(&w);
	return arg;
}

static void append_job(struct gantry_proxy_conn *pc, const struct job *j)
{
	struct gantry_proxy_op *op;

	CHECK_OK(gantry_proxy_ops_get(proxy, 1, &op));
	op->conn = pc;
	op->bytes = j->bytes;
	op->step_bytes = STEP;
	op->nsteps = slices_of(j) * j->slice;
	op->slice_steps = j->slice;
	op->chunk_steps = j->chunk;
	op->ptr = (uint8_t)j->ptr;
	op->exact = 1;
	op->id = j->id;
	gantry_proxy_append(proxy, op, op);
}

static void run_jobs(const char *what)
{
	struct gantry_connector cs = {.send = 1, .transport = &transport}, cr = {.send = 0, .transport = &transport};
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	struct gantry_proxy_conn_view view[2];
	uint64_t bytes = 0, steps = 0, end = 0;
	pthread_t kernels[2];

	memset(&x, 0, sizeof(x));
	CHECK_OK(gantry_proxy_conn_create(proxy, g, &cs, &x.send));
	CHECK_OK(gantry_proxy_conn_create(proxy, g, &cr, &x.recv));
	x.send->fifo = &x.a;
	x.send->kernel_eventcount = &x.send_eventcount;
	x.recv->fifo = &x.b;
	x.recv->kernel_eventcount = &x.recv_eventcount;
	pattern_fill(x.src, LAST, 0);
	CHECK_EQ(pthread_create(&kernels[0], NULL, send_kernel, NULL), 0);
	CHECK_EQ(pthread_create(&kernels[1], NULL, recv_kernel, NULL), 0);
	for (int i = 0; i < njobs; i++) {
		append_job(i & 1 ? x.recv : x.send, &jobs[i]);
		append_job(i & 1 ? x.send : x.recv, &jobs[i]);
		bytes += jobs[i].bytes;
		steps += slices_of(&jobs[i]) * jobs[i].slice;
		end = (end + jobs[i].chunk - 1) / jobs[i].chunk * jobs[i].chunk + slices_of(&jobs[i]) * jobs[i].slice;
	}
	pthread_join(kernels[0], NULL);
	pthread_join(kernels[1], NULL);
	drain(g);
	CHECK(bytes <= LAST);
	CHECK_PATTERN(x.dst, bytes, 0);
	gantry_proxy_conn_look(x.send, &view[0]);
	gantry_proxy_conn_look(x.recv, &view[1]);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(view[i].bytes, bytes);
		CHECK_EQ(view[i].steps, steps);
		CHECK_EQ(view[i].ops, njobs);
		CHECK_EQ(view[i].end, end);
		CHECK_EQ(view[i].done, end);
	}
	CHECK_EQ(dev_load(&x.a.head), end);
	CHECK_EQ(dev_load(&x.b.tail), end);
	gantry_proxy_group_destroy(g);
	gantry_proxy_conn_destroy(x.send);
	gantry_proxy_conn_destroy(x.recv);
	printf("%s: %llu steps\n", what, (unsigned long long)steps);
}

static void add_job(uint64_t bytes, uint32_t slice, uint32_t chunk, uint32_t mode)
{
	jobs[njobs] = (struct job){bytes, slice, chunk, (uint32_t)njobs * 2 + (mode == GANTRY_MODE_OFFSET),
				   mode == GANTRY_MODE_PTR};
	njobs++;
}

TEST(test_loop)
{
	static const char *const names[] = {"normal", "offset", "ptr"};

	for (uint32_t mode = 0; mode < GANTRY_MODES; mode++) {
		njobs = 0;
		add_job(0, 1, 1, mode);
		add_job(1, 1, 1, mode);
		add_job(100 * STEP + 3, 1, 1, mode);
		add_job(700 * STEP - 1, 1, 1, mode);
		run_jobs(names[mode]);
	}
	for (int round = 0; round < 6; round++) {
		njobs = 0;
		while (njobs < 50) {
			uint32_t slice = 1u << random_below(2);

			add_job(random_below(20000), slice, slice << random_below(slice == 1 ? 4 : 3), random_below(3));
		}
		run_jobs("mixed");
	}
}

/* The events of one operation of three steps. */
TEST(test_events)
{
	static struct gantry_event events[256];
	static const uint32_t kinds[] = {GANTRY_EV_PROXY_POST, GANTRY_EV_PROXY_MOVE, GANTRY_EV_PROXY_DONE};
	size_t n;
	uint32_t id;

	njobs = 0;
	add_job(2 * STEP + 5, 1, 1, GANTRY_MODE_OFFSET);
	run_jobs("events");
	n = gantry_event_snapshot(events, 256);
	for (id = 0; n && id == 0;)
		if (events[--n].kind == GANTRY_EV_PROXY_OP)
			id = events[n].a; /* the one that ended last; the other has its neighbour's id */
	n = gantry_event_snapshot(events, 256);
	for (int k = 0; k < 3; k++) {
		uint64_t next = 0;

		for (size_t i = 0; i < n; i++) {
			if (events[i].a != id || events[i].kind != kinds[k])
				continue;
			CHECK_EQ(events[i].b, next);
			CHECK_EQ(GANTRY_EV_BYTES(events[i].c), next == 2 ? 5 : STEP);
			CHECK_EQ(GANTRY_EV_PROTO(events[i].c), GANTRY_PROTO_SIMPLE);
			if (k)
				CHECK_EQ(GANTRY_EV_MODE(events[i].c), GANTRY_MODE_OFFSET);
			next++;
		}
		CHECK_EQ(next, 3);
	}
}

/* By hand: each word counts by itself, sizes follow from the operation, and marks do not come round. */
TEST(test_words)
{
	struct gantry_connector c = {.send = 1};
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	struct gantry_proxy_op op = {
		.bytes = 3 * STEP + 9, .step_bytes = STEP, .base = 8, .nsteps = 4, .slice_steps = 2};
	struct gantry_fifo f = {0};
	struct gantry_proxy_conn *pc;
	uint64_t size, place;
	uint32_t mode;

	CHECK_OK(gantry_proxy_conn_create(proxy, g, &c, &pc));
	pc->fifo = &f;
	CHECK(!gantry_proxy_posted(pc, 3, &mode, &size, &place));
	f.slots[3].meta = gantry_slot_meta(3, GANTRY_MODE_PTR, 77);
	CHECK(!gantry_proxy_posted(pc, 3, &mode, &size, &place)); /* the address is still on its way */
	f.slots[3].where = gantry_slot_where(3, 0x123456789abcull);
	CHECK(gantry_proxy_posted(pc, 3, &mode, &size, &place));
	CHECK(mode == GANTRY_MODE_PTR && size == 77 && place == 0x123456789abcull);
	CHECK(!gantry_proxy_posted(pc, 3 + GANTRY_STEPS, &mode, &size, &place));
	f.offers[4].where = gantry_slot_where(4, 5);
	CHECK(!gantry_proxy_offered(pc, 4, &size, &place));
	f.offers[4].meta = gantry_slot_meta(4, GANTRY_MODE_PTR, 6);
	CHECK(gantry_proxy_offered(pc, 4, &size, &place));
	CHECK(size == 6 && place == 5);

	CHECK_EQ(gantry_proxy_step_bytes(&op, 10), 2 * STEP); /* the most there can be */
	op.exact = 1;
	CHECK_EQ(gantry_proxy_step_bytes(&op, 8), 2 * STEP);
	CHECK_EQ(gantry_proxy_step_bytes(&op, 10), STEP + 9);
	op.bytes = 5;
	CHECK_EQ(gantry_proxy_step_bytes(&op, 10), 0);
	pc->first = &op;
	CHECK(!gantry_proxy_op_of(pc, 7));
	CHECK(gantry_proxy_op_of(pc, 8) == &op && gantry_proxy_op_of(pc, 11) == &op);
	CHECK(!gantry_proxy_op_of(pc, 12));
	pc->first = NULL;

	gantry_proxy_offer(pc, 12, 64, 100);
	CHECK_EQ(f.offers[4].meta, gantry_slot_meta(12, GANTRY_MODE_OFFSET, 100));
	CHECK_EQ(f.offers[4].where, gantry_slot_where(12, 64));
	for (uint64_t s = 1; s <= 12 + 65536; s++)
		gantry_proxy_done(pc, s);
	CHECK_EQ(f.head, 12 + 65536);
	CHECK(!gantry_slot_is(f.offers[4].meta, 12 + 65536));

	/* The later steps of slices, and zeroed memory. */
	gantry_proxy_conn_destroy(pc);
	c.send = 0;
	CHECK_OK(gantry_proxy_conn_create(proxy, g, &c, &pc));
	pc->fifo = &f;
	op.base = 0;
	op.nsteps = 1 << 20;
	pc->first = &op;
	memset(&f, 0, sizeof(f));
	for (uint64_t s = 0; s < 65534; s += 2)
		gantry_proxy_publish(pc, s, GANTRY_MODE_NORMAL, 1, 0);
	CHECK(!gantry_slot_is(f.slots[7].meta, 65535));
	CHECK_EQ(f.tail, 65534);
	pc->first = NULL;
	gantry_proxy_group_destroy(g);
	gantry_proxy_conn_destroy(pc);
}

void tests_begin(void)
{
	CHECK_OK(gantry_params_load(0));
	CHECK_OK(gantry_proxy_get(NULL, &proxy));
}

void tests_end(void)
{
	gantry_proxy_put(proxy);
}
