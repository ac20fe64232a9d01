/*
 * What the examples need to run as two processes of one machine, and nothing about Gantry: on several machines mpirun,
 * srun or ssh would start them. A process that fails ends the other one, and none outlives the program.
 */
#ifndef TWO_H
#define TWO_H

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the processes are called in messages; the example defines it. */
static const char *const names[2];

static int channel[2]; /* a pipe from process 0 to process 1 */

static void __attribute__((noreturn, format(printf, 2, 3))) end(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(status);
}

/* Process 0 tells, process 1 hears: so many bytes, all at once. */
static void tell(const void *data, size_t size)
{
	if (write(channel[1], data, size) != (ssize_t)size)
		end(1, "%s: cannot tell the other process: %s", names[0], strerror(errno));
}

static void hear(void *data, size_t size)
{
	ssize_t n = read(channel[0], data, size);

	if (n == 0)
		pause(); /* process 0 has failed and said why: the program ends this one too */
	if (n != (ssize_t)size)
		end(1, "%s: cannot hear the other process: %s", names[1], strerror(errno));
}

/* PROGRAM [BYTES] [host|cuda] */
static void parse(int argc, char **argv, size_t *ret_bytes, int *ret_cuda)
{
	char *rest = NULL;

	if (argc > 3)
		end(2, "%s: too many arguments; usage: %s [BYTES] [host|cuda]", argv[0], argv[0]);
	if (argc > 1) {
		errno = 0;
		*ret_bytes = strtoull(argv[1], &rest, 10);
		if (argv[1][0] < '0' || argv[1][0] > '9' || *rest || errno || !*ret_bytes)
			end(2, "%s: '%s' is no number of bytes above 0", argv[0], argv[1]);
	}
	*ret_cuda = argc > 2 && !strcmp(argv[2], "cuda");
	if (argc > 2 && !*ret_cuda && strcmp(argv[2], "host"))
		end(2, "%s: '%s' is no device; there are: host, cuda", argv[0], argv[2]);
}

static pid_t start(void (*process)(int who, size_t bytes, int cuda), int who, size_t bytes, int cuda)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		end(1, "fork: %s", strerror(errno));
	if (pid > 0)
		return pid;
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
		end(1, "%s: the program is gone", names[who]);
	close(channel[who]); /* process 1 would wait for itself to write, where process 0 has failed */
	process(who, bytes, cuda);
	exit(0);
}

/* The exit status of the program: 0 if both processes ended with 0. */
static int run_two(void (*process)(int who, size_t bytes, int cuda), size_t bytes, int cuda)
{
	pid_t pids[2];
	int failed = 0;

	if (pipe(channel))
		end(1, "pipe: %s", strerror(errno));
	for (int who = 0; who < 2; who++)
		pids[who] = start(process, who, bytes, cuda);
	close(channel[0]);
	close(channel[1]);
	for (int left = 2; left; left--) {
		int status = 0, who = wait(&status) == pids[1];

		pids[who] = 0;
		if (!status || failed)
			continue;
		failed = 1;
		if (WIFSIGNALED(status))
			fprintf(stderr, "%s: ended by signal %d\n", names[who], WTERMSIG(status));
		if (pids[!who])
			kill(pids[!who], SIGKILL); /* it would wait for this one until its own deadline */
	}
	return failed;
}

#endif
