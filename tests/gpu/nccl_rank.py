# SPDX-License-Identifier: Apache-2.0
"""One rank of a stock-NCCL run through PyTorch: checks every element, or measures all-reduce times.

Started by nccl_run.py, all ranks on GPU 0. The data differ by position and rank, so that a misplaced or repeated piece
cannot go unnoticed; what is expected is computed here from the pattern, never taken from another rank.
"""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist


def pattern(n, rank, dtype, salt=0):
    """n elements that depend on position, rank and salt; sums over a few ranks stay exact in every dtype used."""
    i = torch.arange(n, device="cuda", dtype=torch.int64)
    v = (i * 2654435761 + (i >> 13) * 40503 + rank * 7919 + salt * 104729) % 65521
    if dtype == torch.uint8:
        v %= 64
    elif dtype == torch.float32:
        v %= 8191
    return v.to(dtype)


class Steps(dict):
    """Says what is done as it is done: for finding out which one hangs."""

    def __setitem__(self, name, value):
        torch.cuda.synchronize()
        print("rank %s: %s: %d wrong" % (os.environ["RANK"], name, value), file=sys.stderr, flush=True)
        super().__setitem__(name, value)


def wrong(got, want):
    return int((got != want).sum().item())


def check_collectives(n, dtype, rank, ranks, steps=False):
    """Returns {collective: wrong elements} for n elements per rank."""
    bad = Steps() if steps else {}
    mine = pattern(n, rank, dtype)
    total = torch.zeros(n, device="cuda", dtype=torch.int64)
    for r in range(ranks):
        total += pattern(n, r, dtype).to(torch.int64)
    total = total.to(dtype)

    x = mine.clone()
    dist.all_reduce(x)
    bad["all_reduce"] = wrong(x, total)

    out = torch.full((n * ranks,), 77, device="cuda", dtype=dtype)
    dist.all_gather_into_tensor(out, mine)
    bad["all_gather"] = sum(wrong(out[r * n:(r + 1) * n], pattern(n, r, dtype)) for r in range(ranks))

    part = max(1, n // ranks)
    src = pattern(part * ranks, rank, dtype, 1)
    out = torch.full((part,), 77, device="cuda", dtype=dtype)
    dist.reduce_scatter_tensor(out, src)
    want = torch.zeros(part, device="cuda", dtype=torch.int64)
    for r in range(ranks):
        want += pattern(part * ranks, r, dtype, 1)[rank * part:(rank + 1) * part].to(torch.int64)
    bad["reduce_scatter"] = wrong(out, want.to(dtype))

    for root in range(ranks):
        x = pattern(n, rank, dtype, 2 + root)
        dist.broadcast(x, root)
        bad["broadcast"] = bad.get("broadcast", 0) + wrong(x, pattern(n, root, dtype, 2 + root))

    src = pattern(part * ranks, rank, dtype, 9)
    out = torch.full_like(src, 77)
    dist.all_to_all_single(out, src)
    bad["all_to_all"] = sum(
        wrong(out[r * part:(r + 1) * part], pattern(part * ranks, r, dtype, 9)[rank * part:(rank + 1) * part])
        for r in range(ranks))

    out = torch.full((n,), 77, device="cuda", dtype=dtype)
    ops = [dist.P2POp(dist.isend, mine, (rank + 1) % ranks), dist.P2POp(dist.irecv, out, (rank - 1) % ranks)]
    for req in dist.batch_isend_irecv(ops):
        req.wait()
    torch.cuda.synchronize()
    bad["sendrecv"] = wrong(out, pattern(n, (rank - 1) % ranks, dtype))
    return bad


def check(args, rank, ranks):
    sizes = [4, 8, 60, 1000, 1024, 4092, 65536, 65540, 262144, 1048572, 1 << 20, (1 << 22) + 4, (16 << 20) + 12,
             64 << 20, args.max_bytes]
    cases = [(s // 4, torch.int32) for s in sizes if s <= args.max_bytes]
    cases += [(s, torch.uint8) for s in (1, 3, 5, 1021, 4097, 65537, 1048577, 8388607)]
    cases += [(s // 4, torch.float32) for s in (4, 1024, 1 << 20, 32 << 20)]
    if args.types:
        cases = [(n, t) for n, t in cases if str(t)[6:] in args.types.split(",")]
    failed = 0
    for n, dtype in cases:
        bad = check_collectives(n, dtype, rank, ranks, args.steps)
        t = torch.tensor([sum(bad.values())], device="cuda", dtype=torch.int64)
        dist.all_reduce(t)
        failed += int(t.item())
        if rank == 0 or sum(bad.values()):
            print(json.dumps({"test": "nccl", "rank": rank, "ranks": ranks, "count": n, "type": str(dtype)[6:],
                              "wrong": int(t.item()), "detail": {k: v for k, v in bad.items() if v}}), flush=True)
    return failed


def soak(args, rank, ranks):
    """As many all-reduces as a job of two hours makes at ten a second, in sizes that take all protocols; each is compared
    on the GPU, and the differences are counted there, so that the stream never runs empty."""
    sizes = [4, 1021, 16384, 65540, 262148, (1 << 20) + 4, 1536]
    sets = []
    for k, size in enumerate(sizes):
        n = max(1, size // 4)
        want = torch.zeros(n, device="cuda", dtype=torch.int64)
        for r in range(ranks):
            want += pattern(n, r, torch.int32, k).to(torch.int64)
        sets.append((pattern(n, rank, torch.int32, k), want.to(torch.int32), torch.empty(n, device="cuda", dtype=torch.int32)))
    bad = torch.zeros(1, device="cuda", dtype=torch.int64)
    for i in range(args.count):
        mine, want, x = sets[i * 5 % len(sets)]
        x.copy_(mine)
        dist.all_reduce(x)
        bad += (x != want).sum()
        if i % args.ahead == args.ahead - 1:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    dist.all_reduce(bad)
    failed = int(bad.item())
    if rank == 0:
        print(json.dumps({"test": "nccl_soak", "ranks": ranks, "count": args.count, "wrong": failed}), flush=True)
    return failed


def bench(args, rank, ranks):
    for size in [int(s) for s in args.sizes.split(",")]:
        x = torch.ones(size // 4, device="cuda", dtype=torch.float32)
        iters = args.iters or max(5, min(400, (512 << 20) // size))
        for _ in range(max(3, iters // 5)):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        for _ in range(iters):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        us = (time.perf_counter() - t0) / iters * 1e6
        if rank == 0:
            bus = size / us / 1e3 * 2 * (ranks - 1) / ranks
            print(json.dumps({"label": args.label, "ranks": ranks, "bytes": size, "time_us": round(us, 2),
                              "busbw_gbs": round(bus, 3), "iters": iters}), flush=True)
    return 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("mode", choices=["check", "bench", "soak"])
    p.add_argument("--max-bytes", type=int, default=256 << 20)
    p.add_argument("--types", default="", help="check: only these, of int32, uint8 and float32")
    p.add_argument("--steps", action="store_true", help="check: say on stderr what is done")
    p.add_argument("--sizes", default="1024,65536,1048576,16777216,134217728")
    p.add_argument("--iters", type=int, default=0)
    p.add_argument("--count", type=int, default=72000, help="soak: all-reduces")
    p.add_argument("--ahead", type=int, default=100, help="soak: all-reduces that are queued before they are waited for")
    p.add_argument("--label", default="")
    args = p.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    failed = {"check": check, "bench": bench, "soak": soak}[args.mode](args, rank, ranks)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    raise SystemExit(1 if failed else 0)


main()
