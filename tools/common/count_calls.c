/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions with the names of libc's wrappers: each counts and enters the kernel.
 *
 * They are written under names of their own and given the public ones by an
 * assembler label: libc's headers declare some of the public names with
 * transparent unions or as inline functions (_FORTIFY_SOURCE), which a
 * definition would collide with. The __x_chk names are what fortified libraries
 * call instead. Thread cancellation is not supported; no plugin uses it.
 */
#include "common/count_calls.h"

#ifdef GANTRY_SANITIZED

int count_calls_now(struct call_counts *ret_counts)
{
	(void)ret_counts;
	return 0;
}
const char *count_calls_name(enum call_kind kind)
{
	(void)kind;
	return "";
}

#else

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>

/* Threads take shards in turn, so that helper threads do not fight over one cache line. Two may share one: the
 * additions are atomic. */
enum { SHARDS = 16 };
static struct shard {
	uint64_t made[CALL_KIND_COUNT];
	uint64_t moved;
} __attribute__((aligned(128))) shards[SHARDS];
static unsigned next_shard;
static _Thread_local struct shard *my_shard;

static const unsigned char is_data[CALL_KIND_COUNT] = {
#define CALL_KIND_DATA(id, name, data) [CALL_##id] = data,
	CALL_KINDS(CALL_KIND_DATA)
#undef CALL_KIND_DATA
};

int count_calls_now(struct call_counts *ret_counts)
{
	memset(ret_counts, 0, sizeof(*ret_counts));
	for (int s = 0; s < SHARDS; s++) {
		for (int k = 0; k < CALL_KIND_COUNT; k++) {
			uint64_t n = __atomic_load_n(&shards[s].made[k], __ATOMIC_RELAXED);

			ret_counts->made[k] += n;
			ret_counts->all += n;
		}
		ret_counts->moved += __atomic_load_n(&shards[s].moved, __ATOMIC_RELAXED);
	}
	return 1;
}

const char *count_calls_name(enum call_kind kind)
{
	static const char *const names[] = {
#define CALL_KIND_NAME(id, name, data) name,
		CALL_KINDS(CALL_KIND_NAME)
#undef CALL_KIND_NAME
	};

	return names[kind];
}

/* The kernel's own convention: -errno on failure. Not libc's syscall(), which is one of the functions replaced. */
static inline long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
#if defined(__aarch64__)
	register long x8 __asm__("x8") = nr, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#elif defined(__x86_64__)
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long ret = nr;

	__asm__ volatile("syscall"
			 : "+a"(ret)
			 : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
#else
#error "count_calls.c needs to know how this architecture enters the kernel"
#endif
}

static inline long finish(enum call_kind kind, long ret)
{
	struct shard *s = my_shard;

	if (!s)
		s = my_shard = &shards[__atomic_fetch_add(&next_shard, 1, __ATOMIC_RELAXED) % SHARDS];
	__atomic_fetch_add(&s->made[kind], 1, __ATOMIC_RELAXED);
	if (is_data[kind] && ret > 0)
		__atomic_fetch_add(&s->moved, 1, __ATOMIC_RELAXED);
	if (ret < 0 && ret >= -4095) {
		errno = (int)-ret;
		return -1;
	}
	return ret;
}

/* Up to six arguments. */
#define CALL(kind, nr, ...) CALL_SIX(kind, nr, __VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define CALL_SIX(kind, nr, a, b, c, d, e, f, ...)                                                                      \
	finish(CALL_##kind, kernel((nr), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f)))
#define UNWRAP(...) __VA_ARGS__

/* Declares and opens the definition of the function that the linker knows as `name`. */
#define EXPORT(type, name, ...)                                                                                        \
	type counted_##name(__VA_ARGS__) __asm__(#name) __attribute__((visibility("default"), used));                  \
	type counted_##name(__VA_ARGS__)

/* One that is the system call and nothing else; the arguments in parentheses. */
#define PLAIN(type, name, kind, nr, params, ...)                                                                       \
	EXPORT(type, name, UNWRAP params)                                                                              \
	{                                                                                                              \
		return (type)CALL(kind, nr, __VA_ARGS__);                                                              \
	}
/* Where a fortified library names the room of a buffer for n bytes. */
#define ROOM(n, room) ((n) > (room) ? (__builtin_trap(), 0) : 0)

/* clang-format off */
PLAIN(ssize_t, sendto, SENDTO, SYS_sendto, (int fd, const void *p, size_t n, int flags, const void *addr, unsigned len), fd, p, n, flags, addr, len)
PLAIN(ssize_t, send, SENDTO, SYS_sendto, (int fd, const void *p, size_t n, int flags), fd, p, n, flags)
PLAIN(ssize_t, sendmsg, SENDMSG, SYS_sendmsg, (int fd, const void *msg, int flags), fd, msg, flags)
PLAIN(int, sendmmsg, SENDMMSG, SYS_sendmmsg, (int fd, void *msgs, unsigned n, int flags), fd, msgs, n, flags)
PLAIN(ssize_t, write, WRITE, SYS_write, (int fd, const void *p, size_t n), fd, p, n)
PLAIN(ssize_t, writev, WRITEV, SYS_writev, (int fd, const void *iov, int n), fd, iov, n)

PLAIN(ssize_t, recvfrom, RECVFROM, SYS_recvfrom, (int fd, void *p, size_t n, int flags, void *addr, unsigned *len), fd, p, n, flags, addr, len)
PLAIN(ssize_t, __recvfrom_chk, RECVFROM, SYS_recvfrom, (int fd, void *p, size_t n, size_t room, int flags, void *addr, unsigned *len), fd + ROOM(n, room), p, n, flags, addr, len)
PLAIN(ssize_t, recv, RECVFROM, SYS_recvfrom, (int fd, void *p, size_t n, int flags), fd, p, n, flags)
PLAIN(ssize_t, __recv_chk, RECVFROM, SYS_recvfrom, (int fd, void *p, size_t n, size_t room, int flags), fd + ROOM(n, room), p, n, flags)
PLAIN(ssize_t, recvmsg, RECVMSG, SYS_recvmsg, (int fd, void *msg, int flags), fd, msg, flags)
PLAIN(int, recvmmsg, RECVMMSG, SYS_recvmmsg, (int fd, void *msgs, unsigned n, int flags, struct timespec *timeout), fd, msgs, n, flags, timeout)
PLAIN(ssize_t, read, READ, SYS_read, (int fd, void *p, size_t n), fd, p, n)
PLAIN(ssize_t, __read_chk, READ, SYS_read, (int fd, void *p, size_t n, size_t room), fd + ROOM(n, room), p, n)
PLAIN(ssize_t, readv, READV, SYS_readv, (int fd, const void *iov, int n), fd, iov, n)

PLAIN(ssize_t, splice, SPLICE, SYS_splice, (int in, int64_t *in_at, int out, int64_t *out_at, size_t n, unsigned flags), in, in_at, out, out_at, n, flags)
PLAIN(ssize_t, vmsplice, VMSPLICE, SYS_vmsplice, (int fd, const void *iov, size_t n, unsigned flags), fd, iov, n, flags)
PLAIN(ssize_t, tee, TEE, SYS_tee, (int in, int out, size_t n, unsigned flags), in, out, n, flags)
PLAIN(ssize_t, sendfile, SENDFILE, SYS_sendfile, (int out, int in, int64_t *at, size_t n), out, in, at, n)

PLAIN(int, epoll_ctl, EPOLL_CTL, SYS_epoll_ctl, (int ep, int op, int fd, void *event), ep, op, fd, event)
PLAIN(int, setsockopt, SETSOCKOPT, SYS_setsockopt, (int fd, int level, int option, const void *value, unsigned len), fd, level, option, value, len)
PLAIN(int, getsockopt, GETSOCKOPT, SYS_getsockopt, (int fd, int level, int option, void *value, unsigned *len), fd, level, option, value, len)
PLAIN(int, accept, ACCEPT, SYS_accept4, (int fd, void *addr, unsigned *len), fd, addr, len, 0)
PLAIN(int, accept4, ACCEPT, SYS_accept4, (int fd, void *addr, unsigned *len, int flags), fd, addr, len, flags)
PLAIN(int, sched_yield, SCHED_YIELD, SYS_sched_yield, (void), 0)
PLAIN(int, nanosleep, NANOSLEEP, SYS_nanosleep, (const struct timespec *t, struct timespec *left), t, left)
/* clang-format on */

/* libc's two call its own read and write, which would not be seen. */
EXPORT(int, eventfd_read, int fd, uint64_t *value)
{
	return CALL(READ, SYS_read, fd, value, sizeof(*value)) == sizeof(*value) ? 0 : -1;
}
EXPORT(int, eventfd_write, int fd, uint64_t value)
{
	return CALL(WRITE, SYS_write, fd, &value, sizeof(value)) == sizeof(value) ? 0 : -1;
}

/* Newer architectures have only the p-variants of these calls; they serve on all. */
enum { SIGSET_BYTES = 8 };

EXPORT(int, poll, struct pollfd *fds, nfds_t n, int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};

	return (int)CALL(PPOLL, SYS_ppoll, fds, n, ms < 0 ? NULL : &t, NULL, SIGSET_BYTES, 0);
}
EXPORT(int, __poll_chk, struct pollfd *fds, nfds_t n, int ms, size_t room)
{
	if (n > room / sizeof(*fds))
		__builtin_trap();
	return counted_poll(fds, n, ms);
}
/* The kernel writes the time that is left into its argument; the C function leaves it alone. */
EXPORT(int, ppoll, struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec t = timeout ? *timeout : (struct timespec){0, 0};

	return (int)CALL(PPOLL, SYS_ppoll, fds, n, timeout ? &t : NULL, mask, SIGSET_BYTES, 0);
}
EXPORT(int, __ppoll_chk, struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask,
       size_t room)
{
	if (n > room / sizeof(*fds))
		__builtin_trap();
	return counted_ppoll(fds, n, timeout, mask);
}
EXPORT(int, select, int n, fd_set *r, fd_set *w, fd_set *x, struct timeval *timeout)
{
	struct timespec t = {0, 0};
	long ret;

	if (timeout) {
		if (timeout->tv_sec < 0 || timeout->tv_usec < 0)
			return errno = EINVAL, -1;
		t.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
		t.tv_nsec = timeout->tv_usec % 1000000 * 1000L;
	}
	ret = CALL(PSELECT, SYS_pselect6, n, r, w, x, timeout ? &t : NULL, NULL);
	if (timeout) {
		timeout->tv_sec = t.tv_sec;
		timeout->tv_usec = t.tv_nsec / 1000;
	}
	return (int)ret;
}
EXPORT(int, epoll_pwait, int ep, void *events, int n, int ms, const sigset_t *mask)
{
	return (int)CALL(EPOLL_WAIT, SYS_epoll_pwait, ep, events, n, ms, mask, SIGSET_BYTES);
}
EXPORT(int, epoll_wait, int ep, void *events, int n, int ms)
{
	return (int)CALL(EPOLL_WAIT, SYS_epoll_pwait, ep, events, n, ms, NULL, SIGSET_BYTES);
}
EXPORT(int, ioctl, int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	return (int)CALL(IOCTL, SYS_ioctl, fd, request, arg);
}
/* Returns the error number and leaves errno alone, unlike all others. */
EXPORT(int, clock_nanosleep, clockid_t clock, int flags, const struct timespec *t, struct timespec *left)
{
	int saved = errno, err = 0;

	if (CALL(CLOCK_NANOSLEEP, SYS_clock_nanosleep, clock, flags, t, left) < 0)
		err = errno;
	errno = saved;
	return err;
}
EXPORT(int, usleep, unsigned us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000L};

	return (int)CALL(NANOSLEEP, SYS_nanosleep, &t, NULL, 0);
}
EXPORT(long, syscall, long nr, ...)
{
	va_list args;
	long a[6];

	va_start(args, nr);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	return CALL(SYSCALL, nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}

#endif
