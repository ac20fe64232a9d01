/*
 * Sleeping and waking on eventcounts: no wake-up is lost. Checked with Spin by tests/system/spin.sh.
 *
 * What is modelled. The waiting side of include/gantry/fifo.h: struct gantry_eventcount, and the order in which a waiter and
 * those who publish touch it.
 *
 *   waiter                                       notifier
 *     look                                         publish
 *     old = seq                                    if waiting:
 *     waiting = 1                                      seq++
 *     look again (at the word, then at abort)          wake whoever sleeps on seq
 *     sleep if seq == old still
 *     waiting = 0, and from the start
 *
 * Two configurations:
 *   (none)   one sleeper, two notifiers that publish when they like; it waits for a word of the one and a word of the
 *            other in turn, so it is also woken for words that it does not wait for. A proxy serving two connections.
 *   -DPAIR   a producer and a consumer with eventcounts of their own, each sleeping until the other publishes (slots one way,
 *            head the other), with one slot, so that both sleep as often as possible. A kernel on CPU threads, a proxy.
 *
 * In both, somebody may set abort at any time, or never, and then notifies every eventcount in the same way; notifiers may stop
 * publishing as soon as abort is set. One spurious wake-up (a signal) may come at any time, or never.
 *
 *   model       fifo.h, code
 *   seq[d]      eventcount->seq, the futex word            waiting[d]  eventcount->waiting
 *   asleep[d]   a thread is in the futex's queue     word[i]     a slot's meta, an offer's word or head
 *
 * Properties. No invalid end state: nobody sleeps for ever, since nothing here has a timeout. And under weak fairness
 * everybody ends, whether abort is set or not (ltl ends, with -DLIVE).
 *
 * What is abstracted, and why that is sound.
 *   - Timeouts are left out. The code may have them, for reports; the protocol must not need them.
 *   - Accesses interleave: sequential consistency, which is what the code must provide. Between publishing and reading
 *     `waiting`, and between setting `waiting` and looking again, stands a sequentially consistent fence (or all four
 *     accesses are sequentially consistent): a release store alone may become visible after the load that follows it.
 *     That reordering is what BUG_WAKE=1 and BUG_WAKE=2 plant.
 *   - futex_wait compares and sleeps in one step, and a wake-up cannot come between: the kernel promises it. Whether a
 *     wake-up is for one or for all does not matter with one sleeper per eventcount.
 *   - seq does not wrap around. In the code it does after 2^32 wake-ups; a waiter would have to be stopped between
 *     reading seq and sleeping for exactly that many, and a producer notifies at most once per step that it publishes, of
 *     which at most GANTRY_STEPS per connection pass while the waiter stands still.
 *   - Looking before announcing (spinning, yielding) is one look: more of them change no shared word.
 *
 * Planted bugs: each must be found.
 *   BUG_WAKE=1   the notifier reads `waiting` before it publishes
 *   BUG_WAKE=2   the waiter does not look again after announcing itself
 *   BUG_WAKE=3   the waiter reads seq after it has looked again
 *   BUG_ABORT    whoever sets abort does not notify
 */
#ifndef BUG_WAKE
#define BUG_WAKE 0
#endif
#ifndef ROUNDS
#define ROUNDS 2 /* words that each notifier publishes */
#endif

byte seq[2];
bool waiting[2];
bool asleep[2];
byte word[2];
bool aborted;
byte ended;
#ifdef PAIR
#define DOORS 2
#define ENDS 2
#else
#define DOORS 1
#define ENDS 3
#endif

/* `seen` is the notifier's own. */
inline ring_if_seen(d)
{
	if
	:: seen -> seq[d]++; asleep[d] = false
	:: else
	fi;
	seen = false
}

inline publish(d, place, value)
{
#if BUG_WAKE == 1
	seen = waiting[d];
	place = value;
#else
	place = value;
	seen = waiting[d];
#endif
	ring_if_seen(d)
}

/* Until `ready` or abort. `old` is the sleeper's own. */
inline wait_for(d, ready)
{
	do
	:: ready || aborted -> break
	:: else ->
#if BUG_WAKE != 3
		old = seq[d];
#endif
		waiting[d] = true;
#if BUG_WAKE != 2
		if
		:: ready -> waiting[d] = false; break
		:: else
		fi;
		if
		:: aborted -> waiting[d] = false; break
		:: else
		fi;
#endif
#if BUG_WAKE == 3
		old = seq[d];
#endif
		if
		:: d_step { seq[d] == old -> asleep[d] = true }
		:: seq[d] != old
		fi;
		old = 0;
		!asleep[d];
		waiting[d] = false
	od;
	old = 0
}

#ifdef PAIR
proctype producer() /* sleeps on eventcount 0, writes word 0 */
{
	byte s, old;
	bool seen;

	do
	:: s == 2 * ROUNDS -> break
	:: else ->
		wait_for(0, word[1] + 1 > s);
		if
		:: aborted -> break
		:: word[1] + 1 > s
		fi;
		s++;
		publish(1, word[0], s)
	od;
	ended++
}

proctype consumer() /* sleeps on eventcount 1, writes word 1 */
{
	byte s, old;
	bool seen;

	do
	:: s == 2 * ROUNDS -> break
	:: else ->
		wait_for(1, word[0] > s);
		if
		:: aborted -> break
		:: word[0] > s
		fi;
		s++;
		publish(0, word[1], s)
	od;
	ended++
}
#else
proctype sleeper()
{
	byte n, old;

	do
	:: n == 2 * ROUNDS -> break
	:: else ->
		wait_for(0, word[n % 2] > n / 2);
		if
		:: aborted -> break
		:: word[n % 2] > n / 2
		fi;
		n++
	od;
	ended++
}

proctype notifier(byte i)
{
	bool seen;

	do
	:: word[i] == ROUNDS -> break
	:: aborted -> break
	:: word[i] < ROUNDS -> publish(0, word[i], word[i] + 1)
	od;
	ended++
}
#endif

proctype environment()
{
	bool seen;

	if
	:: skip
#ifdef BUG_ABORT
	:: aborted = true
#elif DOORS == 1
	:: publish(0, aborted, true)
#else
	:: publish(0, aborted, true); seen = waiting[1]; ring_if_seen(1)
#endif
	fi
}

proctype signal()
{
	if
	:: skip
	:: asleep[0] = false
#if DOORS > 1
	:: asleep[1] = false
#endif
	fi
}

init
{
	atomic {
#ifdef PAIR
		run producer();
		run consumer();
#else
		run sleeper();
		run notifier(0);
		run notifier(1);
#endif
		run environment();
		run signal()
	}
}

#ifdef LIVE
ltl ends { <> (ended == ENDS) }
#endif
