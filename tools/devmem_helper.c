/* `gantry devmem-helper`: binds NICs for processes that may not. The work is in net/devmem/helper.c. */
#include <getopt.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "cmd.h"
#include "net/devmem/helper.h"
#include "suggest.h"

static volatile int stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

static const char help[] =
	"usage: gantry devmem-helper --socket PATH [OPTION]...\n"
	"Binds and steers NICs for devmem TCP on behalf of processes without CAP_NET_ADMIN. Runs in the foreground.\n\n"
	"  --socket PATH  where to be reached; clients set GANTRY_DEVMEM_HELPER to it\n"
	"  --nic IF       serve this interface only\n"
	"  --uid N        let this user connect (number or name), besides root; the socket becomes theirs, mode 0600\n"
	"  --help         this text\n\n"
	"Everything that was done for a client is taken back when its connection ends. Exit status: 0 after SIGINT or\n"
	"SIGTERM, 1 on an error, 2 on wrong usage.\n";

static int wrong(const char *text, const char *word)
{
	fprintf(stderr, "gantry devmem-helper: %s%s; gantry devmem-helper --help\n", text, word);
	return 2;
}

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
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"nic", required_argument, NULL, 'n'},
		{"uid", required_argument, NULL, 'u'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct devmem_helper_config config = {0};
	struct sigaction action = {.sa_handler = on_signal};
	int c;

	opterr = 0;
	optind = 0;
	while ((c = getopt_long(argc, argv, "+:h", options, NULL)) != -1) {
		switch (c) {
		case 's':
			config.path = optarg;
			break;
		case 'n':
			config.nic = optarg;
			break;
		case 'u':
			if (parse_uid(optarg, &config.uid))
				return wrong("no such user: ", optarg);
			config.has_uid = 1;
			break;
		case 'h':
			fputs(help, stdout);
			return 0;
		default:
			return suggest_usage("gantry devmem-helper", options, c, argv[optind - 1]);
		}
	}
	if (optind < argc)
		return suggest_usage("gantry devmem-helper", options, '?', argv[optind]);
	if (!config.path || !*config.path)
		return wrong("--socket PATH is needed", "");
	if (gantry_params_load(0) != GANTRY_OK)
		return 2;
	stop = 0;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	return devmem_helper_serve(&config, &stop) == GANTRY_OK ? 0 : 1;
}
