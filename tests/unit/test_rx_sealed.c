/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline encrypted. Of its rendezvous and of what it moves nothing shows to a relay, nor the secret. A rendezvous in which
 * somebody meddles with the one record that each side says fails by the name of what was done.
 */
#include "base/openssl.h"
#include "net/tcp/network.h"
#include "relay.h"
#include "rx_util.h"

#if GANTRY_HAVE_OPENSSL

enum { READY = 1 + GANTRY_SEAL_EXTRA, SIZE = 1 << 20 };
static const char mark[] = "a payload that is marked", secret[] = "a secret of thirty-two characters";

/* ---- a peer by hand ---- */

struct scene {
	struct gantry_rx *rx;
	struct gantry_rx_listener *listener;
	struct gantry_rx_conn *nobody;
	struct inet_handshake shake;
	int fd;
};

static void attend(struct scene *s)
{
	CHECK_EQ(gantry_rx_accept(s->listener, 0, &s->nobody), GANTRY_ERR_TIMEOUT);
}

/* A peer that has met the rx, has its seals, and makes none of the network's connections. */
static void scene_open(struct scene *s)
{
	const struct inet_key key = {INET_AUTH_SECRET, secret, sizeof(secret) - 1, INET_ENCRYPT_REQUIRE};
	struct wire_handle handle = {.version = WIRE_VERSION, .process = 77, .listener = 1, .naddrs = 1};
	struct rx_offer own = {.epoch = 5, .id = 9};
	uint8_t offer[RX_OFFER_SIZE];

	CHECK_OK(gantry_rx_open(NULL, &s->rx));
	CHECK_OK(gantry_rx_listen(s->rx, "127.0.0.1:0", &s->listener));
	handle.addrs[0].in = lo_addr(9);
	wire_handle_encode(&handle, own.handle);
	s->fd = lo_dial(port_of(gantry_rx_listener_address(s->listener)));
	rx_offer_aim(&own, s->fd);
	rx_offer_encode(&own, offer);
	CHECK_OK(inet_handshake_start_client(&s->shake, &rx_by_hand, &key, offer, sizeof(offer)));
	UNTIL((attend(s), inet_handshake_move(&s->shake, s->fd) == INET_DONE));
	CHECK(s->shake.seals.tx && s->shake.seals.rx);
}

static void scene_close(struct scene *s)
{
	inet_handshake_end(&s->shake);
	close(s->fd);
	gantry_rx_close(s->rx);
}

static void flip(uint8_t records[2][READY])
{
	records[0][GANTRY_SEAL_HEADER] ^= 1;
}

static void flip_tag(uint8_t records[2][READY])
{
	records[0][READY - 1] ^= 1;
}

static void lengthen(uint8_t records[2][READY])
{
	records[0][4] = 2;
}

static void leave_out(uint8_t records[2][READY])
{
	memcpy(records[0], records[1], READY);
}

static void reflect(uint8_t records[2][READY])
{
	records[0][2] ^= 1;
}

static void speak_plainly(uint8_t records[2][READY])
{
	memset(records[0], 1, READY);
}

static void leave_as_it_is(uint8_t records[2][READY])
{
}

static const struct {
	const char *name;
	void (*change)(uint8_t records[2][READY]);
	size_t size; /* so much of it is said, and then nothing more */
	const char *text;
} attacks[] = {
	{"a bit", flip, READY, "a record is not authentic: it was modified"},
	{"a bit of the tag", flip_tag, READY, "a record is not authentic: it was modified"},
	{"a bit of the length", lengthen, READY, "a record is not authentic: it was modified"},
	{"left out", leave_out, READY, "received record 1, expected 0: records were dropped or reordered"},
	{"reflected", reflect, READY, "record 0 is one of our own, reflected back"},
	{"plaintext", speak_plainly, READY, "record 0 is not encrypted"},
	{"truncated", leave_as_it_is, READY - 5, "the peer closed the connection in the middle of a record"},
	{"nothing", leave_as_it_is, 0, "the peer closed the connection"},
};

TEST(attacks_on_the_rendezvous)
{
	logs_keep();
	EACH_ROW (i, attacks) {
		uint8_t records[2][READY], byte = 1;
		struct scene s = {0};

		CASE("%s", attacks[i].name);
		logs_forget();
		scene_open(&s);
		for (int k = 0; k < 2; k++)
			CHECK_EQ(gantry_seal_close(s.shake.seals.tx, &(struct iovec){&byte, 1}, 1, records[k]), READY);
		attacks[i].change(records);
		send_all(s.fd, records[0], attacks[i].size);
		shutdown(s.fd, SHUT_WR);
		UNTIL((attend(&s), logs_count(attacks[i].text)));
		scene_close(&s);
	}
}

/* As the peer says it, it is taken, and the meeting goes on. */
TEST(not_attacked)
{
	uint8_t record[READY], byte = 1;
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;
	struct scene s = {0};

	logs_keep();
	scene_open(&s);
	gantry_seal_close(s.shake.seals.tx, &(struct iovec){&byte, 1}, 1, record);
	send_all(s.fd, record, 10);
	attend(&s);
	send_all(s.fd, record + 10, READY - 10);
	shutdown(s.fd, SHUT_WR);
	for (int i = 0; i < 20; i++, sleep_ms(1))
		attend(&s);
	gantry_rx_get_counters(s.rx, &n);
	CHECK_EQ(n.strangers, 0);
	scene_close(&s);
}

static int tried; /* atomic: the connecting side is done */

/* Attends to the listener until it has turned the other side away, for good. */
static void *accept_nobody(void *arg)
{
	struct gantry_rx_conn *c;

	UNTIL(gantry_rx_accept(arg, 0, &c) != GANTRY_ERR_TIMEOUT || __atomic_load_n(&tried, __ATOMIC_ACQUIRE));
	CHECK(logs_count("GANTRY_ENCRYPT=require"));
	return NULL;
}

/* Whoever requires it talks to nobody else, on either side. */
static void unwilling(const char *accepting, const char *connecting, const char *text)
{
	struct gantry_rx *a, *b;
	struct gantry_rx_conn *c;
	struct gantry_rx_listener *l;
	pthread_t t;

	tried = 0;
	logs_keep();
	set_params("GANTRY_ENCRYPT", accepting);
	CHECK_OK(gantry_rx_open(NULL, &b));
	CHECK_OK(gantry_rx_listen(b, "127.0.0.1:0", &l));
	set_params("GANTRY_ENCRYPT", connecting);
	CHECK_OK(gantry_rx_open(NULL, &a));
	CHECK_EQ(pthread_create(&t, NULL, accept_nobody, l), 0);
	CHECK_ERROR(gantry_rx_connect(a, gantry_rx_listener_address(l), LONG_ENOUGH * SECOND, &c), GANTRY_ERR_AUTH,
		    text);
	__atomic_store_n(&tried, 1, __ATOMIC_RELEASE);
	CHECK_EQ(pthread_join(t, NULL), 0);
	gantry_rx_close(a);
	gantry_rx_close(b);
}

TEST_CALL(required_by_accepting, unwilling("require", "off", "GANTRY_ENCRYPT=require on the accepting side"))
TEST_CALL(required_by_connecting, unwilling("off", "require", "GANTRY_ENCRYPT=require on the connecting side"))

/* ---- what shows ---- */

static struct relay meeting, lanes = {.lanes = 1};
static int seen_mark, seen_secret; /* atomic */

static int listening_port(struct sockaddr_in *ret)
{
	int found = 0;

	inet_loop_lock();
	for (int i = 0; i < TCP_BUCKETS; i++)
		gantry_list_each_entry (l, &tcp_network.listeners[i], struct tcp_listener, node) {
			*ret = l->ports[0]->addr.in;
			found = 1;
		}
	inet_loop_unlock();
	return found;
}

static void look(const struct relay_conn *c, int way, uint8_t *bytes, size_t n)
{
	(void)c, (void)way;
	if (memmem(bytes, n, mark, sizeof(mark) - 1))
		__atomic_store_n(&seen_mark, 1, __ATOMIC_RELAXED);
	if (memmem(bytes, n, secret, sizeof(secret) - 1))
		__atomic_store_n(&seen_secret, 1, __ATOMIC_RELAXED);
}

static void *connect_through(void *arg)
{
	struct rx_pair *p = arg;
	char address[64];

	snprintf(address, sizeof(address), "127.0.0.1:%d#%llx", meeting.port,
		 (unsigned long long)gantry_rx_epoch(p->b.rx));
	CHECK_OK(gantry_rx_connect(p->a.rx, address, LONG_ENOUGH * SECOND, &p->a.conn));
	return NULL;
}

/* b listens behind a relay; so do the lanes. */
static void pair_through_relays(struct rx_pair *p)
{
	struct gantry_rx_listener *l;
	pthread_t t;

	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &p->dev));
	CHECK_OK(gantry_rx_open(NULL, &p->a.rx));
	CHECK_OK(gantry_rx_open(NULL, &p->b.rx));
	CHECK_OK(gantry_rx_listen(p->b.rx, "127.0.0.1:0", &l));
	meeting.to = lo_addr(port_of(gantry_rx_listener_address(l)));
	relay_start(&meeting);
	CHECK_EQ(pthread_create(&t, NULL, connect_through, p), 0);
	CHECK_OK(gantry_rx_accept(l, LONG_ENOUGH * SECOND, &p->b.conn));
	CHECK_EQ(pthread_join(t, NULL), 0);
	gantry_rx_listener_close(l);
}

static void move_through_relays(const char *encrypt, int shown)
{
	static uint8_t out[SIZE], in[SIZE];
	struct gantry_rx_piece from = {out, SIZE, 0, 1}, to = {in, SIZE, 0, 1};
	struct gantry_rx_op *send, *recv;
	struct rx_pair p = {0};

	setenv("GANTRY_ENCRYPT", encrypt, 1);
	lanes.find = listening_port;
	lanes.alter = meeting.alter = look;
	relay_make(&lanes, 0, 1);
	relay_make(&meeting, 0, 1);
	relay_advertise(&lanes);
	relay_start(&lanes);
	pair_through_relays(&p);
	for (size_t i = 0; i < SIZE; i++)
		out[i] = i % 64 < sizeof(mark) - 1 ? (uint8_t)mark[i % 64] : (uint8_t)(i * 13 + i / 256);
	CHECK_OK(gantry_rx_register(p.a.rx, out, SIZE));
	CHECK_OK(gantry_rx_register(p.b.rx, in, SIZE));
	CHECK_OK(gantry_rx_recv(p.b.conn, &to, 1, 7, &recv));
	CHECK_OK(gantry_rx_send(p.a.conn, &from, 1, 7, &send));
	rx_both(send, recv);
	CHECK_EQ(rx_bytes(recv), SIZE);
	CHECK(memcmp(in, out, SIZE) == 0);
	CHECK(relay_passed(&lanes, TO_SERVER) > SIZE && relay_passed(&meeting, TO_SERVER) > INET_HELLO_SIZE);
	CHECK_EQ(__atomic_load_n(&seen_mark, __ATOMIC_RELAXED), shown);
	CHECK(!__atomic_load_n(&seen_secret, __ATOMIC_RELAXED));
	gantry_rx_op_free(send);
	gantry_rx_op_free(recv);
	CHECK_OK(gantry_rx_deregister(p.a.rx, out));
	CHECK_OK(gantry_rx_deregister(p.b.rx, in));
	rx_pair_close(&p);
}

TEST_CALL(shows_without, move_through_relays("off", 1))
TEST_CALL(shows_nothing, move_through_relays("require", 0))

void tests_begin(void)
{
	setenv("GANTRY_SECRET", secret, 1);
	setenv("GANTRY_ENCRYPT", "require", 1);
	tests_apart(1);
}

#else

TEST(nothing_to_encrypt_with)
{
	struct gantry_rx *rx;

	setenv("GANTRY_ENCRYPT", "on", 1);
	CHECK(gantry_rx_open(NULL, &rx) != GANTRY_OK);
}

#endif
