/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the lanes of a block share, for GPUs of both vendors. Part of dev_cuda.h and of hip/dev_hip.h.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_TEAM_H
#define GANTRY_DEVICE_CUDA_DEV_TEAM_H

/* What a block keeps for these words. A shared variable of a function is one per kernel, wherever it is inlined. */
struct dev_team {
	const uint32_t *abort;	/* of the launch; NULL: none */
	uint64_t box[8];	/* lane 0's, for dev_share */
	unsigned long long sum; /* for dev_sum */
};
DEV struct dev_team *dev_my_team(void)
{
	__shared__ struct dev_team team;

	return &team;
}
/* block: first thing in a kernel (kernel_set.h). */
DEV void dev_begin(const uint32_t *abort)
{
	if (dev_lane() == 0)
		dev_my_team()->abort = abort;
	__syncthreads();
}

DEV void dev_barrier(void)
{
	__syncthreads();
}
/* Unrolled, and by memcpy, so that what p points to stays in registers. The second barrier keeps lane 0 from
 * overwriting the value, in the next call, before all have read this one. */
DEV void dev_share(void *p, uint32_t bytes)
{
	uint64_t w;

	if (dev_lane() == 0) {
#pragma unroll
		for (uint32_t i = 0; i < 8; i++)
			if (8 * i < bytes) {
				memcpy(&w, (char *)p + 8 * i, 8);
				dev_my_team()->box[i] = w;
			}
	}
	__syncthreads();
#pragma unroll
	for (uint32_t i = 0; i < 8; i++)
		if (8 * i < bytes) {
			w = dev_my_team()->box[i];
			memcpy((char *)p + 8 * i, &w, 8);
		}
	__syncthreads();
}

#endif
