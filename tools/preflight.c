#include "preflight.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "base/secret.h"
#include "inet/nic.h"
#include "transport/transport.h"

static gantry_result interfaces(void)
{
	gantry_result r = GANTRY_ERR_NOMEM;
	struct gantry_nic_list *list = calloc(1, sizeof(*list));

	if (list)
		r = gantry_nic_scan(list);
	if (r == GANTRY_OK)
		r = gantry_nic_select(list, gantry_nic_wanted_pattern(), gantry_nic_wanted_family());
	if (list)
		gantry_nic_list_free(list);
	free(list);
	return r;
}

int preflight(const char *program, const char *plugin, const char *transport)
{
	int own = !plugin || !*plugin;
	const char *secret;
	gantry_result r = GANTRY_OK;

	/* A list of plugins, or a name that the linker looks for, is left to those who load it. */
	if (!own && plugin[0] == '/' && !strchr(plugin, ',') && access(plugin, R_OK)) {
		fprintf(stderr, "%s: plugin %s: %s\n", program, plugin, strerror(errno));
		return -1;
	}
	if (own || transport)
		r = gantry_secret(&secret);
	if (r == GANTRY_OK && (own || transport))
		r = interfaces();
	/* Libraries may bring transports; loading them is the ranks' own business. */
	if (r == GANTRY_OK && transport && !*gantry_params()->transport_libs)
		r = gantry_transport_check(transport);
	if (r != GANTRY_OK)
		fprintf(stderr, "%s: %s\n", program, gantry_last_error());
	return r == GANTRY_OK ? 0 : -1;
}
