/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening plugin libraries: candidates, the dynamic linker, and what is inside.
 *
 * A list is tried from left to right, and each name in it as libnccl-net-NAME.so
 * and then as NAME. Why a candidate was not taken is said once in the log and
 * once more, all together, when none is left.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_LOADER
#include "net/loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/lift.h"
#include "net/loader_file.h"

enum { VERSIONS = GANTRY_NET_VERSION_MAX - GANTRY_NET_VERSION_MIN + 1 };

struct gantry_loader {
	void *dl; /* owned */
	char path[PATH_MAX];
	const void *tables[VERSIONS];	     /* borrowed from the library */
	struct gantry_lift *lifts[VERSIONS]; /* owned */
};

static const char *file_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Looks for the tables; returns how many there are. `text` gets their list: "v6 v8". */
static int find_tables(struct gantry_loader *l, char *text, size_t size)
{
	char symbol[32];
	size_t len = 0;
	int n = 0;

	*text = 0;
	for (int i = 0; i < VERSIONS; i++) {
		int version = GANTRY_NET_VERSION_MIN + i;

		snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
		l->tables[i] = dlsym(l->dl, symbol);
		if (!l->tables[i])
			continue;
		if (len < size)
			len += (size_t)snprintf(text + len, size - len, "%sv%d", n ? " " : "", version);
		n++;
	}
	return n;
}

/* Opens one file. On failure `why` says why, without a line in the log: the caller knows what comes next. */
static gantry_result open_file(const char *file, char *why, size_t size, struct gantry_loader **ret_loader)
{
	struct gantry_loader *l = calloc(1, sizeof(*l));
	gantry_result r = GANTRY_ERR_CONFIG;
	struct link_map *map = NULL;
	char found[64];

	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a plugin");
	l->dl = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (!l->dl) {
		gantry_loader_explain_open(file, dlerror(), why, size);
		goto out;
	}
	if (dlinfo(l->dl, RTLD_DI_LINKMAP, &map) == 0 && map && *map->l_name)
		file = map->l_name;
	snprintf(l->path, sizeof(l->path), "%s", file);
	if (find_tables(l, found, sizeof(found)) == 0) {
		gantry_loader_explain_symbols(l->dl, why, size);
		goto out;
	}
	LOG_INFO(LOADER, "%s: taken, with net interfaces %s", l->path, found);
	*ret_loader = l;
	l = NULL;
	r = GANTRY_OK;
out:
	gantry_loader_close(l);
	return r;
}

/* All refusals so far, for the last error. What does not fit is left out. */
struct refusals {
	char text[900];
	size_t len;
};

static void refuse(struct refusals *all, const char *file, const char *why)
{
	size_t len = strlen(file);

	if (strncmp(why, file, len) == 0 && why[len] == ':') /* the dynamic linker names the file as well */
		why += len + 1 + (why[len + 1] == ' ');
	LOG_INFO(LOADER, "%s: not taken: %s", file, why);
	if (all->len < sizeof(all->text))
		all->len += (size_t)snprintf(all->text + all->len, sizeof(all->text) - all->len, "%s%s: %s",
					     all->len ? "; " : "", file, why);
}

/* One element of the list. ERR_CONFIG: go on with the next. */
static gantry_result open_name(const char *name, struct refusals *all, struct gantry_loader **ret_loader)
{
	size_t len = strlen(name);
	int is_file = strchr(name, '/') || (len > 3 && strcmp(name + len - 3, ".so") == 0);
	char file[PATH_MAX], why[512];
	gantry_result r;

	if (!is_file) {
		snprintf(file, sizeof(file), "libnccl-net-%s.so", name);
		r = open_file(file, why, sizeof(why), ret_loader);
		if (r != GANTRY_ERR_CONFIG)
			return r;
		refuse(all, file, why);
	}
	r = open_file(name, why, sizeof(why), ret_loader);
	if (r == GANTRY_ERR_CONFIG)
		refuse(all, name, why);
	return r;
}

gantry_result gantry_loader_open(const char *spec, struct gantry_loader **ret_loader)
{
	gantry_result r = GANTRY_ERR_CONFIG;
	struct refusals all = {.len = 0};
	char *list, *rest = NULL;

	list = strdup(spec && *spec ? spec : "libnccl-net.so");
	if (!list)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a list of plugins");
	for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
		if (strcmp(name, "none") == 0) {
			refuse(&all, name, "none asked for");
			break;
		}
		r = open_name(name, &all, ret_loader);
		if (r != GANTRY_ERR_CONFIG)
			goto out;
	}
	FAIL(GANTRY_ERR_CONFIG, "no usable net plugin: %s", all.len ? all.text : "the list is empty");
out:
	free(list);
	return r;
}

void gantry_loader_close(struct gantry_loader *loader)
{
	if (!loader)
		return;
	for (int i = 0; i < VERSIONS; i++)
		gantry_lift_destroy(loader->lifts[i]);
	if (loader->dl)
		dlclose(loader->dl);
	free(loader);
}

const char *gantry_loader_path(const struct gantry_loader *loader)
{
	return loader->path;
}

const void *gantry_loader_table(const struct gantry_loader *loader, int version)
{
	if (version < GANTRY_NET_VERSION_MIN || version > GANTRY_NET_VERSION_MAX)
		return NULL;
	return loader->tables[version - GANTRY_NET_VERSION_MIN];
}

int gantry_loader_has(const struct gantry_loader *loader, int version)
{
	return gantry_loader_table(loader, version) != NULL;
}

gantry_result gantry_loader_lift(struct gantry_loader *loader, int version, struct gantry_net **ret_net)
{
	const char *label = file_name(loader->path);
	struct gantry_lift **lift;
	const void *table;
	gantry_result r = GANTRY_OK;

	for (int v = GANTRY_NET_VERSION_MAX; version == 0 && v >= GANTRY_NET_VERSION_MIN; v--) {
		if (gantry_loader_has(loader, v))
			version = v;
	}
	table = gantry_loader_table(loader, version);
	if (!table)
		FAIL(GANTRY_ERR_UNSUPPORTED, "%s: has no ncclNetPlugin_v%d", label, version);
	lift = &loader->lifts[version - GANTRY_NET_VERSION_MIN];
	if (!*lift)
		TRY(gantry_lift_create(table, version, label, gantry_loader_logger(label), lift));
	*ret_net = &(*lift)->net;
out:
	return r;
}
