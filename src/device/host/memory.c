/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the host device: each allocation is a memfd, mapped shared, so that other processes can map the same pages
 * (ipc.c). Its size is sealed, so nobody who maps it can be killed by somebody else who shrinks it.
 *
 * Mapped memory (alloc_mapped) is between the CPU and the kernels of one process and never exported. It is anonymous:
 * a communicator has many such pieces, and each file would count against the process's limit of open ones.
 *
 * Allocations and imports stand in one table sorted by address. It belongs to the process and not to the device object,
 * so memory may outlive the last reference to the device. Nothing here is on the data path: buffers are looked up when
 * they are registered.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/param_text.h"
#include "device/host/host.h"

enum { HUGE_PAGE = 2 << 20 };

struct host_mem_mu gantry_host_mem_mu = MUTEX_INITIALIZER;
static struct {
	struct host_mem *entries; /* owned; sorted by base */
	size_t n, room;
} table GUARDED_BY(host_mem_mu);

/* How many entries begin at or below this address. */
static size_t entries_up_to(const char *ptr) REQUIRES(host_mem_mu)
{
	size_t low = 0, high = table.n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (table.entries[mid].base <= ptr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

struct host_mem *gantry_host_mem_find(const void *ptr)
{
	size_t i = entries_up_to(ptr);
	struct host_mem *m = i ? &table.entries[i - 1] : NULL;

	return m && (const char *)ptr < m->base + m->size ? m : NULL;
}

struct host_mem *gantry_host_mem_find_file(bool owned, dev_t dev, ino_t ino)
{
	for (size_t i = 0; i < table.n; i++) {
		struct host_mem *m = &table.entries[i];

		if (m->owned == owned && m->st_ino == ino && (m->st_dev == dev || !dev))
			return m;
	}
	return NULL;
}

static gantry_result add_entry(const struct host_mem *m) REQUIRES(host_mem_mu)
{
	gantry_result r = GANTRY_OK;
	size_t at = entries_up_to(m->base);

	if (table.n == table.room) {
		size_t room = table.room ? table.room * 2 : 64;
		struct host_mem *bigger = realloc(table.entries, room * sizeof(*bigger));

		if (!bigger)
			FAIL(GANTRY_ERR_NOMEM, "no memory for a table of %zu allocations", room);
		table.entries = bigger;
		table.room = room;
	}
	memmove(&table.entries[at + 1], &table.entries[at], (table.n - at) * sizeof(*m));
	table.entries[at] = *m;
	table.n++;
out:
	return r;
}

void gantry_host_mem_drop(struct host_mem *m)
{
	size_t at = (size_t)(m - table.entries);

	if (m->owned || m->opens)
		return;
	if (munmap(m->base, m->mapped) < 0)
		LOG_WARN(DEVICE, "munmap of %zu bytes at %p: %s", m->mapped, (void *)m->base, strerror(errno));
	if (m->fd >= 0)
		close(m->fd);
	table.n--;
	memmove(m, m + 1, (table.n - at) * sizeof(*m));
	if (!table.n) {
		free(table.entries);
		table.entries = NULL;
		table.room = 0;
	}
}

gantry_result gantry_host_mem_import(int fd, size_t size, struct host_mem **ret_mem)
{
	gantry_result r = GANTRY_OK;
	struct host_mem m = {.size = size, .mapped = size, .fd = -1};
	int seals = fcntl(fd, F_GET_SEALS);
	void *at = MAP_FAILED;
	struct stat st;

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		FAIL(GANTRY_ERR_PROTOCOL, "memory of another process that could shrink while it is used");
	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size != size)
		FAIL(GANTRY_ERR_PROTOCOL, "memory of another process has not the %zu bytes that were agreed", size);
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		FAIL(GANTRY_ERR_NOMEM, "mmap of %s of another process: %s", SIZE_TEXT(size), strerror(errno));
	m.base = at;
	m.st_dev = st.st_dev;
	m.st_ino = st.st_ino;
	TRY(add_entry(&m));
	at = MAP_FAILED; /* the table's */
	*ret_mem = gantry_host_mem_find(m.base);
out:
	if (at != MAP_FAILED)
		munmap(at, size);
	return r;
}

/* A sealed memfd of m->mapped bytes. */
static gantry_result make_file(struct host_mem *m, const char *name)
{
	gantry_result r = GANTRY_OK;
	struct stat st;
	char advice[GANTRY_ADVICE_TEXT];

	m->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (m->fd < 0)
		FAIL(errno == EMFILE || errno == ENFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM,
		     "memfd_create for %s: %s (an allocation keeps a file open)%s%s", SIZE_TEXT(m->size),
		     strerror(errno), errno == EMFILE ? "; " : "", errno == EMFILE ? gantry_nofile_advice(advice) : "");
	if (ftruncate(m->fd, (off_t)m->mapped) < 0)
		FAIL(GANTRY_ERR_NOMEM, "ftruncate of a memfd to %s: %s", SIZE_TEXT(m->mapped), strerror(errno));
	if (fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		FAIL(GANTRY_ERR_SYSTEM, "sealing a memfd: %s", strerror(errno));
	if (fstat(m->fd, &st) < 0)
		FAIL(GANTRY_ERR_SYSTEM, "fstat of a memfd: %s", strerror(errno));
	m->st_dev = st.st_dev;
	m->st_ino = st.st_ino;
out:
	return r;
}

gantry_result gantry_host_alloc_file(const char *name, size_t size, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct host_mem m = {.size = size, .mapped = (size + page - 1) & ~(page - 1), .fd = -1, .owned = 1};
	int flags = name ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
	void *at = MAP_FAILED;

	if (!size || m.mapped < size)
		FAIL(GANTRY_ERR_INVALID, "an allocation of %zu bytes", size);
	if (name)
		TRY(make_file(&m, name));
	at = mmap(NULL, m.mapped, PROT_READ | PROT_WRITE, flags, m.fd, 0);
	if (at == MAP_FAILED)
		FAIL(GANTRY_ERR_NOMEM, "mmap of %s: %s", SIZE_TEXT(m.mapped), strerror(errno));
	if (m.mapped >= HUGE_PAGE && madvise(at, m.mapped, MADV_HUGEPAGE) < 0)
		LOG_TRACE(DEVICE, "no huge pages for %zu bytes: %s", m.mapped, strerror(errno));
	m.base = at;
	host_mem_mu_lock(&gantry_host_mem_mu);
	r = add_entry(&m);
	host_mem_mu_unlock(&gantry_host_mem_mu);
	if (r != GANTRY_OK)
		goto out;
	*ret_ptr = at;
	m.fd = -1; /* ownership moved to the table */
	at = MAP_FAILED;
out:
	if (at != MAP_FAILED)
		munmap(at, m.mapped);
	if (m.fd >= 0)
		close(m.fd);
	return r;
}

gantry_result gantry_host_alloc(struct gantry_device *dev, size_t size, void **ret_ptr)
{
	(void)dev;
	return gantry_host_alloc_file("gantry", size, ret_ptr);
}

gantry_result gantry_host_free(struct gantry_device *dev, void *ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem *m;

	(void)dev;
	if (!ptr)
		return GANTRY_OK;
	host_mem_mu_lock(&gantry_host_mem_mu);
	m = gantry_host_mem_find(ptr);
	if (!m || m->base != ptr || !m->owned)
		FAIL(GANTRY_ERR_USAGE, "free of %p, which is not the start of an allocation of this device", ptr);
	/* While this very process still has it open through ipc_open, the pages stay. */
	m->owned = 0;
	gantry_host_mem_drop(m);
out:
	host_mem_mu_unlock(&gantry_host_mem_mu);
	return r;
}

gantry_result gantry_host_alloc_mapped(struct gantry_device *dev, size_t size, void **ret_host, void **ret_device)
{
	gantry_result r = gantry_host_alloc_file(NULL, size, ret_host);

	(void)dev;
	if (r == GANTRY_OK)
		*ret_device = *ret_host;
	return r;
}

/* Kernels of this device address all memory of the process. */
gantry_result gantry_host_map_host(struct gantry_device *dev, void *host, size_t size, void **ret_device)
{
	(void)dev;
	(void)size;
	*ret_device = host;
	return GANTRY_OK;
}

gantry_result gantry_host_unmap_host(struct gantry_device *dev, void *host)
{
	(void)dev;
	(void)host;
	return GANTRY_OK;
}

gantry_result gantry_host_pointer(struct gantry_device *dev, const void *ptr, struct gantry_mem_info *ret_info)
{
	const struct host_mem *m;

	(void)dev;
	*ret_info =
		(struct gantry_mem_info){.kind = GANTRY_MEM_HOST, .device = -1, .device_ptr = (void *)(uintptr_t)ptr};
	host_mem_mu_lock(&gantry_host_mem_mu);
	m = gantry_host_mem_find(ptr);
	if (m) {
		ret_info->base = m->base;
		ret_info->size = m->size;
		ret_info->exportable = m->owned && m->fd >= 0;
	}
	host_mem_mu_unlock(&gantry_host_mem_mu);
	return GANTRY_OK;
}

gantry_result gantry_host_copy(struct gantry_device *dev, void *dst, const void *src, size_t size)
{
	(void)dev;
	if (size)
		memcpy(dst, src, size);
	return GANTRY_OK;
}
