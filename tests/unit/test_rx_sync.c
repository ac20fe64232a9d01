/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GANTRY_RX_RECV_SYNC: the CPU waits for each launch and each copy of a receive before it puts more into a stream,
 * and what has ARRIVED is in its place. What is sent from device memory is not waited for. Counted in the device's table.
 */
#include "device/device.h"
#include "rx/rx.h"
#include "rx_util.h"

enum { SIZE = 3 << 20, PIECE = 1000 };

static struct rx_pair pair;
static struct gantry_device_ops counted;
static const struct gantry_device_ops *real;
static struct gantry_device *dev;
static struct gantry_stream *last; /* of what was enqueued; NULL: it has been waited for */
static int launches, copies, syncs, unawaited;

/* Something new: what was there before should be over. */
static void enqueued(struct gantry_stream *s)
{
	unawaited += last != NULL;
	last = s;
}

static gantry_result count_launch(struct gantry_device *d, struct gantry_stream *s, const struct gantry_launch *l)
{
	enqueued(s);
	launches++;
	return real->launch(d, s, l);
}

static gantry_result count_copy(struct gantry_device *d, struct gantry_stream *s, void *dst, const void *src,
				size_t size)
{
	enqueued(s);
	copies++;
	return real->copy_async(d, s, dst, src, size);
}

static gantry_result count_sync(struct gantry_device *d, struct gantry_stream *s)
{
	if (s == last)
		last = NULL;
	syncs++;
	return real->stream_sync(d, s);
}

static gantry_result count_record(struct gantry_device *d, struct gantry_dev_event *e, struct gantry_stream *s)
{
	unawaited += last != NULL;
	last = NULL;
	return real->event_record(d, e, s);
}

/* Before any other thread uses the device. */
void tests_begin(void)
{
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &dev));
	real = dev->ops;
	counted = *real;
	counted.launch = count_launch;
	counted.copy_async = count_copy;
	counted.stream_sync = count_sync;
	counted.event_record = count_record;
	dev->ops = &counted;
}

void tests_end(void)
{
	gantry_device_close(dev);
}

/* The sender's memory is host memory: all that the device does is of the receive. */
static void receive(enum gantry_rx_path path, const char *sync, size_t piece, size_t gap)
{
	struct gantry_rx_config config = {.struct_size = sizeof(config), .path = path, .max_frags = 64};
	const struct rx_layout from = {SIZE, SIZE, SIZE}, to = {piece, piece + gap, SIZE};
	struct gantry_rx_piece px[2], py[2];
	struct gantry_rx_op *s, *r;
	enum gantry_rx_state state = GANTRY_RX_PENDING;
	unsigned char *src, *dst;

	set_params("GANTRY_RX_RECV_SYNC", sync);
	rx_pair_open(&pair, &config);
	src = rx_memory(&pair, &pair.a, rx_span(&from), 0);
	dst = rx_memory(&pair, &pair.b, rx_span(&to), 1);
	rx_fill(&from, src, 3);
	launches = copies = syncs = unawaited = 0;
	CHECK_OK(gantry_rx_send(pair.a.conn, px, rx_pieces(&from, src, px), 1, &s));
	CHECK_OK(gantry_rx_recv(pair.b.conn, py, rx_pieces(&to, dst, py), 1, &r));
	WAIT_WHILE (state != GANTRY_RX_DONE) {
		gantry_rx_poll(pair.a.rx, NULL, 0);
		state = gantry_rx_test(r);
		if (sync && state != GANTRY_RX_PENDING)
			rx_check(&to, dst, rx_span(&to), 3, 0);
	}
	CHECK_OK(rx_result(r));
	if (sync) {
		CHECK_EQ(unawaited, 0);
		CHECK_EQ(syncs, launches + copies);
	} else {
		CHECK(unawaited > 0);
		CHECK_EQ(syncs, 0);
	}
	CHECK_EQ(copies != 0, path == GANTRY_RX_PATH_HOST && piece == SIZE);
	CHECK_EQ(launches != 0, copies == 0);
	rx_both(s, r);
	rx_check(&to, dst, rx_span(&to), 3, 0);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, 0);
	rx_memory_free(&pair, &pair.b, dst, 1);
	rx_pair_close(&pair);
	set_params("GANTRY_RX_RECV_SYNC", NULL);
}
TEST_CALL(emulated, receive(GANTRY_RX_PATH_EMULATED, "on", SIZE, 0))
TEST_CALL(emulated_without, receive(GANTRY_RX_PATH_EMULATED, NULL, SIZE, 0))
TEST_CALL(copied, receive(GANTRY_RX_PATH_HOST, "on", SIZE, 0))
TEST_CALL(copied_without, receive(GANTRY_RX_PATH_HOST, NULL, SIZE, 0))
TEST_CALL(scattered, receive(GANTRY_RX_PATH_HOST, "on", PIECE, 24))
TEST_CALL(scattered_without, receive(GANTRY_RX_PATH_HOST, NULL, PIECE, 24))

/* A list of the caller's, in the caller's stream: its bytes are there when the call returns. */
TEST(listed)
{
	struct gantry_rx_config config = {
		.struct_size = sizeof(config), .path = GANTRY_RX_PATH_EMULATED, .max_frags = 64};
	static struct gantry_rx_frag frags[GANTRY_RX_FRAGS];
	struct gantry_rx_piece p;
	struct gantry_rx_op *s, *r;
	struct gantry_stream *stream;
	gantry_result got = GANTRY_OK;
	unsigned char *src, *dst;
	size_t n = 1;

	set_params("GANTRY_RX_RECV_SYNC", "on");
	rx_pair_open(&pair, &config);
	CHECK_OK(gantry_stream_create(pair.dev, &stream));
	src = rx_memory(&pair, &pair.a, SIZE, 0);
	dst = rx_memory(&pair, &pair.b, SIZE, 1);
	launches = syncs = unawaited = 0;
	pattern_fill(src, SIZE, 5);
	p = (struct gantry_rx_piece){src, SIZE, 0, 1};
	CHECK_OK(gantry_rx_send(pair.a.conn, &p, 1, 1, &s));
	CHECK_OK(gantry_rx_recv_frags(pair.b.conn, SIZE, 1, &r));
	WAIT_WHILE (n) {
		gantry_rx_poll(pair.a.rx, NULL, 0);
		got = gantry_rx_op_frags(r, frags, GANTRY_RX_FRAGS, 0, &n);
		if (got == GANTRY_ERR_TIMEOUT)
			continue;
		CHECK_OK(got);
		CHECK_OK(gantry_rx_unpack(r, frags, n, dst, stream));
		for (size_t i = 0; i < n; i++)
			CHECK_PATTERN_FROM(dst + frags[i].dst_off, frags[i].len, 5, frags[i].dst_off);
		CHECK_OK(gantry_rx_op_release(r, NULL));
	}
	CHECK(launches >= SIZE / 4096 / 64);
	CHECK_EQ(syncs, launches);
	CHECK_EQ(unawaited, 0);
	rx_both(s, r);
	CHECK_OK(rx_result(r));
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	CHECK_OK(gantry_stream_destroy(pair.dev, stream));
	rx_memory_free(&pair, &pair.a, src, 0);
	rx_memory_free(&pair, &pair.b, dst, 1);
	rx_pair_close(&pair);
	set_params("GANTRY_RX_RECV_SYNC", NULL);
}

/* Gathering for a send is not waited for. */
TEST(sending)
{
	struct gantry_rx_config config = {.struct_size = sizeof(config), .path = GANTRY_RX_PATH_HOST};
	struct gantry_rx_piece p;
	struct gantry_rx_op *s, *r;
	unsigned char *src, *dst;

	set_params("GANTRY_RX_RECV_SYNC", "on");
	rx_pair_open(&pair, &config);
	src = rx_memory(&pair, &pair.a, SIZE, 1);
	dst = rx_memory(&pair, &pair.b, SIZE, 0);
	launches = copies = syncs = 0;
	pattern_fill(src, SIZE, 5);
	p = (struct gantry_rx_piece){src, SIZE, 0, 1};
	CHECK_OK(gantry_rx_send(pair.a.conn, &p, 1, 1, &s));
	p.base = dst;
	CHECK_OK(gantry_rx_recv(pair.b.conn, &p, 1, 1, &r));
	rx_both(s, r);
	CHECK_OK(rx_result(s));
	CHECK(copies > 0);
	CHECK_EQ(syncs, 0);
	CHECK_PATTERN(dst, SIZE, 5);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, 1);
	rx_memory_free(&pair, &pair.b, dst, 0);
	rx_pair_close(&pair);
	set_params("GANTRY_RX_RECV_SYNC", NULL);
}
