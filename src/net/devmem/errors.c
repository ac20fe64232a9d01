/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table. docs/devmem.md has the same in its troubleshooting section (tests/unit/test_devmem_errors.c compares the
 * numbers).
 */
#include "net/devmem/errors.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "net/devmem.h"

#define RX DEVMEM_CALL_BIND_RX
#define TX DEVMEM_CALL_BIND_TX
#define RECV DEVMEM_CALL_RECVMSG
#define BACK DEVMEM_CALL_DONTNEED
#define SEND DEVMEM_CALL_SENDMSG
#define RULE DEVMEM_CALL_RULE
#define RINGS DEVMEM_CALL_RINGS
#define UNSUPPORTED GANTRY_ERR_UNSUPPORTED

static const struct devmem_error table[] = {
	{RX, EPERM, GANTRY_ERR_CONFIG, "CAP_NET_ADMIN in the initial user namespace is needed",
	 "run as root, or start `gantry devmem-helper` as root and set GANTRY_DEVMEM_HELPER"},
	{RX, ENODEV, GANTRY_ERR_CONFIG, "there is no such interface in this network namespace",
	 "compare with `ip link`; a container may need the host's network"},
	{RX, EOPNOTSUPP, UNSUPPORTED,
	 "the driver has no devmem queue support, its queues do not share one DMA device, or the kernel was built "
	 "without CONFIG_NET_DEVMEM",
	 "use a NIC and driver of docs/devmem.md's list (mlx5, bnxt, gve, fbnic)"},
	{RX, EINVAL, GANTRY_ERR_CONFIG,
	 "tcp-data-split is off, hds-thresh is not 0, the queue does not exist, or the file is no dma-buf",
	 "ethtool -G NIC tcp-data-split on hds-thresh 0; ethtool -L NIC for more queues"},
	{RX, ERANGE, GANTRY_ERR_CONFIG, "the queue does not exist (Linux 6.12 to 6.14 say it so)",
	 "ethtool -L NIC for more queues, or a smaller GANTRY_DEVMEM_QUEUES"},
	{RX, EBADF, GANTRY_ERR_INTERNAL, "the dma-buf is not open", "report it"},
	{RX, EEXIST, GANTRY_ERR_LIMIT, "the queue is bound already, or an XDP program is attached",
	 "end the other user of the queue, detach XDP (ip link set NIC xdp off), or have more queues"},
	{RX, EBUSY, GANTRY_ERR_LIMIT, "AF_XDP uses the queue", "end the AF_XDP program, or have more queues"},
	{RX, ENODATA, UNSUPPORTED, "the driver ignored the memory: it lacks unreadable netmem",
	 "a newer kernel, or a driver of docs/devmem.md's list"},
	{RX, E2BIG, UNSUPPORTED, "the driver wants receive buffers larger than a page",
	 "ethtool -G NIC rx-buf-len 4096, or a smaller MTU"},
	{RX, ENOMEM, GANTRY_ERR_NOMEM, "no memory for the mapping of the dma-buf",
	 "a smaller GANTRY_UNPACK_POOL; BAR1 of the GPU may be too small"},
	{RX, DEVMEM_ENOTSUPP, UNSUPPORTED, "GPU and NIC: the exporter does not support this PCI topology",
	 "use a NIC below the same root complex or switch as the GPU (nvidia-smi topo -m)"},
	{RX, ENOSYS, UNSUPPORTED, "built without libmnl", "install libmnl-dev and build again"},
	{RX, ETIMEDOUT, GANTRY_ERR_TIMEOUT, "the kernel did not answer", "look for the driver in the kernel's log"},

	{TX, ENODEV, GANTRY_ERR_CONFIG, "there is no such interface in this network namespace",
	 "compare with `ip link`"},
	{TX, EOPNOTSUPP, UNSUPPORTED, "the driver cannot send from device memory",
	 "nothing: messages are sent through pinned memory"},
	{TX, EBADF, GANTRY_ERR_INTERNAL, "the dma-buf is not open", "report it"},
	{TX, EINVAL, GANTRY_ERR_INVALID, "the file is no dma-buf", "report it"},
	{TX, ENOMEM, GANTRY_ERR_NOMEM, "no memory for the mapping of the dma-buf",
	 "nothing: messages are sent through pinned memory"},
	{TX, DEVMEM_ENOTSUPP, UNSUPPORTED, "GPU and NIC: the exporter does not support this PCI topology",
	 "use a NIC below the same root complex or switch as the GPU (nvidia-smi topo -m)"},
	{TX, ENOSYS, UNSUPPORTED, "built without libmnl", "install libmnl-dev and build again"},
	{TX, ETIMEDOUT, GANTRY_ERR_TIMEOUT, "the kernel did not answer", "look for the driver in the kernel's log"},

	{RECV, DEVMEM_ETOOSMALL, GANTRY_ERR_INTERNAL, "no room for one fragment in the control buffer", "report it"},
	{RECV, EFAULT, GANTRY_ERR_INTERNAL,
	 "no room for one fragment in the control buffer (before Linux 6.18), a buffer that is not there, or data of "
	 "device memory was read without MSG_SOCK_DEVMEM",
	 "report it"},
	{RECV, ENODEV, GANTRY_ERR_PROTOCOL,
	 "a packet with fragments of another kind: the queue is not, or not only, ours",
	 "end other users of the queue (io_uring zero copy receive); check the flow rules with ethtool -n NIC"},
	{RECV, ENOMEM, GANTRY_ERR_NOMEM, "no memory for the socket's table of tokens", "free memory"},

	{BACK, EINVAL, GANTRY_ERR_INTERNAL, "more than 128 ranges, or a size that is no multiple of 8", "report it"},
	{BACK, EFAULT, GANTRY_ERR_INTERNAL, "the ranges cannot be read", "report it"},
	{BACK, EBADF, GANTRY_ERR_INTERNAL, "not a TCP socket", "report it"},
	{BACK, EOPNOTSUPP, UNSUPPORTED, "MPTCP cannot do this", "use plain TCP (mptcpize or LD_PRELOAD is at work?)"},
	{BACK, ENOPROTOOPT, UNSUPPORTED, "the kernel is older than 6.12 or was built without page pool",
	 "a kernel of 6.12 or later"},

	{SEND, EINVAL, GANTRY_ERR_INTERNAL,
	 "the kernel does not know the dma-buf as one to send from, or SO_ZEROCOPY is off", "report it"},
	{SEND, ENODEV, GANTRY_ERR_CONFIG, "the route leaves by another device than the one that is bound",
	 "check `ip route get PEER`; the socket must leave by the bound NIC"},
	{SEND, EHOSTUNREACH, GANTRY_ERR_UNREACHABLE, "there is no route", "check `ip route get PEER`"},
	{SEND, EFAULT, GANTRY_ERR_INTERNAL, "the offset is beyond the end of the dma-buf", "report it"},
	{SEND, ENOBUFS, GANTRY_ERR_LIMIT, "too many unfinished sends of one socket (net.core.optmem_max)",
	 "sysctl -w net.core.optmem_max=1048576"},
	{SEND, EOPNOTSUPP, UNSUPPORTED, "the kernel was built without CONFIG_NET_DEVMEM",
	 "nothing: messages are sent through pinned memory"},

	{RULE, EPERM, GANTRY_ERR_CONFIG, "flow rules need CAP_NET_ADMIN", "run as root, or use `gantry devmem-helper`"},
	{RULE, EOPNOTSUPP, UNSUPPORTED, "the driver has no flow rules, or ntuple filters are off",
	 "ethtool -K NIC ntuple on"},
	{RULE, ENOSPC, GANTRY_ERR_LIMIT, "the NIC's table of flow rules is full",
	 "ethtool -n NIC lists them; remove what is not needed, or use fewer lanes (GANTRY_LANES)"},
	{RULE, EEXIST, GANTRY_ERR_LIMIT, "the NIC has a rule for this flow already",
	 "ethtool -n NIC lists them; `gantry doctor --undo-devmem` removes those of dead processes"},
	{RULE, EINVAL, UNSUPPORTED, "the driver refuses the rule: it cannot match these fields, or the queue is wrong",
	 "check with ethtool -N NIC flow-type tcp4 dst-ip A dst-port P queue Q"},

	{RINGS, EPERM, GANTRY_ERR_CONFIG, "header split needs CAP_NET_ADMIN",
	 "run as root, or use `gantry devmem-helper`"},
	{RINGS, EOPNOTSUPP, UNSUPPORTED, "the driver has no header split",
	 "use a NIC and driver of docs/devmem.md's list"},
	{RINGS, EINVAL, GANTRY_ERR_CONFIG, "the driver refuses header split now",
	 "mlx5: no XDP, HTB or PTP receive filters; any: ethtool -G NIC tcp-data-split on says more"},
};

const struct devmem_error *devmem_errors(size_t *ret_count)
{
	*ret_count = sizeof(table) / sizeof(table[0]);
	return table;
}

const struct devmem_error *devmem_error_of(enum devmem_call call, int error)
{
	static const struct devmem_error other = {.result = GANTRY_ERR_SYSTEM, .reason = "", .advice = ""};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (table[i].call == call && table[i].error == error)
			return &table[i];
	return &other;
}

const char *devmem_call_name(enum devmem_call call)
{
	switch (call) {
	case DEVMEM_CALL_BIND_RX:
		return "BIND_RX";
	case DEVMEM_CALL_BIND_TX:
		return "BIND_TX";
	case DEVMEM_CALL_RECVMSG:
		return "recvmsg MSG_SOCK_DEVMEM";
	case DEVMEM_CALL_DONTNEED:
		return "SO_DEVMEM_DONTNEED";
	case DEVMEM_CALL_SENDMSG:
		return "sendmsg SCM_DEVMEM_DMABUF";
	case DEVMEM_CALL_RULE:
		return "flow rule";
	case DEVMEM_CALL_RINGS:
		return "header split";
	}
	return "?";
}

const char *devmem_strerror(int error, char *buf, size_t len)
{
	char text[96];

	snprintf(buf, len, "%s (%d)",
		 error == DEVMEM_ENOTSUPP    ? "operation is not supported"
		 : error == DEVMEM_ETOOSMALL ? "buffer is too small"
					     : strerror_r(error, text, sizeof(text)),
		 error);
	return buf;
}

const char *devmem_error_text(enum devmem_call call, int error, const char *said, char *buf, size_t len)
{
	const struct devmem_error *e = devmem_error_of(call, error);
	char text[128];

	if (strcmp(said, e->reason) == 0)
		said = "";
	snprintf(buf, len, "%s: %s%s%s%s%s%s", devmem_call_name(call), devmem_strerror(error, text, sizeof(text)),
		 *e->reason ? ": " : "", e->reason, *said ? " (the kernel says: " : "", said, *said ? ")" : "");
	return buf;
}
