#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf_rendezvous.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/param.h"

/* ---- names ---- */

/* Cuts "[fd00::2]:4000" and the like into host and port; 0 if there is none. -1: not a port. */
static int split_port(char *text, char **ret_host, uint16_t *ret_port)
{
	char *end = strchr(text, ']'), *port = NULL;
	int64_t v = 0;

	*ret_host = text;
	if (*text == '[' && !end)
		return -1;
	if (*text == '[') {
		*ret_host = text + 1;
		*end = 0;
		if (end[1] == ':')
			port = end + 2;
		else if (end[1])
			return -1;
	} else if (strchr(text, ':') && strchr(text, ':') == strrchr(text, ':')) {
		port = strchr(text, ':');
		*port++ = 0;
	}
	if (port && (gantry_parse_int(port, &v) != GANTRY_OK || v < 1 || v > 65535))
		return -1;
	*ret_port = (uint16_t)v;
	return 0;
}

int perf_host_valid(const char *text)
{
	char copy[512], *host;
	uint16_t port;

	return (size_t)snprintf(copy, sizeof(copy), "%s", text) < sizeof(copy) && split_port(copy, &host, &port) == 0 &&
	       *host;
}

static int add_host(const char *host, uint16_t port, struct gantry_addr *addrs, int *n, char *why, size_t len)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
	struct addrinfo *list = NULL;
	int e = getaddrinfo(host, NULL, &numeric, &list);

	if (e)
		e = getaddrinfo(host, NULL, &hints, &list);
	if (e) {
		snprintf(why, len, "%s: %s", host, gai_strerror(e));
		return -1;
	}
	for (const struct addrinfo *i = list; i && *n < PERF_ADDRS_MAX; i = i->ai_next) {
		struct gantry_addr a = gantry_addr_of(i->ai_addr);

		if (a.sa.sa_family == AF_UNSPEC)
			continue;
		gantry_addr_set_port(&a, port);
		addrs[(*n)++] = a;
	}
	freeaddrinfo(list);
	return 0;
}

int perf_resolve(const char *text, uint16_t port, struct gantry_addr ret_addrs[PERF_ADDRS_MAX], int *ret_n, char *why,
		 size_t len)
{
	char copy[512], *rest = copy, *one, *host;
	int n = 0;

	if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy)) {
		snprintf(why, len, "%.40s...: too long for a host", text);
		return -1;
	}
	while ((one = strsep(&rest, ","))) {
		uint16_t own = 0;

		if (split_port(one, &host, &own) < 0 || !*host) {
			snprintf(why, len, "%s: not a host, or its port is not from 1 to 65535", text);
			return -1;
		}
		if (add_host(host, own ? own : port, ret_addrs, &n, why, len) < 0)
			return -1;
	}
	if (!n) {
		snprintf(why, len, "%s: no address", text);
		return -1;
	}
	*ret_n = n;
	return 0;
}

/* ---- whom a join waits for ---- */

struct perf_announcer {
	struct gantry_unique_id id;
	int (*say)(void *ctx, const char *awaits);
	void *ctx;
	pthread_t thread;
	uint32_t stop; /* release/acquire */
};

static void *announce(void *arg)
{
	enum { LOOKS_PER_SECOND = 20 };
	const struct timespec nap = {0, 1000000000 / LOOKS_PER_SECOND};
	struct perf_announcer *a = arg;
	char said[512] = "", now[512];
	int looks = 0, pause = LOOKS_PER_SECOND;

	while (!__atomic_load_n(&a->stop, __ATOMIC_ACQUIRE)) {
		nanosleep(&nap, NULL);
		if (++looks < pause)
			continue;
		gantry_ctl_awaits(&a->id, now, sizeof(now));
		if (!now[0] || strcmp(now, said) == 0)
			continue;
		memcpy(said, now, sizeof(said));
		if (!a->say(a->ctx, now))
			continue;
		looks = 0;
		pause *= 2;
	}
	return NULL;
}

struct perf_announcer *perf_announce_start(const struct gantry_unique_id *id, int (*say)(void *ctx, const char *awaits),
					   void *ctx)
{
	struct perf_announcer *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->id = *id;
	a->say = say;
	a->ctx = ctx;
	if (pthread_create(&a->thread, NULL, announce, a)) {
		free(a);
		return NULL;
	}
	return a;
}

void perf_announce_stop(struct perf_announcer *a)
{
	if (!a)
		return;
	__atomic_store_n(&a->stop, 1, __ATOMIC_RELEASE);
	pthread_join(a->thread, NULL);
	free(a);
}

/* ---- joining ---- */

gantry_result perf_rendezvous_join(const struct perf_rendezvous *rv, struct gantry_ctl **ret_ctl)
{
	gantry_result r = GANTRY_OK;
	struct gantry_unique_id id;
	struct gantry_ctl_config config = {.id = &id,
					   .rank = rv->rank,
					   .nranks = rv->nranks,
					   .addrs = rv->addrs,
					   .naddrs = rv->naddrs,
					   .patience_ns = rv->patience_ns};
	struct perf_announcer *a;

	gantry_ctl_fixed_id(&rv->addrs[0], rv->name, &id);
	if (rv->serve)
		TRY(gantry_ctl_serve(&id, rv->only_there ? &rv->addrs[0] : NULL));
	if (rv->serve && rv->served)
		rv->served(rv->ctx);
	a = perf_announce_start(&id, rv->say, rv->ctx);
	r = gantry_ctl_join(&config, ret_ctl);
	perf_announce_stop(a);
out:
	return r;
}
