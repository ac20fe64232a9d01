/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primitives, run as they are: each rank is a thread (or a few, its lanes) that calls k_prim or the dev_prims_*
 * functions over connections in memory. In the middle is a rank with one to three peers on each side; the connections
 * are kernel to kernel, or go through a relay, a thread that follows the rules in k_prim.h's opening comment as a proxy
 * does. Values are small integers and halves that all types hold exactly, so expected results are plain arithmetic.
 */
#include "prim_util.h"

/* A rank in the middle with peers around it. */

struct scene {
	uint32_t kind, nrecv, nsend, lanes, relayed, in_place;
	uint64_t step; /* at which the connections start */
};

static uint32_t takes(uint32_t kind)
{
	return kind != GANTRY_PRIM_SEND && kind != GANTRY_PRIM_COPY_SEND;
}
static uint32_t gives(uint32_t kind)
{
	return kind != GANTRY_PRIM_RECV && kind != GANTRY_PRIM_RECV_REDUCE_COPY;
}
static uint32_t has_input(uint32_t kind)
{
	return kind != GANTRY_PRIM_RECV && kind != GANTRY_PRIM_RECV_COPY_SEND;
}
static uint32_t has_output(uint32_t kind)
{
	return kind != GANTRY_PRIM_SEND && kind != GANTRY_PRIM_RECV_REDUCE_SEND;
}

static void rank_reset(struct rank *r)
{
	if (!r->input) {
		r->input = room();
		r->output = room();
	}
	memset(r->output, 0x5a, SPACE);
	memset(&r->eventcount, 0, sizeof(r->eventcount));
	memset(r->ops, 0, sizeof(r->ops));
	r->result = GANTRY_OK;
	r->nops = 0;
	r->body = NULL;
}

/* Operation k of all ranks: rank 0 in the middle, then those who send to it, then those it sends to. */
static void scene_op(const struct scene *sc, uint32_t k, struct prim_args op, uint64_t offset)
{
	uint32_t nrecv = takes(sc->kind) ? sc->nrecv : 0, nsend = gives(sc->kind) ? sc->nsend : 0;

	for (uint32_t r = 0; r < 1 + nrecv + nsend; r++) {
		struct prim_args *a = &ranks[r].ops[k];

		*a = op;
		a->result = &ranks[r].result;
		a->input = ranks[r].input + offset;
		a->output = (r == 0 && sc->in_place ? ranks[r].input : ranks[r].output) + offset;
		ranks[r].nops = k + 1;
		if (r == 0) {
			a->kind = sc->kind;
			a->nrecv = nrecv;
			a->nsend = nsend;
			for (uint32_t i = 0; i < nrecv; i++)
				a->recv[i] = &links[i].rx;
			for (uint32_t i = 0; i < nsend; i++)
				a->send[i] = &links[nrecv + i].tx;
		} else if (r <= nrecv) {
			a->kind = GANTRY_PRIM_SEND;
			a->op = GANTRY_OP_SUM;
			a->nsend = 1;
			a->send[0] = &links[r - 1].tx;
		} else {
			a->kind = GANTRY_PRIM_RECV;
			a->op = GANTRY_OP_SUM;
			a->nrecv = 1;
			a->recv[0] = &links[r - 1].rx;
		}
		for (uint64_t i = 0; has_input(a->kind) && i < a->count; i++)
			put((char *)a->input + i * dev_type_bytes(a->type), a->type, 2 * value(op.op, r, i));
	}
}

static void scene_check(const struct scene *sc, uint32_t k, uint32_t r, uint32_t nrecv)
{
	const struct prim_args *op = &ranks[0].ops[k], *a = &ranks[r].ops[k];
	uint32_t bytes = dev_type_bytes(op->type), values[RANKS], scaled[RANKS], n;
	char want[8];

	for (uint64_t i = 0; i < op->count; i++) {
		n = 0;
		if (has_input(sc->kind)) {
			scaled[n] = 1;
			values[n++] = value(op->op, 0, i);
		}
		for (uint32_t p = 0; p < nrecv; p++) {
			scaled[n] = 0;
			values[n++] = value(op->op, 1 + p, i);
		}
		put(want, op->type, expected(op->op, op->last, values, scaled, n, 2));
		if (memcmp(want, a->output + i * bytes, bytes) != 0)
			TEST_FAIL("kind %u proto %u type %u op %u, %u in, %u out, %u lanes, slice %u chunk %u, relayed "
				  "%u: rank %u, "
				  "element %llu of %llu of operation %u is wrong",
				  sc->kind, op->proto, op->type, op->op, op->nrecv, op->nsend, sc->lanes,
				  op->slice_steps, op->chunk_steps, sc->relayed, r, (unsigned long long)i,
				  (unsigned long long)op->count, k);
	}
	if (a->output != a->input && op->count)
		CHECK_EQ(a->output[op->count * bytes], 0x5a);
}

/* Both ends counted the same steps, from an aligned base. */
static void link_check(const struct link *l, uint64_t from, const struct prim_args *ops, uint32_t nops)
{
	uint64_t step = from, bytes = 0;

	for (uint32_t k = 0; k < nops; k++) {
		const struct prim_args *a = &ops[k];
		uint64_t steps = a->proto == GANTRY_PROTO_SIMPLE ? a->slice_steps : 1;
		uint64_t per = steps * STEP / dev_type_bytes(a->type);

		if (!a->count)
			continue;
		step = (step + a->chunk_steps - 1) / a->chunk_steps * a->chunk_steps;
		step += (a->count + per - 1) / per * steps;
		bytes += a->count * dev_type_bytes(a->type);
	}
	CHECK_EQ(l->tx.step, step);
	CHECK_EQ(l->rx.step, step);
	CHECK_EQ(*l->tx.head, step);
	CHECK_EQ(*l->rx.head, step);
	CHECK_EQ(*l->tx.tail, step);
	CHECK_EQ(l->tx_state.counts.bytes, bytes);
	CHECK_EQ(l->rx_state.counts.bytes, bytes);
	CHECK_EQ(GANTRY_DOING_PHASE(l->tx_state.doing), GANTRY_KERNEL_IDLE);
	CHECK_EQ(GANTRY_DOING_PHASE(l->rx_state.doing), GANTRY_KERNEL_IDLE);
}

static void scene_begin(const struct scene *sc)
{
	uint32_t nrecv = takes(sc->kind) ? sc->nrecv : 0, nsend = gives(sc->kind) ? sc->nsend : 0;

	for (uint32_t r = 0; r < RANKS; r++)
		rank_reset(&ranks[r]);
	for (uint32_t i = 0; i < nrecv + nsend; i++) {
		if (i < nrecv)
			link_make(&links[i], &ranks[1 + i].eventcount, &ranks[0].eventcount, sc->step);
		else
			link_make(&links[i], &ranks[0].eventcount, &ranks[1 + i].eventcount, sc->step);
		if (sc->relayed)
			link_relayed(&links[i], (sc->relayed + i) % 2, (sc->relayed + i) % GANTRY_MODES);
	}
}
static void scene_run(const struct scene *sc)
{
	uint32_t nrecv = takes(sc->kind) ? sc->nrecv : 0, nsend = gives(sc->kind) ? sc->nsend : 0, n = ranks[0].nops;
	struct relay relays[LINKS] = {{0}};
	pthread_t relay;

	for (uint32_t i = 0; i < nrecv + nsend; i++)
		relays[i] = (struct relay){
			.link = &links[i], .step = sc->step, .end = sc->step, .ops = ranks[0].ops, .nops = n};
	if (sc->relayed)
		CHECK_EQ(pthread_create(&relay, NULL, relay_main, relays), 0);
	run(1 + nrecv + nsend, sc->lanes);
	if (sc->relayed)
		pthread_join(relay, NULL);
	for (uint32_t r = 0; r < 1 + nrecv + nsend; r++)
		CHECK_OK(ranks[r].result);
	for (uint32_t k = 0; k < n; k++) {
		if (has_output(sc->kind))
			scene_check(sc, k, 0, nrecv);
		for (uint32_t r = 1 + nrecv; r < 1 + nrecv + nsend; r++)
			scene_check(sc, k, r, nrecv);
	}
	for (uint32_t i = 0; i < nrecv + nsend; i++)
		link_check(&links[i], sc->step, ranks[0].ops, n);
}

static const uint32_t cuts[][2] = {{1, 1}, {1, 2}, {2, 2}, {2, 4}, {1, 4}, {4, 4}, {4, 8}, {8, 8}}; /* slice, chunk */

static uint64_t some_count(uint32_t type, uint32_t chunk)
{
	uint64_t step = STEP / dev_type_bytes(type);

	switch (random_below(6)) {
	case 0:
		return random_below(4);
	case 1:
		return step * (1 + random_below(4));
	case 2:
		return step * chunk * (1 + random_below(2));
	default:
		return 1 + random_below((uint32_t)step * 20);
	}
}

/* Three operations in a row on the same connections, each with its own protocol, cut, type and count. */
static void random_scene(uint32_t kind, uint32_t proto, uint32_t type)
{
	struct scene sc = {.kind = kind,
			   .nrecv = 1 + random_below(3),
			   .nsend = 1 + random_below(3),
			   .lanes = random_below(4) ? 1 : 1 + random_below(LANES),
			   .relayed = random_below(3) ? 0 : 1 + random_below(6),
			   .in_place = random_below(2),
			   .step = random_below(2) ? random_below(20) : 0x7fe0 + random_below(24)};

	scene_begin(&sc);
	for (uint32_t k = 0; k < OPS; k++) {
		const uint32_t *cut = cuts[random_below(sizeof(cuts) / sizeof(cuts[0]))];
		struct prim_args op = {.proto = k ? random_below(GANTRY_PROTOS) : proto,
				       .type = k ? random_below(GANTRY_TYPE_COUNT) : type,
				       .op = random_below(GANTRY_OP_COUNT),
				       .slice_steps = cut[0],
				       .chunk_steps = cut[1],
				       .last = random_below(2)};

		op.count = some_count(op.type, cut[1]);
		op.scalar = scalar_of(op.type, op.op, 2);
		scene_op(&sc, k, op, k * 16384 + 64 + dev_type_bytes(op.type) * random_below(5));
	}
	scene_run(&sc);
}

/* Ring all-reduce out of the primitives: the textbook's 2 * (n - 1) steps. */

static void ring_body(struct rank *r)
{
	const struct prim_args *a = &r->ops[0];
	uint32_t n = r->ranks, me = r->rank;
	struct dev_prims p;
	uint64_t chunk = prim_begin(&p, a, 0);

	for (uint64_t loop = 0; loop < a->count && !p.error; loop += n * chunk) {
#define PART(c) (loop + ((c) + 2 * n) % n * chunk)
#define SIZE(c) (PART(c) >= a->count ? 0 : a->count - PART(c) < chunk ? a->count - PART(c) : chunk)
		uint32_t c = me + n - 1;

		prim_move(&p, a, GANTRY_PRIM_SEND, PART(c), 0, SIZE(c), 0);
		for (uint32_t k = 2; k < n; k++) {
			c = me + n - k;
			prim_move(&p, a, GANTRY_PRIM_RECV_REDUCE_SEND, PART(c), 0, SIZE(c), 0);
		}
		c = me;
		prim_move(&p, a, GANTRY_PRIM_RECV_REDUCE_COPY_SEND, PART(c), PART(c), SIZE(c), 1);
		for (uint32_t k = 1; k < n - 1; k++) {
			c = me + n - k;
			prim_move(&p, a, GANTRY_PRIM_RECV_COPY_SEND, 0, PART(c), SIZE(c), 0);
		}
		c = me + 1;
		prim_move(&p, a, GANTRY_PRIM_RECV, 0, PART(c), SIZE(c), 0);
#undef PART
#undef SIZE
	}
	prim_end(&p, a);
}

static void test_ring(uint32_t n, uint32_t proto, uint32_t type, uint32_t op, uint32_t in_place)
{
	const uint32_t *cut = cuts[random_below(6)]; /* a ring's chunks fill no more than half the steps */
	uint32_t bytes = dev_type_bytes(type), values[RANKS], scaled[RANKS];
	uint64_t count = random_below(3) ? some_count(type, cut[1]) * (1 + random_below(4)) : 1 + random_below(3),
		 offset = 64 + bytes * random_below(3);
	char want[8];

	for (uint32_t i = 0; i < n; i++)
		rank_reset(&ranks[i]);
	for (uint32_t i = 0; i < n; i++)
		link_make(&links[i], &ranks[i].eventcount, &ranks[(i + 1) % n].eventcount, random_below(9));
	for (uint32_t i = 0; i < n; i++) {
		struct prim_args *a = &ranks[i].ops[0];

		a->proto = proto;
		a->type = type;
		a->op = op;
		a->count = count;
		a->scalar = scalar_of(type, op, 2); /* quarters are no halves */
		a->slice_steps = cut[0];
		a->chunk_steps = cut[1];
		a->nrecv = a->nsend = 1;
		a->result = &ranks[i].result;
		a->send[0] = &links[i].tx;
		a->recv[0] = &links[(i + n - 1) % n].rx;
		a->input = ranks[i].input + offset;
		a->output = (in_place ? ranks[i].input : ranks[i].output) + offset;
		for (uint64_t e = 0; e < count; e++)
			put(ranks[i].input + offset + e * bytes, type, 2 * value(op, i, e));
		ranks[i].body = ring_body;
		ranks[i].rank = i;
		ranks[i].ranks = n;
	}
	run(n, 1 + random_below(8) / 7);
	for (uint32_t i = 0; i < n; i++) {
		CHECK_OK(ranks[i].result);
		for (uint64_t e = 0; e < count; e++) {
			for (uint32_t k = 0; k < n; k++) {
				scaled[k] = 1;
				values[k] = value(op, k, e);
			}
			put(want, type, expected(op, 1, values, scaled, n, 2));
			if (memcmp(want, ranks[i].ops[0].output + e * bytes, bytes) != 0)
				TEST_FAIL("ring of %u, proto %u type %u op %u slice %u chunk %u: rank %u, element %llu "
					  "of %llu",
					  n, proto, type, op, cut[0], cut[1], i, (unsigned long long)e,
					  (unsigned long long)count);
		}
	}
}

/* Abort ends every kind of wait, with one lane and with several. */
static void check_abort(uint32_t kind, uint32_t proto, uint32_t lanes, int offset)
{
	struct scene sc = {.kind = kind, .nrecv = 1, .nsend = 1, .lanes = lanes};
	struct prim_args op = {
		.proto = proto, .type = GANTRY_TYPE_FLOAT32, .slice_steps = 1, .chunk_steps = 2, .count = 2000};
	struct lane all[LANES];
	struct timespec t = {0, 3000000};

	scene_begin(&sc);
	if (offset)
		link_relayed(&links[0], 1, 0);
	scene_op(&sc, 0, op, 0);
	__atomic_store_n(&abort_flag, 0, __ATOMIC_SEQ_CST);
	start(all, 1, lanes); /* only the one in the middle */
	nanosleep(&t, NULL);
	__atomic_store_n(&abort_flag, 1, __ATOMIC_SEQ_CST);
	gantry_eventcount_wake(&ranks[0].eventcount);
	join(all, 1, lanes);
	__atomic_store_n(&abort_flag, 0, __ATOMIC_SEQ_CST);
	CHECK_EQ(ranks[0].result, GANTRY_ERR_ABORTED);
}

static uint32_t one_alone(struct prim_args *op)
{
	struct scene sc = {.kind = op->kind, .nrecv = 2, .nsend = 2, .lanes = 1};

	scene_begin(&sc);
	scene_op(&sc, 0, *op, 0);
	return 0;
}
TEST(test_refusals)
{
	struct prim_args op = {.kind = GANTRY_PRIM_RECV_REDUCE_SEND,
			       .type = GANTRY_TYPE_INT32,
			       .slice_steps = 1,
			       .chunk_steps = 2,
			       .count = 10};

	one_alone(&op);
	ranks[0].ops[0].chunk_steps = 3;
	run(1, 1);
	CHECK_EQ(ranks[0].result, GANTRY_ERR_INVALID);

	one_alone(&op);
	ranks[0].ops[0].slice_steps = 4;
	run(1, 1);
	CHECK_EQ(ranks[0].result, GANTRY_ERR_INVALID);

	one_alone(&op);
	ranks[0].ops[0].type = GANTRY_TYPE_COUNT;
	run(1, 1);
	CHECK_EQ(ranks[0].result, GANTRY_ERR_INVALID);
	CHECK_EQ(links[0].rx.step, 0);
}

/* A sender and a receiver that do not agree on the count. */
TEST(test_sizes_differ)
{
	struct scene sc = {.kind = GANTRY_PRIM_RECV, .nrecv = 1, .lanes = 1};
	struct prim_args op = {.type = GANTRY_TYPE_INT32, .slice_steps = 2, .chunk_steps = 2, .count = 10};

	scene_begin(&sc);
	scene_op(&sc, 0, op, 0);
	ranks[1].ops[0].count = 9;
	run(2, 1);
	CHECK_EQ(ranks[0].result, GANTRY_ERR_SIZE);
	CHECK_OK(ranks[1].result);
}

/* All protocols round once: 256 + 1 + 1 of bfloat16 is 258, which takes more bits on the way than 256 leaves. */
TEST(test_rounds_once)
{
	struct scene sc = {.kind = GANTRY_PRIM_RECV_REDUCE_COPY_SEND, .nrecv = 2, .nsend = 1, .lanes = 1};
	struct prim_args op = {.type = GANTRY_TYPE_BFLOAT16, .slice_steps = 1, .chunk_steps = 1, .count = 301};
	const uint16_t large = 0x4380, one = 0x3f80, sum = 0x4381;

	for (op.proto = 0; op.proto < GANTRY_PROTOS; op.proto++) {
		CASE("proto %u", op.proto);
		scene_begin(&sc);
		scene_op(&sc, 0, op, 0);
		for (uint32_t r = 0; r < 3; r++)
			for (uint64_t i = 0; i < op.count; i++)
				memcpy(ranks[r].input + 2 * i, r ? &one : &large, 2);
		run(4, sc.lanes);
		for (uint32_t r = 0; r < 4; r += 3) {
			CHECK_OK(ranks[r].result);
			for (uint64_t i = 0; i < op.count; i++) {
				uint16_t got;

				memcpy(&got, ranks[r].output + 2 * i, 2);
				CHECK_EQ(got, sum);
			}
		}
	}
}

/* Slices of two steps write every second slot; around 0x7ff8 the others are written too, lest they look new later. */
TEST(test_marks)
{
	struct scene sc = {.kind = GANTRY_PRIM_SEND, .nsend = 1, .lanes = 1, .step = 0x7ff5};
	struct prim_args op = {.type = GANTRY_TYPE_INT32, .slice_steps = 2, .chunk_steps = 2, .count = 10 * STEP / 4};

	scene_begin(&sc);
	links[0].rx.offers = links[0].fifo.offers;
	scene_op(&sc, 0, op, 0);
	scene_run(&sc);
	CHECK_EQ(links[0].tx.step, 0x8000);
	for (uint64_t s = 0x7ff8; s < 0x8000; s++) {
		CHECK(gantry_slot_is(links[0].fifo.slots[s % GANTRY_STEPS].meta, s));
		CHECK(gantry_slot_is(links[0].fifo.offers[s % GANTRY_STEPS].meta, s));
	}
	/* Left out steps are not left out of this. */
	sc.step = 0x7ff9;
	op.slice_steps = op.chunk_steps = 8;
	op.count = 1;
	scene_begin(&sc);
	scene_op(&sc, 0, op, 0);
	scene_run(&sc);
	CHECK_EQ(links[0].tx.step, 0x8008);
	for (uint64_t s = 0x7ff9; s < 0x8000; s++)
		CHECK(s % 8 == 0 || gantry_slot_is(links[0].fifo.slots[s % GANTRY_STEPS].meta, s));
}

enum { ROUNDS = SANITIZED ? 1 : 3 };

TEST(test_aborts)
{
	for (uint32_t proto = 0; proto < GANTRY_PROTOS; proto++)
		for (uint32_t lanes = 1; lanes <= LANES; lanes += 2) {
			check_abort(GANTRY_PRIM_RECV_REDUCE_COPY, proto, lanes, 0);
			check_abort(GANTRY_PRIM_SEND, proto, lanes, 0);
			if (proto == GANTRY_PROTO_SIMPLE)
				check_abort(GANTRY_PRIM_SEND, proto, lanes, 1);
		}
}

TEST(test_random_scenes)
{
	static const uint32_t kinds[] = {GANTRY_PRIM_SEND,
					 GANTRY_PRIM_RECV,
					 GANTRY_PRIM_COPY_SEND,
					 GANTRY_PRIM_RECV_COPY_SEND,
					 GANTRY_PRIM_RECV_REDUCE_SEND,
					 GANTRY_PRIM_RECV_REDUCE_COPY,
					 GANTRY_PRIM_RECV_REDUCE_COPY_SEND};

	for (int i = 0; i < ROUNDS; i++)
		for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
			for (uint32_t proto = 0; proto < GANTRY_PROTOS; proto++)
				for (uint32_t type = 0; type < GANTRY_TYPE_COUNT; type++)
					random_scene(kinds[k], proto, type);
}

TEST(test_rings)
{
	for (int i = 0; i < ROUNDS; i++)
		for (uint32_t n = 2; n <= 4; n++)
			for (uint32_t proto = 0; proto < GANTRY_PROTOS; proto++)
				for (uint32_t op = 0; op < GANTRY_OP_COUNT; op++)
					test_ring(n, proto, random_below(GANTRY_TYPE_COUNT), op, random_below(2));
}

void tests_begin(void)
{
	gantry_host_wait_setup();
	dev_delay = delay;
}
