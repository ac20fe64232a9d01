/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are put in place whole, and what is no file: that stays, and is written to. */
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "test.h"

static char path[256];

static void fill(void *ctx, FILE *f)
{
	fputs(ctx, f);
}

static int write_text(const char *text)
{
	return gantry_file_write(path, "the test's text", fill, (void *)(uintptr_t)text);
}

static void name_path(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", test_folder(), name);
}

static mode_t kind_of_path(void)
{
	struct stat st;

	CHECK_EQ(lstat(path, &st), 0);
	return st.st_mode & S_IFMT;
}

static void check_text(int fd, const char *wanted)
{
	char text[64] = "";

	CHECK(fd >= 0);
	CHECK(read(fd, text, sizeof(text) - 1) >= 0);
	CHECK_STR(text, wanted);
}

TEST(files_are_replaced)
{
	int fd;

	name_path("file");
	CHECK_EQ(write_text("first and longer"), 1);
	fd = open(path, O_RDONLY);
	CHECK_EQ(write_text("second"), 1);
	check_text(fd, "first and longer"); /* whoever reads it has all of it */
	close(fd);
	fd = open(path, O_RDONLY);
	check_text(fd, "second");
	close(fd);
}

/* A link is replaced: what it leads to may be anybody's. */
TEST(links_are_not_followed)
{
	char other[256];
	int fd;

	name_path("other");
	CHECK_EQ(write_text("theirs"), 1);
	memcpy(other, path, sizeof(other));
	name_path("link");
	CHECK_EQ(symlink(other, path), 0);
	CHECK_EQ(write_text("ours"), 1);
	CHECK_EQ(kind_of_path(), S_IFREG);
	fd = open(other, O_RDONLY);
	check_text(fd, "theirs");
	close(fd);
}

TEST(pipes_stay)
{
	int fd;

	name_path("pipe");
	CHECK_EQ(mkfifo(path, 0600), 0);
	CHECK_EQ(write_text("for nobody"), 0); /* and does not wait for a reader */
	CHECK_EQ(kind_of_path(), S_IFIFO);
	fd = open(path, O_RDONLY | O_NONBLOCK);
	CHECK_EQ(write_text("for a reader"), 1);
	CHECK_EQ(kind_of_path(), S_IFIFO);
	check_text(fd, "for a reader");
	close(fd);
}

TEST(folders_stay)
{
	name_path("folder");
	CHECK_EQ(mkdir(path, 0700), 0);
	CHECK_EQ(write_text("nothing"), 0);
	CHECK_EQ(kind_of_path(), S_IFDIR);
}
