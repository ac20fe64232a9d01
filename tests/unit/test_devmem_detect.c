/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nine questions: every verdict of every one of them, from answers that a fake system gives; then the real system,
 * for every interface here, as who we are and as nobody.
 */
#include <net/if.h>

#include "device/device.h"
#include "devmem_fake.h"
#include "inet/nic.h"
#include "net/devmem.h"
#include "net/devmem/detect.h"

static struct fake_nic nic;
static struct fake_sys sys;
static struct devmem_wish wish;
static struct gantry_device gpu;
static struct devmem_step steps[DEVMEM_QUESTIONS];

static int detect(int first_no)
{
	int changes = nic.changes, can;

	fake_sys_init(&sys, &nic);
	can = devmem_detect(&sys.base, &wish, first_no, steps);
	CHECK_EQ(nic.changes, changes); /* it only asks */
	devmem_sys_close(&sys.base);
	for (int i = 0; i < DEVMEM_QUESTIONS; i++)
		CHECK(steps[i].name && *steps[i].reason);
	return can;
}

/* One question's answer, with all others as they are on a NIC that can. */
static void expect(enum devmem_question q, enum devmem_verdict verdict, const char *reason, const char *advice)
{
	int can = detect(0);

	printf("%-14s %-8s %s%s%s\n", steps[q].name, devmem_verdict_name(steps[q].verdict), steps[q].reason,
	       *steps[q].advice ? " -> " : "", steps[q].advice);
	CHECK_EQ(steps[q].verdict, verdict);
	CHECK_HAS(steps[q].reason, reason);
	CHECK_HAS(steps[q].advice, advice);
	CHECK_EQ(can, q == DEVMEM_ASK_SEND || verdict != DEVMEM_NO);
	fake_nic_init(&nic);
	memset(&wish, 0, sizeof(wish));
	wish = (struct devmem_wish){.nic = "fake0", .device = &gpu, .configure = 1, .daemon = ""};
}

/* The same with something changed. */
#define EXPECT_IF(change, ...)                                                                                         \
	do {                                                                                                           \
		change;                                                                                                \
		expect(__VA_ARGS__);                                                                                   \
	} while (0)

TEST(check_kernel_questions)
{
	expect(DEVMEM_ASK_OPTION, DEVMEM_YES, "SO_DEVMEM_DONTNEED", "");
	EXPECT_IF(nic.dontneed = ENOPROTOOPT, DEVMEM_ASK_OPTION, DEVMEM_NO, "kernel older than 6.12", "6.12");
	EXPECT_IF(nic.dontneed = EACCES, DEVMEM_ASK_OPTION, DEVMEM_NO, strerror(EACCES), "");

	expect(DEVMEM_ASK_FAMILY, DEVMEM_YES, "built in", "");
	EXPECT_IF(nic.family = ENOENT, DEVMEM_ASK_FAMILY, DEVMEM_NO, "kernel too old", "6.12");
	/* Without libmnl nothing is known about the kernel. */
	nic.family = ENOSYS;
	nic.commands = 0;
	CHECK_EQ(detect(0), 0);
	CHECK_EQ(steps[DEVMEM_ASK_SEND].verdict, DEVMEM_NO);
	CHECK_HAS(steps[DEVMEM_ASK_SEND].reason, "this build lacks libmnl, so the kernel could not be queried");
	CHECK_HAS(steps[DEVMEM_ASK_SEND].advice, "libmnl-dev");
	expect(DEVMEM_ASK_FAMILY, DEVMEM_NO, "this build lacks libmnl, so the kernel could not be queried",
	       "libmnl-dev");
	EXPECT_IF(nic.commands = 1 << NETDEV_QUEUE_GET, DEVMEM_ASK_FAMILY, DEVMEM_NO, "no BIND_RX", "");
	EXPECT_IF(nic.commands = 1 << NETDEV_BIND_RX, DEVMEM_ASK_FAMILY, DEVMEM_YES, "shows at binding", "");
	EXPECT_IF(nic.sendmsg = EOPNOTSUPP, DEVMEM_ASK_FAMILY, DEVMEM_NO, "not built into", "CONFIG_NET_DEVMEM");
	EXPECT_IF(nic.sendmsg = EFAULT, DEVMEM_ASK_FAMILY, DEVMEM_UNKNOWN, strerror(EFAULT), "");
}

TEST(check_peer)
{
	struct gantry_addr local = {.in = lo_addr(0)};
	struct gantry_addr far = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc0000201)}};

	expect(DEVMEM_ASK_PEER, DEVMEM_SKIPPED, "no peer", "");
	EXPECT_IF(wish.peer = &local, DEVMEM_ASK_PEER, DEVMEM_NO, "same host, devmem impossible", "staged");
	EXPECT_IF(wish.peer = &far, DEVMEM_ASK_PEER, DEVMEM_YES, "192.0.2.1", "");
}

TEST(check_nic_questions)
{
	nic.rings.split = DEVMEM_SPLIT_ON;
	nic.rings.hds = 0;
	expect(DEVMEM_ASK_SPLIT, DEVMEM_YES, "hds-thresh is 0", "");
	expect(DEVMEM_ASK_SPLIT, DEVMEM_YES, "Gantry turns it on", "");
	EXPECT_IF(nic.rings.split = DEVMEM_SPLIT_ON, DEVMEM_ASK_SPLIT, DEVMEM_YES, "hds-thresh is 256; Gantry", "");
	EXPECT_IF(wish.configure = 0, DEVMEM_ASK_SPLIT, DEVMEM_NO, "tcp-data-split is off", "ethtool -G fake0");
	wish.configure = 0;
	nic.rings.split = DEVMEM_SPLIT_ON;
	expect(DEVMEM_ASK_SPLIT, DEVMEM_NO, "hds-thresh is 256", "ethtool -G fake0");
	EXPECT_IF(nic.rings.has_split = 0, DEVMEM_ASK_SPLIT, DEVMEM_NO, "driver fake has no header split", "");
	EXPECT_IF(nic.rings_error = EOPNOTSUPP, DEVMEM_ASK_SPLIT, DEVMEM_NO, "no header split", "");
	EXPECT_IF(nic.rings_error = ENODEV, DEVMEM_ASK_SPLIT, DEVMEM_NO, strerror(ENODEV), "");

	EXPECT_IF(nic.ntuple = 1, DEVMEM_ASK_STEER, DEVMEM_YES, "8 receive queues; ntuple filters are on", "");
	expect(DEVMEM_ASK_STEER, DEVMEM_YES, "Gantry turns them on", "");
	EXPECT_IF(nic.queues = 1, DEVMEM_ASK_STEER, DEVMEM_NO, "no spare queue", "ethtool -L fake0");
	EXPECT_IF(nic.channels_error = EOPNOTSUPP, DEVMEM_ASK_STEER, DEVMEM_NO, "no spare queue", "");
	EXPECT_IF(nic.channels_error = EIO, DEVMEM_ASK_STEER, DEVMEM_NO, strerror(EIO), "");
	EXPECT_IF(nic.ntuple_fixed = 1, DEVMEM_ASK_STEER, DEVMEM_NO, "no flow steering", "");
	EXPECT_IF(nic.ntuple_unknown = 1, DEVMEM_ASK_STEER, DEVMEM_NO, "no flow steering", "");
	EXPECT_IF(nic.feature_error = EIO, DEVMEM_ASK_STEER, DEVMEM_NO, strerror(EIO), "");
	wish.configure = 0;
	nic.rings.split = DEVMEM_SPLIT_ON;
	nic.rings.hds = 0;
	expect(DEVMEM_ASK_STEER, DEVMEM_NO, "ntuple filters are off", "ethtool -K fake0 ntuple on");
}

TEST(check_bind_question)
{
	EXPECT_IF(nic.bind_error = EBADF, DEVMEM_ASK_BIND, DEVMEM_YES, "driver fake would bind queue 7", "");
	nic.bind_error = EBADF;
	nic.commands = 1 << NETDEV_BIND_RX; /* 6.12 to 6.15 */
	expect(DEVMEM_ASK_BIND, DEVMEM_UNKNOWN, "checks the file first", "");
	EXPECT_IF(nic.bind_error = EPERM, DEVMEM_ASK_BIND, DEVMEM_NO, "CAP_NET_ADMIN in the initial user namespace",
		  "devmem-helper");
	nic.bind_error = EPERM;
	wish.daemon = "/run/h";
	expect(DEVMEM_ASK_BIND, DEVMEM_UNKNOWN, "done by the daemon at /run/h", "");
	nic.bind_error = EOPNOTSUPP;
	nic.said = "Device doesn't support DMA";
	expect(DEVMEM_ASK_BIND, DEVMEM_NO, "no devmem queue support, or CONFIG_NET_DEVMEM is off: Device", "mlx5");
	nic.bind_error = EINVAL;
	nic.said = "tcp-data-split is disabled";
	expect(DEVMEM_ASK_BIND, DEVMEM_UNKNOWN, "tcp-data-split is disabled", "");
	nic.bind_error = EINVAL;
	nic.rings.split = DEVMEM_SPLIT_ON;
	nic.rings.hds = 0;
	nic.ntuple = 1;
	wish.configure = 0;
	expect(DEVMEM_ASK_BIND, DEVMEM_NO, "BIND_RX: Invalid argument", "ethtool -G");
	EXPECT_IF(nic.bind_error = ENODATA, DEVMEM_ASK_BIND, DEVMEM_NO, "unreadable netmem", "newer kernel");
	EXPECT_IF(nic.bind_error = EEXIST, DEVMEM_ASK_BIND, DEVMEM_NO, "bound already", "XDP");
}

TEST(check_rest)
{
	expect(DEVMEM_ASK_EXPORT, DEVMEM_YES, "test gpu can export", "");
	EXPECT_IF(gpu.dmabuf = 0, DEVMEM_ASK_EXPORT, DEVMEM_NO, "the GPU driver cannot export dma-buf",
		  "open kernel modules");
	EXPECT_IF(gpu.kind = GANTRY_DEVICE_HOST, DEVMEM_ASK_EXPORT, DEVMEM_NO, "/dev/udmabuf", "modprobe udmabuf");
	gpu.kind = GANTRY_DEVICE_CUDA;
	gpu.dmabuf = 1;
	wish.device = NULL;
	expect(DEVMEM_ASK_EXPORT, DEVMEM_SKIPPED, "no device", "");

	expect(DEVMEM_ASK_SEND, DEVMEM_YES, "can send", "");
	EXPECT_IF(nic.bind_tx_error = EOPNOTSUPP, DEVMEM_ASK_SEND, DEVMEM_NO, "cannot send from device memory",
		  "pinned");
	EXPECT_IF(nic.bind_tx_error = 0, DEVMEM_ASK_SEND, DEVMEM_UNKNOWN, "not open", "");
	EXPECT_IF(nic.commands = 1 << NETDEV_BIND_RX, DEVMEM_ASK_SEND, DEVMEM_NO, "no devmem TX", "6.16");
	expect(DEVMEM_ASK_RUNTIME, DEVMEM_SKIPPED, "run time", "");
}

/* After the first no nothing more is asked, if that is what the caller wants. */
TEST(check_first_no)
{
	nic.rings.has_split = 0;
	CHECK_EQ(detect(1), 0);
	for (int i = 0; i < DEVMEM_QUESTIONS; i++)
		CHECK(i < DEVMEM_ASK_SPLIT || steps[i].verdict == (i == DEVMEM_ASK_SPLIT ? DEVMEM_NO : DEVMEM_SKIPPED));
	fake_nic_init(&nic);
}

/* What the real system may say about an interface that is no devmem NIC: the outcomes of a 6.18 kernel and of others.
 */
static void look(const char *name, int privileged)
{
	struct devmem_wish w = {.nic = name, .configure = 1, .daemon = ""};
	struct devmem_step real[DEVMEM_QUESTIONS];
	struct devmem_sys s;

	devmem_sys_init(&s);
	devmem_detect(&s, &w, 0, real);
	devmem_sys_close(&s);
	for (int i = 0; i < DEVMEM_QUESTIONS; i++) {
		CHECK(*real[i].reason);
		printf("%s%s: %-14s %-8s %s\n", name, privileged ? "" : " as nobody", real[i].name,
		       devmem_verdict_name(real[i].verdict), real[i].reason);
	}
	CHECK_EQ(real[DEVMEM_ASK_PEER].verdict, DEVMEM_SKIPPED);
	CHECK_EQ(real[DEVMEM_ASK_RUNTIME].verdict, DEVMEM_SKIPPED);
	if (real[DEVMEM_ASK_OPTION].verdict == DEVMEM_NO)
		return; /* an old kernel: the rest follows */
	if (strcmp(name, "lo") != 0)
		return;
	/* Of lo all is known. */
	CHECK_EQ(real[DEVMEM_ASK_SPLIT].verdict, DEVMEM_NO);
	CHECK_EQ(real[DEVMEM_ASK_STEER].verdict, DEVMEM_NO);
	if (real[DEVMEM_ASK_FAMILY].verdict == DEVMEM_YES) {
		CHECK(real[DEVMEM_ASK_BIND].verdict == DEVMEM_NO || real[DEVMEM_ASK_BIND].verdict == DEVMEM_UNKNOWN);
		if (!privileged)
			CHECK_HAS(real[DEVMEM_ASK_BIND].reason, "CAP_NET_ADMIN");
		CHECK_EQ(real[DEVMEM_ASK_SEND].verdict, DEVMEM_NO);
	}
}

TEST(check_real)
{
	struct if_nameindex *all = if_nameindex();
	int n = 0;
	char why[512] = "";
	pid_t pid;

	CHECK(all != NULL);
	for (struct if_nameindex *i = all; i->if_index; i++, n++)
		if (n < 16)
			look(i->if_name, geteuid() == 0);
	if (geteuid() == 0) {
		fflush(stdout);
		pid = child_fork();
		if (pid == 0) {
			CHECK_EQ(setresuid(65534, 65534, 65534), 0);
			look("lo", 0);
			fflush(stdout);
			_exit(0);
		}
		child_wait(pid);
	}
	if_freenameindex(all);
	/* The short question, with the short answer. */
	CHECK_EQ(devmem_kernel_usable("lo", NULL, why, sizeof(why)), 0);
	printf("lo: %s\n", why);
	CHECK(*why);
	CHECK_EQ(devmem_kernel_usable("no-such-nic", NULL, why, sizeof(why)), 0);
	CHECK(*why);
}

void tests_begin(void)
{
	CHECK_OK(gantry_params_load(0));
	gpu.kind = GANTRY_DEVICE_CUDA;
	gpu.dmabuf = 1;
	strcpy(gpu.name, "test gpu");
	fake_nic_init(&nic);
	wish = (struct devmem_wish){.nic = "fake0", .device = &gpu, .configure = 1, .daemon = ""};
}
