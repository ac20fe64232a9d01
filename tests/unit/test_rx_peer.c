/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer that does not keep to the protocol of heads: played here with the network's own calls, below the pipeline. The
 * connection ends with ERR_PROTOCOL, a text that says what was wrong, and the peer's name in it.
 */
#include "net/net.h"
#include "rx/rx.h"
#include "rx_util.h"

struct fake {
	int fd;
	void *ctx, *out, *in;
	struct gantry_rx *rx; /* the one under test */
	struct gantry_rx_conn *conn;
	unsigned char memory[100000];
};

static struct fake *fake;

static void *accept_peer(void *listener)
{
	CHECK_OK(gantry_rx_accept(listener, LONG_ENOUGH * SECOND, &fake->conn));
	return NULL;
}

/* The rendezvous, as src/rx/rx_wire.h has it. */
static void say_hello(const char *address, void **ret_listen, uint8_t handle[GANTRY_NET_HANDLE_SIZE])
{
	struct gantry_net *net = gantry_net_tcp();
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF};
	struct rx_offer own = {.epoch = 5, .id = 77}, accept;

	CHECK_OK(net->ops->init(net, 77, &config, &fake->ctx));
	CHECK_OK(net->ops->listen(net, fake->ctx, 0, own.handle, ret_listen));
	fake->fd = lo_dial(port_of(address));
	rx_meet_by_hand(fake->fd, getenv("GANTRY_SECRET"), &own, &accept);
	memcpy(handle, accept.handle, GANTRY_NET_HANDLE_SIZE);
	CHECK_OK(net->ops->take_handle(net, handle));
}

/* Its first head, without which it is not accepted; the thread that accepts moves the other side. */
static void say_up(void)
{
	struct gantry_net *net = gantry_net_tcp();
	uint8_t out[RX_HEAD_SIZE];
	void *request = NULL;
	int done = 0;

	rx_head_encode(&(struct rx_head){.kind = RX_UP}, out);
	WAIT_WHILE (!done) {
		if (!request)
			CHECK_OK(net->ops->isend(net, fake->out, out, sizeof(out), RX_TAG_HEAD, NULL, &request));
		if (request)
			CHECK_OK(net->ops->test(net, request, &done, NULL));
	}
}

static struct rx_head hear(void);

static void begin(void)
{
	struct gantry_net *net = gantry_net_tcp();
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], ready = 1;
	struct gantry_rx_config config = {.struct_size = sizeof(config), .path = GANTRY_RX_PATH_HOST};
	struct gantry_rx_listener *l;
	void *listen;
	pthread_t t;

	fake = calloc(1, sizeof(*fake));
	CHECK(fake);
	CHECK_OK(gantry_rx_open(&config, &fake->rx));
	CHECK_OK(gantry_rx_register(fake->rx, fake->memory, sizeof(fake->memory)));
	CHECK_OK(gantry_rx_listen(fake->rx, "127.0.0.1:0", &l));
	CHECK_EQ(pthread_create(&t, NULL, accept_peer, l), 0);
	say_hello(gantry_rx_listener_address(l), &listen, handle);
	WAIT_WHILE (!fake->out || !fake->in) {
		if (!fake->out)
			CHECK_OK(net->ops->connect(net, fake->ctx, 0, handle, &fake->out, &none));
		if (!fake->in)
			CHECK_OK(net->ops->accept(net, listen, &fake->in, &none));
	}
	CHECK_EQ(write(fake->fd, &ready, 1), 1);
	say_up();
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(hear().kind, RX_UP);
	CHECK_OK(net->ops->close_listen(net, listen));
	gantry_rx_listener_close(l);
}

static void finish(const char *text)
{
	struct gantry_net *net = gantry_net_tcp();
	char why[512];

	WAIT_WHILE (gantry_rx_conn_error(fake->conn, why, sizeof(why)) == GANTRY_OK)
		gantry_rx_poll(fake->rx, NULL, 0);
	CHECK_STR(gantry_result_name(gantry_rx_conn_error(fake->conn, NULL, 0)), "ERR_PROTOCOL");
	CHECK_HAS(why, text);
	CHECK_HAS(why, "127.0.0.1:");
	gantry_rx_conn_close(fake->conn);
	gantry_rx_close(fake->rx);
	CHECK_OK(net->ops->close_send(net, fake->out));
	CHECK_OK(net->ops->close_recv(net, fake->in));
	CHECK_OK(net->ops->finalize(net, fake->ctx));
	close(fake->fd);
	free(fake);
}

/* The rx under test is moved until the network has the head. 0: the connection is over. */
static int say(const struct rx_head *h)
{
	struct gantry_net *net = gantry_net_tcp();
	uint8_t out[RX_HEAD_SIZE];
	void *request = NULL;
	int done = 0;

	rx_head_encode(h, out);
	WAIT_WHILE (!done) {
		if (!request &&
		    net->ops->isend(net, fake->out, out, sizeof(out), RX_TAG_HEAD, NULL, &request) != GANTRY_OK)
			return 0;
		if (request && net->ops->test(net, request, &done, NULL) != GANTRY_OK)
			return 0;
		gantry_rx_poll(fake->rx, NULL, 0);
	}
	return gantry_rx_conn_error(fake->conn, NULL, 0) == GANTRY_OK;
}

/* The next head that the rx under test says. */
static struct rx_head hear(void)
{
	struct gantry_net *net = gantry_net_tcp();
	static uint8_t in[RX_HEAD_SIZE + RX_INLINE_MAX];
	void *data = in, *mr = NULL, *request = NULL;
	size_t size = sizeof(in);
	int tag = RX_TAG_HEAD, done = 0, got = 0;
	struct rx_head h;

	CHECK_OK(net->ops->irecv(net, fake->in, 1, &data, &size, &tag, &mr, &request));
	CHECK(request);
	WAIT_WHILE (!done) {
		gantry_rx_poll(fake->rx, NULL, 0);
		CHECK_OK(net->ops->test(net, request, &done, &got));
	}
	CHECK_OK(rx_head_decode(in, (size_t)got, &h));
	return h;
}

static struct gantry_rx_op *offer(size_t bytes)
{
	struct gantry_rx_piece p = {fake->memory, bytes, 0, 1};
	struct gantry_rx_op *op;
	struct rx_head h;

	CHECK_OK(gantry_rx_send(fake->conn, &p, 1, 3, &op));
	h = hear();
	CHECK_EQ(h.kind, RX_SEND);
	CHECK_EQ(h.bytes, bytes);
	CHECK_EQ(h.flags, bytes <= RX_INLINE_MAX ? RX_INLINE : 0);
	return op;
}

/* One head that makes no sense for a transfer that was offered. */
static void nonsense(size_t bytes, struct rx_head h, const char *text)
{
	struct gantry_rx_op *op;

	begin();
	op = offer(bytes);
	say(&h);
	CHECK_EQ(gantry_rx_wait(op, LONG_ENOUGH * SECOND), GANTRY_ERR_PROTOCOL);
	CHECK_HAS(rx_text(op), text);
	gantry_rx_op_free(op);
	finish(text);
}

TEST(all_nonsense)
{
	nonsense(RX_INLINE_MAX + 1, (struct rx_head){.kind = RX_TAKEN}, "confirmed transfer 0, which was not sent");
	nonsense(100, (struct rx_head){.kind = RX_TAKEN, .transfer = 9}, "confirmed transfer 9, which was not offered");
	nonsense(100, (struct rx_head){.kind = RX_REJECT, .bytes = 100},
		 "rejected transfer 0 of 100 bytes, claiming a receive");
	nonsense(100, (struct rx_head){.kind = RX_GRANT, .arg = 65536}, "granted transfer 0");
	nonsense(100, (struct rx_head){.kind = RX_REJECT, .transfer = 1}, "rejected transfer 1, which was not offered");
	nonsense(100, (struct rx_head){.kind = RX_STOP, .transfer = 9}, "stopped transfer 9, which was not offered");
	nonsense(100000, (struct rx_head){.kind = RX_STOP}, "stopped transfer 0 before it was granted");
	nonsense(100000, (struct rx_head){.kind = RX_GRANT, .arg = 1u << 30}, "which was not requested");
}

/* The window is full: what waits behind it was not offered. */
TEST(not_offered)
{
	static const struct rx_head heads[] = {{.kind = RX_STOP, .transfer = RX_WINDOW},
					       {.kind = RX_TAKEN, .transfer = RX_WINDOW}};
	struct gantry_rx_op *ops[RX_WINDOW + 1];

	EACH_ROW (i, heads) {
		begin();
		for (int k = 0; k <= RX_WINDOW; k++) {
			struct gantry_rx_piece p = {fake->memory, sizeof(fake->memory), 0, 1};

			CHECK_OK(gantry_rx_send(fake->conn, &p, 1, 3, &ops[k]));
		}
		say(&heads[i]);
		for (int k = 0; k <= RX_WINDOW; k++) {
			CHECK_EQ(gantry_rx_wait(ops[k], LONG_ENOUGH * SECOND), GANTRY_ERR_PROTOCOL);
			gantry_rx_op_free(ops[k]);
		}
		finish("transfer 64, which was not offered");
	}
}

/* Asks the same again and again and never reads an answer: they do not pile up without end. */
TEST(flood)
{
	struct rx_head taken = {.kind = RX_TAKEN}, stop = {.kind = RX_STOP};
	struct gantry_rx_op *op;
	int n = 0;

	begin();
	op = offer(100);
	CHECK(say(&taken));
	CHECK_OK(gantry_rx_wait(op, LONG_ENOUGH * SECOND));
	gantry_rx_op_free(op);
	while (say(&stop))
		CHECK(++n < 100000);
	CHECK(n > RX_ANSWERS_OUT);
	finish("replies are queued");
}
