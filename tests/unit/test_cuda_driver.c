/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs asked for where there may be none: a count with a reason, and an error that says the same. */
#include "base/log.h"
#include "device/device.h"
#include "test.h"

TEST(driver)
{
	char why[256] = "left alone", again[256], tiny[8];
	struct gantry_device *dev = NULL;
	int count;

	logs_keep();
	count = gantry_device_cuda_count(why, sizeof(why));
	CHECK(count >= 0);
	CHECK_STR(logs_text(), ""); /* a machine without a GPU is no error */
	if (count == 0) {
		printf("no GPU: %s\n", why);
		CHECK(strlen(why) > 10);
		CHECK_EQ(gantry_device_cuda_count(again, sizeof(again)), 0);
		CHECK_STR(again, why);
		CHECK_EQ(gantry_device_cuda(0, &dev), GANTRY_ERR_UNSUPPORTED);
		CHECK_HAS(logs_text(), why);
		CHECK_HAS(gantry_last_error(), why);
		CHECK_EQ(gantry_device_open(GANTRY_DEVICE_CUDA, 0, &dev), GANTRY_ERR_UNSUPPORTED);
	} else {
		printf("%d GPUs\n", count);
		CHECK_STR(why, "");
		CHECK_EQ(gantry_device_cuda(count, &dev), GANTRY_ERR_INVALID);
		CHECK_EQ(gantry_device_cuda(-1, &dev), GANTRY_ERR_INVALID);
		CHECK_HAS(logs_text(), "gpu -1 does not exist");
	}
	CHECK(dev == NULL);
	/* No room for the reason, or very little, is fine. */
	CHECK_EQ(gantry_device_cuda_count(NULL, 0), count);
	CHECK_EQ(gantry_device_cuda_count(tiny, sizeof(tiny)), count);
	CHECK(strlen(tiny) < sizeof(tiny));
}
