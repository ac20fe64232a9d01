/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of transports: order, registering, the choice, its reasons, and libraries that bring more. */
#include <fcntl.h>
#include <sys/mman.h>

#include "transport/net_priv.h"
#include "transport_util.h"

static gantry_result yes(const struct gantry_peer_info *me, const struct gantry_peer_info *peer, int *ret_can,
			 char *why, size_t len)
{
	*ret_can = 1;
	return GANTRY_OK;
}

static gantry_result fails(const struct gantry_peer_info *me, const struct gantry_peer_info *peer, int *ret_can,
			   char *why, size_t len)
{
	return gantry_fail(GANTRY_ERR_SYSTEM, GANTRY_SUBSYS_COMM, __FILE__, __LINE__, "its daemon does not answer");
}

/* A whole table with another name and answer; everything else is collnet's stubs. */
static struct gantry_transport fake(const char *name,
				    gantry_result (*can)(const struct gantry_peer_info *,
							 const struct gantry_peer_info *, int *, char *, size_t))
{
	struct gantry_transport t = gantry_transport_collnet;

	t.name = name;
	t.can_connect = can;
	return t;
}

static const char *chosen(const struct gantry_peer_info *a, const struct gantry_peer_info *b, const char *wanted)
{
	const struct gantry_transport *one = NULL, *other = NULL;

	CHECK_OK(gantry_transport_choose(a, b, wanted, &one));
	CHECK_OK(gantry_transport_choose(b, a, wanted, &other));
	CHECK(one == other); /* both ends answer alike */
	return one->name;
}

static void refused(const struct gantry_peer_info *a, const struct gantry_peer_info *b, const char *wanted,
		    gantry_result why, const char *text)
{
	const struct gantry_transport *t = NULL;

	CHECK_EQ(gantry_transport_choose(a, b, wanted, &t), why);
	CHECK(!t);
	CHECK_HAS(gantry_last_error(), text);
}

TEST(check_choice)
{
	struct gantry_peer_info a = info_of(0, 1), same = info_of(1, 1), other = info_of(2, 2), far = info_of(3, 3);
	struct gantry_peer_info netns = other, pidns = other, user = other, both = other;

	far.host = 78;
	snprintf(far.host_name, sizeof(far.host_name), "there");
	netns.net_ns++;
	pidns.pid_ns++;
	both.pid_ns++;
	both.net_ns++;
	a.user = same.user = other.user = far.user = netns.user = pidns.user = both.user = 1000;
	user.user = 1001;

	CHECK_STR(chosen(&a, &same, "auto"), "p2p");
	CHECK_STR(chosen(&a, &same, NULL), "p2p");
	CHECK_STR(chosen(&a, &other, ""), "p2p");
	CHECK_STR(chosen(&a, &other, "shm"), "shm");
	CHECK_STR(chosen(&a, &other, " net , shm "), "shm"); /* the order is the registry's */
	CHECK_STR(chosen(&a, &other, "net"), "net");
	CHECK_STR(chosen(&a, &far, "auto"), "net");
	CHECK_STR(chosen(&a, &netns, "auto"), "p2p");
	CHECK_STR(chosen(&a, &pidns, "auto"), "shm");
	CHECK_STR(chosen(&a, &both, "auto"), "net");
	CHECK_STR(chosen(&a, &user, "auto"), "net");
	user.user = 0; /* root may look at everybody's memory, but not the other way round */
	CHECK_STR(chosen(&a, &user, "p2p,shm"), "shm");

	refused(&a, &far, "p2p,shm", GANTRY_ERR_UNREACHABLE,
		"no transport connects rank 0 (here) with rank 3 (there): p2p: there is another host; shm: there is "
		"another "
		"host; net: not among \"p2p,shm\"; collnet: not among \"p2p,shm\"");
	refused(&a, &other, "collnet", GANTRY_ERR_UNREACHABLE, "collnet carries collectives only, not point to point");
	refused(&a, &netns, "shm", GANTRY_ERR_UNREACHABLE, "shm: another network namespace");
	refused(&a, &pidns, "p2p", GANTRY_ERR_UNREACHABLE, "p2p: another pid namespace");
	user.user = 1001;
	refused(&a, &user, "shm,p2p", GANTRY_ERR_UNREACHABLE,
		"p2p: another user (1000 and 1001); shm: another user (1000 and");
	refused(&a, &other, "shm,smh", GANTRY_ERR_CONFIG,
		"unknown transport \"smh\" (GANTRY_TRANSPORT); available: auto p2p shm net");
}

TEST(check_gpus)
{
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1), host = info_of(2, 1);

	a.device_kind = b.device_kind = GANTRY_DEVICE_CUDA;
	a.sleeps = b.sleeps = 0;
	snprintf(a.bus_id, sizeof(a.bus_id), "0000:3b:00.0");
	snprintf(b.bus_id, sizeof(b.bus_id), "0000:3b:00.0");
	CHECK_STR(chosen(&a, &b, "auto"), "p2p");
	CHECK_STR(chosen(&a, &host, "auto"), "shm");
	refused(&a, &host, "p2p", GANTRY_ERR_UNREACHABLE,
		"a GPU and the host device do not address each other's memory");
	snprintf(b.bus_id, sizeof(b.bus_id), "0000:86:00.0");
	CHECK_STR(chosen(&a, &b, "auto"), "p2p"); /* neither sees that they cannot */
	a.apart[1] = gantry_bus_hash(b.bus_id);
	CHECK_STR(chosen(&a, &b, "auto"), "shm"); /* one that sees it is enough */
	CHECK_STR(chosen(&b, &a, "auto"), "shm");
	refused(&a, &b, "p2p", GANTRY_ERR_UNREACHABLE,
		"GPUs 0000:3b:00.0 and 0000:86:00.0 have no peer access (GANTRY_P2P=force tries it anyway)");
	a.apart[1] = 0;
	b.apart[0] = gantry_bus_hash("0000:3B:00.0");
	CHECK_STR(chosen(&a, &b, "auto"), "shm");
	CHECK_STR(chosen(&b, &a, "auto"), "shm");
	set_params("GANTRY_P2P", "force");
	CHECK_STR(chosen(&a, &b, "auto"), "p2p");
	set_params("GANTRY_P2P", "off");
	CHECK_STR(chosen(&a, &b, "auto"), "shm");
	refused(&a, &b, "p2p", GANTRY_ERR_UNREACHABLE, "p2p: GANTRY_P2P=off");
	set_params("GANTRY_P2P", "auto", "GANTRY_TRANSPORT", "net");
	CHECK_STR(chosen(&a, &b, NULL), "net");
	CHECK_STR(chosen(&a, &b, "auto"), "shm");
	set_params("GANTRY_TRANSPORT", "auto");
}

/* ---- GPU memory for a network that takes it ---- */

static struct {
	int plain, dmabuf, type, fd;
} registered;

static gantry_result take_memory(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr)
{
	(void)net, (void)comm, (void)size;
	registered.plain++;
	registered.type = type;
	*ret_mr = data;
	return GANTRY_OK;
}

static gantry_result take_dmabuf(struct gantry_net *net, void *comm, void *data, size_t size, int type, uint64_t offset,
				 int fd, void **ret_mr)
{
	CHECK_EQ(offset, 4096);
	CHECK(fcntl(fd, F_GETFD) >= 0);
	registered.dmabuf++;
	registered.fd = fd;
	*ret_mr = data;
	(void)net, (void)comm, (void)size, (void)type;
	return GANTRY_OK;
}

static gantry_result export_memory(struct gantry_device *d, void *ptr, size_t size, int *ret_fd, uint64_t *ret_offset)
{
	(void)d, (void)ptr, (void)size;
	*ret_fd = memfd_create("dmabuf-of-the-test", MFD_CLOEXEC);
	*ret_offset = 4096;
	return GANTRY_OK;
}

static gantry_result export_nothing(struct gantry_device *d, void *ptr, size_t size, int *ret_fd, uint64_t *ret_offset)
{
	(void)d, (void)ptr, (void)size, (void)ret_fd, (void)ret_offset;
	return GANTRY_ERR_UNSUPPORTED;
}

/* As a dma-buf where the network takes one and the device makes one; the descriptor is closed after it was shown. */
TEST(check_dmabuf)
{
	static const struct gantry_net_ops net_ops = {.reg_mr = take_memory, .reg_mr_dmabuf = take_dmabuf};
	struct gantry_device_ops device_ops = {.dmabuf_export = export_memory};
	struct gantry_device gpu = {.ops = &device_ops, .kind = GANTRY_DEVICE_CUDA};
	struct gantry_net net = {.ops = &net_ops, .name = "takes memory"};
	struct net_context context = {
		.net = &net, .device = &gpu, .gdr = 1, .props.ptr_support = GANTRY_NET_PTR_HOST | GANTRY_NET_PTR_CUDA};
	struct net_link link = {.context = &context, .device = &gpu};
	char memory[64];
	void *mr = NULL;

	CHECK_OK(net_link_register(&link, memory, sizeof(memory), GANTRY_NET_PTR_CUDA, &mr));
	CHECK_EQ(registered.plain, 1);
	CHECK_EQ(registered.type, GANTRY_NET_PTR_CUDA);
	context.props.ptr_support |= GANTRY_NET_PTR_DMABUF;
	CHECK_OK(net_link_register(&link, memory, sizeof(memory), GANTRY_NET_PTR_CUDA, &mr));
	CHECK_EQ(registered.dmabuf, 1);
	CHECK(fcntl(registered.fd, F_GETFD) < 0);
	CHECK_OK(net_link_register(&link, memory, sizeof(memory), GANTRY_NET_PTR_HOST, &mr));
	CHECK_EQ(registered.plain, 2);
	CHECK_EQ(registered.type, GANTRY_NET_PTR_HOST);
	device_ops.dmabuf_export = export_nothing;
	CHECK_OK(net_link_register(&link, memory, sizeof(memory), GANTRY_NET_PTR_CUDA, &mr));
	CHECK_EQ(registered.plain, 3);
	CHECK_EQ(registered.dmabuf, 1);
}

TEST(check_registering)
{
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1), far = info_of(2, 2);
	struct gantry_transport first = fake("first", yes), last = fake("last", yes), sick = fake("sick", fails);
	struct gantry_transport again = fake("shm", yes), hole = fake("hole", yes), many[20];
	struct gantry_transport_side side = *hole.recv;
	char names[20][8];
	int n = 0;

	far.host = 78;
	CHECK_OK(gantry_transport_register(&last, 0));
	CHECK_STR(chosen(&a, &b, "auto"), "p2p");
	CHECK_STR(chosen(&a, &b, "last"), "last");
	CHECK_OK(gantry_transport_register(&first, 1));
	CHECK_STR(chosen(&a, &b, "auto"), "first");
	CHECK_STR(chosen(&a, &b, "last,shm"), "shm");
	CHECK_OK(gantry_transport_check("first"));
	CHECK_EQ(gantry_transport_check("firs"), GANTRY_ERR_CONFIG);

	CHECK_ERROR(gantry_transport_register(&first, 0), GANTRY_ERR_INVALID, "a transport named first is already registered");
	CHECK_EQ(gantry_transport_register(&again, 1), GANTRY_ERR_INVALID);
	side.proxy_register = NULL;
	hole.recv = &side;
	CHECK_ERROR(gantry_transport_register(&hole, 0), GANTRY_ERR_INVALID, "hole has NULL entries");
	hole = fake("hole", yes);
	hole.struct_size = 0;
	CHECK_ERROR(gantry_transport_register(&hole, 0), GANTRY_ERR_INVALID,
		    "struct gantry_transport: struct_size is 0");
	hole = fake("a,b", yes);
	CHECK_EQ(gantry_transport_register(&hole, 0), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_transport_register(NULL, 0), GANTRY_ERR_INVALID);

	/* One that fails does not keep others from being asked, and its error is among the reasons. */
	CHECK_OK(gantry_transport_unregister(&first));
	CHECK_EQ(gantry_transport_unregister(&first), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_transport_unregister(&gantry_transport_shm), GANTRY_ERR_INVALID);
	CHECK_OK(gantry_transport_register(&sick, 1));
	CHECK_STR(chosen(&a, &b, "auto"), "p2p");
	refused(&a, &far, "sick,p2p", GANTRY_ERR_UNREACHABLE,
		"sick: its daemon does not answer; p2p: here is another host");
	CHECK_OK(gantry_transport_unregister(&sick));
	CHECK_OK(gantry_transport_unregister(&last));

	for (; n < 20; n++) {
		snprintf(names[n], sizeof(names[n]), "t%d", n);
		many[n] = fake(names[n], yes);
		if (gantry_transport_register(&many[n], n % 2) != GANTRY_OK)
			break;
	}
	CHECK_EQ(n, 16);
	CHECK_HAS(gantry_last_error(), "the limit of 16 added transports is reached");
	CHECK_STR(chosen(&a, &b, "auto"), "t1");
	for (int i = 0; i < n; i++)
		CHECK_OK(gantry_transport_unregister(&many[i]));
	CHECK_STR(chosen(&a, &b, "auto"), "p2p");
}

TEST(check_stubs)
{
	struct gantry_peer_info peer = info_of(3, 1);
	struct gantry_connector c = {.transport = &gantry_transport_collnet, .peer = &peer};
	struct gantry_proxy_conn pc = {.connector = &c};
	struct gantry_connect_info info;
	void *handle = NULL;
	int worked = 0;

	CHECK_ERROR(gantry_transport_collnet.send->setup(&c, &info), GANTRY_ERR_UNSUPPORTED,
		    "transport collnet has no proxy for this end of a connection with rank 3");
	CHECK_EQ(gantry_transport_collnet.recv->connect(&c, &info), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(gantry_transport_p2p.recv->proxy_setup(&c), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(gantry_transport_unsupported_progress(&pc, &worked), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(gantry_transport_unsupported_register(&pc, NULL, 0, &handle), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(gantry_transport_unsupported_deregister(&pc, NULL), GANTRY_ERR_UNSUPPORTED);
	gantry_transport_unsupported_free(&c);
}

TEST(check_libs)
{
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);
	const struct gantry_transport *mailbox;
	const char *build = getenv("BUILD_DIR");
	char path[4096], list[8300];

	CHECK_OK(gantry_transport_load_libs()); /* none */
	set_params("GANTRY_TRANSPORT_LIBS", "/nowhere/libx.so");
	CHECK_ERROR(gantry_transport_load_libs(), GANTRY_ERR_CONFIG,
		    "GANTRY_TRANSPORT_LIBS: /nowhere/libx.so: cannot open shared object file");
	snprintf(path, sizeof(path), "%s/transports/libmailbox.so", build ? build : ".");
	if (access(path, R_OK) != 0) {
		printf("no %s: set BUILD_DIR to the build folder; loading is not tested\n", path);
		return;
	}
	snprintf(list, sizeof(list), "%s/fixtures/libnccl-net-fake_a.so", build ? build : ".");
	set_params("GANTRY_TRANSPORT_LIBS", list);
	CHECK_ERROR(gantry_transport_load_libs(), GANTRY_ERR_CONFIG,
		    "libnccl-net-fake_a.so has no function gantry_transport_init");
	snprintf(list, sizeof(list), " %s , ,%s", path, path);
	set_params("GANTRY_TRANSPORT_LIBS", list);
	CHECK_OK(gantry_transport_load_libs());
	CHECK_OK(gantry_transport_load_libs());
	CHECK_OK(gantry_transport_choose(&a, &b, "mailbox", &mailbox));
	CHECK_OK(gantry_transport_unregister(mailbox));
	CHECK_OK(gantry_transport_load_libs()); /* once: it is not registered again */
	CHECK_EQ(gantry_transport_check("mailbox"), GANTRY_ERR_CONFIG);
	set_params("GANTRY_TRANSPORT_LIBS", "");
}

void tests_begin(void)
{
	CHECK_OK(gantry_params_load(0));
}
