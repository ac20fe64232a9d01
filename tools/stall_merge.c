/*
 * The verdict over the reports of a communicator's ranks. The first rule that applies decides:
 *
 *   lost     reports whose error is about another rank (lost, silent, closed, unreachable) vote for it
 *   failed   a rank has an error that is about no other rank: it failed by itself, the others wait in vain
 *   chain    nobody is lost: follow who waits for whom (stall_chain.c)
 *   none     nobody waits
 *
 * An error that a rank has of its own accord also explains why others lost it, so it is looked for first in the rank
 * that was voted for.
 */
#include <stdlib.h>
#include <string.h>

#include "stall.h"

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

void stall_rank_name(const struct stall_comm *c, int rank, char *buf, size_t len)
{
	const struct stall_rank *r = stall_find(c, rank);

	if (r) {
		snprintf(buf, len, "rank %d (%s, pid %lld)", rank, r->host, (long long)r->pid);
		return;
	}
	for (size_t i = 0; i < c->nreports; i++) {
		for (size_t k = 0; k < c->ranks[i].nconns; k++) {
			const struct stall_conn *e = &c->ranks[i].conns[k];

			if (e->peer == rank && *e->peer_host) {
				snprintf(buf, len, "rank %d (%s, pid %lld)", rank, e->peer_host,
					 (long long)e->peer_pid);
				return;
			}
		}
	}
	for (size_t i = 0; i < c->nreports; i++) {
		if (c->ranks[i].error_rank == rank && *c->ranks[i].error_host) {
			snprintf(buf, len, "rank %d (%s)", rank, c->ranks[i].error_host);
			return;
		}
	}
	snprintf(buf, len, "rank %d", rank);
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
	char name[128];

	stall_rank_name(c, r->rank, name, sizeof(name));
	snprintf(ret->text, sizeof(ret->text), "%s failed by itself: %s: %s", name, r->error, r->text);
	ret->rank = r->rank;
	ret->cause = "failed";
	ret->votes = votes;
}

/* The rank that most others have lost. */
static void say_lost(const struct stall_comm *c, int rank, const struct votes *v, struct stall_verdict *ret)
{
	const struct stall_rank *r = stall_find(c, rank);
	char name[128], kinds[256], other[128];
	int kind = 0, its = 0, about;

	for (int k = 1; k < LOST; k++)
		kind = v->of_kind[k] > v->of_kind[kind] ? k : kind;
	stall_rank_name(c, rank, name, sizeof(name));
	list_kinds(v, kinds, sizeof(kinds));
	ret->rank = rank;
	ret->votes = v->all;
	ret->cause = lost[kind].cause;
	if (!r) {
		snprintf(ret->text, sizeof(ret->text), "%s: no report; others say: %s: %s", name, kinds,
			 lost[kind].means);
		return;
	}
	about = blames(c, r, &its);
	if (about >= 0 && v->all == 1 && stall_find(c, about) && stall_find(c, about)->error_rank == rank) {
		stall_rank_name(c, about, other, sizeof(other));
		ret->cause = "network";
		ret->votes = 2;
		snprintf(ret->text, sizeof(ret->text), "network between %s and %s: each has lost the other (%s, %s)",
			 name, other, r->error, stall_find(c, about)->error);
	} else if (about >= 0) {
		ret->cause = "unreachable";
		snprintf(ret->text, sizeof(ret->text),
			 "%s: others say: %s, and it has lost them too (%s): it lives, but could "
			 "not be reached",
			 name, kinds, r->error);
	} else {
		snprintf(ret->text, sizeof(ret->text), "%s: others say: %s: %s; its own report knows of no error", name,
			 kinds, lost[kind].means);
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
	if (judge_errors(c, ret) || stall_chain(set, c, ret))
		return;
	snprintf(ret->text, sizeof(ret->text), "nothing waits");
}
