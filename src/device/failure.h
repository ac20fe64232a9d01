/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why kernels of a communicator ended before their work was done, for devices whose streams report errors
 * (gantry_device.reports). A launch refers to it; a stream whose kernel failed is held by it, and so is every stream that
 * waits for an event behind it: nothing that is queued there runs, and calls that wait return the error. The hold ends when
 * the program ends the communicator (abort, revoke, destroy), as kernels on a GPU do.
 *
 * One object per communicator, counted: the communicator, held streams and marks of events have a reference each.
 *
 * Order: `result` (release) follows `text`. `ended` is given out by one counter of the process, so a wait that read that
 * counter when it began knows whether the end came before or after (gantry_failure_now).
 */
#ifndef GANTRY_DEVICE_FAILURE_H
#define GANTRY_DEVICE_FAILURE_H

#include <stdint.h>

#include "base/atomic.h"
#include "gantry/result.h"

enum { GANTRY_FAILURE_TEXT = 256 };

struct gantry_failure {
	uint32_t refs;
	uint32_t result; /* gantry_result; OK: it has not failed, or only a kernel knows */
	uint32_t found;	 /* by a kernel, before the communicator has taken note; OK: nothing, or an abort */
	uint64_t ended;	 /* 0: the program has not ended it */
	char text[GANTRY_FAILURE_TEXT];
};

/* The end of a hold that is over, as far as waits that began before it are concerned. */
struct gantry_hold_end {
	uint64_t ended; /* 0: there was none */
	gantry_result result;
};

gantry_result gantry_failure_make(struct gantry_failure **ret_failure);
void gantry_failure_put(struct gantry_failure *f); /* NULL is fine */
/* Once, by the owner. */
void gantry_failure_set(struct gantry_failure *f, gantry_result r, const char *text);
void gantry_failure_end(struct gantry_failure *f);
uint64_t gantry_failure_now(void);

static inline struct gantry_failure *gantry_failure_ref(struct gantry_failure *f)
{
	fetch_add_relaxed(&f->refs, 1);
	return f;
}

static inline int gantry_failure_holds(const struct gantry_failure *f)
{
	return f && !load_acquire(&f->ended);
}

/* What calls return: the communicator's error, or what the kernel found. Keeps the text for gantry_last_error(). */
gantry_result gantry_failure_tell(const struct gantry_failure *f);

#endif
