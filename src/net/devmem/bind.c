/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/bind.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "net/devmem/errors.h"
#include "net/devmem/setup.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gantry_list sessions = {&sessions, &sessions}; /* under list_lock */

/* Those that the NIC keeps stay known. s->lock is held. */
static void remove_rules(struct devmem_session *s)
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

/* Rules, binding, and, if nobody else uses the NIC, everything else. s->lock is held. */
static void undo(struct devmem_session *s)
{
	char text[160];

	if (s->closed)
		return;
	s->closed = 1;
	remove_rules(s);
	s->sys->ops->unbind(s->sys); /* before header split: the kernel refuses that while a queue is bound */
	if (s->nrules)
		devmem_journal_leave(&s->journal); /* for whoever comes next */
	else
		devmem_journal_end(&s->journal);
	if (*s->journal.base)
		devmem_undo_stale(s->sys, s->nic, text, sizeof(text));
	else
		devmem_setup_undo(s->sys, s->nic, s->before);
}

static void undo_all(void)
{
	pthread_mutex_lock(&list_lock);
	gantry_list_each (pos, &sessions) {
		struct devmem_session *s = gantry_container(pos, struct devmem_session, link);

		if (s->pid != getpid())
			continue;
		pthread_mutex_lock(&s->lock);
		undo(s);
		pthread_mutex_unlock(&s->lock);
	}
	pthread_mutex_unlock(&list_lock);
}

static void session_free(struct devmem_session *s)
{
	if (!s)
		return;
	if (s->journal.fd >= 0)
		close(s->journal.fd); /* a child's copy: the file is its parent's */
	pthread_mutex_destroy(&s->lock);
	free(s->before);
	free(s);
}

/* With the NIC's lock, if there is one. */
static gantry_result set_up(struct devmem_session *s, int dmabuf, uint32_t nqueues)
{
	gantry_result r = GANTRY_OK;
	uint32_t lowest = 0;
	char text[512];
	int e;

	devmem_journal_load(&s->journal, s->before);
	TRY(devmem_setup_choose(s->sys, s->nic, nqueues, s->queues, &lowest));
	s->nqueues = nqueues;
	if (s->configure)
		TRY(devmem_setup_apply(s->sys, &s->journal, s->nic, lowest, s->before));
	else
		devmem_setup_verify(s->sys, s->nic, lowest);
	e = s->sys->ops->bind_rx(s->sys, s->nic, dmabuf, s->queues, nqueues, &s->dmabuf_id);
	if (e)
		FAIL(devmem_error_of(DEVMEM_CALL_BIND_RX, e)->result, "%s, queue %u: %s", s->nic, s->queues[0],
		     devmem_error_text(DEVMEM_CALL_BIND_RX, e, s->sys->said, text, sizeof(text)));
	LOG_INFO(NET, "devmem: %s: %u queue%s from %u up bound as dma-buf %u", s->nic, nqueues, nqueues == 1 ? "" : "s",
		 lowest, s->dmabuf_id);
out:
	return r;
}

static void enlist(struct devmem_session *s)
{
	static int registered; /* under list_lock */

	pthread_mutex_lock(&list_lock);
	if (!registered)
		registered = atexit(undo_all) == 0;
	gantry_list_append(&sessions, &s->link);
	pthread_mutex_unlock(&list_lock);
}

gantry_result devmem_session_open(struct devmem_sys *sys, const char *nic, int dmabuf, uint32_t nqueues, int configure,
				  struct devmem_session **ret_session)
{
	gantry_result r = GANTRY_OK;
	struct devmem_session *s = calloc(1, sizeof(*s));
	struct devmem_before *before = calloc(1, sizeof(*before));
	char text[160];
	int lock = -1, e;

	if (!s || !before)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a binding of %s", nic);
	if (!nqueues || nqueues > DEVMEM_QUEUES_MAX || strlen(nic) >= sizeof(s->nic))
		FAIL(GANTRY_ERR_INVALID, "binding of %u queues of interface '%s'", nqueues, nic);
	pthread_mutex_init(&s->lock, NULL);
	s->before = before;
	before = NULL;
	s->sys = sys;
	s->pid = getpid();
	s->configure = configure;
	snprintf(s->nic, sizeof(s->nic), "%s", nic);
	e = devmem_journal_init(&s->journal, nic);
	if (e && configure)
		LOG_WARN(NET,
			 "devmem: no folder for a journal (%s): a crash would leave %s changed, and no other process "
			 "may bind it",
			 strerror(e), nic);
	if (*s->journal.base) {
		if (devmem_undo_stale(sys, nic, text, sizeof(text)))
			LOG_WARN(NET, "devmem: %s: %s", nic, text);
		lock = devmem_journal_lock(&s->journal);
		if (lock < 0)
			FAIL(GANTRY_ERR_TIMEOUT, "devmem: %s is being set up by another process", nic);
		e = devmem_journal_create(&s->journal);
		if (e)
			FAIL(GANTRY_ERR_SYSTEM, "devmem: %s: %s", s->journal.own, strerror(e));
	}
	r = set_up(s, dmabuf, nqueues);
	if (lock >= 0)
		close(lock);
	lock = -1;
	if (r != GANTRY_OK) {
		undo(s);
		goto out;
	}
	enlist(s);
	*ret_session = s;
	s = NULL;
	sys = NULL; /* ownership moved */
out:
	if (lock >= 0)
		close(lock);
	free(before);
	if (s && s->before)
		session_free(s);
	else
		free(s);
	devmem_sys_free(sys);
	return r;
}

/* "10.0.0.2:4000 to 10.0.0.1:5000" */
static const char *tuple_text(const struct devmem_tuple *t, char *buf, size_t len)
{
	char src[INET6_ADDRSTRLEN] = "?", dst[INET6_ADDRSTRLEN] = "?";

	inet_ntop((int)t->family, t->src, src, sizeof(src));
	inet_ntop((int)t->family, t->dst, dst, sizeof(dst));
	snprintf(buf, len, "%s port %u to %s port %u", src, ntohs(t->src_port), dst, ntohs(t->dst_port));
	return buf;
}

/* Does anybody listen on this port? Then other connections have it as well. */
static int port_is_shared(uint16_t port)
{
	static const char *const files[] = {"/proc/net/tcp", "/proc/net/tcp6"};
	unsigned local, state;
	char line[256];
	int shared = 0;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		FILE *f = fopen(files[i], "re");

		while (f && fgets(line, sizeof(line), f))
			if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &local, &state) == 2 &&
			    local == ntohs(port) && state == 0x0a)
				shared = 1;
		if (f)
			fclose(f);
	}
	return shared;
}

/* s->lock is held. */
static gantry_result add_rule(struct devmem_session *s, const struct devmem_tuple *t, uint32_t *ret_location)
{
	gantry_result r = GANTRY_OK;
	uint32_t queue = s->queues[s->next++ % s->nqueues];
	char text[512], flow[128];
	int e, first;
	uint32_t i;

	if (s->nrules == DEVMEM_RULES_MAX)
		FAIL(GANTRY_ERR_LIMIT, "%s: %u flows are steered already", s->nic, s->nrules);
	e = first = s->sys->ops->rule_add(s->sys, s->nic, t, 1, queue, ret_location);
	/* Some NICs match less. A rule for the whole local port would catch connections that do not expect device
	 * memory, if there are any: those to a listener. */
	if ((e == EINVAL || e == EOPNOTSUPP) && !port_is_shared(t->dst_port)) {
		e = s->sys->ops->rule_add(s->sys, s->nic, t, 0, queue, ret_location);
		if (!e)
			LOG_INFO(NET, "devmem: %s matches destinations only (the whole way: %s)", s->nic,
				 devmem_strerror(first, text, sizeof(text)));
	}
	if (e)
		FAIL(devmem_error_of(DEVMEM_CALL_RULE, e)->result, "%s, %s to queue %u: %s", s->nic,
		     tuple_text(t, flow, sizeof(flow)), queue,
		     devmem_error_text(DEVMEM_CALL_RULE, e, "", text, sizeof(text)));
	/* A NIC that had removed a rule and said it had not gives its place away again. */
	for (i = 0; i < s->nrules && s->rules[i] != *ret_location; i++)
		;
	if (i == s->nrules)
		s->rules[s->nrules++] = *ret_location;
	devmem_journal_rule(&s->journal, *ret_location, 1);
out:
	return r;
}

gantry_result devmem_session_steer(struct devmem_session *s, const struct devmem_tuple *t, uint32_t *ret_location)
{
	gantry_result r = GANTRY_OK;

	if (!s->configure) {
		*ret_location = DEVMEM_NO_RULE;
		return GANTRY_OK;
	}
	pthread_mutex_lock(&s->lock);
	if (s->closed)
		FAIL(GANTRY_ERR_ABORTED, "%s: the binding has ended", s->nic);
	TRY(add_rule(s, t, ret_location));
out:
	pthread_mutex_unlock(&s->lock);
	return r;
}

gantry_result devmem_session_unsteer(struct devmem_session *s, uint32_t location)
{
	gantry_result r = GANTRY_OK;
	char text[128];
	uint32_t i = 0;
	int e;

	if (location == DEVMEM_NO_RULE)
		return GANTRY_OK;
	pthread_mutex_lock(&s->lock);
	if (s->closed)
		goto out;
	while (i < s->nrules && s->rules[i] != location)
		i++;
	if (i == s->nrules)
		FAIL(GANTRY_ERR_INVALID, "%s: flow rule %u is not one of this binding", s->nic, location);
	/* What could not be removed stays one of this binding: the next try, or its end, has to do it. */
	e = devmem_rule_remove(s->sys, s->nic, location);
	if (e)
		FAIL(GANTRY_ERR_SYSTEM, "%s: flow rule %u: %s", s->nic, location,
		     devmem_strerror(e, text, sizeof(text)));
	s->rules[i] = s->rules[--s->nrules];
	devmem_journal_rule(&s->journal, location, 0);
	devmem_journal_compact(&s->journal, s->rules, s->nrules);
out:
	pthread_mutex_unlock(&s->lock);
	return r;
}

void devmem_session_close(struct devmem_session *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&list_lock);
	gantry_list_remove(&s->link);
	pthread_mutex_unlock(&list_lock);
	if (s->pid == getpid()) {
		pthread_mutex_lock(&s->lock);
		undo(s);
		pthread_mutex_unlock(&s->lock);
	}
	devmem_sys_free(s->sys);
	session_free(s);
}
