/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of these headers, and the only place where the number stands: the build, the soname, gantry.pc and the
 * CMake package take it from here. gantry_version() of gantry/gantry.h is the version of the library at run time.
 */
#ifndef GANTRY_VERSION_H
#define GANTRY_VERSION_H

#define GANTRY_VERSION_MAJOR 0
#define GANTRY_VERSION_MINOR 1
#define GANTRY_VERSION_PATCH 0

/* For #if: GANTRY_VERSION_NUMBER >= 100 is "0.1.0 or later". */
#define GANTRY_VERSION_NUMBER (GANTRY_VERSION_MAJOR * 10000 + GANTRY_VERSION_MINOR * 100 + GANTRY_VERSION_PATCH)

/* "0.1.0" */
#define GANTRY_VERSION GANTRY_VERSION_TEXT(GANTRY_VERSION_MAJOR, GANTRY_VERSION_MINOR, GANTRY_VERSION_PATCH)
#define GANTRY_VERSION_TEXT(major, minor, patch) GANTRY_VERSION_JOIN(major, minor, patch)
#define GANTRY_VERSION_JOIN(major, minor, patch) #major "." #minor "." #patch

/*
 * The version of the interface: sizes and offsets of structs, result codes and other numbers, functions, symbols. It
 * changes with every change of those and with nothing else (tests/system/api.sh sees to that). 1 was the first
 * candidate for 1.0, 2 has collectives and communicators made from others, 5 has queues for kernels, 6 a network for
 * each communicator, receives that convert and AMD's GPUs, 7 bytes that travel with a kernel's request, 8 receives that
 * lend fragments; what is built for 1 runs with later libraries.
 */
#define GANTRY_API_VERSION 8

#endif
