/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tcp/vec.h"

#include <string.h>

#include "base/crc32c.h"

uint64_t tcp_vec_bytes(const struct tcp_vec *v)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < v->n; i++)
		bytes += v->iov[i].iov_len;
	return bytes;
}

void tcp_vec_skip(const struct tcp_vec *v, struct tcp_vec_at *at, uint64_t n)
{
	at->off += n;
	while (at->i < v->n && at->off >= v->iov[at->i].iov_len) {
		at->off -= v->iov[at->i].iov_len;
		at->i++;
	}
}

void tcp_vec_seek(const struct tcp_vec *v, uint64_t offset, struct tcp_vec_at *ret_at)
{
	*ret_at = (struct tcp_vec_at){0, 0};
	tcp_vec_skip(v, ret_at, offset);
}

int tcp_vec_list(const struct tcp_vec *v, const struct tcp_vec_at *at, uint64_t left, struct iovec *iov, int max,
		 uint64_t *ret_bytes)
{
	uint64_t off = at->off;
	int n = 0;

	*ret_bytes = 0;
	for (uint32_t i = at->i; i < v->n && n < max && *ret_bytes < left; i++, off = 0) {
		uint64_t len = v->iov[i].iov_len - off;

		if (len > left - *ret_bytes)
			len = left - *ret_bytes;
		iov[n++] = (struct iovec){(uint8_t *)v->iov[i].iov_base + off, len};
		*ret_bytes += len;
	}
	return n;
}

void tcp_vec_put(const struct tcp_vec *v, struct tcp_vec_at *at, const uint8_t *data, uint64_t n)
{
	struct iovec one;
	uint64_t len;

	while (n && tcp_vec_list(v, at, n, &one, 1, &len)) {
		memcpy(one.iov_base, data, len);
		tcp_vec_skip(v, at, len);
		data += len;
		n -= len;
	}
}

uint32_t tcp_vec_crc(const struct tcp_vec *v, const struct tcp_vec_at *from, uint64_t n)
{
	struct tcp_vec_at at = *from;
	struct iovec one;
	uint32_t crc = 0;
	uint64_t len;

	for (; n && tcp_vec_list(v, &at, n, &one, 1, &len); n -= len) {
		crc = gantry_crc32c(crc, one.iov_base, len);
		tcp_vec_skip(v, &at, len);
	}
	return crc;
}
