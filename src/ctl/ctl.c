/* SPDX-License-Identifier: Apache-2.0 */
/* The callers' half: joining, leaving, and everything in between. ctl_member.h says which thread has what. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "ctl/ctl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/param.h"
#include "ctl/ctl_member.h"
#include "ctl/hub.h"

static const uint64_t stop_look_ns = 20000000; /* how often gantry_ctl_config.stop is asked */

uint64_t gantry_ctl_comm_id(const struct gantry_unique_id *id)
{
	struct ctl_id i;

	return ctl_id_decode(id, &i) == GANTRY_OK ? i.comm_id : 0;
}

/* FNV-1a: strangers may know it, it only has to differ where the names do. */
static uint64_t hash_name(const char *name)
{
	uint64_t h = 0xcbf29ce484222325;

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 0x100000001b3;
	return h;
}

void gantry_ctl_fixed_id(const struct gantry_addr *addr, const char *name, struct gantry_unique_id *ret_id)
{
	struct ctl_id id = {.version = CTL_VERSION, .comm_id = hash_name(name), .addr = *addr};

	ctl_id_encode(&id, ret_id);
}

gantry_result gantry_ctl_create_id(struct gantry_unique_id *ret_id)
{
	struct ctl_id id = {.version = CTL_VERSION};
	struct gantry_addr addr, bound;

	TRY_NOW(gantry_params_load(0));
	TRY_NOW(gantry_random_bytes(&id.comm_id, sizeof(id.comm_id)));
	TRY_NOW(gantry_random_bytes(id.key, sizeof(id.key)));
	TRY_NOW(inet_listen_addr(&addr));
	TRY_NOW(inet_advertised(&addr, &id.addr));
	TRY_NOW(hub_start(&id, &addr, &bound));
	if (!gantry_addr_port(&id.addr))
		gantry_addr_set_port(&id.addr, gantry_addr_port(&bound));
	ctl_id_encode(&id, ret_id);
	return GANTRY_OK;
}

gantry_result gantry_ctl_serve(const struct gantry_unique_id *id, const struct gantry_addr *at)
{
	struct gantry_addr any = {.in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT}}, bound;
	struct ctl_id decoded;

	TRY_NOW(gantry_params_load(0));
	if (ctl_id_decode(id, &decoded) != GANTRY_OK)
		FAIL_NOW(GANTRY_ERR_INVALID, "this is not a unique id");
	if (at)
		any = *at;
	else if (access("/proc/net/if_inet6", F_OK)) /* a kernel without IPv6 */
		any = (struct gantry_addr){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)}};
	gantry_addr_set_port(&any, gantry_addr_port(&decoded.addr));
	return hub_start(&decoded, &any, &bound);
}

void gantry_ctl_drop_id(const struct gantry_unique_id *id)
{
	inet_loop_lock();
	hub_drop(gantry_ctl_comm_id(id));
	inet_loop_unlock();
}

void gantry_ctl_fail_id(const struct gantry_unique_id *id, gantry_result why, const char *text)
{
	inet_loop_lock();
	hub_fail(gantry_ctl_comm_id(id), why, text);
	inet_loop_unlock();
}

void gantry_ctl_awaits(const struct gantry_unique_id *id, char *buf, size_t len)
{
	uint64_t comm_id = gantry_ctl_comm_id(id);

	buf[0] = 0;
	inet_loop_lock();
	if (hub_awaits(comm_id, buf, len))
		goto out;
	gantry_list_each_entry (m, &ctl_service.members, const struct gantry_ctl, node) {
		if (m->id.comm_id == comm_id && m->step == STEP_JOINING)
			snprintf(buf, len, "%s: %s", m->hub,
				 *m->dial->to_hub.text ? m->dial->to_hub.text : "no answer yet");
	}
out:
	inet_loop_unlock();
}

gantry_result gantry_ctl_ends(struct gantry_ctl *ctl, struct gantry_addr *ret_local, struct gantry_addr *ret_hub)
{
	gantry_result r = GANTRY_ERR_PEER_CLOSED;
	struct gantry_addr local;
	socklen_t len = sizeof(local);

	inet_loop_lock();
	if (ctl->conn && !getsockname(ctl->conn->source.fd, &local.sa, &len)) {
		*ret_local = local;
		*ret_hub = ctl->conn->peer;
		r = GANTRY_OK;
	}
	inet_loop_unlock();
	return r;
}

gantry_result gantry_ctl_address(struct gantry_ctl *ctl, struct gantry_addr *ret_addr)
{
	gantry_result r = GANTRY_ERR_UNREACHABLE;
	struct gantry_addr bound;

	inet_loop_lock();
	if (ctl->port) {
		bound = ctl->port->addr;
		r = GANTRY_OK;
	}
	inet_loop_unlock();
	return r == GANTRY_OK ? inet_advertised(&bound, ret_addr) : r;
}

/* A MAC that only a holder of the key can make; `use` separates several over the same bytes. */
static gantry_result derive_bytes(const struct ctl_id *from, uint8_t use, const void *what, size_t size,
				  uint8_t ret[GANTRY_MAC_SIZE])
{
	uint8_t msg[128];

	if (size > sizeof(msg) - 9)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "cannot derive an id from %zu bytes", size);
	msg[0] = use;
	put64(msg + 1, from->comm_id);
	memcpy(msg + 9, what, size);
	if (GANTRY_HAVE_OPENSSL)
		return gantry_hmac_sha256(from->key, sizeof(from->key), msg, size + 9, ret);
	/* Without MACs keys are shown on the wire: this has to differ, and cannot hide anything. */
	for (uint64_t i = 0, h = 0xcbf29ce484222325; i < GANTRY_MAC_SIZE; i += 8) {
		for (size_t k = 0; k < sizeof(from->key); k++)
			h = (h ^ from->key[k]) * 0x100000001b3;
		for (size_t k = 0; k < size + 9; k++)
			h = (h ^ msg[k]) * 0x100000001b3;
		put64(ret + i, h);
	}
	return GANTRY_OK;
}

gantry_result gantry_ctl_derive_id(const struct gantry_ctl *ctl, const struct gantry_addr *at, const void *what,
				   size_t size, struct gantry_unique_id *ret_id)
{
	struct ctl_id id = {.version = CTL_VERSION, .addr = *at};
	uint8_t sum[GANTRY_MAC_SIZE];

	_Static_assert(sizeof(sum) == sizeof(id.key), "a key is a sum");
	TRY_NOW(derive_bytes(&ctl->id, 1, what, size, sum));
	memcpy(id.key, sum, sizeof(sum));
	TRY_NOW(derive_bytes(&ctl->id, 2, what, size, sum)); /* the number is no secret */
	id.comm_id = get64(sum);
	ctl_id_encode(&id, ret_id);
	return GANTRY_OK;
}

gantry_result gantry_ctl_serve_derived(struct gantry_ctl *ctl, const struct gantry_unique_id *id)
{
	struct gantry_addr at, bound;
	struct ctl_id decoded;
	int listens;

	if (ctl_id_decode(id, &decoded) != GANTRY_OK)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "derived unique id is invalid");
	inet_loop_lock();
	listens = ctl->port != NULL;
	if (listens)
		at = ctl->port->addr;
	inet_loop_unlock();
	if (!listens)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "rank %d has no port for a further communicator", ctl->config.rank);
	return hub_start(&decoded, &at, &bound);
}

int64_t gantry_ctl_clock_offset(const struct gantry_ctl *ctl)
{
	return ctl->clock_offset;
}

/* A cause that was logged when it occurred is not logged again by every caller that gets it. */
static gantry_result recall_error(gantry_result r, const char *text)
{
	gantry_set_last_error(text && *text ? text : gantry_result_text(r));
	return r;
}

static uint64_t from_now(uint64_t ns)
{
	uint64_t now = gantry_now_ns();

	return ns > INT64_MAX - now ? UINT64_MAX : now + ns;
}

/* ---- joining and leaving ---- */

/* No other thread knows it yet. */
static gantry_result member_make(const struct gantry_ctl_config *config, struct gantry_ctl **ret_member) UNCHECKED
{
	struct gantry_ctl *m = calloc(1, sizeof(*m));

	if (!m)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a membership");
	m->config = *config;
	m->config.id = NULL;
	gantry_list_init(&m->node);
	gantry_list_init(&m->calls);
	m->dial = calloc(1, sizeof(*m->dial));
	m->peers = calloc((size_t)config->nranks, sizeof(*m->peers));
	if (!m->dial || !m->peers) {
		ctl_member_free(m);
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %d ranks", config->nranks);
	}
	inet_dial_init(&m->dial->to_hub, &ctl_dial_ops);
	m->dial->member = m;
	for (int i = 0; i < config->nranks; i++)
		gantry_list_init(&m->peers[i].inbox);
	*ret_member = m;
	return GANTRY_OK;
}

/* UNCHECKED: no other thread has a reference. */
void ctl_member_free(struct gantry_ctl *m) UNCHECKED
{
	if (!m)
		return;
	if (m->dial)
		inet_handshake_end(&m->dial->to_hub.shake);
	free(m->dial);
	for (int i = 0; i < m->config.nranks && m->peers; i++) {
		gantry_list_each_entry_safe (msg, &m->peers[i].inbox, struct ctl_message, node)
			free(msg);
		free(m->peers[i].text);
	}
	free(m->peers);
	free(m);
}

/* What the id and the parameters say. */
static gantry_result member_prepare(struct gantry_ctl *m, const struct gantry_unique_id *id)
{
	TRY_NOW(gantry_params_load(0));
	m->timeout = gantry_params()->timeout;
	m->connect_timeout = m->config.patience_ns ? m->config.patience_ns : gantry_params()->connect_timeout;
	m->call_timeout = gantry_params()->call_timeout;
	m->patience = m->config.patience_ns ? m->config.patience_ns : m->call_timeout;
	if (ctl_id_decode(id, &m->id) != GANTRY_OK)
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "rank %d: not a valid unique id: it was not created by gantry, or was truncated in transit",
			 m->config.rank);
	if (m->id.version != CTL_VERSION)
		FAIL_NOW(GANTRY_ERR_VERSION, "rank %d: the unique id has version %d, but this library has version %d",
			 m->config.rank, m->id.version, CTL_VERSION);
	TRY_NOW(inet_mixed_key(m->id.key, m->key_bytes, &m->key));
	if (m->config.addrs)
		m->id.addr = m->config.addrs[0];
	TRY_NOW(inet_candidates(&m->id.addr, m->addrs, &m->naddrs));
	for (int i = 1; i < m->config.naddrs && m->naddrs < INET_CANDIDATES; i++)
		m->addrs[m->naddrs++] = m->config.addrs[i];
	m->config.addrs = NULL;
	gantry_addr_text(&m->id.addr, m->hub);
	return GANTRY_OK;
}

/* That it cannot is no failure: others may, and most communicators have no successor. */
static void member_listen(struct gantry_ctl *m, const struct gantry_addr *addr) REQUIRES(loop_mu)
{
	static uint64_t last_tag;

	if (inet_port_get(&hub_service, addr, &m->port) != GANTRY_OK) {
		m->port = NULL;
		LOG_INFO(COMM, "rank %d: communicators derived from this one cannot use this rank as their root",
			 m->config.rank);
		return;
	}
	if (inet_port_get(&exchange_service, &m->port->addr, &m->direct.port) != GANTRY_OK ||
	    inet_advertised(&m->port->addr, &m->direct.addr) != GANTRY_OK)
		memset(&m->direct.addr, 0, sizeof(m->direct.addr));
	else
		m->direct.tag = ++last_tag;
}

/* From here on it is the service's. */
static gantry_result member_begin(struct gantry_ctl *m)
{
	gantry_result r = GANTRY_OK;
	struct gantry_addr addr;
	int listens = m->config.listens && inet_listen_addr(&addr) == GANTRY_OK;

	inet_loop_lock();
	TRY(ctl_service_start());
	m->deadline = from_now(m->connect_timeout);
	m->wait_by = m->patience ? from_now(m->patience) : UINT64_MAX;
	m->forks = inet_forks;
	gantry_list_append(&ctl_service.members, &m->node);
	if (listens)
		member_listen(m, &addr);
	ctl_join_watch(m);
	inet_dial_start(&m->dial->to_hub, 0);
out:
	inet_loop_unlock();
	return r;
}

/* For the news, until the deadline. False: the deadline has passed, or the caller does not want to wait any more, for the
 * reason in *ret_stopped. */
static bool wait_news(struct gantry_ctl *m, uint64_t deadline, gantry_result *ret_stopped) REQUIRES(loop_mu)
{
	uint64_t look = from_now(stop_look_ns);

	if (!m->config.stop)
		return mutex_wait_until(&m->news, &inet_loop.mu, deadline);
	if (mutex_wait_until(&m->news, &inet_loop.mu, look < deadline ? look : deadline))
		return true;
	inet_loop_unlock();
	*ret_stopped = m->config.stop(m->config.ctx);
	inet_loop_lock();
	return *ret_stopped == GANTRY_OK && gantry_now_ns() < deadline;
}

static gantry_result await_join(struct gantry_ctl *m)
{
	gantry_result r, stopped = GANTRY_OK;

	inet_loop_lock();
	while (!m->joined && m->over == GANTRY_OK && stopped == GANTRY_OK)
		wait_news(m, UINT64_MAX, &stopped); /* the service thread keeps the deadline */
	r = m->joined ? GANTRY_OK : m->over != GANTRY_OK ? m->over : stopped;
	if (r != GANTRY_OK && r == stopped)
		snprintf(m->gave_up, sizeof(m->gave_up), "gave up joining: %s", gantry_last_error());
	inet_loop_unlock();
	if (r != GANTRY_OK && r == m->over)
		FAIL_NOW(r, "%s", m->over_text);
	return r;
}

gantry_result gantry_ctl_join(const struct gantry_ctl_config *config, struct gantry_ctl **ret_ctl)
{
	gantry_result r = GANTRY_OK;
	struct gantry_ctl *m = NULL;

	if (config->nranks < 1 || config->nranks > CTL_RANKS_MAX || config->rank < 0 || config->rank >= config->nranks)
		FAIL(GANTRY_ERR_INVALID, "invalid rank %d of %d: ranks start at 0, and there may be at most %d",
		     config->rank, config->nranks, CTL_RANKS_MAX);
	TRY(member_make(config, &m));
	r = member_prepare(m, config->id);
	if (r == GANTRY_OK)
		r = member_begin(m);
	if (r != GANTRY_OK) {
		ctl_member_free(m);
		goto out;
	}
	r = await_join(m);
	if (r == GANTRY_OK)
		*ret_ctl = m;
	else
		gantry_ctl_leave(m);
out:
	return r;
}

void gantry_ctl_leave(struct gantry_ctl *ctl)
{
	if (!ctl || inet_forked(ctl->forks))
		return;
	inet_loop_lock();
	while (ctl->calling && !pthread_equal(pthread_self(), inet_loop.thread))
		mutex_wait(&ctl_service.quiet, &inet_loop.mu);
	ctl->leaving = 1;
	ctl_service.nleaving++;
	inet_loop_wake();
	inet_loop_unlock();
}

/* ---- sending ---- */

/* Why nothing can be sent to that rank, or OK. */
static gantry_result find_obstacle(struct gantry_ctl *m, int to) REQUIRES(loop_mu)
{
	if (to >= 0 && m->peers[to].gone != GANTRY_OK)
		return recall_error(m->peers[to].gone, m->peers[to].text);
	if (m->over != GANTRY_OK && to < 0 && m->first_lost)
		return recall_error(m->peers[m->first_lost - 1].gone, m->peers[m->first_lost - 1].text);
	if (m->over != GANTRY_OK)
		return recall_error(m->over, m->over_text);
	return GANTRY_OK;
}

gantry_result gantry_ctl_peer(struct gantry_ctl *ctl, int rank)
{
	gantry_result r = GANTRY_OK;

	inet_loop_lock();
	if (ctl->peers[rank].gone != GANTRY_OK)
		r = recall_error(ctl->peers[rank].gone, ctl->peers[rank].text);
	inet_loop_unlock();
	return r;
}

bool gantry_ctl_is_over(struct gantry_ctl *ctl)
{
	bool over;

	inet_loop_lock();
	over = ctl->over != GANTRY_OK;
	inet_loop_unlock();
	return over;
}

static gantry_result check_call(struct gantry_ctl *m, int rank, size_t size)
{
	if (inet_forked(m->forks))
		return inet_refuse_forked("a membership of a communicator");
	if (rank < 0 || rank >= m->config.nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "there is no rank %d: ranks are 0 to %d", rank, m->config.nranks - 1);
	if (size > GANTRY_CTL_MESSAGE_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "message of %zu bytes is too large for the control plane (at most %d)",
			 size, GANTRY_CTL_MESSAGE_MAX);
	return GANTRY_OK;
}

static gantry_result queue_frame(struct gantry_ctl *m, struct inet_header *h, const void *data, size_t size)
	REQUIRES(loop_mu)
{
	struct inet_queued *out;

	if (m->over != GANTRY_OK || !m->callbacks) /* else the hub answers for a rank that is gone */
		TRY_NOW(find_obstacle(m, h->to));
	ASSERT(m->conn);
	if (m->conn->out_bytes > CTL_USER_MAX)
		FAIL_NOW(GANTRY_ERR_LIMIT, "rank %d: the bootstrap root at %s is not reading; %zu bytes are queued",
			 m->config.rank, m->hub, m->conn->out_bytes);
	h->from = m->config.rank;
	h->size = (uint32_t)size;
	out = inet_queued_make(inet_frame_make(h, data));
	if (!out)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a message of %zu bytes", size);
	inet_stream_write(m->conn, out);
	inet_loop_wake();
	return GANTRY_OK;
}

gantry_result gantry_ctl_send(struct gantry_ctl *ctl, int to, uint64_t tag, const void *data, size_t size)
{
	struct inet_header h = {.kind = CTL_MESSAGE, .to = to, .tag = tag};
	gantry_result r = GANTRY_OK;

	TRY(check_call(ctl, to, size));
	inet_loop_lock();
	r = queue_frame(ctl, &h, data, size);
	inet_loop_unlock();
out:
	return r;
}

static gantry_result take_message(struct gantry_ctl *m, int from, struct ctl_message *msg, void *data, size_t size)
	REQUIRES(loop_mu)
{
	if (msg->size != size)
		FAIL_NOW(GANTRY_ERR_SIZE, "message from rank %d, tag %llu, has %zu bytes, expected %zu", from,
			 (unsigned long long)msg->tag, msg->size, size);
	if (size)
		memcpy(data, msg->bytes, size);
	gantry_list_remove(&msg->node);
	ASSERT(m->inbox_bytes >= sizeof(*msg) + size);
	m->inbox_bytes -= sizeof(*msg) + size;
	free(msg);
	return GANTRY_OK;
}

static gantry_result take_tagged(struct gantry_ctl *m, int from, uint64_t tag, void *data, size_t size)
	REQUIRES(loop_mu)
{
	gantry_list_each_entry (msg, &m->peers[from].inbox, struct ctl_message, node) {
		if (msg->tag == tag)
			return take_message(m, from, msg, data, size);
	}
	return GANTRY_AGAIN;
}

gantry_result gantry_ctl_try_recv_any(struct gantry_ctl *ctl, uint64_t tag, void *data, size_t size)
{
	gantry_result r = GANTRY_AGAIN;

	TRY_NOW(check_call(ctl, 0, size));
	inet_loop_lock();
	for (int i = 0; i < ctl->config.nranks && r == GANTRY_AGAIN; i++)
		r = take_tagged(ctl, i, tag, data, size);
	inet_loop_unlock();
	return r;
}

gantry_result gantry_ctl_try_recv(struct gantry_ctl *ctl, int from, uint64_t tag, void *data, size_t size)
{
	gantry_result r = GANTRY_OK;

	TRY(check_call(ctl, from, size));
	inet_loop_lock();
	r = take_tagged(ctl, from, tag, data, size);
	if (r == GANTRY_AGAIN && !ctl->callbacks) {
		r = find_obstacle(ctl, from);
		if (r == GANTRY_OK)
			r = GANTRY_AGAIN;
	}
	inet_loop_unlock();
out:
	return r;
}

void gantry_ctl_wait(struct gantry_ctl *ctl, uint64_t timeout_ns)
{
	uint64_t deadline = from_now(timeout_ns), start;

	if (inet_forked(ctl->forks))
		return;
	inet_loop_lock();
	start = ctl->seen;
	while (ctl->arrivals == start && mutex_wait_until(&ctl->news, &inet_loop.mu, deadline))
		;
	ctl->seen = ctl->arrivals;
	inet_loop_unlock();
}

/* ---- asking and gathering ---- */

/* Queues the frame and waits for its answer, no longer than the timeout. OK: call->done says which. */
static gantry_result ask_hub(struct gantry_ctl *m, struct inet_header *h, const void *data, size_t size,
			     uint64_t timeout, struct ctl_call *call) REQUIRES(loop_mu)
{
	uint64_t deadline = from_now(timeout);
	gantry_result stopped = GANTRY_OK;

	call->tag = h->tag;
	TRY_NOW(queue_frame(m, h, data, size));
	gantry_list_append(&m->calls, &call->node);
	while (!call->done && wait_news(m, deadline, &stopped))
		;
	if (call->done)
		return GANTRY_OK;
	gantry_list_remove(&call->node);
	return stopped;
}

gantry_result gantry_ctl_call(struct gantry_ctl *ctl, int to, uint32_t kind, const void *data, size_t size, void *reply,
			      size_t *reply_size)
{
	struct ctl_call call = {.to = to, .reply = reply, .room = reply_size ? *reply_size : 0};
	struct inet_header h = {.kind = CTL_CALL, .to = to, .result = kind};
	char seconds[16], text[160];
	gantry_result r;

	TRY_NOW(check_call(ctl, to, size));
	inet_loop_lock();
	h.tag = ++ctl->last_call;
	r = ask_hub(ctl, &h, data, size, ctl->timeout, &call);
	if (call.done && call.result != GANTRY_OK)
		r = find_obstacle(ctl, to); /* the reason, if it is that the rank is gone */
	inet_loop_unlock();
	TRY_NOW(r);
	if (!call.done)
		FAIL_NOW(GANTRY_ERR_TIMEOUT, "rank %d did not reply to call %u from rank %d within %s (GANTRY_TIMEOUT)",
			 to, kind, ctl->config.rank, ctl_seconds(ctl->timeout, seconds));
	if (call.result != GANTRY_OK) { /* the other side knows the cause and has logged it */
		snprintf(text, sizeof(text), "rank %d rejected call %u from rank %d: %s", to, kind, ctl->config.rank,
			 gantry_result_text(call.result));
		return recall_error(call.result, text);
	}
	if (reply_size)
		*reply_size = call.size;
	if (call.size > call.room)
		FAIL_NOW(GANTRY_ERR_SIZE, "rank %d replied to call %u with %zu bytes, expected at most %zu", to, kind,
			 call.size, call.room);
	return GANTRY_OK;
}

/*
 * For the hub's answer to an allgather. Ranks that have not come are waited for, and a hub that falls silent is noticed. Where
 * GANTRY_CALL_TIMEOUT sets a limit, the hub fails the allgather in time, and knows which ranks are missing: this is for a hub
 * that does not.
 */
static uint64_t gather_limit(const struct gantry_ctl *m)
{
	return m->call_timeout ? m->call_timeout + CTL_GATHER_TIMES * m->connect_timeout + m->timeout : UINT64_MAX;
}

/* Through the hub: this rank's part goes there, all parts come back. */
static gantry_result gather_at_hub(struct gantry_ctl *m, struct inet_header *h, const void *mine, size_t size,
				   struct ctl_call *call) REQUIRES(loop_mu)
{
	return ask_hub(m, h, mine, size, gather_limit(m), call);
}

/* Past the hub, which only gets the size of the parts and reports when all ranks have them. */
static gantry_result gather_directly(struct gantry_ctl *m, struct inet_header *h, const void *mine, size_t size,
				     void *all, struct ctl_call *call) REQUIRES(loop_mu)
{
	uint8_t body[4];
	gantry_result r;

	ASSERT(!m->direct.exchange);
	put32(body, (uint32_t)size);
	if (size) {
		memcpy((uint8_t *)all + (size_t)m->config.rank * size, mine, size);
		m->direct.exchange = ctl_exchange_make(m, size, all);
		if (!m->direct.exchange)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for an allgather");
		m->direct.exchange->number = h->tag;
	}
	call->room = 0;
	r = ask_hub(m, h, body, sizeof(body), gather_limit(m), call);
	if (call->done && call->result == GANTRY_OK && size && !ctl_bruck_done(&m->direct.exchange->bruck))
		call->result = GANTRY_ERR_PROTOCOL; /* the hub ended it while parts were missing here */
	ctl_exchange_end(m);
	return r;
}

gantry_result gantry_ctl_allgather(struct gantry_ctl *ctl, const void *mine, size_t size, void *all)
{
	struct ctl_call call = {.to = -1, .reply = all, .room = size * (size_t)ctl->config.nranks};
	struct inet_header h = {.kind = CTL_GATHER, .to = -1};
	gantry_result r = GANTRY_OK;
	int others = 0;

	TRY_NOW(check_call(ctl, 0, size));
	if (size && !all)
		FAIL_NOW(GANTRY_ERR_INVALID, "allgather of %zu bytes without a receive buffer", size);
	inet_loop_lock();
	gantry_list_each_entry (it, &ctl->calls, struct ctl_call, node)
		others += it->to < 0;
	if (!others) {
		h.tag = ++ctl->last_gather;
		r = ctl->direct.naddrs ? gather_directly(ctl, &h, mine, size, all, &call)
				       : gather_at_hub(ctl, &h, mine, size, &call);
	}
	inet_loop_unlock();
	TRY_NOW(r);
	if (others)
		FAIL_NOW(GANTRY_ERR_USAGE, "rank %d: another allgather is already in progress", ctl->config.rank);
	if (!call.done)
		FAIL_NOW(GANTRY_ERR_TIMEOUT, "rank %d: the bootstrap root at %s did not complete an allgather",
			 ctl->config.rank, ctl->hub);
	if (call.result == GANTRY_OK && call.size != call.room)
		call.result = GANTRY_ERR_PROTOCOL;
	if (call.result != GANTRY_OK)
		FAIL_NOW(call.result, "rank %d: %s", ctl->config.rank,
			 *call.text ? call.text : gantry_result_text(call.result));
	return GANTRY_OK;
}
