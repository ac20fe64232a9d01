/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this library does not offer, and says so: every name that NCCL exports is there, because a missing one keeps a
 * program from starting, and callers look at results. The device API (kernels of the program's own that communicate)
 * has no stable binary interface in NCCL either: properties say that it is not there, and PyTorch and XLA do without.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "nccl/nccl.h"

static ncclResult_t refuse(const char *function)
{
	return nccl_result(gantry_fail(GANTRY_ERR_UNSUPPORTED, LOG_SUBSYS, __FILE__, __LINE__,
				       "%s is not supported by Gantry (docs/nccl-api.md)", function));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define MAKE_FULL(type, name, params)
#define MAKE_HINT(type, name, params)
#define MAKE_REFUSED(type, name, params)                                                                               \
	NCCL_FUNCTION(type, name, params)                                                                              \
	{                                                                                                              \
		return refuse("nccl" #name);                                                                           \
	}
#define API(kind, type, name, params) MAKE_##kind(type, name, params)
#include "nccl/api.def"
#pragma GCC diagnostic pop

/* There is none to destroy. */
NCCL_FUNCTION(ncclResult_t, DevCommDestroy, (ncclComm_t comm, const ncclDevComm_t *made))
{
	(void)made;
	return nccl_comm_of(comm, "ncclDevCommDestroy") ? ncclSuccess : nccl_result(GANTRY_ERR_INVALID);
}

/* ---- teams: ranks reachable by loads and stores of a kernel. Only the rank itself ---- */

NCCL_FUNCTION(ncclTeam_t, TeamWorld, (ncclComm_t comm))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclTeamWorld");

	if (!c)
		return (ncclTeam_t){0, 0, 0};
	return (ncclTeam_t){gantry_comm_size(c->comm), gantry_comm_rank(c->comm), 1};
}

NCCL_FUNCTION(ncclTeam_t, TeamLsa, (ncclComm_t comm))
{
	return nccl_comm_of(comm, "ncclTeamLsa") ? (ncclTeam_t){1, 0, 1} : (ncclTeam_t){0, 0, 0};
}

NCCL_FUNCTION(ncclTeam_t, TeamRail, (ncclComm_t comm))
{
	return pncclTeamWorld(comm);
}

NCCL_FUNCTION(int, TeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclTeamRankToWorld");

	return c ? gantry_comm_rank(c->comm) + (rank - team.rank) * team.stride : -1;
}

NCCL_FUNCTION(int, TeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank))
{
	return nccl_comm_of(comm, "ncclTeamRankToLsa") ? (rank - team.rank) * team.stride : -1;
}

/* Slots of 8 bytes. */
NCCL_FUNCTION(int, LLA2ACalcSlots, (int elements, int bytes))
{
	return elements * ((bytes + 7) / 8);
}

NCCL_FUNCTION(ncclResult_t, CommQueryProperties, (ncclComm_t comm, ncclCommProperties_t *properties))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommQueryProperties");
	ncclCommProperties_t own = {.nLsaTeams = 0};
	size_t size;

	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	if (!properties || properties->magic != NCCL_API_MAGIC)
		return nccl_result(nccl_missing("ncclCommQueryProperties"));
	size = properties->size < sizeof(own) ? properties->size : sizeof(own);
	if (size < offsetof(ncclCommProperties_t, rank))
		return nccl_result(nccl_missing("ncclCommQueryProperties"));
	own.size = properties->size;
	own.magic = properties->magic;
	own.version = properties->version;
	own.rank = gantry_comm_rank(c->comm);
	own.nRanks = own.nLsaTeams = gantry_comm_size(c->comm);
	own.cudaDev = own.nvmlDev = c->device->index;
	memcpy(properties, &own, size);
	return ncclSuccess;
}
