/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket with the counters of the process: what it answers, that it comes and goes with the network, that no reader
 * can hold it up, and that links may open and close while it is read. The text is checked as Prometheus would by
 * tests/system/top.sh.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/metrics.h"
#include "inet/stats.h"
#include "tcp_util.h"

static char dir[64];
static void *ctx;

static void begin(void)
{
	snprintf(dir, sizeof(dir), "/tmp/gantry-test-XXXXXX");
	CHECK(mkdtemp(dir));
	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_STATS_DIR", dir, 1);
	CHECK_OK(gantry_params_load(1));
	net = gantry_net_tcp();
	ops = net->ops;
	CHECK_OK(ops->init(net, 0, NULL, &ctx));
}

/* How many sockets there are, and the path of one. */
static int find_sockets(char *ret_path, size_t len)
{
	DIR *d = opendir(dir);
	int n = 0;

	CHECK(d);
	for (struct dirent *e; (e = readdir(d));) {
		if (!strstr(e->d_name, ".sock"))
			continue;
		n++;
		if (ret_path)
			snprintf(ret_path, len, "%s/%.60s", dir, e->d_name);
	}
	closedir(d);
	return n;
}

/* Those whose name has this process's number. */
static int count_of_process(void)
{
	DIR *d = opendir(dir);
	int n = 0;

	CHECK(d);
	for (struct dirent *e; (e = readdir(d));)
		n += atoi(e->d_name) == (int)getpid();
	closedir(d);
	return n;
}

static int is_running(void)
{
	int running;

	inet_loop_lock();
	running = inet_loop.running;
	inet_loop_unlock();
	return running;
}

static void end(void)
{
	CHECK_OK(ops->finalize(net, ctx));
	WAIT_WHILE (is_running())
		usleep(1000);
	CHECK_EQ(find_sockets(NULL, 0), 0);
	CHECK_EQ(rmdir(dir), 0);
}

static int dial_stats(void)
{
	char path[128];
	int fd;

	WAIT_WHILE (find_sockets(path, sizeof(path)) != 1)
		usleep(1000);
	fd = inet_stats_connect(path);
	CHECK(fd >= 0);
	return fd;
}

/* All that comes until the end; the length. */
static size_t hear(int fd, char *text, size_t room)
{
	size_t n = 0;
	ssize_t got = 1;

	WAIT_WHILE (got) {
		got = recv(fd, text + n, room - 1 - n, MSG_DONTWAIT);
		if (got < 0)
			CHECK_EQ(errno, EAGAIN);
		else
			n += (size_t)got;
		if (got < 0)
			usleep(200);
	}
	text[n] = 0;
	close(fd);
	return n;
}

static void ask(const char *request, char *text, size_t room)
{
	int fd = dial_stats();

	CHECK_EQ(send(fd, request, strlen(request), 0), (ssize_t)strlen(request));
	hear(fd, text, room);
}

static uint64_t value_of(const char *text, const char *sample)
{
	const char *at = strstr(text, sample);

	CHECK(at);
	at = strstr(at, "} ");
	CHECK(at);
	return strtoull(at + 2, NULL, 10);
}

static void move(struct way w, size_t size)
{
	static uint8_t from[MIB], to[MIB];
	void *r = post_recv(w.recv, to, size, 7), *s = post_send(w.send, from, size, 7);

	CHECK_EQ(wait_two(s, r, NULL), (int)size);
}

TEST(answers_what_links_have_moved)
{
	static char text[1 << 20];
	struct stat st;
	char path[128];
	struct way w;

	begin();
	CHECK_EQ(find_sockets(NULL, 0), 0);
	w = connect_way(ctx);
	for (int i = 0; i < 5; i++)
		move(w, MIB);
	ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", text, sizeof(text));
	CHECK(!strncmp(text, "HTTP/1.0 200 OK\r\n", 17));
	CHECK(strstr(text, "# TYPE gantry_lane_sent_bytes_total counter\n"));
	CHECK(value_of(text, "gantry_link_large_messages_total{") >= 5);
	CHECK(strstr(text, "gantry_process_info{pid=\""));
	CHECK_EQ(find_sockets(path, sizeof(path)), 1);
	CHECK_EQ(stat(path, &st), 0);
	CHECK_EQ(st.st_mode & 0777, 0600);
	ask("GET /other HTTP/1.0\r\n\r\n", text, sizeof(text));
	CHECK(!strncmp(text, "HTTP/1.0 404", 12));
	close_way(w);
	end();
}

/* More silent ones than there are places, one that asks for too much, and one that hangs up: the next is answered. */
TEST(no_reader_is_in_the_way)
{
	static char text[1 << 20], much[8192];
	struct way w;
	int silent[20], fd;

	begin();
	w = connect_way(ctx);
	for (size_t i = 0; i < TEST_COUNT(silent); i++)
		silent[i] = dial_stats();
	fd = dial_stats();
	memset(much, 'x', sizeof(much));
	CHECK(send(fd, much, sizeof(much), MSG_NOSIGNAL) > 0);
	close(dial_stats());
	ask("GET / HTTP/1.0\n\n", text, sizeof(text));
	CHECK(strstr(text, "gantry_link_requests"));
	close(fd);
	for (size_t i = 0; i < TEST_COUNT(silent); i++)
		close(silent[i]);
	close_way(w);
	end();
}

/* That of a process that was killed goes; one that answers, though its process is not seen, what is no socket, and sockets of
 * other programs stay. That of a process that is seen is not even asked. */
TEST(removes_dead_sockets)
{
	enum { DEAD, LIVE, SEEN, OTHER, NUMBERED, LONGER, COUNT };
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	char path[COUNT][100], file[100];
	struct way w;
	int fds[COUNT];
	FILE *f;

	begin();
	snprintf(path[DEAD], sizeof(path[0]), "%s/2000000000-0000dead.sock", dir); /* no process has such a number */
	snprintf(path[LIVE], sizeof(path[0]), "%s/2000000001-00001e5e.sock", dir);
	snprintf(path[SEEN], sizeof(path[0]), "%s/%d-00005ee4.sock", dir, (int)getpid());
	snprintf(path[OTHER], sizeof(path[0]), "%s/database.sock", dir); /* of programs that do not listen just now */
	snprintf(path[NUMBERED], sizeof(path[0]), "%s/2000000000.sock", dir);
	snprintf(path[LONGER], sizeof(path[0]), "%s/2000000000-0000dead0.sock", dir);
	snprintf(file, sizeof(file), "%s/file", dir);
	for (int i = 0; i < COUNT; i++) {
		memcpy(at.sun_path, path[i], sizeof(path[i]));
		fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK_EQ(bind(fds[i], (struct sockaddr *)&at, sizeof(at)), 0);
		CHECK_EQ(listen(fds[i], 1), 0);
	}
	close(fds[DEAD]);
	for (int i = OTHER; i < COUNT; i++)
		close(fds[i]);
	f = fopen(file, "w");
	CHECK(f && !fclose(f));
	w = connect_way(ctx);
	WAIT_WHILE (access(path[DEAD], F_OK) == 0 || count_of_process() < 2) /* SEEN, and what is made after the look */
		usleep(1000);
	CHECK_EQ(access(path[LIVE], F_OK), 0);
	CHECK_EQ(access(path[SEEN], F_OK), 0);
	CHECK_EQ(access(file, F_OK), 0);
	for (int i = OTHER; i < COUNT; i++)
		CHECK_EQ(unlink(path[i]), 0);
	CHECK_EQ(close(accept(fds[LIVE], NULL, NULL)), 0);
	CHECK_EQ(accept(fds[SEEN], NULL, NULL), -1);
	CHECK(!unlink(path[LIVE]) && !unlink(path[SEEN]) && !unlink(file) && !close(fds[LIVE]) && !close(fds[SEEN]));
	close_way(w);
	end();
}

TEST(child_leaves_the_socket_of_its_parent)
{
	static char text[1 << 20];
	struct way w;
	pid_t pid;
	int status;

	begin();
	w = connect_way(ctx);
	close(dial_stats());
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		exit(0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	ask("GET /metrics HTTP/1.0\r\n\r\n", text, sizeof(text));
	CHECK(strstr(text, "gantry_process_info"));
	close_way(w);
	end();
}

TEST(exit_leaves_nothing)
{
	pid_t pid;
	int status;

	begin();
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		connect_way(ctx);
		close(dial_stats());
		exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	end();
}

TEST(off_makes_none)
{
	struct way w;

	begin();
	setenv("GANTRY_STATS_DIR", "off", 1);
	CHECK_OK(gantry_params_load(1));
	w = connect_way(ctx);
	move(w, MIB);
	CHECK_EQ(find_sockets(NULL, 0), 0);
	close_way(w);
	end();
}

static int over;
static void *read_on(void *arg)
{
	static char text[1 << 20];
	char path[128];
	int *n = arg;

	while (!load_relaxed(&over)) {
		int fd = find_sockets(path, sizeof(path)) ? inet_stats_connect(path) : -1;

		if (fd < 0)
			continue; /* it is not there yet */
		if (send(fd, "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL) == 25) {
			struct timeval t = {5, 0};
			ssize_t got;

			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
			CHECK_EQ(fcntl(fd, F_SETFL, 0), 0);
			while ((got = recv(fd, text, sizeof(text) - 1, 0)) > 0) {
				text[got] = 0;
				*n += strstr(text, "_total") != NULL;
			}
		}
		close(fd);
	}
	return NULL;
}

TEST(links_close_while_they_are_read)
{
	struct way stays;
	pthread_t t;
	int n = 0;

	begin();
	stays = connect_way(ctx);
	store_relaxed(&over, 0);
	CHECK_EQ(pthread_create(&t, NULL, read_on, &n), 0);
	for (int i = 0; i < (SANITIZED ? 8 : 30); i++) {
		struct way a = connect_way(ctx), b = connect_way(ctx);

		for (int k = 0; k < 4; k++)
			move(k % 2 ? a : b, MIB / 2);
		close_way(b);
		close_way(a);
	}
	store_relaxed(&over, 1);
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK(n > 0);
	close_way(stays);
	end();
}

TEST(labels_are_escaped_and_metrics_stand_together)
{
	struct gantry_metrics m = {0};
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	uint32_t peer = gantry_metrics_label(&m, 0, "peer", "a\"b\\c\nd"),
		 lane = gantry_metrics_label_int(&m, peer, "lane", 2);

	CHECK(f);
	gantry_metrics_put(&m, GANTRY_METRIC_LANE_RTT, lane, 1500000007);
	gantry_metrics_put(&m, GANTRY_METRIC_LANE_SENT, lane, UINT64_MAX);
	gantry_metrics_put(&m, GANTRY_METRIC_LANE_RTT, 0, 1);
	gantry_metrics_write(&m, f);
	CHECK_EQ(fclose(f), 0);
	CHECK(strstr(text,
		     "\ngantry_lane_sent_bytes_total{peer=\"a\\\"b\\\\c\\nd\",lane=\"2\"} 18446744073709551615\n"));
	CHECK(strstr(text, "} 1.500000007\ngantry_lane_rtt_seconds 0.000000001\n"));
	free(text);
	gantry_metrics_free(&m);
}
