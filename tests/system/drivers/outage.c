/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outage EXPECT NETNS_A NETNS_B NETNS_BRIDGE FOLDER MS TIMES: pairs of processes, one of each pair in each namespace;
 * then the network is out for MS milliseconds, TIMES times: port p1 leaves the bridge br0 in the third namespace.
 *
 *   survive  every pair goes on afterwards, and every byte of its messages is right
 *   die      every pair gets a typed error within the deadline
 *
 * The pairs: large messages in both directions, small ones, a connection that has nothing to say, a communicator at
 * work, and one that has nothing to say. Pairs that have nothing to say do not notice when all is over soon.
 */
#include "comm_util.h"

#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>

enum { LARGE = 4 << 20, SMALL = 100, COMM_BYTES = 1 << 20, ROUNDS = 3 };
enum { BULK, SMALLS, COMM, IDLE, COMM_IDLE, PAIRS };
static const char *const names[PAIRS] = {"bulk", "small", "communicator", "idle", "idle communicator"};

/* What the sides say of themselves in shared->number[side], and side A of the end in [0]. */
enum { ROUND, FAILED_MS, LAST };

static int pair, die;
static const char *folder;

struct net_pair {
	struct pair_side *s;
	struct pair_ends e;
	uint8_t *out, *in;
	size_t size;
};

static gantry_result net_round(void *arg, uint32_t round)
{
	struct net_pair *n = arg;
	const struct gantry_net_ops *ops = n->s->net->ops;
	gantry_result r = GANTRY_OK;
	void *in = n->in, *req[2] = {NULL, NULL};
	int tag = 0, done[2] = {0, 0}, spins = 0;

	pattern_fill(n->out, n->size, 2 * round + (uint32_t)n->s->self);
	while (r == GANTRY_OK && !(done[0] && done[1])) {
		if (!req[0])
			r = ops->isend(n->s->net, n->e.send, n->out, n->size, 0, NULL, &req[0]);
		else if (!done[0])
			r = ops->test(n->s->net, req[0], &done[0], NULL);
		if (r == GANTRY_OK && !req[1])
			r = ops->irecv(n->s->net, n->e.recv, 1, &in, &n->size, &tag, NULL, &req[1]);
		else if (r == GANTRY_OK && !done[1])
			r = ops->test(n->s->net, req[1], &done[1], NULL);
		if (++spins > 1000)
			sleep_ms(1);
	}
	if (r == GANTRY_OK)
		CHECK_PATTERN(n->in, n->size, 2 * round + (uint32_t)n->s->other);
	return r;
}

/*
 * Rounds until side A has said which is the last; it says so before it begins the last but two, so B, which cannot be
 * ahead by more than one, knows in time.
 */
static gantry_result rounds(struct pair_side *s, gantry_result (*exchange)(void *, uint32_t), void *arg)
{
	struct pair_shared *shared = s->shared;
	int idle = pair == IDLE || pair == COMM_IDLE;
	gantry_result r = GANTRY_OK;

	for (uint64_t i = 0; r == GANTRY_OK; i++) {
		while (idle && i == 2 && !load_acquire(&shared->event))
			sleep_ms(1);
		if (s->self == 0 && load_acquire(&shared->event) && !load_acquire(&shared->number[0][LAST]))
			store_release(&shared->number[0][LAST], i + 2);
		if (load_acquire(&shared->number[0][LAST]) && i > load_acquire(&shared->number[0][LAST]))
			break;
		r = exchange(arg, (uint32_t)i);
		if (r == GANTRY_OK)
			store_release(&shared->number[s->self][ROUND], i + 1);
		if (pair == SMALLS || pair == COMM)
			sleep_ms(1);
	}
	if (r != GANTRY_OK) {
		fprintf(stderr, "%s, side %c: %s: %s\n", names[pair], 'A' + s->self, gantry_result_name(r),
			gantry_last_error());
		CHECK(die && gantry_result_is_remote(r));
		store_release(&shared->number[s->self][FAILED_MS], now_ms());
		while (!load_acquire(&shared->number[s->other][FAILED_MS])) /* its own silence, not this side's end */
			sleep_ms(1);
	}
	return r;
}

static void net_side(struct pair_side *s)
{
	struct net_pair n = {.s = s, .size = pair == BULK ? LARGE : SMALL};

	pair_init(s);
	n.e = pair_open_ends(s, 0);
	n.out = malloc(n.size);
	n.in = malloc(n.size);
	CHECK(n.out && n.in);
	CHECK((rounds(s, net_round, &n) != GANTRY_OK) == die);
	pair_close_ends(s, &n.e);
	free(n.out);
	free(n.in);
}

static gantry_result comm_round(void *arg, uint32_t i)
{
	return node_exchange(arg, 1, COMM_BYTES, i);
}

static void comm_side(struct pair_side *s)
{
	struct gantry_unique_id id;
	struct node me;
	gantry_result r;

	id_meet(folder, names[pair], s->self == 0, &id);
	node_open(&me, &id, s->self, 2, "net", 1, COMM_BYTES);
	r = rounds(s, comm_round, &me);
	CHECK((r != GANTRY_OK) == die);
	if (r != GANTRY_OK)
		gantry_comm_abort(me.comm);
	else
		CHECK_OK(node_close(&me));
}

static void wait_rounds(struct pair_shared *const shared[], int npairs, uint64_t more)
{
	uint64_t from[PAIRS][2], end = now_ms() + PAIR_PATIENCE_MS;

	for (int p = 0; p < npairs; p++)
		for (int i = 0; i < 2; i++)
			from[p][i] = p >= IDLE ? 0 : load_acquire(&shared[p]->number[i][ROUND]);
	for (int p = 0; p < npairs; p++)
		for (int i = 0; i < 2; i++)
			while (load_acquire(&shared[p]->number[i][ROUND]) < (p >= IDLE ? 2 : from[p][i] + more)) {
				if (now_ms() > end || waitpid(shared[p]->pid[i], NULL, WNOHANG) != 0) {
					fprintf(stderr, "%s: side %c does not go on\n", names[p], 'A' + i);
					exit(1);
				}
				sleep_ms(1);
			}
}

/* By a call of its own, because a command may take longer than what is left of the deadline. */
static void set_port(int fd, unsigned long request)
{
	struct ifreq ifr = {.ifr_name = "br0", .ifr_ifindex = (int)if_nametoindex("p1")};

	CHECK(ifr.ifr_ifindex > 0);
	CHECK_EQ(ioctl(fd, request, &ifr), 0);
}

static int enter_bridge(const char *netns)
{
	struct sched_param first = {.sched_priority = 1};
	int fd;

	enter_netns(netns);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0);
	sched_setscheduler(0, SCHED_FIFO, &first); /* an outage that lasts longer proves nothing */
	return fd;
}

static uint64_t out_for(int bridge, unsigned ms, const struct pair_shared *busy)
{
	uint64_t began = now_ms(), before;

	set_port(bridge, SIOCBRDELIF);
	sleep_ms(ms / 4);
	before = load_acquire(&busy->number[0][ROUND]);
	while (now_ms() - began < ms)
		sleep_ms(1);
	CHECK_EQ(load_acquire(&busy->number[0][ROUND]), before); /* it really is out */
	set_port(bridge, SIOCBRADDIF);
	printf("out for %d ms, asked for %u\n", (int)(now_ms() - began), ms);
	fflush(stdout);
	return began;
}

int main(int argc, char **argv)
{
	struct pair_shared *shared[PAIRS];
	int failures = 0, npairs, bridge;
	uint64_t began = 0, timeout_ms;

	CHECK(argc == 8);
	die = strcmp(argv[1], "die") == 0;
	npairs = die ? IDLE : PAIRS;
	folder = argv[5];
	CHECK_OK(gantry_params_load(0));
	timeout_ms = gantry_params()->timeout / 1000000;
	for (pair = 0; pair < npairs; pair++) {
		int is_comm = pair == COMM || pair == COMM_IDLE;

		shared[pair] = pair_share();
		for (int i = 0; i < 2; i++)
			pair_fork(is_comm ? comm_side : net_side, shared[pair], i, argv[2 + i]);
	}
	bridge = enter_bridge(argv[4]);
	wait_rounds(shared, npairs, ROUNDS);
	for (int i = 0; i < atoi(argv[7]); i++) {
		began = out_for(bridge, (unsigned)atoi(argv[6]), shared[BULK]);
		if (die)
			continue;
		wait_rounds(shared, npairs, ROUNDS);
		/* Those that have nothing to say do not tell when it is over for them: at the deadline at the latest.
		 */
		while (now_ms() - began < timeout_ms + timeout_ms / 4)
			sleep_ms(1);
	}
	for (int p = 0; p < npairs; p++) {
		store_release(&shared[p]->event, 1);
		failures |= pair_reap_both(shared[p]);
		for (int i = 0; die && i < 2; i++) {
			uint64_t after = load_acquire(&shared[p]->number[i][FAILED_MS]) - began;

			printf("%s: side %c had its error after %llu ms\n", names[p], 'A' + i,
			       (unsigned long long)after);
			CHECK(after <= pair_silence_ms(timeout_ms));
		}
	}
	return failures;
}
