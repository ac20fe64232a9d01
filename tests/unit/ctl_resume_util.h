/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that talk to each other in all ways while the sockets of their control plane break, at fixed seeds. */
#ifndef GANTRY_TESTS_CTL_RESUME_UTIL_H
#define GANTRY_TESTS_CTL_RESUME_UTIL_H

#include <sys/socket.h>

#include "base/bytes.h"
#include "ctl_util.h"

enum { TALKERS = 3, BATCH = 8, TROUBLE_MAX = 60 };

static inline uint32_t any_of(uint64_t *seed, uint32_t n)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*seed >> 33) % n;
}

/* Both ends hear of a reset. Of a connection without a socket: nothing. */
static inline void reset_socket(const struct inet_stream *c)
{
	static const struct sockaddr nobody = {.sa_family = AF_UNSPEC};

	if (c && c->source.fd >= 0)
		connect(c->source.fd, &nobody, sizeof(nobody));
}

static inline struct hub_rank *hub_rank_of(const struct gantry_unique_id *id, int rank) REQUIRES(loop_mu)
{
	struct hub *hub = hub_find(gantry_ctl_comm_id(id));

	return hub && hub->ranks ? &hub->ranks[rank] : NULL;
}

/* Both ends find that the stream has ended, as if the other had closed it. */
static inline void end_socket(const struct inet_stream *c)
{
	if (c && c->source.fd >= 0)
		shutdown(c->source.fd, SHUT_RDWR);
}

enum trouble { RESET_RANK, RESET_HUB, RESET_ALL, DIAL_BESIDE, END_RANK, END_HUB, TROUBLES };

/* DIAL_BESIDE: as if the hub was not heard for long. The rank dials while the old socket still brings frames. */
static inline void make_trouble(const struct gantry_unique_id *id, struct gantry_ctl *m, enum trouble what)
{
	struct hub_rank *r;

	inet_loop_lock();
	r = hub_rank_of(id, m->config.rank);
	if (what == RESET_RANK || what == RESET_ALL)
		reset_socket(m->conn);
	if (r && (what == RESET_HUB || what == RESET_ALL))
		reset_socket(r->conn);
	if (what == END_RANK)
		end_socket(m->conn);
	if (r && what == END_HUB)
		end_socket(r->conn);
	if (what == DIAL_BESIDE && m->conn)
		ctl_dial_again(m);
	inet_loop_unlock();
}

struct talk {
	const struct gantry_unique_id *id;
	struct gantry_ctl *ctl[TALKERS];
	int rounds;
	int talking; /* atomic: threads that do */
	gantry_result results[TALKERS];
	char texts[TALKERS][256];
};
struct talker {
	struct talk *talk;
	int rank;
};

/* Of the message with this number between two ranks: known to both. */
static inline size_t message_size(int from, int to, uint32_t number)
{
	uint64_t seed = (uint64_t)number * 977 + (uint64_t)(from * 31 + to);
	uint32_t kind = any_of(&seed, 16);

	return 8 + any_of(&seed, kind ? 500 : GANTRY_CTL_MESSAGE_MAX - 8);
}

static inline gantry_result send_number(struct gantry_ctl *m, int to, uint32_t number)
{
	static _Thread_local uint8_t bytes[GANTRY_CTL_MESSAGE_MAX];
	size_t size = message_size(m->config.rank, to, number);

	memset(bytes, (int)(number & 255), size);
	put32(bytes, number);
	return gantry_ctl_send(m, to, 1, bytes, size);
}

static inline gantry_result recv_number(struct gantry_ctl *m, int from, uint32_t number)
{
	static _Thread_local uint8_t bytes[GANTRY_CTL_MESSAGE_MAX];
	size_t size = message_size(from, m->config.rank, number);

	TRY_NOW(recv_wait(m, from, 1, bytes, size));
	return get32(bytes) == number && bytes[size - 1] == (number & 255) ? GANTRY_OK : GANTRY_ERR_CORRUPT;
}

static inline gantry_result talk_once(struct gantry_ctl *m, uint32_t round)
{
	uint8_t all[TALKERS * 8], mine[8], reply[16];
	size_t size = sizeof(reply);
	int rank = m->config.rank, next = (rank + 1) % TALKERS;

	for (uint32_t i = 0; i < BATCH; i++)
		for (int to = 0; to < TALKERS; to++)
			if (to != rank)
				TRY_NOW(send_number(m, to, round * BATCH + i));
	put64(mine, round * 100 + (uint64_t)rank);
	TRY_NOW(gantry_ctl_call(m, next, ANSWER_KIND, mine, sizeof(mine), reply, &size));
	if (size != 10 || reply[0] != rank || reply[1] != next || memcmp(reply + 2, mine, sizeof(mine)) != 0)
		return GANTRY_ERR_CORRUPT;
	TRY_NOW(gantry_ctl_allgather(m, mine, sizeof(mine), all));
	for (int i = 0; i < TALKERS; i++)
		if (get64(all + 8 * i) != round * 100 + (uint64_t)i)
			return GANTRY_ERR_CORRUPT;
	for (uint32_t i = 0; i < BATCH; i++)
		for (int from = 0; from < TALKERS; from++)
			if (from != rank)
				TRY_NOW(recv_number(m, from, round * BATCH + i));
	return GANTRY_OK;
}

static inline gantry_result talk_on(struct gantry_ctl *m, int rounds)
{
	uint8_t all[TALKERS], none;

	for (int i = 0; i < rounds; i++)
		TRY_NOW(talk_once(m, (uint32_t)i));
	TRY_NOW(gantry_ctl_allgather(m, "", 1, all)); /* all have sent all */
	for (int from = 0; from < TALKERS; from++)
		if (from != m->config.rank && gantry_ctl_try_recv(m, from, 1, &none, 1) != GANTRY_AGAIN)
			return GANTRY_ERR_CORRUPT; /* one more than was sent */
	return GANTRY_OK;
}

/* A rank that is here and sends nothing is waited for without end, so one that gives up has to count as lost. */
static inline void give_up(const struct gantry_unique_id *id, int rank)
{
	struct hub_rank *r;

	inet_loop_lock();
	r = hub_rank_of(id, rank);
	if (r && r->state == HUB_HERE)
		hub_rank_lost(r, GANTRY_ERR_PEER_LOST, "it gave up");
	inet_loop_unlock();
}

static inline void *talker_thread(void *arg)
{
	struct talker *t = arg;

	t->talk->results[t->rank] = talk_on(t->talk->ctl[t->rank], t->talk->rounds);
	if (t->talk->results[t->rank] != GANTRY_OK)
		give_up(t->talk->id, t->rank);
	snprintf(t->talk->texts[t->rank], sizeof(t->talk->texts[t->rank]), "%s", gantry_last_error());
	__atomic_sub_fetch(&t->talk->talking, 1, __ATOMIC_ACQ_REL);
	return NULL;
}

/* The ranks talk; every so often one of them has trouble of one of the kinds (bits). Returns the first error. */
static inline gantry_result talk_in_trouble(struct talk *w, uint64_t seed, unsigned kinds)
{
	struct talker talkers[TALKERS];
	pthread_t t[TALKERS];
	gantry_result r = GANTRY_OK;
	int n = 0;

	w->talking = TALKERS;
	for (int i = 0; i < TALKERS; i++)
		talkers[i] = (struct talker){w, i};
	threads_start(t, TALKERS, talker_thread, talkers, sizeof(talkers[0]));
	WAIT_WHILE (__atomic_load_n(&w->talking, __ATOMIC_ACQUIRE)) {
		enum trouble what;

		do
			what = (enum trouble)any_of(&seed, TROUBLES);
		while (!(kinds >> what & 1));
		if (n++ < TROUBLE_MAX) /* else a slow machine would do nothing else */
			make_trouble(w->id, w->ctl[any_of(&seed, TALKERS)], what);
		sleep_ns(any_of(&seed, 3000000));
	}
	threads_join(t, TALKERS);
	for (int i = 0; i < TALKERS && r == GANTRY_OK; i++)
		r = w->results[i];
	return r;
}

static inline uint32_t sockets_used(const struct talk *w)
{
	uint32_t n = 0;

	inet_loop_lock();
	for (int i = 0; i < TALKERS; i++)
		n += w->ctl[i]->dial->generation;
	inet_loop_unlock();
	return n;
}

static int holding; /* atomic: nothing passes from the hub to ranks */

static inline int64_t hold(const struct relay_conn *c, int way)
{
	int now = way == TO_CLIENT && __atomic_load_n(&holding, __ATOMIC_ACQUIRE);

	return now ? (int64_t)c->moved[way] : RELAY_ALL;
}

static inline int hub_keeps(const struct gantry_unique_id *id, int rank)
{
	struct hub_rank *r;
	int n;

	inet_loop_lock();
	r = hub_rank_of(id, rank);
	n = r && r->conn ? (int)r->conn->session.nkept : -1;
	inet_loop_unlock();
	return n;
}

/*
 * A message is on its way to rank 1 when that says, truly, that it does not have it; then the socket breaks. Returns what the
 * receiver gets.
 */
static inline gantry_result break_behind_count(void)
{
	struct gantry_unique_id id;
	struct relay relay;
	struct rank_state *s;
	gantry_result r;
	int before;
	char c = 0;

	ctl_relay_make(&relay);
	relay.allow = hold;
	CHECK_OK(gantry_ctl_create_id(&id));
	ctl_relay_start(&relay, &id);
	s = ranks_make(2, &id, NULL);
	ranks_start(s, 2);
	ranks_joined(s, 2);
	__atomic_store_n(&holding, 1, __ATOMIC_RELEASE);
	sleep_ms(5); /* the relay has seen it */
	before = hub_keeps(&id, 1);
	CHECK_OK(gantry_ctl_send(s[0].ctl, 1, 1, "a", 1));
	UNTIL(hub_keeps(&id, 1) > before);
	inet_loop_lock();
	inet_stream_send_life(s[1].ctl->conn);
	inet_loop_wake();
	inet_loop_unlock();
	UNTIL(hub_keeps(&id, 1) <= before); /* it was trimmed: by what came before the message */
	relay_end_lane(&relay, 0, 1);
	__atomic_store_n(&holding, 0, __ATOMIC_RELEASE);
	r = recv_wait(s[1].ctl, 0, 1, &c, 1);
	CHECK(r != GANTRY_OK || c == 'a');
	ranks_leave(s, 2);
	until_quiet();
	ctl_relay_stop(&relay);
	return r;
}

#endif
