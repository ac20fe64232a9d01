/*
 * The TCP network through its table, in one process that connects to itself over lo: ways, posts and waits, and
 * children, because parameters are read once per process.
 */
#ifndef GANTRY_TESTS_TCP_UTIL_H
#define GANTRY_TESTS_TCP_UTIL_H

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/net.h"
#include "until.h"

enum { MIB = 1 << 20, MAX = 8 * MIB };

/* Hangs end, and slow machines do not: 4 GiB take 10 s where ten others want the CPU. */
#define PATIENCE_NS (UNTIL_SECONDS * 1000000000ull)
enum { CHILD_S = 500 };

static struct gantry_net *net;
static const struct gantry_net_ops *ops;
/* Other threads write lines too. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[65536];
static size_t log_bytes;

static inline void keep_log(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
			    const char *text)
{
	size_t n = strlen(text);

	(void)level, (void)subsys, (void)file, (void)line;
	pthread_mutex_lock(&log_lock);
	if (log_bytes + n + 1 < sizeof(log_text)) {
		memcpy(log_text + log_bytes, text, n);
		log_text[log_bytes + n] = '\n';
		log_bytes += n + 1;
	}
	pthread_mutex_unlock(&log_lock);
}

static inline int logged(const char *part)
{
	int has;

	pthread_mutex_lock(&log_lock);
	has = strstr(log_text, part) != NULL;
	pthread_mutex_unlock(&log_lock);
	return has;
}

/* A send comm and the receive comm at its other end. */
struct way {
	void *send, *recv;
};

static inline struct way connect_way(void *ctx)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *listen = NULL;
	struct way w = {0};
	uint64_t until = gantry_now_ns() + PATIENCE_NS;

	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	while (!w.send || !w.recv) {
		if (!w.send)
			CHECK_OK(ops->connect(net, ctx, 0, handle, &w.send, NULL));
		if (!w.recv)
			CHECK_OK(ops->accept(net, listen, &w.recv, NULL));
		CHECK(gantry_now_ns() < until);
	}
	CHECK_OK(ops->close_listen(net, listen));
	return w;
}

static inline void close_way(struct way w)
{
	CHECK_OK(ops->close_send(net, w.send));
	CHECK_OK(ops->close_recv(net, w.recv));
}

static inline uint8_t byte_of(uint64_t seed, uint64_t i)
{
	return (uint8_t)(i * 131 + (i >> 8) * 17 + (i >> 16) * 5 + seed * 59 + 7);
}

/*
 * Waits for a request and returns its size. `other` is the request at the other end of the connection, or NULL: both
 * ends live in this thread, and only their own tests move them.
 */
static inline int wait_two(void *request, void *other, int *ret_other)
{
	int done[2] = {0, !other}, size[2] = {-1, -1};
	void *both[2] = {request, other};

	for (uint64_t until = gantry_now_ns() + PATIENCE_NS; !done[0] || !done[1];) {
		for (int i = 0; i < 2; i++) {
			gantry_result r = done[i] ? GANTRY_OK : ops->test(net, both[i], &done[i], &size[i]);

			if (r != GANTRY_OK)
				fprintf(stderr, "test: %s\n", gantry_last_error());
			CHECK_EQ(r, GANTRY_OK);
		}
		CHECK(gantry_now_ns() < until);
	}
	if (ret_other)
		*ret_other = size[1];
	return size[0];
}

static inline int wait_done(void *request)
{
	return wait_two(request, NULL, NULL);
}

static inline void *post_send(void *comm, void *data, size_t size, int tag)
{
	void *request = NULL;

	CHECK_OK(ops->isend(net, comm, data, size, tag, NULL, &request));
	CHECK(request);
	return request;
}

static inline void *post_recv(void *comm, void *data, size_t size, int tag)
{
	void *request = NULL;

	CHECK_OK(ops->irecv(net, comm, 1, &data, &size, &tag, NULL, &request));
	CHECK(request);
	return request;
}

static inline void start(void **ret_ctx, int traffic_class)
{
	struct gantry_net_config config = {.traffic_class = traffic_class};

	setenv("GANTRY_IFNAME", "lo", 1);
	gantry_log_set_sink(keep_log);
	net = gantry_net_tcp();
	ops = net->ops;
	CHECK_OK(ops->init(net, 7, &config, ret_ctx));
}

/* A search for leaks takes seconds: not for every child. */
static int look_for_leaks;

/* Runs it in a process of its own; 1 if that fails. `only` names the one that is wanted, or is NULL. */
static inline int child(const char *name, void (*run)(void), const char *only)
{
	uint64_t before = gantry_now_ns();
	int status = 0;
	pid_t pid;

	if (only && strcmp(only, name) != 0)
		return 0;
	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		alarm(CHILD_S);
		run();
		if (SANITIZED && !look_for_leaks)
			_exit(0);
		exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (only)
		printf("%s: %.2f s\n", name, (double)(gantry_now_ns() - before) / 1e9);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	fprintf(stderr, "%s FAILED (status %#x)\n", name, status);
	return 1;
}

#endif
