/* SPDX-License-Identifier: Apache-2.0 */
/* Giving up on a connect that has begun: net.h has no call for it, because NCCL never does. */
#include "net/tcp/forget.h"
#include "net/tcp/engine.h"

void tcp_handle_received(void *handle)
{
	wire_handle_set_local(handle, 0);
}

void tcp_connect_forget(void *handle)
{
	uint64_t id = wire_handle_local(handle);
	struct tcp_home home = {.kind = DEVMEM_NONE};
	struct tcp_connector *c;

	if (!id)
		return;
	inet_loop_lock();
	c = tcp_connector_find(id);
	if (c && c->state == TCP_CONNECTED)
		tcp_link_drop_tx(c->link);
	if (c) {
		home = tcp_home_take(&c->home);
		tcp_connector_free(c);
	}
	wire_handle_set_local(handle, 0);
	inet_loop_unlock();
	tcp_home_close(&home);
	if (c)
		tcp_engine_release();
}
