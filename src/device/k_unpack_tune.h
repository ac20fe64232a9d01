/* Forms of the unpack kernel to compare, see unpack_forms.h. On the host they are all the same. */
#ifndef GANTRY_DEVICE_K_UNPACK_TUNE_H
#define GANTRY_DEVICE_K_UNPACK_TUNE_H

#include "device/k_unpack.h"
#include "device/unpack_forms.h"

#ifdef __CUDACC__
#include "device/cuda/dev_unpack_tune.h"
#else
DEV void k_unpack_tune(const struct gantry_unpack_tune_args *a)
{
	k_unpack(&a->u);
}
DEV void k_unpack_tune2(const struct gantry_unpack_tune_args *a)
{
	k_unpack(&a->u);
}
#endif

#endif
