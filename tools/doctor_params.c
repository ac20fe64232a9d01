/*
 * `gantry doctor`: the parameters. Whether a text is allowed at all is in the table that a job reads it by; whether
 * what it names can be used here is asked of those who would use it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "base/secret.h"
#include "doctor.h"
#include "net/loader.h"
#include "transport/transport.h"

static const char section[] = "parameters";

void doctor_load_params(struct doctor *d)
{
	struct gantry_param_info p;
	char why[256];

	d->bad = calloc(gantry_param_count(), sizeof(*d->bad));
	for (size_t i = 0; d->bad && i < gantry_param_count(); i++) {
		const char *text;

		gantry_param_describe(i, &p);
		text = getenv(p.env);
		if (!text || gantry_param_allows(i, text))
			continue;
		snprintf(why, sizeof(why), "%s=%.64s is not allowed", p.env, text);
		doctor_block(d, why);
		d->bad[i] = doctor_copy(text);
		unsetenv(p.env);
	}
	gantry_params_load(0);
}

/* ---- values that name something ---- */

/* Each: 0, or -1 with the reason. */

static int failed(char *why, size_t len)
{
	snprintf(why, len, "%s", gantry_last_error());
	return -1;
}

static int try_transport_libs(const char *value, char *why, size_t len)
{
	(void)value;
	return gantry_transport_load_libs() == GANTRY_OK ? 0 : failed(why, len);
}

static int try_transport(const char *value, char *why, size_t len)
{
	gantry_transport_load_libs(); /* their transports count; a library that is missing is found by its own name */
	return gantry_transport_check(value) == GANTRY_OK ? 0 : failed(why, len);
}

static int try_net_plugin(const char *value, char *why, size_t len)
{
	struct gantry_loader *loader = NULL;

	if (gantry_loader_open(value, &loader) != GANTRY_OK)
		return failed(why, len);
	gantry_loader_close(loader);
	return 0;
}

static int try_secret(const char *value, char *why, size_t len)
{
	const char *secret;

	(void)value;
	return gantry_secret(&secret) == GANTRY_OK ? 0 : failed(why, len);
}

static int try_folder(const char *path, char *why, size_t len)
{
	struct stat st;

	if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
		errno = ENOTDIR;
	else if (access(path, W_OK | X_OK) == 0)
		return 0;
	snprintf(why, len, "nothing can be written to the folder %s: %s", path, strerror(errno));
	return -1;
}

/* The folder of a file's name, whatever stands for what in the name. */
static int try_file_folder(const char *path, char *why, size_t len)
{
	char folder[4096];
	char *slash;

	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (!slash)
		return try_folder(".", why, len);
	slash[slash == folder] = 0;
	return try_folder(folder, why, len);
}

static int try_congestion(const char *value, char *why, size_t len)
{
	int fd, e = 0;

	if (strcmp(value, "auto") == 0 || strcmp(value, "keep") == 0)
		return 0;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, value, (socklen_t)strlen(value)))
		e = errno;
	close(fd);
	if (e)
		snprintf(why, len, "%s",
			 e == ENOENT  ? "the kernel has no such congestion control"
			 : e == EPERM ? "not in net.ipv4.tcp_allowed_congestion_control"
				      : strerror(e));
	return e ? -1 : 0;
}

static const struct {
	const char *env;
	int (*try)(const char *value, char *why, size_t len);
	enum doctor_level level; /* if it cannot be used */
} trials[] = {
	{"GANTRY_TRANSPORT_LIBS", try_transport_libs, DOCTOR_FAIL},
	{"GANTRY_TRANSPORT", try_transport, DOCTOR_FAIL},
	{"GANTRY_NET_PLUGIN", try_net_plugin, DOCTOR_FAIL},
	{"GANTRY_SECRET", try_secret, DOCTOR_FAIL},
	{"GANTRY_SECRET_FILE", try_secret, DOCTOR_FAIL},
	{"GANTRY_STALL_DIR", try_folder, DOCTOR_WARN},
	{"GANTRY_TRACE", try_file_folder, DOCTOR_WARN},
	{"GANTRY_CONGESTION", try_congestion, DOCTOR_WARN},
};

/* A parameter that is set. */
static void say_set(struct doctor *d, const struct gantry_param_info *p, const char *detail)
{
	enum doctor_level level = DOCTOR_OK;
	char why[512];

	for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++)
		if (strcmp(trials[i].env, p->env) == 0 && trials[i].try(getenv(p->env), why, sizeof(why)))
			level = trials[i].level;
	doctor_say(d, section, p->env, level, p->value, level == DOCTOR_OK ? detail : why,
		   level == DOCTOR_OK ? "" : "correct or unset it");
}

void doctor_params(struct doctor *d, int all)
{
	struct gantry_param_info p;
	char detail[512];

	for (size_t i = 0; i < gantry_param_count(); i++) {
		int set;

		gantry_param_describe(i, &p);
		set = p.origin == GANTRY_ORIGIN_ENV;
		snprintf(detail, sizeof(detail), "%s, %s%s%s", set ? "environment" : "default", p.type,
			 *p.range ? ": " : "", p.range);
		if (d->bad && d->bad[i])
			doctor_say(d, section, p.env, DOCTOR_FAIL, d->bad[i],
				   gantry_param_refusal(i, d->bad[i], detail, sizeof(detail)), "correct or unset it");
		else if (set)
			say_set(d, &p, detail);
		else if (all)
			doctor_say(d, section, p.env, DOCTOR_OK, p.value, detail, "");
	}
}
