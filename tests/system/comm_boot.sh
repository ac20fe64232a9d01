#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# 256 ranks over net on whatever CPUs there are, as threads and as processes, with nothing set: they start, all-reduce and
# end, and the root carries some hundred bytes for each and not everybody's entry for everybody. Then a few ranks of which
# one dies while they start: the others name it, in time. `BOOT_RANKS=1000 comm_boot.sh` for more.
# Catches: traffic of the root that grows with the square of the ranks, ranks that keep each other from the CPU, limits
# that many ranks meet, a death in the exchange that hangs the others or is blamed on somebody else.
. "$(dirname "$0")/lib.sh"
no_leaks
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error}
driver=$BUILD_DIR/drivers/comm_boot
ranks=${BOOT_RANKS:-256}
if [ -n "${GANTRY_SANITIZED:-}" ]; then
	ranks=24
	export GANTRY_EXCHANGE_RANKS=2
fi

start() { # HOW RANKS
	timeout 120 "$driver" "$1" "$2" >"$tmp/out" || die "$1 $2 (exit status $?)"
	cat "$tmp/out"
	python3 - "$tmp/out" "$2" <<-'EOF' || die "the root carried more than it should"
		import json, sys
		o = json.load(open(sys.argv[1]))
		# READY, GATHER, HAVE, GATHERED, the clock; and signs of life, which a slow start makes more of
		sys.exit(not (o["root_in"] + o["root_out"] < int(sys.argv[2]) * 2000))
	EOF
}
start processes "$ranks"
[ "$ranks" -gt 256 ] || start threads "$ranks"

# A rank that is killed before it came is late for all that the others know: GANTRY_CALL_TIMEOUT ends that.
export GANTRY_EXCHANGE_RANKS=2 GANTRY_CONNECT_TIMEOUT=2s GANTRY_CALL_TIMEOUT=2s GANTRY_TIMEOUT=1s
for victim in "3 -1" "0 -1" "3 100"; do
	# shellcheck disable=SC2086
	timeout 60 "$driver" processes 12 $victim >"$tmp/out" 2>"$tmp/err" || die "victim $victim (exit status $?)"
	cat "$tmp/out"
done
exit $failed
