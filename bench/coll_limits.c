/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two processes on two CPUs of one machine can reach at best, for docs/design/0021: the parts of an all-reduce
 * (copy, add, TCP, waking a process), and the all-reduce of two ranks itself, written by hand over one socket and over
 * shared memory with nothing around it that a library needs. Each line is the median of -n repeats, as JSON.
 *
 *   cc -std=c11 -D_GNU_SOURCE -O3 -o coll_limits bench/coll_limits.c
 *   coll_limits [-n REPEATS] [-b BYTES] [-c CHUNK] [-s SOCKET_BUFFER] [NAME...]     without names: everything
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TRIPS = 2000, REPEATS_MAX = 99, LIFE_S = 120 };

struct flag {
	uint32_t v __attribute__((aligned(128)));
};

/* Shared by both processes. */
static struct shared {
	struct flag met[2], ping[2];
	double seconds[2];
} * shared;

static size_t bytes = 16 << 20, chunk = 128 << 10;
static int repeats = 9, socket_buffer, me; /* socket_buffer: 0: as the kernel likes */
static char *in, *out, *scratch;	   /* of `bytes` each; `in` and `out` of both processes are shared: */
static char *all_in[2], *all_out[2];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void wait_flag(struct flag *f, uint32_t v)
{
	while ((int32_t)(__atomic_load_n(&f->v, __ATOMIC_ACQUIRE) - v) < 0)
		;
}

static void meet(void)
{
	uint32_t n = shared->met[me].v + 1;

	__atomic_store_n(&shared->met[me].v, n, __ATOMIC_RELEASE);
	wait_flag(&shared->met[!me], n);
}

static void add(float *restrict sum, const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sum[i] = a[i] + b[i];
}

/* ---- one CPU, and both at once ---- */

static void do_memcpy(int fd)
{
	(void)fd;
	memcpy(out, in, bytes);
}

static void do_memcpy_l2(int fd)
{
	(void)fd;
	for (size_t at = 0; at < bytes; at += 1 << 17)
		memcpy(out, in, 1 << 17);
}

static void do_add(int fd)
{
	(void)fd;
	add((float *)out, (float *)in, (float *)scratch, bytes / sizeof(float));
}

/* One operand was just received and is in L2. */
static void do_add_l2(int fd)
{
	(void)fd;
	for (size_t at = 0; at < bytes; at += 1 << 17)
		add((float *)(out + at), (float *)(in + at), (float *)scratch, (1 << 17) / sizeof(float));
}

/* ---- waking ---- */

static void do_flag(int fd)
{
	(void)fd;
	for (uint32_t i = 0; i < TRIPS; i++) {
		uint32_t n = shared->ping[me].v + 1;

		if (me)
			wait_flag(&shared->ping[0], n);
		__atomic_store_n(&shared->ping[me].v, n, __ATOMIC_RELEASE);
		if (!me)
			wait_flag(&shared->ping[1], n);
	}
}

static void futex_wait(struct flag *f, uint32_t v)
{
	uint32_t seen;

	while ((int32_t)((seen = __atomic_load_n(&f->v, __ATOMIC_ACQUIRE)) - v) < 0)
		syscall(SYS_futex, &f->v, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void futex_post(struct flag *f, uint32_t v)
{
	__atomic_store_n(&f->v, v, __ATOMIC_RELEASE);
	syscall(SYS_futex, &f->v, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void do_futex(int fd)
{
	(void)fd;
	for (uint32_t i = 0; i < TRIPS; i++) {
		uint32_t n = shared->ping[me].v + 1;

		if (me)
			futex_wait(&shared->ping[0], n);
		futex_post(&shared->ping[me], n);
		if (!me)
			futex_wait(&shared->ping[1], n);
	}
}

/* ---- small messages over TCP ---- */

static void send_all(int fd, const char *from, size_t n)
{
	while (n > 0) {
		ssize_t k = send(fd, from, n, 0);

		if (k < 0 && errno != EAGAIN)
			die("send");
		from += k > 0 ? k : 0;
		n -= k > 0 ? (size_t)k : 0;
	}
}

static void recv_all(int fd, char *to, size_t n, int flags)
{
	while (n > 0) {
		ssize_t k = recv(fd, to, n, flags);

		if (k == 0 || (k < 0 && errno != EAGAIN))
			die("recv");
		to += k > 0 ? k : 0;
		n -= k > 0 ? (size_t)k : 0;
	}
}

static void pingpong(int fd, int flags)
{
	for (int i = 0; i < TRIPS; i++) {
		if (!me)
			send_all(fd, in, 64);
		recv_all(fd, scratch, 64, flags);
		if (me)
			send_all(fd, in, 64);
	}
}

static void do_tcp_blocking(int fd)
{
	pingpong(fd, 0);
}

static void do_tcp_spin(int fd)
{
	pingpong(fd, MSG_DONTWAIT);
}

static void do_tcp_poll(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	for (int i = 0; i < TRIPS; i++) {
		if (!me)
			send_all(fd, in, 64);
		while (poll(&p, 1, 0) == 0)
			;
		recv_all(fd, scratch, 64, 0);
		if (me)
			send_all(fd, in, 64);
	}
}

/* An 8-byte all-reduce is an exchange: both send, both receive. */
static void do_tcp_exchange(int fd)
{
	for (int i = 0; i < TRIPS; i++) {
		send_all(fd, in, 16);
		recv_all(fd, scratch, 16, MSG_DONTWAIT);
	}
}

/* ---- many bytes over TCP ---- */

struct stream {
	int fd, pipe[2], spliced;
	size_t in_pipe;
};

/* As much as goes without waiting: bytes, 0 if none. */
static size_t push(struct stream *s, const char *from, size_t n)
{
	ssize_t k;

	if (!s->spliced) {
		k = send(s->fd, from, n, MSG_DONTWAIT);
	} else {
		struct iovec v = {(void *)from, n};

		if (s->in_pipe == 0) {
			k = vmsplice(s->pipe[1], &v, 1, SPLICE_F_NONBLOCK);
			if (k < 0)
				die("vmsplice");
			s->in_pipe = (size_t)k;
		}
		k = splice(s->pipe[0], NULL, s->fd, NULL, s->in_pipe, SPLICE_F_NONBLOCK);
		s->in_pipe -= k > 0 ? (size_t)k : 0;
	}
	if (k < 0 && errno != EAGAIN)
		die("send");
	return k > 0 ? (size_t)k : 0;
}

static size_t pull(struct stream *s, char *to, size_t n)
{
	ssize_t k = recv(s->fd, to, n, MSG_DONTWAIT);

	if (k == 0 || (k < 0 && errno != EAGAIN))
		die("recv");
	return k > 0 ? (size_t)k : 0;
}

static void open_stream(struct stream *s, int fd, int spliced)
{
	*s = (struct stream){.fd = fd, .spliced = spliced};
	if (spliced && (pipe(s->pipe) || fcntl(s->pipe[1], F_SETPIPE_SZ, 1 << 20) < 0))
		die("pipe");
}

static void close_stream(struct stream *s)
{
	if (s->spliced) {
		close(s->pipe[0]);
		close(s->pipe[1]);
	}
}

/* Both send `bytes` and receive as many, into L2 or into memory. */
static void exchange(int fd, int spliced, int to_memory)
{
	size_t sent = 0, got = 0;
	struct stream s;

	open_stream(&s, fd, spliced);
	while (sent < bytes || got < bytes) {
		size_t want = chunk - got % chunk;

		if (sent < bytes)
			sent += push(&s, in + sent, chunk - sent % chunk);
		if (got < bytes)
			got += pull(&s, to_memory ? out + got : scratch + got % chunk, want);
	}
	close_stream(&s);
}

static void do_exchange_send(int fd)
{
	exchange(fd, 0, 1);
}

static void do_exchange_splice(int fd)
{
	exchange(fd, 1, 1);
}

static void do_exchange_splice_l2(int fd)
{
	exchange(fd, 1, 0);
}

static void do_exchange_send_l2(int fd)
{
	exchange(fd, 0, 0);
}

/*
 * The all-reduce of two ranks over one socket: each rank reduces its half. In both directions a piece of the other
 * rank's half and a piece of the own sums take turns, the sums LAG pieces later, so that neither waits.
 */
enum { LAG = 2 };

struct item {
	size_t piece;
	int is_sum;
};

static struct item item_at(size_t i, size_t pieces)
{
	/* LAG inputs, then a sum and an input by turns, then the last sums. */
	if (i < LAG)
		return (struct item){i, 0};
	if (i < LAG + 2 * (pieces - LAG))
		return (i - LAG) % 2 ? (struct item){(i - LAG) / 2 + LAG, 0} : (struct item){(i - LAG) / 2, 1};
	return (struct item){i - pieces, 1};
}

static void all_reduce(int fd, int spliced)
{
	size_t half = bytes / 2, pieces = half / chunk, items = 2 * pieces, tx = 0, rx = 0, tx_at = 0, rx_at = 0,
	       sums = 0;
	size_t mine = (size_t)me * half, theirs = half - mine;
	struct stream s;

	open_stream(&s, fd, spliced);
	while (tx < items || rx < items) {
		struct item t = item_at(tx, pieces), r = item_at(rx, pieces);

		if (tx < items && (!t.is_sum || t.piece < sums)) {
			tx_at += push(&s, (t.is_sum ? out + mine : in + theirs) + t.piece * chunk + tx_at,
				      chunk - tx_at);
			tx += tx_at == chunk;
			tx_at = tx_at == chunk ? 0 : tx_at;
		}
		if (rx == items)
			continue;
		rx_at += pull(&s, (r.is_sum ? out + theirs + r.piece * chunk : scratch) + rx_at, chunk - rx_at);
		if (rx_at < chunk)
			continue;
		rx_at = 0;
		rx++;
		if (!r.is_sum) {
			size_t at = mine + r.piece * chunk;

			add((float *)(out + at), (float *)(in + at), (float *)scratch, chunk / sizeof(float));
			sums++;
		}
	}
	close_stream(&s);
}

static void do_all_reduce_send(int fd)
{
	all_reduce(fd, 0);
}

static void do_all_reduce_splice(int fd)
{
	all_reduce(fd, 1);
}

/* ---- shared memory ---- */

/* Everything is mapped by both: a rank reads both inputs of its half and writes both outputs. No copy at all. */
static void do_shm_direct(int fd)
{
	size_t half = bytes / 2, at = (size_t)me * half;

	(void)fd;
	for (size_t i = at; i < at + half; i += 1 << 15) {
		add((float *)(all_out[0] + i), (float *)(all_in[0] + i), (float *)(all_in[1] + i),
		    (1 << 15) / sizeof(float));
		memcpy(all_out[1] + i, all_out[0] + i, 1 << 15);
	}
	meet();
}

/*
 * Private buffers: a rank copies what the other one reduces into a shared window, in pieces that stay in cache, reduces
 * its half from the other's window, and leaves the sums in a window from which the other one copies them.
 */
static void do_shm_staged(int fd)
{
	enum { PIECE = 1 << 17 };
	size_t half = bytes / 2, mine = (size_t)me * half, theirs = half - mine;
	/* The window lies in the shared part of the other inputs; two pieces by turns. */
	char *to = all_out[me], *from = all_out[!me];

	(void)fd;
	for (size_t at = 0; at < half; at += PIECE) {
		size_t w = at / PIECE % 2 * (4 * PIECE);

		memcpy(to + w, in + theirs + at, PIECE);
		meet();
		add((float *)(to + w + PIECE), (float *)(in + mine + at), (float *)(from + w), PIECE / sizeof(float));
		memcpy(scratch + mine + at, to + w + PIECE, PIECE);
		meet();
		memcpy(scratch + theirs + at, from + w + PIECE, PIECE);
	}
}

/* 4 KiB: copy in, say so, reduce all of it from the other's window; two windows by turns and no closing meeting. */
static void do_shm_4k(int fd)
{
	enum { SMALL = 4096 };

	(void)fd;
	for (uint32_t i = 0; i < TRIPS; i++) {
		size_t w = i % 2 * (SMALL + 4096);
		uint32_t n = shared->ping[me].v + 1;

		memcpy(all_out[me] + w, in, SMALL);
		__atomic_store_n(&shared->ping[me].v, n, __ATOMIC_RELEASE);
		wait_flag(&shared->ping[!me], n);
		add((float *)scratch, (float *)in, (float *)(all_out[!me] + w), SMALL / sizeof(float));
	}
}

/* ---- running ---- */

/* Where an all-reduce leaves its sums, of `bytes` or of 4 KiB. */
enum result { NONE, IN_OUT, IN_ALL_OUT, IN_SCRATCH, IN_SCRATCH_4K };

/* trips: what the time is divided by, 0: it is a bandwidth of `bytes`. */
static const struct test {
	const char *name;
	void (*run)(int fd);
	int trips;
	enum result result;
} tests[] = {
	{"memcpy", do_memcpy, 0, NONE},
	{"memcpy in L2", do_memcpy_l2, 0, NONE},
	{"add", do_add, 0, NONE},
	{"add, one operand in L2", do_add_l2, 0, NONE},
	{"flag, one way", do_flag, 2 * TRIPS, NONE},
	{"futex, one way", do_futex, 2 * TRIPS, NONE},
	{"tcp 64 B blocking, one way", do_tcp_blocking, 2 * TRIPS, NONE},
	{"tcp 64 B poll and recv, one way", do_tcp_poll, 2 * TRIPS, NONE},
	{"tcp 64 B recv spins, one way", do_tcp_spin, 2 * TRIPS, NONE},
	{"tcp 16 B both ways at once", do_tcp_exchange, TRIPS, NONE},
	{"tcp both ways, send, into memory", do_exchange_send, 0, NONE},
	{"tcp both ways, send, into L2", do_exchange_send_l2, 0, NONE},
	{"tcp both ways, splice, into memory", do_exchange_splice, 0, NONE},
	{"tcp both ways, splice, into L2", do_exchange_splice_l2, 0, NONE},
	{"all_reduce tcp, send", do_all_reduce_send, 0, IN_OUT},
	{"all_reduce tcp, splice", do_all_reduce_splice, 0, IN_OUT},
	{"all_reduce shm, all mapped", do_shm_direct, 0, IN_ALL_OUT},
	{"all_reduce shm, private buffers", do_shm_staged, 0, IN_SCRATCH},
	{"all_reduce shm 4 KiB", do_shm_4k, TRIPS, IN_SCRATCH_4K},
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Everything that is added is 1. */
static void check_result(const struct test *t)
{
	const float *at = (const float *)(t->result == IN_OUT ? out : t->result == IN_ALL_OUT ? all_out[me] : scratch);
	size_t n = (t->result == IN_SCRATCH_4K ? 4096 : bytes) / sizeof(float);

	for (size_t i = 0; t->result != NONE && i < n; i++) {
		if (at[i] == 2)
			continue;
		fprintf(stderr, "%s: element %zu of rank %d is %g\n", t->name, i, me, (double)at[i]);
		exit(1);
	}
}

static void run_test(const struct test *t, int fd, const char *cc)
{
	double s[REPEATS_MAX], start, median;

	for (int i = -1; i < repeats; i++) {
		meet();
		start = now();
		t->run(fd);
		shared->seconds[me] = now() - start;
		meet();
		if (i >= 0)
			s[i] = shared->seconds[0] > shared->seconds[1] ? shared->seconds[0] : shared->seconds[1];
		meet();
	}
	check_result(t);
	if (me)
		return;
	qsort(s, (size_t)repeats, sizeof(s[0]), by_value);
	median = s[repeats / 2];
	printf("{\"limit\": \"%s\", \"congestion\": \"%s\", ", t->name, cc);
	if (t->trips)
		printf("\"time_us\": %.3f}\n", median / t->trips * 1e6);
	else
		printf("\"bytes\": %zu, \"time_us\": %.1f, \"gbs\": %.3f}\n", bytes, median * 1e6,
		       (double)bytes / median / 1e9);
	fflush(stdout);
}

/* A socket to the other process, which was forked from this one. */
static int connect_pair(int listener, const struct sockaddr_in *a, const char *cc)
{
	int fd = me ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL), one = 1;

	if (fd < 0 || (me && connect(fd, (const struct sockaddr *)a, sizeof(*a))))
		die("connect");
	if (*cc && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)))
		die(cc);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (socket_buffer) {
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &socket_buffer, sizeof(socket_buffer));
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &socket_buffer, sizeof(socket_buffer));
	}
	return fd;
}

static char *map_memory(int flags)
{
	char *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		die("mmap");
	madvise(m, bytes, MADV_HUGEPAGE);
	return m;
}

static void take_memory(void)
{
	in = map_memory(MAP_PRIVATE);
	out = map_memory(MAP_PRIVATE);
	scratch = map_memory(MAP_PRIVATE);
	/* 1.0f everywhere: nothing that adds slowly. */
	for (size_t i = 0; i < bytes / sizeof(float); i++)
		((float *)in)[i] = ((float *)scratch)[i] = ((float *)out)[i] = ((float *)all_in[me])[i] = 1;
	memset(all_out[me], 0, bytes);
}

static int chosen(const struct test *t, char **names)
{
	for (char **n = names; *n; n++)
		if (strstr(t->name, *n))
			return 1;
	return !*names;
}

static int take_options(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "n:b:c:s:")) != -1) {
		if (c == 'n')
			repeats = atoi(optarg);
		else if (c == 'b')
			bytes = strtoull(optarg, NULL, 10);
		else if (c == 'c')
			chunk = strtoull(optarg, NULL, 10);
		else if (c == 's')
			socket_buffer = atoi(optarg);
		else
			return -1;
	}
	/* Halves are whole chunks, and there are more than LAG of them. */
	return repeats < 1 || repeats > REPEATS_MAX || chunk < 4096 || bytes % (2 * chunk) ||
	       bytes / (2 * chunk) <= LAG || bytes < 4 << 20;
}

int main(int argc, char **argv)
{
	static const char *const congestion[] = {"", "reno"};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	cpu_set_t cpus;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	pid_t child;

	if (take_options(argc, argv))
		return 2;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || bind(listener, (struct sockaddr *)&a, sizeof(a)) || listen(listener, 4) ||
	    getsockname(listener, (struct sockaddr *)&a, &len))
		die("listen");
	for (int i = 0; i < 2; i++) {
		all_in[i] = map_memory(MAP_SHARED);
		all_out[i] = map_memory(MAP_SHARED);
	}
	child = fork();
	me = child == 0;
	alarm(LIFE_S);
	CPU_ZERO(&cpus);
	CPU_SET(me, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die("two CPUs");
	take_memory();
	for (size_t k = 0; k < 2; k++) {
		int fd = connect_pair(listener, &a, congestion[k]);

		for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
			if (chosen(&tests[i], argv + optind) && (k == 0 || strstr(tests[i].name, "tcp")))
				run_test(&tests[i], fd, strstr(tests[i].name, "tcp") ? congestion[k] : "");
		close(fd);
	}
	return me ? 0 : waitpid(child, NULL, 0) != child;
}
