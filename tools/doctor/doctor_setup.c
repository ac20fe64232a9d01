/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry doctor`: GPUs, this build and its libraries, the plugin that NCCL would load, and the parameters. Whether a
 * parameter's text is valid at all is decided by the table that a job reads it by; whether what it names can be used
 * here is decided by the code that would use it.
 */
#include <errno.h>
#include <glob.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#if GANTRY_HAVE_OPENSSL
#include <openssl/crypto.h>
#endif

#include "base/build.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/openssl.h"
#include "base/param.h"
#include "base/seal.h"
#include "base/secret.h"
#include "base/text.h"
#include "device/device.h"
#include "doctor/doctor.h"
#include "gantry/version.h"
#include "inet/settings.h"
#include "net/loader.h"
#include "transport/transport.h"

#define LIBRARY "libnccl-net-gantry.so"

/* GPUs of a driver. */
struct gpus {
	enum gantry_device_kind kind;
	const char *driver; /* in the report: "cuda" */
	const char *name;   /* "gpu %d" */
	int (*count)(char *why, size_t len);
	const char *no_kernels, *build;
};
static const struct gpus nvidia = {
	GANTRY_DEVICE_CUDA,
	"cuda",
	"gpu",
	gantry_device_cuda_count,
	"this build has no CUDA kernels",
	"build with nvcc, for this GPU's compute capability (GANTRY_CUDA_ARCHS)",
};
static const struct gpus amd = {
	GANTRY_DEVICE_HIP,
	"hip",
	"hip gpu",
	gantry_device_hip_count,
	"this build has no HIP kernels",
	"build with hipcc, for this GPU's architecture (GANTRY_HIP_ARCHS)",
};

/* Bytes of kernels for GPUs. */
static size_t embedded(enum gantry_device_kind kind)
{
	size_t size = 0;

	for (const struct gantry_kernel_set *set = gantry_kernel_sets; set; set = set->next)
		size += kind == GANTRY_DEVICE_HIP ? (size_t)(set->hip_image_end - set->hip_image)
						  : (size_t)(set->fatbin_end - set->fatbin);
	return size;
}

static void say_gpu(struct doctor *d, const struct gpus *of, int index)
{
	struct gantry_device *dev;
	const char *name = TEXT("%s %d", of->name, index);

	if (gantry_device_open(of->kind, index, &dev) != GANTRY_OK) {
		doctor_say(d, "gpu", name, DOCTOR_WARN, "not usable", gantry_last_error(), "");
		doctor_can(d, DOCTOR_GPU, 0, gantry_last_error());
		return;
	}
	doctor_say(d, "gpu", name, dev->max_blocks ? DOCTOR_OK : DOCTOR_WARN, dev->name,
		   TEXT("at %s, numa node %d, %s", dev->bus_id, dev->numa_node,
			dev->max_blocks ? "runs the kernels of this build" : "cannot run the kernels of this build"),
		   dev->max_blocks ? "" : of->build);
	doctor_can(d, DOCTOR_GPU, dev->max_blocks > 0,
		   dev->max_blocks	? dev->name
		   : embedded(of->kind) ? TEXT("%s cannot run its kernels", dev->name)
					: of->no_kernels);
	doctor_near(d, name, dev);
	gantry_device_close(dev);
}

void doctor_gpu(struct doctor *d)
{
	struct gantry_device *host;
	char why[256], why_hip[256];
	int n = nvidia.count(why, sizeof(why)), hip = amd.count(why_hip, sizeof(why_hip));

	if (gantry_device_host(&host) == GANTRY_OK) {
		doctor_near(d, "cpus", host);
		gantry_device_close(host);
	}
	for (int i = 0; i < n; i++)
		say_gpu(d, &nvidia, i);
	for (int i = 0; i < hip; i++)
		say_gpu(d, &amd, i);
	if (!n)
		doctor_say(d, "gpu", nvidia.driver, DOCTOR_NOTE, "none", why,
			   "nothing, if there is no GPU: kernels run on CPU threads");
	if (!hip)
		doctor_say(d, "gpu", amd.driver, DOCTOR_NOTE, "none", why_hip, "nothing, if there is no AMD GPU");
	if (!n && !hip)
		doctor_can(d, DOCTOR_GPU, 0, why);
}

static void say_kernels_of(struct doctor *d, const struct gpus *of, const char *name, const char *help)
{
	size_t size = embedded(of->kind);

	if (size)
		doctor_say(d, "build", name, DOCTOR_OK, SIZE_TEXT(size), "embedded; run on GPUs of this machine", "");
	else
		doctor_say(d, "build", name, DOCTOR_NOTE, "no", "kernels run on CPU threads only", help);
}

static void say_kernels(struct doctor *d)
{
	say_kernels_of(d, &nvidia, "cuda kernels", "install CUDA's nvcc and build again to use a GPU");
	say_kernels_of(d, &amd, "hip kernels", "install hipcc and build again to use an AMD GPU");
}

#if GANTRY_HAVE_OPENSSL
static void say_encryption(struct doctor *d)
{
	bool wanted = gantry_params()->encrypt != PARAM_ENCRYPT_OFF, can = gantry_openssl_load() == GANTRY_OK;
	char value[48];

	snprintf(value, sizeof(value), "%s, %s", wanted ? "on" : "off", gantry_cipher_name(gantry_cipher_preferred()));
	if (can)
		doctor_say(d, "build", "encryption", DOCTOR_OK, value,
			   "of everything between processes (GANTRY_ENCRYPT)", "");
	else
		doctor_say(d, "build", "encryption", wanted ? DOCTOR_FAIL : DOCTOR_NOTE, "no", gantry_last_error(),
			   "install libssl (libssl3), or leave GANTRY_ENCRYPT off");
}
#endif

static void say_openssl(struct doctor *d)
{
#if GANTRY_HAVE_OPENSSL
	doctor_say(d, "build", "openssl", DOCTOR_OK, "yes", OpenSSL_version(OPENSSL_VERSION), "");
	doctor_can(d, DOCTOR_AUTH, 1, "");
	say_encryption(d);
#else
	const struct gantry_params *p = gantry_params();
	int wanted = *p->secret || *p->secret_file;

	doctor_say(d, "build", "openssl", wanted ? DOCTOR_FAIL : DOCTOR_NOTE, "no",
		   wanted ? "a secret is set, and this build cannot use it" : "connections cannot be authenticated",
		   "install OpenSSL's headers (libssl-dev) and build again, or leave GANTRY_SECRET unset");
	doctor_can(d, DOCTOR_AUTH, 0, "this build lacks OpenSSL");
#endif
}

static void say_library(struct doctor *d, const char *name, int have, const char *with, const char *without,
			const char *advice)
{
	doctor_say(d, "build", name, have ? DOCTOR_OK : DOCTOR_NOTE, have ? "yes" : "no", have ? with : without,
		   have ? "" : advice);
}

void doctor_build(struct doctor *d)
{
	doctor_say(d, "build", "gantry", DOCTOR_OK, GANTRY_VERSION, gantry_commit, "");
	say_kernels(d);
	say_library(d, "hwloc", GANTRY_HAVE_HWLOC,
		    "ranks are ordered by NUMA node, progress threads pinned near their device",
		    "NUMA nodes of CPUs are not known, progress threads are not pinned",
		    "install libhwloc-dev and build again");
	say_library(d, "libmnl", GANTRY_HAVE_LIBMNL, "devmem TCP can be asked for and set up",
		    "devmem TCP can neither be asked for nor set up", "install libmnl-dev and build again");
	say_openssl(d);
	doctor_say(d, "build", "crc32c", DOCTOR_OK, gantry_crc32c_method(), "for GANTRY_CRC", "");
}

/* ---- the plugin ---- */

/* The first match of a pattern, in `path`. */
static int find_file(const char *pattern, char *path, size_t len)
{
	glob_t found;
	int ok = glob(pattern, 0, NULL, &found) == 0;

	if (ok)
		snprintf(path, len, "%s", found.gl_pathv[0]);
	globfree(&found);
	return ok;
}

/* Gantry's own plugin: beside this program, where it is installed with it, or where the linker would look. Not loaded:
 * it would be a second copy of all that this program has in itself. */
static int find_own_plugin(char *path, size_t len)
{
	static const char *const places[] = {"/lib/", "/", "/../lib/", "/../lib/*/", "/../lib64/"};
	char exe[4096], pattern[4200];
	const char *search = getenv("LD_LIBRARY_PATH");
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	exe[n < 0 ? 0 : n] = 0;
	if (strrchr(exe, '/'))
		*strrchr(exe, '/') = 0;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(pattern, sizeof(pattern), "%s%s" LIBRARY, exe, places[i]);
		if (find_file(pattern, path, len))
			return 1;
	}
	for (; search && *search; search += strspn(search, ":")) {
		size_t part = strcspn(search, ":");

		snprintf(pattern, sizeof(pattern), "%.*s/" LIBRARY, (int)part, search);
		if (find_file(pattern, path, len))
			return 1;
		search += part;
	}
	return 0;
}

static void say_own_plugin(struct doctor *d)
{
	char path[4096], advice[4200];

	if (find_own_plugin(path, sizeof(path))) {
		snprintf(advice, sizeof(advice), "NCCL_NET_PLUGIN=%s", path);
		doctor_say(d, "plugin", "NCCL_NET_PLUGIN", DOCTOR_NOTE, "not set",
			   "NCCL looks for libnccl-net.so and then uses its own sockets", advice);
		doctor_can(d, DOCTOR_PLUGIN, 1, "");
		return;
	}
	doctor_say(d, "plugin", "NCCL_NET_PLUGIN", DOCTOR_NOTE, "not set",
		   "NCCL looks for libnccl-net.so and then uses its own sockets; " LIBRARY " was not found",
		   "NCCL_NET_PLUGIN=gantry, with the directory of " LIBRARY " in LD_LIBRARY_PATH");
	doctor_can(d, DOCTOR_PLUGIN, 0, LIBRARY " is neither beside this program nor in LD_LIBRARY_PATH");
}

void doctor_plugin(struct doctor *d)
{
	struct gantry_loader *loader = NULL;
	char versions[64] = "";
	size_t n = 0;

	if (!d->plugin || !*d->plugin) {
		say_own_plugin(d);
		return;
	}
	if (strcmp(d->plugin, "none") == 0) {
		doctor_say(d, "plugin", "none", DOCTOR_NOTE, "none", "NCCL is configured to load no plugin",
			   "NCCL_NET_PLUGIN=gantry to use Gantry");
		doctor_can(d, DOCTOR_PLUGIN, 0, "NCCL_NET_PLUGIN=none");
		return;
	}
	if (gantry_loader_open(d->plugin, &loader) != GANTRY_OK) {
		doctor_say(d, "plugin", d->plugin, DOCTOR_FAIL, "not usable", gantry_last_error(),
			   "name a library by its path, or put its directory into LD_LIBRARY_PATH");
		doctor_can(d, DOCTOR_PLUGIN, 0, gantry_last_error());
		return;
	}
	for (int v = GANTRY_NET_VERSION_MIN; v <= GANTRY_NET_VERSION_MAX; v++)
		if (gantry_loader_table(loader, v))
			n += (size_t)snprintf(versions + n, sizeof(versions) - n, "%sv%d", n ? " " : "", v);
	doctor_say(d, "plugin", d->plugin, DOCTOR_OK, versions, gantry_loader_path(loader), "");
	doctor_can(d, DOCTOR_PLUGIN, 1, "");
	gantry_loader_close(loader);
}

/* ---- parameters ---- */

void doctor_load_params(struct doctor *d)
{
	struct gantry_param_info p;

	d->bad = calloc(gantry_param_count(), sizeof(*d->bad));
	for (size_t i = 0; d->bad && i < gantry_param_count(); i++) {
		const char *text;

		gantry_param_describe(i, &p);
		text = getenv(p.env);
		if (!text || gantry_param_allows(i, text))
			continue;
		doctor_block(d, TEXT("%s=%.64s is invalid", p.env, text));
		d->bad[i] = doctor_copy(text);
		unsetenv(p.env);
	}
	gantry_params_load(0);
}

/* ---- values that name something ---- */

/* Each: whether it can be used; the reason is gantry_last_error's. */

static gantry_result try_transport_libs(const char *value)
{
	(void)value;
	return gantry_transport_load_libs();
}

static gantry_result try_transport(const char *value)
{
	gantry_transport_load_libs(); /* their transports count; a library that is missing is found by its own name */
	return gantry_transport_check(value);
}

static gantry_result try_net_plugin(const char *value)
{
	struct gantry_loader *loader = NULL;
	gantry_result r = gantry_loader_open(value, &loader);

	gantry_loader_close(loader);
	return r;
}

static gantry_result try_secret(const char *value)
{
	const char *secret;

	(void)value;
	return gantry_secret(&secret);
}

/* As every connection does: it takes a secret and libssl. */
static gantry_result try_encrypt(const char *value)
{
	struct inet_key key;

	(void)value;
	return inet_secret_key(&key);
}

static gantry_result try_folder(const char *path)
{
	struct stat st;

	if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
		errno = ENOTDIR;
	else if (access(path, W_OK | X_OK) == 0)
		return GANTRY_OK;
	gantry_set_last_error(TEXT("nothing can be written to the folder %s: %s", path, strerror(errno)));
	return GANTRY_ERR_SYSTEM;
}

/* The folder of a file's name, whatever stands for what in the name. */
static gantry_result try_file_folder(const char *path)
{
	char folder[4096];
	char *slash;

	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (slash)
		slash[slash == folder] = 0;
	return try_folder(slash ? folder : ".");
}

static gantry_result try_congestion(const char *value)
{
	int fd, e = 0;

	if (strcmp(value, "auto") == 0 || strcmp(value, "keep") == 0)
		return GANTRY_OK;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return GANTRY_OK;
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, value, (socklen_t)strlen(value)))
		e = errno;
	close(fd);
	gantry_set_last_error(e == ENOENT  ? "the kernel does not have this congestion control"
			      : e == EPERM ? "not in net.ipv4.tcp_allowed_congestion_control"
					   : strerror(e));
	return e ? GANTRY_ERR_SYSTEM : GANTRY_OK;
}

static const struct {
	const char *env;
	gantry_result (*try)(const char *value);
	enum doctor_level level; /* if it cannot be used */
} trials[] = {
	{"GANTRY_TRANSPORT_LIBS", try_transport_libs, DOCTOR_FAIL},
	{"GANTRY_TRANSPORT", try_transport, DOCTOR_FAIL},
	{"GANTRY_NET_PLUGIN", try_net_plugin, DOCTOR_FAIL},
	{"GANTRY_SECRET", try_secret, DOCTOR_FAIL},
	{"GANTRY_SECRET_FILE", try_secret, DOCTOR_FAIL},
	{"GANTRY_ENCRYPT", try_encrypt, DOCTOR_FAIL},
	{"GANTRY_STALL_DIR", try_folder, DOCTOR_WARN},
	{"GANTRY_TRACE", try_file_folder, DOCTOR_WARN},
	{"GANTRY_CONGESTION", try_congestion, DOCTOR_WARN},
};

/* A parameter that is set. */
static void say_set(struct doctor *d, const struct gantry_param_info *p, const char *detail)
{
	enum doctor_level level = DOCTOR_OK;

	for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++)
		if (strcmp(trials[i].env, p->env) == 0 && trials[i].try(getenv(p->env)) != GANTRY_OK)
			level = trials[i].level;
	doctor_say(d, "parameters", p->env, level, p->value, level == DOCTOR_OK ? detail : gantry_last_error(),
		   level == DOCTOR_OK ? "" : "correct or unset it");
}

void doctor_params(struct doctor *d, int all)
{
	struct gantry_param_info p;
	char detail[512];

	for (size_t i = 0; i < gantry_param_count(); i++) {
		int set;

		gantry_param_describe(i, &p);
		set = p.origin == GANTRY_ORIGIN_ENV;
		snprintf(detail, sizeof(detail), "%s, %s%s%s", set ? "environment" : "default", p.type,
			 *p.range ? ": " : "", p.range);
		if (d->bad && d->bad[i])
			doctor_say(d, "parameters", p.env, DOCTOR_FAIL, d->bad[i],
				   gantry_param_refusal(i, d->bad[i], detail, sizeof(detail)), "correct or unset it");
		else if (set)
			say_set(d, &p, detail);
		else if (all)
			doctor_say(d, "parameters", p.env, DOCTOR_OK, p.value, detail, "");
	}
}
