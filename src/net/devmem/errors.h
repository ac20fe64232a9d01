/* SPDX-License-Identifier: Apache-2.0 */
/* What an errno of devmem TCP means, call by call, and what to do about it. */
#ifndef GANTRY_NET_DEVMEM_ERRORS_H
#define GANTRY_NET_DEVMEM_ERRORS_H

#include <stddef.h>

#include "gantry/result.h"

enum devmem_call {
	DEVMEM_CALL_BIND_RX,
	DEVMEM_CALL_BIND_TX,
	DEVMEM_CALL_RECVMSG,
	DEVMEM_CALL_DONTNEED,
	DEVMEM_CALL_SENDMSG,
	DEVMEM_CALL_RULE,  /* inserting a flow rule */
	DEVMEM_CALL_RINGS, /* header split */
};

struct devmem_error {
	enum devmem_call call;
	int error; /* errno; 524 and 525 have no name in libc */
	gantry_result result;
	const char *reason, *advice; /* "" where there is none */
};

/* Never NULL: what the table lacks is a system call that failed, with reason "". */
const struct devmem_error *devmem_error_of(enum devmem_call call, int error);
/* The whole table, for tests and documentation. */
const struct devmem_error *devmem_errors(size_t *ret_count);
const char *devmem_call_name(enum devmem_call call);
/* "Operation not supported (95)", also for the kernel's own numbers. */
const char *devmem_strerror(int error, char *buf, size_t len);
/* "BIND_RX: Operation not supported (95): <reason>[ (the kernel says: <said>)]". Returns buf. */
const char *devmem_error_text(enum devmem_call call, int error, const char *said, char *buf, size_t len);

#endif
