/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>

#include "test.h"

enum { CASE_BYTES = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the process's case: threads read it when they fail */
static const char *process_part = "";
static char process_case[CASE_BYTES];
static _Thread_local char thread_case[CASE_BYTES];

void test_part(const char *name)
{
	pthread_mutex_lock(&lock);
	process_part = name;
	process_case[0] = 0;
	pthread_mutex_unlock(&lock);
}

void test_case(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (gettid() == getpid()) {
		pthread_mutex_lock(&lock);
		vsnprintf(process_case, sizeof(process_case), format, args);
		pthread_mutex_unlock(&lock);
	} else {
		vsnprintf(thread_case, sizeof(thread_case), format, args);
	}
	va_end(args);
}

void set_params_of(const char *name, ...)
{
	va_list args;

	va_start(args, name);
	for (; name; name = va_arg(args, const char *)) {
		const char *value = va_arg(args, const char *);

		if (value)
			setenv(name, value, 1);
		else
			unsetenv(name);
	}
	va_end(args);
	CHECK_OK(gantry_params_load(1));
}

static char folder[] = "/tmp/gantry-test-XXXXXX";
static pid_t folder_of; /* 0: it is not made yet */

static void remove_folder(void)
{
	char line[64];

	snprintf(line, sizeof(line), "rm -rf %s", folder);
	if (getpid() == folder_of && system(line))
		fprintf(stderr, "%s stays\n", folder);
}

const char *test_folder(void)
{
	if (!folder_of) {
		CHECK(mkdtemp(folder) != NULL);
		folder_of = getpid();
		atexit(remove_folder);
	}
	return folder;
}

/* Puts text behind what is there already. */
static void add(char *out, size_t size, const char *format, ...)
{
	size_t n = strlen(out);
	va_list args;

	va_start(args, format);
	vsnprintf(out + n, size - n, format, args);
	va_end(args);
}

/* In one write, so that what several processes print does not mix. */
void test_fail(const char *file, int line, const char *function, const char *format, ...)
{
	int error = errno;
	char out[8192], text[4096], seed[128];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	pthread_mutex_lock(&lock); /* kept: one failure is told, and the process ends */
	snprintf(out, sizeof(out), "%s:%d: %s: %s\n", file, line, function, text);
	if (process_part[0] || process_case[0] || thread_case[0])
		add(out, sizeof(out), "  in the case: %s%s%s%s%s\n", process_part,
		    process_part[0] && process_case[0] ? ": " : "", process_case, thread_case[0] ? "; thread: " : "",
		    thread_case);
	if (random_describe(seed, sizeof(seed)))
		add(out, sizeof(out), "  with %s\n", seed);
	if (*gantry_last_error())
		add(out, sizeof(out), "  last error: %s\n", gantry_last_error());
	if (error)
		add(out, sizeof(out), "  errno is %d, %s\n", error, strerror(error));
	fflush(stdout);
	_exit(write(STDERR_FILENO, out, strlen(out)) < 0 ? 2 : 1);
}
