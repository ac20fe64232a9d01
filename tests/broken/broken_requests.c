/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by in-flight. */
#define SIMPLE_FEW_REQUESTS
#include "simple_net.h"
