/* Giving up on a connect that has begun. */
#ifndef GANTRY_NET_TCP_FORGET_H
#define GANTRY_NET_TCP_FORGET_H

/* handle: as it was given to connect of gantry_net_tcp(), which has not returned a comm or an error for it yet. Nothing
 * happens if connect was never called. */
void tcp_connect_forget(void *handle);

#endif
