/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by `gantry perf net` and `perf sendrecv`, which must say where. */
#define SIMPLE_DAMAGE 100
#include "simple_net.h"
