/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign bytes to the decoders of remote memory access. Two bytes are the message's size, the rest its header, zeros behind it.
 * A message that is accepted is in range, has the size that its header states, and encodes to the same bytes. The same bytes are a
 * hello to a job of as many ranks as its field at byte 4 says, and to one of 2.
 */
#include "base/bytes.h"
#include "rma/rma_wire.h"
#include "script.h"

enum { JOB_AT = 16 };

static void try_hello(const uint8_t *data, size_t len, uint32_t ranks)
{
	uint8_t in[RMA_HEADER] = {0}, out[RMA_HEADER];
	uint32_t rank;
	uint64_t job;

	memcpy(in, data, len < sizeof(in) ? len : sizeof(in));
	job = get64(in + JOB_AT);
	MUST(len == RMA_HEADER || rma_hello_decode(in, len, job, ranks, &rank) != GANTRY_OK);
	MUST(rma_hello_decode(in, sizeof(in), job + 1, ranks, &rank) != GANTRY_OK);
	if (rma_hello_decode(in, sizeof(in), job, ranks, &rank) != GANTRY_OK)
		return;
	MUST(rank < ranks);
	rma_hello_encode(job, ranks, rank, out);
	MUST(memcmp(in, out, sizeof(out)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	uint8_t in[RMA_HEADER] = {0}, out[RMA_HEADER];
	struct rma_header h;
	size_t size;

	if (len < 2)
		return 0;
	size = (size_t)data[0] | (size_t)data[1] << 8;
	memcpy(in, data + 2, len - 2 < sizeof(in) ? len - 2 : sizeof(in));
	try_hello(data + 2, len - 2, 2);
	try_hello(data + 2, len - 2, get32(in + 4));
	if (rma_decode(in, size, RMA_INLINE, &h) != GANTRY_OK)
		return 0;
	MUST(h.what >= RMA_PUT && h.what <= RMA_FAILED);
	MUST(h.context < RMA_CONTEXTS_MAX && h.bytes <= RMA_BYTES_MAX);
	MUST(size == RMA_HEADER + rma_inlined(&h, RMA_INLINE) && rma_inlined(&h, RMA_INLINE) <= RMA_INLINE);
	MUST(h.what == RMA_PUT || h.signal.at.memory == RMA_NO_MEMORY);
	MUST(h.what != RMA_FAILED || rma_inlined(&h, RMA_INLINE) == h.bytes);
	rma_encode(&h, RMA_INLINE, out);
	MUST(memcmp(in, out, sizeof(out)) == 0);
	return 0;
}
