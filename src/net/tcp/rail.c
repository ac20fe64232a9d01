/* SPDX-License-Identifier: Apache-2.0 */
/* Which of several rails should take the next piece: see rail.h. */
#include "net/tcp/rail.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/atomic.h"

/*
 * Several lanes: what this one holds, and how fast the kernel has lately seen it deliver. The kernel leaves samples out
 * in which the lane had nothing to do, unless they were faster. The caller holds the lane's lock.
 */
void tcp_rail_weigh(struct tcp_lane *lane)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);
	int out = 0;

	memset(&info, 0, sizeof(info));
	if (ioctl(lane->fd, SIOCOUTQ, &out) || out < 0 || getsockopt(lane->fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return;
	store_relaxed(&lane->tx.queued, (uint64_t)out);
	store_relaxed(&lane->tx.rate, (uint64_t)info.tcpi_delivery_rate);
}

/*
 * Would this lane deliver one more piece later than all lanes together deliver everything that waits? Then the piece is
 * better left to the others, unless this is the lane that would be through with it first. Under mu.
 */
int tcp_rail_too_slow(const struct tcp_lane *lane, uint64_t chunk)
{
	const struct tcp_link *l = lane->link;
	double mine = ((double)lane->tx.queued + (double)chunk) / (double)lane->tx.rate, rates = 0,
	       bytes = (double)l->tx.bulk_bytes;
	int better = 0;

	if (!lane->tx.rate)
		return lane->tx.queued > 0; /* one piece to learn from */
	for (int i = 1; i < l->nlanes; i++) {
		const struct tcp_lane_tx *tx = &l->lanes[i].tx;
		uint64_t rate = load_relaxed(&tx->rate), queued = load_relaxed(&tx->queued);

		if (load_relaxed(&tx->dead))
			continue;
		if (!rate)
			return 0;
		rates += (double)rate;
		bytes += (double)queued;
		better |= ((double)queued + (double)chunk) / (double)rate < mine;
	}
	return better && mine > bytes / rates;
}
