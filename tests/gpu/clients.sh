#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Programs that use NCCL, as they are, on Gantry's libnccl.so.2, several ranks on one GPU: PyTorch (collectives of every kind,
# DDP and FSDP, whose losses are compared with those over stock NCCL), abort and again after a killed rank, the calls of
# DataParallel, CuPy. CLIENTS_RANKS: the numbers of ranks, "2 4 8" if not set.
. "$(dirname "$0")/lib_gpu.sh"
need_nccl
start_mps
sleep 1
failed=0
run() { timeout 200 "$BUILD_DIR/gantry" run "$@"; }
# result NAME LOG STATUS [PATTERN]: one line; the log's end if it failed.
result()
{
	if [ "$3" = 0 ]; then
		echo "ok: $1: $(grep -c . "$2") lines; $(grep -v '^ *$' "$2" | tail -n 1)"
	else
		failed=1
		echo "FAILED ($3): $1"
		tail -n 12 "$2"
	fi
}
log=$scratch/log
for n in ${CLIENTS_RANKS:-2 4 8}; do
	run -n "$n" -- python3 "$here/torch_rank.py" >"$log" 2>&1
	result "torch, $n ranks" "$log" $?
	timeout 200 python3 "$here/nccl_run.py" --ranks "$n" --program torch_rank.py >"$scratch/stock" 2>&1
	result "torch, $n ranks, stock NCCL" "$scratch/stock" $?
	python3 - "$log" "$scratch/stock" >"$scratch/losses" <<'PY'
import re, sys
def losses(path):
    rows = [m[1].split() for m in (re.match(r"rank \d+ wrong 0 losses (.*)", l) for l in open(path)) if m]
    assert rows and all(r == rows[0] for r in rows), f"{path}: losses differ between ranks or are missing"
    return [float(x) for x in rows[0]]
a, b = losses(sys.argv[1]), losses(sys.argv[2])
off = max(abs(x - y) / abs(y) for x, y in zip(a, b))
print(f"largest relative difference of {len(a)} losses: {off:.1e}")
sys.exit(len(a) != len(b) or off > 1e-5)
PY
	result "losses, $n ranks" "$scratch/losses" $?
	run -- python3 "$here/data_parallel.py" "$n" >"$log" 2>&1
	result "DataParallel's calls, $n ranks" "$log" $?
	rm -f "$scratch/id"
	run -n "$n" -- python3 "$here/cupy_rank.py" "$scratch/id" >"$log" 2>&1
	result "CuPy, $n ranks" "$log" $?
	[ "$n" -lt 3 ] || { run -- python3 "$here/torch_again.py" "$n" >"$log" 2>&1; result "killed rank, then again, $n ranks" "$log" $?; }
done
exit $failed
