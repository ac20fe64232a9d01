/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign bytes to the decoders of what ranks and reducers say. Two bytes are the message's size, the rest its header, zeros
 * behind it. What it accepts is in range, fits the size, has a text, and survives being encoded and decoded again. The same
 * bytes are what a rank asks a reducer for.
 */
#include "reducer/group.h"
#include "reducer/sum.h"
#include "script.h"

static void must_be_piece(const struct reducer_piece *p, size_t size)
{
	size_t unit = reducer_type_bytes(p->type);

	MUST(unit && p->bytes % unit == 0 && reducer_op_known(p->op));
	MUST(p->bytes && p->bytes <= REDUCER_PIECE_MAX && p->offset + p->bytes <= p->total);
	MUST(p->offset + p->bytes > p->offset);
	MUST(p->coll < REDUCER_COLLS && p->owner < REDUCER_RANKS_MAX);
	MUST(size == REDUCER_HEADER || size == REDUCER_HEADER + p->bytes);
}

static void ask(const uint8_t *data, size_t len)
{
	uint8_t in[REDUCER_ASK_SIZE] = {0}, out[REDUCER_ASK_SIZE];
	struct reducer_ask a;

	MUST(len == sizeof(in) || reducer_ask_decode(data, len, &a) != GANTRY_OK);
	memcpy(in, data, len < sizeof(in) ? len : sizeof(in));
	if (reducer_ask_decode(in, sizeof(in), &a) != GANTRY_OK)
		return;
	MUST(a.rank < a.ranks && a.ranks <= REDUCER_RANKS_MAX);
	MUST(a.reducer < a.reducers && a.reducers <= REDUCER_COUNT_MAX);
	reducer_ask_encode(&a, out);
	MUST(memcmp(in, out, sizeof(in)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct reducer_message m, again;
	uint8_t in[REDUCER_HEADER] = {0}, out[REDUCER_HEADER], twice[REDUCER_HEADER];
	char text[REDUCER_TEXT];
	size_t size;

	if (len < 2)
		return 0;
	ask(data + 2, len - 2);
	size = (size_t)data[0] | (size_t)data[1] << 8;
	memcpy(in, data + 2, len - 2 < sizeof(in) ? len - 2 : sizeof(in));
	if (reducer_decode(in, size, &m) != GANTRY_OK)
		return 0;
	MUST(size >= REDUCER_HEADER);
	if (m.kind == REDUCER_FAILED)
		MUST(strlen(reducer_failed_text(&m.failed, text)) > 0);
	else if (m.kind == REDUCER_HELLO)
		MUST(m.hello.index < m.hello.count && m.hello.count <= REDUCER_RANKS_MAX + REDUCER_COUNT_MAX);
	else if (m.kind != REDUCER_REACHED)
		must_be_piece(&m.piece, size);
	reducer_encode(&m, out);
	MUST(reducer_decode(out, size, &again) == GANTRY_OK);
	reducer_encode(&again, twice);
	MUST(memcmp(out, twice, sizeof(out)) == 0); /* not the structs: they have padding */
	return 0;
}
