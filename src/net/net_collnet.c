/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables differ by version in a few entries: init and listen have contexts from v11 on, registrations size_t from v8 on,
 * counts from v9 on, and v8 put entries before the last ones. All else stands where it stood.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/net_collnet.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/collnet_v12.h"
#include "base/log.h"
#include "base/mutex.h"
#include "net/compat.h"

enum { COLLNET_MRS = 2 };

struct gantry_collnet_plugin {
	int version, dev;
	union {
		const void *raw;
		const ncclCollNet_v7_t *v7; /* v6 too */
		const ncclCollNet_v8_t *v8;
		const ncclCollNet_v9_t *v9; /* v10 too */
		const ncclCollNet_v11_t *v11;
		const ncclCollNet_v12_t *v12;
	} t;
	void *ctx, *listen, *comm;
	size_t max_bytes;
	void *mrs[COLLNET_MRS];
	int nmrs;
	char label[96];
};

MUTEX_KIND(collnet_mu);
static struct collnet_mu collnet_mu_one;
/* Before v11 a table is begun once, for the life of the process. */
enum { TABLES_BEGUN = 16 };
static const void *begun[TABLES_BEGUN] GUARDED_BY(collnet_mu);

/* Where it is noted, or may be; NULL: there are too many tables. */
static const void **note_of(const void *table) REQUIRES(collnet_mu)
{
	for (int i = 0; i < TABLES_BEGUN; i++)
		if (!begun[i] || begun[i] == table)
			return &begun[i];
	return NULL;
}

#define RESULT(p, call, ...) gantry_compat_result((p)->label, "collNet " #call, __VA_ARGS__)
/* Entries that came to stand behind those of v8. */
#define LATER(p, entry, ...)                                                                                           \
	RESULT(p, entry, (p)->version < 8 ? (p)->t.v7->entry(__VA_ARGS__) : (p)->t.v12->entry(__VA_ARGS__))

static gantry_result find_table(const struct gantry_loader *loader, int version, struct gantry_collnet_plugin *p)
{
	char symbol[32];

	for (int v = GANTRY_NET_VERSION_MAX; !p->t.raw && v >= GANTRY_NET_VERSION_MIN; v--) {
		if (version && v != version)
			continue;
		snprintf(symbol, sizeof(symbol), "ncclCollNetPlugin_v%d", v);
		p->t.raw = gantry_loader_symbol(loader, symbol);
		p->version = v;
	}
	if (!p->t.raw)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s has no collNet table", gantry_loader_path(loader));
	snprintf(p->label, sizeof(p->label), "%.40s (v%d)", p->t.v12->name, p->version);
	return GANTRY_OK;
}

static gantry_result begin_table(const struct gantry_loader *loader, uint64_t comm_id, struct gantry_collnet_plugin *p)
{
	ncclDebugLogger_t log = gantry_loader_logger(loader);
	gantry_result r = GANTRY_OK;
	const void **note;

	if (p->version >= 11)
		return RESULT(p, init, p->t.v12->init(&p->ctx, comm_id, log));
	collnet_mu_lock(&collnet_mu_one);
	note = note_of(p->t.raw);
	if (!note || !*note)
		r = RESULT(p, init, p->t.v7->init(log));
	if (note && r == GANTRY_OK)
		*note = p->t.raw;
	collnet_mu_unlock(&collnet_mu_one);
	return r;
}

#define MAX_BYTES(p, version)                                                                                          \
	do {                                                                                                           \
		ncclNetProperties_##version##_t props = {0};                                                           \
                                                                                                                       \
		TRY_NOW(RESULT(p, getProperties, (p)->t.version->getProperties((p)->dev, &props)));                    \
		(p)->max_bytes = props.maxCollBytes;                                                                   \
	} while (0)

static gantry_result check_device(struct gantry_collnet_plugin *p)
{
	int n = 0;

	TRY_NOW(RESULT(p, devices, p->t.v12->devices(&n)));
	if (p->dev >= n)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s: device %d of %d in collNet's table", p->label, p->dev, n);
	p->max_bytes = SIZE_MAX;
	if (p->version >= 12)
		MAX_BYTES(p, v12);
	else if (p->version == 11)
		MAX_BYTES(p, v11);
	else if (p->version >= 9)
		MAX_BYTES(p, v9);
	return GANTRY_OK;
}

gantry_result gantry_collnet_plugin_open(const struct gantry_loader *loader, int version, uint64_t comm_id, int dev,
					 struct gantry_collnet_plugin **ret_plugin)
{
	gantry_result r = GANTRY_OK;
	struct gantry_collnet_plugin *p = calloc(1, sizeof(*p));

	if (!p)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a collNet table");
	p->dev = dev;
	TRY(find_table(loader, version, p));
	TRY(begin_table(loader, comm_id, p));
	TRY(check_device(p));
	*ret_plugin = p;
	p = NULL;
out:
	gantry_collnet_plugin_close(p);
	return r;
}

void gantry_collnet_plugin_close(struct gantry_collnet_plugin *p)
{
	if (!p)
		return;
	for (int i = 0; i < p->nmrs; i++)
		p->t.v12->deregMr(p->comm, p->mrs[i]);
	if (p->comm)
		LATER(p, closeColl, p->comm);
	if (p->listen)
		LATER(p, closeListen, p->listen);
	if (p->version >= 11 && p->ctx)
		p->t.v12->finalize(p->ctx);
	free(p);
}

size_t gantry_collnet_plugin_max_bytes(const struct gantry_collnet_plugin *p)
{
	return p->max_bytes;
}

gantry_result gantry_collnet_plugin_listen(struct gantry_collnet_plugin *p,
					   unsigned char ret_handle[GANTRY_NET_HANDLE_SIZE])
{
	if (p->version >= 11)
		return RESULT(p, listen, p->t.v12->listen(p->ctx, p->dev, ret_handle, &p->listen));
	return RESULT(p, listen, p->t.v7->listen(p->dev, ret_handle, &p->listen));
}

/* When it fails NCCL forgets the listener, so plugins free it themselves. */
gantry_result gantry_collnet_plugin_connect(struct gantry_collnet_plugin *p, const void *const *handles, uint32_t ranks,
					    uint32_t rank)
{
	void *listen = p->listen, *comm = NULL, **own = (void **)(uintptr_t)handles;

	p->listen = NULL;
	TRY_NOW(RESULT(p, connect, p->t.v12->connect(own, (int)ranks, (int)rank, listen, &comm)));
	if (!comm)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s: collNet connect returned no communicator", p->label);
	p->comm = comm;
	return LATER(p, closeListen, listen);
}

int gantry_collnet_plugin_takes(const struct gantry_collnet_plugin *p, uint32_t type, uint32_t op)
{
	int takes = 0;

	return p->t.v12->reduceSupport((ncclDataType_t)type, (ncclRedOp_t)op, &takes) == ncclSuccess && takes;
}

gantry_result gantry_collnet_plugin_register(struct gantry_collnet_plugin *p, void *data, size_t size, void **ret_mr)
{
	void *mr = NULL;

	if (p->nmrs == COLLNET_MRS || size > INT_MAX)
		FAIL_NOW(GANTRY_ERR_LIMIT, "%s: %zu bytes cannot be registered", p->label, size);
	if (p->version >= 8)
		TRY_NOW(RESULT(p, regMr, p->t.v12->regMr(p->comm, data, size, NCCL_PTR_HOST, &mr)));
	else
		TRY_NOW(RESULT(p, regMr, p->t.v7->regMr(p->comm, data, (int)size, NCCL_PTR_HOST, &mr)));
	p->mrs[p->nmrs++] = *ret_mr = mr;
	return GANTRY_OK;
}

gantry_result gantry_collnet_plugin_all_reduce(struct gantry_collnet_plugin *p,
					       const struct gantry_collnet_reduction *q, void **ret_request)
{
	const ncclDataType_t type = (ncclDataType_t)q->type;
	const ncclRedOp_t op = (ncclRedOp_t)q->op;
	void *request = NULL;

	if (p->version >= 9)
		TRY_NOW(RESULT(p, iallreduce,
			       p->t.v12->iallreduce(p->comm, q->send, q->recv, q->count, type, op, q->send_mr,
						    q->recv_mr, &request)));
	else
		TRY_NOW(RESULT(p, iallreduce,
			       p->t.v8->iallreduce(p->comm, q->send, q->recv, (int)q->count, type, op, q->send_mr,
						   q->recv_mr, &request)));
	*ret_request = request;
	return GANTRY_OK;
}

gantry_result gantry_collnet_plugin_test(struct gantry_collnet_plugin *p, void *request, int *ret_done)
{
	int done = 0, size = 0;

	TRY_NOW(LATER(p, test, request, &done, &size));
	*ret_done = done;
	return GANTRY_OK;
}
