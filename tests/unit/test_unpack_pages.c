/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of other sizes than the system's: 16 KiB and 64 KiB, as other systems have, and 2 MiB. The source is the
 * emulated NIC with the page size as a parameter of the pool that is made here; the pipeline, whose network finds that
 * pool, receives through it. Fragments of every shape, up to a page long; each byte and each converted element is
 * compared.
 */
#include "convert_util.h"
#include "net/devmem_rx.h"
#include "net/emulated/emulated.h"
#include "rx_util.h"

static struct rx_pair pair;

static void bytes(size_t size, size_t piece, uint64_t seed)
{
	const struct rx_layout from = {size, size, size}, to = {piece, piece + 13, size};
	unsigned char *src = rx_memory(&pair, &pair.a, rx_span(&from), 1);
	unsigned char *dst = rx_memory(&pair, &pair.b, rx_span(&to), 1);
	struct gantry_rx_piece s[2], d[2];
	struct gantry_rx_op *send, *recv;

	rx_fill(&from, src, seed);
	memset(dst, 0x5a, rx_span(&to));
	CHECK_OK(gantry_rx_send(pair.a.conn, s, rx_pieces(&from, src, s), seed, &send));
	CHECK_OK(gantry_rx_recv(pair.b.conn, d, rx_pieces(&to, dst, d), seed, &recv));
	rx_both(send, recv);
	CHECK_STR(rx_text(recv), "");
	rx_check(&to, dst, rx_span(&to), seed, 0x5a);
	gantry_rx_op_free(send);
	gantry_rx_op_free(recv);
	rx_memory_free(&pair, &pair.a, src, 1);
	rx_memory_free(&pair, &pair.b, dst, 1);
}

static void converted(size_t n, uint64_t seed)
{
	const struct convert_format *f32 = &formats[2], *bf16 = &formats[1];
	unsigned char *src = rx_memory(&pair, &pair.a, 4 * n, 1), *dst = rx_memory(&pair, &pair.b, 2 * n, 1);
	const struct gantry_rx_piece from = {src, 4 * n, 0, 1}, to = {dst, 2 * n, 0, 1};
	struct gantry_rx_op *send, *recv;

	convert_fill(f32, src, n, seed);
	CHECK_OK(gantry_rx_send(pair.a.conn, &from, 1, seed, &send));
	CHECK_OK(gantry_rx_recv_as(pair.b.conn, &to, 1, seed, f32->type, bf16->type, &recv));
	rx_both(send, recv);
	CHECK_STR(rx_text(recv), "");
	for (size_t i = 0; i < n; i++)
		convert_check(f32, bf16, convert_get(f32, src + 4 * i), convert_get(bf16, dst + 2 * i), i);
	gantry_rx_op_free(send);
	gantry_rx_op_free(recv);
	rx_memory_free(&pair, &pair.a, src, 1);
	rx_memory_free(&pair, &pair.b, dst, 1);
}

static void with_pages(uint32_t page, const char *shape)
{
	const struct gantry_rx_config config = {
		.struct_size = sizeof(config), .path = GANTRY_RX_PATH_EMULATED, .depth = 2};
	struct devmem_source_ops source = emulated_ops;
	struct gantry_device *host;
	struct devmem_part *part;
	struct devmem_pool *pool;

	source.page = page;
	set_params("GANTRY_EMU_SHAPE", shape, "GANTRY_UNPACK_POOL", "256MiB", "GANTRY_UNPACK_COALESCE", "0");
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &host));
	CHECK_OK(devmem_pool_get_from(host, &source, &pool));
	CHECK_EQ((uintptr_t)pool->memory.device_ptr % page, 0u);
	CHECK_EQ(pool->part_size % page, 0u);
	rx_pair_open(&pair, &config);
	CHECK_OK(devmem_pool_part(pool, "lo", &part));
	CHECK_EQ(((struct emu_binding *)part->binding)->page_size, page);
	bytes(3000001, 3000001, 1);
	bytes(3000001, 4097, 2);
	bytes(100003, 1000, 3);
	converted(300001, 4);
	rx_pair_close(&pair);
	devmem_pool_put(pool);
	gantry_device_close(host);
}

static void sizes(void)
{
	static const uint32_t pages[] = {4096, 16384, 65536, 2 << 20};
	static const char *const shapes[] = {"pages", "odd", "random", "mtu1500"};

	EACH_ROW (i, pages)
		for (size_t k = 0; k < TEST_COUNT(shapes) - (pages[i] > 65536); k++) /* 1500: 23 KiB in a page */
			with_pages(pages[i], shapes[k]);
	set_params("GANTRY_EMU_SHAPE", NULL, "GANTRY_UNPACK_POOL", NULL, "GANTRY_UNPACK_COALESCE", NULL);
}

int main(void)
{
	RUN(sizes());
	return 0;
}
