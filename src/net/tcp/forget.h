/* SPDX-License-Identifier: Apache-2.0 */
/* Handles that are not NCCL's business: from a peer that may lie, and of a connect that is given up. */
#ifndef GANTRY_NET_TCP_FORGET_H
#define GANTRY_NET_TCP_FORGET_H

/* A handle has come from a peer. `connect` keeps in it which attempt of this process it belongs to: what a stranger has
 * written there would name somebody else's. To be called before the first connect. */
void tcp_handle_received(void *handle);
/* handle: as it was given to connect of gantry_net_tcp(), which has not returned a comm or an error for it yet. Nothing
 * happens if connect was never called. */
void tcp_connect_forget(void *handle);

#endif
