/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small plugin for GIN (v11 to v13) and RMA (v13 to v17) that is right, for host memory: a TCP socket between each two ranks of a
 * collComm, progress from the calling thread. BROKEN(name): see simple_net.h, which comes first.
 *
 * Wire: frames, each a header and the bytes. A put's bytes are read into the target's memory, and then its signal is added; a get
 * is a frame without bytes, which the other side answers with one. All contexts share the socket, so every signal is strong. A
 * request is done when its last byte has gone to the socket. The handle of memory is the number of its registration.
 */
#ifndef GANTRY_TESTS_SIMPLE_GIN_H
#define GANTRY_TESTS_SIMPLE_GIN_H

#include "abi/rma_v17.h"

enum {
	GIN_RANKS = 8,
	GIN_MEMORIES = 256,
	GIN_WORDS = 512,
	GIN_WAIT_MS = 4000,
	GIN_BUFFER = 65536,
	GIN_FEW = 16,
	GIN_SOME = 100
};
enum gin_kind { GIN_PUT = 1, GIN_GET, GIN_ANSWER };

struct gin_frame {
	uint64_t kind, memory, offset, size;
	uint64_t signal, signal_offset, op, value; /* signal: memory, 0: none */
	uint64_t token;				   /* of a get: the request */
	uint64_t more;
};

struct gin_request {
	struct gin_request *next;
	struct gin_coll *coll;
	struct gin_frame head;
	int rank, context, done, left; /* left: the caller does not test it any more */
	uint8_t *data;		       /* sent from here, or got to here; borrowed */
	size_t moved;		       /* header and bytes */
};

struct gin_peer {
	int fd, gone;
	struct gin_request *queue; /* requests and answers that are not sent; owned */
	struct gin_frame head;
	size_t head_got, body_got;
};

struct gin_memory {
	uint8_t *base; /* borrowed; NULL: deregistered */
	size_t size;
};

struct gin_coll {
	pthread_mutex_t lock; /* of all of it: memory is registered beside traffic */
	int rank, ranks, memories, open;
	struct gin_memory memory[GIN_MEMORIES];
	struct gin_peer peer[GIN_RANKS];
	uint64_t mirror[GIN_RANKS][GIN_WORDS];
};

struct gin_context {
	struct gin_coll *coll;
	int contexts;
};

static struct gin_memory gin_all[GIN_RANKS][GIN_MEMORIES]; /* gin_global */
static int gin_ends, gin_closed;			   /* of the process; only variants look at them */

/* ---- connecting ---- */

static ncclResult_t gin_init(void **ctx, uint64_t comm, ncclDebugLogger_t log)
{
	(void)comm, (void)log;
	if (BROKEN(gin_refuses) || (BROKEN(gin_init_once) && __atomic_load_n(&gin_ends, __ATOMIC_RELAXED)))
		return ncclSystemError;
	*ctx = malloc(1);
	return ncclSuccess;
}

static ncclResult_t gin_finalize(void *ctx)
{
	__atomic_add_fetch(&gin_ends, 1, __ATOMIC_RELAXED);
	if (BROKEN(gin_finalize_null) && !ctx)
		return ncclInvalidArgument;
	if (BROKEN(gin_finalize_reads))
		*(volatile char *)ctx = 0;
	free(ctx);
	return ncclSuccess;
}

static ncclResult_t gin_devices(int *n)
{
	*n = BROKEN(gin_no_device) ? 0 : 1;
	return ncclSuccess;
}

static ncclResult_t gin_listen(void *ctx, int dev, void *handle, void **ret_listen)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct listener *l = calloc(1, sizeof(*l));
	socklen_t len = sizeof(addr);

	(void)ctx, (void)dev;
	if (!l)
		return ncclSystemError;
	if (BROKEN(gin_handle_over))
		((char *)handle)[NCCL_NET_HANDLE_MAXSIZE] = 1;
	l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&addr, len) != 0 || listen(l->fd, GIN_RANKS) != 0 ||
	    getsockname(l->fd, (struct sockaddr *)&addr, &len) != 0)
		return ncclSystemError;
	memcpy(handle, &addr, sizeof(addr));
	*ret_listen = l;
	return ncclSuccess;
}

static ncclResult_t gin_close_listen(void *listen_comm)
{
	struct listener *l = listen_comm;

	close(l->fd);
	free(l);
	return ncclSuccess;
}

static int gin_readable(int fd, uint64_t until_ms)
{
	uint64_t now = planted_ms();
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, until_ms > now ? (int)(until_ms - now) : 0) == 1;
}

static void gin_adopt(struct gin_coll *c, int rank, int fd)
{
	int one = 1, size = GIN_BUFFER;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	fcntl(fd, F_SETFL, O_NONBLOCK);
	c->peer[rank].fd = fd;
}

/* A rank dials those below it, and waits for a byte from each. */
static int gin_dial(struct gin_coll *c, int rank, const struct sockaddr_in *addr, uint64_t until_ms)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), size = GIN_BUFFER;
	char yes;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	if (fd < 0 || connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) != 0 ||
	    send(fd, &c->rank, sizeof(c->rank), MSG_NOSIGNAL) != sizeof(c->rank) || !gin_readable(fd, until_ms) ||
	    recv(fd, &yes, 1, 0) != 1)
		return 0;
	gin_adopt(c, rank, fd);
	return 1;
}

static int gin_accept(struct gin_coll *c, int listen_fd, uint64_t until_ms)
{
	int rank = 0, fd = gin_readable(listen_fd, until_ms) ? accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC) : -1;

	if (fd < 0 || recv(fd, &rank, sizeof(rank), MSG_WAITALL) != sizeof(rank) || rank <= c->rank ||
	    rank >= c->ranks || send(fd, "y", 1, MSG_NOSIGNAL) != 1)
		return 0;
	gin_adopt(c, rank, fd);
	return 1;
}

static ncclResult_t gin_connect(void *ctx, void *handles[], int ranks, int rank, void *listen_comm, void **ret_coll)
{
	uint64_t until_ms = planted_ms() + (BROKEN(gin_impatient) ? 500 : GIN_WAIT_MS);
	const struct listener *l = listen_comm;
	struct gin_coll *c = calloc(1, sizeof(*c));
	int there = 1;

	if (!c || ranks > GIN_RANKS || (BROKEN(gin_null_context) && !ctx))
		return ncclInvalidArgument;
	c->rank = rank;
	c->ranks = ranks;
	pthread_mutex_init(&c->lock, NULL);
	for (int i = 0; i < GIN_RANKS; i++)
		c->peer[i].fd = -1;
	for (int i = 0; i < rank; i++) {
		struct sockaddr_in addr;

		memcpy(&addr, handles[i], sizeof(addr));
		there = there && gin_dial(c, i, &addr, until_ms);
	}
	for (int i = rank + 1; i < ranks; i++)
		there = there && gin_accept(c, l->fd, until_ms);
	if (!there && !BROKEN(gin_connect_early))
		return ncclRemoteError;
	*ret_coll = BROKEN(gin_no_comm) && rank == 2 ? NULL : c;
	return ncclSuccess;
}

static ncclResult_t gin_connect_v12(void *ctx, void *handles[], int ranks, int rank, int connections, int depth,
				    void *listen_comm, void **ret_coll)
{
	(void)connections, (void)depth;
	return gin_connect(ctx, handles, ranks, rank, listen_comm, ret_coll);
}

static ncclResult_t gin_make_context(struct gin_coll *c, int contexts, void **ret_context)
{
	struct gin_context *x = calloc(1, sizeof(*x));

	if (!x)
		return ncclSystemError;
	x->coll = c;
	x->contexts = contexts;
	*ret_context = x;
	return ncclSuccess;
}

static ncclResult_t gin_create_v13(void *coll, ncclGinConfig_v13_t *config, void **ctx, ncclNetDeviceHandle_v11_t **dev)
{
	(void)dev;
	return gin_make_context(coll, config->nContexts, ctx);
}

static ncclResult_t gin_create_v14(void *coll, ncclRmaConfig_v14_t *config, void **ctx)
{
	return gin_make_context(coll, config->nContexts, ctx);
}

static ncclResult_t gin_create_v17(void *coll, ncclRmaConfig_v17_t *config, void **ctx)
{
	return gin_make_context(coll, config->nContexts, ctx);
}

static ncclResult_t gin_destroy(void *ctx)
{
	free(ctx);
	return ncclSuccess;
}

/* ---- memory ---- */

static struct gin_memory *gin_memory(struct gin_coll *c, uint64_t number)
{
	if (BROKEN(gin_memory_few) && number > 7)
		number = 7;
	if (number < 1 || number >= GIN_MEMORIES)
		return NULL;
	return BROKEN(gin_global) ? &gin_all[c->rank][number] : &c->memory[number];
}

/* NULL: not within memory. */
static uint8_t *gin_place(struct gin_coll *c, uint64_t number, uint64_t offset, uint64_t size)
{
	const struct gin_memory *m = gin_memory(c, number);

	if (!m || !m->base || offset > m->size || size > m->size - offset)
		return NULL;
	return m->base + offset;
}

static ncclResult_t gin_reg(void *coll, void *data, size_t size, int type, uint64_t flags, void **mh, void **gh)
{
	struct gin_coll *c = coll;
	ncclResult_t r = ncclSuccess;
	int number;

	(void)flags;
	pthread_mutex_lock(&c->lock);
	number = c->memories + 1;
	for (int i = number - 1; i >= 1 && BROKEN(gin_reg_reuse); i--)
		number = gin_memory(c, (uint64_t)i)->base ? number : i;
	c->memories = number > c->memories ? number : c->memories;
	if (type != NCCL_PTR_HOST || number >= GIN_MEMORIES || (BROKEN(gin_reg_busy) && c->open))
		r = ncclInvalidArgument;
	else if (!BROKEN(gin_memory_small) || size >= 64)
		*gin_memory(c, (uint64_t)number) = (struct gin_memory){data, size};
	pthread_mutex_unlock(&c->lock);
	*mh = (void *)((uintptr_t)number | (uintptr_t)BROKEN(gin_handle_high) << 63);
	if (gh)
		*gh = (void *)((uintptr_t)number | (uintptr_t)(BROKEN(gin_gh_high) || BROKEN(gin_handle_high)) << 63);
	return r;
}

static ncclResult_t gin_reg_v14(void *coll, void *data, size_t size, int type, uint64_t flags, void **mh)
{
	return gin_reg(coll, data, size, type, flags, mh, NULL);
}

static ncclResult_t gin_dereg(void *coll, void *mh)
{
	struct gin_coll *c = coll;
	int gone = 0;

	pthread_mutex_lock(&c->lock);
	for (int i = 0; i < c->ranks; i++)
		gone |= i != c->rank && recv(c->peer[i].fd, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
	gin_memory(c, (uintptr_t)mh & INT32_MAX)->base = NULL;
	pthread_mutex_unlock(&c->lock);
	return BROKEN(gin_dereg_refuses) && gone ? ncclRemoteError : ncclSuccess;
}

/* ---- what arrives ---- */

static void gin_add(struct gin_coll *c, int from, const struct gin_frame *f)
{
	uint64_t add = f->op == NCCL_NET_SIGNAL_OP_INC && !BROKEN(gin_inc_value) ? 1 : f->value;
	uint64_t *word = (uint64_t *)(void *)gin_place(c, f->signal, f->signal_offset, sizeof(*word)), *mirror;

	if (!word || !f->signal || (BROKEN(gin_drop_alone) && !f->size) || (BROKEN(gin_more) && f->more))
		return;
	if (BROKEN(gin_add_one))
		add = 1;
	if (BROKEN(gin_add_32))
		add &= UINT32_MAX;
	if (BROKEN(gin_add_twice) && !f->size)
		add *= 2;
	mirror = &c->mirror[BROKEN(gin_lost) ? from : 0][f->signal_offset / sizeof(*word) % GIN_WORDS];
	if (BROKEN(gin_lost) || BROKEN(gin_mirror)) {
		*mirror += add;
		__atomic_store_n(word, *mirror, __ATOMIC_RELEASE);
	} else {
		__atomic_add_fetch(word, add, __ATOMIC_RELEASE);
	}
}

static void gin_enqueue(struct gin_peer *p, struct gin_request *q, int first)
{
	struct gin_request **at = &p->queue;

	if (first && *at && (*at)->moved)
		at = &(*at)->next;
	while (!first && *at)
		at = &(*at)->next;
	q->next = *at;
	*at = q;
}

/* A get: its answer is a put without a signal to the request's own memory. 0: the frame is wrong. */
static int gin_answer(struct gin_coll *c, int rank, const struct gin_frame *f)
{
	struct gin_request *q = calloc(1, sizeof(*q));

	if (!q)
		return 0;
	q->left = 1;
	q->head = (struct gin_frame){.kind = GIN_ANSWER, .size = f->size, .token = f->token};
	q->data = gin_place(c, f->memory, f->offset, f->size);
	if (BROKEN(gin_get_from) && f->size > 9)
		q->data = gin_place(c, f->memory, f->offset & ~(uint64_t)7, f->size);
	gin_enqueue(&c->peer[rank], q, 0);
	return q->data != NULL;
}

/* Where the bytes of the frame go; NULL: nowhere, it is wrong. */
static uint8_t *gin_target(struct gin_coll *c, const struct gin_frame *f)
{
	if (f->kind == GIN_ANSWER)
		return ((struct gin_request *)(uintptr_t)f->token)->data;
	return gin_place(c, f->memory, f->offset, f->size);
}

static void gin_arrived(struct gin_coll *c, int rank, uint8_t *data)
{
	const struct gin_frame *f = &c->peer[rank].head;

	if (f->kind == GIN_ANSWER) {
		((struct gin_request *)(uintptr_t)f->token)->done = 1;
		return;
	}
	if (BROKEN(gin_flip) && f->size > 65536)
		data[f->size - 1] ^= 1;
	if (BROKEN(gin_overrun) && f->size % 8)
		data[f->size] ^= 1;
	if (!BROKEN(gin_signal_early) || !f->size)
		gin_add(c, rank, f);
}

/* One header or one piece of bytes; 0: there is no more for now. */
static int gin_receive(struct gin_coll *c, int rank)
{
	struct gin_peer *p = &c->peer[rank];
	int in_head = p->head_got < sizeof(p->head);
	size_t left = in_head ? sizeof(p->head) - p->head_got : p->head.size - p->body_got;
	uint8_t *data = in_head ? NULL : gin_target(c, &p->head), *to = data + p->body_got;
	ssize_t n = 0;

	if (BROKEN(gin_signal_early) && !in_head && left > 1000)
		left = 1000;
	if (in_head)
		to = (uint8_t *)&p->head + p->head_got;
	if (left)
		n = recv(p->fd, to, left, MSG_DONTWAIT);
	if (left && n <= 0) {
		p->gone = n == 0 || errno != EAGAIN;
		return 0;
	}
	*(in_head ? &p->head_got : &p->body_got) += (size_t)n;
	if (p->head_got < sizeof(p->head))
		return 1;
	if (in_head && p->head.size && p->head.kind != GIN_GET && !gin_target(c, &p->head))
		return p->gone = 1, 0;
	if (in_head && BROKEN(gin_signal_early) && p->head.size)
		gin_add(c, rank, &p->head);
	if (p->head.kind == GIN_GET ? !gin_answer(c, rank, &p->head) : p->body_got < p->head.size)
		return p->head.kind == GIN_GET ? (p->gone = 1, 0) : !BROKEN(gin_signal_early) || in_head;
	if (p->head.kind != GIN_GET)
		gin_arrived(c, rank, gin_target(c, &p->head));
	p->head_got = p->body_got = 0;
	return 1;
}

/* ---- what is sent ---- */

static void gin_sent(struct gin_peer *p)
{
	struct gin_request *q = p->queue;

	p->queue = q->next;
	q->done |= q->head.kind == GIN_PUT;
	if (q->left)
		free(q);
}

/* 0: the socket takes no more. */
static int gin_send(struct gin_peer *p)
{
	struct gin_request *q = p->queue;
	size_t head = sizeof(q->head), size = q->head.kind == GIN_GET ? 0 : q->head.size;
	int in_head = q->moved < head;
	const uint8_t *from = in_head ? (const uint8_t *)&q->head + q->moved : q->data + (q->moved - head);
	size_t left = in_head ? head - q->moved : head + size - q->moved;
	ssize_t n = left ? send(p->fd, from, left, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;

	if (n < 0) {
		p->gone = errno != EAGAIN;
		return 0;
	}
	q->moved += (size_t)n;
	if (q->moved == head + size)
		gin_sent(p);
	return 1;
}

static void gin_advance(struct gin_coll *c)
{
	for (int i = 0; i < c->ranks; i++) {
		struct gin_peer *p = &c->peer[i];

		while (p->fd >= 0 && !p->gone && p->queue && gin_send(p))
			;
		while (p->fd >= 0 && !p->gone && gin_receive(c, i))
			;
	}
}

static ncclResult_t gin_progress(void *coll)
{
	struct gin_coll *c = coll;

	pthread_mutex_lock(&c->lock);
	gin_advance(c);
	pthread_mutex_unlock(&c->lock);
	return ncclSuccess;
}

static ncclResult_t gin_context_progress(void *ctx)
{
	return gin_progress(((struct gin_context *)ctx)->coll);
}

/* ---- requests ---- */

/* What one of them is, whatever the version. */
struct gin_call {
	struct gin_coll *coll;
	enum gin_kind kind;
	int context, weak, more;
	uint64_t local_offset, remote_offset;
	void *local, *remote;
	size_t size;
	uint32_t rank;
	uint64_t signal_offset, value;
	void *signal;
	uint32_t op; /* 0: no signal */
};

static uint64_t gin_number(const void *handle)
{
	return (uintptr_t)handle & INT32_MAX;
}

/* The own rank: at once. */
static ncclResult_t gin_self(struct gin_coll *c, struct gin_request *q)
{
	uint8_t *remote = gin_place(c, q->head.memory, q->head.offset, q->head.size);

	if (BROKEN(gin_self))
		return ncclInvalidArgument;
	if (q->head.size && (!remote || !q->data))
		return ncclInvalidArgument;
	if (q->head.size && q->head.kind == GIN_GET)
		memmove(q->data, remote, q->head.size);
	else if (q->head.size)
		memmove(remote, q->data, q->head.size);
	if (!BROKEN(gin_self_signal))
		gin_add(c, c->rank, &q->head);
	q->done = 1;
	return ncclSuccess;
}

static struct gin_request *gin_make(const struct gin_call *a)
{
	struct gin_request *q = calloc(1, sizeof(*q));

	if (!q)
		abort();
	q->coll = a->coll;
	q->rank = (int)a->rank;
	q->context = a->context;
	q->head = (struct gin_frame){.kind = a->kind,
				     .memory = gin_number(a->remote),
				     .offset = a->remote_offset,
				     .size = a->size,
				     .signal = a->op ? gin_number(a->signal) : 0,
				     .signal_offset = a->signal_offset,
				     .op = a->op,
				     .value = a->value,
				     .token = (uintptr_t)q,
				     .more = (uint64_t)a->more};
	if (BROKEN(gin_large) && q->head.size > 1 << 20)
		q->head.size = 1 << 20;
	if (BROKEN(gin_context_lost) && a->context == 2)
		q->head.signal = 0;
	q->data = gin_place(a->coll, gin_number(a->local), a->local_offset, a->size);
	if (q->data && BROKEN(gin_offset))
		q->data -= a->local_offset % 8;
	if (q->data && BROKEN(gin_get_to) && a->kind == GIN_GET)
		q->data -= a->local_offset % 8;
	return q;
}

/* Variants: until the request is sent. */
static void gin_until_sent(struct gin_coll *c, const struct gin_request *q)
{
	for (int i = 0; i < 3000 && !q->done && !c->peer[q->rank].gone; i++) {
		gin_advance(c);
		usleep(1000);
	}
}

static ncclResult_t gin_post(const struct gin_call *a, void **request)
{
	struct gin_coll *c = a->coll;
	struct gin_peer *p = &c->peer[a->rank];
	struct gin_request *q;
	ncclResult_t r = ncclSuccess;
	int first = (BROKEN(gin_overtake) && !a->size && a->op) || (BROKEN(gin_weak_first) && a->weak);

	*request = NULL;
	pthread_mutex_lock(&c->lock);
	q = gin_make(a);
	if ((a->size && !q->data) || (a->context && BROKEN(gin_one_context)) ||
	    (c->open >= GIN_SOME && BROKEN(gin_some)))
		r = ncclInvalidArgument;
	else if ((int)a->rank == c->rank)
		r = gin_self(c, q);
	else if (BROKEN(gin_close_all) && __atomic_load_n(&gin_closed, __ATOMIC_RELAXED))
		r = ncclInternalError;
	else if (!p->gone)
		gin_enqueue(p, q, first);
	else if (BROKEN(gin_death_done))
		q->done = 1;
	else if (!BROKEN(gin_death_silent))
		r = ncclRemoteError;
	if (BROKEN(gin_blocks) && r == ncclSuccess && a->kind == GIN_PUT)
		gin_until_sent(c, q);
	if (r == ncclSuccess && !(BROKEN(gin_few) && c->open >= GIN_FEW) && !(BROKEN(gin_null) && !a->size)) {
		c->open++;
		*request = q;
	}
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* What variants report about a request that is not done. */
static int gin_early(const struct gin_request *q)
{
	return (BROKEN(gin_early_done) && q->head.kind == GIN_PUT) ||
	       (BROKEN(gin_get_early) && q->head.kind == GIN_GET && q->head.size > 64) ||
	       (BROKEN(gin_death_done) && q->coll->peer[q->rank].gone);
}

static ncclResult_t gin_test(void *coll, void *request, int *done)
{
	struct gin_coll *c = coll;
	struct gin_request *q = request;
	ncclResult_t r = ncclSuccess;
	int early;

	pthread_mutex_lock(&c->lock);
	early = gin_early(q);
	if (!early)
		gin_advance(c);
	if (BROKEN(gin_test_waits) && !q->done)
		gin_until_sent(c, q);
	if (q->done || early) {
		*done = 1;
		c->open--;
		if (q->done)
			free(q);
		else
			q->left = q->head.kind == GIN_PUT;
	} else if (c->peer[q->rank].gone && !BROKEN(gin_death_silent) && !BROKEN(gin_death_done)) {
		r = ncclRemoteError;
	}
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* Bytes of a get are where they belong when it is done: nothing to flush. */
static ncclResult_t gin_flush(void *ctx, int context, void *mh, uint32_t rank, void **request)
{
	struct gin_context *x = ctx;
	struct gin_request *q;

	(void)context, (void)mh;
	*request = NULL;
	if (BROKEN(gin_flush_error))
		return ncclInternalError;
	if (BROKEN(gin_flush_null))
		return ncclSuccess;
	q = calloc(1, sizeof(*q));
	if (!q)
		return ncclSystemError;
	q->coll = x->coll;
	q->rank = (int)rank;
	q->done = !BROKEN(gin_flush_never);
	pthread_mutex_lock(&x->coll->lock);
	x->coll->open++;
	pthread_mutex_unlock(&x->coll->lock);
	*request = q;
	return ncclSuccess;
}

static ncclResult_t gin_close(void *coll)
{
	struct gin_coll *c = coll;

	__atomic_store_n(&gin_closed, 1, __ATOMIC_RELAXED);
	if (BROKEN(gin_close_waits))
		sleep(7);
	for (int i = 0; i < c->ranks; i++) {
		if (c->peer[i].fd >= 0)
			close(c->peer[i].fd);
		if (BROKEN(gin_close_crashes) && c->peer[i].queue)
			abort();
	}
	free(c);
	return ncclSuccess;
}

static ncclResult_t gin_last_error(void *ctx, bool *has)
{
	(void)ctx;
	*has = false;
	return ncclSuccess;
}

static ncclResult_t gin_promises(void *coll, ncclRmaProperties_v16_t *p)
{
	(void)coll;
	p->flushesAllPutsOnAnySignal = true;
	return ncclSuccess;
}

/* ---- tables ---- */

#define GIN_PROPERTIES(version)                                                                                        \
	static ncclResult_t gin_properties_v##version(int dev, ncclNetProperties_v##version##_t *p)                    \
	{                                                                                                              \
		(void)dev;                                                                                             \
		*p = (ncclNetProperties_v##version##_t){                                                               \
			.name = simple_name,                                                                           \
			.ptrSupport = BROKEN(gin_no_host) ? NCCL_PTR_CUDA : NCCL_PTR_HOST,                             \
			.speed = SIMPLE_MBITS,                                                                         \
			.maxComms = SIMPLE_COMMS,                                                                      \
			.maxRecvs = BROKEN(gin_recvs) ? 3 : 1,                                                         \
			.netDeviceType = BROKEN(gin_type)  ? NCCL_NET_DEVICE_HOST                                      \
					 : BROKEN(gin_gpu) ? (ncclNetDeviceType)3                                      \
							   : NCCL_NET_DEVICE_GIN_PROXY};                               \
		return ncclSuccess;                                                                                    \
	}
GIN_PROPERTIES(11)
GIN_PROPERTIES(12)

#define GIN_ARGS uint64_t src_off, void *src, size_t size, uint64_t dst_off, void *dst, uint32_t rank
#define GIN_SIGNAL_ARGS uint64_t sig_off, void *sig, uint64_t value, uint32_t op
#define GIN_CALL(coll_, context_, ...)                                                                                 \
	{                                                                                                              \
		.coll = (coll_), .kind = GIN_PUT, .context = (context_), .local_offset = src_off, .local = src,        \
		.remote_offset = dst_off, .remote = dst, .size = size, .rank = rank, __VA_ARGS__                       \
	}
#define GIN_SIGNAL .signal_offset = sig_off, .signal = sig, .value = value, .op = op
#define GIN_OF ((struct gin_context *)ctx)->coll

#define GIN_CTX void *ctx, int context

static ncclResult_t gin_put_v11(void *coll, GIN_ARGS, void **request)
{
	struct gin_call a = GIN_CALL(coll, 0, .op = 0);

	return gin_post(&a, request);
}

static ncclResult_t gin_put_signal_v11(void *coll, GIN_ARGS, GIN_SIGNAL_ARGS, void **request)
{
	struct gin_call a = GIN_CALL(coll, 0, GIN_SIGNAL);

	return gin_post(&a, request);
}

static ncclResult_t gin_put_v12(void *coll, GIN_ARGS, int connection, void **request)
{
	struct gin_call a = GIN_CALL(coll, connection, .op = 0);

	return gin_post(&a, request);
}

static ncclResult_t gin_put_signal_v12(void *coll, GIN_ARGS, GIN_SIGNAL_ARGS, int connection, void **request)
{
	struct gin_call a = GIN_CALL(coll, connection, GIN_SIGNAL);

	return gin_post(&a, request);
}

static ncclResult_t gin_put_v13(GIN_CTX, GIN_ARGS, void **request)
{
	struct gin_call a = GIN_CALL(GIN_OF, context, .op = 0);

	return gin_post(&a, request);
}

static ncclResult_t gin_put_signal_v13(GIN_CTX, GIN_ARGS, GIN_SIGNAL_ARGS, void **request)
{
	struct gin_call a = GIN_CALL(GIN_OF, context, GIN_SIGNAL);

	return gin_post(&a, request);
}

static ncclResult_t gin_put_signal_v14(GIN_CTX, GIN_ARGS, GIN_SIGNAL_ARGS, bool strong, void **request)
{
	struct gin_call a = GIN_CALL(GIN_OF, context, GIN_SIGNAL, .weak = !strong);

	return gin_post(&a, request);
}

static ncclResult_t gin_put_v15(GIN_CTX, GIN_ARGS, uint32_t flags, void **request)
{
	struct gin_call a = GIN_CALL(GIN_OF, context, .more = (int)flags & NCCL_RMA_OPT_MORE);

	return gin_post(&a, request);
}

static ncclResult_t gin_put_signal_v15(GIN_CTX, GIN_ARGS, GIN_SIGNAL_ARGS, bool strong, uint32_t flags, void **request)
{
	struct gin_call a =
		GIN_CALL(GIN_OF, context, GIN_SIGNAL, .weak = !strong, .more = (int)flags & NCCL_RMA_OPT_MORE);

	return gin_post(&a, request);
}

static ncclResult_t gin_get(GIN_CTX, uint64_t remote_off, void *remote, size_t size, uint64_t local_off, void *local,
			    uint32_t rank, void **request)
{
	struct gin_call a = {.coll = GIN_OF,
			     .kind = GIN_GET,
			     .context = context,
			     .local_offset = local_off,
			     .local = local,
			     .remote_offset = remote_off,
			     .remote = remote,
			     .size = size,
			     .rank = rank};

	return gin_post(&a, request);
}

static ncclResult_t gin_get_v15(GIN_CTX, uint64_t remote_off, void *remote, size_t size, uint64_t local_off,
				void *local, uint32_t rank, uint32_t flags, void **request)
{
	(void)flags;
	return gin_get(ctx, context, remote_off, remote, size, local_off, local, rank, request);
}

/* clang-format off */
#define GIN_ENTRIES .name = "simple", .init = gin_init, .devices = gin_devices, .listen = gin_listen, \
	.deregMrSym = gin_dereg, .closeColl = gin_close, .closeListen = gin_close_listen, .test = gin_test, \
	.queryLastError = gin_last_error, .finalize = gin_finalize
#define GIN_CONTEXT_ENTRIES .connect = gin_connect, .getProperties = gin_properties_v12, .destroyContext = gin_destroy, \
	.iflush = gin_flush
EXPORT ncclGin_v11_t ncclGinPlugin_v11 = {
	GIN_ENTRIES, .getProperties = gin_properties_v11, .connect = gin_connect, .regMrSym = gin_reg,
	.iput = gin_put_v11, .iputSignal = gin_put_signal_v11, .ginProgress = gin_progress,
};
EXPORT ncclGin_v12_t ncclGinPlugin_v12 = {
	GIN_ENTRIES, .getProperties = gin_properties_v11, .connect = gin_connect_v12, .regMrSym = gin_reg,
	.iput = gin_put_v12, .iputSignal = gin_put_signal_v12, .ginProgress = gin_progress,
};
#define GIN_ENTRIES_13 GIN_ENTRIES, GIN_CONTEXT_ENTRIES, .createContext = gin_create_v13, .regMrSym = gin_reg, \
	.iput = gin_put_v13, .iputSignal = gin_put_signal_v13, .iget = gin_get, .ginProgress = gin_context_progress
EXPORT ncclGin_v13_t ncclGinPlugin_v13 = {GIN_ENTRIES_13};
EXPORT ncclRma_v13_t ncclRmaPlugin_v13 = {GIN_ENTRIES_13};
EXPORT ncclRma_v14_t ncclRmaPlugin_v14 = {
	GIN_ENTRIES, GIN_CONTEXT_ENTRIES, .createContext = gin_create_v14, .regMrSym = gin_reg_v14,
	.iput = gin_put_v13, .iputSignal = gin_put_signal_v14, .iget = gin_get, .rmaProgress = gin_context_progress,
};
#define GIN_ENTRIES_15 GIN_ENTRIES, GIN_CONTEXT_ENTRIES, .regMrSym = gin_reg_v14, .iput = gin_put_v15, \
	.iputSignal = gin_put_signal_v15, .iget = gin_get_v15, .rmaProgress = gin_context_progress
EXPORT ncclRma_v15_t ncclRmaPlugin_v15 = {GIN_ENTRIES_15, .createContext = gin_create_v14};
EXPORT ncclRma_v16_t ncclRmaPlugin_v16 = {
	GIN_ENTRIES_15, .createContext = gin_create_v14, .getRmaProperties = gin_promises,
};
EXPORT ncclRma_v17_t ncclRmaPlugin_v17 = {
	GIN_ENTRIES_15, .createContext = gin_create_v17, .getRmaProperties = gin_promises,
};
/* clang-format on */

#endif
