/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that receive lists of fragments (k_gather.h): every step is published before the launch, so nobody is waited
 * for. On the host device or, with the argument "cuda", on GPU 0.
 *
 * Catches: fragments that are gathered to the wrong place, before or after they are complete, or not all; bytes that are
 * in the buffer and not on pages; lists that cannot be; a head that is not saved; counters that are not true.
 */
#include "device/k_prim.h"

#include "k_unpack_util.h"

enum { STEPS = 3, STEP = 24000, ROOM = 1 << 20, LISTS = 5 /* the number of the first */ };
/* Of a step: all on pages, some in the buffer, all in the buffer. */
enum { WHOLE, PARTLY, NONE };

/* A connection as kernels see it: all that its pointers lead to. */
struct end {
	struct area words; /* FIFO, state, conn, head of the handle */
	struct area pages, pool, lists;
	struct gantry_conn *conn;
};
struct words {
	struct gantry_fifo fifo;
	struct gantry_conn_state state;
	struct gantry_conn conn;
	uint64_t list_head;
};

static struct end recv_ends[2], send_end;
static struct area in, out, args_area;
static uint32_t result_of_last;

/* Element i of source k: small, so that sums fit into a byte. */
static uint8_t value(uint32_t k, uint64_t i)
{
	return (uint8_t)((i * (7 + 4 * k) + i / 251 + k) % 50);
}

static struct end end_new(void)
{
	struct end e = {.words = area_new(sizeof(struct words)),
			.pages = area_new(ROOM),
			.pool = area_new(GANTRY_STEPS * 32768),
			.lists = area_new(sizeof(struct gantry_unpack_meta))};

	e.conn = &((struct words *)e.words.host)->conn;
	return e;
}
static void end_free(struct end *e)
{
	area_free(&e->words);
	area_free(&e->pages);
	area_free(&e->pool);
	area_free(&e->lists);
}

static void end_reset(struct end *e, uint32_t flags)
{
	struct words *w = (struct words *)e->words.host, *d = (struct words *)e->words.device;

	memset(w, 0, sizeof(*w));
	memset(e->pool.host, POISON, e->pool.size);
	w->list_head = w->conn.list = LISTS - 1;
	w->conn.head = &d->fifo.head;
	w->conn.tail = &d->fifo.tail;
	w->conn.slots = d->fifo.slots;
	w->conn.state = &d->state;
	w->conn.buffs[GANTRY_PROTO_SIMPLE] = w->conn.pool = e->pool.device;
	w->conn.lists = (struct gantry_unpack_meta *)e->lists.device;
	w->conn.pages = e->pages.device;
	w->conn.list_head = &d->list_head;
	w->conn.step_bytes[GANTRY_PROTO_SIMPLE] = STEP;
	w->conn.flags = flags;
}

/* Step s brings `bytes` of source k. */
static void publish(struct end *e, uint32_t k, uint64_t s, uint64_t bytes, int how)
{
	struct gantry_unpack_meta *m = (struct gantry_unpack_meta *)e->lists.host;
	struct gantry_slot *slot = &((struct words *)e->words.host)->fifo.slots[s];
	uint64_t number = (LISTS + s) % GANTRY_UNPACK_DEPTH, first = s * STEP, place = s * 32768;
	uint64_t skip = how == WHOLE ? 0 : how == NONE ? bytes : bytes < 99 ? bytes / 2 : 99;
	static struct gantry_unpack_desc descs[MAX_DESCS];
	struct list l = {.d = descs};

	for (uint64_t i = 0; i < skip; i++)
		e->pool.host[place + i] = (char)value(k, first + i);
	if (bytes > skip)
		list_cut(&l, bytes - skip, 1 + random_below(3000), ROOM / STEPS - 4096);
	list_shuffle(&l);
	for (uint64_t n = 0; n < l.n; n++) {
		l.d[n].dst_off += skip;
		l.d[n].src_off += (uint32_t)(s * (ROOM / STEPS));
		for (uint64_t i = 0; i < l.d[n].len; i++)
			e->pages.host[l.d[n].src_off + i] = (char)value(k, first + l.d[n].dst_off + i);
	}
	memcpy(m->mem[number], l.d, l.n * sizeof(*l.d));
	m->cnt[number] = l.n;
	slot->meta = gantry_slot_meta(s, GANTRY_MODE_OFFSET, bytes);
	slot->where = gantry_slot_where(s, place | number);
}

static void publish_all(struct end *e, uint32_t k, uint64_t bytes, int how)
{
	end_reset(e, GANTRY_CONN_UNPACK);
	for (uint64_t s = 0; s * STEP < bytes; s++) {
		do /* no more than a list holds */
			publish(e, k, s, bytes - s * STEP < STEP ? bytes - s * STEP : STEP, how);
		while (((struct gantry_unpack_meta *)e->lists.host)->cnt[(LISTS + s) % GANTRY_UNPACK_DEPTH] >
		       GANTRY_UNPACK_MAX_DESCS);
	}
}

/* One step of a plan over all of the buffers, as a collective. */
struct call {
	struct gantry_coll coll;
	struct gantry_coll_step step;
	struct gantry_conn *conns[3];
	uint32_t result;
};
static void run_coll(uint32_t what, uint32_t nrecv, uint32_t nsend, uint32_t op, uint64_t bytes, uint32_t lanes)
{
	struct call *c = (struct call *)args_area.host, *d = (struct call *)args_area.device;
	struct gantry_coll_args a = {.colls = &d->coll, .result = &d->result};
	uint32_t n = 0;

	memset(c, 0, sizeof(*c));
	c->step = (struct gantry_coll_step){.what = (uint8_t)what,
					    .last = 1,
					    .nrecv = (uint8_t)nrecv,
					    .nsend = (uint8_t)nsend,
					    .send = (uint16_t)nrecv};
	for (; n < nrecv && n < 2; n++) /* the bound is for the compiler */
		c->conns[n] = &((struct words *)recv_ends[n].words.device)->conn;
	if (nsend)
		c->conns[n++] = &((struct words *)send_end.words.device)->conn;
	c->coll = (struct gantry_coll){.steps = &d->step,
				       .conns = d->conns,
				       .in = in.device,
				       .out = out.device,
				       .count = bytes,
				       .whole = UINT64_MAX,
				       .chunk = STEP,
				       .id = 1,
				       .nsteps = 1,
				       .nconns = n,
				       .step_bytes = STEP,
				       .slice_steps = 1,
				       .chunk_steps = 1,
				       .type = GANTRY_TYPE_UINT8,
				       .op = (uint8_t)op};
	run(&gantry_kernel_coll_unpack, 1, lanes, &a, sizeof(a));
	result_of_last = c->result;
}

static uint8_t wanted(uint32_t what, uint32_t nrecv, uint32_t op, uint64_t i)
{
	uint32_t v = what & PRIM_IN ? value(9, i) : value(0, i);

	for (uint32_t k = what & PRIM_IN ? 0 : 1; k < nrecv; k++) {
		uint32_t more = value(k, i);

		v = op == GANTRY_OP_SUM ? v + more : v > more ? v : more;
	}
	return (uint8_t)v;
}

static void check_end(const struct end *e, uint64_t bytes, uint64_t unpacked, uint64_t reduced)
{
	const struct words *w = (const struct words *)e->words.host;
	uint64_t steps = (bytes + STEP - 1) / STEP;

	CHECK_EQ(w->fifo.head, steps);
	CHECK_EQ(w->list_head, LISTS - 1 + steps);
	CHECK_EQ(w->state.counts.unpacked, unpacked);
	CHECK_EQ(w->state.counts.reduced, reduced);
	CHECK_EQ(w->state.counts.steps[GANTRY_PROTO_SIMPLE][GANTRY_MODE_OFFSET], steps);
}

static void check_coll(uint32_t what, uint32_t nrecv, uint32_t op, uint64_t bytes, int how, uint32_t lanes)
{
	const uint32_t nsend = what & PRIM_SEND ? 1 : 0;
	uint64_t steps = (bytes + STEP - 1) / STEP;

	for (uint32_t k = 0; k < nrecv; k++)
		publish_all(&recv_ends[k], k, bytes, how);
	end_reset(&send_end, GANTRY_CONN_SEND);
	memset(out.host, POISON, out.size);
	for (uint64_t i = 0; i < bytes; i++)
		in.host[i] = (char)value(9, i);
	run_coll(what, nrecv, nsend, op, bytes, lanes);
	CHECK_OK((gantry_result)result_of_last);
	for (uint64_t i = 0; i < bytes; i++) {
		uint8_t want = wanted(what, nrecv, op, i);

		if (what & PRIM_OUT && (uint8_t)out.host[i] != want)
			TEST_FAIL(
				"what %u, %u sources, op %u, %d, %u lanes: byte %llu of the output is %u, expected %u",
				what, nrecv, op, how, lanes, (unsigned long long)i, (uint8_t)out.host[i], want);
		if (nsend && (uint8_t)send_end.pool.host[i] != want)
			TEST_FAIL("what %u, %u sources, op %u, %d, %u lanes: byte %llu sent is wrong", what, nrecv, op,
				  how, lanes, (unsigned long long)i);
	}
	CHECK_EQ((uint8_t)out.host[bytes], POISON);
	for (uint32_t k = 0; k < nrecv; k++)
		check_end(&recv_ends[k], bytes, how == NONE ? 0 : steps,
			  how == WHOLE && nrecv == 1 && what & PRIM_IN ? steps : 0);
}

static void test_collectives(void)
{
	static const uint32_t kinds[] = {GANTRY_PRIM_RECV, GANTRY_PRIM_RECV_COPY_SEND, GANTRY_PRIM_RECV_REDUCE_SEND,
					 GANTRY_PRIM_RECV_REDUCE_COPY, GANTRY_PRIM_RECV_REDUCE_COPY_SEND};
	static const uint64_t sizes[] = {2, 1000, STEP, STEP * STEPS - 777};
	uint32_t n = 0;

	for (uint32_t k = 0; k < 5; k++)
		for (uint32_t nrecv = 1; nrecv <= (kinds[k] & PRIM_IN ? 2u : 1u); nrecv++)
			for (uint32_t s = 0; s < 4; s++)
				for (int how = WHOLE; how <= NONE; how++, n++)
					check_coll(kinds[k], nrecv, n % 2 ? GANTRY_OP_SUM : GANTRY_OP_MAX, sizes[s],
						   how, teams()[n % 2].lanes);
}

/* A receive of send and recv. */
static uint32_t run_recv(uint64_t bytes, uint32_t lanes)
{
	struct {
		struct gantry_xfer x;
		uint32_t first[2], result;
	} *c = (void *)args_area.host, *d = (void *)args_area.device;
	struct gantry_p2p_args a = {.xfers = &d->x, .first = d->first, .result = &d->result};

	memset(c, 0, sizeof(*c));
	c->first[1] = 1;
	c->x = (struct gantry_xfer){.conn = &((struct words *)recv_ends[0].words.device)->conn,
				    .buf = out.device,
				    .bytes = bytes,
				    .step_bytes = STEP,
				    .proto = GANTRY_PROTO_SIMPLE};
	memset(out.host, POISON, out.size);
	run(&gantry_kernel_p2p, 1, lanes, &a, sizeof(a));
	return c->result;
}

static void test_recv(void)
{
	static const uint64_t sizes[] = {2, STEP, STEP * STEPS - 777};

	for (uint32_t s = 0; s < 3; s++)
		for (int how = WHOLE; how <= NONE; how++) {
			publish_all(&recv_ends[0], 0, sizes[s], how);
			CHECK_OK((gantry_result)run_recv(sizes[s], teams()[(s + (uint32_t)how) % 2].lanes));
			for (uint64_t i = 0; i < sizes[s]; i++)
				CHECK_EQ((uint8_t)out.host[i], value(0, i));
			CHECK_EQ((uint8_t)out.host[sizes[s]], POISON);
			check_end(&recv_ends[0], sizes[s], how == NONE ? 0 : (sizes[s] + STEP - 1) / STEP, 0);
		}
}

/* The second list is wrong: the first step arrives, nothing of the second is written, and the error has its name. */
static void test_wrong_lists(void)
{
	struct gantry_unpack_meta *m = (struct gantry_unpack_meta *)recv_ends[0].lists.host;

	for (int wrong = 0; wrong < 3; wrong++)
		for (int p2p = 0; p2p < 2; p2p++) {
			uint64_t at = LISTS + 1;

			publish_all(&recv_ends[0], 0, STEP * 2, WHOLE);
			end_reset(&send_end, GANTRY_CONN_SEND);
			if (wrong == 0)
				m->cnt[at] = GANTRY_UNPACK_MAX_DESCS + 1;
			else if (wrong == 1)
				m->mem[at][0].dst_off = STEP - m->mem[at][0].len + 1;
			else
				m->mem[at][m->cnt[at]++] = m->mem[at][0];
			memset(out.host, POISON, out.size);
			if (p2p)
				result_of_last = run_recv(STEP * 2, teams()[1].lanes);
			else
				run_coll(GANTRY_PRIM_RECV, 1, 0, GANTRY_OP_SUM, STEP * 2, teams()[1].lanes);
			CHECK_EQ(result_of_last, GANTRY_ERR_PROTOCOL);
			CHECK_EQ((uint8_t)out.host[STEP - 1], value(0, STEP - 1));
			for (uint64_t i = 0; i < STEP; i++)
				CHECK_EQ((uint8_t)out.host[STEP + i], POISON);
		}
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	for (uint32_t k = 0; k < 2; k++)
		recv_ends[k] = end_new();
	send_end = end_new();
	in = area_new(STEP * (STEPS + 1));
	out = area_new(STEP * (STEPS + 1));
	args_area = area_new(4096);
	RUN(test_collectives());
	RUN(test_recv());
	RUN(test_wrong_lists());
	area_free(&args_area);
	area_free(&out);
	area_free(&in);
	end_free(&send_end);
	for (uint32_t k = 0; k < 2; k++)
		end_free(&recv_ends[k]);
	close_device();
	return 0;
}
