/* SPDX-License-Identifier: Apache-2.0 */
/* Gantry: GPU-driven networking over plain TCP. C99-clean, no CUDA headers. All calls may be made by any thread. */
#ifndef GANTRY_GANTRY_H
#define GANTRY_GANTRY_H

#include "gantry/api.h"
#include "gantry/result.h"
#include "gantry/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library's, "0.1.0 (commit)"; that of the headers is GANTRY_VERSION. Borrowed, static. */
GANTRY_API const char *gantry_version(void);

#ifdef __cplusplus
}
#endif
#endif
