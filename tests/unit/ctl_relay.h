/*
 * A relay between ranks and hub that a test can hold up: it listens where the id says (GANTRY_ADVERTISE) and passes
 * bytes on to where the hub really listens. Frozen it takes everything and passes on nothing, like a stopped peer or a
 * network that loses packets; cut it closes all connections.
 */
#ifndef GANTRY_TESTS_CTL_RELAY_H
#define GANTRY_TESTS_CTL_RELAY_H

#include <fcntl.h>
#include <poll.h>

#include "comm/hub.h"
#include "ctl_util.h"

enum { RELAY_PAIRS = 16, RELAY_TAPE = 4096 };

struct relay {
	int listen_fd;
	struct gantry_addr to;
	pthread_t thread;
	int stop, frozen, cut;	  /* atomic; set by the test */
	int fds[2 * RELAY_PAIRS]; /* a pair belongs together: 2i and 2i+1 */
	int npairs;
	uint64_t passed_ms; /* atomic: when it last passed something on, or a little earlier */
	uint64_t turned_ms; /* its own: of the last turn */
	uint64_t held_up;   /* ms: between two turns, at most; to be read when it has stopped */
	/* What the first connection's rank has said, as far as there is room. ntape: atomic. */
	uint8_t tape[RELAY_TAPE];
	size_t ntape;
	int first; /* the descriptor that is recorded; 0: nothing was said yet */
};

static inline int relay_socket(void)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

/* Bound but not listening: connections are refused until relay_start. Tells the hub to advertise it. */
static inline void relay_make(struct relay *r)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	char text[64];

	memset(r, 0, sizeof(*r));
	r->listen_fd = relay_socket();
	CHECK_EQ(bind(r->listen_fd, (struct sockaddr *)&a, sizeof(a)), 0);
	CHECK_EQ(getsockname(r->listen_fd, (struct sockaddr *)&a, &len), 0);
	snprintf(text, sizeof(text), "127.0.0.1:%d", ntohs(a.sin_port));
	set_env("GANTRY_ADVERTISE", text);
}

static inline void relay_drop(struct relay *r, int pair)
{
	close(r->fds[2 * pair]);
	close(r->fds[2 * pair + 1]);
	r->npairs--;
	r->fds[2 * pair] = r->fds[2 * r->npairs];
	r->fds[2 * pair + 1] = r->fds[2 * r->npairs + 1];
}

static inline void relay_accept(struct relay *r)
{
	int in = accept4(r->listen_fd, NULL, NULL, SOCK_CLOEXEC), out;

	if (in < 0 || r->npairs == RELAY_PAIRS) {
		close(in);
		return;
	}
	out = relay_socket();
	if (connect(out, &r->to.sa, sizeof(r->to.in))) {
		close(in);
		close(out);
		return;
	}
	r->fds[2 * r->npairs] = in;
	r->fds[2 * r->npairs++ + 1] = out;
}

static inline void relay_record(struct relay *r, int fd, const char *bytes, size_t n)
{
	size_t at = r->ntape, room = RELAY_TAPE - at;

	if (!r->first)
		r->first = fd;
	if (r->first != fd || !room)
		return;
	memcpy(r->tape + at, bytes, n < room ? n : room);
	__atomic_store_n(&r->ntape, at + (n < room ? n : room), __ATOMIC_RELEASE);
}

static inline void relay_turns(struct relay *r)
{
	uint64_t now = now_ms();

	if (now - r->turned_ms > r->held_up)
		r->held_up = now - r->turned_ms;
	r->turned_ms = now;
}

static inline void *relay_thread(void *arg)
{
	struct relay *r = arg;
	static __thread char buf[65536];

	while (!__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE)) {
		struct pollfd p[2 * RELAY_PAIRS + 1] = {{.fd = r->listen_fd, .events = POLLIN}};
		int n = 2 * r->npairs;

		relay_turns(r);
		for (int i = 0; i < n; i++)
			p[i + 1] = (struct pollfd){.fd = r->fds[i], .events = POLLIN};
		if (__atomic_load_n(&r->cut, __ATOMIC_ACQUIRE)) {
			while (r->npairs)
				relay_drop(r, 0);
			sleep_ms(1);
			continue;
		}
		if (__atomic_load_n(&r->frozen, __ATOMIC_ACQUIRE)) {
			sleep_ms(1);
			continue;
		}
		poll(p, (nfds_t)n + 1, 5);
		for (int i = n - 1; i >= 0; i--) {
			ssize_t got;

			if (!p[i + 1].revents)
				continue;
			got = recv(r->fds[i], buf, sizeof(buf), MSG_DONTWAIT);
			if (got > 0) {
				__atomic_store_n(&r->passed_ms, now_ms(), __ATOMIC_RELEASE);
				if (!(i & 1))
					relay_record(r, r->fds[i], buf, (size_t)got);
				send(r->fds[i ^ 1], buf, (size_t)got, MSG_NOSIGNAL);
			} else if (got == 0 || errno != EAGAIN) {
				relay_drop(r, i / 2);
				break;
			}
		}
		if (p[0].revents)
			relay_accept(r);
	}
	relay_turns(r);
	while (r->npairs)
		relay_drop(r, 0);
	return NULL;
}

/* After the id was made: finds out where the hub really is. */
static inline void relay_start(struct relay *r, const struct gantry_unique_id *id)
{
	struct hub *hub;

	inet_loop_lock();
	hub = hub_find(gantry_ctl_comm_id(id));
	CHECK(hub != NULL);
	r->to = hub->port->addr;
	inet_loop_unlock();
	CHECK_EQ(listen(r->listen_fd, 64), 0);
	r->turned_ms = now_ms();
	CHECK_EQ(pthread_create(&r->thread, NULL, relay_thread, r), 0);
}

static inline void relay_stop(struct relay *r)
{
	__atomic_store_n(&r->stop, 1, __ATOMIC_RELEASE);
	pthread_join(r->thread, NULL);
	close(r->listen_fd);
	set_env("GANTRY_ADVERTISE", NULL);
}

#endif
