#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# No size of a collective over TCP takes much longer than the sizes beside it: 2 MiB + 64 KiB once took a millisecond more than
# 2 MiB. bench/cliffs.py looks at all sizes, operations and transports; this at those where ways through the network change.
. "$(dirname "$0")/lib.sh"

need python3
timeout 400 python3 "$SOURCE_DIR/bench/cliffs.py" "$gantry" --ops all_reduce,all_gather --transports net -b 65536 -e 4194304 || die "a size is much slower than those beside it"
