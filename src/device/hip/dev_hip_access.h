/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda/dev_access.h for AMD GPUs: loads and stores of plain memory whose width is written out. The compiler makes one
 * instruction of each; a load that is used once does not displace what is in the caches.
 */
#ifndef GANTRY_DEVICE_HIP_DEV_HIP_ACCESS_H
#define GANTRY_DEVICE_HIP_DEV_HIP_ACCESS_H

/* HIP's uint4 as the compiler's own vector, which it loads and stores whole. */
typedef uint32_t dev_vec __attribute__((ext_vector_type(4)));

DEV uint4 dev_uint4_of(dev_vec v)
{
	return make_uint4(v.x, v.y, v.z, v.w);
}
DEV dev_vec dev_vec_from(uint4 v)
{
	dev_vec w = {v.x, v.y, v.z, v.w};

	return w;
}

DEV uint32_t dev_load_byte(const void *p)
{
	return *(const uint8_t *)p;
}
DEV void dev_store_byte(void *p, uint32_t v)
{
	*(uint8_t *)p = (uint8_t)v;
}
DEV uint4 dev_load16_once(const void *p)
{
	return dev_uint4_of(__builtin_nontemporal_load((const dev_vec *)p));
}
DEV uint4 dev_load16(const void *p)
{
	return dev_uint4_of(*(const dev_vec *)p);
}
DEV void dev_store16(void *p, uint4 v)
{
	*(dev_vec *)p = dev_vec_from(v);
}

DEV void dev_copy16(void *dst, const void *src)
{
	dev_store16(dst, dev_load16_once(src));
}
DEV void dev_read2(const void *p, uint64_t *ret_a, uint64_t *ret_b)
{
	uint4 v = dev_load16(p);

	*ret_a = v.x | (uint64_t)v.y << 32;
	*ret_b = v.z | (uint64_t)v.w << 32;
}

#endif
