# SPDX-License-Identifier: Apache-2.0
"""One rank of CuPy's NCCL calls, position-coded: `gantry run -n RANKS -- python3 cupy_rank.py FILE`, with FILE for the id."""
import os
import sys
import time

import cupy
from cupy.cuda import nccl

rank, n, path = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
if rank == 0:
    with open(path + ".part", "wb") as f:
        f.write(bytes(b & 255 for b in nccl.get_unique_id()))  # bytes in CuPy 14, signed numbers before
    os.rename(path + ".part", path)
while not os.path.exists(path):
    time.sleep(0.01)
with open(path, "rb") as f:
    unique = f.read()
if not isinstance(nccl.get_unique_id(), bytes):
    unique = tuple(b - 256 if b > 127 else b for b in unique)
comm = nccl.NcclCommunicator(n, unique, rank)
assert (comm.rank_id(), comm.size(), comm.device_id()) == (rank, n, 0)
stream = cupy.cuda.Stream(non_blocking=True)
wrong = 0


def coded(count, kind, add):
    return (cupy.arange(count) % 11 + add).astype(kind)


def check(got, want):
    global wrong
    stream.synchronize()
    wrong += int((got != want).sum())


for kind, code in ((cupy.float32, nccl.NCCL_FLOAT32), (cupy.float64, nccl.NCCL_FLOAT64), (cupy.int32, nccl.NCCL_INT32)):
    for count in (1, 1001, 300001):
        x, y, whole = coded(count, kind, rank), cupy.empty(count, kind), cupy.empty(count * n, kind)
        shares = cupy.concatenate([coded(count, kind, rank + r) for r in range(n)])
        cupy.cuda.Device().synchronize()
        comm.allReduce(x.data.ptr, y.data.ptr, count, code, nccl.NCCL_SUM, stream.ptr)
        check(y, sum(coded(count, kind, r) for r in range(n)))
        comm.reduce(x.data.ptr, y.data.ptr, count, code, nccl.NCCL_MAX, n - 1, stream.ptr)
        if rank == n - 1:
            check(y, coded(count, kind, n - 1))
        comm.broadcast(x.data.ptr, y.data.ptr, count, code, 0, stream.ptr)
        check(y, coded(count, kind, 0))
        comm.allGather(x.data.ptr, whole.data.ptr, count, code, stream.ptr)
        check(whole, cupy.concatenate([coded(count, kind, r) for r in range(n)]))
        comm.reduceScatter(shares.data.ptr, y.data.ptr, count, code, nccl.NCCL_SUM, stream.ptr)
        check(y, sum(coded(count, kind, rank + r) for r in range(n)))
        nccl.groupStart()
        comm.send(x.data.ptr, count, code, (rank + 1) % n, stream.ptr)
        comm.recv(y.data.ptr, count, code, (rank - 1) % n, stream.ptr)
        nccl.groupEnd()
        check(y, coded(count, kind, (rank - 1) % n))
        comm.bcast(y.data.ptr, count, code, n - 1, stream.ptr)
        check(y, coded(count, kind, (n - 2) % n))
comm.check_async_error()
comm.destroy()
print(f"rank {rank} wrong {wrong}", flush=True)
sys.exit(wrong != 0)
