/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a communicator that hang in various ways: threads of this process, or processes that can be killed. */
#ifndef GANTRY_TESTS_STALL_WORLD_H
#define GANTRY_TESTS_STALL_WORLD_H

#include <sys/stat.h>

#include "comm_world.h"
#include "stall/stall_set.h"

enum { WORLD_RANKS = 3, WORLD_BYTES = 100000 };

/* A folder of its own for the reports. */
static inline void world_dir(struct world *w)
{
	snprintf(w->dir, sizeof(w->dir), "/tmp/gantry-test-stall-XXXXXX");
	CHECK(mkdtemp(w->dir) != NULL);
	set_params("GANTRY_STALL_DIR", w->dir);
}

/* Not one that is being written. */
static inline int world_is_report(const char *name)
{
	size_t n = strlen(name);

	return n > 6 && !strcmp(name + n - 6, ".jsonl");
}

static inline int world_files(const struct world *w, int unlink_them)
{
	DIR *d = opendir(w->dir);
	char path[512];
	int n = 0;

	CHECK(d != NULL);
	for (struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		n += world_is_report(e->d_name);
		snprintf(path, sizeof(path), "%s/%s", w->dir, e->d_name);
		if (unlink_them)
			CHECK_EQ(unlink(path), 0);
	}
	closedir(d);
	return n;
}

static inline void world_clean(struct world *w)
{
	world_files(w, 1);
	CHECK_EQ(rmdir(w->dir), 0);
}

/* Until there are n reports. */
static inline void world_wait_files(const struct world *w, int n)
{
	UNTIL(world_files(w, 0) >= n);
	CHECK_EQ(world_files(w, 0), n);
	sleep_ms(50); /* nobody else writes one */
	CHECK_EQ(world_files(w, 0), n);
}

/* All reports of the folder, judged. */
static inline void world_judge(const struct world *w, struct stall_verdict *ret)
{
	struct stall_set set = {0};
	DIR *d = opendir(w->dir);
	char path[512], why[1024];

	CHECK(d != NULL);
	for (struct dirent *e; (e = readdir(d));) {
		if (!world_is_report(e->d_name))
			continue;
		snprintf(path, sizeof(path), "%s/%s", w->dir, e->d_name);
		stall_next_file(&set);
		if (json_read_lines(path, stall_take, &set, why, sizeof(why)))
			TEST_FAIL("%s", why);
	}
	closedir(d);
	CHECK_EQ(set.ncomms, 1);
	stall_judge(&set, 0, ret);
	stall_print_waits(&set.comms[0], stdout);
	printf("%s: %s (%d of %d)\n", ret->cause, ret->text, ret->votes, ret->reports);
	fflush(stdout);
	stall_free(&set);
}

static inline void world_move(int send, char *buf, int peer, struct gantry_comm *comm, struct gantry_stream *s)
{
	if (send)
		CHECK_OK(gantry_send(buf, WORLD_BYTES, GANTRY_TYPE_UINT8, peer, comm, s));
	else
		CHECK_OK(gantry_recv(buf, WORLD_BYTES, GANTRY_TYPE_UINT8, peer, comm, s));
}

/* Everybody with everybody, once: connected, nothing left in flight. */
static inline void world_warm_up(int rank, char *buf, struct gantry_comm *comm, struct gantry_device *dev,
				 struct gantry_stream *s)
{
	CHECK_OK(gantry_group_start());
	for (int p = 0; p < WORLD_RANKS; p++) {
		if (p == rank)
			continue;
		world_move(1, buf, p, comm, s);
		world_move(0, buf + WORLD_BYTES, p, comm, s);
	}
	CHECK_OK(gantry_group_end());
	CHECK_OK(gantry_stream_sync(dev, s));
}

#endif
