/* SPDX-License-Identifier: Apache-2.0 */
#include "base/launcher.h"

#include <stdlib.h>

const struct gantry_launcher gantry_launchers[] = {
	{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", {NULL}},
	{"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", {NULL}},
	/* A batch script has SLURM_PROCID and SLURM_NTASKS too, without being a rank. */
	{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, {"SLURM_STEP_NUM_TASKS"}},
	{"srun",
	 "SLURM_PROCID",
	 "SLURM_NTASKS",
	 NULL,
	 {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_LAUNCH_NODE_IPADDR"}},
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", {"MASTER_ADDR"}},
	{NULL, NULL, NULL, NULL, {NULL}},
};

const char *gantry_variable(const char *name)
{
	const char *v = name ? getenv(name) : NULL;

	return v && *v ? v : NULL;
}

int gantry_launcher_speaks(const struct gantry_launcher *l)
{
	int believed = !l->also[0];

	for (size_t i = 0; i < sizeof(l->also) / sizeof(l->also[0]); i++)
		believed |= gantry_variable(l->also[i]) != NULL;
	return believed && gantry_variable(l->rank);
}
