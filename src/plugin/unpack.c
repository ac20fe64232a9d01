/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device type UNPACK: what the core has decided, for NCCL and for people.
 *
 * NCCL asks for properties by device, not by context, and looks at those of the first device only. So there is one
 * answer for the process: that of the newest context that could have it (they all ask for what GANTRY_UNPACK says).
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include <stdlib.h>
#include <string.h>

#include "abi/unpack.h"
#include "base/atomic.h"
#include "base/log.h"
#include "device/device.h"
#include "plugin/plugin.h"

static int mode = GANTRY_NET_UNPACK_OFF; /* enum gantry_net_unpack; relaxed: init comes before properties */
static int said;			 /* atomic: 1 + mode of the last line */

/*
 * The network copies through the CUDA driver while NCCL's kernels wait for the bytes. A program that loads a kernel for
 * the first time meanwhile makes the driver, which has locked itself, wait for the GPU: then nothing moves any more. And NCCL
 * has a mind to take more channels for UNPACK, but does not (2.28).
 */
static void look_at_settings(void)
{
	const char *loading = getenv("CUDA_MODULE_LOADING"), *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");

	if (gantry_device_cuda_count(NULL, 0) == 0)
		return;
	if (!loading || strcmp(loading, "EAGER") != 0)
		LOG_WARN(PLUGIN, "UNPACK: set CUDA_MODULE_LOADING=EAGER for all ranks: a kernel that is loaded while a "
				 "collective runs can stop both");
	if (queues && strcmp(queues, "1") == 0)
		LOG_WARN(PLUGIN,
			 "UNPACK: CUDA_DEVICE_MAX_CONNECTIONS=1 lets copies wait behind the kernels that wait for "
			 "them: unset it, or set 16");
	if (!getenv("NCCL_NTHREADS") && !getenv("NCCL_MIN_NCHANNELS") && !getenv("NCCL_MIN_CTAS"))
		LOG_INFO(PLUGIN, "UNPACK: NCCL may take too few threads for its unpacking: NCCL_MIN_NCHANNELS=8 "
				 "NCCL_NTHREADS=512 can make large messages faster");
}

void gantry_plugin_unpack_note(void *ctx)
{
	static int looked, warned_of_pat;
	const char *pat = getenv("NCCL_PAT_ENABLE");
	char text[384];
	int now = gantry_net_tcp_unpack(ctx, text, sizeof(text));

	store_relaxed(&mode, now);
	if (exchange_relaxed(&said, 1 + now) != 1 + now)
		LOG_INFO(PLUGIN, "UNPACK: %s", text);
	if (now == GANTRY_NET_UNPACK_OFF)
		return;
	if (!exchange_relaxed(&looked, 1))
		look_at_settings();
	if ((!pat || strcmp(pat, "0") != 0) && !exchange_relaxed(&warned_of_pat, 1))
		LOG_WARN(PLUGIN,
			 "UNPACK: NCCL's PAT algorithm does not unpack, and NCCL does not leave it out by itself: "
			 "set NCCL_PAT_ENABLE=0 for all ranks");
}

void gantry_plugin_unpack_overlay(struct gantry_net_properties *p)
{
	int now = load_relaxed(&mode);

	if (now == GANTRY_NET_UNPACK_OFF)
		return;
	p->device_type = GANTRY_NET_DEVICE_UNPACK;
	p->device_version = GANTRY_UNPACK_VERSION;
	p->ptr_support |= GANTRY_NET_PTR_CUDA;
	if (now == GANTRY_NET_UNPACK_KERNEL)
		p->ptr_support |= GANTRY_NET_PTR_DMABUF;
	p->max_recvs = 1; /* else several connections would share one comm, and only the first would have the handle */
}
