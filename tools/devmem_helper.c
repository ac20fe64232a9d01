/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry devmem-helper`: binds NICs for processes that may not. The work is in net/devmem/daemon.c. */
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "common/cmd.h"
#include "common/options.h"
#include "net/devmem/session.h"

static int stop; /* atomic */

static void on_signal(int number)
{
	(void)number;
	store_relaxed(&stop, 1);
}

struct request {
	const char *socket, *nic, *user;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{0, OPTION_TEXT, "socket", AT(socket), 0, 0, NULL, "PATH", "where to be reached; clients set GANTRY_DEVMEM_HELPER to it"},
	{0, OPTION_TEXT, "nic", AT(nic), 0, 0, NULL, "IF", "serve this interface only"},
	{0, OPTION_TEXT, "uid", AT(user), 0, 0, NULL, "N", "let this user connect (number or name), besides root; the socket becomes theirs, mode 0600"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry devmem-helper",
	.usage = "--socket PATH [OPTION]...",
	.about = "Binds and steers NICs for devmem TCP on behalf of processes without CAP_NET_ADMIN. Runs in the "
		 "foreground.\n",
	.notes = "\nEverything that was done for a client is taken back when its connection ends. Exit status: 0 after "
		 "SIGINT or\nSIGTERM, 1 on an error, 2 on wrong usage.\n",
	OPTION_SPECS(specs),
	.keep_params = 1,
};

/* 0, or -1: no such user. */
static int parse_uid(const char *text, uid_t *ret_uid)
{
	const struct passwd *p = getpwnam(text);
	int64_t n;

	if (p) {
		*ret_uid = p->pw_uid;
		return 0;
	}
	if (gantry_parse_int(text, &n) != GANTRY_OK || n < 0 || n > UINT32_MAX - 1)
		return -1;
	*ret_uid = (uid_t)n;
	return 0;
}

int cmd_devmem_helper(int argc, char **argv)
{
	struct request q = {0};
	int status = options_parse(&set, argc, argv, &q);
	struct devmem_daemon_config config = {.path = q.socket, .nic = q.nic, .has_uid = q.user != NULL};
	struct sigaction action = {.sa_handler = on_signal};

	if (status)
		return status - 1;
	if (q.user && parse_uid(q.user, &config.uid))
		return options_wrong(&set, "no such user: %s; gantry devmem-helper --help", q.user);
	if (!config.path || !*config.path)
		return options_wrong(&set, "--socket PATH is needed; gantry devmem-helper --help");
	if (gantry_params_load(0) != GANTRY_OK)
		return 2;
	store_relaxed(&stop, 0);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	return devmem_daemon_serve(&config, &stop) == GANTRY_OK ? 0 : 1;
}
