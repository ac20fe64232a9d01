#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The verdicts of bench/: requirements met and missed, wrong bytes, and that a run which others have disturbed is not judged,
# which is no failure of `make bench`. A stub plays `gantry`.
# labels: beside
. "$(dirname "$0")/lib.sh"

quiet='{"wrong_bytes": 0, "ok": true, "cpus": 2, "other_cpus": 0.01, "steal_cpus": 0, "warning": null}'
busy='{"wrong_bytes": 0, "ok": true, "cpus": 2, "other_cpus": 1.7, "steal_cpus": 0, "warning": "other processes used 1.7 of 2 CPUs during the measurement: these figures are unreliable (the machine is busy)"}'
net() { # bandwidth ratio, wrong bytes, closing line
	echo '{"op": "net", "machine": "stub", "command": "gantry perf net", "commit": "0"}'
	echo "{\"bytes\": 4096, \"bw_gbs\": 1, \"wrong\": $2, \"bw_ratio\": $1, \"lat_ratio\": 0.5, \"cpu_ratio\": 0.5}"
	[ -z "$3" ] || echo "$3"
}
# verdict STATUS: of what stands in $tmp/lines.
verdict() {
	local rc
	awk -f "$SOURCE_DIR/bench/lib.awk" -f "$SOURCE_DIR/bench/verdict.awk" "$tmp/lines" >"$tmp/out"
	rc=$?
	[ $rc = "$1" ] || die "exit status $rc, expected $1"
}
net 1.2 0 "$quiet" >"$tmp/lines"; verdict 0; like out "^2 of 2 requirements met, 0 wrong bytes$"
net 1.2 0 "" >"$tmp/lines"; verdict 0; like out "^2 of 2 requirements met" # a file of earlier days
net 0.5 0 "$quiet" >"$tmp/lines"; verdict 1; like out "MISSED"
net 1.2 3 "$quiet" >"$tmp/lines"; verdict 1; like out ", 3 wrong bytes$"
net 0.5 0 "$busy" >"$tmp/lines"; verdict 77; like out "^not judged: other processes used 1.7 of 2 CPUs .*; 0 wrong bytes$"
grep -q "MISSED" "$tmp/out" && die "it is judged"
net 0.5 3 "$busy" >"$tmp/lines"; verdict 1; like out "^not judged: .*; 3 wrong bytes$"
{ net 0.5 0 "$busy"; net 1.2 0 "$quiet"; } >"$tmp/lines"; verdict 0; like out "^2 of 2 requirements met" # the last run counts
{ net 1.2 0 "$quiet"; net 0.5 0 "$busy"; } >"$tmp/lines"; verdict 77
echo "ok: bench/verdict.awk"

# The scripts around it, with a stub.
mkdir "$tmp/build"
cat >"$tmp/build/gantry" <<'STUB'
#!/bin/bash
cat "$STUB_LINES"
STUB
chmod +x "$tmp/build/gantry"
# run STATUS SCRIPT ARGUMENT...
run() {
	local want=$1 rc
	shift
	STUB_LINES=$tmp/lines BUILD_DIR=$tmp/build BUILD=$tmp/build bash "$SOURCE_DIR/$@" >"$tmp/out" 2>&1
	rc=$?
	[ $rc = "$want" ] || die "$*: exit status $rc, expected $want"
}
net 0.5 0 "$quiet" >"$tmp/lines"
run 0 bench/run.sh "$tmp/file.jsonl"
like out MISSED
VERDICT=strict run 1 bench/run.sh "$tmp/file.jsonl"
net 0.5 0 "$busy" >"$tmp/lines"
run 77 bench/run.sh "$tmp/file.jsonl"
like out "^not judged: "
VERDICT=strict run 77 bench/run.sh "$tmp/file.jsonl"
[ "$(grep -c '"machine"' "$tmp/file.jsonl")" = 4 ] || die "not all runs are kept"
if command -v nvidia-smi >/dev/null; then
	echo "left out: make bench itself, which would measure on the GPU"
else
	run 0 scripts/bench.sh "$tmp/bench"
	like out "^not judged: "
fi
echo "ok: bench/run.sh and make bench"

# sendrecv: medians over rounds, of those that nobody disturbed. $1: rows' bandwidth, $2: closing line
series() {
	echo "{\"series\": \"$1\", \"round\": 1, \"machine\": \"stub\"}"
	echo "{\"series\": \"$1\", \"round\": 1, \"bytes\": 1048576, \"bw_gbs\": $2, \"busbw_gbs\": $2, \"wrong\": 0}"
	sed "s/^{/{\"series\": \"$1\", \"round\": 1, /" <<<"$3"
}
# rounds BANDWIDTH CLOSING...: of sendrecv over net, each beside one of the network of 1 GB/s that nobody disturbed.
rounds() {
	echo '{"bench": "sendrecv"}'
	while [ $# -gt 0 ]; do
		series net 1 "$quiet"
		series sr_net "$1" "$2"
		shift 2
	done
}
sendrecv() {
	awk -f "$SOURCE_DIR/bench/lib.awk" -f "$SOURCE_DIR/bench/sendrecv_verdict.awk" "$tmp/lines" >"$tmp/out"
	rc=$?
}
rounds 0.95 "$quiet" 0.95 "$quiet" >"$tmp/lines"; sendrecv
like out "perf net +1 MiB +0.950 .* ok"
rounds 0.95 "$quiet" 0.95 "$quiet" 0.1 "$busy" >"$tmp/lines"; sendrecv
like out "perf net +1 MiB +0.950 .* ok"
like out "^1 of 6 measurements are left out"
rounds 0.95 "$quiet" 0.1 "$busy" 0.1 "$busy" >"$tmp/lines"; sendrecv
[ $rc = 77 ] || die "exit status $rc, expected 77"
like out "^not judged: in 2 of 6 measurements the machine was busy, the last time other processes used 1.7 of 2 CPUs "
echo "ok: bench/sendrecv_verdict.awk"
