/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compiled kernels, as bytes of this library. The assembler's .incbin takes them in as they are: no array of a
 * million numbers to compile, and the same for gcc and clang on every architecture.
 */
#include "device/cuda/gpu.h"

#if GANTRY_HAVE_CUDA

/* clang-format off */
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".globl gantry_fatbin_begin\n"
	".hidden gantry_fatbin_begin\n"
	".globl gantry_fatbin_end\n"
	".hidden gantry_fatbin_end\n"
	"gantry_fatbin_begin:\n"
	".incbin \"" GANTRY_FATBIN "\"\n"
	"gantry_fatbin_end:\n"
	".byte 0\n"
	".popsection\n");
/* clang-format on */

extern const unsigned char gantry_fatbin_begin[] __attribute__((visibility("hidden")));
extern const unsigned char gantry_fatbin_end[] __attribute__((visibility("hidden")));

const void *gantry_cuda_fatbin(size_t *ret_size)
{
	*ret_size = (size_t)(gantry_fatbin_end - gantry_fatbin_begin);
	return gantry_fatbin_begin;
}

#else

const void *gantry_cuda_fatbin(size_t *ret_size)
{
	*ret_size = 0;
	return NULL;
}

#endif
