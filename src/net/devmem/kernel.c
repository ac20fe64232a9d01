/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devmem TCP of Linux as a source.
 *
 * A binding exports its memory as a dma-buf and has a session (session.h) bind it to queues of the NIC, in this process
 * or in the privileged daemon. A flow has a rule that brings its packets to one of those queues. Receiving and giving back
 * are one system call each, with the kernel's own results.
 *
 * Whether the rule works can only be seen from what arrives: after a flow's first bytes the queue that delivered them
 * is looked up (SO_INCOMING_NAPI_ID, then the NIC's list of queues). A flow on another queue still works, through host
 * memory; this is logged once.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <linux/errqueue.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "device/device.h"
#include "inet/nic.h"
#include "net/devmem.h"
#include "net/devmem/detect.h"
#include "net/devmem/session.h"

enum { NAPIS_MAX = 2 * DEVMEM_QUEUES_MAX, RECEIVES_UNTIL_CHECK = 4 };

MUTEX_KIND(kernel_binding_mu); /* of looking at the NIC's queues */
MUTEX_KIND(kernel_tx_mu);      /* of the list of prepared sockets */

struct kernel_binding {
	struct devmem_binding base; /* first: functions of the source cast back */
	char nic[IFNAMSIZ];
	struct devmem_session *session; /* owned; NULL: the daemon has it */
	struct devmem_daemon *daemon;	/* owned; NULL: this process has it */
	struct kernel_binding_mu mu;
	struct devmem_sys *sys POINTS_TO_GUARDED_BY(kernel_binding_mu); /* owned: for looking at queues */
	uint32_t nnapis GUARDED_BY(kernel_binding_mu);
	uint32_t napis[NAPIS_MAX] GUARDED_BY(kernel_binding_mu); /* of the bound queues, as last seen */
	int warned GUARDED_BY(kernel_binding_mu);
	/* Counts, relaxed: for describe. */
	uint64_t flows, receives, bytes, returned;
};

struct kernel_flow {
	struct devmem_flow base; /* first */
	uint32_t location;	 /* of its rule */
	int checks;		 /* receives still to be looked at; only the receiving thread's */
};

static struct kernel_binding *binding_of(const struct devmem_binding *b)
{
	return (struct kernel_binding *)(uintptr_t)b;
}

static gantry_result export_memory(const struct devmem_memory *memory, int *ret_fd)
{
	gantry_result r = GANTRY_OK;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), offset = 0;
	int fd = -1;

	if (devmem_page(memory) != page)
		FAIL(GANTRY_ERR_UNSUPPORTED, "devmem: pages of %llu bytes were requested; the kernel's have %llu",
		     (unsigned long long)devmem_page(memory), (unsigned long long)page);
	if (memory->file) {
		fd = fcntl(memory->file->fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			FAIL(GANTRY_ERR_INVALID, "devmem: dma-buf %d: %s", memory->file->fd, strerror(errno));
		*ret_fd = fd;
		return GANTRY_OK;
	}
	if (!memory->device || !memory->device_ptr || !memory->size || memory->size % page ||
	    (uintptr_t)memory->device_ptr % page)
		FAIL(GANTRY_ERR_INVALID, "devmem: %llu bytes at %p are not whole pages of %llu bytes",
		     (unsigned long long)memory->size, (void *)memory->device_ptr, (unsigned long long)page);
	TRY(memory->device->ops->dmabuf_export(memory->device, memory->device_ptr, memory->size, &fd, &offset));
	if (offset)
		FAIL(GANTRY_ERR_INTERNAL, "devmem: the dma-buf begins %llu bytes before its memory",
		     (unsigned long long)offset);
	*ret_fd = fd;
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	return r;
}

/* What both kinds of bindings begin with. */
static gantry_result begin_binding(const struct devmem_memory *memory, const char *nic, char own_nic[IFNAMSIZ],
				   struct devmem_sys **ret_sys, int *ret_fd)
{
	*ret_sys = devmem_sys_new();
	if (!*ret_sys)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a binding");
	if (strlen(nic) >= IFNAMSIZ)
		FAIL_NOW(GANTRY_ERR_INVALID, "'%s' is not an interface name", nic);
	snprintf(own_nic, IFNAMSIZ, "%s", nic);
	return export_memory(memory, ret_fd);
}

static void kernel_unbind(struct devmem_binding *base)
{
	struct kernel_binding *b = binding_of(base);

	if (!b)
		return;
	devmem_session_close(b->session);
	devmem_daemon_close(b->daemon);
	devmem_sys_free(b->sys);
	free(b);
}

static gantry_result bind_queues(struct kernel_binding *b, int fd)
{
	const struct gantry_params *p = gantry_params();
	struct devmem_session_config config = {
		.nic = b->nic, .dmabuf = fd, .nqueues = (uint32_t)p->devmem_queues, .configure = p->devmem_configure};

	if (*p->devmem_helper)
		return devmem_daemon_bind(p->devmem_helper, &config, &b->base.dmabuf_id, &b->daemon);
	TRY_NOW(devmem_session_open(&config, &b->session));
	b->base.dmabuf_id = b->session->dmabuf_id;
	return GANTRY_OK;
}

static gantry_result kernel_bind(const struct devmem_memory *memory, const char *nic,
				 struct devmem_binding **ret_binding)
{
	gantry_result r = GANTRY_OK;
	struct kernel_binding *b = calloc(1, sizeof(*b));
	int fd = -1;

	if (!b)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding");
	b->base.ops = &devmem_kernel;
	b->base.memory = *memory;
	if (!GANTRY_HAVE_LIBMNL)
		FAIL(GANTRY_ERR_UNSUPPORTED, "devmem TCP on %s: built without libmnl", nic);
	TRY(begin_binding(memory, nic, b->nic, &b->sys, &fd));
	TRY(bind_queues(b, fd));
	*ret_binding = &b->base;
	b = NULL;
out:
	if (fd >= 0)
		close(fd); /* the binding has a reference of its own */
	kernel_unbind(b ? &b->base : NULL);
	return r;
}

static gantry_result kernel_attach(struct devmem_binding *base, int fd, struct devmem_flow **ret_flow)
{
	gantry_result r = GANTRY_OK;
	struct kernel_binding *b = binding_of(base);
	struct kernel_flow *f = NULL;
	char text[GANTRY_ADDR_TEXT];
	struct devmem_tuple t;
	int e = devmem_tuple_of(fd, &t);

	if (e)
		FAIL(GANTRY_ERR_INVALID, "devmem: cannot steer this socket: %s", strerror(e));
	/* Packets to an address of this host go through lo and never reach a NIC. */
	if (gantry_addr_is_local(&t.src))
		FAIL(GANTRY_ERR_UNSUPPORTED, "%s: same host, devmem impossible", gantry_addr_text(&t.src, text));
	f = calloc(1, sizeof(*f));
	if (!f)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a flow");
	f->base.binding = base;
	f->base.fd = fd;
	f->checks = RECEIVES_UNTIL_CHECK;
	if (b->session)
		TRY(devmem_session_steer(b->session, &t, &f->location));
	else
		TRY(devmem_daemon_steer(b->daemon, fd, &f->location));
	fetch_add_relaxed(&b->flows, 1);
	*ret_flow = &f->base;
	f = NULL;
out:
	free(f);
	return r;
}

static void kernel_detach(struct devmem_flow *base)
{
	struct kernel_flow *f = (struct kernel_flow *)(void *)base;
	struct kernel_binding *b;

	if (!f)
		return;
	b = binding_of(base->binding);
	if (b->session)
		devmem_session_unsteer(b->session, f->location);
	else
		devmem_daemon_unsteer(b->daemon, f->location);
	free(f);
}

static int is_ours(const struct kernel_binding *b, uint32_t napi) REQUIRES(kernel_binding_mu)
{
	for (uint32_t i = 0; i < b->nnapis; i++)
		if (b->napis[i] == napi)
			return 1;
	return 0;
}

/* Which NAPI instances serve queues of this binding now: they change when a queue restarts. */
static void read_queues(struct kernel_binding *b) REQUIRES(kernel_binding_mu)
{
	struct devmem_queues all;

	b->nnapis = 0;
	if (b->sys->ops->queues(b->sys, b->nic, &all) == 0)
		for (uint32_t i = 0; i < all.n && b->nnapis < NAPIS_MAX; i++)
			if (all.q[i].dmabuf == b->base.dmabuf_id && all.q[i].napi)
				b->napis[b->nnapis++] = all.q[i].napi;
}

/* Has the flow come through a queue of ours? Only the first receives are looked at: the rule takes a moment to work. */
static void verify_flow(struct kernel_binding *b, struct kernel_flow *f)
{
	uint32_t napi = 0;
	socklen_t len = sizeof(napi);
	int ours;

	f->checks--;
	if (getsockopt(f->base.fd, SOL_SOCKET, SO_INCOMING_NAPI_ID, &napi, &len) < 0 || !napi)
		return;
	kernel_binding_mu_lock(&b->mu);
	ours = is_ours(b, napi);
	if (!ours && !f->checks) {
		read_queues(b);
		ours = is_ours(b, napi);
	}
	if (ours) {
		f->checks = 0;
	} else if (!f->checks && !b->warned) {
		b->warned = 1;
		LOG_WARN(NET,
			 "devmem: a flow of %s arrives by NAPI %u, not by a queue of dma-buf %u: not steered, it goes "
			 "through host memory. Check the rules (ethtool -n %s), ntuple (ethtool -k %s) and that the "
			 "route comes in by this NIC",
			 b->nic, napi, b->base.dmabuf_id, b->nic, b->nic);
	}
	kernel_binding_mu_unlock(&b->mu);
}

static ssize_t kernel_receive(struct devmem_flow *base, struct msghdr *msg, int flags)
{
	struct kernel_flow *f = (struct kernel_flow *)(void *)base;
	struct kernel_binding *b = binding_of(base->binding);
	ssize_t got = recvmsg(base->fd, msg, flags | MSG_SOCK_DEVMEM);

	if (got > 0) {
		fetch_add_relaxed(&b->receives, 1);
		fetch_add_relaxed(&b->bytes, (uint64_t)got);
		if (f->checks)
			verify_flow(b, f);
	} else if (got < 0 && *devmem_error_of(DEVMEM_CALL_RECVMSG, errno)->reason) {
		static struct gantry_ratelimit limit;
		uint32_t left_out;
		int e = errno;

		if (gantry_ratelimit_pass(&limit, &left_out))
			LOG_WARN(NET, "%s: %s", b->nic, devmem_error_text(DEVMEM_CALL_RECVMSG, e, ""));
		errno = e;
	}
	return got;
}

static int kernel_give_back(struct devmem_flow *base, const struct devmem_token *ranges, size_t n)
{
	int freed = setsockopt(base->fd, SOL_SOCKET, SO_DEVMEM_DONTNEED, ranges, (socklen_t)(n * sizeof(*ranges)));

	if (freed > 0)
		fetch_add_relaxed(&binding_of(base->binding)->returned, (uint64_t)freed);
	return freed;
}

static void kernel_describe(const struct devmem_binding *base, char *text, size_t len)
{
	const struct kernel_binding *b = binding_of(base);
	char queues[64] = "by the daemon";

	if (b->session)
		snprintf(queues, sizeof(queues), "%u queue%s, highest %u", b->session->nqueues,
			 b->session->nqueues == 1 ? "" : "s", b->session->queues[0]);
	snprintf(text, len,
		 "devmem TCP on %s (%s), dma-buf %u, %" PRIu64 " MiB: %" PRIu64 " flows, %" PRIu64 " bytes in %" PRIu64
		 " receives, %" PRIu64 " fragments given back",
		 b->nic, queues, base->dmabuf_id, base->memory.size >> 20, load_relaxed(&b->flows),
		 load_relaxed(&b->bytes), load_relaxed(&b->receives), load_relaxed(&b->returned));
}

/*
 * Sending from device memory: a dma-buf that the NIC reads, offsets in it instead of addresses, and completions on the
 * socket's error queue, as for any MSG_ZEROCOPY. No rights are needed.
 *
 * A socket is prepared when it first sends: SO_ZEROCOPY, and SO_BINDTODEVICE, because the kernel refuses a packet whose
 * route leaves by another device than the bound one.
 */

enum { ORIGIN_ZEROCOPY = 5, FOREIGN_ERRORS = 16 };

struct kernel_tx {
	struct devmem_tx base; /* first: functions of the source cast back */
	char nic[IFNAMSIZ];
	struct devmem_sys *sys; /* owned: its netlink socket holds the binding */
	struct kernel_tx_mu mu;
	uint64_t skip;			   /* offset of the memory in the dma-buf */
	int *fds GUARDED_BY(kernel_tx_mu); /* owned: sockets that are prepared */
	uint32_t nfds GUARDED_BY(kernel_tx_mu), room GUARDED_BY(kernel_tx_mu);
};

static struct kernel_tx *tx_of(struct devmem_tx *t)
{
	return (struct kernel_tx *)(void *)t;
}

static void kernel_unbind_tx(struct devmem_tx *base) UNCHECKED /* no other thread has a reference */
{
	struct kernel_tx *t = tx_of(base);

	if (!t)
		return;
	devmem_sys_free(t->sys);
	free(t->fds);
	free(t);
}

static gantry_result kernel_bind_tx(const struct devmem_memory *memory, const char *nic, struct devmem_tx **ret_tx)
{
	gantry_result r = GANTRY_OK;
	struct kernel_tx *t = calloc(1, sizeof(*t));
	int fd = -1, e;

	if (!t)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding");
	t->base.ops = &devmem_kernel;
	t->base.memory = *memory;
	t->base.memory.file = NULL;
	t->skip = memory->file ? memory->file->offset : 0;
	TRY(begin_binding(memory, nic, t->nic, &t->sys, &fd));
	e = t->sys->ops->bind_tx(t->sys, nic, fd, &t->base.dmabuf_id);
	if (e)
		FAIL(devmem_error_of(DEVMEM_CALL_BIND_TX, e)->result, "%s: %s", nic,
		     devmem_error_text(DEVMEM_CALL_BIND_TX, e, t->sys->said));
	*ret_tx = &t->base;
	t = NULL;
out:
	if (fd >= 0)
		close(fd); /* the binding has a reference of its own */
	kernel_unbind_tx(t ? &t->base : NULL);
	return r;
}

/* 0 or errno. */
static int prepare_socket(struct kernel_tx *t, int fd) REQUIRES(kernel_tx_mu)
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

ssize_t devmem_sendmsg(int fd, uint32_t dmabuf_id, void *from, size_t len, int flags)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(uint32_t))];
	} control = {.bytes = {0}};
	struct iovec iov = {.iov_base = from, .iov_len = len};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_DEVMEM_DMABUF;
	c->cmsg_len = CMSG_LEN(sizeof(dmabuf_id));
	memcpy(CMSG_DATA(c), &dmabuf_id, sizeof(dmabuf_id));
	return sendmsg(fd, &msg, flags | MSG_ZEROCOPY | MSG_NOSIGNAL);
}

static ssize_t kernel_send(struct devmem_tx *base, int fd, uint64_t offset, size_t len, int flags)
{
	struct kernel_tx *t = tx_of(base);
	int e;

	/* With id 0 the kernel would take the offset for an address and send what lies there. */
	if (!base->dmabuf_id || offset > base->memory.size || len > base->memory.size - offset) {
		errno = EINVAL;
		return -1;
	}
	kernel_tx_mu_lock(&t->mu);
	e = prepare_socket(t, fd);
	kernel_tx_mu_unlock(&t->mu);
	if (e) {
		errno = e;
		return -1;
	}
	return devmem_sendmsg(fd, base->dmabuf_id, (void *)(uintptr_t)(t->skip + offset), len, flags);
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

static int kernel_completed(struct devmem_tx *base, int fd, uint32_t *ret_lo, uint32_t *ret_hi)
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

static void kernel_forget(struct devmem_tx *base, int fd)
{
	struct kernel_tx *t = tx_of(base);

	kernel_tx_mu_lock(&t->mu);
	for (uint32_t i = 0; i < t->nfds; i++)
		if (t->fds[i] == fd)
			t->fds[i--] = t->fds[--t->nfds];
	kernel_tx_mu_unlock(&t->mu);
}

const struct devmem_source_ops devmem_kernel = {
	.kind = GANTRY_NET_UNPACK_KERNEL,
	.name = "kernel",
	.bind = kernel_bind,
	.unbind = kernel_unbind,
	.attach = kernel_attach,
	.detach = kernel_detach,
	.receive = kernel_receive,
	.give_back = kernel_give_back,
	.bind_tx = kernel_bind_tx,
	.unbind_tx = kernel_unbind_tx,
	.send = kernel_send,
	.completed = kernel_completed,
	.forget = kernel_forget,
	.describe = kernel_describe,
};
