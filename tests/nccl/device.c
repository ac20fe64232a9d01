/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device processes|threads RANKS CASE...
 *
 * NCCL's device API as a kernel uses it that was compiled with NCCL's headers of 2.28.7 to 2.29.3: threads of the CPU read the device
 * communicator and windows by the places of their members, and write requests byte by byte, as those headers have them. Nothing of
 * Gantry's is included. What no reader may look at is filled with noise. Every word that arrives is compared.
 */
#include <sched.h>
#include <time.h>

#include "use.h"

#define N (world.nranks)
#define R (my_rank)

enum { CONTEXTS = 4, BLOCKS = 4, SLOW = 20 };

/* ---- a device communicator, as kernels read it ---- */

struct devcomm {
	_Alignas(8) unsigned char bytes[200];
};

static uint64_t get(const void *p, size_t at, size_t size)
{
	uint64_t v = 0;

	memcpy(&v, (const char *)p + at, size);
	return v;
}

static void *ptr_at(const void *p, size_t at)
{
	return (void *)(uintptr_t)get(p, at, 8);
}

static uint32_t load32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static uint64_t load64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static void *handle_of(const struct devcomm *d, unsigned context)
{
	return ptr_at(d->bytes, 144 + 8 * context);
}

static uint64_t *signal_at(const struct devcomm *d, unsigned context, uint32_t signal)
{
	return (uint64_t *)ptr_at(handle_of(d, context), 40) + get(d->bytes, 176, 4) + signal;
}

static uint64_t *counter_at(const struct devcomm *d, unsigned context, uint32_t counter)
{
	return (uint64_t *)ptr_at(handle_of(d, context), 32) + get(d->bytes, 184, 4) + counter;
}

/* Of the resource window. */
static char *buffer_at(const struct devcomm *d, uint32_t handle)
{
	return (char *)ptr_at(d->bytes, 40 + 8) + (size_t)handle * 128;
}

/* This rank's own: lane 0 of the flat addresses. */
static void *local_pointer(const void *window, size_t offset)
{
	return (char *)ptr_at(window, 8) + (get(window, 16, 4) * get(window, 24, 4) << 32) + offset;
}

static uint32_t noise(void)
{
	static _Thread_local uint64_t state;

	if (!state)
		state = (uint64_t)(uintptr_t)&state * 0x9e3779b97f4a7c15u + (uint64_t)R + 1;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

/* ---- requests ---- */

enum { OP_PUT = 1, OP_VALUE = 2, OP_COUNTER = 4, OP_INC = 8, OP_ADD = 16 };

struct request {
	unsigned char b[64];
};

/* 63 bits behind the mark. */
static void set63(struct request *r, int word, uint64_t v)
{
	v = v * 2 + 1;
	memcpy(r->b + 8 * word, &v, 8);
}

static void set_bytes(struct request *r, int word, size_t at, uint64_t v, size_t size)
{
	memcpy(r->b + 8 * word + at, &v, size);
}

static struct request begin_request(unsigned op, uint64_t size)
{
	struct request r;
	uint64_t head = 1 | (uint64_t)op << 1 | size << 7;

	for (size_t i = 0; i < sizeof(r.b); i++)
		r.b[i] = (unsigned char)(noise() | (i % 8 ? 0 : 1));
	memcpy(r.b, &head, 8);
	if (!(op & OP_VALUE)) {
		set63(&r, 1, 0);
		set63(&r, 2, 0);
	}
	set63(&r, 3, 0);
	set63(&r, 4, 0);
	return r;
}

/* Takes a place, waits for room, stores. Words come in any order. */
static void post(const struct devcomm *d, unsigned context, int peer, const struct request *r)
{
	const char *ctx = handle_of(d, context);
	uint32_t size = (uint32_t)get(ctx, 4, 4), *pi = (uint32_t *)ptr_at(ctx, 16) + peer,
		 *ci = (uint32_t *)ptr_at(ctx, 24) + peer;
	uint32_t index = __atomic_fetch_add(pi, 1, __ATOMIC_RELAXED), first = noise();
	uint64_t *to = (uint64_t *)ptr_at(ctx, 8) + ((size_t)peer * size + (index & (size - 1))) * 8;

	while (size <= index - __atomic_load_n(ci, __ATOMIC_ACQUIRE))
		sched_yield();
	for (uint32_t i = 0; i < 8; i++)
		__atomic_store_n(&to[(first + i * 3) % 8], get(r->b, (first + i * 3) % 8 * 8, 8), __ATOMIC_RELEASE);
}

struct action {
	unsigned op; /* OP_INC, OP_ADD, 0 */
	uint32_t signal;
	uint64_t add;
	int counter; /* -1: none */
};
static const struct action nothing = {0, 0, 0, -1};

static void set_action(const struct devcomm *d, struct request *r, const struct action *a)
{
	uint64_t add = a->op == OP_INC ? 1 : a->add;

	set_bytes(r, 5, 1, a->counter >= 0 ? get(d->bytes, 184, 4) + (uint64_t)a->counter : 0, 2);
	set_bytes(r, 5, 3, a->op ? get(d->bytes, 176, 4) + a->signal : 0, 2);
	set_bytes(r, 5, 5, add, 2);
	set_bytes(r, 6, 1, add >> 16, 2);
	set_bytes(r, 6, 3, add >> 32, 4);
}

static uint64_t gin_offset(const void *window, size_t offset)
{
	return get(window, 32, 4) * 4096 + offset;
}

static void put(const struct devcomm *d, unsigned context, int peer, const void *to, size_t to_at, const void *from,
		size_t from_at, uint64_t bytes, struct action a)
{
	struct request r = begin_request(OP_PUT | a.op | (a.counter >= 0 ? OP_COUNTER : 0), bytes);

	set63(&r, 1, gin_offset(from, from_at));
	set63(&r, 2, get(from, 40 + 8 * context, 8));
	set63(&r, 3, gin_offset(to, to_at));
	set63(&r, 4, get(to, 40 + 8 * context, 8));
	set_action(d, &r, &a);
	post(d, context, peer, &r);
}

static void put_value(const struct devcomm *d, unsigned context, int peer, const void *to, size_t to_at, uint64_t value,
		      size_t size, struct action a)
{
	struct request r = begin_request(OP_PUT | OP_VALUE | a.op, size);

	set_bytes(&r, 1, 1, value, 4);
	if (size > 4)
		set_bytes(&r, 1, 5, value >> 32, 2);
	else
		set_bytes(&r, 1, 5, noise(), 2);
	set_bytes(&r, 2, 1, size > 6 ? value >> 48 : noise(), 2);
	set63(&r, 3, gin_offset(to, to_at));
	set63(&r, 4, get(to, 40 + 8 * context, 8));
	set_action(d, &r, &a);
	post(d, context, peer, &r);
}

static void send_signal(const struct devcomm *d, unsigned context, int peer, struct action a)
{
	struct request r = begin_request(OP_PUT | a.op, 0);

	set_action(d, &r, &a);
	post(d, context, peer, &r);
}

static int at_least(uint64_t least, uint64_t got, int width)
{
	uint64_t mask = UINT64_MAX >> (64 - width);

	return ((got - least) & mask) <= mask >> 1;
}

static void wait_word(const uint64_t *word, uint64_t least, int width)
{
	while (!at_least(least, load64(word), width))
		sched_yield();
}

static void wait_signal(const struct devcomm *d, unsigned context, uint32_t signal, uint64_t least)
{
	wait_word(signal_at(d, context, signal), least, 64);
}

static void flush(const struct devcomm *d, unsigned context)
{
	const char *ctx = handle_of(d, context);

	for (int peer = 0; peer < N; peer++) {
		const uint32_t p = load32((uint32_t *)ptr_at(ctx, 16) + peer);

		while ((uint32_t)(load32((uint32_t *)ptr_at(ctx, 24) + peer) - p) > UINT32_MAX / 2)
			sched_yield();
	}
}

/* Of one thread. Signals of barriers count in 32 bits. */
static void barrier(const struct devcomm *d, unsigned context, uint32_t signal0, uint32_t handle, uint32_t index)
{
	uint32_t *epoch = (uint32_t *)(void *)buffer_at(d, handle) + index * CONTEXTS + context;

	for (int i = 1; i < N; i++)
		send_signal(d, context, (R + i) % N, (struct action){OP_INC, signal0 + index, 1, -1});
	*epoch += (uint32_t)N - 1;
	wait_word(signal_at(d, context, signal0 + index), *epoch, 32);
}

static void rail_barrier(const struct devcomm *d, unsigned context, uint32_t index)
{
	barrier(d, context, (uint32_t)get(d->bytes, 128, 4), (uint32_t)get(d->bytes, 132, 4), index);
}

/* ---- what a program asks for ---- */

struct resource {
	struct resource *next;
	size_t size, align;
	uint32_t *handle;
	int signals, counters;
	uint32_t *signal, *counter;
};

/* 2.28.7. */
struct wishes {
	struct resource *resources;
	void *teams;
	char multimem;
	int barriers, lsa_barriers, gin_barriers;
	int a2a[2];
	char force;
	int contexts, signals, counters;
};

/* 2.29.2. */
struct wishes_22902 {
	size_t size;
	unsigned magic, version;
	struct wishes w;
};

static comm_t world_comm(void)
{
	comm_t comm = NULL;

	OK(nccl.CommInitRank(&comm, N, next_id(), R));
	return comm;
}

struct side {
	comm_t comm;
	int rank;
	struct devcomm d;
	char *source, *target;
	size_t room;
	void *from, *to; /* windows */
};

/* The program's own, or, with DEVICE_MEMORY, the device's: the driver of the tests (fixtures/cuda) has some that is host memory. */
static char *take_memory(size_t room)
{
	void *p = NULL;

	if (getenv("DEVICE_MEMORY"))
		OK(nccl.MemAlloc(&p, room));
	else
		p = calloc(1, room);
	return p;
}

static void give_memory(char *p)
{
	if (getenv("DEVICE_MEMORY"))
		OK(nccl.MemFree(p));
	else
		free(p);
}

static void open_windows(struct side *s, size_t room)
{
	s->room = room;
	s->source = take_memory(room);
	s->target = take_memory(room);
	OK(nccl.CommWindowRegister(s->comm, s->source, room, &s->from, 1));
	OK(nccl.CommWindowRegister(s->comm, s->target, room, &s->to, 0));
	TRUE(s->from && s->to && s->from != s->to);
	EQ((uintptr_t)local_pointer(s->from, 5), (uintptr_t)s->source + 5);
}

static void open_side(struct side *s, size_t room)
{
	struct wishes w = {.signals = 64, .counters = 8, .gin_barriers = 16, .contexts = CONTEXTS};

	*s = (struct side){.comm = world_comm(), .rank = R};
	open_windows(s, room);
	OK(nccl.DevCommCreate(s->comm, &w, &s->d));
}

static void close_side(struct side *s)
{
	int v = -1;

	OK(nccl.CommGetAsyncError(s->comm, &v));
	EQ(v, SUCCESS);
	OK(nccl.DevCommDestroy(s->comm, &s->d));
	OK(nccl.CommWindowDeregister(s->comm, s->from));
	OK(nccl.CommWindowDeregister(s->comm, s->to));
	OK(nccl.CommDestroy(s->comm));
	give_memory(s->source);
	give_memory(s->target);
}

struct block {
	struct side *s;
	uint32_t number;
	void (*kernel)(struct block *b);
};

static void *block_main(void *arg)
{
	struct block *b = arg;

	my_rank = b->s->rank;
	b->kernel(b);
	return NULL;
}

static void start_blocks(struct side *s, void (*kernel)(struct block *), struct block *blocks, pthread_t *threads)
{
	for (uint32_t i = 0; i < BLOCKS; i++) {
		blocks[i] = (struct block){s, i, kernel};
		TRUE(pthread_create(&threads[i], NULL, block_main, &blocks[i]) == 0);
	}
}

static void run_blocks(struct side *s, void (*kernel)(struct block *))
{
	struct block blocks[BLOCKS];
	pthread_t threads[BLOCKS];

	start_blocks(s, kernel, blocks, threads);
	for (int i = 0; i < BLOCKS; i++)
		pthread_join(threads[i], NULL);
}

/* ---- layouts ---- */

static void check_devcomm(const struct side *s)
{
	const unsigned char *b = s->d.bytes;

	EQ(get(b, 0, 4), (uint64_t)R);
	EQ(get(b, 4, 4), (uint64_t)N);
	EQ(get(b, 12, 4), 0); /* a team of its own */
	EQ(get(b, 16, 4), 1);
	EQ(get(b, 8, 4), (uint32_t)(UINT32_MAX / (uint32_t)N + ((N & (N - 1)) == 0)));
	EQ(get(b, 20, 4), 0);
	TRUE(ptr_at(b, 24) && ptr_at(b, 32));
	EQ(memcmp(ptr_at(b, 32), b + 40, 72), 0);
	EQ(get(b, 112, 8), 0);
	EQ(b[136], CONTEXTS);
	for (unsigned c = 0; c < CONTEXTS; c++) {
		EQ(b[137 + c], 2);
		EQ(get(handle_of(&s->d, c), 0, 4), (uint64_t)N);
		EQ(get(s->from, 40 + 8 * c, 8), get(s->from, 40, 8));
	}
	EQ(get(s->from, 20, 4), (uint64_t)R);
	EQ(get(s->from, 24, 4) << 32 >> 48 << 48, get(s->from, 24, 4) << 32); /* no address of another rank is one */
	TRUE(get(s->from, 24, 4));
}

/* Every resource is zeroed and apart from the others. */
static void check_resources(const struct side *s, const struct resource *list)
{
	uint64_t *shadows = ptr_at(s->d.bytes, 192);
	char *last = buffer_at(&s->d, 0);

	for (const struct resource *r = list; r; r = r->next) {
		char *at = buffer_at(&s->d, *r->handle);

		EQ((uintptr_t)at % r->align, 0);
		for (size_t i = 0; i < r->size; i++)
			EQ(at[i], 0);
		memset(at, 0x77, r->size);
		last = at + r->size > last ? at + r->size : last;
	}
	TRUE((char *)shadows >= last);
	for (uint64_t i = 0; i < CONTEXTS * get(s->d.bytes, 180, 4); i++)
		EQ(shadows[i], 0);
	memset(shadows, 1, CONTEXTS * get(s->d.bytes, 180, 4) * 8);
	for (const struct resource *r = list; r; r = r->next)
		for (size_t i = 0; i < r->size; i++)
			EQ(buffer_at(&s->d, *r->handle)[i], 0x77);
}

/* A kernel that looks for a window by address. */
static void *find_window(const struct devcomm *d, const void *at)
{
	for (const char *t = ptr_at(d->bytes, 24); t; t = ptr_at(t, 768))
		for (int i = 0; i < 32; i++)
			if (get(t, (size_t)i * 24 + 16, 8) &&
			    (uintptr_t)at - get(t, (size_t)i * 24, 8) < get(t, (size_t)i * 24 + 8, 8))
				return ptr_at(t, (size_t)i * 24 + 16);
	return NULL;
}

/* One text for the process. */
static void error_says(comm_t comm, const char *part)
{
	TRUE(world.threads || strstr(nccl.GetLastError(comm), part));
}

static void check_refusals(comm_t comm)
{
	struct wishes_22902 w = {88, 0xcafebeef, 22907, {.contexts = 4}};
	struct wishes old = {.signals = -1};
	struct devcomm d = {{0}};

	EQ(nccl.DevCommCreate(comm, &w, &d), INVALID_USAGE);
	error_says(comm, "NCCL 2.29.7");
	error_says(comm, "2.28.7 to 2.29.3 work");
	w.size = 96;
	w.version = 23004;
	EQ(nccl.DevCommCreate(comm, &w, &d), INVALID_USAGE);
	error_says(comm, "NCCL 2.30.4");
	EQ(nccl.DevCommCreate(comm, &old, &d), INVALID_ARGUMENT);
	old = (struct wishes){.multimem = 1};
	EQ(nccl.DevCommCreate(comm, &old, &d), INVALID_USAGE);
	error_says(comm, "multimem");
	old = (struct wishes){.multimem = 7};
	EQ(nccl.DevCommCreate(comm, &old, &d), INVALID_ARGUMENT);
	EQ(nccl.DevCommCreate(comm, NULL, &d), INVALID_ARGUMENT);
	EQ(nccl.DevCommCreate(comm, &old, NULL), INVALID_ARGUMENT);
	EQ(nccl.DevCommDestroy(comm, NULL), INVALID_ARGUMENT);
	EQ(nccl.DevCommDestroy(comm, &d), INVALID_ARGUMENT);
	for (int i = 0; i < 200; i++)
		EQ(d.bytes[i], 0);
}

static void check_properties(comm_t comm)
{
	unsigned char p[64];
	const unsigned head[3] = {0xcafebeef, 22903, 0};

	memset(p, 0xee, sizeof(p));
	memcpy(p, &(size_t){40}, 8);
	memcpy(p + 8, head, 8);
	OK(nccl.CommQueryProperties(comm, p));
	EQ(get(p, 16, 4), (uint64_t)R);
	EQ(get(p, 20, 4), (uint64_t)N);
	EQ(p[32], 1);
	EQ(p[33], 0);
	EQ(p[34], 2);
	EQ(p[40], 0xee);
	memcpy(p, &(size_t){56}, 8);
	memcpy(p + 12, &(unsigned){23004}, 4);
	OK(nccl.CommQueryProperties(comm, p));
	EQ(p[32], 0); /* kernels of this version cannot use what is here */
	EQ(get(p, 36, 4), 0);
	EQ(get(p, 40, 4), (uint64_t)N);
	EQ(p[44], 1);
	EQ(p[56], 0xee);
}

static void case_layout(void)
{
	uint32_t handles[3] = {77, 77, 77}, signals[2] = {77, 77}, counter = 77;
	struct resource third = {NULL, 5000, 4096, &handles[2], 0, 3, NULL, &counter};
	struct resource second = {&third, 1, 256, &handles[1], 7, 0, &signals[1], NULL};
	struct resource first = {&second, 300, 16, &handles[0], 2, 0, &signals[0], NULL};
	struct wishes w = {.resources = &first, .barriers = 3, .lsa_barriers = 5, .signals = 10, .counters = 4};
	struct wishes_22902 young = {72, 0xcafebeef, 22902, {.signals = 5, .force = 1, .contexts = 4}};
	struct wishes differs = {.signals = 1};
	struct side s = {.comm = world_comm(), .rank = R};
	struct devcomm second_d;
	void *p = &s;

	check_refusals(s.comm);
	check_properties(s.comm);
	if (N > 1) { /* that is refused on all, and the communicator goes on */
		differs.signals += R;
		EQ(nccl.DevCommCreate(s.comm, &differs, &s.d), INVALID_USAGE);
	}
	open_windows(&s, 10000);
	EQ(get(s.from, 40, 8), 0);
	OK(nccl.DevCommCreate(s.comm, &w, &s.d));
	check_devcomm(&s);
	EQ(get(s.d.bytes, 124, 4), 5);
	EQ(get(s.d.bytes, 180, 4), 10 + 3 + 2 + 7);
	EQ(get(s.d.bytes, 188, 4), 4 + 3);
	TRUE(signals[0] >= 10 && signals[1] >= 10 && counter == 4);
	check_resources(&s, &first);
	OK(nccl.DevCommCreate(s.comm, &young, &second_d));
	EQ(get(second_d.bytes, 180, 4), 5);
	EQ(get(second_d.bytes, 176, 4), 22);
	TRUE(find_window(&s.d, s.source + 9999) == s.from);
	TRUE(find_window(&s.d, s.target) == s.to);
	TRUE(find_window(&s.d, s.source + 10000) != s.from);
	OK(nccl.GetLsaDevicePointer(s.to, 10, 0, &p));
	EQ((uintptr_t)p, (uintptr_t)s.target + 10);
	EQ(nccl.GetLsaDevicePointer(s.to, 10, 1, &p), INVALID_ARGUMENT);
	EQ(nccl.GetLsaDevicePointer(s.to, 10000, 0, &p), INVALID_ARGUMENT);
	OK(nccl.GetPeerDevicePointer(s.to, 10, R, &p));
	EQ((uintptr_t)p, (uintptr_t)s.target + 10);
	if (N > 1) {
		OK(nccl.GetPeerDevicePointer(s.to, 10, (R + 1) % N, &p));
		TRUE(!p);
	}
	EQ(nccl.GetPeerDevicePointer(s.to, 10, N, &p), INVALID_ARGUMENT);
	EQ(nccl.GetPeerDevicePointer(&s, 10, 0, &p), INVALID_ARGUMENT);
	/* What was given back is there again, zeroed. */
	__atomic_store_n(signal_at(&second_d, 2, 3), 99, __ATOMIC_RELAXED);
	OK(nccl.DevCommDestroy(s.comm, &second_d));
	EQ(nccl.DevCommDestroy(s.comm, &second_d), INVALID_ARGUMENT);
	OK(nccl.DevCommCreate(s.comm, &young, &second_d));
	EQ(get(second_d.bytes, 176, 4), 22);
	EQ(load64(signal_at(&second_d, 2, 3)), 0);
	close_side(&s); /* and second_d with it */
}

/* ---- data ---- */

enum { ROOM = 30000, ROUNDS = 6, TOTAL = 60 };

static unsigned char byte_of(uint32_t round, int from, int to, uint32_t block, uint64_t i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u +
		     ((uint64_t)round << 32 | (uint64_t)from << 16 | (uint64_t)to << 8 | block);

	return (unsigned char)(x >> 40 ^ x >> 17);
}

static uint64_t size_of(uint32_t round, int from, int to, uint32_t block)
{
	return (round * 7919u + (uint32_t)from * 104729u + (uint32_t)to * 1299709u + block * 15485863u) % (ROOM + 1);
}

/* Each block has a context, a counter, and a signal for each peer; all add to one word. */
static void all_to_all(struct block *b)
{
	struct side *s = b->s;
	const struct devcomm *d = &s->d;
	const unsigned c = b->number % CONTEXTS;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (int to = 0; to < N; to++) {
			const size_t at = ((size_t)b->number * (size_t)N + (size_t)to) * ROOM,
				     there = ((size_t)b->number * (size_t)N + (size_t)R) * ROOM;
			const uint64_t n = size_of(round, R, to, b->number);

			for (uint64_t i = 0; i < n; i++)
				s->source[at + i] = (char)byte_of(round, R, to, b->number, i);
			put(d, c, to, s->to, there, s->from, at, n, (struct action){OP_INC, (uint32_t)R, 0, 3});
			send_signal(d, c, to, (struct action){OP_ADD, TOTAL, (uint64_t)R << 40 | 1, -1});
		}
		flush(d, c);
		EQ(load64(counter_at(d, c, 3)), (uint64_t)N * (round + 1));
		memset(s->source + (size_t)b->number * (size_t)N * ROOM, 0xee, (size_t)N * ROOM);
		for (int from = 0; from < N; from++) {
			const char *at = s->target + ((size_t)b->number * (size_t)N + (size_t)from) * ROOM;
			const uint64_t n = size_of(round, from, R, b->number);

			wait_signal(d, c, (uint32_t)from, round + 1);
			for (uint64_t i = 0; i < n; i++)
				EQ((unsigned char)at[i], byte_of(round, from, R, b->number, i));
		}
		rail_barrier(d, c, b->number);
	}
	wait_signal(d, c, TOTAL, (uint64_t)(N * (N - 1) / 2) * ROUNDS << 40 | (uint64_t)(ROUNDS * N));
	EQ(load64(signal_at(d, c, TOTAL)), (uint64_t)(N * (N - 1) / 2) * ROUNDS << 40 | (uint64_t)(ROUNDS * N));
}

static void case_all_to_all(void)
{
	struct side s;

	open_side(&s, (size_t)BLOCKS * (size_t)N * ROOM);
	run_blocks(&s, all_to_all);
	close_side(&s);
}

/* A word goes round; every rank adds to it. Signals are reset by their owner each time. */
static void case_ring(void)
{
	const int laps = 30;
	struct side s;
	uint64_t *in, *out, value = 0;

	open_side(&s, 4096);
	in = local_pointer(s.to, 8);
	out = local_pointer(s.from, 16);
	for (int lap = 0; lap < laps; lap++) {
		if (R || lap) {
			wait_signal(&s.d, 1, 7, 1);
			value = *in;
			EQ(value, (uint64_t)(lap - !R) * (uint64_t)(N * (N + 1) / 2) +
					  (R ? (uint64_t)(R * (R + 1) / 2) : (uint64_t)(N * (N + 1) / 2)));
			__atomic_store_n(signal_at(&s.d, 1, 7), 0, __ATOMIC_RELEASE); /* resetSignal */
		}
		*out = value + (uint64_t)R + 1;
		put(&s.d, 1, (R + 1) % N, s.to, 8, s.from, 16, 8, (struct action){OP_INC, 7, 0, -1});
		flush(&s.d, 1); /* the word is written again */
	}
	if (!R) {
		wait_signal(&s.d, 1, 7, 1);
		EQ(*in, (uint64_t)laps * (uint64_t)(N * (N + 1) / 2));
	}
	rail_barrier(&s.d, 1, 0);
	close_side(&s);
}

/* ---- all blocks in the same queues, puts and values of all sizes, to any rank ---- */

enum { WORDS = 400 };

static uint64_t word_of(int rank, uint32_t block, uint32_t i)
{
	return ((uint64_t)rank << 48 | (uint64_t)block << 40 | i) * 0x9e3779b97f4a7c15u;
}

static void random_puts(struct block *b)
{
	struct side *s = b->s;
	const struct devcomm *d = &s->d;
	uint64_t *source = (uint64_t *)(void *)s->source + (size_t)b->number * WORDS;

	for (uint32_t i = 0; i < WORDS; i++) {
		const int peer = (int)((word_of(R, b->number, i) >> 33) % (uint64_t)N);
		const size_t at = (((size_t)R * BLOCKS + b->number) * WORDS + i) * 8;
		const unsigned c = i % 3;
		const struct action a = {i % 2 ? OP_INC : OP_ADD, 2, i % 2 ? 0 : 3, -1};

		source[i] = word_of(R, b->number, i);
		if (i % 5 == 0)
			put_value(d, c, peer, s->to, at, source[i], i % 4 == 0 ? 8 : i % 4 == 1 ? 4 : i % 4, a);
		else
			put(d, c, peer, s->to, at, s->from, ((size_t)b->number * WORDS + i) * 8, 8, a);
	}
	for (unsigned c = 0; c < 3; c++)
		flush(d, c);
}

/* What of a word a request has put there. */
static uint64_t part_of(uint32_t i, uint64_t word)
{
	return i % 5 || i % 4 == 0 ? word : i % 4 == 1 ? (uint32_t)word : i % 4 == 2 ? (uint16_t)word : word & 0xffffff;
}

static void case_random(void)
{
	uint64_t expected[3] = {0}, *target;
	struct side s;

	open_side(&s, (size_t)N * BLOCKS * WORDS * 8);
	run_blocks(&s, random_puts);
	for (int from = 0; from < N; from++)
		for (uint32_t b = 0; b < BLOCKS; b++)
			for (uint32_t i = 0; i < WORDS; i++)
				if ((int)((word_of(from, b, i) >> 33) % (uint64_t)N) == R)
					expected[i % 3] += i % 2 ? 1 : 3;
	for (unsigned c = 0; c < 3; c++) {
		wait_signal(&s.d, c, 2, expected[c]);
		EQ(load64(signal_at(&s.d, c, 2)), expected[c]);
	}
	target = (void *)s.target;
	for (int from = 0; from < N; from++)
		for (uint32_t b = 0; b < BLOCKS; b++)
			for (uint32_t i = 0; i < WORDS; i++) {
				const uint64_t word = word_of(from, b, i);
				const int mine = (int)((word >> 33) % (uint64_t)N) == R;

				EQ(target[((size_t)from * BLOCKS + b) * WORDS + i], mine ? part_of(i, word) : 0);
			}
	rail_barrier(&s.d, 0, 0);
	close_side(&s);
}

/* ---- windows before and behind, two device communicators, calls of the program beside kernels ---- */

static void put_and_compare(struct side *s, const void *to, char *target, uint32_t signal)
{
	const int next = (R + 1) % N, before = (R + N - 1) % N;

	memset(s->source, 'a' + R, 100);
	memset(target, 0, 100);
	rail_barrier(&s->d, 0, 1);
	put(&s->d, 0, next, to, 3, s->from, 0, 90, (struct action){OP_INC, signal, 0, -1});
	wait_signal(&s->d, 0, signal, 1);
	for (int i = 0; i < 100; i++)
		EQ(target[i], i >= 3 && i < 93 ? 'a' + before : 0);
	rail_barrier(&s->d, 0, 1);
}

static void case_windows(void)
{
	struct wishes w = {.signals = 8, .gin_barriers = 2};
	static _Thread_local char memory[4][4096];
	struct side s = {.comm = world_comm(), .rank = R};
	struct wait_signal one = {1, (R + N - 1) % N, 0, 0};
	void *window[4] = {NULL}, *p = NULL;
	struct devcomm other;

	/* As nccl-tests does: several of one communicator in a group. They are made in this order on all ranks. */
	OK(nccl.GroupStart());
	for (int i = 0; i < 3; i++)
		OK(nccl.CommWindowRegister(s.comm, memory[i], sizeof(memory[i]), &window[i], 0));
	OK(nccl.GroupEnd());
	/* Before there are queues, and not on all ranks: numbers are the same all the same. */
	if (R % 2 == 0)
		OK(nccl.CommWindowDeregister(s.comm, window[0]));
	open_windows(&s, 4096);
	OK(nccl.DevCommCreate(s.comm, &w, &s.d));
	put_and_compare(&s, window[1], memory[1], 0);
	OK(nccl.CommWindowRegister(s.comm, memory[3], sizeof(memory[3]), &window[3], 0));
	OK(nccl.DevCommCreate(s.comm, &w, &other));
	put_and_compare(&s, window[3], memory[3], 1);
	put_and_compare(&s, window[2], memory[2], 2);
	EQ(get(other.bytes, 176, 4), get(s.d.bytes, 180, 4));
	EQ(load64(signal_at(&other, 0, 1)), 0);
	/* The same window by a call. */
	memset(memory[2], 0, sizeof(memory[2]));
	rail_barrier(&s.d, 0, 1);
	OK(nccl.PutSignal(s.source, 50, INT8, (R + 1) % N, window[2], 7, 0, 0, 0, s.comm, NULL));
	OK(nccl.WaitSignal(1, &one, s.comm, NULL));
	for (int i = 0; i < 100; i++)
		EQ(memory[2][i], i >= 7 && i < 57 ? 'a' + (R + N - 1) % N : 0);
	OK(nccl.WinGetUserPtr(s.comm, window[2], &p));
	TRUE(p == memory[2]);
	rail_barrier(&s.d, 0, 0);
	OK(nccl.CommWindowDeregister(s.comm, window[3]));
	EQ(nccl.CommWindowDeregister(s.comm, window[3]), INVALID_ARGUMENT);
	EQ(nccl.WinGetUserPtr(s.comm, window[3], &p), INVALID_ARGUMENT);
	EQ(nccl.PutSignal(s.source, 1, INT8, 0, window[3], 0, 0, 0, 0, s.comm, NULL), INVALID_ARGUMENT);
	OK(nccl.DevCommDestroy(s.comm, &s.d));
	s.d = other;
	put_and_compare(&s, window[1], memory[1], 3);
	close_side(&s);
}

/* Several ranks in one thread: device communicators are made at the end of a group. */
static void case_group(void)
{
	struct wishes w = {.signals = 4};
	comm_t comms[4];
	struct devcomm d[4];
	void *windows[4], *others[4];
	static char memory[4][4096], other[4][4096];

	if (R)
		return;
	OK(nccl.CommInitAll(comms, 4, NULL));
	OK(nccl.GroupStart());
	for (int i = 0; i < 4; i++) {
		OK(nccl.CommWindowRegister(comms[i], other[i], 4096, &others[i], 0));
		OK(nccl.CommWindowRegister(comms[i], memory[i], 4096, &windows[i], 0));
	}
	OK(nccl.GroupEnd());
	memset(d, 0, sizeof(d));
	OK(nccl.GroupStart());
	for (int i = 0; i < 4; i++)
		OK(nccl.DevCommCreate(comms[i], &w, &d[i]));
	EQ(get(d[1].bytes, 4, 4), 0);
	w.signals = 9; /* was copied */
	OK(nccl.GroupEnd());
	for (int i = 0; i < 4; i++) {
		EQ(get(d[i].bytes, 180, 4), 4);
		memory[i][0] = (char)(i + 1);
		put(&d[i], 3, (i + 3) % 4, windows[i], 1, windows[i], 0, 1, (struct action){OP_INC, 0, 0, -1});
	}
	for (int i = 0; i < 4; i++) {
		wait_signal(&d[i], 3, 0, 1);
		EQ(memory[i][1], (i + 1) % 4 + 1);
	}
	OK(nccl.GroupStart());
	for (int i = 0; i < 4; i++) {
		OK(nccl.CommWindowDeregister(comms[i], windows[i]));
		OK(nccl.CommWindowDeregister(comms[i], others[i]));
	}
	OK(nccl.GroupEnd());
	for (int i = 0; i < 4; i++)
		OK(nccl.DevCommDestroy(comms[i], &d[i]));
	for (int i = 0; i < 4; i++)
		OK(nccl.CommDestroy(comms[i]));
}

/* ---- ends ---- */

enum { SLOTS = 200, SLOT = 200 }; /* what is put at the same time goes to different places */
static uint32_t released;	  /* atomic */

/* What no rank does any more. */
static void wait_forever(struct block *b)
{
	struct side *s = b->s;
	int v = SUCCESS;

	switch (b->number) {
	case 0:
		wait_signal(&s->d, 0, 9, 1000000);
		break;
	case 1:
		for (uint32_t i = 0; v == SUCCESS; i++) { /* more than has room */
			const size_t at = ((size_t)R * SLOTS + i % SLOTS) * SLOT;

			put(&s->d, 1, N - 1, s->to, at, s->from, at, SLOT, nothing);
			OK(nccl.CommGetAsyncError(s->comm, &v));
		}
		flush(&s->d, 1);
		break;
	case 2:
		wait_word(counter_at(&s->d, 2, 5), 3, 64);
		for (int i = 0; i < 20; i++) {
			__atomic_store_n(signal_at(&s->d, 2, 6), 0, __ATOMIC_RELEASE);
			wait_signal(&s->d, 2, 6, 1);
		}
		break;
	default:
		for (int i = 0; i < 1000; i++)
			rail_barrier(&s->d, 3, 4);
		wait_word(signal_at(&s->d, 3, 11), 1, 16);
	}
	OK(nccl.CommGetAsyncError(s->comm, &v)); /* is known before */
	TRUE(v != SUCCESS);
	__atomic_add_fetch(&released, 1, __ATOMIC_RELAXED);
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The last rank dies, or aborts, while kernels of all others wait. The script sets GANTRY_TIMEOUT to 5 s. */
static void case_death(void)
{
	struct block blocks[BLOCKS];
	pthread_t threads[BLOCKS];
	double begin;
	struct side s;
	int v = SUCCESS;

	open_side(&s, (size_t)N * SLOTS * SLOT);
	if (R == N - 1) {
		rail_barrier(&s.d, 0, 0);
		usleep(300000);
		if (world.threads)
			OK(nccl.CommAbort(s.comm));
		else
			kill(getpid(), SIGKILL);
		goto end;
	}
	start_blocks(&s, wait_forever, blocks, threads);
	rail_barrier(&s.d, 0, 0);
	begin = seconds();
	for (int i = 0; i < BLOCKS; i++)
		pthread_join(threads[i], NULL);
	TRUE(seconds() - begin < 5 + 1 + SLOW);
	OK(nccl.CommGetAsyncError(s.comm, &v));
	EQ(v, REMOTE_ERROR);
	OK(nccl.DevCommDestroy(s.comm, &s.d));
	OK(nccl.CommAbort(s.comm));
end:
	give_memory(s.source);
	give_memory(s.target);
}

/* The rank itself aborts, with kernels that wait: they end in a moment, and so does what they do next. */
static void wait_aborted(struct block *b)
{
	wait_signal(&b->s->d, b->number, 9, 1);
	for (int i = 0; i < 300; i++)
		put(&b->s->d, b->number, i % N, b->s->to, ((size_t)R * BLOCKS + b->number) * 16, b->s->from, 0, 10,
		    nothing);
	flush(&b->s->d, b->number);
	wait_signal(&b->s->d, b->number, 10, 1);
}

static void case_abort(void)
{
	struct block blocks[BLOCKS];
	pthread_t threads[BLOCKS];
	struct side s;
	double begin;

	open_side(&s, 4096);
	start_blocks(&s, wait_aborted, blocks, threads);
	rail_barrier(&s.d, 0, 0);
	usleep(100000);
	begin = seconds();
	OK(nccl.CommAbort(s.comm));
	for (int i = 0; i < BLOCKS; i++)
		pthread_join(threads[i], NULL);
	TRUE(seconds() - begin < 1 + SLOW);
	give_memory(s.source);
	give_memory(s.target);
}

static void *abort_later(void *arg)
{
	usleep(200000);
	OK(nccl.CommAbort(arg));
	return NULL;
}

/* One rank registers windows in a group, the others do not come, and another thread aborts: the windows that are still to be registered are not. */
static void case_group_abort(void)
{
	static char memory[64][64];
	comm_t comm = NULL;
	void *windows[64] = {NULL};
	pthread_t thread;

	OK(nccl.CommInitRank(&comm, N, next_id(), R));
	meet();
	if (R == 0 && N > 1) {
		TRUE(pthread_create(&thread, NULL, abort_later, comm) == 0);
		OK(nccl.GroupStart());
		for (int i = 0; i < 64; i++)
			OK(nccl.CommWindowRegister(comm, memory[i], sizeof(memory[i]), &windows[i], 0));
		TRUE(nccl.GroupEnd() != SUCCESS);
		pthread_join(thread, NULL);
	}
	meet();
	if (R != 0 || N == 1)
		OK(nccl.CommAbort(comm));
	for (int i = 0; i < 64; i++)
		TRUE(!windows[i]);
}

/* A kernel's mistake ends the communicator with a text. */
static void case_wrong(void)
{
	struct request r = begin_request(OP_PUT | 32, 8);
	struct side s;
	int v = SUCCESS;

	open_side(&s, 4096);
	rail_barrier(&s.d, 0, 0);
	if (R == 0)
		post(&s.d, 0, 0, &r);
	wait_signal(&s.d, 0, 9, 1);
	OK(nccl.CommGetAsyncError(s.comm, &v));
	TRUE(v != SUCCESS);
	if (R == 0)
		TRUE(strstr(nccl.GetLastError(NULL), "2.28.7 to 2.29.3") || world.threads);
	OK(nccl.DevCommDestroy(s.comm, &s.d));
	OK(nccl.CommAbort(s.comm));
	give_memory(s.source);
	give_memory(s.target);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {{"layout", case_layout},	{"all_to_all", case_all_to_all},
	     {"ring", case_ring},	{"random", case_random},
	     {"windows", case_windows}, {"group", case_group},
	     {"death", case_death},	{"abort", case_abort},
	     {"wrong", case_wrong},	{"group_abort", case_group_abort}};

static char **wanted;

static void run_cases(void)
{
	for (char **name = wanted; *name; name++) {
		size_t i = 0;

		while (i < sizeof(cases) / sizeof(*cases) && strcmp(cases[i].name, *name))
			i++;
		TRUE(i < sizeof(cases) / sizeof(*cases));
		cases[i].run();
	}
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	wanted = argv + 3;
	return run_ranks(atoi(argv[2]), strcmp(argv[1], "threads") == 0, run_cases);
}
