/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of test_ctl_resume.c over a control plane with a bug: frames that come twice are not dropped, or what is kept is
 * trimmed too early. They must notice.
 */
static int planted;
#define INET_STREAM_PLANTED planted
#include "inet/stream.c"

#include "ctl_resume_util.h"

TEST(doubled_frames)
{
	struct gantry_unique_id id;
	struct talk w = {.id = &id, .rounds = SANITIZED ? 200 : 1000};
	struct rank_state *s;

	set_params("GANTRY_RESUME", "on", "GANTRY_TIMEOUT", "4s");
	planted = 1;
	s = ranks_run(TALKERS, &id, NULL);
	for (int i = 0; i < TALKERS; i++)
		w.ctl[i] = s[i].ctl;
	CHECK(talk_in_trouble(&w, 1, 1u << DIAL_BESIDE) != GANTRY_OK);
	ranks_leave(s, TALKERS);
	until_quiet();
}

TEST(lost_frames)
{
	planted = 2;
	CHECK_EQ(break_behind_count(), GANTRY_ERR_PROTOCOL);
}

void tests_begin(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
}
