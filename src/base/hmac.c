/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/hmac.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"

#if GANTRY_HAVE_OPENSSL

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>

/*
 * By default OpenSSL frees its tables when the program exits. Our service threads are still there then, and one may be
 * in the middle of a peer's proof. The tables end with the process all the same.
 */
static void keep_until_the_end(void)
{
	OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

gantry_result gantry_hmac_sha256(const void *key, size_t key_len, const void *msg, size_t msg_len,
				 uint8_t ret_mac[GANTRY_MAC_SIZE])
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	uint8_t mac[EVP_MAX_MD_SIZE];
	unsigned mac_len = 0;

	pthread_once(&once, keep_until_the_end);
	if (key_len > INT_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "key is too long (%zu bytes)", key_len);
	/* A NULL key means "the last one" to OpenSSL; an empty key is a key too. */
	if (!HMAC(EVP_sha256(), key_len ? key : "", (int)key_len, msg, msg_len, mac, &mac_len) ||
	    mac_len != GANTRY_MAC_SIZE)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "OpenSSL cannot compute HMAC-SHA256 here");
	memcpy(ret_mac, mac, GANTRY_MAC_SIZE);
	return GANTRY_OK;
}

#else

gantry_result gantry_hmac_sha256(const void *key, size_t key_len, const void *msg, size_t msg_len,
				 uint8_t ret_mac[GANTRY_MAC_SIZE])
{
	(void)key, (void)key_len, (void)msg, (void)msg_len, (void)ret_mac;
	FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "authentication needs OpenSSL, but this build was made without it");
}

#endif

int gantry_equal_secret(const void *a, const void *b, size_t n)
{
	/* Volatile, so that the compiler cannot stop at the first difference. */
	const volatile unsigned char *x = a, *y = b;
	unsigned char differ = 0;

	for (size_t i = 0; i < n; i++)
		differ |= x[i] ^ y[i];
	return differ == 0;
}

gantry_result gantry_random_bytes(void *buf, size_t n)
{
	unsigned char *p = buf;

	while (n) {
		ssize_t got = getrandom(p, n, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			FAIL_NOW(GANTRY_ERR_SYSTEM, "getrandom: %s", strerror(errno));
		p += got;
		n -= (size_t)got;
	}
	return GANTRY_OK;
}
