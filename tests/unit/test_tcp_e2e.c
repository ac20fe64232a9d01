/*
 * The TCP network through its table, in one process that connects to itself over lo: every size, odd addresses, both
 * directions, under every way of sending, with checksums, lanes and helpers. Parameters are read once per process, so
 * each combination is a child of its own.
 */
#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "held.h"
#include "net/net.h"
#include "test.h"

#ifndef GANTRY_SANITIZED
#define GANTRY_SANITIZED 0
#endif

enum { MIB = 1 << 20, MAX = 8 * MIB, DEPTH = 4 };

/* Hangs end, and slow machines do not: 4 GiB take 10 s where ten others want the CPU. Who waited for the peer in a
 * close would wait for 10 s, the time for which a link lingers. */
#define PATIENCE_NS (UNTIL_SECONDS * 1000000000ull)
#define AT_ONCE_NS 5000000000u
enum { CHILD_S = 500 };

static struct gantry_net *net;
static const struct gantry_net_ops *ops;
/* Other threads write lines too. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[65536];
static size_t log_bytes;

static void keep_log(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		     const char *text)
{
	size_t n = strlen(text);

	(void)level, (void)subsys, (void)file, (void)line;
	pthread_mutex_lock(&log_lock);
	if (log_bytes + n + 1 < sizeof(log_text)) {
		memcpy(log_text + log_bytes, text, n);
		log_text[log_bytes + n] = '\n';
		log_bytes += n + 1;
	}
	pthread_mutex_unlock(&log_lock);
}

static int logged(const char *part)
{
	int has;

	pthread_mutex_lock(&log_lock);
	has = strstr(log_text, part) != NULL;
	pthread_mutex_unlock(&log_lock);
	return has;
}

/* A send comm and the receive comm at its other end. */
struct way {
	void *send, *recv;
};

static struct way connect_way(void *ctx)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *listen = NULL;
	struct way w = {0};
	uint64_t until = gantry_now_ns() + PATIENCE_NS;

	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	while (!w.send || !w.recv) {
		if (!w.send)
			CHECK_OK(ops->connect(net, ctx, 0, handle, &w.send, NULL));
		if (!w.recv)
			CHECK_OK(ops->accept(net, listen, &w.recv, NULL));
		CHECK(gantry_now_ns() < until);
	}
	CHECK_OK(ops->close_listen(net, listen));
	return w;
}

static void close_way(struct way w)
{
	CHECK_OK(ops->close_send(net, w.send));
	CHECK_OK(ops->close_recv(net, w.recv));
}

static uint8_t byte_of(uint64_t seed, uint64_t i)
{
	return (uint8_t)(i * 131 + (i >> 8) * 17 + (i >> 16) * 5 + seed * 59 + 7);
}

/*
 * Waits for a request and returns its size. `other` is the request at the other end of the connection, or NULL: both
 * ends live in this thread, and only their own tests move them.
 */
static int wait_two(void *request, void *other, int *ret_other)
{
	int done[2] = {0, !other}, size[2] = {-1, -1};
	void *both[2] = {request, other};

	for (uint64_t until = gantry_now_ns() + PATIENCE_NS; !done[0] || !done[1];) {
		for (int i = 0; i < 2; i++) {
			gantry_result r = done[i] ? GANTRY_OK : ops->test(net, both[i], &done[i], &size[i]);

			if (r != GANTRY_OK)
				fprintf(stderr, "test: %s\n", gantry_last_error());
			CHECK_EQ(r, GANTRY_OK);
		}
		CHECK(gantry_now_ns() < until);
	}
	if (ret_other)
		*ret_other = size[1];
	return size[0];
}

static int wait_done(void *request)
{
	return wait_two(request, NULL, NULL);
}

static void *post_send(void *comm, void *data, size_t size, int tag)
{
	void *request = NULL;

	CHECK_OK(ops->isend(net, comm, data, size, tag, NULL, &request));
	CHECK(request);
	return request;
}

static void *post_recv(void *comm, void *data, size_t size, int tag)
{
	void *request = NULL;

	CHECK_OK(ops->irecv(net, comm, 1, &data, &size, &tag, NULL, &request));
	CHECK(request);
	return request;
}

/* Every size once in each direction, at odd addresses; the receive has room to spare. */
static void move_sizes(struct way ways[2], const size_t *sizes, int n, int odd)
{
	uint8_t *out[2], *in[2];

	for (int d = 0; d < 2; d++) {
		out[d] = malloc(MAX + 64);
		in[d] = malloc(MAX + 64);
		CHECK(out[d] && in[d]);
	}
	for (int i = 0; i < n; i++) {
		void *sends[2], *recvs[2];
		size_t size = sizes[i];

		for (int d = 0; d < 2; d++) {
			uint8_t *from = out[d] + odd + d, *to = in[d] + odd + 2 * d + 1;
			uint64_t seed = (uint64_t)(i * 2 + d);

			for (size_t k = 0; k < size; k++)
				from[k] = byte_of(seed, k);
			memset(in[d], 0xdb, size + 64);
			if (i % 3 == 0) /* the send is first, sometimes */
				sends[d] = post_send(ways[d].send, from, size, i);
			recvs[d] = post_recv(ways[d].recv, to, size + (i % 2 ? 9 : 0), i);
			if (i % 3)
				sends[d] = post_send(ways[d].send, from, size, i);
		}
		for (int d = 0; d < 2; d++) {
			uint8_t *to = in[d] + odd + 2 * d + 1;

			int sent = -1;

			CHECK_EQ(wait_two(recvs[d], sends[d], &sent), size);
			CHECK_EQ(sent, size);
			for (size_t k = 0; k < size; k++)
				if (to[k] != byte_of((uint64_t)(i * 2 + d), k)) {
					fprintf(stderr, "size %zu direction %d: byte %zu is wrong\n", size, d, k);
					exit(1);
				}
			CHECK_EQ(to[-1], 0xdb);
			CHECK_EQ(to[size], 0xdb);
		}
	}
	for (int d = 0; d < 2; d++) {
		free(out[d]);
		free(in[d]);
	}
}

/* Several at once, so that messages overtake each other on the lanes. */
static void move_many(struct way ways[2])
{
	enum { N = 24 };
	static uint8_t out[2][N][150000], in[2][N][150000];
	void *sends[2][N], *recvs[2][N];

	for (int i = 0; i < N; i++)
		for (int d = 0; d < 2; d++) {
			size_t size = (size_t)(i * 6151 % 150000);

			for (size_t k = 0; k < size; k++)
				out[d][i][k] = byte_of((uint64_t)(i + 100 * d), k);
			sends[d][i] = post_send(ways[d].send, out[d][i], size, 5);
			recvs[d][i] = post_recv(ways[d].recv, in[d][i], 150000, 5);
		}
	for (int i = N - 1; i >= 0; i--) /* the last first: test on any request progresses all */
		for (int d = 0; d < 2; d++) {
			size_t size = (size_t)(i * 6151 % 150000);

			CHECK_EQ(wait_two(recvs[d][i], sends[d][i], NULL), size);
			for (size_t k = 0; k < size; k++)
				CHECK_EQ(in[d][i][k], byte_of((uint64_t)(i + 100 * d), k));
		}
}

static void start(void **ret_ctx, int traffic_class)
{
	struct gantry_net_config config = {.traffic_class = traffic_class};

	setenv("GANTRY_IFNAME", "lo", 1);
	gantry_log_set_sink(keep_log);
	net = gantry_net_tcp();
	ops = net->ops;
	CHECK_OK(ops->init(net, 7, &config, ret_ctx));
}

/* ---- combinations ---- */

static const char *zerocopy, *crc, *lanes, *helpers;
static int combination;

static void combine(void)
{
	static const size_t sizes[] = {0,      1,      2,      47,     48,    49,     255,   257,
				       4095,   4097,   8191,   8193,   65535, 65536,  65537, 100001,
				       262143, 262144, 262145, 999999, MIB,   MIB + 3};
	static const size_t large[] = {3 * MIB + 17, MAX};
	size_t middle[12];
	struct way ways[2];
	void *ctx;

	setenv("GANTRY_ZEROCOPY", zerocopy, 1);
	setenv("GANTRY_CRC", crc, 1);
	setenv("GANTRY_LANES", lanes, 1);
	setenv("GANTRY_HELPERS", helpers, 1);
	setenv("GANTRY_LOG", "info", 1);
	start(&ctx, GANTRY_NET_UNDEF);
	ways[0] = connect_way(ctx);
	ways[1] = connect_way(ctx);
	move_sizes(ways, sizes, sizeof(sizes) / sizeof(*sizes), 1 + combination % 7);
	move_many(ways);
	if (combination % 4 == 0)
		move_sizes(ways, large, 2, 3);
	if (strcmp(zerocopy, "msg") == 0 && strcmp(lanes, "1") == 0) {
		/* Loopback copies what it was asked to reference: plain from then on, and one line about it. */
		for (int i = 0; i < 12; i++)
			middle[i] = 300000;
		move_sizes(ways, middle, 12, 1);
		UNTIL(logged("the kernel copies despite MSG_ZEROCOPY"));
	}
	UNTIL(logged(strcmp(lanes, "1") == 0 ? "1+1 lanes" : "1+3 lanes"));
	close_way(ways[0]);
	close_way(ways[1]);
	CHECK_OK(ops->finalize(net, ctx));
}

/* ---- single cases ---- */

/* What was sent before the other side got round to accepting is not lost. */
static void late_accept(void)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], out[3][100], in[100];
	void *ctx, *listen, *send = NULL, *recv = NULL, *sends[3];

	setenv("GANTRY_TIMEOUT", "8s", 1); /* the service thread reads idle links every 500 ms */
	start(&ctx, GANTRY_NET_UNDEF);
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	while (!send)
		CHECK_OK(ops->connect(net, ctx, 0, handle, &send, NULL));
	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < 100; k++)
			out[i][k] = byte_of((uint64_t)i, (uint64_t)k);
		sends[i] = post_send(send, out[i], 100, 1);
	}
	for (int i = 0; i < 3; i++)
		wait_done(sends[i]);
	usleep(1200000);
	while (!recv)
		CHECK_OK(ops->accept(net, listen, &recv, NULL));
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(wait_done(post_recv(recv, in, 100, 1)), 100);
		CHECK(memcmp(in, out[i], 100) == 0);
	}
	CHECK_OK(ops->close_send(net, send));
	CHECK_OK(ops->close_recv(net, recv));
	CHECK_OK(ops->close_listen(net, listen));
	CHECK_OK(ops->finalize(net, ctx));
}

/* The same when the way back shares the link, and somebody is busy with its first direction meanwhile. */
static void late_accept_of_shared(void)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], small[100], in[100], *out = calloc(2, MIB), *big = out + MIB;
	void *ctx, *listen, *send = NULL, *recv = NULL, *s, *r;
	struct way first;

	start(&ctx, GANTRY_NET_UNDEF);
	first = connect_way(ctx);
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	while (!send)
		CHECK_OK(ops->connect(net, ctx, 0, handle, &send, NULL));
	for (int k = 0; k < 100; k++)
		small[k] = byte_of(4, (uint64_t)k);
	s = post_send(send, small, 100, 1);
	wait_done(s);
	for (int i = 0; i < 3; i++) {
		r = post_recv(first.recv, big, MIB, 2);
		s = post_send(first.send, out, MIB, 2);
		wait_two(r, s, NULL);
	}
	while (!recv)
		CHECK_OK(ops->accept(net, listen, &recv, NULL));
	CHECK_EQ(wait_done(post_recv(recv, in, 100, 1)), 100);
	CHECK(memcmp(in, small, 100) == 0);
	CHECK_OK(ops->close_send(net, send));
	CHECK_OK(ops->close_recv(net, recv));
	CHECK_OK(ops->close_listen(net, listen));
	close_way(first);
	CHECK_OK(ops->finalize(net, ctx));
	free(out);
}

/* 4 GiB and 5 bytes. One memfd stands for most of it, many times over; the first part and the tail are their own. */
static uint8_t *map_huge(size_t size, int ret_fd[3])
{
	enum { UNIT = 64 * MIB };
	uint8_t *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(base != MAP_FAILED);
	for (int i = 0; i < 3; i++) {
		ret_fd[i] = memfd_create("gantry-test", MFD_CLOEXEC);
		CHECK(ret_fd[i] >= 0);
		CHECK_EQ(ftruncate(ret_fd[i], i == 2 ? 4096 : i == 0 ? MIB : UNIT), 0);
	}
	for (size_t at = MIB; at < size - 5; at += UNIT) {
		size_t n = at + UNIT <= size - 5 ? UNIT : size - 5 - at;

		CHECK(mmap(base + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ret_fd[1], 0) != MAP_FAILED);
	}
	CHECK(mmap(base, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ret_fd[0], 0) != MAP_FAILED);
	CHECK(mmap(base + size - 5, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ret_fd[2], 0) != MAP_FAILED);
	return base;
}

static void over_4_gib(void)
{
	const size_t size = ((size_t)4 << 30) + 5;
	uint8_t *out, *in;
	int fds[6], sent = 0;
	struct way w;
	void *ctx, *r, *s;

	if (GANTRY_SANITIZED)
		return;
	start(&ctx, GANTRY_NET_UNDEF);
	out = map_huge(size, fds);
	in = map_huge(size, fds + 3);
	for (size_t i = 0; i < MIB; i++)
		out[i] = byte_of(1, i);
	for (size_t i = 0; i < 64 * MIB; i += 64)
		out[MIB + i] = byte_of(2, i / 64);
	memcpy(out + size - 5, "tail!", 5);
	w = connect_way(ctx);
	r = post_recv(w.recv, in, size, 1);
	s = post_send(w.send, out, size, 1);
	CHECK_EQ(wait_two(r, s, &sent), INT_MAX); /* as much as an int can say */
	CHECK_EQ(sent, INT_MAX);
	for (size_t i = 0; i < MIB; i++)
		CHECK_EQ(in[i], byte_of(1, i));
	for (size_t i = 0; i < 64 * MIB; i += 64 * 997)
		CHECK_EQ(in[MIB + i], byte_of(2, i / 64));
	CHECK(memcmp(in + size - 5, "tail!", 5) == 0);
	CHECK_EQ(in[size], 0);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

static void registrations(void)
{
	static uint8_t block[1001];
	uint8_t *memory = block + 1;
	struct way w;
	void *ctx, *mr = memory, *request, *data = memory + 990, *mrs[1];
	size_t size = 11;
	int tag = 1, fd = 0;

	start(&ctx, GANTRY_NET_UNDEF);
	w = connect_way(ctx);
	CHECK_EQ(ops->reg_mr(net, w.send, memory, 1000, GANTRY_NET_PTR_CUDA, &mr), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(ops->reg_mr(net, w.send, memory, 1000, 0, &mr), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(ops->reg_mr(net, w.send, NULL, 1, GANTRY_NET_PTR_HOST, &mr), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->reg_mr(net, w.send, memory, SIZE_MAX, GANTRY_NET_PTR_HOST, &mr), GANTRY_ERR_INVALID);
	CHECK_HAS(gantry_last_error(), "wraps");
	CHECK_EQ(ops->reg_mr_dmabuf(net, w.send, memory, 1000, GANTRY_NET_PTR_CUDA, 0, fd, &mr),
		 GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(ops->get_device_mr(net, w.send, NULL, &mr), GANTRY_ERR_INVALID);
	CHECK(mr == memory); /* outputs are written only on success */
	CHECK_OK(ops->reg_mr(net, w.send, NULL, 0, GANTRY_NET_PTR_HOST, &mr));
	CHECK_OK(ops->dereg_mr(net, w.send, mr));
	CHECK_OK(ops->reg_mr(net, w.send, memory, 1000, GANTRY_NET_PTR_HOST, &mr));

	/* Messages lie within their registration. */
	CHECK_EQ(ops->isend(net, w.send, memory + 990, 11, 1, mr, &request), GANTRY_ERR_INVALID);
	CHECK_HAS(gantry_last_error(), "outside its registration");
	CHECK_EQ(ops->isend(net, w.send, block, 1, 1, mr, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->isend(net, w.send, memory + 1, SIZE_MAX, 1, mr, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->isend(net, w.send, NULL, 1, 1, NULL, &request), GANTRY_ERR_INVALID);
	mrs[0] = mr;
	CHECK_EQ(ops->irecv(net, w.recv, 1, &data, &size, &tag, mrs, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->irecv(net, w.recv, 0, &data, &size, &tag, NULL, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->irecv(net, w.recv, 9, &data, &size, &tag, NULL, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->isend(net, w.recv, memory, 1, 1, mr, &request), GANTRY_ERR_USAGE);
	CHECK_EQ(ops->irecv(net, w.send, 1, &data, &size, &tag, NULL, &request), GANTRY_ERR_USAGE);
	CHECK_EQ(ops->close_send(net, w.recv), GANTRY_ERR_USAGE);
	CHECK_EQ(ops->close_recv(net, w.send), GANTRY_ERR_USAGE);
	/* Up to the last byte is fine, and so is nothing at its very end. */
	memset(memory + 990, 0x42, 10);
	request = post_recv(w.recv, memory, 10, 1);
	CHECK_OK(ops->isend(net, w.send, memory + 990, 10, 1, mr, &data));
	CHECK_EQ(wait_done(request), 10);
	wait_done(data);
	CHECK_EQ(memory[9], 0x42);
	request = post_recv(w.recv, NULL, 0, 1);
	CHECK_OK(ops->isend(net, w.send, memory + 1000, 0, 1, mr, &data));
	CHECK_EQ(wait_done(request), 0);
	wait_done(data);
	CHECK_OK(ops->dereg_mr(net, w.send, mr));
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

static void devices(void)
{
	struct gantry_net_vdevice v = {.ndevs = 1, .devs = {0}};
	struct gantry_net_properties p;
	int n = 0, dev = -7;
	void *ctx;

	CHECK_EQ(gantry_net_tcp()->ops->get_properties(gantry_net_tcp(), 0, &p), GANTRY_ERR_USAGE); /* before init */
	start(&ctx, GANTRY_NET_UNDEF);
	CHECK_OK(ops->devices(net, &n));
	CHECK_EQ(n, 1);
	CHECK_OK(ops->get_properties(net, 0, &p));
	CHECK_STR(p.name, "lo");
	CHECK_EQ(p.max_recvs, 8);
	CHECK_EQ(p.ptr_support, GANTRY_NET_PTR_HOST);
	CHECK_EQ(p.vdev.ndevs, 1);
	CHECK(p.max_p2p_bytes > (size_t)4 << 30);
	CHECK_EQ(ops->get_properties(net, 1, &p), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->get_properties(net, -1, &p), GANTRY_ERR_INVALID);

	/* 1 to 8 devices that exist, none twice. */
	v.ndevs = 0;
	CHECK_EQ(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID);
	v.ndevs = 9;
	CHECK_EQ(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID);
	v.ndevs = 2;
	CHECK_EQ(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID);
	CHECK_HAS(gantry_last_error(), "twice");
	v.devs[1] = 1;
	CHECK_EQ(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID);
	v.devs[1] = -1;
	CHECK_EQ(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID);
	CHECK_EQ(dev, -7);
	v.ndevs = 1;
	CHECK_OK(ops->make_vdevice(net, &v, &dev));
	CHECK_OK(ops->get_properties(net, dev, &p));
	CHECK_STR(p.name, "lo");
	/* Every communicator makes its own; that must not use up anything. */
	for (int i = 0; i < 1000; i++)
		CHECK_OK(ops->make_vdevice(net, &v, &dev));
	CHECK_OK(ops->finalize(net, ctx));
}

/* Connected sockets of this process, and those of them with this type of service. */
static int connected_sockets(int wanted, int *ret_marked)
{
	DIR *d = opendir(HELD_FDS);
	struct dirent *e;
	int sockets = 0;

	*ret_marked = 0;
	CHECK(d);
	while ((e = readdir(d))) {
		struct sockaddr_storage peer;
		socklen_t len = sizeof(peer);
		int fd = atoi(e->d_name), tos = -1;

		if (getpeername(fd, (struct sockaddr *)&peer, &len))
			continue;
		len = sizeof(tos);
		if (peer.ss_family != AF_INET || getsockopt(fd, IPPROTO_IP, IP_TOS, &tos, &len))
			continue;
		sockets++;
		*ret_marked += tos == wanted;
	}
	closedir(d);
	return sockets;
}

/* A traffic class is the upper six bits of the type of service, on every lane of both sides. */
static void traffic_class(void)
{
	struct gantry_net_config bad = {.traffic_class = 64};
	struct way w;
	int marked;
	void *ctx, *none = NULL;

	setenv("GANTRY_LANES", "2", 1);
	start(&ctx, 46);
	CHECK_EQ(ops->init(net, 7, &bad, &none), GANTRY_ERR_CONFIG);
	w = connect_way(ctx);
	UNTIL(connected_sockets(46 << 2, &marked) ==
	      6); /* three lanes, both ends; none of an attempt that was given up */
	CHECK_EQ(marked, 6);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

/* Closes with requests in flight; the other end hears of it. Returns how long that took. */
static uint64_t close_once(void *ctx, uint8_t *memory)
{
	uint64_t before, took;
	struct way w = connect_way(ctx);
	void *r = post_recv(w.recv, memory, MAX, 1);
	gantry_result result = GANTRY_OK;
	int done = 0;

	for (int i = 0; i < 8; i++)
		post_send(w.send, memory + MAX, MAX, 2); /* nobody receives these */
	for (int i = 0; i < 100; i++)
		CHECK_OK(ops->test(net, r, &done, NULL));
	before = gantry_now_ns();
	CHECK_OK(ops->close_send(net, w.send));
	took = gantry_now_ns() - before;
	for (uint64_t until = gantry_now_ns() + PATIENCE_NS; result == GANTRY_OK && gantry_now_ns() < until;)
		result = ops->test(net, r, &done, NULL);
	CHECK_EQ(result, GANTRY_ERR_PEER_CLOSED);
	before = gantry_now_ns();
	CHECK_OK(ops->close_recv(net, w.recv));
	return took + gantry_now_ns() - before;
}

/* That waits for nobody. This thread itself may have been kept from running once, but not every time. */
static void close_in_flight(void)
{
	uint8_t *memory = calloc(2, MAX);
	int slow = 0;
	void *ctx;

	start(&ctx, GANTRY_NET_UNDEF);
	while (close_once(ctx, memory) >= AT_ONCE_NS)
		CHECK(++slow < 5);
	CHECK_OK(ops->finalize(net, ctx));
	free(memory);
}

static int child(const char *name, void (*run)(void), const char *only)
{
	uint64_t before = gantry_now_ns();
	int status = 0;
	pid_t pid;

	if (only && strcmp(only, name) != 0)
		return 0;
	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		alarm(CHILD_S);
		run();
		/* A search for leaks takes seconds: one of the combinations is enough. */
		if (GANTRY_SANITIZED && combination != 28)
			_exit(0);
		exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (only)
		printf("%s: %.2f s\n", name, (double)(gantry_now_ns() - before) / 1e9);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	fprintf(stderr, "%s FAILED (status %#x)\n", name, status);
	return 1;
}

int main(int argc, char **argv)
{
	static const char *const ways[] = {"auto", "splice", "msg", "off"};
	const char *only = argc > 1 ? argv[1] : NULL;
	int failed = 0;

	failed += child("devices", devices, only);
	failed += child("registrations", registrations, only);
	failed += child("traffic_class", traffic_class, only);
	failed += child("late_accept", late_accept, only);
	failed += child("late_accept_of_shared", late_accept_of_shared, only);
	failed += child("close_in_flight", close_in_flight, only);
	for (combination = 0; combination < 32; combination++) {
		/* Every two settings meet in these. */
		static const uint32_t some =
			1u << 0 | 1u << 5 | 1u << 10 | 1u << 15 | 1u << 19 | 1u << 22 | 1u << 25 | 1u << 28;
		char name[64];

		if (GANTRY_SANITIZED && !(some >> combination & 1))
			continue;
		zerocopy = ways[combination % 4];
		crc = combination & 4 ? "1" : "0";
		lanes = combination & 8 ? "3" : "1";
		helpers = combination & 16 ? "2" : "0";
		snprintf(name, sizeof(name), "zerocopy=%s,crc=%s,lanes=%s,helpers=%s", zerocopy, crc, lanes, helpers);
		failed += child(name, combine, only);
	}
	failed += child("over_4_gib", over_4_gib, only);
	if (!failed)
		printf("ok\n");
	return failed != 0;
}
