/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event ring: always on, fixed records, newest overwrite oldest.
 *
 * Any thread writes; a record costs one fetch_add, one exchange and five
 * stores. A reader (trace, stall report, tests) copies the ring while writers
 * go on, and drops records that changed under it: each slot has a sequence word
 * that is store-released last and checked on both sides of the copy.
 */
#ifndef GANTRY_BASE_EVENT_H
#define GANTRY_BASE_EVENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

/* clang-format off */
#define GANTRY_EVENTS(X)                                                          \
	X(NONE,           "none",           "",        "",       "")              \
	X(LINK_UP,        "link up",        "link",    "lanes",  "dev")           \
	X(LINK_DOWN,      "link down",      "link",    "result", "")              \
	X(SEND_POST,      "send posted",    "link",    "msg",    "bytes")         \
	X(SEND_DONE,      "send done",      "link",    "msg",    "bytes")         \
	X(RECV_POST,      "recv posted",    "link",    "msg",    "bytes")         \
	X(RECV_DONE,      "recv done",      "link",    "msg",    "bytes")         \
	X(CHUNK_TX,       "chunk sent",     "link",    "msg",    "bytes")         \
	X(CHUNK_RX,       "chunk received", "link",    "msg",    "bytes")         \
	X(STATE_TX,       "state sent",     "link",    "posted", "done")          \
	X(STATE_RX,       "state received", "link",    "posted", "done")          \
	X(STRANGER,       "stranger",       "count",   "",       "")              \
	X(HEARTBEAT_LATE, "heartbeat late", "link",    "ns",     "")              \
	X(PROXY_OP,       "proxy op",       "conn",    "op",     "bytes")         \
	X(PROXY_POST,     "proxy posted",   "conn",    "step",   "bytes")         \
	X(PROXY_MOVE,     "proxy moved",    "conn",    "step",   "bytes")         \
	X(PROXY_DONE,     "proxy done",     "conn",    "step",   "bytes")         \
	X(XFER,           "transfer",       "conn",    "op",     "bytes")         \
	X(KERNEL_OP,      "kernel op",      "conn",    "op",     "bytes")         \
	X(COLL,           "collective",     "track",   "number", "bytes")         \
	X(PLUGIN,         "plugin event",   "conn",    "event",  "bytes")         \
	X(NCCL_CALL,      "nccl call",      "nccl",    "number", "bytes")         \
	X(NCCL_OP,        "nccl op",        "op",      "number", "peer")          \
	X(NCCL_STEP,      "nccl step",      "op",      "step",   "bytes")         \
	X(NCCL_REQUEST,   "nccl request",   "link",    "msg",    "op")            \
	X(RMA,            "remote memory",  "rma",     "request", "bytes")        \
	X(RMA_SIGNAL,     "signal added",   "rma",     "context", "add")
/* clang-format on */

enum gantry_event_kind {
#define GANTRY_EVENT_ENUM(name, text, a, b, c) GANTRY_EV_##name,
	GANTRY_EVENTS(GANTRY_EVENT_ENUM)
#undef GANTRY_EVENT_ENUM
		GANTRY_EV_COUNT
};

/*
 * b of a link's message events is msg | tag << 32: which message of its tag. Small messages have them only if
 * GANTRY_TRACE is set. A chunk is what one lane carries of a message: c = bytes | lane << 56.
 *
 * The proxy's events pack more into c than bytes: c = bytes | proto << 56 | mode << 60 (enum gantry_proto,
 * gantry_mode). A PROXY_OP without END is the beginning of an operation; CUT says that it ended by an error, an abort
 * or a destroy. The step of the other three is the first of its slice:
 *
 *   PROXY_POST  send: its space is the kernel's to fill          recv: a receive was posted for it
 *   PROXY_MOVE  send: the kernel has posted it, the proxy saw    recv: it is here, the kernel was notified
 *   PROXY_DONE  send: the peer has it, the kernel was notified   recv: the kernel has consumed it
 *
 * XFER packs c alike: a part of a send or receive was handed to the kernels.
 *
 * KERNEL_OP is the same part from where a kernel began it to where it was done with it, with END and CUT as PROXY_OP;
 * only for connections without a proxy, and only if GANTRY_TRACE is set. b = op | low half of its first step << 32;
 * both ends count steps alike. A mode that is none is not known: a receiving kernel learns it step by step.
 *
 * COLL is a block's share of a collective, as KERNEL_OP; track: a channel of a communicator. b = number | what << 32:
 * which collective it is, in the writer's words (gantry_trace_who.put_what).
 *
 * PLUGIN: what a foreign plugin recorded of its own through the profiler callback, as part of a step's message (net/
 * plugin_events.h). b = number of the event | step << 32, c = bytes, if the plugin gives data whose layout is known. With
 * END it is over, with CUT alone it is an update; both have no step.
 *
 * NCCL_*: what NCCL's profiler interface tells the plugin; ranks.h has their fields.
 *
 * RMA is a put, signal or get of this rank, from the call to where its memory may be used again, then with END; only if
 * GANTRY_TRACE is set, as with RMA_SIGNAL: a signal of a peer (or of this rank) has been added here. b = request, or
 * context, | peer << 32: requests count per peer. c of RMA = bytes | context << 44 | what << 56 (enum gantry_event_rma).
 */
#define GANTRY_EV_MSG(tag, index) ((uint64_t)(tag) << 32 | (uint32_t)(index))
#define GANTRY_EV_ON_LANE(bytes, lane) ((uint64_t)(bytes) | (uint64_t)(lane) << 56)
#define GANTRY_EV_LANE(c) ((uint32_t)((c) >> 56))
#define GANTRY_EV_BYTES(c) ((c) & ((1ull << 56) - 1))
#define GANTRY_EV_PROTO(c) ((uint32_t)((c) >> 56) & 15)
#define GANTRY_EV_MODE(c) ((uint32_t)((c) >> 60) & 3)
#define GANTRY_EV_MODE_NONE (3ull << 60)
#define GANTRY_EV_RMA_BYTES(c) ((c) & ((1ull << 44) - 1))
#define GANTRY_EV_RMA_CONTEXT(c) ((uint32_t)((c) >> 44) & 4095)
#define GANTRY_EV_RMA_WHAT(c) ((uint32_t)((c) >> 56) & 15)
#define GANTRY_EV_OP_CUT (1ull << 62)
#define GANTRY_EV_OP_END (1ull << 63)

#define GANTRY_EVENT_RMA(X) X(PUT, "put") X(SIGNAL, "signal") X(PUT_SIGNAL, "put with signal") X(GET, "get")
enum gantry_event_rma {
#define GANTRY_EVENT_RMA_ENUM(name, text) GANTRY_EV_IS_##name,
	GANTRY_EVENT_RMA(GANTRY_EVENT_RMA_ENUM)
#undef GANTRY_EVENT_RMA_ENUM
		GANTRY_EV_IS_COUNT
};
extern const char *const gantry_event_rma_names[GANTRY_EV_IS_COUNT];

struct gantry_event {
	uint64_t ticks; /* gantry_ticks() */
	uint32_t kind;
	uint32_t a;
	uint64_t b;
	uint64_t c;
};

/* What happened at some other time than now: kernels keep theirs until the CPU comes by. Such events are not in order. */
void gantry_event_put_at(uint64_t ticks, enum gantry_event_kind kind, uint32_t a, uint64_t b, uint64_t c);
#define gantry_event_put(kind, a, b, c) gantry_event_put_at(gantry_ticks(), kind, a, b, c)
/* The ring keeps GANTRY_EVENTS_TRACED instead of GANTRY_EVENTS_KEPT from now on. */
enum { GANTRY_EVENTS_KEPT = 8192, GANTRY_EVENTS_TRACED = 65536 };
void gantry_event_keep_more(void);
/* Copies at most n of the newest events, oldest first; returns how many. */
size_t gantry_event_snapshot(struct gantry_event *out, size_t n);
const char *gantry_event_name(enum gantry_event_kind kind);
/* The meaning of field i (0..2) of a kind, "" if unused. */
const char *gantry_event_field(enum gantry_event_kind kind, int i);

#endif
