/* Devmem TCP of the kernel: not built yet. Replaced by the kernel source. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdio.h>

#include "net/devmem/source.h"

int devmem_kernel_usable(const char *nic, struct gantry_device *dev, char *why, size_t len)
{
	(void)nic, (void)dev;
	snprintf(why, len, "not built yet");
	return 0;
}
