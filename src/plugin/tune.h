/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plugin does so that stock NCCL uses this network well with nothing set (docs/design/0026): variables of NCCL that the
 * user has not set, at init, and the tuner's choice for each call. Both are functions of what all ranks know alike: ranks
 * that choose differently would wait for each other for ever.
 */
#ifndef GANTRY_PLUGIN_TUNE_H
#define GANTRY_PLUGIN_TUNE_H

#include <stdbool.h>

/*
 * Sets NCCL's variables for all communicators of this process. NCCL 2.19 to 2.30 read them after the network's init and once
 * per process, so this belongs into init. A variable that the user has set stays, and GANTRY_TUNE=off leaves all alone.
 * `unpack` is an enum gantry_net_unpack.
 */
void plugin_tune(int unpack);

/* NCCL asks for its variables (answers.c): from now on plugin_tune() keeps values for plugin_tune_answer() and sets none. */
void plugin_tune_by_answers(bool on);
/* What plugin_tune() has decided for this variable, a constant; NULL: nothing. From any thread. */
const char *plugin_tune_answer(const char *name);

/* Whether a communicator's channels are those that plugin_tune() asked for, and whether NCCL unpacks. */
bool plugin_tune_owns_channels(void);
bool plugin_tune_unpacks(void);

#endif
