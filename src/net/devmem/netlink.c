/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Netlink: messages as bytes, replies, the socket (one request at a time, each with a deadline), and the requests.
 *
 * Builders are pure: they write one message and return its length, or 0 if it does not fit. Readers are pure as well and
 * trust no length: 0, or -1: malformed; replies to other requests leave the result as it was.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "net/devmem/sys.h"

#if GANTRY_HAVE_LIBMNL
#include <libmnl/libmnl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdlib.h>

#include "base/clock.h"

enum { NL_MESSAGE = 4096 };
/* Where a message is written, and to whom. */
struct nl_msg {
	void *buf;
	size_t size;
	uint16_t family;
	uint32_t seq, ifindex;
};
typedef size_t (*nl_builder)(const struct nl_msg *to, const void *what);
typedef int (*nl_reader)(const struct nlmsghdr *m, void *ret);

/* Attributes by family; see linux/netdev.h and linux/ethtool_netlink.h of a new kernel. */
enum { DMABUF_IFINDEX = 1, DMABUF_QUEUES = 2, DMABUF_FD = 3, DMABUF_ID = 4 };
enum { QUEUE_ID = 1, QUEUE_IFINDEX, QUEUE_TYPE, QUEUE_NAPI, QUEUE_DMABUF, QUEUE_IO_URING, QUEUE_XSK };
enum { QUEUE_TYPE_RX = 0 };
enum { EHEADER = 1, EHEADER_IFINDEX = 1 };
/* Ethtool's replies have numbers of their own. */
enum { FEATURES_REPLY = 11, RINGS_REPLY = 16, CHANNELS_REPLY = 18 };
enum { RINGS_SPLIT = 11, RINGS_HDS = 17 };
enum { CHANNELS_RX_COUNT = 6, CHANNELS_COMBINED_COUNT = 9 };
enum { FEATURES_HW = 2, FEATURES_WANTED = 3, FEATURES_ACTIVE = 4, FEATURES_NOCHANGE = 5 };
enum { BITSET_BITS = 3, BITS_BIT = 1, BIT_NAME = 2, BIT_VALUE = 3 };
enum { ERROR_TEXT = 1, ERROR_OFFSET = 2, ERROR_MISS_TYPE = 5 };
enum { FLAG_CAPPED = 0x100, FLAG_TLVS = 0x200 };

/* The two headers. NULL: they do not fit. */
static struct nlmsghdr *begin(const struct nl_msg *to, uint16_t type, uint16_t flags, uint8_t command)
{
	struct nlmsghdr *m;
	struct genlmsghdr *g;

	if (to->size < MNL_NLMSG_HDRLEN + GENL_HDRLEN)
		return NULL;
	memset(to->buf, 0, to->size); /* libmnl before 1.0.5 leaves what is between attributes as it was */
	m = mnl_nlmsg_put_header(to->buf);
	m->nlmsg_type = type;
	m->nlmsg_flags = NLM_F_REQUEST | flags;
	m->nlmsg_seq = to->seq;
	g = mnl_nlmsg_put_extra_header(m, GENL_HDRLEN);
	g->cmd = command;
	g->version = 1;
	return m;
}

static size_t build_family_get(const struct nl_msg *to, const void *name)
{
	struct nlmsghdr *m = begin(to, GENL_ID_CTRL, NLM_F_ACK, CTRL_CMD_GETFAMILY);

	return m && mnl_attr_put_strz_check(m, to->size, CTRL_ATTR_FAMILY_NAME, name) ? m->nlmsg_len : 0;
}

static size_t build_bind_rx(const struct nl_msg *to, const void *what)
{
	const struct devmem_bind *bind = what;
	struct nlmsghdr *m = begin(to, to->family, NLM_F_ACK, NETDEV_BIND_RX);
	int fits = m && mnl_attr_put_u32_check(m, to->size, DMABUF_IFINDEX, to->ifindex) &&
		   mnl_attr_put_u32_check(m, to->size, DMABUF_FD, (uint32_t)bind->fd);

	for (uint32_t i = 0; fits && i < bind->nqueues; i++) {
		struct nlattr *nest = mnl_attr_nest_start_check(m, to->size, DMABUF_QUEUES);

		fits = nest && mnl_attr_put_u32_check(m, to->size, QUEUE_ID, bind->queues[i]) &&
		       mnl_attr_put_u32_check(m, to->size, QUEUE_TYPE, QUEUE_TYPE_RX);
		if (fits)
			mnl_attr_nest_end(m, nest);
	}
	return fits ? m->nlmsg_len : 0;
}

static size_t build_bind_tx(const struct nl_msg *to, const void *fd)
{
	struct nlmsghdr *m = begin(to, to->family, NLM_F_ACK, NETDEV_BIND_TX);
	int fits = m && mnl_attr_put_u32_check(m, to->size, DMABUF_IFINDEX, to->ifindex) &&
		   mnl_attr_put_u32_check(m, to->size, DMABUF_FD, (uint32_t) * (const int *)fd);

	return fits ? m->nlmsg_len : 0;
}

static size_t build_queue_get(const struct nl_msg *to, const void *none)
{
	struct nlmsghdr *m = begin(to, to->family, NLM_F_DUMP, NETDEV_QUEUE_GET);

	(void)none;
	return m && mnl_attr_put_u32_check(m, to->size, QUEUE_IFINDEX, to->ifindex) ? m->nlmsg_len : 0;
}

/* Ethtool's messages begin with a nest that names the interface. */
static struct nlmsghdr *begin_ethtool(const struct nl_msg *to, uint8_t command)
{
	struct nlmsghdr *m = begin(to, to->family, NLM_F_ACK, command);
	struct nlattr *nest = m ? mnl_attr_nest_start_check(m, to->size, EHEADER) : NULL;

	if (!nest || !mnl_attr_put_u32_check(m, to->size, EHEADER_IFINDEX, to->ifindex))
		return NULL;
	mnl_attr_nest_end(m, nest);
	return m;
}

static size_t build_ethtool_get(const struct nl_msg *to, const void *command)
{
	struct nlmsghdr *m = begin_ethtool(to, *(const uint8_t *)command);

	return m ? m->nlmsg_len : 0;
}

static size_t build_rings_set(const struct nl_msg *to, const void *what)
{
	const struct devmem_rings *rings = what;
	struct nlmsghdr *m = begin_ethtool(to, ETHNL_RINGS_SET);
	int fits = m && (!rings->has_split || mnl_attr_put_u8_check(m, to->size, RINGS_SPLIT, rings->split)) &&
		   (!rings->has_hds || mnl_attr_put_u32_check(m, to->size, RINGS_HDS, rings->hds));

	return fits ? m->nlmsg_len : 0;
}

/* A bit set with a mask: the bits that are listed change, and are on where they have a value. */
static size_t build_feature_set(const struct nl_msg *to, const void *what)
{
	const struct devmem_feature *f = what;
	struct nlmsghdr *m = begin_ethtool(to, ETHNL_FEATURES_SET);
	struct nlattr *wanted = m ? mnl_attr_nest_start_check(m, to->size, FEATURES_WANTED) : NULL;
	struct nlattr *bits = wanted ? mnl_attr_nest_start_check(m, to->size, BITSET_BITS) : NULL;
	struct nlattr *bit = bits ? mnl_attr_nest_start_check(m, to->size, BITS_BIT) : NULL;

	if (!bit || !mnl_attr_put_strz_check(m, to->size, BIT_NAME, f->name) ||
	    (f->on && !mnl_attr_put_check(m, to->size, BIT_VALUE, 0, NULL)))
		return 0;
	mnl_attr_nest_end(m, bit);
	mnl_attr_nest_end(m, bits);
	mnl_attr_nest_end(m, wanted);
	return m->nlmsg_len;
}

/* Replies. mnl_attr_for_each stops at an attribute that does not lie within the message. */

static int is_reply(const struct nlmsghdr *m, uint8_t command)
{
	const struct genlmsghdr *g = mnl_nlmsg_get_payload(m);

	return m->nlmsg_type >= NLMSG_MIN_TYPE && mnl_nlmsg_get_payload_len(m) >= GENL_HDRLEN && g->cmd == command;
}

static int get_u32(const struct nlattr *a, uint32_t *ret)
{
	if (mnl_attr_validate(a, MNL_TYPE_U32) < 0)
		return -1;
	*ret = mnl_attr_get_u32(a);
	return 0;
}

static int read_ops(const struct nlattr *ops, uint64_t *commands)
{
	const struct nlattr *op, *a;
	uint32_t id;

	mnl_attr_for_each_nested(op, ops)
	{
		mnl_attr_for_each_nested(a, op)
		{
			if (mnl_attr_get_type(a) != CTRL_ATTR_OP_ID)
				continue;
			if (get_u32(a, &id))
				return -1;
			if (id < 64)
				*commands |= 1ull << id;
		}
	}
	return 0;
}

static int read_family(const struct nlmsghdr *m, void *ret_family)
{
	struct devmem_family family = {0};
	const struct nlattr *a;

	if (!is_reply(m, CTRL_CMD_NEWFAMILY))
		return 0;
	mnl_attr_for_each(a, m, GENL_HDRLEN)
	{
		if (mnl_attr_get_type(a) == CTRL_ATTR_FAMILY_ID) {
			if (mnl_attr_validate(a, MNL_TYPE_U16) < 0)
				return -1;
			family.id = mnl_attr_get_u16(a);
		} else if (mnl_attr_get_type(a) == CTRL_ATTR_OPS && read_ops(a, &family.commands)) {
			return -1;
		}
	}
	if (!family.id)
		return -1;
	*(struct devmem_family *)ret_family = family;
	return 0;
}

static int read_dmabuf(const struct nlmsghdr *m, void *ret_id)
{
	const struct nlattr *a;
	uint32_t id = 0;

	if (!is_reply(m, NETDEV_BIND_RX) && !is_reply(m, NETDEV_BIND_TX))
		return 0;
	mnl_attr_for_each(a, m, GENL_HDRLEN) if (mnl_attr_get_type(a) == DMABUF_ID && get_u32(a, &id)) return -1;
	if (!id)
		return -1;
	*(uint32_t *)ret_id = id;
	return 0;
}

static int read_queue(const struct nlmsghdr *m, void *ret_queues)
{
	struct devmem_queues *queues = ret_queues;
	struct devmem_queue q = {0};
	uint32_t type = UINT32_MAX, of = 0;
	uint32_t *const fields[] = {[QUEUE_ID] = &q.id,
				    [QUEUE_IFINDEX] = &of,
				    [QUEUE_TYPE] = &type,
				    [QUEUE_NAPI] = &q.napi,
				    [QUEUE_DMABUF] = &q.dmabuf};
	const struct nlattr *a;

	if (!is_reply(m, NETDEV_QUEUE_GET))
		return 0;
	mnl_attr_for_each(a, m, GENL_HDRLEN)
	{
		uint16_t field = mnl_attr_get_type(a);

		if (field == QUEUE_IO_URING || field == QUEUE_XSK)
			q.taken = 1;
		else if (field && field <= QUEUE_DMABUF && get_u32(a, fields[field]))
			return -1;
	}
	if (of == queues->ifindex && type == QUEUE_TYPE_RX && queues->n < DEVMEM_NIC_QUEUES)
		queues->q[queues->n++] = q;
	return 0;
}

static int read_rings(const struct nlmsghdr *m, void *ret_rings)
{
	struct devmem_rings rings = {0};
	const struct nlattr *a;

	if (!is_reply(m, RINGS_REPLY))
		return 0;
	mnl_attr_for_each(a, m, GENL_HDRLEN)
	{
		if (mnl_attr_get_type(a) == RINGS_SPLIT) {
			if (mnl_attr_validate(a, MNL_TYPE_U8) < 0)
				return -1;
			rings.has_split = 1;
			rings.split = mnl_attr_get_u8(a);
		} else if (mnl_attr_get_type(a) == RINGS_HDS) {
			if (get_u32(a, &rings.hds))
				return -1;
			rings.has_hds = 1;
		}
	}
	*(struct devmem_rings *)ret_rings = rings;
	return 0;
}

static int read_channels(const struct nlmsghdr *m, void *ret_rx_queues)
{
	uint32_t rx = 0, combined = 0;
	const struct nlattr *a;

	if (!is_reply(m, CHANNELS_REPLY))
		return 0;
	mnl_attr_for_each(a, m, GENL_HDRLEN)
	{
		if (mnl_attr_get_type(a) == CHANNELS_RX_COUNT && get_u32(a, &rx))
			return -1;
		if (mnl_attr_get_type(a) == CHANNELS_COMBINED_COUNT && get_u32(a, &combined))
			return -1;
	}
	*(uint32_t *)ret_rx_queues = rx + combined;
	return 0;
}

/* Is the bit of this name listed in the set? 1, with its value; 0: it is not; -1: malformed. */
static int find_bit(const struct nlattr *set, const char *name, int *ret_value)
{
	const struct nlattr *bits, *bit, *a;

	mnl_attr_for_each_nested(bits, set)
	{
		if (mnl_attr_get_type(bits) != BITSET_BITS)
			continue;
		mnl_attr_for_each_nested(bit, bits)
		{
			int same = 0, value = 0;

			mnl_attr_for_each_nested(a, bit)
			{
				if (mnl_attr_get_type(a) == BIT_NAME) {
					if (mnl_attr_validate(a, MNL_TYPE_NUL_STRING) < 0)
						return -1;
					same = strcmp(mnl_attr_get_str(a), name) == 0;
				} else if (mnl_attr_get_type(a) == BIT_VALUE) {
					value = 1;
				}
			}
			if (same) {
				*ret_value = value;
				return 1;
			}
		}
	}
	return 0;
}

/* HW lists what a user may change, NOCHANGE what nobody may; ACTIVE is how it is. Sets without a mask list only bits
 * that are on, sets with one (HW) list all bits. */
static int read_features(const struct nlmsghdr *m, void *ret_feature)
{
	struct devmem_feature *feature = ret_feature;
	int known = 0, on = 0, fixed = 0, changeable = 0, value, there;
	const struct nlattr *a;

	if (!is_reply(m, FEATURES_REPLY))
		return 0;
	mnl_attr_for_each(a, m, GENL_HDRLEN)
	{
		uint16_t type = mnl_attr_get_type(a);

		if (type < FEATURES_HW || type > FEATURES_NOCHANGE)
			continue;
		there = find_bit(a, feature->name, &value);
		if (there < 0)
			return -1;
		if (!there)
			continue;
		known = 1;
		if (type == FEATURES_HW)
			changeable = value;
		else if (type == FEATURES_ACTIVE)
			on = 1;
		else if (type == FEATURES_NOCHANGE)
			fixed = 1;
	}
	feature->known = known;
	feature->on = on;
	feature->fixed = fixed || !changeable;
	return 0;
}

/* An acknowledgement or refusal: its errno, and the kernel's words. */
static int read_error(const struct nlmsghdr *m, char said[DEVMEM_SAID_MAX])
{
	const struct nlmsgerr *e = mnl_nlmsg_get_payload(m);
	const char *text = NULL;
	const struct nlattr *a;
	uint32_t missing = 0;
	size_t skip = sizeof(*e);

	said[0] = 0;
	if (m->nlmsg_type != NLMSG_ERROR || mnl_nlmsg_get_payload_len(m) < sizeof(*e) || e->error > 0)
		return EPROTO;
	if (!(m->nlmsg_flags & FLAG_CAPPED)) {
		if (e->msg.nlmsg_len < sizeof(e->msg) || e->msg.nlmsg_len > m->nlmsg_len)
			return e->error ? -e->error : 0;
		skip += MNL_ALIGN(e->msg.nlmsg_len - sizeof(e->msg));
	}
	if (!(m->nlmsg_flags & FLAG_TLVS) || skip > mnl_nlmsg_get_payload_len(m))
		return -e->error;
	mnl_attr_for_each(a, m, (unsigned)skip)
	{
		if (mnl_attr_get_type(a) == ERROR_TEXT && mnl_attr_validate(a, MNL_TYPE_NUL_STRING) == 0)
			text = mnl_attr_get_str(a);
		else if (mnl_attr_get_type(a) == ERROR_MISS_TYPE)
			get_u32(a, &missing);
	}
	if (text)
		snprintf(said, DEVMEM_SAID_MAX, "%s", text);
	else if (missing)
		snprintf(said, DEVMEM_SAID_MAX, "attribute %u is missing", missing);
	return -e->error;
}

/* Binding restarts a queue and maps gigabytes; nothing here takes longer on a NIC that works. */
static const uint64_t deadline_ns = 20000000000u;
enum { RECEIVE_MAX = 65536, OPT_CAP_ACK = 10, OPT_EXT_ACK = 11 };

static int open_socket(struct devmem_sys *s)
{
	int on = 1;

	s->netlink = mnl_socket_open2(NETLINK_GENERIC, SOCK_CLOEXEC);
	if (!s->netlink)
		return errno;
	if (mnl_socket_bind(s->netlink, 0, MNL_SOCKET_AUTOPID) < 0) {
		int e = errno;

		devmem_nl_close(s);
		return e;
	}
	/* Without these an old kernel says less, and that is all. */
	mnl_socket_setsockopt(s->netlink, OPT_CAP_ACK, &on, sizeof(on));
	mnl_socket_setsockopt(s->netlink, OPT_EXT_ACK, &on, sizeof(on));
	return 0;
}

void devmem_nl_close(struct devmem_sys *s)
{
	if (s->netlink)
		mnl_socket_close(s->netlink);
	s->netlink = NULL;
	s->netdev = s->ethtool = (struct devmem_family){0};
}

/* One datagram: its length, or -errno. */
static ssize_t receive(struct devmem_sys *s, void *buf, size_t size, uint64_t deadline)
{
	struct pollfd p = {.fd = mnl_socket_get_fd(s->netlink), .events = POLLIN};

	for (;;) {
		uint64_t now = gantry_now_ns();
		int n;

		if (now >= deadline)
			return -ETIMEDOUT;
		n = poll(&p, 1, (int)((deadline - now) / 1000000) + 1);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			ssize_t got = mnl_socket_recvfrom(s->netlink, buf, size);

			return got < 0 ? -errno : got;
		}
	}
}

/* The messages of one datagram. The errno that the request ends with, 0 if all went well; -1: more to come. */
static int consume(struct devmem_sys *s, const char *buf, int len, nl_reader on_reply, void *ret)
{
	const struct nlmsghdr *m = (const struct nlmsghdr *)(const void *)buf;

	for (; mnl_nlmsg_ok(m, len); m = mnl_nlmsg_next(m, &len)) {
		if (m->nlmsg_seq != s->seq)
			continue; /* what a request that timed out left behind */
		if (m->nlmsg_type == NLMSG_ERROR)
			return read_error(m, s->said);
		if (m->nlmsg_type == NLMSG_DONE) {
			int32_t e = 0;

			if (mnl_nlmsg_get_payload_len(m) >= sizeof(e))
				memcpy(&e, mnl_nlmsg_get_payload(m), sizeof(e));
			return e < 0 ? -e : 0;
		}
		if (on_reply && on_reply(m, ret)) {
			snprintf(s->said, sizeof(s->said), "the kernel's reply cannot be read");
			return EPROTO;
		}
	}
	return -1;
}

/* Sends a message that was built with s->seq, gives its replies to the reader (NULL: none expected), and waits for its
 * end. A reader that refuses makes it EPROTO. */
static int ask_kernel(struct devmem_sys *s, const void *message, size_t len, nl_reader on_reply, void *ret)
{
	uint64_t deadline = gantry_now_ns() + deadline_ns;
	int error = 0;
	char *buf;

	s->said[0] = 0;
	if (!len)
		return EMSGSIZE;
	if (!s->netlink) {
		error = open_socket(s);
		if (error)
			return error;
	}
	if (mnl_socket_sendto(s->netlink, message, len) < 0)
		return errno;
	buf = malloc(RECEIVE_MAX);
	if (!buf)
		return ENOMEM;
	do {
		ssize_t got = receive(s, buf, RECEIVE_MAX, deadline);

		error = got < 0 ? (int)-got : consume(s, buf, (int)got, on_reply, ret);
	} while (error < 0);
	free(buf);
	return error;
}

/* The family's number and commands, asked for once. ENOENT: this kernel has no such family. */
static int find_family(struct devmem_sys *s, const char *name, struct devmem_family *family)
{
	uint64_t words[NL_MESSAGE / 8];
	struct nl_msg to = {.buf = words, .size = sizeof(words), .seq = ++s->seq};
	int e;

	s->said[0] = 0;
	if (family->id)
		return 0;
	e = ask_kernel(s, words, build_family_get(&to, name), read_family, family);
	return e ? e : family->id ? 0 : EPROTO;
}

/* A question about a NIC: to which family, and how it is written and its answer read. */
struct question {
	int of_netdev; /* else: of ethtool */
	nl_builder build;
	const void *what;
	nl_reader read; /* NULL: only the acknowledgement */
	void *ret;
};

static int ask_nic(struct devmem_sys *s, const char *nic, const struct question *q)
{
	struct devmem_family *family = q->of_netdev ? &s->netdev : &s->ethtool;
	uint64_t words[NL_MESSAGE / 8];
	struct nl_msg to = {.buf = words, .size = sizeof(words), .ifindex = if_nametoindex(nic)};
	int e;

	s->said[0] = 0;
	if (!to.ifindex)
		return ENODEV;
	e = find_family(s, q->of_netdev ? "netdev" : "ethtool", family);
	if (e)
		return e;
	to.family = family->id;
	to.seq = ++s->seq;
	return ask_kernel(s, words, q->build(&to, q->what), q->read, q->ret);
}

static int ask_ethtool(struct devmem_sys *s, const char *nic, uint8_t command, nl_reader read, void *ret)
{
	return ask_nic(s, nic, &(struct question){0, build_ethtool_get, &command, read, ret});
}

int devmem_nl_commands(struct devmem_sys *s, uint64_t *ret_commands)
{
	int e = find_family(s, "netdev", &s->netdev);

	if (!e)
		*ret_commands = s->netdev.commands;
	return e;
}

int devmem_nl_rings_get(struct devmem_sys *s, const char *nic, struct devmem_rings *ret_rings)
{
	memset(ret_rings, 0, sizeof(*ret_rings));
	return ask_ethtool(s, nic, ETHNL_RINGS_GET, read_rings, ret_rings);
}

int devmem_nl_rings_set(struct devmem_sys *s, const char *nic, const struct devmem_rings *rings)
{
	return ask_nic(s, nic, &(struct question){0, build_rings_set, rings, NULL, NULL});
}

int devmem_nl_channels(struct devmem_sys *s, const char *nic, uint32_t *ret_rx_queues)
{
	*ret_rx_queues = 0;
	return ask_ethtool(s, nic, ETHNL_CHANNELS_GET, read_channels, ret_rx_queues);
}

int devmem_nl_queues(struct devmem_sys *s, const char *nic, struct devmem_queues *ret_queues)
{
	ret_queues->n = 0;
	ret_queues->ifindex = if_nametoindex(nic);
	return ask_nic(s, nic, &(struct question){1, build_queue_get, NULL, read_queue, ret_queues});
}

int devmem_nl_feature_get(struct devmem_sys *s, const char *nic, struct devmem_feature *feature)
{
	feature->known = feature->on = feature->fixed = 0;
	return ask_ethtool(s, nic, ETHNL_FEATURES_GET, read_features, feature);
}

int devmem_nl_feature_set(struct devmem_sys *s, const char *nic, const struct devmem_feature *feature)
{
	return ask_nic(s, nic, &(struct question){0, build_feature_set, feature, NULL, NULL});
}

static int ask_binding(struct devmem_sys *s, const char *nic, nl_builder build, const void *what, uint32_t *ret_id)
{
	uint32_t id = 0;
	int e = ask_nic(s, nic, &(struct question){1, build, what, read_dmabuf, &id});

	if (!e && !id)
		e = EPROTO; /* 0 would mean "no dma-buf" */
	if (!e)
		*ret_id = id;
	return e;
}

int devmem_nl_bind_rx(struct devmem_sys *s, const char *nic, const struct devmem_bind *bind, uint32_t *ret_id)
{
	return ask_binding(s, nic, build_bind_rx, bind, ret_id);
}

int devmem_nl_bind_tx(struct devmem_sys *s, const char *nic, int fd, uint32_t *ret_id)
{
	return ask_binding(s, nic, build_bind_tx, &fd, ret_id);
}

#else

#pragma GCC diagnostic ignored "-Wunused-parameter"

void devmem_nl_close(struct devmem_sys *s)
{
}

#define LACKS(entry, ...)                                                                                              \
	int devmem_nl_##entry(struct devmem_sys *s, __VA_ARGS__)                                                       \
	{                                                                                                              \
		snprintf(s->said, sizeof(s->said), "built without libmnl");                                            \
		return ENOSYS;                                                                                         \
	}
LACKS(commands, uint64_t *ret_commands)
LACKS(rings_get, const char *nic, struct devmem_rings *ret_rings)
LACKS(rings_set, const char *nic, const struct devmem_rings *rings)
LACKS(channels, const char *nic, uint32_t *ret_rx_queues)
LACKS(queues, const char *nic, struct devmem_queues *ret_queues)
LACKS(feature_get, const char *nic, struct devmem_feature *feature)
LACKS(feature_set, const char *nic, const struct devmem_feature *feature)
LACKS(bind_rx, const char *nic, const struct devmem_bind *bind, uint32_t *ret_id)
LACKS(bind_tx, const char *nic, int fd, uint32_t *ret_id)
#endif
