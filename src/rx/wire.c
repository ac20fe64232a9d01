#include "rx/wire.h"

#include <string.h>

static const uint8_t hello_magic[8] = {'G', 'A', 'N', 'T', 'R', 'Y', 'r', 'x'};
enum { HEAD_MAGIC = 0x31787267 }; /* "grx1" */

static void put(uint8_t *p, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t get(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	for (int i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << 8 * i;
	return v;
}

void rx_hello_encode(const struct rx_hello *h, uint8_t out[RX_HELLO_SIZE])
{
	memset(out, 0, RX_HELLO_SIZE);
	memcpy(out, hello_magic, sizeof(hello_magic));
	put(out + 8, h->version, 2);
	put(out + 10, h->kind, 2);
	put(out + 16, h->epoch, 8);
	put(out + 24, h->id, 8);
	memcpy(out + 32, h->handle, sizeof(h->handle));
}

int rx_hello_may_be(const uint8_t *in, size_t n)
{
	return memcmp(in, hello_magic, n < sizeof(hello_magic) ? n : sizeof(hello_magic)) == 0;
}

gantry_result rx_hello_decode(const uint8_t in[RX_HELLO_SIZE], struct rx_hello *ret_hello)
{
	struct rx_hello h = {
		.version = (uint16_t)get(in + 8, 2),
		.kind = (uint16_t)get(in + 10, 2),
		.epoch = get(in + 16, 8),
		.id = get(in + 24, 8),
	};

	if (!rx_hello_may_be(in, RX_HELLO_SIZE))
		return GANTRY_ERR_PROTOCOL;
	if (h.version != RX_VERSION)
		return GANTRY_ERR_VERSION;
	if ((h.kind != RX_HELLO_CONNECT && h.kind != RX_HELLO_ACCEPT) || get(in + 12, 4) || !h.epoch)
		return GANTRY_ERR_PROTOCOL;
	memcpy(h.handle, in + 32, sizeof(h.handle));
	*ret_hello = h;
	return GANTRY_OK;
}

void rx_head_encode(const struct rx_head *h, uint8_t out[RX_HEAD_SIZE])
{
	memset(out, 0, RX_HEAD_SIZE);
	put(out, HEAD_MAGIC, 4);
	put(out + 4, h->kind, 2);
	put(out + 6, h->flags, 2);
	put(out + 8, h->transfer, 8);
	put(out + 16, h->tag, 8);
	put(out + 24, h->bytes, 8);
	put(out + 32, h->arg, 8);
}

gantry_result rx_head_decode(const uint8_t *in, size_t size, struct rx_head *ret_head)
{
	struct rx_head h;

	if (size < RX_HEAD_SIZE || get(in, 4) != HEAD_MAGIC || get(in + 40, 8))
		return GANTRY_ERR_PROTOCOL;
	h = (struct rx_head){
		.kind = (uint16_t)get(in + 4, 2),
		.flags = (uint16_t)get(in + 6, 2),
		.transfer = get(in + 8, 8),
		.tag = get(in + 16, 8),
		.bytes = get(in + 24, 8),
		.arg = get(in + 32, 8),
	};
	if (h.kind < RX_SEND || h.kind >= RX_KINDS || h.flags > (h.kind == RX_SEND ? RX_INLINE : 0))
		return GANTRY_ERR_PROTOCOL;
	if (size - RX_HEAD_SIZE != (h.flags & RX_INLINE ? h.bytes : 0))
		return GANTRY_ERR_PROTOCOL;
	if ((h.kind == RX_SEND || h.kind == RX_GRANT) && (!h.arg || h.arg > UINT32_MAX))
		return GANTRY_ERR_PROTOCOL;
	*ret_head = h;
	return GANTRY_OK;
}
