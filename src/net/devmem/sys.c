/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real system: netlink (one request at a time, each with a deadline), ioctls, and two socket calls that only ask.
 *
 * What builds netlink's messages is pure: it writes one message and gives its length, or 0 if it does not fit. Readers
 * of replies are pure as well and trust no length: 0, or -1: malformed.
 */
#include "net/devmem/sys.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "net/devmem.h"

/* Attributes by family; see linux/netdev.h and linux/ethtool_netlink.h of a new kernel. */
enum { DMABUF_IFINDEX = 1, DMABUF_QUEUES = 2, DMABUF_FD = 3, DMABUF_ID = 4 };
enum { QUEUE_ID = 1, QUEUE_IFINDEX, QUEUE_TYPE, QUEUE_NAPI, QUEUE_DMABUF, QUEUE_IO_URING, QUEUE_XSK };
enum { QUEUE_TYPE_RX = 0 };
enum { EHEADER = 1, EHEADER_IFINDEX = 1 };
enum { RINGS_SPLIT = 11, RINGS_HDS = 17 };
enum { CHANNELS_RX_COUNT = 6, CHANNELS_COMBINED_COUNT = 9 };
enum { FEATURES_HW = 2, FEATURES_WANTED = 3, FEATURES_ACTIVE = 4, FEATURES_NOCHANGE = 5 };
enum { BITSET_BITS = 3, BITS_BIT = 1, BIT_NAME = 2, BIT_VALUE = 3 };
enum { ERROR_TEXT = 1, ERROR_MISS_TYPE = 5 };
enum { FLAG_CAPPED = 0x100, FLAG_TLVS = 0x200 };

/* An attribute: its value, of exactly this size (0: any, and only whether it is there counts). */
struct nl_field {
	uint16_t type, size;
	void *value;
	int *has; /* whether it is there; NULL: it is written, and may be missing where it is read */
};
struct nl_fields {
	const struct nl_field *f;
	size_t n;
};
#define FIELDS(...)                                                                                                    \
	&(struct nl_fields)                                                                                            \
	{                                                                                                              \
		(const struct nl_field[]){__VA_ARGS__},                                                                \
			sizeof((const struct nl_field[]){__VA_ARGS__}) / sizeof(struct nl_field)                       \
	}

#if GANTRY_HAVE_LIBMNL
#include <libmnl/libmnl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>

enum { NL_MESSAGE = 4096 };
/* A message that is being written, and its destination. If something does not fit, m becomes NULL and stays so. */
struct nl_msg {
	void *buf;
	size_t size;
	uint16_t family;
	uint32_t seq, ifindex;
	struct nlmsghdr *m;
};

/* A request: what is written behind the headers, and how its replies are read. */
struct nl_request {
	uint8_t command;
	uint8_t reply;	/* the command of its replies */
	int of_ethtool; /* such a message begins with a nest that names the interface; else: of netdev */
	uint16_t flags;
	void (*build)(struct nl_msg *to, const void *what);    /* NULL: nothing more */
	int (*read)(const void *attrs, size_t len, void *ret); /* NULL: only the acknowledgement is expected */
};

static void put_attr(struct nl_msg *to, uint16_t type, size_t len, const void *value)
{
	if (to->m && !mnl_attr_put_check(to->m, to->size, type, len, value))
		to->m = NULL;
}

static void put_u32(struct nl_msg *to, uint16_t type, uint32_t value)
{
	put_attr(to, type, sizeof(value), &value);
}

static struct nlattr *open_nest(struct nl_msg *to, uint16_t type)
{
	struct nlattr *nest = to->m ? mnl_attr_nest_start_check(to->m, to->size, type) : NULL;

	if (!nest)
		to->m = NULL;
	return nest;
}

static void close_nest(struct nl_msg *to, struct nlattr *nest)
{
	if (to->m)
		mnl_attr_nest_end(to->m, nest);
}

/* The whole message: its length, or 0: it does not fit. */
static size_t build_message(struct nl_msg *to, const struct nl_request *q, const void *what)
{
	struct genlmsghdr *g;

	if (to->size < MNL_NLMSG_HDRLEN + GENL_HDRLEN)
		return 0;
	memset(to->buf, 0, to->size); /* libmnl before 1.0.5 leaves what is between attributes as it was */
	to->m = mnl_nlmsg_put_header(to->buf);
	to->m->nlmsg_type = to->family;
	to->m->nlmsg_flags = NLM_F_REQUEST | q->flags;
	to->m->nlmsg_seq = to->seq;
	g = mnl_nlmsg_put_extra_header(to->m, GENL_HDRLEN);
	g->cmd = q->command;
	g->version = 1;
	if (q->of_ethtool) {
		struct nlattr *nest = open_nest(to, EHEADER);

		put_u32(to, EHEADER_IFINDEX, to->ifindex);
		close_nest(to, nest);
	}
	if (q->build)
		q->build(to, what);
	return to->m ? to->m->nlmsg_len : 0;
}

static void build_fields(struct nl_msg *to, const void *what)
{
	const struct nl_fields *all = what;

	for (const struct nl_field *f = all->f; f < all->f + all->n; f++)
		if (!f->has || *f->has)
			put_attr(to, f->type, f->size, f->value);
}

/* To send from, without queues. */
static void build_bind(struct nl_msg *to, const void *what)
{
	const struct devmem_bind *bind = what;

	put_u32(to, DMABUF_IFINDEX, to->ifindex);
	put_u32(to, DMABUF_FD, (uint32_t)bind->fd);
	for (uint32_t i = 0; i < bind->nqueues; i++) {
		struct nlattr *nest = open_nest(to, DMABUF_QUEUES);

		put_u32(to, QUEUE_ID, bind->queues[i]);
		put_u32(to, QUEUE_TYPE, QUEUE_TYPE_RX);
		close_nest(to, nest);
	}
}

/* A bit set with a mask: the bits that are listed change, and are on where they have a value. */
static void build_feature(struct nl_msg *to, const void *what)
{
	const struct devmem_feature *f = what;
	struct nlattr *wanted = open_nest(to, FEATURES_WANTED), *bits = open_nest(to, BITSET_BITS);
	struct nlattr *bit = open_nest(to, BITS_BIT);

	put_attr(to, BIT_NAME, strlen(f->name) + 1, f->name);
	if (f->on)
		put_attr(to, BIT_VALUE, 0, NULL);
	close_nest(to, bit);
	close_nest(to, bits);
	close_nest(to, wanted);
}

/*
 * Replies: attributes [attrs, attrs + len) of a message of the right command. mnl_attr_for_each stops at an attribute
 * that does not lie within.
 */

static int read_fields(const void *attrs, size_t len, void *ret)
{
	const struct nl_fields *all = ret;
	const struct nlattr *attr;

	mnl_attr_for_each_payload(attrs, len)
	{
		for (const struct nl_field *f = all->f; f < all->f + all->n; f++) {
			if (mnl_attr_get_type(attr) != f->type)
				continue;
			if (f->size && mnl_attr_get_payload_len(attr) != f->size)
				return -1;
			if (f->size)
				memcpy(f->value, mnl_attr_get_payload(attr), f->size);
			if (f->has)
				*f->has = 1;
		}
	}
	return 0;
}

static int read_family(const void *attrs, size_t len, void *ret_family)
{
	struct devmem_family family = {0};
	const struct nlattr *attr, *op;

	if (read_fields(attrs, len, FIELDS({CTRL_ATTR_FAMILY_ID, 2, &family.id, NULL})) || !family.id)
		return -1;
	mnl_attr_for_each_payload(attrs, len)
	{
		if (mnl_attr_get_type(attr) != CTRL_ATTR_OPS)
			continue;
		mnl_attr_for_each_nested(op, attr)
		{
			uint32_t id = UINT32_MAX;

			if (read_fields(mnl_attr_get_payload(op), mnl_attr_get_payload_len(op),
					FIELDS({CTRL_ATTR_OP_ID, 4, &id, NULL})))
				return -1;
			if (id < 64)
				family.commands |= 1ull << id;
		}
	}
	*(struct devmem_family *)ret_family = family;
	return 0;
}

static int read_dmabuf(const void *attrs, size_t len, void *ret_id)
{
	uint32_t id = 0;

	if (read_fields(attrs, len, FIELDS({DMABUF_ID, 4, &id, NULL})) || !id)
		return -1;
	*(uint32_t *)ret_id = id;
	return 0;
}

static int read_queue(const void *attrs, size_t len, void *ret_queues)
{
	struct devmem_queues *queues = ret_queues;
	struct devmem_queue q = {0};
	uint32_t type = UINT32_MAX, of = 0;

	if (read_fields(attrs, len,
			FIELDS({QUEUE_ID, 4, &q.id, NULL}, {QUEUE_IFINDEX, 4, &of, NULL}, {QUEUE_TYPE, 4, &type, NULL},
			       {QUEUE_NAPI, 4, &q.napi, NULL}, {QUEUE_DMABUF, 4, &q.dmabuf, NULL},
			       {QUEUE_IO_URING, 0, NULL, &q.taken}, {QUEUE_XSK, 0, NULL, &q.taken})))
		return -1;
	if (of == queues->ifindex && type == QUEUE_TYPE_RX && queues->n < DEVMEM_NIC_QUEUES)
		queues->q[queues->n++] = q;
	return 0;
}

/* Is the bit of this name listed in the set? 2: with a value; 1: without one; 0: it is not; -1: malformed. */
static int find_bit(const struct nlattr *set, const char *name)
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
			if (same)
				return 1 + value;
		}
	}
	return 0;
}

/* HW lists what a user may change, NOCHANGE what cannot be changed; ACTIVE is the current state. Sets without a mask
 * list only bits that are on, sets with one (HW) list all bits. */
static int read_features(const void *attrs, size_t len, void *ret_feature)
{
	struct devmem_feature *feature = ret_feature;
	int in[FEATURES_NOCHANGE + 1] = {0}; /* by set, as find_bit says */
	const struct nlattr *attr;

	mnl_attr_for_each_payload(attrs, len)
	{
		uint16_t type = mnl_attr_get_type(attr);

		if (type < FEATURES_HW || type > FEATURES_NOCHANGE)
			continue;
		in[type] = find_bit(attr, feature->name);
		if (in[type] < 0)
			return -1;
	}
	feature->known = in[FEATURES_HW] || in[FEATURES_WANTED] || in[FEATURES_ACTIVE] || in[FEATURES_NOCHANGE];
	feature->on = in[FEATURES_ACTIVE] != 0;
	feature->fixed = in[FEATURES_NOCHANGE] || in[FEATURES_HW] != 2;
	return 0;
}

/* Where the attributes of an acknowledgement or refusal begin, behind the request that it may echo. 0: it has none. */
static unsigned error_attrs(const struct nlmsghdr *m, const struct nlmsgerr *e)
{
	size_t skip = sizeof(*e);

	if (!(m->nlmsg_flags & FLAG_CAPPED)) {
		if (e->msg.nlmsg_len < sizeof(e->msg) || e->msg.nlmsg_len > m->nlmsg_len)
			return 0;
		skip += MNL_ALIGN(e->msg.nlmsg_len - sizeof(e->msg));
	}
	return m->nlmsg_flags & FLAG_TLVS && skip <= mnl_nlmsg_get_payload_len(m) ? (unsigned)skip : 0;
}

/* An acknowledgement or refusal: its errno, and the kernel's words. */
static int read_error(const struct nlmsghdr *m, char message[DEVMEM_SAID_MAX])
{
	const struct nlmsgerr *e = mnl_nlmsg_get_payload(m);
	const struct nlattr *a;
	unsigned attrs;

	message[0] = 0;
	if (m->nlmsg_type != NLMSG_ERROR || mnl_nlmsg_get_payload_len(m) < sizeof(*e) || e->error > 0)
		return EPROTO;
	attrs = error_attrs(m, e);
	if (!attrs)
		return -e->error;
	mnl_attr_for_each(a, m, attrs)
	{
		if (mnl_attr_get_type(a) == ERROR_TEXT && mnl_attr_validate(a, MNL_TYPE_NUL_STRING) == 0)
			snprintf(message, DEVMEM_SAID_MAX, "%s", mnl_attr_get_str(a));
		else if (mnl_attr_get_type(a) == ERROR_MISS_TYPE && mnl_attr_validate(a, MNL_TYPE_U32) == 0 && !*message)
			snprintf(message, DEVMEM_SAID_MAX, "attribute %u is missing", mnl_attr_get_u32(a));
	}
	return -e->error;
}

/* Ethtool's replies have numbers of their own. */
enum { FEATURES_REPLY = 11, RINGS_REPLY = 16, CHANNELS_REPLY = 18 };
/* clang-format off */
static const struct nl_request
	family_get = {CTRL_CMD_GETFAMILY, CTRL_CMD_NEWFAMILY, 0, NLM_F_ACK, build_fields, read_family},
	queue_get = {NETDEV_QUEUE_GET, NETDEV_QUEUE_GET, 0, NLM_F_DUMP, build_fields, read_queue},
	bind_rx = {NETDEV_BIND_RX, NETDEV_BIND_RX, 0, NLM_F_ACK, build_bind, read_dmabuf},
	bind_tx = {NETDEV_BIND_TX, NETDEV_BIND_TX, 0, NLM_F_ACK, build_bind, read_dmabuf},
	features_get = {ETHNL_FEATURES_GET, FEATURES_REPLY, 1, NLM_F_ACK, NULL, read_features},
	features_set = {ETHNL_FEATURES_SET, 0, 1, NLM_F_ACK, build_feature, NULL},
	rings_get = {ETHNL_RINGS_GET, RINGS_REPLY, 1, NLM_F_ACK, NULL, read_fields},
	rings_set = {ETHNL_RINGS_SET, 0, 1, NLM_F_ACK, build_fields, NULL},
	channels_get = {ETHNL_CHANNELS_GET, CHANNELS_REPLY, 1, NLM_F_ACK, NULL, read_fields};
/* clang-format on */

/* Messages of other commands leave the result as it was. */
static int read_reply(const struct nlmsghdr *m, const struct nl_request *q, void *ret)
{
	const struct genlmsghdr *g = mnl_nlmsg_get_payload(m);

	if (!q->read || m->nlmsg_type < NLMSG_MIN_TYPE || mnl_nlmsg_get_payload_len(m) < GENL_HDRLEN ||
	    g->cmd != q->reply)
		return 0;
	return q->read(mnl_nlmsg_get_payload_offset(m, GENL_HDRLEN), mnl_nlmsg_get_payload_len(m) - GENL_HDRLEN, ret);
}

/* Binding restarts a queue and maps gigabytes; nothing here takes longer on a NIC that works. */
static const struct timeval reply_limit = {.tv_sec = 20};
enum { RECEIVE_MAX = 65536, OPT_CAP_ACK = 10, OPT_EXT_ACK = 11 };

static void nl_close(struct devmem_sys *s)
{
	if (s->netlink)
		mnl_socket_close(s->netlink);
	s->netlink = NULL;
	s->netdev = s->ethtool = (struct devmem_family){0};
}

static int open_socket(struct devmem_sys *s)
{
	int on = 1;

	s->netlink = mnl_socket_open2(NETLINK_GENERIC, SOCK_CLOEXEC);
	if (!s->netlink)
		return errno;
	if (mnl_socket_bind(s->netlink, 0, MNL_SOCKET_AUTOPID) < 0) {
		int e = errno;

		nl_close(s);
		return e;
	}
	setsockopt(mnl_socket_get_fd(s->netlink), SOL_SOCKET, SO_RCVTIMEO, &reply_limit, sizeof(reply_limit));
	/* Without these an old kernel says less, and that is all. */
	mnl_socket_setsockopt(s->netlink, OPT_CAP_ACK, &on, sizeof(on));
	mnl_socket_setsockopt(s->netlink, OPT_EXT_ACK, &on, sizeof(on));
	return 0;
}

/* The messages of one datagram. The errno that the request ends with, 0 if all went well; -1: more to come. */
static int consume_datagram(struct devmem_sys *s, const char *buf, int len, const struct nl_request *q, void *ret)
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
		if (read_reply(m, q, ret)) {
			snprintf(s->said, sizeof(s->said), "the kernel's reply cannot be read");
			return EPROTO;
		}
	}
	return -1;
}

/* Sends a request, has its replies read, and waits for its end. A reader that refuses makes it EPROTO. */
static int ask_kernel(struct devmem_sys *s, struct nl_msg to, const struct nl_request *q, const void *what, void *ret)
{
	uint64_t words[NL_MESSAGE / 8];
	int error = 0;
	size_t len;
	char *buf;

	s->said[0] = 0;
	to.buf = words;
	to.size = sizeof(words);
	to.seq = ++s->seq;
	len = build_message(&to, q, what);
	if (!len)
		return EMSGSIZE;
	if (!s->netlink) {
		error = open_socket(s);
		if (error)
			return error;
	}
	if (mnl_socket_sendto(s->netlink, words, len) < 0)
		return errno;
	buf = malloc(RECEIVE_MAX);
	if (!buf)
		return ENOMEM;
	do {
		ssize_t got = mnl_socket_recvfrom(s->netlink, buf, RECEIVE_MAX);

		if (got >= 0)
			error = consume_datagram(s, buf, (int)got, q, ret);
		else
			error = errno == EINTR ? -1 : errno == EAGAIN ? ETIMEDOUT : errno;
	} while (error < 0);
	free(buf);
	return error;
}

/* The family's number and commands, asked for once. ENOENT: this kernel has no such family. */
static int find_family(struct devmem_sys *s, const char *name, struct devmem_family *family)
{
	int e;

	s->said[0] = 0;
	if (family->id)
		return 0;
	e = ask_kernel(s, (struct nl_msg){.family = GENL_ID_CTRL}, &family_get,
		       FIELDS({CTRL_ATTR_FAMILY_NAME, (uint16_t)(strlen(name) + 1), (void *)(uintptr_t)name, NULL}),
		       family);
	return e ? e : family->id ? 0 : EPROTO;
}

static int ask_nic(struct devmem_sys *s, const char *nic, const struct nl_request *q, const void *what, void *ret)
{
	struct devmem_family *family = q->of_ethtool ? &s->ethtool : &s->netdev;
	uint32_t ifindex = if_nametoindex(nic);
	int e;

	s->said[0] = 0;
	if (!ifindex)
		return ENODEV;
	e = find_family(s, q->of_ethtool ? "ethtool" : "netdev", family);
	return e ? e : ask_kernel(s, (struct nl_msg){.family = family->id, .ifindex = ifindex}, q, what, ret);
}

#else
struct nl_request {
	int none;
};
static const struct nl_request queue_get, bind_rx, bind_tx, features_get, features_set, rings_get, rings_set,
	channels_get;

static void nl_close(struct devmem_sys *s)
{
	(void)s;
}

static int find_family(struct devmem_sys *s, const char *name, struct devmem_family *family)
{
	(void)name, (void)family;
	snprintf(s->said, sizeof(s->said), "built without libmnl");
	return ENOSYS;
}

static int ask_nic(struct devmem_sys *s, const char *nic, const struct nl_request *q, const void *what, void *ret)
{
	(void)q, (void)what, (void)ret;
	return find_family(s, nic, NULL);
}
#endif

static int nl_commands(struct devmem_sys *s, uint64_t *ret_commands)
{
	int e = find_family(s, "netdev", &s->netdev);

	if (!e)
		*ret_commands = s->netdev.commands;
	return e;
}

#define RINGS_FIELDS(r) FIELDS({RINGS_SPLIT, 1, &(r)->split, &(r)->has_split}, {RINGS_HDS, 4, &(r)->hds, &(r)->has_hds})

static int nl_rings_get(struct devmem_sys *s, const char *nic, struct devmem_rings *ret_rings)
{
	memset(ret_rings, 0, sizeof(*ret_rings));
	return ask_nic(s, nic, &rings_get, NULL, RINGS_FIELDS(ret_rings));
}

static int nl_rings_set(struct devmem_sys *s, const char *nic, const struct devmem_rings *rings)
{
	struct devmem_rings wanted = *rings;

	return ask_nic(s, nic, &rings_set, RINGS_FIELDS(&wanted), NULL);
}

#define CHANNELS_FIELDS(rx, both) FIELDS({CHANNELS_RX_COUNT, 4, rx, NULL}, {CHANNELS_COMBINED_COUNT, 4, both, NULL})

static int nl_channels(struct devmem_sys *s, const char *nic, uint32_t *ret_rx_queues)
{
	uint32_t rx = 0, combined = 0;
	int e = ask_nic(s, nic, &channels_get, NULL, CHANNELS_FIELDS(&rx, &combined));

	*ret_rx_queues = e ? 0 : rx + combined;
	return e;
}

static int nl_queues(struct devmem_sys *s, const char *nic, struct devmem_queues *ret_queues)
{
	ret_queues->n = 0;
	ret_queues->ifindex = if_nametoindex(nic);
	return ask_nic(s, nic, &queue_get, FIELDS({QUEUE_IFINDEX, 4, &ret_queues->ifindex, NULL}), ret_queues);
}

static int nl_feature_get(struct devmem_sys *s, const char *nic, struct devmem_feature *feature)
{
	feature->known = feature->on = feature->fixed = 0;
	return ask_nic(s, nic, &features_get, NULL, feature);
}

static int nl_feature_set(struct devmem_sys *s, const char *nic, const struct devmem_feature *feature)
{
	return ask_nic(s, nic, &features_set, feature, NULL);
}

static int ask_binding(struct devmem_sys *s, const char *nic, const struct nl_request *q,
		       const struct devmem_bind *bind, uint32_t *ret_id)
{
	int e;

	*ret_id = 0;
	e = ask_nic(s, nic, q, bind, ret_id);
	return !e && !*ret_id ? EPROTO : e; /* 0 would mean "no dma-buf" */
}

static int nl_bind_rx(struct devmem_sys *s, const char *nic, const struct devmem_bind *bind, uint32_t *ret_id)
{
	return ask_binding(s, nic, &bind_rx, bind, ret_id);
}

static int nl_bind_tx(struct devmem_sys *s, const char *nic, int fd, uint32_t *ret_id)
{
	return ask_binding(s, nic, &bind_tx, &(struct devmem_bind){.fd = fd}, ret_id);
}

static void match_field(void *value, void *mask, const void *from, size_t len)
{
	memcpy(value, from, len);
	memset(mask, 0xff, len);
}
#define MATCH(field, from) match_field(&fs->h_u.field, &fs->m_u.field, from, sizeof(fs->h_u.field))

/* What the ioctl that adds a rule is given. */
static struct ethtool_rxnfc build_rule(const struct devmem_rule *r)
{
	const struct gantry_addr *src = &r->tuple.src, *dst = &r->tuple.dst;
	struct ethtool_rxnfc rule = {.cmd = ETHTOOL_SRXCLSRLINS};
	struct ethtool_rx_flow_spec *fs = &rule.fs;
	int is_v4 = dst->sa.sa_family == AF_INET;

	fs->ring_cookie = r->queue;
	fs->location = RX_CLS_LOC_ANY;
	fs->flow_type = is_v4 ? TCP_V4_FLOW : TCP_V6_FLOW;
	if (is_v4) {
		MATCH(tcp_ip4_spec.ip4dst, &dst->in.sin_addr);
		MATCH(tcp_ip4_spec.pdst, &dst->in.sin_port);
	} else {
		MATCH(tcp_ip6_spec.ip6dst, &dst->in6.sin6_addr);
		MATCH(tcp_ip6_spec.pdst, &dst->in6.sin6_port);
	}
	if (r->narrow && is_v4) {
		MATCH(tcp_ip4_spec.ip4src, &src->in.sin_addr);
		MATCH(tcp_ip4_spec.psrc, &src->in.sin_port);
	} else if (r->narrow) {
		MATCH(tcp_ip6_spec.ip6src, &src->in6.sin6_addr);
		MATCH(tcp_ip6_spec.psrc, &src->in6.sin6_port);
	}
	return rule;
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
	struct ethtool_rxnfc request = build_rule(rule);
	int e = ethtool_ioctl(s, nic, &request);

	if (!e)
		*ret_location = request.fs.location; /* the kernel has replaced ANY by the place it found */
	return e;
}

static int sys_rule_del(struct devmem_sys *s, const char *nic, uint32_t location)
{
	struct ethtool_rxnfc request = {.cmd = ETHTOOL_SRXCLSRLDEL, .fs = {.location = location}};

	return ethtool_ioctl(s, nic, &request);
}

/* A request about the RSS table with room for n entries; to be freed. NULL: no memory. */
static struct ethtool_rxfh_indir *rss_request(uint32_t command, uint32_t n)
{
	struct ethtool_rxfh_indir *all = calloc(1, sizeof(*all) + n * sizeof(uint32_t));

	if (all)
		*all = (struct ethtool_rxfh_indir){.cmd = command, .size = n};
	return all;
}

static int sys_rss_get(struct devmem_sys *s, const char *nic, struct devmem_rss *ret_rss)
{
	struct ethtool_rxfh_indir size = {.cmd = ETHTOOL_GRXFHINDIR}, *all;
	int e = ethtool_ioctl(s, nic, &size);

	if (e)
		return e;
	if (size.size > DEVMEM_RSS_MAX)
		return E2BIG;
	all = rss_request(ETHTOOL_GRXFHINDIR, size.size);
	if (!all)
		return ENOMEM;
	e = size.size ? ethtool_ioctl(s, nic, all) : 0;
	if (!e) {
		ret_rss->n = size.size;
		memcpy(ret_rss->queue, all->ring_index, size.size * sizeof(uint32_t));
	}
	free(all);
	return e;
}

static int sys_rss_set(struct devmem_sys *s, const char *nic, const struct devmem_rss *rss)
{
	uint32_t n = rss ? rss->n : 0; /* none: the kernel sets the default */
	struct ethtool_rxfh_indir *all = rss_request(ETHTOOL_SRXFHINDIR, n);
	int e;

	if (!all)
		return ENOMEM;
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
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, e = 0;
	char data[64] = {0};

	s->said[0] = 0;
	if (fd < 0)
		return errno;
	if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) < 0 ||
	    devmem_sendmsg(fd, UINT32_MAX, data, sizeof(data), MSG_DONTWAIT) < 0)
		e = errno;
	close(fd);
	return e;
}

static const struct devmem_sys_ops linux_ops = {
	.dontneed = sys_dontneed,
	.family = nl_commands,
	.sendmsg = sys_sendmsg,
	.driver = sys_driver,
	.rings_get = nl_rings_get,
	.rings_set = nl_rings_set,
	.channels = nl_channels,
	.queues = nl_queues,
	.feature_get = nl_feature_get,
	.feature_set = nl_feature_set,
	.rss_get = sys_rss_get,
	.rss_set = sys_rss_set,
	.rule_add = sys_rule_add,
	.rule_del = sys_rule_del,
	.bind_rx = nl_bind_rx,
	.bind_tx = nl_bind_tx,
	.unbind = nl_close, /* the kernel ties a binding to the socket that asked for it */
};

void devmem_sys_init(struct devmem_sys *s)
{
	memset(s, 0, sizeof(*s));
	s->ops = &linux_ops;
	s->fd = -1;
}

void devmem_sys_close(struct devmem_sys *s)
{
	nl_close(s);
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
