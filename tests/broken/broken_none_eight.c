/* SPDX-License-Identifier: Apache-2.0 */
/* Sound: receives of up to eight buffers. */
#define SIMPLE_RECVS 8
#include "simple_net.h"
