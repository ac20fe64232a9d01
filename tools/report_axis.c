/* Logarithmic axes. */
#include <math.h>

#include "report.h"

/* Beyond these there is no figure of a measurement, and arithmetic has its limits. */
#define VALUE_MIN 1e-9
#define VALUE_MAX 1e12
#define ALMOST 1e-9 /* ticks that rounding has put beside an end are at it */

int report_drawable(double v)
{
	return v >= VALUE_MIN && v <= VALUE_MAX;
}

double report_axis_at(const struct report_axis *axis, double value)
{
	return log(value / axis->lo) / log(axis->hi / axis->lo);
}

/* Powers of two that get a label, from dense to sparse: 1, 2, 4, 8 ...; 1, 4, 16, 64 ...; 64 B, 1 KiB, 64 KiB, 1 MiB
 * ...; 1 KiB, 1 MiB ...; 1 B, 1 MiB ... */
static int has_tick(int level, int exponent)
{
	switch (level) {
	case 0:
		return 1;
	case 1:
		return exponent % 2 == 0;
	case 2:
		return exponent % 10 == 0 || exponent % 10 == 6;
	case 3:
		return exponent % 10 == 0;
	default:
		return exponent % 20 == 0;
	}
}

static void add_size(struct report_axis *axis, double at)
{
	struct report_tick *t = &axis->ticks[axis->nticks++];

	t->at = at;
	report_size_name(at, 0, t->label);
}

void report_size_axis(double lo, double hi, struct report_axis *ret)
{
	int first = (int)ceil(log2(lo) - ALMOST), last = (int)floor(log2(hi) + ALMOST), level = 0, n;

	*ret = (struct report_axis){.lo = lo, .hi = hi};
	if (hi <= lo) {
		add_size(ret, lo);
		ret->lo = lo / 2;
		ret->hi = lo * 2;
		return;
	}
	for (;; level++) {
		n = 0;
		for (int e = first; e <= last; e++)
			n += has_tick(level, e);
		if (n <= REPORT_SIZE_TICKS_MAX)
			break;
	}
	for (int e = first; e <= last; e++)
		if (has_tick(level, e))
			add_size(ret, ldexp(1, e));
	if (ret->nticks < 2) { /* sizes close to each other: themselves */
		ret->nticks = 0;
		add_size(ret, lo);
		add_size(ret, hi);
	}
}

static const double coarse[] = {1}, middle[] = {1, 2, 5}, fine[] = {1, 1.5, 2, 3, 4, 5, 6, 8};
static const struct {
	const double *steps;
	size_t n;
} densities[] = {{fine, 8}, {middle, 3}, {coarse, 1}};

static void add_value(struct report_axis *axis, double at, enum report_kind kind)
{
	struct report_tick *t = &axis->ticks[axis->nticks++];

	t->at = at;
	/* Times have units of their own, from ns to s; others have it beside the axis. */
	if (kind == REPORT_PLOT_LATENCY || kind == REPORT_PLOT_RATIO || kind == REPORT_PLOT_COMPARE)
		report_value(at, kind, t->label);
	else
		snprintf(t->label, sizeof(t->label), "%.6g", at);
}

/* Counts ticks of a density in every `decades`-th decade, and adds them if `add`. */
static size_t walk(struct report_axis *axis, size_t density, int decades, enum report_kind kind, int add)
{
	int first = (int)floor(log10(axis->lo)), last = (int)ceil(log10(axis->hi));
	size_t n = 0;

	for (int e = first; e <= last; e++) {
		for (size_t i = 0; i < densities[density].n; i++) {
			double v = densities[density].steps[i] * pow(10, e);

			if (e % decades || v < axis->lo * (1 - ALMOST) || v > axis->hi * (1 + ALMOST))
				continue;
			n++;
			if (add)
				add_value(axis, v, kind);
		}
	}
	return n;
}

/* The next 1, 2 or 5 times a power of ten: at or below v, or at or above it. */
static double snap(double v, int up)
{
	int e = (int)floor(log10(v));
	double best = up ? 10 * pow(10, e + 1) : pow(10, e - 1);

	for (int k = e - 1; k <= e + 1; k++) {
		for (size_t i = 0; i < 3; i++) {
			double s = middle[i] * pow(10, k);

			if (up && s >= v * (1 - ALMOST) && s < best)
				best = s;
			if (!up && s <= v * (1 + ALMOST) && s > best)
				best = s;
		}
	}
	return best;
}

void report_value_axis(double lo, double hi, enum report_kind kind, struct report_axis *ret)
{
	size_t density = 0;
	int decades = 1;

	*ret = (struct report_axis){.lo = snap(lo, 0), .hi = snap(hi, 1)};
	if (ret->hi < ret->lo * 2 * (1 - ALMOST)) {
		ret->lo = snap(ret->lo * 0.9, 0);
		ret->hi = snap(ret->hi * 1.1, 1);
	}
	while (walk(ret, density, decades, kind, 0) > REPORT_TICKS_MAX) {
		if (density + 1 < sizeof(densities) / sizeof(densities[0]))
			density++;
		else
			decades++;
	}
	walk(ret, density, decades, kind, 1);
	/* 2 and 5 show that the axis is logarithmic. */
	for (size_t i = 0; densities[density].n == 1 && decades == 1 && i < ret->nticks; i++) {
		const double at[] = {ret->ticks[i].at / 5, ret->ticks[i].at / 2, ret->ticks[i].at * 2,
				     ret->ticks[i].at * 5};

		/* Those below a tick belong to the one before it, if there is one. */
		for (size_t k = i ? 2 : 0; k < 4; k++)
			if (at[k] > ret->lo && at[k] < ret->hi)
				ret->minor[ret->nminor++] = at[k];
	}
}
