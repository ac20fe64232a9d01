/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/api.h"

#include <string.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/log.h"

enum { STRUCT_MAX = 64 << 10 }; /* what is larger was never set */

static gantry_result check_size(const void *theirs, const char *name, size_t *ret_size)
{
	size_t size = 0;

	if (!theirs)
		FAIL_NOW(GANTRY_ERR_INVALID, "struct %s is NULL", name);
	memcpy(&size, theirs, sizeof(size));
	if (size < sizeof(size) || size > STRUCT_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "struct %s: struct_size is %zu; set it to sizeof(struct %s)", name, size,
			 name);
	*ret_size = size;
	return GANTRY_OK;
}

gantry_result gantry_struct_take(void *own, size_t own_size, const void *theirs, const char *name)
{
	const unsigned char *bytes = theirs;
	size_t size = 0;

	TRY_NOW(check_size(theirs, name, &size));
	for (size_t i = own_size; i < size; i++)
		if (bytes[i])
			FAIL_NOW(GANTRY_ERR_INVALID,
				 "struct %s has %zu bytes and sets a member that this library (%s, %zu bytes) does not "
				 "support: the program was built with newer headers",
				 name, size, gantry_build, own_size);
	memset(own, 0, own_size);
	memcpy(own, theirs, size < own_size ? size : own_size);
	memcpy(own, &own_size, sizeof(own_size));
	return GANTRY_OK;
}

gantry_result gantry_struct_give(void *theirs, const void *own, size_t own_size, const char *name)
{
	size_t size = 0;

	TRY_NOW(check_size(theirs, name, &size));
	memset(theirs, 0, size);
	memcpy(theirs, own, size < own_size ? size : own_size);
	memcpy(theirs, &size, sizeof(size));
	return GANTRY_OK;
}

gantry_result gantry_deadline(int64_t timeout_ns, uint64_t parameter, uint64_t *ret_deadline)
{
	if (timeout_ns < 0 && timeout_ns != GANTRY_WAIT_FOREVER && timeout_ns != GANTRY_WAIT_DEFAULT)
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "timeout of %lld ns is invalid: expected 0 or more, GANTRY_WAIT_FOREVER (%d) or "
			 "GANTRY_WAIT_DEFAULT (%d)",
			 (long long)timeout_ns, GANTRY_WAIT_FOREVER, GANTRY_WAIT_DEFAULT);
	if (timeout_ns == GANTRY_WAIT_FOREVER)
		*ret_deadline = UINT64_MAX;
	else
		*ret_deadline = gantry_now_ns() + (timeout_ns < 0 ? parameter : (uint64_t)timeout_ns);
	return GANTRY_OK;
}
