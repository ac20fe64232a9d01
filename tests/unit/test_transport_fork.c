/* SPDX-License-Identifier: Apache-2.0 */
/*
 * p2p and shm between processes: two children of this one, which itself stays without threads. And what can go wrong
 * there: strangers at the socket, wrong tokens and users, a peer that is killed while it connects.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/un.h>

#include "device/host/host.h"
#include "device/share.h"
#include "transport_util.h"

enum { BYTES = (1 << 20) + 333 };

static void put(int fd, const void *p, size_t n)
{
	CHECK_EQ(write(fd, p, n), n);
}
static void get(int fd, void *p, size_t n)
{
	CHECK_EQ(recv(fd, p, n, MSG_WAITALL), n);
}

/* PTR between processes: the receiver maps the sender's buffer, and the sender posts the receiver's address of it. */
static void by_pointer(struct side *s, int fd, char *buf)
{
	struct gantry_ipc_handle handle;
	void *there = NULL;

	if (s->c.send) {
		CHECK_OK(s->dev->ops->ipc_export(s->dev, buf, BYTES, &handle));
		put(fd, &handle, sizeof(handle));
		get(fd, &there, sizeof(there));
		side_start_at(s, buf, (uint64_t)(uintptr_t)there, BYTES, GANTRY_PROTO_SIMPLE, 1);
		side_finish(s);
		return;
	}
	get(fd, &handle, sizeof(handle));
	CHECK_OK(s->dev->ops->ipc_open(s->dev, &handle, &there));
	put(fd, &there, sizeof(there));
	put_bytes(s->dev, buf, BYTES, 1);
	side_start(s, buf, BYTES, GANTRY_PROTO_SIMPLE, 0);
	side_finish(s);
	check_bytes(s->dev, buf, BYTES, 99);
	CHECK_OK(s->dev->ops->ipc_close(s->dev, there));
}

static void one_rank(const struct gantry_transport *t, int send, int fd, int shares)
{
	static struct side s;
	struct gantry_peer_info me = info_of(send, 10 + (uint64_t)send), peer = info_of(!send, 11 - (uint64_t)send);
	struct gantry_connect_info info;
	struct gantry_device *dev;
	int fds = held(HELD_FDS);
	void *buf = NULL;

	dev = open_device();
	if (on_gpu() && t == &gantry_transport_shm)
		shares = 0;
	CHECK_OK(dev->ops->alloc(dev, BYTES, &buf));
	side_open(&s, t, send, me, peer);
	put(fd, &s.info, sizeof(s.info));
	get(fd, &info, sizeof(info));
	CHECK_OK(side_connect_wait(&s, &info));
	CHECK_EQ(s.c.peer_notifies, dev->sleeps);
	if (send && !s.c.proxy)
		CHECK_EQ(s.c.sharing, shares);
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (uint64_t round = 0; side_has(&s, p) && round < 3; round++) {
			uint64_t bytes = p ? 50000 + round : (uint64_t)BYTES >> (5 * round);

			if (send)
				put_bytes(dev, buf, bytes, round);
			side_start(&s, buf, bytes, p, send && s.c.proxy && round == 1);
			side_finish(&s);
			if (!send)
				check_bytes(dev, buf, bytes, round);
		}
	}
	if (send)
		put_bytes(dev, buf, BYTES, 99);
	if (shares == 2)
		by_pointer(&s, fd, buf);
	/* In whatever order: the sender is through before the receiver is. */
	side_close(&s);
	CHECK_OK(dev->ops->free(dev, buf));
	gantry_device_close(dev);
	UNTIL(count_maps() == 0);
	if (!on_gpu()) /* the driver keeps some */
		CHECK(held_at_most(HELD_FDS, fds));
}

static void check_two(const struct gantry_transport *t, int shares)
{
	int fd[2];
	pid_t pids[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	for (int i = 0; i < 2; i++) {
		pids[i] = child_fork();
		if (pids[i] == 0) {
			close(fd[!i]);
			one_rank(t, i, fd[i], shares);
			_exit(0); /* leaks are looked for in test_transport_ends: here that could take seconds each */
		}
	}
	close(fd[0]);
	close(fd[1]);
	for (int i = 0; i < 2; i++) {
		child_wait(pids[i]);
	}
}

/* Connections both ways, and whoever is through goes at once, however far the other one is. */
static void check_hasty(const struct gantry_transport *t, int round)
{
	static struct side tx, rx;
	struct gantry_connect_info info[2], mine[2];
	gantry_result a = GANTRY_AGAIN, b = GANTRY_AGAIN;
	int fd[2], me;
	pid_t pid;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	pid = child_fork();
	me = pid == 0;
	alarm(500);
	side_open(&tx, t, 1, info_of(me, 30 + (uint64_t)me), info_of(!me, 31 - (uint64_t)me));
	side_open(&rx, t, 0, info_of(me, 30 + (uint64_t)me), info_of(!me, 31 - (uint64_t)me));
	mine[0] = tx.info;
	mine[1] = rx.info;
	put(fd[me], mine, sizeof(mine));
	get(fd[me], info, sizeof(info));
	usleep((useconds_t)(me ? round * 100 : 0));
	while (a == GANTRY_AGAIN || b == GANTRY_AGAIN) {
		if (a == GANTRY_AGAIN && (a = side_connect(&tx, &info[1])) == GANTRY_OK)
			side_close(&tx);
		if (b == GANTRY_AGAIN && (b = side_connect(&rx, &info[0])) == GANTRY_OK)
			side_close(&rx);
		if (round & 1)
			usleep(50);
	}
	CHECK_OK(a);
	CHECK_OK(b);
	close(fd[0]);
	close(fd[1]);
	alarm(0);
	if (pid == 0)
		_exit(0);
	child_wait(pid);
}

static void check_data(void)
{
	check_two(&gantry_transport_p2p, 2);
	set_params("GANTRY_P2P_COPY", "on");
	check_two(&gantry_transport_p2p, 0);
	set_params("GANTRY_P2P_COPY", "off");
	for (int makes = 0; makes < 2; makes++) {
		set_params("GANTRY_SHM_LOCALITY", makes ? "recv" : "send", "GANTRY_SHM_COPY", "off");
		check_two(&gantry_transport_shm, 2);
		set_params("GANTRY_SHM_COPY", "send");
		check_two(&gantry_transport_shm, 0);
		set_params("GANTRY_SHM_COPY", "recv");
		check_two(&gantry_transport_shm, 0);
		set_params("GANTRY_SHM_COPY", "both");
		check_two(&gantry_transport_shm, 0);
	}
	set_params("GANTRY_SHM_COPY", "off");
}

static int knock(uint64_t name)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int n = snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1, "gantry-%016llx", (unsigned long long)name);

	CHECK(fd >= 0);
	if (connect(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) <
	    0) {
		close(fd);
		return -1;
	}
	return fd;
}

static int is_hung_up(int fd)
{
	char c;

	return recv(fd, &c, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

/* Another user of the machine finds the name in /proc/net/unix and even knows the token. */
static void check_other_user(struct gantry_offer *o, const struct gantry_share_address *at)
{
	pid_t pid;
	int status;

	if (getuid() != 0) {
		printf("not root: another user at the socket is not tested\n");
		return;
	}
	pid = child_fork();
	if (pid == 0) {
		struct gantry_taker t = {0};
		void *s = NULL;

		CHECK_EQ(setuid(65534), 0);
		for (int i = 0; i < 300; i++) {
			CHECK_EQ(gantry_share_take(&t, at, 0, 4096, &s), GANTRY_AGAIN);
			usleep(500);
		}
		gantry_share_taker_close(&t);
		_exit(0);
	}
	while (waitpid(pid, &status, WNOHANG) == 0) {
		CHECK_EQ(gantry_share_serve(o), GANTRY_AGAIN);
		usleep(200);
	}
	CHECK_EQ(status, 0);
}

/* A crowd that says nothing, and some who say too much or leave. */
enum { CROWD = 40 };
static void gather_crowd(struct gantry_offer *o, uint64_t name, int fds[CROWD])
{
	char noise[200] = "let me in";

	for (int i = 0; i < CROWD; i++) {
		fds[i] = knock(name);
		CHECK(fds[i] >= 0);
		if (i % 8 == 3)
			CHECK_EQ(send(fds[i], noise, sizeof(noise), MSG_NOSIGNAL), sizeof(noise));
		if (i % 8 == 5)
			shutdown(fds[i], SHUT_RDWR);
		gantry_share_serve(o);
	}
	CHECK(is_hung_up(fds[3]));
	CHECK(is_hung_up(fds[0])); /* others came */
	CHECK(!is_hung_up(fds[CROWD - 1]));
}

/* Whatever happens at the socket, the one with the token gets the memory. */
static void *take_it(struct gantry_offer *o, const struct gantry_share_address *at)
{
	struct gantry_taker taker = {0};
	void *mine = NULL;

	WAIT_WHILE (!mine) {
		gantry_result r = gantry_share_take(&taker, at, getuid(), 5000, &mine);

		CHECK(r == GANTRY_OK || r == GANTRY_AGAIN);
		gantry_share_serve(o);
	}
	CHECK_OK(gantry_share_serve(o));
	return mine;
}

static void check_strangers(void)
{
	struct gantry_share_address at = {0}, wrong;
	void *s = NULL, *mine = NULL;
	struct gantry_taker bad = {0};
	struct gantry_offer o = {0};
	int fds = held(HELD_FDS), crowd[CROWD];

	CHECK_OK(gantry_share_create(5000, &s, &at));
	CHECK_OK(gantry_share_offer(&o, s, getuid(), &at));
	CHECK_EQ(gantry_share_serve(&o), GANTRY_AGAIN);
	wrong = at;
	wrong.token[7] ^= 1;
	for (int i = 0; i < 200; i++) {
		CHECK_EQ(gantry_share_take(&bad, &wrong, getuid(), 5000, &mine), GANTRY_AGAIN);
		CHECK_EQ(gantry_share_serve(&o), GANTRY_AGAIN);
		usleep(100);
	}
	CHECK(!mine);
	check_other_user(&o, &at);
	gather_crowd(&o, at.name, crowd);
	CHECK(held(HELD_FDS) <= fds + CROWD + 2 + 8 + 1);
	mine = take_it(&o, &at);
	strcpy(mine, "the same memory");
	CHECK_STR((char *)s, "the same memory");
	CHECK(mine != s);
	/* Given once is given for good. */
	gantry_share_taker_close(&bad);
	CHECK_EQ(gantry_share_take(&bad, &at, getuid(), 5000, &mine), GANTRY_AGAIN);
	gantry_share_taker_close(&bad);
	gantry_share_withdraw(&o);
	CHECK_EQ(knock(at.name), -1); /* nobody listens any more */
	for (int i = 0; i < CROWD; i++)
		close(crowd[i]);
	gantry_share_put(mine, false);
	gantry_share_put(s, true);
	CHECK(held_at_most(HELD_FDS, fds));
	UNTIL(count_maps() == 0);
}

/* One who waits long enough to be shown out for his silence alone. */
static void check_silence(void)
{
	struct gantry_share_address at = {0};
	void *s = NULL;
	struct gantry_offer o = {0};
	int fd;

	CHECK_OK(gantry_share_create(4096, &s, &at));
	CHECK_OK(gantry_share_offer(&o, s, getuid(), &at));
	fd = knock(at.name);
	gantry_share_serve(&o);
	CHECK(!is_hung_up(fd));
	usleep(1100000);
	gantry_share_serve(&o);
	CHECK(is_hung_up(fd));
	close(fd);
	gantry_share_withdraw(&o);
	gantry_share_put(s, true);
}

/* A file that could shrink, or is too small, is not mapped. */
static void check_bad_files(void)
{
	void *at = NULL;
	int fd = memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, 8192), 0);
	CHECK_ERROR(gantry_host_import(fd, 8192, &at), GANTRY_ERR_PROTOCOL, "could shrink");
	CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	CHECK_EQ(gantry_host_import(fd, 12288, &at), GANTRY_ERR_PROTOCOL);
	CHECK_OK(gantry_host_import(fd, 8192, &at));
	gantry_share_put(at, false);
	close(fd);
}

/* The peer has said where it is to be found, and is killed before it connects. */
static void check_killed(const struct gantry_transport *t, int send)
{
	static struct side s;
	struct gantry_peer_info me = info_of(0, 20), peer = info_of(1, 21);
	struct gantry_connect_info info;
	int fd[2], status, fds = held(HELD_FDS);
	gantry_result r = GANTRY_AGAIN;
	pid_t pid;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	pid = child_fork();
	if (pid == 0) {
		side_open(&s, t, !send, peer, me);
		put(fd[1], &s.info, sizeof(s.info));
		for (;;)
			pause();
	}
	get(fd[0], &info, sizeof(info));
	side_open(&s, t, send, me, peer);
	CHECK_EQ(side_connect(&s, &info), GANTRY_AGAIN); /* it does not answer */
	kill(pid, SIGKILL);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	for (int i = 0; i < 200 && r == GANTRY_AGAIN; i++) {
		r = side_connect(&s, &info);
		usleep(500);
	}
	CHECK_EQ(r, GANTRY_AGAIN);
	side_close(&s);
	close(fd[0]);
	close(fd[1]);
	CHECK(held_at_most(HELD_FDS, fds));
	UNTIL(count_maps() == 0);
}

int main(void)
{
	CHECK_OK(gantry_params_load(0));
	if (on_gpu()) { /* in children only: a process that has used a GPU can fork none that does */
		RUN(check_data());
		return 0;
	}
	RUN(check_bad_files());
	RUN(check_strangers());
	RUN(check_silence());
	RUN(check_data());
	for (int round = 0; round < 10; round++) {
		RUN(check_hasty(&gantry_transport_shm, round));
		RUN(check_hasty(&gantry_transport_p2p, round));
	}
	for (int send = 0; send < 2; send++) {
		for (int makes = 0; makes < 2; makes++) {
			set_params("GANTRY_SHM_LOCALITY", makes ? "recv" : "send");
			RUN(check_killed(&gantry_transport_shm, send));
		}
		RUN(check_killed(&gantry_transport_p2p, send));
	}
	return 0;
}
