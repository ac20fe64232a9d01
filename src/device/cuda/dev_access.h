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

/* Loads and stores of those lanes only for which `yes`, without a branch; others get what was in the register. */
DEV uint4 dev_load16_if(const void *p, int yes)
{
	uint4 v;

	asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.s32 q, %5, 0;\n\t"
		     "@q ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
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
/* The same, marked to leave L2 first: for lines that are written whole, at once and for good. */
DEV void dev_store16_stream_if(void *p, uint4 v, int yes)
{
	asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.s32 q, %5, 0;\n\t"
		     "@q st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};\n\t}" ::"l"(p),
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

/* The next number of a counter; after `last` comes 0. */
DEV uint32_t dev_ticket(uint32_t *p, uint32_t last)
{
	uint32_t v;

	asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "r"(last) : "memory");
	return v;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* Bulk copies, by one lane: multiples of 16 bytes through shared memory; `bar` hears of what has arrived there. */
#define DEV_BULK 1
DEV uint32_t dev_bulk_at(const void *shared)
{
	return (uint32_t)__cvta_generic_to_shared(shared);
}
DEV void dev_bulk_init(uint64_t *bar)
{
	asm volatile(
		"mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(dev_bulk_at(bar))
		: "memory");
}
DEV void dev_bulk_load(void *shared, const void *p, uint32_t bytes, uint64_t *bar)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(dev_bulk_at(bar)), "r"(bytes)
		     : "memory");
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
			     dev_bulk_at(shared)),
		     "l"(p), "r"(bytes), "r"(dev_bulk_at(bar))
		     : "memory");
}
/* Not for ever: a copy that does not arrive makes wrong bytes, which are found, and not a kernel that stays. */
DEV void dev_bulk_wait(uint64_t *bar, uint32_t parity)
{
	uint32_t there = 0;

	for (uint32_t i = 0; !there && i < 1u << 20; i++)
		asm volatile("{\n\t.reg .pred q;\n\tmbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2;\n\t"
			     "selp.u32 %0, 1, 0, q;\n\t}"
			     : "=r"(there)
			     : "r"(dev_bulk_at(bar)), "r"(parity)
			     : "memory");
}
DEV void dev_bulk_store(void *p, const void *shared, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
		     "cp.async.bulk.commit_group;" ::"l"(p),
		     "r"(dev_bulk_at(shared)), "r"(bytes)
		     : "memory");
}
/* All stores but the last have read what they store. */
DEV void dev_bulk_read_but_one(void)
{
	asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
}
/* All stores are over. */
DEV void dev_bulk_end(void)
{
	asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
#endif

#endif
