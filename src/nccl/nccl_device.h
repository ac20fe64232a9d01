/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's device API between nccl_window.c, which makes windows that kernels and calls know, nccl_device.c, which makes device
 * communicators, and nccl_queue.c, the queues of their kernels. docs/design/0042 has the why.
 *
 * Ranks make windows together, so all of them count alike. The n-th window is the n-th memory of the network behind its own, whether it
 * still exists or not: the queues may come later than windows.
 */
#ifndef GANTRY_NCCL_NCCL_DEVICE_H
#define GANTRY_NCCL_NCCL_DEVICE_H

#include "abi/nccl_device_api.h"
#include "comm/gin.h"
#include "nccl/nccl.h"

enum { NCCL_DEVICE_WORDS = 65536 }; /* signals of a context, and counters: NCCL's ids have 16 bits */

/* ---- nccl_queue.c ---- */

/* What a device communicator has of them, in each context. */
struct nccl_words {
	uint32_t signal, signals, counter, counters; /* first and how many */
};
gantry_result nccl_queues_open(struct gantry_comm *comm, struct gantry_gin **ret_gin);
/* What kernels need of a context. */
void *nccl_queues_handle(const struct gantry_gin *k, uint32_t context);
void nccl_queues_clear(struct gantry_gin *k, const struct nccl_words *w);

/* ---- nccl_window.c ---- */

struct nccl_window {
	struct gantry_list node; /* of its communicator */
	struct ncclComm *c;
	struct gantry_window *window; /* for calls; NULL: for kernels alone */
	uint32_t number;	      /* the same on all ranks, from 1 */
	uint32_t memory;	      /* of the network; 0: there are no queues yet */
	char *base;
	char *device_base; /* as kernels address it */
	size_t size;
	struct ncclWindow_vidmem own; /* as it is in the device's memory, */
	ncclWindow_t handle;	      /* there */
};

/* All of a communicator; the thread in a call of it has them. */
struct nccl_windows {
	struct gantry_list all;
	uint32_t made;
	struct gantry_gin *gin; /* NULL: no device communicator wanted queues */
	struct {
		struct ncclDevCommWindowTable *host, *device;
	} * tables; /* owned; for kernels that look for a window by address */
	uint32_t ntables;
	struct gantry_list devices; /* nccl_device.c: device communicators */
};

/* NULL after a line in the log: not a window of the communicator. c NULL: of any. */
struct nccl_window *nccl_window_of(const struct ncclComm *c, ncclWindow_t handle, const char *function);
/* The number is used up in any case. Local but for memory of the network, on which ranks agree behind it. */
gantry_result nccl_window_make(struct ncclComm *c, struct gantry_window *window, void *ptr, size_t size,
			       struct nccl_window **ret_window);
/* Kernels and the network know it no more. */
void nccl_window_free(struct nccl_window *w);
/* Kernels find windows by address from now on. */
gantry_result nccl_windows_list(struct ncclComm *c);
/* There are queues now: all windows so far get memory of the network. */
gantry_result nccl_windows_connect(struct ncclComm *c, struct gantry_gin *gin);

/* The communicator has ended. kernels: some may still run. */
void nccl_windows_end(struct ncclComm *c, bool kernels);

/* ---- nccl_device.c ---- */

/* A new communicator; and one that has ended. failed: kernels may still run, so what they look at stays. */
gantry_result nccl_device_init(struct ncclComm *c);
void nccl_device_end(struct ncclComm *c, bool failed);

#endif
