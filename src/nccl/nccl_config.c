/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclConfig_t, of programs compiled with NCCL's header of any version up to 2.32. `size` says how much of it there is, `version`
 * which members mean something: a member that came later counts as not set, whatever lies there. Values that NCCL refuses
 * are refused. Members that have no effect here are accepted, and named in one line where a value asks for something.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stddef.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"
#include "nccl/nccl.h"

enum { NAMES_TEXT = 384, NCCL_CHANNELS_MAX = 64, POLICY_ALL = 3 };
enum { WITH_CHANNELS = 21700, WITH_TRAFFIC_CLASS = 22600 };
#define ANY INT_MAX

/* idle: between these two the value asks for nothing that is missing; where the first is larger, every value does. */
static const struct member {
	const char *name;
	size_t at;
	unsigned since;
	int least, most;
	struct {
		int least, most;
	} idle;
} members[] = {
#define MEMBER(name) #name, offsetof(ncclConfig_t, name)
	{MEMBER(blocking), 21400, 0, 1, {0, 1}},
	{MEMBER(cgaClusterSize), WITH_CHANNELS, 0, 8, {1, 0}},
	{MEMBER(minCTAs), WITH_CHANNELS, 1, ANY, {1, ANY}},
	{MEMBER(maxCTAs), WITH_CHANNELS, 1, ANY, {1, ANY}},
	/* Communicators share connections to hosts and threads anyway. */
	{MEMBER(splitShare), 21800, 0, 1, {0, 1}},
	{MEMBER(trafficClass), WITH_TRAFFIC_CLASS, -ANY, ANY, {0, 255}},
	{MEMBER(collnetEnable), 22700, 0, 1, {0, 0}},
	{MEMBER(CTAPolicy), 22700, 0, POLICY_ALL, {0, 0}},
	{MEMBER(shrinkShare), 22700, 0, 1, {0, 1}},
	{MEMBER(nvlsCTAs), 22700, 1, ANY, {1, 0}},
	{MEMBER(nChannelsPerNetPeer), 22800, 1, NCCL_CHANNELS_MAX, {1, 0}},
	{MEMBER(nvlinkCentricSched), 22800, 0, 1, {0, 0}},
	/* Promises of the program, which need not be used. */
	{MEMBER(graphUsageMode), 22900, 0, 2, {0, 2}},
	{MEMBER(numRmaCtx), 22900, 0, ANY, {0, 1}},
	{MEMBER(maxP2pPeers), 23000, 1, ANY, {1, ANY}},
	{MEMBER(graphStreamOrdering), 23005, 0, 1, {1, 1}},
	{MEMBER(launchOrderImplicit), 23100, 0, 1, {0, 0}},
	{MEMBER(numRmaSig), 23100, 0, ANY, {0, GANTRY_SIGNALS}},
	{MEMBER(rmaEagerInit), 23100, 0, 1, {0, 0}},
	/* 1 on, 2 off, 3 if it can be had. */
	{MEMBER(hostCftMode), 23100, 1, 3, {2, 3}},
	/* Bits that switch NVLS off, which there is none of. */
	{MEMBER(nvlsHostMode), 23200, 0, ANY, {0, ANY}},
};
enum { MEMBERS = sizeof(members) / sizeof(*members) };

static int *value_at(ncclConfig_t *c, const struct member *m)
{
	return (int *)((char *)c + m->at);
}

static gantry_result check_values(ncclConfig_t *c)
{
	for (size_t i = 0; i < MEMBERS; i++) {
		const struct member *m = &members[i];
		int value = *value_at(c, m);

		if (value == NCCL_CONFIG_UNDEF_INT || (value >= m->least && value <= m->most))
			continue;
		if (m->most == ANY)
			FAIL_NOW(GANTRY_ERR_INVALID, "ncclConfig_t: %s is %d, but must be at least %d", m->name, value,
				 m->least);
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclConfig_t: %s is %d, but must be %d to %d", m->name, value, m->least,
			 m->most);
	}
	if (c->maxCTAs > 0 && c->minCTAs > c->maxCTAs)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclConfig_t: minCTAs is %d and maxCTAs %d", c->minCTAs, c->maxCTAs);
	return GANTRY_OK;
}

static void name_idle(ncclConfig_t *c, int rank)
{
	static int logged; /* relaxed: once in a process */
	char names[NAMES_TEXT] = "";

	for (size_t i = 0; i < MEMBERS; i++) {
		int value = *value_at(c, &members[i]);

		if (value != NCCL_CONFIG_UNDEF_INT && (value < members[i].idle.least || value > members[i].idle.most))
			gantry_text_add(names, sizeof(names), "%s%s=%d", *names ? ", " : "", members[i].name, value);
	}
	if (!*names || exchange_relaxed(&logged, 1))
		return;
	if (rank == 0)
		LOG_WARN(COMM, "these members of ncclConfig_t are set but have no effect under Gantry: %s", names);
	else
		LOG_INFO(COMM, "these members of ncclConfig_t are set but have no effect under Gantry: %s", names);
}

gantry_result nccl_config_read(const ncclConfig_t *theirs, int rank, ncclConfig_t *ret)
{
	size_t size = theirs ? theirs->size : 0;

	*ret = (ncclConfig_t){.size = sizeof(*ret), .magic = NCCL_API_MAGIC};
	for (size_t i = 0; i < MEMBERS; i++)
		*value_at(ret, &members[i]) = NCCL_CONFIG_UNDEF_INT;
	if (!theirs)
		return GANTRY_OK;
	if (theirs->magic != NCCL_API_MAGIC)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclConfig_t was not initialised with NCCL_CONFIG_INITIALIZER");
	if (size < offsetof(ncclConfig_t, cgaClusterSize))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclConfig_t has an unsupported size of %zu bytes", size);
	memcpy(ret, theirs, size < sizeof(*ret) ? size : sizeof(*ret));
	for (size_t i = 0; i < MEMBERS; i++)
		if (ret->version < members[i].since)
			*value_at(ret, &members[i]) = NCCL_CONFIG_UNDEF_INT;
	if (ret->version < WITH_CHANNELS)
		ret->netName = NULL;
	TRY_NOW(check_values(ret));
	name_idle(ret, rank);
	return GANTRY_OK;
}
