/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks' kernels for GPUs. */
#include "device/dev.h"
#include "kernels/args.h"

#include "device/k_reduce.h"
#include "kernels/k_echo.h"
#include "kernels/k_fifo.h"
#include "kernels/k_fill.h"
#include "kernels/k_unpack_reduce.h"
#include "kernels/k_unpack_ring.h"
#include "kernels/k_unpack_seed.h"

#define KERNELS_DEF "kernels/bench.def"
#include "device/cuda/kernel_set.cuh"
