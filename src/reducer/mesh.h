/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of one party of a job (reducer_wire.h) with others: out to each whose handle is known, in from each,
 * identified by the HELLO that every connection begins with. Belongs to one thread. Never blocks; nothing of it is left
 * when it fails.
 */
#ifndef GANTRY_REDUCER_MESH_H
#define GANTRY_REDUCER_MESH_H

#include "net/net.h"
#include "reducer/group.h"

/* Another party. */
struct reducer_dial {
	uint8_t handle[GANTRY_NET_HANDLE_SIZE]; /* the network keeps its place in it */
	int known;				/* there is a handle to connect to */
	int wanted;				/* connections with it are waited for */
	int optional;				/* to do without it is no failure: `lost` says so */
	gantry_result lost;			/* OK: it is not */
	void *hello;				/* our request, which carries our identity; NULL: it is out */
};

struct reducer_caller {
	void *in, *request; /* accepted; its HELLO */
	uint8_t hello[REDUCER_HEADER];
};

struct reducer_mesh {
	void *ctx, *listen; /* of the network; borrowed */
	int dev;
	uint32_t count, ranks, own;	/* parties, how many of them are ranks, and which one we are */
	const uint32_t *stop;		/* borrowed; reducer_config has it */
	struct reducer_hello hello;	/* what we say of ourselves */
	struct reducer_end *ends;	/* owned: the result */
	struct reducer_dial *dials;	/* owned */
	struct reducer_caller *callers; /* owned */
	uint8_t header[REDUCER_HEADER];
	/* What goes and comes behind a HELLO: it must live as long as its request. */
	uint8_t said[REDUCER_HEADER], heard[REDUCER_HEADER];
};

struct reducer_mesh_config {
	void *ctx, *listen; /* borrowed */
	int dev;
	uint32_t ranks, reducers, own; /* reducers: those that are processes of their own */
	uint64_t job;
	const uint32_t *stop; /* borrowed; NULL: nothing stops those that wait for connections */
};
gantry_result reducer_mesh_create(const struct reducer_mesh_config *config, struct reducer_mesh **ret_mesh);
/* Its handle has come: it is wanted. ERR_PROTOCOL: it is no handle. */
gantry_result reducer_mesh_dial(struct reducer_mesh *m, uint32_t index, const void *handle);
/* Another party is done without: its connections are closed. */
void reducer_mesh_lose(struct reducer_mesh *m, uint32_t index, gantry_result r);
/* All connections with those of [first, end) that are wanted, and not lost, are there. */
int reducer_mesh_has(const struct reducer_mesh *m, uint32_t first, uint32_t end);
/* AGAIN until that is so of all. A failure of one that is optional is its loss. */
gantry_result reducer_mesh_step(struct reducer_mesh *m);
/* "rank 2, rank 5": those that are missing; returns buf. */
const char *reducer_mesh_missing(const struct reducer_mesh *m, char *buf, size_t size);
void reducer_mesh_destroy(struct reducer_mesh *m); /* closes all connections; NULL is fine */

#endif
