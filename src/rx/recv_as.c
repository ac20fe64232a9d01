/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives that are stored as another type than they were sent as. The sender knows nothing of it: it sends bytes, and
 * messages are granted in whole elements, so that none lies in two messages. Where a kernel puts bytes in place it
 * converts as well (work.c, device/k_unpack_as.h), elsewhere the CPU does, from staging.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include "device/convert.h"
#include "gantry/types.h"
#include "rx/rx.h"

static const struct {
	const char *name;
	uint8_t bytes;
} types[GANTRY_TYPE_COUNT] = {
#define TYPE(NAME, number, bytes, text) [number] = {text, bytes},
	GANTRY_TYPES(TYPE)
#undef TYPE
};

gantry_result rx_as_init(enum gantry_type sent, enum gantry_type stored, struct rx_as *ret_as)
{
	if ((unsigned)sent >= GANTRY_TYPE_COUNT || (unsigned)stored >= GANTRY_TYPE_COUNT)
		FAIL_NOW(GANTRY_ERR_INVALID, "type %d does not exist",
			 (unsigned)sent >= GANTRY_TYPE_COUNT ? (int)sent : (int)stored);
	if (!gantry_converts(sent) || !gantry_converts(stored))
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "cannot store %s as %s: only %s, %s and %s are converted",
			 types[sent].name, types[stored].name, types[GANTRY_TYPE_FLOAT16].name,
			 types[GANTRY_TYPE_BFLOAT16].name, types[GANTRY_TYPE_FLOAT32].name);
	*ret_as = (struct rx_as){(uint16_t)sent, (uint16_t)stored, types[sent].bytes, types[stored].bytes};
	if (sent == stored)
		ret_as->sent = ret_as->stored = 1;
	return GANTRY_OK;
}

gantry_result rx_as_fits(const struct rx_as *as, const struct rx_batch *b)
{
	for (size_t i = 0; i < b->n; i++)
		if (b->pieces[i].piece_bytes % as->stored)
			FAIL_NOW(GANTRY_ERR_INVALID,
				 "a piece of %zu bytes does not hold whole elements of %s (%d bytes)",
				 b->pieces[i].piece_bytes, types[as->to].name, as->stored);
	return GANTRY_OK;
}

void rx_op_store(const struct gantry_rx_op *op, struct rx_cursor c, const uint8_t *from, uint64_t bytes)
{
	const struct rx_as *as = &op->as;
	uint64_t left = rx_stored(op, bytes), run = 0;

	if (!rx_converts(op)) {
		rx_batch_scatter(&op->batch, c, from, bytes);
		return;
	}
	for (; left; left -= run) {
		uint8_t *to = rx_batch_run(&op->batch, &c, left, &run);

		ASSERT(to && run % as->stored == 0);
		gantry_convert(to, as->to, from, as->from, run / as->stored);
		from += run / as->stored * as->sent;
		rx_batch_skip(&op->batch, &c, run);
	}
}
