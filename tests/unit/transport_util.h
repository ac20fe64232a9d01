/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of transports: one end of a connection with its own stream, eventcounts and proxy, and transfers over it.
 * On the host device, or with GANTRY_TEST_DEVICE=cuda on GPU 0, with GANTRY_TEST_DEVICE=hip on GPU 0 of the fake HIP
 * runtime.
 */
#ifndef GANTRY_TESTS_TRANSPORT_UTIL_H
#define GANTRY_TESTS_TRANSPORT_UTIL_H

#include <sys/mman.h>
#include <sys/stat.h>

#include "device/device.h"
#include "device/work.h"
#include "fixtures/hip/hip_images.h"
#include "proxy/proxy.h"
#include "test.h"
#include "transport/transport.h"

/* What kernels read and write: in memory that the device maps. */
struct seen {
	struct gantry_conn_state state;
	struct gantry_conn conn;
	struct gantry_xfer xfer;
	uint32_t first[2], result;
};

struct side {
	struct gantry_connector c;
	struct gantry_peer_info me, peer;
	struct gantry_connect_info info;
	struct gantry_device *dev;
	struct gantry_stream *stream;
	struct gantry_eventcount *eventcounts;
	struct gantry_ipc_handle eventcount_handle;
	struct gantry_proxy *proxy;
	struct gantry_proxy_group *group;
	struct seen *host, *seen; /* the same, as the CPU and as the device addresses it */
};

static inline enum gantry_device_kind test_kind(void)
{
	const char *device = getenv("GANTRY_TEST_DEVICE");

	return !device			     ? GANTRY_DEVICE_HOST
	       : strcmp(device, "cuda") == 0 ? GANTRY_DEVICE_CUDA
	       : strcmp(device, "hip") == 0  ? GANTRY_DEVICE_HIP
					     : GANTRY_DEVICE_HOST;
}
static inline int on_gpu(void)
{
	return test_kind() != GANTRY_DEVICE_HOST;
}

static inline struct gantry_device *open_device(void)
{
	struct gantry_device *dev = NULL;
	struct fake_hip *fake = NULL;
	char why[256] = "";

	if (test_kind() == GANTRY_DEVICE_CUDA && gantry_device_cuda_count(why, sizeof(why)) < 1)
		SKIP("no GPU: %s", why);
	if (test_kind() == GANTRY_DEVICE_HIP)
		FAKE_HIP_OPEN(fake);
	CHECK_OK(gantry_device_open(test_kind(), 0, &dev));
	return dev;
}

static inline uint64_t inode_of(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* A rank of this machine, this user and these namespaces. */
static inline struct gantry_peer_info info_of(int rank, uint64_t process)
{
	struct gantry_peer_info i = {.rank = rank,
				     .device_kind = GANTRY_DEVICE_HOST,
				     .sleeps = 1,
				     .host = 77,
				     .process = process,
				     .pid_ns = inode_of("/proc/self/ns/pid"),
				     .net_ns = inode_of("/proc/self/ns/net"),
				     .user = getuid(),
				     .host_name = "here"};
	struct gantry_device *dev;

	if (on_gpu()) {
		dev = open_device();
		i.device_kind = test_kind();
		i.sleeps = 0;
		snprintf(i.bus_id, sizeof(i.bus_id), "%s", dev->bus_id);
		gantry_device_close(dev);
	}
	return i;
}

/* Mappings of memfds that are ours. */
static inline int count_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[1024];
	int n = 0;

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:gantry") != NULL;
	fclose(f);
	return n;
}

/* Bytes of shared segments that are in memory, whoever has used them. */
static inline size_t segment_bytes(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0;
	char line[1024];

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		unsigned char there[4096];
		unsigned long from, to;

		if (!strstr(line, "memfd:gantry-shm"))
			continue;
		CHECK_EQ(sscanf(line, "%lx-%lx", &from, &to), 2);
		CHECK((to - from) / page <= sizeof(there));
		CHECK_EQ(mincore((void *)from, to - from, there), 0);
		for (size_t i = 0; i < (to - from) / page; i++)
			n += there[i] & 1 ? page : 0;
	}
	fclose(f);
	return n;
}

/* Everything up to the info for the peer. */
static inline void side_open(struct side *s, const struct gantry_transport *t, int send, struct gantry_peer_info me,
			     struct gantry_peer_info peer)
{
	int bit = send ? GANTRY_TRANSPORT_PROXIED_SEND : GANTRY_TRANSPORT_PROXIED_RECV;
	const struct gantry_transport_side *side = send ? t->send : t->recv;
	struct gantry_proxy_group_config config = {0};
	void *p = NULL, *q = NULL;

	memset(s, 0, sizeof(*s));
	s->me = me;
	s->peer = peer;
	s->dev = open_device();
	CHECK_OK(s->dev->ops->stream_create(s->dev, &s->stream));
	CHECK_OK(s->dev->ops->alloc_mapped(s->dev, sizeof(*s->host), &p, &q));
	s->host = p;
	s->seen = q;
	CHECK_OK(gantry_proxy_get(s->dev, &s->proxy));
	CHECK_OK(gantry_proxy_group_create(s->proxy, &config, &s->group));
	s->c = (struct gantry_connector){.transport = t,
					 .device = s->dev,
					 .me = &s->me,
					 .peer = &s->peer,
					 .comm_id = 1,
					 .send = send,
					 .nchannels = 1,
					 .state = &s->host->state};
	if (s->dev->sleeps) {
		CHECK_OK(s->dev->ops->alloc(s->dev, 4096, &p));
		s->eventcounts = p;
		CHECK_OK(s->dev->ops->ipc_export(s->dev, p, 4096, &s->eventcount_handle));
		s->c.eventcount = &s->eventcounts[2];
		s->c.eventcount_handle = &s->eventcount_handle;
		s->c.eventcount_offset = 2 * sizeof(struct gantry_eventcount);
		s->c.proxy_eventcount = gantry_proxy_eventcount(s->proxy);
	}
	if (t->proxied(&s->me, &s->peer) & bit) {
		CHECK_OK(gantry_proxy_conn_create(s->proxy, s->group, &s->c, &s->c.proxy));
		CHECK_OK(side->proxy_setup(&s->c));
	}
	CHECK_OK(side->setup(&s->c, &s->info));
}

static inline gantry_result side_connect(struct side *s, const struct gantry_connect_info *peer)
{
	const struct gantry_transport_side *side = s->c.send ? s->c.transport->send : s->c.transport->recv;
	gantry_result r = side->connect(&s->c, peer);

	if (r == GANTRY_OK && s->c.proxy)
		r = side->proxy_connect(&s->c);
	s->host->conn = s->c.conn;
	s->host->conn.state = &s->seen->state;
	return r;
}

/* Until it is done or fails; a minute at most. */
static inline gantry_result side_connect_wait(struct side *s, const struct gantry_connect_info *peer)
{
	gantry_result r;

	WAIT_WHILE ((r = side_connect(s, peer)) == GANTRY_AGAIN)
		usleep(200);
	return r;
}

static inline void side_close(struct side *s)
{
	const struct gantry_transport_side *side = s->c.send ? s->c.transport->send : s->c.transport->recv;

	gantry_proxy_group_destroy(s->group);
	if (s->c.proxy)
		side->proxy_free(&s->c);
	side->free(&s->c);
	CHECK(s->c.resources == NULL);
	gantry_proxy_conn_destroy(s->c.proxy);
	gantry_proxy_put(s->proxy);
	CHECK_OK(s->dev->ops->stream_destroy(s->dev, s->stream));
	CHECK_OK(s->dev->ops->free(s->dev, s->eventcounts));
	CHECK_OK(s->dev->ops->free_mapped(s->dev, s->host));
	gantry_device_close(s->dev);
}

static inline int side_has(const struct side *s, int proto)
{
	return s->c.conn.buffs[proto] != NULL;
}

static inline void side_append(struct side *s, uint64_t bytes, uint64_t step, int proto, int ptr)
{
	struct gantry_proxy_op *op = NULL;

	CHECK_OK(gantry_proxy_ops_get(s->proxy, 1, &op));
	op->conn = s->c.proxy;
	op->bytes = bytes;
	op->step_bytes = step;
	op->nsteps = bytes ? (bytes + step - 1) / step : 1;
	op->slice_steps = op->chunk_steps = 1;
	op->proto = (uint8_t)proto;
	op->ptr = (uint8_t)ptr;
	op->exact = 1;
	gantry_proxy_append(s->proxy, op, op);
}

/* Launches one transfer; place: buf as the other end sees it. A lost wake-up shows as a hang. */
static inline void side_start_at(struct side *s, char *buf, uint64_t place, uint64_t bytes, int proto, int ptr)
{
	struct gantry_p2p_args args = {.xfers = &s->seen->xfer, .first = s->seen->first, .result = &s->seen->result};
	struct gantry_launch launch = {
		.kernel = &gantry_kernel_p2p, .blocks = 1, .args = &args, .args_size = sizeof(args)};
	uint64_t step = s->c.conn.step_bytes[bytes ? proto : GANTRY_PROTO_SIMPLE];

	if (ptr && !s->c.max_step)
		step = 1 << 18;
	s->host->xfer = (struct gantry_xfer){.conn = &s->seen->conn,
					     .buf = buf,
					     .bytes = bytes,
					     .step_bytes = step,
					     .place = place,
					     .send = (uint8_t)s->c.send,
					     .proto = (uint8_t)proto,
					     .ptr = (uint8_t)ptr};
	s->host->first[1] = 1;
	s->host->result = GANTRY_OK;
	if (s->c.peer_notifies)
		launch.eventcounts = &s->eventcounts[2];
	if (s->c.proxy)
		side_append(s, bytes, step, proto, ptr);
	CHECK_OK(s->dev->ops->launch(s->dev, s->stream, &launch));
}

static inline void side_start(struct side *s, char *buf, uint64_t bytes, int proto, int ptr)
{
	side_start_at(s, buf, (uint64_t)(uintptr_t)buf, bytes, proto, ptr);
}

static inline void side_finish(struct side *s)
{
	CHECK_OK(s->dev->ops->stream_sync(s->dev, s->stream));
	CHECK_OK(s->host->result);
	WAIT_WHILE (gantry_proxy_group_pending(s->group))
		usleep(100);
	CHECK_OK(gantry_proxy_group_error(s->group));
}

/* Patterns in memory of the device. */
static inline void put_bytes(struct gantry_device *dev, char *to, uint64_t n, uint64_t seed)
{
	FREED char *host = malloc(n + 1);

	CHECK(host);
	pattern_fill(host, n, seed);
	CHECK_OK(dev->ops->copy(dev, to, host, n));
}
static inline void check_bytes(struct gantry_device *dev, const char *from, uint64_t n, uint64_t seed)
{
	FREED char *host = malloc(n + 1);

	CHECK(host);
	CHECK_OK(dev->ops->copy(dev, host, from, n));
	CHECK_PATTERN(host, n, seed);
}

#endif
