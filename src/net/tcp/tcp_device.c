/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: usable NICs, and NICs fused into one device with several rails. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "inet/settings.h"
#include "net/tcp/network.h"

gantry_result tcp_devices_scan(void)
{
	struct tcp_network *e = &tcp_network;
	struct gantry_nic_list *nics = NULL;

	TRY_NOW(inet_wanted_nics(&nics));
	e->ndevs = 0;
	for (int i = 0; i < nics->count; i++) {
		struct tcp_device *d = &e->devs[e->ndevs++];

		*d = (struct tcp_device){.nrails = 1, .rails = {i}, .nic = &nics->nics[i]};
		snprintf(d->name, sizeof(d->name), "%s", nics->nics[i].name);
		if (nics->nics[i].arp_flux && gantry_params()->bind_device)
			LOG_WARN(NET,
				 "%s shares its subnet with another interface, and either may answer for the other's "
				 "address: connections are not bound to it. Set net.ipv4.conf.all.arp_ignore=1 and "
				 "arp_announce=2",
				 d->name);
	}
	e->nics = nics;
	return GANTRY_OK;
}

void tcp_device_properties(int dev, struct gantry_net_properties *ret_props)
{
	const struct tcp_device *d = &tcp_network.devs[dev];
	struct gantry_net_properties p = {
		.name = d->name,
		.pci_path = d->nic->pci_path,
		.guid = (uint64_t)dev,
		.ptr_support = GANTRY_NET_PTR_HOST,
		.port = 0,
		.latency = d->nic->is_loopback ? 5 : 20,
		.max_comms = 65536,
		.max_recvs = (int)gantry_params()->net_max_recvs,
		.device_type = GANTRY_NET_DEVICE_HOST,
		.max_p2p_bytes = (size_t)1 << 40,
		.max_coll_bytes = (size_t)1 << 40,
		.max_multi_request_size = 1,
		.rail_id = GANTRY_NET_UNDEF,
		.plane_id = GANTRY_NET_UNDEF,
	};

	for (int i = 0; i < d->nrails; i++) {
		p.speed += tcp_network.nics->nics[d->rails[i]].speed_mbps;
		p.vdev.devs[p.vdev.ndevs++] = d->nrails == 1 ? dev : d->rails[i];
	}
	*ret_props = p;
}

gantry_result tcp_device_fuse(const struct gantry_net_vdevice *vdev, int *ret_dev)
{
	struct tcp_network *e = &tcp_network;
	struct tcp_device d = {0};
	size_t at = 0;

	if (vdev->ndevs < 1 || vdev->ndevs > GANTRY_NET_MAX_RAILS)
		FAIL_NOW(GANTRY_ERR_INVALID, "makeVDevice: cannot fuse %d devices: expected 1 to %d", vdev->ndevs,
			 GANTRY_NET_MAX_RAILS);
	for (int i = 0; i < vdev->ndevs; i++) {
		int k = vdev->devs[i];

		if (k < 0 || k >= e->ndevs || e->devs[k].nrails != 1)
			FAIL_NOW(GANTRY_ERR_INVALID, "makeVDevice: %d is not a physical device (there are %d)", k,
				 e->nics->count);
		for (int j = 0; j < i; j++)
			if (d.rails[j] == e->devs[k].rails[0])
				FAIL_NOW(GANTRY_ERR_INVALID, "makeVDevice: device %d is named twice", k);
		d.rails[d.nrails++] = e->devs[k].rails[0];
		at += (size_t)snprintf(d.name + at, sizeof(d.name) - at, "%s%s", i ? "+" : "", e->devs[k].name);
		if (at >= sizeof(d.name))
			at = sizeof(d.name) - 1;
	}
	d.nic = &e->nics->nics[d.rails[0]];
	/* Each communicator asks anew: the same NICs make the same device. */
	for (int i = 0; i < e->ndevs; i++) {
		if (e->devs[i].nrails == d.nrails && memcmp(e->devs[i].rails, d.rails, sizeof(d.rails)) == 0) {
			*ret_dev = i;
			return GANTRY_OK;
		}
	}
	if (e->ndevs == TCP_MAX_DEVICES)
		FAIL_NOW(GANTRY_ERR_LIMIT, "makeVDevice: the limit of %d devices is reached", TCP_MAX_DEVICES);
	LOG_INFO(NET, "device %d: %s, %d rails", e->ndevs, d.name, d.nrails);
	*ret_dev = e->ndevs;
	e->devs[e->ndevs++] = d;
	return GANTRY_OK;
}

/* Launchers say how many ranks share this host, and so its CPUs. */
static int ranks_here(void)
{
	static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
					    "SLURM_NTASKS_PER_NODE"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		const char *text = getenv(names[i]);

		if (text && atoi(text) > 0)
			return atoi(text);
	}
	return 1;
}

int tcp_cpus_usable(void)
{
	cpu_set_t set;
	int n = load_relaxed(&tcp_network.cpus);

	if (!n)
		n = (sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set)) / ranks_here();
	return n > 1 ? n : 1;
}

enum { FEW_LINKS = 2 };

/*
 * One per rail at least; more only where there are CPUs to drive them. Measured with 2 and 4 ranks on 16 CPUs
 * (bench/results/2026-11-17-h200.md): NCCL's two channels gain nothing from more than 4, one connection for all channels does. Four
 * ranks with eight connections to each other were 10 % faster with one lane each than with two (2026-11-18-h200-engine.md).
 */
int gantry_net_tcp_lanes(int dev, int links)
{
	int rails = tcp_network.devs[dev].nrails, lanes = (int)gantry_params()->lanes, cpus = tcp_cpus_usable();

	if (!lanes)
		lanes = cpus < 4 || (cpus < 8 && links > FEW_LINKS) ? 1 : cpus < 8 ? 2 : links == 1 ? 8 : 4;
	if (lanes < rails)
		lanes = rails;
	return lanes < WIRE_MAX_LANES ? lanes : WIRE_MAX_LANES - 1;
}
