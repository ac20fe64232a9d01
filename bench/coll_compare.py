#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Gantry's collectives against OpenMPI and gloo on this machine, interleaved in one run.

    bench/coll_compare.py [--build DIR] [--rounds N] [--ops LIST] [--ranks LIST] [--transports LIST] [--sizes LIST]
                          [--required-only] [--peers-only] [--buffers KIND] [--priority] [--install]
                          [--others SHARE] [--json FILE]

The peers are Debian's packages (libopenmpi-dev, openmpi-bin, libgloo-dev); --install has apt-get install what is
missing. Their programs, bench/coll_peers/, are compiled into the build folder. A cell is an operation, a number of
ranks, a transport (net: TCP over loopback; shm: shared memory, which gloo does not have) and a size. For every cell:

1. Each peer runs once with each of its settings below (TUNED, GLOO); the fastest is the one that is compared.
2. Every round runs Gantry and the peers one after the other, and begins with another one than the round before. A run's
   figure is the median of single calls; a call takes as long as its slowest rank (bench/coll_peers/peer.h).
3. The ratio of a round is the faster peer's time over Gantry's: above 1, Gantry is faster. The median of the ratios is
   shown with its quartiles, beside what is required. The bytes are the same, so it is the ratio of bandwidths too.

Runs while other processes had more than --others of the CPUs are left out of the ratios. --priority puts every run
before the processes of other sessions (autogroup), for a machine that is not idle; it needs root. The exit status is
1 if a requirement is missed or a result is wrong, 77 if a peer is missing or too little was measured alone.

Settings: two ranks have a CPU each, on both sides (--bind-to core; gantry perf pins too); four ranks on two CPUs are
not bound, and OpenMPI yields when idle. gloo's thread of its own makes it slow when small; hd_sync does without.

Anchors of all_reduce on two Neoverse-N1 cores, us, best setting, with --priority (2026-11-16). gloo's at a load of 13
to 44, where OpenMPI took 13900 and 219000 for the two largest with 2 ranks, and 40600 with 4; the others at 2 to 4:

                             8 B    4 KiB   64 KiB    1 MiB   16 MiB   256 MiB
    2 ranks, net: OpenMPI    7.9     10.7     46.8      634    10530    179700
                  gloo      23.8     25.6     40.1      438    14000    210000
    4 ranks, net: OpenMPI   60.9     84.6      276     2192    36400
                  gloo       549              7340             34100
    2 ranks, shm: OpenMPI    0.6      3.6     20.7      327     5180     93900

docs/design/0021 says what is possible at all.
"""
import argparse
import collections
import json
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ["libopenmpi-dev", "openmpi-bin", "libgloo-dev"]
OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
SIZES = ["8", "4k", "64k", "1M", "16M", "256M"]
TUNED = {  # OpenMPI's coll/tuned: its name of the operation, and (number, segment) worth trying beside its own choice
    "all_reduce": ("allreduce", [(3, 0), (4, 0), (5, 1 << 18), (5, 1 << 20), (6, 0)]),
    "all_gather": ("allgather", [(1, 0), (4, 0), (5, 0), (6, 0)]),
    "reduce_scatter": ("reduce_scatter_block", [(2, 0), (3, 0), (4, 0)]),
    "all_to_all": ("alltoall", [(1, 0), (2, 0), (4, 0)]),
    "broadcast": ("bcast", [(1, 0), (3, 1 << 17), (5, 1 << 17), (6, 0)]),
}
GLOO = {"all_reduce": ["ring", "bcube", "hd", "hd_sync", "ring_chunked"], "reduce_scatter": ["hd", "hd_sync"]}
SECONDS = {"tune": "0.15", "measure": "0.5"}
TIMEOUT_S = 240
FIGURES = ("iters", "time_us", "algbw_gbs", "busbw_gbs", "min_us", "p25_us", "p75_us", "p99_us", "time_us_p99",
           "loop_us")

Cell = collections.namedtuple("Cell", "op ranks transport bytes")


def size_of(text):
    return int(text.rstrip("kKMG")) << {"k": 10, "K": 10, "M": 20, "G": 30}.get(text[-1], 0)


def size_name(n):
    return f"{n >> 20} MiB" if n >> 20 else f"{n >> 10} KiB" if n >> 10 else f"{n} B"


def required(cell):
    """(least, aim) of the ratio in this cell; None: nothing is asked for."""
    net, large = cell.transport == "net", cell.bytes >= 16 << 20
    if cell.op != "all_reduce":
        return (1.0, None) if cell.bytes >= 64 << 10 else None
    if net and large:
        return (1.6, 2.0) if cell.ranks == 2 else (1.4, None)
    if net and cell.bytes == 8:
        return 1.0, None
    if cell.transport == "shm" and cell.bytes == 4096:
        return 1 / 0.8, None
    return (1.5, None) if cell.transport == "shm" and cell.bytes == 16 << 20 else None


class Machine:
    """Runs commands, and knows how much of the CPUs others had meanwhile."""

    def __init__(self, priority, others_most):
        self.priority = priority
        self.others_most = others_most

    @staticmethod
    def busy():
        with open("/proc/stat") as f:
            v = [int(x) for x in f.readline().split()[1:9]]
        hz = os.sysconf("SC_CLK_TCK")
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        # user, nice, system and steal; interrupts are mostly the network that is measured
        return (v[0] + v[1] + v[2] + v[7]) / hz - ours.ru_utime - ours.ru_stime

    def prefer(self):
        """In the child, which has a session of its own."""
        if self.priority:
            with open("/proc/self/autogroup", "w") as f:
                f.write("-15")

    def run(self, command):
        """(objects that it printed, share of the CPUs that others had, what went wrong or None)"""
        before, start = self.busy(), time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True, preexec_fn=self.prefer)
        try:
            out, err = child.communicate(timeout=TIMEOUT_S)
        except BaseException as e:  # also when this script is ended
            # mpirun ends its ranks when it is asked to; the others' ranks are of its group or die with it.
            os.killpg(child.pid, signal.SIGTERM)
            out, err = child.communicate()
            err += f"no end after {TIMEOUT_S} s"
            if not isinstance(e, subprocess.TimeoutExpired):
                raise
        others = (self.busy() - before) / (time.monotonic() - start) / os.cpu_count()
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        error = None if child.returncode == 0 else f"exit status {child.returncode}: {err.strip()[-300:]}"
        return rows, max(0.0, others), error


def mca(name, value):
    return ["--mca", name, str(value)]


def sizes(cell):
    return ["-b", str(cell.bytes), "-e", str(cell.bytes)]


class OpenMpi:
    name = "openmpi"

    def __init__(self, folder):
        self.program = os.path.join(folder, "mpi_coll")

    @staticmethod
    def missing():
        there = shutil.which("mpicc.openmpi") and shutil.which("mpirun.openmpi")
        return None if there else "libopenmpi-dev, openmpi-bin"

    def build(self, source):
        compile_c("mpicc.openmpi", [os.path.join(source, f) for f in ("mpi_coll.c", "peer.c")], self.program)

    @staticmethod
    def settings(cell):
        """name -> options of mpirun"""
        word, algorithms = TUNED[cell.op]
        ways = {"default": []}
        for number, segment in algorithms:
            if cell.bytes <= segment:
                continue
            options = mca("coll_tuned_use_dynamic_rules", 1) + mca(f"coll_tuned_{word}_algorithm", number)
            options += mca(f"coll_tuned_{word}_algorithm_segmentsize", segment) if segment else []
            ways[f"tuned {number}" + (f" segment {segment >> 10}k" if segment else "")] = options
        if cell.transport == "shm":
            ways["coll sm"] = mca("coll_sm_priority", 95)
            ways["no cma"] = mca("btl_vader_single_copy_mechanism", "none")
        return ways

    def command(self, cell, setting, seconds):
        c = ["mpirun.openmpi", "--allow-run-as-root", "-n", str(cell.ranks)] + mca("pml", "ob1")
        if cell.ranks <= os.cpu_count():
            c += ["--bind-to", "core"]
        else:
            c += ["--oversubscribe", "--bind-to", "none"] + mca("mpi_yield_when_idle", 1)
        if cell.transport == "net":
            c += mca("btl", "tcp,self") + mca("btl_tcp_if_include", "lo")
        else:
            c += mca("btl", "vader,self")
        return c + self.settings(cell)[setting] + [self.program, cell.op, *sizes(cell), "-s", seconds, "-a", setting]


class Gloo:
    name = "gloo"

    def __init__(self, folder):
        self.program = os.path.join(folder, "gloo_coll")

    @staticmethod
    def missing():
        return None if os.path.exists("/usr/include/gloo/allreduce.h") else "libgloo-dev"

    def build(self, source):
        shared = self.program + "-peer.o"
        compile_c("gcc", ["-c", os.path.join(source, "peer.c")], shared)
        check(["g++", "-std=c++14", "-D_GNU_SOURCE", "-O3", "-Wall", "-Wextra", "-o", self.program,
               os.path.join(source, "gloo_coll.cc"), shared, "-lgloo", "-lpthread"])

    @staticmethod
    def settings(cell):
        if cell.transport != "net":
            return {}
        # Threads that poll need a CPU each. With more than the sockets hold, both sides wait in their writes until gloo
        # gives up: at 16 MiB one run in three.
        polls = cell.ranks <= os.cpu_count() and cell.bytes <= 1 << 20
        return {a or "default": None for a in GLOO.get(cell.op, [""]) if polls or a != "hd_sync"}

    def command(self, cell, setting, seconds):
        algo = [] if setting == "default" else ["-a", setting]
        return [self.program, cell.op, "-r", str(cell.ranks), *sizes(cell), "-s", seconds] + algo


class Gantry:
    name = "gantry"

    def __init__(self, build, buffers):
        self.program = os.path.join(build, "gantry")
        self.buffers = buffers

    def command(self, cell, _setting, _seconds):
        return [self.program, "perf", cell.op, "--ranks", str(cell.ranks), "--transport", cell.transport,
                "--buffers", self.buffers or ("plain" if cell.transport == "net" else "shared"), "--in-place", place_of(cell), "--timing", "call", *sizes(cell), "--json"]


def place_of(cell):
    """A broadcast of the peers has one buffer."""
    return "yes" if cell.op == "broadcast" else "no"


def check(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")


def compile_c(compiler, what, output):
    check([compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-o", output] + what)


def measure(machine, library, cell, setting, seconds):
    """One run as one line of the output; None after a message if there is no result."""
    rows, others, error = machine.run(library.command(cell, setting, seconds))
    for row in reversed(rows):
        row.update({k[len("in_place_"):]: v for k, v in row.items() if k.startswith("in_place_") and v is not None})
        if row.get("time_us") is not None and row.get("bytes") == cell.bytes:
            keep = {k: row[k] for k in FIGURES if k in row}
            return {"library": library.name, **cell._asdict(), "setting": setting, **keep,
                    "wrong": row.get("wrong") or 0, "others": round(others, 3)}
    print(f"{library.name}, {setting}: {cell}: no result; {error}", file=sys.stderr)
    return None


def tune(machine, peers, cell):
    """The fastest setting of each peer. One that fails or computes wrongly is none."""
    best = {}
    for peer in peers:
        rows = [measure(machine, peer, cell, s, SECONDS["tune"]) for s in peer.settings(cell)]
        rows = [r for r in rows if r and not r["wrong"]]
        if rows:
            best[peer] = min(rows, key=lambda r: r["time_us"])["setting"]
    return best


def measure_cell(machine, gantry, best, cell, rounds, out):
    """library name -> times of the rounds, None where a run gave none or was not alone"""
    turn = list(best.items()) + ([(gantry, "default")] if gantry else [])
    times = collections.defaultdict(list)
    wrong = 0
    for n in range(rounds):
        for library, setting in turn[n % len(turn):] + turn[:n % len(turn)]:
            row = measure(machine, library, cell, setting, SECONDS["measure"])
            wrong += row["wrong"] if row else 0
            if row:
                out.write(json.dumps({**row, "round": n}) + "\n")
                out.flush()
            quiet = row and row["others"] <= machine.others_most
            times[library.name].append(row["time_us"] if quiet else None)
    return times, wrong


def summary(values):
    """median and quartiles of what is there, or None"""
    values = [v for v in values if v is not None]
    if not values:
        return None
    q = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return statistics.median(values), q[0], q[2]


def judge(cell, times, best):
    """Prints the cell's line; the verdict: ok, missed, unknown or None if nothing is required."""
    peers = [p.name for p in best]
    ratios = []
    for n in range(len(next(iter(times.values()), []))):
        at = [times[p][n] for p in peers]
        ours = times["gantry"][n] if times.get("gantry") else None
        ratios.append(min(at) / ours if ours and at and None not in at else None)
    text = f"{cell.op:15}{cell.ranks:2} {cell.transport:4}{size_name(cell.bytes):>8}"
    for name in ("gantry", "openmpi", "gloo"):
        s = summary(times.get(name, []))
        text += f"{s[0]:12.5g}" if s else f"{'-':>12}"
    s, need, verdict = summary(ratios), required(cell), None
    text += f"{s[0]:8.3f} ({s[1]:.3f} {s[2]:.3f})" if s else f"{'-':>8} {'':13}"
    if need:
        verdict = "unknown" if not s else "ok" if s[0] >= need[0] else "missed"
        aim = f", aim {need[1]}" + (" reached" if s and s[0] >= need[1] else "") if need[1] else ""
        text += f"  >= {need[0]:.2f}{aim}: {verdict}"
    print(text + "   " + ", ".join(f"{p.name}: {s}" for p, s in best.items()), flush=True)
    return verdict


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--ops", default=",".join(OPS))
    p.add_argument("--ranks", default="2,4")
    p.add_argument("--transports", default="net,shm")
    p.add_argument("--sizes", default=",".join(SIZES))
    p.add_argument("--required-only", action="store_true", help="only cells of which something is required")
    p.add_argument("--peers-only", action="store_true", help="without Gantry: anchors")
    p.add_argument("--buffers", choices=["shared", "plain"],
                   help="of Gantry: memory that other processes can map (shared; without this over shm), or private "
                        "memory on huge pages, as the peers have it (plain; without this over net)")
    p.add_argument("--priority", action="store_true", help="before other sessions' processes; needs root")
    p.add_argument("--others", type=float, help="most that others may have of the CPUs (0.25; with --priority 1)")
    p.add_argument("--install", action="store_true", help="apt-get install the peers that are missing")
    p.add_argument("--json", help="append every run to this file, as JSON lines")
    return p.parse_args()


def cells(a):
    for op in a.ops.split(","):
        for ranks in a.ranks.split(","):
            for transport in a.transports.split(","):
                for size in a.sizes.split(","):
                    cell = Cell(op, int(ranks), transport, size_of(size))
                    # all others share their bytes among the ranks
                    enough = op in ("all_reduce", "broadcast") or cell.bytes >= 4 * cell.ranks
                    if enough and (required(cell) or not a.required_only):
                        yield cell


def find_peers(a):
    """Compiled, or an exit with status 77."""
    folder = os.path.join(a.build, "coll_peers")
    os.makedirs(folder, exist_ok=True)
    peers = [OpenMpi(folder), Gloo(folder)]
    missing = [p.missing() for p in peers if p.missing()]
    if missing and a.install:
        check(["apt-get", "install", "-y", "-q", "--no-install-recommends"] + PACKAGES)
    elif missing:
        print(f"missing: {', '.join(missing)} (--install gets them)", file=sys.stderr)
        sys.exit(77)
    for p in peers:
        p.build(os.path.join(HERE, "coll_peers"))
    return peers


def head(a):
    load = " ".join(open("/proc/loadavg").read().split()[:3])
    return {"bench": "coll_compare", "date": time.strftime("%FT%TZ", time.gmtime()), "rounds": a.rounds, "load": load,
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}",
            "note": f"{a.buffers or 'plain (net) or shared (shm)'} buffers" + (", before other sessions (autogroup)" if a.priority else "")}


def main():
    a = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    peers = find_peers(a)
    gantry = None if a.peers_only else Gantry(a.build, a.buffers)
    # With priority, others have what a library leaves over that sleeps: no reason to leave its run out.
    machine = Machine(a.priority, a.others if a.others is not None else 1 if a.priority else 0.25)
    verdicts, wrong = collections.Counter(), 0
    with open(a.json or os.devnull, "a") as out:
        out.write(json.dumps(head(a)) + "\n")
        print(f"{'operation':15}ranks{'size':>10}{'gantry us':>12}{'openmpi us':>12}{'gloo us':>12}   ratio (quartiles)"
              "   required; peers' settings")
        for cell in cells(a):
            best = tune(machine, peers, cell)
            times, bad = measure_cell(machine, gantry, best, cell, a.rounds, out)
            wrong += bad
            verdicts[judge(cell, times, best)] += 1
    if wrong:
        print(f"{wrong} wrong elements")
    if a.peers_only:
        return wrong > 0
    print(f"{verdicts['ok']} requirements met, {verdicts['missed']} missed, {verdicts['unknown']} not judged")
    return 1 if wrong or verdicts["missed"] else 77 if verdicts["unknown"] else 0


if __name__ == "__main__":
    sys.exit(main())
