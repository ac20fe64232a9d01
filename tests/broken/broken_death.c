/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by peer-death. */
#define SIMPLE_IGNORE_DEATH
#include "simple_net.h"
