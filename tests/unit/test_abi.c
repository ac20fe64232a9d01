/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of NCCL's net interface as numbers, from a 64-bit build of NCCL 2.30.7: not from our headers. */
#include "abi/collnet_v12.h"
#include "abi/env_v2.h"
#include "abi/profiler_v6.h"
#include "abi/tuner_v7.h"
#include "test.h"

/* Of versions 6 to 12. */
#define CHECK_SIZES(type, v6, v7, v8, v9, v10, v11, v12)                                                               \
	CHECK_EQ(sizeof(type##_v6_t), v6);                                                                             \
	CHECK_EQ(sizeof(type##_v7_t), v7);                                                                             \
	CHECK_EQ(sizeof(type##_v8_t), v8);                                                                             \
	CHECK_EQ(sizeof(type##_v9_t), v9);                                                                             \
	CHECK_EQ(sizeof(type##_v10_t), v10);                                                                           \
	CHECK_EQ(sizeof(type##_v11_t), v11);                                                                           \
	CHECK_EQ(sizeof(type##_v12_t), v12)

TEST(check_properties)
{
	CHECK_SIZES(ncclNetProperties, 48, 56, 64, 104, 104, 112, 128);

	/* v6: two pointers and a guid, then six words of four bytes. */
	CHECK_EQ(offsetof(ncclNetProperties_v6_t, name), 0);
	CHECK_EQ(offsetof(ncclNetProperties_v6_t, pciPath), 8);
	CHECK_EQ(offsetof(ncclNetProperties_v6_t, guid), 16);
	CHECK_EQ(offsetof(ncclNetProperties_v6_t, ptrSupport), 24);
	CHECK_EQ(offsetof(ncclNetProperties_v6_t, speed), 28);
	CHECK_EQ(offsetof(ncclNetProperties_v6_t, port), 32);
	CHECK_EQ(offsetof(ncclNetProperties_v6_t, latency), 36);
	CHECK_EQ(offsetof(ncclNetProperties_v6_t, maxComms), 40);
	CHECK_EQ(offsetof(ncclNetProperties_v6_t, maxRecvs), 44);
	CHECK_EQ(offsetof(ncclNetProperties_v7_t, netDeviceType), 48);
	CHECK_EQ(offsetof(ncclNetProperties_v7_t, netDeviceVersion), 52);
	/* v8 moves everything after ptrSupport by one word, v9 by one more. */
	CHECK_EQ(offsetof(ncclNetProperties_v8_t, regIsGlobal), 28);
	CHECK_EQ(offsetof(ncclNetProperties_v8_t, speed), 32);
	CHECK_EQ(offsetof(ncclNetProperties_v8_t, netDeviceVersion), 56);
	CHECK_EQ(offsetof(ncclNetProperties_v9_t, forceFlush), 32);
	CHECK_EQ(offsetof(ncclNetProperties_v9_t, speed), 36);
	CHECK_EQ(offsetof(ncclNetProperties_v9_t, netDeviceVersion), 60);
	CHECK_EQ(offsetof(ncclNetProperties_v9_t, vProps), 64);
	CHECK_EQ(offsetof(ncclNetProperties_v9_t, maxP2pBytes), 88);
	CHECK_EQ(offsetof(ncclNetProperties_v9_t, maxCollBytes), 96);
	CHECK_EQ(offsetof(ncclNetProperties_v11_t, maxMultiRequestSize), 104);
	/* v12: four more devices are 16 bytes. */
	CHECK_EQ(offsetof(ncclNetProperties_v12_t, vProps), 64);
	CHECK_EQ(offsetof(ncclNetProperties_v12_t, maxP2pBytes), 104);
	CHECK_EQ(offsetof(ncclNetProperties_v12_t, maxMultiRequestSize), 120);
	CHECK_EQ(offsetof(ncclNetProperties_v12_t, railId), 124);
	CHECK_EQ(offsetof(ncclNetProperties_v12_t, planeId), 126);
}

TEST(check_tables)
{
	CHECK_SIZES(ncclNet, 136, 152, 152, 160, 160, 176, 176);

#define CHECK_ORDER(type)                                                                                              \
	CHECK_EQ(offsetof(type, name), 0 * 8);                                                                         \
	CHECK_EQ(offsetof(type, init), 1 * 8);                                                                         \
	CHECK_EQ(offsetof(type, devices), 2 * 8);                                                                      \
	CHECK_EQ(offsetof(type, getProperties), 3 * 8);                                                                \
	CHECK_EQ(offsetof(type, listen), 4 * 8);                                                                       \
	CHECK_EQ(offsetof(type, connect), 5 * 8);                                                                      \
	CHECK_EQ(offsetof(type, accept), 6 * 8);                                                                       \
	CHECK_EQ(offsetof(type, regMr), 7 * 8);                                                                        \
	CHECK_EQ(offsetof(type, regMrDmaBuf), 8 * 8);                                                                  \
	CHECK_EQ(offsetof(type, deregMr), 9 * 8);                                                                      \
	CHECK_EQ(offsetof(type, isend), 10 * 8);                                                                       \
	CHECK_EQ(offsetof(type, irecv), 11 * 8);                                                                       \
	CHECK_EQ(offsetof(type, iflush), 12 * 8);                                                                      \
	CHECK_EQ(offsetof(type, test), 13 * 8);                                                                        \
	CHECK_EQ(offsetof(type, closeSend), 14 * 8);                                                                   \
	CHECK_EQ(offsetof(type, closeRecv), 15 * 8);                                                                   \
	CHECK_EQ(offsetof(type, closeListen), 16 * 8)
	CHECK_ORDER(ncclNet_v6_t);
	CHECK_ORDER(ncclNet_v7_t);
	CHECK_ORDER(ncclNet_v8_t);
	CHECK_ORDER(ncclNet_v9_t);
	CHECK_ORDER(ncclNet_v10_t);
	CHECK_ORDER(ncclNet_v11_t);
	CHECK_ORDER(ncclNet_v12_t);
	CHECK_EQ(offsetof(ncclNet_v7_t, getDeviceMr), 17 * 8);
	CHECK_EQ(offsetof(ncclNet_v7_t, irecvConsumed), 18 * 8);
	CHECK_EQ(offsetof(ncclNet_v12_t, getDeviceMr), 17 * 8);
	CHECK_EQ(offsetof(ncclNet_v12_t, irecvConsumed), 18 * 8);
	CHECK_EQ(offsetof(ncclNet_v9_t, makeVDevice), 19 * 8);
	CHECK_EQ(offsetof(ncclNet_v12_t, makeVDevice), 19 * 8);
	CHECK_EQ(offsetof(ncclNet_v11_t, finalize), 20 * 8);
	CHECK_EQ(offsetof(ncclNet_v11_t, setNetAttr), 21 * 8);
	CHECK_EQ(offsetof(ncclNet_v12_t, setNetAttr), 21 * 8);
}

TEST(check_small_types)
{
	CHECK_EQ(sizeof(ncclNetDeviceHandle_v7_t), 32);
	CHECK_EQ(sizeof(ncclNetDeviceHandle_v12_t), 32);
	CHECK_EQ(offsetof(ncclNetDeviceHandle_v7_t, netDeviceVersion), 4);
	CHECK_EQ(offsetof(ncclNetDeviceHandle_v7_t, handle), 8);
	CHECK_EQ(offsetof(ncclNetDeviceHandle_v7_t, size), 16);
	CHECK_EQ(offsetof(ncclNetDeviceHandle_v7_t, needsProxyProgress), 24);
	CHECK_EQ(sizeof(ncclNetVDeviceProps_v9_t), 20);
	CHECK_EQ(sizeof(ncclNetVDeviceProps_v12_t), 36);
	CHECK_EQ(sizeof(ncclNetCommConfig_v10_t), 4);
	CHECK_EQ(sizeof(ncclNetAttr_v11_t), 44);
	CHECK_EQ(offsetof(ncclNetAttr_v11_t, recvCommAttr), 16);
	CHECK_EQ(offsetof(ncclNetAttr_v11_t, op), 32);
	CHECK_EQ(offsetof(ncclNetAttr_v11_t, proto), 40);
	CHECK_EQ(sizeof(ncclNetSGE_v8_t), 24);
	CHECK_EQ(sizeof(((ncclNetSGE_v8_t *)0)->size), 4);
	CHECK_EQ(sizeof(ncclNetSGE_v9_t), 24);
	CHECK_EQ(sizeof(((ncclNetSGE_v9_t *)0)->size), 8);
}

TEST(check_collnet)
{
	/* Entries times eight: 15, two more in v8, makeVDevice in v9, finalize in v11. */
	CHECK_SIZES(ncclCollNet, 120, 120, 136, 144, 144, 152, 152);
	CHECK_EQ(offsetof(ncclCollNet_v6_t, iallreduce), 10 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v6_t, iflush), 11 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v7_t, closeListen), 14 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, connect), 5 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, reduceSupport), 6 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, deregMr), 9 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, iallreduce), 10 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, iallgather), 11 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, ireducescatter), 12 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, iflush), 13 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, test), 14 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, closeColl), 15 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, makeVDevice), 17 * 8);
	CHECK_EQ(offsetof(ncclCollNet_v12_t, finalize), 18 * 8);
}

/* The profiler's, from NCCL 2.28.9; v6 from 2.30.7. */
#define CHECK_DESCR(n, bytes, o1, o2, o3, o4, o5, o6, o7)                                                              \
	CHECK_EQ(sizeof(ncclProfilerEventDescr_v##n##_t), bytes);                                                      \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, parentObj), 8);                                             \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, rank), 16);                                                 \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, coll.seqNumber), o1);                                       \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, coll.func), o2);                                            \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, coll.count), o3);                                           \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, coll.root), o4);                                            \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, coll.proto), o5);                                           \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, p2p.count), o6);                                            \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, p2p.peer), o7);                                             \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, proxyOp.channelId), 28);                                    \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, proxyOp.peer), 32);                                         \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, proxyOp.isSend), 44);                                       \
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v##n##_t, proxyStep.step), 24);                                       \
	CHECK_EQ(sizeof(ncclProfiler_v##n##_t), 48)

TEST(check_profiler)
{
	CHECK_DESCR(1, 120, 40, 48, 72, 80, 107, 64, 72);
	CHECK_DESCR(2, 128, 40, 48, 72, 80, 120, 64, 72);
	CHECK_DESCR(3, 120, 40, 48, 72, 80, 112, 64, 72);
	CHECK_DESCR(4, 104, 24, 32, 56, 64, 96, 48, 56);
	CHECK_DESCR(5, 112, 24, 32, 56, 64, 96, 48, 56);
	CHECK_DESCR(6, 112, 24, 32, 56, 64, 96, 48, 56);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, coll.parentGroup), 104);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, ceColl.func), 32);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, ceColl.count), 56);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, ceColl.root), 64);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, ceColl.datatype), 72);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, ceColl.batchSize), 92);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, ceColl.stream), 104);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, ceCollSync.nRanks), 28);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, ceCollBatch.totalBytes), 32);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v6_t, ceCollBatch.useIntraSync), 40);
	CHECK_EQ(ncclProfileCeBatch, 1 << 14);
	CHECK_EQ(sizeof(((ncclProfilerEventDescr_v4_t *)0)->type), 1);
	CHECK_EQ(sizeof(((ncclProfilerEventDescr_v5_t *)0)->type), 8);
	CHECK_EQ(offsetof(ncclProfilerEventDescr_v5_t, collApi.graphCaptured), 64);
	CHECK_EQ(sizeof(ncclProfilerEventStateArgs_v3_t), 16);
	CHECK_EQ(sizeof(ncclProfilerEventStateArgs_v5_t), 8);
}

/* The tuner's: v6 from NCCL 2.30.7, v7 from 2.32. */
TEST(check_tuner)
{
	CHECK_EQ(sizeof(ncclTunerConstants_v5_t), 1152);
	CHECK_EQ(sizeof(ncclTunerConstants_v7_t), 1272);
	CHECK_EQ(offsetof(ncclTunerConstants_v7_t, llMaxBws), 672);
	CHECK_EQ(offsetof(ncclTunerConstants_v7_t, perChMaxNVLSTreeBws), 1152);
	CHECK_EQ(sizeof(ncclTuner_v6_t), 40);
	CHECK_EQ(offsetof(ncclTuner_v6_t, finalize), 24);
	CHECK_EQ(offsetof(ncclTuner_v6_t, getChunkSize), 32);
	CHECK_EQ(sizeof(ncclTuner_v7_t), 40);
	CHECK_EQ(offsetof(ncclTuner_v7_t, getChunkSize), 32);
}

/* From NCCL 2.28.9 and 2.30.7. */
TEST(check_env)
{
	CHECK_EQ(sizeof(ncclEnv_v1_t), 32);
	CHECK_EQ(offsetof(ncclEnv_v1_t, init), 8);
	CHECK_EQ(offsetof(ncclEnv_v1_t, getEnv), 24);
	CHECK_EQ(sizeof(ncclEnv_v2_t), 32);
	CHECK_EQ(offsetof(ncclEnv_v2_t, finalize), 16);
	CHECK_EQ(offsetof(ncclEnv_v2_t, getEnv), 24);
}

TEST(check_constants)
{
	CHECK_EQ(ncclSuccess, 0);
	CHECK_EQ(ncclUnhandledCudaError, 1);
	CHECK_EQ(ncclSystemError, 2);
	CHECK_EQ(ncclInternalError, 3);
	CHECK_EQ(ncclInvalidArgument, 4);
	CHECK_EQ(ncclInvalidUsage, 5);
	CHECK_EQ(ncclRemoteError, 6);
	CHECK_EQ(ncclInProgress, 7);
	CHECK_EQ(NCCL_LOG_WARN, 2);
	CHECK_EQ(NCCL_LOG_INFO, 3);
	CHECK_EQ(NCCL_LOG_TRACE, 5);
	CHECK_EQ(NCCL_NET, 0x10);
	CHECK_EQ(NCCL_ENV, 0x80);
	CHECK_EQ(NCCL_NET_HANDLE_MAXSIZE, 128);
	CHECK_EQ(NCCL_NET_MAX_REQUESTS, 32);
	CHECK_EQ(NCCL_MAX_NET_SIZE_BYTES, 1099511627776);
	CHECK_EQ(NCCL_MAX_NET_SIZE_BYTES_V8, 1073741824);
	CHECK_EQ(NCCL_MAX_COLLNET_SIZE_BYTES, 536870912);
	CHECK_EQ(NCCL_NET_DEVICE_UNPACK_VERSION, 7);
}
