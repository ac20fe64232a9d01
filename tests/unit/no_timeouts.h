/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the time-out of every sleep on a futex away: a lost wake-up is a hang then, which the alarm makes a failure. */
#ifndef GANTRY_TESTS_NO_TIMEOUTS_H
#define GANTRY_TESTS_NO_TIMEOUTS_H

#include <dlfcn.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t sleeps; /* atomic: how many there were */

long syscall(long number, ...)
{
	static long (*next)(long, ...);
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (!__atomic_load_n(&next, __ATOMIC_RELAXED))
		__atomic_store_n(&next, (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"), __ATOMIC_RELAXED);
	if (number == SYS_futex && (a[1] & 127) == FUTEX_WAIT) {
		a[3] = 0;
		__atomic_fetch_add(&sleeps, 1, __ATOMIC_RELAXED);
	}
	return __atomic_load_n(&next, __ATOMIC_RELAXED)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

#endif
