/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devmem TCP of Linux as a source.
 *
 * A binding exports its memory as a dma-buf and has a session (bind.c) bind it to queues of the NIC, in this process or
 * in the privileged helper. A flow has a rule that brings its packets to one of those queues. Receiving and giving back
 * are one system call each, with the kernel's own results.
 *
 * Whether the rule works can only be seen by what arrives: after a flow's first bytes the queue that brought them is
 * looked up (SO_INCOMING_NAPI_ID, then the NIC's list of queues). A flow on another queue still works, through host
 * memory; it is said once.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/kernel.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "device/device.h"
#include "inet/nic.h"
#include "net/devmem/bind.h"
#include "net/devmem/errors.h"
#include "net/devmem/ethtool.h"
#include "net/devmem/helper.h"

enum { NAPIS_MAX = 2 * DEVMEM_QUEUES_MAX, RECEIVES_UNTIL_CHECK = 4 };

struct kernel_binding {
	struct devmem_binding base; /* first: functions of the source cast back */
	char nic[IFNAMSIZ];
	struct devmem_session *session;	   /* owned; NULL: the helper has it */
	struct devmem_helper *helper;	   /* owned; NULL: this process has it */
	pthread_mutex_t lock;		   /* of what follows */
	struct devmem_sys *sys;		   /* owned: for looking at queues */
	uint32_t nnapis, napis[NAPIS_MAX]; /* of the bound queues, as last seen */
	int warned;
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

static void count(uint64_t *counter, uint64_t n)
{
	fetch_add_relaxed(counter, n);
}

gantry_result devmem_export(const struct devmem_memory *memory, int *ret_fd)
{
	gantry_result r = GANTRY_OK;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), offset = 0;
	int fd = -1;

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

static void kernel_unbind(struct devmem_binding *base)
{
	struct kernel_binding *b = binding_of(base);

	if (!b)
		return;
	devmem_session_close(b->session);
	devmem_helper_close(b->helper);
	devmem_sys_free(b->sys);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

static gantry_result bind_here(struct kernel_binding *b, int fd, uint32_t queues)
{
	gantry_result r = GANTRY_OK;
	struct devmem_sys *sys = devmem_sys_new();

	if (!sys)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding");
	TRY(devmem_session_open(sys, b->nic, fd, queues, gantry_params()->devmem_configure, &b->session));
	b->base.dmabuf_id = b->session->dmabuf_id;
out:
	return r;
}

static gantry_result kernel_bind(const struct devmem_memory *memory, const char *nic,
				 struct devmem_binding **ret_binding)
{
	gantry_result r = GANTRY_OK;
	const struct gantry_params *p = gantry_params();
	struct kernel_binding *b = calloc(1, sizeof(*b));
	int fd = -1;

	if (!b)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding");
	b->base.ops = &devmem_kernel;
	b->base.memory = *memory;
	pthread_mutex_init(&b->lock, NULL);
	b->sys = devmem_sys_new();
	if (!b->sys)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding");
	if (!GANTRY_HAVE_LIBMNL)
		FAIL(GANTRY_ERR_UNSUPPORTED, "devmem TCP on %s: built without libmnl", nic);
	if (strlen(nic) >= sizeof(b->nic))
		FAIL(GANTRY_ERR_INVALID, "'%s' is no name of an interface", nic);
	snprintf(b->nic, sizeof(b->nic), "%s", nic);
	TRY(devmem_export(memory, &fd));
	if (*p->devmem_helper)
		TRY(devmem_helper_bind(p->devmem_helper, nic, fd, (uint32_t)p->devmem_queues, &b->base.dmabuf_id,
				       &b->helper));
	else
		TRY(bind_here(b, fd, (uint32_t)p->devmem_queues));
	*ret_binding = &b->base;
	b = NULL;
out:
	if (fd >= 0)
		close(fd); /* the binding has a reference of its own */
	kernel_unbind(b ? &b->base : NULL);
	return r;
}

/* Packets to an address of this host go through lo and never reach a NIC. */
static gantry_result refuse_local(int fd)
{
	gantry_result r = GANTRY_OK;
	struct sockaddr_storage ss = {0};
	char text[GANTRY_ADDR_TEXT];
	struct gantry_addr peer;
	socklen_t len = sizeof(ss);

	if (getpeername(fd, (struct sockaddr *)&ss, &len) < 0)
		FAIL(GANTRY_ERR_INVALID, "devmem: getpeername: %s", strerror(errno));
	peer = gantry_addr_of((struct sockaddr *)&ss);
	if (ss.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&peer.in6.sin6_addr)) {
		struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = peer.in6.sin6_port};

		memcpy(&in.sin_addr, &peer.in6.sin6_addr.s6_addr[12], 4);
		peer = gantry_addr_of((struct sockaddr *)&in);
	}
	if (gantry_addr_is_local(&peer))
		FAIL(GANTRY_ERR_UNSUPPORTED, "%s: same host, devmem impossible", gantry_addr_text(&peer, text));
out:
	return r;
}

static gantry_result kernel_attach(struct devmem_binding *base, int fd, struct devmem_flow **ret_flow)
{
	gantry_result r = GANTRY_OK;
	struct kernel_binding *b = binding_of(base);
	struct kernel_flow *f = NULL;
	struct devmem_tuple t;
	int e;

	TRY(refuse_local(fd));
	e = devmem_tuple_of(fd, &t);
	if (e)
		FAIL(GANTRY_ERR_INVALID, "devmem: a socket that cannot be steered: %s", strerror(e));
	f = calloc(1, sizeof(*f));
	if (!f)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a flow");
	f->base.binding = base;
	f->base.fd = fd;
	f->checks = RECEIVES_UNTIL_CHECK;
	if (b->session)
		TRY(devmem_session_steer(b->session, &t, &f->location));
	else
		TRY(devmem_helper_steer(b->helper, fd, &f->location));
	count(&b->flows, 1);
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
		devmem_helper_unsteer(b->helper, f->location);
	free(f);
}

static int is_ours(const struct kernel_binding *b, uint32_t napi)
{
	for (uint32_t i = 0; i < b->nnapis; i++)
		if (b->napis[i] == napi)
			return 1;
	return 0;
}

/* Which NAPI instances serve queues of this binding now: they change when a queue restarts. b->lock is held. */
static void look_at_queues(struct kernel_binding *b)
{
	struct devmem_queues *all = calloc(1, sizeof(*all));

	b->nnapis = 0;
	if (all && b->sys->ops->queues(b->sys, b->nic, all) == 0)
		for (uint32_t i = 0; i < all->n && b->nnapis < NAPIS_MAX; i++)
			if (all->q[i].dmabuf == b->base.dmabuf_id && all->q[i].napi)
				b->napis[b->nnapis++] = all->q[i].napi;
	free(all);
}

/* Has the flow come through a queue of ours? Only the first receives are looked at: the rule takes a moment to work. */
static void verify(struct kernel_binding *b, struct kernel_flow *f)
{
	uint32_t napi = 0;
	socklen_t len = sizeof(napi);
	int ours;

	f->checks--;
	if (getsockopt(f->base.fd, SOL_SOCKET, SO_INCOMING_NAPI_ID, &napi, &len) < 0 || !napi)
		return;
	pthread_mutex_lock(&b->lock);
	ours = is_ours(b, napi);
	if (!ours && !f->checks) {
		look_at_queues(b);
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
	pthread_mutex_unlock(&b->lock);
}

static ssize_t kernel_receive(struct devmem_flow *base, struct msghdr *msg, int flags)
{
	struct kernel_flow *f = (struct kernel_flow *)(void *)base;
	struct kernel_binding *b = binding_of(base->binding);
	ssize_t got = recvmsg(base->fd, msg, flags | MSG_SOCK_DEVMEM);

	if (got > 0) {
		count(&b->receives, 1);
		count(&b->bytes, (uint64_t)got);
		if (f->checks)
			verify(b, f);
	} else if (got < 0 && *devmem_error_of(DEVMEM_CALL_RECVMSG, errno)->reason) {
		static struct gantry_ratelimit limit;
		uint32_t left_out;
		char text[320];
		int e = errno;

		if (gantry_ratelimit_pass(&limit, &left_out))
			LOG_WARN(NET, "%s: %s", b->nic,
				 devmem_error_text(DEVMEM_CALL_RECVMSG, e, "", text, sizeof(text)));
		errno = e;
	}
	return got;
}

static int kernel_give_back(struct devmem_flow *base, const struct devmem_token *ranges, size_t n)
{
	int freed = setsockopt(base->fd, SOL_SOCKET, SO_DEVMEM_DONTNEED, ranges, (socklen_t)(n * sizeof(*ranges)));

	if (freed > 0)
		count(&binding_of(base->binding)->returned, (uint64_t)freed);
	return freed;
}

static void kernel_describe(const struct devmem_binding *base, char *text, size_t len)
{
	const struct kernel_binding *b = binding_of(base);
	char queues[64] = "by the helper";

	if (b->session)
		snprintf(queues, sizeof(queues), "%u queue%s, highest %u", b->session->nqueues,
			 b->session->nqueues == 1 ? "" : "s", b->session->queues[0]);
	snprintf(text, len,
		 "devmem TCP on %s (%s), dma-buf %u, %llu MiB: %llu flows, %llu bytes in %llu receives, %llu fragments "
		 "given back",
		 b->nic, queues, base->dmabuf_id, (unsigned long long)(base->memory.size >> 20),
		 (unsigned long long)load_relaxed(&b->flows), (unsigned long long)load_relaxed(&b->bytes),
		 (unsigned long long)load_relaxed(&b->receives), (unsigned long long)load_relaxed(&b->returned));
}

const struct devmem_source_ops devmem_kernel = {
	.kind = DEVMEM_KERNEL,
	.name = "kernel",
	.bind = kernel_bind,
	.unbind = kernel_unbind,
	.attach = kernel_attach,
	.detach = kernel_detach,
	.receive = kernel_receive,
	.give_back = kernel_give_back,
	.bind_tx = devmem_kernel_bind_tx,
	.unbind_tx = devmem_kernel_unbind_tx,
	.send = devmem_kernel_send,
	.completed = devmem_kernel_completed,
	.forget = devmem_kernel_forget,
	.describe = kernel_describe,
};
