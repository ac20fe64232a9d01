/* SPDX-License-Identifier: Apache-2.0 */
/* What the user holds: a comm is one direction of a link, an mr a stretch of memory that its messages lie in. */
#ifndef GANTRY_NET_TCP_COMM_H
#define GANTRY_NET_TCP_COMM_H

#include "base/log.h"
#include "device/device.h"
#include "net/devmem.h"
#include "net/net.h"
#include "net/tcp/link.h"

enum comm_kind { COMM_SEND = 0x53454e44, COMM_RECV = 0x52454356, COMM_GONE = 0 };

struct tcp_comm {
	uint32_t kind; /* enum comm_kind */
	struct tcp_link *link;
	struct gantry_device *device; /* owned reference: whose memory may be registered; NULL: only host memory */
	enum devmem_kind source;      /* how payload reaches, and leaves, that memory */
	struct tcp_unpack *unpack;    /* owned; receiving with UNPACK */
	int plugin;		      /* NCCL is the user, see check_own in mr.c */
	uint32_t regs;		      /* stretches of memory registered so far; by the thread that registers */
	uint32_t in_use;	      /* a message was posted; relaxed */
};

struct tcp_mr {
	uint8_t *data;
	size_t size;
	int type;   /* GANTRY_NET_PTR_HOST or PTR_CUDA */
	int dmabuf; /* owned: the memory as a dma-buf, and where in it; -1 */
	uint64_t dmabuf_offset;
	struct tcp_txmem *txmem; /* owned: messages are sent from it without a copy; NULL: through the stage */
};

/* mr.c: entries of the table of net.h. */
gantry_result tcp_reg_mr(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr);
gantry_result tcp_reg_mr_dmabuf(struct gantry_net *net, void *comm, void *data, size_t size, int type, uint64_t offset,
				int fd, void **ret_mr);
gantry_result tcp_dereg_mr(struct gantry_net *net, void *comm, void *reg);
gantry_result tcp_get_device_mr(struct gantry_net *net, void *comm, void *mr, void **ret_dptr);

/* message.c: the same. */
gantry_result tcp_isend(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *reg,
			void **ret_request);
gantry_result tcp_irecv(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes, const int *tags,
			void **mrs, void **request);
gantry_result tcp_iflush(struct gantry_net *net, void *comm, int n, void **data, const int *sizes, void **mrs,
			 void **ret_request);
gantry_result tcp_test(struct gantry_net *net, void *request, int *ret_done, int *sizes);
gantry_result tcp_irecv_consumed(struct gantry_net *net, void *comm, int n, void *request);

/* Whether a message lies within its registration; `what` is the call that asks. mr may be NULL. */
gantry_result tcp_mr_check(const char *what, const struct tcp_mr *mr, const void *data, size_t size);

#endif
