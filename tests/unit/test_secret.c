/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The secret: which files are taken, by the data network and by the control plane alike, and where its bytes lie.
 * Catches: a FIFO that is waited for, a device that is read until memory ends, a file that others can write, a line
 * that is cut, a copy of the secret that a core dump would have.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ctl/ctl.h"
#include "net/tcp/network.h"
#include "tcp_util.h"

enum { LONGEST = 4096, MASK = 0x80, BLOCK = 1 << 20, OTHER_USER = 12345 };

static char path[64];

/* ---- which files are taken ---- */

static void file_make(const void *bytes, size_t n, mode_t mode)
{
	int fd;

	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0);
	CHECK_EQ(write(fd, bytes, n), n);
	CHECK_EQ(fchmod(fd, mode), 0);
	close(fd);
}

/* Both users of the secret give this result; they name the file and say why. */
static void expect_refused(const char *why)
{
	struct gantry_unique_id id;
	struct gantry_net_config config = {0};
	void *ctx;

	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_SECRET_FILE", path, 1);
	logs_keep();
	net = gantry_net_tcp();
	CHECK_ERROR(net->ops->init(net, 7, &config, &ctx), GANTRY_ERR_CONFIG, path);
	CHECK_HAS(gantry_last_error(), why);
	CHECK_ERROR(gantry_ctl_create_id(&id), GANTRY_ERR_CONFIG, path);
	CHECK_HAS(gantry_last_error(), why);
}

static void expect_taken(const char *secret)
{
	void *ctx;

	setenv("GANTRY_SECRET_FILE", path, 1);
	start(&ctx, -1);
	CHECK_STR(tcp_network.key.bytes, secret);
	CHECK_OK(ops->finalize(net, ctx));
}

static void refused_file(const void *bytes, size_t n, mode_t mode, const char *why)
{
	file_make(bytes, n, mode);
	expect_refused(why);
}
TEST_CALL(writable_by_all, refused_file("alpha\n", 6, 0666, "chmod 600"))
TEST_CALL(writable_by_group, refused_file("alpha\n", 6, 0620, "chmod 600"))
TEST_CALL(empty, refused_file("", 0, 0600, "is empty"))
TEST_CALL(empty_line, refused_file("\nalpha\n", 7, 0600, "is empty"))
TEST_CALL(with_nul, refused_file("al\0pha\n", 7, 0600, "NUL"))

TEST(no_line_end)
{
	file_make("alpha", 5, 0600);
	expect_taken("alpha");
}

TEST(readable_by_all)
{
	struct gantry_unique_id id;

	file_make("alpha\n", 6, 0644);
	expect_taken("alpha");
	CHECK_OK(gantry_ctl_create_id(&id));
	CHECK_EQ(logs_count("is readable by all users (mode 0644)"), 1);
	CHECK_EQ(logs_count("is readable by all users"), 1);
}

TEST(readable_by_all_and_encrypting)
{
	setenv("GANTRY_ENCRYPT", "on", 1);
	file_make("alpha\n", 6, 0644);
	expect_refused("is readable by all users (mode 0644), so any of them could decrypt: chmod 600");
}

TEST(readable_by_group)
{
	file_make("alpha\n", 6, 0440);
	expect_taken("alpha");
	CHECK_EQ(logs_count("GANTRY_SECRET_FILE"), 0);
}

TEST(of_another_user)
{
	file_make("alpha\n", 6, 0600);
	if (chown(path, OTHER_USER, (gid_t)-1)) {
		printf("not root: a file of another user is not tried\n");
		return;
	}
	expect_refused("is owned by user 12345");
}

TEST(a_fifo)
{
	unlink(path);
	CHECK_EQ(mkfifo(path, 0600), 0);
	expect_refused("is not a regular file");
}

TEST(a_device)
{
	unlink(path);
	CHECK_EQ(symlink("/dev/zero", path), 0);
	expect_refused("is not a regular file");
}

TEST(a_folder)
{
	unlink(path);
	CHECK_EQ(mkdir(path, 0700), 0);
	expect_refused("is not a regular file");
	rmdir(path);
}

TEST(a_link)
{
	char to[sizeof(path) + 4];

	snprintf(to, sizeof(to), "%s.to", path);
	file_make("alpha\r\nsecond line\n", 19, 0600);
	unlink(to);
	CHECK_EQ(rename(path, to), 0);
	CHECK_EQ(symlink(to, path), 0);
	expect_taken("alpha");
	unlink(to);
}

TEST(longest)
{
	char line[LONGEST + 2];

	memset(line, 'a', LONGEST);
	line[LONGEST] = '\n';
	file_make(line, LONGEST + 1, 0600);
	line[LONGEST] = 0;
	expect_taken(line);
}

TEST(too_long)
{
	char line[LONGEST + 2];

	memset(line, 'a', LONGEST + 1);
	line[LONGEST + 1] = '\n';
	refused_file(line, LONGEST + 2, 0600, "longer than 4096 bytes");
}

/* ---- where its bytes lie ---- */

/* The secret is known here only in this form, so that the test itself has no copy of it. */
static const unsigned char masked[] = "k7#qZ0vW-x93LmTs2!pRd8Yb";
enum { NEEDLE = sizeof(masked) - 1 };

static void *undumped(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	CHECK_EQ(madvise(p, n, MADV_DONTDUMP), 0);
	return p;
}

static int needle_at(const unsigned char *p)
{
	for (int i = 0; i < NEEDLE; i++)
		if (p[i] != (masked[i] ^ MASK))
			return 0;
	return 1;
}

/* How often it is found from start to end. Through /proc, because pages may be unreadable or a sanitizer's. */
static int count_in(int mem, unsigned char *block, uint64_t first, uint64_t end)
{
	int found = 0;

	for (uint64_t at = first; at < end; at += BLOCK - NEEDLE + 1) {
		ssize_t n = pread(mem, block, end - at < BLOCK ? end - at : BLOCK, (off_t)at);

		for (unsigned char *p = block; n >= NEEDLE; p++) {
			p = memchr(p, masked[0] ^ MASK, (size_t)(block + n - NEEDLE + 1 - p));
			if (!p)
				break;
			found += needle_at(p);
		}
	}
	return found;
}

/* In all writable memory that a core dump would have. *ret_kept: whether `secret` lies in memory that it would not. */
static int count_dumped(const char *secret, int *ret_kept)
{
	FILE *maps = fopen("/proc/self/smaps", "re");
	int mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC), found = 0;
	unsigned char *block = undumped(BLOCK);
	uint64_t first = 0, end = 0, a, b;
	char line[512], mode[8] = "", m[8];

	CHECK(maps && mem >= 0);
	*ret_kept = 0;
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &a, &b, m) == 3) {
			first = a, end = b;
			memcpy(mode, m, sizeof(mode));
		} else if (strncmp(line, "VmFlags:", 8) == 0) {
			if (strstr(line, " dd"))
				*ret_kept |= (uint64_t)(uintptr_t)secret - first < end - first;
			else if (mode[0] == 'r' && mode[1] == 'w')
				found += count_in(mem, block, first, end);
		}
	}
	fclose(maps);
	close(mem);
	munmap(block, BLOCK);
	return found;
}

static void expect_undumped(void)
{
	int kept = 0;

	CHECK(tcp_network.key.bytes && needle_at(tcp_network.key.bytes));
	CHECK_EQ(count_dumped(tcp_network.key.bytes, &kept), 0);
	CHECK(kept);
}

/* The search finds a copy that is there. */
TEST(a_copy_is_found)
{
	FREED unsigned char *copy = malloc(NEEDLE);
	int kept;

	CHECK(copy != NULL);
	for (int i = 0; i < NEEDLE; i++)
		copy[i] = masked[i] ^ MASK;
	CHECK_EQ(count_dumped(NULL, &kept), 1);
	explicit_bzero(copy, NEEDLE);
	CHECK_EQ(count_dumped(NULL, &kept), 0);
}

TEST(memory_of_a_file)
{
	unsigned char *plain = undumped(NEEDLE);
	struct gantry_unique_id id;
	void *ctx;
	struct way w;

	for (int i = 0; i < NEEDLE; i++)
		plain[i] = masked[i] ^ MASK;
	file_make(plain, NEEDLE, 0600);
	setenv("GANTRY_SECRET_FILE", path, 1);
	start(&ctx, -1);
	expect_undumped();
	/* Hand-shakes, and the key of the control plane: what OpenSSL copies it wipes. */
	w = connect_way(ctx);
	CHECK_OK(gantry_ctl_create_id(&id));
	expect_undumped();
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

/* Of the environment only its own copy stays. */
TEST(memory_of_the_environment)
{
	char *var = undumped(64);
	void *ctx;

	unsetenv("GANTRY_SECRET_FILE");
	strcpy(var, "GANTRY_SECRET=");
	for (int i = 0; i < NEEDLE; i++)
		var[14 + i] = (char)(masked[i] ^ MASK);
	CHECK_EQ(putenv(var), 0);
	start(&ctx, -1);
	expect_undumped();
	close_way(connect_way(ctx));
	expect_undumped();
	CHECK_OK(ops->finalize(net, ctx));
}

void tests_begin(void)
{
	if (!GANTRY_HAVE_OPENSSL)
		SKIP("this build has no OpenSSL: a secret is refused");
	unsetenv("GANTRY_SECRET");
	snprintf(path, sizeof(path), "/tmp/gantry-secret.%d", (int)getpid());
	tests_apart(1);
}

void tests_end(void)
{
	unlink(path);
}
