/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf` between two machines: hosts as users write them, options that a client tells, and two sides that do not
 * fit. Catches: a port that is cut off wrongly, options out of range that a listener would believe, a difference of
 * versions or operations that is not told.
 */
#include <string.h>

#include "base/log.h"
#include "perf_net.h"
#include "perf_rendezvous.h"
#include "perf_rx.h"
#include "test.h"

/* "10.0.0.2:4000", of the first address; or why not. */
static const char *resolved(const char *text, int *ret_n)
{
	static char out[256];
	struct gantry_addr addrs[PERF_ADDRS_MAX];
	char address[GANTRY_ADDR_TEXT];

	*ret_n = 0;
	if (perf_resolve(text, 77, addrs, ret_n, out, sizeof(out)) == 0)
		snprintf(out, sizeof(out), "%s", gantry_addr_text(&addrs[0], address));
	return out;
}

TEST(hosts)
{
	int n;

	CHECK_STR(resolved("10.0.0.2", &n), "10.0.0.2:77");
	CHECK_EQ(n, 1);
	CHECK_STR(resolved("10.0.0.2:4000", &n), "10.0.0.2:4000");
	CHECK_STR(resolved("fd00::2", &n), "[fd00::2]:77");
	CHECK_STR(resolved("[fd00::2]", &n), "[fd00::2]:77");
	CHECK_STR(resolved("[fd00::2]:4000", &n), "[fd00::2]:4000");
	CHECK_STR(resolved("10.0.0.2,10.1.0.2:5,fd00::2", &n), "10.0.0.2:77");
	CHECK_EQ(n, 3);
	CHECK_HAS(resolved("no-such-host.invalid", &n), "no-such-host.invalid: ");
	CHECK_EQ(n, 0);
	CHECK(perf_host_valid("node7:1"));
	CHECK(!perf_host_valid(""));
	CHECK(!perf_host_valid(":80"));
	CHECK(!perf_host_valid("node7:0"));
	CHECK(!perf_host_valid("node7:65536"));
	CHECK(!perf_host_valid("[::1"));
	CHECK(!perf_host_valid("[::1]80"));
}

TEST(net_options)
{
	static const struct perf_net_work o = {.sizes = {1, 4096},
					       .nsizes = 2,
					       .iters = 9,
					       .timeout_ns = 5,
					       .repeats = 3,
					       .depth = 7,
					       .raw = 1,
					       .check = 1,
					       .lanes = 4};
	static struct perf_opts got;
	struct perf_net_work t = o;

	CHECK_EQ(perf_net_take(&t, &got), 0);
	CHECK_EQ(memcmp(&got.work, &o, sizeof(o)), 0);
#define REFUSED(field, value)                                                                                          \
	do {                                                                                                           \
		t = o;                                                                                                 \
		t.field = (value);                                                                                     \
		CHECK_EQ(perf_net_take(&t, &got), -1);                                                                 \
	} while (0)
	REFUSED(nsizes, 0);
	REFUSED(nsizes, PERF_SIZES_MAX + 1);
	REFUSED(sizes[1], 0);
	REFUSED(sizes[1], (uint64_t)2 << 40);
	REFUSED(repeats, 0);
	REFUSED(repeats, PERF_REPEATS_MAX + 1);
	REFUSED(depth, PERF_DEPTH_MAX + 1);
	REFUSED(lanes, 17);
	REFUSED(timeout_ns, 0);
#undef REFUSED
}

TEST(rx_options)
{
	const struct prx_work o = {.path = -1, .end = 5, .piece_bytes = 8, .stride = 16, .repeats = 2, .timeout_ns = 1};
	struct prx_work t = o;
	struct prx_opts got;

	memset(&got, 0, sizeof(got));
	CHECK_EQ(prx_take(&t, &got), 0);
	CHECK_EQ(memcmp(&got.work, &o, sizeof(o)), 0);
#define REFUSED(field, value)                                                                                          \
	do {                                                                                                           \
		t = o;                                                                                                 \
		t.field = (value);                                                                                     \
		CHECK_EQ(prx_take(&t, &got), -1);                                                                      \
	} while (0)
	REFUSED(end, 0);
	REFUSED(end, (uint64_t)1 << 40);
	REFUSED(stride, 7);
	REFUSED(piece_bytes, 0);
	REFUSED(device, 2);
	REFUSED(path, 4);
	REFUSED(memory, 3);
	REFUSED(repeats, PRX_REPEATS_MAX + 1);
#undef REFUSED
}

/* What a listener makes of a client's card. */
TEST(cards)
{
	const struct perf_remote_opts client = {.host = "10.0.0.1"}, listener = {.listen = 1};
	struct perf_remote c = {.program = "gantry perf net", .opts = &client},
			   l = {.program = "gantry perf net", .opts = &listener};
	struct perf_card card;
	char text[GANTRY_ADDR_TEXT];

	CHECK_OK(gantry_addr_parse("10.0.0.2:999", &c.local));
	CHECK_OK(gantry_addr_parse("10.0.0.1:18520", &c.other));
	perf_remote_make_card(&c, &card);
	CHECK_OK(perf_remote_read_card(&l, &card));
	CHECK_STR(gantry_addr_text(&l.local, text),
		  "10.0.0.1"); /* the ends of the client's connection, from this side */
	CHECK_STR(gantry_addr_text(&l.other, text), "10.0.0.2");
	CHECK_HAS(l.peer, "(10.0.0.2); ");
	snprintf(card.version, sizeof(card.version), "0.0.9");
	CHECK_EQ(perf_remote_read_card(&l, &card), GANTRY_ERR_VERSION);
	CHECK_HAS(gantry_last_error(), "has gantry 0.0.9, this side ");
	CHECK_HAS(gantry_last_error(), "install the same version on both");
	perf_remote_make_card(&c, &card);
	snprintf(card.operation, sizeof(card.operation), "gantry perf rx");
	CHECK_EQ(perf_remote_read_card(&l, &card), GANTRY_ERR_SETTING);
	CHECK_HAS(gantry_last_error(), "runs gantry perf rx, this side gantry perf net: run the same on both");
	/* Nothing of the other side's words reaches the terminal as it came. */
	perf_remote_make_card(&c, &card);
	snprintf(card.host, sizeof(card.host), "a\033[2Jb\nc");
	CHECK_OK(perf_remote_read_card(&l, &card));
	CHECK(!strchr(l.peer, '\033') && !strchr(l.peer, '\n'));
	memset(card.machine, 'y', sizeof(card.machine)); /* without an end */
	CHECK_OK(perf_remote_read_card(&l, &card));
	memset(&card, 'x', sizeof(card));
	CHECK_EQ(perf_remote_read_card(&l, &card), GANTRY_ERR_PROTOCOL);
}
