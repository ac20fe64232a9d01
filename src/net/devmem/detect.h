/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Can devmem TCP work here? Nine questions in a fixed order, each with a verdict, a reason and what to do. Nothing is
 * changed: the last request to the kernel is a binding of a file that is not open.
 */
#ifndef GANTRY_NET_DEVMEM_DETECT_H
#define GANTRY_NET_DEVMEM_DETECT_H

#include <stddef.h>
#include <sys/socket.h>

#include "gantry/result.h"
#include "net/devmem/sys.h"

struct gantry_device;
struct gantry_addr;

enum devmem_verdict {
	DEVMEM_YES,
	DEVMEM_NO,	/* it cannot work before this is changed */
	DEVMEM_UNKNOWN, /* only the real thing will tell */
	DEVMEM_SKIPPED, /* not asked: see the reason */
};

enum devmem_question {
	DEVMEM_ASK_OPTION,  /* SO_DEVMEM_DONTNEED */
	DEVMEM_ASK_FAMILY,  /* netdev's commands, NET_DEVMEM built in */
	DEVMEM_ASK_PEER,    /* another host? */
	DEVMEM_ASK_SPLIT,   /* header split */
	DEVMEM_ASK_STEER,   /* a spare queue, flow rules */
	DEVMEM_ASK_BIND,    /* dry run of BIND_RX */
	DEVMEM_ASK_EXPORT,  /* dma-buf of the device's memory */
	DEVMEM_ASK_SEND,    /* BIND_TX: independent of the others */
	DEVMEM_ASK_RUNTIME, /* does the flow land where it should? */
	DEVMEM_QUESTIONS
};

struct devmem_step {
	const char *name; /* static */
	enum devmem_verdict verdict;
	char reason[256];
	char advice[192]; /* "" where there is nothing to do */
};

struct devmem_wish {
	const char *nic;
	const struct gantry_device *device; /* NULL: EXPORT is skipped */
	const struct gantry_addr *peer;	    /* NULL: PEER is skipped */
	int configure;			    /* Gantry may set up the NIC */
	const char *daemon;		    /* socket of the privileged daemon, or "" */
};

/* first_no: stop there (the steps after it are SKIPPED). Returns 1 if receiving can work as far as can be
 * determined. */
int devmem_detect(struct devmem_sys *s, const struct devmem_wish *w, int first_no,
		  struct devmem_step ret_steps[DEVMEM_QUESTIONS]);
const char *devmem_verdict_name(enum devmem_verdict v); /* "yes", "no", "unknown", "skipped" */

/* What an errno of devmem TCP means, call by call, and what to do about it. X(call, its name in texts). */
/* clang-format off */
#define DEVMEM_CALLS(X)                                                                                                \
	X(BIND_RX, "BIND_RX")                                                                                          \
	X(BIND_TX, "BIND_TX")                                                                                          \
	X(RECVMSG, "recvmsg MSG_SOCK_DEVMEM")                                                                          \
	X(DONTNEED, "SO_DEVMEM_DONTNEED")                                                                              \
	X(SENDMSG, "sendmsg SCM_DEVMEM_DMABUF")                                                                        \
	X(RULE, "flow rule") /* inserting one */                                                                       \
	X(RINGS, "header split")
#define DEVMEM_CALL_ENUM(call, name) DEVMEM_CALL_##call,
enum devmem_call { DEVMEM_CALLS(DEVMEM_CALL_ENUM) };
/* clang-format on */

struct devmem_error {
	enum devmem_call call;
	int error; /* errno; 524 and 525 have no name in libc */
	gantry_result result;
	const char *reason, *advice; /* "" where there is none */
};

/* Never NULL: what the table lacks is a system call that failed, with reason "". */
const struct devmem_error *devmem_error_of(enum devmem_call call, int error);
/* Texts: live as long as the calling thread; its next call overwrites them. */
/* "Operation not supported (95)", also for the kernel's own numbers. */
const char *devmem_strerror(int error);
/* "BIND_RX: Operation not supported (95): <reason>[ (kernel message: <message>)]". */
const char *devmem_error_text(enum devmem_call call, int error, const char *message);

#endif
