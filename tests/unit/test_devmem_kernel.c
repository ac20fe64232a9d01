/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel source on a kernel without such a NIC: real sockets and system calls as far as they go, a fake NIC where
 * one has to be bound. In network namespaces of its own where flows need another host; without root that part is left
 * out.
 */
#include <fcntl.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "device/device.h"
#include "devmem_fake.h"
#include "net/devmem.h"
#include "net/devmem/session.h"

static struct fake_nic nic;
static struct gantry_device device;
static struct gantry_device_ops device_ops;
static struct devmem_memory memory;
static gantry_result export_result;
static uint64_t export_offset;
static int exports;
static const struct devmem_source_ops *const k = &devmem_kernel;

static struct devmem_sys *make_fake(void)
{
	return fake_sys_new(&nic);
}

/* Stands for a GPU's driver: any file will do for a NIC that is not there. */
static gantry_result fake_export(struct gantry_device *dev, void *ptr, size_t size, int *ret_fd, uint64_t *ret_offset)
{
	if (export_result != GANTRY_OK)
		return export_result;
	exports++;
	*ret_fd = memfd_create("not-a-dma-buf", MFD_CLOEXEC);
	*ret_offset = export_offset;
	return GANTRY_OK;
}

struct pair {
	int tx, rx;
};

static void pair_open(struct pair *p, int family)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
	struct sockaddr *sa = family == AF_INET ? (struct sockaddr *)&in : (struct sockaddr *)&in6;
	socklen_t len = family == AF_INET ? sizeof(in) : sizeof(in6);
	struct timeval limit = {.tv_sec = UNTIL_SECONDS};
	int listener;

	if (family == 0) {
		family = AF_INET6;
		inet_pton(AF_INET6, "::ffff:127.0.0.1", &in6.sin6_addr);
	}
	listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(bind(listener, sa, len) == 0 && listen(listener, 1) == 0 && getsockname(listener, sa, &len) == 0);
	p->tx = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK_EQ(connect(p->tx, sa, len), 0);
	p->rx = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(p->rx >= 0);
	setsockopt(p->rx, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	close(listener);
}

static void pair_close(struct pair *p)
{
	close(p->tx);
	close(p->rx);
}

static int has_ipv6(void)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int can = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0;

	if (fd >= 0)
		close(fd);
	if (!can)
		printf("no IPv6 here\n");
	return can;
}

/* A stretch of the memory that is no multiple of a page, or does not begin at one; an exporter that cannot. */
static void check_memory(void)
{
	struct devmem_binding *b = NULL;
	struct devmem_tx *t = NULL;
	struct devmem_memory m = memory;

	m.size++;
	CHECK_EQ(k->bind(&m, "fake0", &b), GANTRY_ERR_INVALID);
	CHECK_EQ(k->bind_tx(&m, "fake0", &t), GANTRY_ERR_INVALID);
	m = memory;
	m.device_ptr += 512;
	CHECK_ERROR(k->bind(&m, "fake0", &b), GANTRY_ERR_INVALID, "whole pages");
	m = memory;
	m.page = 2 * (uint32_t)sysconf(_SC_PAGESIZE); /* dma-bufs have the system's */
	CHECK_ERROR(k->bind(&m, "fake0", &b), GANTRY_ERR_UNSUPPORTED, "bytes were requested; the kernel's have");
	CHECK_EQ(exports, 0);
	export_result = GANTRY_ERR_UNSUPPORTED;
	CHECK_EQ(k->bind(&memory, "fake0", &b), GANTRY_ERR_UNSUPPORTED);
	export_result = GANTRY_OK;
	export_offset = 4096;
	CHECK_EQ(k->bind(&memory, "fake0", &b), GANTRY_ERR_INTERNAL);
	export_offset = 0;
	CHECK_EQ(k->bind(&memory, "a-name-that-is-too-long", &b), GANTRY_ERR_INVALID);
	CHECK(b == NULL && t == NULL);
	k->unbind(NULL);
	k->unbind_tx(NULL);
	k->detach(NULL);
	CHECK_EQ(nic.bound, 0);
}

static void check_binding(void)
{
	struct devmem_binding *b = NULL;
	struct devmem_flow *f = NULL;
	char text[512];
	struct pair p;

	nic.bind_error = ENODATA;
	CHECK_ERROR(k->bind(&memory, "fake0", &b), GANTRY_ERR_UNSUPPORTED, "unreadable netmem");
	nic.bind_error = 0;
	CHECK_OK(k->bind(&memory, "fake0", &b));
	CHECK_EQ(nic.bound, 1);
	CHECK(b->dmabuf_id != 0);
	CHECK(b->ops == k && b->memory.size == memory.size);
	/* Two ends of one host never meet at a NIC. */
	pair_open(&p, AF_INET);
	CHECK_ERROR(k->attach(b, p.rx, &f), GANTRY_ERR_UNSUPPORTED, "same host, devmem impossible");
	if (has_ipv6()) {
		pair_close(&p);
		pair_open(&p, AF_INET6);
		CHECK_ERROR(k->attach(b, p.rx, &f), GANTRY_ERR_UNSUPPORTED, "[::1]");
		pair_close(&p);
		pair_open(&p, 0); /* IPv4 in IPv6 */
		CHECK_ERROR(k->attach(b, p.rx, &f), GANTRY_ERR_UNSUPPORTED, "127.0.0.1");
	}
	CHECK_EQ(k->attach(b, -1, &f), GANTRY_ERR_INVALID);
	CHECK_EQ(fake_rules(&nic), 0);
	pair_close(&p);
	k->describe(b, text, sizeof(text));
	printf("%s\n", text);
	CHECK_HAS(text, "fake0 (1 queue, highest 7)");
	k->unbind(b);
	CHECK_EQ(nic.bound, 0);
	CHECK_EQ(nic.rings.split, DEVMEM_SPLIT_OFF);
}

static void check_send(void)
{
	struct devmem_tx *t = NULL;
	struct pair p;
	uint32_t lo, hi, id;
	char byte;

	CHECK_EQ(k->bind_tx(&memory, "fake0", &t), GANTRY_ERR_INTERNAL); /* EBADF of the fake */
	nic.bind_tx_error = EOPNOTSUPP;
	nic.said = "Driver does not support netmem TX";
	CHECK_ERROR(k->bind_tx(&memory, "fake0", &t), GANTRY_ERR_UNSUPPORTED, "Driver does not support netmem TX");
	nic.bind_tx_error = 0;
	CHECK_OK(k->bind_tx(&memory, "lo", &t)); /* as which sockets are bound to a device */
	pair_open(&p, AF_INET);
	/* The kernel knows no such dma-buf, and nothing is sent. */
	errno = 0;
	CHECK_EQ(k->send(t, p.tx, 0, 4096, MSG_DONTWAIT), -1);
	CHECK(errno == EINVAL || errno == EOPNOTSUPP);
	CHECK_EQ(k->send(t, p.tx, memory.size - 1, 2, MSG_DONTWAIT), -1);
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(k->send(t, p.tx, UINT64_MAX, 2, MSG_DONTWAIT), -1);
	CHECK_EQ(errno, EINVAL);
	/* With 0 the kernel would send from address `offset`: it never gets there. */
	id = t->dmabuf_id;
	t->dmabuf_id = 0;
	CHECK_EQ(k->send(t, p.tx, (uintptr_t)&id, 4, MSG_DONTWAIT), -1);
	CHECK_EQ(errno, EINVAL);
	t->dmabuf_id = id;
	CHECK_EQ(recv(p.rx, &byte, 1, MSG_DONTWAIT), -1);
	CHECK_EQ(errno, EAGAIN);
	CHECK_EQ(k->completed(t, p.tx, &lo, &hi), 0);
	CHECK_EQ(k->completed(t, -1, &lo, &hi), -1);
	CHECK_EQ(errno, EBADF);
	/* A socket that cannot be prepared: not TCP. */
	CHECK_EQ(k->send(t, -1, 0, 4096, MSG_DONTWAIT), -1);
	CHECK_EQ(errno, EBADF);
	k->forget(t, p.tx);
	k->forget(t, p.tx);
	pair_close(&p);
	k->unbind_tx(t);
	nic.said = NULL;
}

/* A dma-buf that the caller has is bound as it is: nothing is exported, and the memory need not be whole pages. */
static void check_send_file(void)
{
	struct devmem_file file = {.fd = memfd_create("dma-buf-of-the-caller", MFD_CLOEXEC), .offset = 100};
	struct devmem_memory part = memory;
	struct devmem_tx *t = NULL;
	struct stat st;
	int before = exports;

	CHECK(file.fd >= 0 && fstat(file.fd, &st) == 0);
	part.size = 5000;
	part.device_ptr += 100;
	part.file = &file;
	CHECK_OK(k->bind_tx(&part, "lo", &t));
	CHECK(nic.tx_inode == st.st_ino);
	CHECK_EQ(exports, before);
	CHECK(!t->memory.file);
	CHECK_EQ(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
	k->unbind_tx(t);
	close(file.fd);
	CHECK_ERROR(k->bind_tx(&part, "lo", &t), GANTRY_ERR_INVALID, "Bad file descriptor");
}

/* Completions of ordinary zero copy sends come by the same queue and look the same. */
static void check_completions(int family)
{
	struct devmem_tx *t = NULL;
	struct pair p;
	uint32_t lo = 9, hi = 9, next = 0;
	int on = 1, n = 0;

	CHECK_OK(k->bind_tx(&memory, "lo", &t));
	pair_open(&p, family);
	CHECK_EQ(setsockopt(p.tx, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)), 0);
	for (int i = 0; i < 3; i++) {
		static char data[20000], back[20000];

		CHECK_EQ(send(p.tx, data, sizeof(data), MSG_ZEROCOPY), sizeof(data));
		CHECK_EQ(recv(p.rx, back, sizeof(back), MSG_WAITALL), sizeof(back));
	}
	/* They come when the other end has taken the data. */
	WAIT_WHILE (next < 3) {
		int got = k->completed(t, p.tx, &lo, &hi);

		CHECK(got >= 0);
		if (got) {
			CHECK_EQ(lo, next);
			CHECK(hi >= lo && hi < 3);
			next = hi + 1;
			n++;
		} else {
			until_pause();
		}
	}
	printf("ok: family %d: three sends in %d ranges\n", family, n);
	k->forget(t, p.tx);
	pair_close(&p);
	k->unbind_tx(t);
}

/* What the kernel itself answers on a socket without device memory. */
static void check_probes(void)
{
	union {
		struct cmsghdr align;
		char bytes[4096];
	} control;
	char data[64];
	struct iovec iov = {.iov_base = data, .iov_len = sizeof(data)};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct devmem_token tokens[129] = {{0}};
	struct pair p;

	pair_open(&p, AF_INET);
	CHECK_EQ(send(p.tx, "hello", 5, 0), 5);
	CHECK_EQ(recvmsg(p.rx, &msg, MSG_SOCK_DEVMEM), 5);
	CHECK(memcmp(data, "hello", 5) == 0);
	CHECK_EQ(msg.msg_controllen, 0);
	CHECK_EQ(msg.msg_flags, 0);
	CHECK_EQ(recvmsg(p.rx, &msg, MSG_SOCK_DEVMEM | MSG_DONTWAIT), -1);
	CHECK_EQ(errno, EAGAIN);
	if (setsockopt(p.rx, SOL_SOCKET, SO_DEVMEM_DONTNEED, tokens, 8) < 0 && errno == ENOPROTOOPT)
		SKIP("this kernel does not know SO_DEVMEM_DONTNEED (the rest was tested)");
	tokens[0] = (struct devmem_token){1, 1};
	CHECK_EQ(setsockopt(p.rx, SOL_SOCKET, SO_DEVMEM_DONTNEED, tokens, 8), 0);
	tokens[0] = (struct devmem_token){1, UINT32_MAX};
	CHECK_EQ(setsockopt(p.rx, SOL_SOCKET, SO_DEVMEM_DONTNEED, tokens, 8), 0);
	CHECK_EQ(setsockopt(p.rx, SOL_SOCKET, SO_DEVMEM_DONTNEED, tokens, 128 * 8), 0);
	CHECK_EQ(setsockopt(p.rx, SOL_SOCKET, SO_DEVMEM_DONTNEED, tokens, 129 * 8), -1);
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(setsockopt(p.rx, SOL_SOCKET, SO_DEVMEM_DONTNEED, tokens, 12), -1);
	CHECK_EQ(errno, EINVAL);
	pair_close(&p);
}

/* Two network namespaces joined by a veth: the peer is another host. */
static void say(int fd, char c)
{
	CHECK_EQ(write(fd, &c, 1), 1);
}

static char hear(int fd)
{
	char c = 0;

	return read(fd, &c, 1) == 1 ? c : 0;
}

static void peer_main(int up, int down)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(7777)};
	static const struct devmem_feature tso[] = {{.name = "tx-tcp-segmentation"},
						    {.name = "tx-tcp-ecn-segmentation"},
						    {.name = "tx-tcp-mangleid-segmentation"},
						    {.name = "tx-tcp6-segmentation"}};
	static char data[100000];
	struct devmem_sys s;
	int fd;

	CHECK_EQ(unshare(CLONE_NEWNET), 0);
	say(up, 'n');
	CHECK_EQ(hear(down), 'v');
	CHECK_EQ(system("ip addr add 192.0.2.2/24 dev vb && ip link set vb up && ip link set lo up"), 0);
	/* Then packets go through the other end's NAPI instance. */
	devmem_sys_init(&s);
	EACH_ROW (i, tso)
		CHECK_EQ(s.ops->feature_set(&s, "vb", &tso[i]), 0);
	devmem_sys_close(&s);
	say(up, 'u');
	CHECK_EQ(hear(down), 'c');
	inet_pton(AF_INET, "192.0.2.1", &a.sin_addr);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK_EQ(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (char)(i * 7);
	for (size_t done = 0; done < sizeof(data);) {
		ssize_t n = send(fd, data + done, sizeof(data) - done, 0);

		CHECK(n > 0);
		done += (size_t)n;
	}
	hear(down);
	_exit(0);
}

static void receive_all(struct devmem_flow *f, size_t bytes)
{
	union {
		struct cmsghdr align;
		char bytes[4096];
	} control;
	static char data[8192];
	static size_t got; /* from the beginning of the stream */

	for (size_t end = got + bytes; got < end;) {
		size_t room = end - got < sizeof(data) ? end - got : sizeof(data);
		struct iovec iov = {.iov_base = data, .iov_len = room};
		struct msghdr msg = {
			.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
		ssize_t n = k->receive(f, &msg, 0);

		CHECK(n > 0);
		CHECK_EQ(msg.msg_controllen, 0); /* ordinary data: the NIC is a fake */
		for (ssize_t i = 0; i < n; i++)
			CHECK_EQ(data[i], (char)((got + (size_t)i) * 7));
		got += (size_t)n;
	}
}

/* Lines that say a flow is not steered. */
/* The queue that brought the flow is looked at: not a word if it is ours, one line if it is not. */
static void check_verified(int fd, int ours)
{
	struct devmem_binding *b = NULL;
	struct devmem_flow *f = NULL;
	struct devmem_token token = {1, 1};
	uint32_t napi = 0;
	socklen_t len = sizeof(napi);
	char text[512];

	CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_INCOMING_NAPI_ID, &napi, &len), 0);
	printf("the flow comes by NAPI %u\n", napi);
	nic.queue[FAKE_QUEUES - 1].napi = ours ? napi : napi + 1;
	CHECK_OK(k->bind(&memory, "va", &b));
	CHECK_OK(k->attach(b, fd, &f));
	CHECK_EQ(fake_rules(&nic), 1);
	CHECK_EQ(nic.rules[0].tuple.src.in.sin_addr.s_addr, inet_addr("192.0.2.2"));
	CHECK_EQ(nic.rules[0].tuple.dst.in.sin_addr.s_addr, inet_addr("192.0.2.1"));
	CHECK_EQ(gantry_addr_port(&nic.rules[0].tuple.dst), 7777);
	logs_keep();
	receive_all(f, 50000);
	logs_end();
	CHECK_EQ(logs_count("not steered"), napi && !ours);
	CHECK_EQ(logs_count("ethtool -n va"), napi && !ours);
	CHECK_EQ(logs_count("WARN"), napi && !ours);
	CHECK(k->give_back(f, &token, 1) == 0 || errno == ENOPROTOOPT); /* the kernel skips tokens it does not know */
	k->describe(b, text, sizeof(text));
	printf("%s\n", text);
	CHECK_HAS(text, "1 flows, 50000 bytes");
	k->detach(f);
	CHECK_EQ(fake_rules(&nic), 0);
	k->unbind(b);
}

static void check_veth_binding(int listener)
{
	struct devmem_session *session = NULL;
	struct devmem_binding *b = NULL;
	struct devmem_tx *t = NULL;
	struct timeval limit = {.tv_sec = UNTIL_SECONDS};
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	CHECK(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	devmem_sys_for_tests = make_fake;
	check_verified(fd, 1);
	check_verified(fd, 0);
	/* The real system, on a veth: refused with the reason. */
	devmem_sys_for_tests = NULL;
	CHECK_EQ(k->bind(&memory, "va", &b), GANTRY_ERR_UNSUPPORTED);
	printf("veth: %s\n", gantry_last_error());
	CHECK_HAS(gantry_last_error(), "rx-ntuple-filter");
	CHECK_EQ(
		devmem_session_open(&(struct devmem_session_config){.nic = "va", .dmabuf = fd, .nqueues = 1}, &session),
		GANTRY_ERR_UNSUPPORTED);
	printf("veth: %s\n", gantry_last_error());
	CHECK_HAS(gantry_last_error(), "va, queue 1: BIND_RX: ");
	CHECK_EQ(k->bind_tx(&memory, "va", &t), GANTRY_ERR_UNSUPPORTED);
	printf("veth: %s\n", gantry_last_error());
	close(fd);
}

/* Features of a veth can be changed for real: what netlink's bit sets say is so. */
static void check_real_features(void)
{
	struct devmem_feature f = {.name = "rx-gro"};
	uint32_t rx = 0, id, queue = 0;
	struct devmem_rings rings = {.has_split = 1, .split = DEVMEM_SPLIT_ON};
	struct devmem_sys s;
	int was, e;

	devmem_sys_init(&s);
	CHECK_EQ(s.ops->feature_get(&s, "va", &f), 0);
	CHECK(f.known && !f.fixed);
	was = f.on;
	f.on = !was;
	CHECK_EQ(s.ops->feature_set(&s, "va", &f), 0);
	CHECK_EQ(s.ops->feature_get(&s, "va", &f), 0);
	CHECK_EQ(f.on, !was);
	f.on = was;
	CHECK_EQ(s.ops->feature_set(&s, "va", &f), 0);
	CHECK_EQ(s.ops->feature_get(&s, "va", &f), 0);
	CHECK_EQ(f.on, was);
	f.on = 1;
	CHECK_EQ(s.ops->feature_set(&s, "va", &f), 0);
	CHECK_EQ(s.ops->channels(&s, "va", &rx), 0);
	CHECK_EQ(rx, 2);
	e = s.ops->rings_set(&s, "va", &rings);
	CHECK(e == EOPNOTSUPP || e == EINVAL);
	e = s.ops->bind_rx(&s, "va", &(struct devmem_bind){0x7fffffff, &queue, 1}, &id);
	printf("veth: BIND_RX gives %d \"%s\"\n", e, s.said);
	CHECK(e == EOPNOTSUPP || e == EBADF);
	devmem_sys_close(&s);
}

static void veth_main(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(7777)};
	int listener, up[2], down[2];
	char command[256];
	pid_t pid;

	CHECK_EQ(pipe(up) | pipe(down), 0);
	pid = child_fork();
	if (pid == 0)
		peer_main(up[1], down[0]);
	CHECK_EQ(hear(up[0]), 'n');
	snprintf(command, sizeof(command),
		 "ip link add va numrxqueues 2 numtxqueues 2 type veth peer name vb netns %d && ip addr add "
		 "192.0.2.1/24 dev va && ip link set va "
		 "up && "
		 "ip link set lo up",
		 (int)pid);
	CHECK_EQ(system(command), 0);
	say(down[1], 'v');
	CHECK_EQ(hear(up[0]), 'u');
	check_real_features(); /* leaves GRO on: then a veth has NAPI instances */
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	inet_pton(AF_INET, "192.0.2.1", &a.sin_addr);
	CHECK(bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(listener, 1) == 0);
	say(down[1], 'c');
	check_veth_binding(listener);
	say(down[1], 'e');
	child_wait(pid);
	close(listener);
	_exit(0);
}

static void check_veth(void)
{
	pid_t pid;

	fflush(stdout);
	if (geteuid() != 0 || system("command -v ip >/dev/null") != 0) {
		printf("no flow between namespaces: needs root and ip\n");
		return;
	}
	pid = child_fork();
	if (pid == 0) {
		if (unshare(CLONE_NEWNET) < 0 ||
		    system("ip link add vx type veth peer name vy && ip link del vx") != 0) {
			printf("no flow between namespaces: no veth here\n");
			fflush(stdout);
			_exit(0);
		}
		veth_main();
	}
	child_wait(pid);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK_OK(gantry_params_load(0));
#if !GANTRY_HAVE_LIBMNL
	{
		struct devmem_binding *b = NULL;

		CHECK_ERROR(k->bind(&memory, "lo", &b), GANTRY_ERR_UNSUPPORTED, "built without libmnl");
		SKIP("built without libmnl");
	}
#endif
	devmem_journal_dir_for_tests = test_folder();
	fake_nic_init(&nic);
	device_ops.dmabuf_export = fake_export;
	device.ops = &device_ops;
	memory = (struct devmem_memory){.device = &device, .size = 1 << 20};
	memory.host = mmap(NULL, memory.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memory.device_ptr = memory.host;
	devmem_sys_for_tests = make_fake;
	RUN(check_memory());
	RUN(check_binding());
	RUN(check_send());
	RUN(check_send_file());
	RUN(check_completions(AF_INET));
	if (has_ipv6())
		RUN(check_completions(AF_INET6));
	RUN(check_veth());
	RUN(check_probes());
	return 0;
}
