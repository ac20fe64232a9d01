# SPDX-License-Identifier: Apache-2.0
"""Single calls of stock NCCL's all-reduce, and training steps, over Gantry's plugin and NCCL's own Socket, interleaved in one run.

    gpu_tune.py PART PLUGIN [--ranks N] [--rounds N] [--out FILE.jsonl]     started by gpu_tune.sh, which starts MPS

PART is a list of series (SERIES below). PyTorch is imported once; the ranks of every series are forked from here, each as if on a
host of its own, because NCCL reads its variables once per process. A round runs every series once, and begins with another one
than the round before. Every call is timed by itself on rank 0; figures are over the calls of all rounds.
"""
import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist

KIB, MIB = 1 << 10, 1 << 20
CALLS = {KIB: 400, 64 * KIB: 300, 256 * KIB: 200, MIB: 200, 4 * MIB: 100, 16 * MIB: 50, 128 * MIB: 12}
SOCKET = {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none"}
PRELOAD = "LD_PRELOAD"
BEST = dict(SOCKET, NCCL_SOCKET_NTHREADS="2", NCCL_NSOCKS_PERTHREAD="2")


def series(part, plugin):
    """{label: environment} of a part. With LD_PRELOAD the ranks are children of a process that begins with it."""
    ours = {"NCCL_NET_PLUGIN": plugin, "NCCL_NET": "gantry"}

    def tune(value, **more):
        return dict(ours, GANTRY_TUNE=value, **more)

    sets = {"socket": SOCKET, "socket2x2": BEST, "gantry": ours, "off": tune("off")}
    if os.environ.get("OLD_PLUGIN"):
        sets["old"] = dict(ours, NCCL_NET_PLUGIN=os.environ["OLD_PLUGIN"])
    if part == "sweep":
        sets = {}
        for channels in (1, 2, 4, 8, 16):
            for proto in ("LL", "Simple"):
                sets["%s %d" % (proto, channels)] = tune("off", NCCL_PROTO=proto, NCCL_MIN_NCHANNELS=str(channels),
                                                        NCCL_MAX_NCHANNELS=str(channels))
    if part == "unpack":
        unpack = {"GANTRY_UNPACK": "emulated"}
        by_hand = {"NCCL_NET_GDR_LEVEL": "SYS", "NCCL_NET_GDR_READ": "0", "NCCL_PAT_ENABLE": "0", "NCCL_MIN_NCHANNELS": "8",
                   "NCCL_NTHREADS": "512", "CUDA_MODULE_LOADING": "EAGER"}
        sets = {"host": ours, "unpack": dict(ours, **unpack), "by hand": tune("off", **unpack, **by_hand)}
    dropin = {PRELOAD: os.path.join(os.path.dirname(plugin), "libnccl.so.2"), "GANTRY_TRANSPORT": "net"}
    if part in ("dropin", "train"):
        sets = dict({} if part == "dropin" else sets, gantry=ours, dropin=dropin)
    if part == "variants":
        sets = {"socket2x2": BEST, "gantry": ours}
        for word in os.environ["VARIANTS"].split():
            label, _, settings = word.partition(":")
            env = dict(s.split("=", 1) for s in settings.split(","))
            channels = env.pop("channels", None)
            if env.pop("dropin", None):
                sets[label] = dict(dropin, **env)
                continue
            if channels:
                env.update(GANTRY_TUNE="off", NCCL_PROTO="Simple", NCCL_MIN_NCHANNELS=channels, NCCL_MAX_NCHANNELS=channels)
            sets[label] = dict(ours, **env)
    if part == "choices":
        debug = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING,GRAPH"}
        sets = {label: dict(env, **debug) for label, env in sets.items()}
    return sets


def time_calls(rank, ranks, args):
    rows = []
    for size in args.sizes:
        x = torch.zeros(size // 4, device="cuda", dtype=torch.float32)
        calls = max(3, CALLS[size] // args.divide)
        us = []
        for i in range(calls + max(3, calls // 10)):
            torch.cuda.synchronize()
            t0 = time.perf_counter()
            dist.all_reduce(x)
            torch.cuda.synchronize()
            us.append(round((time.perf_counter() - t0) * 1e6, 1))
        rows.append({"bytes": size, "us": us[-calls:]})
    return rows


def train(wrap, rank, steps=12):
    """Times of steps after the first two, and all losses."""
    # Kernels that add in another order from run to run would make losses differ by themselves.
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
    model = wrap(torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    us, losses = [], []
    for step in range(steps):
        torch.manual_seed(100 * step + rank)
        x = torch.randn(4, 128, 1024, device="cuda")
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        loss = ((model(x) - x.flip(1)) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        torch.cuda.synchronize()
        us.append(round((time.perf_counter() - t0) * 1e6, 1))
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
        losses.append(float(loss))
    return us[2:], losses


def shard(model):
    from torch.distributed.fsdp import fully_shard
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def time_steps(rank, ranks, args):
    rows = []
    for name, wrap in (("ddp", torch.nn.parallel.DistributedDataParallel), ("fsdp", shard)):
        us, losses = train(wrap, rank)
        rows.append({"bytes": name, "us": us, "losses": losses})
    return rows


def rank_main(rank, args, env, port, result):
    # torchrun says how many ranks share the machine, and the plugin takes only its part of the CPUs.
    os.environ.update(env, NCCL_HOSTID="host%d" % rank, NCCL_SOCKET_IFNAME="lo", LOCAL_WORLD_SIZE=str(args.ranks))
    if "NCCL_DEBUG" in env:
        os.environ["NCCL_DEBUG_FILE"] = result + ".nccl.%d" % rank
    if args.part == "train":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=args.ranks,
                            device_id=torch.device("cuda", 0))
    rows = (time_steps if args.part == "train" else time_calls)(rank, args.ranks, args)
    if rank == 0:
        with open(result, "w") as f:
            json.dump(rows, f)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def fork_rank(rank, *rest):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            rank_main(rank, *rest)
            status = 0
        except BaseException as e:
            print("rank %d: %s" % (rank, e), file=sys.stderr, flush=True)
        os._exit(status)
    return pid


def run_apart(args, label, preload):
    """As run_ranks, in a process of its own: this one has loaded NCCL already."""
    command = [sys.executable] + sys.argv + ["--one", label]
    done = subprocess.run(command, env=dict(os.environ, **{PRELOAD: preload}), stdout=subprocess.PIPE, text=True, timeout=args.each + 60)
    return json.loads(done.stdout) if done.returncode == 0 else None


def run_ranks(args, env):
    """The rows of rank 0, or None."""
    result = os.path.join(args.scratch, "result")
    for name in os.listdir(args.scratch):
        if name.startswith("result"):
            os.unlink(os.path.join(args.scratch, name))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    left = {fork_rank(rank, args, env, port, result) for rank in range(args.ranks)}
    deadline, failed = time.monotonic() + args.each, False
    while left:
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.remove(pid)
                failed |= status != 0
        if left and (failed or time.monotonic() > deadline):
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            failed = True
        time.sleep(0.02)
    if failed or not os.path.exists(result):
        return None
    with open(result) as f:
        return json.load(f)


def show_choices(args, label):
    """What NCCL chose, from its log."""
    seen = []
    with open(os.path.join(args.scratch, "result.nccl.0")) as f:
        for line in f:
            text = line.split("NCCL INFO ")[-1].strip()
            if any(w in text for w in ("Bytes -> Algo", "gantry", "channels", "set by environment", "threads")) and text not in seen:
                seen.append(text)
    print("-- %s\n%s" % (label, "\n".join(seen)), flush=True)


def show(rows, args, raw):
    if raw:
        print("raw TCP, 4 streams per direction: %.2f GB/s (%s)" % (statistics.median(raw), " ".join("%.2f" % r for r in raw)))
    labels = list(dict.fromkeys(r["label"] for r in rows))
    peers = ["gantry"] if args.part == "dropin" else [l for l in labels if l.startswith("socket")]
    print("%d ranks; median, p99, worst in us; GB/s bus bandwidth by the median; ratio to %s" %
          (args.ranks, "stock NCCL" if args.part == "dropin" else "Socket's best"))
    for size in list(dict.fromkeys(r["bytes"] for r in rows)):
        of = {l: sorted(u for r in rows if r["label"] == l and r["bytes"] == size for u in r["us"]) for l in labels}
        medians = {l: statistics.median(us) for l, us in of.items() if us}
        base = min((medians[l] for l in medians if l in peers), default=None)
        for l, us in of.items():
            if not us:
                continue
            gbs = size / medians[l] / 1e3 * 2 * (args.ranks - 1) / args.ranks if isinstance(size, int) else 0
            each = [statistics.median(r["us"]) for r in rows if r["label"] == l and r["bytes"] == size]
            print("%10s  %-12s %10.1f %10.1f %10.1f %8.2f GB/s %6s   rounds %s" % (
                size, l, medians[l], us[min(len(us) - 1, int(len(us) * 0.99))], us[-1], gbs,
                "%.2f" % (base / medians[l]) if base else "-", " ".join("%.0f" % m for m in each)))
    losses = {}
    for r in rows:
        if "losses" in r:
            losses.setdefault(r["bytes"], set()).add(tuple(r["losses"]))
    for name, kinds in losses.items():
        print("%s: %s" % (name, "all losses are equal" if len(kinds) == 1 else "LOSSES DIFFER: %s" % sorted(kinds)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("part", choices=["compare", "sweep", "variants", "unpack", "dropin", "train", "choices"])
    p.add_argument("plugin")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--sizes", type=lambda s: [int(x) for x in s.split(",")], default=list(CALLS))
    p.add_argument("--only", default="", help="labels, separated by commas")
    p.add_argument("--each", type=float, default=60, help="seconds after which the ranks of one series are killed")
    p.add_argument("--limit", type=float, default=500, help="seconds after which no further series begins")
    p.add_argument("--raw", default="", help="raw_streams")
    p.add_argument("--one", default="", help="this series once; its rows as JSON on stdout")
    p.add_argument("--scratch", required=True)
    p.add_argument("--out", default="/dev/null")
    args = p.parse_args()
    args.divide = 100 if args.part == "choices" else 1
    if args.part == "choices":
        args.rounds = 1
    sets = {l: e for l, e in series(args.part, args.plugin).items() if not args.only or l in args.only.split(",")}
    if args.one:
        rows = run_ranks(args, sets[args.one])
        print(json.dumps(rows))
        return 0 if rows else 1
    begin, rows, raw = time.monotonic(), [], []
    out = open(args.out, "a")
    for k in range(args.rounds):
        if args.raw:
            done = subprocess.run([args.raw, "4", "1"], capture_output=True, text=True, timeout=30)
            raw.append(json.loads(done.stdout)["gbs_per_direction"])
            out.write(done.stdout)
        labels = list(sets)
        for label in labels[k % len(labels):] + labels[:k % len(labels)]:
            if time.monotonic() - begin > args.limit:
                print("round %d: no time for %s" % (k + 1, label), flush=True)
                continue
            t0 = time.monotonic()
            env = sets[label]
            got = run_apart(args, label, env[PRELOAD]) if PRELOAD in env else run_ranks(args, env)
            print("round %d %s: %.1f s" % (k + 1, label, time.monotonic() - t0), file=sys.stderr, flush=True)
            if got is None:
                print("round %d: %s failed" % (k + 1, label), flush=True)
                continue
            if args.part == "choices":
                show_choices(args, label)
            for row in got:
                rows.append(dict(row, label=label, ranks=args.ranks, round=k))
                out.write(json.dumps(rows[-1]) + "\n")
            out.flush()
    show(rows, args, raw)
    return 0


sys.exit(main())
