/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry doctor`: interfaces, the choice among them, and what gets in the way of several on one subnet; whether devmem TCP
 * would work, for every NIC and every GPU (the host's memory where there is none), by the questions of
 * net/devmem/detect.c, which change nothing; and --undo-devmem, which puts back what a crashed process has left on a NIC.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "device/device.h"
#include "device/topology.h"
#include "doctor/doctor.h"
#include "inet/nic.h"
#include "inet/settings.h"
#include "net/devmem/detect.h"
#include "net/devmem/session.h"

static const struct gantry_nic *find(const struct gantry_nic_list *list, unsigned ifindex)
{
	for (int i = 0; i < list->count; i++)
		if (list->nics[i].ifindex == ifindex)
			return &list->nics[i];
	return NULL;
}

/* "10.0.0.2/24 fe80::1%eth0/64" */
static void addresses(const struct gantry_nic *nic, char *buf, size_t size)
{
	char text[GANTRY_ADDR_TEXT];
	size_t n = 0;

	buf[0] = 0;
	for (int i = 0; i < nic->naddrs && n < size; i++)
		n += (size_t)snprintf(buf + n, size - n, "%s%s/%u", i ? " " : "",
				      gantry_addr_text(&nic->addrs[i], text), nic->prefix_len[i]);
}

static void say_nic(struct doctor *d, const struct gantry_nic *nic, int chosen, const char *why)
{
	char value[GANTRY_NIC_ADDRS * GANTRY_ADDR_TEXT];

	addresses(nic, value, sizeof(value));
	doctor_say(d, "interfaces", nic->name, chosen ? DOCTOR_OK : DOCTOR_NOTE, *value ? value : "no address",
		   TEXT("%s%s%s%s; %d Mbit/s%s, mtu %d%s, %s", chosen ? "chosen" : "left out", *why ? " (" : "", why,
			*why ? ")" : "", nic->speed_mbps, nic->speed_known ? "" : " assumed", nic->mtu,
			nic->numa_node >= 0 ? TEXT(", numa %d", nic->numa_node) : "",
			nic->pci_path ? nic->pci_path : "no PCI device"),
		   "");
}

static void say_choice(struct doctor *d, const struct gantry_nic_list *chosen, const char *pattern)
{
	char names[GANTRY_NIC_MAX * (IFNAMSIZ + 1)] = "";

	for (int i = 0; i < chosen->count; i++) {
		strcat(names, i ? "," : "");
		strcat(names, chosen->nics[i].name);
	}
	doctor_say(d, "choice", "tcp", DOCTOR_OK, names, chosen->reason, "");
	doctor_can(d, DOCTOR_HOSTS, !chosen->nics[0].is_loopback,
		   chosen->nics[0].is_loopback ? "no interface but loopback is chosen" : names);
	if (*pattern)
		doctor_say(d, "choice", "pattern", DOCTOR_OK, pattern,
			   d->ifname ? "from --ifname" : "from GANTRY_IFNAME or NCCL_SOCKET_IFNAME", "");
	for (int i = 0; i < chosen->count; i++)
		if (!chosen->nics[i].is_loopback && chosen->nics[i].mtu < 1500)
			doctor_say(d, "choice", chosen->nics[i].name, DOCTOR_NOTE, "small mtu",
				   "below Ethernet's 1500: more packets and more CPU time per byte",
				   "raise the mtu if the network carries larger frames; 9000 on a cluster network is "
				   "best");
}

/* The kernel acts on the larger of the value for all and the value for one. */
static int effective(const char *name, const char *what)
{
	const char *const of[2] = {"all", name};
	char path[128], line[32];
	int max = 0;

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "/proc/sys/net/ipv4/conf/%s/%s", of[i], what);
		if (doctor_read_line(path, line, sizeof(line)) && atoi(line) > max)
			max = atoi(line);
	}
	return max;
}

static int share_subnet(const struct gantry_nic *a, const struct gantry_nic *b)
{
	for (int k = 0; k < b->naddrs; k++)
		for (int i = 0; i < a->naddrs; i++)
			if (b->addrs[k].sa.sa_family == AF_INET && gantry_nic_same_subnet(a, i, &b->addrs[k]))
				return 1;
	return 0;
}

static void say_sysctl(struct doctor *d, const char *name, const char *what, int now, int want, const char *text)
{
	doctor_say(d, "subnets", TEXT("%s %s", what, name), DOCTOR_WARN, TEXT("%d", now), text,
		   TEXT("sysctl -w net.ipv4.conf.%s.%s=%d net.ipv4.conf.all.%s=%d", name, what, want, what, want));
}

/* Several NICs in one subnet: answers may come in by another NIC than the question went out by. */
static void say_subnets(struct doctor *d, const struct gantry_nic_list *chosen)
{
	for (int i = 0; i < chosen->count; i++) {
		const struct gantry_nic *nic = &chosen->nics[i], *other = NULL;
		int now;

		for (int k = 0; k < chosen->count && !other; k++)
			if (k != i && share_subnet(nic, &chosen->nics[k]))
				other = &chosen->nics[k];
		if (!other)
			continue;
		doctor_say(d, "subnets", nic->name, DOCTOR_NOTE, "shared", TEXT("shares a subnet with %s", other->name),
			   "leave GANTRY_BIND_DEVICE on, so that each interface carries its own traffic");
		now = effective(nic->name, "rp_filter");
		if (now == 1)
			say_sysctl(d, nic->name, "rp_filter", now, 2,
				   "strict: packets for an address of this subnet are dropped unless they come by the "
				   "interface the route names");
		now = effective(nic->name, "arp_ignore");
		if (now < 1)
			say_sysctl(
				d, nic->name, "arp_ignore", now, 1,
				"every interface answers for every address (ARP flux): all traffic may arrive on one");
		now = effective(nic->name, "arp_announce");
		if (now < 2)
			say_sysctl(d, nic->name, "arp_announce", now, 2,
				   "requests may carry another interface's address: neighbours learn the wrong one");
	}
}

void doctor_near(struct doctor *d, const char *name, const struct gantry_device *dev)
{
	struct gantry_nic_list *nics = NULL;
	char text[DOCTOR_TEXT] = "";
	int node = gantry_topology_node(dev);

	if (inet_wanted_nics(&nics) != GANTRY_OK)
		return; /* doctor_interfaces has reported why */
	for (int i = 0; i < nics->count; i++) {
		size_t at = strlen(text);

		snprintf(text + at, sizeof(text) - at, "%s%s %s", i ? "; " : "", nics->nics[i].name,
			 gantry_distance_text(gantry_topology_distance(dev, nics->nics[i].pci_path)));
	}
	doctor_say(d, "near", name, DOCTOR_OK, node < 0 ? "no one NUMA node" : TEXT("NUMA node %d", node), text, "");
	gantry_nic_list_free(nics);
}

void doctor_interfaces(struct doctor *d)
{
	struct gantry_nic_list *all = NULL, *chosen = NULL;
	const char *pattern = d->ifname ? d->ifname : inet_wanted_interfaces();
	int family = inet_wanted_family();
	gantry_result r = gantry_nic_scan(&all);

	if (r == GANTRY_OK)
		r = gantry_nic_scan(&chosen);
	if (r != GANTRY_OK) {
		doctor_say(d, "interfaces", "scan", DOCTOR_FAIL, "", gantry_last_error(), "");
		doctor_block(d, gantry_last_error());
		gantry_nic_list_free(all);
		return;
	}
	r = gantry_nic_select(chosen, pattern, family);
	for (int i = 0; i < all->count; i++) {
		const struct gantry_nic *nic = &all->nics[i];

		say_nic(d, nic, r == GANTRY_OK && find(chosen, nic->ifindex) != NULL,
			gantry_nic_objection(nic, pattern, family));
	}
	if (r != GANTRY_OK) {
		doctor_say(d, "choice", "tcp", DOCTOR_FAIL, "", gantry_last_error(), "");
		doctor_block(d, gantry_last_error());
	} else {
		say_choice(d, chosen, pattern);
		say_subnets(d, chosen);
	}
	gantry_nic_list_free(all);
	gantry_nic_list_free(chosen);
}

/* ---- devmem ---- */

enum { GPUS_MAX = 16 };

/* That a machine has no such NIC is nothing to mend, unless it was asked for. */
static enum doctor_level level_of(enum devmem_verdict v, int wanted)
{
	return v == DEVMEM_NO ? (wanted ? DOCTOR_WARN : DOCTOR_NOTE) : v == DEVMEM_UNKNOWN ? DOCTOR_NOTE : DOCTOR_OK;
}

static void say_step(struct doctor *d, const char *of, const struct devmem_step *step, int wanted)
{
	doctor_say(d, "devmem", TEXT("%s%s%s", of, *of ? ": " : "", step->name), level_of(step->verdict, wanted),
		   devmem_verdict_name(step->verdict), step->reason, step->advice);
}

/* Steps that do not depend on the NIC are reported only with the first NIC, and the same for the device. */
static void say_steps(struct doctor *d, const struct devmem_step *steps, const char *nic, const char *of, int first_nic,
		      int first_dev)
{
	int wanted = gantry_params()->unpack == PARAM_UNPACK_KERNEL;

	for (int i = 0; i < DEVMEM_QUESTIONS; i++) {
		switch (i) {
		case DEVMEM_ASK_OPTION:
		case DEVMEM_ASK_FAMILY:
		case DEVMEM_ASK_PEER:
		case DEVMEM_ASK_RUNTIME:
			if (first_nic && first_dev)
				say_step(d, "", &steps[i], wanted);
			break;
		case DEVMEM_ASK_EXPORT:
			if (first_nic)
				say_step(d, of, &steps[i], wanted);
			break;
		default:
			if (first_dev)
				say_step(d, nic, &steps[i], wanted && i != DEVMEM_ASK_SEND);
		}
	}
}

/* One NIC and one device. */
static void examine(struct doctor *d, const char *nic, const struct gantry_device *dev, int first_nic, int first_dev)
{
	const struct gantry_params *p = gantry_params();
	struct devmem_wish w = {
		.nic = nic, .device = dev, .configure = p->devmem_configure, .daemon = p->devmem_helper};
	struct devmem_step steps[DEVMEM_QUESTIONS], *first = NULL; /* the first that says no */
	struct devmem_sys *sys = devmem_sys_new();
	const char *of = dev->kind == GANTRY_DEVICE_CUDA ? TEXT("gpu %d", dev->index) : "host";
	const char *name = TEXT("%s to %s", nic, of), *why = "payload can land in its memory";
	int can;

	if (!sys)
		return;
	can = devmem_detect(sys, &w, 0, steps);
	devmem_sys_free(sys);
	say_steps(d, steps, nic, of, first_nic, first_dev);
	for (int i = DEVMEM_QUESTIONS - 1; !can && i >= 0; i--)
		if (steps[i].verdict == DEVMEM_NO && i != DEVMEM_ASK_SEND)
			first = &steps[i];
	why = first ? TEXT("%s: %s", first->name, first->reason) : why;
	doctor_can(d, DOCTOR_DEVMEM, can, can ? name : TEXT("%s: %s", nic, why));
	doctor_say(d, "devmem", name, can ? DOCTOR_OK : level_of(DEVMEM_NO, p->unpack == PARAM_UNPACK_KERNEL),
		   can ? "usable" : "not usable", why,
		   can ? "" : "GANTRY_UNPACK=emulated tries the same path without such a NIC; docs/devmem.md");
}

/* Is it worth a look? Those that are up and lead somewhere; any that was named. */
static int candidate(const struct doctor *d, const struct gantry_nic *nic)
{
	if (d->ifname)
		return gantry_nic_pattern_match(d->ifname, nic->name);
	return (nic->flags & IFF_UP) && !nic->is_loopback && !nic->is_bridge_like;
}

static void examine_nics(struct doctor *d, const struct gantry_nic_list *list, const struct gantry_device *dev,
			 int first_dev)
{
	int said = 0;

	for (int i = 0; i < list->count; i++)
		if (candidate(d, &list->nics[i]))
			examine(d, list->nics[i].name, dev, !said++, first_dev);
	if (!said && !d->ifname)
		examine(d, "lo", dev, 1, first_dev);
}

static void say_leftovers(struct doctor *d)
{
	char names[16][IFNAMSIZ];
	int n = devmem_journal_nics(names, 16);

	for (int i = 0; i < n; i++) {
		struct devmem_before *before = calloc(1, sizeof(*before));
		struct devmem_journal j;

		if (before && devmem_journal_init(&j, names[i]) == 0 && devmem_journal_load(&j, before))
			doctor_say(
				d, "devmem", names[i], DOCTOR_NOTE, "changed",
				"header split, features or RSS are set up by a process that is bound, or that crashed",
				"gantry doctor --undo-devmem restores NICs that are no longer in use");
		free(before);
	}
}

void doctor_devmem(struct doctor *d)
{
	struct gantry_nic_list *list = NULL;
	char why[256];
	int gpus = gantry_device_cuda_count(why, sizeof(why)), opened = 0;
	struct gantry_device *dev;

	if (gantry_nic_scan(&list) != GANTRY_OK)
		return;
	for (int i = 0; i < gpus && i < GPUS_MAX; i++) {
		if (gantry_device_cuda(i, &dev) != GANTRY_OK)
			continue;
		examine_nics(d, list, dev, !opened++);
		gantry_device_close(dev);
	}
	if (!opened && gantry_device_host(&dev) == GANTRY_OK) {
		examine_nics(d, list, dev, 1);
		gantry_device_close(dev);
	}
	say_leftovers(d);
	gantry_nic_list_free(list);
}

void doctor_undo_devmem(struct doctor *d)
{
	char names[16][IFNAMSIZ], text[256];
	int n = devmem_journal_nics(names, 16), done = 0;

	for (int i = 0; i < n; i++) {
		struct devmem_sys *sys = devmem_sys_new();
		int dead = sys ? devmem_undo_stale(sys, names[i], text, sizeof(text)) : 0;

		devmem_sys_free(sys);
		if (!dead)
			continue;
		done++;
		doctor_say(d, "devmem", names[i], dead < 0 ? DOCTOR_FAIL : DOCTOR_OK, dead < 0 ? "in part" : "put back",
			   text, dead < 0 ? "run it as root; the log has what was refused" : "");
	}
	if (!done)
		doctor_say(d, "devmem", "undo", DOCTOR_OK, "nothing to do", "no dead process has left a NIC changed",
			   "");
}
