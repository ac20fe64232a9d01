/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one binding of a NIC's queues to a dma-buf, with everything that has to be set up for it and taken back
 * after it. It needs CAP_NET_ADMIN; it is what `gantry devmem-helper` does for others, and what kernel.c does itself.
 *
 * It ends with close, at exit of the process that opened it, or, after a crash, with whoever comes next (journal.h).
 * Any thread; a lock of its own.
 */
#ifndef GANTRY_NET_DEVMEM_BIND_H
#define GANTRY_NET_DEVMEM_BIND_H

#include <pthread.h>
#include <sys/types.h>

#include "base/list.h"
#include "gantry/result.h"
#include "net/devmem/journal.h"

enum { DEVMEM_NO_RULE = 0xffffffffu };

struct devmem_session {
	struct gantry_list link; /* in the list of the open ones, under its lock */
	pthread_mutex_t lock;
	struct devmem_sys *sys; /* owned: its netlink socket holds the binding */
	struct devmem_journal journal;
	struct devmem_before *before; /* owned: how the NIC was, where there is no journal */
	pid_t pid;		      /* a child of fork does not undo what is its parent's */
	char nic[IFNAMSIZ];
	int configure;
	int closed;
	uint32_t dmabuf_id;
	uint32_t nqueues, queues[DEVMEM_QUEUES_MAX], next;
	uint32_t nrules, rules[DEVMEM_RULES_MAX];
};

/* sys: initialised; owned from now on, also after an error. dmabuf: stays the caller's. */
gantry_result devmem_session_open(struct devmem_sys *sys, const char *nic, int dmabuf, uint32_t nqueues, int configure,
				  struct devmem_session **ret_session);
/* A rule that brings the flow to one of the queues; DEVMEM_NO_RULE where rules are not ours to make. */
gantry_result devmem_session_steer(struct devmem_session *s, const struct devmem_tuple *t, uint32_t *ret_location);
/* ERR_INVALID: not a rule of this session. ERR_SYSTEM: the NIC keeps it; it stays a rule of the session, whose end
 * tries again, and after that whoever comes next (journal.h). */
gantry_result devmem_session_unsteer(struct devmem_session *s, uint32_t location);
void devmem_session_close(struct devmem_session *s); /* NULL is fine */

#endif
