/* SPDX-License-Identifier: Apache-2.0 */
/* What kernel.c and kernel_tx.c share. */
#ifndef GANTRY_NET_DEVMEM_KERNEL_H
#define GANTRY_NET_DEVMEM_KERNEL_H

#include "net/devmem.h"

/* A dma-buf of memory that must be whole pages; the fd is the caller's. */
gantry_result devmem_export(const struct devmem_memory *memory, int *ret_fd);

gantry_result devmem_kernel_bind_tx(const struct devmem_memory *memory, const char *nic, struct devmem_tx **ret_tx);
void devmem_kernel_unbind_tx(struct devmem_tx *t);
ssize_t devmem_kernel_send(struct devmem_tx *t, int fd, uint64_t offset, size_t len, int flags);
int devmem_kernel_completed(struct devmem_tx *t, int fd, uint32_t *ret_lo, uint32_t *ret_hi);
void devmem_kernel_forget(struct devmem_tx *t, int fd);

#endif
