/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane's parsers. First byte: 0 the stream of frames, as it comes from a socket; 1 a unique id; 2 a hello's
 * payload; 3 an answer's; 4 READY, after the number of ranks; 5 the hello of a rank to another. The rest is what arrived.
 *
 * Nothing read may leave the input; what is accepted is in range and survives being encoded and decoded again; a stream
 * means the same whatever the pieces it arrives in.
 */
#include "ctl/ctl_bruck.h"
#include "ctl/ctl_wire.h"
#include "script.h"

/* What a stream said, as a sum. */
struct seen {
	uint64_t sum;
	int frames;
};

static int frame(void *ctx, const struct inet_header *h, const uint8_t *body)
{
	struct seen *s = ctx;
	struct inet_header again;
	uint8_t raw[INET_HEADER_SIZE];
	char text[64];

	MUST(h->kind > CTL_NONE && h->kind < CTL_KIND_COUNT);
	MUST(h->from >= -1 && h->from < CTL_RANKS_MAX && h->to >= -1 && h->to < CTL_RANKS_MAX);
	MUST(h->kind == CTL_CALL || h->result < GANTRY_RESULT_COUNT);
	MUST(h->size <= (h->kind == CTL_GATHERED || h->kind == CTL_READY || h->kind == CTL_LEFT || h->kind == CTL_BLOCK
				 ? 4096u
				 : 1024u));
	inet_header_encode(h, raw);
	MUST(inet_header_decode(raw, &again) == GANTRY_OK);
	MUST(h->kind == again.kind && h->from == again.from && h->to == again.to && h->tag == again.tag &&
	     h->size == again.size && h->result == again.result);
	for (size_t i = 0; i < sizeof(raw); i++)
		s->sum = s->sum * 1099511628211u + raw[i];
	for (uint32_t i = 0; i < h->size; i++)
		s->sum = s->sum * 1099511628211u + body[i];
	ctl_get_text(text, sizeof(text), body, h->size);
	MUST(strlen(text) < sizeof(text));
	s->frames++;
	return s->frames == 100;
}

static gantry_result parse(const uint8_t *in, size_t n, size_t piece, struct seen *s)
{
	struct inet_parser p = {.allows = ctl_allows, .max_body = 1024, .max_grown = 4096};
	gantry_result r = GANTRY_OK;

	memset(s, 0, sizeof(*s));
	for (size_t at = 0; at < n && r == GANTRY_OK && s->frames < 100; at += piece) {
		size_t m = n - at < piece ? n - at : piece;
		uint8_t *copy = script_copy(in + at, m, 0);

		r = inet_parse(&p, copy, m, frame, s);
		free(copy);
	}
	/* What is no frame stays none, whatever follows: connections that linger are read on. */
	MUST(r == GANTRY_OK || inet_parse(&p, in, 1, frame, s) == r);
	inet_parser_free(&p);
	return r;
}

static void stream(const uint8_t *in, size_t n)
{
	struct seen whole, pieces;
	gantry_result r = parse(in, n, n, &whole);

	for (size_t piece = 1; piece < 48; piece += 23) {
		MUST(parse(in, n, piece, &pieces) == r);
		MUST(pieces.sum == whole.sum && pieces.frames == whole.frames);
	}
}

static void id(const uint8_t *in, size_t n)
{
	struct gantry_unique_id raw = {{0}}, out;
	struct ctl_id i, again;
	char text[GANTRY_ADDR_TEXT];

	memcpy(&raw, in, n < sizeof(raw) ? n : sizeof(raw));
	if (ctl_id_decode(&raw, &i) != GANTRY_OK) {
		MUST(gantry_ctl_comm_id(&raw) == 0);
		return;
	}
	MUST(i.addr.sa.sa_family == AF_INET || i.addr.sa.sa_family == AF_INET6);
	MUST(*gantry_addr_text(&i.addr, text));
	MUST(gantry_addr_port(&i.addr) != 0);
	ctl_id_encode(&i, &out);
	MUST(ctl_id_decode(&out, &again) == GANTRY_OK);
	MUST(memcmp(&i, &again, sizeof(i)) == 0);
}

static void hello(const uint8_t *in, size_t n)
{
	struct ctl_hello h;
	uint8_t out[CTL_HELLO_SIZE];

	MUST((ctl_hello_decode(in, n, CTL_VERSION + 1, &h) == GANTRY_OK) == (n >= 8));
	if (ctl_hello_decode(in, n, CTL_VERSION, &h) != GANTRY_OK)
		return;
	MUST(h.nranks >= 1 && h.nranks <= CTL_RANKS_MAX && h.rank >= 0 && h.rank < h.nranks);
	ctl_hello_encode(&h, out);
	MUST(n == sizeof(out) && memcmp(in, out, sizeof(out)) == 0);
}

static void accepted(const uint8_t *in, size_t n)
{
	struct ctl_accepted a;
	uint8_t out[CTL_ACCEPTED_SIZE];

	if (ctl_accepted_decode(in, n, &a) != GANTRY_OK)
		return;
	ctl_accepted_encode(&a, out);
	MUST(memcmp(in, out, sizeof(out)) == 0);
}

static void count_rank(void *ctx, int rank)
{
	int *last = ctx;

	MUST(rank > *last && rank < 256);
	*last = rank;
}

static void ready(const uint8_t *in, size_t n)
{
	struct gantry_addr addrs[CTL_ROUNDS_MAX];
	int naddrs = -1, last = -1, nranks = n ? 1 + in[0] : 1;

	if (!n || ctl_ready_decode(in + 1, n - 1, nranks, count_rank, &last, addrs, &naddrs) != GANTRY_OK) {
		MUST(last == -1);
		return;
	}
	MUST(last < nranks && (naddrs == 0 || naddrs == ctl_bruck_rounds(nranks)));
	for (int i = 0; i < naddrs; i++)
		MUST(gantry_addr_port(&addrs[i]));
}

static void exchange_hello(const uint8_t *in, size_t n)
{
	struct ctl_exchange_hello h;
	uint8_t out[CTL_EXCHANGE_SIZE];

	if (ctl_exchange_hello_decode(in, n, &h) != GANTRY_OK)
		return;
	ctl_exchange_hello_encode(&h, out);
	MUST(n == sizeof(out) && memcmp(in, out, sizeof(out)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const parsers[])(const uint8_t *, size_t) = {stream, id, hello, accepted, ready, exchange_hello};
	uint8_t *in;

	if (size < 2)
		return 0;
	in = script_copy(data + 1, size - 1, 0);
	parsers[data[0] % 6](in, size - 1);
	free(in);
	return 0;
}
