/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/wire.h"

#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/hmac.h"
#include "base/log.h"

static const uint8_t hello_magic[] = WIRE_HELLO_MAGIC;
static const uint8_t welcome_magic[WIRE_MAGIC_SIZE] = {'G', 'A', 'N', 'T', 'R', 'Y', 0x02, '\n'};
static const uint8_t proof_magic[WIRE_MAGIC_SIZE] = {'G', 'A', 'N', 'T', 'R', 'Y', 0x03, '\n'};
enum { HANDLE_MAGIC = 0x59525447, FRAME_MAGIC = 0x5447, HANDLE_ADDRS = 56, HANDLE_ADDRS_END = 116, HANDLE_LOCAL = 120 };
/* Where the fields of a frame's header stand. What they mean depends on the kind; FRAME_SUM is the header's own CRC. */
enum {
	FRAME_KIND = 0,
	FRAME_FLAGS = 1,
	FRAME_MARK = 2,
	FRAME_LENGTH = 4,
	FRAME_SEQ = 8,
	FRAME_OFFSET = 16,
	FRAME_TOTAL = 24,
	FRAME_TAG = 32,
	FRAME_INDEX = 36,
	FRAME_SUM = 40,
	FRAME_LAST = 44,
};

/* An address is {family 4|6, 0, port, 4 or 16 bytes}. Scope ids are local to a host and do not travel. */
static size_t addr_size(const struct gantry_addr *a)
{
	return a->sa.sa_family == AF_INET6 ? 20 : 8;
}

static int put_addrs(uint8_t *out, size_t room, const struct gantry_addr *addrs, int n)
{
	size_t at = 0;
	int i;

	for (i = 0; i < n; i++) {
		const struct gantry_addr *a = &addrs[i];

		if (at + addr_size(a) > room)
			break;
		out[at] = a->sa.sa_family == AF_INET6 ? 6 : 4;
		out[at + 1] = 0;
		put16(out + at + 2, gantry_addr_port(a));
		if (a->sa.sa_family == AF_INET6)
			memcpy(out + at + 4, &a->in6.sin6_addr, 16);
		else
			memcpy(out + at + 4, &a->in.sin_addr, 4);
		at += addr_size(a);
	}
	return i;
}

static gantry_result get_addrs(const uint8_t *in, size_t room, int n, struct gantry_addr *addrs)
{
	size_t at = 0;

	if (n > GANTRY_NET_MAX_RAILS)
		return GANTRY_ERR_PROTOCOL;
	for (int i = 0; i < n; i++) {
		struct gantry_addr a;

		memset(&a, 0, sizeof(a));
		if (at + 8 > room || (in[at] != 4 && in[at] != 6))
			return GANTRY_ERR_PROTOCOL;
		a.sa.sa_family = in[at] == 6 ? AF_INET6 : AF_INET;
		if (at + addr_size(&a) > room)
			return GANTRY_ERR_PROTOCOL;
		if (in[at] == 6)
			memcpy(&a.in6.sin6_addr, in + at + 4, 16);
		else
			memcpy(&a.in.sin_addr, in + at + 4, 4);
		gantry_addr_set_port(&a, get16(in + at + 2));
		at += addr_size(&a);
		addrs[i] = a;
	}
	return GANTRY_OK;
}

uint64_t wire_handle_local(const void *handle)
{
	return get64((const uint8_t *)handle + HANDLE_LOCAL);
}

void wire_handle_set_local(void *handle, uint64_t value)
{
	put64((uint8_t *)handle + HANDLE_LOCAL, value);
}

void wire_handle_encode(const struct wire_handle *h, uint8_t out[GANTRY_NET_HANDLE_SIZE])
{
	memset(out, 0, GANTRY_NET_HANDLE_SIZE);
	put32(out, HANDLE_MAGIC);
	put16(out + 4, h->version);
	put16(out + 6, (uint16_t)h->dev);
	put64(out + 8, h->process);
	put64(out + 16, h->listener);
	memcpy(out + 24, h->cookie, WIRE_COOKIE_SIZE);
	put64(out + 40, h->comm_id);
	out[48] = (uint8_t)put_addrs(out + HANDLE_ADDRS, HANDLE_ADDRS_END - HANDLE_ADDRS, h->addrs, h->naddrs);
}

gantry_result wire_handle_decode(const uint8_t in[GANTRY_NET_HANDLE_SIZE], struct wire_handle *ret)
{
	struct wire_handle h;

	memset(&h, 0, sizeof(h));
	if (get32(in) != HANDLE_MAGIC)
		return GANTRY_ERR_PROTOCOL;
	h.version = get16(in + 4);
	h.dev = get16(in + 6);
	h.process = get64(in + 8);
	h.listener = get64(in + 16);
	memcpy(h.cookie, in + 24, WIRE_COOKIE_SIZE);
	h.comm_id = get64(in + 40);
	h.naddrs = in[48];
	if (h.naddrs < 1 ||
	    get_addrs(in + HANDLE_ADDRS, HANDLE_ADDRS_END - HANDLE_ADDRS, h.naddrs, h.addrs) != GANTRY_OK)
		return GANTRY_ERR_PROTOCOL;
	*ret = h;
	return GANTRY_OK;
}

int wire_hello_may_be(const uint8_t *in, size_t have)
{
	return memcmp(in, hello_magic, have < WIRE_MAGIC_SIZE ? have : WIRE_MAGIC_SIZE) == 0;
}

void wire_hello_encode(const struct wire_hello *h, uint8_t out[WIRE_HELLO_SIZE])
{
	memset(out, 0, WIRE_HELLO_SIZE);
	memcpy(out, hello_magic, WIRE_MAGIC_SIZE);
	put16(out + 8, h->version);
	out[10] = h->auth;
	out[11] = h->lane;
	out[12] = h->lanes;
	out[13] = h->crc;
	put16(out + 14, h->dev);
	put64(out + 16, h->listener);
	memcpy(out + 24, h->cookie, WIRE_COOKIE_SIZE);
	memcpy(out + 40, h->session, WIRE_SESSION_SIZE);
	memcpy(out + 56, h->nonce, WIRE_NONCE_SIZE);
	put64(out + 72, h->process);
	put64(out + 80, h->comm_id);
	put64(out + 88, h->host);
	put32(out + 96, h->window);
	put32(out + 100, h->eager_max);
	put_text(out + 104, sizeof(h->build), h->build);
	put_text(out + 128, sizeof(h->peer), h->peer);
	out[168] = h->unpack;
}

gantry_result wire_hello_decode(const uint8_t in[WIRE_HELLO_SIZE], struct wire_hello *ret)
{
	struct wire_hello h;

	if (!wire_hello_may_be(in, WIRE_MAGIC_SIZE))
		return GANTRY_ERR_PROTOCOL;
	memset(&h, 0, sizeof(h));
	h.version = get16(in + 8);
	h.auth = in[10];
	h.lane = in[11];
	h.lanes = in[12];
	h.crc = in[13];
	h.dev = get16(in + 14);
	h.listener = get64(in + 16);
	memcpy(h.cookie, in + 24, WIRE_COOKIE_SIZE);
	memcpy(h.session, in + 40, WIRE_SESSION_SIZE);
	memcpy(h.nonce, in + 56, WIRE_NONCE_SIZE);
	h.process = get64(in + 72);
	h.comm_id = get64(in + 80);
	h.host = get64(in + 88);
	h.window = get32(in + 96);
	h.eager_max = get32(in + 100);
	get_text(h.build, sizeof(h.build), in + 104);
	get_text(h.peer, sizeof(h.peer), in + 128);
	h.unpack = in[168];
	if (h.version == WIRE_VERSION &&
	    (h.unpack >= WIRE_UNPACKS || h.lanes < 2 || h.lanes > WIRE_MAX_LANES || h.lane >= h.lanes))
		return GANTRY_ERR_PROTOCOL;
	*ret = h;
	return GANTRY_OK;
}

void wire_welcome_encode(const struct wire_welcome *w, uint8_t out[WIRE_WELCOME_SIZE])
{
	memset(out, 0, WIRE_WELCOME_SIZE);
	memcpy(out, welcome_magic, WIRE_MAGIC_SIZE);
	put16(out + 8, w->version);
	out[10] = w->verdict;
	out[11] = w->unpack;
	memcpy(out + 16, w->session, WIRE_SESSION_SIZE);
	memcpy(out + 32, w->nonce, WIRE_NONCE_SIZE);
	put64(out + 48, w->process);
	put64(out + 56, w->host);
	put32(out + 64, w->window);
	put32(out + 68, w->eager_max);
	memcpy(out + WIRE_MAC_OFFSET, w->mac, WIRE_MAC_SIZE);
	put_text(out + 104, WIRE_TEXT_SIZE, w->text);
	out[200] = (uint8_t)put_addrs(out + 208, WIRE_WELCOME_SIZE - 208, w->addrs, w->naddrs);
}

gantry_result wire_welcome_decode(const uint8_t in[WIRE_WELCOME_SIZE], struct wire_welcome *ret)
{
	struct wire_welcome w;

	if (memcmp(in, welcome_magic, WIRE_MAGIC_SIZE) != 0)
		return GANTRY_ERR_PROTOCOL;
	memset(&w, 0, sizeof(w));
	w.version = get16(in + 8);
	w.verdict = in[10];
	w.unpack = in[11];
	memcpy(w.session, in + 16, WIRE_SESSION_SIZE);
	memcpy(w.nonce, in + 32, WIRE_NONCE_SIZE);
	w.process = get64(in + 48);
	w.host = get64(in + 56);
	w.window = get32(in + 64);
	w.eager_max = get32(in + 68);
	memcpy(w.mac, in + WIRE_MAC_OFFSET, WIRE_MAC_SIZE);
	get_text(w.text, WIRE_TEXT_SIZE, in + 104);
	w.naddrs = in[200];
	/* Another version may have more verdicts and other addresses: its number alone is what counts then. */
	if (w.version != WIRE_VERSION) {
		w.naddrs = 0;
	} else if (w.verdict >= WIRE_VERDICTS || w.unpack >= WIRE_UNPACKS ||
		   get_addrs(in + 208, WIRE_WELCOME_SIZE - 208, w.naddrs, w.addrs) != GANTRY_OK)
		return GANTRY_ERR_PROTOCOL;
	*ret = w;
	return GANTRY_OK;
}

gantry_result wire_mac(const char *secret, int client, const uint8_t hello[WIRE_HELLO_SIZE],
		       const uint8_t welcome[WIRE_WELCOME_SIZE], uint8_t ret_mac[WIRE_MAC_SIZE])
{
	uint8_t message[16 + WIRE_HELLO_SIZE + WIRE_WELCOME_SIZE];

	memset(message, 0, 16);
	memcpy(message, client ? "gantry client" : "gantry server", 13);
	memcpy(message + 16, hello, WIRE_HELLO_SIZE);
	memcpy(message + 16 + WIRE_HELLO_SIZE, welcome, WIRE_WELCOME_SIZE);
	/* The server's MAC cannot cover itself; the client's covers it like everything else. */
	if (!client)
		memset(message + 16 + WIRE_HELLO_SIZE + WIRE_MAC_OFFSET, 0, WIRE_MAC_SIZE);
	return gantry_hmac_sha256(secret, strlen(secret), message, sizeof(message), ret_mac);
}

void wire_proof_encode(const uint8_t mac[WIRE_MAC_SIZE], uint8_t out[WIRE_PROOF_SIZE])
{
	memcpy(out, proof_magic, WIRE_MAGIC_SIZE);
	memcpy(out + WIRE_MAGIC_SIZE, mac, WIRE_MAC_SIZE);
}

gantry_result wire_proof_decode(const uint8_t in[WIRE_PROOF_SIZE], uint8_t ret_mac[WIRE_MAC_SIZE])
{
	if (memcmp(in, proof_magic, WIRE_MAGIC_SIZE) != 0)
		return GANTRY_ERR_PROTOCOL;
	memcpy(ret_mac, in + WIRE_MAGIC_SIZE, WIRE_MAC_SIZE);
	return GANTRY_OK;
}

/* Of all bytes of a header but those of the sum itself. */
static uint32_t frame_sum(const uint8_t header[WIRE_FRAME_SIZE])
{
	uint32_t before = gantry_crc32c(0, header, FRAME_SUM);

	return gantry_crc32c(before, header + FRAME_LAST, WIRE_FRAME_SIZE - FRAME_LAST);
}

static void put_piece(const struct wire_piece *p, bool data, uint8_t out[WIRE_FRAME_SIZE])
{
	out[FRAME_FLAGS] = (uint8_t)((p->eager ? WIRE_FLAG_EAGER : 0) | (p->ack ? WIRE_FLAG_ACK : 0) |
				     (p->deep ? WIRE_FLAG_DEEP : 0));
	put32(out + FRAME_LENGTH, p->length);
	put64(out + FRAME_SEQ, p->seq);
	put64(out + FRAME_OFFSET, p->offset);
	put64(out + FRAME_TOTAL, p->total);
	put32(out + FRAME_TAG, p->tag);
	put32(out + FRAME_INDEX, p->index);
	put32(out + FRAME_LAST, data ? p->payload_crc : p->lane);
}

static void put_state(const struct wire_state *s, uint8_t out[WIRE_FRAME_SIZE])
{
	put64(out + FRAME_SEQ, s->done);
	put64(out + FRAME_OFFSET, s->consumed);
	put64(out + FRAME_TOTAL, s->has_tag);
	put32(out + FRAME_TAG, s->tag);
	put32(out + FRAME_INDEX, s->posted);
	put32(out + FRAME_LAST, s->done_bits);
}

static void put_error(const struct wire_error *e, uint8_t out[WIRE_FRAME_SIZE])
{
	put32(out + FRAME_LENGTH, e->length);
	put64(out + FRAME_OFFSET, e->sent_bytes);
	put64(out + FRAME_TOTAL, e->recv_bytes);
	put32(out + FRAME_TAG, e->result);
	put32(out + FRAME_LAST, e->payload_crc);
}

void wire_frame_encode(const struct wire_frame *f, bool crc, uint8_t out[WIRE_FRAME_SIZE])
{
	memset(out, 0, WIRE_FRAME_SIZE);
	out[FRAME_KIND] = (uint8_t)f->kind;
	put16(out + FRAME_MARK, FRAME_MAGIC);
	switch (f->kind) {
	case WIRE_DATA:
	case WIRE_DESCRIPTOR:
		put_piece(&f->piece, f->kind == WIRE_DATA, out);
		break;
	case WIRE_STATE:
		put_state(&f->state, out);
		break;
	case WIRE_RTS:
		put64(out + FRAME_SEQ, f->rts.seq);
		put64(out + FRAME_TOTAL, f->rts.total);
		put32(out + FRAME_TAG, f->rts.tag);
		put32(out + FRAME_INDEX, f->rts.index);
		break;
	case WIRE_CLOSE:
		out[FRAME_FLAGS] = f->close.by_receiver ? WIRE_FLAG_RECEIVER : 0;
		put64(out + FRAME_SEQ, f->close.bulk_sent);
		break;
	case WIRE_ERROR:
		put_error(&f->error, out);
		break;
	case WIRE_ARRIVED:
		put64(out + FRAME_SEQ, f->arrived.bytes);
		put64(out + FRAME_OFFSET, f->arrived.unread);
		put32(out + FRAME_INDEX, f->arrived.lane);
		break;
	case WIRE_KINDS:
		break;
	}
	if (crc) {
		out[FRAME_FLAGS] |= WIRE_FLAG_CRC;
		put32(out + FRAME_SUM, frame_sum(out));
	}
}

static void get_piece(const uint8_t in[WIRE_FRAME_SIZE], struct wire_piece *p)
{
	uint32_t last = get32(in + FRAME_LAST);

	*p = (struct wire_piece){
		.eager = in[FRAME_FLAGS] & WIRE_FLAG_EAGER,
		.ack = in[FRAME_FLAGS] & WIRE_FLAG_ACK,
		.deep = in[FRAME_FLAGS] & WIRE_FLAG_DEEP,
		.length = get32(in + FRAME_LENGTH),
		.seq = get64(in + FRAME_SEQ),
		.offset = get64(in + FRAME_OFFSET),
		.total = get64(in + FRAME_TOTAL),
		.tag = get32(in + FRAME_TAG),
		.index = get32(in + FRAME_INDEX),
	};
	if (in[FRAME_KIND] == WIRE_DATA)
		p->payload_crc = last;
	else
		p->lane = last;
}

/* Written so that no sum can wrap. Only an empty message has an empty piece; an eager one is one piece. */
static bool piece_lies_within(const struct wire_piece *p)
{
	return p->offset <= p->total && p->length <= p->total - p->offset && (p->length != 0 || p->total == 0) &&
	       (!p->eager || p->length == p->total);
}

/* The fields of each kind. False: this version does not send that. */
static bool get_fields(const uint8_t in[WIRE_FRAME_SIZE], struct wire_frame *f)
{
	uint32_t length = get32(in + FRAME_LENGTH), tag = get32(in + FRAME_TAG), index = get32(in + FRAME_INDEX);
	uint64_t seq = get64(in + FRAME_SEQ), offset = get64(in + FRAME_OFFSET), total = get64(in + FRAME_TOTAL);
	uint32_t last = get32(in + FRAME_LAST);

	switch (f->kind) {
	case WIRE_DATA:
		get_piece(in, &f->piece);
		return piece_lies_within(&f->piece);
	case WIRE_DESCRIPTOR: /* eager and empty messages have no payload on a bulk lane */
		get_piece(in, &f->piece);
		return piece_lies_within(&f->piece) && f->piece.length && !f->piece.eager && last > 0 &&
		       last < WIRE_MAX_LANES;
	case WIRE_STATE:
		f->state = (struct wire_state){.done = seq,
					       .done_bits = last,
					       .consumed = offset,
					       .has_tag = total != 0,
					       .tag = tag,
					       .posted = index};
		return length == 0;
	case WIRE_RTS:
		f->rts = (struct wire_rts){.seq = seq, .total = total, .tag = tag, .index = index};
		return length == 0;
	case WIRE_CLOSE:
		f->close = (struct wire_close){.by_receiver = in[FRAME_FLAGS] & WIRE_FLAG_RECEIVER, .bulk_sent = seq};
		return length == 0;
	case WIRE_ERROR:
		f->error = (struct wire_error){.result = tag,
					       .length = length,
					       .payload_crc = last,
					       .sent_bytes = offset,
					       .recv_bytes = total};
		return length <= WIRE_ERROR_TEXT_MAX;
	case WIRE_ARRIVED:
		f->arrived = (struct wire_arrived){.lane = index, .bytes = seq, .unread = offset};
		return length == 0 && index > 0 && index < WIRE_MAX_LANES && offset <= seq;
	case WIRE_KINDS:
		break;
	}
	return false;
}

gantry_result wire_frame_decode(const uint8_t in[WIRE_FRAME_SIZE], bool crc, struct wire_frame *ret)
{
	struct wire_frame f = {.kind = (enum wire_kind)in[FRAME_KIND]};

	if (crc && get32(in + FRAME_SUM) != frame_sum(in))
		return GANTRY_ERR_CORRUPT;
	if (get16(in + FRAME_MARK) != FRAME_MAGIC || (in[FRAME_FLAGS] & ~WIRE_FLAGS) ||
	    !(in[FRAME_FLAGS] & WIRE_FLAG_CRC) != !crc || !get_fields(in, &f))
		return GANTRY_ERR_PROTOCOL;
	*ret = f;
	return GANTRY_OK;
}
