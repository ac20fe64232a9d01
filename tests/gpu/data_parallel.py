# SPDX-License-Identifier: Apache-2.0
"""The calls that torch.nn.DataParallel makes: one thread, ncclCommInitAll, each collective as a group over all communicators.
All on device 0, which torch itself refuses: so by ctypes. `gantry run -- python3 data_parallel.py RANKS`.
"""
import ctypes
import sys

import torch

nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetErrorString.restype = ctypes.c_char_p
FLOAT, SUM = 7, 0
n = int(sys.argv[1])
wrong = 0


def call(name, *args):
    rc = getattr(nccl, name)(*args)
    if rc:
        sys.exit(f"{name}: {nccl.ncclGetErrorString(rc).decode()}")


def pointer(t):
    return ctypes.c_void_p(t.data_ptr())


def each(what):
    """One group with a call for every rank, then all streams."""
    call("ncclGroupStart")
    for r in range(n):
        what(r)
    call("ncclGroupEnd")
    torch.cuda.synchronize()


def coded(count, add):
    return torch.arange(count, device="cuda", dtype=torch.float32) % 17 + add


comms = (ctypes.c_void_p * n)()
call("ncclCommInitAll", comms, ctypes.c_int(n), (ctypes.c_int * n)())
streams = [torch.cuda.Stream() for _ in range(n)]
stream = [ctypes.c_void_p(s.cuda_stream) for s in streams]
comm = [ctypes.c_void_p(c) for c in comms]
for count in (1, 1003, 1 << 20):
    size = ctypes.c_size_t(count)
    x = [coded(count, r) for r in range(n)]  # broadcast_coalesced: the parameters
    torch.cuda.synchronize()
    each(lambda r: call("ncclBcast", pointer(x[r]), size, FLOAT, 0, comm[r], stream[r]))
    for r in range(n):
        wrong += int((x[r] != coded(count, 0)).sum())
    g, out = [coded(count, r) for r in range(n)], torch.empty(count, device="cuda")  # reduce_add: the gradients
    torch.cuda.synchronize()
    each(lambda r: call("ncclReduce", pointer(g[r]), pointer(out if r == 0 else g[r]), size, FLOAT, SUM, 0, comm[r], stream[r]))
    wrong += int((out != sum(coded(count, r) for r in range(n))).sum())
    y = [torch.empty(count, device="cuda") for _ in range(n)]
    each(lambda r: call("ncclAllReduce", pointer(g[r]), pointer(y[r]), size, FLOAT, SUM, comm[r], stream[r]))
    for r in range(n):
        wrong += int((y[r] != sum(coded(count, r) for r in range(n))).sum())
for c in comm:
    call("ncclCommDestroy", c)
print(f"data_parallel {n}: wrong {wrong}")
sys.exit(wrong != 0)
