#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Four rails between two network namespaces, one of them at an eighth of the others' rate: a fused device must carry at
# least 0.9 of the sum of what the rails carry one by one. A static split would carry four times the slowest. Output: JSON
# lines. RATES (Mbit/s), SECONDS_EACH, SIZE, DEPTH and FOREIGN
# (both sides take themselves for different hosts) can be set for experiments.
. "$(dirname "$0")/lib.sh"
driver=$BUILD_DIR/drivers/rails
a=gantry-ra-$$
b=gantry-rb-$$
read -ra rates <<<"${RATES:-640 640 640 80}"
seconds=${SECONDS_EACH:-4}
size=${SIZE:-16777216}
depth=${DEPTH:-8}
foreign=
[ -n "${KEEP_ENV:-}" ] || clean_environment GANTRY_LOG

[ -z "${GANTRY_SANITIZED:-}" ] || skip "a measurement: means nothing under a sanitizer"
need tc
need_netns exec
if [ -n "${FOREIGN:-}" ]; then
	printf '%s\n' first second >"$tmp/hosts"
	foreign="--foreign $tmp/hosts"
fi
netns "$a" "$b" || die "namespaces"

# tbf: a bucket of a few milliseconds, and a short queue behind it, as a NIC or a switch port has.
limit() {
	ip netns exec "$1" tc qdisc replace dev "$2" root tbf rate "$3mbit" burst 128kb latency 20ms 2>"$tmp/why" ||
		skip "cannot limit the rate of a veth: $(cat "$tmp/why")"
}
names=
for i in "${!rates[@]}"; do
	ip -n "$a" link add "rail$i" type veth peer name "rail$i" netns "$b" 2>"$tmp/why" || skip "cannot make a veth: $(cat "$tmp/why")"
	for n in "$a" "$b"; do
		[ "$n" = "$a" ] && host=1 || host=2
		ip -n "$n" addr add "10.77.$i.$host/24" dev "rail$i" && ip -n "$n" link set "rail$i" up || die "rail$i"
	done
	names=$names${names:++}rail$i
done
# The kernel takes a moment to notice that both ends are up.
all_up() { [ "$(ip -n "$1" -br link show type veth | grep -c ' UP ')" = ${#rates[@]} ]; }
for n in "$a" "$b"; do
	await all_up "$n" || die "the rails never came up"
done

# measure DEVICES SECONDS SIZE: a JSON line on stdout, the rate in $mbps.
measure() {
	"$driver" --size "$3" --depth "$depth" --seconds "$2s" $foreign "$a" "$b" "$1" >"$tmp/line" || die "$1: exit status $?"
	cat "$tmp/line"
	grep -q '"wrong": 0,' "$tmp/line" || die "$1: wrong bytes"
	mbps=$(sed 's/.*"mbps": \([0-9.]*\).*/\1/' "$tmp/line")
}

# one_by_one DIVISOR: sets the rates, divided by that, and measures each rail alone.
one_by_one() {
	sum=0
	min=1e9
	for i in "${!rates[@]}"; do
		for n in "$a" "$b"; do limit "$n" "rail$i" $((rates[i] / $1)); done
		measure "rail$i" 2 $((2097152 / $1)) # what is in flight must not take long on the slow one
		sum=$(awk "BEGIN { print $sum + $mbps }")
		min=$(awk "BEGIN { print $mbps < $min ? $mbps : $min }")
	done
}
# verdict SIZE LIMIT: compares the last measurement with the sum.
verdict() {
	awk -v n="${#rates[@]}" -v f="$mbps" -v s="$sum" -v m="$min" -v size="$1" -v limit="$2" 'BEGIN {
		printf "{\"size\": %d, \"fused_mbps\": %.1f, \"sum_mbps\": %.1f, \"ratio\": %.3f, \"static_split_mbps\": %.1f, \"static_split_ratio\": %.3f}\n",
			size, f, s, f / s, n * m, n * m / s
		exit !(f >= limit * s) }'
}
# reaches SECONDS SIZE LIMIT: in one of two measurements. Others on this machine can only make it less.
reaches() {
	for _ in 1 2; do
		measure "$names" "$1" "$2"
		verdict "$2" "$3" && return
	done
	return 1
}
# The second size is what NCCL has in flight for an all-reduce: a slow rail's socket alone could swallow it, so rails must
# be weighed. Where the CPUs cannot keep up with all rails at once, slower ones in the same proportion will do.
for divisor in 1 2 4 8; do
	one_by_one $divisor
	reaches "$seconds" $((size / divisor)) 0.9 && reaches 2 $((1048576 / divisor)) 0.85 && exit 0
done
die "the fused device carries less than 0.9 (or 0.85 in small messages) of the sum of its rails"
