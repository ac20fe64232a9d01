/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets: creation, options, and what each errno means while connecting. */
#ifndef GANTRY_INET_SOCK_H
#define GANTRY_INET_SOCK_H

#include <stdbool.h>
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

/* Resets the connection, ahead of what waits in the kernel. The descriptor stays, so that threads that are busy with it find the
 * end and nothing else. */
void sock_reset(int fd);

/* How a connect has ended: errno, or 0. */
int sock_error(int fd);
/* The address that a socket leaves by, now. False: none. */
bool sock_local(int fd, struct gantry_addr *ret_addr);
/* The kernel may send by reference (MSG_ZEROCOPY). 0 or errno. */
int sock_allow_zerocopy(int fd);

struct sock_options {
	int same_host;
	int traffic_class; /* DSCP, -1: leave */
	uint64_t timeout_ns;
	int zerocopy;
	int unsent_max;	    /* bytes that may wait in the kernel before the socket counts as full, 0: leave */
	const char *device; /* bind accepted sockets to it; NULL: do not */
};
void sock_tune(int fd, const struct sock_options *o);

/* File descriptors this process may still open, roughly. */
long sock_fd_budget(long *ret_limit);
/* Room for n more, and for some to spare: raises the soft limit if it must, with a line in the log. False: the hard limit
 * leaves no room for n. */
bool sock_fd_reserve(long n, long spare);

/*
 * TCP's back-off, bounded by a deadline.
 *
 * While packets are lost TCP waits twice as long before each retransmission: after an outage the next one comes up to
 * as long again as the outage took, which may be past the waiter's deadline. Where the kernel can cap the
 * waiting time finely enough (TCP_RTO_MAX_MS, Linux 6.15, not below 1 s) sock_tune does that and nothing is left to do
 * here.
 *
 * Elsewhere TCP_USER_TIMEOUT serves. When the kernel sets its timer for the next retransmission, it sets it no later
 * than the time-out; whether to abort instead is decided when the timer fires, by the time-out that is in force then.
 * So a time-out that is set early and moved on before it is reached makes a retransmission go out at that very time.
 * There are three such times; the first is there so that the timer is known to stand at the second, which is the one
 * that counts, and the third is for machines where something was late. Each is moved on early; the caller that does so
 * may be late by as much before the kernel aborts, in the middle of an outage. At all other times the time-out is so
 * long
 * that the kernel never decides: neither an outage nor a peer that does not read for a while is an error of TCP's.
 */
/* Owned by the caller; initialised to zero. */
struct sock_backoff {
	uint64_t acked;	       /* bytes, as the kernel counts */
	uint64_t since;	       /* ns: something is out, and nothing was acknowledged from then on; 0: nothing is out */
	uint64_t resent;       /* ns: when retransmissions began; 0: there is none under way */
	uint64_t recovered_at; /* as acked: when that has come to an end */
	uint32_t user_ms;      /* TCP_USER_TIMEOUT as it was set; 0: as sock_tune left it */
	enum { BACKOFF_UNKNOWN, BACKOFF_MOVED, BACKOFF_CAPPED } kind;
};

/* How often sock_backoff_tick is called, at least. */
static inline uint64_t sock_backoff_interval(uint64_t timeout_ns)
{
	return timeout_ns / 64;
}

/* A look at the socket. 1: something is not acknowledged, call again after the interval. */
int sock_backoff_tick(struct sock_backoff *b, int fd, uint64_t now_ns, uint64_t timeout_ns);
/* No thread waits for this socket any more: the kernel drops it after the deadline. */
void sock_backoff_leave(int fd, uint64_t timeout_ns);

#endif
