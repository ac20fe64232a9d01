/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 of libssl over bytes, for its keys alone: no byte of a protocol travels in its records. Both sides have the
 * same pre-shared key, and each run has an ephemeral (EC)DHE exchange (psk_dhe_ke), so that an attacker with the
 * key later cannot read what was sent before. Part of the handshake (handshake.h); docs/design/0032.
 */
#ifndef GANTRY_INET_TLS_H
#define GANTRY_INET_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hmac.h"
#include "base/seal.h"

enum {
	INET_TLS_RECORD_MAX = 1024, /* without certificates none is larger */
	INET_TLS_HEADER = 5,
};

struct inet_tls;

/* NULL: no memory, or libssl refuses. gantry_openssl_load has succeeded. psk is copied. */
struct inet_tls *inet_tls_new(bool client, const uint8_t psk[GANTRY_MAC_SIZE]);
void inet_tls_free(struct inet_tls *t); /* wiped; NULL is fine */
/* A record of the peer, whole; the client begins with none (n 0). 1: the exchange is over; 0: more must come; -1: it has
 * failed, and why says how. */
int inet_tls_input(struct inet_tls *t, const uint8_t *record, size_t n, char *why, size_t why_size);
/* What is to be sent next: at most `room` bytes of it. */
size_t inet_tls_output(struct inet_tls *t, uint8_t *out, size_t room);
/* After the end: a secret for each direction, from the side that has connected and to it, bound to the context. */
bool inet_tls_export(struct inet_tls *t, const uint8_t *context, size_t context_size,
		     uint8_t ret_secrets[2][GANTRY_SEAL_SECRET]);
/* Of the record that begins with these bytes, header included, as far as they tell; 0: it is none. */
size_t inet_tls_record_size(const uint8_t *m, size_t got);

#endif
