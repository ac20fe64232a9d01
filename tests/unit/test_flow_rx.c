/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving into device memory, over real TCP and the emulated NIC. A hand-written sender puts headers on the control
 * lane and payload on bulk lanes, in random splits, either of them first. A kernel as NCCL's gathers what the queue
 * describes. Every byte is compared; slots, pages and tokens are all back at the end, also when somebody leaves in the
 * middle.
 */
#include "unpack_util.h"

enum { MESSAGES = SANITIZED ? 36 : 120, HELD = 6, FAR = 24, EAGER = 65536 };
enum kind { DEVICE_SLOT, HOST_SLOT, LL_HOST, LL_DEVICE, KINDS };

struct message {
	enum kind kind;
	size_t size;
	uint32_t tag;
	int said, tested, consumed;
	void *request;
	uint8_t *dst, *expected;
};

struct run {
	struct world w;
	struct message m[MESSAGES];
	int n, posted, done;
	int held[HELD], nheld;
	int lane0; /* of 10 chances, how many it gets */
	size_t max;
	uint64_t refused, descs;
	int slot_of[GANTRY_UNPACK_DEPTH]; /* message + 1 that has it */
};

static int has_slot(const struct message *m)
{
	return m->kind == DEVICE_SLOT || m->kind == HOST_SLOT;
}

static void plan(struct run *r, int n, size_t max)
{
	r->n = n;
	r->max = max;
	for (int i = 0; i < n; i++) {
		struct message *m = &r->m[i];

		m->kind = random_below(3) ? DEVICE_SLOT : (enum kind)random_below(KINDS);
		m->size = random_below(3) ? random_below((uint32_t)max) : random_below(3000);
		m->size = random_below(20) ? m->size : 0;
		m->tag = random_below(2);
		m->expected = malloc(m->size + 1);
		pattern_fill(m->expected, m->size, (uint64_t)i + 1);
	}
}

static void say_message(struct run *r, struct message *m)
{
	if (m->size <= EAGER)
		say_eager(&r->w, m->expected, m->size, m->tag);
	else
		say_bulk(&r->w, m->expected, m->size, m->tag);
	m->said = 1;
}

static void post(struct run *r)
{
	struct message *m = &r->m[r->posted];
	int device = m->kind == DEVICE_SLOT || m->kind == LL_DEVICE;
	uint64_t slot = r->w.u->posted % GANTRY_UNPACK_DEPTH;

	if (r->posted == r->n || r->posted - r->done >= FAR)
		return;
	if (!m->said && m->size <= EAGER && random_below(3) == 0)
		say_message(r, m); /* it comes early */
	if (!m->dst) {
		m->dst = malloc(m->size + 1);
		memset(m->dst, 0xEE, m->size + 1);
	}
	CHECK_OK(tcp_link_irecv_unpack(r->w.l, m->dst, m->size, (int)m->tag, device, !has_slot(m), &m->request));
	if (!m->request && !has_slot(m)) /* no place of the few that LL and LL128 share */
		return;
	if (!m->request) {
		CHECK(r->slot_of[slot] != 0);
		r->refused++;
		return;
	}
	if (has_slot(m)) {
		CHECK_EQ(r->slot_of[slot], 0); /* the one before it was consumed */
		r->slot_of[slot] = r->posted + 1;
	}
	if (!m->said)
		say_message(r, m);
	r->posted++;
}

static void pump(struct run *r)
{
	int lane = (int)random_below(10) < r->lane0 ? 0 : 1 + (int)random_below((uint32_t)r->w.config.nlanes - 1);

	utter(&r->w, lane, random_below(4) ? 1 + random_below(70000) : 1 + random_below(100));
	listen_away(&r->w);
}

static void consume(struct run *r, int k)
{
	struct message *m = &r->m[r->held[k]];

	for (int i = 0; i < GANTRY_UNPACK_DEPTH; i++)
		if (r->slot_of[i] == r->held[k] + 1)
			r->slot_of[i] = 0;
	CHECK_OK(tcp_unpack_consumed(r->w.l, m->request));
	m->consumed = 1;
	free(m->dst);
	r->held[k] = r->held[--r->nheld];
}

/* The oldest receive, like NCCL; 0: not yet. */
static int finish_one(struct run *r)
{
	struct message *m = &r->m[r->done];
	int done = 0, size = -1;

	if (r->done == r->posted)
		return 0;
	CHECK_OK(tcp_link_test(m->request, &done, &size));
	if (!done)
		return 0;
	CHECK_EQ(size, m->size);
	if (has_slot(m)) {
		uint64_t n;

		if (m->kind == HOST_SLOT) /* before the kernel has done anything */
			CHECK_PATTERN(m->dst, m->size, (uint64_t)r->done + 1);
		n = kernel_unpack(r->w.handle, m->dst, m->size);
		CHECK(m->kind == DEVICE_SLOT || n == 0);
		r->descs += n;
	}
	CHECK_PATTERN(m->dst, m->size, (uint64_t)r->done + 1);
	CHECK_EQ(m->dst[m->size], 0xEE);
	if (has_slot(m)) {
		if (r->nheld == HELD)
			consume(r, (int)random_below(HELD));
		r->held[r->nheld++] = r->done;
	} else {
		CHECK_OK(tcp_unpack_consumed(r->w.l, (struct tcp_request *)m->request)); /* NCCL calls it for all */
		free(m->dst);
	}
	r->done++;
	return 1;
}

static void run_all(struct run *r, int until)
{
	while (r->done < until) {
		if (random_below(2))
			post(r);
		for (int i = 0; i < 3; i++)
			pump(r);
		while (finish_one(r))
			;
		if (r->nheld && random_below(4) == 0)
			consume(r, (int)random_below((uint32_t)r->nheld));
	}
}

static void free_messages(struct run *r)
{
	for (int i = 0; i < r->n; i++) {
		if (i >= r->done)
			free(r->m[i].dst);
		free(r->m[i].expected);
	}
}

static struct run *run_open(const char *const *params, int lanes, int lane0, size_t max, int device_rx)
{
	struct run *r = calloc(1, sizeof(*r));

	CHECK(r);
	world_params(params);
	world_open(&r->w, lanes, device_rx);
	r->lane0 = lane0;
	plan(r, MESSAGES, max);
	return r;
}

static void run_close(struct run *r)
{
	free_messages(r);
	world_close(&r->w);
	free(r);
}

static void blind_run(const char *const *params, int lanes, int lane0, size_t max, int device_rx, int blind)
{
	struct run *r = run_open(params, lanes, lane0, max, device_rx);

	if (blind)
		world_blind(&r->w, blind & 1, blind & 2);
	run_all(r, r->n);
	while (r->nheld)
		consume(r, 0);
	CHECK(r->descs > 0);
	world_whole(&r->w);
	run_close(r);
}

static void whole_run(const char *const *params, int lanes, int lane0, size_t max, int device_rx)
{
	blind_run(params, lanes, lane0, max, device_rx, 0);
}

/* ---- shapes ---- */

static void shape(const char *name, const char *linear, const char *plain, size_t max)
{
	const char *params[] = {"GANTRY_EMU_SHAPE", name, "GANTRY_EMU_LINEAR", linear, "GANTRY_EMU_PLAIN", plain, NULL};

	whole_run(params, 1, 5, max, 1);
	whole_run(params, 3, 1, max, 1);
}

TEST_CALL(pages, shape("pages", "0", "0", 400000))
TEST(mtu1500)
{
	shape("mtu1500", "0", "0", 300000);
	shape("mtu1500", "200", "100", 300000);
}
TEST(mtu9000)
{
	shape("mtu9000", "0", "0", 400000);
	shape("mtu9000", "300", "300", 400000);
}
TEST_CALL(odd, shape("odd", "100", "0", 400000))
TEST_CALL(random_cuts, shape("random", "100", "100", 200000))
TEST_CALL(bytes, shape("bytes", "0", "20", 70000))

/* Nothing but ordinary packets; and lanes that carry their own headers. */
TEST(all_plain)
{
	const char *params[] = {"GANTRY_EMU_PLAIN", "1000", NULL};

	whole_run(params, 2, 5, 300000, 1);
	whole_run(NULL, 2, 5, 400000, 0);
}

/* Where the CPU cannot reach the device's memory (1), or the pool (2), the device copies what must be in the buffer. */
TEST(blind)
{
	const char *params[] = {"GANTRY_EMU_LINEAR", "100", "GANTRY_EMU_PLAIN", "100", NULL};

	for (int what = 1; what < 4; what++) {
		blind_run(params, 2, 5, 300000, 1, what);
		blind_run(params, 1, 5, 300000, 0, what);
	}
}

/* So few landing pages that messages must do without. */
TEST(starving)
{
	const char *params[] = {"GANTRY_UNPACK_LANDING", "1048576", "GANTRY_EMU_PLAIN", "900", NULL};

	whole_run(params, 2, 5, 1000000, 1);
	whole_run(params, 1, 5, 1000000, 0);
}

/* So few pages of the NIC that it runs dry, and fewer descriptors than fragments. */
TEST(dry)
{
	const char *params[] = {"GANTRY_UNPACK_POOL", "12582912", "GANTRY_EMU_RTO", "1ms", NULL};
	const char *few[] = {"GANTRY_EMU_SHAPE", "mtu1500", "GANTRY_UNPACK_MAX_FRAGS", "1024", NULL};

	whole_run(params, 2, 5, 1000000, 1);
	whole_run(few, 2, 5, 2500000, 1);
}

/* ---- other hands ---- */

struct hand {
	struct tcp_link *l;
	int stop;
};

static void *other_hand(void *arg)
{
	struct hand *h = arg;

	while (!__atomic_load_n(&h->stop, __ATOMIC_ACQUIRE)) {
		for (int i = h->l->nlanes - 1; i > 0; i--)
			tcp_lane_rx(&h->l->lanes[i], 0);
		sched_yield();
	}
	return NULL;
}

TEST(threads)
{
	struct run *r = run_open(NULL, 3, 3, 600000, 1);
	struct hand h = {.l = r->w.l};
	pthread_t t[2];

	threads_start(t, 2, other_hand, &h, 0);
	run_all(r, r->n);
	__atomic_store_n(&h.stop, 1, __ATOMIC_RELEASE);
	threads_join(t, 2);
	while (r->nheld)
		consume(r, 0);
	tcp_unpack_flush(r->w.l);
	world_whole(&r->w);
	run_close(r);
}

/* ---- the middle ---- */

TEST(close_midway)
{
	for (int at = 1; at < MESSAGES / 2; at += 7) {
		struct run *r = run_open(NULL, 2, 5, 600000, 1);

		run_all(r, at);
		for (int i = 0; i < 2 * at; i++) {
			post(r);
			pump(r);
			tcp_link_progress(r->w.l);
		}
		tcp_link_close_rx(r->w.l);
		CHECK(!r->w.l->devmem->unpack);
		CHECK_EQ(r->w.pool->nfree, r->w.pool->npages);
		/* The peer's bytes go on coming for a while; somebody else progresses the link. */
		while (!all_said(&r->w)) {
			pump(r);
			tcp_link_service(r->w.l, 0);
		}
		for (int i = 0; i < 50; i++)
			tcp_link_service(r->w.l, 1);
		CHECK(!tcp_link_failed(r->w.l));
		world_whole(&r->w);
		for (int i = 0; i < r->nheld; i++)
			free(r->m[r->held[i]].dst);
		run_close(r);
	}
}

TEST(peer_dies)
{
	struct run *r = run_open(NULL, 2, 5, 600000, 1);
	gantry_result result = GANTRY_OK;
	int done = 0;

	run_all(r, 20);
	while (r->nheld) /* a slot that is held refuses the receive that wants it */
		consume(r, 0);
	for (int tries = 0; tries < 100 && (r->posted < r->done + 5 || all_said(&r->w)); tries++)
		post(r);
	CHECK(!all_said(&r->w));
	for (int i = 0; i < r->w.config.nlanes; i++) {
		utter(&r->w, i, 5000);
		close(r->w.raw[i]);
		r->w.raw[i] = -1;
	}
	/* Those that came whole are still received. */
	while (result == GANTRY_OK) {
		CHECK(r->done < r->posted);
		result = tcp_link_test(r->m[r->done].request, &done, NULL);
		if (done && has_slot(&r->m[r->done])) {
			kernel_unpack(r->w.handle, r->m[r->done].dst, r->m[r->done].size);
			CHECK_OK(tcp_unpack_consumed(r->w.l, r->m[r->done].request));
		}
		if (done)
			free(r->m[r->done++].dst);
	}
	CHECK_EQ(result, GANTRY_ERR_PEER_LOST);
	tcp_link_close_rx(r->w.l);
	CHECK_EQ(r->w.pool->nfree, r->w.pool->npages);
	run_close(r);
}

void tests_begin(void)
{
	tests_apart(0);
}
