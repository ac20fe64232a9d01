/* SPDX-License-Identifier: Apache-2.0 */
/* Changing a NIC, and putting it back. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/setup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "net/devmem/errors.h"
#include "net/devmem/ethtool.h"

/* Features that a driver wants on before it splits headers. */
static const struct {
	const char *driver, *feature;
} quirks[] = {
	{"mlx5_core", "rx-gro-hw"},
};

gantry_result devmem_setup_choose(struct devmem_sys *s, const char *nic, uint32_t n, uint32_t *ret_queues,
				  uint32_t *ret_lowest)
{
	gantry_result r = GANTRY_OK;
	struct devmem_queues *all = calloc(1, sizeof(*all));
	uint32_t found = 0, lowest = UINT32_MAX, count = 0;
	char text[128];
	int e;

	if (!all)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a list of queues");
	e = s->ops->queues(s, nic, all);
	if (e)
		FAIL(GANTRY_ERR_SYSTEM, "queues of %s: %s%s%s", nic, devmem_strerror(e, text, sizeof(text)),
		     *s->said ? ": " : "", s->said);
	/* Highest first, whatever order the kernel lists them in. */
	for (uint32_t i = 0; i < all->n; i++)
		count = all->q[i].id >= count ? all->q[i].id + 1 : count;
	for (uint32_t id = count; id-- > 1 && found < n;)
		for (uint32_t i = 0; i < all->n; i++)
			if (all->q[i].id == id && !all->q[i].dmabuf && !all->q[i].taken)
				ret_queues[found++] = id;
	if (found < n)
		FAIL(GANTRY_ERR_LIMIT,
		     "%s: %u of its %u receive queues can be taken, GANTRY_DEVMEM_QUEUES is %u (queue 0 is left to "
		     "others; "
		     "ethtool -L %s combined N for more)",
		     nic, found, all->n, n, nic);
	for (uint32_t i = 0; i < found; i++)
		lowest = ret_queues[i] < lowest ? ret_queues[i] : lowest;
	for (uint32_t i = 0; i < all->n; i++)
		if (all->q[i].dmabuf && all->q[i].id < lowest)
			lowest = all->q[i].id;
	if (lowest == 0)
		FAIL(GANTRY_ERR_LIMIT, "%s: queue 0 is bound to device memory: nothing is left for other traffic", nic);
	*ret_lowest = lowest;
out:
	free(all);
	return r;
}

static struct devmem_feature *find_feature(struct devmem_before *before, const char *name)
{
	for (uint32_t i = 0; i < before->nfeatures; i++)
		if (strcmp(before->features[i].name, name) == 0)
			return &before->features[i];
	return NULL;
}

/* Writes down before it changes: a crash in between costs an undo of nothing. */
static gantry_result remember(const struct devmem_journal *j, const struct devmem_before *before)
{
	gantry_result r = GANTRY_OK;
	int e = devmem_journal_save(j, before);

	if (e)
		FAIL(GANTRY_ERR_SYSTEM, "devmem: %s.before: %s (nothing is changed that could not be put back)",
		     j->base, strerror(e));
out:
	return r;
}

static gantry_result feature_on(struct devmem_sys *s, const struct devmem_journal *j, const char *nic, const char *name,
				struct devmem_before *before)
{
	gantry_result r = GANTRY_OK;
	struct devmem_feature f = {0};
	char text[128];
	int e;

	snprintf(f.name, sizeof(f.name), "%s", name);
	e = s->ops->feature_get(s, nic, &f);
	if (e)
		FAIL(GANTRY_ERR_SYSTEM, "features of %s: %s", nic, devmem_strerror(e, text, sizeof(text)));
	if (f.on)
		goto out;
	if (!f.known || f.fixed)
		FAIL(GANTRY_ERR_UNSUPPORTED, "%s: the driver does not have %s", nic, name);
	if (!find_feature(before, name) && before->nfeatures < DEVMEM_FEATURES_MAX)
		before->features[before->nfeatures++] = f;
	TRY(remember(j, before));
	e = s->ops->feature_set(s, nic, name, 1);
	if (!e)
		e = s->ops->feature_get(s, nic, &f);
	/* The kernel acknowledges what a driver then does not do. */
	if (e || !f.on)
		FAIL(GANTRY_ERR_UNSUPPORTED, "%s: %s cannot be turned on: %s%s%s", nic, name,
		     e ? devmem_strerror(e, text, sizeof(text)) : "the driver leaves it off", *s->said ? ": " : "",
		     s->said);
out:
	return r;
}

static gantry_result split_on(struct devmem_sys *s, const struct devmem_journal *j, const char *nic,
			      struct devmem_before *before)
{
	gantry_result r = GANTRY_OK;
	struct devmem_rings now, want = {0};
	char text[320];
	int e = s->ops->rings_get(s, nic, &now);

	if (e || !now.has_split)
		FAIL(GANTRY_ERR_UNSUPPORTED, "%s: %s", nic,
		     devmem_error_text(DEVMEM_CALL_RINGS, e ? e : EOPNOTSUPP, s->said, text, sizeof(text)));
	want.has_split = now.split != DEVMEM_SPLIT_ON;
	want.split = DEVMEM_SPLIT_ON;
	want.has_hds = now.has_hds && now.hds != 0; /* a kernel that does not report it does not know it */
	if (!want.has_split && !want.has_hds)
		goto out;
	if (!before->has_rings) {
		before->has_rings = 1;
		before->rings = (struct devmem_rings){
			.has_split = want.has_split, .split = now.split, .has_hds = want.has_hds, .hds = now.hds};
	}
	TRY(remember(j, before));
	e = s->ops->rings_set(s, nic, &want);
	if (e)
		FAIL(devmem_error_of(DEVMEM_CALL_RINGS, e)->result, "%s: %s", nic,
		     devmem_error_text(DEVMEM_CALL_RINGS, e, s->said, text, sizeof(text)));
out:
	return r;
}

static int rss_reaches(const struct devmem_rss *rss, uint32_t lowest)
{
	for (uint32_t i = 0; i < rss->n; i++)
		if (rss->queue[i] >= lowest)
			return 1;
	return 0;
}

/* The driver's own table: over all queues in turn. Putting that back as a table would tie it to their number. */
static int rss_is_default(const struct devmem_rss *rss)
{
	uint32_t queues = 0;

	for (uint32_t i = 0; i < rss->n; i++)
		queues = rss->queue[i] >= queues ? rss->queue[i] + 1 : queues;
	for (uint32_t i = 0; i < rss->n; i++)
		if (rss->queue[i] != i % queues)
			return 0;
	return 1;
}

static gantry_result rss_away(struct devmem_sys *s, const struct devmem_journal *j, const char *nic, uint32_t lowest,
			      struct devmem_before *before)
{
	gantry_result r = GANTRY_OK;
	struct devmem_rss *rss = calloc(1, sizeof(*rss));
	char text[128];
	int e;

	if (!rss)
		FAIL(GANTRY_ERR_NOMEM, "no memory for an RSS table");
	e = s->ops->rss_get(s, nic, rss);
	if (e && e != EOPNOTSUPP)
		FAIL(GANTRY_ERR_SYSTEM, "RSS table of %s: %s", nic, devmem_strerror(e, text, sizeof(text)));
	if (e || !rss->n) {
		LOG_WARN(NET, "devmem: %s has no RSS table: other traffic may reach the bound queue and be lost", nic);
		goto out;
	}
	if (!rss_reaches(rss, lowest))
		goto out;
	if (!before->has_rss) {
		before->has_rss = 1;
		before->rss_default = rss_is_default(rss);
		before->rss = *rss;
	}
	TRY(remember(j, before));
	devmem_rss_equal(rss->n, lowest, rss);
	e = s->ops->rss_set(s, nic, rss);
	if (e)
		FAIL(e == EPERM ? GANTRY_ERR_CONFIG : GANTRY_ERR_SYSTEM, "RSS of %s over queues 0 to %u: %s", nic,
		     lowest - 1, devmem_strerror(e, text, sizeof(text)));
out:
	free(rss);
	return r;
}

gantry_result devmem_setup_apply(struct devmem_sys *s, const struct devmem_journal *j, const char *nic, uint32_t lowest,
				 struct devmem_before *before)
{
	gantry_result r = GANTRY_OK;
	char driver[32] = "";

	s->ops->driver(s, nic, driver, sizeof(driver));
	TRY(feature_on(s, j, nic, "rx-ntuple-filter", before));
	for (size_t i = 0; i < sizeof(quirks) / sizeof(quirks[0]); i++)
		if (strcmp(driver, quirks[i].driver) == 0)
			TRY(feature_on(s, j, nic, quirks[i].feature, before));
	TRY(split_on(s, j, nic, before));
	TRY(rss_away(s, j, nic, lowest, before));
out:
	return r;
}

void devmem_setup_verify(struct devmem_sys *s, const char *nic, uint32_t lowest)
{
	struct devmem_rss *rss = calloc(1, sizeof(*rss));

	if (rss && s->ops->rss_get(s, nic, rss) == 0 && rss_reaches(rss, lowest))
		LOG_WARN(NET,
			 "devmem: RSS of %s reaches queue %u, which is bound: other traffic there is lost "
			 "(ethtool -X %s equal %u)",
			 nic, lowest, nic, lowest);
	free(rss);
}

static int undo_rings(struct devmem_sys *s, const char *nic, const struct devmem_rings *rings)
{
	struct devmem_rings back = *rings;
	int e = s->ops->rings_set(s, nic, &back);

	/* bnxt refuses "off", also when that is what it had reported: auto is what it was. */
	if (e && back.has_split && back.split == DEVMEM_SPLIT_OFF) {
		back.split = DEVMEM_SPLIT_AUTO;
		e = s->ops->rings_set(s, nic, &back);
	}
	return e;
}

static int undone(int e, const char *nic, const char *what)
{
	char text[128];

	if (e)
		LOG_WARN(NET, "devmem: %s of %s could not be put back: %s", what, nic,
			 devmem_strerror(e, text, sizeof(text)));
	else
		LOG_INFO(NET, "devmem: %s of %s is as before", what, nic);
	return e != 0;
}

int devmem_setup_undo(struct devmem_sys *s, const char *nic, const struct devmem_before *before)
{
	int failed = 0;

	if (before->has_rss)
		failed += undone(s->ops->rss_set(s, nic, before->rss_default ? NULL : &before->rss), nic, "RSS");
	if (before->has_rings)
		failed += undone(undo_rings(s, nic, &before->rings), nic, "header split");
	for (uint32_t i = before->nfeatures; i-- > 0;) {
		const struct devmem_feature *f = &before->features[i];

		failed += undone(s->ops->feature_set(s, nic, f->name, f->on), nic, f->name);
	}
	return failed;
}

int devmem_rule_remove(struct devmem_sys *s, const char *nic, uint32_t location)
{
	char text[128];
	int e = s->ops->rule_del(s, nic, location);

	if (!e || e == ENOENT || e == ENODEV)
		return 0;
	LOG_WARN(NET, "devmem: flow rule %u of %s could not be removed: %s", location, nic,
		 devmem_strerror(e, text, sizeof(text)));
	return e;
}

struct stale {
	struct devmem_sys *s;
	const char *nic;
	int rules, left;
};

static int drop_rule(void *arg, uint32_t location)
{
	struct stale *st = arg;
	int e = devmem_rule_remove(st->s, st->nic, location);

	if (e)
		st->left++;
	else
		st->rules++;
	return e;
}

/* "1 dead binding: 2 flow rules removed; ..." */
static void say_stale(const struct stale *st, int dead, const char *rest, char *text, size_t len)
{
	char left[48] = "";

	if (st->left)
		snprintf(left, sizeof(left), ", %d could not be", st->left);
	snprintf(text, len, "%d dead binding%s: %d flow rule%s removed%s%s", dead, dead == 1 ? "" : "s", st->rules,
		 st->rules == 1 ? "" : "s", left, rest);
}

int devmem_undo_stale(struct devmem_sys *s, const char *nic, char *text, size_t len)
{
	struct stale st = {.s = s, .nic = nic};
	struct devmem_before *before = NULL;
	struct devmem_journal j;
	int dead = 0, live, lock, failed = 0, had = 0;

	if (len)
		text[0] = 0;
	if (devmem_journal_init(&j, nic))
		return 0;
	lock = devmem_journal_lock(&j);
	if (lock < 0)
		return 0;
	live = devmem_journal_others(&j, drop_rule, &st, &dead);
	before = calloc(1, sizeof(*before));
	if (!live && before && devmem_journal_load(&j, before)) {
		had = 1;
		failed = devmem_setup_undo(s, nic, before);
		if (!failed)
			devmem_journal_forget(&j);
	}
	if (dead || had)
		say_stale(&st, dead,
			  live	   ? "; others still use the NIC, so the rest stays"
			  : failed ? "; not everything could be put back"
			  : had	   ? "; header split, RSS and features are as before"
				   : "",
			  text, len);
	free(before);
	close(lock);
	return failed || st.left ? -1 : dead + (had && !dead);
}
