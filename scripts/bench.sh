#!/usr/bin/env bash
# Measures, and writes JSON lines that say where they come from: every line carries machine, commit and command.
#
#   scripts/bench.sh [FOLDER]      default: build/bench
#
# First `gantry perf net --raw` on loopback, then each bench/*.sh, with BUILD_DIR and SOURCE_DIR set; of what they
# print, lines that are JSON objects are kept. Results worth keeping are copied to bench/results/ by hand.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
BUILD_DIR=$(cd "${BUILD:-build}" && pwd)
SOURCE_DIR=$PWD
export BUILD_DIR SOURCE_DIR
out=${1:-$BUILD_DIR/bench}
mkdir -p "$out"

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n1)
machine="$(uname -m), ${cpu:-cpu unknown}, $(nproc) cpus, Linux $(uname -r)"
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit+=-dirty

json_escape() { printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g' | tr '\n\t' '  '; }

# measure NAME COMMAND...: the command's lines, each with its origin in front, to NAME.jsonl and to the terminal.
measure()
{
	local name=$1 origin line status
	shift
	origin="\"machine\":\"$(json_escape "$machine")\",\"commit\":\"$commit\",\"command\":\"$(json_escape "${*#"$SOURCE_DIR"/}")\""
	header "$name: ${*#"$SOURCE_DIR"/}"
	set +e
	"$@" | while IFS= read -r line; do
		printf '%s\n' "$line"
		case $line in
		'{}') ;;
		'{'*) printf '{%s,%s\n' "$origin" "${line#\{}" >&3 ;;
		esac
	done 3>"$out/$name.jsonl"
	status=${PIPESTATUS[0]}
	set -e
	[ "$status" != 77 ] || return 0 # it has said why
	[ "$status" = 0 ] || { echo "$name failed with status $status"; return "$status"; }
	echo "-> $out/$name.jsonl"
}

measure perf-net "$BUILD_DIR/gantry" perf net --ifname lo --raw -b 64 -e 64M -f 4 --json
shopt -s nullglob
for script in bench/*.sh; do
	measure "$(basename "$script" .sh)" bash "$script"
done
