/* SPDX-License-Identifier: Apache-2.0 */
/* Identity of this process: the same values for every layer, in hellos, reports and log lines. All may be called from
 * any thread. */
#ifndef GANTRY_BASE_IDENTITY_H
#define GANTRY_BASE_IDENTITY_H

#include <stdint.h>

/* Equal <=> the same running kernel, whatever the namespaces. */
uint64_t gantry_boot_id(void);
/* Equal <=> one host, for all that tells hosts apart: the same kernel and the same GANTRY_HOST_ID. */
uint64_t gantry_host_id(void);
/* Equal <=> threads of the same running kernel that may use the same CPUs. */
uint64_t gantry_cpu_set_id(uint32_t *ret_cpus);
/* Random, never 0; a forked child has another one. */
uint64_t gantry_process_id(void);
/* "node7 pid 123": what peers show to people. Lives as long as the calling thread; its next call overwrites it. */
const char *gantry_self(void);
/* which: "pid", "net". 0: not to be found out. */
uint64_t gantry_namespace_id(const char *which);

/* What mpirun, mpiexec, srun and torchrun tell the processes they start, in their environment. */
struct gantry_launcher {
	const char *name;	 /* "mpirun" */
	const char *rank, *size; /* variables */
	const char *local_size;	 /* ranks on this host; NULL: it does not say */
	const char *also[3];	 /* names that are too common: one of these must be there too; none: nothing */
};

/* In the order in which they are asked: Open MPI sets PMI's variables too, and a job of Slurm may run mpirun. Ends with
 * an entry without a name. */
extern const struct gantry_launcher gantry_launchers[];

/* The value of a variable; NULL: there is none, or it is empty. name may be NULL. */
const char *gantry_variable(const char *name);
/* Whether its rank is there and can be believed. */
int gantry_launcher_speaks(const struct gantry_launcher *l);

#endif
