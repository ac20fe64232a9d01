/* SPDX-License-Identifier: Apache-2.0 */
/* Messages whose bytes lie in pieces of memory: isendv and irecvv of net.h. */
#ifndef GANTRY_NET_TCP_VEC_H
#define GANTRY_NET_TCP_VEC_H

#include <stdint.h>
#include <sys/uio.h>

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
