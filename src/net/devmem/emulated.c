/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bindings of the emulated NIC. See emulated.h for how the parts fit together.
 *
 * A binding is counted: one reference of its own, which unbind drops, and one of each flow. So unbind with flows
 * attached is the kernel's "netlink socket closed": pages that are out stay valid, tokens can be given back, and what
 * arrives later is ordinary data. Its memory is the caller's; it must stay until the last flow is detached.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/emulated.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/param.h"
#include "device/device.h"

/* Ids that are in use; few. An id is not used again before all others were, as in the kernel. */
static pthread_mutex_t id_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t *ids, nids, id_room, next_id = 1;
static int poison;

static int id_in_use(uint32_t id)
{
	for (uint32_t i = 0; i < nids; i++)
		if (ids[i] == id)
			return 1;
	return 0;
}

/* 0: no memory. */
EMU uint32_t emu_id_take(void)
{
	uint32_t id = 0;

	pthread_mutex_lock(&id_lock);
	if (nids == id_room) {
		uint32_t *more = realloc(ids, (id_room + 16) * sizeof(*ids));

		if (!more)
			goto out;
		ids = more;
		id_room += 16;
	}
	while (!EMU_FAULT(12) && (!next_id || id_in_use(next_id)))
		next_id++;
	id = next_id++;
	ids[nids++] = id;
out:
	pthread_mutex_unlock(&id_lock);
	return id;
}

EMU void emu_id_release(uint32_t id)
{
	pthread_mutex_lock(&id_lock);
	for (uint32_t i = 0; i < nids; i++)
		if (ids[i] == id) {
			ids[i] = ids[--nids];
			break;
		}
	if (!nids) {
		free(ids);
		ids = NULL;
		id_room = 0;
	}
	pthread_mutex_unlock(&id_lock);
}

EMU void devmem_emulated_next_id(uint32_t id)
{
	pthread_mutex_lock(&id_lock);
	next_id = id;
	pthread_mutex_unlock(&id_lock);
}

EMU void devmem_emulated_set_poison(int on)
{
	store_relaxed(&poison, on);
}

EMU int emu_poison_on(void)
{
	return load_relaxed(&poison);
}

static void binding_free(struct emu_binding *b)
{
	struct gantry_device *dev = b->pub.memory.device;

	if (b->mirrored && b->bytes) {
		devmem_settle(&b->pub); /* copies read it */
		dev->ops->free_mapped(dev, b->bytes);
	}
	if (b->pub.dmabuf_id)
		emu_id_release(b->pub.dmabuf_id);
	pthread_mutex_destroy(&b->lock);
	free(b->users);
	free(b->poisoned);
	free(b->free);
	free(b->bits);
	free(b);
}

EMU void emu_binding_put(struct emu_binding *b)
{
	int last;

	pthread_mutex_lock(&b->lock);
	last = !--b->refs;
	pthread_mutex_unlock(&b->lock);
	if (last)
		binding_free(b);
}

static void binding_params(struct emu_binding *b)
{
	const struct gantry_params *p = gantry_params();

	b->shape = (enum emu_shape)p->emu_shape;
	b->seed = (uint64_t)p->emu_seed;
	b->rto_ns = p->emu_rto;
	b->linear = (uint32_t)p->emu_linear;
	b->plain = (uint32_t)p->emu_plain;
	b->toosmall = p->emu_old_errno ? EFAULT : DEVMEM_ETOOSMALL;
}

static gantry_result binding_check(const struct emu_binding *b, const struct devmem_memory *m)
{
	gantry_result r = GANTRY_OK;

	if ((!m->host && (!m->device_ptr || !m->device)) || !m->size || m->size % b->page)
		FAIL(GANTRY_ERR_INVALID, "emulated NIC %s: %llu bytes are no whole pages of %u, or no memory", b->nic,
		     (unsigned long long)m->size, b->page);
	if (m->size / b->page >= EMU_NO_SLOT)
		FAIL(GANTRY_ERR_INVALID, "emulated NIC %s: %llu bytes are too many pages", b->nic,
		     (unsigned long long)m->size);
	if (m->size / b->page < emu_shape_slots(b->shape))
		FAIL(GANTRY_ERR_CONFIG, "emulated NIC %s: %llu bytes are less than a packet of GANTRY_EMU_SHAPE takes",
		     b->nic, (unsigned long long)m->size);
out:
	return r;
}

static gantry_result emu_bind(const struct devmem_memory *memory, const char *nic, struct devmem_binding **ret_binding)
{
	gantry_result r = GANTRY_OK;
	struct emu_binding *b = calloc(1, sizeof(*b));

	if (!b)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding of the emulated NIC");
	pthread_mutex_init(&b->lock, NULL);
	gantry_list_init(&b->flows);
	b->refs = 1;
	b->pub.ops = &devmem_emulated;
	b->pub.memory = *memory;
	snprintf(b->nic, sizeof(b->nic), "%s", nic ? nic : "?");
	b->page = (uint32_t)sysconf(_SC_PAGESIZE);
	binding_params(b);
	TRY(binding_check(b, memory));
	b->nslots = (uint32_t)(memory->size / b->page);
	b->mirrored = b->pub.late = !memory->host;
	TRY(emu_slots_init(b));
	b->bytes = memory->host;
	if (!b->bytes) {
		void *device = NULL, *host = NULL;

		TRY(memory->device->ops->alloc_mapped(memory->device, memory->size, &host, &device));
		b->bytes = host;
	}
	b->pub.dmabuf_id = emu_id_take();
	if (!b->pub.dmabuf_id)
		FAIL(GANTRY_ERR_NOMEM, "no memory for an id of the emulated NIC");
	LOG_INFO(NET, "emulated NIC %s: dmabuf %u, %u pages of %u bytes%s", b->nic, b->pub.dmabuf_id, b->nslots,
		 b->page, b->mirrored ? ", through pinned memory" : "");
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

	pthread_mutex_lock(&b->lock);
	nfree = b->nfree;
	starved = b->starved;
	gantry_list_each (e, &b->flows)
		nflows++;
	pthread_mutex_unlock(&b->lock);
	snprintf(text, len,
		 "emulated NIC %s: dmabuf %u, shape %s, %u of %u pages of %u bytes free, %u flows%s; %llu receives, "
		 "%llu fragments, %llu bytes in pages (%llu copies), %llu linear, %llu plain, %llu tokens returned, "
		 "%llu bad returns, "
		 "starved %llu times, %llu pages written after return",
		 b->nic, b->pub.dmabuf_id, shapes[b->shape], nfree, b->nslots, b->page, nflows,
		 starved ? ", starved" : "", (unsigned long long)EMU_COUNTED(b, receives),
		 (unsigned long long)EMU_COUNTED(b, frags), (unsigned long long)EMU_COUNTED(b, page_bytes),
		 (unsigned long long)EMU_COUNTED(b, copies), (unsigned long long)EMU_COUNTED(b, linear_bytes),
		 (unsigned long long)EMU_COUNTED(b, plain_bytes), (unsigned long long)EMU_COUNTED(b, returned),
		 (unsigned long long)EMU_COUNTED(b, bad_returns), (unsigned long long)EMU_COUNTED(b, starved),
		 (unsigned long long)EMU_COUNTED(b, written_after));
}

const struct devmem_source_ops devmem_emulated = {
	.kind = DEVMEM_EMULATED,
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
