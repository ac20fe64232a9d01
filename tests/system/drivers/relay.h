/*
 * A relay between the network's processes and one of their ports, with a hand on every connection: how many bytes have
 * passed each way, which lane it is (the hello says so), its first bytes for whoever wants to say them again, and a
 * rule that says how many bytes may pass. One thread, which looks at everything every millisecond.
 */
#ifndef GANTRY_TESTS_RELAY_H
#define GANTRY_TESTS_RELAY_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "inet/handshake.h"
#include "net/tcp/hello.h"
#include "pair.h"

enum {
	RELAY_CONNS = 256,
	RELAY_HELLO = INET_HELLO_SIZE + WIRE_HELLO_SIZE,
	RELAY_LANE = INET_HELLO_SIZE + 72,
	RELAY_FIRST = RELAY_HELLO + INET_PROOF_SIZE,
	RELAY_ALL = 1 << 30
};
enum { TO_SERVER, TO_CLIENT };

struct relay_conn {
	int fd[2];	   /* the client's, the server's; -1: over */
	int lane, nth;	   /* of its lane, from 0; -1: it has not said hello */
	uint64_t since;	   /* ms: when it said hello */
	uint64_t moved[2]; /* TO_SERVER, TO_CLIENT */
	uint8_t first[RELAY_FIRST];
};

struct relay {
	int listen;
	uint16_t port;		    /* of the relay */
	struct sockaddr_in to;	    /* the server */
	uint64_t moved_ms;	    /* when a byte passed last; relaxed */
	int hellos[WIRE_MAX_LANES]; /* so far; relaxed */
	/* How many bytes may have passed that way. Negative: the connection is reset. */
	int64_t (*allow)(const struct relay_conn *c, int way);
	pthread_mutex_t mu; /* the thread holds it while it is at work: connections */
	int n;
	struct relay_conn conns[RELAY_CONNS];
};

/* A port that is free now. */
static inline uint16_t relay_free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
	close(fd);
	return ntohs(a.sin_port);
}

static inline void relay_drop(struct relay_conn *c)
{
	struct linger hard = {1, 0};

	for (int i = 0; i < 2; i++) {
		setsockopt(c->fd[i], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		close(c->fd[i]);
		c->fd[i] = -1;
	}
}

static inline void relay_accept(struct relay *r)
{
	int fd = accept4(r->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct relay_conn *c = &r->conns[r->n];

	if (fd < 0)
		return;
	CHECK(r->n < RELAY_CONNS);
	*c = (struct relay_conn){.fd = {fd, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}, .lane = -1};
	if (connect(c->fd[1], (struct sockaddr *)&r->to, sizeof(r->to)) == 0)
		r->n++;
	else /* the server is gone */
		relay_drop(c);
}

/* Bytes of one way, as many as may pass. */
static inline void relay_move(struct relay *r, struct relay_conn *c, int way)
{
	uint8_t buf[64 << 10];
	int64_t room = r->allow ? r->allow(c, way) : INT64_MAX;
	ssize_t n;

	if (room < 0) {
		relay_drop(c);
		return;
	}
	room -= (int64_t)c->moved[way];
	if (room <= 0)
		return;
	n = recv(c->fd[way], buf, (uint64_t)room < sizeof(buf) ? (size_t)room : sizeof(buf), MSG_DONTWAIT);
	if (n == 0)
		shutdown(c->fd[!way], SHUT_WR);
	if (n <= 0)
		return;
	for (ssize_t i = 0; way == TO_SERVER && i < n && c->moved[way] + (uint64_t)i < RELAY_FIRST; i++)
		c->first[c->moved[way] + (uint64_t)i] = buf[i];
	for (ssize_t at = 0, k; at < n; at += k) {
		k = send(c->fd[!way], buf + at, (size_t)(n - at), MSG_NOSIGNAL);
		if (k < 0 && errno == EAGAIN)
			k = 0;
		else if (k <= 0)
			return;
	}
	c->moved[way] += (uint64_t)n;
	__atomic_store_n(&r->moved_ms, now_ms(), __ATOMIC_RELAXED);
}

static inline void relay_hello(struct relay *r, struct relay_conn *c)
{
	uint8_t hello[RELAY_HELLO], lane;

	if (recv(c->fd[0], hello, sizeof(hello), MSG_PEEK | MSG_DONTWAIT) < (ssize_t)sizeof(hello))
		return;
	lane = hello[RELAY_LANE];
	CHECK(lane < WIRE_MAX_LANES);
	c->nth = __atomic_fetch_add(&r->hellos[lane], 1, __ATOMIC_RELAXED);
	c->since = now_ms();
	c->lane = lane;
	__atomic_store_n(&r->moved_ms, c->since, __ATOMIC_RELAXED);
}

static inline void *relay_run(void *arg)
{
	struct relay *r = arg;

	for (;; sleep_ms(1)) {
		pthread_mutex_lock(&r->mu);
		relay_accept(r);
		for (int i = 0; i < r->n; i++) {
			struct relay_conn *c = &r->conns[i];

			if (c->fd[0] >= 0 && c->lane < 0)
				relay_hello(r, c);
			for (int way = 0; way < 2 && c->fd[0] >= 0 && c->lane >= 0; way++)
				relay_move(r, c, way);
		}
		pthread_mutex_unlock(&r->mu);
	}
	return NULL;
}

/* So many hellos have come for this lane. */
static inline int relay_hellos(const struct relay *r, int lane)
{
	return __atomic_load_n(&r->hellos[lane], __ATOMIC_RELAXED);
}

/* What the client of the first connection has said first. */
static inline void relay_first(struct relay *r, uint8_t ret[RELAY_FIRST])
{
	pthread_mutex_lock(&r->mu);
	memcpy(ret, r->conns[0].first, RELAY_FIRST);
	pthread_mutex_unlock(&r->mu);
}

/* Listens, and runs for as long as the process does. Fork the sides before. */
static inline void relay_listen(struct relay *r, uint16_t to)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(a);

	r->to = a;
	r->to.sin_port = htons(to);
	r->listen = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	CHECK(r->listen >= 0 && bind(r->listen, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(r->listen, 64) == 0);
	CHECK(getsockname(r->listen, (struct sockaddr *)&a, &len) == 0);
	r->port = ntohs(a.sin_port);
}

static inline void relay_start(struct relay *r)
{
	pthread_t thread;

	CHECK_EQ(pthread_mutex_init(&r->mu, NULL), 0);
	CHECK_EQ(pthread_create(&thread, NULL, relay_run, r), 0);
	pthread_detach(thread);
}

/* In a side, before its network is initialised: peers are sent to the relay. */
static inline void relay_advertise(const struct relay *r)
{
	char text[64];

	snprintf(text, sizeof(text), "%d", ntohs(r->to.sin_port));
	setenv("GANTRY_PORT_RANGE", text, 1);
	snprintf(text, sizeof(text), "127.0.0.1:%d", r->port);
	setenv("GANTRY_ADVERTISE", text, 1);
}

#endif
