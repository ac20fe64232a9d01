/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations of other processes.
 *
 * A handle says which process, which of its files and which inode; the importer opens /proc/PID/fd/N and maps it. No
 * server, no socket and no name in a file system: what the exporter closes is gone, and what it leaves behind when it
 * dies is nothing. The price is that both processes see the same /proc, that is the same host and pid namespace, and
 * that one may look into the other (the same user, and not made undumpable).
 *
 * A pid or a file number may have been reused since the export, so the inode is compared before the file is opened
 * (opening a stranger's device file could do things) and again afterwards.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "device/host/host.h"

#define MAGIC 0x314d454d54534f48ull /* "HOSTMEM1" */

/* What the bytes of a gantry_ipc_handle are. */
struct handle {
	uint64_t magic;
	uint64_t pid_ns;	/* inode of the exporter's pid namespace */
	unsigned char boot[16]; /* pid namespaces of different hosts may have the same inode */
	int32_t pid;
	int32_t fd;
	uint64_t st_dev, st_ino;
	uint64_t offset, size; /* what is exported, within the file */
	uint64_t mapped;       /* the whole file */
};
_Static_assert(sizeof(struct handle) <= GANTRY_IPC_HANDLE_SIZE, "a handle travels in a gantry_ipc_handle");

static uint64_t pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) < 0 ? 0 : (uint64_t)st.st_ino;
}

/* Zeroes where it cannot be read: then it is the same nowhere-in-particular for all. */
static void boot_id(unsigned char ret[16])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	char text[40] = "";
	int digits = 0;

	memset(ret, 0, 16);
	if (!f)
		return;
	if (fgets(text, sizeof(text), f))
		for (const char *c = text; *c && digits < 32; c++) {
			char digit[2] = {*c, 0};

			if (*c == '-' || *c == '\n')
				continue;
			ret[digits / 2] = (unsigned char)(ret[digits / 2] << 4 | strtol(digit, NULL, 16));
			digits++;
		}
	fclose(f);
}

gantry_result gantry_host_ipc_export(struct gantry_device *dev, void *base, size_t size,
				     struct gantry_ipc_handle *ret_handle)
{
	gantry_result r = GANTRY_OK;
	struct handle h = {.magic = MAGIC, .pid_ns = pid_namespace(), .pid = getpid(), .size = size};
	const struct host_mem *m;

	(void)dev;
	boot_id(h.boot);
	gantry_host_mem_lock();
	m = gantry_host_mem_find(base);
	if (!m || !m->owned || m->fd < 0 || size > (size_t)(m->base + m->size - (char *)base))
		FAIL(GANTRY_ERR_INVALID,
		     "%zu bytes at %p are not within one exportable allocation of this device: cannot export them",
		     size, base);
	h.fd = m->fd;
	h.st_dev = m->st_dev;
	h.st_ino = m->st_ino;
	h.offset = (uint64_t)((char *)base - m->base);
	h.mapped = m->mapped;
	memset(ret_handle, 0, sizeof(*ret_handle));
	memcpy(ret_handle->bytes, &h, sizeof(h));
out:
	gantry_host_mem_unlock();
	return r;
}

static gantry_result check_handle(const struct handle *h)
{
	gantry_result r = GANTRY_OK;
	unsigned char boot[16];

	boot_id(boot);
	if (h->magic != MAGIC)
		FAIL(GANTRY_ERR_INVALID, "this is no handle of host memory");
	if (memcmp(h->boot, boot, sizeof(boot)) != 0)
		FAIL(GANTRY_ERR_UNSUPPORTED, "memory of process %d is on another host", h->pid);
	if (h->pid_ns != pid_namespace())
		FAIL(GANTRY_ERR_UNSUPPORTED,
		     "memory of process %d cannot be mapped: it is in another pid namespace (%llu, this one is %llu)",
		     h->pid, (unsigned long long)h->pid_ns, (unsigned long long)pid_namespace());
	if (h->pid <= 0 || h->fd < 0 || !h->mapped || h->offset >= h->mapped || h->size > h->mapped - h->offset)
		FAIL(GANTRY_ERR_INVALID, "a handle of host memory with impossible numbers (process %d)", h->pid);
out:
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
	int fd = -1, seals;

	snprintf(process, sizeof(process), "/proc/%d", h->pid);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", h->pid, h->fd);
	if (stat(path, &st) < 0) {
		int e = errno;

		if (e == ENOENT && access(process, F_OK) < 0)
			FAIL(GANTRY_ERR_PEER_LOST, "process %d, whose memory is to be mapped, is gone", h->pid);
		if (e == ENOENT)
			FAIL(GANTRY_ERR_INVALID, "process %d has freed the memory that it exported", h->pid);
		FAIL(e == EACCES || e == EPERM ? GANTRY_ERR_UNSUPPORTED : GANTRY_ERR_SYSTEM,
		     "memory of process %d: %s: %s%s", h->pid, path, strerror(e),
		     e == EACCES || e == EPERM ? " (another user's, or a process that may not be looked into)" : "");
	}
	if (!same_file(h, &st))
		FAIL(GANTRY_ERR_INVALID, "process %d has freed the memory that it exported (%s is another file)",
		     h->pid, path);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		FAIL(GANTRY_ERR_SYSTEM, "memory of process %d: open of %s: %s", h->pid, path, strerror(errno));
	seals = fcntl(fd, F_GET_SEALS);
	if (fstat(fd, &st) < 0 || !same_file(h, &st) || (uint64_t)st.st_size != h->mapped)
		FAIL(GANTRY_ERR_INVALID, "process %d has freed the memory that it exported", h->pid);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		FAIL(GANTRY_ERR_INVALID, "memory of process %d could shrink while it is used", h->pid);
	*ret_fd = fd;
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	return r;
}

/* The table is locked. */
static gantry_result import(const struct handle *h, struct host_mem **ret_mem)
{
	gantry_result r = GANTRY_OK;
	struct host_mem m = {.size = h->mapped,
			     .mapped = h->mapped,
			     .fd = -1,
			     .pid = h->pid,
			     .st_dev = (dev_t)h->st_dev,
			     .st_ino = (ino_t)h->st_ino};
	void *at = MAP_FAILED;
	int fd = -1;

	TRY(open_file(h, &fd));
	at = mmap(NULL, m.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		FAIL(GANTRY_ERR_NOMEM, "mmap of %zu bytes of process %d: %s", m.mapped, h->pid, strerror(errno));
	m.base = at;
	TRY(gantry_host_mem_add(&m));
	at = MAP_FAILED; /* the table's */
	*ret_mem = gantry_host_mem_find(m.base);
out:
	if (at != MAP_FAILED)
		munmap(at, m.mapped);
	if (fd >= 0)
		close(fd);
	return r;
}

gantry_result gantry_host_ipc_open(struct gantry_device *dev, const struct gantry_ipc_handle *handle, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem *m;
	struct handle h;

	(void)dev;
	memcpy(&h, handle->bytes, sizeof(h));
	gantry_host_mem_lock();
	TRY(check_handle(&h));
	if (h.pid == getpid()) {
		m = gantry_host_mem_find_file(0, (dev_t)h.st_dev, (ino_t)h.st_ino);
		if (!m || !m->owned)
			FAIL(GANTRY_ERR_INVALID, "this process (%d) has freed the memory that it exported", h.pid);
	} else {
		m = gantry_host_mem_find_file(h.pid, (dev_t)h.st_dev, (ino_t)h.st_ino);
		if (!m)
			TRY(import(&h, &m));
	}
	m->opens++;
	*ret_ptr = m->base + h.offset;
out:
	gantry_host_mem_unlock();
	return r;
}

gantry_result gantry_host_ipc_close(struct gantry_device *dev, void *ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem *m;

	(void)dev;
	if (!ptr)
		return GANTRY_OK;
	gantry_host_mem_lock();
	m = gantry_host_mem_find(ptr);
	if (!m || !m->opens)
		FAIL(GANTRY_ERR_USAGE, "ipc_close of %p, which ipc_open did not give", ptr);
	m->opens--;
	gantry_host_mem_drop(m);
out:
	gantry_host_mem_unlock();
	return r;
}
