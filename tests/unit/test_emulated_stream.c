/*
 * The emulated NIC as others use it: every shape, with linear and ordinary data in between, small and large buffers, in
 * memory that the CPU can write and in memory that it cannot. The bytes are those that were sent. How they are cut
 * depends on the seed and on the flow's number alone.
 */
#include "emulated_util.h"

#include "device/device.h"
#include "net/devmem/emulated.h"

static const char *const shapes[] = {"pages", "mtu1500", "mtu9000", "odd", "random", "bytes"};

static void stream(const char *shape, const char *linear, const char *plain, uint64_t bytes, int mirrored)
{
	static const size_t controls[] = {UTIL_CONTROL, 40, 120, 1000}, iovs[] = {UTIL_IOV, 5000, 1, 9000};
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct gantry_device *dev;
	struct devmem_binding *b;
	struct devmem_flow *f;
	struct memory m;
	struct pair p;
	char text[600];

	use_params("GANTRY_EMU_SHAPE", shape, "GANTRY_EMU_LINEAR", linear, "GANTRY_EMU_PLAIN", plain, NULL);
	memory_open(&m, 300 * page);
	CHECK_OK(gantry_device_host(&dev));
	if (mirrored) /* the CPU cannot write it, as far as the NIC knows */
		m.m = (struct devmem_memory){.device = dev, .device_ptr = m.m.host, .size = m.m.size};
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
	gantry_device_close(dev);
	m.m.host = m.m.device_ptr;
	pair_close(&p);
	memory_close(&m);
}

/* What the control messages of a stream say, as one number. */
static uint64_t cut(const char *seed, uint32_t before)
{
	struct devmem_binding *b;
	struct devmem_flow *f, *others = NULL;
	uint64_t sum = 0;
	struct memory m;
	struct pair p;

	use_params("GANTRY_EMU_SHAPE", "random", "GANTRY_EMU_PLAIN", "100", "GANTRY_EMU_SEED", seed, NULL);
	memory_open(&m, 3000 * (uint64_t)sysconf(_SC_PAGESIZE));
	pair_open(&p, 7);
	CHECK_OK(devmem_emulated.bind(&m.m, "emu0", &b));
	for (uint32_t i = 0; i < before; i++) { /* so that this one has another number */
		CHECK_OK(devmem_emulated.attach(b, p.rx, &others));
		devmem_emulated.detach(others);
	}
	CHECK_OK(devmem_emulated.attach(b, p.rx, &f));
	pair_arrive(&p, 500000);
	while (p.got < 500000) {
		struct got *g = receive_all(f);

		check_got(f, &p, g, p.got);
		p.got += (uint64_t)g->bytes;
		sum = sum * 31 + (uint64_t)g->bytes;
		for (uint32_t i = 0; i < g->n; i++)
			sum = sum * 31 + g->frags[i].c.frag_offset + g->frags[i].c.frag_size;
	}
	devmem_emulated.detach(f);
	devmem_emulated.unbind(b);
	pair_close(&p);
	memory_close(&m);
	return sum;
}

/* What bind and attach refuse. */
static void refusals(void)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct devmem_binding *b = NULL;
	struct devmem_flow *f = NULL;
	struct memory m;
	int fds[2];

	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null");
	memory_open(&m, 2 * page);
	m.m.size = 2 * page - 1;
	CHECK_EQ(devmem_emulated.bind(&m.m, "emu0", &b), GANTRY_ERR_INVALID);
	m.m.size = 0;
	CHECK_EQ(devmem_emulated.bind(&m.m, "emu0", &b), GANTRY_ERR_INVALID);
	m.m.size = 2 * page; /* a packet of mtu9000, the default, needs three pages */
	CHECK_EQ(devmem_emulated.bind(&m.m, "emu0", &b), GANTRY_ERR_CONFIG);
	CHECK(!b);
	memory_close(&m);
	memory_open(&m, 4 * page);
	CHECK_OK(devmem_emulated.bind(&m.m, "emu0", &b));
	CHECK_EQ(devmem_emulated.attach(b, -1, &f), GANTRY_ERR_INVALID);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	CHECK_EQ(devmem_emulated.attach(b, fds[0], &f), GANTRY_ERR_INVALID);
	close(fds[0]);
	close(fds[1]);
	devmem_emulated.unbind(b);
	devmem_emulated.unbind(NULL);
	devmem_emulated.detach(NULL);
	memory_close(&m);
}

int main(void)
{
	devmem_emulated_set_poison(1);
	for (int i = 0; i < 12; i++) {
		const char *shape = shapes[i % 6];
		uint64_t bytes = (i % 6 == 5 ? 20000 : 500000) / (i < 6 ? 1 : 8); /* each receive waits for a copy */

		stream(shape, "0", "0", bytes, i / 6);
		stream(shape, "300", "0", bytes, i / 6);
		stream(shape, "0", "300", bytes, i / 6);
		stream(shape, "500", "500", bytes, i / 6);
		stream(shape, "0", "1000", bytes, i / 6);
	}
	CHECK(cut("1", 0) == cut("1", 0));
	CHECK(cut("1", 0) != cut("2", 0));
	CHECK(cut("1", 0) != cut("1", 1));
	refusals();
	return 0;
}
