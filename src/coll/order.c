/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of ranks. Algorithms number ranks by place, and neighbours in that order talk most: rings go from place to
 * place, trees halve it. So ranks of one host have places next to each other, in a host those of one NUMA node, on a node
 * those of one GPU, whatever numbers the launcher gave them: a ring enters each host once. Hosts with equal hardware get
 * equal orders inside, so that hier's rings connect ranks at the same NUMA node and GPU of each.
 */
#include <stdlib.h>
#include <string.h>

#include "coll/coll.h"

static int compare_places(const void *a, const void *b)
{
	const struct coll_where *x = a, *y = b;
	int device = strcmp(x->device, y->device);

	if (x->host != y->host)
		return x->host - y->host;
	if (x->numa != y->numa)
		return x->numa < y->numa ? -1 : 1;
	return device ? device : x->rank - y->rank;
}

void coll_order(struct coll_where *where, int n)
{
	qsort(where, (size_t)n, sizeof(*where), compare_places);
}

void coll_plan_name_ranks(struct coll_plan *plan, enum coll_kind kind, const int *order)
{
	for (uint32_t i = 0; i < plan->npeers; i++)
		plan->peers[i].rank = order[plan->peers[i].rank];
	/* Their parts are the ranks'; those of the others are cuts of a buffer, which have no owner. */
	for (uint32_t i = 0; i < plan->nsteps && coll_by_rank(kind); i++)
		plan->steps[i].part = (uint32_t)order[plan->steps[i].part];
}
