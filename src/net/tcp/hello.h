/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is said before a lane carries frames (wire.h): the handle that a listener gives out, and the hand-shake on each
 * new socket. Pure functions over byte buffers; docs/wire.md is the long form.
 *
 * The connecting side says hello and the accepting side answers with welcome, or a refusal. When a secret is set, the
 * first answer is a challenge: the connecting side sends a proof, and only then is its hello looked into and answered.
 */
#ifndef GANTRY_NET_TCP_HELLO_H
#define GANTRY_NET_TCP_HELLO_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"
#include "inet/nic.h"
#include "net/net.h"
#include "net/tcp/wire.h"

enum {
	WIRE_VERSION = 3,
	WIRE_HELLO_SIZE = 192,
	WIRE_WELCOME_SIZE = 384,
	WIRE_PROOF_SIZE = 40,
	WIRE_COOKIE_SIZE = 16,
	WIRE_SESSION_SIZE = 16,
	WIRE_NONCE_SIZE = 16,
	WIRE_MAC_SIZE = 32,
	WIRE_MAC_OFFSET = 72, /* of the MAC inside welcome: what stands before and after it is what it covers */
	WIRE_TEXT_SIZE = 96,
};

/* ---- the 128-byte handle ---- */

struct wire_handle {
	uint16_t version;
	uint64_t process; /* random id of the listening process */
	uint64_t listener;
	uint8_t cookie[WIRE_COOKIE_SIZE];
	uint64_t comm_id;
	int dev;
	int naddrs;
	struct gantry_addr addrs[GANTRY_NET_MAX_RAILS]; /* as many as fit; the welcome carries the rest */
};

/* The last bytes of a handle belong to the connecting side: its state between calls. */
uint64_t wire_handle_local(const void *handle);
void wire_handle_set_local(void *handle, uint64_t value);

void wire_handle_encode(const struct wire_handle *h, uint8_t out[GANTRY_NET_HANDLE_SIZE]);
gantry_result wire_handle_decode(const uint8_t in[GANTRY_NET_HANDLE_SIZE], struct wire_handle *ret);

/* ---- hello, welcome, proof ---- */

enum wire_auth { WIRE_AUTH_COOKIE = 0, WIRE_AUTH_HMAC = 1 };

/* Does this side receive into device memory? Then bulk lanes towards it carry payload only, and headers go ahead on the
 * control lane. A NIC cannot do it for what does not come in through it, which the speaker of a hello does not know. */
enum wire_unpack { WIRE_UNPACK_NO = 0, WIRE_UNPACK_YES = 1, WIRE_UNPACK_BETWEEN_HOSTS = 2, WIRE_UNPACKS };

struct wire_hello {
	uint16_t version;
	uint8_t auth;  /* enum wire_auth */
	uint8_t lane;  /* 0 is the control lane */
	uint8_t lanes; /* control lane included */
	uint8_t crc;   /* a setting that must agree */
	uint16_t dev;
	uint8_t unpack; /* enum wire_unpack */
	uint64_t listener;
	uint8_t cookie[WIRE_COOKIE_SIZE];
	uint8_t session[WIRE_SESSION_SIZE];
	uint8_t nonce[WIRE_NONCE_SIZE];
	uint64_t process;
	uint64_t comm_id;
	uint64_t host;	    /* equal on both sides when both run on one kernel */
	uint32_t window;    /* bytes of eager data that this side buffers for receives not yet posted */
	uint32_t eager_max; /* the smaller of both sides' counts */
	char build[24];
	char peer[40]; /* "hostname pid 123", for messages */
};

void wire_hello_encode(const struct wire_hello *h, uint8_t out[WIRE_HELLO_SIZE]);
/* ERR_PROTOCOL: not a hello of ours (a stranger). Any version is decoded: the caller compares. */
gantry_result wire_hello_decode(const uint8_t in[WIRE_HELLO_SIZE], struct wire_hello *ret);
/* How many leading bytes tell a stranger from a peer, and the test on the bytes that are there so far. */
enum { WIRE_MAGIC_SIZE = 8 };
#define WIRE_HELLO_MAGIC "GANTRY\x01\n"
int wire_hello_may_be(const uint8_t *in, size_t have);

enum wire_verdict {
	WIRE_OK = 0,
	WIRE_USE_SESSION, /* share the connection whose session id stands in the welcome */
	WIRE_REFUSED_VERSION,
	WIRE_REFUSED_SETTING,
	WIRE_REFUSED_AUTH,
	WIRE_REFUSED_LISTENER, /* no such listener, or the cookie does not match */
	WIRE_REFUSED_LIMIT,
	WIRE_CHALLENGE,	      /* prove that you know the secret: another welcome follows the proof */
	WIRE_UNKNOWN_SESSION, /* no link waits for this lane (any more): begin anew with lane 0 */
	WIRE_VERDICTS
};

struct wire_welcome {
	uint16_t version;
	uint8_t verdict; /* enum wire_verdict */
	uint8_t unpack;	 /* enum wire_unpack, of the accepting side */
	uint8_t session[WIRE_SESSION_SIZE];
	uint8_t nonce[WIRE_NONCE_SIZE];
	uint64_t process;
	uint64_t host;
	uint32_t window;
	uint32_t eager_max;
	uint8_t mac[WIRE_MAC_SIZE];
	char text[WIRE_TEXT_SIZE]; /* who the peer is, or why it refuses */
	int naddrs;
	struct gantry_addr addrs[GANTRY_NET_MAX_RAILS];
};

void wire_welcome_encode(const struct wire_welcome *w, uint8_t out[WIRE_WELCOME_SIZE]);
gantry_result wire_welcome_decode(const uint8_t in[WIRE_WELCOME_SIZE], struct wire_welcome *ret);

/*
 * MACs over the exact bytes that went over the wire: the client's over its hello and the challenge, the server's over
 * the hello and the welcome that carries it. `client` picks the role, so that one cannot stand for the other.
 */
gantry_result wire_mac(const char *secret, int client, const uint8_t hello[WIRE_HELLO_SIZE],
		       const uint8_t welcome[WIRE_WELCOME_SIZE], uint8_t ret_mac[WIRE_MAC_SIZE]);

void wire_proof_encode(const uint8_t mac[WIRE_MAC_SIZE], uint8_t out[WIRE_PROOF_SIZE]);
gantry_result wire_proof_decode(const uint8_t in[WIRE_PROOF_SIZE], uint8_t ret_mac[WIRE_MAC_SIZE]);

#endif
