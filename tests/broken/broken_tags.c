/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by grouped-tags. */
#define SIMPLE_IGNORE_TAGS
#include "simple_net.h"
