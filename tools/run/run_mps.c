/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's MPS: a daemon through which processes share a GPU at the same time instead of in turns. Kernels that wait for
 * each other need that. Programs find it by a folder with its pipes.
 *
 * We start none where one runs. Ours has folders of its own, so that it serves this job alone and ends with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/device.h"
#include "run/run.h"

enum { ANSWER_MS = 20000, NAP_MS = 20 };

static char folder[64]; /* of the daemon that was started; "": none */

/* The exit status of a child, or -1; a child that does not end is killed. */
static int await_child(pid_t pid)
{
	int status;

	for (int waited = 0; waited < ANSWER_MS; waited += NAP_MS) {
		pid_t ended = waitpid(pid, &status, WNOHANG);

		if (ended == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
		if (ended < 0 && errno != EINTR)
			return -1;
		usleep(NAP_MS * 1000);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return -1;
}

int run_count_gpus(void)
{
	pid_t pid = fork();
	int n;

	if (pid == 0) {
		n = gantry_device_cuda_count(NULL, 0);
		_exit(n < 100 ? n : 100);
	}
	n = pid > 0 ? await_child(pid) : -1;
	return n > 0 ? n : 0;
}

/* nvidia-cuda-mps-control with a command on its standard input, or with an argument. Its output is dropped. */
static int control(const char *input, char *argument)
{
	static char name[] = "nvidia-cuda-mps-control";
	char *argv[] = {name, argument, NULL};
	int fds[2];
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -1;
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

		dup2(fds[0], STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		/* LD_PRELOAD is for the program. */
		unsetenv("LD_PRELOAD");
		execvp(name, argv);
		_exit(127);
	}
	close(fds[0]);
	if (pid > 0 && input)
		dprintf(fds[1], "%s\n", input);
	close(fds[1]);
	return pid > 0 ? await_child(pid) : -1;
}

int run_mps_runs(void)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN}, old;
	int r;

	sigaction(SIGPIPE, &ignore, &old); /* it may end before it reads */
	r = control("get_server_list", NULL);
	sigaction(SIGPIPE, &old, NULL);
	return r == 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st, (void)kind, (void)at;
	return remove(path);
}

static void remove_folder(void)
{
	nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	folder[0] = 0;
}

int run_mps_start(void)
{
	static char daemonize[] = "-d";
	char log[80];
	int r;

	snprintf(folder, sizeof(folder), "/tmp/gantry-mps-XXXXXX");
	if (!mkdtemp(folder)) {
		fprintf(stderr, "gantry run: no MPS: %s: %s\n", folder, strerror(errno));
		folder[0] = 0;
		return -1;
	}
	snprintf(log, sizeof(log), "%s/log", folder);
	setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
	setenv("CUDA_MPS_LOG_DIRECTORY", log, 1);
	r = control(NULL, daemonize);
	if (r == 0)
		return 0;
	fprintf(stderr,
		"gantry run: ranks share a GPU, and MPS cannot be started (nvidia-cuda-mps-control %s): they will take "
		"turns, which is slow\n",
		r == 127 ? "is not there" : "fails");
	remove_folder();
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
	unsetenv("CUDA_MPS_LOG_DIRECTORY");
	return -1;
}

void run_mps_stop(void)
{
	if (!*folder)
		return;
	if (run_mps_runs())
		control("quit", NULL);
	remove_folder();
}
