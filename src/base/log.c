/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines: formatted on the caller's stack, written with one write(), no lock
 * on the way. A lock here would make every thread wait for a slow terminal and
 * would hang a child that was forked while another thread logged.
 *
 * So the words a writer reads are atomic, and the file is replaced under its
 * descriptor's number (dup3): a writer that has just read the number writes to
 * the old file or to the new one, never to a descriptor that was closed.
 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/identity.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/thread.h"

enum { TEXT_SIZE = GANTRY_THREAD_TEXT, PREFIX_SIZE = 512, LINE_SIZE = TEXT_SIZE + PREFIX_SIZE };

int gantry_log_level_now = GANTRY_LOG_WARN;   /* written by configure, read by all, relaxed */
static uint32_t mask_now = GANTRY_SUBSYS_ALL; /* the same */
static gantry_log_sink sink_now;	      /* acquire and release: the sink's own state comes with it */
static int fd_now = STDERR_FILENO;	      /* stderr or file_fd */

/* Of the process, relaxed: its rank, or one of these. The launcher's counts before a communicator's. */
enum { RANK_NOT_ASKED = -1, RANK_UNKNOWN = -2, RANK_SEVERAL = -3 };
static int rank_of_launcher = RANK_NOT_ASKED; /* or RANK_UNKNOWN */
static int rank_of_comms = RANK_UNKNOWN;      /* or RANK_SEVERAL: threads of one process are different ranks */

MUTEX_KIND(log_mu); /* configuration */
static struct log_mu configure_mu;
static int file_fd GUARDED_BY(log_mu) = -1; /* opened once and never closed, see above */

static int failures_told; /* relaxed */

static const char *const level_names[] = {"ERROR", "WARN", "INFO", "DEBUG", "TRACE"};

const char *gantry_log_subsys_name(enum gantry_log_subsys subsys)
{
	switch (subsys) {
#define SUBSYS_NAME(name, bit, text)                                                                                   \
	case GANTRY_SUBSYS_##name:                                                                                     \
		return text;
		GANTRY_SUBSYSTEMS(SUBSYS_NAME)
#undef SUBSYS_NAME
	default:
		return "?";
	}
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Texts hold names from peers and from files: those must not be able to forge a line of their own. */
static void format_text(char text[TEXT_SIZE], const char *fmt, va_list args)
{
	int n = vsnprintf(text, TEXT_SIZE, fmt, args);

	if (n < 0)
		snprintf(text, TEXT_SIZE, "(unprintable message)");
	else if (n >= TEXT_SIZE)
		memcpy(text + TEXT_SIZE - 4, "...", 4);
	for (char *c = text; *c; c++) {
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	}
}

/* What mpirun, mpiexec, srun or torchrun says that this process is. */
static int ask_launcher(void)
{
	for (const struct gantry_launcher *l = gantry_launchers; l->name; l++) {
		int64_t rank;

		if (gantry_launcher_speaks(l) && gantry_parse_int(getenv(l->rank), &rank) == GANTRY_OK && rank >= 0 &&
		    rank <= INT_MAX)
			return (int)rank;
	}
	return RANK_UNKNOWN;
}

/* The environment is asked once: another thread may change it later. */
int gantry_log_rank(void)
{
	int rank = load_relaxed(&rank_of_launcher);

	if (rank == RANK_NOT_ASKED) {
		rank = ask_launcher();
		store_relaxed(&rank_of_launcher, rank);
	}
	return rank >= 0 ? rank : load_relaxed(&rank_of_comms);
}

void gantry_log_set_rank(int rank)
{
	int before = RANK_UNKNOWN;

	if (!cas_relaxed(&rank_of_comms, &before, rank) && before != rank)
		store_relaxed(&rank_of_comms, RANK_SEVERAL);
}

/*
 * "2026-11-16T07:47:28.123Z" in UTC, so that the lines of all hosts sort. By hand: gmtime_r takes a lock of the C
 * library. The calendar counts in eras of 400 years that begin on a 1st of March, so that a leap day ends its year.
 */
static void format_time(char *buf, size_t size)
{
	struct timespec now;
	unsigned days, of_era, year, of_year, month, second;

	clock_gettime(CLOCK_REALTIME, &now);
	second = (unsigned)(now.tv_sec % 86400);
	days = (unsigned)(now.tv_sec / 86400) + 719468; /* from the 1st of March of the year 0 */
	of_era = days % 146097;
	year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	of_year = of_era - (365 * year + year / 4 - year / 100);
	month = (5 * of_year + 2) / 153; /* 0 is March */
	year += days / 146097 * 400 + (month >= 10);
	snprintf(buf, size, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", year, month < 10 ? month + 3 : month - 9,
		 of_year - (153 * month + 2) / 5 + 1, second / 3600, second / 60 % 60, second % 60,
		 (unsigned)(now.tv_nsec / 1000000));
}

/* "2026-11-16T07:47:28.123Z node3:4711 rank 2 gantry WARN net: ", with " lane.c:120" before the colon at debug level.
 */
static void format_prefix(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
			  char buf[PREFIX_SIZE])
{
	int rank = gantry_log_rank();
	char when[96], host[65] = "", rank_text[24] = "", where[128] = "";

	format_time(when, sizeof(when));
	if (gethostname(host, sizeof(host) - 1) != 0)
		snprintf(host, sizeof(host), "unknown-host");
	if (rank >= 0)
		snprintf(rank_text, sizeof(rank_text), "rank %d ", rank);
	if (load_relaxed(&gantry_log_level_now) >= (int)GANTRY_LOG_DEBUG)
		snprintf(where, sizeof(where), " %.100s:%d", base_name(file), line);
	snprintf(buf, PREFIX_SIZE, "%s %s:%ld %sgantry %s %s%s: ", when, host, (long)getpid(), rank_text, level_names[level],
		 gantry_log_subsys_name(subsys), where);
}

static void emit(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		 const char *text)
{
	gantry_log_sink sink = load_acquire(&sink_now);
	char prefix[PREFIX_SIZE], buf[LINE_SIZE];
	int n;

	if (sink) {
		sink(level, subsys, base_name(file), line, text);
		return;
	}
	format_prefix(level, subsys, file, line, prefix);
	n = snprintf(buf, sizeof(buf), "%s%s", prefix, text);
	buf[n++] = '\n'; /* in the place of the terminating zero */
	while (write(load_relaxed(&fd_now), buf, (size_t)n) < 0 && errno == EINTR)
		;
}

void gantry_log_write(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		      const char *fmt, ...)
{
	int saved = errno;
	char text[TEXT_SIZE];
	va_list args;

	if (level <= GANTRY_LOG_WARN || (subsys & load_relaxed(&mask_now))) {
		va_start(args, fmt);
		format_text(text, fmt, args);
		va_end(args);
		emit(level, subsys, file, line, text);
	}
	errno = saved;
}

void gantry_log_failures_are_told(int on)
{
	store_relaxed(&failures_told, on);
}

static _Thread_local int trying_now;

void gantry_log_trying(int trying)
{
	trying_now = trying;
}

static void emit_failure(enum gantry_log_subsys subsys, const char *file, int line, const char *text)
{
	int level = load_relaxed(&gantry_log_level_now);

	if (trying_now) {
		if (level >= (int)GANTRY_LOG_DEBUG)
			emit(GANTRY_LOG_DEBUG, subsys, file, line, text);
		return;
	}
	if (load_relaxed(&failures_told) && level < (int)GANTRY_LOG_INFO && load_relaxed(&fd_now) == STDERR_FILENO)
		return;
	emit(GANTRY_LOG_ERROR, subsys, file, line, text);
}

gantry_result gantry_fail(gantry_result r, enum gantry_log_subsys subsys, const char *file, int line, const char *fmt,
			  ...)
{
	int saved = errno;
	char text[TEXT_SIZE]; /* not the last error itself: it may be among the arguments */
	va_list args;

	va_start(args, fmt);
	format_text(text, fmt, args);
	va_end(args);
	if (r != GANTRY_OK)
		gantry_set_last_error(text);
	emit_failure(subsys, file, line, text);
	errno = saved;
	return r;
}

const char *gantry_last_error(void)
{
	return gantry_thread_text_now(GANTRY_TEXT_LAST_ERROR);
}

void gantry_set_last_error(const char *text)
{
	char *last_error = gantry_thread_text(GANTRY_TEXT_LAST_ERROR);
	size_t n = strnlen(text, TEXT_SIZE - 1);

	memmove(last_error, text, n);
	last_error[n] = 0;
}

void gantry_log_set_sink(gantry_log_sink sink)
{
	store_release(&sink_now, sink);
}

/*
 * A symbolic link is not followed: in a folder that others may write to, a link of theirs under the expected name would
 * have this process append to a file of their choice. /dev/stdout and /dev/stderr are links as well, and meant.
 */
static int open_path(const char *path)
{
	if (!strcmp(path, "/dev/stdout") || !strcmp(path, "/dev/stderr"))
		return fcntl(strcmp(path, "/dev/stdout") ? STDERR_FILENO : STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
}

/* 0 when the file is open under file_fd's number, else an errno. */
static int open_file(const char *path) REQUIRES(log_mu)
{
	int fd = open_path(path);
	int err = 0;

	if (fd < 0)
		return errno;
	if (file_fd < 0) {
		file_fd = fd;
		return 0;
	}
	if (dup3(fd, file_fd, O_CLOEXEC) < 0)
		err = errno;
	close(fd);
	return err;
}

void gantry_log_configure(enum gantry_log_level level, uint32_t subsys_mask, const char *file)
{
	int saved = errno, err = 0;
	char path[PATH_MAX] = "";

	log_mu_lock(&configure_mu);
	store_relaxed(&mask_now, subsys_mask);
	store_relaxed(&gantry_log_level_now, (int)level);
	if (file && *file) {
		gantry_path_expand(file, NULL, path, sizeof(path));
		err = open_file(path);
	}
	store_relaxed(&fd_now, *path && !err ? file_fd : STDERR_FILENO);
	log_mu_unlock(&configure_mu);
	if (err)
		LOG_WARN(BASE, "cannot open the log file %s, logging to stderr: %s", path,
			 err == ELOOP ? "it is a symbolic link (not followed)" : strerror(err));
	errno = saved;
}

int gantry_ratelimit_pass(struct gantry_ratelimit *rl, uint32_t *ret_suppressed)
{
	uint64_t now = gantry_now_ns();
	uint64_t last = load_relaxed(&rl->last_ns);

	/* Of several threads that find the second over, the one that moves the time on writes the line. */
	if ((last && now < last + 1000000000u) || !cas_relaxed(&rl->last_ns, &last, now)) {
		fetch_add_relaxed(&rl->suppressed, 1);
		return 0;
	}
	*ret_suppressed = exchange_relaxed(&rl->suppressed, 0);
	return 1;
}

const char *gantry_left_out_text(uint32_t suppressed, char buf[GANTRY_LEFT_OUT_TEXT])
{
	buf[0] = 0;
	if (suppressed)
		snprintf(buf, GANTRY_LEFT_OUT_TEXT, " (%u similar line%s suppressed)", suppressed,
			 suppressed == 1 ? "" : "s");
	return buf;
}

/* ---- result codes, from the one list in gantry/result.h ---- */

static const struct {
	const char *name, *text;
} results[] = {
#define RESULT_TEXTS(name, number, text) [GANTRY_##name] = {#name, text},
	GANTRY_RESULTS(RESULT_TEXTS)
#undef RESULT_TEXTS
};

/* Codes also come from foreign plugins and from the wire, so any integer must be safe here. */
const char *gantry_result_name(gantry_result r)
{
	return (unsigned)r < GANTRY_RESULT_COUNT ? results[r].name : "UNKNOWN";
}

const char *gantry_result_text(gantry_result r)
{
	return (unsigned)r < GANTRY_RESULT_COUNT ? results[r].text : "unknown result code";
}
