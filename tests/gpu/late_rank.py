# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch, of which the last but one makes a call LATE_S seconds after the others: at `init`, at the first all_reduce (`coll`),
at a `split` (new_group, and its first all_reduce) or at `destroy`. Every sum is compared. Prints how long the call took here.

    gantry run -n RANKS -- python3 late_rank.py CASE
"""
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

case, late_s = sys.argv[1], float(os.environ["LATE_S"])
rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=600))
store = dist.distributed_c10d._get_default_store()


def check_sum(group, ranks):
    x = torch.arange(100000, device="cuda", dtype=torch.float32) % 13 + rank
    dist.all_reduce(x, group=group)
    torch.cuda.synchronize()
    want = len(ranks) * (torch.arange(100000, device="cuda", dtype=torch.float32) % 13) + sum(ranks)
    wrong = int((x != want).sum())
    if wrong:
        print(f"rank {rank} {case}: {wrong} wrong", flush=True)
        sys.exit(1)


def meet(where):
    """By the store, without a communicator."""
    store.add(where, 1)
    while int(store.add(where, 0)) < n:
        time.sleep(0.05)


def wait_if_late():
    """Brings all to this point; the odd rank goes on later. Returns when this rank went on."""
    meet("here")
    if rank == n - 2:
        time.sleep(late_s)
    return time.monotonic()


everybody = list(range(n))
if case == "init":  # the communicator is made by the first call
    began = wait_if_late()
    check_sum(None, everybody)
elif case == "coll":  # it is there, with connections for a broadcast of a few bytes alone
    x = torch.full((4,), float(rank), device="cuda")
    dist.broadcast(x, 0)
    torch.cuda.synchronize()
    began = wait_if_late()
    check_sum(None, everybody)
elif case == "split":
    check_sum(None, everybody)
    began = wait_if_late()
    halves = [dist.new_group(everybody[i::2], use_local_synchronization=False) for i in range(2)]
    check_sum(halves[rank % 2], everybody[rank % 2 :: 2])
else:
    check_sum(None, everybody)
    began = wait_if_late()
dist.destroy_process_group()
# One write, as in stopped_rank.py.
os.write(1, f"rank {rank} {case} wrong 0, {time.monotonic() - began:.1f} s\n".encode())
store.add("over", 1)
while rank == 0 and int(store.add("over", 0)) < n:  # the store is in this process
    time.sleep(0.05)
