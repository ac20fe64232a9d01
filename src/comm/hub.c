/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap root of a communicator: hub.h has its states. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/hub.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "comm/ctl_member.h"
#include "inet/settings.h"

static const uint64_t beat_min = 10000000, beat_max = 10000000000;
enum {
	PATIENCE = 10, /* times GANTRY_CONNECT_TIMEOUT an id waits for its first rank: programs make it early */
	PROBES = 8,    /* in GANTRY_TIMEOUT */
	LINGER_NS = 1000000000, /* how long a rank that was told the last word may take to hear it */
	RANK_TEXT = 16 + GANTRY_ADDR_TEXT + CTL_WHO_SIZE,
};

/* ---- what the hub says ---- */

static int index_of(const struct hub_rank *rank)
{
	return (int)(rank - rank->hub->ranks);
}

/* "rank 2 (10.0.0.2:4000, node7 pid 12)" */
static const char *rank_text(const struct hub_rank *rank, char buf[RANK_TEXT])
{
	char addr[GANTRY_ADDR_TEXT];

	snprintf(buf, RANK_TEXT, "rank %d (%s, %s)", index_of(rank), gantry_addr_text(&rank->addr, addr), rank->who);
	return buf;
}

/* The allgather that is open does not need this rank any more. */
static bool is_through(const struct hub_rank *rank)
{
	return rank->hub->exchange && rank->hub->gather.size ? rank->has : rank->gave;
}

static bool is_missing(const struct hub_rank *rank, bool in_gather)
{
	if (!in_gather)
		return rank->state == HUB_ABSENT;
	return rank->hub->gather.count < rank->hub->nranks ? !rank->gave : !is_through(rank);
}

/* "1, 3-5" of those that have not come, or not to the allgather; cut with "..." when it does not fit. */
static void list_missing(const struct hub *hub, bool in_gather, char *buf, size_t room)
{
	size_t at = 0;

	*buf = 0;
	for (int i = 0; i < hub->nranks; i++) {
		int end = i, n;

		if (!is_missing(&hub->ranks[i], in_gather))
			continue;
		while (end + 1 < hub->nranks && is_missing(&hub->ranks[end + 1], in_gather))
			end++;
		if (end > i)
			n = snprintf(buf + at, room - at, "%s%d-%d", at ? ", " : "", i, end);
		else
			n = snprintf(buf + at, room - at, "%s%d", at ? ", " : "", i);
		if (n < 0 || at + (size_t)n + 1 > room) {
			strcpy(buf + room - 4, "...");
			return;
		}
		at += (size_t)n;
		i = end;
	}
}

/* A frame of the hub's own whose body is a text. */
static struct ctl_buf *text_frame(struct ctl_head h, const char *text)
{
	h.to = -1;
	h.size = (uint32_t)strlen(text);
	return ctl_buf_make(&h, text);
}

/* To all ranks that are here. Takes over the reference. */
static void tell_all(struct hub *hub, struct ctl_buf *b)
{
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE)
			ctl_conn_share(hub->ranks[i].conn, b);
	ctl_buf_put(b);
}

static void drop_probe(struct hub_rank *rank) REQUIRES(loop_mu)
{
	if (!rank->probe)
		return;
	inet_source_close(&rank->probe->source);
	free(rank->probe);
	rank->probe = NULL;
}

/* Closes the connections of all ranks, once they have what they were told. */
static void linger_all(struct hub *hub) REQUIRES(loop_mu)
{
	for (int i = 0; i < hub->nranks; i++) {
		struct hub_rank *rank = &hub->ranks[i];

		if (rank->state != HUB_HERE)
			continue;
		drop_probe(rank);
		ctl_conn_finish(rank->conn, LINGER_NS);
		rank->conn = NULL;
		rank->state = HUB_LEFT;
	}
	hub->nhere = 0;
}

/* The join has failed: all who are here, and all who come, hear why. */
static void fail_join(struct hub *hub, gantry_result why, const char *fmt, ...) __attribute__((format(printf, 3, 4)))
REQUIRES(loop_mu);
static void fail_join(struct hub *hub, gantry_result why, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(hub->text, sizeof(hub->text), fmt, ap);
	va_end(ap);
	LOG_INFO(COMM, "comm %016llx: joining failed: %s", (unsigned long long)hub->comm_id, hub->text);
	hub->error = why;
	hub->state = HUB_FAILED;
	tell_all(hub, text_frame((struct ctl_head){.kind = CTL_REFUSED, .from = -1, .result = why}, hub->text));
	linger_all(hub);
	hub->until = inet_loop.now + hub->connect_timeout;
	ctl_service_due(hub->until);
}

/*
 * ---- allgather ----
 *
 * The hub puts the parts together and sends everybody the whole. A rank that is gone, parts of different sizes, or
 * somebody who does not come in time fail it for all, by name; the failure is kept, because some ranks come to it only
 * later. A rank that has heard of the failure may begin the next one meanwhile.
 *
 * In an exchange (ctl_exchange.h) the parts do not come here: ranks say that they begin, with the size of their parts, and
 * then that they have all. What fails one, and who is named, is the same.
 */

static void tell_gathered(struct hub_rank *rank, uint64_t number, gantry_result why, const char *text)
{
	const struct ctl_head h = {.kind = CTL_GATHERED, .from = -1, .tag = number, .result = why};

	ctl_conn_write(rank->conn, ctl_out_make(text_frame(h, text)));
}

static void drop_gather(struct hub_gather *g)
{
	ctl_buf_put(g->buf);
	g->buf = NULL;
	g->open = 0;
}

/* Those who gave are told; those who did not will be when they come. */
static void fail_gather(struct hub *hub, gantry_result why, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail_gather(struct hub *hub, gantry_result why, const char *fmt, ...)
{
	struct hub_gather *g = &hub->gather;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(g->text, sizeof(g->text), fmt, ap);
	va_end(ap);
	g->error = why;
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE && hub->ranks[i].gave)
			tell_gathered(&hub->ranks[i], g->number, why, g->text);
	drop_gather(g);
}

/* A rank is here no more. */
static void gather_without(struct hub *hub, const struct hub_rank *rank) REQUIRES(loop_mu)
{
	struct hub_gather *g = &hub->gather;
	char who[RANK_TEXT];

	if (g->open && !is_through(rank))
		fail_gather(hub, rank->why, "allgather without %s, who %s", rank_text(rank, who),
			    rank->why == GANTRY_ERR_PEER_CLOSED ? "has left" : "is lost");
}

static void gather_tick(struct hub *hub) REQUIRES(loop_mu)
{
	struct hub_gather *g = &hub->gather;
	char missing[256], seconds[16];

	if (inet_loop.now < g->deadline) {
		ctl_service_due(g->deadline);
		return;
	}
	list_missing(hub, true, missing, sizeof(missing));
	if (g->count == hub->nranks) {
		fail_gather(hub, GANTRY_ERR_TIMEOUT,
			    "%d of %d ranks got all parts of an allgather in time, missing: %s", g->nhave, hub->nranks,
			    missing);
		return;
	}
	fail_gather(hub, GANTRY_ERR_TIMEOUT,
		    "%d of %d ranks came to an allgather within %s (GANTRY_CONNECT_TIMEOUT), missing: %s", g->count,
		    hub->nranks, ctl_seconds(hub->connect_timeout, seconds), missing);
}

/* Of a part. An exchange: as the rank says, UINT32_MAX if it says nonsense. */
static uint32_t part_size(const struct hub *hub, const struct ctl_head *h, const uint8_t *body)
{
	if (!hub->exchange)
		return h->size;
	return h->size == 4 ? get32(body) : UINT32_MAX;
}

/* 0: no memory. */
static int begin_gather(struct hub *hub, const struct ctl_head *h, uint32_t size) REQUIRES(loop_mu)
{
	struct hub_gather *g = &hub->gather;
	struct ctl_head whole = {.kind = CTL_GATHERED, .from = -1, .to = -1, .tag = h->tag};

	whole.size = hub->exchange ? 0 : (uint32_t)hub->nranks * size;
	g->buf = ctl_buf_make(&whole, NULL);
	g->number = h->tag;
	g->size = size;
	g->count = g->nhave = 0;
	g->error = GANTRY_OK;
	g->open = 1;
	g->deadline = inet_loop.now + hub->connect_timeout;
	ctl_service_due(g->deadline);
	for (int i = 0; i < hub->nranks; i++)
		hub->ranks[i].gave = hub->ranks[i].has = 0;
	return g->buf != NULL;
}

static const struct hub_rank *somebody_gone(const struct hub *hub)
{
	for (int i = 0; i < hub->nranks && hub->nhere < hub->nranks; i++)
		if (hub->ranks[i].state != HUB_HERE && !is_through(&hub->ranks[i]))
			return &hub->ranks[i];
	return NULL;
}

static void end_gather(struct hub *hub)
{
	struct hub_gather *g = &hub->gather;

	tell_all(hub, g->buf);
	g->buf = NULL;
	g->open = 0;
}

static void give_part(struct hub_rank *rank, uint32_t size, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;
	const struct hub_rank *missing = somebody_gone(hub);
	char who[RANK_TEXT];

	rank->gave = 1;
	if (missing) {
		gather_without(hub, missing);
		return;
	}
	if (size != g->size) {
		fail_gather(hub, GANTRY_ERR_USAGE, "allgather of different sizes: %s gives %u bytes, others %u",
			    rank_text(rank, who), size, g->size);
		return;
	}
	if (size && !hub->exchange)
		memcpy(g->buf->bytes + CTL_HEAD_SIZE + (size_t)index_of(rank) * size, body, size);
	if (++g->count < hub->nranks)
		return;
	if (hub->exchange && size) {
		/* A rank that cannot reach another says so by GANTRY_CONNECT_TIMEOUT: this is for those that do not. */
		g->deadline = inet_loop.now + (CTL_GATHER_TIMES - 1) * hub->connect_timeout;
		ctl_service_due(g->deadline);
		return;
	}
	end_gather(hub);
}

static int hear_have(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;
	char who[RANK_TEXT], cause[CTL_TEXT_MAX];

	if (!hub->exchange || h->tag != g->number || !g->open || !rank->gave || rank->has)
		return 0; /* it has failed meanwhile, and the rank was told */
	if (h->result != GANTRY_OK) {
		ctl_get_text(cause, sizeof(cause), body, h->size);
		fail_gather(hub, (gantry_result)h->result, "%s: %s", rank_text(rank, who), cause);
		return 0;
	}
	rank->has = 1;
	if (++g->nhave == hub->nranks)
		end_gather(hub);
	return 0;
}

static int hear_gather(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;
	uint32_t size = part_size(hub, h, body);

	if (h->tag < g->number || (h->tag == g->number && !g->open)) {
		/* The others are through with it: it failed, or this rank does not count as they do. */
		if (g->error == GANTRY_OK)
			tell_gathered(rank, h->tag, GANTRY_ERR_USAGE, "the others are ahead in their allgathers");
		else
			tell_gathered(rank, h->tag, g->error, g->text);
		return 0;
	}
	if (h->tag > g->number && g->open)
		fail_gather(hub, GANTRY_ERR_USAGE, "rank %d is ahead in its allgathers", index_of(rank));
	if (h->tag > g->number && !begin_gather(hub, h, size)) {
		drop_gather(g);
		g->error = GANTRY_ERR_NOMEM;
		snprintf(g->text, sizeof(g->text), "no memory at the hub for an allgather of %u bytes", size);
		tell_gathered(rank, h->tag, g->error, g->text);
		return 0;
	}
	give_part(rank, size, body);
	return 0;
}

/* ---- leaving and being lost ---- */

static void rank_gone(struct hub_rank *rank, enum hub_rank_state state) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;

	drop_probe(rank);
	ctl_conn_finish(rank->conn, LINGER_NS);
	rank->conn = NULL;
	rank->state = state;
	hub->nhere--;
	gather_without(hub, rank);
	if (!hub->nhere) {
		hub->state = HUB_ENDED;
		ctl_service_due(inet_loop.now);
	}
}

/*
 * Ranks that leave mostly do so together, and a frame to everybody for each of them would be half the square of their
 * number: those of one pass are told in one frame. Before anything else is told of ranks that are gone, so that the
 * order stays that of cause and consequence.
 */
static void tell_left(struct hub *hub)
{
	struct ctl_head h = {.kind = CTL_LEFT, .from = -1, .to = -1};
	struct ctl_buf *b;
	uint8_t *at;

	if (!hub->nuntold)
		return;
	hub->nuntold = 0;
	for (int i = 0; i < hub->nranks; i++)
		h.size += 8 * (hub->ranks[i].untold && (!i || !hub->ranks[i - 1].untold));
	b = ctl_buf_make(&h, NULL);
	at = b ? b->bytes + CTL_HEAD_SIZE : NULL;
	for (int i = 0; i < hub->nranks; i++) {
		struct ctl_range range = {.first = i};

		while (i < hub->nranks && hub->ranks[i].untold) {
			hub->ranks[i++].untold = 0;
			range.count++;
		}
		if (range.count && at) {
			ctl_ranges_encode(&range, 1, at);
			at += 8;
		}
	}
	tell_all(hub, b);
}

static void rank_lost(struct hub_rank *rank, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;
	const struct ctl_head h = {.kind = CTL_LOST, .from = index_of(rank), .result = why};
	char who[RANK_TEXT], text[CTL_TEXT_MAX];

	snprintf(text, sizeof(text), "%s: %s", rank_text(rank, who), cause);
	if (hub->state != HUB_RUNNING) {
		drop_probe(rank);
		ctl_conn_close(rank->conn);
		rank->conn = NULL;
		rank->state = HUB_LOST;
		hub->nhere--;
		fail_join(hub, why, "while the ranks were joining, %s", text);
		return;
	}
	LOG_WARN(COMM, "comm %016llx: lost %s", (unsigned long long)hub->comm_id, text);
	tell_left(hub);
	/* To itself as well: if it was only stopped, it learns what the others think of it. */
	tell_all(hub, text_frame(h, text));
	rank->why = why;
	rank_gone(rank, HUB_LOST);
}

static void rank_left(struct hub_rank *rank) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;
	char who[RANK_TEXT];

	LOG_DEBUG(COMM, "comm %016llx: %s left", (unsigned long long)hub->comm_id, rank_text(rank, who));
	rank->why = GANTRY_ERR_PEER_CLOSED;
	rank_gone(rank, HUB_LEFT);
	rank->untold = 1;
	hub->nuntold++;
	ctl_service_due(inet_loop.now);
}

/* ---- frames: what a rank may say. Each answers whether the connection was closed or given away. ---- */

static int hear_life(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body)
{
	(void)rank, (void)h, (void)body;
	return 0;
}

static int hear_time(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *none)
{
	struct ctl_head reply = {.kind = CTL_TIME, .from = -1, .to = index_of(rank), .tag = h->tag, .size = 8};
	uint8_t body[8];

	(void)none;
	put64(body, gantry_now_ns());
	ctl_conn_send(rank->conn, &reply, body);
	return 0;
}

static int hear_leave(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	char cause[CTL_TEXT_MAX];

	if (h->result == GANTRY_OK && rank->hub->state == HUB_RUNNING) {
		rank_left(rank);
		return 1;
	}
	ctl_get_text(cause, sizeof(cause), body, h->size);
	rank_lost(rank, GANTRY_ERR_PEER_LOST, *cause ? cause : "it left");
	return 1;
}

/* Whoever calls a rank that is gone is answered in its place. Messages to it are dropped: the sender has been told. */
static int hear_for_another(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body)
{
	struct hub_rank *to = &rank->hub->ranks[h->to];
	struct ctl_head reply = {.kind = CTL_REPLY, .from = h->to, .to = h->from, .tag = h->tag, .result = to->why};

	if (to->state == HUB_HERE)
		ctl_conn_send(to->conn, h, body);
	else if (h->kind == CTL_CALL)
		ctl_conn_send(rank->conn, &reply, NULL);
	return 0;
}

/* When it may say it. */
enum { ALWAYS = 0, RUNNING = 1, AS_ITSELF = 2, TO_A_RANK = 4, EMPTY = 8 };

static const struct {
	int (*hear)(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body);
	unsigned rules;
} hearing[CTL_KIND_COUNT] = {
	[CTL_LIFE] = {hear_life, ALWAYS},
	[CTL_TIME] = {hear_time, EMPTY},
	[CTL_LEAVE] = {hear_leave, ALWAYS},
	[CTL_GATHER] = {hear_gather, RUNNING | AS_ITSELF},
	[CTL_HAVE] = {hear_have, RUNNING | AS_ITSELF},
	[CTL_MESSAGE] = {hear_for_another, RUNNING | AS_ITSELF | TO_A_RANK},
	[CTL_CALL] = {hear_for_another, RUNNING | AS_ITSELF | TO_A_RANK},
	[CTL_REPLY] = {hear_for_another, RUNNING | AS_ITSELF | TO_A_RANK},
};

static bool may_say(const struct hub_rank *rank, const struct ctl_head *h)
{
	const struct hub *hub = rank->hub;
	unsigned broken = 0;

	if (h->kind >= CTL_KIND_COUNT || !hearing[h->kind].hear)
		return false;
	broken |= hub->state == HUB_RUNNING ? 0 : RUNNING;
	broken |= h->from == index_of(rank) ? 0 : AS_ITSELF;
	broken |= h->to >= 0 && h->to < hub->nranks ? 0 : TO_A_RANK;
	broken |= h->size == 0 ? 0 : EMPTY;
	return !(hearing[h->kind].rules & broken);
}

static int on_frame(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub_rank *rank = c->owner;
	char cause[CTL_TEXT_MAX];

	if (may_say(rank, h))
		return hearing[h->kind].hear(rank, h, body);
	snprintf(cause, sizeof(cause), "it broke the protocol (%s)", ctl_kind_name(h->kind));
	rank_lost(rank, GANTRY_ERR_PROTOCOL, cause);
	return 1;
}

static void on_broken(struct ctl_conn *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	rank_lost(c->owner, why, cause);
}

/* ---- a rank without a socket ---- */

/*
 * The rank dials, so all that this side can do is to wait. A process that was killed need not have ended its connections: the
 * kernel resets those of which something was not read. But it does not listen any more.
 */
static void probe_done(struct hub_probe *p, int e) REQUIRES(loop_mu)
{
	struct hub_rank *rank = p->rank;

	inet_source_close(&p->source);
	if (ctl_refused(&p->refused_since, e, rank->hub->timeout)) {
		rank_lost(rank, GANTRY_ERR_PEER_LOST,
			  "the connection broke, and nothing listens there any more: its process ended");
		return;
	}
	p->next = inet_retry_at(inet_loop.now, p->failures++);
	ctl_service_due(p->next);
}

static void probe_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	socklen_t len = sizeof(int);
	int e = 0;

	(void)events;
	getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &e, &len);
	probe_done(gantry_container(s, struct hub_probe, source), e);
}

static void probe_tick(struct hub_probe *p) REQUIRES(loop_mu)
{
	struct hub *hub = p->rank->hub;
	int e;

	if (inet_loop.now < p->next) {
		ctl_service_due(p->next);
	} else if (p->source.fd >= 0) {
		probe_done(p, ETIMEDOUT);
	} else {
		p->source.ready = probe_ready;
		p->next = inet_loop.now + hub->timeout / PROBES;
		ctl_service_due(p->next);
		e = sock_connect(NULL, NULL, &hub->addrs[index_of(p->rank)], &p->source.fd);
		if (!e && inet_source_add(&p->source, EPOLLOUT) != GANTRY_OK)
			e = ENOMEM;
		if (e)
			probe_done(p, e);
	}
}

static void on_cut(struct ctl_conn *c, const char *cause) REQUIRES(loop_mu)
{
	struct hub_rank *rank = c->owner;
	char who[RANK_TEXT];

	LOG_INFO(COMM, "comm %016llx: the connection of %s broke (%s), it may come back",
		 (unsigned long long)rank->hub->comm_id, rank_text(rank, who), cause);
	if (!rank->hub->addrs[index_of(rank)].sa.sa_family || rank->probe)
		return;
	rank->probe = calloc(1, sizeof(*rank->probe)); /* without one it is found by its silence */
	if (!rank->probe)
		return;
	rank->probe->source.fd = -1;
	rank->probe->rank = rank;
	rank->probe->next = inet_retry_at(inet_loop.now, 0); /* it comes back at once, if it can */
	ctl_service_due(rank->probe->next);
}

static const struct ctl_conn_ops rank_ops = {.frame = on_frame, .broken = on_broken, .cut = on_cut};

/* ---- coming ---- */

/* Refused by name, after the proof: this one will go, so its connection lingers. */
static void turn_away(struct ctl_conn *c, gantry_result why, const char *text) REQUIRES(loop_mu)
{
	const struct ctl_head h = {.kind = CTL_REFUSED, .from = -1, .result = why};

	ctl_conn_write(c, ctl_out_make(text_frame(h, text)));
	ctl_conn_finish(c, LINGER_NS);
}

static int make_ranks(struct hub *hub, int nranks)
{
	hub->addrs = calloc((size_t)nranks, sizeof(*hub->addrs));
	hub->ranks = hub->addrs ? calloc((size_t)nranks, sizeof(*hub->ranks)) : NULL;
	if (!hub->ranks)
		return 0;
	hub->nranks = nranks;
	for (int i = 0; i < nranks; i++)
		hub->ranks[i].hub = hub;
	/* From now on it is the ranks' patience that counts. */
	hub->until = UINT64_MAX;
	hub->beat = hub->timeout / CTL_BEATS < beat_max ? hub->timeout / CTL_BEATS : beat_max;
	return 1;
}

static const struct hub_rank *first_here(const struct hub *hub)
{
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE)
			return &hub->ranks[i];
	return NULL;
}

/* 1 if the newcomer fits; otherwise everybody has been told why not. */
static int fits(struct hub *hub, struct ctl_conn *c, const struct ctl_hello *h, const char *who) REQUIRES(loop_mu)
{
	const struct hub_rank *other = NULL;
	char text[RANK_TEXT], late[CTL_TEXT_MAX];

	if (hub->state == HUB_FAILED)
		goto failed;
	if (!hub->ranks && !make_ranks(hub, h->nranks)) {
		fail_join(hub, GANTRY_ERR_NOMEM, "no memory for %d ranks", h->nranks);
		goto failed;
	}
	if (h->nranks == hub->nranks && hub->ranks[h->rank].state != HUB_ABSENT)
		other = &hub->ranks[h->rank];
	if (h->nranks == hub->nranks && !other)
		return 1;
	if (other && other->state == HUB_HERE && ctl_conn_is_cut(other->conn) && other->process != h->process)
		rank_lost(&hub->ranks[h->rank], GANTRY_ERR_PEER_LOST, "its process was started anew");
	if (hub->state == HUB_FAILED)
		goto failed;
	if (hub->state != HUB_OPEN) { /* the others are at work: it is the newcomer who is wrong */
		snprintf(late, sizeof(late), "all %d ranks have joined already, here comes %s", hub->nranks, who);
		turn_away(c, GANTRY_ERR_USAGE, late);
		return 0;
	}
	if (other)
		fail_join(hub, GANTRY_ERR_USAGE, "rank %d joined twice: %s and %s", h->rank, rank_text(other, text),
			  who);
	else
		fail_join(hub, GANTRY_ERR_SETTING, "the ranks count differently: %s counts %d ranks, %s %d", who,
			  h->nranks, rank_text(first_here(hub), text), hub->nranks);
failed:
	turn_away(c, hub->error, hub->text);
	return 0;
}

/* Ranks of this process. ret: room for half of the ranks. */
static int find_ranges(const struct hub *hub, struct ctl_range *ret)
{
	int n = 0, before = 0;

	for (int i = 0; i < hub->nranks; i++) {
		int here = hub->ranks[i].process == gantry_process_id();

		if (here && !before)
			ret[n++] = (struct ctl_range){.first = i};
		if (here)
			ret[n - 1].count++;
		before = here;
	}
	return n;
}

static bool all_listen(const struct hub *hub)
{
	for (int i = 0; i < hub->nranks; i++)
		if (!hub->addrs[i].sa.sa_family)
			return false;
	return true;
}

static void tell_ready(struct hub *hub, int rank, const struct ctl_range *ranges, int nranges)
{
	struct ctl_head h = {.kind = CTL_READY, .from = -1, .to = -1};
	const struct gantry_addr *addrs = hub->exchange ? hub->addrs : NULL;
	struct ctl_buf *b;

	h.size = (uint32_t)ctl_ready_size(nranges, addrs, hub->nranks);
	b = ctl_buf_make(&h, NULL);
	if (b)
		ctl_ready_encode(rank, hub->nranks, ranges, nranges, addrs, b->bytes + CTL_HEAD_SIZE);
	ctl_conn_write(hub->ranks[rank].conn, ctl_out_make(b));
}

static void all_here(struct hub *hub) REQUIRES(loop_mu)
{
	struct ctl_range *ranges = calloc((size_t)(hub->nranks + 1) / 2, sizeof(*ranges));
	int nranges;

	if (!ranges) {
		fail_join(hub, GANTRY_ERR_NOMEM, "no memory for %d ranks", hub->nranks);
		return;
	}
	nranges = find_ranges(hub, ranges);
	hub->exchange = hub->nranks >= gantry_params()->exchange_ranks && all_listen(hub);
	hub->state = HUB_RUNNING;
	for (int i = 0; i < hub->nranks; i++)
		tell_ready(hub, i, ranges, nranges);
	free(ranges);
	LOG_INFO(COMM, "comm %016llx: all ranks are here, %d", (unsigned long long)hub->comm_id, hub->nranks);
}

/* Whether this rank's connections outlive their sockets. */
static bool resumes(const struct ctl_hello *h)
{
	bool same_host = h->host == gantry_host_id();

	return inet_resume_wanted(inet_resume_says(), same_host) && inet_resume_wanted(h->resume, same_host);
}

/* One that knows the key and was answered; takes the connection over. */
static void admit(struct hub *hub, struct inet_conn *from, const struct ctl_hello *h) REQUIRES(loop_mu)
{
	struct hub_rank newcomer = {.hub = hub, .state = HUB_HERE, .addr = from->addr, .process = h->process};
	uint64_t wait = (uint64_t)h->wait_ms * 1000000, theirs = (uint64_t)h->timeout_ms * 1000000 / CTL_BEATS;
	char who[RANK_TEXT], addr[GANTRY_ADDR_TEXT];
	struct inet_seals seals;
	struct ctl_conn *c;
	int fd;

	memcpy(newcomer.who, from->shake.peer, sizeof(newcomer.who));
	snprintf(who, sizeof(who), "rank %d (%s, %s)", h->rank, gantry_addr_text(&from->addr, addr), newcomer.who);
	fd = inet_conn_take(from, &seals);
	if (ctl_conn_make(fd, &seals, &newcomer.addr, &rank_ops, NULL, &c) != GANTRY_OK)
		return; /* it finds the connection closed, and comes again */
	newcomer.conn = c;
	if (!fits(hub, c, h, who))
		return;
	hub->ranks[h->rank] = newcomer;
	hub->addrs[h->rank] = h->addr;
	c->session.on = resumes(h);
	c->owner = &hub->ranks[h->rank];
	c->traffic = &hub->traffic;
	hub->nhere++;
	LOG_DEBUG(COMM, "comm %016llx: %s joined, %d of %d", (unsigned long long)hub->comm_id, who, hub->nhere,
		  hub->nranks);
	if (theirs < hub->beat)
		hub->beat = theirs;
	if (hub->beat < beat_min)
		hub->beat = beat_min;
	if (hub->nhere == 1 || hub->next_beat > inet_loop.now + hub->beat)
		hub->next_beat = inet_loop.now + hub->beat;
	if (inet_loop.now + wait < hub->until)
		hub->until = inet_loop.now + wait;
	ctl_service_due(hub->until);
	ctl_service_due(hub->next_beat);
	if (hub->nhere == hub->nranks)
		all_here(hub);
}

/* Why a rank cannot go on where its last socket broke; NULL: it can. */
static const char *no_return(const struct hub *hub, const struct ctl_hello *h)
{
	const struct hub_rank *rank = hub->ranks && h->nranks == hub->nranks ? &hub->ranks[h->rank] : NULL;

	if (!rank || rank->state == HUB_ABSENT)
		return "this rank has never been here";
	if (rank->process != h->process)
		return "another process has this rank";
	if (rank->state == HUB_LEFT)
		return "this rank has left";
	if (rank->state == HUB_LOST)
		return "this rank was counted as lost, and the others know";
	if (!rank->conn->session.on)
		return "nothing was kept for this rank";
	if (h->generation && h->generation <= rank->generation)
		return "a socket of an old epoch of the connection";
	/* It may have said since, on the old socket, that it has more. */
	return h->received < rank->conn->session.acked || ctl_conn_counts(rank->conn, h->received)
		       ? NULL
		       : "it counts other frames than were sent";
}

/* It was admitted, and never heard of that: its socket broke before anything came or went. It joins again. */
static bool joins_again(const struct hub *hub, const struct ctl_hello *h)
{
	const struct hub_rank *rank = hub->ranks && h->nranks == hub->nranks ? &hub->ranks[h->rank] : NULL;

	return !h->generation && rank && rank->state == HUB_HERE && ctl_conn_is_cut(rank->conn) && !rank->generation &&
	       !rank->conn->session.received && !no_return(hub, h);
}

/* The rank goes on with this socket. From the answer on nothing is read from the old one: the count in it is the last. */
static void take_back(struct hub *hub, struct inet_conn *from, const struct ctl_hello *h) REQUIRES(loop_mu)
{
	struct hub_rank *rank = &hub->ranks[h->rank];
	struct ctl_accepted a = {.timeout_ms = (uint32_t)(hub->timeout / 1000000),
				 .same_process = h->process == gantry_process_id(),
				 .resumes = 1,
				 .received = rank->conn->session.received,
				 .first = rank->conn->session.acked > h->received ? rank->conn->session.acked
										  : h->received};
	uint8_t answer[CTL_ACCEPTED_SIZE];
	struct inet_seals seals;
	char who[RANK_TEXT];
	int fd;

	ctl_accepted_encode(&a, answer);
	if (!inet_conn_accept(from, answer, sizeof(answer)))
		return;
	rank->generation = h->generation;
	rank->addr = from->addr;
	fd = inet_conn_take(from, &seals);
	if (ctl_conn_resume(rank->conn, fd, &seals, &rank->addr, a.first, a.received) != GANTRY_OK)
		return; /* it finds the connection closed, and comes again */
	drop_probe(rank);
	LOG_INFO(COMM, "comm %016llx: %s is back with socket %u", (unsigned long long)hub->comm_id,
		 rank_text(rank, who), rank->generation);
}

/* ---- connections whose hello names a hub here: until they are proved no hub hears of them ---- */

struct hub *hub_find(uint64_t comm_id)
{
	gantry_list_each_entry (hub, &ctl_service.hubs, struct hub, node) {
		if (hub->comm_id == comm_id && hub->state != HUB_ENDED && !inet_loop.parting)
			return hub;
	}
	return NULL;
}

static void on_hello(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct ctl_hello h;
	struct hub *hub;

	if (ctl_hello_decode(c->shake.payload, c->shake.payload_size, c->shake.peer_version, &h) != GANTRY_OK) {
		inet_conn_refuse(c, GANTRY_ERR_PROTOCOL, "not a hello");
		return;
	}
	hub = hub_find(h.comm_id);
	if (!hub) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED,
				 "no communicator of this id here: it has ended, or its process was started anew");
		return;
	}
	c->tag = h.comm_id;
	inet_conn_challenge(c, &hub->key);
}

static void on_proved(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct hub *hub = hub_find(c->tag);
	uint8_t answer[CTL_ACCEPTED_SIZE];
	struct ctl_hello h;

	if (!hub || ctl_hello_decode(c->shake.payload, c->shake.payload_size, c->shake.peer_version, &h) != GANTRY_OK) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "the communicator has just ended");
		return;
	}
	if (h.generation && hub->state != HUB_FAILED && no_return(hub, &h)) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "%s", no_return(hub, &h));
		return;
	}
	if ((h.generation && hub->state != HUB_FAILED) || joins_again(hub, &h)) {
		take_back(hub, c, &h);
		return;
	}
	ctl_accepted_encode(&(struct ctl_accepted){.timeout_ms = (uint32_t)(hub->timeout / 1000000),
						   .same_process = h.process == gantry_process_id(),
						   .resumes = hub->state != HUB_FAILED && resumes(&h)},
			    answer);
	if (inet_conn_accept(c, answer, sizeof(answer)))
		admit(hub, c, &h);
}

/* The hub's own ranks will want to know. */
static void on_lost(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct hub *hub = c->tag && !c->shake.proved && c->shake.error != GANTRY_ERR_VERSION ? hub_find(c->tag) : NULL;

	if (!hub)
		return;
	hub->refused++;
	hub->secrets |= c->shake.peer_auth == INET_AUTH_SECRET;
}

struct inet_service hub_service = {
	.protocol = {"ctl", CTL_VERSION, "hub's side", "rank's side", NULL},
	.hello = on_hello,
	.proved = on_proved,
	.lost = on_lost,
};

/* ---- life ---- */

static void hub_free(struct hub *hub) REQUIRES(loop_mu)
{
	LOG_INFO(COMM, "comm %016llx: the hub ends; %llu bytes of %d ranks came, %llu went",
		 (unsigned long long)hub->comm_id, (unsigned long long)hub->traffic.in, hub->nranks,
		 (unsigned long long)hub->traffic.out);
	gantry_list_remove(&hub->node);
	drop_gather(&hub->gather);
	inet_conns_drop(&hub_service, hub->comm_id); /* the key is this hub's */
	inet_port_put(&hub_service, hub->port);
	free(hub->addrs);
	free(hub->ranks);
	free(hub);
}

gantry_result hub_start(const struct ctl_id *id, const struct gantry_addr *addr, struct gantry_addr *ret_bound)
{
	gantry_result r = GANTRY_OK;
	struct hub *hub = calloc(1, sizeof(*hub));
	char text[GANTRY_ADDR_TEXT];

	if (!hub)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a hub");
	hub->timeout = gantry_params()->timeout;
	hub->connect_timeout = gantry_params()->connect_timeout;
	hub->comm_id = id->comm_id;
	TRY(inet_mixed_key(id->key, hub->key_bytes, &hub->key));
	hub->secrets = hub->key.auth == INET_AUTH_SECRET;
	inet_loop_lock();
	r = ctl_service_start();
	if (r == GANTRY_OK) {
		r = inet_port_get(&hub_service, addr, &hub->port);
		inet_loop_wake(); /* also if it failed: the service may have started for nothing */
	}
	if (r == GANTRY_OK) {
		*ret_bound = hub->port->addr;
		hub->until = gantry_now_ns() + PATIENCE * hub->connect_timeout;
		ctl_service_due(hub->until);
		gantry_list_append(&ctl_service.hubs, &hub->node);
		hub = NULL; /* the service's */
	}
	inet_loop_unlock();
	TRY(r);
	LOG_INFO(COMM, "comm %016llx: the ranks meet at %s", (unsigned long long)id->comm_id,
		 gantry_addr_text(ret_bound, text));
out:
	free(hub);
	return r;
}

void hub_drop(uint64_t comm_id)
{
	struct hub *hub = hub_find(comm_id);

	if (!hub || hub->ranks)
		return;
	hub->state = HUB_ENDED;
	ctl_service_due(inet_loop.now);
	inet_loop_wake();
}

void hub_bye(void)
{
	gantry_list_each_entry (hub, &ctl_service.hubs, struct hub, node) {
		struct ctl_head h = {.kind = CTL_BYE, .from = -1, .to = -1};

		if (hub->state == HUB_OPEN)
			fail_join(hub, GANTRY_ERR_PEER_LOST,
				  "the process that made the id (%s) ended while the ranks "
				  "were joining",
				  gantry_self());
		tell_left(hub);
		if (hub->state == HUB_RUNNING)
			tell_all(hub, ctl_buf_make(&h, NULL));
		linger_all(hub);
		hub->state = HUB_ENDED;
		ctl_service_due(inet_loop.now);
	}
}

/* ---- the clock ---- */

/* Whom an open hub waits for: "ranks 1, 3-5", and what to make of connections that proved nothing. */
static void absent_text(const struct hub *hub, char *buf, size_t len)
{
	char absent[256];
	int n;

	list_missing(hub, false, absent, sizeof(absent));
	n = snprintf(buf, len, "rank%s %s", hub->nranks - hub->nhere == 1 ? "" : "s", absent);
	if (hub->refused && n >= 0 && (size_t)n < len)
		snprintf(buf + n, len - (size_t)n, "; %u connection%s knew the id but failed to prove the %s",
			 hub->refused, hub->refused == 1 ? "" : "s",
			 hub->secrets ? "secret: does GANTRY_SECRET differ?" : "key in it");
}

int hub_awaits(uint64_t comm_id, char *buf, size_t len)
{
	const struct hub *hub = hub_find(comm_id);

	if (hub && hub->state == HUB_OPEN && hub->ranks)
		absent_text(hub, buf, len);
	return hub != NULL;
}

static void waited_enough(struct hub *hub) REQUIRES(loop_mu)
{
	char absent[400], seconds[16];

	if (hub->state == HUB_FAILED || !hub->ranks) {
		if (hub->state == HUB_OPEN)
			LOG_INFO(COMM, "comm %016llx: nobody came", (unsigned long long)hub->comm_id);
		hub->state = HUB_ENDED;
		return;
	}
	absent_text(hub, absent, sizeof(absent));
	fail_join(hub, GANTRY_ERR_TIMEOUT, "%d of %d ranks came within %s (GANTRY_CONNECT_TIMEOUT), missing: %s",
		  hub->nhere, hub->nranks, ctl_seconds(hub->connect_timeout, seconds), absent);
}

/* Asks all for a sign of life, and counts those as lost that gave none. */
static void beat(struct hub *hub) REQUIRES(loop_mu)
{
	if (inet_loop.now >= hub->next_beat) {
		for (int i = 0; i < hub->nranks; i++)
			if (hub->ranks[i].state == HUB_HERE && !ctl_conn_is_cut(hub->ranks[i].conn))
				ctl_conn_send_life(hub->ranks[i].conn);
		/* All hubs of a process at the same time: one turn of the service for all of them. */
		hub->next_beat = (inet_loop.now / hub->beat + 1) * hub->beat;
	}
	for (int i = 0; i < hub->nranks; i++) {
		struct hub_rank *rank = &hub->ranks[i];
		char seconds[16], cause[128];

		if (rank->state == HUB_HERE && rank->probe)
			probe_tick(rank->probe);
		if (rank->state != HUB_HERE)
			continue;
		if (!ctl_silent(&rank->conn->heard, hub->timeout)) {
			ctl_service_due(rank->conn->heard + ctl_patience(hub->timeout));
			continue;
		}
		snprintf(cause, sizeof(cause), "no sign of life for %s (GANTRY_TIMEOUT)%s",
			 ctl_seconds(hub->timeout, seconds),
			 ctl_conn_is_cut(rank->conn) ? "; its connection broke, and it has not come back" : "");
		rank_lost(rank, GANTRY_ERR_PEER_SILENT, cause);
	}
	ctl_service_due(hub->next_beat);
}

void hub_tick(void)
{
	gantry_list_each_entry_safe (hub, &ctl_service.hubs, struct hub, node) {
		tell_left(hub);
		if (hub->nhere)
			beat(hub);
		if (hub->gather.open)
			gather_tick(hub);
		if (hub->state == HUB_OPEN || hub->state == HUB_FAILED) {
			if (inet_loop.now >= hub->until)
				waited_enough(hub);
			if (hub->state != HUB_ENDED)
				ctl_service_due(hub->until);
		}
		if (hub->state == HUB_ENDED)
			hub_free(hub);
	}
}
