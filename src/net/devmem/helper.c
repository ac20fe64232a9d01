/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The privileged helper: one thread, one poll loop, at most DEVMEM_HELPER_CLIENTS connections. A request is done at
 * once, within the deadlines of netlink. Nothing a client sends is believed: sizes, numbers and names are checked, the
 * NIC may be fixed by the administrator, a dma-buf is what the kernel takes for one, and a flow is a socket that the
 * client could hand over, of the helper's own network namespace: in another one anybody can make a connection between
 * any two addresses, and would get the packets of whoever has it here.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "net/devmem/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/devmem/bind.h"
#include "net/devmem/ethtool.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71 /* since 5.14 */
#endif

struct client {
	int fd;
	struct ucred who;
	struct devmem_session *session; /* owned; NULL: not bound yet */
};

/* How long nobody is accepted when there are no descriptors for it: long enough not to spin, short enough for a client
 * that waits. */
enum { ACCEPT_PAUSE_MS = 200 };

struct server {
	const struct devmem_helper_config *config; /* borrowed */
	int listener;
	uint64_t accept_at; /* ns; not before */
	int short_of_files; /* said so */
	int nclients;
	struct client clients[DEVMEM_HELPER_CLIENTS];
};

const char *devmem_request_check(const void *bytes, size_t len, int has_fd)
{
	struct devmem_request q;

	if (len != sizeof(q))
		return "a request of the wrong size";
	memcpy(&q, bytes, sizeof(q));
	if (q.magic != DEVMEM_HELPER_MAGIC)
		return "not a request";
	if (q.version != DEVMEM_HELPER_VERSION)
		return "a request of another version";
	if (q.zero)
		return "a reserved field is set";
	switch (q.op) {
	case DEVMEM_HELPER_BIND:
		if (!memchr(q.nic, 0, sizeof(q.nic)) || !*q.nic || strchr(q.nic, '/') || strcmp(q.nic, "..") == 0 ||
		    strcmp(q.nic, ".") == 0)
			return "not a name of an interface";
		if (!q.queues || q.queues > DEVMEM_QUEUES_MAX)
			return "a number of queues out of range";
		return has_fd ? NULL : "no dma-buf came with the request";
	case DEVMEM_HELPER_STEER:
		return has_fd ? NULL : "no socket came with the request";
	case DEVMEM_HELPER_UNSTEER:
		return has_fd ? "a file came with a request that needs none" : NULL;
	}
	return "an unknown request";
}

static gantry_result do_bind(struct server *s, struct client *c, const struct devmem_request *q, int fd)
{
	gantry_result r = GANTRY_OK;
	struct devmem_sys *sys;

	if (c->session)
		FAIL(GANTRY_ERR_USAGE, "this connection has a binding already");
	if (s->config->nic && strcmp(s->config->nic, q->nic) != 0)
		FAIL(GANTRY_ERR_CONFIG, "this helper serves %s only, not %s", s->config->nic, q->nic);
	sys = devmem_sys_new();
	if (!sys)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding");
	TRY(devmem_session_open(sys, q->nic, fd, q->queues, 1, &c->session));
	LOG_INFO(TOOL, "process %d of user %u has %u queue%s of %s as dma-buf %u", (int)c->who.pid,
		 (unsigned)c->who.uid, q->queues, q->queues == 1 ? "" : "s", q->nic, c->session->dmabuf_id);
out:
	return r;
}

/* Is the socket of the network namespace that this process is in? 0 or errno. */
static int same_namespace(int fd)
{
	int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), e = 0;
	uint64_t theirs = 0, ours = 0;
	socklen_t len = sizeof(theirs), own_len = sizeof(ours);

	if (getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &theirs, &len) < 0 ||
	    getsockopt(own, SOL_SOCKET, SO_NETNS_COOKIE, &ours, &own_len) < 0)
		e = errno;
	else if (theirs != ours)
		e = EXDEV;
	if (own >= 0)
		close(own);
	return e;
}

static gantry_result do_steer(struct client *c, int fd, uint32_t *ret_location)
{
	gantry_result r = GANTRY_OK;
	struct devmem_tuple t;
	int e;

	if (!c->session)
		FAIL(GANTRY_ERR_USAGE, "nothing is bound on this connection");
	e = devmem_tuple_of(fd, &t);
	if (e)
		FAIL(GANTRY_ERR_INVALID, "not a connected TCP socket: %s", strerror(e));
	e = same_namespace(fd);
	if (e)
		FAIL(GANTRY_ERR_INVALID, "not a socket of the helper's network namespace: %s", strerror(e));
	TRY(devmem_session_steer(c->session, &t, ret_location));
out:
	return r;
}

static gantry_result do_unsteer(struct client *c, uint32_t location)
{
	gantry_result r = GANTRY_OK;

	if (!c->session)
		FAIL(GANTRY_ERR_USAGE, "nothing is bound on this connection");
	TRY(devmem_session_unsteer(c->session, location));
out:
	return r;
}

static void answer(struct server *s, struct client *c, const struct devmem_request *q, int fd,
		   struct devmem_reply *ret_reply)
{
	gantry_result r = GANTRY_ERR_INTERNAL;

	if (q->op == DEVMEM_HELPER_BIND) {
		r = do_bind(s, c, q, fd);
		if (r == GANTRY_OK)
			ret_reply->dmabuf_id = c->session->dmabuf_id;
	} else if (q->op == DEVMEM_HELPER_STEER) {
		r = do_steer(c, fd, &ret_reply->location);
	} else if (q->op == DEVMEM_HELPER_UNSTEER) {
		r = do_unsteer(c, q->location);
	}
	ret_reply->result = r;
	if (r != GANTRY_OK)
		snprintf(ret_reply->text, sizeof(ret_reply->text), "%s", gantry_last_error());
}

/* All files that came: the first is kept, others are closed at once. Returns it, or -1. */
static int take_fds(struct msghdr *msg)
{
	int first = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = c->cmsg_len > CMSG_LEN(0) ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (first < 0)
				first = fd;
			else
				close(fd);
		}
	}
	return first;
}

/* One request. 0: the connection goes on; -1: it has ended, or said something that no client of ours says. */
static int serve_one(struct server *s, struct client *c)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control;
	char bytes[sizeof(struct devmem_request) + 1]; /* one more, to see that it was longer */
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct devmem_reply reply = {.magic = DEVMEM_HELPER_MAGIC, .version = DEVMEM_HELPER_VERSION};
	struct devmem_request q;
	const char *wrong;
	ssize_t n = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	int fd;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	fd = take_fds(&msg);
	if (n == 0 && fd < 0)
		return -1; /* the end */
	wrong = devmem_request_check(bytes, (size_t)n, fd >= 0);
	if (wrong) {
		LOG_WARN(TOOL, "process %d of user %u: %s", (int)c->who.pid, (unsigned)c->who.uid, wrong);
		reply.result = GANTRY_ERR_PROTOCOL;
		snprintf(reply.text, sizeof(reply.text), "%s", wrong);
	} else {
		memcpy(&q, bytes, sizeof(q));
		answer(s, c, &q, fd, &reply);
	}
	if (fd >= 0)
		close(fd);
	return send(c->fd, &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(reply) && !wrong ? 0
														   : -1;
}

static void drop(struct server *s, int i)
{
	devmem_session_close(s->clients[i].session);
	close(s->clients[i].fd);
	s->clients[i] = s->clients[--s->nclients];
}

static void accept_one(struct server *s)
{
	struct client c = {.fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC)};
	socklen_t len = sizeof(c.who);

	if (c.fd < 0) {
		/* The client stays in the queue, and poll would name the listener again at once. */
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			if (!s->short_of_files++)
				LOG_WARN(TOOL, "accept: %s (clients wait until there is room)", strerror(errno));
			s->accept_at = gantry_now_ns() + ACCEPT_PAUSE_MS * 1000000ull;
		}
		return;
	}
	s->short_of_files = 0;
	if (getsockopt(c.fd, SOL_SOCKET, SO_PEERCRED, &c.who, &len) < 0 ||
	    (c.who.uid != 0 && c.who.uid != geteuid() && !(s->config->has_uid && c.who.uid == s->config->uid))) {
		LOG_WARN(TOOL, "process %d of user %u was turned away: not a user that is served", (int)c.who.pid,
			 (unsigned)c.who.uid);
		close(c.fd);
	} else if (s->nclients == DEVMEM_HELPER_CLIENTS) {
		LOG_WARN(TOOL, "process %d was turned away: %d connections are the most", (int)c.who.pid,
			 DEVMEM_HELPER_CLIENTS);
		close(c.fd);
	} else {
		s->clients[s->nclients++] = c;
	}
}

/*
 * Others may be able to write to the folder: what stands under the name by now may be a link to a file of root's, so
 * the owner is changed of the very thing that was looked at, and only if that is a socket of ours with no other name.
 */
static gantry_result give_socket(const char *path, uid_t uid)
{
	gantry_result r = GANTRY_OK;
	struct stat st;
	int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) < 0)
		FAIL(GANTRY_ERR_SYSTEM, "%s: %s", path, strerror(errno));
	if (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1)
		FAIL(GANTRY_ERR_CONFIG, "%s was replaced by somebody: use a folder that only root can write to", path);
	if (fchownat(fd, "", uid, (gid_t)-1, AT_EMPTY_PATH) < 0)
		FAIL(GANTRY_ERR_SYSTEM, "chown of %s to user %u: %s", path, (unsigned)uid, strerror(errno));
out:
	if (fd >= 0)
		close(fd);
	return r;
}

/* A socket that only its owner can open. What a dead helper left is removed; a living one is not robbed. */
static gantry_result listen_at(const struct devmem_helper_config *c, int *ret_fd)
{
	gantry_result r = GANTRY_OK;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct stat st;
	int fd = -1, probe = -1, bound = 0;
	mode_t mask;

	if (strlen(c->path) >= sizeof(a.sun_path))
		FAIL(GANTRY_ERR_CONFIG, "the path is longer than %zu bytes: %s", sizeof(a.sun_path) - 1, c->path);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", c->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || probe < 0)
		FAIL(GANTRY_ERR_SYSTEM, "socket: %s", strerror(errno));
	if (lstat(c->path, &st) == 0) {
		if (!S_ISSOCK(st.st_mode))
			FAIL(GANTRY_ERR_CONFIG, "%s exists and is no socket", c->path);
		if (connect(probe, (struct sockaddr *)&a, sizeof(a)) == 0 || errno == EAGAIN)
			FAIL(GANTRY_ERR_CONFIG, "another helper serves %s", c->path);
		if (unlink(c->path) < 0)
			FAIL(GANTRY_ERR_SYSTEM, "%s: %s", c->path, strerror(errno));
	}
	mask = umask(0177);
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
		int e = errno;

		umask(mask);
		FAIL(GANTRY_ERR_SYSTEM, "bind to %s: %s", c->path, strerror(e));
	}
	umask(mask);
	bound = 1;
	/* Mode 0600, and its owner is who may connect. */
	if (c->has_uid && c->uid != geteuid())
		TRY(give_socket(c->path, c->uid));
	if (listen(fd, 16) < 0)
		FAIL(GANTRY_ERR_SYSTEM, "listen at %s: %s", c->path, strerror(errno));
	*ret_fd = fd;
	fd = -1;
out:
	if (fd >= 0 && bound)
		unlink(c->path);
	if (fd >= 0)
		close(fd);
	if (probe >= 0)
		close(probe);
	return r;
}

gantry_result devmem_helper_serve(const struct devmem_helper_config *config, const volatile int *stop)
{
	gantry_result r = GANTRY_OK;
	struct server *s = calloc(1, sizeof(*s));
	struct pollfd p[DEVMEM_HELPER_CLIENTS + 1];

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the helper");
	s->config = config;
	s->listener = -1;
	TRY(listen_at(config, &s->listener));
	LOG_INFO(TOOL, "serving %s", config->path);
	while (!*stop) {
		int n = s->nclients;

		for (int i = 0; i < n; i++)
			p[i] = (struct pollfd){.fd = s->clients[i].fd, .events = POLLIN};
		p[n] = (struct pollfd){.fd = gantry_now_ns() < s->accept_at ? -1 : s->listener, .events = POLLIN};
		if (poll(p, (nfds_t)n + 1, 100) < 0 && errno != EINTR)
			FAIL(GANTRY_ERR_SYSTEM, "poll: %s", strerror(errno));
		/* Backwards: dropping one moves the last into its place. */
		for (int i = n - 1; i >= 0; i--)
			if (p[i].revents && serve_one(s, &s->clients[i]) < 0)
				drop(s, i);
		if (p[n].revents & POLLIN)
			accept_one(s);
	}
	unlink(config->path);
out:
	if (s) {
		while (s->nclients)
			drop(s, s->nclients - 1);
		if (s->listener >= 0)
			close(s->listener);
	}
	free(s);
	return r;
}
