/*
 * Moves a tensor between two processes and says which way it went, and why.
 *   rx_tensor [BYTES] [host|cuda]        GANTRY_RX_PATH=emulated: as fragments that a kernel puts in place
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gantry/rx.h>

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		gantry_result ok = (call);                                                                             \
		if (ok != GANTRY_OK)                                                                                   \
			fprintf(stderr, "%s: %s\n", #call, gantry_result_text(ok)), exit(1);                           \
	} while (0)
enum { PORT = 47111 };

int main(int argc, char **argv)
{
	size_t size = argc > 1 ? strtoull(argv[1], NULL, 0) : 1 << 28, wrong = 0;
	int cuda = argc > 2 && !strcmp(argv[2], "cuda"), sender = fork() == 0, status = 0;
	char address[32], *host = malloc(size);
	struct gantry_rx_config config = {0};
	struct gantry_rx_listener *listener;
	struct gantry_rx_conn *conn;
	struct gantry_rx_op *op;
	struct gantry_rx *rx;
	void *tensor;

	snprintf(address, sizeof(address), "127.0.0.1:%d", getenv("PORT") ? atoi(getenv("PORT")) : PORT);
	OK(gantry_device_open(cuda ? GANTRY_DEVICE_CUDA : GANTRY_DEVICE_HOST, 0, &config.device));
	OK(gantry_rx_open(&config, &rx));
	OK(gantry_mem_alloc(config.device, size, &tensor));
	OK(gantry_rx_register(rx, tensor, size));
	struct gantry_rx_piece piece = {tensor, size, 0, 1};
	for (size_t i = 0; sender && i < size; i++)
		host[i] = (char)(i * 2654435761u >> 13);
	if (sender) {
		OK(gantry_mem_copy(config.device, tensor, host, size));
		OK(gantry_rx_connect(rx, address, -1, &conn));
		OK(gantry_rx_send(conn, &piece, 1, 0, &op));
	} else {
		OK(gantry_rx_listen(rx, address, &listener));
		OK(gantry_rx_accept(listener, -1, &conn));
		OK(gantry_rx_recv(conn, &piece, 1, 0, &op));
	}
	OK(gantry_rx_wait(op, -1));
	if (!sender) {
		OK(gantry_mem_copy(config.device, host, tensor, size));
		for (size_t i = 0; i < size; i++)
			wrong += host[i] != (char)(i * 2654435761u >> 13);
		printf("%zu bytes over %s\n%zu wrong\n", size, gantry_rx_conn_path(conn), wrong);
		wait(&status);
	}
	return wrong || status;
}
