/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors of a message: merging, landing, a full table, pages that are not free, a device the CPU cannot touch.
 */
#include "device/device.h"
#include "devmem_util.h"
#include "fixtures/cuda/fake_load.h"
#include "net/devmem_rx.h"

enum { MAX = 1024, POOL = 8 << 20, MESSAGE = 4 << 20 };

static struct {
	struct gantry_device *dev;
	struct devmem_pool *pool;
	struct devmem_part *part;
	struct fake_flow *flow;
	struct devmem_tokens tokens;
	struct gantry_unpack_desc descs[MAX];
	struct devmem_table t;
	uint8_t *dst; /* the message's destination */
} w;

static void set_up(struct gantry_device *dev, const char *memory, const char *landing, uint32_t max, uint32_t coalesce)
{
	fake_params("8M", landing, memory, "1");
	w.dev = dev;
	CHECK_OK(devmem_pool_get_from(dev, &fake_source, &w.pool));
	CHECK_OK(devmem_pool_part(w.pool, "eth0", &w.part));
	w.flow = fake_flow_new(w.part->binding);
	devmem_tokens_init(&w.tokens, &w.flow->base);
	CHECK_OK(devmem_table_init(&w.t, w.pool, w.descs, max, coalesce));
	w.dst = malloc(MESSAGE);
	memset(w.dst, 0x11, MESSAGE);
}

static void tear_down(void)
{
	devmem_table_free(&w.t);
	CHECK_OK(devmem_tokens_flush(&w.tokens));
	CHECK_EQ(w.flow->out, 0);
	CHECK_EQ(pool_is_whole(w.pool), 1);
	devmem_tokens_free(&w.tokens);
	free(w.flow);
	free(w.dst);
	devmem_pool_put(w.pool);
}

/* Bytes [dst_off, + len) of the message come at `offset` of the pool; the caller's own use ends at once. */
static gantry_result arrive(uint64_t offset, uint32_t len, uint64_t dst_off)
{
	struct devmem_frag f = {.offset = offset, .len = len, .where = DEVMEM_IN_POOL};
	gantry_result r;

	pattern_fill_from(w.part->binding->memory.device_ptr + offset, len, 0, dst_off);
	f.token = fake_token(w.flow, (uint32_t)(offset / (uint64_t)sysconf(_SC_PAGESIZE)));
	CHECK_OK(devmem_tokens_take(&w.tokens, &(uint32_t){f.token}, 1));
	r = devmem_table_add(&w.t, PIECE(&w.tokens, &f, w.part->base, NULL, 0, len, dst_off));
	if (f.token)
		CHECK_OK(devmem_tokens_drop(&w.tokens, &f.token, 1));
	CHECK_OK(devmem_tokens_flush(&w.tokens));
	return r;
}

static gantry_result arrive_host(uint32_t len, uint64_t dst_off)
{
	FREED uint8_t *data = malloc(len);
	gantry_result r;

	pattern_fill_from(data, len, 0, dst_off);
	r = devmem_table_add_host(&w.t, data, len, dst_off);
	memset(data, 0x77, len); /* it may change */
	return r;
}

/* The naive unpack kernel. */
static void unpack_and_compare(uint64_t total)
{
	uint64_t sum = 0;

	CHECK_OK(devmem_table_ready(&w.t));
	for (uint32_t i = 0; i < w.t.n; i++) {
		const struct gantry_unpack_desc *d = &w.descs[i];

		CHECK(d->len > 0 && d->src_off + (uint64_t)d->len <= w.pool->memory.size);
		CHECK(d->dst_off + d->len <= total);
		memcpy(w.dst + d->dst_off, w.pool->memory.device_ptr + d->src_off, d->len);
		sum += d->len;
	}
	CHECK(sum <= total);
	CHECK_PATTERN(w.dst, total, 0);
}

static void check_message(uint64_t total)
{
	unpack_and_compare(total);
	CHECK_OK(devmem_table_release(&w.t));
}

static void neighbours_merge(void)
{
	CHECK_OK(devmem_table_begin(&w.t, 20000, NULL));
	CHECK_OK(arrive(0, 3000, 0));
	CHECK_OK(arrive(3000, 1000, 3000));
	CHECK_EQ(w.t.n, 1);
	CHECK_EQ(w.descs[0].len, 4000);
	CHECK_OK(arrive(4000, 96, 4000));
	CHECK_OK(arrive(4096, 4096, 4096)); /* a page each, so that every warp has one */
	CHECK_OK(arrive(8192, 1000, 8192));
	CHECK_EQ(w.t.n, 3);
	CHECK_EQ(w.descs[0].len, 4096);
	CHECK_EQ(w.descs[1].len, 4096);
	CHECK_EQ(w.descs[2].len, 1000);
	CHECK_EQ(w.flow->out, 5);		    /* each has its token */
	CHECK_OK(arrive(9192, 808, 15000));	    /* next in the pool, not in the message */
	CHECK_OK(arrive(20000 + 480, 1000, 15808)); /* and the other way round */
	CHECK_EQ(w.t.n, 5);
	CHECK_EQ(devmem_table_ready(&w.t), GANTRY_AGAIN); /* bytes are missing */
	CHECK_OK(arrive(40960, 3192, 16808));
	CHECK_OK(arrive(49152, 2904, 9192));
	CHECK_OK(arrive(53248, 2904, 12096));
	CHECK_EQ(w.t.n, 8);
	unpack_and_compare(20000);
	CHECK_EQ(w.flow->out, 10);
	CHECK_OK(devmem_table_release(&w.t));
	CHECK_OK(devmem_tokens_flush(&w.tokens));
	CHECK_EQ(w.flow->out, 0);
}

/* A fragment in two parts: the table is a user besides the caller until the last bytes, whose use it takes over. One
 * fragment of two messages has one use of each. */
static void the_use_is_handed_over(void)
{
	static struct gantry_unpack_desc descs[MAX];
	struct devmem_frag f = {.offset = 0, .len = 4000, .where = DEVMEM_IN_POOL};
	struct devmem_table other = {0};
	uint32_t token = f.token = fake_token(w.flow, 0);

	CHECK_OK(devmem_table_init(&other, w.pool, descs, MAX, 128));
	CHECK_OK(devmem_tokens_take(&w.tokens, &token, 1));
	CHECK_OK(devmem_table_begin(&w.t, 3000, NULL));
	CHECK_OK(devmem_table_begin(&other, 1000, NULL));
	CHECK_OK(devmem_table_add(&w.t, PIECE(&w.tokens, &f, w.part->base, NULL, 0, 1000, 0)));
	CHECK_EQ(f.token, token);
	CHECK_EQ(w.tokens.users[token], 2);
	CHECK_OK(devmem_table_add(&w.t, PIECE(&w.tokens, &f, w.part->base, NULL, 1000, 2000, 1000)));
	CHECK_EQ(w.tokens.users[token], 2);
	CHECK_OK(devmem_table_add(&other, PIECE(&w.tokens, &f, w.part->base, NULL, 3000, 1000, 0)));
	CHECK_EQ(f.token, 0);
	CHECK_EQ(w.tokens.users[token], 2);
	CHECK_OK(devmem_table_release(&w.t));
	CHECK_EQ(w.tokens.users[token], 1);
	CHECK_OK(devmem_table_release(&other));
	CHECK_EQ(w.tokens.users[token], DEVMEM_QUEUED);
	CHECK_OK(devmem_tokens_flush(&w.tokens));
	CHECK_EQ(w.flow->out, 0);
	/* Both parts of one message: it has its use, and the caller keeps his own. */
	f.token = token = fake_token(w.flow, 0);
	CHECK_OK(devmem_tokens_take(&w.tokens, &token, 1));
	CHECK_OK(devmem_table_begin(&w.t, 4000, NULL));
	CHECK_OK(devmem_table_add(&w.t, PIECE(&w.tokens, &f, w.part->base, NULL, 0, 1000, 0)));
	CHECK_OK(devmem_table_add(&w.t, PIECE(&w.tokens, &f, w.part->base, NULL, 1000, 3000, 1000)));
	CHECK_EQ(f.token, token);
	CHECK_EQ(w.tokens.users[token], 2);
	CHECK_OK(devmem_tokens_drop(&w.tokens, &token, 1));
	CHECK_OK(devmem_table_release(&w.t));
	CHECK_OK(devmem_tokens_flush(&w.tokens));
	CHECK_EQ(w.flow->out, 0);
	devmem_table_free(&other);
}

/* The last bytes of the parts and landing page 0 touch; they are of different kinds all the same. */
static void border_of_landing(void)
{
	CHECK_OK(devmem_table_begin(&w.t, 8192, NULL));
	CHECK_OK(arrive(POOL - 4096, 4096, 0));
	CHECK_OK(arrive_host(4096, 4096));
	CHECK_EQ(devmem_pool_page_offset(w.pool, 0), POOL);
	CHECK_EQ(w.t.n, 2);
	check_message(8192);
}

static void small_ones_land(void)
{
	CHECK_OK(devmem_table_begin(&w.t, 1000, NULL));
	for (uint32_t i = 0; i < 10; i++) {
		CHECK_OK(arrive(4096 * i, 100, 100 * i));
		CHECK_EQ(w.flow->out, 0); /* copied: its page is free again */
	}
	CHECK_EQ(w.t.n, 1);
	CHECK_EQ(w.t.landed_bytes, 1000 + 4096);
	check_message(1000);
	/* Across a page of the message, and in no order. */
	CHECK_OK(devmem_table_begin(&w.t, 4200, NULL));
	CHECK_OK(arrive(0, 100, 4050));
	CHECK_OK(arrive_host(4050, 0));
	CHECK_OK(arrive(9000, 50, 4150));
	check_message(4200);
}

static void linear_and_part_of_a_fragment(void)
{
	uint8_t buffer[300];
	struct devmem_frag f = {.offset = 100, .len = 200, .where = DEVMEM_LINEAR};

	CHECK_OK(devmem_table_begin(&w.t, 150, NULL));
	pattern_fill(buffer + 100 + 20, 150, 0);
	CHECK_OK(devmem_table_add(&w.t, PIECE(NULL, &f, 0, buffer, 20, 150, 0)));
	check_message(150);
	CHECK_OK(devmem_table_begin(&w.t, 0, NULL));
	CHECK_OK(devmem_table_ready(&w.t));
	CHECK_OK(devmem_table_release(&w.t));
}

static void what_cannot_be(void)
{
	struct devmem_frag f = {.offset = 0, .len = 100, .token = 1, .where = DEVMEM_IN_POOL};
	uint8_t byte = 0;

	CHECK_EQ(devmem_table_begin(&w.t, GANTRY_UNPACK_MAX_SLICE + 1, NULL), GANTRY_ERR_SIZE);
	CHECK_OK(devmem_table_begin(&w.t, 50, NULL));
	CHECK_EQ(devmem_table_begin(&w.t, 50, NULL), GANTRY_ERR_INTERNAL);
	CHECK_EQ(devmem_table_add_host(&w.t, &byte, 1, 50), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(devmem_table_add_host(&w.t, &byte, 1, UINT64_MAX), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(devmem_table_add_host(&w.t, &byte, UINT64_MAX, 1), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(devmem_table_add(&w.t, PIECE(&w.tokens, &f, 0, NULL, 0, 100, 0)), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(devmem_table_add(&w.t, PIECE(&w.tokens, &f, 0, NULL, 99, 2, 0)), GANTRY_ERR_INVALID);
	CHECK_EQ(devmem_table_add(&w.t, PIECE(&w.tokens, &f, 0, NULL, 101, 0, 0)), GANTRY_ERR_INVALID);
	CHECK_EQ(devmem_table_add(&w.t, PIECE(&w.tokens, &f, POOL - 99, NULL, 0, 50, 0)), GANTRY_ERR_INVALID);
	CHECK_EQ(devmem_table_add(&w.t, PIECE(&w.tokens, &f, UINT64_MAX - 10, NULL, 0, 50, 0)), GANTRY_ERR_INVALID);
	f.offset = UINT64_MAX - 10;
	CHECK_EQ(devmem_table_add(&w.t, PIECE(&w.tokens, &f, 0, NULL, 0, 50, 0)), GANTRY_ERR_INVALID);
	f.offset = (uint64_t)1 << 32;
	CHECK_EQ(devmem_table_add(&w.t, PIECE(&w.tokens, &f, 0, NULL, 0, 50, 0)), GANTRY_ERR_INVALID);
	CHECK_OK(devmem_table_release(&w.t));
	CHECK_OK(devmem_table_begin(&w.t, 200, NULL));
	f.offset = 0;
	f.len = 200; /* nobody has this token */
	CHECK_EQ(devmem_table_add(&w.t, PIECE(&w.tokens, &f, 0, NULL, 0, 199, 0)), GANTRY_ERR_INTERNAL);
	CHECK_EQ(w.t.n, 0);
	CHECK_OK(devmem_table_release(&w.t));
}

/* 4 MiB in fragments of 1448 bytes, backwards, so that nothing merges: more of them than entries. */
static void deliver_backwards(uint64_t total, uint64_t *at)
{
	while (*at < total) {
		uint64_t left = total - *at;
		uint32_t len = (uint32_t)(left < 1448 ? left : 1448);
		gantry_result r = arrive(*at / 1448 * 2048, len, total - *at - len);

		if (r == GANTRY_AGAIN)
			return;
		CHECK_OK(r);
		*at += len;
	}
}

static void a_full_table(int can_copy)
{
	uint64_t at = 0;

	CHECK_OK(devmem_table_begin(&w.t, MESSAGE, NULL));
	deliver_backwards(MESSAGE, &at);
	CHECK_EQ(at, MESSAGE);
	CHECK(w.t.compact);
	CHECK(w.t.n <= MAX);
	if (can_copy)
		CHECK_EQ(w.flow->out, 0); /* all is copied */
	else
		CHECK_EQ(w.flow->out, (MESSAGE + 1447) / 1448); /* copies may still be reading */
}

static void no_page_is_free(void)
{
	uint32_t pages[2048], few = 1024;
	uint64_t at = 0, compacted = w.t.compacted;

	CHECK_EQ(w.pool->npages, 2048);
	CHECK_EQ(devmem_pool_take(w.pool, 2048, pages), 0);
	CHECK_OK(devmem_table_begin(&w.t, MESSAGE, NULL));
	CHECK_EQ(arrive_host(100, 0), GANTRY_AGAIN);
	CHECK_EQ(w.t.n, 0);
	CHECK_EQ(w.t.added, 0);
	/* Small fragments can be described; a table that is full needs all pages. */
	CHECK_OK(arrive(POOL - 4096, 100, MESSAGE - 100));
	CHECK_EQ(w.t.n, 1);
	CHECK_OK(devmem_table_release(&w.t));
	CHECK_OK(devmem_table_begin(&w.t, MESSAGE, NULL));
	deliver_backwards(MESSAGE, &at);
	CHECK_EQ(w.t.n, MAX);
	CHECK_EQ(at, MAX * 1448);
	devmem_pool_give(w.pool, pages, few - 1);
	CHECK_EQ(arrive(at / 1448 * 2048, 1448, MESSAGE - at - 1448), GANTRY_AGAIN);
	CHECK_EQ(w.pool->nfree, few - 1); /* none or all */
	devmem_pool_give(w.pool, pages + few - 1, 1);
	deliver_backwards(MESSAGE, &at);
	CHECK_EQ(at, MESSAGE);
	CHECK_EQ(w.t.compacted, compacted + 1);
	check_message(MESSAGE);
	devmem_pool_give(w.pool, pages + few, few);
}

/* Where the destination is known nobody waits for pages. */
static void directly(int device_only)
{
	uint32_t pages[2048];
	uint64_t at = 0;

	CHECK_EQ(devmem_pool_take(w.pool, 2048, pages), 0);
	memset(w.dst, 0x11, MESSAGE);
	CHECK_OK(devmem_table_begin(&w.t, MESSAGE, w.dst));
	CHECK_OK(arrive_host(1448, MESSAGE - 1448));
	at = 1448;
	devmem_pool_give(w.pool, pages, 2048);
	deliver_backwards(MESSAGE, &at); /* pages are there again, but bytes are missing in them */
	CHECK_EQ(at, MESSAGE);
	CHECK_EQ(w.t.n, MAX);
	CHECK(!w.t.compact);
	CHECK_EQ(w.t.direct_bytes, MESSAGE - MAX * 1448);
	CHECK_EQ(w.flow->out, MAX); /* the others have been copied, whoever copied them */
	if (device_only)
		CHECK_EQ(w.t.landed_bytes, 0);
	check_message(MESSAGE);
}

/* Bytes that a source reports while its copies to the pool are under way: described at once, ready when they are over.
 */
static void late(struct fake_cuda *fake)
{
	w.part->binding->late = 1;
	for (int i = 0; i < 2; i++) {
		uint8_t *page = w.pool->memory.device_ptr + w.part->base;

		CHECK_OK(devmem_table_begin(&w.t, 5000, NULL));
		CHECK_OK(w.dev->ops->queue_copy(w.dev, GANTRY_COPY_IN, page + 8192, page, 64)); /* as receive does */
		CHECK_OK(arrive(0, 4096, 0));
		CHECK_OK(arrive(4096, 904, 4096));
		CHECK_EQ(w.t.n, 2);
		CHECK_EQ(devmem_table_ready(&w.t), GANTRY_AGAIN);
		*fake->held_word = fake->held_value;
		check_message(5000);
	}
	w.part->binding->late = 0;
}

static void on_a_gpu(void)
{
	struct gantry_device *gpu;
	struct fake_cuda *fake;

	FAKE_OPEN(fake);
	CHECK_OK(gantry_device_cuda(0, &gpu));
	set_up(gpu, "device", "8M", MAX, 128);
	CHECK(w.pool->memory.host == NULL);
	directly(1);
	neighbours_merge();
	CHECK_OK(devmem_table_begin(&w.t, 9000, NULL));
	CHECK_OK(arrive(0, 100, 0)); /* small, but describing it is cheaper than a copy by the device */
	CHECK_EQ(w.t.landed_bytes, 0);
	fake->hold = 1;
	CHECK_OK(arrive_host(8900, 100));
	CHECK_EQ(devmem_table_ready(&w.t), GANTRY_AGAIN);
	CHECK_EQ(devmem_table_ready(&w.t), GANTRY_AGAIN);
	*fake->held_word = fake->held_value; /* the copy is over */
	check_message(9000);
	late(fake);
	a_full_table(0);
	CHECK_EQ(devmem_table_ready(&w.t), GANTRY_AGAIN);
	*fake->held_word = fake->held_value;
	fake->hold = 0;
	check_message(MESSAGE);
	tear_down();
	gantry_device_close(gpu);
	CHECK_EQ(fake->allocations + fake->pinned + fake->streams + fake->events + fake->contexts, 0);
}

int main(void)
{
	struct gantry_device *host;

	CHECK_OK(gantry_device_host(&host));
	set_up(host, "mapped", "8M", MAX, 128);
	RUN(neighbours_merge());
	RUN(the_use_is_handed_over());
	RUN(border_of_landing());
	RUN(small_ones_land());
	RUN(linear_and_part_of_a_fragment());
	RUN(what_cannot_be());
	RUN(a_full_table(1));
	RUN(check_message(MESSAGE));
	RUN(no_page_is_free());
	RUN(directly(0));
	/* Ended in the middle: everything goes back. */
	CHECK_OK(devmem_table_begin(&w.t, MESSAGE, NULL));
	CHECK_OK(arrive(0, 4096, 4096));
	CHECK_OK(arrive_host(100, 0));
	tear_down();
	RUN(on_a_gpu());
	gantry_device_close(host);
	return 0;
}
