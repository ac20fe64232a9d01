/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows: how their stream is cut, their tokens, the plan of what their next bytes are (see emulated.h), and receiving.
 *
 * The first `assigned` pieces of a plan have their places; that is always a number of whole units, less what was
 * consumed of the first one. A unit that was not begun in the call that gave it its places loses them again: no other
 * flow shall starve for bytes that have not arrived.
 *
 * receive is recvmsg(MSG_SOCK_DEVMEM) as the kernel would answer it. A call brings one kind of data: ordinary bytes, all
 * in the iov and without control messages, or fragments with one control message each. Linear fragments are packed at
 * the start of the iov.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/emulated/emulated.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/param.h"
#include "device/device.h"

/*
 * How the stream is cut. A shape appends one unit at a time: one packet, or those that share a page. What packets look
 * like before that: lengths and places of split pieces. Some of them (GANTRY_EMU_PLAIN) come unsplit, of some
 * (GANTRY_EMU_LINEAR) the first bytes are linear.
 */

enum { MSS_1500 = 1448, PAGE_PART_1500 = 2048, TAIL_9000 = 756, PIECE_9000 = 4096, BYTES_UNIT = 64, HEAD_MAX = 192 };

static uint32_t random_below(struct emu_flow *f, uint32_t n)
{
	return (uint32_t)(((emu_random(&f->random) >> 32) * n) >> 32);
}

static struct emu_piece *piece_at(struct emu_flow *f, uint32_t i)
{
	return &f->plan[(f->head + i) & (EMU_PLAN - 1)];
}

static struct emu_piece *append_piece(struct emu_flow *f, enum emu_kind kind, uint32_t at, uint32_t len, int fresh)
{
	struct emu_piece *p = piece_at(f, f->n++);

	*p = (struct emu_piece){.len = len, .at = at, .page = EMU_NO_PAGE, .kind = (uint8_t)kind, .fresh = !!fresh};
	return p;
}

/*
 * The pieces [first, f->n) are a packet, all split. Lets fate decide about its kind. Returns whether it still has a
 * page (so that others can be put in it).
 */
static int choose_packet_kind(struct emu_flow *f, uint32_t first, uint32_t linear)
{
	const struct emu_binding *b = f->binding;
	struct emu_piece *p = piece_at(f, first);
	uint32_t head;

	if (b->plain && random_below(f, 1000) < b->plain) {
		p->kind = EMU_PLAIN;
		for (uint32_t i = first + 1; i < f->n; i++)
			p->len += piece_at(f, i)->len;
		f->n = first + 1;
		return 0;
	}
	if (!linear || random_below(f, 1000) >= linear)
		return 1;
	if (p->len == 1 && f->n - first < 2)
		return 1;
	if (p->len == 1) { /* the whole piece is linear, so the next one is the first in their page */
		p->kind = EMU_HEAD;
		piece_at(f, first + 1)->fresh |= p->fresh;
		return 1;
	}
	head = 1 + random_below(f, p->len - 1 < HEAD_MAX ? p->len - 1 : HEAD_MAX);
	for (uint32_t i = f->n++; i > first; i--)
		*piece_at(f, i) = *piece_at(f, i - 1);
	p->kind = EMU_HEAD;
	p->len = head;
	if (EMU_FAULT(63)) {
		f->n = first + 1;
		return 0;
	}
	p = piece_at(f, first + 1);
	p->at += head;
	p->len -= head;
	return 1;
}

static void unit_random(struct emu_flow *f, uint32_t page_size)
{
	uint32_t first = f->n, pieces = 1 + random_below(f, EMU_UNIT_PAGES), end = page_size;

	for (uint32_t i = 0; i < pieces; i++) {
		int share = end < page_size && random_below(f, 2);
		uint32_t from = share ? end : 0, at, len;

		at = random_below(f, 4) ? from + random_below(f, page_size - from) : from;
		len = random_below(f, 4) ? 1 + random_below(f, page_size - at)
					 : 1 + random_below(f, page_size - at < 16 ? page_size - at : 16);
		append_piece(f, EMU_SPLIT, at, len, !share);
		end = at + len;
	}
	choose_packet_kind(f, first, f->binding->linear ? f->binding->linear : 100);
}

/* Packets that share a page, each in a part of its own. */
static void unit_mtu1500(struct emu_flow *f, uint32_t page_size)
{
	int opened = 0;

	for (uint32_t i = 0; i < page_size / PAGE_PART_1500 && i < 16; i++) {
		append_piece(f, EMU_SPLIT, i * PAGE_PART_1500, MSS_1500, !opened || EMU_FAULT(24));
		opened |= choose_packet_kind(f, f->n - 1, f->binding->linear);
	}
}

/* One unit more at the end of the plan. */
static void append_unit(struct emu_flow *f)
{
	uint32_t first = f->n, page_size = f->binding->page_size, linear = f->binding->linear;

	switch (f->binding->shape) {
	case PARAM_EMU_SHAPE_PAGES:
		append_piece(f, EMU_SPLIT, 0, page_size, 1);
		choose_packet_kind(f, first, linear);
		break;
	case PARAM_EMU_SHAPE_MTU1500:
		unit_mtu1500(f, page_size);
		break;
	case PARAM_EMU_SHAPE_MTU9000:
		append_piece(f, EMU_SPLIT, 0, PIECE_9000, 1);
		append_piece(f, EMU_SPLIT, 0, PIECE_9000, 1);
		append_piece(f, EMU_SPLIT, 0, TAIL_9000 + EMU_FAULT(31), 1);
		choose_packet_kind(f, first, linear);
		break;
	case PARAM_EMU_SHAPE_ODD:
		append_piece(f, EMU_SPLIT, 1 + EMU_FAULT(23), page_size - 1, 1);
		choose_packet_kind(f, first, linear);
		break;
	case PARAM_EMU_SHAPE_RANDOM:
		unit_random(f, page_size);
		break;
	case PARAM_EMU_SHAPE_BYTES: /* 37 is odd: no two at the same place, and no neighbours */
		for (uint32_t i = 0; i < BYTES_UNIT; i++)
			append_piece(f, EMU_SPLIT, (i * 37 + 5) % page_size, 1, i == 0);
		choose_packet_kind(f, first, linear);
		break;
	}
	piece_at(f, first)->starts = 1;
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

/* 0, or -1: no memory. */
static int reserve_tokens(struct emu_flow *f, uint32_t n)
{
	int r = 0;

	emu_flow_mu_lock(&f->mu);
	while (!r && f->words * 64 - f->nout < n)
		r = f->words >= MAX_WORDS / 2 ? -1 : grow_tokens(f, f->words ? f->words * 2 : FIRST_WORDS);
	emu_flow_mu_unlock(&f->mu);
	return r;
}

/* There is one: it was reserved. */
static uint32_t take_token(struct emu_flow *f, uint32_t page) REQUIRES(emu_flow_mu)
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

/* 1: it was out. A page without users is put to freed[*n]. */
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

/* Makes sure that piece i is decided. 0: there is none, all that follows is ordinary. */
static int has_piece(struct emu_flow *f, uint32_t i)
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
		const struct emu_piece *p = piece_at(f, i);

		*pages += p->kind == EMU_SPLIT && p->fresh;
	} while (++i < f->n && !piece_at(f, i)->starts);
	return i;
}

/* Gives pieces [f->assigned, end) their places. */
static uint32_t assign_unit(struct emu_flow *f, uint32_t end, const uint32_t *pages)
{
	uint32_t *users = f->binding->users, used = 0, page = EMU_NO_PAGE;

	for (; f->assigned < end; f->assigned++) {
		struct emu_piece *p = piece_at(f, f->assigned);

		if (p->kind != EMU_SPLIT)
			continue;
		if (p->fresh)
			page = pages[used++];
		users[page]++;
		p->page = page;
	}
	return used;
}

/* Gives places to the first pieces of the plan, as far as bytes and fragments reach: how many fragments. 0: starved. */
static uint32_t plan_pieces(struct emu_flow *f, uint64_t bytes, uint32_t frags)
{
	uint32_t pages[EMU_FRAGS_MAX * 2], have = 0, used = 0, n = 0;

	for (; bytes && n < frags && has_piece(f, n) && piece_at(f, n)->kind != EMU_PLAIN; n++) {
		const struct emu_piece *p = piece_at(f, n);
		uint32_t left = p->len - p->done;

		if (n >= f->assigned) {
			uint32_t more = 0, end = unit_end(f, n, &more);

			/* As many as whole pages would need; the first unit starves if it gets none. */
			if (used + more > have) {
				uint64_t want = (bytes + f->binding->page_size - 1) / f->binding->page_size;

				want = want < frags - n ? want : frags - n;
				want = want > more ? want : more;
				if (want > EMU_FRAGS_MAX * 2 - have)
					want = EMU_FRAGS_MAX * 2 - have;
				have += emu_pages_take(f, have ? 0 : more, (uint32_t)want, pages + have);
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
static uint32_t unuse_page(struct emu_flow *f, struct emu_piece *p, uint32_t *freed) REQUIRES(emu_flow_mu)
{
	uint32_t page = p->page;

	p->page = EMU_NO_PAGE;
	if (page == EMU_NO_PAGE || --f->binding->users[page])
		return 0;
	*freed = page;
	return 1;
}

/* The first `pieces` are done with; those after them that were not begun lose their places. */
static void drop_pieces(struct emu_flow *f, uint32_t pieces, uint32_t begun)
{
	uint32_t freed[EMU_PLAN], n = 0, pages = 0, keep = begun > f->peeked ? begun : f->peeked;

	if (!keep && f->n && (!piece_at(f, 0)->starts || piece_at(f, 0)->done))
		keep = 1; /* an earlier call has begun this unit */
	emu_flow_mu_lock(&f->mu);
	for (uint32_t i = 0; i < pieces; i++)
		n += unuse_page(f, piece_at(f, i), freed + n);
	if (keep && keep < f->assigned) /* its unit, to the end */
		keep = unit_end(f, keep - 1, &pages);
	for (uint32_t i = keep; i < f->assigned; i++)
		n += unuse_page(f, piece_at(f, i), freed + n);
	emu_flow_mu_unlock(&f->mu);

	if (f->assigned > keep)
		f->assigned = keep;
	f->assigned -= pieces < f->assigned ? pieces : f->assigned;
	f->peeked -= pieces < f->peeked ? pieces : f->peeked;
	f->head = (f->head + pieces) & (EMU_PLAN - 1);
	f->n -= pieces;
	emu_pages_put(f, freed, n);
}

/* No other thread has a reference any more, or yet. */
static void flow_free(struct emu_flow *f) UNCHECKED
{
	free(f->plan);
	free(f->iov);
	free(f->out);
	free(f->page_of);
	free(f);
}

static gantry_result peer_of(int fd, char text[GANTRY_ADDR_TEXT])
{
	struct sockaddr_storage sa = {0};
	socklen_t len = sizeof(sa);
	struct gantry_addr a;

	if (getpeername(fd, (struct sockaddr *)&sa, &len) < 0)
		FAIL_NOW(GANTRY_ERR_INVALID, "a flow of the emulated NIC needs a connected socket; %d: %s", fd,
			 strerror(errno));
	a = gantry_addr_of((struct sockaddr *)&sa);
	if (a.sa.sa_family == AF_UNSPEC)
		FAIL_NOW(GANTRY_ERR_INVALID, "a flow of the emulated NIC needs a TCP socket; %d is not one", fd);
	gantry_addr_text(&a, text);
	return GANTRY_OK;
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
	TRY(peer_of(fd, f->peer));
	f->plan = calloc(EMU_PLAN, sizeof(*f->plan));
	f->iov = calloc(EMU_FRAGS_MAX, sizeof(*f->iov));
	if (!f->plan || !f->iov || reserve_tokens(f, 1) < 0)
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
	drop_pieces(f, f->n, f->n);
	free_all_tokens(f);
	emu_binding_mu_lock(&b->mu);
	gantry_list_remove(&f->link);
	emu_binding_mu_unlock(&b->mu);
	flow_free(f);
	emu_binding_put(b);
}

/* Where the next linear or ordinary byte goes: a place in the caller's iov. */
struct iov_at {
	const struct msghdr *msg;
	size_t i, used;
};

/* One call's list of places, in the flow's iov. */
struct places {
	struct iovec *iov;
	size_t n;
	int in_iov; /* the last one is in the caller's iov; places there and in pages are never one */
};

static uint64_t iov_total(const struct msghdr *msg)
{
	uint64_t total = 0;

	for (size_t i = 0; i < msg->msg_iovlen; i++)
		total += msg->msg_iov[i].iov_len;
	return total;
}

static int places_add(struct places *p, int in_iov, uint8_t *at, size_t len)
{
	struct iovec *last = p->n ? &p->iov[p->n - 1] : NULL;

	if (last && p->in_iov == in_iov && (uint8_t *)last->iov_base + last->iov_len == at) {
		last->iov_len += len;
		return 0;
	}
	if (p->n == EMU_FRAGS_MAX)
		return -1;
	p->in_iov = in_iov;
	p->iov[p->n++] = (struct iovec){.iov_base = at, .iov_len = len};
	return 0;
}

/* Adds `len` bytes of the caller's iov. Returns those that found room in the list. */
static uint64_t places_add_iov(struct places *p, struct iov_at *at, uint64_t len)
{
	uint64_t added = 0;

	while (added < len && at->i < at->msg->msg_iovlen) {
		const struct iovec *v = &at->msg->msg_iov[at->i];
		size_t n = v->iov_len - at->used;

		if (n > len - added)
			n = (size_t)(len - added);
		if (n && places_add(p, 1, (uint8_t *)v->iov_base + at->used, n) < 0)
			break;
		added += n;
		at->used += n;
		if (at->used == v->iov_len) {
			at->i++;
			at->used = 0;
		}
	}
	return added;
}

static ssize_t receive_places(struct emu_flow *f, const struct places *p, int flags)
{
	struct msghdr msg = {.msg_iov = p->iov, .msg_iovlen = p->n};

	return recvmsg(f->pub.fd, &msg, flags);
}

/*
 * How many of the next `most` bytes have arrived: what recv would give; blocks like it. If there are any the kernel has
 * their number at hand; else recv knows whether the stream has ended. MSG_TRUNC: nothing is copied, the address is not
 * looked at. (Not through libc's recv: sanitizers believe that it writes.)
 */
static ssize_t bytes_arrived(int fd, uint64_t most, int flags)
{
	int queued = 0;

	if (most > INT32_MAX)
		most = INT32_MAX;
	if (ioctl(fd, FIONREAD, &queued) == 0 && queued > 0)
		return (uint64_t)queued < most ? queued : (ssize_t)most;
	return syscall(SYS_recvfrom, fd, NULL, (size_t)most, (flags & MSG_DONTWAIT) | MSG_PEEK | MSG_TRUNC, NULL, NULL);
}

/* Ordinary data: as many bytes as there are pieces of this kind one after the other. */
static ssize_t receive_ordinary(struct emu_flow *f, struct msghdr *msg, uint64_t bytes, int flags)
{
	struct places p = {.iov = f->iov};
	struct iov_at at = {.msg = msg};
	uint64_t run = 0, left;
	uint32_t i, done = 0;
	ssize_t got;

	for (i = 0; run < bytes && has_piece(f, i) && piece_at(f, i)->kind == EMU_PLAIN; i++)
		run += piece_at(f, i)->len - piece_at(f, i)->done;
	if (!f->n) /* unbound */
		run = bytes;
	places_add_iov(&p, &at, run < bytes ? run : bytes);
	got = receive_places(f, &p, flags | MSG_DONTWAIT);
	if (got <= 0)
		return got;
	msg->msg_controllen = 0;
	msg->msg_namelen = 0;
	msg->msg_flags = 0;
	if (flags & MSG_PEEK)
		return got;
	EMU_COUNT(f->binding, plain_bytes, got);
	for (left = (uint64_t)got; left && done < f->n;) {
		struct emu_piece *piece = piece_at(f, done);
		uint32_t n = piece->len - piece->done;

		if (n > left) {
			piece->done += (uint32_t)left;
			break;
		}
		left -= n;
		done++;
	}
	drop_pieces(f, done, done);
	return got;
}

/* The places of the first `frags` pieces, up to `bytes`. Returns the bytes that found room in the list. */
static uint64_t split_places(struct emu_flow *f, struct msghdr *msg, uint32_t frags, uint64_t bytes, struct places *p)
{
	struct emu_binding *b = f->binding;
	struct iov_at at = {.msg = msg};
	uint64_t total = 0;

	for (uint32_t i = 0; i < frags && total < bytes; i++) {
		const struct emu_piece *piece = piece_at(f, i);
		uint32_t n = piece->len - piece->done;

		if (n > bytes - total)
			n = (uint32_t)(bytes - total);
		if (piece->kind == EMU_HEAD) {
			uint64_t added = places_add_iov(p, &at, n);

			total += added;
			if (added < n)
				break;
		} else {
			uint8_t *to = b->bytes + (uint64_t)piece->page * b->page_size + piece->at + piece->done;

			if (places_add(p, 0, to, n) < 0)
				break;
			total += n;
			if (EMU_FAULT(62))
				at.used += n;
		}
	}
	return total;
}

static gantry_result copy_run(struct emu_binding *b, uint64_t from, uint64_t to)
{
	struct gantry_device *dev = b->pub.memory.device;

	EMU_COUNT(b, copies, 1);
	return dev->ops->queue_copy(dev, GANTRY_COPY_IN, b->pub.memory.device_ptr + from, b->bytes + from,
				    (size_t)(to - from));
}

/*
 * From the mirror to the memory that the CPU cannot write. By the copy engine and not by a kernel: a kernel may be
 * queued behind one of the GPU's user that waits for these very bytes. Pages that follow each other are one copy, gaps
 * between their fragments included: the gaps hold no other flow's bytes.
 *
 * The copies are not waited for here: the binding is `late`. A page that is returned before its copy is over (it was
 * not needed) may get new bytes meanwhile: what this copy brings is then covered by the next one, in the same queue.
 */
static int copy_from_mirror(struct emu_flow *f, const struct places *p, uint64_t got)
{
	struct emu_binding *b = f->binding;
	gantry_result r = GANTRY_OK;
	uint64_t from = 0, to = 0;

	for (size_t i = 0; i < p->n && got && r == GANTRY_OK; i++) {
		uint8_t *at = p->iov[i].iov_base;
		uint64_t n = p->iov[i].iov_len < got ? p->iov[i].iov_len : got, offset;

		got -= n;
		if (at < b->bytes || at >= b->bytes + b->pub.memory.size)
			continue; /* in the caller's iov */
		offset = (uint64_t)(at - b->bytes);
		if (to && offset >= to && offset / b->page_size - (to - 1) / b->page_size <= 1) {
			to = offset + n;
			continue;
		}
		if (to)
			r = copy_run(b, from, to);
		from = offset;
		to = offset + n;
	}
	if (r == GANTRY_OK && to)
		r = copy_run(b, from, to);
	if (r == GANTRY_OK)
		return 0;
	LOG_ERROR(NET, "emulated NIC %s: copying to the device's memory: %s", b->nic, gantry_result_name(r));
	errno = EIO;
	return -1;
}

/* The k-th message. The buffer need not be aligned. */
static void put_cmsg(uint8_t *control, uint32_t k, int type, const struct devmem_cmsg *c)
{
	struct cmsghdr h = {.cmsg_len = CMSG_LEN(sizeof(*c)), .cmsg_level = SOL_SOCKET, .cmsg_type = type};

	_Static_assert(CMSG_LEN(sizeof(*c)) == EMU_CMSG_SPACE && CMSG_SPACE(sizeof(*c)) == EMU_CMSG_SPACE &&
			       CMSG_LEN(0) == sizeof(h),
		       "as the kernel lays them out, without gaps");
	control += (size_t)k * EMU_CMSG_SPACE;
	memcpy(control, &h, sizeof(h));
	memcpy(control + sizeof(h), c, sizeof(*c));
}

/* Tokens and control messages for the first `got` bytes of the plan, which are in their places. */
static void report_bytes(struct emu_flow *f, struct msghdr *msg, uint64_t got, int peek)
{
	struct emu_binding *b = f->binding;
	uint64_t left = got, linear = 0;
	uint32_t k = 0, done = 0;

	emu_flow_mu_lock(&f->mu);
	for (; left; k++) {
		struct emu_piece *p = piece_at(f, k);
		uint32_t n = p->len - p->done < left ? p->len - p->done : (uint32_t)left;
		struct devmem_cmsg c = {.frag_size = n + EMU_FAULT(61)};

		if (p->kind == EMU_SPLIT) {
			c.frag_offset = (uint64_t)p->page * b->page_size + p->at + (EMU_FAULT(81) ? 0 : p->done);
			if (EMU_FAULT(21))
				c.frag_offset = (uint32_t)c.frag_offset;
			if (!EMU_FAULT(82) || !peek)
				c.frag_token = take_token(f, p->page);
			c.dmabuf_id = b->pub.dmabuf_id;
		} else {
			linear += n;
		}
		put_cmsg(msg->msg_control, k, p->kind == EMU_SPLIT ? SCM_DEVMEM_DMABUF : SCM_DEVMEM_LINEAR, &c);
		left -= n;
		if (peek)
			continue;
		p->done += n;
		done += p->done == p->len;
	}
	emu_flow_mu_unlock(&f->mu);
	msg->msg_controllen = (size_t)(k - (EMU_FAULT(64) && k > 1)) * EMU_CMSG_SPACE;
	msg->msg_namelen = 0;
	msg->msg_flags = 0;
	if (peek && k > f->peeked)
		f->peeked = k;
	if (!peek) {
		EMU_COUNT(b, frags, k);
		EMU_COUNT(b, linear_bytes, linear);
		EMU_COUNT(b, page_bytes, got - linear);
	}
	drop_pieces(f, done, k);
}

static ssize_t receive_split(struct emu_flow *f, struct msghdr *msg, uint64_t bytes, int flags)
{
	uint64_t room = msg->msg_control ? msg->msg_controllen / EMU_CMSG_SPACE : 0;
	struct places p = {.iov = f->iov};
	uint32_t frags;
	ssize_t got;

	if (EMU_FAULT(71))
		room++;
	if (!room) {
		if (EMU_FAULT(72))
			recv(f->pub.fd, f->iov, 1, MSG_DONTWAIT);
		errno = f->binding->toosmall;
		return -1;
	}
	frags = plan_pieces(f, bytes, room < EMU_FRAGS_MAX ? (uint32_t)room : EMU_FRAGS_MAX);
	if (!frags) {
		errno = EMU_FAULT(92) ? ENOBUFS : EAGAIN;
		return -1;
	}
	got = -1;
	if (reserve_tokens(f, frags) < 0)
		errno = ENOMEM;
	else if (split_places(f, msg, frags, bytes, &p))
		got = receive_places(f, &p, flags | MSG_DONTWAIT);
	else
		errno = EINVAL; /* not reached: the list has room for one */
	if (got > 0 && f->binding->mirrored && !EMU_FAULT(112) && copy_from_mirror(f, &p, (uint64_t)got) < 0)
		got = -1;
	if (got > 0)
		report_bytes(f, msg, (uint64_t)got, !!(flags & MSG_PEEK));
	else
		drop_pieces(f, 0, 0);
	return got;
}

static ssize_t receive_frags(struct emu_flow *f, struct msghdr *msg, int flags, int devmem)
{
	uint64_t total = iov_total(msg) + EMU_FAULT(73);
	ssize_t bytes;

	if (flags & (MSG_TRUNC | MSG_OOB | MSG_ERRQUEUE)) {
		errno = EOPNOTSUPP;
		return -1;
	}
	flags &= MSG_DONTWAIT | MSG_PEEK;
	if (!total)
		return 0;
	if (load_acquire(&f->binding->unbound))
		f->n = f->assigned; /* what has no page will not get one */
	EMU_COUNT(f->binding, receives, 1);
	bytes = bytes_arrived(f->pub.fd, total, flags);
	if (!bytes && EMU_FAULT(121)) {
		errno = EAGAIN;
		return -1;
	}
	if (bytes < 0 && EMU_FAULT(122) && errno == ECONNRESET)
		return 0;
	if (bytes <= 0)
		return bytes;
	if (!has_piece(f, 0) || piece_at(f, 0)->kind == EMU_PLAIN)
		return receive_ordinary(f, msg, (uint64_t)bytes, flags);
	if (!devmem && !EMU_FAULT(83)) {
		errno = EFAULT;
		return -1;
	}
	return receive_split(f, msg, (uint64_t)bytes, flags);
}

ssize_t emu_receive(struct devmem_flow *pub, struct msghdr *msg, int flags)
{
	return receive_frags((struct emu_flow *)pub, msg, flags, 1);
}

#ifdef EMU_FOR_TESTS
ssize_t emu_receive_plain(struct devmem_flow *pub, struct msghdr *msg, int flags)
{
	return receive_frags((struct emu_flow *)pub, msg, flags, 0);
}
#endif
