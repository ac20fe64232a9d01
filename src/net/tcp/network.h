/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network: what a process has once, whatever the number of its communicators.
 *
 * It owns the devices, the listening ports (one per address, shared by all listeners) and all links, and is a client of
 * the loop (inet/loop.h). The loop's thread alone runs connection set-up, in both directions, as non-blocking state
 * machines: connect and accept only look at the outcome, so they never block and any thread may call them. It also
 * sends heartbeats, notices silence, and sees closed links off.
 *
 * Locks: loop_mu protects everything here. Order: loop_mu, then a link's locks. The thread does not hold it while it
 * frees a link: that gives device memory and flow rules back, which takes as long as the device and the NIC want.
 *
 * The network is busy while there are users (listeners, connectors, open directions of links) and closed links that are
 * not freed yet.
 */
#ifndef GANTRY_NET_TCP_NETWORK_H
#define GANTRY_NET_TCP_NETWORK_H

#include <pthread.h>
#include <stdint.h>

#include "base/list.h"
#include "base/log.h"
#include "base/stall.h"
#include "inet/listen.h"
#include "inet/nic.h"
#include "inet/settings.h"
#include "inet/stats.h"
#include "net/net.h"
#include "net/tcp/hello.h"
#include "net/tcp/link.h"
#include "net/tcp/tcp_unpack.h"

enum { TCP_MAX_DEVICES = 2 * GANTRY_NIC_MAX, TCP_SERVED = 64, TCP_BUCKETS = 1024 };
/* Of a listener: all ranks of a job may connect to one before it is asked for the first of them. */
enum { TCP_READY_MAX = 4096 };

/* What a communicator brings along. */
struct tcp_context {
	uint64_t comm_id;
	int traffic_class;
	int unpack;		      /* enum gantry_net_unpack, PARAM resolved */
	int plugin;		      /* it was PARAM: NCCL is the user */
	int watched;		      /* its requests are looked at for stalls: stall.h */
	int links;		      /* see struct gantry_net_config */
	int standing_receives;	      /* the same */
	char why[DEVMEM_WHY];	      /* OFF: why */
	struct gantry_device *device; /* borrowed; NULL: what is current when it is needed */
};

/* A NIC, or several fused. */
struct tcp_device {
	char name[64];
	int nrails;
	int rails[GANTRY_NET_MAX_RAILS]; /* indices of physical devices */
	const struct gantry_nic *nic;	 /* of the first rail */
};

enum tcp_direction_state {
	TCP_UNUSED,   /* no connect or accept for this direction yet */
	TCP_RESERVED, /* promised to a connector or listener: the link is not up yet, or the peer has not confirmed */
	TCP_OPEN,
	TCP_CLOSED, /* by this side */
};

/* The service thread's: what it last saw of a direction. alive.c */
struct tcp_stall {
	uint64_t sum, since; /* ns */
	int told;
};

/*
 * A link as the network knows it: its session, the state of both directions, set-up and end. All of it under loop_mu; threads that
 * move data need none of it.
 */
struct tcp_entry {
	struct tcp_link *link;
	/* In the network's lists: of peers' sessions; of those that are opening, that wait for accept, or whose other direction is
	 * free. */
	struct gantry_list by_session, waiting;

	/* Set when the session begins, constant afterwards. */
	uint8_t key[WIRE_SESSION_SIZE];
	uint64_t peer_process, comm_id;
	int peer_dev;
	int initiator;		     /* this side opened the sockets */
	int own_unpack, peer_unpack; /* values of both sides in the handshake: enum wire_unpack */

	int lanes_here;
	int up; /* all lanes are there */
	/* All lanes of a peer's session are here: its first byte on lane 0 says that it knows. accept.c */
	struct inet_source confirm;
	enum tcp_direction_state tx_state, rx_state;
	uint64_t rx_listener;		     /* gets the receiving direction when the link is up */
	uint8_t promised[WIRE_SESSION_SIZE]; /* the session that the receiving direction was promised to */
	uint64_t linger_until;		     /* ns; of a promised one: when the peer must have confirmed */
	int shut;			     /* our side of the sockets is shut */

	struct tcp_stall stall[2]; /* receiving, sending */
	uint64_t acked, acked_at; /* what the peer's kernel has acknowledged of lane 0; ticks: since when that is all */
};

struct tcp_listener {
	struct gantry_list node;
	int forks; /* inet_forked */
	uint64_t id;
	uint8_t cookie[WIRE_COOKIE_SIZE];
	struct tcp_context ctx;
	struct tcp_rx_memory rx_memory; /* owned */
	int dev;
	int nports;
	struct inet_port *ports[GANTRY_NET_MAX_RAILS];
	int naddrs; /* addresses given to peers */
	struct gantry_addr addrs[GANTRY_NET_MAX_RAILS];
	int nopening; /* links for it that wait for their lanes */
	int nready;
	struct gantry_list ready; /* links whose receiving direction is for this listener, by `waiting` */
	int served;		  /* some link was */
	/* A connection that had the cookie was refused: accept says so. At once if it had proved the secret; else from this
	 * time on (ns), unless a peer that fits has come by then: cookies can be seen on the network. */
	gantry_result error;
	uint64_t error_at;
	char error_text[384];
};

enum tcp_connector_state {
	TCP_CONNECTING,	  /* opening lanes */
	TCP_WAIT_SESSION, /* the peer requested to share the link it opens */
	TCP_CONNECTED,
	TCP_CONNECT_FAILED,
};

struct tcp_connector {
	struct gantry_list node, by_id;
	uint64_t id;
	struct wire_handle handle;
	struct tcp_context ctx;
	const struct tcp_context *owner; /* only compared: whose copy ctx is */
	struct tcp_rx_memory rx_memory;	 /* owned */
	int dev;
	enum tcp_connector_state state;
	uint64_t deadline, retry_at; /* ns */
	uint32_t retries;
	struct tcp_link *link;		    /* owned until CONNECTED */
	uint8_t key[WIRE_SESSION_SIZE];	    /* of the session that it opens, whenever it begins anew */
	uint8_t session[WIRE_SESSION_SIZE]; /* WAIT_SESSION: whose */
	struct wire_welcome welcome;
	struct gantry_list attempts;
	int last_errno;
	gantry_result error;
	char error_text[384];
};

struct tcp_network {
	int initialised GUARDED_BY(loop_mu); /* devices are known */
	int users GUARDED_BY(loop_mu);

	/* Constant once there is something to serve, but for devices that are fused later. */
	uint64_t process; /* 0: not known, as in a forked child */
	uint64_t host;
	struct inet_key key;	      /* GANTRY_SECRET, or none */
	struct gantry_nic_list *nics; /* owned */
	int ndevs;
	struct tcp_device devs[TCP_MAX_DEVICES];
	int cpus; /* share of this process, the least that a communicator has told; 0: none has; relaxed */

	uint64_t next_id GUARDED_BY(loop_mu);
	struct gantry_list connectors GUARDED_BY(loop_mu), links GUARDED_BY(loop_mu);
	struct gantry_list lingering GUARDED_BY(loop_mu), buried GUARDED_BY(loop_mu);
	/* Links of peers that wait for their lanes, the oldest first. */
	struct gantry_list opening GUARDED_BY(loop_mu);
	/* Links of ours that are up and whose receiving direction is not used yet. */
	struct gantry_list shareable GUARDED_BY(loop_mu);
	/* Links of ours whose receiving direction was promised to a peer, that has not confirmed yet that it sends. */
	struct gantry_list promised GUARDED_BY(loop_mu);
	/* By id. A process with many ranks has thousands, and every call of connect and every hello looks one up. */
	struct gantry_list listeners[TCP_BUCKETS] GUARDED_BY(loop_mu);
	struct gantry_list connectors_by_id[TCP_BUCKETS] GUARDED_BY(loop_mu);
	struct gantry_list sessions[TCP_BUCKETS] GUARDED_BY(loop_mu); /* links that peers have opened */
	int nburied GUARDED_BY(loop_mu);			      /* links not freed yet, in the list or not */
	/* ns: the last tick of all, that of heartbeats, and the last look at links that open. */
	uint32_t asked GUARDED_BY(loop_mu); /* GANTRY_STALL_SIGNAL, as often as it was seen */
	uint64_t ticked GUARDED_BY(loop_mu), last_tick GUARDED_BY(loop_mu), opening_looked GUARDED_BY(loop_mu);
	struct { /* since the process began */
		uint64_t connect_retries, link_failures;
	} counts GUARDED_BY(loop_mu);
	/* Listeners that were closed after they had their connection: a ring. */
	uint64_t served[TCP_SERVED] GUARDED_BY(loop_mu);
	uint32_t nserved GUARDED_BY(loop_mu);
};

extern struct tcp_network tcp_network;

/* network.c */
gantry_result tcp_network_init(void);			      /* devices, identity; idempotent */
gantry_result tcp_network_start(void) REQUIRES(loop_mu);      /* for what becomes a user: there is a thread */
void tcp_network_release(void) EXCLUDES(loop_mu);	      /* one user less */
void tcp_link_put_down(struct tcp_link *l) REQUIRES(loop_mu); /* no user any more: see it off */
/* It has no references and is in no list: the service thread frees it after it has released the lock. */
void tcp_link_bury(struct tcp_link *l) REQUIRES(loop_mu);

/* tcp_device.c */
gantry_result tcp_devices_scan(void) REQUIRES(loop_mu);
void tcp_device_properties(int dev, struct gantry_net_properties *ret_props) REQUIRES(loop_mu);
gantry_result tcp_device_fuse(const struct gantry_net_vdevice *vdev, int *ret_dev) REQUIRES(loop_mu);
int tcp_cpus_usable(void);

/* setup.c: what both sides of a hand-shake share. */
gantry_result tcp_link_for_session(int nlanes, struct tcp_link **ret_link) REQUIRES(loop_mu);
/* The peer's properties from hello or welcome. */
struct tcp_peer {
	uint64_t host;
	const struct gantry_addr *addr; /* lane 0's */
	uint32_t window, eager_max;
	enum wire_unpack unpack;
	bool sealed; /* its lanes are, and so are ours */
	enum inet_resume resume;
};
/* Before the peer's lanes are taken. rx_memory: this side's. */
void tcp_link_meet(struct tcp_link *l, const struct tcp_rx_memory *rx_memory, const struct tcp_peer *peer)
	REQUIRES(loop_mu);
/* A peer opens it, for this listener: it is known by its session from now on. */
void tcp_link_opening(struct tcp_link *l, struct tcp_listener *listener) REQUIRES(loop_mu);
/* The link with this session that a peer has opened; NULL: none. */
struct tcp_link *tcp_link_of_session(const uint8_t session[WIRE_SESSION_SIZE]) REQUIRES(loop_mu);
/* It is in none of the network's lists any more. */
void tcp_link_forget(struct tcp_link *l) REQUIRES(loop_mu);
/* A socket that becomes, or will become, the lane's: addresses and options. peer: where it goes, which a socket that was reset
 * meanwhile does not know any more. device: to bind it to, or NULL. */
void tcp_lane_tune(struct tcp_lane *lane, int fd, const struct gantry_addr *peer, const char *device);
/* The seals are the lane's then, in any case. */
void tcp_lane_take(struct tcp_link *l, int lane, int fd, struct inet_seals *seals, const struct gantry_addr *peer,
		   const struct tcp_context *ctx, const char *device) REQUIRES(loop_mu);
/* All lanes are connected: hand the directions to the waiting connect and accept. */
void tcp_link_up(struct tcp_link *l) REQUIRES(loop_mu);
/* The NIC that has the address; NULL: none of those that the network uses. */
const struct gantry_nic *tcp_nic_of(const struct gantry_addr *a);
/* Packets to an address of this machine. */
bool tcp_passes_no_nic(const struct gantry_addr *to);
/* The side that has opened it knows that all lanes are there, or the other one that it may send over it too: a frame on lane 0
 * says so. */
void tcp_link_confirm(struct tcp_link *l) REQUIRES(loop_mu);
/* Gives the receiving direction to its listener, or drops it if that is gone. */
void tcp_link_deliver(struct tcp_link *l) REQUIRES(loop_mu);
/* This side closes one direction; a link without users is shut down. */
void tcp_link_drop_tx(struct tcp_link *l) REQUIRES(loop_mu);
void tcp_link_drop_rx(struct tcp_link *l) REQUIRES(loop_mu);

/* accept.c. Takes over the rx_memory. */
extern struct inet_service tcp_service;
gantry_result tcp_listener_open(const struct tcp_context *ctx, struct tcp_rx_memory *rx_memory, int dev, void *handle,
				struct tcp_listener **ret) REQUIRES(loop_mu);
void tcp_listener_close(struct tcp_listener *l) REQUIRES(loop_mu);
/* The error of accept; OK: none, or not yet. Returned once. */
gantry_result tcp_listener_error(struct tcp_listener *l) REQUIRES(loop_mu);
struct tcp_listener *tcp_listener_find(uint64_t id) REQUIRES(loop_mu);
/* The answer. False: the connection is gone. */
bool tcp_send_welcome(struct inet_conn *c, struct wire_welcome *w, enum wire_verdict verdict) REQUIRES(loop_mu);
const char *tcp_conn_device(const struct inet_conn *c); /* to bind its socket to; NULL: to none */
/* A connector of ours has an answer from its peer: hellos that waited for that are answered. */
void tcp_accept_reconsider(void) REQUIRES(loop_mu);
/* Receiving directions that were promised: those that are confirmed, or will not be (now: ns), are handed out. */
void tcp_accept_promised(uint64_t now) REQUIRES(loop_mu);
void tcp_accept_tick(uint64_t now) REQUIRES(loop_mu);

/* connect.c. Takes over the rx_memory. */
gantry_result tcp_connector_open(const struct tcp_context *ctx, struct tcp_rx_memory *rx_memory, int dev,
				 const struct wire_handle *h, struct tcp_connector **ret) REQUIRES(loop_mu);
struct tcp_connector *tcp_connector_find(uint64_t id) REQUIRES(loop_mu);
void tcp_connector_free(struct tcp_connector *c) REQUIRES(loop_mu);
void tcp_connector_tick(uint64_t now) REQUIRES(loop_mu);
int tcp_connectors_busy(void) REQUIRES(loop_mu);
/* Those of a context that ends; answers how many users of the network they were. */
int tcp_connectors_drop(const struct tcp_context *ctx) REQUIRES(loop_mu);

/* alive.c: heartbeats, silence, lingering, stalls. */
uint64_t tcp_alive_interval(void);
void tcp_alive_tick(uint64_t now) REQUIRES(loop_mu);
void tcp_linger_tick(uint64_t now) REQUIRES(loop_mu);
/* Looks at all links for GANTRY_STALL_DIR. 1: there is something to tell, without a lock. */
int tcp_stall_tick(uint64_t now_ns, int asked) REQUIRES(loop_mu);
void tcp_stall_tell(void);
/* One direction at this moment; wait_ns and the peer are left out. */
void tcp_stall_look(struct tcp_link *l, int send, struct gantry_stall_wait *ret) EXCLUDES(link_mu);

/* tcp_stats.c: counters of all links, for inet/stats.h. */
extern struct inet_stats_source tcp_stats;

#endif
