/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers and connections brought near. On a GPU every acquire empties the L1 cache, so each look at a field in
 * device memory takes a trip to L2, and lane 0 looks at a few dozen for each step. A block with few transfers copies
 * them, and the connections they are on, into shared memory, and back at the end what belongs to kernels. Where
 * DEV_NEAR is not defined (the host, whose caches do that by themselves) nothing of this exists.
 */
#ifndef GANTRY_DEVICE_K_P2P_NEAR_H
#define GANTRY_DEVICE_K_P2P_NEAR_H

#ifdef DEV_NEAR

enum { P2P_NEAR = 8 };

struct p2p_near {
	struct gantry_xfer xfers[P2P_NEAR];
	struct gantry_conn conns[P2P_NEAR];
	struct gantry_conn *home[P2P_NEAR]; /* of conns */
	uint32_t nconns;
};

/* block: whole words, between the block's shared memory and the device's. */
DEV void p2p_words(void *to, const void *from, uint64_t bytes)
{
	for (uint64_t i = dev_lane(); i < bytes / 8; i += dev_lanes())
		((uint64_t *)to)[i] = ((const uint64_t *)from)[i];
}

DEV struct gantry_xfer *p2p_fetch(struct p2p_near *near, const struct gantry_xfer *xfers, uint32_t n)
{
	uint32_t i, k;

	p2p_words(near->xfers, xfers, n * sizeof(*xfers));
	dev_barrier();
	if (dev_lane() == 0) {
		near->nconns = 0;
		for (i = 0; i < n; i++) {
			for (k = 0; k < near->nconns && near->home[k] != near->xfers[i].conn; k++)
				;
			if (k == near->nconns)
				near->home[near->nconns++] = near->xfers[i].conn;
			near->xfers[i].conn = &near->conns[k];
		}
	}
	dev_barrier();
	for (k = 0; k < near->nconns; k++)
		p2p_words(&near->conns[k], near->home[k], sizeof(near->conns[k]));
	dev_barrier();
	return near->xfers;
}

DEV void p2p_return(struct p2p_near *near, struct gantry_xfer *xfers, uint32_t n)
{
	uint32_t i;

	if (dev_lane() == 0)
		for (i = 0; i < n; i++)
			near->xfers[i].conn = near->home[near->xfers[i].conn - near->conns];
	dev_barrier();
	p2p_words(xfers, near->xfers, n * sizeof(*xfers));
	for (i = 0; i < near->nconns; i++)
		p2p_words(&near->home[i]->step, &near->conns[i].step,
			  sizeof(struct gantry_conn) - offsetof(struct gantry_conn, step));
	dev_barrier();
}

#endif
#endif
