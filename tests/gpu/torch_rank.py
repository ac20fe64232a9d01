# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch on whatever libnccl.so.2 it finds: collectives of several kinds and types, position-coded, over two
process groups; point to point; and steps of a small transformer under DDP. Prints `wrong N` and the losses.

    gantry run -n RANKS -- python3 torch_rank.py [BYTES_TO_TIME]
"""
import os
import sys
import time

import torch
import torch.distributed as dist

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
    dist.broadcast(x, n - 1, group=group)
    check(x, coded(count, dtype, 11, n - 1))
    x = coded(count, dtype, 3, rank)
    dist.reduce(x, 0, group=group)
    if rank == 0:
        check(x, sum(coded(count, dtype, 3, r) for r in range(n)))
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


def train():
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.TransformerEncoder(layer, 2).cuda())
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
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    check(mine, first)  # all ranks have the same parameters, bit by bit
    return losses


for group in (None, dist.new_group(list(range(n)))):
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8):
        for count in (1, 1000, 300001):
            collectives(group, dtype, count)
ring()
dist.barrier()
losses = train()
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
