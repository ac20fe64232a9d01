#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What encryption costs, in one run: perf net with GANTRY_ENCRYPT=require and off, a plain TCP stream beside each, and AES-128-GCM
# alone by `openssl speed`. Says whether encrypted bandwidth is at least 0.8 of the smaller of raw TCP and AES-GCM of the
# cores that encrypt: one for each lane, at most half of the CPUs, since the other half decrypts.
#
#   bench/encrypt.sh [FILE] [ROUNDS]
#
# JSON lines are appended to FILE (bench/results/<date>-<arch>-encrypt.jsonl). The exit status is that of the measurement:
# a missed ratio is a finding, not a failure. SIZES chooses other sizes, LANES sockets per connection.
set -u
source_dir=${SOURCE_DIR:-$(cd "$(dirname "$0")/.." && pwd)}
build_dir=${BUILD_DIR:-$source_dir/build}
file=${1:-$source_dir/bench/results/$(date +%F)-$(uname -m)-encrypt.jsonl}
rounds=${2:-3}
lanes=${LANES:-1}
mkdir -p "$(dirname "$file")"
run=$(mktemp)
trap 'rm -f "$run"' EXIT
export GANTRY_IFNAME=lo GANTRY_SECRET=${GANTRY_SECRET:-bench/encrypt.sh is not a secret} GANTRY_LANES=$lanes
cores=$(($(nproc) / 2))
[ "$lanes" -ge "$cores" ] || cores=$lanes
status=0
for round in $(seq "$rounds"); do
	aes=$(openssl speed -seconds 1 -bytes 65536 -evp aes-128-gcm 2>/dev/null | awk '$1 ~ /AES-128-GCM/ {print $2 / 1e6}')
	echo "{\"series\": \"aes\", \"round\": $round, \"cores\": $cores, \"core_gbs\": ${aes:-0}}" >>"$run"
	for how in off require; do
		for size in ${SIZES:-1M 16M}; do
			GANTRY_ENCRYPT=$how timeout 120 "$build_dir/gantry" perf net --raw --json -b "$size" -e "$size" |
				sed "s/^{/{\"series\": \"$how\", \"round\": $round, /" >>"$run" || status=1
		done
	done
done
{ echo "{\"bench\": \"encrypt\", \"date\": \"$(date -u +%FT%TZ)\", \"lanes\": $lanes, \"cpus\": $(nproc)}"; cat "$run"; } >>"$file"
python3 - "$run" <<'PY'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
middle = lambda values: statistics.median(values) if values else 0
aes = middle([r["core_gbs"] * r["cores"] for r in rows if r["series"] == "aes"])
print(f"AES-128-GCM {aes:.2f} GB/s")
for size in sorted({r["bytes"] for r in rows if "bytes" in r}):
    of = lambda how, key: middle([r[key] for r in rows if r.get("bytes") == size and r["series"] == how])
    raw, plain, sealed = of("require", "raw_bw_gbs"), of("off", "bw_gbs"), of("require", "bw_gbs")
    ratio = sealed / min(raw, aes) if raw and aes else 0
    print(f"{size:>10} B: raw TCP {raw:.2f}, off {plain:.2f}, encrypted {sealed:.2f} GB/s; "
          f"{ratio:.2f} of the smaller of raw TCP and AES-GCM, 0.8 is {'met' if ratio >= 0.8 else 'missed'}; "
          f"both after one another {1 / (1 / raw + 1 / aes):.2f}" if raw and aes else f"{size} B: not measured")
PY
exit $status
