/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the fixture plugins: shared by test_loader.c and test_compat.c. */
#ifndef GANTRY_TESTS_LOADER_UTIL_H
#define GANTRY_TESTS_LOADER_UTIL_H

#include <limits.h>
#include <unistd.h>

#include "test.h"

/* Static storage, one path at a time. */
static inline const char *fixture_path(const char *file)
{
	static char path[PATH_MAX];
	const char *build = getenv("BUILD_DIR");

	snprintf(path, sizeof(path), "%s/fixtures/%s", build ? build : ".", file);
	return path;
}

/* The dynamic linker reads LD_LIBRARY_PATH when a process starts, so the test starts itself once more. */
static inline void fixtures_on_search_path(char **argv)
{
	const char *old = getenv("LD_LIBRARY_PATH");
	char value[2 * PATH_MAX], dir[PATH_MAX];

	if (access(fixture_path("libnccl-net-fake_a.so"), R_OK) != 0)
		SKIP("no fixtures: set BUILD_DIR to the build folder");
	snprintf(dir, sizeof(dir), "%s", fixture_path(""));
	if (old && strncmp(old, dir, strlen(dir)) == 0)
		return;
	snprintf(value, sizeof(value), "%s%s%s", dir, old && *old ? ":" : "", old ? old : "");
	setenv("LD_LIBRARY_PATH", value, 1);
	execv("/proc/self/exe", argv);
	perror("execv");
	exit(1);
}

#endif
