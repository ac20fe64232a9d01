/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry perf rx`: what the client tells the side that listens; for perf_rx.c and its test. */
#ifndef GANTRY_TOOLS_PERF_RX_H
#define GANTRY_TOOLS_PERF_RX_H

#include <stdint.h>

#include "perf/perf_remote.h"

enum { PRX_REPEATS_MAX = 101 };

/* What is measured. */
struct prx_work {
	uint64_t end, pieces, piece_bytes, stride, timeout_ns;
	int device, path, memory, repeats; /* path -1: GANTRY_RX_PATH */
};

struct prx_opts {
	struct prx_work work;
	int gpu, json;
	struct perf_remote_opts remote;
};

/* 0 if that is what a client may say; then it is in *o. */
int prx_take(const struct prx_work *told, struct prx_opts *o);

#endif
