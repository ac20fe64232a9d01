/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of a flow.
 *
 *   free --take--> users 1 --use/drop--> users n --last drop--> DEVMEM_QUEUED --flush--> free
 *
 * The kernel hands out the lowest free number, so users[] is a small dense array. The mutex stays locked from before
 * the kernel frees a token until its users are 0 again: a receive on another thread may bring the same number at once,
 * and its take must not come in between. The queue has as much room as there are tokens: dropping never allocates.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include "net/devmem_rx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"

void devmem_tokens_init(struct devmem_tokens *t, struct devmem_flow *flow)
{
	*t = (struct devmem_tokens){.flow = flow};
	mutex_init(&t->mu);
}

void devmem_tokens_free(struct devmem_tokens *t) UNCHECKED /* nobody else has it any more */
{
	if (t->nqueued)
		devmem_tokens_flush(t); /* a failure has been said; then they count as abandoned */
	if (t->held)
		fetch_add_relaxed(&t->flow->binding->abandoned, t->held);
	free(t->users);
	free(t->queued);
	mutex_destroy(&t->mu);
	memset(t, 0, sizeof(*t));
}

static gantry_result grow_tables(struct devmem_tokens *t, uint32_t token) REQUIRES(devmem_tokens_mu)
{
	uint32_t room = t->room ? t->room : 1024;
	uint32_t *users, *queued;

	while (room <= token)
		room *= 2;
	users = realloc(t->users, room * sizeof(*users));
	if (users)
		t->users = users;
	queued = realloc(t->queued, room * sizeof(*queued));
	if (queued)
		t->queued = queued;
	if (!users || !queued)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %u tokens", room);
	memset(t->users + t->room, 0, (room - t->room) * sizeof(*t->users));
	t->room = room;
	return GANTRY_OK;
}

gantry_result devmem_tokens_take(struct devmem_tokens *t, const uint32_t *tokens, uint32_t n)
{
	gantry_result r = GANTRY_OK;

	devmem_tokens_mu_lock(&t->mu);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = tokens[i];

		if (token == 0 || token >= DEVMEM_TOKENS_MAX)
			FAIL(GANTRY_ERR_PROTOCOL, "%u is no token", token);
		if (token >= t->room)
			TRY(grow_tables(t, token));
		if (t->users[token] != 0)
			FAIL(GANTRY_ERR_PROTOCOL, "token %u came again before it was given back", token);
		t->users[token] = 1;
		t->held++;
	}
out:
	devmem_tokens_mu_unlock(&t->mu);
	return r;
}

static int has_user(const struct devmem_tokens *t, uint32_t token) REQUIRES(devmem_tokens_mu)
{
	return token < t->room && t->users[token] != 0 && t->users[token] != DEVMEM_QUEUED;
}

gantry_result devmem_tokens_use(struct devmem_tokens *t, uint32_t token)
{
	gantry_result r = GANTRY_OK;

	devmem_tokens_mu_lock(&t->mu);
	if (!has_user(t, token))
		FAIL(GANTRY_ERR_INTERNAL, "token %u is used, but nobody has it", token);
	t->users[token]++;
out:
	devmem_tokens_mu_unlock(&t->mu);
	return r;
}

/* Shell's sort: short, in place. Most often there is nothing to do: the kernel hands out tokens in order. */
static void sort(uint32_t *v, uint32_t n)
{
	static const uint32_t gaps[] = {1750, 701, 301, 132, 57, 23, 10, 4, 1};
	uint32_t sorted = 1;

	while (sorted < n && v[sorted - 1] <= v[sorted])
		sorted++;
	if (sorted >= n)
		return;
	for (size_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++) {
		uint32_t gap = gaps[g];

		for (uint32_t i = gap; i < n; i++) {
			uint32_t x = v[i], j = i;

			for (; j >= gap && v[j - gap] > x; j -= gap)
				v[j] = v[j - gap];
			v[j] = x;
		}
	}
}

/* As many of the sorted tokens from `from` on as one call takes. */
static uint32_t fill_ranges(const struct devmem_tokens *t, uint32_t from, struct devmem_token *ranges, uint32_t *ret_n)
	REQUIRES(devmem_tokens_mu)
{
	uint32_t n = 0, i = from;

	for (; i < t->nqueued && i - from < DEVMEM_MAX_RETURNED; i++) {
		if (n > 0 && t->queued[i] == ranges[n - 1].token_start + ranges[n - 1].token_count) {
			ranges[n - 1].token_count++;
			continue;
		}
		if (n == DEVMEM_MAX_RANGES)
			break;
		ranges[n++] = (struct devmem_token){.token_start = t->queued[i], .token_count = 1};
	}
	*ret_n = n;
	return i - from;
}

static gantry_result flush(struct devmem_tokens *t) REQUIRES(devmem_tokens_mu)
{
	gantry_result r = GANTRY_OK;
	struct devmem_token ranges[DEVMEM_MAX_RANGES];
	uint32_t done = 0;

	sort(t->queued, t->nqueued);
	while (done < t->nqueued) {
		uint32_t n, count = fill_ranges(t, done, ranges, &n);
		int freed = t->flow->binding->ops->give_back(t->flow, ranges, n);

		if (freed < 0)
			FAIL(GANTRY_ERR_SYSTEM, "give %u tokens back on socket %d: %s", count, t->flow->fd,
			     strerror(errno));
		t->calls++;
		for (uint32_t i = 0; i < count; i++)
			t->users[t->queued[done + i]] = 0;
		done += count;
		t->held -= count;
		fetch_add_relaxed(&t->returned, (uint32_t)freed);
		if ((uint32_t)freed != count)
			FAIL(GANTRY_ERR_INTERNAL, "%u tokens were given back on socket %d, %d were freed", count,
			     t->flow->fd, freed);
	}
out:
	/* What was not taken stays queued. */
	t->nqueued -= done;
	memmove(t->queued, t->queued + done, t->nqueued * sizeof(*t->queued));
	return r;
}

gantry_result devmem_tokens_drop(struct devmem_tokens *t, const uint32_t *tokens, uint32_t n)
{
	gantry_result r = GANTRY_OK;
	uint32_t nobodys = 0, one = 0;

	devmem_tokens_mu_lock(&t->mu);
	for (uint32_t i = 0; i < n; i++) {
		if (!has_user(t, tokens[i])) {
			nobodys++;
			one = tokens[i];
		} else if (--t->users[tokens[i]] == 0) {
			t->users[tokens[i]] = DEVMEM_QUEUED;
			t->queued[t->nqueued++] = tokens[i];
		}
	}
	if (t->nqueued >= DEVMEM_FLUSH_AT)
		r = flush(t);
	if (nobodys > 0)
		FAIL(GANTRY_ERR_INTERNAL, "%u tokens are dropped that nobody has, token %u among them", nobodys, one);
out:
	devmem_tokens_mu_unlock(&t->mu);
	return r;
}

gantry_result devmem_tokens_flush(struct devmem_tokens *t)
{
	gantry_result r = GANTRY_OK;

	devmem_tokens_mu_lock(&t->mu);
	if (t->nqueued > 0)
		r = flush(t);
	devmem_tokens_mu_unlock(&t->mu);
	return r;
}
