# SPDX-License-Identifier: Apache-2.0
"""PyTorch after a rank was killed: the others get an error within the deadline, abort their process group, make another
without it and go on. Starts its own ranks: `again.py RANKS` under `gantry run` (without -n), which preloads the library.
"""
import datetime
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

DEADLINE = 3  # GANTRY_TIMEOUT of the ranks, seconds


def start(rank, n, port):
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n,
                            timeout=datetime.timedelta(seconds=30))
    x = torch.arange(1000, device="cuda", dtype=torch.float32) + rank
    dist.all_reduce(x)
    want = n * torch.arange(1000, device="cuda", dtype=torch.float32) + n * (n - 1) / 2
    assert torch.equal(x, want), f"rank {rank} of {n}: wrong sums"


def rank_main(rank, n, victim, ports):
    torch.cuda.set_device(0)
    start(rank, n, ports[0])
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.time()
    x = torch.ones(1 << 20, device="cuda")
    try:
        while True:
            # Not torch.cuda.synchronize(): a stream that waits for a lost rank ends with abort, here as in NCCL.
            dist.all_reduce(x, async_op=True).wait()
            if time.time() > begin + 20:
                sys.exit(f"rank {rank}: no error 20 s after rank {victim} was killed")
    except Exception as e:  # torch has no type of its own for all of them
        took = time.time() - begin
        print(f"rank {rank}: after {took:.1f} s: {str(e).splitlines()[0][:160]}", flush=True)
        if took > DEADLINE + 1:
            sys.exit(f"rank {rank}: later than the deadline")
    dist.distributed_c10d._abort_process_group()
    start(rank - (rank > victim), n - 1, ports[1])
    print(f"rank {rank}: again with {n - 1} ranks: right", flush=True)
    dist.destroy_process_group()


def main():
    if len(sys.argv) > 2:
        rank, n, victim = (int(a) for a in sys.argv[1:4])
        return rank_main(rank, n, victim, [int(p) for p in sys.argv[4:6]])
    n = int(sys.argv[1])
    victim = n - 1
    base = 20000 + os.getpid() % 20000
    env = dict(os.environ, GANTRY_TIMEOUT=f"{DEADLINE}s", TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_BLOCKING_WAIT="1")
    ranks = [subprocess.Popen([sys.executable, __file__, str(r), str(n), str(victim), str(base), str(base + 1)], env=env)
             for r in range(n)]
    deadline = time.time() + 90
    bad = 0
    for r, p in enumerate(ranks):
        try:
            bad += p.wait(max(1, deadline - time.time())) != (-signal.SIGKILL if r == victim else 0)
        except subprocess.TimeoutExpired:
            print(f"rank {r} hangs")
            p.kill()
            bad += 1
    print(f"again with {n} ranks: {bad} bad")
    return bad != 0


sys.exit(main())
