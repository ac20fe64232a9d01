/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/stall.h"

#include <limits.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/param.h"

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
	fputs("{\"kind\":\"wait\",\"peer\":", f);
	gantry_json_string(f, w->peer);
	fprintf(f,
		",\"dir\":\"%s\",\"requests\":%u,\"tag\":%llu,\"bytes\":%llu,\"waits_for\":\"%s\",\"wait_ms\":%llu}\n",
		w->send ? "send" : "recv", w->requests, (unsigned long long)w->tag, (unsigned long long)w->bytes,
		w->waits_for, (unsigned long long)w->wait_ns / 1000000);
}

static void put_report(void *ctx, FILE *f)
{
	const struct report *r = ctx;
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	fprintf(f, "{\"kind\":\"process\",\"user\":\"%s\",\"host\":", r->user);
	gantry_json_string(f, r->host);
	fprintf(f, ",\"pid\":%d,\"time_ns\":%llu}\n", (int)getpid(),
		(unsigned long long)t.tv_sec * 1000000000 + (unsigned long long)t.tv_nsec);
	for (size_t i = 0; i < r->n; i++)
		put_wait(f, &r->waits[i]);
}

void gantry_stall_tell(const char *user, const struct gantry_stall_wait *waits, size_t n)
{
	const struct gantry_stall_wait *w = waits;
	char host[64] = "", path[PATH_MAX], more[48] = "";
	struct report r = {user, host, waits, n};
	int written;

	for (size_t i = 1; i < n; i++)
		w = waits[i].wait_ns > w->wait_ns ? &waits[i] : w;
	gethostname(host, sizeof(host) - 1);
	snprintf(path, sizeof(path), "%s/stall-%s-%d.jsonl", gantry_params()->stall_dir, host, (int)getpid());
	written = gantry_file_write(path, "the report of who waits for whom", put_report, &r);
	if (n > 1)
		snprintf(more, sizeof(more), "; %zu more direction%s", n - 1, n == 2 ? " waits" : "s wait");
	LOG_WARN(BASE,
		 "%s has not moved for %.1f s: %u %s%s %s %s wait%s for the %s, the oldest of tag %llu, %llu "
		 "bytes%s%s%s",
		 user, (double)w->wait_ns / 1e9, w->requests, w->send ? "send" : "receive", w->requests == 1 ? "" : "s",
		 w->send ? "to" : "from", w->peer, w->requests == 1 ? "s" : "", w->waits_for,
		 (unsigned long long)w->tag, (unsigned long long)w->bytes, more, written ? "; report in " : "",
		 written ? path : "");
}
