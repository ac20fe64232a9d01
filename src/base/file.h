/* SPDX-License-Identifier: Apache-2.0 */
/* Files of JSON lines that tools and people read: reports and traces. */
#ifndef GANTRY_BASE_FILE_H
#define GANTRY_BASE_FILE_H

#include <stdio.h>

/* Puts a file in place whole or not at all. What goes wrong is a WARN line that says what it was `meant` for; then 0.
 */
int gantry_file_write(const char *path, const char *meant, void (*fill)(void *ctx, FILE *f), void *ctx);

#endif
