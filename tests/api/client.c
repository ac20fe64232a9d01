/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the first version of the interface: built with the headers of 1.0-rc1/ and run with the library of today
 * (tests/system/api.sh). Two ranks exchange bytes, two pipelines move some, and what the library fills in stays within
 * what this program knows of it.
 *
 *   client [TRANSPORT]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gantry/comm.h"
#include "gantry/gantry.h"
#include "gantry/rx.h"

enum { BYTES = 300001 };

#define CHECK(x)                                                                                                       \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			fprintf(stderr, "client.c:%d: %s: %s\n", __LINE__, #x, gantry_last_error());                   \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
#define OK(x) CHECK((x) == GANTRY_OK)

static struct gantry_unique_id id;
static const char *transport = "shm";

/* What the library must not touch stands behind what it may. */
struct guarded_counters {
	struct gantry_comm_counters n;
	unsigned char guard[64];
};

static void *rank_of(void *arg)
{
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	int rank = *(int *)arg;
	struct guarded_counters counters;
	struct gantry_stream *stream;
	struct gantry_comm *comm;
	unsigned char *host;
	void *out, *in;

	config.id = id;
	config.rank = rank;
	config.nranks = 2;
	config.transport = transport;
	OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &config.device));
	OK(gantry_stream_create(config.device, &stream));
	OK(gantry_mem_alloc(config.device, BYTES, &out));
	OK(gantry_mem_alloc(config.device, BYTES, &in));
	memset(out, 'a' + rank, BYTES);
	OK(gantry_comm_init(&config, &comm));
	OK(gantry_group_start());
	OK(gantry_send(out, BYTES, GANTRY_TYPE_UINT8, 1 - rank, comm, stream));
	OK(gantry_recv(in, BYTES, GANTRY_TYPE_UINT8, 1 - rank, comm, stream));
	OK(gantry_group_end());
	OK(gantry_stream_sync(config.device, stream));
	OK(gantry_comm_error(comm, NULL, NULL, 0));
	host = in;
	for (size_t i = 0; i < BYTES; i++)
		CHECK(host[i] == 'a' + 1 - rank);
	memset(&counters, 0x5a, sizeof(counters));
	counters.n.struct_size = sizeof(counters.n);
	OK(gantry_comm_get_counters(comm, &counters.n));
	CHECK(counters.n.send_bytes == BYTES && counters.n.recv_bytes == BYTES);
	for (size_t i = 0; i < sizeof(counters.guard); i++)
		CHECK(counters.guard[i] == 0x5a);
	CHECK(strcmp(gantry_comm_transport(comm, 1 - rank), transport) == 0);
	OK(gantry_comm_destroy(comm));
	OK(gantry_mem_free(config.device, in));
	OK(gantry_mem_free(config.device, out));
	OK(gantry_stream_destroy(config.device, stream));
	gantry_device_close(config.device);
	return NULL;
}

struct pipe {
	struct gantry_rx *rx;
	struct gantry_rx_listener *listener;
	struct gantry_rx_conn *conn;
};

static void *accept_one(void *arg)
{
	struct pipe *p = arg;

	OK(gantry_rx_accept(p->listener, GANTRY_WAIT_DEFAULT, &p->conn));
	return NULL;
}

static void pipelines(void)
{
	static unsigned char from[BYTES], to[BYTES];
	struct gantry_rx_config config = GANTRY_RX_CONFIG_INIT;
	struct gantry_rx_result result = GANTRY_RX_RESULT_INIT;
	struct gantry_rx_counters counters = GANTRY_RX_COUNTERS_INIT;
	struct gantry_rx_piece send = {from, BYTES, 0, 1}, recv = {to, BYTES, 0, 1};
	struct gantry_rx_op *ops[2];
	struct pipe a = {0}, b = {0};
	pthread_t thread;

	config.path = GANTRY_RX_PATH_HOST;
	OK(gantry_rx_open(&config, &a.rx));
	OK(gantry_rx_open(NULL, &b.rx));
	OK(gantry_rx_register(a.rx, from, BYTES));
	OK(gantry_rx_register(b.rx, to, BYTES));
	OK(gantry_rx_listen(b.rx, "127.0.0.1:0", &b.listener));
	CHECK(pthread_create(&thread, NULL, accept_one, &b) == 0);
	OK(gantry_rx_connect(a.rx, gantry_rx_listener_address(b.listener), GANTRY_WAIT_DEFAULT, &a.conn));
	pthread_join(thread, NULL);
	memset(from, 7, BYTES);
	OK(gantry_rx_recv(b.conn, &recv, 1, 5, &ops[1]));
	OK(gantry_rx_send(a.conn, &send, 1, 5, &ops[0]));
	while (gantry_rx_poll(a.rx, &ops[0], 1) + gantry_rx_poll(b.rx, &ops[1], 1) < 2)
		;
	OK(gantry_rx_wait(ops[1], GANTRY_WAIT_FOREVER));
	OK(gantry_rx_op_result(ops[1], &result));
	CHECK(result.result == GANTRY_OK && result.bytes == BYTES && memcmp(from, to, BYTES) == 0);
	OK(gantry_rx_get_counters(a.rx, &counters));
	CHECK(counters.sent_bytes == BYTES);
	gantry_rx_op_free(ops[0]);
	gantry_rx_op_free(ops[1]);
	gantry_rx_conn_close(a.conn);
	gantry_rx_conn_close(b.conn);
	gantry_rx_listener_close(b.listener);
	gantry_rx_close(a.rx);
	gantry_rx_close(b.rx);
}

/* Numbers that programs have compiled in. */
static void codes(void)
{
	struct gantry_rx_config config = GANTRY_RX_CONFIG_INIT;
	struct gantry_rx *rx = NULL;

	CHECK(strcmp(gantry_result_name(GANTRY_ERR_TIMEOUT), "ERR_TIMEOUT") == 0);
	CHECK(strcmp(gantry_result_name(GANTRY_ERR_CANCELLED), "ERR_CANCELLED") == 0);
	config.nic = "nosuchnic0";
	CHECK(gantry_rx_open(&config, &rx) == GANTRY_ERR_CONFIG && rx == NULL);
	CHECK(strstr(gantry_last_error(), "nosuchnic0") != NULL);
}

int main(int argc, char **argv)
{
	int ranks[2] = {0, 1};
	pthread_t thread;

	if (argc > 1)
		transport = argv[1];
	codes();
	OK(gantry_unique_id_create(&id));
	CHECK(pthread_create(&thread, NULL, rank_of, &ranks[1]) == 0);
	rank_of(&ranks[0]);
	pthread_join(thread, NULL);
	pipelines();
	printf("built for interface %d, run with %s\n", GANTRY_API_VERSION, gantry_version());
	return 0;
}
