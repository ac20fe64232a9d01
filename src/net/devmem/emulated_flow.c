/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows, and the plan of what their next bytes are (see emulated.h).
 *
 * The first `assigned` pieces of a plan have their places; that is always a number of whole units, less what was
 * consumed of the first one. A unit that was not begun in the call that gave it its places loses them again: nobody
 * else shall starve for bytes that have not arrived.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "base/atomic.h"
#include "net/devmem/emulated.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/log.h"
#include "device/device.h"

static void flow_free(struct emu_flow *f)
{
	pthread_mutex_destroy(&f->lock);
	free(f->plan);
	free(f->iov);
	free(f->out);
	free(f->slot_of);
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

EMU gantry_result emu_attach(struct devmem_binding *pub, int fd, struct devmem_flow **ret_flow)
{
	gantry_result r = GANTRY_OK;
	struct emu_binding *b = (struct emu_binding *)pub;
	struct emu_flow *f = calloc(1, sizeof(*f));

	if (!f)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a flow of the emulated NIC");
	f->pub = (struct devmem_flow){.binding = pub, .fd = fd};
	f->binding = b;
	pthread_mutex_init(&f->lock, NULL);
	TRY(peer_of(fd, f->peer));
	f->plan = calloc(EMU_PLAN, sizeof(*f->plan));
	f->iov = calloc(EMU_FRAGS_MAX, sizeof(*f->iov));
	if (!f->plan || !f->iov || emu_tokens_reserve(f, 1) < 0)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a flow of the emulated NIC with %s", f->peer);

	pthread_mutex_lock(&b->lock);
	f->number = ++b->flows_ever;
	emu_slots_group(f);
	gantry_list_append(&b->flows, &f->link);
	b->refs++;
	pthread_mutex_unlock(&b->lock);
	f->random = b->seed * 0xD1342543DE82EF95u + f->number;
	*ret_flow = &f->pub;
	f = NULL; /* ownership moved */
out:
	if (f)
		flow_free(f);
	return r;
}

EMU void emu_detach(struct devmem_flow *pub)
{
	struct emu_flow *f = (struct emu_flow *)pub;
	struct emu_binding *b;

	if (!f)
		return;
	b = f->binding;
	emu_plan_drop(f, f->n, f->n);
	emu_tokens_free_all(f);
	pthread_mutex_lock(&b->lock);
	gantry_list_remove(&f->link);
	pthread_mutex_unlock(&b->lock);
	flow_free(f);
	emu_binding_put(b);
}

EMU int emu_plan_has(struct emu_flow *f, uint32_t i)
{
	if (i < f->n)
		return 1;
	if (f->n + EMU_UNIT_PIECES > EMU_PLAN || load_acquire(&f->binding->unbound))
		return 0;
	emu_shape_more(f);
	return 1;
}

/* Where the unit of piece i ends, and how many slots its pieces [i, end) need. */
static uint32_t unit_end(struct emu_flow *f, uint32_t i, uint32_t *slots)
{
	do {
		const struct emu_piece *p = emu_piece(f, i);

		*slots += p->kind == EMU_SPLIT && p->fresh;
	} while (++i < f->n && !emu_piece(f, i)->starts);
	return i;
}

/* Gives pieces [f->assigned, end) their places. */
static uint32_t assign_unit(struct emu_flow *f, uint32_t end, const uint32_t *slots)
{
	uint32_t *users = f->binding->users, used = 0, slot = EMU_NO_SLOT;

	for (; f->assigned < end; f->assigned++) {
		struct emu_piece *p = emu_piece(f, f->assigned);

		if (p->kind != EMU_SPLIT)
			continue;
		if (p->fresh)
			slot = slots[used++];
		users[slot]++;
		p->slot = slot;
	}
	return used;
}

/* More slots behind the `have` that there are, EMU_FRAGS_MAX * 2 at most. */
static uint32_t take_slots(struct emu_flow *f, uint32_t least, uint64_t want, uint32_t *slots, uint32_t have)
{
	uint32_t room = EMU_FRAGS_MAX * 2 - have;

	return emu_slots_take(f, least, want < room ? (uint32_t)want : room, slots + have);
}

EMU uint32_t emu_plan(struct emu_flow *f, uint64_t bytes, uint32_t frags)
{
	uint32_t slots[EMU_FRAGS_MAX * 2], have = 0, used = 0, n = 0;

	for (; bytes && n < frags && emu_plan_has(f, n) && emu_piece(f, n)->kind != EMU_PLAIN; n++) {
		const struct emu_piece *p = emu_piece(f, n);
		uint32_t left = p->len - p->done;

		if (n >= f->assigned) {
			uint32_t more = 0, end = unit_end(f, n, &more);

			/* As many as whole pages would need; the first unit starves if it gets none. */
			if (used + more > have) {
				uint64_t want = (bytes + f->binding->page - 1) / f->binding->page;

				want = want < frags - n ? want : frags - n;
				have += take_slots(f, have ? 0 : more, want > more ? want : more, slots, have);
			}
			if (used + more > have)
				break;
			used += assign_unit(f, end, slots + used);
		}
		bytes -= left < bytes ? left : bytes;
	}
	emu_slots_put(f, slots + used, have - used);
	return n;
}

/* One user of the slot less. With the flow's lock. */
static uint32_t unuse(struct emu_flow *f, struct emu_piece *p, uint32_t *freed)
{
	uint32_t slot = p->slot;

	p->slot = EMU_NO_SLOT;
	if (slot == EMU_NO_SLOT || --f->binding->users[slot])
		return 0;
	*freed = slot;
	return 1;
}

EMU void emu_plan_drop(struct emu_flow *f, uint32_t pieces, uint32_t begun)
{
	uint32_t freed[EMU_PLAN], n = 0, slots = 0, keep = begun > f->peeked ? begun : f->peeked;

	if (!keep && f->n && (!emu_piece(f, 0)->starts || emu_piece(f, 0)->done))
		keep = 1; /* an earlier call has begun this unit */
	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < pieces; i++)
		n += unuse(f, emu_piece(f, i), freed + n);
	if (keep && keep < f->assigned) /* its unit, to the end */
		keep = unit_end(f, keep - 1, &slots);
	for (uint32_t i = keep; i < f->assigned; i++)
		n += unuse(f, emu_piece(f, i), freed + n);
	pthread_mutex_unlock(&f->lock);

	if (f->assigned > keep)
		f->assigned = keep;
	f->assigned -= pieces < f->assigned ? pieces : f->assigned;
	f->peeked -= pieces < f->peeked ? pieces : f->peeked;
	f->head = (f->head + pieces) & (EMU_PLAN - 1);
	f->n -= pieces;
	emu_slots_put(f, freed, n);
}
