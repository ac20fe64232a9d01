# SPDX-License-Identifier: Apache-2.0
"""One rank of collnet.sh: all-reduces of all types and reductions that are compared with what they must be, and a digest of
sums of random floats, which must be the same on all ranks and in every run."""
import hashlib
import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

OPS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN,
       "avg": dist.ReduceOp.AVG}
TYPES = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIZES = [4, 1000, 65540, (1 << 20) + 8, (16 << 20) + 24]


def values(n, rank, ranks, op):
    """Whole numbers whose reductions are exact in every type; those of avg have a sum that all ranks divide."""
    i = torch.arange(n, device="cuda")
    if op == "avg":
        return (i % 3) * ranks + 0 * rank
    return 1 + (i + rank) % 2 if op == "prod" else (i * 5 + rank * (i // 3 + 1)) % 3


def wanted(n, ranks, op):
    v = values(n, 0, ranks, op)
    for r in range(1, ranks):
        x = values(n, r, ranks, op)
        v = torch.maximum(v, x) if op == "max" else torch.minimum(v, x) if op == "min" else v * x if op == "prod" else v + x
    return v // ranks if op == "avg" else v


def wrong(size, dtype, op, rank, ranks):
    n = max(1, size // torch.empty(0, dtype=dtype).element_size())
    x = values(n, rank, ranks, op).to(dtype)
    dist.all_reduce(x, OPS[op])
    return int((x != wanted(n, ranks, op).to(dtype)).sum().item())


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=100))
    cases = [(s, t, o) for t in TYPES for o in OPS for s in SIZES[:3]]
    cases += [(s, torch.float32, o) for o in OPS for s in SIZES[3:]]
    cases += [(256 << 20, torch.float32, "sum"), (256 << 20, torch.bfloat16, "sum")]
    failed = 0
    for size, dtype, op in cases:
        bad = wrong(size, dtype, op, rank, ranks)
        failed += bad
        if bad:
            print(json.dumps({"rank": rank, "bytes": size, "type": str(dtype)[6:], "op": op, "wrong": bad}), flush=True)
    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(3000001, generator=torch.Generator().manual_seed(7 + rank)).to(dtype).cuda()
        dist.all_reduce(x)
        digest.update(x.cpu().view(torch.uint8).numpy().tobytes())
    print(json.dumps({"test": "collnet", "rank": rank, "ranks": ranks, "cases": len(cases), "wrong": failed,
                      "digest": digest.hexdigest()[:16]}), flush=True)
    dist.destroy_process_group()
    return 1 if failed else 0


sys.exit(main())
