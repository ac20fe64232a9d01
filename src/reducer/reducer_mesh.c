/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "reducer/reducer_mesh.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/text.h"

_Static_assert((int)NET_MESH_HELLO == (int)REDUCER_HEADER, "a HELLO is a message like any other");
_Static_assert((int)NET_MESH_TAG == (int)REDUCER_TAG_DATA, "behind it other messages of its tag follow");

static int64_t whose(const struct net_mesh *net, const void *hello, size_t size)
{
	const struct reducer_mesh *m = net->config.user;
	struct reducer_message msg;

	if (reducer_decode(hello, size, &msg) != GANTRY_OK || msg.kind != REDUCER_HELLO || msg.hello.job != m->job ||
	    msg.hello.count != m->count)
		return NET_MESH_NOBODY;
	return msg.hello.index;
}

void reducer_mesh_set_job(struct reducer_mesh *m, uint64_t job)
{
	const struct reducer_message msg = {.kind = REDUCER_HELLO, .hello = {m->own, m->count, job}};

	m->job = job;
	reducer_encode(&msg, m->net->hello);
}

gantry_result reducer_mesh_create(const struct reducer_mesh_config *config, struct reducer_mesh **ret_mesh)
{
	static const uint8_t not_yet[NET_MESH_HELLO];
	gantry_result r = GANTRY_OK;
	const uint32_t count = config->ranks + config->reducers;
	struct reducer_mesh *m = calloc(1, sizeof(*m));
	const struct net_mesh_config net = {.ctx = config->ctx,
					    .listen = config->listen,
					    .dev = config->dev,
					    .count = count,
					    .hello = not_yet,
					    .whose = whose,
					    .user = m};

	if (!m)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the connections of a job");
	m->count = count;
	m->ranks = config->ranks;
	m->own = config->own;
	m->stop = config->stop;
	TRY(net_mesh_create(&net, &m->net));
	m->ends = m->net->ends;
	m->dials = m->net->dials;
	reducer_mesh_set_job(m, config->job);
	*ret_mesh = m;
	m = NULL;
out:
	reducer_mesh_destroy(m);
	return r;
}

void reducer_mesh_destroy(struct reducer_mesh *m)
{
	if (m)
		net_mesh_destroy(m->net);
	free(m);
}

gantry_result reducer_mesh_dial(struct reducer_mesh *m, uint32_t index, const void *handle)
{
	return net_mesh_dial(m->net, index, handle);
}

void reducer_mesh_lose(struct reducer_mesh *m, uint32_t index, gantry_result r)
{
	net_mesh_lose(m->net, index, r);
}

gantry_result reducer_mesh_step(struct reducer_mesh *m)
{
	return net_mesh_step(m->net);
}

int reducer_mesh_has(const struct reducer_mesh *m, uint32_t first, uint32_t end)
{
	int complete = 1;

	for (uint32_t i = first; i < end; i++)
		complete &= net_mesh_has(m->net, i);
	return complete;
}

const char *reducer_mesh_missing(const struct reducer_mesh *m, char *buf, size_t size)
{
	buf[0] = 0;
	for (uint32_t i = 0; i < m->count; i++)
		if (!net_mesh_has(m->net, i))
			gantry_text_add(buf, size, "%s%s %u", *buf ? ", " : "", i < m->ranks ? "rank" : "reducer",
					i < m->ranks ? i : i - m->ranks);
	return buf;
}
