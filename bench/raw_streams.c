/*
 * Raw TCP over loopback, N streams in each direction between two processes, 1 MiB blocking sends, one thread per socket
 * end: the limit that a two-rank all-reduce over this machine's sockets can reach. Prints one JSON line.
 * usage: raw_streams STREAMS SECONDS
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 1 << 20 };
static volatile int stop;
static uint64_t received[64];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *sender(void *arg)
{
	int fd = *(int *)arg;
	char *buf = malloc(BYTES);

	memset(buf, 1, BYTES);
	while (!stop && send(fd, buf, BYTES, MSG_NOSIGNAL) > 0)
		;
	shutdown(fd, SHUT_WR);
	free(buf);
	return NULL;
}

static void *receiver(void *arg)
{
	int *pair = arg;
	char *buf = malloc(BYTES);
	ssize_t n;

	memset(buf, 1, BYTES);
	while ((n = recv(pair[0], buf, BYTES, 0)) > 0)
		if (!stop)
			__atomic_fetch_add(&received[pair[1]], (uint64_t)n, __ATOMIC_RELAXED);
	free(buf);
	return NULL;
}

static int connection(int listener, int connecting)
{
	struct sockaddr_in a;
	socklen_t len = sizeof(a);
	int fd;

	if (!connecting)
		return accept(listener, NULL, NULL);
	getsockname(listener, (struct sockaddr *)&a, &len);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	return connect(fd, (struct sockaddr *)&a, len) ? -1 : fd;
}

int main(int argc, char **argv)
{
	int streams = argc > 1 ? atoi(argv[1]) : 4, fds[64], pairs[64][2];
	double seconds = argc > 2 ? atof(argv[2]) : 2, t0;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	pthread_t threads[128];
	uint64_t total = 0;
	pid_t child;
	int me;

	if (streams < 1 || streams > 32 || bind(listener, (struct sockaddr *)&a, sizeof(a)) || listen(listener, 64))
		return 2;
	child = fork();
	me = child == 0;
	for (int i = 0; i < 2 * streams; i++) {
		fds[i] = connection(listener, me);
		if (fds[i] < 0)
			return 1;
	}
	/* The first half of the connections carries data one way, the second half the other way. */
	for (int i = 0; i < 2 * streams; i++) {
		int sends = (i < streams) == me;

		pairs[i][0] = fds[i];
		pairs[i][1] = i;
		pthread_create(&threads[i], NULL, sends ? sender : receiver, sends ? &fds[i] : pairs[i]);
	}
	t0 = now();
	usleep((useconds_t)(seconds * 1e6));
	stop = 1;
	t0 = now() - t0;
	for (int i = 0; i < 2 * streams; i++)
		total += received[i];
	for (int i = 0; i < 2 * streams; i++)
		pthread_join(threads[i], NULL);
	if (me)
		return 0;
	waitpid(child, NULL, 0);
	printf("{\"label\": \"raw\", \"streams_per_direction\": %d, \"gbs_per_direction\": %.3f}\n", streams,
	       (double)total / t0 / 1e9);
	return 0;
}
