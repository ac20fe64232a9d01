/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory for other processes; device/share.h says how and why.
 *
 *   taker                                  offerer
 *   connect                          ->    accept; of the right user?
 *   {magic, token}                   ->    an offer with this token?
 *                                    <-    {magic, 0} and the file; closed on both sides
 *
 * Packets (SOCK_SEQPACKET), so a word is there whole or not at all. What was sent before closing stays readable, so
 * neither side waits for the other's goodbye.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"
#include "device/host/host.h"
#include "device/share.h"

enum { VISITORS = 8, ACCEPTS = 32, BACKLOG = 128 };
#define MAGIC 0x314d485347544e47ull /* "GNTGSHM1" */
#define SILENCE_NS 1000000000ull    /* how long a visitor may say nothing */
#define PACE_NS 200000ull	    /* between two attempts of a taker */

enum { WORD = 24 }; /* magic, token */

struct visitor {
	int here; /* 0: a free place */
	int fd;
	uint64_t until_ns;
	uint64_t user;
};

/* The socket exists while there are offers that have not been taken. */
MUTEX_KIND(share_mu);
static struct share_mu share_mu_one;
static struct gantry_list offers GUARDED_BY(share_mu) = {&offers, &offers};
static int listen_fd GUARDED_BY(share_mu) = -1;
static uint64_t name_now GUARDED_BY(share_mu);
static struct visitor visitors[VISITORS] GUARDED_BY(share_mu);
static struct gantry_ratelimit stranger_limit GUARDED_BY(share_mu);

static socklen_t address_of(uint64_t name, struct sockaddr_un *ret)
{
	int n;

	memset(ret, 0, sizeof(*ret));
	ret->sun_family = AF_UNIX;
	n = snprintf(ret->sun_path + 1, sizeof(ret->sun_path) - 1, "gantry-%016llx", (unsigned long long)name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static uint64_t user_of(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 ? UINT64_MAX : cred.uid;
}

static gantry_result open_socket(int *ret_fd)
{
	*ret_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*ret_fd < 0)
		FAIL_NOW(errno == EMFILE || errno == ENFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM,
			 "socket for shared memory: %s", strerror(errno));
	return GANTRY_OK;
}

static gantry_result start_listening(void) REQUIRES(share_mu)
{
	gantry_result r = GANTRY_OK;
	struct sockaddr_un a;
	int fd = -1;

	TRY(gantry_random_bytes(&name_now, sizeof(name_now)));
	name_now |= 1; /* 0 means none */
	TRY(open_socket(&fd));
	if (bind(fd, (struct sockaddr *)&a, address_of(name_now, &a)) || listen(fd, BACKLOG))
		FAIL(GANTRY_ERR_SYSTEM, "listen on the socket for shared memory: %s", strerror(errno));
	listen_fd = fd;
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	return r;
}

static void drop_visitor(struct visitor *v, const char *why) REQUIRES(share_mu)
{
	uint32_t more;

	if (why && gantry_ratelimit_pass(&stranger_limit, &more))
		LOG_INFO(DEVICE, "refused a connection of user %llu to the shared-memory socket: %s%s",
			 (unsigned long long)v->user, why, LEFT_OUT(more));
	close(v->fd);
	v->here = 0;
}

static void stop_listening(void) REQUIRES(share_mu)
{
	for (int i = 0; i < VISITORS; i++)
		if (visitors[i].here)
			drop_visitor(&visitors[i], NULL);
	if (listen_fd >= 0)
		close(listen_fd);
	listen_fd = -1;
}

static int send_file(int to, int file)
{
	uint8_t word[WORD] = {0};

	put64(word, MAGIC);
	return gantry_file_send(to, word, sizeof(word), MSG_DONTWAIT, file) == (ssize_t)sizeof(word);
}

static struct gantry_offer *offer_for(const uint8_t *token, uint64_t user) REQUIRES(share_mu)
{
	gantry_list_each_entry (o, &offers, struct gantry_offer, node)
		if (!o->given && o->user == user && gantry_equal_secret(token, o->token, sizeof(o->token)))
			return o;
	return NULL;
}

/* Reads a visitor's word: it leaves with the file, or is turned away, or may stay a little. */
static void hear_visitor(struct visitor *v, uint64_t now) REQUIRES(share_mu)
{
	uint8_t word[WORD];
	ssize_t n = recv(v->fd, word, sizeof(word), MSG_DONTWAIT | MSG_TRUNC);
	struct gantry_offer *o;

	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		if (now > v->until_ns)
			drop_visitor(v, "sent no token in time");
		return;
	}
	o = n == (ssize_t)sizeof(word) && get64(word) == MAGIC ? offer_for(word + 8, v->user) : NULL;
	if (!o) {
		drop_visitor(v, n > 0 ? "no matching token" : "closed without sending a token");
		return;
	}
	/* A taker that is gone already never got it: the offer stands. */
	o->given = send_file(v->fd, gantry_host_file_of(o->memory));
	drop_visitor(v, NULL);
}

static int is_expected(uint64_t user) REQUIRES(share_mu)
{
	gantry_list_each (pos, &offers) {
		if (gantry_container(pos, struct gantry_offer, node)->user == user)
			return 1;
	}
	return 0;
}

/* A new connection sends its token at once or waits; when all places are taken, the one that has been silent longest is
 * dropped. */
static void let_in(int fd, uint64_t now) REQUIRES(share_mu)
{
	struct visitor v = {1, fd, now + SILENCE_NS, user_of(fd)}, *place = &visitors[0];

	if (!is_expected(v.user)) {
		drop_visitor(&v, "unexpected user");
		return;
	}
	hear_visitor(&v, now);
	if (!v.here)
		return;
	for (int i = 0; i < VISITORS && place->here; i++)
		if (!visitors[i].here || visitors[i].until_ns < place->until_ns)
			place = &visitors[i];
	if (place->here)
		drop_visitor(place, "sent no token, and other connections are waiting");
	*place = v;
}

static void serve_visitors(void) REQUIRES(share_mu)
{
	uint64_t now = gantry_now_ns();

	for (int i = 0; i < VISITORS; i++)
		if (visitors[i].here)
			hear_visitor(&visitors[i], now);
	for (int i = 0; i < ACCEPTS && listen_fd >= 0; i++) {
		int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0)
			break; /* no connection, or no free descriptor: connections wait in the backlog */
		let_in(fd, now);
	}
}

gantry_result gantry_share_offer(struct gantry_offer *o, void *ptr, uint64_t user,
				 struct gantry_share_address *ret_address)
{
	gantry_result r = GANTRY_OK;

	share_mu_lock(&share_mu_one);
	if (listen_fd < 0)
		TRY(start_listening());
	*o = (struct gantry_offer){.user = user};
	TRY(gantry_random_bytes(o->token, sizeof(o->token)));
	o->memory = ptr;
	gantry_list_append(&offers, &o->node);
	ret_address->name = name_now;
	memcpy(ret_address->token, o->token, sizeof(o->token));
out:
	share_mu_unlock(&share_mu_one);
	return r;
}

gantry_result gantry_share_serve(struct gantry_offer *o)
{
	bool given;

	share_mu_lock(&share_mu_one);
	if (!o->given)
		serve_visitors();
	given = o->given;
	share_mu_unlock(&share_mu_one);
	return given ? GANTRY_OK : GANTRY_AGAIN;
}

void gantry_share_withdraw(struct gantry_offer *o)
{
	if (!o->memory)
		return;
	share_mu_lock(&share_mu_one);
	gantry_list_remove(&o->node);
	o->memory = NULL;
	if (gantry_list_empty(&offers))
		stop_listening();
	share_mu_unlock(&share_mu_one);
}

/* AGAIN with the socket closed: the offerer hung up, so start over. */
static gantry_result receive_file(struct gantry_taker *t, size_t size, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	uint8_t word[WORD] = {0};
	int fd;
	ssize_t n = gantry_file_receive(t->fd, word, sizeof(word), MSG_DONTWAIT, &fd);
	char advice[GANTRY_ADVICE_TEXT];

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return GANTRY_AGAIN;
	if (n <= 0) {
		gantry_share_taker_close(t);
		return GANTRY_AGAIN;
	}
	if (fd == -2)
		FAIL(GANTRY_ERR_LIMIT, "no descriptor for shared memory: %s", gantry_nofile_advice(advice));
	if (n != (ssize_t)sizeof(word) || get64(word) != MAGIC || fd < 0)
		FAIL(GANTRY_ERR_PROTOCOL, "received a packet without a file descriptor");
	TRY(gantry_host_import(fd, size, ret_ptr));
	gantry_share_taker_close(t);
out:
	if (fd >= 0)
		close(fd);
	return r;
}

static gantry_result call_on(struct gantry_taker *t, const struct gantry_share_address *from, uint64_t user)
{
	gantry_result r = GANTRY_OK;
	uint8_t word[WORD];
	struct sockaddr_un a;
	socklen_t len = address_of(from->name, &a);
	int fd = -1;

	TRY(open_socket(&fd));
	if (connect(fd, (struct sockaddr *)&a, len) < 0) {
		r = GANTRY_AGAIN; /* a full backlog, or no listener yet */
		goto out;
	}
	if (user_of(fd) != user) /* before the token is sent */
		FAIL(GANTRY_ERR_AUTH, "the shared-memory socket belongs to user %llu, but the peer is user %llu",
		     (unsigned long long)user_of(fd), (unsigned long long)user);
	put64(word, MAGIC);
	memcpy(word + 8, from->token, sizeof(from->token));
	if (send(fd, word, sizeof(word), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(word)) {
		r = GANTRY_AGAIN;
		goto out;
	}
	t->fd = fd;
	t->open = true;
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	return r;
}

gantry_result gantry_share_take(struct gantry_taker *t, const struct gantry_share_address *from, uint64_t user,
				size_t size, void **ret_ptr)
{
	uint64_t now = gantry_now_ns();

	if (!t->open) {
		if (now < t->again_ns)
			return GANTRY_AGAIN;
		t->again_ns = now + PACE_NS;
		TRY_NOW(call_on(t, from, user));
	}
	return receive_file(t, size, ret_ptr);
}

void gantry_share_taker_close(struct gantry_taker *t)
{
	if (t->open)
		close(t->fd);
	t->open = false;
}
