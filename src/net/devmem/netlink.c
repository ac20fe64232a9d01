/* SPDX-License-Identifier: Apache-2.0 */
/* The netlink socket: one request at a time, each with a deadline. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/netlink.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#if GANTRY_HAVE_LIBMNL
#include <libmnl/libmnl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdlib.h>

#include "base/clock.h"

/* Binding restarts a queue and maps gigabytes; nothing here takes longer on a NIC that works. */
static const uint64_t deadline_ns = 20000000000u;
enum { RECEIVE_MAX = 65536, OPT_CAP_ACK = 10, OPT_EXT_ACK = 11 };

static int open_socket(struct devmem_nl *nl)
{
	int on = 1;

	nl->sock = mnl_socket_open2(NETLINK_GENERIC, SOCK_CLOEXEC);
	if (!nl->sock)
		return errno;
	if (mnl_socket_bind(nl->sock, 0, MNL_SOCKET_AUTOPID) < 0) {
		int e = errno;

		devmem_nl_close(nl);
		return e;
	}
	/* Without these an old kernel says less, and that is all. */
	mnl_socket_setsockopt(nl->sock, OPT_CAP_ACK, &on, sizeof(on));
	mnl_socket_setsockopt(nl->sock, OPT_EXT_ACK, &on, sizeof(on));
	return 0;
}

void devmem_nl_close(struct devmem_nl *nl)
{
	if (nl->sock)
		mnl_socket_close(nl->sock);
	memset(nl, 0, sizeof(*nl));
}

/* One datagram: its length, or -errno. */
static ssize_t receive(struct devmem_nl *nl, void *buf, size_t size, uint64_t deadline)
{
	struct pollfd p = {.fd = mnl_socket_get_fd(nl->sock), .events = POLLIN};

	for (;;) {
		uint64_t now = gantry_now_ns();
		int n;

		if (now >= deadline)
			return -ETIMEDOUT;
		n = poll(&p, 1, (int)((deadline - now) / 1000000) + 1);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			ssize_t got = mnl_socket_recvfrom(nl->sock, buf, size);

			return got < 0 ? -errno : got;
		}
	}
}

/* The messages of one datagram. 1: the request is over, with *ret_error; 0: more to come. */
static int consume(struct devmem_nl *nl, const char *buf, int len, devmem_nl_reply on_reply, void *arg, int *ret_error)
{
	const struct nlmsghdr *m = (const struct nlmsghdr *)(const void *)buf;

	for (; mnl_nlmsg_ok(m, len); m = mnl_nlmsg_next(m, &len)) {
		if (m->nlmsg_seq != nl->seq)
			continue; /* what a request that timed out left behind */
		if (m->nlmsg_type == NLMSG_ERROR) {
			*ret_error = devmem_nl_read_error(m, nl->said);
			return 1;
		}
		if (m->nlmsg_type == NLMSG_DONE) {
			int32_t e = 0;

			if (mnl_nlmsg_get_payload_len(m) >= sizeof(e))
				memcpy(&e, mnl_nlmsg_get_payload(m), sizeof(e));
			*ret_error = e < 0 ? -e : 0;
			return 1;
		}
		if (on_reply && on_reply(m, arg)) {
			snprintf(nl->said, sizeof(nl->said), "the kernel's reply cannot be read");
			*ret_error = EPROTO;
			return 1;
		}
	}
	return 0;
}

int devmem_nl_ask(struct devmem_nl *nl, const void *message, size_t len, devmem_nl_reply on_reply, void *arg)
{
	uint64_t deadline = gantry_now_ns() + deadline_ns;
	int error = 0;
	char *buf;

	nl->said[0] = 0;
	if (!len)
		return EMSGSIZE;
	if (!nl->sock) {
		error = open_socket(nl);
		if (error)
			return error;
	}
	if (mnl_socket_sendto(nl->sock, message, len) < 0)
		return errno;
	buf = malloc(RECEIVE_MAX);
	if (!buf)
		return ENOMEM;
	for (;;) {
		ssize_t got = receive(nl, buf, RECEIVE_MAX, deadline);

		if (got < 0)
			error = (int)-got;
		if (got < 0 || consume(nl, buf, (int)got, on_reply, arg, &error))
			break;
	}
	free(buf);
	return error;
}

static int on_family(const struct nlmsghdr *m, void *arg)
{
	return devmem_nl_read_family(m, arg);
}

int devmem_nl_family(struct devmem_nl *nl, const char *name, struct devmem_family *family)
{
	uint64_t words[DEVMEM_NL_MESSAGE / 8];
	int e;

	if (family->id)
		return 0;
	e = devmem_nl_ask(nl, words, devmem_nl_family_get(words, sizeof(words), ++nl->seq, name), on_family, family);
	return e ? e : family->id ? 0 : EPROTO;
}

#else

void devmem_nl_close(struct devmem_nl *nl)
{
	memset(nl, 0, sizeof(*nl));
}

int devmem_nl_ask(struct devmem_nl *nl, const void *message, size_t len, devmem_nl_reply on_reply, void *arg)
{
	(void)message;
	(void)len;
	(void)on_reply;
	(void)arg;
	snprintf(nl->said, sizeof(nl->said), "built without libmnl");
	return ENOSYS;
}

int devmem_nl_family(struct devmem_nl *nl, const char *name, struct devmem_family *family)
{
	(void)name;
	(void)family;
	return devmem_nl_ask(nl, NULL, 0, NULL, NULL);
}
#endif
