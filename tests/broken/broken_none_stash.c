/* SPDX-License-Identifier: Apache-2.0 */
/* Sound: holds messages by tag and completes receives out of order. */
#define SIMPLE_STASH 1
#include "simple_net.h"
