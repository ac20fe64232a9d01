/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GANTRY_DEVICE_HELP_H
#define GANTRY_DEVICE_HELP_H

#include "gantry/fifo.h"

/*
 * Moves steps for the kernels of a launch. A CPU thread that runs a kernel and has nothing to do but wait can call it
 * directly: that saves waking another thread, and the time until that thread has a CPU.
 */
struct gantry_help {
	int (*drive)(void *ctx);  /* one pass, if no other thread is in it; 1: something moved. Never blocks */
	void (*leave)(void *ctx); /* the kernel will not drive any more for now: what is left is others' */
	void *ctx;
	struct gantry_eventcount *eventcount; /* need not be notified by a thread that drives */
	int crowded; /* the thread waited for may need this CPU: yield it after each pass that moved nothing */
};

#endif
