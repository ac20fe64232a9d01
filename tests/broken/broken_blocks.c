/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by nonblocking. */
#define SIMPLE_ACCEPT_BLOCKS
#include "simple_net.h"
