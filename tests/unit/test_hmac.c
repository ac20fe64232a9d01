/* SPDX-License-Identifier: Apache-2.0 */
/* HMAC-SHA256 against RFC 4231, the comparison, and random bytes. */
#include "base/hmac.h"

#include <sys/random.h>
#include <sys/syscall.h>

#include "test.h"

#if GANTRY_HAVE_OPENSSL

static int sums;

static void *sum_on(void *arg)
{
	uint8_t mac[GANTRY_MAC_SIZE];

	for (;;) {
		if (gantry_hmac_sha256("k", 1, "m", 1, mac) != GANTRY_OK)
			_exit(3);
		__atomic_fetch_add(&sums, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* A program may exit while a thread of ours is in the middle of a sum. First: OpenSSL is not initialised yet. */
TEST(check_exit)
{
	for (int i = 0; i < (SANITIZED ? 3 : 20); i++) { /* ThreadSanitizer takes a second to exit */
		pid_t pid = child_fork();

		if (!pid) {
			pthread_t t;

			CHECK_EQ(pthread_create(&t, NULL, sum_on, NULL), 0);
			while (__atomic_load_n(&sums, __ATOMIC_RELAXED) < 10)
				sched_yield();
			exit(0);
		}
		child_wait(pid);
	}
}

static void check_mac(const void *key, size_t key_len, const void *msg, size_t msg_len, const char *expected_hex)
{
	uint8_t mac[GANTRY_MAC_SIZE];
	char hex[2 * GANTRY_MAC_SIZE + 1];

	CHECK_OK(gantry_hmac_sha256(key, key_len, msg, msg_len, mac));
	for (int i = 0; i < GANTRY_MAC_SIZE; i++)
		snprintf(hex + 2 * i, 3, "%02x", mac[i]);
	CHECK_STR(hex, expected_hex);
}

TEST(check_vectors)
{
	static const char long_key_text[] = "Test Using Larger Than Block-Size Key - Hash Key First";
	unsigned char key[131], msg[50];

	memset(key, 0x0b, 20); /* test case 1 */
	check_mac(key, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
	/* test case 2 */
	check_mac("Jefe", 4, "what do ya want for nothing?", 28,
		  "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
	memset(key, 0xaa, sizeof(key)); /* test cases 3 and 6 */
	memset(msg, 0xdd, sizeof(msg));
	check_mac(key, 20, msg, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
	check_mac(key, 131, long_key_text, strlen(long_key_text),
		  "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
	/* Empty key, empty message: HMAC_SHA256("", "") as Wikipedia's article on HMAC had it. */
	check_mac("", 0, "", 0, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
	check_mac(NULL, 0, NULL, 0, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(check_refusal)
{
	uint8_t mac[GANTRY_MAC_SIZE] = {1, 2, 3};

	CHECK_EQ(gantry_hmac_sha256("k", (size_t)INT32_MAX + 1, "m", 1, mac), GANTRY_ERR_INVALID);
	CHECK_EQ(mac[2], 3); /* outputs are written only on success */
}

#else

TEST(check_vectors)
{
	uint8_t mac[GANTRY_MAC_SIZE] = {1, 2, 3};

	CHECK_ERROR(gantry_hmac_sha256("k", 1, "m", 1, mac), GANTRY_ERR_UNSUPPORTED, "OpenSSL");
	CHECK_EQ(mac[2], 3);
}

#endif

TEST(check_equal)
{
	unsigned char a[32], b[32];

	memset(a, 0x5a, sizeof(a));
	memset(b, 0x5a, sizeof(b));
	CHECK_EQ(gantry_equal_secret(a, b, 32), 1);
	CHECK_EQ(gantry_equal_secret(a, b, 0), 1);
	for (int i = 0; i < 32 * 8; i++) {
		b[i / 8] ^= (unsigned char)(1 << i % 8);
		CHECK_EQ(gantry_equal_secret(a, b, 32), 0);
		b[i / 8] ^= (unsigned char)(1 << i % 8);
	}
	b[31] ^= 1;
	CHECK_EQ(gantry_equal_secret(a, b, 31), 1);
}

static int calls, failure;

/* In the place of libc's: a few bytes at a time, now and then interrupted, as the kernel may do. */
ssize_t getrandom(void *buf, size_t n, unsigned flags)
{
	if (failure || calls++ % 3 == 1) {
		errno = failure ? failure : EINTR;
		return -1;
	}
	return syscall(SYS_getrandom, buf, n < 5 ? n : 5, flags);
}

/* Two draws are equal once in 2^128 runs; 64 bytes of one value never. */
TEST(check_random)
{
	unsigned char a[16], b[16], big[1000] = {0};
	int same = 0;

	CHECK_OK(gantry_random_bytes(a, sizeof(a)));
	CHECK_OK(gantry_random_bytes(b, sizeof(b)));
	CHECK(memcmp(a, b, sizeof(a)) != 0);
	CHECK_OK(gantry_random_bytes(a, 0));
	CHECK_OK(gantry_random_bytes(big, 900));
	for (int i = 836; i < 900; i++)
		same += big[i] == big[836];
	CHECK(same < 64);
	CHECK_FILLED(big + 900, 100, 0);

	failure = ENOSYS;
	CHECK_ERROR(gantry_random_bytes(a, sizeof(a)), GANTRY_ERR_SYSTEM, strerror(ENOSYS));
}

void tests_begin(void)
{
	logs_drop();
}
