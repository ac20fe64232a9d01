/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source of fragments for tests: it hands out tokens as the kernel does (per flow, the lowest free number from 1),
 * counts who holds a page, keeps the kernel's limits, and poisons a page as soon as nobody does.
 */
#ifndef GANTRY_TESTS_DEVMEM_UTIL_H
#define GANTRY_TESTS_DEVMEM_UTIL_H

#include "net/devmem_rx.h"
#include "pool_whole.h"
#include "test.h"

/* Guarded fields are looked at while no other thread runs. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wthread-safety-analysis"
#endif

#define PIECE(of, fragment, at, buffer, from, n, to)                                                                   \
	&(struct devmem_piece)                                                                                         \
	{                                                                                                              \
		.tokens = (of), .frag = (fragment), .base = (at), .linear = (buffer), .skip = (from), .len = (n),      \
		.dst_off = (to)                                                                                        \
	}

enum { FAKE_TOKENS = 1 << 16, FAKE_POISON = 0xdb, FAKE_ID = 7 };

struct fake_binding {
	struct devmem_binding base;
	uint64_t page;
	uint32_t npages;
	uint32_t *holders; /* tokens of each page */
	pthread_mutex_t lock;
};

struct fake_flow {
	struct devmem_flow base;
	uint32_t page_of[FAKE_TOKENS]; /* page + 1; 0: the token is free */
	uint32_t lowest;	       /* no free token below */
	uint32_t out;
	uint32_t calls, most_ranges, most_tokens;
	int fail_errno; /* of the next call */
	int swallow;	/* so many fewer than were freed are reported */
};

static struct {
	int binds, unbinds;
	gantry_result bind_result;
} fake_nic;

static inline gantry_result fake_bind(const struct devmem_memory *memory, const char *nic,
				      struct devmem_binding **ret_binding);

static inline void fake_unbind(struct devmem_binding *b)
{
	struct fake_binding *f = (struct fake_binding *)b;

	if (!b)
		return;
	pthread_mutex_destroy(&f->lock);
	free(f->holders);
	free(f);
	fake_nic.unbinds++;
}

static inline int fake_give_back(struct devmem_flow *flow, const struct devmem_token *ranges, size_t n)
{
	struct fake_flow *f = (struct fake_flow *)flow;
	struct fake_binding *b = (struct fake_binding *)flow->binding;
	uint32_t looked = 0, freed = 0;

	if (f->fail_errno) {
		errno = f->fail_errno;
		f->fail_errno = 0;
		return -1;
	}
	CHECK(n >= 1 && n <= 128);
	pthread_mutex_lock(&b->lock);
	f->calls++;
	for (size_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < ranges[i].token_count; k++) {
			uint32_t token = ranges[i].token_start + k, page;

			CHECK(++looked <= 1024);
			CHECK(token > 0 && token < FAKE_TOKENS);
			CHECK(f->page_of[token] != 0); /* else it was given back twice, or never brought */
			page = f->page_of[token] - 1;
			f->page_of[token] = 0;
			f->out--;
			freed++;
			if (token < f->lowest)
				f->lowest = token;
			if (--b->holders[page] == 0 && b->base.memory.device_ptr)
				memset(b->base.memory.device_ptr + page * b->page, FAKE_POISON, b->page);
		}
	}
	if (n > f->most_ranges)
		f->most_ranges = (uint32_t)n;
	if (looked > f->most_tokens)
		f->most_tokens = looked;
	pthread_mutex_unlock(&b->lock);
	return (int)freed - f->swallow;
}

static inline void fake_describe(const struct devmem_binding *b, char *text, size_t len)
{
	snprintf(text, len, "fake dma-buf %u", b->dmabuf_id);
}

static const struct devmem_source_ops fake_source = {
	.kind = GANTRY_NET_UNPACK_EMULATED,
	.name = "fake",
	.bind = fake_bind,
	.unbind = fake_unbind,
	.give_back = fake_give_back,
	.describe = fake_describe,
};

static inline gantry_result fake_bind(const struct devmem_memory *memory, const char *nic,
				      struct devmem_binding **ret_binding)
{
	struct fake_binding *b;

	if (fake_nic.bind_result != GANTRY_OK)
		return fake_nic.bind_result;
	b = calloc(1, sizeof(*b));
	CHECK(b != NULL);
	b->base = (struct devmem_binding){.ops = &fake_source, .dmabuf_id = FAKE_ID, .memory = *memory};
	b->page = (uint64_t)sysconf(_SC_PAGESIZE);
	b->npages = (uint32_t)(memory->size / b->page);
	b->holders = calloc(b->npages, sizeof(*b->holders));
	CHECK(b->holders != NULL);
	pthread_mutex_init(&b->lock, NULL);
	if (memory->device_ptr)
		memset(memory->device_ptr, FAKE_POISON, memory->size);
	fake_nic.binds++;
	*ret_binding = &b->base;
	return GANTRY_OK;
}

static inline struct fake_flow *fake_flow_new(struct devmem_binding *b)
{
	struct fake_flow *f = calloc(1, sizeof(*f));

	CHECK(f != NULL);
	f->base = (struct devmem_flow){.binding = b, .fd = 55};
	f->lowest = 1;
	return f;
}

/* A token for a page, as receive would bring it. */
static inline uint32_t fake_token(struct fake_flow *f, uint32_t page)
{
	struct fake_binding *b = (struct fake_binding *)f->base.binding;
	uint32_t token;

	pthread_mutex_lock(&b->lock);
	for (token = f->lowest; token < FAKE_TOKENS && f->page_of[token]; token++)
		;
	CHECK(token < FAKE_TOKENS);
	f->lowest = token + 1;
	f->page_of[token] = page + 1;
	f->out++;
	b->holders[page]++;
	pthread_mutex_unlock(&b->lock);
	return token;
}

/* A binding without memory, for tests of tokens alone. */
static inline struct devmem_binding *fake_pages(uint32_t n)
{
	struct devmem_memory m = {.size = (uint64_t)n * (uint64_t)sysconf(_SC_PAGESIZE)};
	struct devmem_binding *b;

	CHECK_OK(fake_bind(&m, "fake0", &b));
	return b;
}

/* The parameters of a pool; sizes as text. */
static inline void fake_params(const char *pool, const char *landing, const char *memory, const char *nics)
{
	CHECK_EQ(setenv("GANTRY_UNPACK_POOL", pool, 1), 0);
	CHECK_EQ(setenv("GANTRY_UNPACK_LANDING", landing, 1), 0);
	CHECK_EQ(setenv("GANTRY_UNPACK_MEMORY", memory, 1), 0);
	CHECK_EQ(setenv("GANTRY_UNPACK_NICS", nics, 1), 0);
	CHECK_OK(gantry_params_load(1));
	gantry_log_configure(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL, "/dev/null"); /* errors are expected here */
}

#endif
