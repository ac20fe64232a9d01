/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices and chunks of more than one step over proxied transports: three ranks in a ring, channels of their own, each
 * run by the primitives of k_prim.h on a thread, over real connections with real proxies. Operations have other slices,
 * chunks and protocols than those before them, so there are gaps between them, and their sizes follow from nothing that
 * the proxies know.
 */
#include "device/k_prim.h"

#include "device/device.h"
#include "proxy/proxy.h"
#include "test.h"
#include "transport/transport.h"

enum { RANKS = 3, CHANNELS_MOST = 3, OPS_MOST = 24, ELEMENTS = 1 << 19 };

/* An all-reduce of `count` numbers. */
struct op {
	uint64_t count;
	uint32_t slice, chunk; /* steps */
	uint32_t proto;
};

struct end {
	struct gantry_connector c;
	struct gantry_connect_info info;
	struct gantry_conn_state state;
};

/* What one block of one rank has. */
struct block {
	int rank, channel;
	struct end tx, rx;
	struct gantry_eventcount *eventcount;
	uint32_t *data;
	uint32_t result;
	int from, to; /* operations that it runs */
	uint64_t ids; /* of operations so far */
	pthread_t thread;
};

static struct gantry_device *device;
static struct gantry_proxy *proxy;
static struct gantry_proxy_group *group;
static struct gantry_peer_info infos[RANKS];
static struct block blocks[RANKS][CHANNELS_MOST];
static int nchannels, traffic_class;
static struct op ops[OPS_MOST];
static int nops;
static uint32_t abort_flag;
static struct gantry_eventcount *eventcounts;
static struct gantry_ipc_handle eventcounts_handle;

static uint32_t value(int rank, int channel, uint64_t i)
{
	return (uint32_t)(i * 2654435761u) >> 3 ^ (uint32_t)(rank * 7 + channel * 31);
}

/* ---- the ring ---- */

/* Which part of an iteration is the k-th that a rank sends; it receives what the rank before it sends. */
static uint64_t part_sent(int rank, int k)
{
	return (uint64_t)((rank - k + 2 * RANKS) % RANKS);
}

/* Elements of part c of the iteration that begins with element `at`, and where it begins. */
static uint64_t part_of(const struct op *op, uint64_t at, uint64_t most, uint64_t c, uint64_t *ret_from)
{
	*ret_from = at + c * most;
	if (*ret_from >= op->count)
		return 0;
	return op->count - *ret_from < most ? op->count - *ret_from : most;
}

/* Steps that a rank's operation takes on the connection that it sends on. */
static uint64_t steps_sent(const struct op *op, const struct gantry_conn *conn, int rank)
{
	uint32_t slice_steps = op->proto == GANTRY_PROTO_SIMPLE ? op->slice : 1;
	uint64_t slice = (uint64_t)conn->step_bytes[op->proto] * slice_steps / sizeof(uint32_t), from;
	uint64_t most = slice * (op->chunk / slice_steps), slices = 0;

	for (uint64_t at = 0; at < op->count; at += RANKS * most)
		for (int k = 0; k < 2 * RANKS - 2; k++)
			slices += (part_of(op, at, most, part_sent(rank, k), &from) + slice - 1) / slice;
	return slices * slice_steps;
}

static uint32_t run_op(struct block *b, const struct op *op, uint64_t first)
{
	struct gantry_conn *recv = &b->rx.c.conn, *send = &b->tx.c.conn;
	struct dev_prims p = {.id = ++b->ids, .proto = op->proto, .type = GANTRY_TYPE_UINT32, .op = GANTRY_OP_SUM};
	int before = (b->rank + RANKS - 1) % RANKS;
	uint64_t chunk;

	dev_prims_init(&p, send->step_bytes[op->proto], op->slice, op->chunk);
	chunk = p.error ? 1 : p.slice * (op->chunk / p.slice_steps);
	for (uint64_t at = 0; at < op->count && !p.error; at += RANKS * chunk) {
		for (int k = -1; k < 2 * RANKS - 2; k++) {
			uint64_t from,
				n = part_of(op, at, chunk, part_sent(k < 0 ? b->rank : before, k < 0 ? 0 : k), &from);
			uint32_t what = k < 0		    ? PRIM_IN | PRIM_SEND
					: k < RANKS - 2	    ? PRIM_IN | PRIM_RECV | PRIM_SEND
					: k == RANKS - 2    ? PRIM_IN | PRIM_RECV | PRIM_OUT | PRIM_SEND
					: k < 2 * RANKS - 3 ? PRIM_RECV | PRIM_OUT | PRIM_SEND
							    : PRIM_RECV | PRIM_OUT;
			struct prim_slice s = {.what = what,
					       .last = k == RANKS - 2,
					       .nrecv = what & PRIM_RECV ? 1 : 0,
					       .nsend = what & PRIM_SEND ? 1 : 0,
					       .recv = &recv,
					       .send = &send,
					       .in = (const char *)(b->data + first + from),
					       .out = (char *)(b->data + first + from),
					       .count = n};

			dev_prims_move(&p, &s);
		}
	}
	return p.error;
}

static void *block_main(void *arg)
{
	struct block *b = arg;
	uint64_t first = 0;

	dev_self = (struct dev_thread){
		.lanes = 1, .blocks = 1, .abort = &abort_flag, .eventcount = b->eventcount, .team = NULL};
	for (int i = 0; i < b->to && !b->result; first += ops[i++].count)
		if (i >= b->from)
			b->result = run_op(b, &ops[i], first);
	return NULL;
}

static void append(struct end *e, const struct op *op, int sender, int id)
{
	uint64_t steps = steps_sent(op, &e->c.conn, sender);
	struct gantry_proxy_op *p = NULL;

	if (!steps) /* a part of the operation that is not there leaves no trace */
		return;
	CHECK_OK(gantry_proxy_ops_get(proxy, 1, &p));
	p->conn = e->c.proxy;
	p->step_bytes = e->c.conn.step_bytes[op->proto];
	p->nsteps = steps;
	p->slice_steps = op->proto == GANTRY_PROTO_SIMPLE ? op->slice : 1;
	p->chunk_steps = op->chunk;
	p->proto = (uint8_t)op->proto;
	p->id = (uint32_t)id;
	gantry_proxy_append(proxy, p, p);
}

static void append_all(int i)
{
	for (int r = 0; r < RANKS; r++) {
		for (int ch = 0; ch < nchannels; ch++) {
			append(&blocks[r][ch].tx, &ops[i], r, i + 1);
			append(&blocks[r][ch].rx, &ops[i], (r + RANKS - 1) % RANKS, i + 1);
		}
	}
}

static void check_data(const struct block *b)
{
	uint64_t first = 0;

	for (int i = 0; i < nops; first += ops[i++].count) {
		for (uint64_t e = first; e < first + ops[i].count; e++) {
			uint32_t sum = 0;

			for (int r = 0; r < RANKS; r++)
				sum += value(r, b->channel, e);
			if (b->data[e] != sum)
				TEST_FAIL("rank %d, channel %d, operation %d, element %" PRIu64 " is %u, not %u",
					  b->rank, b->channel, i, e - first, b->data[e], sum);
		}
	}
}

static void put_data(void)
{
	for (int r = 0; r < RANKS; r++) {
		for (int ch = 0; ch < nchannels; ch++) {
			for (uint64_t i = 0; i < ELEMENTS; i++)
				blocks[r][ch].data[i] = value(r, ch, i);
		}
	}
}

/* The kernels of channels [first, end). */
static void start_blocks(int first, int end, int from, int to)
{
	for (int i = RANKS * first; i < RANKS * end; i++) {
		struct block *b = &blocks[i % RANKS][i / RANKS];

		b->from = from;
		b->to = to;
		CHECK_EQ(pthread_create(&b->thread, NULL, block_main, b), 0);
	}
}

static void join_blocks(int first, int end)
{
	for (int i = RANKS * first; i < RANKS * end; i++) {
		struct block *b = &blocks[i % RANKS][i / RANKS];

		pthread_join(b->thread, NULL);
		CHECK_OK(b->result);
	}
}

static void finish_ops(void)
{
	WAIT_WHILE (gantry_proxy_group_pending(group))
		usleep(100);
	CHECK_OK(gantry_proxy_group_error(group));
	for (int i = 0; i < RANKS * nchannels; i++)
		check_data(&blocks[i % RANKS][i / RANKS]);
}

/* All operations; early: the proxies know of all of them before the kernels begin, else of each a little later. */
static void run_ops(int early)
{
	put_data();
	for (int i = 0; early && i < nops; i++)
		append_all(i);
	start_blocks(0, nchannels, 0, nops);
	for (int i = 0; !early && i < nops; i++) {
		append_all(i);
		usleep(500);
	}
	join_blocks(0, nchannels);
	finish_ops();
}

/* The same, one channel after the other: those that wait hold what space they can get, and nobody may need it. */
static void run_in_turn(int last_first)
{
	put_data();
	for (int i = 0; i < nops; i++) {
		append_all(i);
		for (int k = 0; k < nchannels; k++) {
			int ch = last_first ? nchannels - 1 - k : k;

			usleep(2000); /* until the proxies have given out what they can */
			start_blocks(ch, ch + 1, i, i + 1);
			join_blocks(ch, ch + 1);
		}
	}
	finish_ops();
}

/* ---- connections ---- */

static void end_open(struct end *e, const struct gantry_transport *t, int me, int peer, int channel, int send)
{
	struct block *b = &blocks[me][channel];

	memset(e, 0, sizeof(*e));
	e->c = (struct gantry_connector){.transport = t,
					 .device = device,
					 .me = &infos[me],
					 .peer = &infos[peer],
					 .comm_id = 4711,
					 .send = send,
					 .channel = channel,
					 .nchannels = nchannels,
					 .nranks = RANKS,
					 .traffic_class = traffic_class,
					 .eventcount = b->eventcount,
					 .eventcount_handle = &eventcounts_handle,
					 .eventcount_offset = (uint64_t)((char *)b->eventcount - (char *)eventcounts),
					 .proxy_eventcount = gantry_proxy_eventcount(proxy),
					 .state = &e->state};
	CHECK_OK(gantry_proxy_conn_create(proxy, group, &e->c, &e->c.proxy));
	CHECK_OK((send ? t->send : t->recv)->proxy_setup(&e->c));
	CHECK_OK((send ? t->send : t->recv)->setup(&e->c, &e->info));
}

static gantry_result end_connect(struct end *e, const struct end *peer)
{
	const struct gantry_transport_side *side = e->c.send ? e->c.transport->send : e->c.transport->recv;

	if (e->c.conn.slots)
		return GANTRY_OK;
	TRY_NOW(side->connect(&e->c, &peer->info));
	return side->proxy_connect(&e->c);
}

static void world_open(const struct gantry_transport *t, int channels)
{
	struct gantry_proxy_group_config config = {.abort = &abort_flag};
	int waits;

	nchannels = channels;
	CHECK_OK(gantry_proxy_group_create(proxy, &config, &group));
	for (int i = 0; i < RANKS * nchannels; i++) {
		struct block *b = &blocks[i % RANKS][i / RANKS];
		uint32_t *data = b->data;

		*b = (struct block){
			.rank = i % RANKS, .channel = i / RANKS, .eventcount = &eventcounts[i], .data = data};
		if (!data)
			b->data = malloc(ELEMENTS * sizeof(*data));
		CHECK(b->data);
		end_open(&b->tx, t, b->rank, (b->rank + 1) % RANKS, b->channel, 1);
		end_open(&b->rx, t, b->rank, (b->rank + RANKS - 1) % RANKS, b->channel, 0);
	}
	do {
		waits = 0;
		for (int i = 0; i < RANKS * nchannels; i++) {
			struct block *b = &blocks[i % RANKS][i / RANKS];
			struct block *next = &blocks[(b->rank + 1) % RANKS][b->channel];
			gantry_result s = end_connect(&b->tx, &next->rx), v = end_connect(&next->rx, &b->tx);

			if (s != GANTRY_AGAIN)
				CHECK_OK(s);
			if (v != GANTRY_AGAIN)
				CHECK_OK(v);
			waits += s == GANTRY_AGAIN || v == GANTRY_AGAIN;
		}
		usleep(100);
	} while (waits);
}

/* Sockets of this process that have that IP_TOS. */
static int count_tos(int tos)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++) {
		int is = -1, tcp = 0;
		socklen_t size = sizeof(is), type_size = sizeof(tcp);

		if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &tcp, &type_size) == 0 && tcp == IPPROTO_TCP &&
		    getsockopt(fd, IPPROTO_IP, IP_TOS, &is, &size) == 0)
			n += is == tos;
	}
	return n;
}

static void world_close(void)
{
	gantry_proxy_group_destroy(group);
	for (int i = 0; i < 2 * RANKS * nchannels; i++) {
		struct block *b = &blocks[i / 2 % RANKS][i / 2 / RANKS];
		struct gantry_connector *c = i % 2 ? &b->tx.c : &b->rx.c;
		const struct gantry_transport_side *side = c->send ? c->transport->send : c->transport->recv;

		side->proxy_free(c);
		side->free(c);
		gantry_proxy_conn_destroy(c->proxy);
	}
}

/* ---- what is run ---- */

static void add(uint64_t count, uint32_t slice, uint32_t chunk, uint32_t proto)
{
	uint64_t sum = count;

	for (int i = 0; i < nops; i++)
		sum += ops[i].count;
	CHECK(sum <= ELEMENTS && nops < OPS_MOST);
	ops[nops++] = (struct op){.count = count, .slice = slice, .chunk = chunk, .proto = proto};
}

/* Steps of 4 KiB: 1024 elements. Chunks are at most half a ring, because all ranks send before they receive. */
static void plan(int lines)
{
	nops = 0;
	add(5000, 2, 4, GANTRY_PROTO_SIMPLE);
	add(1, 1, 1, GANTRY_PROTO_SIMPLE);
	add(20000, 4, 4, GANTRY_PROTO_SIMPLE); /* begins behind a gap of three */
	add(3, 1, 4, lines ? GANTRY_PROTO_LL : GANTRY_PROTO_SIMPLE);
	add(12288, 2, 2, GANTRY_PROTO_SIMPLE);
	add(7001, 1, 4, GANTRY_PROTO_SIMPLE);
	add(2100, 2, 4, lines ? GANTRY_PROTO_LL128 : GANTRY_PROTO_SIMPLE); /* a slice is a step, whatever is said */
	add(9000, 2, 4, GANTRY_PROTO_SIMPLE);
	add(513, 1, 1, lines ? GANTRY_PROTO_LL : GANTRY_PROTO_SIMPLE);
	add(1024, 4, 4, GANTRY_PROTO_SIMPLE);
	/* More than the network sends before receives are posted. */
	add(150000, 1, 1, lines ? GANTRY_PROTO_LL : GANTRY_PROTO_SIMPLE);
	add(150001, 2, 4, GANTRY_PROTO_SIMPLE);
}

static void run_world(const struct gantry_transport *t, int channels, int lines)
{
	CASE("%s, channels: %d", t->name, channels);
	plan(lines);
	world_open(t, channels);
	for (int i = 0; i < (SANITIZED ? 2 : 4); i++)
		run_ops(i % 2);
	for (int i = 0; channels > 1 && i < 2; i++)
		run_in_turn(i);
	world_close();
}

/* Steps by mode on all sending ends. */
static uint64_t count_steps(uint32_t mode)
{
	uint64_t n = 0;

	for (int i = 0; i < RANKS * nchannels; i++)
		n += blocks[i % RANKS][i / RANKS].tx.state.counts.steps[GANTRY_PROTO_SIMPLE][mode];
	return n;
}

TEST(net_ring)
{
	set_params("GANTRY_NET_BUFFERS", "ring");
	for (int ch = 1; ch <= CHANNELS_MOST; ch++) {
		run_world(&gantry_transport_net, ch, 1);
		CHECK(count_steps(GANTRY_MODE_NORMAL) > 0);
		CHECK_EQ(count_steps(GANTRY_MODE_OFFSET), 0);
	}
}

TEST(net_pool)
{
	struct gantry_net_counts before, after;

	set_params("GANTRY_NET_BUFFERS", "pool");
	for (int ch = 1; ch <= CHANNELS_MOST; ch++) {
		gantry_transport_net_counts(&before);
		run_world(&gantry_transport_net, ch, 1);
		gantry_transport_net_counts(&after);
		CHECK(count_steps(GANTRY_MODE_OFFSET) > 0);
		CHECK_EQ(count_steps(GANTRY_MODE_NORMAL), 0);
		CHECK(after.pool_pieces > before.pool_pieces);
		CHECK(after.pool_shared > before.pool_shared);
		CHECK_EQ(after.pool_mixed > before.pool_mixed, ch > 1);
		CHECK_EQ(after.grouped, before.grouped); /* they would wait for each other */
	}
}

TEST(net_traffic_class)
{
	CHECK_EQ(count_tos(0x48), 0);
	traffic_class = 0x48;
	nops = 0;
	add(5000, 2, 4, GANTRY_PROTO_SIMPLE);
	world_open(&gantry_transport_net, 1);
	run_ops(1);

	/* A session has two ends of a control lane and of a bulk lane. The ranks are one process, so a connection that is
	 * slow to start may take the free direction of the session before it: two sessions at least carry the three. */
	UNTIL(count_tos(0x48) >= 2 * 2 * (RANKS + 1) / 2);
	world_close();
	traffic_class = 0;
}

TEST(shm_copied)
{
	set_params("GANTRY_SHM_COPY", "both");
	for (int ch = 1; ch <= 2; ch++)
		run_world(&gantry_transport_shm, ch, 0);
}

void tests_begin(void)
{
	void *p = NULL;

	CHECK_OK(gantry_params_load(0));
	set_params("GANTRY_NET_STEP", "4k", "GANTRY_SHM_STEP", "4k");
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &device));
	CHECK_OK(gantry_proxy_get(device, &proxy));
	CHECK_OK(device->ops->alloc(device, 4096, &p));
	eventcounts = p;
	CHECK_OK(device->ops->ipc_export(device, p, 4096, &eventcounts_handle));
	for (int r = 0; r < RANKS; r++)
		infos[r] = (struct gantry_peer_info){.rank = r,
						     .device_kind = GANTRY_DEVICE_HOST,
						     .sleeps = 1,
						     .host = 77,
						     .process = 1,
						     .user = getuid(),
						     .host_name = "here"};
}

void tests_end(void)
{
	gantry_proxy_put(proxy);
	for (int i = 0; i < RANKS * CHANNELS_MOST; i++)
		free(blocks[i % RANKS][i / RANKS].data);
	CHECK_OK(device->ops->free(device, eventcounts));
	gantry_device_close(device);
}
