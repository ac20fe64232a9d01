/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over stored inputs, so that corpora are tests with any compiler and under every sanitizer.
 *
 *   fuzz_x_replay FILE|FOLDER...
 *
 * A folder that is missing or holds no file is a failure: a corpus that got lost must not look like one that passed.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fail(const char *path, const char *why)
{
	fprintf(stderr, "%s: %s\n", path, why);
	exit(1);
}

/* The input is copied to a block of exactly its size, so that ASan sees a read one byte past it. */
static void run_file(const char *path, size_t size)
{
	FILE *f = fopen(path, "rb");
	uint8_t *data = malloc(size ? size : 1);

	if (!f)
		fail(path, strerror(errno));
	if (!data)
		fail(path, "no memory");
	if (fread(data, 1, size, f) != size)
		fail(path, "cannot be read whole");
	fclose(f);
	fprintf(stderr, "%s\n", path); /* in the log before a crash */
	LLVMFuzzerTestOneInput(data, size);
	free(data);
}

static int not_hidden(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

static size_t run_folder(const char *path);

static size_t run_path(const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0)
		fail(path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return run_folder(path);
	run_file(path, (size_t)st.st_size);
	return 1;
}

static size_t run_folder(const char *path)
{
	struct dirent **entries;
	size_t count = 0;
	int n = scandir(path, &entries, not_hidden, alphasort);

	if (n < 0)
		fail(path, strerror(errno));
	for (int i = 0; i < n; i++) {
		char *child;

		if (asprintf(&child, "%s/%s", path, entries[i]->d_name) < 0)
			fail(path, "no memory");
		count += run_path(child);
		free(child);
		free(entries[i]);
	}
	free(entries);
	if (count == 0)
		fail(path, "the corpus is empty");
	return count;
}

int main(int argc, char **argv)
{
	size_t count = 0;

	if (argc < 2) {
		fprintf(stderr, "usage: %s FILE|FOLDER...\n", argv[0]);
		return 2;
	}
	for (int i = 1; i < argc; i++)
		count += run_path(argv[i]);
	printf("%zu inputs replayed\n", count);
	return 0;
}
