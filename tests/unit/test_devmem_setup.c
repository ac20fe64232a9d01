/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC is set up, bound, steered and put back: as different drivers want it, with errors at every place, by several
 * bindings at once, and after a process that died in the middle.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "devmem_fake.h"
#include "net/devmem/session.h"

static struct fake_nic *nic; /* shared with children */
static struct fake_nic pristine;
static const char *dir;
static struct devmem_tuple tuple; /* 192.0.2.2:256 to 192.0.2.1:512 */

#define WANTED(nic_name, file, queues, sets_up)                                                                        \
	&(struct devmem_session_config)                                                                                \
	{                                                                                                              \
		.nic = (nic_name), .dmabuf = (file), .nqueues = (queues), .configure = (sets_up)                       \
	}

static void reset(void)
{
	fake_nic_init(nic);
}

/* As if nobody had been there. */
static void check_as_before(void)
{
	CHECK_EQ(nic->rings.split, pristine.rings.split);
	CHECK_EQ(nic->rings.hds, pristine.rings.hds);
	CHECK_EQ(nic->ntuple, pristine.ntuple);
	CHECK_EQ(nic->gro_hw, pristine.gro_hw);
	CHECK_EQ(nic->rss_user, pristine.rss_user);
	CHECK(memcmp(&nic->rss, &pristine.rss, sizeof(nic->rss)) == 0);
	CHECK_EQ(fake_rules(nic), 0);
	CHECK_EQ(nic->bound, 0);
}

static int files(void)
{
	char command[128];
	FILE *f;
	int n = -1;

	snprintf(command, sizeof(command), "ls %s | grep -vc '\\.lock$'", dir);
	f = popen(command, "r");
	CHECK(f && fscanf(f, "%d", &n) == 1);
	pclose(f);
	return n;
}

static struct devmem_sys *make_fake(void)
{
	return fake_sys_new(nic);
}

/* As before, and nothing is left of its journal. */
static void check_clean(void)
{
	check_as_before();
	CHECK_EQ(files(), 0);
}

static struct devmem_session *open_ok(uint32_t queues)
{
	struct devmem_session *s = NULL;

	CHECK_OK(devmem_session_open(WANTED("fake0", 1, queues, 1), &s));
	return s;
}

static void check_round(const char *driver)
{
	struct devmem_session *s;
	uint32_t a, b, c;

	pristine = *nic;
	s = open_ok(2);
	CHECK_EQ(nic->rings.split, DEVMEM_SPLIT_ON);
	CHECK_EQ(nic->rings.hds, 0);
	CHECK_EQ(nic->ntuple, 1);
	CHECK_EQ(nic->bound, 2);
	CHECK_EQ(s->queues[0], FAKE_QUEUES - 1);
	CHECK_EQ(s->queues[1], FAKE_QUEUES - 2);
	for (uint32_t i = 0; i < FAKE_RSS; i++)
		CHECK_EQ(nic->rss.queue[i], i % (FAKE_QUEUES - 2));
	CHECK_OK(devmem_session_steer(s, &tuple, &a));
	CHECK_OK(devmem_session_steer(s, &tuple, &b));
	CHECK_OK(devmem_session_steer(s, &tuple, &c));
	CHECK_EQ(nic->rules[a].queue, FAKE_QUEUES - 1);
	CHECK_EQ(nic->rules[b].queue, FAKE_QUEUES - 2);
	CHECK_EQ(nic->rules[a].narrow, 1);
	CHECK(memcmp(&nic->rules[a].tuple, &tuple, sizeof(tuple)) == 0);
	CHECK_OK(devmem_session_unsteer(s, b));
	CHECK_EQ(fake_rules(nic), 2);
	CHECK_EQ(devmem_session_unsteer(s, b), GANTRY_ERR_INVALID);
	CHECK_OK(devmem_session_unsteer(s, DEVMEM_NO_RULE));
	devmem_session_close(s);
	check_clean();
	printf("ok: %s\n", driver);
}

TEST(check_drivers)
{
	reset();
	check_round("plain");

	reset();
	nic->rings.has_hds = 0; /* before 6.14 the attribute is not known, and sending it is an error */
	nic->rings.hds = 0;
	check_round("no threshold");

	reset();
	strcpy(nic->driver, "mlx5_core");
	nic->need_gro_hw = 1;
	check_round("mlx5");

	reset();
	strcpy(nic->driver, "bnxt_en");
	nic->refuse_off = 1;
	pristine = *nic;
	devmem_session_close(open_ok(1));
	CHECK_EQ(nic->rings.split, DEVMEM_SPLIT_AUTO); /* off is refused */
	nic->rings.split = pristine.rings.split;
	check_as_before();

	reset();
	strcpy(nic->driver, "fbnic");
	nic->rings.split = DEVMEM_SPLIT_ON;
	check_round("fbnic");

	/* A table that a user had made comes back as that. */
	reset();
	for (uint32_t i = 0; i < FAKE_RSS; i++)
		nic->rss.queue[i] = (FAKE_QUEUES - 1 - i) % FAKE_QUEUES;
	nic->rss_user = 1;
	check_round("own RSS table");

	/* Everything was right already: nothing changes but the binding. */
	reset();
	nic->rings = (struct devmem_rings){.has_split = 1, .split = DEVMEM_SPLIT_ON, .has_hds = 1};
	nic->ntuple = 1;
	for (uint32_t i = 0; i < FAKE_RSS; i++)
		nic->rss.queue[i] = i % (FAKE_QUEUES - 2);
	pristine = *nic;
	devmem_session_close(open_ok(2));
	CHECK_EQ(nic->changes, pristine.changes);
	check_as_before();
}

/* Only looks: for those who set up the NIC themselves. */
TEST(check_verify_only)
{
	struct devmem_session *s = NULL;
	uint32_t location = 0;

	reset();
	CHECK_ERROR(devmem_session_open(WANTED("fake0", 1, 1, 0), &s), GANTRY_ERR_CONFIG, "tcp-data-split is off");
	CHECK_EQ(nic->changes, 0);
	nic->rings = (struct devmem_rings){.has_split = 1, .split = DEVMEM_SPLIT_ON, .has_hds = 1};
	for (uint32_t i = 0; i < FAKE_RSS; i++)
		nic->rss.queue[i] = 0;
	pristine = *nic;
	CHECK_OK(devmem_session_open(WANTED("fake0", 1, 1, 0), &s));
	CHECK_OK(devmem_session_steer(s, &tuple, &location));
	CHECK_EQ(location, DEVMEM_NO_RULE);
	devmem_session_close(s);
	CHECK_EQ(nic->changes, 0);
	check_as_before();
}

static void refuse(gantry_result result, const char *text)
{
	struct devmem_session *s = NULL;

	pristine = *nic;
	CHECK_EQ(devmem_session_open(WANTED("fake0", 1, 1, 1), &s), result);
	CHECK(s == NULL);
	CHECK_HAS(gantry_last_error(), text);
	check_clean();
	reset();
}

TEST(check_errors)
{
	struct devmem_session *s;
	uint32_t location;

	reset();
	nic->bind_error = EOPNOTSUPP;
	nic->said = "Device doesn't support DMA";
	refuse(GANTRY_ERR_UNSUPPORTED, "kernel message: Device doesn't support DMA");
	nic->bind_error = 524;
	refuse(GANTRY_ERR_UNSUPPORTED, "PCI topology");
	nic->bind_error = EPERM;
	refuse(GANTRY_ERR_CONFIG, "CAP_NET_ADMIN");
	nic->rings.has_split = 0;
	refuse(GANTRY_ERR_UNSUPPORTED, "no header split");
	nic->rings_set_error = EPERM;
	nic->rings.split = DEVMEM_SPLIT_ON;
	nic->rings.hds = 1;
	nic->ntuple = 1;
	pristine = *nic;
	CHECK_ERROR(devmem_session_open(WANTED("fake0", 1, 1, 1), &s), GANTRY_ERR_CONFIG, "CAP_NET_ADMIN");
	/* Putting back is refused as well: it stays on file until it works. */
	CHECK_EQ(files(), 1);
	nic->rings_set_error = 0;
	reset();
	pristine = *nic;
	pristine.rings.hds = 1;
	devmem_session_close(open_ok(1));
	CHECK_EQ(files(), 0);
	reset();
	nic->ntuple_fixed = 1;
	refuse(GANTRY_ERR_UNSUPPORTED, "rx-ntuple-filter");
	nic->ntuple_stuck = 1;
	refuse(GANTRY_ERR_UNSUPPORTED, "the driver left it off");
	nic->queues = 1;
	refuse(GANTRY_ERR_LIMIT, "GANTRY_DEVMEM_QUEUES");
	for (uint32_t i = 1; i < FAKE_QUEUES; i++)
		nic->queue[i].taken = 1;
	refuse(GANTRY_ERR_LIMIT, "0 of its 8 receive queues");
	nic->queue[0].dmabuf = 99;
	refuse(GANTRY_ERR_LIMIT, "queue 0 is bound");
	nic->queues_error = EIO;
	refuse(GANTRY_ERR_SYSTEM, strerror(EIO));
	nic->rss_error = EIO;
	refuse(GANTRY_ERR_SYSTEM, "RSS table");
	nic->feature_error = ENODEV;
	refuse(GANTRY_ERR_SYSTEM, "features of fake0");
	CHECK_EQ(devmem_session_open(WANTED("fake0", 1, 0, 1), &s), GANTRY_ERR_INVALID);
	CHECK_EQ(devmem_session_open(WANTED("a-name-that-is-too-long", 1, 1, 1), &s), GANTRY_ERR_INVALID);

	s = open_ok(1);
	nic->rule_error = ENOSPC;
	CHECK_ERROR(devmem_session_steer(s, &tuple, &location), GANTRY_ERR_LIMIT, "192.0.2.2:256 to 192.0.2.1:512");
	nic->rule_error = 0;
	nic->refuse_narrow = 1;
	CHECK_OK(devmem_session_steer(s, &tuple, &location));
	CHECK_EQ(nic->rules[location].narrow, 0);
	devmem_session_close(s);
	devmem_session_close(NULL);
}

/* A rule for the whole port must not catch connections to a listener. */
TEST(check_shared_port)
{
	int port, listener = lo_listen(0, &port);
	struct devmem_tuple t = tuple;
	struct devmem_session *s;
	uint32_t location;

	t.dst.in.sin_port = htons((uint16_t)port);
	reset();
	s = open_ok(1);
	nic->refuse_narrow = 1;
	CHECK_EQ(devmem_session_steer(s, &t, &location), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(fake_rules(nic), 0);
	close(listener);
	CHECK_OK(devmem_session_steer(s, &t, &location));
	devmem_session_close(s);
}

/* A connection from this port of the host's; 0: any. */
static int connect_from(int *port, int to)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct linger hard = {1, 0};
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)); /* its end leaves no socket behind */
	at.sin_port = htons((uint16_t)*port);
	CHECK_EQ(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	*port = ntohs(at.sin_port);
	at.sin_port = htons((uint16_t)to);
	CHECK_EQ(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

/* Nor connections that left the host from the same port, to elsewhere. */
TEST(check_shared_by_connections)
{
	int ports[2], listeners[2] = {lo_listen(0, &ports[0]), lo_listen(0, &ports[1])}, port = 0;
	int flow = connect_from(&port, ports[0]), other = connect_from(&port, ports[1]);
	struct devmem_tuple t = tuple;
	struct devmem_session *s;
	uint32_t location;

	t.dst.in.sin_port = htons((uint16_t)port);
	reset();
	s = open_ok(1);
	nic->refuse_narrow = 1;
	CHECK_EQ(devmem_session_steer(s, &t, &location), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(fake_rules(nic), 0);
	close(other);
	CHECK_OK(devmem_session_steer(s, &t, &location));
	CHECK_EQ(nic->rules[location].narrow, 0);
	devmem_session_close(s);
	close(flow);
	for (int i = 0; i < 2; i++)
		close(listeners[i]);
}

/* Several bindings of one NIC: the first changes it, the last puts it back. */
TEST(check_several)
{
	struct devmem_session *a, *b, *c;
	uint32_t location;

	reset();
	pristine = *nic;
	a = open_ok(1);
	b = open_ok(1);
	CHECK_EQ(a->queues[0], FAKE_QUEUES - 1);
	CHECK_EQ(b->queues[0], FAKE_QUEUES - 2);
	CHECK(a->dmabuf_id != b->dmabuf_id);
	CHECK_OK(devmem_session_steer(a, &tuple, &location));
	devmem_session_close(a);
	CHECK_EQ(nic->rings.split, DEVMEM_SPLIT_ON);
	for (uint32_t i = 0; i < FAKE_RSS; i++)
		CHECK(nic->rss.queue[i] < FAKE_QUEUES - 2);
	CHECK_EQ(fake_rules(nic), 0);
	c = open_ok(1);
	CHECK_EQ(c->queues[0], FAKE_QUEUES - 1);
	devmem_session_close(b);
	CHECK_EQ(nic->rings.split, DEVMEM_SPLIT_ON);
	devmem_session_close(c);
	check_clean();
}

static void in_child(void (*run)(void), int how)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		run();
		if (how)
			exit(0);
		_exit(0);
	}
	child_wait(pid);
}

static void bind_and_steer(void)
{
	struct devmem_session *s = open_ok(1);
	uint32_t location;

	for (int i = 0; i < 3; i++)
		CHECK_OK(devmem_session_steer(s, &tuple, &location));
	CHECK_OK(devmem_session_unsteer(s, location));
}

static void unbind_like_the_kernel(void)
{
	for (int i = 0; i < FAKE_QUEUES; i++)
		nic->queue[i].dmabuf = 0;
	nic->bound = 0;
}

TEST(check_exit_and_crash)
{
	struct devmem_session *s;
	struct fake_sys sys;
	char names[4][IFNAMSIZ], text[256];

	/* exit puts everything back; a child of fork does not do it in its parent's place. */
	reset();
	pristine = *nic;
	in_child(bind_and_steer, 1);
	check_clean();
	s = open_ok(1);
	{
		int status;
		pid_t pid = child_fork();

		if (pid == 0)
			exit(0); /* its exit handlers see the parent's session */
		CHECK_EQ(waitpid(pid, &status, 0), pid);
	}
	CHECK_EQ(nic->rings.split, DEVMEM_SPLIT_ON);
	CHECK_EQ(nic->bound, 1);
	devmem_session_close(s);
	check_as_before();

	/* A crash leaves the NIC changed and two rules; somebody asks for it. */
	in_child(bind_and_steer, 0);
	unbind_like_the_kernel();
	CHECK_EQ(fake_rules(nic), 2);
	CHECK_EQ(nic->rings.split, DEVMEM_SPLIT_ON);
	CHECK_EQ(files(), 2);
	CHECK_EQ(devmem_journal_nics(names, 4), 1);
	CHECK_STR(names[0], "fake0");
	fake_sys_init(&sys, nic);
	CHECK_EQ(devmem_undo_stale(&sys.base, "fake0", text, sizeof(text)), 1);
	CHECK_HAS(text, "1 dead binding: 2 flow rules removed; header split, RSS and features were restored");
	check_clean();
	CHECK_EQ(devmem_undo_stale(&sys.base, "fake0", text, sizeof(text)), 0);
	CHECK_STR(text, "");

	/* The same with the next binding, which then leaves the NIC as it was before the crash. */
	in_child(bind_and_steer, 0);
	unbind_like_the_kernel();
	s = open_ok(1);
	CHECK_EQ(fake_rules(nic), 0);
	/* A second crash while this one lives: its rules go, the rest stays. */
	in_child(bind_and_steer, 0);
	nic->queue[FAKE_QUEUES - 2].dmabuf = 0;
	nic->bound--;
	CHECK_EQ(devmem_undo_stale(&sys.base, "fake0", text, sizeof(text)), 1);
	CHECK_HAS(text, "the NIC is still in use");
	CHECK_EQ(nic->rings.split, DEVMEM_SPLIT_ON);
	devmem_session_close(s);
	check_as_before();
	devmem_sys_close(&sys.base);
}

static void write_file(const char *name, const char *text)
{
	char path[256], start[64];
	struct stat st;
	FILE *f;

	CHECK_EQ(stat("/proc/self/ns/net", &st), 0);
	snprintf(start, sizeof(start), "devmem-%llu-fake0", (unsigned long long)st.st_ino);
	snprintf(path, sizeof(path), "%s/%s%s", dir, start, name);
	f = fopen(path, "we");
	CHECK(f != NULL);
	fputs(text, f);
	fclose(f);
}

/* A journal that is damaged does no harm: what can be read is done. */
TEST(check_damaged)
{
	struct fake_sys sys;
	char text[256];

	reset();
	fake_sys_init(&sys, nic);
	write_file(".before",
		   "rings\nrings x y\nfeature\nfeature rx-gro-hw 1\nrss 5000 1 2\nrss 3 1 2\nrss 4294967295\n\n%n%s\n");
	write_file(".1.0", "rule\nrule 5\nrule 5000000000\ngone\nrule 7\ngone 5\nnonsense\n");
	nic->rules[7].used = nic->rules[5].used = 1;
	devmem_undo_stale(&sys.base, "fake0", text, sizeof(text));
	CHECK_EQ(nic->rules[7].used, 0);
	CHECK_EQ(nic->rules[5].used, 1); /* it was gone already: somebody else's */
	CHECK_EQ(nic->gro_hw, 1);
	CHECK_EQ(nic->rss_user, 0);
	CHECK_EQ(files(), 0);
	devmem_sys_close(&sys.base);
}

/* A rule that the NIC does not let go stays known: to the binding, then to the files, until it is gone. */
TEST(check_rules_kept)
{
	struct devmem_session *s;
	struct fake_sys sys;
	char text[256];
	uint32_t a, b;

	reset();
	pristine = *nic;
	fake_sys_init(&sys, nic);
	s = open_ok(1);
	CHECK_OK(devmem_session_steer(s, &tuple, &a));
	CHECK_OK(devmem_session_steer(s, &tuple, &b));
	nic->rule_del_error = EBUSY;
	CHECK_ERROR(devmem_session_unsteer(s, a), GANTRY_ERR_SYSTEM, strerror(EBUSY));
	nic->rule_del_error = 0;
	CHECK_OK(devmem_session_unsteer(s, a)); /* a later try */
	CHECK_EQ(nic->rules[a].used, 0);
	nic->rules[b].used = 0; /* by somebody else: that is as good */
	CHECK_OK(devmem_session_unsteer(s, b));

	/* At the end of the binding: one goes, the other cannot. */
	CHECK_OK(devmem_session_steer(s, &tuple, &a));
	nic->rule_del_error = EBUSY;
	devmem_session_close(s);
	CHECK_EQ(fake_rules(nic), 1);
	CHECK_EQ(nic->rings.split, pristine.rings.split);
	CHECK_EQ(files(), 1);
	CHECK_EQ(devmem_undo_stale(&sys.base, "fake0", text, sizeof(text)), -1);
	CHECK_HAS(text, "0 flow rules removed, 1 could not be");
	CHECK_EQ(files(), 1);
	nic->rule_del_error = 0;
	CHECK_EQ(devmem_undo_stale(&sys.base, "fake0", text, sizeof(text)), 1);
	check_clean();

	/* After a crash, without the right to change the NIC: nothing is forgotten. */
	in_child(bind_and_steer, 0);
	unbind_like_the_kernel();
	nic->rule_del_error = EPERM;
	CHECK_EQ(devmem_undo_stale(&sys.base, "fake0", text, sizeof(text)), -1);
	CHECK_EQ(fake_rules(nic), 2);
	nic->rule_del_error = 0;
	CHECK_EQ(devmem_undo_stale(&sys.base, "fake0", text, sizeof(text)), 1);
	CHECK_HAS(text, "2 flow rules removed");
	check_clean();
	devmem_sys_close(&sys.base);
}

/* The next name for a file is another process's: in a PID namespace of its own it has the same number. */
TEST(check_name_taken)
{
	struct devmem_session *a, *b;
	char path[DEVMEM_PATH_MAX], line[32] = "";
	unsigned serial;
	char *dot;
	FILE *f;

	reset();
	pristine = *nic;
	a = open_ok(1);
	snprintf(path, sizeof(path), "%s", a->journal.own);
	dot = strrchr(path, '.');
	CHECK(dot && sscanf(dot, ".%u", &serial) == 1);
	snprintf(dot, sizeof(path) - (size_t)(dot - path), ".%u", serial + 1);
	f = fopen(path, "w+e");
	CHECK(f && flock(fileno(f), LOCK_EX | LOCK_NB) == 0);
	CHECK(fputs("rule 60\n", f) > 0 && fflush(f) == 0);
	b = open_ok(1);
	CHECK(strcmp(b->journal.own, path) != 0);
	devmem_session_close(b);
	rewind(f);
	CHECK(fgets(line, sizeof(line), f) != NULL);
	CHECK_STR(line, "rule 60\n");
	CHECK_EQ(access(path, F_OK), 0);
	fclose(f); /* it dies */
	nic->rules[60].used = 1;
	devmem_session_close(a);
	check_clean();
}

TEST(check_many_flows)
{
	struct devmem_session *s;
	struct stat st;
	uint32_t location;

	reset();
	s = open_ok(1);
	for (int i = 0; i < 5 * DEVMEM_RULES_MAX; i++) {
		CHECK_OK(devmem_session_steer(s, &tuple, &location));
		CHECK_OK(devmem_session_unsteer(s, location));
	}
	CHECK_EQ(stat(s->journal.own, &st), 0);
	CHECK(st.st_size < 20 * 4 * DEVMEM_RULES_MAX);
	devmem_session_close(s);
}

/* A folder that others may write to is not believed. Without a journal things are put back all the same. */
TEST(check_no_journal)
{
	struct devmem_journal j;

	CHECK_EQ(chmod(dir, 0777), 0);
	CHECK_EQ(devmem_journal_init(&j, "fake0"), EPERM);
	CHECK_STR(j.base, "");
	reset();
	pristine = *nic;
	devmem_session_close(open_ok(1));
	check_as_before();
}

void tests_begin(void)
{
	CHECK_OK(gantry_params_load(0));
	dir = test_folder();
	devmem_journal_dir_for_tests = dir;
	devmem_sys_for_tests = make_fake;
	CHECK_OK(gantry_addr_parse("192.0.2.2:256", &tuple.src));
	CHECK_OK(gantry_addr_parse("192.0.2.1:512", &tuple.dst));
	nic = mmap(NULL, sizeof(*nic), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(nic != MAP_FAILED);
}
