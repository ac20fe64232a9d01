/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a peer that a rank has mapped is unmapped when the peer deregisters it, so that memory which the peer frees is free.
 * Where closing may wait for kernels, as on a GPU, it is put off to the next call that finds no kernel running, whichever call that is.
 * Two processes on the host device, which plays the GPU's part while the peer's request comes in.
 */
#include <sys/mman.h>

#include "base/atomic.h"
#include "comm/comm.h"
#include "comm_world.h"
#include "device/device.h"
#include "inet/loop.h"

enum { BYTES = 1 << 20, LITTLE = 8 };

static struct shared {
	struct gantry_unique_id id;
	uint32_t step; /* how far the two are; release, acquire */
} *shared;

static void step_done(uint32_t n)
{
	store_release(&shared->step, n);
}

static void step_wait(uint32_t n)
{
	UNTIL(load_acquire(&shared->step) >= n);
}

/* ---- the device's mappings ---- */

static const struct gantry_device_ops *plain_ops;
static struct gantry_device_ops counting_ops;
static uint32_t closes; /* atomic */

static gantry_result count_close(struct gantry_device *dev, void *ptr)
{
	fetch_add_relaxed(&closes, 1);
	return plain_ops->ipc_close(dev, ptr);
}

struct side {
	struct gantry_device *dev;
	struct gantry_stream *s;
	struct gantry_comm *comm;
	void *memory; /* of BYTES, exportable */
};

static void side_open(struct side *d, int rank, const char *transport)
{
	struct gantry_comm_config config = {
		.struct_size = sizeof(config), .rank = rank, .nranks = 2, .channels = 1, .transport = transport};

	if (rank == 0)
		CHECK_OK(gantry_unique_id_create(&shared->id));
	if (rank == 0)
		step_done(1);
	step_wait(1);
	config.id = shared->id;
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &d->dev));
	plain_ops = d->dev->ops;
	counting_ops = *plain_ops;
	counting_ops.ipc_close = count_close;
	d->dev->ops = &counting_ops;
	CHECK_OK(gantry_stream_create(d->dev, &d->s));
	CHECK_OK(gantry_mem_alloc(d->dev, BYTES, &d->memory));
	config.device = d->dev;
	CHECK_OK(gantry_comm_init(&config, &d->comm));
}

static void side_close(struct side *d)
{
	CHECK_OK(gantry_comm_destroy(d->comm));
	CHECK_OK(gantry_stream_destroy(d->dev, d->s));
	d->dev->ops = plain_ops;
	gantry_device_close(d->dev);
}

/* The kind alone says that closing may wait. No other thread looks at it without this lock while no call is under way. */
static void play(struct side *d, enum gantry_device_kind kind)
{
	inet_loop_lock();
	d->dev->kind = kind;
	inet_loop_unlock();
}

static void send_bytes(struct side *d, const void *from, size_t n)
{
	CHECK_OK(gantry_send(from, n, GANTRY_TYPE_UINT8, 1, d->comm, d->s));
	CHECK_OK(gantry_stream_sync(d->dev, d->s));
}

static void recv_bytes(struct side *d, void *to, size_t n)
{
	CHECK_OK(gantry_recv(to, n, GANTRY_TYPE_UINT8, 0, d->comm, d->s));
	CHECK_OK(gantry_stream_sync(d->dev, d->s));
}

/* ---- registered buffers: the receiver's kernel reads the sender's memory ---- */

static void run_sender(const char *transport)
{
	struct side d;
	uint8_t little[LITTLE];
	void *handle;

	side_open(&d, 0, transport);
	pattern_fill(d.memory, BYTES, 3);
	pattern_fill(little, LITTLE, 4);
	CHECK_OK(gantry_comm_register(d.comm, d.memory, BYTES, &handle));
	send_bytes(&d, d.memory, BYTES);
	step_wait(2); /* the receiver plays a GPU */
	CHECK_OK(gantry_comm_deregister(d.comm, handle));
	CHECK_OK(gantry_mem_free(d.dev, d.memory));
	step_done(3);
	step_wait(4);
	send_bytes(&d, little, LITTLE);
	send_bytes(&d, little, LITTLE);
	send_bytes(&d, little, LITTLE);
	side_close(&d);
}

/* busy: a kernel of the receiver is waiting when the request comes. */
static void run_receiver(const char *transport, bool busy)
{
	struct side d;
	uint8_t *in = malloc(BYTES), little[3][LITTLE];
	uint32_t before;

	side_open(&d, 1, transport);
	recv_bytes(&d, in, BYTES);
	CHECK_PATTERN(in, BYTES, 3);
	CHECK_EQ(d.comm->peer_memory.nmapped, 1);
	before = load_relaxed(&closes);
	if (busy)
		CHECK_OK(gantry_recv(little[0], LITTLE, GANTRY_TYPE_UINT8, 0, d.comm, d.s));
	play(&d, GANTRY_DEVICE_CUDA);
	step_done(2);
	step_wait(3);
	play(&d, GANTRY_DEVICE_HOST);
	CHECK_EQ(load_relaxed(&closes), before); /* a kernel might read it */
	if (!busy)
		CHECK_OK(gantry_recv(little[0], LITTLE, GANTRY_TYPE_UINT8, 0, d.comm, d.s));
	CHECK_EQ(load_relaxed(&closes), before + !busy);
	CHECK_OK(gantry_recv(little[1], LITTLE, GANTRY_TYPE_UINT8, 0, d.comm, d.s));
	CHECK_EQ(load_relaxed(&closes), before + !busy);
	step_done(4);
	CHECK_OK(gantry_stream_sync(d.dev, d.s));
	recv_bytes(&d, little[2], LITTLE);
	CHECK_EQ(load_relaxed(&closes), before + 1);
	for (int i = 0; i < 3; i++)
		CHECK_PATTERN(little[i], LITTLE, 4);
	CHECK_OK(gantry_mem_free(d.dev, d.memory));
	side_close(&d);
	free(in);
}

/* ---- windows: the origin's kernel writes into the target's memory ---- */

static void run_target(const char *transport)
{
	struct gantry_signal_wait wait = {.count = 1, .peer = 1};
	struct gantry_window *window;
	uint8_t little[LITTLE];
	struct side d;

	side_open(&d, 0, transport);
	pattern_fill(little, LITTLE, 4);
	send_bytes(&d, little, LITTLE); /* connected from here on */
	CHECK_OK(gantry_window_register(d.comm, d.memory, BYTES, &window));
	CHECK_OK(gantry_wait_signals(&wait, 1, d.comm, d.s));
	CHECK_OK(gantry_stream_sync(d.dev, d.s));
	CHECK_PATTERN(d.memory, BYTES, 3);
	CHECK_OK(gantry_window_deregister(d.comm, window));
	CHECK_OK(gantry_mem_free(d.dev, d.memory));
	step_wait(2);
	send_bytes(&d, little, LITTLE);
	send_bytes(&d, little, LITTLE);
	side_close(&d);
}

/* Deregistering is local: this rank's window ends its mapping of the target's memory. */
static void run_origin(const char *transport, bool busy)
{
	struct side d;
	uint8_t *out = malloc(BYTES), little[2][LITTLE];
	struct gantry_window *window;
	uint32_t before;

	side_open(&d, 1, transport);
	pattern_fill(out, BYTES, 3);
	recv_bytes(&d, little[0], LITTLE);
	CHECK_OK(gantry_window_register(d.comm, d.memory, BYTES, &window));
	before = load_relaxed(&closes);
	CHECK_OK(gantry_put(out, BYTES, 0, window, 0, 0, d.comm, d.s));
	CHECK_OK(gantry_stream_sync(d.dev, d.s));
	if (busy)
		CHECK_OK(gantry_recv(little[0], LITTLE, GANTRY_TYPE_UINT8, 0, d.comm, d.s));
	CHECK_EQ(load_relaxed(&closes), before);
	CHECK_OK(gantry_window_deregister(d.comm, window));
	CHECK_EQ(load_relaxed(&closes), before + !busy); /* a put's kernel might be the one that runs */
	if (!busy)
		CHECK_OK(gantry_recv(little[0], LITTLE, GANTRY_TYPE_UINT8, 0, d.comm, d.s));
	step_done(2);
	CHECK_OK(gantry_stream_sync(d.dev, d.s));
	recv_bytes(&d, little[1], LITTLE);
	CHECK_EQ(load_relaxed(&closes), before + 1);
	for (int i = 0; i < 2; i++)
		CHECK_PATTERN(little[i], LITTLE, 4);
	CHECK_OK(gantry_mem_free(d.dev, d.memory));
	side_close(&d);
	free(out);
}

static void run_two(const char *transport, bool windows, bool busy)
{
	pid_t pid;

	set_params("GANTRY_IFNAME", "lo");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	pid = child_fork();
	if (pid == 0) {
		windows ? run_target(transport) : run_sender(transport);
		child_end(0);
	}
	windows ? run_origin(transport, busy) : run_receiver(transport, busy);
	child_wait(pid);
	munmap(shared, sizeof(*shared));
}

TEST_CALL(buffer_while_idle, run_two("p2p", false, false))
TEST_CALL(buffer_while_busy, run_two("p2p", false, true))
TEST_CALL(window_while_idle, run_two("p2p", true, false))
TEST_CALL(window_while_busy, run_two("p2p", true, true))

void tests_begin(void)
{
	tests_apart(1);
}
