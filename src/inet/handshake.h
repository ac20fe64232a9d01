/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake that starts every connection, whatever its protocol: identity (protocol, version, build, host), the
 * settings that must agree, by name, and a proof from both sides that they have the same key. Data specific to a
 * protocol goes into the payload, which this module does not interpret. docs/wire.md has the bytes, docs/design/0015
 * the reasons.
 *
 *    connecting side                                     accepting side
 *     | hello: protocol, nonce, settings, payload -------> |  HELLO: the payload selects the key, or has no owner
 *     | <-------------------------- challenge: nonce ----- |  \ only where there
 *     | proof: MAC over both ----------------------------> |  / is a key            PROVED: a peer, to be answered
 *     | <=============== TLS 1.3, for its keys ==========> |  only if both encrypt, and before PROVED
 *     | <-- answer: MAC over all of it, text, payload ---- |  or a refusal: cause, text                      DONE
 *
 * Until the proof is right the accepting side has made and promised nothing, and its own proof comes last. Both MACs
 * cover everything that went over the wire before them, with a nonce of each side in it and a label for each role: a
 * recorded or reflected one is worth nothing.
 *
 * Encryption is offered in the hello and agreed on in the challenge, which the MACs cover: a man in the middle cannot
 * make two sides drop it. TLS (tls.h) runs with an authenticated peer only, under a pre-shared key that is bound to
 * both nonces; its keys seal (base/seal.h) what follows the answer.
 *
 * This is a state machine over bytes; it never blocks or logs, and allocates for TLS only. inet_handshake_move is the same
 * over a socket. Foreign lengths are never trusted. Keys are borrowed, and stay within inet/settings.h.
 */
#ifndef GANTRY_INET_HANDSHAKE_H
#define GANTRY_INET_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/seal.h"
#include "gantry/result.h"

enum {
	INET_HELLO_SIZE = 192, /* and the payload, as of all that have one */
	INET_CHALLENGE_SIZE = 32,
	INET_PROOF_SIZE = 40,
	INET_ANSWER_SIZE = 384,
	INET_PAYLOAD_MAX = 256,
	INET_LABEL_SIZE = 16,
	INET_NONCE_SIZE = 16,
	INET_NAME_SIZE = 8,
	INET_BUILD_SIZE = 24,
	INET_SELF_SIZE = 48,
	INET_SETTINGS_SIZE = 80,
	INET_TEXT_SIZE = 280,
	INET_TRIES =
		3, /* of a hand-shake that fails: damage on the way looks like another secret, and passes the second time */
	INET_FIRST_VERSION = 4, /* of any protocol: lower ones are those of the data network before this hand-shake */
};

/* How the two sides know each other. */
enum inet_auth {
	INET_AUTH_NONE,	  /* not by a key: the payload may have something */
	INET_AUTH_SHOWN,  /* each shows its half of the key: a build without OpenSSL has no MACs */
	INET_AUTH_KEY,	  /* a key that came with an address or an id */
	INET_AUTH_SECRET, /* GANTRY_SECRET, alone or mixed into such a key */
	INET_AUTHS
};
enum { INET_SHOWN_SIZE = 32 }; /* of a key that is shown */
enum inet_encrypt { INET_ENCRYPT_OFF, INET_ENCRYPT_ON, INET_ENCRYPT_REQUIRE };
struct inet_key {
	enum inet_auth auth;
	const void *bytes; /* borrowed */
	size_t size;
	enum inet_encrypt encrypt; /* with AUTH_SECRET only */
};

struct inet_protocol {
	char name[INET_NAME_SIZE];
	uint16_t version;
	const char *accepting, *connecting; /* what the sides are called: "accepting side", "bootstrap root's side" */
	/* "GANTRY_CRC=1 ...": what must agree. NULL: nothing. */
	void (*settings)(char out[INET_SETTINGS_SIZE]);
};

enum inet_event {
	INET_AGAIN,  /* nothing to do until more bytes come, or go */
	INET_HELLO,  /* accepting: inet_handshake_challenge or inet_handshake_refuse */
	INET_PROVED, /* accepting: inet_handshake_accept or inet_handshake_refuse, now or later */
	INET_DONE,   /* the connection is the protocol's; accepting: once the output is out */
	INET_FAILED, /* error, text; what is in the output may still be sent */
};

enum inet_state {
	INET_HEAR_HELLO, /* accepting */
	INET_ASKED,	 /* the caller has a hello to look into */
	INET_HEAR_PROOF,
	INET_HEAR_TLS, /* both sides */
	INET_OWES_ANSWER,
	INET_HEAR_ANSWER, /* connecting: a challenge, or the answer */
	INET_HEAR_LAST,	  /* the answer */
	INET_OVER_DONE,
	INET_OVER_FAILED,
	INET_STATES
};

/* The seals of a connection; NULL: it is not encrypted. Owned. */
struct inet_seals {
	struct gantry_seal *tx, *rx;
};
void inet_seals_free(struct inet_seals *s);

struct inet_exchange;

/* Not to be moved or copied while it is in use. */
struct inet_handshake {
	const struct inet_protocol *protocol; /* borrowed; accepting: set by the caller at INET_HELLO */
	enum inet_state state;
	struct inet_key key;
	bool proved;  /* accepting: it is a peer, by its key or, where there is none, by what the caller knows */
	bool refused; /* connecting: `text` is what the peer says */
	bool broken;  /* the connection ended (errno 0) or broke: another attempt may do better */
	int broken_errno;

	/* What the peer says of itself. Texts are fit for a log line. */
	uint16_t peer_version;
	enum inet_auth peer_auth;
	char name[INET_NAME_SIZE + 1]; /* of its protocol */
	char build[INET_BUILD_SIZE];
	char peer[INET_SELF_SIZE]; /* "node7 pid 123" */
	char settings[INET_SETTINGS_SIZE];
	const uint8_t *payload;
	size_t payload_size;

	enum gantry_cipher cipher; /* that both agree on */
	struct inet_seals seals;   /* DONE: for what follows the answer. The caller that takes them clears this */

	gantry_result error; /* FAILED */
	char text[INET_TEXT_SIZE];

	/* Internal. The transcript so far, except the proof: what the MACs cover. */
	size_t at, got;	    /* where the incoming message begins, and how many of its bytes have arrived */
	const uint8_t *out; /* what is to be sent */
	size_t out_size;
	uint64_t starved_since; /* ns: the kernel has no memory for it (ENOBUFS) since then; 0: it has */
	uint8_t proof[INET_PROOF_SIZE];
	struct inet_exchange *exchange; /* owned; NULL: no TLS so far */
	uint8_t said[INET_LABEL_SIZE + INET_HELLO_SIZE + INET_PAYLOAD_MAX + INET_CHALLENGE_SIZE + INET_ANSWER_SIZE +
		     INET_PAYLOAD_MAX];
};

/* The connecting side: its hello is in the output. A failure is logged. */
gantry_result inet_handshake_start_client(struct inet_handshake *h, const struct inet_protocol *protocol,
					  const struct inet_key *key, const void *payload, size_t payload_size);
/* The accepting side. */
void inet_handshake_start_server(struct inet_handshake *h);
/* Wipes and frees what it holds, in any state; a zeroed one is fine. */
void inet_handshake_end(struct inet_handshake *h);

/* Where the peer's next bytes go, and how many it may say now: never more than the hand-shake's. 0: none. */
size_t inet_handshake_room(struct inet_handshake *h, uint8_t **ret_at);
/* So many of them came. */
enum inet_event inet_handshake_input(struct inet_handshake *h, size_t n);

/* Answers to INET_HELLO. Version, authentication and settings are compared: AGAIN, PROVED or FAILED. */
enum inet_event inet_handshake_challenge(struct inet_handshake *h, const struct inet_key *key);
/* The answer to INET_PROVED: DONE, or FAILED. */
enum inet_event inet_handshake_accept(struct inet_handshake *h, const void *payload, size_t payload_size);
/* r: one of those that a refusal can carry (VERSION, SETTING, AUTH, REFUSED, LIMIT). The text is sent to the peer. */
enum inet_event inet_handshake_refuse(struct inet_handshake *h, gantry_result r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Sends and receives what there is. A socket that ends is FAILED with `broken`. */
enum inet_event inet_handshake_move(struct inet_handshake *h, int fd);
/* For which events to call it again. */
uint32_t inet_handshake_events(const struct inet_handshake *h);
/* What the peer has left undone so far: "no hello message in time". */
const char *inet_handshake_owes(const struct inet_handshake *h);

#endif
