/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels on CPU threads: the bodies of k_*.h, compiled once for the host, in a table by number. */
#include "device/device.h"
#include "device/host/host.h"
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
#include "device/work.h"

/* kernels.def has the names in upper case. */
#define BODY_P2P k_p2p
#define BODY_PRIM k_prim
#define BODY_REDUCE k_reduce
#define BODY_FIFO k_fifo
#define BODY_ECHO k_echo
#define BODY_FILL k_fill
#define BODY_VERIFY k_verify
#define BODY_UNPACK k_unpack
#define BODY_UNPACK_GRID k_unpack_grid
#define BODY_UNPACK_REDUCE k_unpack_reduce
#define BODY_UNPACK_RING k_unpack_ring
#define BODY_UNPACK_SEED k_unpack_seed

#define GANTRY_KERNEL_ENUM(name, args, lanes, together)                                                                \
	static void run_##name(const void *a)                                                                          \
	{                                                                                                              \
		BODY_##name((const struct args *)a);                                                                   \
	}
#include "device/kernels.def"
#undef GANTRY_KERNEL_ENUM

void (*const gantry_host_kernels[GANTRY_KERNEL_COUNT])(const void *args) = {
#define GANTRY_KERNEL_ENUM(name, args, lanes, together) [GANTRY_KERNEL_##name] = run_##name,
#include "device/kernels.def"
#undef GANTRY_KERNEL_ENUM
};
