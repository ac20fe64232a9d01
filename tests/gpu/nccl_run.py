# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of nccl_rank.py, or of another program, each as if on a host of its own, and passes their output on.

usage: nccl_run.py --ranks N [--env NAME=VALUE]... [--program FILE.py] -- MODE [options of nccl_rank.py]
"""
import argparse
import os
import socket
import subprocess
import sys
import time

p = argparse.ArgumentParser()
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--timeout", type=float, default=150)
p.add_argument("--program", default="nccl_rank.py", help="in this folder")
p.add_argument("--log", default="", help="prefix of the ranks' log files; empty: stderr")
p.add_argument("--env", action="append", default=[])
p.add_argument("rest", nargs=argparse.REMAINDER)
args = p.parse_args()
rest = args.rest[1:] if args.rest[:1] == ["--"] else args.rest

with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
here = os.path.dirname(os.path.abspath(__file__))
procs = []
for rank in range(args.ranks):
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(args.ranks), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(port), NCCL_HOSTID="host%d" % rank, NCCL_SOCKET_IFNAME="lo")
    env.update(e.split("=", 1) for e in args.env)
    err = open("%s.%d" % (args.log, rank), "w") if args.log else None
    # NCCL's log goes to stdout unless it has a file; keep stdout for results.
    if args.log:
        env.setdefault("NCCL_DEBUG_FILE", "%s.nccl.%d" % (args.log, rank))
    procs.append(subprocess.Popen([sys.executable, os.path.join(here, args.program)] + rest, env=env, stderr=err))
# The first rank that fails ends the run: the others would wait for it.
deadline = time.monotonic() + args.timeout
status = 0
left = dict(enumerate(procs))
while left and not status:
    for rank, proc in list(left.items()):
        if proc.poll() is None:
            continue
        del left[rank]
        if proc.returncode:
            print("rank %d ended with %d" % (rank, proc.returncode), file=sys.stderr)
            status = 1
    if left and time.monotonic() > deadline:
        print("ranks %s still run after %g s" % (sorted(left), args.timeout), file=sys.stderr)
        status = 1
    time.sleep(0.05)
for proc in left.values():
    proc.kill()
for proc in left.values():
    proc.wait()
sys.exit(status)
