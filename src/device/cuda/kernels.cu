/* SPDX-License-Identifier: Apache-2.0 */
/* The product's kernels for GPUs. */
#include "device/dev.h"
#include "device/work.h"

#include "device/k_p2p.h"
#include "device/k_prim.h"
#include "device/k_unpack.h"

#define KERNELS_DEF "device/kernels.def"
#include "device/cuda/kernel_set.cuh"
