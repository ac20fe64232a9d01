/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connections of one party of a job (reducer_wire.h): a mesh (net/mesh.h) whose parties are the ranks, and behind them the
 * reducers that are processes of their own.
 */
#ifndef GANTRY_REDUCER_MESH_H
#define GANTRY_REDUCER_MESH_H

#include "net/mesh.h"
#include "reducer/group.h"

struct reducer_mesh {
	struct net_mesh *net;	    /* owned */
	struct net_mesh_end *ends;  /* its: borrowed */
	struct net_mesh_dial *dials;
	uint32_t count, ranks, own; /* parties, how many of them are ranks, and which one we are */
	const uint32_t *stop;	    /* borrowed; reducer_config has it */
	uint64_t job;
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
/* Before the first step, where it is not known earlier. */
void reducer_mesh_set_job(struct reducer_mesh *m, uint64_t job);
/* As in net/mesh.h. */
gantry_result reducer_mesh_dial(struct reducer_mesh *m, uint32_t index, const void *handle);
void reducer_mesh_lose(struct reducer_mesh *m, uint32_t index, gantry_result r);
gantry_result reducer_mesh_step(struct reducer_mesh *m);
/* All connections with those of [first, end) that are wanted, and not lost, are there. */
int reducer_mesh_has(const struct reducer_mesh *m, uint32_t first, uint32_t end);
/* "rank 2, rank 5": those that are missing; returns buf. */
const char *reducer_mesh_missing(const struct reducer_mesh *m, char *buf, size_t size);
void reducer_mesh_destroy(struct reducer_mesh *m); /* NULL is fine */

#endif
