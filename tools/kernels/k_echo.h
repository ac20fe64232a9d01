/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message to and fro between two kernels, n times: what the steps themselves cost, without launches. The first one
 * sends its input and waits for the answer; the other answers with what it received. `perf sendrecv --pattern echo`.
 */
#ifndef GANTRY_KERNELS_K_ECHO_H
#define GANTRY_KERNELS_K_ECHO_H

#include "device/k_prim.h"
#include "kernels/bench.h"

DEV void k_echo(const struct gantry_echo_args *a)
{
	struct dev_prims p;
	uint64_t i;
	uint32_t r;

	if (dev_block() != 0)
		return;
	p.recv = &a->recv;
	p.send = &a->send;
	p.nrecv = p.nsend = 1;
	p.proto = a->proto;
	p.type = GANTRY_TYPE_INT8;
	p.op = GANTRY_OP_SUM;
	p.scalar = 0;
	p.input = a->first ? a->input : a->output;
	p.output = a->output;
	r = dev_prims_init(&p, 1, 1);
	for (i = 0; i < a->n && r == GANTRY_OK; i++) {
		if (a->first)
			r = dev_prims_move(&p, GANTRY_PRIM_SEND, 0, 0, a->bytes, 0);
		if (r == GANTRY_OK)
			r = dev_prims_move(&p, GANTRY_PRIM_RECV, 0, 0, a->bytes, 0);
		if (r == GANTRY_OK && !a->first)
			r = dev_prims_move(&p, GANTRY_PRIM_SEND, 0, 0, a->bytes, 0);
	}
	dev_prims_end(&p);
	if (r != GANTRY_OK && dev_lane() == 0)
		k_fail(a->result, r);
}

#endif
