/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several flows of one binding in threads of their own, tokens given back by another thread: under the thread sanitizer
 * this is also a check that a page is not written while somebody may still read it.
 *
 * And one that hoards: it takes all pages and keeps them for a while; the others stand still, and go on afterwards.
 */
#include "emulated_util.h"

#include "net/emulated/emulated.h"

enum { FLOWS = 4, BYTES = 1500000, PAGES = 128 };

struct lane {
	struct devmem_flow *f;
	struct pair p;
	/* Tokens from the receiver to the one who returns them. */
	pthread_mutex_t lock;
	uint32_t tokens[1 << 16];
	uint32_t put, taken;
	int done;
};
static struct lane lanes[FLOWS];
static uint64_t deadline;

static void *receiver(void *arg)
{
	struct lane *l = arg;

	while (l->p.got < BYTES) {
		struct got *g;

		CHECK(gantry_now_ns() < deadline);
		if (l->p.sent < BYTES)
			pair_send(&l->p, BYTES - l->p.sent < 50000 ? BYTES - l->p.sent : 50000);
		g = receive_into(l->f, UTIL_CONTROL, 100000, MSG_DONTWAIT);
		if (g->bytes < 0) {
			CHECK_EQ(errno, EAGAIN);
			usleep(200);
			continue;
		}
		check_got(l->f, &l->p, g, l->p.got);
		l->p.got += (uint64_t)g->bytes;
		pthread_mutex_lock(&l->lock);
		for (uint32_t i = 0; i < g->n; i++)
			if (!g->frags[i].linear)
				l->tokens[l->put++ % (1 << 16)] = g->frags[i].c.frag_token;
		CHECK(l->put - l->taken <= 1 << 16);
		pthread_mutex_unlock(&l->lock);
	}
	pthread_mutex_lock(&l->lock);
	l->done = 1;
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

/* Gives back for all of them, in small pieces. */
static void *returner(void *arg)
{
	uint64_t returned = 0;
	int busy = FLOWS;

	while (busy) {
		CHECK(gantry_now_ns() < deadline);
		busy = 0;
		for (int i = 0; i < FLOWS; i++) {
			struct lane *l = &lanes[i];
			struct devmem_token t[DEVMEM_MAX_RANGES];
			uint32_t n = 0;

			pthread_mutex_lock(&l->lock);
			while (n < DEVMEM_MAX_RANGES && l->taken != l->put)
				t[n++] = (struct devmem_token){l->tokens[l->taken++ % (1 << 16)], 1};
			busy += !l->done || l->taken != l->put;
			pthread_mutex_unlock(&l->lock);
			if (n)
				CHECK_EQ(emulated_ops.give_back(l->f, t, n), n);
			returned += n;
		}
		usleep(50);
	}
	CHECK(returned > FLOWS * (uint64_t)BYTES / 4096);
	return NULL;
}

static int has_starved(struct devmem_binding *b)
{
	char text[600];

	emulated_ops.describe(b, text, sizeof(text));
	return !strstr(text, "starved 0 times");
}

TEST(flows_in_threads)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct devmem_binding *b;
	pthread_t threads[FLOWS], back;
	struct memory m;
	struct pair hoard;
	struct devmem_flow *hoarder;
	char text[600];

	/* Never starving for long: this is about threads. */
	use_params("GANTRY_EMU_SHAPE", "random", "GANTRY_EMU_LINEAR", "100", "GANTRY_EMU_PLAIN", "50", "GANTRY_EMU_RTO",
		   "1ms", "GANTRY_LOG", "error", NULL);
	emu_set_poison(1);
	deadline = until_hang();
	memory_open(&m, PAGES * page);
	CHECK_OK(emulated_ops.bind(&m.m, "emu0", &b));
	pair_open(&hoard, 99);
	CHECK_OK(emulated_ops.attach(b, hoard.rx, &hoarder));
	while (hoard.sent - hoard.got < 3000 * PAGES)
		if (!pair_send(&hoard, 3000 * PAGES - (hoard.sent - hoard.got)))
			break;
	while (receive_all(hoarder)->bytes > 0)
		;
	CHECK_EQ(errno, EAGAIN);
	for (int i = 0; i < FLOWS; i++) {
		pair_open(&lanes[i].p, (uint32_t)i);
		pthread_mutex_init(&lanes[i].lock, NULL);
		CHECK_OK(emulated_ops.attach(b, lanes[i].p.rx, &lanes[i].f));
		CHECK(!pthread_create(&threads[i], NULL, receiver, &lanes[i]));
	}
	CHECK(!pthread_create(&back, NULL, returner, NULL));
	UNTIL(has_starved(b));
	usleep(20000);
	emulated_ops.detach(hoarder);
	threads_join(threads, FLOWS);
	CHECK(!pthread_join(back, NULL));
	emulated_ops.describe(b, text, sizeof(text));
	printf("%s\n", text);
	CHECK_HAS(text, " 0 bad returns");
	CHECK_HAS(text, " 0 pages written after return");
	for (int i = 0; i < FLOWS; i++) {
		emulated_ops.detach(lanes[i].f);
		pair_close(&lanes[i].p);
	}
	emulated_ops.describe(b, text, sizeof(text));
	CHECK_HAS(text, "128 of 128 pages");
	emulated_ops.unbind(b);
	pair_close(&hoard);
	memory_close(&m);
}
