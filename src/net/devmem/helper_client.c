/* SPDX-License-Identifier: Apache-2.0 */
/* The client's side of the privileged helper: one connection for each binding, one request at a time. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "net/devmem/bind.h"
#include "net/devmem/helper.h"

/* Longer than the helper's own deadlines of netlink. */
enum { ANSWER_SECONDS = 60 };

struct devmem_helper {
	pthread_mutex_t lock; /* one request at a time */
	int fd;
	int broken; /* an answer is missing: one that came late would be taken for the next one's */
	char path[108];
};

void devmem_helper_close(struct devmem_helper *h)
{
	if (!h)
		return;
	if (h->fd >= 0)
		close(h->fd);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

static gantry_result helper_connect(const char *path, struct devmem_helper **ret_helper)
{
	gantry_result r = GANTRY_OK;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = ANSWER_SECONDS};
	struct devmem_helper *h = calloc(1, sizeof(*h));

	if (!h)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection to the devmem helper");
	pthread_mutex_init(&h->lock, NULL);
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
		FAIL(GANTRY_ERR_CONFIG, "devmem helper at %s: %s (is `gantry devmem-helper --socket %s` running?)",
		     path, strerror(errno), path);
	*ret_helper = h;
	h = NULL;
out:
	devmem_helper_close(h);
	return r;
}

static ssize_t send_request(int fd, const struct devmem_request *q, int pass)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.bytes = {0}};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)q, .iov_len = sizeof(*q)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (pass >= 0) {
		struct cmsghdr *c;

		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &pass, sizeof(int));
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL);
}

static gantry_result ask(struct devmem_helper *h, struct devmem_request *q, int pass, struct devmem_reply *ret_reply)
{
	gantry_result r = GANTRY_OK;
	struct devmem_reply a;
	ssize_t n;

	q->magic = DEVMEM_HELPER_MAGIC;
	q->version = DEVMEM_HELPER_VERSION;
	pthread_mutex_lock(&h->lock);
	if (h->broken)
		FAIL(GANTRY_ERR_PEER_LOST, "devmem helper at %s did not answer an earlier request", h->path);
	h->broken = 1;
	do
		n = send_request(h->fd, q, pass);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(*q))
		FAIL(GANTRY_ERR_PEER_LOST, "devmem helper at %s: %s", h->path, strerror(errno));
	do
		n = recv(h->fd, &a, sizeof(a), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		FAIL(errno == EAGAIN ? GANTRY_ERR_TIMEOUT : GANTRY_ERR_PEER_LOST, "devmem helper at %s: %s", h->path,
		     errno == EAGAIN ? "no answer" : strerror(errno));
	if (n == 0)
		FAIL(GANTRY_ERR_PEER_LOST,
		     "devmem helper at %s closed the connection (another user than the one it serves?)", h->path);
	if (n != (ssize_t)sizeof(a) || a.magic != DEVMEM_HELPER_MAGIC || a.version != DEVMEM_HELPER_VERSION)
		FAIL(GANTRY_ERR_VERSION, "devmem helper at %s is of another version", h->path);
	h->broken = 0;
	a.text[sizeof(a.text) - 1] = 0;
	if (a.result != GANTRY_OK)
		FAIL(a.result > GANTRY_AGAIN && a.result < GANTRY_RESULT_COUNT ? (gantry_result)a.result
									       : GANTRY_ERR_PROTOCOL,
		     "devmem helper: %s", a.text);
	*ret_reply = a;
out:
	pthread_mutex_unlock(&h->lock);
	return r;
}

gantry_result devmem_helper_bind(const char *path, const char *nic, int dmabuf, uint32_t queues,
				 uint32_t *ret_dmabuf_id, struct devmem_helper **ret_helper)
{
	gantry_result r = GANTRY_OK;
	struct devmem_request q = {.op = DEVMEM_HELPER_BIND, .queues = queues};
	struct devmem_helper *h = NULL;
	struct devmem_reply a;

	snprintf(q.nic, sizeof(q.nic), "%s", nic);
	TRY(helper_connect(path, &h));
	TRY(ask(h, &q, dmabuf, &a));
	if (!a.dmabuf_id)
		FAIL(GANTRY_ERR_PROTOCOL, "devmem helper at %s: dma-buf 0", path);
	*ret_dmabuf_id = a.dmabuf_id;
	*ret_helper = h;
	h = NULL;
out:
	devmem_helper_close(h);
	return r;
}

gantry_result devmem_helper_steer(struct devmem_helper *h, int fd, uint32_t *ret_location)
{
	gantry_result r = GANTRY_OK;
	struct devmem_request q = {.op = DEVMEM_HELPER_STEER};
	struct devmem_reply a;

	TRY(ask(h, &q, fd, &a));
	*ret_location = a.location;
out:
	return r;
}

gantry_result devmem_helper_unsteer(struct devmem_helper *h, uint32_t location)
{
	struct devmem_request q = {.op = DEVMEM_HELPER_UNSTEER, .location = location};
	struct devmem_reply a;

	return location == DEVMEM_NO_RULE ? GANTRY_OK : ask(h, &q, -1, &a);
}
