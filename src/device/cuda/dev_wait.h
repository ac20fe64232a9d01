/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posts and waits of GPUs, which neither sleep nor notify, of both vendors. Part of dev_cuda.h and of hip/dev_hip.h, which
 * have dev_store2, dev_fence, dev_clock and dev_nap.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_WAIT_H
#define GANTRY_DEVICE_CUDA_DEV_WAIT_H

DEV void dev_post(struct gantry_slot *s, uint64_t meta, uint64_t where)
{
	dev_store2(&s->meta, meta, where);
}
/* The fence stands before both words and not between them: it need not wait until `where` has crossed the bus, and both
 * words are ordered after the payload. */
DEV void dev_publish(struct gantry_slot *s, uint64_t meta, uint64_t where)
{
	dev_fence();
	dev_store2(&s->meta, meta, where);
}
/* A GPU cannot make a system call: a waiter polls. */
DEV void dev_notify(struct gantry_eventcount *eventcount)
{
	(void)eventcount;
}
DEV void dev_leave(void)
{
}

/* Waiting. Polls of host memory cost about a microsecond each, so the abort flag is looked at about once in a
 * millisecond; a wait that has become long backs off to leave the memory system to lanes that move data. */
struct dev_wait {
	uint32_t n;
	uint64_t began; /* dev_clock, when it had become long; 0: it has not */
};
enum { DEV_WAIT_TIMED = 32, DEV_WAIT_ABORT = 1024, DEV_WAIT_LONG = 1u << 16 };

DEV void dev_wait_init(struct dev_wait *w)
{
	w->n = 0;
	w->began = 0;
}
DEV void dev_wait_proxied(struct dev_wait *w, int yes)
{
	(void)w;
	(void)yes;
}
DEV int dev_wait_is_long(const struct dev_wait *w)
{
	return w->n >= DEV_WAIT_ABORT;
}
DEV int dev_wait(struct dev_wait *w)
{
	w->n++;
	if (w->n == DEV_WAIT_TIMED)
		w->began = dev_clock();
	if (w->n >= DEV_WAIT_LONG) {
		w->n = DEV_WAIT_LONG + (w->n - DEV_WAIT_LONG) % DEV_WAIT_ABORT; /* stays long, never wraps */
		dev_nap();
	}
	if (w->n % DEV_WAIT_ABORT == 0) {
		const uint32_t *abort = dev_my_team()->abort;

		return abort && dev_load_relaxed32(abort) != 0;
	}
	return 0;
}
DEV void dev_wait_done(struct dev_wait *w)
{
	(void)w;
}
DEV void dev_failed(uint32_t error)
{
	struct dev_wait w;

	(void)error; /* in the launch's result */
	if (!dev_my_team()->abort)
		return;
	dev_wait_init(&w);
	while (!dev_wait(&w))
		;
}

#endif
