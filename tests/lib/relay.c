/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "base/bytes.h"
#include "base/seal.h"

static void drop_conn(struct relay_conn *c, int reset)
{
	struct linger hard = {1, 0};

	for (int i = 0; i < 2; i++) {
		if (reset)
			setsockopt(c->fd[i], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		close(c->fd[i]);
		c->fd[i] = -1;
		free(c->part[i]);
		c->part[i] = NULL;
	}
}

static void accept_conn(struct relay *r)
{
	struct relay_conn *c = &r->conns[r->n];
	int one = 1, fd;

	fd = accept4(r->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	CHECK(r->n < RELAY_CONNS);
	if (r->find)
		UNTIL(r->find(&r->to));
	*c = (struct relay_conn){.fd = {fd, dial(&r->to)}, .lane = r->lanes ? -1 : 0, .since = now_ms()};
	if (c->fd[1] < 0) { /* the server is gone */
		close(fd);
		return;
	}
	setsockopt(c->fd[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(c->fd[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	r->n++;
}

/*
 * Bytes of one way, as many as may pass and as the other side takes: what it does not take stays in the socket, so that
 * one that does not read holds up nobody else. 1: there may be more.
 */
static int move_bytes(struct relay *r, struct relay_conn *c, int way)
{
	static _Thread_local uint8_t buf[64 << 10];
	int64_t room = r->allow ? r->allow(c, way) : RELAY_ALL;
	uint64_t at = c->moved[way], end = r->swallow ? r->swallow(c, way) : UINT64_MAX;
	ssize_t n;

	if (room < 0) {
		drop_conn(c, 1);
		return 0;
	}
	room -= (int64_t)at;
	if (room <= 0)
		return 0;
	n = recv(c->fd[way], buf, (uint64_t)room < sizeof(buf) ? (size_t)room : sizeof(buf), MSG_DONTWAIT | MSG_PEEK);
	if (n == 0)
		shutdown(c->fd[!way], SHUT_WR);
	if (n < 0 && errno == ECONNRESET)
		drop_conn(c, 1);
	if (n <= 0)
		return 0;
	__atomic_store_n(&r->moved_ms, now_ms(), __ATOMIC_RELEASE);
	if (r->alter)
		r->alter(c, way, buf, (size_t)n);
	if (at < end)
		n = send(c->fd[!way], buf, end - at < (uint64_t)n ? (size_t)(end - at) : (size_t)n,
			 MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0 && errno != EAGAIN) /* a later read would say that it has ended, not that it was reset */
		drop_conn(c, 1);
	if (n <= 0)
		return 0;
	CHECK_EQ(recv(c->fd[way], buf, (size_t)n, 0), n);
	for (ssize_t i = 0; i < n && at + (uint64_t)i < RELAY_TAPE; i++)
		c->tape[way][at + (uint64_t)i] = buf[i];
	c->moved[way] += (uint64_t)n;
	return 1;
}

void relay_say(struct relay_conn *c, int way, const uint8_t *bytes, size_t n)
{
	struct pollfd room = {.fd = c->fd[!way], .events = POLLOUT};

	while (n && poll(&room, 1, UNTIL_SECONDS * 1000) == 1) {
		ssize_t some = send(room.fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (some < 0 && errno != EAGAIN)
			return;
		bytes += some > 0 ? some : 0;
		n -= some > 0 ? (size_t)some : 0;
	}
}

void relay_end_way(struct relay_conn *c, int way)
{
	shutdown(c->fd[!way], SHUT_WR);
}

/* Of the message that begins so: of the hand-shake, of TLS, or a sealed record. 0: that cannot be seen yet. */
static size_t message_size(const uint8_t *m, size_t got)
{
	if (got < GANTRY_SEAL_HEADER)
		return 0;
	if (m[0] == 'G' && m[1] == 'S')
		return get32(m + 4) + GANTRY_SEAL_EXTRA;
	if (m[0] != 'G') /* TLS */
		return 5 + ((size_t)m[3] << 8 | m[4]);
	switch (m[6]) {
	case 1:
		return INET_HELLO_SIZE + get32(m + 12);
	case 2: /* a challenge, or the answer */
		return m[10] == 7 ? INET_CHALLENGE_SIZE : INET_ANSWER_SIZE + get32(m + 12);
	default:
		return INET_PROOF_SIZE;
	}
}

/* As move_bytes, a message, or a part of it: a socket may not hold all of a large one. */
static int move_message(struct relay *r, struct relay_conn *c, int way)
{
	uint8_t *m = c->part[way] = c->part[way] ? c->part[way] : malloc(GANTRY_SEAL_MAX + GANTRY_SEAL_EXTRA);
	size_t size = message_size(m, c->part_n[way]), *got = &c->part_n[way];
	ssize_t n = recv(c->fd[way], m + *got, (size ? size : GANTRY_SEAL_HEADER) - *got, MSG_DONTWAIT);

	if (n == 0)
		relay_end_way(c, way);
	if (n <= 0)
		return 0;
	*got += (size_t)n;
	c->moved[way] += (uint64_t)n;
	if (*got != message_size(m, *got))
		return 1;
	*got = 0;
	if (m[0] == 'G' && m[1] == 'S')
		r->record(c, way, m, size);
	else
		relay_say(c, way, m, size);
	return 1;
}

static void hear_hello(struct relay *r, struct relay_conn *c)
{
	uint8_t hello[RELAY_HELLO], lane;

	if (recv(c->fd[0], hello, sizeof(hello), MSG_PEEK | MSG_DONTWAIT) < (ssize_t)sizeof(hello))
		return;
	lane = hello[RELAY_LANE];
	CHECK(lane < RELAY_LANES);
	c->nth = __atomic_fetch_add(&r->hellos[lane], 1, __ATOMIC_RELAXED);
	c->since = now_ms();
	c->lane = lane;
	__atomic_store_n(&r->moved_ms, c->since, __ATOMIC_RELEASE);
}

static void note_pass(struct relay *r)
{
	uint64_t now = now_ms();

	if (now - r->turned_ms > r->held_up)
		r->held_up = now - r->turned_ms;
	r->turned_ms = now;
}

static void pass_once(struct relay *r)
{
	int cut = __atomic_load_n(&r->cut, __ATOMIC_ACQUIRE);

	note_pass(r);
	if (!cut && __atomic_load_n(&r->frozen, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&r->mu);
	if (!cut)
		accept_conn(r);
	for (int i = 0; i < r->n; i++) {
		struct relay_conn *c = &r->conns[i];

		if (cut && c->fd[0] >= 0)
			drop_conn(c, 0);
		if (c->fd[0] >= 0 && c->lane < 0)
			hear_hello(r, c);
		for (int way = 0; way < 2; way++)
			for (int more = 16; more && c->fd[0] >= 0 && c->lane >= 0; more--)
				if (!(r->record ? move_message(r, c, way) : move_bytes(r, c, way)))
					break;
	}
	pthread_mutex_unlock(&r->mu);
}

static void *relay_main(void *arg)
{
	struct relay *r = arg;

	for (; !__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE); sleep_ms(1))
		pass_once(r);
	note_pass(r);
	return NULL;
}

void relay_make(struct relay *r, int port, int listens)
{
	r->listen = lo_bound(port, &r->port);
	CHECK(!listens || !listen(r->listen, 64));
	CHECK_EQ(pthread_mutex_init(&r->mu, NULL), 0);
}

void relay_start(struct relay *r)
{
	CHECK_EQ(listen(r->listen, 64), 0);
	CHECK_EQ(fcntl(r->listen, F_SETFL, O_NONBLOCK), 0);
	r->turned_ms = now_ms();
	CHECK_EQ(pthread_create(&r->thread, NULL, relay_main, r), 0);
}

void relay_serve(struct relay *r)
{
	relay_start(r);
	for (;;)
		pause();
}

void relay_stop(struct relay *r)
{
	__atomic_store_n(&r->stop, 1, __ATOMIC_RELEASE);
	pthread_join(r->thread, NULL);
	for (int i = 0; i < r->n; i++)
		if (r->conns[i].fd[0] >= 0)
			drop_conn(&r->conns[i], 0);
	close(r->listen);
}

void relay_advertise(const struct relay *r)
{
	char text[64];

	snprintf(text, sizeof(text), "127.0.0.1:%d", r->port);
	setenv("GANTRY_ADVERTISE", text, 1);
	snprintf(text, sizeof(text), "%d", ntohs(r->to.sin_port));
	if (r->to.sin_port)
		setenv("GANTRY_PORT_RANGE", text, 1);
}

int relay_hellos(const struct relay *r, int lane)
{
	return __atomic_load_n(&r->hellos[lane], __ATOMIC_RELAXED);
}

size_t relay_tape(struct relay *r, int way, uint8_t ret[RELAY_TAPE])
{
	size_t n;

	pthread_mutex_lock(&r->mu);
	n = r->conns[0].moved[way] < RELAY_TAPE ? (size_t)r->conns[0].moved[way] : RELAY_TAPE;
	memcpy(ret, r->conns[0].tape[way], n);
	pthread_mutex_unlock(&r->mu);
	return n;
}

uint64_t relay_passed(struct relay *r, int way)
{
	uint64_t n = 0;

	pthread_mutex_lock(&r->mu);
	for (int i = 0; i < r->n; i++)
		n += r->conns[i].moved[way];
	pthread_mutex_unlock(&r->mu);
	return n;
}

/* An end without closing: bytes that were not read would make a reset of that. */
void relay_end_lane(struct relay *r, int lane, int reset)
{
	pthread_mutex_lock(&r->mu);
	for (int i = 0; i < r->n; i++) {
		struct relay_conn *c = &r->conns[i];

		if (c->lane != lane || c->fd[0] < 0)
			continue;
		if (reset)
			drop_conn(c, 1);
		else
			CHECK(!shutdown(c->fd[0], SHUT_RDWR) && !shutdown(c->fd[1], SHUT_RDWR));
	}
	pthread_mutex_unlock(&r->mu);
}
