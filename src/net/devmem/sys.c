/* SPDX-License-Identifier: Apache-2.0 */
/* The real system: netlink, ioctls, and two socket calls that only ask. */
#include "net/devmem/sys.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "net/devmem.h"
#include "net/devmem/ethtool.h"

static int sys_socket(struct devmem_sys *s)
{
	s->said[0] = 0;
	if (s->fd < 0)
		s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	return s->fd < 0 ? errno : 0;
}

static int sys_dontneed(struct devmem_sys *s)
{
	struct devmem_token none = {0};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), e;

	s->said[0] = 0;
	if (fd < 0)
		return errno;
	e = setsockopt(fd, SOL_SOCKET, SO_DEVMEM_DONTNEED, &none, sizeof(none)) < 0 ? errno : 0;
	close(fd);
	return e;
}

static int sys_sendmsg(struct devmem_sys *s)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(uint32_t))];
	} control = {.bytes = {0}};
	uint32_t unknown = UINT32_MAX;
	char data[64] = {0};
	struct iovec iov = {.iov_base = data, .iov_len = sizeof(data)};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, e;

	s->said[0] = 0;
	if (fd < 0)
		return errno;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_DEVMEM_DMABUF;
	c->cmsg_len = CMSG_LEN(sizeof(unknown));
	memcpy(CMSG_DATA(c), &unknown, sizeof(unknown));
	e = setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) < 0 ||
			    sendmsg(fd, &msg, MSG_ZEROCOPY | MSG_NOSIGNAL | MSG_DONTWAIT) < 0
		    ? errno
		    : 0;
	close(fd);
	return e;
}

static int sys_driver(struct devmem_sys *s, const char *nic, char *ret_name, size_t len)
{
	int e = sys_socket(s);

	return e ? e : devmem_driver_name(s->fd, nic, ret_name, len);
}

static int sys_family(struct devmem_sys *s, uint64_t *ret_commands)
{
	int e = devmem_nl_family(&s->nl, "netdev", &s->nl.netdev);

	memcpy(s->said, s->nl.said, sizeof(s->said));
	if (!e)
		*ret_commands = s->nl.netdev.commands;
	return e;
}

/* What all requests by netlink have in common. */
struct ask {
	struct devmem_nl_to to;
	uint64_t words[DEVMEM_NL_MESSAGE / 8];
};

static int prepare(struct devmem_sys *s, const char *nic, const char *family, struct devmem_family *f, struct ask *a)
{
	int e;

	s->said[0] = 0;
	a->to.ifindex = if_nametoindex(nic);
	if (!a->to.ifindex)
		return ENODEV;
	e = devmem_nl_family(&s->nl, family, f);
	a->to.family = f->id;
	a->to.seq = ++s->nl.seq;
	memcpy(s->said, s->nl.said, sizeof(s->said));
	return e;
}

static int netdev(struct devmem_sys *s, const char *nic, struct ask *a)
{
	return prepare(s, nic, "netdev", &s->nl.netdev, a);
}

static int ethtool(struct devmem_sys *s, const char *nic, struct ask *a)
{
	return prepare(s, nic, "ethtool", &s->nl.ethtool, a);
}

static int ask(struct devmem_sys *s, struct ask *a, size_t len, devmem_nl_reply on_reply, void *arg)
{
	int e = devmem_nl_ask(&s->nl, a->words, len, on_reply, arg);

	memcpy(s->said, s->nl.said, sizeof(s->said));
	return e;
}

static int on_rings(const struct nlmsghdr *m, void *arg)
{
	return devmem_nl_read_rings(m, arg);
}

static int on_channels(const struct nlmsghdr *m, void *arg)
{
	return devmem_nl_read_channels(m, arg);
}

static int on_features(const struct nlmsghdr *m, void *arg)
{
	return devmem_nl_read_features(m, arg);
}

static int on_dmabuf(const struct nlmsghdr *m, void *arg)
{
	return devmem_nl_read_dmabuf(m, arg);
}

struct queue_ask {
	uint32_t ifindex;
	struct devmem_queues *queues;
};
static int on_queue(const struct nlmsghdr *m, void *arg)
{
	struct queue_ask *q = arg;

	return devmem_nl_read_queue(m, q->ifindex, q->queues);
}

static int sys_rings_get(struct devmem_sys *s, const char *nic, struct devmem_rings *ret_rings)
{
	struct ask a;
	int e = ethtool(s, nic, &a);

	memset(ret_rings, 0, sizeof(*ret_rings));
	return e ? e
		 : ask(s, &a, devmem_nl_ethtool_get(a.words, sizeof(a.words), a.to, ETHNL_RINGS_GET), on_rings,
		       ret_rings);
}

static int sys_rings_set(struct devmem_sys *s, const char *nic, const struct devmem_rings *rings)
{
	struct ask a;
	int e = ethtool(s, nic, &a);

	return e ? e : ask(s, &a, devmem_nl_rings_set(a.words, sizeof(a.words), a.to, rings), NULL, NULL);
}

static int sys_channels(struct devmem_sys *s, const char *nic, uint32_t *ret_rx_queues)
{
	struct ask a;
	int e = ethtool(s, nic, &a);

	*ret_rx_queues = 0;
	return e ? e
		 : ask(s, &a, devmem_nl_ethtool_get(a.words, sizeof(a.words), a.to, ETHNL_CHANNELS_GET), on_channels,
		       ret_rx_queues);
}

static int sys_queues(struct devmem_sys *s, const char *nic, struct devmem_queues *ret_queues)
{
	struct ask a;
	struct queue_ask q = {.queues = ret_queues};
	int e = netdev(s, nic, &a);

	ret_queues->n = 0;
	q.ifindex = a.to.ifindex;
	return e ? e : ask(s, &a, devmem_nl_queue_get(a.words, sizeof(a.words), a.to), on_queue, &q);
}

static int sys_feature_get(struct devmem_sys *s, const char *nic, struct devmem_feature *feature)
{
	struct ask a;
	int e = ethtool(s, nic, &a);

	feature->known = feature->on = feature->fixed = 0;
	return e ? e
		 : ask(s, &a, devmem_nl_ethtool_get(a.words, sizeof(a.words), a.to, ETHNL_FEATURES_GET), on_features,
		       feature);
}

static int sys_feature_set(struct devmem_sys *s, const char *nic, const char *name, int on)
{
	struct ask a;
	int e = ethtool(s, nic, &a);

	return e ? e : ask(s, &a, devmem_nl_feature_set(a.words, sizeof(a.words), a.to, name, on), NULL, NULL);
}

static int sys_bind_rx(struct devmem_sys *s, const char *nic, int fd, const uint32_t *queues, uint32_t n,
		       uint32_t *ret_id)
{
	struct ask a;
	uint32_t id = 0;
	int e = netdev(s, nic, &a);

	if (!e)
		e = ask(s, &a, devmem_nl_bind_rx(a.words, sizeof(a.words), a.to, (uint32_t)fd, queues, n), on_dmabuf,
			&id);
	if (!e && !id)
		e = EPROTO; /* 0 would mean "no dma-buf" */
	if (!e)
		*ret_id = id;
	return e;
}

static int sys_bind_tx(struct devmem_sys *s, const char *nic, int fd, uint32_t *ret_id)
{
	struct ask a;
	uint32_t id = 0;
	int e = netdev(s, nic, &a);

	if (!e)
		e = ask(s, &a, devmem_nl_bind_tx(a.words, sizeof(a.words), a.to, (uint32_t)fd), on_dmabuf, &id);
	if (!e && !id)
		e = EPROTO;
	if (!e)
		*ret_id = id;
	return e;
}

/* The kernel ties a binding to the socket that asked for it. (A child of fork has it open, too, until it ends.) */
static void sys_unbind(struct devmem_sys *s)
{
	devmem_nl_close(&s->nl);
}

static int sys_rss_get(struct devmem_sys *s, const char *nic, struct devmem_rss *ret_rss)
{
	int e = sys_socket(s);

	return e ? e : devmem_rss_get(s->fd, nic, ret_rss);
}

static int sys_rss_set(struct devmem_sys *s, const char *nic, const struct devmem_rss *rss)
{
	int e = sys_socket(s);

	return e ? e : devmem_rss_set(s->fd, nic, rss);
}

static int sys_rule_add(struct devmem_sys *s, const char *nic, const struct devmem_tuple *t, int narrow, uint32_t queue,
			uint32_t *ret_location)
{
	int e = sys_socket(s);

	return e ? e : devmem_rule_add(s->fd, nic, t, narrow, queue, ret_location);
}

static int sys_rule_del(struct devmem_sys *s, const char *nic, uint32_t location)
{
	int e = sys_socket(s);

	return e ? e : devmem_rule_del(s->fd, nic, location);
}

static const struct devmem_sys_ops linux_ops = {
	.dontneed = sys_dontneed,
	.family = sys_family,
	.sendmsg = sys_sendmsg,
	.driver = sys_driver,
	.rings_get = sys_rings_get,
	.rings_set = sys_rings_set,
	.channels = sys_channels,
	.queues = sys_queues,
	.feature_get = sys_feature_get,
	.feature_set = sys_feature_set,
	.rss_get = sys_rss_get,
	.rss_set = sys_rss_set,
	.rule_add = sys_rule_add,
	.rule_del = sys_rule_del,
	.bind_rx = sys_bind_rx,
	.bind_tx = sys_bind_tx,
	.unbind = sys_unbind,
};

void devmem_sys_init(struct devmem_sys *s)
{
	memset(s, 0, sizeof(*s));
	s->ops = &linux_ops;
	s->fd = -1;
}

void devmem_sys_close(struct devmem_sys *s)
{
	devmem_nl_close(&s->nl);
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

struct devmem_sys *(*devmem_sys_for_tests)(void);

struct devmem_sys *devmem_sys_new(void)
{
	struct devmem_sys *s;

	if (devmem_sys_for_tests)
		return devmem_sys_for_tests();
	s = malloc(sizeof(*s));
	if (s)
		devmem_sys_init(s);
	return s;
}

void devmem_sys_free(struct devmem_sys *s)
{
	if (!s)
		return;
	devmem_sys_close(s);
	free(s);
}
