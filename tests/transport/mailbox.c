/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport outside the tree: steps travel as parcels over an AF_UNIX stream socket, both ends are proxied.
 *
 * It is small on purpose and whole all the same; docs/adding-a-transport.md explains it step by step. It includes
 * nothing but gantry's public headers:
 *
 *   cc -shared -fPIC -o libmailbox.so mailbox.c
 *   GANTRY_TRANSPORT_LIBS=./libmailbox.so GANTRY_TRANSPORT=mailbox ...
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "gantry/transport.h"

#define STEP 65536
#define MAGIC 0x6d61696cu /* "mail" */

/* What the receiving end tells the sending end. */
struct mailbox_info {
	uint32_t magic;
	char name[36]; /* of its socket, random */
};

/* Goes before the bytes of each step. */
struct parcel {
	uint64_t step, size;
};

/* One end. Made in proxy_setup; the progress thread's alone once it is connected. */
struct mailbox {
	int listen_fd, fd;
	struct gantry_fifo *fifo; /* between the kernel and the proxy */
	char *ring;		  /* GANTRY_STEPS steps of STEP bytes */
	struct parcel parcel;	  /* that is on its way */
	size_t at;		  /* bytes of it that have gone through, the parcel's own included */
};

static int proxied(const struct gantry_peer_info *me, const struct gantry_peer_info *peer)
{
	(void)me;
	(void)peer;
	return GANTRY_TRANSPORT_PROXIED_SEND | GANTRY_TRANSPORT_PROXIED_RECV;
}

/* The same answer on both ends: it depends on nothing but the two infos, and on them symmetrically. */
static gantry_result can_connect(const struct gantry_peer_info *me, const struct gantry_peer_info *peer, int *ret_can,
				 char *why, size_t len)
{
	*ret_can = 0;
	if (me->host != peer->host || me->net_ns != peer->net_ns)
		snprintf(why, len, "a mailbox is for one host and network namespace");
	else if (me->device_kind != GANTRY_DEVICE_HOST || peer->device_kind != GANTRY_DEVICE_HOST)
		snprintf(why, len, "a mailbox is for host devices");
	else
		*ret_can = 1;
	return GANTRY_OK;
}

static void proxy_free(struct gantry_connector *c)
{
	struct mailbox *m = gantry_connector_resources(c);

	if (!m)
		return;
	if (m->listen_fd >= 0)
		close(m->listen_fd);
	if (m->fd >= 0)
		close(m->fd);
	free(m->fifo);
	free(m->ring);
	free(m);
	gantry_connector_set_resources(c, NULL);
}

/* Kernels of the host device address all memory of the process, so any memory will do. */
static gantry_result proxy_setup(struct gantry_connector *c)
{
	struct mailbox *m = calloc(1, sizeof(*m));

	if (!m)
		return GANTRY_ERR_NOMEM;
	gantry_connector_set_resources(c, m);
	m->listen_fd = m->fd = -1;
	m->fifo = aligned_alloc(128, sizeof(*m->fifo));
	m->ring = aligned_alloc(128, (size_t)GANTRY_STEPS * STEP);
	if (!m->fifo || !m->ring) {
		proxy_free(c);
		return GANTRY_ERR_NOMEM;
	}
	memset(m->fifo, 0, sizeof(*m->fifo)); /* zeroed memory is an empty FIFO */
	gantry_connector_set_fifo(c, m->fifo);
	return GANTRY_OK;
}

static socklen_t address_of(const struct mailbox_info *info, struct sockaddr_un *ret)
{
	size_t n = strnlen(info->name, sizeof(info->name));

	memset(ret, 0, sizeof(*ret));
	ret->sun_family = AF_UNIX;
	memcpy(ret->sun_path + 1, info->name, n); /* the leading zero makes it abstract: nothing in the file system */
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static gantry_result setup_send(struct gantry_connector *c, struct gantry_connect_info *ret_info)
{
	struct mailbox_info info = {.magic = MAGIC};

	(void)c;
	memset(ret_info, 0, sizeof(*ret_info));
	memcpy(ret_info, &info, sizeof(info));
	return GANTRY_OK;
}

static gantry_result setup_recv(struct gantry_connector *c, struct gantry_connect_info *ret_info)
{
	struct mailbox *m = gantry_connector_resources(c);
	struct mailbox_info info = {.magic = MAGIC};
	struct sockaddr_un a;
	uint64_t salt[2];

	if (getrandom(salt, sizeof(salt), 0) != (ssize_t)sizeof(salt))
		return GANTRY_ERR_SYSTEM;
	snprintf(info.name, sizeof(info.name), "m-%016llx%016llx", (unsigned long long)salt[0],
		 (unsigned long long)salt[1]);
	m->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (m->listen_fd < 0 || bind(m->listen_fd, (struct sockaddr *)&a, address_of(&info, &a)) ||
	    listen(m->listen_fd, 1))
		return GANTRY_ERR_SYSTEM;
	memset(ret_info, 0, sizeof(*ret_info));
	memcpy(ret_info, &info, sizeof(info));
	return GANTRY_OK;
}

/* What the kernels see: the same for both ends. */
static gantry_result fill_in(struct gantry_connector *c, struct mailbox *m)
{
	struct gantry_kernel_end end = GANTRY_KERNEL_END_INIT;

	end.head = &m->fifo->head;
	end.tail = &m->fifo->tail;
	end.slots = m->fifo->slots;
	end.buffs[GANTRY_PROTO_SIMPLE] = m->ring; /* no LL, no LL128 */
	end.step_bytes[GANTRY_PROTO_SIMPLE] = STEP;
	end.max_step = STEP;
	end.eventcount = gantry_connector_proxy_eventcount(c);
	end.peer_notifies = gantry_connector_eventcount(c) != NULL; /* the proxy does */
	end.sharing = GANTRY_SHARES_NOTHING;
	return gantry_connector_fill(c, &end);
}

static gantry_result connect_send(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	struct mailbox *m = gantry_connector_resources(c);
	struct mailbox_info info;
	struct sockaddr_un a;
	socklen_t len;

	memcpy(&info, peer, sizeof(info));
	if (info.magic != MAGIC)
		return GANTRY_ERR_PROTOCOL;
	if (m->fd < 0)
		m->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (m->fd < 0)
		return GANTRY_ERR_SYSTEM;
	len = address_of(&info, &a);
	if (connect(m->fd, (struct sockaddr *)&a, len) < 0)
		return errno == EAGAIN || errno == EINTR ? GANTRY_AGAIN : GANTRY_ERR_UNREACHABLE;
	return fill_in(c, m);
}

static gantry_result connect_recv(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	struct mailbox *m = gantry_connector_resources(c);
	struct mailbox_info info;

	memcpy(&info, peer, sizeof(info));
	if (info.magic != MAGIC)
		return GANTRY_ERR_PROTOCOL;
	m->fd = accept4(m->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (m->fd < 0)
		return errno == EAGAIN || errno == EINTR ? GANTRY_AGAIN : GANTRY_ERR_SYSTEM;
	close(m->listen_fd);
	m->listen_fd = -1;
	return fill_in(c, m);
}

static gantry_result proxy_connect(struct gantry_connector *c)
{
	(void)c; /* connect has done it all */
	return GANTRY_OK;
}

static void free_end(struct gantry_connector *c)
{
	proxy_free(c); /* all of it is the proxy's; this is for an end whose proxy_free was not called */
}

static char *slot_of(const struct mailbox *m, uint64_t step)
{
	return m->ring + step % GANTRY_STEPS * STEP;
}

/* What a failed call of a socket means. */
static gantry_result socket_says(void)
{
	if (errno == EAGAIN || errno == EINTR)
		return GANTRY_AGAIN;
	return errno == EPIPE || errno == ECONNRESET ? GANTRY_ERR_PEER_LOST : GANTRY_ERR_SYSTEM;
}

/* Pushes the rest of a parcel. AGAIN: the socket is full. */
static gantry_result put(struct mailbox *m, uint64_t step, uint64_t size)
{
	m->parcel.step = step;
	m->parcel.size = size;
	while (m->at < sizeof(m->parcel) + size) {
		size_t head = m->at < sizeof(m->parcel) ? sizeof(m->parcel) - m->at : 0;
		size_t body = head ? 0 : m->at - sizeof(m->parcel);
		struct iovec iov[2] = {{(char *)&m->parcel + sizeof(m->parcel) - head, head},
				       {slot_of(m, step) + body, size - body}};
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
		ssize_t n = sendmsg(m->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0)
			return socket_says();
		m->at += (size_t)n;
	}
	m->at = 0;
	return GANTRY_OK;
}

static gantry_result send_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct mailbox *m = gantry_proxy_resources(pc);
	uint64_t step = gantry_proxy_steps(pc, GANTRY_PROXY_MOVED);
	struct gantry_proxy_op *op;

	while ((op = gantry_proxy_op_of(pc, step))) {
		uint64_t size, place;
		uint32_t mode;
		gantry_result r;

		if (!gantry_proxy_posted(pc, step, &mode, &size, &place)) {
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
			break;
		}
		r = put(m, step, size);
		if (r == GANTRY_AGAIN)
			gantry_proxy_waits(pc, GANTRY_WAIT_SOCKET);
		if (r != GANTRY_OK)
			return r == GANTRY_AGAIN ? GANTRY_OK : r;
		/* The socket has a copy, so the kernel may fill the slot again. */
		step += gantry_proxy_op_slice(op);
		gantry_proxy_advance(pc, GANTRY_PROXY_DONE, step);
		gantry_proxy_done(pc, step);
		*ret_worked = 1;
	}
	return GANTRY_OK;
}

/* Takes the rest of a parcel. AGAIN: it is not all here. */
static gantry_result get(struct mailbox *m, uint64_t step, uint64_t max)
{
	for (;;) {
		int opened = m->at >= sizeof(m->parcel);
		size_t body = opened ? m->at - sizeof(m->parcel) : 0;
		char *to = opened ? slot_of(m, step) + body : (char *)&m->parcel + m->at;
		size_t want = opened ? m->parcel.size - body : sizeof(m->parcel) - m->at;
		ssize_t n;

		if (opened && (m->parcel.step != step || m->parcel.size > max))
			return GANTRY_ERR_PROTOCOL;
		if (opened && !want)
			break;
		n = recv(m->fd, to, want, MSG_DONTWAIT);
		if (n < 0)
			return socket_says();
		if (n == 0)
			return GANTRY_ERR_PEER_CLOSED;
		m->at += (size_t)n;
	}
	m->at = 0;
	return GANTRY_OK;
}

/* Steps that the kernel has consumed. */
static void count_consumed(struct gantry_proxy_conn *pc, int *ret_worked)
{
	uint64_t head = gantry_proxy_consumed(pc), done = gantry_proxy_steps(pc, GANTRY_PROXY_DONE);
	struct gantry_proxy_op *op;

	while (done < gantry_proxy_steps(pc, GANTRY_PROXY_FLUSHED) && (op = gantry_proxy_op_of(pc, done)) &&
	       head >= done + gantry_proxy_op_slice(op)) {
		done += gantry_proxy_op_slice(op);
		gantry_proxy_advance(pc, GANTRY_PROXY_DONE, done);
		*ret_worked = 1;
	}
}

static gantry_result recv_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct mailbox *m = gantry_proxy_resources(pc);
	uint64_t step = gantry_proxy_steps(pc, GANTRY_PROXY_MOVED), end;
	struct gantry_proxy_op *op;
	gantry_result r = GANTRY_OK;

	count_consumed(pc, ret_worked);
	/* Only into slots that the kernel is done with; what is too early waits in the socket. */
	end = gantry_proxy_steps(pc, GANTRY_PROXY_DONE) + GANTRY_STEPS;
	while (step < end && (op = gantry_proxy_op_of(pc, step))) {
		r = get(m, step, (uint64_t)gantry_proxy_op_slice(op) * STEP);
		if (r == GANTRY_AGAIN)
			gantry_proxy_waits(pc, GANTRY_WAIT_PEER);
		if (r != GANTRY_OK)
			break;
		gantry_proxy_advance(pc, GANTRY_PROXY_FLUSHED, step + gantry_proxy_op_slice(op));
		gantry_proxy_publish(pc, step, GANTRY_MODE_NORMAL, m->parcel.size, 0);
		step += gantry_proxy_op_slice(op);
		*ret_worked = 1;
	}
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

static const struct gantry_transport_side send_side = {
	.struct_size = sizeof(struct gantry_transport_side),
	.setup = setup_send,
	.connect = connect_send,
	.free = free_end,
	.proxy_setup = proxy_setup,
	.proxy_connect = proxy_connect,
	.proxy_progress = send_progress,
	.proxy_register = gantry_transport_unsupported_register,
	.proxy_deregister = gantry_transport_unsupported_deregister,
	.proxy_free = proxy_free,
};

static const struct gantry_transport_side recv_side = {
	.struct_size = sizeof(struct gantry_transport_side),
	.setup = setup_recv,
	.connect = connect_recv,
	.free = free_end,
	.proxy_setup = proxy_setup,
	.proxy_connect = proxy_connect,
	.proxy_progress = recv_progress,
	.proxy_register = gantry_transport_unsupported_register,
	.proxy_deregister = gantry_transport_unsupported_deregister,
	.proxy_free = proxy_free,
};

static const struct gantry_transport mailbox = {
	.struct_size = sizeof(mailbox),
	.name = "mailbox",
	.proxied = proxied,
	.can_connect = can_connect,
	.send = &send_side,
	.recv = &recv_side,
};

gantry_result gantry_transport_init_v1(void)
{
	return gantry_transport_register(&mailbox, 0);
}
