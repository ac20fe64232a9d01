/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NICs a user of the network takes, and which lead to a peer, in a network namespace of its own with three of them.
 * Catches: a rail that leads nowhere, an address of every host's own bridge taken for a way to a peer, names that are not
 * understood.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>

#include "base/param.h"
#include "device/device.h"
#include "net/rails.h"
#include "test.h"

static struct gantry_device *host;
static void *ctx;

/* rail0 to rail2, each with its other end here too. */
static void make_world(void)
{
	int made;

	if (ctx)
		return;
	if (unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
		SKIP("no network namespace: %s", strerror(errno));
	made = system("for i in 0 1 2; do ip link add rail$i type veth peer name end$i && ip link set rail$i up && "
		      "ip link set end$i up && ip addr add 10.91.$i.1/24 dev rail$i || exit 1; done 2>/dev/null");
	if (made)
		SKIP("no veth interfaces can be made here");
	setenv("GANTRY_IFNAME", "rail", 1);
	logs_keep();
	CHECK_OK(gantry_params_load(1));
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &host));
	CHECK_OK(gantry_net_tcp()->ops->init(gantry_net_tcp(), 1, NULL, &ctx));
}

static struct gantry_rails find(int most)
{
	struct gantry_rails rails;

	make_world();
	CHECK_OK(gantry_rails_find(host, most, &rails));
	return rails;
}

static const char *text(const struct gantry_rails *rails)
{
	static char buf[64];

	return gantry_rails_text(rails, buf, sizeof(buf));
}

/* The network's name of the device that leads to these addresses, up to an empty one. */
static const char *way_to(const char *const *addrs, bool is_here, int expected)
{
	struct gantry_rails rails = find(0);
	struct gantry_net_properties p;
	struct gantry_addr peer[GANTRY_NET_MAX_RAILS];
	int n = 0, dev = -1, count = -1;

	for (; addrs[n]; n++)
		CHECK_OK(gantry_addr_parse(addrs[n], &peer[n]));
	CHECK_OK(gantry_rails_choose(&rails, peer, n, is_here, &dev, &count));
	CHECK_EQ(count, expected);
	CHECK_OK(gantry_net_tcp()->ops->get_properties(gantry_net_tcp(), dev, &p));
	return p.name;
}
#define WAY(is_here, expected, ...) way_to((const char *const[]){__VA_ARGS__, NULL}, is_here, expected)

TEST(all_are_found_or_as_many_as_wanted)
{
	struct gantry_rails rails = find(0);

	CHECK_EQ(rails.n, 3);
	CHECK_STR(text(&rails), "rail0+rail1+rail2");
	rails = find(2);
	CHECK_STR(text(&rails), "rail0+rail1");
	rails = find(1);
	CHECK_STR(text(&rails), "rail0");
}

TEST(names_are_kept_in_their_order)
{
	struct gantry_rails rails;
	struct gantry_net_properties p;
	int dev;

	make_world();
	CHECK_OK(gantry_rails_named("rail2+rail0", &rails));
	CHECK_STR(text(&rails), "rail2+rail0");
	CHECK_OK(gantry_rails_fuse(&rails, &dev));
	CHECK_OK(gantry_net_tcp()->ops->get_properties(gantry_net_tcp(), dev, &p));
	CHECK_STR(p.name, "rail2+rail0");
	CHECK_EQ(p.vdev.ndevs, 2);
	CHECK_OK(gantry_rails_named("rail1", &rails));
	CHECK_OK(gantry_rails_fuse(&rails, &dev));
	CHECK_EQ(dev, rails.rail[0].dev);
}

TEST(wrong_names_are_refused)
{
	static const char *const wrong[] = {"nosuchnic0", "", "rail0+", "+rail0", "rail0+rail0", "rail0,rail1", "end0"};
	struct gantry_rails rails;

	make_world();
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		CHECK_EQ(gantry_rails_named(wrong[i], &rails), GANTRY_ERR_CONFIG);
	CHECK_EQ(gantry_rails_named("nosuchnic0", &rails), GANTRY_ERR_CONFIG);
	CHECK_STR(gantry_last_error(), "interface nosuchnic0 is not usable; usable: rail0, rail1, rail2");
}

TEST(rails_lead_to_subnets_of_the_peer)
{
	CHECK_STR(WAY(false, 3, "10.91.0.2", "10.91.1.2", "10.91.2.2"), "rail0+rail1+rail2");
	CHECK_STR(WAY(false, 2, "10.91.2.2", "10.91.0.2", "10.99.0.2"), "rail0+rail2");
	CHECK_STR(WAY(false, 1, "10.91.1.2"), "rail1");
}

TEST(without_a_common_subnet_the_first_is_taken)
{
	CHECK_STR(WAY(false, 1, "10.99.0.2", "10.98.0.2"), "rail0");
}

TEST(an_address_of_both_is_no_way_between_hosts)
{
	CHECK_STR(WAY(false, 1, "10.91.0.1", "10.91.1.2"), "rail1");
	CHECK_STR(WAY(true, 2, "10.91.0.1", "10.91.1.2"), "rail0+rail1");
}
