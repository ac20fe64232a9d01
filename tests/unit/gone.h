/* SPDX-License-Identifier: Apache-2.0 */
/* Closed links are seen off and freed by the service thread, some time after the close. */
#ifndef GANTRY_TESTS_GONE_H
#define GANTRY_TESTS_GONE_H

#include "net/tcp/engine.h"
#include "test.h"

static inline int links_are_gone(void)
{
	int gone;

	inet_loop_lock();
	gone = gantry_list_empty(&tcp_engine.links) && gantry_list_empty(&tcp_engine.lingering) && !tcp_engine.nburied;
	inet_loop_unlock();
	return gone;
}

#endif
