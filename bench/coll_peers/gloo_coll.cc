/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gloo's collectives over its TCP transport and loopback, for bench/coll_compare.py. C++ because gloo is. The ranks are
 * forked here.
 *
 *   gloo_coll all_reduce -r 2 -b 8 -e 16M -f 4 -a ring
 *
 * Algorithms of all_reduce: ring (gloo's own choice) and bcube, which are functions; hd (recursive halving and
 * doubling) and ring_chunked, classes of its older interface, in place; hd_sync: hd with sockets that the calling
 * thread polls (setSync), which spares the wake-up by gloo's own thread; with large messages both sides can block in
 * their writes, which ends in gloo's timeout. reduce_scatter has hd and hd_sync only, the others have one each.
 */
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "peer.h"

struct gloo_rank {
	std::shared_ptr<gloo::rendezvous::Context> context;
	std::unique_ptr<gloo::Algorithm> algorithm; /* of the older interface; else empty */
};

static gloo_rank *rank_of(peer *p)
{
	return static_cast<gloo_rank *>(p->ctx);
}

static void all_reduce(peer *p)
{
	gloo::AllreduceOptions o(rank_of(p)->context);
	void (*sum)(void *, const void *, const void *, size_t) = &gloo::sum<float>;

	o.setInput(p->send, p->count);
	o.setOutput(p->recv, p->count);
	o.setReduceFunction(sum);
	o.setAlgorithm(strcmp(p->algo, "bcube") == 0 ? gloo::AllreduceOptions::Algorithm::BCUBE
						     : gloo::AllreduceOptions::Algorithm::RING);
	gloo::allreduce(o);
}

static void all_gather(peer *p)
{
	gloo::AllgatherOptions o(rank_of(p)->context);

	o.setInput(p->send, p->per_rank);
	o.setOutput(p->recv, p->count);
	gloo::allgather(o);
}

static void all_to_all(peer *p)
{
	gloo::AlltoallOptions o(rank_of(p)->context);

	o.setInput(p->send, p->count);
	o.setOutput(p->recv, p->count);
	gloo::alltoall(o);
}

static void broadcast(peer *p)
{
	gloo::BroadcastOptions o(rank_of(p)->context);

	o.setOutput(p->recv, p->count);
	o.setRoot(0);
	gloo::broadcast(o);
}

static int call(peer *p)
{
	try {
		if (rank_of(p)->algorithm)
			rank_of(p)->algorithm->run();
		else if (p->op == PEER_ALL_REDUCE)
			all_reduce(p);
		else if (p->op == PEER_ALL_GATHER)
			all_gather(p);
		else if (p->op == PEER_ALL_TO_ALL)
			all_to_all(p);
		else
			broadcast(p);
	} catch (const std::exception &e) {
		fprintf(stderr, "gloo: rank %d: %s\n", p->rank, e.what());
		return -1;
	}
	return 0;
}

/* One of the older interface, or none. */
static std::unique_ptr<gloo::Algorithm> make_algorithm(peer *p)
{
	std::vector<float *> at(1, p->recv);
	int count = static_cast<int>(p->count);
	bool hd = strcmp(p->algo, "hd") == 0 || strcmp(p->algo, "hd_sync") == 0;

	if (p->op == PEER_REDUCE_SCATTER)
		return std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
			rank_of(p)->context, at, count, std::vector<int>(p->ranks, static_cast<int>(p->per_rank)));
	if (p->op == PEER_ALL_REDUCE && hd)
		return std::make_unique<gloo::AllreduceHalvingDoubling<float>>(rank_of(p)->context, at, count);
	if (p->op == PEER_ALL_REDUCE && strcmp(p->algo, "ring_chunked") == 0)
		return std::make_unique<gloo::AllreduceRingChunked<float>>(rank_of(p)->context, at, count);
	return nullptr;
}

static int prepare(peer *p)
{
	try {
		rank_of(p)->algorithm = make_algorithm(p);
	} catch (const std::exception &e) {
		fprintf(stderr, "gloo: rank %d: %s\n", p->rank, e.what());
		return -1;
	}
	p->in_place = rank_of(p)->algorithm != nullptr;
	return 0;
}

static void release(peer *p)
{
	rank_of(p)->algorithm.reset();
}

static void remove_folder(const char *folder)
{
	if (system((std::string("rm -rf ") + folder).c_str()) != 0)
		fprintf(stderr, "gloo: %s cannot be removed\n", folder);
}

static int run_rank(peer *p, const char *folder)
{
	gloo_rank rank;
	int bad = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	p->ctx = &rank;
	try {
		gloo::transport::tcp::attr loopback("127.0.0.1");
		std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(loopback);
		gloo::rendezvous::FileStore store(folder);

		rank.context = std::make_shared<gloo::rendezvous::Context>(p->rank, p->ranks);
		rank.context->connectFullMesh(store, device);
		for (int i = 0; i < p->ranks && strcmp(p->algo, "hd_sync") == 0; i++)
			if (i != p->rank)
				rank.context->getPair(i)->setSync(true, true);
		/* Now nobody needs the folder any more; whoever ends this early leaves nothing behind. */
		peer_meet(p);
		if (p->rank == 0)
			remove_folder(folder);
		bad = peer_run(p);
	} catch (const std::exception &e) {
		fprintf(stderr, "gloo: rank %d: %s\n", p->rank, e.what());
	}
	/* What gloo's destructors wait for is not measured, and a pair that polls has nobody to close it. */
	fflush(stdout);
	_exit(bad);
}

/* The first child that fails ends the others, which would wait for it. */
static int wait_all(std::vector<pid_t> &children)
{
	int status, bad = 0;

	for (size_t left = children.size(); left > 0; left--) {
		pid_t done = wait(&status);

		if (done < 0 || status == 0)
			continue;
		for (pid_t &c : children)
			if (c != done && !bad)
				kill(c, SIGKILL);
		bad = 1;
	}
	return bad;
}

int main(int argc, char **argv)
{
	char folder[] = "/dev/shm/gantry-gloo-coll-XXXXXX";
	std::vector<pid_t> children;
	peer p = {};
	int bad;

	p.library = "gloo";
	p.version = "0.5.0";
	p.prepare = prepare;
	p.call = call;
	p.release = release;
	if (peer_options(&p, argc, argv))
		return 2;
	if (!*p.algo)
		p.algo = p.op == PEER_ALL_REDUCE ? "ring" : p.op == PEER_REDUCE_SCATTER ? "hd" : "";
	if (peer_map(&p, NULL) || !mkdtemp(folder))
		return 1;
	for (p.rank = 0; p.rank < p.ranks; p.rank++) {
		pid_t child = fork();

		if (child == 0)
			return run_rank(&p, folder);
		children.push_back(child);
	}
	bad = wait_all(children);
	remove_folder(folder);
	return bad;
}
