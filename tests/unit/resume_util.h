/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of messages between two ends in this process, whose sockets are reset at random moments. */
#ifndef GANTRY_TESTS_RESUME_UTIL_H
#define GANTRY_TESTS_RESUME_UTIL_H

#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/atomic.h"
#include "tcp_util.h"

enum { DEPTH = 6, LANES = 3 };

static uint64_t seed = 1;

static inline uint32_t any(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

/* Resets the socket of a lane at one end, the sender's or the other; lane -1: all of them. */
static inline void cut_at(int sender, int lane)
{
	static const struct sockaddr nobody = {.sa_family = AF_UNSPEC};

	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node) {
		for (int i = 0; l->entry->initiator == sender && i < l->nlanes; i++)
			if (lane < 0 || i == lane) /* ThreadSanitizer takes connect for the creation of a socket */
				syscall(SYS_connect, l->lanes[i].io.fd, &nobody, sizeof(nobody));
	}
	inet_loop_unlock();
}

static inline void cut(int lane)
{
	cut_at((int)any(2), lane);
}

static inline uint32_t resumed(void)
{
	uint32_t n = 0;

	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node)
		n += l->resume ? load_relaxed(&l->resume->resumed) : 0;
	inet_loop_unlock();
	return n;
}

static inline int links_open(void)
{
	int n = 0;

	inet_loop_lock();
	gantry_list_each (pos, &tcp_network.links)
		n++;
	inet_loop_unlock();
	return n;
}

/* Messages that were held, and then copied because nobody said that they had come. */
static inline uint64_t adopted(void)
{
	uint64_t n = 0;

	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node) {
		link_mu_lock(&l->mu);
		n += l->resume ? l->resume->adopted : 0;
		link_mu_unlock(&l->mu);
	}
	inet_loop_unlock();
	return n;
}

/* One message of the stream, and its two requests. */
struct slot {
	uint8_t *out, *in;
	size_t size;
	uint64_t number;
	void *send, *recv;
};

/* If not 0: all messages have more bytes than the first, and as many as the second at most. */
static size_t size_above, size_most;

static inline size_t any_size(void)
{
	if (size_most)
		return size_above + 1 + any((uint32_t)(size_most - size_above));
	switch (any(4)) {
	case 0:
		return any(200);
	case 1:
		return any(8 << 10);
	case 2:
		return any(300 << 10);
	default:
		return any(3 * MIB);
	}
}

static inline gantry_result post(struct way w, struct slot *s, uint64_t number)
{
	int tag = (int)(number % 2);
	size_t room = 3 * MIB;
	void *in = s->in;

	s->number = number;
	s->size = any_size();
	pattern_fill(s->out, s->size, number);
	memset(s->in, 0xa5, s->size);
	TRY_NOW(ops->irecv(net, w.recv, 1, &in, &room, &tag, NULL, &s->recv));
	TRY_NOW(ops->isend(net, w.send, s->out, s->size, tag, NULL, &s->send));
	CHECK(s->recv && s->send);
	return GANTRY_OK;
}

/* A send that is done gives its buffer back: it is overwritten at once, and must not be seen any more. */
static inline gantry_result move_slot(struct slot *s)
{
	int done = 0, size = -1;

	if (s->send) {
		TRY_NOW(ops->test(net, s->send, &done, NULL));
		if (done) {
			s->send = NULL;
			memset(s->out, 0x5a, s->size);
		}
	}
	if (!s->recv)
		return GANTRY_OK;
	TRY_NOW(ops->test(net, s->recv, &done, &size));
	if (!done)
		return GANTRY_OK;
	s->recv = NULL;
	CHECK_EQ((size_t)size, s->size);
	CHECK_PATTERN(s->in, s->size, s->number);
	return GANTRY_OK;
}

enum cuts { CUT_ONE, CUT_ALL, CUT_CONTROL };

/* So many cuts for each message at most: all lanes may be cut faster than they come back, and a fast machine would do nothing
 * else. */
enum { CUTS_PER_MESSAGE = 4 };

/* Messages of all sizes; every so often lanes are cut. Returns the first error. */
static inline gantry_result stream(struct way w, uint64_t messages, uint32_t every, enum cuts cuts)
{
	static struct slot slots[DEPTH]; /* after an error they stay: the link may still write to them */
	uint64_t posted = 0, moves = 0, cut_n = 0;
	gantry_result r = GANTRY_OK;
	int left = 1;

	for (int i = 0; i < DEPTH; i++) {
		slots[i].out = malloc(3 * MIB);
		slots[i].in = malloc(3 * MIB);
		CHECK(slots[i].out && slots[i].in);
	}
	WAIT_WHILE (left &&r == GANTRY_OK) {
		left = posted < messages;
		for (int i = 0; i < DEPTH && r == GANTRY_OK; i++) {
			struct slot *s = &slots[i];

			if (s->send || s->recv)
				r = move_slot(s);
			else if (posted < messages && posted % DEPTH == (uint64_t)i)
				r = post(w, s, posted++);
			left |= s->send || s->recv;
		}
		if (every && ++moves % every == 0 && posted < messages && cut_n < posted * CUTS_PER_MESSAGE) {
			cut_n++;
			cut(cuts == CUT_ALL ? -1 : cuts == CUT_CONTROL ? 0 : (int)any(LANES + 1));
		}
	}
	for (int i = 0; r == GANTRY_OK && i < DEPTH; i++) {
		free(slots[i].out);
		free(slots[i].in);
	}
	return r;
}

static inline struct way open_way(const char *zerocopy, void **ret_ctx)
{
	setenv("GANTRY_RESUME", "on", 0);
	set_params("GANTRY_LANES", "3", "GANTRY_ZEROCOPY", zerocopy, "GANTRY_TIMEOUT", "20s");
	start(ret_ctx, GANTRY_NET_UNDEF);
	return connect_way(*ret_ctx);
}

#endif
