/* SPDX-License-Identifier: Apache-2.0 */
/* Invariant 13 of the emulated NIC: sending from memory; and the check finds a NIC that breaks it. See test_emulated.c.
 */
#include "emulated_faults.h"

enum { MEMORY = 64 * 4096, CALLS = 400 };

struct sender {
	struct memory m;
	struct devmem_tx *t;
	struct pair p;
};

static void zerocopy(int fd, int on)
{
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)));
}

static void sender_open(struct sender *s, uint32_t who)
{
	memory_open(&s->m, MEMORY);
	CHECK_OK(emulated_ops.bind_tx(&s->m.m, "emu0", &s->t));
	pair_open(&s->p, who);
	zerocopy(s->p.tx, 1);
}

static void sender_close(struct sender *s)
{
	emulated_ops.forget(s->t, s->p.tx);
	emulated_ops.unbind_tx(s->t);
	pair_close(&s->p);
	memory_close(&s->m);
}

/* Reads what is there and compares it with the stream. */
static void read_some(struct pair *p)
{
	uint8_t data[65536];
	ssize_t got;

	for (; (got = recv(p->rx, data, sizeof(data), MSG_DONTWAIT)) > 0; p->got += (uint64_t)got)
		CHECK_PATTERN_FROM(data, got, p->who, p->got);
	CHECK(got == -1 && errno == EAGAIN);
}

/* What may be sent, and how it is refused. */
static void refusals(void)
{
	struct sender s;
	struct devmem_binding *b;
	struct devmem_tx *gone;
	uint32_t lo, hi;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	sender_open(&s, 1);
	CHECK_OK(emulated_ops.bind_tx(&s.m.m, "emu0", &gone));
	CHECK(s.t->dmabuf_id && gone->dmabuf_id && s.t->dmabuf_id != gone->dmabuf_id);
	emulated_ops.unbind_tx(gone);
	CHECK(emulated_ops.send(gone, s.p.tx, 0, 10, 0) == -1 && errno == EINVAL);
	CHECK(emulated_ops.completed(gone, s.p.tx, &lo, &hi) == -1 && errno == EINVAL);

	CHECK_OK(emulated_ops.bind(&s.m.m, "emu0", &b));
	CHECK(b->dmabuf_id != s.t->dmabuf_id);
	for (int i = 0; i < 2; i++) { /* 0, and that of a binding to receive */
		uint32_t id = s.t->dmabuf_id;

		s.t->dmabuf_id = i ? b->dmabuf_id : 0;
		CHECK(emulated_ops.send(s.t, s.p.tx, 0, 10, 0) == -1 && errno == EINVAL);
		s.t->dmabuf_id = id;
	}
	emulated_ops.unbind(b);

	CHECK(emulated_ops.send(s.t, s.p.tx, MEMORY, 1, 0) == -1 && errno == EFAULT);
	CHECK(emulated_ops.send(s.t, s.p.tx, UINT64_MAX, 1, 0) == -1 && errno == EFAULT);
	CHECK_EQ(emulated_ops.send(s.t, s.p.tx, 5, 0, 0), 0);
	zerocopy(s.p.tx, 0);
	CHECK(emulated_ops.send(s.t, s.p.tx, 0, 1, 0) == -1 && errno == EINVAL);
	zerocopy(fd, 1);
	CHECK(emulated_ops.send(s.t, fd, 0, 1, 0) == -1 && errno == EPIPE);
	CHECK(emulated_ops.send(s.t, -1, 0, 1, 0) == -1 && errno == EBADF);
	CHECK_EQ(emulated_ops.completed(s.t, s.p.tx, &lo, &hi), 0); /* none of these had a number */
	close(fd);
	sender_close(&s);
}

/* The bytes are read late: what is changed after the send, and before its completion, is what arrives. */
static void read_late(void)
{
	uint32_t lo = 7, hi = 7;
	struct sender s;

	sender_open(&s, 2);
	CHECK_EQ(emulated_ops.send(s.t, s.p.tx, MEMORY - 100, 500, MSG_DONTWAIT), 100); /* to the end of it */
	pattern_fill(s.m.m.host + MEMORY - 100, 100, 2);
	UNTIL(emulated_ops.completed(s.t, s.p.tx, &lo, &hi));
	CHECK(lo == 0 && hi == 0);
	memset(s.m.m.host, 0xEE, MEMORY); /* now it may change */
	WAIT_WHILE (s.p.got < 100) {
		emulated_ops.completed(s.t, s.p.tx, &lo, &hi);
		read_some(&s.p);
	}
	sender_close(&s);
}

/*
 * Many calls from one ring of memory, each part used again as soon as its call is complete and not before. Numbers
 * count from 0 on each socket; ranges cover each once; some merge, some come before an earlier one.
 */
static void ring(uint32_t who)
{
	enum { PART = 4096, PARTS = MEMORY / PART };
	uint8_t complete[CALLS] = {0};
	int busy[PARTS], merged = 0, early = 0, later = 0;
	uint32_t calls = 0, done = 0, next = 0;
	uint64_t sent = 0;
	struct sender s;

	sender_open(&s, who);
	memset(busy, -1, sizeof(busy));
	WAIT_WHILE (done < CALLS) {
		uint32_t lo, hi, part = calls % PARTS;
		ssize_t n;

		if (calls < CALLS && busy[part] < 0) {
			pattern_fill_from(s.m.m.host + part * PART, PART, who, sent);
			n = emulated_ops.send(s.t, s.p.tx, part * PART, 1 + calls * 31 % PART, MSG_DONTWAIT);
			CHECK(n > 0 || errno == EAGAIN);
			if (n > 0) {
				sent += (uint64_t)n;
				busy[part] = (int)calls++;
			}
		}
		if (calls % 4 == 0 || calls == CALLS) {
			int told = 0;

			for (; emulated_ops.completed(s.t, s.p.tx, &lo, &hi) == 1; told++) {
				CHECK(lo <= hi && hi < calls);
				merged += hi > lo;
				early += lo > next;
				for (; lo <= hi; lo++, done++) {
					CHECK(!complete[lo]);
					complete[lo] = 1;
					busy[lo % PARTS] = -1;
					memset(s.m.m.host + lo % PARTS * PART, 0xEE, PART);
				}
				while (next < CALLS && complete[next])
					next++;
			}
			later += calls > done && !told;
		}
		read_some(&s.p);
	}
	WAIT_WHILE (s.p.got < sent)
		read_some(&s.p);
	CHECK(merged > 5 && early > 5 && later > 5);
	sender_close(&s);
}

/* A full queue says EAGAIN and takes part of a call; a broken connection completes all and says why. */
static void full_and_broken(void)
{
	uint64_t taken = 0;
	struct linger reset = {1, 0};
	uint32_t calls = 0, done = 0, lo, hi;
	struct sender s;
	ssize_t n;

	sender_open(&s, 5);
	for (uint32_t i = 0; i < MEMORY; i++)
		s.m.m.host[i] = 1;
	while ((n = emulated_ops.send(s.t, s.p.tx, 0, MEMORY, MSG_DONTWAIT)) > 0) {
		taken += (uint64_t)n;
		calls++;
		CHECK(taken < 1u << 30);
	}
	CHECK(errno == EAGAIN && taken > MEMORY);
	setsockopt(s.p.rx, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(s.p.rx);
	s.p.rx = -1;
	WAIT_WHILE (done < calls) {
		if (emulated_ops.completed(s.t, s.p.tx, &lo, &hi) == 1)
			done += hi - lo + 1;
	}
	CHECK(emulated_ops.send(s.t, s.p.tx, 0, 1, MSG_DONTWAIT) == -1 && (errno == ECONNRESET || errno == EPIPE));
	sender_close(&s);
}

/* Memory that is unbound, and a socket that is forgotten, with bytes under way: they arrive. */
static void early_ends(void)
{
	struct gantry_device *dev;
	struct devmem_tx *t;
	void *memory;
	struct sender s;

	sender_open(&s, 6);
	pattern_fill(s.m.m.host, 3000, 6);
	CHECK_EQ(emulated_ops.send(s.t, s.p.tx, 0, 1000, 0), 1000);
	CHECK_EQ(emulated_ops.send(s.t, s.p.tx, 1000, 1000, 0), 1000);
	emulated_ops.unbind_tx(s.t);
	memset(s.m.m.host, 0, 2000);
	/* The rest from memory that the CPU cannot read, as far as the NIC knows, on the same socket. */
	CHECK_OK(gantry_device_host(&dev));
	CHECK_OK(dev->ops->alloc(dev, 4096, &memory));
	memcpy(memory, s.m.m.host + 2000, 1000);
	CHECK_OK(emulated_ops.bind_tx(&(struct devmem_memory){.device = dev, .device_ptr = memory, .size = 4096},
				      "emu0", &t));
	CHECK_EQ(emulated_ops.send(t, s.p.tx, 0, 1000, 0), 1000);
	emulated_ops.forget(t, s.p.tx);
	WAIT_WHILE (s.p.got < 3000)
		read_some(&s.p);
	emulated_ops.unbind_tx(t);
	emulated_ops.unbind_tx(NULL);
	CHECK_OK(dev->ops->free(dev, memory));
	gantry_device_close(dev);
	pair_close(&s.p);
	memory_close(&s.m);
}

static void sending(void)
{
	use_params(NULL);
	refusals();
	read_late();
	ring(3);
	ring(4);
	full_and_broken();
	early_ends();
}

int main(void)
{
	check_invariant(13, "sending", sending, FAULTS(131, 132, 133, 134));
	return 0;
}
