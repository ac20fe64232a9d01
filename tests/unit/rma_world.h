/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with remote memory access among each other: a thread each, over loopback. */
#ifndef GANTRY_TESTS_RMA_WORLD_H
#define GANTRY_TESTS_RMA_WORLD_H

#include "base/atomic.h"
#include "base/clock.h"
#include "device/device.h"
#include "net/net.h"
#include "rma/rma.h"
#include "test.h"

enum { RMA_WORLD_MOST = 8 };

struct rma_world {
	uint32_t n;
	bool staged;	 /* memory of the host device, copied by its queues as a GPU's is */
	bool host_words; /* although it is: signals are in host memory */
	void (*body)(struct rma_world *w, uint32_t rank, struct rma_comm *c);
	uint64_t timeout;
	const uint32_t *stop;
	void *user;
	/* Below: the world's. */
	void *ctx[RMA_WORLD_MOST], *listen[RMA_WORLD_MOST];
	uint8_t handles[RMA_WORLD_MOST][GANTRY_NET_HANDLE_SIZE];
	struct gantry_device *device;
	gantry_result opened[RMA_WORLD_MOST];
	char why[RMA_WORLD_MOST][512];
	uint32_t absent;	   /* ranks that do not come: a bit each */
	void *(*instead)(void *w); /* what they do; NULL: nothing */
	uint64_t came;		   /* rma_world_meet */
};

struct rma_world_rank {
	struct rma_world *w;
	uint32_t rank;
};

static inline void *rma_world_main(void *arg)
{
	struct rma_world_rank *r = arg;
	struct rma_world *w = r->w;
	const void *handles[RMA_WORLD_MOST];
	struct rma_comm *c = NULL;
	struct rma_config config = {.ctx = w->ctx[r->rank],
				    .listen = w->listen[r->rank],
				    .ranks = w->n,
				    .rank = r->rank,
				    .handles = handles,
				    .timeout = w->timeout ? w->timeout : 20000000000u,
				    .stop = w->stop,
				    .device = w->device,
				    .staged = w->staged};

	if (w->absent >> r->rank & 1)
		return w->instead ? w->instead(w) : NULL;
	for (uint32_t i = 0; i < w->n; i++)
		handles[i] = w->handles[i];
	w->opened[r->rank] = rma_open(&config, &c);
	snprintf(w->why[r->rank], sizeof(w->why[0]), "%s", gantry_last_error());
	if (c)
		w->body(w, r->rank, c);
	rma_close(c);
	return NULL;
}

/* Everything from init to finalize. What w->opened says is the caller's to look at. */
static inline void rma_world_run(struct rma_world *w)
{
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF, .standing_receives = 1};
	struct gantry_net *net = gantry_net_tcp();
	struct rma_world_rank ranks[RMA_WORLD_MOST];
	pthread_t t[RMA_WORLD_MOST];

	setenv("GANTRY_IFNAME", "lo", 1);
	w->came = 0;
	if (w->staged)
		CHECK_OK(gantry_device_host(&w->device));
	for (uint32_t i = 0; i < w->n; i++) {
		CHECK_OK(net->ops->init(net, i, &config, &w->ctx[i]));
		CHECK_OK(net->ops->listen(net, w->ctx[i], 0, w->handles[i], &w->listen[i]));
		ranks[i] = (struct rma_world_rank){w, i};
	}
	threads_start(t, (int)w->n, rma_world_main, ranks, sizeof(ranks[0]));
	threads_join(t, (int)w->n);
	for (uint32_t i = 0; i < w->n; i++) {
		CHECK_OK(net->ops->close_listen(net, w->listen[i]));
		CHECK_OK(net->ops->finalize(net, w->ctx[i]));
	}
	if (w->staged)
		gantry_device_close(w->device);
	w->device = NULL;
}

/* All ranks have come, for the n-th time, while all make progress for each other. What a rank does next may be an error. */
static inline void rma_world_meet(struct rma_world *w, struct rma_comm *c, uint64_t n)
{
	fetch_add_seq(&w->came, 1);
	while (load_seq(&w->came) < n * w->n) {
		gantry_result r = rma_progress(c);

		if (load_seq(&w->came) < n * w->n)
			CHECK_OK(r);
	}
}

static inline void rma_world_finish(struct rma_comm *c, struct rma_request *q)
{
	int done = 0;

	while (!done) {
		CHECK_OK(rma_test(q, &done));
		if (!done)
			CHECK_OK(rma_progress(c));
	}
}

#endif
