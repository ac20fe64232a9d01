/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the emulated NIC's tests: loopback connections, memory, a stream that is known at every byte, and a receiver that
 * checks all that a receive says.
 */
#ifndef GANTRY_TESTS_EMULATED_UTIL_H
#define GANTRY_TESTS_EMULATED_UTIL_H

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "net/devmem.h"
#include "test.h"

enum { UTIL_CONTROL = 1024 * 40, UTIL_IOV = 1 << 20 };

/* Parameters as a user sets them: "NAME", "value", ..., NULL. All others of the NIC have their defaults. */
#define use_params(...)                                                                                                \
	set_params("GANTRY_EMU_SHAPE", NULL, "GANTRY_EMU_SEED", NULL, "GANTRY_EMU_LINEAR", NULL, "GANTRY_EMU_PLAIN",   \
		   NULL, "GANTRY_EMU_OLD_ERRNO", NULL, "GANTRY_EMU_RTO", NULL, __VA_ARGS__)

/* The peer sends the bytes of message `who`. */
struct pair {
	int tx, rx;
	uint32_t who;
	uint64_t sent, got; /* bytes of its stream */
};

static inline void pair_open(struct pair *p, uint32_t who)
{
	int port, l = lo_bound(0, &port), one = 1, size = 4 << 20;

	CHECK(!setsockopt(l, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)) && !listen(l, 1));
	*p = (struct pair){.tx = lo_dial(port), .who = who};
	p->rx = accept(l, NULL, NULL);
	CHECK(p->rx >= 0);
	close(l);
	setsockopt(p->tx, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	fcntl(p->tx, F_SETFL, O_NONBLOCK);
	fcntl(p->rx, F_SETFL, O_NONBLOCK);
}

static inline void pair_close(struct pair *p)
{
	if (p->tx >= 0)
		close(p->tx);
	if (p->rx >= 0)
		close(p->rx);
}

/* Sends up to n bytes of the stream; stops when the socket is full. Returns how many. */
static inline uint64_t pair_send(struct pair *p, uint64_t n)
{
	static __thread uint8_t data[65536];
	uint64_t done = 0;

	while (done < n) {
		size_t k = n - done < sizeof(data) ? (size_t)(n - done) : sizeof(data);
		ssize_t put;

		pattern_fill_from(data, k, p->who, p->sent);
		put = send(p->tx, data, k, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (put < 0 && errno == EAGAIN)
			break;
		CHECK(put > 0);
		done += (uint64_t)put;
		p->sent += (uint64_t)put;
	}
	return done;
}

/* All n bytes of the stream are at the receiving socket. */
static inline void pair_arrive(struct pair *p, uint64_t n)
{
	uint64_t end = p->sent + n;
	static uint8_t seen[4 << 20];
	ssize_t got = 0;

	CHECK(n <= sizeof(seen));
	WAIT_WHILE (p->sent != end || got < (ssize_t)n || (uint64_t)got < p->sent - p->got) {
		if (got)
			usleep(100);
		pair_send(p, end - p->sent); /* a socket may be full until its peer's kernel has had its turn */
		got = recv(p->rx, seen, sizeof(seen), MSG_PEEK | MSG_DONTWAIT);
	}
}

struct memory {
	int fd;
	struct devmem_memory m;
};

/* Sparse: pages that nobody writes cost nothing. */
static inline void memory_open(struct memory *m, uint64_t size)
{
	*m = (struct memory){.fd = memfd_create("emulated", 0)};
	CHECK(m->fd >= 0 && !ftruncate(m->fd, (off_t)size));
	m->m.size = size;
	m->m.host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, m->fd, 0);
	CHECK(m->m.host != MAP_FAILED);
	m->m.device_ptr = m->m.host;
}

static inline void memory_close(struct memory *m)
{
	munmap(m->m.host, m->m.size);
	close(m->fd);
}

struct frag {
	int linear;
	struct devmem_cmsg c;
};

/* One receive and what it said. */
struct got {
	ssize_t bytes;
	uint32_t n; /* fragments; 0: ordinary data */
	struct frag frags[1024];
	uint8_t *iov; /* UTIL_IOV bytes, shared by all; per thread */
	int flags;
	size_t controllen;
};

/* control: room in it; iov: bytes of it. */
static inline struct got *receive_into(struct devmem_flow *f, size_t control, size_t iov_len, int flags)
{
	static __thread struct got g;
	static __thread uint8_t iov[UTIL_IOV], controls[UTIL_CONTROL + 64];
	struct iovec v[2] = {{iov, iov_len / 2}, {iov + iov_len / 2, iov_len - iov_len / 2}};
	struct msghdr msg = {.msg_iov = v, .msg_iovlen = 2, .msg_control = controls, .msg_controllen = control};

	CHECK(control <= UTIL_CONTROL && iov_len <= UTIL_IOV);
	memset(controls + control, 0x5A, 64);
	g.n = 0;
	g.iov = iov;
	g.bytes = f->binding->ops->receive(f, &msg, flags);
	g.flags = msg.msg_flags;
	g.controllen = msg.msg_controllen;
	CHECK_FILLED(controls + control, 64, 0x5A);
	if (g.bytes <= 0)
		return &g;
	CHECK(msg.msg_controllen <= control);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		CHECK_EQ(c->cmsg_level, SOL_SOCKET);
		CHECK(c->cmsg_type == SCM_DEVMEM_DMABUF || c->cmsg_type == SCM_DEVMEM_LINEAR);
		CHECK_EQ(c->cmsg_len, CMSG_LEN(24));
		g.frags[g.n].linear = c->cmsg_type == SCM_DEVMEM_LINEAR;
		memcpy(&g.frags[g.n++].c, CMSG_DATA(c), 24);
	}
	return &g;
}

static inline struct got *receive_all(struct devmem_flow *f)
{
	return receive_into(f, UTIL_CONTROL, UTIL_IOV, MSG_DONTWAIT);
}

static inline int give_one_back(struct devmem_flow *f, uint32_t token)
{
	struct devmem_token t = {token, 1};

	return f->binding->ops->give_back(f, &t, 1);
}

/* Gives back what a receive brought. */
static inline void give_all_back(struct devmem_flow *f, const struct got *g)
{
	for (uint32_t i = 0; i < g->n; i++)
		if (!g->frags[i].linear)
			CHECK_EQ(give_one_back(f, g->frags[i].c.frag_token), 1);
}

/* Rules of every receive: see invariants 2, 6, 7. Compares the bytes with the stream at its position `from`. */
static inline void check_got(struct devmem_flow *f, const struct pair *p, const struct got *g, uint64_t from)
{
	const struct devmem_memory *m = &f->binding->memory;
	uint32_t page = (uint32_t)devmem_page(m);
	uint64_t sum = 0, linear = 0;

	CHECK(g->bytes > 0);
	CHECK_OK(devmem_settle(f->binding));
	CHECK(!(g->flags & MSG_CTRUNC));
	for (uint32_t i = 0; i < g->n; i++) {
		const struct devmem_cmsg *c = &g->frags[i].c;
		const uint8_t *at = g->iov + linear;

		CHECK(c->frag_size >= 1);
		CHECK_EQ(c->flags, 0);
		if (g->frags[i].linear) {
			CHECK(!c->frag_offset && !c->frag_token && !c->dmabuf_id);
			linear += c->frag_size;
		} else {
			CHECK(c->frag_token >= 1 && c->frag_token <= INT32_MAX);
			CHECK_EQ(c->dmabuf_id, f->binding->dmabuf_id);
			CHECK(c->frag_offset < m->size);
			CHECK(c->frag_offset % page + c->frag_size <= page);
			at = m->device_ptr + c->frag_offset;
		}
		CHECK_PATTERN_FROM(at, c->frag_size, p->who, from + sum);
		sum += c->frag_size;
	}
	if (g->n)
		CHECK_EQ(sum, g->bytes);
	else
		CHECK_PATTERN_FROM(g->iov, g->bytes, p->who, from);
}

/* Receives, checks and gives back until `n` bytes are through. The peer sends as it can. */
static inline void pump(struct devmem_flow *f, struct pair *p, uint64_t n, size_t control, size_t iov_len)
{
	uint64_t end = p->got + n;

	WAIT_WHILE (p->got < end) {
		struct got *g;

		if (p->sent < end)
			pair_send(p, end - p->sent < 300000 ? end - p->sent : 300000);
		g = receive_into(f, control, iov_len, MSG_DONTWAIT);
		if (g->bytes < 0 && errno == EAGAIN)
			continue;
		check_got(f, p, g, p->got);
		p->got += (uint64_t)g->bytes;
		give_all_back(f, g);
	}
}

#endif
