/* SPDX-License-Identifier: Apache-2.0 */
/* Which network is used, and its context per communicator; links: network connections shared by channels. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/text.h"
#include "device/topology.h"
#include "net/loader.h"
#include "transport/net_priv.h"

/* ---- contexts ---- */

MUTEX_KIND(contexts_mu);
static struct contexts_mu contexts_mu_one;
static struct gantry_list contexts GUARDED_BY(contexts_mu) = {&contexts, &contexts};
/* A network that has started, for the life of the process. */
struct started {
	struct gantry_list node;
	struct gantry_net *net;
	struct gantry_loader *loader; /* NULL: Gantry's own */
	char plugin[1024];	      /* as GANTRY_NET_PLUGIN's list has it; "none" */
};
static struct gantry_list networks GUARDED_BY(contexts_mu) = {&networks, &networks};
/* That of communicators which name none; NULL: there was none yet. */
static const struct started *usual GUARDED_BY(contexts_mu);

/* The device of the network: as asked, else the nearest. */
static gantry_result pick_device(struct net_context *x)
{
	struct gantry_net *net = x->net;
	int n = 0, asked = (int)gantry_params()->net_device;

	TRY_NOW(net->ops->devices(net, &n));
	if (n <= 0)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "network %s has no devices on this machine", net->name);
	if (asked >= n)
		FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_NET_DEVICE=%d: network %s has %s, numbered from 0", asked,
			 net->name, COUNT_TEXT(n, "device"));
	x->dev = asked;
	if (asked < 0)
		TRY_NOW(net_nics_nearest(x, n, &x->dev));
	TRY_NOW(net->ops->get_properties(net, x->dev, &x->props));
	LOG_INFO(COMM, "network %s: device %d (%s), %s, seen from %s", net->name, x->dev,
		 x->props.name ? x->props.name : "",
		 gantry_distance_text(gantry_topology_distance(x->device, x->props.pci_path)), x->device->name);
	return GANTRY_OK;
}

/*
 * What the communicator cannot do, or cannot do without, is refused before anything is connected. The table in
 * docs/communicator.md has every property and what becomes of it.
 */
static gantry_result check_device(const struct net_context *x, const struct gantry_loader *loader)
{
	const struct gantry_net_properties *p = &x->props;
	char name[384];

	snprintf(name, sizeof(name), "network %s (%s), device %d (%s)", x->net->name,
		 loader ? gantry_loader_path(loader) : "Gantry's own", x->dev, p->name ? p->name : "");
	if (p->device_type != GANTRY_NET_DEVICE_HOST &&
	    (p->device_type != GANTRY_NET_DEVICE_UNPACK || p->device_version != GANTRY_UNPACK_VERSION))
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "%s is of device type %d version %d: the communicator knows %d (kernels read from memory) and "
			 "%d version %d (UNPACK); choose another GANTRY_NET_PLUGIN or GANTRY_NET_DEVICE",
			 name, p->device_type, p->device_version, GANTRY_NET_DEVICE_HOST, GANTRY_NET_DEVICE_UNPACK,
			 GANTRY_UNPACK_VERSION);
	if (p->device_type == GANTRY_NET_DEVICE_UNPACK && !(p->ptr_support & GANTRY_NET_PTR_CUDA))
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "%s has device type UNPACK but does not support device memory (ptrSupport %#x)", name,
			 (unsigned)p->ptr_support);
	if (!(p->ptr_support & GANTRY_NET_PTR_HOST))
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "%s does not support host memory (ptrSupport %#x), which the communicator needs for small "
			 "messages",
			 name, (unsigned)p->ptr_support);
	if (p->max_p2p_bytes < NET_P2P_MIN)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "%s supports messages of at most %zu bytes (maxP2pBytes), but the communicator needs %d", name,
			 p->max_p2p_bytes, NET_P2P_MIN);
	if (p->max_recvs < 1)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s supports no receives (maxRecvs %d)", name, p->max_recvs);
	return GANTRY_OK;
}

/* x->net begins to work for the communicator. ERR_UNSUPPORTED, naming network, device and property, when it cannot. */
static gantry_result context_start(struct net_context *x, const struct gantry_net_config *config,
				   const struct gantry_loader *loader)
{
	gantry_result r;

	TRY_NOW(x->net->ops->init(x->net, x->comm_id, config, &x->ctx));
	x->loader = loader;
	x->merged = (struct gantry_net_vdevice){0}; /* a plugin tried before may have left some */
	r = pick_device(x);
	x->listen_dev = x->nearest = x->dev;
	if (r == GANTRY_OK)
		r = net_nics_merge(x);
	if (r == GANTRY_OK)
		r = net_rails_find(x);
	if (r == GANTRY_OK)
		r = check_device(x, loader);
	if (r != GANTRY_OK)
		x->net->ops->finalize(x->net, x->ctx);
	return r;
}

/* By its own names. */
static bool is_own(const char *network_name)
{
	return strcasecmp(network_name, gantry_net_tcp()->name) == 0 || strcasecmp(network_name, "Socket") == 0;
}

/* The name that the environment gives, else the communicator's; NULL: none. */
static const char *wanted_name(const char *comms_own)
{
	if (*gantry_params()->net_name)
		return gantry_params()->net_name;
	return comms_own && *comms_own ? comms_own : NULL;
}

/* plugins: what else there is, as a list that begins with a comma. */
static gantry_result no_such_network(const char *wanted, const char *plugins)
{
	FAIL_NOW(GANTRY_ERR_CONFIG, "there is no network named \"%s\" (%s); there are: %s, also named Socket%s", wanted,
		 *gantry_params()->net_name ? "GANTRY_NET or NCCL_NET" : "the communicator's configuration",
		 gantry_net_tcp()->name, plugins);
}

gantry_result gantry_transport_net_check(const char *name)
{
	const struct gantry_params *p = gantry_params();
	const char *wanted = wanted_name(name);

	if (!wanted || is_own(wanted) || (*p->net_plugin && strcmp(p->net_plugin, "none") != 0))
		return GANTRY_OK;
	return no_such_network(wanted, ", and no plugin (GANTRY_NET_PLUGIN)");
}

static const struct started *find_started(const char *plugin) REQUIRES(contexts_mu)
{
	ASSERT_HELD(&contexts_mu_one);
	gantry_list_each_entry (it, &networks, struct started, node)
		if (strcmp(it->plugin, plugin) == 0)
			return it;
	return NULL;
}

/* The plugin of that name, or Gantry's own network for "none". */
static gantry_result start_plugin(struct net_context *x, const struct gantry_net_config *config, const char *name,
				  const struct started **ret_started) REQUIRES(contexts_mu)
{
	gantry_result r = GANTRY_OK;
	struct started *s = NULL;

	ASSERT_HELD(&contexts_mu_one);
	*ret_started = find_started(name);
	if (*ret_started) {
		x->net = (*ret_started)->net;
		return context_start(x, config, (*ret_started)->loader);
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a network");
	snprintf(s->plugin, sizeof(s->plugin), "%s", name);
	s->net = gantry_net_tcp();
	if (strcmp(name, "none") != 0) {
		TRY(gantry_loader_open(name, &s->loader));
		TRY(gantry_loader_net(s->loader, 0, &s->net));
	}
	x->net = s->net;
	TRY(context_start(x, config, s->loader));
	gantry_list_append(&networks, &s->node);
	*ret_started = s;
	s = NULL;
out:
	if (s)
		gantry_loader_close(s->loader);
	free(s);
	return r;
}

/* Whether the plugin's table has that name; `ret_others` gets its own, or why it has none. */
static bool is_named(const char *plugin, const char *wanted, char *ret_others, size_t len) REQUIRES(contexts_mu)
{
	const struct started *s = find_started(plugin);
	struct gantry_loader *loader = NULL;
	struct gantry_net *net = NULL;
	bool found = false;

	ASSERT_HELD(&contexts_mu_one);
	if (strcmp(plugin, "none") == 0)
		return false;
	if (s) {
		gantry_text_add(ret_others, len, ", %s", s->net->name);
		return strcasecmp(s->net->name, wanted) == 0;
	}
	if (gantry_loader_open(plugin, &loader) == GANTRY_OK && gantry_loader_net(loader, 0, &net) == GANTRY_OK) {
		found = strcasecmp(net->name, wanted) == 0;
		gantry_text_add(ret_others, len, ", %s", net->name);
	} else {
		gantry_text_add(ret_others, len, ", none in %s", plugin);
	}
	gantry_loader_close(loader);
	return found;
}

/* The one of that name. */
static gantry_result start_named(struct net_context *x, const struct gantry_net_config *config, const char *wanted)
	REQUIRES(contexts_mu)
{
	const char *pos = gantry_params()->net_plugin;
	const struct started *s;
	char name[1024], others[512] = "";

	ASSERT_HELD(&contexts_mu_one);
	if (is_own(wanted))
		return start_plugin(x, config, "none", &s);
	while (gantry_next_entry(&pos, name, sizeof(name)))
		if (is_named(name, wanted, others, sizeof(others)))
			return start_plugin(x, config, name, &s);
	return no_such_network(wanted, others);
}

/*
 * The network that is named, else the first one of GANTRY_NET_PLUGIN's list that starts; which one that is stays for the
 * life of the process. A plugin alone is what the user wants and nothing else: ranks that fell back each for itself would not understand each
 * other, so that is for the user to allow, by "none" at the end.
 */
static gantry_result start_network(struct net_context *x, const struct gantry_net_config *config, const char *named)
	REQUIRES(contexts_mu)
{
	const char *pos = gantry_params()->net_plugin, *wanted = wanted_name(named);
	const struct started *s = NULL;
	char name[1024], next[1024];
	gantry_result r;
	int more;

	ASSERT_HELD(&contexts_mu_one);
	if (wanted)
		return start_named(x, config, wanted);
	if (usual) {
		x->net = usual->net;
		return context_start(x, config, usual->loader);
	}
	if (!gantry_next_entry(&pos, name, sizeof(name)))
		snprintf(name, sizeof(name), "none");
	do {
		more = gantry_next_entry(&pos, next, sizeof(next)) != NULL;
		r = start_plugin(x, config, name, &s);
		if (r == GANTRY_OK || !more)
			break;
		LOG_WARN(COMM, "GANTRY_NET_PLUGIN: %s cannot be used (%s); trying %s next", name, gantry_last_error(),
			 next);
		memcpy(name, next, sizeof(name));
	} while (more);
	if (r == GANTRY_OK)
		usual = s;
	return r;
}

/*
 * Between GPUs each channel has a link of its own, as in NCCL: on an H200, 8 channels on 8 links of 4 lanes each move 128 MiB
 * 1.5 times as fast as on one link of 8 lanes, whose mutex and control lane all threads share. With many ranks the sockets
 * would be too many (16 links to each peer).
 */
enum { LINK_PER_CHANNEL_RANKS = 16 };

static bool has_link_per_channel(const struct gantry_connector *c, const struct gantry_peer_info *side)
{
	if (gantry_params()->net_links != PARAM_NET_LINKS_AUTO)
		return gantry_params()->net_links == PARAM_NET_LINKS_CHANNEL;
	return c->nranks <= LINK_PER_CHANNEL_RANKS && gantry_traits_of_kind(side->device_kind)->link_per_channel;
}

gantry_result net_context_get(const struct gantry_connector *c, struct net_context **ret_context)
{
	gantry_result r = GANTRY_OK;
	struct net_context *x = NULL;
	uint64_t comm_id = c->comm_id;
	struct gantry_device *device = c->device;
	char how[256];
	/* The upper six bits of IP_TOS are the DSCP; 0 is what sockets have anyway. */
	struct gantry_net_config config = {.traffic_class = c->traffic_class ? c->traffic_class >> 2 : GANTRY_NET_UNDEF,
					   .unpack = c->standing ? GANTRY_NET_UNPACK_OFF : GANTRY_NET_UNPACK_PARAM,
					   .device = device,
					   .own_reports = 1,
					   .links = c->standing || has_link_per_channel(c, c->me) ? c->nchannels : 1,
					   .cpus = (int)c->me->cpus,
					   .standing_receives = c->standing};

	contexts_mu_lock(&contexts_mu_one);
	gantry_list_each_entry (it, &contexts, struct net_context, node) {
		if (it->comm_id == comm_id && it->device == device && it->standing == c->standing) {
			ASSERT(it->refs > 0);
			it->refs++;
			*ret_context = it;
			goto out;
		}
	}
	x = calloc(1, sizeof(*x));
	if (!x)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a network context");
	x->comm_id = comm_id;
	x->standing = c->standing;
	x->device = device;
	TRY(start_network(x, &config, c->net_name));
	x->unpack = x->net == gantry_net_tcp()
			    ? gantry_net_tcp_unpack(x->ctx, how, sizeof(how)) != GANTRY_NET_UNPACK_OFF
			    : x->props.device_type == GANTRY_NET_DEVICE_UNPACK;
	/* With UNPACK sends leave from host memory, as NCCL has it with such plugins. */
	x->gdr = gantry_params()->net_gdr && !x->unpack &&
		 (!gantry_traits(device)->cpu_reads_memory || gantry_params()->net_flush) &&
		 (x->props.ptr_support & (GANTRY_NET_PTR_CUDA | GANTRY_NET_PTR_DMABUF));
	/* Gantry's own looks at a registration only for memory of a GPU. */
	x->any_memory = x->net == gantry_net_tcp() && gantry_traits(device)->cpu_reads_memory;
	net_attr_init(x);
	net_globals_init(x);
	gantry_list_init(&x->pools);
	x->refs = 1;
	gantry_list_append(&contexts, &x->node);
	*ret_context = x;
	x = NULL;
out:
	free(x);
	contexts_mu_unlock(&contexts_mu_one);
	return r;
}

void net_context_put(struct net_context *x)
{
	if (!x)
		return;
	contexts_mu_lock(&contexts_mu_one);
	ASSERT(x->refs > 0);
	if (--x->refs == 0) {
		gantry_list_remove(&x->node);
		x->net->ops->finalize(x->net, x->ctx);
		free(x);
	}
	contexts_mu_unlock(&contexts_mu_one);
}

/* ---- links ---- */

MUTEX_KIND(links_mu);
static struct links_mu links_mu_one;
/* Those that are shared: only they are looked for. */
static struct gantry_list links GUARDED_BY(links_mu) = {&links, &links};

/* See tag_of. Both ends come to the same: with more CPUs either has helpers, and large messages are theirs. */
static uint64_t eager_most(const struct net_link *l, const struct gantry_connector *c)
{
	uint64_t each = (uint64_t)NET_EAGER_ALONE / (uint64_t)(c->nranks > 1 ? c->nranks - 1 : 1);

	if (l->nchannels > 1 || c->me->cpus >= NET_HELPERS_CPUS || c->peer->cpus >= NET_HELPERS_CPUS)
		return (uint64_t)NET_EAGER_MOST / (uint64_t)l->nchannels;
	return each > NET_EAGER_MOST ? each : NET_EAGER_MOST;
}

static gantry_result create_link(struct gantry_connector *c, struct net_link **ret_link)
{
	gantry_result r = GANTRY_OK;
	struct net_link *l = calloc(1, sizeof(*l));

	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a link to rank %d", c->peer->rank);
	gantry_list_init(&l->memory);
	gantry_list_init(&l->node);
	l->comm_id = c->comm_id;
	l->me = c->me->rank;
	l->peer = c->peer->rank;
	l->send = c->send;
	l->dev = -1;
	l->device = c->device;
	TRY(net_context_get(c, &l->context));
	/* Of a plugin's connection only posting order is certain: channels of a collective would wait for each other. With
	 * UNPACK receives have one buffer each, and lists in posting order. */
	l->tagged = l->context->net == gantry_net_tcp() && !l->context->unpack;
	l->shared =
		l->tagged && c->nchannels > 1 && !(has_link_per_channel(c, c->me) && has_link_per_channel(c, c->peer));
	l->channels = c->nchannels;
	l->nchannels = l->shared ? c->nchannels : 1;
	l->eager_most = eager_most(l, c);
	*ret_link = l;
	l = NULL;
out:
	if (l)
		net_link_put(l, -1);
	return r;
}

gantry_result net_link_get(struct gantry_connector *c, struct net_link **ret_link)
{
	gantry_result r = GANTRY_OK;
	struct net_link *l = NULL;

	links_mu_lock(&links_mu_one);
	gantry_list_each_entry (it, &links, struct net_link, node) {
		if (it->comm_id == c->comm_id && it->me == c->me->rank && it->peer == c->peer->rank &&
		    it->send == c->send && it->device == c->device && it->context->standing == c->standing)
			l = it;
	}
	if (!l) {
		TRY(create_link(c, &l));
		if (l->shared)
			gantry_list_append(&links, &l->node);
	}
	l->refs++;
	*ret_link = l;
out:
	links_mu_unlock(&links_mu_one);
	return r;
}

int net_context_memory(const struct net_context *x, int send)
{
	return x->gdr || (x->unpack && !send) ? GANTRY_NET_PTR_CUDA : GANTRY_NET_PTR_HOST;
}

gantry_result net_context_alloc(struct net_context *x, int send, size_t size, char **ret_host, char **ret_dev)
{
	void *host = NULL, *dev = NULL;

	if (net_context_memory(x, send) == GANTRY_NET_PTR_CUDA) {
		TRY_NOW(x->device->ops->alloc(x->device, size, &dev));
		host = dev;
	} else {
		TRY_NOW(x->device->ops->alloc_mapped(x->device, size, &host, &dev));
	}
	*ret_host = host;
	*ret_dev = dev;
	fetch_add_relaxed(&x->pinned, size);
	return GANTRY_OK;
}

uint64_t gantry_transport_net_pinned(uint64_t comm_id, const struct gantry_device *device)
{
	uint64_t sum = 0;

	contexts_mu_lock(&contexts_mu_one);
	gantry_list_each_entry (x, &contexts, struct net_context, node)
		sum += x->comm_id == comm_id && x->device == device ? load_relaxed(&x->pinned) : 0;
	contexts_mu_unlock(&contexts_mu_one);
	return sum;
}

void net_context_free(struct net_context *x, int send, char *host)
{
	if (host && net_context_memory(x, send) == GANTRY_NET_PTR_CUDA)
		x->device->ops->free(x->device, host);
	else if (host)
		x->device->ops->free_mapped(x->device, host);
}

static void deregister_mr(struct net_link *l, void *mr)
{
	if (mr && l->comm)
		l->context->net->ops->dereg_mr(l->context->net, l->comm, mr);
}

/*
 * First the network lets go, then the memory goes. Closing the network's connection is what ends requests that an error
 * or abort has cut short: until then it may read from the memory of any channel and write to it.
 */
static void destroy_link(struct net_link *l)
{
	struct gantry_net *net = l->context ? l->context->net : NULL;

	ASSERT(!l->refs);
	gantry_list_each_entry_safe (m, &l->memory, struct net_mem, node) {
		net_link_forget(l, m);
	}
	net_pool_deregister(l);
	for (struct net_conn *nc = l->gone; nc; nc = nc->next) {
		deregister_mr(l, nc->stage_mr);
		deregister_mr(l, nc->ring_mr);
	}
	if (l->comm && l->send)
		net->ops->close_send(net, l->comm);
	else if (l->comm)
		net->ops->close_recv(net, l->comm);
	if (l->listen)
		net->ops->close_listen(net, l->listen);
	net_pool_leave(l);
	for (struct net_conn *nc = l->gone, *next; nc; nc = next) {
		next = nc->next;
		net_context_free(l->context, l->send, nc->ring_host);
		l->device->ops->free_mapped(l->device, nc->block_host);
		gantry_pinned_free(&nc->reserve);
		free(nc->stage);
		free(nc);
	}
	net_context_put(l->context);
	free(l);
}

void net_link_put(struct net_link *l, int channel)
{
	int last;

	if (!l)
		return;
	if (channel < 0) { /* never entered the list */
		destroy_link(l);
		return;
	}
	links_mu_lock(&links_mu_one);
	ASSERT(channel < NET_CHANNELS_MAX && l->refs > 0);
	l->subs[channel] = NULL;
	last = --l->refs == 0;
	if (last)
		gantry_list_remove(&l->node);
	links_mu_unlock(&links_mu_one);
	if (last)
		destroy_link(l);
}

void net_link_retire(struct net_conn *nc)
{
	struct net_link *l = nc->link;
	int channel = nc->channel;

	ASSERT(!nc->next);
	links_mu_lock(&links_mu_one);
	nc->next = l->gone;
	l->gone = nc;
	links_mu_unlock(&links_mu_one);
	net_link_put(l, channel);
}

gantry_result net_link_alloc(struct net_link *l, size_t size, char **ret_host, char **ret_dev, void **ret_mr)
{
	gantry_result r = GANTRY_OK;
	char *host = NULL, *dev = NULL;

	TRY(net_context_alloc(l->context, l->send, size, &host, &dev));
	TRY(net_link_register(l, host, size, net_context_memory(l->context, l->send), ret_mr));
	*ret_host = host;
	*ret_dev = dev;
	host = NULL;
out:
	net_context_free(l->context, l->send, host);
	return r;
}
