/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chaos_load KIND NETNS_A NETNS_B RAILS FOLDER: two processes, one in each network namespace, that exchange numbered
 * messages in both directions over rail0, rail1, ... until they are killed or something fails.
 *
 *   net         messages of many sizes over one device that fuses the rails
 *   sendrecv    a communicator: gantry_send and gantry_recv in groups
 *   all_reduce  a communicator: sums of numbers that depend on rank, place and round
 *   rx          the pipeline, over rail0 alone
 *
 * Every byte is checked, and the first eight of a message are its number: one that is lost or comes twice is told from a
 * damaged one. The file FOLDER/state is struct load_state, for whoever does things to the network meanwhile. A side that
 * has an error waits for the other's, then closes everything and must have as many descriptors and threads as before.
 *
 * Bugs are planted by the environment. CHAOS_PLANT=N: the N-th piece of a message goes to the place of the one before it.
 * CHAOS_PLANT_RESUME=N: when a lane has lost its socket, the peer's count of pieces that came is taken for N more.
 *
 * wrap: send sendmsg wire_frame_decode tcp_lane_settle
 */
#include "comm_util.h"

#include <stdarg.h>

#include "common/figures.h"
#include "gantry/rx.h"
#include "net/tcp/link.h"

enum { DEPTH = 8, ROOM = 2 << 20, SUMS = 128 << 10, LOAD_ALARM_S = 3600, OTHER_MS = 60000 };

/* What chaos.py reads (and `sends_fail_until`, which it writes): all numbers have 8 bytes. */
struct load_side {
	uint64_t pid;
	uint64_t messages, bytes; /* received, and right */
	uint64_t failed_ms;	  /* release, after the rest: of the monotonic clock; 0: all is well */
	uint64_t code;
	uint64_t named; /* the error says who the peer is */
	uint64_t wrong; /* bytes or messages were wrong */
	char name[24], text[176];
};
struct load_state {
	struct load_side side[2];
	uint64_t sends_fail_until; /* ms, as failed_ms: with ENOBUFS, on both sides */
};

static struct load_state *state;
static struct load_side *mine;
static int self, nrails;
static const char *folder, *kind;

/* ---- calls that fail ---- */

ssize_t __real_send(int fd, const void *p, size_t n, int flags);
ssize_t __real_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_send(int fd, const void *p, size_t n, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);

static int fails_now(void)
{
	uint64_t until = load_relaxed(&state->sends_fail_until);

	if (!until || now_ms() >= until)
		return 0;
	errno = ENOBUFS;
	return 1;
}

ssize_t __wrap_send(int fd, const void *p, size_t n, int flags)
{
	return fails_now() ? -1 : __real_send(fd, p, n, flags);
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
	return fails_now() ? -1 : __real_sendmsg(fd, msg, flags);
}

/* ---- a bug, for those who test the campaign ---- */

static long plant, plant_resume;

gantry_result __real_wire_frame_decode(const uint8_t *in, bool crc, struct wire_frame *ret);
gantry_result __wrap_wire_frame_decode(const uint8_t *in, bool crc, struct wire_frame *ret);

gantry_result __wrap_wire_frame_decode(const uint8_t *in, bool crc, struct wire_frame *ret)
{
	gantry_result r = __real_wire_frame_decode(in, crc, ret);

	if (plant && r == GANTRY_OK && ret->kind == WIRE_DATA && ret->piece.offset >= ret->piece.length &&
	    ret->piece.length && --plant == 0)
		ret->piece.offset -= ret->piece.length;
	return r;
}

bool __real_tcp_lane_settle(struct tcp_lane *lane);
bool __wrap_tcp_lane_settle(struct tcp_lane *lane);

bool __wrap_tcp_lane_settle(struct tcp_lane *lane)
{
	struct tcp_lane_resume *r = lane->resume;
	uint64_t pieces;

	link_mu_lock(&lane->link->mu);
	pieces = r->peer_pieces + (uint64_t)plant_resume;
	if (plant_resume && pieces >= r->first && pieces <= r->given)
		r->peer_pieces = pieces;
	link_mu_unlock(&lane->link->mu);
	return __real_tcp_lane_settle(lane);
}

/* ---- messages ---- */

/* From a few bytes to one that is cut over all lanes; both sides know the size of each. */
static size_t size_of(uint64_t number)
{
	uint32_t random = (uint32_t)(random_at(number) >> 32);

	switch (number % 4) {
	case 0:
		return 8 + random % 4096;
	case 1:
		return 60000 + random % 10000;
	case 2:
		return (256 << 10) + random % (256 << 10);
	default:
		return (1 << 20) + random % (ROOM - (1 << 20));
	}
}

static size_t fill_message(uint8_t *p, uint64_t number, int from)
{
	size_t size = size_of(number);

	le_put(p, number, 8);
	perf_fill(p + 8, size - 8, 2 * number + (uint64_t)from);
	return size;
}

_Noreturn static void say_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn static void say_wrong(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(mine->text, sizeof(mine->text), format, args);
	va_end(args);
	mine->wrong = 1;
	store_release(&mine->failed_ms, now_ms());
	_exit(1);
}

static void check_message(const uint8_t *p, uint64_t size, uint64_t number, int from)
{
	uint64_t got = size >= 8 ? le_get(p, 8) : 0, wrong;

	if (size < 8 || got != number)
		say_wrong("message %llu of %llu bytes came where %llu of %zu bytes was due", (unsigned long long)got,
			  (unsigned long long)size, (unsigned long long)number, size_of(number));
	if (size != size_of(number))
		say_wrong("message %llu has %llu bytes instead of %zu", (unsigned long long)number,
			  (unsigned long long)size, size_of(number));
	wrong = perf_check(p + 8, size - 8, 2 * number + (uint64_t)from);
	if (wrong)
		say_wrong("message %llu of %llu bytes: %llu wrong bytes, the first at %llu", (unsigned long long)number,
			  (unsigned long long)size, (unsigned long long)wrong,
			  (unsigned long long)(8 + perf_first_wrong(p + 8, size - 8, 2 * number + (uint64_t)from)));
	fetch_add_release(&mine->messages, 1);
	fetch_add_release(&mine->bytes, size);
}

/* named: whether the error says who the peer is. */
static void report_error(gantry_result r, const char *text, int named)
{
	uint64_t end = now_ms() + OTHER_MS;

	snprintf(mine->name, sizeof(mine->name), "%s", gantry_result_name(r));
	snprintf(mine->text, sizeof(mine->text), "%s", text);
	mine->code = (uint64_t)r;
	mine->named = named;
	store_release(&mine->failed_ms, now_ms());
	while (!load_acquire(&state->side[!self].failed_ms) && now_ms() < end)
		sleep_ms(1);
}

static int names_peer(const char *text)
{
	char pid[32], address[32];

	snprintf(pid, sizeof(pid), "pid %d", (int)state->side[!self].pid);
	snprintf(address, sizeof(address), ".%d:", 2 - self);
	return strstr(text, pid) || strstr(text, address);
}

/* ---- net ---- */

struct net_load {
	struct pair_side *s;
	struct pair_ends e;
	void *send[DEPTH], *recv[DEPTH];
	uint64_t sent, sent_done, posted, received;
	uint8_t *out, *in;
};

static int fused_device(struct pair_side *s)
{
	struct gantry_net_vdevice v = {.ndevs = nrails};
	struct gantry_net_properties p;
	char name[16];
	int n, dev = 0;

	CHECK_OK(s->net->ops->devices(s->net, &n));
	for (int i = 0; i < nrails; i++) {
		snprintf(name, sizeof(name), "rail%d", i);
		for (v.devs[i] = 0; v.devs[i] < n; v.devs[i]++) {
			CHECK_OK(s->net->ops->get_properties(s->net, v.devs[i], &p));
			if (strcmp(p.name, name) == 0)
				break;
		}
		CHECK(v.devs[i] < n);
	}
	dev = v.devs[0];
	if (nrails > 1)
		CHECK_OK(s->net->ops->make_vdevice(s->net, &v, &dev));
	return dev;
}

static void open_net(struct net_load *l, struct pair_side *s)
{
	pair_init(s);
	s->dev = fused_device(s);
	l->s = s;
	l->out = malloc((size_t)DEPTH * ROOM);
	l->in = malloc((size_t)DEPTH * ROOM);
	CHECK(l->out && l->in);
	l->e = pair_open_ends(s, 0);
}

/* One pass over what can be posted and what is done; whether anything was. */
static gantry_result turn_net(struct net_load *l, int *ret_moved)
{
	const struct gantry_net_ops *ops = l->s->net->ops;
	struct gantry_net *net = l->s->net;
	gantry_result r = GANTRY_OK;

	if (l->sent - l->sent_done < DEPTH) {
		uint8_t *p = l->out + l->sent % DEPTH * ROOM;
		size_t size = fill_message(p, l->sent, self);

		r = ops->isend(net, l->e.send, p, size, 0, NULL, &l->send[l->sent % DEPTH]);
		if (r == GANTRY_OK && l->send[l->sent % DEPTH]) {
			l->sent++;
			*ret_moved = 1;
		}
	}
	while (r == GANTRY_OK && l->posted - l->received < DEPTH) {
		void *p = l->in + l->posted % DEPTH * ROOM;
		size_t room = ROOM;
		int tag = 0;

		r = ops->irecv(net, l->e.recv, 1, &p, &room, &tag, NULL, &l->recv[l->posted % DEPTH]);
		if (r != GANTRY_OK || !l->recv[l->posted % DEPTH])
			break;
		l->posted++;
	}
	for (int done = 1; r == GANTRY_OK && done && l->sent_done < l->sent;) {
		r = ops->test(net, l->send[l->sent_done % DEPTH], &done, NULL);
		l->sent_done += r == GANTRY_OK && done;
	}
	for (int done = 1, size = 0; r == GANTRY_OK && done && l->received < l->posted;) {
		r = ops->test(net, l->recv[l->received % DEPTH], &done, &size);
		if (r != GANTRY_OK || !done)
			break;
		*ret_moved = 1;
		check_message(l->in + l->received % DEPTH * ROOM, (uint64_t)size, l->received, !self);
		l->received++;
	}
	return r;
}

static void run_net(struct pair_side *s)
{
	struct net_load l = {0};
	gantry_result r = GANTRY_OK;
	int fds = pair_fds(), threads = pair_threads();

	open_net(&l, s);
	while (r == GANTRY_OK) {
		int moved = 0;

		r = turn_net(&l, &moved);
		if (!moved)
			sleep_ns(50000);
	}
	report_error(r, gantry_last_error(), names_peer(gantry_last_error()));
	pair_close_ends(s, &l.e);
	CHECK_OK(s->net->ops->finalize(s->net, s->ctx));
	s->ctx = NULL;
	settle(fds, threads, "after the error");
}

/* ---- communicator ---- */

static gantry_result exchange_once(struct node *me, uint64_t round)
{
	size_t size = fill_message(me->out, round, self);
	gantry_result r, end;

	memset(me->in, 0xee, size);
	CHECK_OK(gantry_group_start());
	r = gantry_send(me->out, size, GANTRY_TYPE_UINT8, !self, me->comm, me->stream);
	if (r == GANTRY_OK)
		r = gantry_recv(me->in, size, GANTRY_TYPE_UINT8, !self, me->comm, me->stream);
	end = gantry_group_end();
	return r == GANTRY_OK ? end : r;
}

static gantry_result reduce_once(struct node *me, uint64_t round)
{
	int64_t *in = (int64_t *)(void *)me->out, *out = (int64_t *)(void *)me->in;

	for (int64_t i = 0; i < SUMS; i++)
		in[i] = (self + 1) * (i + 1000003 * (int64_t)round);
	return gantry_all_reduce(in, out, SUMS, GANTRY_TYPE_INT64, GANTRY_OP_SUM, me->comm, me->stream);
}

static void check_sums(const struct node *me, uint64_t round)
{
	const int64_t *out = (const int64_t *)(const void *)me->in;

	for (int64_t i = 0; i < SUMS; i++)
		if (out[i] != 3 * (i + 1000003 * (int64_t)round))
			say_wrong("all_reduce %llu: sum %lld is %lld", (unsigned long long)round, (long long)i,
				  (long long)out[i]);
	fetch_add_release(&mine->messages, 1);
	fetch_add_release(&mine->bytes, 8 * SUMS);
}

static void run_comm(struct pair_side *s)
{
	int sums = strcmp(kind, "all_reduce") == 0, rank = -2, fds = pair_fds(), threads = pair_threads();
	gantry_result r = GANTRY_OK, sync;
	struct gantry_unique_id id;
	struct node me;
	char text[256];

	(void)s;
	id_meet(folder, "id", self == 0, &id);
	node_open(&me, &id, self, 2, "net", 1, ROOM);
	for (uint64_t round = 0; r == GANTRY_OK; round++) {
		r = sums ? reduce_once(&me, round) : exchange_once(&me, round);
		sync = gantry_stream_sync(me.dev, me.stream);
		r = r == GANTRY_OK ? sync : r;
		r = r == GANTRY_OK ? gantry_comm_error(me.comm, NULL, NULL, 0) : r;
		if (r == GANTRY_OK && sums)
			check_sums(&me, round);
		else if (r == GANTRY_OK)
			check_message(me.in, size_of(round), round, !self);
	}
	r = gantry_comm_error(me.comm, &rank, text, sizeof(text));
	report_error(r, text, rank == !self || names_peer(text) || strstr(text, "bootstrap root at "));
	gantry_comm_abort(me.comm);
	node_close(&me);
	settle(fds, threads, "after the error");
}

/* ---- pipeline ---- */

struct rx_load {
	struct gantry_rx *rx;
	struct gantry_rx_listener *listener;
	struct gantry_rx_conn *conn;
	struct gantry_rx_op *ops[2][DEPTH]; /* sends, receives */
	uint64_t posted[2], done[2];
	uint8_t *memory[2];
};

static void open_rx(struct rx_load *l, struct pair_side *s)
{
	struct gantry_rx_config config = GANTRY_RX_CONFIG_INIT;

	config.nic = "rail0";
	CHECK_OK(gantry_rx_open(&config, &l->rx));
	for (int i = 0; i < 2; i++) {
		l->memory[i] = malloc((size_t)DEPTH * ROOM);
		CHECK(l->memory[i]);
		CHECK_OK(gantry_rx_register(l->rx, l->memory[i], (size_t)DEPTH * ROOM));
	}
	if (self == 0) {
		char *address = (char *)s->shared->handle[0][0];

		CHECK_OK(gantry_rx_listen(l->rx, NULL, &l->listener));
		snprintf(address, GANTRY_NET_HANDLE_SIZE, "%s", gantry_rx_listener_address(l->listener));
		store_release(&s->shared->ready[0][0], 1);
		CHECK_OK(gantry_rx_accept(l->listener, GANTRY_WAIT_DEFAULT, &l->conn));
	} else {
		pair_wait_handle(s, 0);
		CHECK_OK(
			gantry_rx_connect(l->rx, (const char *)s->shared->handle[0][0], GANTRY_WAIT_DEFAULT, &l->conn));
	}
}

static gantry_result post_rx(struct rx_load *l, int receives)
{
	uint64_t number = l->posted[receives]++;
	uint8_t *p = l->memory[receives] + number % DEPTH * ROOM;
	struct gantry_rx_piece piece = {.base = p, .piece_bytes = ROOM, .count = 1};
	struct gantry_rx_op **op = &l->ops[receives][number % DEPTH];

	if (receives)
		return gantry_rx_recv(l->conn, &piece, 1, 7, op);
	piece.piece_bytes = fill_message(p, number, self);
	return gantry_rx_send(l->conn, &piece, 1, 7, op);
}

static gantry_result turn_rx(struct rx_load *l, int receives, int *ret_moved)
{
	struct gantry_rx_result result = GANTRY_RX_RESULT_INIT;
	uint64_t number = l->done[receives];
	struct gantry_rx_op **op = &l->ops[receives][number % DEPTH];

	if (l->posted[receives] - number < DEPTH)
		return post_rx(l, receives);
	if (gantry_rx_test(*op) != GANTRY_RX_DONE)
		return GANTRY_OK;
	CHECK_OK(gantry_rx_op_result(*op, &result));
	if (result.result != GANTRY_OK)
		return result.result;
	if (receives)
		check_message(l->memory[1] + number % DEPTH * ROOM, result.bytes, number, !self);
	gantry_rx_op_free(*op);
	*op = NULL;
	*ret_moved = 1;
	l->done[receives]++;
	return GANTRY_OK;
}

static void run_rx(struct pair_side *s)
{
	int fds = pair_fds(), threads = pair_threads();
	gantry_result r = GANTRY_OK;
	struct rx_load l = {0};
	char text[256];

	open_rx(&l, s);
	while (r == GANTRY_OK) {
		int moved = 0;

		r = turn_rx(&l, 0, &moved);
		r = r == GANTRY_OK ? turn_rx(&l, 1, &moved) : r;
		if (!moved)
			sleep_ns(50000);
	}
	gantry_rx_conn_error(l.conn, text, sizeof(text));
	report_error(r, text, names_peer(text));
	for (int i = 0; i < 2 * DEPTH; i++)
		gantry_rx_op_free(l.ops[i / DEPTH][i % DEPTH]);
	gantry_rx_conn_close(l.conn);
	if (l.listener)
		gantry_rx_listener_close(l.listener);
	gantry_rx_close(l.rx);
	settle(fds, threads, "after the error");
}

static void run_side(struct pair_side *s)
{
	alarm(LOAD_ALARM_S);
	self = s->self;
	mine = &state->side[self];
	store_release(&mine->pid, (uint64_t)getpid());
	if (strcmp(kind, "net") == 0)
		run_net(s);
	else if (strcmp(kind, "rx") == 0)
		run_rx(s);
	else
		run_comm(s);
}

int main(int argc, char **argv)
{
	struct pair_shared *shared;
	char path[4200];
	int fd;

	CHECK(argc == 6);
	kind = argv[1];
	plant = strtol(getenv("CHAOS_PLANT") ?: "0", NULL, 10);
	plant_resume = strtol(getenv("CHAOS_PLANT_RESUME") ?: "0", NULL, 10);
	nrails = atoi(argv[4]);
	folder = argv[5];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(path, sizeof(path), "%s/state", folder);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && ftruncate(fd, sizeof(*state)) == 0);
	state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(state != MAP_FAILED);
	shared = pair_share();
	alarm(LOAD_ALARM_S);
	for (int i = 0; i < 2; i++)
		pair_fork(run_side, shared, i, argv[2 + i]);
	return pair_reap_both(shared);
}
