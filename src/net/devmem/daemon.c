/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The privileged daemon: one thread, one poll loop, at most DEVMEM_DAEMON_CLIENTS connections. A request is done at
 * once, within the deadlines of netlink. Nothing a client sends is believed: sizes, numbers and names are checked, the
 * NIC may be fixed by the administrator, a dma-buf is what the kernel takes for one, and a flow is a socket that the
 * client could hand over, of the daemon's own network namespace: in another namespace any process can make a connection
 * between any two addresses, and would get the packets of the process that has this connection here.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/session.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71 /* since 5.14 */
#endif

enum { DEVMEM_DAEMON_VERSION = 1, DEVMEM_DAEMON_CLIENTS = 64, DEVMEM_DAEMON_TEXT = 256 };
#define DEVMEM_DAEMON_MAGIC 0x47445648u /* "GDVH" */
enum devmem_daemon_op { DEVMEM_DAEMON_BIND = 1, DEVMEM_DAEMON_STEER, DEVMEM_DAEMON_UNSTEER };

/* On the wire: all integers little-endian, in the order of the fields, texts in fields of fixed size. */
struct devmem_request {
	uint32_t op;	    /* enum devmem_daemon_op */
	uint32_t queues;    /* BIND */
	uint32_t location;  /* UNSTEER */
	char nic[IFNAMSIZ]; /* BIND */
};
struct devmem_reply {
	gantry_result result;
	uint32_t dmabuf_id;	       /* BIND */
	uint32_t location;	       /* STEER */
	char text[DEVMEM_DAEMON_TEXT]; /* of an error */
};
enum {
	DEVMEM_REQUEST_SIZE = 5 * 4 + IFNAMSIZ + 4, /* magic, version, op, queues, location, nic, 0 */
	DEVMEM_REPLY_SIZE = 5 * 4 + DEVMEM_DAEMON_TEXT,
};
_Static_assert(DEVMEM_REQUEST_SIZE == 40 && DEVMEM_REPLY_SIZE == 276, "both ends are of one build or of two");

struct client {
	int fd;
	struct ucred who;
	struct devmem_session *session; /* owned; NULL: not bound yet */
};

/* How long accept pauses when there are no free descriptors: long enough not to spin, short enough for a client that
 * waits. */
enum { ACCEPT_PAUSE_MS = 200 };

struct server {
	const struct devmem_daemon_config *config; /* borrowed */
	int listener;
	uint64_t accept_at; /* ns; not before */
	int short_of_files; /* logged */
	int nclients;
	struct client clients[DEVMEM_DAEMON_CLIENTS];
};

static void encode_request(const struct devmem_request *q, uint8_t bytes[DEVMEM_REQUEST_SIZE])
{
	put32(bytes, DEVMEM_DAEMON_MAGIC);
	put32(bytes + 4, DEVMEM_DAEMON_VERSION);
	put32(bytes + 8, q->op);
	put32(bytes + 12, q->queues);
	put32(bytes + 16, q->location);
	put_text(bytes + 20, IFNAMSIZ, q->nic);
	put32(bytes + 20 + IFNAMSIZ, 0); /* reserved */
}

static int is_name(const char nic[IFNAMSIZ])
{
	return *nic && memchr(nic, 0, IFNAMSIZ) && !strchr(nic, '/') && strcmp(nic, "..") != 0 && strcmp(nic, ".") != 0;
}

/* NULL: fine; else what is wrong with these bytes (static text). has_fd: a file came with them. */
static const char *decode_request(const uint8_t *bytes, size_t len, int has_fd, struct devmem_request *ret_request)
{
	struct devmem_request q;

	if (len != DEVMEM_REQUEST_SIZE)
		return "request has the wrong size";
	if (get32(bytes) != DEVMEM_DAEMON_MAGIC)
		return "not a request";
	if (get32(bytes + 4) != DEVMEM_DAEMON_VERSION)
		return "request has a different version";
	if (get32(bytes + 20 + IFNAMSIZ))
		return "a reserved field is set";
	q = (struct devmem_request){.op = get32(bytes + 8), .queues = get32(bytes + 12), .location = get32(bytes + 16)};
	memcpy(q.nic, bytes + 20, sizeof(q.nic));
	*ret_request = q;
	switch (q.op) {
	case DEVMEM_DAEMON_BIND:
		if (!is_name(q.nic))
			return "not an interface name";
		if (!q.queues || q.queues > DEVMEM_QUEUES_MAX)
			return "number of queues is out of range";
		return has_fd ? NULL : "no dma-buf came with the request";
	case DEVMEM_DAEMON_STEER:
		return has_fd ? NULL : "no socket came with the request";
	case DEVMEM_DAEMON_UNSTEER:
		return has_fd ? "a file came with a request that needs none" : NULL;
	}
	return "an unknown request";
}

static void encode_reply(const struct devmem_reply *a, uint8_t bytes[DEVMEM_REPLY_SIZE])
{
	put32(bytes, DEVMEM_DAEMON_MAGIC);
	put32(bytes + 4, DEVMEM_DAEMON_VERSION);
	put32(bytes + 8, (uint32_t)a->result);
	put32(bytes + 12, a->dmabuf_id);
	put32(bytes + 16, a->location);
	put_text(bytes + 20, DEVMEM_DAEMON_TEXT, a->text);
}

/* 0, or -1: not a reply, or of another version. */
static int decode_reply(const uint8_t *bytes, size_t len, struct devmem_reply *ret_reply)
{
	uint32_t result;

	if (len != DEVMEM_REPLY_SIZE || get32(bytes) != DEVMEM_DAEMON_MAGIC ||
	    get32(bytes + 4) != DEVMEM_DAEMON_VERSION)
		return -1;
	result = get32(bytes + 8);
	ret_reply->result = result == GANTRY_OK || (result > GANTRY_AGAIN && result < GANTRY_RESULT_COUNT)
				    ? (gantry_result)result
				    : GANTRY_ERR_PROTOCOL;
	ret_reply->dmabuf_id = get32(bytes + 12);
	ret_reply->location = get32(bytes + 16);
	get_text(ret_reply->text, sizeof(ret_reply->text), bytes + 20);
	return 0;
}

static gantry_result do_bind(struct server *s, struct client *c, const struct devmem_request *q, int fd)
{
	struct devmem_session_config config = {.nic = q->nic, .dmabuf = fd, .nqueues = q->queues, .configure = 1};

	if (c->session)
		FAIL_NOW(GANTRY_ERR_USAGE, "this connection already has a binding");
	if (s->config->nic && strcmp(s->config->nic, q->nic) != 0)
		FAIL_NOW(GANTRY_ERR_CONFIG, "this daemon serves %s only, not %s", s->config->nic, q->nic);
	TRY_NOW(devmem_session_open(&config, &c->session));
	LOG_INFO(TOOL, "process %d of user %u has %u queue%s of %s as dma-buf %u", (int)c->who.pid,
		 (unsigned)c->who.uid, q->queues, q->queues == 1 ? "" : "s", q->nic, c->session->dmabuf_id);
	return GANTRY_OK;
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
	struct devmem_tuple t;
	int e = devmem_tuple_of(fd, &t);

	if (e)
		FAIL_NOW(GANTRY_ERR_INVALID, "not a connected TCP socket: %s", strerror(e));
	e = same_namespace(fd);
	if (e)
		FAIL_NOW(GANTRY_ERR_INVALID, "not a socket of the daemon's network namespace: %s", strerror(e));
	return devmem_session_steer(c->session, &t, ret_location);
}

static void answer_request(struct server *s, struct client *c, const struct devmem_request *q, int fd,
			   struct devmem_reply *ret_reply)
{
	gantry_result r = GANTRY_OK;

	if (q->op == DEVMEM_DAEMON_BIND)
		TRY(do_bind(s, c, q, fd));
	else if (!c->session)
		FAIL(GANTRY_ERR_USAGE, "nothing is bound on this connection");
	else if (q->op == DEVMEM_DAEMON_STEER)
		TRY(do_steer(c, fd, &ret_reply->location));
	else
		TRY(devmem_session_unsteer(c->session, q->location));
	ret_reply->dmabuf_id = c->session->dmabuf_id;
out:
	ret_reply->result = r;
	if (r != GANTRY_OK)
		snprintf(ret_reply->text, sizeof(ret_reply->text), "%s", gantry_last_error());
}

/* One request. 0: the connection stays open; -1: it has ended, or sent something that our clients never send. */
static int serve_one(struct server *s, struct client *c)
{
	uint8_t bytes[DEVMEM_REQUEST_SIZE + 1]; /* one more, to see that it was longer */
	uint8_t answered[DEVMEM_REPLY_SIZE];
	struct devmem_reply reply = {0};
	struct devmem_request q;
	const char *wrong;
	int fd;
	ssize_t n = gantry_file_receive(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT, &fd);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	if (n == 0 && fd < 0)
		return -1; /* the end */
	wrong = decode_request(bytes, (size_t)n, fd >= 0, &q);
	if (wrong) {
		LOG_WARN(TOOL, "process %d of user %u: %s", (int)c->who.pid, (unsigned)c->who.uid, wrong);
		reply.result = GANTRY_ERR_PROTOCOL;
		snprintf(reply.text, sizeof(reply.text), "%s", wrong);
	} else {
		answer_request(s, c, &q, fd, &reply);
	}
	if (fd >= 0)
		close(fd);
	encode_reply(&reply, answered);
	n = send(c->fd, answered, sizeof(answered), MSG_NOSIGNAL | MSG_DONTWAIT);
	return n == (ssize_t)sizeof(answered) && !wrong ? 0 : -1;
}

static void drop_client(struct server *s, int i)
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
				LOG_WARN(TOOL, "accept: %s (clients wait until a file descriptor is free)",
					 strerror(errno));
			s->accept_at = gantry_now_ns() + ACCEPT_PAUSE_MS * 1000000ull;
		}
		return;
	}
	s->short_of_files = 0;
	if (getsockopt(c.fd, SOL_SOCKET, SO_PEERCRED, &c.who, &len) < 0 ||
	    (c.who.uid != 0 && c.who.uid != geteuid() && !(s->config->has_uid && c.who.uid == s->config->uid))) {
		LOG_WARN(TOOL, "refused process %d of user %u: this user is not served", (int)c.who.pid,
			 (unsigned)c.who.uid);
	} else if (s->nclients == DEVMEM_DAEMON_CLIENTS) {
		LOG_WARN(TOOL, "refused process %d: the limit of %d connections is reached", (int)c.who.pid,
			 DEVMEM_DAEMON_CLIENTS);
	} else {
		s->clients[s->nclients++] = c;
		return;
	}
	close(c.fd);
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
		FAIL(GANTRY_ERR_CONFIG, "%s was replaced by another process: use a folder that only root can write to",
		     path);
	if (fchownat(fd, "", uid, (gid_t)-1, AT_EMPTY_PATH) < 0)
		FAIL(GANTRY_ERR_SYSTEM, "chown of %s to user %u: %s", path, (unsigned)uid, strerror(errno));
out:
	if (fd >= 0)
		close(fd);
	return r;
}

/* What a dead daemon left is removed; a living one is not robbed. */
static gantry_result clear_path(const char *path, const struct sockaddr_un *a)
{
	gantry_result r = GANTRY_OK;
	struct stat st;
	int probe = -1;

	if (lstat(path, &st) < 0)
		return r;
	if (!S_ISSOCK(st.st_mode))
		FAIL(GANTRY_ERR_CONFIG, "%s exists and is not a socket", path);
	probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe < 0)
		FAIL(GANTRY_ERR_SYSTEM, "socket: %s", strerror(errno));
	if (connect(probe, (const struct sockaddr *)a, sizeof(*a)) == 0 || errno == EAGAIN)
		FAIL(GANTRY_ERR_CONFIG, "another daemon serves %s", path);
	if (unlink(path) < 0)
		FAIL(GANTRY_ERR_SYSTEM, "%s: %s", path, strerror(errno));
out:
	if (probe >= 0)
		close(probe);
	return r;
}

/* A socket that only its owner can open. */
static gantry_result listen_at(const struct devmem_daemon_config *c, int *ret_fd)
{
	gantry_result r = GANTRY_OK;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = -1, bound = 0, e;
	mode_t mask;

	if (strlen(c->path) >= sizeof(a.sun_path))
		FAIL(GANTRY_ERR_CONFIG, "the path is longer than %zu bytes: %s", sizeof(a.sun_path) - 1, c->path);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", c->path);
	TRY(clear_path(c->path, &a));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		FAIL(GANTRY_ERR_SYSTEM, "socket: %s", strerror(errno));
	mask = umask(0177);
	bound = bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
	e = errno;
	umask(mask);
	if (!bound)
		FAIL(GANTRY_ERR_SYSTEM, "bind to %s: %s", c->path, strerror(e));
	/* Mode 0600: only its owner may connect. */
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
	return r;
}

gantry_result devmem_daemon_serve(const struct devmem_daemon_config *config, const int *stop)
{
	gantry_result r = GANTRY_OK;
	struct server *s = calloc(1, sizeof(*s));
	struct pollfd p[DEVMEM_DAEMON_CLIENTS + 1];

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the daemon");
	s->config = config;
	s->listener = -1;
	TRY(listen_at(config, &s->listener));
	LOG_INFO(TOOL, "serving %s", config->path);
	while (!load_relaxed(stop)) {
		int n = s->nclients;

		for (int i = 0; i < n; i++)
			p[i] = (struct pollfd){.fd = s->clients[i].fd, .events = POLLIN};
		p[n] = (struct pollfd){.fd = gantry_now_ns() < s->accept_at ? -1 : s->listener, .events = POLLIN};
		if (poll(p, (nfds_t)n + 1, 100) < 0 && errno != EINTR)
			FAIL(GANTRY_ERR_SYSTEM, "poll: %s", strerror(errno));
		/* Backwards: dropping one moves the last into its place. */
		for (int i = n - 1; i >= 0; i--)
			if (p[i].revents && serve_one(s, &s->clients[i]) < 0)
				drop_client(s, i);
		if (p[n].revents & POLLIN)
			accept_one(s);
	}
	unlink(config->path);
out:
	if (s) {
		while (s->nclients)
			drop_client(s, s->nclients - 1);
		if (s->listener >= 0)
			close(s->listener);
	}
	free(s);
	return r;
}

/* The client's side of the privileged daemon: one connection for each binding, one request at a time. */

/* Longer than the daemon's own deadlines of netlink. */
enum { ANSWER_SECONDS = 60 };

MUTEX_KIND(devmem_daemon_mu); /* one request at a time */

struct devmem_daemon {
	struct devmem_daemon_mu mu;
	int fd;
	/* An answer is missing: one that came late would be taken for the next one's. */
	int broken GUARDED_BY(devmem_daemon_mu);
	char path[108];
};

void devmem_daemon_close(struct devmem_daemon *h)
{
	if (!h)
		return;
	if (h->fd >= 0)
		close(h->fd);
	free(h);
}

static gantry_result daemon_connect(const char *path, struct devmem_daemon **ret_daemon)
{
	gantry_result r = GANTRY_OK;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = ANSWER_SECONDS};
	struct devmem_daemon *h = calloc(1, sizeof(*h));

	if (!h)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection to the devmem daemon");
	h->fd = -1;
	if (strlen(path) >= sizeof(a.sun_path))
		FAIL(GANTRY_ERR_CONFIG, "GANTRY_DEVMEM_HELPER: the path is longer than %zu bytes: %s",
		     sizeof(a.sun_path) - 1, path);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	snprintf(h->path, sizeof(h->path), "%s", path);
	h->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (h->fd < 0)
		FAIL(GANTRY_ERR_SYSTEM, "socket: %s", strerror(errno));
	setsockopt(h->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(h->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (connect(h->fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		FAIL(GANTRY_ERR_CONFIG, "devmem daemon at %s: %s (is `gantry devmem-helper --socket %s` running?)",
		     path, strerror(errno), path);
	*ret_daemon = h;
	h = NULL;
out:
	devmem_daemon_close(h);
	return r;
}

static gantry_result ask_daemon(struct devmem_daemon *h, const struct devmem_request *q, int pass,
				struct devmem_reply *ret_reply)
{
	gantry_result r = GANTRY_OK;
	uint8_t request[DEVMEM_REQUEST_SIZE], bytes[DEVMEM_REPLY_SIZE];
	struct devmem_reply a;
	ssize_t n;

	devmem_daemon_mu_lock(&h->mu);
	if (h->broken)
		FAIL(GANTRY_ERR_PEER_LOST, "devmem daemon at %s did not answer an earlier request", h->path);
	h->broken = 1;
	encode_request(q, request);
	do
		n = gantry_file_send(h->fd, request, sizeof(request), 0, pass);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		FAIL(GANTRY_ERR_PEER_LOST, "devmem daemon at %s: %s", h->path, strerror(errno));
	do
		n = recv(h->fd, bytes, sizeof(bytes), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		FAIL(errno == EAGAIN ? GANTRY_ERR_TIMEOUT : GANTRY_ERR_PEER_LOST, "devmem daemon at %s: %s", h->path,
		     errno == EAGAIN ? "no answer" : strerror(errno));
	if (n == 0)
		FAIL(GANTRY_ERR_PEER_LOST,
		     "devmem daemon at %s closed the connection (another user than the one it serves?)", h->path);
	if (decode_reply(bytes, (size_t)n, &a) < 0)
		FAIL(GANTRY_ERR_VERSION, "devmem daemon at %s has a different version", h->path);
	h->broken = 0;
	if (a.result != GANTRY_OK)
		FAIL(a.result, "devmem daemon: %s", a.text);
	*ret_reply = a;
out:
	devmem_daemon_mu_unlock(&h->mu);
	return r;
}

gantry_result devmem_daemon_bind(const char *path, const struct devmem_session_config *c, uint32_t *ret_dmabuf_id,
				 struct devmem_daemon **ret_daemon)
{
	gantry_result r = GANTRY_OK;
	struct devmem_request q = {.op = DEVMEM_DAEMON_BIND, .queues = c->nqueues};
	struct devmem_daemon *h = NULL;
	struct devmem_reply a;

	snprintf(q.nic, sizeof(q.nic), "%s", c->nic);
	TRY(daemon_connect(path, &h));
	TRY(ask_daemon(h, &q, c->dmabuf, &a));
	if (!a.dmabuf_id)
		FAIL(GANTRY_ERR_PROTOCOL, "devmem daemon at %s returned dma-buf id 0", path);
	*ret_dmabuf_id = a.dmabuf_id;
	*ret_daemon = h;
	h = NULL;
out:
	devmem_daemon_close(h);
	return r;
}

gantry_result devmem_daemon_steer(struct devmem_daemon *h, int fd, uint32_t *ret_location)
{
	struct devmem_request q = {.op = DEVMEM_DAEMON_STEER};
	struct devmem_reply a;

	TRY_NOW(ask_daemon(h, &q, fd, &a));
	*ret_location = a.location;
	return GANTRY_OK;
}

gantry_result devmem_daemon_unsteer(struct devmem_daemon *h, uint32_t location)
{
	struct devmem_request q = {.op = DEVMEM_DAEMON_UNSTEER, .location = location};
	struct devmem_reply a;

	return location == DEVMEM_NO_RULE ? GANTRY_OK : ask_daemon(h, &q, -1, &a);
}
