/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GANTRY_DEVICE_HELP_H
#define GANTRY_DEVICE_HELP_H

#include "gantry/fifo.h"

/*
 * Who moves steps for the kernels of a launch, and can be asked to do so by a CPU thread that runs one and has nothing
 * to do but wait for it: that saves waking another thread, and the time until it has a CPU.
 */
struct gantry_help {
	int (*drive)(void *ctx);  /* one pass, if nobody else is at it; 1: something moved. Never blocks */
	void (*leave)(void *ctx); /* the kernel will not drive any more for now: what is left is others' */
	void *ctx;
	struct gantry_eventcount *eventcount; /* need not be notified by a thread that drives */
	int crowded; /* whoever is waited for may need this CPU: yield it after each pass that moved nothing */
};

#endif
