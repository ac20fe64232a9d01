/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the user registers: whose it may be, and what is prepared for sending from it. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "net/tcp/comm.h"
#include "net/tcp/stage.h"
#include "net/tcp/txmem.h"

/* How many NCCL has of its own, one per protocol. */
enum { OWN_BUFFERS = 3 };

static gantry_result check_type(const char *what, const struct tcp_comm *comm, int type)
{
	if (type == GANTRY_NET_PTR_HOST || (type == GANTRY_NET_PTR_CUDA && comm && comm->device))
		return GANTRY_OK;
	FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s of memory type %d: this network takes host memory%s", what, type,
		 type == GANTRY_NET_PTR_CUDA ? " unless it receives into device memory (GANTRY_UNPACK)" : "");
}

/*
 * NCCL registers its own buffers right after it has connected, one per protocol; that of LL is in host memory on the
 * sending side and in device memory on the receiving side (seen with 2.28.9). Device memory that it registers later, or
 * more of it, are buffers of its user: these would go around the unpack queue. NCCL goes on without when it is refused,
 * but both ends must refuse, because they choose the size of messages by it. (Until 2.24 it did not even ask plugins
 * that unpack.)
 */
static gantry_result check_own(const struct tcp_comm *c, int type)
{
	if (!c->plugin || type != GANTRY_NET_PTR_CUDA || (c->regs < OWN_BUFFERS && !load_relaxed(&c->in_use)))
		return GANTRY_OK;
	gantry_set_last_error("regMr of a user's buffer: with UNPACK messages go through NCCL's own buffers");
	LOG_INFO(NET, "regMr of a user's buffer is refused: with UNPACK messages go through NCCL's own buffers (%s)",
		 c->link->session.peer);
	return GANTRY_ERR_UNSUPPORTED;
}

gantry_result tcp_reg_mr(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr)
{
	struct tcp_comm *c = comm;
	struct tcp_mr *mr;
	gantry_result r = check_type("regMr", c, type);

	(void)net;
	if (r != GANTRY_OK)
		return r;
	if (!data && size)
		FAIL_NOW(GANTRY_ERR_INVALID, "regMr of %zu bytes at NULL", size);
	if ((uintptr_t)data + size < (uintptr_t)data)
		FAIL_NOW(GANTRY_ERR_INVALID, "regMr of %zu bytes at %p wraps around the address space", size, data);
	if (type == GANTRY_NET_PTR_CUDA)
		r = check_own(c, type);
	if (r == GANTRY_OK && type == GANTRY_NET_PTR_CUDA && c->kind == COMM_SEND)
		r = tcp_link_stage(c->link, c->device);
	if (r != GANTRY_OK)
		return r;
	mr = malloc(sizeof(*mr));
	if (!mr)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a registration");
	*mr = (struct tcp_mr){.data = data, .size = size, .type = type, .dmabuf = -1};
	if (c)
		c->regs++;
	if (type == GANTRY_NET_PTR_CUDA && c->kind == COMM_SEND && size) {
		const struct devmem_source_ops *source = tcp_txmem_source(c->link, c->source, c->device);

		/* It has said why not: through the stage then. */
		if (source && tcp_txmem_bind(c->link, source, c->device, data, size, &mr->txmem) != GANTRY_OK)
			mr->txmem = NULL;
	}
	*ret_mr = mr;
	return GANTRY_OK;
}

gantry_result tcp_reg_mr_dmabuf(struct gantry_net *net, void *comm, void *data, size_t size, int type, uint64_t offset,
				int fd, void **ret_mr)
{
	gantry_result r = check_type("regMrDmaBuf", comm, type);
	struct tcp_mr *mr;
	void *reg;
	int copy;

	if (r != GANTRY_OK)
		return r;
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		FAIL_NOW(GANTRY_ERR_INVALID, "regMrDmaBuf: file descriptor %d: %s", fd, strerror(errno));
	r = tcp_reg_mr(net, comm, data, size, type, &reg);
	if (r != GANTRY_OK) {
		close(copy);
		return r;
	}
	mr = reg;
	mr->dmabuf = copy;
	mr->dmabuf_offset = offset;
	*ret_mr = mr;
	return GANTRY_OK;
}

gantry_result tcp_dereg_mr(struct gantry_net *net, void *comm, void *reg)
{
	struct tcp_mr *mr = reg;

	(void)net;
	(void)comm;
	if (mr && mr->dmabuf >= 0)
		close(mr->dmabuf);
	if (mr)
		tcp_txmem_free(mr->txmem);
	free(mr);
	return GANTRY_OK;
}

/* NCCL asks for it with every UNPACK connection and hands it to kernels, which do not use it. */
gantry_result tcp_get_device_mr(struct gantry_net *net, void *comm, void *mr, void **ret_dptr)
{
	struct tcp_mr *m = mr;

	(void)net;
	(void)comm;
	if (!m)
		FAIL_NOW(GANTRY_ERR_INVALID, "getDeviceMr of no registration");
	*ret_dptr = m->data;
	return GANTRY_OK;
}

/* NCCL always passes the registration; other callers may pass NULL. */
gantry_result tcp_mr_check(const char *what, const struct tcp_mr *mr, const void *data, size_t size)
{
	if (!data && size)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s of %zu bytes at NULL", what, size);
	if (mr && size &&
	    ((const uint8_t *)data < mr->data || size > mr->size ||
	     (size_t)((const uint8_t *)data - mr->data) > mr->size - size))
		FAIL_NOW(GANTRY_ERR_INVALID, "%s of %zu bytes at %p is outside its registration of %zu bytes at %p",
			 what, size, data, mr->size, (void *)mr->data);
	return GANTRY_OK;
}
