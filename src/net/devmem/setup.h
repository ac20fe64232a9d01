/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NIC's configuration for a binding, as steps that can be taken back: ntuple filters on, what the driver wants
 * before header split, header split on with threshold 0, RSS away from the bound queues. How it was is written to the
 * journal before it is changed; undo goes backwards. All of it with the NIC's lock held.
 */
#ifndef GANTRY_NET_DEVMEM_SETUP_H
#define GANTRY_NET_DEVMEM_SETUP_H

#include "gantry/result.h"
#include "net/devmem/journal.h"

/* The last n queues that nobody has; queue 0 is never taken. Also the lowest one that is bound then, by anybody. */
gantry_result devmem_setup_choose(struct devmem_sys *s, const char *nic, uint32_t n, uint32_t *ret_queues,
				  uint32_t *ret_lowest);
/* All steps. `before` says how things were (and may know already, from another process). After an error undo. */
gantry_result devmem_setup_apply(struct devmem_sys *s, const struct devmem_journal *j, const char *nic, uint32_t lowest,
				 struct devmem_before *before);
/* Without changing anything: does RSS stay away from the queues? Else a warning. */
void devmem_setup_verify(struct devmem_sys *s, const char *nic, uint32_t lowest);
/* Puts back what `before` has. Failures are warnings; returns how many. */
int devmem_setup_undo(struct devmem_sys *s, const char *nic, const struct devmem_before *before);

/* Deletes a flow rule. 0: there is none any more, also where somebody else had removed it, or the NIC is gone; else
 * errno, and it has to be taken for still there. */
int devmem_rule_remove(struct devmem_sys *s, const char *nic, uint32_t location);

/* What dead processes left on this NIC: their rules go, and the rest if nobody is left. Takes the lock itself.
 * Returns how many dead bindings there were, -1 if not everything could be put back; text says what was done, or "". */
int devmem_undo_stale(struct devmem_sys *s, const char *nic, char *text, size_t len);

#endif
