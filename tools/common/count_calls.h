/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the system calls of this process without privileges.
 *
 * The tool defines and exports functions named send, recvmsg, poll and so on
 * (see count_calls.c). The dynamic linker prefers them to libc's for the tool
 * itself and for every library it loads, so calls of foreign plugins are counted
 * as well. What libc calls on its own behalf (stdio, futexes inside pthread
 * functions, getaddrinfo) does not pass here and is not counted; neither are
 * mmap, fcntl, socket and other calls that have no place on a data path.
 */
#ifndef GANTRY_TOOLS_COUNT_CALLS_H
#define GANTRY_TOOLS_COUNT_CALLS_H

#include <stdint.h>

/* Name: as strace shows it. Data calls carry bytes: those that return more than 0 have moved some. */
/* clang-format off */
#define CALL_KINDS(X)                  \
	X(SENDTO, "sendto", 1)         \
	X(SENDMSG, "sendmsg", 1)       \
	X(SENDMMSG, "sendmmsg", 1)     \
	X(WRITE, "write", 1)           \
	X(WRITEV, "writev", 1)         \
	X(RECVFROM, "recvfrom", 1)     \
	X(RECVMSG, "recvmsg", 1)       \
	X(RECVMMSG, "recvmmsg", 1)     \
	X(READ, "read", 1)             \
	X(READV, "readv", 1)           \
	X(SPLICE, "splice", 1)         \
	X(VMSPLICE, "vmsplice", 1)     \
	X(TEE, "tee", 1)               \
	X(SENDFILE, "sendfile", 1)     \
	X(PPOLL, "ppoll", 0)           \
	X(PSELECT, "pselect6", 0)      \
	X(EPOLL_WAIT, "epoll_pwait", 0) \
	X(EPOLL_CTL, "epoll_ctl", 0)   \
	X(IOCTL, "ioctl", 0)           \
	X(SETSOCKOPT, "setsockopt", 0) \
	X(GETSOCKOPT, "getsockopt", 0) \
	X(ACCEPT, "accept4", 0)        \
	X(SCHED_YIELD, "sched_yield", 0) \
	X(NANOSLEEP, "nanosleep", 0)   \
	X(CLOCK_NANOSLEEP, "clock_nanosleep", 0) \
	X(SYSCALL, "syscall", 0) /* anything called through syscall(2) */
/* clang-format on */

enum call_kind {
#define CALL_KIND_ENUM(id, name, data) CALL_##id,
	CALL_KINDS(CALL_KIND_ENUM)
#undef CALL_KIND_ENUM
		CALL_KIND_COUNT
};

struct call_counts {
	uint64_t made[CALL_KIND_COUNT];
	uint64_t all;	/* the sum of made */
	uint64_t moved; /* data calls that returned more than 0 */
};

/*
 * The counts of this process, all its threads; a forked child goes on from its
 * parent's. Returns 0 when nothing is counted (under sanitizers, which need
 * these names themselves). Weak, because test programs leave count_calls.c out:
 * check the address before the call.
 */
int count_calls_now(struct call_counts *ret_counts) __attribute__((weak));
const char *count_calls_name(enum call_kind kind) __attribute__((weak));

#endif
