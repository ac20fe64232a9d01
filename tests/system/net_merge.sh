#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a net plugin says about its NICs: which the communicator merges into one device, and what the cost model makes of their
# latency and bandwidth.
# Catches: NICs with the same guid and port that are merged or counted twice, a slow or far NIC in a merged device, a refusal
# of the plugin that ends the communicator, a latency that the estimate ignores.
. "$(dirname "$0")/lib.sh"
plugin=$BUILD_DIR/fixtures/libnccl-net-device.so
clean_environment
export GANTRY_IFNAME=lo GANTRY_LOG=warn
no_leaks

# run NAME=VALUE... -- ARGUMENT...: of perf sendrecv over net.
run() {
	local settings=()
	while [ "$1" != -- ]; do
		settings+=("$1")
		shift
	done
	shift
	env "${settings[@]}" timeout 100 "$gantry" perf sendrecv --transport net --plugin "$plugin" "$@" -n 3 -w 1 --repeats 1 \
		--timeout 60s >"$tmp/out" 2>&1 || { cat "$tmp/out"; die "${settings[*]} $*: exit status $?"; }
	has out "# wrong bytes: 0; OK"
}

# NICs are merged where the plugin can: the ports of a card, what lies further apart if it is asked for, by name or by distance;
# devices with the same guid and port are one NIC, and a slow one is left out. Each communicator asks anew and gets the same device.
merged() { # "DEVICES" NAME=VALUE...
	local devices=$1
	shift
	run GANTRY_TEST_FUSE=1 GANTRY_TEST_DEVICES=4 "$@" -- -b 8 -e 64k -f 64
	like out "listen at device [0-9] \\(${devices//+/\\+}\\)"
	like out "connect at device [0-9] \\(${devices//+/\\+}\\)"
	[ "$(sed -n 's/^\(listen\|connect\) at //p' "$tmp/out" | sort -u | wc -l)" = 1 ] || die "$*: several devices"
}
pci=/x/pci0000:00
cards=$pci/0000:00:01.0/0000:03:00.0,$pci/0000:00:01.0/0000:03:00.1,$pci/0000:00:02.0/0000:41:00.0,/x/pci0000:80/0000:81:00.0
switches=$pci/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0,$pci/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0
switches=$switches,$pci/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0/0000:06:00.0,$pci/0000:00:02.0/0000:41:00.0
merged "0" GANTRY_TEST_NICS=1/1,2/1,3/1,4/1
merged "0+1" GANTRY_TEST_NICS=1/1,1/2,3/1,4/1
merged "0" GANTRY_TEST_NICS=1/1,1/1,3/1,4/1
merged "0" GANTRY_TEST_NICS=1/1,1/2,3/1,4/1 GANTRY_NET_MERGE=off
merged "0+1" GANTRY_TEST_PCI=$cards
merged "0+1+2" GANTRY_TEST_PCI=$cards GANTRY_NET_MERGE=phb
merged "0+1+2+3" GANTRY_TEST_PCI=$cards GANTRY_NET_MERGE=sys
merged "0+2+3" GANTRY_TEST_PCI=$cards GANTRY_NET_MERGE=sys GANTRY_TEST_NICS=1/1,1/1,3/1,4/1
merged "0+1" GANTRY_TEST_PCI=$switches GANTRY_NET_MERGE=pix
merged "0+1+2" GANTRY_TEST_PCI=$switches GANTRY_NET_MERGE=pxb
merged "0+1+2" GANTRY_NET_MERGE=sys # 3 is slow
merged "0+1+2+3" GANTRY_NET_MERGE=off GANTRY_NET_FORCE_MERGE="x,y;z,simple"
merged "0" GANTRY_NET_FORCE_MERGE="x,y;simpl,simple1" GANTRY_NET_MERGE=off GANTRY_TEST_PCI=$cards
merged "2" GANTRY_TEST_PCI=$cards GANTRY_NET_DEVICE=2 GANTRY_NET_MERGE=sys
run GANTRY_TEST_FUSE=2 GANTRY_TEST_DEVICES=2 GANTRY_LOG=info GANTRY_NET_MERGE=sys -- -b 8 -e 8 # the plugin refuses
has out "2 NICs are not merged; using device 0 (simple) alone"
has out "listen at device 0 (0)"

# The cost model: a hop takes what the plugin says longer, and a host has the bandwidth of its NICs, each counted once.
explain() { # "LINE" BYTES NAME=VALUE...
	local line=$1 bytes=$2
	shift 2
	env "$@" timeout 100 "$gantry" perf all_reduce --ranks ${ranks:-2} --hosts 2 --transport net --plugin "$plugin" --explain --check-only --algo ring \
		--proto simple -b "$bytes" -e "$bytes" --timeout 60s >"$tmp/out" 2>&1 || { cat "$tmp/out"; die "$*: exit status $?"; }
	like out "$line"
}
explain "hosts, simple: a hop 8000 ns" 64k GANTRY_TEST_LATENCY=0
explain "hosts, simple: a hop 1508000 ns" 64k GANTRY_TEST_LATENCY=1500
# Two ranks send 16 MiB from host to host by 1000 Mbit/s, 8 ns a byte: 134.2 ms. Merged ports are twice as fast, one port in two
# guises is not; four ranks, of which two of a host have the same NIC, send half as much again: 201.3 ms.
nics() { # MS NAME=VALUE...
	local ms=$1
	shift
	explain "^# +ring +$ms[0-9]{3}\.[0-9]\*" 16M GANTRY_TEST_FUSE=1 GANTRY_TEST_DEVICES=2 GANTRY_TEST_SPEED=1000 "$@"
}
nics 134 GANTRY_NET_MERGE=off
nics 67 GANTRY_TEST_NICS=1/1,1/2
nics 134 GANTRY_TEST_NICS=1/1,1/1
ranks=4 nics "20[12]" GANTRY_NET_MERGE=off
# A plugin that one rank cannot start is an error of all ranks that names the rank.
for rank in 1 0; do
	GANTRY_TEST_INIT=$((rank * 2)) RANK=$rank WORLD_SIZE=2 MASTER_ADDR=here timeout 100 "$gantry" perf sendrecv --id-file "$tmp/id" \
		--transport net --plugin "$plugin" -b 8 -e 8 -n 1 -w 0 --repeats 1 --timeout 60s >"$tmp/out.$rank" 2>&1 &
	eval "pid$rank=$!"
done
! wait $pid0 && ! wait $pid1 || die "a plugin that does not start is no error"
grep -q "network of rank 1 .*: .*init gave ncclSystemError (2)" "$tmp/out.0" || { cat "$tmp"/out.?; die "rank 0 does not name rank 1"; }
