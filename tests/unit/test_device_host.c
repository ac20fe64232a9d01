/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device: memory and its table, memory of other processes, streams and events. Bodies are the test's own,
 * launched as kernels; test_device_host_launch.c has what they do with each other.
 *
 * Two processes ring each other's eventcounts. A lost wake-up shows as a hang: they sleep without a limit, and an alarm
 * ends the test.
 */
#include "base/eventcount.h"
#include "device/host/host.h"
#include "test.h"

enum { LIMIT_S = 500, MANY = 2000, ROUNDS = 300 };

static struct gantry_device *dev;

static gantry_result launch_blocks(struct gantry_stream *s, uint32_t blocks, void (*fn)(const void *), const void *args,
				   size_t size)
{
	struct gantry_kernel kernel = {.body = fn};
	struct gantry_launch l = {.kernel = &kernel, .blocks = blocks, .args = args, .args_size = size};

	return dev->ops->launch(dev, s, &l);
}

static gantry_result launch1(struct gantry_stream *s, void (*fn)(const void *), const void *args, size_t size)
{
	return launch_blocks(s, 1, fn, args, size);
}

TEST(check_memory)
{
	struct gantry_ipc_handle handle;
	struct gantry_mem_info info;
	char *a[40], plain[8];
	void *host, *device;

	for (int i = 0; i < 40; i++) {
		size_t size = (size_t)(i + 1) * 1000;
		void *p;

		CHECK_OK(gantry_mem_alloc(dev, size, &p));
		a[i] = p;
		CHECK_FILLED(a[i], size, 0);
		memset(a[i], i, size);
	}
	for (int i = 0; i < 40; i++) {
		size_t size = (size_t)(i + 1) * 1000;

		CHECK_OK(dev->ops->pointer(dev, a[i] + size - 1, &info));
		CHECK(info.base == a[i] && info.size == size && info.device_ptr == a[i] + size - 1);
		CHECK(info.kind == GANTRY_MEM_HOST && info.device == -1 && info.exportable);
		CHECK_OK(dev->ops->pointer(dev, a[i] + size, &info));
		CHECK(info.base != a[i]); /* the rest of the last page is nobody's */
		CHECK_EQ(a[i][size - 1], i);
	}
	for (int i = 0; i < 40; i += 2)
		CHECK_OK(gantry_mem_free(dev, a[i]));
	for (int i = 0; i < 40; i++) {
		CHECK_OK(dev->ops->pointer(dev, a[i], &info));
		CHECK(info.base == (i % 2 ? a[i] : NULL));
		CHECK_EQ(info.exportable, i % 2);
	}
	CHECK_EQ(gantry_mem_free(dev, a[0]), GANTRY_ERR_USAGE);
	CHECK_EQ(gantry_mem_free(dev, a[1] + 1), GANTRY_ERR_USAGE);
	for (int i = 1; i < 40; i += 2)
		CHECK_OK(gantry_mem_free(dev, a[i]));
	CHECK_OK(gantry_mem_free(dev, NULL));
	CHECK_EQ(gantry_mem_alloc(dev, 0, &device), GANTRY_ERR_INVALID);

	CHECK_OK(dev->ops->pointer(dev, plain, &info));
	CHECK(info.kind == GANTRY_MEM_HOST && !info.base && !info.exportable && info.device_ptr == plain);
	CHECK_OK(dev->ops->map_host(dev, plain, sizeof(plain), &device));
	CHECK(device == plain);
	CHECK_OK(dev->ops->unmap_host(dev, plain));
	CHECK_OK(dev->ops->alloc_mapped(dev, 3 << 20, &host, &device));
	CHECK(host == device);
	CHECK_OK(gantry_mem_copy(dev, (char *)host + 5, "abc", 4));
	CHECK_STR((char *)host + 5, "abc");
	/* For this process alone, and without a file. */
	CHECK_OK(dev->ops->pointer(dev, (char *)host + 9, &info));
	CHECK(info.base == host && info.size == 3 << 20 && !info.exportable);
	CHECK_EQ(dev->ops->ipc_export(dev, host, 100, &handle), GANTRY_ERR_INVALID);
	CHECK_OK(dev->ops->free_mapped(dev, host));
}

/* What two processes share: a word each way and the eventcounts of both. */
struct shared {
	struct gantry_eventcount eventcounts[2];
	uint64_t word[2];
	uint64_t bytes[100];
};

static void wait_for(uint64_t *word, uint64_t value, struct gantry_eventcount *eventcount)
{
	struct gantry_waiter w;

	gantry_waiter_init(&w, eventcount);
	while (dev_load(word) < value)
		gantry_waiter_idle(&w, UINT64_MAX);
	gantry_waiter_done(&w);
}

/*
 * Ping-pong. Delays are such that the other side is met spinning, yielding, falling asleep and asleep; once it is
 * waited for until it has announced its sleep.
 */
static void play(struct shared *s, int me, uint64_t rounds)
{
	for (uint64_t i = 1; i <= rounds; i++) {
		if (me)
			wait_for(&s->word[0], i, &s->eventcounts[1]);
		if (random_below(4) == 0)
			usleep(random_below(1000));
		else
			for (uint64_t until = gantry_now_ns() + random_below(400000); gantry_now_ns() < until;)
				gantry_cpu_pause();
		if (!me && i == 1)
			UNTIL(__atomic_load_n(&s->eventcounts[1].waiting, __ATOMIC_SEQ_CST));
		dev_store(&s->word[me], i);
		gantry_eventcount_notify(&s->eventcounts[!me]);
		if (!me)
			wait_for(&s->word[1], i, &s->eventcounts[0]);
	}
}

static void child_part(const struct gantry_ipc_handle *handle, const struct shared *parents,
		       const struct gantry_ipc_handle *freed)
{
	void *p, *again;
	struct shared *s;

	CHECK_OK(dev->ops->ipc_open(dev, handle, &p));
	s = p;
	CHECK(s != parents);
	CHECK_OK(dev->ops->ipc_open(dev, handle, &again));
	CHECK(again == p);
	CHECK_OK(dev->ops->ipc_close(dev, again));
	for (uint64_t i = 0; i < 100; i++) {
		CHECK_EQ(s->bytes[i], i * i);
		s->bytes[i] += 7;
	}
	play(s, 1, ROUNDS);
	CHECK_OK(dev->ops->ipc_close(dev, p));
	CHECK_EQ(dev->ops->ipc_close(dev, p), GANTRY_ERR_USAGE);
	CHECK_EQ(dev->ops->ipc_open(dev, freed, &p), GANTRY_ERR_INVALID);
	_exit(0);
}

TEST(check_ipc)
{
	struct gantry_ipc_handle handle, freed, part;
	void *p, *q;
	struct shared *s;
	pid_t pid;

	CHECK_OK(gantry_mem_alloc(dev, 50000, &p));
	CHECK_OK(dev->ops->ipc_export(dev, p, 50000, &freed));
	CHECK_OK(gantry_mem_free(dev, p));
	CHECK_OK(gantry_mem_alloc(dev, sizeof(*s), &p));
	s = p;
	for (uint64_t i = 0; i < 100; i++)
		s->bytes[i] = i * i;
	CHECK_OK(dev->ops->ipc_export(dev, s, sizeof(*s), &handle));
	pid = child_fork();
	if (!pid)
		child_part(&handle, s, &freed);
	play(s, 0, ROUNDS);
	child_wait(pid);
	CHECK(s->eventcounts[1].seq); /* it did sleep */
	for (uint64_t i = 0; i < 100; i++)
		CHECK_EQ(s->bytes[i], i * i + 7);

	/* Our own: the very same address, and it stays as long as it is open. */
	CHECK_OK(dev->ops->ipc_export(dev, s->bytes, 80, &part));
	CHECK_OK(dev->ops->ipc_open(dev, &part, &q));
	CHECK(q == s->bytes);
	CHECK_OK(gantry_mem_free(dev, s));
	CHECK_EQ(s->bytes[1], 8);
	CHECK_EQ(dev->ops->ipc_open(dev, &handle, &p), GANTRY_ERR_INVALID);
	CHECK_OK(dev->ops->ipc_close(dev, q));
	CHECK_EQ(dev->ops->ipc_open(dev, &freed, &p), GANTRY_ERR_INVALID);
	CHECK_EQ(dev->ops->ipc_export(dev, &pid, sizeof(pid), &part), GANTRY_ERR_INVALID);
	memset(&part, 0, sizeof(part));
	CHECK_EQ(dev->ops->ipc_open(dev, &part, &p), GANTRY_ERR_INVALID);
}

/* Of a process that has ended, and of another pid namespace. */
TEST(check_ipc_gone)
{
	struct gantry_ipc_handle handle;
	int pipes[2];
	pid_t pid;
	void *p;

	CHECK_EQ(pipe(pipes), 0);
	pid = child_fork();
	if (!pid) {
		CHECK_OK(gantry_mem_alloc(dev, 100, &p));
		CHECK_OK(dev->ops->ipc_export(dev, p, 100, &handle));
		CHECK_EQ(write(pipes[1], &handle, sizeof(handle)), sizeof(handle));
		_exit(0);
	}
	CHECK_EQ(read(pipes[0], &handle, sizeof(handle)), sizeof(handle));
	child_wait(pid);
	CHECK_EQ(dev->ops->ipc_open(dev, &handle, &p), GANTRY_ERR_PEER_LOST);
	handle.bytes[8] ^= 1; /* the namespace's inode */
	CHECK_EQ(dev->ops->ipc_open(dev, &handle, &p), GANTRY_ERR_UNSUPPORTED);
	close(pipes[0]);
	close(pipes[1]);
}

/* Bodies. */
struct order_args {
	uint64_t *next;
	uint64_t expected;
	uint64_t filler[40]; /* beyond what travels inside an item */
};

static void body_order(const void *p)
{
	const struct order_args *a = p;

	CHECK_EQ(*a->next, a->expected);
	*a->next = a->expected + 1;
}

static void body_order_long(const void *p)
{
	const struct order_args *a = p;

	for (int i = 0; i < 40; i++)
		CHECK_EQ(a->filler[i], a->expected + (uint64_t)i);
	body_order(p);
}

static void body_gate(const void *p)
{
	uint32_t *const *gate = p;

	while (!__atomic_load_n(*gate, __ATOMIC_ACQUIRE))
		usleep(100);
}

static void body_add(const void *p)
{
	uint64_t *const *n = p;

	++**n; /* only the stream's thread does this */
}

static void *produce(void *arg)
{
	void **both = arg;

	for (int i = 0; i < MANY; i++)
		CHECK_OK(launch1(both[0], body_add, &both[1], sizeof(both[1])));
	return NULL;
}

TEST(check_streams)
{
	struct order_args a = {0};
	struct gantry_stream *s;
	uint64_t next = 0, counter = 0, copied = 0;
	uint32_t open = 0, *gate = &open;
	void *both[2];
	pthread_t threads[4];

	CHECK_OK(gantry_stream_create(dev, &s));
	CHECK_OK(gantry_stream_query(dev, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	a.next = &next;
	for (; a.expected < MANY; a.expected++) {
		for (uint64_t i = 0; i < 40; i++)
			a.filler[i] = a.expected + i;
		if (a.expected % 3)
			CHECK_OK(launch1(s, body_order, &a, 16));
		else
			CHECK_OK(launch1(s, body_order_long, &a, sizeof(a)));
	}
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(next, MANY);
	CHECK_OK(gantry_stream_query(dev, s));

	CHECK_OK(launch1(s, body_gate, &gate, sizeof(gate)));
	CHECK_OK(dev->ops->copy_async(dev, s, &copied, &next, sizeof(next)));
	usleep(2000);
	CHECK_EQ(gantry_stream_query(dev, s), GANTRY_AGAIN);
	__atomic_store_n(&open, 1, __ATOMIC_RELEASE);
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(copied, MANY);

	both[0] = s;
	both[1] = &counter;
	threads_start(threads, 4, produce, both, 0);
	threads_join(threads, 4);
	CHECK_OK(gantry_stream_destroy(dev, s)); /* waits */
	CHECK_EQ(counter, 4 * MANY);
	CHECK_EQ(launch_blocks(NULL, 0, body_add, NULL, 0), GANTRY_ERR_INVALID);
	CHECK_EQ(launch_blocks(NULL, 257, body_add, NULL, 0), GANTRY_ERR_INVALID);
}

TEST(check_wrap)
{
	struct gantry_stream *own, *same, *def, *def2;
	uint64_t n = 0, *counter = &n;
	uint64_t wrong[8] = {0};

	CHECK_OK(gantry_stream_wrap(dev, NULL, &def));
	CHECK_OK(gantry_stream_wrap(dev, NULL, &def2));
	CHECK(def == def2);
	CHECK_OK(launch1(def, body_add, &counter, sizeof(counter)));
	CHECK_OK(gantry_stream_destroy(dev, def2));
	CHECK_OK(gantry_stream_sync(dev, def));
	CHECK_EQ(n, 1);
	CHECK_OK(gantry_stream_destroy(dev, def));
	CHECK_OK(gantry_stream_create(dev, &own));
	CHECK_OK(gantry_stream_wrap(dev, own, &same));
	CHECK(own == same);
	CHECK_OK(gantry_stream_destroy(dev, same));
	CHECK_OK(launch1(own, body_add, &counter, sizeof(counter)));
	CHECK_OK(gantry_stream_destroy(dev, own));
	CHECK_EQ(n, 2);
	CHECK_EQ(gantry_stream_wrap(dev, wrong, &own), GANTRY_ERR_INVALID);
}

struct mover {
	uint8_t *from, *to;
	int turns;
};

/* Copies bytes there and back, many times; each fence must cover the copies before it. */
static void *move_about(void *arg)
{
	struct mover *m = arg;
	enum { SIZE = 4096 };

	for (int i = 0; i < m->turns; i++) {
		for (int way = 0; way < GANTRY_COPY_QUEUES; way++) {
			uint8_t *src = way ? m->to : m->from, *dst = way ? m->from : m->to;
			uint64_t fence;

			memset(src, i + way + 1, SIZE);
			CHECK_OK(dev->ops->queue_copy(dev, way, dst, src, SIZE / 2));
			CHECK_OK(dev->ops->queue_copy(dev, way, dst + SIZE / 2, src + SIZE / 2, SIZE / 2));
			CHECK_OK(dev->ops->queue_fence(dev, way, &fence));
			while (dev->ops->fence_reached(dev, way, fence) == GANTRY_AGAIN)
				sched_yield();
			CHECK(memcmp(dst, src, SIZE) == 0);
		}
	}
	return NULL;
}

TEST(check_moves)
{
	static uint8_t memory[4][2][4096];
	struct mover m[4];
	pthread_t thread[4];
	uint64_t fence;

	/* A fence for nothing is reached at once. */
	CHECK_OK(dev->ops->queue_fence(dev, GANTRY_COPY_IN, &fence));
	CHECK_OK(dev->ops->fence_reached(dev, GANTRY_COPY_IN, fence));
	for (int i = 0; i < 4; i++) {
		m[i] = (struct mover){memory[i][0], memory[i][1], 200};
		CHECK_EQ(pthread_create(&thread[i], NULL, move_about, &m[i]), 0);
	}
	threads_join(thread, 4);
}

TEST(check_events)
{
	struct gantry_stream *a, *b;
	struct gantry_dev_event *e, *f;
	uint32_t open = 0, *gate = &open;
	uint64_t x = 1, y = 0, z = 0;
	double us;

	CHECK_OK(gantry_stream_create(dev, &a));
	CHECK_OK(gantry_stream_create(dev, &b));
	CHECK_OK(dev->ops->event_create(dev, &e));
	CHECK_OK(dev->ops->event_create(dev, &f));
	CHECK_OK(dev->ops->event_query(dev, e)); /* never recorded: nothing to wait for */
	CHECK_EQ(dev->ops->event_elapsed(dev, e, f, &us), GANTRY_ERR_USAGE);
	CHECK_OK(dev->ops->event_record(dev, e, a));
	CHECK_OK(launch1(a, body_gate, &gate, sizeof(gate)));
	CHECK_OK(dev->ops->copy_async(dev, a, &y, &x, sizeof(x)));
	CHECK_OK(dev->ops->event_record(dev, f, a));
	CHECK_OK(dev->ops->stream_wait(dev, b, f));
	CHECK_OK(dev->ops->copy_async(dev, b, &z, &y, sizeof(x)));
	while (dev->ops->event_query(dev, e) == GANTRY_AGAIN) /* a busy machine starts the stream's thread late */
		usleep(100);
	usleep(5000);
	CHECK_EQ(dev->ops->event_query(dev, f), GANTRY_AGAIN);
	CHECK_EQ(gantry_stream_query(dev, b), GANTRY_AGAIN);
	CHECK_EQ(dev->ops->event_elapsed(dev, e, f, &us), GANTRY_AGAIN);
	__atomic_store_n(&open, 1, __ATOMIC_RELEASE);
	CHECK_OK(gantry_stream_sync(dev, b));
	CHECK_EQ(z, 1);
	CHECK_OK(dev->ops->event_elapsed(dev, e, f, &us));
	CHECK(us >= 4000 && us < 60e6);

	/* A wait is for the record that it saw: one made later, behind a closed gate, holds nobody up. */
	open = 0;
	CHECK_OK(dev->ops->event_record(dev, e, b));
	CHECK_OK(launch1(a, body_gate, &gate, sizeof(gate)));
	CHECK_OK(dev->ops->stream_wait(dev, b, e));
	CHECK_OK(dev->ops->event_record(dev, e, a));
	CHECK_OK(gantry_stream_sync(dev, b));
	CHECK_OK(dev->ops->stream_wait(dev, b, e));
	CHECK_OK(dev->ops->event_destroy(dev, e));
	CHECK_OK(dev->ops->event_destroy(dev, NULL));
	CHECK_EQ(gantry_stream_query(dev, b), GANTRY_AGAIN);
	__atomic_store_n(&open, 1, __ATOMIC_RELEASE);
	CHECK_OK(gantry_stream_sync(dev, b));
	for (int i = 0; i < 100; i++)
		CHECK_OK(dev->ops->event_record(dev, f, i % 2 ? a : b));
	CHECK_OK(dev->ops->event_destroy(dev, f));
	CHECK_OK(gantry_stream_destroy(dev, a));
	CHECK_OK(gantry_stream_destroy(dev, b));
}

/* Where there is /dev/udmabuf an allocation has a dma-buf; elsewhere the error names it. */
static void check_dmabuf(void)
{
	uint64_t offset = 0;
	int fd = -1;
	void *p;

	CHECK_OK(gantry_mem_alloc(dev, 1 << 16, &p));
	if (dev->dmabuf) {
		CHECK_OK(dev->ops->dmabuf_export(dev, (char *)p + 100, 1000, &fd, &offset));
		CHECK_EQ(offset, 100);
		close(fd);
	} else {
		CHECK_ERROR(dev->ops->dmabuf_export(dev, p, 1 << 16, &fd, &offset), GANTRY_ERR_UNSUPPORTED,
			    "/dev/udmabuf");
	}
	CHECK_OK(gantry_mem_free(dev, p));
}

TEST(check_rest)
{
	uint64_t offset;
	int fd, can = 0;

	CHECK_OK(dev->ops->peer_access(dev, dev, &can));
	CHECK_EQ(can, 1);
	CHECK_EQ(dev->ops->dmabuf_export(dev, &can, sizeof(can), &fd, &offset), GANTRY_ERR_UNSUPPORTED);
	CHECK_OK(dev->ops->flush_remote_writes(dev));
	check_dmabuf();
	CHECK(dev->sleeps && dev->ll128_local && dev->default_lanes == 1 && dev->max_blocks >= 32);
	CHECK_STR(dev->bus_id, "");
}

void tests_begin(void)
{
	struct gantry_device *same;

	alarm(LIMIT_S);
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &dev));
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &same));
	CHECK(same == dev);
	gantry_device_close(same);
	CHECK_EQ(gantry_device_open(GANTRY_DEVICE_HOST, 1, &same), GANTRY_ERR_INVALID);
	CHECK_HAS(gantry_device_name(dev), "host, ");
}

void tests_end(void)
{
	gantry_device_close(dev);
}
