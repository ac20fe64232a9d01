/*
 * A listening port that two protocols share: who gets which connection, by its first bytes and without losing one.
 * Catches: a connection that is given to the wrong one or consumed on the way, a decision on too few bytes, a thread
 * that spins over a byte that it does not read, a queue without a limit, a port that stays open or closes early, a
 * forked child that takes its parent's connections.
 */
#include "inet/port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/param.h"
#include "until.h"

static int woken[2];

static void wake_first(void)
{
	woken[0]++;
}

static void wake_second(void)
{
	woken[1]++;
}

/* Their first byte is the same. */
static struct port_user first = {.magic = "Gone", .magic_size = 4, .wake = wake_first};
static struct port_user second = {.magic = "Gtwo-two", .magic_size = 8, .wake = wake_second};

static struct gantry_addr lo(void)
{
	struct gantry_addr a = {.in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};

	return a;
}

static int dial(const struct gantry_addr *to)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	if (connect(fd, &to->sa, sizeof(to->in))) {
		close(fd);
		return -1;
	}
	return fd;
}

static int accept_one(int listener)
{
	int fd = -1;

	UNTIL((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0);
	return fd;
}

static int readable(int fd, int ms)
{
	struct pollfd p = {fd, POLLIN, 0};

	return poll(&p, 1, ms) == 1;
}

static void say(int fd, const char *text)
{
	CHECK_EQ(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* What is said is there to be read. */
static void until_there(int fd, int n)
{
	char buf[64];

	UNTIL(recv(fd, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT) == n);
}

struct ports {
	struct gantry_addr bound;
	int fd[2]; /* of each user */
};

static struct ports open_both(void)
{
	struct gantry_addr at = lo(), again;
	struct ports p;

	CHECK_OK(port_open(&first, &at, &p.fd[0], &p.bound));
	CHECK_OK(port_open(&second, &at, &p.fd[1], &again));
	CHECK_EQ(gantry_addr_port(&p.bound), gantry_addr_port(&again));
	CHECK(p.fd[0] != p.fd[1]);
	woken[0] = woken[1] = 0;
	return p;
}

static void close_one(struct ports *p, struct port_user *u)
{
	close(p->fd[u == &second]);
	port_close(u, &p->bound);
}

/* By whichever it was accepted, it gets to the one whose magic it says, with every byte. */
static void test_given(void)
{
	struct ports p = open_both();

	for (int by = 0; by < 2; by++) {
		int client = dial(&p.bound), fd = accept_one(p.fd[by]), own;
		struct port_user *self = by ? &second : &first, *other = by ? &first : &second;
		const char *text = by ? "Gone and more" : "Gtwo-two and more";
		struct gantry_addr peer, local, mine;
		socklen_t len = sizeof(mine);
		char got[64] = "";

		CHECK_EQ(port_sort(self, fd), PORT_WAIT);
		say(client, text);
		until_there(fd, (int)strlen(text));
		CHECK_EQ(port_take(other, &peer, &local), -1);
		CHECK_EQ(port_sort(self, fd), PORT_GIVEN);
		CHECK_EQ(woken[!by], 1);
		CHECK_EQ(woken[by], by); /* of the turn before */
		close(fd);
		CHECK_EQ(port_waiting(other), 1);
		CHECK_EQ(port_waiting(self), 0);
		CHECK_EQ(port_take(self, &peer, &local), -1);
		own = port_take(other, &peer, &local);
		CHECK(own >= 0);
		CHECK_EQ(port_sort(other, own), PORT_OURS);
		CHECK_EQ(recv(own, got, sizeof(got), MSG_DONTWAIT), strlen(text));
		CHECK_STR(got, text);
		CHECK_EQ(getsockname(client, &mine.sa, &len), 0);
		CHECK_EQ(gantry_addr_port(&peer), gantry_addr_port(&mine));
		CHECK_EQ(gantry_addr_port(&local), gantry_addr_port(&p.bound));
		CHECK_EQ(port_take(other, &peer, &local), -1);
		close(own);
		close(client);
	}
	close_one(&p, &first);
	close_one(&p, &second);
}

static void test_ours(void)
{
	static const char *const texts[] = {"Gone", "hello", "Gtree", "GET / HTTP/1.1"};
	struct ports p = open_both();

	for (int i = 0; i < 4; i++) {
		int client = dial(&p.bound), fd = accept_one(p.fd[0]);

		say(client, texts[i]);
		until_there(fd, (int)strlen(texts[i]));
		CHECK_EQ(port_sort(&first, fd), PORT_OURS);
		until_there(fd, (int)strlen(texts[i])); /* nothing was read */
		close(fd);
		close(client);
	}
	close_one(&p, &first);
	close_one(&p, &second);
}

/* One byte tells nothing: it stays unread, and yet poll is quiet until there is more. */
static void test_one_byte(void)
{
	struct ports p = open_both();
	struct gantry_addr peer, local;
	char got[64] = "";
	int client = dial(&p.bound), fd = accept_one(p.fd[0]), own;

	say(client, "G");
	until_there(fd, 1);
	CHECK_EQ(port_sort(&first, fd), PORT_WAIT);
	CHECK(!readable(fd, 0));
	say(client, "two");
	CHECK(readable(fd, UNTIL_SECONDS * 1000));
	until_there(fd, 4);
	CHECK_EQ(port_sort(&first, fd), PORT_GIVEN);
	close(fd);
	own = port_take(&second, &peer, &local);
	CHECK_EQ(recv(own, got, sizeof(got), MSG_DONTWAIT), 4);
	CHECK_STR(got, "Gtwo");
	say(client, "-"); /* the new owner hears of single bytes */
	CHECK(readable(own, UNTIL_SECONDS * 1000));
	close(own);
	close(client);

	/* The same for one's own. */
	client = dial(&p.bound);
	fd = accept_one(p.fd[0]);
	say(client, "G");
	until_there(fd, 1);
	CHECK_EQ(port_sort(&first, fd), PORT_WAIT);
	say(client, "one");
	until_there(fd, 4);
	CHECK_EQ(port_sort(&first, fd), PORT_OURS);
	CHECK_EQ(recv(fd, got, sizeof(got), MSG_DONTWAIT), 4);
	say(client, "x");
	CHECK(readable(fd, UNTIL_SECONDS * 1000));
	close(fd);
	close(client);

	/* No more will come: not waited for. */
	client = dial(&p.bound);
	fd = accept_one(p.fd[0]);
	say(client, "G");
	until_there(fd, 1);
	CHECK_EQ(port_sort(&first, fd), PORT_WAIT);
	shutdown(client, SHUT_WR);
	CHECK(readable(fd, UNTIL_SECONDS * 1000));
	CHECK_EQ(port_sort(&first, fd), PORT_OURS);
	close(fd);
	close(client);
	close_one(&p, &first);
	close_one(&p, &second);
}

/* Whose magic it is does not listen here: nobody waits for it. */
static void test_other_is_closed(void)
{
	struct ports p = open_both();
	int client, fd;

	close_one(&p, &second);
	client = dial(&p.bound);
	fd = accept_one(p.fd[0]);
	say(client, "Gtwo-two");
	until_there(fd, 8);
	CHECK_EQ(port_sort(&first, fd), PORT_OURS);
	CHECK_EQ(port_waiting(&second), 0);
	close(fd);
	close(client);
	close_one(&p, &first);
	CHECK_EQ(dial(&p.bound), -1);
	CHECK_EQ(errno, ECONNREFUSED);
}

/* The queue is full; and what was in it ends with the last port of its user. */
static void test_full(void)
{
	static int clients[PORT_GIVEN_MAX + 1];
	struct ports p = open_both();
	char c;

	for (int i = 0; i <= PORT_GIVEN_MAX; i++) {
		int fd;

		clients[i] = dial(&p.bound);
		CHECK(clients[i] >= 0);
		fd = accept_one(p.fd[0]);
		say(clients[i], "Gtwo-two");
		until_there(fd, 8);
		CHECK_EQ(port_sort(&first, fd), i < PORT_GIVEN_MAX ? PORT_GIVEN : PORT_OURS);
		close(fd);
	}
	CHECK_EQ(port_waiting(&second), PORT_GIVEN_MAX);
	CHECK(!readable(clients[0], 0));
	close_one(&p, &second);
	CHECK_EQ(port_waiting(&second), 0);
	for (int i = 0; i <= PORT_GIVEN_MAX; i++) {
		CHECK(readable(clients[i], UNTIL_SECONDS * 1000));
		CHECK(recv(clients[i], &c, 1, 0) <= 0);
		close(clients[i]);
	}
	close_one(&p, &first);
}

static void test_fork(void)
{
	struct ports p = open_both();
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		struct gantry_addr at = lo(), bound;
		int fd;

		port_close(&first, &p.bound); /* the parent's: nothing to it */
		CHECK_OK(port_open(&first, &at, &fd, &bound));
		CHECK(gantry_addr_port(&bound) != gantry_addr_port(&p.bound));
		close(fd);
		port_close(&first, &bound);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	close(dial(&p.bound));
	close_one(&p, &first);
	close_one(&p, &second);
}

int main(void)
{
	struct rlimit l;

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &l), 0);
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_NOFILE, &l);
	CHECK_OK(gantry_params_load(0));
	RUN(test_given());
	RUN(test_ours());
	RUN(test_one_byte());
	RUN(test_other_is_closed());
	RUN(test_full());
	RUN(test_fork());
	return 0;
}
