/* SPDX-License-Identifier: Apache-2.0 */
#include "rma/rma_wire.h"

#include <string.h>

#include "base/bytes.h"

enum { MAGIC = 0x31616d72 /* "rma1" */, MAGIC_HELLO = 0x68616d72 /* "rmah" */, FLAG_SIGNAL = 1 };

void rma_encode(const struct rma_header *h, uint32_t most, uint8_t out[RMA_HEADER])
{
	memset(out, 0, RMA_HEADER);
	put32(out, MAGIC);
	out[4] = (uint8_t)h->what;
	out[5] = h->signal.at.memory != RMA_NO_MEMORY ? FLAG_SIGNAL : 0;
	put16(out + 6, (uint16_t)rma_inlined(h, most));
	put32(out + 8, h->context);
	put32(out + 12, h->at.memory);
	put64(out + 16, h->at.offset);
	put64(out + 24, h->bytes);
	put32(out + 32, h->signal.at.memory);
	put64(out + 40, h->signal.at.offset);
	put64(out + 48, h->signal.add);
	put64(out + 56, h->id);
}

static bool fits_its_kind(const struct rma_header *h, uint32_t most)
{
	if (h->signal.at.memory != RMA_NO_MEMORY && h->what != RMA_PUT)
		return false;
	return h->what != RMA_FAILED || h->bytes <= most;
}

gantry_result rma_decode(const uint8_t *message, size_t size, uint32_t most, struct rma_header *ret)
{
	struct rma_header h;

	if (size < RMA_HEADER || get32(message) != MAGIC || message[4] < RMA_PUT || message[4] > RMA_FAILED)
		return GANTRY_ERR_PROTOCOL;
	h = (struct rma_header){
		.what = (enum rma_what)message[4],
		.context = get32(message + 8),
		.at = {get32(message + 12), get64(message + 16)},
		.bytes = get64(message + 24),
		.signal = {{get32(message + 32), get64(message + 40)}, get64(message + 48)},
		.id = get64(message + 56),
	};
	if (h.context >= RMA_CONTEXTS_MAX || h.bytes > RMA_BYTES_MAX || get16(message + 6) != rma_inlined(&h, most) ||
	    size != RMA_HEADER + rma_inlined(&h, most) || get32(message + 36) ||
	    message[5] != (h.signal.at.memory != RMA_NO_MEMORY ? FLAG_SIGNAL : 0) || !fits_its_kind(&h, most))
		return GANTRY_ERR_PROTOCOL;
	*ret = h;
	return GANTRY_OK;
}

void rma_hello_encode(uint64_t job, uint32_t ranks, uint32_t rank, uint8_t out[RMA_HEADER])
{
	memset(out, 0, RMA_HEADER);
	put32(out, MAGIC_HELLO);
	put32(out + 4, ranks);
	put32(out + 8, rank);
	put64(out + 16, job);
}

gantry_result rma_hello_decode(const uint8_t *message, size_t size, uint64_t job, uint32_t ranks, uint32_t *ret_rank)
{
	uint8_t want[RMA_HEADER];

	if (size != RMA_HEADER || get32(message + 8) >= ranks)
		return GANTRY_ERR_PROTOCOL;
	rma_hello_encode(job, ranks, get32(message + 8), want);
	if (memcmp(message, want, sizeof(want)) != 0)
		return GANTRY_ERR_PROTOCOL;
	*ret_rank = get32(message + 8);
	return GANTRY_OK;
}
