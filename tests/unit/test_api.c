/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of gantry/api.h: structs of programs with older and newer headers, timeouts, the text of a failure. */
#include "base/api.h"

#include "gantry/comm.h"
#include "gantry/rx.h"
#include "test.h"

/* As version 1, 2 and 3 of some headers have it. */
struct first {
	size_t struct_size;
	int a;
};
struct second {
	size_t struct_size;
	int a, b;
	uint64_t c;
};
struct third {
	size_t struct_size;
	int a, b;
	uint64_t c, d;
};

TEST(take)
{
	struct first old = {sizeof(old), 7};
	struct third new = {sizeof(new), 1, 2, 3, 0};
	struct second own;

	memset(&own, 0xff, sizeof(own));
	CHECK_OK(STRUCT_TAKE(&own, &old, second));
	CHECK_EQ(own.struct_size, sizeof(own));
	CHECK_EQ(own.a, 7);
	CHECK_EQ(own.c, 0);
	CHECK_OK(STRUCT_TAKE(&own, &new, second));
	CHECK_EQ(own.struct_size, sizeof(own));
	CHECK_EQ(own.b, 2);
	CHECK_EQ(own.c, 3);
	new.d = 1ull << 63;
	CHECK_ERROR(STRUCT_TAKE(&own, &new, second), GANTRY_ERR_INVALID, "newer headers");
	CHECK_HAS(gantry_last_error(), "struct second has 32 bytes");
	old.struct_size = 0;
	CHECK_ERROR(STRUCT_TAKE(&own, &old, second), GANTRY_ERR_INVALID, "struct_size is 0");
	old.struct_size = SIZE_MAX;
	CHECK_EQ(STRUCT_TAKE(&own, &old, second), GANTRY_ERR_INVALID);
	CHECK_EQ(STRUCT_TAKE(&own, NULL, second), GANTRY_ERR_INVALID);
}

TEST(give)
{
	const struct second own = {0, 1, 2, 3};
	struct third ask = {sizeof(struct first), -1, -1, 99, 99};

	CHECK_OK(STRUCT_GIVE(&ask, &own, second));
	CHECK_EQ(ask.struct_size, sizeof(struct first));
	CHECK_EQ(ask.a, 1);
	CHECK_EQ(ask.c, 99); /* beyond what the caller has */
	ask = (struct third){sizeof(ask), -1, -1, 99, 99};
	CHECK_OK(STRUCT_GIVE(&ask, &own, second));
	CHECK_EQ(ask.struct_size, sizeof(ask));
	CHECK_EQ(ask.b, 2);
	CHECK_EQ(ask.c, 3);
	CHECK_EQ(ask.d, 0); /* what we do not know */
	ask.struct_size = 4;
	CHECK_EQ(STRUCT_GIVE(&ask, &own, second), GANTRY_ERR_INVALID);
}

TEST(deadlines)
{
	uint64_t at = 0, now = gantry_now_ns();

	CHECK_OK(gantry_deadline(GANTRY_WAIT_FOREVER, 5, &at));
	CHECK_EQ(at, UINT64_MAX);
	CHECK_OK(gantry_deadline(GANTRY_WAIT_DEFAULT, 1000000000000, &at));
	CHECK(at >= now + 1000000000000 && at < now + 2000000000000);
	CHECK_OK(gantry_deadline(INT64_MAX, 5, &at));
	CHECK(at >= INT64_MAX && at < UINT64_MAX);
	CHECK_OK(gantry_deadline(0, 5, &at));
	CHECK(at >= now && at <= gantry_now_ns());
	CHECK_ERROR(gantry_deadline(-3, 5, &at), GANTRY_ERR_INVALID, "GANTRY_WAIT_FOREVER");
}

/* What a program sees of it. */
TEST(calls)
{
	struct {
		struct gantry_rx_config known;
		uint64_t later;
	} newer = {{.struct_size = sizeof(newer), .path = GANTRY_RX_PATH_HOST}, 0};
	struct gantry_comm_config config = {0};
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;
	struct gantry_comm *comm = NULL;
	struct gantry_rx *rx = NULL;

	CHECK_ERROR(gantry_comm_init(&config, &comm), GANTRY_ERR_INVALID,
		    "struct gantry_comm_config: struct_size is 0");
	CHECK_EQ(gantry_comm_init(NULL, &comm), GANTRY_ERR_INVALID);
	config.struct_size = sizeof(config);
	CHECK_ERROR(gantry_comm_init(&config, &comm), GANTRY_ERR_INVALID, "no device");
	CHECK(comm == NULL);
	newer.later = 1;
	CHECK_ERROR(gantry_rx_open(&newer.known, &rx), GANTRY_ERR_INVALID, "struct gantry_rx_config");
	CHECK(rx == NULL);
	newer.later = 0;
	newer.known.nic = "nosuchnic0";
	CHECK(gantry_rx_open(&newer.known, &rx) != GANTRY_OK);
	CHECK_HAS(gantry_last_error(), "nosuchnic0");
	newer.known.nic = NULL;
	CHECK_OK(gantry_rx_open(&newer.known, &rx));
	n.struct_size = offsetof(struct gantry_rx_counters, launches);
	n.launches = 42;
	CHECK_OK(gantry_rx_get_counters(rx, &n));
	CHECK_EQ(n.sent_bytes, 0);
	CHECK_EQ(n.launches, 42);
	gantry_rx_close(rx);
}
