/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of Gantry's own: with a name that debuggers show, and with all signals blocked, which are for the program's. */
#ifndef GANTRY_BASE_THREAD_H
#define GANTRY_BASE_THREAD_H

#include <pthread.h>

#include "gantry/result.h"

/* name: at most 15 characters, "gantry-" first. ERR_LIMIT with a line: the system has no thread for us. */
gantry_result gantry_thread_start(const char *name, void *(*run)(void *), void *arg, pthread_t *ret_thread);

#endif
