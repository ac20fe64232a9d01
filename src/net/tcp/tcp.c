/* SPDX-License-Identifier: Apache-2.0 */
/* Gantry's TCP network as a table of net.h: connections. Checks arguments, keeps counts of users, and calls the engine.
 * message.c and mr.c have the other entries. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/param.h"
#include "base/trace.h"
#include "net/tcp/comm.h"
#include "net/tcp/engine.h"
#include "net/tcp/stage.h"
#include "net/tcp/unpack.h"

static gantry_result tcp_init(struct gantry_net *net, uint64_t comm_id, const struct gantry_net_config *config,
			      void **ret_ctx)
{
	gantry_result r = GANTRY_OK;
	struct tcp_context *ctx = NULL;

	(void)net;
	TRY(gantry_params_load(0));
	gantry_trace_begin();
	TRY(tcp_engine_init());
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a communicator");
	ctx->comm_id = comm_id;
	ctx->traffic_class = config ? config->traffic_class : GANTRY_NET_UNDEF;
	if (ctx->traffic_class > 63)
		FAIL(GANTRY_ERR_CONFIG, "traffic class %d is not a DSCP (0 to 63)", ctx->traffic_class);
	if (config) {
		ctx->device = config->device;
		TRY(tcp_home_resolve(config, ctx));
		ctx->plugin = config->unpack == GANTRY_NET_UNPACK_PARAM;
		ctx->watched = !config->own_reports;
		ctx->standing_receives = config->standing_receives;
	}
	*ret_ctx = ctx;
	ctx = NULL;
out:
	free(ctx);
	return r;
}

static gantry_result tcp_finalize(struct gantry_net *net, void *ctx)
{
	(void)net;
	free(ctx);
	return GANTRY_OK;
}

static gantry_result tcp_set_attr(struct gantry_net *net, void *ctx, const struct gantry_net_attr *attr)
{
	(void)net;
	(void)ctx;
	/* Hints about concurrency: lanes are shared and pulled from, so there is nothing to size by them. */
	LOG_TRACE(NET, "attributes: %d peers, %d flows each", attr->send.max_concurrent_peers,
		  attr->send.max_flows_per_peer);
	return GANTRY_OK;
}

static gantry_result tcp_devices(struct gantry_net *net, int *ret_count)
{
	(void)net;
	inet_loop_lock();
	*ret_count = tcp_engine.ndevs;
	inet_loop_unlock();
	return GANTRY_OK;
}

static gantry_result check_dev(int dev) REQUIRES(loop_mu)
{
	int n = tcp_engine.ndevs;

	if (!tcp_engine.initialised)
		FAIL_NOW(GANTRY_ERR_USAGE, "init was not called, or it failed");
	if (dev < 0 || dev >= n)
		FAIL_NOW(GANTRY_ERR_INVALID, "device %d does not exist, there are %d", dev, n);
	return GANTRY_OK;
}

static gantry_result tcp_get_properties(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props)
{
	gantry_result r;

	(void)net;
	inet_loop_lock();
	r = check_dev(dev);
	if (r == GANTRY_OK)
		tcp_device_properties(dev, ret_props);
	inet_loop_unlock();
	return r;
}

static gantry_result tcp_make_vdevice(struct gantry_net *net, const struct gantry_net_vdevice *vdev, int *ret_dev)
{
	gantry_result r = GANTRY_OK;

	(void)net;
	inet_loop_lock();
	TRY(check_dev(0));
	TRY(tcp_device_fuse(vdev, ret_dev));
out:
	inet_loop_unlock();
	return r;
}

/* ---- connections ---- */

static gantry_result tcp_listen(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_listen)
{
	gantry_result r = GANTRY_OK;
	struct tcp_listener *l = NULL;
	struct tcp_home home = {.kind = DEVMEM_NONE};

	(void)net;
	TRY(tcp_home_open(ctx, &home));
	inet_loop_lock();
	r = check_dev(dev);
	if (r == GANTRY_OK)
		r = tcp_engine_start();
	if (r == GANTRY_OK)
		r = tcp_listener_open(ctx, &home, dev, handle, &l);
	if (r == GANTRY_OK) {
		tcp_engine.users++;
		*ret_listen = l;
	}
	inet_loop_unlock();
out:
	tcp_home_close(&home);
	return r;
}

static gantry_result tcp_close_listen(struct gantry_net *net, void *listen)
{
	struct tcp_listener *l = listen;
	struct tcp_home home;

	(void)net;
	if (!l)
		return GANTRY_OK;
	if (inet_forked(l->forks))
		return inet_refuse_forked("closeListen");
	inet_loop_lock();
	home = tcp_home_take(&l->home);
	tcp_listener_close(l);
	inet_loop_unlock();
	tcp_home_close(&home);
	tcp_engine_release();
	return GANTRY_OK;
}

static void comm_free(struct tcp_comm *comm)
{
	if (comm) {
		tcp_unpack_destroy(comm->unpack);
		gantry_device_close(comm->device);
	}
	free(comm);
}

/* The first call for a handle. */
static gantry_result start_connecting(struct tcp_context *ctx, struct tcp_home *home, int dev, void *handle)
	REQUIRES(loop_mu)
{
	gantry_result r = GANTRY_OK;
	struct tcp_connector *c;
	struct wire_handle h;

	TRY(check_dev(dev));
	if (wire_handle_decode(handle, &h) != GANTRY_OK)
		FAIL(GANTRY_ERR_INVALID, "this handle was not made by gantry: do all ranks use the same plugin?");
	if (h.version != WIRE_VERSION)
		FAIL(GANTRY_ERR_VERSION, "protocol version differs: %d here, %d on the listening side", WIRE_VERSION,
		     h.version);
	TRY(tcp_engine_start());
	TRY(tcp_connector_open(ctx, home, dev, &h, &c));
	wire_handle_set_local(handle, c->id);
	tcp_engine.users++;
out:
	return r;
}

static gantry_result comm_new(enum comm_kind kind, struct tcp_link *l, const struct tcp_context *ctx,
			      const struct tcp_home *home, struct tcp_comm **ret_comm)
{
	struct tcp_comm *comm = calloc(1, sizeof(*comm));
	gantry_result r = GANTRY_OK;

	if (!comm)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a comm");
	if (home->device)
		TRY(gantry_device_open(home->device->kind, home->device->index, &comm->device));
	comm->source = home->kind;
	pthread_mutex_lock(&l->mu);
	r = kind == COMM_SEND ? tcp_link_open_tx(l) : tcp_link_open_rx(l);
	pthread_mutex_unlock(&l->mu);
	if (r != GANTRY_OK)
		goto out;
	comm->kind = kind;
	comm->link = l;
	comm->plugin = ctx->plugin;
	if (ctx->watched)
		store_relaxed(&l->watched, 1);
	if (ctx->standing_receives)
		store_relaxed(&l->standing_receives, 1);
	*ret_comm = comm;
	comm = NULL;
out:
	comm_free(comm);
	return r;
}

static gantry_result tcp_connect(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_comm,
				 struct gantry_net_device_handle **dev_handle)
{
	gantry_result r = GANTRY_OK;
	struct tcp_connector *c;
	struct tcp_comm *comm;
	struct tcp_home home = {.kind = DEVMEM_NONE};
	uint64_t id = wire_handle_local(handle);
	int over = 0;

	(void)net;
	(void)dev_handle;
	*ret_comm = NULL;
	if (!id)
		TRY(tcp_home_open(ctx, &home));
	inet_loop_lock();
	if (!id) {
		r = start_connecting(ctx, &home, dev, handle);
	} else if ((uint32_t)id != (uint32_t)tcp_engine.process) {
		r = inet_refuse_forked("connect");
	} else if (!(c = tcp_connector_find(id))) {
		r = gantry_fail(GANTRY_ERR_USAGE, LOG_SUBSYS, __FILE__, __LINE__,
				"connect was called again for a handle that is done");
	} else if (c->state == TCP_CONNECT_FAILED) {
		gantry_set_last_error(c->error_text);
		r = c->error;
		home = tcp_home_take(&c->home);
		tcp_connector_free(c);
		over = 1;
	} else if (c->state == TCP_CONNECTED) {
		r = comm_new(COMM_SEND, c->link, &c->ctx, &c->home, &comm);
		if (r != GANTRY_OK) {
			tcp_link_drop_tx(c->link);
			over = 1;
		} else {
			*ret_comm = comm;
		}
		home = tcp_home_take(&c->home);
		tcp_connector_free(c);
	}
	if (over || *ret_comm)
		wire_handle_set_local(handle, 0);
	inet_loop_unlock();
	if (over)
		tcp_engine_release();
out:
	tcp_home_close(&home);
	return r;
}

/* No lock held: mapped memory takes the driver a while. */
static gantry_result receiving_comm(const struct tcp_listener *listener, struct tcp_link *l, struct tcp_comm **ret_comm)
{
	const struct tcp_home *home = &listener->home;
	struct tcp_comm *comm = NULL;
	gantry_result r = GANTRY_OK;

	TRY(comm_new(COMM_RECV, l, &listener->ctx, home, &comm));
	if (home->kind != DEVMEM_NONE) {
		TRY(tcp_unpack_create(home->device, home->kind, &comm->unpack));
		TRY(tcp_unpack_attach(l, comm->unpack));
	}
	*ret_comm = comm;
	comm = NULL;
out:
	comm_free(comm);
	return r;
}

static gantry_result tcp_accept(struct gantry_net *net, void *listen, void **ret_comm,
				struct gantry_net_device_handle **dev_handle)
{
	struct tcp_listener *l = listen;
	struct tcp_link *link = NULL;
	struct tcp_comm *comm = NULL;
	gantry_result r = GANTRY_OK;

	(void)net;
	*ret_comm = NULL;
	if (inet_forked(l->forks))
		return inet_refuse_forked("accept");
	inet_loop_lock();
	if (l->nready) {
		link = l->ready[0];
		memmove(l->ready, l->ready + 1, (size_t)--l->nready * sizeof(*l->ready));
		tcp_engine.users++; /* the listener keeps the thread running: no start needed */
	} else if (l->error != GANTRY_OK) {
		gantry_set_last_error(l->error_text);
		r = l->error;
		l->error = GANTRY_OK;
	}
	inet_loop_unlock();
	if (!link)
		return r;
	r = receiving_comm(l, link, &comm);
	if (r != GANTRY_OK) {
		inet_loop_lock();
		tcp_link_drop_rx(link);
		inet_loop_unlock();
		tcp_engine_release();
		return r;
	}
	if (comm->unpack && dev_handle && *dev_handle)
		tcp_unpack_describe(comm->unpack, *dev_handle);
	*ret_comm = comm;
	return GANTRY_OK;
}

static gantry_result close_comm(struct tcp_comm *comm, enum comm_kind kind)
{
	struct tcp_stage *stage;

	if (!comm)
		return GANTRY_OK;
	if (comm->kind != kind)
		FAIL_NOW(GANTRY_ERR_USAGE, "%s of something that is not such a comm",
			 kind == COMM_SEND ? "closeSend" : "closeRecv");
	if (inet_forked(comm->link->session.forks))
		return inet_refuse_forked(kind == COMM_SEND ? "closeSend" : "closeRecv");
	inet_loop_lock();
	kind == COMM_SEND ? tcp_link_drop_tx(comm->link) : tcp_link_drop_rx(comm->link);
	stage = comm->link->devmem.staging_left;
	comm->link->devmem.staging_left = NULL;
	inet_loop_unlock();
	tcp_stage_put(stage);
	comm->kind = COMM_GONE;
	comm_free(comm);
	tcp_engine_release();
	return GANTRY_OK;
}

static gantry_result tcp_close_send(struct gantry_net *net, void *comm)
{
	(void)net;
	return close_comm(comm, COMM_SEND);
}

static gantry_result tcp_close_recv(struct gantry_net *net, void *comm)
{
	(void)net;
	return close_comm(comm, COMM_RECV);
}

static const struct gantry_net_ops ops = {
	.init = tcp_init,
	.finalize = tcp_finalize,
	.set_attr = tcp_set_attr,
	.devices = tcp_devices,
	.get_properties = tcp_get_properties,
	.make_vdevice = tcp_make_vdevice,
	.listen = tcp_listen,
	.connect = tcp_connect,
	.accept = tcp_accept,
	.close_send = tcp_close_send,
	.close_recv = tcp_close_recv,
	.close_listen = tcp_close_listen,
	.reg_mr = tcp_reg_mr,
	.reg_mr_dmabuf = tcp_reg_mr_dmabuf,
	.dereg_mr = tcp_dereg_mr,
	.get_device_mr = tcp_get_device_mr,
	.isend = tcp_isend,
	.irecv = tcp_irecv,
	.iflush = tcp_iflush,
	.test = tcp_test,
	.irecv_consumed = tcp_irecv_consumed,
};

const char *gantry_net_tcp_peer(const void *comm)
{
	return ((const struct tcp_comm *)comm)->link->session.peer;
}

struct gantry_net *gantry_net_tcp(void)
{
	static struct gantry_net net = {.ops = &ops, .name = "gantry"};

	return &net;
}
