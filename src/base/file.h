/* SPDX-License-Identifier: Apache-2.0 */
/* Files of JSON lines that tools and people read: reports and traces. */
#ifndef GANTRY_BASE_FILE_H
#define GANTRY_BASE_FILE_H

#include <stddef.h>
#include <stdio.h>

/* Puts a file in place whole or not at all. What goes wrong is a WARN line that says what it was `meant` for; then 0.
 */
int gantry_file_write(const char *path, const char *meant, void (*fill)(void *ctx, FILE *f), void *ctx);

/* A name as users write it: %p is the process id, %h the host name, %% a percent sign. Further letters are those of
 * `more`, a NULL-terminated list of texts that begin with their letter: "r5" makes %r 5. What is unknown stays as it
 * is; too long a name is cut. */
void gantry_path_expand(const char *pattern, const char *const *more, char *ret_path, size_t len);

#endif
