/*
 * Sessions that outlive their sockets (docs/design/0031). Checked with Spin by tests/system/spin.sh, which has the bounds.
 *
 * What is modelled. Two processes with a session of a control lane (0) and two bulk lanes. One of them sends EAGERS small
 * messages on lane 0 and a bulk message of PIECES pieces on the bulk lanes, each from a buffer that is its user's again
 * when the receiver has said that it has it. The dialling side opens every socket, the other one accepts.
 *
 *   model                      src/net/tcp
 *   sock[], NONE               the socket of a lane; none: the lane is stopped
 *   gen[]                      the lane's generation: how many sockets it has had; of lane 0, the epoch
 *   cnt[]                      whole pieces that came on a lane     eg    eager messages that came
 *   given[], idx[], where[]    the ring of pieces that a lane was given (struct tcp_kept)
 *   HELLO, WELCOME             the hand-shake of a new socket: lane, generation, eager messages that came
 *   STOPPED(k, g, n)           generation g of lane k is not read any more, n pieces have come on the lane
 *   STATE(n, whole)            eager messages received, and whether the bulk message is
 *   eback[], ecopy[]           the buffer of an eager message is its user's again; the message was copied before (tcp_resume_adopt)
 *
 * Faults. A socket breaks FAULTS times at most, at any moment, also one whose hand-shake is under way. Each side notices at
 * any time later, and reads any part of what was under way before that. What is written to a broken socket is lost. With
 * -DRESTART the side that does not send dies and starts anew at any moment. Bytes of a lane stay in order; lanes overtake
 * each other, as do hand-shakes. Both sides may notice at once, or one only by the other's hello.
 *
 * Properties.
 *   - every eager message is delivered once and in order; every piece is put in its place once
 *   - nothing is written to the receiver's buffer once the message is whole, and so the user's again
 *   - no byte is taken from a sender's buffer once that is its user's again
 *   - no deadlock: all is delivered and every buffer given back, or, after a restart, the other side fails
 *
 * What is abstracted. Time: a side that has lost the control lane dials for ever and does not reach its deadline, but for a
 * peer that restarted. A refusal that means "not yet" is a hello that waits. The other direction sends nothing: it would
 * use the same frames on its own counters. Threads: a bulk lane gets its socket in two steps of the service thread, the end of the
 * hand-shake and the installation; others read the control lane between them. All else is one step. A piece is written in one step, after one in which it has begun.
 *
 * Planted bugs: each must be found.
 *   BUG_EARLY     a piece's buffer is given back when the socket has taken it
 *   BUG_REQUEUE   the sender does not wait for the receiver's count, but sends again all that a broken lane was given
 *   BUG_GENERATION  a bulk lane's hello of an old generation is accepted
 *   BUG_COUNT     a piece is counted when it begins to come
 *   BUG_STOP      the receiver tells its count and goes on reading
 *   BUG_RETELL    what was told on the lost control lane is not told again
 *   BUG_REWIND    eager messages that the lost control lane had taken are not sent again
 *   BUG_HELD      the buffer of an eager message is given back when the socket has taken it
 *   BUG_INSTALL   whether a bulk lane still waits for its socket is looked at before the welcome, and not when it is installed
 *   BUG_SESSION   a process that has restarted takes the session for its own
 *
 * With -DSTREAM the other user of resume is modelled instead: a stream of frames (src/inet/stream.h), as the control plane has it.
 * Side 0 is the rank, which dials; side 1 is the root, which accepts and never dials. Each sends FRAMES frames to the other.
 *
 *   model                      src/inet/stream.h, ctl_dial.c, hub_resume.c
 *   next[]                     frames before it are written, those from acked[] on are kept
 *   sent[], acked[]            frames that were ever written; that the peer is known to have
 *   received[], twice[]        frames that came; how many of the next ones came before
 *   FRAME(x), LIFE(n)          x is for the property only, frames have no numbers; n frames have come
 *   HELLO(g, n), WELCOME(n, f) socket g of the stream, n frames have come; the same, and f is the first frame that is sent
 *
 * The rank dials when its socket broke, and at any other time, because it may take the socket for dead; it reads on from the old one
 * until it is answered. It may give up an attempt at any time, also one that was accepted. The root stops reading the old
 * socket when it answers. Signs of life are sent after a frame came and after a resume. Faults are as above; with -DGONE
 * there are so few sockets that the last fault is for good.
 *
 * Properties.
 *   - every frame is delivered once and in order
 *   - all frames are delivered and acknowledged, or both ends report an error (GONE); without GONE no end reports one
 *
 * Planted bugs of the stream.
 *   BUG_TWICE     frames that come twice are not dropped
 *   BUG_TRIM      any count frees all frames that were written
 *   BUG_REWIND    frames that the lost socket had taken are not sent again
 *   BUG_FIRST     the answer names the frame behind the hello's count, though later counts have freed it
 *   BUG_ANSWER    the root reads on from the old socket after it has told its count
 *   BUG_REFUSE    the root gives up and leaves later hellos unanswered: the rank never reports an error
 */
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef DEPTH
#define DEPTH 2 /* of a socket: frames under way */
#endif
#define NONE 255

#ifdef STREAM

#ifndef FRAMES
#define FRAMES 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1 /* beside a socket that works, or given up */
#endif
#ifdef GONE
#define SOCKETS (FAULTS + ATTEMPTS)
#else
#define SOCKETS (1 + FAULTS + ATTEMPTS)
#endif

mtype = { HELLO, WELCOME, FRAME, LIFE };
chan to[2 * SOCKETS] = [DEPTH] of { mtype, byte, byte };
bool broken[SOCKETS], tell[2], failed[2], impossible;
byte sock[2], next[2], sent[2], acked[2], received[2], twice[2], gen, root_gen, dial = NONE, sockets = 1, faults = FAULTS, attempts = ATTEMPTS;
hidden byte a, b, pos;
hidden mtype m;

#define UP(sd) (sock[sd] != NONE)
#define IN(sd) to[2 * sock[sd] + (sd)]
#define OUT(sd) to[2 * sock[sd] + 1 - (sd)]
#define DELIVERED (received[0] == FRAMES && received[1] == FRAMES && acked[0] == FRAMES && acked[1] == FRAMES)
#define finished (DELIVERED || failed[0] && failed[1])
#define COUNTS(sd, n) ((n) >= acked[sd] && (n) <= sent[sd])
#define LAST (sockets == SOCKETS)

/* A count that cannot be. Nothing here lies. */
inline refuse(sd)
{
	impossible = true;
	assert(!impossible);
	failed[sd] = true
}

inline put(sd, mt, x)
{
	if
	:: broken[sock[sd]]
	:: else -> OUT(sd)!mt(x, 0)
	fi
}

/* It is reset; what was not read is lost. */
inline cut(sd)
{
	if
	:: UP(sd) ->
		do
		:: nempty(IN(sd)) -> IN(sd)?_(_, _)
		:: else -> break
		od;
		broken[sock[sd]] = true;
		sock[sd] = NONE
	:: else
	fi
}

inline take_frame(sd, x)
{
	if
	:: twice[sd] -> twice[sd]--
	:: else -> assert(x == received[sd]); received[sd]++
	fi;
	tell[sd] = true
}

/* Frames that wait to be sent again stay: the peer expects them. */
inline take_count(sd, n)
{
	if
	:: n > acked[sd] && !COUNTS(sd, n) -> refuse(sd)
#ifdef BUG_TRIM
	:: else -> acked[sd] = next[sd]
#else
	:: else ->
		if
		:: n > acked[sd] -> acked[sd] = (n < next[sd] -> n : next[sd])
		:: else
		fi
#endif
	fi
}

inline read_socket(sd)
{
	IN(sd)?m(a, b);
	if
	:: m == FRAME -> take_frame(sd, a)
	:: m == LIFE -> take_count(sd, a)
	:: else -> assert(false)
	fi
}

/* The peer has nn frames, and goes on with frame ff. */
inline resume(sd, so, nn, ff)
{
	cut(sd);
	sock[sd] = so;
	acked[sd] = nn;
#ifndef BUG_REWIND
	next[sd] = nn;
#endif
#ifndef BUG_TWICE
	twice[sd] = received[sd] - ff;
#endif
	tell[sd] = true
}

/* The rank has a new socket. */
inline dial_root()
{
	dial = sockets;
	sockets++;
	gen++;
	to[2 * dial + 1]!HELLO(gen, received[0])
}

inline answered()
{
	to[2 * dial]?m(a, b);
	if
	:: !COUNTS(0, a) || b > received[0] -> refuse(0)
	:: else -> resume(0, dial, a, b)
	fi;
	dial = NONE
}

/* The root has a hello of a newer socket than its own: a is its generation, b the rank's count. */
inline accept_rank(so)
{
	root_gen = a;
#ifdef BUG_FIRST
	pos = b;
#else
	pos = (acked[1] > b -> acked[1] : b);
#endif
	if
	:: b > acked[1] && !COUNTS(1, b) -> refuse(1)
	:: else ->
		if
		:: !broken[so] -> to[2 * (so)]!WELCOME(received[1], pos)
		:: else
		fi;
		a = received[1];
		pos = (acked[1] > b -> acked[1] : b);
#ifdef BUG_ANSWER
		do
		:: UP(1) && nempty(IN(1)) && !twice[1] ->
			IN(1)?m(b, _);
			if
			:: m == FRAME -> take_frame(1, b)
			:: else
			fi
		:: else -> break
		od;
		a = received[1];
#endif
		resume(1, so, pos, a)
	fi
}

#ifdef BUG_REFUSE
#define LISTENS (!failed[1])
#else
#define LISTENS true
#endif
#define ACCEPT(so) \
	:: atomic { me == 1 && LISTENS && (so) < sockets && to[2 * (so) + 1]?[HELLO, _, _] -> \
		to[2 * (so) + 1]?m(a, b); \
		if \
		:: failed[1] || a <= root_gen -> broken[so] = true \
		:: else -> accept_rank(so) \
		fi }

proctype side(byte me)
{
	do
	:: atomic { finished -> break }
	:: atomic { !failed[me] && UP(me) && nempty(IN(me)) -> read_socket(me) }
	:: atomic { !failed[me] && UP(me) && broken[sock[me]] -> cut(me) }
	:: atomic { !failed[me] && UP(me) && next[me] < FRAMES && nfull(OUT(me)) ->
		put(me, FRAME, next[me]);
		next[me]++;
		sent[me] = (sent[me] < next[me] -> next[me] : sent[me]) }
	:: atomic { !failed[me] && UP(me) && tell[me] && nfull(OUT(me)) -> put(me, LIFE, received[me]); tell[me] = false }
	:: atomic { me == 0 && !failed[0] && !UP(0) && dial == NONE && !LAST -> dial_root() }
	:: atomic { me == 0 && !failed[0] && UP(0) && dial == NONE && attempts && !LAST -> attempts--; dial_root() }
	:: atomic { me == 0 && !failed[0] && dial != NONE && nempty(to[2 * dial]) -> answered() }
	:: atomic { me == 0 && dial != NONE && broken[dial] -> dial = NONE }
	:: atomic { me == 0 && dial != NONE && attempts && !LAST -> attempts--; broken[dial] = true; dial = NONE }
	ACCEPT(1)
#if SOCKETS > 2
	ACCEPT(2)
#endif
#if SOCKETS > 3
	ACCEPT(3)
#endif
#if SOCKETS > 4
	ACCEPT(4)
#endif
#ifdef GONE
	/* The deadline: none of the sockets that there were is left. */
	:: atomic { !failed[me] && !UP(me) && LAST && (me == 1 || dial == NONE) -> failed[me] = true }
#endif
	od
}

#else /* lanes */

#ifndef EAGERS
#define EAGERS 2
#endif
#ifndef PIECES
#define PIECES 2
#endif
#ifndef LANES
#define LANES 3
#endif
#ifdef SENDER_ACCEPTS /* the other way round: the side that sends is the one that is dialled */
#define SENDER 1
#else
#define SENDER 0
#endif
#define DIALS 0 /* side 0 dials */
#define RECEIVER (1 - SENDER)
#define SOCKETS (LANES + FAULTS)

mtype = { HELLO, WELCOME, REFUSED, EAGER, PIECE, STATE, STOPPED };

chan to[2 * SOCKETS] = [DEPTH] of { mtype, byte, byte, byte }; /* to[2 * socket + side]: what that side may read */
bool broken[SOCKETS];
byte hello_lane[SOCKETS], hello_gen[SOCKETS]; /* what its hello says, for guards */
byte sockets = LANES, faults = FAULTS;

#define AT(side, k) ((side) * LANES + (k))
byte sock[2 * LANES], gen[2 * LANES], cnt[2 * LANES], peer_count[2 * LANES];
bool tell[2 * LANES], peer_stopped[2 * LANES], settled[2 * LANES]; /* settled: its pieces are queued again */
byte dial[LANES], dial_gen[LANES]; /* the dialling side's: a socket whose hand-shake is under way */
byte taken[2], taken_lane[2], taken_gen[2]; /* a socket whose hand-shake is over, and that is not a bulk lane's yet */

/* The sender. */
byte es, ek; /* next eager message to send; those before ek are known to have come */
bool eback[EAGERS], ecopy[EAGERS];
byte where[PIECES], idx[PIECES], given[LANES];
bool released[PIECES], all_released;
/* The receiver. */
byte eg;
byte placed[PIECES], nplaced, partial[LANES];
bool whole, tell_state;

bool restarted, failed;
#ifdef BUG_STOP
bool told_early;
#endif
#define finished (failed || (eg == EAGERS && whole && all_released && ek == EAGERS))

#define UP(side, k) (sock[AT(side, k)] != NONE)
#define OUT(side, k) to[2 * sock[AT(side, k)] + 1 - (side)]
#define IN(side, k) to[2 * sock[AT(side, k)] + (side)]

/* A broken socket takes bytes and loses them. */
inline put(sd, ln, mt, x, y, z)
{
	if
	:: broken[sock[AT(sd, ln)]]
	:: else -> OUT(sd, ln)!mt(x, y, z)
	fi
}

/* The receiver has the eager messages before the nn-th. */
inline know(nn)
{
	do
	:: ek < nn -> eback[ek] = true; ek++
	:: else -> break
	od
}

/* From the user's buffer, or from the copy. */
inline send_eager(sd)
{
	assert(!eback[es] || ecopy[es]);
	put(sd, 0, EAGER, es, 0, 0);
#ifdef BUG_HELD
	eback[es] = true;
#endif
	es++
}

/* The user waits for its buffer: the oldest message that it does not have back is copied. */
inline copy_eager()
{
	i = 0;
	do
	:: i < es && eback[i] -> i++
	:: else -> break
	od;
	if
	:: i < es -> ecopy[i] = true; eback[i] = true
	:: else
	fi
}

inline stop(sd, ln)
{
	broken[sock[AT(sd, ln)]] = true; /* it is reset */
	sock[AT(sd, ln)] = NONE;
	if
	:: ln > 0 ->
		tell[AT(sd, ln)] = true;
		if
		:: sd == RECEIVER -> partial[ln] = NONE
		:: else
		fi
	:: else
	fi
}

/* A new control lane: what the old one may have lost is told again. */
inline resume(sd, so, ge, nn)
{
	sock[AT(sd, 0)] = so;
	gen[AT(sd, 0)] = ge;
	if
	:: sd == SENDER ->
		know(nn);
#ifndef BUG_REWIND
		es = nn
#endif
	:: else
	fi;
#ifndef BUG_RETELL
	if
	:: sd == RECEIVER -> tell_state = true
	:: else
	fi;
	i = 1;
	do
	:: i < LANES -> tell[AT(sd, i)] = !UP(sd, i); i++
	:: else -> break
	od
#endif
}

/* A new bulk lane. */
inline replace(sd, ln, so, ge)
{
	sock[AT(sd, ln)] = so;
	gen[AT(sd, ln)] = ge;
	peer_stopped[AT(sd, ln)] = false;
	settled[AT(sd, ln)] = false;
	tell[AT(sd, ln)] = false
}

/* The hand-shake is over; until the installation the service thread does nothing else. */
inline take(sd, ln, so, ge)
{
	taken[sd] = so;
	taken_lane[sd] = ln;
	taken_gen[sd] = ge
}

#ifdef BUG_INSTALL
#define WAITS_FOR_IT(sd) true
#elif defined(BUG_GENERATION)
#define WAITS_FOR_IT(sd) settled[AT(sd, taken_lane[sd])]
#else
#define WAITS_FOR_IT(sd) \
	(taken_gen[sd] > gen[AT(sd, taken_lane[sd])] && settled[AT(sd, taken_lane[sd])])
#endif
inline install(sd)
{
	if
	:: WAITS_FOR_IT(sd) -> replace(sd, taken_lane[sd], taken[sd], taken_gen[sd])
	:: else -> broken[taken[sd]] = true
	fi;
	taken[sd] = NONE
}

inline on_stopped(sd, ln, ge, nn)
{
	if
	:: ge < gen[AT(sd, ln)]
	:: else ->
		if
		:: ge > gen[AT(sd, ln)] -> /* a hand-shake that this sd has never seen, or did not finish */
			assert(!UP(sd, ln));
			gen[AT(sd, ln)] = ge;
			if
			:: sd == DIALS && dial[ln] != NONE -> /* its welcome comes too late */
				broken[dial[ln]] = true;
				dial[ln] = NONE
			:: else
			fi;
			settled[AT(sd, ln)] = false;
			tell[AT(sd, ln)] = true
		:: else
		fi;
		peer_stopped[AT(sd, ln)] = true;
		peer_count[AT(sd, ln)] = nn
	fi
}

/* Pieces that have not come go into the queue again. */
inline settle(sd, ln)
{
	settled[AT(sd, ln)] = true;
	if
	:: sd == SENDER ->
		i = 0;
		do
		:: i < PIECES ->
			if
			:: where[i] == ln && idx[i] >= peer_count[AT(sd, ln)] -> where[i] = 0
			:: else
			fi;
			i++
		:: else -> break
		od;
		given[ln] = peer_count[AT(sd, ln)]
	:: else
	fi
}

inline release_all()
{
	i = 0;
	do
	:: i < PIECES -> released[i] = true; i++
	:: else -> break
	od;
	all_released = true
}

inline read_control(sd)
{
	IN(sd, 0)?m(a, b, c);
	if
	:: m == EAGER -> assert(a == eg); eg++; tell_state = true
	:: m == STATE ->
		know(a);
		if
		:: b -> release_all()
		:: else
		fi
	:: m == STOPPED -> on_stopped(sd, a, b, c)
	:: else -> assert(false)
	fi
}

/* Scratch: used within atomic steps only. */
hidden byte i, a, b, c, pos;
hidden mtype m;

inline send_piece(sd, ln)
{
	i = 0;
	do
	:: i < PIECES && (where[i] || released[i]) -> i++
	:: else -> break
	od;
	put(sd, ln, PIECE, i, 0, 0);
	where[i] = ln;
	idx[i] = given[ln];
	given[ln]++;
#ifdef BUG_EARLY
	released[i] = true
#endif
}

inline begin_piece(sd, ln)
{
	IN(sd, ln)?m(a, b, c);
	assert(!whole);
	partial[ln] = a;
#ifdef BUG_COUNT
	cnt[AT(sd, ln)]++
#endif
}

inline place_piece(sd, ln)
{
	assert(!whole && !released[partial[ln]]);
	placed[partial[ln]]++;
	assert(placed[partial[ln]] == 1);
	partial[ln] = NONE;
	nplaced++;
#ifndef BUG_COUNT
	cnt[AT(sd, ln)]++;
#endif
	whole = nplaced == PIECES;
	tell_state = true
}

inline stop_bulk(sd, ln)
{
#ifdef BUG_STOP
	if
	:: sd == RECEIVER && !told_early && !peer_stopped[AT(sd, ln)] -> tell[AT(sd, ln)] = true; told_early = true
	:: else -> stop(sd, ln)
	fi;
#else
	stop(sd, ln);
#endif
#ifdef BUG_REQUEUE
	i = 0;
	do
	:: sd == SENDER && i < PIECES ->
		if
		:: where[i] == ln && !released[i] -> where[i] = 0
		:: else
		fi;
		i++
	:: else -> break
	od
#endif
}

/* Whether the peer has taken the socket is not known: as if it had, and had stopped at once. */
inline redial(sd, ln)
{
	gen[AT(sd, ln)] = dial_gen[ln];
	dial[ln] = NONE;
	peer_stopped[AT(sd, ln)] = false;
	settled[AT(sd, ln)] = false;
	tell[AT(sd, ln)] = true
}

inline dial_lane(ln, nn)
{
	dial[ln] = sockets;
	hello_lane[sockets] = ln;
	hello_gen[sockets] = dial_gen[ln];
	sockets++;
	to[2 * dial[ln] + 1]!HELLO(ln, dial_gen[ln], nn)
}

inline accept_control(sd, so)
{
	if
	:: UP(sd, 0) -> stop(sd, 0)
	:: else
	fi;
	if
	:: !broken[so] -> to[2 * (so)]!WELCOME(eg, 0, 0)
	:: else
	fi;
	resume(sd, so, b, c)
}

inline accept_bulk(sd, so)
{
	if
	:: !broken[so] -> to[2 * (so)]!WELCOME(0, 0, 0)
	:: else
	fi;
	take(sd, a, so, b)
}

#define QUEUED (!released[0] && !where[0] || !released[PIECES - 1] && !where[PIECES - 1])

/* The service thread has nothing in its hands. */
#define IDLE (taken[me] == NONE)

/* What may happen on a bulk lane. */
#define BULK(ln) \
	:: atomic { me == SENDER && UP(me, ln) && QUEUED && nfull(OUT(me, ln)) -> send_piece(me, ln) } \
	:: atomic { me == RECEIVER && UP(me, ln) && partial[ln] == NONE && nempty(IN(me, ln)) -> begin_piece(me, ln) } \
	:: atomic { me == RECEIVER && UP(me, ln) && partial[ln] != NONE -> place_piece(me, ln) } \
	:: atomic { IDLE && UP(me, ln) && (broken[sock[AT(me, ln)]] || peer_stopped[AT(me, ln)]) -> stop_bulk(me, ln) } \
	:: atomic { UP(me, 0) && tell[AT(me, ln)] && nfull(OUT(me, 0)) -> \
		put(me, 0, STOPPED, ln, gen[AT(me, ln)], cnt[AT(me, ln)]); tell[AT(me, ln)] = false } \
	:: atomic { IDLE && !UP(me, ln) && peer_stopped[AT(me, ln)] && !settled[AT(me, ln)] -> settle(me, ln) } \
	:: atomic { IDLE && me == DIALS && !UP(me, ln) && settled[AT(me, ln)] && dial[ln] == NONE && sockets < SOCKETS -> \
		dial_gen[ln] = gen[AT(me, ln)] + 1; dial_lane(ln, 0) } \
	:: atomic { IDLE && me == DIALS && dial[ln] != NONE && nempty(to[2 * dial[ln]]) -> \
		to[2 * dial[ln]]?m(a, b, c); \
		if \
		:: m == WELCOME -> take(me, ln, dial[ln], dial_gen[ln]) \
		:: else -> failed = true \
		fi; \
		dial[ln] = NONE } \
	:: atomic { IDLE && me == DIALS && dial[ln] != NONE && broken[dial[ln]] -> redial(me, ln) }

/* A hello on a new socket, at the side that is dialled. It waits while its lane cannot be replaced yet. */
#ifdef BUG_GENERATION
#define OLD(so) (!hello_lane[so] && hello_gen[so] <= gen[AT(1, hello_lane[so])])
#else
#define OLD(so) (hello_gen[so] <= gen[AT(1, hello_lane[so])])
#endif
#define READY(so) (hello_lane[so] == 0 || (!UP(1, hello_lane[so]) && settled[AT(1, hello_lane[so])]))
#define ACCEPT(so) \
	:: atomic { IDLE && me != DIALS && !restarted && (so) < sockets && !IS_LANE(so) && (OLD(so) || READY(so)) && \
		    to[2 * (so) + 1]?[HELLO, _, _, _] -> \
		to[2 * (so) + 1]?m(a, b, c); \
		if \
		:: OLD(so) -> broken[so] = true \
		:: else -> \
			if \
			:: a == 0 -> accept_control(me, so) \
			:: else -> accept_bulk(me, so) \
			fi \
		fi }
#define IS_LANE(so) (sock[AT(1, 0)] == (so) || sock[AT(1, 1)] == (so) || sock[AT(1, LANES - 1)] == (so))

proctype side(byte me)
{
	do
	:: atomic { finished || (me == RECEIVER && restarted) -> break }
	:: atomic { UP(me, 0) && nempty(IN(me, 0)) -> read_control(me) }
	:: atomic { IDLE && UP(me, 0) && broken[sock[AT(me, 0)]] -> stop(me, 0) }
	:: atomic { taken[me] != NONE -> install(me) }
	:: atomic { me == SENDER && UP(me, 0) && es < EAGERS && nfull(OUT(me, 0)) -> send_eager(me) }
	:: atomic { me == SENDER && es > 0 && !eback[es - 1] -> copy_eager() }
	:: atomic { me == RECEIVER && UP(me, 0) && tell_state && nfull(OUT(me, 0)) ->
		put(me, 0, STATE, eg, whole, 0); tell_state = false }
	BULK(1)
#if LANES > 2
	BULK(2)
#endif
	:: atomic { IDLE && me == DIALS && !UP(me, 0) && dial[0] == NONE && sockets < SOCKETS ->
		dial_gen[0]++; dial_lane(0, eg) }
	:: atomic { IDLE && me == DIALS && dial[0] != NONE && nempty(to[2 * dial[0]]) ->
		to[2 * dial[0]]?m(a, b, c);
		if
		:: m == WELCOME -> resume(me, dial[0], dial_gen[0], a)
		:: else -> failed = true /* it does not know the session */
		fi;
		dial[0] = NONE }
	:: atomic { IDLE && me == DIALS && dial[0] != NONE && broken[dial[0]] -> dial[0] = NONE }
	ACCEPT(LANES)
#if FAULTS > 1
	ACCEPT((LANES + 1))
#endif
#if FAULTS > 2
	ACCEPT((LANES + 2))
#endif
	/* Its peer does not come back: the deadline. */
	:: atomic { restarted && me != DIALS && !UP(me, 0) -> failed = true }
	:: atomic { restarted && me == DIALS && dial[0] == NONE && sockets == SOCKETS && !UP(me, 0) -> failed = true }
	od
}

#endif

proctype breaks()
{
	do
	:: atomic { faults && !finished ->
		faults--;
		pos = 0;
		do
		:: pos < sockets - 1 -> pos++
		:: break
		od;
		broken[pos] = true }
	:: atomic { finished || !faults -> break }
	od
}

#ifdef RESTART
/* The receiver's process ends, and another one is there in its place: it knows no session. */
proctype restarts()
{
	if
	:: atomic { !finished ->
		restarted = true;
		pos = 0;
		do
		:: pos < sockets -> broken[pos] = true; pos++
		:: else -> break
		od;
#ifdef BUG_SESSION
		sock[AT(RECEIVER, 0)] = NONE;
#endif
		}
	:: finished -> goto over
	fi;
	do
	:: atomic { finished -> break }
	:: atomic { RECEIVER != DIALS && sockets > LANES && to[2 * (sockets - 1) + 1]?[HELLO(a, b, c)] ->
		to[2 * (sockets - 1) + 1]?m(a, b, c);
#ifdef BUG_SESSION
		eg = 0;
		to[2 * (sockets - 1)]!WELCOME(0, 0, 0);
		assert(eg >= ek)
#else
		to[2 * (sockets - 1)]!REFUSED(0, 0, 0)
#endif
		}
	od;
over:	skip
}
#endif

init
{
	atomic {
#ifndef STREAM
		taken[0] = NONE;
		taken[1] = NONE;
		i = 0;
		do
		:: i < LANES ->
			sock[AT(0, i)] = i;
			sock[AT(1, i)] = i;
			dial[i] = NONE;
			partial[i] = NONE;
			i++
		:: else -> break
		od;
#endif
		run side(0);
		run side(1);
		run breaks();
#ifdef RESTART
		run restarts()
#endif
	}
}
