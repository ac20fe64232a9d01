/* SPDX-License-Identifier: Apache-2.0 */
#include "inet/route.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct request {
	struct nlmsghdr head;
	struct rtmsg route;
	uint8_t attributes[128];
};

static void add(struct request *r, unsigned short type, const void *data, size_t size)
{
	struct rtattr *a = (struct rtattr *)(void *)((uint8_t *)r + NLMSG_ALIGN(r->head.nlmsg_len));

	a->rta_type = type;
	a->rta_len = (unsigned short)RTA_LENGTH(size);
	memcpy(RTA_DATA(a), data, size);
	r->head.nlmsg_len = NLMSG_ALIGN(r->head.nlmsg_len) + RTA_ALIGN(a->rta_len);
}

static void add_addr(struct request *r, unsigned short type, const struct gantry_addr *a)
{
	if (a->sa.sa_family == AF_INET6)
		add(r, type, &a->in6.sin6_addr, 16);
	else
		add(r, type, &a->in.sin_addr, 4);
}

static unsigned answer_device(const struct nlmsghdr *head, size_t size)
{
	const struct rtmsg *route = NLMSG_DATA(head);
	const struct rtattr *a = RTM_RTA(route);
	int left = (int)RTM_PAYLOAD(head);
	unsigned device = 0;

	if (!NLMSG_OK(head, size) || head->nlmsg_type != RTM_NEWROUTE)
		return 0;
	for (; RTA_OK(a, left); a = RTA_NEXT(a, left))
		if (a->rta_type == RTA_OIF && RTA_PAYLOAD(a) >= sizeof(device))
			memcpy(&device, RTA_DATA(a), sizeof(device));
	return device;
}

unsigned gantry_route_device(const struct gantry_addr *from, const struct gantry_addr *to)
{
	int v6 = to->sa.sa_family == AF_INET6;
	struct request r = {
		.head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct rtmsg)),
			 .nlmsg_type = RTM_GETROUTE,
			 .nlmsg_flags = NLM_F_REQUEST},
		.route = {.rtm_family = to->sa.sa_family, .rtm_dst_len = v6 ? 128 : 32},
	};
	union {
		struct nlmsghdr head;
		uint8_t bytes[1024];
	} in;
	unsigned device = 0;
	ssize_t n;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd < 0)
		return 0;
	add_addr(&r, RTA_DST, to);
	if (from && from->sa.sa_family == to->sa.sa_family) {
		add_addr(&r, RTA_SRC, from);
		r.route.rtm_src_len = r.route.rtm_dst_len;
	}
	/* The kernel answers within the send: this never waits. */
	if (send(fd, &r, r.head.nlmsg_len, 0) > 0 && (n = recv(fd, &in, sizeof(in), MSG_DONTWAIT)) > 0)
		device = answer_device(&in.head, (size_t)n);
	close(fd);
	return device;
}
