/* SPDX-License-Identifier: Apache-2.0 */
/* The main of test programs that have none of their own: all of the program's tests, or the one that is named. */
#include "test.h"

__attribute__((weak)) void tests_begin(void)
{
}

__attribute__((weak)) void tests_end(void)
{
}

int main(int argc, char **argv)
{
	int failed;

	if (strcmp(io_engine_name(), "sockets") != 0)
		printf("the data network's engine is: %s\n", io_engine_name());
	tests_begin();
	failed = tests_run(argc > 1 ? argv[1] : NULL);
	tests_end();
	return failed;
}
