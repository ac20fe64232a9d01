/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receive: recvmsg(MSG_SOCK_DEVMEM) as the kernel would answer it. See emulated.h for the way of the bytes.
 *
 * A call brings one kind of data: ordinary bytes, all in the iov and without control messages, or fragments with one
 * control message each. Linear fragments are packed at the start of the iov.
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

#include "device/device.h"

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
static ssize_t arrived(int fd, uint64_t most, int flags)
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

	for (i = 0; run < bytes && emu_plan_has(f, i) && emu_piece(f, i)->kind == EMU_PLAIN; i++)
		run += emu_piece(f, i)->len - emu_piece(f, i)->done;
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
		struct emu_piece *piece = emu_piece(f, done);
		uint32_t n = piece->len - piece->done;

		if (n > left) {
			piece->done += (uint32_t)left;
			break;
		}
		left -= n;
		done++;
	}
	emu_plan_drop(f, done, done);
	return got;
}

/* The places of the first `frags` pieces, up to `bytes`. Returns the bytes that found room in the list. */
static uint64_t split_places(struct emu_flow *f, struct msghdr *msg, uint32_t frags, uint64_t bytes, struct places *p)
{
	struct emu_binding *b = f->binding;
	struct iov_at at = {.msg = msg};
	uint64_t total = 0;

	for (uint32_t i = 0; i < frags && total < bytes; i++) {
		const struct emu_piece *piece = emu_piece(f, i);
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
	return dev->ops->move(dev, GANTRY_WAY_IN, b->pub.memory.device_ptr + from, b->bytes + from,
			      (size_t)(to - from));
}

/*
 * From the mirror to the memory that the CPU cannot write. By the copy engine and not by a kernel: a kernel may be
 * queued behind one of the GPU's user that waits for these very bytes. Pages that follow each other are one copy, gaps
 * between their fragments included: nobody else's bytes are there.
 *
 * Nobody waits for the copies here: the binding is `late`. A page that is given back before its copy is over (nobody
 * wanted it) may get new bytes meanwhile: what this copy brings then is covered by the next one, in the same queue.
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
static void report(struct emu_flow *f, struct msghdr *msg, uint64_t got, int peek)
{
	struct emu_binding *b = f->binding;
	uint64_t left = got, linear = 0;
	uint32_t k = 0, done = 0;

	emu_flow_mu_lock(&f->mu);
	for (; left; k++) {
		struct emu_piece *p = emu_piece(f, k);
		uint32_t n = p->len - p->done < left ? p->len - p->done : (uint32_t)left;
		struct devmem_cmsg c = {.frag_size = n + EMU_FAULT(61)};

		if (p->kind == EMU_SPLIT) {
			c.frag_offset = (uint64_t)p->page * b->page_size + p->at + (EMU_FAULT(81) ? 0 : p->done);
			if (EMU_FAULT(21))
				c.frag_offset = (uint32_t)c.frag_offset;
			if (!EMU_FAULT(82) || !peek)
				c.frag_token = emu_tokens_take(f, p->page);
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
	emu_plan_drop(f, done, k);
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
	frags = emu_plan(f, bytes, room < EMU_FRAGS_MAX ? (uint32_t)room : EMU_FRAGS_MAX);
	if (!frags) {
		errno = EMU_FAULT(92) ? ENOBUFS : EAGAIN;
		return -1;
	}
	got = -1;
	if (emu_tokens_reserve(f, frags) < 0)
		errno = ENOMEM;
	else if (split_places(f, msg, frags, bytes, &p))
		got = receive_places(f, &p, flags | MSG_DONTWAIT);
	else
		errno = EINVAL; /* not reached: the list has room for one */
	if (got > 0 && f->binding->mirrored && !EMU_FAULT(112) && copy_from_mirror(f, &p, (uint64_t)got) < 0)
		got = -1;
	if (got > 0)
		report(f, msg, (uint64_t)got, !!(flags & MSG_PEEK));
	else
		emu_plan_drop(f, 0, 0);
	return got;
}

static ssize_t receive(struct emu_flow *f, struct msghdr *msg, int flags, int devmem)
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
	bytes = arrived(f->pub.fd, total, flags);
	if (!bytes && EMU_FAULT(121)) {
		errno = EAGAIN;
		return -1;
	}
	if (bytes < 0 && EMU_FAULT(122) && errno == ECONNRESET)
		return 0;
	if (bytes <= 0)
		return bytes;
	if (!emu_plan_has(f, 0) || emu_piece(f, 0)->kind == EMU_PLAIN)
		return receive_ordinary(f, msg, (uint64_t)bytes, flags);
	if (!devmem && !EMU_FAULT(83)) {
		errno = EFAULT;
		return -1;
	}
	return receive_split(f, msg, (uint64_t)bytes, flags);
}

ssize_t emu_receive(struct devmem_flow *pub, struct msghdr *msg, int flags)
{
	return receive((struct emu_flow *)pub, msg, flags, 1);
}

#ifdef EMU_FOR_TESTS
ssize_t emu_receive_plain(struct devmem_flow *pub, struct msghdr *msg, int flags)
{
	return receive((struct emu_flow *)pub, msg, flags, 0);
}
#endif
