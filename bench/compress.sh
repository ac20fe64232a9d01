#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether compressing what a transformer sends would pay: ratio and CPU time of lz4 and zstd, with and without transposition, on the
# data of bench/compress_data.py, and transfers through a limited link between two network namespaces, with and without.
#
#   bench/compress.sh [FILE] [ROUNDS]     as root; PYTHON=python3 with PyTorch; DATA=FOLDER keeps the data, and uses what is there;
#                                         RATES="1 10 25" (Gbit/s) SENT=text-late-grad.bf16 WAYS="bytes+zstd1 exponent+huff bits+lz4"
#
# JSON lines are appended to FILE (build/bench/compress.jsonl); bench/compress_verdict.py FILE prints the tables, for bench/results, and
# computes what a pipeline of compressing, sending and expanding takes. CPU times are of one thread, medians of ROUNDS (5) rounds in
# which all ways take turns; so do the transfers, whose two ends are pinned to a core each where there are two. tbf limits the link. On
# a busy machine its timer is late and even a plain transfer stays below the limit: `chrt -r 5 bench/compress.sh` helps for the few
# seconds that the transfers take. PARTS="measure transfer" names the parts that are done.
# Without root or tbf the transfers are left out, and the exit status is 77.
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/.." && pwd)}
. "$SOURCE_DIR/tests/system/lib.sh"
file=${1:-$BUILD_DIR/bench/compress.jsonl}
rounds=${2:-5}
data=${DATA:-$tmp/data}
sent=${SENT:-text-late-grad.bf16}
mkdir -p "$(dirname "$file")"
cc -O3 -march=native -D_GNU_SOURCE -pthread -I "$SOURCE_DIR/tools" -o "$tmp/compress" \
	"$SOURCE_DIR"/{bench/compress,tools/common/raw_tcp}.c -ldl -lm || exit 1
[ -e "$data/text-late-back.f16" ] || "${PYTHON:-python3}" "$SOURCE_DIR/bench/compress_data.py" "$data" || skip "no data: PyTorch is needed"

model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
printf '{"bench": "compress", "date": "%s", "commit": "%s", "machine": "%s, %s x %s, Linux %s", "load": "%s", "block": 524288, "rounds": %s, "lz4": "%s", "zstd": "%s"}\n' \
	"$(date -u +%FT%TZ)" "$(git -C "$SOURCE_DIR" rev-parse --short=12 HEAD 2>/dev/null)" "$(uname -m)" "$(nproc)" "${model:-unknown CPU}" \
	"$(uname -r)" "$(cut -d' ' -f1-3 /proc/loadavg)" "$rounds" \
	"$(lz4 --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)" "$(zstd --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)" >>"$file"
if [[ ${PARTS:-measure} == *measure* ]]; then
	"$tmp/compress" measure "$rounds" "$data"/*.{f32,bf16,f16} >>"$file" || die "the measurement failed"
fi
[[ ${PARTS:-transfer} == *transfer* ]] || exit 0

need ip tc
need_netns exec
a=gca$$ b=gcb$$
netns $a $b || skip "namespaces cannot be made"
ip -n $a link add eth0 mtu 9000 type veth peer name eth0 netns $b mtu 9000 || skip "no veth"
ip -n $a addr add 10.78.0.1/24 dev eth0 && ip -n $a link set eth0 up
ip -n $b addr add 10.78.0.2/24 dev eth0 && ip -n $b link set eth0 up
for ns in $a $b; do ip netns exec "$ns" sh -c 'echo reno >/proc/sys/net/ipv4/tcp_congestion_control' || die "no reno"; done
pin() { if [ "$(nproc)" -ge 2 ]; then taskset -c "$@"; else "${@:2}"; fi; }
# once RATE ROUND WAY FILE
once()
{
	local passes=$(((128 << 20) * ($1 > 1 ? 4 : 1) / $(stat -c %s "$4"))) port receiver
	: >"$tmp/receiver"
	pin 1 timeout 120 ip netns exec $b "$tmp/compress" receive 10.78.0.2 "$3" $passes "$4" >"$tmp/receiver" &
	receiver=$!
	await grep -q . "$tmp/receiver" || die "the receiver does not listen"
	port=$(head -n 1 "$tmp/receiver")
	pin 0 timeout 120 ip netns exec $a "$tmp/compress" send 10.78.0.2 "$port" "$3" $passes "$4" >"$tmp/sender" || die "the sender fails"
	wait $receiver || die "the receiver fails"
	sed -n "2s/^{/{\"gbit_per_s\": $1, \"round\": $2, \"data\": \"$(basename "$4")\", \"load\": $(cut -d' ' -f1 /proc/loadavg), $(sed 's/.*\("sender.*\)}/\1/' "$tmp/sender"), /p" "$tmp/receiver" >>"$file"
}
for rate in ${RATES:-1 10 25}; do
	tc -n $a qdisc replace dev eth0 root tbf rate "${rate}gbit" burst $((rate * 250000)) limit $((rate * 2500000)) || skip "no limit: tc has no tbf here"
	for round in $(seq "$rounds"); do
		for name in $sent; do
			for way in none ${WAYS:-bytes+zstd1 exponent+huff bits+lz4}; do once "$rate" "$round" "$way" "$data/$name"; done
		done
	done
done
"$SOURCE_DIR/bench/compress_verdict.py" "$file"
