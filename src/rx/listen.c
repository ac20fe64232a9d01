/* SPDX-License-Identifier: Apache-2.0 */
/* Listening, accepting and connecting: meetings, many at a time, each with a deadline. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/api.h"
#include "base/clock.h"
#include "base/param.h"
#include "inet/settings.h"
#include "inet/sock.h"
#include "rx/meet.h"

/*
 * Meetings of a listener: each is a socket and a small struct; so many of them may have a place, i.e. a connection and
 * a listener of the network. When there is no room, the oldest goes that has come to nothing in the time that all have:
 * peers need less, and where they need more they try again.
 */
enum { MEETINGS_MAX = 256, PLACES_MAX = 128, ACCEPTS_PER_PASS = 16 };
enum { YOUNG_NS = 100000000, PLACED_NS = 250000000, BEGUN_NS = 1000000000 };

/* The address of the interface that the rx uses. */
static gantry_result own_address(struct gantry_rx *rx, struct gantry_addr *ret_addr)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *list = calloc(1, sizeof(*list));
	int found = 0, family = inet_wanted_family();

	if (!list)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the list of interfaces");
	TRY(gantry_nic_scan(list));
	for (int i = 0; i < list->count && !found; i++)
		for (int k = 0; k < list->nics[i].naddrs && !found; k++) {
			const struct gantry_addr *a = &list->nics[i].addrs[k];

			/* A fused device is named "a+b": the first of them. */
			found = strncmp(list->nics[i].name, rx->nic, strcspn(rx->nic, "+")) == 0 &&
				strlen(list->nics[i].name) == strcspn(rx->nic, "+") &&
				(family == AF_UNSPEC || family == a->sa.sa_family);
			if (found)
				*ret_addr = *a;
		}
	gantry_addr_set_port(ret_addr, 0);
	if (!found)
		FAIL(GANTRY_ERR_CONFIG, "interface %s has no address to listen on", rx->nic);
out:
	if (list)
		gantry_nic_list_free(list);
	free(list);
	return r;
}

gantry_result gantry_rx_listen(struct gantry_rx *rx, const char *address, struct gantry_rx_listener **ret_listener)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx_listener *l = calloc(1, sizeof(*l));
	struct gantry_addr a, bound;
	uint16_t port;

	memset(&a, 0, sizeof(a));
	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a listener");
	l->fd = -1;
	gantry_list_init(&l->meetings);
	TRY(address ? meeting_address(address, 1, &a) : own_address(rx, &a));
	port = gantry_addr_port(&a);
	TRY(sock_listen(&a, port, port, &l->fd, &bound));
	fcntl(l->fd, F_SETFL, fcntl(l->fd, F_GETFL) | O_NONBLOCK);
	gantry_addr_text(&bound, l->address);
	l->rx = rx;
	rx_mu_lock(&rx->mu);
	gantry_list_append(&rx->listeners, &l->node);
	rx_mu_unlock(&rx->mu);
	*ret_listener = l;
	l = NULL;
out:
	if (l && l->fd >= 0)
		close(l->fd);
	free(l);
	return r;
}

const char *gantry_rx_listener_address(const struct gantry_rx_listener *listener)
{
	return listener->address;
}

void gantry_rx_listener_close(struct gantry_rx_listener *listener)
{
	struct gantry_rx *rx;

	if (!listener)
		return;
	rx = listener->rx;
	rx_mu_lock(&rx->mu);
	gantry_list_each_safe (pos, &listener->meetings)
		meeting_destroy(gantry_container(pos, struct meeting, node));
	gantry_list_remove(&listener->node);
	close(listener->fd);
	rx_mu_unlock(&rx->mu);
	free(listener);
}

static void turn_away(struct gantry_rx_listener *l, struct meeting *m) REQUIRES(rx_mu)
{
	uint32_t more = 0;

	if (m->stranger)
		l->rx->counters.strangers++;
	if (gantry_ratelimit_pass(&l->quiet, &more))
		LOG_WARN(RX, "%s: %s%s", l->address, m->text, LEFT_OUT(more));
}

static void drop_meeting(struct gantry_rx_listener *l, struct meeting *m) REQUIRES(rx_mu)
{
	l->nmeetings--;
	l->nplaced -= meeting_placed(m);
	meeting_destroy(m);
}

/* What it holds is needed. A peer that this happens to tries again. */
static void recycle(struct gantry_rx_listener *l, struct meeting *m, const char *why) REQUIRES(rx_mu)
{
	char peer[GANTRY_ADDR_TEXT];

	m->stranger = 1;
	snprintf(m->text, sizeof(m->text), "%s %s, and another one has come in its place",
		 gantry_addr_text(&m->to, peer), why);
	turn_away(l, m);
	drop_meeting(l, m);
}

/* The oldest one that has not said who it is, then the oldest that has not proved it: if it has had its time. */
static struct meeting *unproved(struct gantry_rx_listener *l)
{
	uint64_t now = gantry_now_ns();
	struct meeting *asked = NULL;

	gantry_list_each_entry (m, &l->meetings, struct meeting, node) {
		if (now - m->since < YOUNG_NS)
			continue;
		if (m->state == MEET_SHAKE && m->shake.state == INET_HEAR_HELLO)
			return m;
		if (!asked && m->state == MEET_SHAKE && !m->shake.proved)
			asked = m;
	}
	return asked;
}

/* The oldest one with a place whose connections the network has not begun, then the oldest of all: if it has had its
 * time. With a secret all of them are proved, and stay until their deadline. */
static struct meeting *unconnected(struct gantry_rx_listener *l)
{
	uint64_t now = gantry_now_ns();
	struct meeting *begun = NULL;

	gantry_list_each_entry (m, &l->meetings, struct meeting, node) {
		if (l->rx->key.auth != INET_AUTH_NONE || !meeting_placed(m) || m->state >= MEET_READY)
			continue;
		if (!m->conn->in.comm && now - m->since >= PLACED_NS)
			return m;
		if (!begun && m->conn->in.comm && now - m->since >= BEGUN_NS)
			begun = m;
	}
	return begun;
}

/* New ones in; 1: something happened. */
static int take_in(struct gantry_rx_listener *l) REQUIRES(rx_mu)
{
	struct gantry_addr peer;
	struct meeting *m, *oldest = NULL;
	socklen_t len = sizeof(peer);
	int fd;

	if (l->nmeetings >= MEETINGS_MAX && !(oldest = unproved(l)))
		return 0; /* until then further ones wait in the kernel */
	memset(&peer, 0, sizeof(peer));
	fd = accept4(l->fd, &peer.sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		uint32_t more;

		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED &&
		    gantry_ratelimit_pass(&l->quiet, &more))
			LOG_WARN(RX, "%s: accept: %s", l->address, strerror(errno));
		return 0;
	}
	if (oldest)
		recycle(l, oldest, "has not said who it is");
	if (meeting_create(l->rx, fd, &peer, gantry_now_ns() + gantry_params()->connect_timeout, &m) != GANTRY_OK) {
		close(fd);
		return 0;
	}
	gantry_list_append(&l->meetings, &m->node);
	l->nmeetings++;
	return 1;
}

/* Places for those that wait for one, in the order of their coming. */
static void give_places(struct gantry_rx_listener *l) REQUIRES(rx_mu)
{
	gantry_list_each_entry (m, &l->meetings, struct meeting, node) {
		struct meeting *oldest;

		if (m->state != MEET_PLACE)
			continue;
		if (l->nplaced >= PLACES_MAX) {
			oldest = unconnected(l);
			if (!oldest)
				return;
			recycle(l, oldest, "has said hello and nothing else");
		}
		meeting_place(m);
		l->nplaced += meeting_placed(m);
	}
}

/* One round over all meetings: the first that is ready. */
static struct gantry_rx_conn *attend(struct gantry_rx_listener *l, int *ret_moved) REQUIRES(rx_mu)
{
	struct gantry_rx_conn *ready = NULL;

	for (int n = 0; n < ACCEPTS_PER_PASS && take_in(l); n++)
		*ret_moved = 1;
	give_places(l);
	gantry_list_each_entry_safe (m, &l->meetings, struct meeting, node) {
		enum meeting_state before = m->state;

		meeting_step(m);
		*ret_moved |= m->state != before;
		if (m->state == MEET_FAILED)
			turn_away(l, m);
		if (m->state == MEET_READY && !ready) {
			ready = m->conn;
			m->conn = NULL;
			l->nplaced--;
		} else if (m->state != MEET_FAILED) {
			continue;
		}
		drop_meeting(l, m);
	}
	return ready;
}

gantry_result gantry_rx_accept(struct gantry_rx_listener *listener, int64_t timeout_ns,
			       struct gantry_rx_conn **ret_conn)
{
	struct gantry_rx *rx = listener->rx;
	uint64_t deadline;
	struct gantry_rx_conn *c;
	struct gantry_waiter idle;

	TRY_NOW(gantry_deadline(timeout_ns, gantry_params()->connect_timeout, &deadline));
	gantry_waiter_init(&idle, NULL);
	rx_mu_lock(&rx->mu);
	for (;;) {
		int moved = 0;

		c = attend(listener, &moved);
		if (c || gantry_now_ns() >= deadline)
			break;
		if (rx_progress(rx) || moved)
			gantry_waiter_done(&idle);
		rx_mu_unlock(&rx->mu);
		rx_idle(&idle, deadline);
		rx_mu_lock(&rx->mu);
	}
	rx_mu_unlock(&rx->mu);
	if (!c)
		return GANTRY_ERR_TIMEOUT; /* nobody came: no news */
	*ret_conn = c;
	return GANTRY_OK;
}

gantry_result gantry_rx_connect(struct gantry_rx *rx, const char *address, int64_t timeout_ns,
				struct gantry_rx_conn **ret_conn)
{
	gantry_result r = GANTRY_OK;
	uint64_t deadline;
	struct gantry_addr to;
	struct meeting *m = NULL;
	struct gantry_waiter idle;

	memset(&to, 0, sizeof(to));
	TRY(meeting_address(address, 0, &to));
	TRY(gantry_deadline(timeout_ns, gantry_params()->connect_timeout, &deadline));
	gantry_waiter_init(&idle, NULL);
	rx_mu_lock(&rx->mu);
	r = meeting_create(rx, -1, &to, deadline, &m);
	while (m && m->state < MEET_READY) {
		enum meeting_state before = m->state;

		meeting_step(m);
		if (rx_progress(rx) || m->state != before)
			gantry_waiter_done(&idle);
		rx_mu_unlock(&rx->mu);
		rx_idle(&idle, deadline);
		rx_mu_lock(&rx->mu);
	}
	if (m && m->state == MEET_READY) {
		*ret_conn = m->conn;
		m->conn = NULL;
	} else if (m) {
		r = gantry_fail(m->error, LOG_SUBSYS, __FILE__, __LINE__, "%s", m->text);
	}
	meeting_destroy(m);
	rx_mu_unlock(&rx->mu);
out:
	return r;
}
