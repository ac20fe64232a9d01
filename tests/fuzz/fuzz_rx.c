/*
 * What a stranger says at the rendezvous, and heads of a connected peer: decoding never reads beyond the message, and
 * what it accepts is written again byte by byte as it came.
 */
#include <stdlib.h>
#include <string.h>

#include "rx/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rx_hello hello;
	struct rx_head head;
	uint8_t again[RX_HELLO_SIZE];
	uint8_t *copy = malloc(size ? size : 1); /* its very size, for the sanitizer */

	if (!copy)
		return 0;
	memcpy(copy, data, size);
	if (size >= RX_HELLO_SIZE && rx_hello_decode(copy, &hello) == GANTRY_OK) {
		rx_hello_encode(&hello, again);
		if (memcmp(again, copy, RX_HELLO_SIZE) != 0 || !rx_hello_may_be(copy, size))
			abort();
	}
	if (rx_head_decode(copy, size, &head) == GANTRY_OK) {
		rx_head_encode(&head, again);
		if (memcmp(again, copy, RX_HEAD_SIZE) != 0)
			abort();
	}
	free(copy);
	return 0;
}
