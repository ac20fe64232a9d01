/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one binding of a NIC's queues to a dma-buf, with everything that has to be set up for it and taken back
 * after it. It needs CAP_NET_ADMIN; it is what `gantry devmem-helper` does for others, and what kernel.c does itself.
 *
 * It ends with close, at exit of the process that opened it, or, after a crash, by the next user of the NIC (the
 * journal, below).
 * Any thread; a lock of its own.
 */
#ifndef GANTRY_NET_DEVMEM_SESSION_H
#define GANTRY_NET_DEVMEM_SESSION_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "base/mutex.h"
#include "gantry/result.h"
#include "net/devmem/sys.h"

/*
 * What was changed on a NIC, on file, so that it can be put back after a crash, and so that several processes can share
 * a NIC. In /run/gantry, or XDG_RUNTIME_DIR/gantry for other users than root, for each NIC of a network namespace:
 *
 *   NAME.lock     locked while a process changes the NIC or puts it back
 *   NAME.before   how header split, features and RSS were before the first of us came
 *   NAME.PID.N    one binding: its flow rules. Locked (flock) by its process as long as that lives
 *
 * A process that ends deletes its own rules and file; the last one puts back what .before says. A file that can be locked
 * belongs to a process that is dead, or that left it because the NIC kept a rule: the next user of the NIC, or `gantry
 * doctor --undo-devmem`, does it in its place.
 */

enum { DEVMEM_PATH_MAX = 256, DEVMEM_FEATURES_MAX = 2, DEVMEM_RULES_MAX = 2048 };

struct devmem_before {
	int has_rings;
	struct devmem_rings rings;
	uint32_t nfeatures;
	struct devmem_feature features[DEVMEM_FEATURES_MAX]; /* name and on */
	int has_rss;
	int rss_default; /* it was the driver's own */
	struct devmem_rss rss;
};

struct devmem_journal {
	char base[DEVMEM_PATH_MAX]; /* of all files of the NIC; "": there is no folder for them */
	char own[DEVMEM_PATH_MAX];
	int fd; /* of `own`; -1: none */
	uint32_t lines;
};

/* Where the files are; NULL: as above. Set before anything else. */
extern const char *devmem_journal_dir_for_tests;
/* 0, or errno: there is no folder, and base is "". */
int devmem_journal_init(struct devmem_journal *j, const char *nic);
/* The NIC's lock, or -1: could not be had. To be closed. */
int devmem_journal_lock(const struct devmem_journal *j);

/* Only under the NIC's lock: */
/* A file of its own; it never takes over the file of another process, alive or dead. 0 or errno. */
int devmem_journal_create(struct devmem_journal *j);
/* Removes the own file, or leaves it as a crash would, for the next user of the NIC: rules are still to be removed. */
void devmem_journal_end(struct devmem_journal *j, int leaves_rules);
int devmem_journal_save(const struct devmem_journal *j, struct devmem_before *before); /* 0: failed, and logged why */
/* 1: there is one; 0: none, and *ret is zeroed. */
int devmem_journal_load(const struct devmem_journal *j, struct devmem_before *ret_before);
/* A rule is there, or gone again. No lock is needed: the file is one's own. */
void devmem_journal_rule(struct devmem_journal *j, uint32_t location, int there);
/* Only these: the file does not grow with every flow that has come and gone. Does it when there is reason to. */
void devmem_journal_compact(struct devmem_journal *j, const uint32_t *rules, uint32_t n);
/* The interfaces of this network namespace that have files; how many were written to names. */
int devmem_journal_nics(char names[][IFNAMSIZ], int max);

/*
 * The NIC's configuration for a binding is a number of steps that can be taken back: ntuple filters on, what the driver
 * wants before header split, header split on with threshold 0, RSS away from the bound queues. How it was is written to
 * the journal before it is changed; undo goes backwards. All of it under the NIC's lock.
 */

/* Puts back what `before` has. Failures are warnings; returns how many. */
int devmem_nic_restore(struct devmem_sys *s, const char *nic, const struct devmem_before *before);
/* 0: the rule is gone, also if another process had removed it or the NIC is gone; else errno, and the rule must be
 * assumed to exist. */
int devmem_rule_remove(struct devmem_sys *s, const char *nic, uint32_t location);
/* What dead processes left on this NIC: removes their rules, and restores the rest if no process uses the NIC. Takes
 * the lock itself. Returns how many dead bindings there were, -1 if not everything could be restored; text: what was
 * done, or "". */
int devmem_undo_stale(struct devmem_sys *s, const char *nic, char *text, size_t len);

enum { DEVMEM_NO_RULE = 0xffffffffu };

MUTEX_KIND(devmem_session_mu);

struct devmem_session {
	struct gantry_list link; /* in the list of the open ones, under its lock */
	struct devmem_session_mu mu;
	struct devmem_sys *sys; /* owned: its netlink socket holds the binding */
	struct devmem_journal journal;
	struct devmem_before *before; /* owned: how the NIC was, where there is no journal */
	pid_t pid;		      /* a child of fork does not undo what is its parent's */
	char nic[IFNAMSIZ];
	int configure; /* the NIC is ours to set up */
	int closed GUARDED_BY(devmem_session_mu);
	uint32_t dmabuf_id;
	uint32_t nqueues, queues[DEVMEM_QUEUES_MAX];
	uint32_t next GUARDED_BY(devmem_session_mu); /* flow's queue */
	uint32_t nrules GUARDED_BY(devmem_session_mu), rules[DEVMEM_RULES_MAX] GUARDED_BY(devmem_session_mu);
};

struct devmem_session_config {
	const char *nic;
	int dmabuf; /* stays the caller's */
	uint32_t nqueues;
	int configure;
};
gantry_result devmem_session_open(const struct devmem_session_config *c, struct devmem_session **ret_session);
/* The way of what a connected TCP socket receives: 0 or errno. IPv4 in IPv6 is IPv4. */
int devmem_tuple_of(int fd, struct devmem_tuple *ret_tuple);
/* A rule that brings the flow to one of the queues; DEVMEM_NO_RULE where rules are not ours to make. */
gantry_result devmem_session_steer(struct devmem_session *s, const struct devmem_tuple *t, uint32_t *ret_location);
/* ERR_INVALID: not a rule of this session. ERR_SYSTEM: the NIC keeps it; it stays a rule of the session, whose end
 * tries again, and after that the next user of the NIC (the journal, below). */
gantry_result devmem_session_unsteer(struct devmem_session *s, uint32_t location);
void devmem_session_close(struct devmem_session *s); /* NULL is fine */

/*
 * The privileged daemon's protocol: binding and steering for processes without CAP_NET_ADMIN.
 *
 * A unix socket of type SEQPACKET, a connection for each binding, fixed-size requests and replies:
 *
 *   BIND     with the dma-buf as SCM_RIGHTS: the NIC is set up and bound. Once per connection.
 *   STEER    with a connected TCP socket as SCM_RIGHTS: its owner may steer it. Its rule's location comes back.
 *   UNSTEER  a location that STEER gave on this connection
 *
 * When the connection ends, whatever the reason, everything that was done for it is taken back.
 */

/* The client's side. */
struct devmem_daemon; /* a connection */
gantry_result devmem_daemon_bind(const char *path, const struct devmem_session_config *c, uint32_t *ret_dmabuf_id,
				 struct devmem_daemon **ret_daemon);
gantry_result devmem_daemon_steer(struct devmem_daemon *h, int fd, uint32_t *ret_location);
gantry_result devmem_daemon_unsteer(struct devmem_daemon *h, uint32_t location);
void devmem_daemon_close(struct devmem_daemon *h); /* NULL is fine; the daemon takes everything back */

/* The daemon's side: serves until *stop, which is atomic, is not 0 (looked at every 100 ms at least, and after a signal). */
struct devmem_daemon_config {
	const char *path;
	const char *nic; /* only this one; NULL: any */
	uid_t uid;	 /* user that may connect, besides root and the daemon's own user */
	int has_uid;
};
gantry_result devmem_daemon_serve(const struct devmem_daemon_config *c, const int *stop);

#endif
