/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages before a lane carries frames (tcp_wire.h): the handle that a listener gives out, and the payloads of the
 * handshake (inet/handshake.h) on each new socket. Pure functions over byte buffers; docs/wire.md is the long form.
 */
#ifndef GANTRY_NET_TCP_HELLO_H
#define GANTRY_NET_TCP_HELLO_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"
#include "inet/nic.h"
#include "net/net.h"
#include "net/tcp/tcp_wire.h"

enum {
	WIRE_VERSION = 7,
	WIRE_HELLO_SIZE = 96,
	WIRE_WELCOME_SIZE = 224,
	WIRE_COOKIE_SIZE = 16,
	WIRE_SESSION_SIZE = 16,
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

/* ---- the payloads of hello and answer ---- */

/* Does this side receive into device memory? Then bulk lanes towards it carry payload only, and headers go ahead on the
 * control lane. A NIC cannot do it for what does not come in through it, which the speaker of a hello does not know. */
enum wire_unpack { WIRE_UNPACK_NO = 0, WIRE_UNPACK_YES = 1, WIRE_UNPACK_BETWEEN_HOSTS = 2, WIRE_UNPACKS };

struct wire_hello {
	uint64_t listener;
	uint8_t cookie[WIRE_COOKIE_SIZE];
	uint8_t session[WIRE_SESSION_SIZE];
	uint64_t process;
	uint64_t comm_id;
	uint64_t host;	    /* equal on both sides when both run on one kernel */
	uint32_t window;    /* bytes of eager data that this side buffers for receives not yet posted */
	uint32_t eager_max; /* the smaller of both sides' counts */
	uint8_t lane;	    /* 0 is the control lane */
	uint8_t lanes;	    /* control lane included */
	uint8_t unpack;	    /* enum wire_unpack */
	uint8_t resume;	    /* enum inet_resume (inet/settings.h): should the session outlive its sockets? */
	uint16_t dev;
	uint32_t
		generation; /* how many sockets this lane has had before; more than 0: the session is there. resume.h */
	uint64_t received;  /* generation > 0, lane 0: eager bytes that have come, as in STATE */
};

void wire_hello_encode(const struct wire_hello *h, uint8_t out[WIRE_HELLO_SIZE]);
/* ERR_PROTOCOL: it is none. Of another version only listener and cookie are known, which stay where they are. */
gantry_result wire_hello_decode(const uint8_t *in, size_t size, int version, struct wire_hello *ret);

enum wire_verdict {
	WIRE_LANE,	      /* this socket becomes the lane that hello named */
	WIRE_USE_SESSION,     /* share the connection whose session id stands in the welcome */
	WIRE_UNKNOWN_SESSION, /* no link waits for this lane (any more): begin anew with lane 0 */
	WIRE_VERDICTS
};

struct wire_welcome {
	uint8_t verdict; /* enum wire_verdict */
	uint8_t unpack;	 /* enum wire_unpack, of the accepting side */
	uint8_t resume;	 /* as in hello */
	uint8_t session[WIRE_SESSION_SIZE];
	uint64_t host;
	uint32_t window;
	uint32_t eager_max;
	uint64_t received; /* as in hello */
	int naddrs;
	struct gantry_addr addrs[GANTRY_NET_MAX_RAILS];
};

void wire_welcome_encode(const struct wire_welcome *w, uint8_t out[WIRE_WELCOME_SIZE]);
gantry_result wire_welcome_decode(const uint8_t *in, size_t size, struct wire_welcome *ret);

#endif
