/* SPDX-License-Identifier: Apache-2.0 */
/* The built plugin as NCCL finds it: seven tables, nothing missing in them. */
#include <dlfcn.h>
#include <limits.h>

#include "test.h"

int main(void)
{
	/* Entries per version, the name included. */
	static const int counts[] = {[6] = 17, [7] = 19, [8] = 19, [9] = 20, [10] = 20, [11] = 22, [12] = 22};
	const char *build = getenv("BUILD_DIR");
	char path[PATH_MAX], symbol[32];
	void *dl;

	snprintf(path, sizeof(path), "%s/lib/libnccl-net-gantry.so", build ? build : ".");
	if (access(path, R_OK) != 0)
		SKIP("no %s: set BUILD_DIR to the build folder", path);
	dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!dl) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (int v = 0; v < 20; v++) {
		void *const *table;

		snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", v);
		table = dlsym(dl, symbol);
		if (v < 6 || v > 12) {
			CHECK(table == NULL);
			continue;
		}
		if (!table) {
			fprintf(stderr, "no %s in %s\n", symbol, path);
			return 1;
		}
		for (int i = 0; i < counts[v]; i++) {
			if (!table[i]) {
				fprintf(stderr, "%s: entry %d is NULL\n", symbol, i);
				return 1;
			}
		}
		CHECK_STR((const char *)table[0], "gantry");
	}
	return 0;
}
