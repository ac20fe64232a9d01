/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry run`: the processes of a job, and MPS for those that share a GPU. */
#ifndef GANTRY_TOOLS_RUN_H
#define GANTRY_TOOLS_RUN_H

/* ---- run_mps.c ---- */

/* How many GPUs a program started now would see. A child asks: a process that has begun to use CUDA must not fork. */
int run_count_gpus(void);
/* Whether a daemon answers that programs started now would find. */
int run_mps_runs(void);
/* Starts one for this job, with folders of its own, which the environment then names. 0, or -1 after a line on stderr. */
int run_mps_start(void);
void run_mps_stop(void); /* only if it was started */

/* ---- run_ranks.c ---- */

/* Starts n copies of the program, with the variables of a launcher if `ranked`, forwards signals, waits for all. Returns
 * the exit status: that of the first that failed. */
int run_ranks(char **argv, int n, int ranked);

#endif
