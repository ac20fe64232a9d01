/*
 * Forms of the unpack kernel to compare, see unpack_forms.h. Part of k_unpack_tune.h.
 *
 * Tickets. Shares are equal, but multiprocessors are not: those that are farther from memory, or share their way there
 * with more others, end later. With tickets a warp takes the next batch when it comes to it. The rounds of
 * dev_unpack_share stay, but for their sizes: from when two batches for everybody are left each takes half of what is
 * left, so that in the end all have only single descriptors to wait for. A ticket is a place in that order, taken from
 * a counter a batch ahead. Each warp takes one ticket too many, and the last of these finds the counter back at 0.
 *
 * Bulk copies. Hopper's copy engines move whole vectors to shared memory and from there to their place, without a
 * register; a lane per warp keeps PIECES of them under way. Batches with anything unaligned in them go the usual way.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_UNPACK_TUNE_H
#define GANTRY_DEVICE_CUDA_DEV_UNPACK_TUNE_H

template <int I, int R, int B, int STREAMS, int WHOLE, int TAKES>
struct dev_unpack_form {
	enum { ITEMS = I, ROUNDS = R, BATCH = B, STREAM = STREAMS, SECTORS = WHOLE, TICKETS = TAKES };
};

/* How many descriptors each warp gets of `rest`; 0: fewer are left than there are warps. */
template <class FORM>
DEV uint32_t dev_unpack_ticket_size(const struct dev_unpack_walk *w, uint32_t rest)
{
	if (rest >= 2 * FORM::BATCH * w->warps)
		return FORM::BATCH;
	if (rest >= 2 * w->warps)
		return rest / (2 * w->warps);
	return rest >= w->warps;
}
/* To the next round. */
template <class FORM>
DEV void dev_unpack_ticket_round(struct dev_unpack_walk *w)
{
	w->base = w->size ? w->base + w->size * w->warps : (uint32_t)w->f->n;
	w->size = dev_unpack_ticket_size<FORM>(w, (uint32_t)w->f->n - w->base);
	w->round += w->warps;
}
DEV void dev_unpack_ticket_take(struct dev_unpack_walk *w)
{
	if ((dev_lane() & 31) == 0)
		w->ticket = dev_ticket(w->turn, w->total + w->warps - 1);
}

/* w->round: tickets below it are of earlier rounds; w->total: of all. */
template <class FORM>
DEV void dev_unpack_ticket_begin(struct dev_unpack_walk *w)
{
	w->round = w->ticket = 0;
	w->size = dev_unpack_ticket_size<FORM>(w, (uint32_t)w->f->n);
	while (w->base < (uint32_t)w->f->n)
		dev_unpack_ticket_round<FORM>(w);
	w->total = w->round;
	w->base = w->round = 0;
	w->size = dev_unpack_ticket_size<FORM>(w, (uint32_t)w->f->n);
	dev_unpack_ticket_take(w);
}
template <class FORM>
DEV void dev_unpack_ticket_fetch(struct dev_unpack_walk *w)
{
	const uint32_t ticket = __shfl_sync(DEV_WARP_ALL, w->ticket, 0);
	uint32_t rest;

	w->next_have = 0;
	w->next_splits = 1;
	if (ticket >= w->total)
		return;
	while (ticket - w->round >= w->warps)
		dev_unpack_ticket_round<FORM>(w);
	w->warp = ticket - w->round; /* whose share it would be */
	rest = (uint32_t)w->f->n - w->base;
	if (w->size) {
		w->next_have = w->size;
		w->next_first = w->base + w->warp * w->size;
	} else {
		w->next_splits = w->warps / rest;
		w->next_first = w->base + w->warp / w->next_splits;
		w->next_have = w->warp < rest * w->next_splits;
	}
	dev_unpack_ticket_take(w);
}

template <class FORM>
DEV void dev_unpack_tickets(const struct dev_frags *f, uint32_t *turn)
{
	const uint32_t warps = dev_lanes() / 32;
	struct dev_unpack_walk w;

	w.turn = turn;
	dev_unpack_begin<FORM>(&w, f, dev_block() * warps + dev_lane() / 32, dev_blocks() * warps);
	dev_unpack_run<FORM>(&w);
}

DEV void k_unpack_tune(const struct gantry_unpack_tune_args *a)
{
	struct dev_frags f;

	f.descs = a->u.descs;
	f.n = a->u.n;
	f.bounce = a->u.bounce;
	f.dst = a->u.dst;
	f.gather = a->u.gather;
	switch (a->form) {
	case GANTRY_UNPACK_FORM_FEW:
		dev_unpack_as<struct dev_unpack_few>(&f, dev_block(), dev_blocks());
		break;
	case GANTRY_UNPACK_FORM_FEW_STREAM:
		dev_unpack_as<dev_unpack_form<3, 4, 4, 1, 0, 0>>(&f, dev_block(), dev_blocks());
		break;
	case GANTRY_UNPACK_FORM_PLAIN:
		dev_unpack_as<dev_unpack_form<2, 4, 4, 0, 0, 0>>(&f, dev_block(), dev_blocks());
		break;
	case GANTRY_UNPACK_FORM_MANY_8:
		dev_unpack_as<dev_unpack_form<2, 4, 8, 1, 0, 0>>(&f, dev_block(), dev_blocks());
		break;
	case GANTRY_UNPACK_FORM_MANY_1:
		dev_unpack_as<dev_unpack_form<1, 4, 4, 1, 0, 0>>(&f, dev_block(), dev_blocks());
		break;
	case GANTRY_UNPACK_FORM_SECTORS:
		dev_unpack_as<dev_unpack_form<2, 4, 4, 1, 1, 0>>(&f, dev_block(), dev_blocks());
		break;
	case GANTRY_UNPACK_FORM_TICKETS:
		dev_unpack_tickets<dev_unpack_form<2, 4, 4, 1, 0, 1>>(&f, a->turn);
		break;
	case GANTRY_UNPACK_FORM_BOTH:
		dev_unpack_tickets<dev_unpack_form<2, 4, 4, 1, 1, 1>>(&f, a->turn);
		break;
	default:
		dev_unpack_as<struct dev_unpack_many>(&f, dev_block(), dev_blocks());
	}
}

#ifdef DEV_BULK
enum { DEV_BULK_WARPS = 8, DEV_BULK_PIECES = 5, DEV_BULK_AHEAD = 3, DEV_BULK_PIECE = 1024 };

/* A warp's part of shared memory; the next one's is aligned as well. */
struct __align__(128) dev_bulk_room
{
	char piece[DEV_BULK_PIECES][DEV_BULK_PIECE];
	uint64_t bar[DEV_BULK_PIECES];
	char *to[DEV_BULK_PIECES];
	uint32_t bytes[DEV_BULK_PIECES];
};

/* Lane 0: piece c has arrived; off to its place. */
DEV void dev_bulk_retire(struct dev_bulk_room *b, uint32_t c)
{
	const uint32_t slot = c % DEV_BULK_PIECES;

	dev_bulk_wait(&b->bar[slot], c / DEV_BULK_PIECES & 1);
	dev_bulk_store(b->to[slot], b->piece[slot], b->bytes[slot]);
}
/*
 * Lane 0: `bytes`, as pieces from number c on. When piece c is loaded those up to c - 4 have been told to leave, and
 * all but the last of these have: so c - 5, which was in the same slot, has.
 */
DEV uint32_t dev_bulk_copy(struct dev_bulk_room *b, uint32_t c, char *d, const char *s, uint64_t bytes)
{
	while (bytes) {
		const uint32_t slot = c % DEV_BULK_PIECES;
		const uint32_t n = bytes < DEV_BULK_PIECE ? (uint32_t)bytes : (uint32_t)DEV_BULK_PIECE;

		if (c >= DEV_BULK_PIECES)
			dev_bulk_read_but_one();
		b->to[slot] = d;
		b->bytes[slot] = n;
		dev_bulk_load(b->piece[slot], s, n, &b->bar[slot]);
		if (c >= DEV_BULK_AHEAD)
			dev_bulk_retire(b, c - DEV_BULK_AHEAD);
		c++;
		d += n;
		s += n;
		bytes -= n;
	}
	return c;
}

DEV void dev_unpack_bulk(const struct dev_frags *f)
{
	typedef dev_unpack_form<1, 2, 4, 1, 0, 0> form;
	__shared__ struct dev_bulk_room rooms[DEV_BULK_WARPS];
	struct dev_bulk_room *b = &rooms[dev_lane() / 32 % DEV_BULK_WARPS];
	const uint32_t lane = dev_lane() & 31, warps = dev_lanes() / 32;
	struct dev_unpack_copy<form> copy;
	struct dev_unpack_item<form::ROUNDS> it;
	struct dev_unpack_walk w;
	uint32_t c = 0;

	if (lane == 0)
		for (uint32_t i = 0; i < DEV_BULK_PIECES; i++)
			dev_bulk_init(&b->bar[i]);
	__syncwarp();
	dev_unpack_begin<form>(&w, f, dev_block() * warps + dev_lane() / 32, dev_blocks() * warps);
	while (dev_unpack_refill<form>(&w, copy)) {
		const uint32_t odd = w.mine.bytes & ~DEV_UNPACK_LINES;

		if (__all_sync(DEV_WARP_ALL, lane >= w.have || odd == 0)) {
			while (w.k < w.have) {
				dev_unpack_turn(&w);
				if (lane == 0)
					c = dev_bulk_copy(b, c, w.now.d, w.now.s, 16ull * w.now.vecs);
				w.now.vecs = 0;
			}
			continue;
		}
		while (w.k < w.have || w.now.vecs) {
			dev_unpack_load<form>(&w, &it);
			dev_unpack_store<form>(&it);
		}
	}
	if (lane == 0) {
		for (uint32_t i = c < DEV_BULK_AHEAD ? 0 : c - DEV_BULK_AHEAD; i < c; i++)
			dev_bulk_retire(b, i);
		dev_bulk_end();
	}
	__syncwarp();
}
#endif

DEV void k_unpack_tune2(const struct gantry_unpack_tune_args *a)
{
	struct dev_frags f;

	f.descs = a->u.descs;
	f.n = a->u.n;
	f.bounce = a->u.bounce;
	f.dst = a->u.dst;
	f.gather = a->u.gather;
#ifdef DEV_BULK
	if (a->form >= GANTRY_UNPACK_FORM_BULK && dev_lanes() <= 32 * DEV_BULK_WARPS) {
		dev_unpack_bulk(&f);
		return;
	}
#endif
	dev_unpack_as<dev_unpack_form<1, 4, 4, 1, 0, 0>>(&f, dev_block(), dev_blocks());
}

#endif
