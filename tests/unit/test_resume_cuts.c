/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes that lose each new socket as soon as they have it, at either end, under a stream whose every byte is checked.
 * GANTRY_TEST_CUTS: how many cuts for each of the 36 combinations of mode, lanes, end and point; a few without it.
 * Catches: news of a lane's end that is lost while the lane gets its next socket, so that it never comes back; a byte that is
 * lost, doubled or misplaced; a new socket that children inherit.
 */
#include <fcntl.h>
#include <sys/syscall.h>

#include "resume_util.h"

static uint32_t asked; /* atomic */

/*
 * The library's, in this program: it asks for the name of each new socket between the end of the hand-shake and the
 * installation. Every other time that takes long enough for the other end to lose the socket and to say so.
 */
int getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	if (fetch_add_relaxed(&asked, 1) % 2)
		sleep_ms(3);
	return (int)syscall(SYS_getsockname, fd, addr, len);
}

enum point { NEW_BULK, NEW_CONTROL, SOME_TIME, POINTS };

enum { LARGEST = 24 << 10 };

struct cutter {
	struct tcp_link *link; /* at the end that cuts */
	enum point point;
	long cuts;
	int over; /* atomic: all of them are done */
};

/* One of the two processes. */
struct end {
	int initiator; /* it dials, and sends */
	int other;     /* a socket to the other process */
	void *ctx, *comm;
	uint8_t *buffers[DEPTH];
	void *requests[DEPTH];
};

static struct tcp_link *own_link(void)
{
	struct tcp_link *found = NULL;

	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node)
		found = l;
	inet_loop_unlock();
	CHECK(found);
	return found;
}

/* The number of the socket that the lane has; 0: none. */
static uint32_t socket_of(struct tcp_lane *lane)
{
	uint32_t number;

	link_mu_lock(&lane->link->mu);
	number = lane->resume->stopped ? 0 : lane->resume->generation + 1;
	CHECK(!tcp_link_failed(lane->link));
	link_mu_unlock(&lane->link->mu);
	return number;
}

/* Each socket of the lane once, which is a cut whether the lane had a moment to use it or not. */
static void cut_next(const struct cutter *c, int index, uint32_t *last, uint32_t pause)
{
	static const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
	struct tcp_lane *lane = &c->link->lanes[index];
	uint32_t number = 0;

	WAIT_WHILE (!number || number == *last) {
		number = socket_of(lane);
		sleep_ns(20000);
	}
	*last = number;
	CHECK(fcntl(lane->io.fd, F_GETFD) & FD_CLOEXEC);
	for (uint64_t until = gantry_now_ns() + pause; pause && gantry_now_ns() < until;)
		sched_yield();
	/* As the network would, beside threads that use the socket: ThreadSanitizer takes connect for the creation of one. */
	syscall(SYS_connect, lane->io.fd, &nobody, sizeof(nobody));
}

static void *cut_sockets(void *arg)
{
	struct cutter *c = arg;
	uint32_t last[LANES + 1] = {0}, random = 1;

	for (long i = 0; i < c->cuts; i++) {
		uint32_t bulk = 1 + (uint32_t)i % (uint32_t)(c->link->nlanes - 1);
		uint32_t lane = c->point == NEW_CONTROL ? 0 : c->point == NEW_BULK ? bulk : i % 3 ? bulk : 0;

		random = random * 1664525 + 1013904223;
		cut_next(c, (int)lane, &last[lane], c->point == SOME_TIME ? random >> 12 : 0); /* up to a millisecond */
	}
	store_release(&c->over, 1);
	return NULL;
}

static size_t size_of(uint64_t number)
{
	return number * 2654435761u % LARGEST;
}

/* Bytes that the other process has sent, if they are there. */
static bool hear(const struct end *e, void *bytes, size_t n)
{
	if (recv(e->other, bytes, n, MSG_PEEK | MSG_DONTWAIT) < (ssize_t)n)
		return false;
	recv_all(e->other, bytes, n);
	return true;
}

static bool is_done(void **request, int *ret_size)
{
	int done = 0;

	if (*request)
		CHECK_OK(ops->test(net, *request, &done, ret_size));
	if (done)
		*request = NULL;
	return done;
}

/* Until it, or the other process, has made all cuts. A lane that does not come back is found by the cutter. */
static void send_stream(struct end *e, const struct cutter *c)
{
	uint64_t posted = 0, done = 0;
	uint8_t over = 0;

	while (done < posted || !over) {
		for (int i = 0; i < DEPTH; i++) {
			done += is_done(&e->requests[i], NULL);
			if (over || e->requests[i] || posted % DEPTH != (uint64_t)i)
				continue;
			pattern_fill(e->buffers[i], size_of(posted), posted);
			e->requests[i] = post_send(e->comm, e->buffers[i], size_of(posted), 0);
			posted++;
		}
		if (c ? load_acquire(&c->over) : hear(e, &over, 1))
			over = 1;
		sleep_ns(20000); /* leaves the CPUs to the service threads */
	}
	send_all(e->other, &posted, sizeof(posted));
}

static void receive_stream(struct end *e, const struct cutter *c)
{
	uint64_t posted = 0, done = 0, all = UINT64_MAX;
	uint8_t over = 0;

	while (done < all) {
		int i = (int)(done % DEPTH), size = -1;

		for (; posted < done + DEPTH; posted++)
			e->requests[posted % DEPTH] = post_recv(e->comm, e->buffers[posted % DEPTH], LARGEST, 0);
		if (is_done(&e->requests[i], &size)) {
			CHECK_EQ(size, size_of(done));
			CHECK_PATTERN(e->buffers[i], (size_t)size, done);
			done++;
		} else {
			sleep_ns(20000);
		}
		if (c && !over && load_acquire(&c->over)) {
			over = 1;
			send_all(e->other, &over, 1);
		}
		if (all == UINT64_MAX)
			hear(e, &all, sizeof(all));
	}
	CHECK_EQ(done, all);
}

static long cuts_wanted(void)
{
	const char *text = getenv("GANTRY_TEST_CUTS");

	return text ? atol(text) : SANITIZED ? 10 : 20;
}

static void connect_end(struct end *e)
{
	struct gantry_net_device_handle handle_for, *h = &handle_for;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *listen = NULL;

	e->comm = NULL;
	if (e->initiator) {
		recv_all(e->other, handle, sizeof(handle));
		WAIT_WHILE (!e->comm)
			CHECK_OK(ops->connect(net, e->ctx, 0, handle, &e->comm, &h));
		return;
	}
	CHECK_OK(ops->listen(net, e->ctx, 0, handle, &listen));
	send_all(e->other, handle, sizeof(handle));
	WAIT_WHILE (!e->comm)
		CHECK_OK(ops->accept(net, listen, &e->comm, &h));
	CHECK_OK(ops->close_listen(net, listen));
}

/* Both processes are here. */
static void meet(const struct end *e)
{
	uint8_t both;

	send_all(e->other, "", 1);
	recv_all(e->other, &both, 1);
}

/* Both processes: a connection for each combination, of which one process cuts the sockets. */
static void run_combination(struct end *e, enum point point, bool cuts)
{
	struct cutter c = {.point = point, .cuts = cuts_wanted()};
	pthread_t thread;

	connect_end(e);
	c.link = own_link();
	meet(e); /* there is nothing to resume until accept has returned the connection */
	if (cuts)
		CHECK_EQ(pthread_create(&thread, NULL, cut_sockets, &c), 0);
	if (e->initiator)
		send_stream(e, cuts ? &c : NULL);
	else
		receive_stream(e, cuts ? &c : NULL);
	if (cuts)
		CHECK_EQ(pthread_join(thread, NULL), 0);
	meet(e); /* neither end closes before the other has its last message */
	CHECK_OK(e->initiator ? ops->close_send(net, e->comm) : ops->close_recv(net, e->comm));
	UNTIL(links_are_gone());
}

static void run_end(int initiator, int other)
{
	struct end e = {.initiator = initiator, .other = other};

	start(&e.ctx, GANTRY_NET_UNDEF);
	for (int i = 0; i < DEPTH; i++) {
		e.buffers[i] = malloc(LARGEST);
		CHECK(e.buffers[i]);
	}
	for (int k = 0; k < 2 * POINTS; k++) {
		CASE("end %d cuts at point %d", k % 2, k / 2);
		run_combination(&e, (enum point)(k / 2), k % 2 == initiator);
	}
	for (int i = 0; i < DEPTH; i++)
		free(e.buffers[i]);
	CHECK_OK(ops->finalize(net, e.ctx));
}

static void run(const char *lanes, const char *crc, const char *encrypt)
{
	int fd[2];
	pid_t pid;

	set_params("GANTRY_RESUME", "on", "GANTRY_LANES", lanes, "GANTRY_TIMEOUT", "100s", "GANTRY_EAGER_MAX", "4096",
		   "GANTRY_CRC", crc, "GANTRY_ENCRYPT", encrypt, "GANTRY_SECRET",
		   encrypt ? "a secret of thirty-two characters" : NULL);
	if (getenv("GANTRY_TEST_CUTS"))
		alarm(0);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	pid = fork(); /* without child_fork's deadline: there may be many cuts */
	CHECK(pid >= 0);
	if (pid == 0) {
		run_end(1, fd[1]);
		child_end(0);
	}
	run_end(0, fd[0]);
	child_wait(pid);
	printf("%s bulk lanes, %s: %ld cuts\n", lanes,
	       encrypt ? "sealed"
	       : crc   ? "CRC"
		       : "plain",
	       2 * POINTS * cuts_wanted());
}

TEST_CALL(one_lane, run("1", NULL, NULL))
TEST_CALL(three_lanes, run("3", NULL, NULL))
TEST_CALL(one_lane_crc, run("1", "1", NULL))
TEST_CALL(three_lanes_crc, run("3", "1", NULL))
#if GANTRY_HAVE_OPENSSL
TEST_CALL(one_lane_sealed, run("1", NULL, "require"))
TEST_CALL(three_lanes_sealed, run("3", NULL, "require"))
#endif

void tests_begin(void)
{
	tests_apart(1);
}
