/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver: opened at run time, and what tables of calls cannot say about its GPUs. */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "device/cuda/gpu.h"

struct gantry_cuda_api cu;

/* A missing function means a driver older than CUDA 11, or a library that only pretends to be it. */
static gantry_result find_calls(void *lib, char *why, size_t len)
{
	const char *missing = NULL;

	/* The detour over memcpy: ISO C has no cast from an object pointer to a function pointer. */
#define FIND(field, symbol, params)                                                                                    \
	{                                                                                                              \
		void *p = dlsym(lib, #symbol);                                                                         \
		memcpy(&cu.field, &p, sizeof(p));                                                                      \
		if (!p && !missing)                                                                                    \
			missing = #symbol;                                                                             \
	}
	GANTRY_CUDA_OPTIONAL(FIND)
	missing = NULL;
	GANTRY_CUDA_CALLS(FIND)
#undef FIND
	if (!missing)
		return GANTRY_OK;
	snprintf(why, len, "the CUDA driver is too old: libcuda.so.1 has no %s", missing);
	return GANTRY_ERR_UNSUPPORTED;
}

static gantry_result load_driver(char *why, size_t len)
{
	char text[128];
	unsigned e;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		const char *reason = dlerror();

		snprintf(why, len, "no CUDA driver: %s", reason ? reason : "libcuda.so.1 cannot be loaded");
		return GANTRY_ERR_UNSUPPORTED;
	}
	/* Never closed: the driver has threads and exit handlers of its own. */
	if (find_calls(lib, why, len) != GANTRY_OK)
		return GANTRY_ERR_UNSUPPORTED;
	e = cu.init(0);
	if (e == CUE_SUCCESS)
		return GANTRY_OK;
	snprintf(why, len, "the CUDA driver failed to initialise: %s", gantry_cuda_text(&cu, e, text, sizeof(text)));
	return GANTRY_ERR_UNSUPPORTED;
}

static void describe_gpu(struct cuda_gpu *g)
{
	g->base.ll128_local = gantry_cuda_attribute(g, CUV_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 7;
	g->writes_ordering = gantry_cuda_attribute(g, CUV_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
	g->flush_options = gantry_cuda_attribute(g, CUV_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
}

static gantry_result flush_writes(struct cuda_gpu *g)
{
	if (g->writes_ordering >= CUV_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
		return GANTRY_OK;
	if (!cu.flush_gpu_direct_rdma_writes || !(g->flush_options & CUV_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST))
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "gpu %d does not order writes of other devices and cannot flush them",
			 g->base.index);
	RETURN_CALL(g,
		    cu.flush_gpu_direct_rdma_writes(CUV_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
						    CUV_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
		    "flush remote writes to gpu %d", g->base.index);
}

static const unsigned char *image_of(const struct gantry_kernel_set *set)
{
	return set->fatbin;
}

const struct cuda_driver gantry_driver_cuda = {
	.kind = GANTRY_DEVICE_CUDA,
	.name = "CUDA",
	.compiler = "nvcc",
	.api = &cu,
	.load = load_driver,
	.describe = describe_gpu,
	.flush = flush_writes,
	.image = image_of,
};
