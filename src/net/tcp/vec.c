#include "net/tcp/vec.h"

#include <string.h>

#include "net/tcp/link.h"

void tcp_vec_skip(const struct tcp_recv *recv, struct tcp_vec_at *at, uint64_t n)
{
	at->off += n;
	while (at->i < recv->nvec && at->off >= recv->vec[at->i].iov_len) {
		at->off -= recv->vec[at->i].iov_len;
		at->i++;
	}
}

void tcp_vec_seek(const struct tcp_recv *recv, uint64_t offset, struct tcp_vec_at *ret_at)
{
	*ret_at = (struct tcp_vec_at){0, 0};
	tcp_vec_skip(recv, ret_at, offset);
}

int tcp_vec_list(const struct tcp_recv *recv, const struct tcp_vec_at *at, uint64_t left, struct iovec *iov, int max,
		 uint64_t *ret_bytes)
{
	uint64_t off = at->off;
	int n = 0;

	*ret_bytes = 0;
	for (uint32_t i = at->i; i < recv->nvec && n < max && *ret_bytes < left; i++, off = 0) {
		uint64_t len = recv->vec[i].iov_len - off;

		if (len > left - *ret_bytes)
			len = left - *ret_bytes;
		iov[n++] = (struct iovec){(uint8_t *)recv->vec[i].iov_base + off, len};
		*ret_bytes += len;
	}
	return n;
}

void tcp_vec_put(const struct tcp_recv *recv, struct tcp_vec_at *at, const uint8_t *data, uint64_t n)
{
	struct iovec one;
	uint64_t len;

	while (n && tcp_vec_list(recv, at, n, &one, 1, &len)) {
		memcpy(one.iov_base, data, len);
		tcp_vec_skip(recv, at, len);
		data += len;
		n -= len;
	}
}
