/* SPDX-License-Identifier: Apache-2.0 */
/* Two links that talk to each other, and messages between them. */
#ifndef GANTRY_TESTS_LINK_MATCH_UTIL_H
#define GANTRY_TESTS_LINK_MATCH_UTIL_H

#include "base/log.h"
#include "link_pair.h"

enum { A = 11, B = 22, C = 33, MIB = 1 << 20 };

static inline void progress(struct tcp_link *l[2], int times)
{
	for (int i = 0; i < times; i++) {
		tcp_link_progress(l[0]);
		tcp_link_progress(l[1]);
	}
}

/* 1 when done. Errors end the test. */
static inline int test(void *request, int *sizes)
{
	int done = 0;

	CHECK_OK(tcp_link_test(request, &done, sizes));
	return done;
}

static inline void wait_for(struct tcp_link *l[2], void *request, int *sizes)
{
	WAIT_WHILE (!test(request, sizes))
		progress(l, 1);
}

static inline int is_done(void *request)
{
	return __atomic_load_n(&((struct tcp_request *)request)->state, __ATOMIC_ACQUIRE) == TCP_DONE;
}

static inline void *isend(struct tcp_link *l, const uint8_t *data, size_t size, int tag)
{
	void *request = NULL;

	CHECK_OK(tcp_link_isend(l, data, size, tag, &request));
	CHECK(request);
	return request;
}

static inline void *irecv(struct tcp_link *l, uint8_t *data, size_t size, int tag)
{
	void *request = NULL, *p = data;

	CHECK_OK(tcp_link_irecv(l, 1, &p, &size, &tag, &request));
	CHECK(request);
	return request;
}

static inline uint8_t *message(size_t size, uint64_t seed)
{
	uint8_t *p = malloc(size + 1);

	CHECK(p);
	pattern_fill(p, size, seed);
	return p;
}

static inline uint8_t *room(size_t size)
{
	uint8_t *p = calloc(1, size + 1);

	CHECK(p);
	return p;
}

static inline void done_with(struct tcp_link *l[2])
{
	CHECK(!tcp_link_failed(l[0]));
	CHECK(!tcp_link_failed(l[1]));
	pair_free(l);
}

#endif
