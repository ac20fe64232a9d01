/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves a tensor from one process to another, says which way it went and why, and checks every byte.
 *
 *   cc rx_tensor.c $(pkg-config --cflags --libs gantry) -o rx_tensor
 *   ./rx_tensor [BYTES] [host|cuda]          default: 256 MiB of host memory; cuda is GPU 0
 *   GANTRY_RX_PATH=emulated ./rx_tensor      as fragments that a kernel puts in place
 */
#include <stdio.h>
#include <stdlib.h>

#include <gantry/rx.h>

#include "two.h"

enum { RECEIVER, SENDER };
static const char *const names[2] = {"receiver", "sender"};

/* Every call of Gantry says how it went. Here a side that fails says so and ends; the other one learns of it. */
#define CHECK(call)                                                                                                    \
	do {                                                                                                           \
		gantry_result got = (call);                                                                            \
		if (got != GANTRY_OK)                                                                                  \
			end(1, "%s: %s: %s", names[who], #call, gantry_result_text(got));                              \
	} while (0)

static unsigned char pattern(size_t i)
{
	return (unsigned char)(i * 2654435761u >> 13);
}

/* The two meet where the receiver listens: at an address of its interface, IPv4 or IPv6, and a port that is free. */
static struct gantry_rx_conn *meet(int who, struct gantry_rx *rx)
{
	struct gantry_rx_listener *listener;
	struct gantry_rx_conn *conn;
	char address[128] = "";

	if (who == SENDER) {
		hear(address, sizeof(address));
		CHECK(gantry_rx_connect(rx, address, GANTRY_WAIT_DEFAULT, &conn)); /* GANTRY_CONNECT_TIMEOUT */
		return conn;
	}
	CHECK(gantry_rx_listen(rx, NULL, &listener));
	snprintf(address, sizeof(address), "%s", gantry_rx_listener_address(listener));
	tell(address, sizeof(address));
	CHECK(gantry_rx_accept(listener, GANTRY_WAIT_DEFAULT, &conn));
	gantry_rx_listener_close(listener);
	return conn;
}

/* Sends the tensor, or receives it, and waits until that is done. */
static void transfer(int who, struct gantry_rx_conn *conn, void *tensor, size_t bytes)
{
	struct gantry_rx_piece piece = {.base = tensor, .piece_bytes = bytes, .count = 1};
	struct gantry_rx_result result = GANTRY_RX_RESULT_INIT;
	struct gantry_rx_op *op;
	gantry_result r;

	if (who == SENDER)
		CHECK(gantry_rx_send(conn, &piece, 1, 0, &op));
	else
		CHECK(gantry_rx_recv(conn, &piece, 1, 0, &op));
	r = gantry_rx_wait(op, GANTRY_WAIT_FOREVER); /* a dead peer ends it */
	gantry_rx_op_result(op, &result);
	if (r != GANTRY_OK || result.bytes != bytes)
		end(1, "%s: %zu of %zu bytes: %s", names[who], (size_t)result.bytes, bytes, result.text);
	gantry_rx_op_free(op);
}

static void run_side(int who, size_t bytes, int cuda)
{
	struct gantry_rx_config config = {.struct_size =
						  sizeof(config)}; /* zero: the defaults, or what GANTRY_RX_* say */
	unsigned char *host = malloc(bytes);
	struct gantry_rx_conn *conn;
	struct gantry_rx *rx;
	size_t wrong = 0;
	void *tensor;

	if (!host)
		end(1, "%s: no memory for %zu bytes", names[who], bytes);
	for (size_t i = 0; i < bytes; i++)
		host[i] = who == SENDER ? pattern(i) : 0;
	CHECK(gantry_device_open(cuda ? GANTRY_DEVICE_CUDA : GANTRY_DEVICE_HOST, 0, &config.device));
	CHECK(gantry_mem_alloc(config.device, bytes, &tensor));
	CHECK(gantry_mem_copy(config.device, tensor, host, bytes));
	CHECK(gantry_rx_open(&config, &rx));
	CHECK(gantry_rx_register(rx, tensor, bytes));
	conn = meet(who, rx);
	transfer(who, conn, tensor, bytes);
	CHECK(gantry_mem_copy(config.device, host, tensor, bytes));
	for (size_t i = 0; i < bytes; i++)
		wrong += host[i] != pattern(i);
	if (who == RECEIVER)
		printf("%zu bytes over %s\n", bytes, gantry_rx_conn_path(conn));
	gantry_rx_conn_close(conn);
	CHECK(gantry_rx_deregister(rx, tensor));
	gantry_rx_close(rx);
	CHECK(gantry_mem_free(config.device, tensor));
	gantry_device_close(config.device);
	free(host);
	if (wrong)
		end(1, "%s: %zu bytes are wrong", names[who], wrong);
}

int main(int argc, char **argv)
{
	size_t bytes = 256 << 20;
	int cuda;

	parse(argc, argv, &bytes, &cuda);
	if (run_two(run_side, bytes, cuda))
		return 1;
	printf("0 wrong\n");
	return 0;
}
