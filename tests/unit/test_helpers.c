/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers that wait for large messages. Catches: a read of every empty lane in every round, which costs the CPU time that
 * bytes need; and bytes that no helper reads because it did not ask for them.
 */
#include "link_match_util.h"
#include "net/tcp/worker.h"

enum { LINKS = 3, LANES = 8, SIZE = 4 * MIB, READS_PER_LANE = 4 };

static uint32_t reads;

static ssize_t count_recv(struct tcp_io *io, const struct iovec *iov, int n)
{
	fetch_add_relaxed(&reads, 1);
	return tcp_io_engine->recv(io, iov, n);
}

/* It knows of a receive. */
static bool is_told(struct tcp_link *l)
{
	bool told;

	link_mu_lock(&l->mu);
	told = tcp_tag_of(&l->tx.tags, A)->credit != 0;
	link_mu_unlock(&l->mu);
	return told;
}

TEST(idle_lanes_cost_one_call)
{
	struct pair_config c = {.nlanes = 1 + LANES, .inet = 1};
	struct tcp_io_ops counted = *tcp_io_engine;
	struct tcp_link *l[LINKS][2];
	uint8_t *in[LINKS], *out = message(SIZE, 1);
	void *recvs[LINKS];

	set_params("GANTRY_HELPERS", "2");
	counted.recv = count_recv;
	for (int i = 0; i < LINKS; i++) {
		pair_links(&c, l[i]);
		in[i] = room(SIZE);
		for (int k = 1; k <= LANES; k++)
			l[i][1]->lanes[k].io.ops = &counted;
		link_mu_lock(&l[i][1]->mu);
		tcp_tag_of(&l[i][1]->rx.tags, A)->haste = TCP_HASTE_NONE;
		link_mu_unlock(&l[i][1]->mu);
		tcp_workers_know(l[i][1]);
	}
	for (int i = 0; i < LINKS; i++)
		recvs[i] = irecv(l[i][1], in[i], SIZE, A);
	/* They look for a while and then go to sleep. That many reads are those of the first rounds. */
	WAIT_WHILE (tcp_workers_awake())
		usleep(100);
	CHECK(load_relaxed(&reads) <= READS_PER_LANE * LINKS * LANES);
	for (int i = 0; i < LINKS; i++) {
		void *send = isend(l[i][0], out, SIZE, A);

		WAIT_WHILE (!is_told(l[i][0]))
			progress(l[i], 1);
		WAIT_WHILE (!is_done(recvs[i])) /* from here on only helpers receive */
			tcp_link_progress(l[i][0]);
		wait_for(l[i], send, NULL);
		wait_for(l[i], recvs[i], NULL);
		CHECK_PATTERN(in[i], SIZE, 1);
		tcp_workers_forget(l[i][1]);
		done_with(l[i]);
		free(in[i]);
	}
	tcp_workers_stop();
	set_params("GANTRY_HELPERS", NULL);
	free(out);
}
