/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining that goes wrong: everybody hears who is to blame and why, within the deadline.
 * Catches: a join that hangs or names nobody, one side that fails while others wait, a key or secret that is not
 * checked, late ranks that find nobody to tell them why, retries that stop at the first refused connection.
 */
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "ctl_util.h"

/* Hubs that wait for somebody, and those that failed, need not be waited for. */
static void end_hubs(void)
{
	inet_loop_lock();
	gantry_list_each (pos, &ctl_service.hubs) {
		gantry_container(pos, struct hub, node)->until = 0;
	}
	ctl_service_due(0);
	if (inet_loop.running)
		inet_loop_wake();
	inet_loop_unlock();
	until_quiet();
}

/* Joins those listed, each with its own count; gives back their states. */
static struct rank_state *try_ranks(const struct gantry_unique_id *id, int n, const int *rank, const int *nranks)
{
	struct rank_state *s = ranks_make(n, id, NULL);

	for (int i = 0; i < n; i++) {
		s[i].rank = rank[i];
		s[i].nranks = nranks[i];
	}
	ranks_start(s, n);
	ranks_wait(s, n);
	return s;
}

/* How long a failed hub stays for those who come late: back is what it was, 0 if it is over already. */
static uint64_t hub_stays(const struct gantry_unique_id *id, uint64_t until)
{
	struct hub *hub;
	uint64_t was = 0;

	inet_loop_lock();
	hub = hub_find(gantry_ctl_comm_id(id));
	if (hub) {
		was = hub->until;
		hub->until = until;
		ctl_service_due(until);
		inet_loop_wake();
	}
	inet_loop_unlock();
	return was;
}

/*
 * Three of six ranks, within so many seconds. 0: one of them, or the service thread, or this one was held up for longer
 * than that, and others were counted or nobody is there any more.
 */
static int three_came(struct gantry_unique_id *id, int seconds, uint64_t *ret_until)
{
	uint64_t began = now_ms(), took;
	struct rank_state *s;
	char text[16];
	int came = 1;

	snprintf(text, sizeof(text), "%ds", seconds);
	set_params("GANTRY_CONNECT_TIMEOUT", text, "GANTRY_CALL_TIMEOUT", text);
	CHECK_OK(gantry_ctl_create_id(id));
	s = try_ranks(id, 3, (int[]){0, 2, 5}, (int[]){6, 6, 6});
	took = now_ms() - began;
	*ret_until = hub_stays(id, UINT64_MAX);
	CHECK(took >= (uint64_t)seconds * 1000 - 20);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(lost_count(&s[i]), 0);
		came = came && strstr(s[i].text, "3 of 6 ranks joined") && strstr(s[i].text, "missing: ranks 1, 3-4");
	}
	for (int i = 0; i < 3; i++)
		if (came)
			CHECK_EQ(s[i].joined, GANTRY_ERR_TIMEOUT);
		else
			fprintf(stderr, "within %d s, rank %d: %s\n", seconds, s[i].rank, s[i].text);
	free(s);
	if (came && *ret_until)
		return 1;
	end_hubs();
	return 0;
}

/* A rank's port where nobody listens, and nobody else may come to listen: it is ours. -1: somebody was faster. */
static int keep_port(const struct gantry_unique_id *id)
{
	struct ctl_id i;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK_OK(ctl_id_decode(id, &i));
	if (bind(fd, &i.addr.sa, sizeof(i.addr.in)) == 0)
		return fd;
	CHECK_EQ(errno, EADDRINUSE);
	close(fd);
	return -1;
}

/* One rank of so many tries to join: what comes of it, with which text. */
static void refused(const struct gantry_unique_id *id, int rank, int nranks, gantry_result why, const char *part)
{
	struct rank_state *s = try_ranks(id, 1, &rank, &nranks);

	CHECK_RESULT(s->joined, why);
	CHECK_HAS(s->text, part);
	free(s);
}

/* 0: its time was over before it could try. */
static int finds_nobody(const struct gantry_unique_id *id)
{
	struct rank_state *s = try_ranks(id, 1, (int[]){4}, (int[]){6});
	int tried = strstr(s->text, "Connection refused") != NULL;

	CHECK_EQ(s->joined, GANTRY_ERR_UNREACHABLE);
	CHECK_HAS(s->text, "rank 4: no connection to the bootstrap root at 127.0.0.1:");
	free(s);
	return tried;
}

TEST(test_missing)
{
	struct gantry_unique_id id;
	uint64_t until;
	int seconds = 1, port;

	while (!three_came(&id, seconds, &until)) {
		seconds *= 2;
		CHECK(seconds <= 16);
	}
	/* Who comes too late hears the same, and need not wait for it. */
	set_params("GANTRY_CONNECT_TIMEOUT", "400s", "GANTRY_CALL_TIMEOUT", NULL);
	refused(&id, 3, 6, GANTRY_ERR_TIMEOUT, "3 of 6 ranks joined");
	refused(&id, 3, 6, GANTRY_ERR_TIMEOUT, "missing: ranks 1, 3-4");
	CHECK_EQ(hub_stays(&id, until), UINT64_MAX);
	until_quiet(); /* it ends by itself */
	/* And who comes much too late finds nobody. */
	port = keep_port(&id);
	if (port >= 0) {
		set_params("GANTRY_CONNECT_TIMEOUT", "500ms");
		UNTIL(finds_nobody(&id));
		close(port);
	}
	set_params("GANTRY_CONNECT_TIMEOUT", "400s"); /* whoever does not have to wait for it */
}

TEST(test_twice)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	CHECK_OK(gantry_ctl_create_id(&id));
	s = try_ranks(&id, 3, (int[]){0, 1, 1}, (int[]){3, 3, 3});
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(s[i].joined, GANTRY_ERR_USAGE);
		CHECK_HAS(s[i].text, "rank 1 joined twice: rank 1 (127.0.0.1:");
	}
	free(s);
	end_hubs();
	/* Once all are there, it is only the newcomer's fault. */
	s = ranks_run(2, &id, NULL);
	refused(&id, 1, 2, GANTRY_ERR_USAGE, "2 ranks have already joined");
	CHECK_OK(gantry_ctl_send(s[0].ctl, 1, 1, "x", 1));
	CHECK_OK(recv_wait(s[1].ctl, 0, 1, (char[1]){0}, 1));
	ranks_leave(s, 2);
}

TEST(test_counts)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	CHECK_OK(gantry_ctl_create_id(&id));
	s = try_ranks(&id, 2, (int[]){0, 1}, (int[]){3, 4});
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(s[i].joined, GANTRY_ERR_SETTING);
		CHECK_HAS(s[i].text, "ranks disagree on the number of ranks: rank ");
		CHECK_HAS(s[i].text, s[i].rank ? "rank 0 (127.0.0.1:" : "rank 1 (127.0.0.1:");
	}
	free(s);
}

TEST(test_arguments)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	CHECK_OK(gantry_ctl_create_id(&id));
	s = try_ranks(&id, 3, (int[]){2, -1, 0}, (int[]){2, 2, 0});
	for (int i = 0; i < 3; i++)
		CHECK_EQ(s[i].joined, GANTRY_ERR_INVALID);
	free(s);
	id.bytes[4]++;
	refused(&id, 0, 1, GANTRY_ERR_VERSION, "has version 8, but this library has version 7");
	memset(&id, 0, sizeof(id));
	refused(&id, 0, 1, GANTRY_ERR_INVALID, "");
	CHECK_EQ(gantry_ctl_comm_id(&id), 0);
}

/* The key in the id is changed, or the secrets differ: refused on the rank's side; the others name who is missing. */
TEST(test_keys)
{
	struct gantry_unique_id id, wrong;
	struct rank_state *s;

	CHECK_OK(gantry_ctl_create_id(&id));
	wrong = id;
	wrong.bytes[40] ^= 1;
	/* Without MACs the hub shows its half of the key first: the rank finds the difference. */
	refused(&wrong, 1, 2, GANTRY_ERR_AUTH, GANTRY_HAVE_OPENSSL ? "wrong key" : "does not have the key");
	if (!GANTRY_HAVE_OPENSSL) {
		set_params("GANTRY_SECRET", "alpha");
		CHECK_EQ(gantry_ctl_create_id(&id), GANTRY_ERR_CONFIG);
		set_params("GANTRY_SECRET", NULL);
		return;
	}
	set_params("GANTRY_SECRET", "alpha");
	refused(&id, 1, 2, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the rank's side");
	CHECK_OK(gantry_ctl_create_id(&id));
	set_params("GANTRY_SECRET", "beta");
	refused(&id, 1, 2, GANTRY_ERR_AUTH, "GANTRY_SECRET differs");
	set_params("GANTRY_SECRET", NULL);
	refused(&id, 1, 2, GANTRY_ERR_AUTH, "only on the bootstrap root's side");
	set_params("GANTRY_SECRET", "alpha");
	s = try_ranks(&id, 2, (int[]){0, 1}, (int[]){2, 2});
	CHECK_OK(s[0].joined);
	CHECK_OK(s[1].joined);
	ranks_leave(s, 2);
	set_params("GANTRY_SECRET", NULL);
}

static int ranks_here(const struct gantry_unique_id *id)
{
	struct hub *hub;
	int n;

	inet_loop_lock();
	hub = hub_find(gantry_ctl_comm_id(id));
	n = hub ? hub->nhere : -1;
	inet_loop_unlock();
	return n;
}

static int strangers_here(void)
{
	int n;

	inet_loop_lock();
	n = inet_arrivals.strangers;
	inet_loop_unlock();
	return n;
}

/* The secret differs on rank 1, or one side has none: rank 0 hears of it too, when the time is over and not before. */
TEST(test_secrets_told)
{
	static const char *const secrets[][2] = {{"alpha", "beta"}, {"alpha", NULL}, {NULL, "beta"}};

	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_CONNECT_TIMEOUT", "400s");
	for (int i = 0; i < 3; i++) {
		struct gantry_unique_id id;
		struct rank_state *s;

		set_params("GANTRY_SECRET", secrets[i][0]);
		CHECK_OK(gantry_ctl_create_id(&id));
		s = ranks_make(2, &id, NULL);
		ranks_start(s, 1);
		UNTIL(ranks_here(&id) == 1);
		set_params("GANTRY_SECRET", secrets[i][1]);
		ranks_start(s + 1, 1);
		ranks_wait(s + 1, 1);
		CHECK_EQ(s[1].joined, GANTRY_ERR_AUTH);
		CHECK_HAS(s[1].text, "GANTRY_SECRET");
		UNTIL(strangers_here() == 0); /* it has left, and the hub knows */
		CHECK_EQ(ranks_here(&id), 1);
		CHECK(hub_stays(&id, 0));
		ranks_wait(s, 1);
		CHECK_EQ(s[0].joined, GANTRY_ERR_TIMEOUT);
		CHECK_HAS(s[0].text, "missing: rank 1; 3 connections had the id but failed to prove the secret: does "
				     "GANTRY_SECRET differ?");
		free(s);
	}
	set_params("GANTRY_SECRET", NULL, "GANTRY_CONNECT_TIMEOUT", NULL);
	end_hubs();
}

/* No descriptor for a connection: tried again and again, and told once a second with a count of the rest. */
TEST(test_out_of_descriptors)
{
	struct gantry_unique_id id;
	struct ctl_id where;
	struct rlimit was, none;
	uint64_t began;
	int fd, lines;

	set_params("GANTRY_LOG", "warn");
	CHECK_OK(gantry_ctl_create_id(&id));
	CHECK_OK(ctl_id_decode(&id, &where));
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	logs_keep();
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
	none = (struct rlimit){0, was.rlim_max};
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	began = gantry_now_ns();
	CHECK_EQ(connect(fd, &where.addr.sa, sizeof(where.addr.in)), 0);
	UNTIL(logs_count(" accept: ") >= 3);
	lines = logs_count(" accept: ");
	CHECK((uint64_t)(lines - 1) * 1000000000u <= gantry_now_ns() - began);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &was), 0);
	UNTIL(strangers_here() == 1); /* it was not lost */
	close(fd);
	logs_end();
	CHECK_HAS(logs_text(), "Too many open files");
	CHECK_HAS(logs_text(), " similar lines suppressed)");
	set_params("GANTRY_LOG", NULL);
	end_hubs();
}

/* Ranks may come before the hub can be reached, and connections may break during the hand-shake. */
TEST(test_late_hub)
{
	struct gantry_unique_id id;
	struct rank_state *s;
	struct relay relay;

	ctl_relay_make(&relay);
	CHECK_OK(gantry_ctl_create_id(&id));
	s = ranks_make(4, &id, NULL);
	ranks_start(s, 2);
	sleep_ms(150);
	relay.cut = 1; /* it takes connections and breaks them */
	ctl_relay_start(&relay, &id);
	sleep_ms(150);
	__atomic_store_n(&relay.cut, 0, __ATOMIC_RELEASE);
	ranks_start(s + 2, 2);
	ranks_joined(s, 4);
	ranks_leave(s, 4);
	end_hubs();
	ctl_relay_stop(&relay);
}

/* Whether n ranks are at the hub, and have heard that they are. */
static int are_here(const struct gantry_unique_id *id, int n)
{
	int here, waiting = 0;

	inet_loop_lock();
	here = hub_find(gantry_ctl_comm_id(id))->nhere;
	gantry_list_each (pos, &ctl_service.members) {
		waiting += gantry_container(pos, struct gantry_ctl, node)->step == STEP_WAITING;
	}
	inet_loop_unlock();
	return here == n && waiting == n;
}

/* ---- as many descriptors as ranks ---- */

enum { CROWD = 40 };

/* So many more may be opened; gives back what the limits were. */
static struct rlimit limit_files(int more, int hard)
{
	struct rlimit was, less;

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
	less = was;
	less.rlim_cur = (rlim_t)(held(HELD_FDS) + more);
	if (hard)
		less.rlim_max = less.rlim_cur;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &less), 0);
	return was;
}

/* The hub raises the soft limit when it learns how many ranks there will be. */
TEST(test_raises_limit)
{
	struct gantry_unique_id id;
	struct rank_state *s;
	struct rlimit was;

	was = limit_files(30, 0);
	if (was.rlim_max < 2 * CROWD + 100)
		SKIP("the hard limit of open files is %llu", (unsigned long long)was.rlim_max);
	CHECK_OK(gantry_ctl_create_id(&id));
	s = ranks_make(CROWD, &id, NULL);
	ranks_start(s, 1);
	UNTIL(ranks_here(&id) == 1);
	ranks_start(s + 1, CROWD - 1);
	ranks_joined(s, CROWD);
	ranks_leave(s, CROWD);
	until_quiet();
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &was), 0);
}

/* If it may not, the first rank is told so, and all that come later: none waits for connections that cannot be accepted. */
TEST(test_limit_too_low)
{
	struct gantry_unique_id id;
	pid_t pid;

	if (!CAN_FORK)
		return;
	pid = child_fork();
	if (pid) {
		child_wait(pid);
		return;
	}
	limit_files(30, 1);
	CHECK_OK(gantry_ctl_create_id(&id));
	for (int rank = 0; rank < 2; rank++)
		refused(&id, rank, CROWD, GANTRY_ERR_LIMIT, "needs an open file for each of 40 ranks");
	child_end(0);
}

/* ---- a rank whose service thread is held up ---- */

static int answers_pass;

/* The challenge passes, the answer behind it when it may. */
static int64_t allow_answers(const struct relay_conn *c, int way)
{
	(void)c;
	return way == TO_SERVER || __atomic_load_n(&answers_pass, __ATOMIC_ACQUIRE) ? RELAY_ALL : INET_CHALLENGE_SIZE;
}

static struct gantry_ctl *find_shaking(void) REQUIRES(loop_mu)
{
	gantry_list_each_entry (m, &ctl_service.members, struct gantry_ctl, node)
		if (m->dial->to_hub.state == INET_DIAL_SHAKING)
			return m;
	return NULL;
}

static int bytes_at(int fd)
{
	int n = 0;

	return ioctl(fd, FIONREAD, &n) == 0 && n > 0;
}

static int hub_has(const struct gantry_unique_id *id, int n)
{
	int here;

	inet_loop_lock();
	here = hub_find(gantry_ctl_comm_id(id))->nhere;
	inet_loop_unlock();
	return here == n;
}

/*
 * The hub has accepted the rank. Its answer comes when the rank's thread is behind epoll_wait and stands still, and the time of
 * the attempt is over when it goes on: it must read the answer, not hang up, which would be a lost rank for the hub.
 */
TEST(test_held_up_in_join)
{
	struct gantry_unique_id id, by_relay;
	struct rank_state *s;
	struct gantry_ctl *m;
	struct ctl_id i;
	struct relay relay;

	if (!GANTRY_HAVE_OPENSSL) /* then there is no challenge */
		return;
	CHECK_OK(gantry_ctl_create_id(&id));
	ctl_relay_make(&relay);
	relay.allow = allow_answers;
	ctl_relay_start(&relay, &id);
	CHECK_OK(ctl_id_decode(&id, &i));
	i.addr.in = lo_addr(relay.port);
	ctl_id_encode(&i, &by_relay);
	s = ranks_make(2, &id, NULL);
	s[1].id = &by_relay;
	ranks_start(s + 1, 1);
	UNTIL(hub_has(&id, 1));
	inet_loop_lock();
	m = find_shaking();
	CHECK(m != NULL);
	inet_loop_wake();
	sleep_ms(100); /* the thread has seen that, and waits for the lock */
	__atomic_store_n(&answers_pass, 1, __ATOMIC_RELEASE);
	UNTIL(bytes_at(m->dial->to_hub.source.fd));
	m->dial->to_hub.due = 1;
	inet_loop_unlock();
	ranks_start(s, 1);
	ranks_joined(s, 2);
	ranks_leave(s, 2);
	end_hubs();
	ctl_relay_stop(&relay);
}

/* A rank that goes while the others wait: they hear it at once, and who. */
TEST(test_lost_in_join)
{
	struct gantry_unique_id id;
	struct rank_state *s;
	struct relay relay;

	end_hubs();
	CHECK_OK(gantry_ctl_create_id(&id));
	s = ranks_make(3, &id, NULL);
	ranks_start(s, 1);
	ctl_relay_make(&relay);
	ctl_relay_start(&relay, &id);
	{
		struct gantry_unique_id by_relay = id;
		struct ctl_id i;

		CHECK_OK(ctl_id_decode(&id, &i));
		i.addr.in = lo_addr(relay.port);
		ctl_id_encode(&i, &by_relay);
		s[1].id = &by_relay;
		ranks_start(s + 1, 1);
		UNTIL(are_here(&id, 2));
		__atomic_store_n(&relay.cut, 1, __ATOMIC_RELEASE);
		ranks_wait(s, 2);
	}
	CHECK_EQ(s[0].joined, GANTRY_ERR_PEER_LOST); /* not GANTRY_CONNECT_TIMEOUT's, which takes 400 s */
	CHECK_HAS(s[0].text, "while ranks were joining: rank 1 (127.0.0.1:");
	CHECK_EQ(s[1].joined, GANTRY_ERR_PEER_LOST);
	ctl_relay_stop(&relay);
	free(s);
}

/* An id at a port that was free just now. 0: somebody was faster. */
static int id_at_free_port(struct gantry_unique_id *id, char port[16])
{
	snprintf(port, 16, "%d", lo_free_port());
	set_params("GANTRY_PORT_RANGE", port);
	return gantry_ctl_create_id(id) == GANTRY_OK;
}

/* The hubs of a process share one port, of the user's range if there is one. */
TEST(test_port)
{
	struct gantry_unique_id id[2];
	char text[GANTRY_ADDR_TEXT], port[16];

	end_hubs();
	UNTIL(id_at_free_port(&id[0], port));
	for (int k = 0; k < 2; k++) {
		if (k)
			CHECK_OK(gantry_ctl_create_id(&id[k]));
		id_text(&id[k], text);
		CHECK_STR(strchr(text, ':') + 1, port);
	}
	CHECK(gantry_ctl_comm_id(&id[0]) != gantry_ctl_comm_id(&id[1]));
	for (int k = 0; k < 2; k++) {
		struct rank_state *s = try_ranks(&id[k], 2, (int[]){0, 1}, (int[]){2, 2});

		CHECK_OK(s[0].joined);
		CHECK_OK(s[1].joined);
		ranks_leave(s, 2);
	}
	set_params("GANTRY_PORT_RANGE", NULL);
	end_hubs();
}

/* IPv6, and a link-local address, whose scope does not travel. */
TEST(test_addresses)
{
	struct gantry_unique_id id;
	struct gantry_nic_list *nics = NULL;
	struct gantry_addr local = {0};
	char text[GANTRY_ADDR_TEXT], name[IFNAMSIZ] = "";

	set_params("GANTRY_FAMILY", "inet6");
	if (gantry_ctl_create_id(&id) == GANTRY_OK) {
		id_text(&id, text);
		CHECK_HAS(text, "[::1]:");
		ranks_leave(ranks_run(2, &id, NULL), 2);
	}
	CHECK_OK(gantry_nic_scan(&nics));
	for (int i = 0; i < nics->count; i++)
		for (int k = 0; k < nics->nics[i].naddrs; k++)
			if (gantry_addr_is_link_local(&nics->nics[i].addrs[k])) {
				local = nics->nics[i].addrs[k];
				memcpy(name, nics->nics[i].name, sizeof(name));
			}
	gantry_nic_list_free(nics);
	if (local.sa.sa_family == AF_INET6) {
		/* The hub listens on all of it by way of its own scope; here: advertised. */
		char pattern[IFNAMSIZ + 1];
		struct relay relay;
		struct rank_state *s;

		set_params("GANTRY_FAMILY", NULL);
		ctl_relay_make(&relay);
		close(relay.listen);
		relay.listen = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
		CHECK(relay.listen >= 0);
		if (bind(relay.listen, &local.sa, sizeof(local.in6)) == 0) {
			socklen_t len = sizeof(local);

			CHECK_EQ(getsockname(relay.listen, &local.sa, &len), 0);
			set_params("GANTRY_ADVERTISE", gantry_addr_text(&local, text));
			CHECK_OK(gantry_ctl_create_id(&id));
			ctl_relay_start(&relay, &id);
			snprintf(pattern, sizeof(pattern), "=%.15s", name);
			set_params("GANTRY_IFNAME", pattern);
			s = try_ranks(&id, 2, (int[]){0, 1}, (int[]){2, 2});
			CHECK_OK(s[0].joined);
			CHECK_OK(s[1].joined);
			id_text(&id, text);
			printf("link-local: %s\n", text);
			ranks_leave(s, 2);
			ctl_relay_stop(&relay);
			set_params("GANTRY_IFNAME", "lo");
		}
	}
	set_params("GANTRY_ADVERTISE", NULL, "GANTRY_FAMILY", NULL);
}

/* An id of 127.0.0.1 and a port that was free a moment ago, served here on all addresses. */
static void serve_fixed(const char *name, struct gantry_addr *ret_addr, struct gantry_unique_id *ret_id)
{
	struct gantry_addr a;
	gantry_result r = GANTRY_ERR_LIMIT;

	for (int i = 0; i < 100 && r != GANTRY_OK; i++) { /* another process may be faster */
		a.in = lo_addr(lo_free_port());
		gantry_ctl_fixed_id(&a, name, ret_id);
		r = gantry_ctl_serve(ret_id, NULL);
	}
	CHECK_OK(r);
	*ret_addr = a;
}

/* Ids that ranks make for themselves: of one name they meet, by whatever address; a hub of another name is not theirs.
 */
TEST(test_fixed)
{
	struct gantry_unique_id id, v6, other;
	struct gantry_addr a, loop6 = {.in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT}};
	struct rank_state *s;
	char text[256];

	serve_fixed("job 1", &a, &id);
	gantry_addr_set_port(&loop6, gantry_addr_port(&a));
	gantry_ctl_fixed_id(&loop6, "job 1", &v6);
	gantry_ctl_fixed_id(&a, "job 2", &other);
	refused(&other, 1, 2, GANTRY_ERR_REFUSED, "");

	s = ranks_make(3, &id, NULL);
	ranks_start(s, 1);
	do
		gantry_ctl_awaits(&id, text, sizeof(text)); /* "" until rank 0 is there */
	while (!text[0]);
	CHECK_STR(text, "ranks 1-2");
	if (gantry_addr_is_local(&loop6))
		s[1].id = &v6;
	ranks_start(s + 1, 2);
	ranks_joined(s, 3);
	gantry_ctl_awaits(&id, text, sizeof(text));
	CHECK_STR(text, "");
	ranks_leave(s, 3);
}

/* A relay passes a rank's hello on to another hub of that name with the same secret: refused, by the address that was dialled. */
TEST(test_fixed_passed_on)
{
	static struct relay relay;
	struct gantry_unique_id id, through;
	struct gantry_addr a, at;
	struct rank_state *s;
	char text[64];

	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_SECRET", "a secret of thirty-two characters");
	serve_fixed("job 3", &a, &id);
	relay.to = a.in;
	relay_make(&relay, 0, 1);
	relay_start(&relay);
	at.in = lo_addr(relay.port);
	gantry_ctl_fixed_id(&at, "job 3", &through);
	refused(&through, 1, 2, GANTRY_ERR_REFUSED, "connected to an address that does not belong to this process");
	snprintf(text, sizeof(text), "127.0.0.1:%d", relay.port);
	set_params("GANTRY_ADVERTISE", text); /* the hub's process is reached that way */
	s = ranks_make(2, &id, NULL);
	s[1].id = &through;
	ranks_start(s, 2);
	ranks_joined(s, 2);
	ranks_leave(s, 2);
	relay_stop(&relay);
	set_params("GANTRY_SECRET", NULL, "GANTRY_ADVERTISE", NULL);
}

/* A hub that comes late, and one whose port somebody else has. */
TEST(test_fixed_alone)
{
	struct gantry_unique_id id;
	struct gantry_addr a;
	struct rank_state *s;
	struct gantry_ctl_config c;
	struct gantry_ctl *ctl;
	char text[256];
	int port, fd = lo_bound(0, &port);

	a.in = lo_addr(port);
	gantry_ctl_fixed_id(&a, "late", &id);
	/* The caller's patience counts, if it has said how much it has. */
	c = (struct gantry_ctl_config){.id = &id, .rank = 1, .nranks = 2, .patience_ns = 100000000};
	CHECK_ERROR(gantry_ctl_join(&c, &ctl), GANTRY_ERR_UNREACHABLE, "within 0.1 s");
	CHECK_EQ(listen(fd, 1), 0);
	CHECK_ERROR(gantry_ctl_serve(&id, NULL), GANTRY_ERR_LIMIT, "in use");
	close(fd);
	s = ranks_make(2, &id, NULL);
	ranks_start(s + 1, 1);
	do
		gantry_ctl_awaits(&id, text, sizeof(text));
	while (!strstr(text, "Connection refused"));
	CHECK_HAS(text, "127.0.0.1:");
	CHECK_OK(gantry_ctl_serve(&id, NULL));
	ranks_start(s, 1);
	ranks_joined(s, 2);
	ranks_leave(s, 2);
}

void tests_begin(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
}

void tests_end(void)
{
	end_hubs();
}
