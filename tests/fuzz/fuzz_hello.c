/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign bytes to the decoders of handle, hello, welcome and frame. The first byte picks one, the rest is its
 * input, zeros behind it. What a decoder accepts is in range and survives being encoded and decoded again.
 */
#include <endian.h>

#include "base/crc32c.h"
#include "net/tcp/hello.h"
#include "script.h"

static void must_be_addresses(const struct gantry_addr *addrs, int n)
{
	char text[GANTRY_ADDR_TEXT];

	MUST(n >= 0 && n <= GANTRY_NET_MAX_RAILS);
	for (int i = 0; i < n; i++) {
		MUST(addrs[i].sa.sa_family == AF_INET || addrs[i].sa.sa_family == AF_INET6);
		MUST(strlen(gantry_addr_text(&addrs[i], text)) < sizeof(text));
	}
}

static void handle(const uint8_t *in)
{
	struct wire_handle h, again;
	uint8_t out[GANTRY_NET_HANDLE_SIZE];

	if (wire_handle_decode(in, &h) != GANTRY_OK)
		return;
	MUST(h.naddrs >= 1);
	MUST(h.dev >= 0 && h.dev <= 0xffff);
	must_be_addresses(h.addrs, h.naddrs);
	wire_handle_encode(&h, out);
	MUST(wire_handle_decode(out, &again) == GANTRY_OK);
	MUST(memcmp(&h, &again, sizeof(h)) == 0);
}

static void hello(const uint8_t *in)
{
	struct wire_hello h, again;
	uint8_t out[WIRE_HELLO_SIZE];

	MUST(wire_hello_decode(in, WIRE_HELLO_SIZE, WIRE_VERSION + 1, &h) == GANTRY_OK);
	if (wire_hello_decode(in, WIRE_HELLO_SIZE, WIRE_VERSION, &h) != GANTRY_OK)
		return;
	MUST(h.lanes >= 2 && h.lanes <= WIRE_MAX_LANES && h.lane < h.lanes && h.unpack <= 2);
	wire_hello_encode(&h, out);
	MUST(wire_hello_decode(out, sizeof(out), WIRE_VERSION, &again) == GANTRY_OK);
	MUST(memcmp(&h, &again, sizeof(h)) == 0);
}

static void welcome(const uint8_t *in)
{
	struct wire_welcome w, again;
	uint8_t out[WIRE_WELCOME_SIZE];

	if (wire_welcome_decode(in, WIRE_WELCOME_SIZE, &w) != GANTRY_OK)
		return;
	MUST(w.verdict < WIRE_VERDICTS && w.unpack <= 2);
	must_be_addresses(w.addrs, w.naddrs);
	wire_welcome_encode(&w, out);
	MUST(wire_welcome_decode(out, sizeof(out), &again) == GANTRY_OK);
	MUST(memcmp(&w, &again, sizeof(w)) == 0);
}

static void frame_of(const uint8_t *in, int crc)
{
	struct wire_frame f, again;
	uint8_t out[WIRE_FRAME_SIZE], same[WIRE_FRAME_SIZE];
	size_t size = wire_header_size(in[0]);

	if (wire_frame_decode(in, crc, &f) != GANTRY_OK)
		return;
	MUST(f.kind >= WIRE_DATA && f.kind < WIRE_KINDS);
	MUST(!(in[1] & ~WIRE_FLAGS) && !(in[1] & WIRE_FLAG_CRC) == !crc);
	if (f.kind == WIRE_DESCRIPTOR)
		MUST(f.piece.lane >= 1 && f.piece.lane < WIRE_MAX_LANES);
	if (f.kind == WIRE_EAGER)
		MUST(f.piece.offset == 0 && f.piece.length == f.piece.total && f.piece.eager);
	if (f.kind == WIRE_DATA || f.kind == WIRE_DESCRIPTOR)
		MUST(f.piece.length && !f.piece.eager && f.piece.offset <= f.piece.total &&
		     f.piece.length <= f.piece.total && f.piece.offset + f.piece.length <= f.piece.total);
	if (f.kind == WIRE_ARRIVED)
		MUST(f.arrived.lane >= 1 && f.arrived.lane < WIRE_MAX_LANES);
	if (f.kind == WIRE_STOPPED)
		MUST(f.stopped.lane >= 1 && f.stopped.lane < WIRE_MAX_LANES);
	if (f.kind == WIRE_ERROR)
		MUST(f.error.length <= WIRE_ERROR_TEXT_MAX);
	/* Fields that the kind does not have are lost, all others come back; those of a piece are the whole header. */
	wire_frame_encode(&f, crc, out);
	MUST(wire_frame_decode(out, crc, &again) == GANTRY_OK);
	wire_frame_encode(&again, crc, same);
	MUST(memcmp(same, out, size) == 0);
	MUST(memcmp(out, in, 1) == 0 && memcmp(out + 2, in + 2, 6) == 0);
	if (f.kind == WIRE_DATA || f.kind == WIRE_DESCRIPTOR)
		MUST(memcmp(out + 8, in + 8, 32) == 0 && memcmp(out + 44, in + 44, 4) == 0 &&
		     !((out[1] ^ in[1]) & ~(WIRE_FLAG_RECEIVER | WIRE_FLAG_TAG | WIRE_FLAG_SENDS)));
}

/* Without checksums; with them, most likely wrong; and with the right one. */
static void frame(const uint8_t *in)
{
	uint8_t summed[WIRE_FRAME_SIZE];
	uint32_t sum;
	size_t at;

	frame_of(in, 0);
	frame_of(in, 1);
	memcpy(summed, in, sizeof(summed));
	summed[1] |= WIRE_FLAG_CRC;
	at = wire_header_size(summed[0]) - 8;
	sum = htole32(gantry_crc32c(gantry_crc32c(0, summed, at), summed + at + 4, 4));
	memcpy(summed + at, &sum, 4);
	frame_of(summed, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const decoders[])(const uint8_t *) = {handle, hello, welcome, frame};
	static const size_t sizes[] = {GANTRY_NET_HANDLE_SIZE, WIRE_HELLO_SIZE, WIRE_WELCOME_SIZE, WIRE_FRAME_SIZE};
	uint8_t which, *in;

	if (!size)
		return 0;
	which = data[0] % 4;
	size = size - 1 < sizes[which] ? size - 1 : sizes[which];
	in = script_copy(data + 1, size, sizes[which] - size);
	decoders[which](in);
	free(in);
	return 0;
}
