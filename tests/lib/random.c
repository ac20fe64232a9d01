/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

static _Thread_local uint64_t state, stream_of; /* state 0: not seeded yet */

static uint64_t test_seed = 1;

/* Before main: threads may change the environment later. */
__attribute__((constructor)) static void read_seed(void)
{
	const char *text = getenv("TEST_SEED");

	if (text)
		test_seed = strtoull(text, NULL, 0);
}

/* The finalizer of splitmix64: neighbouring inputs have nothing in common. */
static uint64_t scramble(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t random_at(uint64_t stream)
{
	return scramble(test_seed * 0x9e3779b97f4a7c15u ^ scramble(stream + 1));
}

void random_seed(uint64_t stream)
{
	stream_of = stream;
	state = random_at(stream) | 1;
}

uint64_t random_next(void)
{
	static uint64_t threads; /* atomic */

	if (!state)
		random_seed((1ull << 32) + __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED));
	state += 2 * 0x9e3779b97f4a7c15u; /* even, and state is odd: never 0 */
	return scramble(state);
}

uint32_t random_below(uint32_t n)
{
	return (uint32_t)(random_next() % n);
}

uint32_t random_between(uint32_t lo, uint32_t hi)
{
	return lo + random_below(hi - lo + 1);
}

void random_fill(void *p, size_t n)
{
	for (uint8_t *at = p; n;) {
		uint64_t word = random_next();
		size_t now = n < sizeof(word) ? n : sizeof(word);

		memcpy(at, &word, now);
		at += now;
		n -= now;
	}
}

int random_describe(char *text, size_t len)
{
	if (!state)
		return 0;
	snprintf(text, len, "TEST_SEED=%llu, stream %llu", (unsigned long long)test_seed,
		 (unsigned long long)stream_of);
	return 1;
}
