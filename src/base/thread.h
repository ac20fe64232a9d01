/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of Gantry's own: with a name that debuggers show, and with all signals blocked, which are for the program's. */
#ifndef GANTRY_BASE_THREAD_H
#define GANTRY_BASE_THREAD_H

#include <pthread.h>

#include "gantry/result.h"

/*
 * Texts that functions hand out and that live until the same thread calls again. They are no thread-local arrays: the
 * host device's lanes have a variable for which code may not call anything (device/host/dev_host.h), so all that is
 * thread-local in our libraries has to fit into what the dynamic linker keeps free for libraries that are opened at run
 * time, a few hundred bytes (tests/system/opened.sh looks at the size).
 */
enum gantry_thread_text {
	GANTRY_TEXT_LAST_ERROR,
	GANTRY_TEXT_SOCK_HINT,
	GANTRY_TEXT_DEVMEM_ERRNO,
	GANTRY_TEXT_DEVMEM_ERROR,
	GANTRY_TEXT_NCCL_ERROR,
	GANTRY_TEXT_NCCL_PARAM,
	GANTRY_TEXT_NCCL_KEY,
	GANTRY_THREAD_TEXTS
};
enum { GANTRY_THREAD_TEXT = 1024 }; /* bytes of each */
/* The calling thread's, empty at first. Never NULL: without memory all threads have the same one. */
char *gantry_thread_text(enum gantry_thread_text which);
/* The same, but "" if this thread never asked for it. */
const char *gantry_thread_text_now(enum gantry_thread_text which);

/* name: at most 15 characters, "gantry-" first. ERR_LIMIT with a line: the system has no thread for us. */
gantry_result gantry_thread_start(const char *name, void *(*run)(void *), void *arg, pthread_t *ret_thread);

#endif
