/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "inet/port.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "inet/settings.h"
#include "inet/sock.h"

struct port {
	struct gantry_list node;
	struct gantry_addr addr; /* bound */
	int fd;			 /* users have duplicates */
	int refs;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct gantry_list ports = {&ports, &ports}, users = {&users, &users}; /* users: those with a port open */

/* ---- sockets ---- */

static struct port *find(const struct gantry_addr *addr)
{
	uint16_t wanted = gantry_addr_port(addr);

	gantry_list_each (pos, &ports) {
		struct port *p = gantry_container(pos, struct port, node);

		if (gantry_addr_same_host(&p->addr, addr) && (!wanted || wanted == gantry_addr_port(&p->addr)))
			return p;
	}
	return NULL;
}

static gantry_result listen_at(const struct gantry_addr *addr, struct port **ret_port)
{
	gantry_result r = GANTRY_OK;
	uint16_t first = gantry_addr_port(addr), last = first;
	struct port *p = calloc(1, sizeof(*p));

	if (!p)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a port");
	if (!first) /* the range was checked when it was loaded */
		TRY(inet_port_range(&first, &last));
	TRY(sock_listen(addr, first, last, &p->fd, &p->addr));
	gantry_list_append(&ports, &p->node);
	*ret_port = p;
	p = NULL;
out:
	free(p);
	return r;
}

static void drop_unused(struct port *p)
{
	if (!p || p->refs)
		return;
	close(p->fd);
	gantry_list_remove(&p->node);
	free(p);
}

gantry_result port_open(struct port_user *u, const struct gantry_addr *addr, int *ret_fd, struct gantry_addr *ret_bound)
{
	gantry_result r = GANTRY_OK;
	struct port *p;
	int fd;

	pthread_mutex_lock(&mu);
	p = find(addr);
	if (!p)
		TRY(listen_at(addr, &p));
	fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		FAIL(errno == EMFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM, "no descriptor for a port: %s (%s)",
		     strerror(errno), sock_errno_hint(errno));
	p->refs++;
	if (!u->refs++)
		gantry_list_append(&users, &u->node);
	*ret_fd = fd;
	*ret_bound = p->addr;
out:
	drop_unused(p);
	pthread_mutex_unlock(&mu);
	return r;
}

static void forget_user(struct port_user *u)
{
	while (u->ngiven)
		close(u->given[--u->ngiven]);
	u->refs = 0;
	gantry_list_remove(&u->node);
}

void port_close(struct port_user *u, const struct gantry_addr *bound)
{
	struct port *p;

	pthread_mutex_lock(&mu);
	p = find(bound);
	if (p && u->refs) { /* neither in a child that was forked since */
		if (!--u->refs)
			forget_user(u);
		p->refs--;
		drop_unused(p);
	}
	pthread_mutex_unlock(&mu);
}

/* ---- connections ---- */

static int begins_with(const struct port_user *u, const uint8_t *first, size_t n)
{
	return memcmp(first, u->magic, n < u->magic_size ? n : u->magic_size) == 0;
}

static int give(struct port_user *u, int fd)
{
	int one = 1, own = u->ngiven < PORT_GIVEN_MAX ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;

	if (own < 0)
		return 0;
	setsockopt(own, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
	u->given[u->ngiven++] = own;
	u->wake();
	return 1;
}

/*
 * The n bytes that are here fit several. They stay unread, so the kernel must not tell of them again and again: only of
 * more than n, or of the end. If it tells of no more than before, this was the end.
 */
static enum port_sorted wait_for_more(int fd, int n)
{
	int more = n + 1, asked = 0, one = 1;
	socklen_t len = sizeof(asked);

	if (getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &asked, &len) || asked > n ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &more, sizeof(more))) {
		setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
		return PORT_OURS;
	}
	return PORT_WAIT;
}

/* mu held. Who but self may have sent these bytes; NULL: none. */
static struct port_user *other_user(const struct port_user *self, const uint8_t *first, size_t n)
{
	gantry_list_each (pos, &users) {
		struct port_user *u = gantry_container(pos, struct port_user, node);

		if (u != self && begins_with(u, first, n))
			return u;
	}
	return NULL;
}

enum port_sorted port_sort(const struct port_user *self, int fd)
{
	enum port_sorted is = PORT_OURS;
	uint8_t first[PORT_MAGIC_MAX];
	ssize_t n = recv(fd, first, sizeof(first), MSG_PEEK | MSG_DONTWAIT);
	struct port_user *other;
	int one = 1;

	if (n <= 0)
		return n < 0 && (errno == EAGAIN || errno == EINTR) ? PORT_WAIT : PORT_OURS;
	pthread_mutex_lock(&mu);
	other = other_user(self, first, (size_t)n);
	if (other && begins_with(self, first, (size_t)n))
		is = wait_for_more(fd, (int)n);
	else if (other && give(other, fd))
		is = PORT_GIVEN;
	else
		setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
	pthread_mutex_unlock(&mu);
	return is;
}

int port_waiting(const struct port_user *u)
{
	int n;

	pthread_mutex_lock(&mu);
	n = u->ngiven;
	pthread_mutex_unlock(&mu);
	return n;
}

int port_take(struct port_user *u, struct gantry_addr *ret_peer, struct gantry_addr *ret_local)
{
	int fd = -1;

	pthread_mutex_lock(&mu);
	while (u->ngiven && fd < 0) {
		socklen_t peer = sizeof(*ret_peer), local = sizeof(*ret_local);

		fd = u->given[0];
		memmove(u->given, u->given + 1, (size_t)--u->ngiven * sizeof(fd));
		if (getpeername(fd, &ret_peer->sa, &peer) || getsockname(fd, &ret_local->sa, &local)) {
			close(fd); /* it has left */
			fd = -1;
		}
	}
	pthread_mutex_unlock(&mu);
	return fd;
}

/* ---- a fork ---- */

static void before_fork(void)
{
	pthread_mutex_lock(&mu);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&mu);
}

/* The parent's connections are not for the child: what it opens, it opens anew. */
static void in_child(void)
{
	gantry_list_each_safe (pos, &ports) {
		struct port *p = gantry_container(pos, struct port, node);

		p->refs = 0;
		drop_unused(p);
	}
	gantry_list_each_safe (pos, &users) {
		forget_user(gantry_container(pos, struct port_user, node));
	}
	pthread_mutex_unlock(&mu);
}

/* Before the users register theirs: the lock that was registered first is taken last. */
__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}
