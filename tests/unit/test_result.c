/* SPDX-License-Identifier: Apache-2.0 */
/* Every code has a name and a text of its own; any integer is safe to ask for. */
#include "gantry/result.h"
#include "test.h"

TEST(names_and_texts)
{
	CHECK_EQ(GANTRY_OK, 0); /* callers test for it with ! */
	CHECK_STR(gantry_result_name(GANTRY_OK), "OK");
	CHECK_STR(gantry_result_text(GANTRY_OK), "success");
	CHECK_STR(gantry_result_name(GANTRY_ERR_PEER_SILENT), "ERR_PEER_SILENT");
	CHECK_STR(gantry_result_text(GANTRY_ERR_PEER_SILENT), "the peer gave no sign of life");
	CHECK_STR(gantry_result_name(GANTRY_ERR_ABORTED), "ERR_ABORTED");

	for (int i = 0; i < GANTRY_RESULT_COUNT; i++) {
		CHECK(*gantry_result_name((gantry_result)i));
		CHECK(*gantry_result_text((gantry_result)i));
		for (int j = 0; j < i; j++) {
			CHECK(strcmp(gantry_result_name((gantry_result)i), gantry_result_name((gantry_result)j)));
			CHECK(strcmp(gantry_result_text((gantry_result)i), gantry_result_text((gantry_result)j)));
		}
	}

	CHECK_STR(gantry_result_name((gantry_result)GANTRY_RESULT_COUNT), "UNKNOWN");
	CHECK_STR(gantry_result_name((gantry_result)-1), "UNKNOWN");
	CHECK_STR(gantry_result_text((gantry_result)1000000), "unknown result code");
}
