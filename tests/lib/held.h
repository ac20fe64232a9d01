/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process holds, by /proc/self: descriptors, threads. Threads that have ended are listed for a moment still, and
 * what they close they close late, so counts are waited for and never compared at once. A count before is a good
 * measure if it can only be too high: taken while everything that may be there is there.
 */
#ifndef GANTRY_TESTS_HELD_H
#define GANTRY_TESTS_HELD_H

#include <dirent.h>
#include <unistd.h>

#include "until.h"

#define HELD_FDS "/proc/self/fd"
#define HELD_THREADS "/proc/self/task"

/* Entries of the folder, one for looking at it among the descriptors. */
static inline int held(const char *folder)
{
	DIR *d = opendir(folder);
	int n = 0;

	CHECK(d != NULL);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* Descriptors of what has `part` in its name, such as a memfd's. */
static inline int held_named(const char *part)
{
	DIR *d = opendir(HELD_FDS);
	char name[512];
	int n = 0;

	CHECK(d != NULL);
	for (struct dirent *e; (e = readdir(d));) {
		ssize_t len = readlinkat(dirfd(d), e->d_name, name, sizeof(name) - 1);

		name[len > 0 ? len : 0] = 0;
		n += strstr(name, part) != NULL;
	}
	closedir(d);
	return n;
}

/* Whether there are at most so many, now or soon. */
static inline int held_at_most(const char *folder, int most)
{
	uint64_t end = until_hang();
	int n;

	while ((n = held(folder)) > most && gantry_now_ns() < end)
		until_pause();
	if (n > most)
		fprintf(stderr, "%s has %d entries, %d are the most it should have\n", folder, n, most);
	return n <= most;
}

#endif
