/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From control messages to fragments.
 *
 * What the kernel promises of one receive, and what is checked here because a fragment's numbers end up in a kernel
 * that copies without asking: the sizes add up to the result; the result is at most the receive's own buffer, though
 * fragments in the pool are not written there; linear bytes are packed back to back in that buffer; a fragment in the
 * pool lies in one page and in our binding. A receive without any such control message brought ordinary bytes.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include "net/devmem_rx.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"

struct parse {
	const uint8_t *at; /* the next control message ... */
	size_t left;	   /* ... and the bytes from there to the end */
	const struct devmem_binding *binding;
	uint64_t iov_bytes, page;
	uint64_t linear; /* bytes so far */
	struct devmem_list *list;
};

/* The next control message: 1, 0 at the end, -1: its length is not to be believed. The buffer may lie anywhere: no
 * header is read in place. */
static int next_cmsg(struct parse *p, struct cmsghdr *ret_header, const uint8_t **ret_data)
{
	size_t step;

	if (p->left == 0)
		return 0;
	if (p->left < sizeof(*ret_header))
		return -1;
	memcpy(ret_header, p->at, sizeof(*ret_header));
	if (ret_header->cmsg_len < CMSG_LEN(0) || ret_header->cmsg_len > p->left)
		return -1;
	*ret_data = p->at + CMSG_LEN(0);
	step = CMSG_ALIGN(ret_header->cmsg_len); /* no overflow: it was at most what is left */
	if (step > p->left)
		step = p->left; /* the last one's padding may be missing */
	p->at += step;
	p->left -= step;
	return 1;
}

static gantry_result check_linear(const struct parse *p, const struct devmem_cmsg *c)
{
	if (c->frag_token != 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "linear bytes with token %u", c->frag_token);
	if (c->frag_size > p->iov_bytes - p->linear)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%" PRIu64 " linear bytes in a buffer of %" PRIu64,
			 p->linear + c->frag_size, p->iov_bytes);
	return GANTRY_OK;
}

static gantry_result check_in_pool(const struct parse *p, const struct devmem_cmsg *c)
{
	if (c->frag_token == 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment without a token");
	if (c->dmabuf_id != p->binding->dmabuf_id)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment of dma-buf %u on a flow of dma-buf %u", c->dmabuf_id,
			 p->binding->dmabuf_id);
	if (c->frag_size > p->binding->memory.size || c->frag_offset > p->binding->memory.size - c->frag_size)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment of %u bytes at %" PRIu64 " of memory of %" PRIu64,
			 c->frag_size, c->frag_offset, p->binding->memory.size);
	if (c->frag_offset % p->page + c->frag_size > p->page)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment of %u bytes at %" PRIu64 " is not within one page",
			 c->frag_size, c->frag_offset);
	return GANTRY_OK;
}

/* One control message; those of other protocols are skipped. */
static gantry_result add_message(struct parse *p, const struct cmsghdr *h, const uint8_t *data)
{
	int linear = h->cmsg_type == SCM_DEVMEM_LINEAR;
	struct devmem_list *list = p->list;
	struct devmem_cmsg chunk, *c = &chunk;

	if (h->cmsg_level != SOL_SOCKET || (!linear && h->cmsg_type != SCM_DEVMEM_DMABUF))
		return GANTRY_OK;
	if (h->cmsg_len != CMSG_LEN(sizeof(chunk)))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a control message of type %d with %zu bytes", h->cmsg_type,
			 (size_t)h->cmsg_len);
	memcpy(&chunk, data, sizeof(chunk));
	if (list->n == DEVMEM_LIST_MAX)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "more than %d fragments in one receive", DEVMEM_LIST_MAX);
	if (c->frag_size == 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "an empty fragment, token %u", c->frag_token);
	/* No kernel sets any yet. A new flag may change the meaning of the other fields. */
	if (c->flags != 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment with unknown flags 0x%x", c->flags);
	TRY_NOW(linear ? check_linear(p, c) : check_in_pool(p, c));
	list->frags[list->n++] = (struct devmem_frag){.offset = linear ? p->linear : c->frag_offset,
						      .len = c->frag_size,
						      .token = c->frag_token,
						      .where = linear ? DEVMEM_LINEAR : DEVMEM_IN_POOL};
	list->bytes += c->frag_size;
	if (linear)
		p->linear += c->frag_size;
	return GANTRY_OK;
}

gantry_result devmem_parse(const struct msghdr *msg, ssize_t got, const struct devmem_binding *b, uint64_t iov_bytes,
			   struct devmem_list *ret_list)
{
	struct parse p = {.at = msg->msg_control,
			  .left = msg->msg_controllen,
			  .binding = b,
			  .iov_bytes = iov_bytes,
			  .page = devmem_page(&b->memory),
			  .list = ret_list};
	struct cmsghdr header;
	const uint8_t *data;
	int more;

	ret_list->n = 0;
	ret_list->bytes = 0;
	if (got <= 0 || (!p.at && p.left > 0))
		FAIL_NOW(GANTRY_ERR_INVALID, "control messages of a receive that returned %zd, %zu bytes at %p", got,
			 p.left, msg->msg_control);
	while ((more = next_cmsg(&p, &header, &data)) > 0)
		TRY_NOW(add_message(&p, &header, data));
	if (more < 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a control message exceeds its buffer of %zu bytes",
			 (size_t)msg->msg_controllen);
	if (msg->msg_flags & MSG_CTRUNC)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "control messages were cut off after %u fragments: their tokens are lost",
			 ret_list->n);
	if ((uint64_t)got > iov_bytes)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a receive of %zd bytes into a buffer of %" PRIu64, got, iov_bytes);
	if (ret_list->n == 0) {
		if ((uint64_t)got > UINT32_MAX)
			FAIL_NOW(GANTRY_ERR_LIMIT, "an ordinary receive of %zd bytes", got);
		ret_list->frags[ret_list->n++] = (struct devmem_frag){.len = (uint32_t)got, .where = DEVMEM_PLAIN};
		ret_list->bytes = (uint64_t)got;
	}
	if (ret_list->bytes != (uint64_t)got)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "fragments of %" PRIu64 " bytes in a receive of %zd", ret_list->bytes,
			 got);
	return GANTRY_OK;
}

/*
 * Tokens of a flow.
 *
 *   free --take--> users 1 --use/drop--> users n --last drop--> DEVMEM_QUEUED --flush--> free
 *
 * The kernel hands out the lowest free number, so users[] is a small dense array. The mutex stays locked from before
 * the kernel frees a token until its users are 0 again: a receive on another thread may bring the same number at once,
 * and its take must not come in between. The queue has as much room as there are tokens: dropping never allocates.
 */

void devmem_tokens_init(struct devmem_tokens *t, struct devmem_flow *flow)
{
	*t = (struct devmem_tokens){.flow = flow};
}

void devmem_tokens_free(struct devmem_tokens *t) UNCHECKED /* no other thread has a reference */
{
	if (t->nqueued)
		devmem_tokens_flush(t); /* a failure has been logged; then they count as abandoned */
	if (t->held)
		fetch_add_relaxed(&t->flow->binding->abandoned, t->held);
	free(t->users);
	free(t->queued);
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
			FAIL(GANTRY_ERR_PROTOCOL, "%u is not a token", token);
		if (token >= t->room)
			TRY(grow_tables(t, token));
		if (t->users[token] != 0)
			FAIL(GANTRY_ERR_PROTOCOL, "received token %u again before it was returned", token);
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
		FAIL(GANTRY_ERR_INTERNAL, "token %u is in use, but no receive owns it", token);
	t->users[token]++;
out:
	devmem_tokens_mu_unlock(&t->mu);
	return r;
}

/* Shell's sort: short, in place. Most often there is nothing to do: the kernel hands out tokens in order. */
static void sort_tokens(uint32_t *v, uint32_t n)
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

static gantry_result flush_tokens(struct devmem_tokens *t) REQUIRES(devmem_tokens_mu)
{
	gantry_result r = GANTRY_OK;
	struct devmem_token ranges[DEVMEM_MAX_RANGES];
	uint32_t done = 0;

	sort_tokens(t->queued, t->nqueued);
	while (done < t->nqueued) {
		uint32_t n, count = fill_ranges(t, done, ranges, &n);
		int freed = t->flow->binding->ops->give_back(t->flow, ranges, n);

		if (freed < 0)
			FAIL(GANTRY_ERR_SYSTEM, "return %u tokens on socket %d: %s", count, t->flow->fd,
			     strerror(errno));
		t->calls++;
		for (uint32_t i = 0; i < count; i++)
			t->users[t->queued[done + i]] = 0;
		done += count;
		t->held -= count;
		fetch_add_relaxed(&t->returned, (uint32_t)freed);
		if ((uint32_t)freed != count)
			FAIL(GANTRY_ERR_INTERNAL, "%u tokens were returned on socket %d, but the kernel freed %d",
			     count, t->flow->fd, freed);
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
		r = flush_tokens(t);
	if (nobodys > 0)
		FAIL(GANTRY_ERR_INTERNAL, "dropped %u tokens without an owner, including token %u", nobodys, one);
out:
	devmem_tokens_mu_unlock(&t->mu);
	return r;
}

gantry_result devmem_tokens_flush(struct devmem_tokens *t)
{
	gantry_result r = GANTRY_OK;

	devmem_tokens_mu_lock(&t->mu);
	if (t->nqueued > 0)
		r = flush_tokens(t);
	devmem_tokens_mu_unlock(&t->mu);
	return r;
}
