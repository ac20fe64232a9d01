/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign net plugins, opened by NCCL's rules, behind net.h (compat.h).
 *
 * gantry_loader_open takes what NCCL_NET_PLUGIN takes: a name ("gantry" opens
 * libnccl-net-gantry.so, or a library of that very name), a path, a comma-separated
 * list tried in order, or "none". Every candidate gets one log line that says
 * why it was or was not taken. Several plugins of one version can be open at
 * once: everything that a table needs hangs off its own struct gantry_net.
 */
#ifndef GANTRY_NET_LOADER_H
#define GANTRY_NET_LOADER_H

#include "abi/nccl_types.h"
#include "net/net.h"

enum { GANTRY_NET_VERSION_MIN = 6, GANTRY_NET_VERSION_MAX = 12 };

struct gantry_loader; /* one open library */

/* ERR_CONFIG when no candidate could be used; gantry_last_error() tells why for each. */
gantry_result gantry_loader_open(const char *spec, struct gantry_loader **ret_loader);
/* For `gantry check`: also a library that has tables of collNet, of a tuner, of a profiler, of GIN or of RMA alone. */
gantry_result gantry_loader_open_any(const char *spec, struct gantry_loader **ret_loader);
void gantry_loader_close(struct gantry_loader *loader);

/* The file that was opened, as the dynamic linker names it. Borrowed. */
const char *gantry_loader_path(const struct gantry_loader *loader);
/* The raw exported table ncclNetPlugin_v<version> (ncclNet_vN of src/abi); NULL: the library has none. */
const void *gantry_loader_table(const struct gantry_loader *loader, int version);

/* A table of another kind by its name; NULL: the library has none. */
const void *gantry_loader_symbol(const struct gantry_loader *loader, const char *symbol);
/* NCCL's logger for the library: its lines go into our log. */
ncclDebugLogger_t gantry_loader_logger(const struct gantry_loader *loader);

/* One version of it (0: the highest there is). Owned by the loader; the same object for the same version. */
gantry_result gantry_loader_net(struct gantry_loader *loader, int version, struct gantry_net **ret_net);

/*
 * For `gantry check`: the plugin gets what NCCL hands it. Results that NCCL does not initialise (done, the request, the
 * count of devices, properties) have GANTRY_NET_UNWRITTEN in every byte when a call begins, and keep it if the plugin
 * does not write them. isend and irecv get `phandle`; NULL is NCCL's bootstrap, which passes no array of them either.
 */
enum { GANTRY_NET_UNWRITTEN = 0xA5 };
struct gantry_net_nccl {
	ncclProfilerCallback_t profiler; /* handed to init; NULL: one that does nothing */
	void *phandle;			 /* read by isend and irecv: the thread that calls them may change it */
};
/* Of a net that gantry_loader_net gave. nccl: borrowed as long as the loader is open. */
void gantry_loader_as_nccl(struct gantry_net *net, const struct gantry_net_nccl *nccl);

/* Why dlopen refused `file` with `error` (dlerror's text), in words that help: also for other libraries. */
void gantry_loader_explain_open(const char *file, const char *error, char *why, size_t size);

#endif
