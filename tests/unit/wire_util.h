/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and bytes for tests of formats, which are written as literal bytes at literal places. */
#ifndef GANTRY_TESTS_WIRE_UTIL_H
#define GANTRY_TESTS_WIRE_UTIL_H

#include <arpa/inet.h>

#include "base/log.h"
#include "net/tcp/hello.h"
#include "test.h"

static inline struct gantry_addr addr4(const char *text, uint16_t port)
{
	struct gantry_addr a;

	memset(&a, 0, sizeof(a));
	a.in.sin_family = AF_INET;
	a.in.sin_port = htons(port);
	CHECK_EQ(inet_pton(AF_INET, text, &a.in.sin_addr), 1);
	return a;
}

static inline struct gantry_addr addr6(const char *text, uint16_t port)
{
	struct gantry_addr a;

	memset(&a, 0, sizeof(a));
	a.in6.sin6_family = AF_INET6;
	a.in6.sin6_port = htons(port);
	CHECK_EQ(inet_pton(AF_INET6, text, &a.in6.sin6_addr), 1);
	return a;
}

static inline void check_bytes(const uint8_t *at, size_t n, const char *expected, const char *file, int line)
{
	if (memcmp(at, expected, n) == 0)
		return;
	fprintf(stderr, "%s:%d: bytes differ:", file, line);
	for (size_t i = 0; i < n; i++)
		fprintf(stderr, " %02x/%02x", at[i], (uint8_t)expected[i]);
	fprintf(stderr, " (is/expected)\n");
	exit(1);
}
/* The literal's terminating zero does not count. */
#define CHECK_BYTES(at, literal) check_bytes((at), sizeof(literal) - 1, literal, __FILE__, __LINE__)

static inline void check_zero(const uint8_t *from, const uint8_t *end)
{
	for (; from < end; from++)
		CHECK_EQ(*from, 0);
}

#endif
