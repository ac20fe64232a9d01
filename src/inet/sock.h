/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets: creation, options, and what each errno means while connecting. */
#ifndef GANTRY_INET_SOCK_H
#define GANTRY_INET_SOCK_H

#include <stdint.h>

#include "gantry/result.h"
#include "inet/nic.h"

enum sock_errno_class {
	SOCK_RETRY, /* may pass: try again until the deadline */
	SOCK_LIMIT, /* this machine or process has run out of something */
	SOCK_FATAL, /* will not pass */
};
enum sock_errno_class sock_errno_class(int e);
/* What to make of an errno for the user: "nothing listens there", "no answer: filtered?", ... */
const char *sock_errno_hint(int e);

/* A listening socket on `addr` (`::` is every address, of IPv4 too); the port is taken from [first, last], or chosen by the kernel if first is 0. */
gantry_result sock_listen(const struct gantry_addr *addr, uint16_t first, uint16_t last, int *ret_fd,
			  struct gantry_addr *ret_bound);

/* Starts a non-blocking connect; *ret_fd is set also while it is in progress. Never logs: returns errno or 0. */
int sock_connect(const struct gantry_addr *from, const char *device, const struct gantry_addr *to, int *ret_fd);

struct sock_options {
	int same_host;
	int traffic_class; /* DSCP, -1: leave */
	uint64_t timeout_ns;
	int zerocopy;
	const char *device; /* bind accepted sockets to it; NULL: do not */
};
void sock_tune(int fd, const struct sock_options *o);

/* File descriptors this process may still open, roughly. */
long sock_fd_budget(long *ret_limit);

#endif
