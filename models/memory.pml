/*
 * Relaxed memory, for models that include this file after they have defined WRITERS, DEPTH and the array mem[] of at
 * most 64 words.
 *
 * Each writer has a store buffer of DEPTH entries, and a process `memory` for it, which makes entries visible at any
 * time and in any order that two rules leave: stores to one word stay in order, and a store to REL + loc, a release,
 * becomes visible after all that its writer stored before it. Stores that come after a release may overtake it. A
 * release does not make its writer wait, and a full buffer is an error, not a wait, so nothing but the rules orders
 * stores. Loads read mem[] at once and in program order: acquires. Nobody here reads back a word that he has written,
 * so there is no forwarding from the buffer. With -DSC every store is visible at once.
 */
#define REL 64
#ifdef SC
inline store(buf, loc, val)
{
	mem[(loc) & 63] = val
}
#else
#define AT(b, i) ((b) * DEPTH + (i))
byte sb_loc[WRITERS * DEPTH];
byte sb_val[WRITERS * DEPTH];
byte sb_n[WRITERS];

inline store(buf, loc, val)
{
	assert(sb_n[buf] < DEPTH);
	sb_loc[AT(buf, sb_n[buf])] = loc;
	sb_val[AT(buf, sb_n[buf])] = val;
	sb_n[buf]++
}

/* The next entry after i that can become visible: no release but the oldest entry, nothing older to the same place. */
inline find_next(b)
{
	d_step {
		next = i + 1;
		do
		:: next >= sb_n[b] -> next = 0; break
		:: else ->
			j = 0;
			do
			:: j < next && (sb_loc[AT(b, j)] & 63) != sb_loc[AT(b, next)] -> j++
			:: else -> break
			od;
			if
			:: j == next && sb_loc[AT(b, next)] < REL -> break
			:: else -> next++
			fi
		od;
		j = 0
	}
}

proctype memory(byte b)
{
	byte i, j, next;
end:
	do
	:: atomic { sb_n[b] > 0 ->
		find_next(b);
		do
		:: break
		:: next != 0 -> i = next; find_next(b)
		od;
		d_step {
			mem[sb_loc[AT(b, i)] & 63] = sb_val[AT(b, i)];
			do
			:: i + 1 < sb_n[b] ->
				sb_loc[AT(b, i)] = sb_loc[AT(b, i + 1)];
				sb_val[AT(b, i)] = sb_val[AT(b, i + 1)];
				i++
			:: else -> break
			od;
			sb_loc[AT(b, i)] = 0;
			sb_val[AT(b, i)] = 0;
			sb_n[b]--;
			i = 0;
			next = 0
		} }
	od
}
#endif
