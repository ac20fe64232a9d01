#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf_launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"

/* In the order in which they are asked: Open MPI sets PMI's variables too, and a job of Slurm may run mpirun. */
static const struct {
	const char *name, *rank, *size, *also;
} launchers[] = {
	{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL},
	{"mpiexec", "PMI_RANK", "PMI_SIZE", NULL},
	{"srun", "SLURM_PROCID", "SLURM_NTASKS", NULL},
	/* These names are too common to be believed alone. */
	{"torchrun", "RANK", "WORLD_SIZE", "MASTER_ADDR"},
};

const char *perf_launcher_find(int *ret_rank, int *ret_size)
{
	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
		const char *rank = getenv(launchers[i].rank), *size = getenv(launchers[i].size);
		int64_t r, n;

		if (!rank || !size || (launchers[i].also && !getenv(launchers[i].also)))
			continue;
		if (gantry_parse_int(rank, &r) != GANTRY_OK || gantry_parse_int(size, &n) != GANTRY_OK || r < 0 ||
		    r >= n || n < 2 || n > 1 << 20)
			continue;
		*ret_rank = (int)r;
		*ret_size = (int)n;
		return launchers[i].name;
	}
	return NULL;
}

/* One line of text: the head, then two digits for each byte. */
static const char head[] = "gantry-id ";
enum { HEAD = sizeof(head) - 1, DIGITS = 2 * sizeof(struct gantry_unique_id), LINE = HEAD + DIGITS + 1 };

gantry_result perf_id_publish(const char *path, const struct gantry_unique_id *id)
{
	gantry_result r = GANTRY_OK;
	char text[LINE + 1], tmp[4096];
	int fd = -1;

	snprintf(text, sizeof(text), "%s", head);
	for (size_t i = 0; i < sizeof(id->bytes); i++)
		snprintf(text + HEAD + 2 * i, 3, "%02x", id->bytes[i]);
	text[LINE - 1] = '\n';
	if ((size_t)snprintf(tmp, sizeof(tmp), "%s.%ld", path, (long)getpid()) >= sizeof(tmp))
		FAIL(GANTRY_ERR_INVALID, "the name of the id file is too long");
	unlink(path); /* what an earlier run left */
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, text, LINE) != LINE || rename(tmp, path)) {
		int error = errno;

		if (fd >= 0)
			unlink(tmp);
		FAIL(GANTRY_ERR_SYSTEM, "id file %s: %s", path, strerror(error));
	}
out:
	if (fd >= 0)
		close(fd);
	return r;
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int read_id(const char *path, struct gantry_unique_id *ret_id)
{
	char text[LINE];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));

	if (fd >= 0)
		close(fd);
	if (n != LINE || memcmp(text, head, HEAD))
		return -1;
	for (size_t i = 0; i < sizeof(ret_id->bytes); i++) {
		int high = digit(text[HEAD + 2 * i]), low = digit(text[HEAD + 2 * i + 1]);

		if (high < 0 || low < 0)
			return -1;
		ret_id->bytes[i] = (unsigned char)(high << 4 | low);
	}
	return 0;
}

gantry_result perf_id_await(const char *path, uint64_t timeout_ns, struct gantry_unique_id *ret_id)
{
	gantry_result r = GANTRY_OK;
	const struct timespec nap = {0, 20000000};
	uint64_t until = gantry_now_ns() + timeout_ns;

	while (read_id(path, ret_id) < 0) {
		if (gantry_now_ns() > until)
			FAIL(GANTRY_ERR_TIMEOUT, "rank 0 has not written the id file %s within %.0f s", path,
			     (double)timeout_ns / 1e9);
		nanosleep(&nap, NULL);
	}
out:
	return r;
}
