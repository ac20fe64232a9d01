/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "base/pool.h"
#include "test.h"

/* 65 bytes take two lines; all objects are there, apart, aligned, zeroed and writable to their last byte. */
TEST(check_objects)
{
	struct gantry_pool *p = NULL;
	unsigned char *object[5];

	CHECK_OK(gantry_pool_create(65, 5, &p));
	CHECK_EQ(p->object_size, 128);
	for (int i = 0; i < 5; i++) {
		object[i] = gantry_pool_get(p);
		CHECK(object[i]);
		CHECK_EQ((uintptr_t)object[i] % 64, 0);
		CHECK(object[i] == (unsigned char *)p->memory + i * 128);
		CHECK_FILLED(object[i], 65, 0);
		memset(object[i], i + 1, 65);
	}
	CHECK(!gantry_pool_get(p));
	for (int i = 0; i < 5; i++) {
		CHECK_EQ(object[i][0], i + 1);
		CHECK_EQ(object[i][64], i + 1);
	}

	/* What came back last goes out first: it is still in the cache. */
	gantry_pool_put(p, object[3]);
	gantry_pool_put(p, object[1]);
	CHECK(gantry_pool_get(p) == object[1]);
	CHECK(gantry_pool_get(p) == object[3]);
	CHECK(!gantry_pool_get(p));
	gantry_pool_free(p);
}

TEST(check_foreign_pointers)
{
	struct gantry_pool *p = NULL;
	char *object, other[64];

	CHECK_OK(gantry_pool_create(64, 2, &p));
	object = gantry_pool_get(p);
	logs_forget();
	gantry_pool_put(p, other);
	gantry_pool_put(p, object + 1);
	gantry_pool_put(p, object + 128);
	gantry_pool_put(p, (char *)((uintptr_t)object - 64));
	gantry_pool_put(p, NULL);
	CHECK_EQ(logs_count("ERROR"), 5);
	CHECK_EQ(p->nfree, 1);
	gantry_pool_put(p, object);
	CHECK_EQ(logs_count("ERROR"), 5);
	CHECK_EQ(p->nfree, 2);
	gantry_pool_put(p, object);
	CHECK_EQ(logs_count("ERROR"), 6);
	CHECK_EQ(p->nfree, 2);
	gantry_pool_free(p);
}

TEST(check_refusals)
{
	struct gantry_pool *p = NULL;

	CHECK_EQ(gantry_pool_create(0, 4, &p), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_pool_create(4, 0, &p), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_pool_create(SIZE_MAX - 3, 1, &p), GANTRY_ERR_NOMEM);
	CHECK_EQ(gantry_pool_create(64, SIZE_MAX / 64 + 1, &p), GANTRY_ERR_NOMEM);
	CHECK_EQ(gantry_pool_create((size_t)1 << 50, 1 << 14, &p), GANTRY_ERR_NOMEM); /* 2^64 bytes: 0 if it wrapped */
	CHECK(!p); /* outputs are written only on success */
	gantry_pool_free(NULL);
}

void tests_begin(void)
{
	logs_keep();
}
