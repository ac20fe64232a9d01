/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The privileged daemon: a real process behind a real socket, with a fake NIC. Clients that behave, that die, that are
 * the wrong user, and that send nonsense.
 */
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "devmem_fake.h"
#include "net/devmem/daemon.c" /* its messages are its own */

/* As they travel: what the daemon takes, written out by hand (little-endian machines). */
struct raw_request {
	uint32_t magic, version, op, queues, location;
	char nic[IFNAMSIZ];
	uint32_t zero;
};
struct raw_reply {
	uint32_t magic, version, result, dmabuf_id, location;
	char text[256];
};

static struct {
	struct fake_nic nic;
	int stop;	  /* atomic */
	int accept_error; /* errno of the next accepts; atomic, as their count */
	int accepts;
} * shared;
static const char *dir;
static char path[64], state[64];

/* In libc's place: a stranger who is faster than what follows bind puts a link to a file of ours, by either name. */
static const char *swap_to;
static int swap_hard;
int bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	int r = (int)syscall(SYS_bind, fd, addr, len);

	if (r == 0 && swap_to) {
		CHECK_EQ(unlink(path), 0);
		CHECK_EQ(swap_hard ? link(swap_to, path) : symlink(swap_to, path), 0);
	}
	return r;
}

static gantry_result bind_by(const char *nic, int file, uint32_t queues, uint32_t *ret_id, struct devmem_daemon **ret)
{
	struct devmem_session_config c = {.nic = nic, .dmabuf = file, .nqueues = queues};

	return devmem_daemon_bind(path, &c, ret_id, ret);
}

int accept4(int fd, struct sockaddr *restrict addr, socklen_t *restrict len, int flags)
{
	int e = shared ? __atomic_load_n(&shared->accept_error, __ATOMIC_RELAXED) : 0;

	if (!e)
		return (int)syscall(SYS_accept4, fd, addr, len, flags);
	__atomic_fetch_add(&shared->accepts, 1, __ATOMIC_RELAXED);
	errno = e;
	return -1;
}

static struct devmem_sys *make_fake(void)
{
	return fake_sys_new(&shared->nic);
}

static int is_listened_to(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r;

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	r = connect(fd, (struct sockaddr *)&a, sizeof(a));
	close(fd);
	return r == 0;
}

static pid_t start(const char *nic, int has_uid, uid_t uid)
{
	struct devmem_daemon_config config = {.path = path, .nic = nic, .uid = uid, .has_uid = has_uid};
	pid_t pid;

	__atomic_store_n(&shared->stop, 0, __ATOMIC_RELAXED);
	pid = child_fork();
	if (pid == 0)
		_exit(devmem_daemon_serve(&config, &shared->stop) == GANTRY_OK ? 0 : 1);
	UNTIL(access(path, F_OK) == 0);
	UNTIL(is_listened_to()); /* the name is there before it is */
	return pid;
}

static void end(pid_t pid)
{
	__atomic_store_n(&shared->stop, 1, __ATOMIC_RELAXED);
	child_wait(pid);
	CHECK(access(path, F_OK) != 0);
}

/* The daemon acts when it sees the end of a connection: soon, but not at once. */
static void wait_unbound(void)
{
	UNTIL(!shared->nic.bound && !fake_rules(&shared->nic) && shared->nic.rings.split == DEVMEM_SPLIT_OFF &&
	      !shared->nic.ntuple);
}

static int some_file(void)
{
	return memfd_create("not-a-dma-buf", MFD_CLOEXEC);
}

TEST(check_client)
{
	pid_t pid = start(NULL, 0, 0);
	struct devmem_daemon *h = NULL, *g = NULL;
	uint32_t id = 0, id2 = 0, location = 99;
	int file = some_file(), fds[2], udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a;
	socklen_t len = sizeof(a);
	struct stat st;

	CHECK_EQ(stat(path, &st), 0);
	CHECK_EQ(st.st_mode & 0777, 0600);
	lo_pair(fds);
	CHECK_OK(bind_by("fake0", file, 2, &id, &h));
	CHECK_EQ(shared->nic.bound, 2);
	CHECK_EQ(id, shared->nic.queue[FAKE_QUEUES - 1].dmabuf);
	CHECK_OK(devmem_daemon_steer(h, fds[1], &location));
	CHECK_EQ(fake_rules(&shared->nic), 1);
	CHECK_EQ(getpeername(fds[1], (struct sockaddr *)&a, &len), 0);
	CHECK_EQ(shared->nic.rules[location].tuple.src.in.sin_port, a.sin_port);
	/* Not a flow, not a rule of ours. */
	CHECK_ERROR(devmem_daemon_steer(h, udp, &location), GANTRY_ERR_INVALID, "not a connected TCP socket");
	CHECK_EQ(devmem_daemon_steer(h, file, &location), GANTRY_ERR_INVALID);
	CHECK_EQ(devmem_daemon_unsteer(h, 12345), GANTRY_ERR_INVALID);
	CHECK_OK(devmem_daemon_unsteer(h, DEVMEM_NO_RULE));
	/* A second connection: queues of its own; it cannot take the first one's rule away. */
	CHECK_OK(bind_by("fake0", file, 1, &id2, &g));
	CHECK(id2 != id);
	CHECK_EQ(shared->nic.bound, 3);
	CHECK_EQ(devmem_daemon_unsteer(g, location), GANTRY_ERR_INVALID);
	CHECK_OK(devmem_daemon_unsteer(h, location));
	CHECK_EQ(fake_rules(&shared->nic), 0);
	CHECK_OK(devmem_daemon_steer(h, fds[0], &location));
	devmem_daemon_close(h);
	UNTIL(shared->nic.bound == 1 && !fake_rules(&shared->nic));
	CHECK_EQ(shared->nic.rings.split, DEVMEM_SPLIT_ON);
	devmem_daemon_close(g);
	wait_unbound();
	/* The kernel's refusal arrives whole. */
	shared->nic.bind_error = 524;
	CHECK_ERROR(bind_by("fake0", file, 1, &id, &h), GANTRY_ERR_UNSUPPORTED, "PCI topology");
	shared->nic.bind_error = 0;
	CHECK_EQ(bind_by("fake0", file, FAKE_QUEUES, &id, &h), GANTRY_ERR_LIMIT);
	wait_unbound();
	devmem_daemon_close(NULL);
	/* A second daemon does not push the first one aside. */
	{
		struct devmem_daemon_config config = {.path = path};

		CHECK_ERROR(devmem_daemon_serve(&config, &shared->stop), GANTRY_ERR_CONFIG, "another daemon");
	}
	end(pid);
	CHECK_ERROR(bind_by("fake0", file, 1, &id, &h), GANTRY_ERR_CONFIG, "gantry devmem-helper --socket");
	close(file);
	close(udp);
	close(fds[0]);
	close(fds[1]);
}

/* In a network namespace of one's own any connection can be made: it is not one of the NIC's. Exit 77: no such
 * namespaces here. */
static void foreign_client(void)
{
	struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	struct devmem_daemon *h = NULL;
	uint32_t id = 0, location;
	int file = some_file(), fds[2], s;

	if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
		_exit(77);
	s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (ioctl(s, SIOCSIFFLAGS, &ifr) < 0)
		_exit(77);
	lo_pair(fds);
	CHECK_OK(bind_by("fake0", file, 1, &id, &h));
	CHECK_ERROR(devmem_daemon_steer(h, fds[0], &location), GANTRY_ERR_INVALID, "network namespace");
	_exit(0);
}

TEST(check_foreign_client)
{
	pid_t pid = start(NULL, 0, 0), child = child_fork();
	int status = 0;

	if (child == 0)
		foreign_client();
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
	CHECK_EQ(fake_rules(&shared->nic), 0);
	wait_unbound();
	end(pid);
}

/* Killed in the middle: the end of its connection is enough. */
TEST(check_dying_client)
{
	pid_t pid = start("fake0", 0, 0), client;
	int status;

	client = child_fork();
	if (client == 0) {
		struct devmem_daemon *h;
		uint32_t id, location;
		int fds[2];

		lo_pair(fds);
		CHECK_OK(bind_by("fake0", some_file(), 1, &id, &h));
		for (int i = 0; i < 5; i++)
			CHECK_OK(devmem_daemon_steer(h, fds[i % 2], &location));
		CHECK_EQ(fake_rules(&shared->nic), 5);
		raise(SIGKILL);
	}
	CHECK_EQ(waitpid(client, &status, 0), client);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	wait_unbound();
	end(pid);
}

/* The administrator named one NIC and one user. */
TEST(check_limits)
{
	pid_t pid = start("fake0", geteuid() == 0, 12345), client;
	struct devmem_daemon *h;
	struct stat st;
	uint32_t id;
	int file = some_file();

	CHECK_ERROR(bind_by("fake1", file, 1, &id, &h), GANTRY_ERR_CONFIG, "serves fake0 only");
	if (geteuid() == 0) {
		CHECK_EQ(stat(path, &st), 0);
		CHECK_EQ(st.st_uid, 12345);
		/* Open to all by its mode, for once: the user is looked at all the same. */
		CHECK_EQ(chmod(path, 0666), 0);
		for (int right = 0; right < 2; right++) {
			client = child_fork();
			if (client == 0) {
				uid_t uid = right ? 12345 : 65534;

				CHECK_EQ(setresuid(uid, uid, uid), 0);
				CHECK_EQ(bind_by("fake0", file, 1, &id, &h), right ? GANTRY_OK : GANTRY_ERR_PEER_LOST);
				if (!right)
					CHECK(strstr(gantry_last_error(), "another user") ||
					      strstr(gantry_last_error(), "Connection reset") ||
					      strstr(gantry_last_error(), "Broken pipe"));
				_exit(0);
			}
			child_wait(client);
			wait_unbound();
		}
	} else {
		printf("no other users: not root\n");
	}
	close(file);
	end(pid);
}

/* The socket changes hands, and nothing else does. */
TEST(check_swapped)
{
	struct devmem_daemon_config config = {.path = path, .nic = "fake0", .uid = 12345, .has_uid = 1};
	const int stop = 1;
	char file[80];
	struct stat st;
	int fd;

	if (geteuid() != 0) {
		printf("no other users: not root\n");
		return;
	}
	snprintf(file, sizeof(file), "%s/precious", dir);
	fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	swap_to = file;
	for (swap_hard = 0; swap_hard < 2; swap_hard++) {
		CHECK_ERROR(devmem_daemon_serve(&config, &stop), GANTRY_ERR_CONFIG, "was replaced");
		CHECK_EQ(fstat(fd, &st), 0);
		CHECK_EQ(st.st_uid, 0);
	}
	swap_to = NULL;
	close(fd);
	unlink(file);
}

static int connect_raw(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = UNTIL_SECONDS};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	CHECK_EQ(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return fd;
}

/* A socket with a limit says EINTR when its process was stopped. */
static ssize_t hear(int fd, void *data, size_t size)
{
	ssize_t n;

	do
		n = recv(fd, data, size, 0);
	while (n < 0 && errno == EINTR);
	return n;
}

/* Bytes and files as they are. The reply's result; then the connection must be at its end if `ends`. */
static int raw(const void *bytes, size_t len, int nfiles, int ends)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(8 * sizeof(int))];
	} control = {.bytes = {0}};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct raw_reply reply = {0};
	int fd = connect_raw(), files[8];
	ssize_t n;

	if (nfiles) {
		struct cmsghdr *c;

		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE((size_t)nfiles * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)nfiles * sizeof(int));
		for (int i = 0; i < nfiles; i++)
			files[i] = some_file();
		memcpy(CMSG_DATA(c), files, (size_t)nfiles * sizeof(int));
	}
	CHECK_EQ(sendmsg(fd, &msg, MSG_NOSIGNAL), (ssize_t)len);
	for (int i = 0; i < nfiles; i++)
		close(files[i]);
	n = hear(fd, &reply, sizeof(reply));
	CHECK_EQ(n, (ssize_t)sizeof(reply));
	reply.text[sizeof(reply.text) - 1] = 0;
	if (ends) {
		CHECK_EQ(hear(fd, &n, sizeof(n)), 0);
		CHECK(*reply.text);
	}
	close(fd);
	CHECK_EQ(reply.magic, DEVMEM_DAEMON_MAGIC);
	return (int)reply.result;
}

static int open_files(pid_t pid)
{
	char command[64];
	FILE *f;
	int n = -1;

	snprintf(command, sizeof(command), "ls /proc/%d/fd | wc -l", (int)pid);
	f = popen(command, "r");
	CHECK(f && fscanf(f, "%d", &n) == 1);
	pclose(f);
	return n;
}

TEST(check_nonsense)
{
	struct raw_request good = {.magic = DEVMEM_DAEMON_MAGIC,
				   .version = DEVMEM_DAEMON_VERSION,
				   .op = DEVMEM_DAEMON_BIND,
				   .queues = 1,
				   .nic = "fake0"},
			   q;
	char longer[200] = {0};
	pid_t pid = start(NULL, 0, 0);
	int before, fd;

	CHECK_OK(raw(&good, sizeof(good), 1, 0));
	wait_unbound();
	/* What it has without any client: the least of some looks, as the last one may not be gone yet. */
	before = open_files(pid);
	for (int i = 0, n; i < 20; i++, usleep(10000))
		before = (n = open_files(pid)) < before ? n : before;
	CHECK_EQ(raw(&good, sizeof(good) - 1, 1, 1), GANTRY_ERR_PROTOCOL);
	memcpy(longer, &good, sizeof(good));
	CHECK_EQ(raw(longer, sizeof(good) + 1, 1, 1), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(raw(longer, sizeof(longer), 1, 1), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(raw("x", 1, 0, 1), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(raw(&good, sizeof(good), 0, 1), GANTRY_ERR_PROTOCOL); /* no dma-buf */
	CHECK_OK(raw(&good, sizeof(good), 4, 0));		       /* too many: the others are closed */
	wait_unbound();
#define BAD(change)                                                                                                    \
	do {                                                                                                           \
		q = good;                                                                                              \
		change;                                                                                                \
		CHECK_EQ(raw(&q, sizeof(q), 1, 1), GANTRY_ERR_PROTOCOL);                                               \
	} while (0)
	BAD(q.magic++);
	BAD(q.version++);
	BAD(q.op = 0);
	BAD(q.op = 4);
	BAD(q.queues = 0);
	BAD(q.queues = DEVMEM_QUEUES_MAX + 1);
	BAD(q.zero = 1);
	BAD(q.nic[0] = 0);
	BAD(memset(q.nic, 'a', sizeof(q.nic)));
	BAD(strcpy(q.nic, "../etc"));
	BAD(strcpy(q.nic, ".."));
	BAD(q.op = DEVMEM_DAEMON_UNSTEER); /* with a file that it does not need */
	/* In the wrong order, or twice. */
	q = good;
	q.op = DEVMEM_DAEMON_STEER;
	CHECK_EQ(raw(&q, sizeof(q), 1, 0), GANTRY_ERR_USAGE);
	q.op = DEVMEM_DAEMON_UNSTEER;
	CHECK_EQ(raw(&q, sizeof(q), 0, 0), GANTRY_ERR_USAGE);
	/* Connections that say nothing, more than there is room for, and one that ends at once. */
	{
		int many[DEVMEM_DAEMON_CLIENTS + 8];

		for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++)
			many[i] = connect_raw();
		fd = many[sizeof(many) / sizeof(many[0]) - 1];
		CHECK(hear(fd, longer, 1) <= 0); /* turned away */
		for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++)
			close(many[i]);
	}
	UNTIL(open_files(pid) <= before); /* nothing was kept */
	CHECK_OK(raw(&good, sizeof(good), 1, 0));
	wait_unbound();
	end(pid);
}

static int lines_with(const char *file, const char *part)
{
	FILE *f = fopen(file, "re");
	char line[512];
	int n = 0;

	CHECK(f != NULL);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, part) != NULL;
	fclose(f);
	return n;
}

/* No descriptors: a client waits, the daemon does not spin, says so once, and goes on when there are some. */
TEST(check_no_descriptors)
{
	char log[80];
	struct raw_request q = {
		.magic = DEVMEM_DAEMON_MAGIC, .version = DEVMEM_DAEMON_VERSION, .op = DEVMEM_DAEMON_UNSTEER};
	struct raw_reply reply;
	uint64_t began;
	int fd, accepts;
	pid_t pid;

	snprintf(log, sizeof(log), "%s/log", dir);
	gantry_log_configure(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL, log);
	pid = start(NULL, 0, 0);
	began = gantry_now_ns();
	__atomic_store_n(&shared->accept_error, EMFILE, __ATOMIC_RELAXED);
	fd = connect_raw();
	CHECK_EQ(send(fd, &q, sizeof(q), MSG_NOSIGNAL), sizeof(q));
	UNTIL((accepts = __atomic_load_n(&shared->accepts, __ATOMIC_RELAXED)) >= 3);
	CHECK(accepts <= (int)((gantry_now_ns() - began) / 100000000) + 2);
	__atomic_store_n(&shared->accept_error, 0, __ATOMIC_RELAXED);
	CHECK_EQ(hear(fd, &reply, sizeof(reply)), sizeof(reply));
	CHECK_EQ(reply.result, GANTRY_ERR_USAGE);
	close(fd);
	end(pid);
	CHECK_EQ(lines_with(log, strerror(EMFILE)), 1);
	gantry_log_configure(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL, NULL);
}

/* Any bytes: a text or nothing, and nothing only for what can be done. */
TEST(check_requests)
{
	uint8_t bytes[sizeof(struct raw_request)];
	struct devmem_request q;

	for (int i = 0; i < 100000; i++) {
		random_fill(bytes, sizeof(bytes));
		for (size_t k = 0; !(i & 1) && k < sizeof(bytes); k++)
			bytes[k] &= 3;
		/* The magic number is never right. */
		CHECK(decode_request(bytes, sizeof(bytes), i & 2, &q) != NULL);
		memcpy(bytes, &(uint32_t){DEVMEM_DAEMON_MAGIC}, 4);
		memcpy(bytes + 4, &(uint32_t){DEVMEM_DAEMON_VERSION}, 4);
		if (!decode_request(bytes, sizeof(bytes), i & 2, &q)) {
			CHECK(q.op >= DEVMEM_DAEMON_BIND && q.op <= DEVMEM_DAEMON_UNSTEER);
			CHECK(!bytes[36] && !bytes[37] && !bytes[38] && !bytes[39]);
			CHECK(q.op != DEVMEM_DAEMON_BIND || memchr(q.nic, 0, sizeof(q.nic)));
		}
	}
}

void tests_begin(void)
{
	CHECK_OK(gantry_params_load(0));
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	dir = test_folder();
	CHECK_EQ(chmod(dir, 0755), 0); /* other users may reach the socket */
	snprintf(path, sizeof(path), "%s/socket", dir);
	snprintf(state, sizeof(state), "%s/state", dir);
	devmem_journal_dir_for_tests = state;
	devmem_sys_for_tests = make_fake;
	fake_nic_init(&shared->nic);
}
