/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which interfaces to use, and why the others not.
 *
 * Every interface gets a rank; those of the best rank that occurs are taken, all
 * of them. RANK_NEVER cannot carry traffic or was not asked for. When the user
 * names interfaces, what they are does not matter any more, only whether they
 * work; an exclusion ("^...") is the automatic choice among the rest.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "inet/nic.h"

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

/* Text that grows in a fixed buffer and ends in "..." when it does not fit. */
struct text {
	char *buf;
	size_t size, len;
};

static void add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(t->buf + t->len, t->size - t->len, fmt, ap);
	va_end(ap);
	if (n < 0 || t->len + (size_t)n >= t->size) {
		t->len = t->size - 1;
		memcpy(t->buf + t->size - 4, "...", 4);
	} else {
		t->len += (size_t)n;
	}
}

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

static const char *no_address_text(int family)
{
	return family == AF_INET ? "no IPv4 address" : family == AF_INET6 ? "no IPv6 address" : "no address";
}

static struct verdict judge(const struct gantry_nic *nic, const char *pattern, int family)
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
		return (struct verdict){RANK_NEVER, no_address_text(family)};
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
	return judge(nic, pattern, family).why;
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

static void add_speed(struct text *t, const struct gantry_nic *nic)
{
	if (nic->speed_mbps % 1000)
		add(t, "%d Mbit/s", nic->speed_mbps);
	else
		add(t, "%d Gbit/s", nic->speed_mbps / 1000);
	if (!nic->speed_known)
		add(t, " assumed");
}

/* "lo (loopback), docker0 (bridge)" for those of a worse rank than `best`. */
static void add_left_out(struct text *t, const struct gantry_nic_list *list, const struct verdict *v, enum rank best)
{
	const char *before = "; left out ";

	for (int i = 0; i < list->count; i++) {
		if (v[i].rank == best)
			continue;
		add(t, "%s%s (%s)", before, list->nics[i].name, v[i].why);
		before = ", ";
		LOG_DEBUG(NET, "left out interface %s: %s", list->nics[i].name, v[i].why);
	}
}

static void say_reason(struct gantry_nic_list *list, const struct verdict *v, enum rank best)
{
	struct text t = {list->reason, sizeof(list->reason), 0};
	char text[GANTRY_ADDR_TEXT];
	const char *before = "using ";

	for (int i = 0; i < list->count; i++) {
		const struct gantry_nic *nic = &list->nics[i];

		if (v[i].rank != best)
			continue;
		add(&t, "%s%s %s (", before, nic->name, gantry_addr_text(&nic->addrs[0], text));
		add_speed(&t, nic);
		if (nic->numa_node >= 0)
			add(&t, ", numa %d", nic->numa_node);
		if (*v[i].why)
			add(&t, ", %s", v[i].why);
		add(&t, ")");
		before = ", ";
	}
	add_left_out(&t, list, v, best);
}

/* "lo 127.0.0.1 ::1, eth1 (down), eth0 10.0.0.2" */
static void add_all(struct text *t, const struct gantry_nic_list *list)
{
	char text[GANTRY_ADDR_TEXT];

	for (int i = 0; i < list->count; i++) {
		const struct gantry_nic *nic = &list->nics[i];

		add(t, "%s%s", i ? ", " : "", nic->name);
		for (int k = 0; k < nic->naddrs; k++)
			add(t, " %s", gantry_addr_text(&nic->addrs[k], text));
		if (!(nic->flags & IFF_UP))
			add(t, " (down)");
		else if (!(nic->flags & IFF_RUNNING))
			add(t, " (no carrier)");
		else if (!nic->naddrs)
			add(t, " (no address)");
	}
}

static gantry_result nothing_usable(const struct gantry_nic_list *list, const char *pattern, int family)
{
	char all[1024] = "none", what[256];
	struct text t = {all, sizeof(all), 0}, w = {what, sizeof(what), 0};
	int matches = 0;

	add_all(&t, list);
	for (int i = 0; i < list->count; i++)
		matches += gantry_nic_pattern_match(pattern, list->nics[i].name);
	if (!*pattern)
		add(&w, "no interface can be used");
	else if (matches)
		add(&w, "no interface that matches '%s' can be used", pattern);
	else
		add(&w, "no interface matches '%s'", pattern);
	if (family != AF_UNSPEC)
		add(&w, " with %s", family == AF_INET ? "IPv4" : "IPv6");
	/* The list comes last: it is what may be cut off. */
	FAIL_NOW(GANTRY_ERR_CONFIG, "%s; %s%s: %s", what,
		 *pattern ? "set GANTRY_IFNAME (or NCCL_SOCKET_IFNAME) to one of these, or unset it for "
			    "automatic choice"
			  : "bring one of these up and give it an address",
		 family == AF_UNSPEC ? "" : ", or set GANTRY_FAMILY=auto", all);
}

/* Bootstrap and network both choose, and as a rule the same: one line. By a checksum, which needs no lock. */
static void log_choice(const char *reason)
{
	static uint32_t logged;
	uint32_t crc = gantry_crc32c(0, reason, strlen(reason));

	if (load_relaxed(&gantry_log_level_now) >= (int)GANTRY_LOG_INFO && exchange_relaxed(&logged, crc) != crc)
		LOG_INFO(NET, "%s", reason);
}

gantry_result gantry_nic_select(struct gantry_nic_list *list, const char *pattern, int family)
{
	struct verdict v[GANTRY_NIC_MAX];
	enum rank best = RANK_NEVER;
	int kept = 0;

	for (int i = 0; i < list->count; i++) {
		v[i] = judge(&list->nics[i], pattern, family);
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
