/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream from one network namespace to another until a file is there, every byte checked against the number of its
 * message:
 *
 *   two_nics pipeline|small NETNS_TX NETNS_RX FILE
 *
 * pipeline  transfers of gantry/rx.h with its defaults
 * small     messages of one connection of the TCP network over all usable NICs, each too small for the bulk lanes
 *
 * The last message has 8 bytes: how many came before it. The sending side prints how many there were, and of the small
 * ones how many were spread.
 */
#include <sys/wait.h>

#include "device/device.h"
#include "gantry/rx.h"
#include "net/rails.h"
#include "net/tcp/network.h"
#include "pair.h"

enum { TRANSFER = 4 << 20, TRANSFERS = 2, SMALL = 16 << 10, SMALLS = 32, LAST = 8 };

static const char *until;

static bool is_enough(void)
{
	return access(until, F_OK) == 0;
}

/* ---- the pipeline ---- */

/* Addresses go through the place of a handle. */
static char *address(struct pair_side *s)
{
	return (char *)s->shared->handle[1][0];
}

static struct gantry_rx_conn *meet(struct pair_side *s, struct gantry_rx *rx)
{
	struct gantry_rx_conn *conn;
	struct gantry_rx_listener *l;

	if (s->self == 0) {
		pair_wait_handle(s, 0);
		CHECK_OK(gantry_rx_connect(rx, address(s), GANTRY_WAIT_DEFAULT, &conn));
		return conn;
	}
	CHECK_OK(gantry_rx_listen(rx, NULL, &l));
	snprintf(address(s), GANTRY_NET_HANDLE_SIZE, "%s", gantry_rx_listener_address(l));
	store_release(&s->shared->ready[1][0], 1);
	CHECK_OK(gantry_rx_accept(l, GANTRY_WAIT_DEFAULT, &conn));
	gantry_rx_listener_close(l);
	return conn;
}

static struct gantry_rx_op *post(struct pair_side *s, struct gantry_rx_conn *conn, uint8_t *p, size_t size)
{
	struct gantry_rx_piece piece = {.base = p, .piece_bytes = size, .count = 1};
	struct gantry_rx_op *op;

	CHECK_OK(s->self == 0 ? gantry_rx_send(conn, &piece, 1, 0, &op) : gantry_rx_recv(conn, &piece, 1, 0, &op));
	return op;
}

/* Returns the bytes; the first error ends the test with its text. */
static uint64_t finish(struct gantry_rx_op *op)
{
	struct gantry_rx_result result = GANTRY_RX_RESULT_INIT;

	gantry_rx_wait(op, (int64_t)PAIR_PATIENCE_MS * 1000000);
	CHECK_OK(gantry_rx_op_result(op, &result));
	if (result.result != GANTRY_OK) {
		fprintf(stderr, "%s\n", result.text);
		exit(1);
	}
	gantry_rx_op_free(op);
	return result.bytes;
}

static uint64_t send_transfers(struct pair_side *s, struct gantry_rx_conn *conn, uint8_t *memory)
{
	struct gantry_rx_op *ops[TRANSFERS] = {NULL};
	uint64_t n = 0;

	for (; !is_enough(); n++) {
		uint8_t *p = memory + n % TRANSFERS * TRANSFER;

		if (ops[n % TRANSFERS])
			CHECK_EQ(finish(ops[n % TRANSFERS]), TRANSFER);
		pattern_fill(p, TRANSFER, n);
		ops[n % TRANSFERS] = post(s, conn, p, TRANSFER);
	}
	for (uint64_t i = 0; i < TRANSFERS; i++)
		if (ops[(n + i) % TRANSFERS])
			CHECK_EQ(finish(ops[(n + i) % TRANSFERS]), TRANSFER);
	memcpy(memory, &n, LAST);
	CHECK_EQ(finish(post(s, conn, memory, LAST)), LAST);
	return n;
}

static void receive_transfers(struct pair_side *s, struct gantry_rx_conn *conn, uint8_t *memory)
{
	struct gantry_rx_op *ops[TRANSFERS];
	uint64_t number;

	for (uint64_t i = 0; i < TRANSFERS; i++)
		ops[i] = post(s, conn, memory + i * TRANSFER, TRANSFER);
	for (uint64_t n = 0;; n++) {
		uint8_t *p = memory + n % TRANSFERS * TRANSFER;
		uint64_t bytes = finish(ops[n % TRANSFERS]);

		if (bytes == LAST) {
			memcpy(&number, p, LAST);
			CHECK_EQ(number, n);
			gantry_rx_op_free(ops[(n + 1) % TRANSFERS]);
			return;
		}
		CHECK_EQ(bytes, TRANSFER);
		CHECK_PATTERN(p, TRANSFER, n);
		ops[n % TRANSFERS] = post(s, conn, p, TRANSFER);
	}
}

static void run_pipeline(struct pair_side *s)
{
	uint8_t *memory = aligned_alloc(4096, (size_t)TRANSFERS * TRANSFER);
	struct gantry_rx_conn *conn;
	struct gantry_rx *rx;

	CHECK(memory);
	CHECK_OK(gantry_rx_open(NULL, &rx));
	CHECK_OK(gantry_rx_register(rx, memory, (size_t)TRANSFERS * TRANSFER));
	conn = meet(s, rx);
	if (s->self == 0)
		printf("%llu transfers\n", (unsigned long long)send_transfers(s, conn, memory));
	else
		receive_transfers(s, conn, memory);
	pair_meet(s, 1);
	gantry_rx_conn_close(conn);
	gantry_rx_close(rx);
	free(memory);
}

/* ---- small messages ---- */

static uint64_t send_small(struct pair_side *s, void *comm, uint8_t *memory)
{
	void *requests[SMALLS] = {NULL};
	uint64_t n = 0, end = UINT64_MAX;

	for (; n <= end; n++) {
		uint8_t *p = memory + n % SMALLS * SMALL;

		if (requests[n % SMALLS])
			pair_wait(s, requests[n % SMALLS]);
		if (n == end || (n % SMALLS == 0 && is_enough())) {
			end = n;
			memcpy(p, &n, LAST);
		} else {
			pattern_fill(p, SMALL, n);
		}
		requests[n % SMALLS] = pair_isend(s, comm, p, n == end ? LAST : SMALL, 0);
	}
	for (uint64_t i = 0; i < SMALLS; i++)
		if (requests[(n + i) % SMALLS])
			pair_wait(s, requests[(n + i) % SMALLS]);
	return end;
}

static void receive_small(struct pair_side *s, void *comm, uint8_t *memory)
{
	void *requests[SMALLS];
	uint64_t number;
	int size;

	for (uint64_t i = 0; i < SMALLS; i++)
		requests[i] = pair_irecv(s, comm, memory + i * SMALL, SMALL, 0);
	for (uint64_t n = 0;; n++) {
		uint8_t *p = memory + n % SMALLS * SMALL;

		CHECK_OK(pair_try_wait(s, requests[n % SMALLS], PAIR_PATIENCE_MS, &size));
		if (size == LAST) {
			memcpy(&number, p, LAST);
			CHECK_EQ(number, n);
			return; /* the other receives go with the comm */
		}
		CHECK_EQ(size, SMALL);
		CHECK_PATTERN(p, SMALL, n);
		requests[n % SMALLS] = pair_irecv(s, comm, p, SMALL, 0);
	}
}

static uint64_t count_spread(void)
{
	uint64_t n = 0;

	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node)
		n += load_relaxed(&l->spread->messages);
	inet_loop_unlock();
	return n;
}

static void run_small(struct pair_side *s)
{
	uint8_t *memory = aligned_alloc(4096, (size_t)SMALLS * SMALL);
	struct gantry_device *host;
	struct gantry_rails rails;
	void *comm, *listen;

	CHECK(memory);
	pair_init(s);
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &host));
	CHECK_OK(gantry_rails_find(host, 0, &rails));
	CHECK_OK(gantry_rails_fuse(&rails, &s->dev));
	if (s->self == 0) {
		comm = pair_connect(s, 0);
		printf("%llu small messages", (unsigned long long)send_small(s, comm, memory));
		printf(", %llu by other NICs\n", (unsigned long long)count_spread());
		pair_meet(s, 1);
		CHECK_OK(s->net->ops->close_send(s->net, comm));
	} else {
		listen = pair_listen(s, 0);
		comm = pair_accept(s, listen);
		receive_small(s, comm, memory);
		pair_meet(s, 1);
		CHECK_OK(s->net->ops->close_recv(s->net, comm));
		CHECK_OK(s->net->ops->close_listen(s->net, listen));
	}
	gantry_device_close(host);
	free(memory);
}

int main(int argc, char **argv)
{
	struct pair_shared *shared = pair_share();
	void (*run)(struct pair_side *);

	if (argc != 5 || (strcmp(argv[1], "pipeline") != 0 && strcmp(argv[1], "small") != 0)) {
		fprintf(stderr, "usage: two_nics pipeline|small NETNS_TX NETNS_RX FILE\n");
		return 2;
	}
	run = argv[1][0] == 'p' ? run_pipeline : run_small;
	until = argv[4];
	pair_fork(run, shared, 0, argv[2]);
	pair_fork(run, shared, 1, argv[3]);
	return pair_reap_both(shared);
}
