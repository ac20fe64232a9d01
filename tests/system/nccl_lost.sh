#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A rank of a job on libnccl.so.2 is killed or stopped at random moments of collectives: no call of another rank succeeds with a wrong
# result, all others learn of it, and they go on without it. With communicators that block, and with those that do not. SEED: of the moments.
# Catches: an error that comes between the two questions, of the communicator and of its stream, by which a non-blocking one is judged.
. "$(dirname "$0")/lib.sh"
lost=$BUILD_DIR/nccl/lost
[ -x "$lost" ] || skip "no $lost"
clean_environment
no_leaks
export LD_LIBRARY_PATH=$BUILD_DIR/lib GANTRY_NCCL_DEVICE=host GANTRY_IFNAME=lo GANTRY_LOG=error
tested=("$lost")
seed=${SEED:-$RANDOM}
echo "seed $seed"
for transport in p2p shm net; do
	GANTRY_TRANSPORT=$transport GANTRY_TIMEOUT=20s expect 0 3 6 $((seed + 1)) kill
	GANTRY_TRANSPORT=$transport GANTRY_TIMEOUT=20s expect 0 3 10 $((seed + 3)) kill async
	GANTRY_TRANSPORT=$transport GANTRY_TIMEOUT=3s expect 0 4 1 $((seed + 2)) stop
done
