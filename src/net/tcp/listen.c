/* SPDX-License-Identifier: Apache-2.0 */
/* The ports of the data network, one per address, and the listeners that share them. The engine's mu is held. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/hmac.h"
#include "base/log.h"
#include "base/param.h"
#include "inet/port.h"
#include "inet/settings.h"
#include "net/tcp/engine.h"

struct port_user tcp_port_user = {
	.magic = WIRE_HELLO_MAGIC,
	.magic_size = WIRE_MAGIC_SIZE,
	.wake = inet_loop_wake,
};

struct tcp_port *tcp_port_at(const struct gantry_addr *local)
{
	gantry_list_each (pos, &tcp_engine.ports) {
		struct tcp_port *p = gantry_container(pos, struct tcp_port, node);

		if (gantry_addr_same_host(&p->addr, local))
			return p;
	}
	return NULL;
}

static void port_put(struct tcp_port *port)
{
	if (--port->refs)
		return;
	inet_source_close(&port->source);
	port_close(&tcp_port_user, &port->addr);
	gantry_list_remove(&port->node);
	free(port);
}

static gantry_result port_get(int nic, struct tcp_port **ret_port)
{
	const struct gantry_addr *addr = &tcp_engine.nics->nics[nic].addrs[0];
	gantry_result r = GANTRY_OK;
	struct tcp_port *port = NULL;
	char text[GANTRY_ADDR_TEXT];

	gantry_list_each (pos, &tcp_engine.ports) {
		struct tcp_port *p = gantry_container(pos, struct tcp_port, node);

		if (p->nic == nic) {
			p->refs++;
			*ret_port = p;
			return GANTRY_OK;
		}
	}
	port = calloc(1, sizeof(*port));
	if (!port)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a port");
	port->source = (struct inet_source){.fd = -1, .ready = tcp_port_ready};
	port->nic = nic;
	port->refs = 1;
	gantry_list_init(&port->node);
	TRY(port_open(&tcp_port_user, addr, &port->source.fd, &port->addr));
	TRY(inet_source_add(&port->source, EPOLLIN));
	gantry_list_append(&tcp_engine.ports, &port->node);
	LOG_DEBUG(NET, "listening on %s (%s)", gantry_addr_text(&port->addr, text), tcp_engine.nics->nics[nic].name);
	*ret_port = port;
	port = NULL;
out:
	if (port && port->source.fd >= 0)
		port_put(port);
	else
		free(port);
	return r;
}

/* What peers are told to connect to. */
static gantry_result advertise(struct tcp_listener *l)
{
	l->naddrs = *gantry_params()->advertise ? 1 : l->nports;
	for (int i = 1; i < l->naddrs; i++)
		l->addrs[i] = l->ports[i]->addr;
	return inet_advertised(&l->ports[0]->addr, &l->addrs[0]);
}

/* Ids are random, but for their last bit. */
static struct gantry_list *bucket(uint64_t id)
{
	return &tcp_engine.listeners[(id >> 1) % TCP_BUCKETS];
}

struct tcp_listener *tcp_listener_find(uint64_t id)
{
	gantry_list_each (pos, bucket(id)) {
		struct tcp_listener *l = gantry_container(pos, struct tcp_listener, node);

		if (l->id == id)
			return l;
	}
	return NULL;
}

int tcp_listener_served(uint64_t id)
{
	for (int i = 0; i < TCP_SERVED; i++)
		if (id && tcp_engine.served[i] == id)
			return 1;
	return 0;
}

gantry_result tcp_listener_open(const struct tcp_context *ctx, struct tcp_home *home, int dev, void *handle,
				struct tcp_listener **ret)
{
	const struct tcp_device *d = &tcp_engine.devs[dev];
	struct wire_handle h = {.version = WIRE_VERSION, .dev = dev};
	gantry_result r = GANTRY_OK;
	struct tcp_listener *l = calloc(1, sizeof(*l));

	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a listener");
	gantry_list_init(&l->node);
	l->forks = inet_forks;
	l->ctx = *ctx;
	l->dev = dev;
	TRY(gantry_random_bytes(&l->id, sizeof(l->id)));
	l->id |= 1; /* 0 means none */
	TRY(gantry_random_bytes(l->cookie, sizeof(l->cookie)));
	for (int i = 0; i < d->nrails; i++) {
		TRY(port_get(d->rails[i], &l->ports[i]));
		l->nports++;
	}
	h.process = tcp_engine.process;
	h.listener = l->id;
	h.comm_id = ctx->comm_id;
	memcpy(h.cookie, l->cookie, WIRE_COOKIE_SIZE);
	TRY(advertise(l));
	h.naddrs = l->naddrs;
	memcpy(h.addrs, l->addrs, sizeof(h.addrs));
	wire_handle_encode(&h, handle);
	gantry_list_append(bucket(l->id), &l->node);
	l->home = tcp_home_take(home);
	*ret = l;
	l = NULL;
out:
	tcp_listener_close(l);
	return r;
}

void tcp_listener_close(struct tcp_listener *l)
{
	if (!l)
		return;
	gantry_list_remove(&l->node);
	if (l->served)
		tcp_engine.served[tcp_engine.nserved++ % TCP_SERVED] = l->id;
	for (int i = 0; i < l->nready; i++)
		tcp_link_drop_rx(l->ready[i]);
	for (int i = 0; i < l->nports; i++)
		port_put(l->ports[i]);
	tcp_home_close(&l->home);
	free(l);
}
