/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by leaks. */
#define SIMPLE_LEAK_FD
#include "simple_net.h"
