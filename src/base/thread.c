/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/thread.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct texts {
	char *text[GANTRY_THREAD_TEXTS]; /* owned; NULL: not asked for */
};
static _Thread_local struct texts *texts; /* ends with its thread */

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its only use is to be destroyed when a thread ends */
static int has_key;

static void thread_ends(void *arg)
{
	struct texts *t = arg;

	texts = NULL; /* what is destroyed after this may fail, too */
	for (size_t i = 0; i < GANTRY_THREAD_TEXTS; i++)
		free(t->text[i]);
	free(t);
}

static void make_key(void)
{
	has_key = !pthread_key_create(&key, thread_ends);
}

/* If the library is unloaded, threads must not come back to thread_ends. */
__attribute__((destructor)) static void delete_key(void)
{
	if (has_key)
		pthread_key_delete(key);
}

char *gantry_thread_text(enum gantry_thread_text which)
{
	static char without_memory[GANTRY_THREAD_TEXT];

	if (!texts) {
		texts = calloc(1, sizeof(*texts));
		if (!texts)
			return without_memory;
		pthread_once(&key_once, make_key);
		if (has_key)
			pthread_setspecific(key, texts);
	}
	if (!texts->text[which])
		texts->text[which] = calloc(1, GANTRY_THREAD_TEXT);
	return texts->text[which] ? texts->text[which] : without_memory;
}

const char *gantry_thread_text_now(enum gantry_thread_text which)
{
	return texts && texts->text[which] ? texts->text[which] : "";
}

gantry_result gantry_thread_start(const char *name, void *(*run)(void *), void *arg, pthread_t *ret_thread)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(ret_thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		FAIL_NOW(GANTRY_ERR_LIMIT, "cannot start thread %s: %s", name, strerror(rc));
	pthread_setname_np(*ret_thread, name);
	return GANTRY_OK;
}
