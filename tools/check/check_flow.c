/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL's two threads do: init, connections, registration and close by the service thread; and traffic. */
#include "check/check.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"

enum { POLL_US = 200, CLOSE_LIMIT_MS = 1000, CONNECT_LIMIT_MS = 5000 };

void check_init(struct check_side *s, void **ret_ctx)
{
	const struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF};
	gantry_result r = CHECK_CALL(s, CHECK_SERVICE, "init", s->net->ops->init(s->net, 0x6368656b, &config, ret_ctx));
	int n = 0;

	if (r == GANTRY_ERR_CONFIG) /* the table that init left */
		check_fail(s, "%s", gantry_last_error());
	if (r != GANTRY_OK)
		check_refused(s, "%s", gantry_last_error());
	r = CHECK_CALL(s, CHECK_SERVICE, "devices", s->net->ops->devices(s->net, &n));
	if (r != GANTRY_OK)
		check_refused(s, "%s", gantry_last_error());
	if (check_unwritten(&n, sizeof(n)))
		check_fail(s, "devices returned success and wrote no number");
	if (n < 1)
		check_refused(s, "it has %d devices", n);
	s->devices = n;
}

static void guard_set(struct check_handle *h)
{
	memset(h, CHECK_POISON, sizeof(*h));
	memset(h->bytes, 0, sizeof(h->bytes));
}

static void guard_check(struct check_side *s, const struct check_handle *h, const char *call)
{
	size_t at = check_untouched(h->after, sizeof(h->after));

	if (at < sizeof(h->after))
		check_fail(s, "%s wrote byte %zu of a handle of %d bytes", call, GANTRY_NET_HANDLE_SIZE + at,
			   GANTRY_NET_HANDLE_SIZE);
	at = check_untouched(h->before, sizeof(h->before));
	if (at < sizeof(h->before))
		check_fail(s, "%s wrote %zu bytes before the handle", call, sizeof(h->before) - at);
}

void *check_listen(struct check_side *s, int dev, uint8_t handle[GANTRY_NET_HANDLE_SIZE])
{
	struct check_handle h;
	void *listen = NULL;

	guard_set(&h);
	CHECK_MUST(s, CHECK_SERVICE, "listen", s->net->ops->listen(s->net, s->ctx, dev, h.bytes, &listen));
	if (!listen)
		check_fail(s, "listen returned success and no comm");
	guard_check(s, &h, "listen");
	memcpy(handle, h.bytes, GANTRY_NET_HANDLE_SIZE);
	return listen;
}

/* What the service thread does with a comm that it has just got. */
static void link_made(struct check_side *s, const struct check_link *l)
{
	if (check_unwritten(&l->comm, sizeof(l->comm)))
		check_fail(s, "%s returned success and wrote no comm", l->sending ? "connect" : "accept");
	fetch_or_relaxed(&s->shared->connected, l->sending ? CHECK_CONNECTED : CHECK_ACCEPTED);
}

/* NCCL has one for the receiving side of UNPACK, but not in its bootstrap. It stays as long as the process. */
static struct gantry_net_device_handle *device_handle(const struct check_side *s)
{
	struct gantry_net_device_handle *dev = NULL;

	if (s->props.device_type == GANTRY_NET_DEVICE_UNPACK && s->nccl.phandle)
		dev = calloc(1, sizeof(*dev));
	if (dev) {
		dev->type = s->props.device_type;
		dev->version = s->props.device_version;
	}
	return dev;
}

static int try_accept(struct check_side *s, struct check_link *l)
{
	struct gantry_net_device_handle *dev = l->dev_handle;

	CHECK_MUST(s, CHECK_SERVICE, "accept", s->net->ops->accept(s->net, l->listen, &l->comm, &dev));
	if (!l->comm)
		return 0;
	link_made(s, l);
	if (dev && (!dev->handle || !dev->size))
		check_fail(s, "device type UNPACK, but accept did not fill the device handle");
	l->dev_handle = dev;
	CHECK_MUST(s, CHECK_SERVICE, "closeListen", s->net->ops->close_listen(s->net, l->listen));
	l->listen = NULL;
	return 1;
}

static int try_connect(struct check_side *s, struct check_link *l)
{
	struct gantry_net_device_handle *none = NULL;

	CHECK_MUST(s, CHECK_SERVICE, "connect",
		   s->net->ops->connect(s->net, s->ctx, l->dev, l->handle.bytes, &l->comm, &none));
	guard_check(s, &l->handle, "connect");
	if (!l->comm)
		return 0;
	link_made(s, l);
	return 1;
}

int check_link_try(struct check_side *s, struct check_link *l)
{
	return l->sending ? try_connect(s, l) : try_accept(s, l);
}

void check_link_begin(struct check_side *s, void *link)
{
	struct check_link *l = link;

	guard_set(&l->handle);
	if (l->sending) {
		check_hear(s, l->handle.bytes, sizeof(l->handle.bytes));
		return;
	}
	l->dev_handle = device_handle(s);
	l->listen = check_listen(s, l->dev, l->handle.bytes);
	check_tell(s, l->handle.bytes, sizeof(l->handle.bytes));
}

void check_link_end(struct check_side *s, void *link)
{
	uint64_t since = gantry_now_ns(), limit = CONNECT_LIMIT_MS * (uint64_t)s->stretch * CHECK_MS, took;
	struct check_link *l = link;

	while (!check_link_try(s, l)) {
		took = gantry_now_ns() - since;
		if (!check_left_ns(s) || took > limit)
			check_late(s, "%s still gave no comm after %.1f s", l->sending ? "connect" : "accept",
				   (double)took / 1e9);
		usleep(POLL_US);
	}
}

void check_link_job(struct check_side *s, void *link)
{
	check_link_begin(s, link);
	check_link_end(s, link);
}

void *check_link(struct check_side *s, int sending)
{
	struct check_link l = {.sending = sending};

	check_phase(s, sending ? "connecting" : "accepting");
	check_service(s, check_link_job, &l);
	return l.comm;
}

void check_abandoned_job(struct check_side *s, void *comm)
{
	enum { TRIES = 20, PAUSE_MS = 3 };
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void **ret = comm;

	if (s->role == 0) {
		*ret = check_listen(s, 0, handle);
		check_tell(s, handle, sizeof(handle));
		return;
	}
	check_phase(s, "connect without a peer accepting");
	check_hear(s, handle, sizeof(handle));
	for (int i = 0; i < TRIES && !*ret; i++) {
		CHECK_MUST(s, CHECK_SERVICE, "connect", s->net->ops->connect(s->net, s->ctx, 0, handle, ret, &none));
		check_sleep_ms(PAUSE_MS);
	}
}

struct mr_job {
	void *comm, *data, *mr;
	size_t size;
};

static void reg_job(struct check_side *s, void *arg)
{
	struct mr_job *j = arg;

	CHECK_MUST(s, CHECK_SERVICE, "regMr",
		   s->net->ops->reg_mr(s->net, j->comm, j->data, j->size, GANTRY_NET_PTR_HOST, &j->mr));
}

static void dereg_job(struct check_side *s, void *arg)
{
	struct mr_job *j = arg;

	CHECK_MUST(s, CHECK_SERVICE, "deregMr", s->net->ops->dereg_mr(s->net, j->comm, j->mr));
}

void *check_reg(struct check_side *s, void *comm, void *data, size_t size)
{
	struct mr_job j = {.comm = comm, .data = data, .size = size};

	check_service(s, reg_job, &j);
	return j.mr;
}

void check_dereg(struct check_side *s, void *comm, void *mr)
{
	struct mr_job j = {.comm = comm, .mr = mr};

	check_service(s, dereg_job, &j);
}

struct close_job {
	enum check_kind kind;
	void *comm;
	uint64_t took_ns;
};

static void close_job(struct check_side *s, void *arg)
{
	struct close_job *j = arg;
	const struct gantry_net_ops *ops = s->net->ops;
	uint64_t since = gantry_now_ns();

	switch (j->kind) {
	case CHECK_RECV_COMM:
		CHECK_MUST(s, CHECK_SERVICE, "closeRecv", ops->close_recv(s->net, j->comm));
		break;
	case CHECK_SEND_COMM:
		CHECK_MUST(s, CHECK_SERVICE, "closeSend", ops->close_send(s->net, j->comm));
		break;
	case CHECK_LISTEN_COMM:
		CHECK_MUST(s, CHECK_SERVICE, "closeListen", ops->close_listen(s->net, j->comm));
		break;
	}
	j->took_ns = gantry_now_ns() - since;
}

uint64_t check_close(struct check_side *s, enum check_kind kind, void *comm)
{
	static const char *const names[] = {"closeRecv", "closeSend", "closeListen"};
	struct close_job j = {.kind = kind, .comm = comm};

	check_service(s, close_job, &j);
	if (j.took_ns > CLOSE_LIMIT_MS * (uint64_t)s->stretch * CHECK_MS)
		check_late(s, "%s took %.1f s, phase: %s", names[kind], (double)j.took_ns / 1e9, s->me->phase);
	return j.took_ns;
}

/*
 * ---- traffic ----
 *
 * A plan of grouped receives that both processes know, sent by one
 * and received by the other.
 *
 * Posts and tests follow NCCL: a window of requests in flight, only the oldest
 * receive and each tag's oldest send are tested, a NULL request is tried again. Every byte that arrives is compared
 * with what its message and position say it must be, and every byte that must
 * not arrive (the rest of a larger receive, the guard behind it) with the poison
 * that was there before.
 */

enum { REUSED = 4096, SLOT_ALIGN = 64, BURST = 4, IDLE_SPINS = 64, IDLE_US = 20 };

static uint64_t word_of(uint64_t seed, uint64_t message, uint64_t at)
{
	uint64_t x = (seed + 1) * 0x9E3779B97F4A7C15u + message * 0xD6E8FEB86659FD93u + at * 0xBF58476D1CE4E5B9u;

	x ^= x >> 32;
	x *= 0xD6E8FEB86659FD93u;
	return x ^ x >> 29;
}

uint64_t check_random(uint64_t *state)
{
	return word_of(0x63686563, 0, (*state)++);
}

void check_fill(uint8_t *data, size_t size, uint64_t seed, uint64_t message)
{
	for (size_t at = 0; at < size; at += 8) {
		uint64_t w = word_of(seed, message, at);

		memcpy(data + at, &w, size - at < 8 ? size - at : 8);
	}
}

size_t check_compare(const uint8_t *data, size_t size, uint64_t seed, uint64_t message)
{
	for (size_t at = 0; at < size; at += 8) {
		uint64_t w = word_of(seed, message, at);
		size_t n = size - at < 8 ? size - at : 8;

		if (memcmp(data + at, &w, n) == 0)
			continue;
		for (size_t i = 0; i < n; i++)
			if (data[at + i] != ((const uint8_t *)&w)[i])
				return at + i;
	}
	return size;
}

int check_unwritten(const void *value, size_t size)
{
	const uint8_t *at = value;

	while (size && at[size - 1] == GANTRY_NET_UNWRITTEN)
		size--;
	return size == 0;
}

size_t check_untouched(const uint8_t *data, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (data[i] != CHECK_POISON)
			return i;
	return size;
}

void check_plan_make(struct check_side *s, struct check_plan *p, int count)
{
	memset(p, 0, sizeof(*p));
	p->groups = calloc((size_t)count, sizeof(*p->groups));
	if (!p->groups)
		check_fail(s, "no memory for a plan of %d messages (a limit of this machine)", count);
	p->count = count;
	p->window = CHECK_STEPS;
	for (int i = 0; i < count; i++) {
		p->groups[i].n = 1;
		for (int k = 0; k < GANTRY_NET_MAX_RECVS; k++)
			p->groups[i].order[k] = k;
	}
}

void check_plan_uniform(struct check_side *s, struct check_plan *p, int count, size_t send, size_t recv)
{
	check_plan_make(s, p, count);
	for (int i = 0; i < count; i++) {
		p->groups[i].send[0] = send;
		p->groups[i].recv[0] = recv;
	}
}

/* The largest group and buffer of a plan, and how many messages it has. */
static void plan_extent(const struct check_plan *p, int *ret_n, size_t *ret_size, int *ret_messages)
{
	*ret_n = 0;
	*ret_size = 0;
	*ret_messages = 0;
	for (int i = 0; i < p->count; i++) {
		const struct check_group *g = &p->groups[i];

		*ret_n = g->n > *ret_n ? g->n : *ret_n;
		*ret_messages += g->n;
		for (int k = 0; k < g->n; k++) {
			size_t size = g->send[k] > g->recv[k] ? g->send[k] : g->recv[k];

			*ret_size = size > *ret_size ? size : *ret_size;
		}
	}
}

struct check_flow *check_flow_open(struct check_side *s, const struct check_plan *p, void *comm, int sending)
{
	struct check_flow *f = calloc(1, sizeof(*f));
	int largest, messages;
	size_t size;

	plan_extent(p, &largest, &size, &messages);
	if (!f)
		check_fail(s, "no memory for a flow (a limit of this machine)");
	f->s = s;
	f->plan = p;
	f->comm = comm;
	f->sending = sending;
	f->total = sending ? messages : p->count;
	/* As NCCL: the more buffers in a group, the fewer groups. A receive has `largest` slots side by side. */
	f->window = p->window * largest > CHECK_SHARED && largest > 1 ? CHECK_SHARED / largest : p->window;
	f->slots = f->window * largest;
	if (sending)
		f->window = f->slots = p->send_window ? p->send_window : f->slots;
	f->slot = (size + CHECK_GUARD + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
	f->arena_size = f->slot * (size_t)f->slots + SLOT_ALIGN + p->misalign;
	/* Not from malloc, so that the rule on leaks sees the plugin's memory and not ours. */
	f->arena = mmap(NULL, f->arena_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (f->arena == MAP_FAILED)
		check_fail(s, "no memory for %zu bytes of buffers (a limit of this machine)", f->arena_size);
	if (!sending)
		memset(f->arena, CHECK_POISON, f->arena_size);
	f->mr = check_reg(s, comm, f->arena, f->arena_size);
	return f;
}

void check_flow_free(struct check_flow *f)
{
	munmap(f->arena, f->arena_size);
	free(f);
}

void check_flow_close(struct check_flow *f)
{
	check_dereg(f->s, f->comm, f->mr);
	check_close(f->s, f->sending ? CHECK_SEND_COMM : CHECK_RECV_COMM, f->comm);
	check_flow_free(f);
}

static uint64_t message_id(int group, int buffer)
{
	return (uint64_t)group * GANTRY_NET_MAX_RECVS + (uint64_t)buffer;
}

static uint8_t *slot_of(const struct check_flow *f, int request, int buffer)
{
	int w = f->window, per = f->slots / w;

	return f->arena + f->plan->misalign + f->slot * (size_t)(request % w * per + buffer);
}

/*
 * NCCL posts sends of different tags independently of each other: one that is ready goes out even if another tag's send
 * for an earlier group is not, and after a NULL request it tries the others. Here chance says which is ready.
 */
static int pick_tag(struct check_flow *f)
{
	int n = f->plan->groups[0].n, least = f->sent[0], k;

	for (k = 1; k < n; k++)
		least = f->sent[k] < least ? f->sent[k] : least;
	do
		k = (int)(check_random(&f->rng) % (uint64_t)n);
	while (f->sent[k] == f->plan->count || f->sent[k] - least >= f->window / n);
	f->next_group = f->sent[k];
	return k;
}

static gantry_result post_send(struct check_flow *f, struct check_post *p)
{
	int k = f->plan->by_tag ? pick_tag(f) : f->plan->groups[f->next_group].order[f->next_in_group];
	const struct check_group *g = &f->plan->groups[f->next_group];
	struct gantry_net *net = f->s->net;

	p->n = 1;
	p->index = (int)message_id(f->next_group, k);
	p->data[0] = slot_of(f, f->posted, 0);
	p->sizes[0] = g->send[k];
	p->tags[0] = g->tag[k];
	if (f->prepared == f->posted || f->plan->by_tag)
		check_fill(p->data[0], g->send[k], f->plan->seed, (uint64_t)p->index);
	f->prepared = f->posted + 1;
	return CHECK_CALL(f->s, CHECK_PROGRESS, "isend",
			  net->ops->isend(net, f->comm, p->data[0], g->send[k], g->tag[k], f->mr, &p->request));
}

static gantry_result post_recv(struct check_flow *f, struct check_post *p)
{
	static _Thread_local struct check_post given;
	const struct check_group *g = &f->plan->groups[f->next_group];
	struct gantry_net *net = f->s->net;
	gantry_result r;

	p->n = g->n;
	p->index = f->next_group;
	for (int k = 0; k < g->n; k++) {
		p->data[k] = slot_of(f, f->posted, k);
		p->sizes[k] = g->recv[k];
		p->tags[k] = g->tag[k];
		p->mrs[k] = f->mr;
		if (f->prepared == f->posted && f->posted >= f->window) /* not fresh any more */
			memset(p->data[k], CHECK_POISON, g->recv[k] + CHECK_GUARD);
	}
	f->prepared = f->posted + 1;
	p->request = f->plan->optional && g->n == 1 ? GANTRY_NET_OPTIONAL_RECV_COMPLETION : NULL;
	/* NCCL's arrays are on its stack, and something else a moment later. */
	given = *p;
	r = CHECK_CALL(
		f->s, CHECK_PROGRESS, "irecv",
		net->ops->irecv(net, f->comm, g->n, given.data, given.sizes, given.tags, given.mrs, &given.request));
	p->request = given.request;
	memset(&given, CHECK_POISON, sizeof(given));
	return r;
}

gantry_result check_flow_try(struct check_flow *f)
{
	struct check_post *p = &f->ring[f->posted % CHECK_WINDOW_MAX];
	gantry_result r;

	memset(p, 0, sizeof(*p));
	r = f->sending ? post_send(f, p) : post_recv(f, p);
	if (r != GANTRY_OK)
		return r;
	if (!p->request) {
		f->nulls++;
		return GANTRY_OK;
	}
	if (check_unwritten(&p->request, sizeof(p->request)))
		check_fail(f->s, "%s returned success and left *request as it was, which NCCL takes for a request",
			   f->sending ? "isend" : "irecv");
	f->posted++;
	f->most = f->posted - f->done > f->most ? f->posted - f->done : f->most;
	if (f->sending && f->plan->by_tag) {
		f->sent[p->index % GANTRY_NET_MAX_RECVS]++;
		return GANTRY_OK;
	}
	if (!f->sending || ++f->next_in_group == f->plan->groups[f->next_group].n) {
		f->next_group++;
		f->next_in_group = 0;
	}
	return GANTRY_OK;
}

int check_flow_post(struct check_flow *f)
{
	int before = f->posted;

	if (f->posted == f->total || f->posted - f->done >= f->window)
		return 0;
	check_ok(f->s, check_flow_try(f), f->sending ? "isend" : "irecv");
	return f->posted > before;
}

/* Which message of the plan the data really are, or of a plan beside it, for the report; -1 if none. */
static long recognise(const struct check_flow *f, const uint8_t *data, size_t size, uint64_t *ret_seed)
{
	size_t n = size < 16 ? size : 16;

	*ret_seed = f->plan->seed;
	for (int other = -1; other < f->plan->seeds; *ret_seed = (uint64_t)++other)
		for (int i = 0; i < f->plan->count && n >= 8; i++)
			for (int k = 0; k < f->plan->groups[i].n; k++)
				if (check_compare(data, n, *ret_seed, message_id(i, k)) == n)
					return (long)message_id(i, k);
	return -1;
}

static void wrong_contents(const struct check_flow *f, int group, int k, const uint8_t *data, size_t size, size_t at)
{
	uint64_t seed;
	long other = at == 0 ? recognise(f, data, size, &seed) : -1;

	if (other >= 0 && seed != f->plan->seed)
		check_fail(f->s, "receive %d of connection %d (%zu bytes) holds message %ld of connection %d", group,
			   (int)f->plan->seed, size, other / GANTRY_NET_MAX_RECVS, (int)seed);
	if (other >= 0)
		check_fail(f->s, "receive %d buffer %d (tag %d, %zu bytes) holds the message of receive %ld buffer %ld",
			   group, k, f->plan->groups[group].tag[k], size, other / GANTRY_NET_MAX_RECVS,
			   other % GANTRY_NET_MAX_RECVS);
	if (data[at] == CHECK_POISON && check_untouched(data + at, size - at) == size - at)
		check_fail(f->s, "receive %d buffer %d: bytes %zu to %zu were reported done and never arrived", group,
			   k, at, size);
	check_fail(f->s, "receive %d buffer %d (%zu bytes): byte %zu is 0x%02x, not what was sent", group, k, size, at,
		   data[at]);
}

void check_flow_received(struct check_flow *f, const struct check_post *p, const int *sizes)
{
	const struct check_group *g = &f->plan->groups[p->index];

	for (int k = 0; k < g->n; k++) {
		const uint8_t *data = p->data[k];
		size_t at, rest = g->recv[k] + CHECK_GUARD - g->send[k];

		if (f->plan->sizes && (size_t)sizes[k] != g->send[k])
			check_fail(f->s,
				   "test reported %d bytes for receive %d buffer %d, sent were %zu (posted were %zu); "
				   "NCCL reads it to "
				   "flush GPU memory and for its profiler",
				   sizes[k], p->index, k, g->send[k], g->recv[k]);
		at = check_compare(data, g->send[k], f->plan->seed, message_id(p->index, k));
		if (at < g->send[k])
			wrong_contents(f, p->index, k, data, g->send[k], at);
		at = check_untouched(data + g->send[k], rest);
		if (at < rest)
			check_fail(f->s, "receive %d buffer %d: byte %zu %s was overwritten", p->index, k,
				   g->send[k] + at,
				   g->send[k] + at < g->recv[k] ? "past the message" : "past the receive buffer");
	}
	store_relaxed(&f->s->shared->moved, 1);
}

/* LL and LL128: the reader looks at the data itself, and that may be before or after the completion. */
static int optional_arrived(const struct check_flow *f, const struct check_post *p)
{
	size_t size = f->plan->groups[p->index].send[0];
	const uint8_t *data = p->data[0];

	(void)load_acquire(data + size - 1);
	return check_compare(data, size, f->plan->seed, message_id(p->index, 0)) == size;
}

static int test_recv(struct check_flow *f)
{
	struct check_post *p = &f->ring[f->done % CHECK_WINDOW_MAX];
	struct gantry_net *net = f->s->net;
	int sizes[CHECK_TEST_SIZES] = {0}, done = 0;
	int no_sizes = f->plan->null_sizes && !f->plan->sizes;

	if (p->request)
		CHECK_MUST(f->s, CHECK_PROGRESS, "test",
			   net->ops->test(net, p->request, &done, no_sizes ? NULL : sizes));
	else
		done = 1; /* an optional receive that has completed and waits for its bytes */
	if (check_unwritten(&done, sizeof(done)))
		check_fail(f->s, "test returned success and did not write done");
	if (!done)
		return 0;
	if (p->request && f->s->nccl.phandle)
		CHECK_MUST(f->s, CHECK_PROGRESS, "irecvConsumed",
			   net->ops->irecv_consumed(net, f->comm, p->n, p->request));
	p->request = NULL;
	if (f->plan->optional && !optional_arrived(f, p))
		return 0;
	check_flow_received(f, p, sizes);
	f->done++;
	return 1;
}

/* For the size of a send NCCL has one number, which it does not look at, and other things of its own around it. */
static int test_send(struct check_flow *f, struct check_post *p)
{
	struct {
		int before[CHECK_TEST_SIZES], size, after[CHECK_TEST_SIZES];
	} room;
	int sizes[CHECK_TEST_SIZES], done = 0, one = f->plan->sizes,
				     none = f->plan->null_sizes && (!one || p->index & 1);
	struct gantry_net *net = f->s->net;

	memset(&room, GANTRY_NET_UNWRITTEN, sizeof(room));
	memset(sizes, GANTRY_NET_UNWRITTEN, sizeof(sizes));
	CHECK_MUST(f->s, CHECK_PROGRESS, "test",
		   net->ops->test(net, p->request, &done,
				  none	? NULL
				  : one ? &room.size
					: sizes));
	if (check_unwritten(&done, sizeof(done)))
		check_fail(f->s, "test returned success and did not write done");
	if (!check_unwritten(room.before, sizeof(room.before)) || !check_unwritten(room.after, sizeof(room.after)))
		check_fail(f->s, "test of a send wrote past the one size that NCCL has room for");
	if (!done)
		return 0;
	/* The buffer is the sender's again, and has other bytes in it at once. */
	memset(p->data[0], CHECK_POISON, p->sizes[0] < REUSED ? p->sizes[0] : REUSED);
	if (p->sizes[0])
		((uint8_t *)p->data[0])[p->sizes[0] - 1] = CHECK_POISON;
	p->request = NULL;
	return 1;
}

/* NCCL's operations share a connection, each with a tag, and each tests its own oldest send. */
static int test_sends(struct check_flow *f)
{
	struct check_post *oldest[CHECK_WINDOW_MAX];
	int n = 0, moved = 0;

	for (int i = f->done; i < f->posted; i++) {
		struct check_post *p = &f->ring[i % CHECK_WINDOW_MAX];
		int k = 0;

		while (k < n && oldest[k]->tags[0] != p->tags[0])
			k++;
		if (p->request && k == n)
			oldest[n++] = p;
	}
	for (int i = 0; i < n; i++)
		moved += test_send(f, oldest[(f->first_tag + i) % n]);
	f->first_tag++;
	while (f->done < f->posted && !f->ring[f->done % CHECK_WINDOW_MAX].request)
		f->done++;
	return moved;
}

int check_flow_test(struct check_flow *f)
{
	if (f->done == f->posted)
		return 0;
	return f->sending ? test_sends(f) : test_recv(f);
}

static void give_up(struct check_flow *const *flows, int n)
{
	const struct check_flow *f = flows[0];

	for (int i = 1; i < n && f->done == f->total; i++)
		f = flows[i];
	check_fail(f->s, "%s %d of %d is not done after %.1f s (%d posted, %d NULL requests), phase: %s",
		   f->sending ? "send" : "receive", f->done, f->total, (double)(gantry_now_ns() - f->s->start_ns) / 1e9,
		   f->posted, f->nulls, f->s->me->phase);
}

void check_flows_run(struct check_flow *const *flows, int n)
{
	int idle = 0, left = 1;

	while (left) {
		int moved = 0;

		left = 0;
		for (int i = 0; i < n; i++) {
			for (int k = 0; k < BURST && check_flow_post(flows[i]); k++)
				moved++;
			moved += check_flow_test(flows[i]);
			left += flows[i]->done < flows[i]->total;
		}
		if (moved) {
			idle = 0;
			continue;
		}
		if (!check_left_ns(flows[0]->s))
			give_up(flows, n);
		if (++idle < IDLE_SPINS)
			sched_yield();
		else
			usleep(IDLE_US);
	}
}

void check_flow_run(struct check_flow *f)
{
	check_flows_run(&f, 1);
}

void check_flows_finish(struct check_flow *const *flows, int n)
{
	check_flows_run(flows, n);
	check_meet(flows[0]->s);
	for (int i = 0; i < n; i++)
		check_flow_close(flows[i]);
}

void check_flow_once(struct check_side *s, const struct check_plan *p)
{
	int sending = s->role == 1;
	void *comm = check_link(s, sending);
	struct check_flow *f = check_flow_open(s, p, comm, sending);

	check_phase(s, sending ? "sending" : "receiving");
	check_flow_run(f);
	check_phase(s, "waiting for the other process to finish");
	check_meet(s);
	check_phase(s, "closing");
	check_flow_close(f);
}
