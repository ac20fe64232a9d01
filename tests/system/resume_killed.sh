#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Fifty connections of a job are reset, one after the other and drawn at random, while it runs, and every byte and sum is right: of
# NCCL's calls over the plugin, of NCCL's API in place of NCCL (the drop-in on the host device), and of both encrypted.
# Catches: a message that is lost, doubled or torn when its lane goes, a control plane that dies with its socket, a session that ends.
. "$(dirname "$0")/lib.sh"
own_network "$0"
clean_environment
no_leaks
reset=$BUILD_DIR/drivers/reset_socket api=$BUILD_DIR/nccl/api
first=21000 last=21999
export GANTRY_RESUME=on GANTRY_IFNAME=lo GANTRY_PORT_RANGE=$first-$last GANTRY_TIMEOUT=20s GANTRY_LOG=info
export LD_LIBRARY_PATH=$BUILD_DIR/lib GANTRY_NCCL_DEVICE=host GANTRY_TRANSPORT=net
times=${TIMES:-50}
job=
at_exit() { [ -z "$job" ] || kill "$job" 2>/dev/null; }

# survives NAME COMMAND...: it runs until the file $until is there, and ends well. Its ranks are children of it.
survives()
{
	local name=$1 n=0 seed=0 pids p status
	shift
	until=$tmp/$name.until
	rm -f "$until"
	SUMS_UNTIL=$until timeout 200 "$@" >"$tmp/$name.out" 2>"$tmp/$name.err" &
	job=$!
	await has_ranks "$job" || die "$name: no ranks"
	await grep -q 'link .* up' "$tmp/$name.err" || { cat "$tmp/$name.err"; die "$name: no link"; }
	pids=($(ranks_of "$job"))
	while [ $n -lt "$times" ] && [ $seed -lt $((20 * times)) ] && kill -0 "$job" 2>/dev/null; do
		seed=$((seed + 1))
		p=${pids[seed % ${#pids[@]}]}
		"$reset" "$p" $first $last $seed >>"$tmp/$name.reset"
		status=$?
		[ $status != 77 ] || { touch "$until"; wait "$job"; skip "$(tail -n 1 "$tmp/$name.reset")"; }
		[ $status != 0 ] || n=$((n + 1))
		sleep 0.05
	done
	touch "$until"
	wait "$job" || { grep -vE ' INFO ' "$tmp/$name.err" "$tmp/$name.out" | tail -n 20; die "$name: it did not survive $n resets"; }
	[ $n = "$times" ] || die "$name: only $n of $times connections were there to be reset"
	job=
	echo "ok: $name: $n connections reset, $(grep -c 'is back after' "$tmp/$name.err") lanes replaced ($SECONDS s)"
	grep -q 'is back after' "$tmp/$name.err" || die "$name: no lane was replaced"
}
# The ranks: children of the command that `timeout` runs.
ranks_of() { pgrep -P "$(pgrep -P "$1" | head -n 1)"; }
has_ranks() { [ "$(ranks_of "$1" 2>/dev/null | wc -l)" -ge 2 ]; }

# nccl_job COLLECTIVES is more than it can do meanwhile.
plugin() { survives "$1" "$BUILD_DIR/drivers/nccl_job" 2 2 1000000 8 "$2" until "$tmp/$1.until"; }
plugin plugin_64k 65536
plugin plugin_1m 1000000
[ ! -x "$api" ] || survives dropin "$api" processes 2 sums
if has_openssl && ldconfig -p | grep -q libssl.so; then
	export GANTRY_SECRET='not for anybody else' GANTRY_ENCRYPT=require
	plugin plugin_encrypted 300000
	[ ! -x "$api" ] || survives dropin_encrypted "$api" processes 2 sums
fi
