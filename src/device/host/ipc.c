/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations of other processes.
 *
 * A handle says which process, which of its files and which inode; the importer opens /proc/PID/fd/N and maps it. No
 * server, no socket and no name in a file system: what the exporter closes is gone, and what it leaves behind when it
 * dies is nothing; and nobody waits, whatever the exporter does meanwhile (share.c needs somebody who serves). The price
 * is that both processes see the same /proc, that is the same host and pid namespace, and that one may look into the
 * other (the same user, and not made undumpable).
 *
 * A pid or a file number may have been reused since the export, so the inode is compared before the file is opened
 * (opening a stranger's device file could do things) and again afterwards.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/identity.h"
#include "base/log.h"
#include "device/host/host.h"

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
	gantry_result r = GANTRY_OK;
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
		FAIL(GANTRY_ERR_INVALID, "this is no handle of host memory");
	if (h->host != gantry_host_id())
		FAIL(GANTRY_ERR_UNSUPPORTED, "memory of process %d is on another host", h->pid);
	if (h->pid_ns != gantry_namespace_id("pid"))
		FAIL(GANTRY_ERR_UNSUPPORTED,
		     "memory of process %d cannot be mapped: it is in another pid namespace (%llu, this one is %llu)",
		     h->pid, (unsigned long long)h->pid_ns, (unsigned long long)gantry_namespace_id("pid"));
	if (h->pid <= 0 || h->fd < 0 || !h->mapped || h->offset >= h->mapped || h->size > h->mapped - h->offset)
		FAIL(GANTRY_ERR_INVALID, "a handle of host memory with impossible numbers (process %d)", h->pid);
out:
	return r;
}

gantry_result gantry_host_ipc_export(struct gantry_device *dev, void *base, size_t size,
				     struct gantry_ipc_handle *ret_handle)
{
	gantry_result r = GANTRY_OK;
	struct handle h = {
		.pid_ns = gantry_namespace_id("pid"), .host = gantry_host_id(), .pid = getpid(), .size = size};
	const struct host_mem *m;

	(void)dev;
	host_mem_mu_lock(&gantry_host_mem_mu);
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
	encode(&h, ret_handle);
out:
	host_mem_mu_unlock(&gantry_host_mem_mu);
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

	(void)dev;
	host_mem_mu_lock(&gantry_host_mem_mu);
	TRY(decode(handle, &h));
	m = gantry_host_mem_find_file(h.pid == getpid(), (dev_t)h.st_dev, (ino_t)h.st_ino);
	if (!m && h.pid == getpid())
		FAIL(GANTRY_ERR_INVALID, "this process (%d) has freed the memory that it exported", h.pid);
	if (!m) {
		TRY(open_file(&h, &fd));
		TRY(gantry_host_mem_import(fd, h.mapped, &m));
	}
	m->opens++;
	*ret_ptr = m->base + h.offset;
out:
	if (fd >= 0)
		close(fd);
	host_mem_mu_unlock(&gantry_host_mem_mu);
	return r;
}

gantry_result gantry_host_ipc_close(struct gantry_device *dev, void *ptr)
{
	gantry_result r = GANTRY_OK;
	struct host_mem *m;

	(void)dev;
	if (!ptr)
		return GANTRY_OK;
	host_mem_mu_lock(&gantry_host_mem_mu);
	m = gantry_host_mem_find(ptr);
	if (!m || !m->opens)
		FAIL(GANTRY_ERR_USAGE, "ipc_close of %p, which ipc_open did not give", ptr);
	m->opens--;
	gantry_host_mem_drop(m);
out:
	host_mem_mu_unlock(&gantry_host_mem_mu);
	return r;
}
