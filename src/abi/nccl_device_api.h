/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's device API as kernels see it that were compiled with the headers of 2.28.7 to 2.29.3: structs that a program passes to kernels by
 * value or by the device's pointer, what it asks for, and the queues that its kernels write. These layouts are all that kernels know of
 * the library: what they do is inlined into them. Later headers have other ones (2.29.7: 224 bytes, other bits in requests; 2.30: 240).
 *
 * Handles of buffers count 128 bytes of the resource window. Memory registered for the network is a number, which is passed as a pointer.
 */
#ifndef GANTRY_ABI_NCCL_DEVICE_API_H
#define GANTRY_ABI_NCCL_DEVICE_API_H

#include "abi/nccl_api.h"

#define NCCL_DEVICE_CONTEXTS 4	     /* of a communicator, at most */
#define NCCL_DEVICE_BUFFER_UNIT 128  /* of resource handles */
#define NCCL_DEVICE_GIN_TYPE_PROXY 2 /* a thread of the CPU serves the queues */
#define NCCL_DEVICE_OLDEST 22807     /* the versions whose layouts these are */
#define NCCL_DEVICE_NEWEST 22903
#define NCCL_DEVICE_WINDOWS 32 /* of a table */

/* A window: what ncclWindow_t leads to, in memory of the device. The address of a byte at rank i of the team of ranks that map each other's
 * memory is lsaFlatBase + i * stride4G * 4 GiB + its offset. */
struct ncclWindow_vidmem {
	void *winHost;
	char *lsaFlatBase;
	int lsaRank, worldRank;
	uint32_t stride4G;
	uint32_t mcOffset4K, ginOffset4K; /* in pages of 4096 bytes */
	void *ginWins[NCCL_DEVICE_CONTEXTS];
};
NCCL_ABI_SIZE(struct ncclWindow_vidmem, 72);
NCCL_ABI_OFFSET(struct ncclWindow_vidmem, lsaFlatBase, 8);
NCCL_ABI_OFFSET(struct ncclWindow_vidmem, lsaRank, 16);
NCCL_ABI_OFFSET(struct ncclWindow_vidmem, worldRank, 20);
NCCL_ABI_OFFSET(struct ncclWindow_vidmem, stride4G, 24);
NCCL_ABI_OFFSET(struct ncclWindow_vidmem, mcOffset4K, 28);
NCCL_ABI_OFFSET(struct ncclWindow_vidmem, ginOffset4K, 32);
NCCL_ABI_OFFSET(struct ncclWindow_vidmem, ginWins, 40);

/* Windows by address; an entry whose members are all set is in use. */
struct ncclDevCommWindowTable {
	struct {
		uintptr_t base, size;
		ncclWindow_t window;
	} entries[NCCL_DEVICE_WINDOWS];
	struct ncclDevCommWindowTable *next;
};
NCCL_ABI_SIZE(struct ncclDevCommWindowTable, 776);
NCCL_ABI_OFFSET(struct ncclDevCommWindowTable, next, 768);

typedef struct {
	uint32_t bufHandle;
	int nBarriers;
} ncclLsaBarrierHandle_t;
NCCL_ABI_SIZE(ncclLsaBarrierHandle_t, 8);

typedef struct {
	uint32_t signal0, bufHandle;
} ncclGinBarrierHandle_t;
NCCL_ABI_SIZE(ncclGinBarrierHandle_t, 8);
NCCL_ABI_OFFSET(ncclGinBarrierHandle_t, bufHandle, 4);

typedef struct {
	uint32_t bufHandle, nSlots;
} ncclLLA2AHandle_t;
NCCL_ABI_SIZE(ncclLLA2AHandle_t, 8);

/* A rcp32 is 0xffffffff / x, and one more if x is a power of two. */
struct ncclDevComm {
	int rank, nRanks;
	uint32_t nRanks_rcp32;
	int lsaRank, lsaSize;
	uint32_t lsaSize_rcp32;
	struct ncclDevCommWindowTable *windowTable;
	ncclWindow_t resourceWindow;
	struct ncclWindow_vidmem resourceWindow_inlined;
	ncclMultimemHandle_t lsaMultimem;
	ncclLsaBarrierHandle_t lsaBarrier;
	ncclGinBarrierHandle_t railGinBarrier;
	uint8_t ginContextCount;
	uint8_t ginTypes[NCCL_DEVICE_CONTEXTS];
	void *ginHandles[NCCL_DEVICE_CONTEXTS]; /* of the device: ncclGinProxyGpuCtx */
	uint32_t ginSignalBase;
	int ginSignalCount;
	uint32_t ginCounterBase;
	int ginCounterCount;
	uint64_t *ginSignalShadows; /* [context][signal] */
};
NCCL_ABI_SIZE(struct ncclDevComm, 200);
NCCL_ABI_OFFSET(struct ncclDevComm, nRanks_rcp32, 8);
NCCL_ABI_OFFSET(struct ncclDevComm, lsaRank, 12);
NCCL_ABI_OFFSET(struct ncclDevComm, lsaSize_rcp32, 20);
NCCL_ABI_OFFSET(struct ncclDevComm, windowTable, 24);
NCCL_ABI_OFFSET(struct ncclDevComm, resourceWindow, 32);
NCCL_ABI_OFFSET(struct ncclDevComm, resourceWindow_inlined, 40);
NCCL_ABI_OFFSET(struct ncclDevComm, lsaMultimem, 112);
NCCL_ABI_OFFSET(struct ncclDevComm, lsaBarrier, 120);
NCCL_ABI_OFFSET(struct ncclDevComm, railGinBarrier, 128);
NCCL_ABI_OFFSET(struct ncclDevComm, ginContextCount, 136);
NCCL_ABI_OFFSET(struct ncclDevComm, ginTypes, 137);
NCCL_ABI_OFFSET(struct ncclDevComm, ginHandles, 144);
NCCL_ABI_OFFSET(struct ncclDevComm, ginSignalBase, 176);
NCCL_ABI_OFFSET(struct ncclDevComm, ginSignalCount, 180);
NCCL_ABI_OFFSET(struct ncclDevComm, ginCounterBase, 184);
NCCL_ABI_OFFSET(struct ncclDevComm, ginCounterCount, 188);
NCCL_ABI_OFFSET(struct ncclDevComm, ginSignalShadows, 192);

/* What a program wants; lists are its own memory, and out pointers are written when the communicator is made. */
struct ncclDevResourceRequirements {
	struct ncclDevResourceRequirements *next;
	size_t bufferSize, bufferAlign;
	uint32_t *outBufferHandle;
	int ginSignalCount, ginCounterCount;
	uint32_t *outGinSignalStart, *outGinCounterStart;
};
NCCL_ABI_SIZE(struct ncclDevResourceRequirements, 56);
NCCL_ABI_OFFSET(struct ncclDevResourceRequirements, outBufferHandle, 24);
NCCL_ABI_OFFSET(struct ncclDevResourceRequirements, ginSignalCount, 32);
NCCL_ABI_OFFSET(struct ncclDevResourceRequirements, outGinSignalStart, 40);

struct ncclTeamRequirements {
	struct ncclTeamRequirements *next;
	ncclTeam_t team;
	bool multimem;
	ncclMultimemHandle_t *outMultimemHandle;
};
NCCL_ABI_SIZE(struct ncclTeamRequirements, 32);
NCCL_ABI_OFFSET(struct ncclTeamRequirements, multimem, 20);

/* The whole of it until 2.28.9; from 2.29.2 on it stands behind the head. */
typedef struct {
	struct ncclDevResourceRequirements *resourceRequirementsList;
	struct ncclTeamRequirements *teamRequirementsList;
	bool lsaMultimem;
	int barrierCount, lsaBarrierCount, railGinBarrierCount;
	int lsaLLA2ABlockCount, lsaLLA2ASlotCount; /* for later, in NCCL too */
	bool ginForceEnable;
	int ginContextCount; /* a wish */
	int ginSignalCount, ginCounterCount;
} ncclDevCommWishes_t;
NCCL_ABI_SIZE(ncclDevCommWishes_t, 56);
NCCL_ABI_OFFSET(ncclDevCommWishes_t, lsaMultimem, 16);
NCCL_ABI_OFFSET(ncclDevCommWishes_t, railGinBarrierCount, 28);
NCCL_ABI_OFFSET(ncclDevCommWishes_t, ginForceEnable, 40);
NCCL_ABI_OFFSET(ncclDevCommWishes_t, ginCounterCount, 52);

typedef struct {
	size_t size;
	unsigned magic, version;
} ncclDevCommWishesHead_t;
NCCL_ABI_SIZE(ncclDevCommWishesHead_t, 16);
NCCL_ABI_OFFSET(ncclDevCommWishesHead_t, magic, 8);

/*
 * A context's queues, one to each rank. A kernel takes a place by adding 1 to pis[rank], waits until it is less than queueSize ahead of
 * cis[rank], and stores eight words, whose bit 0 says that the word is there. The CPU zeroes them again, and raises cis when the request's
 * source may be used. Indices wrap. The words, as bits from..to:
 *
 *   0  1..6 what (1 always, 2 the value is in the words, 4 a counter, 8 add 1 to a signal, 16 add to a signal), 7..63 bytes
 *   1  1..63 offset in the source; a value: 8..39 its bits 0..31, 40..55 bits 32..47 where it has more than four bytes
 *   2  1..63 the source; a value: 8..23 its bits 48..63 where it has more than six bytes
 *   3  1..63 offset in the target      4  1..63 the target
 *   5  8..23 counter, 24..39 signal, 40..55 bits 0..15 of what is added
 *   6  8..23 bits 16..31 of what is added, 24..55 bits 32..63
 *   7  nothing
 *
 * What is not named may be anything.
 */
#define NCCL_DEVICE_REQUEST_WORDS 8
enum {
	NCCL_DEVICE_PUT = 1,
	NCCL_DEVICE_VALUE = 2,
	NCCL_DEVICE_COUNTER = 4,
	NCCL_DEVICE_SIGNAL_INC = 8,
	NCCL_DEVICE_SIGNAL_ADD = 16,
};
typedef struct {
	uint64_t words[NCCL_DEVICE_REQUEST_WORDS];
} ncclGinProxyGfd_t;
NCCL_ABI_SIZE(ncclGinProxyGfd_t, 64);

typedef struct {
	int nranks;
	uint32_t queueSize; /* a power of two */
	ncclGinProxyGfd_t *queues;
	uint32_t *pis, *cis;
	uint64_t *counters, *signals;
} ncclGinProxyGpuCtx_t;
NCCL_ABI_SIZE(ncclGinProxyGpuCtx_t, 48);
NCCL_ABI_OFFSET(ncclGinProxyGpuCtx_t, queues, 8);
NCCL_ABI_OFFSET(ncclGinProxyGpuCtx_t, pis, 16);
NCCL_ABI_OFFSET(ncclGinProxyGpuCtx_t, cis, 24);
NCCL_ABI_OFFSET(ncclGinProxyGpuCtx_t, counters, 32);
NCCL_ABI_OFFSET(ncclGinProxyGpuCtx_t, signals, 40);

#endif
