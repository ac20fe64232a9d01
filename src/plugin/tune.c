/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include "plugin/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/text.h"
#include "net/net.h"
#include "plugin/start.h"

/*
 * A variable that this process has set itself, as NAME=VALUE and a comma each. NCCL closes the library with its last
 * communicator and may open it again, and children inherit variables: neither must take them for the user's.
 */
#define MARK "GANTRY_TUNED"

/* NCCL has six ways to say how many channels there are; any of them is the user's own choice. */
static const char *const channel_names[] = {"NCCL_MIN_NCHANNELS",
					    "NCCL_MAX_NCHANNELS",
					    "NCCL_MIN_NRINGS",
					    "NCCL_MAX_NRINGS",
					    "NCCL_MIN_CTAS",
					    "NCCL_MAX_CTAS",
					    NULL};

static const struct variable {
	const char *name, *value;
	enum { ALWAYS, UNPACKING, EMULATED } when;
	const char *const *instead; /* set by the user, these count as well */
} variables[] = {
	{"NCCL_MIN_NCHANNELS", "8", ALWAYS, channel_names},
	/* NCCL's unpacking has one load per thread in flight. */
	{"NCCL_NTHREADS", "512", UNPACKING, NULL},
	/* Receives go to GPU memory however far the NIC is. */
	{"NCCL_NET_GDR_LEVEL", "SYS", UNPACKING, NULL},
	/* The emulated NIC sends from host memory: NCCL's kernels write there faster than the driver copies. */
	{"NCCL_NET_GDR_READ", "0", EMULATED, NULL},
	/* PAT does not unpack. */
	{"NCCL_PAT_ENABLE", "0", UNPACKING, NULL},
};
#define NVARIABLES (sizeof(variables) / sizeof(variables[0]))

MUTEX_KIND(plugin_tune_mu);
static struct plugin_tune_mu tune_mu;
static char logged_text[256] GUARDED_BY(plugin_tune_mu);
static int owns_channels, unpacks;	     /* relaxed: written by init, which comes before a tuner's */
static int by_answers, answered[NVARIABLES]; /* relaxed: flags, of which nothing else hangs */

static bool is_ours(const struct variable *v)
{
	const char *mark = getenv(MARK), *now = getenv(v->name);
	char entry[64];

	snprintf(entry, sizeof(entry), "%s=%s,", v->name, v->value);
	return mark && now && !strcmp(now, v->value) && strstr(mark, entry);
}

/* The user's own setting in place of `v`, or NULL. */
static const char *users_own(const struct variable *v)
{
	if (getenv(v->name) && !is_ours(v))
		return v->name;
	for (const char *const *name = v->instead; name && *name; name++)
		if (strcmp(*name, v->name) != 0 && getenv(*name))
			return *name;
	return NULL;
}

static void set_variable(const struct variable *v)
{
	const char *mark = getenv(MARK);
	char longer[512];

	if (is_ours(v))
		return;
	if (load_relaxed(&by_answers)) {
		store_relaxed(&answered[v - variables], 1);
		return;
	}
	snprintf(longer, sizeof(longer), "%s%s=%s,", mark ? mark : "", v->name, v->value);
	if (setenv(v->name, v->value, 0) || setenv(MARK, longer, 1))
		LOG_WARN(PLUGIN, "no memory to set %s=%s", v->name, v->value);
}

void plugin_tune(int unpack)
{
	int now = unpack == GANTRY_NET_UNPACK_OFF	 ? ALWAYS
		  : unpack == GANTRY_NET_UNPACK_EMULATED ? EMULATED
							 : UNPACKING;
	char text[sizeof(logged_text)] = "";

	plugin_tune_mu_lock(&tune_mu);
	if (gantry_params()->tune == PARAM_TUNE_OFF) {
		snprintf(text, sizeof(text), "off, NCCL chooses");
		goto out;
	}
	for (size_t i = 0; i < NVARIABLES; i++) {
		const struct variable *v = &variables[i];
		const char *theirs = users_own(v);

		if ((int)v->when > now)
			continue;
		if (!theirs)
			set_variable(v);
		if (v->instead == channel_names)
			store_relaxed(&owns_channels, !theirs);
		gantry_text_add(text, sizeof(text), "%s%s=%s", *text ? ", " : "", theirs ? theirs : v->name,
				theirs ? "(the user's)" : v->value);
	}
	store_relaxed(&unpacks, now != ALWAYS);
out:
	if (strcmp(text, logged_text) != 0)
		plugin_say_start(text);
	memcpy(logged_text, text, sizeof(logged_text));
	plugin_tune_mu_unlock(&tune_mu);
}

void plugin_tune_by_answers(bool on)
{
	store_relaxed(&by_answers, on);
}

const char *plugin_tune_answer(const char *name)
{
	for (size_t i = 0; i < NVARIABLES; i++)
		if (load_relaxed(&answered[i]) && strcmp(variables[i].name, name) == 0)
			return variables[i].value;
	return NULL;
}

bool plugin_tune_owns_channels(void)
{
	return load_relaxed(&owns_channels);
}

bool plugin_tune_unpacks(void)
{
	return load_relaxed(&unpacks);
}
