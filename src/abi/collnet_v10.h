/* SPDX-License-Identifier: Apache-2.0 */
/* CollNet interface v10: v9's, with v10's names. */
#ifndef GANTRY_ABI_COLLNET_V10_H
#define GANTRY_ABI_COLLNET_V10_H

#include "abi/collnet_v9.h"
#include "abi/net_v10.h"

typedef ncclNetSGE_v9_t ncclNetSGE_v10_t;

typedef ncclCollNet_v9_t ncclCollNet_v10_t;

#endif
