/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include "net/tcp/txmem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "device/device.h"
#include "net/tcp/flow.h"

enum { DRAIN_MAX = 64 };

static int unusable; /* binding has failed once: logged once, and not tried again; relaxed */

const struct devmem_source_ops *tcp_txmem_source(const struct tcp_link *l, enum gantry_net_unpack kind,
						 const struct gantry_device *dev)
{
	const struct devmem_source_ops *source;

	if (gantry_params()->devmem_tx == PARAM_DEVMEM_TX_OFF || !l->session.device_tx || load_relaxed(&unusable))
		return NULL;
	/* The emulated NIC reads with the CPU: from memory of a GPU that would be a copy to wait for. */
	if (kind == GANTRY_NET_UNPACK_KERNEL
		    ? l->session.same_host
		    : kind != GANTRY_NET_UNPACK_EMULATED || !gantry_traits(dev)->cpu_reads_memory)
		return NULL;
	return devmem_source_get(kind, &source) == GANTRY_OK ? source : NULL;
}

/* 0: a lane has calls of MSG_ZEROCOPY on its socket. UNCHECKED: takes the locks of all lanes together. */
static int make_ready(struct tcp_link *l) UNCHECKED
{
	int fine = 1;

	for (int i = 1; i < l->nlanes; i++) {
		lane_tx_mu_lock(&l->lanes[i].tx.lock);
		fine &= !l->lanes[i].tx.calls || l->lanes[i].tx.late;
	}
	if (fine)
		store_relaxed(&l->tx.msg_zerocopy, 0);
	for (int i = 1; i < l->nlanes; i++) {
		int e = fine ? sock_allow_zerocopy(l->lanes[i].io.fd) : 0;

		if (e)
			LOG_DEBUG(DATA, "%s: SO_ZEROCOPY: %s", l->session.peer, strerror(e)); /* the first send fails */
		lane_tx_mu_unlock(&l->lanes[i].tx.lock);
	}
	return fine;
}

/* The NIC of a lane among those that the memory is bound to. */
static gantry_result bind_lane(struct tcp_txmem *m, const struct devmem_source_ops *ops,
			       const struct devmem_memory *memory, const struct tcp_lane *lane)
{
	const char *nic = tcp_lane_nic(lane);
	int i = 0;

	ASSERT(lane->index > 0 && lane->index < WIRE_MAX_LANES && m->n <= GANTRY_NET_MAX_RAILS);
	while (i < m->n && strcmp(m->nics[i], nic) != 0)
		i++;
	if (i == m->n) {
		if (m->n == GANTRY_NET_MAX_RAILS)
			FAIL_NOW(GANTRY_ERR_LIMIT, "lanes over more than %d NICs", GANTRY_NET_MAX_RAILS);
		TRY_NOW(ops->bind_tx(memory, nic, &m->tx[i]));
		m->nics[i] = nic;
		m->n++;
	}
	m->of_lane[lane->index] = (uint8_t)i;
	return GANTRY_OK;
}

/* Binds the memory to the NICs of all lanes: as it lies in the file, or, without one, whole pages that the device exports. */
static gantry_result bind_lanes(struct tcp_txmem *m, struct tcp_link *l, const struct devmem_source_ops *ops,
				struct gantry_device *dev, const struct devmem_file *file, void *data, uint64_t size)
{
	uintptr_t page = file ? 1 : (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)data / page * page;
	struct devmem_memory memory = {.device = dev, .device_ptr = (uint8_t *)from, .file = file};

	m->base = memory.device_ptr;
	m->size = memory.size = ((uintptr_t)data + size - from + page - 1) / page * page;
	if (gantry_traits(dev)->cpu_reads_memory)
		memory.host = memory.device_ptr;
	for (int i = 1; i < l->nlanes; i++)
		TRY_NOW(bind_lane(m, ops, &memory, &l->lanes[i]));
	return GANTRY_OK;
}

/* What was bound before it failed; nothing was sent from there. */
static void unbind_lanes(struct tcp_txmem *m)
{
	ASSERT(!m->link);
	while (m->n) {
		m->n--;
		m->tx[m->n]->ops->unbind_tx(m->tx[m->n]);
		m->tx[m->n] = NULL;
	}
}

gantry_result tcp_txmem_bind(struct tcp_link *l, const struct devmem_source_ops *ops, struct gantry_device *dev,
			     void *data, uint64_t size, const struct devmem_file *file, struct tcp_txmem **ret_mem)
{
	gantry_result r = GANTRY_OK;
	struct tcp_txmem *m = calloc(1, sizeof(*m));

	if (!m)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a registration");
	gantry_list_init(&m->node);
	if (!make_ready(l))
		FAIL(GANTRY_ERR_UNSUPPORTED, "%s: the connection has sent with MSG_ZEROCOPY before", l->session.peer);
	if (file && bind_lanes(m, l, ops, dev, file, data, size) != GANTRY_OK) {
		LOG_INFO(DATA, "the dma-buf given to regMrDmaBuf cannot be bound; binding one that %s exports",
			 dev->name);
		unbind_lanes(m);
		file = NULL;
	}
	if (!m->n)
		TRY(bind_lanes(m, l, ops, dev, NULL, data, size));
	link_mu_lock(&l->mu);
	m->link = l;
	gantry_list_append(&l->devmem->txmems, &m->node);
	link_mu_unlock(&l->mu);
	*ret_mem = m;
	m = NULL;
out:
	if (r != GANTRY_OK && !exchange_relaxed(&unusable, 1))
		LOG_INFO(DATA, "zero-copy sends from device memory do not work here; using pinned memory from now on "
			       "(GANTRY_DEVMEM_TX)");
	tcp_txmem_free(m);
	return r;
}

static void drain_device(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	uint32_t lo, hi;

	ASSERT_HELD(&tx->lock);
	for (int i = 0; i < DRAIN_MAX && tx->device && tcp_lane_busy(lane); i++) {
		if (tx->device->ops->completed(tx->device, lane->io.fd, &lo, &hi) <= 0)
			return; /* what is wrong with a socket shows when it is written or read */
		store_relaxed(&tx->completed, tx->completed + (hi - lo + 1));
	}
}

/*
 * The memory goes while the connection lives: its messages are done. Completions are still to be read, with any other
 * memory's help; after the last one the sockets are forgotten, and nothing is queued on them any more.
 */
static void leave_lanes(struct tcp_txmem *m)
{
	struct tcp_link *l = m->link;
	struct tcp_txmem *other = NULL;

	link_mu_lock(&l->mu);
	gantry_list_remove(&m->node);
	/* After an error its owner does not wait for what is not done. */
	gantry_list_each_safe (pos, &l->tx.bulk) {
		if (gantry_container(pos, struct tcp_send, head.node)->txmem == m)
			gantry_list_remove(pos);
	}
	if (!gantry_list_empty(&l->devmem->txmems))
		other = gantry_container(l->devmem->txmems.next, struct tcp_txmem, node);
	link_mu_unlock(&l->mu);
	for (int i = 1; i < l->nlanes; i++) {
		struct tcp_lane_tx *tx = &l->lanes[i].tx;
		struct devmem_tx *t = m->tx[m->of_lane[i]];

		lane_tx_mu_lock(&tx->lock);
		if (tx->send && tx->send->txmem == m)
			tcp_lane_tx_abandon(&l->lanes[i]);
		drain_device(&l->lanes[i]);
		if (other && tx->device == t) {
			tx->device = other->tx[other->of_lane[i]];
		} else if (!other) {
			t->ops->forget(t, l->lanes[i].io.fd);
			store_relaxed(&tx->completed, tx->calls);
			tx->device = NULL;
		}
		lane_tx_mu_unlock(&tx->lock);
	}
}

void tcp_txmem_free(struct tcp_txmem *m)
{
	if (!m)
		return;
	if (m->link)
		leave_lanes(m);
	for (int i = 0; i < m->n; i++)
		m->tx[i]->ops->unbind_tx(m->tx[i]);
	free(m);
}

/* UNCHECKED: the locks of all lanes. */
void tcp_txmem_close(struct tcp_link *l) UNCHECKED
{
	ASSERT_HELD(&l->mu);
	gantry_list_each_entry_safe (m, &l->devmem->txmems, struct tcp_txmem, node) {
		for (int i = 1; i < l->nlanes; i++) {
			m->tx[m->of_lane[i]]->ops->forget(m->tx[m->of_lane[i]], l->lanes[i].io.fd);
			l->lanes[i].tx.device = NULL;
		}
		m->link = NULL;
		gantry_list_remove(&m->node);
	}
	for (int i = 1; i < l->nlanes; i++)
		store_relaxed(&l->lanes[i].tx.completed, l->lanes[i].tx.calls);
}

/* The connection is at fault, not the memory. */
static int connection_error(int e)
{
	return e == EPIPE || e == ECONNRESET || e == ETIMEDOUT || e == EHOSTUNREACH || e == ENETUNREACH ||
	       e == ENETDOWN || e == EHOSTDOWN || e == ECONNABORTED;
}

static const struct tcp_push_ops push_ops;

static int push_device(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	struct tcp_txmem *m = tx->send->txmem;
	struct devmem_tx *t = m->tx[m->of_lane[lane->index]];

	ASSERT_HELD(&tx->lock);
	while (tx->left) {
		ssize_t n = t->ops->send(t, lane->io.fd, (uint64_t)(tx->data - m->base), tx->left,
					 MSG_DONTWAIT | MSG_NOSIGNAL);
		int e = errno;

		if (n < 0) {
			drain_device(lane);
			if (e == EAGAIN || e == EINTR || e == ENOBUFS)
				return 0;
			if (!connection_error(e))
				tcp_link_fail(
					lane->link, 1, GANTRY_ERR_SYSTEM,
					"lane %d: sending from device memory over %s: %s (GANTRY_DEVMEM_TX=off sends "
					"through pinned memory)",
					lane->index, m->nics[m->of_lane[lane->index]], strerror(e));
			errno = e;
			return -1;
		}
		tx->device = t;
		tx->late = &push_ops;
		tcp_lane_given(lane, n);
		store_relaxed(&tx->calls, tx->calls + 1);
		tx->data += n;
		tx->left -= (uint64_t)n;
	}
	drain_device(lane);
	return 1;
}

static const struct tcp_push_ops push_ops = {.name = "device", .push = push_device, .drain = drain_device};

gantry_result tcp_link_isend_txmem(struct tcp_link *l, struct tcp_txmem *m, const void *data, size_t size, int tag,
				   void **ret_request)
{
	gantry_result r = tcp_link_status(l, &l->tx.end);
	struct tcp_send *s;

	if (r != GANTRY_OK)
		return r;
	*ret_request = NULL;
	s = tcp_send_take(l, data, size, tag);
	if (!s)
		return GANTRY_OK;
	s->push = &push_ops;
	s->txmem = m;
	return tcp_send_post(l, s, &tcp_leave_bulk, ret_request);
}
