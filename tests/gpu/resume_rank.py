# SPDX-License-Identifier: Apache-2.0
"""One rank of resume.sh: all-reduces whose sums are of their round and place, until the file SUMS_UNTIL is there. Prints the
number of rounds and of wrong sums."""
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

SIZES = [1, 1000, 300001, 5000003]


def say(line):
    """In one write: the ranks share their output."""
    os.write(1, f"{line}\n".encode())


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    until = os.environ["SUMS_UNTIL"]
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=100))
    places = {n: torch.arange(n, device="cuda", dtype=torch.int32) % 97 for n in SIZES}
    rounds = wrong = over = 0
    while not over:
        n = SIZES[rounds % len(SIZES)]
        x = places[n] + (rank + rounds)
        dist.all_reduce(x)
        wrong += int((x != ranks * (places[n] + rounds) + ranks * (ranks - 1) // 2).sum().item())
        rounds += 1
        # All hear of it in the same round.
        flag = torch.tensor([int(os.path.exists(until))], device="cuda", dtype=torch.int32)
        dist.all_reduce(flag)
        over = int(flag.item())
        if rounds == 1:
            say(f"rank {rank} pid {os.getpid()} runs")
    say(f"rank {rank} rounds {rounds} wrong {wrong}")
    dist.destroy_process_group()
    sys.exit(wrong != 0)


main()
