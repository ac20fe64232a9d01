/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/openssl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

#if GANTRY_HAVE_OPENSSL

#if OPENSSL_VERSION_NUMBER >= 0x30000000L
#define LIBSSL "libssl.so.3"
#else
#define LIBSSL "libssl.so.1.1"
#endif

const struct gantry_openssl *gantry_openssl;
static struct gantry_openssl functions;
static char missing[160];

/* libcrypto's functions are found through libssl, which depends on it: the two always fit each other. */
static void load(void)
{
	void *lib = dlopen(LIBSSL, RTLD_NOW | RTLD_LOCAL), *p;

	if (!lib) {
		snprintf(missing, sizeof(missing), "%s", dlerror());
		return;
	}
#define FIND(name)                                                                                                     \
	p = dlsym(lib, #name);                                                                                         \
	if (!p) {                                                                                                      \
		snprintf(missing, sizeof(missing), LIBSSL " has no " #name);                                           \
		return;                                                                                                \
	}                                                                                                              \
	memcpy(&functions.name, &p, sizeof(p));
	GANTRY_OPENSSL_FUNCTIONS(FIND)
#undef FIND
	functions.OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL); /* hmac.c says why */
	gantry_openssl = &functions;
}

gantry_result gantry_openssl_load(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	if (!gantry_openssl)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "GANTRY_ENCRYPT needs OpenSSL at run time: %s", missing);
	return GANTRY_OK;
}

#else

gantry_result gantry_openssl_load(void)
{
	FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "GANTRY_ENCRYPT needs OpenSSL, but this build was made without it");
}

#endif
