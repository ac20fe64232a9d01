/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drivers, each loaded when it is first asked for, and results of their errors. GPUs: one counted object for each,
 * around its primary context.
 *
 * The primary context is the one that the CUDA runtime uses, so memory and streams of PyTorch or of any program are
 * valid here as they are. Retaining it does not change its flags.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "device/cuda/gpu.h"

/* Of each driver, by its kind. */
MUTEX_KIND(cuda_driver_mu);
static struct cuda_driver_mu cuda_driver_mu_one;
struct loading {
	pid_t by; /* 0: not tried yet */
	gantry_result result;
	char why[256];
};
static struct loading loadings[GANTRY_DEVICE_HIP + 1] GUARDED_BY(cuda_driver_mu);

/* The first time; any thread. Does not log: a machine without a GPU is no error. On failure `why` says why. */
static gantry_result load_once(const struct cuda_driver *d, char *why, size_t len)
{
	struct loading *l;
	gantry_result r;

	cuda_driver_mu_lock(&cuda_driver_mu_one);
	l = &loadings[d->kind];
	if (!l->by) {
		l->result = d->load(l->why, sizeof(l->why));
		l->by = getpid();
	}
	r = l->result;
	if (r != GANTRY_OK) {
		snprintf(why, len, "%s", l->why);
	} else if (getpid() != l->by) {
		r = GANTRY_ERR_USAGE;
		snprintf(why, len, "%s was initialised in process %d before it forked: fork before using %s", d->name,
			 (int)l->by, d->name);
	}
	cuda_driver_mu_unlock(&cuda_driver_mu_one);
	return r;
}

/* The result that stands for a driver error; NOT_READY is AGAIN. */
static gantry_result result_of(unsigned error)
{
	static const struct {
		unsigned error;
		gantry_result r;
	} known[] = {
		{CUE_SUCCESS, GANTRY_OK},
		{CUE_NOT_READY, GANTRY_AGAIN},
		{CUE_OUT_OF_MEMORY, GANTRY_ERR_NOMEM},
		{CUE_INVALID_VALUE, GANTRY_ERR_INVALID},
		{CUE_INVALID_DEVICE, GANTRY_ERR_INVALID},
		{CUE_LAUNCH_OUT_OF_RESOURCES, GANTRY_ERR_LIMIT},
		{CUE_STUB_LIBRARY, GANTRY_ERR_UNSUPPORTED},
		{CUE_NO_DEVICE, GANTRY_ERR_UNSUPPORTED},
		{CUE_INVALID_IMAGE, GANTRY_ERR_UNSUPPORTED},
		{CUE_NO_BINARY_FOR_GPU, GANTRY_ERR_UNSUPPORTED},
		{CUE_PEER_ACCESS_UNSUPPORTED, GANTRY_ERR_UNSUPPORTED},
		{CUE_INVALID_PTX, GANTRY_ERR_UNSUPPORTED},
		{CUE_JIT_COMPILER_NOT_FOUND, GANTRY_ERR_UNSUPPORTED},
		{CUE_UNSUPPORTED_PTX_VERSION, GANTRY_ERR_UNSUPPORTED},
		{CUE_NOT_PERMITTED, GANTRY_ERR_UNSUPPORTED},
		{CUE_NOT_SUPPORTED, GANTRY_ERR_UNSUPPORTED},
		{CUE_SYSTEM_DRIVER_MISMATCH, GANTRY_ERR_UNSUPPORTED},
		{CUE_COMPAT_NOT_SUPPORTED_ON_DEVICE, GANTRY_ERR_UNSUPPORTED},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (known[i].error == error)
			return known[i].r;
	/* A kernel that crashed, a broken context, the hardware: what the caller asked for was fine. */
	return GANTRY_ERR_DEVICE;
}

const char *gantry_cuda_text(const struct gantry_cuda_api *api, unsigned error, char *buf, size_t len)
{
	const char *name = NULL, *text = NULL;

	if (api->get_error_name(error, &name) != CUE_SUCCESS || !name)
		name = "unnamed error";
	if (api->get_error_string(error, &text) != CUE_SUCCESS || !text)
		text = "unknown error";
	snprintf(buf, len, "%s (%s, %u)", text, name, error);
	return buf;
}

gantry_result gantry_cuda_fail(const struct gantry_cuda_api *api, unsigned error, const char *file, int line,
			       const char *fmt, ...)
{
	char what[256], text[128];
	va_list args;

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	return gantry_fail(result_of(error), LOG_SUBSYS, file, line, "%s: %s", what,
			   gantry_cuda_text(api, error, text, sizeof(text)));
}

/* ---- GPUs ---- */

MUTEX_KIND(cuda_gpus_mu);
static struct cuda_gpus_mu cuda_gpus_mu_one;
static struct cuda_gpu *gpus[GANTRY_DEVICE_HIP + 1][CUDA_MAX_GPUS] GUARDED_BY(cuda_gpus_mu); /* by kind and index */

static void gpu_destroy(struct cuda_gpu *g)
{
	struct cuda_was was;

	if (!g)
		return;
	if (g->ctx) {
		/* Errors are no news here: after main the driver has shut itself down, and all this with it. */
		was = cuda_here(g);
		if (cuda_enter(g, &was) == CUE_SUCCESS) {
			gantry_cuda_ipc_close_all(g);
			cuda_unload_kernels(g);
			if (g->side)
				g->api->stream_destroy(g->side);
			gantry_cuda_queues_close(g);
		}
		cuda_leave(g, &was);
		g->api->primary_ctx_release(g->device);
	}
	free(g);
}

static void gpu_close(struct gantry_device *dev)
{
	struct cuda_gpu *g = cuda_gpu_of(dev), *gone = NULL;

	cuda_gpus_mu_lock(&cuda_gpus_mu_one);
	if (--g->refs == 0) {
		gpus[dev->kind][dev->index] = NULL;
		gone = g;
	}
	/* Within the lock: a thread that reopens this GPU at once finds it closed, not half closed. */
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

/* 0 also where an older driver does not know it: it cannot export, then, and writes must be flushed. */
int gantry_cuda_attribute(const struct cuda_gpu *g, unsigned attribute)
{
	int value = 0;

	return g->api->device_get_attribute(&value, attribute, g->device) == CUE_SUCCESS ? value : 0;
}

/* What the driver says about the GPU; needs no context. */
static gantry_result describe(struct cuda_gpu *g)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *dev = &g->base;

	CU(g->api->device_get(&g->device, dev->index), "gpu %d", dev->index);
	CU(g->api->device_get_name(dev->name, sizeof(dev->name), g->device), "name of gpu %d", dev->index);
	CU(g->api->device_get_pci_bus_id(dev->bus_id, sizeof(dev->bus_id), g->device), "PCI address of gpu %d",
	   dev->index);
	for (char *p = dev->bus_id; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	dev->numa_node = numa_node_of(dev->bus_id);
	/* Pointers alone must say where they lead: copies, `pointer` and the FIFO's words rely on it. */
	if (!gantry_cuda_attribute(g, CUV_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING))
		FAIL(GANTRY_ERR_UNSUPPORTED, "gpu %d (%s) has no unified addressing", dev->index, dev->name);
	g->sms = (uint32_t)gantry_cuda_attribute(g, CUV_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	g->stores = gantry_cuda_attribute(g, CUV_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) &&
		    g->api->stream_write_value64;
	dev->sleeps = 0;
	dev->dmabuf = gantry_cuda_attribute(g, CUV_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) &&
		      g->api->mem_get_handle_for_address_range;
	g->driver->describe(g);
out:
	return r;
}

static gantry_result gpu_create(const struct cuda_driver *driver, int index, struct cuda_gpu **ret_gpu)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = calloc(1, sizeof(*g));
	struct cuda_was was = {NULL, CUV_STREAM_CAPTURE_MODE_RELAXED};

	if (!g)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a device");
	g->driver = driver;
	g->api = driver->api;
	gantry_list_init(&g->ipcs);
	g->base.ops = &ops;
	g->base.kind = driver->kind;
	g->base.index = index;
	TRY(describe(g));
	CU(g->api->primary_ctx_retain(&g->ctx, g->device), "context of gpu %d (%s)", index, g->base.name);
	was = cuda_here(g);
	ENTER(g, was);
	CU(gantry_cuda_stream_apart(g, &g->side), "create a stream on gpu %d", index);
	TRY(gantry_cuda_queues_open(g));
	gantry_cuda_kernels_load(g);
	g->base.max_blocks = g->nmodules ? g->sms : 0;
	g->base.default_lanes = CUDA_MAX_LANES;
	LOG_INFO(DEVICE, "gpu %d: %s at %s, numa node %d, %u multiprocessors", index, g->base.name, g->base.bus_id,
		 g->base.numa_node, g->sms);
	*ret_gpu = g;
	cuda_leave(g, &was);
	g = NULL;
out:
	if (g && g->ctx)
		cuda_leave(g, &was);
	gpu_destroy(g);
	return r;
}

gantry_result gantry_cuda_open(const struct cuda_driver *d, int index, struct gantry_device **ret_dev)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu **place;
	char why[256];
	int count = 0;

	cuda_gpus_mu_lock(&cuda_gpus_mu_one);
	TRY(gantry_params_load(0)); /* how waiting threads wait */
	r = load_once(d, why, sizeof(why));
	if (r != GANTRY_OK)
		FAIL(r, "gpu %d: %s", index, why);
	CU_OF(d->api, d->api->device_get_count(&count), "count gpus");
	if (index < 0 || index >= count || index >= CUDA_MAX_GPUS)
		FAIL(GANTRY_ERR_INVALID, "gpu %d does not exist: there are %d", index, count);
	place = &gpus[d->kind][index];
	if (!*place)
		TRY(gpu_create(d, index, place));
	(*place)->refs++;
	*ret_dev = &(*place)->base;
out:
	cuda_gpus_mu_unlock(&cuda_gpus_mu_one);
	return r;
}

int gantry_cuda_count(const struct cuda_driver *d, char *why, size_t len)
{
	char text[128], reason[256];
	int count = 0;
	unsigned e;

	if (len)
		*why = '\0';
	if (load_once(d, reason, sizeof(reason)) != GANTRY_OK) {
		snprintf(why, len, "%s", reason);
		return 0;
	}
	e = d->api->device_get_count(&count);
	if (e != CUE_SUCCESS)
		snprintf(why, len, "the %s driver did not return a device count: %s", d->name,
			 gantry_cuda_text(d->api, e, text, sizeof(text)));
	else if (count == 0)
		snprintf(why, len, "the %s driver shows no GPU", d->name);
	return e == CUE_SUCCESS ? count : 0;
}

gantry_result gantry_device_cuda(int index, struct gantry_device **ret_dev)
{
	return gantry_cuda_open(&gantry_driver_cuda, index, ret_dev);
}

int gantry_device_cuda_count(char *why, size_t len)
{
	return gantry_cuda_count(&gantry_driver_cuda, why, len);
}

bool gantry_device_cuda_offers_windows(char *why, size_t len)
{
	int count = gantry_device_cuda_count(why, len), offers = 0;
	cu_device device;

	for (int i = 0; i < count; i++) {
		if (cu.device_get(&device, i) == CUE_SUCCESS &&
		    cu.device_get_attribute(&offers, CUV_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
					    device) == CUE_SUCCESS &&
		    offers)
			continue;
		snprintf(why, len, "gpu %d does not support GPUDirect RDMA with CUDA's virtual memory", i);
		return false;
	}
	return count > 0;
}

uint32_t gantry_bus_hash(const char *bus_id)
{
	uint32_t h = 2166136261u;

	for (const char *p = bus_id; *p; p++)
		h = (h ^ (unsigned char)tolower((unsigned char)*p)) * 16777619u;
	return h ? h : 1;
}

/* The driver's word for both directions. No context is made on the other GPU: that would take memory of it. */
static int reach_each_other(const struct gantry_cuda_api *api, cu_device a, cu_device b)
{
	int there = 0, back = 0;

	return api->device_can_access_peer(&there, a, b) == CUE_SUCCESS && there &&
	       api->device_can_access_peer(&back, b, a) == CUE_SUCCESS && back;
}

int gantry_device_apart(const struct gantry_device *dev, uint32_t *ret_hashes, int most)
{
	const struct cuda_driver *driver;
	const struct gantry_cuda_api *api;
	int count, n = 0;
	cu_device own, other;
	char bus_id[24];

	if (dev->kind == GANTRY_DEVICE_HOST)
		return 0;
	driver = ((const struct cuda_gpu *)dev)->driver;
	api = driver->api;
	count = gantry_cuda_count(driver, NULL, 0);
	if (count < 2 || api->device_get(&own, dev->index) != CUE_SUCCESS)
		return 0;
	for (int i = 0; i < count && n < most; i++) {
		if (i == dev->index || api->device_get(&other, i) != CUE_SUCCESS || reach_each_other(api, own, other) ||
		    api->device_get_pci_bus_id(bus_id, sizeof(bus_id), other) != CUE_SUCCESS)
			continue;
		ret_hashes[n++] = gantry_bus_hash(bus_id);
	}
	return n;
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
