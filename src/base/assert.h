/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants as code. ASSERT ends the process where one does not hold, in checked builds: Debug, sanitizers and
 * -DGANTRY_CHECKS=ON. Elsewhere it costs nothing and evaluates nothing. What a peer, a user or the system may do is no
 * invariant: that is an error with a result code.
 */
#ifndef GANTRY_BASE_ASSERT_H
#define GANTRY_BASE_ASSERT_H

#ifndef GANTRY_CHECKED
#define GANTRY_CHECKED 0
#endif

void gantry_assert_failed(const char *what, const char *function, const char *file, int line)
	__attribute__((noreturn, cold));

#if GANTRY_CHECKED
#define ASSERT(cond) ((cond) ? (void)0 : gantry_assert_failed(#cond, __func__, __FILE__, __LINE__))
#else
#define ASSERT(cond) ((void)sizeof(!(cond)))
#endif

#endif
