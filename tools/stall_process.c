/*
 * Processes without a communicator have no ranks and no calls to compare: what their reports tell is whose requests
 * wait for which process. One that many wait for and that has no report is stopped, dead, or busy with something else.
 */
#include <string.h>

#include "stall.h"

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

static int has_report(const struct stall_set *set, const char *host, int64_t pid)
{
	for (size_t i = 0; i < set->nprocesses; i++) {
		if (set->processes[i].pid == pid && strcmp(set->processes[i].host, host) == 0)
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

void stall_judge_processes(const struct stall_set *set, struct stall_verdict *ret)
{
	char host[64];
	int64_t pid;
	int votes, waiting = 0;

	*ret = (struct stall_verdict){.rank = -1, .cause = "none", .reports = (int)set->nprocesses};
	for (size_t i = 0; i < set->nprocesses; i++) {
		const struct stall_process *p = &set->processes[i];

		waiting += p->nwaits != 0;
		for (size_t k = 0; k < p->nwaits; k++) {
			if (!named(&p->waits[k], host, sizeof(host), &pid) || has_report(set, host, pid))
				continue;
			votes = voters(set, host, pid);
			if (votes <= ret->votes)
				continue;
			ret->votes = votes;
			ret->cause = "no report";
			snprintf(ret->text, sizeof(ret->text),
				 "%s pid %lld is waited for and has no report: it is stopped, dead, or does something "
				 "else",
				 host, (long long)pid);
		}
	}
	if (*ret->text)
		return;
	ret->votes = ret->reports;
	snprintf(ret->text, sizeof(ret->text), "%s",
		 waiting ? "whoever is waited for has a report too: the network between them, or a circle"
			 : "nobody waits");
}

void stall_print_processes(const struct stall_set *set, FILE *f)
{
	fprintf(f, "  %-24s  %-9s  %-40s  %8s  %10s  %12s  %-7s  %7s\n", "process", "call", "peer", "requests", "tag",
		"bytes", "waits", "since s");
	for (size_t i = 0; i < set->nprocesses; i++) {
		const struct stall_process *p = &set->processes[i];
		char name[96];

		snprintf(name, sizeof(name), "%s pid %lld", p->host, (long long)p->pid);
		for (size_t k = 0; k < p->nwaits; k++) {
			const struct stall_wait *w = &p->waits[k];

			fprintf(f, "  %-24s  %-9s  %-40s  %8lld  %10lld  %12lld  %-7s  %7.1f\n", name,
				w->send ? "send to" : "recv from", w->peer, (long long)w->requests, (long long)w->tag,
				(long long)w->bytes, stall_waits_names[w->waits], (double)w->wait_ms / 1e3);
		}
	}
}
