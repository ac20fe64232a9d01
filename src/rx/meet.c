#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include "rx/meet.h"

#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/tcp/forget.h"
#include "net/tcp/sock.h"

enum { RETRY_NS = 20000000 };

gantry_result meeting_address(const char *text, int listening, struct gantry_addr *ret_addr)
{
	gantry_result r = GANTRY_OK;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0)};
	struct addrinfo *found = NULL;
	const char *colon = strrchr(text, ':');
	char host[256];
	int e;

	if (!colon || !colon[1] || (size_t)(colon - text) >= sizeof(host) || (colon == text && !listening))
		FAIL(GANTRY_ERR_INVALID, "\"%s\" is not an address: host:port, or [v6]:port", text);
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	if (host[0] == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = 0;
		memmove(host, host + 1, strlen(host));
	} else if (strchr(host, ':')) {
		FAIL(GANTRY_ERR_INVALID, "\"%s\" is not an address: write [v6]:port", text);
	}
	e = getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, &found);
	if (e)
		FAIL(GANTRY_ERR_UNREACHABLE, "%s: %s", text, gai_strerror(e));
	*ret_addr = gantry_addr_of(found->ai_addr);
	if (ret_addr->sa.sa_family == AF_UNSPEC)
		FAIL(GANTRY_ERR_UNREACHABLE, "%s is neither an IPv4 nor an IPv6 address", text);
out:
	if (found)
		freeaddrinfo(found);
	return r;
}

static void fail(struct meeting *m, gantry_result r, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail(struct meeting *m, gantry_result r, const char *fmt, ...)
{
	va_list args;

	m->state = MEET_FAILED;
	m->error = r;
	va_start(args, fmt);
	vsnprintf(m->text, sizeof(m->text), fmt, args);
	va_end(args);
}

/* The side that connects makes another attempt while there is time; the one that accepts gives up. */
static void again(struct meeting *m, gantry_result r, const char *what, const char *why)
{
	char peer[GANTRY_ADDR_TEXT];

	if (m->fd >= 0)
		close(m->fd);
	m->fd = -1;
	m->at = 0;
	if (!m->dials || gantry_now_ns() + RETRY_NS >= m->deadline) {
		fail(m, r, "%s with %s: %s", what, gantry_addr_text(&m->to, peer), why);
		return;
	}
	m->state = MEET_DIAL;
	m->error = r;
	snprintf(m->text, sizeof(m->text), "%s with %s: %s", what, gantry_addr_text(&m->to, peer), why);
	m->retry_at = gantry_now_ns() + RETRY_NS;
}

/* Everything of the network's that the meeting has made. */
static void drop_net(struct meeting *m)
{
	struct gantry_net *net = m->rx->net;

	if (m->listen)
		net->ops->close_listen(net, m->listen);
	m->listen = NULL;
	tcp_connect_forget(m->handle);
	rx_conn_destroy(m->conn);
	m->conn = NULL;
	m->peer_ready = 0;
	memset(m->handle, 0, sizeof(m->handle));
}

gantry_result meeting_create(struct gantry_rx *rx, int fd, const struct gantry_addr *peer, uint64_t deadline,
			     struct meeting **ret_meeting)
{
	gantry_result r = GANTRY_OK;
	struct meeting *m = calloc(1, sizeof(*m));

	if (!m)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a meeting");
	gantry_list_init(&m->node);
	m->rx = rx;
	m->fd = fd;
	m->to = *peer;
	m->dials = fd < 0;
	m->deadline = deadline;
	m->state = m->dials ? MEET_DIAL : MEET_HEAR;
	*ret_meeting = m;
out:
	return r;
}

void meeting_destroy(struct meeting *m)
{
	if (!m)
		return;
	if (m->fd >= 0)
		close(m->fd);
	drop_net(m);
	gantry_list_remove(&m->node);
	free(m);
}

/* The connection, and the network's listener whose handle goes into our hello. */
static gantry_result prepare_hello(struct meeting *m, uint64_t id)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx *rx = m->rx;
	struct rx_hello h = {
		.version = RX_VERSION,
		.kind = m->dials ? RX_HELLO_CONNECT : RX_HELLO_ACCEPT,
		.epoch = rx->epoch,
		.id = id,
	};

	TRY(rx_conn_create(rx, id, &m->conn));
	TRY(rx->net->ops->listen(rx->net, m->conn->ctx, rx->net_dev, h.handle, &m->listen));
	rx_hello_encode(&h, m->hello);
	m->at = 0;
out:
	return r;
}

static void dial(struct meeting *m)
{
	int e;

	if (gantry_now_ns() < m->retry_at)
		return;
	drop_net(m);
	if (prepare_hello(m, rx_random()) != GANTRY_OK) {
		fail(m, GANTRY_ERR_SYSTEM, "%s", gantry_last_error());
		return;
	}
	e = sock_connect(NULL, NULL, &m->to, &m->fd);
	if (e && e != EINPROGRESS)
		again(m, sock_errno_class(e) == SOCK_LIMIT ? GANTRY_ERR_LIMIT : GANTRY_ERR_UNREACHABLE, "connecting",
		      strerror(e));
	else
		m->state = MEET_SAY;
}

static void say(struct meeting *m)
{
	ssize_t n = send(m->fd, m->hello + m->at, RX_HELLO_SIZE - m->at, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN || errno == EINPROGRESS))
		return;
	if (n < 0) {
		again(m, errno == ECONNREFUSED ? GANTRY_ERR_REFUSED : GANTRY_ERR_UNREACHABLE, "connecting",
		      strerror(errno));
		return;
	}
	m->at += (size_t)n;
	if (m->at < RX_HELLO_SIZE)
		return;
	m->at = 0;
	m->state = m->dials ? MEET_HEAR : MEET_NET;
}

/* The peer's hello is whole. */
static void heard(struct meeting *m)
{
	struct rx_hello h;
	gantry_result r = rx_hello_decode(m->hello, &h);
	char peer[GANTRY_ADDR_TEXT];

	gantry_addr_text(&m->to, peer);
	if (r == GANTRY_ERR_VERSION) {
		fail(m, r, "%s speaks another version of the protocol than %d", peer, RX_VERSION);
		return;
	}
	if (r != GANTRY_OK || h.kind != (m->dials ? RX_HELLO_ACCEPT : RX_HELLO_CONNECT) ||
	    (m->dials && h.id != m->conn->id)) {
		m->stranger = 1;
		fail(m, GANTRY_ERR_PROTOCOL, "%s does not speak the protocol of gantry/rx.h", peer);
		return;
	}
	memcpy(m->handle, h.handle, sizeof(m->handle));
	tcp_handle_received(m->handle);
	if (!m->dials && prepare_hello(m, h.id) != GANTRY_OK) {
		fail(m, GANTRY_ERR_SYSTEM, "%s", gantry_last_error());
		return;
	}
	m->conn->peer_epoch = h.epoch;
	snprintf(m->conn->peer, sizeof(m->conn->peer), "%s epoch %016llx", peer, (unsigned long long)h.epoch);
	m->state = m->dials ? MEET_NET : MEET_SAY;
}

static void hear(struct meeting *m)
{
	ssize_t n = recv(m->fd, m->hello + m->at, RX_HELLO_SIZE - m->at, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		m->stranger = 1;
		again(m, n ? GANTRY_ERR_PEER_LOST : GANTRY_ERR_PEER_CLOSED, "meeting",
		      n ? strerror(errno) : "it closed the connection before it said anything");
		return;
	}
	m->at += (size_t)n;
	if (!rx_hello_may_be(m->hello, m->at)) {
		char peer[GANTRY_ADDR_TEXT];

		m->stranger = 1;
		fail(m, GANTRY_ERR_PROTOCOL, "%s does not speak the protocol of gantry/rx.h",
		     gantry_addr_text(&m->to, peer));
	} else if (m->at == RX_HELLO_SIZE) {
		heard(m);
	}
}

/* Has the peer gone before it was ready? */
static int peer_gone(struct meeting *m)
{
	uint8_t byte;
	ssize_t n;

	if (m->peer_ready)
		return 0;
	n = recv(m->fd, &byte, 1, MSG_DONTWAIT);
	m->peer_ready = n == 1;
	return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static void make_net(struct meeting *m)
{
	struct gantry_rx_conn *c = m->conn;
	struct gantry_net *net = m->rx->net;
	struct gantry_net_device_handle *filled = &c->device_handle, *none = NULL;
	gantry_result r = GANTRY_OK;
	uint8_t ready = 1;

	if (!c->out.comm)
		TRY(net->ops->connect(net, c->ctx, m->rx->net_dev, m->handle, &c->out.comm, &none));
	if (!c->in.comm)
		TRY(net->ops->accept(net, m->listen, &c->in.comm, &filled));
	if (!c->out.comm || !c->in.comm) {
		if (peer_gone(m))
			again(m, GANTRY_ERR_PEER_LOST, "meeting", "the peer went away");
		return;
	}
	net->ops->close_listen(net, m->listen);
	m->listen = NULL;
	TRY(rx_conn_start(c));
	if (send(m->fd, &ready, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
		LOG_DEBUG(RX, "%s: the rendezvous ended early: %s", c->peer, strerror(errno));
	m->state = MEET_READY;
out:
	if (r == GANTRY_OK)
		return;
	if (gantry_result_is_remote(r))
		again(m, r, "meeting", gantry_last_error());
	else
		fail(m, r, "%s", gantry_last_error());
}

void meeting_step(struct meeting *m)
{
	char peer[GANTRY_ADDR_TEXT], before[RX_TEXT];

	switch (m->state) {
	case MEET_DIAL:
		dial(m);
		break;
	case MEET_SAY:
		say(m);
		break;
	case MEET_HEAR:
		hear(m);
		break;
	case MEET_NET:
		make_net(m);
		break;
	case MEET_READY:
	case MEET_FAILED:
		return;
	}
	if (m->state < MEET_READY && gantry_now_ns() >= m->deadline) {
		m->stranger = m->state == MEET_HEAR && !m->dials;
		snprintf(before, sizeof(before), "%s", m->text);
		fail(m, GANTRY_ERR_TIMEOUT, "%s did not answer in time%s%s", gantry_addr_text(&m->to, peer),
		     before[0] ? "; last: " : "", before);
	}
}
