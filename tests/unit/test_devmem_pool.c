/* SPDX-License-Identifier: Apache-2.0 */
/* The page pool: one per device, parts of NICs, landing pages; on the host and on a GPU that is not one. */
#include "device/cuda/driver.h"
#include "device/device.h"
#include "devmem_util.h"
#include "fixtures/cuda/fake_load.h"

static const struct devmem_source_ops other_source = {
	.kind = GANTRY_NET_UNPACK_KERNEL, .name = "other", .bind = fake_bind};
static struct gantry_device *host;

TEST(one_per_device)
{
	struct devmem_pool *p, *q;
	struct devmem_part *a, *b;
	int binds = fake_nic.binds;

	fake_params("1M", "1M", "mapped", "2");
	CHECK_OK(devmem_pool_get_from(host, &fake_source, &p));
	CHECK_OK(devmem_pool_get_from(host, &fake_source, &q));
	CHECK(p == q);
	CHECK_ERROR(devmem_pool_get_from(host, &other_source, &q), GANTRY_ERR_CONFIG, "the fake source");
	CHECK_EQ(p->memory.size, 3 << 20);
	CHECK(p->memory.host == p->memory.device_ptr);
	CHECK_EQ((uintptr_t)p->memory.device_ptr % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
	CHECK_EQ(p->npages, 256);
	CHECK_EQ(devmem_pool_page_offset(p, 3), (2 << 20) + 3 * 4096);

	CHECK_OK(devmem_pool_part(p, "eth0", &a));
	CHECK_OK(devmem_pool_part(p, "eth1", &b));
	CHECK_OK(devmem_pool_part(p, "eth0", &b));
	CHECK(a == b);
	CHECK_EQ(fake_nic.binds, binds + 2);
	CHECK_EQ(p->parts[1].base, 1 << 20);
	CHECK_EQ(p->parts[1].binding->memory.size, 1 << 20);
	CHECK(p->parts[1].binding->memory.host == p->memory.host + (1 << 20));
	CHECK(p->parts[1].binding->memory.device_ptr == p->memory.device_ptr + (1 << 20));
	CHECK_ERROR(devmem_pool_part(p, "eth2", &b), GANTRY_ERR_LIMIT, "GANTRY_UNPACK_NICS");
	CHECK_EQ(devmem_pool_part(p, "", &b), GANTRY_ERR_INVALID);
	CHECK_EQ(devmem_pool_part(p, "a-name-of-sixteen", &b), GANTRY_ERR_INVALID);
	devmem_pool_put(p);
	CHECK_EQ(fake_nic.unbinds, 0);
	devmem_pool_put(p);
	CHECK_EQ(fake_nic.unbinds, 2);
	devmem_pool_put(NULL);
}

TEST(what_cannot_be)
{
	struct devmem_pool *p = NULL;
	struct devmem_part *part = NULL;

	fake_params("3G", "512M", "mapped", "2");
	CHECK_ERROR(devmem_pool_get_from(host, &fake_source, &p), GANTRY_ERR_CONFIG, "4 GiB");
	CHECK(p == NULL);
	CHECK_EQ(devmem_pool_get(host, GANTRY_NET_UNPACK_OFF, &p), GANTRY_ERR_UNSUPPORTED);
	/* A NIC that cannot be bound may be tried again. */
	fake_params("1M", "1M", "mapped", "1");
	CHECK_OK(devmem_pool_get_from(host, &fake_source, &p));
	fake_nic.bind_result = GANTRY_ERR_UNSUPPORTED;
	CHECK_EQ(devmem_pool_part(p, "eth0", &part), GANTRY_ERR_UNSUPPORTED);
	CHECK(part == NULL);
	fake_nic.bind_result = GANTRY_OK;
	CHECK_OK(devmem_pool_part(p, "eth1", &part));
	CHECK_EQ(part->base, 0);
	CHECK_STR(part->nic, "eth1");
	devmem_pool_put(p);
}

TEST(landing_pages)
{
	struct devmem_pool *p;
	uint32_t pages[256], more[4];

	fake_params("1M", "1M", "device", "1");
	CHECK_OK(devmem_pool_get_from(host, &fake_source, &p));
	CHECK(p->memory.host != NULL); /* the host device: its memory is ours too */
	CHECK(p->bounce == NULL);
	CHECK_EQ(pool_is_whole(p), 1);
	CHECK_EQ(devmem_pool_take(p, 257, pages), -1);
	CHECK_EQ(devmem_pool_take(p, 254, pages), 0);
	for (uint32_t i = 0; i < 254; i++)
		CHECK_EQ(pages[i], i); /* neighbours, as long as nothing has come back in disorder */
	CHECK_EQ(devmem_pool_take(p, 3, more), -1);
	CHECK_EQ(devmem_pool_take(p, 2, more), 0);
	CHECK_EQ(devmem_pool_take(p, 1, more), -1);
	CHECK_EQ(pool_is_whole(p), 0);
	devmem_pool_give(p, more, 2);
	devmem_pool_give(p, pages, 254);
	CHECK_EQ(pool_is_whole(p), 1);
	CHECK_EQ(devmem_pool_take(p, 4, more), 0);
	CHECK_EQ(more[3], 3); /* in order again */
	devmem_pool_give(p, more, 4);
	devmem_pool_put(p);
}

/* Threads take and give; each writes its name into its pages and finds it there. */
static void *taker(void *arg)
{
	struct devmem_pool *p;
	struct devmem_part *part;
	random_seed((uintptr_t)arg);
	uint32_t pages[64];

	for (int round = 0; round < 300; round++) {
		uint32_t n = random_between(1, 64);

		/* Making and ending the pool is part of it. */
		CHECK_OK(devmem_pool_get_from(host, &fake_source, &p));
		CHECK_OK(devmem_pool_part(p, "eth0", &part));
		if (devmem_pool_take(p, n, pages) == 0) {
			for (uint32_t i = 0; i < n; i++)
				memset(p->memory.host + devmem_pool_page_offset(p, pages[i]), (int)(uintptr_t)arg,
				       4096);
			for (uint32_t i = 0; i < n; i++)
				CHECK_EQ(p->memory.host[devmem_pool_page_offset(p, pages[i]) + 4095], (uintptr_t)arg);
			devmem_pool_give(p, pages, n);
		}
		devmem_pool_put(p);
	}
	return NULL;
}

TEST(threads)
{
	pthread_t id[4];

	fake_params("1M", "1M", "mapped", "1");
	fake_nic.binds = fake_nic.unbinds = 0;
	threads_start(id, 4, taker, NULL, 1);
	threads_join(id, 4);
	CHECK(fake_nic.binds > 0);
	CHECK_EQ(fake_nic.unbinds, fake_nic.binds);
}

TEST(on_a_gpu)
{
	struct gantry_device *gpu;
	struct devmem_pool *p;
	struct fake_cuda *fake;
	int own;

	FAKE_OPEN(fake);
	CHECK_OK(gantry_device_cuda(0, &gpu));
	own = fake->pinned; /* of the device itself */

	fake_params("1M", "1M", "mapped", "1");
	CHECK_OK(devmem_pool_get_from(gpu, &fake_source, &p));
	CHECK_EQ(fake->pinned, own + 1);
	CHECK_EQ(fake->allocations, 0);
	CHECK(p->memory.host != NULL && p->bounce == NULL);
	devmem_pool_put(p);
	CHECK_EQ(fake->pinned, own);

	/* What the CPU cannot touch: a bounce buffer for the landing pages. Devmem TCP has no other memory. */
	for (int kernel = 0; kernel < 2; kernel++) {
		fake_params("1M", "1M", kernel ? "mapped" : "device", "1");
		CHECK_OK(devmem_pool_get_from(gpu, kernel ? &other_source : &fake_source, &p));
		CHECK_EQ(fake->allocations, 1);
		CHECK_EQ(fake->pinned, own + 1);
		CHECK(p->memory.host == NULL && p->bounce != NULL);
		CHECK_EQ((uintptr_t)p->memory.device_ptr % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
		devmem_pool_put(p);
		CHECK_EQ(fake->allocations + fake->pinned, own);
	}
	/* Nothing is left of one that fails half way. */
	fake_params("1M", "1M", "device", "1");
	fake->fail_symbol = "cuMemHostAlloc";
	fake->fail_error = CUE_OUT_OF_MEMORY;
	p = NULL;
	CHECK_EQ(devmem_pool_get_from(gpu, &fake_source, &p), GANTRY_ERR_NOMEM);
	CHECK(p == NULL);
	CHECK_EQ(fake->allocations + fake->pinned, own);
	gantry_device_close(gpu);
	CHECK_EQ(fake->contexts + fake->streams, 0);
}

void tests_begin(void)
{
	CHECK_OK(gantry_device_host(&host));
}

void tests_end(void)
{
	gantry_device_close(host);
}
