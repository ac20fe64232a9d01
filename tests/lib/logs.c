/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

enum { LOGS_BYTES = 1 << 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char kept[LOGS_BYTES];
static size_t used;

static void drop(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		 const char *text)
{
}

/* What does not fit is left out: those who look for a line see to it that it is among the first. */
static void keep(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		 const char *text)
{
	static const char *const names[] = {[GANTRY_LOG_ERROR] = "ERROR",
					    [GANTRY_LOG_WARN] = "WARN",
					    [GANTRY_LOG_INFO] = "INFO",
					    [GANTRY_LOG_DEBUG] = "DEBUG",
					    [GANTRY_LOG_TRACE] = "TRACE"};
	int n;

	pthread_mutex_lock(&lock);
	n = snprintf(kept + used, sizeof(kept) - used, "%s %s %s\n", names[level], file, text);
	if (n > 0 && (size_t)n < sizeof(kept) - used)
		used += (size_t)n;
	kept[used] = 0;
	pthread_mutex_unlock(&lock);
}

void logs_drop(void)
{
	gantry_log_set_sink(drop);
}

void logs_keep(void)
{
	logs_forget();
	gantry_log_set_sink(keep);
}

void logs_end(void)
{
	gantry_log_set_sink(NULL);
}

void logs_forget(void)
{
	pthread_mutex_lock(&lock);
	kept[used = 0] = 0;
	pthread_mutex_unlock(&lock);
}

const char *logs_text(void)
{
	static _Thread_local char copy[LOGS_BYTES];

	pthread_mutex_lock(&lock);
	memcpy(copy, kept, used + 1);
	pthread_mutex_unlock(&lock);
	return copy;
}

int logs_count(const char *part)
{
	const char *line = logs_text(), *end, *at;
	int n = 0;

	for (; (end = strchr(line, '\n')); line = end + 1)
		n += (at = strstr(line, part)) != NULL && at < end;
	return n;
}
