/* SPDX-License-Identifier: Apache-2.0 */
/* The host device: one counted object per process, and its table. */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "device/host/host.h"

MUTEX_KIND(host_device_mu);
static struct host_device_mu host_device_mu_one = MUTEX_INITIALIZER;
static struct host_device *the_device GUARDED_BY(host_device_mu); /* NULL: nobody has it open */

void gantry_host_ref(struct host_device *hd)
{
	host_device_mu_lock(&host_device_mu_one);
	hd->refs++;
	host_device_mu_unlock(&host_device_mu_one);
}

void gantry_host_unref(struct host_device *hd)
{
	host_device_mu_lock(&host_device_mu_one);
	if (--hd->refs)
		hd = NULL;
	else
		the_device = NULL;
	host_device_mu_unlock(&host_device_mu_one);
	if (!hd)
		return;
	/* Without the lock: the default stream may be busy for a while, and whoever opens now gets a device of his own.
	 */
	gantry_host_stream_release(hd->default_stream);
	for (int i = 0; i < GANTRY_WAYS; i++) {
		gantry_host_stream_release(hd->ways[i].stream);
		mutex_destroy(&hd->ways[i].lock);
	}
	gantry_host_helpers_end(hd);
	mutex_destroy(&hd->helpers_mu);
	free(hd);
}

static void host_close(struct gantry_device *dev)
{
	gantry_host_unref(host_device(dev));
}

gantry_result gantry_host_stream_create(struct gantry_device *dev, struct gantry_stream **ret_stream)
{
	gantry_result r = gantry_host_stream_new(host_device(dev), ret_stream);

	if (r == GANTRY_OK)
		gantry_host_ref(host_device(dev));
	return r;
}

/*
 * The same object with one more reference: whoever has wrapped a stream destroys what he got and the stream stays. The
 * default stream has a reference of the device's from the beginning.
 */
gantry_result gantry_host_stream_wrap(struct gantry_device *dev, void *native, struct gantry_stream **ret_stream)
{
	gantry_result r = GANTRY_OK;
	struct host_device *hd = host_device(dev);
	struct gantry_stream *s = native;

	if (s && !gantry_host_is_stream(s))
		FAIL(GANTRY_ERR_INVALID, "%p is no stream of the host device", native);
	if (!s) {
		host_device_mu_lock(&host_device_mu_one);
		if (!hd->default_stream)
			r = gantry_host_stream_new(hd, &hd->default_stream);
		s = hd->default_stream;
		host_device_mu_unlock(&host_device_mu_one);
		if (r != GANTRY_OK)
			goto out;
	}
	gantry_host_ref(s->hd);
	fetch_add_relaxed(&s->refs, 1);
	*ret_stream = s;
out:
	return r;
}

/* Only the last destroy of a stream waits for what is in it. */
gantry_result gantry_host_stream_destroy(struct gantry_device *dev, struct gantry_stream *s)
{
	struct host_device *hd;

	(void)dev;
	if (!s)
		return GANTRY_OK;
	hd = s->hd;
	gantry_host_stream_release(s);
	gantry_host_unref(hd);
	return GANTRY_OK;
}

gantry_result gantry_host_peer_access(struct gantry_device *dev, struct gantry_device *other, int *ret_can)
{
	(void)dev;
	*ret_can = other->kind == GANTRY_DEVICE_HOST; /* CPU threads do not reach a GPU's memory */
	return GANTRY_OK;
}

/* A NIC's writes to host memory are in order with the completion that tells of them. */
gantry_result gantry_host_flush_remote_writes(struct gantry_device *dev)
{
	(void)dev;
	return GANTRY_OK;
}

static const struct gantry_device_ops host_ops = {
	.close = host_close,
#define OP(name, params) .name = gantry_host_##name,
#include "device/ops.def"
};

static int node_of_cpu(int cpu)
{
	char path[64];

	for (int node = 0; node < 64; node++) {
		snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/node%d", cpu, node);
		if (access(path, F_OK) == 0)
			return node;
	}
	return -1;
}

/* The node of this process's CPUs; -1 when they are of several. CPU numbers run through the nodes, so the ends tell. */
static int own_node(void)
{
	int first = -1, last = -1;
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return -1;
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set)) {
			first = first < 0 ? i : first;
			last = i;
		}
	return node_of_cpu(first) == node_of_cpu(last) ? node_of_cpu(first) : -1;
}

static gantry_result make_device(void) REQUIRES(host_device_mu)
{
	gantry_result r = GANTRY_OK;
	struct host_device *hd;
	int cpus;

	TRY(gantry_params_load(0));
	gantry_host_wait_setup();
	cpus = gantry_wait_limits()->cpus;
	hd = calloc(1, sizeof(*hd));
	if (!hd)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the host device");
	hd->dev = (struct gantry_device){.ops = &host_ops,
					 .kind = GANTRY_DEVICE_HOST,
					 .numa_node = own_node(),
					 .dmabuf = gantry_host_can_dmabuf(),
					 .sleeps = 1,
					 .ll128_local = 1,
					 .max_blocks = GANTRY_HOST_MAX_BLOCKS,
					 .default_lanes = 1};
	snprintf(hd->dev.name, sizeof(hd->dev.name), "host, %d CPU%s", cpus, cpus == 1 ? "" : "s");
	mutex_init(&hd->helpers_mu);
	for (int i = 0; i < GANTRY_WAYS; i++)
		mutex_init(&hd->ways[i].lock);
	the_device = hd;
out:
	return r;
}

gantry_result gantry_device_host(struct gantry_device **ret_dev)
{
	gantry_result r = GANTRY_OK;

	host_device_mu_lock(&host_device_mu_one);
	if (!the_device)
		TRY(make_device());
	the_device->refs++;
	*ret_dev = &the_device->dev;
out:
	host_device_mu_unlock(&host_device_mu_one);
	return r;
}
