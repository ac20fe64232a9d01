/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warps on a CPU. A lane is a fiber; it runs until it comes to a shuffle or a vote and stays there until all 32 of its
 * warp have come to the same one. Warps take turns between two such places. A lane that comes to another place than the
 * rest, or has ended while others wait for it, would have stopped a GPU's warp for good: it ends the test, with both
 * places. Loads and stores are looked at byte by byte: only what is allowed is read, and nothing is written twice.
 */
#ifndef GANTRY_TESTS_WARP_H
#define GANTRY_TESTS_WARP_H

#include <cstddef>
#include <cstdint>

struct warp_lane {
	uint32_t lane, lanes, block, blocks; /* as CUDA numbers them */
};
extern struct warp_lane *warp_now;

/* Runs body(arg) in every lane of a grid. Where the text goes wrong is told by `what`. */
void warp_run(uint32_t blocks, uint32_t lanes, void (*body)(void *), void *arg, const char *what);
/* In a lane: leaves a value and waits for the others' of its warp; all 32 of them. */
const uint64_t *warp_meet(int line, uint32_t mask, uint64_t value);

/* Memory that lanes may touch. `may_read` and `written` have a byte for each byte of it. */
struct warp_area {
	char *at;
	size_t size;
	unsigned char *may_read, *written;
};
enum { WARP_AREAS = 4 };
extern struct warp_area warp_areas[WARP_AREAS];

void warp_read(const void *p, size_t n);
void warp_write(const void *p, size_t n);
void warp_aligned(const void *p, size_t n);
uint32_t warp_random(void);
/* Ends the test; printf's arguments. */
void warp_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
