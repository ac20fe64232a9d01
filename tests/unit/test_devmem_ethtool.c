/* SPDX-License-Identifier: Apache-2.0 */
/* Flow rules as the kernel's structs, and what a socket's way is. */
#include "net/devmem/session.h"
#include "net/devmem/sys.c" /* its functions are its own */
#include "test.h"

/* The struct's layout, once more by hand: cmd, flow_type, data, fs { flow_type, h_u (52), h_ext (20), m_u, m_ext,
 * (4 bytes of padding), ring_cookie, location }, rule_cnt. */
enum {
	AT_CMD = 0,
	AT_FLOW_TYPE = 16,
	AT_VALUE = 20,
	AT_MASK = 20 + 52 + 20,
	AT_COOKIE = 168,
	AT_LOCATION = 176,
	RULE_SIZE = 192,
};
_Static_assert(sizeof(struct ethtool_rxnfc) == RULE_SIZE, "by hand");

static uint8_t want[RULE_SIZE];

static void put32(int at, uint32_t v)
{
	memcpy(want + at, &v, 4);
}

static void put64(int at, uint64_t v)
{
	memcpy(want + at, &v, 8);
}

static void same(const struct ethtool_rxnfc *rule)
{
	const uint8_t *got = (const uint8_t *)rule;

	for (int i = 0; i < RULE_SIZE; i++)
		if (got[i] != want[i])
			TEST_FAIL("byte %d is %02x, expected %02x", i, got[i], want[i]);
}

TEST(check_v4)
{
	struct devmem_rule r = {.narrow = 1, .queue = 15};
	static const uint8_t narrow[] = {10, 0, 0, 2, 10, 0, 0, 1, 4000 >> 8, 4000 & 255, 5000 >> 8, 5000 & 255};
	struct ethtool_rxnfc rule;

	CHECK_OK(gantry_addr_parse("10.0.0.2:4000", &r.tuple.src));
	CHECK_OK(gantry_addr_parse("10.0.0.1:5000", &r.tuple.dst));
	rule = build_rule(&r);
	memset(want, 0, sizeof(want));
	put32(AT_CMD, 0x32);
	put32(AT_FLOW_TYPE, 1);
	memcpy(want + AT_VALUE, narrow, sizeof(narrow));
	memset(want + AT_MASK, 0xff, 12); /* addresses and ports, not the type of service */
	put64(AT_COOKIE, 15);
	put32(AT_LOCATION, 0xffffffff);
	same(&rule);

	r.narrow = 0;
	rule = build_rule(&r);
	memset(want + AT_VALUE, 0, 4);
	memset(want + AT_VALUE + 8, 0, 2);
	memset(want + AT_MASK, 0, 4);
	memset(want + AT_MASK + 8, 0, 2);
	same(&rule);
}

TEST(check_v6)
{
	struct devmem_rule r = {
		.tuple = {.src = {.in6 = {.sin6_family = AF_INET6, .sin6_port = htons(4000)}},
			  .dst = {.in6 = {.sin6_family = AF_INET6, .sin6_port = htons(5000)}}},
		.narrow = 1,
		.queue = 3,
	};
	struct ethtool_rxnfc rule;

	for (int i = 0; i < 16; i++) {
		r.tuple.src.in6.sin6_addr.s6_addr[i] = (uint8_t)(0x20 + i);
		r.tuple.dst.in6.sin6_addr.s6_addr[i] = (uint8_t)(0x40 + i);
	}
	rule = build_rule(&r);
	memset(want, 0, sizeof(want));
	put32(AT_CMD, 0x32);
	put32(AT_FLOW_TYPE, 5);
	memcpy(want + AT_VALUE, &r.tuple.src.in6.sin6_addr, 16);
	memcpy(want + AT_VALUE + 16, &r.tuple.dst.in6.sin6_addr, 16);
	memcpy(want + AT_VALUE + 32, (const uint8_t[]){4000 >> 8, 4000 & 255, 5000 >> 8, 5000 & 255}, 4);
	memset(want + AT_MASK, 0xff, 36);
	put64(AT_COOKIE, 3);
	put32(AT_LOCATION, 0xffffffff);
	same(&rule);
	r.narrow = 0;
	rule = build_rule(&r);
	memset(want + AT_VALUE, 0, 16);
	memset(want + AT_VALUE + 32, 0, 2);
	memset(want + AT_MASK, 0, 16);
	memset(want + AT_MASK + 32, 0, 2);
	same(&rule);
}

static void check_socket(int family, int mapped)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback}, local;
	struct sockaddr *sa = family == AF_INET ? (struct sockaddr *)&in : (struct sockaddr *)&in6;
	socklen_t len = family == AF_INET ? sizeof(in) : sizeof(in6), local_len = sizeof(local);
	int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), client, server;
	struct devmem_tuple t, back;

	if (mapped)
		inet_pton(AF_INET6, "::ffff:127.0.0.1", &in6.sin6_addr);
	if (listener < 0 || bind(listener, sa, len) != 0) {
		printf("family %d: %s\n", family, strerror(errno));
		if (listener >= 0)
			close(listener);
		return;
	}
	CHECK_EQ(devmem_tuple_of(listener, &t), ENOTCONN);
	CHECK_EQ(listen(listener, 1), 0);
	CHECK_EQ(getsockname(listener, sa, &len), 0);
	client = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK_EQ(connect(client, sa, len), 0);
	server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(server >= 0);
	CHECK_EQ(devmem_tuple_of(server, &t), 0);
	CHECK_EQ(devmem_tuple_of(client, &back), 0);
	CHECK_EQ(t.src.sa.sa_family, mapped ? AF_INET : family);
	/* What one end sends is what the other receives. */
	CHECK(memcmp(&t.src, &back.dst, sizeof(t.src)) == 0 && memcmp(&t.dst, &back.src, sizeof(t.dst)) == 0);
	CHECK_EQ(getsockname(client, (struct sockaddr *)&local, &local_len), 0);
	CHECK_EQ(t.src.in.sin_port, local.sin6_port); /* the same place in both families */
	if (t.src.sa.sa_family == AF_INET)
		CHECK_EQ(t.dst.in.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	close(server);
	close(client);
	close(listener);
}
TEST_CALL(check_socket_v4, check_socket(AF_INET, 0))
TEST_CALL(check_socket_v6, check_socket(AF_INET6, 0))
TEST_CALL(check_socket_mapped, check_socket(AF_INET6, 1))

/* Ioctls that the kernel refuses: as errno, without harm. */
TEST(check_refusals)
{
	struct devmem_rule r = {.narrow = 1};
	struct devmem_sys s;
	struct devmem_tuple t;
	int udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), e;
	static struct devmem_rss rss;
	uint32_t location = 0;
	char driver[32] = "";

	CHECK_OK(gantry_addr_parse("127.0.0.2:8", &r.tuple.src));
	CHECK_OK(gantry_addr_parse("127.0.0.1:9", &r.tuple.dst));
	devmem_sys_init(&s);
	CHECK_EQ(devmem_tuple_of(udp, &t), EPROTONOSUPPORT);
	CHECK_EQ(devmem_tuple_of(-1, &t), EBADF);
	CHECK_EQ(s.ops->rule_del(&s, "no-such-nic", 0), ENODEV);
	CHECK_EQ(s.ops->rss_get(&s, "no-such-nic", &rss), ENODEV);
	CHECK_EQ(s.ops->driver(&s, "no-such-nic", driver, sizeof(driver)), ENODEV);
	e = s.ops->rule_add(&s, "lo", &r, &location);
	CHECK(e == EOPNOTSUPP || e == EPERM);
	e = s.ops->rss_get(&s, "lo", &rss);
	CHECK(e == EOPNOTSUPP || e == EPERM);
	e = s.ops->rss_set(&s, "lo", NULL);
	CHECK(e == EOPNOTSUPP || e == EPERM);
	devmem_sys_close(&s);
	close(udp);
}
