/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process of a rule, from inside: the service thread (which is the main
 * thread), the progress thread that runs the rule, the line to the other
 * process, and the words in which a rule reports.
 */
#include "check/check.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"

enum { LATE_MS = 500, SLOW_CALLS_MAX = 3, WAIT_MS = 10, WAIT_CALLS = 6, WAITS_MAX = 20, CALLS_PER_WAIT = 400 };

void check_end(struct check_side *s, enum check_verdict v, int timed, const char *fmt, ...)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	int none = 0;
	va_list ap;

	pthread_mutex_lock(&once); /* never unlocked: the process ends here, with the first thread's words */
	va_start(ap, fmt);
	vsnprintf(s->me->detail, CHECK_DETAIL, fmt, ap);
	va_end(ap);
	store_release(&s->me->verdict, v);
	if (v == CHECK_FAIL && cas_acq_rel(&s->shared->first_fail, &none, 1 + s->role))
		store_release(&s->shared->timed, timed || !check_left_ns(s));
	_exit(CHECK_EXIT_SAID);
}

void check_note(struct check_side *s, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s->me->detail, CHECK_DETAIL, fmt, ap);
	va_end(ap);
}

void check_phase(struct check_side *s, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s->me->phase, sizeof(s->me->phase), fmt, ap);
	va_end(ap);
}

void check_sleep_ms(unsigned ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * CHECK_MS};

	while (nanosleep(&t, &t) != 0 && errno == EINTR)
		;
}

void *check_alloc(struct check_side *s, size_t n, size_t size)
{
	void *m = calloc(n, size);

	if (!m)
		check_fail(s, "no memory (a limit of this machine)");
	return m;
}

uint64_t check_left_ns(const struct check_side *s)
{
	uint64_t now = gantry_now_ns();

	return now < s->soft_ns ? s->soft_ns - now : 0;
}

uint64_t check_enter(struct check_side *s, enum check_thread thread, const char *call)
{
	uint64_t now = gantry_now_ns();

	store_relaxed(&s->me->call_ns[s->first_thread + (int)thread], now);
	store_release(&s->me->call[s->first_thread + (int)thread], call);
	return now;
}

/*
 * One slow call may be the scheduler's. The same call slow three times is the plugin's, and so are calls of the progress
 * thread, which serves many connections, when most of them take as long as a system call that sleeps.
 */
static void judge_slow(struct check_side *s, enum check_thread thread, const char *call, uint64_t took)
{
	static struct calls {
		const char *call;
		int times, calls, waits;
	} of[CHECK_THREADS];
	struct calls *seen = &of[s->first_thread + (int)thread];

	if (seen->call != call) {
		memset(seen, 0, sizeof(*seen));
		seen->call = call;
	}
	seen->calls++;
	seen->times += took >= s->slow_ns;
	seen->waits += took >= WAIT_MS * (uint64_t)CHECK_MS;
	if (seen->times >= SLOW_CALLS_MAX)
		check_late(s, "%s took %.0f ms (bound %.0f ms, %d times), phase: %s", call, (double)took / CHECK_MS,
			   (double)s->slow_ns / CHECK_MS, seen->times, s->me->phase);
	if (thread == CHECK_PROGRESS && seen->calls >= WAIT_CALLS && seen->waits * 2 > seen->calls)
		check_late(s, "%s waits: %d of %d calls in a row took %d ms and more, phase: %s", call, seen->waits,
			   seen->calls, WAIT_MS, s->me->phase);
}

void check_leave(struct check_side *s, enum check_thread thread, uint64_t since)
{
	const char **entered = &s->me->call[s->first_thread + (int)thread], *call = *entered;
	uint64_t took = gantry_now_ns() - since;

	store_release(entered, NULL);
	if (thread == CHECK_PROGRESS) {
		s->calls++;
		s->waits += took >= 2 * WAIT_MS * (uint64_t)CHECK_MS;
	}
	if (s->slow_ns)
		judge_slow(s, thread, call, took);
}

void check_waits(struct check_side *s, const char *calls)
{
#ifndef GANTRY_SANITIZED /* sanitizers are slow */
	if (s->waits > WAITS_MAX && s->waits > s->calls / CALLS_PER_WAIT)
		check_late(s, "%d of %d calls of %s took %d ms and more", s->waits, s->calls, calls, 2 * WAIT_MS);
#else
	(void)s, (void)calls;
#endif
}

void check_ok(struct check_side *s, gantry_result r, const char *call)
{
	const char *why = gantry_last_error();

	if (r == GANTRY_OK)
		return;
	check_fail(s, "%s returned %s%s%s, phase: %s", call, gantry_result_name(r), *why ? ": " : "", why,
		   s->me->phase);
}

void check_tell(struct check_side *s, const void *data, size_t size)
{
	if (send(s->peer_fd, data, size, MSG_NOSIGNAL) != (ssize_t)size)
		_exit(CHECK_EXIT_PEER_GONE);
}

/* The other process has not spoken: in a call of the plugin, if it is in one. */
static void blame_late(struct check_side *s)
{
	const struct check_status *other = &s->shared->side[!s->role];
	uint64_t now = gantry_now_ns();

	for (int t = 0; t < CHECK_THREADS; t++) {
		const char *call = load_acquire(&other->call[t]);
		uint64_t since = load_relaxed(&other->call_ns[t]);

		if (call && now > since + LATE_MS * (uint64_t)CHECK_MS)
			check_late(s, "%s has not returned after %.1f s in the other process, phase: %s", call,
				   (double)(now - since) / 1e9, other->phase);
	}
	check_late(s, "the other process is late, phase: %s", s->me->phase);
}

void check_hear(struct check_side *s, void *data, size_t size)
{
	struct pollfd p = {.fd = s->peer_fd, .events = POLLIN};
	uint64_t spare_ms = (s->soft_ns - s->start_ns) / CHECK_MS / 32; /* the side that is late should speak first */
	ssize_t got;

	while (poll(&p, 1, (int)(check_left_ns(s) / CHECK_MS + spare_ms)) < 0 && errno == EINTR)
		;
	if (!p.revents)
		blame_late(s);
	got = recv(s->peer_fd, data, size, 0);
	if (got <= 0)
		_exit(CHECK_EXIT_PEER_GONE);
	if (got != (ssize_t)size)
		check_fail(s, "the processes of the rule are out of step (a bug of gantry check), phase: %s",
			   s->me->phase);
}

int check_heard(struct check_side *s)
{
	struct pollfd p = {.fd = s->peer_fd, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

void check_meet(struct check_side *s)
{
	char c = 'm';

	check_tell(s, &c, 1);
	check_hear(s, &c, 1);
}

void check_service_start(struct check_side *s, void (*job)(struct check_side *, void *), void *arg)
{
	pthread_mutex_lock(&s->lock);
	s->job = job;
	s->job_arg = arg;
	s->job_busy = 1;
	pthread_cond_broadcast(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

void check_service_wait(struct check_side *s)
{
	pthread_mutex_lock(&s->lock);
	while (s->job_busy)
		pthread_cond_wait(&s->wake, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

void check_service(struct check_side *s, void (*job)(struct check_side *, void *), void *arg)
{
	check_service_start(s, job, arg);
	check_service_wait(s);
}

static void serve(struct check_side *s)
{
	pthread_mutex_lock(&s->lock);
	while (!s->finished) {
		if (!s->job) {
			pthread_cond_wait(&s->wake, &s->lock);
			continue;
		}
		pthread_mutex_unlock(&s->lock);
		s->job(s, s->job_arg);
		pthread_mutex_lock(&s->lock);
		s->job = NULL;
		s->job_busy = 0;
		pthread_cond_broadcast(&s->wake);
	}
	pthread_mutex_unlock(&s->lock);
}

static void end_service(struct check_side *s)
{
	pthread_mutex_lock(&s->lock);
	s->finished = 1;
	pthread_cond_broadcast(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

static void *progress_main(void *arg)
{
	struct check_side *s = arg;

	s->rule->run(s);
	end_service(s);
	return NULL;
}

static void start_thread(struct check_side *s, pthread_t *ret_thread, void *(*body)(void *))
{
	int error = pthread_create(ret_thread, NULL, body, s);

	if (error)
		check_fail(s, "cannot start a thread: %s", strerror(error));
}

static void *service_main(void *other)
{
	serve(other);
	return NULL;
}

static void *user_main(void *arg)
{
	struct check_side *other = arg;

	other->run(other, other->run_arg);
	return NULL;
}

struct check_side *check_communicator(struct check_side *s, int number)
{
	static struct check_side others[CHECK_COMMUNICATORS];
	struct check_side *other = &others[number];

	*other = *s;
	other->first_thread = number * CHECK_OF_ONE;
	other->calls = other->waits = 0;
	pthread_mutex_init(&other->lock, NULL);
	pthread_cond_init(&other->wake, NULL);
	if (s->version >= 11)
		check_init(other, &other->ctx);
	start_thread(other, &other->service, service_main);
	return other;
}

void check_communicator_start(struct check_side *other, void (*run)(struct check_side *, void *), void *arg)
{
	other->run = run;
	other->run_arg = arg;
	start_thread(other, &other->user, user_main);
}

void check_communicator_wait(struct check_side *other)
{
	pthread_join(other->user, NULL);
}

void check_communicator_end(struct check_side *other)
{
	end_service(other);
	pthread_join(other->service, NULL);
	if (other->version >= 11)
		CHECK_MUST(other, CHECK_SERVICE, "finalize", other->net->ops->finalize(other->net, other->ctx));
}

/*
 * NCCL's profiler, as plugins see it: an event is started with a handle that came with isend or irecv, and stopped once.
 * The callback has no argument for its user.
 */
static struct check_side *the_side;
enum { EVENT_START, EVENT_STOP, EVENT_UPDATE, EVENT_UPDATE_STOP };

static ncclResult_t profile(void **event, int type, void *phandle, int64_t plugin_id, void *ext_data)
{
	static char live;

	(void)plugin_id, (void)ext_data;
	if (type < EVENT_START || type > EVENT_UPDATE_STOP)
		check_fail(the_side, "the profiler callback got event type %d", type);
	if (type == EVENT_START && phandle != &the_side->nccl)
		check_fail(the_side, "the profiler callback got %s",
			   phandle ? "a handle that did not come with isend or irecv"
				   : "NULL as handle, which NCCL's would dereference with a profiler");
	if (type != EVENT_START && *event != &live)
		check_fail(the_side, "the profiler callback got an event that was not started or is stopped");
	if (type == EVENT_START) {
		*event = &live;
		fetch_add_relaxed(&the_side->events, 1);
	} else if (type != EVENT_UPDATE) {
		*event = NULL;
		fetch_add_relaxed(&the_side->events, -1);
	}
	return ncclSuccess;
}

static int has_net(const struct gantry_loader *loader)
{
	for (int v = GANTRY_NET_VERSION_MIN; v <= GANTRY_NET_VERSION_MAX; v++)
		if (gantry_loader_table(loader, v))
			return 1;
	return 0;
}

static void open_plugin(struct check_side *s, const char *plugin)
{
	check_phase(s, "opening the library");
	if (gantry_loader_open_any(plugin, &s->loader) != GANTRY_OK)
		check_fail(s, "cannot open: %s", gantry_last_error());
	if (s->rule->flags & CHECK_RAW)
		return;
	if (s->symbol) {
		s->table = gantry_loader_symbol(s->loader, s->symbol);
		if (!s->table)
			check_fail(s, "%s is not exported", s->symbol);
		if (!has_net(s->loader))
			return;
	}
	/* NCCL initialises the network, in the newest version, before it looks for other tables. */
	if (gantry_loader_net(s->loader, s->symbol ? 0 : s->version, &s->net) != GANTRY_OK)
		check_fail(s, "cannot use the table: %s", gantry_last_error());
	the_side = s;
	s->nccl = (struct gantry_net_nccl){.profiler = profile, .phandle = &s->nccl};
	gantry_loader_as_nccl(s->net, &s->nccl);
	if (s->rule->flags & CHECK_NO_INIT)
		return;
	check_phase(s, "initialising");
	check_init(s, &s->ctx);
	CHECK_MUST(s, CHECK_SERVICE, "getProperties", s->net->ops->get_properties(s->net, 0, &s->props));
	if (s->props.max_recvs < 1 || s->props.max_recvs > GANTRY_NET_MAX_RECVS)
		check_fail(s, "maxRecvs is %d", s->props.max_recvs);
}

/* The rule's time begins when both processes are here. */
static void begin(struct check_side *s)
{
	uint64_t now;

	check_phase(s, "starting");
	if (s->peer_fd >= 0)
		check_meet(s);
	now = gantry_now_ns();
	s->soft_ns += now - s->start_ns;
	s->start_ns = now;
	store_relaxed(&s->me->ready_ns, now);
}

void check_side_main(struct check_side *s, const char *plugin)
{
	pthread_t progress;

	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->wake, NULL);
	open_plugin(s, plugin);
	begin(s);
	start_thread(s, &progress, progress_main);
	serve(s);
	pthread_join(progress, NULL);
	if (s->ctx) {
		check_phase(s, "finalising");
		CHECK_MUST(s, CHECK_SERVICE, "finalize", s->net->ops->finalize(s->net, s->ctx));
	}
	store_release(&s->me->verdict, CHECK_PASS);
	_exit(0);
}
