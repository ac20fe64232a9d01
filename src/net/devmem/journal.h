/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was changed on a NIC, on file, so that it can be put back after a crash, and so that several processes can share
 * a NIC. In /run/gantry, or XDG_RUNTIME_DIR/gantry for those who are not root, for each NIC of a network namespace:
 *
 *   NAME.lock     locked while a process changes the NIC or puts it back
 *   NAME.before   how header split, features and RSS were before the first of us came
 *   NAME.PID.N    one binding: its flow rules. Locked (flock) by its process as long as that lives
 *
 * Whoever goes deletes his own rules and file; the last one puts back what .before says. A file that can be locked
 * belongs to a process that is dead, or that left it because the NIC kept a rule: whoever comes next, or `gantry doctor
 * --undo-devmem`, does it in its place.
 */
#ifndef GANTRY_NET_DEVMEM_JOURNAL_H
#define GANTRY_NET_DEVMEM_JOURNAL_H

#include <stddef.h>
#include <stdint.h>

#include "net/devmem/sys.h"

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

/* Where the files are; NULL: as above. For tests, before anything else. */
void devmem_journal_set_dir(const char *dir);
/* 0, or errno: there is no folder, and base is "". */
int devmem_journal_init(struct devmem_journal *j, const char *nic);
/* The NIC's lock, or -1: could not be had. To be closed. */
int devmem_journal_lock(const struct devmem_journal *j);

/* With the lock held. */
/* A file of its own; nobody's is taken over, be he alive or dead. 0 or errno. */
int devmem_journal_create(struct devmem_journal *j);
void devmem_journal_end(struct devmem_journal *j);   /* removes the own file */
void devmem_journal_leave(struct devmem_journal *j); /* leaves it as a crash would: rules are still to be removed */
int devmem_journal_save(const struct devmem_journal *j, const struct devmem_before *before); /* 0 or errno */
/* 1: there is one; 0: none, and *ret is zeroed. */
int devmem_journal_load(const struct devmem_journal *j, struct devmem_before *ret_before);
void devmem_journal_forget(const struct devmem_journal *j); /* removes .before */
/* Files of other bindings: how many live. on_rule is called with each rule of a dead one, and returns 0 when that is
 * gone. A file whose rules all are is removed, another stays with the rest; *ret_dead counts both. */
int devmem_journal_others(const struct devmem_journal *j, int (*on_rule)(void *arg, uint32_t location), void *arg,
			  int *ret_dead);

/* A rule is there, or gone again. No lock is needed: the file is one's own. */
void devmem_journal_rule(struct devmem_journal *j, uint32_t location, int there);
/* Only these: the file does not grow with every flow that has come and gone. Does it when there is reason to. */
void devmem_journal_compact(struct devmem_journal *j, const uint32_t *rules, uint32_t n);
/* The interfaces of this network namespace that have files; how many were written to names. */
int devmem_journal_nics(char names[][IFNAMSIZ], int max);

#endif
