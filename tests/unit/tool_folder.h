/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for tests of commands that read and write files, and a command line in it. */
#ifndef GANTRY_TESTS_TOOL_FOLDER_H
#define GANTRY_TESTS_TOOL_FOLDER_H

#include "test.h"

static inline const char *in_dir(const char *name, char buf[256])
{
	snprintf(buf, 256, "%s/%s", test_folder(), name);
	return buf;
}

static inline void put(const char *name, const char *text)
{
	char path[256];
	FILE *f = fopen(in_dir(name, path), "w");

	CHECK(f != NULL);
	fputs(text, f);
	fclose(f);
}

/* Owned by the caller. */
static inline char *slurp(const char *name)
{
	char path[256], *text;
	FILE *f = fopen(in_dir(name, path), "r");
	long n;

	CHECK(f != NULL);
	fseek(f, 0, SEEK_END);
	n = ftell(f);
	rewind(f);
	text = malloc((size_t)n + 1);
	CHECK(text != NULL && fread(text, 1, (size_t)n, f) == (size_t)n);
	text[n] = 0;
	fclose(f);
	return text;
}

/* The command with these words; "%" before a name puts the folder in front. */
static inline int command(int (*cmd)(int argc, char **argv), const char *const *words)
{
	char all[16][256], *argv[17];
	int n = 0;

	for (; *words; words++, n++) {
		if (n && **words == '%')
			in_dir(*words + 1, all[n]);
		else
			snprintf(all[n], sizeof(all[n]), "%s", *words);
		argv[n] = all[n];
	}
	argv[n] = NULL;
	return cmd(n, argv);
}

#endif
