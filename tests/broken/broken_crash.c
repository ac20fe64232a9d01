/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by zero-bytes, and the tool survives it. */
#define SIMPLE_CRASH_ON_EMPTY
#include "simple_net.h"
