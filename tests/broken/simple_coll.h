/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small collNet plugin that is right: rank 0 takes what the others send over a TCP socket each, reduces it in the order
 * of ranks and sends the results. One operation after the other, progress from the calling thread. BROKEN(name): see
 * simple_net.h, which comes first.
 *
 * An operation has a window of bytes. Allreduce and reducescatter: all send the window; allgather: each sends its part of
 * it. Allreduce and allgather: all get the window; reducescatter: each gets its part.
 */
#ifndef GANTRY_TESTS_SIMPLE_COLL_H
#define GANTRY_TESTS_SIMPLE_COLL_H

#include "abi/collnet_v12.h"

enum { COLL_RANKS = 8, COLL_REQUESTS = 32, COLL_WAIT_MS = 8000 };
enum coll_kind { COLL_REDUCE, COLL_GATHER, COLL_SCATTER };

struct coll_op {
	struct coll *coll;
	int used, done;
	enum coll_kind kind;
	ncclDataType_t type;
	ncclRedOp_t red;
	uint8_t *send, *recv;
	size_t per, offset, window; /* per: bytes per rank; reduce: the window */
};

/* Belongs to the thread that posts and tests. */
struct coll {
	int rank, ranks, fd[COLL_RANKS]; /* rank 0: of each other; others: [0] */
	ncclResult_t error;
	uint64_t posted, sent, finished;	 /* sent: of the others, the oldest not sent as a whole */
	size_t pushed, pulled;			 /* others: bytes of `sent` and of `finished` */
	size_t got[COLL_RANKS], put[COLL_RANKS]; /* rank 0: bytes from and to the others */
	uint8_t *in[COLL_RANKS]; /* rank 0: the windows of the present operation, its own is the result; owned */
	int reduced;
	struct coll_op ring[COLL_REQUESTS];
};

struct coll_listener {
	int fd;
};

struct coll_handle {
	struct sockaddr_in addr;
};

static ncclResult_t coll_listen(int dev, void *handle, void **ret_listen)
{
	struct coll_handle *h = handle;
	struct coll_listener *l = calloc(1, sizeof(*l));
	socklen_t len = sizeof(h->addr);

	(void)dev;
	if (!l)
		return ncclSystemError;
	if (BROKEN(coll_handle))
		((char *)handle)[NCCL_NET_HANDLE_MAXSIZE + 3] = 1;
	memset(h, 0, sizeof(*h));
	h->addr.sin_family = AF_INET;
	h->addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&h->addr, len) != 0 || listen(l->fd, COLL_RANKS) != 0 ||
	    getsockname(l->fd, (struct sockaddr *)&h->addr, &len) != 0)
		return ncclSystemError;
	*ret_listen = l;
	return ncclSuccess;
}

/* Rank 0 waits for the others, each of which says who it is. */
static ncclResult_t coll_accept(struct coll *c, const struct coll_listener *l)
{
	for (int i = 1; i < c->ranks; i++) {
		struct pollfd p = {.fd = l->fd, .events = POLLIN};
		int rank = 0, fd;

		if (poll(&p, 1, BROKEN(coll_impatient) ? 100 : COLL_WAIT_MS) != 1)
			return ncclRemoteError;
		fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0 || recv(fd, &rank, sizeof(rank), MSG_WAITALL) != sizeof(rank) || rank < 1 ||
		    rank >= c->ranks)
			return ncclRemoteError;
		c->fd[rank] = fd;
	}
	return ncclSuccess;
}

static ncclResult_t coll_connect(void *handles[], int nranks, int rank, void *listen_comm, void **ret_comm)
{
	struct coll *c = calloc(1, sizeof(*c));
	struct coll_handle *root = handles[0];
	ncclResult_t r = ncclSuccess;
	int one = 1;

	*ret_comm = NULL;
	if (!c || nranks > COLL_RANKS)
		return ncclSystemError;
	c->rank = rank;
	c->ranks = nranks;
	if (rank == 0) {
		r = coll_accept(c, listen_comm);
	} else {
		c->fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(c->fd[0], (struct sockaddr *)&root->addr, sizeof(root->addr)) != 0 ||
		    send(c->fd[0], &rank, sizeof(rank), MSG_NOSIGNAL) != sizeof(rank))
			r = ncclRemoteError;
		setsockopt(c->fd[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	}
	if (!BROKEN(coll_no_comm) || rank != 1)
		*ret_comm = c;
	return r;
}

/* A rank's part of the window. */
static size_t coll_part(const struct coll_op *o, int rank, size_t *ret_at)
{
	size_t begin = o->per * (size_t)rank, end = begin + o->per, last = o->offset + o->window;

	begin = begin < o->offset ? o->offset : begin;
	end = end > last ? last : end;
	*ret_at = begin - o->offset;
	return begin < end ? end - begin : 0;
}

static size_t coll_in(const struct coll_op *o, int rank, size_t *ret_at)
{
	size_t part = coll_part(o, rank, ret_at);

	if (o->kind == COLL_GATHER)
		return part;
	*ret_at = 0;
	return o->window;
}

static size_t coll_out(const struct coll_op *o, int rank, size_t *ret_at)
{
	size_t part = coll_part(o, rank, ret_at);

	if (o->kind == COLL_SCATTER) {
		if (BROKEN(coll_scatter_first))
			*ret_at = 0;
		return part;
	}
	*ret_at = 0;
	return o->window;
}

/* What is not there yet is no error. The end of one rank is the end of all. */
static int coll_lost(struct coll *c, ssize_t n)
{
	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)) || BROKEN(coll_ignore_death))
		return 0;
	c->error = ncclRemoteError;
	for (int i = 0; i < COLL_RANKS; i++)
		if (c->fd[i])
			shutdown(c->fd[i], SHUT_RDWR);
	return 1;
}

static int coll_push(struct coll *c, int fd, const uint8_t *data, size_t size, size_t *moved)
{
	while (*moved < size) {
		ssize_t n = send(fd, data + *moved, size - *moved, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n <= 0) {
			coll_lost(c, n);
			return 0;
		}
		*moved += (size_t)n;
	}
	return 1;
}

static int coll_pull(struct coll *c, int fd, uint8_t *data, size_t size, size_t *moved)
{
	while (*moved < size) {
		ssize_t n = recv(fd, data + *moved, size - *moved, MSG_DONTWAIT);

		if (n <= 0) {
			coll_lost(c, n);
			return 0;
		}
		*moved += (size_t)n;
	}
	return 1;
}

/* Integers wrap: as unsigned, where C says that they do. */
#define COLL_WRAP(type, a, op, b)                                                                                      \
	((type)0.5 == 0 ? (type)((uint64_t)(int64_t)(a)op(uint64_t)(int64_t)(b)) : (type)((a)op(b)))
#define COLL_REDUCE_AS(type)                                                                                           \
	for (size_t i = 0; i < bytes / sizeof(type); i++) {                                                            \
		type a = ((type *)to)[i], b = ((const type *)from)[i];                                                 \
                                                                                                                       \
		((type *)to)[i] = red == ncclSum    ? COLL_WRAP(type, a, +, b)                                         \
				  : red == ncclProd ? COLL_WRAP(type, a, *, b)                                         \
				  : red == ncclMax  ? (a > b ? a : b)                                                  \
						    : (a < b ? a : b);                                                  \
	}                                                                                                              \
	break

/* Types and operations that are taken for others, and numbers that go through others. 1: the result is there. */
static int coll_planted(ncclDataType_t *type, ncclRedOp_t red, void *to, const void *from, size_t bytes)
{
	size_t n = bytes / 8;

	if (BROKEN(coll_max_signed) && *type == ncclUint8 && red == ncclMax)
		*type = ncclInt8;
	if (BROKEN(coll_min_unsigned) && *type == ncclInt32 && red == ncclMin)
		*type = ncclUint32;
	if (BROKEN(coll_long_signed) && *type == ncclUint64)
		*type = ncclInt64;
	for (size_t i = 0; i < bytes && BROKEN(coll_saturates) && *type == ncclInt8 && red == ncclSum; i++) {
		int v = ((int8_t *)to)[i] + ((const int8_t *)from)[i];

		((int8_t *)to)[i] = (int8_t)(v > INT8_MAX ? INT8_MAX : v < INT8_MIN ? INT8_MIN : v);
	}
	for (size_t i = 0; i < n && BROKEN(coll_53bits) && *type == ncclInt64 && red == ncclMax; i++) {
		double a = (double)((int64_t *)to)[i], b = (double)((const int64_t *)from)[i], m = a > b ? a : b;

		((int64_t *)to)[i] = m >= 9.2e18 ? INT64_MAX : (int64_t)m;
	}
	for (size_t i = 0; i < n && BROKEN(coll_float) && *type == ncclFloat64 && red == ncclSum; i++)
		((double *)to)[i] = (float)((double *)to)[i] + (float)((const double *)from)[i];
	for (size_t i = 0; i < n && BROKEN(coll_prod_half) && *type == ncclUint64 && red == ncclProd; i++)
		((uint64_t *)to)[i] = (uint32_t)((uint64_t *)to)[i] * (uint64_t)(uint32_t)((const uint64_t *)from)[i];
	for (size_t i = 0; i < 2 * n && BROKEN(coll_whole) && *type == ncclFloat32 && red == ncclSum; i++)
		((float *)to)[i] = (float)(int)(((float *)to)[i] + ((const float *)from)[i]);
	return (BROKEN(coll_saturates) && *type == ncclInt8 && red == ncclSum) ||
	       (BROKEN(coll_53bits) && *type == ncclInt64 && red == ncclMax) ||
	       (BROKEN(coll_float) && *type == ncclFloat64 && red == ncclSum) ||
	       (BROKEN(coll_prod_half) && *type == ncclUint64 && red == ncclProd) ||
	       (BROKEN(coll_whole) && *type == ncclFloat32 && red == ncclSum);
}

static void coll_reduce(ncclDataType_t type, ncclRedOp_t red, void *to, const void *from, size_t bytes)
{
	if (BROKEN(coll_min_is_max) && red == ncclMin)
		red = ncclMax;
	if (coll_planted(&type, red, to, from, bytes))
		return;
	switch (type) {
	case ncclInt8:
		COLL_REDUCE_AS(int8_t);
	case ncclUint8:
		COLL_REDUCE_AS(uint8_t);
	case ncclInt32:
		COLL_REDUCE_AS(int32_t);
	case ncclUint32:
		COLL_REDUCE_AS(uint32_t);
	case ncclInt64:
		COLL_REDUCE_AS(int64_t);
	case ncclUint64:
		COLL_REDUCE_AS(uint64_t);
	case ncclFloat32:
		COLL_REDUCE_AS(float);
	case ncclFloat64:
		COLL_REDUCE_AS(double);
	default:
		break;
	}
}

static ncclResult_t coll_support(ncclDataType_t type, ncclRedOp_t red, int *supported)
{
	int has = type <= ncclUint64 || type == ncclFloat32 || type == ncclFloat64;

	if (BROKEN(coll_support_error) && !has)
		return ncclInvalidArgument;
	*supported = (has || (BROKEN(coll_support_lies) && type == ncclFloat16)) && red <= ncclMin;
	return ncclSuccess;
}

static struct coll_op *coll_at(struct coll *c, uint64_t i)
{
	return &c->ring[i % COLL_REQUESTS];
}

static void coll_done(struct coll *c, struct coll_op *o)
{
	if (BROKEN(coll_wrong) && o->window > 100000)
		o->recv[o->window - 20] ^= 1;
	if (BROKEN(coll_overrun) && o->kind == COLL_REDUCE && o->window % 16)
		o->recv[o->window] = 0;
	o->done = 1;
	c->finished++;
	c->pulled = 0;
	c->reduced = 0;
	memset(c->got, 0, sizeof(c->got));
	memset(c->put, 0, sizeof(c->put));
	for (int i = 0; i < COLL_RANKS; i++) {
		free(c->in[i]);
		c->in[i] = NULL;
	}
}

/* Rank 0: all windows are here. Its own becomes the result. */
static void coll_combine(struct coll *c, struct coll_op *o)
{
	size_t at, n;

	for (int r = 1; r < c->ranks; r++) {
		n = coll_in(o, r, &at);
		if (o->kind == COLL_GATHER)
			memcpy(c->in[0] + (BROKEN(coll_gather_order) && r < 3 ? 0 : at), c->in[r], n);
		else
			coll_reduce(o->type, o->red, c->in[0], c->in[r], o->window);
	}
	c->reduced = 1;
}

/* 0: it has to wait. */
static int coll_root(struct coll *c, struct coll_op *o)
{
	size_t at, n;
	int all = 1;

	for (int r = 0; r < c->ranks; r++) {
		if (!c->in[r])
			c->in[r] = calloc(1, o->window + 1);
		if (!c->in[r]) {
			c->error = ncclSystemError;
			return 0;
		}
		n = coll_in(o, r, &at);
		if (r == 0 && !c->got[0]++)
			memcpy(c->in[0] + at, o->send, n);
		else if (r > 0)
			all &= coll_pull(c, c->fd[r], c->in[r], n, &c->got[r]);
	}
	if (!all)
		return 0;
	if (!c->reduced)
		coll_combine(c, o);
	for (int r = 1; r < c->ranks; r++) {
		n = coll_out(o, r, &at);
		all &= coll_push(c, c->fd[r], c->in[0] + at, n, &c->put[r]);
	}
	if (!all)
		return 0;
	n = coll_out(o, 0, &at);
	memcpy(o->recv, c->in[0] + at, n);
	return 1;
}

static int coll_child(struct coll *c, struct coll_op *o)
{
	size_t at, n;

	while (c->sent < c->posted) {
		struct coll_op *next = coll_at(c, c->sent);

		n = coll_in(next, c->rank, &at);
		if (!coll_push(c, c->fd[0], next->send, n, &c->pushed))
			break;
		c->pushed = 0;
		c->sent++;
	}
	n = coll_out(o, c->rank, &at);
	return c->sent > c->finished && coll_pull(c, c->fd[0], o->recv, n, &c->pulled);
}

static void coll_progress(struct coll *c)
{
	while (!c->error && c->finished < c->posted) {
		struct coll_op *o = coll_at(c, c->finished);

		if (!(c->rank ? coll_child(c, o) : coll_root(c, o)))
			return;
		coll_done(c, o);
	}
}

static ncclResult_t coll_post(struct coll *c, const struct coll_op *op, void **request)
{
	struct coll_op *o = coll_at(c, c->posted);

	*request = NULL;
	if (BROKEN(coll_in_place) && op->send == op->recv)
		return ncclInvalidArgument;
	if (c->error && !BROKEN(coll_death_done))
		return c->error;
	if (o->used)
		return ncclSuccess;
	*o = *op;
	o->coll = c;
	o->used = 1;
	c->posted++;
	coll_progress(c);
	*request = o;
	return BROKEN(coll_death_done) ? ncclSuccess : c->error;
}

static ncclResult_t coll_allreduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type,
				   ncclRedOp_t red, void *send_mr, void *recv_mr, void **request)
{
	static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
	size_t bytes = count * sizes[type];
	struct coll_op o = {.kind = COLL_REDUCE, .type = type, .red = red, .send = send, .recv = recv};

	(void)send_mr, (void)recv_mr;
#ifdef SIMPLE_COLL_MOST
	if (bytes > SIMPLE_COLL_MOST)
		return ncclInvalidArgument;
#endif
	o.per = o.window = bytes;
	return coll_post(comm, &o, request);
}

static ncclResult_t coll_allreduce_v8(void *comm, void *send, void *recv, int count, ncclDataType_t type,
				      ncclRedOp_t red, void *send_mr, void *recv_mr, void **request)
{
	return coll_allreduce(comm, send, recv, (size_t)count, type, red, send_mr, recv_mr, request);
}

static ncclResult_t coll_gather(void *comm, void *send, void *recv, size_t per, size_t offset, size_t window,
				void **request)
{
	struct coll_op o = {.kind = COLL_GATHER, .send = send, .recv = recv, .per = per, .window = window};

	o.offset = BROKEN(coll_gather_base) ? 0 : offset;
	return coll_post(comm, &o, request);
}

static ncclResult_t coll_scatter(void *comm, void *send, void *recv, size_t per, size_t offset, size_t window,
				 ncclDataType_t type, ncclRedOp_t red, void **request)
{
	struct coll_op o = {.kind = COLL_SCATTER, .type = type, .red = red, .send = send, .recv = recv, .per = per};

	o.window = window;
	o.offset = BROKEN(coll_scatter_base) ? 0 : offset;
	return coll_post(comm, &o, request);
}

#define COLL_PARTS(version)                                                                                            \
	static ncclResult_t coll_gather_v##version(void *comm, void *send, int n, ncclNetSGE_v##version##_t *parts,    \
						   size_t per, size_t offset, size_t window, void *mr, void **request) \
	{                                                                                                              \
		(void)mr;                                                                                              \
		return n == 1 && parts->size == window                                                                 \
			       ? coll_gather(comm, send, parts->address, per, offset, window, request)                 \
			       : ncclInvalidArgument;                                                                  \
	}                                                                                                              \
	static ncclResult_t coll_scatter_v##version(void *comm, int n, ncclNetSGE_v##version##_t *parts, void *recv,   \
						    size_t per, size_t offset, size_t window, ncclDataType_t type,     \
						    ncclRedOp_t red, void *mr, void **request)                         \
	{                                                                                                              \
		(void)mr;                                                                                              \
		return n == 1 && parts->size == window                                                                 \
			       ? coll_scatter(comm, parts->address, recv, per, offset, window, type, red, request)     \
			       : ncclInvalidArgument;                                                                  \
	}
COLL_PARTS(8)
COLL_PARTS(9)

static ncclResult_t coll_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
	(void)comm, (void)size;
	*mhandle = data;
	return type == NCCL_PTR_HOST ? ncclSuccess : ncclInvalidArgument;
}

static ncclResult_t coll_reg_v7(void *comm, void *data, int size, int type, void **mhandle)
{
	return coll_reg(comm, data, (size_t)size, type, mhandle);
}

static ncclResult_t coll_dereg(void *comm, void *mhandle)
{
	(void)comm, (void)mhandle;
	return ncclSuccess;
}

static ncclResult_t coll_test(void *request, int *done, int *size)
{
	struct coll_op *o = request;
	struct coll *c = o->coll;

	do
		coll_progress(c);
	while (BROKEN(coll_test_waits) && !o->done && !c->error);
	if (BROKEN(coll_late_error) && !o->done && c->rank == 0)
		return ncclRemoteError;
	if (!o->done && c->error)
		return BROKEN(coll_death_done) ? (*done = 1, ncclSuccess) : c->error;
	if (!o->done && BROKEN(coll_done_unset))
		return ncclSuccess;
	*done = o->done;
	if (o->done) {
		o->used = 0;
		*size = (int)o->window;
	}
	return ncclSuccess;
}

static ncclResult_t coll_close(void *comm)
{
	struct coll *c = comm;

	if (BROKEN(coll_close_refuses) && c->finished < c->posted)
		return ncclInvalidUsage;
	if (BROKEN(coll_close_waits) && c->rank == 0)
		poll(&(struct pollfd){.fd = c->fd[1], .events = POLLRDHUP}, 1, 2000);
	for (int i = 0; i < COLL_RANKS; i++) {
		if (c->fd[i])
			close(c->fd[i]);
		free(c->in[i]);
	}
	free(c);
	return ncclSuccess;
}

static ncclResult_t coll_close_listen(void *listen_comm)
{
	struct coll_listener *l = listen_comm;

	close(l->fd);
	free(l);
	return ncclSuccess;
}

#ifndef SIMPLE_COLL_MOST
#define SIMPLE_COLL_MOST NCCL_MAX_COLLNET_SIZE_BYTES
#endif
static char coll_other[] = "other";
#define COLL_PROPERTIES(version, ...)                                                                                  \
	static ncclResult_t coll_properties_v##version(int dev, ncclNetProperties_v##version##_t *p)                   \
	{                                                                                                              \
		(void)dev;                                                                                             \
		*p = (ncclNetProperties_v##version##_t){.name = BROKEN(coll_name) ? coll_other : simple_name,          \
							.ptrSupport = NCCL_PTR_HOST,                                   \
							.speed = SIMPLE_MBITS,                                         \
							.maxComms = SIMPLE_COMMS,                                      \
							.maxRecvs = 1,                                                 \
							__VA_ARGS__};                                                  \
		return ncclSuccess;                                                                                    \
	}
COLL_PROPERTIES(6)
COLL_PROPERTIES(8)
COLL_PROPERTIES(10, .maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES, .maxCollBytes = SIMPLE_COLL_MOST)
COLL_PROPERTIES(12, .maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES, .maxCollBytes = BROKEN(coll_limit) ? 0 : SIMPLE_COLL_MOST)

static ncclResult_t coll_init(ncclDebugLogger_t log)
{
	(void)log;
	return BROKEN(coll_refuses) ? ncclSystemError : ncclSuccess;
}

static ncclResult_t coll_init_v12(void **ctx, uint64_t comm, ncclDebugLogger_t log)
{
	(void)comm;
	*ctx = malloc(1);
	return coll_init(log);
}

static ncclResult_t coll_listen_v12(void *ctx, int dev, void *handle, void **listen_comm)
{
	(void)ctx;
	return coll_listen(dev, handle, listen_comm);
}

static ncclResult_t coll_finalize(void *ctx)
{
	free(ctx);
	return ncclSuccess;
}

/* clang-format off */
#define COLL_ENTRIES_OF_ALL .name = "simple", .devices = simple_devices, .connect = coll_connect, \
	.reduceSupport = coll_support, .deregMr = coll_dereg, .test = coll_test, .closeColl = coll_close, \
	.closeListen = coll_close_listen
/* clang-format on */
EXPORT ncclCollNet_v6_t ncclCollNetPlugin_v6 = {
	COLL_ENTRIES_OF_ALL,   .init = coll_init,    .getProperties = coll_properties_v6,
	.listen = coll_listen, .regMr = coll_reg_v7, .iallreduce = coll_allreduce_v8,
};
EXPORT ncclCollNet_v8_t ncclCollNetPlugin_v8 = {
	COLL_ENTRIES_OF_ALL,
	.init = coll_init,
	.getProperties = coll_properties_v8,
	.listen = coll_listen,
	.regMr = coll_reg,
	.iallreduce = coll_allreduce_v8,
	.iallgather = coll_gather_v8,
	.ireducescatter = coll_scatter_v8,
};
EXPORT ncclCollNet_v10_t ncclCollNetPlugin_v10 = {
	COLL_ENTRIES_OF_ALL,
	.init = coll_init,
	.getProperties = coll_properties_v10,
	.listen = coll_listen,
	.regMr = coll_reg,
	.iallreduce = coll_allreduce,
	.iallgather = coll_gather_v9,
	.ireducescatter = coll_scatter_v9,
};
EXPORT ncclCollNet_v12_t ncclCollNetPlugin_v12 = {
	COLL_ENTRIES_OF_ALL,
	.init = coll_init_v12,
	.getProperties = coll_properties_v12,
	.listen = coll_listen_v12,
	.regMr = coll_reg,
	.iallreduce = coll_allreduce,
	.iallgather = coll_gather_v9,
	.ireducescatter = coll_scatter_v9,
	.finalize = coll_finalize,
};

#endif
