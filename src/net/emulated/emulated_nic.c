/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bindings of the emulated NIC. See emulated.h for how the parts fit together.
 *
 * A binding is counted: one reference of its own, which unbind drops, and one of each flow. So unbind with flows
 * attached is the kernel's "netlink socket closed": pages that are out stay valid, tokens can be given back, and what
 * arrives later is ordinary data. Its memory is the caller's; it must stay until the last flow is detached.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/emulated/emulated.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/param.h"
#include "device/device.h"

/*
 * Pages of a binding, and starving.
 *
 * Free pages are a stack: what was given back is used again at once, while it is in the caches, and an early return
 * shows soon as wrong bytes. The order is shuffled at bind. Where bytes are copied on to device memory, each copy costs
 * a call of the driver, so pages that follow each other have to be found together, in whatever order they came back:
 * then groups of pages are shuffled, and the free ones of a group are bits of a word. A flow goes through a group from
 * its first page to its last and then takes another group, although pages behind it come back meanwhile: those are few
 * and lie apart, and when the next flow comes to the group most of it is free again. A group is looked at again after
 * all others, so what is free is always found.
 *
 * When a flow has bytes waiting and there is no page for them, the binding starves. A real NIC drops packets then and
 * TCP waits for its retransmission timeout: so no flow gets a page before GANTRY_EMU_RTO has passed since, although
 * pages may be back earlier. One log line names the flows that hold the pages, another reports the end of the
 * starvation.
 */

#ifdef EMU_FOR_TESTS
int emu_fault;
static int poison; /* relaxed */

void emu_set_poison(int on)
{
	store_relaxed(&poison, on);
}
#define POISON_ON() load_relaxed(&poison)
#else
#define POISON_ON() 0
#endif

/* Weyl sequence and a finalizer: any state is a good one. */
uint64_t emu_random(uint64_t *state)
{
	uint64_t z = *state += 0x9E3779B97F4A7C15u;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

/* "flow 2 (10.0.0.1:4000) holds 60 of 64 pages, flow 1 (...) 4": the one that has most comes first. */
static void describe_holders(struct emu_binding *b, char *text, size_t len) REQUIRES(emu_binding_mu)
{
	struct emu_flow *most = NULL;
	uint32_t held = 0;
	size_t n;

	gantry_list_each_entry (f, &b->flows, struct emu_flow, link) {
		uint32_t h = load_relaxed(&f->held);

		if (!most || h > held) {
			most = f;
			held = h;
		}
	}
	if (!most) {
		snprintf(text, len, "no flow");
		return;
	}
	n = (size_t)snprintf(text, len, "flow %u (%s) holds %u of %u pages", most->number, most->peer, held, b->npages);
	gantry_list_each_entry (f, &b->flows, struct emu_flow, link)
		if (f != most && n < len)
			n += (size_t)snprintf(text + n, len - n, ", flow %u (%s) %u", f->number, f->peer,
					      load_relaxed(&f->held));
}

/* Writes the line to be logged, if any, to `text`. */
static void mark_starved(struct emu_binding *b, char *text, size_t len) REQUIRES(emu_binding_mu)
{
	uint32_t left_out = 0;

	if (b->starved)
		return;
	b->starved = 1;
	b->starved_ns = gantry_now_ns();
	b->resume_ns = b->starved_ns + (EMU_FAULT(91) ? 0 : b->rto_ns);
	EMU_COUNT(b, starved, 1);
	b->said = gantry_ratelimit_pass(&b->warned, &left_out);
	if (b->said)
		describe_holders(b, text, len);
}

/* Was a free page written to? */
static void check_poison(struct emu_binding *b, uint32_t page)
{
	const uint8_t *p = b->bytes + (uint64_t)page * b->page_size;
	uint32_t i;

	if (!b->poisoned[page])
		return;
	b->poisoned[page] = 0;
	for (i = 0; i < b->page_size && p[i] == EMU_POISON; i++)
		;
	if (i == b->page_size || EMU_FAULT(111))
		return;
	EMU_COUNT(b, written_after, 1);
	LOG_ERROR(NET, "emulated NIC %s: dmabuf %u, byte %u of page %u was written after the page was given back",
		  b->nic, b->pub.dmabuf_id, i, page);
}

/* Not mirrored, each page is one. */
static uint32_t groups_of(const struct emu_binding *b)
{
	return b->mirrored ? (b->npages + EMU_GROUP - 1) / EMU_GROUP : b->npages;
}

/* No other thread has a reference to the binding yet. All pages are free, in an order determined by the seed. */
static gantry_result init_pages(struct emu_binding *b) UNCHECKED
{
	uint64_t state = b->seed + 1;
	uint32_t groups = groups_of(b);

	b->free = calloc(groups, sizeof(*b->free));
	b->bits = b->mirrored ? calloc(groups, sizeof(*b->bits)) : NULL;
	b->users = calloc(b->npages, sizeof(*b->users));
	b->poisoned = calloc(b->npages, sizeof(*b->poisoned));
	if (!b->free || (b->mirrored && !b->bits) || !b->users || !b->poisoned)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %u pages of the emulated NIC", b->npages);
	for (uint32_t i = 0; i < groups; i++) {
		uint32_t j = EMU_FAULT(22) ? i : (uint32_t)(emu_random(&state) % (i + 1));

		b->free[i] = b->free[j];
		b->free[j] = i;
	}
	for (uint32_t page = 0; b->mirrored && page < b->npages; page++)
		b->bits[page / EMU_GROUP] |= 1ull << page % EMU_GROUP;
	b->nfree = b->npages;
	if (EMU_FAULT(11))
		b->nfree--;
	return GANTRY_OK;
}

void emu_pages_group(struct emu_flow *f)
{
	struct emu_binding *b = f->binding;

	if (!b->mirrored)
		return;
	f->group = b->free[b->at];
	f->passed = 0;
	b->at = (b->at + 1) % groups_of(b);
}

/* There are n free bits: the loop finds them all while it comes once to each group. */
static void take_mirrored(struct emu_flow *f, uint32_t *ret_pages, uint32_t n) REQUIRES(emu_binding_mu)
{
	struct emu_binding *b = f->binding;

	for (uint32_t i = 0; i < n;) {
		uint64_t left = f->passed < EMU_GROUP ? b->bits[f->group] & UINT64_MAX << f->passed : 0;

		if (!left) {
			emu_pages_group(f);
			continue;
		}
		f->passed = (uint32_t)__builtin_ctzll(left) + 1;
		b->bits[f->group] &= ~(left & -left);
		ret_pages[i++] = f->group * EMU_GROUP + f->passed - 1;
	}
}

/* There are n. */
static void take_free(struct emu_flow *f, uint32_t *ret_pages, uint32_t n) REQUIRES(emu_binding_mu)
{
	struct emu_binding *b = f->binding;

	if (b->mirrored)
		take_mirrored(f, ret_pages, n);
	else
		for (uint32_t i = 0; i < n; i++)
			ret_pages[i] = b->free[b->nfree - 1 - i];
	b->nfree -= n;
}

uint32_t emu_pages_take(struct emu_flow *f, uint32_t least, uint32_t want, uint32_t *ret_pages)
{
	struct emu_binding *b = f->binding;
	char starving[512] = "";
	uint64_t starved_ns = 0;
	uint32_t n = 0;

	emu_binding_mu_lock(&b->mu);
	if (b->nfree < least) {
		mark_starved(b, starving, sizeof(starving));
	} else if (!b->starved || gantry_now_ns() >= b->resume_ns || (EMU_FAULT(93) && f->number == 1)) {
		starved_ns = b->starved && b->said ? b->starved_ns : 0;
		b->starved = 0;
		n = want < b->nfree ? want : b->nfree;
		take_free(f, ret_pages, n);
	}
	emu_binding_mu_unlock(&b->mu);

	if (*starving)
		LOG_WARN(NET, "emulated NIC %s: dmabuf %u starved: %s", b->nic, b->pub.dmabuf_id, starving);
	if (starved_ns)
		LOG_INFO(NET, "emulated NIC %s: dmabuf %u has pages again, after %.1f ms", b->nic, b->pub.dmabuf_id,
			 (double)(gantry_now_ns() - starved_ns) * 1e-6);
	for (uint32_t i = 0; i < n; i++)
		check_poison(b, ret_pages[i]);
	if (n)
		fetch_add_relaxed(&f->held, n);
	return n;
}

/* How many were not free before: as many as there are bits, whatever is given back. */
static uint32_t put_mirrored(struct emu_binding *b, const uint32_t *pages, uint32_t n) REQUIRES(emu_binding_mu)
{
	uint32_t more = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t *bits = &b->bits[pages[i] / EMU_GROUP], bit = 1ull << pages[i] % EMU_GROUP;

		more += !(*bits & bit);
		*bits |= bit;
	}
	return more;
}

void emu_pages_put(struct emu_flow *f, const uint32_t *pages, uint32_t n)
{
	struct emu_binding *b = f->binding;

	if (!n)
		return;
	if (POISON_ON() && !EMU_FAULT(113))
		for (uint32_t i = 0; i < n; i++) {
			memset(b->bytes + (uint64_t)pages[i] * b->page_size, EMU_POISON, b->page_size);
			b->poisoned[pages[i]] = 1;
		}
	fetch_sub_relaxed(&f->held, n);
	emu_binding_mu_lock(&b->mu);
	if (b->mirrored)
		n = put_mirrored(b, pages, n);
	else
		memcpy(b->free + b->nfree, pages, n * sizeof(*pages));
	b->nfree += n;
	emu_binding_mu_unlock(&b->mu);
}

/* Ids that are in use; few. An id is not used again before all others were, as in the kernel. */
MUTEX_KIND(emu_id_mu);
static struct emu_id_mu id_mu;
static struct gantry_list ids GUARDED_BY(emu_id_mu) = {&ids, &ids};
static uint32_t next_id GUARDED_BY(emu_id_mu) = 1;

static int id_in_use(uint32_t id) REQUIRES(emu_id_mu)
{
	gantry_list_each_entry (e, &ids, struct emu_id, link)
		if (e->id == id)
			return 1;
	return 0;
}

uint32_t emu_id_take(struct emu_id *own)
{
	emu_id_mu_lock(&id_mu);
	while (!EMU_FAULT(12) && (!next_id || id_in_use(next_id)))
		next_id++;
	own->id = next_id++;
	gantry_list_append(&ids, &own->link);
	emu_id_mu_unlock(&id_mu);
	return own->id;
}

void emu_id_release(struct emu_id *own)
{
	emu_id_mu_lock(&id_mu);
	gantry_list_remove(&own->link);
	emu_id_mu_unlock(&id_mu);
}

/* No other thread has a reference any more, or yet. */
static void binding_free(struct emu_binding *b) UNCHECKED
{
	struct gantry_device *dev = b->pub.memory.device;

	if (b->mirrored && b->bytes) {
		devmem_settle(&b->pub); /* copies read it */
		dev->ops->free_mapped(dev, b->bytes);
	}
	if (b->own.id)
		emu_id_release(&b->own);
	free(b->users);
	free(b->poisoned);
	free(b->free);
	free(b->bits);
	free(b);
}

void emu_binding_put(struct emu_binding *b)
{
	int last;

	emu_binding_mu_lock(&b->mu);
	last = !--b->refs;
	emu_binding_mu_unlock(&b->mu);
	if (last)
		binding_free(b);
}

#ifdef EMU_FOR_TESTS
void emu_next_id(uint32_t id)
{
	emu_id_mu_lock(&id_mu);
	next_id = id;
	emu_id_mu_unlock(&id_mu);
}
#endif

static void binding_params(struct emu_binding *b)
{
	const struct gantry_params *p = gantry_params();

	b->shape = p->emu_shape;
	b->seed = (uint64_t)p->emu_seed;
	b->rto_ns = p->emu_rto;
	b->linear = (uint32_t)p->emu_linear;
	b->plain = (uint32_t)p->emu_plain;
	b->toosmall = p->emu_old_errno ? EFAULT : DEVMEM_ETOOSMALL;
}

/* Pages that a packet may need. */
static uint32_t shape_pages(int shape)
{
	return shape == PARAM_EMU_SHAPE_MTU9000 ? 3 : shape == PARAM_EMU_SHAPE_RANDOM ? EMU_UNIT_PAGES : 1;
}

static gantry_result binding_check(const struct emu_binding *b, const struct devmem_memory *m)
{
	if ((!m->host && (!m->device_ptr || !m->device)) || !m->size || m->size % b->page_size)
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "emulated NIC %s: %llu bytes is not a whole number of %u-byte pages, or there is no memory",
			 b->nic, (unsigned long long)m->size, b->page_size);
	if (m->size / b->page_size >= EMU_NO_PAGE)
		FAIL_NOW(GANTRY_ERR_INVALID, "emulated NIC %s: %llu bytes is too many pages", b->nic,
			 (unsigned long long)m->size);
	if (m->size / b->page_size < shape_pages(b->shape))
		FAIL_NOW(GANTRY_ERR_CONFIG,
			 "emulated NIC %s: %llu bytes is less than one packet of GANTRY_EMU_SHAPE needs", b->nic,
			 (unsigned long long)m->size);
	return GANTRY_OK;
}

static gantry_result emu_bind(const struct devmem_memory *memory, const char *nic,
			      struct devmem_binding **ret_binding) UNCHECKED
{
	gantry_result r = GANTRY_OK;
	struct emu_binding *b = calloc(1, sizeof(*b));

	if (!b)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding of the emulated NIC");
	gantry_list_init(&b->flows);
	b->refs = 1;
	b->pub.ops = &emulated_ops;
	b->pub.memory = *memory;
	snprintf(b->nic, sizeof(b->nic), "%s", nic ? nic : "?");
	b->page_size = (uint32_t)devmem_page(memory);
	binding_params(b);
	TRY(binding_check(b, memory));
	b->npages = (uint32_t)(memory->size / b->page_size);
	b->mirrored = b->pub.late = !memory->host;
	TRY(init_pages(b));
	b->bytes = memory->host;
	if (!b->bytes) {
		void *device = NULL, *host = NULL;

		TRY(memory->device->ops->alloc_mapped(memory->device, memory->size, &host, &device));
		b->bytes = host;
	}
	b->pub.dmabuf_id = emu_id_take(&b->own);
	LOG_INFO(NET, "emulated NIC %s: dmabuf %u, %u pages of %u bytes%s", b->nic, b->pub.dmabuf_id, b->npages,
		 b->page_size, b->mirrored ? ", through pinned memory" : "");
	*ret_binding = &b->pub;
	b = NULL; /* ownership moved */
out:
	if (b)
		binding_free(b);
	return r;
}

static void emu_unbind(struct devmem_binding *pub)
{
	struct emu_binding *b = (struct emu_binding *)pub;

	if (!b)
		return;
	if (!EMU_FAULT(102))
		store_release(&b->unbound, 1);
	emu_binding_put(b);
}

static void emu_describe(const struct devmem_binding *pub, char *text, size_t len)
{
	static const char *const shapes[] = {"pages", "mtu1500", "mtu9000", "odd", "random", "bytes"};
	struct emu_binding *b = gantry_container(pub, struct emu_binding, pub);
	uint32_t nfree, nflows = 0;
	int starved;

	emu_binding_mu_lock(&b->mu);
	nfree = b->nfree;
	starved = b->starved;
	gantry_list_each (e, &b->flows)
		nflows++;
	emu_binding_mu_unlock(&b->mu);
	snprintf(text, len,
		 "emulated NIC %s: dmabuf %u, shape %s, %u of %u pages of %u bytes free, %u flows%s; %" PRIu64
		 " receives, %" PRIu64 " fragments, %" PRIu64 " bytes in pages (%" PRIu64 " copies), %" PRIu64
		 " linear, %" PRIu64 " plain, %" PRIu64 " tokens returned, %" PRIu64 " bad returns, starved %" PRIu64
		 " times, %" PRIu64 " pages written after return",
		 b->nic, b->pub.dmabuf_id, shapes[b->shape], nfree, b->npages, b->page_size, nflows,
		 starved ? ", starved" : "", EMU_COUNTED(b, receives), EMU_COUNTED(b, frags),
		 EMU_COUNTED(b, page_bytes), EMU_COUNTED(b, copies), EMU_COUNTED(b, linear_bytes),
		 EMU_COUNTED(b, plain_bytes), EMU_COUNTED(b, returned), EMU_COUNTED(b, bad_returns),
		 EMU_COUNTED(b, starved), EMU_COUNTED(b, written_after));
}

const struct devmem_source_ops emulated_ops = {
	.kind = GANTRY_NET_UNPACK_EMULATED,
	.name = "emulated",
	.bind = emu_bind,
	.unbind = emu_unbind,
	.attach = emu_attach,
	.detach = emu_detach,
	.receive = emu_receive,
	.give_back = emu_give_back,
	.bind_tx = emu_bind_tx,
	.unbind_tx = emu_unbind_tx,
	.send = emu_send,
	.completed = emu_completed,
	.forget = emu_forget,
	.describe = emu_describe,
};

gantry_result devmem_emulated_open(const struct devmem_source_ops **ret_ops)
{
	*ret_ops = &emulated_ops;
	return GANTRY_OK;
}
