/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC with devmem that is not there: answers in the kernel's place (net/devmem/sys.h), as the drivers of
 * docs/devmem.md do, and keeps an account of what it was told.
 */
#ifndef GANTRY_TESTS_DEVMEM_FAKE_H
#define GANTRY_TESTS_DEVMEM_FAKE_H

#include <sys/stat.h>

#include "net/devmem/sys.h"
#include "test.h"

enum { FAKE_QUEUES = 8, FAKE_RSS = 16, FAKE_RULES = 64 };

/* The state of the NIC: one, whoever asks. */
struct fake_nic {
	char driver[32];
	/* What the kernel is. */
	int dontneed, family, sendmsg; /* errno */
	uint64_t commands;
	/* The NIC. */
	int rings_error, channels_error, feature_error, rss_error, queues_error; /* errno of asking */
	struct devmem_rings rings;
	uint32_t queues;
	int ntuple, ntuple_fixed, ntuple_unknown, ntuple_stuck, gro_hw;
	struct devmem_rss rss;
	int rss_user; /* the table was set by a user */
	struct devmem_queue queue[FAKE_QUEUES];
	struct {
		int used, narrow;
		struct devmem_tuple tuple;
		uint32_t queue;
	} rules[FAKE_RULES];
	/* How it refuses. */
	ino_t tx_inode; /* of the dma-buf that was bound last for sending */
	int bind_error, bind_tx_error, rings_set_error, rule_error, rule_del_error, refuse_narrow, refuse_off,
		need_gro_hw;
	const char *said;
	/* What happened. */
	uint32_t next_id;
	int bound, changes;
};

struct fake_sys {
	struct devmem_sys base; /* first */
	struct fake_nic *nic;
	uint32_t id; /* bound through this */
};

static inline struct fake_nic *fake_of(struct devmem_sys *s)
{
	return ((struct fake_sys *)(void *)s)->nic;
}

static inline int fake_answer(struct devmem_sys *s, int e)
{
	snprintf(s->said, sizeof(s->said), "%s", e && fake_of(s)->said ? fake_of(s)->said : "");
	return e;
}

static inline int fake_dontneed(struct devmem_sys *s)
{
	return fake_answer(s, fake_of(s)->dontneed);
}

static inline int fake_family(struct devmem_sys *s, uint64_t *ret_commands)
{
	*ret_commands = fake_of(s)->commands;
	return fake_answer(s, fake_of(s)->family);
}

static inline int fake_sendmsg(struct devmem_sys *s)
{
	return fake_answer(s, fake_of(s)->sendmsg);
}

static inline int fake_driver(struct devmem_sys *s, const char *nic, char *ret_name, size_t len)
{
	snprintf(ret_name, len, "%s", fake_of(s)->driver);
	return 0;
}

static inline int fake_rings_get(struct devmem_sys *s, const char *nic, struct devmem_rings *ret_rings)
{
	*ret_rings = fake_of(s)->rings;
	return fake_answer(s, fake_of(s)->rings_error);
}

static inline int fake_rings_set(struct devmem_sys *s, const char *nic, const struct devmem_rings *rings)
{
	struct fake_nic *f = fake_of(s);

	f->changes++;
	if (f->rings_set_error)
		return fake_answer(s, f->rings_set_error);
	if (f->bound) /* the kernel's rule */
		return fake_answer(s, EINVAL);
	if (rings->has_split && rings->split == DEVMEM_SPLIT_ON && f->need_gro_hw && !f->gro_hw)
		return fake_answer(s, EINVAL);
	if (rings->has_split && rings->split == DEVMEM_SPLIT_OFF && f->refuse_off)
		return fake_answer(s, EINVAL);
	if (rings->has_hds && !f->rings.has_hds)
		return fake_answer(s, EINVAL); /* an old kernel does not know the attribute */
	if (rings->has_split)
		f->rings.split = rings->split;
	if (rings->has_hds)
		f->rings.hds = rings->hds;
	return fake_answer(s, 0);
}

static inline int fake_channels(struct devmem_sys *s, const char *nic, uint32_t *ret_rx_queues)
{
	*ret_rx_queues = fake_of(s)->queues;
	return fake_answer(s, fake_of(s)->channels_error);
}

static inline int fake_queues(struct devmem_sys *s, const char *nic, struct devmem_queues *ret_queues)
{
	struct fake_nic *f = fake_of(s);

	ret_queues->n = f->queues;
	for (uint32_t i = 0; i < f->queues; i++)
		ret_queues->q[f->queues - 1 - i] = f->queue[i]; /* in no helpful order */
	return fake_answer(s, f->queues_error);
}

static inline int fake_feature_get(struct devmem_sys *s, const char *nic, struct devmem_feature *feature)
{
	struct fake_nic *f = fake_of(s);
	int ntuple = strcmp(feature->name, "rx-ntuple-filter") == 0;

	CHECK(ntuple || strcmp(feature->name, "rx-gro-hw") == 0);
	feature->known = !(ntuple && f->ntuple_unknown);
	feature->on = ntuple ? f->ntuple : f->gro_hw;
	feature->fixed = ntuple && f->ntuple_fixed;
	return fake_answer(s, f->feature_error);
}

static inline int fake_feature_set(struct devmem_sys *s, const char *nic, const struct devmem_feature *wanted)
{
	struct fake_nic *f = fake_of(s);

	f->changes++;
	if (strcmp(wanted->name, "rx-ntuple-filter") == 0) {
		if (!f->ntuple_stuck)
			f->ntuple = wanted->on;
	} else {
		CHECK(wanted->on || f->rings.split != DEVMEM_SPLIT_ON); /* header split goes first */
		f->gro_hw = wanted->on;
	}
	return fake_answer(s, 0);
}

static inline int fake_rss_get(struct devmem_sys *s, const char *nic, struct devmem_rss *ret_rss)
{
	*ret_rss = fake_of(s)->rss;
	return fake_answer(s, fake_of(s)->rss_error);
}

static inline void fake_rss_default(struct fake_nic *f)
{
	f->rss.n = FAKE_RSS;
	for (uint32_t i = 0; i < FAKE_RSS; i++)
		f->rss.queue[i] = i % f->queues;
	f->rss_user = 0;
}

static inline int fake_rss_set(struct devmem_sys *s, const char *nic, const struct devmem_rss *rss)
{
	struct fake_nic *f = fake_of(s);

	f->changes++;
	if (rss) {
		CHECK_EQ(rss->n, FAKE_RSS);
		f->rss = *rss;
		f->rss_user = 1;
	} else {
		fake_rss_default(f);
	}
	return fake_answer(s, 0);
}

static inline int fake_rule_add(struct devmem_sys *s, const char *nic, const struct devmem_rule *rule,
				uint32_t *ret_location)
{
	struct fake_nic *f = fake_of(s);

	f->changes++;
	if (f->rule_error || (rule->narrow && f->refuse_narrow))
		return fake_answer(s, f->rule_error ? f->rule_error : EINVAL);
	for (uint32_t i = 0; i < FAKE_RULES; i++)
		if (!f->rules[i].used) {
			f->rules[i].used = 1;
			f->rules[i].narrow = rule->narrow;
			f->rules[i].tuple = rule->tuple;
			f->rules[i].queue = rule->queue;
			*ret_location = i;
			return fake_answer(s, 0);
		}
	return fake_answer(s, ENOSPC);
}

static inline int fake_rule_del(struct devmem_sys *s, const char *nic, uint32_t location)
{
	struct fake_nic *f = fake_of(s);

	f->changes++;
	if (f->rule_del_error)
		return fake_answer(s, f->rule_del_error);
	if (location >= FAKE_RULES || !f->rules[location].used)
		return fake_answer(s, ENOENT);
	f->rules[location].used = 0;
	return fake_answer(s, 0);
}

static inline int fake_rules(const struct fake_nic *f)
{
	int n = 0;

	for (int i = 0; i < FAKE_RULES; i++)
		n += f->rules[i].used;
	return n;
}

static inline int fake_bind_rx(struct devmem_sys *s, const char *nic, const struct devmem_bind *bind, uint32_t *ret_id)
{
	struct fake_nic *f = fake_of(s);
	const uint32_t *queues = bind->queues, n = bind->nqueues;

	if (f->bind_error)
		return fake_answer(s, f->bind_error);
	if (f->rings.split != DEVMEM_SPLIT_ON || (f->rings.has_hds && f->rings.hds))
		return fake_answer(s, EINVAL);
	if (bind->fd == 0x7fffffff)
		return fake_answer(s, EBADF);
	for (uint32_t i = 0; i < n; i++) {
		CHECK(queues[i] < f->queues);
		if (f->queue[queues[i]].dmabuf)
			return fake_answer(s, EEXIST);
		for (uint32_t k = 0; k < f->rss.n; k++)
			CHECK(f->rss.queue[k] != queues[i]); /* RSS went first */
	}
	((struct fake_sys *)(void *)s)->id = *ret_id = ++f->next_id;
	for (uint32_t i = 0; i < n; i++)
		f->queue[queues[i]].dmabuf = f->next_id;
	f->bound += (int)n;
	return fake_answer(s, 0);
}

static inline int fake_bind_tx(struct devmem_sys *s, const char *nic, int fd, uint32_t *ret_id)
{
	struct stat st = {0}; /* none of it: a question, without a file */

	fstat(fd, &st);
	fake_of(s)->tx_inode = st.st_ino;
	*ret_id = 1;
	return fake_answer(s, fake_of(s)->bind_tx_error);
}

static inline void fake_unbind(struct devmem_sys *s)
{
	struct fake_nic *f = fake_of(s);
	struct fake_sys *mine = (struct fake_sys *)(void *)s;

	for (int i = 0; i < FAKE_QUEUES; i++)
		if (mine->id && f->queue[i].dmabuf == mine->id) {
			f->queue[i].dmabuf = 0;
			f->bound--;
		}
	mine->id = 0;
}

static const struct devmem_sys_ops fake_ops = {
	.dontneed = fake_dontneed,
	.family = fake_family,
	.sendmsg = fake_sendmsg,
	.driver = fake_driver,
	.rings_get = fake_rings_get,
	.rings_set = fake_rings_set,
	.channels = fake_channels,
	.queues = fake_queues,
	.feature_get = fake_feature_get,
	.feature_set = fake_feature_set,
	.rss_get = fake_rss_get,
	.rss_set = fake_rss_set,
	.rule_add = fake_rule_add,
	.rule_del = fake_rule_del,
	.bind_rx = fake_bind_rx,
	.bind_tx = fake_bind_tx,
	.unbind = fake_unbind,
};

/* A NIC that can, as it comes out of the box: everything off. */
static inline void fake_nic_init(struct fake_nic *f)
{
	memset(f, 0, sizeof(*f));
	snprintf(f->driver, sizeof(f->driver), "fake");
	f->sendmsg = EINVAL;
	f->commands = 1ull << NETDEV_QUEUE_GET | 1ull << NETDEV_BIND_RX | 1ull << NETDEV_BIND_TX;
	f->rings = (struct devmem_rings){.has_split = 1, .split = DEVMEM_SPLIT_OFF, .has_hds = 1, .hds = 256};
	f->queues = FAKE_QUEUES;
	for (uint32_t i = 0; i < FAKE_QUEUES; i++)
		f->queue[i] = (struct devmem_queue){.id = i, .napi = 100 + i};
	f->bind_tx_error = EBADF;
	fake_rss_default(f);
}

static inline void fake_sys_init(struct fake_sys *s, struct fake_nic *nic)
{
	memset(s, 0, sizeof(*s));
	devmem_sys_init(&s->base);
	s->base.ops = &fake_ops;
	s->nic = nic;
}

static inline struct devmem_sys *fake_sys_new(struct fake_nic *nic)
{
	struct fake_sys *s = malloc(sizeof(*s));

	fake_sys_init(s, nic);
	return &s->base;
}

#endif
