/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions by the host's code, for reduce.cc: it cannot be in one file with the code for GPUs. */
#include "device/k_reduce.h"

_Thread_local struct dev_thread dev_self = {.lanes = 1, .blocks = 1};
void gantry_host_team_barrier(struct dev_team *t)
{
	(void)t;
}

void host_reduce(const struct dev_reduction *r, uint64_t count);
void host_reduce(const struct dev_reduction *r, uint64_t count)
{
	dev_reduce_copy(r, count);
}
