/*
 * The emulated NIC as others use it: every shape, with linear and ordinary data in between, small and large buffers, in
 * memory that the CPU can write and in memory that it cannot, and beyond 4 GiB. The bytes are those that were sent.
 */
#include "emulated_util.h"

#include "device/device.h"
#include "net/devmem/emulated.h"

static const char *const shapes[] = {"pages", "mtu1500", "mtu9000", "odd", "random", "bytes"};

static void stream(const char *shape, const char *linear, const char *plain, uint64_t bytes)
{
	static const size_t controls[] = {UTIL_CONTROL, 40, 120, 1000}, iovs[] = {UTIL_IOV, 5000, 1, 9000};
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct devmem_binding *b;
	struct devmem_flow *f;
	struct memory m;
	struct pair p;
	char text[600];

	use_params("GANTRY_EMU_SHAPE", shape, "GANTRY_EMU_LINEAR", linear, "GANTRY_EMU_PLAIN", plain, NULL);
	memory_open(&m, 300 * page);
	pair_open(&p, 7);
	CHECK_OK(devmem_emulated.bind(&m.m, "emu0", &b));
	CHECK_OK(devmem_emulated.attach(b, p.rx, &f));
	pump(f, &p, bytes, UTIL_CONTROL, UTIL_IOV);
	for (int i = 0; i < 16; i++)
		pump(f, &p, iovs[i % 4] == 1 ? 50 : bytes / 16, controls[i / 4], iovs[i % 4]);
	devmem_emulated.describe(b, text, sizeof(text));
	CHECK_HAS(text, shape);
	CHECK_HAS(text, " 0 bad returns, starved 0 times, 0 pages written");
	devmem_emulated.detach(f);
	devmem_emulated.describe(b, text, sizeof(text));
	CHECK_HAS(text, "300 of 300 pages");
	devmem_emulated.unbind(b);
	pair_close(&p);
	memory_close(&m);
}

int main(void)
{
	devmem_emulated_set_poison(1);
	for (int i = 0; i < 6; i++) {
		uint64_t bytes = i == 5 ? 20000 : 600000;

		stream(shapes[i], "0", "0", bytes);
		stream(shapes[i], "300", "0", bytes);
		stream(shapes[i], "0", "300", bytes);
		stream(shapes[i], "500", "500", bytes);
		printf("%s\n", shapes[i]);
	}
	return 0;
}
