/* SPDX-License-Identifier: Apache-2.0 */
/* Headers that go ahead and are not read: the ends of a link that is stuck with them, and that it goes on when they
 * are. */
#include "link_ahead_util.h"

/* Nobody reads lane 0: posts many small bulk messages until headers wait in the ring. */
static struct receiver *blocked(const struct pair_config *c, struct tcp_link **ret_link, uint8_t *data, uint32_t *ret_n,
				void **requests)
{
	struct receiver *r = receiver_new(c, ret_link);
	struct tcp_link *l = *ret_link;
	uint64_t deadline = until_hang();

	*ret_n = 0;
	for (uint32_t t = 0; t < TAGS; t++)
		say_state(r, t, MESSAGES, 0);
	/* Sends of MESSAGES x TAGS pieces: more than the ring and the socket of lane 0 hold. */
	while (*ret_n < TAGS * MESSAGES && l->tx.descriptors.n < LINK_DESCRIPTORS) {
		uint32_t t = *ret_n % TAGS;
		int done = 0;

		CHECK_OK(tcp_link_isend(l, data + t * 64, 64, (int)t, &requests[*ret_n]));
		if (requests[*ret_n])
			++*ret_n;
		for (uint32_t i = 0; i < *ret_n; i++)
			if (requests[i] && tcp_link_test(requests[i], &done, NULL) == GANTRY_OK && done)
				requests[i] = NULL;
		read_bulk(r);
		CHECK(l->tx.descriptors.n <= LINK_DESCRIPTORS);
		CHECK(gantry_now_ns() < deadline);
	}
	return r;
}

static void fill_small(uint8_t *data)
{
	/* All messages of a tag are alike: the pattern of its first. */
	for (uint32_t t = 0; t < TAGS; t++)
		memset(data + t * 64, 0x40 + (int)t, 64);
}

/* What message_of and arrived would check by seed is checked here by value. */
static void drain_small(struct receiver *r, struct tcp_link *l, uint32_t *ret_whole)
{
	uint32_t whole = 0;

	for (int idle = 0; idle < 20;) {
		int some = read_control(r) | read_bulk(r);

		tcp_control_flush(l);
		idle = some ? 0 : idle + 1;
	}
	for (int i = 1; i < r->config->nlanes; i++) {
		size_t at = 0;

		for (uint32_t k = 0; k < r->npieces[i]; k++) {
			const struct piece *p = &r->pieces[i][k];
			size_t here = r->nearly[i] - at < p->length ? r->nearly[i] - at : p->length;

			for (size_t b = 0; b < here; b++)
				CHECK_EQ(r->early[i][at + b], 0x40 + p->tag);
			at += here;
			whole += here == p->length;
		}
		if (!tcp_link_failed(l))
			CHECK_EQ(at, r->nearly[i]); /* no byte without a header */
	}
	*ret_whole = whole;
}

TEST(closes_after_headers)
{
	struct pair_config c = {.nlanes = 3, .eager_max = 16, .buffer = 2048};
	struct tcp_link *l;
	static void *requests[TAGS * MESSAGES];
	uint8_t data[TAGS * 64];
	uint32_t n, whole;
	struct receiver *r;

	fill_small(data);
	r = blocked(&c, &l, data, &n, requests);
	CHECK_EQ(l->tx.descriptors.n, LINK_DESCRIPTORS); /* it waits, and no lane pulls beyond it */
	for (int i = 0; i < 20; i++)
		tcp_link_progress(l);
	CHECK_EQ(l->tx.descriptors.n, LINK_DESCRIPTORS);
	CHECK(n < TAGS * MESSAGES || !gantry_list_empty(&l->tx.bulk));
	tcp_link_close_tx(l);
	CHECK(!tcp_control_idle(l));
	drain_small(r, l, &whole);
	CHECK(tcp_control_idle(l));
	CHECK_EQ(r->ends, 1);
	CHECK_EQ(r->close_seq, whole);
	CHECK(whole >= LINK_DESCRIPTORS);
	receiver_free(r, l);
}

TEST(goes_on_when_read)
{
	struct pair_config c = {.nlanes = 2, .eager_max = 16, .buffer = 2048};
	struct tcp_link *l;
	static void *requests[TAGS * MESSAGES];
	uint8_t data[TAGS * 64];
	uint32_t n, whole = 0, left = 1;
	struct receiver *r;

	fill_small(data);
	r = blocked(&c, &l, data, &n, requests);
	CHECK_EQ(l->tx.descriptors.n, LINK_DESCRIPTORS);
	for (uint64_t deadline = until_hang(); gantry_now_ns() < deadline;) {
		left = 0;
		drain_small(r, l, &whole);
		for (uint32_t i = 0; i < n; i++) {
			int done = 0;

			if (requests[i])
				CHECK_OK(tcp_link_test(requests[i], &done, NULL));
			if (done)
				requests[i] = NULL;
			left += requests[i] != NULL;
		}
		if (!left && whole == n)
			break;
	}
	CHECK_EQ(left, 0);
	CHECK_EQ(whole, n);
	receiver_free(r, l);
}

/* A link that has failed says so, and does not send what it has announced to nobody. */
TEST(fails_with_headers_waiting)
{
	struct pair_config c = {.nlanes = 2, .eager_max = 16, .buffer = 2048};
	struct tcp_link *l;
	static void *requests[TAGS * MESSAGES];
	uint8_t data[TAGS * 64];
	uint32_t n, whole;
	struct receiver *r;
	int done = 0;

	fill_small(data);
	r = blocked(&c, &l, data, &n, requests);
	tcp_link_fail(l, 1, GANTRY_ERR_CORRUPT, "enough");
	for (uint32_t i = 0; i < n; i++)
		if (requests[i])
			CHECK_EQ(tcp_link_test(requests[i], &done, NULL), GANTRY_ERR_CORRUPT);
	drain_small(r, l, &whole);
	CHECK_EQ(r->errors, 1);
	CHECK_EQ(r->ends, 0);
	tcp_link_close_tx(l);
	drain_small(r, l, &whole);
	CHECK_EQ(r->ends, 1);
	CHECK(tcp_control_idle(l));
	receiver_free(r, l);
}

void tests_begin(void)
{
	ahead_params();
	tests_apart(0);
}
