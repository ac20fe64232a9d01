/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that really hang: reports are written by the watchdog and put together by the tool. Each way to hang must be
 * found out, with the right rank, whatever the transport.
 */
#include <sys/mman.h>

#include "stall_world.h"

static const char *transport_now;
static char buffers[WORLD_RANKS][4 * WORLD_BYTES];

/*
 * Times. On a busy machine anything may stand still for longer than a job that hangs would be given, so nothing counts
 * as stalled while ranks connect and warm up; when all are where the scenario wants them, it is looked for.
 */
static void look_for_stalls(int on)
{
	set_params("GANTRY_STALL", on ? "50ms" : "10m");
}

/* Of so many reports this verdict comes. */
static void expect(const struct world *w, int reports, const char *cause, int rank, const char *part)
{
	struct stall_verdict v;

	world_wait_files(w, reports);
	world_judge(w, &v);
	CHECK_STR(v.cause, cause);
	CHECK_EQ(v.rank, rank);
	CHECK_HAS(v.text, part);
}

/* Rank 1 sends nothing. Only who waits reports by itself; on the signal everybody does. */
static void one_is_missing(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			   struct gantry_stream *s)
{
	struct gantry_comm_counters before = GANTRY_COMM_COUNTERS_INIT, after = GANTRY_COMM_COUNTERS_INIT;

	world_warm_up(rank, buffers[rank], comm, dev, s);
	gantry_comm_get_counters(comm, &before);
	CHECK_EQ(before.send_bytes, 2 * WORLD_BYTES);
	CHECK_EQ(before.recv_bytes, 2 * WORLD_BYTES);
	if (rank != 1)
		world_move(0, buffers[rank], 1, comm, s);
	pthread_barrier_wait(&w->all);
	pthread_barrier_wait(&w->over);
	for (int p = 0; rank == 1 && p < WORLD_RANKS; p++) {
		if (p != rank)
			world_move(1, buffers[rank], p, comm, s);
	}
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_OK(gantry_comm_destroy(comm));
	memset(&after, 0xff, sizeof(after));
	after.struct_size = sizeof(after);
	CHECK_OK(gantry_comm_get_counters(NULL, &after));
	CHECK_EQ(after.recv_bytes, 0);
}

static void see_missing(struct world *w)
{
	look_for_stalls(1);
	expect(w, 2, "missing call", 1, "no report");
	CHECK_EQ(raise(SIGUSR2), 0);
	expect(w, 3, "missing call", 1, "has not called send to rank");
}

/* Each receives from its left before it sends to its right, on one stream. */
static void in_a_ring(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	gantry_result r;

	world_warm_up(rank, buffers[rank], comm, dev, s);
	world_move(0, buffers[rank], (rank + 2) % 3, comm, s);
	world_move(1, buffers[rank], (rank + 1) % 3, comm, s);
	pthread_barrier_wait(&w->all);
	pthread_barrier_wait(&w->over);
	CHECK_OK(gantry_comm_abort(comm));
	/* Another rank may have been quicker, and its end is then what this one's was first. */
	r = gantry_comm_destroy(comm);
	CHECK(r == GANTRY_OK || r == GANTRY_ERR_PEER_CLOSED);
}

static void see_ring(struct world *w)
{
	look_for_stalls(1);
	expect(w, 3, "deadlock", 0, "0 -> 2 -> 1 -> 0");
}

/* Two have called a collective more than rank 1. */
static void one_calls_less(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			   struct gantry_stream *s)
{
	world_warm_up(rank, buffers[rank], comm, dev, s);
	for (int i = 0; i < 2; i++) {
		if (i && rank == 1) {
			pthread_barrier_wait(&w->all);
			pthread_barrier_wait(&w->over);
		}
		CHECK_OK(gantry_all_reduce(buffers[rank], buffers[rank], 250, GANTRY_TYPE_FLOAT32, GANTRY_OP_MAX, comm,
					   s));
	}
	if (rank != 1) {
		pthread_barrier_wait(&w->all);
		pthread_barrier_wait(&w->over);
	}
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_OK(gantry_comm_destroy(comm));
}

static void see_less(struct world *w)
{
	look_for_stalls(1);
	expect(w, 2, "missing call", 1, "it has not called all_reduce #2 (1000 B float max, ");
	CHECK_EQ(raise(SIGUSR2), 0);
	expect(w, 3, "missing call", 1, "has not called all_reduce #2 (1000 B float max, ");
}

/* The very first calls do not meet: rank 2 waits for rank 0, which calls for rank 1, which calls nobody. */
static void no_connection(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			  struct gantry_stream *s)
{
	gantry_result r = GANTRY_ERR_ABORTED;

	pthread_barrier_wait(&w->all);
	if (rank == 2)
		r = gantry_recv(buffers[2], 1, GANTRY_TYPE_UINT8, 0, comm, s);
	if (rank == 0)
		r = gantry_send(buffers[0], 1, GANTRY_TYPE_UINT8, 1, comm, s);
	CHECK(r != GANTRY_OK); /* GANTRY_CALL_TIMEOUT */
	pthread_barrier_wait(&w->over);
	gantry_comm_destroy(comm);
}

static void see_no_connection(struct world *w)
{
	look_for_stalls(1);
	expect(w, 2, "missing call", 1, "has not called recv from rank 0");
	CHECK_EQ(raise(SIGUSR2), 0);
	expect(w, 3, "missing call", 1, "has not called recv from rank 0");
	set_params("GANTRY_CALL_TIMEOUT", "100ms");
}

/* An error, and a destroy at once: the report is there when destroy returns. */
static void fails(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		  struct gantry_stream *s)
{
	world_warm_up(rank, buffers[rank], comm, dev, s);
	if (rank == 0)
		CHECK_OK(gantry_send(buffers[0], 2 * WORLD_BYTES, GANTRY_TYPE_UINT8, 1, comm, s));
	if (rank == 1)
		CHECK_OK(gantry_recv(buffers[1], WORLD_BYTES, GANTRY_TYPE_UINT8, 0, comm, s));
	gantry_stream_sync(dev, s);
	while (rank == 1 && gantry_comm_error(comm, NULL, NULL, 0) == GANTRY_OK)
		sleep_ms(1);
	if (rank == 1)
		CHECK(gantry_comm_destroy(comm) != GANTRY_OK);
	pthread_barrier_wait(&w->all);
	pthread_barrier_wait(&w->over);
	if (rank != 1) {
		gantry_comm_abort(comm);
		gantry_comm_destroy(comm);
	}
}

static void see_failed(struct world *w)
{
	struct stall_verdict v;

	CHECK(world_files(w, 0) >= 1);
	world_judge(w, &v);
	CHECK_STR(v.cause, "failed");
	CHECK_HAS(v.text, "ERR_SIZE");
}

static void threads(void (*body)(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
				 struct gantry_stream *s),
		    void (*middle)(struct world *w))
{
	struct world w = {.nranks = WORLD_RANKS, .transport = transport_now, .body = body};

	world_dir(&w);
	look_for_stalls(0);
	set_params("GANTRY_CONNECT_TIMEOUT", "400s");
	world_threads(&w, middle);
	world_clean(&w);
}

/* Processes: rank 2 receives from both others, for ever; rank 1 comes to harm. */
static void waits_for_ever(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			   struct gantry_stream *s)
{
	char ready[80];
	FILE *f;

	world_warm_up(rank, buffers[rank], comm, dev, s);
	if (rank == 2)
		world_move(0, buffers[2], 1, comm, s);
	if (rank == 0)
		world_move(0, buffers[0], 2, comm, s);
	snprintf(ready, sizeof(ready), "%s.%d", w->dir, rank);
	f = fopen(ready, "w");
	CHECK(f != NULL);
	fclose(f);
	while (gantry_comm_error(comm, NULL, NULL, 0) == GANTRY_OK)
		sleep_ms(5);
	gantry_comm_destroy(comm);
}

/* Whether rank i got ready before it ended. */
static int gets_ready(const struct world *w, int i, pid_t pid)
{
	siginfo_t ended = {0};
	char ready[80];

	snprintf(ready, sizeof(ready), "%s.%d", w->dir, i);
	UNTIL(access(ready, F_OK) == 0 ||
	      (waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid));
	return unlink(ready) == 0;
}

struct shared_id {
	struct gantry_unique_id id;
	uint32_t there;
};

/* 0: it was not found out. With a short timeout a rank that is well may have been taken for dead before the other. */
static int processes(int harm, const char *timeout, const char *cause, const char *part)
{
	struct world w = {.nranks = WORLD_RANKS, .transport = transport_now, .body = waits_for_ever};
	struct stall_verdict v;
	pid_t pids[WORLD_RANKS];
	struct shared_id *id;
	int status, fine = 1;

	look_for_stalls(0);
	set_params("GANTRY_TIMEOUT", timeout, "GANTRY_CONNECT_TIMEOUT", "400s");
	world_dir(&w);
	/* The id comes after the forks: from then on the service thread has ranks to talk to, and a child that is forked while
	 * another thread is within AddressSanitizer's allocator waits there for ever. */
	id = mmap(NULL, sizeof(*id), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(id != MAP_FAILED);
	for (int i = 0; i < WORLD_RANKS; i++) {
		pids[i] = child_fork();
		if (!pids[i]) {
			UNTIL(load_acquire(&id->there));
			w.id = id->id;
			world_rank(&w, i);
			_exit(0);
		}
	}
	CHECK_OK(gantry_unique_id_create(&id->id));
	store_release(&id->there, 1);
	for (int i = 0; i < WORLD_RANKS; i++)
		fine &= gets_ready(&w, i, pids[i]);
	CHECK_EQ(kill(pids[1], harm), 0);
	for (int i = 0; i < WORLD_RANKS; i++) {
		if (i == 1)
			continue;
		CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
		fine &= status == 0;
	}
	kill(pids[1], SIGKILL);
	waitpid(pids[1], &status, 0);
	fine = fine && world_files(&w, 0) == 2;
	if (fine) {
		world_judge(&w, &v);
		fine = !strcmp(v.cause, cause) && v.rank == 1 && strstr(v.text, part);
	}
	world_clean(&w);
	munmap(id, sizeof(*id));
	return fine;
}

static void killed_and_stopped(void)
{
	static const char *const timeouts[] = {"1500ms", "3s", "6s", "12s"};
	size_t i = 0;

	CHECK(processes(SIGKILL, "60s", "died", "its process died"));
	while (!processes(SIGSTOP, timeouts[i], "stopped", "stopped"))
		CHECK(++i < sizeof(timeouts) / sizeof(*timeouts));
}

static pthread_mutex_t warning_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_warning[1024];

static void keep(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		 const char *text)
{
	pthread_mutex_lock(&warning_lock);
	if (level == GANTRY_LOG_WARN && strstr(text, "cannot write"))
		snprintf(last_warning, sizeof(last_warning), "%s", text);
	pthread_mutex_unlock(&warning_lock);
	fprintf(stderr, "%s:%d %s\n", file, line, text);
}

static int was_warned(char got[sizeof(last_warning)])
{
	pthread_mutex_lock(&warning_lock);
	memcpy(got, last_warning, sizeof(last_warning));
	pthread_mutex_unlock(&warning_lock);
	return *got != 0;
}

/* A folder that is not there costs a line and nothing else. */
static void see_no_folder(struct world *w)
{
	char got[sizeof(last_warning)] = "";

	CHECK_EQ(raise(SIGUSR2), 0);
	UNTIL(was_warned(got));
	CHECK_HAS(got, "/nowhere/at/all");
	CHECK_HAS(got, strerror(ENOENT));
}

static void no_folder(void)
{
	struct world w = {.nranks = WORLD_RANKS, .transport = "shm", .body = one_is_missing};

	look_for_stalls(0);
	set_params("GANTRY_CONNECT_TIMEOUT", "400s", "GANTRY_STALL_DIR", "/nowhere/at/all");
	gantry_log_set_sink(keep);
	world_threads(&w, see_no_folder);
	gantry_log_set_sink(NULL);
}

int main(void)
{
	static const char *const transports[] = {"p2p", "shm", "net"};

	setenv("GANTRY_IFNAME", "lo", 0);
	setenv("GANTRY_STALL_SIGNAL", "USR2", 1);
	/* First those that fork, while there are no other threads. */
	for (size_t t = CAN_FORK ? 0 : 3; t < 6; t++) {
		transport_now = transports[t % 3];
		printf("--- %s, %s\n", transport_now, t < 3 ? "processes" : "threads");
		if (t < 3) {
			killed_and_stopped();
		} else {
			set_params("GANTRY_TIMEOUT", "60s");
			threads(one_is_missing, see_missing);
			threads(in_a_ring, see_ring);
			threads(one_calls_less, see_less);
			threads(fails, see_failed);
		}
	}
	threads(no_connection, see_no_connection);
	no_folder();
	return 0;
}
