/* SPDX-License-Identifier: Apache-2.0 */
/*
 * p2p, shm and a transport from a library, connected within one process and used by the kernels that would use them:
 * every setting, protocol and mode, sizes around the steps. Across processes: test_transport_fork.c. On a GPU:
 * tests/gpu/transport.sh.
 */
#include <limits.h>

#include "transport_util.h"

enum { MAX_BYTES = (3 << 20) + 77 };

static struct gantry_device *device;
static char *source, *target; /* memory of the device */

/* The two in turn, as two threads of one process would be. */
static void connect_both(struct side *tx, struct side *rx)
{
	gantry_result a = GANTRY_AGAIN, b = GANTRY_AGAIN;

	WAIT_WHILE (a == GANTRY_AGAIN || b == GANTRY_AGAIN) {
		if (a == GANTRY_AGAIN)
			a = side_connect(tx, &rx->info);
		if (b == GANTRY_AGAIN)
			b = side_connect(rx, &tx->info);
	}
	CHECK_OK(a);
	CHECK_OK(b);
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		CHECK_EQ(side_has(tx, p), side_has(rx, p)); /* or they would choose differently */
		CHECK_EQ(tx->c.conn.step_bytes[p], rx->c.conn.step_bytes[p]);
	}
	CHECK_EQ(tx->c.max_step, rx->c.max_step);
	CHECK_EQ(tx->c.conn.flags & GANTRY_CONN_SEND, GANTRY_CONN_SEND);
	CHECK_EQ(rx->c.conn.flags & GANTRY_CONN_SEND, 0);
}

static void transfer(struct side *tx, struct side *rx, uint64_t bytes, int proto, int send_ptr, int recv_ptr)
{
	static uint64_t seed;

	seed++;
	put_bytes(device, source, bytes, seed);
	put_bytes(device, target, bytes, seed + 1000);
	side_start(rx, target, bytes, proto, recv_ptr);
	side_start(tx, source, bytes, proto, send_ptr);
	side_finish(tx);
	side_finish(rx);
	check_bytes(device, target, bytes, seed);
}

static void transfer_all(struct side *tx, struct side *rx)
{
	static const uint64_t sizes[] = {0, 1, 4096, 8191, 65537, 131072, 300001, MAX_BYTES};
	int offers = rx->c.conn.offers != NULL;

	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (size_t i = 0; side_has(tx, p) && i < sizeof(sizes) / sizeof(*sizes); i++)
			transfer(tx, rx, p == GANTRY_PROTO_SIMPLE ? sizes[i] : sizes[i] % 70000, p, 0, 0);
	}
	EACH_ROW (i, sizes) {
		if (tx->c.sharing == GANTRY_SHARES_ADDRESSES)
			transfer(tx, rx, sizes[i], GANTRY_PROTO_SIMPLE, 1, 0);
		if (offers)
			transfer(tx, rx, sizes[i], GANTRY_PROTO_SIMPLE, 0, 1);
		if (offers && tx->c.sharing == GANTRY_SHARES_ADDRESSES)
			transfer(tx, rx, sizes[i], GANTRY_PROTO_SIMPLE, 1, 1);
	}
}

/* Connects, moves, frees, and looks for what was left behind. */
static void check_pair(const struct gantry_transport *t, int tx_proxied, int rx_proxied, int shares)
{
	static struct side tx, rx;
	int fds = held(HELD_FDS), maps = count_maps();
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);

	side_open(&tx, t, 1, a, b);
	side_open(&rx, t, 0, b, a);
	CHECK_EQ(tx.c.proxy != NULL, tx_proxied);
	CHECK_EQ(rx.c.proxy != NULL, rx_proxied);
	connect_both(&tx, &rx);
	CHECK_EQ(tx.c.sharing, on_gpu() && t == &gantry_transport_shm ? tx_proxied : shares);
	CHECK_EQ(tx.c.peer_notifies, device->sleeps);
	CHECK_EQ(rx.c.peer_notifies, device->sleeps);
	CHECK_EQ(tx.c.max_step != 0, tx_proxied || rx_proxied);
	CHECK_EQ(!!(tx.c.conn.flags & GANTRY_CONN_PROXIED), tx_proxied);
	transfer_all(&tx, &rx);
	if (tx_proxied)
		CHECK(tx.c.proxy->copies > 0 || strcmp(t->name, "mailbox") == 0);
	side_close(&tx);
	if (on_gpu()) {
		side_close(&rx);
		return;
	}
	/* Whoever is left may still store into what the other one made: the head of a sender that has long gone, say.
	 */
	__atomic_store_n(rx.c.conn.head, 12345, __ATOMIC_SEQ_CST);
	if (rx.c.conn.eventcount)
		CHECK(__atomic_load_n(&rx.c.conn.eventcount->waiting, __ATOMIC_SEQ_CST) <= 1);
	side_close(&rx);
	CHECK(held_at_most(HELD_FDS, fds));
	UNTIL(count_maps() <= maps);
}

static void check_p2p(void)
{
	check_pair(&gantry_transport_p2p, 0, 0, 1);
	set_params("GANTRY_P2P_STEP", "5000"); /* rounded up to 8192 */
	check_pair(&gantry_transport_p2p, 0, 0, 1);
	set_params("GANTRY_P2P_COPY", "on");
	check_pair(&gantry_transport_p2p, 1, 0, 1);
	set_params("GANTRY_P2P_STEP", "0");
	check_pair(&gantry_transport_p2p, 1, 0, 1);
	set_params("GANTRY_P2P_COPY", "off");
}

/* Two GPUs, which the host device plays: copies between them arrive, or are dropped. Larger ones are the test's. No memory is
 * freed while they connect: a GPU's driver would wait for all kernels first. */
static const struct gantry_device_ops *real_ops;
static int ngpu_copies, drops, frees;

static gantry_result count_free(struct gantry_device *d, void *ptr)
{
	frees++;
	return real_ops->free(d, ptr);
}

static gantry_result copy_between(struct gantry_device *d, void *to, const void *from, size_t size)
{
	uint64_t zero = 0;

	ngpu_copies++;
	return real_ops->copy(d, to, drops && ngpu_copies % 4 == 2 ? (const void *)&zero : from, size);
}

static void check_two_gpus(const char *copies)
{
	static struct side tx, rx;
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);
	struct gantry_device_ops ops = *device->ops;

	snprintf(a.bus_id, sizeof(a.bus_id), "0000:01:00.0");
	snprintf(b.bus_id, sizeof(b.bus_id), "0000:02:00.0");
	real_ops = device->ops;
	ops.copy = copy_between;
	ops.free = count_free;
	set_params("GANTRY_P2P_COPY", copies);
	frees = 0;
	for (drops = 0; drops < 2; drops++) {
		ngpu_copies = 0;
		side_open(&tx, &gantry_transport_p2p, 1, a, b);
		side_open(&rx, &gantry_transport_p2p, 0, b, a);
		device->ops = &ops;
		if (drops) {
			CHECK_ERROR(side_connect(&tx, &rx.info), GANTRY_ERR_UNREACHABLE,
				    "writes of GPU 0000:01:00.0 (rank 0) to memory of GPU 0000:02:00.0 (rank 1) do "
				    "not arrive");
			device->ops = real_ops;
		} else {
			CHECK_EQ(side_connect(&tx, &rx.info), GANTRY_AGAIN); /* until the other one has come */
			CHECK_EQ(ngpu_copies, 4);
			device->ops = real_ops;
			connect_both(&tx, &rx);
			transfer(&tx, &rx, 300001, GANTRY_PROTO_SIMPLE, 0, 0);
		}
		CHECK_EQ(frees, 0);
		side_close(&tx);
		side_close(&rx);
	}
	set_params("GANTRY_P2P_COPY", "off");
}

static void check_shm(void)
{
	static const char *const copies[] = {"off", "send", "recv", "both"};

	for (int makes = 0; makes < 2; makes++) {
		set_params("GANTRY_SHM_LOCALITY", makes ? "recv" : "send");
		for (int i = 0; i < 4; i++) {
			set_params("GANTRY_SHM_STEP", makes ? "128k" : "12k", "GANTRY_SHM_COPY", copies[i]);
			check_pair(&gantry_transport_shm, i & 1, i >> 1, 1);
		}
	}
	set_params("GANTRY_SHM_STEP", "128k", "GANTRY_SHM_COPY", "off");
}

/* Memory of a connection comes with its use: a rank that talks to hundreds has hundreds of rings of a megabyte. */
static void check_sparse(void)
{
	static struct side tx, rx;
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);
	size_t page = (size_t)sysconf(_SC_PAGESIZE), few = page > 8192 ? 8 * page : 65536;

	if (on_gpu())
		return; /* it pins the segment */
	side_open(&tx, &gantry_transport_shm, 1, a, b);
	side_open(&rx, &gantry_transport_shm, 0, b, a);
	connect_both(&tx, &rx);
	CHECK(segment_bytes() <= few);
	transfer(&tx, &rx, 8, GANTRY_PROTO_LL, 0, 0);
	transfer(&tx, &rx, 4096, GANTRY_PROTO_SIMPLE, 0, 0);
	CHECK(segment_bytes() > 0);
	CHECK(segment_bytes() <= few);
	transfer(&tx, &rx, MAX_BYTES, GANTRY_PROTO_SIMPLE, 0, 0); /* more than the ring's 8 steps of 128 KiB */
	CHECK(segment_bytes() >= 8 * 131072);
	side_close(&rx);
	side_close(&tx);
	CHECK_EQ(segment_bytes(), 0);
}

/* Settings are each rank's own: the modes of the two ends need not be the same. */
static void check_mixed(void)
{
	static struct side tx, rx;
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);

	set_params("GANTRY_SHM_COPY", "send");
	side_open(&tx, &gantry_transport_shm, 1, a, b);
	set_params("GANTRY_SHM_COPY", "off");
	set_params("GANTRY_SHM_STEP", "8k"); /* the receiver makes it, so this counts */
	side_open(&rx, &gantry_transport_shm, 0, b, a);
	connect_both(&tx, &rx);
	CHECK_EQ(tx.c.max_step, 8192);
	CHECK_EQ(side_has(&rx, GANTRY_PROTO_LL), 0);
	transfer_all(&tx, &rx);
	side_close(&rx);
	side_close(&tx);
	set_params("GANTRY_SHM_STEP", "128k");

	set_params("GANTRY_SHM_LOCALITY", "send");
	side_open(&tx, &gantry_transport_shm, 1, a, b);
	set_params("GANTRY_SHM_LOCALITY", "recv");
	side_open(&rx, &gantry_transport_shm, 0, b, a);
	CHECK_ERROR(side_connect(&rx, &tx.info), GANTRY_ERR_SETTING,
		    "GANTRY_SHM_LOCALITY is recv on rank 1 and send on rank 0");
	side_close(&rx);
	side_close(&tx);
}

/* The other end is freed before this one connects, or talks of something else. */
static void check_gone(const struct gantry_transport *t)
{
	static struct side tx, rx;
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);
	struct gantry_connect_info junk;
	int fds = held(HELD_FDS), maps = count_maps();

	memset(&junk, 0x5a, sizeof(junk));
	side_open(&tx, t, 1, a, b);
	side_open(&rx, t, 0, b, a);
	CHECK_EQ(side_connect(&tx, &junk), GANTRY_ERR_PROTOCOL);
	side_close(&rx);
	CHECK_EQ(side_connect(&tx, &rx.info), GANTRY_ERR_PEER_LOST);
	side_close(&tx);
	side_open(&tx, t, 1, a, b);
	side_close(&tx);
	CHECK(held_at_most(HELD_FDS, fds));
	UNTIL(count_maps() <= maps);
}

/* Two threads; whoever is connected frees its end at once, however far the other one is. */
static void *connect_and_go(void *arg)
{
	struct side **both = arg;

	CHECK_OK(side_connect_wait(both[0], &both[1]->info));
	side_close(both[0]);
	return NULL;
}

static void check_hasty(const struct gantry_transport *t)
{
	static struct side tx, rx;
	struct side *there[2] = {&tx, &rx}, *here[2] = {&rx, &tx};
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);
	int maps = count_maps();
	pthread_t thread;

	for (int round = 0; round < 20; round++) {
		side_open(&tx, t, 1, a, b);
		side_open(&rx, t, 0, b, a);
		CHECK_EQ(pthread_create(&thread, NULL, connect_and_go, there), 0);
		connect_and_go(here);
		pthread_join(thread, NULL);
	}
	UNTIL(count_maps() <= maps);
}

/* Slices of two steps and chunks of four, with gaps between operations: by hand, as there is no such kernel here. */
static void check_slices(void)
{
	static struct side tx, rx;
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);
	struct gantry_proxy_op *op;
	uint64_t base = 0, step;

	set_params("GANTRY_SHM_COPY", "both", "GANTRY_SHM_STEP", "8k");
	side_open(&tx, &gantry_transport_shm, 1, a, b);
	side_open(&rx, &gantry_transport_shm, 0, b, a);
	connect_both(&tx, &rx);
	for (int n = 0; n < 3; n++) {
		struct side *sides[2] = {&tx, &rx};

		for (int i = 0; i < 2; i++) {
			CHECK_OK(gantry_proxy_ops_get(sides[i]->proxy, 1, &op));
			op->conn = sides[i]->c.proxy;
			op->nsteps = 6; /* 0..5, 8..13, 16..21 */
			op->step_bytes = 8192;
			op->slice_steps = 2;
			op->chunk_steps = 4;
			gantry_proxy_append(sides[i]->proxy, op, op);
		}
		for (step = base; step < base + 6; step += 2) {
			struct gantry_fifo *from = tx.c.proxy->fifo, *to = rx.c.proxy->fifo;
			uint64_t slot = step % GANTRY_STEPS, meta;

			WAIT_WHILE (__atomic_load_n(&from->head, __ATOMIC_SEQ_CST) + GANTRY_STEPS < step + 2)
				;
			pattern_fill(tx.c.conn.buffs[0] + slot * 8192, 16000, step);
			__atomic_store_n(&from->slots[slot].meta, gantry_slot_meta(step, GANTRY_MODE_NORMAL, 16000),
					 __ATOMIC_SEQ_CST);
			WAIT_WHILE (
				!gantry_slot_is(meta = __atomic_load_n(&to->slots[slot].meta, __ATOMIC_SEQ_CST), step))
				;
			CHECK_EQ(gantry_slot_size(meta), 16000);
			CHECK_PATTERN(rx.c.conn.buffs[0] + slot * 8192, 16000, step);
			__atomic_store_n(&to->head, step + 2, __ATOMIC_SEQ_CST);
		}
		base += 8;
	}
	while (gantry_proxy_group_pending(tx.group) || gantry_proxy_group_pending(rx.group))
		usleep(100);
	CHECK_OK(gantry_proxy_group_error(rx.group));
	side_close(&tx);
	side_close(&rx);
	set_params("GANTRY_SHM_COPY", "off", "GANTRY_SHM_STEP", "128k");
}

/* Freed while steps are stuck half-way: it ends, and nothing is left. */
static void check_early_end(void)
{
	static struct side tx, rx;
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);
	int fds = held(HELD_FDS), maps = count_maps();

	set_params("GANTRY_SHM_COPY", "both");
	side_open(&tx, &gantry_transport_shm, 1, a, b);
	side_open(&rx, &gantry_transport_shm, 0, b, a);
	connect_both(&tx, &rx);
	side_append(&rx, MAX_BYTES, rx.c.max_step, GANTRY_PROTO_SIMPLE, 0);
	side_append(&tx, MAX_BYTES, tx.c.max_step, GANTRY_PROTO_SIMPLE, 1);
	for (uint64_t s = 0; s < GANTRY_STEPS; s++) {
		struct gantry_slot *slot = &tx.c.proxy->fifo->slots[s];

		__atomic_store_n(&slot->where, gantry_slot_where(s, (uint64_t)(uintptr_t)source), __ATOMIC_SEQ_CST);
		__atomic_store_n(&slot->meta, gantry_slot_meta(s, GANTRY_MODE_PTR, tx.c.max_step), __ATOMIC_SEQ_CST);
	}
	side_close(&tx);
	side_close(&rx);
	CHECK(held_at_most(HELD_FDS, fds));
	UNTIL(count_maps() <= maps);
	set_params("GANTRY_SHM_COPY", "off");
}

static void check_library(void)
{
	const struct gantry_peer_info me = {.rank = 0}, peer = {.rank = 1}; /* both on one host device */
	const struct gantry_transport *mailbox;
	const char *build = getenv("BUILD_DIR");
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/transports/libmailbox.so", build ? build : ".");
	if (access(path, R_OK) != 0) {
		printf("no %s: set BUILD_DIR to the build folder; it is not tested\n", path);
		return;
	}
	set_params("GANTRY_TRANSPORT_LIBS", path);
	CHECK_OK(gantry_transport_load_libs());
	CHECK_OK(gantry_transport_choose(&me, &peer, "mailbox", &mailbox));
	check_pair(mailbox, 1, 1, 0);
}

int main(void)
{
	void *p = NULL, *q = NULL;

	CHECK_OK(gantry_params_load(0));
	device = open_device();
	CHECK_OK(device->ops->alloc(device, MAX_BYTES, &p));
	CHECK_OK(device->ops->alloc(device, MAX_BYTES, &q));
	source = p;
	target = q;
	RUN(check_p2p());
	if (!on_gpu()) {
		RUN(check_two_gpus("off"));
		RUN(check_two_gpus("on"));
	}
	RUN(check_shm());
	RUN(check_sparse());
	RUN(check_mixed());
	if (!on_gpu()) { /* these look at things with the CPU */
		RUN(check_gone(&gantry_transport_p2p));
		set_params("GANTRY_P2P_COPY", "on");
		RUN(check_gone(&gantry_transport_p2p));
		set_params("GANTRY_P2P_COPY", "off");
		RUN(check_gone(&gantry_transport_shm));
		RUN(check_hasty(&gantry_transport_p2p));
		RUN(check_hasty(&gantry_transport_shm));
		set_params("GANTRY_P2P_COPY", "on");
		RUN(check_hasty(&gantry_transport_p2p));
		set_params("GANTRY_P2P_COPY", "off");
		RUN(check_slices());
		RUN(check_early_end());
		RUN(check_library());
	}
	CHECK_OK(device->ops->free(device, source));
	CHECK_OK(device->ops->free(device, target));
	gantry_device_close(device);
	return 0;
}
