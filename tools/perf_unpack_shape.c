/*
 * What the fragments of `perf unpack` look like. Each lies on a page of its own, and pages come in random order, as a
 * NIC that has been running for a while takes them from its pool.
 *
 *   aligned    whole pages of 4096 bytes
 *   mtu1500    1448 bytes, the payload of a segment, at a multiple of 64 in its page; one after the other in the
 * message mtu9000    4096 + 4096 + 756: a segment of 8948 bytes on three pages even1500, even9000   the same, but each
 * destination starts at a multiple of 16, with gaps. Such messages do not exist: it is the best case for NCCL's loop,
 * which goes at the width that divides both offsets odd        4095 bytes, at an odd offset of source or destination
 *   random     1 to 4096 bytes anywhere in their page
 *   bytes      1 to 16 bytes, many on a page; only a 256th of the message
 */
#include "perf_unpack.h"

#include <stdlib.h>
#include <string.h>

const char *const unpack_shape_names[UNPACK_SHAPE_COUNT] = {
#define X(NAME, name) [UNPACK_##NAME] = #name,
	UNPACK_SHAPES(X)
#undef X
};

enum { PAGE = 4096u, SEGMENT = 1448, LAST = 756, BYTES_PART = 256, BYTES_PER_PAGE = 64 };

static uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* Length and place in its page of fragment k. */
static void one(enum unpack_shape shape, uint64_t k, uint64_t *random, uint32_t *ret_len, uint32_t *ret_at)
{
	uint64_t r = next_random(random);
	uint32_t len = PAGE, at = 0;

	switch (shape) {
	case UNPACK_MTU1500:
	case UNPACK_EVEN1500:
		len = SEGMENT;
		at = (uint32_t)(r % ((PAGE - SEGMENT) / 64 + 1)) * 64;
		break;
	case UNPACK_MTU9000:
	case UNPACK_EVEN9000:
		len = k % 3 == 2 ? LAST : PAGE;
		at = k % 3 == 2 ? (uint32_t)(r % ((PAGE - LAST) / 64 + 1)) * 64 : 0;
		break;
	case UNPACK_ODD:
		len = PAGE - 1;
		at = r & 1; /* the destination goes through all alignments */
		break;
	case UNPACK_RANDOM:
		len = 1 + (uint32_t)(r % PAGE);
		at = (uint32_t)((r >> 32) % (PAGE - len + 1));
		break;
	case UNPACK_BYTES:
		len = 1 + (uint32_t)(r % 16);
		at = (uint32_t)(k % BYTES_PER_PAGE) * (PAGE / BYTES_PER_PAGE) + (uint32_t)((r >> 32) % 48);
		break;
	default:
		break;
	}
	*ret_len = len;
	*ret_at = at;
}

static int add(struct unpack_list *l, uint64_t page, uint32_t at, uint32_t len, uint64_t dst)
{
	struct gantry_unpack_desc *more;

	if (l->n == l->max) {
		l->max = l->max ? 2 * l->max : 1 << 16;
		more = realloc(l->descs, l->max * sizeof(*more));
		if (!more)
			return 0;
		l->descs = more;
	}
	/* The page's number for now: its place in the pool comes with the shuffle. */
	l->descs[l->n].src_off = (uint32_t)page;
	l->descs[l->n].len = len;
	l->descs[l->n].dst_off = dst | (uint64_t)at << 48;
	l->n++;
	return 1;
}

/* Pages in random order. */
static int shuffle(struct unpack_list *l, uint64_t pages, uint64_t *random)
{
	const uint64_t low = (1ull << 48) - 1;
	uint32_t *place = malloc(pages * sizeof(*place) + 1);

	if (!place)
		return 0;
	for (uint64_t i = 0; i < pages; i++)
		place[i] = (uint32_t)i;
	for (uint64_t i = pages; i > 1; i--) {
		uint64_t k = next_random(random) % i;
		uint32_t t = place[i - 1];

		place[i - 1] = place[k];
		place[k] = t;
	}
	for (uint64_t i = 0; i < l->n; i++) {
		l->descs[i].src_off = place[l->descs[i].src_off] * PAGE + (uint32_t)(l->descs[i].dst_off >> 48);
		l->descs[i].dst_off &= low;
	}
	free(place);
	return 1;
}

int unpack_list_make(struct unpack_list *l, enum unpack_shape shape, uint64_t bytes, uint64_t seed,
		     const char **ret_why)
{
	const int gaps = shape == UNPACK_EVEN1500 || shape == UNPACK_EVEN9000;
	uint64_t random = seed, dst = 0, page = 0;
	uint32_t len, at;

	*ret_why = "no memory for the descriptors";
	memset(l, 0, sizeof(*l));
	if (shape == UNPACK_BYTES)
		bytes = bytes / BYTES_PART ? bytes / BYTES_PART : 1;
	for (uint64_t k = 0; l->bytes < bytes; k++) {
		one(shape, k, &random, &len, &at);
		len = len < bytes - l->bytes ? len : (uint32_t)(bytes - l->bytes);
		dst = gaps ? (dst + 15) / 16 * 16 : dst;
		page = shape == UNPACK_BYTES ? k / BYTES_PER_PAGE : k;
		if (!add(l, page, at, len, dst))
			goto fail;
		dst += len;
		l->bytes += len;
	}
	l->span = dst;
	l->pool_bytes = (page + 1) * PAGE;
	if (l->pool_bytes > UINT32_MAX) {
		*ret_why = "the pages of the message would be more than the 4 GiB that an offset reaches";
		goto fail;
	}
	if (shuffle(l, page + 1, &random))
		return 1;
fail:
	unpack_list_free(l);
	return 0;
}

void unpack_list_free(struct unpack_list *l)
{
	free(l->descs);
	memset(l, 0, sizeof(*l));
}
