/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The random numbers of tests: a generator per thread. Without a word they are the same in every run; TEST_SEED in the
 * environment gives others, and a check that fails prints it. Threads are numbered in the order of their first number:
 * one whose numbers must not depend on that says random_seed.
 */
#ifndef GANTRY_TESTS_RANDOM_H
#define GANTRY_TESTS_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* From here on this thread has the numbers of TEST_SEED and `stream`. */
void random_seed(uint64_t stream);

/* The first number of a stream; changes nothing. */
uint64_t random_at(uint64_t stream);

uint64_t random_next(void);
uint32_t random_below(uint32_t n);
/* Of [lo, hi]. */
uint32_t random_between(uint32_t lo, uint32_t hi);
void random_fill(void *p, size_t n);

/* The seed and this thread's stream, as text. 0: no number was drawn here. */
int random_describe(char *text, size_t len);

#endif
