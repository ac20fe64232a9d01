/* SPDX-License-Identifier: Apache-2.0 */
/* libgantry.so: the public face of the core. What it exports is listed in gantry.map. */
#include "gantry/gantry.h"

#include "base/build.h"

const char *gantry_version(void)
{
	return gantry_build;
}
