/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/mesh.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

gantry_result net_mesh_create(const struct net_mesh_config *config, struct net_mesh **ret_mesh)
{
	gantry_result r = GANTRY_OK;
	struct net_mesh *m = calloc(1, sizeof(*m));

	if (!m)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the connections of a mesh");
	m->config = *config;
	memcpy(m->hello, config->hello, sizeof(m->hello));
	m->ends = calloc(config->count, sizeof(*m->ends));
	m->dials = calloc(config->count, sizeof(*m->dials));
	m->callers = calloc(config->count, sizeof(*m->callers));
	if (!m->ends || !m->dials || !m->callers)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the connections of a mesh");
	*ret_mesh = m;
	m = NULL;
out:
	net_mesh_destroy(m);
	return r;
}

static void close_end(struct net_mesh *m, uint32_t i)
{
	if (m->dials[i].known && !m->ends[i].out)
		NET(cancel_connect, m->dials[i].handle);
	NET(close_send, m->ends[i].out);
	NET(close_recv, m->ends[i].in);
	m->ends[i] = (struct net_mesh_end){0};
	m->dials[i].known = false;
	m->dials[i].hello = NULL;
}

void net_mesh_destroy(struct net_mesh *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; m->ends && m->dials && m->callers && i < m->config.count; i++) {
		close_end(m, i);
		NET(close_recv, m->callers[i].in);
	}
	free(m->callers);
	free(m->dials);
	free(m->ends);
	free(m);
}

gantry_result net_mesh_dial(struct net_mesh *m, uint32_t index, const void *handle)
{
	struct net_mesh_dial *d = &m->dials[index];

	memcpy(d->handle, handle, sizeof(d->handle));
	TRY_NOW(NET(take_handle, d->handle));
	d->known = d->wanted = true;
	return GANTRY_OK;
}

void net_mesh_lose(struct net_mesh *m, uint32_t index, gantry_result r)
{
	if (m->dials[index].lost == GANTRY_OK)
		m->dials[index].lost = r;
	close_end(m, index);
}

static gantry_result connect_out(struct net_mesh *m, uint32_t i)
{
	struct gantry_net_device_handle *none = NULL;
	void **hello = &m->dials[i].hello, *comm = NULL;

	TRY_NOW(NET(connect, m->config.ctx, m->config.dev, m->dials[i].handle, &comm, &none));
	if (!comm)
		return GANTRY_OK;
	m->ends[i].out = comm;
	TRY_NOW(NET(isend, comm, m->hello, sizeof(m->hello), NET_MESH_TAG, NULL, hello));
	if (!*hello)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "a new connection does not accept a message");
	return GANTRY_OK;
}

/* It must be tested until it is out: a connection with an untested request holds small messages back, to coalesce them
 * with later ones. */
static gantry_result end_hello(struct net_mesh_dial *d)
{
	int done = 0;

	TRY_NOW(NET(test, d->hello, &done, NULL));
	if (done)
		d->hello = NULL;
	return GANTRY_OK;
}

static gantry_result step_out(struct net_mesh *m, uint32_t i)
{
	struct net_mesh_dial *d = &m->dials[i];

	if (d->known && !m->ends[i].out)
		TRY_NOW(connect_out(m, i));
	return d->hello ? end_hello(d) : GANTRY_OK;
}

static bool is_expected(const struct net_mesh *m, int64_t from)
{
	return from >= 0 && from < m->config.count && m->dials[from].wanted && m->dials[from].lost == GANTRY_OK &&
	       !m->ends[from].in;
}

/* An accepted connection: which party's is it? One with anything but a hello is closed, with a log line, and affects no
 * other connection: its party will be missed. */
static void hear_hello(struct net_mesh *m, struct net_mesh_caller *c)
{
	int64_t from = NET_MESH_NOBODY;
	int done = 0, size = 0;
	gantry_result r = NET(test, c->request, &done, &size);

	if (r == GANTRY_OK && !done)
		return;
	if (r == GANTRY_OK)
		from = m->config.whose(m, c->hello, (size_t)size);
	if (r == GANTRY_OK && is_expected(m, from)) {
		m->ends[from].in = c->in;
	} else {
		if (r == GANTRY_OK)
			LOG_WARN(NET, "refused %s: its hello is for another job, too late, or of another version",
				 gantry_net_tcp_peer(c->in));
		NET(close_recv, c->in);
	}
	*c = (struct net_mesh_caller){0};
}

static gantry_result accept_in(struct net_mesh *m, struct net_mesh_caller *c)
{
	struct gantry_net_device_handle *none = NULL;
	void *data = c->hello;
	size_t size = sizeof(c->hello);
	int tag = NET_MESH_TAG;

	TRY_NOW(NET(accept, m->config.listen, &c->in, &none));
	if (!c->in)
		return GANTRY_OK;
	c->request = NULL;
	TRY_NOW(NET(irecv, c->in, 1, &data, &size, &tag, NULL, &c->request));
	if (!c->request)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "a new connection does not accept a receive");
	return GANTRY_OK;
}

bool net_mesh_has(const struct net_mesh *m, uint32_t i)
{
	const struct net_mesh_dial *d = &m->dials[i];

	return !d->wanted || d->lost != GANTRY_OK || (m->ends[i].out && !d->hello && m->ends[i].in);
}

gantry_result net_mesh_step(struct net_mesh *m)
{
	bool complete = true;

	for (uint32_t i = 0; i < m->config.count; i++) {
		gantry_result r = step_out(m, i);

		if (r != GANTRY_OK && !m->dials[i].optional)
			return r;
		if (r != GANTRY_OK)
			net_mesh_lose(m, i, r);
		if (m->callers[i].in)
			hear_hello(m, &m->callers[i]);
	}
	for (uint32_t i = 0; i < m->config.count; i++) {
		complete &= net_mesh_has(m, i);
		if (!complete && !m->callers[i].in)
			TRY_NOW(accept_in(m, &m->callers[i]));
	}
	return complete ? GANTRY_OK : GANTRY_AGAIN;
}
