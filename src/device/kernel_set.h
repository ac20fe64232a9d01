/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a set of kernels of KERNELS_DEF, called KERNELS_NAME, in the C file that includes this after the bodies. That
 * file is compiled twice.
 *
 * By nvcc, into a fatbin: each body of k_*.h in a __global__ function gantry_<name>. The argument struct travels as one
 * parameter in constant memory (__grid_constant__: bodies take its address and no lane makes a copy of its own), the
 * launch's abort flag as the second. 512 lanes with 128 registers each are what a multiprocessor has: smaller blocks
 * get no more of them. Where no block waits there is nothing to abort, and short blocks omit the barrier.
 *
 * By the C compiler, for CPU threads, with the fatbin (GANTRY_FATBIN, from cmake/cuda.cmake) taken in by the assembler's
 * .incbin as it is: no array of a million numbers to compile, and the same for gcc and clang on every architecture.
 */
#ifdef __CUDACC__
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

#else
#include "device/kernels.h"

#if GANTRY_HAVE_CUDA
#define KERNELS_LABEL "gantry_fatbin_" KERNELS_NAME
/* clang-format off */
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	KERNELS_LABEL ":\n"
	".incbin \"" GANTRY_FATBIN "\"\n"
	KERNELS_LABEL "_end:\n"
	".byte 0\n"
	".popsection\n");
/* clang-format on */
extern const unsigned char kernels_fatbin[] __asm__(KERNELS_LABEL) __attribute__((visibility("hidden")));
extern const unsigned char kernels_fatbin_end[] __asm__(KERNELS_LABEL "_end") __attribute__((visibility("hidden")));
#else
#define kernels_fatbin NULL
#define kernels_fatbin_end NULL
#endif

#define KERNEL(k, args, most, wait)                                                                                    \
	static void run_##k(const void *a)                                                                             \
	{                                                                                                              \
		k_##k((const struct args *)a);                                                                         \
	}                                                                                                              \
	struct gantry_kernel gantry_kernel_##k = {                                                                     \
		.name = #k, .body = run_##k, .args_size = sizeof(struct args), .lanes = (most), .together = (wait)};
#include KERNELS_DEF
#undef KERNEL

static struct gantry_kernel *const kernels[] = {
#define KERNEL(k, args, most, wait) &gantry_kernel_##k,
#include KERNELS_DEF
#undef KERNEL
};

__attribute__((constructor)) static void register_kernels(void)
{
	static struct gantry_kernel_set set = {
		.name = KERNELS_NAME, .kernels = kernels, .n = sizeof(kernels) / sizeof(*kernels)};

	set.fatbin = kernels_fatbin;
	set.fatbin_end = kernels_fatbin_end;
	gantry_kernels_register(&set);
}
#endif
