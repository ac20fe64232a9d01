/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory and launches for tests of the unpack kernels, on the host device or, with the argument "cuda", on GPU 0, with "hip"
 * on GPU 0 of the fake HIP runtime. All
 * memory is mapped, so that the test reads and writes it like its own.
 */
#ifndef GANTRY_TESTS_K_UNPACK_UTIL_H
#define GANTRY_TESTS_K_UNPACK_UTIL_H

#include "base/param.h"
#include "device/device.h"
#include "device/work.h"
#include "fixtures/hip/hip_images.h"
#include "kernels/bench.h"
#include "test.h"

enum { GUARD = 64, POISON = 0xa5 };

static struct gantry_device *dev;
static struct gantry_stream *stream;
static int on_gpu;

/* The same place for the test and for kernels. */
struct area {
	char *host, *device;
	size_t size;
};

static inline struct area area_new(size_t size)
{
	struct area a = {.size = size};
	void *h, *d;

	CHECK_OK(dev->ops->alloc_mapped(dev, size, &h, &d));
	a.host = h;
	a.device = d;
	return a;
}
static inline void area_free(struct area *a)
{
	CHECK_OK(dev->ops->free_mapped(dev, a->host));
}

static inline void open_device(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "host";
	int hip = strcmp(kind, "hip") == 0;
	struct fake_hip *fake = NULL;

	on_gpu = hip || strcmp(kind, "cuda") == 0;
	CHECK_OK(gantry_params_load(0));
	if (hip)
		FAKE_HIP_OPEN(fake);
	CHECK_EQ(gantry_device_open(hip	     ? GANTRY_DEVICE_HIP
				    : on_gpu ? GANTRY_DEVICE_CUDA
					     : GANTRY_DEVICE_HOST,
				    0, &dev),
		 GANTRY_OK);
	CHECK_OK(gantry_stream_create(dev, &stream));
}
static inline void close_device(void)
{
	CHECK_OK(gantry_stream_destroy(dev, stream));
	gantry_device_close(dev);
}

static inline void run(const struct gantry_kernel *kernel, uint32_t blocks, uint32_t lanes, const void *args,
		       size_t size)
{
	struct gantry_launch l = {
		.kernel = kernel, .blocks = blocks, .lanes = lanes, .args = args, .args_size = size, .abort = NULL};

	CHECK_OK(dev->ops->launch(dev, stream, &l));
	CHECK_OK(gantry_stream_sync(dev, stream));
}

/* Numbers of blocks and lanes that every kind of device takes; 0 ends the list. */
struct team {
	uint32_t blocks, lanes;
};
static inline const struct team *teams(void)
{
	static const struct team host[] = {{1, 1}, {1, 3}, {3, 1}, {2, 2}, {0, 0}};
	static const struct team gpu[] = {{1, 32}, {1, 512}, {3, 96}, {64, 512}, {0, 0}};

	return on_gpu ? gpu : host;
}

/* A list of fragments and what they should do, byte by byte and without a thought for speed. */
enum { MAX_DESCS = 1 << 14 };
struct list {
	struct area descs;
	struct gantry_unpack_desc *d; /* = descs.host */
	uint64_t n;
};
static inline struct list list_new(void)
{
	struct list l = {.descs = area_new(MAX_DESCS * sizeof(struct gantry_unpack_desc))};

	l.d = (struct gantry_unpack_desc *)l.descs.host;
	return l;
}
static inline void list_add(struct list *l, uint64_t src_off, uint64_t dst_off, uint64_t len)
{
	CHECK(l->n < MAX_DESCS);
	l->d[l->n].src_off = (uint32_t)src_off;
	l->d[l->n].len = (uint32_t)len;
	l->d[l->n].dst_off = dst_off;
	l->n++;
}
static inline void list_shuffle(struct list *l)
{
	for (uint64_t i = l->n; i > 1; i--) {
		uint64_t k = random_below(i);
		struct gantry_unpack_desc t = l->d[i - 1];

		l->d[i - 1] = l->d[k];
		l->d[k] = t;
	}
}

/* Cuts [0, bytes) into fragments of 1 to `most` bytes that lie anywhere in a pool, in their order. */
static inline void list_cut(struct list *l, uint64_t bytes, uint64_t most, uint64_t pool_bytes)
{
	uint64_t slot = most + 32, slots = pool_bytes / slot, k;

	slots -= slots % 7 == 0; /* so that steps of 7 go through all of them */
	k = random_below(slots);
	l->n = 0;
	for (uint64_t at = 0; at < bytes;) {
		uint64_t len = 1 + random_below(most);

		len = len < bytes - at ? len : bytes - at;
		k = (k + 7) % slots;
		list_add(l, k * slot + random_below(slot - len + 1), at, len);
		at += len;
		CHECK(l->n <= slots);
	}
}

#endif
