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
DEV void dev_store16_stream_if(void *p, uint4 v, int yes)
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

DEV uint32_t dev_ticket(uint32_t *p, uint32_t last)
{
	uint32_t v = *p;

	*p = v >= last ? 0 : v + 1;
	return v;
}

/* Bulk copies: a load is there at once, and a store takes what was there when it was told to. */
#define DEV_BULK 1
DEV void dev_bulk_init(uint64_t *bar)
{
	*bar = 0;
}
DEV void dev_bulk_load(void *shared, const void *p, uint32_t bytes, uint64_t *bar)
{
	warp_aligned(p, 16);
	warp_aligned(shared, 16);
	warp_read(p, bytes);
	memcpy(shared, p, bytes);
	++*bar;
}
DEV void dev_bulk_wait(uint64_t *bar, uint32_t parity)
{
	if (*bar == 0 || (*bar - 1) % 2 != parity)
		warp_fail("waits for phase %u of a barrier that has heard of %llu loads", parity,
			  (unsigned long long)*bar);
}
DEV void dev_bulk_store(void *p, const void *shared, uint32_t bytes)
{
	warp_aligned(p, 16);
	warp_write(p, bytes);
	memcpy(p, shared, bytes);
}
DEV void dev_bulk_read_but_one(void)
{
}
DEV void dev_bulk_end(void)
{
}

#endif
