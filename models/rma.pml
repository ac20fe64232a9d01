/*
 * Remote memory access: payload by a copy queue, signals read, added to and written behind it (src/rma, docs/design/0041). Checked with
 * Spin by tests/system/spin.sh.
 *
 * What is modelled. Two peers put to a third rank, in a context of each. In each of ROUNDS rounds peer 0 puts data in a piece, without a
 * signal, then a signal of 1 to word A, then one of 1 to word B; peer 1 puts data that its head carries, with a signal of 2
 * to word A. The owner of the memory waits for all of it, sets A back to 0, and the next round begins: no signal is on its way then.
 *
 *   model                      src/rma
 *   heads[], piece             messages of the two tags; a session delivers them in order, and repeats a head FAULTS times at most
 *   received[]                 heads that the session has passed on: a repeated one is dropped
 *   src, stage                 the sender's memory; a copy of it, from which the piece is sent (rma_tx.c)
 *   buf[], pbuf                receive buffers: of heads, of pieces; free again when the copy from there is over
 *   ops[]                      operations that are not over, of a context, in order (struct rma_context)
 *   left                       the piece of peer 0's put is not in the copy queue yet
 *   into, from                 the copy queues of the device: each in order, no order between the two
 *   expected[], known[], reading[], value[], unwritten, vals[]    rma_signal.c
 *   data[], word[]             memory that the owner's kernels see
 *
 * With -DHOST_WORD the words are in host memory: the CPU adds when the fence of the data is reached. Data is device memory all the same.
 *
 * Properties, looked at whenever a word changes, which is when a waiter may see it.
 *   - a signal shows after the data of its put and of earlier puts in its context, and after earlier signals there
 *   - additions of both peers count, each once: a word never exceeds what its peers have added, and reaches it (else: invalid end state)
 *   - what the owner has set a word to stays until the next signal
 *   - a put is done, and its memory overwritten by its user, only when the stage has the bytes
 *
 * What is abstracted. The mutex makes each step of the engine one step. The words are in the table from the beginning: a word that is
 * forgotten loses what is known of it. Every signal is expected. Heads are not lost: a session repeats what was lost, which looks like a delay.
 *
 * Planted bugs: each must be found.
 *   BUG_FENCE     a signal in host memory is added before the fence of the data (HOST_WORD)
 *   BUG_CONTEXT   such a signal waits for its own data, and not for that of earlier operations in its context (HOST_WORD)
 *   BUG_EARLY     a put is over when its head has come
 *   BUG_ORDER     an operation counts before an earlier one of its context
 *   BUG_KEPT      what is known of a word is kept when no signal is on its way
 *   BUG_STALE     a word is read although its last write is not over
 *   BUG_TWO       two words are unwritten at a time, and written in any order
 *   BUG_SLOT      the value of a write that is not over is overwritten
 *   BUG_TWICE     a repeated head counts again
 *   BUG_DONE      a put is done when its copy to the stage is queued
 */
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define VALUES 2 /* writes on their way: places for their values */
#define A 0
#define B 1
#define NONE 2
#define GARBAGE 99
#define HEADS0 3 /* of peer 0 in a round */

mtype = { HEAD, DATA, WORD };

chan heads[2] = [2] of { byte, byte, byte }; /* number, word, data: 0: none in it */
chan piece = [1] of { byte };
chan ops[2] = [3] of { bool, byte, byte }; /* its piece is to come; word; fence of its data */
chan into = [6] of { mtype, byte, byte };  /* DATA, peer; WORD, word, place of the value */
chan from = [2] of { byte };		   /* word */

byte data[2], word[2], round = 1;
byte src, stage, buf[2], pbuf, received[2], faults = FAULTS;
byte into_given, into_over, from_given, from_over; /* fences */
byte buf_fence[2], pbuf_fence;
bool left;

byte expected[2], value[2], was[2], vals[VALUES], slot_fence[VALUES], read_fence[2], write_fence[2], given;
bool known[2], reading[2], unwritten[2];
#define UNWRITTEN (unwritten[A] || unwritten[B])
#ifdef BUG_STALE
#define READABLE(w) (!known[w] && !reading[w] && !unwritten[w])
#else
#define READABLE(w) (!known[w] && !reading[w] && !unwritten[w] && into_over >= write_fence[w])
#endif
#ifdef BUG_SLOT
#define SLOT_FREE true
#else
#define SLOT_FREE (into_over >= slot_fence[given % VALUES])
#endif

/* What a waiter relies on. */
inline look()
{
	assert(word[A] <= 3 && word[B] <= round);
	assert(!(word[A] & 1) || data[0] == round);
	assert(!(word[A] & 2) || data[1] == round);
	assert(word[B] < round || (word[A] & 1))
}

/* ---- peers ---- */

proctype peer0()
{
	byte n, sent;
	bool staged, done;

	do
	:: atomic { n < ROUNDS && round == n + 1 ->
		src = round;
		staged = false;
		done = false;
		sent = 0 };
		do
		:: atomic { !staged -> stage = src; staged = true } /* the queue's copy */
#ifdef BUG_DONE
		:: atomic { !done -> done = true; src = GARBAGE }
#else
		:: atomic { staged && !done -> done = true; src = GARBAGE } /* the user's again */
#endif
		:: atomic { staged && done && sent < HEADS0 && nfull(heads[0]) ->
			heads[0]!n * HEADS0 + sent, (sent == 0 -> NONE : sent - 1), 0;
			sent++ }
		:: atomic { sent == HEADS0 && nfull(piece) -> piece!stage; break }
		:: atomic { sent && sent < HEADS0 && nfull(piece) && staged -> piece!stage; goto rest }
		od;
		goto over;
rest:		do
		:: atomic { sent < HEADS0 && nfull(heads[0]) -> heads[0]!n * HEADS0 + sent, sent - 1, 0; sent++ }
		:: atomic { sent == HEADS0 -> break }
		od;
over:		atomic { n++; sent = 0; staged = false; done = false }
	:: atomic { n == ROUNDS -> break }
	od
}

proctype peer1()
{
	byte n;

	do
	:: atomic { n < ROUNDS && round == n + 1 && nfull(heads[1]) -> heads[1]!n, A, round; n++ }
	/* The socket breaks when the head has come, and before the peer knows that. */
	:: atomic { n && faults && round == n && nfull(heads[1]) -> faults--; heads[1]!n - 1, A, round }
	:: atomic { n == ROUNDS && (round > ROUNDS || !faults) -> break }
	od
}

/* ---- the device ---- */

active proctype queue_into()
{
	byte x, y;
end:	do
	:: atomic { into?DATA(x, y) ->
		if
		:: x == 0 -> data[0] = pbuf
		:: else -> data[1] = buf[1]
		fi;
		into_over++;
		x = 0 }
	:: atomic { into?WORD(x, y) ->
		word[x] = vals[y];
		into_over++;
		look();
		x = 0;
		y = 0 }
	od
}

active proctype queue_from()
{
	byte x;
end:	do
	:: atomic { from?x -> was[x] = word[x]; from_over++; x = 0 }
	od
}

/* ---- the engine ---- */

inline begin_read(w)
{
	reading[w] = true;
	from!w;
	from_given++;
	read_fence[w] = from_given
}

/* A head has come. */
inline expect(w)
{
	if
	:: w != NONE ->
#ifndef BUG_KEPT
		if
		:: !expected[w] && !unwritten[w] -> known[w] = false
		:: else
		fi;
#endif
		expected[w]++;
		if
		:: READABLE(w) -> begin_read(w)
		:: else
		fi
	:: else
	fi
}

inline write_word(w)
{
	vals[given % VALUES] = value[w];
	into!WORD(w, given % VALUES);
	into_given++;
	slot_fence[given % VALUES] = into_given;
	write_fence[w] = into_given;
	given = (given + 1) % VALUES;
	unwritten[w] = false
}

inline copy_data(p)
{
	into!DATA(p, 0);
	into_given++
}

inline take_head(p)
{
	heads[p]?n, w, d;
	if
#ifndef BUG_TWICE
	:: n < received[p] /* a repeated one */
#endif
	:: else ->
		received[p] = n + 1;
#ifndef HOST_WORD
		expect(w);
#endif
		if
		:: d != 0 -> buf[p] = d; copy_data(p); buf_fence[p] = into_given; f = into_given
		:: else -> f = 0
		fi;
		if
		:: p == 0 && w == NONE -> left = true
		:: else
		fi;
		ops[p]!p == 0 && w == NONE, w, f
	fi;
	n = 0;
	w = 0;
	d = 0;
	f = 0
}

/* The data of an operation is where it belongs as far as its signal can see. */
#ifdef HOST_WORD
#ifdef BUG_FENCE
#define IN_PLACE(f) true
#else
#define IN_PLACE(f) (into_over >= (f))
#endif
#define KNOWN(w) true
#define ROOM(w) true
#else
#define IN_PLACE(f) true /* the signal's write follows in the queue */
#define KNOWN(w) (known[w])
#ifdef BUG_TWO
#define ROOM(w) true
#else
#define ROOM(w) (!unwritten[1 - (w)]) /* else that one is written first */
#endif
#endif

inline add_signal(w, add)
{
#ifdef HOST_WORD
	word[w] = word[w] + add;
	look()
#else
	expected[w]--;
	value[w] = value[w] + add;
	unwritten[w] = true
#endif
}

/* The oldest operation of a context, if it is over. */
inline finish_op(p, add)
{
	ops[p]?l, w, f;
	if
	:: w != NONE -> add_signal(w, add)
	:: else
	fi;
	l = false;
	w = 0;
	f = 0
}
#define SIGNAL_READY(p, x) (ops[p]?[_, x, _] && KNOWN(x) && ROOM(x))
#ifdef BUG_EARLY
#define HAS_PIECE true
#else
#define HAS_PIECE (!left)
#endif

/* Peer 0's signals have no data of their own: what they wait for is the newest copy of their context. */
#ifdef BUG_CONTEXT
#define DATA0_IN_PLACE true
#else
#define DATA0_IN_PLACE IN_PLACE(pbuf_fence)
#endif

proctype engine()
{
	byte n, w, d, f;
	bool l;
end:	do
	/* heads */
	:: atomic { nempty(heads[0]) && nfull(ops[0]) -> take_head(0) }
	:: atomic { nempty(heads[1]) && nfull(ops[1]) && into_over >= buf_fence[1] -> take_head(1) }
	/* the piece, once its head has come */
	:: atomic { left && nempty(piece) && into_over >= pbuf_fence ->
		piece?pbuf;
		copy_data(0);
		pbuf_fence = into_given;
		left = false }
	/* operations that are over */
	:: atomic { ops[0]?[_, NONE, _] && HAS_PIECE -> finish_op(0, 0) }
	:: atomic { SIGNAL_READY(0, A) && DATA0_IN_PLACE -> finish_op(0, 1) }
	:: atomic { SIGNAL_READY(0, B) && DATA0_IN_PLACE -> finish_op(0, 1) }
	:: atomic { SIGNAL_READY(1, A) && IN_PLACE(buf_fence[1]) -> finish_op(1, 2) }
#ifdef BUG_ORDER
	:: atomic { ops[0]??[false, A, 0] && KNOWN(A) && ROOM(A) -> ops[0]??false, eval(A), 0; add_signal(A, 1) }
#endif
#ifndef HOST_WORD
	/* words */
	:: atomic { reading[A] && from_over >= read_fence[A] -> value[A] = was[A]; reading[A] = false; known[A] = true }
	:: atomic { reading[B] && from_over >= read_fence[B] -> value[B] = was[B]; reading[B] = false; known[B] = true }
	:: atomic { expected[A] && READABLE(A) -> begin_read(A) }
	:: atomic { expected[B] && READABLE(B) -> begin_read(B) }
	:: atomic { unwritten[A] && SLOT_FREE -> write_word(A) }
	:: atomic { unwritten[B] && SLOT_FREE -> write_word(B) }
#ifndef BUG_KEPT
	:: atomic { known[A] && !expected[A] && !unwritten[A] && into_over >= write_fence[A] -> known[A] = false }
	:: atomic { known[B] && !expected[B] && !unwritten[B] && into_over >= write_fence[B] -> known[B] = false }
#endif
#endif
	od
}

/* ---- the owner ---- */

proctype owner()
{
	do
	:: atomic { round <= ROUNDS && word[A] == 3 && word[B] == round -> word[A] = 0; round++ }
	:: atomic { round > ROUNDS -> break }
	od
}

init
{
	atomic {
		run peer0();
		run peer1();
		run engine();
		run owner()
	}
}
