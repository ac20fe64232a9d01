/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes whose bytes travel in sealed records (base/seal.h): the last step before the socket and the first after it. What
 * is in the records are the frames of any lane, cut anywhere; this sender gives the header of a piece a record of its own.
 *
 * Receiving: ciphertext is read into a buffer that stays in the core's cache, and opened from there to its final place.
 * Nothing is looked at before the record that it came in was found authentic; payload is written before that, and counts
 * after it. Sending: some records are sealed into such a buffer, and sent from there with one call. No byte goes by
 * reference.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/bytes.h"
#include "base/log.h"
#include "net/tcp/link.h"

enum {
	WHOLE = GANTRY_SEAL_MAX + GANTRY_SEAL_EXTRA,
	SHORT = WIRE_FRAME_SIZE + GANTRY_SEAL_EXTRA, /* the header of a piece */
	BATCH = 2, /* records in one system call: 1 and 4 were slower (docs/design/0032) */
	ROOM = SHORT + BATCH * WHOLE,
	/* Behind a header that is cut, a record of any length. */
	AHEAD = WIRE_FRAME_SIZE + GANTRY_SEAL_MAX,
};

/* ---- life ---- */

gantry_result tcp_lane_seal(struct tcp_lane *lane, struct inet_seals *seals)
{
	struct tcp_sealed *s = calloc(1, sizeof(*s));
	uint8_t *ahead = malloc(AHEAD);
	gantry_result r = GANTRY_OK;

	if (!s || !ahead)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a sealed lane");
	s->out = malloc(ROOM);
	s->in = malloc(ROOM);
	s->out_room = ROOM;
	if (!s->out || !s->in)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a sealed lane");
	s->seals = *seals;
	*seals = (struct inet_seals){0};
	lane->sealed = s;
	s = NULL;
	lane_rx_mu_lock(&lane->rx.lock);
	free(lane->rx.buf);
	lane->rx.buf = ahead;
	lane->rx.room = AHEAD;
	lane->rx.ops = &tcp_receive_sealed;
	lane_rx_mu_unlock(&lane->rx.lock);
	ahead = NULL;
out:
	if (s) {
		free(s->out);
		free(s->in);
	}
	free(s);
	free(ahead);
	return r;
}

/* The buffers stay; nothing of the old socket is left in them that could be opened, or sent, by mistake. */
void tcp_lane_reseal(struct tcp_lane *lane, struct inet_seals *seals)
{
	struct tcp_sealed *s = lane->sealed;

	if (!s)
		return;
	inet_seals_free(&s->seals);
	s->seals = *seals;
	*seals = (struct inet_seals){0};
	s->out_at = s->out_n = 0;
	s->in_at = s->in_n = 0;
	s->empty = false;
}

void tcp_lane_unseal(struct tcp_lane *lane)
{
	struct tcp_sealed *s = lane->sealed;

	if (!s)
		return;
	inet_seals_free(&s->seals);
	free(s->out);
	free(s->in);
	free(s);
	lane->sealed = NULL;
}

/* ---- sending ---- */

/* The first `bytes` of the parts. Returns how many of them that are. */
static int cut_parts(struct iovec *iov, int n, size_t bytes)
{
	int i = 0;

	for (; i < n && bytes; i++) {
		if (iov[i].iov_len > bytes)
			iov[i].iov_len = bytes;
		bytes -= iov[i].iov_len;
	}
	return i;
}

/* As many records of the piece as go in one call. False: the library has failed. */
static bool seal_piece(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	struct tcp_sealed *s = lane->sealed;

	s->out_at = s->out_n = 0;
	if (tx->header_left) {
		ASSERT(tx->header_left == WIRE_FRAME_SIZE);
		s->out_n = gantry_seal_close(s->seals.tx, &(struct iovec){tx->header, WIRE_FRAME_SIZE}, 1, s->out);
		if (!s->out_n)
			return false;
		tx->header_left = 0;
	}
	for (int i = 0; i < BATCH && tx->left; i++) {
		struct iovec iov[LINK_VEC_MAX];
		uint64_t bytes;
		int n = tcp_piece_list(tx, iov, &bytes);
		size_t size;

		if (bytes > GANTRY_SEAL_MAX)
			bytes = GANTRY_SEAL_MAX;
		size = gantry_seal_close(s->seals.tx, iov, cut_parts(iov, n, bytes), s->out + s->out_n);
		if (!size)
			return false;
		s->out_n += size;
		tcp_piece_advance(tx, bytes);
	}
	tx->in_pipe = s->out_n;
	return true;
}

static int push_sealed(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	struct tcp_sealed *s = lane->sealed;

	ASSERT_HELD(&tx->lock);
	while (tx->left || tx->header_left || tx->in_pipe) {
		ssize_t n;

		if (!tx->in_pipe && !seal_piece(lane)) {
			errno = EIO;
			return -1;
		}
		n = lane->io.ops->send(&lane->io, &(struct iovec){s->out + s->out_at, tx->in_pipe}, 1,
				       tx->left ? TCP_IO_MORE : 0);
		if (n < 0)
			return tcp_io_is_later(errno) ? 0 : -1;
		tcp_lane_given(lane, n);
		s->out_at += (size_t)n;
		tx->in_pipe -= (uint64_t)n;
	}
	return 1;
}

const struct tcp_push_ops tcp_push_sealed = {.name = "sealed", .push = push_sealed};

/* The next bytes of the batch, at most a record's. Returns how many parts; *ret_bytes: of how many bytes. */
static int list_batch(struct tcp_control *c, struct iovec iov[2 * LINK_BATCH], size_t *ret_bytes)
{
	size_t bytes = 0;
	int n = 0;

	for (int i = c->iov_at; i < c->iov_n && n < 2 * LINK_BATCH && bytes < GANTRY_SEAL_MAX; i++) {
		iov[n] = c->iov[i];
		if (iov[n].iov_len > GANTRY_SEAL_MAX - bytes)
			iov[n].iov_len = GANTRY_SEAL_MAX - bytes;
		bytes += iov[n++].iov_len;
	}
	*ret_bytes = bytes;
	return n;
}

bool tcp_control_seal(struct tcp_link *l)
{
	struct tcp_control *c = l->control;
	struct tcp_sealed *s = l->lanes[0].sealed;
	struct iovec iov[2 * LINK_BATCH];
	size_t size = 0, bytes;

	if (!s || !s->seals.tx) /* there was no memory for it, and the link has failed */
		return false;
	for (int i = c->iov_at; i < c->iov_n; i++)
		size += c->iov[i].iov_len;
	/* Each record but the last is full, or has as many parts as fit: no batch has more parts than two of those. */
	size += (size / GANTRY_SEAL_MAX + 3) * GANTRY_SEAL_EXTRA;
	if (size > s->out_room) {
		uint8_t *out = realloc(s->out, size);

		if (!out)
			return false;
		s->out = out;
		s->out_room = size;
	}
	for (size = 0; c->iov_at < c->iov_n;) {
		int n = list_batch(c, iov, &bytes);
		size_t sealed = gantry_seal_close(l->lanes[0].sealed->seals.tx, iov, n, s->out + size);

		if (!sealed)
			return false;
		size += sealed;
		tcp_control_advance(c, bytes);
	}
	c->iov[0] = (struct iovec){s->out, size};
	c->iov_at = 0;
	c->iov_n = 1;
	return true;
}

/* ---- receiving ---- */

/* Something on the way has meddled with the lane: nothing that comes on it can be believed any more. */
static void refuse_record(struct tcp_lane *lane, const char *why) REQUIRES(lane_rx_mu)
{
	const struct wire_piece *f = &lane->rx.frame.piece;

	if (lane->rx.state == TCP_RX_PAYLOAD && lane->rx.frame.kind != WIRE_ERROR)
		tcp_link_fail(lane->link, 1, GANTRY_ERR_CORRUPT,
			      "lane %d, message %u of tag %u, offset %llu, %llu bytes before the end of its piece: %s",
			      lane->index, f->index, f->tag, (unsigned long long)f->offset,
			      (unsigned long long)lane->rx.left, why);
	else
		tcp_link_fail(lane->link, 1, GANTRY_ERR_CORRUPT, "lane %d: %s", lane->index, why);
}

/* The size of the record that is next in the buffer; 0: its header is not there. -1: it is refused. */
static int64_t next_record(struct tcp_lane *lane) REQUIRES(lane_rx_mu)
{
	struct tcp_sealed *s = lane->sealed;
	char why[GANTRY_SEAL_WHY];
	uint32_t length;

	if (s->in_n - s->in_at < GANTRY_SEAL_HEADER)
		return 0;
	length = gantry_seal_length(s->seals.rx, s->in + s->in_at, why);
	if (!length) {
		refuse_record(lane, why);
		return -1;
	}
	return (int64_t)length + GANTRY_SEAL_EXTRA;
}

/*
 * How much to ask for: what is missing of the record that has begun, or most likely comes next, and whole ones behind it.
 * If the guess is right nothing is cut, and nothing has to be moved in the buffer.
 */
static size_t bytes_to_ask(struct tcp_lane *lane, int64_t record) REQUIRES(lane_rx_mu)
{
	struct tcp_sealed *s = lane->sealed;
	size_t have = s->in_n - s->in_at, first = (size_t)record;

	if (!record)
		first = lane->index && lane->rx.state == TCP_RX_HEADER ? SHORT : WHOLE;
	ASSERT(have < first);
	first -= have;
	return first + (ROOM - s->in_n - first) / WHOLE * WHOLE;
}

/* So many bytes have come behind those that were there. */
static void take_records(struct tcp_lane *lane, size_t n) REQUIRES(lane_rx_mu)
{
	lane->sealed->in_n += n;
	store_relaxed(&lane->rx.bytes, lane->rx.bytes + (uint64_t)n);
}

/* One read. As fill. */
static ssize_t read_records(struct tcp_lane *lane, int64_t record) REQUIRES(lane_rx_mu)
{
	struct tcp_sealed *s = lane->sealed;
	size_t have = s->in_n - s->in_at, ask;
	ssize_t n;

	if (!have || s->in_at + WHOLE > ROOM) {
		memmove(s->in, s->in + s->in_at, have);
		s->in_n = have;
		s->in_at = 0;
	}
	ask = bytes_to_ask(lane, record);
	n = lane->io.ops->recv(&lane->io, &(struct iovec){s->in + s->in_n, ask}, 1);
	if (n <= 0)
		return n;
	s->empty = (size_t)n < ask;
	take_records(lane, (size_t)n);
	return n;
}

/* The plaintext of the next record goes to its final place, or, if that is not known yet, behind what was read ahead. */
static void open_record(struct tcp_lane *lane, size_t record) REQUIRES(lane_rx_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	struct tcp_sealed *s = lane->sealed;
	size_t length = record - GANTRY_SEAL_EXTRA;
	struct tcp_span span; /* large, and only its beginning is used */
	bool direct = false;

	if (rx->state == TCP_RX_PAYLOAD && rx->left >= length && rx->head == rx->tail) {
		rx->target->list(rx, &span);
		direct = span.bytes >= length;
	}
	if (direct) {
		span.n = cut_parts(span.iov, span.n, length);
	} else {
		ASSERT(rx->room - rx->tail >= length);
		span.iov[0] = (struct iovec){rx->buf + rx->tail, length};
		span.n = 1;
	}
	if (!gantry_seal_open(s->seals.rx, s->in + s->in_at, span.iov, span.n)) {
		refuse_record(lane, "a record is not authentic: it was modified, or belongs to another lane");
		return;
	}
	s->in_at += record;
	if (direct)
		rx->target->advance(rx, length);
	else
		rx->tail += (uint32_t)length;
}

static bool has_record(struct tcp_lane *lane) REQUIRES(lane_rx_mu)
{
	struct tcp_sealed *s = lane->sealed;

	return s->in_n - s->in_at >= GANTRY_SEAL_HEADER &&
	       s->in_n - s->in_at >= (size_t)get32(s->in + s->in_at + 4) + GANTRY_SEAL_EXTRA;
}

static ssize_t fill_sealed(struct tcp_lane *lane, bool *ret_drained) REQUIRES(lane_rx_mu)
{
	struct tcp_sealed *s = lane->sealed;
	int64_t record = next_record(lane);
	ssize_t n = 1;

	if (record >= 0 && !has_record(lane)) {
		n = read_records(lane, record);
		if (n <= 0)
			return n;
		record = next_record(lane);
	}
	if (record > 0 && has_record(lane)) {
		open_record(lane, (size_t)record);
		n = (ssize_t)record;
	}
	*ret_drained = s->empty && !has_record(lane);
	return n;
}

static int digest_sealed(struct tcp_lane *lane, bool force) REQUIRES(lane_rx_mu, link_mu)
{
	/* What was refused must not be looked at. */
	return tcp_link_failed(lane->link) ? -1 : tcp_receive_inline.digest(lane, force);
}

static void settle_sealed(struct tcp_lane *lane, bool drained)
{
	tcp_receive_inline.settle(lane, drained);
}

static bool has_more_sealed(const struct tcp_lane *lane) REQUIRES(lane_rx_mu)
{
	return tcp_receive_inline.has_more(lane);
}

static void rest_sealed(struct tcp_lane *lane)
{
	tcp_receive_inline.rest(lane);
}

const struct tcp_receive_ops tcp_receive_sealed = {
	.fill = fill_sealed,
	.cancelled = take_records,
	.digest = digest_sealed,
	.settle = settle_sealed,
	.has_more = has_more_sealed,
	.rest = rest_sealed,
};
