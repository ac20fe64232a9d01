# SPDX-License-Identifier: Apache-2.0
"""One rank of all-reduces through NCCL's C API, on the libnccl.so.2 that is loaded, with PyTorch's memory, streams and events.
Rank STOPPED is stopped by stopped.sh in the middle of it. The others check that their stream does not get on, that the error
names that rank, that an abort ends the wait, and that a communicator of those that are left works on the same stream.

    STOPPED=2 DIR=... gantry run -n 4 -- python3 stopped_rank.py
"""
import ctypes
import os
import re
import sys
import threading
import time

import torch

rank, n, stopped = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["STOPPED"])
folder, deadline = os.environ["DIR"], float(os.environ["DEADLINE"])
COUNT, HELD_S, AFTER = 1 << 22, 5.0, 20
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetLastError.restype = nccl.ncclGetErrorString.restype = ctypes.c_char_p
nccl.ncclGetLastError.argtypes = [ctypes.c_void_p]


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def say(text):
    # One write: print's two would mix with those of other ranks where Python does not buffer.
    os.write(1, ("rank %d %s\n" % (rank, text)).encode())


def fail(text):
    say("FAILED: " + text)
    os._exit(1)


def check(result, what):
    if result != 0:
        fail("%s: %d, %s" % (what, result, nccl.ncclGetLastError(None).decode()))


def make_comm(name, place, ranks):
    """The first of its ranks makes the id and leaves it in a file."""
    path, own = os.path.join(folder, name), Id()
    if place == 0:
        check(nccl.ncclGetUniqueId(ctypes.byref(own)), "ncclGetUniqueId")
        with open(path + ".new", "wb") as f:
            f.write(ctypes.string_at(ctypes.byref(own), 128))
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as f:
        ctypes.memmove(ctypes.byref(own), f.read(), 128)
    comm = ctypes.c_void_p()
    check(nccl.ncclCommInitRank(ctypes.byref(comm), ranks, own, place), "ncclCommInitRank")
    return comm


def async_error(comm):
    """0: there is none."""
    code = ctypes.c_int(0)
    check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(code)), "ncclCommGetAsyncError")
    return 0 if code.value == 7 else code.value  # 7: in progress


def reduce(comm, stream, x, y):
    check(nccl.ncclAllReduce(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_size_t(COUNT), 7, 0, comm,
                             ctypes.c_void_p(stream.cuda_stream)), "ncclAllReduce")  # float32, sum


torch.cuda.set_device(0)
base = (torch.arange(COUNT, device="cuda") % 1000).float()
x, y = torch.empty_like(base), torch.empty_like(base)
stream, event = torch.cuda.Stream(), torch.cuda.Event()
torch.cuda.synchronize()


def round_of(comm, k, place):
    with torch.cuda.stream(stream):
        torch.add(base, float(place + k % 7), out=x)
        y.fill_(-1.0)
        reduce(comm, stream, x, y)
        event.record(stream)


def wrong_of(k, ranks):
    want = base * ranks + float(ranks * (ranks - 1) // 2 + ranks * (k % 7))
    return int((y != want).sum())


comm = make_comm("first", rank, n)
k, error = 0, 0
while not error:
    round_of(comm, k, rank)
    begun = time.monotonic()
    while not event.query():
        error = async_error(comm)
        if error:
            break
        if time.monotonic() - begun > deadline + 20:
            fail("no error %.0f s after round %d began" % (deadline + 20, k))
    if not error:
        if wrong_of(k, n):
            fail("round %d: %d wrong" % (k, wrong_of(k, n)))
        k += 1
        if k == 20:
            say("pid %d runs" % os.getpid())
known = time.monotonic() - begun
text = nccl.ncclGetLastError(comm).decode()
if not re.search(r"rank %d\b" % stopped, text):
    fail("the error does not name rank %d: %s" % (stopped, text))
if known > deadline + 3:
    fail("the error came %.1f s after the call" % known)
say("error %d after %.1f s and %d rounds: %s" % (error, known, k, text))

end = time.monotonic() + HELD_S
while time.monotonic() < end:
    if event.query() or stream.query():
        fail("its stream completed after the error")
    time.sleep(0.01)
say("stream waits for %.0f s" % HELD_S)

begun = time.monotonic()
thread = threading.Thread(target=lambda: check(nccl.ncclCommAbort(comm), "ncclCommAbort"))
thread.start()
while not event.query():
    if time.monotonic() - begun > 30:
        fail("the abort does not end its stream")
    time.sleep(0.001)
ended = time.monotonic() - begun
thread.join()
say("abort: stream ended after %.3f s, call returned after %.3f s" % (ended, time.monotonic() - begun))
if ended > 1.0:
    fail("the abort took more than a second")

left = [r for r in range(n) if r != stopped]
comm = make_comm("second", left.index(rank), len(left))
for k in range(AFTER):
    round_of(comm, k, left.index(rank))
    stream.synchronize()
    if wrong_of(k, len(left)):
        fail("round %d of those that are left: %d wrong" % (k, wrong_of(k, len(left))))
check(nccl.ncclCommDestroy(comm), "ncclCommDestroy")
say("ok: %d rounds of the %d that are left, wrong 0" % (AFTER, len(left)))
open(os.path.join(folder, "done.%d" % rank), "w").close()
while len([f for f in os.listdir(folder) if f.startswith("done.")]) < len(left):
    time.sleep(0.05)
sys.stdout.flush()
os._exit(0)
