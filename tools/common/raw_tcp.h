/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain TCP, the limit to measure against: for `perf net --raw`, `perf rx` and bench/raw_streams.c, which is compiled
 * with nothing else than this and libc. Functions return 0, or -1 and errno.
 */
#ifndef GANTRY_TOOLS_RAW_TCP_H
#define GANTRY_TOOLS_RAW_TCP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { RAW_TCP_MAX = 64 };

/* Connections between two processes, in the same order on both sides. */
struct raw_tcp {
	int fd[RAW_TCP_MAX]; /* owned */
	int n;
	int listener; /* owned; 0: there is none */
};

/* One side listens at the address, on a port that the kernel chooses. A peer that does not come, or that is silent, ends
 * whatever blocks after limit_ns; 0: nothing does. */
int raw_tcp_listen(struct raw_tcp *w, const struct sockaddr *at, socklen_t len, uint64_t limit_ns, uint16_t *ret_port);
/* n connections; to: of the side that listens, NULL on that side itself. */
int raw_tcp_join(struct raw_tcp *w, int n, const struct sockaddr *to, socklen_t len, uint64_t limit_ns);
void raw_tcp_close(struct raw_tcp *w); /* accepts what is half-built */

/* Sends or receives all of it; on a non-blocking socket it spins. */
int raw_tcp_move(int fd, void *p, size_t size, int sending);

/* Blocking sends and receives of 1 MiB. */
struct raw_tcp_stream {
	int fd, sending;
	uint64_t bytes;	   /* how many */
	uint64_t until_ns; /* or until this time (CLOCK_MONOTONIC), if it is not 0: then the sender closes its half */
	uint64_t moved;	   /* result; by that time */
	int error;	   /* result: an errno */
};
/* All of them to their end, with a thread for each. */
int raw_tcp_run(struct raw_tcp_stream *streams, int n);

#endif
