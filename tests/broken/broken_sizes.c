/* SPDX-License-Identifier: Apache-2.0 */
/* Caught by test-sizes (and recv-larger, which reports sizes too). */
#define SIMPLE_POSTED_SIZES
#include "simple_net.h"
