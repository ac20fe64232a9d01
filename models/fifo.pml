/*
 * The connection FIFO. Checked with Spin by tests/system/spin.sh, which has the bounds.
 *
 * What is modelled. The protocol that opens include/gantry/fifo.h: a sending kernel and its proxy share the FIFO A, a
 * receiving proxy and its kernel the FIFO B, and a lossless network lies between the proxies.
 *
 *   send_kernel --A--> send_proxy --> network --> recv_proxy --B--> recv_kernel        environment: may set abort
 *
 *   model                      fifo.h
 *   mem[A + META(s)], WHERE    slots[s % STEPS].meta, .where     mem[A + HEAD]        head
 *   OFFER_META(s), _WHERE      offers[s % STEPS].meta, .where    WORD, TAG, IS        gantry_slot_meta, _tag, _is
 *   PAYLOAD + place            buffs[] or pool, and from place USER on the user's registered buffer
 *   a_published, b_published   the producer's step (tail)        a_head, b_head       the consumer's step
 *
 * A kernel is a run of OP_STEPS steps. Between two kernels the user does what he likes with his buffer: it is filled
 * with new data or with junk. Configurations:
 *   -DSEND, -DRECV   the half with FIFO A, the half with FIFO B, or both: the chain
 *   -DPOOL=n         steps live in a pool of n pieces (OFFSET) instead of the ring (NORMAL); any free piece may be next
 *   -DPTRS=0|1|2     kernels that use the user's buffer (PTR): none, all, or as it comes, one kernel after another
 *   -DSC             stores are visible at once (for the chain, see below)
 *   -DSTEPS=n        slots; the tag of a word comes again after two laps
 *
 * Memory is relaxed (memory.pml): what one process stores becomes visible at any time later and in any order, but that
 * stores to one word stay in order, and that a release comes after everything stored before it. So the words of a slot
 * or of an offer, and the payload, are seen in every order that the absence of a release allows. Loads are in program
 * order; this is the acquire with which `meta`, offers and `head` are read. Where their order does not matter (`meta`
 * and `where`), each word is checked by itself.
 *
 * Each word carries the step that it was written for as a ghost. The protocol looks only at the tag made of it; the
 * assertions compare the ghost. Properties:
 *   - the payload that is read is the one written for that step: by the network (A), by the receiving kernel (B), and
 *     by the user when the kernel has ended (PTR). So no slot, piece or buffer is written too early
 *   - no word of another step is taken for this step's, in slots or offers
 *   - 0 <= published - head <= STEPS
 *   - a piece of the pool is handed out only when whoever had it before has read it
 *   - no deadlock: without abort every process ends after LAST steps; with abort it ends. As an invalid end state, and
 *     as `ltl ends` under weak fairness with -DLIVE. That is stronger than "abort, then all end"
 *
 * Three rules that fifo.h's words leave open came out of the model. The clean model keeps them; each has its planted
 * bug:
 *   1. Both words of a slot are written for every step, also `where` in mode NORMAL, which nobody reads; and both
 *      words of the offer for step s are written before head passes s, on every connection whose steps may ever look
 *      at offers, also for a step that does without (the words then say "none"). Otherwise a word that was left alone
 *      since the tag was the same is taken for this step's: zeroed memory at step 65535, or a user's buffer of 65536
 *      steps ago.
 *   2. A receiving proxy's post is a release in every mode. The data of a PTR step is payload too: only a sending
 *      kernel's PTR post carries none, because the stream has ordered the user's data before the kernel.
 *   3. `head` is a release: after the loads of the payload, and after the offers that were written before it, which
 *      bounds how long an old offer can stay visible.
 *
 * What is abstracted, and why that is sound.
 *   - STEPS is 2 or 3 instead of 8, and the tag repeats after 2 laps instead of 8192. The protocol knows STEPS only
 *     through `% STEPS` and the credit, and a word that can survive 8192 laps can survive 2. The tag goes around more
 *     than twice, and kernels begin at every slot. This is a bounded check, not an induction over the number of steps.
 *   - The payload of a step is one cell. Each cell of a longer one would go through the same stores and checks.
 *   - A wait blocks instead of polling: a look that finds nothing changes nothing. Sleeping is eventcount.pml's matter.
 *   - Work between two shared accesses is one step: storing into one's own store buffer commutes with what others do.
 *   - The network reads a payload at any time between being given it and reporting it sent, and writes one as a store
 *     of the receiving proxy (recv() into the buffer; data that a NIC writes must be flushed before the proxy reports
 *     it).
 *   - The halves let the network take and bring as it likes, so they include whatever any wire and far side do, and a
 *     kernel as the other end (shm, p2p), which does no more than a proxy and its network. The halves meet only in
 *     `sent` and `arrived`. So relaxed memory is checked in the halves; the chain, with -DSC, adds the back-pressure
 *     of a full receiver through the wire to the sender, and abort across it.
 *   - After abort the user's buffer stays as it is: whoever aborts keeps it until proxies and network have let go.
 *   - LL and LL128 carry their flags in the data and are not here. `tail` is for reports.
 *
 * Planted bugs: each must be found.
 *   BUG_RELEASE   a post is not ordered after its payload
 *   BUG_CREDIT    a producer waits for head + STEPS >= s (not to be seen in OFFSET, and in PTR on the receiving side:
 *                 a pool of at most STEPS pieces, and offers up to head + STEPS, are credit enough)
 *   BUG_ABORT     the sending kernel's wait for credit does not look at abort
 *   BUG_END       a sending kernel (PTR) ends without waiting for head
 *   BUG_WHERE     the send proxy takes `where` without looking at its tag
 *   BUG_STALE     1: a receiving kernel writes offers only for PTR steps  2: NORMAL posts leave `where` alone
 *                 3: a send proxy writes no offer for a step that did not need it
 *   BUG_HEAD      1: the receiving kernel's loads of the payload come after its store of head
 *                 2: the send proxy's store of head is not ordered after its offers
 *   BUG_ACQUIRE   the receiving kernel's loads of the payload come before that of `meta`
 */
#ifndef STEPS
#define STEPS 2
#endif
#define TAGS (2 * STEPS)
#define OP_STEPS (STEPS + 1) /* more than STEPS, so that credit matters within one kernel */
#ifndef OPS
#define OPS (STEPS + 1)
#endif
#define LAST (OPS * OP_STEPS)
#ifndef POOL
#define POOL 0
#endif
#ifndef PTRS
#define PTRS 0
#endif
#ifndef BUG_STALE
#define BUG_STALE 0
#endif
#ifndef BUG_HEAD
#define BUG_HEAD 0
#endif
#if defined(SEND) && defined(RECV)
#define CHAIN 1
#else
#define CHAIN 0
#endif

#define NORMAL 0
#define OFFSET 1
#define PTR 2
#if POOL
#define SIMPLE OFFSET
#define PIECES POOL
#else
#define SIMPLE NORMAL
#define PIECES 1
#endif
#define NO_PIECE PIECES

/* A word: the step it was written for (5 bits; only its tag may be looked at), then mode or place. */
#define WORD(s, rest) ((s) | (rest) << 5)
#define STEP(w) ((w) & 31)
#define REST(w) ((w) >> 5)
#define TAG(s) (((s) + 1) % TAGS)
#define IS(w, s) (TAG(STEP(w)) == TAG(s))
#define STALE(w, s) (IS(w, s) && STEP(w) != (s))
#define ZERO 23 /* zeroed memory: no step's word, with tag 0 */
#define JUNK 31 /* no step's payload */

#define HEAD 0
#define META(s) (1 + (s) % STEPS)
#define WHERE(s) (1 + STEPS + (s) % STEPS)
#define OFFER_META(s) (1 + 2 * STEPS + (s) % STEPS)
#define OFFER_WHERE(s) (1 + 3 * STEPS + (s) % STEPS)
#define PAYLOAD (1 + 4 * STEPS)
#define USER STEPS
#define SPAN (PAYLOAD + STEPS + OP_STEPS)
#define A 0
#define B (CHAIN * SPAN)
byte mem[SPAN + CHAIN * SPAN];

/* Who stores. */
#define SEND_KERNEL 0
#define SEND_PROXY 1
#define RECV_PROXY (2 * CHAIN)
#define RECV_KERNEL (2 * CHAIN + 1)
#define WRITERS (2 + 2 * CHAIN)
#define DEPTH (5 * STEPS)
#include "memory.pml"

#ifdef BUG_RELEASE
#define RELEASE 0
#else
#define RELEASE REL
#endif
#ifdef BUG_CREDIT
#define CREDIT(f, s) (mem[f + HEAD] + STEPS >= (s))
#else
#define CREDIT(f, s) (mem[f + HEAD] + STEPS > (s))
#endif
#define META_IS(f, s, mode) (IS(mem[f + META(s)], s) && REST(mem[f + META(s)]) == (mode))
#define WHERE_IS(f, s) IS(mem[f + WHERE(s)], s)
#define OFFER_IS(f, s) (IS(mem[f + OFFER_META(s)], s) && IS(mem[f + OFFER_WHERE(s)], s))
#define OFFER_STALE(f, s) (STALE(mem[f + OFFER_META(s)], s) || STALE(mem[f + OFFER_WHERE(s)], s))

bool aborted;
byte ended;
byte a_published, a_head, b_published, b_head;
byte seen, sent;      /* sends: given to the network, reported by it */
byte posted, arrived; /* receives: the same */
byte a_place[STEPS], b_place[STEPS];
byte b_mode[OPS];     /* what each receiving kernel will use; its proxy knows too */
#define MODE_OF(s) b_mode[(s) / OP_STEPS]

/* Pieces: `taken` is what the proxy believes, `busy` is the ghost: handed out, and not read yet. */
bool a_busy[PIECES], b_busy[PIECES];
#if PIECES == 1
#define ANY_FREE !taken[0]
#elif PIECES == 2
#define ANY_FREE (!taken[0] || !taken[1])
#else
#define ANY_FREE (!taken[0] || !taken[1] || !taken[2])
#endif
inline take_piece()
{
	if
	:: !taken[0] -> i = 0
#if PIECES > 1
	:: !taken[1] -> i = 1
#endif
#if PIECES > 2
	:: !taken[2] -> i = 2
#endif
	fi;
	taken[i] = true
}

inline fill_user(f, first, by)
{
	d_step {
		for (i : 0 .. OP_STEPS - 1) {
			mem[f + PAYLOAD + USER + i] = first + by * i
		}
		i = 0
	}
}

#ifdef SEND
#define s a_published
inline post(mode, place, release)
{
	if
	:: BUG_STALE == 2 && mode == NORMAL
	:: else -> store(SEND_KERNEL, A + WHERE(s), WORD(s, place))
	fi;
	store(SEND_KERNEL, release + A + META(s), WORD(s, mode));
	s++;
	assert(s - a_head <= STEPS)
}

proctype send_kernel()
{
	byte end, mode, i;

	do
	:: s == LAST -> break
	:: else ->
		atomic {
			end = s + OP_STEPS;
			if
			:: PTRS != 1 -> mode = SIMPLE
			:: PTRS != 0 -> mode = PTR; fill_user(A, s, 1)
			fi
		}
		do
		:: s == end -> break
		:: s != end ->
			if
			:: d_step { mode == NORMAL && CREDIT(A, s) ->
				store(SEND_KERNEL, A + PAYLOAD + s % STEPS, s);
				post(NORMAL, 0, RELEASE) }
			:: d_step { mode == OFFSET && CREDIT(A, s) && OFFER_IS(A, s) ->
				i = REST(mem[A + OFFER_WHERE(s)]);
				store(SEND_KERNEL, A + PAYLOAD + i, s);
				post(OFFSET, i, RELEASE);
				i = 0 }
			:: d_step { mode == PTR && CREDIT(A, s) -> post(PTR, USER + s % OP_STEPS, 0) }
			:: mode == OFFSET && CREDIT(A, s) && OFFER_STALE(A, s) -> assert(false)
#ifndef BUG_ABORT
			:: aborted -> goto out
#endif
			fi
		od;
		if
		:: mode != PTR
#ifdef BUG_END
		:: mode == PTR -> fill_user(A, JUNK, 0)
#else
		:: mode == PTR && mem[A + HEAD] >= s -> fill_user(A, JUNK, 0)
#endif
		:: mode == PTR && aborted -> goto out
		fi
	od;
out:
	ended++
}
#undef s

/* Step `seen` has been posted. If it has not been offered, its offer is written now, and says "none" (rule 1). */
inline give_to_network(place)
{
	assert(STEP(mem[A + META(seen)]) == seen);
	a_place[seen % STEPS] = place;
	if
	:: POOL && seen == offered ->
#if BUG_STALE != 3
		store(SEND_PROXY, A + OFFER_META(seen), WORD(seen, NORMAL));
		store(SEND_PROXY, A + OFFER_WHERE(seen), WORD(seen, 0));
#endif
		piece[seen % STEPS] = NO_PIECE;
		offered++
	:: POOL && seen < offered && place >= USER -> a_busy[piece[seen % STEPS]] = false
	:: else
	fi;
	seen++
}

proctype send_proxy()
{
	byte offered, i;
	byte piece[STEPS];
	bool taken[PIECES];

	do
	:: atomic { POOL && offered < LAST && offered < a_head + STEPS && ANY_FREE ->
		take_piece();
		assert(!a_busy[i]);
		a_busy[i] = true;
		piece[offered % STEPS] = i;
		store(SEND_PROXY, A + OFFER_META(offered), WORD(offered, OFFSET));
		store(SEND_PROXY, A + OFFER_WHERE(offered), WORD(offered, i));
		i = 0;
		offered++ }
	:: d_step { seen < LAST && META_IS(A, seen, NORMAL) -> give_to_network(seen % STEPS) }
#ifdef BUG_WHERE
	:: d_step { seen < LAST && (META_IS(A, seen, OFFSET) || META_IS(A, seen, PTR)) ->
#else
	:: d_step { seen < LAST && (META_IS(A, seen, OFFSET) || META_IS(A, seen, PTR)) && WHERE_IS(A, seen) ->
#endif
		assert(STEP(mem[A + WHERE(seen)]) == seen);
		i = REST(mem[A + WHERE(seen)]);
		give_to_network(i);
		i = 0 }
	:: seen < LAST && STALE(mem[A + META(seen)], seen) -> assert(false)
	:: d_step { a_head < sent ->
		if
		:: POOL && piece[a_head % STEPS] != NO_PIECE -> taken[piece[a_head % STEPS]] = false
		:: else
		fi;
		piece[a_head % STEPS] = 0;
		a_head++;
		assert(a_head <= a_published);
		store(SEND_PROXY, (BUG_HEAD == 2 -> 0 : REL) + A + HEAD, a_head) }
	:: aborted -> break
	:: a_head == LAST -> break
	od;
	ended++
}
#endif

/* In the chain at most one message is on its way. */
proctype network()
{
	byte i;
end:
	do
#ifdef SEND
	:: d_step { sent < seen && (!CHAIN || sent == arrived) ->
		i = a_place[sent % STEPS];
		assert(mem[A + PAYLOAD + i] == sent);
		if
		:: POOL && i < USER -> a_busy[i] = false
		:: else
		fi;
		a_place[sent % STEPS] = 0;
		i = 0;
		sent++ }
#endif
#ifdef RECV
	:: d_step { arrived < posted && (!CHAIN || arrived < sent) ->
		store(RECV_PROXY, B + PAYLOAD + b_place[arrived % STEPS], arrived);
		arrived++ }
#endif
	od
}

#ifdef RECV
#define WANTS(mode) (posted < LAST && MODE_OF(posted) == (mode) && CREDIT(B, posted))
#define ROOM (!POOL || freed + STEPS > posted) /* the proxy's own record of the slot's last step is done with */
proctype recv_proxy()
{
	byte freed, i;
	bool taken[PIECES];

	do
	:: d_step { WANTS(NORMAL) ->
		b_place[posted % STEPS] = posted % STEPS;
		posted++ }
	:: atomic { WANTS(OFFSET) && ROOM && ANY_FREE ->
		take_piece();
		assert(!b_busy[i]);
		b_busy[i] = true;
		b_place[posted % STEPS] = i;
		i = 0;
		posted++ }
	:: d_step { WANTS(PTR) && ROOM && OFFER_IS(B, posted) ->
		assert(REST(mem[B + OFFER_META(posted)]) == PTR);
		b_place[posted % STEPS] = REST(mem[B + OFFER_WHERE(posted)]);
		posted++ }
	:: WANTS(PTR) && OFFER_STALE(B, posted) -> assert(false)
	:: d_step { b_published < arrived ->
		i = b_place[b_published % STEPS];
		store(RECV_PROXY, B + WHERE(b_published), WORD(b_published, i));
		store(RECV_PROXY, RELEASE + B + META(b_published), WORD(b_published, MODE_OF(b_published)));
		i = 0;
		b_published++;
		assert(b_published - b_head <= STEPS) }
	:: d_step { POOL && freed < mem[B + HEAD] ->
		i = b_place[freed % STEPS];
		if
		:: i < USER -> taken[i] = false
		:: else
		fi;
		i = 0;
		freed++ }
	:: aborted -> break
	:: b_published == LAST -> break
	od;
	ended++
}

#define s b_head
/* Offers, as far ahead as the slots go, of this kernel's steps. Rule 1: also of those that are not PTR. */
inline offer_steps()
{
	d_step {
		do
		:: PTRS != 0 && offered < end && offered < s + STEPS ->
			if
			:: BUG_STALE == 1 && MODE_OF(offered) != PTR
			:: else ->
				store(RECV_KERNEL, B + OFFER_META(offered), WORD(offered, MODE_OF(offered)));
				store(RECV_KERNEL, B + OFFER_WHERE(offered), WORD(offered, USER + offered % OP_STEPS))
			fi;
			offered++
		:: else -> break
		od
	}
}

proctype recv_kernel()
{
	byte end, offered, i;
#ifdef BUG_ACQUIRE
	byte early;
#endif

	do
	:: s == LAST -> break
	:: s != LAST ->
		end = s + OP_STEPS;
		fill_user(B, JUNK, 0);
		do
		:: s == end -> break
		:: s != end ->
			offer_steps();
#ifdef BUG_ACQUIRE
			early = mem[B + PAYLOAD + s % STEPS];
#endif
			if
			:: META_IS(B, s, NORMAL) -> i = s % STEPS
			:: META_IS(B, s, OFFSET) && WHERE_IS(B, s) -> i = REST(mem[B + WHERE(s)])
			:: META_IS(B, s, PTR) -> i = USER + s % OP_STEPS
			:: STALE(mem[B + META(s)], s) -> assert(false)
			:: META_IS(B, s, OFFSET) && STALE(mem[B + WHERE(s)], s) -> assert(false)
			:: aborted -> goto out
			fi;
#if BUG_HEAD == 1
			store(RECV_KERNEL, REL + B + HEAD, s + 1);
#endif
			d_step {
#ifdef BUG_ACQUIRE
				assert(early == s);
#endif
				assert(mem[B + PAYLOAD + i] == s);
				if
				:: POOL && i < USER -> b_busy[i] = false
				:: else
				fi;
				i = 0;
				s++;
				assert(s <= b_published);
#if BUG_HEAD != 1
				store(RECV_KERNEL, REL + B + HEAD, s)
#endif
			}
		od;
		if
		:: MODE_OF(s - 1) == PTR ->
			d_step {
				for (i : 0 .. OP_STEPS - 1) {
					assert(mem[B + PAYLOAD + USER + i] == s - OP_STEPS + i)
				}
				i = 0
			}
		:: else
		fi
	od;
out:
	ended++
}
#undef s
#endif

proctype environment()
{
	if
	:: aborted = true
	:: skip
	fi
}

init
{
	byte i;

	atomic {
		for (i : 0 .. SPAN - 1) {
			mem[A + i] = ZERO;
			mem[B + i] = ZERO
		}
		mem[A + HEAD] = 0;
		mem[B + HEAD] = 0;
#ifdef RECV
		for (i : 0 .. OPS - 1) {
			if
			:: PTRS != 1 -> b_mode[i] = SIMPLE
			:: PTRS != 0 -> b_mode[i] = PTR
			fi
		}
#endif
		i = 0;
#ifdef SEND
		run send_kernel();
		run send_proxy();
#endif
#ifdef RECV
		run recv_proxy();
		run recv_kernel();
#endif
		run network();
		run environment();
#ifndef SC
		run memory(0);
		run memory(1);
#if CHAIN
		run memory(2);
		run memory(3);
#endif
#endif
	}
}

#ifdef LIVE
#if CHAIN
ltl ends { <> (ended == 4) }
#else
ltl ends { <> (ended == 2) }
#endif
#endif
