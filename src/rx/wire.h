/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two rx say to each other. All numbers little-endian.
 *
 * The rendezvous, over a TCP connection of its own; then the network's connections are made, one per direction, and the
 * rendezvous is closed. Its messages have one size and one layout; what a kind does not use is 0:
 *
 *   0 magic(8)  8 version(2)  10 kind(2)  12 auth(1)  13 why(1)  14 reserved(2)  16 epoch(8)  24 id of the
 * connection(8) 32 nonce(16)  48 mac(32)  80 handle(128)
 *
 *   without a secret:  CONNECT ->                              <- ACCEPT
 *   with a secret:     CONNECT ->  <- CHALLENGE     PROOF ->   <- ACCEPT
 *   it cannot be:      CONNECT ->  <- REFUSED, or behind PROOF
 *
 *   kind       from        auth     uses
 *   CONNECT    connecting  0 or 1   epoch, id, nonce, handle
 *   CHALLENGE  accepting   1        id, nonce
 *   PROOF      connecting  1        id, mac: HMAC-SHA256 over "gantry rx client", CONNECT and CHALLENGE as they were
 * sent ACCEPT     accepting   0 or 1   epoch, id, handle; auth 1: mac, over "gantry rx server", CONNECT, CHALLENGE and
 * this message with 0 in the place of the mac REFUSED    accepting   0        id (0 if it is not known), why: enum
 * rx_why
 *
 * Magic, version and kind stay where they are in all versions, so that a side can name the version of the other.
 *
 * In each direction the network carries tag 0: heads, and tag 1: data. A head is 48 bytes:
 *
 *   0 magic(4)  4 kind(2)  6 flags(2)  8 transfer(8)  16 tag(8)  24 bytes(8)  32 arg(8)  40 reserved(8)
 *
 *   kind    from      meaning                                                          bytes       arg
 *   SEND    sender    a transfer; INLINE: its bytes follow the head                    its bytes   largest message
 *   TAKEN   receiver  all bytes of the transfer are in their place                     -           -
 *   GRANT   receiver  send it as messages of this size. The order of grants is the     -           message bytes
 *                     order of data in tag 1
 *   REJECT  receiver  the receive is smaller: no data                                  receive's   -
 *   STOP    receiver  no receives are posted for messages from arg on                  -           posted
 *   END     sender    no messages with data are sent from arg on                       -           posted
 *
 * Ending a transfer early, by either side: STOP and END answer one another, then both know how many messages there are,
 * max(STOP's, END's). The sender makes up the number with empty messages, the receiver with receives that are thrown
 * away. A transfer that was not granted has none: STOP with arg 0 ends one that the sender has ended, or one that came
 * with its head and is not wanted any more. Transfers are posted to tag 1 one after the other, so the count of messages
 * stays the same on both sides.
 */
#ifndef GANTRY_RX_WIRE_H
#define GANTRY_RX_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "base/hmac.h"
#include "gantry/result.h"
#include "net/net.h"

enum {
	RX_NONCE_SIZE = 16,
	RX_HELLO_SIZE = 48 + GANTRY_MAC_SIZE + GANTRY_NET_HANDLE_SIZE,
	RX_HEAD_SIZE = 48,
	RX_VERSION = 3,
};
enum rx_hello_kind {
	RX_HELLO_CONNECT = 1,
	RX_HELLO_ACCEPT,
	RX_HELLO_CHALLENGE,
	RX_HELLO_PROOF,
	RX_HELLO_REFUSED,
	RX_HELLO_KINDS
};
enum rx_why {
	RX_WHY_VERSION = 1,
	RX_WHY_ACCEPTING,  /* only the accepting side has a secret */
	RX_WHY_CONNECTING, /* only the connecting side has one */
	RX_WHY_DIFFERS,	   /* the secrets differ */
	RX_WHYS
};

struct rx_hello {
	uint16_t version, kind;
	uint8_t auth, why;
	uint64_t epoch, id;
	uint8_t nonce[RX_NONCE_SIZE], mac[GANTRY_MAC_SIZE];
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
};

enum rx_kind { RX_SEND = 1, RX_TAKEN, RX_GRANT, RX_REJECT, RX_STOP, RX_END, RX_KINDS };
enum { RX_INLINE = 1 };

struct rx_head {
	uint16_t kind, flags;
	uint64_t transfer, tag, bytes, arg;
};

void rx_hello_encode(const struct rx_hello *h, uint8_t out[RX_HELLO_SIZE]);
/* ERR_PROTOCOL: not ours; ERR_VERSION: another version of it. Logs nothing. */
gantry_result rx_hello_decode(const uint8_t in[RX_HELLO_SIZE], struct rx_hello *ret_hello);
/* Does what has come so far begin like a hello? ERR_VERSION: yes, of another version, which may have another size. */
gantry_result rx_hello_may_be(const uint8_t *in, size_t n);
/* The mac of PROOF (answer NULL), or that of the ACCEPT in `answer`. All messages as they were sent. */
gantry_result rx_hello_mac(const char *secret, const uint8_t hello[RX_HELLO_SIZE],
			   const uint8_t challenge[RX_HELLO_SIZE], const uint8_t *answer,
			   uint8_t ret_mac[GANTRY_MAC_SIZE]);

void rx_head_encode(const struct rx_head *h, uint8_t out[RX_HEAD_SIZE]);
/* size: of the whole message. Everything is checked that can be without knowing the transfer. */
gantry_result rx_head_decode(const uint8_t *in, size_t size, struct rx_head *ret_head);

#endif
