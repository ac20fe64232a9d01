/* SPDX-License-Identifier: Apache-2.0 */
/* The relay of the tests: bytes that it changes are those of the rule, whatever the receiver takes at a time. */
#include "relay.h"

enum { BYTES = 8 << 20, EVERY = 100000 };

static struct relay relay;
static uint8_t data[BYTES], got[BYTES];

static int is_hit(uint64_t place)
{
	return place % EVERY == EVERY - 1;
}

static void flip_some(const struct relay_conn *c, int way, uint8_t *bytes, size_t n)
{
	for (size_t i = 0; way == TO_SERVER && i < n; i++)
		bytes[i] = (uint8_t)(bytes[i] ^ is_hit(c->moved[way] + i));
}

static void *send_data(void *fd)
{
	send_all(*(int *)fd, data, BYTES);
	return NULL;
}

int main(void)
{
	int port, server = lo_listen(0, &port), client, conn;
	size_t hits = 0;
	pthread_t t;

	pattern_fill(data, BYTES, 1);
	relay.to = lo_addr(port);
	relay.alter = flip_some;
	relay_make(&relay, 0, 0);
	relay_start(&relay);
	client = lo_dial(relay.port);
	conn = accept(server, NULL, NULL);
	CHECK(client >= 0 && conn >= 0);
	threads_start(&t, 1, send_data, &client, 0);
	sleep_ms(20); /* the buffers fill up: the relay is not taken from, and looks at the same bytes again */
	recv_all(conn, got, BYTES);
	threads_join(&t, 1);
	for (size_t i = 0; i < BYTES; i++) {
		CHECK_EQ(got[i], data[i] ^ is_hit(i));
		hits += got[i] != data[i];
	}
	CHECK_EQ(hits, BYTES / EVERY);
	send_all(conn, data, 1000); /* the rule leaves the way back alone */
	recv_all(client, got, 1000);
	CHECK_PATTERN(got, 1000, 1);
	relay_stop(&relay);
	return 0;
}
