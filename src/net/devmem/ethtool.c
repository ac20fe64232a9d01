/* SPDX-License-Identifier: Apache-2.0 */
/* Flow rules and RSS by ioctl. */
#include "net/devmem/ethtool.h"

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

void devmem_rule_build(const struct devmem_tuple *t, int narrow, uint32_t queue, struct ethtool_rxnfc *ret_rule)
{
	struct ethtool_rx_flow_spec *fs = &ret_rule->fs;

	memset(ret_rule, 0, sizeof(*ret_rule));
	ret_rule->cmd = ETHTOOL_SRXCLSRLINS;
	fs->ring_cookie = queue;
	fs->location = RX_CLS_LOC_ANY;
	if (t->family == AF_INET) {
		fs->flow_type = TCP_V4_FLOW;
		memcpy(&fs->h_u.tcp_ip4_spec.ip4dst, t->dst, 4);
		fs->h_u.tcp_ip4_spec.pdst = t->dst_port;
		fs->m_u.tcp_ip4_spec.ip4dst = UINT32_MAX;
		fs->m_u.tcp_ip4_spec.pdst = UINT16_MAX;
		if (narrow) {
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
	if (narrow) {
		memcpy(fs->h_u.tcp_ip6_spec.ip6src, t->src, 16);
		fs->h_u.tcp_ip6_spec.psrc = t->src_port;
		memset(fs->m_u.tcp_ip6_spec.ip6src, 0xff, 16);
		fs->m_u.tcp_ip6_spec.psrc = UINT16_MAX;
	}
}

void devmem_rule_build_delete(uint32_t location, struct ethtool_rxnfc *ret_rule)
{
	memset(ret_rule, 0, sizeof(*ret_rule));
	ret_rule->cmd = ETHTOOL_SRXCLSRLDEL;
	ret_rule->fs.location = location;
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

static int ethtool_ioctl(int fd, const char *nic, void *data)
{
	struct ifreq ifr = {0};

	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", nic);
	ifr.ifr_data = data;
	return ioctl(fd, SIOCETHTOOL, &ifr) < 0 ? errno : 0;
}

int devmem_rule_add(int fd, const char *nic, const struct devmem_tuple *t, int narrow, uint32_t queue,
		    uint32_t *ret_location)
{
	struct ethtool_rxnfc rule;
	int e;

	devmem_rule_build(t, narrow, queue, &rule);
	e = ethtool_ioctl(fd, nic, &rule);
	if (!e)
		*ret_location = rule.fs.location; /* the kernel has replaced ANY by the place it found */
	return e;
}

int devmem_rule_del(int fd, const char *nic, uint32_t location)
{
	struct ethtool_rxnfc rule;

	devmem_rule_build_delete(location, &rule);
	return ethtool_ioctl(fd, nic, &rule);
}

int devmem_rss_get(int fd, const char *nic, struct devmem_rss *ret_rss)
{
	struct ethtool_rxfh_indir head = {.cmd = ETHTOOL_GRXFHINDIR}, *all;
	int e = ethtool_ioctl(fd, nic, &head);

	if (e)
		return e;
	if (head.size > DEVMEM_RSS_MAX)
		return E2BIG;
	all = calloc(1, sizeof(*all) + head.size * sizeof(uint32_t));
	if (!all)
		return ENOMEM;
	all->cmd = ETHTOOL_GRXFHINDIR;
	all->size = head.size;
	e = head.size ? ethtool_ioctl(fd, nic, all) : 0;
	if (!e) {
		ret_rss->n = head.size;
		memcpy(ret_rss->queue, all->ring_index, head.size * sizeof(uint32_t));
	}
	free(all);
	return e;
}

int devmem_rss_set(int fd, const char *nic, const struct devmem_rss *rss)
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
	e = ethtool_ioctl(fd, nic, all);
	free(all);
	return e;
}

int devmem_driver_name(int fd, const char *nic, char *ret_name, size_t len)
{
	struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
	int e = ethtool_ioctl(fd, nic, &info);

	if (!e)
		snprintf(ret_name, len, "%.*s", (int)sizeof(info.driver) - 1, info.driver);
	return e;
}
