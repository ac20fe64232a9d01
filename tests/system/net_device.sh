#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# What a net plugin's device says of itself is kept by the communicator, or the device is refused by name.
# Catches: messages larger than maxP2pBytes, a device type that nobody knows, a refusal that
# does not say who, what and what to do.
. "$(dirname "$0")/lib.sh"
plugin=$BUILD_DIR/fixtures/libnccl-net-device.so
clean_environment
export GANTRY_IFNAME=lo GANTRY_LOG=warn
no_leaks
few="-n 3 -w 1 --repeats 1 --timeout 100s"

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
	[ $rc = "$want" ] || die "exit status $rc, expected $want"
}

# Around the limit and far above (maxRecvs 1: this plugin cannot hold back a send whose tag is not in the oldest group),
limits="65536 70001"
[ -z "${GANTRY_SANITIZED:-}" ] || limits=70001
for limit in $limits; do
	for mode in auto normal offset ptr; do
		for channels in 1 4; do
			run 0 GANTRY_TEST_MAX_P2P=$limit GANTRY_TEST_MAX_RECVS=1 GANTRY_SPLIT_MIN=4096 -- --mode $mode --channels $channels \
				-b 65536 -e 5M -f 80 --odd
			has out "# wrong bytes: 0; OK"
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
wait $pid0 && wait $pid1 && grep -q "wrong bytes: 0; OK" "$tmp/out.0" || { cat "$tmp"/out.?; die "limits differ"; }

# Flushed after every receive; and memory registered once for all connections, if the device says that this is enough.
run 0 GANTRY_NET_FLUSH=on -- -b 8 -e 1M -f 32
for mode in offset ptr; do
	run 0 GANTRY_TEST_GLOBAL=1 GANTRY_SPLIT_MIN=4096 -- --mode $mode --channels 4 -b 1M -e 1M
	has out "# wrong bytes: 0; OK"
	has out " net       $mode "
	lacks out "regMr gave"
done

# A network that takes GPU memory gets it as such, and is asked to flush it: in a ring and in the pool.
for mode in normal offset; do
	run 0 GANTRY_NET_FLUSH=on GANTRY_TEST_PTR_SUPPORT=3 -- --mode $mode --channels 2 -b 64k -e 1M -f 16
	has out "# wrong bytes: 0; OK"
	like out "GPU memory: registered [1-9][0-9]* times, flushed [1-9][0-9]* times"
done
run 0 GANTRY_NET_FLUSH=on GANTRY_NET_GDR=off GANTRY_TEST_PTR_SUPPORT=3 -- -b 64k -e 64k
lacks out "GPU memory"

# Hints: any operation before a connection is made, then what each operation is, and no hint twice in a row.
hints() { # PATTERN OP ARGUMENT...
	local pattern=$1
	shift
	GANTRY_TEST_HINTS=1 timeout 200 "$gantry" perf "$@" --transport net --plugin "$plugin" --timeout 100s >"$tmp/out" 2>&1 ||
		die "$*: $?"
	like out "setNetAttr: send 1/[1-9]* peers 1/2 flows, recv 1/[1-9]* peers 1/2 flows, op 0xffffffff algo 0xffffffff proto 0xffffffff"
	like out "$pattern"
	[ "$(grep -c "setNetAttr.*op 0x[0-9a-f]* algo 0x[0-9a-f]* proto 0x[0-9]$" "$tmp/out")" -le 60 ] || die "$*: hints that say nothing new"
}
hints "send 1/1 peers 1/1 flows.* op 0x40 algo 0xffffffff" sendrecv --channels 2 -b 64k -e 64k -n 3 -w 1 --repeats 1
hints "recv 1/1 peers 1/1 flows.* op 0x80 algo 0xffffffff" sendrecv --channels 2 -b 64k -e 64k -n 3 -w 1 --repeats 1
hints "op 0x10 algo 0x2 proto 0x4" all_reduce --ranks 3 --channels 2 --algo ring --proto simple --check-only -b 1M -e 1M
hints "op 0x4 algo 0x40 proto 0x1" all_gather --ranks 3 --channels 2 --algo pat --proto ll --check-only -b 96 -e 96
hints "recv 2/2 peers 1/1 flows, op 0x400 algo" gather --ranks 3 --channels 2 --check-only -b 64k -e 64k

# Of four devices the nearest is taken, if it is not too slow: here the CPUs count, on a machine that hwloc is told of.
for cpu in 0 1; do
	if "$gantry" doctor | grep -q "hwloc *yes" && taskset -c $cpu true 2>/dev/null; then
		HWLOC_XMLFILE=$SOURCE_DIR/tests/fixtures/two_nodes.xml GANTRY_TEST_DEVICES=4 GANTRY_LOG=info timeout 100 taskset -c $cpu \
			"$gantry" perf sendrecv --transport net --plugin "$plugin" -b 8 -e 8 $few >"$tmp/out" 2>&1 || die "on CPU $cpu"
		has out "network simple: device $((2 * cpu)) (simple), at the same NUMA node"
	fi
done

# A plugin that does not start ends the communicator with its reason, or the next of the list is taken, with a warning.
run 1 GANTRY_TEST_INIT=2 -- -b 8 -e 8
has out "libnccl-net-device.so: init gave ncclSystemError (2)"
last=$plugin
plugin=$last,none
run 0 GANTRY_TEST_INIT=2 -- -b 8 -e 64k -f 16
has out "cannot be used"
has out "init gave ncclSystemError (2)"
has out "# wrong bytes: 0; OK"
plugin=/nonexistent/libp.so,$last
run 0 GANTRY_TEST_INIT=0 -- -b 8 -e 64k -f 16
has out "/nonexistent/libp.so"
plugin=$last

# Refused, by name, and at once.
run 1 GANTRY_TEST_DEVICE_TYPE=1 -- -b 8 -e 8 # of a version that nobody knows
has out ERR_UNSUPPORTED
has out "network simple"
has out libnccl-net-device.so
has out "device 0 (simple)"
has out "device type 1 version 0"
has out "1 version 7 (UNPACK)"
run 1 GANTRY_TEST_DEVICE_TYPE=7 -- -b 8 -e 8
has out "device type 7 version 0"
run 1 GANTRY_TEST_PTR_SUPPORT=2 -- -b 8 -e 8
has out "does not support host memory (ptrSupport 0x2)"
run 1 GANTRY_TEST_MAX_P2P=16383 -- -b 8 -e 8
has out "16383 bytes (maxP2pBytes), but the communicator needs 16384"
run 1 GANTRY_TEST_MAX_P2P=0 -- -b 8 -e 8
has out "maxP2pBytes"
run 1 GANTRY_TEST_MAX_RECVS=0 -- -b 8 -e 8
has out "maxRecvs 0"
plugin=$BUILD_DIR/lib/libnccl-net-gantry.so
run 0 GANTRY_UNPACK=off -- -b 8 -e 64k -f 16
