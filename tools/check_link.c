/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL's service thread does: init, connections, registration, close. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { POLL_US = 200, CLOSE_LIMIT_MS = 1000 };

void check_init(struct check_side *s, void **ret_ctx)
{
	const struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF};
	int n = 0;

	CHECK_MUST(s, CHECK_SERVICE, "init", s->net->ops->init(s->net, 0x6368656b, &config, ret_ctx));
	CHECK_MUST(s, CHECK_SERVICE, "devices", s->net->ops->devices(s->net, &n));
	if (n < 1)
		check_fail(s, "devices returned success and %d devices", n);
}

/* A handle between guard bytes: the plugin owns the 128 in the middle. */
struct guarded_handle {
	uint8_t before[CHECK_GUARD], bytes[GANTRY_NET_HANDLE_SIZE], after[2 * GANTRY_NET_HANDLE_SIZE];
};

static void guard_set(struct guarded_handle *h)
{
	memset(h, CHECK_POISON, sizeof(*h));
	memset(h->bytes, 0, sizeof(h->bytes));
}

static void guard_check(struct check_side *s, const struct guarded_handle *h, const char *call)
{
	size_t at = check_untouched(h->after, sizeof(h->after));

	if (at < sizeof(h->after))
		check_fail(s, "%s wrote byte %zu of a handle of %d bytes", call, GANTRY_NET_HANDLE_SIZE + at,
			   GANTRY_NET_HANDLE_SIZE);
	at = check_untouched(h->before, sizeof(h->before));
	if (at < sizeof(h->before))
		check_fail(s, "%s wrote %zu bytes before the handle", call, sizeof(h->before) - at);
}

void *check_listen(struct check_side *s, uint8_t handle[GANTRY_NET_HANDLE_SIZE])
{
	struct guarded_handle h;
	void *listen = NULL;

	guard_set(&h);
	CHECK_MUST(s, CHECK_SERVICE, "listen", s->net->ops->listen(s->net, s->ctx, 0, h.bytes, &listen));
	if (!listen)
		check_fail(s, "listen returned success and no comm");
	guard_check(s, &h, "listen");
	memcpy(handle, h.bytes, GANTRY_NET_HANDLE_SIZE);
	return listen;
}

static void poll_pause(struct check_side *s, const char *call)
{
	if (!check_left_ns(s))
		check_fail(s, "%s still gave no comm after %.1f s", call,
			   (double)(gantry_now_ns() - s->start_ns) / 1e9);
	usleep(POLL_US);
}

static void link_receive(struct check_side *s, struct check_link *l)
{
	struct gantry_net_device_handle *none = NULL; /* as NCCL for plugins that do not unpack */
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *listen = check_listen(s, handle);

	check_tell(s, handle, sizeof(handle));
	check_sleep_ms(l->accept_late_ms);
	for (;;) {
		CHECK_MUST(s, CHECK_SERVICE, "accept", s->net->ops->accept(s->net, listen, &l->comm, &none));
		if (l->comm)
			break;
		poll_pause(s, "accept");
	}
	CHECK_MUST(s, CHECK_SERVICE, "closeListen", s->net->ops->close_listen(s->net, listen));
}

static void link_send(struct check_side *s, struct check_link *l)
{
	struct gantry_net_device_handle *none = NULL;
	struct guarded_handle h;

	guard_set(&h);
	check_hear(s, h.bytes, sizeof(h.bytes));
	check_sleep_ms(l->connect_late_ms);
	for (;;) {
		CHECK_MUST(s, CHECK_SERVICE, "connect",
			   s->net->ops->connect(s->net, s->ctx, 0, h.bytes, &l->comm, &none));
		guard_check(s, &h, "connect");
		if (l->comm)
			break;
		poll_pause(s, "connect");
	}
}

void check_link_job(struct check_side *s, void *link)
{
	struct check_link *l = link;

	if (l->sending)
		link_send(s, l);
	else
		link_receive(s, l);
}

void *check_link(struct check_side *s, int sending)
{
	struct check_link l = {.sending = sending};

	check_phase(s, sending ? "connecting" : "accepting");
	check_service(s, check_link_job, &l);
	return l.comm;
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
	if (j.took_ns > CLOSE_LIMIT_MS * (uint64_t)CHECK_MS)
		check_fail(s, "%s took %.1f s, phase: %s", names[kind], (double)j.took_ns / 1e9, s->me->phase);
	return j.took_ns;
}
