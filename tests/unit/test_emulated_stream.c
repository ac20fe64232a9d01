/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC as others use it: every shape, with linear and ordinary data in between, small and large buffers, in
 * memory that the CPU can write and in memory that it cannot. The bytes are those that were sent. How they are cut
 * depends on the seed and on the flow's number alone.
 */
#include "emulated_util.h"

#include "device/device.h"
#include "net/emulated/emulated.h"

static const char *const shapes[] = {"pages", "mtu1500", "mtu9000", "odd", "random", "bytes"};

static void stream(const char *shape, const char *linear, const char *plain, uint64_t bytes, int mirrored)
{
	static const size_t controls[] = {UTIL_CONTROL, 40, 120, 1000}, iovs[] = {UTIL_IOV, 5000, 1, 9000};
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct gantry_device *dev;
	struct devmem_binding *b;
	struct devmem_flow *f;
	struct memory m;
	struct pair p;
	char text[600];

	use_params("GANTRY_EMU_SHAPE", shape, "GANTRY_EMU_LINEAR", linear, "GANTRY_EMU_PLAIN", plain, NULL);
	memory_open(&m, 300 * page);
	CHECK_OK(gantry_device_host(&dev));
	if (mirrored) /* the CPU cannot write it, as far as the NIC knows */
		m.m = (struct devmem_memory){.device = dev, .device_ptr = m.m.host, .size = m.m.size};
	pair_open(&p, 7);
	CHECK_OK(emulated_ops.bind(&m.m, "emu0", &b));
	CHECK_OK(emulated_ops.attach(b, p.rx, &f));
	pump(f, &p, bytes, UTIL_CONTROL, UTIL_IOV);
	for (int i = 0; i < 16; i++)
		pump(f, &p, iovs[i % 4] == 1 ? 50 : bytes / 16, controls[i / 4], iovs[i % 4]);
	emulated_ops.describe(b, text, sizeof(text));
	CHECK_HAS(text, shape);
	CHECK_HAS(text, " 0 bad returns, starved 0 times, 0 pages written");
	emulated_ops.detach(f);
	emulated_ops.describe(b, text, sizeof(text));
	CHECK_HAS(text, "300 of 300 pages");
	emulated_ops.unbind(b);
	gantry_device_close(dev);
	m.m.host = m.m.device_ptr;
	pair_close(&p);
	memory_close(&m);
}

/* What the control messages of a stream say, as one number. */
static uint64_t cut(const char *seed, uint32_t before)
{
	struct devmem_binding *b;
	struct devmem_flow *f, *others = NULL;
	uint64_t sum = 0;
	struct memory m;
	struct pair p;

	use_params("GANTRY_EMU_SHAPE", "random", "GANTRY_EMU_PLAIN", "100", "GANTRY_EMU_SEED", seed, NULL);
	memory_open(&m, 3000 * (uint64_t)sysconf(_SC_PAGESIZE));
	pair_open(&p, 7);
	CHECK_OK(emulated_ops.bind(&m.m, "emu0", &b));
	for (uint32_t i = 0; i < before; i++) { /* so that this one has another number */
		CHECK_OK(emulated_ops.attach(b, p.rx, &others));
		emulated_ops.detach(others);
	}
	CHECK_OK(emulated_ops.attach(b, p.rx, &f));
	pair_arrive(&p, 500000);
	while (p.got < 500000) {
		struct got *g = receive_all(f);

		check_got(f, &p, g, p.got);
		p.got += (uint64_t)g->bytes;
		sum = sum * 31 + (uint64_t)g->bytes;
		for (uint32_t i = 0; i < g->n; i++)
			sum = sum * 31 + g->frags[i].c.frag_offset + g->frags[i].c.frag_size;
	}
	emulated_ops.detach(f);
	emulated_ops.unbind(b);
	pair_close(&p);
	memory_close(&m);
	return sum;
}

TEST(streams)
{
	emu_set_poison(1);
	for (int i = 0; i < 12; i++) {
		const char *shape = shapes[i % 6];
		uint64_t bytes = (i % 6 == 5 ? 20000 : 500000) / (i < 6 ? 1 : 8); /* each receive waits for a copy */

		CASE("%s", shape);
		stream(shape, "0", "0", bytes, i / 6);
		stream(shape, "300", "0", bytes, i / 6);
		stream(shape, "0", "300", bytes, i / 6);
		stream(shape, "500", "500", bytes, i / 6);
		stream(shape, "0", "1000", bytes, i / 6);
	}
	CHECK(cut("1", 0) == cut("1", 0));
	CHECK(cut("1", 0) != cut("2", 0));
	CHECK(cut("1", 0) != cut("1", 1));
	emu_set_poison(0);
}

/* ---- memory that the CPU cannot write, and pages that come back in an order of chance ---- */

enum { FLOWS = 3, HELD = 4096, RECEIVES = SANITIZED ? 100 : 300 };

struct mirrored {
	struct gantry_device *dev;
	struct memory m;
	struct devmem_binding *b;
	struct pair p[FLOWS];
	struct devmem_flow *f[FLOWS];
	uint32_t tokens[FLOWS][HELD], n[FLOWS]; /* that are out */
	uint32_t page[FLOWS][HELD];
	uint64_t random;
};

static void mirrored_open(struct mirrored *w, const char *shape, uint32_t pages)
{
	*w = (struct mirrored){.random = 5};
	use_params("GANTRY_EMU_SHAPE", shape, NULL);
	memory_open(&w->m, pages * (uint64_t)sysconf(_SC_PAGESIZE));
	CHECK_OK(gantry_device_host(&w->dev));
	w->m.m = (struct devmem_memory){.device = w->dev, .device_ptr = w->m.m.host, .size = w->m.m.size};
	CHECK_OK(emulated_ops.bind(&w->m.m, "emu0", &w->b));
	for (uint32_t i = 0; i < FLOWS; i++) {
		pair_open(&w->p[i], i);
		CHECK_OK(emulated_ops.attach(w->b, w->p[i].rx, &w->f[i]));
	}
}

static void mirrored_close(struct mirrored *w)
{
	for (uint32_t i = 0; i < FLOWS; i++) {
		emulated_ops.detach(w->f[i]);
		pair_close(&w->p[i]);
	}
	emulated_ops.unbind(w->b);
	gantry_device_close(w->dev);
	w->m.m.host = w->m.m.device_ptr;
	memory_close(&w->m);
}

/* All is there at once, so it is one receive. */
static void mirrored_receive(struct mirrored *w, uint32_t i, uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct pair *p = &w->p[i];
	struct got *g;

	pair_arrive(p, bytes);
	g = receive_all(w->f[i]);
	check_got(w->f[i], p, g, p->got);
	CHECK_EQ(g->bytes, bytes);
	p->got += bytes;
	for (uint32_t k = 0; k < g->n; k++) {
		w->page[i][w->n[i]] = (uint32_t)(g->frags[k].c.frag_offset / page);
		w->tokens[i][w->n[i]++] = g->frags[k].c.frag_token;
	}
}

/* Gives one back, and says which page that was. */
static uint32_t mirrored_give(struct mirrored *w, uint32_t i)
{
	uint32_t k = (uint32_t)(emu_random(&w->random) % w->n[i]), page = w->page[i][k], last = --w->n[i];

	CHECK_EQ(give_one_back(w->f[i], w->tokens[i][k]), 1);
	w->tokens[i][k] = w->tokens[i][last];
	w->page[i][k] = w->page[i][last];
	return page;
}

/* Pages of a receive that follow each other are one copy, and nearly always all do: also when those that come back do
 * so one here, one there. */
static void few_copies(uint32_t flows, uint32_t most_out)
{
	static struct mirrored w;
	const struct emu_counts *c;
	char text[600], copies[60];

	mirrored_open(&w, "mtu9000", 4096);
	for (uint32_t round = 0; round < RECEIVES; round++) {
		uint32_t i = round % flows;

		mirrored_receive(&w, i, 65536);
		while (w.n[i] > most_out)
			mirrored_give(&w, i);
	}
	c = &gantry_container(w.b, struct emu_binding, pub)->counts;
	CHECK_EQ(c->receives, RECEIVES);
	CHECK(c->copies >= RECEIVES);
	if (c->copies > 2 * RECEIVES)
		TEST_FAIL("%u flows hold %u fragments: %" PRIu64 " copies of %d receives", flows, most_out, c->copies,
			  RECEIVES);
	emulated_ops.describe(w.b, text, sizeof(text));
	snprintf(copies, sizeof(copies), "%d bytes in pages (%" PRIu64 " copies)", RECEIVES * 65536, c->copies);
	CHECK_HAS(text, copies);
	mirrored_close(&w);
}
TEST_CALL(few_copies_of_10, few_copies(1, 10))
TEST_CALL(few_copies_of_60, few_copies(1, 60))
TEST_CALL(few_copies_of_flows, few_copies(FLOWS, 200))

/* No page is free but a few: those are found, wherever they are, the last and smaller group included. */
TEST(nearly_empty)
{
	enum { PAGES = 2 * EMU_GROUP + 2 };
	static struct mirrored w;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint8_t out[PAGES] = {0};
	char text[600];

	mirrored_open(&w, "pages", PAGES);
	for (uint32_t i = 0; i < FLOWS; i++)
		mirrored_receive(&w, i, (i ? 40 : PAGES - 80) * page);
	for (uint32_t i = 0; i < FLOWS; i++)
		for (uint32_t k = 0; k < w.n[i]; k++) {
			CHECK(w.page[i][k] < PAGES && !out[w.page[i][k]]);
			out[w.page[i][k]] = 1;
		}
	CHECK(!memchr(out, 0, sizeof(out)));
	for (uint32_t round = 0; round < 500; round++) {
		uint32_t i = round % FLOWS, to = (uint32_t)(emu_random(&w.random) % FLOWS), n = 1 + round % 3;

		n = n < w.n[i] ? n : w.n[i];
		if (!n)
			continue;
		for (uint32_t k = 0; k < n; k++)
			out[mirrored_give(&w, i)] = 0;
		mirrored_receive(&w, to, n * page);
		for (uint32_t k = w.n[to] - n; k < w.n[to]; k++) {
			CHECK(!out[w.page[to][k]]);
			out[w.page[to][k]] = 1;
		}
	}
	emulated_ops.describe(w.b, text, sizeof(text));
	CHECK_HAS(text, " 0 of 130 pages");
	CHECK_HAS(text, "starved 0 times");
	mirrored_close(&w);
}

/* What bind and attach refuse. */
TEST(refusals)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct devmem_binding *b = NULL;
	struct devmem_flow *f = NULL;
	struct memory m;
	int fds[2];

	use_params("GANTRY_EMU_SHAPE", "mtu9000", NULL);
	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null");
	memory_open(&m, 2 * page);
	m.m.size = 2 * page - 1;
	CHECK_EQ(emulated_ops.bind(&m.m, "emu0", &b), GANTRY_ERR_INVALID);
	m.m.size = 0;
	CHECK_EQ(emulated_ops.bind(&m.m, "emu0", &b), GANTRY_ERR_INVALID);
	m.m.size = 2 * page; /* a packet needs three pages */
	CHECK_EQ(emulated_ops.bind(&m.m, "emu0", &b), GANTRY_ERR_CONFIG);
	CHECK(!b);
	memory_close(&m);
	memory_open(&m, 4 * page);
	CHECK_OK(emulated_ops.bind(&m.m, "emu0", &b));
	CHECK_EQ(emulated_ops.attach(b, -1, &f), GANTRY_ERR_INVALID);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	CHECK_EQ(emulated_ops.attach(b, fds[0], &f), GANTRY_ERR_INVALID);
	close(fds[0]);
	close(fds[1]);
	emulated_ops.unbind(b);
	emulated_ops.unbind(NULL);
	emulated_ops.detach(NULL);
	memory_close(&m);
}
