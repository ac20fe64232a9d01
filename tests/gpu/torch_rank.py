# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch on whatever libnccl.so.2 it finds: collectives of every kind and several types, position-coded, over
three process groups; point to point; and steps of a small transformer under DDP and under FSDP. Prints `wrong N` and the losses.

    gantry run -n RANKS -- python3 torch_rank.py [BYTES_TO_TIME]
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(0)
dist.init_process_group("nccl")
wrong = 0


def coded(count, dtype, mod, add):
    return ((torch.arange(count, device="cuda") % mod) + add).to(dtype)


def check(got, want):
    global wrong
    torch.cuda.synchronize()
    wrong += int((got != want).sum())


def collectives(group, dtype, count):
    """Ranks here are those within the group."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    everybody = list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)
    x = coded(count, dtype, 13, rank)
    dist.all_reduce(x, group=group)
    check(x, sum(coded(count, dtype, 13, r) for r in range(n)))
    x = coded(count, dtype, 13, rank)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)
    check(x, coded(count, dtype, 13, n - 1))
    parts = [torch.empty(count, device="cuda", dtype=dtype) for _ in range(n)]
    dist.all_gather(parts, coded(count, dtype, 7, 3 * rank), group=group)
    for r in range(n):
        check(parts[r], coded(count, dtype, 7, 3 * r))
    out = torch.empty(count, device="cuda", dtype=dtype)
    dist.reduce_scatter_tensor(out, torch.cat([coded(count, dtype, 5, r + rank) for r in range(n)]), group=group)
    check(out, sum(coded(count, dtype, 5, rank + r) for r in range(n)))
    x = coded(count, dtype, 11, rank)
    dist.broadcast(x, everybody[n - 1], group=group)
    check(x, coded(count, dtype, 11, n - 1))
    x = coded(count, dtype, 3, rank)
    dist.reduce(x, everybody[0], group=group)
    if rank == 0:
        check(x, sum(coded(count, dtype, 3, r) for r in range(n)))
    dist.gather(coded(count, dtype, 9, rank), parts if rank == 0 else None, everybody[0], group=group)
    if rank == 0:
        for r in range(n):
            check(parts[r], coded(count, dtype, 9, r))
    dist.scatter(out, [coded(count, dtype, 9, 2 * r) for r in range(n)] if rank == n - 1 else None, everybody[n - 1], group=group)
    check(out, coded(count, dtype, 9, 2 * rank))
    whole = torch.cat([coded(count, dtype, 3, 4 * rank + r) for r in range(n)])
    out = torch.empty_like(whole)
    dist.all_to_all_single(out, whole, group=group)
    check(out, torch.cat([coded(count, dtype, 3, 4 * r + rank) for r in range(n)]))


def ring():
    s, r = torch.full((1000,), float(rank), device="cuda"), torch.empty(1000, device="cuda")
    ops = [dist.P2POp(dist.isend, s, (rank + 1) % n), dist.P2POp(dist.irecv, r, (rank - 1) % n)]
    for q in dist.batch_isend_irecv(ops):
        q.wait()
    check(r, torch.full_like(r, float((rank - 1) % n)))


def train(wrap):
    """Five steps; the mean loss of each. `wrap` shares the model's work among ranks."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = wrap(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(5):
        torch.manual_seed(100 * step + rank)
        x = torch.randn(8, 32, 128, device="cuda")
        loss = ((model(x) - x.flip(1)) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses, model


def same_parameters(model):
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    check(mine, first)  # all ranks have the same parameters, bit by bit


def fsdp(model):
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


halves = [dist.new_group(list(range(h, n, 2))) for h in range(min(n, 2))]
for group in (None, dist.new_group(list(range(n))), halves[rank % 2]):
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8):
        for count in (1, 1000, 300001):
            collectives(group, dtype, count)
ring()
dist.barrier()
losses, model = train(torch.nn.parallel.DistributedDataParallel)
same_parameters(model)
losses += train(fsdp)[0]
sys.stdout.write(f"rank {rank} wrong {wrong} losses {' '.join('%.7f' % l for l in losses)}\n")
if len(sys.argv) > 1:
    x = torch.ones(int(sys.argv[1]) // 4, device="cuda")
    for i in range(13):
        if i == 3:
            torch.cuda.synchronize()
            begin = time.time()
        dist.all_reduce(x)
    torch.cuda.synchronize()
    took = (time.time() - begin) / 10
    if rank == 0:
        sys.stdout.write(f"all_reduce of {sys.argv[1]} bytes: {int(sys.argv[1]) / took / 1e9 * 2 * (n - 1) / n:.1f} GB/s bus bandwidth\n")
dist.destroy_process_group()
sys.exit(wrong != 0)
