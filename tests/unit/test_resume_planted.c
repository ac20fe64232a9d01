/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream of test_resume.c over a session with a bug: pieces that have come go again after a lane has broken. The link's
 * own checks must see it.
 */
#define RESUME_PLANTED 1
#include "net/tcp/keep.c"

#include "resume_util.h"

TEST(doubled_pieces)
{
	void *ctx;
	struct way w = open_way("off", &ctx);

	CHECK_EQ(stream(w, 2000, 8, CUT_ONE), GANTRY_ERR_PROTOCOL);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}
