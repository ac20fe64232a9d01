/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed records: encrypted and authenticated, so that they can be neither read nor modified in transit.
 * docs/design/0032.
 *
 *   offset  size
 *        0     2  magic: the bytes `G S`
 *        2     1  direction: 0 from the side that has connected, 1 from the one that has accepted
 *        3     1  zero
 *        4     4  length of the plaintext: 1 to GANTRY_SEAL_MAX
 *        8     8  number of the record, from 0 on, on this connection and in this direction
 *       16        ciphertext
 *    16+length 16 tag
 *
 * The AEAD is AES-128-GCM or ChaCha20-Poly1305, the header its associated data. The nonce is the number of the record
 * exclusive-or the key's own initial vector, as in TLS 1.3; so are the key, the vector and the next secret after
 * GANTRY_SEAL_REKEY records, all made from one secret for each connection and direction. A record is opened only under the
 * number that is due: one that is left out, comes twice, comes back, comes from another connection or was changed has a
 * wrong tag. The number in the header is there to be able to say which it was.
 *
 * Not for two threads at a time.
 */
#ifndef GANTRY_BASE_SEAL_H
#define GANTRY_BASE_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "gantry/result.h"

enum {
	GANTRY_SEAL_HEADER = 16,
	GANTRY_SEAL_TAG = 16,
	GANTRY_SEAL_EXTRA = GANTRY_SEAL_HEADER + GANTRY_SEAL_TAG,
	GANTRY_SEAL_MAX = 64 << 10, /* plaintext in a record: stays in a core's cache */
	GANTRY_SEAL_SECRET = 32,
	GANTRY_SEAL_REKEY = 1 << 20, /* at most 2^32 blocks of AES under one key */
	GANTRY_SEAL_WHY = 128,
};

enum gantry_cipher { GANTRY_CIPHER_NONE, GANTRY_CIPHER_AES_128_GCM, GANTRY_CIPHER_CHACHA20_POLY1305, GANTRY_CIPHERS };
const char *gantry_cipher_name(enum gantry_cipher c);
/* The faster one on this CPU. */
enum gantry_cipher gantry_cipher_preferred(void);

/* One direction of one connection. */
struct gantry_seal;

/* direction: of what is sealed, or is to be opened, with it. rekey: records under one key, GANTRY_SEAL_REKEY or, to see it
 * happen, fewer; alike at both ends. gantry_openssl_load has succeeded. */
gantry_result gantry_seal_new(enum gantry_cipher cipher, const uint8_t secret[GANTRY_SEAL_SECRET], uint8_t direction,
			      bool sealing, uint32_t rekey, struct gantry_seal **ret_seal);
void gantry_seal_free(struct gantry_seal *s); /* wiped; NULL is fine */

/* What is in these parts, 1 to GANTRY_SEAL_MAX bytes, as a record at `out`. Returns its size; 0: the library has failed. */
size_t gantry_seal_close(struct gantry_seal *s, const struct iovec *iov, int n, uint8_t *out);
/* The length of the plaintext of the record that begins so; 0: it is none, or not the one that is due, and why says how. */
uint32_t gantry_seal_length(const struct gantry_seal *s, const uint8_t header[GANTRY_SEAL_HEADER],
			    char why[GANTRY_SEAL_WHY]);
/* A whole record, whose header was accepted, into these parts, which have its length. False: it is not authentic; what
 * was written must not be used. In place is fine. */
bool gantry_seal_open(struct gantry_seal *s, const uint8_t *record, const struct iovec *iov, int n);

#endif
