/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf/perf_rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"

/* ---- the ranks that a join waits for ---- */

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

	while (!load_acquire(&a->stop)) {
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
	store_release(&a->stop, 1);
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
					   .patience_ns = rv->patience_ns ? rv->patience_ns
									  : gantry_params()->connect_timeout};
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

/* ---- ranks that a launcher started ---- */

#define SAY_AFTER_NS ((uint64_t)1000000000)

static int number_is(const char *name, int64_t wanted)
{
	const char *text = gantry_variable(name);
	int64_t v;

	return text && gantry_parse_int(text, &v) == GANTRY_OK && v == wanted;
}

int perf_launcher_find(struct perf_launcher *ret_launcher, char *why, size_t len)
{
	*ret_launcher = (struct perf_launcher){.name = NULL};
	for (const struct gantry_launcher *l = gantry_launchers; l->name; l++) {
		const char *rank = gantry_variable(l->rank), *size = gantry_variable(l->size);
		int64_t r, n;

		if (!size || !gantry_launcher_speaks(l))
			continue;
		if (gantry_parse_int(rank, &r) != GANTRY_OK || gantry_parse_int(size, &n) != GANTRY_OK || r < 0 ||
		    r >= n || n > 1 << 20) {
			snprintf(why, len,
				 "%s=%s and %s=%s: there is no such rank (they are %s's; --ranks N ignores them)",
				 l->rank, rank, l->size, size, l->name);
			return -1;
		}
		if (n < 2)
			continue;
		*ret_launcher = (struct perf_launcher){.name = l->name, .rank = (int)r, .size = (int)n};
		ret_launcher->one_host = number_is(l->local_size, n) ||
					 (strcmp(l->name, "srun") == 0 && number_is("SLURM_STEP_NUM_NODES", 1));
		return 0;
	}
	return 0;
}

/* ---- where rank 0 is ---- */

/* Below the ports that the kernel gives to clients (ip_local_port_range), so that none of those is in the way. */
enum { PORT_FIRST = PERF_PORT + 1, PORT_COUNT = 4096 };

static uint16_t port_of(const char *job)
{
	uint32_t h = 2166136261u;

	for (; *job; job++)
		h = (h ^ (uint8_t)*job) * 16777619u;
	return (uint16_t)(PORT_FIRST + (h >> 8) % PORT_COUNT);
}

/* What the launcher calls this job, as far as it tells. */
static void name_job(const struct perf_launcher *l, char *buf, size_t len)
{
	static const char *const names[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID",
					    "SLURM_STEP_ID",  "TORCHELASTIC_RUN_ID",	 "MASTER_PORT"};

	snprintf(buf, len, "%s %s %d", l->program, l->name, l->size);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (gantry_variable(names[i]))
			snprintf(buf + strlen(buf), len - strlen(buf), " %s", gantry_variable(names[i]));
}

void perf_launcher_first_host(const char *list, char *buf, size_t len)
{
	size_t n = 0;
	int skip = 0; /* what follows the first of a bracket's numbers */

	for (; *list && (skip || *list != ','); list++) {
		if (*list == '[')
			continue;
		if (*list == ']') {
			skip = 0;
			continue;
		}
		skip |= (*list == '-' || *list == ',') && strchr(list, ']') && !memchr(list, '[', strcspn(list, "]"));
		if (!skip && n + 1 < len)
			buf[n++] = *list;
	}
	buf[n] = 0;
}

/* "1.0;tcp://10.0.0.5,10.1.0.5:4000;tcp6://[fd00::2]:4001": the addresses of the host where mpirun runs. */
static void hosts_of_uri(const char *uri, char *buf, size_t len)
{
	buf[0] = 0;
	for (const char *at = strstr(uri, "://"); at; at = strstr(at, "://")) {
		size_t n;

		at += 3;
		at += *at == '[';
		n = at[-1] == '[' ? strcspn(at, "]") : strcspn(at, ":;");
		snprintf(buf + strlen(buf), len - strlen(buf), "%s%.*s", buf[0] ? "," : "", (int)n, at);
	}
}

/* "prterun-node7-1234@1" of Open MPI 5: where mpirun runs. */
static void host_of_namespace(const char *name, char *buf, size_t len)
{
	const char *first = strchr(name, '-'), *last = strrchr(name, '-');

	buf[0] = 0;
	if (strncmp(name, "prte", 4) == 0 && first && last > first + 1)
		snprintf(buf, len, "%.*s", (int)(last - first - 1), first + 1);
}

/* The host that the launcher names. mpirun's own is most often the first of its hosts, where rank 0 is. */
static void guess_hosts(const struct perf_launcher *l, struct perf_root *root)
{
	/* The last is where srun runs. */
	static const char *const node_lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
						 "SLURM_LAUNCH_NODE_IPADDR"};
	int mpirun = strcmp(l->name, "mpirun") == 0;

	root->guessed = 1;
	if (mpirun && gantry_variable(root->from = "OMPI_MCA_orte_hnp_uri"))
		hosts_of_uri(getenv(root->from), root->hosts, sizeof(root->hosts));
	if (mpirun && !root->hosts[0] && gantry_variable(root->from = "PMIX_NAMESPACE"))
		host_of_namespace(getenv(root->from), root->hosts, sizeof(root->hosts));
	for (size_t i = 0; i < sizeof(node_lists) / sizeof(node_lists[0]) && !root->hosts[0]; i++)
		if (gantry_variable(root->from = node_lists[i]))
			perf_launcher_first_host(getenv(root->from), root->hosts, sizeof(root->hosts));
}

/* 0 if MASTER_PORT is not a port. Torch's own store listens there: the next one is ours. */
static uint16_t port_after_master(void)
{
	const char *text = gantry_variable("MASTER_PORT");
	int64_t v;

	if (!text || gantry_parse_int(text, &v) != GANTRY_OK || v < 1 || v > 65535)
		return 0;
	return (uint16_t)(v == 65535 ? v - 1 : v + 1);
}

int perf_launcher_root(const struct perf_launcher *l, const char *option, struct perf_root *ret_root, char *why,
		       size_t len)
{
	struct perf_root *root = ret_root;

	*root = (struct perf_root){.from = "--root"};
	name_job(l, root->job, sizeof(root->job));
	root->port = port_of(root->job);
	if (option) {
		snprintf(root->hosts, sizeof(root->hosts), "%s", option);
	} else if (gantry_variable("MASTER_ADDR") && gantry_variable("MASTER_PORT")) {
		root->from = "MASTER_ADDR";
		root->port = port_after_master();
		snprintf(root->hosts, sizeof(root->hosts), "%s", gantry_variable("MASTER_ADDR"));
	} else if (l->one_host) {
		root->from = l->name;
		root->local = 1;
		snprintf(root->hosts, sizeof(root->hosts), "127.0.0.1");
	} else {
		guess_hosts(l, root);
	}
	if (!root->port) {
		snprintf(why, len, "MASTER_PORT=%s is not a port from 1 to 65535", gantry_variable("MASTER_PORT"));
		return -1;
	}
	if (!root->hosts[0]) {
		snprintf(why, len,
			 "%s started this as rank %d of %d, and nothing says where rank 0 is: name its host with "
			 "--root HOST "
			 "(or MASTER_ADDR and MASTER_PORT), or a file that all ranks see with --id-file",
			 l->name, l->rank, l->size);
		return -1;
	}
	return 0;
}

/* ---- meeting there ---- */

static int say_waiting(void *ctx, const char *awaits)
{
	const struct perf_launcher *l = ctx;

	/* Which ranks are missing is known to rank 0; the others can only look for rank 0. */
	if (l->rank == 0)
		fprintf(stderr, "%s: rank 0 waits for %s\n", l->program, awaits);
	else
		fprintf(stderr, "%s: rank %d waits for rank 0 at %s\n", l->program, l->rank, awaits);
	return 1;
}

static gantry_result check_guess(const struct perf_root *root, const struct gantry_addr *addrs, int n)
{
	char host[128] = "";

	for (int i = 0; i < n; i++)
		if (gantry_addr_is_local(&addrs[i]))
			return GANTRY_OK;
	gethostname(host, sizeof(host) - 1);
	FAIL_NOW(GANTRY_ERR_CONFIG,
		 "rank 0 runs on %s, but the others look for it at %s (%s): give all ranks --root %s", host,
		 root->hosts, root->from, host);
	return GANTRY_OK;
}

gantry_result perf_id_exchange(const struct perf_launcher *l, const struct perf_root *root,
			       struct gantry_unique_id *ret_id)
{
	gantry_result r = GANTRY_OK;
	struct gantry_addr addrs[GANTRY_ADDRS_MAX];
	struct perf_rendezvous rv = {.name = root->job,
				     .rank = l->rank,
				     .nranks = l->size,
				     .serve = l->rank == 0,
				     .only_there = root->local, /* all ranks are on this host */
				     .addrs = addrs,
				     .say = say_waiting,
				     .ctx = (void *)l};
	struct gantry_unique_id mine = {.bytes = {0}}, *all = calloc((size_t)l->size, sizeof(*all));
	struct gantry_ctl *ctl = NULL;
	char why[256];

	if (!all)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the ids of %d ranks", l->size);
	if (gantry_addr_resolve(root->hosts, root->port, addrs, &rv.naddrs, why, sizeof(why)) < 0)
		FAIL(GANTRY_ERR_CONFIG, "the host of rank 0 by %s: %s; name it with --root", root->from, why);
	if (l->rank == 0 && root->guessed)
		TRY(check_guess(root, addrs, rv.naddrs));
	TRY(perf_rendezvous_join(&rv, &ctl));
	if (l->rank == 0)
		TRY(gantry_unique_id_create(&mine));
	TRY(gantry_ctl_allgather(ctl, &mine, sizeof(mine), all));
	*ret_id = all[0];
out:
	gantry_ctl_leave(ctl);
	free(all);
	return r;
}

/* ---- by a file ---- */

/* One line of text: the head, then two digits for each byte. */
static const char head[] = "gantry-id ";
enum { HEAD = sizeof(head) - 1, DIGITS = 2 * sizeof(struct gantry_unique_id), LINE = HEAD + DIGITS + 1 };

gantry_result perf_id_publish(const char *path, const struct gantry_unique_id *id)
{
	gantry_result r = GANTRY_OK;
	char text[LINE + 1], tmp[4096];
	int fd = -1;

	snprintf(text, sizeof(text), "%s", head);
	for (size_t i = 0; i < sizeof(id->bytes); i++)
		snprintf(text + HEAD + 2 * i, 3, "%02x", id->bytes[i]);
	text[LINE - 1] = '\n';
	if ((size_t)snprintf(tmp, sizeof(tmp), "%s.%ld", path, (long)getpid()) >= sizeof(tmp))
		FAIL(GANTRY_ERR_INVALID, "the name of the id file is too long");
	unlink(path); /* what an earlier run left */
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, text, LINE) != LINE || rename(tmp, path)) {
		int error = errno;

		if (fd >= 0)
			unlink(tmp);
		FAIL(GANTRY_ERR_SYSTEM, "id file %s: %s", path, strerror(error));
	}
out:
	if (fd >= 0)
		close(fd);
	return r;
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int read_id(const char *path, struct gantry_unique_id *ret_id)
{
	char text[LINE];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));

	if (fd >= 0)
		close(fd);
	if (n != LINE || memcmp(text, head, HEAD))
		return -1;
	for (size_t i = 0; i < sizeof(ret_id->bytes); i++) {
		int high = digit(text[HEAD + 2 * i]), low = digit(text[HEAD + 2 * i + 1]);

		if (high < 0 || low < 0)
			return -1;
		ret_id->bytes[i] = (unsigned char)(high << 4 | low);
	}
	return 0;
}

gantry_result perf_id_await(const struct perf_launcher *l, const char *path, uint64_t timeout_ns,
			    struct gantry_unique_id *ret_id)
{
	const struct timespec nap = {0, 20000000};
	const uint64_t began = gantry_now_ns();
	int said = 0;

	while (read_id(path, ret_id) < 0) {
		uint64_t waited = gantry_now_ns() - began;

		if (waited > timeout_ns)
			FAIL_NOW(GANTRY_ERR_TIMEOUT,
				 "rank 0 has not written the id file %s within %.3g s (GANTRY_CONNECT_TIMEOUT): is it "
				 "running, "
				 "and does this host see that file?",
				 path, (double)timeout_ns / 1e9);
		if (!said && waited > SAY_AFTER_NS) {
			fprintf(stderr, "%s: rank %d waits for rank 0 to write %s\n", l->program, l->rank, path);
			said = 1;
		}
		nanosleep(&nap, NULL);
	}
	return GANTRY_OK;
}

void perf_id_remove(const char *path, const struct gantry_unique_id *id)
{
	struct gantry_unique_id now;

	if (read_id(path, &now) == 0 && memcmp(&now, id, sizeof(now)) == 0)
		unlink(path);
}
