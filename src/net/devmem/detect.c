/* SPDX-License-Identifier: Apache-2.0 */
/* The questions. Their order is that of the cause: what a later one would say follows from an earlier one. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/detect.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "device/device.h"
#include "inet/nic.h"
#include "net/devmem.h"

/*
 * What an errno means. docs/devmem.md has the same in its troubleshooting section (tests/unit/test_devmem_errors.c compares
 * the numbers).
 */
#define ERR(call, error, result, ...)                                                                                  \
	{                                                                                                              \
		DEVMEM_CALL_##call, error, GANTRY_ERR_##result, __VA_ARGS__                                            \
	}
static const struct devmem_error table[] = {
	ERR(BIND_RX, EPERM, CONFIG, "CAP_NET_ADMIN in the initial user namespace is needed",
	    "run as root, or start `gantry devmem-helper` as root and set GANTRY_DEVMEM_HELPER"),
	ERR(BIND_RX, ENODEV, CONFIG, "there is no such interface in this network namespace",
	    "compare with `ip link`; a container may need the host's network"),
	ERR(BIND_RX, EOPNOTSUPP, UNSUPPORTED,
	    "the driver has no devmem queue support, its queues do not share one DMA device, or the kernel was built "
	    "without CONFIG_NET_DEVMEM",
	    "use a NIC and driver of docs/devmem.md's list (mlx5, bnxt, gve, fbnic)"),
	ERR(BIND_RX, EINVAL, CONFIG,
	    "tcp-data-split is off, hds-thresh is not 0, the queue does not exist, or the file is not a dma-buf",
	    "ethtool -G NIC tcp-data-split on hds-thresh 0; ethtool -L NIC for more queues"),
	ERR(BIND_RX, ERANGE, CONFIG, "the queue does not exist (error code of Linux 6.12 to 6.14)",
	    "ethtool -L NIC for more queues, or a smaller GANTRY_DEVMEM_QUEUES"),
	ERR(BIND_RX, EBADF, INTERNAL, "the dma-buf is not open", "report it"),
	ERR(BIND_RX, EEXIST, LIMIT, "the queue is bound already, or an XDP program is attached",
	    "stop the other user of the queue, detach XDP (ip link set NIC xdp off), or configure more queues"),
	ERR(BIND_RX, EBUSY, LIMIT, "AF_XDP uses the queue", "stop the AF_XDP program, or configure more queues"),
	ERR(BIND_RX, ENODATA, UNSUPPORTED, "the driver ignored the memory: it lacks unreadable netmem",
	    "a newer kernel, or a driver of docs/devmem.md's list"),
	ERR(BIND_RX, E2BIG, UNSUPPORTED, "the driver wants receive buffers larger than a page",
	    "ethtool -G NIC rx-buf-len with the page size (getconf PAGESIZE), or a smaller MTU"),
	ERR(BIND_RX, ENOMEM, NOMEM, "no memory for the mapping of the dma-buf",
	    "a smaller GANTRY_UNPACK_POOL; BAR1 of the GPU may be too small"),
	ERR(BIND_RX, DEVMEM_ENOTSUPP, UNSUPPORTED, "GPU and NIC: the exporter does not support this PCI topology",
	    "use a NIC below the same root complex or switch as the GPU (nvidia-smi topo -m)"),
	ERR(BIND_RX, ENOSYS, UNSUPPORTED, "built without libmnl", "install libmnl-dev and build again"),
	ERR(BIND_RX, ETIMEDOUT, TIMEOUT, "the kernel did not answer", "look for the driver in the kernel's log"),

	ERR(BIND_TX, ENODEV, CONFIG, "there is no such interface in this network namespace", "compare with `ip link`"),
	ERR(BIND_TX, EOPNOTSUPP, UNSUPPORTED, "the driver cannot send from device memory",
	    "nothing: messages are sent through pinned memory"),
	ERR(BIND_TX, EBADF, INTERNAL, "the dma-buf is not open", "report it"),
	ERR(BIND_TX, EINVAL, INVALID, "the file is not a dma-buf", "report it"),
	ERR(BIND_TX, ENOMEM, NOMEM, "no memory for the mapping of the dma-buf",
	    "nothing: messages are sent through pinned memory"),
	ERR(BIND_TX, DEVMEM_ENOTSUPP, UNSUPPORTED, "GPU and NIC: the exporter does not support this PCI topology",
	    "use a NIC below the same root complex or switch as the GPU (nvidia-smi topo -m)"),
	ERR(BIND_TX, ENOSYS, UNSUPPORTED, "built without libmnl", "install libmnl-dev and build again"),
	ERR(BIND_TX, ETIMEDOUT, TIMEOUT, "the kernel did not answer", "look for the driver in the kernel's log"),

	ERR(RECVMSG, DEVMEM_ETOOSMALL, INTERNAL, "no room for one fragment in the control buffer", "report it"),
	ERR(RECVMSG, EFAULT, INTERNAL,
	    "no room for one fragment in the control buffer (before Linux 6.18), a buffer that is not there, or data "
	    "of "
	    "device memory was read without MSG_SOCK_DEVMEM",
	    "report it"),
	ERR(RECVMSG, ENODEV, PROTOCOL, "received a packet with foreign fragments: another program uses this queue too",
	    "stop other users of the queue (io_uring zero copy receive); check the flow rules with ethtool -n NIC"),
	ERR(RECVMSG, ENOMEM, NOMEM, "no memory for the socket's table of tokens", "free memory"),

	ERR(DONTNEED, EINVAL, INTERNAL, "more than 128 ranges, or a size that is not a multiple of 8", "report it"),
	ERR(DONTNEED, EFAULT, INTERNAL, "the ranges cannot be read", "report it"),
	ERR(DONTNEED, EBADF, INTERNAL, "not a TCP socket", "report it"),
	ERR(DONTNEED, EOPNOTSUPP, UNSUPPORTED, "not supported on MPTCP sockets",
	    "use plain TCP (mptcpize or LD_PRELOAD is at work?)"),
	ERR(DONTNEED, ENOPROTOOPT, UNSUPPORTED, "the kernel is older than 6.12 or was built without page pool",
	    "a kernel of 6.12 or later"),

	ERR(SENDMSG, EINVAL, INTERNAL, "the dma-buf is not bound for sending, or SO_ZEROCOPY is off", "report it"),
	ERR(SENDMSG, ENODEV, CONFIG, "the route uses a different device than the bound one",
	    "check `ip route get PEER`; the socket must leave by the bound NIC"),
	ERR(SENDMSG, EHOSTUNREACH, UNREACHABLE, "there is no route", "check `ip route get PEER`"),
	ERR(SENDMSG, EFAULT, INTERNAL, "the offset is beyond the end of the dma-buf", "report it"),
	ERR(SENDMSG, ENOBUFS, LIMIT, "too many unfinished sends of one socket (net.core.optmem_max)",
	    "sysctl -w net.core.optmem_max=1048576"),
	ERR(SENDMSG, EOPNOTSUPP, UNSUPPORTED, "the kernel was built without CONFIG_NET_DEVMEM",
	    "nothing: messages are sent through pinned memory"),

	ERR(RULE, EPERM, CONFIG, "flow rules need CAP_NET_ADMIN", "run as root, or use `gantry devmem-helper`"),
	ERR(RULE, EOPNOTSUPP, UNSUPPORTED, "the driver has no flow rules, or ntuple filters are off",
	    "ethtool -K NIC ntuple on"),
	ERR(RULE, ENOSPC, LIMIT, "the NIC's table of flow rules is full",
	    "ethtool -n NIC lists them; remove what is not needed, or use fewer lanes (GANTRY_LANES)"),
	ERR(RULE, EEXIST, LIMIT, "the NIC already has a rule for this flow",
	    "ethtool -n NIC lists them; `gantry doctor --undo-devmem` removes those of dead processes"),
	ERR(RULE, EINVAL, UNSUPPORTED,
	    "the driver refuses the rule: it cannot match these fields, or the queue is wrong",
	    "check with ethtool -N NIC flow-type tcp4 dst-ip A dst-port P queue Q"),

	ERR(RINGS, EPERM, CONFIG, "header split needs CAP_NET_ADMIN", "run as root, or use `gantry devmem-helper`"),
	ERR(RINGS, EOPNOTSUPP, UNSUPPORTED, "the driver has no header split",
	    "use a NIC and driver of docs/devmem.md's list"),
	ERR(RINGS, EINVAL, CONFIG, "the driver refuses header split now",
	    "mlx5: no XDP, HTB or PTP receive filters; any: ethtool -G NIC tcp-data-split on says more"),
};

const struct devmem_error *devmem_error_of(enum devmem_call call, int error)
{
	static const struct devmem_error other = {.result = GANTRY_ERR_SYSTEM, .reason = "", .advice = ""};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (table[i].call == call && table[i].error == error)
			return &table[i];
	return &other;
}

#define CALL_NAME(call, name) [DEVMEM_CALL_##call] = name,
static const char *const call_names[] = {DEVMEM_CALLS(CALL_NAME)};

const char *devmem_strerror(int error)
{
	char *text = gantry_thread_text(GANTRY_TEXT_DEVMEM_ERRNO);
	char of_libc[96];

	snprintf(text, GANTRY_THREAD_TEXT, "%s (%d)",
		 error == DEVMEM_ENOTSUPP    ? "operation is not supported"
		 : error == DEVMEM_ETOOSMALL ? "buffer is too small"
					     : strerror_r(error, of_libc, sizeof(of_libc)),
		 error);
	return text;
}

enum { ERROR_TEXT = 512 };

const char *devmem_error_text(enum devmem_call call, int error, const char *message)
{
	char *text = gantry_thread_text(GANTRY_TEXT_DEVMEM_ERROR);
	const struct devmem_error *e = devmem_error_of(call, error);

	if (strcmp(message, e->reason) == 0)
		message = "";
	snprintf(text, ERROR_TEXT, "%s: %s%s%s%s%s%s", call_names[call], devmem_strerror(error), *e->reason ? ": " : "",
		 e->reason, *message ? " (kernel message: " : "", message, *message ? ")" : "");
	return text;
}

enum { NO_SUCH_FD = 0x7fffffff };

static const char host_path[] = "nothing: received data is staged in host memory";

__attribute__((format(printf, 4, 5))) static void say(struct devmem_step *step, enum devmem_verdict v,
						      const char *advice, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(step->reason, sizeof(step->reason), fmt, args);
	va_end(args);
	snprintf(step->advice, sizeof(step->advice), "%s", advice);
	step->verdict = v;
}

/* An errno that the question does not expect: reported as it is. ENOSYS is sys.c's, without libmnl. */
static void say_errno(struct devmem_step *step, enum devmem_verdict v, const char *what, int e, const char *message)
{

	if (e == ENOSYS)
		say(step, v, "install libmnl-dev and build again",
		    "this build lacks libmnl, so the kernel could not be queried: %s", what);
	else
		say(step, v, "", "%s: %s%s%s", what, devmem_strerror(e), *message ? ": " : "", message);
}

static void ask_option(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step)
{
	int e = s->ops->dontneed(s);

	(void)w;
	if (!e)
		say(step, DEVMEM_YES, "", "the kernel knows SO_DEVMEM_DONTNEED");
	else if (e == ENOPROTOOPT)
		say(step, DEVMEM_NO, "a kernel of 6.12 or later", "kernel older than 6.12, or built without page pool");
	else
		say_errno(step, DEVMEM_NO, "SO_DEVMEM_DONTNEED", e, s->said);
}

static void ask_family(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step)
{
	uint64_t commands = 0;
	int e = s->ops->family(s, &commands);

	(void)w;
	if (e == ENOENT)
		say(step, DEVMEM_NO, "a kernel of 6.12 or later", "kernel too old: no netlink family netdev");
	else if (e)
		say_errno(step, DEVMEM_NO, "netlink family netdev", e, s->said);
	else if (!(commands >> NETDEV_BIND_RX & 1))
		say(step, DEVMEM_NO, "a kernel of 6.12 or later", "kernel too old: netdev has no BIND_RX");
	else if (!(commands >> NETDEV_BIND_TX & 1))
		say(step, DEVMEM_YES, "", "netdev has BIND_RX; whether NET_DEVMEM is built in shows at binding");
	else if ((e = s->ops->sendmsg(s)) == EINVAL)
		say(step, DEVMEM_YES, "", "netdev has BIND_RX and BIND_TX, and NET_DEVMEM is built in");
	else if (e == EOPNOTSUPP)
		say(step, DEVMEM_NO, "a kernel with CONFIG_NET_DEVMEM=y (DMA_SHARED_BUFFER and PAGE_POOL)",
		    "NET_DEVMEM is not built into this kernel");
	else
		say_errno(step, DEVMEM_UNKNOWN, "sendmsg of an unknown dma-buf", e, "");
}

static void ask_peer(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step)
{
	char text[GANTRY_ADDR_TEXT];

	(void)s;
	if (!w->peer)
		say(step, DEVMEM_SKIPPED, "", "no peer given");
	else if (gantry_addr_is_local(w->peer))
		say(step, DEVMEM_NO, host_path, "%s: same host, devmem impossible (its packets do not reach a NIC)",
		    gantry_addr_text(w->peer, text));
	else
		say(step, DEVMEM_YES, "", "%s is another host", gantry_addr_text(w->peer, text));
}

/* What would set up the NIC: this process or the daemon. */
static int configures(const struct devmem_wish *w)
{
	return w->configure || *w->daemon;
}

static void ask_split(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step)
{
	struct devmem_rings rings;
	char advice[96], driver[32] = "(unnamed)";
	int e;

	snprintf(advice, sizeof(advice), "ethtool -G %s tcp-data-split on hds-thresh 0", w->nic);
	s->ops->driver(s, w->nic, driver, sizeof(driver));
	e = s->ops->rings_get(s, w->nic, &rings);
	if (e && e != EOPNOTSUPP)
		say_errno(step, DEVMEM_NO, "rings of the NIC", e, s->said);
	else if (e || !rings.has_split)
		say(step, DEVMEM_NO, "use a NIC and driver of docs/devmem.md's list", "driver %s has no header split",
		    driver);
	else if (rings.split != DEVMEM_SPLIT_ON && configures(w))
		say(step, DEVMEM_YES, "", "tcp-data-split is off; Gantry turns it on while it is bound");
	else if (rings.split != DEVMEM_SPLIT_ON)
		say(step, DEVMEM_NO, advice, "tcp-data-split is off, and GANTRY_DEVMEM_CONFIGURE=0");
	else if (rings.has_hds && rings.hds && configures(w))
		say(step, DEVMEM_YES, "", "hds-thresh is %u; Gantry sets it to 0 while it is bound", rings.hds);
	else if (rings.has_hds && rings.hds)
		say(step, DEVMEM_NO, advice, "hds-thresh is %u, not 0, and GANTRY_DEVMEM_CONFIGURE=0", rings.hds);
	else
		say(step, DEVMEM_YES, "", "tcp-data-split is on%s", rings.has_hds ? ", hds-thresh is 0" : "");
}

static void ask_steer(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step)
{
	struct devmem_feature ntuple = {.name = "rx-ntuple-filter"};
	uint32_t queues = 0;
	char advice[96];
	int e = s->ops->channels(s, w->nic, &queues);

	snprintf(advice, sizeof(advice), "ethtool -L %s combined 2, or more", w->nic);
	if (e && e != EOPNOTSUPP) {
		say_errno(step, DEVMEM_NO, "channels of the NIC", e, s->said);
		return;
	}
	if (e || queues < 2) {
		say(step, DEVMEM_NO, e ? "" : advice, "no spare queue: %s",
		    e ? "the driver has no channels" : "the NIC has one receive queue");
		return;
	}
	e = s->ops->feature_get(s, w->nic, &ntuple);
	snprintf(advice, sizeof(advice), "ethtool -K %s ntuple on", w->nic);
	if (e)
		say_errno(step, DEVMEM_NO, "features of the NIC", e, s->said);
	else if (!ntuple.on && (ntuple.fixed || !ntuple.known))
		say(step, DEVMEM_NO, "", "no flow steering: the driver has no ntuple filters");
	else if (!ntuple.on && !configures(w))
		say(step, DEVMEM_NO, advice, "no flow steering: ntuple filters are off, and GANTRY_DEVMEM_CONFIGURE=0");
	else
		say(step, DEVMEM_YES, "", "%u receive queues; ntuple filters %s", queues,
		    ntuple.on ? "are on" : "are off, Gantry turns them on while it is bound");
}

/* Before 6.16 the file is looked at first, so EBADF says nothing about the driver there. BIND_TX came with 6.16. */
static int file_is_last(struct devmem_sys *s)
{
	uint64_t commands = 0;

	return s->ops->family(s, &commands) == 0 && (commands >> NETDEV_BIND_TX & 1);
}

static void ask_bind(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step)
{
	const struct devmem_error *known;
	uint32_t queue = 0, id, rx = 0;
	char driver[32] = "(unnamed)", message[DEVMEM_SAID_MAX];
	const char *text;
	int e;

	if (s->ops->channels(s, w->nic, &rx) == 0 && rx > 1)
		queue = rx - 1;
	e = s->ops->bind_rx(s, w->nic, &(struct devmem_bind){NO_SUCH_FD, &queue, 1}, &id);
	memcpy(message, s->said, sizeof(message));
	known = devmem_error_of(DEVMEM_CALL_BIND_RX, e);
	s->ops->driver(s, w->nic, driver, sizeof(driver));
	text = devmem_error_text(DEVMEM_CALL_BIND_RX, e, message);
	if (e == EBADF && file_is_last(s))
		say(step, DEVMEM_YES, "", "driver %s would bind queue %u", driver, queue);
	else if (e == EBADF)
		say(step, DEVMEM_UNKNOWN, "", "this kernel checks the file first, so only binding can tell");
	else if (e == EPERM && *w->daemon)
		say(step, DEVMEM_UNKNOWN, "", "done by the daemon at %s", w->daemon);
	else if (e == EINVAL && configures(w))
		say(step, DEVMEM_UNKNOWN, "", "%s; Gantry's NIC setup may fix this", text);
	else if (e == EOPNOTSUPP)
		say(step, DEVMEM_NO, known->advice,
		    "driver %s has no devmem queue support, or CONFIG_NET_DEVMEM is off%s%s", driver,
		    *message ? ": " : "", message);
	else if (e == 0)
		say(step, DEVMEM_UNKNOWN, "", "the kernel bound a file that is not open");
	else
		say(step, DEVMEM_NO, known->advice, "%s", text);
}

static void ask_export(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step)
{
	(void)s;
	if (!w->device)
		say(step, DEVMEM_SKIPPED, "", "no device given");
	else if (w->device->dmabuf)
		say(step, DEVMEM_YES, "", "%s can export dma-bufs; whether the NIC reaches them shows at binding",
		    w->device->name);
	else
		say(step, DEVMEM_NO, gantry_traits(w->device)->dmabuf_help, "%s: %s", w->device->name,
		    gantry_traits(w->device)->dmabuf_why);
}

static void ask_send(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step)
{
	uint64_t commands = 0;
	uint32_t id;
	int e;

	e = s->ops->family(s, &commands);
	if (e && e != ENOENT) {
		say_errno(step, DEVMEM_NO, "netlink family netdev", e, s->said);
		return;
	}
	if (e || !(commands >> NETDEV_BIND_TX & 1)) {
		say(step, DEVMEM_NO, "a kernel of 6.16 or later; until then messages are sent through pinned memory",
		    "no devmem TX: netdev has no BIND_TX");
		return;
	}
	e = s->ops->bind_tx(s, w->nic, NO_SUCH_FD, &id);
	if (e == EBADF)
		say(step, DEVMEM_YES, "", "the driver can send from device memory");
	else if (e == 0)
		say(step, DEVMEM_UNKNOWN, "", "the kernel bound a file that is not open");
	else
		say(step, DEVMEM_NO, devmem_error_of(DEVMEM_CALL_BIND_TX, e)->advice, "%s",
		    devmem_error_text(DEVMEM_CALL_BIND_TX, e, s->said));
}

static void ask_runtime(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step)
{
	(void)s, (void)w;
	say(step, DEVMEM_SKIPPED, "",
	    "checked at run time: Gantry checks each flow after its first bytes and counts data that arrives as "
	    "ordinary data");
}

static const struct {
	const char *name;
	void (*ask)(struct devmem_sys *s, const struct devmem_wish *w, struct devmem_step *step);
} questions[DEVMEM_QUESTIONS] = {
	[DEVMEM_ASK_OPTION] = {"socket option", ask_option},
	[DEVMEM_ASK_FAMILY] = {"netdev family", ask_family},
	[DEVMEM_ASK_PEER] = {"peer", ask_peer},
	[DEVMEM_ASK_SPLIT] = {"header split", ask_split},
	[DEVMEM_ASK_STEER] = {"flow steering", ask_steer},
	[DEVMEM_ASK_BIND] = {"bind, dry run", ask_bind},
	[DEVMEM_ASK_EXPORT] = {"dma-buf export", ask_export},
	[DEVMEM_ASK_SEND] = {"sending", ask_send},
	[DEVMEM_ASK_RUNTIME] = {"flow verified", ask_runtime},
};

int devmem_detect(struct devmem_sys *s, const struct devmem_wish *w, int first_no,
		  struct devmem_step ret_steps[DEVMEM_QUESTIONS])
{
	int can = 1;

	for (int i = 0; i < DEVMEM_QUESTIONS; i++) {
		struct devmem_step *step = &ret_steps[i];

		memset(step, 0, sizeof(*step));
		step->name = questions[i].name;
		if (!can && first_no)
			say(step, DEVMEM_SKIPPED, "", "not checked: an earlier check failed");
		else
			questions[i].ask(s, w, step);
		if (step->verdict == DEVMEM_NO && i != DEVMEM_ASK_SEND)
			can = 0;
	}
	return can;
}

const char *devmem_verdict_name(enum devmem_verdict v)
{
	static const char *const names[] = {"yes", "no", "unknown", "skipped"};

	return names[v];
}

int devmem_kernel_usable(const char *nic, struct gantry_device *dev, char *why, size_t len)
{
	const struct gantry_params *p = gantry_params();
	struct devmem_wish w = {
		.nic = nic, .device = dev, .configure = p->devmem_configure, .daemon = p->devmem_helper};
	struct devmem_step steps[DEVMEM_QUESTIONS];
	struct devmem_sys sys;
	int can;

	devmem_sys_init(&sys);
	can = devmem_detect(&sys, &w, 1, steps);
	devmem_sys_close(&sys);
	if (len)
		why[0] = 0;
	for (int i = 0; !can && i < DEVMEM_QUESTIONS; i++)
		if (steps[i].verdict == DEVMEM_NO) {
			snprintf(why, len, "%s: %s%s%s%s", steps[i].name, steps[i].reason, *steps[i].advice ? " (" : "",
				 steps[i].advice, *steps[i].advice ? ")" : "");
			break;
		}
	return can;
}

gantry_result devmem_source_get(enum gantry_net_unpack kind, const struct devmem_source_ops **ret_source)
{
	if (kind == GANTRY_NET_UNPACK_EMULATED)
		return devmem_emulated_open(ret_source);
	if (kind != GANTRY_NET_UNPACK_KERNEL)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "unknown kind of fragment source: %d", (int)kind);
	*ret_source = &devmem_kernel;
	return GANTRY_OK;
}

gantry_result devmem_choose(enum gantry_net_unpack want, const char *nic, struct gantry_device *dev,
			    enum gantry_net_unpack *ret_kind, char why[DEVMEM_WHY])
{
	static const enum gantry_net_unpack of_param[] = {
		[PARAM_UNPACK_AUTO] = GANTRY_NET_UNPACK_KERNEL,
		[PARAM_UNPACK_KERNEL] = GANTRY_NET_UNPACK_KERNEL,
		[PARAM_UNPACK_EMULATED] = GANTRY_NET_UNPACK_EMULATED,
		[PARAM_UNPACK_OFF] = GANTRY_NET_UNPACK_OFF,
	};
	const struct devmem_source_ops *source;
	int is_auto = want == GANTRY_NET_UNPACK_PARAM && gantry_params()->unpack == PARAM_UNPACK_AUTO;
	char reason[256] = "";

	if (want == GANTRY_NET_UNPACK_PARAM)
		want = of_param[gantry_params()->unpack];
	why[0] = 0;
	if (want == GANTRY_NET_UNPACK_EMULATED)
		TRY_NOW(devmem_emulated_open(&source));
	else if (want != GANTRY_NET_UNPACK_OFF && want != GANTRY_NET_UNPACK_KERNEL)
		FAIL_NOW(GANTRY_ERR_INVALID, "unknown way to receive into device memory: %d", (int)want);
	if (want != GANTRY_NET_UNPACK_KERNEL || devmem_kernel_usable(nic, dev, reason, sizeof(reason))) {
		*ret_kind = want;
		return GANTRY_OK;
	}
	if (!is_auto)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "devmem TCP was requested but cannot be used with %s: %s", nic,
			 reason);
	snprintf(why, DEVMEM_WHY, "%s: %s", nic, reason);
	*ret_kind = GANTRY_NET_UNPACK_OFF;
	return GANTRY_OK;
}
