#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# What a net plugin's device says of itself is kept by the communicator, or the device is refused by name.
# Catches: messages larger than maxP2pBytes, a device type that nobody unpacks (it hung after 16 receives), a refusal that
# does not say who, what and what to do.
set -u
gantry=$BUILD_DIR/gantry
plugin=$BUILD_DIR/fixtures/libnccl-net-device.so
unset GANTRY_NET_STEP GANTRY_NET_BUFFERS GANTRY_NET_DEVICE GANTRY_UNPACK
export GANTRY_IFNAME=lo GANTRY_LOG=warn
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # seconds per process; lifecycle.sh looks for leaks
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
few="-n 3 -w 1 --repeats 1 --timeout 100s"
failed=0

# run STATUS NAME=VALUE... -- ARGUMENT...: of perf sendrecv over net.
run() {
	local want=$1 settings=() rc
	shift
	while [ "$1" != -- ]; do
		settings+=("$1")
		shift
	done
	shift
	env "${settings[@]}" timeout 200 "$gantry" perf sendrecv --transport net --plugin "$plugin" "$@" $few >"$tmp/out" 2>&1
	rc=$?
	echo "-- ${settings[*]} $*: $rc"
	[ $rc = "$want" ] && return
	echo "FAILED: exit status $rc, expected $want"
	cat "$tmp/out"
	failed=1
}
has() {
	grep -qF -- "$1" "$tmp/out" && return
	echo "FAILED: no word of '$1' in"
	cat "$tmp/out"
	failed=1
}

# Around the limit and far above (maxRecvs 1: this plugin cannot hold back a send whose tag is not in the oldest group),
limits="65536 70001"
[ -z "${GANTRY_SANITIZED:-}" ] || limits=70001
for limit in $limits; do
	for mode in auto normal offset ptr; do
		for channels in 1 4; do
			run 0 GANTRY_TEST_MAX_P2P=$limit GANTRY_TEST_MAX_RECVS=1 GANTRY_SPLIT_MIN=4096 -- --mode $mode --channels $channels \
				-b 65536 -e 5M -f 80 --odd
			has "# wrong bytes: 0; OK"
		done
	done
done
run 0 GANTRY_TEST_MAX_P2P=16384 -- -b 8 -e 64k -f 16 --proto ll
run 0 GANTRY_TEST_MAX_P2P=16384 -- -b 8 -e 64k -f 16 --proto ll128

# One end with a smaller limit: both cut by it.
for rank in 1 0; do
	GANTRY_TEST_MAX_P2P=$((65536 << rank)) RANK=$rank WORLD_SIZE=2 MASTER_ADDR=here timeout 200 "$gantry" perf sendrecv \
		--id-file "$tmp/id" --transport net --plugin "$plugin" -b 64k -e 1M -f 16 $few >"$tmp/out.$rank" 2>&1 &
	eval "pid$rank=$!"
done
wait $pid0 && wait $pid1 && grep -q "wrong bytes: 0; OK" "$tmp/out.0" || { echo "FAILED: limits differ"; cat "$tmp"/out.?; failed=1; }

# Refused, by name, and at once.
run 1 GANTRY_TEST_DEVICE_TYPE=1 -- -b 8 -e 8
has ERR_UNSUPPORTED
has "network simple"
has libnccl-net-device.so
has "device 0 (simple)"
has "device type 1 (UNPACK)"
has "GANTRY_UNPACK=off"
run 1 GANTRY_TEST_DEVICE_TYPE=7 -- -b 8 -e 8
has "device type 7 (unknown)"
run 1 GANTRY_TEST_PTR_SUPPORT=2 -- -b 8 -e 8
has "does not take host memory (ptrSupport 0x2)"
run 1 GANTRY_TEST_MAX_P2P=16383 -- -b 8 -e 8
has "16383 bytes at most (maxP2pBytes), the communicator needs 16384"
run 1 GANTRY_TEST_MAX_P2P=0 -- -b 8 -e 8
has "maxP2pBytes"
run 1 GANTRY_TEST_MAX_RECVS=0 -- -b 8 -e 8
has "maxRecvs 0"
plugin=$BUILD_DIR/lib/libnccl-net-gantry.so
run 1 GANTRY_UNPACK=emulated -- -b 8 -e 8
has "network gantry"
has "device type 1 (UNPACK)"
run 0 GANTRY_UNPACK=off -- -b 8 -e 64k -f 16
exit $failed
