/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/stall.h"

#include <limits.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/ranks.h"

MUTEX_KIND(stall_sources_mu);
static struct stall_sources_mu sources_mu;
static struct gantry_list sources GUARDED_BY(stall_sources_mu) = {&sources, &sources};

uint64_t gantry_stall_after(void)
{
	return *gantry_params()->stall_dir ? gantry_params()->stall : 0;
}

uint64_t gantry_stall_interval(void)
{
	uint64_t quarter = gantry_stall_after() / 4;

	return quarter < 1000000000 ? quarter : 1000000000;
}

struct report {
	const char *user, *host;
	const struct gantry_stall_wait *waits;
	size_t n;
};

static void put_wait(FILE *f, const struct gantry_stall_wait *w)
{
	struct gantry_json j;

	gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
	gantry_json_str(&j, "kind", "wait");
	gantry_json_str(&j, "peer", w->peer);
	gantry_json_str(&j, "dir", w->send ? "send" : "recv");
	gantry_json_uint(&j, "requests", w->requests);
	gantry_json_uint(&j, "tag", w->tag);
	gantry_json_uint(&j, "bytes", w->bytes);
	gantry_json_str(&j, "waits_for", w->waits_for);
	gantry_json_uint(&j, "wait_ms", w->wait_ns / 1000000);
	gantry_json_uint(&j, "heard_ms", w->heard_ns / 1000000);
	gantry_json_int(&j, "silent", w->silent);
	gantry_json_end(&j);
}

static void put_report(void *ctx, FILE *f)
{
	const struct report *r = ctx;
	struct gantry_json j;
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
	gantry_json_str(&j, "kind", "process");
	gantry_json_str(&j, "user", r->user);
	gantry_json_str(&j, "host", r->host);
	gantry_json_int(&j, "pid", getpid());
	gantry_json_int(&j, "time_ns", (int64_t)t.tv_sec * 1000000000 + t.tv_nsec);
	gantry_json_end(&j);
	gantry_rank_put_lines(f, 0);
	for (size_t i = 0; i < r->n; i++)
		put_wait(f, &r->waits[i]);
	stall_sources_mu_lock(&sources_mu);
	gantry_list_each_entry (s, &sources, struct gantry_stall_source, node)
		s->put(s, f);
	stall_sources_mu_unlock(&sources_mu);
}

void gantry_stall_add(struct gantry_stall_source *s)
{
	stall_sources_mu_lock(&sources_mu);
	gantry_list_append(&sources, &s->node);
	stall_sources_mu_unlock(&sources_mu);
}

void gantry_stall_remove(struct gantry_stall_source *s)
{
	stall_sources_mu_lock(&sources_mu);
	gantry_list_remove(&s->node);
	stall_sources_mu_unlock(&sources_mu);
}

static void put_ranks(void *ctx, FILE *f)
{
	(void)ctx;
	gantry_rank_put_lines(f, 0);
}

void gantry_stall_write_ranks(void)
{
	char host[64] = "", path[PATH_MAX];

	gethostname(host, sizeof(host) - 1);
	snprintf(path, sizeof(path), "%s/rank-%s-%d.jsonl", gantry_params()->stall_dir, host, (int)getpid());
	gantry_file_write(path, "the list of this process's ranks", put_ranks, NULL);
}

int gantry_stall_requested(struct gantry_stall_request *seen)
{
	int64_t changed = 0;
	char path[PATH_MAX];
	struct stat st;
	int fresh;

	if (!gantry_stall_after())
		return 0;
	snprintf(path, sizeof(path), "%s/request", gantry_params()->stall_dir);
	if (stat(path, &st) == 0)
		changed = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	fresh = seen->looked && changed && changed != seen->changed;
	*seen = (struct gantry_stall_request){1, changed};
	return fresh;
}

void gantry_stall_tell(const char *user, const struct gantry_stall_wait *waits, size_t n, int asked)
{
	const struct gantry_stall_wait *w = waits;
	char host[64] = "", path[PATH_MAX], more[48] = "";
	struct report r = {user, host, waits, n};
	int written;

	for (size_t i = 1; i < n; i++)
		w = waits[i].wait_ns > w->wait_ns ? &waits[i] : w;
	gethostname(host, sizeof(host) - 1);
	snprintf(path, sizeof(path), "%s/stall-%s-%d.jsonl", gantry_params()->stall_dir, host, (int)getpid());
	written = gantry_file_write(path, "the stall report", put_report, &r);
	if (!n) {
		LOG_WARN(BASE, "%s: report requested; nothing is waiting%s%s", user, written ? "; report in " : "",
			 written ? path : "");
		return;
	}
	if (n > 1)
		snprintf(more, sizeof(more), "; %zu more direction%s", n - 1, n == 2 ? " waits" : "s wait");
	LOG_WARN(BASE,
		 "%s %s for %.1f s: %u %s%s %s %s wait%s for the %s, the oldest of tag %llu, %llu "
		 "bytes%s%s%s",
		 user, asked ? "(report requested) has made no progress" : "has made no progress",
		 (double)w->wait_ns / 1e9, w->requests, w->send ? "send" : "receive", w->requests == 1 ? "" : "s",
		 w->send ? "to" : "from", w->peer, w->requests == 1 ? "s" : "", w->waits_for,
		 (unsigned long long)w->tag, (unsigned long long)w->bytes, more, written ? "; report in " : "",
		 written ? path : "");
}
