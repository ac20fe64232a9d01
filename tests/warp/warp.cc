/* See warp.h. */
#include "warp.h"

#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

enum { STACK = 32 << 10, WARP = 32, STEPS = 5000000, NOISE = 512 };

/* A context starts a fiber; from then on it is left and entered by jumps, which make no system call. */
struct fiber : warp_lane {
	ucontext_t ctx;
	jmp_buf at;
	int started = 0;
	std::vector<uint32_t> stack;
	int line = 0, ended = 0; /* line: of the shuffle that it waits at */
	uint64_t met = 0;	 /* how many it has come to */
};
struct warp {
	fiber lanes[WARP];
	uint64_t values[2][WARP]; /* by turns: a lane may be at the next shuffle while others read this one's */
	int ended = 0;
};

struct warp_lane *warp_now;
struct warp_area warp_areas[WARP_AREAS];
static ucontext_t first_scheduler;
static jmp_buf scheduler;
static warp *now_warp;
static void (*now_body)(void *);
static void *now_arg;
static const char *now_what;
static uint64_t random_state = 88172645463325252u;

uint32_t warp_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 16);
}

void warp_fail(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", now_what ? now_what : "");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	exit(1);
}

static warp_area *area_of(const void *p, size_t n)
{
	for (auto &a : warp_areas)
		if (a.at && (const char *)p >= a.at && (const char *)p + n <= a.at + a.size)
			return &a;
	warp_fail("lane %u of block %u touches %p, which is nobody's memory", warp_now->lane, warp_now->block, p);
}
void warp_read(const void *p, size_t n)
{
	warp_area *a = area_of(p, n);

	for (size_t i = 0; i < n; i++)
		if (a->may_read && !a->may_read[(const char *)p + i - a->at])
			warp_fail("lane %u of block %u reads byte %zd of area %d, which is no fragment's",
				  warp_now->lane, warp_now->block, (const char *)p + i - a->at, (int)(a - warp_areas));
}
void warp_write(const void *p, size_t n)
{
	warp_area *a = area_of(p, n);

	for (size_t i = 0; i < n; i++)
		if (!a->written || a->written[(const char *)p + i - a->at]++)
			warp_fail("lane %u of block %u writes byte %zd of area %d%s", warp_now->lane, warp_now->block,
				  (const char *)p + i - a->at, (int)(a - warp_areas),
				  a->written ? " a second time" : ", which is not to be written");
}
void warp_aligned(const void *p, size_t n)
{
	if ((uintptr_t)p % n)
		warp_fail("lane %u of block %u: %p is no multiple of %zu", warp_now->lane, warp_now->block, p, n);
}

/* To the scheduler, until that enters it again. */
static void leave(fiber *f)
{
	if (_setjmp(f->at) == 0)
		_longjmp(scheduler, 1);
}
static void enter(fiber *f)
{
	warp_now = f;
	if (_setjmp(scheduler))
		return;
	if (f->started)
		_longjmp(f->at, 1);
	f->started = 1;
	swapcontext(&first_scheduler, &f->ctx);
}

const uint64_t *warp_meet(int line, uint32_t mask, uint64_t value)
{
	fiber *f = static_cast<fiber *>(warp_now);
	warp *w = now_warp;
	int turn = (int)(f->met++ & 1);

	if (mask != 0xffffffffu)
		warp_fail("line %d: mask %x", line, mask);
	f->line = line;
	w->values[turn][f->lane % WARP] = value;
	leave(f);
	return w->values[turn];
}

static void start(void)
{
	fiber *f = static_cast<fiber *>(warp_now);

	now_body(now_arg);
	f->ended = 1;
	leave(f);
}

/* All lanes of a warp up to their next shuffle, which must be the same one. */
static void step(warp *w)
{
	fiber *first = &w->lanes[0];

	now_warp = w;
	for (auto &f : w->lanes)
		enter(&f);
	for (auto &f : w->lanes)
		if (f.ended != first->ended || (!f.ended && (f.line != first->line || f.met != first->met)))
			warp_fail("warp %u of block %u stops for good: lane 0 is %s line %d (%llu), lane %u %s line %d "
				  "(%llu)",
				  f.lane / WARP, f.block, first->ended ? "gone, after" : "at", first->line,
				  (unsigned long long)first->met, f.lane % WARP, f.ended ? "gone, after" : "at", f.line,
				  (unsigned long long)f.met);
	w->ended = first->ended;
}

void warp_run(uint32_t blocks, uint32_t lanes, void (*body)(void *), void *arg, const char *what)
{
	std::vector<warp> all(blocks * lanes / WARP);
	size_t left = all.size();
	uint64_t steps = 0;
	uint32_t k = 0;

	now_body = body;
	now_arg = arg;
	now_what = what;
	for (auto &w : all)
		for (auto &f : w.lanes) {
			f.lane = k % lanes;
			f.block = k / lanes;
			f.lanes = lanes;
			f.blocks = blocks;
			/* What is not written is 0 in some lanes and not in others. Stacks grow downwards. */
			f.stack.resize(STACK / sizeof(f.stack[0]));
			for (size_t i = f.stack.size() - NOISE; i < f.stack.size(); i++)
				f.stack[i] = warp_random() % 2 ? warp_random() : 0;
			getcontext(&f.ctx);
			f.ctx.uc_stack.ss_sp = f.stack.data();
			f.ctx.uc_stack.ss_size = STACK;
			f.ctx.uc_link = NULL;
			makecontext(&f.ctx, start, 0);
			k++;
		}
	while (left)
		for (auto &w : all)
			if (!w.ended) {
				if (++steps > STEPS)
					warp_fail("after %d steps %zu warps have not ended", STEPS, left);
				step(&w);
				left -= (size_t)w.ended;
			}
	now_what = NULL;
}
