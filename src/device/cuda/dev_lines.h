/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of LL, and words of plain memory, for GPUs of both vendors. Part of dev_cuda.h and of hip/dev_hip.h. The layouts
 * are in gantry/fifo.h.
 *
 * LL: a lane moves a line by itself, 16 bytes at once. Each 8-byte word carries its own flag, so nothing depends on
 * the two being seen together.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_LINES_H
#define GANTRY_DEVICE_CUDA_DEV_LINES_H

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

#endif
