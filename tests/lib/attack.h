/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What somebody on the way may do to sealed records, for relay.h: each attack once, on the first records of one way of the
 * first connection after it was begun.
 */
#ifndef GANTRY_TESTS_ATTACK_H
#define GANTRY_TESTS_ATTACK_H

#include "base/seal.h"
#include "relay.h"

enum attack {
	ATTACK_NONE,
	ATTACK_FLIP,
	ATTACK_REPLAY,
	ATTACK_LEAVE_OUT,
	ATTACK_REORDER,
	ATTACK_REFLECT,
	ATTACK_TRUNCATE,
	ATTACKS
};

/* What the error says of it, on the side that finds it. */
static const char *const attack_texts[ATTACKS] = {
	[ATTACK_FLIP] = "a record is not authentic: it was modified",
	[ATTACK_REPLAY] = ": replayed",
	[ATTACK_LEAVE_OUT] = "records were dropped or reordered",
	[ATTACK_REORDER] = "records were dropped or reordered",
	[ATTACK_REFLECT] = "is one of our own, reflected back",
	[ATTACK_TRUNCATE] = "closed in the middle of a record",
};

static struct {
	struct relay *relay;
	int way;
	int kind;     /* atomic: enum attack, NONE again when it is done */
	bool all_out; /* the way has ended */
	uint8_t kept[GANTRY_SEAL_MAX + GANTRY_SEAL_EXTRA];
	size_t kept_n; /* a record that comes later than the next */
} attack;

static inline void attack_record(struct relay_conn *c, int way, const uint8_t *record, size_t n)
{
	int kind = __atomic_load_n(&attack.kind, __ATOMIC_ACQUIRE);

	if (c != &attack.relay->conns[0] || way != attack.way || kind == ATTACK_NONE) {
		if (c != &attack.relay->conns[0] || way != attack.way || !attack.all_out)
			relay_say(c, way, record, n);
		return;
	}
	if (kind == ATTACK_REORDER && !attack.kept_n) { /* the next one goes first */
		memcpy(attack.kept, record, n);
		attack.kept_n = n;
		return;
	}
	switch (kind) {
	case ATTACK_FLIP: {
		uint8_t bit = record[n - 20] ^ 4; /* of the ciphertext's end */

		relay_say(c, way, record, n - 20);
		relay_say(c, way, &bit, 1);
		relay_say(c, way, record + n - 19, 19);
		break;
	}
	case ATTACK_REPLAY:
		relay_say(c, way, record, n);
		relay_say(c, way, record, n);
		break;
	case ATTACK_REORDER:
		relay_say(c, way, record, n);
		relay_say(c, way, attack.kept, attack.kept_n);
		break;
	case ATTACK_REFLECT:
		relay_say(c, !way, record, n);
		break;
	case ATTACK_TRUNCATE:
		relay_say(c, way, record, n / 2);
		relay_end_way(c, way);
		attack.all_out = true;
		break;
	default: /* left out */
		break;
	}
	__atomic_store_n(&attack.kind, ATTACK_NONE, __ATOMIC_RELEASE);
}

/* With the relay, before it starts. */
static inline void attack_make(struct relay *r)
{
	memset(&attack, 0, sizeof(attack));
	attack.relay = r;
	r->record = attack_record;
}

static inline void attack_begin(enum attack kind, int way)
{
	attack.way = way;
	__atomic_store_n(&attack.kind, kind, __ATOMIC_RELEASE);
}

#endif
