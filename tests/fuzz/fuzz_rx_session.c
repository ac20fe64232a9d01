/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An rx connection, its user and its peer, all three scripted. The peer is faithful unless the script says otherwise:
 * it keeps the protocol of src/rx/rx_wire.h with a model of its own, which also says what must come of each transfer.
 *
 *   byte 0   how the rx is set up: depth, staging memory, path, what the network can do
 *   then operations, each a byte modulo OPS and its arguments (enum op below)
 *
 * What must hold:
 *  - A faithful peer is never told an error: heads come in an order the protocol allows, both sides count the same
 *    number of messages, bytes are those of the memory, and after the script everything that can end does.
 *  - Whatever the peer does: an op is DONE after its connection was closed, at the latest. Its memory is freed when it
 *    is DONE, so the sanitizer sees a late touch, whether of the network, the device or the CPU. Nothing outside of
 *    the pieces is written.
 *  - A hello and a head that are accepted are written again as they came.
 *
 * All of it is one thread, which looks at the insides without their mutex: such functions are UNCHECKED.
 */
#include "base/param.h"
#include "rx_fake.h"
#include "test.h"

enum { USERS = 24, TRANSFERS = 32, GUARD = 16, FILL = 0xd6, MAX_STEPS = 300, DRAIN = 4000 };

enum op {
	OP_SEND,     /* tag and memory, size: the user posts a send */
	OP_RECV,     /* the same, a receive */
	OP_TEST,     /* the user moves everything, and looks at its ops */
	OP_CANCEL,   /* which */
	OP_FREE,     /* which: if it is done */
	OP_OFFER,    /* tag, size, arg: the peer begins a transfer */
	OP_DATA,     /* how many messages the peer sends, of what was granted, in order */
	OP_END,	     /* which: the peer ends a transfer of its own */
	OP_GRANT,    /* which, message size */
	OP_TAKEN,    /* which */
	OP_REJECT,   /* which */
	OP_STOP,     /* which, how far it has posted: the peer ends a transfer of ours */
	OP_TAKE,     /* how many messages the peer's network takes */
	OP_DEVICE,   /* how much work the device does */
	OP_NETWORK,  /* held heads, "later", what it supports */
	OP_HEAD,     /* kind and flags, transfer, tag, bytes, arg: any head, no longer faithful */
	OP_BYTES,    /* tag, size, bytes: any message */
	OP_FAILS,    /* the connection breaks */
	OP_CANCEL_0, /* which: a cancel that has no time to wait */
	OP_MISUSE,   /* which: memory that is in use is deregistered; a batch that is not in registered memory */
	OPS
};

static const size_t sizes[] = {0, 1, 7, 64, 300, 700, 4096, 5000, 16384, 32768, 32769, 40000};
static const uint64_t messages[] = {RX_MESSAGE_MIN, 512, 4096, 5000};
static const uint64_t args[] = {1, 400, 511, 4096, 16384, 65536, UINT32_MAX, 0};

/* An op of the user. */
struct user {
	struct gantry_rx_op *op;
	uint8_t *block, *base; /* owned; NULL once it is done */
	size_t span, total, piece, stride;
	int send, over;
};

/* A transfer as the peer knows it. Ours: it receives. Its own: it sends. */
enum state { NONE, OFFERED, GRANTED, OVER };
struct transfer {
	enum state state;
	uint64_t total, message, n, moved;
	int inlined, stop, end, owes; /* owes: its half of the ending */
	uint64_t stop_at, end_at;
};

static struct {
	struct script in;
	struct gantry_rx *rx;
	struct gantry_rx_conn *conn;
	struct user users[USERS];
	int nusers;
	struct transfer ours[TRANSFERS], theirs[TRANSFERS];
	int nours, ntheirs;				    /* theirs; ours: one more than the highest offered */
	int order_ours[TRANSFERS], order_theirs[TRANSFERS]; /* in the order of grants */
	int granted_ours, granted_theirs;
	int crooked; /* the peer has left the protocol, or the network failed */
} run;

static uint8_t next(void)
{
	return script_next(&run.in);
}

/* The bytes of a transfer. `own`: the peer's. */
static const uint8_t *bytes_of(int own, uint64_t transfer)
{
	static uint8_t noise[(2 * TRANSFERS) * 1009 + 40000];

	for (size_t i = sizeof(noise); !noise[0] && i > 0; i--)
		noise[i - 1] = (uint8_t)(random_at(i) | 1); /* the first one is set last, and not 0 */
	return noise + (2 * (transfer % TRANSFERS) + (own ? 1 : 0)) * 1009;
}

static int all_fill(const uint8_t *p, size_t n)
{
	return !n || (p[0] == FILL && memcmp(p, p + 1, n - 1) == 0);
}

/* ---- the peer ---- */

static void say(const struct rx_head *h)
{
	size_t n = h->flags & RX_INLINE ? (size_t)h->bytes : 0;
	struct fake_message *m = fake_message(RX_HEAD_SIZE + n);

	rx_head_encode(h, m->bytes);
	memcpy(m->bytes + RX_HEAD_SIZE, bytes_of(1, h->transfer), n);
	fake_arrive(RX_TAG_HEAD, m);
}

static void say_kind(enum rx_kind kind, int transfer, uint64_t bytes, uint64_t arg)
{
	const struct rx_head h = {.kind = (uint16_t)kind, .transfer = (uint64_t)transfer, .bytes = bytes, .arg = arg};

	say(&h);
}

/* Both sides know how many messages there are. */
static int counted(const struct transfer *t)
{
	return t->stop && t->end;
}

static uint64_t last(const struct transfer *t)
{
	uint64_t end = t->end_at < t->n ? t->end_at : t->n;

	return !counted(t) ? t->n : t->stop_at > end ? t->stop_at : end;
}

/* The transfer that the next message on tag 1 belongs to; -1: there is none. */
static int current(const struct transfer *list, const int *order, int n)
{
	for (int i = 0; i < n; i++)
		if (list[order[i]].moved < last(&list[order[i]]))
			return order[i];
	return -1;
}

static struct transfer *known(struct transfer *list, uint64_t transfer)
{
	MUST(transfer < TRANSFERS && list[transfer].state != NONE);
	return &list[transfer];
}

/* Heads about the peer's own transfers. */
static void peer_is_answered(const struct rx_head *h)
{
	struct transfer *t = known(run.theirs, h->transfer);

	if (h->kind == RX_GRANT) {
		MUST(t->state == OFFERED && !t->inlined && h->arg);
		t->state = GRANTED;
		t->message = h->arg;
		t->n = (t->total - 1) / t->message + 1;
		run.order_theirs[run.granted_theirs++] = (int)h->transfer;
	} else if (h->kind == RX_TAKEN) {
		MUST(t->state == (t->inlined ? OFFERED : GRANTED) && (t->inlined || t->moved == t->n));
		t->state = OVER;
	} else if (h->kind == RX_REJECT) {
		MUST(t->state == OFFERED && h->bytes < t->total);
		t->state = OVER;
	} else if (t->state == OFFERED) { /* STOP */
		MUST((t->end || t->inlined) && !h->arg);
		t->state = OVER;
	} else {
		MUST(t->state == GRANTED && !t->stop && h->arg <= t->n);
		t->stop = 1;
		t->stop_at = h->arg;
		t->owes = !t->end;
	}
}

static void peer_hears(const uint8_t *data, size_t size)
{
	struct rx_head h;
	struct transfer *t;

	MUST(rx_head_decode(data, size, &h) == GANTRY_OK);
	if (run.crooked)
		return;
	if (h.kind == RX_SEND) {
		MUST(h.transfer < TRANSFERS && h.transfer >= (uint64_t)run.nours);
		t = &run.ours[h.transfer];
		*t = (struct transfer){.state = OFFERED, .total = h.bytes, .inlined = h.flags & RX_INLINE};
		run.nours = (int)h.transfer + 1;
		MUST(!t->inlined || memcmp(data + RX_HEAD_SIZE, bytes_of(0, h.transfer), (size_t)h.bytes) == 0);
	} else if (h.kind == RX_END) {
		t = known(run.ours, h.transfer);
		MUST(!t->end);
		t->end = 1;
		t->end_at = h.arg;
		t->owes = !t->stop && t->state != OVER;
	} else {
		peer_is_answered(&h);
	}
}

static void peer_takes(int tag, const uint8_t *data, size_t size)
{
	struct transfer *t;
	int k;

	if (tag == RX_TAG_HEAD) {
		peer_hears(data, size);
		return;
	}
	if (run.crooked)
		return;
	k = current(run.ours, run.order_ours, run.granted_ours);
	MUST(k >= 0);
	t = &run.ours[k];
	if (size) {
		uint64_t at = t->moved * t->message;

		MUST(size == (t->total - at < t->message ? t->total - at : t->message));
		MUST(memcmp(data, bytes_of(0, (uint64_t)k) + at, size) == 0);
	} else {
		MUST(t->end); /* only what is ended is made up */
	}
	t->moved++;
}

static void offer(void)
{
	uint8_t tag = next(), size = next(), arg = next();
	struct transfer *t = &run.theirs[run.ntheirs];
	struct rx_head h = {.kind = RX_SEND, .transfer = (uint64_t)run.ntheirs, .tag = tag & 3};

	if (run.ntheirs == TRANSFERS)
		return;
	h.bytes = sizes[size % (sizeof(sizes) / sizeof(*sizes))];
	h.arg = args[arg % 7];
	if (h.bytes <= RX_INLINE_MAX && (!h.bytes || !(tag & 0x80)))
		h.flags = RX_INLINE;
	else if (h.arg < 400)
		h.arg = 400;
	*t = (struct transfer){.state = OFFERED, .total = h.bytes, .inlined = h.flags};
	run.ntheirs++;
	say(&h);
}

/* 0: there is nothing to send now. */
static int send_data(void)
{
	int k = current(run.theirs, run.order_theirs, run.granted_theirs);
	struct fake_message *m;
	struct transfer *t;
	uint64_t at;
	size_t n;

	if (k < 0)
		return 0;
	t = &run.theirs[k];
	if ((t->stop || t->end) && !counted(t))
		return 0;
	at = t->moved++ * t->message;
	n = t->end ? 0 : (size_t)(t->total - at < t->message ? t->total - at : t->message);
	m = fake_message(n);
	if (n)
		memcpy(m->bytes, bytes_of(1, (uint64_t)k) + at, n);
	fake_arrive(RX_TAG_DATA, m);
	return 1;
}

static void end_theirs(int k)
{
	struct transfer *t = &run.theirs[k];

	if (t->end || (t->state != OFFERED && t->state != GRANTED))
		return;
	if (t->state == GRANTED && t->moved == t->n && !t->owes)
		return; /* nothing is left that could be held back */
	t->end = 1;
	t->end_at = t->moved;
	t->owes = 0;
	say_kind(RX_END, k, 0, t->moved);
}

static void grant(int k, uint8_t how)
{
	struct transfer *t = &run.ours[k];

	if (t->state != OFFERED || t->inlined)
		return;
	t->state = GRANTED;
	t->message = messages[how & 3];
	t->n = (t->total - 1) / t->message + 1;
	run.order_ours[run.granted_ours++] = k;
	say_kind(RX_GRANT, k, 0, t->message);
}

static void taken(int k)
{
	struct transfer *t = &run.ours[k];

	if (t->stop || (t->inlined ? t->state != OFFERED : t->state != GRANTED || t->moved < t->n))
		return;
	t->state = OVER;
	say_kind(RX_TAKEN, k, 0, 0);
}

static void reject(int k)
{
	struct transfer *t = &run.ours[k];

	if (t->state != OFFERED || !t->total) /* no receive is smaller than an empty one */
		return;
	t->state = OVER;
	t->owes = 0;
	say_kind(RX_REJECT, k, 0, 0);
}

static void stop(int k, uint8_t ahead)
{
	struct transfer *t = &run.ours[k];

	if (t->stop || (t->state != GRANTED && !(t->state == OFFERED && (t->inlined || t->end))))
		return;
	t->owes = 0;
	t->stop = 1;
	if (t->state == OFFERED) {
		t->state = OVER;
		say_kind(RX_STOP, k, 0, 0);
		return;
	}
	t->stop_at = t->moved + ahead < t->n ? t->moved + ahead : t->n;
	say_kind(RX_STOP, k, 0, t->stop_at);
}

/* No longer faithful. */
static void any_head(void)
{
	uint8_t kind = next(), transfer = next(), tag = next(), bytes = next(), arg = next();
	struct rx_head h = {.kind = kind & 15,
			    .flags = kind >> 7,
			    .transfer = transfer & 0x80 ? (uint64_t)-1 - (transfer & 3) : transfer & 31,
			    .tag = tag & 3,
			    .bytes = sizes[bytes % (sizeof(sizes) / sizeof(*sizes))],
			    .arg = args[arg & 7]};

	run.crooked = 1;
	if (arg & 0x80)
		h.arg = arg & 31;
	if (h.flags && h.bytes > RX_INLINE_MAX)
		h.bytes = RX_INLINE_MAX;
	say(&h);
}

/* What the decoders take is written again as it came. */
static void check_decoders(const uint8_t *bytes, size_t n)
{
	uint8_t again[RX_OFFER_SIZE];
	struct rx_offer offer;
	struct rx_head head;

	if (rx_offer_decode(bytes, n, &offer) == GANTRY_OK) {
		rx_offer_encode(&offer, again);
		MUST(memcmp(again, bytes, RX_OFFER_SIZE) == 0);
	}
	if (rx_head_decode(bytes, n, &head) == GANTRY_OK) {
		rx_head_encode(&head, again);
		MUST(memcmp(again, bytes, RX_HEAD_SIZE) == 0);
	}
}

static void any_bytes(void)
{
	int tag = next() & 1;
	size_t n = next();
	struct fake_message *m = fake_message(n);

	run.crooked = 1;
	for (size_t i = 0; i < n; i++)
		m->bytes[i] = next();
	check_decoders(m->bytes, n);
	fake_arrive(tag, m);
}

/* ---- the user ---- */

/* `bytes` of what was received are there, the rest and everything between the pieces is as it was. */
static void check_user(const struct user *u, uint64_t bytes, int content)
{
	const uint8_t *want = bytes_of(!u->send, u->op->transfer);
	size_t at = 0, i = 0, n;

	MUST(all_fill(u->block, GUARD) && all_fill(u->base + u->span, GUARD));
	for (; i < u->total; i += n, at += u->stride) {
		const uint8_t *p = u->base + at;
		size_t here;

		n = u->total - i < u->piece ? u->total - i : u->piece;
		here = u->send ? n : i >= bytes ? 0 : bytes - i < n ? (size_t)bytes - i : n;
		MUST(all_fill(p + n, u->stride - n));
		if (u->send || content)
			MUST(memcmp(p, want + i, here) == 0 && all_fill(p + here, n - here));
	}
	MUST(all_fill(u->base + at, u->span - at));
}

static void fill_send(struct user *u)
{
	const uint8_t *want = bytes_of(0, run.conn->next_transfer);

	for (size_t i = 0, at = 0; i < u->total; i += u->piece, at += u->stride)
		memcpy(u->base + at, want + i, u->total - i < u->piece ? u->total - i : u->piece);
}

/* The memory is the user's again: it goes. */
static void user_done(struct user *u)
{
	struct gantry_rx_result r = GANTRY_RX_RESULT_INIT;

	gantry_rx_op_result(u->op, &r);
	MUST(r.result != GANTRY_AGAIN && (r.result != GANTRY_OK || !r.text[0]));
	MUST(r.bytes <= u->total);
	if (!run.crooked && r.result == GANTRY_OK)
		MUST(r.bytes == (u->send ? u->total : run.theirs[u->op->transfer].total));
	check_user(u, r.bytes, !run.crooked && r.result == GANTRY_OK);
	MUST(gantry_rx_deregister(run.rx, u->base) == GANTRY_OK);
	free(u->block);
	u->block = u->base = NULL;
	u->over = 1;
}

static void look(void) UNCHECKED
{
	for (int i = 0; i < run.nusers; i++)
		if (run.users[i].op && !run.users[i].over && run.users[i].op->state == GANTRY_RX_DONE)
			user_done(&run.users[i]);
	if (!run.crooked)
		MUST(run.conn->error == GANTRY_OK);
}

/* Pieces of `piece` bytes, every `stride`; the last one may be shorter. */
static size_t make_pieces(struct user *u, uint8_t how, struct gantry_rx_piece pieces[2])
{
	static const size_t piece[] = {0, 16, 700, 3000};
	size_t whole, n = 0;

	u->piece = piece[how >> 4 & 3];
	if (!u->piece || u->piece > u->total)
		u->piece = u->total ? u->total : 1;
	u->stride = u->piece + (how >> 6 & 1 ? 8 : 0);
	whole = u->total / u->piece;
	u->span = (whole + 1) * u->stride;
	u->block = malloc(GUARD + u->span + GUARD);
	MUST(u->block);
	memset(u->block, FILL, GUARD + u->span + GUARD);
	u->base = u->block + GUARD;
	if (whole)
		pieces[n++] = (struct gantry_rx_piece){u->base, u->piece, u->stride, whole};
	if (u->total % u->piece)
		pieces[n++] = (struct gantry_rx_piece){u->base + whole * u->stride, u->total % u->piece, 0, 1};
	return n;
}

static void post(int send) UNCHECKED
{
	uint8_t how = next(), size = next();
	struct user *u = &run.users[run.nusers];
	struct gantry_rx_piece pieces[2];
	gantry_result r;
	size_t n;

	if (run.nusers == USERS)
		return;
	memset(u, 0, sizeof(*u));
	u->send = send;
	u->total = sizes[size % (sizeof(sizes) / sizeof(*sizes))];
	n = make_pieces(u, how, pieces);
	if (send)
		fill_send(u);
	fake.device_memory = how >> 7;
	MUST(gantry_rx_register(run.rx, u->base, u->span) == GANTRY_OK);
	r = (send ? gantry_rx_send : gantry_rx_recv)(run.conn, pieces, n, how & 3, &u->op);
	if (r != GANTRY_OK) {
		MUST(run.conn->error == r);
		MUST(gantry_rx_deregister(run.rx, u->base) == GANTRY_OK);
		free(u->block);
		return;
	}
	run.nusers++;
}

static struct user *pick_user(void)
{
	struct user *u = run.nusers ? &run.users[next() % run.nusers] : NULL;

	return u && u->op ? u : NULL;
}

/* What gantry_rx_cancel begins with; then the script goes on instead of waiting. */
static void cancel(struct user *u) UNCHECKED
{
	gantry_result r;

	if (!u || u->op->state == GANTRY_RX_DONE)
		return;
	rx_mu_lock(&run.rx->mu);
	r = rx_transfer_cancel(u->op);
	if (r != GANTRY_OK)
		rx_conn_fail(run.conn, r, "as posting failed");
	rx_mu_unlock(&run.rx->mu);
}

static void cancel_at_once(struct user *u) UNCHECKED
{
	if (!u)
		return;
	run.crooked |= u->op->state != GANTRY_RX_DONE; /* the peer had no time to answer */
	gantry_rx_cancel(u->op, 0);
	MUST(u->op->state == GANTRY_RX_DONE);
}

static void free_user(struct user *u)
{
	if (!u || !u->over)
		return;
	gantry_rx_op_free(u->op);
	u->op = NULL;
}

static void misuse(struct user *u) UNCHECKED
{
	struct gantry_rx_piece p = {&run, 8, 0, 1};
	struct gantry_rx_op *op = NULL;
	struct gantry_stream s;

	MUST(gantry_rx_send(run.conn, &p, 1, 0, &op) != GANTRY_OK && !op);
	if (!u || u->over || !u->total)
		return;
	MUST(gantry_rx_deregister(run.rx, u->base) == (u->op->state == GANTRY_RX_DONE ? GANTRY_OK : GANTRY_ERR_USAGE));
	if (u->op->state == GANTRY_RX_DONE)
		MUST(gantry_rx_register(run.rx, u->base, u->span) == GANTRY_OK);
	gantry_rx_stream_wait(u->op, &s);
}

/* ---- the script ---- */

static void set_network(uint8_t how)
{
	fake.hold_heads = how & 1;
	fake.deny = how >> 1 & 7;
	fake.no_vec = how >> 4 & 1;
	fake.pays = how >> 5 & 1;
	while (!fake.hold_heads && fake_take(RX_TAG_HEAD))
		;
}

static void fails(void)
{
	static const gantry_result errors[] = {GANTRY_ERR_PEER_LOST, GANTRY_ERR_PEER_CLOSED, GANTRY_ERR_PEER_SILENT};

	fake.error = errors[next() % 3];
	run.crooked = 1;
}

/* Heads first: they get through whatever becomes of data, and say what the data is. */
static int take_data(void)
{
	while (fake_take(RX_TAG_HEAD))
		;
	return fake_take(RX_TAG_DATA);
}

static void peer_step(enum op op)
{
	int n = next(), ours = run.nours ? n % run.nours : 0, theirs = run.ntheirs ? n % run.ntheirs : 0;

	switch (op) {
	case OP_DATA:
		for (n = n % 8 + 1; n && send_data(); n--)
			;
		break;
	case OP_END:
		end_theirs(theirs);
		break;
	case OP_GRANT:
		grant(ours, next());
		break;
	case OP_TAKEN:
		taken(ours);
		break;
	case OP_REJECT:
		reject(ours);
		break;
	case OP_STOP:
		stop(ours, next() & 7);
		break;
	case OP_TAKE:
		for (n = n % 8 + 1; n && take_data(); n--)
			;
		break;
	case OP_DEVICE:
		for (n = n % 8 + 1; n; n--)
			if (!fake_stream_run(n & 1 ? run.rx->in_stream : run.rx->out_stream))
				fake_stream_run(n & 1 ? run.rx->out_stream : run.rx->in_stream);
		break;
	default:
		break;
	}
}

static void step(void)
{
	enum op op = next() % OPS;

	switch (op) {
	case OP_SEND:
	case OP_RECV:
		post(op == OP_SEND);
		break;
	case OP_TEST:
		gantry_rx_poll(run.rx, NULL, 0);
		break;
	case OP_CANCEL:
		cancel(pick_user());
		break;
	case OP_FREE:
		free_user(pick_user());
		break;
	case OP_OFFER:
		offer();
		break;
	case OP_NETWORK:
		set_network(next());
		break;
	case OP_HEAD:
		any_head();
		break;
	case OP_BYTES:
		any_bytes();
		break;
	case OP_FAILS:
		fails();
		break;
	case OP_CANCEL_0:
		cancel_at_once(pick_user());
		break;
	case OP_MISUSE:
		misuse(pick_user());
		break;
	default:
		peer_step(op);
	}
	look();
}

/* One round of a peer that does all it can; 0: nothing is left to do. */
static int drain_round(void)
{
	int moved = 0;

	for (int k = 0; k < run.nours; k++) {
		grant(k, 0);
		taken(k);
		if (run.ours[k].owes)
			stop(k, 0);
	}
	for (int k = 0; k < run.ntheirs; k++)
		if (run.theirs[k].owes)
			end_theirs(k);
	while (take_data())
		moved = 1;
	while (send_data())
		moved = 1;
	while (fake_stream_run(run.rx->in_stream) || fake_stream_run(run.rx->out_stream))
		moved = 1;
	rx_mu_lock(&run.rx->mu);
	moved |= rx_progress(run.rx);
	rx_mu_unlock(&run.rx->mu);
	look();
	return moved;
}

/* The script is over: with a faithful peer everything that has met ends. */
static void drain(void)
{
	int rounds = 0, idle = 0;

	set_network(0);
	while (idle < 3) {
		MUST(++rounds < DRAIN);
		idle = drain_round() ? 0 : idle + 1;
	}
	for (int i = 0; i < run.nusers; i++) {
		const struct user *u = &run.users[i];

		MUST(!u->op || u->over || (!u->send && u->op->phase == RX_WAITING));
	}
	MUST(current(run.ours, run.order_ours, run.granted_ours) < 0);
	MUST(current(run.theirs, run.order_theirs, run.granted_theirs) < 0);
	MUST(gantry_list_empty(&run.conn->out.data) && gantry_list_empty(&run.conn->in.data));
	MUST(!rx_flights(&run.conn->in) && !rx_flights(&run.conn->out));
}

/* ---- life ---- */

static void begin(void) UNCHECKED
{
	uint8_t how = next();
	struct gantry_rx *rx = calloc(1, sizeof(*rx));

	fake_begin();
	MUST(rx);
	gantry_list_init(&rx->regions);
	gantry_list_init(&rx->conns);
	gantry_list_init(&rx->listeners);
	gantry_list_init(&rx->unpacks);
	rx->net = &fake.net;
	rx->device = &fake.dev;
	rx->message = RX_MESSAGE_MIN; /* the peer asks for smaller ones */
	rx->depth = 1u << (how & 3);
	rx->stage_limit = (how >> 2 & 3) * rx->message;
	rx->max_descs = how >> 4 & 1 ? 16 : 64;
	gantry_pinned_init(&rx->stages, rx->device, rx->message);
	gantry_pinned_init(&rx->descs, rx->device, rx->max_descs * sizeof(struct gantry_unpack_desc));
	gantry_pinned_init(&rx->lists, rx->device, rx->max_descs * sizeof(struct gantry_unpack_desc));
	rx->path = how >> 5 & 1 ? GANTRY_RX_PATH_EMULATED : GANTRY_RX_PATH_HOST;
	fake.no_vec = fake.pays = how >> 6 & 1;
	fake.no_mr = how >> 7;
	run.rx = rx;
	MUST(rx_conn_create(rx, 7, &run.conn) == GANTRY_OK);
	run.conn->out.comm = &fake.out;
	run.conn->in.comm = &fake.in;
	if (rx->path == GANTRY_RX_PATH_EMULATED)
		run.conn->device_handle =
			(struct gantry_net_device_handle){.type = GANTRY_NET_DEVICE_UNPACK, .handle = &fake.handle};
	strcpy(run.conn->peer, "the script");
	rx_mu_lock(&run.rx->mu);
	MUST(rx_conn_start(run.conn) == GANTRY_OK);
	rx_mu_unlock(&run.rx->mu);
	say_kind(RX_UP, 0, 0, 0);
}

static void finish(void) UNCHECKED
{
	set_network(0);
	gantry_rx_conn_close(run.conn);
	for (int i = 0; i < run.nusers; i++) {
		struct user *u = &run.users[i];

		MUST(!u->op || u->op->state == GANTRY_RX_DONE);
		if (u->op && !u->over)
			user_done(u);
		gantry_rx_op_free(u->op);
	}
	MUST(gantry_list_empty(&run.rx->regions));
	gantry_rx_close(run.rx);
	fake_end();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	logs_drop();
	MUST(gantry_params_load(0) == GANTRY_OK);
	check_decoders(data, size);
	memset(&run, 0, sizeof(run));
	run.in = (struct script){data, data + size};
	begin();
	for (int i = 0; i < MAX_STEPS && run.in.at < run.in.end; i++)
		step();
	if (!run.crooked)
		drain();
	run.crooked = 1; /* this side closes whatever is under way */
	finish();
	return 0;
}
