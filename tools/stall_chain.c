/*
 * The last rule: nobody is lost, so follow who waits for whom. "A waits for its peer B" leads to B's end of the same
 * connection (the other direction, the same channel), and from there:
 *
 *   B has no report                            -> B, missing call (were it dead, somebody would have an error)
 *   B's end: nothing in flight
 *     B waits for somebody on other ends       -> go on from there; if that comes back, deadlock
 *     B has launches that have not begun       -> B, slow: its kernel has not started
 *     B has made as many calls as A            -> network: it counts them as done
 *     else                                     -> B, missing call
 *   B's end: waits for its peer or its socket  -> both have called, both wait: network between the two
 *   B's end: waits for its own kernel, memory
 *     B waits for somebody on other ends       -> go on from there
 *     else                                     -> B, slow
 *   B's end: moves                             -> B, slow
 *
 * Every rank that waits votes for each end that its chains come to; the one with the most votes is the verdict. Within
 * the chains of one rank every other rank is visited once.
 */
#include <stdlib.h>
#include <string.h>

#include "stall.h"

/* In the order in which equals are preferred. */
enum cause { MISSING, DEADLOCK, NETWORK, SLOW, CAUSES };
static const char *const cause_names[CAUSES] = {"missing call", "deadlock", "network", "slow"};

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

static void vote(struct walk *w, int rank, enum cause cause, const char *text)
{
	struct end *e = NULL, *grown;

	for (size_t i = 0; i < w->nends && !e; i++)
		e = w->ends[i].rank == rank && w->ends[i].cause == cause ? &w->ends[i] : NULL;
	if (!e) {
		grown = realloc(w->ends, (w->nends + 1) * sizeof(*grown));
		if (!grown)
			return;
		w->ends = grown;
		e = &w->ends[w->nends++];
		*e = (struct end){.rank = rank, .cause = cause, .last_voter = -1};
		snprintf(e->text, sizeof(e->text), "%s", text);
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
	char name[128], text[960], hint[128] = "";

	stall_rank_name(w->c, rank, name, sizeof(name));
	if (r)
		elsewhere(w, r, hint, sizeof(hint));
	if (r)
		snprintf(text, sizeof(text), "%s has not called %s rank %d (its matching call is missing)%s", name,
			 call, from->rank, hint);
	else
		snprintf(text, sizeof(text),
			 "%s: no report; others wait for it and none has lost it: it has not called %s "
			 "rank %d (its matching call is missing), or writes no reports",
			 name, call, from->rank);
	vote(w, rank, MISSING, text);
}

static void end_slow(struct walk *w, const struct stall_rank *r, const struct stall_conn *e)
{
	char name[128], text[960];

	stall_rank_name(w->c, r->rank, name, sizeof(name));
	if (e && e->waits == STALL_KERNEL && strcmp(e->phase, "idle") != 0)
		snprintf(text, sizeof(text), "the kernel of %s keeps others waiting: it is in phase %s at step %lld",
			 name, e->phase, (long long)e->step);
	else if (!e || e->waits == STALL_KERNEL || !e->pending)
		snprintf(text, sizeof(text), "the kernel of %s has not started: %lld launches have not ended", name,
			 (long long)r->launches);
	else if (e->waits == STALL_NONE)
		snprintf(text, sizeof(text), "%s is at it: kernel in phase %s at step %lld", name, e->phase,
			 (long long)e->step);
	else
		snprintf(text, sizeof(text), "%s waits for its own %s (%s rank %d, channel %d)", name,
			 stall_waits_names[e->waits], e->send ? "sending to" : "receiving from", e->peer, e->channel);
	vote(w, r->rank, SLOW, text);
}

static void end_network(struct walk *w, const struct stall_rank *a, const struct stall_rank *b,
			const struct stall_conn *e)
{
	char one[128], two[128], text[960];
	int low = a->rank < b->rank;

	stall_rank_name(w->c, low ? a->rank : b->rank, one, sizeof(one));
	stall_rank_name(w->c, low ? b->rank : a->rank, two, sizeof(two));
	snprintf(text, sizeof(text),
		 "network between %s and %s: both have called and wait for each other (%s, channel %d)", one, two,
		 *e->transport ? e->transport : "?", e->channel);
	vote(w, low ? a->rank : b->rank, NETWORK, text);
}

/* The call was made and has ended, and yet somebody waits for it. */
static void end_done(struct walk *w, const struct stall_rank *r, const struct stall_conn *e,
		     const struct stall_rank *from)
{
	char name[128], text[960];

	stall_rank_name(w->c, r->rank, name, sizeof(name));
	snprintf(text, sizeof(text),
		 "network: %s has made all %lld calls that rank %d waits for and counts them as done (%s, "
		 "channel %d), unless its report is older",
		 name, (long long)e->calls, from->rank, *e->transport ? e->transport : "?", e->channel);
	vote(w, r->rank, NETWORK, text);
}

/* path[from] .. path[depth - 1] and back. Told from the lowest rank on, so that all voters tell the same. */
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
	vote(w, w->path[lowest], DEADLOCK, text);
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

static void follow(struct walk *w, const struct stall_rank *r, const struct stall_conn *e)
{
	const struct stall_rank *peer = stall_find(w->c, e->peer);
	const struct stall_conn *p = peer ? other_end(peer, r, e) : NULL;
	int on_path;

	w->via[w->depth - 1] = e;
	if (!peer) {
		end_missing(w, e->peer, e, r);
		return;
	}
	if (p && p->pending && waits_for_peer(p)) {
		end_network(w, r, peer, e);
		return;
	}
	if (p && p->pending && p->waits == STALL_NONE) {
		end_slow(w, peer, p);
		return;
	}
	/* Its end does nothing, or waits for its own rank: what does that do? */
	on_path = place_on_path(w, peer->rank);
	if (on_path >= 0)
		end_deadlock(w, on_path);
	else if (waits_elsewhere(peer))
		go_on(w, peer);
	else if ((p && p->pending) || peer->launches > 0)
		end_slow(w, peer, p);
	else if (p && e->calls > 0 && p->calls >= e->calls && !e->connecting && !p->connecting)
		end_done(w, peer, p, r);
	else
		end_missing(w, peer->rank, e, r);
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

/* Who waits for nobody but itself votes for itself. */
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

int stall_chain(const struct stall_set *set, const struct stall_comm *c, struct stall_verdict *ret)
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
