/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending from memory, as MSG_ZEROCOPY with a dma-buf does it.
 *
 * A send only records which bytes are meant. They are read late, within a later send or completed, when they go to the
 * real socket: a program that changes memory before its completion sends wrong bytes, as with the kernel. Nothing moves
 * between calls: the sender must keep polling for completions. Completions come as ranges of call numbers, some calls
 * later than they could, and sometimes a later range before an earlier one.
 *
 * What is queued belongs to the socket, across all memories sent from; so does the count of calls. A memory that is
 * unbound with bytes still queued leaves a copy of them behind, as the kernel would keep the memory.
 *
 * `forget` ends a socket's state: no other call on that socket may be under way.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/emulated/emulated.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/param.h"
#include "device/device.h"

enum { TX_CALLS = 64, TX_BYTES = 4 << 20, TX_RANGES = 16, TX_BOUNCE = 64 << 10, TX_LAST_MS = 100 };

MUTEX_KIND(emu_tx_mu);	 /* of the lists of memories and sockets */
MUTEX_KIND(emu_sock_mu); /* of one socket; inside tx_mu */

struct emu_tx {
	struct devmem_tx pub;
	struct emu_id own; /* what pub.dmabuf_id must still be */
	struct gantry_list link;
	void *map; /* owned: the file that the memory is in; NULL: none was given */
	size_t map_size;
};

struct tx_call {
	struct emu_tx *tx; /* borrowed; NULL: the bytes are in `copy` */
	uint8_t *copy;	   /* owned */
	uint64_t offset;
	size_t len, done;
	uint32_t number;
	uint32_t wait; /* calls before its bytes are read */
};

struct tx_range {
	uint32_t lo, hi;
	uint32_t hold; /* completed calls until it is reported */
};

struct tx_sock {
	struct gantry_list link;
	int fd; /* borrowed */
	struct emu_sock_mu mu;
	uint32_t next GUARDED_BY(emu_sock_mu); /* number of the next call */
	uint64_t random GUARDED_BY(emu_sock_mu);
	uint32_t head GUARDED_BY(emu_sock_mu), n GUARDED_BY(emu_sock_mu);
	struct tx_call calls[TX_CALLS] GUARDED_BY(emu_sock_mu);
	uint64_t queued GUARDED_BY(emu_sock_mu); /* bytes of them */
	int error GUARDED_BY(emu_sock_mu);	 /* errno of the real socket; stays */
	uint32_t nranges GUARDED_BY(emu_sock_mu);
	struct tx_range ranges[TX_RANGES] GUARDED_BY(emu_sock_mu);
	uint8_t bounce[TX_BOUNCE] GUARDED_BY(emu_sock_mu); /* for memory that the CPU cannot read */
};

static struct emu_tx_mu tx_mu;
static struct gantry_list tx_all GUARDED_BY(emu_tx_mu) = {&tx_all, &tx_all};
static struct gantry_list tx_socks GUARDED_BY(emu_tx_mu) = {&tx_socks, &tx_socks};

/* Reads the memory where a NIC would: in the file, which is no shorter and must stay so. */
static gantry_result map_file(struct emu_tx *t, const struct devmem_file *file, uint64_t size)
{
	struct stat st;

	t->map_size = (size_t)(file->offset + size);
	if (fstat(file->fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size < t->map_size)
		FAIL_NOW(GANTRY_ERR_INVALID, "emulated NIC: dma-buf %d has %lld bytes, of which %zu were named",
			 file->fd, (long long)st.st_size, t->map_size);
	t->map = mmap(NULL, t->map_size, PROT_READ, MAP_SHARED, file->fd, 0);
	if (t->map == MAP_FAILED) {
		t->map = NULL;
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "emulated NIC: dma-buf %d cannot be mapped: %s", file->fd,
			 strerror(errno));
	}
	t->pub.memory.host = (uint8_t *)t->map + file->offset;
	return GANTRY_OK;
}

gantry_result emu_bind_tx(const struct devmem_memory *memory, const char *nic, struct devmem_tx **ret_tx)
{
	gantry_result r = GANTRY_OK;
	struct emu_tx *t = calloc(1, sizeof(*t));

	if (!t)
		FAIL(GANTRY_ERR_NOMEM, "no memory to send from memory over the emulated NIC");
	if (!memory->size || (!memory->host && (!memory->device_ptr || !memory->device)))
		FAIL(GANTRY_ERR_INVALID, "emulated NIC %s: no memory to send from", nic ? nic : "?");
	t->pub.ops = &emulated_ops;
	t->pub.memory = *memory;
	t->pub.memory.file = NULL;
	if (memory->file)
		TRY(map_file(t, memory->file, memory->size));
	t->pub.dmabuf_id = emu_id_take(&t->own);
	emu_tx_mu_lock(&tx_mu);
	gantry_list_append(&tx_all, &t->link);
	emu_tx_mu_unlock(&tx_mu);
	*ret_tx = &t->pub;
	t = NULL; /* ownership moved */
out:
	free(t);
	return r;
}

/* The kernel looks the id up; here the handle is, without touching it: a stale one is EINVAL as well. */
static struct emu_tx *tx_find(const struct devmem_tx *pub) REQUIRES(emu_tx_mu)
{
	gantry_list_each_entry (t, &tx_all, struct emu_tx, link)
		if (&t->pub == pub)
			return t;
	return NULL;
}

static struct tx_sock *sock_find(int fd) REQUIRES(emu_tx_mu)
{
	gantry_list_each_entry (s, &tx_socks, struct tx_sock, link)
		if (s->fd == fd)
			return s;
	return NULL;
}

/* NULL with errno. */
static struct tx_sock *sock_new(int fd) REQUIRES(emu_tx_mu)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	struct tx_sock *s;

	if (getpeername(fd, (struct sockaddr *)&sa, &len) < 0) {
		if (errno == ENOTCONN)
			errno = EPIPE;
		return NULL;
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->fd = fd;
	emu_sock_mu_lock(&s->mu);
	s->random = (uint64_t)gantry_params()->emu_seed;
	s->next = EMU_FAULT(134);
	emu_sock_mu_unlock(&s->mu);
	gantry_list_append(&tx_socks, &s->link);
	return s;
}

/* The next bytes of a call, as they are now; fewer than all of them from memory that the CPU cannot read. */
static const uint8_t *bytes_of(struct tx_sock *s, const struct tx_call *c, size_t *len) REQUIRES(emu_sock_mu)
{
	const struct devmem_memory *m;

	*len = c->len - c->done;
	if (c->copy)
		return c->copy + c->done;
	m = &c->tx->pub.memory;
	if (m->host)
		return m->host + c->offset + c->done;
	if (*len > TX_BOUNCE)
		*len = TX_BOUNCE;
	if (m->device->ops->copy(m->device, s->bounce, m->device_ptr + c->offset + c->done, *len) == GANTRY_OK)
		return s->bounce;
	errno = EIO; /* the device has logged */
	return NULL;
}

/* Calls complete in order; the last range is always the newest. */
static void call_done(struct tx_sock *s, struct tx_call *c) REQUIRES(emu_sock_mu)
{
	struct tx_range *last = s->nranges ? &s->ranges[s->nranges - 1] : NULL;
	uint64_t roll = emu_random(&s->random);

	if (last && last->hi + 1 == c->number && (s->nranges == TX_RANGES || roll % 4))
		last->hi = c->number;
	else
		s->ranges[s->nranges++] = (struct tx_range){c->number, c->number, (uint32_t)(roll >> 8) % 4};
	s->queued -= c->len;
	free(c->copy);
	c->copy = NULL;
	s->head = (s->head + 1) % TX_CALLS;
	s->n--;
}

/* Moves what may be moved now. hurry: what waits for later calls, too. */
static void sock_progress(struct tx_sock *s, int hurry) REQUIRES(emu_sock_mu)
{
	while (s->n) {
		struct tx_call *c = &s->calls[s->head];
		const uint8_t *data;
		ssize_t got;
		size_t len;

		if (c->wait && !hurry && !s->error) {
			c->wait--;
			return;
		}
		if (c->done < c->len && !s->error) {
			data = bytes_of(s, c, &len);
			got = data ? send(s->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
			if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
				return;
			if (got < 0)
				s->error = errno;
			else
				c->done += (size_t)got;
		}
		if (c->done == c->len || s->error) /* a broken connection needs no memory */
			call_done(s, c);
	}
}

static int zerocopy_is_on(int fd)
{
	int on = 0;
	socklen_t len = sizeof(on);

	if (getsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, &len) < 0)
		return -1;
	if (!on)
		errno = EINVAL;
	return on ? 0 : -1;
}

static ssize_t queue_call(struct tx_sock *s, struct emu_tx *t, uint64_t offset, size_t len) REQUIRES(emu_sock_mu)
{
	struct tx_call *c;

	sock_progress(s, 0);
	if (s->error || s->n == TX_CALLS || s->queued >= TX_BYTES) {
		errno = s->error ? s->error : EAGAIN;
		return -1;
	}
	if (len > TX_BYTES - s->queued)
		len = (size_t)(TX_BYTES - s->queued);
	c = &s->calls[(s->head + s->n++) % TX_CALLS];
	*c = (struct tx_call){.tx = t,
			      .offset = offset,
			      .len = len,
			      .number = s->next++,
			      .wait = (uint32_t)(emu_random(&s->random) % 3)};
	s->queued += len;
	if (EMU_FAULT(131))
		sock_progress(s, 1);
	return (ssize_t)len;
}

ssize_t emu_send(struct devmem_tx *pub, int fd, uint64_t offset, size_t len, int flags)
{
	struct tx_sock *s;
	struct emu_tx *t;
	ssize_t sent = -1;

	(void)flags; /* never blocks, never raises SIGPIPE */
	if (zerocopy_is_on(fd) < 0)
		return -1;
	emu_tx_mu_lock(&tx_mu);
	t = tx_find(pub);
	s = sock_find(fd);
	if (t && t->pub.dmabuf_id != t->own.id &&
	    !EMU_FAULT(133)) /* 0 above all: the kernel would read offsets as addresses */
		t = NULL;
	if (!t)
		errno = EINVAL;
	else if (offset >= t->pub.memory.size)
		errno = EFAULT;
	else if (!s)
		s = sock_new(fd);
	emu_tx_mu_unlock(&tx_mu);
	if (!t || !s || offset >= t->pub.memory.size)
		return -1;
	if (!len)
		return 0;
	if (len > t->pub.memory.size - offset)
		len = (size_t)(t->pub.memory.size - offset);
	emu_sock_mu_lock(&s->mu);
	sent = queue_call(s, t, offset, len);
	emu_sock_mu_unlock(&s->mu);
	return sent;
}

/* The first range that is not held back, with those that follow on it. */
static int next_range(struct tx_sock *s, uint32_t *ret_lo, uint32_t *ret_hi) REQUIRES(emu_sock_mu)
{
	uint32_t i, end;

	for (i = 0; i < s->nranges; i++)
		s->ranges[i].hold -= s->ranges[i].hold > 0;
	for (i = 0; i < s->nranges && s->ranges[i].hold; i++)
		;
	if (EMU_FAULT(132) && s->n) {
		*ret_lo = *ret_hi = s->calls[s->head].number;
		return 1;
	}
	if (i == s->nranges)
		return 0;
	*ret_lo = s->ranges[i].lo;
	*ret_hi = s->ranges[i].hi;
	for (end = i + 1; end < s->nranges && !s->ranges[end].hold && s->ranges[end].lo == *ret_hi + 1; end++)
		*ret_hi = s->ranges[end].hi;
	memmove(&s->ranges[i], &s->ranges[end], (s->nranges - end) * sizeof(*s->ranges));
	s->nranges -= end - i;
	return 1;
}

int emu_completed(struct devmem_tx *pub, int fd, uint32_t *ret_lo, uint32_t *ret_hi)
{
	struct tx_sock *s;
	int known, r;

	emu_tx_mu_lock(&tx_mu);
	known = !!tx_find(pub);
	s = sock_find(fd);
	emu_tx_mu_unlock(&tx_mu);
	if (!known) {
		errno = EINVAL;
		return -1;
	}
	if (!s)
		return 0;
	emu_sock_mu_lock(&s->mu);
	sock_progress(s, 0);
	r = next_range(s, ret_lo, ret_hi);
	emu_sock_mu_unlock(&s->mu);
	return r;
}

/* What is queued goes on its way, as it would in the kernel after a close, but only for a moment. */
void emu_forget(struct devmem_tx *pub, int fd)
{
	uint64_t until = gantry_now_ns() + TX_LAST_MS * 1000000ull;
	struct tx_sock *s;

	(void)pub;
	emu_tx_mu_lock(&tx_mu);
	s = sock_find(fd);
	if (s)
		gantry_list_remove(&s->link);
	emu_tx_mu_unlock(&tx_mu);
	if (!s)
		return;
	emu_sock_mu_lock(&s->mu); /* no other thread finds it any more */
	for (sock_progress(s, 1); s->n && gantry_now_ns() < until; sock_progress(s, 1)) {
		struct pollfd p = {.fd = fd, .events = POLLOUT};

		poll(&p, 1, 10);
	}
	if (s->n)
		LOG_WARN(NET, "emulated NIC: %llu bytes queued on a closed socket were lost",
			 (unsigned long long)s->queued);
	for (uint32_t i = 0; i < s->n; i++)
		free(s->calls[(s->head + i) % TX_CALLS].copy);
	emu_sock_mu_unlock(&s->mu);
	free(s);
}

/* The calls of `t` on a socket get copies of their bytes. Without memory for that they are dropped with an error. */
static void sock_keep_copies(struct tx_sock *s, struct emu_tx *t)
{
	emu_sock_mu_lock(&s->mu);
	for (uint32_t i = 0; i < s->n && !s->error; i++) {
		struct tx_call *c = &s->calls[(s->head + i) % TX_CALLS];
		const struct devmem_memory *m = &t->pub.memory;

		if (c->tx != t)
			continue;
		c->copy = malloc(c->len);
		if (c->copy && m->host)
			memcpy(c->copy, m->host + c->offset, c->len);
		else if (!c->copy ||
			 m->device->ops->copy(m->device, c->copy, m->device_ptr + c->offset, c->len) != GANTRY_OK)
			s->error = EIO;
		c->tx = NULL;
	}
	if (s->error == EIO)
		LOG_ERROR(NET, "emulated NIC: could not keep a copy of bytes whose memory was released; the connection "
			       "is broken");
	emu_sock_mu_unlock(&s->mu);
}

void emu_unbind_tx(struct devmem_tx *pub)
{
	struct emu_tx *t;

	emu_tx_mu_lock(&tx_mu);
	t = pub ? tx_find(pub) : NULL;
	if (t) {
		gantry_list_each_entry (s, &tx_socks, struct tx_sock, link)
			sock_keep_copies(s, t);
		gantry_list_remove(&t->link);
		emu_id_release(&t->own);
	}
	emu_tx_mu_unlock(&tx_mu);
	if (t && t->map)
		munmap(t->map, t->map_size);
	free(t);
}
