/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening plugin libraries: candidates, the dynamic linker, and what is inside.
 *
 * A list is tried from left to right, and each name in it as libnccl-net-NAME.so
 * and then as NAME. The reason why a candidate was not taken is logged once, and all reasons together when no candidate
 * is left.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_LOADER
#include "net/loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"
#include "net/compat.h"

enum { VERSIONS = GANTRY_NET_VERSION_MAX - GANTRY_NET_VERSION_MIN + 1, RMA_VERSION_MAX = 17 };

struct gantry_loader {
	void *dl; /* owned */
	char path[PATH_MAX];
	const void *tables[VERSIONS];	   /* borrowed from the library */
	struct gantry_net *nets[VERSIONS]; /* owned */
};

static const char *file_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

#if defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#elif defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#else
#define OUR_MACHINE EM_NONE
#endif

static const char *machine_name(unsigned int machine)
{
	static const struct {
		unsigned int machine;
		const char *name;
	} known[] = {{EM_X86_64, "x86_64"},
		     {EM_AARCH64, "aarch64"},
		     {EM_386, "i386"},
		     {EM_PPC64, "ppc64"},
		     {EM_RISCV, "riscv"}};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].machine == machine)
			return known[i].name;
	return "another processor";
}

/* The machine that an ELF file was made for; EM_NONE if it cannot be determined. */
static unsigned int elf_machine(const char *file)
{
	Elf64_Ehdr h; /* e_machine is at the same place in 32-bit files */
	ssize_t n;
	int fd = open(file, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return EM_NONE;
	n = pread(fd, &h, sizeof(h), 0);
	close(fd);
	if (n < (ssize_t)offsetof(Elf64_Ehdr, e_version) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
		return EM_NONE;
	return h.e_machine;
}

/* The dynamic linker's texts are kept, with two cases made plain: a missing dependency reads
 * as if the plugin itself were missing, and a library for another processor is reported as "no such file". */
void gantry_loader_explain_open(const char *file, const char *error, char *why, size_t size)
{
	size_t len = strlen(file);
	int is_path = strchr(file, '/') != NULL;
	unsigned int machine = is_path ? elf_machine(file) : EM_NONE;

	if (!error)
		error = "dlopen gave no reason";
	if (machine != EM_NONE && OUR_MACHINE != EM_NONE && machine != OUR_MACHINE)
		snprintf(why, size, "the library is for %s (ELF machine %u), this process is %s (dlopen: %s)",
			 machine_name(machine), machine, machine_name(OUR_MACHINE), error);
	else if (strstr(error, "cannot open shared object file") && strncmp(error, file, len) != 0)
		snprintf(why, size, "found, but a library that it needs is not: %s", error);
	else
		snprintf(why, size, "%s", error);
}

/* Appends the names of a family that the library exports, from version `first` to `last`. */
static void list_symbols(void *dl, const char *family, int first, int last, char *text, size_t size)
{
	char symbol[64];

	for (int v = first; v <= last; v++) {
		snprintf(symbol, sizeof(symbol), "%s%d", family, v);
		if (dlsym(dl, symbol))
			gantry_text_add(text, size, "%s%s", *text ? " " : "", symbol);
	}
}

/* One of the tables that NCCL looks for in a net plugin's library, or in one of their own. */
static bool has_other_table(void *dl)
{
	char found[256] = "";

	list_symbols(dl, "ncclCollNetPlugin_v", 1, GANTRY_NET_VERSION_MAX, found, sizeof(found));
	list_symbols(dl, "ncclTunerPlugin_v", 1, GANTRY_NET_VERSION_MAX, found, sizeof(found));
	list_symbols(dl, "ncclProfiler_v", 1, GANTRY_NET_VERSION_MAX, found, sizeof(found));
	list_symbols(dl, "ncclGinPlugin_v", 11, RMA_VERSION_MAX, found, sizeof(found));
	list_symbols(dl, "ncclRmaPlugin_v", 13, RMA_VERSION_MAX, found, sizeof(found));
	return *found != 0;
}

/* The library is open, but has none of the tables that we know. */
static void explain_symbols(void *dl, char *why, size_t size)
{
	char old[256] = "", new[256] = "", coll[256] = "";

	list_symbols(dl, "ncclNet_v", 1, GANTRY_NET_VERSION_MAX, old, sizeof(old));
	list_symbols(dl, "ncclNetPlugin_v", 1, GANTRY_NET_VERSION_MIN - 1, old, sizeof(old));
	list_symbols(dl, "ncclNetPlugin_v", GANTRY_NET_VERSION_MAX + 1, GANTRY_NET_VERSION_MAX + 12, new, sizeof(new));
	list_symbols(dl, "ncclCollNetPlugin_v", 1, GANTRY_NET_VERSION_MAX + 12, coll, sizeof(coll));
	snprintf(why, size, "exports no ncclNetPlugin_v%d to _v%d%s%s%s%s%s%s%s", GANTRY_NET_VERSION_MIN,
		 GANTRY_NET_VERSION_MAX, *old ? ", only older ones: " : "", old, *new ? ", only newer ones: " : "", new,
		 *coll ? ", collNet tables: " : "", coll,
		 *old || *new || *coll ? "" : ", nor any other NCCL table: not a net plugin");
}

/* Looks for the tables; returns how many there are. `text` gets their list: "v6 v8". */
static int find_tables(struct gantry_loader *l, char *text, size_t size)
{
	char symbol[32];
	int n = 0;

	*text = 0;
	for (int i = 0; i < VERSIONS; i++) {
		int version = GANTRY_NET_VERSION_MIN + i;

		snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
		l->tables[i] = dlsym(l->dl, symbol);
		if (!l->tables[i])
			continue;
		gantry_text_add(text, size, "%sv%d", n++ ? " " : "", version);
	}
	return n;
}

/* Opens one file. On failure `why` says why, without a line in the log: the caller knows what comes next. any: it need
 * not be a net plugin. */
static gantry_result open_file(const char *file, bool any, char *why, size_t size, struct gantry_loader **ret_loader)
{
	struct gantry_loader *l = calloc(1, sizeof(*l));
	gantry_result r = GANTRY_ERR_CONFIG;
	struct link_map *map = NULL;
	char found[64];

	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a plugin");
	l->dl = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (!l->dl) {
		gantry_loader_explain_open(file, dlerror(), why, size);
		goto out;
	}
	if (dlinfo(l->dl, RTLD_DI_LINKMAP, &map) == 0 && map && *map->l_name)
		file = map->l_name;
	snprintf(l->path, sizeof(l->path), "%s", file);
	if (find_tables(l, found, sizeof(found)) == 0 && !(any && has_other_table(l->dl))) {
		explain_symbols(l->dl, why, size);
		goto out;
	}
	LOG_INFO(LOADER, "%s: taken, with net interfaces %s", l->path, found);
	*ret_loader = l;
	l = NULL;
	r = GANTRY_OK;
out:
	gantry_loader_close(l);
	return r;
}

/* All refusals so far, for the last error. */
struct refusals {
	char text[900];
};

static void note_refusal(struct refusals *all, const char *file, const char *why)
{
	size_t len = strlen(file);

	if (strncmp(why, file, len) == 0 && why[len] == ':') /* the dynamic linker names the file as well */
		why += len + 1 + (why[len + 1] == ' ');
	LOG_INFO(LOADER, "%s: not taken: %s", file, why);
	gantry_text_add(all->text, sizeof(all->text), "%s%s: %s", *all->text ? "; " : "", file, why);
}

/* One element of the list. ERR_CONFIG: go on with the next. */
static gantry_result open_name(const char *name, bool any, struct refusals *all, struct gantry_loader **ret_loader)
{
	size_t len = strlen(name);
	int is_file = strchr(name, '/') || (len > 3 && strcmp(name + len - 3, ".so") == 0);
	char file[PATH_MAX], why[512];
	gantry_result r;

	if (!is_file) {
		snprintf(file, sizeof(file), "libnccl-net-%s.so", name);
		r = open_file(file, any, why, sizeof(why), ret_loader);
		if (r != GANTRY_ERR_CONFIG)
			return r;
		note_refusal(all, file, why);
	}
	r = open_file(name, any, why, sizeof(why), ret_loader);
	if (r == GANTRY_ERR_CONFIG)
		note_refusal(all, name, why);
	return r;
}

static gantry_result open_list(const char *spec, bool any, struct gantry_loader **ret_loader)
{
	gantry_result r = GANTRY_ERR_CONFIG;
	struct refusals all = {.text = ""};
	char *list, *rest = NULL;

	list = strdup(spec && *spec ? spec : "libnccl-net.so");
	if (!list)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a list of plugins");
	for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
		if (strcmp(name, "none") == 0) {
			note_refusal(&all, name, "no plugin requested");
			break;
		}
		r = open_name(name, any, &all, ret_loader);
		if (r != GANTRY_ERR_CONFIG)
			goto out;
	}
	FAIL(GANTRY_ERR_CONFIG, "no usable net plugin: %s", *all.text ? all.text : "the list is empty");
out:
	free(list);
	return r;
}

gantry_result gantry_loader_open(const char *spec, struct gantry_loader **ret_loader)
{
	return open_list(spec, false, ret_loader);
}

gantry_result gantry_loader_open_any(const char *spec, struct gantry_loader **ret_loader)
{
	return open_list(spec, true, ret_loader);
}

const void *gantry_loader_symbol(const struct gantry_loader *loader, const char *symbol)
{
	return dlsym(loader->dl, symbol);
}

enum { LABELS = 16, LABEL_SIZE = 64, LINE_SIZE = 1024 };

/* Written once under the lock, before its function is handed out; read without it. */
static char labels[LABELS + 1][LABEL_SIZE] = {[LABELS] = "plugin"};
MUTEX_KIND(loader_mu);
static struct loader_mu labels_mu;
static int nlabels GUARDED_BY(loader_mu);

static enum gantry_log_level level_of(ncclDebugLogLevel level)
{
	switch (level) {
	case NCCL_LOG_WARN:
	case NCCL_LOG_ABORT:
		return GANTRY_LOG_WARN;
	case NCCL_LOG_TRACE:
		return GANTRY_LOG_TRACE;
	default:
		return GANTRY_LOG_INFO;
	}
}

static void forward_log(int k, ncclDebugLogLevel nccl_level, const char *file, int line, const char *fmt, va_list args)
{
	enum gantry_log_level level = level_of(nccl_level);
	char text[LINE_SIZE];
	size_t n;

	if ((int)level > load_relaxed(&gantry_log_level_now))
		return;
	vsnprintf(text, sizeof(text), fmt, args);
	n = strlen(text);
	if (n && text[n - 1] == '\n')
		text[n - 1] = 0;
	gantry_log_write(level, GANTRY_SUBSYS_LOADER, file ? file : "?", line, "%s: %s", labels[k], text);
}

#define DEFINE_LOGGER(k)                                                                                               \
	static void logger_##k(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,               \
			       const char *fmt, ...)                                                                   \
	{                                                                                                              \
		va_list args;                                                                                          \
                                                                                                                       \
		(void)flags;                                                                                           \
		va_start(args, fmt);                                                                                   \
		forward_log(k, level, file, line, fmt, args);                                                          \
		va_end(args);                                                                                          \
	}
#define EACH_LABEL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
EACH_LABEL(DEFINE_LOGGER)

#define LIST_LOGGER(k) logger_##k,
static const ncclDebugLogger_t loggers[] = {EACH_LABEL(LIST_LOGGER)};
_Static_assert(sizeof(loggers) / sizeof(loggers[0]) == LABELS + 1, "a function per label, and the shared one");

/*
 * A plugin's log lines go into our log with the library's name in front. NCCL's logger has no argument for its user, so
 * each library gets a function of its own from a fixed set. It stays the library's for ever: a thread of a closed
 * plugin may still log. When all are taken, one without a label.
 */
static ncclDebugLogger_t logger_for(const char *label)
{
	char cut[LABEL_SIZE];
	int i;

	snprintf(cut, sizeof(cut), "%.*s", LABEL_SIZE - 1, label);
	loader_mu_lock(&labels_mu);
	for (i = 0; i < nlabels && strcmp(labels[i], cut) != 0; i++)
		;
	if (i == nlabels && nlabels < LABELS) {
		memcpy(labels[i], cut, sizeof(cut));
		nlabels++;
	}
	loader_mu_unlock(&labels_mu);
	return loggers[i];
}

void gantry_loader_close(struct gantry_loader *loader)
{
	if (!loader)
		return;
	for (int i = 0; i < VERSIONS; i++)
		gantry_compat_destroy(loader->nets[i]);
	if (loader->dl)
		dlclose(loader->dl);
	free(loader);
}

const char *gantry_loader_path(const struct gantry_loader *loader)
{
	return loader->path;
}

const void *gantry_loader_table(const struct gantry_loader *loader, int version)
{
	if (version < GANTRY_NET_VERSION_MIN || version > GANTRY_NET_VERSION_MAX)
		return NULL;
	return loader->tables[version - GANTRY_NET_VERSION_MIN];
}

gantry_result gantry_loader_net(struct gantry_loader *loader, int version, struct gantry_net **ret_net)
{
	const char *label = file_name(loader->path);
	struct gantry_net **net;
	const void *table;

	for (int v = GANTRY_NET_VERSION_MAX; version == 0 && v >= GANTRY_NET_VERSION_MIN; v--) {
		if (gantry_loader_table(loader, v))
			version = v;
	}
	table = gantry_loader_table(loader, version);
	if (!table)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "%s: has no ncclNetPlugin_v%d", label, version);
	net = &loader->nets[version - GANTRY_NET_VERSION_MIN];
	if (!*net)
		TRY_NOW(gantry_compat_create(table, version, label, logger_for(label), net));
	*ret_net = *net;
	return GANTRY_OK;
}

ncclDebugLogger_t gantry_loader_logger(const struct gantry_loader *loader)
{
	return logger_for(file_name(loader->path));
}

void gantry_loader_as_nccl(struct gantry_net *net, const struct gantry_net_nccl *nccl)
{
	gantry_compat_as_nccl(net, nccl);
}
