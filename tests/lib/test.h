/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What test programs are made of: checks, tests and cases, children, waiting, what the process holds, what it has
 * logged, random numbers, bytes whose values are known, and plain sockets; with the headers that nearly all of them need.
 */
#ifndef GANTRY_TESTS_TEST_H
#define GANTRY_TESTS_TEST_H

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"

/* ---- checks ---- */

/*
 * Asserts for test programs. One that fails prints where it stands, both values, the case that is under way and the
 * seed of the random numbers, and ends the process with 1.
 */

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

/* A folder of the process that asks first, which goes with it and with all that is in it. */
const char *test_folder(void);

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

/* A pointer whose memory goes with its scope. */
static inline void free_at(void *pointer)
{
	free(*(void **)pointer);
}
#define FREED __attribute__((cleanup(free_at)))

/* ---- children ---- */

/* Processes that a test forks: because parameters are read once in each, or because a failure must not hide another. */

/* A child of a process with several threads may start none under ThreadSanitizer. */
#if defined(__SANITIZE_THREAD__)
enum { CAN_FORK = 0 };
#elif defined(__has_feature)
enum { CAN_FORK = !__has_feature(thread_sanitizer) };
#else
enum { CAN_FORK = 1 };
#endif

/* Whatever hangs ends: no test takes so long on whatever machine. */
enum { CHILD_SECONDS = 500 };

/* fork with a deadline for the child, which is to end with child_end. */
pid_t child_fork(void);

/* With leaks: as programs end, with a search for leaks where there is one. That takes seconds, so most go without. */
_Noreturn void child_end(int leaks);

/* Waits; any end but a good one is the test's failure. */
void child_wait(pid_t pid);

/*
 * For tests_begin: each test in a process of its own, of which the last searches for leaks. One that fails or hangs does
 * not hide the others. Under sanitizers tests that are not `alone` share one process, which searches at its end.
 */
void tests_apart(int alone);

/* One in a process of its own; 1 if it fails. */
int run_row(const char *name, void (*run)(void), int leaks, const char *only);

/* Threads: the i-th is given what lies i times `step` behind `args`, its number with NULL and 1, the same with 0. */
void threads_start(pthread_t *t, int n, void *(*run)(void *), const void *args, size_t step);
void threads_join(const pthread_t *t, int n);

/* ---- waiting ---- */

/*
 * Waiting in tests. A machine may be loaded, any thread may be off its CPU for seconds: what must happen is waited for,
 * and the limit is one that only a hang reaches.
 */

/* Half of what ctest gives a test. A thread among fifty on two CPUs has seconds of it for itself. */
enum { UNTIL_SECONDS = 240 };

/* When patience ends that begins now. */
static inline uint64_t until_hang(void)
{
	return gantry_now_ns() + (uint64_t)UNTIL_SECONDS * 1000000000u;
}

static inline uint64_t now_ms(void)
{
	return gantry_now_ns() / 1000000;
}

/* Signals do not shorten it. */
static inline void sleep_ns(uint64_t ns)
{
	struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static inline void sleep_ms(uint64_t ms)
{
	sleep_ns(ms * 1000000);
}

static inline void until_pause(void)
{
	sleep_ns(500000);
}

/* Whether there is time for another round: also for one when time is over, as the asking thread may have been away. */
static inline int until_more(uint64_t *end, const char *file, int line, const char *function, const char *cond)
{
	if (!*end)
		test_fail(file, line, function, "still so after %d s: %s", UNTIL_SECONDS, cond);
	if (gantry_now_ns() >= *end)
		*end = 0;
	return 1;
}
#define UNTIL_LOOP(cond, text)                                                                                         \
	for (uint64_t until_end = until_hang(); (cond) && until_more(&until_end, __FILE__, __LINE__, __func__, text);)

/* A while loop that does something towards its end. */
#define WAIT_WHILE(cond) UNTIL_LOOP(cond, #cond)

/* Asked again and again. */
#define UNTIL(cond)                                                                                                    \
	do {                                                                                                           \
		UNTIL_LOOP(!(cond), "not " #cond) until_pause();                                                       \
	} while (0)

/* ---- what the process holds ---- */

/*
 * What a process holds, by /proc/self: descriptors, threads. Threads that have ended are listed for a moment still, and
 * what they close they close late, so counts are waited for and never compared at once. A count before is a good
 * measure if it can only be too high: taken while everything that may be there is there.
 */

#define HELD_FDS "/proc/self/fd"
#define HELD_THREADS "/proc/self/task"

/* Entries of the folder, one for looking at it among the descriptors. */
static inline int held(const char *folder)
{
	DIR *d = opendir(folder);
	int n = 0;

	CHECK(d != NULL);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* Descriptors of what has `part` in its name, such as a memfd's. */
static inline int held_named(const char *part)
{
	DIR *d = opendir(HELD_FDS);
	char name[512];
	int n = 0;

	CHECK(d != NULL);
	for (struct dirent *e; (e = readdir(d));) {
		ssize_t len = readlinkat(dirfd(d), e->d_name, name, sizeof(name) - 1);

		name[len > 0 ? len : 0] = 0;
		n += strstr(name, part) != NULL;
	}
	closedir(d);
	return n;
}

/* Whether there are at most so many, now or soon. */
static inline int held_at_most(const char *folder, int most)
{
	uint64_t end = until_hang();
	int n;

	while ((n = held(folder)) > most && gantry_now_ns() < end)
		until_pause();
	if (n > most)
		fprintf(stderr, "%s has %d entries, %d are the most it should have\n", folder, n, most);
	return n <= most;
}

/* ---- the log ---- */

/* What the code under test logs, for tests that look at it. Any thread may log. */

/* From here on lines are formatted and go nowhere. */
void logs_drop(void);

/* From here on lines are kept instead, as "LEVEL FILE TEXT"; none are there to begin with. */
void logs_keep(void);

/* Lines go where the log's settings send them again. What was kept stays. */
void logs_end(void);

void logs_forget(void);

/* How many of the kept lines have this part. */
int logs_count(const char *part);

/* The kept lines; valid until the next call in this thread. */
const char *logs_text(void);

/* ---- random numbers ---- */

/*
 * The random numbers of tests: a generator per thread. Without a word they are the same in every run; TEST_SEED in the
 * environment gives others, and a check that fails prints it. Threads are numbered in the order of their first number:
 * one whose numbers must not depend on that says random_seed.
 */

/* From here on this thread has the numbers of TEST_SEED and `stream`. */
void random_seed(uint64_t stream);

/* The first number of a stream; changes nothing. */
uint64_t random_at(uint64_t stream);

uint64_t random_next(void);
uint32_t random_below(uint32_t n);
/* Of [lo, hi]. */
uint32_t random_between(uint32_t lo, uint32_t hi);
void random_fill(void *p, size_t n);

/* Which engine moves the bytes of the data network in this test: GANTRY_TEST_IO, io_scripted.c. */
const char *io_engine_name(void);

/* The seed and this thread's stream, as text. 0: no number was drawn here. */
int random_describe(char *text, size_t len);

/* ---- bytes ---- */

/* Bytes whose values tests know: patterns of messages, and little-endian numbers put together by hand. */

/* Byte i of message `seed`: it depends on all of both. */
static inline uint8_t pattern_byte(uint64_t seed, uint64_t i)
{
	uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xc2b2ae3d27d4eb4fu;

	return (uint8_t)((z ^ (z >> 29)) >> 21);
}

/* Bytes `from` and so on of message `seed`. */
void pattern_fill_from(void *p, size_t n, uint64_t seed, uint64_t from);
#define pattern_fill(p, n, seed) pattern_fill_from(p, n, seed, 0)

/* The first place where the bytes are not those of message `seed`, or n. */
size_t pattern_wrong_from(const void *p, size_t n, uint64_t seed, uint64_t from);
#define pattern_wrong_at(p, n, seed) pattern_wrong_from(p, n, seed, 0)

/* All n bytes are those of message `seed`. */
#define CHECK_PATTERN_FROM(p, n, seed, from)                                                                           \
	do {                                                                                                           \
		const uint8_t *check_p = (const uint8_t *)(p);                                                         \
		size_t check_n = (size_t)(n), check_at = pattern_wrong_from(check_p, check_n, (seed), (from));         \
		if (check_at != check_n)                                                                               \
			TEST_FAIL("byte %zu of %zu of %s is %u, expected %u", check_at, check_n, #p,                   \
				  check_p[check_at], pattern_byte((seed), (from) + check_at));                         \
	} while (0)
#define CHECK_PATTERN(p, n, seed) CHECK_PATTERN_FROM(p, n, seed, 0)

/* All n bytes have this value: nothing was written there. */
size_t filled_until(const void *p, size_t n, uint8_t value);
#define CHECK_FILLED(p, n, value)                                                                                      \
	do {                                                                                                           \
		const uint8_t *check_p = (const uint8_t *)(p);                                                         \
		size_t check_n = (size_t)(n), check_at = filled_until(check_p, check_n, (value));                      \
		if (check_at != check_n)                                                                               \
			TEST_FAIL("byte %zu of %zu of %s is %u, expected it untouched", check_at, check_n, #p,         \
				  check_p[check_at]);                                                                  \
	} while (0)

void le_put(uint8_t *p, uint64_t v, int bytes);
uint64_t le_get(const uint8_t *p, int bytes);

/* ---- sockets ---- */

/* Plain TCP sockets over loopback, for peers that a test plays by hand. All of them are closed on exec. */

/* 127.0.0.1 with this port. */
struct sockaddr_in lo_addr(int port);

/* The port in "host:port". */
int port_of(const char *address);

/* A socket that is bound there, to any port for 0, and does not listen yet. */
int lo_bound(int port, int *ret_port);

/* A socket that listens there. */
int lo_listen(int port, int *ret_port);

/* A free port, which the kernel gives to no socket by itself: another one each time. */
int lo_free_port(void);
/* The same, and until *ret_keeper is closed it is for sockets with SO_REUSEADDR alone. */
int lo_kept_port(int *ret_keeper);

/* Blocking. dial returns -1 where nobody listens, the others fail then. */
int dial(const struct sockaddr_in *to);
int lo_dial(int port);
int dial_hard(const struct sockaddr_in *to);

/* Both ends of a connection, blocking. */
void lo_pair(int fd[2]);

/* All of it, or the test's failure. */
void send_all(int fd, const void *data, size_t n);
void recv_all(int fd, void *data, size_t n);

#endif
