/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beyond net.h, for Gantry's own users of the TCP network: tags that wait for their receives, and messages whose bytes
 * lie in pieces, so that the network gathers or scatters while it moves them, without a copy in between.
 */
#ifndef GANTRY_NET_TCP_VEC_H
#define GANTRY_NET_TCP_VEC_H

#include <stdint.h>
#include <sys/uio.h>

#include "gantry/result.h"

/* From now on messages of this tag wait for their receive even if they are small (not empty ones): so those that
 * nobody receives take none of the room that messages of other tags need. Of a send comm. */
gantry_result tcp_hold(void *comm, int tag);

/* irecv of gantry_net_tcp() into n pieces of host memory, none of them empty. iov: borrowed until test says done, or
 * the comm is closed. ERR_UNSUPPORTED, without a word: not on a link that receives into device memory.
 * *ret_request NULL: again later. */
gantry_result tcp_irecv_vec(void *comm, const struct iovec *iov, uint32_t n, int tag, void **ret_request);

/* The same for isend, from plain memory. The message waits for its receive, however small it is. */
gantry_result tcp_isend_vec(void *comm, const struct iovec *iov, uint32_t n, int tag, void **ret_request);
/* Is it faster than a copy to one place and isend? With MSG_ZEROCOPY only, which may end while messages are on their
 * way; bulk_tx.c has figures. */
int tcp_isend_vec_pays(void *comm);

/* ---- within the network ---- */

/* Pieces, none of them empty. n 0: there are none, the bytes lie together. */
struct tcp_vec {
	const struct iovec *iov; /* borrowed */
	uint32_t n;
};

/* A place in the pieces. */
struct tcp_vec_at {
	uint32_t i;
	uint64_t off;
};
uint64_t tcp_vec_bytes(const struct tcp_vec *v);
void tcp_vec_seek(const struct tcp_vec *v, uint64_t offset, struct tcp_vec_at *ret_at);
void tcp_vec_skip(const struct tcp_vec *v, struct tcp_vec_at *at, uint64_t n);
void tcp_vec_put(const struct tcp_vec *v, struct tcp_vec_at *at, const uint8_t *data, uint64_t n);
uint32_t tcp_vec_crc(const struct tcp_vec *v, const struct tcp_vec_at *from, uint64_t n); /* CRC32C of n bytes */
/* At most max pieces and `left` bytes from here on: how many pieces; *ret_bytes: how many bytes. */
int tcp_vec_list(const struct tcp_vec *v, const struct tcp_vec_at *at, uint64_t left, struct iovec *iov, int max,
		 uint64_t *ret_bytes);

#endif
