/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC keeps the invariants 1 to 6 of a devmem receive (numbered as in the design's facts about devmem TCP;
 * 7 to 12 are in test_emulated_more.c, 13 in test_emulated_tx.c), and each check finds a NIC that breaks it.
 */
#include "emulated_faults.h"

/* 1. As many pages at a time as there are, for all flows together; ids are never 0, never used twice, and go around. */
static void pool_and_ids(void)
{
	enum { PAGES = 16 };
	struct devmem_binding *b[3];
	uint8_t seen[PAGES] = {0};
	uint32_t n = 0;
	struct world w;

	use_params("GANTRY_EMU_SHAPE", "pages", NULL);
	world_open(&w, PAGES);
	for (int i = 0; i < 2; i++) {
		pair_arrive(&w.p[i], i ? (uint64_t)PAGES * w.page : 3 * (uint64_t)w.page);
		for (struct got *g; (g = receive_all(w.f[i]))->bytes > 0;)
			for (uint32_t k = 0; k < g->n; k++) {
				uint64_t slot = g->frags[k].c.frag_offset / w.page;

				CHECK(slot < PAGES && !seen[slot]);
				seen[slot] = 1;
				n++;
			}
		CHECK_EQ(errno, EAGAIN);
	}
	CHECK_EQ(n, PAGES);

	emu_next_id(UINT32_MAX);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(emulated_ops.bind(&w.m.m, "emu1", &b[i]), GANTRY_OK);
	CHECK_EQ(b[0]->dmabuf_id, UINT32_MAX);
	for (int i = 0; i < 3; i++) {
		CHECK(b[i]->dmabuf_id >= 1);
		CHECK(b[i]->dmabuf_id != w.b->dmabuf_id && b[i]->dmabuf_id != b[(i + 1) % 3]->dmabuf_id);
	}
	emulated_ops.unbind(b[1]);
	CHECK_EQ(emulated_ops.bind(&w.m.m, "emu1", &b[1]), GANTRY_OK);
	CHECK(b[1]->dmabuf_id > b[2]->dmabuf_id); /* not the one that has just become free */
	for (int i = 0; i < 3; i++)
		emulated_ops.unbind(b[i]);
	world_close(&w);
}

/* 2. A fragment lies in one page; the order is shuffled; offsets have 64 bits; fragments may share a page. */
static void places_in_pages(void)
{
	static const char *const shape[] = {"odd", "random", "mtu1500", "pages"};

	for (int s = 0; s < 4; s++) {
		uint32_t up = 0, down = 0, shared = 0, beyond = 0;
		uint64_t last = UINT64_MAX;
		struct world w;

		use_params("GANTRY_EMU_SHAPE", shape[s], NULL);
		world_open(&w, s == 3 ? (8ull << 30) / (uint64_t)sysconf(_SC_PAGESIZE) : 2000);
		pair_arrive(&w.p[0], 400000);
		while (w.p[0].got < 400000) {
			struct got *g = must_get(&w, 0);

			for (uint32_t k = 0; k < g->n; k++) {
				const struct devmem_cmsg *c = &g->frags[k].c;

				if (g->frags[k].linear)
					continue;
				if (s == 0)
					CHECK_EQ(c->frag_offset % w.page % 2, 1);
				up += c->frag_offset / w.page > last;
				down += c->frag_offset / w.page < last;
				shared += c->frag_offset / w.page == last;
				beyond += c->frag_offset >> 32 != 0;
				last = c->frag_offset / w.page;
			}
		}
		CHECK(up > 10 && down > 10);
		CHECK(!shared == (s == 0 || s == 3));
		CHECK((beyond > 10) == (s == 3));
		world_close(&w);
	}
}

/* 3. What each shape looks like when all of it has arrived. */
static void shapes(void)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
	const struct {
		const char *name;
		uint32_t size[3];
	} shape[] = {{"pages", {page, page, page}},
		     {"mtu1500", {1448, 1448, 1448}},
		     {"mtu9000", {4096, 4096, 756}},
		     {"odd", {page - 1, page - 1, page - 1}},
		     {"bytes", {1, 1, 1}}};

	EACH_ROW (s, shape) {
		const uint32_t *z = shape[s].size;
		struct world w;
		struct got *g;

		use_params("GANTRY_EMU_SHAPE", shape[s].name, NULL);
		world_open(&w, 64);
		pair_arrive(&w.p[0], 10 * (uint64_t)(z[0] + z[1] + z[2]));
		g = must_get(&w, 0);
		CHECK_EQ(g->n, 30);
		for (uint32_t k = 0; k < g->n; k++)
			CHECK_EQ(g->frags[k].c.frag_size, z[k % 3]);
		world_close(&w);
	}
}

static uint32_t free_pages(struct world *w)
{
	struct emu_binding *b = (struct emu_binding *)w->b;
	uint32_t n;

	emu_binding_mu_lock(&b->mu);
	n = b->nfree;
	emu_binding_mu_unlock(&b->mu);
	return n;
}

/* 4. Tokens: of the socket, from 1, the lowest free one first, used again at once. A page waits for all of its own. */
static void tokens(void)
{
	struct world w;
	struct got *g;

	use_params("GANTRY_EMU_SHAPE", "pages", NULL);
	world_open(&w, 64);
	for (int i = 0; i < 2; i++) {
		pair_arrive(&w.p[i], 6 * (uint64_t)w.page);
		g = must_get(&w, i);
		CHECK_EQ(g->n, 6);
		for (uint32_t k = 0; k < 6; k++)
			CHECK_EQ(g->frags[k].c.frag_token, k + 1);
	}
	CHECK_EQ(give_one_back(w.f[0], 5), 1);
	CHECK_EQ(give_one_back(w.f[0], 2), 1);
	pair_arrive(&w.p[0], 3 * (uint64_t)w.page);
	g = must_get(&w, 0);
	CHECK_EQ(g->n, 3);
	CHECK_EQ(g->frags[0].c.frag_token, 2);
	CHECK_EQ(g->frags[1].c.frag_token, 5);
	CHECK_EQ(g->frags[2].c.frag_token, 7);
	world_close(&w);

	use_params("GANTRY_EMU_SHAPE", "mtu1500", "GANTRY_EMU_RTO", "0", NULL);
	world_open(&w, 1);
	pair_arrive(&w.p[0], 2 * 1448 + 100);
	g = must_get(&w, 0);
	CHECK_EQ(g->n, 2);
	CHECK_EQ(g->frags[0].c.frag_offset / w.page, g->frags[1].c.frag_offset / w.page);
	CHECK_EQ(give_one_back(w.f[0], 1), 1);
	CHECK_EQ(free_pages(&w), 0);
	must_be_empty(&w, 0);
	CHECK_EQ(give_one_back(w.f[0], 2), 1);
	CHECK_EQ(free_pages(&w), 1);
	CHECK_EQ(must_get(&w, 0)->bytes, 100);
	world_close(&w);
}

static void *give_back_there(void *flow)
{
	struct devmem_token t = {3, 2};

	return emulated_ops.give_back(flow, &t, 1) == 2 ? flow : NULL;
}

/* 5. Returning: any order, ranges; the limits count what is not valid; unknown and double ones are skipped. */
static void returning(void)
{
	struct devmem_token t[129];
	void *r = NULL;
	pthread_t thread;
	struct world w;

	use_params("GANTRY_EMU_SHAPE", "bytes", NULL);
	world_open(&w, 64);
	for (int i = 0; i < 2; i++) {
		pair_arrive(&w.p[i], 1000);
		CHECK_EQ(must_get(&w, i)->n, 1000);
	}
	memset(t, 0, sizeof(t));
	CHECK(emulated_ops.give_back(w.f[0], t, 0) == -1 && errno == EINVAL);
	CHECK(emulated_ops.give_back(w.f[0], t, 129) == -1 && errno == EINVAL);
	CHECK(emulated_ops.give_back(w.f[0], NULL, 1) == -1 && errno == EFAULT);
	CHECK_EQ(emulated_ops.give_back(w.f[0], t, 128), 0);

	t[0] = (struct devmem_token){900, 3};
	t[1] = (struct devmem_token){7, 1};
	t[2] = (struct devmem_token){901, 4};	     /* two of them again */
	t[3] = (struct devmem_token){UINT32_MAX, 3}; /* wraps: 0 is none, 1 is one */
	t[4] = (struct devmem_token){5000, 2};
	CHECK_EQ(emulated_ops.give_back(w.f[0], t, 5), 3 + 1 + 2 + 1);
	CHECK_EQ(give_one_back(w.f[0], 7), 0);
	CHECK_EQ(give_one_back(w.f[1], 7), 1); /* the other socket's own */
	CHECK(!pthread_create(&thread, NULL, give_back_there, w.f[0]) && !pthread_join(thread, &r));
	CHECK(r == w.f[0]);

	t[0] = (struct devmem_token){100000, 1020};
	t[1] = (struct devmem_token){10, 10};
	CHECK_EQ(emulated_ops.give_back(w.f[0], t, 2), 4); /* 1024 were looked at */
	CHECK_EQ(give_one_back(w.f[0], 14), 1);
	CHECK_EQ(give_one_back(w.f[0], 13), 0);
	world_close(&w);
}

/* 6. Stream order and sum; linear bytes are packed and never alone in their packet; one kind in a call. */
static void kinds(void)
{
	uint64_t linear = 0, plain = 0, split = 0;
	int need_split = 0; /* the last byte so far was linear: its packet goes on */
	struct world w;

	use_params("GANTRY_EMU_SHAPE", "mtu1500", "GANTRY_EMU_LINEAR", "400", "GANTRY_EMU_PLAIN", "200", NULL);
	world_open(&w, 300);
	for (int turn = 0; w.p[0].got < 1500000; turn++) {
		static const size_t control[] = {UTIL_CONTROL, 40, 200, 80}, iov[] = {UTIL_IOV, 3000, 20000, 77};
		struct got *g;

		if (w.p[0].sent - w.p[0].got < 100000)
			pair_arrive(&w.p[0], 100000);
		g = receive_into(w.f[0], control[turn % 4], iov[turn / 4 % 4], MSG_DONTWAIT);
		check_got(w.f[0], &w.p[0], g, w.p[0].got);
		w.p[0].got += (uint64_t)g->bytes;
		CHECK(!need_split || g->n);
		if (!g->n)
			plain += (uint64_t)g->bytes;
		for (uint32_t k = 0; k < g->n; k++) {
			/* Linear bytes of two packets never meet: between them is split data. */
			CHECK(!g->frags[k].linear || !need_split || !k);
			need_split = g->frags[k].linear;
			*(need_split ? &linear : &split) += g->frags[k].c.frag_size;
		}
		give_all_back(w.f[0], g);
	}
	CHECK(linear > 10000 && plain > 100000 && split > 100000);
	CHECK_EQ(linear, EMU_COUNTED((struct emu_binding *)w.b, linear_bytes));
	world_close(&w);
}

int main(void)
{
	check_invariant(1, "pool and ids", pool_and_ids, FAULTS(11, 12));
	check_invariant(2, "places in pages", places_in_pages, FAULTS(21, 22, 23, 24));
	check_invariant(3, "shapes", shapes, FAULTS(31));
	check_invariant(4, "tokens", tokens, FAULTS(41, 42));
	check_invariant(5, "returning", returning, FAULTS(51, 52, 53));
	check_invariant(6, "kinds", kinds, FAULTS(61, 62, 63, 64));
	return 0;
}
