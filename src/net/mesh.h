/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of one party with others, over Gantry's own network: out to each whose handle is known, in from each, identified by
 * the hello that every connection begins with. What a hello says is its user's (net_mesh_config). Belongs to one thread. Never
 * blocks; nothing of it is left when it fails.
 */
#ifndef GANTRY_NET_MESH_H
#define GANTRY_NET_MESH_H

#include <stdbool.h>

#include "net/net.h"

enum { NET_MESH_HELLO = 64, NET_MESH_TAG = 0, NET_MESH_NOBODY = -1 };

/* Connections with one other party. */
struct net_mesh_end {
	void *out, *in; /* comms of the network, owned by the mesh; NULL: none */
};

/* Another party. */
struct net_mesh_dial {
	uint8_t handle[GANTRY_NET_HANDLE_SIZE]; /* the network keeps its place in it */
	bool known;				/* there is a handle to connect to */
	bool wanted;				/* connections with it are waited for */
	bool optional;				/* to do without it is no failure: `lost` says so */
	gantry_result lost;			/* OK: it is not */
	void *hello;				/* the request that carries our hello; NULL: it is out */
};

struct net_mesh_caller {
	void *in, *request; /* accepted; its hello */
	uint8_t hello[NET_MESH_HELLO];
};

struct net_mesh;
struct net_mesh_config {
	void *ctx, *listen; /* of the network; borrowed */
	int dev;
	uint32_t count; /* parties, this one too */
	const void *hello; /* what we say of ourselves, NET_MESH_HELLO bytes; copied */
	/* Whose hello it is; NET_MESH_NOBODY: no party's. */
	int64_t (*whose)(const struct net_mesh *m, const void *hello, size_t size);
	void *user; /* borrowed; for whose */
};

struct net_mesh {
	struct net_mesh_config config;
	struct net_mesh_end *ends;	 /* owned: the result */
	struct net_mesh_dial *dials;	 /* owned */
	struct net_mesh_caller *callers; /* owned */
	uint8_t hello[NET_MESH_HELLO];
};

gantry_result net_mesh_create(const struct net_mesh_config *config, struct net_mesh **ret_mesh);
/* Its handle has come: it is wanted. ERR_PROTOCOL: it is no handle. */
gantry_result net_mesh_dial(struct net_mesh *m, uint32_t index, const void *handle);
/* Another party is done without: its connections are closed. */
void net_mesh_lose(struct net_mesh *m, uint32_t index, gantry_result r);
/* Its connections are there, or it is not wanted, or lost. */
bool net_mesh_has(const struct net_mesh *m, uint32_t index);
/* AGAIN until all have them. A failure of one that is optional is its loss. */
gantry_result net_mesh_step(struct net_mesh *m);
void net_mesh_destroy(struct net_mesh *m); /* closes all connections; NULL is fine */

#endif
