/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's own API, 2.14 to 2.32: what programs that were compiled against its header hand over, and what they expect.
 * Layouts only; the functions are in src/nccl/api.def. As in all of this folder the names are NCCL's.
 *
 * Structs that grow begin with size, magic and version, which the caller's initializer has filled in. A member that is
 * not set is INT_MIN or NULL.
 */
#ifndef GANTRY_ABI_NCCL_API_H
#define GANTRY_ABI_NCCL_API_H

#include <limits.h>
#include <stdbool.h>

#include "abi/nccl_types.h"

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclParamHandle *ncclParamHandle_t;
typedef struct CUstream_st *cudaStream_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
	char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
NCCL_ABI_SIZE(ncclUniqueId, 128);

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_UNDEF_FLOAT (-1.0f)
#define NCCL_API_MAGIC 0xcafebeefu
#define NCCL_SIM_INFO_MAGIC 0x74685283u
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00

typedef enum {
	ncclScalarDevice = 0,
	ncclScalarHostImmediate = 1,
} ncclScalarResidence_t;
NCCL_ABI_SIZE(ncclScalarResidence_t, 4);

typedef enum {
	ncclStatGpuMemSuspend = 0,
	ncclStatGpuMemSuspended = 1,
	ncclStatGpuMemPersist = 2,
	ncclStatGpuMemTotal = 3,
} ncclCommMemStat_t;
NCCL_ABI_SIZE(ncclCommMemStat_t, 4);

/* As of 2.32. Older ones end before: 24 bytes in 2.14, 40 in 2.17, 48 in 2.18, 72 in 2.27, 80 in 2.28, 88 in 2.29, 96 in
 * 2.30, 112 in 2.31. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
	int cgaClusterSize;
	int minCTAs, maxCTAs;
	const char *netName;
	int splitShare;
	int trafficClass; /* since 2.26; before, padding */
	const char *commName;
	int collnetEnable;
	int CTAPolicy;
	int shrinkShare;
	int nvlsCTAs;
	int nChannelsPerNetPeer;
	int nvlinkCentricSched;
	int graphUsageMode;
	int numRmaCtx;
	int maxP2pPeers;
	int graphStreamOrdering;
	int launchOrderImplicit;
	int numRmaSig;
	int rmaEagerInit;
	int hostCftMode;
	int nvlsHostMode;
} ncclConfig_t;
NCCL_ABI_SIZE(ncclConfig_t, 120);
NCCL_ABI_OFFSET(ncclConfig_t, blocking, 16);
NCCL_ABI_OFFSET(ncclConfig_t, netName, 32);
NCCL_ABI_OFFSET(ncclConfig_t, trafficClass, 44);
NCCL_ABI_OFFSET(ncclConfig_t, commName, 48);
NCCL_ABI_OFFSET(ncclConfig_t, nvlsCTAs, 68);
NCCL_ABI_OFFSET(ncclConfig_t, graphStreamOrdering, 92);
NCCL_ABI_OFFSET(ncclConfig_t, hostCftMode, 108);
NCCL_ABI_OFFSET(ncclConfig_t, nvlsHostMode, 112);

typedef struct {
	size_t size;
	unsigned magic, version;
	float estimatedTime;
} ncclSimInfo_t;
NCCL_ABI_SIZE(ncclSimInfo_t, 24);
NCCL_ABI_OFFSET(ncclSimInfo_t, estimatedTime, 16);

typedef struct {
	int opCnt, peer, sigIdx, ctx;
} ncclWaitSignalDesc_t;
NCCL_ABI_SIZE(ncclWaitSignalDesc_t, 16);

typedef struct {
	int nRanks, rank, stride;
} ncclTeam_t;
NCCL_ABI_SIZE(ncclTeam_t, 12);

/* 2.29.2 and 2.29.3. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int rank, nRanks;
	int cudaDev, nvmlDev;
	bool deviceApiSupport;
	bool multimemSupport;
	uint8_t ginType;
} ncclCommProperties_v22902_t;
NCCL_ABI_SIZE(ncclCommProperties_v22902_t, 40);
NCCL_ABI_OFFSET(ncclCommProperties_v22902_t, ginType, 34);

/* Since 2.29.7. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int rank, nRanks;
	int cudaDev, nvmlDev;
	bool deviceApiSupport;
	bool multimemSupport;
	int ginType;
	int nLsaTeams;
	bool hostRmaSupport;
	int railedGinType;
} ncclCommProperties_t;
NCCL_ABI_SIZE(ncclCommProperties_t, 56);
NCCL_ABI_OFFSET(ncclCommProperties_t, deviceApiSupport, 32);
NCCL_ABI_OFFSET(ncclCommProperties_t, railedGinType, 48);

/* What is only refused is never looked into. */
typedef struct ncclCollConfig ncclCollConfig_t;

/* Since 2.32. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int mode;	 /* 0: none, 1: a pre-shared key */
	const char *psk; /* a text of at least 32 bytes */
} ncclEncryptionConfig_t;
NCCL_ABI_SIZE(ncclEncryptionConfig_t, 32);
typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t; /* one of two layouts: abi/nccl_device_api.h */
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct {
	uint64_t opaque; /* passed by value: a pointer into multicast memory */
} ncclMultimemHandle_t;

#endif
