/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of a flow: counted, given back once, in few calls, never while somebody has them. */
#include "devmem_util.h"

static struct devmem_binding *binding;

static void take_some(struct devmem_tokens *t, struct fake_flow *f, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		CHECK_OK(devmem_tokens_take(t, &(uint32_t){fake_token(f, i % 16)}, 1));
}

TEST(users_are_counted)
{
	struct fake_flow *f = fake_flow_new(binding);
	struct devmem_tokens t;
	uint32_t one = 1, two = 2;

	devmem_tokens_init(&t, &f->base);
	CHECK_OK(devmem_tokens_flush(&t)); /* of nothing: no call */
	take_some(&t, f, 2);
	CHECK_OK(devmem_tokens_use(&t, 1));
	CHECK_OK(devmem_tokens_drop(&t, &one, 1));
	CHECK_OK(devmem_tokens_drop(&t, &two, 1));
	CHECK_EQ(f->calls, 0); /* two are few: they wait */
	CHECK_OK(devmem_tokens_flush(&t));
	CHECK_EQ(f->calls, 1);
	CHECK_EQ(f->out, 1);
	CHECK(f->page_of[1] != 0); /* it has a user yet */
	CHECK_EQ(t.held, 1);
	CHECK_OK(devmem_tokens_drop(&t, &one, 1));
	/* It is queued, so nobody has it, and receive cannot bring it. */
	CHECK_EQ(devmem_tokens_use(&t, 1), GANTRY_ERR_INTERNAL);
	CHECK_EQ(devmem_tokens_drop(&t, &one, 1), GANTRY_ERR_INTERNAL);
	CHECK_ERROR(devmem_tokens_take(&t, &(uint32_t){1}, 1), GANTRY_ERR_PROTOCOL, "received token 1 again");
	CHECK_EQ(t.held, 1);
	CHECK_OK(devmem_tokens_flush(&t));
	CHECK_EQ(f->out, 0);
	CHECK_EQ(t.held, 0);
	CHECK_EQ(t.returned, 2);
	/* The same number again is another token. */
	take_some(&t, f, 1);
	CHECK_OK(devmem_tokens_drop(&t, &one, 1));
	CHECK_OK(devmem_tokens_flush(&t));
	CHECK_EQ(f->out, 0);
	devmem_tokens_free(&t);
	free(f);
}

TEST(what_is_no_token)
{
	struct fake_flow *f = fake_flow_new(binding);
	struct devmem_tokens t;
	uint32_t five = 5, mixed[3] = {1, 77, 2}, again[3] = {3, 4, 3};

	devmem_tokens_init(&t, &f->base);
	CHECK_EQ(devmem_tokens_take(&t, &(uint32_t){0}, 1), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(devmem_tokens_take(&t, &(uint32_t){0x7fffffff}, 1), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(devmem_tokens_take(&t, &(uint32_t){UINT32_MAX}, 1), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(devmem_tokens_use(&t, 5), GANTRY_ERR_INTERNAL);
	CHECK_EQ(devmem_tokens_drop(&t, &five, 1), GANTRY_ERR_INTERNAL);
	CHECK_EQ(t.held, 0);
	/* Of those that came together, the ones before the bad one are taken. */
	CHECK_EQ(devmem_tokens_take(&t, again, 3), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(t.held, 2);
	CHECK(t.users[3] == 1 && t.users[4] == 1);
	t.users[3] = t.users[4] = t.held = 0;
	/* One bad one among others does not keep those. */
	take_some(&t, f, 2);
	CHECK_ERROR(devmem_tokens_drop(&t, mixed, 3), GANTRY_ERR_INTERNAL, "token 77");
	CHECK_OK(devmem_tokens_flush(&t));
	CHECK_EQ(f->out, 0);
	devmem_tokens_free(&t);
	free(f);
}

/* Few calls: ranges where there are any, and the kernel's limits of a call where there are not. */
TEST(limits_of_a_call)
{
	struct fake_flow *f = fake_flow_new(binding);
	struct devmem_tokens t;
	uint32_t tokens[3000], n = 0;

	devmem_tokens_init(&t, &f->base);
	take_some(&t, f, 3000);
	/* Dense, backwards: 1024 + 1024 + 952 in one range each. */
	for (uint32_t i = 0; i < 3000; i++)
		tokens[i] = 3000 - i;
	CHECK_OK(devmem_tokens_drop(&t, tokens, 3000));
	CHECK_EQ(f->out, 0);
	CHECK_EQ(f->calls, 3);
	CHECK_EQ(f->most_ranges, 1);
	CHECK_EQ(f->most_tokens, 1024);
	/* Every second one: 1500 ranges of one are 11 calls of 128 and one of 92. */
	take_some(&t, f, 3000);
	f->calls = 0;
	for (uint32_t i = 1; i <= 3000; i += 2)
		tokens[n++] = i;
	CHECK_OK(devmem_tokens_drop(&t, tokens, n));
	CHECK_EQ(f->calls, 12);
	CHECK_EQ(f->most_ranges, 128);
	CHECK_EQ(f->out, 1500);
	/* One by one they go when DEVMEM_FLUSH_AT have come together. */
	f->calls = 0;
	for (uint32_t i = 2; i <= 3000; i += 2)
		CHECK_OK(devmem_tokens_drop(&t, &i, 1));
	CHECK_EQ(f->calls, 1500 / DEVMEM_FLUSH_AT);
	CHECK_EQ(t.nqueued, 1500 % DEVMEM_FLUSH_AT);
	CHECK_OK(devmem_tokens_flush(&t));
	CHECK_EQ(f->out, 0);
	CHECK_EQ(t.returned, 6000);
	devmem_tokens_free(&t);
	free(f);
}

TEST(failures)
{
	struct fake_flow *f = fake_flow_new(binding);
	struct devmem_tokens t;
	uint32_t tokens[3] = {3, 1, 2};

	devmem_tokens_init(&t, &f->base);
	take_some(&t, f, 3);
	CHECK_OK(devmem_tokens_drop(&t, tokens, 3));
	f->fail_errno = EBADF;
	CHECK_ERROR(devmem_tokens_flush(&t), GANTRY_ERR_SYSTEM, "return 3 tokens on socket 55: Bad file descriptor");
	CHECK_EQ(t.held, 3); /* nothing is forgotten */
	CHECK_OK(devmem_tokens_flush(&t));
	CHECK_EQ(f->out, 0);
	take_some(&t, f, 3);
	CHECK_OK(devmem_tokens_drop(&t, tokens, 3));
	f->swallow = 1;
	CHECK_ERROR(devmem_tokens_flush(&t), GANTRY_ERR_INTERNAL,
		    "3 tokens were returned on socket 55, but the kernel freed 2");
	f->swallow = 0;
	CHECK_OK(devmem_tokens_flush(&t)); /* and not a second time */
	devmem_tokens_free(&t);
	free(f);
}

/* Against a model that counts users by itself. */
static void random_use(uint64_t seed)
{
	struct fake_flow *f = fake_flow_new(binding);
	struct devmem_tokens t;
	static uint32_t users[4096];
	uint32_t held[4096], n = 0, taken = 0;

	random_seed(seed);
	memset(users, 0, sizeof(users));
	devmem_tokens_init(&t, &f->base);
	for (int step = 0; step < 20000 || n > 0; step++) {
		uint32_t what = random_below(8), at = n ? random_below(n) : 0;

		if (what < 3 && n < 2000 && step < 20000) {
			uint32_t token = fake_token(f, random_below(16));

			CHECK_EQ(users[token], 0); /* else it was given back while in use */
			CHECK_OK(devmem_tokens_take(&t, &(uint32_t){token}, 1));
			users[token] = 1;
			held[n++] = token;
			taken++;
		} else if (what == 3 && n > 0 && users[held[at]] < 300) {
			CHECK_OK(devmem_tokens_use(&t, held[at]));
			users[held[at]]++;
		} else if (what < 7 && n > 0) {
			CHECK_OK(devmem_tokens_drop(&t, &held[at], 1));
			if (--users[held[at]] == 0)
				held[at] = held[--n];
		} else if (what == 7) {
			CHECK_OK(devmem_tokens_flush(&t));
		}
		for (uint32_t i = 0; i < n && step % 997 == 0; i++)
			CHECK(f->page_of[held[i]] != 0);
	}
	CHECK_OK(devmem_tokens_flush(&t));
	CHECK_EQ(f->out, 0);
	CHECK_EQ(t.held, 0);
	CHECK_EQ(t.returned, taken);
	devmem_tokens_free(&t);
	free(f);
}

TEST(random_uses)
{
	for (uint64_t seed = 1; seed <= 5; seed++)
		random_use(seed);
}

/* One thread receives, others let go: a number that the kernel brings again at once must not be mistaken. */
enum { WORKERS = 3, ROUNDS = 20000, BOX = 256 };
static struct {
	struct devmem_tokens t;
	struct fake_flow *f;
	pthread_mutex_t lock;
	uint32_t box[BOX], n;
	int end;
} race;

static void *worker(void *arg)
{
	uint32_t some[8];

	random_seed((uintptr_t)arg);
	for (;;) {
		uint32_t n = 0;
		int end;

		pthread_mutex_lock(&race.lock);
		while (race.n > 0 && n < 8)
			some[n++] = race.box[--race.n];
		end = race.end;
		pthread_mutex_unlock(&race.lock);
		if (n == 0 && end)
			return NULL;
		if (n > 0 && random_below(4) == 0) {
			CHECK_OK(devmem_tokens_use(&race.t, some[0]));
			CHECK_OK(devmem_tokens_drop(&race.t, some, n));
			n = 1;
		}
		if (n > 0)
			CHECK_OK(devmem_tokens_drop(&race.t, some, n));
		else
			usleep(10);
		if (random_below(8) == 0)
			CHECK_OK(devmem_tokens_flush(&race.t));
	}
}

TEST(threads)
{
	pthread_t id[WORKERS];

	race.f = fake_flow_new(binding);
	devmem_tokens_init(&race.t, &race.f->base);
	pthread_mutex_init(&race.lock, NULL);
	threads_start(id, WORKERS, worker, NULL, 1);
	for (uint32_t i = 0; i < ROUNDS;) {
		int full;

		pthread_mutex_lock(&race.lock);
		full = race.n == BOX;
		pthread_mutex_unlock(&race.lock);
		if (full) {
			usleep(10);
			continue;
		}
		uint32_t token = fake_token(race.f, i % 16);

		CHECK_OK(devmem_tokens_take(&race.t, &(uint32_t){token}, 1));
		pthread_mutex_lock(&race.lock);
		race.box[race.n++] = token;
		pthread_mutex_unlock(&race.lock);
		i++;
	}
	pthread_mutex_lock(&race.lock);
	race.end = 1;
	pthread_mutex_unlock(&race.lock);
	threads_join(id, WORKERS);
	CHECK_OK(devmem_tokens_flush(&race.t));
	CHECK_EQ(race.f->out, 0);
	CHECK_EQ(race.t.returned, ROUNDS);
	devmem_tokens_free(&race.t);
	free(race.f);
}

void tests_begin(void)
{
	CHECK_OK(gantry_params_load(0));
	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null"); /* errors are expected here */
	binding = fake_pages(16);
}

void tests_end(void)
{
	fake_unbind(binding);
}
