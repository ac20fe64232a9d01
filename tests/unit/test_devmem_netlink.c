/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Netlink messages byte for byte against layouts written out by hand (little-endian machines), replies read from bytes
 * written out by hand, damaged ones refused; then the real kernel, which changes nothing.
 */
#include <net/if.h>

#include "net/devmem/sys.c" /* its functions are its own */
#include "test.h"

#if GANTRY_HAVE_LIBMNL
#include <linux/netlink.h>

static uint64_t words[NL_MESSAGE / 8];
static const struct nl_msg to = {
	.buf = words, .size = sizeof(words), .family = 0x1234, .seq = 0x01020304, .ifindex = 7};
#define BIND(file, list, count)                                                                                        \
	&(const struct devmem_bind)                                                                                    \
	{                                                                                                              \
		.fd = (file), .queues = (list), .nqueues = (count)                                                     \
	}
#define FEATURE(is_on)                                                                                                 \
	&(const struct devmem_feature)                                                                                 \
	{                                                                                                              \
		.name = "rx-gro-hw", .on = (is_on)                                                                     \
	}

/* The message of a request; of the controller, if it asks for a family. */
static size_t build(struct nl_msg m, const struct nl_request *q, const void *what)
{
	m.family = q == &family_get ? GENL_ID_CTRL : m.family;
	return build_message(&m, q, what);
}
#define NAME(of) FIELDS({CTRL_ATTR_FAMILY_NAME, sizeof(of), (char[]){of}, NULL})
#define INDEX FIELDS({QUEUE_IFINDEX, 4, (void *)(uintptr_t)&to.ifindex, NULL})

static void same(const char *what, size_t got, const uint8_t *want, size_t len)
{
	const uint8_t *bytes = (const uint8_t *)words;

	if (got != len)
		TEST_FAIL("%s: %zu bytes, expected %zu", what, got, len);
	for (size_t i = 0; i < len; i++)
		if (bytes[i] != want[i])
			TEST_FAIL("%s: byte %zu is %02x, expected %02x", what, i, bytes[i], want[i]);
	printf("ok: %s, %zu bytes\n", what, len);
}
#define SAME(what, call, ...)                                                                                          \
	do {                                                                                                           \
		static const uint8_t want[] = {__VA_ARGS__};                                                           \
		memset(words, 0xee, sizeof(words));                                                                    \
		same(what, call, want, sizeof(want));                                                                  \
	} while (0)
/* nlmsghdr: length, type, flags, sequence number, port 0; genlmsghdr: command, version 1, 0. */
#define HEAD(len, type_lo, type_hi, flags_lo, flags_hi, command)                                                       \
	len, 0, 0, 0, type_lo, type_hi, flags_lo, flags_hi, 4, 3, 2, 1, 0, 0, 0, 0, command, 1, 0, 0

/* FEATURES_GET's reply: HW { BITS { BIT { NAME "gro", VALUE } } }, ACTIVE { NOMASK, BITS { BIT { NAME "gro" } } } */
#define FEATURES                                                                                                       \
	HEAD(68, 0x34, 0x12, 0, 0, 11), 24, 0, 2, 0x80, 20, 0, 3, 0x80, 16, 0, 1, 0x80, 8, 0, 2, 0, 'g', 'r', 'o', 0,  \
		4, 0, 3, 0, 24, 0, 4, 0x80, 4, 0, 1, 0, 16, 0, 3, 0x80, 12, 0, 1, 0x80, 8, 0, 2, 0, 'g', 'r', 'o', 0

TEST(check_builders)
{
	static const uint32_t one[] = {15}, two[] = {14, 15};
	struct devmem_rings both = {.has_split = 1, .split = 2, .has_hds = 1}, split = {.has_split = 1, .split = 2};
	struct devmem_rings hds = {.has_hds = 1, .hds = 256};

	/* The controller has number 16; GETFAMILY is 3, the name attribute 2. REQUEST|ACK is 5. */
	SAME("CTRL_GETFAMILY", build(to, &family_get, NAME("netdev")), HEAD(32, 16, 0, 5, 0, 3), 11, 0, 2, 0, 'n', 'e',
	     't', 'd', 'e', 'v', 0, 0);
	SAME("BIND_RX, one queue", build(to, &bind_rx, BIND(9, one, 1)), HEAD(56, 0x34, 0x12, 5, 0, 13), 8, 0, 1, 0, 7,
	     0, 0, 0,					       /* IFINDEX */
	     8, 0, 3, 0, 9, 0, 0, 0,			       /* FD */
	     20, 0, 2, 0x80,				       /* QUEUES, nested */
	     8, 0, 1, 0, 15, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0); /* ID, TYPE = RX */
	SAME("BIND_RX, two queues", build(to, &bind_rx, BIND(9, two, 2)), HEAD(76, 0x34, 0x12, 5, 0, 13), 8, 0, 1, 0, 7,
	     0, 0, 0, 8, 0, 3, 0, 9, 0, 0, 0, 20, 0, 2, 0x80, 8, 0, 1, 0, 14, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0, 20, 0, 2,
	     0x80, 8, 0, 1, 0, 15, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0);
	SAME("BIND_TX", build(to, &bind_tx, BIND(9, NULL, 0)), HEAD(36, 0x34, 0x12, 5, 0, 15), 8, 0, 1, 0, 7, 0, 0, 0,
	     8, 0, 3, 0, 9, 0, 0, 0);
	/* REQUEST|DUMP is 0x301; IFINDEX is attribute 2 here. */
	SAME("QUEUE_GET", build(to, &queue_get, INDEX), HEAD(28, 0x34, 0x12, 1, 3, 10), 8, 0, 2, 0, 7, 0, 0, 0);
	/* Ethtool: HEADER is attribute 1, nested, DEV_INDEX 1 in it. */
	SAME("RINGS_GET", build(to, &rings_get, NULL), HEAD(32, 0x34, 0x12, 5, 0, 15), 12, 0, 1, 0x80, 8, 0, 1, 0, 7, 0,
	     0, 0);
	SAME("CHANNELS_GET", build(to, &channels_get, NULL), HEAD(32, 0x34, 0x12, 5, 0, 17), 12, 0, 1, 0x80, 8, 0, 1, 0,
	     7, 0, 0, 0);
	SAME("FEATURES_GET", build(to, &features_get, NULL), HEAD(32, 0x34, 0x12, 5, 0, 11), 12, 0, 1, 0x80, 8, 0, 1, 0,
	     7, 0, 0, 0);
	SAME("RINGS_SET, split and threshold", build(to, &rings_set, RINGS_FIELDS(&both)),
	     HEAD(48, 0x34, 0x12, 5, 0, 16), 12, 0, 1, 0x80, 8, 0, 1, 0, 7, 0, 0, 0, 5, 0, 11, 0, 2, 0, 0, 0, /* u8 */
	     8, 0, 17, 0, 0, 0, 0, 0);
	SAME("RINGS_SET, split", build(to, &rings_set, RINGS_FIELDS(&split)), HEAD(40, 0x34, 0x12, 5, 0, 16), 12, 0, 1,
	     0x80, 8, 0, 1, 0, 7, 0, 0, 0, 5, 0, 11, 0, 2, 0, 0, 0);
	SAME("RINGS_SET, threshold", build(to, &rings_set, RINGS_FIELDS(&hds)), HEAD(40, 0x34, 0x12, 5, 0, 16), 12, 0,
	     1, 0x80, 8, 0, 1, 0, 7, 0, 0, 0, 8, 0, 17, 0, 0, 1, 0, 0);
	/* WANTED 3 { BITS 3 { BIT 1 { NAME 2, VALUE 3 } } } */
	SAME("FEATURES_SET on", build(to, &features_set, FEATURE(1)), HEAD(64, 0x34, 0x12, 5, 0, 12), 12, 0, 1, 0x80, 8,
	     0, 1, 0, 7, 0, 0, 0, 32, 0, 3, 0x80, 28, 0, 3, 0x80, 24, 0, 1, 0x80, 14, 0, 2, 0, 'r', 'x', '-', 'g', 'r',
	     'o', '-', 'h', 'w', 0, 0, 0, 4, 0, 3, 0);
	SAME("FEATURES_SET off", build(to, &features_set, FEATURE(0)), HEAD(60, 0x34, 0x12, 5, 0, 12), 12, 0, 1, 0x80,
	     8, 0, 1, 0, 7, 0, 0, 0, 28, 0, 3, 0x80, 24, 0, 3, 0x80, 20, 0, 1, 0x80, 14, 0, 2, 0, 'r', 'x', '-', 'g',
	     'r', 'o', '-', 'h', 'w', 0, 0, 0);
}

/* Whatever room there is: a message that fits, or 0, and nothing written behind the end. */
TEST(check_room)
{
	static const uint32_t queues[] = {1, 2, 3};
	uint8_t *bytes = (uint8_t *)words;
	struct devmem_rings rings = {.has_split = 1, .has_hds = 1};
	int refused = 0;

	for (size_t room = 0; room < 120; room++) {
		struct nl_msg cut = to;
		size_t lens[7];

		cut.size = room;
		memset(words, 0xee, sizeof(words));
		lens[0] = build(cut, &bind_rx, BIND(1, queues, 3));
		lens[1] = build(cut, &bind_tx, BIND(1, NULL, 0));
		lens[2] = build(cut, &family_get, NAME("netdev"));
		lens[3] = build(cut, &queue_get, INDEX);
		lens[4] = build(cut, &rings_get, NULL);
		lens[5] = build(cut, &rings_set, RINGS_FIELDS(&rings));
		lens[6] = build(cut, &features_set, FEATURE(1));
		for (int i = 0; i < 7; i++) {
			CHECK(lens[i] <= room);
			refused += lens[i] == 0;
		}
		for (size_t i = room; i < 200; i++)
			CHECK_EQ(bytes[i], 0xee);
	}
	CHECK(refused > 100);
}

static const struct nlmsghdr *message(const uint8_t *bytes, size_t len)
{
	CHECK(len <= sizeof(words));
	memcpy(words, bytes, len);
	return (const struct nlmsghdr *)(const void *)words;
}
#define MESSAGE(...) message((const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

TEST(check_replies)
{
	struct devmem_family family = {0};
	struct devmem_rings rings;
	FREED struct devmem_queues *queues = calloc(1, sizeof(*queues));
	struct devmem_feature gro = {.name = "gro"};
	uint32_t id = 0, n = 0, combined = 0;

	/* NEWFAMILY 1: FAMILY_ID 1 = 0x22, OPS 6 { 1 { ID 1 = 13, FLAGS 2 }, 2 { ID = 15 } } */
	CHECK_EQ(read_reply(MESSAGE(HEAD(64, 16, 0, 0, 0, 1), 6, 0, 1, 0, 0x22, 0, 0, 0, 36, 0, 6, 0, 20, 0, 1, 0, 8, 0,
				    1, 0, 13, 0, 0, 0, 8, 0, 2, 0, 11, 0, 0, 0, 12, 0, 2, 0, 8, 0, 1, 0, 15, 0, 0, 0),
			    &family_get, &family),
		 0);
	CHECK_EQ(family.id, 0x22);
	CHECK_EQ(family.commands, 1 << 13 | 1 << 15);
	/* No number; a number of the wrong size. */
	CHECK_EQ(read_reply(MESSAGE(HEAD(20, 16, 0, 0, 0, 1)), &family_get, &family), -1);
	CHECK_EQ(read_reply(MESSAGE(HEAD(28, 16, 0, 0, 0, 1), 8, 0, 1, 0, 1, 0, 0, 0), &family_get, &family), -1);
	CHECK_EQ(family.id, 0x22);

	CHECK_EQ(read_reply(MESSAGE(HEAD(28, 0x34, 0x12, 0, 0, 13), 8, 0, 4, 0, 5, 0, 0, 0), &bind_rx, &id), 0);
	CHECK_EQ(id, 5);
	CHECK_EQ(read_reply(MESSAGE(HEAD(28, 0x34, 0x12, 0, 0, 15), 8, 0, 4, 0, 6, 0, 0, 0), &bind_tx, &id), 0);
	CHECK_EQ(id, 6);
	CHECK_EQ(read_reply(MESSAGE(HEAD(28, 0x34, 0x12, 0, 0, 13), 8, 0, 4, 0, 0, 0, 0, 0), &bind_rx, &id), -1);
	CHECK_EQ(read_reply(MESSAGE(HEAD(28, 0x34, 0x12, 0, 0, 13), 6, 0, 4, 0, 1, 0, 0, 0), &bind_rx, &id), -1);

	queues->ifindex = 7;
	/* A receive queue with NAPI and dma-buf; a sending one; one of another interface; one of io_uring. */
	CHECK_EQ(read_reply(MESSAGE(HEAD(60, 0x34, 0x12, 2, 0, 10), 8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 2, 0, 7, 0, 0, 0, 8,
				    0, 3, 0, 0, 0, 0, 0, 8, 0, 4, 0, 1, 2, 0, 0, 8, 0, 5, 0, 9, 0, 0, 0),
			    &queue_get, queues),
		 0);
	CHECK_EQ(read_reply(MESSAGE(HEAD(44, 0x34, 0x12, 2, 0, 10), 8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 2, 0, 7, 0, 0, 0, 8,
				    0, 3, 0, 1, 0, 0, 0),
			    &queue_get, queues),
		 0);
	CHECK_EQ(read_reply(MESSAGE(HEAD(44, 0x34, 0x12, 2, 0, 10), 8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 2, 0, 8, 0, 0, 0, 8,
				    0, 3, 0, 0, 0, 0, 0),
			    &queue_get, queues),
		 0);
	CHECK_EQ(read_reply(MESSAGE(HEAD(48, 0x34, 0x12, 2, 0, 10), 8, 0, 1, 0, 4, 0, 0, 0, 8, 0, 2, 0, 7, 0, 0, 0, 8,
				    0, 3, 0, 0, 0, 0, 0, 4, 0, 6, 0x80),
			    &queue_get, queues),
		 0);
	CHECK_EQ(queues->n, 2);
	CHECK(queues->q[0].id == 3 && queues->q[0].napi == 0x201 && queues->q[0].dmabuf == 9 && !queues->q[0].taken);
	CHECK(queues->q[1].id == 4 && queues->q[1].taken);

	rings = (struct devmem_rings){0};
	CHECK_EQ(read_reply(MESSAGE(HEAD(36, 0x34, 0x12, 0, 0, 16), 5, 0, 11, 0, 1, 0, 0, 0, 8, 0, 17, 0, 0, 1, 0, 0),
			    &rings_get, RINGS_FIELDS(&rings)),
		 0);
	CHECK(rings.has_split && rings.split == 1 && rings.has_hds && rings.hds == 256);
	rings = (struct devmem_rings){0};
	CHECK_EQ(read_reply(MESSAGE(HEAD(28, 0x34, 0x12, 0, 0, 16), 8, 0, 6, 0, 0, 2, 0, 0), &rings_get,
			    RINGS_FIELDS(&rings)),
		 0);
	CHECK(!rings.has_split && !rings.has_hds);
	CHECK_EQ(read_reply(MESSAGE(HEAD(28, 0x34, 0x12, 0, 0, 16), 8, 0, 11, 0, 0, 2, 0, 0), &rings_get,
			    RINGS_FIELDS(&rings)),
		 -1);
	CHECK_EQ(read_reply(MESSAGE(HEAD(36, 0x34, 0x12, 0, 0, 18), 8, 0, 6, 0, 2, 0, 0, 0, 8, 0, 9, 0, 14, 0, 0, 0),
			    &channels_get, CHANNELS_FIELDS(&n, &combined)),
		 0);
	CHECK_EQ(n + combined, 16);

	CHECK_EQ(read_reply(MESSAGE(FEATURES), &features_get, &gro), 0);
	CHECK(gro.known && gro.on && !gro.fixed);
	strcpy(gro.name, "lro");
	CHECK_EQ(read_reply((const struct nlmsghdr *)(const void *)words, &features_get, &gro), 0);
	CHECK(!gro.known && !gro.on);
}

TEST(check_errors)
{
	char said[DEVMEM_SAID_MAX];

	/* NLMSG_ERROR 2, flags CAPPED|ACK_TLVS: -95, the request's header, attribute 1 = "no". */
	CHECK_EQ(read_error(MESSAGE(44, 0, 0, 0, 2, 0, 0, 3, 4, 3, 2, 1, 0, 0, 0, 0, 0xa1, 0xff, 0xff, 0xff, 56, 0, 0,
				    0, 0x34, 0x12, 5, 0, 4, 3, 2, 1, 0, 0, 0, 0, 7, 0, 1, 0, 'n', 'o', 0, 0),
			    said),
		 EOPNOTSUPP);
	CHECK_STR(said, "no");
	/* The same with the request echoed (20 bytes of it) and attribute 5 = 3: something is missing. */
	CHECK_EQ(read_error(MESSAGE(48, 0, 0, 0, 2, 0, 0, 2, 4, 3, 2, 1, 0, 0, 0, 0, 0xea, 0xff, 0xff, 0xff, 20, 0, 0,
				    0, 0x34, 0x12, 5, 0, 4, 3, 2, 1, 0, 0, 0, 0, 13, 1, 0, 0, 8, 0, 5, 0, 3, 0, 0, 0),
			    said),
		 EINVAL);
	CHECK_STR(said, "attribute 3 is missing");
	/* 524: a number that only the kernel has. */
	CHECK_EQ(read_error(MESSAGE(36, 0, 0, 0, 2, 0, 0, 1, 4, 3, 2, 1, 0, 0, 0, 0, 0xf4, 0xfd, 0xff, 0xff, 56, 0, 0,
				    0, 0x34, 0x12, 5, 0, 4, 3, 2, 1, 0, 0, 0, 0),
			    said),
		 524);
	CHECK_STR(said, "");
	/* An acknowledgement; a message that is too short; an echo that reaches beyond the end. */
	CHECK_EQ(read_error(MESSAGE(36, 0, 0, 0, 2, 0, 0, 1, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 56, 0, 0, 0, 0x34,
				    0x12, 5, 0, 4, 3, 2, 1, 0, 0, 0, 0),
			    said),
		 0);
	CHECK_EQ(read_error(MESSAGE(20, 0, 0, 0, 2, 0, 0, 1, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0), said), EPROTO);
	CHECK_EQ(read_error(MESSAGE(36, 0, 0, 0, 2, 0, 0, 2, 4, 3, 2, 1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
				    0, 0, 0x34, 0x12, 5, 0, 4, 3, 2, 1, 0, 0, 0, 0),
			    said),
		 EPERM);
}

/* Every reply with every byte damaged in turn, and cut at every place: an answer or a refusal, never more. */
TEST(check_damage)
{
	static const uint8_t features[] = {FEATURES};
	struct devmem_feature f = {.name = "gro"};
	FREED struct devmem_queues *queues = calloc(1, sizeof(*queues));
	struct devmem_family family;
	struct devmem_rings rings;
	char said[DEVMEM_SAID_MAX];
	uint32_t n;

	for (int command = 1; command < 20; command++)
		for (size_t at = 20; at < sizeof(features); at++)
			for (int bit = 0; bit < 8; bit++) {
				/* As large as the message says it is: a sanitizer sees what is read behind. */
				FREED uint8_t *copy = malloc(sizeof(features));
				struct nlmsghdr *m = (struct nlmsghdr *)(void *)copy;

				memcpy(copy, features, sizeof(features));
				copy[16] = (uint8_t)command;
				copy[at] ^= (uint8_t)(1 << bit);
				if (bit == 7)
					m->nlmsg_len = (uint32_t)at;
				read_reply(m, &features_get, &f);
				read_reply(m, &queue_get, queues);
				read_reply(m, &family_get, &family);
				read_reply(m, &rings_get, RINGS_FIELDS(&rings));
				read_reply(m, &channels_get, CHANNELS_FIELDS(&n, &n));
				read_reply(m, &bind_rx, &n);
				m->nlmsg_type = NLMSG_ERROR;
				read_error(m, said);
			}
}

static int on_any(const void *attrs, size_t len, void *arg)
{
	(void)attrs, (void)len;
	++*(int *)arg;
	return 0;
}

TEST(check_kernel)
{
	struct devmem_family none = {0};
	struct devmem_sys s;
	uint64_t commands = 0;
	uint32_t rx = 0, lo = if_nametoindex("lo"), id;
	struct devmem_feature f = {.name = "tx-checksum-ip-generic"};
	static const struct nl_request unknown = {.command = 200, .of_ethtool = 1, .flags = NLM_F_ACK, .read = on_any};
	int replies = 0, e;

	devmem_sys_init(&s);
	CHECK_EQ(find_family(&s, "no-such-family", &none), ENOENT);
	CHECK_EQ(none.id, 0);
	e = find_family(&s, "ethtool", &s.ethtool);
	if (e) {
		printf("this kernel has no ethtool family: %s\n", strerror(e));
	} else {
		/* A request with an attribute of the wrong kind: the kernel's words come back. */
		e = ask_kernel(&s, (struct nl_msg){.family = s.ethtool.id, .ifindex = lo}, &unknown, NULL, &replies);
		CHECK_EQ(e, EOPNOTSUPP);
		CHECK_EQ(replies, 0);
	}
	nl_close(&s);
	nl_close(&s);

	CHECK_EQ(s.ops->channels(&s, "no-such-nic", &rx), ENODEV);
	e = s.ops->feature_get(&s, "lo", &f);
	if (e == 0) {
		CHECK(f.known);
		printf("lo: %s is %s%s\n", f.name, f.on ? "on" : "off", f.fixed ? ", fixed" : "");
	}
	if (s.ops->family(&s, &commands) == 0 && (commands >> NETDEV_BIND_RX & 1)) {
		uint32_t queue = 0;

		/* A file that is not open, and an interface that cannot: the order of checks differs by kernel. */
		e = s.ops->bind_rx(&s, "lo", BIND(0x7fffffff, &queue, 1), &id);
		CHECK(e == EOPNOTSUPP || e == EBADF || e == EPERM);
		printf("BIND_RX on lo: %s \"%s\"\n", strerror(e), s.said);
	}
	devmem_sys_close(&s);
}

void tests_begin(void)
{
	uint16_t probe = 1;

	if (*(uint8_t *)&probe != 1)
		SKIP("the expected bytes are those of a little-endian machine");
}

#else

int main(void)
{
	SKIP("built without libmnl");
}
#endif
