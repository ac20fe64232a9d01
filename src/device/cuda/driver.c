/* SPDX-License-Identifier: Apache-2.0 */
/* Opens libcuda.so.1, finds its functions, and makes results of its errors. */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mutex.h"

struct gantry_cuda_api cu;

/* Under `lock`. */
MUTEX_KIND(cuda_driver_mu);
static struct cuda_driver_mu cuda_driver_mu_one = MUTEX_INITIALIZER;
static int loaded; /* 0: not tried yet */
static pid_t loaded_by;
static gantry_result load_result;
static char load_why[256];

/* A missing function means a driver older than CUDA 11, or a library that only pretends to be it. */
static gantry_result find_calls(void *lib)
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
	snprintf(load_why, sizeof(load_why), "the CUDA driver is too old: libcuda.so.1 has no %s", missing);
	return GANTRY_ERR_UNSUPPORTED;
}

static gantry_result load(void)
{
	char text[128];
	unsigned e;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		const char *said = dlerror();

		snprintf(load_why, sizeof(load_why), "no CUDA driver: %s",
			 said ? said : "libcuda.so.1 cannot be loaded");
		return GANTRY_ERR_UNSUPPORTED;
	}
	/* Never closed: the driver has threads and exit handlers of its own. */
	if (find_calls(lib) != GANTRY_OK)
		return GANTRY_ERR_UNSUPPORTED;
	e = cu.init(0);
	if (e == CUE_SUCCESS)
		return GANTRY_OK;
	snprintf(load_why, sizeof(load_why), "the CUDA driver does not start: %s",
		 gantry_cuda_text(e, text, sizeof(text)));
	return GANTRY_ERR_UNSUPPORTED;
}

gantry_result gantry_cuda_load(char *why, size_t len)
{
	gantry_result r;

	cuda_driver_mu_lock(&cuda_driver_mu_one);
	if (!loaded) {
		load_result = load();
		loaded_by = getpid();
		loaded = 1;
	}
	r = load_result;
	if (r == GANTRY_OK && getpid() != loaded_by) {
		r = GANTRY_ERR_USAGE;
		if (why)
			snprintf(why, len, "CUDA was initialised in process %d, which then forked: fork first",
				 (int)loaded_by);
	} else if (r != GANTRY_OK && why) {
		snprintf(why, len, "%s", load_why);
	}
	cuda_driver_mu_unlock(&cuda_driver_mu_one);
	return r;
}

gantry_result gantry_cuda_result(unsigned error)
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
	return GANTRY_ERR_SYSTEM;
}

const char *gantry_cuda_text(unsigned error, char *buf, size_t len)
{
	const char *name = NULL, *text = NULL;

	if (cu.get_error_name(error, &name) != CUE_SUCCESS || !name)
		name = "CUDA_ERROR_?";
	if (cu.get_error_string(error, &text) != CUE_SUCCESS || !text)
		text = "unknown error";
	snprintf(buf, len, "%s (%s, %u)", text, name, error);
	return buf;
}

gantry_result gantry_cuda_fail(unsigned error, const char *file, int line, const char *fmt, ...)
{
	char what[256], text[128];
	va_list args;

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	return gantry_fail(gantry_cuda_result(error), LOG_SUBSYS, file, line, "%s: %s", what,
			   gantry_cuda_text(error, text, sizeof(text)));
}
