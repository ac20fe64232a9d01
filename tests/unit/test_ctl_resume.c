/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A control plane that outlives its sockets (GANTRY_RESUME): every message, call and allgather once and in order, whatever
 * breaks; and what does not come back is found: a hub that does not know the rank, a process that has ended, silence.
 * Catches: frames lost or doubled with a socket, half frames that are joined with others, a rank that is lost because it
 * left without a socket, ranks that are waited for although they are dead.
 */
#include "ctl_resume_util.h"

enum { ROUNDS = SANITIZED ? 20 : 120 };

static struct rank_state *join_ranks(int n, struct gantry_unique_id *id, int listens)
{
	struct rank_state *s;

	CHECK_OK(gantry_ctl_create_id(id));
	s = ranks_make(n, id, NULL);
	for (int i = 0; i < n; i++)
		s[i].listens = listens;
	ranks_start(s, n);
	ranks_joined(s, n);
	return s;
}

static struct rank_state *join_talk(struct talk *w, struct gantry_unique_id *id, int rounds, int listens)
{
	struct rank_state *s = join_ranks(TALKERS, id, listens);

	memset(w, 0, sizeof(*w));
	w->id = id;
	w->rounds = rounds;
	for (int i = 0; i < TALKERS; i++)
		w->ctl[i] = s[i].ctl;
	return s;
}

static void check_talk(uint64_t seed, unsigned kinds, int rounds, int listens)
{
	struct gantry_unique_id id;
	struct talk w;
	struct rank_state *s = join_talk(&w, &id, rounds, listens);
	gantry_result r = talk_in_trouble(&w, seed, kinds);
	uint32_t used = sockets_used(&w);

	for (int i = 0; r != GANTRY_OK && i < TALKERS; i++)
		fprintf(stderr, "rank %d: %s: %s\n", i, gantry_result_name(w.results[i]), w.texts[i]);
	CHECK_OK(r);
	for (int i = 0; i < TALKERS; i++)
		CHECK_EQ(lost_count(&s[i]), 0);
	printf("seed %llu: %u sockets broke\n", (unsigned long long)seed, used);
	CHECK(used > 0);
	ranks_leave(s, TALKERS);
	until_quiet();
}

static void resume_on(const char *timeout)
{
	set_params("GANTRY_RESUME", "on", "GANTRY_TIMEOUT", timeout);
}

TEST(resets)
{
	resume_on("20s");
	for (uint64_t seed = 1; seed <= 3; seed++)
		check_talk(seed, 1u << RESET_RANK | 1u << RESET_HUB | 1u << RESET_ALL, ROUNDS, 0);
}

/* Something on the way ends connections in good order: no process has ended. */
TEST(ends)
{
	resume_on("20s");
	check_talk(8, 1u << END_RANK | 1u << END_HUB, ROUNDS, 0);
}

TEST(beside)
{
	resume_on("20s");
	check_talk(4, 1u << DIAL_BESIDE, ROUNDS, 0);
	check_talk(5, (1u << TROUBLES) - 1, ROUNDS, 0);
}

TEST(encrypted)
{
	if (!GANTRY_HAVE_OPENSSL)
		return;
	resume_on("20s");
	set_params("GANTRY_SECRET", "a secret of thirty-two characters", "GANTRY_ENCRYPT", "on");
	check_talk(6, (1u << TROUBLES) - 1, ROUNDS, 0);
	set_params("GANTRY_SECRET", NULL);
	set_params("GANTRY_ENCRYPT", NULL);
}

/* Allgathers past the hub, whose words to it go on without a socket. */
TEST(exchanges)
{
	resume_on("20s");
	set_params("GANTRY_EXCHANGE_RANKS", "2");
	check_talk(7, (1u << TROUBLES) - 1, ROUNDS / 4, 1);
	set_params("GANTRY_EXCHANGE_RANKS", NULL);
}

/* What is on its way is kept until the peer has it. */
TEST(on_its_way)
{
	resume_on("20s");
	CHECK_OK(break_behind_count());
}

/* ---- joining and leaving ---- */

/* The answer to the first hello is cut: the hub has the rank, and the rank does not know. */
enum { CUT_AT = INET_CHALLENGE_SIZE + 100 };
static int answers_cut; /* the relay's */

static int64_t cut_answer(const struct relay_conn *c, int way)
{
	if (way == TO_SERVER || answers_cut)
		return RELAY_ALL;
	if ((int64_t)c->moved[TO_CLIENT] < CUT_AT)
		return CUT_AT;
	answers_cut = 1;
	return -1;
}

TEST(answer_lost)
{
	struct gantry_unique_id id;
	struct relay relay;
	struct rank_state *s;

	resume_on("20s");
	ctl_relay_make(&relay);
	relay.allow = cut_answer;
	CHECK_OK(gantry_ctl_create_id(&id));
	ctl_relay_start(&relay, &id);
	s = ranks_make(2, &id, NULL);
	ranks_start(s, 2);
	ranks_joined(s, 2);
	CHECK(answers_cut);
	ranks_leave(s, 2);
	until_quiet();
	ctl_relay_stop(&relay);
}

/* The answer to the hello with which a rank comes back is held until the rank gives up. */
static struct relay late_relay;

static int64_t hold_answer(const struct relay_conn *c, int way)
{
	return way == TO_CLIENT && c == &late_relay.conns[2] ? CUT_AT : RELAY_ALL;
}

static uint32_t generation_of(const struct gantry_unique_id *id, int rank)
{
	uint32_t n;

	inet_loop_lock();
	n = hub_rank_of(id, rank)->generation;
	inet_loop_unlock();
	return n;
}

static void reset_at_hub(const struct gantry_unique_id *id, int rank)
{
	inet_loop_lock();
	reset_socket(hub_rank_of(id, rank)->conn);
	inet_loop_unlock();
}

/* The hub has its socket by then, which must not end: that is how processes end. */
TEST(answer_late)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	resume_on("8s");
	ctl_relay_make(&late_relay);
	late_relay.allow = hold_answer;
	CHECK_OK(gantry_ctl_create_id(&id));
	ctl_relay_start(&late_relay, &id);
	s = ranks_make(2, &id, NULL);
	ranks_start(s, 2);
	ranks_joined(s, 2);
	reset_at_hub(&id, 1);
	UNTIL(generation_of(&id, 1) >= 2);
	for (int i = 0; i < 2; i++)
		CHECK_OK(gantry_ctl_send(s[i].ctl, !i, 1, "still here", 10));
	for (int i = 0; i < 2; i++) {
		char got[10];

		CHECK_OK(recv_wait(s[i].ctl, !i, 1, got, 10));
		CHECK_EQ(lost_count(&s[i]), 0);
	}
	ranks_leave(s, 2);
	until_quiet();
	ctl_relay_stop(&late_relay);
}

/* A rank that is played by hand: its hello on a new socket, narrow if little shall be in flight, and the hub's answer. */
static int come_by_hand(const struct gantry_unique_id *id, uint32_t generation, uint64_t received, int narrow,
			uint64_t *ret_first)
{
	const struct ctl_hello hello = {.process = 4711,
					.rank = 1,
					.nranks = 2,
					.timeout_ms = 100000,
					.wait_ms = 100000,
					.resume = INET_RESUME_YES,
					.generation = generation,
					.received = received};
	struct inet_handshake shake;
	uint8_t payload[CTL_HELLO_SIZE], key_bytes[INET_KEY_SIZE];
	struct ctl_accepted a;
	struct inet_key key;
	struct ctl_id decoded;
	enum inet_event event;
	int fd, little = 4096; /* bytes */

	CHECK_OK(ctl_id_decode(id, &decoded));
	CHECK_OK(inet_mixed_key(decoded.key, key_bytes, &key));
	ctl_hello_encode(&hello, payload);
	put64(payload, decoded.comm_id);
	CHECK_OK(inet_handshake_start_client(&shake, &hub_service.protocol, &key, payload, sizeof(payload)));
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (narrow)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
	CHECK_EQ(connect(fd, &decoded.addr.sa, sizeof(decoded.addr.in)), 0);
	WAIT_WHILE ((event = inet_handshake_move(&shake, fd)) != INET_DONE)
		if (event == INET_FAILED)
			TEST_FAIL("%s", shake.text);
	CHECK_OK(ctl_accepted_decode(shake.payload, shake.payload_size, &a));
	*ret_first = a.first;
	inet_handshake_end(&shake);
	return fd;
}

/* Reads one frame of the hub's that is counted, and returns its tag. */
static uint64_t read_frame(int fd)
{
	static uint8_t body[GANTRY_CTL_MESSAGE_MAX];
	uint8_t raw[INET_HEADER_SIZE];
	struct inet_header h;

	do {
		CHECK_EQ(recv(fd, raw, sizeof(raw), MSG_WAITALL), sizeof(raw));
		CHECK_OK(inet_header_decode(raw, &h));
		CHECK_EQ(recv(fd, body, h.size, MSG_WAITALL), h.size);
	} while (h.kind == CTL_LIFE);
	return h.tag;
}

/*
 * A rank dials again and then reads on from its old socket, as it may until it is answered. The new socket breaks before the
 * hub has sent all of it again: the rank comes once more, with a count beyond what was written since.
 */
TEST(read_on_from_the_old_socket)
{
	enum { MANY = 400 }; /* 25 MiB: more than a socket holds */
	static uint8_t bytes[GANTRY_CTL_MESSAGE_MAX];
	struct gantry_unique_id id;
	struct rank_state *s;
	uint64_t first = 0;
	int fd, second;

	resume_on("100s");
	CHECK_OK(gantry_ctl_create_id(&id));
	s = ranks_make(2, &id, NULL);
	ranks_start(s, 1);
	fd = come_by_hand(&id, 0, 0, 0, &first);
	ranks_joined(s, 1);
	read_frame(fd); /* READY */
	for (uint64_t i = 0; i < MANY; i++)
		CHECK_OK(gantry_ctl_send(s[0].ctl, 1, i, bytes, sizeof(bytes)));
	second = come_by_hand(&id, 1, 1, 0, &first);
	CHECK_EQ(first, 1);
	close(fd);
	for (uint64_t i = 0; i < MANY / 2; i++)
		CHECK_EQ(read_frame(second), i);
	UNTIL(hub_keeps(&id, 1) >= MANY / 2);
	fd = come_by_hand(&id, 2, 1, 1, &first); /* its hello is older than what it has read by now */
	CHECK_EQ(first, 1);
	reset_at_hub(&id, 1);
	close(second);
	close(fd);
	fd = come_by_hand(&id, 3, 1 + MANY / 2, 0, &first);
	CHECK_EQ(first, 1 + MANY / 2);
	for (uint64_t i = MANY / 2; i < MANY; i++)
		CHECK_EQ(read_frame(fd), i);
	CHECK_EQ(lost_count(&s[0]), 0);
	inet_header_encode(&(struct inet_header){.kind = CTL_LEAVE, .from = 1, .to = -1}, bytes);
	CHECK_EQ(send(fd, bytes, INET_HEADER_SIZE, 0), INET_HEADER_SIZE);
	ranks_leave(s, 1);
	UNTIL(recv(fd, bytes, sizeof(bytes), 0) <= 0);
	close(fd);
	until_quiet();
}

static int is_waiting(const struct gantry_unique_id *id, int rank)
{
	struct hub_rank *r;
	int waits;

	inet_loop_lock();
	r = hub_rank_of(id, rank);
	waits = r && r->state == HUB_HERE;
	inet_loop_unlock();
	return waits;
}

TEST(while_joining)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	resume_on("20s");
	CHECK_OK(gantry_ctl_create_id(&id));
	s = ranks_make(2, &id, NULL);
	ranks_start(s, 1);
	UNTIL(is_waiting(&id, 0));
	reset_at_hub(&id, 0);
	UNTIL(generation_of(&id, 0) == 1);
	ranks_start(s + 1, 1);
	ranks_joined(s, 2);
	ranks_leave(s, 2);
	until_quiet();
}

/* It has left, and was not lost, whenever its socket broke. */
TEST(leaving)
{
	struct gantry_unique_id id;

	resume_on("20s");
	for (int i = 0; i < 20; i++) {
		struct rank_state *s = join_ranks(2, &id, 0);

		if (i & 1)
			make_trouble(&id, s[1].ctl,
				     (enum trouble[]){RESET_HUB, RESET_RANK, END_HUB, END_RANK}[i / 2 % 4]);
		gantry_ctl_leave(s[1].ctl);
		if (!(i & 1))
			reset_at_hub(&id, 1);
		UNTIL(gantry_ctl_peer(s[0].ctl, 1) != GANTRY_OK);
		CHECK_EQ(gantry_ctl_peer(s[0].ctl, 1), GANTRY_ERR_PEER_CLOSED);
		CHECK_EQ(lost_count(&s[0]), 0);
		gantry_ctl_leave(s[0].ctl);
		free(s);
	}
	until_quiet();
}

/* ---- what does not come back ---- */

static void until_lost(struct rank_state *s, int n)
{
	UNTIL(lost_count(s) >= n);
}

/* Each rank's socket breaks, and the hub has changed its mind about it. */
TEST(refusals)
{
	static const struct {
		gantry_result why;
		const char *text;
	} rows[] = {
		{0, NULL},
		{GANTRY_ERR_PEER_LOST, "a socket from an earlier epoch of the connection"},
		{GANTRY_ERR_PEER_LOST, "another process has this rank"},
		{GANTRY_ERR_PROTOCOL, "its frame count does not match what was sent"},
		{GANTRY_ERR_PEER_LOST, "this rank was reported lost, and the other ranks know"},
	};
	enum { N = TEST_COUNT(rows) };
	struct gantry_unique_id id;
	struct rank_state *s;
	char all[N];
	uint64_t began;

	resume_on("1s");
	s = join_ranks(N, &id, 0);
	for (int i = 0; i < N; i++)
		CHECK_OK(gantry_ctl_send(s[i].ctl, 0, 1, "", 1));
	for (int i = 0; i < N; i++)
		CHECK_OK(recv_wait(s[0].ctl, i, 1, all, 1));
	inet_loop_lock();
	hub_rank_of(&id, 1)->generation = 100;
	hub_rank_of(&id, 2)->process ^= 1;
	hub_rank_of(&id, 3)->conn->session.acked += 5; /* frames that the rank does not have */
	hub_rank_of(&id, 3)->conn->session.sent += 5;
	hub_rank_of(&id, 4)->conn->session.on = false; /* so that its end is the rank's */
	for (int i = 1; i < N; i++)
		reset_socket(s[i].ctl->conn);
	inet_loop_unlock();
	began = now_ms();
	for (int i = 1; i < N; i++) {
		CASE("rank %d", i);
		until_lost(&s[i], 1);
		CHECK_EQ(s[i].lost_why[0], rows[i].why);
		CHECK_HAS(s[i].lost_text, rows[i].text);
	}
	CHECK(now_ms() - began < 100000);
	until_lost(&s[0], N - 1); /* at the latest when the deadline is over: this side cannot know better */
	ranks_leave(s, N);
	until_quiet();
}

/* Without GANTRY_RESUME a reset is the end, at once. */
TEST(off)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	set_params("GANTRY_RESUME", "off", "GANTRY_TIMEOUT", "100s");
	s = join_ranks(2, &id, 0);
	make_trouble(&id, s[1].ctl, RESET_RANK);
	until_lost(&s[0], 1);
	until_lost(&s[1], 1);
	CHECK_EQ(s[0].lost_why[0], GANTRY_ERR_PEER_LOST);
	CHECK_HAS(s[0].lost_text, "the connection broke: Connection reset by peer");
	ranks_leave(s, 2);
	until_quiet();
}

/* Something on the way has forgotten the first connections: what comes on them vanishes, and new ones pass. */
static uint64_t forgotten; /* atomic: connections that came before this time, ms */

static uint64_t forget_old(const struct relay_conn *c, int way)
{
	return c->since < __atomic_load_n(&forgotten, __ATOMIC_RELAXED) ? c->moved[way] : UINT64_MAX;
}

TEST(forgotten_on_the_way)
{
	struct gantry_unique_id id;
	struct relay relay;
	struct rank_state *s;
	char c = 0;

	resume_on("1s");
	ctl_relay_make(&relay);
	relay.swallow = forget_old;
	CHECK_OK(gantry_ctl_create_id(&id));
	ctl_relay_start(&relay, &id);
	s = ranks_make(2, &id, NULL);
	ranks_start(s, 2);
	ranks_joined(s, 2);
	__atomic_store_n(&forgotten, now_ms() + 1, __ATOMIC_RELAXED);
	sleep_ms(5);
	CHECK_OK(gantry_ctl_send(s[0].ctl, 1, 1, "a", 1));
	CHECK_OK(gantry_ctl_send(s[1].ctl, 0, 1, "b", 1));
	CHECK_OK(recv_wait(s[1].ctl, 0, 1, &c, 1));
	CHECK_EQ(c, 'a');
	CHECK_OK(recv_wait(s[0].ctl, 1, 1, &c, 1));
	CHECK_EQ(c, 'b');
	CHECK(generation_of(&id, 0) && generation_of(&id, 1));
	CHECK_EQ(lost_count(&s[0]) + lost_count(&s[1]), 0);
	ranks_leave(s, 2);
	until_quiet();
	ctl_relay_stop(&relay);
}

/* ---- processes that die: with something unread their sockets are reset, else ended ---- */

static void join_one(struct rank_state *s, const struct gantry_unique_id *id, int rank)
{
	*s = (struct rank_state){.rank = rank, .nranks = 2, .id = id, .listens = 1};
	pthread_mutex_init(&s->mu, NULL);
	join_as(s);
	CHECK_OK(s->joined);
}

/* The child has the hub, or comes to it, as rank 1; it never returns. */
static void be_child(int in, int out, int has_hub)
{
	struct gantry_unique_id id;
	struct rank_state s;

	if (has_hub) {
		CHECK_OK(gantry_ctl_create_id(&id));
		CHECK_EQ(write(out, &id, sizeof(id)), sizeof(id));
	} else {
		CHECK_EQ(read(in, &id, sizeof(id)), sizeof(id));
	}
	join_one(&s, &id, 1);
	CHECK_EQ(write(out, "", 1), 1);
	for (;;)
		pause();
}

/* Rank 0, here, and rank 1, in the child that is returned. */
static pid_t join_child(int has_hub, struct rank_state *s)
{
	struct gantry_unique_id id;
	int to[2], from[2];
	pid_t pid;
	char c;

	CHECK(!pipe(to) && !pipe(from));
	pid = child_fork();
	if (!pid)
		be_child(to[0], from[1], has_hub);
	if (has_hub) {
		CHECK_EQ(read(from[0], &id, sizeof(id)), sizeof(id));
	} else {
		CHECK_OK(gantry_ctl_create_id(&id));
		CHECK_EQ(write(to[1], &id, sizeof(id)), sizeof(id));
	}
	join_one(s, &id, 0);
	CHECK_EQ(read(from[0], &c, 1), 1);
	for (int i = 0; i < 2; i++) {
		close(to[i]);
		close(from[i]);
	}
	return pid;
}

static void dies(int has_hub, int unread)
{
	struct rank_state s;
	uint64_t began;
	pid_t pid = join_child(has_hub, &s);

	CHECK_EQ(kill(pid, SIGSTOP), 0);
	sleep_ms(20);
	if (unread)
		CHECK_OK(gantry_ctl_send(s.ctl, 1, 1, "x", 1));
	sleep_ms(50); /* it is in the child's socket */
	began = now_ms();
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	until_lost(&s, 1);
	printf("a process %s died, found after %d ms\n", has_hub ? "with the hub" : "of a rank",
	       (int)(now_ms() - began));
	CHECK_EQ(s.lost_rank[0], 1);
	CHECK_EQ(s.lost_why[0], GANTRY_ERR_PEER_LOST);
	CHECK_HAS(s.lost_text, "nothing is listening there any more: its process ended");
	gantry_ctl_leave(s.ctl);
	until_quiet();
}

TEST(dead_rank)
{
	resume_on("10s");
	for (int unread = 0; CAN_FORK && unread < 2; unread++)
		dies(0, unread);
}

TEST(dead_hub)
{
	resume_on("10s");
	for (int unread = 0; CAN_FORK && unread < 2; unread++)
		dies(1, unread);
}

/* ---- outages longer than a quarter of GANTRY_TIMEOUT, after which a rank dials again, and shorter than all of it ---- */

enum { OUTAGE_PERCENT = 35, SECONDS_FIRST = 4, SECONDS_MOST = 64 };

static bool can_talk(struct rank_state *s)
{
	char c = 0;

	for (int i = 0; i < 2; i++)
		if (gantry_ctl_send(s[i].ctl, !i, 1, "a", 1) != GANTRY_OK)
			return false;
	for (int i = 0; i < 2; i++)
		if (recv_wait(s[i].ctl, !i, 1, &c, 1) != GANTRY_OK || lost_count(&s[i]))
			return false;
	return true;
}

/* Nothing passes between the ranks and the hub; with cut, their sockets are reset too. */
static bool survives_relay(int cut, int seconds, uint64_t *ret_ms)
{
	struct gantry_unique_id id;
	struct relay relay;
	struct rank_state *s;
	uint64_t began;
	bool survives;

	ctl_relay_make(&relay);
	CHECK_OK(gantry_ctl_create_id(&id));
	ctl_relay_start(&relay, &id);
	s = ranks_make(2, &id, NULL);
	ranks_start(s, 2);
	ranks_joined(s, 2);
	began = now_ms();
	__atomic_store_n(cut ? &relay.cut : &relay.frozen, 1, __ATOMIC_RELEASE);
	sleep_ms(seconds * 10 * OUTAGE_PERCENT);
	__atomic_store_n(cut ? &relay.cut : &relay.frozen, 0, __ATOMIC_RELEASE);
	survives = can_talk(s);
	*ret_ms = now_ms() - began;
	ranks_leave(s, 2);
	until_quiet();
	ctl_relay_stop(&relay);
	return survives;
}

/* The process of rank 1 is stopped, with the hub or without. */
static bool survives_stop(int has_hub, int seconds, uint64_t *ret_ms)
{
	uint8_t reply[16];
	size_t size = sizeof(reply);
	struct rank_state s;
	uint64_t began;
	bool survives;
	pid_t pid = join_child(has_hub, &s);

	began = now_ms();
	CHECK_EQ(kill(pid, SIGSTOP), 0);
	sleep_ms(seconds * 10 * OUTAGE_PERCENT);
	CHECK_EQ(kill(pid, SIGCONT), 0);
	survives = gantry_ctl_call(s.ctl, 1, ANSWER_KIND, "a", 1, reply, &size) == GANTRY_OK && !lost_count(&s);
	*ret_ms = now_ms() - began;
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	gantry_ctl_leave(s.ctl);
	until_quiet();
	return survives;
}

/* If it took nearly as long as the deadline, the machine was held up: again, with a longer one. */
static void outage(bool (*survives)(int how, int seconds, uint64_t *ret_ms), int how, const char *resume)
{
	char timeout[16];
	uint64_t ms;

	for (int seconds = SECONDS_FIRST;; seconds *= 2) {
		snprintf(timeout, sizeof(timeout), "%ds", seconds);
		set_params("GANTRY_RESUME", resume, "GANTRY_TIMEOUT", timeout);
		if (survives(how, seconds, &ms))
			return;
		if (ms < (uint64_t)seconds * 750 || seconds >= SECONDS_MOST)
			TEST_FAIL("given up at a deadline of %d s, in %d ms", seconds, (int)ms);
	}
}

TEST_CALL(outage_of_packets, outage(survives_relay, 0, "off"))
TEST_CALL(outage_of_packets_resumed, outage(survives_relay, 0, "on"))
TEST_CALL(outage_of_sockets, outage(survives_relay, 1, "on"))
TEST_CALL(stopped_rank, CAN_FORK ? outage(survives_stop, 0, "on") : (void)0)
TEST_CALL(stopped_hub, CAN_FORK ? outage(survives_stop, 1, "on") : (void)0)

void tests_begin(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
}

void tests_end(void)
{
	until_quiet();
}
