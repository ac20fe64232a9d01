/* SPDX-License-Identifier: Apache-2.0 */
/* The real system: netlink, ioctls, and two socket calls that only ask. */
#include "net/devmem/sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "net/devmem.h"

void devmem_rule_build(const struct devmem_rule *r, struct ethtool_rxnfc *ret_rule)
{
	const struct devmem_tuple *t = &r->tuple;
	struct ethtool_rx_flow_spec *fs = &ret_rule->fs;

	memset(ret_rule, 0, sizeof(*ret_rule));
	ret_rule->cmd = ETHTOOL_SRXCLSRLINS;
	fs->ring_cookie = r->queue;
	fs->location = RX_CLS_LOC_ANY;
	if (t->family == AF_INET) {
		fs->flow_type = TCP_V4_FLOW;
		memcpy(&fs->h_u.tcp_ip4_spec.ip4dst, t->dst, 4);
		fs->h_u.tcp_ip4_spec.pdst = t->dst_port;
		fs->m_u.tcp_ip4_spec.ip4dst = UINT32_MAX;
		fs->m_u.tcp_ip4_spec.pdst = UINT16_MAX;
		if (r->narrow) {
			memcpy(&fs->h_u.tcp_ip4_spec.ip4src, t->src, 4);
			fs->h_u.tcp_ip4_spec.psrc = t->src_port;
			fs->m_u.tcp_ip4_spec.ip4src = UINT32_MAX;
			fs->m_u.tcp_ip4_spec.psrc = UINT16_MAX;
		}
		return;
	}
	fs->flow_type = TCP_V6_FLOW;
	memcpy(fs->h_u.tcp_ip6_spec.ip6dst, t->dst, 16);
	fs->h_u.tcp_ip6_spec.pdst = t->dst_port;
	memset(fs->m_u.tcp_ip6_spec.ip6dst, 0xff, 16);
	fs->m_u.tcp_ip6_spec.pdst = UINT16_MAX;
	if (r->narrow) {
		memcpy(fs->h_u.tcp_ip6_spec.ip6src, t->src, 16);
		fs->h_u.tcp_ip6_spec.psrc = t->src_port;
		memset(fs->m_u.tcp_ip6_spec.ip6src, 0xff, 16);
		fs->m_u.tcp_ip6_spec.psrc = UINT16_MAX;
	}
}

void devmem_rule_build_delete(uint32_t location, struct ethtool_rxnfc *ret_rule)
{
	*ret_rule = (struct ethtool_rxnfc){.cmd = ETHTOOL_SRXCLSRLDEL, .fs = {.location = location}};
}

void devmem_rss_equal(uint32_t n, uint32_t queues, struct devmem_rss *ret_rss)
{
	ret_rss->n = n < DEVMEM_RSS_MAX ? n : DEVMEM_RSS_MAX;
	for (uint32_t i = 0; i < ret_rss->n; i++)
		ret_rss->queue[i] = queues ? i % queues : 0;
}

/* Address and port of one end. 0, or -1: neither IPv4 nor IPv6. */
static int end_of(const struct sockaddr_storage *sa, uint32_t *ret_family, uint8_t *ret_addr, uint16_t *ret_port)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)sa;

	if (sa->ss_family == AF_INET) {
		memcpy(ret_addr, &in->sin_addr, 4);
		*ret_port = in->sin_port;
		*ret_family = AF_INET;
		return 0;
	}
	if (sa->ss_family != AF_INET6)
		return -1;
	*ret_port = in6->sin6_port;
	if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
		memcpy(ret_addr, &in6->sin6_addr.s6_addr[12], 4);
		*ret_family = AF_INET;
	} else {
		memcpy(ret_addr, &in6->sin6_addr, 16);
		*ret_family = AF_INET6;
	}
	return 0;
}

int devmem_tuple_of(int fd, struct devmem_tuple *ret_tuple)
{
	struct sockaddr_storage local = {0}, peer = {0};
	struct devmem_tuple t = {0};
	socklen_t local_len = sizeof(local), peer_len = sizeof(peer), len = sizeof(int);
	uint32_t family = 0;
	int protocol = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) < 0 ||
	    getsockname(fd, (struct sockaddr *)&local, &local_len) < 0)
		return errno;
	if (protocol != IPPROTO_TCP)
		return EPROTONOSUPPORT;
	if (getpeername(fd, (struct sockaddr *)&peer, &peer_len) < 0)
		return errno;
	if (end_of(&local, &t.family, t.dst, &t.dst_port) || end_of(&peer, &family, t.src, &t.src_port) ||
	    family != t.family)
		return EAFNOSUPPORT;
	*ret_tuple = t;
	return 0;
}

static int ethtool_ioctl(struct devmem_sys *s, const char *nic, void *data)
{
	struct ifreq ifr = {0};

	s->said[0] = 0;
	if (s->fd < 0)
		s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s->fd < 0)
		return errno;
	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", nic);
	ifr.ifr_data = data;
	return ioctl(s->fd, SIOCETHTOOL, &ifr) < 0 ? errno : 0;
}

static int sys_rule_add(struct devmem_sys *s, const char *nic, const struct devmem_rule *rule, uint32_t *ret_location)
{
	struct ethtool_rxnfc request;
	int e;

	devmem_rule_build(rule, &request);
	e = ethtool_ioctl(s, nic, &request);
	if (!e)
		*ret_location = request.fs.location; /* the kernel has replaced ANY by the place it found */
	return e;
}

static int sys_rule_del(struct devmem_sys *s, const char *nic, uint32_t location)
{
	struct ethtool_rxnfc request;

	devmem_rule_build_delete(location, &request);
	return ethtool_ioctl(s, nic, &request);
}

static int sys_rss_get(struct devmem_sys *s, const char *nic, struct devmem_rss *ret_rss)
{
	struct ethtool_rxfh_indir head = {.cmd = ETHTOOL_GRXFHINDIR}, *all;
	int e = ethtool_ioctl(s, nic, &head);

	if (e)
		return e;
	if (head.size > DEVMEM_RSS_MAX)
		return E2BIG;
	all = calloc(1, sizeof(*all) + head.size * sizeof(uint32_t));
	if (!all)
		return ENOMEM;
	all->cmd = ETHTOOL_GRXFHINDIR;
	all->size = head.size;
	e = head.size ? ethtool_ioctl(s, nic, all) : 0;
	if (!e) {
		ret_rss->n = head.size;
		memcpy(ret_rss->queue, all->ring_index, head.size * sizeof(uint32_t));
	}
	free(all);
	return e;
}

static int sys_rss_set(struct devmem_sys *s, const char *nic, const struct devmem_rss *rss)
{
	uint32_t n = rss ? rss->n : 0; /* none: the kernel sets the default */
	struct ethtool_rxfh_indir *all = calloc(1, sizeof(*all) + n * sizeof(uint32_t));
	int e;

	if (!all)
		return ENOMEM;
	all->cmd = ETHTOOL_SRXFHINDIR;
	all->size = n;
	if (n)
		memcpy(all->ring_index, rss->queue, n * sizeof(uint32_t));
	e = ethtool_ioctl(s, nic, all);
	free(all);
	return e;
}

static int sys_driver(struct devmem_sys *s, const char *nic, char *ret_name, size_t len)
{
	struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
	int e = ethtool_ioctl(s, nic, &info);

	if (!e)
		snprintf(ret_name, len, "%.*s", (int)sizeof(info.driver) - 1, info.driver);
	return e;
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

static const struct devmem_sys_ops linux_ops = {
	.dontneed = sys_dontneed,
	.family = devmem_nl_commands,
	.sendmsg = sys_sendmsg,
	.driver = sys_driver,
	.rings_get = devmem_nl_rings_get,
	.rings_set = devmem_nl_rings_set,
	.channels = devmem_nl_channels,
	.queues = devmem_nl_queues,
	.feature_get = devmem_nl_feature_get,
	.feature_set = devmem_nl_feature_set,
	.rss_get = sys_rss_get,
	.rss_set = sys_rss_set,
	.rule_add = sys_rule_add,
	.rule_del = sys_rule_del,
	.bind_rx = devmem_nl_bind_rx,
	.bind_tx = devmem_nl_bind_tx,
	.unbind = devmem_nl_close, /* the kernel ties a binding to the socket that asked for it */
};

void devmem_sys_init(struct devmem_sys *s)
{
	memset(s, 0, sizeof(*s));
	s->ops = &linux_ops;
	s->fd = -1;
}

void devmem_sys_close(struct devmem_sys *s)
{
	devmem_nl_close(s);
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
