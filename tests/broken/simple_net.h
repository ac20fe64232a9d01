/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small net plugin that is right, for the tests of `gantry check`: one
 * loopback TCP socket per comm, progress from the calling thread only.
 *
 * broken_none.c is this and nothing else; every other broken_*.c defines one of
 * the switches below and so breaks one promise of the interface:
 *
 *   SIMPLE_IGNORE_TAGS     a message goes to the next buffer of the group, whatever its tag
 *   SIMPLE_ACCEPT_BLOCKS   accept waits for the peer
 *   SIMPLE_POSTED_SIZES    test reports the size of the receive instead of the message's
 *   SIMPLE_LEAK_FD         each comm leaves an fd behind
 *   SIMPLE_IGNORE_DEATH    a lost connection looks like one on which nothing happens
 *   SIMPLE_OVERTAKE        small messages go out at once and overtake a large one that waits for test
 *   SIMPLE_OVERRUN         a message is written in full, however small the receive
 *   SIMPLE_CRASH_ON_EMPTY  isend of no bytes crashes
 *   SIMPLE_DAMAGE          of a message that is longer, this byte is changed on arrival
 *   SIMPLE_FEW_REQUESTS    4 requests per comm instead of 32 (times maxRecvs for sends)
 *
 * Not broken, but another device: fixtures/device.c defines
 *
 *   SIMPLE_DEVICES, SIMPLE_PROPERTIES(dev, p)           how many v11 has; changes their properties
 *   SIMPLE_REG(data, size, type), SIMPLE_DEREG(data)     memory of other types than the host's
 *   SIMPLE_TARGET(data), SIMPLE_FLUSH(data, size)        where what is for there goes to first
 *   SIMPLE_MOST_BYTES      a message that is larger is refused by isend and irecv
 *
 * and fixtures/unpack.c SIMPLE_UNPACK, with the functions of that: receives for memory of a device end in lists.
 *
 * Wire: an 8-byte cookie from the listener's handle, then per message a header
 * of two 64-bit words (size, tag) and the bytes. Messages queue in posting order
 * on both sides; one that arrives before its receive stays in the socket.
 */
#ifndef GANTRY_TESTS_SIMPLE_NET_H
#define GANTRY_TESTS_SIMPLE_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "abi/net_v11.h"
#include "abi/net_v8.h"

#define EXPORT __attribute__((visibility("default")))
#ifdef SIMPLE_FEW_REQUESTS
enum { MAX_RECVS = 4, RECVS = 4, SENDS = 4 };
#else
enum { MAX_RECVS = 4, RECVS = NCCL_NET_MAX_REQUESTS, SENDS = RECVS * MAX_RECVS };
#endif

struct header {
	uint64_t size, tag;
};

/* Within the 128 bytes of the handle; fd is the connecting side's state between calls. */
struct handle {
	struct sockaddr_in addr;
	uint64_t cookie;
	int started, fd;
};

struct comm;
struct request {
	struct comm *comm;
	int used, done, n;
	int got, matched[MAX_RECVS]; /* of a grouped receive */
	uint8_t *data[MAX_RECVS];
	size_t posted[MAX_RECVS], real[MAX_RECVS];
	int tags[MAX_RECVS];
	struct header head; /* of a send */
	size_t moved;	    /* of a send: header and payload */
	uint64_t list;	    /* of a receive with a list, as the next line */
	uint8_t *user;	    /* the buffer; NULL: it has no list */
};

/* Belongs to the thread that posts and tests. Requests are used round robin, so the ring is also the queue. */
struct comm {
	int fd, sending, count;
	ncclResult_t error;
	uint64_t posted, finished; /* finished: the oldest that is not complete */
	struct header head;	   /* of the message being received */
	size_t head_got, body_got;
	int buffer; /* it goes into this buffer of the oldest receive; -1: not known yet */
	struct unpack *unpack;
	struct request ring[SENDS > RECVS ? SENDS : RECVS];
};

#ifdef SIMPLE_UNPACK
static ncclResult_t unpack_accept(struct comm *c, ncclNetDeviceHandle_v8_t **dev_handle);
static void unpack_close(struct comm *c);
static int unpack_post(struct comm *c, struct request *r); /* 0: no list is free */
static void unpack_arrived(struct comm *c, struct request *r);
static ncclResult_t unpack_consumed(void *comm, int n, void *request);
#endif

struct listener {
	int fd, pending; /* pending: accepted, cookie not read yet */
	uint64_t cookie;
};

#ifndef SIMPLE_DEVICES
#define SIMPLE_DEVICES 1
#endif

static ncclResult_t simple_devices(int *ndev)
{
	*ndev = SIMPLE_DEVICES;
	return ncclSuccess;
}

static ncclResult_t simple_listen(int dev, void *handle, void **ret_listen)
{
	struct handle *h = handle;
	struct listener *l = calloc(1, sizeof(*l));
	socklen_t len = sizeof(h->addr);
	struct timespec t;

	(void)dev;
	if (!l)
		return ncclSystemError;
	memset(h, 0, sizeof(*h));
	clock_gettime(CLOCK_MONOTONIC, &t);
	h->addr.sin_family = AF_INET;
	h->addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	l->cookie = h->cookie = (uint64_t)t.tv_nsec << 32 | (uint64_t)getpid();
	l->pending = -1;
	l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&h->addr, len) != 0 || listen(l->fd, 16) != 0 ||
	    getsockname(l->fd, (struct sockaddr *)&h->addr, &len) != 0) {
		if (l->fd >= 0)
			close(l->fd);
		free(l);
		return ncclSystemError;
	}
	*ret_listen = l;
	return ncclSuccess;
}

static ncclResult_t comm_make(int fd, int sending, void **ret_comm)
{
	struct comm *c = calloc(1, sizeof(*c));
	int one = 1;

	if (!c) {
		close(fd);
		return ncclSystemError;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	c->fd = fd;
	c->sending = sending;
	c->count = sending ? SENDS : RECVS;
	c->buffer = -1;
	*ret_comm = c;
	return ncclSuccess;
}

static ncclResult_t simple_connect(int dev, void *handle, void **ret_comm, ncclNetDeviceHandle_v8_t **dev_handle)
{
	struct handle *h = handle;
	struct pollfd p = {.events = POLLOUT};
	int error = 0;
	socklen_t len = sizeof(error);

	(void)dev;
	(void)dev_handle;
	*ret_comm = NULL;
	if (!h->started) {
		h->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (h->fd < 0)
			return ncclSystemError;
		h->started = 1;
		if (connect(h->fd, (struct sockaddr *)&h->addr, sizeof(h->addr)) != 0 && errno != EINPROGRESS)
			return ncclRemoteError;
	}
	p.fd = h->fd;
	if (poll(&p, 1, 0) != 1)
		return ncclSuccess;
	if (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error ||
	    send(h->fd, &h->cookie, sizeof(h->cookie), MSG_NOSIGNAL) != sizeof(h->cookie))
		return ncclRemoteError;
	return comm_make(h->fd, 1, ret_comm);
}

static ncclResult_t simple_accept(void *listen_comm, void **ret_comm, ncclNetDeviceHandle_v8_t **dev_handle)
{
	struct listener *l = listen_comm;
	uint64_t cookie = 0;
	ssize_t got;
	int fd;

	(void)dev_handle;
	*ret_comm = NULL;
#ifdef SIMPLE_ACCEPT_BLOCKS
	struct pollfd p = {.fd = l->fd, .events = POLLIN};
	if (l->pending < 0)
		poll(&p, 1, -1);
#endif
	if (l->pending < 0)
		l->pending = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (l->pending < 0)
		return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR ? ncclSuccess : ncclSystemError;
	/* Eight bytes sent in one call on a fresh connection come in one piece. */
	got = recv(l->pending, &cookie, sizeof(cookie), MSG_PEEK);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return ncclSuccess;
	fd = l->pending;
	l->pending = -1;
	if (got != sizeof(cookie) || cookie != l->cookie) {
		close(fd);
		return ncclSuccess; /* a stranger */
	}
	got = recv(fd, &cookie, sizeof(cookie), 0);
	(void)got;
#ifdef SIMPLE_UNPACK
	return comm_make(fd, 0, ret_comm) == ncclSuccess ? unpack_accept(*ret_comm, dev_handle) : ncclSystemError;
#else
	return comm_make(fd, 0, ret_comm);
#endif
}

static ncclResult_t simple_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
	(void)size;
#ifdef SIMPLE_UNPACK
	if (type == NCCL_PTR_CUDA)
		type = NCCL_PTR_HOST;
#endif
	if (!comm)
		return ncclInvalidArgument;
#ifdef SIMPLE_REG
	SIMPLE_REG(data, size, type);
#else
	if (type != NCCL_PTR_HOST)
		return ncclInvalidArgument;
#endif
	*mhandle = data;
	return ncclSuccess;
}

static ncclResult_t simple_dereg(void *comm, void *mhandle)
{
	(void)mhandle;
#ifdef SIMPLE_DEREG
	SIMPLE_DEREG(mhandle);
#endif
	return comm ? ncclSuccess : ncclInvalidArgument;
}

static struct request *ring_at(struct comm *c, uint64_t i)
{
	return &c->ring[i % (uint64_t)c->count];
}

static struct request *ring_take(struct comm *c)
{
	struct request *r = ring_at(c, c->posted);

	if (r->used)
		return NULL;
	c->posted++;
	memset(r, 0, sizeof(*r));
	r->used = 1;
	r->comm = c;
	return r;
}

/* What a socket call that moved nothing means: 0 again later, 1 the connection is gone. */
static int lost(struct comm *c, ssize_t n)
{
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
#ifndef SIMPLE_IGNORE_DEATH
	c->error = ncclRemoteError;
#else
	(void)c;
#endif
	return 1;
}

static void progress_send(struct comm *c)
{
	while (!c->error && c->finished < c->posted) {
		struct request *r = ring_at(c, c->finished);
		size_t skip = r->moved < sizeof(r->head) ? 0 : r->moved - sizeof(r->head);
		struct iovec v[2] = {{(uint8_t *)&r->head + r->moved, sizeof(r->head) - r->moved},
				     {r->data[0] + skip, r->posted[0] - skip}};
		int head = r->moved < sizeof(r->head);
		struct msghdr m = {.msg_iov = head ? v : v + 1, .msg_iovlen = head ? 2 : 1};
		ssize_t n;

		if (r->moved < sizeof(r->head) + r->posted[0]) {
			n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
			if (n <= 0) {
				lost(c, n);
				return;
			}
			r->moved += (size_t)n;
		}
		if (r->moved == sizeof(r->head) + r->posted[0]) {
			r->done = 1;
			c->finished++;
		}
	}
}

/* The buffer of the oldest receive that this message is for. */
static int match(struct request *r, uint64_t tag)
{
	for (int k = 0; k < r->n; k++) {
#ifdef SIMPLE_IGNORE_TAGS
		(void)tag;
		if (!r->matched[k])
			return k;
#else
		if (!r->matched[k] && (uint64_t)r->tags[k] == tag)
			return k;
#endif
	}
	return -1;
}

/* Reads the header of the next message and finds its place; 0 when that has to wait. */
static int receive_head(struct comm *c, struct request *r)
{
	while (c->head_got < sizeof(c->head)) {
		ssize_t n = recv(c->fd, (uint8_t *)&c->head + c->head_got, sizeof(c->head) - c->head_got, 0);

		if (n <= 0) {
			lost(c, n);
			return 0;
		}
		c->head_got += (size_t)n;
	}
	c->buffer = match(r, c->head.tag);
	if (c->buffer < 0) {
		c->error = ncclInternalError;
		return 0;
	}
#ifndef SIMPLE_OVERRUN
	if (c->head.size > r->posted[c->buffer]) {
		c->error = ncclInvalidUsage;
		return 0;
	}
#endif
	return 1;
}

static void message_done(struct comm *c, struct request *r)
{
#ifdef SIMPLE_DAMAGE
	if (c->head.size > SIMPLE_DAMAGE)
		r->data[c->buffer][SIMPLE_DAMAGE] ^= 1;
#endif
	r->matched[c->buffer] = 1;
#ifdef SIMPLE_POSTED_SIZES
	r->real[c->buffer] = r->posted[c->buffer];
#else
	r->real[c->buffer] = c->head.size;
#endif
	c->buffer = -1;
	c->head_got = c->body_got = 0;
	if (++r->got == r->n) {
#ifdef SIMPLE_UNPACK
		unpack_arrived(c, r);
#endif
		r->done = 1;
		c->finished++;
	}
}

static void progress_recv(struct comm *c)
{
	while (!c->error && c->finished < c->posted) {
		struct request *r = ring_at(c, c->finished);
		ssize_t n;

		if (c->buffer < 0 && !receive_head(c, r))
			return;
		if (c->body_got < c->head.size) {
			n = recv(c->fd, r->data[c->buffer] + c->body_got, c->head.size - c->body_got, 0);
			if (n <= 0) {
				lost(c, n);
				return;
			}
			c->body_got += (size_t)n;
		}
		if (c->body_got == c->head.size)
			message_done(c, r);
	}
}

#ifdef SIMPLE_OVERTAKE
/* The newest message trades places with a large one before it that has not begun to move. */
static void overtake(struct comm *c, struct request *r)
{
	struct request *before = ring_at(c, c->posted - 2), mine = *r;

	if (c->posted - c->finished < 2 || before->moved || before->posted[0] <= 65536)
		return;
	r->data[0] = before->data[0];
	r->posted[0] = before->posted[0];
	r->head = before->head;
	before->data[0] = mine.data[0];
	before->posted[0] = mine.posted[0];
	before->head = mine.head;
}
#endif

static ncclResult_t post_send(void *send_comm, void *data, size_t size, int tag, void **request)
{
	struct comm *c = send_comm;
	struct request *r;

	*request = NULL;
	if (c->error)
		return c->error;
#ifdef SIMPLE_MOST_BYTES
	if (size > SIMPLE_MOST_BYTES)
		return ncclInvalidArgument;
#endif
	r = ring_take(c);
	if (!r)
		return ncclSuccess;
	r->n = 1;
	r->data[0] = data;
	r->posted[0] = r->real[0] = size;
	r->head = (struct header){.size = size, .tag = (uint64_t)tag};
#ifdef SIMPLE_CRASH_ON_EMPTY
	if (size == 0)
		*(volatile int *)NULL = 1;
#endif
#ifdef SIMPLE_OVERTAKE
	if (size <= 65536) {
		overtake(c, r);
		progress_send(c);
	}
#else
	progress_send(c);
#endif
	*request = r;
	return c->error;
}

static ncclResult_t post_recv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **request)
{
	struct comm *c = recv_comm;
	struct request *r;
	int optional = *request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;

	*request = NULL;
	if (c->error)
		return c->error;
	if (n < 1 || n > MAX_RECVS)
		return ncclInvalidArgument;
#ifdef SIMPLE_MOST_BYTES
	for (int k = 0; k < n; k++)
		if (sizes[k] > SIMPLE_MOST_BYTES)
			return ncclInvalidArgument;
#endif
	r = ring_take(c);
	if (!r)
		return ncclSuccess;
	r->n = n;
	for (int k = 0; k < n; k++) {
#ifdef SIMPLE_TARGET
		r->data[k] = SIMPLE_TARGET(data[k]);
#else
		r->data[k] = data[k];
#endif
		r->posted[k] = sizes[k];
		r->tags[k] = tags[k];
	}
#ifdef SIMPLE_UNPACK
	if (!optional && !unpack_post(c, r)) {
		r->used = 0;
		c->posted--;
		return ncclSuccess;
	}
#else
	(void)optional;
#endif
	*request = r;
	return ncclSuccess;
}

static ncclResult_t simple_flush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
	(void)comm, (void)n, (void)data, (void)sizes, (void)mhandles;
	*request = NULL; /* nothing to flush in host memory */
#ifdef SIMPLE_FLUSH
	for (int k = 0; k < n; k++)
		SIMPLE_FLUSH(data[k], sizes[k]);
#endif
	return ncclSuccess;
}

static ncclResult_t simple_test(void *request, int *done, int *sizes)
{
	struct request *r = request;
	struct comm *c = r->comm;

	*done = 0;
	if (!r->done) {
		if (c->sending)
			progress_send(c);
		else
			progress_recv(c);
	}
	if (!r->done)
		return c->error;
	*done = 1;
	for (int k = 0; k < r->n && sizes; k++)
		sizes[k] = (int)r->real[k];
	r->used = 0;
	return ncclSuccess;
}

static ncclResult_t simple_close(void *comm)
{
	struct comm *c = comm;

#ifdef SIMPLE_LEAK_FD
	int left = open("/dev/null", O_RDONLY | O_CLOEXEC);
	(void)left;
#endif
	close(c->fd);
#ifdef SIMPLE_UNPACK
	unpack_close(c);
#endif
	free(c);
	return ncclSuccess;
}

static ncclResult_t simple_close_listen(void *listen_comm)
{
	struct listener *l = listen_comm;

	if (l->pending >= 0)
		close(l->pending);
	close(l->fd);
	free(l);
	return ncclSuccess;
}

/* ---- the tables: v8 and v11 ---- */

static char simple_name[] = "simple";
enum { SIMPLE_MBITS = 10000, SIMPLE_COMMS = 1024 };

/* What the tables of all versions have. */
/* clang-format off */
#define SIMPLE_PROPERTIES_OF_ALL .name = simple_name, .ptrSupport = NCCL_PTR_HOST, .speed = SIMPLE_MBITS, \
	.maxComms = SIMPLE_COMMS, .maxRecvs = MAX_RECVS, .netDeviceType = NCCL_NET_DEVICE_HOST
#define SIMPLE_ENTRIES_OF_ALL .name = simple_name, .devices = simple_devices, .accept = simple_accept, \
	.regMr = simple_reg, .deregMr = simple_dereg, .iflush = simple_flush, .test = simple_test, \
	.closeSend = simple_close, .closeRecv = simple_close, .closeListen = simple_close_listen
/* clang-format on */

static ncclResult_t init_v8(ncclDebugLogger_t log)
{
	(void)log;
	return ncclSuccess;
}

static ncclResult_t properties_v8(int dev, ncclNetProperties_v8_t *props)
{
	if (dev != 0)
		return ncclInvalidArgument;
	*props = (ncclNetProperties_v8_t){
		SIMPLE_PROPERTIES_OF_ALL,
	};
	return ncclSuccess;
}

static ncclResult_t isend_v8(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
	(void)mhandle;
	return post_send(comm, data, (size_t)size, tag, request);
}

static ncclResult_t irecv_v8(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
	size_t wide[MAX_RECVS];

	(void)mhandles;
	for (int k = 0; k < n && k < MAX_RECVS; k++)
		wide[k] = (size_t)sizes[k];
	return post_recv(comm, n, data, wide, tags, request);
}

extern const ncclNet_v8_t ncclNetPlugin_v8;
EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
	SIMPLE_ENTRIES_OF_ALL,	 .init = init_v8,	    .getProperties = properties_v8,
	.listen = simple_listen, .connect = simple_connect, .isend = isend_v8,
	.irecv = irecv_v8,
};

static ncclResult_t init_v11(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
			     ncclProfilerCallback_t profiler)
{
	(void)comm_id, (void)config, (void)log, (void)profiler;
#ifdef SIMPLE_INIT
	SIMPLE_INIT;
#endif
	*ctx = malloc(1);
	return *ctx ? ncclSuccess : ncclSystemError;
}

static ncclResult_t finalize_v11(void *ctx)
{
	free(ctx);
	return ncclSuccess;
}

static ncclResult_t properties_v11(int dev, ncclNetProperties_v11_t *props)
{
	if (dev < 0 || dev >= SIMPLE_DEVICES)
		return ncclInvalidArgument;
	*props = (ncclNetProperties_v11_t){
		SIMPLE_PROPERTIES_OF_ALL,
		.vProps = {.ndevs = 1, .devs = {dev}},
		.maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES,
		.maxCollBytes = NCCL_MAX_COLLNET_SIZE_BYTES,
		.maxMultiRequestSize = 1,
	};
#ifdef SIMPLE_PROPERTIES
	SIMPLE_PROPERTIES(dev, props);
#endif
	return ncclSuccess;
}

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	(void)ctx;
	return simple_listen(dev, handle, listen_comm);
}

static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v11_t **dev_handle)
{
	(void)ctx;
	return simple_connect(dev, handle, comm, dev_handle);
}

static ncclResult_t isend_v11(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
			      void **request)
{
	(void)mhandle, (void)phandle;
	return post_send(comm, data, size, tag, request);
}

static ncclResult_t irecv_v11(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
			      void **phandles, void **request)
{
	(void)mhandles, (void)phandles;
	return post_recv(comm, n, data, sizes, tags, request);
}

extern const ncclNet_v11_t ncclNetPlugin_v11;
EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
	SIMPLE_ENTRIES_OF_ALL,
	.init = init_v11,
	.getProperties = properties_v11,
	.listen = listen_v11,
	.connect = connect_v11,
	.isend = isend_v11,
	.irecv = irecv_v11,
	.finalize = finalize_v11,
#ifdef SIMPLE_UNPACK
	.irecvConsumed = unpack_consumed,
#endif
};

#endif
