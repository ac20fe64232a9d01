/* SPDX-License-Identifier: Apache-2.0 */
/* Opening plugins by NCCL's rules, and the words for what cannot be opened. */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>

#include "../fixtures/fake.h"
#include "net/loader.h"
#include "test.h"

/* Static storage, one path at a time. */
static const char *fixture_path(const char *file)
{
	static char path[PATH_MAX];
	const char *build = getenv("BUILD_DIR");

	snprintf(path, sizeof(path), "%s/fixtures/%s", build ? build : ".", file);
	return path;
}

/* The dynamic linker reads LD_LIBRARY_PATH when a process starts, so the test starts itself once more. */
static void fixtures_on_search_path(char **argv)
{
	const char *old = getenv("LD_LIBRARY_PATH");
	char value[2 * PATH_MAX], dir[PATH_MAX];

	if (access(fixture_path("libnccl-net-fake_a.so"), R_OK) != 0)
		SKIP("no fixtures: set BUILD_DIR to the build folder");
	snprintf(dir, sizeof(dir), "%s", fixture_path(""));
	if (old && strncmp(old, dir, strlen(dir)) == 0)
		return;
	snprintf(value, sizeof(value), "%s%s%s", dir, old && *old ? ":" : "", old ? old : "");
	setenv("LD_LIBRARY_PATH", value, 1);
	execv("/proc/self/exe", argv);
	perror("execv");
	exit(1);
}

static void refused(const char *spec, const char *why)
{
	struct gantry_loader *l = NULL;

	CHECK_EQ(gantry_loader_open(spec, &l), GANTRY_ERR_CONFIG);
	CHECK(l == NULL);
	CHECK_HAS(gantry_last_error(), why);
}

static void taken(const char *spec, const char *file, const char *name)
{
	struct gantry_loader *l = NULL;
	struct gantry_net *net = NULL;

	CHECK_OK(gantry_loader_open(spec, &l));
	CHECK_HAS(gantry_loader_path(l), file);
	CHECK_OK(gantry_loader_net(l, 0, &net));
	CHECK_STR(net->name, name);
	CHECK_EQ(net->version, 12);
	gantry_loader_close(l);
}

/* Name, path, list: what is asked for is what is opened. */
TEST(check_rules)
{
	char spec[PATH_MAX + 64];

	taken("fake_a", "/libnccl-net-fake_a.so", "fake_a");
	taken("bare_fake", "/bare_fake", "bare_fake");
	taken("libnccl-net-fake_b.so", "/libnccl-net-fake_b.so", "fake_b");
	taken(fixture_path("libnccl-net-fake_b.so"), "/libnccl-net-fake_b.so", "fake_b");
	taken("no_such,fake_b,fake_a", "/libnccl-net-fake_b.so", "fake_b");
	snprintf(spec, sizeof(spec), "not_plugin,%s", fixture_path("libnccl-net-fake_a.so"));
	taken(spec, "/libnccl-net-fake_a.so", "fake_a");
}

TEST(check_refusals)
{
	refused("none", "no plugin requested");
	refused("no_such,none,fake_a", "no plugin requested");
	refused(",", "the list is empty");
	/* Both files of a name are told. */
	refused("no_such", "libnccl-net-no_such.so: cannot open shared object file");
	refused("no_such", "; no_such: cannot open shared object file");
	refused("/nowhere/plugin.so", "/nowhere/plugin.so: cannot open shared object file");
	refused("not_plugin", "exports no ncclNetPlugin_v6 to _v12, nor any other NCCL table: not a net plugin");
	refused("old_only", "only older ones: ncclNet_v4 ncclNetPlugin_v5");
	refused("new_only", "only newer ones: ncclNetPlugin_v13");
	refused("unresolved", "gantry_fixture_nowhere");
	refused("needs_gone", "found, but a library that it needs is not: libgantry-gone.so");
	refused(fixture_path("libnccl-net-needs_gone.so"),
		"found, but a library that it needs is not: libgantry-gone.so");
	/* One reason per candidate, all in the last error. */
	refused("not_plugin,old_only", "not a net plugin");
	refused("not_plugin,old_only", "only older ones");
}

TEST(check_default)
{
	struct gantry_loader *l = NULL;

	if (gantry_loader_open(NULL, &l) == GANTRY_OK)
		CHECK_HAS(gantry_loader_path(l), "libnccl-net.so");
	else
		CHECK_HAS(gantry_last_error(), "libnccl-net.so: cannot open shared object file");
	gantry_loader_close(l);
	l = NULL;
	if (gantry_loader_open("", &l) != GANTRY_OK)
		CHECK_HAS(gantry_last_error(), "libnccl-net.so: cannot open shared object file");
	gantry_loader_close(l);
	gantry_loader_close(NULL);
}

/* A copy of a good plugin with another machine in its ELF header: byte 18. */
TEST(check_other_machine)
{
	char path[] = "/tmp/gantry-loader-XXXXXX";
	unsigned char buf[65536];
	int from = open(fixture_path("libnccl-net-fake_a.so"), O_RDONLY), to = mkstemp(path);
	ssize_t n;

	CHECK(from >= 0 && to >= 0);
	for (int first = 1; (n = read(from, buf, sizeof(buf))) > 0; first = 0) {
		if (first)
			buf[18] = 243, buf[19] = 0; /* RISC-V */
		CHECK_EQ(write(to, buf, (size_t)n), n);
	}
	close(from);
	close(to);
	refused(path, "the library is for riscv (ELF machine 243), this process is");
	unlink(path);
}

/* Every candidate has its line; a plugin's own lines carry the library's name. */
TEST(check_log)
{
	struct gantry_loader *l = NULL;
	struct gantry_net *net = NULL;
	void *ctx = NULL;

	gantry_log_configure(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL, NULL);
	logs_keep();
	CHECK_OK(gantry_loader_open("old_only,fake_b", &l));
	CHECK_HAS(logs_text(), "libnccl-net-old_only.so: not taken: exports no ncclNetPlugin_v6");
	CHECK_HAS(logs_text(), "old_only: not taken: cannot open shared object file");
	CHECK_HAS(logs_text(), "libnccl-net-fake_b.so: taken, with net interfaces v6 v7 v8 v9 v10 v11 v12");
	CHECK_OK(gantry_loader_net(l, 7, &net));
	CHECK_OK(net->ops->init(net, 0, NULL, &ctx));
	CHECK_HAS(logs_text(), "WARN fake_body.h libnccl-net-fake_b.so: hello from fake_b v7");
	CHECK_OK(net->ops->finalize(net, ctx));
	gantry_loader_close(l);
	logs_end();
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, NULL);
}

TEST(check_versions)
{
	struct gantry_loader *l = NULL;
	struct gantry_net *net = NULL, *again = NULL;
	void *ctx = NULL;

	CHECK_OK(gantry_loader_open("partial", &l));
	CHECK(!gantry_loader_table(l, 7));
	CHECK(gantry_loader_table(l, 8));
	CHECK(gantry_loader_table(l, 11));
	CHECK(!gantry_loader_table(l, 12));
	CHECK(!gantry_loader_table(l, 5));
	CHECK(!gantry_loader_table(l, 13));
	CHECK(gantry_loader_table(l, 12) == NULL);
	CHECK_STR(*(const char *const *)gantry_loader_table(l, 11), "partial");
	/* What is missing after init is named, all of it. */
	CHECK_OK(gantry_loader_net(l, 8, &net));
	CHECK_EQ(net->ops->init(net, 1, NULL, &ctx), GANTRY_ERR_CONFIG);
	CHECK(ctx == NULL);
	net = NULL;
	CHECK_HAS(gantry_last_error(),
		  "libnccl-net-partial.so: ncclNetPlugin_v8 lacks functions that NCCL always calls: isend test");
	CHECK_ERROR(gantry_loader_net(l, 12, &net), GANTRY_ERR_UNSUPPORTED, "has no ncclNetPlugin_v12");
	CHECK_EQ(gantry_loader_net(l, 99, &net), GANTRY_ERR_UNSUPPORTED);
	CHECK(net == NULL);
	CHECK_OK(gantry_loader_net(l, 0, &net));
	CHECK_EQ(net->version, 11);
	CHECK_OK(gantry_loader_net(l, 11, &again));
	CHECK(net == again);
	gantry_loader_close(l);
}

/* Every call of every version, through the fake plugin that records its arguments. */

#define PTR(n) ((void *)(uintptr_t)(n))

static struct fake_record *record_of(const struct gantry_loader *l, void **ret_dl)
{
	struct fake_record *rec;

	*ret_dl = dlopen(gantry_loader_path(l), RTLD_NOW | RTLD_NOLOAD);
	CHECK(*ret_dl != NULL);
	rec = dlsym(*ret_dl, "fake_record");
	CHECK(rec != NULL);
	return rec;
}

/* The call goes well, and is that of the plugin. */
#define CALLED(rec, name, v, call_it)                                                                                  \
	do {                                                                                                           \
		CHECK_OK(call_it);                                                                                     \
		CHECK_STR((rec)->call, name);                                                                          \
		CHECK_EQ((rec)->version, v);                                                                           \
	} while (0)

static void check_properties(struct gantry_net *net, struct fake_record *rec)
{
	int v = net->version;
	struct gantry_net_properties p;

	memset(&p, 0x5a, sizeof(p));
	CALLED(rec, "getProperties", v, net->ops->get_properties(net, 2, &p));
	CHECK_EQ(rec->dev, 2);
	CHECK_HAS(p.name, "_dev");
	CHECK_STR(p.pci_path, "/sys/fake");
	CHECK_EQ(p.guid, 0xabcdef0123ll);
	CHECK_EQ(p.ptr_support, 3);
	CHECK_EQ(p.speed, 100000);
	CHECK_EQ(p.port, 2);
	CHECK(p.latency == 1.5f);
	CHECK_EQ(p.max_comms, 77);
	CHECK_EQ(p.max_recvs, 5);
	CHECK_EQ(p.device_type, v >= 7 ? 1 : 0);
	CHECK_EQ(p.device_version, v >= 7 ? 7 : 0);
	CHECK_EQ(p.reg_is_global, v >= 8 ? 1 : 0);
	CHECK_EQ(p.force_flush, v >= 9 ? 1 : 0);
	CHECK_EQ(p.max_p2p_bytes, v >= 9 ? 123456789012ll : 1073741824ll);
	CHECK_EQ(p.max_coll_bytes, v >= 9 ? 98765 : 536870912);
	CHECK_EQ(p.max_multi_request_size, v >= 11 ? 9 : 1);
	CHECK_EQ(p.rail_id, v >= 12 ? 4 : -1);
	CHECK_EQ(p.plane_id, v >= 12 ? 6 : -1);
	/* Itself before v9; v12's fake claims a hundred devices and has room for eight. */
	CHECK_EQ(p.vdev.ndevs, v <= 8 ? 1 : v <= 11 ? 2 : 8);
	CHECK_EQ(p.vdev.devs[0], 2);
	CHECK_EQ(p.vdev.devs[1], v <= 8 ? 0 : 1);
	CHECK_EQ(p.vdev.devs[7], v == 12 ? 17 : 0);
}

static void check_vdevice(struct gantry_net *net, struct fake_record *rec)
{
	struct gantry_net_vdevice four = {.ndevs = 4, .devs = {3, 2, 1, 0}};
	struct gantry_net_vdevice five = {.ndevs = 5, .devs = {4, 3, 2, 1, 0}};
	struct gantry_net_vdevice nine = {.ndevs = 9}, none = {.ndevs = 0};
	int v = net->version, dev = -7;

	if (v < 9) {
		CHECK_EQ(net->ops->make_vdevice(net, &four, &dev), GANTRY_ERR_UNSUPPORTED);
		CHECK_EQ(dev, -7);
		return;
	}
	CALLED(rec, "makeVDevice", v, net->ops->make_vdevice(net, &four, &dev));
	CHECK_EQ(dev, 40 + v);
	CHECK_EQ(rec->ndevs, 4);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(rec->devs[i], 3 - i);
	CHECK_EQ(net->ops->make_vdevice(net, &five, &dev), v >= 12 ? GANTRY_OK : GANTRY_ERR_INVALID);
	CHECK_EQ(rec->ndevs, v >= 12 ? 5 : 4);
	CHECK_EQ(net->ops->make_vdevice(net, &nine, &dev), GANTRY_ERR_INVALID);
	CHECK_EQ(net->ops->make_vdevice(net, &none, &dev), GANTRY_ERR_INVALID);
}

/* init once up to v10, once per communicator from v11 on. Leaves one context. */
static void *check_context(struct gantry_net *net, struct fake_record *rec)
{
	struct gantry_net_config config = {.traffic_class = 33};
	struct gantry_net_attr attr = {.send = {1, 2, 3, 4}, .recv = {5, 6, 7, 8}, .op = 9, .algo = 10, .proto = 11};
	void *ctx = NULL, *second = NULL;
	int v = net->version, before = rec->inits;
	uintptr_t plugin_ctx = FAKE_CTX + (uintptr_t)v + 0x10 * (uintptr_t)before;

	CALLED(rec, "init", v, net->ops->init(net, 0x1122334455667788ull, &config, &ctx));
	CHECK_OK(net->ops->init(net, 2, NULL, &second));
	CHECK_EQ(rec->inits - before, v >= 11 ? 2 : 1);
	if (v >= 11)
		CHECK_EQ(rec->traffic_class, -1); /* no config: undefined */
	CHECK_OK(net->ops->finalize(net, second));
	if (v >= 11) {
		CALLED(rec, "finalize", v, GANTRY_OK);
		CHECK(rec->ctx == PTR(plugin_ctx + 0x10));
	}
	CHECK_OK(net->ops->set_attr(net, ctx, &attr));
	if (v >= 11) {
		CALLED(rec, "setNetAttr", v, GANTRY_OK);
		CHECK(rec->ctx == PTR(plugin_ctx));
		CHECK_EQ(rec->attr.sendCommAttr.maxConcurrentPeers, 1);
		CHECK_EQ(rec->attr.sendCommAttr.minFlowsPerPeer, 4);
		CHECK_EQ(rec->attr.recvCommAttr.minConcurrentPeers, 6);
		CHECK_EQ(rec->attr.recvCommAttr.maxFlowsPerPeer, 7);
		CHECK_EQ(rec->attr.op, 9);
		CHECK_EQ(rec->attr.algo, 10);
		CHECK_EQ(rec->attr.proto, 11);
	}
	return ctx;
}

static void check_connecting(struct gantry_net *net, struct fake_record *rec, void *ctx)
{
	unsigned char handle[GANTRY_NET_HANDLE_SIZE];
	struct gantry_net_device_handle dh = {0}, *dhp = &dh;
	int v = net->version;
	void *comm = NULL;

	CALLED(rec, "listen", v, net->ops->listen(net, ctx, 1, handle, &comm));
	CHECK_EQ(rec->dev, 1);
	CHECK_EQ(handle[127], v);
	CHECK(comm == PTR(FAKE_LISTEN + v));
	CHECK_EQ(rec->ctx != NULL, v >= 11);

	rec->no_request = 1;
	comm = PTR(5);
	CHECK_OK(net->ops->connect(net, ctx, 2, handle, &comm, NULL));
	CHECK(comm == NULL);
	rec->no_request = 0;
	CALLED(rec, "connect", v, net->ops->connect(net, ctx, 2, handle, &comm, &dhp));
	CHECK_EQ(rec->dev, 2);
	CHECK_EQ(rec->handle0, v);
	CHECK(comm == PTR(FAKE_SEND + v));
	CHECK(rec->dev_handle == (v >= 7 ? (void *)&dh : NULL));
	CHECK_EQ(rec->traffic_class, v == 10 ? 33 : -99);

	CHECK_OK(net->ops->accept(net, PTR(FAKE_LISTEN + v), &comm, NULL));
	CHECK(rec->dev_handle == NULL);
	CALLED(rec, "accept", v, net->ops->accept(net, PTR(FAKE_LISTEN + v), &comm, &dhp));
	CHECK(comm == PTR(FAKE_RECV + v));
	CHECK(rec->comm == PTR(FAKE_LISTEN + v));
	CHECK(rec->dev_handle == (v >= 7 ? (void *)&dh : NULL));

	CALLED(rec, "closeSend", v, net->ops->close_send(net, PTR(1)));
	CHECK(rec->comm == PTR(1));
	CALLED(rec, "closeRecv", v, net->ops->close_recv(net, PTR(2)));
	CHECK(rec->comm == PTR(2));
	CALLED(rec, "closeListen", v, net->ops->close_listen(net, PTR(3)));
	CHECK(rec->comm == PTR(3));
}

static void check_memory(struct gantry_net *net, struct fake_record *rec)
{
	const size_t huge = (size_t)1 << 33;
	int v = net->version;
	void *mr = NULL;

	CALLED(rec, "regMr", v, net->ops->reg_mr(net, PTR(1), PTR(2), 4096, GANTRY_NET_PTR_CUDA, &mr));
	CHECK(rec->comm == PTR(1) && rec->data[0] == PTR(2) && mr == PTR(FAKE_MR + v));
	CHECK_EQ(rec->size[0], 4096);
	CHECK_EQ(rec->type, 2);
	mr = NULL;
	CHECK_EQ(net->ops->reg_mr(net, PTR(1), PTR(2), huge, 1, &mr), v <= 7 ? GANTRY_ERR_INVALID : GANTRY_OK);
	CHECK_EQ(mr == NULL, v <= 7);
	CHECK_EQ(rec->size[0], v <= 7 ? 4096 : (int64_t)huge);
	CALLED(rec, "regMrDmaBuf", v, net->ops->reg_mr_dmabuf(net, PTR(3), PTR(4), huge, 2, 0x123456789all, 17, &mr));
	CHECK(rec->comm == PTR(3) && rec->data[0] == PTR(4) && mr == PTR(FAKE_MR + v + 0x100));
	CHECK_EQ(rec->size[0], (int64_t)huge);
	CHECK_EQ(rec->offset, 0x123456789all);
	CHECK_EQ(rec->fd, 17);
	CALLED(rec, "deregMr", v, net->ops->dereg_mr(net, PTR(5), PTR(6)));
	CHECK(rec->comm == PTR(5) && rec->mr[0] == PTR(6));
	mr = NULL;
	CHECK_OK(net->ops->get_device_mr(net, PTR(7), PTR(8), &mr)); /* as NCCL does without it */
	CHECK(mr == (v >= 7 ? PTR(FAKE_DPTR + v) : NULL));
}

/* A handle that is NULL is a registration, and reaches the plugin as it is. */
static void check_null_mr(struct gantry_net *net, struct fake_record *rec)
{
	void *mr = NULL, *data = PTR(2), *req = NULL;
	size_t size = 8;
	int tag = 1, flush = 8;

	rec->no_mr = 1;
	CHECK_OK(net->ops->reg_mr(net, PTR(1), PTR(2), 8, GANTRY_NET_PTR_HOST, &mr));
	CHECK(mr != NULL);
	rec->mr[0] = PTR(3);
	CHECK_OK(net->ops->isend(net, PTR(1), data, 8, 1, mr, &req));
	CHECK(rec->mr[0] == NULL);
	rec->mr[0] = PTR(3);
	CHECK_OK(net->ops->irecv(net, PTR(1), 1, &data, &size, &tag, &mr, &req));
	CHECK(rec->mr[0] == NULL);
	rec->mr[0] = PTR(3);
	CHECK_OK(net->ops->iflush(net, PTR(1), 1, &data, &flush, &mr, &req));
	CHECK(rec->mr[0] == NULL);
	rec->mr[0] = PTR(3);
	CHECK_OK(net->ops->dereg_mr(net, PTR(1), mr));
	CHECK(rec->mr[0] == NULL);
	rec->no_mr = 0;
}

static void check_send(struct gantry_net *net, struct fake_record *rec)
{
	const size_t most = 2147483647, more = most + 1;
	int v = net->version;
	void *req = NULL;

	CALLED(rec, "isend", v, net->ops->isend(net, PTR(1), PTR(2), most, 42, PTR(3), &req));
	CHECK(rec->comm == PTR(1) && rec->data[0] == PTR(2) && rec->mr[0] == PTR(3) && rec->phandle == NULL);
	CHECK_EQ(rec->size[0], 2147483647);
	CHECK_EQ(rec->tag[0], 42);
	CHECK(req == PTR(FAKE_REQUEST + v));
	CHECK_EQ(net->ops->isend(net, PTR(1), PTR(2), more, 42, PTR(3), &req), v <= 8 ? GANTRY_ERR_INVALID : GANTRY_OK);
	CHECK_EQ(rec->size[0], v <= 8 ? 2147483647 : 2147483648ll);
	rec->no_request = 1;
	CHECK_OK(net->ops->isend(net, PTR(1), PTR(2), 1, 42, PTR(3), &req));
	CHECK(req == NULL);
	rec->no_request = 0;
}

static void check_receive(struct gantry_net *net, struct fake_record *rec)
{
	void *data[9], *mrs[9], *req = NULL;
	size_t sizes[9];
	int tags[9], v = net->version;

	for (int i = 0; i < 9; i++) {
		data[i] = PTR(0x100 + i);
		mrs[i] = PTR(0x200 + i);
		sizes[i] = (size_t)(1000 + i);
		tags[i] = 70 + i;
	}
	memset(rec->phandles, 0xff, sizeof(rec->phandles));
	CALLED(rec, "irecv", v, net->ops->irecv(net, PTR(9), 8, data, sizes, tags, mrs, &req));
	CHECK(rec->comm == PTR(9) && rec->request_in == NULL && req == PTR(FAKE_REQUEST + v + 0x100));
	CHECK_EQ(rec->n, 8);
	for (int i = 0; i < 8; i++) {
		CHECK(rec->data[i] == PTR(0x100 + i) && rec->mr[i] == PTR(0x200 + i));
		CHECK_EQ(rec->size[i], 1000 + i);
		CHECK_EQ(rec->tag[i], 70 + i);
		CHECK(v < 10 || rec->phandles[i] == NULL);
	}
	/* The hint reaches v9 and later; anything else in *request reaches nobody. */
	req = GANTRY_NET_OPTIONAL_RECV_COMPLETION;
	CHECK_OK(net->ops->irecv(net, PTR(9), 1, data, sizes, tags, mrs, &req));
	CHECK(rec->request_in == (v >= 9 ? PTR(1) : NULL));
	req = PTR(0xdead);
	CHECK_OK(net->ops->irecv(net, PTR(9), 1, data, sizes, tags, mrs, &req));
	CHECK(rec->request_in == NULL);
	rec->no_request = 1;
	CHECK_OK(net->ops->irecv(net, PTR(9), 1, data, sizes, tags, mrs, &req));
	CHECK(req == NULL);
	rec->no_request = 0;
	CHECK_EQ(net->ops->irecv(net, PTR(9), 9, data, sizes, tags, mrs, &req), GANTRY_ERR_INVALID);
	CHECK_EQ(net->ops->irecv(net, PTR(9), 0, data, sizes, tags, mrs, &req), GANTRY_ERR_INVALID);
	sizes[1] = (size_t)1 << 31;
	CHECK_EQ(net->ops->irecv(net, PTR(9), 2, data, sizes, tags, mrs, &req),
		 v <= 8 ? GANTRY_ERR_INVALID : GANTRY_OK);
}

static void check_completion(struct gantry_net *net, struct fake_record *rec)
{
	void *data[2] = {PTR(1), PTR(2)}, *mrs[2] = {PTR(3), PTR(4)}, *req = NULL;
	int sizes[2] = {55, 66}, got[2] = {0, 0}, done = 0, v = net->version;

	CALLED(rec, "iflush", v, net->ops->iflush(net, PTR(9), 2, data, sizes, mrs, &req));
	CHECK(rec->data[1] == PTR(2) && rec->mr[1] == PTR(4) && req == PTR(FAKE_REQUEST + v + 0x200));
	CHECK_EQ(rec->size[1], 66);
	CALLED(rec, "test", v, net->ops->test(net, PTR(0x99), &done, got));
	CHECK_EQ(done, 1);
	CHECK_EQ(got[0], 1000 + v);
	CHECK(rec->request == PTR(0x99));
	CHECK_OK(net->ops->test(net, PTR(0x99), &done, NULL));
	CHECK_OK(net->ops->irecv_consumed(net, PTR(8), 3, PTR(0x98)));
	if (v >= 7) {
		CALLED(rec, "irecvConsumed", v, GANTRY_OK);
		CHECK(rec->comm == PTR(8) && rec->request == PTR(0x98));
		CHECK_EQ(rec->n, 3);
	}
}

static void check_results(struct gantry_net *net, struct fake_record *rec)
{
	static const struct {
		int nccl;
		gantry_result ours;
	} map[] = {{1, GANTRY_ERR_DEVICE},  {2, GANTRY_ERR_SYSTEM},   {3, GANTRY_ERR_INTERNAL},
		   {4, GANTRY_ERR_INVALID}, {5, GANTRY_ERR_USAGE},    {6, GANTRY_ERR_PEER_LOST},
		   {7, GANTRY_AGAIN},	    {-3, GANTRY_ERR_INTERNAL}};
	int done = -5;
	void *req = PTR(0xabc);

	EACH_ROW (i, map) {
		rec->result = (ncclResult_t)map[i].nccl;
		CHECK_EQ(net->ops->test(net, PTR(1), &done, NULL), map[i].ours);
		CHECK_EQ(net->ops->isend(net, PTR(1), PTR(2), 1, 0, NULL, &req), map[i].ours);
	}
	/* Outputs are written only on success. */
	CHECK_EQ(done, -5);
	CHECK(req == PTR(0xabc));
	rec->result = ncclRemoteError;
	CHECK_ERROR(net->ops->devices(net, &done), GANTRY_ERR_PEER_LOST,
		    "libnccl-net-fake_a.so: devices gave ncclRemoteError (6)");
	rec->result = ncclSuccess;
	CHECK_OK(net->ops->devices(net, &done));
	CHECK_EQ(done, FAKE_DEVICES);
}

TEST(check_all_versions)
{
	struct gantry_loader *l = NULL;
	struct fake_record *rec;
	void *dl;

	CHECK_OK(gantry_loader_open("fake_a", &l));
	rec = record_of(l, &dl);
	for (int v = 6; v <= 12; v++) {
		struct gantry_net *net = NULL;
		void *ctx;

		CHECK_OK(gantry_loader_net(l, v, &net));
		CHECK_EQ(net->version, v);
		CHECK_STR(net->name, "fake_a");
		rec->traffic_class = -99;
		ctx = check_context(net, rec);
		check_properties(net, rec);
		check_vdevice(net, rec);
		check_connecting(net, rec, ctx);
		check_memory(net, rec);
		check_null_mr(net, rec);
		check_send(net, rec);
		check_receive(net, rec);
		check_completion(net, rec);
		check_results(net, rec);
		CHECK_OK(net->ops->finalize(net, ctx));
	}
	dlclose(dl);
	gantry_loader_close(l);
}

/* Two libraries, one version: calls, contexts and loggers stay apart. */
TEST(check_two)
{
	struct gantry_loader *la = NULL, *lb = NULL;
	struct gantry_net *a = NULL, *b = NULL;
	struct fake_record *ra, *rb;
	void *da, *db, *ca = NULL, *cb = NULL, *comm;
	unsigned char handle[GANTRY_NET_HANDLE_SIZE];

	CHECK_OK(gantry_loader_open("fake_a", &la));
	CHECK_OK(gantry_loader_open("fake_b", &lb));
	ra = record_of(la, &da);
	rb = record_of(lb, &db);
	CHECK(ra != rb);
	CHECK_OK(gantry_loader_net(la, 10, &a));
	CHECK_OK(gantry_loader_net(lb, 10, &b));
	ra->inits = rb->inits = 0;
	CHECK_OK(a->ops->init(a, 1, &(struct gantry_net_config){.traffic_class = 1}, &ca));
	CHECK_OK(b->ops->init(b, 1, &(struct gantry_net_config){.traffic_class = 2}, &cb));
	CHECK_EQ(ra->inits, 1);
	CHECK_EQ(rb->inits, 1);
	CHECK(ra->log != rb->log);
	CHECK_OK(a->ops->listen(a, ca, 0, handle, &comm));
	CHECK_OK(a->ops->connect(a, ca, 0, handle, &comm, NULL));
	CHECK_OK(b->ops->connect(b, cb, 5, handle, &comm, NULL));
	CHECK_EQ(ra->traffic_class, 1);
	CHECK_EQ(rb->traffic_class, 2);
	CHECK_EQ(ra->dev, 0);
	CHECK_EQ(rb->dev, 5);
	CHECK_OK(a->ops->finalize(a, ca));
	CHECK_OK(b->ops->finalize(b, cb));
	dlclose(da);
	dlclose(db);
	gantry_loader_close(la);
	gantry_loader_close(lb);
}

/* What the plugin left out: unsupported, or nothing to do. */
/* A table that init fills: what is there afterwards counts. And init comes once, whatever the contexts do. */
TEST(check_filled_by_init)
{
	struct gantry_loader *l = NULL;
	struct gantry_net *net = NULL;
	void *ctx = NULL, *second = NULL;
	int n = 0;

	CHECK_OK(gantry_loader_open("late", &l));
	CHECK_OK(gantry_loader_net(l, 8, &net));
	CHECK_STR(net->name, "late");
	CHECK_OK(net->ops->init(net, 1, NULL, &ctx));
	CHECK_OK(net->ops->init(net, 2, NULL, &second));
	CHECK_OK(net->ops->devices(net, &n));
	CHECK_EQ(n, 4);
	CHECK_OK(net->ops->finalize(net, ctx));
	CHECK_OK(net->ops->finalize(net, second));
	CHECK_OK(net->ops->init(net, 3, NULL, &ctx)); /* it would refuse a second call */
	CHECK_OK(net->ops->finalize(net, ctx));
	CHECK_OK(gantry_loader_net(l, 9, &net));
	CHECK_ERROR(net->ops->init(net, 1, NULL, &ctx), GANTRY_ERR_CONFIG,
		    "ncclNetPlugin_v9 lacks functions that NCCL always calls: getProperties listen");
	gantry_loader_close(l);
}

/* What `gantry check` asks for: results as NCCL leaves them, its profiler handles, and a profiler. */
TEST(check_as_nccl)
{
	struct gantry_net_nccl nccl = {.phandle = PTR(0x123)};
	struct gantry_loader *l = NULL;
	struct gantry_net *net = NULL;
	void *ctx = NULL, *request = NULL, *data = PTR(1), *mr = PTR(2), *unwritten, *dl = NULL;
	struct fake_record *rec;
	size_t size = 1;
	int tag = 0;

	CHECK_OK(gantry_loader_open("fake_a", &l));
	CHECK_OK(gantry_loader_net(l, 10, &net));
	rec = record_of(l, &dl);
	gantry_loader_as_nccl(net, &nccl);
	CHECK_OK(net->ops->init(net, 1, NULL, &ctx));
	memset(&unwritten, GANTRY_NET_UNWRITTEN, sizeof(unwritten));
	CHECK_OK(net->ops->irecv(net, PTR(3), 1, &data, &size, &tag, &mr, &request));
	CHECK(rec->request_in == unwritten);
	CHECK(rec->phandles[0] == PTR(0x123));
	CHECK_OK(net->ops->isend(net, PTR(3), data, 1, 0, mr, &request));
	CHECK(rec->phandle == PTR(0x123));
	CHECK_OK(net->ops->finalize(net, ctx));
	dlclose(dl);
	gantry_loader_close(l);
}

TEST(check_left_out)
{
	struct gantry_loader *l = NULL;
	struct gantry_net *net = NULL;
	struct gantry_net_vdevice one = {.ndevs = 1};
	struct gantry_net_attr attr = {.op = 1};
	struct gantry_net_properties p;
	void *ctx = NULL, *out = NULL, *data[1] = {NULL};
	int n = 0, sizes[1] = {0};

	CHECK_OK(gantry_loader_open("partial", &l));
	CHECK_OK(gantry_loader_net(l, 0, &net));
	CHECK_OK(net->ops->init(net, 1, NULL, &ctx));
	CHECK_OK(net->ops->set_attr(net, ctx, &attr));
	CHECK_OK(net->ops->irecv_consumed(net, PTR(1), 1, PTR(2)));
	CHECK_ERROR(net->ops->make_vdevice(net, &one, &n), GANTRY_ERR_UNSUPPORTED, "makeVDevice");
	CHECK_EQ(net->ops->reg_mr_dmabuf(net, PTR(1), PTR(2), 1, 1, 0, 3, &out), GANTRY_ERR_UNSUPPORTED);
	CHECK_OK(net->ops->get_device_mr(net, PTR(1), PTR(2), &out));
	CHECK(out == NULL);
	CHECK_OK(net->ops->iflush(net, PTR(1), 1, data, sizes, data, &out)); /* nothing to flush, nothing to wait for */
	CHECK(out == NULL);
	CHECK_ERROR(net->ops->get_properties(net, 0, &p), GANTRY_ERR_INTERNAL,
		    "getProperties gave an unknown result (99)");
	CHECK_EQ(net->ops->accept(net, PTR(1), &out, NULL), GANTRY_AGAIN);
	CHECK_EQ(net->ops->connect(net, NULL, 0, data, &out, NULL), GANTRY_ERR_INVALID);
	CHECK(out == NULL);
	CHECK_OK(net->ops->finalize(net, ctx));
	gantry_loader_close(l);
}

int main(int argc, char **argv)
{
	fixtures_on_search_path(argv);
	return tests_run(NULL);
}
