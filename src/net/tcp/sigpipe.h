/* SPDX-License-Identifier: Apache-2.0 */
/*
 * splice knows no MSG_NOSIGNAL: on a socket that the peer has reset it raises SIGPIPE, whose default ends the process.
 * So the signal is blocked around a pass that may splice, and one that came of it is taken back; unless the program
 * ignores or blocks it anyway, as most do.
 */
#ifndef GANTRY_NET_TCP_SIGPIPE_H
#define GANTRY_NET_TCP_SIGPIPE_H

#include <signal.h>

struct sigpipe_guard {
	int on, was_pending;
	sigset_t old;
};

void sigpipe_guard(struct sigpipe_guard *g);
/* lost: a call on the socket has failed. Does nothing for a zeroed guard. */
void sigpipe_unguard(const struct sigpipe_guard *g, int lost);

#endif
