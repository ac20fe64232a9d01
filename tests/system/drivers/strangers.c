/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strangers N: A sends to B without a pause and opens a new connection to it now and then, while N strangers of six
 * kinds come to B's listening port. The transfer goes on with right bytes, B's descriptors stay bounded, every stranger
 * is counted, no listener hears of them, and genuine peers get in during and after.
 */
#include "pair.h"

#include "net/tcp/network.h"
#include "net/tcp/hello.h"

enum { SIZE = 300000, HELD = 1000, FDS_MORE = 300, NEWCOMERS = 70, SLOW_MS = 40000, OVER = 100 };

/* What the parent says: event 1, the strangers have come; number[1]: what B has to report. */
static int strangers;

static void sender(struct pair_side *s)
{
	uint8_t *data = malloc(SIZE);
	uint64_t slowest = 0, messages = 0;
	void *comm;
	int newcomers = 0;

	CHECK(data);
	pair_init(s);
	comm = pair_connect(s, 0);
	pair_step(s, 1);
	for (int last = 0; !last;) {
		uint32_t head;

		last = load_acquire(&s->shared->event) && newcomers > 1;
		head = last ? 0 : (uint32_t)++messages;
		pattern_fill(data, SIZE, head);
		memcpy(data, &head, sizeof(head));
		pair_wait(s, pair_isend(s, comm, data, SIZE, 0));
		/* However long the strangers take to come, there is room for the one after them. */
		if (last || (messages % 20 == 0 && newcomers < NEWCOMERS - 2)) {
			uint64_t began = now_ms();
			int number = last ? -1 : newcomers;
			void *extra = pair_connect(s, ++newcomers);

			if (now_ms() - began > slowest)
				slowest = now_ms() - began;
			pair_wait(s, pair_isend(s, extra, &number, sizeof(number), 0));
			if (!last)
				pair_wait_step(s->shared, s->other, (uint32_t)newcomers + 1);
			CHECK_OK(s->net->ops->close_send(s->net, extra));
		}
		sleep_ms(2);
	}
	printf("%d messages and %d new connections, the slowest took %d ms\n", (int)messages, newcomers, (int)slowest);
	CHECK(slowest < SLOW_MS); /* GANTRY_CONNECT_TIMEOUT=100s: it is not the last try that gets in */
	pair_wait_step(s->shared, s->other, 1000);
	CHECK_OK(s->net->ops->close_send(s->net, comm));
	free(data);
}

static void receiver(struct pair_side *s)
{
	uint8_t *data = malloc(SIZE);
	void *listen, *next, *comm, *extra = NULL, *req = NULL, *hello = NULL;
	int fds, most = 0, newcomers = 0, number = 0, done = 0, last = 0;
	uint64_t count = 0, end;

	CHECK(data);
	pair_init(s);
	listen = pair_listen(s, 0);
	comm = pair_accept(s, listen);
	fds = pair_fds();
	next = pair_listen(s, 1);
	while (!last) {
		uint32_t head;

		req = req ? req : pair_irecv(s, comm, data, SIZE, 0);
		CHECK_OK(s->net->ops->test(s->net, req, &done, NULL));
		if (done) {
			req = NULL;
			memcpy(&head, data, sizeof(head));
			last = head == 0;
			CHECK(last || head == ++count);
			for (size_t i = sizeof(head); i < SIZE; i += 97)
				CHECK_EQ(data[i], pattern_byte(head, i));
		}
		if (!extra)
			CHECK_OK(s->net->ops->accept(s->net, next, &extra,
						     NULL)); /* a stranger would be an error here */
		if (extra && !hello)
			hello = pair_irecv(s, extra, &number, sizeof(number), 0);
		if (hello) {
			int got = 0;

			CHECK_OK(s->net->ops->test(s->net, hello, &got, NULL));
			if (got) {
				CHECK_EQ(number, newcomers);
				CHECK_OK(s->net->ops->close_recv(s->net, extra));
				CHECK_OK(s->net->ops->close_listen(s->net, next));
				extra = hello = NULL;
				pair_step(s, (uint32_t)++newcomers + 1);
				next = pair_listen(s, newcomers + 1);
			}
		}
		if (pair_fds() > most)
			most = pair_fds();
		if (!done)
			sleep_ms(1);
	}
	/* One more genuine peer, afterwards: the sender's last connection. */
	extra = extra ? extra : pair_accept(s, next);
	hello = hello ? hello : pair_irecv(s, extra, &number, sizeof(number), 0);
	pair_wait(s, hello);
	CHECK_EQ(number, -1);
	CHECK_OK(s->net->ops->close_recv(s->net, extra));
	/* Those that hang on are dropped by their deadline. */
	for (end = now_ms() + PAIR_PATIENCE_MS; now_ms() < end;) {
		if (load_relaxed(&inet_strangers) >= (uint64_t)strangers)
			break;
		sleep_ms(20);
	}
	pair_step(s, 1000);
	printf("%d strangers counted, fds %d at the start, at most %d\n", (int)load_relaxed(&inet_strangers), fds,
	       most);
	fflush(stdout);
	CHECK(most <= fds + FDS_MORE);
	CHECK(load_relaxed(&inet_strangers) >= (uint64_t)strangers);
	/* A genuine one that was crowded out, or said hello too late, counts too, and tries again. */
	CHECK(load_relaxed(&inet_strangers) <= (uint64_t)(strangers + strangers / 10 + OVER));
	CHECK_OK(s->net->ops->close_recv(s->net, comm));
	CHECK_OK(s->net->ops->close_listen(s->net, listen));
	CHECK_OK(s->net->ops->close_listen(s->net, next));
	free(data);
}

/* Six kinds, in turn. Those that stay are held until HELD later ones have come. */
static void come(int n, const struct gantry_addr *to)
{
	static const char http[] = "GET /metrics HTTP/1.1\r\nHost: gantry\r\n\r\n";
	static const uint8_t slow[] = {'G', 'A', 'N', 'T', 'R', 'Y', 1, '\n', 1, 0};
	int held[HELD], kind_of[HELD], told[HELD] = {0};

	memset(held, 0xff, sizeof(held));
	for (int i = 0; i < n; i++) {
		struct linger hard = {1, 0};
		int kind = i % 6, fd = socket(AF_INET, SOCK_STREAM, 0), slot = i % HELD;
		uint8_t noise[256];

		CHECK(fd >= 0 && connect(fd, &to->sa, sizeof(to->in)) == 0);
		for (size_t k = 0; k < sizeof(noise); k++)
			noise[k] = (uint8_t)(rand() >> 7);
		if (kind == 0)
			CHECK(send(fd, http, sizeof(http) - 1, MSG_NOSIGNAL) > 0);
		else if (kind == 1)
			CHECK(send(fd, noise, sizeof(noise), MSG_NOSIGNAL) > 0);
		else if (kind == 2)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		if (kind == 2 || kind == 3) { /* reset; connect and close */
			close(fd);
			fd = -1;
		}
		if (held[slot] >= 0)
			close(held[slot]);
		held[slot] = fd; /* 4: silent; 5: a byte now and then */
		kind_of[slot] = kind;
		told[slot] = 0;
		for (int k = 0; k < HELD && i % 20 == 0; k++)
			if (held[k] >= 0 && kind_of[k] == 5 && told[k] < (int)sizeof(slow))
				send(held[k], &slow[told[k]++], 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (i % 16 == 0)
			sleep_ms(2);
	}
	sleep_ms(300); /* the last ones stay a while */
}

int main(int argc, char **argv)
{
	struct pair_shared *shared = pair_share();
	struct wire_handle h;

	strangers = argc > 1 ? atoi(argv[1]) : 10000;
	pair_fork_both(shared, sender, receiver);
	pair_wait_step(shared, 0, 1);
	CHECK_OK(wire_handle_decode(shared->handle[1][0], &h));
	come(strangers, &h.addrs[0]);
	store_release(&shared->event, 1);
	return pair_reap_both(shared);
}
