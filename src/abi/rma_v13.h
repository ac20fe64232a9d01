/* SPDX-License-Identifier: Apache-2.0 */
/* RMA interface v13 (NCCL 2.30.7): GIN v13 under another name; its devices are of type GIN_PROXY. */
#ifndef GANTRY_ABI_RMA_V13_H
#define GANTRY_ABI_RMA_V13_H

#include "abi/gin_v13.h"

typedef ncclGinConfig_v13_t ncclRmaConfig_v13_t;
typedef ncclGin_v13_t ncclRma_v13_t;

#endif
