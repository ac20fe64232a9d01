/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks come to a hub: a connection whose hello names one of this process's hubs is asked to prove its key, then let in,
 * until all are here. The first that does not fit (twice the same rank, another count) fails joining for all, and so does one
 * that is lost: they hear the same cause, also those that come only then. A rank that has not come is waited for: it is late,
 * for all that is known here, unless a rank has a limit for that (GANTRY_CALL_TIMEOUT).
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "ctl/hub_priv.h"
#include "inet/sock.h"

enum { FILES_SPARE = 64 }; /* for what else the process opens */
static const uint64_t beat_min = 10000000, beat_max = 10000000000;

/* ---- missing ranks, and failing ---- */

static bool is_absent(const struct hub_rank *rank)
{
	return rank->state == HUB_ABSENT;
}

/* The ranks that an open hub waits for: "ranks 1, 3-5", and the reason of refused connections. */
static void absent_text(const struct hub *hub, char *buf, size_t len)
{
	char absent[256];

	hub_list_ranks(hub, is_absent, absent, sizeof(absent));
	snprintf(buf, len, "rank%s %s", hub->nranks - hub->nhere == 1 ? "" : "s", absent);
	if (hub->unfit[0])
		gantry_text_add(buf, len, "; %s", hub->unfit);
	if (hub->refused)
		gantry_text_add(buf, len, "; %u connection%s had the id but failed to prove the %s", hub->refused,
				hub->refused == 1 ? "" : "s",
				hub->secrets ? "secret: does GANTRY_SECRET differ?" : "key in it");
}

int hub_awaits(uint64_t comm_id, char *buf, size_t len)
{
	const struct hub *hub = hub_find(comm_id);

	if (hub && hub->state == HUB_OPEN && hub->ranks)
		absent_text(hub, buf, len);
	return hub != NULL;
}

void hub_join_fail(struct hub *hub, gantry_result why, const char *fmt, ...)
{
	ASSERT(hub->state == HUB_OPEN || hub->state == HUB_FAILED);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(hub->text, sizeof(hub->text), fmt, ap);
	va_end(ap);
	LOG_INFO(COMM, "comm %016llx: joining failed: %s", (unsigned long long)hub->comm_id, hub->text);
	hub->error = why;
	hub->state = HUB_FAILED;
	hub_tell_all(hub,
		     hub_text_frame((struct inet_header){.kind = CTL_REFUSED, .from = -1, .result = why}, hub->text));
	hub_linger_all(hub);
	hub->until = inet_loop.now + hub->connect_timeout;
	ctl_service_due(hub->until);
}

static void waited_enough(struct hub *hub) REQUIRES(loop_mu)
{
	char absent[512], seconds[16];

	if (hub->state == HUB_FAILED || !hub->ranks) {
		if (hub->state == HUB_OPEN)
			LOG_INFO(COMM, "comm %016llx: no rank joined", (unsigned long long)hub->comm_id);
		hub->state = HUB_ENDED;
		return;
	}
	absent_text(hub, absent, sizeof(absent));
	hub_join_fail(hub, GANTRY_ERR_TIMEOUT, "only %d of %d ranks joined within %s%s; missing: %s", hub->nhere,
		      hub->nranks, ctl_seconds(inet_loop.now - hub->wait.since, seconds),
		      hub->call_timeout ? " (GANTRY_CALL_TIMEOUT)" : "", absent);
}

static void tell_late(struct hub *hub) REQUIRES(loop_mu)
{
	char absent[512], seconds[16];
	uint64_t waited;

	if (!hub_wait_tells(&hub->wait, &waited))
		return;
	absent_text(hub, absent, sizeof(absent));
	LOG_WARN(COMM, "comm %016llx: %d of %d ranks have joined, waiting for %s to call init, for %s so far",
		 (unsigned long long)hub->comm_id, hub->nhere, hub->nranks, absent, ctl_seconds(waited, seconds));
}

void hub_join_tick(struct hub *hub)
{
	if (hub->state != HUB_OPEN && hub->state != HUB_FAILED)
		return;
	if (inet_loop.now >= hub->until)
		waited_enough(hub);
	if (hub->state == HUB_OPEN && hub->ranks)
		tell_late(hub);
	if (hub->state != HUB_ENDED)
		ctl_service_due(hub->until);
}

/* ---- coming ---- */

/* Refused by name, after the proof: this one will go, so its connection lingers. */
static void turn_away(struct inet_stream *c, gantry_result why, const char *text) REQUIRES(loop_mu)
{
	const struct inet_header h = {.kind = CTL_REFUSED, .from = -1, .result = why};

	inet_stream_write(c, inet_queued_make(hub_text_frame(h, text)));
	inet_stream_finish(c, HUB_LINGER_NS);
}

/* A descriptor for every rank, and for those that the other hubs of this process wait for. */
static bool make_room(const struct hub *hub, int nranks) REQUIRES(loop_mu)
{
	long n = nranks;

	gantry_list_each_entry (other, &ctl_service.hubs, const struct hub, node)
		if (other != hub && other->state == HUB_OPEN)
			n += other->nranks - other->nhere;
	return sock_fd_reserve(n, FILES_SPARE);
}

static bool make_ranks(struct hub *hub, int nranks) REQUIRES(loop_mu)
{
	char advice[GANTRY_ADVICE_TEXT];

	ASSERT(!hub->ranks && !hub->nhere);
	if (!make_room(hub, nranks)) {
		hub_join_fail(hub, GANTRY_ERR_LIMIT,
			      "the process that created the unique id (%s) needs an open file for each of %d ranks, "
			      "which exceeds its limit: %s",
			      gantry_self(), nranks, gantry_nofile_advice(advice));
		return false;
	}
	hub->addrs = calloc((size_t)nranks, sizeof(*hub->addrs));
	hub->ranks = hub->addrs ? calloc((size_t)nranks, sizeof(*hub->ranks)) : NULL;
	if (!hub->ranks) {
		hub_join_fail(hub, GANTRY_ERR_NOMEM, "no memory for %d ranks", nranks);
		return false;
	}
	hub->nranks = nranks;
	for (int i = 0; i < nranks; i++)
		hub->ranks[i].hub = hub;
	/* From now on it is the ranks' patience that counts. */
	hub->until = UINT64_MAX;
	hub_wait_begin(&hub->wait);
	hub->beat = hub->timeout / CTL_BEATS < beat_max ? hub->timeout / CTL_BEATS : beat_max;
	return true;
}

static const struct hub_rank *first_here(const struct hub *hub)
{
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE)
			return &hub->ranks[i];
	return NULL;
}

/* Whether the new rank fits; otherwise all ranks have been sent the reason. */
static bool rank_fits(struct hub *hub, struct inet_stream *c, const struct ctl_hello *h, const char *rank_name)
	REQUIRES(loop_mu)
{
	struct hub_rank *other = NULL;
	char text[HUB_RANK_TEXT], late[CTL_TEXT_MAX];

	if (hub->state == HUB_FAILED)
		goto failed;
	if (!hub->ranks && !make_ranks(hub, h->nranks))
		goto failed;
	if (h->nranks == hub->nranks)
		other = &hub->ranks[h->rank];
	if (other && other->state == HUB_ABSENT)
		return true;
	if (other && other->state == HUB_HERE && inet_stream_is_cut(other->conn) && other->process != h->process)
		hub_rank_lost(other, GANTRY_ERR_PEER_LOST, "its process was restarted");
	if (hub->state == HUB_FAILED)
		goto failed;
	if (hub->state != HUB_OPEN) { /* the communicator is running: the new rank is wrong */
		snprintf(late, sizeof(late), "all %d ranks have already joined; refused %s", hub->nranks, rank_name);
		turn_away(c, GANTRY_ERR_USAGE, late);
		return false;
	}
	if (other)
		hub_join_fail(hub, GANTRY_ERR_USAGE, "rank %d joined twice: %s and %s", h->rank,
			      hub_rank_text(other, text), rank_name);
	else
		hub_join_fail(hub, GANTRY_ERR_SETTING, "ranks disagree on the number of ranks: %s has %d, %s has %d",
			      rank_name, h->nranks, hub_rank_text(first_here(hub), text), hub->nranks);
failed:
	turn_away(c, hub->error, hub->text);
	return false;
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
	ASSERT(n <= (hub->nranks + 1) / 2);
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
	struct inet_header h = {.kind = CTL_READY, .from = -1, .to = -1};
	const struct gantry_addr *addrs = hub->exchange ? hub->addrs : NULL;
	struct inet_frame *b;

	ASSERT(rank >= 0 && rank < hub->nranks && hub->ranks[rank].state == HUB_HERE);
	h.size = (uint32_t)ctl_ready_size(nranges, addrs, hub->nranks);
	b = inet_frame_make(&h, NULL);
	if (b)
		ctl_ready_encode(rank, hub->nranks, ranges, nranges, addrs, b->bytes + INET_HEADER_SIZE);
	inet_stream_write(hub->ranks[rank].conn, inet_queued_make(b));
}

static void all_here(struct hub *hub) REQUIRES(loop_mu)
{
	struct ctl_range *ranges = calloc((size_t)(hub->nranks + 1) / 2, sizeof(*ranges));
	int nranges;

	ASSERT(hub->state == HUB_OPEN && hub->nhere == hub->nranks);
	if (!ranges) {
		hub_join_fail(hub, GANTRY_ERR_NOMEM, "no memory for %d ranks", hub->nranks);
		return;
	}
	nranges = find_ranges(hub, ranges);
	hub->exchange = hub->nranks >= gantry_params()->exchange_ranks && all_listen(hub);
	hub->state = HUB_RUNNING;
	for (int i = 0; i < hub->nranks; i++)
		tell_ready(hub, i, ranges, nranges);
	free(ranges);
	LOG_INFO(COMM, "comm %016llx: all %d ranks have joined", (unsigned long long)hub->comm_id, hub->nranks);
}

/* The clock of one that has just come: signs of life as often as it needs them, and no waiting beyond its patience. */
static void heed_clock(struct hub *hub, const struct ctl_hello *h) REQUIRES(loop_mu)
{
	uint64_t wait = (uint64_t)h->wait_ms * 1000000, theirs = (uint64_t)h->timeout_ms * 1000000 / CTL_BEATS;

	if (theirs < hub->beat)
		hub->beat = theirs;
	if (hub->beat < beat_min)
		hub->beat = beat_min;
	if (hub->nhere == 1 || hub->next_beat > inet_loop.now + hub->beat)
		hub->next_beat = inet_loop.now + hub->beat;
	if (h->wait_ms != CTL_WAIT_FOREVER && inet_loop.now + wait < hub->until)
		hub->until = inet_loop.now + wait;
	ctl_service_due(hub->until);
	ctl_service_due(hub->next_beat);
}

/* One that knows the key and was answered; takes the connection over. */
static void admit_rank(struct hub *hub, struct inet_conn *from, const struct ctl_hello *h) REQUIRES(loop_mu)
{
	struct hub_rank newcomer = {.hub = hub, .state = HUB_HERE, .addr = from->addr, .process = h->process};
	char rank_name[HUB_RANK_TEXT], addr[GANTRY_ADDR_TEXT];
	struct inet_seals seals;
	struct inet_stream *c;
	int fd;

	memcpy(newcomer.who, from->shake.peer, sizeof(newcomer.who));
	snprintf(rank_name, sizeof(rank_name), "rank %d (%s, %s)", h->rank, gantry_addr_text(&from->addr, addr),
		 newcomer.who);
	fd = inet_conn_take(from, &seals);
	if (inet_stream_make(&ctl_service.streams, fd, &seals, &newcomer.addr, &hub_rank_ops, NULL, &c) != GANTRY_OK)
		return; /* it finds the connection closed, and comes again */
	newcomer.conn = c;
	if (!rank_fits(hub, c, h, rank_name))
		return;
	ASSERT(hub->ranks[h->rank].state == HUB_ABSENT && hub->nhere < hub->nranks);
	hub->ranks[h->rank] = newcomer;
	hub->addrs[h->rank] = h->addr;
	c->session.on = hub_resumes(h);
	c->owner = &hub->ranks[h->rank];
	c->traffic = &hub->traffic;
	hub->nhere++;
	LOG_DEBUG(COMM, "comm %016llx: %s joined, %d of %d", (unsigned long long)hub->comm_id, rank_name, hub->nhere,
		  hub->nranks);
	heed_clock(hub, h);
	if (hub->nhere == hub->nranks)
		all_here(hub);
}

/* ---- hubs whose joining failed: a rank that is very late shall hear the cause, and not wait for the hub to come ---- */

enum { FAILED_KEPT = 32 };
static struct {
	uint64_t comm_id;
	gantry_result error; /* OK: none */
	char text[CTL_TEXT_MAX];
} failed[FAILED_KEPT] GUARDED_BY(loop_mu);
static unsigned nfailed GUARDED_BY(loop_mu);

void hub_join_keep(const struct hub *hub)
{
	unsigned at = nfailed % FAILED_KEPT;

	if (hub->error == GANTRY_OK)
		return;
	failed[at].comm_id = hub->comm_id;
	failed[at].error = hub->error;
	memcpy(failed[at].text, hub->text, sizeof(failed[at].text));
	nfailed++;
}

static void refuse_unknown(struct inet_conn *c, uint64_t comm_id) REQUIRES(loop_mu)
{
	for (int i = 0; i < FAILED_KEPT; i++) {
		if (failed[i].error != GANTRY_OK && failed[i].comm_id == comm_id) {
			inet_conn_refuse(c, failed[i].error, "%s", failed[i].text);
			return;
		}
	}
	inet_conn_refuse(c, GANTRY_ERR_REFUSED,
			 "no communicator with this id here: it has ended, or its process was restarted");
}

/* ---- connections whose hello names a hub here: no hub sees them until they are authenticated ---- */

/* A hub whose id is not random could be taken for another one with the same secret. Without a secret an address proves nothing, and it may
 * be translated on the way. */
static bool is_for_hub(const struct inet_conn *c, const struct hub *hub, const struct ctl_hello *h) REQUIRES(loop_mu)
{
	struct gantry_addr advertised;

	if (!hub->fixed || hub->key.auth != INET_AUTH_SECRET || c->shake.peer_version != CTL_VERSION)
		return true;
	return inet_advertised(&hub->port->addr, &advertised) == GANTRY_OK &&
	       inet_target_is_here(&h->to, c->source.fd, &advertised);
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
		refuse_unknown(c, h.comm_id);
		return;
	}
	if (!is_for_hub(c, hub, &h)) {
		inet_conn_refuse(
			c, GANTRY_ERR_REFUSED,
			"the rank connected to an address that does not belong to this process: with address "
			"translation in between, set GANTRY_ADVERTISE in the process that creates the unique id");
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
	if (hub_take_back(hub, c, &h))
		return;
	ctl_accepted_encode(&(struct ctl_accepted){.timeout_ms = (uint32_t)(hub->timeout / 1000000),
						   .same_process = h.process == gantry_process_id(),
						   .resumes = hub->state != HUB_FAILED && hub_resumes(&h)},
			    answer);
	if (inet_conn_accept(c, answer, sizeof(answer)))
		admit_rank(hub, c, &h);
}

/* The hub's own ranks will want to know. */
static void on_lost(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct hub *hub = c->tag && c->shake.error != GANTRY_ERR_VERSION ? hub_find(c->tag) : NULL;
	char addr[GANTRY_ADDR_TEXT];

	if (!hub)
		return;
	if (c->shake.proved) { /* encryption that only one side has, or TLS that fails */
		if (c->shake.error == GANTRY_ERR_AUTH || c->shake.error == GANTRY_ERR_UNSUPPORTED)
			snprintf(hub->unfit, sizeof(hub->unfit), "%s (%s) was refused: %.120s",
				 gantry_addr_text(&c->addr, addr), c->shake.peer, c->shake.text);
		return;
	}
	hub->refused++;
	hub->secrets |= c->shake.peer_auth == INET_AUTH_SECRET;
}

struct inet_service hub_service = {
	.protocol = {"ctl", CTL_VERSION, "bootstrap root's side", "rank's side", NULL},
	.hello = on_hello,
	.proved = on_proved,
	.lost = on_lost,
};
