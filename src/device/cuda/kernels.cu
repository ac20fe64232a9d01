/* SPDX-License-Identifier: Apache-2.0 */
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

/* The preprocessor cannot make lower case of a name; a kernel that is missing here does not compile below. */
#define LOWER_P2P p2p
#define LOWER_PRIM prim
#define LOWER_REDUCE reduce
#define LOWER_FIFO fifo
#define LOWER_ECHO echo
#define LOWER_FILL fill
#define LOWER_VERIFY verify
#define LOWER_UNPACK unpack
#define LOWER_UNPACK_GRID unpack_grid
#define LOWER_UNPACK_REDUCE unpack_reduce
#define LOWER_UNPACK_RING unpack_ring
#define LOWER_UNPACK_SEED unpack_seed

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
#define KERNEL_OF(name, args, lanes, together) KERNEL(name, args, lanes, together)
#define GANTRY_KERNEL_ENUM(name, args, lanes, together) KERNEL_OF(LOWER_##name, args, lanes, together)
#include "device/kernels.def"
#undef GANTRY_KERNEL_ENUM
