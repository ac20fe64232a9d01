/* SPDX-License-Identifier: Apache-2.0 */
/* The two clocks agree. No deadlines: every check is a bracket that holds however long a thread is off its CPU. */
#include "base/clock.h"
#include "test.h"

/* The rate may be off by 2 %, and each clock by one step of its own: pacing needs no more. */
static uint64_t at_most(uint64_t ticks)
{
	return ticks + ticks / 50 + 100;
}

static void check_brackets(void)
{
	/* outer ns, inner ticks, inner ns, outer ticks: each inner interval lies within an outer one. */
	uint64_t ns_out0 = gantry_now_ns();
	uint64_t ticks_in0 = gantry_ticks(), ticks_out0 = ticks_in0;
	uint64_t ns_in0 = gantry_now_ns(), ns_in1, ns_out1, ticks_in1, ticks_out1;

	do {
		ns_in1 = gantry_now_ns();
	} while (ns_in1 - ns_in0 < 5000000);
	ticks_in1 = ticks_out1 = gantry_ticks();
	ns_out1 = gantry_now_ns();

	CHECK(ticks_in1 - ticks_in0 <= at_most(gantry_ticks_of_ns(ns_out1 - ns_out0)));
	CHECK(gantry_ticks_of_ns(ns_in1 - ns_in0) <= at_most(ticks_out1 - ticks_out0));
}

TEST(clocks)
{
	uint64_t second = gantry_ticks_of_ns(1000000000u), ns = gantry_now_ns(), ticks = gantry_ticks();

	for (int i = 0; i < 1000; i++) {
		uint64_t ns_next = gantry_now_ns(), ticks_next = gantry_ticks();

		CHECK(ns_next >= ns);
		CHECK(ticks_next >= ticks);
		ns = ns_next;
		ticks = ticks_next;
		gantry_cpu_pause();
	}

	CHECK_EQ(gantry_ticks_of_ns(0), 0);
	CHECK(second >= 1000000); /* no CPU counts slower than 1 MHz */
	CHECK(gantry_ticks_of_ns(10000000000u) >= 10 * second);
	CHECK(gantry_ticks_of_ns(10000000000u) <= 10 * (second + 1));
	/* A year does not overflow, and 584 years do not wrap around to a short time. */
	CHECK(gantry_ticks_of_ns(31536000000000000u) >= 31536000 * second);
	CHECK(gantry_ticks_of_ns(UINT64_MAX) >= gantry_ticks_of_ns(UINT64_MAX / 2));

	for (int i = 0; i < 5; i++)
		check_brackets();
}
