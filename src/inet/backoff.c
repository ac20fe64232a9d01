/* SPDX-License-Identifier: Apache-2.0 */
/* backoff.h has the why. */
#include "inet/backoff.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

enum { NEVER_MS = 86400000, CAP_MIN_MS = 1000, CAP_MAX_MS = 120000 };
enum { MS = 1000000 };

/*
 * When retransmissions are asked for, and how long before that the next one is: in 1/1000 of the deadline. The gap to
 * the one before is larger than that, also if the kernel's timer is late, which it may be by 1/8 of its time.
 */
static const struct {
	uint32_t at, early;
} targets[] = {{800, 110}, {910, 62}, {955, 30}};

static void set_user_timeout(int fd, uint64_t ms)
{
	int value = ms < NEVER_MS ? (int)ms : NEVER_MS;

	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, sizeof(value));
}

void sock_backoff_init(int fd, uint64_t timeout_ns)
{
	uint64_t ms = timeout_ns / MS / 30;
	int cap = ms < CAP_MIN_MS ? CAP_MIN_MS : ms > CAP_MAX_MS ? CAP_MAX_MS : (int)ms;

	/* Never without the time-out: the kernel counts retransmissions otherwise, and 15 of them are over soon. */
	set_user_timeout(fd, NEVER_MS);
	if ((uint64_t)cap * MS <= timeout_ns / 25)
		setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &cap, sizeof(cap)); /* fails before Linux 6.15 */
}

void sock_backoff_leave(int fd, uint64_t timeout_ns)
{
	set_user_timeout(fd, timeout_ns / MS);
}

static int is_capped(int fd, uint64_t timeout_ns)
{
	int cap = 0;
	socklen_t len = sizeof(cap);

	return !getsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &cap, &len) && cap > 0 &&
	       (uint64_t)cap * MS <= timeout_ns / 25;
}

/* When the kernel shall retransmit, counted as it does: from the first retransmission. */
static uint64_t user_timeout(const struct sock_backoff *b, uint64_t now, uint64_t timeout)
{
	uint64_t waited = (now - b->since) / (timeout / 1000);

	for (size_t i = 0; i < sizeof(targets) / sizeof(*targets); i++) {
		uint64_t at = b->since + timeout / 1000 * targets[i].at;

		if (waited < targets[i].at - targets[i].early)
			return at > b->resent ? (at - b->resent) / MS : NEVER_MS;
	}
	return NEVER_MS;
}

/* Bytes that are in the network. */
static uint64_t in_flight(int fd, const struct tcp_info *info)
{
	int queued = 0;

	if (ioctl(fd, SIOCOUTQ, &queued) || queued < 0 || (uint32_t)queued < info->tcpi_notsent_bytes)
		return 0;
	return (uint64_t)queued - info->tcpi_notsent_bytes;
}

/* The time between two retransmissions doubles from one to the next. In ns. */
static uint64_t since_first_resent(const struct tcp_info *info)
{
	uint64_t first = (uint64_t)(info->tcpi_rto >> info->tcpi_backoff) * 1000;

	if (!info->tcpi_retransmits || info->tcpi_retransmits != info->tcpi_backoff || info->tcpi_retransmits > 8)
		return 0;
	return (uint64_t)info->tcpi_last_data_sent * MS + first * ((1u << info->tcpi_retransmits) - 2);
}

/*
 * What the kernel tells, and since when. Its own clock starts with the first retransmission and runs until all that was
 * out at that time is acknowledged, not just until something is; then it starts again, and both may happen between two
 * looks.
 */
static void note(struct sock_backoff *b, int fd, const struct tcp_info *info, uint64_t now)
{
	int known = b->since && info->tcpi_bytes_acked == b->acked;

	b->acked = info->tcpi_bytes_acked;
	if ((!info->tcpi_retransmits && info->tcpi_ca_state < TCP_CA_Recovery) || b->acked >= b->recovered_at)
		b->resent = 0;
	if (!b->resent && (info->tcpi_retransmits || info->tcpi_ca_state >= TCP_CA_Recovery)) {
		b->resent = now - since_first_resent(info);
		b->recovered_at = b->acked + in_flight(fd, info);
	}
	if (!info->tcpi_unacked)
		b->since = 0;
	else if (!known)
		b->since = now;
}

int sock_backoff_tick(struct sock_backoff *b, int fd, uint64_t now, uint64_t timeout_ns)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);
	uint64_t ms;

	if (b->kind == BACKOFF_UNKNOWN)
		b->kind = is_capped(fd, timeout_ns) ? BACKOFF_CAPPED : BACKOFF_MOVED;
	if (b->kind == BACKOFF_CAPPED)
		return 0;
	memset(&info, 0, sizeof(info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return 0;
	note(b, fd, &info, now);
	ms = b->since && info.tcpi_retransmits ? user_timeout(b, now, timeout_ns) : NEVER_MS;
	if (ms != (b->user_ms ? b->user_ms : NEVER_MS)) {
		set_user_timeout(fd, ms);
		b->user_ms = (uint32_t)ms;
	}
	return b->since != 0;
}
