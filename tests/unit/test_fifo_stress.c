/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random groups on random connections, for about three seconds, with delays thrown in before and inside every
 * publication, by ends that sleep as soon as they may. What is looked for: a byte that is seen before it is published,
 * a ring slot that is written before it is free, and above all a wake-up that gets lost. For that, sleeps have no end
 * here: no_timeouts.h takes the time-out away, so that a lost wake-up is a hang, which the alarm makes a failure.
 */
#define GANTRY_TEST_DELAYS
#define DEV_NEAR (dev_lanes() == 1) /* as on a GPU; shared memory is a thread's own here */
#include "k_world.h"

#include "no_timeouts.h"

/* One in `rarely` publications is held up: by another thread's turn, by some of the CPU's time, by some of the clock's.
 */
static uint32_t rarely = 16;
static void random_delay(void)
{
	uint64_t x = random_next();

	if ((x >> 33) % rarely)
		return;
	switch (x >> 61) {
	case 0:
		usleep((useconds_t)(x >> 50 & 63));
		break;
	case 1:
	case 2:
		sched_yield();
		break;
	default:
		for (uint64_t n = x >> 52 & 511; n > 0; n--)
			gantry_cpu_pause();
	}
}
void (*dev_delay)(void) = random_delay;

/* Whether both ends of a link can do it is a matter of its flags. */
static void random_message(struct world *w, struct link *l)
{
	static const uint64_t limit[GANTRY_PROTOS] = {40000, 3000, 6000};
	int proto = (int)(random_next() % GANTRY_PROTOS), send_ptr = 0, recv_ptr = 0;
	uint64_t step, bytes = random_next() % (random_next() % 4 ? 200 : limit[proto]);

	step = 1 + random_next() % ring_step[proto];
	if (bytes / step > 64)
		step = ring_step[proto];
	if (proto == GANTRY_PROTO_SIMPLE) {
		send_ptr = (int)(random_next() % 2);
		recv_ptr = l->proxied ? (int)(random_next() % 2) : 0;
	}
	world_message(w, l, bytes, proto, send_ptr, recv_ptr, step);
}

/* Half of the connections begin shortly before marks come round. */
static uint64_t random_start(void)
{
	static const uint64_t ends[] = {0x8000, 0x10000, 0x80000000};

	return random_next() % 2 ? 0 : ends[random_next() % 3] - random_next() % 20;
}

static void one_world(uint64_t seed)
{
	struct world *w = world_new(3, 1 + (seed % 4 == 0), 1 + seed % 2, seed);

	gantry_host_spin = (uint32_t)(random_next() % 3 ? 0 : random_next() % 100);
	rarely = 2 + (uint32_t)(random_next() % 60);
	for (int i = 0; i < 10; i++) {
		uint32_t proxied = random_next() % 2 ? GANTRY_CONN_PROXIED : 0;
		uint32_t pool = proxied ? GANTRY_CONN_OFFSET : 0;

		world_link(w, (int)(random_next() % 3), (int)(random_next() % 3),
			   proxied | (random_next() % 2 ? pool : 0), proxied | (random_next() % 2 ? pool : 0),
			   random_start());
	}
	for (int round = 0; round < 4; round++) {
		for (uint64_t n = 1 + random_next() % 60; n > 0; n--)
			random_message(w, &w->link[random_next() % 10]);
		world_run(w);
	}
	world_free(w);
}

TEST(worlds)
{
	uint64_t end = gantry_now_ns() + 3000000000u, worlds = 0;

	setenv("GANTRY_YIELD", "0", 1);
	alarm(500);
	while (gantry_now_ns() < end || !worlds || !__atomic_load_n(&sleeps, __ATOMIC_RELAXED)) {
		CASE("world %" PRIu64, worlds);
		one_world(worlds++);
	}
	printf("%" PRIu64 " worlds, %" PRIu64 " sleeps\n", worlds, sleeps);
}
