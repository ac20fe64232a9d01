/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving memory between two processes over TCP, from GPU or host memory to GPU or host memory, without NCCL.
 *
 *   both:       gantry_rx_open(&config, &rx); gantry_rx_register(rx, buffer, size)
 *   one side:   gantry_rx_listen(rx, "10.0.0.1:4000", &listener); gantry_rx_accept(listener, timeout, &conn)
 *   the other:  gantry_rx_connect(rx, "10.0.0.1:4000", timeout, &conn)
 *   sender:     gantry_rx_send(conn, pieces, n, tag, &op)     receiver: gantry_rx_recv(conn, pieces, n, tag, &op)
 *   both:       gantry_rx_wait(op, timeout); gantry_rx_op_result(op, &result); gantry_rx_op_free(op)
 *               gantry_rx_conn_close(conn); gantry_rx_close(rx)
 *
 * A connection carries transfers both ways. A transfer is a batch of pieces on each side: the bytes of the sender's
 * pieces, one after the other, go to the bytes of the receiver's pieces, one after the other. The two layouts are
 * independent of each other: what lies strided here may lie contiguous there. Small pieces are cheap, because they
 * travel together: a batch has one header, whatever the number of its pieces.
 *
 * MATCHING. A receive gets the oldest transfer of its tag that has not been received yet; transfers of one tag and
 * direction match in the order in which they were posted. Transfers of different tags may overtake one another until
 * they are matched; from then on their bytes come in the order in which they were matched. A receive may be larger than
 * its send (the result says how much came). A receive that is smaller than its send is ERR_SIZE on both sides, with
 * both sizes in the text; the connection stays usable. Up to 64 sends per connection wait in the network for their
 * receives, further ones wait in this process.
 *
 * PROGRESS. There is no hidden thread that moves transfers: each call of test, poll, wait, cancel and accept moves
 * every connection of its rx. A process that calls none of them receives nothing and makes its peers wait; it is not
 * taken for dead (the network's own thread keeps the connection alive). Where GANTRY_HELPERS gives the network helper
 * threads, these move bytes of what is already under way.
 *
 * THREADS. All calls may be made by any thread; calls of one rx exclude one another. wait and accept let others in. What
 * is closed or freed is used by no other call any more.
 *
 * PATHS. How bytes come to device memory:
 *   unpack    they land in device memory as fragments (devmem TCP of Linux), a kernel puts them in place
 *   emulated  the same with a NIC in user space over ordinary sockets: for trying it, and for tests
 *   host      through pinned host memory, copied by the device (contiguous) or by a kernel (pieces)
 * `auto` is unpack where NIC, kernel and device can, else host; gantry_rx_conn_path says which it is and why. Transfers
 * into host memory use the host's way on every path: the network writes to the buffer itself (or scatters to pieces).
 *
 * NICS. A connection uses all interfaces that are at least half as fast as the fastest and share a subnet with one of the
 * peer's: those nearest to the device first (behind the same PCIe switch, at the same NUMA node), each with a lane of its
 * own at least. GANTRY_NET_RAILS limits their number, `nic` and GANTRY_NET_DEVICE name them instead. On path unpack only
 * those that can do it count, and, as on path emulated, at most GANTRY_UNPACK_NICS of them. If one of several fails, the
 * connection goes on over the others (GANTRY_RESUME).
 *
 * MEMORY. Pieces lie in registered memory. All pieces of a batch are host memory, or all are memory of the device. On
 * the host device, what came from gantry_mem_alloc counts as memory of the device. The memory of a send must be
 * complete when gantry_rx_send is called (work of a stream: synchronise it first), and must not change until the op is
 * done. The memory of a receive must not be touched until the op is done, or, in a stream, behind
 * gantry_rx_stream_wait.
 *
 * STATES of an op: PENDING; ARRIVED: all bytes are here, and the device's work that puts them in place is in a stream;
 * DONE: the buffer is the caller's again, and the result is final. A send or a receive into host memory goes from
 * PENDING to DONE. With GANTRY_RX_RECV_SYNC, a debug aid, the CPU has waited for that work when an op is ARRIVED. A
 * send is done, with result OK, when the peer's receive has all its bytes in place: after that either side may close,
 * or end.
 *
 * FAILURE. When the peer dies, closes, or is silent for GANTRY_TIMEOUT, all ops of the connection end at once with one
 * typed cause, except sends that the peer has already confirmed as received: these complete with OK. The connection can
 * then only be closed. A peer that was restarted, even at the same address, is a new peer: it needs a new connection,
 * and nothing of the old one can reach it. Each rx has a random epoch to distinguish restarts.
 *
 * Parameters (zero in the config takes them): GANTRY_RX_*, GANTRY_UNPACK_*, GANTRY_EMU_* of docs/params.md; those of
 * the network (GANTRY_IFNAME, GANTRY_LANES, GANTRY_SECRET, GANTRY_TIMEOUT, ...) hold as well. GANTRY_SECRET
 * authenticates both ends to one another, before the accepting side reveals or does anything; where it is set on one
 * side only or differs, connect fails with ERR_AUTH after three tries. Without it any process that reaches the port can
 * connect.
 *
 * C99-clean, no CUDA headers.
 */
#ifndef GANTRY_RX_H
#define GANTRY_RX_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/api.h"
#include "gantry/device.h"
#include "gantry/result.h"
#include "gantry/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gantry_rx;
struct gantry_rx_listener;
struct gantry_rx_conn;
struct gantry_rx_op;

enum gantry_rx_path {
	GANTRY_RX_PATH_DEFAULT = 0, /* what GANTRY_RX_PATH says */
	GANTRY_RX_PATH_AUTO,
	GANTRY_RX_PATH_UNPACK,
	GANTRY_RX_PATH_EMULATED,
	GANTRY_RX_PATH_HOST,
};

/* Zero or NULL where the default is right. */
struct gantry_rx_config {
	size_t struct_size;
	struct gantry_device *device; /* borrowed until close; NULL: the host device */
	enum gantry_rx_path path;
	const char *nic; /* the interfaces, as `gantry doctor` lists them: "eth0", "eth0+eth1"; NULL: see NICS */
	uint64_t
		message; /* bytes per message on the wire; 0: GANTRY_RX_MESSAGE. The smaller one of both sides counts */
	int depth;	 /* messages in flight per connection and direction; 0: GANTRY_RX_DEPTH */
	uint64_t stage;	 /* pinned memory for staging; 0: GANTRY_RX_STAGE */
	int max_frags;	 /* fragments per launch of the unpacking kernel; 0: GANTRY_RX_MAX_FRAGS */
	int debug;	 /* a log line for each step of each transfer; 0: GANTRY_RX_DEBUG */
};

#define GANTRY_RX_CONFIG_INIT GANTRY_STRUCT_INIT(struct gantry_rx_config)

/* config may be NULL: all defaults. The cause of a failure is in gantry_last_error(). */
GANTRY_API gantry_result gantry_rx_open(const struct gantry_rx_config *config, struct gantry_rx **ret_rx);
/* Closes what is still open: ops end with ERR_ABORTED (and must be freed before), listeners and connections go. Waits for
 * streams in which gantry_rx_unpack has work. */
GANTRY_API void gantry_rx_close(struct gantry_rx *rx);
/* Random, not 0: a restarted process has another one. */
GANTRY_API uint64_t gantry_rx_epoch(const struct gantry_rx *rx);

/*
 * Meeting. Addresses are "host:port", "[v6]:port"; host names are looked up, which takes as long as the system's
 * resolver takes: timeouts begin after that, and numbers need none of it. GANTRY_WAIT_DEFAULT is
 * GANTRY_CONNECT_TIMEOUT. A connection that does not use the protocol, does not prove the secret or does not complete
 * is refused and counted; it disturbs no other connection, and accept does not fail because of it.
 */

/* NULL: the address of the rx's interface and a port that the kernel chooses. Port 0 is a port that the kernel chooses.
 */
GANTRY_API gantry_result gantry_rx_listen(struct gantry_rx *rx, const char *address,
					  struct gantry_rx_listener **ret_listener);
/* "10.0.0.1:4000", as bound: what peers connect to. Borrowed, lives as long as the listener. */
GANTRY_API const char *gantry_rx_listener_address(const struct gantry_rx_listener *listener);
/* The next peer. ERR_TIMEOUT: none yet; call again, what is half-way there goes on then. */
GANTRY_API gantry_result gantry_rx_accept(struct gantry_rx_listener *listener, int64_t timeout_ns,
					  struct gantry_rx_conn **ret_conn);
GANTRY_API void gantry_rx_listener_close(struct gantry_rx_listener *listener);
/*
 * Retries while nothing is listening there, until the timeout. address: "host:port", or "host:port#epoch" with the
 * epoch (gantry_rx_epoch) of the intended rx, in hexadecimal: any other rx refuses. With GANTRY_SECRET a listener also
 * refuses (ERR_REFUSED) a peer that connected to an address other than its own or GANTRY_ADVERTISE's: with address
 * translation in between, set GANTRY_ADVERTISE or give the epoch.
 */
GANTRY_API gantry_result gantry_rx_connect(struct gantry_rx *rx, const char *address, int64_t timeout_ns,
					   struct gantry_rx_conn **ret_conn);
/* Ends the connection's ops with ERR_ABORTED; their buffers are at rest when this returns. Bounded, never waits for the
 * peer. */
GANTRY_API void gantry_rx_conn_close(struct gantry_rx_conn *conn);

/* How bytes come to device memory, and why: "unpack (emulated NIC): requested by GANTRY_RX_PATH", "host: eth0 has no
 * header split (driver virtio_net)". Borrowed, lives as long as the connection. */
GANTRY_API const char *gantry_rx_conn_path(const struct gantry_rx_conn *conn);
/* "127.0.0.1:4000 epoch 3f2a...": borrowed. */
GANTRY_API const char *gantry_rx_conn_peer(const struct gantry_rx_conn *conn);
GANTRY_API uint64_t gantry_rx_conn_peer_epoch(const struct gantry_rx_conn *conn);
/* OK, or why the connection is over; text may be NULL. Moves nothing. */
GANTRY_API gantry_result gantry_rx_conn_error(struct gantry_rx_conn *conn, char *text, size_t len);

/* Memory that batches lie in: host memory, or memory of the rx's device. It must stay until it is deregistered, which
 * is ERR_USAGE while ops use it. Regions may overlap. */
GANTRY_API gantry_result gantry_rx_register(struct gantry_rx *rx, void *ptr, size_t size);
GANTRY_API gantry_result gantry_rx_deregister(struct gantry_rx *rx, void *ptr);

/* `count` pieces of `piece_bytes` each, the k-th at base + k * stride. stride 0: they follow one another. */
struct gantry_rx_piece {
	void *base;
	size_t piece_bytes;
	size_t stride;
	size_t count;
};

/* The array is copied, the memory is not. n may be 0: an empty transfer. The op must be freed. */
GANTRY_API gantry_result gantry_rx_send(struct gantry_rx_conn *conn, const struct gantry_rx_piece *pieces, size_t n,
					uint64_t tag, struct gantry_rx_op **ret_op);
GANTRY_API gantry_result gantry_rx_recv(struct gantry_rx_conn *conn, const struct gantry_rx_piece *pieces, size_t n,
					uint64_t tag, struct gantry_rx_op **ret_op);

/*
 * The same for elements that are stored as another type than they were sent as: float16, bfloat16 and float32 in any
 * combination (enum gantry_type; other types are ERR_UNSUPPORTED). The sender sends as ever and need not know. To
 * float32 is exact; to a smaller type rounds to nearest, ties to even, what is too large becomes infinity, subnormals
 * are kept, and a NaN stays a NaN (which one is not specified). All paths give the same bits.
 *
 * pieces: the places of the elements as they are stored, each of whole elements; no alignment is asked for. Bytes of
 * results and counters are those that were sent. A send that is larger than the receive, counted in elements, or that is
 * not of whole elements, is ERR_SIZE on both sides. Host memory is written by the CPU, from staging memory, so it is
 * slower than gantry_rx_recv. The same type twice is gantry_rx_recv.
 */
GANTRY_API gantry_result gantry_rx_recv_as(struct gantry_rx_conn *conn, const struct gantry_rx_piece *pieces, size_t n,
					   uint64_t tag, enum gantry_type sent, enum gantry_type stored,
					   struct gantry_rx_op **ret_op);

/*
 * FRAGMENTS. A receive that puts nothing in place: the caller gets the places at which the bytes arrived, and reads them
 * there with kernels of its own, or brings them to memory of its choice with gantry_rx_unpack:
 *
 *   gantry_rx_recv_frags(conn, bytes, tag, &op)
 *   while (gantry_rx_op_frags(op, frags, GANTRY_RX_FRAGS, timeout, &n) == GANTRY_OK && n) {
 *           gantry_rx_unpack(op, frags, n, dst, stream)
 *           gantry_rx_op_release(op, NULL)
 *   }
 *   gantry_rx_wait(op, timeout): OK: what was unpacked is right; gantry_rx_op_free(op)
 *
 * op_frags gives the fragments of one message (GANTRY_RX_MESSAGE) after the other, in the order of the transfer; those
 * of a message are in any order. On the paths unpack and emulated a fragment lies in the page pool of the device
 * (GANTRY_UNPACK_POOL). On path host, and where a small transfer of host memory came with its header, a message is one
 * fragment in pinned host memory, which kernels of the device address. Nothing is copied to make fragments.
 *
 * OWNERSHIP. Fragments are the caller's, to read, from op_frags until gantry_rx_op_release; or gantry_rx_cancel,
 * gantry_rx_op_free, gantry_rx_conn_close. Their pages then go back, as soon as all calls of gantry_rx_unpack that read
 * them are over on the device, which gantry_rx_cancel waits for. The op is DONE, with result OK, and the send of the peer with it, when all messages were
 * released; before that gantry_rx_wait waits. It is ARRIVED when the last message is here.
 *
 * LIMITS. A connection keeps at most GANTRY_RX_DEPTH messages. Those that the caller has count, and all that is
 * received behind them on this connection, in any op, ends after they are released: its memory is filled, but it is not
 * DONE. When the caller has so many that nothing more can come, op_frags is ERR_LIMIT at once. The page pool belongs to
 * all connections of the device, and staging memory (GANTRY_RX_STAGE) to all of the rx: where fragments that are kept
 * leave none, all that need some wait, without an error but for their timeouts. Keep fragments for as long as a kernel
 * takes, and not for long.
 *
 * FAILURE. When the connection ends, or is closed, pages and staging memory go back at once, whatever reads them: the op
 * has an error then, and what was read from fragments that were not released may be other bytes. The addresses stay
 * readable until gantry_rx_conn_close, and for calls of gantry_rx_unpack until they are over. So bytes from fragments
 * count when the op's result is OK, or when they were read before a release that returned OK. If the peer cancels,
 * op_frags is ERR_CANCELLED; both ops are DONE when the caller has released what it has. Landing pages
 * (GANTRY_UNPACK_LANDING) are for bytes that came through host memory: if fragments that are kept leave none, the
 * connection that needs one ends with ERR_LIMIT.
 *
 * What this does not do: fragments of a receive as another type (gantry_rx_recv_as), fragments that outlive their
 * connection, and streams that are being captured into a graph (ERR_UNSUPPORTED).
 */
struct gantry_rx_frag {
	const void *src;  /* as kernels of the device address it */
	uint64_t dst_off; /* of its first byte, from the beginning of the transfer */
	uint32_t len;
	uint32_t message; /* which one of the transfer it came in */
};
#define GANTRY_RX_FRAGS 2048 /* a message never has more */

/* bytes: the most that is received; a larger send is ERR_SIZE on both sides. */
GANTRY_API gantry_result gantry_rx_recv_frags(struct gantry_rx_conn *conn, uint64_t bytes, uint64_t tag,
					      struct gantry_rx_op **ret_op);
/* The next message, which is waited for. n 0: there is none; the caller has had them all. ERR_TIMEOUT: it is not here;
 * call again (timeout 0: only looks). ERR_INVALID: it has more than `room` fragments, and stays the next.
 * GANTRY_WAIT_DEFAULT is GANTRY_TIMEOUT. */
GANTRY_API gantry_result gantry_rx_op_frags(struct gantry_rx_op *op, struct gantry_rx_frag *frags, size_t room,
					    int64_t timeout_ns, size_t *ret_n);
/* Gives back all that op_frags has given: behind what is in the stream now, for work of the caller's own; NULL: that is
 * over, or there is none. What gantry_rx_unpack has begun counts by itself. Does not wait. Of an op that is DONE: its
 * result. */
GANTRY_API gantry_result gantry_rx_op_release(struct gantry_rx_op *op, struct gantry_stream *stream);
/*
 * Copies each fragment of the list to dst + its dst_off, in the caller's stream, with the kernel that unpacks receives.
 * Returns at once, unless the stream is full; the list may be changed or freed then. The caller may leave fragments out,
 * cut them, reorder them and give them another dst_off; places must not overlap. Each must lie in a fragment that the
 * caller has (op_frags, not yet released), and its place in registered memory of the device; otherwise ERR_INVALID, and
 * nothing is copied. Places must stay registered until the stream has passed. A launch has at most GANTRY_RX_MAX_FRAGS
 * fragments. AGAIN: lists of earlier calls fill the memory that is there for them; nothing was begun, call again when
 * streams have moved. With GANTRY_RX_RECV_SYNC it waits for the stream.
 */
GANTRY_API gantry_result gantry_rx_unpack(struct gantry_rx_op *op, const struct gantry_rx_frag *frags, size_t n,
					  void *dst, struct gantry_stream *stream);

enum gantry_rx_state { GANTRY_RX_PENDING = 0, GANTRY_RX_ARRIVED, GANTRY_RX_DONE };

/* Moves everything a little, then says how the op stands. */
GANTRY_API enum gantry_rx_state gantry_rx_test(struct gantry_rx_op *op);
/* The same once for all: the number of ops of the array that are DONE. NULL entries are left out. */
GANTRY_API size_t gantry_rx_poll(struct gantry_rx *rx, struct gantry_rx_op *const *ops, size_t n);
/* Until the op is DONE: its result. ERR_TIMEOUT: it is not, and goes on. GANTRY_WAIT_DEFAULT is GANTRY_TIMEOUT.
 * Spins, yields, then sleeps in between (GANTRY_SPIN, GANTRY_YIELD, GANTRY_PROXY_SLEEP). */
GANTRY_API gantry_result gantry_rx_wait(struct gantry_rx_op *op, int64_t timeout_ns);
/* What is put into the stream from now on sees the data; the CPU does not wait. AGAIN while the op is PENDING. */
GANTRY_API gantry_result gantry_rx_stream_wait(struct gantry_rx_op *op, struct gantry_stream *stream);

/*
 * Ends the op early: the peer's op ends with ERR_CANCELLED, this one too unless it was already complete. A receive that
 * no send has matched yet is simply removed: the peer is not notified, and its send waits for the next receive of that
 * tag. When this
 * returns, neither the network nor the device touches the buffer any more. Messages that are being written to the
 * buffer right now are let through first, and the peer is asked not to send the rest; if it has not reacted when the
 * timeout is over (GANTRY_WAIT_DEFAULT: GANTRY_TIMEOUT), the connection is ended instead. Otherwise it stays usable. Returns the
 * op's result.
 */
GANTRY_API gantry_result gantry_rx_cancel(struct gantry_rx_op *op, int64_t timeout_ns);

struct gantry_rx_result {
	size_t struct_size;
	gantry_result result; /* AGAIN: not done */
	uint64_t bytes;	      /* that were sent or received; after an error: those that are certain */
	const char *text;     /* one line with the cause; "" if there is none. Borrowed from the op */
};
#define GANTRY_RX_RESULT_INIT GANTRY_STRUCT_INIT(struct gantry_rx_result)
GANTRY_API gantry_result gantry_rx_op_result(const struct gantry_rx_op *op, struct gantry_rx_result *ret_result);
/* NULL is fine. An op that is not done is cancelled first. Before gantry_rx_close. */
GANTRY_API void gantry_rx_op_free(struct gantry_rx_op *op);

/* What an rx has done. */
struct gantry_rx_counters {
	size_t struct_size;
	uint64_t sent_bytes, received_bytes;
	uint64_t launches, descriptors; /* of unpack, scatter and gather kernels */
	uint64_t unpacked_bytes;	/* that came as fragments */
	uint64_t staged_bytes;		/* that went through staging memory, either way */
	uint64_t direct_bytes;		/* that the network read or wrote in place */
	uint64_t stage_memory;		/* staging memory that is allocated now */
	uint64_t strangers;		/* that were turned away by listeners */
};
#define GANTRY_RX_COUNTERS_INIT GANTRY_STRUCT_INIT(struct gantry_rx_counters)
GANTRY_API gantry_result gantry_rx_get_counters(struct gantry_rx *rx, struct gantry_rx_counters *ret);

#ifdef __cplusplus
}
#endif
#endif
