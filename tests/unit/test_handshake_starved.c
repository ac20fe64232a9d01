/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hand-shakes while the kernel has no memory for packets: send fails with ENOBUFS, for a while or for good.
 * Catches: a connection that ends for want of memory that is there a moment later, one that nobody tries again, and one that
 * is tried for ever.
 */
#include <sys/epoll.h>
#include <sys/syscall.h>

#include "ctl_util.h"

static int fails; /* atomic: so many sends to come */

/* In the place of libc's, for the whole program. */
ssize_t send(int fd, const void *bytes, size_t n, int flags)
{
	int left = __atomic_load_n(&fails, __ATOMIC_RELAXED);

	while (left > 0)
		if (__atomic_compare_exchange_n(&fails, &left, left - 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			errno = ENOBUFS;
			return -1;
		}
	return syscall(SYS_sendto, fd, bytes, n, flags, NULL, 0);
}

static const struct inet_protocol protocol = {"test", 9, "accepting side", "connecting side", NULL};

TEST(again)
{
	const struct inet_key none = {.auth = INET_AUTH_NONE};
	struct inet_handshake h = {0};
	int fds[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	CHECK_OK(inet_handshake_start_client(&h, &protocol, &none, "", 0));
	fails = 3;
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(inet_handshake_move(&h, fds[0]), INET_AGAIN);
		CHECK_EQ(h.out_size, INET_HELLO_SIZE);
		CHECK(inet_handshake_events(&h) & EPOLLOUT);
	}
	CHECK_EQ(inet_handshake_move(&h, fds[0]), INET_AGAIN);
	CHECK_EQ(h.out_size, 0);
	CHECK(!(inet_handshake_events(&h) & EPOLLOUT));
	inet_handshake_end(&h);
	close(fds[0]);
	close(fds[1]);
}

TEST(not_for_ever)
{
	const struct inet_key none = {.auth = INET_AUTH_NONE};
	struct inet_handshake h = {0};
	uint64_t began = now_ms();
	int fds[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	CHECK_OK(inet_handshake_start_client(&h, &protocol, &none, "", 0));
	fails = INT32_MAX;
	WAIT_WHILE (inet_handshake_move(&h, fds[0]) == INET_AGAIN)
		sleep_ms(5);
	CHECK(h.broken);
	CHECK_EQ(h.broken_errno, ENOBUFS);
	CHECK(now_ms() - began >= 1000);
	fails = 0;
	inet_handshake_end(&h);
	close(fds[0]);
	close(fds[1]);
}

/* Over the loop, on both sides: hellos, challenges, proofs and answers. */
TEST(ranks_join)
{
	for (int i = 1; i < 40; i += 3) {
		struct gantry_unique_id id;
		struct rank_state *s;

		CASE("%d sends fail", i);
		__atomic_store_n(&fails, i, __ATOMIC_RELAXED);
		s = ranks_run(2, &id, NULL);
		CHECK_EQ(__atomic_load_n(&fails, __ATOMIC_RELAXED), 0);
		ranks_leave(s, 2);
		until_quiet();
	}
}

void tests_begin(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
}
