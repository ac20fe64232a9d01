/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include "device/failure.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"

static uint64_t ends = 1; /* of all failures, and one: 0 is none */

gantry_result gantry_failure_make(struct gantry_failure **ret_failure)
{
	struct gantry_failure *f = calloc(1, sizeof(*f));

	if (!f)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a communicator's error");
	f->refs = 1;
	*ret_failure = f;
	return GANTRY_OK;
}

void gantry_failure_put(struct gantry_failure *f)
{
	if (f && fetch_sub_acq_rel(&f->refs, 1) == 1)
		free(f);
}

void gantry_failure_set(struct gantry_failure *f, gantry_result r, const char *text)
{
	snprintf(f->text, sizeof(f->text), "%s", text);
	store_release(&f->result, (uint32_t)r);
}

void gantry_failure_end(struct gantry_failure *f)
{
	if (!load_acquire(&f->ended))
		store_seq(&f->ended, fetch_add_seq(&ends, 1) + 1);
}

uint64_t gantry_failure_now(void)
{
	return load_seq(&ends);
}

gantry_result gantry_failure_tell(const struct gantry_failure *f)
{
	gantry_result r = (gantry_result)load_acquire(&f->result);

	if (r != GANTRY_OK && *f->text)
		gantry_set_last_error(f->text);
	if (r == GANTRY_OK)
		r = (gantry_result)load_acquire(&f->found);
	return r != GANTRY_OK ? r : GANTRY_ERR_ABORTED;
}
