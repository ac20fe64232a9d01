/*
 * comm_port MODE PORT FOLDER: a communicator of three processes over the net transport, each with a range of one port.
 * The id travels through a file in FOLDER. Prints where rank 0 listens, and what came of it; ports.sh judges.
 *
 *   own     rank i has port PORT + i; all send to all
 *   behind  rank 0 is told to peers as 127.0.0.1:PORT, which is a relay's; it listens on PORT + 1. The others send to
 * it. Of every connection the relay passes on the first byte alone, and the rest when that has been seen.
 */
#include "comm_util.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

enum { N = 3, SIZE = 1 << 20, FIRST_MS = 20 };

static const char *folder;
static int port, behind;

/* ---- the relay ---- */

static uint64_t *relayed; /* shared by the processes; atomic: bytes towards rank 0 */

static void send_all(int fd, const char *data, size_t n)
{
	while (n) {
		ssize_t k = send(fd, data, n, MSG_NOSIGNAL);

		if (k <= 0)
			return;
		data += k;
		n -= (size_t)k;
	}
}

/* fds: the peer's, and ours to rank 0. */
static void *relay_one(void *arg)
{
	int *fds = arg, first = 1;
	struct pollfd p[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
	char buf[65536];

	while (poll(p, 2, -1) > 0) {
		for (int i = 0; i < 2; i++) {
			ssize_t n = p[i].revents ? recv(fds[i], buf, first && i == 0 ? 1 : sizeof(buf), 0) : -1;

			if (n > 0)
				send_all(fds[!i], buf, (size_t)n);
			if (n > 0 && i == 0)
				__atomic_fetch_add(relayed, (uint64_t)n, __ATOMIC_RELAXED);
			if (n > 0 && i == 0 && first) {
				first = 0;
				sleep_ms(FIRST_MS);
			}
			if (n == 0 || (n < 0 && p[i].revents)) {
				shutdown(fds[!i], SHUT_WR);
				p[i].fd = -1;
			}
		}
		if (p[0].fd < 0 && p[1].fd < 0)
			break;
	}
	close(fds[0]);
	close(fds[1]);
	free(fds);
	return NULL;
}

static struct sockaddr_in local(int at)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons((uint16_t)at)};
}

/* It is killed in the end. */
static void relay_main(int listener)
{
	struct sockaddr_in to = local(port + 1);

	for (;;) {
		int one = 1, *fds = malloc(2 * sizeof(*fds));
		pthread_t thread;

		CHECK(fds != NULL);
		fds[0] = accept(listener, NULL, NULL);
		fds[1] = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(fds[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		CHECK(fds[0] >= 0);
		CHECK_EQ(connect(fds[1], (struct sockaddr *)&to, sizeof(to)), 0);
		CHECK_EQ(pthread_create(&thread, NULL, relay_one, fds), 0);
		pthread_detach(thread);
	}
}

static pid_t relay_start(void)
{
	struct sockaddr_in a = local(port);
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	pid_t pid;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	CHECK_EQ(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	CHECK_EQ(listen(fd, 64), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		alarm(PAIR_ALARM_S);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		relay_main(fd);
	}
	close(fd);
	return pid;
}

/* ---- ranks ---- */

/* The ports that this process listens on, each once. */
static void print_listening(void)
{
	int seen[16], n = 0;

	for (int fd = 0; fd < 256; fd++) {
		struct sockaddr_in a;
		socklen_t len = sizeof(a), four = sizeof(int);
		int listens = 0, known = 0;

		if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &four) || !listens ||
		    getsockname(fd, (struct sockaddr *)&a, &len) || a.sin_family != AF_INET)
			continue;
		for (int i = 0; i < n; i++)
			known |= seen[i] == ntohs(a.sin_port);
		if (known || n == 16)
			continue;
		seen[n++] = ntohs(a.sin_port);
		printf("rank 0 listens on %s:%d\n", inet_ntoa(a.sin_addr), ntohs(a.sin_port));
	}
	fflush(stdout);
}

/* All to rank 0: it is the others that connect. */
static gantry_result send_to_first(struct node *me)
{
	gantry_result r;

	if (me->rank)
		pattern_fill(me->out, SIZE, node_seed(me->rank, 0, 1));
	CHECK_OK(gantry_group_start());
	if (me->rank)
		CHECK_OK(gantry_send(me->out, SIZE, GANTRY_TYPE_UINT8, 0, me->comm, me->stream));
	for (int from = 1; !me->rank && from < N; from++)
		CHECK_OK(
			gantry_recv(me->in + (size_t)from * SIZE, SIZE, GANTRY_TYPE_UINT8, from, me->comm, me->stream));
	r = gantry_group_end();
	if (r == GANTRY_OK)
		r = gantry_stream_sync(me->dev, me->stream);
	if (r == GANTRY_OK)
		r = gantry_comm_error(me->comm, NULL, NULL, 0);
	for (int from = 1; !me->rank && from < N && r == GANTRY_OK; from++)
		CHECK_PATTERN(me->in + (size_t)from * SIZE, SIZE, node_seed(from, 0, 1));
	return r;
}

static int rank_main(int rank)
{
	struct gantry_unique_id id;
	struct node me;
	char text[64], path[4096];
	gantry_result r;

	snprintf(text, sizeof(text), "%d", port + rank + behind);
	setenv("GANTRY_PORT_RANGE", text, 1);
	snprintf(text, sizeof(text), "127.0.0.1:%d", port);
	if (behind && rank == 0)
		setenv("GANTRY_ADVERTISE", text, 1);
	snprintf(path, sizeof(path), "%s/id", folder);
	id_meet(path, rank == 0, &id);
	node_open(&me, &id, rank, N, "net", 0, SIZE);
	r = behind ? send_to_first(&me) : node_exchange(&me, N - 1, SIZE, 1);
	printf("rank %d %s %s\n", rank, gantry_result_name(r), r == GANTRY_OK ? "" : gantry_last_error());
	if (rank == 0)
		print_listening();
	node_close(&me);
	return r != GANTRY_OK;
}

int main(int argc, char **argv)
{
	int failures = 0;
	pid_t relay = 0, ranks[N];

	CHECK(argc == 4);
	behind = strcmp(argv[1], "behind") == 0;
	port = atoi(argv[2]);
	folder = argv[3];
	relayed = mmap(NULL, sizeof(*relayed), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(relayed != MAP_FAILED);
	if (behind)
		relay = relay_start();
	for (int i = 0; i < N; i++) {
		fflush(stdout);
		ranks[i] = fork();
		CHECK(ranks[i] >= 0);
		if (ranks[i] == 0) {
			alarm(PAIR_ALARM_S);
			exit(rank_main(i));
		}
	}
	for (int i = 0; i < N; i++)
		failures += pair_reap(ranks[i], 0);
	if (behind) {
		kill(relay, SIGKILL);
		failures += pair_reap(relay, SIGKILL);
		printf("relayed %s\n", *relayed >= (uint64_t)(N - 1) * SIZE ? "all" : "too little");
	}
	return failures != 0;
}
