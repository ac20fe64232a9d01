#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A campaign of faults against connections under load; `make chaos` runs it, docs/chaos.md describes it.

Two hosts, which are network namespaces, have four rails between them; a middlebox in a third namespace forwards the
frames. A load moves numbered messages in both directions and checks every byte; faults come one after the other, drawn
from a seed. A connection has to survive a fault, or to end on both sides with an error that names the peer, within the
deadline and a second: the table FAULTS says which. Exit status 0: nothing was wrong. 77: it cannot be run here."""
import argparse
import bisect
import errno
import mmap
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

RAILS = 4
LOADS = ("net", "sendrecv", "all_reduce", "rx")
FAULTS_PER_LOAD = 6  # then another one has its turn
IN_FLIGHT = 16  # messages per side that may come although nothing passes any more
# In memory: whoever writes to a mapped file waits for the disk at times.
FOLDERS = "/dev/shm" if os.path.isdir("/dev/shm") else None
CGROUPS = Path("/sys/fs/cgroup/memory")
BUSY_AGAIN = 3.0  # s for a load that pauses to move something again
LATE = 1.0  # s beyond the deadline for an error to be there
SETTLED = 0.5  # s over which a rate is measured
ENOUGH = 0.9  # of the rate that the rails give: back again
BACK, BACK_AFTER_OUTAGE = 1.0, 3.0  # s for that
STOOD = 0.2  # s that the middlebox or this program did not run: TCP's timers go off, and no rate says anything
STARVED = 0.5  # of the time, that a thread of the load waited for a CPU: the same
STEADY = 1.0  # s over which that rate holds: longer than messages that waited for one before them need to come
START = 30.0  # s for a load to begin, and to end after an error: only a hang takes so long

SURVIVE, SLOW, ERROR = "survive", "slow", "error"
# Loads of which all connections resume, where GANTRY_RESUME is on. A communicator has a control plane besides, and the
# pipeline its own way to meet: there either outcome is right for what is expected to be survived.
RESUMING = ("net",)


LOST = ("ERR_PEER_LOST", "ERR_PEER_SILENT", "ERR_PEER_CLOSED", "ERR_TIMEOUT", "ERR_UNREACHABLE")
DAMAGED = ("ERR_CORRUPT",)


class Fault:
    """length: in deadlines; 0: it is over at once. today, resumed: outcomes that are right with connections that end
    with their sockets, and with those that resume (GANTRY_RESUME). out: rails that carry nothing, or less, meanwhile.
    codes: of an error, if that is right."""

    def __init__(self, name, length, today, resumed, about, act, out=0, codes=LOST):
        self.name, self.length, self.about, self.act = name, length, about, act
        self.today, self.resumed, self.out, self.codes = today, resumed, out, codes


# ---- the network ----


def run(*command, check=True):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and done.returncode:
        raise Broken(f"{' '.join(command)}: {done.stdout.strip()}")
    return done.stdout


def batch(command, name, lines):
    """Commands of ip or tc in a namespace."""
    done = subprocess.run([command, "-n", name, "-batch", "-"], input="\n".join(lines) + "\n", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Broken(f"{command}: {done.stdout.strip()}")


class Broken(Exception):
    """The campaign itself cannot go on."""


class Quiet(Broken):
    """No connection has moved anything on the rail since the middlebox was last asked."""


class Network:
    def __init__(self, options):
        self.a, self.b, self.m = (f"gchaos-{os.getpid()}-{x}" for x in "abm")
        self.rate, self.box, self.wire, self.kills = options.rate, None, None, False
        self.drivers, self.seed = Path(options.build) / "drivers", options.seed

    def up(self, folder):
        for name in (self.a, self.b, self.m):
            run("ip", "netns", "add", name)
        for side, name in zip("ab", (self.a, self.b)):
            batch("ip", name, [f"link add rail{i} type veth peer name {side}{i} netns {self.m}" for i in range(RAILS)])
            batch("ip", name, ["link set lo up"] + [line for i in range(RAILS) for line in self.settings(name, i)])
            self.limit(name, range(RAILS))
        batch("ip", self.m, [f"link set {side}{i} up" for side in "ab" for i in range(RAILS)])
        until(self.all_up, 10, "the rails do not come up")
        wire = Path(folder) / "wire"
        wire.write_bytes(bytes(8))
        with open(wire, "r+b") as f:
            self.wire = mmap.mmap(f.fileno(), 8)
        command = ["ip", "netns", "exec", self.m, self.drivers / "middlebox", str(RAILS), str(self.seed), wire]
        self.box = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def address(self, name, i, other=False):
        return f"10.88.{i}.{(1 if name == self.a else 2) + (100 if other else 0)}"

    def settings(self, name, i):
        return [f"addr replace {self.address(name, i)}/24 dev rail{i}", f"link set rail{i} up"]

    def limit(self, name, rails):
        if self.rate:
            batch("tc", name, [f"qdisc replace dev rail{i} root tbf rate {self.rate}mbit burst 128kb latency 20ms"
                               for i in rails])

    def configure(self, name, i):
        batch("ip", name, self.settings(name, i))
        self.limit(name, [i])

    def all_up(self):
        return all(run("ip", "-n", n, "-br", "link", "show", "type", "veth").count(" UP ") == RAILS
                   for n in (self.a, self.b))

    def answer(self):
        line = self.box.stdout.readline().strip()
        if not line.startswith("ok"):
            raise (Quiet if line.startswith("no connection") else Broken)(f"the middlebox says: {line or 'nothing, it has ended'}")
        return line[3:]

    def tell(self, *words):
        self.box.stdin.write(" ".join(map(str, words)) + "\n")
        self.box.stdin.flush()
        return self.answer()

    def down(self):
        if self.box:
            self.box.kill()
            self.box.wait()
        for name in (self.a, self.b, self.m):
            run("ip", "netns", "del", name, check=False)


def remove_strays():
    """What campaigns that were killed have left: namespaces, folders, control groups."""
    for name in re.findall(r"^gchaos-\d+-\w", run("ip", "netns", "list", check=False), re.M):
        if not Path(f"/proc/{name.split('-')[1]}").exists():
            run("ip", "netns", "del", name, check=False)
    for folder in [*Path(FOLDERS or tempfile.gettempdir()).glob("gantry-chaos-*-*"), *CGROUPS.glob("gchaos-*")]:
        pid = re.search(r"-(\d+)", folder.name)
        if not pid or Path(f"/proc/{pid.group(1)}").exists():
            continue
        if folder.parent != CGROUPS:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            folder.rmdir()
        except OSError:
            pass  # a process is left in it


# ---- the load ----

SIDE = struct.Struct("=7Q24s176s")  # struct load_side of chaos_load.c


class Side:
    def __init__(self, values):
        (self.pid, self.messages, self.bytes, failed_ms, self.code, self.named, self.wrong) = values[:7]
        self.failed = failed_ms / 1000
        self.name, self.text = (v.split(b"\0")[0].decode(errors="replace") for v in values[7:])


class Load:
    def __init__(self, kind, network, options, folder):
        self.kind, self.faults, self.meter, self.full = kind, 0, None, []
        self.folder = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=folder))
        state = self.folder / "state"
        state.write_bytes(bytes(2 * SIDE.size + 8))
        with open(state, "r+b") as f:
            self.state = mmap.mmap(f.fileno(), 0)
        env = {**os.environ, "GANTRY_IFNAME": "rail", "GANTRY_TIMEOUT": f"{options.deadline}s",
               "GANTRY_CONNECT_TIMEOUT": "30s", "GANTRY_NET_RAILS": str(RAILS), "GANTRY_STATS_DIR": "off",
               "GANTRY_STALL": "0", "GANTRY_LANES": str(RAILS)}
        env.setdefault("GANTRY_LOG", "error")
        env.setdefault("GANTRY_CRC", "1")
        command = [str(Path(options.build) / "drivers" / "chaos_load"), kind, network.a, network.b, str(RAILS),
                   str(self.folder)]
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        options.pressure.add(self.process.pid)
        until(self.moves, START, lambda: f"the load {kind} does not begin: {self.log()}", self.ended)

    def measure(self, network):
        """What all rails give, for the rest of its life: at least nearly all that tc lets through, if the CPUs are busy
        just now."""
        self.meter = Meter(self, network)
        time.sleep(3)
        now, limit = time.monotonic(), 2 * RAILS * network.rate * 1e6 / 8
        measured = self.meter.rates(now - 2, now - 0.02)
        self.full = [max(m, 0.95 * limit) for m in measured]
        print(f"{'':10} {RAILS} rails: {measured[0] / 1e6:.1f} MB/s of messages, {measured[1] / 1e6:.1f} of all, both "
              f"ways; judged by {self.full[0] / 1e6:.1f} and {self.full[1] / 1e6:.1f}", flush=True)

    def sides(self):
        return [Side(SIDE.unpack_from(self.state, i * SIDE.size)) for i in range(2)]

    def moves(self, since=(0, 0)):
        return all(s.messages > n for s, n in zip(self.sides(), since))

    def failed(self):
        return any(s.failed for s in self.sides()) or self.ended()

    def ended(self):
        return self.process.poll() is not None

    def fail_sends(self, ms):
        struct.pack_into("=Q", self.state, 2 * SIDE.size, int(1000 * time.monotonic()) + ms)

    def log(self, most=2000):
        return (self.folder / "log").read_text(errors="replace").strip()[-most:]

    def stop(self):
        if self.meter:
            self.meter.close()
        for s in self.sides():
            if s.pid and not self.ended():
                try:
                    os.kill(s.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.kill()
        self.process.wait()
        self.state.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def until(condition, seconds, why, give_up=lambda: False):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end or give_up():
            raise Broken(why() if callable(why) else why)
        time.sleep(0.01)


class Pressure:
    """A control group whose sockets may be left without memory."""

    def __init__(self):
        self.folder, self.why = None, ""
        if not (CGROUPS / "memory.kmem.tcp.limit_in_bytes").exists():
            self.why = "there is no memory.kmem.tcp.limit_in_bytes (control groups, version 1)"
            return
        try:
            self.folder = CGROUPS / f"gchaos-{os.getpid()}"
            self.folder.mkdir()
            self.limit(1 << 40)
        except OSError as e:
            self.why, self.folder = str(e), None

    def limit(self, size):
        """Or what is in use, if that is more: the kernel takes no less."""
        for _ in range(100):
            try:
                (self.folder / "memory.kmem.tcp.limit_in_bytes").write_text(str(size))
                return
            except OSError as e:
                if e.errno != errno.EBUSY:
                    raise
                size = int((self.folder / "memory.kmem.tcp.usage_in_bytes").read_text()) + (64 << 10)
        raise Skip("the memory in use changes too fast to be limited")

    def add(self, pid):
        if self.folder:
            (self.folder / "cgroup.procs").write_text(str(pid))

    def remove(self):
        if self.folder:
            for _ in range(100):
                try:
                    self.folder.rmdir()
                    return
                except OSError:
                    time.sleep(0.02)


# ---- the faults ----


class Skip(Exception):
    """The fault cannot be made here."""


class Scene:
    """What a fault is done to. Each act returns what undoes it, or None, and may say more in `note`."""

    def __init__(self, network, load, rng, options, length):
        self.network, self.load, self.rng = network, load, rng
        self.pressure, self.ms = options.pressure, int(1000 * length)
        self.pick, self.rail = rng.randrange(RAILS), 0
        self.host = rng.choice((network.a, network.b))
        self.side = load.sides()[rng.randrange(2)]
        self.note, self.stopped = "", False

    def choose_rail(self):
        """One that the load uses: since the last time it has carried a twentieth of all bytes."""
        carried = [int(n) for n in self.network.tell("bytes").split()]
        busy = [i for i, n in enumerate(carried) if n * 20 > sum(carried)]
        self.rail = busy[self.pick % len(busy)] if busy else 0
        self.note = f"rail{self.rail}"


def link_down(s):
    run("ip", "-n", s.host, "link", "set", f"rail{s.rail}", "down")
    return lambda: s.network.configure(s.host, s.rail)


def nic_gone(s):
    run("ip", "-n", s.host, "link", "set", f"rail{s.rail}", "netns", s.network.m)

    def back():
        run("ip", "-n", s.network.m, "link", "set", f"rail{s.rail}", "netns", s.host)
        s.network.configure(s.host, s.rail)
    return back


def address_changed(s):
    old, new = (f"{s.network.address(s.host, s.rail, x)}/24" for x in (False, True))
    run("ip", "-n", s.host, "addr", "del", old, "dev", f"rail{s.rail}")
    run("ip", "-n", s.host, "addr", "add", new, "dev", f"rail{s.rail}")

    def back():
        run("ip", "-n", s.host, "addr", "del", new, "dev", f"rail{s.rail}")
        s.network.configure(s.host, s.rail)
    return back


def sockets_killed(s, most):
    lines = run("ip", "netns", "exec", s.host, "ss", "-Htn", "state", "established").split("\n")
    ports = [re.findall(r"(10\.88\.\d+\.\d+):(\d+)", x) for x in lines]
    chosen = [p for p in ports if len(p) == 2 and p[0][0] != p[1][0]]
    s.rng.shuffle(chosen)
    killed = []
    for (src, sport), (dst, dport) in chosen[:most]:
        out = run("ip", "netns", "exec", s.host, "ss", "-HK", "src", src, "dst", dst, "sport", "=", sport, "dport", "=",
                  dport, check=False)
        killed += [f"{src}:{sport}"] if sport in out else []  # the load may have closed it meanwhile
    s.network.kills |= bool(killed)
    if not s.network.kills:
        raise Skip("the kernel kills no sockets for ss -K (CONFIG_INET_DIAG_DESTROY)")
    s.note = killed[0] if killed else "none: all were being replaced"


def box(*words):
    def act(s):
        end = time.monotonic() + BUSY_AGAIN
        while True:
            try:
                s.note = s.network.tell(*(str(w).format(rail=s.rail, ms=s.ms) for w in words)) or s.note
                return
            except Quiet:  # a load may pause, or leave the rail: another one then
                if time.monotonic() > end or s.load.failed():
                    raise
            time.sleep(0.1)
            s.choose_rail()
            time.sleep(0.1)
    return act


def bit_flipped(s):
    s.network.tell("flip", s.rail, 1)

    def end():
        if s.network.tell("flip", "all", 0) != "0":
            s.note += " (no frame was large enough)"
    return end


def stopped(s):
    os.kill(s.side.pid, signal.SIGSTOP)
    s.note, s.stopped = f"pid {s.side.pid}", True
    return lambda: os.kill(s.side.pid, signal.SIGCONT)


def no_descriptors(s):
    soft, hard = resource.prlimit(s.side.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(s.side.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{s.side.pid}/fd")), hard))
    s.note = f"pid {s.side.pid}"
    return lambda: resource.prlimit(s.side.pid, resource.RLIMIT_NOFILE, (soft, hard))


def no_descriptors_reset(s):
    back = no_descriptors(s)
    box("reset", "{rail}")(s)
    return back


def no_buffers(s):
    s.load.fail_sends(s.ms // 12)
    s.note = ""


def no_memory(s):
    if not s.pressure.folder:
        raise Skip(s.pressure.why)
    s.pressure.limit(64 << 10)
    s.note = ""
    return lambda: s.pressure.limit(1 << 40)


# What TCP itself repairs within the deadline is survived today. What ends a socket is an error today, on both sides.
FAULTS = (
    Fault("link-flap", 0.3, {SURVIVE}, {SURVIVE}, "an interface goes down, and up again in time", link_down, out=1),
    Fault("link-down", 1.5, {ERROR}, {SURVIVE}, "an interface goes down for longer than the deadline",
          link_down, out=1),
    Fault("nic-flap", 0.3, {SURVIVE, ERROR}, {SURVIVE}, "an interface is removed, and back in time", nic_gone, out=1),
    Fault("nic-gone", 1.5, {ERROR}, {SURVIVE}, "an interface is removed for longer than the deadline",
          nic_gone, out=1),
    Fault("address-flap", 0.3, {SURVIVE}, {SURVIVE}, "an interface has another address for a moment",
          address_changed, out=1),
    Fault("address", 1.5, {ERROR}, {SURVIVE}, "an interface has another address from now on", address_changed, out=1),
    Fault("kill-socket", 0, {ERROR}, {SURVIVE}, "the kernel ends one socket (ss -K)", lambda s: sockets_killed(s, 1)),
    Fault("kill-sockets", 0, {ERROR}, {SURVIVE}, "the kernel ends all sockets of a host (ss -K)",
          lambda s: sockets_killed(s, 99)),
    Fault("reset", 0, {ERROR}, {SURVIVE}, "a reset on the busiest connection of a rail", box("reset", "{rail}")),
    Fault("reset-all", 0, {ERROR}, {SURVIVE}, "resets on all connections, as from a flushed table of a firewall",
          box("reset", "all", "all")),
    Fault("stall", 0.4, {SURVIVE}, {SURVIVE}, "nothing passes on one connection for a moment",
          box("stall", "{rail}", "{ms}"), out=1),
    Fault("stall-long", 1.5, {ERROR}, {SURVIVE}, "nothing passes on one connection for longer than the deadline",
          box("stall", "{rail}", "{ms}"), out=1),
    Fault("flip", 0.3, {ERROR}, {SURVIVE}, "a bit is flipped that TCP's checksum does not see", bit_flipped,
          codes=DAMAGED),
    Fault("reorder", 0.3, {SURVIVE}, {SURVIVE}, "frames overtake each other on a rail",
          box("reorder", "{rail}", "{ms}"), out=1),
    Fault("blackhole-rail", 0.4, {SURVIVE}, {SURVIVE}, "nothing passes on a rail for a moment",
          box("drop", "{rail}", "{ms}"), out=1),
    Fault("blackhole", 0.4, {SURVIVE}, {SURVIVE}, "nothing passes on any rail for a moment",
          box("drop", "all", "{ms}"), out=RAILS),
    Fault("blackhole-long", 1.5, {ERROR}, {ERROR}, "nothing passes on any rail for longer than the deadline",
          box("drop", "all", "{ms}"), out=RAILS),
    Fault("stop", 0.4, {SURVIVE}, {SURVIVE}, "a process is stopped, and goes on in time", stopped, out=RAILS),
    Fault("stop-long", 1.5, {ERROR}, {ERROR}, "a process is stopped for longer than the deadline",
          stopped, out=RAILS),
    Fault("emfile", 0.2, {SURVIVE}, {SURVIVE}, "a process may open no more descriptors for a while", no_descriptors),
    Fault("emfile-reset", 0.3, {ERROR}, {SURVIVE}, "the same, and a reset meanwhile", no_descriptors_reset),
    Fault("enobufs", 1.2, {SURVIVE}, {SURVIVE}, "sends fail with ENOBUFS for a tenth of the deadline",
          no_buffers, out=RAILS),
    Fault("memory", 0.2, {SURVIVE}, {SURVIVE}, "TCP has almost no memory for these processes", no_memory, out=RAILS),
)


# ---- a fault and its verdict ----


class Outcome:
    """kind: SURVIVE, ERROR, or what was wrong."""

    def __init__(self, kind, wrong="", recovery=None, rate=None):
        self.kind, self.wrong, self.recovery, self.rate = kind, wrong, recovery, rate


class Meter(threading.Thread):
    """What both sides of a load have received and what has passed on the rails, every few milliseconds: for rates of
    any span. Messages alone would not do: those that are complete wait for the ones before them, and come in bursts."""

    def __init__(self, load, network):
        super().__init__(daemon=True)
        self.load, self.wire, self.ended = load, network.wire, threading.Event()
        self.times, self.samples = [], []
        self.start()

    def run(self):
        while not self.ended.wait(0.005):
            self.samples.append((sum(s.bytes for s in self.load.sides()), struct.unpack_from("=Q", self.wire)[0]))
            self.times.append(time.monotonic())

    def close(self):
        self.ended.set()
        self.join()

    def rates(self, begin, end):
        """Of messages, and on the rails."""
        i, k = (min(bisect.bisect_left(self.times, t), len(self.times) - 1) for t in (begin, end))
        took = self.times[k] - self.times[i]
        return [(b - a) / took if took > 0 else 0.0 for a, b in zip(self.samples[i], self.samples[k])]

    def late(self, since):
        """For how long, at most, it was not sampled."""
        times = self.times[bisect.bisect_left(self.times, since):]
        return max((b - a for a, b in zip(times, times[1:])), default=0.0)

    def back(self, since, wanted, limit):
        """When, in s after `since`, a span of STEADY s begins in which both rates are that part of full ones, or None,
        and the best part until then."""
        best, began = 0.0, since
        while began <= since + limit:
            while time.monotonic() < began + STEADY + 0.02:
                if self.load.failed():
                    return None, best
                time.sleep(0.01)
            rates = self.rates(began, began + STEADY)
            best = max(best, min(r / full for r, full in zip(rates, self.load.full)))
            if best >= wanted:
                return began - since, best
            began += 0.01
        return None, best


def rate_of(load, seconds):
    """Bytes per second that both sides receive, over at least so many seconds."""
    began, first = time.monotonic(), sum(s.bytes for s in load.sides())
    while time.monotonic() - began < seconds and not load.failed():
        time.sleep(0.02)
    return (sum(s.bytes for s in load.sides()) - first) / (time.monotonic() - began)


class Trial:
    def __init__(self, fault, load, network, rng, options):
        self.fault, self.load, self.options = fault, load, options
        self.length = fault.length * options.deadline
        self.scene = Scene(network, load, rng, options, self.length)
        self.expected = fault.resumed if options.resume else fault.today
        if options.resume and load.kind not in RESUMING:
            self.expected = fault.resumed | fault.today
        self.before = self.began = self.healed = 0.0

    def run(self):
        self.scene.network.tell("bytes")
        self.before = self.rate_before()
        self.scene.choose_rail()
        time.sleep(0.05)  # the middlebox looks for the busiest connection
        self.began = self.healed = time.monotonic()
        if self.load.failed():
            self.expected = set()  # nothing has been done to it yet
            return self.judge_error()
        undo = self.fault.act(self.scene)
        try:
            while time.monotonic() < self.began + self.length and not self.over():
                time.sleep(0.005)
        finally:
            if undo:
                undo()
        self.healed = time.monotonic()
        return self.judge()

    def rate_before(self):
        self.scene.network.tell("late")
        return rate_of(self.load, SETTLED)

    def excuse(self):
        """Says so if something is wrong and this machine stood still: that is no verdict, but where to look first."""
        late = int(self.scene.network.tell("late")) / 1000
        if late > STOOD:
            self.scene.note += f" (this machine stood still for {late:.2f} s)"

    def over(self):
        """Both sides have an error, or the one that is not stopped."""
        failed = [bool(s.failed) for s in self.load.sides()]
        return all(failed) or self.load.ended() or (self.scene.stopped and any(failed))

    def judge(self):
        """It goes on when more messages have come than were on their way. A socket that ends may be noticed late: a
        fault that must be an error has its time for that."""
        mark = [s.messages for s in self.load.sides()]
        first = None
        end = max(self.healed, self.began + self.length) + self.options.deadline + LATE
        sure = self.began if SURVIVE in self.expected else self.began + self.options.deadline + LATE
        while not self.load.failed():
            now = time.monotonic()
            first = now if first is None and self.load.moves(mark) else first
            if now > sure and self.load.moves([n + IN_FLIGHT for n in mark]):
                return self.judge_survival(first - self.healed)
            if now > end:
                return Outcome("stuck", f"nothing moves and there is no error {now - self.began:.1f} s after the fault")
            time.sleep(0.005)
        return self.judge_error()

    def judge_survival(self, recovery):
        limit = self.healed + (3.0 if "all" in self.fault.name else 1.0)
        best = rate_of(self.load, SETTLED)
        while best < 0.9 * self.before and time.monotonic() < limit and not self.load.failed():
            best = max(best, rate_of(self.load, SETTLED))
        if self.load.failed():
            return self.judge_error()
        wrong = "" if SURVIVE in self.expected else "it goes on as if nothing had happened"
        return Outcome(SURVIVE, wrong, recovery, best / self.before if self.before else None)

    def judge_error(self):
        limit = self.healed if self.scene.stopped else self.began
        end = time.monotonic() + self.options.deadline + LATE
        while not all(s.failed for s in self.load.sides()) and not self.load.ended() and time.monotonic() < end:
            time.sleep(0.01)
        sides = self.load.sides()
        for n, s in enumerate(sides):
            if s.wrong:
                return Outcome("wrong bytes", f"side {'AB'[n]}: {s.text}")
        for n, s in enumerate(sides):
            who = "AB"[n]
            if not s.failed:
                return Outcome("hang", f"side {who} has no error; the other: {sides[1 - n].name} {sides[1 - n].text} "
                                       f"{self.load.log()}")
            if s.name not in self.fault.codes:
                return Outcome("bad error", f"side {who}: {s.name}: {s.text}")
            if not s.named:
                return Outcome("bad error", f"side {who}: {s.name} does not name the peer: {s.text}")
            if s.failed > limit + self.options.deadline + LATE:
                return Outcome("late error", f"side {who}: {s.name} after {s.failed - limit:.2f} s: {s.text}")
        try:
            self.load.process.wait(START)
        except subprocess.TimeoutExpired:
            return Outcome("hang", "it does not end after its errors")
        if self.load.process.returncode:
            return Outcome("bad end", f"exit status {self.load.process.returncode}: {self.load.log()}")
        names = "/".join(sorted({s.name for s in sides}))
        told = max(0.0, max(s.failed for s in sides) - limit)  # before the end of what stopped it
        if ERROR not in self.expected:
            return Outcome(ERROR, f"{'it should have survived' if self.expected else 'before the fault'}: {names}: "
                                  f"{sides[0].text}", told)
        self.scene.note += f" {names}"
        return Outcome(ERROR, "", told)


class SteadyTrial(Trial):
    """Survival is not enough: while a rail is out the others are full, and all are soon after it is back."""

    def run(self):
        # After the last one.
        self.load.meter.back(time.monotonic() - STEADY, ENOUGH, BACK_AFTER_OUTAGE)
        return super().run()

    def excuse(self):
        pass  # judge_error and judge_survival have

    def rate_before(self):
        time.sleep(0.1)
        self.scene.network.tell("late")
        self.waits, self.waits_since = self.count_waits(), time.monotonic()
        return 0.0

    def count_waits(self):
        """Seconds that each thread of the load and of the middlebox has waited for a CPU."""
        waits = {}
        for pid in [s.pid for s in self.load.sides()] + [self.scene.network.box.pid]:
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    waits[path] = int(path.read_text().split()[1]) / 1e9
                except (OSError, IndexError):
                    pass  # it has ended
        return waits

    def starved(self):
        now = self.count_waits()
        most = max((now[k] - self.waits[k] for k in now if k in self.waits), default=0.0)
        return most / (time.monotonic() - self.waits_since)

    def judge_survival(self, recovery):
        took = rate = 0.0
        for since, rails, limit in self.phases():
            wanted = rails / RAILS
            back, best = self.load.meter.back(since, ENOUGH * wanted, limit)
            if self.load.failed():
                return self.judge_error()
            if back is None and self.lacks_cpus("rate not judged: "):
                return Outcome(SURVIVE, "", recovery)
            if back is None:
                return Outcome(SLOW, f"{best / wanted:.2f} of what {rails} rails give, {limit:g} s after the "
                                       f"{'beginning' if since == self.began else 'end'}", None, best / wanted)
            took, rate = max(took, back), min(rate or best / wanted, best / wanted)
        return Outcome(SURVIVE, "", took, rate)

    def judge_error(self):
        self.lacks_cpus("")
        return super().judge_error()

    def lacks_cpus(self, what):
        """Whether, and says so."""
        late = max(self.load.meter.late(self.began), int(self.scene.network.tell("late")) / 1000)
        starved = self.starved()
        if late <= STOOD and starved <= STARVED:
            return False
        self.scene.note += (f" ({what}this machine stood still for {late:.2f} s, and a thread waited for a CPU for "
                            f"{starved:.2f} of the time)")
        return True

    def phases(self):
        """A rail that is back is used a moment later: ARP repeats its question after a second."""
        left = RAILS - self.fault.out
        if left and self.fault.out and self.length >= BACK + STEADY:
            yield self.began, left, BACK
        if left and self.fault.out:
            yield self.healed, left, BACK
        yield self.healed, RAILS, BACK_AFTER_OUTAGE if self.fault.out else BACK


# ---- the campaign ----


def has_resume(build):
    """Whether connections outlive their sockets, by the parameter and its default."""
    listing = run(str(Path(build) / "gantry"), "doctor", "--params-markdown", check=False)
    section = re.search(r"^## `GANTRY_RESUME`$(.*?)(^## |\Z)", listing, re.M | re.S)
    default = re.search(r"default[^`]*`([^`]*)`", section.group(1), re.I) if section else None
    return bool(section) and os.environ.get("GANTRY_RESUME", default and default.group(1)) not in ("0", "off")


def why_not(options):
    if os.geteuid():
        return "it needs root, to make network namespaces"
    for command in ("ip", "tc", "ss"):
        if not shutil.which(command):
            return f"there is no {command} command (package iproute2)"
    for driver in ("middlebox", "chaos_load"):
        if not (Path(options.build) / "drivers" / driver).exists():
            return f"{options.build}/drivers/{driver} is not built (make chaos builds it)"
    return ""


def schedule(faults, rng):
    """All of them in a random order, again and again: so that a short campaign sees many."""
    while True:
        order = list(faults)
        rng.shuffle(order)
        yield from order


class Campaign:
    def __init__(self, options):
        self.options, self.rng = options, random.Random(options.seed)
        self.network, self.load, self.rows, self.skips = Network(options), None, {}, {}
        self.folder = tempfile.mkdtemp(prefix=f"gantry-chaos-{os.getpid()}-", dir=FOLDERS)
        self.loads = schedule(options.loads, self.rng)
        self.began = time.monotonic()

    def run(self):
        self.network.up(self.folder)
        slack = 1.2 if self.options.steady and self.options.count > 0 else 1  # that many were asked for
        for n, fault in enumerate(schedule(self.options.faults, self.rng)):
            longest = fault.length * self.options.deadline + 2 * self.options.deadline
            if time.monotonic() - self.began + longest > 1.5 * self.options.seconds and n:
                break
            if time.monotonic() - self.began > slack * self.options.seconds or n == self.options.count:
                break
            if fault.name not in self.skips:
                self.wait_for_turn(n)
                self.one(fault)
            elif len(self.skips) == len(self.options.faults):
                break

    def wait_for_turn(self, n):
        """A steady campaign spreads its faults over its time."""
        if self.options.steady and self.options.count > 0:
            turn = self.began + n * self.options.seconds / self.options.count
            time.sleep(max(0.0, turn - time.monotonic()))

    def one(self, fault):
        most = FAULTS_PER_LOAD if not self.options.steady else self.load and self.load.faults + 1
        if self.load and (self.load.faults >= most or self.load.failed()):
            self.end_load()
        if not self.load:
            until(self.network.all_up, 10, "the rails do not come back")  # a load looks for carriers as it begins
            self.load = Load(next(self.loads), self.network, self.options, self.folder)
            if self.options.steady:
                self.load.measure(self.network)
        self.load.faults += 1
        trial = (SteadyTrial if self.options.steady else Trial)(fault, self.load, self.network, self.rng, self.options)
        try:
            outcome = trial.run()
        except Skip as e:
            self.skips[fault.name] = str(e)
            print(f"{'':10} {fault.name}: skipped: {e}", flush=True)
            return
        if outcome.wrong:
            trial.excuse()
        self.rows.setdefault(fault.name, []).append(outcome)
        self.show(trial, outcome)
        if outcome.kind not in (SURVIVE, SLOW):
            self.end_load()

    def show(self, trial, outcome):
        parts = ["WRONG: " + outcome.kind if outcome.wrong else
                 "survived" if outcome.kind == SURVIVE else "typed error"]
        if outcome.recovery is not None:
            parts.append(f"after {outcome.recovery:.2f} s")
        if outcome.rate is not None:
            parts.append(f"rate {outcome.rate:.2f}")
        if outcome.wrong:
            parts.append(outcome.wrong)
        print(f"{time.monotonic() - self.began:8.1f} s {self.load.kind:10} {trial.fault.name:14} {trial.scene.note}: "
              f"{', '.join(parts)}", flush=True)
        if outcome.wrong and "GANTRY_LOG" in os.environ:
            print(self.load.log(20000), flush=True)

    def end_load(self):
        if self.load:
            self.load.stop()
        self.load = None

    def table(self):
        print(f"\n{'fault':15}{'times':>6}{'survived':>10}{'typed error':>13}{'WRONG':>7}"
              f"{'slowest':>10}{'rate after':>12}")
        for fault in self.options.faults:
            if fault.name in self.skips:
                print(f"{fault.name:15} skipped: {self.skips[fault.name]}")
            if fault.name not in self.rows:
                continue
            rows = self.rows[fault.name]
            good = [r for r in rows if not r.wrong]
            times = [r.recovery for r in rows if r.recovery is not None]
            rates = [r.rate for r in rows if r.rate is not None]
            print(f"{fault.name:15}{len(rows):6}{sum(r.kind == SURVIVE for r in good):10}"
                  f"{sum(r.kind == ERROR for r in good):13}{len(rows) - len(good):7}"
                  f"{f'{max(times):.2f} s' if times else '-':>10}{f'{min(rates):.2f}' if rates else '-':>12}")

    def wrong(self):
        return sum(bool(r.wrong) for rows in self.rows.values() for r in rows)

    def close(self):
        self.end_load()
        self.network.down()
        shutil.rmtree(self.folder, ignore_errors=True)


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=None, help="the same faults in the same order (random)")
    p.add_argument("--seconds", type=float, default=60, help="how long it goes on; it ends within twice that (60)")
    p.add_argument("--count", type=int, default=-1, help="no more faults than this")
    p.add_argument("--only", default="", metavar="FAULT,...", help="only these")
    p.add_argument("--load", default="", metavar="LOAD,...", help=f"only these of {', '.join(LOADS)}")
    p.add_argument("--deadline", type=float, default=3, help="GANTRY_TIMEOUT of the load, in seconds (3)")
    p.add_argument("--rate", type=int, default=None, help="Mbit/s of a rail; 0: what the CPUs carry (400; steady: 100)")
    p.add_argument("--steady", action="store_true", help="one connection that resumes (GANTRY_RESUME) outlives all "
                   "faults; the rate is judged, and --count faults are spread over the time")
    p.add_argument("--build", default="build", help="the build folder")
    p.add_argument("--list", action="store_true", help="lists the faults and what is expected of them")
    options = p.parse_args()
    names = [f.name for f in FAULTS]
    only = [n for n in options.only.split(",") if n]
    options.loads = [n for n in options.load.split(",") if n] or LOADS
    for n in only + list(options.loads):
        if n not in (names if n in only else LOADS):
            p.error(f"there is no {n}: {', '.join(names if n in only else LOADS)}")
    options.faults = [f for f in FAULTS if not only or f.name in only]
    if options.steady:
        os.environ.setdefault("GANTRY_RESUME", "on")
        options.loads = RESUMING
        options.faults = [f for f in options.faults if f.resumed == {SURVIVE}]
    if options.rate is None:
        options.rate = 100 if options.steady else 400
    options.seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    return options


def list_faults():
    print(f"{'fault':15}{'today':18}{'with resume':12}what")
    for f in FAULTS:
        print(f"{f.name:15}{' or '.join(sorted(f.today)):18}{' or '.join(sorted(f.resumed)):12}{f.about}")


SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


def on_signal(number, _frame):
    raise SystemExit("it took more than twice its time" if number == signal.SIGALRM else f"ended by signal {number}")


def main():
    options = parse()
    if options.list:
        list_faults()
        return 0
    why = why_not(options)
    if why:
        print(f"skipped: {why}")
        return 77
    for number in SIGNALS:
        signal.signal(number, on_signal)
    signal.setitimer(signal.ITIMER_REAL, 2 * options.seconds)
    remove_strays()
    options.resume = has_resume(options.build)
    options.pressure = Pressure()
    print(f"seed {options.seed}, {options.seconds:g} s, deadline {options.deadline:g} s, "
          f"{'connections resume' if options.resume else 'connections end with their sockets'}", flush=True)
    campaign = Campaign(options)
    try:
        campaign.run()
    except (Broken, KeyboardInterrupt) as e:
        print(f"{time.monotonic() - campaign.began:8.1f} s WRONG: {str(e) or 'interrupted'}", flush=True)
        return 1
    finally:
        for number in SIGNALS + (signal.SIGINT,):
            signal.signal(number, signal.SIG_IGN)  # a second one must not keep it from taking everything with it
        campaign.table()
        campaign.close()
        options.pressure.remove()
    count = sum(map(len, campaign.rows.values()))
    unjudged = sum(r.kind == SURVIVE and r.rate is None for rows in campaign.rows.values() for r in rows)
    print(f"\n{count} faults in {time.monotonic() - campaign.began:.0f} s, {campaign.wrong()} wrong"
          f"{f', {unjudged} rates not judged' if options.steady else ''}; repeat with SEED={options.seed}")
    return 1 if campaign.wrong() or not count else 0


if __name__ == "__main__":
    sys.exit(main())
