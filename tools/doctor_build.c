/* `gantry doctor`: this build, its libraries, and the plugin that NCCL would load. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(GANTRY_HAVE_OPENSSL) && GANTRY_HAVE_OPENSSL
#include <openssl/crypto.h>
#endif

#include "base/build.h"
#include "base/log.h"
#include "base/param.h"
#include "doctor.h"
#include "gantry/version.h"
#include "net/loader.h"

static void say_openssl(struct doctor *d)
{
#if defined(GANTRY_HAVE_OPENSSL) && GANTRY_HAVE_OPENSSL
	doctor_say(d, "build", "openssl", DOCTOR_OK, "yes", OpenSSL_version(OPENSSL_VERSION), "");
#else
	const struct gantry_params *p = gantry_params();
	int wanted = *p->secret || *p->secret_file;

	doctor_say(d, "build", "openssl", wanted ? DOCTOR_FAIL : DOCTOR_NOTE, "no",
		   wanted ? "a secret is set, and this build cannot use it" : "connections cannot be authenticated",
		   "install OpenSSL's headers (libssl-dev) and build again, or leave GANTRY_SECRET unset");
#endif
}

static void say_plugin(struct doctor *d)
{
	struct gantry_loader *loader = NULL;
	char versions[64] = "";
	size_t n = 0;

	if (!d->plugin || !*d->plugin) {
		doctor_say(d, "plugin", "NCCL_NET_PLUGIN", DOCTOR_NOTE, "not set",
			   "NCCL looks for libnccl-net.so and then uses its own sockets",
			   "NCCL_NET_PLUGIN=gantry, with the directory of libnccl-net-gantry.so in LD_LIBRARY_PATH");
		return;
	}
	if (strcmp(d->plugin, "none") == 0) {
		doctor_say(d, "plugin", "none", DOCTOR_NOTE, "none", "NCCL is told to load no plugin",
			   "NCCL_NET_PLUGIN=gantry to use Gantry");
		return;
	}
	if (gantry_loader_open(d->plugin, &loader) != GANTRY_OK) {
		doctor_say(d, "plugin", d->plugin, DOCTOR_FAIL, "not usable", gantry_last_error(),
			   "name a library by its path, or put its directory into LD_LIBRARY_PATH");
		return;
	}
	for (int v = GANTRY_NET_VERSION_MIN; v <= GANTRY_NET_VERSION_MAX; v++)
		if (gantry_loader_has(loader, v))
			n += (size_t)snprintf(versions + n, sizeof(versions) - n, "%sv%d", n ? " " : "", v);
	doctor_say(d, "plugin", d->plugin, DOCTOR_OK, versions, gantry_loader_path(loader), "");
	gantry_loader_close(loader);
}

void doctor_build(struct doctor *d)
{
	doctor_say(d, "build", "gantry", DOCTOR_OK, GANTRY_VERSION, gantry_commit, "");
	say_openssl(d);
	say_plugin(d);
}
