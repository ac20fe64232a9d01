/* SPDX-License-Identifier: Apache-2.0 */
/* Which build this is. The values are in a file that CMake writes, and writes anew when a commit is made. */
#ifndef GANTRY_BASE_BUILD_H
#define GANTRY_BASE_BUILD_H

extern const char gantry_commit[]; /* twelve digits, or "unknown" */
extern const char gantry_build[];  /* "0.1.0 (commit)" */

#endif
