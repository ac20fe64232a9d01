/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_port MODE PORT FOLDER: a communicator of three processes over the net transport, each with a range of one port.
 * The id travels through a file in FOLDER. Prints where rank 0 listens, and what came of it; ports.sh judges.
 *
 *   own     rank i has port PORT + i; all send to all
 *   behind  rank 0 is told to peers as 127.0.0.1:PORT, which is a relay's; it listens on PORT + 1. The others send to
 * it. Of every connection the relay passes on the first byte alone, and the rest when that has been seen.
 */
#include "comm_util.h"

#include "relay.h"

enum { N = 3, SIZE = 1 << 20, FIRST_MS = 20 };

static const char *folder;
static int port, behind;

/* ---- the relay ---- */

static struct relay relay;

/* Of every connection the first byte goes alone, and is seen for a while before the rest. */
static int64_t first_alone(const struct relay_conn *c, int way)
{
	return way == TO_SERVER && now_ms() - c->since < FIRST_MS ? 1 : RELAY_ALL;
}

/* ---- ranks ---- */

/* The ports that this process listens on, each once. */
static void print_listening(void)
{
	int seen[16], n = 0;

	for (int fd = 0; fd < 256; fd++) {
		struct sockaddr_in a;
		socklen_t len = sizeof(a), four = sizeof(int);
		int listens = 0, known = 0;

		if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &four) || !listens ||
		    getsockname(fd, (struct sockaddr *)&a, &len) || a.sin_family != AF_INET)
			continue;
		for (int i = 0; i < n; i++)
			known |= seen[i] == ntohs(a.sin_port);
		if (known || n == 16)
			continue;
		seen[n++] = ntohs(a.sin_port);
		printf("rank 0 listens on %s:%d\n", inet_ntoa(a.sin_addr), ntohs(a.sin_port));
	}
	fflush(stdout);
}

/* All to rank 0: it is the others that connect. */
static gantry_result send_to_first(struct node *me)
{
	gantry_result r;

	if (me->rank)
		pattern_fill(me->out, SIZE, node_seed(me->rank, 0, 1));
	CHECK_OK(gantry_group_start());
	if (me->rank)
		CHECK_OK(gantry_send(me->out, SIZE, GANTRY_TYPE_UINT8, 0, me->comm, me->stream));
	for (int from = 1; !me->rank && from < N; from++)
		CHECK_OK(
			gantry_recv(me->in + (size_t)from * SIZE, SIZE, GANTRY_TYPE_UINT8, from, me->comm, me->stream));
	r = gantry_group_end();
	if (r == GANTRY_OK)
		r = gantry_stream_sync(me->dev, me->stream);
	if (r == GANTRY_OK)
		r = gantry_comm_error(me->comm, NULL, NULL, 0);
	for (int from = 1; !me->rank && from < N && r == GANTRY_OK; from++)
		CHECK_PATTERN(me->in + (size_t)from * SIZE, SIZE, node_seed(from, 0, 1));
	return r;
}

static void be_rank(int rank)
{
	struct gantry_unique_id id;
	struct node me;
	char text[64];
	gantry_result r;

	if (behind)
		close(relay.listen);
	snprintf(text, sizeof(text), "%d", port + rank + behind);
	setenv("GANTRY_PORT_RANGE", text, 1);
	snprintf(text, sizeof(text), "127.0.0.1:%d", port);
	if (behind && rank == 0)
		setenv("GANTRY_ADVERTISE", text, 1);
	id_meet(folder, "id", rank == 0, &id);
	node_open(&me, &id, rank, N, "net", 0, SIZE);
	r = behind ? send_to_first(&me) : node_exchange(&me, N - 1, SIZE, 1);
	printf("rank %d %s %s\n", rank, gantry_result_name(r), r == GANTRY_OK ? "" : gantry_last_error());
	if (rank == 0)
		print_listening();
	node_close(&me);
	exit(r != GANTRY_OK);
}

int main(int argc, char **argv)
{
	pid_t ranks[N];
	int failures;

	CHECK(argc == 4);
	behind = strcmp(argv[1], "behind") == 0;
	port = atoi(argv[2]);
	folder = argv[3];
	if (behind) {
		relay = (struct relay){.to = lo_addr(port + 1), .allow = first_alone};
		relay_make(&relay, port, 1);
	}
	ranks_fork(N, be_rank, ranks);
	if (behind)
		relay_start(&relay);
	failures = ranks_reap(N, ranks);
	if (behind)
		printf("relayed %s\n",
		       relay_passed(&relay, TO_SERVER) >= (uint64_t)(N - 1) * SIZE ? "all" : "too little");
	return failures != 0;
}
