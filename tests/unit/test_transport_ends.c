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
static void check_pair(const struct gantry_transport *t, int proxied, int shares)
{
	static struct side tx, rx;
	int fds = held(HELD_FDS), maps = count_maps();
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);

	side_open(&tx, t, 1, a, b);
	side_open(&rx, t, 0, b, a);
	CHECK_EQ(tx.c.proxy != NULL, proxied);
	CHECK_EQ(rx.c.proxy != NULL, proxied);
	connect_both(&tx, &rx);
	CHECK_EQ(tx.c.sharing, on_gpu() && t == &gantry_transport_shm ? 0 : shares);
	CHECK_EQ(tx.c.peer_notifies, device->sleeps);
	CHECK_EQ(rx.c.peer_notifies, device->sleeps);
	CHECK_EQ(tx.c.max_step != 0, proxied);
	CHECK_EQ(!!(tx.c.conn.flags & GANTRY_CONN_PROXIED), proxied);
	transfer_all(&tx, &rx);
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
	check_pair(&gantry_transport_p2p, 0, 1);
	set_params("GANTRY_P2P_STEP", "5000"); /* rounded up to 8192 */
	check_pair(&gantry_transport_p2p, 0, 1);
	set_params("GANTRY_P2P_STEP", "0");
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

static void check_two_gpus(void)
{
	static struct side tx, rx;
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);
	struct gantry_device_ops ops = *device->ops;

	snprintf(a.bus_id, sizeof(a.bus_id), "0000:01:00.0");
	snprintf(b.bus_id, sizeof(b.bus_id), "0000:02:00.0");
	real_ops = device->ops;
	ops.copy = copy_between;
	ops.free = count_free;
	frees = 0;
	for (drops = 0; drops < 2; drops++) {
		ngpu_copies = 0;
		side_open(&tx, &gantry_transport_p2p, 1, a, b);
		side_open(&rx, &gantry_transport_p2p, 0, b, a);
		device->ops = &ops;
		if (drops) {
			CHECK_ERROR(side_connect(&tx, &rx.info), GANTRY_ERR_UNREACHABLE,
				    "what GPU 0000:01:00.0 (rank 0) writes to memory of GPU 0000:02:00.0 (rank 1) does "
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
}

static void check_shm(void)
{
	for (int makes = 0; makes < 2; makes++) {
		set_params("GANTRY_SHM_LOCALITY", makes ? "recv" : "send", "GANTRY_SHM_STEP", makes ? "128k" : "12k");
		check_pair(&gantry_transport_shm, 0, 1);
	}
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

/* Settings are each rank's own: the step is that of the end that makes the segment; both must agree on which it is. */
static void check_mixed(void)
{
	static struct side tx, rx;
	struct gantry_peer_info a = info_of(0, 1), b = info_of(1, 1);

	side_open(&tx, &gantry_transport_shm, 1, a, b);
	set_params("GANTRY_SHM_STEP", "8k"); /* the receiver makes it, so this counts */
	side_open(&rx, &gantry_transport_shm, 0, b, a);
	connect_both(&tx, &rx);
	CHECK_EQ(tx.c.conn.step_bytes[GANTRY_PROTO_SIMPLE], 8192);
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
	check_pair(mailbox, 1, 0);
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
		RUN(check_two_gpus());
	}
	RUN(check_shm());
	RUN(check_sparse());
	RUN(check_mixed());
	if (!on_gpu()) { /* these look at things with the CPU */
		RUN(check_gone(&gantry_transport_p2p));
		RUN(check_gone(&gantry_transport_shm));
		RUN(check_hasty(&gantry_transport_p2p));
		RUN(check_hasty(&gantry_transport_shm));
		RUN(check_library());
	}
	CHECK_OK(device->ops->free(device, source));
	CHECK_OK(device->ops->free(device, target));
	gantry_device_close(device);
	return 0;
}
