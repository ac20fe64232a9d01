/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign bytes where a sealed record is due. The first byte says how many right ones come before, the second which byte
 * of a right one is changed, and how; what is left is taken for records as it is. Nothing opens but what was sealed.
 */
#include "base/openssl.h"
#include "base/seal.h"
#include "script.h"

#if GANTRY_HAVE_OPENSSL

enum { PLAIN = 100 };

/* Whether it opens, if it is a record at all and whole. */
static bool opens(struct gantry_seal *s, const uint8_t *record, size_t size)
{
	static uint8_t plain[GANTRY_SEAL_MAX];
	char why[GANTRY_SEAL_WHY] = "";
	uint32_t n;

	if (size < GANTRY_SEAL_HEADER)
		return false;
	n = gantry_seal_length(s, record, why);
	MUST(n <= GANTRY_SEAL_MAX && (n || *why));
	if (!n || size < n + GANTRY_SEAL_EXTRA)
		return false;
	return gantry_seal_open(s, record, &(struct iovec){plain, n}, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t secret[GANTRY_SEAL_SECRET] = "not known to who fuzzes";
	uint8_t plain[PLAIN] = {0}, record[PLAIN + GANTRY_SEAL_EXTRA];
	struct gantry_seal *tx, *rx;

	if (size < 3 || gantry_openssl_load() != GANTRY_OK)
		return 0;
	MUST(gantry_seal_new(GANTRY_CIPHER_AES_128_GCM, secret, 1, true, 4, &tx) == GANTRY_OK);
	MUST(gantry_seal_new(GANTRY_CIPHER_AES_128_GCM, secret, 1, false, 4, &rx) == GANTRY_OK);
	for (int i = 0; i < data[0] % 16; i++) {
		MUST(gantry_seal_close(tx, &(struct iovec){plain, PLAIN}, 1, record) == sizeof(record));
		MUST(opens(rx, record, sizeof(record)));
	}
	MUST(gantry_seal_close(tx, &(struct iovec){plain, PLAIN}, 1, record) == sizeof(record));
	record[data[1] % sizeof(record)] ^= data[2];
	MUST(opens(rx, record, sizeof(record)) == !data[2]);
	MUST(!opens(rx, data + 3, size - 3));
	gantry_seal_free(tx);
	gantry_seal_free(rx);
	return 0;
}

#else

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	MUST(gantry_openssl_load() != GANTRY_OK);
	return 0;
}

#endif
