/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What interfaces there are.
 *
 * getifaddrs gives names, flags, link types and addresses of this network
 * namespace; /sys gives speed, PCI path, NUMA node and the bridge's marks. /sys
 * shows the namespace it was mounted in, which after a bare unshare is not ours:
 * an entry is believed only if its ifindex is the one we know. Tentative IPv6
 * addresses (duplicate detection still runs) cannot be bound and are skipped.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if_arp.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "inet/nic.h"
#include "inet/route.h"

enum { SPEED_ASSUMED = 10000 };
/* ARPHRD_* that glibc's header does not have; the kernel's clashes with net/if.h. */
enum { LINK_IP6GRE = 823, LINK_NONE = 0xfffe };
/* IFA_F_* of linux/if_addr.h, as /proc/net/if_inet6 shows them. */
enum { V6_TEMPORARY = 0x01, V6_DADFAILED = 0x08, V6_DEPRECATED = 0x20, V6_TENTATIVE = 0x40 };

static int read_int(const char *path, int *ret_value)
{
	FILE *f = fopen(path, "re");
	int ok, value;

	if (!f)
		return 0;
	ok = fscanf(f, "%d", &value) == 1; /* speed of a link that is down reads as EINVAL */
	fclose(f);
	if (ok)
		*ret_value = value;
	return ok;
}

static int sys_int(const char *name, const char *what, int *ret_value)
{
	char path[96];

	snprintf(path, sizeof(path), "/sys/class/net/%s/%s", name, what);
	return read_int(path, ret_value);
}

static int sys_exists(const char *name, const char *what)
{
	char path[96];

	snprintf(path, sizeof(path), "/sys/class/net/%s/%s", name, what);
	return access(path, F_OK) == 0;
}

/* "0000:3b:00.1" */
static int looks_like_pci(const char *s)
{
	size_t n = strlen(s);

	return n >= 12 && s[n - 2] == '.' && s[n - 5] == ':' && s[n - 8] == ':' &&
	       strspn(s, "0123456789abcdefABCDEF:.") == n;
}

/* NCCL places a NIC by its PCI device's directory; virtio and the like put a leaf of their own below it. */
static char *pci_path_of(const char *name)
{
	char path[96], *full, *slash;

	snprintf(path, sizeof(path), "/sys/class/net/%s/device", name);
	full = realpath(path, NULL);
	while (full && (slash = strrchr(full, '/')) != NULL) {
		if (looks_like_pci(slash + 1))
			return full;
		*slash = 0;
	}
	free(full);
	return NULL;
}

static int bridge_by_name(const char *name)
{
	static const char *const prefixes[] = {"docker", "virbr",  "br-",   "cni",     "flannel",
					       "lxc",	 "podman", "kube-", "cilium_", "weave"};

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
		if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
			return 1;
	return 0;
}

static int tunnel_type(int hatype)
{
	switch (hatype) {
	case ARPHRD_TUNNEL:
	case ARPHRD_TUNNEL6:
	case ARPHRD_SIT:
	case ARPHRD_IPGRE:
	case ARPHRD_PPP:
	case LINK_IP6GRE:
	case LINK_NONE: /* tun, wireguard */
		return 1;
	default:
		return 0;
	}
}

static void fill_from_sys(struct gantry_nic *nic)
{
	char path[PATH_MAX];
	int index, value;

	if (!sys_int(nic->name, "ifindex", &index) || index != (int)nic->ifindex)
		return;
	if (sys_exists(nic->name, "bridge"))
		nic->is_bridge_like = 1;
	if (sys_exists(nic->name, "brport"))
		nic->is_port = 1;
	if (sys_int(nic->name, "speed", &value) && value > 0) {
		nic->speed_mbps = value;
		nic->speed_known = 1;
	}
	nic->pci_path = pci_path_of(nic->name);
	if (nic->pci_path) {
		snprintf(path, sizeof(path), "%s/numa_node", nic->pci_path);
		if (read_int(path, &value) && value >= 0)
			nic->numa_node = value;
	}
}

static int mtu_of(const char *name)
{
	struct ifreq req;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), mtu = 0;

	if (fd < 0)
		return 0;
	memset(&req, 0, sizeof(req));
	strcpy(req.ifr_name, name);
	if (ioctl(fd, SIOCGIFMTU, &req) == 0)
		mtu = req.ifr_mtu;
	close(fd);
	return mtu;
}

/* An IPv4 address with a label comes as "eth0:1"; the interface is "eth0". */
static void device_name(const char *label, char name[IFNAMSIZ])
{
	snprintf(name, IFNAMSIZ, "%s", label);
	name[strcspn(name, ":")] = 0;
}

static struct gantry_nic *find_nic(struct gantry_nic_list *list, const char *label)
{
	char name[IFNAMSIZ];

	device_name(label, name);
	for (int i = 0; i < list->count; i++)
		if (strcmp(list->nics[i].name, name) == 0)
			return &list->nics[i];
	return NULL;
}

static void add_nic(struct gantry_nic_list *list, const struct ifaddrs *ifa)
{
	struct gantry_nic *nic;

	if (find_nic(list, ifa->ifa_name))
		return;
	if (list->count == GANTRY_NIC_MAX) {
		LOG_DEBUG(NET, "interface %s ignored: more than %d", ifa->ifa_name, GANTRY_NIC_MAX);
		return;
	}
	nic = &list->nics[list->count++];
	memset(nic, 0, sizeof(*nic));
	device_name(ifa->ifa_name, nic->name);
	nic->ifindex = if_nametoindex(nic->name);
	nic->flags = ifa->ifa_flags;
	nic->is_loopback = (ifa->ifa_flags & IFF_LOOPBACK) != 0;
	nic->is_bridge_like = bridge_by_name(nic->name);
	nic->is_point_to_point_or_tunnel = (ifa->ifa_flags & IFF_POINTOPOINT) != 0;
	nic->is_port = (ifa->ifa_flags & IFF_SLAVE) != 0;
	nic->speed_mbps = SPEED_ASSUMED;
	nic->numa_node = -1;
	nic->mtu = mtu_of(nic->name);
	fill_from_sys(nic);
}

/* Flags of an IPv6 address, 0 if the kernel does not list it. */
static unsigned v6_flags(const struct in6_addr *a, unsigned ifindex)
{
	FILE *f = fopen("/proc/thread-self/net/if_inet6", "re");
	unsigned flags = 0, index, plen, scope, fl;
	char line[128], hex[33], want[33];

	if (!f)
		return 0;
	for (int i = 0; i < 16; i++)
		snprintf(want + 2 * i, 3, "%02x", a->s6_addr[i]);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%32s %x %x %x %x", hex, &index, &plen, &scope, &fl) == 5 && index == ifindex &&
		    strcmp(hex, want) == 0)
			flags = fl;
	fclose(f);
	return flags;
}

/* Order of preference; 0 is best. */
static int addr_rank(const struct gantry_addr *a, unsigned ifindex)
{
	int v6 = a->sa.sa_family == AF_INET6;

	if (gantry_addr_is_link_local(a))
		return v6 ? 4 : 3;
	if (!v6)
		return 0;
	return v6_flags(&a->in6.sin6_addr, ifindex) & (V6_TEMPORARY | V6_DEPRECATED) ? 2 : 1;
}

static uint8_t mask_len(const struct sockaddr *mask, int family)
{
	const unsigned char *p = (const unsigned char *)mask;
	size_t n = family == AF_INET ? 4 : 16;
	unsigned bits = 0;

	if (!mask)
		return (uint8_t)(8 * n);
	p += family == AF_INET ? offsetof(struct sockaddr_in, sin_addr) : offsetof(struct sockaddr_in6, sin6_addr);
	for (size_t i = 0; i < n; i++)
		bits += (unsigned)__builtin_popcount(p[i]);
	return (uint8_t)bits;
}

/* Keeps addresses in order of preference; the least preferred falls off the end. */
static void add_addr(struct gantry_nic *nic, const struct ifaddrs *ifa)
{
	struct gantry_addr a = gantry_addr_of(ifa->ifa_addr);
	int at = nic->naddrs, rank;

	if (a.sa.sa_family == AF_INET6 && v6_flags(&a.in6.sin6_addr, nic->ifindex) & (V6_TENTATIVE | V6_DADFAILED)) {
		LOG_DEBUG(NET, "%s: an IPv6 address that is tentative or a duplicate was left out", nic->name);
		return;
	}
	rank = addr_rank(&a, nic->ifindex);
	while (at > 0 && addr_rank(&nic->addrs[at - 1], nic->ifindex) > rank)
		at--;
	if (at == GANTRY_NIC_ADDRS)
		return;
	if (nic->naddrs < GANTRY_NIC_ADDRS)
		nic->naddrs++;
	for (int i = nic->naddrs - 1; i > at; i--) {
		nic->addrs[i] = nic->addrs[i - 1];
		nic->prefix_len[i] = nic->prefix_len[i - 1];
	}
	nic->addrs[at] = a;
	nic->prefix_len[at] = mask_len(ifa->ifa_netmask, a.sa.sa_family);
}

static int has_wide_address(const struct ifaddrs *ifa)
{
	struct gantry_addr a = gantry_addr_of(ifa->ifa_addr);

	return a.sa.sa_family != AF_UNSPEC && !gantry_addr_is_link_local(&a);
}

static int by_index(const void *a, const void *b)
{
	unsigned x = ((const struct gantry_nic *)a)->ifindex, y = ((const struct gantry_nic *)b)->ifindex;

	return x < y ? -1 : x > y;
}

static int arp_ignore(const char *name)
{
	char path[96], digit = '0';
	FILE *f;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/conf/%s/arp_ignore", name);
	f = fopen(path, "re");
	if (f) {
		if (fread(&digit, 1, 1, f) != 1)
			digit = '0';
		fclose(f);
	}
	return digit != '0';
}

/*
 * By default Linux answers ARP requests for any of its addresses on any interface. With two interfaces on one subnet a
 * peer may therefore send packets for one to the other, and a socket that is bound to its device never sees them.
 */
static void find_arp_flux(struct gantry_nic_list *list)
{
	for (int i = 0; i < list->count; i++) {
		struct gantry_nic *nic = &list->nics[i];
		int shared = 0;

		for (int k = 0; k < nic->naddrs; k++)
			for (int j = 0; j < list->count; j++)
				for (int a = 0; j != i && a < list->nics[j].naddrs; a++)
					shared |= nic->addrs[k].sa.sa_family == AF_INET &&
						  gantry_nic_same_subnet(nic, k, &list->nics[j].addrs[a]);
		nic->arp_flux = shared && !arp_ignore("all") && !arp_ignore(nic->name);
	}
}

/*
 * Only where it changes anything: a bound socket skips part of the kernel's route lookup, so that for instance a
 * blackhole route would not be noticed.
 */
int gantry_nic_should_bind(const struct gantry_nic *nic, const struct gantry_addr *peer)
{
	const struct gantry_addr *from = NULL;
	unsigned device;

	if (gantry_addr_is_local(peer) || (nic->arp_flux && peer->sa.sa_family == AF_INET))
		return 0;
	for (int i = 0; i < nic->naddrs && !from; i++)
		if (nic->addrs[i].sa.sa_family == peer->sa.sa_family)
			from = &nic->addrs[i];
	device = gantry_route_device(from, peer);
	return device != 0 && device != nic->ifindex;
}

gantry_result gantry_nic_scan(struct gantry_nic_list *ret_list)
{
	gantry_result r = GANTRY_OK;
	struct ifaddrs *all = NULL, *i;
	struct gantry_nic_list *list = NULL;

	if (getifaddrs(&all) != 0)
		FAIL(errno == EMFILE || errno == ENFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM, "getifaddrs: %s",
		     strerror(errno));
	list = calloc(1, sizeof(*list));
	if (!list)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the list of interfaces");
	/* A container host has more veths than there is room: those with a real address go first. */
	for (i = all; i; i = i->ifa_next)
		if (has_wide_address(i))
			add_nic(list, i);
	for (i = all; i; i = i->ifa_next)
		add_nic(list, i);
	qsort(list->nics, (size_t)list->count, sizeof(list->nics[0]), by_index);

	for (i = all; i; i = i->ifa_next) {
		struct gantry_nic *nic = find_nic(list, i->ifa_name);
		struct sockaddr_ll ll;

		if (!nic || !i->ifa_addr)
			continue;
		if (i->ifa_addr->sa_family == AF_PACKET) {
			memcpy(&ll, i->ifa_addr, offsetof(struct sockaddr_ll, sll_addr));
			nic->is_point_to_point_or_tunnel |= tunnel_type(ll.sll_hatype);
		} else if (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6) {
			add_addr(nic, i);
		}
	}
	find_arp_flux(list);
	*ret_list = *list;
out:
	free(list);
	if (all)
		freeifaddrs(all);
	return r;
}

void gantry_nic_list_free(struct gantry_nic_list *list)
{
	if (!list)
		return;
	for (int i = 0; i < list->count; i++)
		free(list->nics[i].pci_path);
	list->count = 0;
}
