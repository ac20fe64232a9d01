/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "base/secret.h"
#include "inet/settings.h"
#include "net/loader.h"
#include "transport/transport.h"

static gantry_result interfaces(void)
{
	struct gantry_nic_list *list = NULL;
	gantry_result r = inet_wanted_nics(&list);

	gantry_nic_list_free(list);
	return r;
}

/* Whether there is such a library, which for a name only the linker knows: asked in a process of its own, because what
 * a library does when it is loaded is not for the one that forks the ranks. 0, or -1 with the reason. One that is there
 * and is no plugin is a failure of the ranks. */
static int try_plugin(const char *plugin, char *why, size_t len)
{
	struct gantry_loader *loader = NULL;
	int fds[2], status;
	ssize_t n;
	pid_t pid;

	if (plugin[0] == '/' && !strchr(plugin, ',')) {
		status = access(plugin, R_OK);
		if (status)
			snprintf(why, len, "plugin %s: %s", plugin, strerror(errno));
		return status;
	}
	if (pipe2(fds, O_CLOEXEC))
		return 0; /* the ranks will say it */
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		if (gantry_loader_open(plugin, &loader) != GANTRY_OK &&
		    write(fds[1], gantry_last_error(), strlen(gantry_last_error())) < 0)
			_exit(1);
		_exit(0);
	}
	close(fds[1]);
	n = pid < 0 ? 0 : read(fds[0], why, len - 1);
	why[n < 0 ? 0 : n] = 0;
	close(fds[0]);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return strstr(why, "cannot open shared object file: No such file") ? -1 : 0;
}

int preflight(const char *program, const char *plugin, const char *transport)
{
	int own = !plugin || !*plugin;
	const char *secret;
	gantry_result r = GANTRY_OK;
	char why[512];

	if (!own && try_plugin(plugin, why, sizeof(why)) < 0) {
		fprintf(stderr, "%s: %s\n", program, why);
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
