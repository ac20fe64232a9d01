/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by size-mismatch. */
#define SIMPLE_OVERRUN
#include "simple_net.h"
