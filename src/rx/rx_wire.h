/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two rx say to each other. All numbers little-endian.
 *
 * The rendezvous is a TCP connection of its own with the hand-shake that all connections have (inet/handshake.h). Each
 * side's payload is its offer:
 *
 *   0 epoch(8)  8 id of the connection(8), made by the connecting side  16 handle(128) of a listener of the network
 *   144 epoch(8) of the rx that it is for, or 0  152 address(20) that was dialled (inet/target.h)
 *
 * The last line is the connecting side's, and zero in an answer. With a secret the accepting side refuses a hello that is for
 * another rx: otherwise a man in the middle could forward it to another listener that has the same secret.
 *
 * Then the network's connections are made, one per direction, and the rendezvous is closed. The accepting side says UP when
 * it has both; the connecting side is done when it has that, and says UP in turn, and with it the accepting side is done. So a
 * connecting side that begins again, because something broke on the way, has not left a connection behind that counts.
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
 *   REJECT  receiver  the receive is smaller, or not of whole elements: no data        receive's   bytes of an
 *                                                                                                  element, or 0
 *   STOP    receiver  no receives are posted for messages from arg on                  -           posted
 *   END     sender    no messages with data are sent from arg on                       -           posted
 *   UP      both      the first head of each side: it has both connections             -           -
 *
 * Ending a transfer early, by either side: STOP and END answer one another, then both know how many messages there are,
 * max(STOP's, END's). The sender makes up the number with empty messages, the receiver with receives that are thrown
 * away. A transfer that was not granted has none: STOP with arg 0 ends one that the sender has ended, or one that came
 * with its head and is not wanted any more. Transfers are posted to tag 1 one after the other, so the count of messages
 * stays the same on both sides.
 */
#ifndef GANTRY_RX_RX_WIRE_H
#define GANTRY_RX_RX_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"
#include "inet/target.h"
#include "net/net.h"

enum { RX_VERSION = 5, RX_OFFER_SIZE = 24 + GANTRY_NET_HANDLE_SIZE + INET_TARGET_SIZE, RX_HEAD_SIZE = 48 };

struct rx_offer {
	uint64_t epoch, id;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	uint64_t to_epoch; /* 0: of any, at that address: */
	struct inet_target to;
};

enum rx_kind { RX_SEND = 1, RX_TAKEN, RX_GRANT, RX_REJECT, RX_STOP, RX_END, RX_UP, RX_KINDS };
enum { RX_INLINE = 1 };

struct rx_head {
	uint16_t kind, flags;
	uint64_t transfer, tag, bytes, arg;
};

void rx_offer_encode(const struct rx_offer *o, uint8_t out[RX_OFFER_SIZE]);
/* ERR_PROTOCOL: it is none. Whether the handle is one is not looked at. */
gantry_result rx_offer_decode(const uint8_t *in, size_t size, struct rx_offer *ret_offer);

void rx_head_encode(const struct rx_head *h, uint8_t out[RX_HEAD_SIZE]);
/* size: of the whole message. Everything is checked that can be without knowing the transfer. */
gantry_result rx_head_decode(const uint8_t *in, size_t size, struct rx_head *ret_head);

#endif
