/* SPDX-License-Identifier: Apache-2.0 */
/* A pipeline that waits for what nobody sends reports it to GANTRY_STALL_DIR; one that merely has nothing to do does
 * not. */
#include "base/param.h"
#include "rx_util.h"

static char path[512];

static int is_there(void)
{
	return access(path, F_OK) == 0;
}

static void slurp(char *text, size_t len)
{
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, len - 1, f) : 0;

	text[n] = 0;
	if (f)
		fclose(f);
}

/* The op is polled until there is a report that says this; on a slow machine others may come before. */
static void wait_for_report(struct gantry_rx_op *op, const char *says, char *text, size_t len)
{
	WAIT_WHILE ((slurp(text, len), !strstr(text, says)))
		CHECK_EQ(gantry_rx_wait(op, SECOND / 1000), GANTRY_ERR_TIMEOUT);
}

TEST(reports)
{
	struct rx_pair p;
	struct gantry_rx_op *r, *s;
	struct gantry_rx_piece piece = {.piece_bytes = 100000, .stride = 100000, .count = 1};
	unsigned char *from, *to;
	char host[64] = "", text[4096], expected[128];
	uint64_t begin;

	setenv("GANTRY_STALL_DIR", test_folder(), 1);
	setenv("GANTRY_STALL", "100ms", 1);
	gethostname(host, sizeof(host) - 1);
	snprintf(path, sizeof(path), "%s/stall-%s-%d.jsonl", test_folder(), host, (int)getpid());
	rx_pair_open(&p, NULL);
	from = rx_memory(&p, &p.a, 100000, 0);
	to = rx_memory(&p, &p.b, 100000, 0);

	/* Connected, receives for heads posted, nothing asked for. */
	for (begin = gantry_now_ns(); gantry_now_ns() - begin < 400000000u;) {
		gantry_rx_poll(p.a.rx, NULL, 0);
		gantry_rx_poll(p.b.rx, NULL, 0);
	}
	CHECK(!is_there());

	piece.base = to;
	CHECK_OK(gantry_rx_recv(p.b.conn, &piece, 1, 77, &r));
	wait_for_report(r, "\"dir\":\"recv\",\"requests\":1,\"tag\":77,\"bytes\":100000,\"waits_for\":\"peer\"", text,
			sizeof(text));
	CHECK_HAS(text, "{\"kind\":\"process\",\"user\":\"rx\",");
	snprintf(expected, sizeof(expected), " pid %d)\"", (int)getpid());
	CHECK_HAS(text, expected);
	CHECK_EQ(unlink(path), 0);

	/* It moves, and what comes next may stall again. */
	piece.base = from;
	CHECK_OK(gantry_rx_send(p.a.conn, &piece, 1, 77, &s));
	rx_both(s, r);
	CHECK_OK(rx_result(r));
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	CHECK_OK(gantry_rx_send(p.a.conn, &piece, 1, 78, &s));
	wait_for_report(s, "\"dir\":\"send\",\"requests\":1,\"tag\":78,\"bytes\":100000,\"waits_for\":\"peer\"", text,
			sizeof(text));
	piece.base = to;
	CHECK_OK(gantry_rx_recv(p.b.conn, &piece, 1, 78, &r));
	rx_both(s, r);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);

	rx_memory_free(&p, &p.a, from, 0);
	rx_memory_free(&p, &p.b, to, 0);
	rx_pair_close(&p);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(rmdir(test_folder()), 0); /* one report at a time */
}
