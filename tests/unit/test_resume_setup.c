/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a session needs of its sockets, and may lose with one of them: where the peer is, and the news of what has arrived.
 * Catches: a lane that was reset between its hand-shake and its first use, and has no address to be dialled at; a sender
 * that waits for news that were lost with the control lane.
 */
#include <sys/syscall.h>

#include "relay.h"
#include "resume_util.h"

static struct relay box = {.lanes = 1, .find = listening_port};
static int ends;       /* atomic: the connection is reset */
static int gone;       /* atomic: it is being reset */
static int lossy = -1; /* atomic: a socket that loses what it is given */

/* The library's, in this program. */
ssize_t send(int fd, const void *data, size_t n, int flags)
{
	return fd == load_acquire(&lossy) ? (ssize_t)n : (ssize_t)syscall(SYS_sendto, fd, data, n, flags, NULL, 0);
}

/* Bytes that the client is told in a hand-shake without a secret. */
enum { ANSWER = INET_ANSWER_SIZE + WIRE_WELCOME_SIZE };

static uint64_t moved_to_client(int lane)
{
	uint64_t n = 0;

	pthread_mutex_lock(&box.mu);
	for (int i = 0; i < box.n; i++)
		if (box.conns[i].lane == lane && box.conns[i].nth == 0)
			n = box.conns[i].moved[TO_CLIENT];
	pthread_mutex_unlock(&box.mu);
	return n;
}

static int64_t hold_answer(const struct relay_conn *c, int way)
{
	if (c->lane != 1 || c->nth || way != TO_CLIENT)
		return RELAY_ALL;
	if (!load_acquire(&ends))
		return ANSWER - 1;
	if (c->moved[way] < ANSWER)
		return ANSWER;
	store_release(&gone, 1);
	return -1;
}

static void begin(void **ret_ctx)
{
	set_params("GANTRY_RESUME", "on", "GANTRY_LANES", "1", "GANTRY_TIMEOUT", "1000s", "GANTRY_CHUNK_MAX", "64K");
	start(ret_ctx, GANTRY_NET_UNDEF);
}

/* The lane is reset when its last byte of the hand-shake has come and before anybody looks at it. */
TEST(reset_before_its_first_use)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], *out = malloc(MIB), *in = malloc(MIB);
	struct gantry_net_device_handle *none = NULL, handle_for, *h = &handle_for;
	void *ctx, *listen = NULL;
	struct way w = {0};

	box.allow = hold_answer;
	relay_make(&box, 0, 1);
	relay_advertise(&box);
	relay_start(&box);
	begin(&ctx);
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	WAIT_WHILE (moved_to_client(1) < ANSWER - 1)
		CHECK_OK(ops->connect(net, ctx, 0, handle, &w.send, &none));
	inet_loop_lock();
	store_release(&ends, 1);
	UNTIL(load_acquire(&gone));
	sleep_ms(20); /* not asking the relay, which looks for the listener under this lock */
	inet_loop_unlock();
	WAIT_WHILE (!w.send || !w.recv) {
		if (!w.send)
			CHECK_OK(ops->connect(net, ctx, 0, handle, &w.send, &none));
		if (!w.recv)
			CHECK_OK(ops->accept(net, listen, &w.recv, &h));
	}
	CHECK_OK(ops->close_listen(net, listen));
	pattern_fill(out, MIB, 1);
	CHECK_EQ(wait_two(post_recv(w.recv, in, MIB, 0), post_send(w.send, out, MIB, 0), NULL), MIB);
	CHECK_PATTERN(in, MIB, 1);
	CHECK(resumed() > 0);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
	relay_stop(&box);
	free(out);
	free(in);
}

/* All that the bulk lane may be given without news of it has been given and has come. The receiver's control lane loses its
 * news as soon as the first piece is under way. */
static bool stands_still(void)
{
	uint64_t kept = 0, given = 0, came = UINT64_MAX;
	int control = -1;

	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node) {
		const struct tcp_lane_resume *r = l->lanes[1].resume;

		link_mu_lock(&l->mu);
		if (l->entry->initiator) {
			kept = r->given - r->first;
			given = r->given;
		} else {
			came = r->pieces;
			control = l->lanes[0].io.fd;
		}
		link_mu_unlock(&l->mu);
	}
	inet_loop_unlock();
	if (given)
		store_release(&lossy, control);
	return kept == RESUME_KEPT && came == given;
}

/* What the receiver says of its pieces is lost with the control lane, after which nothing arrives that it could tell of. */
TEST(news_of_pieces_lost_with_the_control_lane)
{
	enum { SIZE = (RESUME_KEPT + RESUME_TELL) * (64 << 10) };
	uint8_t *out = malloc(SIZE), *in = malloc(SIZE);
	void *ctx, *requests[2];
	struct way w;

	begin(&ctx);
	w = connect_way(ctx);
	CHECK(out && in);
	pattern_fill(out, SIZE, 2);
	requests[0] = post_recv(w.recv, in, SIZE, 0);
	requests[1] = post_send(w.send, out, SIZE, 0);
	WAIT_WHILE (!stands_still())
		for (int i = 0; i < 2; i++) {
			int done = 0;

			CHECK_OK(ops->test(net, requests[i], &done, NULL));
			CHECK(!done);
		}
	store_release(&lossy, -1);
	cut_at(0, 0);
	CHECK_EQ(wait_two(requests[0], requests[1], NULL), SIZE);
	CHECK_PATTERN(in, SIZE, 2);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
	free(out);
	free(in);
}

void tests_begin(void)
{
	tests_apart(1);
}
