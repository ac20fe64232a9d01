/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings that every rank would refuse, looked at before any is started: one message, and the exit status of wrong
 * usage, instead of a failure of each.
 */
#ifndef GANTRY_TOOLS_PREFLIGHT_H
#define GANTRY_TOOLS_PREFLIGHT_H

/*
 * The secret, the interfaces, the plugin's file, the transports. plugin: that of the network, NULL or "" for Gantry's
 * own. transport: names that may be used, NULL: no communicator is made. 0, or -1 after a line on stderr.
 */
int preflight(const char *program, const char *plugin, const char *transport);

#endif
