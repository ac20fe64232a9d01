/* SPDX-License-Identifier: Apache-2.0 */
/* Files: those that tools and people read (reports, traces), their names, those of the kernel, and open ones that travel. */
#ifndef GANTRY_BASE_FILE_H
#define GANTRY_BASE_FILE_H

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

/* Puts a file in place whole or not at all; a device or a pipe is written to as it is. What goes wrong is a WARN line that
 * says what it was `meant` for; then 0. */
int gantry_file_write(const char *path, const char *meant, void (*fill)(void *ctx, FILE *f), void *ctx);

/* The number that a file of /proc or /sys begins with. 0: there is no such file, or no number in it (the speed of a link
 * that is down reads as EINVAL). */
int gantry_file_int(const char *path, int *ret_value);

/* sendmsg of bytes over a unix socket with an open file (-1: without one). */
ssize_t gantry_file_send(int fd, const void *bytes, size_t len, int flags, int file);
/* recvmsg of bytes and of the file that came with them, now the caller's: -1: none; -2: there was no descriptor for it.
 * More than one: the kernel closes the others. */
ssize_t gantry_file_receive(int fd, void *bytes, size_t len, int flags, int *ret_file);

/* A name as users write it: %p is the process id, %h the host name, %% a percent sign. Further letters are those of
 * `more`, a NULL-terminated list of texts that begin with their letter: "r5" makes %r 5. What is unknown stays as it
 * is; too long a name is cut. */
void gantry_path_expand(const char *pattern, const char *const *more, char *ret_path, size_t len);

#endif
