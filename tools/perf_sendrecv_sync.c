/*
 * Ranks meet. Those of one host meet in shared memory, where they also leave what they measured. Ranks that a launcher
 * started may be on several hosts: they send their samples to rank 0 and get all of them back, by the communicator
 * itself, between the phases that are measured.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "perf_sendrecv.h"

enum { SPIN_FAR = 100, SPIN_CLOSE = 100000, NAP_NS = 50000 };

static struct sr_sample *sample_at(const struct sr_rank *rk, int rank)
{
	return &rk->shared->rank[rank].samples[rk->syncs % 2];
}

const struct sr_sample *sr_sample_of(const struct sr_rank *rk, int rank)
{
	return sample_at(rk, rank);
}

/* Ranks that share a CPU look the less often the more they are: looking must not take the time of those who work. */
static void wait_for(const struct sr_rank *rk, uint64_t count, int spin, long per_cpu)
{
	const struct timespec nap = {0, NAP_NS * per_cpu};
	int n = 0;

	for (int i = 0; i < rk->nranks; i++)
		while (__atomic_load_n(&rk->shared->rank[i].arrived, __ATOMIC_ACQUIRE) < count) {
			if (n++ < spin)
				gantry_cpu_pause();
			else
				nanosleep(&nap, NULL);
		}
}

/* First without burning a CPU that another rank may need, then once more closely: all leave within a microsecond, if
 * they have a CPU each. */
static void meet(struct sr_rank *rk)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN), per_cpu = cpus > 0 ? (rk->nranks + cpus - 1) / cpus : 1;

	for (int close = 0; close < 2; close++) {
		uint64_t count = rk->me->arrived + 1;

		__atomic_store_n(&rk->me->arrived, count, __ATOMIC_RELEASE);
		wait_for(rk, count, close && per_cpu == 1 ? SPIN_CLOSE : SPIN_FAR, per_cpu);
	}
}

/* Rank 0's half of the exchange, or another's. The box holds a sample of each rank. */
static gantry_result exchange(struct sr_rank *rk)
{
	gantry_result r = GANTRY_OK;
	const size_t one = sizeof(struct sr_sample), all = one * (size_t)rk->nranks;

	if (rk->rank == 0) {
		gantry_group_start();
		for (int i = 1; i < rk->nranks; i++)
			gantry_recv(rk->box + one * (size_t)i, one, GANTRY_TYPE_INT8, i, rk->comm, rk->stream);
		TRY(gantry_group_end());
		gantry_group_start();
		for (int i = 1; i < rk->nranks; i++)
			gantry_send(rk->box, all, GANTRY_TYPE_INT8, i, rk->comm, rk->stream);
		TRY(gantry_group_end());
	} else {
		TRY(gantry_send(rk->box + one * (size_t)rk->rank, one, GANTRY_TYPE_INT8, 0, rk->comm, rk->stream));
		/* What comes back is all of them: to the beginning, not where the own one still lies. */
		TRY(gantry_recv(rk->box, all, GANTRY_TYPE_INT8, 0, rk->comm, rk->stream));
	}
	TRY(sr_finish(rk));
out:
	return r;
}

static gantry_result share_far(struct sr_rank *rk)
{
	gantry_result r = GANTRY_OK;
	const size_t one = sizeof(struct sr_sample);

	TRY(gantry_mem_copy(rk->dev, rk->box + one * (size_t)rk->rank, sample_at(rk, rk->rank), one));
	TRY(exchange(rk));
	for (int i = 0; i < rk->nranks; i++)
		if (i != rk->rank)
			TRY(gantry_mem_copy(rk->dev, sample_at(rk, i), rk->box + one * (size_t)i, one));
out:
	return r;
}

gantry_result sr_share(struct sr_rank *rk, const struct sr_sample *mine)
{
	rk->syncs++;
	memcpy(sample_at(rk, rk->rank), mine, sizeof(*mine));
	if (rk->box)
		return share_far(rk);
	meet(rk);
	return GANTRY_OK;
}

gantry_result sr_sync(struct sr_rank *rk)
{
	const struct sr_sample nothing = {.ns = 0};

	if (rk->box)
		return sr_share(rk, &nothing);
	meet(rk);
	return GANTRY_OK;
}
