/* SPDX-License-Identifier: Apache-2.0 */
/* Who is on one host: the same kernel and the same GANTRY_HOST_ID. */
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
