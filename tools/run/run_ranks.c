/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of `gantry run -n`: as torchrun and mpirun start them on one machine.
 *
 * The parent sleeps until a child ends or a signal comes, which it passes on, but for those that the terminal has sent to
 * all of them. When a rank fails the others have a moment to say what they see of it; then they are ended. Ranks die with
 * the parent.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/identity.h"
#include "run/run.h"

#define GRACE_NS 1000000000ull /* from a failure to SIGTERM */
#define KILL_NS 10000000000ull /* from there to SIGKILL */
#define NEVER UINT64_MAX

enum { SIGNALLED = 128, NOT_STARTED = 126, NOT_FOUND = 127 };

struct ranks {
	pid_t *pids; /* 0: has ended */
	int n, left;
	int status;	 /* the first failure's; 0: none */
	int signal_next; /* that those left get at `at`; 0: none */
	uint64_t at;
};

/* Signals that are waited for. Children have them as this process had. */
static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
enum { PASSED = sizeof(passed) / sizeof(*passed) };

static void set_number(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", value);
	setenv(name, text, 1);
}

static void set_rank(int rank, int n)
{
	static const char *const ranks[] = {"RANK", "LOCAL_RANK", "ROLE_RANK", "OMPI_COMM_WORLD_RANK",
					    "OMPI_COMM_WORLD_LOCAL_RANK"};
	static const char *const sizes[] = {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
					    "OMPI_COMM_WORLD_LOCAL_SIZE"};

	for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++)
		set_number(ranks[i], rank);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		set_number(sizes[i], n);
	set_number("GROUP_RANK", 0);
	set_number("GROUP_WORLD_SIZE", 1);
}

/* A port that was free a moment ago; rank 0 of the program opens it. */
static int free_port(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;

	if (fd >= 0 && bind(fd, (struct sockaddr *)&addr, len) == 0 &&
	    getsockname(fd, (struct sockaddr *)&addr, &len) == 0)
		port = ntohs(addr.sin_port);
	if (fd >= 0)
		close(fd);
	return port ? port : 29500;
}

static void become(char **argv, int rank, int n, int ranked, pid_t parent, const sigset_t *mask)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(NOT_STARTED);
	if (ranked)
		set_rank(rank, n);
	if (ranked && rank > 0) { /* one of them can read what is typed */
		int null = open("/dev/null", O_RDONLY);

		if (null >= 0) {
			dup2(null, STDIN_FILENO);
			close(null);
		}
	}
	sigprocmask(SIG_SETMASK, mask, NULL);
	execvp(argv[0], argv);
	fprintf(stderr, "gantry run: %s: %s\n", argv[0], strerror(errno));
	_exit(errno == ENOENT ? NOT_FOUND : NOT_STARTED);
}

static void signal_all(const struct ranks *r, int number)
{
	for (int i = 0; i < r->n; i++)
		if (r->pids[i])
			kill(r->pids[i], number);
}

/* A rank has ended. */
static void take_end(struct ranks *r, pid_t pid, int status)
{
	int code = WIFSIGNALED(status) ? SIGNALLED + WTERMSIG(status) : WEXITSTATUS(status), rank = 0;

	while (rank < r->n && r->pids[rank] != pid)
		rank++;
	if (rank == r->n)
		return;
	r->pids[rank] = 0;
	r->left--;
	if (!code || r->status)
		return;
	r->status = code;
	if (r->n == 1)
		return;
	if (WIFSIGNALED(status))
		fprintf(stderr, "gantry run: rank %d (pid %d) was ended by signal %d (%s)\n", rank, (int)pid,
			WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		fprintf(stderr, "gantry run: rank %d (pid %d) ended with status %d\n", rank, (int)pid, code);
	if (!r->signal_next) {
		r->signal_next = SIGTERM;
		r->at = gantry_now_ns() + GRACE_NS;
	}
}

static void reap(struct ranks *r)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		take_end(r, pid, status);
}

/* The next signal, or the time at which those left get theirs. */
static void wait_for_news(struct ranks *r, const sigset_t *signals)
{
	uint64_t now = gantry_now_ns(), rest = r->signal_next ? (r->at > now ? r->at - now : 0) : NEVER;
	struct timespec ts = {(time_t)(rest / 1000000000u), (long)(rest % 1000000000u)};
	siginfo_t info;
	int number = rest == NEVER ? sigwaitinfo(signals, &info) : sigtimedwait(signals, &info, &ts);

	if (number < 0 && errno == EAGAIN) {
		signal_all(r, r->signal_next);
		r->signal_next = SIGKILL;
		r->at = gantry_now_ns() + KILL_NS;
	} else if (number > 0 && number != SIGCHLD && info.si_code != SI_KERNEL) {
		signal_all(r, number); /* SI_KERNEL: the terminal's, which all of them have got */
	}
}

int run_ranks(char **argv, int n, int ranked)
{
	struct ranks r = {.pids = calloc((size_t)n, sizeof(*r.pids)), .n = n};
	pid_t self = getpid();
	sigset_t signals, old;

	if (!r.pids)
		return NOT_STARTED;
	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	for (int i = 0; i < PASSED; i++)
		sigaddset(&signals, passed[i]);
	sigprocmask(SIG_BLOCK, &signals, &old);
	if (ranked && !gantry_variable("MASTER_ADDR"))
		setenv("MASTER_ADDR", "127.0.0.1", 1);
	if (ranked && !gantry_variable("MASTER_PORT"))
		set_number("MASTER_PORT", free_port());
	fflush(NULL);
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid == 0)
			become(argv, i, n, ranked, self, &old);
		if (pid < 0) {
			fprintf(stderr, "gantry run: cannot start rank %d: %s\n", i, strerror(errno));
			r.status = NOT_STARTED;
			signal_all(&r, SIGKILL);
			break;
		}
		r.pids[i] = pid;
		r.left++;
	}
	for (reap(&r); r.left; reap(&r))
		wait_for_news(&r, &signals);
	sigprocmask(SIG_SETMASK, &old, NULL);
	free(r.pids);
	return r.status;
}
