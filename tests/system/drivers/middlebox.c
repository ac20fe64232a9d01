/* SPDX-License-Identifier: Apache-2.0 */
/*
 * middlebox RAILS SEED FILE: forwards frames between the interfaces a0 and b0, a1 and b1, ... of its network namespace, and
 * does to them what it is told on standard input, a line each. It answers each line by a line, "ok ..." or why not.
 *
 *   drop RAIL MS      nothing passes for so long
 *   reorder RAIL MS   for so long every fourth frame with data waits until three others have overtaken it
 *   stall RAIL MS     nothing passes on the connection that has moved most bytes since the last `bytes`
 *   reset RAIL [all]  that connection, or all, get a reset on both sides, in the other side's name
 *   flip RAIL N       one bit is flipped in each of the next N large frames
 *   bytes             how many have passed since the last time, rail by rail
 *   late              for how many ms, at most, it did not run since the last time
 *
 * RAIL is a number, or `all`. Frames pass with what the kernel says about them (checksums to be filled in, segments to be
 * cut), so TCP's large ones stay whole, and a flipped bit is found by no checksum of TCP's. Times begin when the command
 * is read: whoever gives it may be off its CPU until much later. The first eight bytes of FILE are how many bytes have passed
 * on all rails so far.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "test.h"

enum { RAILS_MAX = 8, FLOWS_MAX = 512, FRAME_MAX = 128 << 10, BATCH = 32, OVERTAKE = 3, LARGE = 1000, RESET_MS = 2000 };

/* A connection on a rail; ports[0] is that of the side `a`. */
struct flow {
	int rail;
	uint32_t addrs[2];
	uint16_t ports[2];
	uint64_t bytes; /* since the last `bytes` */
	uint64_t stalled_until, reset_until;
};

struct rail {
	int fd[2]; /* of a and b */
	uint64_t dropped_until, reordered_until, bytes;
	uint8_t *kept[2]; /* a frame that the next ones overtake */
	size_t kept_size[2];
	int overtaken[2], count[2];
};

/* What passes: virtio's header, then the Ethernet frame. */
struct frame {
	uint8_t *at;
	size_t size;
	struct virtio_net_hdr *virtio;
	struct iphdr *ip; /* NULL: no TCP over IPv4 */
	struct tcphdr *tcp;
	uint8_t *payload;
	size_t payload_size;
};

static struct rail rails[RAILS_MAX];
static struct flow flows[FLOWS_MAX];
static int nrails, nflows;
static struct {
	int rail; /* -1: all */
	unsigned left;
} flips;
static uint64_t *total;	      /* in FILE */
static uint64_t passed, late; /* ms: its last pass; the longest time between two */

/* ---- frames ---- */

static struct frame read_frame(uint8_t *at, size_t size)
{
	struct frame f = {.at = at, .size = size, .virtio = (void *)at};
	uint8_t *l3 = at + sizeof(*f.virtio) + sizeof(struct ether_header), *end = at + size;
	const struct ether_header *ether = (const void *)(at + sizeof(*f.virtio));
	struct iphdr *ip = (void *)l3;

	if (l3 + sizeof(*ip) > end || ether->ether_type != htons(ETHERTYPE_IP) || ip->protocol != IPPROTO_TCP)
		return f;
	f.tcp = (void *)(l3 + 4 * ip->ihl);
	f.payload = (uint8_t *)f.tcp + 4 * f.tcp->doff;
	if ((uint8_t *)(f.tcp + 1) > end || l3 + ntohs(ip->tot_len) > end || f.payload > l3 + ntohs(ip->tot_len))
		return f;
	f.ip = ip;
	f.payload_size = (size_t)(l3 + ntohs(ip->tot_len) - f.payload);
	return f;
}

static uint64_t sum_words(const void *p, size_t n, uint64_t sum)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < n; i++)
		sum += (uint64_t)b[i] << (i % 2 ? 0 : 8);
	return sum;
}

static uint16_t fold_sum(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons((uint16_t)~sum);
}

static void set_checksum(struct iphdr *ip, struct tcphdr *tcp)
{
	size_t size = ntohs(ip->tot_len) - 4u * ip->ihl;

	tcp->check = 0;
	tcp->check = fold_sum(sum_words(tcp, size, sum_words(&ip->saddr, 8, IPPROTO_TCP + size)));
}

static void pass_frame(struct rail *r, int from, const uint8_t *at, size_t size)
{
	if (send(r->fd[!from], at, size, MSG_DONTWAIT) != (ssize_t)size)
		return; /* it is lost, as in any full queue */
	r->bytes += size;
	__atomic_fetch_add(total, size, __ATOMIC_RELAXED);
}

/* To the side that sent the frame, or to the one that it was meant for: in the other's name, with the numbers expected. */
static void send_reset(struct rail *r, int from, const struct frame *f, int back)
{
	enum { ETHER = sizeof(struct virtio_net_hdr), IP = ETHER + sizeof(struct ether_header) };
	const struct iphdr *ip = f->ip;
	const struct tcphdr *tcp = f->tcp;
	struct {
		struct iphdr ip;
		struct tcphdr tcp;
	} h = {.ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP, .tot_len = htons(sizeof(h))},
	       .tcp = {.rst = 1, .ack = 1, .doff = 5}};
	uint8_t out[IP + sizeof(h)] = {0};

	h.ip.saddr = back ? ip->daddr : ip->saddr;
	h.ip.daddr = back ? ip->saddr : ip->daddr;
	h.tcp.source = back ? tcp->dest : tcp->source;
	h.tcp.dest = back ? tcp->source : tcp->dest;
	h.tcp.seq = back ? tcp->ack_seq : tcp->seq;
	h.tcp.ack_seq = back ? htonl(ntohl(tcp->seq) + (uint32_t)f->payload_size) : tcp->ack_seq;
	h.ip.check = fold_sum(sum_words(&h.ip, sizeof(h.ip), 0));
	set_checksum(&h.ip, &h.tcp);
	memcpy(out + ETHER, f->at + ETHER, sizeof(struct ether_header));
	if (back) {
		memcpy(out + ETHER, f->at + ETHER + ETH_ALEN, ETH_ALEN);
		memcpy(out + ETHER + ETH_ALEN, f->at + ETHER, ETH_ALEN);
	}
	memcpy(out + IP, &h, sizeof(h));
	pass_frame(r, back ? !from : from, out, sizeof(out));
}

/* ---- what happens to them ---- */

static struct flow *find_flow(int rail, int from, const struct frame *f)
{
	uint32_t addrs[2] = {f->ip->saddr, f->ip->daddr};
	uint16_t ports[2] = {f->tcp->source, f->tcp->dest};
	struct flow *l;

	for (int i = 0; i < nflows; i++) {
		l = &flows[i];
		if (l->rail == rail && l->ports[0] == ports[from] && l->ports[1] == ports[!from] &&
		    l->addrs[0] == addrs[from] && l->addrs[1] == addrs[!from])
			return l;
	}
	l = &flows[nflows < FLOWS_MAX ? nflows++ : (int)random_below(FLOWS_MAX)];
	*l = (struct flow){rail, {addrs[from], addrs[!from]}, {ports[from], ports[!from]}, 0, 0, 0};
	return l;
}

static void flip_bit(int rail, struct frame *f)
{
	if (!flips.left || (flips.rail >= 0 && flips.rail != rail) || f->payload_size < LARGE)
		return;
	f->payload[random_below((uint32_t)f->payload_size)] ^= (uint8_t)(1u << random_below(8));
	if (!(f->virtio->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM))
		set_checksum(f->ip, f->tcp);
	flips.left--;
}

/* 1: the frame is kept, for others to overtake it. */
static int keep_frame(struct rail *r, int from, const struct frame *f, uint64_t now)
{
	if (r->kept_size[from] || now >= r->reordered_until || !f->payload_size || ++r->count[from] % 4)
		return 0;
	memcpy(r->kept[from], f->at, f->size);
	r->kept_size[from] = f->size;
	r->overtaken[from] = 0;
	return 1;
}

static void pass_kept(struct rail *r, int from, uint64_t now)
{
	if (!r->kept_size[from] || (r->overtaken[from]++ < OVERTAKE && now < r->reordered_until))
		return;
	pass_frame(r, from, r->kept[from], r->kept_size[from]);
	r->kept_size[from] = 0;
}

static void handle_frame(int rail, int from, uint8_t *at, size_t size)
{
	struct frame f = read_frame(at, size);
	struct rail *r = &rails[rail];
	uint64_t now = now_ms();

	if (now < r->dropped_until)
		return;
	if (f.ip) {
		struct flow *l = find_flow(rail, from, &f);

		l->bytes += size;
		if (now < l->stalled_until)
			return;
		if (now < l->reset_until) {
			if (!f.tcp->rst && !f.tcp->syn) {
				send_reset(r, from, &f, 0);
				send_reset(r, from, &f, 1);
			}
			return;
		}
		flip_bit(rail, &f);
		if (keep_frame(r, from, &f, now))
			return;
	}
	pass_frame(r, from, at, size);
	pass_kept(r, from, now);
}

/* ---- commands ---- */

static struct flow *busiest_flow(int rail)
{
	struct flow *best = NULL;

	for (int i = 0; i < nflows; i++)
		if ((rail < 0 || flows[i].rail == rail) && flows[i].bytes && (!best || flows[i].bytes > best->bytes))
			best = &flows[i];
	return best;
}

static const char *flow_text(const struct flow *l)
{
	static char text[128];
	char addr[2][INET_ADDRSTRLEN];

	for (int i = 0; i < 2; i++)
		inet_ntop(AF_INET, &l->addrs[i], addr[i], sizeof(addr[i]));
	snprintf(text, sizeof(text), "ok %s:%d - %s:%d\n", addr[0], ntohs(l->ports[0]), addr[1], ntohs(l->ports[1]));
	return text;
}

static const char *touch_flows(const char *word, int rail, const char *rest)
{
	int all = strcmp(rest, "all") == 0;
	struct flow *best = busiest_flow(rail);
	uint64_t now = now_ms();

	if (!best)
		return "no connection has moved anything there\n";
	if (strcmp(word, "stall") == 0)
		best->stalled_until = now + strtoull(rest, NULL, 10);
	for (int i = 0; strcmp(word, "reset") == 0 && i < nflows; i++)
		if (&flows[i] == best || (all && (rail < 0 || rail == flows[i].rail)))
			flows[i].reset_until = now + RESET_MS;
	return flow_text(best);
}

static const char *touch_rails(const char *word, int rail, uint64_t until)
{
	for (int i = 0; i < nrails; i++) {
		if (rail >= 0 && rail != i)
			continue;
		if (strcmp(word, "drop") == 0)
			rails[i].dropped_until = until;
		else
			rails[i].reordered_until = until;
	}
	return "ok\n";
}

static const char *obey(const char *line)
{
	static char text[32 * RAILS_MAX];
	char word[16] = "", on[16] = "", rest[16] = "";
	int rail, n = sscanf(line, "%15s %15s %15s", word, on, rest);

	if (n == 1 && strcmp(word, "bytes") == 0) {
		n = snprintf(text, sizeof(text), "ok");
		for (int i = 0; i < nrails; i++) {
			n += snprintf(text + n, sizeof(text) - (size_t)n, " %llu", (unsigned long long)rails[i].bytes);
			rails[i].bytes = 0;
		}
		snprintf(text + n, sizeof(text) - (size_t)n, "\n");
		for (int i = 0; i < nflows; i++)
			flows[i].bytes = 0;
		return text;
	}
	if (n == 1 && strcmp(word, "late") == 0) {
		snprintf(text, sizeof(text), "ok %llu\n", (unsigned long long)late);
		late = 0;
		return text;
	}
	rail = strcmp(on, "all") == 0 ? -1 : atoi(on);
	if (n < 2 || rail >= nrails)
		return "what?\n";
	if (strcmp(word, "drop") == 0 || strcmp(word, "reorder") == 0)
		return touch_rails(word, rail, now_ms() + strtoull(rest, NULL, 10));
	if (strcmp(word, "stall") == 0 || strcmp(word, "reset") == 0)
		return touch_flows(word, rail, rest);
	if (strcmp(word, "flip") != 0)
		return "what?\n";
	snprintf(text, sizeof(text), "ok %u\n", flips.left);
	flips.rail = rail;
	flips.left = (unsigned)atoi(rest);
	return text;
}

/* Lines are short and come one at a time: each is answered before the next is written. */
static void read_command(void)
{
	char line[256];
	const char *answer;
	ssize_t n = read(STDIN_FILENO, line, sizeof(line) - 1);

	if (n <= 0)
		exit(0);
	line[n] = 0;
	answer = obey(line);
	CHECK(write(STDOUT_FILENO, answer, strlen(answer)) > 0);
}

/* ---- the loop ---- */

static int open_port(char side, int i)
{
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), one = 1, room = 16 << 20;
	struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	char name[16];

	snprintf(name, sizeof(name), "%c%d", side, i);
	to.sll_ifindex = (int)if_nametoindex(name);
	CHECK(fd >= 0 && to.sll_ifindex > 0);
	CHECK_EQ(setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)), 0);
	CHECK_EQ(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)), 0);
	CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)), 0);
	CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)), 0);
	CHECK_EQ(bind(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

static void forward(int rail, int from)
{
	static uint8_t buf[FRAME_MAX];

	for (int i = 0; i < BATCH; i++) {
		ssize_t n = recv(rails[rail].fd[from], buf, sizeof(buf), MSG_DONTWAIT);

		if (n > (ssize_t)(sizeof(struct virtio_net_hdr) + sizeof(struct ether_header)))
			handle_frame(rail, from, buf, (size_t)n);
		else if (n < 0)
			break; /* nothing more, or the interface is down */
	}
}

static void *map_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *p;

	CHECK(fd >= 0 && ftruncate(fd, sizeof(*total)) == 0);
	p = mmap(NULL, sizeof(*total), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	close(fd);
	return p;
}

static void note_pass(void)
{
	uint64_t now = now_ms();

	if (passed && now - passed > late)
		late = now - passed;
	passed = now;
}

int main(int argc, char **argv)
{
	struct pollfd fds[2 * RAILS_MAX + 1] = {{.fd = STDIN_FILENO, .events = POLLIN}};

	CHECK(argc == 4);
	total = map_file(argv[3]);
	nrails = atoi(argv[1]);
	CHECK(nrails > 0 && nrails <= RAILS_MAX);
	random_seed(strtoull(argv[2], NULL, 10));
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < 2 * nrails; i++) {
		struct rail *r = &rails[i / 2];

		r->fd[i % 2] = open_port(i % 2 ? 'b' : 'a', i / 2);
		r->kept[i % 2] = malloc(FRAME_MAX);
		CHECK(r->kept[i % 2]);
		fds[1 + i] = (struct pollfd){.fd = r->fd[i % 2], .events = POLLIN};
	}
	CHECK(write(STDOUT_FILENO, "ok\n", 3) == 3);
	for (;;) {
		int n = poll(fds, (nfds_t)(2 * nrails + 1), 10);

		CHECK(n >= 0 || errno == EINTR);
		note_pass();
		if (fds[0].revents)
			read_command();
		for (int i = 0; i < 2 * nrails; i++) {
			if (fds[1 + i].revents)
				forward(i / 2, i % 2);
			pass_kept(&rails[i / 2], i % 2, now_ms());
		}
	}
}
