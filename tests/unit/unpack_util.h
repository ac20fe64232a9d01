/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link that receives into device memory, with a hand-written sender at the other ends of its sockets and a "kernel"
 * that walks the unpack queue as NCCL's does.
 */
#ifndef GANTRY_TESTS_UNPACK_UTIL_H
#define GANTRY_TESTS_UNPACK_UTIL_H

#include "base/log.h"
#include "device/device.h"
#include "link_pair.h"
#include "net/emulated/emulated.h"
#include "net/tcp/flow.h"
#include "net/tcp/tcp_unpack.h"
#include "pool_whole.h"

/* Guarded fields are looked at while no other thread runs. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wthread-safety-analysis"
#endif

enum { AHEAD = 6, DATA = 1, ACK_FLAG = 8 };

struct world {
	struct pair_config config;
	struct gantry_device *dev;
	struct tcp_link *l;
	struct tcp_unpack *u;
	struct devmem_pool *pool; /* a reference of the test's own */
	struct gantry_unpack_handle *handle;
	int raw[WIRE_MAX_LANES];
	struct {
		uint8_t *bytes;
		size_t n, room, sent;
	} out[WIRE_MAX_LANES]; /* what the sender has to say on each lane */
	uint64_t seq;
	uint32_t index[2]; /* of tags 0 and 1 */
	uint64_t slots;	   /* that the kernel has seen */
};

/* Parameters as NAME, VALUE, ..., NULL; others have their defaults. */
static inline void world_params(const char *const *pairs)
{
	static const char *const all[] = {"GANTRY_EMU_SHAPE",	    "GANTRY_EMU_LINEAR",      "GANTRY_EMU_PLAIN",
					  "GANTRY_EMU_RTO",	    "GANTRY_UNPACK_POOL",     "GANTRY_UNPACK_LANDING",
					  "GANTRY_UNPACK_COALESCE", "GANTRY_UNPACK_MAX_FRAGS"};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		unsetenv(all[i]);
	for (; pairs && *pairs; pairs += 2)
		setenv(pairs[0], pairs[1], 1);
	CHECK_OK(gantry_params_load(1));
}

static inline void world_open(struct world *w, int lanes, int device_rx)
{
	struct gantry_net_device_handle h = {0};

	*w = (struct world){.config = {.nlanes = 1 + lanes, .inet = 1}};
	CHECK_OK(gantry_device_host(&w->dev));
	w->l = pair_raw(&w->config, w->raw);
	w->l->session.device_rx = device_rx;
	CHECK_OK(devmem_pool_get(w->dev, GANTRY_NET_UNPACK_EMULATED, &w->pool));
	if (device_rx) {
		CHECK_OK(devmem_pool_get(w->dev, GANTRY_NET_UNPACK_EMULATED, &w->l->devmem->pool));
		for (int i = 1; i <= lanes; i++)
			CHECK_OK(tcp_flow_attach(&w->l->lanes[i]));
	}
	CHECK_OK(tcp_unpack_create(w->dev, GANTRY_NET_UNPACK_EMULATED, &w->u));
	CHECK_OK(tcp_unpack_attach(w->l, w->u));
	tcp_unpack_describe(w->u, &h);
	CHECK_EQ(h.type, GANTRY_NET_DEVICE_UNPACK);
	CHECK_EQ(h.version, 7);
	CHECK_EQ(h.size, sizeof(struct gantry_unpack_handle));
	CHECK_EQ(h.needs_proxy_progress, 1);
	w->handle = h.handle;
	CHECK_EQ(w->handle->head, -1);
}

/* As if the CPU could not touch memory of the device, or the pool: then the device copies. */
static inline void world_blind(struct world *w, int memory, int pool)
{
	if (memory)
		w->u->cpu_memory = 0;
	if (pool)
		w->u->cpu_pool = 0;
	w->u->copies = 1;
	CHECK_OK(tcp_unpack_attach(w->l, w->u)); /* once more: now with what copies need */
}

/* Nothing of the pool is out: neither landing pages nor tokens, once the device's copies are over. */
static inline void world_whole(struct world *w)
{
	for (int i = 1; i < w->config.nlanes; i++) {
		struct tcp_flow *f = w->l->lanes[i].flow;

		if (f)
			UNTIL((tcp_link_progress(w->l), !f->tokens.held));
	}
	CHECK_EQ(w->pool->nfree, w->pool->npages);
}

static inline void world_close(struct world *w) UNCHECKED
{
	pair_raw_free(&w->config, w->l, w->raw);
	tcp_unpack_destroy(w->u);
	CHECK_EQ(w->pool->nfree, w->pool->npages);
	for (int i = 0; i < w->pool->nparts; i++) {
		struct emu_binding *b = gantry_container(w->pool->parts[i].binding, struct emu_binding, pub);

		CHECK_EQ(b->nfree, b->npages);
		CHECK_EQ(b->counts.bad_returns, 0);
		CHECK_EQ(b->counts.written_after, 0);
	}
	CHECK_EQ(w->pool->refs, 1);
	devmem_pool_put(w->pool);
	gantry_device_close(w->dev);
	for (int i = 0; i < w->config.nlanes; i++)
		free(w->out[i].bytes);
}

/* ---- the sender ---- */

static inline void say(struct world *w, int lane, const void *bytes, size_t n)
{
	if (w->out[lane].n + n > w->out[lane].room) {
		w->out[lane].room = 2 * (w->out[lane].n + n);
		w->out[lane].bytes = realloc(w->out[lane].bytes, w->out[lane].room);
		CHECK(w->out[lane].bytes);
	}
	if (n)
		memcpy(w->out[lane].bytes + w->out[lane].n, bytes, n);
	w->out[lane].n += n;
}

static inline void say_frame(struct world *w, struct pair_frame f, uint32_t lane)
{
	uint8_t header[48];

	f.lane = lane;
	say(w, 0, header, pair_frame_put(header, &f));
}

/* A small message, inline. */
static inline void say_eager(struct world *w, const uint8_t *data, size_t size, uint32_t tag)
{
	say_frame(
		w,
		(struct pair_frame){.kind = PAIR_EAGER, .length = (uint32_t)size, .tag = tag, .index = w->index[tag]++},
		0);
	say(w, 0, data, size);
}

/* A large one: in pieces over all lanes, or with headers of its own where lanes carry them. */
static inline void say_bulk(struct world *w, const uint8_t *data, size_t size, uint32_t tag)
{
	uint32_t index = w->index[tag]++;
	uint64_t seq = w->seq++;

	for (size_t at = 0; at < size;) {
		size_t left = size - at, n = 1 + random_below(200000);
		int lane = 1 + (int)random_below((uint32_t)w->config.nlanes - 1);
		struct pair_frame f = {
			.flags = ACK_FLAG, .seq = seq, .offset = at, .total = size, .tag = tag, .index = index};

		n = n < left ? n : left;
		f.length = (uint32_t)n;
		f.kind = w->l->session.device_rx ? AHEAD : DATA;
		if (w->l->session.device_rx) {
			say_frame(w, f, (uint32_t)lane);
		} else {
			uint8_t header[48];

			pair_frame_put(header, &f);
			say(w, lane, header, sizeof(header));
		}
		say(w, lane, data + at, n);
		at += n;
	}
}

/* Gives the socket of a lane up to `max` of what waits for it. */
static inline void utter(struct world *w, int lane, size_t max)
{
	size_t left = w->out[lane].n - w->out[lane].sent;
	ssize_t n;

	left = left < max ? left : max;
	n = left ? send(w->raw[lane], w->out[lane].bytes + w->out[lane].sent, left, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
	CHECK(n >= 0 || errno == EAGAIN);
	w->out[lane].sent += n > 0 ? (size_t)n : 0;
	if (w->out[lane].sent == w->out[lane].n)
		w->out[lane].sent = w->out[lane].n = 0;
}

/* The receiver's own frames are of no interest. */
static inline void listen_away(struct world *w)
{
	uint8_t buf[4096];

	while (recv(w->raw[0], buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
}

static inline int all_said(const struct world *w)
{
	for (int i = 0; i < w->config.nlanes; i++)
		if (w->out[i].n)
			return 0;
	return 1;
}

/* ---- the kernel ---- */

/* The next receive of the queue, as NCCL's kernel does it. Returns the number of descriptors. */
static inline uint64_t kernel_unpack(struct gantry_unpack_handle *h, uint8_t *dst, size_t size)
{
	uint64_t slot = ++h->head % GANTRY_UNPACK_DEPTH;
	uint64_t n = __atomic_load_n(&h->meta->cnt[slot], __ATOMIC_ACQUIRE);

	CHECK(n <= GANTRY_UNPACK_MAX_DESCS);
	for (uint64_t i = 0; i < n; i++) {
		const struct gantry_unpack_desc *d = &h->meta->mem[slot][i];

		CHECK(d->dst_off <= size && d->len <= size - d->dst_off);
		memcpy(dst + d->dst_off, (uint8_t *)h->bounce_buf + d->src_off, d->len);
	}
	return n;
}

#endif
