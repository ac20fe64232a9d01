/*
 * Beyond net.h, for Gantry's own users of the TCP network: tags that wait for their receives, and receives whose one
 * buffer lies in pieces, so that the network scatters while it reads, without a copy in between.
 */
#ifndef GANTRY_NET_TCP_VEC_H
#define GANTRY_NET_TCP_VEC_H

#include <stdint.h>
#include <sys/uio.h>

#include "gantry/result.h"

struct tcp_recv;

/* From now on messages of this tag wait for their receive even if they are small (not empty ones): so those that
 * nobody receives take none of the room that messages of other tags need. Of a send comm. */
gantry_result tcp_hold(void *comm, int tag);

/* irecv of gantry_net_tcp() into n pieces, none of them empty. iov: borrowed until test says done, or the comm is
 * closed. ERR_UNSUPPORTED, without a word: not on a link that receives into device memory or checks checksums.
 * *ret_request NULL: again later. */
gantry_result tcp_irecv_vec(void *comm, const struct iovec *iov, uint32_t n, int tag, void **ret_request);

/* A place in the pieces. */
struct tcp_vec_at {
	uint32_t i;
	uint64_t off;
};
void tcp_vec_seek(const struct tcp_recv *recv, uint64_t offset, struct tcp_vec_at *ret_at);
void tcp_vec_skip(const struct tcp_recv *recv, struct tcp_vec_at *at, uint64_t n);
void tcp_vec_put(const struct tcp_recv *recv, struct tcp_vec_at *at, const uint8_t *data, uint64_t n);
/* At most max pieces and `left` bytes from here on: how many pieces; *ret_bytes: how many bytes. */
int tcp_vec_list(const struct tcp_recv *recv, const struct tcp_vec_at *at, uint64_t left, struct iovec *iov, int max,
		 uint64_t *ret_bytes);

#endif
