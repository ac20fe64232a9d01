/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf/perf_remote.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "common/figures.h"
#include "ctl/ctl_wire.h"
#include "gantry/version.h"
#include "inet/settings.h"
#include "perf/perf_rendezvous.h"
#include "perf/perf_table.h"

#define FOREVER_NS ((uint64_t)30 * 24 * 3600 * 1000000000u)
enum { TAG_FAILED = 1, TAG_SWAP = 2, FAILED_TEXT = 512, TEXT = 512 };

/* ---- options ---- */

int perf_remote_check(const char *program, const struct perf_remote_opts *o)
{
	const char *wrong = NULL;

	if (o->listen && o->host)
		wrong = "--listen waits for a client and takes no HOST";
	else if (o->forever && !o->listen)
		wrong = "--forever goes with --listen";
	else if (o->port && !perf_remote_wanted(o))
		wrong = "--port goes with --listen or a HOST";
	else if (o->host && !gantry_check_host(o->host))
		wrong = "HOST is an address, [address]:port or a name, and a port is from 1 to 65535";
	if (wrong)
		fprintf(stderr, "%s: %s\n", program, wrong);
	return wrong ? -1 : 0;
}

/* How long it may take until the other side is there, in ns. */
static uint64_t patience(const struct perf_remote_opts *o)
{
	return o->forever ? FOREVER_NS : gantry_params()->connect_timeout;
}

int perf_remote_main(const struct perf_remote_opts *o, int (*once)(void *ctx), void *ctx)
{
	int status = 0;

	if (!o->forever) {
		status = once(ctx);
		return status == PERF_REMOTE_CANNOT ? 1 : status;
	}
	while (status != PERF_REMOTE_CANNOT) {
		pid_t parent = getpid(), pid;

		fflush(NULL);
		pid = fork();
		if (pid < 0) {
			perror("gantry perf: fork");
			return 1;
		}
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGTERM);
			if (getppid() != parent)
				_exit(1);
			exit(once(ctx));
		}
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	}
	return 1;
}

/* ---- the other side's identity ---- */

static void address_to(const struct gantry_addr *a, uint8_t out[16])
{
	if (a->sa.sa_family == AF_INET6)
		memcpy(out, &a->in6.sin6_addr, 16);
	else
		memcpy(out, &a->in.sin_addr, 4);
}

static struct gantry_addr address_from(int family, const uint8_t in[16])
{
	struct gantry_addr a;

	memset(&a, 0, sizeof(a));
	a.sa.sa_family = family == 6 ? AF_INET6 : AF_INET;
	if (family == 6)
		memcpy(&a.in6.sin6_addr, in, 16);
	else
		memcpy(&a.in.sin_addr, in, 4);
	return a;
}

void perf_remote_make_card(const struct perf_remote *rm, struct perf_card *c)
{
	*c = (struct perf_card){.magic = "gantry perf", .version = GANTRY_VERSION};
	snprintf(c->operation, sizeof(c->operation), "%s", rm->program);
	gethostname(c->host, sizeof(c->host) - 1);
	perf_machine(c->machine, sizeof(c->machine));
	c->family = rm->local.sa.sa_family == AF_INET6 ? 6 : 4;
	address_to(&rm->local, c->local);
	address_to(&rm->other, c->other);
}

void perf_remote_words(char *to, const char *from, size_t size)
{
	char copy[FAILED_TEXT] = ""; /* the longest of them */

	ctl_get_text(copy, size, (const uint8_t *)from, strnlen(from, size - 1));
	memcpy(to, copy, size);
}

static void clean(char *text, size_t size)
{
	perf_remote_words(text, text, size);
}

gantry_result perf_remote_read_card(struct perf_remote *rm, struct perf_card *c)
{
	char address[GANTRY_ADDR_TEXT];

	rm->differ = 1;
	if (memcmp(c->magic, "gantry perf", sizeof("gantry perf")) != 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "the other side is not gantry perf");
	clean(c->version, sizeof(c->version));
	clean(c->operation, sizeof(c->operation));
	clean(c->host, sizeof(c->host));
	clean(c->machine, sizeof(c->machine));
	if (strcmp(c->version, GANTRY_VERSION) != 0)
		FAIL_NOW(GANTRY_ERR_VERSION, "%s has gantry %s, this side %s: install the same version on both",
			 c->host, c->version, GANTRY_VERSION);
	if (strcmp(c->operation, rm->program) != 0)
		FAIL_NOW(GANTRY_ERR_SETTING, "%s runs %s, this side %s: run the same on both", c->host, c->operation,
			 rm->program);
	rm->differ = 0;
	if (rm->opts->listen) { /* the client knows better from where to where its connection goes */
		rm->local = address_from(c->family, c->other);
		rm->other = address_from(c->family, c->local);
	}
	gantry_addr_set_port(&rm->other, 0);
	snprintf(rm->peer, sizeof(rm->peer), "%s (%s); %.128s", c->host, gantry_addr_text(&rm->other, address),
		 c->machine);
	return GANTRY_OK;
}

/* ---- which interface ---- */

static gantry_result choose_interface(const struct perf_remote *rm)
{
	int v6 = rm->local.sa.sa_family == AF_INET6;
	char name[IFNAMSIZ], pattern[IFNAMSIZ + 1];

	if (!*inet_wanted_interfaces()) {
		gantry_nic_of_addr(&rm->local, name);
		snprintf(pattern, sizeof(pattern), "=%s", name);
		if (name[0]) {
			setenv("GANTRY_IFNAME", pattern, 1);
			setenv("NCCL_SOCKET_IFNAME", pattern, 1);
		}
	}
	if (inet_wanted_family() == AF_UNSPEC) {
		setenv("GANTRY_FAMILY", v6 ? "inet6" : "inet", 1);
		setenv("NCCL_SOCKET_FAMILY", v6 ? "AF_INET6" : "AF_INET", 1);
	}
	return gantry_params_load(1);
}

/* ---- meeting ---- */

/* "10.0.0.1", "[fd00::1]:4000": as the client would type it. */
static void client_word(const struct gantry_addr *a, int port, char *buf, size_t len)
{
	struct gantry_addr copy = *a;
	char text[GANTRY_ADDR_TEXT];

	gantry_addr_set_port(&copy, port == PERF_PORT ? 0 : (uint16_t)port);
	snprintf(buf, len, "%s", gantry_addr_text(&copy, text));
}

struct listening {
	struct perf_remote *rm;
	int port;
	const struct gantry_addr *only; /* the one it listens on; NULL: all of this host */
	struct gantry_addr addr;	/* the first of them */
	char first[GANTRY_ADDR_TEXT];	/* what the client is to name */
	char others[TEXT];		/* or one of these */
};

static void add_address(struct listening *l, const struct gantry_addr *a)
{
	char word[GANTRY_ADDR_TEXT];

	if (gantry_addr_is_link_local(a) && l->first[0])
		return;
	client_word(a, l->port, word, sizeof(word));
	if (l->first[0]) {
		snprintf(l->others + strlen(l->others), sizeof(l->others) - strlen(l->others), "%s%s",
			 l->others[0] ? ", " : "", word);
		return;
	}
	l->addr = *a;
	gantry_addr_set_port(&l->addr, (uint16_t)l->port);
	memcpy(l->first, word, sizeof(l->first));
}

static void say_listening(void *ctx)
{
	struct listening *l = ctx;
	const char *program = l->rm->program;
	struct gantry_nic_list *list = NULL;
	char text[GANTRY_ADDR_TEXT];

	l->rm->served = 1;
	if (l->only)
		add_address(l, l->only);
	else if (inet_wanted_nics(&list) == GANTRY_OK)
		for (int i = 0; i < list->count; i++)
			for (int k = 0; k < list->nics[i].naddrs; k++)
				add_address(l, &list->nics[i].addrs[k]);
	gantry_nic_list_free(list);
	fprintf(stderr, "%s: waiting for a client on %s, run: %s %s", program, gantry_addr_text(&l->addr, text),
		program, l->first);
	if (l->others[0])
		fprintf(stderr, " (or %s)", l->others);
	if (!l->rm->opts->forever)
		fprintf(stderr, ", within %.3g s (GANTRY_CONNECT_TIMEOUT)", (double)patience(l->rm->opts) / 1e9);
	fprintf(stderr, "\n");
}

/* What the control plane says of encryption that only one side has: "GANTRY_ENCRYPT=require on the bootstrap root's side, ...". */
static const char *find_encryption(const char *said)
{
	return strstr(said, "GANTRY_ENCRYPT=require on the ");
}

/* In the words of this tool, where the bootstrap root is the listener. */
static const char *encryption_text(const char *said)
{
	return strstr(said, "GANTRY_ENCRYPT=require on the bootstrap root")
		       ? "GANTRY_ENCRYPT=require on the listener, but the "
			 "client does not encrypt: set the same on both "
			 "sides"
		       : "GANTRY_ENCRYPT=require on the client, but the "
			 "listener does not encrypt: set the same on both "
			 "sides";
}

/* The bootstrap root reports the ranks it waits for, which is clear here, and whether a connection came without the secret or
 * encryption. */
static int say_refused(void *ctx, const char *awaits)
{
	const struct listening *l = ctx;

	if (l->rm->opts->listen && find_encryption(awaits)) {
		fprintf(stderr, "%s: a client came and was refused: %s\n", l->rm->program, encryption_text(awaits));
		return 1;
	}
	if (!l->rm->opts->listen || !strstr(awaits, "GANTRY_SECRET"))
		return 0;
	fprintf(stderr, "%s: a client came with another GANTRY_SECRET, or with none: set the same on both sides\n",
		l->rm->program);
	return 1;
}

/* Sentences for the user, of what the control plane says about its root and ranks. */
static void explain_listener(const struct listening *l, gantry_result r, char *text, size_t len)
{
	double limit = (double)patience(l->rm->opts) / 1e9;
	const char *said = gantry_last_error(), *program = l->rm->program;

	if (!l->rm->served && r == GANTRY_ERR_LIMIT)
		snprintf(text, len,
			 "port %d is in use by another program: end that, or take another port on both sides with "
			 "--port",
			 l->port);
	else if (!l->rm->served)
		snprintf(text, len, "cannot listen on port %d: %s", l->port, said);
	else if (r == GANTRY_ERR_TIMEOUT && find_encryption(said))
		snprintf(text, len,
			 "no matching client connected within %.3g s (GANTRY_CONNECT_TIMEOUT); refused one: %s", limit,
			 encryption_text(said));
	else if (r == GANTRY_ERR_TIMEOUT && strstr(said, "GANTRY_SECRET differ"))
		snprintf(text, len,
			 "no client with this GANTRY_SECRET connected within %.3g s (GANTRY_CONNECT_TIMEOUT), but one "
			 "with another or none did: set the same on both sides",
			 limit);
	else if (r == GANTRY_ERR_TIMEOUT)
		snprintf(
			text, len,
			"no client came within %.3g s (GANTRY_CONNECT_TIMEOUT): run %s %s on the other machine, or add "
			"--forever here",
			limit, program, l->first);
	else
		snprintf(text, len, "%s", said);
}

static void explain_client(const struct listening *l, gantry_result r, const char *where, char *text, size_t len)
{
	double limit = (double)patience(l->rm->opts) / 1e9;
	const char *said = gantry_last_error(), *program = l->rm->program, *cause = strstr(said, " tries: ");
	char port[24] = "";

	if (l->port != PERF_PORT)
		snprintf(port, sizeof(port), " --port %d", l->port);
	if (r == GANTRY_ERR_UNREACHABLE || r == GANTRY_ERR_TIMEOUT)
		snprintf(text, len,
			 "no listener at %s within %.3g s (GANTRY_CONNECT_TIMEOUT): %s; run %s --listen%s there", where,
			 limit, cause ? cause + strlen(" tries: ") : said, program, port);
	else if (r == GANTRY_ERR_AUTH && find_encryption(said))
		snprintf(text, len, "%s: %s", where, encryption_text(said));
	else if (r == GANTRY_ERR_AUTH && strstr(said, "GANTRY_SECRET"))
		snprintf(text, len, "%s has another GANTRY_SECRET, or only one side has one: set the same on both",
			 where);
	else if (r == GANTRY_ERR_USAGE)
		snprintf(text, len, "%s is busy with another client: try again when that is done", where);
	else
		snprintf(text, len, "%s: %s", where, said);
}

/* A failure here is reported once, by the tool. */
static void only_warnings(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
			  const char *text)
{
	(void)subsys, (void)file, (void)line;
	if (level == GANTRY_LOG_WARN)
		fprintf(stderr, "gantry WARN %s\n", text);
}

static gantry_result join(struct perf_remote *rm)
{
	gantry_result r = GANTRY_OK;
	struct gantry_addr addrs[GANTRY_ADDRS_MAX] = {{.in = {.sin_family = AF_INET}}};
	struct listening l = {.rm = rm, .port = rm->opts->port ? rm->opts->port : PERF_PORT};
	struct perf_rendezvous rv = {.name = "gantry perf",
				     .rank = perf_remote_rank(rm->opts),
				     .nranks = 2,
				     .serve = rm->opts->listen,
				     .addrs = addrs,
				     .naddrs = 1,
				     .patience_ns = patience(rm->opts),
				     .served = say_listening,
				     .say = say_refused,
				     .ctx = &l};
	char where[GANTRY_ADDR_TEXT] = "", why[256], text[TEXT];

	if (!rm->opts->listen) {
		if (gantry_addr_resolve(rm->opts->host, (uint16_t)l.port, addrs, &rv.naddrs, why, sizeof(why)) < 0)
			FAIL(GANTRY_ERR_UNREACHABLE, "%s", why);
		l.port = gantry_addr_port(&addrs[0]);
		fprintf(stderr, "%s: connecting to %s\n", rm->program, gantry_addr_text(&addrs[0], where));
	} else if (*inet_wanted_interfaces()) { /* on those interfaces, and no others */
		TRY(inet_listen_addr(&addrs[0]));
		rv.only_there = 1;
		l.only = &addrs[0];
	} else {
		addrs[0].in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	}
	if (rm->opts->listen)
		gantry_addr_set_port(&addrs[0], (uint16_t)l.port);
	r = perf_rendezvous_join(&rv, &rm->ctl);
	if (r != GANTRY_OK) {
		if (rm->opts->listen)
			explain_listener(&l, r, text, sizeof(text));
		else
			explain_client(&l, r, where, text, sizeof(text));
		gantry_set_last_error(text);
	}
out:
	return r;
}

/*
 * Waits for the other side and says so on stderr. Then the two are known to be of one version and to want the same
 * operation. Where the user has named no interface, GANTRY_IFNAME and GANTRY_FAMILY become those of the connection
 * between the two: that is the network that the user has named. On failure gantry_last_error is a sentence for the
 * user.
 */
static gantry_result meet(struct perf_remote *rm, const char *program, const struct perf_remote_opts *opts)
{
	gantry_result r = GANTRY_OK;
	struct perf_card mine, other;
	int quiet = gantry_params()->log_level <= PARAM_LOG_LEVEL_WARN;

	*rm = (struct perf_remote){.program = program, .opts = opts};
	if (quiet)
		gantry_log_set_sink(only_warnings);
	TRY(join(rm));
	TRY(gantry_ctl_ends(rm->ctl, &rm->local, &rm->other));
	perf_remote_make_card(rm, &mine);
	TRY(perf_remote_swap(rm, &mine, &other, sizeof(mine), NULL, NULL));
	TRY(perf_remote_read_card(rm, &other));
	TRY(choose_interface(rm));
out:
	if (quiet)
		gantry_log_set_sink(NULL);
	return r;
}

/* ---- talking ---- */

gantry_result perf_remote_alive(struct perf_remote *rm)
{
	gantry_result r = GANTRY_OK;
	char text[FAILED_TEXT];

	r = gantry_ctl_try_recv(rm->ctl, !perf_remote_rank(rm->opts), TAG_FAILED, text, FAILED_TEXT);
	if (r == GANTRY_OK) {
		clean(text, sizeof(text));
		FAIL(GANTRY_ERR_PEER_LOST, "the other side has failed: %s", text);
	}
	if (r == GANTRY_AGAIN)
		r = GANTRY_OK;
out:
	return r;
}

gantry_result perf_remote_swap(struct perf_remote *rm, const void *mine, void *ret_other, size_t size,
			       void (*idle)(void *ctx), void *ctx)
{
	gantry_result r = GANTRY_OK;
	const int other = !perf_remote_rank(rm->opts);
	const uint64_t tag = TAG_SWAP + rm->swaps++, nap_ns = 100000000;

	TRY(gantry_ctl_send(rm->ctl, other, tag, mine, size));
	while ((r = gantry_ctl_try_recv(rm->ctl, other, tag, ret_other, size)) == GANTRY_AGAIN) {
		gantry_result left = perf_remote_alive(rm);

		/* It may have answered, and left, since the look at the messages. */
		if (left != GANTRY_OK && gantry_ctl_try_recv(rm->ctl, other, tag, ret_other, size) == GANTRY_OK)
			return GANTRY_OK;
		TRY(left);
		if (idle) {
			idle(ctx);
			sched_yield();
		} else {
			gantry_ctl_wait(rm->ctl, nap_ns);
		}
	}
	if (r != GANTRY_OK)
		r = perf_remote_alive(rm); /* it may have sent the reason before it left */
out:
	return r;
}

gantry_result perf_remote_load(struct perf_remote *rm, double *ret_seconds)
{
	struct {
		double seconds;
		uint64_t host;
	} mine = {perf_load_cpu_seconds(), gantry_boot_id()}, other;

	TRY_NOW(perf_remote_swap(rm, &mine, &other, sizeof(mine), NULL, NULL));
	*ret_seconds = other.host == mine.host ? other.seconds : 0;
	return GANTRY_OK;
}

struct gantry_addr perf_remote_address(const struct perf_remote *rm)
{
	struct gantry_addr any = {.in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT}},
			   loopback = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}}, a;

	if (!rm)
		return loopback;
	/* Behind NAT the client's word for this host is not its address; a link-local one lacks its interface. */
	if (rm->opts->listen && (!gantry_addr_is_local(&rm->local) || gantry_addr_is_link_local(&rm->local)))
		return any;
	a = rm->opts->listen ? rm->local : rm->other;
	gantry_addr_set_port(&a, 0);
	return a;
}

/* This side has failed: tells the other one, and adds to the text what that one says within a moment. */
static void tell_failure(struct perf_remote *rm, char *text, size_t len)
{
	const uint64_t nap_ns = 50000000, until = gantry_now_ns() + 500000000;
	char mine[FAILED_TEXT] = "", other[FAILED_TEXT] = "";
	int to;

	if (!rm->ctl || rm->differ)
		return;
	to = !perf_remote_rank(rm->opts);
	snprintf(mine, sizeof(mine), "%.500s", text);
	gantry_ctl_send(rm->ctl, to, TAG_FAILED, mine, sizeof(mine));
	while (!strstr(text, "the other side") && gantry_now_ns() < until &&
	       gantry_ctl_try_recv(rm->ctl, to, TAG_FAILED, other, sizeof(other)) == GANTRY_AGAIN)
		gantry_ctl_wait(rm->ctl, nap_ns);
	clean(other, sizeof(other));
	if (other[0])
		snprintf(text + strlen(text), len - strlen(text), "; the other side: %s", other);
}

void perf_remote_close(struct perf_remote *rm)
{
	gantry_ctl_leave(rm->ctl);
	rm->ctl = NULL;
}

/* ---- both ranks ---- */

int perf_pair_run(struct perf_pair *pair, const struct perf_remote_opts *o, struct perf_ranks *p)
{
	const int remote = perf_remote_wanted(o);
	int status;

	p->first = remote ? perf_remote_rank(o) : 0;
	p->count = remote ? 1 : 2;
	p->tidy = remote; /* its last words are on their way until then */
	p->more_ns = remote ? patience(o) : 0;
	p->states = pair->state;
	p->stride = sizeof(pair->state[0]);
	status = perf_ranks_run(p);
	return o->listen && !pair->served ? PERF_REMOTE_CANNOT : status;
}

gantry_result perf_pair_meet(struct perf_pair *pair, struct perf_remote *rm, const char *program,
			     const struct perf_remote_opts *o, const void *work, void *ret_other, size_t size)
{
	gantry_result r = GANTRY_OK;

	store_relaxed(&pair->state[perf_remote_rank(o)].alone, 1);
	r = meet(rm, program, o);
	pair->served = rm->served;
	TRY(r);
	memcpy(pair->peer, rm->peer, sizeof(pair->peer));
	TRY(perf_remote_swap(rm, work, ret_other, size, NULL, NULL));
out:
	return r;
}

void perf_pair_failed(struct perf_pair *pair, int rank, struct perf_remote *rm, gantry_result r)
{
	struct perf_state *s = &pair->state[rank];

	perf_fail(s, r);
	tell_failure(rm, s->error, sizeof(s->error));
	store_release(&s->error_ns, gantry_now_ns());
}
