/* SPDX-License-Identifier: Apache-2.0 */
#include "rx/rx_wire.h"

#include <string.h>

#include "base/bytes.h"

enum { HEAD_MAGIC = 0x31787267 }; /* "grx1" */

void rx_offer_encode(const struct rx_offer *o, uint8_t out[RX_OFFER_SIZE])
{
	put64(out, o->epoch);
	put64(out + 8, o->id);
	memcpy(out + 16, o->handle, sizeof(o->handle));
	out += 16 + sizeof(o->handle);
	put64(out, o->to_epoch);
	inet_target_encode(&o->to, out + 8);
}

gantry_result rx_offer_decode(const uint8_t *in, size_t size, struct rx_offer *ret_offer)
{
	if (size != RX_OFFER_SIZE || !get64(in))
		return GANTRY_ERR_PROTOCOL;
	ret_offer->epoch = get64(in);
	ret_offer->id = get64(in + 8);
	memcpy(ret_offer->handle, in + 16, sizeof(ret_offer->handle));
	in += 16 + sizeof(ret_offer->handle);
	ret_offer->to_epoch = get64(in);
	inet_target_decode(in + 8, &ret_offer->to);
	return GANTRY_OK;
}

void rx_head_encode(const struct rx_head *h, uint8_t out[RX_HEAD_SIZE])
{
	memset(out, 0, RX_HEAD_SIZE);
	put32(out, HEAD_MAGIC);
	put16(out + 4, h->kind);
	put16(out + 6, h->flags);
	put64(out + 8, h->transfer);
	put64(out + 16, h->tag);
	put64(out + 24, h->bytes);
	put64(out + 32, h->arg);
}

gantry_result rx_head_decode(const uint8_t *in, size_t size, struct rx_head *ret_head)
{
	struct rx_head h;

	if (size < RX_HEAD_SIZE || get32(in) != HEAD_MAGIC || get64(in + 40))
		return GANTRY_ERR_PROTOCOL;
	h = (struct rx_head){
		.kind = get16(in + 4),
		.flags = get16(in + 6),
		.transfer = get64(in + 8),
		.tag = get64(in + 16),
		.bytes = get64(in + 24),
		.arg = get64(in + 32),
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
