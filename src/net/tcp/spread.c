/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tcp/spread.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "net/tcp/link.h"
#include "net/tcp/network.h"

static bool leaves_elsewhere(const struct tcp_lane *lane)
{
	const struct tcp_lane *control = &lane->link->lanes[0];
	const struct gantry_nic *nic = tcp_nic_of(&lane->local);

	return !gantry_addr_same_host(&control->local, &lane->local) && (!nic || nic != tcp_nic_of(&control->local)) &&
	       !tcp_passes_no_nic(&lane->peer);
}

void tcp_spread_survey(struct tcp_link *l)
{
	uint32_t elsewhere = 0;

	for (int i = 1; l->session.rails > 1 && i < l->nlanes; i++)
		elsewhere |= (uint32_t)leaves_elsewhere(&l->lanes[i]) << i;
	store_relaxed(&l->spread->elsewhere, elsewhere);
	if (!elsewhere)
		store_relaxed(&l->spread->full, 0);
}

/* Some lane of another NIC lives. */
static bool any_elsewhere(const struct tcp_link *l)
{
	uint32_t elsewhere = load_relaxed(&l->spread->elsewhere);

	for (int i = 1; elsewhere >> i; i++)
		if ((elsewhere >> i & 1) && !load_relaxed(&l->lanes[i].tx.dead))
			return true;
	return false;
}

bool tcp_spread_allows(const struct tcp_lane *lane, const struct tcp_send *s)
{
	return !s->spread || (load_relaxed(&lane->link->spread->elsewhere) >> lane->index & 1) ||
	       !any_elsewhere(lane->link);
}

/* Would the other NICs be through with what they hold, and what waits for them, before lane 0 is with what it holds? */
static bool are_sooner(const struct tcp_link *l, uint64_t queued, uint64_t rate)
{
	uint32_t elsewhere = load_relaxed(&l->spread->elsewhere);
	double bytes = (double)load_relaxed(&l->tx.bulk_bytes), rates = 0;

	for (int i = 1; elsewhere >> i; i++) {
		uint64_t its_queue, its_rate;

		if (!(elsewhere >> i & 1) || load_relaxed(&l->lanes[i].tx.dead))
			continue;
		if (!tcp_lane_weigh(&l->lanes[i], &its_queue, &its_rate))
			return false;
		if (!its_rate) /* one message to learn from */
			return !its_queue;
		bytes += (double)its_queue;
		rates += (double)its_rate;
	}
	return rates > 0 && (!rate || (double)queued / (double)rate > bytes / rates);
}

static bool is_full(const struct tcp_link *l, bool blocked)
{
	uint64_t queued, rate;

	return tcp_lane_weigh(&l->lanes[0], &queued, &rate) && (blocked || queued >= SPREAD_FULL) &&
	       are_sooner(l, queued, rate);
}

void tcp_spread_look(struct tcp_link *l)
{
	struct tcp_spread *s = l->spread;
	uint64_t given, now;
	bool blocked;

	if (!load_relaxed(&s->elsewhere))
		return;
	given = load_relaxed(&l->lanes[0].tx.bytes);
	blocked = load_relaxed(&s->blocked);
	now = gantry_ticks();
	if (blocked || load_relaxed(&s->full) ? now - load_relaxed(&s->looked) < SPREAD_PACES * l->session.pace_ticks
					      : given - load_relaxed(&s->given) < SPREAD_BYTES)
		return;
	store_relaxed(&s->blocked, 0);
	store_relaxed(&s->looked, now);
	store_relaxed(&s->given, given);
	store_relaxed(&s->full, is_full(l, blocked));
}

void tcp_spread_blocked(struct tcp_link *l)
{
	if (load_relaxed(&l->spread->elsewhere))
		store_relaxed(&l->spread->blocked, 1);
}

/* Messages of a hastened tag are to be there before their receive is. Descriptors would go by lane 0 after all. */
bool tcp_spread_takes(struct tcp_link *l, struct tcp_send *s, const struct tcp_tag *t)
{
	if (!load_relaxed(&l->spread->full) || s->size < SPREAD_LEAST || t->haste != TCP_HASTE_USUAL ||
	    l->session.device_tx || !any_elsewhere(l))
		return false;
	s->spread = true;
	store_relaxed(&l->spread->messages, l->spread->messages + 1);
	return true;
}
