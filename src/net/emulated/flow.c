/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows: how their stream is cut, their tokens, and the plan of what their next bytes are (see emulated.h).
 *
 * The first `assigned` pieces of a plan have their places; that is always a number of whole units, less what was
 * consumed of the first one. A unit that was not begun in the call that gave it its places loses them again: nobody
 * else shall starve for bytes that have not arrived.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/emulated/emulated.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "device/device.h"

/*
 * How the stream is cut. A shape appends one unit at a time: one packet, or those that share a page. What packets look
 * like before that: lengths and places of split pieces. Some of them (GANTRY_EMU_PLAIN) come unsplit, of some
 * (GANTRY_EMU_LINEAR) the first bytes are linear.
 */

enum { MSS_1500 = 1448, PAGE_PART_1500 = 2048, TAIL_9000 = 756, PIECE_9000 = 4096, BYTES_UNIT = 64, HEAD_MAX = 192 };

/* Weyl sequence and a finalizer: any state is a good one. */
uint64_t emu_random(uint64_t *state)
{
	uint64_t z = *state += 0x9E3779B97F4A7C15u;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

static uint32_t below(struct emu_flow *f, uint32_t n)
{
	return (uint32_t)(((emu_random(&f->random) >> 32) * n) >> 32);
}

uint32_t emu_shape_pages(enum emu_shape shape)
{
	switch (shape) {
	case EMU_MTU9000:
		return 3;
	case EMU_RANDOM:
		return EMU_UNIT_PAGES;
	default:
		return 1;
	}
}

static struct emu_piece *append(struct emu_flow *f, enum emu_kind kind, uint32_t at, uint32_t len, int fresh)
{
	struct emu_piece *p = emu_piece(f, f->n++);

	*p = (struct emu_piece){.len = len, .at = at, .page = EMU_NO_PAGE, .kind = (uint8_t)kind, .fresh = !!fresh};
	return p;
}

/*
 * The pieces [first, f->n) are a packet, all split. Lets fate decide about its kind. Returns whether it still has a
 * page (so that others can be put in it).
 */
static int packet(struct emu_flow *f, uint32_t first, uint32_t linear)
{
	const struct emu_binding *b = f->binding;
	struct emu_piece *p = emu_piece(f, first);
	uint32_t head;

	if (b->plain && below(f, 1000) < b->plain) {
		p->kind = EMU_PLAIN;
		for (uint32_t i = first + 1; i < f->n; i++)
			p->len += emu_piece(f, i)->len;
		f->n = first + 1;
		return 0;
	}
	if (!linear || below(f, 1000) >= linear)
		return 1;
	if (p->len == 1 && f->n - first < 2)
		return 1;
	if (p->len == 1) { /* the whole piece is linear, so the next one is the first in their page */
		p->kind = EMU_HEAD;
		emu_piece(f, first + 1)->fresh |= p->fresh;
		return 1;
	}
	head = 1 + below(f, p->len - 1 < HEAD_MAX ? p->len - 1 : HEAD_MAX);
	for (uint32_t i = f->n++; i > first; i--)
		*emu_piece(f, i) = *emu_piece(f, i - 1);
	p->kind = EMU_HEAD;
	p->len = head;
	if (EMU_FAULT(63)) {
		f->n = first + 1;
		return 0;
	}
	p = emu_piece(f, first + 1);
	p->at += head;
	p->len -= head;
	return 1;
}

static void unit_random(struct emu_flow *f, uint32_t page_size)
{
	uint32_t first = f->n, pieces = 1 + below(f, EMU_UNIT_PAGES), end = page_size;

	for (uint32_t i = 0; i < pieces; i++) {
		int share = end < page_size && below(f, 2);
		uint32_t from = share ? end : 0, at, len;

		at = below(f, 4) ? from + below(f, page_size - from) : from;
		len = below(f, 4) ? 1 + below(f, page_size - at)
				  : 1 + below(f, page_size - at < 16 ? page_size - at : 16);
		append(f, EMU_SPLIT, at, len, !share);
		end = at + len;
	}
	packet(f, first, f->binding->linear ? f->binding->linear : 100);
}

/* Packets that share a page, each in a part of its own. */
static void unit_mtu1500(struct emu_flow *f, uint32_t page_size)
{
	int opened = 0;

	for (uint32_t i = 0; i < page_size / PAGE_PART_1500 && i < 16; i++) {
		append(f, EMU_SPLIT, i * PAGE_PART_1500, MSS_1500, !opened || EMU_FAULT(24));
		opened |= packet(f, f->n - 1, f->binding->linear);
	}
}

/* One unit more at the end of the plan. */
static void append_unit(struct emu_flow *f)
{
	uint32_t first = f->n, page_size = f->binding->page_size, linear = f->binding->linear;

	switch (f->binding->shape) {
	case EMU_PAGES:
		append(f, EMU_SPLIT, 0, page_size, 1);
		packet(f, first, linear);
		break;
	case EMU_MTU1500:
		unit_mtu1500(f, page_size);
		break;
	case EMU_MTU9000:
		append(f, EMU_SPLIT, 0, PIECE_9000, 1);
		append(f, EMU_SPLIT, 0, PIECE_9000, 1);
		append(f, EMU_SPLIT, 0, TAIL_9000 + EMU_FAULT(31), 1);
		packet(f, first, linear);
		break;
	case EMU_ODD:
		append(f, EMU_SPLIT, 1 + EMU_FAULT(23), page_size - 1, 1);
		packet(f, first, linear);
		break;
	case EMU_RANDOM:
		unit_random(f, page_size);
		break;
	case EMU_BYTES: /* 37 is odd: no two at the same place, and no neighbours */
		for (uint32_t i = 0; i < BYTES_UNIT; i++)
			append(f, EMU_SPLIT, (i * 37 + 5) % page_size, 1, i == 0);
		packet(f, first, linear);
		break;
	}
	emu_piece(f, first)->starts = 1;
}

/*
 * Tokens of a flow: numbers from 1, the lowest free one first, used again at once. Many may be out for one page; the
 * page is free when the last of them is back and no piece of the plan lies in it.
 */

enum { FIRST_WORDS = 16, MAX_WORDS = 1 << 25 /* 2^31 tokens */ };

static int grow_tokens(struct emu_flow *f, uint32_t words) REQUIRES(emu_flow_mu)
{
	uint64_t *out = realloc(f->out, words * sizeof(*out));
	uint32_t *page_of;

	if (!out)
		return -1;
	f->out = out;
	page_of = realloc(f->page_of, (size_t)words * 64 * sizeof(*page_of));
	if (!page_of)
		return -1;
	f->page_of = page_of;
	memset(out + f->words, 0, (words - f->words) * sizeof(*out));
	f->words = words;
	return 0;
}

int emu_tokens_reserve(struct emu_flow *f, uint32_t n)
{
	int r = 0;

	emu_flow_mu_lock(&f->mu);
	while (!r && f->words * 64 - f->nout < n)
		r = f->words >= MAX_WORDS / 2 ? -1 : grow_tokens(f, f->words ? f->words * 2 : FIRST_WORDS);
	emu_flow_mu_unlock(&f->mu);
	return r;
}

/* There is one: it was reserved. */
uint32_t emu_tokens_take(struct emu_flow *f, uint32_t page)
{
	uint32_t w = EMU_FAULT(41) && f->nout ? f->words - 1 : f->hint, bit;

	while (!~f->out[w])
		w++;
	bit = (uint32_t)__builtin_ctzll(~f->out[w]);
	f->out[w] |= 1ull << bit;
	f->hint = EMU_FAULT(41) ? 0 : w;
	f->nout++;
	f->page_of[w * 64 + bit] = page;
	f->binding->users[page]++;
	return w * 64 + bit + 1;
}

/* 1: it was out. A page that nobody uses any more is put to freed[*n]. */
static int give_one(struct emu_flow *f, uint32_t token, uint32_t *freed, uint32_t *n) REQUIRES(emu_flow_mu)
{
	uint32_t w = (token - 1) / 64, page;
	uint64_t bit = 1ull << ((token - 1) % 64);

	if (!token || w >= f->words || !(f->out[w] & bit))
		return 0;
	f->out[w] &= ~bit;
	f->nout--;
	if (w < f->hint)
		f->hint = w;
	page = f->page_of[token - 1];
	if (!--f->binding->users[page] || EMU_FAULT(42))
		freed[(*n)++] = page;
	return 1;
}

/* SO_DEVMEM_DONTNEED. Tokens that are not out are skipped, but count as looked at. */
int emu_give_back(struct devmem_flow *pub, const struct devmem_token *ranges, size_t n)
{
	struct emu_flow *f = (struct emu_flow *)pub;
	uint32_t freed[DEVMEM_MAX_RETURNED], nfreed = 0, looked = 0;
	int good = 0;

	if (!n || (n > DEVMEM_MAX_RANGES && !EMU_FAULT(53))) {
		errno = EINVAL;
		return -1;
	}
	if (!ranges) {
		errno = EFAULT;
		return -1;
	}
	emu_flow_mu_lock(&f->mu);
	for (size_t i = 0; i < n && looked < DEVMEM_MAX_RETURNED; i++)
		for (uint32_t j = 0; j < ranges[i].token_count && looked < DEVMEM_MAX_RETURNED; j++) {
			int was_out = give_one(f, ranges[i].token_start + j, freed, &nfreed);

			good += was_out;
			looked += EMU_FAULT(52) ? (uint32_t)was_out : 1;
		}
	emu_flow_mu_unlock(&f->mu);
	emu_pages_put(f, freed, nfreed);
	EMU_COUNT(f->binding, returned, good);
	if (looked > (uint32_t)good)
		EMU_COUNT(f->binding, bad_returns, looked - (uint32_t)good);
	return EMU_FAULT(51) ? (int)looked : good;
}

static void free_all_tokens(struct emu_flow *f)
{
	emu_flow_mu_lock(&f->mu);
	for (uint32_t w = 0; w < f->words; w++)
		while (f->out[w]) {
			uint32_t freed[1], n = 0;

			give_one(f, w * 64 + (uint32_t)__builtin_ctzll(f->out[w]) + 1, freed, &n);
			if (!EMU_FAULT(101))
				emu_pages_put(f, freed, n);
		}
	emu_flow_mu_unlock(&f->mu);
}

/* Nobody else knows it any more, or yet. */
static void flow_free(struct emu_flow *f) UNCHECKED
{
	mutex_destroy(&f->mu);
	free(f->plan);
	free(f->iov);
	free(f->out);
	free(f->page_of);
	free(f);
}

static gantry_result peer_of(int fd, char text[GANTRY_ADDR_TEXT])
{
	gantry_result r = GANTRY_OK;
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	struct gantry_addr a;

	memset(&sa, 0, sizeof(sa));
	if (getpeername(fd, (struct sockaddr *)&sa, &len) < 0)
		FAIL(GANTRY_ERR_INVALID, "a flow of the emulated NIC needs a connected socket; %d: %s", fd,
		     strerror(errno));
	if (sa.ss_family != AF_INET && sa.ss_family != AF_INET6)
		FAIL(GANTRY_ERR_INVALID, "a flow of the emulated NIC needs a TCP socket; %d is none", fd);
	a = gantry_addr_of((struct sockaddr *)&sa);
	gantry_addr_text(&a, text);
out:
	return r;
}

gantry_result emu_attach(struct devmem_binding *pub, int fd, struct devmem_flow **ret_flow)
{
	gantry_result r = GANTRY_OK;
	struct emu_binding *b = (struct emu_binding *)pub;
	struct emu_flow *f = calloc(1, sizeof(*f));

	if (!f)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a flow of the emulated NIC");
	f->pub = (struct devmem_flow){.binding = pub, .fd = fd};
	f->binding = b;
	mutex_init(&f->mu);
	TRY(peer_of(fd, f->peer));
	f->plan = calloc(EMU_PLAN, sizeof(*f->plan));
	f->iov = calloc(EMU_FRAGS_MAX, sizeof(*f->iov));
	if (!f->plan || !f->iov || emu_tokens_reserve(f, 1) < 0)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a flow of the emulated NIC with %s", f->peer);

	emu_binding_mu_lock(&b->mu);
	f->number = ++b->flows_ever;
	emu_pages_group(f);
	gantry_list_append(&b->flows, &f->link);
	b->refs++;
	emu_binding_mu_unlock(&b->mu);
	f->random = b->seed * 0xD1342543DE82EF95u + f->number;
	*ret_flow = &f->pub;
	f = NULL; /* ownership moved */
out:
	if (f)
		flow_free(f);
	return r;
}

void emu_detach(struct devmem_flow *pub)
{
	struct emu_flow *f = (struct emu_flow *)pub;
	struct emu_binding *b;

	if (!f)
		return;
	b = f->binding;
	emu_plan_drop(f, f->n, f->n);
	free_all_tokens(f);
	emu_binding_mu_lock(&b->mu);
	gantry_list_remove(&f->link);
	emu_binding_mu_unlock(&b->mu);
	flow_free(f);
	emu_binding_put(b);
}

int emu_plan_has(struct emu_flow *f, uint32_t i)
{
	if (i < f->n)
		return 1;
	if (f->n + EMU_UNIT_PIECES > EMU_PLAN || load_acquire(&f->binding->unbound))
		return 0;
	append_unit(f);
	return 1;
}

/* Where the unit of piece i ends, and how many pages its pieces [i, end) need. */
static uint32_t unit_end(struct emu_flow *f, uint32_t i, uint32_t *pages)
{
	do {
		const struct emu_piece *p = emu_piece(f, i);

		*pages += p->kind == EMU_SPLIT && p->fresh;
	} while (++i < f->n && !emu_piece(f, i)->starts);
	return i;
}

/* Gives pieces [f->assigned, end) their places. */
static uint32_t assign_unit(struct emu_flow *f, uint32_t end, const uint32_t *pages)
{
	uint32_t *users = f->binding->users, used = 0, page = EMU_NO_PAGE;

	for (; f->assigned < end; f->assigned++) {
		struct emu_piece *p = emu_piece(f, f->assigned);

		if (p->kind != EMU_SPLIT)
			continue;
		if (p->fresh)
			page = pages[used++];
		users[page]++;
		p->page = page;
	}
	return used;
}

/* More pages behind the `have` that there are, EMU_FRAGS_MAX * 2 at most. */
static uint32_t take_pages(struct emu_flow *f, uint32_t least, uint64_t want, uint32_t *pages, uint32_t have)
{
	uint32_t room = EMU_FRAGS_MAX * 2 - have;

	return emu_pages_take(f, least, want < room ? (uint32_t)want : room, pages + have);
}

uint32_t emu_plan(struct emu_flow *f, uint64_t bytes, uint32_t frags)
{
	uint32_t pages[EMU_FRAGS_MAX * 2], have = 0, used = 0, n = 0;

	for (; bytes && n < frags && emu_plan_has(f, n) && emu_piece(f, n)->kind != EMU_PLAIN; n++) {
		const struct emu_piece *p = emu_piece(f, n);
		uint32_t left = p->len - p->done;

		if (n >= f->assigned) {
			uint32_t more = 0, end = unit_end(f, n, &more);

			/* As many as whole pages would need; the first unit starves if it gets none. */
			if (used + more > have) {
				uint64_t want = (bytes + f->binding->page_size - 1) / f->binding->page_size;

				want = want < frags - n ? want : frags - n;
				have += take_pages(f, have ? 0 : more, want > more ? want : more, pages, have);
			}
			if (used + more > have)
				break;
			used += assign_unit(f, end, pages + used);
		}
		bytes -= left < bytes ? left : bytes;
	}
	emu_pages_put(f, pages + used, have - used);
	return n;
}

/* One user of the page less. */
static uint32_t unuse(struct emu_flow *f, struct emu_piece *p, uint32_t *freed) REQUIRES(emu_flow_mu)
{
	uint32_t page = p->page;

	p->page = EMU_NO_PAGE;
	if (page == EMU_NO_PAGE || --f->binding->users[page])
		return 0;
	*freed = page;
	return 1;
}

void emu_plan_drop(struct emu_flow *f, uint32_t pieces, uint32_t begun)
{
	uint32_t freed[EMU_PLAN], n = 0, pages = 0, keep = begun > f->peeked ? begun : f->peeked;

	if (!keep && f->n && (!emu_piece(f, 0)->starts || emu_piece(f, 0)->done))
		keep = 1; /* an earlier call has begun this unit */
	emu_flow_mu_lock(&f->mu);
	for (uint32_t i = 0; i < pieces; i++)
		n += unuse(f, emu_piece(f, i), freed + n);
	if (keep && keep < f->assigned) /* its unit, to the end */
		keep = unit_end(f, keep - 1, &pages);
	for (uint32_t i = keep; i < f->assigned; i++)
		n += unuse(f, emu_piece(f, i), freed + n);
	emu_flow_mu_unlock(&f->mu);

	if (f->assigned > keep)
		f->assigned = keep;
	f->assigned -= pieces < f->assigned ? pieces : f->assigned;
	f->peeked -= pieces < f->peeked ? pieces : f->peeked;
	f->head = (f->head + pieces) & (EMU_PLAN - 1);
	f->n -= pieces;
	emu_pages_put(f, freed, n);
}
