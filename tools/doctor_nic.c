/* `gantry doctor`: interfaces, the choice among them, and what gets in the way of several on one subnet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "doctor.h"
#include "inet/nic.h"
#include "inet/settings.h"

static const char section[] = "interfaces";

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
	char value[GANTRY_NIC_ADDRS * GANTRY_ADDR_TEXT], detail[512], numa[32] = "";

	addresses(nic, value, sizeof(value));
	if (nic->numa_node >= 0)
		snprintf(numa, sizeof(numa), ", numa %d", nic->numa_node);
	snprintf(detail, sizeof(detail), "%s%s%s%s; %d Mbit/s%s, mtu %d%s, %s", chosen ? "chosen" : "left out",
		 *why ? " (" : "", why, *why ? ")" : "", nic->speed_mbps, nic->speed_known ? "" : " assumed", nic->mtu,
		 numa, nic->pci_path ? nic->pci_path : "no PCI device");
	doctor_say(d, section, nic->name, chosen ? DOCTOR_OK : DOCTOR_NOTE, *value ? value : "no address", detail, "");
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
	char label[64], value[16], advice[128];

	snprintf(label, sizeof(label), "%s %s", what, name);
	snprintf(value, sizeof(value), "%d", now);
	snprintf(advice, sizeof(advice), "sysctl -w net.ipv4.conf.%s.%s=%d net.ipv4.conf.all.%s=%d", name, what, want,
		 what, want);
	doctor_say(d, "subnets", label, DOCTOR_WARN, value, text, advice);
}

/* Several NICs in one subnet: answers may come in by another NIC than the question went out by. */
static void say_subnets(struct doctor *d, const struct gantry_nic_list *chosen)
{
	for (int i = 0; i < chosen->count; i++) {
		const struct gantry_nic *nic = &chosen->nics[i], *other = NULL;
		char detail[128];
		int now;

		for (int k = 0; k < chosen->count && !other; k++)
			if (k != i && share_subnet(nic, &chosen->nics[k]))
				other = &chosen->nics[k];
		if (!other)
			continue;
		snprintf(detail, sizeof(detail), "shares a subnet with %s", other->name);
		doctor_say(d, "subnets", nic->name, DOCTOR_NOTE, "shared", detail,
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

void doctor_interfaces(struct doctor *d)
{
	struct gantry_nic_list all = {.count = 0}, chosen = {.count = 0};
	const char *pattern = d->ifname ? d->ifname : inet_wanted_interfaces();
	int family = inet_wanted_family();
	gantry_result r = gantry_nic_scan(&all);

	if (r == GANTRY_OK)
		r = gantry_nic_scan(&chosen);
	if (r != GANTRY_OK) {
		doctor_say(d, section, "scan", DOCTOR_FAIL, "", gantry_last_error(), "");
		doctor_block(d, gantry_last_error());
		gantry_nic_list_free(&all);
		return;
	}
	r = gantry_nic_select(&chosen, pattern, family);
	for (int i = 0; i < all.count; i++) {
		const struct gantry_nic *nic = &all.nics[i];

		say_nic(d, nic, r == GANTRY_OK && find(&chosen, nic->ifindex) != NULL,
			gantry_nic_objection(nic, pattern, family));
	}
	if (r != GANTRY_OK) {
		doctor_say(d, "choice", "tcp", DOCTOR_FAIL, "", gantry_last_error(), "");
		doctor_block(d, gantry_last_error());
	} else {
		say_choice(d, &chosen, pattern);
		say_subnets(d, &chosen);
	}
	gantry_nic_list_free(&all);
	gantry_nic_list_free(&chosen);
}
