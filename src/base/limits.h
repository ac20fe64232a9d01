/* SPDX-License-Identifier: Apache-2.0 */
/* Advice about limits of this process that can be followed: it depends on what the hard limit allows. */
#ifndef GANTRY_BASE_LIMITS_H
#define GANTRY_BASE_LIMITS_H

enum { GANTRY_ADVICE_TEXT = 192 };

/* How to have more open files than now: "raise it by `ulimit -n 65536`", or where the hard limit is set. Returns buf.
 */
const char *gantry_nofile_advice(char buf[GANTRY_ADVICE_TEXT]);

#endif
