/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LL and LL128 lines for GPUs. Part of dev_cuda.h; the layouts are in gantry/fifo.h.
 *
 * LL: a lane moves a line by itself, 16 bytes at once. Each 8-byte word carries its own flag, so nothing depends on
 * the two being seen together.
 *
 * LL128: eight neighbouring lanes move a line together, 16 bytes each; the last one has the flag in its upper word.
 * Here the flag does vouch for the other lanes' data. That holds because the eight accesses of one instruction are one
 * 128-byte access, and such a line is written and read whole in the memory of a GPU (and over NVLink), from compute
 * capability 7.0 on; it does not hold over PCIe. So the eight lanes must be together at the instruction itself.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_LL_H
#define GANTRY_DEVICE_CUDA_DEV_LL_H

DEV void dev_ll_store(uint64_t *line, uint64_t data8, uint32_t flag)
{
	uint64_t high = (uint64_t)flag << 32;

	dev_store2(line, high | (uint32_t)data8, high | data8 >> 32);
}
/* 0: not there yet, *ret_data is not written. */
DEV int dev_ll_load(const uint64_t *line, uint32_t flag, uint64_t *ret_data)
{
	uint64_t a, b;

	dev_load2(line, &a, &b);
	if ((uint32_t)(a >> 32) != flag || (uint32_t)(b >> 32) != flag)
		return 0;
	*ret_data = (uint32_t)a | b << 32;
	return 1;
}

/* n <= 8 bytes of plain memory as a word, the first byte lowest; as wide as the alignment allows. */
DEV uint64_t dev_gather8(const char *p, uint32_t n)
{
	uint64_t v = 0;

	if (n < 8 || (uintptr_t)p & 1) {
		for (uint32_t i = 0; i < n; i++)
			v |= (uint64_t)(unsigned char)p[i] << 8 * i;
	} else if (((uintptr_t)p & 7) == 0) {
		v = *(const uint64_t *)p;
	} else if (((uintptr_t)p & 3) == 0) {
		const uint32_t *q = (const uint32_t *)p;

		v = q[0] | (uint64_t)q[1] << 32;
	} else {
		const uint16_t *q = (const uint16_t *)p;

		v = q[0] | (uint64_t)q[1] << 16 | (uint64_t)q[2] << 32 | (uint64_t)q[3] << 48;
	}
	return v;
}
DEV void dev_scatter8(char *p, uint64_t v, uint32_t n)
{
	if (n < 8 || (uintptr_t)p & 1) {
		for (uint32_t i = 0; i < n; i++)
			p[i] = (char)(v >> 8 * i);
	} else if (((uintptr_t)p & 7) == 0) {
		*(uint64_t *)p = v;
	} else if (((uintptr_t)p & 3) == 0) {
		uint32_t *q = (uint32_t *)p;

		q[0] = (uint32_t)v;
		q[1] = (uint32_t)(v >> 32);
	} else {
		uint16_t *q = (uint16_t *)p;

		for (int i = 0; i < 4; i++)
			q[i] = (uint16_t)(v >> 16 * i);
	}
}

/* Lanes per line: they call dev_ll128_put and dev_ll128_get together, with the same arguments. */
DEV uint32_t dev_ll128_width(void)
{
	return 8;
}
DEV uint32_t dev_ll128_mask(void)
{
	return 0xffu << (dev_lane() & 24);
}
/* How many of `bytes` lie in the 8 bytes from `from`. */
DEV uint32_t dev_ll128_part(uint32_t bytes, uint32_t from)
{
	return bytes <= from ? 0 : bytes - from < 8 ? bytes - from : 8;
}
DEV void dev_ll128_put(uint64_t *line, const char *data, uint32_t bytes, uint64_t flag)
{
	const uint32_t i = dev_lane() & 7;
	uint64_t a = dev_gather8(data + 16 * i, dev_ll128_part(bytes, 16 * i));
	uint64_t b = i == 7 ? flag : dev_gather8(data + 16 * i + 8, dev_ll128_part(bytes, 16 * i + 8));

	__syncwarp(dev_ll128_mask());
	dev_store2(line + 2 * i, a, b);
}
/* 0 for all eight: not there yet. */
DEV int dev_ll128_get(const uint64_t *line, char *data, uint32_t bytes, uint64_t flag)
{
	const uint32_t i = dev_lane() & 7;
	uint64_t a, b;

	__syncwarp(dev_ll128_mask());
	dev_load2(line + 2 * i, &a, &b);
	if (__ballot_sync(dev_ll128_mask(), i == 7 && b == flag) == 0)
		return 0;
	dev_scatter8(data + 16 * i, a, dev_ll128_part(bytes, 16 * i));
	if (i != 7)
		dev_scatter8(data + 16 * i + 8, b, dev_ll128_part(bytes, 16 * i + 8));
	return 1;
}

#endif
