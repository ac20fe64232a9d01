# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch whose collectives are captured in CUDA graphs: two graphs run by turns, with plain calls between
them; values differ by position, rank and run, and are compared on the GPU. Prints `wrong N`.

    gantry run -n RANKS -- python3 graph_rank.py [RUNS]
"""
import os
import sys
import time

import torch
import torch.distributed as dist

rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
torch.cuda.set_device(0)
dist.init_process_group("nccl")
SIZES = (256, 4099, 300001)
wrong = torch.zeros((), device="cuda", dtype=torch.int64)
run = torch.zeros((), device="cuda", dtype=torch.int64)  # the kernels' own count of runs


def value(count, r):
    """Of rank r in this run."""
    i = torch.arange(count, device="cuda", dtype=torch.int64)
    return ((i * 7 + i // 1021 + r * 5003 + run * 131) % 65521).to(torch.int32)


def step_reduce():
    for count in SIZES:
        x = value(count, rank)
        dist.all_reduce(x)
        wrong.add_((x != sum(value(count, r) for r in range(n))).sum())
        out = torch.empty(count * n, device="cuda", dtype=torch.int32)
        dist.all_gather_into_tensor(out, value(count, rank))
        wrong.add_((out != torch.cat([value(count, r) for r in range(n)])).sum())


def step_move():
    for count in SIZES:
        out = torch.empty(count, device="cuda", dtype=torch.int32)
        ops = [dist.P2POp(dist.isend, value(count, rank), (rank + 1) % n),
               dist.P2POp(dist.irecv, out, (rank - 1) % n)]
        for q in dist.batch_isend_irecv(ops):
            q.wait()
        wrong.add_((out != value(count, (rank - 1) % n)).sum())
        x = value(count, rank)
        dist.broadcast(x, n - 1)
        wrong.add_((x != value(count, n - 1)).sum())


def capture(step):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
        run.add_(1)
    return graph


step_reduce()
step_move()
torch.cuda.synchronize()
graphs = [capture(step_reduce), capture(step_move)]
begin = time.time()
for k in range(runs):
    graphs[k % 2].replay()
    if k % 100 == 7:
        step_reduce()  # plain, on the same communicator
    if k % 500 == 0:
        torch.cuda.synchronize()
torch.cuda.synchronize()
took = time.time() - begin
sys.stdout.write(f"rank {rank} runs {int(run)} wrong {int(wrong)} {took / runs * 1e6:.0f} us each\n")

# How long one of 1 KiB takes: captured twenty times in a row, and by plain calls.
x = torch.ones(256, device="cuda")
graph = torch.cuda.CUDAGraph()
dist.all_reduce(x)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    for _ in range(20):
        dist.all_reduce(x)
for what, times, call in (("graph", 20, graph.replay), ("plain", 1, lambda: dist.all_reduce(x))):
    for k in range(150):
        if k == 50:
            torch.cuda.synchronize()
            begin = time.time()
        call()
    torch.cuda.synchronize()
    if rank == 0:
        sys.stdout.write(f"all_reduce of 1 KiB, {what}: {(time.time() - begin) / 100 / times * 1e6:.1f} us\n")
bad = int(wrong) != 0 or int(run) != runs
del graph, graphs
torch.cuda.synchronize()
dist.destroy_process_group()
sys.exit(bad)
