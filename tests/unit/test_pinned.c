/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of pinned memory: pieces never overlap, what is given back becomes whole again, extents are never mixed. */
#include "device/device.h"
#include "device/pinned.h"
#include "test.h"

enum { UNIT = 64, EXTENT = 64 * UNIT, HELD = 24 };

static void check_apart(struct gantry_piece *const *held)
{
	for (int i = 0; i < HELD; i++)
		for (int k = 0; k < i; k++)
			if (held[i] && held[k])
				CHECK(held[i]->host + held[i]->size <= held[k]->host ||
				      held[k]->host + held[k]->size <= held[i]->host);
}

static void random_pieces(struct gantry_device *dev)
{
	struct gantry_piece *held[HELD] = {0}, *whole[3] = {0};
	struct gantry_pinned p;
	uint64_t taken = 0;
	uint32_t full = 0;
	FREED char *lent = calloc(1, EXTENT);

	gantry_pinned_init(&p, dev, UNIT);
	CHECK(!gantry_pinned_take(&p, 1));
	CHECK_OK(gantry_pinned_grow(&p, EXTENT, 65));
	CHECK_OK(gantry_pinned_grow(&p, EXTENT, 65));
	CHECK_OK(gantry_pinned_add(&p, lent, lent, EXTENT, 65));
	CHECK_EQ(p.memory, 3 * EXTENT);
	CHECK(!gantry_pinned_take(&p, EXTENT + 1));
	for (int round = 0; round < 20000; round++) {
		struct gantry_piece **h = &held[random_below(HELD)];
		size_t size = random_below(30 * UNIT);

		if (*h) {
			CHECK_EQ((*h)->host[0], (uint8_t)(*h)->fence);
			CHECK_EQ((*h)->host[(*h)->size - 1], (uint8_t)(*h)->fence);
			taken -= (*h)->size;
			gantry_pinned_give(&p, *h);
			*h = NULL;
		} else if ((*h = gantry_pinned_take(&p, size))) {
			CHECK_EQ((*h)->size, ((size ? size : 1) + UNIT - 1) / UNIT * UNIT);
			CHECK(!(*h)->next && !(*h)->copying);
			(*h)->fence = (uint64_t)round;
			memset((*h)->host, round, (*h)->size);
			check_apart(held);
			taken += (*h)->size;
		} else {
			full++;
		}
		CHECK_EQ(p.taken, taken);
	}
	CHECK(full > 0);
	for (int i = 0; i < HELD; i++)
		gantry_pinned_give(&p, held[i]);
	CHECK_EQ(p.taken, 0);
	/* Nothing has been lost between pieces: each extent is one again. */
	for (int i = 0; i < 3; i++)
		CHECK((whole[i] = gantry_pinned_take(&p, EXTENT)));
	CHECK(!gantry_pinned_take(&p, 1));
	gantry_pinned_free(&p);
}

/* Without a record for the rest a piece that fits exactly may still be had. */
static void records(struct gantry_device *dev)
{
	struct gantry_pinned p;
	struct gantry_piece *a, *b;

	gantry_pinned_init(&p, dev, UNIT);
	CHECK_OK(gantry_pinned_grow(&p, 4 * UNIT, 2));
	CHECK((a = gantry_pinned_take(&p, UNIT)));
	CHECK(!gantry_pinned_take(&p, UNIT));
	CHECK((b = gantry_pinned_take(&p, 3 * UNIT)));
	gantry_pinned_give(&p, a);
	gantry_pinned_give(&p, b);
	CHECK((a = gantry_pinned_take(&p, 4 * UNIT)));
	gantry_pinned_give(&p, a);
	gantry_pinned_free(&p);
}

int main(void)
{
	struct gantry_device *dev;

	CHECK_OK(gantry_device_host(&dev));
	random_pieces(dev);
	records(dev);
	gantry_device_close(dev);
	printf("ok\n");
	return 0;
}
