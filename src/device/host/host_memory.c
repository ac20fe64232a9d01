/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the host device: each allocation is a memfd, mapped shared, so that other processes can map the same pages
 * (handles, below, and share.c). Its size is sealed, so a process that maps it cannot be killed by another that shrinks
 * it.
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
#include <linux/mempolicy.h>
#include <linux/udmabuf.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/text.h"
#include "device/host/host.h"
#include "device/share.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* operations are given a device that few of them need */

enum { HUGE_PAGE = 2 << 20 };

MUTEX_KIND(host_mem_mu);
static struct host_mem_mu table_mu;
/* Pointers into the table are good until it is unlocked or something is added. */
struct host_mem {
	char *base;
	size_t size;	/* as asked for */
	size_t mapped;	/* whole pages */
	int fd;		/* -1: imported, or not to be exported */
	uint32_t opens; /* ipc_open, imported or our own */
	int owned;	/* allocated here and not freed yet */
	dev_t st_dev;	/* of a memfd, imported or our own; st_ino 0: anonymous memory */
	ino_t st_ino;
};
static struct {
	struct host_mem *entries; /* owned; sorted by base */
	size_t n, room;
} table GUARDED_BY(host_mem_mu);

static size_t whole_pages(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (size + page - 1) & ~(page - 1);
}

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

/* The one that holds this address, or NULL. */
static struct host_mem *find_mem(const void *ptr) REQUIRES(host_mem_mu)
{
	size_t i = entries_up_to(ptr);
	struct host_mem *m = i ? &table.entries[i - 1] : NULL;

	return m && (const char *)ptr < m->base + m->size ? m : NULL;
}

/* dev 0: any, for all memfds of a host are on one. */
static struct host_mem *find_file(bool owned, dev_t dev, ino_t ino) REQUIRES(host_mem_mu)
{
	for (size_t i = 0; i < table.n; i++) {
		struct host_mem *m = &table.entries[i];

		if (m->owned == owned && m->st_ino == ino && (m->st_dev == dev || !dev))
			return m;
	}
	return NULL;
}

/* The one that holds all of these bytes, if it can be exported. */
static struct host_mem *find_exportable(const void *ptr, size_t size) REQUIRES(host_mem_mu)
{
	struct host_mem *m = find_mem(ptr);

	return m && m->owned && m->fd >= 0 && size <= (size_t)(m->base + m->size - (const char *)ptr) ? m : NULL;
}

static gantry_result add_entry(const struct host_mem *m) REQUIRES(host_mem_mu)
{
	size_t at = entries_up_to(m->base);

	if (table.n == table.room) {
		size_t room = table.room ? table.room * 2 : 64;
		struct host_mem *bigger = realloc(table.entries, room * sizeof(*bigger));

		if (!bigger)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a table of %zu allocations", room);
		table.entries = bigger;
		table.room = room;
	}
	memmove(&table.entries[at + 1], &table.entries[at], (table.n - at) * sizeof(*m));
	table.entries[at] = *m;
	table.n++;
	return GANTRY_OK;
}

/* Unmaps it, if there is no reference left. */
static void drop_mem(struct host_mem *m) REQUIRES(host_mem_mu)
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

static gantry_result import_file(int fd, size_t size, struct host_mem **ret_mem) REQUIRES(host_mem_mu)
{
	gantry_result r = GANTRY_OK;
	struct host_mem m = {.size = size, .mapped = size, .fd = -1};
	int seals = fcntl(fd, F_GET_SEALS);
	void *at = MAP_FAILED;
	struct stat st;

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		FAIL(GANTRY_ERR_PROTOCOL, "memory of another process is not sealed: it could shrink while in use");
	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size != size)
		FAIL(GANTRY_ERR_PROTOCOL, "memory of another process is smaller than the %zu bytes agreed", size);
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		FAIL(GANTRY_ERR_NOMEM, "mmap of %s of another process: %s", SIZE_TEXT(size), strerror(errno));
	m.base = at;
	m.st_dev = st.st_dev;
	m.st_ino = st.st_ino;
	TRY(add_entry(&m));
	at = MAP_FAILED; /* the table's */
	*ret_mem = find_mem(m.base);
out:
	if (at != MAP_FAILED)
		munmap(at, size);
	return r;
}

/* A sealed memfd of m->mapped bytes. */
static gantry_result make_file(struct host_mem *m, const char *name)
{
	struct stat st;
	char advice[GANTRY_ADVICE_TEXT];

	m->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (m->fd < 0)
		FAIL_NOW(errno == EMFILE || errno == ENFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM,
			 "memfd_create for %s: %s (an allocation keeps a file open)%s%s", SIZE_TEXT(m->size),
			 strerror(errno), errno == EMFILE ? "; " : "",
			 errno == EMFILE ? gantry_nofile_advice(advice) : "");
	if (ftruncate(m->fd, (off_t)m->mapped) < 0)
		FAIL_NOW(GANTRY_ERR_NOMEM, "ftruncate of a memfd to %s: %s", SIZE_TEXT(m->mapped), strerror(errno));
	if (fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		FAIL_NOW(GANTRY_ERR_SYSTEM, "sealing a memfd: %s", strerror(errno));
	if (fstat(m->fd, &st) < 0)
		FAIL_NOW(GANTRY_ERR_SYSTEM, "fstat of a memfd: %s", strerror(errno));
	m->st_dev = st.st_dev;
	m->st_ino = st.st_ino;
	return GANTRY_OK;
}

/* name: of the memfd, whose memory can be exported; NULL: anonymous. */
static gantry_result alloc_file(const char *name, size_t size, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem m = {.size = size, .mapped = whole_pages(size), .fd = -1, .owned = 1};
	int flags = name ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
	void *at = MAP_FAILED;

	if (!size || m.mapped < size)
		FAIL(GANTRY_ERR_INVALID, "invalid allocation size: %zu bytes", size);
	if (name)
		TRY(make_file(&m, name));
	at = mmap(NULL, m.mapped, PROT_READ | PROT_WRITE, flags, m.fd, 0);
	if (at == MAP_FAILED)
		FAIL(GANTRY_ERR_NOMEM, "mmap of %s: %s", SIZE_TEXT(m.mapped), strerror(errno));
	if (m.mapped >= HUGE_PAGE && madvise(at, m.mapped, MADV_HUGEPAGE) < 0)
		LOG_TRACE(DEVICE, "no huge pages for %zu bytes: %s", m.mapped, strerror(errno));
	m.base = at;
	host_mem_mu_lock(&table_mu);
	r = add_entry(&m);
	host_mem_mu_unlock(&table_mu);
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
	return alloc_file("gantry", size, ret_ptr);
}

gantry_result gantry_host_free(struct gantry_device *dev, void *ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem *m;

	if (!ptr)
		return GANTRY_OK;
	host_mem_mu_lock(&table_mu);
	m = find_mem(ptr);
	if (!m || m->base != ptr || !m->owned)
		FAIL(GANTRY_ERR_USAGE, "free of %p, which is not the start of an allocation of this device", ptr);
	/* While this very process still has it open through ipc_open, the pages stay. */
	m->owned = 0;
	drop_mem(m);
out:
	host_mem_mu_unlock(&table_mu);
	return r;
}

gantry_result gantry_host_alloc_mapped(struct gantry_device *dev, size_t size, void **ret_host, void **ret_device)
{
	gantry_result r = alloc_file(NULL, size, ret_host);

	if (r == GANTRY_OK)
		*ret_device = *ret_host;
	return r;
}

/* Kernels of this device address all memory of the process. */
gantry_result gantry_host_map_host(struct gantry_device *dev, void *host, size_t size, void **ret_device)
{
	*ret_device = host;
	return GANTRY_OK;
}

gantry_result gantry_host_unmap_host(struct gantry_device *dev, void *host)
{
	return GANTRY_OK;
}

gantry_result gantry_host_pointer(struct gantry_device *dev, const void *ptr, struct gantry_mem_info *ret_info)
{
	const struct host_mem *m;

	*ret_info =
		(struct gantry_mem_info){.kind = GANTRY_MEM_HOST, .device = -1, .device_ptr = (void *)(uintptr_t)ptr};
	host_mem_mu_lock(&table_mu);
	m = find_mem(ptr);
	if (m) {
		ret_info->base = m->base;
		ret_info->size = m->size;
		ret_info->exportable = m->owned && m->fd >= 0;
	}
	host_mem_mu_unlock(&table_mu);
	return GANTRY_OK;
}

gantry_result gantry_host_copy(struct gantry_device *dev, void *dst, const void *src, size_t size)
{
	if (size)
		memcpy(dst, src, size);
	return GANTRY_OK;
}

/* ---- handles ---- */

/*
 * Allocations of other processes.
 *
 * A handle identifies the process, its file descriptor and the inode; the importer opens /proc/PID/fd/N and maps it. No
 * server, no socket and no name in a file system: memory that the exporter closes is gone, and a dead exporter leaves
 * nothing behind; and the importer never waits, whatever the exporter does meanwhile (share.c needs a serving process).
 * The price is that both processes see the same /proc, that is the same host and pid namespace, and that one may access
 * the other (the same user, and not made undumpable).
 *
 * A pid or a file number may have been reused since the export, so the inode is compared before the file is opened
 * (opening a stranger's device file could do things) and again afterwards.
 */
#define MAGIC 0x324d454d54534f48ull /* "HOSTMEM2" */

/* What the bytes of a gantry_ipc_handle mean. */
struct handle {
	uint64_t pid_ns, host; /* the exporter's */
	int pid, fd;
	uint64_t st_dev, st_ino;
	uint64_t offset, size; /* what is exported, within the file */
	uint64_t mapped;       /* the whole file */
};

static void encode(const struct handle *h, struct gantry_ipc_handle *ret)
{
	uint8_t *p = ret->bytes;

	memset(ret, 0, sizeof(*ret));
	put64(p, MAGIC);
	put64(p + 8, h->pid_ns);
	put64(p + 16, h->host);
	put32(p + 24, (uint32_t)h->pid);
	put32(p + 28, (uint32_t)h->fd);
	put64(p + 32, h->st_dev);
	put64(p + 40, h->st_ino);
	put64(p + 48, h->offset);
	put64(p + 56, h->size);
	put64(p + 64, h->mapped);
}

static gantry_result decode(const struct gantry_ipc_handle *handle, struct handle *h)
{
	const uint8_t *p = handle->bytes;

	*h = (struct handle){.pid_ns = get64(p + 8),
			     .host = get64(p + 16),
			     .pid = (int)get32(p + 24),
			     .fd = (int)get32(p + 28),
			     .st_dev = get64(p + 32),
			     .st_ino = get64(p + 40),
			     .offset = get64(p + 48),
			     .size = get64(p + 56),
			     .mapped = get64(p + 64)};
	if (get64(p) != MAGIC)
		FAIL_NOW(GANTRY_ERR_INVALID, "not a handle of host memory");
	if (h->host != gantry_host_id())
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "memory of process %d is on another host", h->pid);
	if (h->pid_ns != gantry_namespace_id("pid"))
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "memory of process %d cannot be mapped: it is in another pid namespace (%llu, this one is "
			 "%llu)",
			 h->pid, (unsigned long long)h->pid_ns, (unsigned long long)gantry_namespace_id("pid"));
	if (h->pid <= 0 || h->fd < 0 || !h->mapped || h->offset >= h->mapped || h->size > h->mapped - h->offset)
		FAIL_NOW(GANTRY_ERR_INVALID, "handle of host memory has invalid fields (process %d)", h->pid);
	return GANTRY_OK;
}

gantry_result gantry_host_ipc_export(struct gantry_device *dev, void *base, size_t size,
				     struct gantry_ipc_handle *ret_handle)
{
	gantry_result r = GANTRY_OK;
	struct handle h = {
		.pid_ns = gantry_namespace_id("pid"), .host = gantry_host_id(), .pid = getpid(), .size = size};
	const struct host_mem *m;

	host_mem_mu_lock(&table_mu);
	m = find_exportable(base, size);
	if (!m)
		FAIL(GANTRY_ERR_INVALID,
		     "%zu bytes at %p are not within one exportable allocation of this device: cannot export them",
		     size, base);
	h.fd = m->fd;
	h.st_dev = m->st_dev;
	h.st_ino = m->st_ino;
	h.offset = (uint64_t)((char *)base - m->base);
	h.mapped = m->mapped;
	encode(&h, ret_handle);
out:
	host_mem_mu_unlock(&table_mu);
	return r;
}

static int same_file(const struct handle *h, const struct stat *st)
{
	return S_ISREG(st->st_mode) && (uint64_t)st->st_dev == h->st_dev && (uint64_t)st->st_ino == h->st_ino;
}

/* Opens the exporter's file, once it is sure that it is that file. */
static gantry_result open_file(const struct handle *h, int *ret_fd)
{
	gantry_result r = GANTRY_OK;
	char path[64], process[32];
	struct stat st;
	int fd = -1;

	snprintf(process, sizeof(process), "/proc/%d", h->pid);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", h->pid, h->fd);
	if (stat(path, &st) < 0) {
		int e = errno;

		if (e == ENOENT && access(process, F_OK) < 0)
			FAIL(GANTRY_ERR_PEER_LOST, "process %d exited before its memory was mapped", h->pid);
		if (e == ENOENT)
			FAIL(GANTRY_ERR_INVALID, "process %d has freed the memory that it exported", h->pid);
		FAIL(e == EACCES || e == EPERM ? GANTRY_ERR_UNSUPPORTED : GANTRY_ERR_SYSTEM,
		     "memory of process %d: %s: %s%s", h->pid, path, strerror(e),
		     e == EACCES || e == EPERM ? " (owned by another user, or not accessible)" : "");
	}
	if (!same_file(h, &st))
		FAIL(GANTRY_ERR_INVALID, "process %d has freed the memory that it exported (%s is another file)",
		     h->pid, path);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		FAIL(GANTRY_ERR_SYSTEM, "memory of process %d: open of %s: %s", h->pid, path, strerror(errno));
	if (fstat(fd, &st) < 0 || !same_file(h, &st))
		FAIL(GANTRY_ERR_INVALID, "process %d has freed the memory that it exported", h->pid);
	*ret_fd = fd;
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	return r;
}

gantry_result gantry_host_ipc_open(struct gantry_device *dev, const struct gantry_ipc_handle *handle, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem *m;
	struct handle h;
	int fd = -1;

	host_mem_mu_lock(&table_mu);
	TRY(decode(handle, &h));
	m = find_file(h.pid == getpid(), (dev_t)h.st_dev, (ino_t)h.st_ino);
	if (!m && h.pid == getpid())
		FAIL(GANTRY_ERR_INVALID, "this process (%d) has freed the memory that it exported", h.pid);
	if (!m) {
		TRY(open_file(&h, &fd));
		TRY(import_file(fd, h.mapped, &m));
	}
	m->opens++;
	*ret_ptr = m->base + h.offset;
out:
	if (fd >= 0)
		close(fd);
	host_mem_mu_unlock(&table_mu);
	return r;
}

gantry_result gantry_host_ipc_close(struct gantry_device *dev, void *ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem *m;

	if (!ptr)
		return GANTRY_OK;
	host_mem_mu_lock(&table_mu);
	m = find_mem(ptr);
	if (!m || !m->opens)
		FAIL(GANTRY_ERR_USAGE, "ipc_close of %p, which was not returned by ipc_open", ptr);
	m->opens--;
	drop_mem(m);
out:
	host_mem_mu_unlock(&table_mu);
	return r;
}

/* ---- memory that two ends of a connection share ---- */

/*
 * Pages come when they are first used, by whichever end: the policy belongs to the file and so holds for both. Without
 * it (a kernel without NUMA, a container that forbids it) they lie where they are used first.
 */
static void prefer_own_node(void *ptr, size_t size)
{
	unsigned long nodes[16] = {0};
	unsigned cpu, node;

	if (getcpu(&cpu, &node) || node >= 8 * sizeof(nodes))
		return;
	nodes[node / (8 * sizeof(*nodes))] = 1ul << (node % (8 * sizeof(*nodes)));
	if (syscall(SYS_mbind, ptr, size, MPOL_PREFERRED, nodes, 8 * sizeof(nodes), 0))
		LOG_TRACE(DEVICE, "shared memory on node %u: %s", node, strerror(errno));
}

gantry_result gantry_share_create(size_t size, void **ret_ptr, struct gantry_share_address *ret_address)
{
	TRY_NOW(alloc_file("gantry-shm", size, ret_ptr));
	prefer_own_node(*ret_ptr, whole_pages(size));
	memset(ret_address, 0, sizeof(*ret_address));
	host_mem_mu_lock(&table_mu);
	ret_address->id = find_mem(*ret_ptr)->st_ino;
	host_mem_mu_unlock(&table_mu);
	return GANTRY_OK;
}

void gantry_share_put(void *ptr, bool made)
{
	if (made)
		gantry_host_free(NULL, ptr);
	else
		gantry_host_ipc_close(NULL, ptr);
}

void gantry_share_close_file(void *ptr)
{
	struct host_mem *m;

	host_mem_mu_lock(&table_mu);
	m = find_mem(ptr);
	if (m->fd >= 0)
		close(m->fd);
	m->fd = -1;
	host_mem_mu_unlock(&table_mu);
}

int gantry_host_file_of(const void *ptr)
{
	int fd;

	host_mem_mu_lock(&table_mu);
	fd = find_mem(ptr)->fd;
	host_mem_mu_unlock(&table_mu);
	return fd;
}

gantry_result gantry_host_import(int fd, size_t size, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem *m;

	host_mem_mu_lock(&table_mu);
	TRY(import_file(fd, whole_pages(size), &m));
	m->opens++;
	*ret_ptr = m->base;
out:
	host_mem_mu_unlock(&table_mu);
	return r;
}

gantry_result gantry_share_find(uint64_t id, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem *m;

	host_mem_mu_lock(&table_mu);
	m = find_file(true, 0, (ino_t)id);
	if (!m)
		FAIL(GANTRY_ERR_PEER_LOST, "the other end of a connection within this process is gone");
	m->opens++;
	*ret_ptr = m->base;
out:
	host_mem_mu_unlock(&table_mu);
	return r;
}

/* ---- dma-bufs ---- */

/*
 * Host memory as a dma-buf, through /dev/udmabuf: a NIC with devmem TCP can then be tried with the host device. An
 * allocation is a memfd whose size is sealed, which is what the driver asks for. It counts pages against its own limit
 * (size_limit_mb of the module, 64 by default).
 */
static const char udmabuf[] = "/dev/udmabuf";

int gantry_host_can_dmabuf(void)
{
	return access(udmabuf, R_OK | W_OK) == 0;
}

gantry_result gantry_host_dmabuf_export(struct gantry_device *dev, void *ptr, size_t size, int *ret_fd,
					uint64_t *ret_offset)
{
	gantry_result r = GANTRY_OK;
	size_t skip = (uintptr_t)ptr & ((size_t)sysconf(_SC_PAGESIZE) - 1), whole = whole_pages(size + skip);
	struct udmabuf_create create = {.flags = UDMABUF_FLAGS_CLOEXEC, .size = whole};
	const struct host_mem *m;
	int fd = -1, dmabuf;

	host_mem_mu_lock(&table_mu);
	m = size ? find_exportable(ptr, size) : NULL;
	if (!m)
		FAIL(GANTRY_ERR_UNSUPPORTED,
		     "%zu bytes at %p are not within one exportable allocation of the host: cannot create a dma-buf",
		     size, ptr);
	fd = open(udmabuf, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		FAIL(GANTRY_ERR_UNSUPPORTED, "%zu bytes at %p are host memory: a dma-buf needs %s: %s", size, ptr,
		     udmabuf, strerror(errno));
	create.memfd = (uint32_t)m->fd;
	create.offset = (uint64_t)((char *)ptr - skip - m->base);
	dmabuf = ioctl(fd, UDMABUF_CREATE, &create);
	if (dmabuf < 0)
		FAIL(errno == ENOMEM ? GANTRY_ERR_NOMEM : GANTRY_ERR_SYSTEM,
		     "dma-buf of %zu bytes of host memory: %s%s", whole, strerror(errno),
		     errno == EINVAL ? " (more than size_limit_mb of the module udmabuf?)" : "");
	*ret_fd = dmabuf;
	*ret_offset = skip;
out:
	if (fd >= 0)
		close(fd);
	host_mem_mu_unlock(&table_mu);
	return r;
}
