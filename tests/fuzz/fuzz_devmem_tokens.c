/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any sequence of calls on the tokens of a flow, against a model: what is refused must be what the model refuses, each
 * token is given back once and only when its last user has let go, within the kernel's limits of a call.
 *
 * The input is a sequence of operations, two bytes each, the second an argument:
 *   0 take the lowest free token (arg % 8 + 1 of them)   1 take a given one      2 use      3 drop one
 *   4 drop a run of tokens                               5 flush                 6 the next call fails or lies
 *   7 take many
 */
#include <errno.h>

#include "base/log.h"
#include "net/devmem_rx.h"
#include "script.h"

enum { TOKENS = 4096 };

static struct {
	uint32_t users[TOKENS]; /* as the model counts */
	uint8_t out[TOKENS];	/* as the kernel sees it */
	uint32_t lowest;	/* none below is free */
	uint32_t nout, trouble;
} m;

static int give_back(struct devmem_flow *flow, const struct devmem_token *ranges, size_t n)
{
	uint32_t freed = 0;

	MUST(n >= 1 && n <= DEVMEM_MAX_RANGES);
	if (m.trouble == 1) {
		m.trouble = 0;
		errno = ENOMEM;
		return -1;
	}
	for (size_t i = 0; i < n; i++) {
		MUST(ranges[i].token_count >= 1);
		for (uint32_t k = 0; k < ranges[i].token_count; k++) {
			uint32_t token = ranges[i].token_start + k;

			MUST(token > 0 && token < TOKENS && m.out[token] && m.users[token] == 0);
			MUST(++freed <= DEVMEM_MAX_RETURNED);
			m.out[token] = 0;
			m.nout--;
			if (token < m.lowest)
				m.lowest = token;
		}
	}
	if (m.trouble == 2) {
		m.trouble = 0;
		freed--;
	}
	return (int)freed;
}

static const struct devmem_source_ops ops = {
	.kind = GANTRY_NET_UNPACK_EMULATED, .name = "fuzz", .give_back = give_back};

/* A failure is expected exactly when a call into the kernel was to fail and one was made. */
static void check(gantry_result r, uint32_t trouble, int refused)
{
	if (refused)
		MUST(r == GANTRY_ERR_INTERNAL);
	else if (trouble != 0 && m.trouble == 0)
		MUST(r == (trouble == 1 ? GANTRY_ERR_SYSTEM : GANTRY_ERR_INTERNAL));
	else
		MUST(r == GANTRY_OK);
}

static void take(struct devmem_tokens *t, uint32_t n)
{
	for (uint32_t token = m.lowest; token < TOKENS && n > 0; token++) {
		m.lowest = token + 1;
		if (m.out[token])
			continue;
		m.out[token] = 1;
		m.nout++;
		MUST(devmem_tokens_take(t, &(uint32_t){token}, 1) == GANTRY_OK);
		m.users[token] = 1;
		n--;
	}
}

/* Tokens first, first + step, ...: some of them nobody has. */
static void drop(struct devmem_tokens *t, uint32_t first, uint32_t n, uint32_t step)
{
	uint32_t tokens[1024], count = 0, trouble = m.trouble;
	int refused = 0;

	for (uint32_t token = first; count < n && token < TOKENS; token += step) {
		tokens[count++] = token;
		if (m.users[token] == 0)
			refused = 1;
		else
			m.users[token]--;
	}
	if (count > 0)
		check(devmem_tokens_drop(t, tokens, count), trouble, refused);
}

static void step(struct devmem_tokens *t, uint32_t op, uint32_t arg)
{
	uint32_t trouble = m.trouble, token = arg % 64;
	gantry_result r;

	switch (op) {
	case 0:
		take(t, arg % 8 + 1);
		break;
	case 1:
		if (m.out[token] || token == 0)
			MUST(devmem_tokens_take(t, &(uint32_t){token}, 1) == GANTRY_ERR_PROTOCOL);
		break;
	case 2:
		r = devmem_tokens_use(t, token);
		MUST(r == (m.users[token] ? GANTRY_OK : GANTRY_ERR_INTERNAL));
		m.users[token] += r == GANTRY_OK;
		break;
	case 3:
		drop(t, token + 1, 1, 1);
		break;
	case 4:
		drop(t, arg + 1, (arg * 37) % 1024 + 1, arg % 3 + 1);
		break;
	case 5:
		check(devmem_tokens_flush(t), trouble, 0);
		break;
	case 6:
		m.trouble = arg % 3;
		break;
	default:
		take(t, arg * 8);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct devmem_binding binding = {.ops = &ops, .dmabuf_id = 1};
	struct devmem_flow flow = {.binding = &binding, .fd = 1};
	struct devmem_tokens t;
	uint32_t used = 0;

	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null");
	memset(&m, 0, sizeof(m));
	m.lowest = 1;
	devmem_tokens_init(&t, &flow);
	for (size_t i = 0; i + 1 < size && i < 400; i += 2)
		step(&t, data[i] % 8, data[i + 1]);
	/* In the end everything that has no user goes back, and what has one does not. */
	m.trouble = 0;
	MUST(devmem_tokens_flush(&t) == GANTRY_OK);
	for (uint32_t i = 0; i < TOKENS; i++) {
		MUST(!m.users[i] == !m.out[i]);
		used += m.users[i] != 0;
	}
	devmem_tokens_mu_lock(&t.mu);
	MUST(t.held == used && m.nout == used);
	devmem_tokens_mu_unlock(&t.mu);
	devmem_tokens_free(&t);
	return 0;
}
