/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC with faults that can be switched on (EMU_FAULT in emulated.h), as tests have it.
 *
 * An invariant is one function that checks it, on a NIC without faults here and with each of its faults in a child: the
 * child must end because that very check has failed.
 */
#ifndef GANTRY_TESTS_EMULATED_FAULTS_H
#define GANTRY_TESTS_EMULATED_FAULTS_H

#include "device/device.h"
#include "emulated_util.h"
#include "net/emulated/emulated.h"

static inline void must_fail(int n, void (*check)(void), int fault)
{
	char said[512] = "", want[32];
	ssize_t len;
	int p[2], status;
	pid_t child;

	CHECK(!pipe(p));
	child = child_fork();
	if (!child) {
		dup2(p[1], 2);
		close(p[0]);
		close(p[1]);
		logs_forget();
		emu_fault = fault;
		check();
		_exit(0);
	}
	close(p[1]);
	len = read(p[0], said, sizeof(said) - 1);
	said[len > 0 ? len : 0] = 0;
	while (read(p[0], want, sizeof(want)) > 0)
		;
	close(p[0]);
	CHECK_EQ(waitpid(child, &status, 0), child);
	snprintf(want, sizeof(want), "(invariant %d)", n);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || !strstr(said, want))
		TEST_FAIL("fault %d was not found (status 0x%x): %s", fault, status, said);
	said[strcspn(said, "\n")] = 0;
	printf("  fault %d: %s\n", fault, said);
	fflush(stdout);
}

/* faults: ended by 0. */
static inline void check_invariant(int n, const char *what, void (*check)(void), const int *faults)
{
	static char part[32];

	printf("%d. %s\n", n, what);
	logs_keep();
	snprintf(part, sizeof(part), "(invariant %d)", n);
	test_part(part);
	emu_fault = 0;
	check();
	for (; *faults; faults++)
		must_fail(n, check, *faults);
}
#define FAULTS(...) ((const int[]){__VA_ARGS__, 0})

/* What most checks need: memory of some pages, one binding, two flows. */
struct world {
	struct memory m;
	struct devmem_binding *b;
	struct pair p[2];
	struct devmem_flow *f[2];
	uint32_t page;
};

static inline void world_open(struct world *w, uint64_t pages)
{
	w->page = (uint32_t)sysconf(_SC_PAGESIZE);
	memory_open(&w->m, pages * w->page);
	CHECK_OK(emulated_ops.bind(&w->m.m, "emu0", &w->b));
	for (uint32_t i = 0; i < 2; i++) {
		pair_open(&w->p[i], i + 1);
		CHECK_OK(emulated_ops.attach(w->b, w->p[i].rx, &w->f[i]));
	}
}

static inline void world_close(struct world *w)
{
	for (int i = 0; i < 2; i++) {
		emulated_ops.detach(w->f[i]);
		pair_close(&w->p[i]);
	}
	emulated_ops.unbind(w->b);
	memory_close(&w->m);
}

/* A receive that must bring something, checked. The stream moves on. */
static inline struct got *must_get(struct world *w, int i)
{
	struct got *g = receive_all(w->f[i]);

	check_got(w->f[i], &w->p[i], g, w->p[i].got);
	w->p[i].got += (uint64_t)g->bytes;
	return g;
}

static inline int is_empty(struct world *w, int i)
{
	return receive_all(w->f[i])->bytes == -1 && errno == EAGAIN;
}
static inline void must_be_empty(struct world *w, int i)
{
	CHECK(is_empty(w, i));
}

#endif
