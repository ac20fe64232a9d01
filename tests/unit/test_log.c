/* SPDX-License-Identifier: Apache-2.0 */
/* The line as written, the filters, the file, the sink, the last error and the rate limit. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "base/log.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "test.h"

static const char *folder;
static char path[256];

/* The file's text, up to the buffer's size; the file is emptied. */
static const char *take_file(void)
{
	static char text[131072];
	int fd = open(path, O_RDWR);
	ssize_t n;

	CHECK(fd >= 0);
	n = read(fd, text, sizeof(text) - 1);
	CHECK(n >= 0);
	text[n] = 0;
	CHECK_EQ(ftruncate(fd, 0), 0);
	close(fd);
	return text;
}

static void to_file(enum gantry_log_level level, uint32_t mask)
{
	gantry_log_configure(level, mask, path);
}

/* What follows time, host and process id in a line, all of which are checked. The C library says what the time is. */
static const char *after_prefix(const char *text)
{
	struct tm t = {0};
	int ms, skip = 0;
	char host[65] = "", own[65] = "";
	long pid;
	time_t at;

	CHECK_EQ(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %64[^:]:%ld %n", &t.tm_year, &t.tm_mon, &t.tm_mday,
			&t.tm_hour, &t.tm_min, &t.tm_sec, &ms, host, &pid, &skip),
		 9);
	t.tm_year -= 1900;
	t.tm_mon--;
	at = timegm(&t);
	CHECK(at <= time(NULL) && at >= time(NULL) - 3600);
	CHECK(ms >= 0 && ms < 1000);
	CHECK_EQ(gethostname(own, sizeof(own) - 1), 0);
	CHECK_STR(host, own);
	CHECK_EQ(pid, (long)getpid());
	return text + skip;
}

/* Before the first line of this process: the environment is asked once. */
TEST(check_launcher_rank)
{
	static const char *const of_launchers[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"};
	pid_t child;

	for (size_t i = 0; i < sizeof(of_launchers) / sizeof(of_launchers[0]); i++)
		unsetenv(of_launchers[i]);
	to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL);
	child = child_fork();
	if (!child) {
		setenv("RANK", "7", 1);
		setenv("MASTER_ADDR", "node0", 1);
		LOG_WARN(NET, "x");
		CHECK_STR(after_prefix(take_file()), "rank 7 gantry WARN net: x\n");
		gantry_log_set_rank(1); /* of a smaller communicator */
		LOG_WARN(NET, "x");
		CHECK_STR(after_prefix(take_file()), "rank 7 gantry WARN net: x\n");
		_exit(0);
	}
	child_wait(child);
}

TEST(check_line)
{
	char expected[128];

	to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL);
	LOG_WARN(NET, "connect to %s: %s", "10.0.0.2:4000", "Connection refused");
	CHECK_STR(after_prefix(take_file()), "gantry WARN net: connect to 10.0.0.2:4000: Connection refused\n");
	to_file(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL);
	gantry_log_write(GANTRY_LOG_ERROR, GANTRY_SUBSYS_LOADER, "/a/b/c.c", 7, "x");
	CHECK_STR(after_prefix(take_file()), "gantry ERROR loader: x\n");

	/* File and line are for those who debug Gantry. */
	to_file(GANTRY_LOG_DEBUG, GANTRY_SUBSYS_ALL);
	LOG_WARN(NET, "x");
	snprintf(expected, sizeof(expected), "gantry WARN net test_log.c:%d: x\n", __LINE__ - 1);
	CHECK_STR(after_prefix(take_file()), expected);
	to_file(GANTRY_LOG_TRACE, GANTRY_SUBSYS_ALL);
	gantry_log_write(GANTRY_LOG_TRACE, GANTRY_SUBSYS_BASE, "/a/b/c.c", 8, "x");
	CHECK_STR(after_prefix(take_file()), "gantry TRACE base c.c:8: x\n");
}

TEST(check_rank)
{
	to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL);
	LOG_WARN(NET, "x");
	CHECK_STR(after_prefix(take_file()), "gantry WARN net: x\n");
	gantry_log_set_rank(3);
	gantry_log_set_rank(3);
	LOG_WARN(NET, "x");
	CHECK_STR(after_prefix(take_file()), "rank 3 gantry WARN net: x\n");
	gantry_log_set_rank(5); /* another thread's: a line may be of either */
	gantry_log_set_rank(3);
	LOG_WARN(NET, "x");
	CHECK_STR(after_prefix(take_file()), "gantry WARN net: x\n");
}

TEST(check_filters)
{
	const char *text;

	to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL);
	LOG_INFO(NET, "hidden by its level");
	CHECK_STR(take_file(), "");

	to_file(GANTRY_LOG_DEBUG, GANTRY_SUBSYS_DATA | GANTRY_SUBSYS_TOOL);
	LOG_DEBUG(NET, "hidden by its subsystem");
	CHECK_STR(take_file(), "");
	LOG_TRACE(DATA, "hidden by its level");
	CHECK_STR(take_file(), "");
	LOG_DEBUG(DATA, "one");
	LOG_INFO(TOOL, "two");
	text = take_file();
	CHECK_HAS(text, "gantry DEBUG data");
	CHECK_HAS(text, "one\n");
	CHECK_HAS(text, "gantry INFO tool");
	/* Warnings and errors are never hidden by the mask. */
	LOG_WARN(PLUGIN, "three");
	CHECK_HAS(take_file(), "gantry WARN plugin");

	to_file(GANTRY_LOG_ERROR, GANTRY_SUBSYS_ALL);
	LOG_WARN(NET, "hidden by its level");
	CHECK_STR(take_file(), "");
}

/* A name that a peer chose cannot start a line of its own, and a long one is cut visibly. */
TEST(check_foreign_text)
{
	static char giant[5000];
	const char *text;

	to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL);
	gantry_log_write(GANTRY_LOG_WARN, GANTRY_SUBSYS_NET, "c.c", 1, "name %s", "a\ngantry ERROR \033[31m\177");
	CHECK_STR(after_prefix(take_file()), "gantry WARN net: name a?gantry ERROR ?[31m?\n");

	memset(giant, 'x', sizeof(giant) - 1);
	gantry_log_write(GANTRY_LOG_WARN, GANTRY_SUBSYS_NET, "c.c", 1, "%s", giant);
	text = take_file();
	CHECK(strlen(text) > 500 && strlen(text) < 2000);
	CHECK_STR(text + strlen(text) - 5, "x...\n");
	gantry_log_write(GANTRY_LOG_WARN, GANTRY_SUBSYS_NET, giant, 1, "%s", giant);
	text = take_file();
	CHECK(strchr(text, '\n') == text + strlen(text) - 1);
}

static gantry_result failing(void)
{
	gantry_result r = GANTRY_OK;

	errno = EBADF;
	FAIL(GANTRY_ERR_TIMEOUT, "waited %d s", 30);
out:
	return r;
}

static gantry_result passing_on(gantry_result inner)
{
	gantry_result r = GANTRY_OK;

	if (inner == GANTRY_ERR_TIMEOUT)
		TRY(failing());
	TRY(inner);
	return GANTRY_OK;
out:
	return r;
}

static void *other_thread(void *arg)
{
	CHECK_STR(gantry_last_error(), "");
	gantry_set_last_error("of the other thread");
	return arg;
}

TEST(check_fail)
{
	pthread_t thread;

	to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL);
	CHECK_STR(gantry_last_error(), "");
	CHECK_OK(passing_on(GANTRY_OK));
	CHECK_EQ(passing_on(GANTRY_AGAIN), GANTRY_AGAIN);
	CHECK_STR(take_file(), "");

	CHECK_EQ(passing_on(GANTRY_ERR_TIMEOUT), GANTRY_ERR_TIMEOUT);
	CHECK_EQ(errno, EBADF);
	CHECK_STR(gantry_last_error(), "waited 30 s");
	CHECK_STR(after_prefix(take_file()), "gantry ERROR net: waited 30 s\n"); /* once, by the first to know */

	CHECK_EQ(pthread_create(&thread, NULL, other_thread, NULL), 0);
	pthread_join(thread, NULL);
	CHECK_STR(gantry_last_error(), "waited 30 s");
	gantry_fail(GANTRY_ERR_SYSTEM, GANTRY_SUBSYS_NET, "c.c", 1, "again: %s", gantry_last_error());
	CHECK_STR(gantry_last_error(), "again: waited 30 s");
	gantry_set_last_error("");
	CHECK_STR(gantry_last_error(), "");
}

TEST(check_errno)
{
	to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL);
	errno = ECONNREFUSED;
	LOG_WARN(NET, "%m");
	CHECK_EQ(errno, ECONNREFUSED);
	CHECK_HAS(take_file(), strerror(ECONNREFUSED));
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, "");
	CHECK_EQ(errno, ECONNREFUSED);
}

/* Called while stderr is the file at `path`. A link that somebody else has put there is not written through. */
static void check_link(void)
{
	char target[300], name[300];
	struct stat st;
	int fd;

	snprintf(target, sizeof(target), "%s/target", folder);
	snprintf(name, sizeof(name), "%s/link", folder);
	fd = open(target, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	CHECK_EQ(symlink(target, name), 0);
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, name);
	CHECK_HAS(take_file(), "/link, logging to stderr: it is a symbolic link");
	LOG_WARN(NET, "to stderr");
	CHECK_HAS(take_file(), "to stderr\n");
	CHECK_EQ(fstat(fd, &st), 0);
	CHECK_EQ(st.st_size, 0);
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, "/dev/stderr");
	LOG_WARN(NET, "a link by design");
	CHECK_HAS(take_file(), "a link by design\n");
	close(fd);
	unlink(name);
	unlink(target);
}

/* %p and %h in the name; a file that cannot be opened leaves stderr in force and says so there. */
TEST(check_file_names)
{
	char name[128], expected[512], host[128];
	int saved = dup(STDERR_FILENO), capture;

	CHECK_EQ(gethostname(host, sizeof(host)), 0);
	snprintf(name, sizeof(name), "%s/%%p-%%h-%%%%-%%z", folder);
	snprintf(expected, sizeof(expected), "%s/%ld-%s-%%-%%z", folder, (long)getpid(), host);
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, name);
	LOG_WARN(NET, "here");
	CHECK_EQ(access(expected, F_OK), 0);
	unlink(expected);

	capture = open(path, O_RDWR | O_TRUNC | O_APPEND);
	CHECK(capture >= 0 && dup2(capture, STDERR_FILENO) == STDERR_FILENO);
	snprintf(name, sizeof(name), "%s/no/such/folder", folder);
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, name);
	CHECK_HAS(take_file(), "no/such/folder, logging to stderr: No such file or directory\n");
	check_link();
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(capture);
}

/* A tool that prints failures itself has them once on stderr; a log file has them, and so has a curious user. */
TEST(check_told)
{
	int saved = dup(STDERR_FILENO), capture = open(path, O_RDWR | O_TRUNC | O_APPEND);

	CHECK(saved >= 0 && capture >= 0 && dup2(capture, STDERR_FILENO) == STDERR_FILENO);
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, "");
	gantry_log_failures_are_told(1);
	gantry_fail(GANTRY_ERR_SYSTEM, GANTRY_SUBSYS_NET, "c.c", 1, "one");
	LOG_FAILURE(NET, "two");
	CHECK_STR(take_file(), "");
	CHECK_STR(gantry_last_error(), "one");
	LOG_ERROR(NET, "three"); /* no call fails because of it: nobody else tells */
	CHECK_STR(after_prefix(take_file()), "gantry ERROR net: three\n");
	gantry_log_configure(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL, "");
	LOG_FAILURE(NET, "four");
	CHECK_STR(after_prefix(take_file()), "gantry ERROR net: four\n");
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(capture);

	to_file(GANTRY_LOG_ERROR, GANTRY_SUBSYS_ALL);
	LOG_FAILURE(NET, "five");
	CHECK_STR(after_prefix(take_file()), "gantry ERROR net: five\n");
	gantry_log_failures_are_told(0);
}

static int sink_lines;
static char sink_text[256];

static void sink(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		 const char *text)
{
	sink_lines++;
	snprintf(sink_text, sizeof(sink_text), "%d %s %s:%d %s", (int)level, gantry_log_subsys_name(subsys), file, line,
		 text);
	errno = EIO; /* NCCL's logger may do anything */
}

TEST(check_sink)
{
	to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL);
	gantry_log_set_sink(sink);
	errno = ENOENT;
	gantry_log_write(GANTRY_LOG_WARN, GANTRY_SUBSYS_DATA, "/x/y.c", 3, "%d%%", 5);
	CHECK_EQ(errno, ENOENT);
	CHECK_STR(sink_text, "1 data y.c:3 5%");
	LOG_INFO(DATA, "filtered before the sink");
	CHECK_EQ(sink_lines, 1);
	CHECK_STR(take_file(), "");
	gantry_log_set_sink(NULL);
	LOG_WARN(NET, "back");
	CHECK_EQ(sink_lines, 1);
	CHECK_HAS(take_file(), "back\n");
}

/* Times are set by hand: nothing here depends on how fast the machine is. */
TEST(check_ratelimit)
{
	struct gantry_ratelimit rl = {0};
	const uint64_t second = 1000000000u;
	uint32_t suppressed = 99;

	CHECK_EQ(gantry_ratelimit_pass(&rl, &suppressed), 1);
	CHECK_EQ(suppressed, 0);
	rl.last_ns = gantry_now_ns() + 3600 * second; /* the last line is "not a second ago" for an hour */
	suppressed = 99;
	for (int i = 0; i < 3; i++)
		CHECK_EQ(gantry_ratelimit_pass(&rl, &suppressed), 0);
	CHECK_EQ(suppressed, 99);
	/* Half a second is too soon, as long as the question itself does not take the other half. */
	for (;;) {
		int passed;

		rl.last_ns = gantry_now_ns() - second / 2;
		rl.suppressed = 2;
		passed = gantry_ratelimit_pass(&rl, &suppressed);
		if (passed && gantry_now_ns() > rl.last_ns + second / 2)
			continue;
		CHECK_EQ(passed, 0);
		CHECK_EQ(rl.suppressed, 3);
		break;
	}
	rl.last_ns = gantry_now_ns() - second;
	CHECK_EQ(gantry_ratelimit_pass(&rl, &suppressed), 1);
	CHECK_EQ(suppressed, 3);
	CHECK_EQ(rl.suppressed, 0);
	CHECK_STR(LEFT_OUT(0), "");
	CHECK_STR(LEFT_OUT(1), " (1 similar line suppressed)");
	CHECK_STR(LEFT_OUT(3), " (3 similar lines suppressed)");
}

enum { THREADS = 4, LINES = 200 };

static void *write_lines(void *arg)
{
	for (int i = 0; i < LINES; i++) {
		gantry_log_write(GANTRY_LOG_WARN, GANTRY_SUBSYS_NET, "c.c", 1, "thread %d line %d", (int)(uintptr_t)arg,
				 i);
		if (i % 50 == 0)
			to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL); /* reopens while the others write */
	}
	return NULL;
}

/* No line is lost, mixed or out of its thread's order. */
TEST(check_threads)
{
	pthread_t threads[THREADS];
	int next[THREADS] = {0}, thread, line, length;
	const char *at;

	to_file(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL);
	threads_start(threads, THREADS, write_lines, NULL, 1);
	threads_join(threads, THREADS);
	for (at = take_file(); *at; at += length) {
		length = 0;
		at = after_prefix(at);
		CHECK_EQ(sscanf(at, "gantry WARN net: thread %d line %d%n", &thread, &line, &length), 2);
		CHECK_EQ(at[length++], '\n');
		CHECK(thread >= 0 && thread < THREADS);
		CHECK_EQ(line, next[thread]++);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(next[i], LINES);
}

void tests_begin(void)
{
	folder = test_folder();
	snprintf(path, sizeof(path), "%s/log", folder);
}

void tests_end(void)
{
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(rmdir(folder), 0); /* nothing else was written there */
}
