/* SPDX-License-Identifier: Apache-2.0 */
/* How a library of ours comes to the emulated NIC: it opens libgantry-emulated.so when that is first asked for. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build.h"
#include "base/param.h"
#include "net/emulated/emulated.h"

static const struct emulated_opener opener = {.size = sizeof(opener),
					      .build = gantry_build,
					      .log_level = &gantry_log_level_now,
					      .log = gantry_log_write,
					      .fail = gantry_fail,
#define GIVE(type, name, parameters, arguments) .name = name,
					      EMULATED_NEEDS(GIVE)};

MUTEX_KIND(emulated_open_mu);
static struct emulated_open_mu open_mu;
static const struct devmem_source_ops *opened GUARDED_BY(emulated_open_mu);

/* The library's name in the folder of the file that this code is in, links followed; "": that is not to be found out. */
static void name_beside(char path[PATH_MAX])
{
	char *folder_end;
	Dl_info here;

	path[0] = 0;
	if (!dladdr(&opener, &here) || !here.dli_fname || !realpath(here.dli_fname, path))
		return;
	folder_end = strrchr(path, '/') + 1;
	if (folder_end - path + sizeof(EMULATED_LIBRARY) > PATH_MAX)
		path[0] = 0;
	else
		memcpy(folder_end, EMULATED_LIBRARY, sizeof(EMULATED_LIBRARY));
}

static gantry_result open_library(const struct devmem_source_ops **ret_ops)
{
	gantry_result r = GANTRY_OK;
	const char *build = "", *file = EMULATED_LIBRARY;
	__typeof__(&gantry_emulated_v1) entry;
	char beside[PATH_MAX], why[512] = "no such place";
	void *dl = NULL;

	name_beside(beside);
	if (*beside) {
		dl = dlopen(file = beside, RTLD_NOW | RTLD_LOCAL);
		if (!dl)
			snprintf(why, sizeof(why), "%s", dlerror());
	}
	if (!dl)
		dl = dlopen(file = EMULATED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!dl)
		FAIL(GANTRY_ERR_CONFIG,
		     "the emulated NIC is a library, " EMULATED_LIBRARY
		     ", which was found neither next to this one (%s) nor in the library search path (%s)",
		     why, dlerror());
	entry = (__typeof__(entry))dlsym(dl, "gantry_emulated_v1");
	*ret_ops = entry ? entry(&opener, &build) : NULL;
	if (!*ret_ops)
		FAIL(GANTRY_ERR_CONFIG, "%s (%s) is from a different build than this library (%s)", file, build,
		     gantry_build);
	LOG_INFO(NET, "emulated NIC: %s", file);
out:
	if (r != GANTRY_OK && dl)
		dlclose(dl);
	return r;
}

gantry_result devmem_emulated_open(const struct devmem_source_ops **ret_ops)
{
	gantry_result r = GANTRY_OK;

	emulated_open_mu_lock(&open_mu);
	if (!opened)
		r = open_library(&opened);
	*ret_ops = opened;
	emulated_open_mu_unlock(&open_mu);
	return r;
}
