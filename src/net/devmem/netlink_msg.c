/* SPDX-License-Identifier: Apache-2.0 */
/* Netlink messages: what is sent, as bytes, and what is read from replies. */
#include "net/devmem/netlink.h"

#if GANTRY_HAVE_LIBMNL
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <string.h>

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
static struct nlmsghdr *begin(void *buf, size_t size, uint16_t type, uint16_t flags, uint32_t seq, uint8_t command)
{
	struct nlmsghdr *m;
	struct genlmsghdr *g;

	if (size < MNL_NLMSG_HDRLEN + GENL_HDRLEN)
		return NULL;
	memset(buf, 0, size); /* libmnl before 1.0.5 leaves what is between attributes as it was */
	m = mnl_nlmsg_put_header(buf);
	m->nlmsg_type = type;
	m->nlmsg_flags = NLM_F_REQUEST | flags;
	m->nlmsg_seq = seq;
	g = mnl_nlmsg_put_extra_header(m, GENL_HDRLEN);
	g->cmd = command;
	g->version = 1;
	return m;
}

static size_t end(const struct nlmsghdr *m, int fits)
{
	return fits ? m->nlmsg_len : 0;
}

size_t devmem_nl_family_get(void *buf, size_t size, uint32_t seq, const char *name)
{
	struct nlmsghdr *m = begin(buf, size, GENL_ID_CTRL, NLM_F_ACK, seq, CTRL_CMD_GETFAMILY);

	return m ? end(m, mnl_attr_put_strz_check(m, size, CTRL_ATTR_FAMILY_NAME, name)) : 0;
}

size_t devmem_nl_bind_rx(void *buf, size_t size, struct devmem_nl_to to, uint32_t fd, const uint32_t *queues,
			 uint32_t n)
{
	struct nlmsghdr *m = begin(buf, size, to.family, NLM_F_ACK, to.seq, NETDEV_BIND_RX);
	int fits = m && mnl_attr_put_u32_check(m, size, DMABUF_IFINDEX, to.ifindex) &&
		   mnl_attr_put_u32_check(m, size, DMABUF_FD, fd);

	for (uint32_t i = 0; fits && i < n; i++) {
		struct nlattr *nest = mnl_attr_nest_start_check(m, size, DMABUF_QUEUES);

		fits = nest && mnl_attr_put_u32_check(m, size, QUEUE_ID, queues[i]) &&
		       mnl_attr_put_u32_check(m, size, QUEUE_TYPE, QUEUE_TYPE_RX);
		if (fits)
			mnl_attr_nest_end(m, nest);
	}
	return fits ? end(m, 1) : 0;
}

size_t devmem_nl_bind_tx(void *buf, size_t size, struct devmem_nl_to to, uint32_t fd)
{
	struct nlmsghdr *m = begin(buf, size, to.family, NLM_F_ACK, to.seq, NETDEV_BIND_TX);

	return m ? end(m, mnl_attr_put_u32_check(m, size, DMABUF_IFINDEX, to.ifindex) &&
				  mnl_attr_put_u32_check(m, size, DMABUF_FD, fd))
		 : 0;
}

size_t devmem_nl_queue_get(void *buf, size_t size, struct devmem_nl_to to)
{
	struct nlmsghdr *m = begin(buf, size, to.family, NLM_F_DUMP, to.seq, NETDEV_QUEUE_GET);

	return m ? end(m, mnl_attr_put_u32_check(m, size, QUEUE_IFINDEX, to.ifindex)) : 0;
}

/* Ethtool's messages begin with a nest that names the interface. */
static struct nlmsghdr *begin_ethtool(void *buf, size_t size, struct devmem_nl_to to, uint8_t command)
{
	struct nlmsghdr *m = begin(buf, size, to.family, NLM_F_ACK, to.seq, command);
	struct nlattr *nest = m ? mnl_attr_nest_start_check(m, size, EHEADER) : NULL;

	if (!nest || !mnl_attr_put_u32_check(m, size, EHEADER_IFINDEX, to.ifindex))
		return NULL;
	mnl_attr_nest_end(m, nest);
	return m;
}

size_t devmem_nl_ethtool_get(void *buf, size_t size, struct devmem_nl_to to, uint8_t command)
{
	struct nlmsghdr *m = begin_ethtool(buf, size, to, command);

	return m ? end(m, 1) : 0;
}

size_t devmem_nl_rings_set(void *buf, size_t size, struct devmem_nl_to to, const struct devmem_rings *rings)
{
	struct nlmsghdr *m = begin_ethtool(buf, size, to, ETHNL_RINGS_SET);
	int fits = m != NULL;

	if (fits && rings->has_split)
		fits = mnl_attr_put_u8_check(m, size, RINGS_SPLIT, rings->split);
	if (fits && rings->has_hds)
		fits = mnl_attr_put_u32_check(m, size, RINGS_HDS, rings->hds);
	return fits ? end(m, 1) : 0;
}

/* A bit set with a mask: the bits that are listed change, and are on where they have a value. */
size_t devmem_nl_feature_set(void *buf, size_t size, struct devmem_nl_to to, const char *name, int on)
{
	struct nlmsghdr *m = begin_ethtool(buf, size, to, ETHNL_FEATURES_SET);
	struct nlattr *wanted = m ? mnl_attr_nest_start_check(m, size, FEATURES_WANTED) : NULL;
	struct nlattr *bits = wanted ? mnl_attr_nest_start_check(m, size, BITSET_BITS) : NULL;
	struct nlattr *bit = bits ? mnl_attr_nest_start_check(m, size, BITS_BIT) : NULL;

	if (!bit || !mnl_attr_put_strz_check(m, size, BIT_NAME, name) ||
	    (on && !mnl_attr_put_check(m, size, BIT_VALUE, 0, NULL)))
		return 0;
	mnl_attr_nest_end(m, bit);
	mnl_attr_nest_end(m, bits);
	mnl_attr_nest_end(m, wanted);
	return end(m, 1);
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

int devmem_nl_read_family(const struct nlmsghdr *m, struct devmem_family *ret_family)
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
	*ret_family = family;
	return 0;
}

int devmem_nl_read_dmabuf(const struct nlmsghdr *m, uint32_t *ret_id)
{
	const struct nlattr *a;
	uint32_t id = 0;

	if (!is_reply(m, NETDEV_BIND_RX) && !is_reply(m, NETDEV_BIND_TX))
		return 0;
	mnl_attr_for_each(a, m, GENL_HDRLEN) if (mnl_attr_get_type(a) == DMABUF_ID && get_u32(a, &id)) return -1;
	if (!id)
		return -1;
	*ret_id = id;
	return 0;
}

int devmem_nl_read_queue(const struct nlmsghdr *m, uint32_t ifindex, struct devmem_queues *queues)
{
	struct devmem_queue q = {0};
	uint32_t type = UINT32_MAX, of = 0;
	const struct nlattr *a;
	int bad = 0;

	if (!is_reply(m, NETDEV_QUEUE_GET))
		return 0;
	mnl_attr_for_each(a, m, GENL_HDRLEN)
	{
		switch (mnl_attr_get_type(a)) {
		case QUEUE_ID:
			bad |= get_u32(a, &q.id);
			break;
		case QUEUE_IFINDEX:
			bad |= get_u32(a, &of);
			break;
		case QUEUE_TYPE:
			bad |= get_u32(a, &type);
			break;
		case QUEUE_NAPI:
			bad |= get_u32(a, &q.napi);
			break;
		case QUEUE_DMABUF:
			bad |= get_u32(a, &q.dmabuf);
			break;
		case QUEUE_IO_URING:
		case QUEUE_XSK:
			q.taken = 1;
			break;
		}
	}
	if (bad)
		return -1;
	if (of == ifindex && type == QUEUE_TYPE_RX && queues->n < DEVMEM_NIC_QUEUES)
		queues->q[queues->n++] = q;
	return 0;
}

int devmem_nl_read_rings(const struct nlmsghdr *m, struct devmem_rings *ret_rings)
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
	*ret_rings = rings;
	return 0;
}

int devmem_nl_read_channels(const struct nlmsghdr *m, uint32_t *ret_rx_queues)
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
	*ret_rx_queues = rx + combined;
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
int devmem_nl_read_features(const struct nlmsghdr *m, struct devmem_feature *feature)
{
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

int devmem_nl_read_error(const struct nlmsghdr *m, char said[DEVMEM_SAID_MAX])
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

#else /* never reached: devmem_nl_family says no before anything is built or read */

#define NO_BUILDER(name, ...)                                                                                          \
	size_t name(__VA_ARGS__)                                                                                       \
	{                                                                                                              \
		return 0;                                                                                              \
	}
#define NO_READER(name, ...)                                                                                           \
	int name(__VA_ARGS__)                                                                                          \
	{                                                                                                              \
		return -1;                                                                                             \
	}
#pragma GCC diagnostic ignored "-Wunused-parameter"

NO_BUILDER(devmem_nl_family_get, void *buf, size_t size, uint32_t seq, const char *name)
NO_BUILDER(devmem_nl_bind_rx, void *buf, size_t size, struct devmem_nl_to to, uint32_t fd, const uint32_t *queues,
	   uint32_t n)
NO_BUILDER(devmem_nl_bind_tx, void *buf, size_t size, struct devmem_nl_to to, uint32_t fd)
NO_BUILDER(devmem_nl_queue_get, void *buf, size_t size, struct devmem_nl_to to)
NO_BUILDER(devmem_nl_ethtool_get, void *buf, size_t size, struct devmem_nl_to to, uint8_t command)
NO_BUILDER(devmem_nl_rings_set, void *buf, size_t size, struct devmem_nl_to to, const struct devmem_rings *rings)
NO_BUILDER(devmem_nl_feature_set, void *buf, size_t size, struct devmem_nl_to to, const char *name, int on)
NO_READER(devmem_nl_read_family, const struct nlmsghdr *m, struct devmem_family *ret_family)
NO_READER(devmem_nl_read_dmabuf, const struct nlmsghdr *m, uint32_t *ret_id)
NO_READER(devmem_nl_read_queue, const struct nlmsghdr *m, uint32_t ifindex, struct devmem_queues *queues)
NO_READER(devmem_nl_read_rings, const struct nlmsghdr *m, struct devmem_rings *ret_rings)
NO_READER(devmem_nl_read_channels, const struct nlmsghdr *m, uint32_t *ret_rx_queues)
NO_READER(devmem_nl_read_features, const struct nlmsghdr *m, struct devmem_feature *feature)
NO_READER(devmem_nl_read_error, const struct nlmsghdr *m, char said[DEVMEM_SAID_MAX])
#endif
