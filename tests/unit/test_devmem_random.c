/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From control messages to the message, at random: messages are dealt over lanes, each lane's stream is cut into
 * fragments of some shape that lie anywhere in the pool, some bytes come through host memory, and lanes are read in any
 * order. What the descriptors say is then copied by a loop and compared byte by byte. Pages are poisoned when their
 * last token is back, so one that is given back too early shows.
 */
#include "device/device.h"
#include "devmem_util.h"
#include "net/devmem_rx.h"

enum { LANES = 4, MESSAGES = 4, SEGMENTS = 4096, BUFFER = 65536, MAX = 2048, BATCH = 64 };

struct segment {
	uint32_t message, len;
	uint64_t dst_off;
};

struct lane {
	struct fake_flow *flow;
	struct devmem_tokens tokens;
	struct segment segments[SEGMENTS];
	uint32_t n, at, used; /* segments; the one that comes next; bytes of it that have come */
	uint64_t place, room; /* in the pool: the rest of the page that it has begun */
};

struct message {
	struct devmem_table table;
	struct gantry_unpack_desc descs[MAX];
	uint64_t size, seed;
	uint8_t *direct;
};

static struct {
	struct devmem_pool *pool;
	struct devmem_part *part;
	struct lane lanes[LANES];
	struct message messages[MESSAGES];
	uint32_t nlanes, nmessages, shape, linear, plain;
	uint32_t hostages[4096], nhostages;
	uint8_t buffer[BUFFER], control[DEVMEM_CONTROL_SIZE];
	struct devmem_list list;
	uint64_t again, compacted, landed, merged, direct;
} w;

static uint32_t fragment_size(void)
{
	switch (w.shape) {
	case 0:
		return 4096;
	case 1:
		return 1448;
	case 2:
		return 1;
	case 3:
		return 4095;
	default:
		return random_between(1, random_below(4) ? 200 : 4096);
	}
}

/* A place for `len` bytes: in the lane's page where they fit, else in a free one, 0; or -1: there is none. */
static int find_place(struct lane *l, uint32_t len)
{
	struct fake_binding *b = (struct fake_binding *)w.part->binding;
	uint32_t start = random_below(b->npages), gap = random_below(3) ? 0 : 1;

	if (l->room >= len + gap && (len < 512 || random_below(2))) {
		l->place += gap;
		l->room -= gap;
		return 0;
	}
	/* Often the next one: neighbours are to be merged. */
	if (random_below(2))
		start = (uint32_t)(l->place / b->page + 1) % b->npages;
	for (uint32_t i = 0; i < b->npages; i++) {
		uint32_t page = (start + i) % b->npages;
		int taken = b->holders[page] != 0;

		for (uint32_t k = 0; k < w.nlanes; k++)
			taken |= w.lanes[k].room && w.lanes[k].place / b->page == page;
		if (!taken) {
			l->place = page * b->page;
			l->room = b->page;
			return 0;
		}
	}
	return -1;
}

/* The next bytes of the lane's stream. */
static void copy_out(struct lane *l, uint32_t at, uint32_t used, uint8_t *to, uint32_t len)
{
	for (uint32_t i = 0; i < len; i++) {
		while (used == l->segments[at].len) {
			at++;
			used = 0;
		}
		to[i] = pattern_byte(w.messages[l->segments[at].message].seed, l->segments[at].dst_off + used++);
	}
}

static uint64_t left(const struct lane *l)
{
	uint64_t sum = 0;

	for (uint32_t i = l->at; i < l->n; i++)
		sum += l->segments[i].len;
	return sum - l->used;
}

static void advance(struct lane *l, uint32_t *at, uint32_t *used, uint32_t len)
{
	*used += len;
	while (*at < l->n && *used >= l->segments[*at].len) {
		*used -= l->segments[*at].len;
		(*at)++;
	}
}

/* What recvmsg would leave behind; returns its result. */
static ssize_t receive(struct lane *l, struct msghdr *msg)
{
	uint64_t rest = left(l);
	uint32_t at = l->at, used = l->used, bytes = 0, linear = 0, count = random_between(1, BATCH);

	*msg = (struct msghdr){.msg_control = w.control};
	memset(w.buffer, 0x99, sizeof(w.buffer));
	for (uint32_t i = 0; i < count && rest > 0; i++) {
		struct devmem_cmsg c = {.frag_size = fragment_size()};
		struct cmsghdr h = {.cmsg_len = CMSG_LEN(sizeof(c)), .cmsg_level = SOL_SOCKET};

		if (c.frag_size > rest)
			c.frag_size = (uint32_t)rest;
		if (bytes + c.frag_size > BUFFER)
			break;
		if (bytes == 0 && (random_below(1000) < w.plain || find_place(l, c.frag_size) != 0)) {
			copy_out(l, at, used, w.buffer, c.frag_size); /* ordinary bytes */
			return (ssize_t)c.frag_size;
		}
		if (random_below(1000) < w.linear) {
			h.cmsg_type = SCM_DEVMEM_LINEAR;
			copy_out(l, at, used, w.buffer + linear, c.frag_size);
			linear += c.frag_size;
		} else {
			if (find_place(l, c.frag_size) != 0)
				break;
			h.cmsg_type = SCM_DEVMEM_DMABUF;
			c.dmabuf_id = FAKE_ID;
			c.frag_offset = l->place;
			c.frag_token = fake_token(l->flow, (uint32_t)(l->place / (uint64_t)sysconf(_SC_PAGESIZE)));
			copy_out(l, at, used, w.part->binding->memory.device_ptr + l->place, c.frag_size);
			l->place += c.frag_size;
			l->room -= c.frag_size;
		}
		memcpy(w.control + msg->msg_controllen, &h, sizeof(h));
		memcpy(w.control + msg->msg_controllen + CMSG_LEN(0), &c, sizeof(c));
		msg->msg_controllen += CMSG_SPACE(sizeof(c));
		advance(l, &at, &used, c.frag_size);
		bytes += c.frag_size;
		rest -= c.frag_size;
	}
	return (ssize_t)bytes;
}

static void add(struct lane *l, struct devmem_table *t, struct devmem_frag *f, uint32_t skip, uint32_t len,
		uint64_t dst_off)
{
	uint32_t n = t->n;
	uint64_t added = t->added;
	gantry_result r = devmem_table_add(t, PIECE(&l->tokens, f, w.part->base, w.buffer, skip, len, dst_off));

	if (r == GANTRY_AGAIN) {
		/* Only because we have taken all landing pages, and only where nobody knows the destination. */
		CHECK(w.nhostages > 0);
		CHECK(t->direct == NULL);
		CHECK_EQ(t->n, n);
		CHECK_EQ(t->added, added);
		devmem_pool_give(w.pool, w.hostages, w.nhostages);
		w.nhostages = 0;
		w.again++;
		r = devmem_table_add(t, PIECE(&l->tokens, f, w.part->base, w.buffer, skip, len, dst_off));
	}
	CHECK_OK(r);
}

static void read_lane(struct lane *l)
{
	struct msghdr msg;
	ssize_t got = receive(l, &msg);

	if (got == 0)
		return; /* the pool is dry */
	CHECK_OK(devmem_parse(&msg, got, w.part->binding, BUFFER, &w.list));
	for (uint32_t i = 0; i < w.list.n; i++) {
		struct devmem_frag *f = &w.list.frags[i];
		uint32_t skip = 0;

		if (f->where == DEVMEM_IN_POOL)
			CHECK_OK(devmem_tokens_take(&l->tokens, &(uint32_t){f->token}, 1));
		while (skip < f->len) {
			struct segment *s = &l->segments[l->at];
			uint32_t len = s->len - l->used < f->len - skip ? s->len - l->used : f->len - skip;

			add(l, &w.messages[s->message].table, f, skip, len, s->dst_off + l->used);
			skip += len;
			advance(l, &l->at, &l->used, len);
		}
		if (f->where == DEVMEM_IN_POOL && f->token)
			CHECK_OK(devmem_tokens_drop(&l->tokens, &f->token, 1));
	}
	if (random_below(4) == 0)
		CHECK_OK(devmem_tokens_flush(&l->tokens));
}

/* Messages are cut into chunks and dealt; a chunk may follow one of another message on its lane. */
static void deal(uint32_t chunk)
{
	uint64_t at[MESSAGES] = {0};
	uint32_t open = w.nmessages;

	for (uint32_t i = 0; i < w.nlanes; i++)
		w.lanes[i].n = w.lanes[i].at = w.lanes[i].used = 0;
	while (open > 0) {
		uint32_t m = random_below(w.nmessages);
		struct lane *l = &w.lanes[random_below(w.nlanes)];
		uint64_t rest = w.messages[m].size - at[m];
		uint32_t len = random_between(1, chunk);

		if (rest == 0)
			continue;
		if (len > rest || l->n > SEGMENTS / 2)
			len = (uint32_t)rest;
		CHECK(l->n < SEGMENTS);
		l->segments[l->n++] = (struct segment){.message = m, .len = len, .dst_off = at[m]};
		at[m] += len;
		open -= at[m] == w.messages[m].size;
	}
}

static void begin_messages(uint32_t size)
{
	for (uint32_t i = 0; i < w.nmessages; i++) {
		struct message *m = &w.messages[i];

		m->size = random_between(1, size);
		m->seed = (uint32_t)random_next();
		m->direct = random_below(3) == 0 ? malloc(m->size) : NULL;
		if (m->direct)
			memset(m->direct, 0x5a, m->size);
		CHECK_OK(devmem_table_begin(&m->table, m->size, m->direct));
	}
}

static void compare(struct message *m)
{
	FREED uint8_t *out = malloc(m->size), *covered = calloc(1, m->size);
	uint64_t sum = 0;

	if (m->direct)
		memcpy(out, m->direct, m->size);
	else
		memset(out, 0x5a, m->size);
	CHECK(m->table.n <= m->table.max);
	for (uint32_t i = 0; i < m->table.n; i++) {
		const struct gantry_unpack_desc *d = &m->descs[i];

		CHECK(d->len > 0 && d->src_off + (uint64_t)d->len <= w.pool->memory.size);
		CHECK(d->dst_off + d->len <= m->size);
		memcpy(out + d->dst_off, w.pool->memory.device_ptr + d->src_off, d->len);
		for (uint32_t k = 0; k < d->len; k++)
			CHECK_EQ(covered[d->dst_off + k]++, 0); /* each byte by one entry */
		sum += d->len;
	}
	CHECK_EQ(sum + m->table.direct_bytes, m->size);
	CHECK_PATTERN(out, m->size, m->seed);
}

static void end_messages(void)
{
	for (uint32_t i = 0; i < w.nmessages; i++) {
		struct message *m = &w.messages[i];

		CHECK_OK(devmem_table_ready(&m->table));
		compare(m);
		CHECK_OK(devmem_table_release(&m->table));
		free(m->direct);
		m->direct = NULL;
		w.compacted += m->table.compacted;
		w.landed += m->table.landed_bytes;
		w.merged += m->table.merged;
		w.direct += m->table.direct_bytes;
		m->table.compacted = m->table.landed_bytes = m->table.merged = m->table.direct_bytes = 0;
	}
}

static void wave(void)
{
	static const uint32_t sizes[] = {1 << 20, 1 << 20, 8192, 1 << 20, 1 << 18};
	uint32_t live;

	w.nlanes = random_between(1, LANES);
	w.nmessages = random_between(1, MESSAGES);
	w.shape = random_below(5);
	w.linear = random_below(3) ? 0 : random_between(0, 1000);
	w.plain = random_below(3) ? 0 : random_between(0, 1000);
	begin_messages(sizes[w.shape]);
	deal(random_below(4) ? 131072 : 1000);
	if (random_below(3) == 0) {
		w.nhostages = w.pool->nfree - random_below(32);
		CHECK_EQ(devmem_pool_take(w.pool, w.nhostages, w.hostages), 0);
	}
	do {
		live = 0;
		for (uint32_t i = 0; i < w.nlanes; i++) {
			struct lane *l = &w.lanes[i];

			if (l->at < l->n && random_below(2))
				read_lane(l);
			live += l->at < l->n;
		}
	} while (live > 0);
	end_messages();
	devmem_pool_give(w.pool, w.hostages, w.nhostages);
	w.nhostages = 0;
	for (uint32_t i = 0; i < LANES; i++) {
		CHECK_OK(devmem_tokens_flush(&w.lanes[i].tokens));
		CHECK_EQ(w.lanes[i].flow->out, 0);
		CHECK_EQ(w.lanes[i].tokens.held, 0);
		w.lanes[i].room = 0;
	}
	CHECK_EQ(w.pool->nfree, w.pool->npages);
}

static void run(struct gantry_device *dev, uint64_t seed, uint32_t max, uint32_t coalesce)
{
	fake_params("8M", "4M", "mapped", "1");
	random_seed(seed);
	CHECK_OK(devmem_pool_get_from(dev, &fake_source, &w.pool));
	CHECK_OK(devmem_pool_part(w.pool, "eth0", &w.part));
	for (uint32_t i = 0; i < LANES; i++) {
		w.lanes[i].flow = fake_flow_new(w.part->binding);
		devmem_tokens_init(&w.lanes[i].tokens, &w.lanes[i].flow->base);
	}
	for (uint32_t i = 0; i < MESSAGES; i++)
		CHECK_OK(devmem_table_init(&w.messages[i].table, w.pool, w.messages[i].descs, max, coalesce));
	for (int i = 0; i < 12; i++)
		wave();
	for (uint32_t i = 0; i < MESSAGES; i++)
		devmem_table_free(&w.messages[i].table);
	for (uint32_t i = 0; i < LANES; i++) {
		devmem_tokens_free(&w.lanes[i].tokens);
		free(w.lanes[i].flow);
	}
	devmem_pool_put(w.pool);
}

int main(int argc, char **argv)
{
	static const uint32_t coalesce[] = {0, 128, 5000};
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	uint64_t seeds = argc > 2 ? strtoull(argv[2], NULL, 0) : SANITIZED ? 6 : 24;
	struct gantry_device *host;

	CHECK_OK(gantry_device_host(&host));
	for (uint64_t seed = first; seed < first + seeds; seed++) {
		CASE("round %" PRIu64, seed);
		RUN(run(host, seed, seed % 2 ? 256 : MAX, coalesce[seed % 3]));
	}
	/* Otherwise this test has tested less than it says. */
	if (argc <= 1)
		CHECK(w.again > 0 && w.compacted > 0 && w.landed > 0 && w.merged > 0 && w.direct > 0);
	printf("again %" PRIu64 ", compact %" PRIu64 ", landed %" PRIu64 " bytes, merged %" PRIu64 ", directly %" PRIu64
	       "\n",
	       w.again, w.compacted, w.landed, w.merged, w.direct);
	gantry_device_close(host);
	return 0;
}
