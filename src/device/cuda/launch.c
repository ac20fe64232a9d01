/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: loaded when the device is opened, launched with their arguments by value.
 *
 * Where blocks wait for each other through their connections, all of a launch must run at the same time. A grid that
 * does not fit beside nothing else is refused here; that the rest of the GPU is free in time is up to the program, as
 * with every communication library. Kernels whose blocks wait for nobody (kernels.def) may have any number.
 *
 * Loading is done early and completely: the driver may wait for running kernels when it loads one, and a running kernel
 * may be waiting for the one that is to be loaded.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "device/cuda/gpu.h"
#include "device/work.h"

static const struct {
	const char *name;
	size_t args_size;
	uint32_t lanes; /* at most */
	int together;
} kernels[GANTRY_KERNEL_COUNT] = {
#define GANTRY_KERNEL_ENUM(kernel, args, most, wait)                                                                   \
	[GANTRY_KERNEL_##                                                                                              \
		kernel] = {.name = #kernel, .args_size = sizeof(struct args), .lanes = (most), .together = (wait)},
#include "device/kernels.def"
#undef GANTRY_KERNEL_ENUM
};

/* Those that move data want a whole multiprocessor's loads in flight; of the FIFO's only lane 0 does anything. */
static uint32_t default_lanes(enum gantry_kernel kernel)
{
	return kernel == GANTRY_KERNEL_FIFO ? (uint32_t)CUDA_WARP : kernels[kernel].lanes;
}

/* nvcc and this compiler must have laid out the same struct; only newer drivers can tell. */
static int same_layout(cu_function f, size_t size)
{
	size_t offset, found;

	return !cu.func_get_param_info || cu.func_get_param_info(f, 0, &offset, &found) != CUE_SUCCESS || found == size;
}

/* Also makes the driver load the kernel, see above. *ret_blocks is at least 1. */
static unsigned fit(struct cuda_gpu *g, enum gantry_kernel kernel, uint32_t lanes, uint32_t *ret_blocks)
{
	uint32_t *known = &g->fit[kernel][lanes / CUDA_WARP];
	uint32_t blocks = load_relaxed(known);
	int per_sm;
	unsigned e;

	if (blocks == 0) {
		e = cu.occupancy(&per_sm, g->functions[kernel], (int)lanes, 0);
		if (e == CUE_SUCCESS && per_sm < 1)
			e = CUE_LAUNCH_OUT_OF_RESOURCES;
		if (e != CUE_SUCCESS)
			return e;
		blocks = (uint32_t)per_sm * g->sms;
		store_relaxed(known, blocks);
	}
	*ret_blocks = blocks;
	return CUE_SUCCESS;
}

static unsigned find_kernel(struct cuda_gpu *g, enum gantry_kernel kernel, const char **ret_what)
{
	char symbol[64];
	uint32_t blocks;
	unsigned e;

	snprintf(symbol, sizeof(symbol), "gantry_%s", kernels[kernel].name);
	for (char *p = symbol; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	*ret_what = kernels[kernel].name;
	e = cu.module_get_function(&g->functions[kernel], g->module, symbol);
	if (e == CUE_SUCCESS && !same_layout(g->functions[kernel], kernels[kernel].args_size))
		e = CUE_INVALID_IMAGE;
	if (e == CUE_SUCCESS)
		e = fit(g, kernel, default_lanes(kernel), &blocks);
	return e;
}

/* The context is current. */
void gantry_cuda_kernels_load(struct cuda_gpu *g)
{
	const char *what = "the module";
	char text[96];
	size_t size;
	unsigned e = CUE_SUCCESS;
	const void *image = gantry_cuda_fatbin(&size);

	if (!image) {
		snprintf(g->no_kernels, sizeof(g->no_kernels), "built without nvcc: no kernels");
		LOG_INFO(DEVICE, "gpu %d: %s", g->base.index, g->no_kernels);
		return;
	}
	e = cu.module_load_data(&g->module, image);
	if (e != CUE_SUCCESS)
		g->module = NULL;
	for (int k = 0; k < GANTRY_KERNEL_COUNT && e == CUE_SUCCESS; k++)
		e = find_kernel(g, (enum gantry_kernel)k, &what);
	if (e == CUE_SUCCESS)
		return;
	snprintf(g->no_kernels, sizeof(g->no_kernels), "cannot load %s: %s", what,
		 gantry_cuda_text(e, text, sizeof(text)));
	LOG_WARN(DEVICE, "gpu %d (%s): %s", g->base.index, g->base.name, g->no_kernels);
	if (g->module)
		cu.module_unload(g->module);
	g->module = NULL;
}

gantry_result gantry_cuda_launch(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_launch *l)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	const uint32_t *abort = l->abort;
	void *params[2];
	uint32_t most, lanes;

	if (!g->module)
		FAIL(GANTRY_ERR_UNSUPPORTED, "gpu %d: %s", dev->index, g->no_kernels);
	if ((unsigned)l->kernel >= GANTRY_KERNEL_COUNT || l->args_size != kernels[l->kernel].args_size)
		FAIL(GANTRY_ERR_INVALID, "launch of kernel %d with %zu bytes of arguments", (int)l->kernel,
		     l->args_size);
	lanes = l->lanes ? l->lanes : default_lanes(l->kernel);
	if (lanes % CUDA_WARP || lanes > kernels[l->kernel].lanes)
		FAIL(GANTRY_ERR_INVALID, "launch of %s with %u lanes: a multiple of %d up to %u on a gpu",
		     kernels[l->kernel].name, lanes, CUDA_WARP, kernels[l->kernel].lanes);
	ENTER(g, was);
	most = CUDA_MAX_BLOCKS;
	if (kernels[l->kernel].together)
		CU(fit(g, l->kernel, lanes, &most), "blocks of %s on gpu %d", kernels[l->kernel].name, dev->index);
	if (l->blocks == 0 || l->blocks > most)
		FAIL(GANTRY_ERR_LIMIT, "launch of %s with %u blocks of %u lanes: gpu %d takes 1 to %u%s",
		     kernels[l->kernel].name, l->blocks, lanes, dev->index, most,
		     kernels[l->kernel].together ? ", which run at the same time" : "");
	memcpy(&params[0], &l->args, sizeof(params[0])); /* the driver reads it, whatever its prototype says */
	params[1] = &abort;
	CU(cu.launch_kernel(g->functions[l->kernel], l->blocks, 1, 1, lanes, 1, 1, 0, cuda_stream_of(s)->native, params,
			    NULL),
	   "launch of %s with %u blocks on gpu %d", kernels[l->kernel].name, l->blocks, dev->index);
out:
	cuda_leave(g, was);
	return r;
}
