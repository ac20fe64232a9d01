/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is registered with the network: a link's own, and users' buffers. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "transport/net_priv.h"

/* Device memory for a network that reads it: by dma-buf where the network and the device have that. */
gantry_result net_link_register(struct net_link *l, char *p, size_t size, int type, void **ret_mr)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = l->context->net;
	uint64_t offset = 0;
	int fd = -1;

	if (type == GANTRY_NET_PTR_CUDA && (l->context->props.ptr_support & GANTRY_NET_PTR_DMABUF) &&
	    l->device->ops->dmabuf_export(l->device, p, size, &fd, &offset) == GANTRY_OK)
		r = net->ops->reg_mr_dmabuf(net, l->comm, p, size, type, offset, fd, ret_mr);
	else
		r = net->ops->reg_mr(net, l->comm, p, size, type, ret_mr);
	if (fd >= 0)
		close(fd);
	return r;
}

void *net_link_mr_of(struct net_link *l, const void *p, uint64_t size)
{
	void *mr = NULL;

	net_link_mu_lock(&l->mu);
	gantry_list_each_entry (m, &l->memory, struct net_mem, node) {
		if ((const char *)p >= m->base && (const char *)p + size <= m->base + m->size) {
			mr = m->mr;
			break;
		}
	}
	net_link_mu_unlock(&l->mu);
	return mr;
}

gantry_result net_register(struct gantry_proxy_conn *pc, void *ptr, size_t size, void **ret_handle)
{
	gantry_result r = GANTRY_OK;
	struct net_link *l = ((struct net_conn *)pc->resources)->link;
	struct gantry_mem_info info;
	struct net_mem *m = NULL;

	net_link_mu_lock(&l->mu);
	/* The channels of a link ask one after the other. */
	gantry_list_each_entry (it, &l->memory, struct net_mem, node) {
		if (it->base == ptr && it->size == size) {
			it->refs++;
			*ret_handle = it;
			goto out;
		}
	}
	TRY(l->device->ops->pointer(l->device, ptr, &info));
	if (info.kind == GANTRY_MEM_DEVICE && !l->context->gdr) {
		r = GANTRY_ERR_UNSUPPORTED; /* no news: the caller copies through a ring */
		goto out;
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		FAIL(GANTRY_ERR_NOMEM, "no memory to register a buffer");
	m->base = ptr;
	m->size = size;
	m->refs = 1;
	TRY(net_link_register(l, ptr, size, info.kind == GANTRY_MEM_DEVICE ? GANTRY_NET_PTR_CUDA : GANTRY_NET_PTR_HOST,
			      &m->mr));
	gantry_list_append(&l->memory, &m->node);
	*ret_handle = m;
	m = NULL;
out:
	net_link_mu_unlock(&l->mu);
	free(m);
	return r;
}

gantry_result net_deregister(struct gantry_proxy_conn *pc, void *handle)
{
	struct net_link *l = ((struct net_conn *)pc->resources)->link;
	struct net_mem *m = handle;
	gantry_result r = GANTRY_OK;

	net_link_mu_lock(&l->mu);
	ASSERT(m->refs > 0);
	if (--m->refs == 0) {
		gantry_list_remove(&m->node);
		r = l->context->net->ops->dereg_mr(l->context->net, l->comm, m->mr);
		free(m);
	}
	net_link_mu_unlock(&l->mu);
	return r;
}
