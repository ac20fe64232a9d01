/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is registered with the network: a link's own, and users' buffers.
 *
 * Users' buffers are registered with each link that moves them, or once for all connections of the context if the
 * plugin says that this is enough (regIsGlobal). Such a registration is found by its range, and goes with the last link
 * that uses it. Only buffers of gantry_comm_register come here, and those are given back when they are deregistered, or
 * freed by gantry_mem_free (comm/memory.c): no address is ever kept that the program did not ask to keep.
 */
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

void net_globals_init(struct net_context *x)
{
	net_globals_mu_lock(&x->globals_mu);
	gantry_list_init(&x->globals);
	net_globals_mu_unlock(&x->globals_mu);
}

static struct net_global *find_global(struct net_context *x, const char *p, size_t size, int type)
	REQUIRES(net_globals_mu)
{
	ASSERT_HELD(&x->globals_mu);
	gantry_list_each_entry (g, &x->globals, struct net_global, node) {
		if (g->type == type && p >= g->base && p + size <= g->base + g->size)
			return g;
	}
	return NULL;
}

/* The one that is there, or a new one. */
static gantry_result global_get(struct net_link *l, char *p, size_t size, int type, struct net_global **ret_global)
{
	struct net_context *x = l->context;
	gantry_result r = GANTRY_OK;
	struct net_global *g, *made = NULL;

	net_globals_mu_lock(&x->globals_mu);
	g = find_global(x, p, size, type);
	if (!g) {
		made = calloc(1, sizeof(*made));
		if (!made)
			FAIL(GANTRY_ERR_NOMEM, "no memory to register a buffer");
		made->base = p;
		made->size = size;
		made->type = type;
		TRY(net_link_register(l, p, size, type, &made->mr));
		gantry_list_append(&x->globals, &made->node);
		g = made;
		made = NULL;
	}
	g->refs++;
	*ret_global = g;
out:
	net_globals_mu_unlock(&x->globals_mu);
	free(made);
	return r;
}

static gantry_result global_put(struct net_link *l, struct net_global *g)
{
	struct net_context *x = l->context;
	gantry_result r = GANTRY_OK;

	net_globals_mu_lock(&x->globals_mu);
	ASSERT(g->refs > 0);
	if (--g->refs == 0) {
		gantry_list_remove(&g->node);
		r = x->net->ops->dereg_mr(x->net, l->comm, g->mr);
		free(g);
	}
	net_globals_mu_unlock(&x->globals_mu);
	return r;
}

static gantry_result mem_register(struct net_link *l, struct net_mem *m, int type)
{
	if (!l->context->props.reg_is_global)
		return net_link_register(l, m->base, m->size, type, &m->mr);
	TRY_NOW(global_get(l, m->base, m->size, type, &m->global));
	m->mr = m->global->mr;
	return GANTRY_OK;
}

static gantry_result mem_deregister(struct net_link *l, struct net_mem *m)
{
	struct gantry_net *net = l->context->net;
	gantry_result r = m->global ? global_put(l, m->global) : net->ops->dereg_mr(net, l->comm, m->mr);

	gantry_list_remove(&m->node);
	free(m);
	return r;
}

void net_link_forget(struct net_link *l, struct net_mem *m)
{
	mem_deregister(l, m); /* it has logged what is wrong */
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
	TRY(mem_register(l, m, info.kind == GANTRY_MEM_DEVICE ? GANTRY_NET_PTR_CUDA : GANTRY_NET_PTR_HOST));
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
	if (--m->refs == 0)
		r = mem_deregister(l, m);
	net_link_mu_unlock(&l->mu);
	return r;
}
