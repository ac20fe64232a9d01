/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads and stores of global memory whose width, cache hint and predicate are written out. Part of dev_copy.h.
 *
 * Everything here is asm and nothing else is: tests/warp/ has the same words for a CPU, where the code of warps that is
 * written in them runs lane by lane, with every access checked.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_ACCESS_H
#define GANTRY_DEVICE_CUDA_DEV_ACCESS_H

DEV uint32_t dev_load_byte(const void *p)
{
	uint32_t v;

	asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
DEV void dev_store_byte(void *p, uint32_t v)
{
	asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* Not kept in L1: each byte is used once. */
DEV uint4 dev_load16_once(const void *p)
{
	uint4 v;

	asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p)
		     : "memory");
	return v;
}
DEV uint4 dev_load16(const void *p)
{
	uint4 v;

	asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p)
		     : "memory");
	return v;
}
DEV void dev_store16(void *p, uint4 v)
{
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
		     : "memory");
}

DEV void dev_copy16(void *dst, const void *src)
{
	dev_store16(dst, dev_load16_once(src));
}
DEV void dev_read2(const void *p, uint64_t *ret_a, uint64_t *ret_b)
{
	uint64_t a, b;

	asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
	*ret_a = a;
	*ret_b = b;
}

/*
 * Loads and stores of those lanes only for which `yes`, without a branch; others get what was in the register. Kept in
 * L1, though nothing is used twice: that is faster (docs/design/0007-unpack-kernel.md). Lanes that wait for other
 * threads' writes acquire, which drops L1.
 */
DEV uint4 dev_load16_if(const void *p, int yes)
{
	uint4 v;

	asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.s32 q, %5, 0;\n\t"
		     "@q ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p), "r"(yes)
		     : "memory");
	return v;
}
DEV void dev_store16_if(void *p, uint4 v, int yes)
{
	asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.s32 q, %5, 0;\n\t"
		     "@q st.global.v4.u32 [%0], {%1, %2, %3, %4};\n\t}" ::"l"(p),
		     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(yes)
		     : "memory");
}
/* 0 in the others. Not set behind the load: that would be to wait for it. */
DEV uint32_t dev_load_byte_if(const void *p, int yes)
{
	uint32_t v = 0;

	asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.s32 q, %2, 0;\n\t@q ld.global.u8 %0, [%1];\n\t}"
		     : "+r"(v)
		     : "l"(p), "r"(yes)
		     : "memory");
	return v;
}
DEV void dev_store_byte_if(void *p, uint32_t v, int yes)
{
	asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.s32 q, %2, 0;\n\t@q st.global.u8 [%0], %1;\n\t}" ::"l"(p), "r"(v),
		     "r"(yes)
		     : "memory");
}

#endif
