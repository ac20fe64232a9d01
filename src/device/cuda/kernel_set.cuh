/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the kernels of KERNELS_DEF: each body of k_*.h in a __global__ function gantry_<name>. Included by the .cu file
 * of a set after the bodies; nvcc makes a fatbin of that, which kernel_set.h embeds and launch.c loads.
 *
 * The argument struct travels as one parameter in constant memory (__grid_constant__: bodies take its address and no
 * lane makes a copy of its own), the launch's abort flag as the second.
 */
/*
 * 512 lanes with 128 registers each are what a multiprocessor has: smaller blocks get no more of them. Where nobody
 * waits there is nothing to abort, and short blocks go without the barrier.
 */
#define KERNEL(name, args, lanes, together)                                                                            \
	extern "C" __global__ void __launch_bounds__(lanes, 512 / lanes)                                               \
		gantry_##name(const __grid_constant__ struct args a, const uint32_t *abort)                            \
	{                                                                                                              \
		if (together)                                                                                          \
			dev_begin(abort);                                                                              \
		k_##name(&a);                                                                                          \
	}
#include KERNELS_DEF
#undef KERNEL
