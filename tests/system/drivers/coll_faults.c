/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_faults SEED FOLDER [NETNS]: processes, one rank each, that call one collective over and over; in the midst of it
 * one of them is killed, stopped, or (with NETNS) cut off. The number SEED says all else: how many ranks, which
 * collective, size, root, transport, hosts, algorithm, protocol, one link to a peer or one for each of several channels,
 * blocking or not, whom it happens to, and when. NETNS: rank i runs in the network namespace of that name followed by i,
 * and NETNSb has their cables, p0, p1, ..., in a bridge.
 *
 * All others are told who it was, within their deadline (GANTRY_TIMEOUT) and a second; they shrink the communicator, with
 * abort, reduce in the new one, finalize it, and have as many descriptors and threads as before. So has the rank that was
 * stopped, when it goes on, and the one that was cut off; both have an error. The id travels through a file in FOLDER. A
 * JSON line says what was done to whom.
 */
#include "comm_util.h"

enum { N_MAX = 5, ROUNDS = 3, BYTES_LOG = 22, REDUCED = 10000 };
enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, BARRIER, KINDS };
enum act { KILL, STOP, CUT };

static const char *const kinds[] = {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter",
				    "all_to_all", "gather", "scatter",	 "barrier"};
static const char *const acts[] = {"kill", "stop", "cut"};
static const char *const transports[] = {"net", "shm", "p2p", "auto"};
static const char *const algos[] = {"auto", "ring", "direct", "direct2", "tree", "hier", "pat", "collnet"};
static const char *const protos[] = {"auto", "simple", "ll", "ll128"};

static struct {
	enum act act;
	enum kind kind;
	int n, victim, root, nonblocking, hosts;
	int links; /* several channels, with a link each over the network */
	const char *transport, *algo, *proto;
	size_t count;
	uint32_t rounds; /* that all ranks have done by then; 0: they may still be connecting */
	uint32_t delay_us;
} is;

static struct shared {
	uint32_t opened[N_MAX], rounds[N_MAX]; /* release, acquire */
	uint32_t failed[N_MAX];		       /* the same: has its error, which came after so many ms */
	uint32_t done[N_MAX];		       /* the same: has gone on without the victim */
	uint64_t acted_ms;		       /* the same */
} * shared;
static pid_t pids[N_MAX];
static const char *folder, *netns;
static uint64_t timeout_ms;

static void draw(uint64_t seed)
{
	random_seed(seed);
	is.act = (enum act)random_below(netns ? 3 : 2);
	is.n = (int)random_between(is.act == KILL ? 2 : 3, N_MAX); /* of two that live, each loses the other */
	is.kind = (enum kind)random_below(KINDS);
	is.victim = (int)random_below((uint32_t)is.n);
	is.root = (int)random_below((uint32_t)is.n);
	is.nonblocking = (int)random_below(2);
	is.hosts = 1 + (int)random_below(2);
	is.transport = is.hosts == 2 || is.act == CUT ? "auto" : transports[random_below(TEST_COUNT(transports))];
	if (is.act == CUT)
		is.transport = "net";
	is.algo = algos[random_below(TEST_COUNT(algos))];
	is.proto = protos[random_below(TEST_COUNT(protos))];
	is.count = (size_t)1 << random_below(BYTES_LOG - 2); /* of 8 bytes, in all ranks' parts together */
	is.rounds = random_below(3) * ROUNDS;
	is.delay_us = random_below(30000);
	if (getenv("COLL_FAULTS_ALGO"))
		is.algo = getenv("COLL_FAULTS_ALGO");
	if (strcmp(is.algo, "collnet") == 0) { /* which is for all_reduce between hosts */
		is.kind = random_below(4) ? ALL_REDUCE : is.kind;
		is.hosts = (int)random_between(2, (uint64_t)is.n);
		is.transport = is.act == CUT ? "net" : "auto";
	}
	is.links = (int)random_below(2);
}

static void print_case(void)
{
	printf("{\"act\": \"%s\", \"victim\": %d, \"ranks\": %d, \"call\": \"%s\", \"bytes\": %zu, \"root\": %d, "
	       "\"transport\": \"%s\", \"hosts\": %d, \"algo\": \"%s\", \"proto\": \"%s\", \"nonblocking\": %d, "
	       "\"links\": \"%s\", \"rounds\": %u, \"delay_us\": %u, \"told_ms\": [",
	       acts[is.act], is.victim, is.n, kinds[is.kind], 8 * is.count, is.root, is.transport, is.hosts, is.algo,
	       is.proto, is.nonblocking, is.links ? "channel" : "one", is.rounds, is.delay_us);
	for (int i = 0; i < is.n; i++)
		printf("%s%d", i ? ", " : "", (int)load_acquire(&shared->failed[i]) - 1);
	printf("]}\n");
}

/* ---- a rank ---- */

static gantry_result poll_error(struct gantry_comm *comm)
{
	gantry_result r;

	while ((r = gantry_comm_error(comm, NULL, NULL, 0)) == GANTRY_AGAIN)
		sleep_ms(1);
	return r;
}

static gantry_result call(const struct node *me)
{
	const enum gantry_type type = GANTRY_TYPE_INT64;
	size_t part = is.count / (size_t)is.n + 1;

	switch (is.kind) {
	case ALL_REDUCE:
		return gantry_all_reduce(me->out, me->in, is.count, type, GANTRY_OP_SUM, me->comm, me->stream);
	case REDUCE:
		return gantry_reduce(me->out, me->in, is.count, type, GANTRY_OP_MAX, is.root, me->comm, me->stream);
	case BROADCAST:
		return gantry_broadcast(me->out, me->in, is.count, type, is.root, me->comm, me->stream);
	case ALL_GATHER:
		return gantry_all_gather(me->out, me->in, part, type, me->comm, me->stream);
	case REDUCE_SCATTER:
		return gantry_reduce_scatter(me->out, me->in, part, type, GANTRY_OP_SUM, me->comm, me->stream);
	case ALL_TO_ALL:
		return gantry_all_to_all(me->out, me->in, part, type, me->comm, me->stream);
	case GATHER:
		return gantry_gather(me->out, me->in, part, type, is.root, me->comm, me->stream);
	case SCATTER:
		return gantry_scatter(me->out, me->in, part, type, is.root, me->comm, me->stream);
	default:
		return gantry_barrier(me->comm, me->stream);
	}
}

/* Until the stream is free: by waiting for it, or by looking from time to time. */
static gantry_result wait_call(const struct node *me)
{
	gantry_result r = GANTRY_OK, error;

	if (is.nonblocking)
		while ((r = gantry_stream_query(me->dev, me->stream)) == GANTRY_AGAIN &&
		       gantry_comm_error(me->comm, NULL, NULL, 0) == GANTRY_OK)
			sched_yield();
	else
		r = gantry_stream_sync(me->dev, me->stream);
	error = gantry_comm_error(me->comm, NULL, NULL, 0);
	CHECK(r == GANTRY_OK || r == GANTRY_AGAIN || r == error);
	return error;
}

static int fits(gantry_result r)
{
	if (is.act == KILL)
		return r == GANTRY_ERR_PEER_LOST || r == GANTRY_ERR_PEER_CLOSED;
	return r == GANTRY_ERR_PEER_SILENT || r == GANTRY_ERR_TIMEOUT || (is.act == CUT && r == GANTRY_ERR_PEER_LOST);
}

/* The victim, if it lives to see it, has an error as well, about whomever it is. */
static void check_error(struct node *me, gantry_result got)
{
	uint64_t acted = load_acquire(&shared->acted_ms), now = now_ms();
	char text[256];
	int about = -2;
	gantry_result r = gantry_comm_error(me->comm, &about, text, sizeof(text)), synced;

	now = now > acted ? now : acted;
	store_release(&shared->failed[me->rank], (uint32_t)(now - acted + 1));
	if (r != got || (me->rank != is.victim && (about != is.victim || !fits(r))) || !acted)
		fprintf(stderr, "rank %d: %s, then %s about rank %d: %s\n", me->rank, gantry_result_name(got),
			gantry_result_name(r), about, text);
	CHECK(acted);
	CHECK_EQ(r, got);
	synced = gantry_stream_sync(me->dev, me->stream); /* nothing waits for the dead */
	CHECK(synced == GANTRY_OK || synced == r);
	if (me->rank == is.victim)
		return;
	CHECK(fits(r));
	CHECK_EQ(about, is.victim);
	if (now - acted > pair_silence_ms(timeout_ms))
		fprintf(stderr, "rank %d was told after %llu ms\n", me->rank, (unsigned long long)(now - acted));
	CHECK(now - acted <= pair_silence_ms(timeout_ms));
}

static void shrink_node(struct node *me)
{
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	struct gantry_comm *next = NULL;
	gantry_result r;

	config.transport = is.transport;
	config.nonblocking = is.nonblocking;
	r = gantry_comm_shrink(me->comm, &is.victim, 1, 1, &config, &next);
	if (is.nonblocking) {
		CHECK_EQ(r, GANTRY_AGAIN);
		r = poll_error(next);
	}
	if (r != GANTRY_OK)
		fprintf(stderr, "rank %d: %s\n", me->rank, gantry_last_error());
	CHECK_OK(r);
	gantry_comm_destroy(me->comm);
	me->comm = next;
	me->rank -= me->rank > is.victim;
	me->n--;
}

/* Rank r gives (r + 1) times a number, which all can compute. */
static void reduce(struct node *me, int64_t round)
{
	int64_t *in = (int64_t *)(void *)me->out, *out = (int64_t *)(void *)me->in, factor = me->n * (me->n + 1) / 2;

	for (int64_t i = 0; i < REDUCED; i++)
		in[i] = (me->rank + 1) * (i + round);
	CHECK_OK(node_enqueued(
		me, gantry_all_reduce(in, out, REDUCED, GANTRY_TYPE_INT64, GANTRY_OP_SUM, me->comm, me->stream)));
	CHECK_OK(wait_call(me));
	CHECK_OK(gantry_stream_sync(me->dev, me->stream));
	for (int64_t i = 0; i < REDUCED; i++)
		CHECK_EQ(out[i], factor * (i + round));
}

static void go_on_without(struct node *me)
{
	gantry_result r;

	shrink_node(me);
	for (int round = 0; round < ROUNDS; round++)
		reduce(me, round);
	r = gantry_comm_finalize(me->comm);
	CHECK_OK(r == GANTRY_AGAIN ? poll_error(me->comm) : r);
}

static void open_node(struct node *me, int rank)
{
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	gantry_result r;

	memset(me, 0, sizeof(*me));
	me->rank = config.rank = rank;
	me->n = config.nranks = is.n;
	me->room = 8 * (is.count / (size_t)is.n + 1 + REDUCED);
	me->out = calloc((size_t)is.n, me->room);
	me->in = calloc((size_t)is.n, me->room);
	CHECK(me->out && me->in);
	id_meet(folder, "world", rank == 0, &config.id);
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &me->dev));
	CHECK_OK(gantry_stream_create(me->dev, &me->stream));
	config.device = me->dev;
	config.transport = is.transport;
	config.nonblocking = is.nonblocking;
	r = gantry_comm_init(&config, &me->comm);
	CHECK_OK(r == GANTRY_AGAIN ? poll_error(me->comm) : r);
}

static void be_rank(int rank)
{
	char host[32], name[64];
	int fds, threads;
	gantry_result r;
	struct node me;

	snprintf(host, sizeof(host), "host%d", rank % is.hosts);
	snprintf(name, sizeof(name), "%s%d", netns ? netns : "", rank);
	if (is.act == CUT)
		enter_netns(name);
	set_params("GANTRY_ALGO", is.algo, "GANTRY_PROTO", is.proto, "GANTRY_HOST_ID", is.hosts > 1 ? host : NULL,
		   "GANTRY_IFNAME", is.act == CUT ? "v0" : "lo");
	set_params("GANTRY_NET_LINKS", is.links ? "channel" : NULL, "GANTRY_CHANNELS", is.links ? "3" : NULL,
		   "GANTRY_SPLIT_MIN", is.links ? "4096" : NULL);
	fds = pair_fds();
	threads = pair_threads();
	open_node(&me, rank);
	store_release(&shared->opened[rank], 1);
	do {
		r = node_enqueued(&me, call(&me));
		r = r == GANTRY_OK ? wait_call(&me) : r;
		fetch_add_release(&shared->rounds[rank], r == GANTRY_OK);
	} while (r == GANTRY_OK);
	check_error(&me, r);
	if (rank != is.victim)
		go_on_without(&me);
	node_close(&me);
	settle(fds, threads, "at the end");
	store_release(&shared->done[rank], 1);
}

/* ---- the parent ---- */

/* Until all ranks but the one of that number have come so far. */
static void until(const uint32_t *counters, uint32_t count, int but, const char *why)
{
	uint64_t limit = now_ms() + PAIR_PATIENCE_MS;
	int status;

	for (int i = 0; i < is.n; i++) {
		while (i != but && load_acquire(&counters[i]) < count) {
			if (waitpid(pids[i], &status, WNOHANG) != 0 || now_ms() > limit) {
				fprintf(stderr, "rank %d: %s\n", i, why);
				print_case();
				for (int k = 0; k < is.n; k++)
					kill(pids[k], SIGKILL);
				exit(1);
			}
			usleep(200);
		}
	}
}

static void act(void)
{
	char line[128];

	usleep(is.delay_us);
	store_release(&shared->acted_ms, now_ms());
	if (is.act != CUT) {
		CHECK_EQ(kill(pids[is.victim], is.act == KILL ? SIGKILL : SIGSTOP), 0);
		return;
	}
	snprintf(line, sizeof(line), "ip -n %sb link set p%d down", netns, is.victim);
	CHECK_EQ(system(line), 0);
	store_release(&shared->acted_ms, now_ms()); /* by now at the latest */
}

int main(int argc, char **argv)
{
	int wrong = 0;

	CHECK(argc == 3 || argc == 4);
	folder = argv[2];
	netns = argc > 3 ? argv[3] : NULL;
	draw(strtoull(argv[1], NULL, 10));
	CHECK_OK(gantry_params_load(0));
	timeout_ms = gantry_params()->timeout / 1000000;
	shared = share_memory(sizeof(*shared));
	ranks_fork(is.n, be_rank, pids);
	until(shared->opened, 1, -1, "does not begin");
	until(shared->rounds, is.rounds, -1, "does not go on");
	act();
	until(shared->failed, 1, is.victim, "is not told");
	until(shared->done, 1, is.victim, "does not go on without it");
	if (is.act == STOP)
		CHECK_EQ(kill(pids[is.victim], SIGCONT), 0);
	if (is.act != KILL)
		until(shared->done, 1, -1, "has no error, or does not end");
	for (int i = 0; i < is.n; i++)
		wrong |= pair_reap(pids[i], i == is.victim && is.act == KILL ? SIGKILL : 0);
	print_case();
	return wrong;
}
