/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on the tables of GIN and RMA, on connections, memory and their ends, and the list of all rules on them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "check/check_gin.h"

enum {
	MEMORIES = 6,
	REGISTERED = 8, /* beside traffic */
	KEPT = 2,	/* of them */
	HELLO_WORD = 3,
	BEGUN = 8, /* puts in flight when the collComm is closed */
	CLOSE_MS = 5000,
	MISSING_S = 20,
	COMM_MESSAGES = 30,
};

static struct gin_table table;
static struct gin_world worlds[GIN_COMMS];

/* ---- tables ---- */

static void check_missing(struct check_side *s, const struct gin_table *t)
{
	static const struct {
		unsigned bit;
		const char *name;
	} entries[] = {{GIN_NO_PROPERTIES, "getProperties"},
		       {GIN_NO_CONNECT, "connect"},
		       {GIN_NO_CREATE, "createContext"},
		       {GIN_NO_REG, "regMrSym"},
		       {GIN_NO_PUT, "iput"},
		       {GIN_NO_PUT_SIGNAL, "iputSignal"},
		       {GIN_NO_PROMISES, "getRmaProperties"}};

	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
		if (t->missing & entries[i].bit)
			check_fail(s, "%s is NULL, and NCCL calls it without looking", entries[i].name);
}

static void rule_table(struct check_side *s)
{
	struct gin_properties p = {0};
	struct gin_table *t = &table;

	gin_init(s, worlds, t);
	check_missing(s, t);
	const struct {
		int there;
		const char *name;
	} entries[] = {{t->listen != NULL, "listen"},
		       {t->dereg != NULL, "deregMrSym"},
		       {t->destroy || !t->create, "destroyContext"},
		       {t->close_coll != NULL, "closeColl"},
		       {t->close_listen != NULL, "closeListen"},
		       {t->test != NULL, "test"},
		       {t->finalize != NULL, "finalize"}};

	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
		if (!entries[i].there)
			check_fail(s, "%s is NULL, and NCCL calls it without looking", entries[i].name);
	GIN_MUST(worlds->rank, GIN_JOB, "getProperties", t->properties(t->raw, 0, &p));
	if (p.ptr_support & NCCL_PTR_DMABUF && t->missing & GIN_NO_DMABUF)
		check_fail(s, "ptrSupport is 0x%x, with DMABUF, and regMrSymDmaBuf is NULL", p.ptr_support);
	gin_finalize(worlds);
	check_note(s, "%s is named \"%s\"%s", s->symbol, t->name ? t->name : "",
		   t->create && !t->get ? "; iget is NULL, and programs that get fail" : "");
}

static void check_device(struct check_side *s, int dev, const struct gin_properties *p)
{
	bool rma = strstr(s->symbol, "Rma") != NULL;

	if (check_unwritten(&p->name, sizeof(p->name)) || !p->name)
		check_fail(s, "device %d: getProperties wrote no name", dev);
	if (check_unwritten(&p->ptr_support, sizeof(p->ptr_support)) || !(p->ptr_support & 7))
		check_fail(s, "device %d: ptrSupport is 0x%x, no type of memory", dev, p->ptr_support);
	if (p->type < NCCL_NET_DEVICE_GIN_PROXY || check_unwritten(&p->type, sizeof(p->type)))
		check_fail(s, "device %d: netDeviceType is %d, and that of GIN's proxy %d", dev, (int)p->type,
			   (int)NCCL_NET_DEVICE_GIN_PROXY);
	if (rma && p->type != NCCL_NET_DEVICE_GIN_PROXY)
		check_fail(s, "device %d: netDeviceType is %d, and NCCL takes %d for RMA alone", dev, (int)p->type,
			   (int)NCCL_NET_DEVICE_GIN_PROXY);
	if (p->max_recvs < 1 || p->max_recvs & (p->max_recvs - 1) || check_unwritten(&p->max_recvs, sizeof(int)))
		check_fail(s, "device %d: maxRecvs is %d, not a power of two: NCCL masks the number of a request", dev,
			   p->max_recvs);
}

/* At v11 NCCL hands listen the number of a net device. */
static void rule_properties(struct check_side *s)
{
	int net_devices = s->devices;

	gin_init(s, worlds, &table);
	for (int dev = 0; dev < s->devices; dev++) {
		struct gin_properties p;

		GIN_MUST(worlds->rank, GIN_JOB, "getProperties", table.properties(table.raw, dev, &p));
		check_device(s, dev, &p);
	}
	if (s->net && s->version < GIN_V_CONTEXTS && s->devices < net_devices)
		check_fail(s, "%d devices, and the network has %d: NCCL 2.28 uses the network's numbers", s->devices,
			   net_devices);
	gin_finalize(worlds);
	check_note(s, "%d device%s", s->devices, s->devices == 1 ? "" : "s");
	s->devices = net_devices;
}

/* ---- connections ---- */

/* Each rank to each: everything is connected. */
static void hello_body(struct gin_rank *r)
{
	uint64_t before = gin_signal(r, HELLO_WORD);

	gin_barrier(r);
	for (int to = 0; to < GIN_RANKS; to++) {
		struct gin_request q = gin_only(r, to, HELLO_WORD, NCCL_NET_SIGNAL_OP_INC, 1);

		gin_do(r, &q);
	}
	gin_settle(r, HELLO_WORD, before + GIN_RANKS);
}

static void check_promises(struct gin_rank *r)
{
	bool flushes = false;

	if (table.promises)
		GIN_MUST(r, GIN_JOB, "getRmaProperties", table.promises(table.raw, r->coll, &flushes));
}

static void rule_connect(struct check_side *s)
{
	int n = s->version < GIN_V_CONTEXTS ? 2 : 1;

	gin_init_data(s, worlds, &table);
	gin_beside(&worlds[1], worlds, 1);
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < GIN_PER && i; k++)
			worlds[i].rank[k].connect_ctx = NULL; /* as in every communicator of NCCL 2.28 but the first */
		check_phase(s, "%s", i ? "connecting with NULL as context" : "connecting, the last rank is late");
		gin_connect(&worlds[i], i ? 0 : GIN_LATE_MS);
		check_promises(worlds[i].rank);
		gin_run(&worlds[i], hello_body, NULL);
	}
	for (int i = n - 1; i >= 0; i--)
		gin_close(&worlds[i]);
	gin_finalize(worlds);
	check_note(s, "%d ranks, one of them %d ms late%s", GIN_RANKS, GIN_LATE_MS,
		   n > 1 ? "; and with NULL as context" : "");
}

static void *try_connect(void *arg)
{
	struct gin_rank *r = arg;
	const struct gin_table *t = r->w->t;
	void *handles[GIN_RANKS];

	for (int i = 0; i < GIN_RANKS; i++)
		handles[i] = r->w->handles[i];
	r->result = GIN_CALL(r, GIN_JOB, "connect",
			     t->connect(t->raw, r->connect_ctx, handles, r->rank, r->listen, &r->coll));
	store_release(&r->returned, 1);
	return NULL;
}

/* Until connect has returned; a plugin may wait for ever, as NCCL's kernels would. */
static void await_connect(struct check_side *s, struct gin_rank *r)
{
	uint64_t since = gantry_now_ns(), spare = 1000 * (uint64_t)CHECK_MS, most = MISSING_S * spare;

	while (!load_acquire(&r->returned)) {
		if (check_left_ns(s) < spare || gantry_now_ns() - since > most)
			check_skip(s, "after %.0f s connect still waits for a rank that does not come",
				   (double)(gantry_now_ns() - since) / 1e9);
		check_sleep_ms(10);
	}
	if (r->result == ncclSuccess)
		check_fail(s, "connect of rank %d succeeded, and rank %d never connected", r->rank, GIN_RANKS - 1);
}

static void rule_missing(struct check_side *s)
{
	uint64_t since;

	gin_init_data(s, worlds, &table);
	gin_listen(worlds);
	check_phase(s, "connecting, and the last rank does not");
	since = gantry_now_ns();
	for (int i = 0; i < GIN_PER - s->role; i++)
		if (pthread_create(&worlds->rank[i].thread, NULL, try_connect, &worlds->rank[i]) != 0)
			check_fail(s, "cannot start a thread: %s", strerror(errno));
	for (int i = 0; i < GIN_PER - s->role; i++)
		await_connect(s, &worlds->rank[i]);
	check_note(s, "connect gave %d after %.1f s", (int)worlds->rank[0].result,
		   (double)(gantry_now_ns() - since) / 1e9);
	for (int i = 0; i < GIN_PER; i++)
		GIN_MUST(&worlds->rank[i], GIN_JOB, "closeListen", table.close_listen(worlds->rank[i].listen));
	check_meet(s);
	gin_finalize(worlds);
}

/* ---- memory ---- */

static struct gin_memory memories[GIN_PER][REGISTERED];
static const size_t memory_sizes[REGISTERED] = {8, 4096, 65536, 1 << 20, 100003, 64, 300000, 5000};

static struct gin_memory *memory_of(const struct gin_rank *r, int i)
{
	return &memories[r->rank % GIN_PER][i];
}

static void check_handle(struct gin_rank *r, const void *handle, const char *name)
{
	if ((uintptr_t)handle >> 63)
		check_fail(r->w->s, "regMrSym of rank %d gave %s %p: kernels have 63 bits for it", r->rank, name,
			   handle);
}

static void *register_all(void *arg)
{
	struct gin_rank *r = arg;

	for (int i = 0; i < MEMORIES; i++) {
		gin_register(r, memory_of(r, i), memory_sizes[i], 0);
		check_handle(r, memory_of(r, i)->mh, "mhandle");
		check_handle(r, memory_of(r, i)->gh, "ginHandle");
	}
	return NULL;
}

static void *deregister_all(void *arg)
{
	struct gin_rank *r = arg;

	for (int i = 0; i < REGISTERED; i++)
		if (memory_of(r, i)->arena)
			gin_deregister(r, memory_of(r, i));
	return NULL;
}

/* From each memory that is registered to the same of the next rank: the first half of it to the second. */
static void memory_body(struct gin_rank *r)
{
	int to = (r->rank + 1) % GIN_RANKS, from = (r->rank + GIN_RANKS - 1) % GIN_RANKS, n = 0;
	struct gin_request last = gin_only(r, to, HELLO_WORD, NCCL_NET_SIGNAL_OP_ADD, 1);

	for (int i = 0; i < REGISTERED; i++) {
		struct gin_memory *m = memory_of(r, i);
		struct gin_request q = gin_put(r, to, 0, m->size / 2, m->size / 2);

		if (!m->arena)
			continue;
		q.from = q.to = m->gh;
		check_fill(m->base, m->size / 2, gin_seed(r->w, r->rank, to), (uint64_t)i);
		gin_do(r, &q);
		n++;
	}
	last.value = (uint64_t)n;
	gin_do(r, &last);
	gin_settle(r, HELLO_WORD, (uint64_t)n);
	for (int i = 0; i < REGISTERED; i++) {
		const struct gin_memory *m = memory_of(r, i);
		size_t half = m->size / 2, at = half;

		if (m->arena)
			at = check_compare(m->base + half, half, gin_seed(r->w, from, r->rank), (uint64_t)i);
		if (at < half)
			gin_wrong(r, from, at, half, "is not what was put into that registration");
	}
}

static void rule_handles(struct check_side *s)
{
	gin_open(s, worlds, &table);
	check_phase(s, "registering");
	gin_jobs(worlds, register_all);
	check_note(s, "handles of %d registrations are below 2^63", MEMORIES);
	check_meet(s);
	gin_jobs(worlds, deregister_all);
	gin_end(worlds);
}

static void rule_memory(struct check_side *s)
{
	gin_open(s, worlds, &table);
	check_phase(s, "%d registrations of different sizes", MEMORIES);
	gin_jobs(worlds, register_all);
	check_meet(s);
	gin_run(worlds, memory_body, NULL);
	gin_jobs(worlds, deregister_all);
	gin_end(worlds);
	check_note(s, "%d registrations, the same on all ranks", MEMORIES);
}

/* Ranks register the same in the same order, and deregister when they like. */
static void *register_some(void *arg)
{
	struct gin_rank *r = arg;

	for (int i = 0; i < REGISTERED; i++) {
		gin_register(r, memory_of(r, i), memory_sizes[i], 0);
		if (r->rank % 2 && i < REGISTERED - KEPT)
			gin_deregister(r, memory_of(r, i));
		check_sleep_ms(5);
	}
	for (int i = 0; i < REGISTERED - KEPT; i++)
		if (memory_of(r, i)->arena)
			gin_deregister(r, memory_of(r, i));
	return NULL;
}

static void rule_register(struct check_side *s)
{
	struct gin_stream how = {.count = COMM_MESSAGES, .contexts = 1};

	gin_open(s, worlds, &table);
	check_phase(s, "registering beside traffic");
	gin_start(worlds, gin_stream, &how);
	gin_jobs(worlds, register_some);
	gin_join(worlds);
	check_phase(s, "puts to what was registered last");
	gin_run(worlds, memory_body, NULL);
	gin_jobs(worlds, deregister_all);
	gin_end(worlds);
	check_note(s, "%d registrations beside traffic, %d of them deregistered at different times", REGISTERED,
		   REGISTERED - KEPT);
}

/* ---- collComms and their ends ---- */

static void rule_comms(struct check_side *s)
{
	struct gin_stream how = {.count = COMM_MESSAGES, .contexts = 1};

	gin_init_data(s, worlds, &table);
	gin_beside(&worlds[1], worlds, 1);
	for (int i = 0; i < GIN_COMMS; i++)
		gin_connect(&worlds[i], 0);
	check_phase(s, "messages in %d collComms", GIN_COMMS);
	for (int i = 0; i < GIN_COMMS; i++)
		gin_start(&worlds[i], gin_stream, &how);
	for (int i = 0; i < GIN_COMMS; i++)
		gin_join(&worlds[i]);
	gin_start(&worlds[1], gin_stream, &how);
	gin_close(worlds);
	gin_join(&worlds[1]);
	gin_close(&worlds[1]);
	gin_finalize(worlds);
	check_note(s, "%d collComms of the same ranks; one closes while the other has traffic", GIN_COMMS);
}

/* A has puts in flight to B's ranks, and B's to A's, when B closes; then A. */
static void rule_close(struct check_side *s)
{
	gin_open(s, worlds, &table);
	gin_run(worlds, hello_body, NULL);
	for (int i = 0; i < GIN_PER; i++)
		for (int k = 0; k < BEGUN; k++) {
			struct gin_rank *r = &worlds->rank[i];
			struct gin_request q =
				gin_put(r, (r->rank + GIN_PER) % GIN_RANKS, 0, gin_slot(r->rank), 1 << 20);

			gin_post(r, &q);
		}
	check_meet(s);
	if (s->role == 1)
		gin_close(worlds);
	check_meet(s);
	check_phase(s, "closing when the other ranks are gone");
	if (s->role == 0)
		gin_close(worlds);
	gin_finalize(worlds);
	check_note(s, "closed with %d puts in flight, half of the ranks gone", BEGUN);
}

/* Puts to a rank that is dead until one of the calls gives an error. */
static void *put_to_dead(void *arg)
{
	struct gin_rank *r = arg;
	const struct gin_table *t = r->w->t;
	struct gin_request q = gin_put(r, GIN_RANKS - 1, 0, gin_slot(r->rank), 4096);
	void *open[GIN_OPEN] = {0};
	int done = 0;

	for (int i = 0; r->result == ncclSuccess; i = (i + 1) % GIN_OPEN) {
		int now = 0;

		if (open[i])
			r->result = GIN_CALL(r, GIN_PROGRESS, "test", t->test(r->coll, open[i], &now));
		else
			r->result = GIN_CALL(r, GIN_PROGRESS, "iput",
					     t->put(t->raw, t->create ? r->gin : r->coll, &q, &open[i]));
		done += now;
		open[i] = now ? NULL : open[i];
		gin_progress(r);
		if (!check_left_ns(r->w->s))
			check_fail(r->w->s, "rank %d: %d puts to a dead rank were done, and no call gives an error",
				   r->rank, done);
		if (i == GIN_OPEN - 1)
			check_sleep_ms(1);
	}
	return NULL;
}

static void rule_death(struct check_side *s)
{
	pid_t pid = getpid();
	uint64_t since;

	gin_open(s, worlds, &table);
	gin_run(worlds, hello_body, NULL);
	if (s->role == 1) {
		check_tell(s, &pid, sizeof(pid));
		check_phase(s, "waiting to be killed");
		for (;;)
			pause();
	}
	check_hear(s, &pid, sizeof(pid));
	s->shared->expect_death = 1;
	check_phase(s, "puts to ranks that are dead");
	kill(pid, SIGKILL);
	since = gantry_now_ns();
	gin_threads(worlds, put_to_dead);
	check_note(s, "errors %d and %d, %.0f ms after the other ranks' death", (int)worlds->rank[0].result,
		   (int)worlds->rank[1].result, (double)(gantry_now_ns() - since) / CHECK_MS);
	gin_end(worlds);
}

static void rule_finalize(struct check_side *s)
{
	for (int i = 0; i < 2; i++) {
		gin_open(s, worlds, &table);
		check_phase(s, "communicator %d", i);
		gin_run(worlds, hello_body, NULL);
		gin_close(worlds);
		if (s->version < GIN_V_CONTEXTS)
			GIN_MUST(worlds->rank, GIN_JOB, "finalize", table.finalize(NULL));
		gin_finalize(worlds);
	}
	check_note(s, "two communicators, one after the other%s",
		   s->version < GIN_V_CONTEXTS ? "; finalize takes NULL" : "");
}

/* clang-format off */
#define RULES(kind) \
	{kind "-table", "after init no entry is NULL that NCCL calls without looking", rule_table, CHECK_ALONE, 0}, \
	{kind "-properties", "devices are for NCCL's proxy, and maxRecvs is a power of two", rule_properties, CHECK_ALONE, 0}, \
	{kind "-connect", "connect waits for a rank that is late", rule_connect, 0, 0}, \
	{kind "-missing", "connect does not succeed without a rank", rule_missing, 0, 0}, \
	{kind "-handles", "handles of memory are below 2^63", rule_handles, 0, 0}, \
	{kind "-memory", "the n-th registration of each rank is the same memory", rule_memory, 0, 0}, \
	{kind "-put", "puts of all sizes arrive, byte for byte, and nothing around them is written", gin_rule_put, 0, 0}, \
	{kind "-order", "a signal comes after its put and all puts before it", gin_rule_order, 0, 0}, \
	{kind "-source", "when a request is done its source may change", gin_rule_source, 0, 0}, \
	{kind "-signals", "signals add 1, or their value, once", gin_rule_signals, 0, 0}, \
	{kind "-shared", "additions of several ranks to a word all count", gin_rule_shared, 0, 0}, \
	{kind "-reset", "a word that its owner sets to 0 counts from 0", gin_rule_reset, 0, 0}, \
	{kind "-self", "a rank may put to itself", gin_rule_self, 0, 0}, \
	{kind "-in-flight", "as many requests are open as NCCL has, tested in any order", gin_rule_in_flight, 0, 0}, \
	{kind "-nonblocking", "no call waits for a rank that makes no progress", gin_rule_nonblocking, 0, 2000}, \
	{kind "-contexts", "contexts of a collComm move data side by side", gin_rule_contexts, 0, 0}, \
	{kind "-get", "gets bring the right bytes", gin_rule_get, 0, 0}, \
	{kind "-flush", "behind gets and a flush the bytes are there", gin_rule_flush, 0, 0}, \
	{kind "-register", "memory is registered and deregistered beside traffic", rule_register, 0, 0}, \
	{kind "-comms", "collComms of a process do not mix, and one ends alone", rule_comms, 0, 0}, \
	{kind "-close", "closing returns, with puts in flight and peers gone", rule_close, 0, CLOSE_MS}, \
	{kind "-death", "puts to a rank that was killed end in an error", rule_death, 0, 0}, \
	{kind "-finalize", "communicators can follow each other", rule_finalize, 0, 0}, \
	{0},
/* clang-format on */
const struct check_rule check_rules_gin[] = {RULES("gin")};
const struct check_rule check_rules_rma[] = {RULES("rma")};
