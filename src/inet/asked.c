/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handler does nothing but count and write to an eventfd that the loop watches; clients of the loop do the rest. The
 * eventfd stays open for the life of the process: a handler that was interrupted between reading its number and writing
 * must not find another file there.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "inet/asked.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"

static int wake_fd = -1; /* the handler's; release by install_handler, -1 in a forked child */
static uint32_t came;	 /* the handler adds */

static unsigned askers GUARDED_BY(loop_mu);

static void on_signal_fd(struct inet_source *s, uint32_t events)
{
	uint64_t n;

	(void)events;
	if (read(s->fd, &n, sizeof(n)) < 0 && errno != EAGAIN)
		LOG_DEBUG(BASE, "eventfd for GANTRY_STALL_SIGNAL: %s", strerror(errno));
}

static struct inet_source signal_source = {.fd = -1, .ready = on_signal_fd};

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

/* 1: the handler has the eventfd. 0: the signal is the program's, or it cannot be had. */
static int install_handler(const char *name)
{
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
	int number;

	if (gantry_parse_signal(name, &number) != GANTRY_OK)
		return 0; /* the parameter's check has refused it */
	sigemptyset(&act.sa_mask);
	if (wake_fd < 0)
		store_release(&wake_fd, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (wake_fd < 0 || sigaction(number, NULL, &old))
		goto failed;
	if (old.sa_handler == on_signal)
		return 1;
	if (old.sa_flags & SA_SIGINFO || old.sa_handler != SIG_DFL) {
		LOG_WARN(BASE, "GANTRY_STALL_SIGNAL=%s is ignored: the program has its own handler for this signal",
			 name);
		return 0;
	}
	if (sigaction(number, &act, NULL) == 0)
		return 1;
failed:
	LOG_WARN(BASE, "GANTRY_STALL_SIGNAL=%s: %s", name, strerror(errno));
	return 0;
}

void inet_asked_start(enum inet_asker asker)
{
	const char *name = gantry_params()->stall_signal;

	askers |= (unsigned)asker;
	if (signal_source.id || !*name || !install_handler(name))
		return;
	signal_source.fd = wake_fd;
	if (inet_source_add(&signal_source, EPOLLIN) != GANTRY_OK)
		LOG_WARN(BASE, "cannot watch for GANTRY_STALL_SIGNAL: %s", strerror(errno));
}

void inet_asked_stop(enum inet_asker asker)
{
	askers &= ~(unsigned)asker;
	if (!askers)
		inet_source_release(&signal_source);
}

void inet_asked_in_child(void)
{
	/* The loop has closed the eventfd if it watched it. Otherwise a copy stays open, which is harmless. */
	store_release(&wake_fd, -1);
	askers = 0;
}

uint32_t inet_asked(void)
{
	return load_acquire(&came);
}
