/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz input read as a program: a byte says what to do, the bytes behind it with what. Its end reads as zeros. */
#ifndef GANTRY_TESTS_SCRIPT_H
#define GANTRY_TESTS_SCRIPT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond);                           \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

struct script {
	const uint8_t *at, *end;
};

static inline uint8_t script_next(struct script *s)
{
	return s->at < s->end ? *s->at++ : 0;
}

#endif
