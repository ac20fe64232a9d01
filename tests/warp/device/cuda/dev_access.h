/* SPDX-License-Identifier: Apache-2.0 */
/* The words of src/device/cuda/dev_access.h for a CPU. What a lane does not load is random, as a register may be. */
#ifndef GANTRY_DEVICE_CUDA_DEV_ACCESS_H
#define GANTRY_DEVICE_CUDA_DEV_ACCESS_H

DEV uint32_t dev_load_byte(const void *p)
{
	warp_read(p, 1);
	return *(const unsigned char *)p;
}
DEV void dev_store_byte(void *p, uint32_t v)
{
	warp_write(p, 1);
	*(unsigned char *)p = (unsigned char)v;
}
DEV uint4 dev_load16(const void *p)
{
	uint4 v;

	warp_aligned(p, 16);
	warp_read(p, 16);
	memcpy(&v, p, 16);
	return v;
}
DEV uint4 dev_load16_once(const void *p)
{
	return dev_load16(p);
}
DEV void dev_store16(void *p, uint4 v)
{
	warp_aligned(p, 16);
	warp_write(p, 16);
	memcpy(p, &v, 16);
}
DEV uint4 dev_load16_if(const void *p, int yes)
{
	return yes ? dev_load16(p) : make_uint4(warp_random(), warp_random(), warp_random(), warp_random());
}
DEV void dev_store16_if(void *p, uint4 v, int yes)
{
	if (yes)
		dev_store16(p, v);
}
DEV uint32_t dev_load_byte_if(const void *p, int yes)
{
	return yes ? dev_load_byte(p) : 0;
}
DEV void dev_store_byte_if(void *p, uint32_t v, int yes)
{
	if (yes)
		dev_store_byte(p, v);
}

#endif
