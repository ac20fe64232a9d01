/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ranks must have alike, found out before it does harm: the version, and every parameter whose description
 * says "All ranks must agree." That sentence is the mark, so a parameter that has it is compared, and one that is
 * compared says so to its users. Values travel as text, for the message; a hash of the whole text is what is compared.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "comm/comm.h"

enum { AGREE_MAX = 24, TEXT_MAX = 40 };

struct settings {
	struct gantry_peer_info info;
	uint64_t hash[AGREE_MAX];
	char text[AGREE_MAX][TEXT_MAX];
};
_Static_assert(sizeof(struct settings) <= GANTRY_CTL_MESSAGE_MAX, "travels in an allgather");

static int must_agree(const struct gantry_param_info *p)
{
	return strstr(p->doc, "All ranks must agree.") != NULL;
}

static void put(struct settings *s, size_t at, const char *value)
{
	s->hash[at] = 14695981039346656037u;
	for (const char *p = value; *p; p++)
		s->hash[at] = (s->hash[at] ^ (unsigned char)*p) * 1099511628211u;
	snprintf(s->text[at], TEXT_MAX, "%.*s", TEXT_MAX - 1, value);
}

/* The values in force; the caller of gantry_comm_init may have asked for some of them. names: what stands where. */
static gantry_result collect(const struct gantry_comm *comm, int channels, struct settings *s, const char **names)
{
	gantry_result r = GANTRY_OK;
	size_t n = 0;

	for (size_t i = 0; i < gantry_param_count(); i++) {
		struct gantry_param_info p;

		gantry_param_describe(i, &p);
		if (!must_agree(&p))
			continue;
		if (n == AGREE_MAX)
			FAIL(GANTRY_ERR_INTERNAL, "more than %d parameters on which all ranks must agree", AGREE_MAX);
		if (strcmp(p.env, "GANTRY_CHANNELS") == 0)
			snprintf(p.value, sizeof(p.value), "%d", channels);
		put(s, n, strcmp(p.env, "GANTRY_TRANSPORT") == 0 ? comm->transport : p.value);
		names[n++] = p.env;
	}
out:
	return r;
}

static gantry_result compare(const struct gantry_comm *comm, const struct settings *mine, struct settings *other,
			     int rank, const char *const *names)
{
	gantry_result r = GANTRY_OK;

	/* First: another version may have other parameters. */
	if (strcmp(mine->info.version, other->info.version))
		FAIL(GANTRY_ERR_VERSION, "rank %d (%s) runs gantry %s, rank %d %s", rank, other->info.host_name,
		     other->info.version, comm->rank, mine->info.version);
	for (size_t i = 0; i < AGREE_MAX && names[i]; i++) {
		other->text[i][TEXT_MAX - 1] = 0;
		if (mine->hash[i] != other->hash[i])
			FAIL(GANTRY_ERR_SETTING, "%s differs: %s on rank %d, %s on rank %d (%s); all ranks must agree",
			     names[i], mine->text[i], comm->rank, other->text[i], rank, other->info.host_name);
	}
out:
	return r;
}

gantry_result comm_agree(struct gantry_comm *comm, int channels)
{
	gantry_result r = GANTRY_OK;
	const char *names[AGREE_MAX] = {NULL};
	struct settings mine = {0}, *all = NULL;

	comm_peer_info(comm, &mine.info);
	TRY(collect(comm, channels, &mine, names));
	all = calloc((size_t)comm->nranks, sizeof(*all));
	comm->infos = calloc((size_t)comm->nranks, sizeof(*comm->infos));
	comm->peers = calloc((size_t)comm->nranks, sizeof(*comm->peers));
	if (!all || !comm->infos || !comm->peers)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", comm->nranks);
	TRY(gantry_ctl_allgather(comm->ctl, &mine, sizeof(mine), all));
	comm->nchannels = channels;
	for (int i = 0; i < comm->nranks; i++) {
		int wants = gantry_traits_of_kind(all[i].info.device_kind)->channels;

		comm->infos[i] = all[i].info;
		comm->infos[i].struct_size = sizeof(comm->infos[i]);
		/* Automatic: the most that any rank's device wants. */
		if (!channels && comm->nchannels < wants)
			comm->nchannels = wants;
		TRY(compare(comm, &mine, &all[i], i, names));
	}
out:
	free(all);
	return r;
}
