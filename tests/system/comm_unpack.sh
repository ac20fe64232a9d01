#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# UNPACK under the communicator: what a network received as fragments is gathered by the receiving kernel, or read straight
# into a reduction, and right; through Gantry's own network, through its plugin, and through another one. LONG=1: more
# collectives, types and shapes.
# Catches: wrong data, a stall from the 17th receive on (no irecvConsumed), lists in another order than the kernel's, a
# kernel that gathers first and reduces then, a list that cannot be and is believed.
. "$(dirname "$0")/lib.sh"
clean_environment
export GANTRY_IFNAME=lo GANTRY_LOG=warn
no_leaks
export GANTRY_UNPACK_POOL=16M GANTRY_UNPACK_LANDING=8M # per rank

perf() { # OP ARGUMENT...
	local few=--check-only
	[ "$1" != sendrecv ] || few="-n 20 -w 1 --repeats 1"
	timeout 100 "$gantry" perf "$@" --transport net $few --timeout 60s
}

# run MODES ARGUMENT...: of perf over net; every line with data has these modes, but for LL's.
run() {
	local modes=$1
	shift
	perf "$@" --json >"$tmp/out" 2>&1 || { cat "$tmp/out"; die "$*: $?"; }
	python3 - "$tmp/out" "$modes" <<'PY' || die "$*: expected modes $modes"
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1]) if '"bytes"' in l]
rows = [r for r in rows if r["bytes"] and r["proto"] == "simple"]
bad = [r for r in rows if not set(sys.argv[2].split("+")) <= set(r["mode"].split("+")) or r.get("wrong")]
for r in bad: print("mode %s wrong %s at %s" % (r["mode"], r.get("wrong"), r["bytes"]))
sys.exit(bool(bad) or not rows)
PY
	echo "-- $*"
}

# fails TEXT WRONG ARGUMENT...
fails() {
	local text=$1 wrong=$2
	shift 2
	GANTRY_TEST_LIST=$wrong perf "$@" >"$tmp/out" 2>&1 && die "$wrong: no error"
	has out "$text"
	echo "-- $wrong: $*"
}

export GANTRY_UNPACK=emulated
shapes="pages random"
[ -z "${LONG:-}" ] || shapes="pages mtu1500 mtu9000 odd random bytes"
for shape in $shapes; do
	export GANTRY_EMU_SHAPE=$shape
	# The ring has one source beside the input and reduces on the way; direct2 with 3 ranks has two.
	run unpack+reduce all_reduce --ranks 2 -b 4 -e 2M -f 29
	run unpack+reduce all_reduce --ranks 3 --algo ring -b 100 -e 1M -f 100
	run unpack all_reduce --ranks 3 --algo direct2 -b 100k -e 100k
	run unpack sendrecv --ranks 2 -b 40k -e 3M -f 9 --odd
done
# Sources in the order of ranks, whatever arrives first: the bits of all ranks are compared.
run unpack+reduce all_reduce --ranks 2 --algo direct -b 30k -e 30k -d int8,half,bfloat16,float,double,f8e4m3 -o all -c bits
run unpack all_gather --ranks 3 -b 100k -e 100k
[ -z "${LONG:-}" ] || run unpack collectives --ranks 4 -b 64 -e 1M -f 37 -d all

# The same network as a plugin of NCCL's interface; and another plugin, with lists in reverse, not all of a message in them.
run unpack+reduce all_reduce --ranks 2 --plugin "$BUILD_DIR/lib/libnccl-net-gantry.so" -b 100k -e 100k
unset GANTRY_UNPACK
other=$BUILD_DIR/fixtures/libnccl-net-unpack.so
run unpack+reduce all_reduce --ranks 2 --plugin "$other" -b 8 -e 1M -f 32
like out "getDeviceMr: [1-9][0-9]* times" # for each buffer that is registered for receiving
run unpack+reduce all_reduce --ranks 3 --algo ring --plugin "$other" -b 1M -e 1M -d half -o max
run unpack sendrecv --ranks 2 --plugin "$other" -b 100k -e 4M -f 8

# Lists that cannot be.
for wrong in count range sum; do
	fails "ERR_PROTOCOL: a kernel received" $wrong all_reduce --ranks 2 --plugin "$other" -b 1M -e 1M
done
fails "ERR_PROTOCOL: a kernel received" sum sendrecv --ranks 2 --plugin "$other" -b 4M -e 4M
fails "has needsProxyProgress 0" progress all_reduce --ranks 2 --plugin "$other" -b 8 -e 8
fails "accept of rank" handle all_reduce --ranks 2 --plugin "$other" -b 8 -e 8

# Ranks that do not agree, with a link for all channels and with one for each.
for links in one channel; do
	for rank in 1 0; do
		GANTRY_UNPACK=$([ $rank = 0 ] && echo off || echo emulated) GANTRY_NET_LINKS=$links RANK=$rank WORLD_SIZE=2 MASTER_ADDR=here \
			timeout 60 "$gantry" perf all_reduce --id-file "$tmp/id.$links" --channels 2 --transport net -b 1M -e 1M --check-only \
			--timeout 20s >"$tmp/out.$rank" 2>&1 &
		eval "pid$rank=$!"
	done
	wait $pid0; rc=$?
	wait $pid1
	[ $rc != 0 ] && grep -q "set the same GANTRY_UNPACK on" "$tmp"/out.? || { cat "$tmp"/out.?; die "GANTRY_UNPACK differs"; }
done
