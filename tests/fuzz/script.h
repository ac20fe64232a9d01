/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz input read as a program: a byte says what to do, the bytes behind it with what. Its end reads as zeros. */
#ifndef GANTRY_TESTS_SCRIPT_H
#define GANTRY_TESTS_SCRIPT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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

/* Up to 63 bytes of it, as many as its next one says. */
static inline size_t script_bytes(struct script *s, uint8_t out[64])
{
	size_t n = script_next(s) % 64;

	for (size_t i = 0; i < n; i++)
		out[i] = script_next(s);
	return n;
}

/* Bytes in a block of their own, with `more` zeros behind them and nothing else, so that a step beyond it is seen. */
static inline void *script_copy(const uint8_t *data, size_t size, size_t more)
{
	uint8_t *copy = malloc(size + more ? size + more : 1);

	MUST(copy);
	if (size)
		memcpy(copy, data, size);
	memset(copy + size, 0, more);
	return copy;
}

/* The input read as lines: the next one, as script_copy has it; NULL at the end. */
static inline char *script_line(struct script *s, size_t *ret_length)
{
	const uint8_t *line = s->at, *end;

	if (line == s->end)
		return NULL;
	end = memchr(line, '\n', (size_t)(s->end - line));
	s->at = end ? end + 1 : s->end;
	*ret_length = (size_t)((end ? end : s->end) - line);
	return script_copy(line, *ret_length, 1);
}

#endif
