#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# `gantry run`: the library is preloaded, beside what is already; exit status, output and signals are the program's; -n
# starts ranks with a launcher's variables, and ends the others when one fails; MPS is started only where ranks share a GPU
# and none runs, and is gone at the end.
. "$(dirname "$0")/lib.sh"
clean_environment
no_leaks
unset LD_PRELOAD CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY MASTER_PORT
lib=$(realpath "$BUILD_DIR/lib/libnccl.so.2") || skip "no libnccl.so.2"
[ -z "${GANTRY_SANITIZED:-}" ] || skip "a library with sanitizers is preloaded into programs with sanitizers only"
tested=("$gantry" run)

expect 0 -- bash -c 'echo "$LD_PRELOAD"; echo "$POSIXLY_CORRECT" >&2'
[ "$(cat "$tmp/out")" = "$lib" ] || die "another library: $(cat "$tmp/out")"
[ "$(cat "$tmp/err")" = "" ] || die "it says something"
LD_PRELOAD=/nowhere.so expect 0 env # the linker complains of it, which is right
has out "LD_PRELOAD=$lib:/nowhere.so"
expect 5 bash -c 'exit 5' -n 3
expect 127 -- /nowhere/program
expect 126 -- /etc/passwd
expect 2
has err "no program given"
expect 2 --library /nowhere/libnccl.so.2 -- true
has err "/nowhere/libnccl.so.2: No such file"
expect 2 -n 0 -- true
expect 2 --wrong -- true

# Ranks.
expect 0 -n 3 -- bash -c 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port} $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $(wc -c)"' </dev/null
diff <(sort "$tmp/out") <(for r in 0 1 2; do echo "$r 3 $r 3 127.0.0.1 port $r 3 0"; done) || die "the ranks' variables"
[ ! -s "$tmp/err" ] || die "it says something"
MASTER_PORT=4711 MASTER_ADDR=node7 expect 0 -n 2 bash -c 'echo "$MASTER_ADDR $MASTER_PORT"'
[ "$(sort -u "$tmp/out")" = "node7 4711" ] || die "MASTER_ADDR and MASTER_PORT of the caller"
echo hello | "$gantry" run -n 2 -- cat >"$tmp/out" || die "cat"
[ "$(cat "$tmp/out")" = hello ] || die "standard input is not rank 0's alone"

# The first failure's status; the others do not stay.
start=$SECONDS
expect 9 -n 3 -- bash -c '[ $RANK = 1 ] && exit 9; exec sleep 100'
has err "rank 1 (pid"
has err "ended with status 9"
expect 137 -n 2 -- bash -c '[ $RANK = 0 ] && kill -9 $$; trap "" TERM; sleep 3; exit 0'
[ $((SECONDS - start)) -lt 60 ] || die "the others stay"
has err "was ended by signal 9"

# Signals are passed on, and a parent that is killed leaves nobody.
mark=$tmp/mark
"$gantry" run -n 2 -- bash -c 'trap "echo usr1 >>'"$mark"'" USR1; trap "exit 4" TERM; echo $$ >>'"$mark"'.pids; while :; do sleep 0.05; done' 2>/dev/null &
top=$!
two() { [ "$(cat "$mark.pids" 2>/dev/null | wc -l)" = 2 ]; }
await two || die "two ranks do not start"
kill -USR1 $top
twice() { [ "$(cat "$mark" 2>/dev/null | wc -l)" = 2 ]; }
await twice || die "USR1 is not passed on"
kill $top
wait $top
[ $? = 4 ] || die "the status after a signal"
await all_gone $(cat "$mark.pids") || die "ranks are left"
rm "$mark.pids"
"$gantry" run -n 2 -- bash -c 'echo $$ >>'"$mark"'.pids; exec sleep 1000' &
top=$!
await two || die "two ranks do not start"
kill -9 $top
await all_gone $(cat "$mark.pids") || die "ranks outlive a parent that was killed"
wait $top 2>/dev/null
echo "ok: signals"

# A program of NCCL's.
export GANTRY_NCCL_DEVICE=host GANTRY_IFNAME=lo
if [ -x "$BUILD_DIR/nccl/api" ]; then
	expect 0 -n 3 -- "$BUILD_DIR/nccl/api" launched "$tmp/ids" init sendrecv all_reduce
fi

# MPS, by stand-ins: a driver that shows GPUs, and a daemon's command that keeps a file as long as it runs.
[ -f "$BUILD_DIR/fixtures/cuda/libcuda.so.1" ] || skip "no stand-in for the CUDA driver"
export LD_LIBRARY_PATH=$BUILD_DIR/fixtures/cuda
mkdir "$tmp/bin"
cat >"$tmp/bin/nvidia-cuda-mps-control" <<'EOF'
#!/bin/bash
pipes=${CUDA_MPS_PIPE_DIRECTORY:-$DEFAULT_PIPES}
[ -z "$LD_PRELOAD" ] || echo "preloaded" >>"$MPS_LOG"
if [ "${1:-}" = -d ]; then echo start >>"$MPS_LOG"; touch "$pipes/control"; exit; fi
read -r command
[ -e "$pipes/control" ] || exit 1
echo "$command" >>"$MPS_LOG"
[ "$command" != quit ] || rm "$pipes/control"
EOF
chmod +x "$tmp/bin/nvidia-cuda-mps-control"
mkdir "$tmp/pipes"
export PATH=$tmp/bin:$PATH MPS_LOG=$tmp/mps DEFAULT_PIPES=$tmp/pipes
gpus=$(sed -nE 's/.*FAKE_GPUS = ([0-9]+).*/\1/p' "$SOURCE_DIR"/tests/fixtures/cuda/*.h)
[ "${gpus:-0}" -ge 1 ] || die "how many GPUs the stand-in shows is not to be found"
more=$((gpus + 1))
# run_mps WANT ARGUMENT...: what `gantry run` told the daemon's command.
run_mps() {
	local want=$1
	shift
	: >"$MPS_LOG"
	timeout 100 "$gantry" run "$@" >"$tmp/out" 2>"$tmp/err"
	[ "$(xargs <"$MPS_LOG")" = "$want" ] || die "gantry run $*: MPS was told '$(xargs <"$MPS_LOG")', expected '$want'"
	echo "ok: gantry run $*: ${want:-no MPS}"
}
show='test -e "$CUDA_MPS_PIPE_DIRECTORY/control" && echo "$CUDA_MPS_PIPE_DIRECTORY"'
run_mps "start get_server_list quit" -n $more -- bash -c "$show"
[ "$(wc -l <"$tmp/out")" = $more ] && [ "$(sort -u "$tmp/out" | wc -l)" = 1 ] || die "the ranks do not see it"
[ ! -e "$(head -n 1 "$tmp/out")" ] || die "its folder is left"
has err "$more ranks on $gpus GPU"
run_mps "" -n "$gpus" -- true
run_mps "" --mps off -n $more -- true
run_mps "start get_server_list quit" --mps on -- bash -c "$show"
run_mps "start get_server_list quit" -- bash -c "$show" torchrun --nproc-per-node=$more
run_mps "start get_server_list quit" -- bash -c "$show" --nproc_per_node $more
run_mps "" -- bash -c "$show" -n $more
LOCAL_WORLD_SIZE=$more RANK=0 WORLD_SIZE=$more MASTER_ADDR=x run_mps "start get_server_list quit" -- bash -c "$show"
touch "$tmp/pipes/control"
run_mps "get_server_list" -n $more -- true
rm "$tmp/pipes/control" "$tmp/bin/nvidia-cuda-mps-control"
run_mps "" -n $more -- true
has err "they will take turns"
ls -d /tmp/gantry-mps-* 2>/dev/null && die "a folder is left"
exit $failed
