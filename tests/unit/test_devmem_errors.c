/* SPDX-License-Identifier: Apache-2.0 */
/* Every errno that the kernel's devmem TCP is known to give, call by call, has a reason and a result. */
#include "net/devmem/detect.c" /* the table is its own */
#include "test.h"

/* Written out from the kernel's source, not from the table. */
static const struct {
	enum devmem_call call;
	int errors[16]; /* up to 0 */
} known[] = {
	{DEVMEM_CALL_BIND_RX,
	 {EPERM, ENODEV, EOPNOTSUPP, EINVAL, ERANGE, EBADF, EEXIST, EBUSY, ENODATA, E2BIG, ENOMEM, 524, ENOSYS,
	  ETIMEDOUT}},
	{DEVMEM_CALL_BIND_TX, {ENODEV, EOPNOTSUPP, EBADF, EINVAL, ENOMEM, 524, ENOSYS, ETIMEDOUT}},
	{DEVMEM_CALL_RECVMSG, {525, EFAULT, ENODEV, ENOMEM}},
	{DEVMEM_CALL_DONTNEED, {EINVAL, EFAULT, EBADF, EOPNOTSUPP, ENOPROTOOPT}},
	{DEVMEM_CALL_SENDMSG, {EINVAL, ENODEV, EHOSTUNREACH, EFAULT, ENOBUFS, EOPNOTSUPP}},
	{DEVMEM_CALL_RULE, {EPERM, EOPNOTSUPP, ENOSPC, EEXIST, EINVAL}},
	{DEVMEM_CALL_RINGS, {EPERM, EOPNOTSUPP, EINVAL}},
};

TEST(check_table)
{
	size_t n = sizeof(table) / sizeof(table[0]), expected = 0;
	const char *text;

	EACH_ROW (i, known)
		for (const int *e = known[i].errors; *e; e++) {
			const struct devmem_error *d = devmem_error_of(known[i].call, *e);

			expected++;
			CHECK_EQ(d->call, known[i].call);
			CHECK_EQ(d->error, *e);
			CHECK(*d->reason && *d->advice);
			CHECK(d->result > GANTRY_AGAIN && d->result < GANTRY_RESULT_COUNT);
			text = devmem_error_text(known[i].call, *e, "");
			CHECK_HAS(text, d->reason);
			CHECK_HAS(text, call_names[known[i].call]);
		}
	CHECK_EQ(n, expected); /* and nothing else */
	for (size_t i = 0; i < n; i++)
		for (size_t k = i + 1; k < n; k++)
			CHECK(table[i].call != table[k].call || table[i].error != table[k].error);
}

TEST(check_text)
{
	static char said[1024];

	CHECK_HAS(devmem_strerror(524), "(524)");
	CHECK(!strstr(devmem_strerror(524), "Unknown"));
	CHECK_HAS(devmem_strerror(525), "(525)");
	CHECK(!strstr(devmem_strerror(525), "Unknown"));
	CHECK_HAS(devmem_strerror(EPERM), strerror(EPERM));
	CHECK_HAS(devmem_error_text(DEVMEM_CALL_BIND_RX, EINVAL, "tcp-data-split is disabled"),
		  "kernel message: tcp-data-split is disabled");
	/* Unknown ones: still said, as a system call that failed. */
	CHECK_EQ(devmem_error_of(DEVMEM_CALL_BIND_RX, EILSEQ)->result, GANTRY_ERR_SYSTEM);
	CHECK_STR(devmem_error_of(DEVMEM_CALL_RECVMSG, EAGAIN)->reason, "");
	CHECK_HAS(devmem_error_text(DEVMEM_CALL_BIND_RX, EILSEQ, ""), strerror(EILSEQ));
	CHECK_EQ(devmem_error_of(DEVMEM_CALL_BIND_RX, EPERM)->result, GANTRY_ERR_CONFIG);
	CHECK_EQ(devmem_error_of(DEVMEM_CALL_BIND_RX, 524)->result, GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(devmem_error_of(DEVMEM_CALL_SENDMSG, EHOSTUNREACH)->result, GANTRY_ERR_UNREACHABLE);
	/* Longer than there is room for: cut. */
	memset(said, 'a', sizeof(said) - 1);
	CHECK_EQ(strlen(devmem_error_text(DEVMEM_CALL_BIND_RX, EOPNOTSUPP, said)), 511);
}

/* The page for people has a line for each. */
TEST(check_page)
{
	const char *source = getenv("SOURCE_DIR");
	char path[4096], line[2048], want[64];
	FILE *f;

	snprintf(path, sizeof(path), "%s/docs/devmem.md", source ? source : ".");
	f = fopen(path, "re");
	if (!f) {
		printf("no %s here\n", path);
		return;
	}
	EACH_ROW (i, table) {
		int found = 0;

		snprintf(want, sizeof(want), "| %s | %d", call_names[table[i].call], table[i].error);
		rewind(f);
		while (!found && fgets(line, sizeof(line), f))
			found = strncmp(line, want, strlen(want)) == 0 && line[strlen(want)] == ' ';
		if (!found)
			TEST_FAIL("docs/devmem.md has no line \"%s ...\"", want);
	}
	fclose(f);
}
