/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines and the two error macros.
 *
 * One line per event, lower case, the cause and not a guess, with the peer in
 * it. On stderr and in GANTRY_LOG_FILE it reads
 *   2026-11-16T07:47:28.123Z node3:4711 rank 2 gantry WARN net: connect to 10.0.0.2:4000: Connection refused
 * with the rank where it is known, and with file and line where GANTRY_LOG is
 * debug or trace. Inside NCCL the text goes to NCCL's logger, which has its own
 * host and process id in front. Logging preserves errno.
 *
 * The first function that knows a cause logs it, through FAIL; callers pass it
 * on with TRY and stay silent. GANTRY_AGAIN travels through TRY without a line.
 */
#ifndef GANTRY_BASE_LOG_H
#define GANTRY_BASE_LOG_H

#include <stdint.h>

#include "base/atomic.h"
#include "gantry/result.h"

enum gantry_log_level {
	GANTRY_LOG_ERROR,
	GANTRY_LOG_WARN,
	GANTRY_LOG_INFO,
	GANTRY_LOG_DEBUG,
	GANTRY_LOG_TRACE,
};

/* Subsystems: bits of the mask that GANTRY_LOG_SUBSYS selects by name. */
/* clang-format off */
#define GANTRY_SUBSYSTEMS(X)                                                \
	X(BASE, 0, "base")     /* parameters, files */                      \
	X(NET, 1, "net")       /* interfaces, connecting, lanes */          \
	X(DATA, 2, "data")     /* messages */                               \
	X(LOADER, 3, "loader") /* foreign plugins */                        \
	X(PLUGIN, 4, "plugin") /* the exported tables */                    \
	X(TOOL, 5, "tool")                                                  \
	X(DEVICE, 6, "device") /* GPUs, streams, kernels */                 \
	X(PROXY, 7, "proxy")   /* the progress thread */                    \
	X(COMM, 8, "comm")     /* bootstrap, transports, communicators */   \
	X(RX, 9, "rx")         /* the pipeline of gantry/rx.h */
/* clang-format on */
enum gantry_log_subsys {
#define GANTRY_SUBSYS_ENUM(name, bit, text) GANTRY_SUBSYS_##name = 1 << bit,
	GANTRY_SUBSYSTEMS(GANTRY_SUBSYS_ENUM)
#undef GANTRY_SUBSYS_ENUM
		GANTRY_SUBSYS_ALL = (1 << 10) - 1,
};

/*
 * A sink takes finished lines: `text` is the message alone, one line without its newline; level, subsystem and place
 * come beside it, `file` without its folder. Any thread calls it. NULL restores stderr or the file.
 */
typedef void (*gantry_log_sink)(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
				const char *text);
void gantry_log_set_sink(gantry_log_sink sink);
/* The mask narrows INFO and below; errors and warnings of every subsystem are written. */
void gantry_log_configure(enum gantry_log_level level, uint32_t subsys_mask, const char *file);
/* The rank of a communicator of this process; with two different ones lines carry none, unless a launcher gave one. */
void gantry_log_set_rank(int rank);
/* The rank that lines carry; negative: none. */
int gantry_log_rank(void);
/* "net" for GANTRY_SUBSYS_NET; "?" for what is not exactly one subsystem. */
const char *gantry_log_subsys_name(enum gantry_log_subsys subsys);

/* Next to free when the line is filtered out: one load and a compare. */
extern int gantry_log_level_now;
#define GANTRY_LOG(level, subsys, ...)                                                                                 \
	do {                                                                                                           \
		if ((int)(level) <= load_relaxed(&gantry_log_level_now))                                               \
			gantry_log_write((level), GANTRY_SUBSYS_##subsys, __FILE__, __LINE__, __VA_ARGS__);            \
	} while (0)
#define LOG_ERROR(subsys, ...) GANTRY_LOG(GANTRY_LOG_ERROR, subsys, __VA_ARGS__)
#define LOG_WARN(subsys, ...) GANTRY_LOG(GANTRY_LOG_WARN, subsys, __VA_ARGS__)
#define LOG_INFO(subsys, ...) GANTRY_LOG(GANTRY_LOG_INFO, subsys, __VA_ARGS__)
#define LOG_DEBUG(subsys, ...) GANTRY_LOG(GANTRY_LOG_DEBUG, subsys, __VA_ARGS__)
#define LOG_TRACE(subsys, ...) GANTRY_LOG(GANTRY_LOG_TRACE, subsys, __VA_ARGS__)

void gantry_log_write(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		      const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Logs at ERROR and, unless r is OK, keeps the text for gantry_last_error() of this thread. Returns r. */
gantry_result gantry_fail(gantry_result r, enum gantry_log_subsys subsys, const char *file, int line, const char *fmt,
			  ...) __attribute__((format(printf, 5, 6)));
/* The same line for a failure that the program can ask about (gantry_comm_error); the thread's last error stays. */
#define LOG_FAILURE(subsys, ...) ((void)gantry_fail(GANTRY_OK, GANTRY_SUBSYS_##subsys, __FILE__, __LINE__, __VA_ARGS__))
/* For a tool that prints such failures itself: their lines go to a log file, and to stderr only from level info on. */
void gantry_log_failures_are_told(int on);
void gantry_set_last_error(const char *text); /* for gantry_last_error() of this thread */
/* While this thread tries what may fail, failures are kept for gantry_last_error() and logged at DEBUG only. */
void gantry_log_trying(int trying);

/* FAIL and TRY end at the label `out`, with the code in `r`. LOG_SUBSYS is defined by each .c file before its includes. */
#define FAIL(code, ...)                                                                                                \
	do {                                                                                                           \
		r = gantry_fail((code), LOG_SUBSYS, __FILE__, __LINE__, __VA_ARGS__);                                  \
		goto out;                                                                                              \
	} while (0)
#define TRY(call)                                                                                                      \
	do {                                                                                                           \
		r = (call);                                                                                            \
		if (r != GANTRY_OK)                                                                                    \
			goto out;                                                                                      \
	} while (0)
/* The same for functions that have nothing to clean up: they return at once. */
#define FAIL_NOW(code, ...) return gantry_fail((code), LOG_SUBSYS, __FILE__, __LINE__, __VA_ARGS__)
#define TRY_NOW(call)                                                                                                  \
	do {                                                                                                           \
		gantry_result tried = (call);                                                                          \
		if (tried != GANTRY_OK)                                                                                \
			return tried;                                                                                  \
	} while (0)

/*
 * At most one line per second per call site, with a count of those left out:
 * for the data path and for strangers.
 */
struct gantry_ratelimit {
	uint64_t last_ns;
	uint32_t suppressed;
};
/* True when the line may be written; *ret_suppressed says how many were not since the last one. */
int gantry_ratelimit_pass(struct gantry_ratelimit *rl, uint32_t *ret_suppressed);
/* " (2 similar lines suppressed)", or "": the end of such a line. Returns buf. */
enum { GANTRY_LEFT_OUT_TEXT = 48 };
const char *gantry_left_out_text(uint32_t suppressed, char buf[GANTRY_LEFT_OUT_TEXT]);
#define LEFT_OUT(suppressed) gantry_left_out_text((suppressed), (char[GANTRY_LEFT_OUT_TEXT]){0})

#endif
