/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine below the data network (net/tcp/io.h) that does on purpose what sockets do seldom: operations move a part of what
 * they could, are put off, or stay in flight for some calls. It keeps its half of the contract strictly and checks the other:
 * an operation in flight is completed by a call whose memory begins where it began, its memory is left alone until then, and a
 * lane that is closed or replaced has nothing in flight. GANTRY_TEST_IO=scripted installs it for a unit test.
 */
#include "base/crc32c.h"
#include "net/tcp/io.h"
#include "test.h"

enum { PARTS = 260, POLLS = 4, FILL = 0xa5 };

/* One direction; its lane's lock serialises all but close. */
struct flight {
	bool on;
	int polls; /* so many calls find it in flight */
	struct iovec iov[PARTS];
	int n;
	unsigned flags;
	uint32_t crc; /* of its memory */
	uint64_t random;
};

struct script {
	struct flight send, recv;
};

static uint32_t draw(struct flight *f, uint32_t n)
{
	f->random = f->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(f->random >> 33) % n;
}

static uint32_t crc_of(const struct flight *f)
{
	uint32_t crc = 0;

	for (int i = 0; i < f->n; i++)
		crc = gantry_crc32c(crc, f->iov[i].iov_base, f->iov[i].iov_len);
	return crc;
}

/* The beginning of the list: all of it, or so many bytes. */
static void take_list(struct flight *f, const struct iovec *iov, int n)
{
	size_t left = draw(f, 2) ? SIZE_MAX : 1 + draw(f, draw(f, 2) ? 64 : 200000);

	CHECK(n <= PARTS);
	f->n = 0;
	for (int i = 0; i < n && left; i++) {
		f->iov[f->n] = iov[i];
		if (f->iov[f->n].iov_len > left)
			f->iov[f->n].iov_len = left;
		left -= f->iov[f->n++].iov_len;
	}
}

/* The memory of a call begins as that of the operation did; how the two are cut into parts does not matter. */
static void check_same(const struct flight *f, const struct iovec *iov, int n)
{
	size_t at = 0;
	int k = 0;

	for (int i = 0; i < f->n; i++)
		for (size_t done = 0; done < f->iov[i].iov_len;) {
			size_t len = f->iov[i].iov_len - done;

			CHECK(k < n);
			if (len > iov[k].iov_len - at)
				len = iov[k].iov_len - at;
			CHECK((char *)f->iov[i].iov_base + done == (char *)iov[k].iov_base + at);
			done += len;
			at += len;
			if (at == iov[k].iov_len) {
				at = 0;
				k++;
			}
		}
}

static ssize_t carry_out(struct tcp_io *io, struct flight *f, bool send)
{
	return send ? tcp_io_sockets.send(io, f->iov, f->n, f->flags) : tcp_io_sockets.recv(io, f->iov, f->n);
}

static ssize_t still_in_flight(void)
{
	errno = EINPROGRESS;
	return -1;
}

/* The operation is over, unless the socket is full or empty. */
static ssize_t complete(struct tcp_io *io, struct flight *f, bool send)
{
	ssize_t n;

	if (f->polls-- > 0)
		return still_in_flight();
	CHECK_EQ(crc_of(f), f->crc);
	n = carry_out(io, f, send);
	if (n < 0 && tcp_io_is_later(errno))
		return still_in_flight();
	f->on = false;
	return n;
}

static ssize_t start(struct tcp_io *io, struct flight *f, const struct iovec *iov, int n, unsigned flags, bool send)
{
	take_list(f, iov, n);
	f->flags = flags;
	switch (draw(f, 4)) {
	case 0:
		errno = draw(f, 4) ? EAGAIN : EINTR;
		return -1;
	case 1:
		f->on = true;
		f->polls = (int)draw(f, POLLS);
		for (int i = 0; !send && i < f->n; i++) /* it is the engine's now */
			memset(f->iov[i].iov_base, FILL, f->iov[i].iov_len);
		f->crc = crc_of(f);
		return still_in_flight();
	default:
		return carry_out(io, f, send);
	}
}

static ssize_t call(struct tcp_io *io, struct flight *f, const struct iovec *iov, int n, unsigned flags, bool send)
{
	if (!f->on)
		return start(io, f, iov, n, flags, send);
	check_same(f, iov, n);
	return complete(io, f, send);
}

static ssize_t scripted_send(struct tcp_io *io, const struct iovec *iov, int n, unsigned flags)
{
	return call(io, &((struct script *)io->engine)->send, iov, n, flags, true);
}

static ssize_t scripted_recv(struct tcp_io *io, const struct iovec *iov, int n)
{
	return call(io, &((struct script *)io->engine)->recv, iov, n, 0, false);
}

/* Some of it may have been moved before it could be stopped. */
static size_t cancel(struct tcp_io *io, struct flight *f, bool send)
{
	ssize_t n = 0;

	if (!f->on)
		return 0;
	CHECK_EQ(crc_of(f), f->crc);
	if (draw(f, 2))
		n = carry_out(io, f, send);
	f->on = false;
	return n > 0 ? (size_t)n : 0;
}

static size_t scripted_cancel_send(struct tcp_io *io)
{
	return cancel(io, &((struct script *)io->engine)->send, true);
}

static size_t scripted_cancel_recv(struct tcp_io *io)
{
	return cancel(io, &((struct script *)io->engine)->recv, false);
}

static void scripted_open(struct tcp_io *io, int fd)
{
	struct script *s = calloc(1, sizeof(*s));

	CHECK(s);
	s->send.random = random_at(2 * (uint64_t)fd);
	s->recv.random = random_at(2 * (uint64_t)fd + 1);
	io->engine = s;
	tcp_io_sockets.open(io, fd);
}

static int scripted_replace(struct tcp_io *io, int fd)
{
	const struct script *s = io->engine;

	CHECK(!s->send.on && !s->recv.on);
	return tcp_io_sockets.replace(io, fd);
}

static void scripted_close(struct tcp_io *io)
{
	tcp_io_sockets.close(io);
	free(io->engine);
	io->engine = NULL;
}

__attribute__((constructor)) static void install(void)
{
	static struct tcp_io_ops scripted;
	const char *wanted = getenv("GANTRY_TEST_IO");

	if (!wanted || strcmp(wanted, "scripted") != 0)
		return;
	scripted = tcp_io_sockets;
	scripted.name = "scripted";
	scripted.open = scripted_open;
	scripted.replace = scripted_replace;
	scripted.close = scripted_close;
	scripted.send = scripted_send;
	scripted.splice = NULL;
	scripted.recv = scripted_recv;
	scripted.cancel_send = scripted_cancel_send;
	scripted.cancel_recv = scripted_cancel_recv;
	tcp_io_engine = &scripted;
}

/* Named by the tests' main, so that the linker takes this file. */
const char *io_engine_name(void)
{
	return tcp_io_engine->name;
}
