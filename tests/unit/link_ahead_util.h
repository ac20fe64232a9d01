/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver written by hand: it reads lane 0 as a stream of frames and gives the bytes of each bulk lane to the
 * pieces that were announced for it, in that order, and to nobody else.
 */
#ifndef GANTRY_TESTS_LINK_AHEAD_UTIL_H
#define GANTRY_TESTS_LINK_AHEAD_UTIL_H

#include <poll.h>

#include "base/log.h"
#include "base/param.h"
#include "device/device.h"
#include "link_pair.h"
#include "net/tcp/txmem.h"
#include "random.h"
#include "test.h"
#include "until.h"

enum { MESSAGES = 96, MAX_SIZE = 150000, TAGS = 3, PIECES = 4096, CONTROL = 1 << 20 };

struct piece {
	uint32_t tag, index, length;
	uint64_t offset, got;
};

struct message {
	uint8_t *data;
	uint64_t size, got, seen; /* bytes that came; bytes that were announced */
	uint64_t seq;
	int bulk, done;
};

/* What the hand-written receiver knows. */
struct receiver {
	const struct pair_config *config;
	int raw[WIRE_MAX_LANES];
	uint8_t *control;
	size_t have;
	struct piece *pieces[WIRE_MAX_LANES];
	uint32_t npieces[WIRE_MAX_LANES], at[WIRE_MAX_LANES];
	struct message messages[TAGS][MESSAGES];
	uint64_t lane_bytes[WIRE_MAX_LANES];
	uint64_t done, bulk_seen; /* bulk messages that are complete, all before the first that is not */
	uint8_t done_of[TAGS * MESSAGES];
	int ends, ahead, errors;
	uint64_t close_seq;
	uint8_t *early[WIRE_MAX_LANES]; /* payload that overtook its header */
	size_t nearly[WIRE_MAX_LANES];
};

static inline uint64_t seed_of(uint32_t tag, uint32_t index)
{
	return tag * 1000 + index;
}

static inline struct receiver *receiver_new(const struct pair_config *c, struct tcp_link **ret_link)
{
	struct receiver *r = calloc(1, sizeof(*r));

	r->config = c;
	r->control = malloc(CONTROL);
	for (int i = 0; i < c->nlanes; i++) {
		r->pieces[i] = calloc(PIECES, sizeof(struct piece));
		r->early[i] = malloc(8 << 20);
	}
	*ret_link = pair_raw(c, r->raw);
	(*ret_link)->session.device_tx = 1;
	return r;
}

static inline void receiver_free(struct receiver *r, struct tcp_link *l)
{
	pair_raw_free(r->config, l, r->raw);
	for (uint32_t t = 0; t < TAGS; t++)
		for (uint32_t i = 0; i < MESSAGES; i++)
			free(r->messages[t][i].data);
	for (int i = 0; i < r->config->nlanes; i++) {
		free(r->pieces[i]);
		free(r->early[i]);
	}
	free(r->control);
	free(r);
}

/* "So many receives are posted with this tag; so many bulk messages are done." */
static inline void say_state(struct receiver *r, uint32_t tag, uint32_t posted, uint64_t consumed)
{
	struct pair_frame f = {
		.kind = WIRE_STATE, .seq = r->done, .offset = consumed, .total = 1, .tag = tag, .index = posted};
	uint8_t b[48];

	f.flags = r->config->crc ? WIRE_FLAG_CRC : 0;
	pair_frame_put(b, &f);
	CHECK_EQ(send(r->raw[0], b, 48, MSG_NOSIGNAL), 48);
}

static inline struct message *message_of(struct receiver *r, const struct pair_frame *f)
{
	struct message *m;

	CHECK(f->tag < TAGS && f->index < MESSAGES);
	m = &r->messages[f->tag][f->index];
	if (!m->data) {
		m->data = malloc(f->total + 1);
		m->size = f->total;
	}
	CHECK_EQ(m->size, f->total);
	return m;
}

static inline void arrived(struct receiver *r, struct message *m, uint32_t tag, uint32_t index)
{
	if (m->got < m->size)
		return;
	CHECK_EQ(m->got, m->size);
	CHECK_EQ(pattern_wrong_at(m->data, m->size, seed_of(tag, index)), m->size);
	m->done = 1;
	if (m->bulk) {
		r->done_of[m->seq] = 1;
		while (r->done < sizeof(r->done_of) && r->done_of[r->done])
			r->done++;
	}
}

/* Bytes of a lane go to what was announced for it. */
static inline void attribute(struct receiver *r, int lane)
{
	uint8_t *from = r->early[lane];
	size_t left = r->nearly[lane];

	while (left && r->at[lane] < r->npieces[lane]) {
		struct piece *p = &r->pieces[lane][r->at[lane]];
		struct message *m = &r->messages[p->tag][p->index];
		size_t n = left < p->length - p->got ? left : p->length - p->got;

		memcpy(m->data + p->offset + p->got, from, n);
		from += n;
		left -= n;
		p->got += n;
		m->got += n;
		if (p->got == p->length) {
			r->at[lane]++;
			arrived(r, m, p->tag, p->index);
		}
	}
	memmove(r->early[lane], from, left);
	r->nearly[lane] = left;
}

static inline void on_frame(struct receiver *r, const uint8_t *b, const struct pair_frame *f)
{
	struct message *m;
	uint32_t lane = f->lane;

	CHECK_EQ(r->ends, 0); /* nothing follows CLOSE */
	CHECK_EQ(f->flags & WIRE_FLAG_CRC, r->config->crc ? WIRE_FLAG_CRC : 0);
	CHECK_EQ(f->crc, r->config->crc ? pair_header_crc(b) : 0);
	switch (f->kind) {
	case WIRE_EAGER:
		CHECK(f->length <= r->config->eager_max);
		m = message_of(r, f);
		CHECK_EQ(m->got, 0);
		memcpy(m->data, b + pair_header(b), f->length);
		m->got = f->length;
		arrived(r, m, f->tag, f->index);
		break;
	case WIRE_DESCRIPTOR:
		CHECK(lane >= 1 && lane < (uint32_t)r->config->nlanes);
		CHECK_EQ(f->flags & ~(WIRE_FLAG_ACK | WIRE_FLAG_DEEP | WIRE_FLAG_CRC), 0);
		m = message_of(r, f);
		m->bulk = 1;
		m->seq = f->seq;
		CHECK(f->seq < sizeof(r->done_of));
		m->seen += f->length;
		CHECK(f->offset + f->length <= f->total && m->seen <= m->size);
		CHECK(r->npieces[lane] < PIECES);
		r->pieces[lane][r->npieces[lane]++] =
			(struct piece){.tag = f->tag, .index = f->index, .length = f->length, .offset = f->offset};
		r->ahead++;
		break;
	case WIRE_CLOSE:
		r->ends++;
		r->close_seq = f->seq;
		break;
	case WIRE_ERROR:
		r->errors++;
		break;
	default:
		CHECK(f->kind == WIRE_RTS || f->kind == WIRE_STATE);
	}
}

static inline int read_control(struct receiver *r)
{
	ssize_t n = recv(r->raw[0], r->control + r->have, CONTROL - r->have, MSG_DONTWAIT);
	size_t at = 0;

	if (n <= 0)
		return 0;
	r->have += (size_t)n;
	while (r->have > at && r->have - at >= pair_header(r->control + at)) {
		struct pair_frame f = pair_frame_get(r->control + at);
		size_t whole = pair_header(r->control + at);

		whole += f.kind == WIRE_EAGER || f.kind == WIRE_ERROR ? f.length : 0;
		CHECK(r->control[at + 2] == 'G' && r->control[at + 3] == 'T');
		if (r->have - at < whole)
			break;
		on_frame(r, r->control + at, &f);
		at += whole;
	}
	memmove(r->control, r->control + at, r->have - at);
	r->have -= at;
	return 1;
}

/* One look at every lane; bulk lanes before lane 0, or after it. */
static inline int look(struct receiver *r, int control)
{
	int some = control == 1 ? read_control(r) : 0;

	for (int i = 1; i < r->config->nlanes; i++) {
		ssize_t n = recv(r->raw[i], r->early[i] + r->nearly[i], 1 + random_below(60000), MSG_DONTWAIT);

		if (n > 0) {
			r->nearly[i] += (size_t)n;
			r->lane_bytes[i] += (uint64_t)n;
			CHECK(r->nearly[i] < 7 << 20);
			some = 1;
		}
		attribute(r, i);
	}
	if (control == 2)
		some |= read_control(r);
	for (int i = 1; i < r->config->nlanes; i++)
		attribute(r, i);
	return some;
}

/* Payload, whoever it is for. */
static inline int read_bulk(struct receiver *r)
{
	int some = 0;

	for (int i = 1; i < r->config->nlanes; i++) {
		ssize_t n = recv(r->raw[i], r->early[i] + r->nearly[i], 4096, MSG_DONTWAIT);

		r->nearly[i] += n > 0 ? (size_t)n : 0;
		some |= n > 0;
	}
	return some;
}

static inline void ahead_params(void)
{
	setenv("GANTRY_ZEROCOPY_MIN", "4096", 1);
	setenv("GANTRY_CHUNK_MAX", "96k", 1);
	setenv("GANTRY_CHUNK_MIN", "64k", 1);
	CHECK_OK(gantry_params_load(1));
}

#endif
