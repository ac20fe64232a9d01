/*
 * --pattern echo: a message to and fro between two kernels that stay, as a flag goes to and fro between two threads. It
 * shows what the steps of a connection cost without the calls and launches around them (--pattern pingpong has those).
 * Checked like pingpong, whose messages it has; timed by one launch for all iterations.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "base/log.h"
#include "base/param.h"
#include "comm/comm.h"
#include "perf_sendrecv.h"

static uint32_t proto_of(const struct gantry_conn *conn, uint64_t bytes)
{
	const struct gantry_params *p = gantry_params();

	if (p->proto)
		return (uint32_t)p->proto - 1;
	return bytes <= p->ll_max && conn->buffs[GANTRY_PROTO_LL] ? GANTRY_PROTO_LL : GANTRY_PROTO_SIMPLE;
}

gantry_result sr_echo(struct sr_rank *rk, uint64_t bytes, uint64_t n)
{
	gantry_result r = GANTRY_OK;
	struct gantry_comm *comm = rk->comm;
	int peer = rk->rank ^ 1, channel;
	const struct comm_conn *send, *recv;
	struct gantry_echo_args args = {.bytes = bytes, .n = n, .first = rk->rank % 2 == 0, .result = comm->result_dev};
	struct gantry_launch l = {.kernel = GANTRY_KERNEL_ECHO,
				  .blocks = 1,
				  .args = &args,
				  .args_size = sizeof(args),
				  .abort = comm->abort_dev,
				  .doors = NULL};

	if (peer >= rk->nranks)
		return GANTRY_OK;
	channel = (rk->rank + peer) % comm->nchannels;
	send = &comm->peers[peer].send[channel];
	recv = &comm->peers[peer].recv[channel];
	if ((send->c.conn.flags | recv->c.conn.flags) & GANTRY_CONN_PROXIED)
		FAIL(GANTRY_ERR_UNSUPPORTED, "--pattern echo needs kernels that reach each other (p2p or shm), not %s",
		     send->c.transport->name);
	args.send = send->dev;
	args.recv = recv->dev;
	args.proto = proto_of(&send->c.conn, bytes);
	args.input = rk->memory[1] + SR_FRONT;
	args.output = rk->memory[0] + SR_FRONT;
	l.doors = comm->all_ring && comm->doors ? &comm->doors[channel] : NULL; /* block 0 sleeps at the channel's */
	TRY(rk->dev->ops->launch(rk->dev, rk->stream, &l));
out:
	return r;
}
