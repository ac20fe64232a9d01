/* SPDX-License-Identifier: Apache-2.0 */
/* What authentication needs: a keyed sum, a comparison that leaks nothing by its time, and random bytes. */
#ifndef GANTRY_BASE_HMAC_H
#define GANTRY_BASE_HMAC_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"

enum { GANTRY_MAC_SIZE = 32 };

/* ERR_UNSUPPORTED in a build without OpenSSL. */
gantry_result gantry_hmac_sha256(const void *key, size_t key_len, const void *msg, size_t msg_len,
				 uint8_t ret_mac[GANTRY_MAC_SIZE]);
/* 1 if equal. Takes the same time wherever the first difference is. */
int gantry_equal_secret(const void *a, const void *b, size_t n);
/* From the kernel's generator; waits for it only right after boot. */
gantry_result gantry_random_bytes(void *buf, size_t n);

#endif
