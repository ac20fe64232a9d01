/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one way to reach a peer: connect a socket, run the connecting side's hand-shake over it, and try again later.
 *
 *    IDLE --start--> PAUSE --due--> CONNECTING --> SHAKING --> IDLE: ops.done, the owner takes the socket
 *                      ^                |             |
 *                      +---- start -----+-------------+------> IDLE: ops.failed, the owner starts again or gives up
 *
 * A dial is one attempt at a time. Its owner decides where each attempt goes (ops.aim: candidates, NICs, how long TCP may take),
 * what the hello says (ops.hello), and after a failure whether another attempt can do better. Several addresses side by side are
 * several dials, each started a little later than the one before. What every owner needs is here: pauses that grow, the deadline of
 * an attempt, what a failure means, in words; whether nothing listens at the peer any more; and that a socket which is given up is
 * closed, or reset where the peer would take its end for that of the session.
 *
 * A dial that was started by inet_dial_start belongs to the loop: sockets and due times are watched, callbacks run on the service
 * thread with loop_mu. Owners that poll under a lock of their own use inet_dial_poll instead, without the loop.
 */
#ifndef GANTRY_INET_DIAL_H
#define GANTRY_INET_DIAL_H

#include "inet/handshake.h"
#include "inet/loop.h"
#include "inet/nic.h"

enum inet_dial_state {
	INET_DIAL_IDLE,	      /* no attempt, and none is planned */
	INET_DIAL_PAUSE,      /* the next attempt starts when it is due */
	INET_DIAL_CONNECTING, /* TCP connects */
	INET_DIAL_SHAKING,    /* the hand-shake runs */
};

enum inet_dial_cause {
	INET_DIAL_CONNECT,  /* the kernel refused to connect */
	INET_DIAL_FILTERED, /* TCP did not connect in time */
	INET_DIAL_BROKE,    /* the connection ended during the hand-shake */
	INET_DIAL_SILENT,   /* the hand-shake was not over in time */
	INET_DIAL_REFUSED,  /* the hand-shake failed: shake.error, shake.refused. A damaged byte may look like this */
	INET_DIAL_OWN,	    /* this process cannot start one: gantry_last_error() */
	INET_DIAL_EXIT,	    /* this process exits */
};

struct inet_dial;

struct inet_dial_aim {
	struct gantry_addr to, from; /* from: family 0: the kernel chooses */
	const char *device;	     /* to bind to; NULL: none. Borrowed */
	uint64_t patience;	     /* ns: for TCP to connect */
};

struct inet_dial_hello {
	const struct inet_protocol *protocol;
	const struct inet_key *key;
	uint64_t patience; /* ns: for the hand-shake; UINT64_MAX: no limit */
	uint64_t
		whole; /* ns: for the rest of a message that has begun, else it is REFUSED as damaged; UINT64_MAX: no limit */
	size_t size;
	uint8_t payload[INET_PAYLOAD_MAX];
};

struct inet_dial_ops {
	/* An attempt starts. False: none is needed any more, the dial is IDLE. */
	bool (*aim)(struct inet_dial *d, struct inet_dial_aim *ret);
	/* The socket is connected; `hello` is zeroed. NULL: nothing more is wanted than that it connects. */
	void (*hello)(struct inet_dial *d, struct inet_dial_hello *ret);
	/* The answer is in d->shake; take the socket by inet_dial_take, or stop. May free the dial. */
	void (*done)(struct inet_dial *d);
	/* d->cause, error and text say why; the socket is closed. May free the dial. */
	void (*failed)(struct inet_dial *d);
};

struct inet_dial {
	const struct inet_dial_ops *ops; /* borrowed */
	enum inet_dial_state state;
	bool resets;		 /* a socket that is given up is reset: the connection goes on over other sockets */
	struct gantry_list node; /* of the loop's, while it is not IDLE */
	struct inet_source source;
	struct gantry_addr to; /* of this attempt, or the last one */
	uint64_t due;	       /* ns. PAUSE: when the attempt starts; then: when it is given up */
	struct {
		uint64_t since, until, whole,
			begun; /* ns; begun: when the message began that is not whole, 0: none has */
	} shaking;
	uint64_t refused_since; /* ns: since then nothing has listened there; 0: something did, or it is not known */
	uint32_t failures;	/* since the peer last answered: calls of inet_dial_retry_at */
	uint32_t misshakes;	/* how many of them were REFUSED: INET_TRIES are no accident */
	struct inet_handshake shake;

	/* The last failure; text is "" before the first. */
	enum inet_dial_cause cause;
	int error; /* errno; of a hand-shake that failed: 0 */
	char text[INET_TEXT_SIZE];
};

void inet_dial_init(struct inet_dial *d, const struct inet_dial_ops *ops);
/* The loop makes an attempt at `at` (ns; 0: now). Not while one is under way. */
void inet_dial_start(struct inet_dial *d, uint64_t at) REQUIRES(loop_mu);
/* IDLE, without a socket; keeps what is known of earlier attempts. */
void inet_dial_stop(struct inet_dial *d) REQUIRES(loop_mu);
/* In done: the connected socket. Its seals move too; ret_seals NULL: they are freed. */
int inet_dial_take(struct inet_dial *d, struct inet_seals *ret_seals) REQUIRES(loop_mu);
/* Stops, and wipes the hand-shake. */
void inet_dial_end(struct inet_dial *d) REQUIRES(loop_mu);

/* The same for an owner that polls. AGAIN, DONE or FAILED; ops.done and failed are not called. */
void inet_dial_poll_start(struct inet_dial *d, uint64_t at);
enum inet_event inet_dial_poll(struct inet_dial *d);
int inet_dial_poll_take(struct inet_dial *d);
void inet_dial_poll_end(struct inet_dial *d);

/* When to try again: the pause grows with every call. */
uint64_t inet_dial_retry_at(struct inet_dial *d);
/* A peer that answered: pauses are short again. */
void inet_dial_reset(struct inet_dial *d);
/* For so long nothing has listened there that its process must have ended: a second is for addresses and filters that come and go,
 * less where the peer's deadline is short. */
bool inet_dial_is_deserted(const struct inet_dial *d, uint64_t timeout);

#endif
