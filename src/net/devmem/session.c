/* SPDX-License-Identifier: Apache-2.0 */
/* Changing a NIC for a binding, putting it back, and the binding itself. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "net/devmem/detect.h"

/* Features that a driver wants on before it splits headers. */
static const struct {
	const char *driver, *feature;
} quirks[] = {
	{"mlx5_core", "rx-gro-hw"},
};

static const struct devmem_queue *find_queue(const struct devmem_queues *all, uint32_t id)
{
	for (uint32_t i = 0; i < all->n; i++)
		if (all->q[i].id == id)
			return &all->q[i];
	return NULL;
}

/* Queue 0 is left to others. */
static int can_be_taken(const struct devmem_queue *q)
{
	return q->id && !q->dmabuf && !q->taken;
}

/* The last free queues; queue 0 is never taken. Also returns the lowest queue that will then be bound, by any
 * process. */
static gantry_result choose_queues(struct devmem_session *s, uint32_t *ret_lowest)
{
	struct devmem_queues all = {0};
	uint32_t found = 0, lowest = UINT32_MAX, count = 0;
	int e = s->sys->ops->queues(s->sys, s->nic, &all);

	if (e)
		FAIL_NOW(GANTRY_ERR_SYSTEM, "queues of %s: %s%s%s", s->nic, devmem_strerror(e),
			 *s->sys->said ? ": " : "", s->sys->said);
	for (uint32_t i = 0; i < all.n; i++)
		count = all.q[i].id >= count ? all.q[i].id + 1 : count;
	/* Highest first, whatever order the kernel lists them in. */
	for (uint32_t id = count; id-- > 0;) {
		const struct devmem_queue *q = find_queue(&all, id);
		int takes = q && found < s->nqueues && can_be_taken(q);

		if (takes)
			s->queues[found++] = id;
		if (takes || (q && q->dmabuf))
			lowest = id;
	}
	if (found < s->nqueues)
		FAIL_NOW(GANTRY_ERR_LIMIT,
			 "%s: only %u of its %u receive queues are available, but GANTRY_DEVMEM_QUEUES is %u (queue 0 "
			 "is for other traffic; ethtool -L %s combined N adds more)",
			 s->nic, found, all.n, s->nqueues, s->nic);
	if (lowest == 0)
		FAIL_NOW(GANTRY_ERR_LIMIT,
			 "%s: queue 0 is bound to device memory, so no queue is left for other traffic", s->nic);
	*ret_lowest = lowest;
	return GANTRY_OK;
}

static int has_feature(const struct devmem_before *b, const char *name)
{
	for (uint32_t i = 0; i < b->nfeatures; i++)
		if (strcmp(b->features[i].name, name) == 0)
			return 1;
	return 0;
}

/* Writes down before it changes: a crash in between costs an undo of nothing. */
static gantry_result save_journal(const struct devmem_session *s)
{
	if (!devmem_journal_save(&s->journal, s->before))
		FAIL_NOW(GANTRY_ERR_SYSTEM,
			 "devmem: cannot write %s.before: the NIC is left unchanged, since its settings could not be "
			 "restored",
			 s->journal.base);
	return GANTRY_OK;
}

static gantry_result turn_feature_on(struct devmem_session *s, const char *name)
{
	struct devmem_feature f = {0};
	int e;

	snprintf(f.name, sizeof(f.name), "%s", name);
	e = s->sys->ops->feature_get(s->sys, s->nic, &f);
	if (e)
		FAIL_NOW(GANTRY_ERR_SYSTEM, "features of %s: %s", s->nic, devmem_strerror(e));
	if (f.on)
		return GANTRY_OK;
	if (!f.known || f.fixed)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s: the driver does not support %s", s->nic, name);
	if (!has_feature(s->before, name) && s->before->nfeatures < DEVMEM_FEATURES_MAX)
		s->before->features[s->before->nfeatures++] = f;
	TRY_NOW(save_journal(s));
	f.on = 1;
	e = s->sys->ops->feature_set(s->sys, s->nic, &f);
	if (!e)
		e = s->sys->ops->feature_get(s->sys, s->nic, &f);
	/* The kernel acknowledges what a driver then does not do. */
	if (e || !f.on)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s: %s cannot be turned on: %s%s%s", s->nic, name,
			 e ? devmem_strerror(e) : "the driver left it off", *s->sys->said ? ": " : "", s->sys->said);
	return GANTRY_OK;
}

static gantry_result turn_split_on(struct devmem_session *s)
{
	struct devmem_rings now, want = {0};
	int e = s->sys->ops->rings_get(s->sys, s->nic, &now);

	if (e || !now.has_split)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s: %s", s->nic,
			 devmem_error_text(DEVMEM_CALL_RINGS, e ? e : EOPNOTSUPP, s->sys->said));
	want.has_split = now.split != DEVMEM_SPLIT_ON;
	want.split = DEVMEM_SPLIT_ON;
	want.has_hds = now.has_hds && now.hds != 0; /* a kernel that does not report it does not know it */
	if (!want.has_split && !want.has_hds)
		return GANTRY_OK;
	if (!s->before->has_rings) {
		s->before->has_rings = 1;
		s->before->rings = (struct devmem_rings){
			.has_split = want.has_split, .split = now.split, .has_hds = want.has_hds, .hds = now.hds};
	}
	TRY_NOW(save_journal(s));
	e = s->sys->ops->rings_set(s->sys, s->nic, &want);
	if (e)
		FAIL_NOW(devmem_error_of(DEVMEM_CALL_RINGS, e)->result, "%s: %s", s->nic,
			 devmem_error_text(DEVMEM_CALL_RINGS, e, s->sys->said));
	return GANTRY_OK;
}

static int rss_reaches(const struct devmem_rss *rss, uint32_t lowest)
{
	for (uint32_t i = 0; i < rss->n; i++)
		if (rss->queue[i] >= lowest)
			return 1;
	return 0;
}

/* The driver's own table: over all queues in turn. Putting that back as a table would tie it to their number. */
static int rss_is_default(const struct devmem_rss *rss)
{
	uint32_t queues = 0;

	for (uint32_t i = 0; i < rss->n; i++)
		queues = rss->queue[i] >= queues ? rss->queue[i] + 1 : queues;
	for (uint32_t i = 0; i < rss->n; i++)
		if (rss->queue[i] != i % queues)
			return 0;
	return 1;
}

/* The table as it is, if it spreads over the bound queues as well; else its n is 0. */
static gantry_result find_rss(struct devmem_session *s, uint32_t lowest, struct devmem_rss *ret_rss)
{
	int e = s->sys->ops->rss_get(s->sys, s->nic, ret_rss);

	if (e && e != EOPNOTSUPP && s->configure)
		FAIL_NOW(GANTRY_ERR_SYSTEM, "RSS table of %s: %s", s->nic, devmem_strerror(e));
	if ((e || !ret_rss->n) && s->configure)
		LOG_WARN(NET, "devmem: %s has no RSS table: other traffic may reach the bound queue and be lost",
			 s->nic);
	if (e || !rss_reaches(ret_rss, lowest))
		ret_rss->n = 0;
	return GANTRY_OK;
}

static gantry_result keep_rss_away(struct devmem_session *s, uint32_t lowest)
{
	struct devmem_rss rss = {0};
	int e;

	TRY_NOW(find_rss(s, lowest, &rss));
	if (!rss.n)
		return GANTRY_OK;
	if (!s->configure) {
		LOG_WARN(NET,
			 "devmem: RSS of %s reaches queue %u, which is bound: other traffic there is lost "
			 "(ethtool -X %s equal %u)",
			 s->nic, lowest, s->nic, lowest);
		return GANTRY_OK;
	}
	if (!s->before->has_rss) {
		s->before->has_rss = 1;
		s->before->rss_default = rss_is_default(&rss);
		s->before->rss = rss;
	}
	TRY_NOW(save_journal(s));
	for (uint32_t i = 0; i < rss.n; i++)
		rss.queue[i] = i % lowest;
	e = s->sys->ops->rss_set(s->sys, s->nic, &rss);
	if (e)
		FAIL_NOW(e == EPERM ? GANTRY_ERR_CONFIG : GANTRY_ERR_SYSTEM, "RSS of %s over queues 0 to %u: %s",
			 s->nic, lowest - 1, devmem_strerror(e));
	return GANTRY_OK;
}

/* All steps but RSS. What is changed is in s->before first, in which another process may have put it already. */
static gantry_result configure_nic(struct devmem_session *s)
{
	char driver[32] = "";

	s->sys->ops->driver(s->sys, s->nic, driver, sizeof(driver));
	TRY_NOW(turn_feature_on(s, "rx-ntuple-filter"));
	for (size_t i = 0; i < sizeof(quirks) / sizeof(quirks[0]); i++)
		if (strcmp(driver, quirks[i].driver) == 0)
			TRY_NOW(turn_feature_on(s, quirks[i].feature));
	return turn_split_on(s);
}

MUTEX_KIND(devmem_sessions_mu); /* of the list; before a session's own */
static struct devmem_sessions_mu list_mu;
static struct gantry_list sessions GUARDED_BY(devmem_sessions_mu) = {&sessions, &sessions};

/* Those that the NIC keeps stay known. */
static void remove_rules(struct devmem_session *s) REQUIRES(devmem_session_mu)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < s->nrules; i++) {
		if (devmem_rule_remove(s->sys, s->nic, s->rules[i]))
			s->rules[left++] = s->rules[i];
		else
			devmem_journal_rule(&s->journal, s->rules[i], 0);
	}
	s->nrules = left;
}

/* Rules, binding, and, if no other process uses the NIC, everything else. */
static void undo_session(struct devmem_session *s) REQUIRES(devmem_session_mu)
{
	char text[160];

	if (s->closed)
		return;
	s->closed = 1;
	remove_rules(s);
	s->sys->ops->unbind(s->sys); /* before header split: the kernel refuses that while a queue is bound */
	devmem_journal_end(&s->journal, s->nrules != 0);
	if (*s->journal.base)
		devmem_undo_stale(s->sys, s->nic, text, sizeof(text));
	else
		devmem_nic_restore(s->sys, s->nic, s->before);
}

static void undo_all(void)
{
	devmem_sessions_mu_lock(&list_mu);
	gantry_list_each_entry (s, &sessions, struct devmem_session, link) {
		if (s->pid != getpid())
			continue;
		devmem_session_mu_lock(&s->mu);
		undo_session(s);
		devmem_session_mu_unlock(&s->mu);
	}
	devmem_sessions_mu_unlock(&list_mu);
}

/* No other thread has a reference any more, or yet. */
static void session_free(struct devmem_session *s)
{
	if (!s)
		return;
	if (s->journal.fd >= 0)
		close(s->journal.fd); /* a child's copy: the file is its parent's */
	devmem_sys_free(s->sys);
	free(s->before);
	free(s);
}

/* With the NIC's lock, if there is one. */
static gantry_result set_up(struct devmem_session *s, int dmabuf)
{
	struct devmem_bind bind = {.fd = dmabuf, .queues = s->queues, .nqueues = s->nqueues};
	uint32_t lowest = 0;
	int e;

	devmem_journal_load(&s->journal, s->before);
	TRY_NOW(choose_queues(s, &lowest));
	if (s->configure)
		TRY_NOW(configure_nic(s));
	TRY_NOW(keep_rss_away(s, lowest));
	e = s->sys->ops->bind_rx(s->sys, s->nic, &bind, &s->dmabuf_id);
	if (e)
		FAIL_NOW(devmem_error_of(DEVMEM_CALL_BIND_RX, e)->result, "%s, queue %u: %s", s->nic, s->queues[0],
			 devmem_error_text(DEVMEM_CALL_BIND_RX, e, s->sys->said));
	LOG_INFO(NET, "devmem: %s: %u queue%s from %u up bound as dma-buf %u", s->nic, s->nqueues,
		 s->nqueues == 1 ? "" : "s", lowest, s->dmabuf_id);
	return GANTRY_OK;
}

static void enlist_session(struct devmem_session *s)
{
	static int registered; /* under list_mu */

	devmem_sessions_mu_lock(&list_mu);
	if (!registered)
		registered = atexit(undo_all) == 0;
	gantry_list_append(&sessions, &s->link);
	devmem_sessions_mu_unlock(&list_mu);
}

/* What a crash has left is put back first; then the NIC is ours alone, and so is a file of the journal. */
static gantry_result lock_nic(struct devmem_session *s, int *ret_lock)
{
	int e = devmem_journal_init(&s->journal, s->nic);
	char text[160];

	if (e && s->configure)
		LOG_WARN(NET,
			 "devmem: no folder for a journal (%s): a crash would leave %s changed, and no other process "
			 "could bind it",
			 strerror(e), s->nic);
	if (!*s->journal.base)
		return GANTRY_OK;
	if (devmem_undo_stale(s->sys, s->nic, text, sizeof(text)))
		LOG_WARN(NET, "devmem: %s: %s", s->nic, text);
	*ret_lock = devmem_journal_lock(&s->journal);
	if (*ret_lock < 0)
		FAIL_NOW(GANTRY_ERR_TIMEOUT, "devmem: %s is being set up by another process", s->nic);
	e = devmem_journal_create(&s->journal);
	if (e)
		FAIL_NOW(GANTRY_ERR_SYSTEM, "devmem: %s: %s", s->journal.own, strerror(e));
	return GANTRY_OK;
}

static gantry_result session_new(const struct devmem_session_config *c, struct devmem_session **ret_session)
{
	gantry_result r = GANTRY_OK;
	struct devmem_session *s = calloc(1, sizeof(*s));

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding of %s", c->nic);
	s->journal.fd = -1;
	s->sys = devmem_sys_new();
	s->before = calloc(1, sizeof(*s->before));
	if (!s->sys || !s->before)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding of %s", c->nic);
	if (!c->nqueues || c->nqueues > DEVMEM_QUEUES_MAX || strlen(c->nic) >= sizeof(s->nic))
		FAIL(GANTRY_ERR_INVALID, "binding of %u queues of interface '%s'", c->nqueues, c->nic);
	s->pid = getpid();
	s->configure = c->configure;
	s->nqueues = c->nqueues;
	snprintf(s->nic, sizeof(s->nic), "%s", c->nic);
	*ret_session = s;
	s = NULL;
out:
	session_free(s);
	return r;
}

gantry_result devmem_session_open(const struct devmem_session_config *c, struct devmem_session **ret_session)
{
	gantry_result r = GANTRY_OK;
	struct devmem_session *s = NULL;
	int lock = -1, locked = 0;

	TRY(session_new(c, &s));
	TRY(lock_nic(s, &lock));
	locked = 1;
	TRY(set_up(s, c->dmabuf));
	enlist_session(s);
	*ret_session = s;
	s = NULL;
out:
	if (lock >= 0)
		close(lock); /* undo takes it itself */
	if (s && locked) {
		devmem_session_mu_lock(&s->mu);
		undo_session(s);
		devmem_session_mu_unlock(&s->mu);
	}
	session_free(s);
	return r;
}

int devmem_tuple_of(int fd, struct devmem_tuple *ret_tuple)
{
	struct sockaddr_storage local = {0}, peer = {0};
	socklen_t local_len = sizeof(local), peer_len = sizeof(peer), len = sizeof(int);
	struct devmem_tuple t;
	int protocol = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) < 0 ||
	    getsockname(fd, (struct sockaddr *)&local, &local_len) < 0)
		return errno;
	if (protocol != IPPROTO_TCP)
		return EPROTONOSUPPORT;
	if (getpeername(fd, (struct sockaddr *)&peer, &peer_len) < 0)
		return errno;
	t = (struct devmem_tuple){gantry_addr_of((struct sockaddr *)&peer), gantry_addr_of((struct sockaddr *)&local)};
	gantry_addr_unmap(&t.src);
	gantry_addr_unmap(&t.dst);
	if (t.src.sa.sa_family == AF_UNSPEC || t.src.sa.sa_family != t.dst.sa.sa_family)
		return EAFNOSUPPORT;
	*ret_tuple = t;
	return 0;
}

/* Has another socket this port: a listener, or a connection to somewhere else? The kernel gives one port to several connections
 * that leave the host. What cannot be read counts as yes. */
static bool port_is_shared(uint16_t port)
{
	enum { TIME_WAIT = 6, LISTEN = 10 };
	static const char *const files[] = {"/proc/net/tcp", "/proc/net/tcp6"};
	unsigned local, state;
	char line[256];
	int sockets = 0, readable = 0;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		FILE *f = fopen(files[i], "re");

		readable += f != NULL;
		while (f && fgets(line, sizeof(line), f))
			if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &local, &state) == 2 &&
			    local == port && state != TIME_WAIT)
				sockets += state == LISTEN ? 2 : 1;
		if (f)
			fclose(f);
	}
	return !readable || sockets > 1; /* one is the flow itself */
}

static gantry_result add_rule(struct devmem_session *s, const struct devmem_tuple *t, uint32_t *ret_location)
	REQUIRES(devmem_session_mu)
{
	struct devmem_rule rule = {.tuple = *t, .narrow = 1, .queue = s->queues[s->next++ % s->nqueues]};
	char src[GANTRY_ADDR_TEXT], dst[GANTRY_ADDR_TEXT];
	int e, first;
	uint32_t i;

	if (s->nrules == DEVMEM_RULES_MAX)
		FAIL_NOW(GANTRY_ERR_LIMIT, "%s: already steering %u flows", s->nic, s->nrules);
	e = first = s->sys->ops->rule_add(s->sys, s->nic, &rule, ret_location);
	/* Some NICs match less. A rule for the whole local port would catch connections that do not expect device
	 * memory, if there are any. */
	if ((e == EINVAL || e == EOPNOTSUPP) && !port_is_shared(gantry_addr_port(&t->dst))) {
		rule.narrow = 0;
		e = s->sys->ops->rule_add(s->sys, s->nic, &rule, ret_location);
		if (!e)
			LOG_INFO(NET, "devmem: %s matches destinations only (full tuple: %s)", s->nic,
				 devmem_strerror(first));
	}
	if (e)
		FAIL_NOW(devmem_error_of(DEVMEM_CALL_RULE, e)->result, "%s, %s to %s, queue %u: %s", s->nic,
			 gantry_addr_text(&t->src, src), gantry_addr_text(&t->dst, dst), rule.queue,
			 devmem_error_text(DEVMEM_CALL_RULE, e, ""));
	/* A NIC that removed a rule but reported that it had not assigns its location again. */
	for (i = 0; i < s->nrules && s->rules[i] != *ret_location; i++)
		;
	if (i == s->nrules)
		s->rules[s->nrules++] = *ret_location;
	devmem_journal_rule(&s->journal, *ret_location, 1);
	return GANTRY_OK;
}

gantry_result devmem_session_steer(struct devmem_session *s, const struct devmem_tuple *t, uint32_t *ret_location)
{
	gantry_result r = GANTRY_OK;

	if (!s->configure) {
		*ret_location = DEVMEM_NO_RULE;
		return GANTRY_OK;
	}
	devmem_session_mu_lock(&s->mu);
	if (s->closed)
		FAIL(GANTRY_ERR_ABORTED, "%s: the binding has ended", s->nic);
	TRY(add_rule(s, t, ret_location));
out:
	devmem_session_mu_unlock(&s->mu);
	return r;
}

gantry_result devmem_session_unsteer(struct devmem_session *s, uint32_t location)
{
	gantry_result r = GANTRY_OK;
	uint32_t i = 0;
	int e;

	if (location == DEVMEM_NO_RULE)
		return GANTRY_OK;
	devmem_session_mu_lock(&s->mu);
	if (s->closed)
		goto out;
	while (i < s->nrules && s->rules[i] != location)
		i++;
	if (i == s->nrules)
		FAIL(GANTRY_ERR_INVALID, "%s: flow rule %u does not belong to this binding", s->nic, location);
	/* What could not be removed stays one of this binding: the next try, or its end, has to do it. */
	e = devmem_rule_remove(s->sys, s->nic, location);
	if (e)
		FAIL(GANTRY_ERR_SYSTEM, "%s: flow rule %u: %s", s->nic, location, devmem_strerror(e));
	s->rules[i] = s->rules[--s->nrules];
	devmem_journal_rule(&s->journal, location, 0);
	devmem_journal_compact(&s->journal, s->rules, s->nrules);
out:
	devmem_session_mu_unlock(&s->mu);
	return r;
}

void devmem_session_close(struct devmem_session *s)
{
	if (!s)
		return;
	devmem_sessions_mu_lock(&list_mu);
	gantry_list_remove(&s->link);
	devmem_sessions_mu_unlock(&list_mu);
	if (s->pid == getpid()) {
		devmem_session_mu_lock(&s->mu);
		undo_session(s);
		devmem_session_mu_unlock(&s->mu);
	}
	session_free(s);
}
