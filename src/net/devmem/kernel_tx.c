/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending from device memory: a dma-buf that the NIC reads, offsets in it instead of addresses, and completions on the
 * socket's error queue, as for any MSG_ZEROCOPY. No rights are needed.
 *
 * A socket is prepared when it first sends: SO_ZEROCOPY, and SO_BINDTODEVICE, because the kernel refuses a packet whose
 * route leaves by another device than the bound one.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/kernel.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "net/devmem/errors.h"
#include "net/devmem/sys.h"

enum { ORIGIN_ZEROCOPY = 5, FOREIGN_ERRORS = 16 };

struct kernel_tx {
	struct devmem_tx base; /* first: functions of the source cast back */
	char nic[IFNAMSIZ];
	struct devmem_sys *sys; /* owned: its netlink socket holds the binding */
	pthread_mutex_t lock;	/* of what follows */
	int *fds;		/* owned: sockets that are prepared */
	uint32_t nfds, room;
};

static struct kernel_tx *tx_of(struct devmem_tx *t)
{
	return (struct kernel_tx *)(void *)t;
}

void devmem_kernel_unbind_tx(struct devmem_tx *base)
{
	struct kernel_tx *t = tx_of(base);

	if (!t)
		return;
	devmem_sys_free(t->sys);
	pthread_mutex_destroy(&t->lock);
	free(t->fds);
	free(t);
}

gantry_result devmem_kernel_bind_tx(const struct devmem_memory *memory, const char *nic, struct devmem_tx **ret_tx)
{
	gantry_result r = GANTRY_OK;
	struct kernel_tx *t = calloc(1, sizeof(*t));
	char text[512];
	int fd = -1, e;

	if (!t)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding");
	t->base.ops = &devmem_kernel;
	t->base.memory = *memory;
	pthread_mutex_init(&t->lock, NULL);
	t->sys = devmem_sys_new();
	if (!t->sys)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding");
	if (strlen(nic) >= sizeof(t->nic))
		FAIL(GANTRY_ERR_INVALID, "'%s' is no name of an interface", nic);
	snprintf(t->nic, sizeof(t->nic), "%s", nic);
	TRY(devmem_export(memory, &fd));
	e = t->sys->ops->bind_tx(t->sys, nic, fd, &t->base.dmabuf_id);
	if (e)
		FAIL(devmem_error_of(DEVMEM_CALL_BIND_TX, e)->result, "%s: %s", nic,
		     devmem_error_text(DEVMEM_CALL_BIND_TX, e, t->sys->said, text, sizeof(text)));
	*ret_tx = &t->base;
	t = NULL;
out:
	if (fd >= 0)
		close(fd); /* the binding has a reference of its own */
	devmem_kernel_unbind_tx(t ? &t->base : NULL);
	return r;
}

/* 0 or errno. t->lock is held. */
static int prepare(struct kernel_tx *t, int fd)
{
	int on = 1;

	for (uint32_t i = 0; i < t->nfds; i++)
		if (t->fds[i] == fd)
			return 0;
	if (t->nfds == t->room) {
		uint32_t room = t->room ? t->room * 2 : 16;
		int *bigger = realloc(t->fds, room * sizeof(*bigger));

		if (!bigger)
			return ENOMEM;
		t->fds = bigger;
		t->room = room;
	}
	if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) < 0)
		return errno;
	/* Not fatal: the route may lead there anyhow, and sendmsg says ENODEV if not. */
	if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, t->nic, (socklen_t)strlen(t->nic) + 1) < 0)
		LOG_WARN(NET, "devmem: SO_BINDTODEVICE %s: %s", t->nic, strerror(errno));
	t->fds[t->nfds++] = fd;
	return 0;
}

ssize_t devmem_kernel_send(struct devmem_tx *base, int fd, uint64_t offset, size_t len, int flags)
{
	struct kernel_tx *t = tx_of(base);
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(uint32_t))];
	} control = {.bytes = {0}};
	/* Not an address: the offset, where the kernel looks for it. */
	struct iovec iov = {.iov_base = (void *)(uintptr_t)offset, .iov_len = len};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int e;

	/* With id 0 the kernel would take the offset for an address and send what lies there. */
	if (!base->dmabuf_id || offset > base->memory.size || len > base->memory.size - offset) {
		errno = EINVAL;
		return -1;
	}
	pthread_mutex_lock(&t->lock);
	e = prepare(t, fd);
	pthread_mutex_unlock(&t->lock);
	if (e) {
		errno = e;
		return -1;
	}
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_DEVMEM_DMABUF;
	c->cmsg_len = CMSG_LEN(sizeof(uint32_t));
	memcpy(CMSG_DATA(c), &base->dmabuf_id, sizeof(uint32_t));
	return sendmsg(fd, &msg, flags | MSG_ZEROCOPY | MSG_NOSIGNAL);
}

/* The error of one message of the error queue, or NULL. */
static const struct sock_extended_err *error_in(struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c))
		if (((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
		     (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) &&
		    c->cmsg_len >= CMSG_LEN(sizeof(struct sock_extended_err)))
			return (const struct sock_extended_err *)(const void *)CMSG_DATA(c);
	return NULL;
}

int devmem_kernel_completed(struct devmem_tx *base, int fd, uint32_t *ret_lo, uint32_t *ret_hi)
{
	(void)base;
	/* Other errors may stand in the queue (an ICMP message, say); they are read over. */
	for (int i = 0; i < FOREIGN_ERRORS; i++) {
		union {
			struct cmsghdr align;
			char bytes[256];
		} control;
		struct msghdr msg = {.msg_control = &control, .msg_controllen = sizeof(control)};
		const struct sock_extended_err *ee;

		if (recvmsg(fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -1;
		ee = error_in(&msg);
		if (ee && ee->ee_origin == ORIGIN_ZEROCOPY && ee->ee_errno == 0) {
			*ret_lo = ee->ee_info;
			*ret_hi = ee->ee_data;
			return 1;
		}
	}
	return 0;
}

void devmem_kernel_forget(struct devmem_tx *base, int fd)
{
	struct kernel_tx *t = tx_of(base);

	pthread_mutex_lock(&t->lock);
	for (uint32_t i = 0; i < t->nfds; i++)
		if (t->fds[i] == fd)
			t->fds[i--] = t->fds[--t->nfds];
	pthread_mutex_unlock(&t->lock);
}
