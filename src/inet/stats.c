/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "inet/stats.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/param.h"

enum {
	READERS = 8,
	BACKLOG = 64,
	REQUEST_MAX = 4096,
	EXIT_TRIES = 100, /* of a millisecond each */
	PATH_SIZE = sizeof(((struct sockaddr_un *)0)->sun_path)
};
static const uint64_t reader_ns = 2000000000;

/* The loop's thread's, as is all below. */
struct reader {
	struct inet_source source; /* fd -1: a free place */
	uint64_t until;		   /* ns */
	char request[REQUEST_MAX];
	size_t got;
	int asked; /* the request is whole */
	char *out; /* owned: the answer; NULL: not yet */
	size_t len, sent;
};

static struct {
	struct gantry_list sources GUARDED_BY(loop_mu);
	struct inet_source listener GUARDED_BY(loop_mu);
	struct reader readers[READERS] GUARDED_BY(loop_mu);
	int opened GUARDED_BY(loop_mu); /* it was tried */
	char path[PATH_SIZE];		/* empty: there is no socket. Written by the thread, and read at exit */
	pid_t owner;			/* whose socket it is */
} stats = {.sources = {&stats.sources, &stats.sources}, .listener.fd = -1};

/* ---- the socket ---- */

int inet_stats_dir(char *ret_dir, size_t len)
{
	const char *dir = gantry_params()->stats_dir;

	if (!*dir || strcmp(dir, "off") == 0)
		return 0;
	if (strcmp(dir, "auto") == 0)
		snprintf(ret_dir, len, "/tmp/gantry-%u", (unsigned)geteuid());
	else
		snprintf(ret_dir, len, "%s", dir);
	return 1;
}

/* A name that open_socket gives, and nothing else: the folder may hold sockets of other programs. */
static bool is_socket_name(const char *name)
{
	size_t pid = strspn(name, "0123456789");
	const char *number = name + pid + 1;

	return pid && name[pid] == '-' && strspn(number, "0123456789abcdef") == 8 && strcmp(number + 8, ".sock") == 0;
}

/* 0: it does not fit. */
static int address_of(const char *path, struct sockaddr_un *ret)
{
	*ret = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(ret->sun_path))
		return 0;
	memcpy(ret->sun_path, path, strlen(path));
	return 1;
}

int inet_stats_connect(const char *path)
{
	struct sockaddr_un to;
	int fd = -1, err = ENAMETOOLONG;

	if (!address_of(path, &to))
		goto out;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	err = errno;
	if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0)
		goto out;
	err = errno;
	close(fd);
	fd = -1;
out:
	errno = err;
	return fd;
}

/* Its name begins with the number of a process that this namespace does not have, or only as a zombie. */
static int may_be_dead(const char *name)
{
	char exe[64], c;

	snprintf(exe, sizeof(exe), "/proc/%ld/exe", strtol(name, NULL, 10));
	return readlink(exe, &c, 1) < 0 && errno == ENOENT;
}

/* Of processes that had no time to do it themselves. To connect wakes a process that lives, and hundreds may start at
 * once: so only those are asked that are not seen; they may live in another namespace. */
static void remove_dead(const char *dir)
{
	DIR *d = opendir(dir);
	char path[2 * PATH_SIZE];

	for (const struct dirent *e; d && (e = readdir(d));) {
		int fd;

		if (!is_socket_name(e->d_name) || !may_be_dead(e->d_name) ||
		    snprintf(path, sizeof(path), "%s/%s", dir, e->d_name) >= (int)sizeof(path))
			continue;
		fd = inet_stats_connect(path);
		if (fd >= 0)
			close(fd);
		else if (errno == ECONNREFUSED)
			unlink(path);
	}
	if (d)
		closedir(d);
}

/* 0 if the folder exists and no other user can create or replace files in it, else an errno. A folder that the user has
 * set is trusted. */
static int prepare_dir(const char *dir)
{
	struct stat st;

	if (mkdir(dir, 0700) && errno != EEXIST)
		return errno;
	if (lstat(dir, &st))
		return errno;
	if (strcmp(gantry_params()->stats_dir, "auto") != 0)
		return 0;
	return !S_ISDIR(st.st_mode) ? ENOTDIR : st.st_uid != geteuid() || (st.st_mode & 022) ? EPERM : 0;
}

/* A socket that listens under `path`: bound, made ready, and only then given its name. -1 with errno. */
static int listen_at(const char *path, const char *aside)
{
	struct sockaddr_un at;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err;

	if (fd < 0 || !address_of(aside, &at))
		goto failed;
	fchmod(fd, 0600); /* what bind gives to the file, less the umask */
	if (bind(fd, (const struct sockaddr *)&at, sizeof(at)))
		goto failed;
	if (listen(fd, BACKLOG) == 0 && rename(aside, path) == 0)
		return fd;
	err = errno;
	unlink(aside);
	errno = err;
failed:
	err = errno;
	if (fd >= 0)
		close(fd);
	errno = err;
	return -1;
}

/* No lock: it looks through a folder. ret_path is written on success only. */
static int open_socket(char ret_path[PATH_SIZE])
{
	char dir[PATH_SIZE], path[2 * PATH_SIZE], aside[2 * PATH_SIZE];
	uint32_t number = 0;
	int fd = -1, err = 0, n;

	gantry_random_bytes(&number, sizeof(number));
	inet_stats_dir(dir, sizeof(dir));
	n = snprintf(aside, sizeof(aside), "%s/.%d-%08x.sock", dir, (int)getpid(), number);
	snprintf(path, sizeof(path), "%s/%d-%08x.sock", dir, (int)getpid(), number);
	err = n >= PATH_SIZE ? ENAMETOOLONG : prepare_dir(dir);
	if (!err) {
		remove_dead(dir);
		fd = listen_at(path, aside);
		err = errno;
	}
	if (fd < 0)
		LOG_INFO(NET, "counters are not available to gantry top: %s: %s (GANTRY_STATS_DIR)", dir,
			 err == EPERM ? "it is writable by other users" : strerror(err));
	else
		snprintf(ret_path, PATH_SIZE, "%.*s", PATH_SIZE - 1, path);
	return fd;
}

static void remove_socket(void)
{
	if (*stats.path && stats.owner == getpid())
		unlink(stats.path);
	*stats.path = 0;
}

/*
 * The thread may still run: it only ever makes the path empty at this time, or has made it long ago. It may hold the lock for
 * a moment; the exiting thread may hold it itself, and then the socket stays for remove_dead().
 */
__attribute__((destructor)) static void remove_at_exit(void) UNCHECKED
{
	const struct timespec pause = {.tv_nsec = 1000000};

	/* A process that never had one, as one with libnccl.so.2 preloaded, makes no system call here. */
	if (!stats.owner || stats.owner != getpid())
		return;
	for (int tries = 0; tries < EXIT_TRIES; tries++) {
		if (loop_mu_trylock(&inet_loop.mu)) {
			remove_socket();
			inet_loop_unlock();
			return;
		}
		nanosleep(&pause, NULL);
	}
}

/* ---- readers ---- */

static void reader_close(struct reader *r) REQUIRES(loop_mu)
{
	inet_source_close(&r->source);
	free(r->out);
	r->out = NULL;
}

/* What the socket takes now; closes it when that was all, or cannot be. */
static void send_answer(struct reader *r) REQUIRES(loop_mu)
{
	ssize_t n = 0;

	while (r->sent < r->len) {
		n = send(r->source.fd, r->out + r->sent, r->len - r->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0)
			break;
		r->sent += (size_t)n;
	}
	if (n < 0 && errno == EAGAIN)
		inet_source_set(&r->source, EPOLLOUT);
	else
		reader_close(r);
}

static void read_request(struct reader *r) REQUIRES(loop_mu)
{
	ssize_t n = recv(r->source.fd, r->request + r->got, REQUEST_MAX - 1 - r->got, MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		reader_close(r);
		return;
	}
	r->got += (size_t)n;
	r->request[r->got] = 0;
	r->asked = strstr(r->request, "\r\n\r\n") || strstr(r->request, "\n\n");
	if (!r->asked && r->got == REQUEST_MAX - 1)
		reader_close(r);
}

static void on_reader(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct reader *r = gantry_container(s, struct reader, source);

	(void)events;
	if (r->out)
		send_answer(r);
	else if (!r->asked)
		read_request(r);
}

/* A free entry, or the one that has used most of its time. */
static struct reader *take_place(void) REQUIRES(loop_mu)
{
	struct reader *oldest = &stats.readers[0];

	for (int i = 0; i < READERS; i++) {
		if (!stats.readers[i].source.id)
			return &stats.readers[i];
		if (stats.readers[i].until < oldest->until)
			oldest = &stats.readers[i];
	}
	reader_close(oldest);
	return oldest;
}

static void on_listener(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct reader *r;

	(void)events;
	if (fd < 0)
		return; /* it hung up, or there is no descriptor: it waits */
	r = take_place();
	*r = (struct reader){.source = {.fd = fd, .ready = on_reader}, .until = inet_loop.now + reader_ns};
	if (inet_source_add(&r->source, EPOLLIN) != GANTRY_OK)
		reader_close(r);
}

/* ---- answers ---- */

static void put_process(struct gantry_metrics *m)
{
	char host[64] = "";
	uint32_t l = gantry_metrics_label_int(m, 0, "pid", getpid());
	int rank = gantry_log_rank();

	gethostname(host, sizeof(host) - 1);
	l = gantry_metrics_label(m, l, "host", host);
	l = gantry_metrics_label(m, l, "program", program_invocation_short_name);
	if (rank >= 0)
		l = gantry_metrics_label_int(m, l, "rank", rank);
	l = gantry_metrics_label(m, l, "version", gantry_build);
	gantry_metrics_put(m, GANTRY_METRIC_PROCESS_INFO, l, 1);
}

static int wants_metrics(const char *request)
{
	return strncmp(request, "GET /metrics", 12) == 0 || strncmp(request, "GET / ", 6) == 0;
}

/* The whole answer in memory of its own; NULL: none could be made. */
static char *format_answer(const struct gantry_metrics *m, const char *status, size_t *ret_len)
{
	char *body = NULL, *answer = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&body, &len);

	if (!f)
		return NULL;
	gantry_metrics_write(m, f);
	if (fclose(f) == 0 && (f = open_memstream(&answer, ret_len))) {
		fprintf(f,
			"HTTP/1.0 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: "
			"%zu\r\nConnection: close\r\n\r\n",
			status, len);
		fwrite(body, 1, len, f);
		if (fclose(f)) {
			free(answer);
			answer = NULL;
		}
	}
	free(body);
	return answer;
}

static void answer_request(struct reader *r) REQUIRES(loop_mu)
{
	struct gantry_metrics m = {0};
	int found = wants_metrics(r->request);

	if (found) {
		put_process(&m);
		gantry_list_each_entry (s, &stats.sources, struct inet_stats_source, node)
			s->collect(&m);
	}
	inet_loop_unlock();
	if (!m.failed)
		r->out = format_answer(&m, found ? "200 OK" : "404 Not Found", &r->len);
	gantry_metrics_free(&m);
	inet_loop_lock();
	if (r->out)
		send_answer(r);
	else
		reader_close(r);
}

/* ---- the loop's client ---- */

static uint64_t next_due(void) REQUIRES(loop_mu)
{
	uint64_t due = stats.opened ? UINT64_MAX : 0;

	for (int i = 0; i < READERS; i++)
		if (stats.readers[i].source.id && stats.readers[i].until < due)
			due = stats.readers[i].until;
	return due;
}

static void open_listener(void) REQUIRES(loop_mu)
{
	char path[PATH_SIZE] = "";
	int fd;

	stats.opened = 1;
	inet_loop_unlock();
	fd = open_socket(path);
	inet_loop_lock();
	if (fd < 0)
		return;
	memcpy(stats.path, path, PATH_SIZE);
	stats.owner = getpid();
	stats.listener = (struct inet_source){.fd = fd, .ready = on_listener};
	if (inet_source_add(&stats.listener, EPOLLIN) != GANTRY_OK) {
		inet_source_close(&stats.listener);
		remove_socket();
	}
}

static void stats_pass(void) REQUIRES(loop_mu)
{
	if (!stats.opened)
		open_listener();
	for (int i = 0; i < READERS; i++) {
		struct reader *r = &stats.readers[i];

		if (r->source.id && r->asked && !r->out)
			answer_request(r);
		else if (r->source.id && inet_loop.now >= r->until)
			reader_close(r);
	}
}

static int stats_busy(void) REQUIRES(loop_mu)
{
	gantry_list_each_entry (s, &stats.sources, struct inet_stats_source, node)
		if (!s->passive)
			return 1;
	return 0;
}

static void stats_stop(void) REQUIRES(loop_mu)
{
	for (int i = 0; i < READERS; i++)
		if (stats.readers[i].source.id)
			reader_close(&stats.readers[i]);
	inet_source_close(&stats.listener);
	remove_socket();
	stats.opened = 0;
}

/* The loop has closed the descriptors; the file is the parent's. */
static void in_child(void) REQUIRES(loop_mu)
{
	gantry_list_each_safe (e, &stats.sources)
		gantry_list_remove(e);
	for (int i = 0; i < READERS; i++)
		free(stats.readers[i].out);
	memset(stats.readers, 0, sizeof(stats.readers));
	stats.listener = (struct inet_source){.fd = -1};
	stats.opened = 0;
	*stats.path = 0;
}

static struct inet_client client = {
	.due = next_due, .pass = stats_pass, .busy = stats_busy, .stop = stats_stop, .in_child = in_child};

void inet_stats_add(struct inet_stats_source *s)
{
	char dir[PATH_SIZE];

	if (s->node.next && !gantry_list_empty(&s->node))
		return;
	if (!s->passive && (!inet_stats_dir(dir, sizeof(dir)) || inet_loop_start(&client) != GANTRY_OK))
		return;
	gantry_list_append(&stats.sources, &s->node);
	if (!s->passive)
		inet_loop_wake(); /* it may sleep until a time that was right without this client */
}

void inet_stats_remove(struct inet_stats_source *s)
{
	if (!s->node.next || gantry_list_empty(&s->node))
		return;
	gantry_list_remove(&s->node);
	if (!s->passive)
		inet_loop_wake();
}
