/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of gantry/api.h, from the callee's side: structs of callers with other headers, and timeouts. */
#ifndef GANTRY_BASE_API_H
#define GANTRY_BASE_API_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"

/* Takes a caller's struct, which may be shorter or longer than ours: what it lacks is zero here, what we do not know
 * must be zero there, else ERR_INVALID. Both begin with struct_size. */
gantry_result gantry_struct_take(void *own, size_t own_size, const void *theirs, const char *name);
#define STRUCT_TAKE(own, theirs, type) gantry_struct_take(own, sizeof(struct type), theirs, #type)
/* Fills in a caller's struct, as far as it has room; the rest of it is zero. Its struct_size stays. */
gantry_result gantry_struct_give(void *theirs, const void *own, size_t own_size, const char *name);
#define STRUCT_GIVE(theirs, own, type) gantry_struct_give(theirs, own, sizeof(struct type), #type)

/* The moment (gantry_now_ns) at which a timeout of the API is over; UINT64_MAX: never. GANTRY_WAIT_DEFAULT is
 * `parameter`. */
gantry_result gantry_deadline(int64_t timeout_ns, uint64_t parameter, uint64_t *ret_deadline);

#endif
