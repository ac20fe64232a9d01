/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Result codes, shared by every face of Gantry.
 *
 * One list makes the enum, the names and the texts. The numbers travel on the wire and are compiled into programs: a
 * new code takes the next number, none is ever used again. GANTRY_AGAIN is not an error: it says "nothing to report
 * yet, call again" and is never logged. All calls may be made by any thread.
 */
#ifndef GANTRY_RESULT_H
#define GANTRY_RESULT_H

#include "gantry/api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
#define GANTRY_RESULTS(X)                                                              \
	X(OK,               0, "success")                                              \
	X(AGAIN,            1, "not yet, call again")                                  \
	X(ERR_SYSTEM,       2, "a system call failed")                                 \
	X(ERR_NOMEM,        3, "out of memory")                                        \
	X(ERR_INVALID,      4, "invalid argument")                                     \
	X(ERR_USAGE,        5, "the interface was used in a way its contract forbids") \
	X(ERR_CONFIG,       6, "a parameter or option is wrong")                       \
	X(ERR_UNSUPPORTED,  7, "not supported here")                                   \
	X(ERR_LIMIT,        8, "a limit of this machine or process is exhausted")      \
	X(ERR_INTERNAL,     9, "internal error, please report it")                     \
	X(ERR_UNREACHABLE, 10, "the peer cannot be reached")                           \
	X(ERR_TIMEOUT,     11, "a deadline passed")                                    \
	X(ERR_PEER_CLOSED, 12, "the peer closed the connection")                       \
	X(ERR_PEER_LOST,   13, "the connection to the peer broke")                     \
	X(ERR_PEER_SILENT, 14, "the peer gave no sign of life")                        \
	X(ERR_REFUSED,     15, "the peer refused the connection")                      \
	X(ERR_AUTH,        16, "authentication failed")                                \
	X(ERR_VERSION,     17, "protocol versions differ")                             \
	X(ERR_SETTING,     18, "settings that must agree differ")                      \
	X(ERR_SIZE,        19, "a send is larger than its receive")                    \
	X(ERR_CORRUPT,     20, "data arrived damaged")                                 \
	X(ERR_PROTOCOL,    21, "the peer broke the wire protocol")                     \
	X(ERR_ABORTED,     22, "the operation was aborted on this side")               \
	X(ERR_CANCELLED,   23, "the operation was cancelled")                          \
	X(ERR_DEVICE,      24, "a call of the GPU's driver failed")
/* clang-format on */

typedef enum {
#define GANTRY_RESULT_ENUM(name, number, text) GANTRY_##name = number,
	GANTRY_RESULTS(GANTRY_RESULT_ENUM)
#undef GANTRY_RESULT_ENUM
		GANTRY_RESULT_COUNT /* of this version */
} gantry_result;

/* "ERR_PEER_SILENT" and "the peer gave no sign of life"; never NULL. */
GANTRY_API const char *gantry_result_name(gantry_result r);
GANTRY_API const char *gantry_result_text(gantry_result r);

/* One line about the last call of this thread that failed, with the cause; "" if none has. Calls that succeed leave it.
 * Lives until the next call that fails or the thread's end. */
GANTRY_API const char *gantry_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
