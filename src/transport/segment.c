/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: made, mapped, found. How they get to other processes is in handover.c. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "transport/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/param_text.h"

static void destroy(struct gantry_shared *shared)
{
	struct gantry_segment *s = gantry_container(shared, struct gantry_segment, shared);

	if (s->base && munmap(s->base, s->size) < 0)
		LOG_WARN(COMM, "munmap of a shared segment of %zu bytes: %s", s->size, strerror(errno));
	gantry_segment_close_file(s);
	free(s);
}

/* Maps s->fd. Enters the table last, so a failure before leaves nothing behind. */
static gantry_result map(struct gantry_segment *s, int fd)
{
	gantry_result r = GANTRY_OK;
	void *at = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		FAIL(GANTRY_ERR_NOMEM, "mmap of a shared segment of %s: %s", SIZE_TEXT(s->size), strerror(errno));
	s->base = at;
	TRY(gantry_shared_init(&s->shared, destroy));
out:
	return r;
}

static struct gantry_segment *new_segment(size_t size)
{
	struct gantry_segment *s = calloc(1, sizeof(*s));

	if (s) {
		s->fd = -1;
		s->size = size;
	}
	return s;
}

/*
 * Pages come when they are first used, by whichever end: the policy belongs to the file and so holds for both. Without
 * it (a kernel without NUMA, a container that forbids it) they lie where they are used first.
 */
static void prefer_own_node(const struct gantry_segment *s)
{
	unsigned long nodes[16] = {0};
	unsigned cpu, node;

	if (getcpu(&cpu, &node) || node >= 8 * sizeof(nodes))
		return;
	nodes[node / (8 * sizeof(*nodes))] = 1ul << (node % (8 * sizeof(*nodes)));
	if (syscall(SYS_mbind, s->base, s->size, MPOL_PREFERRED, nodes, 8 * sizeof(nodes), 0))
		LOG_TRACE(COMM, "a shared segment on node %u: %s", node, strerror(errno));
}

gantry_result gantry_segment_create(size_t size, struct gantry_segment **ret_segment)
{
	gantry_result r = GANTRY_OK;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct gantry_segment *s = new_segment((size + page - 1) & ~(page - 1));
	char advice[GANTRY_ADVICE_TEXT];

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a shared segment");
	s->fd = memfd_create("gantry-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (s->fd < 0)
		FAIL(errno == EMFILE || errno == ENFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM,
		     "memfd_create for a shared segment: %s%s%s", strerror(errno), errno == EMFILE ? "; " : "",
		     errno == EMFILE ? gantry_nofile_advice(advice) : "");
	if (ftruncate(s->fd, (off_t)s->size) < 0)
		FAIL(GANTRY_ERR_NOMEM, "ftruncate of a shared segment to %s: %s", SIZE_TEXT(s->size), strerror(errno));
	if (fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		FAIL(GANTRY_ERR_SYSTEM, "sealing a shared segment: %s", strerror(errno));
	TRY(map(s, s->fd));
	prefer_own_node(s);
	*ret_segment = s;
	s = NULL;
out:
	if (s)
		destroy(&s->shared);
	return r;
}

gantry_result gantry_segment_map(int fd, size_t size, struct gantry_segment **ret_segment)
{
	gantry_result r = GANTRY_OK;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct gantry_segment *s = new_segment((size + page - 1) & ~(page - 1));
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a shared segment");
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		FAIL(GANTRY_ERR_PROTOCOL, "the peer's shared segment could shrink while it is used");
	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size != s->size)
		FAIL(GANTRY_ERR_PROTOCOL, "the peer's shared segment has not the %zu bytes that were agreed", s->size);
	TRY(map(s, fd));
	*ret_segment = s;
	s = NULL;
out:
	if (s)
		destroy(&s->shared);
	return r;
}

gantry_result gantry_segment_find(const struct gantry_token *token, struct gantry_segment **ret_segment)
{
	gantry_result r = GANTRY_OK;
	struct gantry_shared *shared = NULL;

	r = gantry_shared_find(token, destroy, 1, &shared);
	if (r == GANTRY_ERR_PEER_LOST)
		FAIL(r, "the other end of a connection within this process is gone");
	if (r == GANTRY_OK)
		*ret_segment = gantry_container(shared, struct gantry_segment, shared);
out:
	return r;
}

void gantry_segment_close_file(struct gantry_segment *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

void gantry_segment_put(struct gantry_segment *s)
{
	if (s)
		gantry_shared_put(&s->shared);
}
