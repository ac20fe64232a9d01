/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verdict over the reports of a communicator's ranks. The first rule that applies decides:
 *
 *   lost     reports whose error is about another rank (lost, silent, closed, unreachable) vote for it
 *   failed   a rank has an error that is about no other rank: it failed by itself, and the others wait for it
 *   mismatch ranks are in collectives of the same number that are not the same
 *   chain    no rank is lost: follow the waits (below)
 *   none     nothing waits
 *
 * An error that a rank has of its own accord also explains why others lost it, so it is looked for first in the rank
 * that was voted for.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "common/array.h"
#include "stall/stall_set.h"

struct name {
	char text[128];
};

/* "rank 3 (node7, pid 4711)", with what is known of it from whatever report. */
static struct name name_of(const struct stall_comm *c, int rank)
{
	const struct stall_rank *r = stall_find(c, rank);
	const char *host = r ? r->host : "";
	int64_t pid = r ? r->pid : 0;
	struct name n;

	for (size_t i = 0; !*host && i < c->nreports; i++) {
		for (size_t k = 0; !*host && k < c->ranks[i].nconns; k++) {
			const struct stall_conn *e = &c->ranks[i].conns[k];

			host = e->peer == rank ? e->peer_host : "";
			pid = *host ? e->peer_pid : pid;
		}
	}
	if (r || *host) {
		snprintf(n.text, sizeof(n.text), "rank %d (%s, pid %lld)", rank, host, (long long)pid);
		return n;
	}
	for (size_t i = 0; !*host && i < c->nreports; i++)
		host = c->ranks[i].error_rank == rank ? c->ranks[i].error_host : "";
	snprintf(n.text, sizeof(n.text), "rank %d%s%s%s", rank, *host ? " (" : "", host, *host ? ")" : "");
	return n;
}

/* ---- collectives ---- */

/* The first that a rank waits in; NULL: none. */
static const struct stall_coll *coll_of(const struct stall_rank *r)
{
	for (size_t i = 0; i < r->nconns; i++) {
		if (r->conns[i].waits != STALL_NONE && r->conns[i].coll.number)
			return &r->conns[i].coll;
	}
	return NULL;
}

/* How many ranks are in the collective of that number, and of those, in this very one. */
static int count_in(const struct stall_comm *c, const struct stall_coll *coll, int *ret_same)
{
	int n = 0;

	*ret_same = 0;
	for (size_t i = 0; i < c->nreports; i++) {
		const struct stall_coll *o = coll_of(&c->ranks[i]);

		if (!o || o->number != coll->number)
			continue;
		n++;
		*ret_same += strcmp(o->text, coll->text) == 0;
	}
	return n;
}

/* 1: ranks have called different collectives. The one that the fewest agree with is named. */
static int judge_mismatch(const struct stall_comm *c, struct stall_verdict *ret)
{
	const struct stall_rank *odd = NULL, *other = NULL;
	int same, least = 0, votes = 0;

	for (size_t i = 0; i < c->nreports; i++) {
		const struct stall_coll *coll = coll_of(&c->ranks[i]);
		int n = coll ? count_in(c, coll, &same) : 0;

		if (n && same < n && (!odd || same <= least)) {
			odd = &c->ranks[i];
			least = same;
			votes = n - same;
		}
	}
	for (size_t i = 0; odd && i < c->nreports && !other; i++) {
		const struct stall_coll *o = coll_of(&c->ranks[i]);

		if (o && o->number == coll_of(odd)->number && strcmp(o->text, coll_of(odd)->text) != 0)
			other = &c->ranks[i];
	}
	if (!other)
		return 0;
	ret->rank = odd->rank;
	ret->cause = "mismatch";
	ret->votes = votes;
	snprintf(ret->text, sizeof(ret->text), "%s has called %s, where rank %d has called %s",
		 name_of(c, odd->rank).text, coll_of(odd)->text, other->rank, coll_of(other)->text);
	return 1;
}

static int value_of(const struct stall_conn *e, int rank)
{
	return 2 * (e->peer == rank) + !e->send;
}

/* Adds to the verdict where others wait, if it is in a collective: best for the data of that rank. */
static void add_where(const struct stall_comm *c, int rank, struct stall_verdict *ret)
{
	const struct stall_conn *best = NULL;
	const struct stall_rank *who = NULL;
	size_t len = strlen(ret->text);

	for (size_t i = 0; i < c->nreports; i++) {
		for (size_t k = 0; c->ranks[i].rank != rank && k < c->ranks[i].nconns; k++) {
			const struct stall_conn *e = &c->ranks[i].conns[k];

			if (e->waits == STALL_NONE || !e->coll.number ||
			    (best && value_of(e, rank) <= value_of(best, rank)))
				continue;
			best = e;
			who = &c->ranks[i];
		}
	}
	if (best)
		snprintf(ret->text + len, sizeof(ret->text) - len,
			 "; rank %d waits for %s rank %d in %s%s, by %s, channel %d", who->rank,
			 best->send ? "room at" : "data of", best->peer, best->coll.text, best->coll.place,
			 *best->transport ? best->transport : "?", best->channel);
}

/*
 * ---- the last rule ----
 *
 * No rank is lost, so follow the waits. "A waits for its peer B" leads to B's end of the same
 * connection (the other direction, the same channel), and from there:
 *
 *   B has no report                            -> B, missing call (were it dead, some rank would have an error); no
 *                                                 report where all were asked: one that lives has answered
 *   B's end: nothing in flight
 *     B waits for a rank on other ends         -> go on from there; if that comes back, deadlock
 *     B has launches that have not begun       -> B, slow: its kernel has not started
 *     B has made as many calls as A            -> network: it counts them as done (of collectives: A's)
 *     else                                     -> B, missing call
 *   B's end: waits for its peer or its socket  -> both have called, both wait: network between the two
 *   B's end: waits for its own kernel, memory
 *     B waits for a rank on other ends         -> go on from there
 *     else                                     -> B, slow
 *   B's end: moves                             -> B, slow
 *
 * Every rank that waits votes for each end that its chains come to; the one with the most votes is the verdict. Within
 * the chains of one rank every other rank is visited once.
 */

/* In the order in which equals are preferred. */
enum cause { MISSING, NO_REPORT, DEADLOCK, NETWORK, SLOW, CAUSES };
static const char *const cause_names[CAUSES] = {"missing call", "no report", "deadlock", "network", "slow"};

struct end {
	int rank;
	enum cause cause;
	int votes;
	int last_voter;
	char text[960];
};

struct walk {
	const struct stall_set *set;
	const struct stall_comm *c;
	struct end *ends; /* owned */
	size_t nends;
	unsigned char *visited;	       /* by rank, for the voter at hand */
	int *path;		       /* ranks from the voter to here */
	const struct stall_conn **via; /* via[i]: why path[i] waits */
	int depth;
	int voter;
};

static int waits_for_peer(const struct stall_conn *e)
{
	return e->waits == STALL_PEER || e->waits == STALL_SOCKET;
}

static int waits_elsewhere(const struct stall_rank *r)
{
	for (size_t i = 0; i < r->nconns; i++) {
		if (waits_for_peer(&r->conns[i]))
			return 1;
	}
	return 0;
}

/* The other end of r's connection e. */
static const struct stall_conn *other_end(const struct stall_rank *peer, const struct stall_rank *r,
					  const struct stall_conn *e)
{
	for (size_t i = 0; i < peer->nconns; i++) {
		const struct stall_conn *p = &peer->conns[i];

		if (p->peer == r->rank && p->send == !e->send && p->channel == e->channel)
			return p;
	}
	return NULL;
}

static void vote(struct walk *w, int rank, enum cause cause, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void vote(struct walk *w, int rank, enum cause cause, const char *fmt, ...)
{
	struct end *e = NULL;
	va_list args;

	for (size_t i = 0; i < w->nends && !e; i++)
		e = w->ends[i].rank == rank && w->ends[i].cause == cause ? &w->ends[i] : NULL;
	if (!e) {
		e = ARRAY_ADD(w->ends, w->nends);
		if (!e)
			return;
		*e = (struct end){.rank = rank, .cause = cause, .last_voter = -1};
		va_start(args, fmt);
		vsnprintf(e->text, sizeof(e->text), fmt, args);
		va_end(args);
	}
	e->votes += e->last_voter != w->voter;
	e->last_voter = w->voter;
}

/* The same process may be stuck in another communicator: then that is where to look. */
static void elsewhere(const struct walk *w, const struct stall_rank *r, char *buf, size_t len)
{
	buf[0] = 0;
	for (size_t i = 0; i < w->set->ncomms; i++) {
		const struct stall_comm *c = &w->set->comms[i];

		for (size_t k = 0; c != w->c && k < c->nreports; k++) {
			const struct stall_rank *o = &c->ranks[k];

			if (o->pid == r->pid && strcmp(o->host, r->host) == 0 && waits_elsewhere(o)) {
				snprintf(buf, len, "; its process waits as rank %d of communicator %s", o->rank, c->id);
				return;
			}
		}
	}
}

static void end_missing(struct walk *w, int rank, const struct stall_conn *e, const struct stall_rank *from)
{
	const struct stall_rank *r = stall_find(w->c, rank);
	const char *call = e->send ? "recv from" : "send to";
	char hint[128] = "";

	if (r)
		elsewhere(w, r, hint, sizeof(hint));
	else if (w->set->asked) {
		vote(w, rank, NO_REPORT,
		     "%s has not answered: its process is stopped, dead, or writes no reports to this folder; rank %d "
		     "waits for %s "
		     "it%s%s",
		     name_of(w->c, rank).text, from->rank, e->send ? "room at" : "data of",
		     e->coll.number ? " in " : "", e->coll.text);
		return;
	}
	if (e->coll.number && r)
		vote(w, rank, MISSING,
		     "%s has not called %s: it has called %lld collectives, and rank %d waits for it%s",
		     name_of(w->c, rank).text, e->coll.text, (long long)r->collectives, from->rank, hint);
	else if (e->coll.number)
		vote(w, rank, MISSING,
		     "%s: no report; others wait for it and none has lost it: it has not called %s, is stopped, or "
		     "writes no "
		     "reports",
		     name_of(w->c, rank).text, e->coll.text);
	else if (r)
		vote(w, rank, MISSING, "%s has not called %s rank %d (its matching call is missing)%s",
		     name_of(w->c, rank).text, call, from->rank, hint);
	else
		vote(w, rank, MISSING,
		     "%s: no report; others wait for it and none has lost it: it has not called %s "
		     "rank %d (its matching call is missing), is stopped, or writes no reports",
		     name_of(w->c, rank).text, call, from->rank);
}

static void end_slow(struct walk *w, const struct stall_rank *r, const struct stall_conn *e)
{
	const struct name n = name_of(w->c, r->rank);

	if (e && e->waits == STALL_KERNEL && strcmp(e->phase, "idle") != 0)
		vote(w, r->rank, SLOW, "the kernel of %s keeps others waiting: it is in phase %s at step %lld", n.text,
		     e->phase, (long long)e->step);
	else if (!e || e->waits == STALL_KERNEL || !e->pending)
		vote(w, r->rank, SLOW, "the kernel of %s has not started: %lld launches have not ended", n.text,
		     (long long)r->launches);
	else if (e->waits == STALL_NONE)
		vote(w, r->rank, SLOW, "%s is at it: kernel in phase %s at step %lld", n.text, e->phase,
		     (long long)e->step);
	else
		vote(w, r->rank, SLOW, "%s waits for its own %s (%s rank %d, channel %d)", n.text,
		     stall_waits_names[e->waits], e->send ? "sending to" : "receiving from", e->peer, e->channel);
}

static void end_network(struct walk *w, const struct stall_rank *a, const struct stall_rank *b,
			const struct stall_conn *e)
{
	int low = a->rank < b->rank ? a->rank : b->rank, high = a->rank < b->rank ? b->rank : a->rank;

	vote(w, low, NETWORK, "network between %s and %s: both have called and wait for each other (%s, channel %d)",
	     name_of(w->c, low).text, name_of(w->c, high).text, *e->transport ? e->transport : "?", e->channel);
}

/* The call was made and has ended, and yet a rank waits for it. */
static void end_done(struct walk *w, const struct stall_rank *r, const struct stall_conn *e,
		     const struct stall_rank *from)
{
	vote(w, r->rank, NETWORK,
	     "network: %s has made all %lld calls that rank %d waits for and counts them as done (%s, "
	     "channel %d), unless its report is older",
	     name_of(w->c, r->rank).text, (long long)(e->calls > 0 ? e->calls : r->collectives), from->rank,
	     *e->transport ? e->transport : "?", e->channel);
}

/* path[from] .. path[depth - 1] and back. Listed from the lowest rank on, so that all voters give the same text. */
static void end_deadlock(struct walk *w, int from)
{
	int n = w->depth - from, lowest = from;
	size_t at;
	char text[960];

	for (int i = from; i < w->depth; i++)
		lowest = w->path[i] < w->path[lowest] ? i : lowest;
	at = (size_t)snprintf(text, sizeof(text), "deadlock: ");
	for (int i = 0; i <= n && at < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%d", i ? " -> " : "",
				       w->path[from + (lowest - from + i) % n]);
	for (int i = 0; i < n && at < sizeof(text); i++) {
		int k = from + (lowest - from + i) % n;

		at += (size_t)snprintf(text + at, sizeof(text) - at, "%srank %d is in %s rank %d", i ? ", " : " (",
				       w->path[k], w->via[k]->send ? "send to" : "recv from", w->via[k]->peer);
	}
	if (at < sizeof(text))
		snprintf(text + at, sizeof(text) - at, ")");
	vote(w, w->path[lowest], DEADLOCK, "%s", text);
}

static int place_on_path(const struct walk *w, int rank)
{
	for (int i = 0; i < w->depth; i++) {
		if (w->path[i] == rank)
			return i;
	}
	return -1;
}

static void go_on(struct walk *w, const struct stall_rank *r);

/* The peer's end p does nothing, or waits for its own rank, or there is none: what does that rank do? */
static void follow_rank(struct walk *w, const struct stall_rank *r, const struct stall_conn *e,
			const struct stall_rank *peer, const struct stall_conn *p)
{
	int on_path = place_on_path(w, peer->rank);

	if (on_path >= 0)
		end_deadlock(w, on_path);
	else if (waits_elsewhere(peer))
		go_on(w, peer);
	else if ((p && p->pending) || peer->launches > 0)
		end_slow(w, peer, p);
	else if (p && !e->connecting && !p->connecting &&
		 (e->coll.number ? peer->collectives >= e->coll.number : e->calls > 0 && p->calls >= e->calls))
		end_done(w, peer, p, r);
	else
		end_missing(w, peer->rank, e, r);
}

static void follow(struct walk *w, const struct stall_rank *r, const struct stall_conn *e)
{
	const struct stall_rank *peer = stall_find(w->c, e->peer);
	const struct stall_conn *p = peer ? other_end(peer, r, e) : NULL;

	w->via[w->depth - 1] = e;
	if (!peer)
		end_missing(w, e->peer, e, r);
	else if (p && p->pending && waits_for_peer(p))
		end_network(w, r, peer, e);
	else if (p && p->pending && p->waits == STALL_NONE)
		end_slow(w, peer, p);
	else
		follow_rank(w, r, e, peer, p);
}

static void go_on(struct walk *w, const struct stall_rank *r)
{
	if (w->visited[r->rank])
		return;
	w->visited[r->rank] = 1;
	w->path[w->depth++] = r->rank;
	for (size_t i = 0; i < r->nconns; i++) {
		if (waits_for_peer(&r->conns[i]))
			follow(w, r, &r->conns[i]);
	}
	w->depth--;
}

/* A rank that waits only for itself votes for itself. */
static void start_at(struct walk *w, const struct stall_rank *r)
{
	w->voter = r->rank;
	w->depth = 0;
	memset(w->visited, 0, (size_t)w->c->nranks);
	if (waits_elsewhere(r)) {
		go_on(w, r);
		return;
	}
	for (size_t i = 0; i < r->nconns; i++) {
		if (r->conns[i].waits != STALL_NONE) {
			end_slow(w, r, &r->conns[i]);
			return;
		}
	}
	if (r->launches > 0)
		end_slow(w, r, NULL);
}

/* 0: nothing waits. */
static int follow_chains(const struct stall_set *set, const struct stall_comm *c, struct stall_verdict *ret)
{
	size_t n = (size_t)c->nranks;
	struct walk w = {.set = set,
			 .c = c,
			 .visited = malloc(n),
			 .path = malloc(n * sizeof(int)),
			 .via = malloc(n * sizeof(*w.via))};
	const struct end *best = NULL;

	for (size_t i = 0; w.visited && w.path && w.via && i < c->nreports; i++)
		start_at(&w, &c->ranks[i]);
	for (size_t i = 0; i < w.nends; i++) {
		const struct end *e = &w.ends[i];

		if (!best || e->votes > best->votes || (e->votes == best->votes && e->cause < best->cause) ||
		    (e->votes == best->votes && e->cause == best->cause && e->rank < best->rank))
			best = e;
	}
	if (best) {
		snprintf(ret->text, sizeof(ret->text), "%s", best->text);
		ret->rank = best->rank;
		ret->cause = cause_names[best->cause];
		ret->votes = best->votes;
	}
	free(w.ends);
	free(w.visited);
	free(w.path);
	free(w.via);
	return best != NULL;
}

/* ---- the other rules ---- */

static const struct {
	const char *name, *cause, *means;
} lost[] = {
	{"ERR_PEER_LOST", "died", "its process died"},
	{"ERR_PEER_SILENT", "stopped", "its process is stopped, or it cannot be reached"},
	{"ERR_UNREACHABLE", "unreachable", "it cannot be reached"},
	{"ERR_REFUSED", "unreachable", "it refuses connections"},
	{"ERR_PEER_CLOSED", "died", "it closed the connection: its process ended"},
};
enum { LOST = sizeof(lost) / sizeof(lost[0]) };

/* Its error speaks of a rank that is gone: which one. -1: it does not. */
static int blames(const struct stall_comm *c, const struct stall_rank *r, int *ret_kind)
{
	if (r->error_rank < 0 || r->error_rank >= c->nranks || r->error_rank == r->rank)
		return -1;
	for (int k = 0; k < LOST; k++) {
		if (strcmp(r->error, lost[k].name) == 0) {
			*ret_kind = k;
			return r->error_rank;
		}
	}
	return -1;
}

/* Its error is its own affair. A deadline that passed is a symptom: the chain finds the cause. */
static int failed_itself(const struct stall_comm *c, const struct stall_rank *r)
{
	int kind;

	return strncmp(r->error, "ERR_", 4) == 0 && strcmp(r->error, "ERR_TIMEOUT") != 0 && blames(c, r, &kind) < 0 &&
	       strcmp(r->error, "ERR_ABORTED") != 0;
}

struct votes {
	int of_kind[LOST];
	int all;
};

/* The rank with the most votes; of equals one without a report, then the lowest. -1: no votes. */
static int most_blamed(const struct stall_comm *c, struct votes *votes)
{
	int best = -1, kind = 0;

	for (size_t i = 0; i < c->nreports; i++) {
		int about = blames(c, &c->ranks[i], &kind);

		if (about < 0)
			continue;
		votes[about].all++;
		votes[about].of_kind[kind]++;
	}
	for (int r = 0; r < c->nranks; r++) {
		int more = votes[r].all - (best >= 0 ? votes[best].all : 0);

		if (more > 0 || (more == 0 && best >= 0 && !stall_find(c, r) && stall_find(c, best)))
			best = r;
	}
	return best;
}

/* "ERR_PEER_LOST (3 ranks), ERR_PEER_SILENT (1 rank)" */
static void list_kinds(const struct votes *v, char *buf, size_t len)
{
	size_t n = 0;

	buf[0] = 0;
	for (int k = 0; k < LOST && n < len; k++) {
		if (v->of_kind[k])
			n += (size_t)snprintf(buf + n, len - n, "%s%s (%d rank%s)", n ? ", " : "", lost[k].name,
					      v->of_kind[k], v->of_kind[k] == 1 ? "" : "s");
	}
}

static void say_failed(const struct stall_comm *c, const struct stall_rank *r, int votes, struct stall_verdict *ret)
{
	snprintf(ret->text, sizeof(ret->text), "%s failed by itself: %s: %s", name_of(c, r->rank).text, r->error,
		 r->text);
	ret->rank = r->rank;
	ret->cause = "failed";
	ret->votes = votes;
}

/* The rank that most others have lost. */
static void say_lost(const struct stall_comm *c, int rank, const struct votes *v, struct stall_verdict *ret)
{
	const struct stall_rank *r = stall_find(c, rank);
	const struct name n = name_of(c, rank);
	char kinds[256];
	int kind = 0, its = 0, about;

	for (int k = 1; k < LOST; k++)
		kind = v->of_kind[k] > v->of_kind[kind] ? k : kind;
	list_kinds(v, kinds, sizeof(kinds));
	ret->rank = rank;
	ret->votes = v->all;
	ret->cause = lost[kind].cause;
	if (!r) {
		snprintf(ret->text, sizeof(ret->text), "%s: no report; others say: %s: %s", n.text, kinds,
			 lost[kind].means);
		return;
	}
	about = blames(c, r, &its);
	if (about >= 0 && v->all == 1 && stall_find(c, about) && stall_find(c, about)->error_rank == rank) {
		ret->cause = "network";
		ret->votes = 2;
		snprintf(ret->text, sizeof(ret->text), "network between %s and %s: each has lost the other (%s, %s)",
			 n.text, name_of(c, about).text, r->error, stall_find(c, about)->error);
	} else if (about >= 0) {
		ret->cause = "unreachable";
		snprintf(ret->text, sizeof(ret->text),
			 "%s: others say: %s, and it has lost them too (%s): it lives, but could "
			 "not be reached",
			 n.text, kinds, r->error);
	} else {
		snprintf(ret->text, sizeof(ret->text), "%s: others say: %s: %s; its own report knows of no error",
			 n.text, kinds, lost[kind].means);
	}
}

/* The one that failed first. */
static const struct stall_rank *first_failed(const struct stall_comm *c)
{
	const struct stall_rank *first = NULL;

	for (size_t i = 0; i < c->nreports; i++) {
		if (failed_itself(c, &c->ranks[i]) && (!first || c->ranks[i].time_ns < first->time_ns))
			first = &c->ranks[i];
	}
	return first;
}

/* 1: there was something to say. */
static int judge_errors(const struct stall_comm *c, struct stall_verdict *ret)
{
	struct votes *votes = calloc((size_t)c->nranks, sizeof(*votes));
	const struct stall_rank *failed = first_failed(c);
	int blamed = -1, found = 1;

	if (votes)
		blamed = most_blamed(c, votes);
	if (blamed >= 0 && stall_find(c, blamed) && failed_itself(c, stall_find(c, blamed)))
		say_failed(c, stall_find(c, blamed), votes[blamed].all + 1, ret);
	else if (blamed >= 0)
		say_lost(c, blamed, &votes[blamed], ret);
	else if (failed)
		say_failed(c, failed, 1, ret);
	else
		found = 0;
	free(votes);
	return found;
}

void stall_judge(const struct stall_set *set, size_t comm, struct stall_verdict *ret)
{
	const struct stall_comm *c = &set->comms[comm];

	memset(ret, 0, sizeof(*ret));
	ret->rank = -1;
	ret->cause = "none";
	ret->reports = (int)c->nreports;
	if (judge_errors(c, ret))
		add_where(c, ret->rank, ret);
	else if (!judge_mismatch(c, ret) && !follow_chains(set, c, ret)) {
		if (c->moved)
			snprintf(ret->text, sizeof(ret->text), "nothing hangs: %d of %s moved while they were asked",
				 c->moved, COUNT_TEXT(c->nreports, "rank"));
		else
			snprintf(ret->text, sizeof(ret->text), "nothing waits");
	}
}

/*
 * ---- processes ----
 *
 * The reports of processes without a communicator show whose requests wait for which process, and whether that process
 * gave signs of life. A silent one is stopped; one that many wait for and that has no report is stopped, dead, or busy
 * with something else. Where NCCL's ranks are known, their calls are compared too.
 */

/* "10.0.0.2:4000 (node7 pid 123)" names a process in its parentheses. 0: it does not. */
static int named(const struct stall_wait *w, char *host, size_t len, int64_t *ret_pid)
{
	const char *open = strrchr(w->peer, '(');
	char name[64];
	long long pid;

	if (!open || sscanf(open, "(%63s pid %lld)", name, &pid) != 2)
		return 0;
	snprintf(host, len, "%s", name);
	*ret_pid = pid;
	return 1;
}

static int waits_for(const struct stall_process *p, const char *host, int64_t pid)
{
	char name[64];
	int64_t number;

	for (size_t i = 0; i < p->nwaits; i++) {
		if (p->waits[i].waits != STALL_NONE && named(&p->waits[i], name, sizeof(name), &number) &&
		    number == pid && strcmp(name, host) == 0)
			return 1;
	}
	return 0;
}

static int voters(const struct stall_set *set, const char *host, int64_t pid)
{
	int n = 0;

	for (size_t i = 0; i < set->nprocesses; i++)
		n += waits_for(&set->processes[i], host, pid);
	return n;
}

/* What rank of NCCL's a process is, in the communicator that it has called most in; NULL: none is known. */
static const struct stall_member *member_of(const struct stall_set *set, const char *host, int64_t pid)
{
	const struct stall_member *best = NULL;

	for (size_t i = 0; i < set->nmembers; i++) {
		const struct stall_member *m = &set->members[i];

		if (m->pid == pid && strcmp(m->host, host) == 0 && (!best || m->collectives > best->collectives))
			best = m;
	}
	return best;
}

static struct name name_process(const struct stall_member *m, const char *host, int64_t pid)
{
	struct name n;

	if (m)
		snprintf(n.text, sizeof(n.text), "rank %d of %d (%s, pid %lld)", m->rank, m->nranks, host,
			 (long long)pid);
	else
		snprintf(n.text, sizeof(n.text), "%s pid %lld", host, (long long)pid);
	return n;
}

/* Another rank of its communicator that has called more; NULL: none. */
static const struct stall_member *ahead_of(const struct stall_set *set, const struct stall_member *m)
{
	const struct stall_member *best = NULL;

	for (size_t i = 0; m && i < set->nmembers; i++) {
		const struct stall_member *k = &set->members[i];

		if (strcmp(k->comm, m->comm) == 0 && k->collectives > m->collectives &&
		    (!best || k->collectives > best->collectives))
			best = k;
	}
	return best;
}

/* Why a process that is waited for may be the one to blame; the larger the more certain. */
enum blame { BLAME_NONE, BLAME_MISSING, BLAME_NO_REPORT, BLAME_SILENT };

struct suspect {
	enum blame blame;
	int votes;
	char host[64];
	int64_t pid;
	const struct stall_process *from; /* the process that waits for it */
	const struct stall_wait *wait;
};

static void weigh(const struct stall_set *set, const struct stall_process *p, const struct stall_wait *w,
		  struct suspect *worst)
{
	struct suspect s = {.from = p, .wait = w};

	if (!named(w, s.host, sizeof(s.host), &s.pid))
		return;
	if (w->silent)
		s.blame = BLAME_SILENT;
	else if (!stall_find_process(set, s.host, s.pid))
		s.blame = BLAME_NO_REPORT;
	else if (ahead_of(set, member_of(set, s.host, s.pid)))
		s.blame = BLAME_MISSING;
	s.votes = voters(set, s.host, s.pid);
	if (s.blame > worst->blame || (s.blame == worst->blame && s.votes > worst->votes))
		*worst = s;
}

/* Whose requests wait for it, on which link, and in which call. */
static void add_link(const struct stall_set *set, const struct suspect *s, struct stall_verdict *ret)
{
	const struct stall_member *m = member_of(set, s->from->host, s->from->pid);
	const struct stall_wait *w = s->wait;
	size_t len = strlen(ret->text);

	snprintf(ret->text + len, sizeof(ret->text) - len,
		 "; %s waits for %s it on the link with %s: %lld request%s, the oldest of %lld bytes, for %.1f s%s%s",
		 name_process(m, s->from->host, s->from->pid).text, w->send ? "room at" : "data of", w->peer,
		 (long long)w->requests, w->requests == 1 ? "" : "s", (long long)w->bytes, (double)w->wait_ms / 1e3,
		 m && *m->last ? ", in " : "", m ? m->last : "");
}

static void blame(const struct stall_set *set, const struct suspect *s, struct stall_verdict *ret)
{
	const struct stall_member *m = member_of(set, s->host, s->pid), *other = ahead_of(set, m);
	struct name n = name_process(m, s->host, s->pid);

	ret->votes = s->votes;
	if (m) {
		ret->rank = m->rank;
		ret->nranks = m->nranks;
		snprintf(ret->comm, sizeof(ret->comm), "%s", m->comm);
	}
	if (s->blame == BLAME_SILENT) {
		ret->cause = "stopped";
		snprintf(ret->text, sizeof(ret->text),
			 "%s gave no sign of life for %.1f s: its process is stopped, or it cannot be reached", n.text,
			 (double)s->wait->heard_ms / 1e3);
	} else if (s->blame == BLAME_NO_REPORT) {
		ret->cause = "no report";
		snprintf(ret->text, sizeof(ret->text),
			 "%s is waited for and has no report: it is stopped, dead, or does something else", n.text);
	} else {
		ret->cause = "missing call";
		snprintf(ret->text, sizeof(ret->text),
			 "%s has called %lld collectives of communicator %s, and rank %d %lld: its call of %s is "
			 "missing",
			 n.text, (long long)m->collectives, m->comm, other->rank, (long long)other->collectives,
			 *other->last ? other->last : "the next");
	}
	add_link(set, s, ret);
}

void stall_judge_processes(const struct stall_set *set, struct stall_verdict *ret)
{
	struct suspect worst = {.blame = BLAME_NONE};
	int waiting = 0;

	*ret = (struct stall_verdict){.rank = -1, .cause = "none", .reports = (int)set->nprocesses};
	for (size_t i = 0; i < set->nprocesses; i++) {
		const struct stall_process *p = &set->processes[i];

		waiting += p->nwaits != 0;
		for (size_t k = 0; k < p->nwaits; k++)
			weigh(set, p, &p->waits[k], &worst);
	}
	if (worst.blame != BLAME_NONE) {
		blame(set, &worst, ret);
		return;
	}
	ret->votes = ret->reports;
	snprintf(ret->text, sizeof(ret->text), "%s",
		 waiting ? "every process waited for has a report too: the network between them, or a cycle"
			 : "nothing waits");
}

static void print_rmas(const struct stall_process *p, const char *name, FILE *f)
{
	for (size_t i = 0; i < p->nrmas; i++) {
		const struct stall_rma *q = &p->rmas[i];
		char signal[48] = "";

		if (q->signal >= 0)
			snprintf(signal, sizeof(signal), ", signal at %lld", (long long)q->signal);
		fprintf(f,
			"  %s: oldest remote memory request: %s of rank %d to rank %d, context %d, %lld bytes%s, for "
			"%.1f s\n",
			name, q->what, q->rank, q->peer, q->context, (long long)q->bytes, signal,
			(double)q->wait_ms / 1e3);
	}
}

void stall_print_processes(const struct stall_set *set, FILE *f)
{
	fprintf(f, "  %-32s  %-9s  %-40s  %8s  %10s  %12s  %-7s  %7s\n", "process", "call", "peer", "requests", "tag",
		"bytes", "waits", "since s");
	for (size_t i = 0; i < set->nprocesses; i++) {
		const struct stall_process *p = &set->processes[i];
		const struct stall_member *m = member_of(set, p->host, p->pid);
		char name[128];

		snprintf(name, sizeof(name), "%s", name_process(m, p->host, p->pid).text);
		for (size_t k = 0; k < p->nwaits; k++) {
			const struct stall_wait *w = &p->waits[k];

			fprintf(f, "  %-32s  %-9s  %-40s  %8lld  %10lld  %12lld  %-7s  %7.1f\n", name,
				w->send ? "send to" : "recv from", w->peer, (long long)w->requests, (long long)w->tag,
				(long long)w->bytes, stall_waits_names[w->waits], (double)w->wait_ms / 1e3);
		}
		print_rmas(p, name, f);
	}
}
