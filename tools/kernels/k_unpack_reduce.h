/* SPDX-License-Identifier: Apache-2.0 */
/* The reduction of device/k_unpack_sum.h as a kernel of its own. */
#ifndef GANTRY_KERNELS_K_UNPACK_REDUCE_H
#define GANTRY_KERNELS_K_UNPACK_REDUCE_H

#include "device/k_unpack_sum.h"
#include "kernels/bench.h"

DEV void k_unpack_reduce(const struct gantry_unpack_reduce_args *a)
{
	struct dev_unpack_sum r;

	r.f.descs = a->descs;
	r.f.n = dev_unpack_count(a->count, a->n);
	r.f.bounce = (char *)a->bounce;
	r.f.dst = a->output;
	r.f.gather = 0;
	r.input = (uintptr_t)a->input;
	r.input_at = r.premul = 0;
	r.type = a->type;
	r.elem = dev_type_bytes(a->type);
	r.op = a->op;
	r.last = a->last;
	r.scalar = a->scalar;
	if (r.elem)
		dev_unpack_reduce(&r, dev_block(), dev_blocks());
}

#endif
