/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all headers of Gantry share: how functions are exported, how structs grow, how timeouts are given.
 *
 * STRUCTS THAT GROW begin with `struct_size`, which the caller sets to the size that the struct has in its headers:
 *
 *	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;                     C and C++; then set the members
 *	struct gantry_comm_config config = {.struct_size = sizeof(config), .rank = 3};  the same in C99
 *
 * New members are added at the end, and zero is their default. So a library that is newer than the caller's headers
 * takes what is missing as zero. An older one refuses members that it does not know, with ERR_INVALID and a text, unless
 * they are zero. Where the library fills in a struct, it writes no more than struct_size bytes, and zeros to members it
 * does not know. Structs without struct_size never change.
 *
 * TIMEOUTS are in nanoseconds. Two values have a name, and are the only negative ones; others are ERR_INVALID.
 *
 * THREADS. Each header says which of its calls exclude one another. What holds for all: gantry_last_error() is the
 * calling thread's own, and no call may be made from a signal handler. After fork() a child may use nothing of what its
 * parent made; it makes its own.
 */
#ifndef GANTRY_API_H
#define GANTRY_API_H

#include <stddef.h>

#define GANTRY_API __attribute__((visibility("default")))

#define GANTRY_WAIT_FOREVER (-1) /* no end; but a peer that is dead ends what waits for it */
#define GANTRY_WAIT_DEFAULT (-2) /* as long as the parameter says that the call's description names */

#ifdef __cplusplus
template <typename T>
static inline T gantry_struct_init()
{
	T t = T();

	t.struct_size = sizeof(T);
	return t;
}
#define GANTRY_STRUCT_INIT(type) gantry_struct_init<type>()
#else
#define GANTRY_STRUCT_INIT(type)                                                                                       \
	{                                                                                                              \
		.struct_size = sizeof(type)                                                                            \
	}
#endif

#endif
