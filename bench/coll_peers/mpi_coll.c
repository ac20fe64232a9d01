/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI's collectives, for bench/coll_compare.py. Algorithms and transports are the launcher's business (--mca ...); -a
 * and -t only say in the output which those are.
 *
 *   mpirun -n 2 mpi_coll all_reduce -b 8 -e 16M -f 4
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "peer.h"

static int fits(struct peer *p)
{
	if (p->count <= 0x7fffffff)
		return 0;
	fprintf(stderr, "mpi_coll: MPI counts with int, and %zu elements are more\n", p->count);
	return -1;
}

static int call(struct peer *p)
{
	int count = (int)p->count, part = (int)p->per_rank;

	switch (p->op) {
	case PEER_ALL_REDUCE:
		return MPI_Allreduce(p->send, p->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	case PEER_ALL_GATHER:
		return MPI_Allgather(p->send, part, MPI_FLOAT, p->recv, part, MPI_FLOAT, MPI_COMM_WORLD);
	case PEER_REDUCE_SCATTER:
		return MPI_Reduce_scatter_block(p->send, p->recv, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	case PEER_ALL_TO_ALL:
		return MPI_Alltoall(p->send, part, MPI_FLOAT, p->recv, part, MPI_FLOAT, MPI_COMM_WORLD);
	default:
		return MPI_Bcast(p->recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
	}
}

static void poll_mpi(struct peer *p)
{
	int flag;

	(void)p;
	MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
}

/* Rank 0 chooses the file in which the ranks meet, and removes it once everybody has it. */
static int map_shared(struct peer *p)
{
	char path[64] = "";
	int r;

	if (p->rank == 0)
		snprintf(path, sizeof(path), "/dev/shm/gantry-mpi-coll-%ld", (long)getpid());
	MPI_Bcast(path, sizeof(path), MPI_CHAR, 0, MPI_COMM_WORLD);
	r = peer_map(p, path);
	MPI_Barrier(MPI_COMM_WORLD);
	if (p->rank == 0)
		unlink(path);
	return r;
}

/* "Open MPI v4.1.4, package: ...": up to the comma. */
static void take_version(char text[MPI_MAX_LIBRARY_VERSION_STRING])
{
	int len = 0;

	MPI_Get_library_version(text, &len);
	text[strcspn(text, ",\n\"")] = 0;
}

int main(int argc, char **argv)
{
	char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
	struct peer p = {.library = "openmpi", .version = version, .prepare = fits, .call = call, .poll = poll_mpi};
	int bad;

	MPI_Init(&argc, &argv);
	bad = peer_options(&p, argc, argv) ? 2 : 0;
	MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &p.ranks);
	take_version(version);
	if (!bad && p.ranks > PEER_RANKS_MAX) {
		fprintf(stderr, "mpi_coll: at most %d ranks\n", PEER_RANKS_MAX);
		bad = 2;
	}
	if (!bad)
		bad = map_shared(&p) || peer_run(&p);
	/* The other ranks may be waiting for this one. */
	if (bad)
		MPI_Abort(MPI_COMM_WORLD, bad);
	MPI_Finalize();
	return 0;
}
