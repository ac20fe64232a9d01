/* SPDX-License-Identifier: Apache-2.0 */
/* What users of stock NCCL read with NCCL_DEBUG=INFO. The interfaces have a line of their own (inet/nic.c). */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include "plugin/start.h"
#include <strings.h>

#include "base/atomic.h"
#include "base/build.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "net/net.h"

void plugin_follow_nccl_debug(void)
{
	const char *level = gantry_variable("NCCL_DEBUG");

	if (level && !gantry_variable("GANTRY_LOG") && (!strcasecmp(level, "INFO") || !strcasecmp(level, "TRACE")))
		store_relaxed(&gantry_log_level_now, (int)GANTRY_LOG_INFO);
}

void plugin_say_start(const char *tuning)
{
	const struct gantry_params *p = gantry_params();

	LOG_INFO(PLUGIN, "version %s; %s per connection; tuning: %s; security: %s", gantry_build,
		 COUNT_TEXT(gantry_net_tcp_lanes(0, 0), "bulk lane"), tuning,
		 p->encrypt == PARAM_ENCRYPT_REQUIRE ? "peers prove the secret, everything is encrypted"
		 : p->encrypt == PARAM_ENCRYPT_ON    ? "peers prove the secret, encrypted where they have it on too"
		 : *p->secret || *p->secret_file     ? "peers prove the secret, nothing is encrypted"
						     : "none (GANTRY_SECRET is not set)");
}
