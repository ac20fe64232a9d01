/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf OP --device hip` for builds without hipcc: kernels have the image that the fake HIP runtime takes, which
 * LD_LIBRARY_PATH must lead to. argv: OP and options; what it prints and returns is the command's.
 */
#include <string.h>

#include "common/cmd.h"
#include "fixtures/hip/hip_images.h"

int main(int argc, char **argv)
{
	hip_images();
	if (argc < 2)
		return 2;
	return strcmp(argv[1], "sendrecv") == 0 ? cmd_perf_sendrecv(argc - 1, argv + 1)
						: cmd_perf_coll(argc - 1, argv + 1);
}
