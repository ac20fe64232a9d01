/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small net plugin that is right, for the tests of `gantry check`: one
 * loopback TCP socket per comm, progress from the calling thread only.
 *
 * variants.c breaks one promise of the interface at a time, or keeps all of them in an unusual way: BROKEN(name) below
 * is true where the variable of that name in the environment asks for it. tests/system/check_broken.sh has the list.
 * broken_none.c has none of it, broken_bytes.c changes a byte of every message (SIMPLE_DAMAGE).
 *
 * Not broken, but another device: fixtures/device.c defines
 *
 *   SIMPLE_DEVICES, SIMPLE_PROPERTIES(dev, p)           how many v11 has; changes their properties
 *   SIMPLE_AT(call, dev)   before listen and connect
 *   SIMPLE_REG(data, size, type), SIMPLE_DEREG(data)     memory of other types than the host's
 *   SIMPLE_TARGET(data), SIMPLE_FLUSH(data, size)        where what is for there goes to first
 *   SIMPLE_ATTR(attr)      what setNetAttr does
 *   SIMPLE_STARTED(event, phandle, bytes), SIMPLE_STOPPED(event)   of each message of a request that was posted, and when
 *                          test reports it
 *   SIMPLE_MOST_BYTES      a message that is larger is refused by isend and irecv
 *   SIMPLE_RECVS           maxRecvs (4)
 *   SIMPLE_STASH           every message is kept aside first, and goes to the first receive with its tag: receives
 *                          complete in any order
 *
 * and fixtures/unpack.c SIMPLE_UNPACK, with the functions of that: receives for memory of a device end in lists.
 *
 * Wire: an 8-byte cookie from the listener's handle, then per message a header
 * of two 64-bit words (size, tag) and the bytes. Messages queue in posting order
 * on both sides; one that arrives before its receive stays in the socket, or is kept aside if the oldest receive has no
 * buffer left for its tag: another tag's message may be behind it.
 */
#ifndef GANTRY_TESTS_SIMPLE_NET_H
#define GANTRY_TESTS_SIMPLE_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "abi/net_v11.h"
#include "abi/net_v8.h"

#define EXPORT __attribute__((visibility("default")))
#ifndef BROKEN
#define BROKEN(name) 0
#endif
#ifndef SIMPLE_STASH
#define SIMPLE_STASH 0
#endif
#ifndef SIMPLE_RECVS
#define SIMPLE_RECVS 4
#endif
enum { MAX_RECVS = SIMPLE_RECVS, RECVS = NCCL_NET_MAX_REQUESTS, SENDS = RECVS * MAX_RECVS, FEW = 4, MANY = 16 };
enum { LONG_BYTES = 65536 };
static const size_t LONG = LONG_BYTES;

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
	int used, done, n, tests;
	void **kept;		     /* the array of buffers as it was given */
	int got, matched[MAX_RECVS]; /* of a grouped receive */
	int arrived[MAX_RECVS];	     /* its buffers in the order in which they were filled */
	uint64_t since_ms;	     /* when it was first tested: variants that give up */
	uint8_t *data[MAX_RECVS];
	size_t posted[MAX_RECVS], real[MAX_RECVS];
	int tags[MAX_RECVS];
	void *events[MAX_RECVS];
	struct header head; /* of a send */
	size_t moved;	    /* of a send: header and payload */
	uint64_t list;	    /* of a receive with a list, as the next line */
	uint8_t *user;	    /* the buffer; NULL: it has no list */
};

/* A message whose receive is not there yet. */
struct aside {
	struct aside *next;
	struct header head;
	uint8_t bytes[];
};

/* Belongs to the thread that posts and tests. Requests are used round robin, so the ring is also the queue. */
struct comm {
	int fd, sending, count;
	ncclResult_t error;
	uint64_t posted, finished; /* finished: the oldest that is not complete */
	struct header head;	   /* of the message being received */
	size_t head_got, body_got;
	int buffer;	     /* it goes into this buffer of the oldest receive; -1: not known yet */
	struct aside *aside; /* those kept, in the order of arrival; owned */
	struct aside *into;  /* the one being received; owned */
	int mrs, number;
	int *closings, closed; /* of the thread that made it: how many, and how many when it was made */
	uint64_t tested;       /* requests that were reported done */
	struct unpack *unpack;
	int epoch;	  /* finalize_all */
	uint64_t used_ms; /* idle_closes */
	int holds;	  /* one byte of a message that was reported done: the variants holds_* */
	uint8_t held;
	struct request ring[SENDS > RECVS ? SENDS : RECVS];
};

#ifdef SIMPLE_UNPACK
static ncclResult_t unpack_accept(struct comm *c, ncclNetDeviceHandle_v8_t **dev_handle);
static void unpack_close(struct comm *c);
static int unpack_post(struct comm *c, struct request *r); /* 0: no list is free */
static void unpack_arrived(struct comm *c, struct request *r);
static ncclResult_t unpack_consumed(void *comm, int n, void *request);
static ncclResult_t unpack_device_mr(void *comm, void *mhandle, void **dptr);
#endif

struct listener {
	int fd, pending; /* pending: accepted, cookie not read yet */
	int calls;
	uint64_t cookie, since_ms;
};

#include "planted.h"

#ifndef SIMPLE_DEVICES
#define SIMPLE_DEVICES 1
#endif

static int comms_open, comms_made, contexts_open, simple_finalized; /* of the process; only variants look at them */
static int fused;						    /* devices made by makeVDevice */
/* connect is done when accept has answered. */
#define SIMPLE_SHAKES (BROKEN(connect_shakes) || BROKEN(connect_gives_up))
#define SIMPLE_NAMES (BROKEN(name_static) || BROKEN(name_freed))
#define SIMPLE_GPU (BROKEN(gpu) || BROKEN(gpu_refused) || BROKEN(gpu_flush_error) || BROKEN(gpu_flush_writes))
#define SIMPLE_FUSES                                                                                                   \
	(BROKEN(fuses) || BROKEN(fuse_refused) || BROKEN(fuse_lost) || BROKEN(fuse_deaf) || BROKEN(fuse_odd))

static ncclResult_t simple_devices(int *ndev)
{
	if (BROKEN(no_devices))
		*ndev = 0;
	else if (BROKEN(devices_change))
		*ndev = planted_asked() > PLANTED_ASKED ? 2 : 1;
	else if (!BROKEN(devices_unset))
		*ndev = BROKEN(second_device) || BROKEN(two_devices) || BROKEN(props_pci_static) || SIMPLE_NAMES ||
					SIMPLE_FUSES
				? 2 + fused
				: SIMPLE_DEVICES;
	return ncclSuccess;
}

static ncclResult_t simple_listen(int dev, void *handle, void **ret_listen)
{
	struct handle *h = handle;
	struct listener *l = calloc(1, sizeof(*l));
	socklen_t len = sizeof(h->addr);
	struct timespec t;

	if (!l || (dev && BROKEN(second_device)) || (dev == 2 && BROKEN(fuse_deaf)))
		return ncclSystemError;
	if (BROKEN(few_listeners) && planted_listeners >= PLANTED_LISTENERS)
		return ncclSystemError;
	memset(h, 0, sizeof(*h));
	if (BROKEN(handle_over))
		((char *)handle)[NCCL_NET_HANDLE_MAXSIZE] = 1;
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
	if (BROKEN(handle_repeats)) {
		static struct handle first;

		if (planted_listeners == 0)
			first = *h;
		else if (planted_listeners == PLANTED_LISTENERS)
			*h = first;
	}
	__atomic_fetch_add(&planted_listeners, 1, __ATOMIC_RELAXED);
	if (BROKEN(accept_any))
		planted_listen(l->fd, 1);
	*ret_listen = l;
	return ncclSuccess;
}

/*
 * thread_bound: what a thread made is of no use as soon as it has closed one of them. NCCL closes the connections of a
 * communicator together, and each communicator has its own thread for them. close_all: the same for all threads.
 */
static int *closings(void)
{
	static __thread int *mine;
	static int all;

	if (!mine && BROKEN(thread_bound))
		mine = calloc(1, sizeof(*mine));
	return BROKEN(thread_bound) ? mine : &all;
}

/* one_poster: the first thread that posts is the only one. */
static int usable(const struct comm *c)
{
	static pthread_t poster;
	static int known;

	if (BROKEN(one_poster) && !__atomic_exchange_n(&known, 1, __ATOMIC_ACQ_REL))
		poster = pthread_self();
	if (BROKEN(one_poster) && !pthread_equal(poster, pthread_self()))
		return 0;
	return !(BROKEN(thread_bound) || BROKEN(close_all)) ||
	       __atomic_load_n(c->closings, __ATOMIC_RELAXED) == c->closed;
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
	c->number = __atomic_fetch_add(&comms_made, 1, __ATOMIC_RELAXED);
	c->epoch = planted_epoch;
	planted_table[c->number % PLANTED_TABLE] = c;
	if (BROKEN(leak_map))
		planted_map();
	if (BROKEN(few_requests) || (sending && BROKEN(few_sends)))
		c->count = FEW;
	__atomic_fetch_add(&comms_open, 1, __ATOMIC_RELAXED);
	c->closings = closings();
	c->closed = __atomic_load_n(c->closings, __ATOMIC_RELAXED);
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

	(void)dev_handle;
	*ret_comm = NULL;
	if (BROKEN(handle_connect))
		((char *)handle)[NCCL_NET_HANDLE_MAXSIZE + 40] = 1;
	if (BROKEN(never_connects))
		return ncclSuccess;
	if ((dev && BROKEN(second_device)) || (BROKEN(few_comms) && comms_open >= FEW) ||
	    (BROKEN(comms_16) && comms_open >= PLANTED_COMMS))
		return ncclSystemError;
	if (BROKEN(one_connect)) { /* pending at a time */
		static void *pending;

		if (pending && pending != handle && !h->started)
			return ncclInvalidUsage;
		pending = pending || h->started ? NULL : handle;
		if (pending)
			return ncclSuccess;
	}
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
	if (h->started == 1 && (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error ||
				send(h->fd, &h->cookie, sizeof(h->cookie), MSG_NOSIGNAL) != sizeof(h->cookie)))
		return ncclRemoteError;
	h->started++;
	if (SIMPLE_SHAKES && recv(h->fd, &h->cookie, 1, 0) != 1)
		return BROKEN(connect_gives_up) && h->started > PLANTED_ACCEPTS ? ncclRemoteError : ncclSuccess;
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
	if (l->pending < 0 && BROKEN(accept_blocks))
		poll(&(struct pollfd){.fd = l->fd, .events = POLLIN}, 1, -1);
	if (BROKEN(never_accepts))
		return ncclSuccess;
	if (BROKEN(leak_accept))
		planted_leak(PLANTED_LEAK);
	if ((BROKEN(accept_gives_up) || BROKEN(tardy)) && !l->since_ms)
		l->since_ms = planted_ms();
	if (BROKEN(tardy) && planted_ms() - l->since_ms < PLANTED_TARDY_MS)
		return ncclSuccess;
	if (l->pending < 0)
		l->pending = BROKEN(accept_any) ? planted_accept()
						: accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (l->pending < 0 &&
	    (BROKEN(accept_impatient) || (BROKEN(accept_gives_up) && planted_ms() - l->since_ms > PLANTED_MS) ||
	     (BROKEN(accept_counts) && ++l->calls > PLANTED_ACCEPTS)))
		return ncclRemoteError;
	if (l->pending < 0)
		return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR ? ncclSuccess : ncclSystemError;
	/* Eight bytes sent in one call on a fresh connection come in one piece. */
	got = recv(l->pending, &cookie, sizeof(cookie), MSG_PEEK);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return ncclSuccess;
	fd = l->pending;
	l->pending = -1;
	if (got != sizeof(cookie) || (cookie != l->cookie && !BROKEN(accept_any))) {
		close(fd);
		return ncclSuccess; /* a stranger */
	}
	got = recv(fd, &cookie, sizeof(cookie), 0);
	if (SIMPLE_SHAKES)
		got = send(fd, &cookie, 1, MSG_NOSIGNAL);
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
	if (type == NCCL_PTR_CUDA && SIMPLE_GPU && !BROKEN(gpu_refused))
		type = NCCL_PTR_HOST;
	if (!comm)
		return ncclInvalidArgument;
	if (BROKEN(leak_reg))
		planted_leak(PLANTED_LEAK / 4);
	if (BROKEN(reg_busy) && ((struct comm *)comm)->posted)
		return ncclInvalidUsage;
	if (++((struct comm *)comm)->mrs > MANY && BROKEN(few_mrs))
		return ncclSystemError;
#ifdef SIMPLE_REG
	SIMPLE_REG(data, size, type);
#else
	if (type != NCCL_PTR_HOST)
		return ncclInvalidArgument;
#endif
	if (!BROKEN(null_mr)) /* as NCCL's Socket: NULL, which NCCL has put there, is a handle */
		*mhandle = data;
	return ncclSuccess;
}

static ncclResult_t simple_dereg(void *comm, void *mhandle)
{
	if (mhandle && BROKEN(null_mr))
		return ncclInvalidArgument;
	if (comm)
		((struct comm *)comm)->mrs--;
	if (comm && BROKEN(dereg_busy) && ((struct comm *)comm)->finished < ((struct comm *)comm)->posted)
		return ncclInvalidUsage;
	if (comm && BROKEN(dereg_all))
		((struct comm *)comm)->error = ncclInternalError;
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
	__atomic_fetch_add(&planted_in_flight, 1, __ATOMIC_RELAXED);
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
	if (!BROKEN(ignore_death) && !(BROKEN(ignore_late_death) && c->posted > 8) &&
	    !(BROKEN(ignore_idle_death) && !c->sending && c->finished == 12 && !c->head_got))
		c->error = ncclRemoteError;
	return 1;
}

static void *volatile leaked;

/* Sends what is held back; 0 when that has to wait. */
static int send_held(struct comm *c)
{
	if (c->holds && send(c->fd, &c->held, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
		c->holds = 0;
	return !c->holds;
}

/* long_ring: made for many more messages than come, so its pages are touched one after the other. */
static void record_message(void)
{
	enum { RECORDS = 1 << 20 };
	static uint64_t *ring, next;

	if (!ring)
		ring = calloc(RECORDS, sizeof(*ring) * 8);
	if (ring)
		ring[next % RECORDS * 8] = next, next++;
}

static void progress_send(struct comm *c)
{
	while (!c->error && c->finished < c->posted && send_held(c)) {
		struct request *r = ring_at(c, c->finished);
		size_t skip = r->moved < sizeof(r->head) ? 0 : r->moved - sizeof(r->head);
		/* The last byte waits for the next call that sends. */
		size_t keep = r->posted[0] && (BROKEN(holds_all) || (BROKEN(holds_large) && r->posted[0] > LONG));
		size_t whole = sizeof(r->head) + r->posted[0] - keep;
		struct iovec v[2] = {{(uint8_t *)&r->head + r->moved, sizeof(r->head) - r->moved},
				     {r->data[0] + skip, r->posted[0] - skip - keep}};
		int head = r->moved < sizeof(r->head);
		struct msghdr m = {.msg_iov = head ? v : v + 1, .msg_iovlen = head ? 2 : 1};
		ssize_t n;

		/* Half of it goes at once, the rest after it was reported as done: however much the socket takes. */
		if (BROKEN(done_early) && !head && r->used)
			return;
		if (BROKEN(done_early) && head)
			v[1].iov_len /= 2;
		if (r->moved < whole) {
			n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
			if (n <= 0) {
				lost(c, n);
				return;
			}
			r->moved += (size_t)n;
		}
		if (BROKEN(done_early) && r->moved < whole)
			return;
		if (r->moved == whole) {
			c->held = keep ? r->data[0][r->posted[0] - 1] : 0;
			c->holds = keep != 0;
			if (BROKEN(leak_message))
				leaked = malloc(64);
			if (BROKEN(long_ring))
				record_message();
			r->done = 1;
			c->finished++;
		}
	}
}

/* The buffer of the oldest receive that this message is for. */
static int match(struct request *r, uint64_t tag)
{
	for (int k = 0; k < r->n; k++) {
		if (!r->matched[k] && (planted_tag((uint64_t)r->tags[k]) == planted_tag(tag) || BROKEN(ignore_tags) ||
				       (BROKEN(last_tag_any) && k == MAX_RECVS - 2)))
			return k;
	}
	return -1;
}

/* A message without a buffer: room for it, and its way into the list when it is there. */
static void put_aside(struct comm *c)
{
	struct aside **at = &c->aside;

	if (!c->into)
		c->into = malloc(sizeof(*c->into) + c->head.size);
	if (!c->into || BROKEN(tags_in_order)) {
		c->error = ncclInternalError;
		return;
	}
	c->into->head = c->head;
	c->into->next = NULL;
	if (c->body_got < c->head.size)
		return;
	while (*at)
		at = &(*at)->next;
	*at = c->into;
	c->into = NULL;
	c->head_got = c->body_got = 0;
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
	if (c->head.size == 0 && BROKEN(drop_empty)) {
		c->head_got = 0;
		return 0;
	}
	c->buffer = match(r, c->head.tag);
	if (BROKEN(keep_arrays) && c->buffer >= 0)
		r->data[c->buffer] = r->kept[c->buffer];
	if (c->buffer < 0)
		put_aside(c);
	else if (c->head.size > r->posted[c->buffer] && BROKEN(truncate))
		c->head.size = r->posted[c->buffer];
	else if (c->head.size > r->posted[c->buffer] && !BROKEN(overrun))
		c->error = ncclInvalidUsage;
	else if (c->head.size < r->posted[c->buffer] && BROKEN(exact_sizes))
		c->error = ncclInvalidUsage;
	return !c->error;
}

static void message_done(struct comm *c, struct request *r)
{
#ifdef SIMPLE_DAMAGE
	if (c->head.size > SIMPLE_DAMAGE)
		r->data[c->buffer][SIMPLE_DAMAGE] ^= 1;
#endif
	r->matched[c->buffer] = 1;
	r->real[c->buffer] = BROKEN(posted_sizes) ? r->posted[c->buffer] : BROKEN(no_sizes) ? 0 : c->head.size;
	if (BROKEN(clear_rest))
		memset(r->data[c->buffer] + c->head.size, 0, r->posted[c->buffer] - c->head.size);
	if (BROKEN(flip_bit) && c->head.size > 50 && c->finished == 77)
		r->data[c->buffer][50] ^= 1;
	if (c->head.size && ((c->head.size > LONG && c->head.size % 4 && BROKEN(odd_end)) ||
			     (c->head.size > LONG << 8 && BROKEN(long_end))))
		r->data[c->buffer][c->head.size - 1] ^= 1;
	planted_arrived(c, r->data[c->buffer], c->head.size);
	r->arrived[r->got] = c->buffer;
	if (BROKEN(last_comm) && c->number < __atomic_load_n(&comms_made, __ATOMIC_RELAXED) - 3)
		c->error = ncclInternalError;
	if (BROKEN(counter_wraps) && c->finished == 1 << 16)
		c->error = ncclInternalError;
	c->buffer = -1;
	c->head_got = c->body_got = 0;
	if (++r->got == r->n || (BROKEN(group_short) && r->n > 2 && r->got == r->n - 1)) {
#ifdef SIMPLE_UNPACK
		unpack_arrived(c, r);
#endif
		r->done = 1;
		c->finished++;
	}
}

/* The first one kept aside that the oldest receive has a buffer for. */
static void take_aside(struct comm *c, struct request *r)
{
	for (struct aside **at = &c->aside, *a; (a = *at);) {
		int k = match(r, a->head.tag);

		if (k < 0) {
			at = &a->next;
			continue;
		}
		if (a->head.size > r->posted[k]) {
			c->error = ncclInvalidUsage;
			return;
		}
		*at = a->next;
		memcpy(r->data[k], a->bytes, a->head.size);
		r->matched[k] = 1;
		r->real[k] = a->head.size;
		r->arrived[r->got] = k;
		r->done = ++r->got == r->n;
		free(a);
	}
	c->finished += (uint64_t)r->done;
}

static void progress_recv(struct comm *c)
{
	while (!c->error && c->finished < c->posted) {
		struct request *r = ring_at(c, c->finished);
		int fresh = c->buffer < 0 && !c->into;
		uint8_t *to;

		if (fresh && c->head_got == 0)
			take_aside(c, r);
		if (r->done)
			continue;
		if (fresh && !receive_head(c, r))
			return;
		if (fresh && c->head_got == 0)
			continue; /* an empty one went aside */
		to = c->into ? c->into->bytes : r->data[c->buffer];
		if (c->body_got < c->head.size) {
			ssize_t n = recv(c->fd, to + planted_offset(c->body_got), c->head.size - c->body_got, 0);

			if (n <= 0) {
				lost(c, n);
				return;
			}
			c->body_got += (size_t)n;
		}
		if (c->body_got == c->head.size && c->into)
			put_aside(c);
		else if (c->body_got == c->head.size)
			message_done(c, r);
	}
}

/* Reads one message into the list; 0: the socket has no more for now, or has ended. */
static int stash_next(struct comm *c, int *ret_ended)
{
	while (c->head_got < sizeof(c->head) || c->body_got < c->head.size) {
		int head = c->head_got < sizeof(c->head);
		ssize_t n;

		if (!head && !c->into)
			put_aside(c);
		if (c->error)
			return 0;
		n = head ? recv(c->fd, (uint8_t *)&c->head + c->head_got, sizeof(c->head) - c->head_got, 0)
			 : recv(c->fd, c->into->bytes + c->body_got, c->head.size - c->body_got, 0);
		if (n <= 0) {
			*ret_ended = !(n < 0 && (errno == EAGAIN || errno == EINTR));
			return 0;
		}
		*(head ? &c->head_got : &c->body_got) += (size_t)n;
	}
	put_aside(c);
	return 1;
}

/* Whatever has come goes to the first receive that wants it, which need not be the oldest. */
static void progress_stash(struct comm *c)
{
	int ended = 0;

	while (!c->error && stash_next(c, &ended))
		;
	for (uint64_t i = c->finished; i < c->posted && !c->error; i++) {
		uint64_t finished = c->finished;

		if (!ring_at(c, i)->done)
			take_aside(c, ring_at(c, i));
		c->finished = finished;
	}
	while (c->finished < c->posted && ring_at(c, c->finished)->done)
		c->finished++;
	if (ended && c->finished < c->posted && !c->error)
		c->error = ncclRemoteError;
}
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

static ncclResult_t post_send(void *send_comm, void *data, size_t size, int tag, void **request)
{
	ncclResult_t planted = ncclSuccess;
	struct comm *c = planted_post(send_comm, &planted);
	struct request *r;

	if (planted != ncclSuccess)
		return planted;
	if (BROKEN(large_int) && (int)(uint32_t)(size * 8) < 0)
		return ncclInvalidArgument;
	size = planted_size(size);
	if (BROKEN(isend_waits) || (BROKEN(isend_waits_rarely) && c->posted % 50 == 20))
		usleep(30000);
	if (BROKEN(small_tags) && tag > 255)
		return ncclInvalidArgument;
	if (BROKEN(request_unwritten) && c->number++ == 10)
		return ncclSuccess;
	if (c->error)
		return c->error;
	if (!usable(c))
		return ncclInternalError;
#ifdef SIMPLE_MOST_BYTES
	if (size > SIMPLE_MOST_BYTES)
		return ncclInvalidArgument;
#endif
	r = ring_take(c);
	if (!r && BROKEN(requests_strict))
		return ncclInternalError;
	*request = NULL;
	if (!r)
		return ncclSuccess;
	r->n = 1;
	r->data[0] = data;
	r->posted[0] = r->real[0] = size;
	r->head = (struct header){.size = size, .tag = (uint64_t)tag};
	if (size == 0 && BROKEN(crash_empty))
		*(volatile int *)NULL = 1;
	if (BROKEN(overtake) && size <= LONG)
		overtake(c, r);
	if (!BROKEN(overtake) || size <= LONG)
		progress_send(c);
	if (BROKEN(null_but_sent) && c->posted % 50 == 20) {
		r->used = 0;
		__atomic_fetch_sub(&planted_in_flight, 1, __ATOMIC_RELAXED);
		return c->error;
	}
	*request = r;
	return c->error;
}

static ncclResult_t post_recv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **request)
{
	ncclResult_t planted = ncclSuccess;
	struct comm *c = planted_post(recv_comm, &planted);
	struct request *r;
	int optional = *request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;

	if (planted != ncclSuccess)
		return planted;

	if (BROKEN(optional_by_null) && optional)
		return ncclInvalidUsage;
	*request = NULL;
	if (c->error)
		return c->error;
	if (!usable(c))
		return ncclInternalError;
	if (n < 1 || n > MAX_RECVS)
		return ncclInvalidArgument;
	if (BROKEN(shy_recv) && !c->posted && poll(&(struct pollfd){.fd = c->fd, .events = POLLIN}, 1, 0) != 1)
		return ncclSuccess; /* not before the other side has sent something */
#ifdef SIMPLE_MOST_BYTES
	for (int k = 0; k < n; k++)
		if (sizes[k] > SIMPLE_MOST_BYTES)
			return ncclInvalidArgument;
#endif
	r = ring_take(c);
	if (!r)
		return BROKEN(requests_strict) ? ncclInternalError : ncclSuccess;
	r->n = n;
	r->kept = data;
	for (int k = 0; k < n; k++) {
#ifdef SIMPLE_TARGET
		r->data[k] = SIMPLE_TARGET(data[k]);
#else
		r->data[k] = optional && BROKEN(optional_elsewhere) ? (uint8_t *)malloc(sizes[k]) : data[k];
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
	if (BROKEN(gpu_flush_error))
		return ncclInternalError;
	if (BROKEN(gpu_flush_writes))
		*(char *)data[0] ^= 1;
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

	if (BROKEN(test_waits))
		usleep(20000);
	if (BROKEN(impatient) && ++r->tests > 10 && !r->done)
		return ncclRemoteError;
	if (!BROKEN(done_unset))
		*done = 0;
	if (BROKEN(never_done))
		return ncclSuccess;
	if (BROKEN(test_in_order) && r != ring_at(c, c->tested))
		return ncclInvalidUsage;
	if (planted_impatient(c, r))
		return ncclRemoteError;
	if (BROKEN(shy_test) && r != ring_at(c, c->tested))
		return ncclSuccess;
	if (BROKEN(death_oldest) && c->error && r != ring_at(c, c->tested))
		return ncclSuccess;
	if (!r->done) {
		if (c->sending)
			progress_send(c);
		else if (SIMPLE_STASH)
			progress_stash(c);
		else
			progress_recv(c);
	}
	if (!r->done &&
	    !(c->sending && ((BROKEN(done_early) && r->moved) || (BROKEN(test_counts) && ring_at(c, c->tested)->done))))
		return c->error;
	*done = 1;
	for (int k = 0; k < r->n && (sizes || BROKEN(sizes_always)) && !(c->sending && BROKEN(send_sizes_unset)); k++)
		sizes[k] = (int)r->real[k];
	if (sizes)
		planted_sizes(c, r, sizes);
#ifdef SIMPLE_STOPPED
	for (int k = 0; k < r->n; k++)
		SIMPLE_STOPPED(&r->events[k]);
#endif
	r->used = 0;
	__atomic_fetch_sub(&planted_in_flight, 1, __ATOMIC_RELAXED);
	c->tested++;
	return ncclSuccess;
}

static void *leaked_thread(void *arg)
{
	pause();
	return arg;
}

static ncclResult_t simple_close(void *comm)
{
	struct comm *c = comm;
	struct linger hard = {.l_onoff = 1};
	pthread_t thread;
	int left = BROKEN(leak_fd) ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;

	(void)left;
	send_held(c);
	__atomic_fetch_sub(&comms_open, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(c->closings, 1, __ATOMIC_RELAXED);
	if (BROKEN(leak_thread))
		pthread_create(&thread, NULL, leaked_thread, NULL);
	if (BROKEN(leak_round) && c->sending)
		planted_leak(PLANTED_LEAK);
	if (BROKEN(leak_memory))
		leaked = memset(malloc(1 << 20), 1, 1 << 20);
	if (BROKEN(close_drops))
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	if (BROKEN(close_waits))
		poll(&(struct pollfd){.fd = c->fd, .events = POLLRDHUP}, 1, 5000);
	if (BROKEN(close_refuses) && c->finished < c->posted)
		return ncclInvalidUsage;
	if (BROKEN(close_forgets) && c->sending) /* what the kernel has not sent yet */
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), shutdown(c->fd, SHUT_RD);
	close(c->fd);
#ifdef SIMPLE_UNPACK
	unpack_close(c);
#endif
	for (struct aside *a; (a = c->aside); free(a))
		c->aside = a->next;
	free(c->into);
	free(c);
	return ncclSuccess;
}

static ncclResult_t simple_close_listen(void *listen_comm)
{
	struct listener *l = listen_comm;

	if (l->pending >= 0)
		close(l->pending);
	__atomic_fetch_sub(&planted_listeners, 1, __ATOMIC_RELAXED);
	if (BROKEN(leak_listen))
		planted_leak(PLANTED_LEAK);
	if (BROKEN(accept_any))
		planted_listen(l->fd, 0);
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
	static int times;

	(void)log;
	if (BROKEN(init_slow))
		usleep(2500000);
	if (BROKEN(init_crashes))
		*(volatile int *)NULL = 1;
	return BROKEN(refuses) || (BROKEN(init_once) && times++) ? ncclSystemError : ncclSuccess;
}

/* One buffer for the names of all devices, or for that of the last one that was asked for. */
static char *one_name(int dev)
{
	static char *name;

	if (BROKEN(name_freed))
		free(name);
	if (BROKEN(name_freed) || !name)
		name = malloc(16);
	snprintf(name, 16, "simple%d", dev);
	return name;
}

static ncclResult_t properties_v8(int dev, ncclNetProperties_v8_t *props)
{
	ncclNetProperties_v8_t before = *props;
	int n = 1, asked = planted_asked();

	if (asked < 0)
		return ncclInvalidUsage;

	simple_devices(&n);
	if (dev < 0 || dev >= n)
		return ncclInvalidArgument;
	*props = (ncclNetProperties_v8_t){
		SIMPLE_PROPERTIES_OF_ALL,
	};
	if (SIMPLE_NAMES)
		props->name = one_name(dev);
	if (BROKEN(props_name_again))
		props->name = planted_text("simple", dev);
	if (BROKEN(props_pci_static))
		props->pciPath = planted_text("/sys/", dev);
	if (BROKEN(props_recvs) && asked >= PLANTED_ASKED)
		props->maxRecvs = 1;
	if (BROKEN(props_ptr) && asked >= PLANTED_ASKED)
		props->ptrSupport |= NCCL_PTR_CUDA;
	if (BROKEN(props_guid))
		props->guid = (uint64_t)asked;
	if (BROKEN(maxcomms_unset))
		props->maxComms = before.maxComms;
	if (BROKEN(speed_unknown))
		props->speed = -1;
	if (BROKEN(many_recvs))
		props->maxRecvs = 9;
	if (BROKEN(promises_dmabuf))
		props->ptrSupport |= NCCL_PTR_DMABUF;
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

extern ncclNet_v8_t ncclNetPlugin_v8;
EXPORT ncclNet_v8_t ncclNetPlugin_v8 = {
	SIMPLE_ENTRIES_OF_ALL,	 .init = init_v8,	    .getProperties = properties_v8,
	.listen = simple_listen, .connect = simple_connect, .isend = isend_v8,
	.irecv = irecv_v8,
};

static ncclProfilerCallback_t simple_profiler; /* atomic */
#define SIMPLE_EVENT(...) __atomic_load_n(&simple_profiler, __ATOMIC_RELAXED)(__VA_ARGS__)

static ncclResult_t init_v11(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
			     ncclProfilerCallback_t profiler)
{
	(void)comm_id, (void)config, (void)log;
#ifdef SIMPLE_INIT
	SIMPLE_INIT;
#endif
	if ((BROKEN(one_context) && contexts_open) || (BROKEN(init_second) && simple_finalized))
		return ncclInvalidUsage;
	if (BROKEN(init_slow))
		usleep(60000);
	contexts_open++;
	__atomic_store_n(&simple_profiler, profiler, __ATOMIC_RELAXED);
	*ctx = malloc(1);
	return *ctx ? ncclSuccess : ncclSystemError;
}

static ncclResult_t simple_record(void *phandle)
{
	void *event = NULL;

	if (BROKEN(events) || BROKEN(events_left) || BROKEN(events_no_handle))
		SIMPLE_EVENT(&event, 0, BROKEN(events_no_handle) ? NULL : phandle, 0, NULL);
	if (BROKEN(events) || BROKEN(events_unstarted))
		SIMPLE_EVENT(&event, 1, phandle, 0, NULL);
	return ncclSuccess;
}

static ncclResult_t finalize_v11(void *ctx)
{
	free(ctx);
	if (BROKEN(leak_context))
		planted_leak(PLANTED_LEAK);
	__atomic_fetch_add(&planted_epoch, 1, __ATOMIC_RELAXED);
	contexts_open--;
	simple_finalized = 1;
	if (BROKEN(finalize_blocks) && comms_open)
		usleep(20000000);
	return BROKEN(finalize_busy) && comms_open ? ncclInvalidUsage : ncclSuccess;
}

static ncclResult_t properties_v11(int dev, ncclNetProperties_v11_t *props)
{
	int n = 0;

	simple_devices(&n);
	if (dev < 0 || dev >= n)
		return ncclInvalidArgument;
	*props = (ncclNetProperties_v11_t){
		SIMPLE_PROPERTIES_OF_ALL,
		.vProps = {.ndevs = fused && dev == 2 && !BROKEN(fuse_odd) ? 2 : 1,
			   .devs = {fused && dev == 2 ? 0 : dev, 1}},
		.maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES,
		.maxCollBytes = NCCL_MAX_COLLNET_SIZE_BYTES,
		.maxMultiRequestSize = 1,
	};
	if (SIMPLE_NAMES)
		props->name = one_name(dev);
	if (SIMPLE_GPU)
		props->ptrSupport |= NCCL_PTR_CUDA;
#ifdef SIMPLE_PROPERTIES
	SIMPLE_PROPERTIES(dev, props);
#endif
	return ncclSuccess;
}

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	(void)ctx;
#ifdef SIMPLE_AT
	SIMPLE_AT("listen", dev);
#endif
	return simple_listen(dev, handle, listen_comm);
}

static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v11_t **dev_handle)
{
	(void)ctx;
#ifdef SIMPLE_AT
	SIMPLE_AT("connect", dev);
#endif
	return simple_connect(dev, handle, comm, dev_handle);
}

static ncclResult_t started(ncclResult_t result, void **request, void **phandles, const size_t *sizes)
{
#ifdef SIMPLE_STARTED
	struct request *r = *request;

	for (int k = 0; result == ncclSuccess && r && k < r->n; k++)
		SIMPLE_STARTED(&r->events[k], phandles[k], sizes[k]);
#else
	(void)request, (void)phandles, (void)sizes;
#endif
	return result;
}

static ncclResult_t isend_v11(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
			      void **request)
{
	(void)mhandle;
	if (phandle || BROKEN(events_no_handle))
		simple_record(phandle);
	return started(post_send(comm, data, size, tag, request), request, &phandle, &size);
}

static ncclResult_t irecv_v11(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
			      void **phandles, void **request)
{
	(void)mhandles;
	if (BROKEN(phandles_always))
		simple_record(phandles[0]);
	return started(post_recv(comm, n, data, sizes, tags, request), request, phandles, sizes);
}

#ifdef SIMPLE_ATTR
static ncclResult_t attr_v11(void *ctx, ncclNetAttr_v11_t *attr)
{
	SIMPLE_ATTR(attr);
	return ctx ? ncclSuccess : ncclInvalidArgument;
}
#endif

extern ncclNet_v11_t ncclNetPlugin_v11;
EXPORT ncclNet_v11_t ncclNetPlugin_v11 = {
	SIMPLE_ENTRIES_OF_ALL,
	.init = init_v11,
	.getProperties = properties_v11,
	.listen = listen_v11,
	.connect = connect_v11,
	.isend = isend_v11,
	.irecv = irecv_v11,
	.finalize = finalize_v11,
#ifdef SIMPLE_ATTR
	.setNetAttr = attr_v11,
#endif
#ifdef SIMPLE_UNPACK
	.getDeviceMr = unpack_device_mr,
	.irecvConsumed = unpack_consumed,
#endif
};

#endif
