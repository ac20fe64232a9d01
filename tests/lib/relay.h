/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A relay over loopback between peers and a port, with a hand on every connection: how many bytes have passed each way,
 * the first of them for whoever wants to say them again, which lane it is where the data network speaks (its hello says
 * so), and rules about what may pass. One thread, which looks at everything every millisecond.
 */
#ifndef GANTRY_TESTS_RELAY_H
#define GANTRY_TESTS_RELAY_H

#include "inet/handshake.h"
#include "net/tcp/hello.h"
#include "test.h"

enum {
	RELAY_CONNS = 256,
	RELAY_TAPE = 1024,
	RELAY_LANES = 64,
	/* Of the data network: its hello, the byte in it that names the lane, and the proof behind it. */
	RELAY_HELLO = INET_HELLO_SIZE + WIRE_HELLO_SIZE,
	RELAY_LANE = INET_HELLO_SIZE + 72,
	RELAY_FIRST = RELAY_HELLO + INET_PROOF_SIZE
};
enum { TO_SERVER, TO_CLIENT };
#define RELAY_ALL INT64_MAX

struct relay_conn {
	int fd[2];	   /* the client's, the server's; -1: over */
	int lane, nth;	   /* by hello: its lane, and of its lane from 0; lane -1: it has not said hello */
	uint64_t since;	   /* ms: when it came, or said hello */
	uint64_t moved[2]; /* TO_SERVER, TO_CLIENT */
	uint8_t tape[2][RELAY_TAPE];
	uint8_t *part[2]; /* owned: of a message that is not whole, for `record` */
	size_t part_n[2];
};

struct relay {
	int listen, port;		      /* of the relay */
	struct sockaddr_in to;		      /* the server */
	int (*find)(struct sockaddr_in *ret); /* or: says where it is, when a connection comes */
	int lanes;			      /* nothing passes before a hello of the data network */
	/* How many bytes may have passed that way. Negative: the connection is reset. NULL: all. */
	int64_t (*allow)(const struct relay_conn *c, int way);
	/* How many bytes of that way go on; what comes after them is taken and gets lost. NULL: all. */
	uint64_t (*swallow)(const struct relay_conn *c, int way);
	/*
	 * Looks at the next n bytes of that way, of which c->moved[way] have passed, and may change them. Those that the
	 * other side does not take come again: what it does depends on their place alone. NULL: they pass as they are.
	 */
	void (*alter)(const struct relay_conn *c, int way, uint8_t *bytes, size_t n);
	/*
	 * Encrypted connections: what is said passes message by message, and each sealed record only as this function says
	 * it (relay_say). NULL: as any other bytes. The three above are not asked then.
	 */
	void (*record)(struct relay_conn *c, int way, const uint8_t *record, size_t n);
	int frozen; /* atomic: nothing is accepted and nothing passes */
	int cut;    /* atomic: the same, and there are no connections */
	int stop;   /* atomic */
	pthread_t thread;
	uint64_t moved_ms;	 /* atomic: when a byte passed last, or a little earlier */
	uint64_t turned_ms;	 /* its own: of the last pass */
	uint64_t held_up;	 /* ms: between two passes, at most; to be read when it has stopped */
	int hellos[RELAY_LANES]; /* atomic: so far */
	pthread_mutex_t mu;	 /* the thread holds it while it is at work: connections */
	int n;
	struct relay_conn conns[RELAY_CONNS];
};

/* Binds it to `port`, any for 0. Unless it listens already, connections are refused until relay_start. */
void relay_make(struct relay *r, int port, int listens);

/* Runs, until relay_stop or the end of the process. Fork before. */
void relay_start(struct relay *r);
void relay_stop(struct relay *r);

/* The same in the calling thread, for a process that is killed in the end. */
_Noreturn void relay_serve(struct relay *r);

/* Before the parameters are read: peers are sent to the relay. */
void relay_advertise(const struct relay *r);

/* So many hellos have come for this lane. */
int relay_hellos(const struct relay *r, int lane);

/* The first bytes that passed that way on the first connection; returns how many there are. */
size_t relay_tape(struct relay *r, int way, uint8_t ret[RELAY_TAPE]);

/* All bytes that passed that way. */
uint64_t relay_passed(struct relay *r, int way);

/* For `record`: these bytes go on, that way. Then, for one that says no more: its receiver hears of the end. */
void relay_say(struct relay_conn *c, int way, const uint8_t *bytes, size_t n);
void relay_end_way(struct relay_conn *c, int way);

/* Both ends of the lane's connections hear of a reset, or of an end. */
void relay_end_lane(struct relay *r, int lane, int reset);

#endif
