/* Which bytes belong to which buffer, and what the sender is told about it. All of it runs under the link's mu. */
#include <stdlib.h>
#include <string.h>

#include "base/event.h"
#include "net/tcp/link.h"

struct tcp_slot *tcp_match_slot(struct tcp_link *l, uint32_t tag, uint32_t index, struct tcp_recv **ret_recv)
{
	gantry_list_each (pos, &l->posted) {
		struct tcp_recv *recv = gantry_container(pos, struct tcp_recv, head.node);

		for (int i = 0; i < recv->n; i++) {
			if (recv->slots[i].index == index && recv->slots[i].tag == tag) {
				*ret_recv = recv;
				return &recv->slots[i];
			}
		}
	}
	return NULL;
}

void tcp_match_complete(struct tcp_link *l, struct tcp_recv *recv, struct tcp_slot *slot)
{
	slot->complete = 1;
	if (++recv->ncomplete < recv->n)
		return;
	gantry_list_remove(&recv->head.node);
	tcp_count_posted(l, recv, -1);
	if (recv->large)
		gantry_event_put(GANTRY_EV_RECV_DONE, l->id, slot->index, slot->total);
	tcp_request_done(&recv->head);
}

/* Bulk messages may complete out of order; `done` counts those before the first incomplete one. */
void tcp_match_bulk_done(struct tcp_link *l, uint64_t seq)
{
	l->done_bits[seq % LINK_DONE_BITS / 64] |= 1ull << (seq % 64);
	for (;;) {
		uint64_t *word = &l->done_bits[l->done % LINK_DONE_BITS / 64];
		uint64_t bit = 1ull << (l->done % 64);

		if (!(*word & bit))
			break;
		*word &= ~bit;
		l->done++;
	}
}

void tcp_match_early(struct tcp_link *l, struct tcp_recv *recv, struct tcp_slot *slot)
{
	gantry_list_each (pos, &l->early) {
		struct tcp_early *e = gantry_container(pos, struct tcp_early, node);

		if (e->tag != slot->tag || e->index != slot->index)
			continue;
		if (e->total > slot->size) {
			l->error_sent_bytes = e->total;
			l->error_recv_bytes = slot->size;
			tcp_link_fail_locked(l, 1, GANTRY_ERR_SIZE,
					     "a send of %llu bytes met a receive of %llu bytes (tag %u)",
					     (unsigned long long)e->total, (unsigned long long)slot->size, slot->tag);
			return;
		}
		if (!e->complete) /* still arriving: whoever reads its last byte completes the slot */
			return;
		if (e->total)
			memcpy(slot->data, e->data, e->total);
		slot->total = slot->begun = slot->got = e->total;
		slot->started = 1;
		l->early_bytes -= e->total + WIRE_FRAME_SIZE;
		l->consumed += e->total + WIRE_FRAME_SIZE;
		gantry_list_remove(&e->node);
		free(e);
		tcp_match_complete(l, recv, slot);
		return;
	}
}

/*
 * Is there something about this tag that the sender should hear now? Receives are advertised when it waits for one, or,
 * while bulk messages come, when a quarter of those outstanding are news to it: so a shallow window is known at once, a
 * deep one costs a frame for several messages, and streams of small messages into large buffers cost none.
 */
int tcp_state_due(const struct tcp_link *l, const struct tcp_tag *tag)
{
	uint32_t news = tag->posted - tag->advertised;

	if (!news)
		return 0;
	if ((int32_t)(tag->announced - tag->advertised) > 0)
		return 1;
	return l->large_posted && tag->bulk && 4 * news >= tag->posted - tag->arrived;
}
