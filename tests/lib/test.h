/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asserts for test programs. One that fails prints where it stands, both values, the case that is under way and the
 * seed of the random numbers, and ends the process with 1.
 */
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

#define TEST_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/*
 * Names what is checked from here on: a row of a table, a combination, a round. The main thread's name is everybody's;
 * another thread may add one of its own.
 */
void test_case(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define CASE(...) test_case(__VA_ARGS__)

/* All rows of a table, each a case. */
#define EACH_ROW(i, table) for (size_t i = 0; i < TEST_COUNT(table) && (test_case(#table "[%zu]", i), 1); i++)

/*
 * A test: TEST(name) { ... }. It registers itself, and the main of tests/unit/main.c runs those of a program in the order
 * in which they stand in its file, so that there is no list to keep.
 */
struct test_row {
	const char *name;
	void (*run)(void);
	int line;
	struct test_row *next;
};
void test_add(struct test_row *row);
#define TEST(test)                                                                                                     \
	static void test(void);                                                                                        \
	__attribute__((constructor)) static void add_##test(void)                                                      \
	{                                                                                                              \
		static struct test_row row = {#test, test, __LINE__, NULL};                                            \
		test_add(&row);                                                                                        \
	}                                                                                                              \
	static void test(void)

/* A test that is the same steps as others, with values of its own. */
#define TEST_CALL(test, call)                                                                                          \
	TEST(test)                                                                                                     \
	{                                                                                                              \
		call;                                                                                                  \
	}

/* What a program does before its first test and behind its last: those that need nothing define none. */
void tests_begin(void);
void tests_end(void);

/* All tests of the program, or the one with that name. Returns what main shall. */
int tests_run(const char *only);

/* A part of the test, in the main thread: named with each of its cases. */
void test_part(const char *name);
#define RUN(call)                                                                                                      \
	do {                                                                                                           \
		test_part(#call);                                                                                      \
		call;                                                                                                  \
	} while (0)

/* Ends with _exit: threads may be at work, and a search for leaks would only hide what happened. */
_Noreturn void test_fail(const char *file, int line, const char *function, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
#define TEST_FAIL(...) test_fail(__FILE__, __LINE__, __func__, __VA_ARGS__)

/* Parameters as a user sets them, from here on: names, each with its value; NULL: not set. */
void set_params_of(const char *name, ...);
#define set_params(...) set_params_of(__VA_ARGS__, NULL)

/* Leaves the test, or the rest of it, out. */
#define SKIP(...)                                                                                                      \
	do {                                                                                                           \
		printf("skipped: ");                                                                                   \
		printf(__VA_ARGS__);                                                                                   \
		printf("\n");                                                                                          \
		exit(77);                                                                                              \
	} while (0)

#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			TEST_FAIL("not true: %s", #cond);                                                              \
	} while (0)

#define CHECK_EQ(a, b)                                                                                                 \
	do {                                                                                                           \
		int64_t check_a = (int64_t)(a), check_b = (int64_t)(b);                                                \
		if (check_a != check_b)                                                                                \
			TEST_FAIL("%s is %" PRId64 ", expected %s = %" PRId64, #a, check_a, #b, check_b);              \
	} while (0)

#define CHECK_STR(a, b)                                                                                                \
	do {                                                                                                           \
		const char *check_a = (a), *check_b = (b);                                                             \
		if (strcmp(check_a, check_b) != 0)                                                                     \
			TEST_FAIL("%s is \"%s\", expected \"%s\"", #a, check_a, check_b);                              \
	} while (0)

/* The text must contain the part. */
#define CHECK_HAS(text, part)                                                                                          \
	do {                                                                                                           \
		const char *check_t = (text), *check_p = (part);                                                       \
		if (!strstr(check_t, check_p))                                                                         \
			TEST_FAIL("\"%s\" does not contain \"%s\"", check_t, check_p);                                 \
	} while (0)

#define CHECK_RESULT(call, expected)                                                                                   \
	do {                                                                                                           \
		gantry_result check_r = (call);                                                                        \
		if (check_r != (expected))                                                                             \
			TEST_FAIL("%s gave %s, expected %s", #call, gantry_result_name(check_r),                       \
				  gantry_result_name(expected));                                                       \
	} while (0)
#define CHECK_OK(call) CHECK_RESULT(call, GANTRY_OK)

/* An error whose text has the part. */
#define CHECK_ERROR(call, expected, part)                                                                              \
	do {                                                                                                           \
		CHECK_RESULT(call, expected);                                                                          \
		CHECK_HAS(gantry_last_error(), part);                                                                  \
	} while (0)

#endif
