/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message in a rank's device memory, with a guard in front of it and one behind it: what it carries follows from a number and from its
 * size (figures.h). On a GPU kernels fill and compare; on the host the tool does it itself, so that the kernels are not their own judge.
 */
#ifndef GANTRY_TOOLS_PERF_MESSAGE_H
#define GANTRY_TOOLS_PERF_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "perf/perf_comm.h"

enum { PERF_GUARD = 64 };

struct perf_message {
	char *at; /* PERF_GUARD bytes in front of it and behind it are its guards */
	uint64_t bytes, seq;
	uint64_t front, back; /* what the guards carry */
};

/* Wrong bytes are counted in mapped memory. */
struct perf_wrong {
	uint64_t *host, *dev;
};

/* Guards, and between them the bytes of message number `seq`, which may be another's. Done when the stream is through. */
gantry_result perf_message_fill(const struct perf_rank *rk, const struct perf_message *m, uint64_t seq);
/* Adds the bytes that differ, guards included, at the latest when the stream is through. */
gantry_result perf_message_check(const struct perf_rank *rk, const struct perf_message *m, struct perf_wrong wrong);
/* Where the first wrong byte of the message or of its guards is; text stays "" if there is none. what: "a message of 4 KiB from rank 0 to
 * rank 1"; more: what is added to an offset. */
gantry_result perf_message_locate(const struct perf_rank *rk, const struct perf_message *m, const char *what,
				  const char *more, char *text, size_t len);

#endif
