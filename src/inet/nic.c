/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What interfaces there are, which of them to use, and why the others not.
 *
 * getifaddrs gives names, flags, link types and addresses of this network
 * namespace; /sys gives speed, PCI path, NUMA node and the bridge's marks. /sys
 * shows the namespace it was mounted in, which after a bare unshare is not ours:
 * an entry is believed only if its ifindex is the one we know. Tentative IPv6
 * addresses (duplicate detection still runs) cannot be bound and are skipped.
 *
 * Every interface gets a rank; those of the best rank that occurs are taken, all
 * of them. RANK_NEVER cannot carry traffic or was not asked for. When the user
 * names interfaces, what they are does not matter any more, only whether they
 * work; an exclusion ("^...") is the automatic choice among the rest.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if_arp.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "inet/nic.h"

enum { SPEED_ASSUMED = 10000 };
/* ARPHRD_* that glibc's header does not have; the kernel's clashes with net/if.h. */
enum { LINK_IP6GRE = 823, LINK_NONE = 0xfffe };

static int sys_int(const char *name, const char *what, int *ret_value)
{
	char path[96];

	snprintf(path, sizeof(path), "/sys/class/net/%s/%s", name, what);
	return gantry_file_int(path, ret_value);
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
		if (gantry_file_int(path, &value) && value >= 0)
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

/* Flags (IFA_F_*) of an IPv6 address, 0 if the kernel does not list it. */
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
	return v6_flags(&a->in6.sin6_addr, ifindex) & (IFA_F_TEMPORARY | IFA_F_DEPRECATED) ? 2 : 1;
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

	if (a.sa.sa_family == AF_INET6 &&
	    v6_flags(&a.in6.sin6_addr, nic->ifindex) & (IFA_F_TENTATIVE | IFA_F_DADFAILED)) {
		LOG_DEBUG(NET, "%s: skipped a tentative or duplicate IPv6 address", nic->name);
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
	char path[96];
	int value = 0;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/conf/%s/arp_ignore", name);
	return gantry_file_int(path, &value) && value != 0;
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

/* ---- which way the kernel would send packets, asked over rtnetlink ---- */

struct request {
	struct nlmsghdr head;
	struct rtmsg route;
	uint8_t attributes[128];
};

static void put_attribute(struct request *r, unsigned short type, const void *data, size_t size)
{
	struct rtattr *a = (struct rtattr *)(void *)((uint8_t *)r + NLMSG_ALIGN(r->head.nlmsg_len));

	a->rta_type = type;
	a->rta_len = (unsigned short)RTA_LENGTH(size);
	memcpy(RTA_DATA(a), data, size);
	r->head.nlmsg_len = NLMSG_ALIGN(r->head.nlmsg_len) + RTA_ALIGN(a->rta_len);
}

static void put_addr(struct request *r, unsigned short type, const struct gantry_addr *a)
{
	if (a->sa.sa_family == AF_INET6)
		put_attribute(r, type, &a->in6.sin6_addr, 16);
	else
		put_attribute(r, type, &a->in.sin_addr, 4);
}

static unsigned answer_device(const struct nlmsghdr *head, size_t size)
{
	const struct rtmsg *route = NLMSG_DATA(head);
	const struct rtattr *a = RTM_RTA(route);
	int left = (int)RTM_PAYLOAD(head);
	unsigned device = 0;

	if (!NLMSG_OK(head, size) || head->nlmsg_type != RTM_NEWROUTE)
		return 0;
	for (; RTA_OK(a, left); a = RTA_NEXT(a, left))
		if (a->rta_type == RTA_OIF && RTA_PAYLOAD(a) >= sizeof(device))
			memcpy(&device, RTA_DATA(a), sizeof(device));
	return device;
}

/* Index of the device that packets from `from` (NULL: any) to `to` leave by; 0 if there is no route or no answer. */
static unsigned route_device(const struct gantry_addr *from, const struct gantry_addr *to)
{
	int v6 = to->sa.sa_family == AF_INET6;
	struct request r = {
		.head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct rtmsg)),
			 .nlmsg_type = RTM_GETROUTE,
			 .nlmsg_flags = NLM_F_REQUEST},
		.route = {.rtm_family = to->sa.sa_family, .rtm_dst_len = v6 ? 128 : 32},
	};
	union {
		struct nlmsghdr head;
		uint8_t bytes[1024];
	} in;
	unsigned device = 0;
	ssize_t n;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd < 0)
		return 0;
	put_addr(&r, RTA_DST, to);
	if (from && from->sa.sa_family == to->sa.sa_family) {
		put_addr(&r, RTA_SRC, from);
		r.route.rtm_src_len = r.route.rtm_dst_len;
	}
	/* The kernel answers within the send: this never waits. */
	if (send(fd, &r, r.head.nlmsg_len, 0) > 0 && (n = recv(fd, &in, sizeof(in), MSG_DONTWAIT)) > 0)
		device = answer_device(&in.head, (size_t)n);
	close(fd);
	return device;
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
	device = route_device(from, peer);
	return device != 0 && device != nic->ifindex;
}

gantry_result gantry_nic_scan(struct gantry_nic_list **ret_list)
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
	*ret_list = list;
	list = NULL;
out:
	gantry_nic_list_free(list);
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
	free(list);
}

/* ---- the choice ---- */

enum rank {
	RANK_GOOD,
	RANK_TUNNEL,	 /* a routed address on a tunnel still beats an address of one link */
	RANK_LINK_LOCAL, /* peers on the same link can be reached */
	RANK_BRIDGE,	 /* docker0: its address is the same on every host */
	RANK_TUNNEL_LINK_LOCAL,
	RANK_LOOPBACK,
	RANK_NO_CARRIER, /* only if named by the user */
	RANK_NEVER,
};

struct verdict {
	enum rank rank;
	const char *why; /* static; "" for RANK_GOOD */
};

int gantry_nic_pattern_match(const char *pattern, const char *name)
{
	int exclude = *pattern == '^', exact, entries = 0, hit = 0;

	pattern += exclude;
	exact = *pattern == '=';
	pattern += exact;
	while (*pattern) {
		size_t whole = strcspn(pattern, ","), n = strcspn(pattern, ",:"); /* ":port" means nothing here */

		if (n) {
			entries++;
			if (strncmp(name, pattern, n) == 0 && (!exact || name[n] == 0))
				hit = 1;
		}
		pattern += whole + (pattern[whole] == ',');
	}
	if (!entries) /* NCCL: an empty list holds every name */
		hit = 1;
	return hit != exclude;
}

static int has_address(const struct gantry_nic *nic, int family, int wide)
{
	for (int i = 0; i < nic->naddrs; i++)
		if ((family == AF_UNSPEC || nic->addrs[i].sa.sa_family == family) &&
		    !(wide && gantry_addr_is_link_local(&nic->addrs[i])))
			return 1;
	return 0;
}

static struct verdict judge_nic(const struct gantry_nic *nic, const char *pattern, int family)
{
	int named = *pattern && *pattern != '^';
	int carrier = (nic->flags & IFF_RUNNING) != 0;
	int tunnel = nic->is_point_to_point_or_tunnel;

	if (*pattern && !gantry_nic_pattern_match(pattern, nic->name))
		return (struct verdict){RANK_NEVER, named ? "does not match" : "excluded"};
	if (!(nic->flags & IFF_UP))
		return (struct verdict){RANK_NEVER, "down"};
	if (!carrier)
		return (struct verdict){named && has_address(nic, family, 0) ? RANK_NO_CARRIER : RANK_NEVER,
					"no carrier"};
	if (!has_address(nic, family, 0))
		return (struct verdict){RANK_NEVER, family == AF_INET	 ? "no IPv4 address"
						    : family == AF_INET6 ? "no IPv6 address"
									 : "no address"};
	if (named)
		return (struct verdict){RANK_GOOD, ""};
	if (nic->is_port)
		return (struct verdict){RANK_NEVER, "port of a bridge or bond"};
	if (nic->is_loopback)
		return (struct verdict){RANK_LOOPBACK, "loopback"};
	if (nic->is_bridge_like)
		return (struct verdict){RANK_BRIDGE, "bridge"};
	if (!has_address(nic, family, 1))
		return (struct verdict){tunnel ? RANK_TUNNEL_LINK_LOCAL : RANK_LINK_LOCAL, "only a link-local address"};
	if (tunnel)
		return (struct verdict){RANK_TUNNEL, "tunnel"};
	return (struct verdict){RANK_GOOD, ""};
}

const char *gantry_nic_objection(const struct gantry_nic *nic, const char *pattern, int family)
{
	return judge_nic(nic, pattern, family).why;
}

static void keep_family(struct gantry_nic *nic, int family)
{
	int n = 0;

	for (int i = 0; i < nic->naddrs; i++) {
		if (family != AF_UNSPEC && nic->addrs[i].sa.sa_family != family)
			continue;
		nic->addrs[n] = nic->addrs[i];
		nic->prefix_len[n++] = nic->prefix_len[i];
	}
	nic->naddrs = n;
}

static void add_speed(char *text, size_t len, const struct gantry_nic *nic)
{
	if (nic->speed_mbps % 1000)
		gantry_text_add(text, len, "%d Mbit/s", nic->speed_mbps);
	else
		gantry_text_add(text, len, "%d Gbit/s", nic->speed_mbps / 1000);
	if (!nic->speed_known)
		gantry_text_add(text, len, " assumed");
}

/* "lo (loopback), docker0 (bridge)" for those of a worse rank than `best`. */
static void add_left_out(struct gantry_nic_list *list, const struct verdict *v, enum rank best)
{
	const char *before = "; left out ";

	for (int i = 0; i < list->count; i++) {
		if (v[i].rank == best)
			continue;
		gantry_text_add(list->reason, sizeof(list->reason), "%s%s (%s)", before, list->nics[i].name, v[i].why);
		before = ", ";
		LOG_DEBUG(NET, "skipped interface %s: %s", list->nics[i].name, v[i].why);
	}
}

static void say_reason(struct gantry_nic_list *list, const struct verdict *v, enum rank best)
{
	char text[GANTRY_ADDR_TEXT], *reason = list->reason;
	const size_t len = sizeof(list->reason);
	const char *before = "using ";

	*reason = 0;
	for (int i = 0; i < list->count; i++) {
		const struct gantry_nic *nic = &list->nics[i];

		if (v[i].rank != best)
			continue;
		gantry_text_add(reason, len, "%s%s %s (", before, nic->name, gantry_addr_text(&nic->addrs[0], text));
		add_speed(reason, len, nic);
		if (nic->numa_node >= 0)
			gantry_text_add(reason, len, ", numa %d", nic->numa_node);
		if (*v[i].why)
			gantry_text_add(reason, len, ", %s", v[i].why);
		gantry_text_add(reason, len, ")");
		before = ", ";
	}
	add_left_out(list, v, best);
}

/* "lo 127.0.0.1 ::1, eth1 (down), eth0 10.0.0.2" */
static void add_all(char *all, size_t len, const struct gantry_nic_list *list)
{
	char text[GANTRY_ADDR_TEXT];

	for (int i = 0; i < list->count; i++) {
		const struct gantry_nic *nic = &list->nics[i];

		gantry_text_add(all, len, "%s%s", i ? ", " : "", nic->name);
		for (int k = 0; k < nic->naddrs; k++)
			gantry_text_add(all, len, " %s", gantry_addr_text(&nic->addrs[k], text));
		if (!(nic->flags & IFF_UP))
			gantry_text_add(all, len, " (down)");
		else if (!(nic->flags & IFF_RUNNING))
			gantry_text_add(all, len, " (no carrier)");
		else if (!nic->naddrs)
			gantry_text_add(all, len, " (no address)");
	}
}

static gantry_result nothing_usable(const struct gantry_nic_list *list, const char *pattern, int family)
{
	char all[1024] = "", what[256] = "";
	int matches = 0;

	add_all(all, sizeof(all), list);
	for (int i = 0; i < list->count; i++)
		matches += gantry_nic_pattern_match(pattern, list->nics[i].name);
	if (!*pattern)
		gantry_text_add(what, sizeof(what), "no interface is usable");
	else if (matches)
		gantry_text_add(what, sizeof(what), "no interface matching '%s' is usable", pattern);
	else
		gantry_text_add(what, sizeof(what), "no interface matches '%s'", pattern);
	if (family != AF_UNSPEC)
		gantry_text_add(what, sizeof(what), " with %s", family == AF_INET ? "IPv4" : "IPv6");
	/* The list comes last: it is what may be cut off. */
	FAIL_NOW(GANTRY_ERR_CONFIG, "%s; %s%s: %s", what,
		 *pattern ? "set GANTRY_IFNAME (or NCCL_SOCKET_IFNAME) to one of these, or unset it for "
			    "automatic choice"
			  : "bring one of these up and give it an address",
		 family == AF_UNSPEC ? "" : ", or set GANTRY_FAMILY=auto", *all ? all : "none");
}

/* Bootstrap and network both choose, and as a rule the same: one line. By a checksum, which needs no lock. Of BASE, because it
 * follows from parameters, and because NCCL shows lines of that by default (plugin.c). */
static void log_choice(const char *reason)
{
	static uint32_t logged;
	uint32_t crc = gantry_crc32c(0, reason, strlen(reason));

	if (load_relaxed(&gantry_log_level_now) >= (int)GANTRY_LOG_INFO && exchange_relaxed(&logged, crc) != crc)
		LOG_INFO(BASE, "%s", reason);
}

gantry_result gantry_nic_select(struct gantry_nic_list *list, const char *pattern, int family)
{
	struct verdict v[GANTRY_NIC_MAX];
	enum rank best = RANK_NEVER;
	int kept = 0;

	for (int i = 0; i < list->count; i++) {
		v[i] = judge_nic(&list->nics[i], pattern, family);
		if (v[i].rank < best)
			best = v[i].rank;
	}
	if (best == RANK_NEVER)
		return nothing_usable(list, pattern, family);
	for (int i = 0; i < list->count; i++)
		if (v[i].rank == best)
			keep_family(&list->nics[i], family);
	say_reason(list, v, best);
	for (int i = 0; i < list->count; i++) {
		if (v[i].rank == best)
			list->nics[kept++] = list->nics[i];
		else
			free(list->nics[i].pci_path);
	}
	list->count = kept;
	log_choice(list->reason);
	return GANTRY_OK;
}

static int same_bits(const void *a, const void *b, unsigned bits)
{
	const unsigned char *x = a, *y = b;
	unsigned whole = bits / 8, rest = bits % 8;

	if (memcmp(x, y, whole) != 0)
		return 0;
	return !rest || ((x[whole] ^ y[whole]) >> (8 - rest)) == 0;
}

int gantry_nic_same_subnet(const struct gantry_nic *nic, int i, const struct gantry_addr *peer)
{
	const struct gantry_addr *own;

	if (i < 0 || i >= nic->naddrs)
		return 0;
	own = &nic->addrs[i];
	if (own->sa.sa_family != peer->sa.sa_family)
		return 0;
	if (own->sa.sa_family == AF_INET)
		return same_bits(&own->in.sin_addr, &peer->in.sin_addr, nic->prefix_len[i]);
	/* fe80:: is the same prefix on every link; only the scope tells them apart. */
	if (gantry_addr_is_link_local(peer) && peer->in6.sin6_scope_id && peer->in6.sin6_scope_id != nic->ifindex)
		return 0;
	return same_bits(&own->in6.sin6_addr, &peer->in6.sin6_addr, nic->prefix_len[i]);
}

void gantry_nic_of_addr(const struct gantry_addr *a, char ret_name[IFNAMSIZ])
{
	struct gantry_nic_list *list = NULL;

	ret_name[0] = 0;
	if (gantry_nic_scan(&list) != GANTRY_OK)
		return;
	for (int i = 0; i < list->count && !ret_name[0]; i++)
		for (int k = 0; k < list->nics[i].naddrs && !ret_name[0]; k++) {
			struct gantry_addr own = list->nics[i].addrs[k];

			if (own.sa.sa_family == AF_INET6 && a->sa.sa_family == AF_INET6)
				own.in6.sin6_scope_id = a->in6.sin6_scope_id;
			if (gantry_addr_same_host(&own, a))
				memcpy(ret_name, list->nics[i].name, IFNAMSIZ);
		}
	gantry_nic_list_free(list);
}
