/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream of test_resume.c encrypted: the keys of a socket end with it, and the session goes on with others.
 * Catches: records of two sockets that are mixed up, a lane that is used without keys, a session that goes on in the clear.
 */
#include "resume_util.h"

#if GANTRY_HAVE_OPENSSL

static struct way open_encrypted(const char *how, void **ret_ctx)
{
	set_params("GANTRY_SECRET", "a secret of thirty-two characters", "GANTRY_ENCRYPT", how);
	return open_way("auto", ret_ctx);
}

static void run(uint64_t messages, uint32_t every, enum cuts cuts)
{
	void *ctx;
	struct way w = open_encrypted("require", &ctx);

	CHECK_OK(stream(w, messages, every, cuts));
	CHECK(!every || resumed() > 0);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

/* Messages that are held by reference until the peer has them. */
static void run_held(void)
{
	size_above = RESUME_COPY_MAX;
	size_most = 64 << 10;
	run(300, 8, CUT_CONTROL);
}

/* Both sides forget that they encrypt: the session ends rather than go on in the clear. */
static void run_downgraded(void)
{
	void *ctx;
	struct way w = open_encrypted("on", &ctx);

	CHECK_OK(stream(w, 20, 0, CUT_ONE));
	inet_loop_lock();
	tcp_network.key.encrypt = INET_ENCRYPT_OFF;
	inet_loop_unlock();
	CHECK_ERROR(stream(w, 2000, 8, CUT_ONE), GANTRY_ERR_PEER_LOST,
		    "the session is encrypted and its new socket is not, or the reverse");
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

TEST_CALL(without_faults, run(100, 0, CUT_ONE))
TEST_CALL(one_lane_at_a_time, run(300, 8, CUT_ONE))
TEST_CALL(all_at_once, run(200, 40, CUT_ALL))
TEST_CALL(held_by_reference, run_held())
TEST_CALL(downgraded, run_downgraded())

#else

TEST(nothing_to_encrypt_with)
{
}

#endif

void tests_begin(void)
{
	tests_apart(1);
}
