/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gantry's TCP network as a table of net.h: connections, memory that users register, messages. Checks arguments, keeps
 * counts of users, and calls the network and its links. What the user holds: a comm is one direction of a link, an mr a
 * stretch of memory that its messages lie in.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "base/trace.h"
#include "device/device.h"
#include "inet/loop.h"
#include "net/devmem.h"
#include "net/tcp/hello.h"
#include "net/tcp/network.h"
#include "net/tcp/stage.h"
#include "net/tcp/tcp_unpack.h"
#include "net/tcp/txmem.h"

enum comm_kind { COMM_SEND = 0x53454e44, COMM_RECV = 0x52454356, COMM_GONE = 0 };

struct tcp_comm {
	uint32_t kind; /* enum comm_kind */
	struct tcp_link *link;
	struct gantry_device *device;  /* owned reference: whose memory may be registered; NULL: only host memory */
	enum gantry_net_unpack source; /* how payload reaches, and leaves, that memory */
	struct tcp_unpack *unpack;     /* owned; receiving with UNPACK */
	int described;		       /* the user has the device handle of it: kernels unpack, and it consumes */
	int plugin;		       /* NCCL is the user, see check_own */
	uint32_t regs;		       /* stretches of memory registered so far; by the thread that registers */
	uint32_t in_use;	       /* a message was posted; relaxed */
};

struct tcp_mr {
	uint8_t *data;
	size_t size;
	int type;		 /* GANTRY_NET_PTR_HOST or PTR_CUDA */
	struct tcp_txmem *txmem; /* owned: messages are sent from it without a copy; NULL: through the stage */
};

/* The fewest count: a communicator of some ranks knows nothing of the others beside it. */
static void note_cpus(int cpus)
{
	inet_loop_lock();
	if (cpus && (!tcp_network.cpus || cpus < tcp_network.cpus))
		store_relaxed(&tcp_network.cpus, cpus);
	inet_loop_unlock();
}

static gantry_result tcp_init(struct gantry_net *net, uint64_t comm_id, const struct gantry_net_config *config,
			      void **ret_ctx)
{
	gantry_result r = GANTRY_OK;
	struct tcp_context *ctx = NULL;

	(void)net;
	TRY(gantry_params_load(0));
	gantry_trace_begin();
	TRY(tcp_network_init());
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a communicator");
	ctx->comm_id = comm_id;
	ctx->traffic_class = config ? config->traffic_class : GANTRY_NET_UNDEF;
	if (ctx->traffic_class > 63)
		FAIL(GANTRY_ERR_CONFIG, "traffic class %d is not a valid DSCP (0 to 63)", ctx->traffic_class);
	if (config) {
		ctx->device = config->device;
		TRY(tcp_rx_memory_resolve(config, ctx));
		ctx->plugin = config->unpack == GANTRY_NET_UNPACK_PARAM;
		ctx->watched = !config->own_reports;
		ctx->links = config->links;
		note_cpus(config->cpus);
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
	int n;

	(void)net;
	inet_loop_lock();
	n = tcp_connectors_drop(ctx);
	inet_loop_unlock();
	while (n--)
		tcp_network_release();
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
	*ret_count = tcp_network.ndevs;
	inet_loop_unlock();
	return GANTRY_OK;
}

static gantry_result check_dev(int dev) REQUIRES(loop_mu)
{
	int n = tcp_network.ndevs;

	if (!tcp_network.initialised)
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
	struct tcp_rx_memory rx_memory = {.kind = GANTRY_NET_UNPACK_OFF};

	(void)net;
	TRY(tcp_rx_memory_open(ctx, &rx_memory));
	inet_loop_lock();
	r = check_dev(dev);
	if (r == GANTRY_OK)
		r = tcp_network_start();
	if (r == GANTRY_OK)
		r = tcp_listener_open(ctx, &rx_memory, dev, handle, &l);
	if (r == GANTRY_OK) {
		tcp_network.users++;
		*ret_listen = l;
	}
	inet_loop_unlock();
out:
	tcp_rx_memory_close(&rx_memory);
	return r;
}

static gantry_result tcp_close_listen(struct gantry_net *net, void *listen)
{
	struct tcp_listener *l = listen;
	struct tcp_rx_memory rx_memory;

	(void)net;
	if (!l)
		return GANTRY_OK;
	if (inet_forked(l->forks))
		return inet_refuse_forked("closeListen");
	inet_loop_lock();
	rx_memory = tcp_rx_memory_take(&l->rx_memory);
	tcp_listener_close(l);
	inet_loop_unlock();
	tcp_rx_memory_close(&rx_memory);
	tcp_network_release();
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
static gantry_result start_connecting(struct tcp_context *ctx, struct tcp_rx_memory *rx_memory, int dev, void *handle)
	REQUIRES(loop_mu)
{
	struct tcp_connector *c;
	struct wire_handle h;

	TRY_NOW(check_dev(dev));
	if (wire_handle_decode(handle, &h) != GANTRY_OK)
		FAIL_NOW(GANTRY_ERR_INVALID, "this handle was not made by gantry: do all ranks use the same plugin?");
	if (h.version != WIRE_VERSION)
		FAIL_NOW(GANTRY_ERR_VERSION, "protocol version differs: %d here, %d on the listening side",
			 WIRE_VERSION, h.version);
	TRY_NOW(tcp_network_start());
	TRY_NOW(tcp_connector_open(ctx, rx_memory, dev, &h, &c));
	wire_handle_set_local(handle, c->id);
	tcp_network.users++;
	return GANTRY_OK;
}

static gantry_result comm_new(enum comm_kind kind, struct tcp_link *l, const struct tcp_context *ctx,
			      const struct tcp_rx_memory *rx_memory, struct tcp_comm **ret_comm)
{
	struct tcp_comm *comm = calloc(1, sizeof(*comm));
	gantry_result r = GANTRY_OK;

	if (!comm)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a comm");
	if (rx_memory->device)
		TRY(gantry_device_open(rx_memory->device->kind, rx_memory->device->index, &comm->device));
	comm->source = rx_memory->kind;
	link_mu_lock(&l->mu);
	r = kind == COMM_SEND ? tcp_link_open_tx(l) : tcp_link_open_rx(l);
	link_mu_unlock(&l->mu);
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
	struct tcp_rx_memory rx_memory = {.kind = GANTRY_NET_UNPACK_OFF};
	uint64_t id = wire_handle_local(handle);
	int over = 0;

	(void)net;
	(void)dev_handle;
	*ret_comm = NULL;
	if (!id)
		TRY(tcp_rx_memory_open(ctx, &rx_memory));
	inet_loop_lock();
	if (!id) {
		r = start_connecting(ctx, &rx_memory, dev, handle);
	} else if ((uint32_t)id != (uint32_t)tcp_network.process) {
		r = inet_refuse_forked("connect");
	} else if (!(c = tcp_connector_find(id))) {
		r = gantry_fail(GANTRY_ERR_USAGE, LOG_SUBSYS, __FILE__, __LINE__,
				"connect was called again for a handle that is already connected");
	} else if (c->state == TCP_CONNECT_FAILED) {
		gantry_set_last_error(c->error_text);
		r = c->error;
		rx_memory = tcp_rx_memory_take(&c->rx_memory);
		tcp_connector_free(c);
		over = 1;
	} else if (c->state == TCP_CONNECTED) {
		r = comm_new(COMM_SEND, c->link, &c->ctx, &c->rx_memory, &comm);
		if (r != GANTRY_OK) {
			tcp_link_drop_tx(c->link);
			over = 1;
		} else {
			*ret_comm = comm;
		}
		rx_memory = tcp_rx_memory_take(&c->rx_memory);
		tcp_connector_free(c);
	}
	if (over || *ret_comm)
		wire_handle_set_local(handle, 0);
	inet_loop_unlock();
	if (over)
		tcp_network_release();
out:
	tcp_rx_memory_close(&rx_memory);
	return r;
}

/* No lock held: mapped memory takes the driver a while. */
static gantry_result receiving_comm(const struct tcp_listener *listener, struct tcp_link *l, struct tcp_comm **ret_comm)
{
	const struct tcp_rx_memory *rx_memory = &listener->rx_memory;
	struct tcp_comm *comm = NULL;
	gantry_result r = GANTRY_OK;

	TRY(comm_new(COMM_RECV, l, &listener->ctx, rx_memory, &comm));
	if (rx_memory->kind != GANTRY_NET_UNPACK_OFF) {
		TRY(tcp_unpack_create(rx_memory->device, rx_memory->kind, &comm->unpack));
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
	if (!l->nready && !gantry_list_empty(&tcp_network.promised))
		tcp_accept_promised(0); /* not only with the next tick */
	if (l->nready) {
		link = gantry_container(l->ready.next, struct tcp_entry, waiting)->link;
		gantry_list_remove(&link->entry->waiting);
		l->nready--;
		tcp_network.users++; /* the listener keeps the thread running: no start needed */
	} else {
		r = tcp_listener_error(l);
	}
	inet_loop_unlock();
	if (!link)
		return r;
	r = receiving_comm(l, link, &comm);
	if (r != GANTRY_OK) {
		inet_loop_lock();
		tcp_link_drop_rx(link);
		inet_loop_unlock();
		tcp_network_release();
		return r;
	}
	if (comm->unpack && dev_handle && *dev_handle) {
		tcp_unpack_describe(comm->unpack, *dev_handle);
		comm->described = 1;
	}
	*ret_comm = comm;
	return GANTRY_OK;
}

static gantry_result close_comm(struct tcp_comm *comm, enum comm_kind kind)
{
	struct devmem_pool *pool;
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
	stage = comm->link->devmem->staging_left;
	comm->link->devmem->staging_left = NULL;
	pool = comm->link->devmem->pool_left;
	comm->link->devmem->pool_left = NULL;
	inet_loop_unlock();
	tcp_stage_put(stage);
	devmem_pool_put(pool);
	comm->kind = COMM_GONE;
	comm_free(comm);
	tcp_network_release();
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

/* ---- handles that are not NCCL's business: from a peer, and of a connect that is given up ---- */

static gantry_result tcp_take_handle(struct gantry_net *net, void *handle)
{
	struct wire_handle h;

	(void)net;
	if (wire_handle_decode(handle, &h) != GANTRY_OK)
		return GANTRY_ERR_PROTOCOL;
	wire_handle_set_local(handle, 0);
	return GANTRY_OK;
}

static void tcp_cancel_connect(struct gantry_net *net, void *handle)
{
	uint64_t id = wire_handle_local(handle);
	struct tcp_rx_memory rx_memory = {.kind = GANTRY_NET_UNPACK_OFF};
	struct tcp_connector *c;

	(void)net;
	if (!id)
		return;
	inet_loop_lock();
	c = tcp_connector_find(id);
	if (c && c->state == TCP_CONNECTED)
		tcp_link_drop_tx(c->link);
	if (c) {
		rx_memory = tcp_rx_memory_take(&c->rx_memory);
		tcp_connector_free(c);
	}
	wire_handle_set_local(handle, 0);
	inet_loop_unlock();
	tcp_rx_memory_close(&rx_memory);
	if (c)
		tcp_network_release();
}

/* ---- memory ---- */

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

/* What sending from this memory of a device needs. file: NULL, or a dma-buf of it. */
static gantry_result prepare_sends(struct tcp_comm *c, const struct devmem_file *file, struct tcp_mr *mr)
{
	const struct devmem_source_ops *source;
	gantry_result r = tcp_link_stage(c->link, c->device);

	source = r == GANTRY_OK && mr->size ? tcp_txmem_source(c->link, c->source, c->device) : NULL;
	/* The reason was logged: through the stage then. */
	if (source && tcp_txmem_bind(c->link, source, c->device, mr->data, mr->size, file, &mr->txmem) != GANTRY_OK)
		mr->txmem = NULL;
	return r;
}

static gantry_result register_memory(struct tcp_comm *c, void *data, size_t size, int type,
				     const struct devmem_file *file, void **ret_mr)
{
	gantry_result r = GANTRY_OK;
	struct tcp_mr *mr = NULL;

	TRY(check_type("regMr", c, type));
	if (!data && size)
		FAIL(GANTRY_ERR_INVALID, "regMr: data is NULL (%zu bytes)", size);
	if ((uintptr_t)data + size < (uintptr_t)data)
		FAIL(GANTRY_ERR_INVALID, "regMr of %zu bytes at %p wraps around the address space", size, data);
	if (type == GANTRY_NET_PTR_CUDA)
		TRY(check_own(c, type));
	mr = malloc(sizeof(*mr));
	if (!mr)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a registration");
	*mr = (struct tcp_mr){.data = data, .size = size, .type = type};
	if (type == GANTRY_NET_PTR_CUDA && c->kind == COMM_SEND)
		TRY(prepare_sends(c, file, mr));
	if (c)
		c->regs++;
	*ret_mr = mr;
	mr = NULL;
out:
	free(mr);
	return r;
}

static gantry_result tcp_reg_mr(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr)
{
	(void)net;
	return register_memory(comm, data, size, type, NULL, ret_mr);
}

/*
 * A NIC that sends from the memory reads it in the dma-buf, from `offset` on. Receives need none: what arrives lies in the
 * pages of a pool, and kernels move it to where it belongs. The file may be closed at once.
 */
static gantry_result tcp_reg_mr_dmabuf(struct gantry_net *net, void *comm, void *data, size_t size, int type,
				       uint64_t offset, int fd, void **ret_mr)
{
	const struct devmem_file file = {.fd = fd, .offset = offset};
	off_t end;

	(void)net;
	TRY_NOW(check_type("regMrDmaBuf", comm, type));
	if (fcntl(fd, F_GETFD) < 0)
		FAIL_NOW(GANTRY_ERR_INVALID, "regMrDmaBuf: file descriptor %d: %s", fd, strerror(errno));
	end = lseek(fd, 0, SEEK_END); /* of a dma-buf: its size */
	if (offset > UINT64_MAX - size || (end >= 0 && offset + size > (uint64_t)end))
		FAIL_NOW(
			GANTRY_ERR_INVALID,
			"regMrDmaBuf: %zu bytes at offset %llu are beyond the dma-buf (file descriptor %d, %lld bytes)",
			size, (unsigned long long)offset, fd, (long long)end);
	return register_memory(comm, data, size, type, &file, ret_mr);
}

static gantry_result tcp_dereg_mr(struct gantry_net *net, void *comm, void *reg)
{
	struct tcp_mr *mr = reg;

	(void)net;
	(void)comm;
	if (mr)
		tcp_txmem_free(mr->txmem);
	free(mr);
	return GANTRY_OK;
}

/* NCCL asks for it with every UNPACK connection and hands it to kernels, which do not use it. */
static gantry_result tcp_get_device_mr(struct gantry_net *net, void *comm, void *mr, void **ret_dptr)
{
	struct tcp_mr *m = mr;

	(void)net;
	(void)comm;
	if (!m)
		FAIL_NOW(GANTRY_ERR_INVALID, "getDeviceMr: mhandle is NULL");
	*ret_dptr = m->data;
	return GANTRY_OK;
}

/* NCCL always passes the registration; other callers may pass NULL. */
static gantry_result check_mr(const char *what, const struct tcp_mr *mr, const void *data, size_t size)
{
	if (!data && size)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: data is NULL (%zu bytes)", what, size);
	if (mr && size &&
	    ((const uint8_t *)data < mr->data || size > mr->size ||
	     (size_t)((const uint8_t *)data - mr->data) > mr->size - size))
		FAIL_NOW(GANTRY_ERR_INVALID, "%s of %zu bytes at %p is outside its registration of %zu bytes at %p",
			 what, size, data, mr->size, (void *)mr->data);
	return GANTRY_OK;
}

/* ---- messages ---- */

static void note_use(struct tcp_comm *c)
{
	if (!load_relaxed(&c->in_use))
		store_relaxed(&c->in_use, 1);
}

/* Is it a comm of that kind, and of this process? */
static inline gantry_result check_comm(const struct tcp_comm *c, enum comm_kind kind, const char *what)
{
	if (c->kind != kind)
		FAIL_NOW(GANTRY_ERR_USAGE, "%s on something that is not a %s comm", what,
			 kind == COMM_SEND ? "send" : "receive");
	return inet_forked(c->link->session.forks) ? inet_refuse_forked(what) : GANTRY_OK;
}

static gantry_result tcp_isend(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *reg,
			       void **ret_request)
{
	struct tcp_comm *c = comm;
	const struct tcp_mr *mr = reg;
	gantry_result r = check_comm(c, COMM_SEND, "isend");

	(void)net;
	if (r == GANTRY_OK)
		r = check_mr("isend", mr, data, size);
	if (r != GANTRY_OK)
		return r;
	note_use(c);
	if (mr && mr->txmem && size > c->link->session.eager_max)
		return tcp_link_isend_txmem(c->link, mr->txmem, data, size, tag, ret_request);
	return mr && mr->type == GANTRY_NET_PTR_CUDA ? tcp_link_isend_device(c->link, data, size, tag, ret_request)
						     : tcp_link_isend(c->link, data, size, tag, ret_request);
}

static gantry_result tcp_isends(struct gantry_net *net, void *comm, uint32_t n, void *const *data, const size_t *sizes,
				int tag, void **ret_requests)
{
	struct tcp_comm *c = comm;
	gantry_result r = check_comm(c, COMM_SEND, "isend");

	(void)net;
	if (r != GANTRY_OK)
		return r;
	note_use(c);
	return tcp_link_isends(c->link, n, data, sizes, tag, ret_requests);
}

static gantry_result tcp_irecv(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
			       const int *tags, void **mrs, void **request)
{
	struct tcp_comm *c = comm;
	const struct tcp_mr *mr;
	gantry_result r = check_comm(c, COMM_RECV, "irecv");

	(void)net;
	if (r == GANTRY_OK && (n < 1 || n > GANTRY_NET_MAX_RECVS))
		FAIL_NOW(GANTRY_ERR_INVALID, "irecv of %d buffers: expected 1 to %d", n, GANTRY_NET_MAX_RECVS);
	for (int i = 0; r == GANTRY_OK && i < n; i++)
		r = check_mr("irecv", mrs ? mrs[i] : NULL, data[i], sizes[i]);
	if (r != GANTRY_OK)
		return r;
	note_use(c);
	if (!c->unpack)
		return tcp_link_irecv(c->link, n, data, sizes, tags, request);
	if (n > 1)
		FAIL_NOW(GANTRY_ERR_USAGE, "irecv of %d buffers: with UNPACK a receive has exactly one", n);
	mr = mrs ? mrs[0] : NULL;
	/* NCCL's bootstrap passes no handle: no kernel counts its receives, and nothing consumes them. */
	return tcp_link_irecv_unpack(c->link, data[0], sizes[0], tags[0], mr && mr->type == GANTRY_NET_PTR_CUDA,
				     !c->described || *request == GANTRY_NET_OPTIONAL_RECV_COMPLETION, request);
}

static gantry_result tcp_hold(struct gantry_net *net, void *comm, int tag)
{
	struct tcp_comm *c = comm;
	bool receives = c->kind == COMM_RECV;
	gantry_result r = check_comm(c, receives ? COMM_RECV : COMM_SEND, "hold");

	(void)net;
	return r == GANTRY_OK ? tcp_link_hold(c->link, !receives, tag) : r;
}

static gantry_result tcp_hasten(struct gantry_net *net, void *comm, int tag, int alone)
{
	struct tcp_comm *c = comm;
	gantry_result r = check_comm(c, COMM_SEND, "hasten");

	(void)net;
	return r == GANTRY_OK ? tcp_link_hasten(c->link, tag, alone) : r;
}

static gantry_result tcp_irecvv(struct gantry_net *net, void *comm, const struct iovec *iov, uint32_t n, int tag,
				void **ret_request)
{
	struct tcp_comm *c = comm;
	gantry_result r = check_comm(c, COMM_RECV, "irecv");

	(void)net;
	if (r != GANTRY_OK)
		return r;
	if (c->unpack || c->link->session.device_rx)
		return GANTRY_ERR_UNSUPPORTED;
	note_use(c);
	return tcp_link_irecv_vec(c->link, iov, n, tag, ret_request);
}

/* With MSG_ZEROCOPY only; bulk_tx.c has figures. */
static int tcp_isendv_pays(struct gantry_net *net, void *comm)
{
	const struct tcp_comm *c = comm;

	(void)net;
	return load_relaxed(&c->link->tx.msg_zerocopy);
}

static gantry_result tcp_isendv(struct gantry_net *net, void *comm, const struct iovec *iov, uint32_t n, int tag,
				void **ret_request)
{
	struct tcp_comm *c = comm;
	gantry_result r = check_comm(c, COMM_SEND, "isend");

	(void)net;
	if (r != GANTRY_OK)
		return r;
	note_use(c);
	return tcp_link_isend_vec(c->link, iov, n, tag, ret_request);
}

static gantry_result tcp_iflush(struct gantry_net *net, void *comm, int n, void **data, const int *sizes, void **mrs,
				void **ret_request)
{
	(void)net;
	(void)comm;
	(void)n;
	(void)data;
	(void)sizes;
	(void)mrs;
	*ret_request = NULL; /* host memory needs none */
	return GANTRY_OK;
}

static gantry_result tcp_test(struct gantry_net *net, void *request, int *ret_done, int *sizes)
{
	struct tcp_request *req = request;
	uint32_t state = TCP_FREE;

	(void)net;
	if (req && (req->kind == TCP_SEND || req->kind == TCP_RECV))
		state = load_relaxed(&req->state);
	if (state != TCP_PENDING && state != TCP_DONE)
		FAIL_NOW(GANTRY_ERR_USAGE, "test of something that is not a pending request");
	if (inet_forked(req->link->session.forks))
		return inet_refuse_forked("test");
	return tcp_link_test(req, ret_done, sizes);
}

static gantry_result tcp_irecv_consumed(struct gantry_net *net, void *comm, int n, void *request)
{
	struct tcp_comm *c = comm;
	gantry_result r = check_comm(c, COMM_RECV, "irecvConsumed");

	(void)net;
	(void)n;
	return r == GANTRY_OK && c->unpack ? tcp_unpack_consumed(c->link, request) : r;
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
	.isendv = tcp_isendv,
	.isends = tcp_isends,
	.irecvv = tcp_irecvv,
	.isendv_pays = tcp_isendv_pays,
	.hold = tcp_hold,
	.hasten = tcp_hasten,
	.take_handle = tcp_take_handle,
	.cancel_connect = tcp_cancel_connect,
};

uint64_t gantry_net_tcp_comm_id(const void *ctx)
{
	return ((const struct tcp_context *)ctx)->comm_id;
}

const char *gantry_net_tcp_peer(const void *comm)
{
	return ((const struct tcp_comm *)comm)->link->session.peer;
}

int gantry_net_tcp_message(void *request, int i, struct gantry_net_tcp_message *ret_message)
{
	struct tcp_request *req = request;
	struct tcp_send *s = gantry_container(req, struct tcp_send, head);
	struct tcp_recv *recv = gantry_container(req, struct tcp_recv, head);
	struct tcp_buffer *b;

	if (req->kind == TCP_SEND && i == 0) {
		*ret_message =
			(struct gantry_net_tcp_message){req->link->session.id, s->tag, s->index, 1, s->size, &s->event};
		return 1;
	}
	if (req->kind != TCP_RECV || i >= recv->n)
		return 0;
	b = &recv->buffers[i];
	*ret_message = (struct gantry_net_tcp_message){req->link->session.id, b->tag, b->index, 0, b->size, &b->event};
	return 1;
}

struct gantry_net *gantry_net_tcp(void)
{
	static struct gantry_net net = {.ops = &ops, .name = "gantry"};

	return &net;
}
