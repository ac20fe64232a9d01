/* SPDX-License-Identifier: Apache-2.0 */
#include "base/identity.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/param.h"

MUTEX_KIND(process_mu);
static struct process_mu process_mu_of_all;

static uint64_t hash_bytes(const void *bytes, size_t size)
{
	const unsigned char *at = bytes;
	uint64_t hash = 14695981039346656037u; /* FNV-1a */

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ at[i]) * 1099511628211u;
	return hash;
}

static uint64_t hash_of(const char *text)
{
	return hash_bytes(text, strlen(text));
}

uint64_t gantry_boot_id(void)
{
	char text[64] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		gethostname(text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	return hash_of(text);
}

uint64_t gantry_host_id(void)
{
	const char *named = gantry_params()->host_id;

	/* Mixed with the kernel's: a name that two machines have by mistake does not make them one. */
	return *named ? gantry_boot_id() ^ hash_of(named) : gantry_boot_id();
}

uint64_t gantry_cpu_set_id(uint32_t *ret_cpus)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof(set), &set)) /* more CPUs than the set has: all count as sharing one */
		CPU_SET(0, &set);
	*ret_cpus = (uint32_t)CPU_COUNT(&set);
	return gantry_boot_id() ^ hash_bytes(&set, sizeof(set));
}

uint64_t gantry_process_id(void)
{
	static uint64_t id GUARDED_BY(process_mu);
	static pid_t owner GUARDED_BY(process_mu);
	uint64_t now;

	process_mu_lock(&process_mu_of_all);
	if (!id || owner != getpid()) {
		owner = getpid();
		if (getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id) || !id)
			id = (uint64_t)owner << 32 ^ gantry_now_ns();
	}
	now = id;
	process_mu_unlock(&process_mu_of_all);
	return now;
}

const char *gantry_self(void)
{
	static _Thread_local char text[40];
	char host[64] = "";

	gethostname(host, sizeof(host) - 1);
	snprintf(text, sizeof(text), "%.24s pid %d", host, (int)getpid());
	return text;
}

uint64_t gantry_namespace_id(const char *which)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/ns/%s", which);
	return stat(path, &st) ? 0 : (uint64_t)st.st_ino;
}

/* ---- launchers ---- */

const struct gantry_launcher gantry_launchers[] = {
	{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", {NULL}},
	{"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", {NULL}},
	/* A batch script has SLURM_PROCID and SLURM_NTASKS too, without being a rank. */
	{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, {"SLURM_STEP_NUM_TASKS"}},
	{"srun",
	 "SLURM_PROCID",
	 "SLURM_NTASKS",
	 NULL,
	 {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_LAUNCH_NODE_IPADDR"}},
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", {"MASTER_ADDR"}},
	{NULL, NULL, NULL, NULL, {NULL}},
};

const char *gantry_variable(const char *name)
{
	const char *v = name ? getenv(name) : NULL;

	return v && *v ? v : NULL;
}

int gantry_launcher_speaks(const struct gantry_launcher *l)
{
	int believed = !l->also[0];

	for (size_t i = 0; i < sizeof(l->also) / sizeof(l->also[0]); i++)
		believed |= gantry_variable(l->also[i]) != NULL;
	return believed && gantry_variable(l->rank);
}
