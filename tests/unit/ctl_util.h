/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the control plane share: ranks as threads of this process, and what a rank hears. */
#ifndef GANTRY_TESTS_CTL_UTIL_H
#define GANTRY_TESTS_CTL_UTIL_H

#include <netinet/tcp.h>

#include "ctl/ctl.h"
#include "ctl/ctl_member.h"
#include "ctl/ctl_service.h"
#include "ctl/hub_priv.h"
#include "relay.h"

enum { RANKS_MAX = 64, ANSWER_KIND = 7 };

struct rank_state {
	int rank, nranks;
	const struct gantry_unique_id *id;
	struct gantry_ctl *ctl;
	pthread_t thread;
	gantry_result joined; /* what join gave */
	char text[512];	      /* and said */
	void (*body)(struct rank_state *s);
	int silent_calls; /* no on_call */
	int listens;	  /* gantry_ctl_config.listens */
	/* Under mu: what on_lost told. */
	pthread_mutex_t mu;
	int nlost, lost_rank[RANKS_MAX];
	gantry_result lost_why[RANKS_MAX];
	char lost_text[512];
	int calls;
};

static inline void on_lost(void *ctx, int rank, gantry_result why, const char *text)
{
	struct rank_state *s = ctx;

	pthread_mutex_lock(&s->mu);
	CHECK(s->nlost < RANKS_MAX);
	s->lost_rank[s->nlost] = rank;
	s->lost_why[s->nlost++] = why;
	snprintf(s->lost_text, sizeof(s->lost_text), "%s", text);
	pthread_mutex_unlock(&s->mu);
}

/* ANSWER_KIND: the bytes come back with the two ranks before them. Others: a refusal. */
static inline gantry_result on_call(void *ctx, int from, uint32_t kind, const void *data, size_t size, void *reply,
				    size_t *reply_size)
{
	struct rank_state *s = ctx;
	uint8_t *out = reply;

	pthread_mutex_lock(&s->mu);
	s->calls++;
	pthread_mutex_unlock(&s->mu);
	if (kind != ANSWER_KIND)
		return GANTRY_ERR_UNSUPPORTED;
	CHECK(*reply_size >= size + 2);
	out[0] = (uint8_t)from;
	out[1] = (uint8_t)s->rank;
	memcpy(out + 2, data, size);
	*reply_size = size + 2;
	return GANTRY_OK;
}

static inline int lost_count(struct rank_state *s)
{
	int n;

	pthread_mutex_lock(&s->mu);
	n = s->nlost;
	pthread_mutex_unlock(&s->mu);
	return n;
}

static inline void join_as(struct rank_state *s)
{
	struct gantry_ctl_config c = {.id = s->id,
				      .rank = s->rank,
				      .nranks = s->nranks,
				      .on_lost = on_lost,
				      .on_call = s->silent_calls ? NULL : on_call,
				      .listens = s->listens,
				      .ctx = s};

	s->joined = gantry_ctl_join(&c, &s->ctl);
	snprintf(s->text, sizeof(s->text), "%s", gantry_last_error());
}

static inline void *rank_thread(void *arg)
{
	struct rank_state *s = arg;

	join_as(s);
	if (s->joined == GANTRY_OK && s->body)
		s->body(s);
	return NULL;
}

static inline struct rank_state *ranks_make(int n, const struct gantry_unique_id *id,
					    void (*body)(struct rank_state *s))
{
	struct rank_state *s = calloc((size_t)n, sizeof(*s));

	CHECK(s != NULL);
	for (int i = 0; i < n; i++) {
		s[i].rank = i;
		s[i].nranks = n;
		s[i].id = id;
		s[i].body = body;
		pthread_mutex_init(&s[i].mu, NULL);
	}
	return s;
}

static inline void ranks_start(struct rank_state *s, int n)
{
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_create(&s[i].thread, NULL, rank_thread, &s[i]), 0);
}

static inline void ranks_wait(struct rank_state *s, int n)
{
	for (int i = 0; i < n; i++)
		pthread_join(s[i].thread, NULL);
}

/* Waits for all of them, which must have joined. */
static inline void ranks_joined(struct rank_state *s, int n)
{
	ranks_wait(s, n);
	for (int i = 0; i < n; i++)
		CHECK_OK(s[i].joined);
}

/* Makes an id, joins n ranks as threads, runs body in each, and waits for all. The caller frees. */
static inline struct rank_state *ranks_run(int n, struct gantry_unique_id *id, void (*body)(struct rank_state *s))
{
	struct rank_state *s;

	CHECK_OK(gantry_ctl_create_id(id));
	s = ranks_make(n, id, body);
	ranks_start(s, n);
	ranks_joined(s, n);
	return s;
}

static inline void ranks_leave(struct rank_state *s, int n)
{
	for (int i = 0; i < n; i++)
		gantry_ctl_leave(s[i].ctl);
	free(s);
}

/* Waits for a message, as long as only a hang takes. */
static inline gantry_result recv_wait(struct gantry_ctl *ctl, int from, uint64_t tag, void *data, size_t size)
{
	gantry_result r;

	WAIT_WHILE ((r = gantry_ctl_try_recv(ctl, from, tag, data, size)) == GANTRY_AGAIN)
		gantry_ctl_wait(ctl, 100000000);
	return r;
}

/* Until the service thread has nothing left and has ended. */
static inline int service_runs(void)
{
	int running;

	inet_loop_lock();
	running = inet_loop.running;
	inet_loop_unlock();
	return running;
}
static inline void until_quiet(void)
{
	UNTIL(!service_runs());
}

/*
 * A relay between ranks and the hub, which stands where the id says (GANTRY_ADVERTISE). Frozen it is like a stopped peer
 * or a network that loses packets.
 */
static inline void ctl_relay_make(struct relay *r)
{
	char text[64];

	memset(r, 0, sizeof(*r));
	relay_make(r, 0, 0);
	snprintf(text, sizeof(text), "127.0.0.1:%d", r->port);
	set_params("GANTRY_ADVERTISE", text);
}

/* After the id was made: finds out where the hub really is. */
static inline void ctl_relay_start(struct relay *r, const struct gantry_unique_id *id)
{
	struct hub *hub;

	inet_loop_lock();
	hub = hub_find(gantry_ctl_comm_id(id));
	CHECK(hub != NULL);
	r->to = hub->port->addr.in;
	inet_loop_unlock();
	relay_start(r);
}

static inline void ctl_relay_stop(struct relay *r)
{
	relay_stop(r);
	set_params("GANTRY_ADVERTISE", NULL);
}

/* "10.0.0.1:4711": where an id's hub is. */
static inline const char *id_text(const struct gantry_unique_id *id, char buf[GANTRY_ADDR_TEXT])
{
	struct ctl_id i;

	CHECK_OK(ctl_id_decode(id, &i));
	return gantry_addr_text(&i.addr, buf);
}

#endif
