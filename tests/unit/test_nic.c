/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces and addresses. Selection runs on made-up lists, so that the machine's own interfaces do not matter. */
#include "inet/nic.h"
#include "test.h"

TEST(test_pattern)
{
	static const struct {
		const char *pattern, *name;
		int match;
	} rows[] = {
		{"eth", "eth0", 1},
		{"eth,ib", "ib0", 1},
		{"eth,ib", "wlan0", 0},
		{"eth0", "eth01", 1},
		{"eth01", "eth0", 0},
		{"=eth0", "eth0", 1},
		{"=eth0", "eth01", 0},
		{"=eth0,eth1", "eth1", 1},
		{"=eth0,eth1", "eth2", 0},
		{"=eth", "eth0", 0},
		{"^docker,lo", "docker0", 0},
		{"^docker,lo", "lo", 0},
		{"^docker,lo", "eth0", 1},
		{"^lo", "lowpan0", 0},
		{"^=lo", "lowpan0", 1},
		{"^=eth0", "eth0", 0},
		{"^=eth0", "eth01", 1},
		/* NCCL's corners: empty entries do not count, an empty list holds every name, a port is cut off. */
		{"eth0,", "lo", 0},
		{",eth0", "eth0", 1},
		{"", "eth0", 1},
		{"=", "eth0", 1},
		{"^", "eth0", 0},
		{"=eth0:1", "eth0", 1},
		{"mlx5_0:1,eth", "eth3", 1},
	};

	EACH_ROW (i, rows)
		if (gantry_nic_pattern_match(rows[i].pattern, rows[i].name) != rows[i].match)
			TEST_FAIL("pattern '%s' name '%s': expected %d", rows[i].pattern, rows[i].name, rows[i].match);
}

static struct gantry_addr parse(const char *text)
{
	struct gantry_addr a;

	CHECK_OK(gantry_addr_parse(text, &a));
	return a;
}

TEST(test_text)
{
	static const char *const same[] = {
		"10.0.0.2",   "10.0.0.2:4000", "127.0.0.1:1",	     "255.255.255.255:65535", "::1",
		"[::1]:4000", "fe80::1%lo",    "[fe80::1%lo]:65535", "fe80::1%987654321",     "2001:db8::2",
		"fe80::1"};
	static const char *const bad[] = {
		"",	      "10.0.0",		"10.0.0.2:",	  "10.0.0.2:0",	 "10.0.0.2:65536",
		"10.0.0.2:x", "[10.0.0.2]:1",	"[::1]:",	  "[::1",	 "::1]",
		"[::1]4000",  "fe80::1%",	"fe80::1%nosuch", "host:4000",	 "1:2:3",
		":4000",      "10.0.0.2:+4",	"10.0.0.2 ",	  "fe80::1%12x", "[]:1",
		"::1%0",      "10.0.0.2:00001x"};
	char buf[GANTRY_ADDR_TEXT], lng[400];
	struct gantry_addr a, before;

	EACH_ROW (i, same) {
		a = parse(same[i]);
		CHECK_STR(gantry_addr_text(&a, buf), same[i]);
	}
	a = parse("[::1]");
	CHECK_STR(gantry_addr_text(&a, buf), "::1");
	a = parse("[FE80:0:0::1%1]:80");
	CHECK_EQ(a.in6.sin6_scope_id, 1);
	CHECK_EQ(gantry_addr_port(&a), 80);
	CHECK_EQ(gantry_addr_len(&a), sizeof(struct sockaddr_in6));

	memset(&a, 0x5a, sizeof(a));
	before = a;
	EACH_ROW (i, bad) {
		CHECK_EQ(gantry_addr_parse(bad[i], &a), GANTRY_ERR_INVALID);
		CHECK_EQ(memcmp(&a, &before, sizeof(a)), 0);
	}
	memset(lng, '1', sizeof(lng) - 1);
	lng[sizeof(lng) - 1] = 0;
	CHECK_EQ(gantry_addr_parse(lng, &a), GANTRY_ERR_INVALID);
	memset(&a, 0, sizeof(a));
	CHECK_STR(gantry_addr_text(&a, buf), "(no address)");
}

TEST(test_compare)
{
	struct gantry_addr a = parse("10.0.0.2:1"), b = parse("10.0.0.2:2"), c = parse("10.0.0.3");
	struct gantry_addr l1 = parse("fe80::1%1"), l2 = parse("fe80::1%2"), g1 = parse("2001:db8::1"), g2 = g1;

	CHECK(gantry_addr_same_host(&a, &b));
	CHECK(!gantry_addr_same_host(&a, &c));
	CHECK(!gantry_addr_same_host(&a, &g1));
	CHECK(!gantry_addr_same_host(&l1, &l2));
	g2.in6.sin6_scope_id = 7;
	CHECK(gantry_addr_same_host(&g1, &g2));
	CHECK(gantry_addr_is_link_local(&l1) && !gantry_addr_is_link_local(&g1));
	a = parse("169.254.1.1");
	CHECK(gantry_addr_is_link_local(&a) && !gantry_addr_is_link_local(&b));
	gantry_addr_set_port(&g1, 4321);
	CHECK_EQ(g1.in6.sin6_port, htons(4321));
	a = gantry_addr_of(NULL);
	CHECK_EQ(a.sa.sa_family, AF_UNSPEC);
}

TEST(test_subnet)
{
	static const struct {
		const char *own;
		int prefix;
		const char *peer;
		int same;
	} rows[] = {
		{"10.1.2.3", 24, "10.1.2.200", 1},
		{"10.1.2.3", 24, "10.1.3.3", 0},
		{"10.1.2.3", 20, "10.1.15.255", 1},
		{"10.1.2.3", 20, "10.1.16.0", 0},
		{"10.1.2.3", 32, "10.1.2.3", 1},
		{"10.1.2.3", 32, "10.1.2.2", 0},
		{"10.1.2.3", 0, "192.0.2.1", 1},
		{"10.1.2.3", 24, "2001:db8::1", 0},
		{"2001:db8::1", 64, "2001:db8::ffff:1", 1},
		{"2001:db8::1", 64, "2001:db8:0:1::1", 0},
		{"2001:db8::1", 61, "2001:db8:0:7::1", 1},
		{"2001:db8::1", 61, "2001:db8:0:8::1", 0},
		{"fe80::1%5", 64, "fe80::2%5", 1},
		{"fe80::1%5", 64, "fe80::2%6", 0},
		{"fe80::1%5", 64, "fe80::2", 1},
	};
	struct gantry_nic nic = {.ifindex = 5, .naddrs = 1};

	EACH_ROW (i, rows) {
		struct gantry_addr peer = parse(rows[i].peer);

		nic.addrs[0] = parse(rows[i].own);
		nic.prefix_len[0] = (uint8_t)rows[i].prefix;
		if (gantry_nic_same_subnet(&nic, 0, &peer) != rows[i].same)
			TEST_FAIL("%s/%d and %s: expected %d", rows[i].own, rows[i].prefix, rows[i].peer, rows[i].same);
		CHECK(!gantry_nic_same_subnet(&nic, 1, &peer));
	}
}

TEST(test_scan)
{
	struct gantry_nic_list *list = NULL;
	struct gantry_addr home = parse("127.0.0.1");
	int found = 0;

	CHECK_OK(gantry_nic_scan(&list));
	CHECK(list->count >= 1 && list->count <= GANTRY_NIC_MAX);
	for (int i = 0; i < list->count; i++) {
		struct gantry_nic *nic = &list->nics[i];

		CHECK_EQ(nic->ifindex, if_nametoindex(nic->name));
		CHECK(nic->speed_mbps > 0 && nic->numa_node >= -1 && nic->naddrs <= GANTRY_NIC_ADDRS);
		for (int k = 0; k < nic->naddrs; k++)
			CHECK(gantry_addr_is_local(&nic->addrs[k]));
		if (strcmp(nic->name, "lo") != 0 || !(nic->flags & IFF_UP))
			continue;
		found = 1;
		CHECK(nic->is_loopback && !nic->is_bridge_like && !nic->pci_path);
		CHECK_EQ(nic->mtu, 65536);
		CHECK(gantry_addr_same_host(&nic->addrs[0], &home));
		CHECK_EQ(nic->prefix_len[0], 8);
	}
	gantry_nic_list_free(list);
	gantry_nic_list_free(NULL);
	if (!found)
		SKIP("no loopback interface is up here");
}

TEST(test_is_local)
{
	struct gantry_addr a = parse("127.200.3.4:80");

	CHECK(gantry_addr_is_local(&a));
	a = parse("[::1]:80");
	CHECK(gantry_addr_is_local(&a));
	a = parse("203.0.113.77"); /* documentation addresses: nobody's */
	CHECK(!gantry_addr_is_local(&a));
	a = parse("2001:db8:dead::77");
	CHECK(!gantry_addr_is_local(&a));
	a = gantry_addr_of(NULL);
	CHECK(!gantry_addr_is_local(&a));
}

static struct gantry_nic_list made;

static struct gantry_nic *make_nic(const char *name, const char *v4, const char *v6)
{
	struct gantry_nic *nic = &made.nics[made.count++];

	memset(nic, 0, sizeof(*nic));
	snprintf(nic->name, sizeof(nic->name), "%s", name);
	nic->ifindex = (unsigned)made.count;
	nic->flags = IFF_UP | IFF_RUNNING;
	nic->speed_mbps = 10000;
	nic->numa_node = -1;
	if (v4)
		nic->addrs[nic->naddrs++] = parse(v4);
	if (v6)
		nic->addrs[nic->naddrs++] = parse(v6);
	return nic;
}

/* lo, docker0, a port of it, eth0, eth1 that is down, eth2 without carrier, tun0, wlan0 with fe80 only. */
static void make_machine(void)
{
	struct gantry_nic *nic;

	made.count = 0;
	make_nic("lo", "127.0.0.1", "::1")->is_loopback = 1;
	make_nic("docker0", "172.17.0.1", NULL)->is_bridge_like = 1;
	make_nic("veth1", NULL, "fe80::5%1")->is_port = 1;
	nic = make_nic("eth0", "10.0.0.2", "2001:db8::2");
	nic->speed_mbps = 25000;
	nic->speed_known = 1;
	nic->numa_node = 0;
	nic->pci_path = strdup("/sys/devices/none");
	make_nic("eth1", "10.0.1.2", NULL)->flags = 0;
	make_nic("eth2", "10.0.2.2", NULL)->flags = IFF_UP;
	make_nic("tun0", "10.8.0.2", NULL)->is_point_to_point_or_tunnel = 1;
	make_nic("wlan0", NULL, "fe80::2%1");
}

static void forget_machine(void)
{
	while (made.count)
		free(made.nics[--made.count].pci_path);
}

/* Names of the chosen ones, joined by commas; "error" if none. */
static const char *choose(const char *pattern, int family)
{
	static char names[GANTRY_NIC_MAX * (IFNAMSIZ + 1)];

	names[0] = 0;
	if (gantry_nic_select(&made, pattern, family) != GANTRY_OK) {
		forget_machine();
		return "error";
	}
	for (int i = 0; i < made.count; i++) {
		CHECK(made.nics[i].naddrs > 0);
		for (int k = 0; k < made.nics[i].naddrs; k++)
			CHECK(family == AF_UNSPEC || made.nics[i].addrs[k].sa.sa_family == family);
		strcat(names, i ? "," : "");
		strcat(names, made.nics[i].name);
	}
	forget_machine();
	return names;
}

TEST(test_select)
{
	static const struct {
		const char *pattern;
		int family;
		const char *names;
	} rows[] = {
		{"", AF_UNSPEC, "eth0"},
		{"", AF_INET, "eth0"},
		{"", AF_INET6, "eth0"},
		{"lo", AF_UNSPEC, "lo"},
		{"docker,eth", AF_UNSPEC, "docker0,eth0"},
		{"=docker0", AF_UNSPEC, "docker0"},
		{"=docker0", AF_INET6, "error"},
		{"^eth", AF_UNSPEC, "tun0"},
		{"^eth,tun", AF_UNSPEC, "wlan0"},
		{"^eth,tun", AF_INET, "docker0"},
		{"^eth,tun,wlan,docker", AF_UNSPEC, "lo"},
		{"^=eth0", AF_INET6, "wlan0"},
		{"=eth1", AF_UNSPEC, "error"},
		{"=eth2", AF_UNSPEC, "eth2"},
		{"eth1,eth2", AF_UNSPEC, "eth2"},
		{"ib", AF_UNSPEC, "error"},
	};

	EACH_ROW (i, rows) {
		make_machine();
		CHECK_STR(choose(rows[i].pattern, rows[i].family), rows[i].names);
	}
}

TEST(test_words)
{
	make_machine();
	CHECK_STR(gantry_nic_objection(&made.nics[0], "", AF_UNSPEC), "loopback");
	CHECK_STR(gantry_nic_objection(&made.nics[1], "", AF_INET6), "no IPv6 address");
	CHECK_STR(gantry_nic_objection(&made.nics[3], "", AF_UNSPEC), "");
	CHECK_STR(gantry_nic_objection(&made.nics[3], "ib", AF_UNSPEC), "does not match");
	choose("", AF_UNSPEC);
	CHECK_STR(made.reason, "using eth0 10.0.0.2 (25 Gbit/s, numa 0); left out lo (loopback), docker0 (bridge), "
			       "veth1 (port of a bridge or bond), eth1 (down), eth2 (no carrier), tun0 (tunnel), "
			       "wlan0 (only a link-local address)");
	make_machine();
	choose("ib", AF_UNSPEC);
	CHECK_STR(
		gantry_last_error(),
		"no interface matches 'ib'; set GANTRY_IFNAME (or NCCL_SOCKET_IFNAME) to one of these, or unset it for "
		"automatic choice: lo 127.0.0.1 ::1, docker0 172.17.0.1, veth1 fe80::5%lo, eth0 10.0.0.2 2001:db8::2, "
		"eth1 10.0.1.2 (down), eth2 10.0.2.2 (no carrier), tun0 10.8.0.2, wlan0 fe80::2%lo");
	made.count = 0;
	CHECK_STR(choose("", AF_INET6), "error");
	CHECK_HAS(gantry_last_error(), "no interface is usable with IPv6; ");

	/* The reason never runs over; a cut one says so. */
	made.count = 0;
	for (int i = 0; i < GANTRY_NIC_MAX; i++)
		make_nic("averylongname0", "10.100.100.100", NULL);
	choose("", AF_UNSPEC);
	CHECK_EQ(strlen(made.reason), sizeof(made.reason) - 1);
	CHECK_STR(made.reason + sizeof(made.reason) - 4, "...");
}
