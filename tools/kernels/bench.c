/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks' kernels, for CPU threads and for GPUs (device/kernel_set.h). */
#include "kernels/bench.h"

#include "kernels/k_gin.h"
#include "kernels/k_perf.h"
#include "kernels/k_unpack_reduce.h"
#include "kernels/k_unpack_ring.h"
#include "kernels/k_unpack_seed.h"

#define KERNELS_NAME "bench"
#define KERNELS_DEF "kernels/bench.def"
#include "device/kernel_set.h"
