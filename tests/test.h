/* Asserts for test programs: they print both values and where, and end the program with 1. */
#ifndef GANTRY_TESTS_TEST_H
#define GANTRY_TESTS_TEST_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sanitizers see as much in fewer rounds, and take ten times as long for each. */
#ifdef GANTRY_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond);                           \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CHECK_EQ(a, b)                                                                                                 \
	do {                                                                                                           \
		int64_t check_a = (int64_t)(a), check_b = (int64_t)(b);                                                \
		if (check_a != check_b) {                                                                              \
			fprintf(stderr, "%s:%d: %s is %" PRId64 ", expected %s = %" PRId64 "\n", __FILE__, __LINE__,   \
				#a, check_a, #b, check_b);                                                             \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CHECK_STR(a, b)                                                                                                \
	do {                                                                                                           \
		const char *check_a = (a), *check_b = (b);                                                             \
		if (strcmp(check_a, check_b) != 0) {                                                                   \
			fprintf(stderr, "%s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, __LINE__, #a, check_a,     \
				check_b);                                                                              \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* The text must contain the part. */
#define CHECK_HAS(text, part)                                                                                          \
	do {                                                                                                           \
		const char *check_t = (text), *check_p = (part);                                                       \
		if (!strstr(check_t, check_p)) {                                                                       \
			fprintf(stderr, "%s:%d: \"%s\" does not contain \"%s\"\n", __FILE__, __LINE__, check_t,        \
				check_p);                                                                              \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CHECK_OK(call)                                                                                                 \
	do {                                                                                                           \
		gantry_result check_r = (call);                                                                        \
		if (check_r != GANTRY_OK) {                                                                            \
			fprintf(stderr, "%s:%d: %s gave %s\n", __FILE__, __LINE__, #call,                              \
				gantry_result_name(check_r));                                                          \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define SKIP(...)                                                                                                      \
	do {                                                                                                           \
		printf("skipped: ");                                                                                   \
		printf(__VA_ARGS__);                                                                                   \
		printf("\n");                                                                                          \
		exit(77);                                                                                              \
	} while (0)

#endif
