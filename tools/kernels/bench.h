/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks' kernels, for launches. */
#ifndef GANTRY_KERNELS_BENCH_H
#define GANTRY_KERNELS_BENCH_H

#include "device/kernels.h"
#include "kernels/args.h"

#define KERNEL(name, args, most, wait) extern struct gantry_kernel gantry_kernel_##name;
#include "kernels/bench.def"
#undef KERNEL

#endif
