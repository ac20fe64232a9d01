#!/bin/bash
# also with: GANTRY_SECRET=alpha
# The example of the pipeline and `gantry perf rx`, over both paths: every byte right, and the path line says why.
set -u
. "$SOURCE_DIR/tests/system/lib_tries.sh"
own_network "$0"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
die() { echo "FAILED: $*" >&2; cat "$tmp/out" "$tmp/err" >&2; exit 1; }
unset GANTRY_RX_PATH NCCL_SOCKET_IFNAME
export GANTRY_IFNAME=lo GANTRY_LOG=warn

lines=$(wc -l <"$SOURCE_DIR/examples/rx_tensor.c")
[ "$lines" -le 60 ] || die "the example has $lines lines, 60 were promised"

# example PATH REASON: 0 wrong, and the line.
port=$((15000 + $$ * 4 % 15000)) # below those that the kernel gives to whoever asks for any
example() {
	port=$((port + 1))
	PORT=$port GANTRY_RX_PATH=$1 timeout 280 "$BUILD_DIR/examples/rx_tensor" 3000001 >"$tmp/out" 2>"$tmp/err" ||
		die "rx_tensor over $1 gives $?"
	grep -qxF "3000001 bytes over $2" "$tmp/out" || die "the path line of $1 is not: $2"
	grep -qxF "0 wrong" "$tmp/out" || die "wrong bytes over $1"
	echo "ok: $2"
}
example auto "host: the device is the host itself, no NIC needs help to reach its memory"
example host "host: asked for by GANTRY_RX_PATH"
example emulated "unpack (emulated NIC): asked for by GANTRY_RX_PATH"

perf() {
	timeout 280 "$BUILD_DIR/gantry" perf rx --json --repeats 1 "$@" >"$tmp/out" 2>"$tmp/err" || die "perf rx $* gives $?"
	for f in bytes gbs raw_gbs ratio wrong pieces streams; do
		grep -q "\"$f\": [0-9]" "$tmp/out" || die "perf rx $*: no number for $f"
	done
	grep -q '"wrong": 0[,}]' "$tmp/out" || die "perf rx $*: wrong bytes"
	grep -q '"pcie_gbs": null' "$tmp/out" || die "perf rx $*: a bus on the host device"
	echo "ok: perf rx $*"
}
perf --path host -e 5000003
perf --path host --memory device --pieces 700 --piece-bytes 4097 --stride 5001
perf --path emulated --pieces 300 --piece-bytes 8k
grep -q '"path": "unpack (emulated NIC): asked for by the program"' "$tmp/out" || die "the path is not told"
grep -q '"piece_ratio": [0-9]' "$tmp/out" || die "no piece_ratio"
"$BUILD_DIR/gantry" perf rx --pieces 3 --piece-bytes 100 --stride 50 >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] || die "overlapping pieces are not refused"
echo "the pipeline's example and measurement hold"
