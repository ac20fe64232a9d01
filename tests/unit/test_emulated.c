/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC keeps the invariants 1 to 12 of a devmem receive (numbered as in the design's facts about devmem TCP;
 * 13 is in test_emulated_tx.c), and each check finds a NIC that breaks it.
 */
#include <sys/time.h>

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
		CHECK_OK(emulated_ops.bind(&w.m.m, "emu1", &b[i]));
	CHECK_EQ(b[0]->dmabuf_id, UINT32_MAX);
	for (int i = 0; i < 3; i++) {
		CHECK(b[i]->dmabuf_id >= 1);
		CHECK(b[i]->dmabuf_id != w.b->dmabuf_id && b[i]->dmabuf_id != b[(i + 1) % 3]->dmabuf_id);
	}
	emulated_ops.unbind(b[1]);
	CHECK_OK(emulated_ops.bind(&w.m.m, "emu1", &b[1]));
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

/* 7. iov and control cap a receive; a control buffer without room is an error that consumes nothing. */
static void caps(void)
{
	for (int old = 0; old < 2; old++) {
		struct world w;
		struct got *g;

		use_params("GANTRY_EMU_SHAPE", "pages", "GANTRY_EMU_OLD_ERRNO", old ? "1" : "0", NULL);
		world_open(&w, 64);
		must_be_empty(&w, 0);
		g = receive_into(w.f[0], 0, 100, MSG_DONTWAIT); /* nothing there: that comes first */
		CHECK(g->bytes == -1 && errno == EAGAIN);
		pair_arrive(&w.p[0], 10 * (uint64_t)w.page);
		for (size_t control = 0; control < 40; control += 13)
			for (int i = 0; i < 3; i++) {
				g = receive_into(w.f[0], control, 5000, MSG_DONTWAIT);
				CHECK(g->bytes == -1 && errno == (old ? EFAULT : DEVMEM_ETOOSMALL));
			}
		g = receive_into(w.f[0], UTIL_CONTROL, 101, MSG_DONTWAIT);
		CHECK_EQ(g->bytes, 101);
		check_got(w.f[0], &w.p[0], g, 0);
		for (uint32_t k = 1; k <= 3; k++) {
			w.p[0].got += (uint64_t)g->bytes;
			g = receive_into(w.f[0], 40 * k + 39, UTIL_IOV, MSG_DONTWAIT);
			CHECK_EQ(g->n, k);
			CHECK_EQ(g->bytes, k * w.page - (k == 1) * 101);
			check_got(w.f[0], &w.p[0], g, w.p[0].got);
		}
		world_close(&w);
	}
}

/* recvmsg without MSG_SOCK_DEVMEM. */
static ssize_t receive_plain(struct devmem_flow *f, void *data, size_t len)
{
	struct iovec v = {data, len};
	struct msghdr msg = {.msg_iov = &v, .msg_iovlen = 1};

	return emu_receive_plain(f, &msg, MSG_DONTWAIT);
}

/* 8. What was reported in part goes on in its slot with another token. A look costs tokens. Without the flag: EFAULT.
 */
static void partial(void)
{
	uint64_t slot = 0, at = 0;
	uint32_t token;
	uint8_t data[64];
	struct world w;
	struct got *g;

	use_params("GANTRY_EMU_SHAPE", "pages", NULL);
	world_open(&w, 64);
	pair_arrive(&w.p[0], w.page);
	for (token = 1; w.p[0].got < w.page; token++) {
		g = receive_into(w.f[0], UTIL_CONTROL, 1000, MSG_DONTWAIT);
		check_got(w.f[0], &w.p[0], g, w.p[0].got);
		w.p[0].got += (uint64_t)g->bytes;
		CHECK_EQ(g->n, 1);
		CHECK_EQ(g->frags[0].c.frag_token, token);
		if (token == 1)
			slot = g->frags[0].c.frag_offset;
		CHECK_EQ(g->frags[0].c.frag_offset, slot + at);
		at += (uint64_t)g->bytes;
	}
	/* A packet that arrives in two halves is no different. */
	pair_arrive(&w.p[0], 600);
	slot = must_get(&w, 0)->frags[0].c.frag_offset;
	pair_arrive(&w.p[0], 600);
	CHECK_EQ(must_get(&w, 0)->frags[0].c.frag_offset, slot + 600);
	token += 2;

	pair_arrive(&w.p[0], 5000);
	for (int i = 0; i < 3; i++) {
		g = receive_into(w.f[0], UTIL_CONTROL, 5000, MSG_DONTWAIT | MSG_PEEK);
		check_got(w.f[0], &w.p[0], g, w.p[0].got);
		CHECK_EQ(g->bytes, 5000);
		for (uint32_t k = 0; k < g->n; k++)
			CHECK_EQ(g->frags[k].c.frag_token, token++);
		CHECK_EQ(g->frags[0].c.frag_offset, slot + 1200);
	}
	CHECK(receive_plain(w.f[0], data, sizeof(data)) == -1 && errno == EFAULT);
	g = must_get(&w, 0);
	CHECK_EQ(g->bytes, 5000);
	CHECK_EQ(g->frags[0].c.frag_offset, slot + 1200);
	for (uint32_t t = 1; t < token + g->n; t++)
		CHECK_EQ(give_one_back(w.f[0], t), 1);
	CHECK(receive_plain(w.f[0], data, sizeof(data)) == -1 && errno == EAGAIN);
	world_close(&w);

	/* Ordinary data is for both; the kind of the next byte stays what it is. */
	use_params("GANTRY_EMU_SHAPE", "pages", "GANTRY_EMU_PLAIN", "1000", NULL);
	world_open(&w, 64);
	pair_arrive(&w.p[0], 100);
	CHECK_EQ(receive_plain(w.f[0], data, 64), 64);
	w.p[0].got = 64;
	g = must_get(&w, 0);
	CHECK(g->bytes == 36 && !g->n);
	world_close(&w);
}

/* 9. No page: EAGAIN for all flows, until pages are back and the retransmission timeout is over. Who hoards is said. */
static void starving(void)
{
	char text[300], said[600];
	struct world w;
	uint64_t from, until;
	struct got *g, first;

	use_params("GANTRY_EMU_SHAPE", "pages", "GANTRY_EMU_RTO", "10s", "GANTRY_LOG", "info", NULL);
	world_open(&w, 8);
	pair_arrive(&w.p[0], 6 * (uint64_t)w.page); /* the hoarder */
	first = *must_get(&w, 0);
	pair_arrive(&w.p[1], 6 * (uint64_t)w.page);
	CHECK_EQ(must_get(&w, 1)->n, 2);
	until = gantry_now_ns() + 10000000000u;
	must_be_empty(&w, 1); /* from here it starves */
	snprintf(text, sizeof(text), "starved: flow 1 (%s) holds 6 of 8 pages, flow 2 (%s) 2",
		 ((struct emu_flow *)w.f[0])->peer, ((struct emu_flow *)w.f[1])->peer);
	CHECK(logs_count(text) && strstr(text, "127.0.0.1:"));
	give_all_back(w.f[0], &first);
	pair_arrive(&w.p[0], 100);
	/* Pages are back, the ten seconds are not over; or they are, where we were off the CPU for so long. */
	for (int i = 0; i < 100 && gantry_now_ns() < until; i++) {
		CHECK(is_empty(&w, 1) || gantry_now_ns() >= until);
		CHECK(is_empty(&w, 0) || gantry_now_ns() >= until);
	}
	w.b->ops->describe(w.b, said, sizeof(said));
	CHECK((strstr(said, "starved 1 times") && strstr(said, ", starved;")) || gantry_now_ns() >= until);
	world_close(&w);

	use_params("GANTRY_EMU_SHAPE", "pages", "GANTRY_EMU_RTO", "50ms", "GANTRY_LOG", "info", NULL);
	world_open(&w, 8);
	pair_arrive(&w.p[0], 8 * (uint64_t)w.page);
	first = *must_get(&w, 0);
	pair_arrive(&w.p[1], 3000);
	from = gantry_now_ns();
	must_be_empty(&w, 1);
	give_all_back(w.f[0], &first);
	WAIT_WHILE ((g = receive_all(w.f[1]))->bytes < 0)
		CHECK_EQ(errno, EAGAIN);
	CHECK(gantry_now_ns() >= from + 50000000);
	check_got(w.f[1], &w.p[1], g, 0);
	CHECK_HAS(logs_text(), "has pages again, after ");
	world_close(&w);
}

/* 10. The end of a flow frees its tokens; the end of the binding keeps what is out, and what follows is ordinary. */
static void ends(void)
{
	struct world w;
	struct got first, *g;

	use_params("GANTRY_EMU_SHAPE", "mtu9000", "GANTRY_EMU_RTO", "0", NULL);
	world_open(&w, 8);
	pair_arrive(&w.p[0], 2 * 8948 + 10);
	must_get(&w, 0);
	pair_arrive(&w.p[1], 8948 + 5000);
	must_be_empty(&w, 1);
	emulated_ops.detach(w.f[0]);
	w.f[0] = NULL;
	first = *must_get(&w, 1);

	/* A packet that has begun is finished in its pages; the next one is ordinary. */
	CHECK_EQ(first.bytes, 8948 + 5000);
	emulated_ops.unbind(w.b);
	pair_arrive(&w.p[1], 10000);
	g = must_get(&w, 1);
	CHECK(g->n && g->bytes == 2 * 8948 - 8948 - 5000);
	g = must_get(&w, 1);
	CHECK_EQ(g->n, 0);
	CHECK_EQ(g->bytes, 10000 - (2 * 8948 - 8948 - 5000));
	check_got(w.f[1], &w.p[1], &first, 0); /* still there */
	give_all_back(w.f[1], &first);
	world_close(&(struct world){.m = w.m, .p = {w.p[0], w.p[1]}, .f = {NULL, w.f[1]}});
}

/* 11. Complete when reported, in memory and not in the iov; writing to a page that was given back is found. */
static void complete(void)
{
	struct gantry_device *dev;
	struct devmem_binding *b;
	struct devmem_flow *f;
	struct world w;
	struct got *g;
	uint64_t at;
	void *memory;

	use_params("GANTRY_EMU_SHAPE", "pages", NULL);
	emu_set_poison(1);
	world_open(&w, 4);
	receive_all(w.f[0])->iov[0] = 0x77;
	pair_arrive(&w.p[0], 4 * (uint64_t)w.page);
	g = must_get(&w, 0);
	CHECK_EQ(g->iov[0], 0x77);
	at = g->frags[2].c.frag_offset;
	give_all_back(w.f[0], g);
	CHECK_FILLED(w.m.m.host, w.m.m.size, EMU_POISON);
	w.m.m.host[at + 17] = 1;
	pair_arrive(&w.p[0], 4 * (uint64_t)w.page);
	must_get(&w, 0);
	CHECK_EQ(EMU_COUNTED((struct emu_binding *)w.b, written_after), 1);
	CHECK_HAS(logs_text(), "byte 17 of page ");
	CHECK_EQ(give_one_back(w.f[0], 1) + give_one_back(w.f[0], 1), 1);
	CHECK_EQ(EMU_COUNTED((struct emu_binding *)w.b, bad_returns), 1);
	emu_set_poison(0);

	/* Memory that the CPU cannot write, as far as the NIC knows. */
	CHECK_OK(gantry_device_host(&dev));
	CHECK_OK(dev->ops->alloc(dev, 16 * (size_t)w.page, &memory));
	CHECK_OK(emulated_ops.bind(&(struct devmem_memory){.device = dev, .device_ptr = memory, .size = 16 * w.page},
				   "emu1", &b));
	emulated_ops.detach(w.f[1]);
	w.f[1] = NULL;
	CHECK_OK(emulated_ops.attach(b, w.p[1].rx, &f));
	pump(f, &w.p[1], 300000, UTIL_CONTROL, UTIL_IOV);
	emulated_ops.detach(f);
	emulated_ops.unbind(b);
	CHECK_OK(dev->ops->free(dev, memory));
	gantry_device_close(dev);
	world_close(&w);
}

static int readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0);
}

static void on_alarm(int sig)
{
}

/* An iov that leads nowhere: EFAULT, nothing is consumed, and the pages that were meant for it are free again. */
static void bad_iov(void)
{
	uint8_t control[400];
	struct iovec v = {(void *)8, 100000};
	struct msghdr msg = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	char said[600];
	struct world w;

	use_params("GANTRY_EMU_SHAPE", "pages", "GANTRY_EMU_LINEAR", "1000", NULL);
	world_open(&w, 64);
	pair_arrive(&w.p[0], 50000);
	CHECK(emulated_ops.receive(w.f[0], &msg, MSG_DONTWAIT) == -1 && errno == EFAULT);
	emulated_ops.describe(w.b, said, sizeof(said));
	CHECK(strstr(said, "64 of 64 pages"));
	CHECK_EQ(must_get(&w, 0)->bytes, 50000);
	world_close(&w);
}

/* 12. Ends, errors and readiness as TCP has them; nothing is held back. */
static void like_tcp(void)
{
	struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
	struct sigaction sa = {.sa_handler = on_alarm}, old;
	struct linger reset = {1, 0};
	struct world w;
	struct got *g;

	bad_iov();
	use_params("GANTRY_EMU_SHAPE", "random", "GANTRY_EMU_PLAIN", "300", NULL);
	world_open(&w, 64);
	must_be_empty(&w, 0);
	CHECK(!readable(w.p[0].rx));
	pair_arrive(&w.p[0], 1000);
	while (w.p[0].got < 1000) {
		CHECK(readable(w.p[0].rx));
		g = receive_into(w.f[0], 80, 7, MSG_DONTWAIT | MSG_WAITALL);
		check_got(w.f[0], &w.p[0], g, w.p[0].got);
		w.p[0].got += (uint64_t)g->bytes;
		CHECK(g->bytes <= 7);
	}
	CHECK(!readable(w.p[0].rx));
	must_be_empty(&w, 0);
	CHECK(receive_into(w.f[0], 80, 7, MSG_TRUNC)->bytes == -1 && errno == EOPNOTSUPP);
	CHECK_EQ(receive_into(w.f[0], 80, 0, MSG_DONTWAIT)->bytes, 0);

	fcntl(w.p[0].rx, F_SETFL, 0); /* a blocking receive waits, and a signal ends it */
	sigaction(SIGALRM, &sa, &old);
	setitimer(ITIMER_REAL, &often, NULL);
	g = receive_into(w.f[0], UTIL_CONTROL, 100, 0);
	CHECK(g->bytes == -1 && errno == EINTR);
	setitimer(ITIMER_REAL, &never, NULL);
	sigaction(SIGALRM, &old, NULL);
	fcntl(w.p[0].rx, F_SETFL, O_NONBLOCK);

	pair_arrive(&w.p[0], 10);
	close(w.p[0].tx);
	w.p[0].tx = -1;
	while (w.p[0].got < 1010)
		must_get(&w, 0);
	UNTIL(readable(w.p[0].rx));
	for (int i = 0; i < 3; i++)
		CHECK_EQ(receive_all(w.f[0])->bytes, 0);

	setsockopt(w.p[1].tx, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(w.p[1].tx);
	w.p[1].tx = -1;
	UNTIL(readable(w.p[1].rx));
	CHECK(receive_all(w.f[1])->bytes == -1 && errno == ECONNRESET);
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
	check_invariant(7, "caps", caps, FAULTS(71, 72, 73));
	check_invariant(8, "partial", partial, FAULTS(81, 82, 83));
	check_invariant(9, "starving", starving, FAULTS(91, 92, 93));
	check_invariant(10, "ends", ends, FAULTS(101, 102));
	check_invariant(11, "complete", complete, FAULTS(111, 112, 113));
	check_invariant(12, "like tcp", like_tcp, FAULTS(121, 122));
	return 0;
}
