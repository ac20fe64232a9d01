/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Result codes, shared by every face of Gantry.
 *
 * One list makes the enum, the names and the texts. GANTRY_AGAIN is not an
 * error: it says "nothing to report yet, call again" and is never logged.
 */
#ifndef GANTRY_RESULT_H
#define GANTRY_RESULT_H

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
#define GANTRY_RESULTS(X)                                                          \
	X(OK,              "success")                                              \
	X(AGAIN,           "not yet, call again")                                  \
	X(ERR_SYSTEM,      "a system call failed")                                 \
	X(ERR_NOMEM,       "out of memory")                                        \
	X(ERR_INVALID,     "invalid argument")                                     \
	X(ERR_USAGE,       "the interface was used in a way its contract forbids") \
	X(ERR_CONFIG,      "a parameter or option is wrong")                       \
	X(ERR_UNSUPPORTED, "not supported here")                                   \
	X(ERR_LIMIT,       "a limit of this machine or process is exhausted")      \
	X(ERR_INTERNAL,    "internal error, please report it")                     \
	X(ERR_UNREACHABLE, "the peer cannot be reached")                           \
	X(ERR_TIMEOUT,     "a deadline passed")                                    \
	X(ERR_PEER_CLOSED, "the peer closed the connection")                       \
	X(ERR_PEER_LOST,   "the connection to the peer broke")                     \
	X(ERR_PEER_SILENT, "the peer gave no sign of life")                        \
	X(ERR_REFUSED,     "the peer refused the connection")                      \
	X(ERR_AUTH,        "authentication failed")                                \
	X(ERR_VERSION,     "protocol versions differ")                             \
	X(ERR_SETTING,     "settings that must agree differ")                      \
	X(ERR_SIZE,        "a send is larger than its receive")                    \
	X(ERR_CORRUPT,     "data arrived damaged")                                 \
	X(ERR_PROTOCOL,    "the peer broke the wire protocol")                     \
	X(ERR_ABORTED,     "the operation was aborted on this side")               \
	X(ERR_CANCELLED,   "the operation was cancelled")
/* clang-format on */

typedef enum {
#define GANTRY_RESULT_ENUM(name, text) GANTRY_##name,
	GANTRY_RESULTS(GANTRY_RESULT_ENUM)
#undef GANTRY_RESULT_ENUM
		GANTRY_RESULT_COUNT
} gantry_result;

/* "ERR_PEER_SILENT" and "the peer gave no sign of life"; never NULL. */
const char *gantry_result_name(gantry_result r);
const char *gantry_result_text(gantry_result r);

#ifdef __cplusplus
}
#endif
#endif
