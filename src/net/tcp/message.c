/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: entries of the table of net.h that post, test and free them. Checks arguments and calls links. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "base/atomic.h"
#include "base/log.h"
#include "inet/loop.h"
#include "net/tcp/comm.h"
#include "net/tcp/txmem.h"
#include "net/tcp/unpack.h"
#include "net/tcp/vec.h"

static void note_use(struct tcp_comm *c)
{
	if (!load_relaxed(&c->in_use))
		store_relaxed(&c->in_use, 1);
}

/* Is it a comm of that kind, and of this process? */
static inline gantry_result check_comm(const struct tcp_comm *c, enum comm_kind kind, const char *what)
{
	if (c->kind != kind)
		FAIL_NOW(GANTRY_ERR_USAGE, "%s on something that is not a %s comm", what,
			 kind == COMM_SEND ? "send" : "receive");
	return inet_forked(c->link->session.forks) ? inet_refuse_forked(what) : GANTRY_OK;
}

gantry_result tcp_isend(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *reg,
			void **ret_request)
{
	struct tcp_comm *c = comm;
	const struct tcp_mr *mr = reg;
	gantry_result r = check_comm(c, COMM_SEND, "isend");

	(void)net;
	if (r == GANTRY_OK)
		r = tcp_mr_check("isend", mr, data, size);
	if (r != GANTRY_OK)
		return r;
	note_use(c);
	if (mr && mr->txmem && size > c->link->session.eager_max)
		return tcp_link_isend_txmem(c->link, mr->txmem, data, size, tag, ret_request);
	return mr && mr->type == GANTRY_NET_PTR_CUDA ? tcp_link_isend_device(c->link, data, size, tag, ret_request)
						     : tcp_link_isend(c->link, data, size, tag, ret_request);
}

gantry_result tcp_irecv(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes, const int *tags,
			void **mrs, void **request)
{
	struct tcp_comm *c = comm;
	const struct tcp_mr *mr;
	gantry_result r = check_comm(c, COMM_RECV, "irecv");

	(void)net;
	if (r == GANTRY_OK && (n < 1 || n > GANTRY_NET_MAX_RECVS))
		FAIL_NOW(GANTRY_ERR_INVALID, "irecv of %d buffers, 1 to %d can be grouped", n, GANTRY_NET_MAX_RECVS);
	for (int i = 0; r == GANTRY_OK && i < n; i++)
		r = tcp_mr_check("irecv", mrs ? mrs[i] : NULL, data[i], sizes[i]);
	if (r != GANTRY_OK)
		return r;
	note_use(c);
	if (!c->unpack)
		return tcp_link_irecv(c->link, n, data, sizes, tags, request);
	if (n > 1)
		FAIL_NOW(GANTRY_ERR_USAGE, "irecv of %d buffers: with UNPACK a receive has one", n);
	mr = mrs ? mrs[0] : NULL;
	return tcp_link_irecv_unpack(c->link, data[0], sizes[0], tags[0], mr && mr->type == GANTRY_NET_PTR_CUDA,
				     *request == GANTRY_NET_OPTIONAL_RECV_COMPLETION, request);
}

gantry_result tcp_hold(void *comm, int tag)
{
	struct tcp_comm *c = comm;
	gantry_result r = check_comm(c, COMM_SEND, "hold");

	return r == GANTRY_OK ? tcp_link_hold(c->link, tag) : r;
}

gantry_result tcp_irecv_vec(void *comm, const struct iovec *iov, uint32_t n, int tag, void **ret_request)
{
	struct tcp_comm *c = comm;
	gantry_result r = check_comm(c, COMM_RECV, "irecv");

	if (r != GANTRY_OK)
		return r;
	if (c->unpack || c->link->session.device_rx)
		return GANTRY_ERR_UNSUPPORTED;
	note_use(c);
	return tcp_link_irecv_vec(c->link, iov, n, tag, ret_request);
}

int tcp_isend_vec_pays(void *comm)
{
	const struct tcp_comm *c = comm;

	return load_relaxed(&c->link->tx.msg_zerocopy);
}

gantry_result tcp_isend_vec(void *comm, const struct iovec *iov, uint32_t n, int tag, void **ret_request)
{
	struct tcp_comm *c = comm;
	gantry_result r = check_comm(c, COMM_SEND, "isend");

	if (r != GANTRY_OK)
		return r;
	note_use(c);
	return tcp_link_isend_vec(c->link, iov, n, tag, ret_request);
}

gantry_result tcp_iflush(struct gantry_net *net, void *comm, int n, void **data, const int *sizes, void **mrs,
			 void **ret_request)
{
	(void)net;
	(void)comm;
	(void)n;
	(void)data;
	(void)sizes;
	(void)mrs;
	*ret_request = NULL; /* host memory needs none */
	return GANTRY_OK;
}

gantry_result tcp_test(struct gantry_net *net, void *request, int *ret_done, int *sizes)
{
	struct tcp_request *req = request;
	uint32_t state = TCP_FREE;

	(void)net;
	if (req && (req->kind == TCP_SEND || req->kind == TCP_RECV))
		state = load_relaxed(&req->state);
	if (state != TCP_PENDING && state != TCP_DONE)
		FAIL_NOW(GANTRY_ERR_USAGE, "test of something that is not a pending request");
	if (inet_forked(req->link->session.forks))
		return inet_refuse_forked("test");
	return tcp_link_test(req, ret_done, sizes);
}

gantry_result tcp_irecv_consumed(struct gantry_net *net, void *comm, int n, void *request)
{
	struct tcp_comm *c = comm;
	gantry_result r = check_comm(c, COMM_RECV, "irecvConsumed");

	(void)net;
	(void)n;
	return r == GANTRY_OK && c->unpack ? tcp_unpack_consumed(c->link, request) : r;
}
