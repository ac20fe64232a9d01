/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: registered in sets (kernels.h), loaded when the device is opened, launched with their arguments by value.
 *
 * Where blocks wait for each other through their connections, all of a launch must run at the same time. A grid that
 * does not fit beside nothing else is refused here; that the rest of the GPU is free in time is up to the program, as
 * with every communication library. Kernels whose blocks do not wait for each other (kernels.h) may have any number.
 *
 * Loading is done early and completely: the driver may wait for running kernels when it loads one, and a running kernel
 * may be waiting for the one that is to be loaded.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/atomic.h"
#include "base/log.h"
#include "device/cuda/gpu.h"

struct gantry_kernel_set *gantry_kernel_sets;

void gantry_kernels_register(struct gantry_kernel_set *set)
{
	static uint32_t all;

	ASSERT(all + set->n <= GANTRY_KERNELS_MAX);
	for (uint32_t i = 0; i < set->n; i++)
		set->kernels[i]->number = all++;
	set->next = gantry_kernel_sets;
	gantry_kernel_sets = set;
}

/* nvcc and this compiler must have laid out the same struct; only newer drivers can tell. */
static int same_layout(const struct gantry_cuda_api *api, cu_function f, size_t size)
{
	size_t offset, found;

	return !api->func_get_param_info || api->func_get_param_info(f, 0, &offset, &found) != CUE_SUCCESS ||
	       found == size;
}

/* Also makes the driver load the kernel, see above. *ret_blocks is at least 1. */
static unsigned fit(struct cuda_gpu *g, const struct gantry_kernel *kernel, uint32_t lanes, uint32_t *ret_blocks)
{
	uint32_t *known = &g->fit[kernel->number][lanes / CUDA_WARP];
	uint32_t blocks = load_relaxed(known);
	int per_sm;
	unsigned e;

	if (blocks == 0) {
		e = g->api->occupancy(&per_sm, g->functions[kernel->number], (int)lanes, 0);
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

static unsigned find_kernel(struct cuda_gpu *g, cu_module module, const struct gantry_kernel *kernel)
{
	cu_function *f = &g->functions[kernel->number];
	char symbol[64];
	uint32_t blocks;
	unsigned e;

	snprintf(symbol, sizeof(symbol), "gantry_%s", kernel->name);
	e = g->api->module_get_function(f, module, symbol);
	if (e == CUE_SUCCESS && !same_layout(g->api, *f, kernel->args_size))
		e = CUE_INVALID_IMAGE;
	if (e == CUE_SUCCESS)
		e = fit(g, kernel, kernel->lanes, &blocks);
	return e;
}

static unsigned load_set(struct cuda_gpu *g, const struct gantry_kernel_set *set, const char **ret_what)
{
	cu_module *module = &g->modules[g->nmodules];
	unsigned e = g->nmodules < CUDA_MODULES ? g->api->module_load_data(module, g->driver->image(set))
						: CUE_INVALID_VALUE;

	*ret_what = set->name;
	if (e != CUE_SUCCESS)
		return e;
	g->nmodules++;
	for (uint32_t k = 0; k < set->n && e == CUE_SUCCESS; k++) {
		*ret_what = set->kernels[k]->name;
		e = find_kernel(g, *module, set->kernels[k]);
	}
	return e;
}

/* The context is current. */
void gantry_cuda_kernels_load(struct cuda_gpu *g)
{
	const char *what = "";
	char text[96];
	unsigned e = CUE_SUCCESS;

	snprintf(g->no_kernels, sizeof(g->no_kernels), "built without %s, so there are no kernels",
		 g->driver->compiler);
	for (const struct gantry_kernel_set *set = gantry_kernel_sets; set && e == CUE_SUCCESS; set = set->next)
		if (g->driver->image(set))
			e = load_set(g, set, &what);
	if (e != CUE_SUCCESS) {
		snprintf(g->no_kernels, sizeof(g->no_kernels), "cannot load %s: %s", what,
			 gantry_cuda_text(g->api, e, text, sizeof(text)));
		LOG_WARN(DEVICE, "gpu %d (%s): %s", g->base.index, g->base.name, g->no_kernels);
		cuda_unload_kernels(g);
	} else if (!g->nmodules && gantry_kernel_sets) { /* a plugin launches nothing */
		LOG_INFO(DEVICE, "gpu %d: %s", g->base.index, g->no_kernels);
	}
}

gantry_result gantry_cuda_launch(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_launch *l)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);
	const uint32_t *abort = l->abort;
	void *params[2];
	uint32_t most, lanes;

	if (!g->nmodules)
		FAIL(GANTRY_ERR_UNSUPPORTED, "gpu %d: %s", dev->index, g->no_kernels);
	if (l->args_size != l->kernel->args_size)
		FAIL(GANTRY_ERR_INVALID, "launch of %s with %zu bytes of arguments", l->kernel->name, l->args_size);
	lanes = l->lanes ? l->lanes : l->kernel->lanes;
	if (lanes % CUDA_WARP || lanes > l->kernel->lanes)
		FAIL(GANTRY_ERR_INVALID, "launch of %s with %u lanes: a multiple of %d up to %u on a gpu",
		     l->kernel->name, lanes, CUDA_WARP, l->kernel->lanes);
	CU(cuda_enter_stream(g, &was), "make gpu %d current", dev->index);
	most = CUDA_MAX_BLOCKS;
	if (l->kernel->together)
		CU(fit(g, l->kernel, lanes, &most), "blocks of %s on gpu %d", l->kernel->name, dev->index);
	if (l->blocks == 0 || l->blocks > most)
		FAIL(GANTRY_ERR_LIMIT, "launch of %s with %u blocks of %u lanes: gpu %d takes 1 to %u%s",
		     l->kernel->name, l->blocks, lanes, dev->index, most,
		     l->kernel->together ? ", which run at the same time" : "");
	memcpy(&params[0], &l->args, sizeof(params[0])); /* the driver reads it, whatever its prototype says */
	params[1] = &abort;
	CU(g->api->launch_kernel(g->functions[l->kernel->number], l->blocks, 1, 1, lanes, 1, 1, 0,
				 cuda_stream_of(s)->native, params, NULL),
	   "launch of %s with %u blocks on gpu %d", l->kernel->name, l->blocks, dev->index);
out:
	cuda_leave(g, &was);
	return r;
}
