/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LL and LL128: the bytes of a step as lines that carry their own validity. Plain loops over lines; which lines are a
 * lane's own follows from `lane` and `lanes`, so that one lane may also do a whole step alone. No barrier, no fence.
 *
 * The gets never block. They start at line `from` and answer the first own line that was not there, or the number of
 * lines when they have got everything; what was there has been copied out. DEV_TRIES is how often a lane looks again
 * at lines that are late before it gives up.
 */
#ifndef GANTRY_DEVICE_K_LL_H
#define GANTRY_DEVICE_K_LL_H

#include "device/dev.h"

#ifndef DEV_TRIES
#define DEV_TRIES 64
#endif

/* Bytes in the line that starts with byte `at`. */
DEV uint32_t k_ll_part(uint64_t bytes, uint64_t at, uint32_t line)
{
	return bytes - at < line ? (uint32_t)(bytes - at) : line;
}

DEV void k_ll_put(char *ring, const char *data, uint64_t bytes, uint64_t step, uint32_t lane, uint32_t lanes)
{
	uint32_t flag = gantry_ll_flag(step);

	for (uint64_t i = lane, at = i * GANTRY_LL_DATA; at < bytes; i += lanes, at = i * GANTRY_LL_DATA)
		dev_ll_store((uint64_t *)(ring + i * GANTRY_LL_LINE),
			     dev_gather8(data + at, k_ll_part(bytes, at, GANTRY_LL_DATA)), flag);
}

DEV uint64_t k_ll_get(char *data, const char *ring, uint64_t bytes, uint64_t step, uint64_t from, uint32_t lane,
		      uint32_t lanes)
{
	uint32_t flag = gantry_ll_flag(step), tries = DEV_TRIES;
	uint64_t i, at, word;

	for (i = from + lane, at = i * GANTRY_LL_DATA; at < bytes; i += lanes, at = i * GANTRY_LL_DATA) {
		while (!dev_ll_load((const uint64_t *)(ring + i * GANTRY_LL_LINE), flag, &word))
			if (--tries == 0)
				return i;
		dev_scatter8(data + at, word, k_ll_part(bytes, at, GANTRY_LL_DATA));
	}
	return (bytes + GANTRY_LL_DATA - 1) / GANTRY_LL_DATA;
}

DEV void k_ll128_put(char *ring, const char *data, uint64_t bytes, uint64_t step, uint32_t lane, uint32_t lanes)
{
	uint32_t groups = lanes / dev_ll128_width(), group = lane / dev_ll128_width(), n;
	uint64_t i, at, flag = gantry_ll128_flag(step);

	for (i = group, at = i * GANTRY_LL128_DATA; group < groups && at < bytes;
	     i += groups, at = i * GANTRY_LL128_DATA) {
		n = k_ll_part(bytes, at, GANTRY_LL128_DATA);
		dev_ll128_put((uint64_t *)(ring + i * GANTRY_LL128_LINE), data + at, n, flag);
	}
}

DEV uint64_t k_ll128_get(char *data, const char *ring, uint64_t bytes, uint64_t step, uint64_t from, uint32_t lane,
			 uint32_t lanes)
{
	uint32_t groups = lanes / dev_ll128_width(), group = lane / dev_ll128_width(), tries = DEV_TRIES, n;
	uint64_t i, at, flag = gantry_ll128_flag(step);

	for (i = from + group, at = i * GANTRY_LL128_DATA; group < groups && at < bytes;
	     i += groups, at = i * GANTRY_LL128_DATA) {
		n = k_ll_part(bytes, at, GANTRY_LL128_DATA);
		while (!dev_ll128_get((const uint64_t *)(ring + i * GANTRY_LL128_LINE), data + at, n, flag))
			if (--tries == 0)
				return i;
	}
	return (bytes + GANTRY_LL128_DATA - 1) / GANTRY_LL128_DATA;
}

#endif
