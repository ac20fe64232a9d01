/* SPDX-License-Identifier: Apache-2.0 */
/* Who is on one host: the same kernel and the same GANTRY_HOST_ID. */
#include <sched.h>

#include "base/identity.h"
#include "base/param.h"
#include "test.h"

static uint64_t host_named(const char *name)
{
	setenv("GANTRY_HOST_ID", name, 1);
	CHECK_OK(gantry_params_load(1));
	return gantry_host_id();
}

TEST(hosts)
{
	const uint64_t plain = host_named(""), a = host_named("a"), b = host_named("b");

	CHECK_EQ(plain, gantry_boot_id());
	CHECK(a != plain);
	CHECK(b != plain);
	CHECK(a != b);
	CHECK_EQ(host_named("a"), a);
	CHECK_EQ(gantry_boot_id(), plain); /* the name changes nothing about the machine */
}

TEST(cpu_sets)
{
	uint32_t cpus = 0, now = 0;
	const uint64_t before = gantry_cpu_set_id(&cpus);
	cpu_set_t all, one;
	int cpu = 0;

	host_named("elsewhere"); /* a name gives no CPUs */
	CHECK_EQ(gantry_cpu_set_id(&now), before);
	host_named("");
	CHECK_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
	CHECK_EQ(cpus, (uint32_t)CPU_COUNT(&all));
	CHECK_EQ(now, cpus);
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
	CHECK_EQ(gantry_cpu_set_id(&now) == before, cpus == 1);
	CHECK_EQ(now, 1u);
	CHECK_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
	CHECK_EQ(gantry_cpu_set_id(&now), before);
}
