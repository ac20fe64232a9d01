/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the loader: why a library could not be opened or is no plugin, in words that help. */
#ifndef GANTRY_NET_LOADER_FILE_H
#define GANTRY_NET_LOADER_FILE_H

#include <stddef.h>

/* `error`: dlerror's text for `file`. */
void gantry_loader_explain_open(const char *file, const char *error, char *why, size_t size);
/* The library is open, but has none of the tables that we know. */
void gantry_loader_explain_symbols(void *dl, char *why, size_t size);

#endif
