/* SPDX-License-Identifier: Apache-2.0 */
/* The product's kernels, for CPU threads and for GPUs (kernel_set.h). */
#include "device/k_coll.h"
#include "device/k_p2p.h"
#include "device/k_put.h"
#include "device/k_unpack.h"
#include "device/k_unpack_as.h"
#include "device/work.h"

#define KERNELS_NAME "product"
#define KERNELS_DEF "device/kernels.def"
#include "device/kernel_set.h"
