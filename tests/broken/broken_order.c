/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by ordering. */
#define SIMPLE_OVERTAKE
#include "simple_net.h"
