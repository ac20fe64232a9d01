/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `gantry`. Each gets its own argc and argv (argv[0] is its name) and returns the exit status:
 * 0 fine, 1 the thing examined is not fine, 2 wrong usage. */
#ifndef GANTRY_TOOLS_CMD_H
#define GANTRY_TOOLS_CMD_H

int cmd_perf_net(int argc, char **argv);
int cmd_perf_sendrecv(int argc, char **argv);
int cmd_perf_coll(int argc, char **argv); /* argv[0]: which of them */
int cmd_perf_gin(int argc, char **argv);
int cmd_perf_fifo(int argc, char **argv);
int cmd_perf_rx(int argc, char **argv);
int cmd_perf_unpack(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_devmem_helper(int argc, char **argv);
int cmd_stall(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_reducer(int argc, char **argv);

#endif
