/* SPDX-License-Identifier: Apache-2.0 */
/* dial.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "inet/dial.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "inet/sock.h"

static const uint64_t deserted_max_ns = 1000000000;

/* ---- an attempt, with or without the loop ---- */

static uint64_t due_after(uint64_t patience)
{
	uint64_t now = gantry_now_ns();

	return patience > UINT64_MAX - now ? UINT64_MAX : now + patience;
}

static enum inet_event note_failure(struct inet_dial *d, enum inet_dial_cause cause, int e, const char *text)
{
	d->cause = cause;
	d->error = e;
	if (text)
		snprintf(d->text, sizeof(d->text), "%s", text);
	else
		snprintf(d->text, sizeof(d->text), "%s (%s)", strerror(e), sock_errno_hint(e));
	if (e != ECONNREFUSED)
		d->refused_since = 0;
	else if (!d->refused_since)
		d->refused_since = gantry_now_ns();
	d->misshakes += cause == INET_DIAL_REFUSED;
	return INET_FAILED;
}

static enum inet_event start_attempt(struct inet_dial *d)
{
	struct inet_dial_aim aim = {.patience = UINT64_MAX};
	int e;

	ASSERT(d->source.fd < 0);
	if (!d->ops->aim(d, &aim)) {
		d->state = INET_DIAL_IDLE;
		return INET_AGAIN;
	}
	d->to = aim.to;
	d->state = INET_DIAL_CONNECTING;
	d->due = due_after(aim.patience);
	e = sock_connect(aim.from.sa.sa_family ? &aim.from : NULL, aim.device, &d->to, &d->source.fd);
	return e ? note_failure(d, INET_DIAL_CONNECT, e, NULL) : INET_AGAIN;
}

static enum inet_event start_hello(struct inet_dial *d)
{
	struct inet_dial_hello hello = {.patience = UINT64_MAX, .whole = UINT64_MAX};

	d->refused_since = 0;
	if (!d->ops->hello)
		return INET_DONE;
	d->ops->hello(d, &hello);
	inet_handshake_end(&d->shake); /* of the attempt before */
	if (inet_handshake_start_client(&d->shake, hello.protocol, hello.key, hello.payload, hello.size) != GANTRY_OK)
		return note_failure(d, INET_DIAL_OWN, 0, gantry_last_error());
	d->state = INET_DIAL_SHAKING;
	d->due = due_after(hello.patience);
	d->shaking.since = gantry_now_ns();
	d->shaking.until = d->due;
	d->shaking.whole = hello.whole;
	d->shaking.begun = 0;
	return INET_AGAIN;
}

/* More of the answer may have come. */
static void note_progress(struct inet_dial *d)
{
	uint64_t whole_by;

	if (!d->shake.got)
		d->shaking.begun = 0;
	else if (!d->shaking.begun)
		d->shaking.begun = gantry_now_ns();
	whole_by =
		d->shaking.begun && d->shaking.whole != UINT64_MAX ? d->shaking.begun + d->shaking.whole : UINT64_MAX;
	d->due = whole_by < d->shaking.until ? whole_by : d->shaking.until;
}

static enum inet_event shake_failed(struct inet_dial *d)
{
	const struct inet_handshake *h = &d->shake;
	char text[128];

	if (!h->broken)
		return note_failure(d, INET_DIAL_REFUSED, 0, h->text);
	if (!h->broken_errno)
		return note_failure(d, INET_DIAL_BROKE, ECONNRESET,
				    "the connection was closed without a goodbye message");
	snprintf(text, sizeof(text), "the connection broke: %s", strerror(h->broken_errno));
	return note_failure(d, INET_DIAL_BROKE, h->broken_errno, text);
}

/* The socket is ready for what the attempt waits for. */
static enum inet_event move_attempt(struct inet_dial *d)
{
	enum inet_event event;
	int e;

	if (d->state == INET_DIAL_CONNECTING) {
		e = sock_error(d->source.fd);
		event = e ? note_failure(d, INET_DIAL_CONNECT, e, NULL) : start_hello(d);
		if (event != INET_AGAIN)
			return event;
	}
	event = inet_handshake_move(&d->shake, d->source.fd);
	if (event == INET_AGAIN)
		note_progress(d);
	return event == INET_FAILED ? shake_failed(d) : event;
}

static bool is_ready(const struct inet_dial *d)
{
	struct pollfd p = {.fd = d->source.fd, .events = d->state == INET_DIAL_CONNECTING ? POLLOUT : POLLIN};

	return poll(&p, 1, 0) > 0;
}

/*
 * The time of an attempt is over. But this thread may come late, with events from before it was held up: what has arrived counts,
 * because the peer may have accepted already.
 */
static enum inet_event expire_attempt(struct inet_dial *d)
{
	if (is_ready(d))
		return move_attempt(d);
	if (d->state == INET_DIAL_CONNECTING)
		return note_failure(d, INET_DIAL_FILTERED, ETIMEDOUT, "no answer: a firewall may drop the packets");
	if (gantry_now_ns() >= d->shaking.until)
		return note_failure(d, INET_DIAL_SILENT, ETIMEDOUT, "it accepts connections but sends nothing");
	d->shake.error = GANTRY_ERR_PROTOCOL;
	return note_failure(d, INET_DIAL_REFUSED, 0, "its answer is incomplete");
}

static void close_socket(const struct inet_dial *d, int fd)
{
	const struct linger hard = {1, 0};

	if (fd < 0)
		return;
	if (d->resets)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	close(fd);
}

void inet_dial_init(struct inet_dial *d, const struct inet_dial_ops *ops)
{
	memset(d, 0, sizeof(*d));
	d->ops = ops;
	d->source.fd = -1;
	gantry_list_init(&d->node);
}

uint64_t inet_dial_retry_at(struct inet_dial *d)
{
	return inet_retry_at(gantry_now_ns(), d->failures++);
}

void inet_dial_reset(struct inet_dial *d)
{
	d->failures = d->misshakes = 0;
	d->refused_since = 0;
}

bool inet_dial_is_deserted(const struct inet_dial *d, uint64_t timeout)
{
	uint64_t enough = timeout / 8 < deserted_max_ns ? timeout / 8 : deserted_max_ns;

	return d->refused_since && gantry_now_ns() - d->refused_since >= enough;
}

/* ---- driven by the loop ---- */

static struct gantry_list dials GUARDED_BY(loop_mu) = {&dials, &dials};

static void dial_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu);

/* May free the dial. */
static void take_outcome(struct inet_dial *d, enum inet_event event) REQUIRES(loop_mu)
{
	ASSERT_HELD(&inet_loop.mu);
	if (event == INET_AGAIN && d->state == INET_DIAL_SHAKING)
		inet_source_set(&d->source, inet_handshake_events(&d->shake));
	if (event == INET_AGAIN)
		return;
	d->state = INET_DIAL_IDLE;
	gantry_list_remove(&d->node);
	if (event == INET_DONE) {
		d->ops->done(d);
		return;
	}
	close_socket(d, inet_source_release(&d->source));
	d->ops->failed(d);
}

static void dial_ready(struct inet_source *s, uint32_t events)
{
	struct inet_dial *d = gantry_container(s, struct inet_dial, source);

	(void)events;
	ASSERT(d->state == INET_DIAL_CONNECTING || d->state == INET_DIAL_SHAKING);
	/* OpenSSL may be gone (loop.h, Exit). */
	take_outcome(d, inet_loop.parting && d->ops->hello
				? note_failure(d, INET_DIAL_EXIT, ECANCELED, "the process exits")
				: move_attempt(d));
}

static void run_dial(struct inet_dial *d) REQUIRES(loop_mu)
{
	enum inet_event event;

	if (d->state != INET_DIAL_PAUSE) {
		take_outcome(d, expire_attempt(d));
		return;
	}
	event = start_attempt(d);
	if (d->state == INET_DIAL_IDLE)
		gantry_list_remove(&d->node);
	else if (event == INET_AGAIN && inet_source_add(&d->source, EPOLLOUT) != GANTRY_OK)
		event = note_failure(d, INET_DIAL_OWN, 0, gantry_last_error());
	take_outcome(d, event);
}

static uint64_t dials_due(void) REQUIRES(loop_mu)
{
	uint64_t due = UINT64_MAX;

	gantry_list_each_entry (d, &dials, struct inet_dial, node)
		due = d->due < due ? d->due : due;
	return due;
}

static struct inet_dial *due_dial(void) REQUIRES(loop_mu)
{
	gantry_list_each_entry (d, &dials, struct inet_dial, node)
		if (d->due <= inet_loop.now)
			return d;
	return NULL;
}

/* Each due dial once: callbacks may stop, start and free any of them, and what they start is for the next pass. */
static void run_dials(void) REQUIRES(loop_mu)
{
	struct gantry_list due = {&due, &due};
	struct inet_dial *d;

	while ((d = due_dial())) {
		gantry_list_remove(&d->node);
		gantry_list_append(&due, &d->node);
	}
	while (!gantry_list_empty(&due)) {
		d = gantry_container(due.next, struct inet_dial, node);
		gantry_list_remove(&d->node);
		gantry_list_append(&dials, &d->node);
		run_dial(d);
	}
}

static int any_dials(void) REQUIRES(loop_mu)
{
	return !gantry_list_empty(&dials);
}

static void dials_in_child(void) REQUIRES(loop_mu)
{
	while (!gantry_list_empty(&dials))
		gantry_list_remove(dials.next);
}

static struct inet_client dial_client = {
	.due = dials_due,
	.pass = run_dials,
	.busy = any_dials,
	.in_child = dials_in_child,
};

void inet_dial_start(struct inet_dial *d, uint64_t at)
{
	ASSERT_HELD(&inet_loop.mu);
	ASSERT(d->state == INET_DIAL_IDLE || d->state == INET_DIAL_PAUSE);
	inet_dial_poll_start(d, at);
	d->source.ready = dial_ready;
	gantry_list_remove(&d->node);
	gantry_list_append(&dials, &d->node);
	/* Owners are clients of the loop themselves, so its thread runs already. */
	if (inet_loop_start(&dial_client) == GANTRY_OK)
		inet_loop_wake();
}

void inet_dial_stop(struct inet_dial *d)
{
	ASSERT_HELD(&inet_loop.mu);
	d->state = INET_DIAL_IDLE;
	gantry_list_remove(&d->node);
	close_socket(d, inet_source_release(&d->source));
}

int inet_dial_take(struct inet_dial *d, struct inet_seals *ret_seals)
{
	ASSERT(d->state == INET_DIAL_IDLE && d->source.fd >= 0);
	if (ret_seals)
		*ret_seals = d->shake.seals;
	else
		inet_seals_free(&d->shake.seals);
	d->shake.seals = (struct inet_seals){0};
	return inet_source_release(&d->source);
}

void inet_dial_end(struct inet_dial *d)
{
	inet_dial_stop(d);
	inet_handshake_end(&d->shake);
}

/* ---- polled ---- */

void inet_dial_poll_start(struct inet_dial *d, uint64_t at)
{
	ASSERT(d->source.fd < 0);
	d->state = INET_DIAL_PAUSE;
	d->due = at;
}

static enum inet_event poll_attempt(struct inet_dial *d)
{
	if (d->state == INET_DIAL_PAUSE)
		return gantry_now_ns() < d->due ? INET_AGAIN : start_attempt(d);
	if (gantry_now_ns() >= d->due)
		return expire_attempt(d);
	return d->state == INET_DIAL_CONNECTING && !is_ready(d) ? INET_AGAIN : move_attempt(d);
}

enum inet_event inet_dial_poll(struct inet_dial *d)
{
	enum inet_event event = d->state == INET_DIAL_IDLE ? INET_AGAIN : poll_attempt(d);

	if (event == INET_FAILED) {
		close_socket(d, d->source.fd);
		d->source.fd = -1;
	}
	if (event != INET_AGAIN)
		d->state = INET_DIAL_IDLE;
	return event;
}

int inet_dial_poll_take(struct inet_dial *d)
{
	int fd = d->source.fd;

	ASSERT(d->state == INET_DIAL_IDLE && fd >= 0);
	d->source.fd = -1;
	return fd;
}

void inet_dial_poll_end(struct inet_dial *d)
{
	d->state = INET_DIAL_IDLE;
	close_socket(d, d->source.fd);
	d->source.fd = -1;
	inet_handshake_end(&d->shake);
}
