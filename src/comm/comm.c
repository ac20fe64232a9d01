/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator's life: init, destroy, abort, errors. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/api.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "base/trace.h"
#include "comm/report.h"
#include "gantry/gantry.h"
#include "transport/transport.h"

gantry_result gantry_unique_id_create(struct gantry_unique_id *ret_id)
{
	if (!ret_id)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_unique_id_create(NULL)");
	TRY_NOW(gantry_params_load(0));
	return gantry_ctl_create_id(ret_id);
}

/* What a function of this thread has failed with is in the log already, and what the caller wants is no failure. */
static void log_end(const struct gantry_comm *comm, gantry_result r, int rank, const char *text)
{
	unsigned long long id = comm->id;

	if (r == GANTRY_ERR_ABORTED || (*text && strcmp(text, gantry_last_error()) == 0))
		LOG_INFO(COMM, "rank %d of communicator %016llx ends with %s (rank %d): %s", comm->rank, id,
			 gantry_result_name(r), rank, text);
	else
		LOG_FAILURE(COMM, "rank %d of communicator %016llx ends with %s (rank %d): %s", comm->rank, id,
			    gantry_result_name(r), rank, text);
}

void comm_fail(struct gantry_comm *comm, gantry_result r, int rank, const char *text)
{
	int first;

	comm_mu_lock(&comm->mu);
	first = comm->error.result == GANTRY_OK;
	if (first) {
		comm->error.result = r;
		comm->error.rank = rank;
		snprintf(comm->error.text, sizeof(comm->error.text), "%s", text ? text : "");
		store_release(&comm->error_seen, (uint32_t)r);
	}
	comm_mu_unlock(&comm->mu);
	if (!first)
		return;
	log_end(comm, r, rank, text ? text : "");
	store_seq(comm->abort_host, 1);
	/* All there are: the ranks may still be agreeing on how many are used. */
	for (int i = 0; comm->eventcounts && i < COMM_CHANNELS_MAX; i++)
		gantry_eventcount_notify(&comm->eventcounts[i]);
	gantry_eventcount_notify(gantry_proxy_eventcount(comm->proxy));
	if (r != GANTRY_ERR_ABORTED)
		comm_watch_want(comm);
}

gantry_result comm_check(struct gantry_comm *comm)
{
	uint32_t seen = load_acquire(&comm->error_seen), device;

	if (seen)
		return (gantry_result)seen;
	device = load_acquire(comm->result_host);
	if (!device)
		return GANTRY_OK;
	comm_fail(comm, (gantry_result)device, -1,
		  device == GANTRY_ERR_SIZE ? "a kernel found that a send is larger than its receive"
					    : "a kernel ended early");
	return (gantry_result)load_acquire(&comm->error_seen);
}

static void on_proxy_error(void *ctx, gantry_result r, int peer, const char *text)
{
	comm_suspect(ctx, r, comm_error_about(ctx, r, peer), text);
}

static void on_lost(void *ctx, int rank, gantry_result why, const char *text)
{
	struct gantry_comm *comm = ctx;

	/* All ranks meet before any of them leaves (gantry_comm_destroy): who leaves before has failed or aborted. */
	if (why == GANTRY_ERR_PEER_CLOSED) {
		if (!load_acquire(&comm->closing))
			comm_suspect(comm, why, rank, text);
		return;
	}
	if (!load_acquire(&comm->error_seen))
		store_relaxed(&comm->cause.of_ctl, 1);
	comm_fail(comm, why, rank, text);
}

/*
 * ---- what all ranks must have alike, found out before it does harm ----
 *
 * The version, and every parameter whose description says "All ranks must agree." That sentence is the mark, so a
 * parameter that has it is compared, and one that is compared says so to its users. Values travel as text, for the
 * message; a hash of the whole text is what is compared.
 */

enum { AGREE_MAX = 24, TEXT_MAX = 40 };

struct settings {
	struct gantry_peer_info info;
	uint64_t hash[AGREE_MAX];
	char text[AGREE_MAX][TEXT_MAX];
};
_Static_assert(sizeof(struct settings) <= GANTRY_CTL_MESSAGE_MAX, "travels in an allgather");

static void put_setting(struct settings *s, size_t at, const char *value)
{
	s->hash[at] = 14695981039346656037u;
	for (const char *p = value; *p; p++)
		s->hash[at] = (s->hash[at] ^ (unsigned char)*p) * 1099511628211u;
	snprintf(s->text[at], TEXT_MAX, "%.*s", TEXT_MAX - 1, value);
}

/* The values in force; the caller of gantry_comm_init may have asked for some of them. names: what stands where. */
static gantry_result collect_settings(const struct gantry_comm *comm, int channels, struct settings *s,
				      const char **names)
{
	size_t n = 0;

	for (size_t i = 0; i < gantry_param_count(); i++) {
		struct gantry_param_info p;

		gantry_param_describe(i, &p);
		if (!strstr(p.doc, "All ranks must agree."))
			continue;
		if (n == AGREE_MAX)
			FAIL_NOW(GANTRY_ERR_INTERNAL, "more than %d parameters on which all ranks must agree",
				 AGREE_MAX);
		if (strcmp(p.env, "GANTRY_CHANNELS") == 0)
			snprintf(p.value, sizeof(p.value), "%d", channels);
		put_setting(s, n, strcmp(p.env, "GANTRY_TRANSPORT") == 0 ? comm->transport : p.value);
		names[n++] = p.env;
	}
	return GANTRY_OK;
}

static gantry_result compare_settings(const struct gantry_comm *comm, const struct settings *mine,
				      struct settings *other, int rank, const char *const *names)
{
	/* First: another version may have other parameters. */
	if (strcmp(mine->info.version, other->info.version))
		FAIL_NOW(GANTRY_ERR_VERSION, "rank %d (%s) runs gantry %s, rank %d %s", rank, other->info.host_name,
			 other->info.version, comm->rank, mine->info.version);
	for (size_t i = 0; i < AGREE_MAX && names[i]; i++) {
		other->text[i][TEXT_MAX - 1] = 0;
		if (mine->hash[i] != other->hash[i])
			FAIL_NOW(GANTRY_ERR_SETTING,
				 "%s differs: %s on rank %d, %s on rank %d (%s); all ranks must agree", names[i],
				 mine->text[i], comm->rank, other->text[i], rank, other->info.host_name);
	}
	return GANTRY_OK;
}

static void own_info(const struct gantry_comm *comm, struct gantry_peer_info *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->struct_size = sizeof(*ret);
	ret->rank = comm->rank;
	ret->device_kind = comm->device->kind;
	ret->device_index = comm->device->index;
	ret->sleeps = comm->device->sleeps;
	ret->host = gantry_host_id();
	ret->process = gantry_process_id();
	ret->pid = (uint64_t)getpid();
	ret->pid_ns = gantry_namespace_id("pid");
	ret->net_ns = gantry_namespace_id("net");
	ret->user = geteuid();
	snprintf(ret->bus_id, sizeof(ret->bus_id), "%s", comm->device->bus_id);
	gethostname(ret->host_name, sizeof(ret->host_name) - 1);
	snprintf(ret->version, sizeof(ret->version), "%s", GANTRY_VERSION);
	comm_coll_describe(comm, ret);
}

/* All ranks: fills in infos, peers and nchannels. channels: as asked for, 0: automatic. ERR_SETTING names what differs,
 * both values and both ranks. */
static gantry_result agree(struct gantry_comm *comm, int channels)
{
	gantry_result r = GANTRY_OK;
	const char *names[AGREE_MAX] = {NULL};
	struct settings mine = {0}, *all = NULL;

	own_info(comm, &mine.info);
	TRY(collect_settings(comm, channels, &mine, names));
	all = calloc((size_t)comm->nranks, sizeof(*all));
	comm->infos = calloc((size_t)comm->nranks, sizeof(*comm->infos));
	comm->peers = calloc((size_t)comm->nranks, sizeof(*comm->peers));
	if (!all || !comm->infos || !comm->peers)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", comm->nranks);
	TRY(gantry_ctl_allgather(comm->ctl, &mine, sizeof(mine), all));
	comm->nchannels = channels;
	for (int i = 0; i < comm->nranks; i++) {
		int wants = gantry_traits_of_kind(all[i].info.device_kind)->channels;

		comm->infos[i] = all[i].info;
		comm->infos[i].struct_size = sizeof(comm->infos[i]);
		/* Automatic: the most that any rank's device wants. */
		if (!channels && comm->nchannels < wants)
			comm->nchannels = wants;
		TRY(compare_settings(comm, &mine, &all[i], i, names));
	}
out:
	free(all);
	return r;
}

/* ---- its life ---- */

/* The words that kernels and CPU share. */
static gantry_result make_shared(struct gantry_comm *comm)
{
	size_t n = (size_t)comm->nranks * 2 * (size_t)comm->nchannels;
	size_t size = 256 + n * sizeof(struct gantry_conn_state);
	void *host = NULL, *dev = NULL, *conns = NULL, *eventcounts = NULL;
	struct gantry_device *d = comm->device;

	TRY_NOW(d->ops->alloc_mapped(d, size, &host, &dev));
	comm->block_host = host;
	comm->abort_host = host;
	comm->abort_dev = dev;
	comm->result_host = (void *)((char *)host + 128);
	comm->result_dev = (void *)((char *)dev + 128);
	comm->states_host = (void *)((char *)host + 256);
	comm->states_dev = (void *)((char *)dev + 256);
	TRY_NOW(d->ops->alloc(d, n * sizeof(struct gantry_conn), &conns));
	comm->conns_dev = conns;
	if (!d->sleeps)
		return GANTRY_OK;
	size = (size_t)comm->nchannels * sizeof(struct gantry_eventcount);
	TRY_NOW(d->ops->alloc(d, size, &eventcounts));
	comm->eventcounts = eventcounts;
	return d->ops->ipc_export(d, eventcounts, size, &comm->eventcounts_handle);
}

static gantry_result check_config(const struct gantry_comm_config *config)
{
	if (!config->device)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_init: no device");
	if (config->nranks < 1 || config->nranks > 65536 || config->rank < 0 || config->rank >= config->nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_init: rank %d of %d", config->rank, config->nranks);
	if (config->channels < 0 || config->channels > COMM_CHANNELS_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_init: %d channels, at most %d", config->channels,
			 COMM_CHANNELS_MAX);
	return GANTRY_OK;
}

static void comm_free(struct gantry_comm *comm)
{
	struct gantry_device *d = comm->device;

	comm_cause_end(comm);
	comm_watch_remove(comm);
	if (comm->peers)
		comm_trace_write(comm);
	gantry_ctl_leave(comm->ctl); /* no call arrives after this */
	gantry_proxy_group_destroy(comm->group);
	/* A kernel that has not run yet, behind one of the program's own: better a leak than a crash. */
	if (comm_works_busy(comm)) {
		LOG_WARN(COMM, "rank %d: a kernel has not ended, the memory of its communicator is left to it",
			 comm->rank);
		gantry_proxy_put(comm->proxy);
		return;
	}
	comm_memory_free(comm);
	comm_coll_free(comm);
	if (comm->peers)
		comm_peers_free(comm);
	comm_works_free(comm);
	if (comm->eventcounts)
		d->ops->free(d, comm->eventcounts);
	if (comm->conns_dev)
		d->ops->free(d, comm->conns_dev);
	if (comm->block_host)
		d->ops->free_mapped(d, comm->block_host);
	gantry_proxy_put(comm->proxy);
	free(comm->infos);
	free(comm->peers);
	free(comm->transport);
	free(comm);
}

gantry_result gantry_comm_init(const struct gantry_comm_config *config, struct gantry_comm **ret_comm)
{
	gantry_result r = GANTRY_OK;
	struct gantry_comm *comm = NULL;
	struct gantry_ctl_config ctl = {.on_lost = on_lost, .tell_left = 1, .on_call = comm_memory_call};
	struct gantry_proxy_group_config group = {.on_error = on_proxy_error};
	struct gantry_comm_config own;
	const char *transport;
	int channels;

	TRY(gantry_params_load(0));
	TRY(STRUCT_TAKE(&own, config, gantry_comm_config));
	config = &own;
	TRY(check_config(config));
	gantry_log_set_rank(config->rank);
	transport = config->transport ? config->transport : gantry_params()->transport;
	TRY(gantry_transport_load_libs());
	TRY(gantry_transport_check(transport));
	gantry_trace_begin();
	gantry_trace_own();
	comm = calloc(1, sizeof(*comm));
	if (!comm)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a communicator");
	gantry_list_init(&comm->regs);
	gantry_list_init(&comm->coll.plans);
	gantry_list_init(&comm->coll.ops);
	gantry_list_init(&comm->node);
	comm->rank = config->rank;
	comm->nranks = config->nranks;
	comm->device = config->device;
	comm_mu_lock(&comm->mu);
	comm->error.rank = -1;
	comm_mu_unlock(&comm->mu);
	comm->all_notify = 1;
	comm->id = gantry_ctl_comm_id(&config->id);
	comm->transport = strdup(transport);
	if (!comm->transport)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a communicator");
	channels = config->channels ? config->channels : (int)gantry_params()->channels;
	/* Losses may be told from here on: what comm_fail needs comes first. */
	TRY(gantry_proxy_get(comm->device, &comm->proxy));
	comm->nchannels = COMM_CHANNELS_MAX;
	TRY(make_shared(comm));
	ctl.id = &config->id;
	ctl.rank = comm->rank;
	ctl.nranks = comm->nranks;
	ctl.ctx = comm;
	TRY(gantry_ctl_join(&ctl, &comm->ctl));
	TRY(agree(comm, channels));
	group.abort = comm->abort_host;
	group.ctx = comm;
	TRY(gantry_proxy_group_create(comm->proxy, &group, &comm->group));
	TRY(comm_works_init(comm));
	TRY(comm_coll_init(comm));
	comm_watch_add(comm);
	LOG_INFO(COMM, "rank %d of %d in communicator %016llx on %s, %s", comm->rank, comm->nranks,
		 (unsigned long long)comm->id, comm->device->name, COUNT_TEXT(comm->nchannels, "channel"));
	*ret_comm = comm;
	comm = NULL;
out:
	if (comm)
		comm_free(comm);
	return r;
}

/* Until kernels and proxy are done with what was enqueued, or an error, or nothing has moved for the timeout. */
static gantry_result drain(struct gantry_comm *comm)
{
	uint64_t last = gantry_now_ns(), sum, now_sum;
	struct gantry_waiter wait;
	int connecting;

	sum = comm_look_sum(comm, &connecting);
	gantry_waiter_init(&wait, NULL);
	while (comm_check(comm) == GANTRY_OK && (comm_works_busy(comm) || gantry_proxy_group_pending(comm->group))) {
		now_sum = comm_look_sum(comm, &connecting);
		if (now_sum != sum) {
			sum = now_sum;
			last = gantry_now_ns();
		} else if (gantry_now_ns() - last > gantry_params()->timeout) {
			comm_fail(comm, GANTRY_ERR_TIMEOUT, -1,
				  "transfers did not end before the communicator was destroyed");
		}
		gantry_waiter_idle(&wait, UINT64_MAX);
	}
	/* After an error kernels end by themselves: they look at the abort flag. */
	last = gantry_now_ns();
	while (comm_works_busy(comm) && gantry_now_ns() - last < gantry_params()->timeout)
		gantry_waiter_idle(&wait, UINT64_MAX);
	return comm_check(comm);
}

gantry_result gantry_comm_destroy(struct gantry_comm *comm)
{
	gantry_result r;
	unsigned char *all;

	if (!comm)
		return GANTRY_OK;
	r = drain(comm);
	if (r != GANTRY_OK)
		comm_cause_tell(comm);
	/* Peers may still read memory of this rank: nobody frees before all are done. */
	if (r == GANTRY_OK && comm->nranks > 1) {
		store_release(&comm->closing, 1);
		all = calloc((size_t)comm->nranks, 8);
		r = all ? gantry_ctl_allgather(comm->ctl, &comm->id, 8, all) : GANTRY_ERR_NOMEM;
		free(all);
	}
	comm_free(comm);
	return r == GANTRY_ERR_ABORTED ? GANTRY_OK : r;
}

gantry_result gantry_comm_abort(struct gantry_comm *comm)
{
	if (!comm)
		return GANTRY_ERR_INVALID;
	comm_fail(comm, GANTRY_ERR_ABORTED, comm->rank, "aborted by the caller");
	return GANTRY_OK;
}

gantry_result gantry_comm_error(struct gantry_comm *comm, int *ret_rank, char *text, size_t len)
{
	gantry_result r;

	if (!comm)
		return GANTRY_ERR_INVALID;
	comm_check(comm);
	comm_mu_lock(&comm->mu);
	r = comm->error.result;
	if (ret_rank)
		*ret_rank = comm->error.rank;
	if (text && len)
		snprintf(text, len, "%s", comm->error.text);
	comm_mu_unlock(&comm->mu);
	return r;
}

int gantry_comm_rank(const struct gantry_comm *comm)
{
	return comm->rank;
}

int gantry_comm_size(const struct gantry_comm *comm)
{
	return comm->nranks;
}

const char *gantry_comm_transport(const struct gantry_comm *comm, int peer)
{
	if (peer < 0 || peer >= comm->nranks || !comm->peers[peer].transport)
		return "";
	return comm->peers[peer].transport->name;
}
