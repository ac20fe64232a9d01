# SPDX-License-Identifier: Apache-2.0
"""Times the messages of stock NCCL's all-reduce by ring over a plugin, without NCCL and without a GPU: drivers/nccl_job of a build.

    nccl_pattern.py BUILD [LABEL:NAME=VALUE,... | LABEL:plugin=FILE,...]...

Variants are interleaved; figures are medians over ROUNDS (5): of the median call in us, of CPU seconds per GB that the job moved, and,
where `perf` may count them, of system calls per MiB; both of all ranks and threads together, with what starting and connecting takes. SIZES,
CHANNELS, RANKS and CALLS are lists and numbers in the environment. The first variant is the plugin of BUILD as it is.
"""
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys

SLICE_MAX = 1 << 20  # a quarter of NCCL's buffer


def numbers(name, usual):
    return [int(x) for x in os.environ.get(name, usual).replace(",", " ").split()]


def counter():
    """A command before the job's that counts its system calls on stderr, if there is one."""
    count = ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter"]
    works = shutil.which("perf") and subprocess.run(count + ["true"], capture_output=True).returncode == 0
    return count if works else []


def run(command, env):
    """The job's median call in us, CPU seconds and system calls; None: it failed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(command, env=dict(os.environ, GANTRY_IFNAME="lo", NCCL_SOCKET_IFNAME="lo", **env), capture_output=True,
                         text=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if out.returncode:
        return None
    calls = re.search(r"^(\d+),.*sys_enter", out.stderr, re.M)
    return (float(out.stdout.split()[0]), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            int(calls[1]) if calls else None)


def main():
    build = sys.argv[1]
    count = counter()
    variants = {"as it is": {}}
    for word in sys.argv[2:]:
        label, _, settings = word.partition(":")
        variants[label] = dict(s.split("=", 1) for s in settings.split(",") if s)
    ranks, calls, rounds = (numbers(n, u)[0] for n, u in (("RANKS", "2"), ("CALLS", "200"), ("ROUNDS", "5")))
    for size in numbers("SIZES", "262144 1048576 4194304"):
        for channels in numbers("CHANNELS", "1 2 4 8"):
            message = size // (2 * ranks * channels)
            if message > SLICE_MAX:
                continue
            got = {label: [] for label in variants}
            steps = 4 * (ranks - 1)
            moved = calls * ranks * channels * steps * message
            for _ in range(rounds):
                for label, env in variants.items():
                    plugin = env.get("plugin", build + "/lib/libnccl-net-gantry.so")
                    job = [build + "/drivers/nccl_job", str(ranks), str(channels), str(calls), str(steps), str(message)]
                    figures = run(count + job + ["time", plugin], env)
                    if figures:
                        got[label].append(figures)
            for label, rows in got.items():
                text = "failed"
                if rows:
                    us, cpu, entered = zip(*rows)
                    text = "%8.1f us (%.1f to %.1f), %.3f s/GB" % (
                        statistics.median(us), min(us), max(us), statistics.median(cpu) / moved * 1e9)
                    if None not in entered:
                        text += ", %.1f calls/MiB" % (statistics.median(entered) / moved * 2**20)
                print("%9d B, %d channels, messages of %7d  %-16s %s" % (size, channels, message, label, text), flush=True)


main()
