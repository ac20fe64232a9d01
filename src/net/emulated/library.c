/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgantry-emulated.so: the NIC, and the functions of Gantry's lower layers that it calls, forwarded to the library
 * that opened it. So log lines, errors and parameters are the opener's, wherever it sends them: into NCCL's log, say.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/build.h"
#include "base/param.h"
#include "net/emulated/emulated.h"

enum { TEXT_SIZE = 1024 };

/* Set before anything else is called. Of several in one process (libgantry.so and the plugin) it is the first: what
 * they do is the same, but for where their lines go. */
static const struct emulated_opener *opener;

/* Every line comes here; the opener's level decides. */
int gantry_log_level_now = GANTRY_LOG_TRACE;

void gantry_log_write(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		      const char *fmt, ...)
{
	char text[TEXT_SIZE];
	va_list args;

	if ((int)level > load_relaxed(opener->log_level))
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	opener->log(level, subsys, file, line, "%s", text);
}

gantry_result gantry_fail(gantry_result r, enum gantry_log_subsys subsys, const char *file, int line, const char *fmt,
			  ...)
{
	char text[TEXT_SIZE];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	return opener->fail(r, subsys, file, line, "%s", text);
}

#define FORWARD(type, name, parameters, arguments)                                                                     \
	type name parameters                                                                                           \
	{                                                                                                              \
		return opener->name arguments;                                                                         \
	}
EMULATED_NEEDS(FORWARD)

const struct devmem_source_ops *gantry_emulated_v1(const struct emulated_opener *by, const char **ret_build)
{
	const struct emulated_opener *none = NULL;

	*ret_build = gantry_build;
	if (by->size != sizeof(*by) || strcmp(by->build, gantry_build) != 0)
		return NULL;
	cas_acq_rel(&opener, &none, by);
	return &emulated_ops;
}
