#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `gantry doctor` and the front of the tool: output that other programs can read, hints for wrong usage.
. "$(dirname "$0")/lib.sh"
clean_environment
export GANTRY_LOG=warn
plugin=$BUILD_DIR/lib/libnccl-net-gantry.so

# For people.
expect 0 "$gantry" doctor
# The verdict comes first, then the findings; of the parameters only the one that is set.
sed -n 1p "$tmp/out" | grep -qE '^ready for: loopback' || die "no verdict in the first line"
sed -n 2,7p "$tmp/out" | grep -qE '^not for:   .*, because ' || die "not a word about what is missing"
sed -n 2,7p "$tmp/out" | grep -qE '^ {11}devmem, because |^not for:   .*devmem, because |devmem \(' || die "no verdict about devmem"
lacks out GANTRY_TIMEOUT
has out GANTRY_LOG
for finding in 'cuda ' 'cuda kernels' 'hwloc' 'libmnl' 'openssl'; do
	grep -qE "^  (ok|note|warn)  +$finding" "$tmp/out" || grep -q '^  .* gpu 0' "$tmp/out" || die "no finding $finding"
done
for section in interfaces choice gpu build plugin limits kernel devmem parameters; do
	grep -qx "$section" "$tmp/out" || die "no section $section"
done
has out RLIMIT_NOFILE
has out MSG_ZEROCOPY
lacks out $'\033'
[ -s "$tmp/err" ] && die "something on stderr"

# For programs: every line one object with exactly these fields, all of them strings.
expect 0 "$gantry" doctor --json
no_leaks # two runs of the whole doctor are enough
cp "$tmp/out" "$tmp/json"
if command -v python3 >/dev/null && python3 -c 'import json' 2>/dev/null; then
	python3 - "$tmp/json" <<'PY' || die "the JSON lines are not right"
import json, sys
names = set()
for line in open(sys.argv[1]):
    o = json.loads(line)
    assert list(o) == ["section", "name", "level", "value", "detail", "advice"], o
    assert all(isinstance(v, str) for v in o.values()), o
    assert o["level"] in ("ok", "note", "warn", "fail"), o
    names.add((o["section"], o["name"]))
want = {("choice", "tcp"), ("limits", "cpus"), ("limits", "somaxconn"), ("limits", "tcp_rmem"), ("kernel", "splice"),
        ("kernel", "congestion control"), ("kernel", "devmem"), ("devmem", "socket option"), ("devmem", "netdev family"),
        ("devmem", "peer"), ("devmem", "flow verified"), ("build", "openssl"), ("build", "hwloc"), ("build", "libmnl"),
        ("build", "cuda kernels"), ("parameters", "GANTRY_LOG")}
assert want <= names, want - names
assert [n for s, n in names if s == "parameters"] == ["GANTRY_LOG"], "parameters that are not set"
verdict = [json.loads(line) for line in open(sys.argv[1]) if '"section": "verdict"' in line]
assert [v["name"] for v in verdict] == ["loopback", "other hosts", "NCCL plugin", "GPU", "devmem", "authentication"], verdict
for v in verdict:
    assert v["value"] == ("ready" if v["level"] == "ok" else "not ready"), v
    assert v["value"] == "ready" or v["detail"], v
assert json.loads(open(sys.argv[1]).readline())["section"] == "verdict"
# Some interface has all its questions, some device its own, and each pair a verdict.
for question in ("header split", "flow steering", "bind, dry run", "sending"):
    assert any(s == "devmem" and n.endswith(": " + question) for s, n in names), question
assert any(s == "devmem" and n.endswith(": dma-buf export") for s, n in names)
assert any(s == "devmem" and " to " in n for s, n in names)
PY
	echo "ok: JSON read by python3"
else
	! grep -qvE '^\{"section": ".*", "name": ".*", "level": "(ok|note|warn|fail)", "value": ".*", "detail": ".*", "advice": ".*"\}$' \
		"$tmp/json" || die "a line is not an object of the right fields"
	echo "ok: JSON read by grep"
fi

# Variables that are wrong.
expect 0 env GANTRY_TIMOUT=3 "$gantry" doctor --json
grep '"level": "warn"' "$tmp/out" | grep GANTRY_TIMOUT | grep -q 'GANTRY_TIMEOUT' || die "no suggestion for GANTRY_TIMOUT"
expect 1 env GANTRY_LANES=99 GANTRY_CRC=perhaps "$gantry" doctor --json
for name in GANTRY_LANES=99 GANTRY_CRC=perhaps; do
	grep '"level": "fail"' "$tmp/out" | grep -q "$name" || die "no finding for $name"
done
# What is no number and no choice has a syntax or names something; nothing starts with such a value.
for bad in GANTRY_PORT_RANGE=abc GANTRY_PORT_RANGE=9-8 GANTRY_ADVERTISE=nowhere GANTRY_STALL_SIGNAL=KILL GANTRY_LOG_SUBSYS=nat; do
	expect 1 env $bad "$gantry" doctor --params --json
	grep '"level": "fail"' "$tmp/out" | grep "\"name\": \"${bad%=*}\"" | grep -q "$bad is invalid: expected " || die "no finding for $bad"
done
expect 1 env GANTRY_PORT_RANGE=abc "$gantry" doctor
[ "$(sed -n 1p "$tmp/out")" = "ready for: nothing" ] || die "ready in spite of GANTRY_PORT_RANGE=abc"
sed -n 2p "$tmp/out" | grep -q 'because GANTRY_PORT_RANGE=abc is invalid$' || die "the verdict does not give the reason"
for bad in GANTRY_TRANSPORT=foo GANTRY_TRANSPORT=net,smh GANTRY_TRANSPORT_LIBS=/nonexistent/libt.so GANTRY_NET_PLUGIN=/nonexistent/libp.so \
	GANTRY_SECRET_FILE=/nonexistent/secret GANTRY_ENCRYPT=on GANTRY_ENCRYPT=require; do
	expect 1 env $bad "$gantry" doctor --params --json
	grep -q "\"name\": \"${bad%=*}\", \"level\": \"fail\"" "$tmp/out" || die "no finding for $bad"
done
for bad in GANTRY_CONGESTION=nosuch GANTRY_STALL_DIR=/nonexistent GANTRY_TRACE=/nonexistent/t.%r; do
	expect 0 env $bad "$gantry" doctor --params --json
	grep -q "\"name\": \"${bad%=*}\", \"level\": \"warn\"" "$tmp/out" || die "no finding for $bad"
done
expect 0 env GANTRY_TRANSPORT=net,shm GANTRY_PORT_RANGE=4000-4010 GANTRY_CONGESTION=keep GANTRY_STALL_DIR="$tmp" "$gantry" doctor --params
has out GANTRY_TIMEOUT
! grep -qE '^  (warn|fail)' "$tmp/out" || die "good values are found to be bad"
expect 0 env GANTRY_LANES=3 "$gantry" doctor --params --json
grep '"name": "GANTRY_LANES", "level": "ok", "value": "3", "detail": "environment' "$tmp/out" || die "GANTRY_LANES=3 is not listed"
grep -q '"section": "parameters"' "$tmp/out" && ! grep -q '"section": "limits"' "$tmp/out" || die "--params lists more than that"
if grep -q '"name": "openssl", "level": "ok"' "$tmp/json"; then
	expect 0 env GANTRY_SECRET=hush-hush GANTRY_ENCRYPT=require "$gantry" doctor
	expect 0 env GANTRY_SECRET=hush-hush "$gantry" doctor
else
	expect 1 env GANTRY_SECRET=hush-hush "$gantry" doctor
fi
lacks out hush-hush
lacks err hush-hush

# A plugin that is not there is named; ours is found.
expect 1 "$gantry" doctor --json --plugin /nonexistent/libnccl-net-nope.so
grep '"section": "plugin"' "$tmp/out" | grep '"level": "fail"' | grep -q nope || die "the missing plugin is not named"
if [ -e "$plugin" ]; then
	grep -q '"section": "verdict", "name": "NCCL plugin", "level": "ok"' "$tmp/json" || die "our plugin beside the tool is not found"
	grep '"section": "plugin"' "$tmp/json" | grep -q "NCCL_NET_PLUGIN=.*/libnccl-net-gantry.so" || die "no advice for our plugin"
fi
if [ -e "$plugin" ] && [ -z "${GANTRY_SANITIZED:-}" ]; then
	expect 0 env NCCL_NET_PLUGIN="$plugin" "$gantry" doctor --json
	grep '"section": "plugin"' "$tmp/out" | grep -q '"level": "ok", "value": "v6 v7 v8 v9 v10 v11 v12"' || die "our plugin is not found"
fi
expect 1 "$gantry" doctor --ifname nosuchif
has out "no interface matches 'nosuchif'"

# Advice that can be followed: nothing above the hard limit.
expect 0 bash -c 'ulimit -n 1024 && exec "$0" doctor' "$gantry"
grep -A1 RLIMIT_NOFILE "$tmp/out" | grep -q -- '-> `ulimit -n` is at its hard limit, 1024: raise the hard limit with nofile in /etc/security/limits.conf' ||
	die "advice about open files at the hard limit"
expect 0 bash -c 'ulimit -Sn 1024 && ulimit -Hn 2048 && exec "$0" doctor' "$gantry"
grep -A1 RLIMIT_NOFILE "$tmp/out" | grep -qF -- '-> raise it with `ulimit -n 2048`' || die "advice about open files below the hard limit"

# Colour on a terminal, if it is wanted there.
if ! command -v script >/dev/null; then
	echo "skipped: colour, there is no script(1)"
elif ! why=$(script -qec true /dev/null </dev/null 2>&1 >/dev/null); then
	echo "skipped: colour, $why"
else
	on_terminal() { script -qec "env $* '$gantry' doctor --ifname lo" /dev/null </dev/null >"$tmp/out" 2>"$tmp/err"; }
	on_terminal TERM=xterm
	has out $'\033[32mready for:'
	has out $'\033[1minterfaces'
	for without in "TERM=xterm NO_COLOR=1" TERM=dumb; do
		on_terminal $without
		has out "ready for:"
		lacks out $'\033'
	done
	echo "ok: colour"
fi

# Devmem: a NIC that was asked for and cannot is a warning, not a failure; the helper's command line.
expect 0 env GANTRY_UNPACK=kernel "$gantry" doctor --json --ifname lo
grep '"section": "devmem", "name": "lo to ' "$tmp/out" | grep -q '"level": "warn", "value": "not usable"' || die "lo would be usable"
expect 0 "$gantry" doctor --undo-devmem
has out "nothing to do"
expect 2 "$gantry" devmem-helper
has err "--socket PATH is needed"
expect 2 "$gantry" devmem-helper --socket "$tmp/s" --uid no-such-user-here
has err "no such user"
expect 2 "$gantry" devmem-helper --sockt "$tmp/s"
expect 1 "$gantry" devmem-helper --socket "$tmp/no/such/folder/s"
has err "No such file"
expect 0 "$gantry" devmem-helper --help
"$gantry" devmem-helper --socket "$tmp/s" &
helper=$!
await [ -S "$tmp/s" ]
[ "$(stat -c %a "$tmp/s")" = 600 ] || die "the helper's socket is not there with mode 600"
kill -TERM $helper
wait $helper || die "the helper did not end well"
[ ! -e "$tmp/s" ] || die "the helper left its socket"
echo "ok: devmem-helper serves and ends"

# Wrong usage.
expect 2 "$gantry" doctor --jsn
has err "did you mean '--json'?"
expect 2 "$gantry" doctor --ifname
has err "--ifname needs a value"
expect 2 "$gantry" doctor extra
has err "unknown argument 'extra'"
expect 2 "$gantry" docter
has err "did you mean 'doctor'?"
expect 2 "$gantry" zzzzzzzz
has err "gantry help lists them"
expect 2 "$gantry"
expect 2 "$gantry" perf
expect 2 "$gantry" perf nett
has err "did you mean 'net'?"
expect 2 "$gantry" help docter

# Right usage.
expect 0 "$gantry" --version
grep -qE '^gantry [0-9]+\.[0-9]+\.[0-9]+ \(.+\)$' "$tmp/out" || die "version line"
expect 0 "$gantry" --help
has out doctor
cp "$tmp/out" "$tmp/help"
expect 0 "$gantry" help
cmp -s "$tmp/out" "$tmp/help" || die "help and --help differ"
expect 0 "$gantry" doctor --help
has out --params-markdown
cp "$tmp/out" "$tmp/help"
expect 0 "$gantry" help doctor
cmp -s "$tmp/out" "$tmp/help" || die "help doctor and doctor --help differ"
expect 0 "$gantry" perf --help
has out net

expect 0 "$gantry" doctor --params-markdown
has out '`GANTRY_TIMEOUT`'
if [ -e "$SOURCE_DIR/docs/params.md" ]; then
	cmp -s "$tmp/out" "$SOURCE_DIR/docs/params.md" ||
		die "docs/params.md is out of date: gantry doctor --params-markdown >docs/params.md"
fi
exit 0
