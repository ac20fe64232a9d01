/* SPDX-License-Identifier: Apache-2.0 */
/* Who we are: the same words for every layer, in hellos, reports and log lines. All may be called from any thread. */
#ifndef GANTRY_BASE_IDENTITY_H
#define GANTRY_BASE_IDENTITY_H

#include <stdint.h>

/* Equal <=> the same running kernel, whatever the namespaces. */
uint64_t gantry_host_id(void);
/* Random, never 0; a forked child has another one. */
uint64_t gantry_process_id(void);
/* "node7 pid 123": what peers show to people. Lives as long as the calling thread; its next call overwrites it. */
const char *gantry_self(void);
/* which: "pid", "net". 0: not to be found out. */
uint64_t gantry_namespace_id(const char *which);

#endif
