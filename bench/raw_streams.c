/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw TCP over loopback, N streams in each direction between two processes, 1 MiB blocking sends, one thread per socket
 * end: the limit that a two-rank all-reduce over this machine's sockets can reach. Prints one JSON line.
 * usage: raw_streams STREAMS SECONDS
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/raw_tcp.h"

int main(int argc, char **argv)
{
	int streams = argc > 1 ? atoi(argv[1]) : 4, me;
	double seconds = argc > 2 ? atof(argv[2]) : 2;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct raw_tcp_stream s[RAW_TCP_MAX] = {{.fd = 0}};
	struct raw_tcp w = {.n = 0};
	struct timespec now;
	uint64_t total = 0;
	uint16_t port;
	pid_t child;

	if (streams < 1 || 2 * streams > RAW_TCP_MAX || raw_tcp_listen(&w, (struct sockaddr *)&a, sizeof(a), 0, &port))
		return 2;
	a.sin_port = htons(port);
	child = fork();
	me = child == 0;
	if (raw_tcp_join(&w, 2 * streams, me ? (struct sockaddr *)&a : NULL, sizeof(a), 0))
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &now);
	/* The first half of the connections carries data one way, the second half the other way. */
	for (int i = 0; i < 2 * streams; i++)
		s[i] = (struct raw_tcp_stream){.fd = w.fd[i],
					       .sending = (i < streams) == me,
					       .until_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec +
							   (uint64_t)(seconds * 1e9)};
	if (raw_tcp_run(s, 2 * streams))
		return 1;
	if (me)
		return 0;
	waitpid(child, NULL, 0);
	for (int i = 0; i < 2 * streams; i++)
		total += s[i].sending ? 0 : s[i].moved;
	printf("{\"label\": \"raw\", \"streams_per_direction\": %d, \"gbs_per_direction\": %.3f}\n", streams,
	       (double)total / seconds / 1e9);
	return 0;
}
