/* SPDX-License-Identifier: Apache-2.0 */
/* How a session goes on without its sockets: noticing, dialling and accepting. keep.c has what it keeps; resume.h the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/resume.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "inet/dial.h"
#include "inet/sock.h"
#include "net/tcp/network.h"

#define MS 1000000ull
/* How often links are looked at: while one recovers, for a second and then less often, and otherwise, for stalls. How long
 * dialling may take. Over which time repairs are counted. */
enum {
	BUSY_MS = 5,
	WAIT_MS = 50,
	LOOK_MS = 100,
	BUSY_FOR_MS = 1000,
	DIAL_MS = 250,
	HELLO_MS = 5000,
	ALIVE_MS = 300,
	REPAIRS_MS = 10000
};
/* What was sent once more has so long, and at least two round trips, to be answered: with TCP's shortest timer a lane that
 * loses everything is found after 0.3 s. */
enum { ANSWER_MS = 100 };
/* Looks without a byte acknowledged: as long as TCP takes to send twice in vain. Looks, and not time, so that a machine that
 * was stopped finds nothing lost. */
enum { STILL_LOOKS = 7 };

static uint32_t wanted; /* a thread has found a broken socket; atomic */
static uint64_t looked; /* ns: the last look at all links; loop_mu, as the next */
static int any_links;	/* of that look: there are links of this kind */
static uint64_t period; /* ns: from that look to the next */

/* ---- what was noticed ---- */

static void wake_service(void)
{
	store_release(&wanted, 1);
	inet_loop_wake();
}

void tcp_resume_stopped(struct tcp_link *l, const struct wire_stopped *s)
{
	struct tcp_lane_resume *r = l->lanes[s->lane].resume;

	if (s->generation < r->generation)
		return;
	if (s->generation == UINT32_MAX) { /* none could follow */
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "lane %u: generation %u", s->lane, s->generation);
		return;
	}
	if (s->generation > r->generation) {
		/* The peer took a socket whose welcome never came here, or dialled one that never came there. */
		if (!r->stopped) {
			tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "lane %u: generation %u ends before it began",
					     s->lane, s->generation);
			return;
		}
		r->generation = s->generation;
		r->settled = false;
		r->tell = true;
		store_relaxed(&l->tx.pending, 1);
	}
	if (s->pieces < r->first || s->pieces > r->given) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "lane %u: %llu pieces came, of %llu that were sent",
				     s->lane, (unsigned long long)s->pieces, (unsigned long long)r->given);
		return;
	}
	r->peer_stopped = true;
	r->peer_pieces = s->pieces;
	wake_service();
}

static bool note_broken(struct tcp_lane *lane, int e) REQUIRES(link_mu)
{
	struct tcp_resume *r = lane->link->resume;

	r->over |= r->closing && !e; /* no fault of a network does that */
	if (r->over || tcp_link_failed(lane->link))
		return false;
	if (!lane->resume->broken) {
		lane->resume->error = e;
		store_release(&lane->resume->broken, 1);
	}
	wake_service();
	return true;
}

bool tcp_resume_broken(struct tcp_lane *lane, int e)
{
	bool noted;

	link_mu_lock(&lane->link->mu);
	noted = note_broken(lane, e);
	link_mu_unlock(&lane->link->mu);
	return noted;
}

bool tcp_resume_damaged(struct tcp_lane *lane)
{
	struct tcp_lane_resume *r = lane->resume;
	uint64_t now = gantry_now_ns();

	if (!lane->link->resume)
		return false;
	if (now - r->repairs_since > REPAIRS_MS * MS) {
		r->repairs_since = now;
		r->repairs = 0;
	}
	if (r->repairs >= RESUME_REPAIRS || !note_broken(lane, EBADMSG))
		return false;
	r->repairs++;
	lane->link->resume->repaired++;
	store_release(&lane->rx.eof, 1); /* what follows on this socket is not to be trusted */
	return true;
}

/* ---- dialling ---- */

/* From when a lane is to have another socket until it has. */
struct tcp_dial {
	struct inet_dial dial;
	struct tcp_lane *lane; /* borrowed: its link drops the dial first */
	uint32_t generation;   /* of the socket on its way */
};

static void drop_dial(struct tcp_lane *lane) REQUIRES(loop_mu)
{
	struct tcp_dial *d = lane->resume->dial;

	if (!d)
		return;
	inet_dial_end(&d->dial);
	lane->resume->dial = NULL;
	free(d);
}

/* Whether the peer has taken the socket is not known: as if it had, and had stopped. */
static void forget_generation(struct tcp_lane *lane, uint32_t generation)
{
	struct tcp_lane_resume *r = lane->resume;

	link_mu_lock(&lane->link->mu);
	if (generation > r->generation) {
		r->generation = generation;
		r->peer_stopped = r->settled = false;
		r->tell = true;
		store_relaxed(&lane->link->tx.pending, 1);
	}
	link_mu_unlock(&lane->link->mu);
}

static void dial_later(struct tcp_dial *d) REQUIRES(loop_mu)
{
	inet_dial_start(&d->dial, inet_dial_retry_at(&d->dial));
}

/* A new socket is encrypted if, and only if, the session is. */
static bool seals_fit(const struct tcp_link *l, const struct inet_seals *seals)
{
	return !seals->tx == !l->session.sealed;
}
#define UNLIKE_SEALS "the session is encrypted and its new socket is not, or the reverse"

/* The peer has the socket. */
static void dial_welcomed(struct inet_dial *dial) REQUIRES(loop_mu)
{
	struct tcp_dial *d = gantry_container(dial, struct tcp_dial, dial);
	struct tcp_lane *lane = d->lane;
	struct tcp_link *l = lane->link;
	struct tcp_new_socket s;
	struct wire_welcome w;

	if (wire_welcome_decode(dial->shake.payload, dial->shake.payload_size, &w) != GANTRY_OK) {
		tcp_link_fail(l, 0, GANTRY_ERR_PROTOCOL,
			      "lane %d: the process listening there does not speak this protocol", lane->index);
		drop_dial(lane);
		return;
	}
	if (w.verdict == WIRE_USE_SESSION || (w.verdict == WIRE_UNKNOWN_SESSION && !lane->index)) {
		tcp_link_fail(l, 0, GANTRY_ERR_PROTOCOL, "lane %d: the peer answered with an unknown verdict (%u)",
			      lane->index, w.verdict);
		drop_dial(lane);
		return;
	}
	if (w.verdict != WIRE_LANE) { /* not yet; but it lives */
		store_relaxed(&l->last.heard, gantry_ticks());
		inet_dial_stop(dial);
		dial_later(d);
		return;
	}
	if (!seals_fit(l, &dial->shake.seals)) {
		tcp_link_fail(l, 1, GANTRY_ERR_AUTH, "lane %d: " UNLIKE_SEALS, lane->index);
		drop_dial(lane);
		return;
	}
	if (!lane->index && !lane->resume->stopped)
		tcp_lane_stop(lane, gantry_now_ns());
	s = (struct tcp_new_socket){.peer = dial->to, .generation = d->generation, .received = w.received};
	s.fd = inet_dial_take(dial, &s.seals);
	drop_dial(lane);
	tcp_lane_install(lane, &s);
}

/* A slow peer is waited for, but there must be time for another way if this one dies meanwhile. */
static uint64_t hello_patience(const struct inet_dial *d)
{
	uint64_t some = gantry_params()->timeout / 8 << d->failures % 3;

	return some < HELLO_MS * MS ? some : HELLO_MS * MS;
}

static void dial_hello(struct inet_dial *dial, struct inet_dial_hello *ret) REQUIRES(loop_mu)
{
	struct tcp_dial *d = gantry_container(dial, struct tcp_dial, dial);
	struct tcp_link *l = d->lane->link;
	struct wire_hello h = {
		.process = tcp_network.process,
		.comm_id = l->entry->comm_id,
		.host = tcp_network.host,
		.window = LINK_WINDOW,
		.eager_max = (uint32_t)gantry_params()->eager_max,
		.lane = (uint8_t)d->lane->index,
		.lanes = (uint8_t)l->nlanes,
		.resume = (uint8_t)inet_resume_says(),
		.dev = (uint16_t)l->session.dev,
		.generation = d->generation,
	};

	/* From now on nothing more may be taken from the old socket: the count would be wrong. */
	if (!d->lane->index && !d->lane->resume->stopped)
		tcp_lane_stop(d->lane, gantry_now_ns());
	link_mu_lock(&l->mu);
	h.received = l->rx.eager_in;
	link_mu_unlock(&l->mu);
	memcpy(h.session, l->entry->key, WIRE_SESSION_SIZE);
	wire_hello_encode(&h, ret->payload);
	ret->size = WIRE_HELLO_SIZE;
	ret->protocol = &tcp_service.protocol;
	ret->key = &tcp_network.key;
	ret->patience = hello_patience(dial);
}

static void dial_failed(struct inet_dial *dial) REQUIRES(loop_mu)
{
	struct tcp_dial *d = gantry_container(dial, struct tcp_dial, dial);
	struct tcp_lane *lane = d->lane;
	struct tcp_link *l = lane->link;
	/* Where the control lane is up, that is where the peer says why. */
	bool final = dial->cause == INET_DIAL_REFUSED &&
		     !(dial->shake.refused && lane->index && !l->lanes[0].resume->stopped);
	char text[GANTRY_ADDR_TEXT];

	if (dial->cause == INET_DIAL_EXIT)
		return;
	LOG_DEBUG(NET, "%s: lane %d: dialling again: %s", l->session.peer, lane->index, dial->text);
	if (final) {
		tcp_link_fail(l, 0, GANTRY_ERR_PEER_LOST, "the connection broke, and the peer refused a new socket: %s",
			      dial->text);
		drop_dial(lane);
		return;
	}
	if (!lane->index && inet_dial_is_deserted(dial, UINT64_MAX)) {
		tcp_link_fail(l, 0, GANTRY_ERR_PEER_LOST,
			      "the connection broke, and nothing is listening at %s any more: its process has ended, "
			      "or given the "
			      "connection up",
			      gantry_addr_text(&lane->peer, text));
		drop_dial(lane);
		return;
	}
	if (lane->index && dial->cause != INET_DIAL_CONNECT && dial->cause != INET_DIAL_FILTERED)
		forget_generation(lane, d->generation);
	dial_later(d);
}

/*
 * Packets that are acknowledged again and again while the oldest one stays lost: after an outage TCP without SACK can take its
 * retransmission for one that is still on its way, and counts none, until a timer fires that was set during the outage.
 */
static bool stands_still(const struct tcp_lane_resume *r, const struct tcp_io_info *info)
{
	return r->still >= STILL_LOOKS && r->still * LOOK_MS > 2 * (info->rto_us / 1000);
}

static void note_progress(struct tcp_lane *lane) REQUIRES(loop_mu)
{
	struct tcp_lane_resume *r = lane->resume;
	struct tcp_io_info info;

	if (!lane->io.ops->info(&lane->io, &info))
		return;
	r->still = info.unacked && info.bytes_acked == r->acked ? r->still + 1 : 0;
	r->acked = info.bytes_acked;
}

/* Milliseconds since the peer's kernel last sent on the lane; *ret_stalled: what this side sent is lost. */
static uint32_t lane_silence(const struct tcp_lane *lane, bool *ret_stalled)
{
	struct tcp_io_info info;
	uint32_t silence, once, answer;

	*ret_stalled = false;
	if (!lane->io.ops->info(&lane->io, &info))
		return UINT32_MAX;
	silence = info.ack_age_ms < info.data_age_ms ? info.ack_age_ms : info.data_age_ms;
	once = info.rto_us / 1000 >> 1; /* TCP's timer, before it was doubled */
	answer = 2 * info.rtt_us / 1000 > ANSWER_MS ? 2 * info.rtt_us / 1000 : ANSWER_MS;
	*ret_stalled = info.retransmits > 1 || (info.retransmits && silence > once + answer) ||
		       stands_still(lane->resume, &info);
	return silence;
}

/* The way of a lane that was up: for lane 0 those of the others in turn, in case its NIC is gone; first those that are up. */
static const struct tcp_lane *dial_way(const struct tcp_lane *lane, uint32_t first)
{
	const struct tcp_link *l = lane->link;
	uint32_t n = (uint32_t)l->nlanes;
	bool stalled = false;

	if (lane->index)
		return lane;
	for (uint32_t i = 0; i < n; i++) {
		const struct tcp_lane *way = &l->lanes[(first + i) % n];

		if (!way->resume->stopped && lane_silence(way, &stalled) != UINT32_MAX && !stalled)
			return way;
	}
	return &l->lanes[first % n];
}

static const char *dial_device(const struct gantry_addr *from, const struct gantry_addr *to)
{
	const struct gantry_nic_list *nics = tcp_network.nics;

	for (int i = 0; gantry_params()->bind_device && i < nics->count; i++)
		for (int k = 0; k < nics->nics[i].naddrs; k++)
			if (gantry_addr_same_host(&nics->nics[i].addrs[k], from) &&
			    gantry_nic_should_bind(&nics->nics[i], to))
				return nics->nics[i].name;
	return NULL;
}

static bool dial_aim(struct inet_dial *dial, struct inet_dial_aim *ret) REQUIRES(loop_mu)
{
	struct tcp_dial *d = gantry_container(dial, struct tcp_dial, dial);
	struct tcp_link *l = d->lane->link;
	const struct tcp_lane *way = dial_way(d->lane, dial->failures);
	bool settled;

	link_mu_lock(&l->mu);
	settled = !d->lane->index || d->lane->resume->settled;
	d->generation = d->lane->index ? d->lane->resume->generation + 1 : ++l->resume->epoch;
	link_mu_unlock(&l->mu);
	if (!settled) /* what the last attempt left undone; the look at the lane starts it then */
		return false;
	ret->from = way->local;
	if (ret->from.sa.sa_family == AF_INET6)
		ret->from.in6.sin6_port = 0;
	else
		ret->from.in.sin_port = 0;
	ret->to = way->peer;
	ret->device = dial_device(&ret->from, &ret->to);
	ret->patience = DIAL_MS * MS << dial->failures % 3; /* a way that is back must not wait for TCP */
	return true;
}

static const struct inet_dial_ops dial_ops = {
	.aim = dial_aim,
	.hello = dial_hello,
	.done = dial_welcomed,
	.failed = dial_failed,
};

static void start_dial(struct tcp_lane *lane) REQUIRES(loop_mu)
{
	struct tcp_dial *d = calloc(1, sizeof(*d));

	if (!d)
		return; /* the next look tries again */
	inet_dial_init(&d->dial, &dial_ops);
	d->dial.resets = true; /* the peer may have it already, and would take its end for that of this process */
	d->lane = lane;
	lane->resume->dial = d;
	inet_dial_start(&d->dial, 0);
}

/* ---- the accepting side ---- */

static bool is_over(struct tcp_link *l)
{
	bool over;

	link_mu_lock(&l->mu);
	over = l->resume->over;
	link_mu_unlock(&l->mu);
	return over;
}

static struct tcp_link *find_session(const struct wire_hello *h) REQUIRES(loop_mu)
{
	struct tcp_link *l = tcp_link_of_session(h->session);

	return l && l->entry->lanes_here == l->nlanes && l->resume && l->entry->peer_process == h->process &&
			       h->lane < l->nlanes && (tcp_link_failed(l) || !is_over(l))
		       ? l
		       : NULL;
}

bool tcp_resume_knows(const struct wire_hello *h)
{
	return find_session(h) != NULL;
}

/* NULL: it was refused. *ret_ready: a socket can take the place of the lane's. */
static struct tcp_lane *find_lane(struct inet_conn *c, const struct wire_hello *h, bool *ret_ready) REQUIRES(loop_mu)
{
	struct tcp_link *l = find_session(h);
	struct tcp_lane *lane = l ? &l->lanes[h->lane] : NULL;
	bool fits;

	if (!l) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "this process has no such session, or no longer has it");
		return NULL;
	}
	if (tcp_link_failed(l)) { /* the peer cannot know if its control lane is gone */
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "it gave up: %s", l->end.text);
		return NULL;
	}
	link_mu_lock(&l->mu);
	fits = h->generation > lane->resume->generation && (h->lane || tcp_resume_counts_fit(l, h->received));
	*ret_ready = !h->lane || (lane->resume->stopped && lane->resume->settled);
	link_mu_unlock(&l->mu);
	if (!fits) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "a socket from an earlier epoch of the session");
		return NULL;
	}
	if (!seals_fit(l, &c->shake.seals)) {
		inet_conn_refuse(c, GANTRY_ERR_AUTH, UNLIKE_SEALS);
		return NULL;
	}
	return lane;
}

void tcp_resume_accept(struct inet_conn *c, const struct wire_hello *h)
{
	bool ready = false;
	struct tcp_lane *lane = find_lane(c, h, &ready);
	struct wire_welcome w = {.naddrs = 0};
	struct tcp_new_socket s;
	struct tcp_link *l;

	if (!lane)
		return;
	l = lane->link;
	store_relaxed(&l->last.heard, gantry_ticks());
	if (!l->entry->up) /* all lanes are there, and their confirmation was lost with a socket */
		tcp_link_up(l);
	if (!h->lane && !lane->resume->stopped)
		tcp_lane_stop(lane, gantry_now_ns());
	drop_dial(lane);
	link_mu_lock(&l->mu);
	w.received = l->rx.eager_in;
	link_mu_unlock(&l->mu);
	if (!tcp_send_welcome(c, &w, ready ? WIRE_LANE : WIRE_UNKNOWN_SESSION))
		return;
	s = (struct tcp_new_socket){
		.peer = c->addr, .device = tcp_conn_device(c), .generation = h->generation, .received = h->received};
	s.fd = inet_conn_take(c, ready ? &s.seals : NULL);
	if (ready)
		tcp_lane_install(lane, &s);
	else
		close(s.fd);
}

/* ---- the service thread's look ---- */

/* Both leave by the same address, now. */
static bool same_way(const struct tcp_lane *a, const struct tcp_lane *b)
{
	struct gantry_addr of[2];

	return sock_local(a->io.fd, &of[0]) && sock_local(b->io.fd, &of[1]) && gantry_addr_same_host(&of[0], &of[1]);
}

struct silence {
	uint32_t ms; /* UINT32_MAX: it is stopped */
	bool stalled;
};

static bool is_heard(const struct silence *s)
{
	return s->ms < ALIVE_MS && !s->stalled;
}

/* The control lane is silent and its path is dead, as another lane shows: frames sent there would be lost, and TCP would take
 * its time to notice. */
static bool control_is_lost(const struct tcp_link *l, const struct silence *s)
{
	bool lost = false;

	if (l->lanes[0].resume->stopped || is_heard(&s[0]))
		return false;
	for (int i = 1; i < l->nlanes; i++) {
		if ((!s[i].stalled && !is_heard(&s[i])) || !same_way(&l->lanes[0], &l->lanes[i]))
			continue;
		if (!s[i].stalled)
			return false;
		lost = true;
	}
	return lost;
}

/* Lanes that lose what they are given while others do not. True: the control lane stalls, and every other lane is silent. */
static bool find_stalls(struct tcp_link *l) REQUIRES(loop_mu)
{
	struct silence s[WIRE_MAX_LANES];
	bool alive = false, any = false;

	for (int i = 0; i < l->nlanes; i++) {
		s[i] = (struct silence){.ms = UINT32_MAX};
		if (l->lanes[i].resume->stopped)
			continue;
		note_progress(&l->lanes[i]);
		s[i].ms = lane_silence(&l->lanes[i], &s[i].stalled);
		alive |= is_heard(&s[i]);
		any |= s[i].stalled;
	}
	if (!any)
		return false;
	s[0].stalled |= control_is_lost(l, s);
	for (int i = 0; alive && i < l->nlanes; i++)
		if (s[i].stalled)
			tcp_resume_broken(&l->lanes[i], ETIMEDOUT);
	if (!alive && !s[0].stalled) { /* its answer will show whether the peer is alive */
		link_mu_lock(&l->mu);
		l->rx.heartbeat_due = true;
		link_mu_unlock(&l->mu);
		tcp_control_flush(l);
	}
	return !alive && s[0].stalled;
}

/* From now on as if nothing could be resumed. */
static void give_up(struct tcp_link *l) REQUIRES(loop_mu)
{
	for (int i = 0; i < l->nlanes; i++) {
		struct tcp_lane *lane = &l->lanes[i];

		drop_dial(lane);
		if (load_acquire(&lane->resume->broken) || lane->resume->stopped) {
			if (lane->resume->error == EBADMSG && !lane->resume->settled)
				tcp_link_fail(l, 1, GANTRY_ERR_CORRUPT,
					      "lane %d: a frame arrived damaged, and the session ended before it was "
					      "sent again",
					      i);
			store_release(&lane->rx.eof, 1);
			tcp_link_ending(lane, lane->resume->error);
		}
	}
}

/* needed: the lane is without a socket. generation: of the lane. */
static void watch_dial(struct tcp_lane *lane, bool needed, uint32_t generation) REQUIRES(loop_mu)
{
	struct tcp_dial *d = lane->resume->dial;

	if (!d) {
		if (needed)
			start_dial(lane);
	} else if (d->dial.state == INET_DIAL_IDLE) {
		if (needed)
			inet_dial_start(&d->dial, 0);
	} else if (d->dial.state == INET_DIAL_PAUSE) {
		if (!lane->resume->stopped && !needed) /* the stall is over, the old socket works */
			drop_dial(lane);
	} else if (lane->index && d->generation <= generation) { /* the peer knows of a later one */
		inet_dial_stop(&d->dial);
		dial_later(d);
	}
}

/* When the lane must be looked at again, in ns from now. */
static uint64_t look_at_lane(struct tcp_lane *lane, uint64_t now, bool suspect) REQUIRES(loop_mu)
{
	struct tcp_lane_resume *r = lane->resume;
	bool peer_stopped, stopped, settled;
	uint32_t generation;

	link_mu_lock(&lane->link->mu);
	peer_stopped = r->peer_stopped;
	stopped = r->stopped;
	settled = r->settled;
	generation = r->generation;
	link_mu_unlock(&lane->link->mu);
	if (!stopped && (load_acquire(&r->broken) || peer_stopped)) {
		tcp_lane_stop(lane, now);
		stopped = true;
	}
	if (stopped && peer_stopped && !settled)
		settled = tcp_lane_settle(lane);
	if (lane->link->entry->initiator)
		watch_dial(lane, lane->index ? stopped && settled : stopped || suspect, generation);
	if (!stopped)
		return LOOK_MS * MS;
	return now - r->down_since < BUSY_FOR_MS * MS ? BUSY_MS * MS : WAIT_MS * MS;
}

/* Bulk lanes that cannot be replaced: the control lane alone carries no large messages. Without it the peer is silent, and that has
 * its own deadline. */
static void check_bulk(struct tcp_link *l, uint64_t now)
{
	uint64_t since = 0;

	if (l->lanes[0].resume->stopped)
		return;
	for (int i = 1; i < l->nlanes; i++) {
		if (!l->lanes[i].resume->stopped)
			return;
		if (l->lanes[i].resume->down_since > since)
			since = l->lanes[i].resume->down_since;
	}
	if (now - since > gantry_params()->timeout)
		tcp_link_fail(
			l, 1, GANTRY_ERR_PEER_SILENT,
			"no bulk lane came back within %.3g s (GANTRY_TIMEOUT), while the peer still sends on lane 0",
			(double)gantry_params()->timeout / 1e9);
}

/* Sockets are gone. True: and with them the session. */
static bool has_ended(struct tcp_link *l) REQUIRES(loop_mu)
{
	for (int i = 0; i < l->nlanes; i++)
		tcp_lane_rx(&l->lanes[i], true); /* a process that has ended shows on all; one may have its goodbye */
	if (is_over(l)) {
		give_up(l);
		return true;
	}
	return tcp_link_failed(l);
}

static bool has_broken(const struct tcp_link *l)
{
	bool broken = false;

	for (int i = 0; i < l->nlanes; i++)
		broken |= load_acquire(&l->lanes[i].resume->broken) || l->lanes[i].resume->stopped;
	return broken;
}

/* When the link must be looked at again, in ns from now. */
static uint64_t look_at_link(struct tcp_link *l, uint64_t now, bool stalls) REQUIRES(loop_mu)
{
	uint64_t next = LOOK_MS * MS, of_lane;
	bool suspect = false, broken = has_broken(l);

	if (tcp_link_failed(l) || (broken && has_ended(l))) {
		for (int i = 0; i < l->nlanes; i++)
			drop_dial(&l->lanes[i]);
		return next;
	}
	if (stalls)
		suspect = find_stalls(l);
	for (int i = 0; i < l->nlanes && !tcp_link_failed(l); i++) {
		of_lane = look_at_lane(&l->lanes[i], now, suspect && i == 0);
		next = of_lane < next ? of_lane : next;
	}
	if (load_relaxed(&l->tx.pending))
		tcp_control_flush(l);
	if (broken)
		check_bulk(l, now);
	return next;
}

void tcp_resume_pass(uint64_t now)
{
	static uint64_t stalls_looked;
	uint64_t next;
	bool asked = exchange_relaxed(&wanted, 0), stalls = now - stalls_looked >= LOOK_MS * MS;

	if (!asked && now - looked < period)
		return;
	if (stalls)
		stalls_looked = now;
	looked = now;
	period = LOOK_MS * MS;
	any_links = 0;
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node) {
		if (!l->entry->up || !l->resume)
			continue;
		any_links = 1;
		next = look_at_link(l, now, stalls);
		period = next < period ? next : period;
	}
}

uint64_t tcp_resume_due(void)
{
	return any_links ? looked + period : UINT64_MAX;
}

void tcp_resume_forget(struct tcp_link *l)
{
	if (!l->resume)
		return;
	for (int i = 0; i < l->nlanes; i++)
		drop_dial(&l->lanes[i]);
	for (int i = 0; i < GANTRY_NET_MAX_RAILS; i++) {
		inet_port_put(&tcp_service, l->resume->ports[i]);
		l->resume->ports[i] = NULL;
	}
}
