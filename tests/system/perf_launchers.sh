#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# `gantry perf sendrecv` under mpirun, srun and torchrun: ranks find each other by what the launcher puts into their
# environment, also while torchrun's store has MASTER_PORT; with Open MPI or MPICH too, if they are here. A rank that waits
# says for whom, --id-file keeps to GANTRY_CONNECT_TIMEOUT and leaves no file, and what makes no sense is wrong usage
# instead of another measurement.
. "$(dirname "$0")/lib.sh"
own_network "$0"
clean_environment GANTRY_SECRET
pids=
at_exit() { kill $pids 2>/dev/null; }
few="-b 0 -e 4k -f 16 -n 2 -w 1 --repeats 1 --timeout 200s"

# ranks N ENVIRONMENT... -- ARGUMENT...: N ranks, the last first; R in the environment stands for the rank. All must end
# well, rank 0 alone prints, and no byte is wrong.
ranks() {
	local n=$1 r status=0 env=() ids=()
	shift
	while [ "$1" != -- ]; do env+=("$1"); shift; done
	shift
	for ((r = n - 1; r >= 0; r--)); do
		env "${env[@]/%=R/=$r}" timeout 280 "$gantry" perf sendrecv $few "$@" >"$tmp/$r.out" 2>"$tmp/$r.err" &
		ids+=($!)
	done
	for r in "${ids[@]}"; do wait "$r" || status=$?; done
	[ $status = 0 ] || die "${env[*]}: exit status $status"
	has 0.out "# wrong bytes: 0; OK"
	has 0.out "ranks: $n;"
	for ((r = 1; r < n; r++)); do [ ! -s "$tmp/$r.out" ] || die "${env[*]}: rank $r prints too"; done
	echo "ok: ${env[*]} $*"
}
ranks 4 RANK=R WORLD_SIZE=4 LOCAL_RANK=R MASTER_ADDR=127.0.0.1 MASTER_PORT=4600 --
# Somebody listens on MASTER_PORT, as torchrun's own store does.
"$gantry" perf net --listen --forever --port 4600 >/dev/null 2>"$tmp/store.err" &
pids=$!
await grep -qs "waiting for a client" "$tmp/store.err" || die "nobody listens on MASTER_PORT"
ranks 4 RANK=R WORLD_SIZE=4 LOCAL_RANK=R MASTER_ADDR=127.0.0.1 MASTER_PORT=4600 --
kill $pids
ranks 3 SLURM_PROCID=R SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=127.0.0.1,n2 --
ranks 2 SLURM_PROCID=R SLURM_NTASKS=2 SLURM_JOB_ID=8 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 --
ranks 2 OMPI_COMM_WORLD_RANK=R OMPI_COMM_WORLD_SIZE=2 "OMPI_MCA_orte_hnp_uri=1.0;tcp://127.0.0.1:4000" --
ranks 2 PMI_RANK=R PMI_SIZE=2 -- --root 127.0.0.1:4601
ranks 2 PMI_RANK=R PMI_SIZE=2 -- --id-file "$tmp/id" --ifname lo
[ ! -e "$tmp/id" ] || die "the id file is left"

# The real ones, as they stand.
for mpirun in mpirun.openmpi mpirun.mpich mpirun; do
	command -v $mpirun >/dev/null || continue
	as_root=
	if $mpirun --version 2>/dev/null | grep -q -e OpenRTE -e "Open MPI"; then
		as_root=--oversubscribe
		[ "$(id -u)" != 0 ] || as_root="$as_root --allow-run-as-root"
	fi
	timeout 280 $mpirun $as_root -n 4 "$gantry" perf sendrecv $few >"$tmp/out" 2>"$tmp/err" || die "$mpirun: exit status $?"
	has out "ranks: 4;"
	has out "# wrong bytes: 0; OK"
	echo "ok: $mpirun -n 4"
done

# A rank that waits says for whom; ended by its launcher it leaves no file.
# waits RANK TEXT ARGUMENT...: until it has said so; then it is ended.
waits() {
	local rank=$1 text=$2 tool
	shift 2
	RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=4600 "$gantry" perf sendrecv $few "$@" >"$tmp/out" 2>"$tmp/err" &
	tool=$!
	pids=$tool
	await grep -qF -- "$text" "$tmp/err" || die "rank $rank does not say: $text"
	kill $tool
	wait $tool 2>/dev/null
	[ ! -e "$tmp/id" ] || die "the id file of rank $rank is left"
	echo "ok: $text"
}
waits 0 "rank 0 waits for ranks 1-3"
waits 2 "rank 2 waits for rank 0 at 127.0.0.1:4601: Connection refused"
waits 0 "rank 0 waits for ranks 1-3" --id-file "$tmp/id" --ifname lo
waits 2 "rank 2 waits for rank 0 to write $tmp/id" --id-file "$tmp/id"

# refused STATUS TEXT ENVIRONMENT... -- ARGUMENT...
refused() {
	local want=$1 text=$2 env=()
	shift 2
	while [ "$1" != -- ]; do env+=("$1"); shift; done
	shift
	expect "$want" env "${env[@]}" "$gantry" perf sendrecv $few "$@"
	has err "$text"
}
torch="RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1"
refused 1 "within 1 s (GANTRY_CONNECT_TIMEOUT)" GANTRY_CONNECT_TIMEOUT=1s $torch -- --id-file "$tmp/id"
refused 1 "missing: rank 1" GANTRY_CONNECT_TIMEOUT=1s RANK=0 WORLD_SIZE=2 MASTER_ADDR=x -- --id-file "$tmp/id" --ifname lo
[ ! -e "$tmp/id" ] || die "a failure leaves the id file"
refused 1 "missing: rank 1" GANTRY_CONNECT_TIMEOUT=1s RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=4600 --
refused 1 "give all ranks --root" OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "OMPI_MCA_orte_hnp_uri=1.0;tcp://192.0.2.77:4000" --
refused 2 "--id-file is for ranks that mpirun, srun or torchrun starts" -- --id-file "$tmp/id"
refused 2 "--id-file is for ranks that mpirun, srun or torchrun starts" $torch -- --ranks 2 --id-file "$tmp/id"
refused 2 "RANK=2 and WORLD_SIZE=2: there is no such rank" RANK=2 WORLD_SIZE=2 MASTER_ADDR=x --
refused 2 "nothing says where rank 0 is" $torch --
refused 2 "MASTER_PORT=http is not a port" $torch MASTER_PORT=http --
refused 2 "exclude each other" $torch -- --root x --id-file "$tmp/id"
