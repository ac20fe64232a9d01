/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports on a signal. The handler does nothing but count and write to an eventfd that the loop watches; the watchdog
 * does the rest. The eventfd stays open for the life of the process: a handler that was interrupted between reading its
 * number and writing must not find another file there.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "base/param_check.h"
#include "comm/report.h"

static int wake_fd = -1; /* the handler's; release by install, -1 in a forked child */
static uint32_t came;	 /* the handler adds, the thread takes */

static void on_wake(struct inet_source *s, uint32_t events)
{
	uint64_t n;

	(void)events;
	if (read(s->fd, &n, sizeof(n)) < 0 && errno != EAGAIN)
		LOG_DEBUG(COMM, "the eventfd of GANTRY_STALL_SIGNAL: %s", strerror(errno));
}

static struct inet_source source = {.fd = -1, .ready = on_wake};
static int watched GUARDED_BY(loop_mu); /* the loop has the source */

static void on_signal(int number)
{
	int fd = load_acquire(&wake_fd), kept = errno;
	uint64_t one = 1;
	ssize_t n;

	(void)number;
	fetch_add_release(&came, 1);
	if (fd >= 0) {
		n = write(fd, &one, sizeof(one));
		(void)n; /* full: then the thread is about to wake anyway */
	}
	errno = kept;
}

/* 1: the handler has the eventfd. 0: there is no such signal, or it is the program's. */
static int install(int fd)
{
	const char *text = gantry_params()->stall_signal;
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
	int number;

	if (!*text || gantry_parse_signal(text, &number) != GANTRY_OK)
		return 0; /* the parameter's check has refused anything else */
	sigemptyset(&act.sa_mask);
	if (sigaction(number, NULL, &old)) {
		LOG_WARN(COMM, "GANTRY_STALL_SIGNAL=%s: %s", text, strerror(errno));
		return 0;
	}
	if (old.sa_handler != on_signal && (old.sa_flags & SA_SIGINFO || old.sa_handler != SIG_DFL)) {
		LOG_WARN(COMM, "GANTRY_STALL_SIGNAL=%s is left to the program, which handles it itself", text);
		return 0;
	}
	store_release(&wake_fd, fd);
	if (old.sa_handler != on_signal && sigaction(number, &act, NULL)) {
		LOG_WARN(COMM, "GANTRY_STALL_SIGNAL=%s: %s", text, strerror(errno));
		return 0;
	}
	return 1;
}

void comm_watch_signal_start(void)
{
	int fd = load_acquire(&wake_fd);

	if (watched || !*gantry_params()->stall_signal)
		return;
	if (fd < 0)
		fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	source.fd = fd;
	if (fd < 0 || inet_source_add(&source, EPOLLIN) != GANTRY_OK)
		LOG_WARN(COMM, "GANTRY_STALL_SIGNAL is not heard: %s", strerror(errno));
	else
		watched = install(fd);
	if (!watched && load_acquire(&wake_fd) < 0)
		inet_source_close(&source);
	else if (!watched)
		inet_source_release(&source);
}

void comm_watch_signal_stop(void)
{
	inet_source_release(&source);
	watched = 0;
}

int comm_watch_signal_came(void)
{
	return exchange_acquire(&came, 0) != 0;
}

void comm_watch_signal_abandon(void)
{
	int fd = load_acquire(&wake_fd);

	if (fd >= 0 && !watched) /* else the loop has closed it */
		close(fd);
	watched = 0;
	store_release(&wake_fd, -1);
	store_relaxed(&came, 0);
}
