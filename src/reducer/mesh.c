/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "reducer/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

gantry_result reducer_mesh_create(const struct reducer_mesh_config *config, struct reducer_mesh **ret_mesh)
{
	gantry_result r = GANTRY_OK;
	const uint32_t count = config->ranks + config->reducers;
	struct reducer_mesh *m = calloc(1, sizeof(*m));

	if (!m)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the connections of a job");
	m->ctx = config->ctx;
	m->dev = config->dev;
	m->listen = config->listen;
	m->count = count;
	m->ranks = config->ranks;
	m->own = config->own;
	m->stop = config->stop;
	m->hello = (struct reducer_hello){config->own, count, config->job};
	m->ends = calloc(count, sizeof(*m->ends));
	m->dials = calloc(count, sizeof(*m->dials));
	m->callers = calloc(count, sizeof(*m->callers));
	if (!m->ends || !m->dials || !m->callers)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the connections of a job");
	reducer_encode(&(struct reducer_message){.kind = REDUCER_HELLO, .hello = m->hello}, m->header);
	*ret_mesh = m;
	m = NULL;
out:
	reducer_mesh_destroy(m);
	return r;
}

static void close_end(struct reducer_mesh *m, uint32_t i)
{
	if (m->dials[i].known && !m->ends[i].out)
		NET(cancel_connect, m->dials[i].handle);
	NET(close_send, m->ends[i].out);
	NET(close_recv, m->ends[i].in);
	m->ends[i] = (struct reducer_end){0};
	m->dials[i].known = 0;
	m->dials[i].hello = NULL;
}

void reducer_mesh_destroy(struct reducer_mesh *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; m->ends && m->dials && m->callers && i < m->count; i++) {
		close_end(m, i);
		NET(close_recv, m->callers[i].in);
	}
	free(m->callers);
	free(m->dials);
	free(m->ends);
	free(m);
}

gantry_result reducer_mesh_dial(struct reducer_mesh *m, uint32_t index, const void *handle)
{
	struct reducer_dial *d = &m->dials[index];

	memcpy(d->handle, handle, sizeof(d->handle));
	TRY_NOW(NET(take_handle, d->handle));
	d->known = d->wanted = 1;
	return GANTRY_OK;
}

void reducer_mesh_lose(struct reducer_mesh *m, uint32_t index, gantry_result r)
{
	if (m->dials[index].lost == GANTRY_OK)
		m->dials[index].lost = r;
	close_end(m, index);
}

static gantry_result connect_out(struct reducer_mesh *m, uint32_t i)
{
	struct gantry_net_device_handle *none = NULL;
	void **hello = &m->dials[i].hello, *comm = NULL;

	TRY_NOW(NET(connect, m->ctx, m->dev, m->dials[i].handle, &comm, &none));
	if (!comm)
		return GANTRY_OK;
	m->ends[i].out = comm;
	TRY_NOW(NET(isend, comm, m->header, sizeof(m->header), REDUCER_TAG_DATA, NULL, hello));
	if (!*hello)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "a new connection does not accept a message");
	return GANTRY_OK;
}

/* It must be tested until it is out: a connection with an untested request holds small messages back, to coalesce them
 * with later ones. */
static gantry_result end_hello(struct reducer_dial *d)
{
	int done = 0;

	TRY_NOW(NET(test, d->hello, &done, NULL));
	if (done)
		d->hello = NULL;
	return GANTRY_OK;
}

static gantry_result step_out(struct reducer_mesh *m, uint32_t i)
{
	struct reducer_dial *d = &m->dials[i];

	if (d->known && !m->ends[i].out)
		TRY_NOW(connect_out(m, i));
	return d->hello ? end_hello(d) : GANTRY_OK;
}

/* An accepted connection: which party's is it? One with anything but a HELLO is closed, with a log line, and affects no
 * other connection: its rank will be missed. */
static void hear_hello(struct reducer_mesh *m, struct reducer_caller *c)
{
	struct reducer_message msg;
	int done = 0, size = 0;
	gantry_result r = NET(test, c->request, &done, &size);

	if (r == GANTRY_OK && !done)
		return;
	if (r == GANTRY_OK &&
	    (reducer_decode(c->hello, (size_t)size, &msg) != GANTRY_OK || msg.kind != REDUCER_HELLO ||
	     msg.hello.job != m->hello.job || msg.hello.count != m->count || !m->dials[msg.hello.index].wanted ||
	     m->dials[msg.hello.index].lost != GANTRY_OK || m->ends[msg.hello.index].in)) {
		LOG_WARN(NET, "refused %s: its hello is for another job, too late, or of another version",
			 gantry_net_tcp_peer(c->in));
		r = GANTRY_ERR_PROTOCOL;
	}
	if (r == GANTRY_OK)
		m->ends[msg.hello.index].in = c->in;
	else
		NET(close_recv, c->in);
	*c = (struct reducer_caller){0};
}

static gantry_result accept_in(struct reducer_mesh *m, struct reducer_caller *c)
{
	struct gantry_net_device_handle *none = NULL;
	void *data = c->hello;
	size_t size = sizeof(c->hello);
	int tag = REDUCER_TAG_DATA;

	TRY_NOW(NET(accept, m->listen, &c->in, &none));
	if (!c->in)
		return GANTRY_OK;
	c->request = NULL;
	TRY_NOW(NET(irecv, c->in, 1, &data, &size, &tag, NULL, &c->request));
	if (!c->request)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "a new connection does not accept a receive");
	return GANTRY_OK;
}

static int is_complete(const struct reducer_mesh *m, uint32_t i)
{
	const struct reducer_dial *d = &m->dials[i];

	return !d->wanted || d->lost != GANTRY_OK || (m->ends[i].out && !d->hello && m->ends[i].in);
}

int reducer_mesh_has(const struct reducer_mesh *m, uint32_t first, uint32_t end)
{
	int complete = 1;

	for (uint32_t i = first; i < end; i++)
		complete &= is_complete(m, i);
	return complete;
}

gantry_result reducer_mesh_step(struct reducer_mesh *m)
{
	int complete = 1;

	for (uint32_t i = 0; i < m->count; i++) {
		const struct reducer_dial *d = &m->dials[i];
		gantry_result r = step_out(m, i);

		if (r != GANTRY_OK && !d->optional)
			return r;
		if (r != GANTRY_OK)
			reducer_mesh_lose(m, i, r);
		if (m->callers[i].in)
			hear_hello(m, &m->callers[i]);
	}
	for (uint32_t i = 0; i < m->count; i++) {
		complete &= is_complete(m, i);
		if (!complete && !m->callers[i].in)
			TRY_NOW(accept_in(m, &m->callers[i]));
	}
	return complete ? GANTRY_OK : GANTRY_AGAIN;
}

const char *reducer_mesh_missing(const struct reducer_mesh *m, char *buf, size_t size)
{
	buf[0] = 0;
	for (uint32_t i = 0; i < m->count; i++)
		if (!is_complete(m, i))
			gantry_text_add(buf, size, "%s%s %u", *buf ? ", " : "", i < m->ranks ? "rank" : "reducer",
					i < m->ranks ? i : i - m->ranks);
	return buf;
}
