/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/thread.h"

#include <signal.h>
#include <string.h>

#include "base/log.h"

gantry_result gantry_thread_start(const char *name, void *(*run)(void *), void *arg, pthread_t *ret_thread)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(ret_thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		FAIL_NOW(GANTRY_ERR_LIMIT, "cannot start the thread %s: %s", name, strerror(rc));
	pthread_setname_np(*ret_thread, name);
	return GANTRY_OK;
}
