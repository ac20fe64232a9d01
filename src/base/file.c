/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

/* A name that no other writer uses at this moment. A file left by an earlier process with this pid may have the same
 * name. */
static int open_aside(const char *path)
{
	int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	int fd = open(path, flags, 0644);

	if (fd < 0 && errno == EEXIST && !unlink(path))
		fd = open(path, flags, 0644);
	return fd;
}

/* Only a regular file is replaced by rename: root would otherwise remove /dev/null for all users. The standard streams
 * are links, possibly to a file; no other link to a file is followed, since another user may have planted it. */
static bool is_no_file(const char *path)
{
	struct stat st;

	return strncmp(path, "/dev/std", 8) == 0 || strncmp(path, "/dev/fd/", 8) == 0 ||
	       (stat(path, &st) == 0 && !S_ISREG(st.st_mode));
}

/* Devices and pipes are written to directly, others are refused. A pipe without a reader is an error, not a wait. */
static int open_in_place(const char *path)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return -1;
	if (fstat(fd, &st) == 0 && !S_ISBLK(st.st_mode) && fcntl(fd, F_SETFL, O_APPEND) == 0)
		return fd;
	close(fd);
	errno = EINVAL;
	return -1;
}

/* 0: all of it is in the open file. Else errno, or -1 if that is not known: a write in the middle may have failed and the
 * last one not. */
static int fill_file(int fd, void (*fill)(void *ctx, FILE *f), void *ctx)
{
	FILE *f = fdopen(fd, "w");
	int why = 0;

	if (!f) {
		why = errno;
		close(fd);
		return why;
	}
	fill(ctx, f);
	errno = 0;
	if (fflush(f) || ferror(f))
		why = errno ? errno : -1;
	if (fclose(f) && !why)
		why = errno;
	return why;
}

int gantry_file_write(const char *path, const char *meant, void (*fill)(void *ctx, FILE *f), void *ctx)
{
	char aside[PATH_MAX];
	const bool in_place = is_no_file(path);
	int fd, why;

	if ((size_t)snprintf(aside, sizeof(aside), "%s.%d.tmp", path, (int)getpid()) >= sizeof(aside)) {
		LOG_WARN(BASE, "cannot write %s: the name is too long: %.64s...", meant, path);
		return 0;
	}
	fd = in_place ? open_in_place(path) : open_aside(aside);
	if (fd < 0) {
		LOG_WARN(BASE, "cannot write %s: %s: %s", meant, in_place ? path : aside, strerror(errno));
		return 0;
	}
	why = fill_file(fd, fill, ctx);
	if (!why && !in_place && rename(aside, path))
		why = errno;
	if (why)
		LOG_WARN(BASE, "cannot write %s: %s: %s", meant, path, why > 0 ? strerror(why) : "a write failed");
	if (why && !in_place)
		unlink(aside);
	return !why;
}

int gantry_file_int(const char *path, int *ret_value)
{
	FILE *f = fopen(path, "re");
	int value, ok = f && fscanf(f, "%d", &value) == 1;

	if (f)
		fclose(f);
	if (ok)
		*ret_value = value;
	return ok;
}

union one_file {
	struct cmsghdr header; /* for its alignment */
	char bytes[CMSG_SPACE(sizeof(int))];
};

ssize_t gantry_file_send(int fd, const void *bytes, size_t len, int flags, int file)
{
	struct iovec iov = {(void *)(uintptr_t)bytes, len};
	union one_file control = {.bytes = {0}};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (file >= 0) {
		control.header = (struct cmsghdr){
			.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(file))};
		memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
	}
	return sendmsg(fd, &msg, flags | MSG_NOSIGNAL);
}

ssize_t gantry_file_receive(int fd, void *bytes, size_t len, int flags, int *ret_file)
{
	struct iovec iov = {bytes, len};
	union one_file control;
	/* Room for one, without the padding, which would hold another. */
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof(int))};
	ssize_t n = recvmsg(fd, &msg, flags | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;

	*ret_file = n >= 0 && msg.msg_flags & MSG_CTRUNC ? -2 : -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_file, CMSG_DATA(c), sizeof(*ret_file));
	return n;
}

/* What stands for %letter; NULL: nothing does. */
static const char *word_of(char letter, const char *const *more, char buf[256])
{
	for (size_t i = 0; more && more[i]; i++)
		if (more[i][0] == letter)
			return more[i] + 1;
	switch (letter) {
	case 'p':
		snprintf(buf, 256, "%ld", (long)getpid());
		return buf;
	case 'h':
		buf[255] = 0;
		return gethostname(buf, 255) ? "unknown-host" : buf;
	case '%':
		return "%";
	default:
		return NULL;
	}
}

void gantry_path_expand(const char *pattern, const char *const *more, char *ret_path, size_t len)
{
	char buf[256];

	ret_path[0] = 0;
	for (const char *c = pattern; *c; c++) {
		const char *word = *c == '%' ? word_of(c[1], more, buf) : NULL;
		size_t n = strlen(ret_path);

		if (word)
			c++;
		snprintf(ret_path + n, len - n, word ? "%s" : "%.1s", word ? word : c);
	}
}
