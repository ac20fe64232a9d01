/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory as a dma-buf, through /dev/udmabuf: a NIC with devmem TCP can then be tried with the host device. An
 * allocation is a memfd whose size is sealed, which is what the driver asks for. It counts pages against its own limit
 * (size_limit_mb of the module, 64 by default).
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "device/host/host.h"

static const char driver[] = "/dev/udmabuf";

int gantry_host_can_dmabuf(void)
{
	return access(driver, R_OK | W_OK) == 0;
}

gantry_result gantry_host_dmabuf_export(struct gantry_device *dev, void *ptr, size_t size, int *ret_fd,
					uint64_t *ret_offset)
{
	gantry_result r = GANTRY_OK;
	size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = (uintptr_t)ptr & (page - 1);
	size_t whole = (size + skip + page - 1) & ~(page - 1);
	struct udmabuf_create create = {.flags = UDMABUF_FLAGS_CLOEXEC, .size = whole};
	const struct host_mem *m;
	int fd = -1, dmabuf;

	(void)dev;
	host_mem_mu_lock(&gantry_host_mem_mu);
	m = gantry_host_mem_find(ptr);
	if (!m || !m->owned || m->fd < 0 || !size || size > (size_t)(m->base + m->size - (char *)ptr))
		FAIL(GANTRY_ERR_UNSUPPORTED,
		     "%zu bytes at %p are not within one exportable allocation of the host: there is no dma-buf of "
		     "them",
		     size, ptr);
	fd = open(driver, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		FAIL(GANTRY_ERR_UNSUPPORTED, "%zu bytes at %p are host memory: no dma-buf of them without %s: %s", size,
		     ptr, driver, strerror(errno));
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
	host_mem_mu_unlock(&gantry_host_mem_mu);
	return r;
}
