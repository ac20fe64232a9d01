/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a set of kernels of KERNELS_DEF, called KERNELS_NAME, in the C file that includes this after the bodies. That
 * file is compiled once for each kind of device.
 *
 * By nvcc, into a fatbin: each body of k_*.h in a __global__ function gantry_<name>. The argument struct travels as one
 * parameter in constant memory (__grid_constant__: bodies take its address and no lane makes a copy of its own), the
 * launch's abort flag as the second. 512 lanes with 128 registers each are what a multiprocessor has: smaller blocks
 * get no more of them. Where no block waits there is nothing to abort, and short blocks omit the barrier.
 *
 * By hipcc, into a bundle of code objects: the same functions. AMD's kernels have their arguments in memory as they are
 * (the kernarg segment, which begins with the first of them), so bodies are given that address.
 *
 * By the C compiler, for CPU threads, with the fatbin (GANTRY_FATBIN, from cmake/cuda.cmake) and the bundle
 * (GANTRY_HIP_IMAGE, from cmake/hip.cmake) taken in by the assembler's .incbin as they are: no array of a million numbers to compile, and the same for gcc and clang on every architecture.
 */
#if defined(__CUDACC__) || defined(__HIPCC__)
#ifdef __HIPCC__
#define KERNEL(name, args, lanes, together)                                                                            \
	extern "C" __global__ void __launch_bounds__(lanes) gantry_##name(struct args, const uint32_t *abort)          \
	{                                                                                                              \
		if (together)                                                                                          \
			dev_begin(abort);                                                                              \
		k_##name((const struct args *)__builtin_amdgcn_kernarg_segment_ptr());                                 \
	}
#else
#define KERNEL(name, args, lanes, together)                                                                            \
	extern "C" __global__ void __launch_bounds__(lanes, 512 / lanes)                                               \
		gantry_##name(const __grid_constant__ struct args a, const uint32_t *abort)                            \
	{                                                                                                              \
		if (together)                                                                                          \
			dev_begin(abort);                                                                              \
		k_##name(&a);                                                                                          \
	}
#endif
#include KERNELS_DEF
#undef KERNEL

#else
#include "device/kernels.h"

/* clang-format off */
#define KERNELS_EMBED(label, file)                     \
	__asm__(".pushsection .rodata\n"               \
		".balign 4096\n"                       \
		label ":\n"                            \
		".incbin \"" file "\"\n"               \
		label "_end:\n"                        \
		".byte 0\n"                            \
		".popsection\n")
/* clang-format on */
#if GANTRY_HAVE_CUDA
#define KERNELS_LABEL "gantry_fatbin_" KERNELS_NAME
KERNELS_EMBED(KERNELS_LABEL, GANTRY_FATBIN);
extern const unsigned char kernels_fatbin[] __asm__(KERNELS_LABEL) __attribute__((visibility("hidden")));
extern const unsigned char kernels_fatbin_end[] __asm__(KERNELS_LABEL "_end") __attribute__((visibility("hidden")));
#else
#define kernels_fatbin NULL
#define kernels_fatbin_end NULL
#endif
#ifdef GANTRY_HIP_IMAGE
#define KERNELS_HIP_LABEL "gantry_hip_image_" KERNELS_NAME
KERNELS_EMBED(KERNELS_HIP_LABEL, GANTRY_HIP_IMAGE);
extern const unsigned char kernels_hip_image[] __asm__(KERNELS_HIP_LABEL) __attribute__((visibility("hidden")));
extern const unsigned char kernels_hip_image_end[] __asm__(KERNELS_HIP_LABEL "_end")
	__attribute__((visibility("hidden")));
#else
#define kernels_hip_image NULL
#define kernels_hip_image_end NULL
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
	set.hip_image = kernels_hip_image;
	set.hip_image_end = kernels_hip_image_end;
	gantry_kernels_register(&set);
}
#endif
