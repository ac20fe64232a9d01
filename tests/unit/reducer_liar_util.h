/* SPDX-License-Identifier: Apache-2.0 */
/* Lies about messages between ranks and reducers, and a party of a job that tells them, by the network's own calls. */
#ifndef GANTRY_TESTS_REDUCER_LIAR_UTIL_H
#define GANTRY_TESTS_REDUCER_LIAR_UTIL_H

#include "liar_util.h"
#include "reducer/reducer.h"
#include "reducer/reducer_wire.h"

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

enum { BYTES = 64, COUNT = BYTES / 4, MESSAGE = REDUCER_HEADER + BYTES, ROOM = 8192 };

/* ---- lies ---- */

static const struct {
	uint8_t at, width;
} fields[] = {{0, 4},  {4, 1},	{5, 1},	 {6, 1},  {7, 1},  {6, 2},  {8, 4},
	      {12, 4}, {16, 8}, {24, 8}, {32, 8}, {40, 8}, {48, 8}, {56, 8}};
static const uint64_t values[] = {0, 1, 3, BYTES, INT64_MAX, 1ull << 63, UINT64_MAX};
static const size_t sizes[] = {0,	    1,	 REDUCER_HEADER - 1, REDUCER_HEADER, REDUCER_HEADER + 1, MESSAGE - 1,
			       MESSAGE + 1, ROOM};
enum { FIELD_LIES = TEST_COUNT(fields) * TEST_COUNT(values), LIES = FIELD_LIES + TEST_COUNT(sizes) };

/* Lie i about a message of that size. Returns the size of what is sent. A field that is smaller than a value has the value's
 * upper bits: its own upper edges. */
static size_t lie(uint8_t *m, size_t size, size_t i)
{
	size_t field = i / TEST_COUNT(values), value = i % TEST_COUNT(values);
	uint64_t v = values[value];

	if (i >= FIELD_LIES)
		return sizes[i - FIELD_LIES];
	if (fields[field].at == 4)
		v = value; /* each kind */
	if (v >> 56)
		v >>= 64 - 8 * fields[field].width;
	for (int k = 0; k < fields[field].width; k++)
		m[fields[field].at + k] = (uint8_t)(v >> 8 * k);
	return size;
}

/* ---- a party of a job that is played here ---- */

struct party {
	void *ctx, *listen, *out, *in;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
};

/* Each with a communicator of its own: else the network would carry two parties of this process over one connection. */
static void open_party(struct party *p)
{
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF, .standing_receives = 1};
	static uint64_t id;

	*p = (struct party){0};
	CHECK_OK(NET(init, ++id, &config, &p->ctx));
	CHECK_OK(NET(listen, p->ctx, 0, p->handle, &p->listen));
}

static void hang_up(struct party *p)
{
	NET(close_send, p->out);
	NET(close_recv, p->in);
	p->out = p->in = NULL;
}

static void close_party(struct party *p)
{
	hang_up(p);
	CHECK_OK(NET(close_listen, p->listen));
	CHECK_OK(NET(finalize, p->ctx));
}

/* False: it is refused, because the other has given the job up. */
static bool reach_out(struct party *p, const uint8_t *handle)
{
	struct gantry_net_device_handle *none = NULL;
	uint8_t to[GANTRY_NET_HANDLE_SIZE];
	gantry_result r = GANTRY_OK;

	memcpy(to, handle, sizeof(to));
	UNTIL((r = typed(NET(connect, p->ctx, 0, to, &p->out, &none))) != GANTRY_OK || p->out);
	return r == GANTRY_OK;
}

static void be_dialled(struct party *p)
{
	struct gantry_net_device_handle *none = NULL;
	gantry_result r = GANTRY_OK;

	UNTIL((r = NET(accept, p->listen, &p->in, &none)) != GANTRY_OK || p->in);
	CHECK_OK(r);
}

/* The peer may be gone. */
static void put(struct party *p, int tag, const uint8_t *message, size_t size)
{
	static uint8_t kept[64][ROOM]; /* as long as their requests, which end soon */
	static unsigned n;
	uint8_t *out = kept[n++ % 64];
	void *request = NULL;
	int done = 0;

	memcpy(out, message, size);
	if (p->out && typed(NET(isend, p->out, out, size, tag, NULL, &request)) == GANTRY_OK && request)
		UNTIL(typed(NET(test, request, &done, NULL)) != GANTRY_OK || done);
}

static void put_message(struct party *p, int tag, const struct reducer_message *m, size_t size)
{
	uint8_t out[MESSAGE] = {0};

	reducer_encode(m, out);
	put(p, tag, out, size);
}

/* The next message, or the connection's end. */
static gantry_result get(struct party *p, int tag, struct reducer_message *ret)
{
	static uint8_t in[ROOM];
	void *data = in, *request = NULL;
	size_t size = sizeof(in);
	int done = 0, got = 0;
	gantry_result r = GANTRY_OK;

	WAIT_WHILE (r == GANTRY_OK && !request)
		r = typed(NET(irecv, p->in, 1, &data, &size, &tag, NULL, &request));
	WAIT_WHILE (r == GANTRY_OK && !done) {
		r = typed(NET(test, request, &done, &got));
		sleep_ns(20000);
	}
	if (r == GANTRY_OK)
		CHECK_OK(reducer_decode(in, (size_t)got, ret)); /* honest sides say what can be */
	return r;
}

static const struct reducer_piece honest = {
	.coll = REDUCER_ALL_REDUCE, .type = GANTRY_TYPE_INT32, .op = GANTRY_OP_SUM, .bytes = BYTES, .total = BYTES};

static void put_piece(struct party *p, enum reducer_kind kind)
{
	put_message(p, kind == REDUCER_RESULT ? REDUCER_TAG_RESULT : REDUCER_TAG_DATA,
		    &(struct reducer_message){.kind = kind, .piece = honest}, MESSAGE);
}

/* Lie i about a message, so many times. */
static void put_lie(struct party *p, int tag, const struct reducer_message *m, size_t size, size_t i, int times)
{
	static uint8_t out[ROOM];

	memset(out, 0, sizeof(out));
	reducer_encode(m, out);
	size = lie(out, size, i);
	while (times--)
		put(p, tag, out, size);
}

#endif
