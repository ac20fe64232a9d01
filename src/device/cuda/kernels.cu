/*
 * The kernels for GPUs: each body of k_*.h in a __global__ function gantry_<name>. Compiled to a fatbin that fatbin.c
 * embeds and launch.c loads.
 *
 * The argument struct travels as one parameter in constant memory (__grid_constant__: bodies take its address and no
 * lane makes a copy of its own), the launch's abort flag as the second.
 */
#include "device/dev.h"
#include "device/work.h"

#include "device/k_echo.h"
#include "device/k_fifo.h"
#include "device/k_fill.h"
#include "device/k_p2p.h"
#include "device/k_prim.h"
#include "device/k_reduce.h"
#include "device/k_unpack.h"
#include "device/k_unpack_reduce.h"
#include "device/k_unpack_ring.h"
#include "device/k_unpack_seed.h"
#include "device/k_unpack_tune.h"

/* The preprocessor cannot make lower case of a name; a kernel that is missing here does not compile below. */
#define LOWER_P2P p2p
#define LOWER_PRIM prim
#define LOWER_REDUCE reduce
#define LOWER_FIFO fifo
#define LOWER_ECHO echo
#define LOWER_FILL fill
#define LOWER_VERIFY verify
#define LOWER_UNPACK unpack
#define LOWER_UNPACK_REDUCE unpack_reduce
#define LOWER_UNPACK_RING unpack_ring
#define LOWER_UNPACK_SEED unpack_seed
#define LOWER_UNPACK_TUNE unpack_tune
#define LOWER_UNPACK_TUNE2 unpack_tune2

/* 512 lanes at most, with 128 registers each, or 64 for two such blocks: launch.c's CUDA_MAX_LANES. */
static constexpr bool same(const char *a, const char *b)
{
	return *a == *b && (!*a || same(a + 1, b + 1));
}
#define BLOCKS_PER_SM(name) (same(#name, "unpack_tune2") ? 2 : 1)
#define KERNEL(name, args)                                                                                             \
	extern "C" __global__ void __launch_bounds__(512, BLOCKS_PER_SM(name))                                         \
		gantry_##name(const __grid_constant__ struct args a, const uint32_t *abort)                            \
	{                                                                                                              \
		dev_begin(abort);                                                                                      \
		k_##name(&a);                                                                                          \
	}
#define KERNEL_OF(name, args) KERNEL(name, args)
#define GANTRY_KERNEL_ENUM(name, args) KERNEL_OF(LOWER_##name, args)
#include "device/kernels.def"
#undef GANTRY_KERNEL_ENUM
