/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers of the data network that lie while a session is set up or gets new sockets: every field of hello and answer, with what the
 * hand-shake says around them, one at a time, at the edges of its range, on the control lane and on a bulk lane, once and twice;
 * to the accepting and to the connecting side of a real engine; without resume, with it, and for sockets of a session that is up.
 * What is checked where:
 *
 *   message   field                        checked by
 *   hello     magic, version, sizes, texts inet_handshake_input, inet_handshake_challenge
 *             listener, cookie             on_hello
 *             lane, lanes, unpack, resume  wire_hello_decode, on_proved
 *             session, process             link_opening, link_promised, find_session
 *             generation, received         find_lane, tcp_resume_counts_fit
 *             window, eager_max            tcp_link_meet
 *             comm_id, host, dev           any: they decide what is shared
 *   answer    verdict                      attempt_welcomed, dial_welcomed
 *             session                      session_link
 *             naddrs, addresses            get_addrs, attempt_target
 *             window, eager_max, received  tcp_link_meet, tcp_lane_install
 *
 * Catches: reads and writes outside of buffers (with the sanitizers), connects and requests that never end, errors without a
 * name, a side that dials without a pause, a session's key that is given away, honest peers of the same listener that pay for it.
 */
#include <fcntl.h>

#include "inet/handshake.h"
#include "liar_util.h"
#include "link_pair.h"
#include "net/net.h"
#include "net/tcp/hello.h"

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

enum {
	LANES = 2,
	PROCESS = 77,
	SMALL = 16,
	HELLO = INET_HELLO_SIZE + WIRE_HELLO_SIZE,
	ANSWER = INET_ANSWER_SIZE + WIRE_WELCOME_SIZE
};

static void settings(char out[INET_SETTINGS_SIZE])
{
	snprintf(out, INET_SETTINGS_SIZE, "GANTRY_CRC=0");
}

static const struct inet_protocol by_hand = {"tcp", WIRE_VERSION, "accepting side", "connecting side", settings};
static const struct inet_key no_key = {INET_AUTH_NONE, NULL, 0, INET_ENCRYPT_OFF};

/* ---- lies ---- */

struct field {
	uint16_t at;
	uint8_t width;
};
static const uint64_t values[] = {0,   1,	  2,	    3,		WIRE_MAX_LANES, WIRE_MAX_LANES + 1,
				  255, INT32_MAX, 1u << 31, UINT32_MAX, INT64_MAX,	UINT64_MAX};
enum { VALUES = TEST_COUNT(values), NO_LIE = -1 };

enum { H = INET_HELLO_SIZE, A = INET_ANSWER_SIZE };
static const struct field hello_fields[] = {
	{0, 1},	     {7, 1},	  {8, 2},      {10, 1},	    {11, 1},	 {12, 2},     {14, 2},	   {16, 8},
	{32, 8},     {80, 1},	  {128, 1},    {H, 8},	    {H + 8, 8},	 {H + 24, 8}, {H + 32, 8}, {H + 40, 8},
	{H + 48, 8}, {H + 56, 8}, {H + 64, 4}, {H + 68, 4}, {H + 72, 1}, {H + 73, 1}, {H + 74, 1}, {H + 75, 1},
	{H + 76, 2}, {H + 78, 2}, {H + 80, 4}, {H + 84, 4}, {H + 88, 8}};
static const struct field answer_fields[] = {
	{0, 1},	     {7, 1},	  {8, 2},      {10, 1},	    {11, 1},	 {12, 2},     {14, 2},	   {16, 8},
	{48, 8},     {A, 1},	  {A + 1, 1},  {A + 2, 1},  {A + 3, 1},	 {A + 4, 4},  {A + 8, 8},  {A + 16, 8},
	{A + 24, 8}, {A + 32, 4}, {A + 36, 4}, {A + 40, 8}, {A + 48, 1}, {A + 49, 1}, {A + 50, 2}, {A + 52, 4}};
enum { HELLO_LIES = TEST_COUNT(hello_fields) * VALUES, ANSWER_LIES = TEST_COUNT(answer_fields) * VALUES };

static void lie(uint8_t *message, const struct field *fields, int i)
{
	if (i != NO_LIE)
		le_put(message + fields[i / VALUES].at, values[i % VALUES], fields[i / VALUES].width);
}

/* ---- the engine under test ---- */

static struct {
	void *ctx, *listen;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct wire_handle to;
	bool resume;
} run;

static void open_engine(bool resume)
{
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF};

	logs_drop();
	set_params("GANTRY_RESUME", resume ? "on" : "off", "GANTRY_CONNECT_TIMEOUT", "60s");
	run.resume = resume;
	CHECK_OK(NET(init, 5, &config, &run.ctx));
	CHECK_OK(NET(listen, run.ctx, 0, run.handle, &run.listen));
	CHECK_OK(wire_handle_decode(run.handle, &run.to));
}

static void close_engine(void)
{
	CHECK_OK(NET(close_listen, run.listen));
	CHECK_OK(NET(finalize, run.ctx));
}

static void *accept_one(void)
{
	struct gantry_net_device_handle *none = NULL;
	void *comm = NULL;

	typed(NET(accept, run.listen, &comm, &none));
	return comm;
}

static void *post_recv(void *comm, uint8_t *to)
{
	void *data = to, *request = NULL;
	size_t size = SMALL;
	int tag = 0;

	typed(NET(irecv, comm, 1, &data, &size, &tag, NULL, &request));
	return request;
}

/* Whatever has been accepted, an honest peer gets in, and its message arrives. */
static void work_with_other(void)
{
	enum { MOST = 64 };
	static uint8_t out[SMALL] = {9, 8, 7}, in[MOST][SMALL];
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *comm = NULL, *comms[MOST], *recvs[MOST], *send = NULL;
	int n = 0, done = 0, found = 0;

	memcpy(handle, run.handle, sizeof(handle));
	memset(in, 0, sizeof(in));
	UNTIL((typed(NET(connect, run.ctx, 0, handle, &comm, &none)), comm));
	WAIT_WHILE (!send)
		CHECK_OK(NET(isend, comm, out, SMALL, 0, NULL, &send));
	WAIT_WHILE (!found) {
		if (n < MOST && (comms[n] = accept_one())) {
			recvs[n] = post_recv(comms[n], in[n]);
			n++;
		}
		for (int i = 0; i < n && !found; i++)
			if (recvs[i] && typed(NET(test, recvs[i], &done, NULL)) != GANTRY_OK)
				recvs[i] = NULL;
			else if (recvs[i] && done)
				found = memcmp(in[i], out, SMALL) == 0, recvs[i] = NULL;
		sleep_ns(20000);
	}
	NET(close_send, comm);
	while (n > 0)
		NET(close_recv, comms[--n]);
}

/* ---- the liar dials ---- */

static struct wire_hello honest_hello(int lane, uint8_t session)
{
	struct wire_hello h = {.listener = run.to.listener,
			       .process = PROCESS,
			       .comm_id = 5,
			       .host = 1,
			       .window = LINK_WINDOW,
			       .eager_max = 65536,
			       .lane = (uint8_t)lane,
			       .lanes = LANES,
			       .resume = run.resume};

	memcpy(h.cookie, run.to.cookie, sizeof(h.cookie));
	memset(h.session, session, sizeof(h.session));
	return h;
}

/* Says hello on a socket, with a lie. The socket, or -1: it was refused; verdict: as it was answered, else WIRE_VERDICTS. */
static int say_hello(const struct wire_hello *hello, int i, struct wire_welcome *ret)
{
	uint8_t payload[WIRE_HELLO_SIZE], out[HELLO];
	struct inet_handshake h;
	enum inet_event e;
	int fd = dial_hard(&run.to.addrs[0].in);

	ret->verdict = WIRE_VERDICTS;
	wire_hello_encode(hello, payload);
	CHECK_OK(inet_handshake_start_client(&h, &by_hand, &no_key, payload, sizeof(payload)));
	CHECK_EQ(h.out_size, HELLO);
	memcpy(out, h.out, HELLO);
	lie(out, hello_fields, i);
	h.out_size = 0; /* it goes out here */
	send_all(fd, out, HELLO);
	if (i != NO_LIE && hello_fields[i / VALUES].at < 16) /* a size may be larger now, and more is waited for */
		shutdown(fd, SHUT_WR);
	CHECK_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	UNTIL((e = inet_handshake_move(&h, fd)) == INET_DONE || e == INET_FAILED);
	if (e == INET_DONE)
		CHECK_OK(wire_welcome_decode(h.payload, h.payload_size, ret)); /* an honest side says what can be */
	else
		CHECK(h.broken || typed(h.error) != GANTRY_OK);
	inet_handshake_end(&h);
	if (e == INET_DONE)
		return fd;
	close(fd);
	return -1;
}

static void hang_up(int *fds, int n)
{
	for (int i = 0; i < n; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

static void confirm(int fd)
{
	uint8_t b[48];

	send(fd, b, pair_frame_put(b, &(struct pair_frame){.kind = WIRE_STATE}), MSG_NOSIGNAL);
}

/* ---- to the accepting side ---- */

/* A session in which lane `which` lies; what was refused or lost is dialled again, honestly. */
static void dial_with_lie(int which, int i)
{
	static uint8_t session;
	struct wire_welcome w;
	int fds[2 * LANES], n = 0;

	session = session % 200 + 1;
	for (int lane = 0; lane < LANES; lane++) {
		struct wire_hello h = honest_hello(lane, session);

		for (int times = 0; lane == which && times < 1 + i % 2; times++)
			fds[n++] = say_hello(&h, i, &w);
		if (lane != which || (lane && i % 3))
			fds[n++] = say_hello(&h, NO_LIE, &w);
	}
	if (fds[0] >= 0)
		confirm(fds[0]);
	hang_up(fds, n);
}

static void hellos(void)
{
	for (int resume = 0; resume < 2; resume++) {
		open_engine(resume);
		for (int which = 0; which < LANES; which++)
			for (int i = 0; i < (int)HELLO_LIES; i++) {
				if (!liar_takes((size_t)i))
					continue;
				CASE("%sresume, lane %d, lie %d", resume ? "" : "no ", which, i);
				dial_with_lie(which, i);
				if (i % 24 < LIAR_PARTS)
					work_with_other();
			}
		work_with_other();
		close_engine();
	}
}

TEST_CALL(to_the_accepting_side, liar_spread(hellos))

/* A session that is up, of the liar's, and the receiving comm of it. */
static void *come_up(int fds[LANES], uint8_t session)
{
	struct wire_welcome w;
	void *comm = NULL;

	for (int lane = 0; lane < LANES; lane++) {
		struct wire_hello h = honest_hello(lane, session);

		fds[lane] = say_hello(&h, NO_LIE, &w);
		CHECK_EQ(w.verdict, WIRE_LANE);
	}
	confirm(fds[0]);
	UNTIL((comm = accept_one()));
	return comm;
}

/* New sockets for a session that is up. After a lie about the control lane's an honest one follows: a message comes over it, or
 * the session has ended, by name. */
static void new_sockets(void)
{
	open_engine(true);
	for (int which = 0; which < LANES; which++)
		for (int i = 0; i < (int)HELLO_LIES; i++) {
			struct wire_hello h = honest_hello(which, 250);
			struct wire_welcome w;
			uint8_t in[SMALL] = {0}, out[SMALL] = {1, 2, 3};
			int fds[LANES + 2], done = 0;
			void *comm, *request;

			if (hello_fields[i / VALUES].at < INET_HELLO_SIZE || !liar_takes((size_t)i))
				continue;
			CASE("lane %d, lie %d", which, i);
			comm = come_up(fds, 250);
			request = post_recv(comm, in);
			h.generation = 1;
			fds[2] = say_hello(&h, i, &w);
			h = honest_hello(0, 250);
			h.generation = 3;
			fds[3] = say_hello(&h, NO_LIE, &w);
			if (w.verdict == WIRE_LANE)
				pair_say(fds[3], &(struct pair_frame){.kind = WIRE_EAGER, .length = SMALL}, out);
			for (int k = 0; request && !done && k < 2000; k++) {
				if (typed(NET(test, request, &done, NULL)) != GANTRY_OK)
					break;
				sleep_ns(20000);
			}
			if (done)
				CHECK(memcmp(in, out, SMALL) == 0);
			NET(close_recv, comm);
			hang_up(fds, LANES + 2);
			if (i % 24 < LIAR_PARTS)
				work_with_other();
		}
	work_with_other();
	close_engine();
}

TEST_CALL(for_a_session_that_is_up, liar_spread(new_sockets))

/* A session without a name is none that was promised: the key of another one is not told. */
static void no_session(void)
{
	struct wire_welcome w;
	int fds[LANES], fd;
	void *comm;

	open_engine(false);
	comm = come_up(fds, 3);
	fd = say_hello(&(struct wire_hello){.listener = run.to.listener,
					    .process = PROCESS,
					    .comm_id = 5,
					    .window = LINK_WINDOW,
					    .lanes = LANES},
		       NO_LIE, &w);
	CHECK_EQ(fd, -1); /* without the cookie */
	{
		struct wire_hello h = honest_hello(0, 0);

		fd = say_hello(&h, NO_LIE, &w);
	}
	CHECK(w.verdict != WIRE_USE_SESSION);
	close(fd);
	hang_up(fds, LANES);
	NET(close_recv, comm);
	work_with_other();
	close_engine();
}

static void in_child(void (*test)(void))
{
	pid_t pid = CAN_FORK ? child_fork() : -1;

	if (pid <= 0)
		test();
	if (!pid)
		child_end(0);
	if (pid > 0)
		child_wait(pid);
}

TEST_CALL(a_session_without_a_name, in_child(no_session))

/* ---- the liar is dialled ---- */

enum { SOCKETS = 4096 };
static struct {
	int fd, sockets[SOCKETS], n;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct gantry_addr addr;
} liar;

static void begin_liar(void)
{
	struct wire_handle h = {.version = WIRE_VERSION, .process = PROCESS, .listener = 1, .comm_id = 5, .naddrs = 1};
	int port;

	liar.n = 0;
	liar.fd = lo_listen(0, &port);
	CHECK_EQ(fcntl(liar.fd, F_SETFL, O_NONBLOCK), 0);
	memset(&liar.addr, 0, sizeof(liar.addr));
	liar.addr.in = lo_addr(port);
	h.addrs[0] = liar.addr;
	wire_handle_encode(&h, liar.handle);
}

static void end_liar(void)
{
	hang_up(liar.sockets, liar.n);
	close(liar.fd);
}

static struct wire_welcome honest_welcome(void)
{
	struct wire_welcome w = {.verdict = WIRE_LANE,
				 .resume = run.resume,
				 .host = 1,
				 .window = LINK_WINDOW,
				 .eager_max = 65536,
				 .naddrs = 1};

	w.addrs[0] = liar.addr;
	return w;
}

/* The next socket, if one has come: its hello is answered, with the lie if this is the socket that lies. */
static bool answer(const struct wire_welcome *w, int i, bool lies)
{
	uint8_t payload[WIRE_WELCOME_SIZE], out[ANSWER];
	struct inet_handshake h;
	struct wire_hello hello;
	enum inet_event e;
	int fd = accept4(liar.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return false;
	CHECK(liar.n < SOCKETS);
	inet_handshake_start_server(&h);
	UNTIL((e = inet_handshake_move(&h, fd)) == INET_HELLO || e == INET_FAILED);
	if (e == INET_HELLO && wire_hello_decode(h.payload, h.payload_size, WIRE_VERSION, &hello) == GANTRY_OK &&
	    hello.process == run.to.process) { /* else it is a stranger */
		h.protocol = &by_hand;
		CHECK_EQ(inet_handshake_challenge(&h, &no_key), INET_PROVED);
		wire_welcome_encode(w, payload);
		inet_handshake_accept(&h, payload, sizeof(payload));
		CHECK_EQ(h.out_size, ANSWER);
		memcpy(out, h.out, ANSWER);
		lie(out, answer_fields, lies ? i : NO_LIE);
		send(fd, out, ANSWER, MSG_NOSIGNAL);
		if (lies && i != NO_LIE && answer_fields[i / VALUES].at < 16)
			shutdown(fd, SHUT_WR);
		liar.sockets[liar.n++] = fd;
		fd = -1;
	}
	inet_handshake_end(&h);
	hang_up(&fd, 1);
	return true;
}

/* The engine connects to the liar, whose answer to lane `which` has the lie. */
static gantry_result connect_to_liar(int which, int i, void **ret_comm)
{
	struct gantry_net_device_handle *none = NULL;
	struct wire_welcome w = honest_welcome();
	gantry_result r = GANTRY_OK;

	*ret_comm = NULL;
	WAIT_WHILE (r == GANTRY_OK && !*ret_comm) {
		r = typed(NET(connect, run.ctx, 0, liar.handle, ret_comm, &none));
		if (!answer(&w, i, liar.n == which))
			sleep_ns(50000);
	}
	return r;
}

static void answers(void)
{
	static uint8_t out[100000];

	for (int resume = 0; resume < 2; resume++) {
		open_engine(resume);
		set_params("GANTRY_CONNECT_TIMEOUT", "150ms"); /* some answers are no end */
		for (int which = 0; which < LANES; which++)
			for (int i = 0; i < (int)ANSWER_LIES; i++) {
				void *comm, *small = NULL, *large = NULL;
				int done;

				if (!liar_takes((size_t)i))
					continue;
				CASE("%sresume, lane %d, lie %d", resume ? "" : "no ", which, i);
				begin_liar();
				if (connect_to_liar(which, i, &comm) == GANTRY_OK) {
					typed(NET(isend, comm, out, SMALL, 0, NULL, &small));
					typed(NET(isend, comm, out, sizeof(out), 0, NULL, &large));
					for (int k = 0; k < 10 && large; k++)
						if (typed(NET(test, large, &done, NULL)) != GANTRY_OK)
							break;
					NET(close_send, comm);
				} else {
					CHECK(*gantry_last_error());
				}
				end_liar();
			}
		set_params("GANTRY_CONNECT_TIMEOUT", "60s");
		work_with_other();
		close_engine();
	}
}

TEST_CALL(to_the_connecting_side, liar_spread(answers))

/* Its socket of the control lane breaks, and the answer for the next one is the lie. */
static void answers_again(void)
{
	const struct linger reset = {1, 0};
	static const uint8_t sure[] = {WIRE_USE_SESSION, WIRE_UNKNOWN_SESSION}; /* to the control lane: never honest */

	open_engine(true);
	for (int i = 0; i < (int)ANSWER_LIES; i++) {
		struct wire_welcome w;
		uint8_t out[SMALL] = {0};
		void *comm = NULL, *request = NULL;
		int done = 0, up;
		bool ends = answer_fields[i / VALUES].at == A && memchr(sure, (int)values[i % VALUES], sizeof(sure));
		gantry_result r = GANTRY_OK;

		if (!liar_takes((size_t)i))
			continue;
		CASE("lie %d", i);
		begin_liar();
		w = honest_welcome();
		CHECK_OK(connect_to_liar(0, NO_LIE, &comm));
		CHECK(comm);
		up = liar.n;
		CHECK_EQ(setsockopt(liar.sockets[0], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
		close(liar.sockets[0]);
		liar.sockets[0] = -1;
		WAIT_WHILE (liar.n == up &&
			    r == GANTRY_OK) { /* the next hello is the control lane's, or the bulk lane's */
			if (!answer(&w, i, true))
				sleep_ns(50000);
			if (!request)
				r = typed(NET(isend, comm, out, SMALL, 0, NULL, &request));
		}
		for (int k = 0; r == GANTRY_OK && (ends || k < 20); k++) {
			CHECK(k < 1000000);
			if (!request)
				r = typed(NET(isend, comm, out, SMALL, 1, NULL, &request));
			else
				r = typed(NET(test, request, &done, NULL));
			if (request && done)
				request = NULL;
			answer(&w, i, true);
			sleep_ns(100000);
		}
		NET(close_send, comm);
		end_liar();
	}
	work_with_other();
	close_engine();
}

TEST_CALL(to_the_side_that_reconnects, liar_spread(answers_again))

/* Told again and again to share a session that is not there: it takes its time before it dials again. */
static void share_nothing(void)
{
	struct gantry_net_device_handle *none = NULL;
	struct wire_welcome w;
	gantry_result r = GANTRY_OK;
	void *comm = NULL;

	open_engine(false);
	set_params("GANTRY_CONNECT_TIMEOUT", "500ms");
	begin_liar();
	w = honest_welcome();
	w.verdict = WIRE_USE_SESSION;
	WAIT_WHILE (r == GANTRY_OK) {
		r = typed(NET(connect, run.ctx, 0, liar.handle, &comm, &none));
		CHECK(!comm);
		answer(&w, NO_LIE, false);
	}
	CHECK(liar.n < 50);
	end_liar();
	set_params("GANTRY_CONNECT_TIMEOUT", "60s");
	work_with_other();
	close_engine();
}

TEST_CALL(a_session_that_is_not_there, in_child(share_nothing))

void tests_begin(void)
{
	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_LANES", "1", 1);
	liar_begin();
}

void tests_end(void)
{
	liar_end();
}
