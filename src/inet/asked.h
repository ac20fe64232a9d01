/* SPDX-License-Identifier: Apache-2.0 */
/* GANTRY_STALL_SIGNAL: clients of the loop that write reports are woken by it, and see by a count that it came. */
#ifndef GANTRY_INET_ASKED_H
#define GANTRY_INET_ASKED_H

#include <stdint.h>

#include "inet/loop.h"

/* Takes the signal, if one is set and the program does not handle it itself. Any number of times. */
enum inet_asker { INET_ASKED_NET = 1, INET_ASKED_COMM = 2, INET_ASKED_REDUCER = 4 };
void inet_asked_start(enum inet_asker asker) REQUIRES(loop_mu);
void inet_asked_stop(enum inet_asker asker) REQUIRES(loop_mu);
void inet_asked_in_child(void) REQUIRES(loop_mu);
/* How often the signal has come. */
uint32_t inet_asked(void);

#endif
