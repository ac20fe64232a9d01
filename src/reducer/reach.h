/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks come to reducers that are processes of their own (GANTRY_REDUCERS), and agree on which of them to use.
 *
 *   each rank:  asks every reducer (reducer_wire.h) -> connections in both directions    or: the reducer is lost, with a warning
 *   all ranks:  REACHED to rank 0 -> rank 0 keeps what all of them have -> REACHED to all
 *
 * So a reducer that is down, full, or out of reach of one rank is left out by all, and pieces go to the same reducers
 * from everywhere. A reducer has REDUCER_PATIENCE_NS to answer and to connect, or half of the time that there is.
 */
#ifndef GANTRY_REDUCER_REACH_H
#define GANTRY_REDUCER_REACH_H

#include "inet/nic.h"
#include "reducer/reducer_mesh.h"

#define REDUCER_PATIENCE_NS 5000000000ull

struct reducer_name {
	char text[256]; /* as the user wrote it */
};

/* A list with commas. ERR_CONFIG, with a line: it is too long. */
gantry_result reducer_names_parse(const char *list, struct reducer_name **ret_names, uint32_t *ret_n);

struct reducer_reach {
	struct reducer_mesh *mesh; /* its dials have the ranks that are wanted: rank 0, or all of them on rank 0 */
	const struct reducer_name *names; /* borrowed: one for each reducer of the mesh */
	uint64_t comm_id;
	const void *handle; /* borrowed: of this rank's listener */
	uint64_t deadline;  /* ns */
};
/* Blocks. Those that are not used by all have `lost` in the mesh; at least one is left. */
gantry_result reducer_reach(const struct reducer_reach *reach);
/* Blocks until the wanted connections of the mesh are there. */
gantry_result reducer_wait_for(struct reducer_mesh *m, uint64_t deadline);

#endif
