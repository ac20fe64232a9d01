/* SPDX-License-Identifier: Apache-2.0 */
/* How a communicator is made, and how it ends: init, destroy, abort, errors. */
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
#include "comm/launches.h"
#include "comm/report.h"
#include "device/topology.h"
#include "gantry/gantry.h"
#include "inet/loop.h"
#include "inet/nic.h"
#include "transport/transport.h"

gantry_result gantry_unique_id_create(struct gantry_unique_id *ret_id)
{
	if (!ret_id)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_unique_id_create(NULL)");
	TRY_NOW(gantry_params_load(0));
	return gantry_ctl_create_id(ret_id);
}

const char *comm_text(const struct gantry_comm *comm, char buf[COMM_TEXT])
{
	const char *name = comm->life.name;

	snprintf(buf, COMM_TEXT, "communicator %016llx%s%.*s%s", (unsigned long long)load_relaxed(&comm->id),
		 *name ? " (" : "", COMM_NAME_MAX, name, *name ? ")" : "");
	return buf;
}

/* What a function of this thread has failed with is in the log already, and what the caller wants is no failure. */
static void log_end(const struct gantry_comm *comm, gantry_result r, int rank, const char *text)
{
	int own = load_relaxed(&comm->rank);

	if (r == GANTRY_ERR_ABORTED || comm_is_revoked(comm) || (*text && strcmp(text, gantry_last_error()) == 0))
		LOG_INFO(COMM, "rank %d of %s ends with %s (rank %d): %s", own, COMM_TEXT_OF(comm),
			 gantry_result_name(r), rank, text);
	else
		LOG_FAILURE(COMM, "rank %d of %s ends with %s (rank %d): %s", own, COMM_TEXT_OF(comm),
			    gantry_result_name(r), rank, text);
}

/* The first error. 0: there was one before. */
static int latch_error(struct gantry_comm *comm, gantry_result r, int rank, const char *text, int revokes)
{
	int first;

	ASSERT(r != GANTRY_OK);
	comm_mu_lock(&comm->mu);
	first = comm->error.result == GANTRY_OK;
	if (first) {
		comm->error.result = r;
		comm->error.rank = rank;
		snprintf(comm->error.text, sizeof(comm->error.text), "%s", text ? text : "");
	}
	if (revokes)
		store_release(&comm->life.revoked, first ? 2 : 1);
	if (first && comm->life.failure)
		gantry_failure_set(comm->life.failure, r, comm->error.text);
	if (first)
		store_release(&comm->error_seen, (uint32_t)r);
	comm_mu_unlock(&comm->mu);
	return first;
}

/* Kernels look at the flag; those that sleep are woken. */
static void raise_abort(struct gantry_comm *comm)
{
	store_seq(comm->abort_host, 1);
	/* All there are: the ranks may still be agreeing on how many are used. */
	for (int i = 0; comm->eventcounts && i < COMM_CHANNELS_MAX; i++)
		gantry_eventcount_notify(&comm->eventcounts[i]);
	comm_onesided_wake(comm);
}

void comm_end_kernels(struct gantry_comm *comm)
{
	if (comm->life.failure)
		gantry_failure_end(comm->life.failure); /* first: a kernel that ends now does not hold its stream */
	raise_abort(comm);
}

/* The proxy and calls that wait look at `stop`. */
static void stop_all(struct gantry_comm *comm)
{
	store_seq(&comm->life.stop, 1);
	gantry_eventcount_notify(gantry_proxy_eventcount(comm->proxy));
	if (comm->life.failure)
		raise_abort(comm);
}

void comm_fail(struct gantry_comm *comm, gantry_result r, int rank, const char *text)
{
	if (!latch_error(comm, r, rank, text, 0))
		return;
	log_end(comm, r, rank, text ? text : "");
	stop_all(comm);
	if (r != GANTRY_ERR_ABORTED)
		comm_watch_want(comm);
}

void comm_revoke(struct gantry_comm *comm)
{
	int first = latch_error(comm, GANTRY_ERR_USAGE, comm->rank, "the communicator was revoked", 1);

	comm_end_kernels(comm);
	if (!first)
		return;
	log_end(comm, GANTRY_ERR_USAGE, comm->rank, "the communicator was revoked");
	stop_all(comm);
}

/* The cause of its end and the rank responsible, for a caller that gets the error only now. */
static gantry_result recall_error(struct gantry_comm *comm)
{
	char text[COMM_ERROR_TEXT];

	comm_mu_lock(&comm->mu);
	memcpy(text, comm->error.text, sizeof(text));
	comm_mu_unlock(&comm->mu);
	if (*text)
		gantry_set_last_error(text);
	return (gantry_result)load_acquire(&comm->error_seen);
}

gantry_result comm_check(struct gantry_comm *comm)
{
	uint32_t device;

	if (load_acquire(&comm->error_seen))
		return recall_error(comm);
	device = load_acquire(comm->result_host);
	if (!device)
		return GANTRY_OK;
	comm_fail(comm, (gantry_result)device, -1,
		  device == GANTRY_ERR_SIZE ? "a kernel found that a send is larger than its receive"
		  : device == GANTRY_ERR_PROTOCOL
			  ? "a kernel received an invalid step or an invalid list of fragments (UNPACK)"
		  : device == GANTRY_ERR_USAGE ? "a put targeted a window that its owner has deregistered"
					       : "a kernel ended early");
	return recall_error(comm);
}

static void on_proxy_error(void *ctx, gantry_result r, int peer, const char *text)
{
	comm_suspect(ctx, r, comm_error_about(ctx, r, peer), text);
}

static void on_lost(void *ctx, int rank, gantry_result why, const char *text)
{
	struct gantry_comm *comm = ctx;

	/* All ranks synchronise before any of them leaves (gantry_comm_destroy): a rank that leaves earlier has failed
	 * or aborted. */
	if (why == GANTRY_ERR_PEER_CLOSED) {
		if (!load_acquire(&comm->closing))
			comm_suspect(comm, why, rank, text);
		return;
	}
	comm_cause_from_ctl(comm);
	comm_fail(comm, why, rank, text);
}

/*
 * ---- what all ranks must have alike, found out before it does harm ----
 *
 * The version, and every parameter whose description says "All ranks must agree." That sentence is the mark, so a
 * parameter that has it is compared, and one that is compared says so in its description. A hash of all of them is
 * exchanged. Only if the hashes differ, which all ranks then know, the values follow as text, for the message: the hub
 * sends the parts of all ranks to every rank.
 */

enum { AGREE_MAX = 24, TEXT_MAX = 40 };

/* What a rank says of itself. */
struct card {
	struct gantry_peer_info info;
	struct gantry_addr addr; /* at which its process can have a hub */
	uint64_t settings;
	uint64_t cpu_set;  /* gantry_cpu_set_id */
	uint32_t step_net; /* comm_coll_step_net */
	uint32_t mbps;	   /* gantry_transport_net_mbps */
	uint32_t foreign;  /* GANTRY_NET_PLUGIN is set */
};

struct settings {
	uint64_t hash[AGREE_MAX];
	char text[AGREE_MAX][TEXT_MAX];
};
_Static_assert(sizeof(struct settings) <= GANTRY_CTL_MESSAGE_MAX, "travels in an allgather");

static void put_setting(struct settings *s, size_t at, const char *value)
{
	ASSERT(at < AGREE_MAX);
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
		if (strcmp(p.env, "GANTRY_COLLNET") == 0 && comm->coll->collnet)
			snprintf(p.value, sizeof(p.value), "on by GANTRY_TRANSPORT");
		put_setting(s, n, strcmp(p.env, "GANTRY_TRANSPORT") == 0 ? comm->transport : p.value);
		names[n++] = p.env;
	}
	return GANTRY_OK;
}

static uint64_t hash_settings(const struct settings *s)
{
	uint64_t h = 14695981039346656037u;

	for (size_t i = 0; i < AGREE_MAX; i++)
		h = (h ^ s->hash[i]) * 1099511628211u;
	return h;
}

static gantry_result compare_settings(const struct gantry_comm *comm, const struct settings *mine,
				      struct settings *other, int rank, const char *const *names)
{
	for (size_t i = 0; i < AGREE_MAX && names[i]; i++) {
		other->text[i][TEXT_MAX - 1] = 0;
		if (mine->hash[i] != other->hash[i])
			FAIL_NOW(GANTRY_ERR_SETTING,
				 "%s differs: %s on rank %d, %s on rank %d (%s); all ranks must agree", names[i],
				 mine->text[i], comm->rank, other->text[i], rank, comm->infos[rank].host_name);
	}
	return GANTRY_OK;
}

/* All ranks come here, because they have seen the same hashes. There are at least two different ones, so each rank finds
 * one that differs from its own. */
static gantry_result find_difference(const struct gantry_comm *comm, const struct settings *mine,
				     const char *const *names)
{
	gantry_result r = GANTRY_OK;
	struct settings *all = calloc((size_t)comm->nranks, sizeof(*all));

	if (!all)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", comm->nranks);
	TRY(gantry_ctl_allgather(comm->ctl, mine, sizeof(*mine), all));
	for (int i = 0; i < comm->nranks; i++)
		TRY(compare_settings(comm, mine, &all[i], i, names));
	FAIL(GANTRY_ERR_INTERNAL, "the settings checksum differs between ranks, but no single setting does");
out:
	free(all);
	return r;
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
	gantry_device_apart(comm->device, ret->apart, (int)(sizeof(ret->apart) / sizeof(*ret->apart)));
	gethostname(ret->host_name, sizeof(ret->host_name) - 1);
	snprintf(ret->version, sizeof(ret->version), "%s", GANTRY_VERSION);
	ret->numa = (uint32_t)(gantry_topology_node(comm->device) + 1);
	comm_coll_describe(comm, ret);
}

/* Whether p2p connects two ranks of a host. */
static bool by_p2p(const struct gantry_comm *comm, int a, int b)
{
	const struct gantry_transport *t;

	return gantry_transport_choose(&comm->infos[a], &comm->infos[b], comm->transport, &t) == GANTRY_OK &&
	       t == &gantry_transport_p2p;
}

enum comm_reach comm_reach(const struct gantry_comm *comm)
{
	enum comm_reach reach = COMM_REACH_GPU;

	if (comm->probe.failed)
		return COMM_REACH_NOT;
	for (int i = 0; i < comm->nranks; i++) {
		const struct gantry_peer_info *info = &comm->infos[i];

		if (info->device_kind == GANTRY_DEVICE_HOST)
			return COMM_REACH_NOT;
		if (info->host != comm->infos[0].host)
			reach = COMM_REACH_HOSTS;
		for (int k = 0; k < i; k++) {
			if (comm->infos[k].host != info->host)
				continue;
			if (!by_p2p(comm, k, i))
				return COMM_REACH_NOT;
			if (reach == COMM_REACH_GPU && strcmp(comm->infos[k].bus_id, info->bus_id) != 0)
				reach = COMM_REACH_HOST;
		}
	}
	return reach;
}

/*
 * Channels where the user has not set a number: the most that any rank's device wants. Ranks that share a GPU have no
 * NIC between them but its memory, which it takes many blocks to keep busy: 4 channels move 40 GB/s there, 16 147, 32
 * 335, 64 416. With more ranks there are fewer for each: all of them have a multiprocessor at the same time. GPUs that reach each other have
 * links of several hundred GB/s, of which a block fills some twenty (NCCL takes 16 to 32; not measured here).
 */
enum { SHARED_GPU_CHANNELS = 128, PEER_GPU_CHANNELS = 16 };

static int default_channels(const struct gantry_comm *comm)
{
	enum comm_reach reach = comm->nranks > 1 ? comm_reach(comm) : COMM_REACH_NOT;
	int n = 1, many = reach == COMM_REACH_GPU ? SHARED_GPU_CHANNELS / comm->nranks : PEER_GPU_CHANNELS;

	for (int i = 0; i < comm->nranks; i++) {
		int wants = gantry_traits_of_kind(comm->infos[i].device_kind)->channels;

		n = wants > n ? wants : n;
	}
	return (reach == COMM_REACH_GPU || reach == COMM_REACH_HOST) && many > n ? many : n;
}

/* Where all ranks share a GPU, the blocks of their kernels wait for each other, so all must run at the same time. */
static int channels_that_fit(const struct gantry_comm *comm, int wanted)
{
	int blocks = (int)comm->device->max_blocks, most = blocks / comm->nranks;

	if (comm->nranks == 1 || !blocks || comm_reach(comm) != COMM_REACH_GPU || wanted <= most)
		return wanted;
	most = most > 1 ? most : 1;
	LOG_INFO(COMM,
		 "rank %d: %d channels in place of %d, since %d ranks share a GPU that runs %d blocks at the same time",
		 comm->rank, most, wanted, comm->nranks, blocks);
	return most;
}

/*
 * Ranks that may use the same CPUs share them: from here on `cpus` are the share of a rank's process. Hosts do not matter here:
 * ranks may only say that they are on other ones (NCCL_HOSTID, GANTRY_HOST_ID), and launchers may give each rank of a host cores
 * of its own.
 */
static void share_cpus(struct gantry_comm *comm, const struct card *all)
{
	struct comm_coll *c = comm->coll;

	c->crowd = COLL_CROWD;
	c->cores = UINT32_MAX;
	for (int i = 0; i < comm->nranks; i++) {
		uint32_t ranks = 0, own = 0, cpus = all[i].info.cpus ? all[i].info.cpus : 1, cores;

		for (int k = 0; k < comm->nranks; k++) {
			ranks += all[k].cpu_set == all[i].cpu_set;
			own += all[k].cpu_set == all[i].cpu_set && all[k].info.process == all[i].info.process;
		}
		cores = cpus / ranks ? cpus / ranks : 1;
		c->cores = cores < c->cores ? cores : c->cores;
		comm->infos[i].cpus = cpus * own / ranks ? cpus * own / ranks : 1;
		if (ranks * COLL_CROWD / cpus > c->crowd)
			c->crowd = ranks * COLL_CROWD / cpus;
	}
}

/* The exchanged data of all ranks: fills in infos and addrs. *ret_differ: some have other settings than rank 0. */
static gantry_result take_cards(struct gantry_comm *comm, const struct card *mine, struct card *all, int *ret_differ)
{
	*ret_differ = 0;
	comm->coll->step_net = mine->step_net;
	for (int i = 0; i < comm->nranks; i++) {
		struct gantry_peer_info *info = &all[i].info;

		/* What is used as an index or a string does not depend on what a rank claims. */
		info->struct_size = sizeof(*info);
		info->rank = i;
		info->host_name[sizeof(info->host_name) - 1] = 0;
		info->version[sizeof(info->version) - 1] = 0;
		info->bus_id[sizeof(info->bus_id) - 1] = 0;
		comm->infos[i] = *info;
		comm->life.addrs[i] = all[i].addr;
		if (all[i].step_net && all[i].step_net < comm->coll->step_net)
			comm->coll->step_net = all[i].step_net;
		if (all[i].mbps && (!comm->coll->mbps || all[i].mbps < comm->coll->mbps))
			comm->coll->mbps = all[i].mbps;
		comm->coll->foreign |= all[i].foreign != 0;
		/* First: another version may have other parameters. */
		if (strcmp(mine->info.version, all[i].info.version))
			FAIL_NOW(GANTRY_ERR_VERSION, "rank %d (%s) runs gantry %s, but rank %d runs %s", i,
				 all[i].info.host_name, all[i].info.version, comm->rank, mine->info.version);
		*ret_differ |= all[i].settings != all[0].settings;
	}
	share_cpus(comm, all);
	return GANTRY_OK;
}

/* All ranks: fills in what they know of each other. ERR_SETTING names what differs, both values and both ranks. */
static gantry_result agree_on_cards(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	const char *names[AGREE_MAX] = {NULL};
	struct settings settings = {0};
	struct card mine = {0}, *all = NULL;
	int differ;

	ASSERT(comm->ctl && !comm->infos && !comm->peers);
	own_info(comm, &mine.info);
	mine.step_net = comm_coll_step_net(comm);
	mine.cpu_set = gantry_cpu_set_id(&mine.info.cpus);
	mine.mbps = gantry_transport_net_mbps();
	mine.foreign = *gantry_params()->net_plugin != 0;
	gantry_ctl_address(comm->ctl, &mine.addr);
	TRY(collect_settings(comm, comm->life.channels, &settings, names));
	mine.settings = hash_settings(&settings);
	all = calloc((size_t)comm->nranks, sizeof(*all));
	comm->infos = calloc((size_t)comm->nranks, sizeof(*comm->infos));
	comm->peers = calloc((size_t)comm->nranks, sizeof(*comm->peers));
	comm->life.addrs = calloc((size_t)comm->nranks, sizeof(*comm->life.addrs));
	if (!all || !comm->infos || !comm->peers || !comm->life.addrs)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", comm->nranks);
	TRY(gantry_ctl_allgather(comm->ctl, &mine, sizeof(mine), all));
	TRY(take_cards(comm, &mine, all, &differ));
	if (differ)
		TRY(find_difference(comm, &settings, names));
	TRY(comm_probe(comm));
	comm->nchannels = channels_that_fit(comm, comm->life.channels ? comm->life.channels : default_channels(comm));
out:
	free(all);
	return r;
}

/* ---- its life ---- */

/* The words that kernels and CPU share, and that comm_fail writes. */
static gantry_result make_words(struct gantry_comm *comm)
{
	void *host = NULL, *dev = NULL, *eventcounts = NULL;
	size_t size = COMM_CHANNELS_MAX * sizeof(struct gantry_eventcount);
	struct gantry_device *d = comm->device;

	TRY_NOW(gantry_proxy_get(d, &comm->proxy));
	TRY_NOW(d->ops->alloc_mapped(d, 256, &host, &dev));
	comm->abort_host = host;
	comm->abort_dev = dev;
	comm->result_host = (void *)((char *)host + 128);
	comm->result_dev = (void *)((char *)dev + 128);
	if (d->reports)
		TRY_NOW(gantry_failure_make(&comm->life.failure));
	if (!d->sleeps)
		return GANTRY_OK;
	TRY_NOW(d->ops->alloc(d, size, &eventcounts));
	comm->eventcounts = eventcounts;
	return d->ops->ipc_export(d, eventcounts, size, &comm->eventcounts_handle);
}

/* Of every end of every connection. */
static gantry_result make_states(struct gantry_comm *comm)
{
	size_t n = (size_t)comm->nranks * 2 * (size_t)comm->nchannels;
	void *host = NULL, *dev = NULL, *conns = NULL;
	struct gantry_device *d = comm->device;

	ASSERT(!comm->states_host && comm->nchannels > 0 && comm->nchannels <= COMM_CHANNELS_MAX);
	TRY_NOW(d->ops->alloc_mapped(d, n * sizeof(struct gantry_conn_state), &host, &dev));
	comm->states_host = host;
	comm->states_dev = dev;
	TRY_NOW(d->ops->alloc(d, n * sizeof(struct gantry_conn), &conns));
	comm->conns_dev = conns;
	return GANTRY_OK;
}

gantry_result comm_take_config(const struct gantry_comm_config *config, struct gantry_comm_config *ret_own)
{
	TRY_NOW(gantry_params_load(0));
	TRY_NOW(STRUCT_TAKE(ret_own, config, gantry_comm_config));
	if (ret_own->channels < 0 || ret_own->channels > COMM_CHANNELS_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_config: %d channels is too many (at most %d)",
			 ret_own->channels, COMM_CHANNELS_MAX);
	if (ret_own->nids < 0 || (ret_own->nids && !ret_own->ids))
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_config: invalid ids array (%d ids at %p)", ret_own->nids,
			 (const void *)ret_own->ids);
	if (!ret_own->transport)
		ret_own->transport = gantry_params()->transport;
	if (!ret_own->channels)
		ret_own->channels = (int)gantry_params()->channels;
	TRY_NOW(gantry_transport_load_libs());
	TRY_NOW(gantry_transport_net_check(ret_own->network));
	return gantry_transport_check(ret_own->transport);
}

void comm_free(struct gantry_comm *comm)
{
	struct gantry_device *d = comm->device;

	ASSERT(!comm->life.has_thread);
	comm_cause_end(comm);
	comm_watch_remove(comm);
	if (comm->peers)
		comm_trace_write(comm);
	comm_gin_stop(comm);
	gantry_ctl_leave(comm->ctl); /* no call arrives after this */
	comm_onesided_stop(comm);
	gantry_proxy_group_destroy(comm->group);
	comm_graphs_end(comm);
	/* A kernel that has not run yet, behind one of the program's own: better a leak than a crash. */
	if (comm_works_busy(comm)) {
		LOG_WARN(COMM, "rank %d: a kernel is still running, so the memory of its communicator is not freed",
			 comm->rank);
		gantry_proxy_put(comm->proxy);
		return;
	}
	comm_graphs_free(comm);
	comm_onesided_free(comm);
	comm_memory_free(comm);
	comm_coll_free(comm);
	if (comm->peers)
		comm_peers_free(comm);
	gantry_p2p_probe_free(&comm->probe.memory);
	comm_launches_free(comm);
	if (comm->eventcounts)
		d->ops->free(d, comm->eventcounts);
	if (comm->conns_dev)
		d->ops->free(d, comm->conns_dev);
	if (comm->states_host)
		d->ops->free_mapped(d, comm->states_host);
	if (comm->abort_host)
		d->ops->free_mapped(d, comm->abort_host);
	gantry_proxy_put(comm->proxy);
	gantry_failure_put(comm->life.failure);
	comm_cause_free(comm);
	free(comm->infos);
	free(comm->peers);
	free(comm->transport);
	free(comm->life.name);
	free(comm->life.network);
	free(comm->life.addrs);
	free(comm->life.shrinks);
	free(comm);
}

gantry_result comm_make(const struct gantry_comm_config *config, struct gantry_comm **ret_comm)
{
	gantry_result r = GANTRY_OK;
	struct gantry_comm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a communicator");
	gantry_list_init(&comm->regs);
	gantry_list_init(&comm->gins);
	gantry_list_init(&comm->node);
	comm->rank = config->rank;
	comm->nranks = config->nranks;
	comm->nchannels = COMM_CHANNELS_MAX;
	comm->device = config->device;
	comm_mu_lock(&comm->mu);
	gantry_list_init(&comm->peer_memory.retired);
	comm->error.rank = -1;
	comm_mu_unlock(&comm->mu);
	comm->all_notify = 1;
	comm->life.starting = 1;
	comm->life.forks = inet_forks;
	comm->life.blamed = -1;
	comm->life.nonblocking = config->nonblocking == 1;
	comm->life.channels = config->channels;
	comm->life.traffic_class = config->traffic_class;
	comm->transport = strdup(config->transport);
	comm->life.name = strdup(config->name ? config->name : "");
	comm->life.network = strdup(config->network ? config->network : "");
	if (!comm->transport || !comm->life.name || !comm->life.network)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a communicator");
	TRY(comm_cause_make(comm));
	TRY(comm_coll_make(comm));
	TRY(comm_launches_make(comm));
	comm->coll->collnet = comm_collnet_take(comm->transport);
	TRY(make_words(comm));
	*ret_comm = comm;
	comm = NULL;
out:
	if (comm)
		comm_free(comm);
	return r;
}

gantry_result comm_start(struct gantry_comm *comm, int hub_comes)
{
	struct gantry_ctl_config ctl = {.id = &comm->life.unique,
					.rank = comm->rank,
					.nranks = comm->nranks,
					.on_lost = on_lost,
					.tell_left = 1,
					.hub_comes = hub_comes,
					.listens = comm->nranks > 1,
					.stop = comm_stopped,
					.patience_ns = comm_blind_patience(comm),
					.on_call = comm_memory_call,
					.ctx = comm};
	struct gantry_proxy_group_config group = {.on_error = on_proxy_error,
						  .abort = &comm->life.stop,
						  .ctx = comm,
						  .held = &comm->coll->held,
						  .any_thread = comm->device->kind == GANTRY_DEVICE_HOST};

	ASSERT(!comm->ctl && comm->life.starting);
	store_relaxed(&comm->id, gantry_ctl_comm_id(&comm->life.unique));
	gantry_trace_begin();
	gantry_trace_own();
	TRY_NOW(gantry_ctl_join(&ctl, &comm->ctl));
	TRY_NOW(agree_on_cards(comm));
	TRY_NOW(make_states(comm));
	TRY_NOW(gantry_proxy_group_create(comm->proxy, &group, &comm->group));
	comm->help = (struct gantry_help){.drive = gantry_proxy_drive,
					  .leave = gantry_proxy_leave,
					  .ctx = comm->group,
					  .eventcount = gantry_proxy_eventcount(comm->proxy)};
	TRY_NOW(comm_launches_open(comm));
	TRY_NOW(comm_coll_init(comm));
	comm_watch_add(comm);
	if (gantry_params()->model == PARAM_MODEL_MEASURED)
		TRY_NOW(comm_coll_measure(comm));
	comm->life.made = 1;
	LOG_INFO(COMM, "rank %d of %d in %s on %s, %s", comm->rank, comm->nranks, COMM_TEXT_OF(comm),
		 comm->device->name, COUNT_TEXT(comm->nchannels, "channel"));
	return GANTRY_OK;
}

gantry_result gantry_comm_init(const struct gantry_comm_config *config, struct gantry_comm **ret_comm)
{
	struct gantry_comm_config own;
	struct gantry_comm *comm;

	if (!ret_comm)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_init: ret_comm is NULL");
	TRY_NOW(comm_take_config(config, &own));
	if (!own.device)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_init: no device");
	if (own.nranks < 1 || own.nranks > 65536 || own.rank < 0 || own.rank >= own.nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_init: invalid rank %d of %d", own.rank, own.nranks);
	gantry_log_set_rank(own.rank);
	TRY_NOW(comm_make(&own, &comm));
	comm->life.unique = own.nids ? own.ids[0] : own.id;
	for (int i = 1; i < own.nids; i++)
		gantry_ctl_drop_id(&own.ids[i]);
	return comm_init_run(comm, own.nonblocking, ret_comm);
}

/* Transfers whose peers have not called yet are waited for: if a peer dies, the communicator fails. */
gantry_result comm_drain(struct gantry_comm *comm)
{
	uint64_t last = gantry_now_ns(), sum = 0, now_sum, limit = gantry_params()->call_timeout;
	struct gantry_waiter wait;
	int connecting;

	gantry_waiter_init(&wait, NULL);
	while (comm_check(comm) == GANTRY_OK && (comm_works_busy(comm) || gantry_proxy_group_pending(comm->group))) {
		now_sum = limit ? comm_look_sum(comm, &connecting) : 0;
		if (now_sum != sum) {
			sum = now_sum;
			last = gantry_now_ns();
		} else if (limit && gantry_now_ns() - last > limit) {
			comm_fail(comm, GANTRY_ERR_TIMEOUT, -1,
				  "transfers made no progress for GANTRY_CALL_TIMEOUT while the communicator was "
				  "shutting down");
		}
		gantry_waiter_idle(&wait, UINT64_MAX);
	}
	return comm_check(comm);
}

void comm_end(struct gantry_comm *comm)
{
	uint64_t begin = gantry_now_ns();
	struct gantry_waiter wait;

	comm_end_kernels(comm);
	gantry_waiter_init(&wait, NULL);
	while (comm_works_busy(comm) && gantry_now_ns() - begin < gantry_params()->timeout)
		gantry_waiter_idle(&wait, UINT64_MAX);
}

gantry_result comm_last_meeting(struct gantry_comm *comm)
{
	if (comm->nranks == 1)
		return GANTRY_OK;
	TRY_NOW(comm_onesided_flush(comm));
	TRY_NOW(comm_gin_flush(comm));
	ASSERT(!load_relaxed(&comm->closing));
	store_release(&comm->closing, 1);
	return gantry_ctl_allgather(comm->ctl, NULL, 0, NULL);
}

gantry_result gantry_comm_destroy(struct gantry_comm *comm)
{
	gantry_result r;

	if (!comm)
		return GANTRY_OK;
	if (inet_forked(comm->life.forks)) /* its threads are in another process */
		return inet_refuse_forked("gantry_comm_destroy");
	comm_life_wait(comm);
	r = comm_drain(comm);
	if (r != GANTRY_OK)
		comm_end(comm);
	if (comm_is_revoked(comm))
		r = GANTRY_ERR_ABORTED; /* as wanted: there is nothing to tell */
	else if (r != GANTRY_OK)
		comm_cause_tell(comm);
	/* Peers may still read memory of this rank: no rank frees before all are done. */
	if (r == GANTRY_OK && !comm->life.finalized)
		r = comm_last_meeting(comm);
	comm_free(comm);
	return r == GANTRY_ERR_ABORTED ? GANTRY_OK : r;
}

gantry_result gantry_comm_abort(struct gantry_comm *comm)
{
	if (!comm)
		return GANTRY_ERR_INVALID;
	if (inet_forked(comm->life.forks))
		return inet_refuse_forked("gantry_comm_abort");
	store_release(&comm->life.cancel, 1);
	if (comm->life.failure)
		gantry_failure_end(comm->life.failure); /* before kernels see that it has failed */
	comm_fail(comm, GANTRY_ERR_ABORTED, load_relaxed(&comm->rank), "aborted by the caller");
	comm_end_kernels(comm);
	return GANTRY_OK;
}

/* Something goes on in the background. */
static int in_progress(struct gantry_comm *comm)
{
	if (load_acquire(&comm->life.starting) || load_acquire(&comm->life.running))
		return 1;
	return comm_is_revoked(comm) && comm_look_launches(comm);
}

gantry_result gantry_comm_error(struct gantry_comm *comm, int *ret_rank, char *text, size_t len)
{
	gantry_result r;

	if (!comm)
		return GANTRY_ERR_INVALID;
	if (ret_rank)
		*ret_rank = -1;
	if (text && len)
		*text = 0;
	if (in_progress(comm))
		return GANTRY_AGAIN;
	if (comm_check(comm) == GANTRY_OK || comm_is_revoked(comm))
		return GANTRY_OK;
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
	return load_relaxed(&comm->rank);
}

int gantry_comm_size(const struct gantry_comm *comm)
{
	return load_relaxed(&comm->nranks);
}

const char *gantry_comm_transport(const struct gantry_comm *comm, int peer)
{
	if (load_acquire(&comm->life.starting) || peer < 0 || peer >= comm->nranks || !comm->peers[peer].transport)
		return "";
	return comm->peers[peer].transport->name;
}
