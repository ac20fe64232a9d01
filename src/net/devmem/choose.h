/* SPDX-License-Identifier: Apache-2.0 */
/* How payload reaches device memory: what was asked for against what NIC, kernel and device can do. */
#ifndef GANTRY_NET_DEVMEM_CHOOSE_H
#define GANTRY_NET_DEVMEM_CHOOSE_H

#include <stddef.h>

#include "gantry/result.h"
#include "net/devmem/source.h"
#include "net/net.h"

/*
 * want: PARAM asks GANTRY_UNPACK. Devmem TCP that was asked for by name and cannot be used is ERR_UNSUPPORTED with the
 * reason; `auto` falls back to NONE and the reason stands in `why` (which is "" otherwise). Changes nothing.
 */
gantry_result devmem_choose(enum gantry_net_unpack want, const char *nic, struct gantry_device *dev,
			    enum devmem_kind *ret_kind, char *why, size_t len);

#endif
