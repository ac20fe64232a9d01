/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices and streams of Gantry's own API.
 *
 * A device is a GPU or the host itself, whose "kernels" run on CPU threads: programs written for one run on the other.
 * No CUDA or HIP headers are needed; a CUstream, cudaStream_t or hipStream_t is passed to gantry_stream_wrap as a void
 * pointer. AMD's GPUs (GANTRY_DEVICE_HIP) are compiled for and run against a stand-in for the HIP runtime; no such GPU has
 * run them yet.
 *
 * THREADS. All calls may be made by any thread, at the same time too. A device or stream is closed or destroyed when no
 * other call uses it, and what came from a device before the device itself.
 */
#ifndef GANTRY_DEVICE_H
#define GANTRY_DEVICE_H

#include <stddef.h>

#include "gantry/result.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gantry_device;
struct gantry_stream;

enum gantry_device_kind { GANTRY_DEVICE_HOST = 0, GANTRY_DEVICE_CUDA = 1, GANTRY_DEVICE_HIP = 2 };

/* Opens a device, or takes another reference to it. index: the GPU's number; 0 for the host. */
GANTRY_API gantry_result gantry_device_open(enum gantry_device_kind kind, int index, struct gantry_device **ret_dev);
GANTRY_API void gantry_device_close(struct gantry_device *dev);
GANTRY_API const char *gantry_device_name(const struct gantry_device *dev);

/* Memory of the device, zeroed. What comes from here can be shared with other processes, which makes transfers of
 * registered buffers faster. */
GANTRY_API gantry_result gantry_mem_alloc(struct gantry_device *dev, size_t size, void **ret_ptr);
GANTRY_API gantry_result gantry_mem_free(struct gantry_device *dev, void *ptr);
/* Between any two of host and device memory; returns when done. */
GANTRY_API gantry_result gantry_mem_copy(struct gantry_device *dev, void *dst, const void *src, size_t size);

GANTRY_API gantry_result gantry_stream_create(struct gantry_device *dev, struct gantry_stream **ret_stream);
GANTRY_API gantry_result gantry_stream_wrap(struct gantry_device *dev, void *native, struct gantry_stream **ret_stream);
/*
 * Sync waits for what is in the stream, query asks whether that is over (GANTRY_AGAIN: it is busy).
 *
 * A communicator that fails leaves work undone, and no stream ever passes that for a result. On the host device the stream
 * stops there: sync and query return the communicator's error, and nothing that is queued behind it runs, on streams that
 * wait for an event behind it neither. On a GPU, whose streams cannot return an error, the stream stays busy, and
 * gantry_comm_error says why. Both last until the program ends the communicator (gantry_comm_abort, gantry_comm_revoke,
 * gantry_comm_shrink with abort, gantry_comm_destroy); then the stream goes on with what was queued. A sync that began
 * before that end still returns the error on the host device.
 */
GANTRY_API gantry_result gantry_stream_sync(struct gantry_device *dev, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_stream_query(struct gantry_device *dev, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_stream_destroy(struct gantry_device *dev, struct gantry_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
