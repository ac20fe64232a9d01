/* Ranks that somebody else started: mpirun, srun, torchrun. They find their number in the environment and the
 * communicator's id in a file that all of them see. */
#ifndef GANTRY_TOOLS_PERF_LAUNCHER_H
#define GANTRY_TOOLS_PERF_LAUNCHER_H

#include <stdint.h>

#include "gantry/comm.h"

/* Who started this process: a name, or NULL if nobody did (or a single rank). */
const char *perf_launcher_find(int *ret_rank, int *ret_size);

/* Rank 0: puts the id into the file, whole or not at all. */
gantry_result perf_id_publish(const char *path, const struct gantry_unique_id *id);
/* The others: wait until it is there. */
gantry_result perf_id_await(const char *path, uint64_t timeout_ns, struct gantry_unique_id *ret_id);

#endif
