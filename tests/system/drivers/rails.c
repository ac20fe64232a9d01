/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams messages from one network namespace to another over named devices, fused into one when there are several,
 * checks every byte and prints one JSON line: the rate, and what each lane and each interface carried.
 *
 *   rails [OPTION]... NETNS_TX NETNS_RX DEVICE[+DEVICE...]
 *
 * The parent only starts the two sides, each by `ip netns exec`, with the two ends of a socket pair; the sending side
 * prints. The rate is taken at the receiver, from the first completion after the warm-up to the last of all, so a
 * straggling lane counts. A side that finds nothing to do sleeps for a moment: this measures lanes, not CPUs.
 */
#include <fcntl.h>
#include <sys/mount.h>

#include "common/figures.h"
#include "common/options.h"
#include "net/net.h"
#include "net/tcp/network.h"
#include "test.h"

enum { DEPTH_MAX = 32, COUNTED_MIN = 4, NAPPING_NS = 50000, DEADLINE_S = 240 };

struct options {
	uint64_t size, seconds_ns, warmup_ns;
	int depth, fd; /* fd: the side's end of the socket pair */
	const char *foreign, *devices, *count, *side;
	struct option_words words;
	char names[GANTRY_NET_MAX_RAILS][32], counted[GANTRY_NET_MAX_RAILS][32];
	int ndevs, ncounted;
};

/* What the receiving side tells the sending one at the end. */
struct report {
	uint64_t messages, bytes, ns, wrong;
	uint64_t tx_bytes[GANTRY_NET_MAX_RAILS], rx_bytes[GANTRY_NET_MAX_RAILS];
};

struct side {
	const struct options *o;
	struct gantry_net *net;
	void *ctx, *comm, *mr, *listen;
	int dev, fd;
	uint8_t *memory;
	uint64_t tx_before[GANTRY_NET_MAX_RAILS], rx_before[GANTRY_NET_MAX_RAILS];
};

static void nap(void)
{
	nanosleep(&(struct timespec){0, NAPPING_NS}, NULL);
}

/* `ip netns exec` has mounted the namespace's own /sys. */
static uint64_t counter(const char *device, const char *what)
{
	char path[128];
	unsigned long long n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/class/net/%s/statistics/%s", device, what);
	f = fopen(path, "re");
	CHECK(f);
	CHECK(fscanf(f, "%llu", &n) == 1);
	fclose(f);
	return n;
}

static int find_device(struct gantry_net *net, const char *name)
{
	struct gantry_net_properties p;
	int n;

	CHECK_OK(net->ops->devices(net, &n));
	for (int i = 0; i < n; i++) {
		CHECK_OK(net->ops->get_properties(net, i, &p));
		if (strcmp(p.name, name) == 0)
			return i;
	}
	fprintf(stderr, "there is no device %s among the %d that were chosen\n", name, n);
	exit(1);
}

static void open_side(struct side *s, int sending)
{
	const struct options *o = s->o;
	struct gantry_net_vdevice v = {.ndevs = o->ndevs};
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct gantry_net *net = s->net = gantry_net_tcp();
	size_t room = o->size * (size_t)o->depth;

	CHECK_OK(net->ops->init(net, 1, NULL, &s->ctx));
	for (int i = 0; i < o->ndevs; i++)
		v.devs[i] = find_device(net, o->names[i]);
	s->dev = v.devs[0];
	if (v.ndevs > 1)
		CHECK_OK(net->ops->make_vdevice(net, &v, &s->dev));
	s->memory = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
	CHECK(s->memory);
	memset(s->memory, 0xe7, room);
	if (sending) {
		recv_all(s->fd, handle, sizeof(handle));
		while (!s->comm) {
			CHECK_OK(net->ops->connect(net, s->ctx, s->dev, handle, &s->comm, NULL));
			nap();
		}
	} else {
		CHECK_OK(net->ops->listen(net, s->ctx, s->dev, handle, &s->listen));
		send_all(s->fd, handle, sizeof(handle));
		while (!s->comm) {
			CHECK_OK(net->ops->accept(net, s->listen, &s->comm, NULL));
			nap();
		}
	}
	CHECK_OK(net->ops->reg_mr(net, s->comm, s->memory, room, GANTRY_NET_PTR_HOST, &s->mr));
	for (int i = 0; i < o->ncounted; i++) {
		s->tx_before[i] = counter(o->counted[i], "tx_bytes");
		s->rx_before[i] = counter(o->counted[i], "rx_bytes");
	}
}

static void close_side(struct side *s, int sending)
{
	CHECK_OK(s->net->ops->dereg_mr(s->net, s->comm, s->mr));
	CHECK_OK(sending ? s->net->ops->close_send(s->net, s->comm) : s->net->ops->close_recv(s->net, s->comm));
	if (s->listen)
		CHECK_OK(s->net->ops->close_listen(s->net, s->listen));
	CHECK_OK(s->net->ops->finalize(s->net, s->ctx));
	free(s->memory);
}

/* Whether the receiver has counted what it needs: it says so by a byte, once. */
static int enough(struct side *s, int *heard)
{
	char byte;

	if (!*heard && recv(s->fd, &byte, 1, MSG_DONTWAIT) == 1)
		*heard = 1;
	return *heard;
}

/*
 * Messages of one size for as long as asked, and until the receiver has counted some: either side may have been kept
 * from its CPU for all that time. Then one of 8 bytes that says how many there were.
 */
static void send_messages(struct side *s)
{
	const struct options *o = s->o;
	void *requests[DEPTH_MAX] = {0};
	uint64_t posted = 0, done = 0, end = gantry_now_ns() + o->warmup_ns + o->seconds_ns;
	int last = 0, heard = 0;

	while (!last || done < posted) {
		int idle = 1;

		if (!last && posted - done < (uint64_t)o->depth) {
			int k = (int)(posted % (uint64_t)o->depth);
			uint8_t *p = s->memory + o->size * (size_t)k;
			int ending = gantry_now_ns() >= end && enough(s, &heard);

			if (ending)
				memcpy(p, &posted, 8);
			else
				perf_fill(p, o->size, posted);
			while (!requests[k])
				CHECK_OK(s->net->ops->isend(s->net, s->comm, p, ending ? 8 : o->size, 0, s->mr,
							    &requests[k]));
			posted++;
			last = ending;
			idle = 0;
		}
		while (done < posted) {
			void **r = &requests[done % (uint64_t)o->depth];
			int complete = 0;

			CHECK_OK(s->net->ops->test(s->net, *r, &complete, NULL));
			if (!complete)
				break;
			*r = NULL;
			done++;
			idle = 0;
		}
		if (idle)
			nap();
	}
}

static void receive_messages(struct side *s, struct report *ret)
{
	const struct options *o = s->o;
	void *requests[DEPTH_MAX] = {0};
	uint64_t posted = 0, done = 0, start = 0, counted = 0, wrong = 0, now = 0;
	uint64_t warm = gantry_now_ns() + o->warmup_ns;

	for (;;) {
		int complete = 0, size = -1, tag = 0, k = (int)(posted % (uint64_t)o->depth);
		uint8_t *p = s->memory + o->size * (size_t)k;

		if (posted - done < (uint64_t)o->depth) {
			CHECK_OK(s->net->ops->irecv(s->net, s->comm, 1, (void *[]){p}, &o->size, &tag, &s->mr,
						    &requests[k]));
			posted += requests[k] != NULL;
			continue;
		}
		k = (int)(done % (uint64_t)o->depth);
		p = s->memory + o->size * (size_t)k;
		CHECK_OK(s->net->ops->test(s->net, requests[k], &complete, &size));
		if (!complete) {
			nap();
			continue;
		}
		requests[k] = NULL;
		if (size == 8) {
			uint64_t messages;

			memcpy(&messages, p, 8);
			CHECK_EQ(messages, done);
			break;
		}
		CHECK_EQ(size, o->size);
		now = gantry_now_ns();
		if (start && ++counted == COUNTED_MIN)
			send_all(s->fd, "", 1);
		else if (!start && now >= warm)
			start = now;
		wrong += perf_check(p, o->size, done);
		done++;
	}
	CHECK(counted >= COUNTED_MIN);
	*ret = (struct report){.messages = done, .bytes = counted * o->size, .ns = now - start, .wrong = wrong};
}

static void print_counters(const char *key, const struct options *o, const uint64_t *now, const uint64_t *before)
{
	printf("\"%s\": {", key);
	for (int i = 0; i < o->ncounted; i++)
		printf("%s\"%s\": %llu", i ? ", " : "", o->counted[i],
		       (unsigned long long)(now[i] - (before ? before[i] : 0)));
	printf("}");
}

static void print_lanes(void)
{
	struct tcp_link *l;

	inet_loop_lock();
	CHECK(!gantry_list_empty(&tcp_network.links));
	l = gantry_container(tcp_network.links.next, struct tcp_link, node);
	printf("\"lanes\": [");
	for (int i = 0; i < l->nlanes; i++) {
		char local[GANTRY_ADDR_TEXT], peer[GANTRY_ADDR_TEXT];

		printf("%s{\"lane\": %d, \"local\": \"%s\", \"peer\": \"%s\", \"bytes\": %llu}", i ? ", " : "", i,
		       gantry_addr_text(&l->lanes[i].local, local), gantry_addr_text(&l->lanes[i].peer, peer),
		       (unsigned long long)l->lanes[i].tx.bytes);
	}
	printf("]");
	inet_loop_unlock();
}

/* Another boot_id for this side's mount namespace: what looks like another kernel. */
static void become_foreign(const char *file, int sending)
{
	char line[80], path[] = "/tmp/gantry-boot-XXXXXX";
	FILE *f = fopen(file, "re");
	int fd = mkstemp(path);

	CHECK(f && fd >= 0);
	for (int i = 0; i <= sending; i++)
		CHECK(fgets(line, sizeof(line), f));
	CHECK(write(fd, line, strlen(line)) > 0);
	if (mount(path, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL))
		SKIP("cannot pretend to be another host: %s", strerror(errno));
	unlink(path);
	close(fd);
	fclose(f);
}

static int run_side(const struct options *o, int fd, int sending)
{
	struct side s = {.o = o, .fd = fd};
	struct report r;
	uint64_t tx[GANTRY_NET_MAX_RAILS], rx[GANTRY_NET_MAX_RAILS];

	alarm(DEADLINE_S);
	if (o->foreign)
		become_foreign(o->foreign, sending);
	open_side(&s, sending);
	if (sending)
		send_messages(&s);
	else
		receive_messages(&s, &r);
	for (int i = 0; i < o->ncounted; i++) {
		tx[i] = counter(o->counted[i], "tx_bytes");
		rx[i] = counter(o->counted[i], "rx_bytes");
	}
	if (sending) {
		recv_all(fd, &r, sizeof(r));
		printf("{\"devices\": \"%s\", \"size\": %" PRIu64
		       ", \"depth\": %d, \"messages\": %llu, \"seconds\": %.3f, "
		       "\"mbps\": %.1f, \"wrong\": %llu, ",
		       o->devices, o->size, o->depth, (unsigned long long)r.messages, (double)r.ns / 1e9,
		       (double)r.bytes * 8e3 / (double)r.ns, (unsigned long long)r.wrong);
		print_lanes();
		printf(", ");
		print_counters("tx_side_tx", o, tx, s.tx_before);
		printf(", ");
		print_counters("rx_side_rx", o, r.rx_bytes, NULL);
		printf(", ");
		print_counters("rx_side_tx", o, r.tx_bytes, NULL);
		printf("}\n");
		fflush(stdout);
	} else {
		for (int i = 0; i < o->ncounted; i++) {
			r.tx_bytes[i] = tx[i] - s.tx_before[i];
			r.rx_bytes[i] = rx[i] - s.rx_before[i];
		}
		send_all(fd, &r, sizeof(r));
	}
	close_side(&s, sending);
	return 0;
}

/* Starts this program again in a network namespace, with the same arguments and one end of the socket pair. */
static pid_t start(char **argv, int argc, const char *netns, const char *side, int fd, int other)
{
	pid_t pid = fork();
	const char **args;
	char number[16], self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int k = 0;

	CHECK(pid >= 0 && n > 0);
	if (pid)
		return pid;
	self[n] = 0;
	close(other);
	snprintf(number, sizeof(number), "%d", fd);
	args = calloc((size_t)argc + 10, sizeof(*args));
	CHECK(args);
	for (const char *const *a =
		     (const char *const[]){"ip", "netns", "exec", netns, self, "--side", side, "--fd", number, NULL};
	     *a; a++)
		args[k++] = *a;
	for (int i = 1; i < argc; i++)
		args[k++] = argv[i];
	execvp("ip", (char **)(uintptr_t)args);
	perror("ip");
	_exit(127);
}

static int run_parent(char **argv, int argc, const char *ns_tx, const char *ns_rx)
{
	int pair[2], failed = 0;
	pid_t pids[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	pids[0] = start(argv, argc, ns_tx, "tx", pair[0], pair[1]);
	pids[1] = start(argv, argc, ns_rx, "rx", pair[1], pair[0]);
	close(pair[0]);
	close(pair[1]);
	for (int i = 0; i < 2; i++) {
		int status;

		waitpid(pids[i], &status, 0);
		if (status) {
			int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);

			fprintf(stderr, "the %s side ended with status %d\n", i ? "receiving" : "sending", code);
			failed = failed && failed != 77 ? failed : code;
		}
	}
	return failed;
}

static int split(const char *list, char out[][32])
{
	char *copy = strdup(list), *save = NULL;
	int n = 0;

	CHECK(copy);
	for (char *t = strtok_r(copy, "+", &save); t && n < GANTRY_NET_MAX_RAILS; t = strtok_r(NULL, "+", &save))
		snprintf(out[n++], sizeof(out[0]), "%s", t);
	free(copy);
	return n;
}

/* clang-format off */
#define AT(field) offsetof(struct options, field)
static const struct option_spec specs[] = {
	{0, OPTION_SIZE, "size", AT(size), 16, INT32_MAX, NULL, "N", "bytes of a message, a multiple of 8 (16M)"},
	{0, OPTION_INT, "depth", AT(depth), 1, DEPTH_MAX, NULL, "N", "messages in flight (8)"},
	{0, OPTION_TIME, "seconds", AT(seconds_ns), 0, 0, NULL, "TIME", "measured time (4s)"},
	{0, OPTION_TIME, "warmup", AT(warmup_ns), 0, 0, NULL, "TIME", "time before that (1s)"},
	{0, OPTION_TEXT, "count", AT(count), 0, 0, NULL, "D+D", "interfaces whose counters are printed (those of the devices)"},
	{0, OPTION_TEXT, "foreign", AT(foreign), 0, 0, NULL, "FILE", "two lines; each side takes one for the identity of its host"},
	{0, OPTION_TEXT, "side", AT(side), 0, 0, NULL, "tx|rx", "by the parent: which this is"},
	{0, OPTION_INT, "fd", AT(fd), 0, INT32_MAX, NULL, "N", "and its end of the socket pair"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "rails",
	.usage = "[OPTION]... NETNS_TX NETNS_RX DEVICE[+DEVICE...]",
	.about = "",
	.notes = "",
	OPTION_SPECS(specs),
	.operand_at = AT(words),
	.many = 1,
	.keep_params = 1,
};

int main(int argc, char **argv)
{
	struct options o = {.size = 16 << 20, .depth = 8, .seconds_ns = 4000000000, .warmup_ns = 1000000000};
	char **words, **all = calloc((size_t)argc + 1, sizeof(*all));
	int status;

	CHECK(all); /* as given: parsing puts what is no option last */
	memcpy(all, argv, (size_t)argc * sizeof(*all));
	status = options_parse(&set, argc, argv, &o);
	words = o.words.word;
	if (status)
		return status - 1;
	if (o.words.n != 3 || o.size % 8)
		return options_wrong(&set, "two namespaces and devices, and a size that is a multiple of 8");
	if (!o.side)
		return run_parent(all, argc, words[0], words[1]);
	o.devices = words[2];
	o.ndevs = split(o.devices, o.names);
	o.ncounted = split(o.count ? o.count : o.devices, o.counted);
	return run_side(&o, o.fd, strcmp(o.side, "tx") == 0);
}
