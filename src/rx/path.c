/* SPDX-License-Identifier: Apache-2.0 */
/* Which way bytes come to device memory, and why. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdio.h>

#include "base/param.h"
#include "net/devmem.h"
#include "rx/rx.h"

/* Why devmem TCP cannot be used; "" if it can. */
static void objection(struct gantry_rx *rx, char *why, size_t len)
{
	why[0] = 0;
	if (gantry_traits(rx->device)->cpu_reads_memory)
		snprintf(why, len, "the device is the host itself, no NIC needs help to reach its memory");
	else if (!devmem_kernel_usable(rx->nic, rx->device, why, len) && !why[0])
		snprintf(why, len, "devmem TCP cannot be used on %s", rx->nic);
}

gantry_result rx_path_choose(struct gantry_rx *rx, enum gantry_rx_path asked)
{
	const char *who = "asked for by the program";
	char why[160] = "";

	if (asked == GANTRY_RX_PATH_DEFAULT) {
		asked = (enum gantry_rx_path)(GANTRY_RX_PATH_AUTO + (int)gantry_params()->rx_path);
		who = "asked for by GANTRY_RX_PATH";
	}
	rx->path = asked;
	snprintf(rx->path_reason, sizeof(rx->path_reason), "%s", who);
	if (asked != GANTRY_RX_PATH_AUTO && asked != GANTRY_RX_PATH_UNPACK)
		return GANTRY_OK;
	objection(rx, why, sizeof(why));
	if (asked == GANTRY_RX_PATH_UNPACK && why[0])
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "path unpack was %s, but %s", who, why);
	rx->path = why[0] ? GANTRY_RX_PATH_HOST : GANTRY_RX_PATH_UNPACK;
	if (asked == GANTRY_RX_PATH_AUTO)
		snprintf(rx->path_reason, sizeof(rx->path_reason), "%s",
			 why[0] ? why : "NIC, kernel and device can do it");
	return GANTRY_OK;
}

void rx_path_of_conn(struct gantry_rx_conn *c)
{
	struct gantry_rx *rx = c->rx;

	if (rx->path == GANTRY_RX_PATH_HOST)
		snprintf(c->path, sizeof(c->path), "host: %s", rx->path_reason);
	else if (!c->unpack)
		snprintf(c->path, sizeof(c->path), "host: the network could not use %s with %s",
			 rx->path == GANTRY_RX_PATH_UNPACK ? "devmem TCP" : "the emulated NIC", c->peer);
	else
		snprintf(c->path, sizeof(c->path), "unpack (%s): %s",
			 rx->path == GANTRY_RX_PATH_UNPACK ? "devmem TCP" : "emulated NIC", rx->path_reason);
}
