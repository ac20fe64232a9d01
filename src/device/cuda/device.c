/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs: one counted object for each, around its primary context.
 *
 * The primary context is the one that the CUDA runtime uses, so memory and streams of PyTorch or of any program are
 * valid here as they are. Retaining it does not change its flags.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "device/cuda/gpu.h"

MUTEX_KIND(cuda_gpus_mu);
static struct cuda_gpus_mu cuda_gpus_mu_one = MUTEX_INITIALIZER;
static struct cuda_gpu *gpus[CUDA_MAX_GPUS]; /* under `lock` */

static void gpu_destroy(struct cuda_gpu *g)
{
	cu_context was;

	if (!g)
		return;
	if (g->ctx) {
		/* Errors are no news here: after main the driver has shut itself down, and all this with it. */
		was = g->ctx;
		if (cuda_enter(g, &was) == CUE_SUCCESS) {
			gantry_cuda_ipc_close_all(g);
			cuda_unload_kernels(g);
			if (g->side)
				cu.stream_destroy(g->side);
			gantry_cuda_ways_close(g);
		}
		cuda_leave(g, was);
		cu.primary_ctx_release(g->device);
	}
	mutex_destroy(&g->lock);
	free(g);
}

static void gpu_close(struct gantry_device *dev)
{
	struct cuda_gpu *g = cuda_gpu_of(dev), *gone = NULL;

	cuda_gpus_mu_lock(&cuda_gpus_mu_one);
	if (--g->refs == 0) {
		gpus[dev->index] = NULL;
		gone = g;
	}
	/* Within the lock: who opens this GPU again at once finds it closed, not half closed. */
	gpu_destroy(gone);
	cuda_gpus_mu_unlock(&cuda_gpus_mu_one);
}

static const struct gantry_device_ops ops = {
	.close = gpu_close,
#define OP(name, params) .name = gantry_cuda_##name,
#include "device/ops.def"
};

static int numa_node_of(const char *bus_id)
{
	char path[96];
	int node = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus_id);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &node) != 1)
		node = -1;
	if (f)
		fclose(f);
	return node;
}

/* What the driver says about the GPU; needs no context. */
static gantry_result describe(struct cuda_gpu *g)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *dev = &g->base;
	int major, sms, unified, dmabuf = 0;

	CU(cu.device_get(&g->device, dev->index), "gpu %d", dev->index);
	CU(cu.device_get_name(dev->name, sizeof(dev->name), g->device), "name of gpu %d", dev->index);
	CU(cu.device_get_pci_bus_id(dev->bus_id, sizeof(dev->bus_id), g->device), "PCI address of gpu %d", dev->index);
	for (char *p = dev->bus_id; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	dev->numa_node = numa_node_of(dev->bus_id);
	CU(cu.device_get_attribute(&major, CUV_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, g->device),
	   "compute capability of gpu %d", dev->index);
	CU(cu.device_get_attribute(&sms, CUV_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, g->device),
	   "multiprocessors of gpu %d", dev->index);
	CU(cu.device_get_attribute(&unified, CUV_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, g->device),
	   "addressing of gpu %d", dev->index);
	/* Pointers alone must say where they lead: copies, `pointer` and the FIFO's words rely on it. */
	if (!unified)
		FAIL(GANTRY_ERR_UNSUPPORTED, "gpu %d (%s) has no unified addressing", dev->index, dev->name);
	g->sms = (uint32_t)sms;
	dev->ll128_local = major >= 7;
	dev->sleeps = 0;
	/* Attributes that an older driver does not know are 0: it cannot export, and its writes must be flushed. */
	if (cu.device_get_attribute(&dmabuf, CUV_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, g->device) != CUE_SUCCESS)
		dmabuf = 0;
	dev->dmabuf = dmabuf && cu.mem_get_handle_for_address_range;
	if (cu.device_get_attribute(&g->writes_ordering, CUV_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
				    g->device) != CUE_SUCCESS)
		g->writes_ordering = 0;
	if (cu.device_get_attribute(&g->flush_options, CUV_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
				    g->device) != CUE_SUCCESS)
		g->flush_options = 0;
out:
	return r;
}

static gantry_result gpu_create(int index, struct cuda_gpu **ret_gpu)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = calloc(1, sizeof(*g));
	cu_context was = NULL;

	if (!g)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a device");
	mutex_init(&g->lock);
	gantry_list_init(&g->ipcs);
	g->base.ops = &ops;
	g->base.kind = GANTRY_DEVICE_CUDA;
	g->base.index = index;
	TRY(describe(g));
	CU(cu.primary_ctx_retain(&g->ctx, g->device), "context of gpu %d (%s)", index, g->base.name);
	was = g->ctx;
	ENTER(g, was);
	TRY(gantry_cuda_stream_apart(g, &g->side));
	TRY(gantry_cuda_ways_open(g));
	gantry_cuda_kernels_load(g);
	g->base.max_blocks = g->nmodules ? g->sms : 0;
	g->base.default_lanes = CUDA_MAX_LANES;
	LOG_INFO(DEVICE, "gpu %d: %s at %s, numa node %d, %u multiprocessors", index, g->base.name, g->base.bus_id,
		 g->base.numa_node, g->sms);
	*ret_gpu = g;
	cuda_leave(g, was);
	g = NULL;
out:
	if (g && g->ctx)
		cuda_leave(g, was);
	gpu_destroy(g);
	return r;
}

gantry_result gantry_device_cuda(int index, struct gantry_device **ret_dev)
{
	gantry_result r = GANTRY_OK;
	char why[256];
	int count = 0;

	cuda_gpus_mu_lock(&cuda_gpus_mu_one);
	TRY(gantry_params_load(0)); /* how waiting threads wait */
	r = gantry_cuda_load(why, sizeof(why));
	if (r != GANTRY_OK)
		FAIL(r, "gpu %d: %s", index, why);
	CU(cu.device_get_count(&count), "count gpus");
	if (index < 0 || index >= count || index >= CUDA_MAX_GPUS)
		FAIL(GANTRY_ERR_INVALID, "gpu %d: there are %d", index, count);
	if (!gpus[index])
		TRY(gpu_create(index, &gpus[index]));
	gpus[index]->refs++;
	*ret_dev = &gpus[index]->base;
out:
	cuda_gpus_mu_unlock(&cuda_gpus_mu_one);
	return r;
}

int gantry_device_cuda_count(char *why, size_t len)
{
	char text[128], reason[256];
	int count = 0;
	unsigned e;

	if (len)
		*why = '\0';
	if (gantry_cuda_load(reason, sizeof(reason)) != GANTRY_OK) {
		snprintf(why, len, "%s", reason);
		return 0;
	}
	e = cu.device_get_count(&count);
	if (e != CUE_SUCCESS)
		snprintf(why, len, "the CUDA driver does not count: %s", gantry_cuda_text(e, text, sizeof(text)));
	else if (count == 0)
		snprintf(why, len, "the CUDA driver shows no GPU");
	return e == CUE_SUCCESS ? count : 0;
}

gantry_result gantry_device_current(struct gantry_device **ret_dev)
{
	cu_device current, other;
	int count = gantry_device_cuda_count(NULL, 0);

	if (count > 0 && cu.ctx_get_device(&current) == CUE_SUCCESS)
		for (int i = 0; i < count; i++)
			if (cu.device_get(&other, i) == CUE_SUCCESS && other == current)
				return gantry_device_cuda(i, ret_dev);
	return gantry_device_host(ret_dev);
}
