/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks and reducers that lie: every field of every message, one at a time, at the edges of its range, once and twice, in
 * place of the honest message and before it; in every state of a job. The liars are played with the network's own calls.
 * What is checked where:
 *
 *   message   sent to          field                          checked by
 *   ask       server           job, ranks, rank, reducers     reducer_ask_decode, take_ask, check_room
 *                              handle                         take_ask
 *   answer    rank             size, handle                   shake_reducer
 *   HELLO     server, rank     job, count, index              hear_hello
 *   REACHED   rank             kind, size                     hear_reached
 *                              reached                        check_common
 *   PIECE     server, rank     all                            reducer_decode, take_piece, same_piece
 *   RESULT    rank             all                            reducer_decode, check_answer
 *   FAILED    rank             why, result                    reducer_decode; rank, other: check_answer
 *
 * Catches: reads and writes outside of buffers (with the sanitizers), a rank without reducers that divides by their number, a
 * rank to blame that does not exist, jobs that a refused ask leaves behind, other jobs that pay for a liar.
 */
#include "inet/handshake.h"
#include "inet/nic.h"
#include "reducer/group.h"
#include "reducer/server.h"
#include "reducer_liar_util.h"

static const uint64_t SECOND = 1000000000;

/* ---- a server, one honest job, and ranks that lie to it ---- */

static struct {
	struct reducer_server *s;
	char address[GANTRY_ADDR_TEXT];
	pthread_t thread;
	int stop, pause, look; /* atomic; look: 1 asks for the status, 2: it is there */
	struct reducer_server_status status;
} server;

static void *serve(void *arg)
{
	while (!__atomic_load_n(&server.stop, __ATOMIC_ACQUIRE)) {
		if (__atomic_load_n(&server.pause, __ATOMIC_ACQUIRE))
			until_pause();
		else
			reducer_server_wait(server.s, reducer_server_step(server.s), 200000);
		if (__atomic_load_n(&server.look, __ATOMIC_ACQUIRE) == 1) {
			reducer_server_status(server.s, &server.status);
			__atomic_store_n(&server.look, 2, __ATOMIC_RELEASE);
		}
	}
	reducer_server_close(server.s);
	return NULL;
}

static uint32_t jobs(void)
{
	__atomic_store_n(&server.look, 1, __ATOMIC_RELEASE);
	UNTIL(__atomic_load_n(&server.look, __ATOMIC_ACQUIRE) == 2);
	return server.status.jobs;
}

static void start_server(void)
{
	struct reducer_server_config config = {.memory = 4ull << 30, .job_memory = 64 << 20};
	gantry_result r = GANTRY_ERR_LIMIT;

	memset(&server, 0, sizeof(server));
	WAIT_WHILE (r == GANTRY_ERR_LIMIT) { /* another program took the port */
		snprintf(server.address, sizeof(server.address), "127.0.0.1:%d", lo_free_port());
		CHECK_OK(gantry_addr_parse(server.address, &config.listen));
		r = reducer_server_open(&config, &server.s);
	}
	CHECK_OK(r);
	CHECK_EQ(pthread_create(&server.thread, NULL, serve, NULL), 0);
}

static void stop_server(void)
{
	__atomic_store_n(&server.stop, 1, __ATOMIC_RELEASE);
	CHECK_EQ(pthread_join(server.thread, NULL), 0);
}

/* What a rank says to a server, and the job's handle if that is answered. */
static gantry_result ask(const uint8_t *payload, size_t size, uint8_t ret_handle[GANTRY_NET_HANDLE_SIZE])
{
	const struct inet_key none = {INET_AUTH_NONE, NULL, 0, INET_ENCRYPT_OFF};
	struct inet_handshake h;
	int fd = lo_dial(port_of(server.address));
	enum inet_event e;
	gantry_result r;

	CHECK_OK(inet_handshake_start_client(&h, &reducer_protocol, &none, payload, size));
	UNTIL((e = inet_handshake_move(&h, fd)) == INET_DONE || e == INET_FAILED);
	r = e == INET_DONE ? GANTRY_OK : h.error;
	if (r == GANTRY_OK)
		memcpy(ret_handle, h.payload, GANTRY_NET_HANDLE_SIZE);
	inet_handshake_end(&h);
	close(fd);
	return r;
}

static void ask_for(uint64_t job, uint32_t rank, struct party *p, uint8_t ret_handle[GANTRY_NET_HANDLE_SIZE])
{
	struct reducer_ask a = {.job = job, .rank = rank, .ranks = 2, .reducers = 1};
	uint8_t payload[REDUCER_ASK_SIZE];

	memcpy(a.handle, p->handle, sizeof(a.handle));
	reducer_ask_encode(&a, payload);
	CHECK_OK(ask(payload, sizeof(payload), ret_handle));
}

static void say_hello(struct party *p, uint32_t index, uint32_t count, uint64_t job)
{
	put_message(p, REDUCER_TAG_DATA, &(struct reducer_message){.kind = REDUCER_HELLO, .hello = {index, count, job}},
		    REDUCER_HEADER);
}

static struct {
	struct party ranks[2];
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	uint64_t job;
} two; /* ranks of a job: 0 is honest, 1 lies */

static bool come(int rank)
{
	struct party *p = &two.ranks[rank];
	struct reducer_message m;

	if (!reach_out(p, two.handle))
		return false;
	say_hello(p, (uint32_t)rank, 3, two.job);
	if (p->in)
		return true;
	be_dialled(p);
	CHECK_OK(get(p, REDUCER_TAG_DATA, &m));
	CHECK_EQ(m.kind, REDUCER_HELLO);
	return true;
}

static void begin_job(bool liar_comes)
{
	two.job++;
	for (int i = 0; i < 2; i++) {
		open_party(&two.ranks[i]);
		ask_for(two.job, (uint32_t)i, &two.ranks[i], two.handle);
	}
	CHECK(come(0));
	if (liar_comes)
		CHECK(come(1));
}

static void end_job(void)
{
	close_party(&two.ranks[0]);
	close_party(&two.ranks[1]);
}

/* What the honest rank hears in the end. */
static enum reducer_kind outcome(void)
{
	struct reducer_message m = {.kind = REDUCER_FAILED};

	if (get(&two.ranks[0], REDUCER_TAG_RESULT, &m) == GANTRY_OK)
		CHECK(m.kind == REDUCER_RESULT || m.kind == REDUCER_FAILED);
	return m.kind;
}

/* ---- a rank under test ---- */

struct opening {
	struct party *p;
	const void *handles[2];
	uint32_t rank, ranks;
	const char *reducers;
	uint64_t timeout;
	pthread_t thread;
	gantry_result r;
	int over; /* atomic */
	struct reducer_comm *comm;
};

static void *open_thread(void *arg)
{
	struct opening *o = arg;
	struct reducer_config c = {.ctx = o->p->ctx,
				   .listen = o->p->listen,
				   .ranks = o->ranks,
				   .rank = o->rank,
				   .handles = o->handles,
				   .timeout = o->timeout,
				   .reducers = o->reducers};

	o->r = reducer_open(&c, &o->comm);
	__atomic_store_n(&o->over, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void begin_open(struct opening *o)
{
	o->timeout = o->timeout ? o->timeout : UNTIL_SECONDS * SECOND;
	CHECK_EQ(pthread_create(&o->thread, NULL, open_thread, o), 0);
}

static gantry_result end_open(struct opening *o)
{
	CHECK_EQ(pthread_join(o->thread, NULL), 0);
	return typed(o->r);
}

/* One operation, to its end. */
static gantry_result reduce(struct reducer_comm *c, const int32_t *in, int32_t *out, void (*meanwhile)(void))
{
	struct reducer_request *q = NULL;
	gantry_result r = reducer_all_reduce(c, in, out, COUNT, GANTRY_TYPE_INT32, GANTRY_OP_SUM, &q);
	int done = 0;

	if (meanwhile)
		meanwhile();
	WAIT_WHILE (r == GANTRY_OK && !done)
		r = reducer_test(q, &done, NULL);
	if (r != GANTRY_OK)
		CHECK(*gantry_last_error());
	return typed(r);
}

/* The honest job of the server: one rank. */
static struct opening other;
static struct party other_rank;

static void other_begins(void)
{
	open_party(&other_rank);
	other = (struct opening){
		.p = &other_rank, .handles = {other_rank.handle}, .ranks = 1, .reducers = server.address};
	begin_open(&other);
	CHECK_OK(end_open(&other));
}

static void other_works(void)
{
	int32_t in[COUNT] = {4, 5, 6}, out[COUNT] = {0};

	CHECK_OK(reduce(other.comm, in, out, NULL));
	CHECK(memcmp(in, out, sizeof(in)) == 0);
}

static void other_ends(void)
{
	reducer_close(other.comm);
	close_party(&other_rank);
}

/* ---- lies to a server ---- */

enum state { FIRST, SECOND_PIECE, WAITED_FOR, STATES }; /* the job has begun; has a result; waits for the liar alone */

static void lie_pieces_to_a_server(void)
{
	const struct reducer_message piece = {.kind = REDUCER_PIECE, .piece = honest};

	start_server();
	other_begins();
	for (int state = 0; state < STATES; state++)
		for (size_t i = 0; i < LIES; i++) {
			if (!liar_takes(i))
				continue;
			CASE("state %d, lie %zu", state, i);
			begin_job(true);
			if (state == SECOND_PIECE) {
				put_piece(&two.ranks[0], REDUCER_PIECE);
				put_piece(&two.ranks[1], REDUCER_PIECE);
				CHECK_EQ(outcome(), REDUCER_RESULT);
			}
			if (state == WAITED_FOR)
				put_piece(&two.ranks[0], REDUCER_PIECE);
			put_lie(&two.ranks[1], REDUCER_TAG_DATA, &piece, MESSAGE, i, 1 + (int)(i % 2));
			if (state != WAITED_FOR)
				put_piece(&two.ranks[0], REDUCER_PIECE);
			put_piece(&two.ranks[1], REDUCER_PIECE);
			outcome();
			end_job();
			if (i % 16 == 0)
				other_works();
		}
	other_works();
	UNTIL(jobs() == 1);
	other_ends();
	stop_server();
}

TEST_CALL(pieces_to_a_server, liar_spread(lie_pieces_to_a_server))

/* A connection that says something else than a HELLO is closed. The rank comes again, and its job begins. */
static void lie_hellos_to_a_server(void)
{
	int begun = 0, told_to = 0;

	start_server();
	other_begins();
	for (size_t i = 0; i < LIES; i++) {
		struct reducer_message m = {.kind = REDUCER_HELLO, .hello = {1, 3, two.job + 1}};

		if (!liar_takes(i))
			continue;
		told_to++;
		CASE("lie %zu", i);
		begin_job(false);
		CHECK(reach_out(&two.ranks[1], two.handle));
		be_dialled(&two.ranks[1]);
		put_lie(&two.ranks[1], REDUCER_TAG_DATA, &m, REDUCER_HEADER, i, 1);
		NET(close_send, two.ranks[1].out);
		two.ranks[1].out = NULL;
		come(1);
		put_piece(&two.ranks[0], REDUCER_PIECE);
		put_piece(&two.ranks[1], REDUCER_PIECE);
		begun += outcome() == REDUCER_RESULT;
		end_job();
		if (i % 16 == 0)
			other_works();
	}
	CHECK(begun > told_to / 3); /* where a field has no meaning, the first HELLO counted */
	other_works();
	other_ends();
	stop_server();
}

TEST_CALL(hellos_to_a_server, liar_spread(lie_hellos_to_a_server))

/* HELLOs of ranks that are there, and connections that are gone before the server looks at them. */
static void lie_hellos_again(void)
{
	static const uint8_t noise[ROOM];
	struct party more;

	start_server();
	begin_job(false);
	open_party(&more);
	for (int k = 0; k < 4; k++) {
		__atomic_store_n(&server.pause, k % 2, __ATOMIC_RELEASE);
		CHECK(reach_out(&more, two.handle));
		if (k < 2)
			say_hello(&more, 0, 3, two.job);
		else
			put(&more, REDUCER_TAG_DATA, noise, sizeof(noise));
		hang_up(&more);
		sleep_ms(20); /* for its goodbye to come first; without that the test sees less */
		__atomic_store_n(&server.pause, 0, __ATOMIC_RELEASE);
	}
	CHECK(come(1));
	put_piece(&two.ranks[0], REDUCER_PIECE);
	put_piece(&two.ranks[1], REDUCER_PIECE);
	CHECK_EQ(outcome(), REDUCER_RESULT);
	close_party(&more);
	end_job();
	UNTIL(jobs() == 0);
	stop_server();
}

TEST_CALL(hellos_again, liar_spread(lie_hellos_again))

/* Refused, or taken for a job; a refused one leaves nothing behind. */
static void lie_asks_of_a_server(void)
{
	static const struct {
		uint8_t at, width;
	} places[] = {{16, 4}, {20, 4}, {24, 4}, {28, 4}, {32, 4}, {36, 2}, {80, 1}, {88, 1}, {90, 2}};
	struct party p;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], out[INET_PAYLOAD_MAX];
	uint32_t taken = 0, before;

	start_server();
	other_begins();
	open_party(&p);
	for (size_t i = 0; i < TEST_COUNT(places) * TEST_COUNT(values) + INET_PAYLOAD_MAX; i++) {
		struct reducer_ask a = {.job = 1000 + i, .rank = 0, .ranks = 1, .reducers = 1};
		size_t size = REDUCER_ASK_SIZE, k = i / TEST_COUNT(values);
		uint64_t v = values[i % TEST_COUNT(values)];

		CASE("ask %zu", i);
		memset(out, 0, sizeof(out));
		memcpy(a.handle, p.handle, sizeof(a.handle));
		reducer_ask_encode(&a, out);
		if (k < TEST_COUNT(places))
			for (int b = 0; b < places[k].width; b++)
				out[places[k].at + b] = (uint8_t)(v >> 8 * b);
		else if ((size = i - TEST_COUNT(places) * TEST_COUNT(values)) == REDUCER_ASK_SIZE)
			continue;
		if (size < INET_PAYLOAD_MAX && size % 16 > 1 && k >= TEST_COUNT(places))
			continue;
		if (!liar_takes(i))
			continue;
		before = jobs();
		if (typed(ask(out, size, handle)) == GANTRY_OK)
			taken++;
		else
			CHECK(jobs() <= before); /* those with an address where nothing is may have ended */
	}
	other_works();
	close_party(&p);
	other_ends();
	stop_server();
}

TEST_CALL(asks_of_a_server, liar_spread(lie_asks_of_a_server))

/* ---- lies of a reducer to a rank ---- */

/* Where ranks ask, played here: one connection is answered with this payload; NULL: refused. */
static int ask_fd;
static char ask_address[64];

static const char *asked_at(void)
{
	int port;

	if (!ask_fd) { /* each process has its own */
		ask_fd = lo_listen(0, &port);
		snprintf(ask_address, sizeof(ask_address), "127.0.0.1:%d", port);
	}
	return ask_address;
}

static struct party reducer, rank;

/* False: it was not the rank under test that asked, but a program that looks for another at this port. */
static bool answer_one(int fd, const uint8_t *payload, size_t size, struct reducer_ask *ret_ask)
{
	const struct inet_key none = {INET_AUTH_NONE, NULL, 0, INET_ENCRYPT_OFF};
	struct inet_handshake h;
	enum inet_event e;
	bool ours;

	inet_handshake_start_server(&h);
	UNTIL((e = inet_handshake_move(&h, fd)) == INET_HELLO || e == INET_FAILED);
	ours = e == INET_HELLO && reducer_ask_decode(h.payload, h.payload_size, ret_ask) == GANTRY_OK &&
	       memcmp(ret_ask->handle, rank.handle, sizeof(rank.handle)) == 0;
	h.protocol = &reducer_protocol;
	if (ours && !payload)
		inet_handshake_refuse(&h, GANTRY_ERR_LIMIT, "no room");
	else if (ours && inet_handshake_challenge(&h, &none) == INET_PROVED)
		inet_handshake_accept(&h, payload, size);
	UNTIL(!ours || (e = inet_handshake_move(&h, fd)) == INET_DONE || e == INET_FAILED);
	inet_handshake_end(&h);
	return ours;
}

static void answer(const uint8_t *payload, size_t size, struct reducer_ask *ret_ask)
{
	bool ours = false;

	WAIT_WHILE (!ours) {
		int fd = accept4(ask_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		CHECK(fd >= 0);
		ours = answer_one(fd, payload, size, ret_ask);
		close(fd);
	}
}

static struct opening o;

static void begin_rank(uint64_t timeout)
{
	open_party(&reducer);
	open_party(&rank);
	o = (struct opening){
		.p = &rank, .handles = {rank.handle}, .ranks = 1, .reducers = asked_at(), .timeout = timeout};
	begin_open(&o);
}

static void end_rank(void)
{
	reducer_close(o.comm);
	close_party(&rank);
	close_party(&reducer);
}

/* The rank has a reducer. */
static void serve_rank(void)
{
	struct reducer_message m;
	struct reducer_ask a;

	begin_rank(0);
	answer(reducer.handle, sizeof(reducer.handle), &a);
	CHECK(reach_out(&reducer, a.handle));
	say_hello(&reducer, 1, 2, a.job);
	be_dialled(&reducer);
	CHECK_OK(get(&reducer, REDUCER_TAG_DATA, &m));
	CHECK_OK(end_open(&o));
}

static struct reducer_message told;
static size_t told_size, told_lie;

static void tell(void)
{
	put_lie(&reducer, REDUCER_TAG_RESULT, &told, told_size, told_lie, 1 + (int)(told_lie % 2));
	put_piece(&reducer, REDUCER_RESULT);
}

static void lies_to_rank(bool early)
{
	int32_t in[COUNT] = {1, 2, 3}, out[COUNT + 1];

	for (told_lie = 0; told_lie < LIES; told_lie++) {
		if (!liar_takes(told_lie))
			continue;
		CASE("message %d%s, lie %zu", told.kind, early ? ", early" : "", told_lie);
		serve_rank();
		out[COUNT] = 77;
		if (early)
			tell();
		reduce(o.comm, in, out, early ? NULL : tell);
		CHECK_EQ(out[COUNT], 77);
		CHECK(reducer_lost(o.comm) >= -1 && reducer_lost(o.comm) < 1);
		end_rank();
	}
}

static void lie_results_to_a_rank(void)
{
	told = (struct reducer_message){.kind = REDUCER_RESULT, .piece = honest};
	told_size = MESSAGE;
	lies_to_rank(false);
	lies_to_rank(true);
}

TEST_CALL(results_to_a_rank, liar_spread(lie_results_to_a_rank))

static void lie_failures_to_a_rank(void)
{
	told = (struct reducer_message){.kind = REDUCER_FAILED,
					.failed = {.why = REDUCER_WHY_GONE, .result = GANTRY_ERR_PEER_LOST}};
	told_size = REDUCER_HEADER;
	lies_to_rank(false);
}

TEST_CALL(failures_to_a_rank, liar_spread(lie_failures_to_a_rank))

/* The answer to its ask: sizes, and a handle that is none, leads elsewhere, or nowhere. */
static void lie_answers_to_a_rank(void)
{
	static const uint8_t places[] = {0, 4, 16, 24, 48, 56, 58, 60};
	static const uint8_t bytes[] = {0, 1, 6, 127, 255};
	static const size_t lengths[] = {0, 1, REDUCER_ANSWER_SIZE - 1, REDUCER_ANSWER_SIZE + 1, INET_PAYLOAD_MAX};
	uint8_t out[INET_PAYLOAD_MAX];
	struct reducer_ask a;

	for (size_t i = 0; i < sizeof(places) * sizeof(bytes) + TEST_COUNT(lengths); i++) {
		size_t k = i / sizeof(bytes), size = REDUCER_ANSWER_SIZE;

		if (!liar_takes(i))
			continue;
		CASE("answer %zu", i);
		begin_rank(SECOND / 5); /* some are waited for in vain */
		memset(out, 0, sizeof(out));
		memcpy(out, reducer.handle, sizeof(reducer.handle));
		if (k < sizeof(places))
			out[places[k]] = bytes[i % sizeof(bytes)];
		else
			size = lengths[i - sizeof(places) * sizeof(bytes)];
		answer(out, size, &a);
		end_open(&o);
		end_rank();
	}
}

TEST_CALL(answers_to_a_rank, liar_spread(lie_answers_to_a_rank))

/* ---- lies of a rank to another ---- */

/* Two ranks that reduce for each other, or with a reducer that serves neither: `honest_rank` is under test. */
static struct party liar;
static uint64_t job;

static void begin_two(uint32_t honest_rank, const char *reducers)
{
	struct reducer_message m;
	struct reducer_ask a;

	open_party(&rank);
	open_party(&liar);
	o = (struct opening){.p = &rank, .rank = honest_rank, .ranks = 2, .reducers = reducers};
	o.handles[honest_rank] = rank.handle;
	o.handles[!honest_rank] = liar.handle;
	begin_open(&o);
	if (*reducers)
		answer(NULL, 0, &a);
	be_dialled(&liar);
	CHECK_OK(get(&liar, REDUCER_TAG_DATA, &m));
	CHECK_EQ(m.kind, REDUCER_HELLO);
	job = m.hello.job;
}

static void end_two(void)
{
	reducer_close(o.comm);
	close_party(&rank);
	close_party(&liar);
}

static void liar_comes(void)
{
	CHECK(reach_out(&liar, rank.handle));
	say_hello(&liar, !o.rank, o.ranks + (*o.reducers ? 1 : 0), job);
}

/* In place of its HELLO: the connection is closed, the rank comes again, and both are up. */
static void lie_hellos_to_a_rank(void)
{
	for (size_t i = 0; i < LIES; i++) {
		if (!liar_takes(i))
			continue;
		CASE("lie %zu", i);
		begin_two(0, "");
		CHECK(reach_out(&liar, rank.handle));
		put_lie(&liar, REDUCER_TAG_DATA, &(struct reducer_message){.kind = REDUCER_HELLO, .hello = {1, 2, job}},
			REDUCER_HEADER, i, 1);
		if (!__atomic_load_n(&o.over, __ATOMIC_ACQUIRE)) {
			NET(close_send, liar.out);
			liar.out = NULL;
			liar_comes();
		}
		CHECK_OK(end_open(&o));
		end_two();
	}
}

TEST_CALL(hellos_to_a_rank, liar_spread(lie_hellos_to_a_rank))

static void tell_piece(void)
{
	put_lie(&liar, told.kind == REDUCER_PIECE ? REDUCER_TAG_DATA : REDUCER_TAG_RESULT, &told, told_size, told_lie,
		1 + (int)(told_lie % 2));
	put_piece(&liar, told.kind);
}

/* Rank 0 reduces the first piece of the first operation: as rank 0 the one under test hears PIECE, as rank 1 RESULT. */
static void lies_between(uint32_t honest_rank)
{
	int32_t in[COUNT] = {1, 2, 3}, out[COUNT + 1];

	for (told_lie = 0; told_lie < LIES; told_lie++) {
		if (!liar_takes(told_lie))
			continue;
		CASE("to rank %u, lie %zu", honest_rank, told_lie);
		begin_two(honest_rank, "");
		liar_comes();
		CHECK_OK(end_open(&o));
		out[COUNT] = 77;
		reduce(o.comm, in, out, tell_piece);
		CHECK_EQ(out[COUNT], 77);
		CHECK(reducer_lost(o.comm) >= -1 && reducer_lost(o.comm) < 2);
		end_two();
	}
}

static void lie_pieces_to_a_rank(void)
{
	told = (struct reducer_message){.kind = REDUCER_PIECE, .piece = honest};
	told_size = MESSAGE;
	lies_between(0);
}

TEST_CALL(pieces_to_a_rank, liar_spread(lie_pieces_to_a_rank))

static void lie_results_between_ranks(void)
{
	told = (struct reducer_message){.kind = REDUCER_RESULT, .piece = honest};
	told_size = MESSAGE;
	lies_between(1);
}

TEST_CALL(results_between_ranks, liar_spread(lie_results_between_ranks))

/* Which reducers all ranks reach. The one under test reaches none: whatever the other says, it has none to use. */
static void lies_of_reached(uint32_t honest_rank)
{
	struct reducer_message m = {.kind = REDUCER_REACHED, .reached = {.reached = {1}}};

	for (size_t i = 0; i < LIES; i++) {
		if (!liar_takes(i))
			continue;
		CASE("to rank %u, lie %zu", honest_rank, i);
		begin_two(honest_rank, asked_at());
		liar_comes();
		put_lie(&liar, REDUCER_TAG_DATA, &m, REDUCER_HEADER, i, 1 + (int)(i % 2));
		CHECK(end_open(&o) != GANTRY_OK);
		end_two();
	}
}

static void lie_reached(void)
{
	lies_of_reached(0);
	lies_of_reached(1);
}

TEST_CALL(reached, liar_spread(lie_reached))

void tests_begin(void)
{
	logs_drop();
	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_LANES", "1", 1);
	liar_begin();
}

void tests_end(void)
{
	liar_end();
}
