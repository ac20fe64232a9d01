/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which launch unpacks a list: its kernel, blocks and lanes. Both kernels unpack any list whatever the launch; this is
 * about time only (docs/design/0007-unpack-kernel.md).
 */
#ifndef GANTRY_DEVICE_UNPACK_LAUNCH_H
#define GANTRY_DEVICE_UNPACK_LAUNCH_H

#include <stdint.h>

#include "device/device.h"

enum gantry_unpack_room {
	GANTRY_UNPACK_WHOLE,  /* the launch has the device for itself; descriptors are in device memory */
	GANTRY_UNPACK_BESIDE, /* beside what the program runs; descriptors are in mapped memory */
};

/* n fragments with `bytes` in all. Sets kernel, blocks and lanes of *l and nothing else. */
void gantry_unpack_launch_shape(const struct gantry_device *dev, enum gantry_unpack_room room, uint64_t n,
				uint64_t bytes, struct gantry_launch *l);

#endif
