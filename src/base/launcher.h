/* SPDX-License-Identifier: Apache-2.0 */
/* What mpirun, mpiexec, srun and torchrun tell the processes they start, in their environment. */
#ifndef GANTRY_BASE_LAUNCHER_H
#define GANTRY_BASE_LAUNCHER_H

#include <stddef.h>

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
