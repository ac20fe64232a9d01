/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin's log lines, forwarded into ours with the library's name in front. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "net/lift.h"

enum { SLOTS = 16, LABEL_SIZE = 64, LINE_SIZE = 1024 };

/* Written once under the lock, before the slot's function is handed out; read without it. */
static char labels[SLOTS + 1][LABEL_SIZE] = {[SLOTS] = "plugin"};
static int used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static enum gantry_log_level level_of(ncclDebugLogLevel level)
{
	switch (level) {
	case NCCL_LOG_WARN:
	case NCCL_LOG_ABORT:
		return GANTRY_LOG_WARN;
	case NCCL_LOG_TRACE:
		return GANTRY_LOG_TRACE;
	default:
		return GANTRY_LOG_INFO;
	}
}

static void forward(int slot, ncclDebugLogLevel nccl_level, const char *file, int line, const char *fmt, va_list args)
{
	enum gantry_log_level level = level_of(nccl_level);
	char text[LINE_SIZE];
	size_t n;

	if ((int)level > load_relaxed(&gantry_log_level_now))
		return;
	vsnprintf(text, sizeof(text), fmt, args);
	n = strlen(text);
	if (n && text[n - 1] == '\n')
		text[n - 1] = 0;
	gantry_log_write(level, GANTRY_SUBSYS_LOADER, file ? file : "?", line, "%s: %s", labels[slot], text);
}

#define DEFINE_LOGGER(slot)                                                                                            \
	static void logger_##slot(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,            \
				  const char *fmt, ...)                                                                \
	{                                                                                                              \
		va_list args;                                                                                          \
                                                                                                                       \
		(void)flags;                                                                                           \
		va_start(args, fmt);                                                                                   \
		forward(slot, level, file, line, fmt, args);                                                           \
		va_end(args);                                                                                          \
	}
#define EACH_SLOT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
EACH_SLOT(DEFINE_LOGGER)

#define LIST_LOGGER(slot) logger_##slot,
static const ncclDebugLogger_t loggers[] = {EACH_SLOT(LIST_LOGGER)};
_Static_assert(sizeof(loggers) / sizeof(loggers[0]) == SLOTS + 1, "a function per slot, and the shared one");

ncclDebugLogger_t gantry_loader_logger(const char *label)
{
	char cut[LABEL_SIZE];
	int i;

	snprintf(cut, sizeof(cut), "%s", label);
	pthread_mutex_lock(&lock);
	for (i = 0; i < used && strcmp(labels[i], cut) != 0; i++)
		;
	if (i == used && used < SLOTS) {
		memcpy(labels[i], cut, sizeof(cut));
		used++;
	}
	pthread_mutex_unlock(&lock);
	return loggers[i];
}
