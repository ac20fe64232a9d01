/* Arithmetic of `gantry perf sendrecv`: bandwidths, and names for what the counters say. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gantry/fifo.h"
#include "perf_sendrecv.h"

/*
 * As nccl-tests: algbw is the size of an operation by its time, busbw what has to pass through the link of a rank. For
 * all pairs an operation moves nranks messages from each rank, one of which stays at home.
 */
void sr_bandwidth(enum sr_pattern pattern, int nranks, uint64_t bytes, double us, double *ret_alg, double *ret_bus)
{
	double gbs = us > 0 ? (double)bytes / us / 1e3 : 0;

	*ret_alg = pattern == SR_ALLTOALL ? gbs * nranks : gbs;
	*ret_bus = pattern == SR_ALLTOALL ? gbs * (nranks - 1) : gbs;
}

void sr_bandwidths(enum sr_pattern pattern, int nranks, uint64_t bytes, struct perf_spread us,
		   struct perf_spread *ret_alg, struct perf_spread *ret_bus)
{
	sr_bandwidth(pattern, nranks, bytes, us.max, &ret_alg->min, &ret_bus->min);
	sr_bandwidth(pattern, nranks, bytes, us.median, &ret_alg->median, &ret_bus->median);
	sr_bandwidth(pattern, nranks, bytes, us.min, &ret_alg->max, &ret_bus->max);
}

void sr_join(char *list, size_t len, const char *name)
{
	size_t n = strlen(name);

	if (!n)
		return;
	for (const char *p = list; *p; p += strcspn(p, "+"), p += *p == '+')
		if (strcspn(p, "+") == n && strncmp(p, name, n) == 0)
			return;
	snprintf(list + strlen(list), len - strlen(list), "%s%s", list[0] ? "+" : "", name);
}

void sr_mode_name(const struct gantry_comm_counters *c, char *buf, size_t len)
{
	/* The ones with fewer copies first. */
	static const enum gantry_mode order[] = {GANTRY_MODE_PTR, GANTRY_MODE_OFFSET, GANTRY_MODE_NORMAL};
	static const char *const names[] = {
		[GANTRY_MODE_NORMAL] = "normal", [GANTRY_MODE_OFFSET] = "offset", [GANTRY_MODE_PTR] = "ptr"};

	buf[0] = 0;
	for (int i = 0; i < GANTRY_MODES; i++)
		for (int p = 0; p < GANTRY_PROTOS; p++)
			if (c->steps[p][order[i]])
				sr_join(buf, len, names[order[i]]);
	sr_join(buf, len, buf[0] ? "" : "none");
}

void sr_proto_name(const struct gantry_comm_counters *c, char *buf, size_t len)
{
	static const char *const names[] = {
		[GANTRY_PROTO_SIMPLE] = "simple", [GANTRY_PROTO_LL] = "ll", [GANTRY_PROTO_LL128] = "ll128"};

	buf[0] = 0;
	for (int p = 0; p < GANTRY_PROTOS; p++)
		for (int m = 0; m < GANTRY_MODES; m++)
			if (c->steps[p][m])
				sr_join(buf, len, names[p]);
	sr_join(buf, len, buf[0] ? "" : "none");
}

enum { WORDS = sizeof(struct gantry_comm_counters) / sizeof(uint64_t) };
_Static_assert(sizeof(struct gantry_comm_counters) % sizeof(uint64_t) == 0, "counters are words and nothing else");

static void change(struct gantry_comm_counters *c, const struct gantry_comm_counters *d, int sign)
{
	uint64_t a[WORDS], b[WORDS];

	memcpy(a, c, sizeof(a));
	memcpy(b, d, sizeof(b));
	for (size_t i = 0; i < WORDS; i++)
		a[i] += sign > 0 ? b[i] : -b[i];
	memcpy(c, a, sizeof(a));
}

void sr_counters_add(struct gantry_comm_counters *c, const struct gantry_comm_counters *d)
{
	change(c, d, 1);
}

void sr_counters_sub(struct gantry_comm_counters *c, const struct gantry_comm_counters *d)
{
	change(c, d, -1);
}

double sr_copies(uint64_t copied, uint64_t bytes)
{
	return bytes ? (double)copied / (double)bytes : NAN;
}
